// A channel: a bounded queue of blocks that belong to nobody's process on their way. send() makes blocks the channel's,
// receive() makes them the receiver's. Many threads send, many receive; each of them may be stopped or killed at any
// instruction, and nobody waits for it. FIFO for each sender.
//
//      sender                                         receiver
//   S1 its segment: the list of messages   stores  R1 errand: this cell, these messages      stores
//   S2 errand: this cell, these blocks     stores  R2 cell: fewer messages, or empty         one CAS
//   S3 entries: the channel's              stores  R3 entries: the receiver's                stores
//   S4 cell: full, with this segment     one CAS   R4 errand: none                           store
//   S5 errand: none                        store
//
// S4 decides that a burst has been sent, R2 that messages have been received: one locked instruction a burst on either
// side, and none a message. The sender gets the segment that the empty cell had kept, for its next burst. A receiver
// reads the list before R1, and then looks at the cell again: if the cell has changed, the list may be another burst's.
// So nobody waits for anybody to finish reading or writing.
//
// The channel is an owner like a process: it has a process slot, and its blocks' index entries name it. Only the thread
// whose errand has a message writes the entry: plain stores suffice. recovery.hpp says what becomes of a party that
// dies.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "numacre/shm/buddy.hpp"
#include "numacre/shm/channel/blocks.hpp"
#include "numacre/shm/channel/layout.hpp"
#include "numacre/shm/channel/ring.hpp"
#include "numacre/shm/channel/sleepers.hpp"

namespace numacre::engine {

enum class ReceiveResult : std::uint8_t { received, empty, scribbled };

// Nodes: Buddy<Env> &at(numa node), std::uint32_t count().
template <class Env, class Nodes>
class Channel {
public:
    using Word = typename Env::template Atomic<std::uint64_t>;
    using Slot = PartySlot<Env>;

    // owner: the channel's process slot. One object serves one thread at a time.
    Channel(const ChannelView<Env> &view, ProcessSlot owner, const Nodes &nodes)
        : view_(view), owner_(owner), blocks_(nodes) {}

    // Claims a party slot for a thread of `process`. kDaemonParty: all are taken.
    std::uint32_t join(ProcessSlot process, std::uint64_t roles) const {
        for (std::uint32_t party = 1; party <= view_.shape.parties; ++party) {
            Word &owner = view_.parties[party].owner;
            std::uint64_t nobody = 0;
            if (owner.load(std::memory_order_relaxed) != 0) continue;  // relaxed: the CAS decides
            // acq_rel: all writes of the slot's last user, or of its recovery, come before ours.
            if (!owner.compare_exchange_strong(nobody, PartyOwner{process, roles}.bits(), std::memory_order_acq_rel))
                continue;
            // relaxed: a party that sees the role first and then no party of it knows that there was one.
            view_.header->roles_seen.fetch_or(roles, std::memory_order_relaxed);
            return party;
        }
        return kDaemonParty;
    }
    // Whether there has been a party of this role, and there is none now. The caller looks at the ring once more: the
    // last one may have sent just before it went.
    bool have_all_gone(std::uint64_t role) const {
        if ((view_.header->roles_seen.load(std::memory_order_acquire) & role) == 0) return false;
        for (std::uint32_t party = 1; party <= view_.shape.parties; ++party) {
            // acquire: with all that the party has sent before it left.
            const PartyOwner owner{view_.parties[party].owner.load(std::memory_order_acquire)};
            if (owner.in_use() && (owner.bits() & role) != 0) return false;
        }
        return true;
    }
    void leave(std::uint32_t party) const { view_.parties[party].owner.store(0, std::memory_order_release); }

    // Sends blocks of actor.process that are not published, all or none: 1 to shape.burst. since: the pool's age now.
    // refused: the first block that cannot be sent. If the caller dies inside, all are sent, or all are freed.
    SendResult send(std::uint32_t party, Actor actor, const BlockPlace *places, unsigned count, PoolAge since,
                    unsigned &refused) {
        // relaxed: a send beside the end may be before it.
        if (view_.header->state.load(std::memory_order_relaxed) != 0) return SendResult::closed;
        const Ring<Env> ring{view_.ring};
        typename Ring<Env>::Place at;
        std::uint32_t total = 0;
        if (const SendResult room = find_room(ring, count, at, total); room != SendResult::sent) return room;
        Slot &slot = view_.parties[party];
        // relaxed: only the party writes it.
        const auto segment = static_cast<std::uint32_t>(slot.segment.load(std::memory_order_relaxed));
        if (segment >= view_.ring.segment_count) return SendResult::scribbled;
        Word *const list = view_.ring.segment(segment);
        const SendResult listed = blocks_.write_list(list, actor.process, places, count, refused);  // S1
        if (listed != SendResult::sent) return listed;
        slot.first.store(list[0].load(std::memory_order_relaxed), std::memory_order_relaxed);
        begin(slot, ErrandKind::send, false, count, at);    // S2
        for (unsigned moved = 0; moved < count; ++moved) {  // S3
            if (blocks_.pass_listed(list[moved], actor.process, owner_, since)) continue;
            refused = moved;
            undo(slot, list, moved, actor.process, since);
            return SendResult::not_owned;
        }
        while (!ring.fill(at, at.cell.filled(segment, count, total))) {  // S4
            // Another sender was faster, and perhaps has the last room.
            const SendResult room = find_room(ring, count, at, total);
            if (room != SendResult::sent) {
                undo(slot, list, count, actor.process, since);
                return room;
            }
            begin(slot, ErrandKind::send, false, count, at);
        }
        // relaxed: recovery reads it after the party's death.
        slot.segment.store(at.cell.segment(), std::memory_order_relaxed);
        end(slot);  // S5
        tally(slot.sent, count);
        return SendResult::sent;
    }

