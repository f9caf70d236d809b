// Recovery of a party that has died. Messages that it had sent stay in the channel; those that it was about to send
// come back; those that it had received, but not returned to its caller, are received by others first. For one caller,
// in thread slot 0 (the daemon), beside living parties; it may die itself at any instruction: resume() finishes what it
// was in the middle of, and the recovery of the party is repeated.
//
// A process's parties are recovered before its blocks are (../recovery.hpp): an errand is judged by the owner of its
// blocks.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "numacre/shm/channel/bells.hpp"
#include "numacre/shm/channel/channel.hpp"
#include "numacre/shm/recovery.hpp"

namespace numacre::engine {

template <class Env, class Nodes>
class ChannelRecovery {
public:
    using Word = typename Env::template Atomic<std::uint64_t>;
    using Slot = PartySlot<Env>;

    ChannelRecovery(const ChannelView<Env> &view, ProcessSlot owner, const Nodes &nodes)
        : view_(view), owner_(owner), blocks_(nodes) {}

    // Recovers all parties of a process that is dead. blocked: a living party is in the middle of receiving from the
    // same cell, or there is no room for returned messages: the caller tries again later, and the process's blocks
    // wait. is_dead(ProcessSlot): its process has ended. The caller wakes all
    // sleepers of the channel afterwards: the dead may have been about to.
    template <class IsDead>
    RecoveryStep recover_process(ProcessSlot process, PoolAge since, const IsDead &is_dead) {
        RecoveryStep step = RecoveryStep::done;
        for (std::uint32_t party = 1; party <= view_.shape.parties; ++party) {
            Slot &slot = view_.parties[party];
            const PartyOwner owner{slot.owner.load(std::memory_order_acquire)};
            if (!owner.in_use() || owner.process() != process) continue;
            if (finish(slot, process, since, is_dead) == RecoveryStep::blocked) {
                step = RecoveryStep::blocked;
                continue;
            }
            Bells<Env>{view_}.remove(party);
            // release: the slot's next user finds everything finished.
            slot.owner.store(0, std::memory_order_release);
        }
        return step;
    }

    // After a death of the caller itself.
    void resume(PoolAge since) {
        Slot &slot = view_.parties[kDaemonParty];
        const Errand errand{slot.errand.load(std::memory_order_acquire)};
        if (errand.kind() != ErrandKind::send) return;
        const CellWord seen{slot.seen.load(std::memory_order_acquire)};
        if (has_swapped(slot, seen) || is_in_cell(view_.returned, errand.position(), seen, segment_of(slot)))
            finish_send(slot, seen);
        else
            send_again(slot, errand.count(), since);
    }

private:
    using Found = typename Ring<Env>::Found;

    static std::uint32_t segment_of(const Slot &slot) {
        return static_cast<std::uint32_t>(slot.segment.load(std::memory_order_relaxed));
    }
    // The party has taken the cell's segment in place of its own already.
    static bool has_swapped(const Slot &slot, CellWord seen) { return segment_of(slot) == seen.segment(); }
    // Whether the burst that was to fill the cell `seen` is in the cell, or was the last one there.
    static bool is_in_cell(const RingView<Env> &ring, std::uint32_t position, CellWord seen, std::uint32_t segment) {
        const CellWord now{ring.cell(position).load(std::memory_order_seq_cst)};
        return now.segment() == segment && now.ahead_of(seen.round()) == (now.is_full() ? 0 : 1);
    }

    template <class IsDead>
    RecoveryStep finish(Slot &slot, ProcessSlot process, PoolAge since, const IsDead &is_dead) {
        const Errand errand{slot.errand.load(std::memory_order_acquire)};
        const CellWord seen{slot.seen.load(std::memory_order_acquire)};
        switch (errand.kind()) {
            case ErrandKind::none:
                break;
            case ErrandKind::send:
                if (was_sent(slot, errand, seen, process)) {
                    finish_send(slot, seen);
                    break;
                }
                // The verdict is kept: the first block is free soon, and tells nothing any more.
                slot.errand.store(errand.as(ErrandKind::undo).bits(), std::memory_order_release);
                [[fallthrough]];
            case ErrandKind::undo:
                return_unsent(slot, errand.count(), process, since);
                slot.errand.store(0, std::memory_order_release);
                break;
            case ErrandKind::receive:
            case ErrandKind::taking:
                return give_back(slot, errand, seen, process, since, is_dead);
        }
        return RecoveryStep::done;
    }

