// One thread's way into one pool: all that its hot path needs, in private memory, and its cache of blocks.
//
// A cached block stays its process's (IndexEntry: cached), so a death gives it back like any other. Blocks go in and
// out by plain stores: an entry that is not published is written by its own process only. What that costs: a block that
// two threads of one process free in the very same moment may be put into both caches, and if one of them gives it back
// before the other has stored, it may even be taken from its next owner (shm/README.md, No CAS). With
// NUMACRE_CHECK_FREES in the environment nothing is cached, and a CAS decides.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "nearest.hpp"
#include "numacre/shm/buddy.hpp"
#include "numacre/shm/cached_block.hpp"
#include "numacre/shm/counters.hpp"
#include "policy.hpp"

struct numacre_pool;

namespace numacre::client {

using Env = ProductionEnv;
using Word = Env::Atomic<std::uint64_t>;

inline constexpr std::uint32_t kMagazineBlocks = 1024;
inline constexpr unsigned kCachedOrders = kLeafOrder + 1;  // blocks of leaf words

// Blocks of one order, last in first out.
struct Magazine {
    std::uint64_t *frames;  // where they begin
    std::uint32_t count;
    std::uint32_t capacity;       // 0: none wanted yet, or ever: the slow path decides
    Word *allocations;            // this thread's tally of the order; that of frees stands kFreesBeside words further
    std::uint64_t granted_bytes;  // 0: no order of leaf blocks here
    unsigned block_shift;         // its logarithm
};
inline constexpr std::size_t kFreesBeside = kMaxOrder + 1;
static_assert(offsetof(ThreadCounters<Env>, frees) - offsetof(ThreadCounters<Env>, allocations) ==
              kFreesBeside * sizeof(Word));

// The magazine that was used last, and what led to it. A branch that compares is predicted; an address computed from
// what a block's entry says would make each call wait for the one before (its stores have to be known first).
struct RecentMagazine {
    static constexpr std::uint64_t kNothing = ~std::uint64_t{0};
    std::uint64_t key = kNothing;
    Magazine *magazine = nullptr;
};

struct alignas(kCacheLineBytes) NodeLane {
    std::byte *data;  // first frame
    Word *index;      // of the leaf layer
    Buddy<Env> *buddy;
    ActorView<Env> self;
    RecentMagazine allocated;  // key: the size in frames, less one
    RecentMagazine freed;      // key: IndexEntry::ownership_and_order()
    // What the last look at the whole numa node found, and when (monotonic; 0: never looked).
    std::uint64_t free_frames_seen;
    std::uint64_t looked_at_ns;
    Magazine magazines[kCachedOrders];
};

// Which numa node of the pool a thread on each of the machine's takes its blocks from, as the hot path looks it up. The
// pool's number of numa nodes stands for "that has to be thought about": as a lane's node it is one that has no blocks.
struct Choices {
    std::atomic<std::uint8_t> of[kMaxOsNumaNodes];
};

// Where the thread's blocks are to come from, when it was last looked at (policy.cpp). In pools of one numa node nobody
// looks.
struct Placement {
    Policy policy;  // of calls that bring none
    std::uint64_t allowed = 0;
    std::uint64_t looked_at_ns = 0;  // by the coarse monotonic clock
    std::uint32_t policy_version = 0;
    std::uint32_t os_node = 0;
    Turns turns;
};

struct alignas(kCacheLineBytes) Lane {
    std::uint64_t serial;  // of the pool; 0: no pool's
    numacre_pool *pool;    // here as well, so that the hot path need not keep what it was called with
    const Word *attention;
    std::uint64_t attention_seen;
    const Word *regulation;  // 0: no limit is set in the pool, its blocks are not chosen, its frees not checked
    NodeLane *nodes;         // in the same allocation
    std::byte *span;
    std::uint64_t frame_count;
    std::uint32_t frame_shift;
    std::uint32_t span_shift;
    std::uint32_t numa_nodes;
    std::uint32_t orders;           // how many orders of blocks there are
    std::uint32_t leaf_orders;      // ... of those in leaf words: kCachedOrders at most
    std::uint32_t private_pattern;  // what IndexEntry::ownership() of our own, unpublished blocks is
    std::uint32_t cached_pattern;   // ... of blocks in our caches
    const Choices *choices;         // not in a pool of one numa node
    Actor actor;
    Note since_now;             // what a block says that is handed out now, but for its slack
    std::uint64_t looks;        // which chunks a FitLook reads next
    std::uint64_t asked_at_ns;  // when it last asked others for what they cache, being at a limit; 0: never
    std::uint32_t restraint;    // so many more slow allocations go by without filling the cache (memory has been short)
    Placement placement;

