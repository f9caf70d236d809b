// HOLD and DROP of a block that somebody owns, or has owned: holds.hpp in the folder above says why this is enough.
#pragma once

#include <bit>
#include <cstdint>

#include "numacre/shm/buddy/release.hpp"

namespace numacre::engine {

template <class Env>
class BuddyHolds : public BuddyRelease<Env> {
    using Base = BuddyRelease<Env>;

public:
    using Base::Base;
    using typename Base::Self;
    using typename Base::Word;

    // Holds the referenced block for the acting thread: until the thread drops it, no free gives its memory to anybody
    // else. The reference stays as it is, and the block its owner's. A thread may hold a block several times. One
    // barrier; one RMW more for the first hold of a block since it was allocated. Errors: bad_argument (not a reference
    // of this pool), stale_ref, too_many_holds. If the caller dies inside, its recovery drops the block.
    Errc hold(const Self &self, HoldWords<Env> &words, Reference reference, Block &held) {
        const Block block = view_.reference_format.block(reference);
        if (!view_.contains(block) || view_.reference_format.numa_node(reference) != view_.numa_node.value ||
            view_.reference_format.is_impossible(reference)) [[unlikely]]
            return Errc::bad_argument;
        const unsigned layer = layer_of(block.order);
        Word &slot = view_.index_entry(layer, block);
        std::uint64_t bits = slot.load(std::memory_order_acquire);
        const IndexEntry entry{bits};
        if (!can_be_taken(entry, block.order) ||
            !view_.reference_format.has_number(reference, number_of_name(layer, block, entry))) [[unlikely]]
            return Errc::stale_ref;
        const std::uint64_t others = self.slot->holds.load(std::memory_order_relaxed);  // relaxed: only we write it
        if (others == ~std::uint64_t{0}) [[unlikely]]
            return Errc::too_many_holds;
        const unsigned place = announce_hold(self, words, others, block);
        if (entry.is_lent()) [[likely]] {
            bits = slot.load(std::memory_order_seq_cst);
        } else if (slot.compare_exchange_strong(bits, entry.lent().bits(), std::memory_order_seq_cst)) {
            // From here on every free looks. acq_rel in seq_cst: the giver's bytes reach those who find the block lent.
            Env::crash_point(CrashPoint::hold_lent);
            bits = entry.lent().bits();
        }
        // The entry has the generation that the number was made with: the reference names the block, now that every
        // free has to see our word.
        if (bits != entry.lent().bits()) [[unlikely]] {
            (void)drop(self, *self.slot, words, place);
            return Errc::stale_ref;
        }
        held = block;
        return Errc::ok;
    }

    // hold() of a lent block in a leaf word, by a reference to this numa node. False: nothing was done, call hold().
    // before_look(base) is called before the barrier, behind which nothing overlaps.
    template <class BeforeLook>
    [[gnu::always_inline]] bool hold_in_leaf(const Self &self, HoldWords<Env> &words, Reference reference,
                                             const BeforeLook &before_look) {
        // An aligned block, as any bits name one.
        const Block block = view_.reference_format.block(reference);
        if (block.base.value >= view_.geometry.frame_count || block.order.value > view_.largest_leaf_order) [[unlikely]]
            return false;
        Word &slot = view_.index[0][block.base.value];
        const std::uint64_t bits = slot.load(std::memory_order_acquire);
        const IndexEntry entry{bits};
        // EDGE era, as in Buddy::take_at().
        const std::uint16_t era = view_.era[0][block.base.value].load(std::memory_order_acquire);
        const std::uint64_t number = view_.reference_format.number(reference);
        const std::uint64_t others = self.slot->holds.load(std::memory_order_relaxed);  // relaxed: only we write it
        if (!entry.is_lent_as(block.order, number) ||
            !is_number_of_era(number, era, view_.reference_format.era_mask()) || !entry.is_a_clients() ||
            others == ~std::uint64_t{0}) [[unlikely]]
            return false;
        before_look(block.base);
        const unsigned place = announce_hold(self, words, others, block);
        if (slot.load(std::memory_order_seq_cst) == bits) [[likely]]
            return true;
        (void)drop(self, *self.slot, words, place);
        return false;
    }

    // Ends the hold that this word of the thread slot `holder` says; holder: the actor's own, or that of a thread whose
    // recovery the actor runs. If the block lingers and this was the last hold, the actor frees it: then true. Two
    // stores, one of them with a barrier, and a look at the entry. If the caller dies inside, its recovery drops the
    // word again.
    [[gnu::always_inline]] bool drop(const Self &self, ThreadSlot<Env> &holder, HoldWords<Env> &words, unsigned place) {
        // relaxed: only the thread itself wrote it, or has died.
        const HoldWord word{words.word[place].load(std::memory_order_relaxed)};
        const std::uint64_t others = holder.holds.load(std::memory_order_relaxed) & ~(std::uint64_t{1} << place);
        // Scribbled, or of another numa node's steps: cleared and no more.
        const Block block = word.block();
        const bool is_ours = word.numa_node() == view_.numa_node && view_.contains(block);
        const unsigned layer = is_ours ? layer_of(block.order) : 0;
        const Word &slot = view_.index_entry(layer, is_ours ? block : Block{});
        // EDGE drop-then-look (seq_cst; partners: EDGE free-then-look, and this store of another thread). Also release:
        // what we have read was read before. The word stands until the look is done: if we die before, our recovery
        // looks.
        words.word[place].store(word.dropping().bits(), std::memory_order_seq_cst);
        Env::crash_point(CrashPoint::drop_announced);
        const IndexEntry entry{slot.load(std::memory_order_seq_cst)};
        bool is_freed = false;
        if (entry.is_lingering()) [[unlikely]]
            is_freed = is_ours && entry.order() == block.order && free_lingering(self, layer, block, entry);
        Env::crash_point(CrashPoint::drop_looked);
        // release: our recovery, or the next user of the slot, finds it done; and a free that sees no bit comes after
        // our reads.
        holder.holds.store(others, std::memory_order_release);
        return is_freed;
    }

    // If the block lingers, and no thread holds it, frees it: then true. numa_node, block: any, as a dead thread may
    // have left them.
    bool free_if_last(const Self &self, NumaNode numa_node, Block block) {
        if (numa_node != view_.numa_node || !view_.contains(block)) [[unlikely]]
            return false;
        const unsigned layer = layer_of(block.order);
        const IndexEntry entry{view_.index_entry(layer, block).load(std::memory_order_seq_cst)};
        return entry.is_lingering() && entry.order() == block.order && free_lingering(self, layer, block, entry);
    }

protected:
    // The first step of a hold: writes down that the thread holds the block. others: its bits so far, not all set.
    [[gnu::always_inline]] unsigned announce_hold(const Self &self, HoldWords<Env> &words, std::uint64_t others,
                                                  Block block) {
        const auto place = static_cast<unsigned>(std::countr_zero(~others));
        // relaxed: the bit's store publishes it.
        words.word[place].store(HoldWord::holds(view_.numa_node, block).bits(), std::memory_order_relaxed);
        // EDGE hold-then-look (seq_cst; partner: EDGE free-then-look).
        self.slot->holds.store(others | std::uint64_t{1} << place, std::memory_order_seq_cst);
        Env::crash_point(CrashPoint::hold_announced);
        return place;
    }

    using Base::can_be_taken;
    using Base::free_lingering;
    using Base::number_of_name;
    using Base::view_;
};

}  // namespace numacre::engine
