// The records in shared memory beside the tree: processes and threads, their operations and their limits. A pool's
// region holds the pool's header, accounts, process records and thread slots; a node's region begins with the node's
// header. Any change here that moves or reinterprets a byte raises kLayoutVersion (layout.hpp).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "numacre/shm/env.hpp"
#include "numacre/shm/geometry.hpp"
#include "numacre/shm/note.hpp"
#include "numacre/shm/owner.hpp"
#include "numacre/shm/units.hpp"

namespace numacre::engine {

inline constexpr std::uint64_t kPoolMagic = 0x6c6f'6f70'6372'6d6e;  // "nmrcpool" in memory
inline constexpr std::uint64_t kNodeMagic = 0x6564'6f6e'6372'6d6e;  // "nmrcnode" in memory
inline constexpr std::size_t kPoolNameBytes = 64;                   // with its terminating 0

// Env::Atomic<uint64_t> is 8 bytes in production; the asserts below pin the layout there.

template <class Env>
struct alignas(128) ThreadSlot {
    using Word = typename Env::template Atomic<std::uint64_t>;
    Word intent;     // Intent; written by the owning thread only
    Word owner;      // 0 = free, else ThreadOwner; claimed by a client's CAS, cleared by it or by recovery
    Word hint_work;  // odd while hints may hide something (HintWork): search must not trust "nothing free" then
    Word waiting;    // WaitWord; its low half is a futex word
    Word nodes;      // of a wish: bit n: a block of numa node n is acceptable
    Word under_way;  // UnderWay (account.hpp): how far counts may be off because of a call of this thread
    Word inside;     // 1 while the thread is in the steps of its cache: nobody else touches its cached blocks then
    Word answered;   // Answered: the last request for cached blocks that the thread has answered
    // A cache line of its own: bit i: the i-th of the thread's HoldWords may hold a block (holds.hpp).
    alignas(kCacheLineBytes) Word holds;
};

// The user of a thread slot: bits 0..15 process slot, bit 16 in use.
class ThreadOwner {
public:
    constexpr explicit ThreadOwner(std::uint64_t bits) : bits_(bits) {}
    constexpr explicit ThreadOwner(ProcessSlot process) : bits_(kInUse | process.value) {}
    constexpr std::uint64_t bits() const { return bits_; }
    constexpr bool in_use() const { return (bits_ & kInUse) != 0; }
    constexpr ProcessSlot process() const { return ProcessSlot{static_cast<std::uint16_t>(bits_)}; }

private:
    static constexpr std::uint64_t kInUse = 1 << 16;
    std::uint64_t bits_;
};

enum class ProcessState : std::uint64_t { free = 0, active = 1, dead = 2 };

// The daemon writes all words but `held`, `on_the_way`, `news` and `presence`; clients only read the others.
template <class Env>
struct alignas(2 * kCacheLineBytes) ProcessRecord {
    using Word = typename Env::template Atomic<std::uint64_t>;
    Word state;             // ProcessState; dead = recovery has not finished yet
    Word generation;        // grows each time the slot is handed out
    Word pid;               // in the daemon's pid namespace
    Word start_time_ticks;  // /proc/<pid>/stat field 22: tells a reused pid
    Word quota_frames;      // frames that the client may own; 0 = no limit
    Word thread_limit;      // thread slots that the client may have at once; 0 = no limit
    Word reserved_frames;   // promised to the client: others leave them free; 0 = none
    Word account;           // of the client's user; 0 = the user has none
    // A cache line of its own. HeldFrames (account.hpp): changed by the process's threads and by any process that takes
    // a block from it.
    alignas(kCacheLineBytes) Word held;
    Word news;  // bits of EventBits that the client has not been told of; the daemon sets them, the client clears them
    Word presence;    // Presence: whether the client is there, as client and daemon agree
    Word on_the_way;  // OnTheWay (account.hpp): counted for the process's waiting threads by their givers
    // The group that the process has joined (numacre_join); 0: none. Members adopt each other's blocks, also those of
    // the dead: so the daemon leaves a dead member's blocks alone while another lives. Written once by the process.
    Word group;
    std::uint64_t reserved[3];
};

// Events that the daemon tells a client.
struct EventBits {
    static constexpr std::uint64_t kLowWatermark = 1;
    static constexpr std::uint64_t kLowWatermarkEnded = 2;
    static constexpr std::uint64_t kSoftQuota = 4;  // the client's, its user's or the pool's
    static constexpr std::uint64_t kResized = 8;
    static constexpr std::uint64_t kEviction = 16;
    static constexpr std::uint64_t kDamaged = 32;
};

// Limits that several processes share. Account 0 is the pool's, for all its clients together, without reservation; the
// others are users' accounts. The daemon writes them; all zero = none.
template <class Env>
struct Account {
    using Word = typename Env::template Atomic<std::uint64_t>;
    Word quota_frames;
    Word reserved_frames;
};
inline constexpr std::uint32_t kAccounts = 64;
inline constexpr std::uint32_t kPoolAccount = 0;

// The steps that limits need (account.hpp). The daemon writes the word; 0 = no step: no process counts its frames.
struct Accounting {
    static constexpr std::uint64_t kCount = 1;         // each process counts the frames that it holds
    static constexpr std::uint64_t kShared = 2;        // there are accounts, or reservations: add up the counts of all
    static constexpr std::uint64_t kReservations = 4;  // there are reservations
};

enum class PoolState : std::uint64_t { creating = 0, serving = 1, corrupt = 2, deleted = 3 };

// Bit 0: a thread may be waiting for a release. Bits 1 .. 47: how often memory has run out somewhere; a thread that
// sees the number change gives its cached blocks back. The daemon's bits: 48 .. 60 the pool's age (it stands still
// while there is no daemon); 61 "look at the pool's state before you allocate", as the pool may not serve any more; 62
// "a chunk is draining", so that blocks freed in it are not to be cached. A client that scribbles on this word costs
// others time and nothing else; one that scribbles on barrier_for as well can have a block taken from its owner.
struct Attention {
    static constexpr std::uint64_t kWaiters = 1;
    static constexpr std::uint64_t kPressureStep = 2;
    static constexpr unsigned kAgeShift = 48;
    static constexpr std::uint64_t kAgeMask = ((std::uint64_t{1} << PoolAge::kBits) - 1) << kAgeShift;
    static constexpr std::uint64_t kLookAtState = std::uint64_t{1} << (kAgeShift + PoolAge::kBits);
    static constexpr std::uint64_t kDraining = kLookAtState << 1;

