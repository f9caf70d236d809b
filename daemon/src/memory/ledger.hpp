// The daemon's durable state, in memfds that no client ever gets: which units of a pool have memory, which clients sit
// in it, how many hugepages were reserved. Clients can scribble over the shared regions; the ledger is the truth. Every
// change of the ledger is a single aligned store, so a death leaves the old or the new value. An entry of several words
// becomes valid by its last store.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>

#include "base/failure.hpp"
#include "engine.hpp"
#include "memory/region.hpp"
#include "numacre/shm/attach_wire.hpp"
#include "numacre/shm/channel/layout.hpp"
#include "numacre/shm/env.hpp"
#include "numacre/shm/names.hpp"
#include "os/fd.hpp"
#include "spec/pool_config.hpp"

namespace numacre::daemon {

// Version of the ledger's layout. Raise it with any change that moves or reinterprets a byte of a ledger. A daemon of
// another version refuses to adopt.
inline constexpr std::uint32_t kLedgerVersion = 10;

// The state of a resize unit, with each step of a change, so that a later daemon can finish or undo the step.
enum class UnitState : std::uint8_t {
    offline = 0,
    filling = 1,  // pages are being put behind it; nobody can use it yet. Recovery: punch it
    opening = 2,  // all its pages are there, some of its chunks are online. Recovery: open the rest
    online = 3,
    closing = 4,  // some of its chunks have been closed, the pages are there. Recovery: open them again
    closed = 5,   // all of its chunks are ours. Recovery: punch it
};

// One word of a ledger. It is an Env atomic, so that the simulator can end the daemon at each access.
template <class T>
using Durable = ProductionEnv::Atomic<T>;

enum class LedgerState : std::uint64_t { making = 0, serving = 1, corrupt = 2, deleted = 3 };

struct LedgerClient {
    Durable<std::uint32_t> id;  // 0: the slot is free. Stored last, cleared first.
    std::uint32_t pid;
    std::uint32_t uid;
    std::uint32_t gid;
    std::uint64_t pid_space;  // part of ProcessIdentity, as the pid is: distinguishes a reused pid
    std::uint64_t pidfd_inode;
    Durable<std::uint64_t> start_time_ticks;  // may be found out later
    std::uint64_t stack_start;                // distinguishes a process that has replaced its program
    std::uint64_t generation;                 // stays when the slot becomes free
    std::int64_t attached_ns;                 // since the epoch
    Durable<std::uint64_t> quota_bytes;
    Durable<std::uint64_t> soft_quota_bytes;
    Durable<std::uint64_t> reserved_bytes;
    Durable<std::uint32_t> is_departing;  // it has let go or has ended: recovery has begun, whatever /proc says
    wire::Tier tier;
    Durable<std::uint32_t> is_over_soft_quota;  // the event has been told: a later daemon does not tell it again
    std::uint32_t reserved;
    char comm[16];
    // How often the client has each channel open, by the channel's place in channels().
    Durable<std::uint8_t> channels[kChannels];
};

// Whether a channel stays when nobody has it open. while_needed: as long as it has messages. going: it has been found
// to be one that nobody needs, and its seat is being reaped. Nobody opens it any more, or the area of another channel
// would lie under the handle soon.
enum class ChannelStays : std::uint32_t { while_needed = 0, always = 1, no = 2, going = 3 };

// A channel of the pool (shm/channel/). It has a seat in the pool, whose client id says whether the entry counts.
struct LedgerChannel {
    Durable<std::uint32_t> client_id;  // 0: the entry is free. Stored last, cleared first.
    std::uint32_t uid;                 // of the user that has made it
    std::uint16_t slot;
    std::uint16_t reserved16;
    Durable<ChannelStays> stays;
    ChannelShape shape;    // its kind was a spare word before
    std::uint64_t offset;  // in the area (PoolLayout::channels)
    char name[kChannelNameBytes];
};

// The reason why a unit gets no new allocations.
enum class Drain : std::uint8_t {
    none = 0,
    wanted = 1,  // an operator's drain: it goes on in the next daemon
    resize = 2,  // the drain of a shrink: it ends with the shrink, or with the daemon
};

// Limits of several clients together. Entry kPoolAccount belongs to the pool, the others belong to users.
struct LedgerAccount {
    Durable<std::uint32_t> is_used;  // stored last
    Durable<std::uint32_t> uid;
    Durable<std::uint64_t> quota_bytes;
    Durable<std::uint64_t> soft_quota_bytes;
    Durable<std::uint64_t> reserved_bytes;
    Durable<std::uint32_t> is_over_soft_quota;  // the event has been told
    std::uint32_t reserved;
};

// A pin (pins.hpp). Its place in the ledger is the place of its lock.
struct LedgerPin {
    Durable<std::uint32_t> is_used;    // stored last
    Durable<std::uint32_t> has_ended;  // the client has
    std::uint16_t slot;
    std::uint8_t numa_node;
    std::uint8_t reserved8;
    std::uint32_t reserved32;
    std::uint64_t first_byte, bytes;  // of the numa node's frames
};

struct LedgerUnit {
    Durable<UnitState> state;
    Durable<Drain> drain;
};

struct LedgerNode {
    std::int32_t os_numa_node;
    std::uint32_t backing;
    Durable<std::uint32_t> is_below_watermark;  // the event has been told
    std::uint32_t reserved;
    Durable<std::uint64_t> peak_used_bytes;
};

std::int64_t nanoseconds_of(std::chrono::system_clock::time_point time);
std::chrono::system_clock::time_point time_point_of(std::int64_t nanoseconds);

class PoolLedger {
public:
    // How much memory create() takes for the ledger, at once.
    static std::uint64_t bytes_for(const PoolSpec &spec, std::uint32_t numa_nodes);
    static Answer<PoolLedger> create(const PoolSpec &spec, std::uint64_t instance_id, std::uint32_t numa_nodes);
    // Opens the ledger that an earlier daemon has kept. version_mismatch: it has another version of ledger or of shared
    // layout than this daemon. corrupt: it is no ledger.
    static Answer<PoolLedger> open(Fd fd);

