// The end of a burst that has been overwritten. Nobody new reads it, as it is in no cell. If nobody has claimed it
// either, whoever overwrote it makes its blocks its own process's: it retires the burst. Else it leaves the segment
// behind, lingering, takes a free one instead, and the last reader to drop its claim retires the burst.
//
//      writer                                       reader
//   L1 state: leaving                     store  D1 claim: another, or none     store, barrier
//   L2 a free segment: taken              CAS    D2 state lingering?
//   L3 its own segment: that one          store       nobody has claimed it?
//   L4 that one's state: ordinary         store       lingering -> retiring     CAS
//   L5 errand: none                       store       the blocks: its own       stores
//   L6 state: lingering          store, barrier       state: free               store
//   L7 as D2
//
// Two pairs of a store and a later load of the other side's word decide: either a reader that drops sees that the
// segment lingers, or the writer sees that it has dropped; and of two readers that drop, one sees the other. So a
// lingering segment that nobody has claimed is seen by somebody, and one CAS decides who retires it. A claim that came
// too late (broadcast.hpp, C1) may make a segment linger that nobody reads; its reader looks as any other.
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>

#include "numacre/shm/channel/blocks.hpp"
#include "numacre/shm/channel/broadcast_layout.hpp"

namespace numacre::engine {

// On whose behalf bursts are retired: a party, and the process whose the blocks become.
struct Heir {
    std::uint32_t party = 0;
    ProcessSlot process{};
    PoolAge since{};  // the pool's age now
};

template <class Env, class Nodes>
class BroadcastSegments {
public:
    using Word = typename Env::template Atomic<std::uint64_t>;
    using Slot = BroadcastParty<Env>;

    BroadcastSegments(const BroadcastView<Env> &view, ProcessSlot owner, const Nodes &nodes)
        : view_(view), owner_(owner), blocks_(nodes) {}

    // Ends the errand `retire`. give(NumaNode, Block) tells of each block that is the heir's process's from here on.
    template <class Give>
    void retire(WriterErrand errand, const Heir &heir, const Give &give) const {
        Slot &slot = view_.party(heir.party);
        const std::uint32_t segment = segment_of(slot);
        if (errand.count() == 0 || !is_claimed(segment)) {
            give_blocks(segment, errand.count(), heir, give);
            end(slot);
            return;
        }
        const SegmentWord word{SegmentState::leaving, heir.party, errand.count(), errand.position()};
        // L1. release: who judges whether the burst had been sent finds it here, or finds the errand.
        view_.state(segment).store(word.bits(), std::memory_order_release);
        leave(segment, word, heir, give);
    }

    // L2 to L7, or the rest of them. word: the segment's, in state leaving.
    template <class Give>
    void leave(std::uint32_t segment, SegmentWord word, const Heir &heir, const Give &give) const {
        Slot &slot = view_.party(heir.party);
        if (segment_of(slot) == segment) {
            const std::uint32_t other = take_free(heir.party);  // L2
            if (other == view_.segment_count) {
                // Somebody has scribbled. The blocks are the channel's until it is removed.
                view_.state(segment).store(0, std::memory_order_release);
                end(slot);
                return;
            }
            move_into(slot, other);  // L3, L4
        }
        end(slot);  // L5
        const SegmentWord lingering = word.as(SegmentState::lingering, 0);
        // L6. EDGE linger-then-look (seq_cst; partner: EDGE drop-then-look). Weakened: the last reader does not see
        // that the segment lingers, and we do not see that it has dropped.
        view_.state(segment).store(lingering.bits(), std::memory_order_seq_cst);
        retire_if_unread(segment, lingering, heir, give);  // L7
    }
    // L3 and L4. other: taken by the party.
    void move_into(Slot &slot, std::uint32_t other) const {
        slot.segment.store(other, std::memory_order_release);
        view_.state(other).store(0, std::memory_order_release);
    }

