// A lane: the state of one thread in one pool, in private memory. It has all that the thread's hot path needs, and the
// thread's cache of blocks. numacre/inline.h has the fields that are read while calls are about one size, and the steps
// on them: programs compile these steps, too.
//
// A cached block still belongs to its process (IndexEntry: cached), so recovery gives it back after a death like any
// other block. Plain stores put blocks in and take them out: an entry that is not published is written by its own
// process only. The cost of plain stores: a block that two threads of one process free in the very same moment may be
// put into both caches. If one of the threads gives the block back before the other has stored, the block may even be
// taken from its next owner (shm/README.md, No CAS). With NUMACRE_CHECK_FREES in the environment no block is cached,
// and a CAS decides.
//
// Other processes may take cached blocks back while the thread is outside of these steps (shm/idle_caches.hpp). So each
// use of a magazine is between entered_lane() and leave_cache(), or in the scope of a CacheSteps.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "engine.hpp"
#include "nearest.hpp"
#include "numacre/inline.h"
#include "numacre/shm/buddy.hpp"
#include "numacre/shm/cached_block.h"
#include "numacre/shm/counters.hpp"
#include "policy.hpp"

struct numacre_pool;

namespace numacre::client {

using Env = ProductionEnv;
using Word = Env::Atomic<std::uint64_t>;

inline constexpr std::uint32_t kMagazineBlocks = 1024;
inline constexpr unsigned kCachedOrders = kLeafOrder + 1;  // blocks of leaf words
// From this order on a leaf word has two blocks at most: moving many at a time is not cheaper than one by one. For
// these orders an empty magazine is not filled and a full one is not emptied: the tree serves a block that the magazine
// lacks or has no room for.
inline constexpr unsigned kSingleOrder = kLeafOrder - 1;

// The constants of the C steps match the layout of shared memory.
static_assert(NUMACRE_INLINE_OURS == IndexEntry{~std::uint64_t{0}}.ownership_and_order());
static_assert((IndexEntry::owned(ProcessSlot{1}, Order{1}, 1, {}).bits() | NUMACRE_INLINE_CACHED |
               std::uint64_t{7} << NUMACRE_INLINE_THREAD_SHIFT) ==
              IndexEntry::cached(ProcessSlot{1}, ThreadSlotIndex{7}, Order{1}, 1).bits());
static_assert((IndexEntry::owned({}, {}, 0, {}).bits() | NUMACRE_INLINE_GENERATION) ==
              IndexEntry::owned({}, {}, kGenerationMax, {}).bits());
static_assert(offsetof(ThreadCounters<Env>, frees) - offsetof(ThreadCounters<Env>, allocations) ==
              NUMACRE_INLINE_FREES_BESIDE * sizeof(Word));
static_assert(sizeof(Word) == sizeof(std::uint64_t) && alignof(Word) == alignof(std::uint64_t));
// All these values are compiled into programs. A change of one of them needs a numacre_inline_lane_3, and leaves
// numacre_inline_lane_2 without blocks; otherwise old programs write to arbitrary places of shared memory.
static_assert(NUMACRE_INLINE_OURS == 0xffffff && NUMACRE_INLINE_CACHED == 2 &&
              NUMACRE_INLINE_GENERATION == 0x7ffff000000 && NUMACRE_INLINE_FREES_BESIDE == 25);
static_assert(offsetof(numacre_inline_magazine, top) == 0 && offsetof(numacre_inline_magazine, bottom) == 8 &&
              offsetof(numacre_inline_magazine, limit) == 16 && offsetof(numacre_inline_magazine, allocations) == 24);
static_assert(offsetof(numacre_inline_node, data) == 0 && offsetof(numacre_inline_node, index) == 8 &&
              offsetof(numacre_inline_node, asked_bytes) == 16 && offsetof(numacre_inline_node, asked_magazine) == 24 &&
              offsetof(numacre_inline_node, asked) == 32 && offsetof(numacre_inline_wish, entry) == 0 &&
              offsetof(numacre_inline_wish, change) == 8);
static_assert(offsetof(numacre_inline_lane, handle) == 0 && offsetof(numacre_inline_lane, attention) == 8 &&
              offsetof(numacre_inline_lane, attention_seen) == 16 && offsetof(numacre_inline_lane, inside) == 24 &&
              offsetof(numacre_inline_lane, only) == 32 && offsetof(numacre_inline_lane, freed_data) == 40 &&
              offsetof(numacre_inline_lane, freed_index) == 48 && offsetof(numacre_inline_lane, freed_magazine) == 56 &&
              offsetof(numacre_inline_lane, freed_like) == 64 && offsetof(numacre_inline_lane, frame_count) == 72 &&
              offsetof(numacre_inline_lane, frame_shift) == 80 &&
              offsetof(numacre_inline_lane, cached_without_note) == 88 &&
              offsetof(numacre_inline_lane, cached_mark) == 96 &&
              offsetof(numacre_inline_lane, all_but_generation) == 104);
static_assert(NUMACRE_INLINE_THREAD_SHIFT == 43);

inline std::uint64_t *bits_of(Word &word) {
    return reinterpret_cast<std::uint64_t *>(&word);
}

struct alignas(kCacheLineBytes) Magazine : numacre_inline_magazine {
    IndexEntry as_owned;        // the entry of a block that is handed out, without generation and note
    unsigned block_shift;       // log2 of a block's bytes
    std::uint32_t slots_bound;  // PoolView::threads_in_use_bound() when the limit was set

