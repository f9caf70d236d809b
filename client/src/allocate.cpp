// Allocations past the common path, tier by tier: the cache of other sizes and numa nodes, the tree beyond the thread's
// own word, and placement, limits and waiting.
#include "allocate.hpp"

#include <cstring>

#include "cache.hpp"
#include "engine.hpp"
#include "errors.hpp"
#include "fast_path.hpp"
#include "idle.hpp"
#include "numacre/shm/idle_caches.hpp"
#include "place.hpp"
#include "report.hpp"

namespace numacre::client {
namespace {

constexpr std::uint64_t kAskAgainAfterNanoseconds = 1'000'000'000;

// --- cached_ ---------------------------------------------------------------------------------------------------------

// Takes a block from the magazine of the plan's first numa node, and refills the magazine if it is empty. False: the
// size is not cached (size 0 never is), or there was no block.
bool cached_allocate_or_refill(numacre_pool *pool, Lane &lane, const Plan &plan, std::size_t size_bytes, void **block) {
    if (!fits_leaf_word(lane, size_bytes)) return false;
    const unsigned order = order_of(lane, size_bytes);
    NodeLane &node = lane.nodes[plan.first];
    Magazine &magazine = node.magazines[order];
    const numacre_inline_wish wish = wish_for(lane, magazine, size_bytes);
    {
        const CacheSteps steps{lane};
        if (!steps || (!cached_take(lane, node, magazine, wish, block) &&
                       !(refill(pool, lane, node, order) && cached_take(lane, node, magazine, wish, block))))
            return false;
    }
    note_placement(pool, lane, plan, plan.first);
    return true;
}

// For object pools: the only sizes that are served are those of an object. Leaves the lane.
[[gnu::noinline]] int cached_allocate_object(Lane &lane, std::size_t size_bytes, void **block) {
    bool is_taken = false;
    if (const std::uint32_t numa_node = lane.numa_nodes == 1 ? 0 : obvious_numa_node(lane);
        fits_leaf_word(lane, size_bytes) && numa_node < lane.numa_nodes) {
        NodeLane &node = lane.nodes[numa_node];
        Magazine &magazine = node.magazines[0];
        is_taken = cached_take(lane, node, magazine, wish_for(lane, magazine, size_bytes), block);
    }
    leave_cache(lane);
    return is_taken ? 0 : slow_allocate(lane.pool, size_bytes, block);
}

// For object pools and pools of more than one numa node. Out of line: finding the local numa node may take a call. If
// the cache has no such block, slow_allocate() checks, once a second, whether the local numa node is still the right
// one. Leaves the lane.
[[gnu::noinline]] int cached_allocate_locally(Lane &lane, std::size_t size_bytes, void **block) {
    if (lane.shifting_nodes == 0) return cached_allocate_object(lane, size_bytes, block);
    NodeLane &node = lane.nodes[obvious_numa_node(lane)];
    const bool is_as_before = size_bytes == node.asked_bytes;
    const std::uint64_t frames_less_one = (size_bytes - 1) >> lane.frame_shift;  // of size 0: far too large
    const bool is_taken = is_as_before ? numacre_inline_take_as_before(&lane, &node, block) != 0
                                       : &node != lane.only && frames_less_one < kLeafFrames &&
                                             cached_take_other_size(lane, node, size_bytes, frames_less_one, block);
    leave_cache(lane);
    return is_taken ? 0 : slow_allocate(lane.pool, size_bytes, block);
}

// --- tree_ -----------------------------------------------------------------------------------------------------------

// Allocates a block larger than a leaf word from the upper word that the thread used last; no limits. order is valid.
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

// Allocates a block of a layer above the lowest upper one.
[[gnu::noinline]] int tree_allocate_above(const Lane &lane, NodeLane &node, std::size_t size_bytes, void **result) {
    const Order order = order_for_bytes(size_bytes, lane.frame_shift);
    return tree_allocate_in_upper(lane, node, layer_of(order), order, size_bytes, result);
}

// --- slow_ -----------------------------------------------------------------------------------------------------------

// Tries each numa node of the plan once.
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

// Allocates at a place that `fit` chooses, not at the thread's own word. False: other threads were quicker each time,
// or no free block was seen.
[[gnu::cold]] bool slow_allocate_by_fit(Lane &lane, NodeLane &node, Fit fit, Order order, Note note, Block &block) {
    constexpr int kTries = 3;
    for (int i = 0; i < kTries; ++i)
        if (!FitLook{node.buddy->view(), order, fit}.find(++lane.looks, block))
            return false;
        else if (node.buddy->allocate_at(lane.actor, block, note))
            return true;
    return false;
}

// The tree has no free block: blocks in the caches of this thread or of others may serve.
[[gnu::cold]] Errc slow_allocate_under_pressure(numacre_pool *pool, Lane &lane, const Plan &plan, Order order,
                                                Note note, std::uint32_t &got, Block &block) {
    // A wait that a handler left by longjmp() may have been given a block since.
    const bool has_forgotten = forget_wish(pool, lane);
    if ((give_back_all(pool, lane) != 0 || has_forgotten) &&
        slow_try_planned(pool, lane.actor, plan, order, note, got, block) == Errc::ok)
        return Errc::ok;
    const std::uint64_t now = now_nanoseconds();
    ask_others_to_give_back(pool, lane);
    if (!take_back_idle_caches(pool, lane, now)) return Errc::out_of_frames;
    return slow_try_planned(pool, lane.actor, plan, order, note, got, block);
}

}  // namespace

// --- cached_ ---------------------------------------------------------------------------------------------------------

int cached_allocate_other_size(Lane &lane, std::size_t size_bytes, void **block) {
    if (lane.shifting_nodes != 1) return cached_allocate_locally(lane, size_bytes, block);
    const std::uint64_t frames_less_one = (size_bytes - 1) >> lane.frame_shift;  // of size 0: far too large
    // Larger than all blocks that are cached.
    if (frames_less_one >= kLeafFrames) {
        leave_cache(lane);
        return tree_allocate_large(lane, lane.only_node(), size_bytes, block);
    }
    const bool is_taken = cached_take_other_size(lane, lane.only_node(), size_bytes, frames_less_one, block);
    leave_cache(lane);
    return is_taken ? 0 : tree_allocate_past_empty(lane, size_bytes, block);
}

// --- tree_ -----------------------------------------------------------------------------------------------------------

int tree_allocate_past_empty(Lane &lane, std::size_t size_bytes, void **block) {
    if (order_of(lane, size_bytes) < kSingleOrder) return slow_allocate(lane.pool, size_bytes, block);
    if (lane.restraint != 0) --lane.restraint;
    return tree_allocate(lane, lane.only_node(), size_bytes, block);
}

int tree_allocate_large(const Lane &lane, NodeLane &node, std::size_t size_bytes, void **block) {
    const unsigned order = order_of(lane, size_bytes);
    if (size_bytes - 1 >= lane.largest_bytes || is_regulated(lane) || is_inside(node)) [[unlikely]]
        return slow_allocate_on(lane.pool, -1, size_bytes, NUMACRE_UNCACHED, block);
    // In the lowest of the upper layers, where nearly all of these blocks are, the layer is a constant.
    if (order > word_order(1)) return tree_allocate_above(lane, node, size_bytes, block);
    return tree_allocate_in_upper(lane, node, 1, Order{order}, size_bytes, block);
}

int tree_allocate_locally(const Lane &lane, std::size_t size_bytes, void **block) {
    const std::uint32_t node = obvious_numa_node(lane);
    if (node == lane.numa_nodes) [[unlikely]]
        return slow_allocate_on(lane.pool, -1, size_bytes, NUMACRE_UNCACHED, block);
    return tree_allocate(lane, lane.nodes[node], size_bytes, block);
}

int tree_allocate_further(const Lane &lane, NodeLane &node, std::size_t size_bytes, void **result) {
    const Order order = order_for_bytes(size_bytes, lane.frame_shift);
    const Note note = note_of(lane, order, size_bytes);
    Block block;
    if (node.buddy->allocate_further(node.self, order, note, block) != Errc::ok)
        return slow_allocate_on(lane.pool, -1, size_bytes, NUMACRE_UNCACHED, result);
    *result = address_of(lane, node, block.base);
    return 0;
}

int tree_allocate_after_race(const Lane &lane, NodeLane &node, std::size_t size_bytes, void **result) {
    node.buddy->give_up(node.self);
    return tree_allocate_further(lane, node, size_bytes, result);
}

int tree_finish_allocation(const Lane &lane, NodeLane &node, FrameIndex base, std::size_t size_bytes, void **result) {
    const Order order = order_for_bytes(size_bytes, lane.frame_shift);
    const Note note = note_of(lane, order, size_bytes);
    if (!node.buddy->finish_allocation(node.self, note, Block{base, order}))
        return tree_allocate_further(lane, node, size_bytes, result);
    *result = address_of(lane, node, base);
    return 0;
}

// --- slow_ -----------------------------------------------------------------------------------------------------------

Lane *allocating_lane_of(numacre_pool *pool, int &error) {
    Lane *const lane = attentive_lane_of(pool, error);
    // relaxed: damage may be reported one call later.
    if (lane == nullptr || !is_damaged(*pool, lane->attention_word().load(std::memory_order_relaxed))) [[likely]]
        return lane;
    error = damaged_pool();
    return nullptr;
}

Errc slow_charge_under_pressure(numacre_pool *pool, Lane &lane, Charge &charge) {
    if (give_back_all(pool, lane) != 0 && charge.make()) return Errc::ok;
    // A thread that stays at its quota must not keep all others from their caches: after an attempt that has not
    // helped, it asks once a second. Memory that is reserved for others is short for everybody.
    const std::uint64_t now = now_nanoseconds();
    const std::uint64_t pause = charge.is_over_quota() && !lane.asking_helps ? kAskAgainAfterNanoseconds
                                                                             : engine::kBarrierAgainAfterNanoseconds;
    if (lane.asked_at_ns == 0 || now - lane.asked_at_ns >= pause) {
        lane.asked_at_ns = now;
        ask_others_to_give_back(pool, lane);
        lane.asking_helps = take_back_idle_caches(pool, lane, now) && charge.make();
        if (lane.asking_helps) return Errc::ok;
    }
    return charge.is_over_quota() ? Errc::over_quota : Errc::out_of_frames;
}

int slow_allocate(numacre_pool *pool, std::size_t size_bytes, void **block) {
    int error = 0;
    Lane *const lane = allocating_lane_of(pool, error);
    if (lane == nullptr) return error;
    const Plan plan = plan_of(pool, *lane, size_bytes);
    if (cached_allocate_or_refill(pool, *lane, plan, size_bytes, block)) return 0;
    if (lane->numa_nodes == 1 || plan.first == obvious_numa_node(*lane))
        return tree_allocate(*lane, lane->nodes[plan.first], size_bytes, block);
    return slow_allocate_past_cache(pool, *lane, plan, size_bytes, 0, block);
}

int slow_allocate_on(numacre_pool *pool, int numa_node, std::size_t size_bytes, unsigned flags, void **block) {
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

int slow_allocate_planned(numacre_pool *pool, Lane &lane, Plan plan, std::size_t size_bytes, unsigned flags,
                          void **block) {
    if ((flags & NUMACRE_STRICT) != 0) plan = plan.no_further();
    if ((flags & (NUMACRE_UNCACHED | NUMACRE_COMPACT)) != 0 ||
        !cached_allocate_or_refill(pool, lane, plan, size_bytes, block))
        return slow_allocate_past_cache(pool, lane, plan, size_bytes, flags, block);
    if ((flags & NUMACRE_ZERO) != 0)
        memset(*block, 0, lane.scale.offset(order_for_bytes(size_bytes, lane.frame_shift).frames()));
    return 0;
}

int slow_allocate_past_cache(numacre_pool *pool, Lane &lane, const Plan &plan, std::size_t size_bytes, unsigned flags,
                             void **result) {
    const Actor actor = lane.actor;
    const std::uint32_t wanted = plan.first;
    if (size_bytes - 1 >= pool->geometry.chunk_bytes()) [[unlikely]]
        return bad_size(pool, actor, wanted, size_bytes);
    const Order order = order_for_bytes(size_bytes, lane.frame_shift);
    const std::uint64_t granted = lane.scale.offset(order.frames());
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
        if (code == Errc::forked_handle) [[unlikely]]
            return fail_forked();
    }
    if (code != Errc::ok) [[unlikely]] {
        charge.undo();
        return allocation_failed(pool, lane, wanted, code, order.frames(), size_bytes, charge.answer);
    }
    note_placement(pool, lane, plan, got);
    void *const address = address_of(pool, got, block);
    if ((flags & NUMACRE_ZERO) != 0) memset(address, 0, granted);
    *result = address;
    return 0;
}

}  // namespace numacre::client
