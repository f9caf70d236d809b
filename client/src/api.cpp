// The data path of the C ABI: allocate, free, take, and what one can ask of a block.
//
// A function's name says at which tier it begins; each tier falls through to the next one:
//   cached_  the thread's own magazines (lane.hpp), by plain stores
//   tree_    the shared tree, by the short ways of the lane: no limits, no signal handler inside a call
//   slow_    whatever a call can ask for: placement, limits, waiting, what the pool wants attention for
#include <cstdio>
#include <cstring>

#include "cache.hpp"
#include "engine.hpp"
#include "errors.hpp"
#include "numacre/shm/counters.hpp"
#include "numacre/shm/walk.hpp"
#include "pool.hpp"
#include "record.hpp"
#include "struct_size.hpp"

using namespace numacre;
using namespace numacre::client;

namespace {

constexpr unsigned kWaitShift = 8;
constexpr unsigned kPlaceFlags = NUMACRE_STRICT | NUMACRE_INTERLEAVE | NUMACRE_LOCAL;
constexpr unsigned kKnownFlags = kPlaceFlags | NUMACRE_ZERO | NUMACRE_UNCACHED | NUMACRE_WAIT | NUMACRE_COMPACT;

using ShortPath = Buddy<Env>::ShortPath;

struct Place {
    std::uint32_t numa_node;
    FrameIndex frame;
};

void *address_of(numacre_pool *pool, std::uint32_t numa_node, Block block) {
    return pool->nodes[numa_node].data + (block.base.value << pool->geometry.frame_shift);
}

// False: not an address of a frame's first byte in this pool.
inline bool locate(const numacre_pool *pool, const void *address, Place &place) {
    const std::uint64_t offset =
        reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(pool->span);
    if (offset >= pool->span_bytes) return false;
    place.numa_node = static_cast<std::uint32_t>(offset >> pool->span_shift);
    const std::uint64_t in_node = offset & ((std::uint64_t{1} << pool->span_shift) - 1);
    place.frame = FrameIndex{in_node >> pool->geometry.frame_shift};
    return in_node < pool->data_bytes && (in_node & (pool->geometry.frame_bytes() - 1)) == 0;
}

ThreadCounters<Env> &counters_of(numacre_pool *pool, std::uint32_t numa_node, Actor actor) {
    return pool->nodes[numa_node].buddy().view().counters[actor.thread.value];
}

void count_failure(numacre_pool *pool, std::uint32_t numa_node, Actor actor, FailureReason reason) {
    count(counters_of(pool, numa_node, actor).failures[static_cast<unsigned>(reason)]);
}

// Is there enough free memory, only not in one piece? That is a look at the metadata of the whole numa node, 100 ms for
// 64 GiB of frames: not for each of many failures in a row.
struct FreeFrames {
    std::uint64_t frames = 0;
    void owned(Block, IndexEntry) {}
    void free(Block block) { frames += block.order.frames(); }
    void taken(FrameIndex, std::uint64_t) {}
    void offline(Block) {}
    void damaged(Block) {}
};
constexpr std::uint64_t kLookAgainAfterNanoseconds = 1'000'000'000;

FailureReason why_not(NodeLane &node, Order order) {
    if (order.value == 0) return FailureReason::out_of_frames;  // one frame is never fragmented
    const std::uint64_t now = now_nanoseconds();
    if (node.looked_at_ns == 0 || now - node.looked_at_ns >= kLookAgainAfterNanoseconds) {
        FreeFrames scan;
        walk_all(node.buddy->view(), scan);
        node.free_frames_seen = scan.frames;
        node.looked_at_ns = now;
    }
    return node.free_frames_seen >= order.frames() ? FailureReason::fragmented : FailureReason::out_of_frames;
}

// One attempt, as the plan has it.
Errc slow_try_planned(numacre_pool *pool, Actor actor, const Plan &plan, Order order, Note note, std::uint32_t &got,
                      Block &block) {
    if (pool->nodes[plan.first].buddy().allocate(actor, order, note, block) == Errc::ok) [[likely]] {
        got = plan.first;
        return Errc::ok;
    }
    const bool found = plan.any_other(pool->numa_nodes, [&](std::uint32_t other) {
        if (pool->nodes[other].buddy().allocate(actor, order, note, block) != Errc::ok) return false;
        got = other;
        return true;
    });
    return found ? Errc::ok : Errc::out_of_frames;
}

// Not where the thread happens to be. False: others were quicker each time, or nothing was seen.
[[gnu::cold]] bool slow_allocate_by_fit(Lane &lane, NodeLane &node, Fit fit, Order order, Note note, Block &block) {
    constexpr int kTries = 3;
    for (int i = 0; i < kTries; ++i)
        if (!FitLook{node.buddy->view(), order, fit}.find(++lane.looks, block))
            return false;
        else if (node.buddy->allocate_at(lane.actor, block, note))
            return true;
    return false;
}

// Nothing is free: perhaps what we or others keep in caches would do.
[[gnu::cold]] Errc slow_allocate_under_pressure(numacre_pool *pool, Lane &lane, const Plan &plan, Order order,
                                                Note note, std::uint32_t &got, Block &block) {
    // A wait that a handler left may have been given a block since.
    const bool has_forgotten = forget_wish(pool, lane);
    if ((give_back_all(pool, lane) != 0 || has_forgotten) &&
        slow_try_planned(pool, lane.actor, plan, order, note, got, block) == Errc::ok)
        return Errc::ok;
    ask_others_to_give_back(pool, lane);
    return Errc::out_of_frames;
}

// A limit is in the way: perhaps what we or others keep in caches would do. over_quota, or out_of_frames: reserved.
[[gnu::cold]] Errc slow_charge_under_pressure(numacre_pool *pool, Lane &lane, Charge &charge) {
    if (give_back_all(pool, lane) != 0 && charge.make()) return Errc::ok;
    // Once a second: who stays at its limit must not keep everybody from their caches.
    const std::uint64_t now = now_nanoseconds();
    if (lane.asked_at_ns == 0 || now - lane.asked_at_ns >= kLookAgainAfterNanoseconds) {
        lane.asked_at_ns = now;
        ask_others_to_give_back(pool, lane);
    }
    return charge.is_over_quota() ? Errc::over_quota : Errc::out_of_frames;
}

[[gnu::cold]] int bad_size(numacre_pool *pool, Actor actor, std::uint32_t numa_node, std::size_t size_bytes) {
    count_failure(pool, numa_node, actor, FailureReason::argument);
    return fail(Errc::bad_argument, "size %zu is not within 1 .. %llu bytes, the pool's largest block", size_bytes,
                static_cast<unsigned long long>(pool->geometry.chunk_bytes()));
}

[[gnu::cold]] int damaged_pool() {
    return fail(
        Errc::corrupt,
        "the pool's shared metadata is damaged: nothing is allocated in it any more (the daemon's log says what)");
}

[[gnu::cold]] int allocation_failed(numacre_pool *pool, Lane &lane, std::uint32_t wanted, Errc code, Order order,
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
        return fail(code, "no free block of %zu bytes: what is free is reserved for others (`numacre clients`)",
                    size_bytes);
    }
    const FailureReason reason = why_not(lane.nodes[wanted], order);
    count_failure(pool, wanted, actor, reason);
    return fail(code, "no free block of %zu bytes on any numa node that is allowed (%u, the first: %s)", size_bytes,
                wanted, reason == FailureReason::fragmented ? "enough is free, but not in one piece" : "full");
}

