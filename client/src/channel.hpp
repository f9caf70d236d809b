// Channels of a pool, as this process sees them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "bells.hpp"
#include "engine.hpp"
#include "numacre/numacre.h"
#include "numacre/shm/channel/area.hpp"
#include "numacre/shm/channel/bells.hpp"
#include "numacre/shm/channel/broadcast.hpp"
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
using PoolBroadcast = Broadcast<Env, ChannelNodes>;

// A channel: its place in the area of its pool, and its seat.
struct ChannelPlace {
    std::uint64_t offset = 0;
    ChannelShape shape;
    ProcessSlot seat;
};

inline ChannelKind kind_of(const numacre_channel_options &options) {
    return (options.flags & NUMACRE_CHANNEL_BROADCAST) != 0 ? ChannelKind::broadcast : ChannelKind::queue;
}
// 0: any.
inline ChannelShape wish_of(const numacre_channel_options &options) {
    return {options.capacity, options.burst, options.parties, kind_of(options)};
}

inline void *memory_of(const numacre_pool *pool, const ChannelPlace &place) {
    const auto layout = PoolLayout<Env>::of(pool->view.process_slots, pool->view.thread_slots);
    return static_cast<std::byte *>(pool->pool_region) + layout.channels + place.offset;
}
inline ChannelView<Env> view_of(const numacre_pool *pool, const ChannelPlace &place) {
    return ChannelView<Env>::at(memory_of(pool, place), place.shape);
}
inline BroadcastView<Env> broadcast_view_of(const numacre_pool *pool, const ChannelPlace &place) {
    return BroadcastView<Env>::at(memory_of(pool, place), BroadcastShape::of(place.shape));
}

template <class View>
Bells<Env, View> bells_on(const View &view) {
    return Bells<Env, View>{view};
}

// The channel of a name has another kind than the caller says. Returns -errno.
int fail_other_kind(const char *name, ChannelKind there);
// Somebody has scribbled over the words of a channel. Returns -errno.
int fail_scribbled();

}  // namespace numacre::client

struct numacre_channel {
    numacre_pool *pool;
    // One of the two.
    std::optional<numacre::client::PoolChannel> queue;
    std::optional<numacre::client::PoolBroadcast> broadcast;
    numacre::engine::ChannelShape shape;
    std::uint32_t party;
    bool receives;  // or both
    numacre::engine::ProcessSlot seat;
    char name[numacre::engine::kChannelNameBytes];
    numacre::client::HandleBells bells{};
};

namespace numacre::client {

// act(PoolChannel &) or act(PoolBroadcast &), whose answers have one type.
template <class Act>
auto with_ring(numacre_channel *channel, const Act &act) {
    return channel->broadcast ? act(*channel->broadcast) : act(*channel->queue);
}
inline bool is_closed(numacre_channel *channel) {
    return with_ring(channel, [](const auto &ring) { return ring.is_closed(); });
}
inline bool have_all_gone(numacre_channel *channel, std::uint64_t role) {
    return with_ring(channel, [role](const auto &ring) { return ring.have_all_gone(role); });
}
// Whether a receive, or a read, would find something.
inline bool has_messages(numacre_channel *channel) {
    return with_ring(channel, [](const auto &ring) { return ring.has_messages(); });
}
// Whether a send of `count` blocks would find room.
inline bool has_room(numacre_channel *channel, unsigned count) {
    return channel->broadcast || channel->queue->has_room(count);
}

}  // namespace numacre::client