    std::uint32_t count() const { return static_cast<std::uint32_t>(top - bottom); }
    std::uint32_t capacity() const { return static_cast<std::uint32_t>(limit - bottom); }
    bool is_empty() const { return top == bottom; }
    bool is_full() const { return top >= limit; }  // the limit may have come down since
};

// A magazine without blocks or room: calls that reach it take the longer path.
inline Magazine no_magazine{};

// Counts how often successive calls were about the same value (size or order). Where sizes change, no branch on them
// could be predicted (a block's order is known only when its entry has been fetched). So no branch depends on sizes
// until they have been the same for a while.
class Streak {
public:
    // Notes a call about `what`. Returns how many calls in a row before it were about the same value. No branch.
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
struct alignas(kCacheLineBytes) NodeLane : numacre_inline_node {
    Buddy<Env> *buddy;
    ActorView<Env> self;
    Streak sizes;
    // The free frames at the last walk over the whole numa node, and its time (monotonic; 0: no walk yet).
    std::uint64_t free_frames_seen;
    std::uint64_t looked_at_ns;
    Magazine magazines[kCachedOrders];

    void allocates(std::size_t size, Magazine &from, numacre_inline_wish wish) {
        asked_bytes = size;
        asked_magazine = &from;
        asked = wish;
    }
    void allocates_nothing() { allocates(0, no_magazine, {}); }
};

// Maps each numa node of the machine to the pool's numa node that serves a thread there; the hot path looks it up. The
// value `numa_nodes` means: take the slow path. A lane's node of that index has no blocks.
struct Choices {
    std::atomic<std::uint8_t> of[kMaxOsNumaNodes];
};

// The thread's placement at its last look (policy.cpp). Not used in pools of one numa node.
struct Placement {
    Policy policy;  // of calls that bring none
    std::uint64_t allowed = 0;
    std::uint64_t looked_at_ns = 0;  // by the coarse monotonic clock
    std::uint32_t policy_version = 0;
    std::uint32_t os_node = 0;
    Turns turns;
};

struct alignas(kCacheLineBytes) Lane : numacre_inline_lane {
    std::uint32_t span_shift;
    NodeLane *freed_node;    // the node of freed_data and freed_index
    numacre_pool *pool;      // equal to handle, so that the hot path need not keep its argument
    const Word *regulation;  // 0: the pool has no limits, chooses no blocks and checks no frees
    NodeLane *nodes;         // in the same mapping as the lane
    std::byte *span;
    std::uint32_t numa_nodes;
    // numa_nodes, if the offset of a frame is a shift of its number; else 0, and the inlined steps find no block.
    std::uint32_t shifting_nodes;
    FrameScale scale;
    std::uint64_t node_frames;      // of a numa node
    std::uint32_t private_pattern;  // IndexEntry::ownership() of this process's unpublished blocks
    std::uint64_t leaf_bytes;       // of the largest block in a leaf word
    std::uint64_t largest_bytes;    // of the largest block
    const Choices *choices;         // null in a pool of one numa node
    Actor actor;
    HoldWords<Env> *holds;  // the blocks that the thread reads
    Note since_now;         // the note of a block that is handed out now, without its slack
    Streak freed;
    ReferenceFormat reference_format;
    std::uint64_t looks;        // selects the chunks that a FitLook reads next
    std::uint64_t asked_at_ns;  // time when the thread, at a limit, last asked others for their caches; 0: never
    bool asking_helps;          // the last time it had room then
    std::uint64_t walked_seen;  // the last walk over idle caches that the thread knows of
    std::uint32_t restraint;    // number of further slow allocations that do not fill the cache (memory was short)
    bool is_asleep;             // asleep in wait_for_block(); for signal handlers of the thread
    Placement placement;

