#include "pool/reaper.hpp"

#include <algorithm>
#include <utility>

#include "os/log.hpp"
#include "pool/sizing.hpp"

namespace numacre::daemon {

struct Reaper::Case {
    std::shared_ptr<ManagedPool> pool;
    Client client;
    Departure departure{};
    std::function<void()> on_done, on_kept;
    bool is_kept = false, has_blocks = false;
    std::chrono::milliseconds next_walk = kKeptPeriod;
    std::chrono::steady_clock::time_point walked{};
    Reclaimed total;
    std::chrono::steady_clock::time_point begun;
    std::chrono::milliseconds retry_after = kFirstRetry;
    bool said_blocked = false;
};

// The result of a walk for one of its cases.
struct Reaper::Step {
    Departed departed;
    std::optional<Client> in_the_way;
    bool is_kept = false;
};

Reaper::Reaper(EventLoop &loop, Registry &registry) : loop_(loop), registry_(registry) {}

void Reaper::reap(std::shared_ptr<ManagedPool> pool, const Client &client, Departure departure,
                  std::function<void()> on_done, std::function<void()> on_kept) {
    pool->begin_departure(client.slot, departure);
    auto job = std::make_shared<Case>();
    job->pool = std::move(pool);
    job->client = client;
    job->departure = departure;
    job->on_done = std::move(on_done);
    job->on_kept = std::move(on_kept);
    job->begun = std::chrono::steady_clock::now();
    // An observer owns no blocks, and cannot write to its mappings.
    if (client.tier == wire::Tier::observer)
        finish(job);
    else
        step(std::move(job));
}

void Reaper::step(std::shared_ptr<Case> job) {
    const std::uint64_t instance_id = job->pool->instance_id();
    const auto [waiting, is_first] = waiting_.try_emplace(instance_id);
    waiting->second.push_back(std::move(job));
    if (is_first) work_on(instance_id);
}

void Reaper::work_on(std::uint64_t instance_id) {
    auto jobs = std::exchange(waiting_.at(instance_id), {});
    std::ranges::sort(jobs, {}, [](const auto &job) { return job->client.slot.value; });
    Worker &worker = jobs.front()->pool->worker();
    worker.post([this, instance_id, jobs = std::move(jobs)]() mutable {
        auto steps = walk_for(jobs);
        loop_.post([this, instance_id, jobs = std::move(jobs), steps = std::move(steps)] {
            for (std::size_t i = 0; i < jobs.size(); ++i) has_stepped(jobs[i], steps[i]);
            if (after_walks_) after_walks_(instance_id);
            if (waiting_.at(instance_id).empty())
                waiting_.erase(instance_id);
            else
                work_on(instance_id);
        });
    });
}

// One walk for all of the cases, which are of one pool and in ascending order of slots. On the pool's worker.
std::vector<Reaper::Step> Reaper::walk_for(std::span<const std::shared_ptr<Case>> jobs) {
    ManagedPool &pool = *jobs.front()->pool;
    std::vector<Departed> departed;
    departed.reserve(jobs.size());
    for (const auto &job : jobs) departed.push_back({job->client.slot, job->total, {}});
    pool.reclaim(departed);
    std::vector<Step> steps;
    for (const Departed &one : departed) {
        const bool is_blocked = one.step == RecoveryStep::blocked;
        // Also without blocks: somebody may have the memory registered, so it stays where it is.
        steps.push_back({one, is_blocked ? pool.note_blocked(one.process, one.blocked_by) : std::nullopt,
                         one.kept.blocks != 0 || pool.has_pins(one.process, false)});
    }
    return steps;
}

void Reaper::has_stepped(const std::shared_ptr<Case> &job, const Step &step) {
    job->total = step.departed.total;
    if (step.departed.step == RecoveryStep::done) {
        if (step.is_kept)
            keep(job, step.departed.kept);
        else
            finish(job);
        return;
    }
    if (job->retry_after >= kLastRetry && !job->said_blocked) {
        job->said_blocked = true;
        log::warn("recovery waits for a live client that stands still in the middle of an operation",
                  {{"pool", job->pool->name()},
                   {"client", job->client.id},
                   {"blocked_by_client", step.in_the_way ? step.in_the_way->id : 0},
                   {"blocked_by_pid", step.in_the_way ? step.in_the_way->peer.pid : 0},
                   {"blocked_by_thread_slot", step.departed.blocked_by.value}});
    }
    loop_.after(job->retry_after, [this, job] { this->step(job); });
    job->retry_after = std::min(job->retry_after * 2, kLastRetry);
}

void Reaper::keep(const std::shared_ptr<Case> &job, const Reclaimed &kept) {
    job->has_blocks = kept.blocks != 0;
    if (!std::exchange(job->is_kept, true)) {
        job->pool->set_client_state(job->client.slot, ClientState::quarantined);
        log::info(
            "what a client that is gone had in use waits: devices may still write there, or its group may adopt it",
            {{"pool", job->pool->name()},
             {"client", job->client.id},
             {"pid", job->client.peer.pid},
             {"blocks", kept.blocks},
             {"bytes", job->pool->geometry().bytes_of(kept.frames)}});
        job->pool->record_worker().post([job] { job->pool->end_promise(job->client.slot); });
        // The other blocks may serve waiters.
        ManagedPool::wake_waiters_soon(job->pool);
        // It may have been the last one that had a channel open.
        end_channels(job->pool);
        if (job->on_kept) job->on_kept();
    }
    job->walked = std::chrono::steady_clock::now();
    look_at_kept(job);
}

// A walk follows when the blocks may go; and now and then, as a group may have adopted all of them.
void Reaper::look_at_kept(const std::shared_ptr<Case> &job) {
    loop_.after(kKeptPeriod, [this, job] {
        job->pool->worker().post([this, job] {
            if (job->pool->is_deleted()) return;  // nobody gets any of it
            const bool has_pins = job->pool->has_pins(job->client.slot, job->has_blocks);
            const bool has_group = !has_pins && job->pool->has_group(job->client.slot);
            loop_.post([this, job, has_pins, has_group] {
                const bool waits = has_group && std::chrono::steady_clock::now() - job->walked < job->next_walk;
                if (has_pins || waits) return look_at_kept(job);
                if (has_group) job->next_walk = std::min(job->next_walk * 2, kLastWalk);
                step(job);
            });
        });
    });
}

void Reaper::finish(const std::shared_ptr<Case> &job) {
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - job->begun).count();
    job->pool->record_worker().post([this, job, seconds] {
        job->pool->vacate(job->client.slot, job->departure, job->total, seconds);
        loop_.post([this, job, seconds] { has_gone(*job, seconds); });
    });
}

