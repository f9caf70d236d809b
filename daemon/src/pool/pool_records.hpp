// The words that the daemon writes into a pool's region for its clients: who sits where, who may hold how much, how
// much there is. Each word is remembered as it was written, so that a scribble is found. One lock orders the writers;
// it is taken before those of the client table, the limits and the integrity, and never by the event loop: it is held
// for as long as a client makes the kernel wait.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/thread_safety.hpp"
#include "engine.hpp"
#include "memory/node_memory.hpp"
#include "numacre/shm/account.hpp"
#include "pool/pool_limits.hpp"

namespace numacre::daemon {

class PoolRecords {
public:
    // shared: outlives the records. knows_all: no other daemon has written before us. Otherwise, until take_all(), the
    // sizes only shrink, for what that daemon held and drained is not known yet.
    PoolRecords(const SharedPool &shared, std::uint32_t process_slots, std::uint32_t thread_limit, bool knows_all);
    PoolRecords(const PoolRecords &) = delete;
    PoolRecords &operator=(const PoolRecords &) = delete;

    mutable Mutex mutex;

    // A client's record.
    struct Record {
        ProcessState state = ProcessState::free;
        std::uint64_t generation = 0;
        std::uint64_t pid = 0;
        std::uint64_t start_time_ticks = 0;
        PoolLimits::RecordWords limits;
    };
    void write(ProcessSlot slot, const Record &what) NUMACRE_REQUIRES(mutex);
    void set_state(ProcessSlot slot, ProcessState state, std::memory_order order) NUMACRE_REQUIRES(mutex);
    void set_limits(ProcessSlot slot, const PoolLimits::RecordWords &limits) NUMACRE_REQUIRES(mutex);
    const Record &of(ProcessSlot slot) const NUMACRE_REQUIRES(mutex) { return records_[slot.value]; }
    void write_account(std::size_t account, const PoolLimits::AccountWords &words) NUMACRE_REQUIRES(mutex);
    void write_seats(std::uint32_t seats) NUMACRE_REQUIRES(mutex);

    // Tells clients what to count and to obey. True: that is the first limit, nobody has counted so far, and what
    // clients of these slots had counted before is forgotten.
    bool write_accounting(std::uint64_t wanted, std::span<const ProcessSlot> seated) NUMACRE_REQUIRES(mutex);
    bool is_counting() const NUMACRE_REQUIRES(mutex) { return (accounting_ & Accounting::kCount) != 0; }

    // The header's part that only write_policy() changes, as it stands there: from now on it is what it should be.
    void remember_header() NUMACRE_REQUIRES(mutex);
    // For clients that attach from now on: they read it once.
    void write_policy(const Policy &policy) NUMACRE_REQUIRES(mutex);
    void take_all() NUMACRE_REQUIRES(mutex) { knows_all_ = true; }
    // Clients go on with what they count already: they have counted on without a daemon.
    void take_over_accounting() NUMACRE_REQUIRES(mutex);

    // The frames that clients can have: of so many bytes, less what drains and what is withheld; and those that the
    // daemon holds.
    void write_online(std::uint64_t online_bytes, std::uint64_t draining_bytes, const Geometry &geometry)
        NUMACRE_REQUIRES(mutex);
    void write_seized(std::uint64_t frames) NUMACRE_REQUIRES(mutex);
    void withhold(std::uint64_t more_bytes, std::uint64_t less_bytes) NUMACRE_REQUIRES(mutex);
    // Read by scans, without the lock.
    const std::atomic<std::uint64_t> &withheld_bytes() const { return withheld_bytes_; }

    // Nothing is on the way to the process that sits there.
    void empty_way_to(ProcessSlot slot) NUMACRE_REQUIRES(mutex);

    // The damage by whoever has overwritten these words; empty: none. Shared memory is read here only to find that out.
    std::string damage_to_header() const NUMACRE_REQUIRES(mutex);
    std::string damage_to_records() const NUMACRE_REQUIRES(mutex);

private:
    const SharedPool &shared_;
    const std::uint64_t thread_limit_;
    std::array<std::byte, offsetof(PoolHeader<ProductionEnv>, state)> header_ NUMACRE_GUARDED_BY(mutex){};
    std::vector<Record> records_ NUMACRE_GUARDED_BY(mutex);                               // by process slot
    std::array<PoolLimits::AccountWords, kAccounts> accounts_ NUMACRE_GUARDED_BY(mutex);  // by account
    std::uint64_t accounting_ NUMACRE_GUARDED_BY(mutex) = 0;
    std::atomic<std::uint64_t> withheld_bytes_{0};  // changed with the lock held
    bool knows_all_ NUMACRE_GUARDED_BY(mutex);
};

}  // namespace numacre::daemon