Note note_of(const Lane &lane, Order order, std::size_t size_bytes) {
    return lane.since_now.for_request(size_bytes, order.value + lane.frame_shift);
}

// Size 0 becomes an order far too large.
[[gnu::always_inline]] inline unsigned order_of(const Lane &lane, std::size_t size_bytes) {
    return static_cast<unsigned>(order_above((size_bytes - 1) >> lane.frame_shift));
}

// From the shared tree, past the cache: all that can be asked for.
[[gnu::noinline]] int slow_allocate_past_cache(numacre_pool *pool, Lane &lane, const Plan &plan, std::size_t size_bytes,
                                               unsigned flags, void **result) {
    const Actor actor = lane.actor;
    const std::uint32_t wanted = plan.first;
    const unsigned frame_shift = pool->geometry.frame_shift;
    if (size_bytes - 1 >= pool->geometry.chunk_bytes()) [[unlikely]]
        return bad_size(pool, actor, wanted, size_bytes);
    const Order order = order_for_bytes(size_bytes, frame_shift);
    const std::uint64_t granted = order.frames() << frame_shift;
    const Note note = note_of(lane, order, size_bytes);
    std::uint32_t got = 0;
    Block block;
    Charge charge{pool, actor, order.frames()};
    Errc code = Errc::ok;
    if (!charge.make()) [[unlikely]]
        code = slow_charge_under_pressure(pool, lane, charge);
    if (code == Errc::ok) [[likely]] {
        got = wanted;
        const Fit fit = (flags & NUMACRE_COMPACT) != 0 ? Fit::compact : fit_of(pool);
        if (fit == Fit::nearby || !slow_allocate_by_fit(lane, lane.nodes[wanted], fit, order, note, block)) [[likely]]
            code = slow_try_planned(pool, actor, plan, order, note, got, block);
        if (code != Errc::ok) [[unlikely]]
            code = slow_allocate_under_pressure(pool, lane, plan, order, note, got, block);
    }
    if (code == Errc::out_of_frames && (flags & NUMACRE_WAIT) != 0) {
        charge.undo();
        code = wait_for_block(pool, lane, plan, order, note, flags >> kWaitShift, charge, got, block);
    }
    if (code != Errc::ok) [[unlikely]] {
        charge.undo();
        return allocation_failed(pool, lane, wanted, code, order, size_bytes, charge.answer);
    }
    note_placement(pool, lane, plan, got);
    void *const address = address_of(pool, got, block);
    if ((flags & NUMACRE_ZERO) != 0) memset(address, 0, granted);
    *result = address;
    return 0;
}

int slow_allocate_on(numacre_pool *pool, int numa_node, std::size_t size_bytes, unsigned flags, void **block);

// --- a thread that is inside -----------------------------------------------------------------------------------------
// A thread has one intent, which says what it is changing in the tree: a signal handler that began another change in
// the middle of one would overwrite it, and if the process were killed then, recovery would lose a block. So the
// handler's call answers -EBUSY, before it has done anything. That lies between the instructions of one thread: no
// memory order is needed, and no compiler moves the store of an intent behind the RMW that follows it.

[[gnu::always_inline]] inline bool is_inside(const NodeLane &node) {
    return node.self.slot->intent.load(std::memory_order_relaxed) != 0;  // relaxed: this thread's own
}

// Of a free that a handler may make on a pool that the interrupted call is using. Between two changes, too, a thread
// may be in the middle of something: the announcement that hints are too low for a moment would be overwritten.
[[gnu::always_inline]] inline bool is_inside_or_changes_hints(const NodeLane &node) {
    const auto &slot = *node.self.slot;
    return (slot.intent.load(std::memory_order_relaxed) |
            HintWork{slot.hint_work.load(std::memory_order_relaxed)}.active()) != 0;  // relaxed: as above
}

// An intent that somebody has scribbled looks the same to its thread, until the daemon has found the damage.
[[gnu::cold, gnu::noinline]] int thread_is_inside(const numacre_pool *pool) {
    // relaxed: as in allocating_lane_of().
    if (is_damaged(*pool, pool->view.header->attention.load(std::memory_order_relaxed))) return damaged_pool();
    return fail(Errc::thread_is_inside,
                "this signal handler has interrupted a call of its thread that changes the pool");
}

// --- past the cache, the common case ---------------------------------------------------------------------------------
// What is rare is elsewhere and not come back from: the common case has no registers to save.

// A block of this numa node that the thread's own word has not.
[[gnu::noinline]] int tree_allocate_further(const Lane &lane, NodeLane &node, std::size_t size_bytes, void **result) {
    const Order order = order_for_bytes(size_bytes, lane.frame_shift);
    const Note note = note_of(lane, order, size_bytes);
    Block block;
    if (node.buddy->allocate_further(node.self, order, note, block) != Errc::ok)
        return slow_allocate_on(lane.pool, -1, size_bytes, NUMACRE_UNCACHED, result);
    *result = address_of(lane, node, block.base);
    return 0;
}

[[gnu::noinline]] int tree_allocate_after_race(const Lane &lane, NodeLane &node, std::size_t size_bytes,
                                               void **result) {
    node.buddy->give_up(node.self);
    return tree_allocate_further(lane, node, size_bytes, result);
}

[[gnu::noinline]] int tree_finish_allocation(const Lane &lane, NodeLane &node, FrameIndex base, std::size_t size_bytes,
                                             void **result) {
    const Order order = order_for_bytes(size_bytes, lane.frame_shift);
    const Note note = note_of(lane, order, size_bytes);
    if (!node.buddy->finish_allocation(node.self, note, Block{base, order}))
        return tree_allocate_further(lane, node, size_bytes, result);
    *result = address_of(lane, node, base);
    return 0;
}

// A block larger than a leaf word, from the upper word where the thread was last; no limits. order exists.
[[gnu::always_inline]] inline int tree_allocate_in_upper(const Lane &lane, NodeLane &node, unsigned layer, Order order,
                                                         std::size_t size_bytes, void **result) {
    Block block;
    const auto note = [&] { return note_of(lane, order, size_bytes); };
    const auto way = node.buddy->allocate_nearby_in_upper(node.self, layer, order, note, block);
    if (way == ShortPath::begun) [[unlikely]]
        return tree_finish_allocation(lane, node, block.base, size_bytes, result);
    if (way != ShortPath::done) [[unlikely]]
        return way == ShortPath::raced ? tree_allocate_after_race(lane, node, size_bytes, result)
                                       : tree_allocate_further(lane, node, size_bytes, result);
    *result = address_of(lane, node, block.base);
    return 0;
}