    struct NoStep {
        void operator()() const {}
    };
    struct Received {
        ReceiveResult result = ReceiveResult::empty;
        unsigned count = 0;
        bool is_redelivered = false;
    };
    // Makes up to `most` messages actor.process's; give(n, NumaNode, Block) tells of the n-th. All of one call are of
    // one burst, or what is left of it. Those come first that somebody had received who died then: they are
    // redelivered. before_end(): a step of the caller's behind the last message, such as to wake senders. If the caller
    // dies inside, before_end() included, others receive the messages.
    template <class Give, class BeforeEnd = NoStep>
    Received receive(std::uint32_t party, Actor actor, unsigned most, PoolAge since, const Give &give,
                     const BeforeEnd &before_end = {}) const {
        const Received received = receive_any(party, actor, most, since, give, before_end);
        tally(view_.parties[party].received, received.count);
        if (received.is_redelivered) tally(view_.parties[party].redelivered, received.count);
        return received;
    }

    // Receives the oldest burst, or what is left of it, so that a send finds room: give as in receive(). Such a message
    // has been received by nobody else, and counts as dropped and not as received. If the caller dies inside, others
    // receive the messages. The caller wakes senders.
    template <class Give>
    Received drop_oldest(std::uint32_t party, Actor actor, PoolAge since, const Give &give) const {
        const Received oldest = receive_from(view_.ring, false, party, actor, view_.ring.burst, since, give, NoStep{});
        tally(view_.parties[party].dropped, oldest.count);
        return oldest;
    }

    // Nobody sends any more from here on.
    void close() const { view_.header->state.store(1, std::memory_order_seq_cst); }
    bool is_closed() const { return view_.header->state.load(std::memory_order_seq_cst) != 0; }

    // Whether a receive would find something.
    bool has_messages() const { return has_messages_in(view_.returned) || has_messages_in(view_.ring); }
    // Whether a send of `count` messages would find room.
    bool has_room(unsigned count) {
        typename Ring<Env>::Place at;
        std::uint32_t total = 0;
        return find_room(Ring<Env>{view_.ring}, count, at, total) != SendResult::full;
    }
    // Messages in the ring, as seen at about this moment.
    std::uint32_t fill() const { return fill_of(view_.ring); }
    // ... and those that a receiver had when it died, and that others receive first.
    std::uint32_t returned() const { return fill_of(view_.returned); }

    const ChannelView<Env> &view() const { return view_; }

private:
    using Found = typename Ring<Env>::Found;
    using Place = typename Ring<Env>::Place;

    static bool has_messages_in(const RingView<Env> &view) {
        return Ring<Env>{view}.find_head().found != Found::nothing;
    }

    static std::uint32_t fill_of(const RingView<Env> &view) {
        const Ring<Env> ring{view};
        const Place tail = ring.find_tail();
        return tail.found == Found::scribbled ? 0 : waiting(tail.sent, ring.find_head());
    }

    // Of `sent` messages, those that had not been received when the head was found.
    static std::uint32_t waiting(std::uint32_t sent, const Place &head) {
        if (head.found != Found::here) return 0;
        const std::uint32_t left = (sent - head.cell.received()) & kTotalMask;
        return left > kTotalMask / 2 ? 0 : left;  // the head was found later, and has passed
    }

    // at: where the next burst goes. total: messages sent with it. sent: there is room.
    SendResult find_room(const Ring<Env> &ring, unsigned count, Place &at, std::uint32_t &total) {
        at = ring.find_tail();
        if (at.found == Found::scribbled) return SendResult::scribbled;
        if (at.found == Found::nothing) return SendResult::full;
        const std::uint32_t sent = at.sent;
        total = (sent + count) & kTotalMask;
        // The head is in memory that receivers write. The one that was found last suffices until the channel may be
        // full, or totals might have come round since.
        const std::uint32_t at_most = (sent - received_) & kTotalMask;
        if (at_most + count <= view_.shape.capacity && at.position - received_at_ < kBurstsCounted)
            return SendResult::sent;
        const std::uint32_t now = waiting(sent, ring.find_head());
        received_ = (sent - now) & kTotalMask;
        received_at_ = at.position;
        return now + count <= view_.shape.capacity ? SendResult::sent : SendResult::full;
    }