void Reaper::has_gone(const Case &job, double seconds) {
    const std::uint64_t bytes = job.pool->geometry().bytes_of(job.total.frames);
    // It may have had channels open; or a channel's seat has gone, and the channel is to be forgotten.
    if (job.client.tier != wire::Tier::observer) end_channels(job.pool);
    if (job.client.tier == wire::Tier::channel) {
        ManagedPool::wake_waiters_soon(job.pool);
        log::info("channel removed", {{"pool", job.pool->name()},
                                      {"channel", job.client.peer.comm},
                                      {"blocks", job.total.blocks},
                                      {"bytes", bytes}});
        watch_seized(job.pool);
        if (job.on_done) job.on_done();
        return;
    }
    // Freed memory may serve waiters; and the client may have died while it was serving them.
    if (job.client.tier != wire::Tier::observer) ManagedPool::wake_waiters_soon(job.pool);
    const bool detached = job.departure == Departure::detached;
    registry_.count(detached                           ? &DaemonTotals::reaped_detached
                    : job.departure == Departure::died ? &DaemonTotals::reaped_killed
                                                       : &DaemonTotals::reaped_lost);
    // Lines are bounded for each user, as for clients that attach: see AttachServer::serve().
    const auto left_out = departure_lines_.line_for(job.client.peer.uid, std::chrono::steady_clock::now());
    const auto say = left_out ? log::info : log::debug;
    say(detached ? "client detached" : "client reaped", {{"pool", job.pool->name()},
                                                         {"client", job.client.id},
                                                         {"pid", job.client.peer.pid},
                                                         {"comm", job.client.peer.comm},
                                                         {"blocks", job.total.blocks},
                                                         {"bytes", bytes},
                                                         {"seconds", seconds}});
    if (left_out.value_or(0) != 0)
        log::info("a user's clients went before without a line",
                  {{"uid", job.client.peer.uid}, {"clients", *left_out}});
    Event event;
    event.pool = job.pool->name();
    event.kind = detached ? EventKind::client_detached : EventKind::client_reaped;
    event.message = job.client.peer.comm + " (pid " + std::to_string(job.client.peer.pid) + ") " +
                    (detached                           ? "detached"
                     : job.departure == Departure::died ? "ended"
                                                        : "went without saying so") +
                    "; " + std::to_string(job.total.blocks) + " blocks came back";
    event.client_id = job.client.id;
    event.bytes = bytes;
    registry_.events().publish(std::move(event));
    watch_seized(job.pool);
    if (job.on_done) job.on_done();
}

