// Allocations out of line: sizes other than that of the last calls, the tree beyond the thread's own word, and
// everything that a call can ask for.
//
// fast_path.hpp leaves its common path to these functions by tail calls only, so that the path saves no registers.
#pragma once

#include <cstddef>

#include "pool.hpp"

namespace numacre::client {

// Shift of the timeout in flags, in milliseconds (NUMACRE_WAIT_MS).
inline constexpr unsigned kWaitShift = 8;

[[gnu::always_inline]] inline Note note_of(const Lane &lane, Order order, std::size_t size_bytes) {
    return lane.since_now.for_request(size_bytes, order.value + lane.frame_shift);
}

// --- cached_: from the thread's magazines ----------------------------------------------------------------------------

// The size differs from that of the last calls.
[[gnu::noinline]] int cached_allocate_other_size(Lane &lane, std::size_t size_bytes, void **block);

// --- tree_: past the cache, from one numa node; no limits ------------------------------------------------------------

// The magazine of the pool's only numa node is empty, or its top block was not cached any more. In a pool of several
// numa nodes, lane.only is none of them, and only calls of size 0 (an invalid size) come here.
[[gnu::noinline]] int tree_allocate_past_empty(Lane &lane, std::size_t size_bytes, void **block);
// A block larger than a leaf word, or of a size that does not exist.
[[gnu::noinline]] int tree_allocate_large(const Lane &lane, NodeLane &node, std::size_t size_bytes, void **block);
// For pools of more than one numa node. Out of line: finding the local numa node may take a call.
[[gnu::noinline]] int tree_allocate_locally(const Lane &lane, std::size_t size_bytes, void **block);
// The thread's own word has no block of this size.
[[gnu::noinline]] int tree_allocate_further(const Lane &lane, NodeLane &node, std::size_t size_bytes, void **block);
// Another thread was quicker at the thread's own word.
[[gnu::noinline]] int tree_allocate_after_race(const Lane &lane, NodeLane &node, std::size_t size_bytes, void **block);
// Takes the last step of an allocation that has begun: marks the tree above the block's word, or undoes the claim.
[[gnu::noinline]] int tree_finish_allocation(const Lane &lane, NodeLane &node, FrameIndex base, std::size_t size_bytes,
                                             void **block);

// --- slow_: everything that a call can ask for -----------------------------------------------------------------------

// A limit refuses the charge: the count may fall soon, when this thread and others give their caches back. Returns
// over_quota, or out_of_frames if the free memory is reserved.
[[gnu::cold]] Errc slow_charge_under_pressure(numacre_pool *pool, Lane &lane, Charge &charge);
// Like attentive_lane_of(), for a call that allocates. nullptr also if the pool is damaged.
Lane *allocating_lane_of(numacre_pool *pool, int &error);

// numacre_alloc of a thread whose cache has no block ready.
[[gnu::noinline]] int slow_allocate(numacre_pool *pool, std::size_t size_bytes, void **block);
// numacre_alloc_on. numa_node: -1, or one of the pool's; flags: a valid combination.
[[gnu::noinline]] int slow_allocate_on(numacre_pool *pool, int numa_node, std::size_t size_bytes, unsigned flags,
                                       void **block);
// Allocates by a plan, from the cache if the flags permit it.
int slow_allocate_planned(numacre_pool *pool, Lane &lane, Plan plan, std::size_t size_bytes, unsigned flags,
                          void **block);
// Allocates by a plan, from the shared tree: fit, limits, waiting.
[[gnu::noinline]] int slow_allocate_past_cache(numacre_pool *pool, Lane &lane, const Plan &plan, std::size_t size_bytes,
                                               unsigned flags, void **block);

}  // namespace numacre::client
