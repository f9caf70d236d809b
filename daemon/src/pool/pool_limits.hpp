// Quotas, soft quotas and reservations of clients, of users and of the pool as a whole, with what the ledger keeps, and
// what follows from that: how much has to stay free for whom, and who has gone beyond a soft quota. Nothing here
// touches shared memory: PoolRecords writes what clients obey. Thread-safe; limits change under the caller's record
// lock, so that what is written is what was set last.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/failure.hpp"
#include "base/thread_safety.hpp"
#include "engine.hpp"
#include "memory/ledger.hpp"
#include "numacre/shm/account.hpp"
#include "pool/client.hpp"
#include "pool/description.hpp"
#include "pool/event.hpp"
#include "pool/pool_manager.hpp"
#include "pool/pool_status.hpp"
#include "pool/use.hpp"
#include "spec/pool_config.hpp"

namespace numacre::daemon {

class PoolLimits {
public:
    // All outlive the limits.
    PoolLimits(const Description &description, const Geometry &geometry, PoolLedger &ledger);
    PoolLimits(const PoolLimits &) = delete;
    PoolLimits &operator=(const PoolLimits &) = delete;

    // Of a pool that is made: what its spec says.
    void begin();
    // Takes over the limits of users and of those clients from the ledger.
    void adopt(const std::vector<Client> &clients);

    // A client without limits of its own, in the ledger as well: before the ledger names the client.
    void seat(const Client &client);
    // The client has ended, and keeps its seat: others may have what was promised to it.
    void end_promise(ProcessSlot slot);
    void vacate(ProcessSlot slot);

    struct OfClient {
        std::uint64_t quota_bytes = 0, soft_quota_bytes = 0, reserved_bytes = 0;
    };
    // Zeros, if the client is not there any more.
    OfClient of(const Client &client) const;

    // Where a limit has been changed.
    struct Changed {
        std::optional<ProcessSlot> slot;  // a client's
        std::size_t account = kPoolAccount;
    };
    // bad_argument: too many users with limits; no_such_client.
    Answer<Changed> set_quota(const Holder &holder, std::uint64_t quota_bytes, std::uint64_t soft_bytes);
    struct Promised : Changed {
        std::uint64_t bytes_before = 0;
        Answer<void> enough;  // failed: nothing has changed, though an account may have been claimed
    };
    // use: what more is refused by, if it was not there in this look; null: not at all.
    Answer<Promised> reserve(const Holder &holder, std::uint64_t bytes, const Use *use);

    // The words of a client's record and of an account in shared memory: frames.
    struct RecordWords {
        std::uint64_t quota_frames = 0, reserved_frames = 0;
        std::uint64_t account = kPoolAccount;
    };
    RecordWords words_of_client(ProcessSlot slot) const;
    struct AccountWords {
        std::uint64_t quota_frames = 0, reserved_frames = 0;
    };
    // To the ledger as well. A user's account without limits is given up.
    AccountWords settle(std::size_t account);
    // The clients of the account's user.
    std::vector<ProcessSlot> slots_of(std::size_t account) const;
    // The duties of clients: what they count, and what they compare (Accounting).
    std::uint64_t wanted_accounting() const;
    bool has_reservations() const { return (wanted_accounting() & Accounting::kReservations) != 0; }
    // Something that only the daemon compares, or that clients count.
    bool has_any() const;

    struct Promises {
        std::uint64_t unused_frames = 0, held_frames = 0;
        // Free frames that are needed elsewhere than where so much is in use and drains: a client that gives back what
        // it was promised may want it again.
        std::uint64_t needed_frames(std::uint64_t used_draining_frames) const {
            return unused_frames + std::min(held_frames, used_draining_frames);
        }
    };
    Promises promises(const Use &use) const;
    // In all, used or not.
    std::uint64_t promised_frames() const;
    // Is there as much free as is promised and not used yet? out_of_frames: no.
    Answer<void> check_promises(const Use &use) const;

    // The limits of the pool and of users, into a description of the pool.
    void describe(PoolSpec &spec) const;
    // Soft quotas, against the youngest scan; what has been found out since the last call of take_news().
    void compare(const Use &use);
    std::vector<Event> take_news();
    // The most that one client was found to hold, to the ledger.
    void raise_peak(const Use &use);
    // Users, limits, and what of the pool is promised.
    void add_to(PoolStatus &status, const Use &use) const;

private:
    struct Seat {
        std::uint32_t client_id = 0;  // 0: nobody sits there
        std::uint64_t version = 0;    // ClientTable::versions(): of whom a scan has found figures
        std::uint32_t uid = 0;
        std::string name;  // for people
        OfClient limit;
        bool is_over_soft_quota = false;
    };
    struct Account {
        bool is_used = false;
        UserLimit limit;
        bool is_over_soft_quota = false;
    };
    static Seat new_seat(const Client &client, const OfClient &limit, bool is_over_soft_quota);
    std::uint64_t frames_of(std::uint64_t bytes) const;
    // Nobody sits beyond.
    std::span<const Seat> taken() const NUMACRE_REQUIRES(mutex_) { return std::span(seats_).first(bound_); }
    // The client that sits there now sat there before the scan and after it.
    bool has_seen(const Use &use, std::uint32_t slot) const NUMACRE_REQUIRES(mutex_);
    Seat *seat_of(std::uint32_t client_id) NUMACRE_REQUIRES(mutex_);
    std::size_t account_of(std::uint32_t uid) const NUMACRE_REQUIRES(mutex_);
    // The holder's account, or a free one.
    Answer<std::size_t> claim_account(const Holder &holder) NUMACRE_REQUIRES(mutex_);
    std::array<std::uint64_t, kAccounts> promised_by_account() const NUMACRE_REQUIRES(mutex_);
    Promises promises_of(const Use &use) const NUMACRE_REQUIRES(mutex_);
    Answer<void> check(const Use &use) const NUMACRE_REQUIRES(mutex_);
    void compare_client(const Use &use, std::uint32_t slot) NUMACRE_REQUIRES(mutex_);
    void compare_account(const Use &use, std::size_t account) NUMACRE_REQUIRES(mutex_);

    const Description &description_;
    const Geometry &geometry_;
    PoolLedger &ledger_;
    mutable Mutex mutex_;
    std::vector<Seat> seats_ NUMACRE_GUARDED_BY(mutex_);  // by process slot
    std::uint32_t bound_ NUMACRE_GUARDED_BY(mutex_) = 0;
    std::array<Account, kAccounts> accounts_ NUMACRE_GUARDED_BY(mutex_);
    std::vector<Event> news_ NUMACRE_GUARDED_BY(mutex_);
};

}  // namespace numacre::daemon