[[gnu::noinline]] int tree_allocate_above(const Lane &lane, NodeLane &node, std::size_t size_bytes, void **result) {
    const Order order = order_for_bytes(size_bytes, lane.frame_shift);
    return tree_allocate_in_upper(lane, node, layer_of(order), order, size_bytes, result);
}

[[gnu::noinline]] int tree_allocate_large(const Lane &lane, NodeLane &node, std::size_t size_bytes, void **result) {
    const unsigned order = order_of(lane, size_bytes);
    if (order >= lane.orders || is_regulated(lane) || is_inside(node)) [[unlikely]]
        return slow_allocate_on(lane.pool, -1, size_bytes, NUMACRE_UNCACHED, result);
    // In the lowest of these layers, where nearly all of them are, what depends on the layer is known beforehand.
    if (order > word_order(1)) return tree_allocate_above(lane, node, size_bytes, result);
    return tree_allocate_in_upper(lane, node, 1, Order{order}, size_bytes, result);
}

// 0 bytes become far too many.
[[gnu::always_inline]] inline bool fits_leaf_word(const Lane &lane, std::size_t size_bytes) {
    return size_bytes - 1 < lane.leaf_bytes;
}

// A block that fits a leaf word, from the one where the thread was last; no limits.
[[gnu::always_inline]] inline int tree_allocate_in_leaf(const Lane &lane, NodeLane &node, std::size_t size_bytes,
                                                        void **result) {
    const Order order{order_of(lane, size_bytes)};
    if (is_regulated(lane) || is_inside(node)) [[unlikely]]
        return slow_allocate_on(lane.pool, -1, size_bytes, NUMACRE_UNCACHED, result);
    Block block;
    // For the note, a number of its own: by the time it is needed the compiler has had to put it on the stack, and all
    // that waits for the order before that would read it back from there.
    Order late = order;
    asm("" : "+r"(late.value));
    const auto note = [&] { return note_of(lane, late, size_bytes); };
    const auto way = node.buddy->allocate_nearby(node.self, order, note, block);
    if (way == ShortPath::begun) [[unlikely]]
        return tree_finish_allocation(lane, node, block.base, size_bytes, result);
    if (way != ShortPath::done) [[unlikely]]
        return way == ShortPath::raced ? tree_allocate_after_race(lane, node, size_bytes, result)
                                       : tree_allocate_further(lane, node, size_bytes, result);
    *result = address_of(lane, node, block.base);
    return 0;
}

// Of any size, from one numa node, by the short way; no limits.
[[gnu::always_inline]] inline int tree_allocate(const Lane &lane, NodeLane &node, std::size_t size_bytes,
                                                void **result) {
    return fits_leaf_word(lane, size_bytes) ? tree_allocate_in_leaf(lane, node, size_bytes, result)
                                            : tree_allocate_large(lane, node, size_bytes, result);
}

// Where there is more than one numa node: asking for the local one may be a call.
[[gnu::noinline]] int tree_allocate_locally(const Lane &lane, std::size_t size_bytes, void **result) {
    const std::uint32_t node = obvious_numa_node(lane);
    if (node == lane.numa_nodes) [[unlikely]]
        return slow_allocate_on(lane.pool, -1, size_bytes, NUMACRE_UNCACHED, result);
    return tree_allocate(lane, lane.nodes[node], size_bytes, result);
}

int slow_free_past_cache(numacre_pool *pool, Actor actor, void *address);

[[gnu::noinline]] int slow_free_uncached(numacre_pool *pool, void *address) {
    int error = 0;
    Lane *const lane = lane_of(pool, error);
    if (lane == nullptr) return error;
    return is_inside_or_changes_hints(lane->nodes[0]) ? thread_is_inside(pool)
                                                      : slow_free_past_cache(pool, lane->actor, address);
}

[[gnu::noinline]] int serve_after_free(const Lane &lane) {
    serve_waiters(lane.pool, lane.actor);
    return 0;
}

[[gnu::noinline]] int tree_finish_free(const Lane &lane, NodeLane &node, Block freed) {
    node.buddy->finish_free(node.self, freed);
    return has_waiters(lane) ? serve_after_free(lane) : 0;
}

// A block larger than a leaf word; no limits; the thread is not inside.
[[gnu::noinline]] int tree_free_large(const Lane &lane, NodeLane &node, FrameIndex base, void *address) {
    Block freed;
    const auto way = node.buddy->free_in_upper(node.self, base, freed);
    if (way == ShortPath::refused) [[unlikely]]
        return slow_free_uncached(lane.pool, address);
    if (way == ShortPath::begun) [[unlikely]]
        return tree_finish_free(lane, node, freed);
    if (has_waiters(lane)) [[unlikely]]
        return serve_after_free(lane);
    return 0;
}

// A leaf block; no limits.
[[gnu::always_inline]] inline int tree_free(const Lane &lane, void *address) {
    NodeLane *node = nullptr;
    std::uint64_t frame = 0;
    if (!find_frame(lane, address, node, frame) || is_regulated(lane) || is_inside_or_changes_hints(*node)) [[unlikely]]
        return slow_free_uncached(lane.pool, address);
    Block freed;
    const auto way = node->buddy->free_in_leaf(node->self, FrameIndex{frame}, freed);
    if (way == ShortPath::refused) [[unlikely]]
        return tree_free_large(lane, *node, FrameIndex{frame}, address);
    if (way == ShortPath::begun) [[unlikely]]
        return tree_finish_free(lane, *node, freed);
    if (has_waiters(lane)) [[unlikely]]
        return serve_after_free(lane);
    return 0;
}

[[gnu::cold]] int not_a_block(numacre_pool *pool, const void *address, Errc code) {
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
    return fail(Errc::stale_ref, "no block begins at %p: not allocated, or freed already", address);
}

// Of the block that begins there, if anybody counts.
std::uint64_t counted_frames_at(numacre_pool *pool, Place place) {
    Block block;
    IndexEntry entry;
    return is_counting(pool) && pool->nodes[place.numa_node].buddy().find_entry(place.frame, block, entry) == Errc::ok
               ? block.order.frames()
               : 0;
}

// Back to the shared tree, past the cache: whatever the address may be.
[[gnu::noinline]] int slow_free_past_cache(numacre_pool *pool, Actor actor, void *address) {
    Place place{};
    if (!locate(pool, address, place)) [[unlikely]]
        return not_a_block(pool, address, Errc::bad_argument);
    Block freed;
    Buddy<Env> &buddy = pool->nodes[place.numa_node].buddy();
    const CountedCall call{pool, actor, counted_frames_at(pool, place)};
    const Errc code =
        pool->checks_frees ? buddy.free_checked(actor, place.frame, freed) : buddy.free(actor, place.frame, freed);
    if (code != Errc::ok) [[unlikely]]
        return not_a_block(pool, address, code);
    uncount_freed(pool, place.numa_node, freed);
    if (has_waiters(pool)) [[unlikely]]
        serve_waiters(pool, actor);
    return 0;
}

