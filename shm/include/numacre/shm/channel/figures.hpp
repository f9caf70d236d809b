// The content of a channel at about this moment, for those who watch it. Others send and receive meanwhile, so these
// are figures and no promises. Words that somebody has scribbled over make them wrong, and do nothing else: the
// channel's shape bounds every loop.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "numacre/shm/channel/broadcast.hpp"
#include "numacre/shm/channel/channel.hpp"
#include "numacre/shm/channel/layout.hpp"
#include "numacre/shm/note.hpp"

namespace numacre::engine {

struct ChannelFigures {
    std::uint32_t waiting = 0;   // messages in the ring, at most the capacity; of a broadcast: those that it keeps
    std::uint32_t returned = 0;  // messages that a receiver had when it died, and that others receive first
    std::uint32_t messages = 0;  // of both: those whose blocks the next two are about
    std::uint64_t frames = 0;    // of their blocks
    PoolAge oldest;              // since when the channel has had the oldest of them, if there is one
    // Messages since the channel was made. They never become fewer: a party slot keeps its tallies when it passes to
    // another thread. Those are missing that a thread had in hand when it died.
    std::uint64_t sent = 0;
    std::uint64_t received = 0;
    std::uint64_t redelivered = 0;  // of those received
    std::uint64_t dropped = 0;      // that senders took out again to make room
    std::uint64_t overtaken = 0;  // that were overwritten before a reader of a broadcast came to them, for each reader
    bool has_ended = false;       // nobody sends any more
    // A thread has gone to sleep until there is a message, or room for one, and nobody has woken it since.
    bool receivers_sleep = false;
    bool senders_sleep = false;
};

// A message that is another burst's by now names a block that is not the channel's with this generation, and does not
// count.
template <class Env, class Nodes>
void count_message(ChannelFigures &figures, Message message, ProcessSlot owner,
                   const MessageBlocks<Env, Nodes> &blocks) {
    IndexEntry entry;
    if (!blocks.look(message, entry) || !entry.is_private(IndexEntry::private_to(owner)) ||
        entry.generation() != message.generation())
        return;
    const PoolAge since = entry.note().since();
    if (figures.messages++ == 0 || since.code() < figures.oldest.code()) figures.oldest = since;
    figures.frames += message.block().order.frames();
}

// owner: the channel's process slot. Nodes: as of Channel. The cost is that of a look at each cell and each message.
template <class Env, class Nodes>
ChannelFigures look_at_channel(const ChannelView<Env> &view, ProcessSlot owner, const Nodes &nodes) {
    // relaxed, in all of this function: no access depends on another one.
    constexpr auto relaxed = std::memory_order_relaxed;
    const ChannelShape &shape = view.shape;
    ChannelFigures figures;
    const Channel<Env, Nodes> channel(view, owner, nodes);
    figures.waiting = std::min(channel.fill(), shape.capacity);
    figures.returned = std::min(channel.returned(), shape.parties * shape.burst);
    const auto count = [&](Message message) {
        count_message(figures, message, owner, MessageBlocks<Env, Nodes>(nodes));
    };
    const auto count_all = [&](const RingView<Env> &ring, std::uint32_t most) {
        for (std::uint32_t place = 0; place < ring.cell_count; ++place) {
            const CellWord cell{ring.cells[place].load(relaxed)};
            if (!cell.is_full()) continue;
            const auto *const list = ring.segment(cell.segment());
            for (unsigned next = cell.taken(); next < std::min(cell.count(), ring.burst) && most != 0; ++next, --most)
                count(Message{list[next].load(relaxed)});
        }
    };
    count_all(view.ring, shape.capacity);
    count_all(view.returned, shape.parties * shape.burst);
    for (std::uint32_t party = 1; party <= shape.parties; ++party) {
        figures.sent += view.parties[party].sent.load(relaxed);
        figures.received += view.parties[party].received.load(relaxed);
        figures.redelivered += view.parties[party].redelivered.load(relaxed);
        figures.dropped += view.parties[party].dropped.load(relaxed);
    }
    figures.has_ended = view.header->state.load(relaxed) != 0;
    figures.receivers_sleep = view.header->receivers_asleep.load(relaxed) != 0;
    figures.senders_sleep = view.header->senders_asleep.load(relaxed) != 0;
    return figures;
}

// Of a broadcast. Bursts that readers read although they have been overwritten are not among the figures.
template <class Env, class Nodes>
ChannelFigures look_at_channel(const BroadcastView<Env> &view, ProcessSlot owner, const Nodes &nodes) {
    // relaxed: as above.
    constexpr auto relaxed = std::memory_order_relaxed;
    ChannelFigures figures;
    figures.waiting = Broadcast<Env, Nodes>(view, owner, nodes).fill();
    const MessageBlocks<Env, Nodes> blocks(nodes);
    for (std::uint32_t place = 0; place < view.cell_count; ++place) {
        const BroadcastCell cell{view.cells[place].load(relaxed)};
        const auto *const list = view.list(cell.segment());
        for (unsigned next = 0; next < std::min(cell.count(), view.shape.burst); ++next)
            count_message(figures, Message{list[next].load(relaxed)}, owner, blocks);
    }
    for (std::uint32_t party = 1; party <= view.shape.parties; ++party) {
        const BroadcastParty<Env> &slot = view.party(party);
        figures.sent += slot.sent.load(relaxed);
        figures.received += slot.read.load(relaxed);
        figures.overtaken += slot.lost.load(relaxed);
    }
    figures.has_ended = view.header->state.load(relaxed) != 0;
    figures.receivers_sleep = view.header->receivers_asleep.load(relaxed) != 0;
    return figures;
}

}  // namespace numacre::engine
