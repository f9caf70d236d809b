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

// At most so many blocks are taken between two looks at the pool's limits, and are fetched ahead of the first take.
inline constexpr unsigned kTakenAtOnce = 32;

// How many of the first references name blocks of this numa node.
inline unsigned count_of_node(const Lane &lane, const numacre_ref *refs, unsigned most, std::uint32_t numa_node) {
    unsigned count = 0;
    while (count < most && lane.reference_format.numa_node(Reference{refs[count]}) == numa_node) ++count;
    return count;
}

// numacre_take_bulk of blocks in leaf words, in a pool without limits. Returns how many have been taken: fewer than
// `count` if slow_take() has to look at the next one.
[[gnu::always_inline]] inline unsigned take_many_in_leaf(const Lane &lane, const numacre_ref *refs, void **blocks,
                                                         unsigned count) {
    const PoolAge since = age_now(lane);
    unsigned done = 0;
    while (done < count && !is_regulated(lane)) {
        const std::uint32_t numa_node = lane.reference_format.numa_node(Reference{refs[done]});
        if (numa_node >= lane.numa_nodes) [[unlikely]]
            break;
        const NodeLane &node = lane.nodes[numa_node];
        char *const data = node.data;
        const FrameScale scale = lane.scale;
        const unsigned most = count - done < kTakenAtOnce ? count - done : kTakenAtOnce;
        const unsigned wanted = lane.numa_nodes == 1 ? most : count_of_node(lane, refs + done, most, numa_node);
        void **const to = blocks + done;
        const unsigned taken = node.buddy->take_many_in_leaf(
            node.self, refs + done, wanted, since,
            [&](unsigned number, FrameIndex base) { to[number] = data + scale.offset(base.value); });
        if (taken == 0) [[unlikely]]
            break;
        done += taken;
    }
    return done;
}

// numacre_ref_of for a block of any order, and for a thread without a current lane. 0: the caller owns no block there;
// the error is remembered.
[[gnu::noinline]] numacre_ref slow_publish(numacre_pool *pool, const void *address);
// numacre_ref_bulk behind the first `done` blocks. Goes on behind a block that is not the caller's; returns the first
// error.
[[gnu::noinline]] int slow_publish_many(numacre_pool *pool, void *const *blocks, numacre_ref *refs, unsigned count,
                                        unsigned done);
// numacre_take_bulk behind the first `done` references, in the same way: one by slow_take(), the next ones by
// take_many_in_leaf() again.
[[gnu::noinline]] int slow_take_many(numacre_pool *pool, const Lane &lane, const numacre_ref *refs, void **blocks,
                                     unsigned count, unsigned done);
// numacre_take for any reference. Counts the block for the taker if the pool has limits, and records the take.
[[gnu::noinline]] int slow_take(numacre_pool *pool, const Lane &lane, numacre_ref ref, void **block);

}  // namespace numacre::client
