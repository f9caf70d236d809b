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
// From here on a leaf word has two blocks at most: many at a time are not cheaper than one by one. An empty magazine is
// not filled for them, nor is a full one emptied: what it has not, or has no room for, is the tree's.
inline constexpr unsigned kSingleOrder = kLeafOrder - 1;

// Blocks of one order, last in first out.
struct alignas(kCacheLineBytes) Magazine {
    std::byte **top;  // behind the one that was put in last
    std::byte **bottom;
    std::byte **limit;     // bottom: none wanted yet, or ever: the slow path decides
    Word *allocations;     // this thread's tally of the order; that of frees stands kFreesBeside words further
    IndexEntry as_owned;   // what the entry of its process's block says when it is handed out, but for generation, note
    unsigned block_shift;  // log2 of a block's bytes
    std::uint32_t slots_bound;  // PoolView::threads_in_use_bound() when the limit was set

    std::uint32_t count() const { return static_cast<std::uint32_t>(top - bottom); }
    std::uint32_t capacity() const { return static_cast<std::uint32_t>(limit - bottom); }
    bool is_empty() const { return top == bottom; }
    bool is_full() const { return top >= limit; }  // the limit may have come down since
};
inline constexpr std::size_t kFreesBeside = kMaxOrder + 1;
static_assert(offsetof(ThreadCounters<Env>, frees) - offsetof(ThreadCounters<Env>, allocations) ==
              kFreesBeside * sizeof(Word));

// Without blocks or room: what leads to it goes the other way.
inline Magazine no_magazine{};

// What call after call has been about, and all that follows from it: while it is so, a call is a comparison that is
// predicted, and its stores wait for no address. Where sizes change, no branch could be predicted (a block's order is
// known when its entry has been fetched): then none is to depend on them, until they have been the same for a while.
class Streak {
public:
    // Of a call about `what`: how often it has been the same before. No branch.
    std::uint32_t count(std::uint64_t what) {
        length_ = (length_ + 1) & -static_cast<std::uint32_t>(what == what_);
        what_ = what;
        return length_;
    }
    static constexpr std::uint32_t kLong = 16;

private:
    std::uint64_t what_ = 0;
    std::uint32_t length_ = 0;
};
struct AgainAllocated {
    std::size_t size_bytes = 0;  // 0: nothing
    Magazine *magazine = &no_magazine;
    IndexEntry entry;  // of a block of that size that is handed out now, but for its generation
};
struct AgainFreed {
    std::byte *data;  // of its numa node, as in NodeLane
    Word *index;
    Magazine *magazine;
    std::uint32_t like;  // IndexEntry::ownership_and_order(); 0: nothing
};

