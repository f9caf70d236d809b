// Attributes of a pool in use, quotas and promises of its holders, and what the pool's looks have to do with them.
#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>
#include <vector>

#include "base/bytes.hpp"
#include "engine.hpp"
#include "numacre/shm/account.hpp"
#include "pool/managed_pool.hpp"
#include "spec/policy_text.hpp"

namespace numacre::daemon {

// A limit of a client that has ended binds nobody: the client allocates no more. The check belongs under the records
// lock: then end_promise() follows each promise that comes before the client's end.
Answer<void> ManagedPool::check_is_there(const Holder &holder) const {
    if (holder.kind != Holder::Kind::client) return {};
    const auto client = clients_.find(holder.client_id);
    if (!client || !has_departed(*client)) return {};
    const bool waits = client->state == ClientState::quarantined;
    return Unexpected{Failure{
        Errc::bad_argument,
        "client " + std::to_string(client->id) + " (pid " + std::to_string(client->peer.pid) + ") of pool \"" +
            description_.name() + "\" has ended" +
            (waits ? ", and what it has left waits for the processes that have its pins, or for its group" : "") +
            ": it allocates nothing any more; set the limit for its user (--user " + std::to_string(client->peer.uid) +
            ") or for a client that is there (numacre clients)"}};
}

Answer<void> ManagedPool::set_quota(const Holder &holder, std::uint64_t quota_bytes, std::uint64_t soft_bytes) {
    const MutexLock one_at_a_time(change_mutex_);
    if (auto set = write_quota(holder, quota_bytes, soft_bytes); !set) return set;
    look_at_use();   // counts for those who do not call for a while
    wake_waiters();  // there may be more for them
    return {};
}

Answer<void> ManagedPool::write_quota(const Holder &holder, std::uint64_t quota_bytes, std::uint64_t soft_bytes) {
    const RecordsLock records(*this);
    if (auto there = check_is_there(holder); !there) return there;
    const auto changed = limits_.set_quota(holder, quota_bytes, soft_bytes);
    if (!changed) return Unexpected{changed.error()};
    if (changed->slot)
        records_.set_limits(*changed->slot, limits_.words_of_client(*changed->slot));
    else
        write_account(changed->account);
    write_accounting();
    return {};
}

PoolSpec ManagedPool::described() const {
    PoolSpec spec = description()->spec;
    limits_.describe(spec);
    spec.node_online_bytes.clear();
    for (const auto &memory : nodes_) spec.node_online_bytes.push_back(memory->online_bytes());
    spec.online_bytes = spec.node_online_bytes.front();
    if (std::ranges::adjacent_find(spec.node_online_bytes, std::ranges::not_equal_to{}) == spec.node_online_bytes.end())
        spec.node_online_bytes.clear();
    return spec;
}

Answer<PoolSpec> ManagedPool::check_change(const AttributeChanges &changes) const {
    auto wanted = changed(described(), changes);
    if (!wanted) return wanted;
    if (auto known = check_policy(wanted->policy, static_cast<std::uint32_t>(nodes_.size())); !known)
        return Unexpected{known.error()};
    return wanted;
}

Answer<PoolSpec> ManagedPool::change(const AttributeChanges &changes) {
    const MutexLock one_at_a_time(change_mutex_);
    const PoolSpec before = described();
    auto wanted = check_change(changes);
    if (!wanted) return wanted;
    const auto version = Description::version_of(*wanted);
    // First what may still be refused.
    if (auto set = change_user_quotas(before.users, wanted->users); !set) return Unexpected{set.error()};
    Holder whole_pool;
    whole_pool.kind = Holder::Kind::pool;
    if (auto set = write_quota(whole_pool, wanted->quota_bytes, wanted->soft_quota_bytes); !set)
        return Unexpected{set.error()};
    if (wanted->autosize != before.autosize) free_memory_.forget_history();
    {
        const RecordsLock records(*this);
        ledger_.set_attributes(*wanted);
        description_.set(version);
        records_.write_policy(wanted->policy);
        write_accounting();  // the fit stands there
    }
    if (limits_.has_any()) look_at_use();
    wake_waiters();
    return described();
}

Answer<void> ManagedPool::write_user_quota(const UserLimit &user) {
    Holder holder;
    holder.kind = Holder::Kind::user;
    holder.uid = user.uid;
    return write_quota(holder, user.quota_bytes, user.soft_quota_bytes);
}

// All or none.
Answer<void> ManagedPool::change_user_quotas(const std::vector<UserLimit> &before,
                                             const std::vector<UserLimit> &wanted) {
    const auto limit_in = [](const std::vector<UserLimit> &users, std::uint32_t uid) {
        const auto found = std::ranges::find(users, uid, &UserLimit::uid);
        return found == users.end() ? UserLimit{uid, 0, 0, 0} : *found;
    };
    // The users that lose their quotas come first: their accounts may be the ones that new users need.
    std::vector<UserLimit> steps;
    for (const UserLimit &user : before)
        if (limit_in(wanted, user.uid).quota_bytes == 0 && limit_in(wanted, user.uid).soft_quota_bytes == 0)
            steps.push_back({user.uid, 0, 0, 0});
    for (const UserLimit &user : wanted)
        if (const UserLimit is = limit_in(before, user.uid);
            is.quota_bytes != user.quota_bytes || is.soft_quota_bytes != user.soft_quota_bytes)
            steps.push_back(user);
    for (std::size_t done = 0; done < steps.size(); ++done) {
        auto changed = write_user_quota(steps[done]);
        if (changed) continue;
        while (done-- > 0) (void)write_user_quota(limit_in(before, steps[done].uid));
        return changed;
    }
    return {};
}

Answer<void> ManagedPool::reserve(const Holder &holder, std::uint64_t bytes) {
    if (const std::uint64_t most = geometry_.capacity_bytes() * nodes_.size(); bytes > most)
        return Unexpected{Failure{Errc::out_of_frames, "pool \"" + description_.name() + "\" has room for " +
                                                           format_bytes(most) + " on all numa nodes, " +
                                                           format_bytes(bytes) + " would be reserved: reserve less"}};
    // One at a time: a refused one takes back what it has promised, and nothing else.
    const MutexLock one_at_a_time(reserve_mutex_);
    // Before others are told of it: what is not there would keep them from what is.
    Use use = scan_.look();
    std::uint64_t before = 0;
    if (auto promised = promise(holder, bytes, &use, before); !promised) return promised;
    if (bytes <= before) {
        wake_waiters();  // there is more for the others
        return {};
    }
    // Until all count and know of it, others may have taken what was free.
    if (!all_have_counted()) look_at_use();
    use = scan_.look();
    auto kept = limits_.check_promises(use);
    std::uint64_t refused = 0;
    if (!kept) {
        (void)promise(holder, before, nullptr, refused);
        wake_waiters();  // the promise may have refused them while it stood
    }
    return kept;
}

// Not after the first limit: who has not called since then counts as nothing when others add up what all hold.
bool ManagedPool::all_have_counted() {
    const RecordsLock records(*this);
    return std::ranges::all_of(clients_.seated(), [this](ProcessSlot slot) {
        // relaxed: who counts itself after this counts right.
        return HeldFrames{shared_.processes[slot.value].held.load(std::memory_order_relaxed)}.is_counted();
    });
}

Answer<void> ManagedPool::promise(const Holder &holder, std::uint64_t bytes, const Use *use,
                                  std::uint64_t &bytes_before) {
    {
        const RecordsLock records(*this);
        // Without a look, a promise is taken back.
        if (auto there = check_is_there(holder); use != nullptr && !there) return there;
        const auto promised = limits_.reserve(holder, bytes, use);
        if (!promised) return Unexpected{promised.error()};
        bytes_before = promised->bytes_before;
        if (promised->enough && bytes > bytes_before) forget_draining_held(shared_);
        if (!promised->slot)
            write_account(promised->account);  // given up again, if it was claimed for nothing
        else if (promised->enough)
            records_.set_limits(*promised->slot, limits_.words_of_client(*promised->slot));
        if (!promised->enough) return promised->enough;
        write_accounting();
    }
    publish_sizes();
    look_at_drains();
    return {};
}

Answer<void> ManagedPool::check_shrink(std::uint64_t bytes) {
    if (!limits_.has_reservations()) return {};
    const Use use = scan_.look();
    // Some of it may be in use, and stays then: the checks of units follow.
    if (limits_.promises(use).needed_frames(use.used_draining_frames) == 0) return {};
    return check_left(use, bytes, 0, 0);
}

Answer<void> ManagedPool::check_drain(PoolScan::Units units, const Withheld &withheld) {
    if (!limits_.has_reservations() || units.units.empty()) return {};
    const Use use = scan_.look(units);
    const std::uint64_t used_frames =
        std::accumulate(use.used_unit_frames.begin(), use.used_unit_frames.end(), std::uint64_t{0});
    return check_left(use, units.units.size() * node_memory(units.numa_node).unit_bytes(), used_frames,
                      withheld.bytes());
}

Answer<std::vector<std::uint64_t>> ManagedPool::empty_units(PoolScan::Units units, std::uint64_t bytes,
                                                            const Withheld &withheld) {
    std::vector<std::uint64_t> empty(units.units.begin(), units.units.end());
    if (!limits_.has_reservations() || empty.empty()) return empty;
    const Use use = scan_.look(units);
    // A unit that becomes empty after the look stays: the holder of a promise who has given memory back there may want
    // it elsewhere.
    const std::uint64_t unit_bytes = node_memory(units.numa_node).unit_bytes();
    empty.clear();
    for (std::size_t i = 0; i < units.units.size() && (empty.size() + 1) * unit_bytes <= bytes; ++i)
        if (use.used_unit_frames[i] == 0) empty.push_back(units.units[i]);
    if (auto kept = check_left(use, empty.size() * unit_bytes, 0, withheld.bytes()); !kept)
        return Unexpected{kept.error()};
    return empty;
}

// Whether reservations can be kept once `bytes` of units are gone, of which used_frames are in use until then.
// withheld_bytes: by the caller, for these units.
Answer<void> ManagedPool::check_left(const Use &use, std::uint64_t bytes, std::uint64_t used_frames,
                                     std::uint64_t withheld_bytes) const {
    const std::uint64_t frames = geometry_.frames_in(bytes);
    // Memory that others are about to take offline, who look at this moment, counts as taken.
    const std::uint64_t of_others =
        use.withheld_frames - std::min(use.withheld_frames, geometry_.frames_in(withheld_bytes));
    const std::uint64_t free_frames = frames - std::min(frames, used_frames);
    const std::uint64_t needed_frames = limits_.promises(use).needed_frames(use.used_draining_frames + used_frames);
    // Also while no reservation is unused: memory that has been granted to the holder of a promise, and not been taken
    // yet, must not go.
    if (free_frames == 0 && needed_frames == 0) return {};
    if (use.can_spare(needed_frames + free_frames + of_others)) return {};
    return Unexpected{Failure{
        Errc::contended, "pool \"" + description_.name() + "\" has " +
                             format_bytes(geometry_.bytes_of(use.free_to_promise())) + " free, of which " +
                             format_bytes(geometry_.bytes_of(needed_frames)) + " are reserved: it cannot shrink by " +
                             format_bytes(bytes) + "; shrink less, or reserve less with `numacre reserve`"}};
}

// Writes the account to the ledger, to shared memory, and into the records of the user's clients. An account without
// limits is given up.
void ManagedPool::write_account(std::size_t account) {
    records_.write_account(account, limits_.settle(account));
    if (account == kPoolAccount) return;
    for (const ProcessSlot slot : limits_.slots_of(account)) records_.set_limits(slot, limits_.words_of_client(slot));
}

// Tells clients which limits there are to be obeyed.
void ManagedPool::write_accounting() {
    // Looks that have begun by now do not see all that they would count for others.
    if (records_.write_accounting(limits_.wanted_accounting(), clients_.seated())) last_look_ = scan_.begun() + 1;
}

bool ManagedPool::has_limits_to_watch() const {
    if (is_corrupt()) return false;
    const auto now = description();
    return now->spec.low_watermark_bytes != 0 || now->spec.autosize.is_on || limits_.has_any();
}

std::vector<Event> ManagedPool::take_news() {
    std::vector<Event> news = limits_.take_news();
    std::vector<Event> more = free_memory_.take_news();
    std::ranges::move(more, std::back_inserter(news));
    return news;
}

void ManagedPool::compare_with_limits(const Use &use) {
    // Scans run beside each other: an old one's figures, come late, would end what a younger one has seen begin.
    const RecordsLock records(*this);
    // The figures of a damaged pool are not to be believed.
    if (is_corrupt()) return;
    const bool is_youngest = use.number >= last_look_;
    if (is_youngest) {
        last_look_ = use.number;
        if (records_.is_counting()) {
            std::vector<ProcessSlot> slots = clients_.seated();
            const std::vector<std::uint64_t> versions = clients_.versions();
            std::erase_if(slots, [&](ProcessSlot slot) { return versions[slot.value] != use.seats[slot.value]; });
            held_counts_.correct(use, slots, scan_.frames_under_way());
        }
    }
    free_memory_.raise_peaks(use);
    limits_.raise_peak(use);
    if (!is_youngest) return;
    if (description()->spec.autosize.is_on) remember_for_autosize(use);
    limits_.compare(use);
    free_memory_.compare(use);
}

// Free is what anybody can have: neither what is free in units that drain, nor what is promised to somebody.
void ManagedPool::remember_for_autosize(const Use &use) {
    std::vector<std::uint64_t> draining_free_frames;  // by numa node
    for (const auto &memory : nodes_) draining_free_frames.push_back(memory->draining_frames().free);
    free_memory_.remember(use, draining_free_frames, limits_.promises(use).unused_frames);
}

std::vector<ManagedPool::Wish> ManagedPool::take_autosize_wishes() {
    std::vector<Wish> wishes;
    if (is_corrupt() || clients_.is_closed()) return wishes;
    std::vector<std::uint64_t> unit_bytes;  // by numa node
    for (const auto &memory : nodes_) unit_bytes.push_back(memory->unit_bytes());
    for (const AutosizeWish &wish : free_memory_.take_wishes(unit_bytes))
        wishes.push_back({nodes_[wish.numa_node]->numa_node(), wish.from_bytes, wish.to_bytes});
    return wishes;
}

}  // namespace numacre::daemon
