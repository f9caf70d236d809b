// References to blocks past the short way of numacre_ref_of and numacre_take, and who owns the block at an address.
#pragma once

#include "numacre/numacre.h"
#include "place.hpp"
#include "pool.hpp"

namespace numacre::client {

// Finds the caller's own block that begins at this address. False: there is none. pool: may be null, or of before a
// fork().
[[gnu::always_inline]] inline bool own_block(numacre_pool *pool, const void *address, Place &place, Block &block,
                                             IndexEntry &entry) {
    if (pool == nullptr || pool->fork_generation != fork_generation()) return false;
    return locate(pool, address, place) &&
           pool->nodes[place.numa_node].buddy().find_entry(place.frame, block, entry) == Errc::ok &&
           entry.owner() == pool->process;
}

// relaxed: an age in seconds. Not the lane's: a thread that only takes is never asked for its attention.
[[gnu::always_inline]] inline PoolAge age_now(const Lane &lane) {
    return Attention::age(lane.attention_word().load(std::memory_order_relaxed));
}

// numacre_ref_of for a block of any order, and for a thread without a current lane. 0: no block of the caller's; the
// error is remembered.
[[gnu::noinline]] numacre_ref slow_publish(numacre_pool *pool, const void *address);
// numacre_take for any reference: counts the block for the taker where the pool has limits.
[[gnu::noinline]] int slow_take(numacre_pool *pool, const Lane &lane, numacre_ref ref, void **block);

}  // namespace numacre::client