// The caller's own block at this address.
bool own_block(numacre_pool *pool, const void *address, Place &place, Block &block, IndexEntry &entry) {
    if (pool == nullptr || pool->fork_generation != fork_generation()) return false;
    return locate(pool, address, place) &&
           pool->nodes[place.numa_node].buddy().find_entry(place.frame, block, entry) == Errc::ok &&
           entry.owner() == pool->process;
}

[[gnu::cold]] int no_pool(const char *function) {
    return fail(Errc::bad_argument, "%s: the pool is NULL", function);
}
// For functions whose result has no room for an error.
[[gnu::cold]] void not_owned(const numacre_pool *pool, const void *address, const char *function) {
    if (pool == nullptr)
        (void)no_pool(function);
    else if (pool->fork_generation != fork_generation())
        (void)fail_forked();
    else
        (void)fail(Errc::not_owner, "%s: this handle owns no block that begins at %p", function, address);
}
[[gnu::cold]] int no_result(const char *function) {
    return fail(Errc::bad_argument, "%s: the result pointer is NULL", function);
}

// The calling thread's lane, with what others wait for given back. nullptr: as lane_of(), or the thread is inside.
Lane *attentive_lane_of(numacre_pool *pool, int &error) {
    Lane *const lane = lane_of(pool, error);
    if (lane != nullptr && is_inside_or_changes_hints(lane->nodes[0])) [[unlikely]] {
        error = thread_is_inside(pool);
        return nullptr;
    }
    if (lane != nullptr && !lane->undisturbed()) answer_attention(pool, *lane);
    return lane;
}

// The same for a call that allocates: nullptr also if the pool is damaged.
Lane *allocating_lane_of(numacre_pool *pool, int &error) {
    Lane *const lane = attentive_lane_of(pool, error);
    // relaxed: what is told a call later is soon enough.
    if (lane == nullptr || !is_damaged(*pool, lane->attention_word().load(std::memory_order_relaxed))) [[likely]]
        return lane;
    error = damaged_pool();
    return nullptr;
}

// From the first numa node's magazine, refilled if it is empty. False: not a size that is cached (0 is none), or
// nothing there.
bool cached_allocate_or_refill(numacre_pool *pool, Lane &lane, const Plan &plan, std::size_t size_bytes, void **block) {
    if ((size_bytes - 1) >> lane.frame_shift >= kLeafFrames) return false;
    const unsigned order = order_for_bytes(size_bytes, lane.frame_shift).value;
    NodeLane &node = lane.nodes[plan.first];
    Magazine &magazine = node.magazines[order];
    const IndexEntry entry = entry_for(lane, magazine, size_bytes);
    if (!cached_take(lane, node, magazine, entry, block) &&
        !(refill(pool, lane, node, order) && cached_take(lane, node, magazine, entry, block)))
        return false;
    note_placement(pool, lane, plan, plan.first);
    return true;
}

// When the cache has nothing ready.
[[gnu::noinline]] int slow_allocate(numacre_pool *pool, std::size_t size_bytes, void **block) {
    int error = 0;
    Lane *const lane = allocating_lane_of(pool, error);
    if (lane == nullptr) return error;
    const Plan plan = plan_of(pool, *lane, size_bytes);
    if (cached_allocate_or_refill(pool, *lane, plan, size_bytes, block)) return 0;
    if (lane->numa_nodes == 1 || plan.first == obvious_numa_node(*lane))
        return tree_allocate(*lane, lane->nodes[plan.first], size_bytes, block);
    return slow_allocate_past_cache(pool, *lane, plan, size_bytes, 0, block);
}

// The magazine of the pool's only numa node is empty, or what was on top has gone. (Where there are several, of which
// `only` is none, it is size 0 that comes here: no size at all.)
[[gnu::noinline]] int tree_allocate_past_empty(Lane &lane, std::size_t size_bytes, void **block) {
    if (order_of(lane, size_bytes) < kSingleOrder) return slow_allocate(lane.pool, size_bytes, block);
    if (lane.restraint != 0) --lane.restraint;
    return tree_allocate(lane, lane.only_node(), size_bytes, block);
}

// Where there is more than one numa node. Out of line: asking for the local one may be a call. What its cache has not
// goes the slow way, which looks, once a second, whether it is still the one to be asked.
[[gnu::noinline]] int cached_allocate_locally(Lane &lane, std::size_t size_bytes, void **block) {
    NodeLane &node = lane.nodes[obvious_numa_node(lane)];
    const bool is_as_before = size_bytes == node.asked_bytes;
    if (is_as_before && numacre_inline_take_as_before(&lane, &node, block) != 0) [[likely]]
        return 0;
    const std::uint64_t frames_less_one = (size_bytes - 1) >> lane.frame_shift;  // of size 0: far too large
    if (!is_as_before && &node != lane.only && frames_less_one < kLeafFrames &&
        cached_take_other_size(lane, node, size_bytes, frames_less_one, block)) [[likely]]
        return 0;
    return slow_allocate(lane.pool, size_bytes, block);
}

// Not what calls have been asking for.
[[gnu::noinline]] int cached_allocate_other_size(Lane &lane, std::size_t size_bytes, void **block) {
    if (lane.numa_nodes != 1) return cached_allocate_locally(lane, size_bytes, block);
    const std::uint64_t frames_less_one = (size_bytes - 1) >> lane.frame_shift;  // of size 0: far too large
    // Larger than what is cached: past the cache is the way.
    if (frames_less_one >= kLeafFrames) return tree_allocate_large(lane, lane.only_node(), size_bytes, block);
    if (cached_take_other_size(lane, lane.only_node(), size_bytes, frames_less_one, block)) [[likely]]
        return 0;
    return tree_allocate_past_empty(lane, size_bytes, block);
}

// Somebody waits: the caller's block goes to them directly, if it is what they wait for. False: nothing was done.
[[gnu::cold]] bool slow_give_to_waiter(numacre_pool *pool, const Lane &lane, void *address) {
    Place place{};
    Block block;
    IndexEntry entry;
    if (!own_block(pool, address, place, block, entry)) return false;
    const CountedCall call{pool, lane.actor, block.order.frames()};
    return give_to_waiter(pool, lane.actor, place.numa_node, block, entry);
}

// Not while memory is short: the free by which a thread learns of it is to give all back, and may be its last call.
bool cached_ensure_room(numacre_pool *pool, Lane &lane, NodeLane &node, unsigned order) {
    return (lane.restraint == 0 && !node.magazines[order].is_full()) || make_room(pool, lane, node, order);
}