    // Gives the first `moved` messages back to the process. release: recovery frees what it finds of them from here on.
    void undo(Slot &slot, const Word *list, unsigned moved, ProcessSlot process, PoolAge since) const {
        // relaxed: our own word.
        const Errand errand{slot.errand.load(std::memory_order_relaxed)};
        slot.errand.store(errand.as(ErrandKind::undo).bits(), std::memory_order_release);
        Message ours;
        while (moved-- > 0)
            (void)blocks_.move(Message{list[moved].load(std::memory_order_relaxed)}, owner_, process, since, ours);
        end(slot);
    }

    template <class Give, class BeforeEnd>
    Received receive_any(std::uint32_t party, Actor actor, unsigned most, PoolAge since, const Give &give,
                         const BeforeEnd &before_end) const {
        const Received again = receive_from(view_.returned, true, party, actor, most, since, give, before_end);
        if (again.result != ReceiveResult::empty) return again;
        return receive_from(view_.ring, false, party, actor, most, since, give, before_end);
    }
    template <class Give, class BeforeEnd>
    Received receive_from(const RingView<Env> &view, bool is_of_returned, std::uint32_t party, Actor actor,
                          unsigned most, PoolAge since, const Give &give, const BeforeEnd &before_end) const {
        const Ring<Env> ring{view};
        Slot &slot = view_.parties[party];
        for (;;) {
            const Place at = ring.find_head();
            if (at.found == Found::nothing) return {};
            const unsigned first = at.cell.taken();
            const unsigned count = at.cell.left() < most ? at.cell.left() : most;
            if (at.found == Found::scribbled || count == 0 || first + count > view.burst)
                return {ReceiveResult::scribbled, 0, false};
            const Word *const list = view.segment(at.cell.segment());
            // EDGE list-then-cell (acquire; partner: the release stores of the list): if a message is another burst's
            // by now, the look behind it finds the cell changed.
            for (unsigned next = 0; next < count; ++next)
                slot.claims[next].store(list[first + next].load(std::memory_order_acquire), std::memory_order_relaxed);
            // Recovery believes that what we claim was in this cell.
            if (!ring.is_unchanged(at)) continue;
            begin(slot, ErrandKind::receive, is_of_returned, count, at);  // R1
            if (!ring.take(at, at.cell.taken_from(count))) {              // R2
                end(slot);
                continue;
            }
            // relaxed: our own word. release: recovery, which need not ask any more whether we were the one who took
            // them.
            const Errand errand{slot.errand.load(std::memory_order_relaxed)};
            slot.errand.store(errand.as(ErrandKind::taking).bits(), std::memory_order_release);
            unsigned got = 0;
            for (unsigned next = 0; next < count; ++next) {  // R3
                const Message message{slot.claims[next].load(std::memory_order_relaxed)};
                Message ours;
                if (!blocks_.move(message, owner_, actor.process, since, ours)) continue;  // somebody has scribbled
                give(got++, message.numa_node(), message.block());
            }
            before_end();
            end(slot);  // R4
            return {got == 0 ? ReceiveResult::scribbled : ReceiveResult::received, got, is_of_returned};
        }
    }

    static void begin(Slot &slot, ErrandKind kind, bool is_of_returned, unsigned count, const Place &at) {
        // release: a recovery that reads another errand's cell here finds that errand done (ChannelRecovery::is_named).
        slot.seen.store(at.cell.bits(), std::memory_order_release);
        // EDGE errand-before-change (release; partner: the acquire loads in recovery): the entries and the cell change
        // later.
        slot.errand.store(Errand{kind, is_of_returned, count, at.position}.bits(), std::memory_order_release);
    }
    static void end(Slot &slot) {
        // EDGE errand-clear (release): all that the errand has changed comes before.
        slot.errand.store(0, std::memory_order_release);
    }
    // Only the party writes it.
    static void tally(Word &word, unsigned more) {
        word.store(word.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
    }

    // So many bursts, and as many messages as the channel may have, are fewer than totals can tell apart.
    static constexpr RingPosition kBurstsCounted = (kTotalMask + 1) / 2 / kBurstMost;
    static_assert(kBurstsCounted * kBurstMost + kChannelCapacityMost <= kTotalMask);

    ChannelView<Env> view_;
    ProcessSlot owner_;
    MessageBlocks<Env, Nodes> blocks_;
    std::uint32_t received_ = 0;  // messages that had been received when the head was found last
    RingPosition received_at_ = 0;
};

}  // namespace numacre::engine
