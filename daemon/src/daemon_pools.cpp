// The requests of the control service and of the reader of the configuration (pool/pool_manager.hpp). Any thread.
#include <algorithm>
#include <iterator>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/bytes.hpp"
#include "daemon.hpp"
#include "os/log.hpp"
#include "pool/sizing.hpp"
#include "spec/pool_spec.hpp"

namespace numacre::daemon {
namespace {

// A deletion by force: how long the clients get between SIGTERM and SIGKILL, and altogether.
constexpr std::chrono::milliseconds kForceGrace{2000};
constexpr std::chrono::milliseconds kForcePatience{10'000};
constexpr std::chrono::milliseconds kForcePoll{20};
// How long a deletion waits for the memory to be back.
constexpr std::chrono::milliseconds kDestroyPatience{5000};

}  // namespace

void Daemon::set_metrics_address(std::string address) {
    const std::lock_guard lock(metrics_address_mutex_);
    metrics_address_ = std::move(address);
}

std::vector<std::string> Daemon::pool_names() {
    return registry_.names();
}

std::optional<Failure> Daemon::refusal_if_stuck(const ManagedPool &pool, const char *then) {
    if (pool.busy_for() < kStuckAfter) return std::nullopt;
    return Failure{Errc::timed_out, "the kernel makes the daemon wait for the files of pool \"" + pool.name() +
                                        "\": evict the client that keeps them busy, then " + then};
}

Answer<PoolStatus> Daemon::pool_status(const std::string &name) {
    const auto pool = registry_.find(name);
    if (!pool) return Unexpected{pool.error()};
    auto status = (*pool)->status_in_time();
    publish_news(**pool);
    publish_damage(**pool);
    return status;
}

void Daemon::publish_damage(ManagedPool &pool) {
    auto reason = pool.take_news_of_damage();
    if (!reason) return;
    Event event;
    event.pool = pool.name();
    event.kind = EventKind::pool_corrupt;
    event.message = std::move(*reason);
    registry_.events().publish(std::move(event));
}

std::shared_ptr<ManagedPool> Daemon::destroyed_elsewhere(std::shared_ptr<ManagedPool> pool) {
    ManagedPool *const address = pool.get();
    return {address, [this, pool = std::move(pool)](ManagedPool *) mutable {
                destroyer_->post([this, pool = std::move(pool)]() mutable {
                    const std::uint64_t id = pool->instance_id();
                    pool.reset();
                    {
                        const std::lock_guard lock(deleted_mutex_);
                        being_destroyed_.erase(id);
                    }
                    destroyed_.notify_all();
                });
            }};
}

Answer<std::shared_ptr<ManagedPool>> Daemon::make_pool(const PoolSpec &spec) {
    try {
        auto made = ManagedPool::create(spec, *topology_, hugepages_);
        if (!made) return made;
        return destroyed_elsewhere(std::move(*made));
    } catch (const std::system_error &failure) {
        return Unexpected{Failure{
            Errc::too_many_clients,
            std::string("the daemon can have no thread for it (") + failure.what() +
                "): raise the limit on threads (TasksMax=, pids.max, ulimit -u), or on address space (ulimit -v)"}};
    } catch (const std::bad_alloc &) {
        return Unexpected{Failure{Errc::out_of_frames,
                                  "the daemon has no memory left for it: free some, or raise its "
                                  "limit (MemoryMax=, ulimit -v, vm.overcommit_memory)"}};
    }
}

Answer<void> Daemon::create_pool(const PoolSpec &spec) {
    const auto geometry = geometry_of(spec);
    if (!geometry) return Unexpected{geometry.error()};
    const std::uint64_t of_a_pool = descriptors_of_a_pool(topology_->numa_nodes().size());
    if (const std::uint64_t pools = options_.descriptors_for_pools / of_a_pool; registry_.names().size() >= pools)
        return Unexpected{Failure{Errc::too_many_clients,
                                  "the daemon's open file limit has room for " + std::to_string(pools) + " pools of " +
                                      std::to_string(topology_->numa_nodes().size()) +
                                      " numa nodes beside its connections: raise the limit (LimitNOFILE=, ulimit -Hn), "
                                      "lower --max-connections, or delete a pool"}};
    if (!registry_.claim_name(spec.name))
        return Unexpected{Failure{Errc::already_exists, "there is a pool named \"" + spec.name +
                                                            "\" already: use another name, or delete it"}};
    auto pool = make_pool(spec);
    if (!pool) {
        registry_.release_name(spec.name);
        return Unexpected{Failure{pool.error().code, "pool \"" + spec.name + "\": " + pool.error().message}};
    }
    keep(**pool);
    (*pool)->ledger().set_state(LedgerState::serving);
    registry_.add(*pool);
    watch_soft_limits();
    for (std::size_t i = 0; i < (*pool)->numa_node_count(); ++i) {
        const NodeMemory &memory = (*pool)->node_memory(NumaNode{static_cast<std::uint8_t>(i)});
        log::info("pool ready", {{"pool", spec.name},
                                 {"numa_node", i},
                                 {"os_numa_node", memory.os_numa_node()},
                                 {"capacity", format_bytes(spec.capacity_bytes)},
                                 {"online", format_bytes(memory.online_bytes())},
                                 {"frame", format_bytes(spec.frame_bytes)},
                                 {"largest", format_bytes(spec.largest_block_bytes)},
                                 {"backing", std::string(backing_name(memory.data().backing()))}});
    }
    Event event;
    event.pool = spec.name;
    event.kind = EventKind::pool_created;
    event.message = "pool " + spec.name + " serves " + format_node_bytes(spec) + " a numa node";
    event.bytes = spec.online_bytes;
    registry_.events().publish(std::move(event));
    return {};
}

namespace {

std::string name_of(const Client &client, const ManagedPool &pool) {
    // A process that /proc does not show has no name.
    const std::string comm = client.peer.comm.empty() ? "" : client.peer.comm + ", ";
    return "client " + std::to_string(client.id) + " (" + comm + "pid " + std::to_string(client.peer.pid) +
           ") of pool \"" + pool.name() + "\"";
}

// Not connected, and no process is known to be the client's: nobody will tell of its end.
bool is_out_of_reach(const Client &client) {
    const bool is_connected = client.state != ClientState::lost && client.state != ClientState::adopted;
    return !is_connected && (!client.peer.pidfd || !client.peer.is_certain);
}

Failure does_not_end(const Client &client, const ManagedPool &pool) {
    return {Errc::timed_out,
            name_of(client, pool) + " does not end: " + why_beyond_signals(client.peer).value_or("see why") +
                ", then delete the pool again" +
                (is_out_of_reach(client) ? "; if you know that the process has ended, with --abandon" : "")};
}

}  // namespace

// With Deletion::abandoning, the clients that are left are out of reach.
Answer<void> Daemon::end_clients(const std::shared_ptr<ManagedPool> &closed, Deletion deletion) {
    const ManagedPool &pool = *closed;
    for (const Client &client : pool.client_table())
        if (client.tier != wire::Tier::channel) attach_server_->evict(client.id, kForceGrace);
    const auto deadline = std::chrono::steady_clock::now() + kForcePatience;
    for (;;) {
        std::vector<Client> left = pool.client_table();
        // Memory that the dead had pinned stays where it is all the same (ManagedPool::give_back_frames).
        // Channels go with the pool.
        std::erase_if(left, [](const Client &client) {
            return client.state == ClientState::quarantined || client.tier == wire::Tier::channel;
        });
        if (left.empty()) {
            attach_server_->abandon(closed);
            return {};
        }
        if (deletion == Deletion::abandoning && std::ranges::all_of(left, is_out_of_reach)) {
            for (const Client &client : left)
                log::warn("a client whose process cannot be found is left behind",
                          {{"pool", pool.name()}, {"client", client.id}, {"pid", client.peer.pid}});
            attach_server_->abandon(closed);
            return {};
        }
        if (stopping_.load(std::memory_order_relaxed))  // relaxed: seen at the next turn at the latest
            return Unexpected{
                Failure{Errc::daemon_gone, "the daemon is being stopped: delete the pool when it is back"}};
        if (std::chrono::steady_clock::now() >= deadline) return Unexpected{does_not_end(left.front(), pool)};
        std::this_thread::sleep_for(kForcePoll);
    }
}

Answer<void> Daemon::delete_pool(const std::string &name, Deletion deletion) {
    auto pool = registry_.find(name);
    if (!pool) return Unexpected{pool.error()};
    if (!(*pool)->close_door(deletion != Deletion::of_unused)) {
        std::vector<Client> table = (*pool)->client_table();
        std::erase_if(table, [](const Client &client) { return client.tier == wire::Tier::channel; });
        if (table.empty())
            return Unexpected{
                Failure{Errc::contended, "pool \"" + name + "\" is being deleted already: wait for that"}};
        return Unexpected{Failure{Errc::contended, "pool \"" + name + "\" has " + std::to_string(table.size()) +
                                                       " clients, the first is " + table.front().peer.comm + " (pid " +
                                                       std::to_string(table.front().peer.pid) +
                                                       "): end them, or delete by force"}};
    }
    if (auto ended = end_clients(*pool, deletion); !ended) {
        (*pool)->open_door();
        return ended;
    }
    const std::uint64_t id = (*pool)->instance_id();
    {
        // Waits for a resize that is under way on another thread.
        const std::lock_guard lock((*pool)->resize_mutex);
        (*pool)->announce_deletion();
        let_go(**pool);
        registry_.remove(name);
        const std::lock_guard lock_of_deleted(deleted_mutex_);
        std::erase_if(deleted_, [](const auto &deleted) { return deleted.expired(); });
        deleted_.push_back(*pool);
        being_destroyed_.insert(id);
    }
    // The frames are punched: an observer that has detached may keep a descriptor for as long as it likes.
    (*pool)->worker().post([pool = *pool] { pool->give_back_frames(); });
    log::info("pool deleted", {{"pool", name}});
    Event event;
    event.pool = name;
    event.kind = EventKind::pool_deleted;
    event.message = "pool " + name + " was deleted";
    registry_.events().publish(std::move(event));
    // The next pool may need the memory of this one. If other threads look at this pool for a while, or its worker is
    // stuck, the memory comes back later.
    pool->reset();
    std::unique_lock lock(deleted_mutex_);
    destroyed_.wait_for(lock, kDestroyPatience, [&] { return !being_destroyed_.contains(id); });
    return {};
}

Answer<void> Daemon::resize(const std::string &name, NumaNode node, std::uint64_t online_bytes, bool dry_run,
                            const std::function<bool(const ResizeStep &)> &progress) {
    const auto pool = registry_.find(name);
    if (!pool) return Unexpected{pool.error()};
    const ManagedPool::Turn turn(**pool);
    if (auto ours = turn.check(); !ours) return ours;
    const std::uint64_t before = (*pool)->has(node) ? (*pool)->node_memory(node).online_bytes() : 0;
    const auto begun = std::chrono::steady_clock::now();
    const auto result = resize_numa_node(**pool, node, online_bytes, dry_run, progress);
    if (dry_run || !(*pool)->has(node)) return result;

    note_resize(**pool, node, before, (*pool)->node_memory(node).online_bytes(), result, {}, begun);
    return result;
}

void Daemon::note_resize(const ManagedPool &pool, NumaNode node, std::uint64_t before, std::uint64_t after,
                         const Answer<void> &result, const std::string &by_whom,
                         std::chrono::steady_clock::time_point begun) {
    registry_.count(result            ? &DaemonTotals::resize_ok
                    : after != before ? &DaemonTotals::resize_partial
                                      : &DaemonTotals::resize_failed);
    const auto took = std::chrono::steady_clock::now() - begun;
    log::info("pool resized", {{"pool", pool.name()},
                               {"numa_node", node.value},
                               {"before", format_bytes(before)},
                               {"after", format_bytes(after)},
                               {"microseconds", std::chrono::duration_cast<std::chrono::microseconds>(took).count()},
                               {"result", by_whom + (result ? "ok" : result.error().message)}});
    if (after == before) return;
    Event event;
    event.pool = pool.name();
    event.kind = EventKind::resized;
    event.message = by_whom + "numa node " + std::to_string(node.value) + ": " + format_bytes(before) + " -> " +
                    format_bytes(after) + " online";
    event.node = node.value;
    event.bytes = after;
    registry_.events().publish(std::move(event));
}

void Daemon::autosize(const std::shared_ptr<ManagedPool> &pool) {
    for (const ManagedPool::Wish &wish : pool->take_autosize_wishes()) {
        pool->post_sizing([this, pool, wish] {
            const auto begun = std::chrono::steady_clock::now();
            const auto go_on = [this](const ResizeStep &) {
                return !stopping_.load(std::memory_order_relaxed);  // relaxed: seen at the next step at the latest
            };
            const auto result = resize_if_idle(*pool, wish.numa_node, wish.from_bytes, wish.to_bytes, go_on);
            const std::uint64_t now = pool->node_memory(wish.numa_node).online_bytes();
            if (!result) return;  // an operator's resize came first, or the memory is reserved: both take precedence
            registry_.count(!*result                          ? &DaemonTotals::autosize_failed
                            : wish.to_bytes > wish.from_bytes ? &DaemonTotals::autosize_grown
                                                              : &DaemonTotals::autosize_shrunk);
            note_resize(*pool, wish.numa_node, wish.from_bytes, now, *result, "autosize: ", begun);
        });
    }
}

Answer<DrainStatus> Daemon::drain_chunk(const std::string &name, NumaNode node, std::uint64_t chunk, bool undo) {
    const auto pool = registry_.find(name);
    if (!pool) return Unexpected{pool.error()};
    const ManagedPool::Turn turn(**pool);
    if (auto ours = turn.check(); !ours) return Unexpected{ours.error()};
    auto status = numacre::daemon::drain_chunk(**pool, node, chunk, undo);
    if (status && status->draining) reaper_.watch_drains(*pool);
    return status;
}

Answer<std::vector<std::shared_ptr<ManagedPool>>> Daemon::chosen_pools(const std::string &name) {
    if (name.empty()) return registry_.all();
    auto pool = registry_.find(name);
    if (!pool) return Unexpected{pool.error()};
    return std::vector{std::move(*pool)};
}

Answer<std::vector<ClientStatus>> Daemon::clients(const std::string &name) {
    const auto pools = chosen_pools(name);
    if (!pools) return Unexpected{pools.error()};
    std::vector<ClientStatus> statuses;
    for (const auto &pool : *pools) {
        std::ranges::move(pool->client_statuses_in_time(), std::back_inserter(statuses));
        publish_news(*pool);
    }
    return statuses;
}

Answer<BlockList> Daemon::blocks(const std::string &name, std::uint32_t client_id, std::uint32_t limit) {
    const auto pools = chosen_pools(name);
    if (!pools) return Unexpected{pools.error()};
    const auto has_client = [&](const auto &pool) { return pool->find_client(client_id).has_value(); };
    if (client_id != 0 && std::ranges::none_of(*pools, has_client)) return Unexpected{no_such_client(client_id)};
    OldestBlocks oldest(limit);
    for (const auto &pool : *pools) pool->add_oldest_blocks(client_id, oldest);
    return std::move(oldest).take();
}

Answer<std::vector<NameStatus>> Daemon::names(const std::string &name) {
    const auto pools = chosen_pools(name);
    if (!pools) return Unexpected{pools.error()};
    std::vector<NameStatus> statuses;
    for (const auto &pool : *pools)
        for (const NameEntry &entry : pool->names()) statuses.push_back({pool->name(), entry});
    return statuses;
}

Answer<void> Daemon::remove_name(const std::string &name, const NameText &text) {
    const auto pool = registry_.find(name);
    if (!pool) return Unexpected{pool.error()};
    const ManagedPool::Turn turn(**pool);
    if (auto ours = turn.check(); !ours) return Unexpected{ours.error()};
    if (auto stuck = refusal_if_stuck(**pool, "remove the name again")) return Unexpected{std::move(*stuck)};
    NameEntry entry;
    entry.name = text;
    const auto removed =
        (*pool)->record_worker().run([&] { return (*pool)->change_name(entry, std::nullopt, {0, 0, true}, nullptr); });
    if (!removed) return Unexpected{removed.error()};
    return {};
}

Answer<std::vector<ChannelStatus>> Daemon::channels(const std::string &name) {
    const auto pools = chosen_pools(name);
    if (!pools) return Unexpected{pools.error()};
    std::vector<ChannelStatus> statuses;
    for (const auto &pool : *pools) {
        auto found = pool->channel_statuses_in_time();
        if (found)
            std::ranges::move(*found, std::back_inserter(statuses));
        else if (!name.empty())
            return found;
    }
    return statuses;
}

Answer<std::uint32_t> Daemon::remove_channel(const std::string &name, const std::string &channel, bool ends) {
    const auto pool = registry_.find(name);
    if (!pool) return Unexpected{pool.error()};
    const ManagedPool::Turn turn(**pool);
    if (auto ours = turn.check(); !ours) return Unexpected{ours.error()};
    if (auto stuck = refusal_if_stuck(**pool, "remove the channel again")) return Unexpected{std::move(*stuck)};
    const auto removed = (*pool)->worker().run([&] { return (*pool)->remove_channel(channel, ends); });
    if (removed) {
        log::info("channel to be removed",
                  {{"pool", name}, {"channel", channel}, {"ended", ends}, {"opened_by", *removed}});
        // Parties that sleep by futex are awake already.
        if (ends)
            loop_->post([this, instance_id = (*pool)->instance_id()] { attach_server_->ring_bells(instance_id); });
        reaper_.end_channels(*pool);
    }
    return removed;
}

Answer<void> Daemon::evict(std::uint32_t client_id, std::chrono::milliseconds grace) {
    for (const auto &pool : registry_.all()) {
        const auto client = pool->find_client(client_id);
        if (!client) continue;
        if (client->state == ClientState::quarantined)
            return Unexpected{Failure{Errc::bad_argument,
                                      name_of(*client, *pool) +
                                          " has ended, and what it has left waits: until the processes that have its "
                                          "pins, or its group, have ended as well, and the pool's pin-quarantine has "
                                          "passed; end those"}};
        if (const auto reason = why_beyond_signals(client->peer))
            return Unexpected{Failure{Errc::access_denied, name_of(*client, *pool) + " cannot be evicted: " + *reason}};
        attach_server_->evict(client_id, std::max(grace, std::chrono::milliseconds{0}));
        return {};
    }
    return Unexpected{no_such_client(client_id)};
}

Answer<std::shared_ptr<ManagedPool>> Daemon::pool_of(const Holder &holder) {
    if (holder.kind != Holder::Kind::client) return registry_.find(holder.pool);
    for (const auto &pool : registry_.all())
        if (pool->find_client(holder.client_id)) return pool;
    return Unexpected{no_such_client(holder.client_id)};
}

Answer<void> Daemon::set_quota(const Holder &holder, std::uint64_t quota_bytes, std::uint64_t soft_bytes) {
    const auto pool = pool_of(holder);
    if (!pool) return Unexpected{pool.error()};
    const auto set = (*pool)->set_quota(holder, quota_bytes, soft_bytes);
    if (set) watch_soft_limits();
    publish_news(**pool);
    return set;
}

Answer<void> Daemon::reserve(const Holder &holder, std::uint64_t bytes) {
    const auto pool = pool_of(holder);
    if (!pool) return Unexpected{pool.error()};
    const auto reserved = (*pool)->reserve(holder, bytes);
    if (reserved) watch_soft_limits();
    publish_news(**pool);
    return reserved;
}

Answer<PoolSpec> Daemon::attributes(const std::string &name) {
    const auto pool = registry_.find(name);
    if (!pool) return Unexpected{pool.error()};
    return (*pool)->described();
}

Answer<PoolSpec> Daemon::set_attributes(const std::string &name, const AttributeChanges &changes) {
    const auto pool = registry_.find(name);
    if (!pool) return Unexpected{pool.error()};
    const ManagedPool::Turn turn(**pool);
    if (auto ours = turn.check(); !ours) return Unexpected{ours.error()};
    if (auto stuck = refusal_if_stuck(**pool, "set the attributes again")) return Unexpected{std::move(*stuck)};
    const PoolSpec before = (*pool)->described();
    auto after = (*pool)->change(changes);
    if (!after) return after;
    for (const auto &change : changes)
        if (const PoolAttribute *const attribute = find_pool_attribute(change.first))
            log::info("pool attribute set", {{"pool", name},
                                             {"attribute", change.first},
                                             {"before", attribute->format(before)},
                                             {"after", attribute->format(*after)}});
    watch_soft_limits();
    reaper_.look_at_seized(*pool);
    return after;
}

namespace {

struct PossibleChanges {
    AttributeChanges made;
    AttributeChanges refused;  // the reasons, by key
};

// As many of the changes as can be made together. A key that is refused keeps no other key from its value: access that
// the configuration narrows does not stay wide because of a number of clients that cannot be had.
PossibleChanges possible_changes(const ManagedPool &pool, const AttributeChanges &wanted) {
    if (pool.check_change(wanted)) return {wanted, {}};
    PossibleChanges possible;
    // Again, as long as some change is added: a quota may have to wait for its soft quota.
    for (AttributeChanges rest = wanted; !rest.empty();) {
        possible.refused.clear();
        AttributeChanges left;
        for (const auto &[key, value] : rest) {
            possible.made.emplace(key, value);
            const auto checked = pool.check_change(possible.made);
            if (checked) continue;
            possible.made.erase(key);
            possible.refused.emplace(key, checked.error().message);
            left.emplace(key, value);
        }
        if (left.size() == rest.size()) break;
        rest = std::move(left);
    }
    return possible;
}

}  // namespace

void Daemon::reconcile(const PoolSpec &wanted, std::span<const std::string> keys) {
    const auto pool = registry_.find(wanted.name);
    if (!pool) return;
    const PoolSpec is = (*pool)->described();
    const auto keeps = [&wanted, &is](const PoolAttribute &attribute, const std::string &reason) {
        log::warn("a pool differs from the configuration: it keeps its value",
                  {{"pool", wanted.name},
                   {"attribute", std::string(attribute.key)},
                   {"value", attribute.format(is)},
                   {"configured", attribute.format(wanted)},
                   {"reason", reason}});
    };
    AttributeChanges changes;
    for (const std::string &key : keys) {
        const PoolAttribute *const attribute = find_pool_attribute(key);
        // Its size is what resizes have made of it since it began.
        if (attribute == nullptr || key == "online") continue;
        const std::string configured = attribute->format(wanted);
        if (configured == attribute->format(is)) continue;
        if (attribute->is_changeable()) {
            changes.emplace(key, configured);
        } else {
            keeps(*attribute, std::string(attribute->fixed_because));
        }
    }
    // In one call: access that is narrowed by several keys is never wide in between, and limits that fit together are
    // not compared with the old ones.
    const auto [made, refused] = possible_changes(**pool, changes);
    for (const auto &[key, reason] : refused) keeps(*find_pool_attribute(key), reason);
    if (made.empty()) return;
    const auto set = set_attributes(wanted.name, made);
    for (const auto &[key, configured] : made) {
        const PoolAttribute &attribute = *find_pool_attribute(key);
        if (!set)
            keeps(attribute, set.error().message);
        else
            log::warn("a pool differed from the configuration: it has the configured value now",
                      {{"pool", wanted.name},
                       {"attribute", key},
                       {"before", attribute.format(is)},
                       {"configured", configured}});
    }
}

Answer<OccupancyMap> Daemon::map(const std::string &name, NumaNode node, std::uint32_t cells) {
    const auto pool = registry_.find(name);
    if (!pool) return Unexpected{pool.error()};
    if (!(*pool)->has(node))
        return Unexpected{Failure{Errc::no_such_node, "pool \"" + name + "\" has no numa node " +
                                                          std::to_string(node.value) + ": use 0 to " +
                                                          std::to_string((*pool)->numa_node_count() - 1)}};
    return (*pool)->occupancy(node, cells);
}

MachineStatus Daemon::machine() {
    MachineStatus status;
    for (std::size_t i = 0; i < topology_->numa_nodes().size(); ++i) {
        const MemoryNode &known = topology_->numa_nodes()[i];
        const NumaNode numa_node{static_cast<std::uint8_t>(i)};
        MachineNode node;
        node.os_numa_node = known.os_numa_node;
        node.total_bytes = known.total_bytes;
        node.free_bytes = std::min(topology_->available_bytes(numa_node), topology_->unbooked_bytes(numa_node));
        node.hugepages = hugepages_.pools(known.os_numa_node);
        node.cpus = known.cpus;
        node.distances = known.distances;
        status.nodes.push_back(std::move(node));
    }
    status.topology_source = topology_->source();
    status.started = started_;
    status.runtime_dir = options_.runtime_dir;
    const std::lock_guard lock(metrics_address_mutex_);
    status.metrics_address = metrics_address_;
    return status;
}

DaemonTotals Daemon::totals() {
    DaemonTotals totals = registry_.totals();
    totals.log_messages_dropped = log::dropped();
    return totals;
}

std::shared_ptr<void> Daemon::subscribe(std::function<void(const Event &)> handler) {
    return registry_.events().subscribe(std::move(handler));
}

}  // namespace numacre::daemon
