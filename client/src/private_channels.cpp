// Channels of a private pool: between the threads of this process.
#include "private_channels.hpp"

#include <cstring>

#include "channel.hpp"
#include "errors.hpp"
#include "numacre/os/kernel.hpp"
#include "pool.hpp"

namespace numacre::client {
namespace {

ChannelPlace place_of(const PrivateChannel &channel) {
    return {channel.extent.offset, channel.shape, channel.seat};
}

// Of a channel that nobody has open. A broadcast keeps blocks for those who have it open.
bool has_something_left(numacre_pool *pool, const PrivateChannel &channel) {
    return !channel.shape.is_broadcast() &&
           PoolChannel{view_of(pool, place_of(channel)), channel.seat, ChannelNodes{pool}}.has_messages();
}

// give(NumaNode, Block): a block that is the process's now.
template <class Give>
void take_all(numacre_pool *pool, const PrivateChannel &channel, Actor actor, const Give &give) {
    if (channel.shape.is_broadcast()) {
        const PoolBroadcast ours{broadcast_view_of(pool, place_of(channel)), channel.seat, ChannelNodes{pool}};
        return ours.give_all(Heir{1, pool->process, {}}, give);
    }
    const PoolChannel ours{view_of(pool, place_of(channel)), channel.seat, ChannelNodes{pool}};
    const std::uint32_t party = ours.join(pool->process, PartyOwner::kReceives);
    const auto give_one = [&give](unsigned, NumaNode numa_node, Block block) { give(numa_node, block); };
    while (party != kDaemonParty &&
           ours.receive(party, actor, kBurstMost, {}, give_one).result == ReceiveResult::received) {
    }
}

// Frees what is left in a channel that nobody has open, and forgets it.
void drop_private(numacre_pool *pool, PrivateChannel &channel) {
    int error = 0;
    const Lane *const lane = lane_of(pool, error);
    // Without a thread slot the blocks stay the channel's until the pool ends.
    if (lane != nullptr) {
        take_all(pool, channel, lane->actor, [&](NumaNode numa_node, Block block) {
            Block freed;
            (void)pool->nodes[numa_node.value].buddy().free(lane->actor, block.base, freed);
        });
        if (has_waiters(pool)) serve_waiters(pool, lane->actor);
    }
    channel.extent = {};
}

PrivateChannel *find_private(numacre_pool *pool, const char *name) {
    for (PrivateChannel &each : pool->private_channels.all)
        if (each.extent.bytes != 0 && strcmp(each.name, name) == 0) return &each;
    return nullptr;
}

int fail_other_sizes(const char *name, const ChannelShape &shape) {
    return fail_with_remedy(Errc::already_exists,
                            "there is a channel \"%s\" of capacity %u, burst %u, parties %u: ask for these, or for 0",
                            name, shape.capacity, shape.burst, shape.parties);
}

// The channel that is there, if its sizes fit.
int open_found(PrivateChannel &channel, const numacre_channel_options &options, ChannelPlace &found) {
    const ChannelShape &shape = channel.shape;
    if (kind_of(options) != shape.kind) return fail_other_kind(channel.name, shape.kind);
    if (!wish_of(options).is_met_by(shape)) return fail_other_sizes(channel.name, shape);
    ++channel.opened;
    found = {channel.extent.offset, shape, channel.seat};
    return 0;
}

}  // namespace

int open_private_channel(numacre_pool *pool, const char *name, const numacre_channel_options &options,
                         ChannelPlace &found) {
    PrivateChannels &channels = pool->private_channels;
    const PrivateChannels::Lock lock{channels};
    if (PrivateChannel *const there = find_private(pool, name)) return open_found(*there, options, found);
    if ((options.flags & NUMACRE_CHANNEL_EXISTING) != 0)
        return fail_with_remedy(Errc::no_such_pool,
                                "there is no channel \"%s\": open it without NUMACRE_CHANNEL_EXISTING first", name);
    ChannelExtent taken[kChannels];
    std::uint32_t unused = kChannels;
    for (std::uint32_t i = 0; i < kChannels; ++i) {
        taken[i] = channels.all[i].extent;
        if (taken[i].bytes == 0 && unused == kChannels) unused = i;
    }
    const ChannelShape shape = wish_of(options).with_defaults();
    const std::uint64_t bytes = channel_bytes<Env>(shape);
    const std::uint64_t offset = find_channel_place(taken, bytes);
    if (unused == kChannels || offset == kChannelAreaBytes)
        return fail_with_remedy(Errc::too_many_clients,
                                "the pool has no place for one more channel of %llu bytes: it has %u channels at most, "
                                "of %llu bytes together: remove one, or ask for a smaller one",
                                static_cast<unsigned long long>(bytes), kChannels,
                                static_cast<unsigned long long>(kChannelAreaBytes));
    PrivateChannel &channel = channels.all[unused];
    channel.seat = ProcessSlot{static_cast<std::uint16_t>(kFirstPrivateChannel.value + unused)};
    found = {offset, shape, channel.seat};
    memset(memory_of(pool, found), 0, bytes);
    if (shape.is_broadcast())
        format_broadcast(broadcast_view_of(pool, found));
    else
        format_channel(view_of(pool, found));
    channel.extent = {offset, bytes};
    channel.shape = shape;
    channel.opened = 1;
    channel.stays = (options.flags & NUMACRE_CHANNEL_STAYS) != 0;
    memcpy(channel.name, name, strlen(name) + 1);
    return 0;
}

void close_private_channel(numacre_pool *pool, const char *name) {
    const PrivateChannels::Lock lock{pool->private_channels};
    PrivateChannel *const found = find_private(pool, name);
    if (found != nullptr && --found->opened == 0 && !found->stays && !has_something_left(pool, *found))
        drop_private(pool, *found);
}

void close_private_bells(numacre_pool *pool) {
    PrivateChannels &channels = pool->private_channels;
    const std::uint64_t inode = channels.bell_inode.load(std::memory_order_relaxed);
    for (auto &of_channel : channels.bells)
        for (std::atomic<int> &bell : of_channel)
            if (const int fd = bell.exchange(0) - 1; fd >= 0 && is_ours(fd, inode)) os::close(fd);
}

int remove_private_channel(numacre_pool *pool, const char *name) {
    const PrivateChannels::Lock lock{pool->private_channels};
    PrivateChannel *const found = find_private(pool, name);
    if (found == nullptr)
        return fail_with_remedy(Errc::no_such_pool, "there is no channel \"%s\": nothing has been removed", name);
    found->stays = false;
    if (found->opened == 0) drop_private(pool, *found);
    return 0;
}

}  // namespace numacre::client