    int fd() const { return region_.fd(); }
    // As the pool was made, with its attributes as they are now, but without quotas: accounts() has these.
    PoolSpec spec() const;
    // The attributes that can change while a pool is in use, all at once: a death leaves the old or the new ones.
    void set_attributes(const PoolSpec &spec);
    // The pool was, at some time, one that zeroes the blocks of the dead: some that it has seized may have to be.
    bool has_zeroed() const;
    std::uint64_t instance_id() const;
    std::uint32_t numa_nodes() const;
    std::chrono::system_clock::time_point created() const;
    // The pool's age. Setting the clock does not change it.
    std::chrono::seconds age() const;

    // Each call is thread-safe by itself. The caller orders accesses to values that belong together.
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
    std::span<LedgerAccount> accounts() const { return accounts_; }  // kAccounts entries
    std::span<LedgerPin> pins() const { return pins_; }              // kPins entries
    std::span<LedgerChannel> channels() const { return channels_; }  // kChannels entries
    static constexpr std::size_t kPins = 512;
    NameDirectory<ProductionEnv> &names() const { return *names_; }

private:
    struct Header;
    struct Attributes;
    explicit PoolLedger(MetadataRegion region);
    static Attributes attributes_of(const PoolSpec &spec);
    void find_parts();

    MetadataRegion region_;
    Header *header_;
    std::span<LedgerNode> nodes_;
    std::span<LedgerUnit> units_;
    std::span<LedgerClient> clients_;
    std::span<LedgerAccount> accounts_;
    std::span<LedgerPin> pins_;
    std::span<LedgerChannel> channels_;
    NameDirectory<ProductionEnv> *names_ = nullptr;
};

// By how much nr_hugepages of a numa node and page size was raised (in pages), and a change of nr_hugepages that is
// under way: the kernel's file and the ledger cannot be written at once, and a death in between must not leave pages
// that nobody counts.
struct LedgerReservation {
    Durable<std::uint64_t> raised_pages;
    std::uint64_t raised_before;
    std::uint64_t nr_before, nr_after;   // the number that was read, and the number that was to be written
    Durable<std::uint64_t> is_changing;  // 1: the three words above are valid. Stored last, cleared last.
};

// The resources that the whole daemon has taken from the machine.
class MachineLedger {
public:
    static constexpr unsigned kOsNumaNodes = 256;

    static Answer<MachineLedger> create();
    static Answer<MachineLedger> open(Fd fd);

    int fd() const { return region_.fd(); }
    // The reservation by the kernel's numa node number. Null: the number or the page size is beyond what the ledger
    // holds. One thread at a time changes a reservation (Hugepages::lock); several threads may change different ones.
    LedgerReservation *reservation(int os_numa_node, std::uint64_t page_bytes) const;

private:
    struct Header;
    explicit MachineLedger(MetadataRegion region);

    MetadataRegion region_;
    Header *header_;
};

}  // namespace numacre::daemon
