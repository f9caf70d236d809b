// What the daemon must still know when it comes back from the dead, in memfds that no client ever gets: which units of
// a pool have memory, who sits in it, how many hugepages were reserved. The shared regions are the clients' to scribble
// on; this is the truth. Whatever is here is changed by single aligned stores, so a death leaves the old or the new
// value; an entry of several words becomes valid by its last store.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>

#include "base/failure.hpp"
#include "engine.hpp"
#include "memory/region.hpp"
#include "numacre/shm/env.hpp"
#include "os/fd.hpp"
#include "spec/pool_config.hpp"

namespace numacre::daemon {

// Any change that moves or reinterprets a byte of a ledger raises it. A daemon of another version refuses to adopt.
inline constexpr std::uint32_t kLedgerVersion = 5;

// A resize unit's way, so that its step can be finished or undone by whoever finds it.
enum class UnitState : std::uint8_t {
    offline = 0,
    filling = 1,  // pages are being put behind it; nobody can use it yet: punch it
    opening = 2,  // all its pages are there, some of its chunks are online: open the rest
    online = 3,
    closing = 4,  // some of its chunks have been closed, the pages are there: open them again
    closed = 5,   // all of its chunks are ours: punch it
};

// One word of a ledger: an Env's, so that the simulator may end the daemon at each.
template <class T>
using Durable = ProductionEnv::Atomic<T>;

enum class LedgerState : std::uint64_t { making = 0, serving = 1, corrupt = 2, deleted = 3 };

struct LedgerClient {
    Durable<std::uint32_t> id;  // 0: the slot is free. Stored last, cleared first.
    std::uint32_t pid;
    std::uint32_t uid;
    std::uint32_t gid;
    std::uint64_t pid_space;  // ProcessIdentity, with the pid: tells a reused one
    std::uint64_t pidfd_inode;
    Durable<std::uint64_t> start_time_ticks;  // may be found out later
    std::uint64_t stack_start;                // tells a process that has replaced its program
    std::uint64_t generation;                 // stays when the slot is free
    std::int64_t attached_ns;                 // since the epoch
    Durable<std::uint64_t> quota_bytes;
    Durable<std::uint64_t> soft_quota_bytes;
    Durable<std::uint64_t> reserved_bytes;
    Durable<std::uint32_t> is_departing;  // it has let go or has ended: recovery has begun, whatever /proc says
    std::uint32_t is_observer;
    Durable<std::uint32_t> is_over_soft_quota;  // it has been told: not again by a daemon after us
    std::uint32_t reserved;
    char comm[16];
};

// Why a unit gets no new allocations.
enum class Drain : std::uint8_t {
    none = 0,
    wanted = 1,  // an operator's: it goes on in the next daemon
    resize = 2,  // for as long as a shrink is under way: over when its daemon is
};

// Limits of several clients together: entry kPoolAccount is the pool's, the others are users'.
struct LedgerAccount {
    Durable<std::uint32_t> is_used;  // stored last
    Durable<std::uint32_t> uid;
    Durable<std::uint64_t> quota_bytes;
    Durable<std::uint64_t> soft_quota_bytes;
    Durable<std::uint64_t> reserved_bytes;
    Durable<std::uint32_t> is_over_soft_quota;  // it has been told
    std::uint32_t reserved;
};

struct LedgerUnit {
    Durable<UnitState> state;
    Durable<Drain> drain;
};

struct LedgerNode {
    std::int32_t os_numa_node;
    std::uint32_t backing;
    Durable<std::uint32_t> is_below_watermark;  // it has been told
    std::uint32_t reserved;
    Durable<std::uint64_t> peak_used_bytes;
};

std::int64_t nanoseconds_of(std::chrono::system_clock::time_point time);
std::chrono::system_clock::time_point time_point_of(std::int64_t nanoseconds);

class PoolLedger {
public:
    // How much memory create() takes for it, at once.
    static std::uint64_t bytes_for(const PoolSpec &spec, std::uint32_t numa_nodes);
    static Answer<PoolLedger> create(const PoolSpec &spec, std::uint64_t instance_id, std::uint32_t numa_nodes);
    // What a daemon before us has kept. version_mismatch: it was of another version than we are, of ledger or of shared
    // layout; corrupt: it is none.
    static Answer<PoolLedger> open(Fd fd);

    int fd() const { return region_.fd(); }
    PoolSpec spec() const;
    std::uint64_t instance_id() const;
    std::uint32_t numa_nodes() const;
    std::chrono::system_clock::time_point created() const;
    // Of the pool. Not moved by anybody who sets the clock.
    std::chrono::seconds age() const;

    // Thread-safe each by itself; what belongs together is ordered by the caller.
    LedgerState state() const;
    void set_state(LedgerState state);
    std::uint32_t last_client_id() const;
    void set_last_client_id(std::uint32_t client_id);
    // The most that one client has been found to hold.
    Durable<std::uint64_t> &peak_client_bytes() const;
    std::span<LedgerNode> nodes() const { return nodes_; }
    LedgerNode &node(NumaNode numa_node) const { return nodes_[numa_node.value]; }
    std::span<LedgerUnit> units(NumaNode numa_node) const;
    std::span<LedgerClient> clients() const { return clients_; }     // by process slot
    std::span<LedgerAccount> accounts() const { return accounts_; }  // kAccounts

private:
    struct Header;
    explicit PoolLedger(MetadataRegion region);
    void find_parts();

    MetadataRegion region_;
    Header *header_;
    std::span<LedgerNode> nodes_;
    std::span<LedgerUnit> units_;
    std::span<LedgerClient> clients_;
    std::span<LedgerAccount> accounts_;
};

// By how much nr_hugepages of a numa node and page size was raised (in pages), and a change of it that is under way:
// two files of the kernel and of ours cannot be written at once, and a death in between must not leave pages that
// nobody counts.
struct LedgerReservation {
    Durable<std::uint64_t> raised_pages;
    std::uint64_t raised_before;
    std::uint64_t nr_before, nr_after;   // as they read, and as they were to be written
    Durable<std::uint64_t> is_changing;  // 1: the three above count. Stored last, cleared last.
};

// What the whole daemon has taken from the machine.
class MachineLedger {
public:
    static constexpr unsigned kOsNumaNodes = 256;

    static Answer<MachineLedger> create();
    static Answer<MachineLedger> open(Fd fd);

    int fd() const { return region_.fd(); }
    // By the kernel's node number. Null: it, or the page size, is beyond what is remembered. A reservation is changed
    // by one thread at a time (Hugepages::lock); different ones at once.
    LedgerReservation *reservation(int os_numa_node, std::uint64_t page_bytes) const;

private:
    struct Header;
    explicit MachineLedger(MetadataRegion region);

    MetadataRegion region_;
    Header *header_;
};

}  // namespace numacre::daemon
