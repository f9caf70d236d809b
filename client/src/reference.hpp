// References to blocks past the short path of numacre_ref_of and numacre_take, and the look-up of the caller's own
// block at an address.
#pragma once

#include "numacre/numacre.h"
#include "place.hpp"
#include "pool.hpp"

namespace numacre::client {

// Finds the caller's own block that begins at this address. False: there is none. pool: may be null, or a handle from
// before a fork().
[[gnu::always_inline]] inline bool own_block(numacre_pool *pool, const void *address, Place &place, Block &block,
                                             IndexEntry &entry) {
    if (pool == nullptr || pool->fork_generation != fork_generation()) return false;
    return locate(pool, address, place) &&
           pool->nodes[place.numa_node].buddy().find_entry(place.frame, block, entry) == Errc::ok &&
           entry.owner() == pool->process;
}

// The pool's age now. The lane's copy may be old: a thread that only takes blocks never looks at attention.
// relaxed: an age in seconds.
[[gnu::always_inline]] inline PoolAge age_now(const Lane &lane) {
    return Attention::age(lane.attention_word().load(std::memory_order_relaxed));
}

// numacre_ref_of for a block of any order, and for a thread without a current lane. 0: the caller owns no block there;
// the error is remembered.
[[gnu::noinline]] numacre_ref slow_publish(numacre_pool *pool, const void *address);
// numacre_take for any reference. Counts the block for the taker if the pool has limits.
[[gnu::noinline]] int slow_take(numacre_pool *pool, const Lane &lane, numacre_ref ref, void **block);

}  // namespace numacre::client