    NodeLane &only_node() const { return static_cast<NodeLane &>(*only); }
    const Word &attention_word() const { return *reinterpret_cast<const Word *>(attention); }
    bool undisturbed() const { return numacre_inline_is_undisturbed(this) != 0; }

    // like: IndexEntry::ownership_and_order(); 0: nothing
    void frees(NodeLane &node, Magazine &into, std::uint64_t like) {
        freed_node = &node;
        freed_data = node.data;
        freed_index = node.index;
        freed_magazine = &into;
        freed_like = like;
    }
    void frees_nothing(NodeLane &node) { frees(node, no_magazine, 0); }
};

// --- a thread that is inside -----------------------------------------------------------------------------------------
// A thread has one intent, which records the thread's current change of the tree. A signal handler that began another
// change in the middle of that one would overwrite the intent, and if the process were killed then, recovery would lose
// a block. So the handler's call returns -EBUSY, before it has done anything. Both run in one thread: no memory order
// is needed, and no compiler moves the store of an intent behind the RMW that follows it.

[[gnu::always_inline]] inline bool is_inside(const NodeLane &node) {
    return node.self.slot->intent.load(std::memory_order_relaxed) != 0;  // relaxed: only this thread writes it
}

// For a free, which a handler may make on a pool that the interrupted call is using. A thread may be in the middle of
// its work between two changes of the tree as well: the handler's free would overwrite the announcement that hints are
// too low for a moment.
[[gnu::always_inline]] inline bool is_inside_or_changes_hints(const NodeLane &node) {
    const auto &slot = *node.self.slot;
    return (slot.intent.load(std::memory_order_relaxed) |
            HintWork{slot.hint_work.load(std::memory_order_relaxed)}.active()) != 0;  // relaxed: as above
}

// --- steps of the hot path -------------------------------------------------------------------------------------------

// The calling thread's lane, if this is the pool that the thread used last. nullptr otherwise: numacre_inline_lane_2
// may then point to an object that is no Lane.
[[gnu::always_inline]] inline Lane *current_lane(const numacre_pool *pool) {
    numacre_inline_lane *const current = numacre_inline_lane_2;
    return current->handle == pool ? static_cast<Lane *>(current) : nullptr;
}
// Like current_lane(), but nullptr also if the pool wants attention first.
[[gnu::always_inline]] inline Lane *undisturbed_lane(const numacre_pool *pool) {
    Lane *const lane = current_lane(pool);
    return lane != nullptr && lane->undisturbed() ? lane : nullptr;
}
// Like undisturbed_lane(), and begins the steps on the thread's cache: the caller calls leave_cache() behind them.
// inside: a copy of the lane's. The compiler would read the lane's again.
[[gnu::always_inline]] inline Lane *entered_lane(const numacre_pool *pool, std::uint64_t *&inside) {
    numacre_inline_lane *const current = numacre_inline_lane_2;
    return numacre_inline_enter(current, pool, &inside) != 0 ? static_cast<Lane *>(current) : nullptr;
}
[[gnu::always_inline]] inline void leave_cache(const Lane &lane) {
    numacre_inline_end(lane.inside);
}

// The steps on the thread's cache off the common path. False: somebody has asked for cached blocks since the thread
// last answered, so that the cache may not be used before the next answer.
class CacheSteps {
public:
    explicit CacheSteps(const Lane &lane) : lane_(lane) {
        numacre_inline_begin(lane.inside);
        // relaxed: as numacre_inline_begin() says.
        const std::uint64_t now = lane.attention_word().load(std::memory_order_relaxed);
        may_go_on_ = Attention::requests(now ^ lane.attention_seen) == 0;
    }
    ~CacheSteps() { leave_cache(lane_); }
    CacheSteps(const CacheSteps &) = delete;
    CacheSteps &operator=(const CacheSteps &) = delete;
    explicit operator bool() const { return may_go_on_; }

private:
    const Lane &lane_;
    bool may_go_on_;
};

[[gnu::always_inline]] inline char *address_of(const Lane &lane, const NodeLane &node, FrameIndex frame) {
    return node.data + lane.scale.offset(frame.value);
}
// address: the address of a block of this numa node.
[[gnu::always_inline]] inline FrameIndex frame_of(const Lane &lane, const NodeLane &node, const char *address) {
    return FrameIndex{lane.scale.frame(static_cast<std::uint64_t>(address - node.data))};
}

// As FrameScale, where frames have a size of a power of two: without the multiplication.
struct ShiftScale {
    std::uint64_t shift;
    std::uint64_t frame(std::uint64_t offset) const { return numacre_inline_frame_at(shift, offset); }
};
// Calls `steps` with the lane's scale. Each kind of scale gets steps of its own: bursts are too short for a branch in
// each of them.
template <class Steps>
[[gnu::always_inline]] inline unsigned with_scale(const Lane &lane, const Steps &steps) {
    return lane.shifting_nodes != 0 ? steps(ShiftScale{lane.frame_shift}) : steps(lane.scale);
}

// The order of the smallest block that has more frames than `frames_less_one`. No branch: 2x + 1 has one bit more than
// x, and is not 0. (std::bit_width() takes five instructions.)
// The result is 64 bits wide, as an index is: a narrower result would be extended twice.
[[gnu::always_inline]] inline std::uint64_t order_above(std::uint64_t frames_less_one) {
    return 63U ^ static_cast<std::uint64_t>(__builtin_clzll(frames_less_one << 1 | 1));
}

// size_bytes fits the magazine's order, which exists here.
[[gnu::always_inline]] inline Note note_of(const Lane &lane, const Magazine &magazine, std::size_t size_bytes) {
    return lane.since_now.for_request(size_bytes, magazine.block_shift);
}

// The entry of a cached block that is handed out for `size_bytes` now. It has a note where that of a cached block has a
// mark.
[[gnu::always_inline]] inline numacre_inline_wish wish_for(const Lane &lane, const Magazine &magazine,
                                                           std::size_t size_bytes) {
    const Note note = note_of(lane, magazine, size_bytes);
    return {magazine.as_owned.with(note).bits(), note.bits() ^ lane.cached_mark};
}

// wish_for() of a block that is published when it comes out of the cache. A plain store publishes it: nobody has a name
// with its present generation. (The block got that generation when it was claimed for the cache, or when it was
// withdrawn before it went in.)
[[gnu::always_inline]] inline numacre_inline_wish published_wish_for(const Lane &lane, const Magazine &magazine,
                                                                     std::size_t size_bytes) {
    const numacre_inline_wish wish = wish_for(lane, magazine, size_bytes);
    return {IndexEntry{wish.entry}.published().bits(), IndexEntry{wish.change}.published().bits()};
}

// Takes up to `wanted` blocks at once; stops at a block that is not cached any more. hand_out(number, address,
// frame, slot, now) stores the block's new entry `now` and the block's address. Values common to all blocks are loaded
// once, into registers: for the compiler a store to the index might change any other memory.
template <class Scale, class HandOut>
[[gnu::always_inline]] inline unsigned cached_take_many(const Scale scale, const Lane &lane, const NodeLane &node,
                                                        Magazine &magazine, const numacre_inline_wish &wish,
                                                        unsigned wanted, const HandOut &hand_out) {
    char *const data = node.data;
    std::uint64_t *const index = node.index;
    const std::uint64_t owned = wish.entry;
    const std::uint64_t change = wish.change;
    const std::uint64_t all_but_generation = lane.all_but_generation;
    char **top = magazine.top;
    const std::uint32_t count = magazine.count();
    const unsigned most = wanted < count ? wanted : count;
    unsigned got = 0;
    while (got < most) {
        char *const address = *--top;
        const std::uint64_t frame = scale.frame(static_cast<std::uint64_t>(address - data));
        std::uint64_t *const slot = index + frame;
        const std::uint64_t now = numacre_inline_handed_out(numacre_inline_entry(slot), change);
        if (numacre_inline_is_as_wanted(now, owned, all_but_generation) == 0) [[unlikely]]
            break;
        hand_out(got++, address, FrameIndex{frame}, slot, now);
    }
    magazine.top = top;
    numacre_inline_count(magazine.allocations, got);
    return got;
}
// ... into an array.
template <class Scale>
[[gnu::always_inline]] inline unsigned cached_take_many(const Scale scale, const Lane &lane, const NodeLane &node,
                                                        Magazine &magazine, const numacre_inline_wish &wish,
                                                        void **blocks, unsigned wanted) {
    return cached_take_many(
        scale, lane, node, magazine, wish, wanted,
        [blocks](unsigned number, char *address, FrameIndex, std::uint64_t *slot, std::uint64_t now) {
            numacre_inline_out_of_cache(slot, now);
            blocks[number] = address;
        });
}

// wish: wish_for(). False: the magazine is empty, or its top block was not a cached block any more (that block is
// removed).
[[gnu::always_inline]] inline bool cached_take(const Lane &lane, const NodeLane &node, Magazine &magazine,
                                               const numacre_inline_wish &wish, void **block) {
    return cached_take_many(lane.scale, lane, node, magazine, wish, block, 1) != 0;
}

// Takes a block of any size from its magazine; not in an object pool. frames_less_one: (size_bytes - 1) in frames, less
// than kLeafFrames. False: as cached_take().
[[gnu::always_inline]] inline bool cached_take_other_size(const Lane &lane, NodeLane &node, std::size_t size_bytes,
                                                          std::uint64_t frames_less_one, void **block) {
    Magazine &magazine = node.magazines[order_above(frames_less_one)];
    const numacre_inline_wish wish = wish_for(lane, magazine, size_bytes);
    if (node.sizes.count(size_bytes) >= Streak::kLong) [[unlikely]]
        node.allocates(size_bytes, magazine, wish);
    else if (node.asked_bytes != 0)
        node.allocates_nothing();
    return numacre_inline_take(&lane, &node, &magazine, &wish, block) != 0;
}

// Finds the numa node and frame of an address. False: the address is not that of a frame's first byte in this pool.
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
    frame = lane.scale.frame(in_node);
    return frame < lane.node_frames;
}

// The entry in the leaf layer for the frame where a block begins.
struct LeafEntry {
    NodeLane *node = nullptr;
    std::uint64_t *slot = nullptr;
    IndexEntry entry;

