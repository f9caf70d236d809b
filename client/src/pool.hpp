// A numacre_pool handle: the pool's regions mapped into this process, and the threads that work on the pool.
// Nothing here needs the C++ runtime library: a C program can link libnumacre.a with plain cc.
#pragma once

#include <pthread.h>
#include <sys/un.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "engine.hpp"
#include "lane.hpp"
#include "nearest.hpp"
#include "numacre/numacre.h"
#include "numacre/shm/account.hpp"
#include "numacre/shm/attach_wire.hpp"
#include "numacre/shm/buddy.hpp"
#include "numacre/shm/fit.hpp"
#include "private_channels.hpp"
#include "process.hpp"

namespace numacre::client {

// A numa node of the machine that the pool does not have.
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
    int data_fd = -1;  // kept if the program wants to pass it on
    std::uint64_t data_inode = 0;

    Buddy<Env> &buddy() { return *reinterpret_cast<Buddy<Env> *>(buddy_storage); }
};

}  // namespace numacre::client

struct numacre_pool {
    std::uint64_t serial = 0;  // never used again in this process
    // The references of the caller's handle and of each thread's lane. While a lane exists, no other pool can have this
    // address, so a lane identifies its pool by the address.
    std::atomic<std::uint32_t> references{1};
    std::uint32_t index = 0;            // index in every thread's table; reused
    std::uint32_t fork_generation = 0;  // of the process that attached
    bool is_leaving = false;            // numacre_detach has begun: ends of threads leave it alone. registry_mutex
    numacre::engine::ProcessSlot process;
    std::uint64_t process_generation = 0;  // of a process that has come (presence.hpp); 0: not yet, or not needed
    std::uint32_t client_id = 0;
    std::uint64_t instance_id = 0;              // of the pool; 0: private
    std::atomic<std::uint64_t> pins_inode = 0;  // each pin is a descriptor of that file; 0: nothing was pinned yet
    std::uint32_t numa_nodes = 0;
    int connection = -1;  // -1: private pool
    std::uint64_t connection_inode = 0;
    static constexpr int kNoEventFd = -2;
    std::atomic<int> event_fd = -1;  // the daemon signals it; -1: not requested, kNoEventFd: no reply came (events.cpp)
    std::atomic<std::uint64_t> event_fd_inode = 0;
    pthread_mutex_t asking = PTHREAD_MUTEX_INITIALIZER;  // for events: one request at a time on a connection
    std::atomic<std::uint64_t> event_fd_id = 0;          // the kernel's number of that eventfd, plus 1; 0: not known
    numacre::engine::Geometry geometry;
    numacre::engine::FrameScale scale;
    void set_geometry(const numacre::engine::Geometry &given) {
        geometry = given;
        scale = numacre::engine::FrameScale{given.frame_bytes};
    }
    numacre::engine::ReferenceFormat reference_format;
    numacre::engine::PoolView<numacre::client::Env> view;
    void *pool_region = nullptr;
    std::uint64_t pool_region_bytes = 0;
    // One reserved span has the data of all numa nodes, node n at span + (n << span_shift).
    std::byte *span = nullptr;
    std::byte *wished_span = nullptr;  // where the program wants the span; null: anywhere
    std::uint64_t span_bytes = 0;
    std::uint32_t span_shift = 0;
    std::uint64_t data_bytes = 0;  // of one numa node
    // Thread slots that this process has claimed through this handle. The daemon sets *thread_limit; 0 = no limit.
    std::atomic<std::uint32_t> threads{0};
    const numacre::client::Env::Atomic<std::uint64_t> *thread_limit = nullptr;
    // The pool's numa node for each numa node of the machine: that node itself, or the nearest one of the pool.
    std::uint8_t dense_node_of[numacre::client::kMaxOsNumaNodes] = {};
    // The numa nodes that the pool does not have, each with the pool's numa nodes by distance from it.
    numacre::client::Stranger strangers[numacre::engine::kMaxNumaNodes];
    std::uint32_t stranger_count = 0;
    bool heeds_kernel = true;                              // the threads' mempolicies and cpusets count
    char runtime_dir[sizeof(sockaddr_un::sun_path)] = {};  // of the daemon
    char name[numacre::engine::kPoolNameBytes] = {};       // of the pool, as it was attached
    bool keeps_descriptors = false;                        // NodeHandle::data_fd
    bool checks_frees = false;  // one CAS decides which thread frees a block, and no block is cached
    // Others may take back what this process's threads cache and do not use (idle.cpp): the process has registered for
    // barriers.
    bool shares_caches = false;
    // The policy that numacre_set_policy has set, and the version of that policy; odd while a thread sets it. See
    // policy.cpp.
    std::atomic<std::uint32_t> policy_version{0};
    std::atomic<std::uint32_t> policy_mode{0};
    std::atomic<std::uint64_t> policy_nodes{0};
    pthread_mutex_t policy_mutex = PTHREAD_MUTEX_INITIALIZER;  // serialises numacre_set_policy
    pthread_mutex_t names_mutex = PTHREAD_MUTEX_INITIALIZER;   // of a private pool: serialises changes of names
    numacre::engine::Policy pool_policy;                       // of the pool
    numacre::client::Choices *choices = nullptr;               // by thread slot; null in a pool of one numa node
    std::uint8_t nearest[numacre::engine::kMaxNumaNodes][numacre::engine::kMaxNumaNodes] = {};
    numacre::client::NodeHandle nodes[numacre::engine::kMaxNumaNodes];
    numacre::client::PrivateChannels private_channels;
    void *recorded = nullptr;  // the recorder's tree of this handle's blocks (record.cpp)
    int guard = -1;            // userfaultfd: while it is open, a touch of offline memory is a SIGBUS; -1: no guard
    std::uint64_t guard_inode = 0;
    // For forget_stale_gifts(): the word of blocks on the way at the last look, and the time since when it is
    // unchanged.
    std::atomic<std::uint64_t> gifts_seen{0}, gifts_seen_at{0};
};

