// One thread's way into one pool: all that its hot path needs, in private memory, and its cache of blocks.
//
// A cached block stays its process's (IndexEntry: cached), so a death gives it back like any other. Blocks go in and
// out by plain stores: an entry that is not published is written by its own process only. What that costs: a block that
// two threads of one process free in the very same moment may be put into both caches. As with any malloc that is the
// process's own undoing; numacre_free_uncached decides it by a CAS.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "numacre/shm/buddy.hpp"
#include "numacre/shm/cached_block.hpp"
#include "numacre/shm/counters.hpp"

namespace numacre::client {

using Env = ProductionEnv;
using Word = Env::Atomic<std::uint64_t>;

inline constexpr unsigned kCachedOrders = kLeafOrder + 1;  // blocks of leaf words

// Blocks of one order, last in first out.
struct Magazine {
    std::uint64_t *frames;  // where they begin
    std::uint32_t count;
    std::uint32_t capacity;       // 0: none wanted yet, or ever: the slow path decides
    Word *allocations;            // this thread's tally of the order; that of frees stands kFreesBeside words further
    std::uint64_t granted_bytes;  // 0: no order of leaf blocks here, or one with slack in larger units than bytes
};
inline constexpr std::size_t kFreesBeside = kMaxOrder + 1;
static_assert(offsetof(ThreadCounters<Env>, frees) - offsetof(ThreadCounters<Env>, allocations) ==
              kFreesBeside * sizeof(Word));

struct alignas(kCacheLineBytes) NodeLane {
    std::byte *data;  // first frame
    Word *index;      // of the leaf layer
    Buddy<Env> *buddy;
    Magazine magazines[kCachedOrders];
};
static_assert(sizeof(NodeLane) == 256, "a power of two: found by a shift");

struct alignas(kCacheLineBytes) Lane {
    std::uint64_t serial;  // of the pool; 0: no pool's
    const Word *attention;
    std::uint64_t attention_seen;
    const Word *quota_frames;  // of this process; 0: no limit
    NodeLane *nodes;           // in the same allocation
    std::byte *span;
    std::uint64_t frame_count;
    std::uint32_t frame_shift;
    std::uint32_t span_shift;
    std::uint32_t numa_nodes;
    std::uint32_t private_pattern;  // what IndexEntry::ownership() of our own, unpublished blocks is
    const std::uint8_t *dense_node_of;
    Actor actor;
    std::uint32_t restraint;  // so many more slow allocations go by without filling the cache (memory has been short)

    // False: somebody waits for memory, or has run out of it, since we last looked.
    bool undisturbed() const {
        // relaxed: whoever needs it at once does not rely on us (see waiting.cpp).
        return attention->load(std::memory_order_relaxed) == attention_seen;
    }
};

// The thread's lane of the pool that it used last; never null. initial-exec and constinit: two loads, no call.
extern constinit thread_local Lane *current_lane __attribute__((tls_model("initial-exec")));

// False: the magazine is empty. size_bytes fits the order.
[[gnu::always_inline]] inline bool take_from_cache(const Lane &lane, NodeLane &node, unsigned order,
                                                   std::size_t size_bytes, void **block) {
    Magazine &magazine = node.magazines[order];
    if (magazine.count == 0) [[unlikely]]
        return false;
    const std::uint64_t frame = magazine.frames[--magazine.count];
    // In bytes: what is cached is at most 2 MiB large (limit_of), where the unit of slack is a byte.
    store_out_of_cache(node.index[frame], magazine.granted_bytes - size_bytes);
    count(*magazine.allocations);
    *block = node.data + (frame << lane.frame_shift);
    return true;
}

// The numa node and frame of an address. False: not an address of a frame's first byte in this pool.
[[gnu::always_inline]] inline bool find_frame(const Lane &lane, const void *address, NodeLane *&node,
                                              std::uint64_t &frame) {
    const auto offset = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(address) -
                                                   reinterpret_cast<std::uintptr_t>(lane.span));
    std::uint64_t in_node = offset;
    node = lane.nodes;
    if (lane.numa_nodes != 1) {
        const std::uint64_t numa_node = offset >> lane.span_shift;
        if (numa_node >= lane.numa_nodes) [[unlikely]]
            return false;
        node += numa_node;
        in_node = offset & ((std::uint64_t{1} << lane.span_shift) - 1);
    }
    // Rotated, so that an address inside a frame becomes a number far too large.
    frame = std::rotr(in_node, static_cast<int>(lane.frame_shift));
    return frame < lane.frame_count;
}

// False: not a block that can go this way (not ours, published, too large, no room, no block at all): nothing is
// changed.
[[gnu::always_inline]] inline bool put_into_cache(const Lane &lane, const void *block) {
    NodeLane *found = nullptr;
    std::uint64_t frame = 0;
    if (!find_frame(lane, block, found, frame)) [[unlikely]]
        return false;
    NodeLane &node = *found;
    Word &slot = node.index[frame];
    const IndexEntry entry = load_for_cache(slot);
    const unsigned order = entry.order().value;
    if (!can_be_cached(entry, lane.private_pattern) || order >= kCachedOrders) [[unlikely]]
        return false;
    Magazine &magazine = node.magazines[order];
    if (magazine.count >= magazine.capacity) [[unlikely]]
        return false;
    store_into_cache(slot, entry);
    magazine.frames[magazine.count++] = frame;
    count(magazine.allocations[kFreesBeside]);
    return true;
}

}  // namespace numacre::client