// When the block cannot simply go into its magazine: that is full, or others may still take the block, or there is
// something to be looked at first, or a trace is recorded.
[[gnu::noinline]] int slow_free(numacre_pool *pool, void *address) {
    int error = 0;
    Lane *const lane = attentive_lane_of(pool, error);
    if (lane == nullptr) return error;
    NodeLane *node = nullptr;
    std::uint64_t frame = 0;
    Block block;
    IndexEntry entry;
    // seq_cst: as in has_waiters(). That a chunk is draining needs no order: the daemon asks for what is missed.
    const std::uint64_t attention = lane->attention_word().load(std::memory_order_seq_cst);
    // A cached block of such a chunk would be handed out again and again, and the chunk would never be empty.
    const auto is_to_go = [&] {
        return (attention & Attention::kDraining) != 0 && node->buddy->is_draining(block.base);
    };
    if ((attention & Attention::kWaiters) != 0) [[unlikely]] {
        if (slow_give_to_waiter(pool, *lane, address)) return 0;
    } else if (find_frame(*lane, address, node, frame) && node->buddy->find_in_leaf(FrameIndex{frame}, block, entry) &&
               entry.owner() == pool->process && !is_to_go() &&
               cached_ensure_room(pool, *lane, *node, block.order.value) &&
               (!entry.is_published() || node->buddy->withdraw(block, entry)) && cached_put(*lane, address)) {
        return 0;
    }
    return tree_free(*lane, address);
}

// What the cache did not take. Larger blocks never go there, and so need not look at all that slow_free() does.
[[gnu::always_inline]] inline int tree_free_not_cached(const Lane &lane, const LeafEntry &found, void *address) {
    if (!found.entry.is_held() && !has_waiters(lane) && !is_regulated(lane) && !is_inside(*found.node))
        return tree_free_large(lane, *found.node, found.frame(), address);
    return slow_free(lane.pool, address);
}

// Not as blocks have been.
[[gnu::noinline]] int cached_free_other_node(Lane &lane, void *address) {
    LeafEntry found;
    if (!look_up(lane, address, found)) [[unlikely]]
        return slow_free(lane.pool, address);
    if (cached_put_found(lane, found, address)) [[likely]]
        return 0;
    return tree_free_not_cached(lane, found, address);
}
// The same on the numa node that blocks have been freed to: what the index says of it is known.
[[gnu::noinline]] int cached_free_other_order(Lane &lane, void *address, std::uint64_t *slot, std::uint64_t entry) {
    const LeafEntry found{lane.freed_node, slot, IndexEntry{entry}};
    if (cached_put_same_node(lane, found, address)) [[likely]]
        return 0;
    return tree_free_not_cached(lane, found, address);
}

// As blocks have been: only its magazine has no room, or is not to be used at all. (Or nothing has been, and the index
// says nothing of it: a larger block, as all may be.)
[[gnu::noinline]] int tree_free_past_full(const Lane &lane, void *address, std::uint64_t *slot, std::uint64_t entry) {
    const Magazine &magazine = static_cast<const Magazine &>(*lane.freed_magazine);
    if (magazine.capacity() == 0 || magazine.block_shift < lane.frame_shift + kSingleOrder ||
        magazine.slots_bound != lane.pool->view.threads_in_use_bound() || has_waiters(lane))
        return tree_free_not_cached(lane, LeafEntry{lane.freed_node, slot, IndexEntry{entry}}, address);
    return tree_free(lane, address);
}

int check_flags(unsigned flags) {
    if ((flags & 0xff & ~kKnownFlags) == 0 && (flags >> kWaitShift == 0 || (flags & NUMACRE_WAIT) != 0)) return 0;
    return fail(Errc::bad_argument,
                "flags %#x are not a combination of NUMACRE_STRICT, _ZERO, _UNCACHED, _INTERLEAVE, _LOCAL, _COMPACT, "
                "_WAIT[_MS]",
                flags);
}

int slow_allocate_planned(numacre_pool *pool, Lane &lane, Plan plan, std::size_t size_bytes, unsigned flags,
                          void **block) {
    if ((flags & NUMACRE_STRICT) != 0) plan = plan.no_further();
    if ((flags & (NUMACRE_UNCACHED | NUMACRE_COMPACT)) != 0 ||
        !cached_allocate_or_refill(pool, lane, plan, size_bytes, block))
        return slow_allocate_past_cache(pool, lane, plan, size_bytes, flags, block);
    if ((flags & NUMACRE_ZERO) != 0)
        memset(*block, 0, order_for_bytes(size_bytes, lane.frame_shift).frames() << lane.frame_shift);
    return 0;
}

[[gnu::cold]] int not_allowed(numacre_pool *pool, std::uint32_t numa_node) {
    return fail(Errc::bad_argument,
                "numa node %u (the machine's %d) is none that this thread's cpuset allows: widen it (cpuset.mems), or "
                "set NUMACRE_MEMPOLICY=ignore",
                numa_node, pool->nodes[numa_node].os_numa_node);
}

// numacre_alloc_on, whatever is asked for.
[[gnu::noinline]] int slow_allocate_on(numacre_pool *pool, int numa_node, std::size_t size_bytes, unsigned flags,
                                       void **block) {
    if (const int error = check_flags(flags)) return error;
    const unsigned policy_flags = flags & (NUMACRE_INTERLEAVE | NUMACRE_LOCAL);
    if (policy_flags != 0 && (numa_node != -1 || policy_flags == (NUMACRE_INTERLEAVE | NUMACRE_LOCAL)))
        return fail(Errc::bad_argument,
                    "flags %#x on numa node %d: NUMACRE_INTERLEAVE and NUMACRE_LOCAL want node -1, one of them", flags,
                    numa_node);
    if (numa_node < -1 || numa_node >= static_cast<int>(pool->numa_nodes))
        return fail(Errc::no_such_node, "numa node %d is not within -1 .. %u", numa_node, pool->numa_nodes - 1);
    int error = 0;
    Lane *const lane = allocating_lane_of(pool, error);
    if (lane == nullptr) return error;
    if (numa_node < 0) {
        const Policy policy{(flags & NUMACRE_INTERLEAVE) != 0 ? PolicyMode::interleave
                            : (flags & NUMACRE_LOCAL) != 0    ? PolicyMode::local
                                                              : PolicyMode::unset,
                            0};
        return slow_allocate_planned(pool, *lane, plan_with(pool, *lane, policy, size_bytes), size_bytes, flags, block);
    }
    const auto wanted = static_cast<std::uint32_t>(numa_node);
    if (pool->numa_nodes != 1 && (placement_of(pool, *lane).allowed & bit_of(wanted)) == 0)
        return not_allowed(pool, wanted);
    return slow_allocate_planned(pool, *lane, plan_on(pool, *lane, wanted), size_bytes, flags, block);
}