namespace numacre::client {

// --- handles ---------------------------------------------------------------------------------------------------------

// A zeroed handle, not yet registered; nullptr when the process is out of memory.
numacre_pool *new_handle();
// The inode of a descriptor's file; 0: the descriptor is closed. A program may close descriptors that are not its own
// (as a process that becomes a daemon does), and open others that get their numbers. So the library compares the inode
// before it closes or writes a descriptor much later.
std::uint64_t inode_of(int fd);
// True if the number still names the file that the library has opened, not a file of the program. inode 0: not known
// yet, in the moment after the opening; the file is ours, for a child that is forked in that moment. Async-signal-safe.
bool is_ours(int fd, std::uint64_t inode);
// Drops one reference; the last drop unmaps the handle.
void release_handle(numacre_pool *pool);

// Maps the regions in the reserved span; fds are in attach_wire.hpp's order. Returns 0 or -errno with the error
// remembered.
int map_regions(numacre_pool *pool, const wire::AttachReply &reply, const int *fds);
// Reserves inaccessible addresses. The result is a multiple of `alignment` (a power of two, at least a page). nullptr:
// errno has the reason.
void *reserve_addresses(std::uint64_t bytes, std::uint64_t alignment);
// Reserves the span for numa_nodes * capacity and leaves it inaccessible. page_bytes: alignment.
int reserve_span(numacre_pool *pool, std::uint64_t page_bytes);
void unmap_regions(numacre_pool *pool);
// Moves the descriptors of the blocks' files out of `fds` into the handle.
void keep_descriptors(numacre_pool *pool, int *fds);
// Async-signal-safe.
void close_descriptors(numacre_pool *pool);

// After guard_frames(), a touch of a missing page of these mapped frames is a SIGBUS, not a new page. The guard is best
// effort: the kernel and the seccomp profile must allow it (numacre doctor reports that). `bytes` is a multiple of the
// page's size.
void open_guard(numacre_pool *pool);
void guard_frames(const numacre_pool *pool, void *frames, std::uint64_t bytes);
void close_guard(numacre_pool *pool);

// Gives the handle its serial and index. False: too many handles, or no memory.
bool register_handle(numacre_pool *pool);
// False: the pool is private, or the program has closed the descriptor (closefrom()). Both functions are
// async-signal-safe.
bool has_connection(const numacre_pool *pool);
// Whether the pool is this process's own, without a daemon (numacre_open_private).
inline bool is_private(const numacre_pool *pool) {
    return pool->runtime_dir[0] == 0;
}
void close_connection(numacre_pool *pool);
// The number of an eventfd, plus 1. All eventfds and many other files share one inode, but each eventfd has a number of
// its own. 0: no eventfd, or a kernel before 5.2. Empty: unknown. Reads /proc; async-signal-safe.
std::optional<std::uint64_t> eventfd_id_of(int fd);
// The descriptor for events, if there is one and it is still ours; else -1. Before Linux 5.2, and where /proc cannot be
// read, another file without an inode of its own (another eventfd) under this number cannot be distinguished from it.
int event_fd_of(const numacre_pool *pool);
// No thread may use the handle any more. A thread that ends from now on leaves its slot to recovery. The handle stays
// registered for children of fork(), which close its connection.
void close_handle(numacre_pool *pool);
// Called after close_handle(), or before any thread has used the handle. The handle has nothing open any more.
void unregister_handle(numacre_pool *pool);

// Reads NUMACRE_CHECK_FREES. Returns 0, or -errno with the error remembered.
int read_checks(numacre_pool *pool);

// --- threads ---------------------------------------------------------------------------------------------------------

// The calling thread's lane, if it has one. Async-signal-safe.
Lane *find_lane(const numacre_pool *pool);
// Finds the calling thread's lane of a pool that is not the one it used last, or claims a thread slot and makes a lane.
// The lane becomes the current one. nullptr: the thread has no lane and can get none; `error` is -errno, remembered.
[[gnu::cold]] Lane *enter_pool(numacre_pool *pool, int &error);

// Gives the calling thread's slot and lane back.
void leave_pool(numacre_pool *pool);

inline Lane *lane_of(numacre_pool *pool, int &error) {
    Lane *const lane = current_lane(pool);
    return lane != nullptr ? lane : enter_pool(pool, error);
}

// --- placement -------------------------------------------------------------------------------------------------------

// The machine's numa node of the CPU on which the calling thread runs at this moment. No system call.
std::uint32_t os_numa_node();
// Maps each numa node of the machine that the pool does not have (CPUs without memory) to the pool's nearest one. Reads
// /sys; where /sys cannot be read, such nodes stay mapped to numa node 0.
void place_other_numa_nodes(numacre_pool *pool);
// The numa node from which the thread takes its blocks by one look-up. lane.numa_nodes: the slow path has to decide.
// Only for pools of more than one numa node.
[[gnu::always_inline]] inline std::uint32_t obvious_numa_node(const Lane &lane) {
    const std::uint32_t os_node = os_numa_node();
    // relaxed: one byte, and no other data depends on it.
    return os_node < kMaxOsNumaNodes ? lane.choices->of[os_node].load(std::memory_order_relaxed) : lane.numa_nodes;
}

// The calling thread's mempolicy and cpuset, in the pool's node numbers. ask_kernel() enters the kernel.
struct KernelPlacement {
    Policy policy;  // unset: the thread has none
    std::uint64_t allowed = 0;
};
KernelPlacement ask_kernel(const numacre_pool *pool);
// Reads NUMACRE_MEMPOLICY. Returns 0, or -errno with the error remembered.
int read_heed(numacre_pool *pool);
// Makes the tables that the lanes' hot path looks up. Returns 0, or -errno with the error remembered.
int make_choices(numacre_pool *pool);
void delete_choices(numacre_pool *pool);
// Sets up the placement of a new lane.
void begin_placement(numacre_pool *pool, Lane &lane);
// Computes anew from which numa nodes the thread's blocks come. Enters the kernel; does nothing in a pool of one numa
// node.
[[gnu::cold]] void look_at_placement(numacre_pool *pool, Lane &lane);
// Calls look_at_placement() if a policy has been set or a second has passed. Updates the numa node on which the thread
// runs in any case.
const Placement &placement_of(numacre_pool *pool, Lane &lane);
// The plan for a block of that size. plan_of() uses the policy of calls that bring none.
Plan plan_of(numacre_pool *pool, Lane &lane, std::size_t size_bytes);
Plan plan_with(numacre_pool *pool, Lane &lane, const Policy &policy, std::size_t size_bytes);
// numa_node: one that the cpuset allows.
Plan plan_on(numacre_pool *pool, Lane &lane, std::uint32_t numa_node);
// Checks the policy that a call brings. Returns 0, or -errno with the error remembered.
int policy_of_call(numacre_pool *pool, Lane &lane, int mode, std::uint64_t nodes, Policy &policy);
// Counts `count` blocks of this plan that came from `numa_node`. The hot path does not call this: its blocks are always
// local.
void note_placement(numacre_pool *pool, Lane &lane, const Plan &plan, std::uint32_t numa_node, unsigned count = 1);

// The fit by which the pool chooses blocks, for calls that do not choose one themselves.
inline Fit fit_of(const numacre_pool *pool) {
    return numacre::engine::fit_of(pool->view.header->accounting.load(std::memory_order_relaxed));  // relaxed: a wish
}
// Before a cache is filled: sets the thread's home word for this order (of a leaf) to a word that `fit` chooses.
[[gnu::cold]] void begin_where_it_fits(Lane &lane, NodeLane &node, Fit fit, unsigned order);

// --- limits ----------------------------------------------------------------------------------------------------------
// Every tree operation that changes the process's blocks is counted, but only while is_counting(): quota.cpp.

inline bool is_counting(const numacre_pool *pool) {
    return is_counting(pool->view);
}
// True if the pool counts, chooses blocks (fit.hpp) or checks frees: the short paths may not be used.
inline bool is_regulated(const Lane &lane) {
    return lane.regulation->load(std::memory_order_relaxed) != 0;  // relaxed: as in fit_of()
}
// Counts the blocks that the process holds, by a walk over all metadata, if nobody has counted them since the first
// limit was set in the pool. Called before a call changes the tree: a walk beside that change would meet the block or
// miss it, and the call would count the block as well.
[[gnu::cold]] void count_what_is_held(numacre_pool *pool);
// Counts `frames` more for the process, if the process may hold them. Called within a CountedCall. Serves waiters if a
// charge was taken back.
[[gnu::cold]] Admission charge_frames(numacre_pool *pool, Actor actor, std::uint64_t frames);
// The answer that charge_frames() would give. Counts nothing.
[[gnu::cold]] Admission ask_frames(numacre_pool *pool, std::uint64_t frames);
[[gnu::cold]] void uncharge_frames(numacre_pool *pool, std::uint64_t frames);
// Notes a block that is in the shared tree again while its holder's count still contains it (DrainingHeld).
[[gnu::cold]] void note_freed(numacre_pool *pool, std::uint32_t numa_node, Block block);
// Notes a freed block that this process held, and removes it from the process's count.
[[gnu::cold]] void uncharge_freed(numacre_pool *pool, std::uint32_t numa_node, Block block);
inline void uncount_freed(numacre_pool *pool, std::uint32_t numa_node, Block block) {
    if (is_counting(pool)) [[unlikely]]
        uncharge_freed(pool, numa_node, block);
}
// The process from which a block was taken, and the generation of that process's seat.
struct Giver {
    ProcessSlot process;
    std::uint64_t generation;
    std::uint64_t frames;  // of the block
};
[[gnu::cold]] void charge_taken(numacre_pool *pool, Giver giver, std::uint64_t frames);

// Encloses a counted change of the tree together with the change of the count. Meanwhile it announces that tree and
// count may differ by `frames` (UnderWay). It announces nothing if the pool does not count, or for 0 frames.
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

// The charge of a block's frames against the pool's limits, if it has any.
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

// True if threads may be waiting for memory and must be served. Asked after each free; costs one load.
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
// Gives free blocks to the threads that wait for them. Enters the kernel to wake these threads.
[[gnu::cold]] void serve_waiters(numacre_pool *pool, Actor actor);
// Gives a held block directly to a thread that waits for a block of its size. False: nothing was done, and the caller
// has to free the block.
[[gnu::cold]] bool give_to_waiter(numacre_pool *pool, Actor actor, std::uint32_t numa_node, Block block,
                                  IndexEntry entry);
// Waits until there is a block or the time is over. timeout_ms 0: for ever. note: without the block's age. charge: not
// yet made; made on return if the thread got a block. over_quota: a quota has been used up meanwhile. forked_handle: a
// handler has forked while the thread slept, and this is the child.
[[gnu::cold]] Errc wait_for_block(numacre_pool *pool, Lane &lane, const Plan &plan, Order order, Note note,
                                  unsigned timeout_ms, Charge &charge, std::uint32_t &got, Block &block);
// Ends a wish that the thread has left behind by longjmp() out of a wait, and frees a block that the wish was given
// meanwhile. True: there was such a block.
[[gnu::cold]] bool forget_wish(numacre_pool *pool, const Lane &lane);
// Blocks on their way to waiting threads of this process count for the process, and some of them may never arrive.
// True: these blocks have not arrived for a while, their givers are stopped or dead, and the blocks count no more.
[[gnu::cold]] bool forget_stale_gifts(numacre_pool *pool);
bool is_anything_on_the_way(const numacre_pool *pool);
std::uint64_t now_nanoseconds();  // monotonic

// True if the daemon has found the pool's shared metadata damaged. attention: the bits of Attention.
inline bool is_damaged(const numacre_pool &pool, std::uint64_t attention) {
    return (attention & Attention::kLookAtState) != 0 &&
           pool.view.header->state.load(std::memory_order_acquire) == static_cast<std::uint64_t>(PoolState::corrupt);
}

}  // namespace numacre::client