    // First the segment, then the errand: if we die in between, the next one sees that the segment is the cell's.
    static void finish_send(Slot &slot, CellWord seen) {
        slot.segment.store(seen.segment(), std::memory_order_relaxed);
        slot.errand.store(0, std::memory_order_release);
    }

    // Whether the dead sender's burst came into the ring. As long as it did not, its segment is in no cell, and its
    // blocks are as it left them.
    bool was_sent(const Slot &slot, Errand errand, CellWord seen, ProcessSlot process) const {
        if (has_swapped(slot, seen)) return true;
        const std::uint32_t segment = segment_of(slot);
        const CellWord now{view_.ring.cell(errand.position()).load(std::memory_order_seq_cst)};
        const std::int64_t rounds = now.ahead_of(seen.round());
        if (rounds == (now.is_full() ? 0 : 1)) return now.segment() == segment;
        if (now == seen) return false;
        // Another burst has been there since, of this sender or not, perhaps so many that rounds have come round. A
        // receiver that has not finished yet names the cell as it was; one that has finished has changed the entries.
        for (std::uint32_t party = 1; party <= view_.shape.parties; ++party)
            if (is_named(view_.parties[party], false, errand.position(), seen.round(), &segment)) return true;
        const Message first{slot.first.load(std::memory_order_acquire)};
        IndexEntry entry;
        if (!blocks_.look(first, entry)) return true;
        const bool is_channels =
            entry.is_private(IndexEntry::private_to(owner_)) && entry.generation() == first.generation();
        const bool is_still_its = entry.is_private(IndexEntry::private_to(process)) &&
                                  next_generation(entry.generation()) == first.generation();
        return !is_channels && !is_still_its;
    }

    // Whether the party is receiving from this cell in this round. A party that lives may go on to its next errand
    // between our two loads: then its entries are changed, and either answer is right. segment: null: any.
    bool is_named(const Slot &slot, bool is_of_returned, std::uint32_t position, std::uint64_t round,
                  const std::uint32_t *segment) const {
        const Errand errand{slot.errand.load(std::memory_order_acquire)};
        if (!errand.is_receive() || errand.is_of_returned() != is_of_returned) return false;
        // Their positions may differ by all rounds that there are (Ring::find_head).
        const RingView<Env> &ring = view_.ring_of(is_of_returned);
        if (&ring.cell(errand.position()) != &ring.cell(position)) return false;
        const CellWord seen{slot.seen.load(std::memory_order_acquire)};
        return seen.is_full() && seen.ahead_of(round) == 0 && (segment == nullptr || seen.segment() == *segment);
    }

    // Makes the blocks of a burst that has not been sent the sender's again. They come back with its other blocks.
    void return_unsent(const Slot &slot, unsigned count, ProcessSlot process, PoolAge since) const {
        const Word *const list = view_.ring.segment(segment_of(slot));
        Message returned;
        for (unsigned next = 0; next < count && next < view_.ring.burst; ++next)
            (void)blocks_.move(Message{list[next].load(std::memory_order_acquire)}, owner_, process, since, returned);
    }