// Of whom slow_take() would get the block, if it gets it: with the owner the generation changes.
[[gnu::cold]] Giver giver_of(numacre_pool *pool, Reference reference) {
    const std::uint32_t numa_node = pool->reference_format.numa_node(reference);
    if (numa_node >= pool->numa_nodes) return {pool->process, 0, 0};
    const NodeView<Env> &view = pool->nodes[numa_node].buddy().view();
    const Block block = pool->reference_format.block(reference);
    if (!view.contains(block)) return {pool->process, 0, 0};
    // relaxed: the CAS of slow_take() fails if this is not what it finds.
    const ProcessSlot owner = IndexEntry{view.index_entry(block).load(std::memory_order_relaxed)}.owner();
    return {owner, generation_of(pool, owner), block.order.frames()};
}

// relaxed: an age in seconds. Not the lane's: a thread that only takes is never asked for its attention.
[[gnu::always_inline]] inline PoolAge age_now(const Lane &lane) {
    return Attention::age(lane.attention_word().load(std::memory_order_relaxed));
}

[[gnu::noinline]] int slow_take(numacre_pool *pool, const Lane &lane, numacre_ref ref, void **block) {
    const Reference reference{ref};
    const std::uint32_t numa_node = pool->reference_format.numa_node(reference);
    Block taken;
    const bool is_counted = is_counting(pool);
    const Giver giver = is_counted ? giver_of(pool, reference) : Giver{pool->process, 0, 0};
    const CountedCall call{pool, lane.actor, giver.frames, giver.process};
    const Errc code = numa_node < pool->numa_nodes
                          ? pool->nodes[numa_node].buddy().take(lane.actor, reference, age_now(lane), taken)
                          : Errc::bad_argument;
    if (code != Errc::ok) [[unlikely]]
        return fail(code,
                    code == Errc::stale_ref ? "reference %#llx names no block any more"
                                            : "%#llx is not a reference of this pool",
                    static_cast<unsigned long long>(ref));
    if (is_counted) [[unlikely]]
        charge_taken(pool, giver, taken.order.frames());
    *block = address_of(pool, numa_node, taken);
    return 0;
}

[[gnu::noinline]] numacre_ref slow_publish(numacre_pool *pool, const void *address) {
    Place place{};
    Block block;
    IndexEntry entry;
    if (!own_block(pool, address, place, block, entry)) {
        not_owned(pool, address, "numacre_ref_of");
        return NUMACRE_REF_NULL;
    }
    return pool->nodes[place.numa_node].buddy().publish(block, entry).bits();
}

// False: there is no room, or it is no block that could be cached.
bool cached_make_room_for(numacre_pool *pool, Lane &lane, const LeafEntry &found) {
    const unsigned order = found.entry.order().value;
    return found.entry.is_private(lane.private_pattern) && order < kCachedOrders &&
           make_room(pool, lane, *found.node, order);
}

// --- many at once ----------------------------------------------------------------------------------------------------

// The rest of a numacre_alloc_bulk, whose first `done` blocks are there.
[[gnu::noinline]] int slow_allocate_rest(numacre_pool *pool, std::size_t size_bytes, void **blocks, unsigned count,
                                         unsigned done) {
    if (pool == nullptr) return no_pool("numacre_alloc_bulk");
    if (blocks == nullptr && count != 0) return no_result("numacre_alloc_bulk");
    int error = 0;
    // With some there the lane was undisturbed a moment ago: what has changed since is told a call later, not by an
    // error that leaves them with nobody.
    Lane *const lane = done == 0 ? allocating_lane_of(pool, error) : lane_of(pool, error);
    if (lane == nullptr) return error;
    if (done != 0 && is_inside(lane->nodes[0])) [[unlikely]] {
        while (done-- > 0) (void)cached_put(*lane, blocks[done]);  // where they were, there is room
        return thread_is_inside(pool);
    }
    Plan plan = plan_of(pool, *lane, size_bytes);
    const std::uint32_t wanted = plan.first;
    if (fits_leaf_word(*lane, size_bytes) && !plan.is_turn) {
        const unsigned order = order_of(*lane, size_bytes);
        NodeLane &node = lane->nodes[wanted];
        const IndexEntry entry = entry_for(*lane, node.magazines[order], size_bytes);
        done += cached_take_many(*lane, node, node.magazines[order], entry, blocks + done, count - done);
        const Order of_blocks{order};
        const Note note = note_of(*lane, of_blocks, size_bytes);
        // What is cached has been charged for. Other blocks are, one by one, further down.
        while (done < count && !is_counting(pool)) {
            FrameIndex bases[kLeafFrames];
            const unsigned ask = count - done < kLeafFrames ? count - done : kLeafFrames;
            if (const Fit fit = fit_of(pool); fit != Fit::nearby) [[unlikely]]
                begin_where_it_fits(*lane, node, fit, order);
            const unsigned got =
                pool->nodes[wanted].buddy().allocate_many(lane->actor, of_blocks, BlockState::owned, note, bases, ask);
            for (unsigned i = 0; i < got; ++i) blocks[done++] = address_of(*lane, node, bases[i]);
            if (got < ask) break;
        }
        note_placement(pool, *lane, plan, wanted, done);
    }
    for (; done < count; ++done) {
        void *address = nullptr;
        if (plan.is_turn && done != 0) plan = plan_of(pool, *lane, size_bytes);
        error = plan.is_turn ? slow_allocate_planned(pool, *lane, plan, size_bytes, 0, &address)
                             : slow_allocate_past_cache(pool, *lane, plan, size_bytes, 0, &address);
        if (error != 0) {
            while (done-- > 0) slow_free_past_cache(pool, lane->actor, blocks[done]);
            return error;
        }
        blocks[done] = address;
    }
    if (recording()) [[unlikely]]
        for (done = 0; done < count; ++done) record_allocation(pool, blocks[done], size_bytes);
    return 0;
}

// The rest of a numacre_free_bulk, whose first `done` blocks have gone.
[[gnu::noinline]] int slow_free_rest(numacre_pool *pool, void *const *blocks, unsigned count, unsigned done) {
    if (pool == nullptr) return no_pool("numacre_free_bulk");
    if (blocks == nullptr && count != 0) return fail(Errc::bad_argument, "numacre_free_bulk: the blocks are NULL");
    int error = 0;
    Lane *const lane = lane_of(pool, error);
    if (lane == nullptr) return error;
    if (is_inside(lane->nodes[0])) [[unlikely]]
        return thread_is_inside(pool);
    // As in cached_ensure_room().
    const bool may_cache = lane->undisturbed();
    if (!may_cache) answer_attention(pool, *lane);
    if (recording()) [[unlikely]]
        for (unsigned i = done; i < count; ++i) record_free(pool, blocks[i]);
    int first_error = 0;
    while (done < count) {
        if (may_cache && !has_waiters(pool)) {
            // So many, and then again a look for who waits.
            const unsigned wanted = count - done < kLeafFrames ? count - done : kLeafFrames;
            const unsigned put = cached_put_many(*lane, blocks + done, wanted);
            done += put;
            if (put == wanted) continue;
            // After making room its entry is looked up anew: that may have taken a while.
            LeafEntry found;
            if (look_up(*lane, blocks[done], found) &&
                (cached_put_found(*lane, found, blocks[done]) ||
                 (cached_make_room_for(pool, *lane, found) && cached_put(*lane, blocks[done])))) {
                ++done;
                continue;
            }
        }
        // What does not fit goes to the tree, as many of one numa node together as follow each other.
        FrameIndex bases[kLeafFrames];
        Place first{};
        unsigned batch = 0;
        if (!is_counting(pool) && !pool->checks_frees && locate(pool, blocks[done], first)) {
            Place place = first;
            do {
                bases[batch++] = place.frame;
            } while (batch < kLeafFrames && done + batch < count && locate(pool, blocks[done + batch], place) &&
                     place.numa_node == first.numa_node);
        }
        const unsigned freed =
            pool->nodes[first.numa_node].buddy().free_many(lane->actor, BlockState::owned, bases, batch);
        if (freed != 0) {
            if (has_waiters(pool)) serve_waiters(pool, lane->actor);
            done += freed;
        }
        // Larger, freed already, not ours: it has its own answer.
        if (freed == batch && batch != 0) continue;
        const int result = slow_free_past_cache(pool, lane->actor, blocks[done++]);
        if (first_error == 0) first_error = result;
    }
    return first_error;
}