    FrameIndex frame() const { return FrameIndex{static_cast<std::uint64_t>(slot - node->index)}; }
};
// False: the address is no frame of the pool.
[[gnu::always_inline]] inline bool look_up(const Lane &lane, const void *block, LeafEntry &found) {
    std::uint64_t frame = 0;
    if (!find_frame(lane, block, found.node, frame)) return false;
    found.slot = &found.node->index[frame];
    found.entry = IndexEntry{numacre_inline_entry(found.slot)};
    return true;
}

// Puts a block of any order into its magazine. False: the block cannot be cached (not ours, published, too large, no
// room, no block at all), and nothing is changed.
[[gnu::always_inline]] inline bool cached_put_same_node(Lane &lane, const LeafEntry &found, void *block) {
    NodeLane &node = *found.node;
    const unsigned order = found.entry.order().value;
    if (!found.entry.is_private(lane.private_pattern) || order >= kCachedOrders) return false;
    Magazine &magazine = node.magazines[order];
    const std::uint64_t like = found.entry.ownership_and_order();
    if (lane.freed.count(like) >= Streak::kLong) [[unlikely]]
        lane.frees(node, magazine, like);
    else if (lane.freed_like != 0)
        lane.frees_nothing(node);
    return numacre_inline_put(&lane, &magazine, block, found.slot, found.entry.bits()) != 0;
}
// Like cached_put_same_node(), for a block of any numa node. That numa node becomes the one of the next frees.
[[gnu::always_inline]] inline bool cached_put_found(Lane &lane, const LeafEntry &found, void *block) {
    if (found.node != lane.freed_node) [[unlikely]]
        lane.frees_nothing(*found.node);
    return cached_put_same_node(lane, found, block);
}

// cached_put_found() off the common path, in CacheSteps of its own. found: the block's entry, if it has been looked up.
inline bool slow_put(Lane &lane, void *block, LeafEntry &found) {
    const CacheSteps steps{lane};
    return steps && look_up(lane, block, found) && cached_put_found(lane, found, block);
}

// Puts blocks into the cache until one is unlike those of the last frees. Returns the number of blocks put. These are
// the steps of numacre_inline_look_up() and numacre_inline_put(), written out for the same reason as in
// cached_take_many().
template <class Scale>
[[gnu::always_inline]] inline unsigned cached_put_many(const Scale scale, const Lane &lane, void *const *blocks,
                                                       unsigned count) {
    numacre_inline_magazine &magazine = *lane.freed_magazine;
    if (magazine.top >= magazine.limit) return 0;  // the limit may have come down since
    char *const data = lane.freed_data;
    std::uint64_t *const index = lane.freed_index;
    const std::uint64_t like = lane.freed_like;
    const std::uint64_t without_note = lane.cached_without_note;
    const std::uint64_t mark = lane.cached_mark;
    const std::uint64_t frame_count = lane.node_frames;
    char **const top = magazine.top;
    const auto room = static_cast<std::uint64_t>(magazine.limit - top);
    const unsigned most = count < room ? count : static_cast<unsigned>(room);
    unsigned put = 0;
    while (put < most) {
        char *const address = static_cast<char *>(blocks[put]);
        const std::uint64_t frame =
            scale.frame(reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(data));
        if (frame >= frame_count) [[unlikely]]
            break;
        const std::uint64_t entry = numacre_inline_entry(index + frame);
        if (numacre_inline_is_like(entry, like) == 0) [[unlikely]]
            break;
        numacre_inline_into_cache(index + frame, entry, without_note, mark);
        top[put++] = address;
    }
    magazine.top = top + put;
    numacre_inline_count(magazine.allocations + NUMACRE_INLINE_FREES_BESIDE, put);
    return put;
}

}  // namespace numacre::client
