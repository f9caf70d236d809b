#include "pool/pool_limits.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "base/bytes.hpp"
#include "pool/soft_limits.hpp"

namespace numacre::daemon {

PoolLimits::PoolLimits(const Description &description, const Geometry &geometry, PoolLedger &ledger)
    : description_(description), geometry_(geometry), ledger_(ledger), seats_(description.now()->spec.max_clients + 1) {
    accounts_[kPoolAccount].is_used = true;
}

void PoolLimits::begin() {
    const auto description = description_.now();
    const PoolSpec &spec = description->spec;
    const MutexLock lock(mutex_);
    accounts_[kPoolAccount].limit.quota_bytes = spec.quota_bytes;
    accounts_[kPoolAccount].limit.soft_quota_bytes = spec.soft_quota_bytes;
    for (std::size_t i = 0; i < spec.users.size(); ++i) accounts_[i + 1] = {true, spec.users[i], false};
}

void PoolLimits::adopt(const std::vector<Client> &clients) {
    const MutexLock lock(mutex_);
    for (std::size_t i = 0; i < kAccounts; ++i) {
        const LedgerAccount &kept = ledger_.accounts()[i];
        // acquire: with the entry's words.
        if (kept.is_used.load(std::memory_order_acquire) != 0 || i == kPoolAccount)
            accounts_[i] = {true,
                            {kept.uid.load(std::memory_order_relaxed), kept.quota_bytes.load(std::memory_order_relaxed),
                             kept.soft_quota_bytes.load(std::memory_order_relaxed),
                             kept.reserved_bytes.load(std::memory_order_relaxed)},
                            kept.is_over_soft_quota.load(std::memory_order_relaxed) != 0};
        // A death between the two stores of settle(). A soft quota that is not below the quota is never exceeded.
        if (UserLimit &limit = accounts_[i].limit;
            limit.quota_bytes != 0 && limit.soft_quota_bytes >= limit.quota_bytes)
            limit.soft_quota_bytes = 0;
    }
    for (const Client &client : clients) {
        bound_ = std::max<std::uint32_t>(bound_, client.slot.value + 1);
        // relaxed, all: ours alone.
        const LedgerClient &kept = ledger_.clients()[client.slot.value];
        const OfClient limit{kept.quota_bytes.load(std::memory_order_relaxed),
                             kept.soft_quota_bytes.load(std::memory_order_relaxed),
                             kept.reserved_bytes.load(std::memory_order_relaxed)};
        seats_[client.slot.value] =
            new_seat(client, limit, kept.is_over_soft_quota.load(std::memory_order_relaxed) != 0);
    }
}

PoolLimits::Seat PoolLimits::new_seat(const Client &client, const OfClient &limit, bool is_over_soft_quota) {
    return {client.id,       client.seat_version,
            client.peer.uid, client.peer.comm + " (pid " + std::to_string(client.peer.pid) + ")",
            limit,           is_over_soft_quota};
}

void PoolLimits::seat(const Client &client) {
    LedgerClient &ledger = ledger_.clients()[client.slot.value];
    ledger.quota_bytes.store(0, std::memory_order_relaxed);
    ledger.soft_quota_bytes.store(0, std::memory_order_relaxed);
    ledger.reserved_bytes.store(0, std::memory_order_relaxed);
    ledger.is_over_soft_quota.store(0, std::memory_order_relaxed);
    const MutexLock lock(mutex_);
    bound_ = std::max<std::uint32_t>(bound_, client.slot.value + 1);
    seats_[client.slot.value] = new_seat(client, {}, false);
}

void PoolLimits::vacate(ProcessSlot slot) {
    const MutexLock lock(mutex_);
    seats_[slot.value] = {};
    while (bound_ > 0 && seats_[bound_ - 1].client_id == 0) --bound_;
}

void PoolLimits::end_promise(ProcessSlot slot) {
    const MutexLock lock(mutex_);
    seats_[slot.value].limit.reserved_bytes = 0;
    ledger_.clients()[slot.value].reserved_bytes.store(0, std::memory_order_relaxed);
}

PoolLimits::OfClient PoolLimits::of(const Client &client) const {
    const MutexLock lock(mutex_);
    const Seat &seat = seats_[client.slot.value];
    return seat.client_id == client.id ? seat.limit : OfClient{};
}

PoolLimits::Seat *PoolLimits::seat_of(std::uint32_t client_id) {
    if (client_id == 0) return nullptr;
    const auto found = std::ranges::find(seats_, client_id, &Seat::client_id);
    return found == seats_.end() ? nullptr : &*found;
}

std::size_t PoolLimits::account_of(std::uint32_t uid) const {
    for (std::size_t i = kPoolAccount + 1; i < kAccounts; ++i)
        if (accounts_[i].is_used && accounts_[i].limit.uid == uid) return i;
    return kPoolAccount;
}

Answer<std::size_t> PoolLimits::claim_account(const Holder &holder) {
    if (holder.kind == Holder::Kind::pool) return std::size_t{kPoolAccount};
    if (const std::size_t known = account_of(holder.uid); known != kPoolAccount) return known;
    for (std::size_t i = kPoolAccount + 1; i < kAccounts; ++i) {
        if (accounts_[i].is_used) continue;
        accounts_[i] = {true, {holder.uid, 0, 0, 0}, false};
        return i;
    }
    return Unexpected{Failure{Errc::too_many_clients, "pool \"" + description_.name() + "\" has limits for " +
                                                          std::to_string(kAccounts - 1) +
                                                          " users, the most there can be: set another user's to none"}};
}

Answer<PoolLimits::Changed> PoolLimits::set_quota(const Holder &holder, std::uint64_t quota_bytes,
                                                  std::uint64_t soft_bytes) {
    const MutexLock lock(mutex_);
    if (holder.kind == Holder::Kind::client) {
        Seat *const seat = seat_of(holder.client_id);
        if (seat == nullptr) return Unexpected{no_such_client(holder.client_id)};
        const ProcessSlot slot{static_cast<std::uint16_t>(seat - seats_.data())};
        LedgerClient &ledger = ledger_.clients()[slot.value];
        seat->limit.quota_bytes = quota_bytes;
        ledger.quota_bytes.store(quota_bytes, std::memory_order_relaxed);
        // Another limit is crossed anew. A death between these stores tells it once too often at most.
        if (seat->limit.soft_quota_bytes != soft_bytes) {
            seat->is_over_soft_quota = false;
            ledger.is_over_soft_quota.store(0, std::memory_order_relaxed);
        }
        seat->limit.soft_quota_bytes = soft_bytes;
        ledger.soft_quota_bytes.store(soft_bytes, std::memory_order_relaxed);
        return Changed{slot, kPoolAccount};
    }
    const auto claimed = claim_account(holder);
    if (!claimed) return Unexpected{claimed.error()};
    Account &account = accounts_[*claimed];
    if (account.limit.soft_quota_bytes != soft_bytes) account.is_over_soft_quota = false;
    account.limit.quota_bytes = quota_bytes;
    account.limit.soft_quota_bytes = soft_bytes;
    return Changed{std::nullopt, *claimed};
}

Answer<PoolLimits::Promised> PoolLimits::reserve(const Holder &holder, std::uint64_t bytes, const Use *use) {
    const MutexLock lock(mutex_);
    Promised promised;
    Seat *seat = nullptr;
    if (holder.kind == Holder::Kind::client) {
        seat = seat_of(holder.client_id);
        if (seat == nullptr) return Unexpected{no_such_client(holder.client_id)};
        promised.slot = ProcessSlot{static_cast<std::uint16_t>(seat - seats_.data())};
    } else {
        const auto claimed = claim_account(holder);
        if (!claimed) return Unexpected{claimed.error()};
        promised.account = *claimed;
    }
    std::uint64_t &reserved =
        seat != nullptr ? seat->limit.reserved_bytes : accounts_[promised.account].limit.reserved_bytes;
    promised.bytes_before = std::exchange(reserved, bytes);
    if (use != nullptr && bytes > promised.bytes_before) promised.enough = check(*use);
    if (!promised.enough) reserved = promised.bytes_before;
    if (seat != nullptr)
        ledger_.clients()[promised.slot->value].reserved_bytes.store(reserved, std::memory_order_relaxed);
    return promised;
}

PoolLimits::RecordWords PoolLimits::words_of_client(ProcessSlot slot) const {
    const MutexLock lock(mutex_);
    const Seat &seat = seats_[slot.value];
    if (seat.client_id == 0) return {};
    return {frames_of(seat.limit.quota_bytes), frames_of(seat.limit.reserved_bytes), account_of(seat.uid)};
}

PoolLimits::AccountWords PoolLimits::settle(std::size_t at) {
    const MutexLock lock(mutex_);
    Account &account = accounts_[at];
    const UserLimit &limit = account.limit;
    if (at != kPoolAccount)
        account.is_used = account.is_used && (limit.quota_bytes | limit.soft_quota_bytes | limit.reserved_bytes) != 0;
    LedgerAccount &ledger = ledger_.accounts()[at];
    // relaxed: is_used follows.
    ledger.uid.store(limit.uid, std::memory_order_relaxed);
    ledger.quota_bytes.store(limit.quota_bytes, std::memory_order_relaxed);
    ledger.soft_quota_bytes.store(limit.soft_quota_bytes, std::memory_order_relaxed);
    ledger.reserved_bytes.store(limit.reserved_bytes, std::memory_order_relaxed);
    ledger.is_over_soft_quota.store(account.is_over_soft_quota ? 1 : 0, std::memory_order_relaxed);
    ledger.is_used.store(account.is_used ? 1 : 0, std::memory_order_release);
    return {frames_of(limit.quota_bytes), frames_of(limit.reserved_bytes)};
}

std::vector<ProcessSlot> PoolLimits::slots_of(std::size_t account) const {
    const MutexLock lock(mutex_);
    std::vector<ProcessSlot> found;
    for (std::uint32_t slot = 0; slot < bound_; ++slot)
        if (seats_[slot].client_id != 0 && seats_[slot].uid == accounts_[account].limit.uid)
            found.push_back(ProcessSlot{static_cast<std::uint16_t>(slot)});
    return found;
}

std::uint64_t PoolLimits::wanted_accounting() const {
    const MutexLock lock(mutex_);
    std::uint64_t wanted = accounting_of(description_.now()->spec.fit);
    for (const Seat &seat : taken()) {
        if (seat.limit.quota_bytes != 0) wanted |= Accounting::kCount;
        if (seat.limit.reserved_bytes != 0)
            wanted |= Accounting::kCount | Accounting::kShared | Accounting::kReservations;
    }
    for (const Account &account : accounts_) {
        if (account.limit.quota_bytes != 0) wanted |= Accounting::kCount | Accounting::kShared;
        if (account.limit.reserved_bytes != 0)
            wanted |= Accounting::kCount | Accounting::kShared | Accounting::kReservations;
    }
    return wanted;
}

bool PoolLimits::has_any() const {
    if ((wanted_accounting() & Accounting::kCount) != 0) return true;
    const MutexLock lock(mutex_);
    return std::ranges::any_of(taken(), [](const Seat &seat) { return seat.limit.soft_quota_bytes != 0; }) ||
           std::ranges::any_of(accounts_, [](const Account &account) { return account.limit.soft_quota_bytes != 0; });
}

// By account: what was promised to a client is part of what its user was promised.
std::array<std::uint64_t, kAccounts> PoolLimits::promised_by_account() const {
    std::array<std::uint64_t, kAccounts> frames{};
    for (const Seat &seat : taken())
        if (seat.limit.reserved_bytes != 0) frames[account_of(seat.uid)] += frames_of(seat.limit.reserved_bytes);
    for (std::size_t i = 0; i < kAccounts; ++i)
        frames[i] = std::max(frames[i], frames_of(accounts_[i].limit.reserved_bytes));
    return frames;
}

std::uint64_t PoolLimits::promised_frames() const {
    const MutexLock lock(mutex_);
    const auto promised = promised_by_account();
    return std::accumulate(promised.begin(), promised.end(), std::uint64_t{0});
}

void PoolLimits::describe(PoolSpec &spec) const {
    const MutexLock lock(mutex_);
    spec.quota_bytes = accounts_[kPoolAccount].limit.quota_bytes;
    spec.soft_quota_bytes = accounts_[kPoolAccount].limit.soft_quota_bytes;
    spec.users.clear();
    for (std::size_t i = kPoolAccount + 1; i < kAccounts; ++i)
        if (const UserLimit &limit = accounts_[i].limit;
            accounts_[i].is_used && (limit.quota_bytes | limit.soft_quota_bytes) != 0)
            spec.users.push_back(limit);
    std::ranges::sort(spec.users, {}, &UserLimit::uid);
}

PoolLimits::Promises PoolLimits::promises(const Use &use) const {
    const MutexLock lock(mutex_);
    return promises_of(use);
}

PoolLimits::Promises PoolLimits::promises_of(const Use &use) const {
    Holdings holdings;
    for (std::uint32_t slot = kDaemonProcess.value + 1; slot < bound_; ++slot)
        if (const Seat &seat = seats_[slot]; seat.client_id != 0)
            holdings.add(account_of(seat.uid), use.granted_to(slot), frames_of(seat.limit.reserved_bytes));
    const auto promised = promised_by_account();
    Promises all;
    for (std::size_t i = 0; i < kAccounts; ++i) {
        const std::uint64_t unused = holdings.unused(i, frames_of(accounts_[i].limit.reserved_bytes));
        all.unused_frames += unused;
        all.held_frames += promised[i] - unused;
    }
    return all;
}

Answer<void> PoolLimits::check_promises(const Use &use) const {
    const MutexLock lock(mutex_);
    return check(use);
}

Answer<void> PoolLimits::check(const Use &use) const {
    const std::uint64_t needed = promises_of(use).needed_frames(use.used_draining_frames);
    // A shrink that has looked before anything was reserved takes this much, or has just taken it.
    if (use.can_spare(needed + use.withheld_frames)) return {};
    return Unexpected{Failure{Errc::out_of_frames,
                              "pool \"" + description_.name() + "\" has " +
                                  format_bytes(geometry_.bytes_of(use.free_to_promise())) + " free, " +
                                  format_bytes(geometry_.bytes_of(needed)) +
                                  " would be reserved and not used yet: reserve less, free some, or grow the pool"}};
}

bool PoolLimits::has_seen(const Use &use, std::uint32_t slot) const {
    return seats_[slot].client_id != 0 && seats_[slot].version == use.seats[slot];
}

void PoolLimits::compare(const Use &use) {
    const MutexLock lock(mutex_);
    for (std::size_t i = 0; i < kAccounts; ++i)
        if (accounts_[i].is_used) compare_account(use, i);
    for (std::uint32_t slot = kDaemonProcess.value + 1; slot < bound_; ++slot)
        if (has_seen(use, slot)) compare_client(use, slot);  // else what was found may be another's
}

void PoolLimits::compare_client(const Use &use, std::uint32_t slot) {
    Seat &seat = seats_[slot];
    const std::uint64_t used_bytes = geometry_.bytes_of(use.used_frames[slot]);
    const bool is_over = is_over_soft_quota(seat.is_over_soft_quota, used_bytes, seat.limit.soft_quota_bytes);
    if (is_over == seat.is_over_soft_quota) return;
    seat.is_over_soft_quota = is_over;
    // relaxed: read only by the daemon after this one.
    ledger_.clients()[slot].is_over_soft_quota.store(is_over ? 1 : 0, std::memory_order_relaxed);
    if (!is_over) return;
    Event found;
    found.pool = description_.name();
    found.kind = EventKind::quota_soft_exceeded;
    found.client_id = seat.client_id;
    found.bytes = used_bytes;
    found.message = seat.name + " holds " + format_bytes(used_bytes) + ", its soft quota is " +
                    format_bytes(seat.limit.soft_quota_bytes);
    news_.push_back(std::move(found));
}

void PoolLimits::compare_account(const Use &use, std::size_t at) {
    Account &account = accounts_[at];
    std::uint64_t used_frames = 0;
    for (std::uint32_t slot = kDaemonProcess.value + 1; slot < bound_; ++slot)
        if (has_seen(use, slot) && (at == kPoolAccount || seats_[slot].uid == account.limit.uid))
            used_frames += use.used_frames[slot];
    const std::uint64_t used_bytes = geometry_.bytes_of(used_frames);
    const bool is_over = is_over_soft_quota(account.is_over_soft_quota, used_bytes, account.limit.soft_quota_bytes);
    if (is_over == account.is_over_soft_quota) return;
    account.is_over_soft_quota = is_over;
    ledger_.accounts()[at].is_over_soft_quota.store(is_over ? 1 : 0, std::memory_order_relaxed);
    if (!is_over) return;
    const bool is_pools = at == kPoolAccount;
    Event found;
    found.pool = description_.name();
    found.kind = is_pools ? EventKind::pool_quota_soft_exceeded : EventKind::user_quota_soft_exceeded;
    found.bytes = used_bytes;
    if (!is_pools) found.uid = account.limit.uid;
    found.message = (is_pools ? "the clients of pool " + description_.name() + " hold "
                              : "clients of uid " + std::to_string(account.limit.uid) + " hold ") +
                    format_bytes(used_bytes) + ", the soft quota is " + format_bytes(account.limit.soft_quota_bytes);
    news_.push_back(std::move(found));
}

std::vector<Event> PoolLimits::take_news() {
    const MutexLock lock(mutex_);
    return std::exchange(news_, {});
}

void PoolLimits::raise_peak(const Use &use) {
    const MutexLock lock(mutex_);
    for (std::uint32_t slot = kDaemonProcess.value + 1; slot < bound_; ++slot) {
        if (!has_seen(use, slot)) continue;
        // relaxed: a figure for people; written with the lock held.
        const std::uint64_t bytes = geometry_.bytes_of(use.used_frames[slot]);
        if (bytes > ledger_.peak_client_bytes().load(std::memory_order_relaxed))
            ledger_.peak_client_bytes().store(bytes, std::memory_order_relaxed);
    }
}

void PoolLimits::add_to(PoolStatus &status, const Use &use) const {
    const MutexLock lock(mutex_);
    status.quota_bytes = accounts_[kPoolAccount].limit.quota_bytes;
    status.soft_quota_bytes = accounts_[kPoolAccount].limit.soft_quota_bytes;
    status.reserved_bytes = geometry_.bytes_of(promises_of(use).unused_frames);
    std::map<std::uint32_t, UserStatus> users;
    for (std::size_t i = kPoolAccount + 1; i < kAccounts; ++i)
        if (accounts_[i].is_used) users[accounts_[i].limit.uid].limit = accounts_[i].limit;
    for (std::uint32_t slot = kDaemonProcess.value + 1; slot < bound_; ++slot) {
        if (seats_[slot].client_id == 0) continue;
        UserStatus &user = users[seats_[slot].uid];
        ++user.clients;
        // Of somebody who came during the scan nothing is known yet.
        if (has_seen(use, slot)) user.used_bytes += geometry_.bytes_of(use.used_frames[slot]);
    }
    for (auto &[uid, user] : users) {
        user.limit.uid = uid;
        status.users.push_back(user);
    }
}

// Rounded up: a quota of less than a frame is not "no quota".
std::uint64_t PoolLimits::frames_of(std::uint64_t bytes) const {
    return bytes / geometry_.frame_bytes + (bytes % geometry_.frame_bytes != 0 ? 1 : 0);
}

}  // namespace numacre::daemon