// --- what is recorded ------------------------------------------------------------------------------------------------
// The ways of a thread without a current lane, which all calls take while a trace is recorded (record.hpp).

// The thread's lane if it has only used another pool meanwhile, or none: it is the current one from now on, and the
// call's way is the short one. (While a trace is recorded no lane ever is current.)
Lane *come_back_to(numacre_pool *pool) {
    int error = 0;
    return current_lane(pool) == nullptr && lane_of(pool, error) != nullptr ? undisturbed_lane(pool) : nullptr;
}

// What numacre_alloc does in an undisturbed lane; numacre_free.
[[gnu::always_inline]] inline int cached_allocate(Lane &lane, std::size_t size_bytes, void **block) {
    if (size_bytes != lane.only->asked_bytes) [[unlikely]]
        return cached_allocate_other_size(lane, size_bytes, block);
    if (numacre_inline_take_as_before(&lane, lane.only, block) != 0) [[likely]]
        return 0;
    return tree_allocate_past_empty(lane, size_bytes, block);
}
[[gnu::always_inline]] inline int cached_free(Lane &lane, void *block) {
    std::uint64_t *slot = nullptr;
    std::uint64_t entry = 0;
    if (!numacre_inline_look_up(&lane, block, &slot, &entry)) [[unlikely]]
        return cached_free_other_node(lane, block);
    if (!numacre_inline_is_as_before(&lane, entry)) [[unlikely]]
        return cached_free_other_order(lane, block, slot, entry);
    if (numacre_inline_put(lane.freed_magazine, block, slot, entry) != 0) [[likely]]
        return 0;
    return tree_free_past_full(lane, block, slot, entry);
}

[[gnu::noinline]] int allocate_without_lane(numacre_pool *pool, std::size_t size_bytes, void **block) {
    if (pool == nullptr) return no_pool("numacre_alloc");
    if (Lane *const lane = come_back_to(pool)) return cached_allocate(*lane, size_bytes, block);
    const int error = slow_allocate(pool, size_bytes, block);
    if (error == 0 && recording()) [[unlikely]]
        record_allocation(pool, *block, size_bytes);
    return error;
}

[[gnu::noinline]] int allocate_on_without_lane(numacre_pool *pool, int numa_node, std::size_t size_bytes,
                                               unsigned flags, void **block) {
    if (pool == nullptr) return no_pool("numacre_alloc_on");
    const int error = slow_allocate_on(pool, numa_node, size_bytes, flags, block);
    if (error == 0 && recording()) [[unlikely]]
        record_allocation(pool, *block, size_bytes);
    return error;
}

[[gnu::noinline]] int free_without_lane(numacre_pool *pool, void *block) {
    if (pool == nullptr) return no_pool("numacre_free");
    if (Lane *const lane = come_back_to(pool)) return cached_free(*lane, block);
    if (recording()) [[unlikely]]
        record_free(pool, block);
    return slow_free(pool, block);
}

[[gnu::noinline]] int free_uncached_without_lane(numacre_pool *pool, void *block) {
    if (pool == nullptr) return no_pool("numacre_free_uncached");
    if (recording()) [[unlikely]]
        record_free(pool, block);
    return slow_free_uncached(pool, block);
}

[[gnu::noinline]] int take_without_lane(numacre_pool *pool, numacre_ref ref, void **block) {
    if (pool == nullptr) return no_pool("numacre_take");
    int error = 0;
    const Lane *const lane = lane_of(pool, error);
    if (lane == nullptr) return error;
    error = slow_take(pool, *lane, ref, block);
    // How much of it was asked for is not known here.
    if (error == 0 && recording()) [[unlikely]]
        record_allocation(pool, *block, numacre_usable_size(pool, *block));
    return error;
}

}  // namespace

