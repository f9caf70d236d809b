// What a numacre_pool handle is: the pool's regions mapped into this process, and the threads that work on it.
// Nothing here needs the C++ runtime library: a C program can link libnumacre.a with plain cc.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "engine.hpp"
#include "lane.hpp"
#include "nearest.hpp"
#include "numacre/numacre.h"
#include "numacre/shm/account.hpp"
#include "numacre/shm/attach_wire.hpp"
#include "numacre/shm/buddy.hpp"
#include "numacre/shm/fit.hpp"
#include "process.hpp"

namespace numacre::client {

// A numa node of the machine's that the pool has not.
struct Stranger {
    std::uint32_t os_node = 0;
    std::uint8_t by_distance[kMaxNumaNodes] = {};
};

// One numa node of the pool.
struct NodeHandle {
    alignas(Buddy<Env>) std::byte buddy_storage[sizeof(Buddy<Env>)];
    std::byte *data = nullptr;  // first frame
    void *node_region = nullptr;
    std::uint64_t node_region_bytes = 0;
    wire::Backing backing{};
    std::int32_t os_numa_node = 0;

    Buddy<Env> &buddy() { return *reinterpret_cast<Buddy<Env> *>(buddy_storage); }
};

}  // namespace numacre::client

struct numacre_pool {
    std::uint64_t serial = 0;  // never used again in this process
    // The caller's handle, and each thread's lane: as long as there is a lane no other pool can have this address, so
    // that a lane knows its pool by it.
    std::atomic<std::uint32_t> references{1};
    std::uint32_t index = 0;            // place in every thread's table; reused
    std::uint32_t fork_generation = 0;  // of the process that attached
    bool is_leaving = false;            // numacre_detach has begun: ends of threads leave it alone. registry_mutex
    numacre::engine::ProcessSlot process;
    std::uint64_t process_generation = 0;  // of a process that has come (presence.hpp); 0: it has not, or needs not
    std::uint32_t client_id = 0;
    std::uint32_t numa_nodes = 0;
    int connection = -1;  // -1: private pool
    std::uint64_t connection_inode = 0;
    static constexpr int kNoEventFd = -2;
    std::atomic<int> event_fd = -1;  // the daemon signals it; -1: not asked for, kNoEventFd: none came (events.cpp)
    std::atomic<std::uint64_t> event_fd_inode = 0;
    pthread_mutex_t asking = PTHREAD_MUTEX_INITIALIZER;  // for events: one request at a time on a connection
    std::atomic<std::uint64_t> event_fd_id = 0;          // the kernel's number of that eventfd, plus 1; 0: not known
    numacre::engine::Geometry geometry;
    numacre::engine::ReferenceFormat reference_format;
    numacre::engine::PoolView<numacre::client::Env> view;
    void *pool_region = nullptr;
    std::uint64_t pool_region_bytes = 0;
    // All numa nodes' data lie in one reserved span, node n at span + (n << span_shift).
    std::byte *span = nullptr;
    std::uint64_t span_bytes = 0;
    std::uint32_t span_shift = 0;
    std::uint64_t data_bytes = 0;  // of one numa node
    // Thread slots that this process has claimed through this handle. The daemon's word says how many it may; 0 = no
    // limit.
    std::atomic<std::uint32_t> threads{0};
    const numacre::client::Env::Atomic<std::uint64_t> *thread_limit = nullptr;
    // Of the machine's numa nodes, by their number: what the pool calls them, or the nearest that it has.
    std::uint8_t dense_node_of[numacre::client::kMaxOsNumaNodes] = {};
    // Of those that the pool has not: how far its own are from there.
    numacre::client::Stranger strangers[numacre::engine::kMaxNumaNodes];
    std::uint32_t stranger_count = 0;
    bool heeds_kernel = true;   // the threads' mempolicies and cpusets count
    bool checks_frees = false;  // one CAS decides who frees a block, and nothing is cached
    // What numacre_set_policy has said, and how often; odd while it is being said. See policy.cpp.
    std::atomic<std::uint32_t> policy_version{0};
    std::atomic<std::uint32_t> policy_mode{0};
    std::atomic<std::uint64_t> policy_nodes{0};
    pthread_mutex_t policy_mutex = PTHREAD_MUTEX_INITIALIZER;  // of those who say it
    numacre::engine::Policy pool_policy;                       // the pool's own
    numacre::client::Choices *choices = nullptr;               // by thread slot; null: one numa node
    std::uint8_t nearest[numacre::engine::kMaxNumaNodes][numacre::engine::kMaxNumaNodes] = {};
    numacre::client::NodeHandle nodes[numacre::engine::kMaxNumaNodes];
    void *recorded = nullptr;  // what the recorder knows of this handle's blocks (record.cpp)
    int guard = -1;            // watches for touches of memory that is not online, while it is open; -1: nobody does
    std::uint64_t guard_inode = 0;
    // forget_stale_gifts(): what was on the way, and since when it has been just that.
    std::atomic<std::uint64_t> gifts_seen{0}, gifts_seen_at{0};
};