void Reaper::end_channels(const std::shared_ptr<ManagedPool> &pool) {
    pool->worker().post([this, pool] {
        auto unused = pool->take_unused_channels();
        if (unused.empty()) return;
        loop_.post([this, pool, unused = std::move(unused)] {
            for (const Client &channel : unused)
                // Another such look may have been under way.
                if (const auto now = pool->client_at(channel.slot); now && now->id == channel.id && !has_departed(*now))
                    reap(pool, channel, Departure::detached, {});
        });
    });
}

// Runs once at a time for each pool, and only while the pool has seized blocks: an idle daemon does not wake up. A pool
// that is deleted does not wait for its quarantine.
void Reaper::watch_seized(const std::shared_ptr<ManagedPool> &pool) {
    if (releasing_.try_emplace(pool->instance_id()).second) release_seized(pool->instance_id(), pool);
}

void Reaper::look_at_seized(const std::shared_ptr<ManagedPool> &pool) {
    loop_.post([this, pool] {
        const auto found = releasing_.find(pool->instance_id());
        if (found == releasing_.end()) return;
        Releasing &releasing = found->second;
        if (releasing.wait == 0) {
            releasing.again = true;
            return;
        }
        loop_.cancel(std::exchange(releasing.wait, 0));
        release_seized(pool->instance_id(), pool);
    });
}

void Reaper::release_seized(std::uint64_t instance_id, const std::weak_ptr<ManagedPool> &pool) {
    const std::shared_ptr<ManagedPool> here = pool.lock();
    if (!here) {
        releasing_.erase(instance_id);
        return;
    }
    here->worker().post([this, instance_id, pool, here] {
        const auto next = here->release_seized();
        loop_.post([this, instance_id, pool, next] {
            Releasing &releasing = releasing_[instance_id];
            if (!next) {
                releasing_.erase(instance_id);
                return;
            }
            const auto wait = std::chrono::ceil<std::chrono::milliseconds>(*next - std::chrono::steady_clock::now());
            if (std::exchange(releasing.again, false) || wait.count() <= 0) return release_seized(instance_id, pool);
            releasing.wait = loop_.after(wait, [this, instance_id, pool] {
                releasing_[instance_id].wait = 0;
                release_seized(instance_id, pool);
            });
        });
    });
}

void Reaper::finish_predecessor(std::shared_ptr<ManagedPool> pool) {
    try_finish(std::move(pool), kFirstRetry);
}

void Reaper::try_finish(std::shared_ptr<ManagedPool> pool, std::chrono::milliseconds retry_after) {
    Worker &worker = pool->worker();
    worker.post([this, pool = std::move(pool), retry_after]() mutable {
        ThreadSlotIndex blocked_by;
        if (pool->finish_predecessor(blocked_by) == RecoveryStep::done) {
            if (!pool->draining.empty()) watch_drains(pool);
            loop_.post([this, pool = std::move(pool)] { watch_seized(pool); });
            return;
        }
        if (retry_after == kLastRetry) {
            const auto in_the_way = pool->client_of(blocked_by);
            log::warn(
                "what the daemon before was in the middle of waits for a live client that stands still: until it goes "
                "on, "
                "or has ended, nothing of this pool is reaped, resized or drained",
                {{"pool", pool->name()},
                 {"blocked_by_client", in_the_way ? in_the_way->id : 0},
                 {"blocked_by_pid", in_the_way ? in_the_way->peer.pid : 0},
                 {"blocked_by_thread_slot", blocked_by.value}});
        }
        loop_.post([this, pool = std::move(pool), retry_after]() mutable {
            loop_.after(retry_after,
                        [this, pool, retry_after] { try_finish(pool, std::min(retry_after * 2, kLastRetry)); });
        });
    });
}

void Reaper::watch_drains(const std::shared_ptr<ManagedPool> &pool) {
    loop_.post([this, pool] {
        if (draining_.insert(pool->instance_id()).second) check_drains(pool);
    });
}

void Reaper::check_drains(const std::shared_ptr<ManagedPool> &pool) {
    pool->worker().post([this, pool] {
        const bool more = finish_drains(*pool);
        loop_.post([this, more, id = pool->instance_id(), weak = std::weak_ptr(pool)] {
            if (!more) {
                draining_.erase(id);
                return;
            }
            loop_.after(kDrainPeriod, [this, id, weak] {
                if (const auto again = weak.lock())
                    check_drains(again);
                else
                    draining_.erase(id);
            });
        });
    });
}

}  // namespace numacre::daemon
