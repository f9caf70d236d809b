// Channels of a pool, as this process sees them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "bells.hpp"
#include "engine.hpp"
#include "numacre/numacre.h"
#include "numacre/shm/channel/area.hpp"
#include "numacre/shm/channel/channel.hpp"
#include "pool.hpp"

namespace numacre::client {

// The numa nodes that the blocks of a channel are in.
struct ChannelNodes {
    numacre_pool *pool;
    Buddy<Env> &at(std::uint32_t numa_node) const { return pool->nodes[numa_node].buddy(); }
    std::uint32_t count() const { return pool->numa_nodes; }
};
using PoolChannel = Channel<Env, ChannelNodes>;

// A channel: its place in the area of its pool, and its seat.
struct ChannelPlace {
    std::uint64_t offset = 0;
    ChannelShape shape;
    ProcessSlot seat;
};

// 0: any.
inline ChannelShape wish_of(const numacre_channel_options &options) {
    return {options.capacity, options.burst, options.parties};
}

inline ChannelView<Env> view_of(const numacre_pool *pool, const ChannelPlace &place) {
    const auto layout = PoolLayout<Env>::of(pool->view.process_slots, pool->view.thread_slots);
    return ChannelView<Env>::at(static_cast<std::byte *>(pool->pool_region) + layout.channels + place.offset,
                                place.shape);
}

}  // namespace numacre::client

struct numacre_channel {
    numacre_pool *pool;
    numacre::client::PoolChannel channel;
    std::uint32_t party;
    numacre::engine::ProcessSlot seat;
    char name[numacre::engine::kChannelNameBytes];
    numacre::client::HandleBells bells{};
};