struct alignas(kCacheLineBytes) NodeLane {
    std::byte *data;  // first frame
    Word *index;      // of the leaf layer
    Buddy<Env> *buddy;
    ActorView<Env> self;
    AgainAllocated again;
    Streak sizes;
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
    const void *handle = this;  // the pool, which the lane keeps from being another's; itself: it is of none
    const Word *attention;
    std::uint64_t attention_seen;
    NodeLane *only;  // the pool's numa node, if it has but one; otherwise one that has no blocks
    AgainFreed again;
    std::uint64_t frame_count;
    std::uint32_t frame_shift;
    std::uint32_t span_shift;
    numacre_pool *pool;      // here as well, so that the hot path need not keep what it was called with
    const Word *regulation;  // 0: no limit is set in the pool, its blocks are not chosen, its frees not checked
    NodeLane *nodes;         // in the same allocation
    std::byte *span;
    std::uint32_t numa_nodes;
    std::uint32_t orders;           // how many orders of blocks there are
    std::uint32_t private_pattern;  // what IndexEntry::ownership() of our own, unpublished blocks is
    std::uint64_t leaf_bytes;       // of the largest block in a leaf word
    const Choices *choices;         // not in a pool of one numa node
    Actor actor;
    Note since_now;  // what a block says that is handed out now, but for its slack
    Streak freed;
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

[[gnu::always_inline]] inline std::byte *address_of(const Lane &lane, const NodeLane &node, FrameIndex frame) {
    return node.data + (frame.value << lane.frame_shift);
}
// address: of a block of this numa node.
[[gnu::always_inline]] inline FrameIndex frame_of(const Lane &lane, const NodeLane &node, const std::byte *address) {
    return FrameIndex{static_cast<std::uint64_t>(address - node.data) >> lane.frame_shift};
}

// Of the smallest block that has more frames than this. No branch: 2x + 1 has one bit more than x, and is not 0. (Said
// by std::bit_width() it is five instructions.)
[[gnu::always_inline]] inline unsigned order_above(std::uint64_t frames_less_one) {
    return 63U ^ static_cast<unsigned>(__builtin_clzll(frames_less_one << 1 | 1));
}

// size_bytes fits the magazine's order, which exists here.
[[gnu::always_inline]] inline Note note_of(const Lane &lane, const Magazine &magazine, std::size_t size_bytes) {
    return lane.since_now.for_request(size_bytes, magazine.block_shift);
}

// What an entry is to say of a block that is handed out for so many bytes now, but for its generation.
[[gnu::always_inline]] inline IndexEntry entry_for(const Lane &lane, const Magazine &magazine, std::size_t size_bytes) {
    return magazine.as_owned.with(note_of(lane, magazine, size_bytes));
}

// entry: entry_for(). False: the magazine is empty, or had something that is no cached block any more (it has gone).
[[gnu::always_inline]] inline bool take_from_cache(const Lane &lane, const NodeLane &node, Magazine &magazine,
                                                   IndexEntry entry, void **block) {
    std::byte **const above = magazine.top;
    if (above == magazine.bottom) [[unlikely]]
        return false;
    std::byte *const address = above[-1];
    magazine.top = above - 1;
    Word &slot = node.index[frame_of(lane, node, address).value];
    const IndexEntry before = load_for_cache(slot);
    if (!is_cached(before, entry)) [[unlikely]]
        return false;
    store_out_of_cache(slot, before, entry);
    *block = address;
    count(*magazine.allocations);
    return true;
}

// unlike: not what calls have been about (freed: another order or numa node, not ours, published, no block at all).
// refused: the magazine is full, or empty, or what was on top is no cached block any more (it has gone).
enum class Again : std::uint8_t { done, unlike, refused };

// From the cache, if it is what calls have been asking for.
[[gnu::always_inline]] inline Again take_again(const Lane &lane, const NodeLane &node, std::size_t size_bytes,
                                               void **block) {
    const AgainAllocated &again = node.again;
    if (size_bytes != again.size_bytes) [[unlikely]]
        return Again::unlike;
    return take_from_cache(lane, node, *again.magazine, again.entry, block) ? Again::done : Again::refused;
}

// From the magazine for any size. frames_less_one: (size_bytes - 1) in frames, less than kLeafFrames. False: as
// take_from_cache().
[[gnu::always_inline]] inline bool take_other_size(const Lane &lane, NodeLane &node, std::size_t size_bytes,
                                                   std::uint64_t frames_less_one, void **block) {
    Magazine &magazine = node.magazines[order_above(frames_less_one)];
    const IndexEntry entry = entry_for(lane, magazine, size_bytes);
    if (node.sizes.count(size_bytes) >= Streak::kLong) [[unlikely]]
        node.again = {size_bytes, &magazine, entry};
    else if (node.again.size_bytes != 0)
        node.again = {};
    return take_from_cache(lane, node, magazine, entry, block);
}

// The frame that begins so many bytes into a numa node's data. Rotated, so that the middle of a frame becomes a number
// far too large.
[[gnu::always_inline]] inline std::uint64_t frame_at(const Lane &lane, std::uint64_t offset) {
    return std::rotr(offset, static_cast<int>(lane.frame_shift));
}

// The numa node and frame of an address. False: not an address of a frame's first byte in this pool.
[[gnu::always_inline]] inline bool find_frame(const Lane &lane, const void *address, NodeLane *&node,
                                              std::uint64_t &frame) {
    const auto offset = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(address) -
                                                   reinterpret_cast<std::uintptr_t>(lane.span));
    std::uint64_t in_node = offset;
    node = lane.nodes;
    if (lane.numa_nodes > 1) {
        const std::uint64_t numa_node = offset >> lane.span_shift;
        if (numa_node >= lane.numa_nodes) [[unlikely]]
            return false;
        node += numa_node;
        in_node = offset & ((std::uint64_t{1} << lane.span_shift) - 1);
    }
    frame = frame_at(lane, in_node);
    return frame < lane.frame_count;
}

// entry: of a block that is its process's own, unpublished, of the magazine's order. False: there is no room.
[[gnu::always_inline]] inline bool put(Magazine &magazine, void *block, Word &slot, IndexEntry entry) {
    if (magazine.is_full()) [[unlikely]]
        return false;
    *magazine.top++ = static_cast<std::byte *>(block);
    store_into_cache(slot, entry);
    count(magazine.allocations[kFreesBeside]);
    return true;
}

// A block as they have been.
[[gnu::always_inline]] inline Again put_again(const Lane &lane, void *block) {
    const AgainFreed &again = lane.again;
    const auto in_node = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(block) -
                                                    reinterpret_cast<std::uintptr_t>(again.data));
    const std::uint64_t frame = frame_at(lane, in_node);
    if (frame >= lane.frame_count) [[unlikely]]
        return Again::unlike;
    Word &slot = again.index[frame];
    const IndexEntry entry = load_for_cache(slot);
    if (entry.ownership_and_order() != again.like) [[unlikely]]
        return Again::unlike;
    return put(*again.magazine, block, slot, entry) ? Again::done : Again::refused;
}

// Any block. False: not one that can go this way (not ours, published, too large, no room, no block at all): nothing is
// changed.
inline bool put_other(Lane &lane, void *block) {
    NodeLane *node = nullptr;
    std::uint64_t frame = 0;
    if (!find_frame(lane, block, node, frame)) return false;
    Word &slot = node->index[frame];
    const IndexEntry entry = load_for_cache(slot);
    const unsigned order = entry.order().value;
    if (!can_be_cached(entry, lane.private_pattern) || order >= kCachedOrders) return false;
    Magazine &magazine = node->magazines[order];
    const std::uint32_t like = entry.ownership_and_order();
    if (lane.freed.count(like) >= Streak::kLong) [[unlikely]]
        lane.again = {node->data, node->index, &magazine, like};
    else if (lane.again.like != 0)
        lane.again = {node->data, node->index, &no_magazine, 0};
    return put(magazine, block, slot, entry);
}

}  // namespace numacre::client