    // How often memory has run out, and with it how often threads were asked for their cached blocks.
    static constexpr std::uint64_t requests(std::uint64_t bits) {
        return (bits & ((std::uint64_t{1} << kAgeShift) - 1)) / kPressureStep;
    }
    static constexpr PoolAge age(std::uint64_t bits) { return PoolAge{static_cast<std::uint32_t>(bits >> kAgeShift)}; }
    // Returns `bits` with new values of the daemon's bits.
    static constexpr std::uint64_t told(std::uint64_t bits, PoolAge age, bool serves, bool drains) {
        return (bits & ((std::uint64_t{1} << kAgeShift) - 1)) | std::uint64_t{age.code()} << kAgeShift |
               (serves ? 0 : kLookAtState) | (drains ? kDraining : 0);
    }
};

// A thread's answer to requests for cached blocks: the number of requests that it has seen, before it used its cache
// again. kNever: the thread's cache is its own, whatever it has seen (its process has not registered for barriers).
struct Answered {
    static constexpr std::uint64_t kNever = ~std::uint64_t{0};
    // True: the thread has not yet seen the request. Counts of 47 bits that begin again at 0.
    static constexpr bool is_before(std::uint64_t answered, std::uint64_t request) {
        constexpr unsigned kUnused = 64 - (Attention::kAgeShift - 1);
        return answered != kNever && static_cast<std::int64_t>((request - answered) << kUnused) > 0;
    }
};

template <class Env>
struct PoolHeader {
    using Word = typename Env::template Atomic<std::uint64_t>;
    std::uint64_t magic;
    std::uint32_t layout_version;
    std::uint32_t header_bytes;
    std::uint64_t region_bytes;
    std::uint64_t instance_id;  // random; all regions of one pool have this number
    char name[kPoolNameBytes];
    Geometry geometry;  // of each numa node of the pool
    std::uint32_t numa_node_count;
    std::uint32_t process_slots;                 // slot 0 is the daemon
    std::uint32_t thread_slots;                  // slot 0 is the daemon's
    std::uint32_t policy_mode;                   // PolicyMode for clients that set none themselves
    std::uint64_t policy_nodes;                  // Policy::nodes
    alignas(kCacheLineBytes) Word state;         // PoolState
    Word thread_high_water;                      // thread slots at or above it were never used
    Word accounting;                             // Accounting
    Word seats;                                  // process slots at or above it have no client
    Word online_frames;                          // of all numa nodes, without frames that drain or are about to go
    Word draining_held;                          // DrainingHeld (account.hpp): such frames that are held
    alignas(kCacheLineBytes) Word attention;     // Attention: every thread looks at it before it uses its cache
    alignas(kCacheLineBytes) Word wait_tickets;  // tickets given to threads that wait for memory (WaitWord)
    Word barrier_at;    // monotonic time in ns when all CPUs last passed a barrier for this pool (idle_caches.hpp)
    Word barrier_for;   // the request before which they passed it (Attention::requests)
    Word walked_for;    // the request for which somebody has looked for idle caches
    Word gathered_for;  // ... and has left none: no thread was inside then
};

template <class Env>
struct NodeHeader {
    std::uint64_t magic;
    std::uint32_t layout_version;
    std::uint32_t header_bytes;
    std::uint64_t region_bytes;
    std::uint64_t instance_id;
    Geometry geometry;
    std::uint32_t numa_node;  // the pool's dense number
    std::uint32_t thread_slots;
};

static_assert(sizeof(Geometry) == 16);
static_assert(sizeof(ThreadSlot<ProductionEnv>) == 128);
static_assert(offsetof(ThreadSlot<ProductionEnv>, hint_work) == 16);
static_assert(offsetof(ThreadSlot<ProductionEnv>, waiting) == 24);
static_assert(offsetof(ThreadSlot<ProductionEnv>, under_way) == 40);
static_assert(offsetof(ThreadSlot<ProductionEnv>, inside) == 48);
static_assert(offsetof(ThreadSlot<ProductionEnv>, answered) == 56);
static_assert(offsetof(ThreadSlot<ProductionEnv>, holds) == 64);
static_assert(sizeof(ProcessRecord<ProductionEnv>) == 128);
static_assert(offsetof(ProcessRecord<ProductionEnv>, held) == 64);
static_assert(offsetof(ProcessRecord<ProductionEnv>, presence) == 80);
static_assert(offsetof(ProcessRecord<ProductionEnv>, on_the_way) == 88);
static_assert(sizeof(Account<ProductionEnv>) == 16);
static_assert(offsetof(PoolHeader<ProductionEnv>, name) == 32);
static_assert(offsetof(PoolHeader<ProductionEnv>, geometry) == 96);
static_assert(offsetof(PoolHeader<ProductionEnv>, numa_node_count) == 112);
static_assert(offsetof(PoolHeader<ProductionEnv>, policy_nodes) == 128);
static_assert(offsetof(PoolHeader<ProductionEnv>, state) == 192);
static_assert(offsetof(PoolHeader<ProductionEnv>, accounting) == 208);
static_assert(offsetof(PoolHeader<ProductionEnv>, online_frames) == 224);
static_assert(offsetof(PoolHeader<ProductionEnv>, draining_held) == 232);
static_assert(offsetof(PoolHeader<ProductionEnv>, attention) == 256);
static_assert(offsetof(PoolHeader<ProductionEnv>, wait_tickets) == 320);
static_assert(sizeof(PoolHeader<ProductionEnv>) == 384);
static_assert(offsetof(NodeHeader<ProductionEnv>, geometry) == 32);
static_assert(sizeof(NodeHeader<ProductionEnv>) == 56);
static_assert(std::is_standard_layout_v<PoolHeader<ProductionEnv>>);

}  // namespace numacre::engine