extern "C" {

int numacre_alloc(numacre_pool *pool, size_t size_bytes, void **block) {
    if (block == nullptr) [[unlikely]]
        return no_result("numacre_alloc");
    Lane *const lane = undisturbed_lane(pool);
    if (lane == nullptr) [[unlikely]]
        return allocate_without_lane(pool, size_bytes, block);
    return cached_allocate(*lane, size_bytes, block);
}

int numacre_alloc_on(numacre_pool *pool, int numa_node, size_t size_bytes, unsigned flags, void **block) {
    if (block == nullptr) [[unlikely]]
        return no_result("numacre_alloc_on");
    const Lane *const lane = undisturbed_lane(pool);
    if (flags == NUMACRE_UNCACHED && numa_node == -1 && lane != nullptr) [[likely]] {
        if (lane->numa_nodes > 1) [[unlikely]]
            return tree_allocate_locally(*lane, size_bytes, block);
        // By `only`, a load of its own: with what both need in a register, the compiler saves registers for the shorter
        // way before it knows that it is not taken.
        if (!fits_leaf_word(*lane, size_bytes)) [[unlikely]]
            return tree_allocate_large(*lane, lane->only_node(), size_bytes, block);
        return tree_allocate_in_leaf(*lane, lane->nodes[0], size_bytes, block);
    }
    return allocate_on_without_lane(pool, numa_node, size_bytes, flags, block);
}

int numacre_alloc_policy(numacre_pool *pool, int mode, uint64_t numa_nodes, size_t size_bytes, unsigned flags,
                         void **block) {
    if (pool == nullptr) return no_pool("numacre_alloc_policy");
    if (block == nullptr) return no_result("numacre_alloc_policy");
    if ((flags & kPlaceFlags) != 0)
        return fail(Errc::bad_argument, "numacre_alloc_policy: flags %#x say where beside the policy", flags);
    if (const int error = check_flags(flags)) return error;
    int error = 0;
    Lane *const lane = allocating_lane_of(pool, error);
    if (lane == nullptr) return error;
    Policy policy;
    if ((error = policy_of_call(pool, *lane, mode, numa_nodes, policy)) != 0) return error;
    error = slow_allocate_planned(pool, *lane, plan_with(pool, *lane, policy, size_bytes), size_bytes, flags, block);
    if (error == 0 && recording()) [[unlikely]]
        record_allocation(pool, *block, size_bytes);
    return error;
}

int numacre_free(numacre_pool *pool, void *block) {
    Lane *const lane = undisturbed_lane(pool);
    if (lane == nullptr) [[unlikely]]
        return free_without_lane(pool, block);
    return cached_free(*lane, block);
}

int numacre_free_uncached(numacre_pool *pool, void *block) {
    if (const Lane *const lane = current_lane(pool)) [[likely]]
        return tree_free(*lane, block);
    return free_uncached_without_lane(pool, block);
}

int numacre_alloc_bulk(numacre_pool *pool, size_t size_bytes, void **blocks, unsigned count) {
    unsigned done = 0;
    Lane *const lane = undisturbed_lane(pool);
    if (lane != nullptr && lane->numa_nodes == 1 && blocks != nullptr && fits_leaf_word(*lane, size_bytes)) [[likely]] {
        NodeLane &node = lane->only_node();
        Magazine &magazine = node.magazines[order_of(*lane, size_bytes)];
        done = cached_take_many(*lane, node, magazine, entry_for(*lane, magazine, size_bytes), blocks, count);
        if (done == count) [[likely]]
            return 0;
    }
    return slow_allocate_rest(pool, size_bytes, blocks, count, done);
}

int numacre_free_bulk(numacre_pool *pool, void *const *blocks, unsigned count) {
    unsigned done = 0;
    const Lane *const lane = undisturbed_lane(pool);
    // Nobody waits in an undisturbed lane; between more than so many, slow_free_rest() looks again.
    if (lane != nullptr && blocks != nullptr && count <= kLeafFrames) [[likely]] {
        done = cached_put_many(*lane, blocks, count);
        if (done == count) [[likely]]
            return 0;
    }
    return slow_free_rest(pool, blocks, count, done);
}

numacre_ref numacre_ref_of(numacre_pool *pool, const void *block) {
    if (const Lane *const lane = current_lane(pool)) [[likely]] {
        NodeLane *node = nullptr;
        std::uint64_t frame = 0;
        Reference name;
        if (find_frame(*lane, block, node, frame) && node->buddy->publish_in_leaf(node->self, FrameIndex{frame}, name))
            [[likely]]
            return name.bits();
    }
    return slow_publish(pool, block);
}

int numacre_take(numacre_pool *pool, numacre_ref ref, void **block) {
    if (block == nullptr) return no_result("numacre_take");
    const Lane *const lane = current_lane(pool);
    if (lane == nullptr) [[unlikely]]
        return take_without_lane(pool, ref, block);
    const Reference reference{ref};
    const std::uint32_t numa_node = lane->reference_format.numa_node(reference);
    if (numa_node < lane->numa_nodes && !is_regulated(*lane)) [[likely]] {
        const NodeLane &node = lane->nodes[numa_node];
        Block taken;
        if (node.buddy->take_in_leaf(node.self, reference, age_now(*lane), taken)) [[likely]] {
            *block = address_of(*lane, node, taken.base);
            return 0;
        }
    }
    return slow_take(pool, *lane, ref, block);
}

int numacre_is_asleep(numacre_pool *pool) {
    if (pool == nullptr || pool->fork_generation != fork_generation()) return 0;
    Lane *const lane = find_lane(pool);
    // Or another handler has interrupted the sleep before, and is inside a call of its own.
    if (lane == nullptr || !lane->is_asleep || is_inside_or_changes_hints(lane->nodes[0])) return 0;
    // Once: nobody lowers it for a thread that leaves now.
    lane->is_asleep = false;
    return 1;
}

size_t numacre_usable_size(numacre_pool *pool, const void *block) {
    Place place{};
    Block found;
    IndexEntry entry;
    if (!own_block(pool, block, place, found, entry)) {
        not_owned(pool, block, "numacre_usable_size");
        return 0;
    }
    return static_cast<size_t>(found.order.frames() << pool->geometry.frame_shift);
}

int numacre_client_id(numacre_pool *pool, uint32_t *client_id) {
    if (pool == nullptr) return no_pool("numacre_client_id");
    if (client_id == nullptr) return no_result("numacre_client_id");
    *client_id = pool->client_id;
    return 0;
}

int numacre_get_info(numacre_pool *pool, numacre_pool_info *info) {
    if (pool == nullptr) return no_pool("numacre_get_info");
    if (info == nullptr) return no_result("numacre_get_info");
    const std::size_t room = info->struct_size;
    if (!is_struct_size(room))
        return fail(Errc::bad_argument, "numacre_pool_info.struct_size is %zu: set it to sizeof(numacre_pool_info)",
                    room);
    numacre_pool_info found{};
    found.struct_size = room;
    found.capacity_bytes = pool->geometry.capacity_bytes();
    found.frame_bytes = pool->geometry.frame_bytes();
    found.largest_block_bytes = pool->geometry.chunk_bytes();
    found.metadata_bytes = pool->pool_region_bytes;
    for (std::uint32_t node = 0; node < pool->numa_nodes; ++node)
        found.metadata_bytes += pool->nodes[node].node_region_bytes;
    found.numa_nodes = pool->numa_nodes;
    found.backing = static_cast<std::uint32_t>(pool->nodes[0].backing);
    // An older program has fewer fields than the library, a newer one more: it finds 0 in those.
    std::memcpy(info, &found, room < sizeof found ? room : sizeof found);
    if (room > sizeof found) std::memset(reinterpret_cast<char *>(info) + sizeof found, 0, room - sizeof found);
    return 0;
}

int numacre_region(numacre_pool *pool, int numa_node, void **base, size_t *size_bytes) {
    if (pool == nullptr) return no_pool("numacre_region");
    if (base == nullptr || size_bytes == nullptr) return no_result("numacre_region");
    if (numa_node < 0 || numa_node >= static_cast<int>(pool->numa_nodes))
        return fail(Errc::no_such_node, "numa node %d is not within 0 .. %u", numa_node, pool->numa_nodes - 1);
    *base = pool->nodes[numa_node].data;
    *size_bytes = pool->data_bytes;
    return 0;
}

const char *numacre_last_error(void) {
    return last_error();
}

#define NUMACRE_TEXT_(number) #number
#define NUMACRE_TEXT(number)  NUMACRE_TEXT_(number)
const char *numacre_version(void) {
    return NUMACRE_TEXT(NUMACRE_VERSION_MAJOR) "." NUMACRE_TEXT(NUMACRE_VERSION_MINOR) "." NUMACRE_TEXT(
        NUMACRE_VERSION_PATCH);
}

}  // extern "C"