    // Puts what the dead receiver had received, and had not returned to its caller, where others find it first.
    template <class IsDead>
    RecoveryStep give_back(Slot &slot, Errand errand, CellWord seen, ProcessSlot process, PoolAge since,
                           const IsDead &is_dead) {
        const bool has_taken = errand.kind() == ErrandKind::taking;
        unsigned most = errand.count() < view_.ring.burst ? errand.count() : view_.ring.burst;
        if (!has_taken) {
            // First the cell, then the living, then the entries. A living receiver that took its messages before our
            // look at the cell is named or has changed the entries; one that takes some later takes such as are in the
            // cell now.
            const CellWord now{
                view_.ring_of(errand.is_of_returned()).cell(errand.position()).load(std::memory_order_seq_cst)};
            if (now == seen) most = 0;
            if (most != 0 && is_named_by_the_living(slot, errand, seen.round(), is_dead)) return RecoveryStep::blocked;
            const bool is_same_burst = now.is_full() && now.ahead_of(seen.round()) == 0;
            if (is_same_burst && now.taken() < seen.taken() + most)
                most = now.taken() > seen.taken() ? now.taken() - seen.taken() : 0;
        }
        std::array<Message, kBurstMost> lost{};
        unsigned count = 0;
        for (unsigned next = 0; next < most; ++next) {
            const Message message{slot.claims[next].load(std::memory_order_acquire)};
            const Message received = message.with_generation(next_generation(message.generation()));
            if (blocks_.is_owned(message, owner_))
                lost[count++] = message;
            else if (has_taken && blocks_.is_owned(received, process))
                lost[count++] = received;
        }
        if (count != 0 && !send_back(lost.data(), count, since)) return RecoveryStep::blocked;
        slot.errand.store(0, std::memory_order_release);
        return RecoveryStep::done;
    }
    template <class IsDead>
    bool is_named_by_the_living(const Slot &slot, Errand errand, std::uint64_t round, const IsDead &is_dead) const {
        for (std::uint32_t party = 1; party <= view_.shape.parties; ++party) {
            const Slot &other = view_.parties[party];
            const PartyOwner owner{other.owner.load(std::memory_order_acquire)};
            if (&other != &slot && owner.in_use() && !is_dead(owner.process()) &&
                is_named(other, errand.is_of_returned(), errand.position(), round, nullptr))
                return true;
        }
        return false;
    }

    // Sends messages through the ring of those that are returned, of which we are the only sender. False: it is full.
    bool send_back(const Message *messages, unsigned count, PoolAge since) {
        const auto at = Ring<Env>{view_.returned}.find_tail();
        Slot &slot = view_.parties[kDaemonParty];
        if (at.found != Found::here || segment_of(slot) >= view_.returned.segment_count) return false;
        Word *const list = view_.returned.segment(segment_of(slot));
        for (unsigned next = 0; next < count; ++next)
            // EDGE list-then-cell (release), as in a send.
            list[next].store(messages[next].with_generation(next_generation(messages[next].generation())).bits(),
                             std::memory_order_release);
        begin(slot, count, at);
        fill(slot, list, count, at, since);
        return true;
    }
    void send_again(Slot &slot, unsigned count, PoolAge since) {
        const auto at = Ring<Env>{view_.returned}.find_tail();
        // There was room, and nobody else fills the ring: otherwise somebody has scribbled.
        if (at.found == Found::here && count <= view_.returned.burst) {
            begin(slot, count, at);
            fill(slot, view_.returned.segment(segment_of(slot)), count, at, since);
        } else {
            slot.errand.store(0, std::memory_order_release);
        }
    }
    static void begin(Slot &slot, unsigned count, const typename Ring<Env>::Place &at) {
        slot.seen.store(at.cell.bits(), std::memory_order_release);
        slot.errand.store(Errand{ErrandKind::send, true, count, at.position}.bits(), std::memory_order_release);
    }
    void fill(Slot &slot, const Word *list, unsigned count, const typename Ring<Env>::Place &at, PoolAge since) {
        for (unsigned next = 0; next < count; ++next) {
            const Message message{list[next].load(std::memory_order_relaxed)};
            IndexEntry entry;
            // Otherwise it is the channel's with this generation already: we have died in between.
            if (blocks_.look(message, entry) && entry.is_owned() &&
                next_generation(entry.generation()) == message.generation())
                blocks_.nodes().at(message.numa_node().value).pass_on(message.block(), entry, owner_, since);
        }
        const Ring<Env> ring{view_.returned};
        const std::uint32_t total = (at.sent + count) & kTotalMask;
        (void)ring.fill(at, at.cell.filled(segment_of(slot), count, total));
        finish_send(slot, at.cell);
    }

    ChannelView<Env> view_;
    ProcessSlot owner_;
    MessageBlocks<Env, Nodes> blocks_;
};

}  // namespace numacre::engine