namespace numacre::client {

// --- handles ---------------------------------------------------------------------------------------------------------

// A zeroed handle, not yet registered; nullptr when the process is out of memory.
numacre_pool *new_handle();
// 0: it is closed. A program may close descriptors that are not its own (a daemon to be does), and open others that get
// their numbers: so what is to be closed or written to much later is asked whether it is still the file that it was.
std::uint64_t inode_of(int fd);
// The number still names the file that the library has opened, not one of the program's. inode 0: not looked at yet, in
// the moment after the opening: ours, for a child of a fork in that moment. Async-signal-safe.
bool is_ours(int fd, std::uint64_t inode);
// One reference less; the last one takes the memory along.
void release_handle(numacre_pool *pool);

// Maps the regions in the reserved span; fds are in attach_wire.hpp's order. Returns 0 or -errno with the error
// remembered.
int map_regions(numacre_pool *pool, const wire::AttachReply &reply, const int *fds);
// Inaccessible addresses, a multiple of `alignment` (a power of two, at least a page). nullptr: errno says why.
void *reserve_addresses(std::uint64_t bytes, std::uint64_t alignment);
// Reserves the span for numa_nodes * capacity and leaves it inaccessible. page_bytes: alignment.
int reserve_span(numacre_pool *pool, std::uint64_t page_bytes);
void unmap_regions(numacre_pool *pool);

// From guard_frames() on, a touch of a missing page of these mapped frames is a SIGBUS, not a new page: best effort,
// where the kernel and a seccomp profile let us (numacre doctor says it). `bytes` is a multiple of the page's size.
void open_guard(numacre_pool *pool);
void guard_frames(const numacre_pool *pool, void *frames, std::uint64_t bytes);
void close_guard(numacre_pool *pool);

// Gives the handle its serial and index. False: too many handles, or no memory.
bool register_handle(numacre_pool *pool);
// False: a private pool, or the program has closed the descriptor (closefrom()). Both are async-signal-safe.
bool has_connection(const numacre_pool *pool);
void close_connection(numacre_pool *pool);
// The descriptor for events, if there is one and it is still ours; else -1. Before Linux 5.2, and where /proc cannot be
// read, what else has no inode of its own (another eventfd) and was opened by this number cannot be told from it.
int event_fd_of(const numacre_pool *pool);
// No thread may use the handle any more: whose end comes now leaves its slot to recovery. The handle stays registered
// for children of fork(), which close its connection.
void close_handle(numacre_pool *pool);
// After close_handle() or before any thread has used it; nothing of it is open any more.
void unregister_handle(numacre_pool *pool);

// NUMACRE_CHECK_FREES. 0, or -errno with the error remembered.
int read_checks(numacre_pool *pool);

// --- threads ---------------------------------------------------------------------------------------------------------

// The calling thread's lane, if it has one. Async-signal-safe.
Lane *find_lane(const numacre_pool *pool);
// The calling thread's lane of a pool that is not the one it used last: finds it, or claims a thread slot for it. Makes
// it the current one. nullptr: it has none and can have none; `error` is -errno, remembered.
[[gnu::cold]] Lane *enter_pool(numacre_pool *pool, int &error);

// Gives the calling thread's slot and lane back.
void leave_pool(numacre_pool *pool);

inline Lane *lane_of(numacre_pool *pool, int &error) {
    Lane *const lane = current_lane(pool);
    return lane != nullptr ? lane : enter_pool(pool, error);
}

// --- placement -------------------------------------------------------------------------------------------------------

// The machine's numa node on whose CPUs the calling thread runs at this moment. No system call.
std::uint32_t os_numa_node();
// For those of the machine's numa nodes that the pool has not (CPUs without memory): the nearest that it has. Reads
// /sys; where that cannot be read, they stay with numa node 0.
void place_other_numa_nodes(numacre_pool *pool);
// Where the thread takes its blocks from if nothing has to be thought about; lane.numa_nodes: it has to be. Only where
// there is more than one numa node.
[[gnu::always_inline]] inline std::uint32_t obvious_numa_node(const Lane &lane) {
    const std::uint32_t os_node = os_numa_node();
    // relaxed: one byte, nothing hangs on it.
    return os_node < kMaxOsNumaNodes ? lane.choices->of[os_node].load(std::memory_order_relaxed) : lane.numa_nodes;
}

// What the kernel says of the calling thread, in the pool's numbers. Enters the kernel.
struct KernelPlacement {
    Policy policy;  // unset: it has none
    std::uint64_t allowed = 0;
};
KernelPlacement ask_kernel(const numacre_pool *pool);
// NUMACRE_MEMPOLICY. 0, or -errno with the error remembered.
int read_heed(numacre_pool *pool);
// What the lanes' hot path looks up. 0, or -errno with the error remembered.
int make_choices(numacre_pool *pool);
void delete_choices(numacre_pool *pool);
// For a new lane.
void begin_placement(numacre_pool *pool, Lane &lane);
// Where the thread's blocks are to come from, anew. Enters the kernel; nothing in a pool of one numa node.
[[gnu::cold]] void look_at_placement(numacre_pool *pool, Lane &lane);
// The same if it is time: a policy has been set, a second has gone by. Knows where the thread runs now in any case.
const Placement &placement_of(numacre_pool *pool, Lane &lane);
// For a block of that size, by the policy of calls that bring none.
Plan plan_of(numacre_pool *pool, Lane &lane, std::size_t size_bytes);
Plan plan_with(numacre_pool *pool, Lane &lane, const Policy &policy, std::size_t size_bytes);
// numa_node: an allowed one.
Plan plan_on(numacre_pool *pool, Lane &lane, std::uint32_t numa_node);
// What a call brings, checked. 0, or -errno with the error remembered.
int policy_of_call(numacre_pool *pool, Lane &lane, int mode, std::uint64_t nodes, Policy &policy);
// `count` blocks of this plan came from there. Not for what the hot path hands out: that is always local.
void note_placement(numacre_pool *pool, Lane &lane, const Plan &plan, std::uint32_t numa_node, unsigned count = 1);

// How the pool's blocks are to be chosen, those that do not say it themselves.
inline Fit fit_of(const numacre_pool *pool) {
    return numacre::engine::fit_of(pool->view.header->accounting.load(std::memory_order_relaxed));  // relaxed: a wish
}
// For what a cache is filled with: the thread's home word for this order (of a leaf) becomes one that is chosen so.
[[gnu::cold]] void begin_where_it_fits(Lane &lane, NodeLane &node, Fit fit, unsigned order);

// --- limits ----------------------------------------------------------------------------------------------------------
// Every tree operation that changes what the process holds is counted, but only while is_counting(): quota.cpp.

inline bool is_counting(const numacre_pool *pool) {
    return is_counting(pool->view);
}
// Counting, choosing (fit.hpp) or checking frees: not by the short ways.
inline bool is_regulated(const Lane &lane) {
    return lane.regulation->load(std::memory_order_relaxed) != 0;  // relaxed: as above
}
// Counts the blocks that the process holds, if nobody has done so since the first limit was set in the pool: then walks
// over all metadata. Before a call changes the tree: a walk beside it would count the block or not, and the call counts
// it once more, or not either.
[[gnu::cold]] void count_what_is_held(numacre_pool *pool);
// Counts `frames` more for the process if it may hold them. Within a CountedCall. Serves waiters if a charge was taken
// back.
[[gnu::cold]] Admission charge_frames(numacre_pool *pool, Actor actor, std::uint64_t frames);
// Whether charge_frames() would grant them: counts nothing.
[[gnu::cold]] Admission ask_frames(numacre_pool *pool, std::uint64_t frames);
[[gnu::cold]] void uncharge_frames(numacre_pool *pool, std::uint64_t frames);
// A block is in the shared tree again, and its holder still has it counted (DrainingHeld).
[[gnu::cold]] void note_freed(numacre_pool *pool, std::uint32_t numa_node, Block block);
// Notes it, and counts it no more: this process held it.
[[gnu::cold]] void uncharge_freed(numacre_pool *pool, std::uint32_t numa_node, Block block);
inline void uncount_freed(numacre_pool *pool, std::uint32_t numa_node, Block block) {
    if (is_counting(pool)) [[unlikely]]
        uncharge_freed(pool, numa_node, block);
}
// A block came from another process, of this generation of its seat.
struct Giver {
    ProcessSlot process;
    std::uint64_t generation;
    std::uint64_t frames;  // of the block
};
[[gnu::cold]] std::uint64_t generation_of(const numacre_pool *pool, ProcessSlot process);
[[gnu::cold]] void charge_taken(numacre_pool *pool, Giver giver, std::uint64_t frames);

// Around each change of the tree that is counted, and its count: says meanwhile that the two may differ by `frames`
// (UnderWay). Nothing is said if nobody counts, or of 0 frames.
class CountedCall {
public:
    CountedCall() = default;
    CountedCall(numacre_pool *pool, Actor actor, std::uint64_t frames, ProcessSlot giver = UnderWay::kNobody) {
        if (frames != 0 && is_counting(pool)) [[unlikely]]
            begin(pool, actor, frames, giver);
    }
    ~CountedCall() { end(); }
    CountedCall(const CountedCall &) = delete;
    CountedCall &operator=(const CountedCall &) = delete;