    // D2, after the caller's claim of the segment is gone.
    template <class Give>
    void look_after(std::uint32_t segment, const Heir &heir, const Give &give) const {
        // EDGE drop-then-look.
        const SegmentWord word{view_.state(segment).load(std::memory_order_seq_cst)};
        if (word.state() == SegmentState::lingering) [[unlikely]]
            retire_if_unread(segment, word, heir, give);
    }
    // The rest of a retirement. word: the segment's, in state retiring.
    template <class Give>
    void finish_retiring(std::uint32_t segment, SegmentWord word, const Heir &heir, const Give &give) const {
        give_blocks(segment, word.count(), heir, give);
        set_free(segment);
    }
    void set_free(std::uint32_t segment) const {
        // EDGE free-then-take (release; partner: take_free()): its next user writes the list after we have read it.
        view_.state(segment).store(SegmentWord{SegmentState::free, 0, 0, 0}.bits(), std::memory_order_release);
        view_.header->free_segment.store(segment, std::memory_order_relaxed);  // relaxed: a hint
    }

    // Makes the blocks of the segment's burst the heir's process's. Only one thread at a time retires a
    // burst: plain stores suffice. Those blocks that have been given before are not the channel's any more.
    template <class Give>
    void give_blocks(std::uint32_t segment, unsigned count, const Heir &heir, const Give &give) const {
        const Word *const list = view_.list(segment);
        for (unsigned next = 0; next < count && next < view_.shape.burst; ++next) {
            const Message message{list[next].load(std::memory_order_acquire)};
            Message ours;
            if (blocks_.move(message, owner_, heir.process, heir.since, ours))
                give(message.numa_node(), message.block());
        }
    }

    // Whether some reader has claimed the segment, whose burst has been overwritten.
    bool is_claimed(std::uint32_t segment) const {
        const std::uint64_t wanted = ReaderClaim::of(segment).bits();
        // EDGE overwrite-then-look (seq_cst, both; partner: EDGE claim-then-look). Also acquire: who has dropped the
        // claim has read before. Weakened: blocks are retired under a reader.
        for (std::uint64_t left = view_.header->readers.load(std::memory_order_seq_cst); left != 0; left &= left - 1) {
            const auto party = static_cast<std::uint32_t>(std::countr_zero(left)) + 1;
            if (party > view_.shape.parties) return false;  // scribbled
            if (view_.party(party).claim.load(std::memory_order_seq_cst) == wanted) return true;
        }
        return false;
    }

    static std::uint32_t segment_of(const Slot &slot) {
        // relaxed: the party's own word, or a dead party's.
        return static_cast<std::uint32_t>(slot.segment.load(std::memory_order_relaxed));
    }
    static void end(Slot &slot) {
        // EDGE errand-clear (release): all that the errand has changed comes before.
        slot.errand.store(0, std::memory_order_release);
    }
    const MessageBlocks<Env, Nodes> &blocks() const { return blocks_; }

private:
    template <class Give>
    void retire_if_unread(std::uint32_t segment, SegmentWord lingering, const Heir &heir, const Give &give) const {
        if (is_claimed(segment)) return;
        const SegmentWord retiring = lingering.as(SegmentState::retiring, heir.party);
        std::uint64_t bits = lingering.bits();
        // The word has the burst's position: if the segment lingers with another burst by now, this fails.
        if (view_.state(segment).compare_exchange_strong(bits, retiring.bits(), std::memory_order_seq_cst))
            finish_retiring(segment, retiring, heir, give);
    }

    // There is always a free one (BroadcastShape::segments): a look at all that finds none has been passed by others,
    // who took and freed. segment_count: too often, somebody has scribbled.
    std::uint32_t take_free(std::uint32_t party) const {
        const auto first = static_cast<std::uint32_t>(view_.header->free_segment.load(std::memory_order_relaxed));
        for (std::uint32_t looks = 0; looks < kLooksMost; ++looks)
            for (std::uint32_t next = 0; next < view_.segment_count; ++next) {
                const std::uint32_t segment = (first % view_.segment_count + next) % view_.segment_count;
                std::uint64_t bits = view_.state(segment).load(std::memory_order_relaxed);  // relaxed: the CAS decides
                if (SegmentWord{bits}.state() == SegmentState::free &&
                    view_.state(segment).compare_exchange_strong(
                        bits, SegmentWord{SegmentState::taken, party, 0, 0}.bits(), std::memory_order_acq_rel))
                    return segment;
            }
        return view_.segment_count;
    }

    static constexpr std::uint32_t kLooksMost = 64;

    BroadcastView<Env> view_;
    ProcessSlot owner_;
    MessageBlocks<Env, Nodes> blocks_;
};

}  // namespace numacre::engine
