// Broadcasts, as their readers use them (shm/channel/broadcast.hpp).
#pragma once

#include "channel.hpp"
#include "engine.hpp"
#include "given_blocks.hpp"
#include "numacre/numacre.h"
#include "pool.hpp"

namespace numacre::client {

// Drops what the handle's party reads: drop(Heir, give) is the engine's call. Blocks of which it is the last reader,
// after they have been overwritten, are freed. Without a thread slot they stay this process's until its end.
template <class Drop>
void drop_what_is_read(numacre_channel *channel, const Drop &drop) {
    numacre_pool *const pool = channel->pool;
    int error = 0;
    const Lane *const lane = lane_of(pool, error);
    const bool is_counted = lane != nullptr && is_counting(pool);
    if (is_counted) count_what_is_held(pool);
    const CountedCall of_given{pool, lane != nullptr ? lane->actor : Actor{},
                               is_counted ? kBurstMost * pool->geometry.largest().frames() : 0, channel->seat};
    GivenBlocks given{channel};
    const PoolAge since = Attention::age(pool->view.header->attention.load(std::memory_order_relaxed));
    drop(Heir{channel->party, pool->process, since},
         [&given](NumaNode numa_node, Block block) { given(numa_node, block); });
    given.free_all();
}

}  // namespace numacre::client