    [[gnu::cold]] void begin(numacre_pool *pool, Actor actor, std::uint64_t frames, ProcessSlot giver);
    void end() {
        if (pool_ != nullptr) [[unlikely]]
            end_now();
    }

private:
    [[gnu::cold]] void end_now();
    numacre_pool *pool_ = nullptr;
    ThreadSlotIndex thread_;
    std::uint64_t before_ = 0;
};

// A block's frames against the limits of the pool, if there are any.
struct Charge {
    numacre_pool *pool;
    Actor actor;
    std::uint64_t frames;
    Admission answer = Admission::granted;
    bool is_made = false;
    CountedCall call{};

    // True: nothing forbids the allocation.
    bool make() {
        if (is_made || !is_counting(pool)) [[likely]]
            return true;
        call.begin(pool, actor, frames, UnderWay::kNobody);
        answer = charge_frames(pool, actor, frames);
        is_made = answer == Admission::granted;
        if (!is_made) call.end();
        return is_made;
    }
    // Serves waiters, who may have been refused while the charge stood.
    [[gnu::cold]] void undo();
    bool is_over_quota() const { return numacre::engine::is_over_quota(answer); }
};

// --- waiting ---------------------------------------------------------------------------------------------------------

// Somebody may be waiting for memory: serve them. Asked after a free; a load when nobody waits.
inline bool has_waiters(const Word &attention) {
    // seq_cst after the free's RMW; partner: HandOff::raise_flag(). Weakened: we see no waiter, it sees no free frame,
    // it sleeps.
    return (attention.load(std::memory_order_seq_cst) & Attention::kWaiters) != 0;
}
inline bool has_waiters(const numacre_pool *pool) {
    return has_waiters(pool->view.header->attention);
}
inline bool has_waiters(const Lane &lane) {
    return has_waiters(lane.attention_word());
}
// What is free goes to those who wait for it. Enters the kernel to wake them.
[[gnu::cold]] void serve_waiters(numacre_pool *pool, Actor actor);
// A held block goes straight to a thread that waits for one of its size. False: nothing was done, free it.
[[gnu::cold]] bool give_to_waiter(numacre_pool *pool, Actor actor, std::uint32_t numa_node, Block block,
                                  IndexEntry entry);
// Waits for a block until there is one or the time is over. timeout_ms 0: for ever. note: but for how old it is.
// charge: not made; made for the block, if there is one. over_quota: a quota has been used up meanwhile. forked_handle:
// a handler has forked while the thread slept, and this is the child.
[[gnu::cold]] Errc wait_for_block(numacre_pool *pool, Lane &lane, const Plan &plan, Order order, Note note,
                                  unsigned timeout_ms, Charge &charge, std::uint32_t &got, Block &block);
// A wish that the thread has left behind, by longjmp() out of a wait: it waits no more, and what it has been given
// meanwhile is free again. True: there was such a block.
[[gnu::cold]] bool forget_wish(numacre_pool *pool, const Lane &lane);
// Blocks on their way to threads of this process that wait count as the process's, and some of them may never arrive.
// True: they have not for a while, their givers are stopped or dead, and they count no more.
[[gnu::cold]] bool forget_stale_gifts(numacre_pool *pool);
bool is_anything_on_the_way(const numacre_pool *pool);
std::uint64_t now_nanoseconds();  // monotonic

// The daemon has found that the pool's shared metadata is damaged. attention: what Attention says.
inline bool is_damaged(const numacre_pool &pool, std::uint64_t attention) {
    return (attention & Attention::kLookAtState) != 0 &&
           pool.view.header->state.load(std::memory_order_acquire) == static_cast<std::uint64_t>(PoolState::corrupt);
}

}  // namespace numacre::client
