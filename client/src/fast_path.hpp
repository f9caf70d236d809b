// The common path of numacre_alloc, numacre_free and their uncached kin, inlined into the C functions and into the
// steps of allocate.cpp and free.cpp. tests/unit/hot_path_test.cpp counts its instructions.
//
// A function's name says at which tier it begins; each tier falls through to the next one:
//   cached_  the thread's own magazines (lane.hpp), by plain stores, in an entered lane (entered_lane(), CacheSteps)
//   tree_    the shared tree, by the short paths of the lane: no limits, no signal handler inside a call
//   slow_    everything that a call can ask for: placement, limits, waiting, the pool's requests for attention
// Rare cases are tail calls, so that the common path saves no registers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "allocate.hpp"
#include "free.hpp"
#include "lane.hpp"
#include "pool.hpp"

namespace numacre::client {

using ShortPath = Buddy<Env>::ShortPath;

// --- allocate --------------------------------------------------------------------------------------------------------

// Size 0 becomes an order far too large.
[[gnu::always_inline]] inline unsigned order_of(const Lane &lane, std::size_t size_bytes) {
    return static_cast<unsigned>(order_above((size_bytes - 1) >> lane.frame_shift));
}

// Size 0 becomes far too many bytes.
[[gnu::always_inline]] inline bool fits_leaf_word(const Lane &lane, std::size_t size_bytes) {
    return size_bytes - 1 < lane.leaf_bytes;
}

// Allocates from the leaf word that the thread used last. The size fits a leaf word; no limits.
[[gnu::always_inline]] inline int tree_allocate_in_leaf(const Lane &lane, NodeLane &node, std::size_t size_bytes,
                                                        void **result) {
    const Order order{order_of(lane, size_bytes)};
    if (is_regulated(lane) || is_inside(node)) [[unlikely]]
        return slow_allocate_on(lane.pool, -1, size_bytes, NUMACRE_UNCACHED, result);
    Block block;
    // The note gets a copy of the order: when the note is computed, the compiler has put that copy on the stack.
    // Without the copy, earlier uses of the order would read it back from the stack.
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

// Allocates a block of any size from one numa node; no limits.
[[gnu::always_inline]] inline int tree_allocate(const Lane &lane, NodeLane &node, std::size_t size_bytes,
                                                void **result) {
    return fits_leaf_word(lane, size_bytes) ? tree_allocate_in_leaf(lane, node, size_bytes, result)
                                            : tree_allocate_large(lane, node, size_bytes, result);
}

// numacre_alloc in an entered lane. Leaves it.
[[gnu::always_inline]] inline int cached_allocate(Lane &lane, std::uint64_t *inside, std::size_t size_bytes,
                                                  void **block) {
    if (size_bytes != lane.only->asked_bytes) [[unlikely]]
        return cached_allocate_other_size(lane, size_bytes, block);
    const bool is_taken = numacre_inline_take_as_before(&lane, lane.only, block) != 0;
    numacre_inline_end(inside);
    if (is_taken) [[likely]]
        return 0;
    return tree_allocate_past_empty(lane, size_bytes, block);
}

// --- free ------------------------------------------------------------------------------------------------------------

// Frees a block of a leaf word; no limits.
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
        return tree_finish_free(lane, *node, freed.base, freed.order.value);
    if (has_waiters(lane)) [[unlikely]]
        return tree_serve_waiters(lane);
    return 0;
}

// numacre_free in an entered lane. Leaves it.
[[gnu::always_inline]] inline int cached_free(Lane &lane, std::uint64_t *inside, void *block) {
    std::uint64_t *slot = nullptr;
    std::uint64_t entry = 0;
    if (!numacre_inline_look_up(&lane, block, &slot, &entry)) [[unlikely]]
        return cached_free_other_node(lane, block);
    if (!numacre_inline_is_as_before(&lane, entry)) [[unlikely]]
        return cached_free_other_order(lane, block, slot, entry);
    const bool is_put = numacre_inline_put(&lane, lane.freed_magazine, block, slot, entry) != 0;
    numacre_inline_end(inside);
    if (is_put) [[likely]]
        return 0;
    return tree_free_past_full(lane, block, slot, entry);
}

}  // namespace numacre::client
