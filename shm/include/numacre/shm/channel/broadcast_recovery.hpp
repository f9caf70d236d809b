// Recovery of a party of a broadcast that has died. Messages that it had sent stay in the channel; those that it was
// about to send come back; what it read is dropped, and retired if it was the last reader. For one caller (the daemon),
// beside living parties: it waits for none of them. It may die itself at any instruction: every step is one of the dead
// party's, on that party's own words, and the recovery of the party is repeated from its start.
//
// A process's parties are recovered before its blocks are (../recovery.hpp): what they retire becomes the process's,
// and an errand is judged by the owner of its blocks.
#pragma once

#include <atomic>
#include <cstdint>

#include "numacre/shm/channel/bells.hpp"
#include "numacre/shm/channel/broadcast.hpp"

namespace numacre::engine {

template <class Env, class Nodes>
class BroadcastRecovery {
public:
    using Word = typename Env::template Atomic<std::uint64_t>;
    using Slot = BroadcastParty<Env>;

    BroadcastRecovery(const BroadcastView<Env> &view, ProcessSlot owner, const Nodes &nodes)
        : view_(view), ring_(view), owner_(owner), segments_(view, owner, nodes) {}

    // Recovers all parties of a process that is dead. The caller wakes all sleepers of the channel afterwards: the dead
    // may have been about to.
    void recover_process(ProcessSlot process, PoolAge since) {
        for (std::uint32_t party = 1; party <= view_.shape.parties; ++party) {
            Slot &slot = view_.party(party);
            const PartyOwner owner{slot.owner.load(std::memory_order_acquire)};
            if (!owner.in_use() || owner.process() != process) continue;
            recover(slot, {party, process, since});
            Bells<Env, BroadcastView<Env>>{view_}.remove(party);
            // release: the slot's next user finds everything finished.
            slot.owner.store(0, std::memory_order_release);
        }
    }

private:
    struct KeepNone {
        void operator()(NumaNode, Block) const {}  // it is the dead process's, and comes back with its other blocks
    };

    void recover(Slot &slot, const Heir &dead) {
        // EDGE drop-then-look, for all that the dead had claimed or was about to look after: the look is sweep().
        slot.claim.store(0, std::memory_order_seq_cst);
        view_.header->readers.fetch_and(~(std::uint64_t{1} << (dead.party - 1)), std::memory_order_relaxed);
        finish_leaving(slot, dead);
        finish_errand(slot, dead);
        sweep(slot, dead);
    }

    // A segment that the dead was about to leave behind: its errand is over, once it has another one.
    void finish_leaving(Slot &slot, const Heir &dead) {
        const std::uint32_t left = find(SegmentState::leaving, dead.party);
        if (left == view_.segment_count) return;
        const std::uint32_t taken = find(SegmentState::taken, dead.party);
        if (taken != view_.segment_count && segments_.segment_of(slot) == left) segments_.move_into(slot, taken);
        segments_.leave(left, SegmentWord{view_.state(left).load(std::memory_order_acquire)}, dead, KeepNone{});
    }

    void finish_errand(Slot &slot, const Heir &dead) {
        const WriterErrand errand{slot.errand.load(std::memory_order_acquire)};
        const BroadcastCell seen{slot.seen.load(std::memory_order_acquire)};
        switch (errand.kind()) {
            case WriterErrandKind::none:
                return;
            case WriterErrandKind::send: {
                if (was_sent(slot, errand, seen, dead.process)) {
                    // As Broadcast::retire(): first the segment, then the errand.
                    slot.segment.store(seen.segment(), std::memory_order_release);
                    const WriterErrand retire{WriterErrandKind::retire, seen.count(),
                                              errand.position() - view_.cell_count};
                    slot.errand.store(retire.bits(), std::memory_order_release);
                    segments_.retire(retire, dead, KeepNone{});
                    return;
                }
                // The verdict is kept: the first block is free soon, and tells nothing any more.
                slot.errand.store(errand.as(WriterErrandKind::undo).bits(), std::memory_order_release);
                [[fallthrough]];
            }
            case WriterErrandKind::undo:
                return_unsent(slot, errand.count(), dead);
                segments_.end(slot);
                return;
            case WriterErrandKind::retire:
                segments_.retire(errand, dead, KeepNone{});
                return;
        }
    }

