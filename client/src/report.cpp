// The reasons of refused calls: their sentences, and their counts in shared memory. No common path calls this file.
#include "report.hpp"

#include "engine.hpp"
#include "errors.hpp"
#include "numacre/shm/counters.hpp"
#include "numacre/shm/walk.hpp"
#include "place.hpp"

namespace numacre::client {
namespace {

void count_failure(numacre_pool *pool, std::uint32_t numa_node, Actor actor, FailureReason reason) {
    ThreadCounters<Env> &counters = pool->nodes[numa_node].buddy().view().counters[actor.thread.value];
    count(counters.failures[static_cast<unsigned>(reason)]);
}

// Counts the free frames of a numa node, in pieces of any size. The walk reads the metadata of the whole numa node, 100
// ms for
// 64 GiB of frames: too long for each of many failures in a row.
struct FreeFrames {
    std::uint64_t frames = 0;
    void owned(Block, IndexEntry) {}
    void free(Block block) { frames += block.order.frames(); }
    void taken(FrameIndex, std::uint64_t) {}
    void offline(Block) {}
    void damaged(Block) {}
};
constexpr std::uint64_t kWalkAgainAfterNanoseconds = 1'000'000'000;

FailureReason why_not(NodeLane &node, std::uint64_t frames) {
    if (frames == 1) return FailureReason::out_of_frames;  // one frame is never fragmented
    const std::uint64_t now = now_nanoseconds();
    if (node.looked_at_ns == 0 || now - node.looked_at_ns >= kWalkAgainAfterNanoseconds) {
        FreeFrames scan;
        walk_all(node.buddy->view(), scan);
        node.free_frames_seen = scan.frames;
        node.looked_at_ns = now;
    }
    return node.free_frames_seen >= frames ? FailureReason::fragmented : FailureReason::out_of_frames;
}

// True of object pools, and of pools whose largest block is one frame.
bool is_of_single_frames(const numacre_pool *pool) {
    return pool->geometry.largest_order == 0;
}

// Advice where no block is free. Private pools and object pools do not grow.
const char *remedy_without_blocks(const numacre_pool *pool) {
    if (is_private(pool)) return "free blocks, wait, or open a larger pool";
    return is_of_single_frames(pool) ? "free blocks, use another numa node, wait, or use a larger pool"
                                     : error_row(Errc::out_of_frames).remedy;
}

}  // namespace

int no_pool(const char *function) {
    return fail(Errc::bad_argument, "%s: the pool is NULL", function);
}

int no_result(const char *function) {
    return fail(Errc::bad_argument, "%s: the result pointer is NULL", function);
}

int bad_size(numacre_pool *pool, Actor actor, std::uint32_t numa_node, std::size_t size_bytes) {
    count_failure(pool, numa_node, actor, FailureReason::argument);
    const char *const remedy = size_bytes == 0 ? "ask for 1 byte or more"
                               : size_bytes > pool->data_bytes
                                   ? "ask for less, or use a pool of a larger capacity and largest block"
                               : is_of_single_frames(pool) ? "ask for less, or use a pool of a larger largest block"
                                                           : "ask for less, use numacre_alloc_run(), or a pool of a "
                                                             "larger largest block";
    return fail_with_remedy(Errc::bad_argument, "size %zu is not within 1 .. %llu bytes, the pool's largest block: %s",
                            size_bytes, static_cast<unsigned long long>(pool->geometry.chunk_bytes()), remedy);
}

int not_allowed(const numacre_pool *pool, std::uint32_t numa_node) {
    return fail_with_remedy(
        Errc::bad_argument,
        "numa node %u (the machine's %d) is none that this thread's cpuset allows: widen it (cpuset.mems), or "
        "set NUMACRE_MEMPOLICY=ignore",
        numa_node, pool->nodes[numa_node].os_numa_node);
}

int not_a_block(numacre_pool *pool, const void *address, Errc code) {
    if (address == nullptr) return fail(Errc::bad_argument, "the block is NULL");
    Place place{};
    const std::uint64_t offset =
        reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(pool->span);
    if (!locate(pool, address, place)) {
        if (offset < pool->span_bytes && (offset & ((std::uint64_t{1} << pool->span_shift) - 1)) < pool->data_bytes)
            return fail(Errc::bad_argument, "address %p lies inside a frame, not at its beginning", address);
        return fail(Errc::bad_argument, "address %p lies outside the pool", address);
    }
    if (code == Errc::not_owner) return fail(code, "block %p belongs to another process", address);
    Block covering;
    if (pool->nodes[place.numa_node].buddy().find_covering(place.frame, covering) && !(covering.base == place.frame))
        return fail(Errc::bad_argument, "address %p lies inside the block that begins at %p", address,
                    address_of(pool, place.numa_node, covering));
    return fail_with_remedy(Errc::stale_ref,
                            "no block begins at %p: not allocated, or freed already: free each block once, by the "
                            "address that its allocation gave",
                            address);
}

int not_owned(const numacre_pool *pool, const void *address, const char *function) {
    if (pool == nullptr) return no_pool(function);
    if (pool->fork_generation != fork_generation()) return fail_forked();
    return fail(Errc::not_owner, "%s: this handle owns no block that begins at %p", function, address);
}

int damaged_pool() {
    return fail(
        Errc::corrupt,
        "the pool's shared metadata is damaged: nothing is allocated in it any more (the daemon's log says what)");
}

int thread_is_inside(const numacre_pool *pool) {
    // A corrupted intent looks like a call under way, until the daemon has found the damage.
    // relaxed: as in allocating_lane_of().
    if (is_damaged(*pool, pool->view.header->attention.load(std::memory_order_relaxed))) return damaged_pool();
    return fail(Errc::thread_is_inside,
                "this signal handler has interrupted a call of its thread that changes the pool");
}

int allocation_failed(numacre_pool *pool, Lane &lane, std::uint32_t wanted, Errc code, std::uint64_t frames,
                      std::size_t size_bytes, Admission answer) {
    const Actor actor = lane.actor;
    if (code == Errc::over_quota) {
        count_failure(pool, wanted, actor, FailureReason::quota);
        return fail(code, "%zu bytes more would exceed %s", size_bytes,
                    answer == Admission::over_user_quota   ? "the quota that this process's user has in the pool"
                    : answer == Admission::over_pool_quota ? "the quota of all the pool's clients together"
                                                           : "this client's quota");
    }
    if (code == Errc::corrupt) return damaged_pool();
    if (answer == Admission::reserved) {
        count_failure(pool, wanted, actor, FailureReason::out_of_frames);
        return fail_with_remedy(
            code, "no free block of %zu bytes: what is free is reserved for others (`numacre clients`): %s", size_bytes,
            remedy_without_blocks(pool));
    }
    const FailureReason reason = why_not(lane.nodes[wanted], frames);
    count_failure(pool, wanted, actor, reason);
    return fail_with_remedy(
        code, "no free block of %zu bytes%s on any numa node that is allowed (%u, the first: %s): %s", size_bytes,
        frames == 1 ? "" : " in one piece", wanted,
        reason == FailureReason::fragmented ? "enough is free, but not in one piece, or not so aligned" : "full",
        remedy_without_blocks(pool));
}

}  // namespace numacre::client
