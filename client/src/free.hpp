// Frees out of line: blocks unlike those of the last frees, magazines without room, the tree's rare cases, and frees
// that have to check limits, waiters or the pool's state.
//
// fast_path.hpp leaves its common path to these functions by tail calls only, so that the path saves no registers.
#pragma once

#include <cstdint>

#include "pool.hpp"

namespace numacre::client {

// --- cached_: into the thread's magazines ----------------------------------------------------------------------------

// The block lies on another numa node than the last ones, or its address is no frame of the pool.
[[gnu::noinline]] int cached_free_other_node(Lane &lane, void *block);
// The block lies on the numa node of the last ones and has another order. slot, entry: the block's entry in the index.
[[gnu::noinline]] int cached_free_other_order(Lane &lane, void *block, std::uint64_t *slot, std::uint64_t entry);

// --- tree_: past the cache; no limits --------------------------------------------------------------------------------

// The block is like the last ones, and its magazine has no room or takes no blocks. (Before the first free, every block
// without an entry in the leaf layer, a larger one, is like the last ones.)
[[gnu::noinline]] int tree_free_past_full(const Lane &lane, void *block, std::uint64_t *slot, std::uint64_t entry);
// A block larger than a leaf word; the thread is not inside.
[[gnu::noinline]] int tree_free_large(const Lane &lane, NodeLane &node, FrameIndex base, void *block);
// Takes the last step of a free that has begun: raises the hints above the block's word.
// order: the value of an Order. Passed as an Order, it would cost the common path a register that has to be saved.
[[gnu::noinline]] int tree_finish_free(const Lane &lane, NodeLane &node, FrameIndex base, unsigned order);
// The last step of a free that has seen waiters. Returns 0.
[[gnu::noinline]] int tree_serve_waiters(const Lane &lane);

// --- slow_: all that a free can meet ---------------------------------------------------------------------------------

// numacre_free of a block that cannot simply go into its magazine: the magazine is full, or other processes may still
// take the block, or the pool wants attention, or a trace is recorded.
[[gnu::noinline]] int slow_free(numacre_pool *pool, void *block);
// numacre_free_uncached of any address.
[[gnu::noinline]] int slow_free_uncached(numacre_pool *pool, void *block);
// Returns a block at any address to the shared tree. The thread is not inside.
[[gnu::noinline]] int slow_free_past_cache(numacre_pool *pool, Actor actor, void *block);

}  // namespace numacre::client