    // The other segments that the dead has left: segments that it had taken, or was retiring; and those that linger
    // although nobody has claimed them any more, whoever was to look after them.
    void sweep(Slot &slot, const Heir &dead) {
        for (std::uint32_t segment = 0; segment < view_.segment_count; ++segment) {
            const SegmentWord word{view_.state(segment).load(std::memory_order_seq_cst)};
            if (word.is(SegmentState::retiring, dead.party)) {
                segments_.finish_retiring(segment, word, dead, KeepNone{});
            } else if (word.is(SegmentState::taken, dead.party)) {
                if (segments_.segment_of(slot) == segment)
                    view_.state(segment).store(0, std::memory_order_release);
                else
                    segments_.set_free(segment);
            } else {
                segments_.look_after(segment, dead, KeepNone{});
            }
        }
    }

    // segment_count: there is none.
    std::uint32_t find(SegmentState state, std::uint32_t party) const {
        std::uint32_t segment = 0;
        while (segment < view_.segment_count &&
               !SegmentWord{view_.state(segment).load(std::memory_order_acquire)}.is(state, party))
            ++segment;
        return segment;
    }

    // Whether the dead writer's burst came into the ring. As long as it did not, its segment is in no cell and nobody
    // else's, and its blocks are as it left them.
    bool was_sent(const Slot &slot, WriterErrand errand, BroadcastCell seen, ProcessSlot process) const {
        const std::uint32_t segment = segments_.segment_of(slot);
        if (segment == seen.segment()) return true;  // exchanged already
        const BroadcastCell now = ring_.look(errand.position());
        const std::uint64_t round = seen.round() + 1;
        if (now.round() < round) return false;
        if (now.round() == round) return now.segment() == segment;
        // Another burst has been there since. If it has overwritten this one, then its writer is in the middle of that
        // (looks in the order of its steps), or the segment's state says that it is left behind, or the entries have
        // changed.
        for (std::uint32_t party = 1; party <= view_.shape.parties; ++party)
            if (&view_.party(party) != &slot && has_overwritten(view_.party(party), round, segment)) return true;
        if (view_.state(segment).load(std::memory_order_acquire) != 0) return true;
        const Message first{slot.first.load(std::memory_order_acquire)};
        IndexEntry entry;
        if (!segments_.blocks().look(first, entry)) return true;
        const bool is_channels =
            entry.is_private(IndexEntry::private_to(owner_)) && entry.generation() == first.generation();
        const bool is_still_its = entry.is_private(IndexEntry::private_to(process)) &&
                                  next_generation(entry.generation()) == first.generation();
        return !is_channels && !is_still_its;
    }
    // A party that lives may go on to its next errand between our loads: then it is done with the segment, and either
    // answer is right.
    static bool has_overwritten(const Slot &other, std::uint64_t round, std::uint32_t segment) {
        const WriterErrand errand{other.errand.load(std::memory_order_acquire)};
        const BroadcastCell seen{other.seen.load(std::memory_order_acquire)};
        if (errand.kind() == WriterErrandKind::send && seen.round() == round && seen.segment() == segment) return true;
        return other.segment.load(std::memory_order_acquire) == segment;
    }

    // Makes the blocks of a burst that has not been sent the writer's again. They come back with its other blocks.
    void return_unsent(const Slot &slot, unsigned count, const Heir &dead) const {
        const Word *const list = view_.list(segments_.segment_of(slot));
        Message returned;
        for (unsigned next = 0; next < count && next < view_.shape.burst; ++next)
            (void)segments_.blocks().move(Message{list[next].load(std::memory_order_acquire)}, owner_, dead.process,
                                          dead.since, returned);
    }

    BroadcastView<Env> view_;
    BroadcastRing<Env> ring_;
    ProcessSlot owner_;
    BroadcastSegments<Env, Nodes> segments_;
};

}  // namespace numacre::engine
