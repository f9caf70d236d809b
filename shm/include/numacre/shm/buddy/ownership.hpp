// How a block that is held changes hands: published and taken, withdrawn, handed to a waiting thread. The tree's words
// stay as they are; the block's index entry alone is written.
#pragma once

#include <cstdint>

#include "numacre/shm/buddy/tree.hpp"

namespace numacre::engine {

template <class Env>
class BuddyOwnership : public BuddyTree<Env> {
    using Base = BuddyTree<Env>;

public:
    using Base::after;
    using Base::Base;
    using Base::begin;
    using Base::end;
    using Base::find_entry;
    using Base::view_of;
    using typename Base::Self;
    using typename Base::Word;

    // Becomes the owner of the referenced block, which it holds from `since` on. One RMW. Needs no intent: before the
    // CAS the block is the giver's, after it ours. Errors: bad_argument (not a reference of this pool), stale_ref.
    Errc take(Actor actor, Reference reference, PoolAge since, Block &taken) {
        const Block block = view_.reference_format.block(reference);
        if (!view_.contains(block) || view_.reference_format.numa_node(reference) != view_.numa_node.value ||
            view_.reference_format.is_impossible(reference))
            return Errc::bad_argument;
        if (!take_at(view_of(actor), layer_of(block.order), block, reference, since)) return Errc::stale_ref;
        taken = block;
        return Errc::ok;
    }

    // take() of a block in a leaf word, by a reference to this numa node. False: nothing was done, ask take().
    [[gnu::always_inline]] bool take_in_leaf(const Self &self, Reference reference, PoolAge since, Block &taken) {
        const Block block = view_.reference_format.block(reference);
        if (block.base.value >= view_.geometry.frame_count || !can_be_in_leaf(block) ||
            !take_at(self, 0, block, reference, since)) [[unlikely]]
            return false;
        taken = block;
        return true;
    }

    // Makes an owned, found block takeable by others; returns its name. One RMW, none if the block is published
    // already. Other threads of the process may do the same at the same time: all return the same name. The name is 0
    // if the block is not the process's any more: another process has taken it by the name that another thread made.
    // Caller dies inside: it was published or it was not; recovery gives it back either way.
    Reference publish(Block block, IndexEntry entry) {
        Word &slot = view_.index_entry(block);
        const ProcessSlot owner = entry.owner();
        // Each round that fails, another thread has published the block, and it has gone or has come back since.
        for (unsigned rounds = 0; rounds < kCasRoundsMax; ++rounds) {
            Reference name;
            if (publish_at(slot, layer_of(block.order), block, entry, name)) return name;
            if (!entry.is_owned() || entry.owner() != owner || entry.order() != block.order) break;
        }
        return {};
    }

    // publish() of a block of self's process in a leaf word. base exists. False: it is none, or another thread of the
    // process was quicker: ask publish().
    [[gnu::always_inline]] bool publish_in_leaf(const Self &self, FrameIndex base, Reference &name) {
        Word &slot = view_.index[0][base.value];
        IndexEntry entry{slot.load(std::memory_order_acquire)};  // EDGE look-up
        const Block block{base, entry.order()};
        return entry.is_held_like_or_published(self.ours) && can_be_in_leaf(block) &&
               publish_at(slot, 0, block, entry, name);
    }

    // The steps of a hand-off (hand_off.hpp). First: the held block that entry tells of is nobody's, on its way. entry:
    // what it is now. The intent stays set. False: it is not ours any more, nothing was done.
    bool put_on_its_way(Actor actor, Block block, IndexEntry &entry) {
        const Self self = view_of(actor);
        begin(self, IntentKind::free, block);
        std::uint64_t bits = entry.bits();
        entry = after(layer_of(block.order), block, IndexEntry::owned(kHandOffOwner, block.order, 0, {}), entry);
        // EDGE ownership, as in become_freer(): recovery that sees the block on its way finds the intent.
        if (!view_.index_entry(block).compare_exchange_strong(bits, entry.bits(), std::memory_order_acq_rel)) {
            end(self);
            return false;
        }
        Env::crash_point(CrashPoint::hand_off_on_its_way);
        return true;
    }

    // Then the waiter's word says where it is. Last: tally: it was somebody's, and counts as freed.
    void has_been_given(Actor actor, Block block, bool tally) {
        const Self self = view_of(actor);
        if (tally) count(self.counters->frees[block.order.value]);
        Env::crash_point(CrashPoint::hand_off_given);
        end(self);
    }