    // False: somebody waits for memory, or has run out of it, since we last looked; or the pool is older, or closed.
    bool undisturbed() const {
        // relaxed: whoever needs it at once does not rely on us (see waiting.cpp).
        return attention->load(std::memory_order_relaxed) == attention_seen;
    }
};

// The thread's lane of the pool that it used last; never null. initial-exec and constinit: two loads, no call.
extern constinit thread_local Lane *current_lane __attribute__((tls_model("initial-exec")));

[[gnu::always_inline]] inline void *address_of(const Lane &lane, const NodeLane &node, FrameIndex frame) {
    return node.data + (frame.value << lane.frame_shift);
}

// The magazine for blocks of this size; nullptr if that is no block of a leaf word, or if the size is 0.
[[gnu::always_inline]] inline Magazine *magazine_for(const Lane &lane, NodeLane &node, std::size_t size_bytes) {
    const std::uint64_t frames_less_one = (size_bytes - 1) >> lane.frame_shift;  // of size 0: far too large
    if (frames_less_one != node.allocated.key) [[unlikely]] {
        if (frames_less_one >= kLeafFrames) return nullptr;
        node.allocated = {frames_less_one, &node.magazines[std::bit_width(frames_less_one)]};
    }
    if (node.allocated.magazine == nullptr) __builtin_unreachable();  // there is none only where there is no key
    return node.allocated.magazine;
}

// size_bytes fits the magazine's order, which exists here.
[[gnu::always_inline]] inline Note note_of(const Lane &lane, const Magazine &magazine, std::size_t size_bytes) {
    return lane.since_now.with_slack(magazine.granted_bytes - size_bytes, magazine.block_shift);
}

// False: the magazine is empty, or had something that is no cached block any more (it has gone). size_bytes fits its
// order.
[[gnu::always_inline]] inline bool take_from_cache(const Lane &lane, const NodeLane &node, Magazine &magazine,
                                                   std::size_t size_bytes, void **block) {
    const std::uint32_t count_before = magazine.count;
    if (count_before == 0) [[unlikely]]
        return false;
    const FrameIndex frame{magazine.frames[count_before - 1]};
    magazine.count = count_before - 1;
    Word &slot = node.index[frame.value];
    const IndexEntry entry = load_for_cache(slot);
    if (!is_cached(entry, lane.cached_pattern)) [[unlikely]]
        return false;
    store_out_of_cache(slot, entry, note_of(lane, magazine, size_bytes));
    *block = address_of(lane, node, frame);
    count(*magazine.allocations);
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
    Word &slot = found->index[frame];
    const IndexEntry entry = load_for_cache(slot);
    if (entry.ownership_and_order() != found->freed.key) [[unlikely]] {
        const unsigned order = entry.order().value;
        if (!can_be_cached(entry, lane.private_pattern) || order >= kCachedOrders) return false;
        found->freed = {entry.ownership_and_order(), &found->magazines[order]};
    }
    Magazine &magazine = *found->freed.magazine;
    const std::uint32_t count_before = magazine.count;
    if (count_before >= magazine.capacity) [[unlikely]]
        return false;
    magazine.frames[count_before] = frame;
    magazine.count = count_before + 1;
    store_into_cache(slot, entry);
    count(magazine.allocations[kFreesBeside]);
    return true;
}

}  // namespace numacre::client