    // The waiter: makes it its own. False: it is on its way no more.
    bool receive(Actor actor, FrameIndex base, std::uint32_t generation, Note note, Block &block) {
        const Self self = view_of(actor);
        IndexEntry entry;
        if (find_entry(base, block, entry) != Errc::ok || entry.owner() != kHandOffOwner ||
            entry.generation() != generation)
            return false;
        // A store will do: nobody but the one who has been told of it writes the entry of a block on its way.
        // EDGE commit (release), as after a claim.
        const IndexEntry ours =
            after(layer_of(block.order), block, IndexEntry::owned(self.actor.process, block.order, 0, note), entry);
        view_.index_entry(block).store(ours.bits(), std::memory_order_release);
        Env::crash_point(CrashPoint::hand_off_received);
        count(self.counters->allocations[block.order.value]);
        count(self.counters->hand_offs);
        return true;
    }

    // The opposite of publish(): what references name is gone. False: somebody took the block before. On success entry
    // is what it is now.
    bool withdraw(Block block, IndexEntry &entry) {
        std::uint64_t bits = entry.bits();
        const IndexEntry now = after(layer_of(block.order), block,
                                     IndexEntry::owned(entry.owner(), entry.order(), 0, entry.note()), entry);
        // EDGE hand-over, the other side of it.
        if (!view_.index_entry(block).compare_exchange_strong(bits, now.bits(), std::memory_order_acq_rel))
            return false;
        entry = now;
        return true;
    }

protected:
    using Base::can_be_in_leaf;
    using Base::view_;

    // The block that the reference names is one that can be in this layer.
    [[gnu::always_inline]] bool take_at(const Self &self, unsigned layer, Block block, Reference reference,
                                        PoolAge since) {
        Word &slot = view_.index_entry(layer, block);
        std::uint64_t bits = slot.load(std::memory_order_acquire);
        const IndexEntry entry{bits};
        if (!entry.is_published(block.order) ||
            !view_.reference_format.has_number(reference, number_of_name(layer, block, entry)) ||
            entry.owner() == kOfflineOwner || entry.owner() == kDaemonProcess) [[unlikely]]
            return false;
        const IndexEntry ours = after(layer, block, entry.handed_to(self.ours, since), entry);
        // EDGE hand-over (acq_rel; partners: EDGE publish, EDGE ownership). Acquires what publish() released, the
        // giver's bytes; releases our ownership to whoever tries after us. Weakened: the taker reads a frame from
        // before the giver wrote it.
        if (!slot.compare_exchange_strong(bits, ours.bits(), std::memory_order_acq_rel)) [[unlikely]]
            return false;
        count(self.counters->takes);
        return true;
    }

    // False: the entry is another one by now, which `entry` says afterwards.
    [[gnu::always_inline]] bool publish_at(Word &slot, unsigned layer, Block block, IndexEntry &entry,
                                           Reference &name) {
        name = view_.reference_format.reference(view_.numa_node, block, number_of_name(layer, block, entry));
        std::uint64_t bits = entry.bits();
        if (entry.is_published()) {
            // acquire: as in the look that `entry` is from. The same entry again: the name is the block's.
            bits = slot.load(std::memory_order_acquire);
            if (bits == entry.bits()) [[likely]]
                return true;
            entry = IndexEntry{bits};
            return false;
        }
        // EDGE publish (release; partner: EDGE hand-over): whoever takes sees what the giver wrote into the block. A
        // CAS, although only the owner's process writes the entry: another of its threads may publish the block at this
        // moment, and another process take it. A store that came later would say that it is the giver's again.
        if (slot.compare_exchange_strong(bits, entry.published().bits(), std::memory_order_release,
                                         std::memory_order_acquire)) [[likely]]
            return true;
        entry = IndexEntry{bits};
        return false;
    }

    // Right if the entry still says the same when it is looked at again, by a CAS or otherwise.
    [[gnu::always_inline]] std::uint64_t number_of_name(unsigned layer, Block block, IndexEntry entry) const {
        // EDGE era (acquire: the second look at the entry comes after this one; partner: the entry's release, which
        // follows count_half()). The first look acquired the entry, so the half before its own has been counted.
        const std::uint16_t era = view_.era_word(layer, block).load(std::memory_order_acquire);
        return name_number(era, entry.generation());
    }
};

}  // namespace numacre::engine
