// Changes of ownership of a held block: publish and take, withdraw, hand-off to a waiting thread. They write the
// block's index entry alone; the tree's words stay unchanged.
#pragma once

#include <cstdint>

#include "numacre/shm/buddy/leaf_names.hpp"
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

    // Makes actor.process the owner of the referenced block, held from `since` on. One RMW. Needs no intent: before the
    // CAS the giver owns the block, after it the taker. Errors: bad_argument (not a reference of this pool), stale_ref.
    Errc take(Actor actor, Reference reference, PoolAge since, Block &taken) {
        const Block block = view_.reference_format.block(reference);
        if (!view_.contains(block) || view_.reference_format.numa_node(reference) != view_.numa_node.value ||
            view_.reference_format.is_impossible(reference))
            return Errc::bad_argument;
        const Self self = view_of(actor);
        const unsigned layer = layer_of(block.order);
        // Twice: between the first one's look and CAS the block may have been lent. Under one name that happens once.
        if (!take_at(self, layer, block, reference, since) && !take_at(self, layer, block, reference, since))
            return Errc::stale_ref;
        taken = block;
        return Errc::ok;
    }

    // Makes actor.process the owner of a block in use that another process owns, whether or not there is a reference to
    // it: every reference becomes stale. One RMW; needs no intent, as take(). may_adopt(ProcessSlot): whether that
    // process lets go of its blocks so (the two agree on it: numacre_join). The owner's own threads write the entry of
    // an unpublished block by plain stores, so nobody of them may free the block any more. entry: the one from before,
    // for counts; ours already: nothing was done. Errors: not_owner (nobody's block, or one whose owner does not
    // agree), contended (the block changes hands all the time).
    template <class MayAdopt>
    Errc adopt(Actor actor, FrameIndex base, PoolAge since, const MayAdopt &may_adopt, Block &block,
               IndexEntry &entry) {
        for (unsigned rounds = 0; rounds < kCasRoundsMax; ++rounds) {
            if (find_entry(base, block, entry) != Errc::ok || !entry.is_owned() || !entry.is_a_clients())
                return Errc::not_owner;
            if (entry.owner() == actor.process) return Errc::ok;
            if (!may_adopt(entry.owner())) return Errc::not_owner;
            std::uint64_t bits = entry.bits();
            const unsigned layer = layer_of(block.order);
            const IndexEntry ours = after(layer, block, entry.handed_to(view_of(actor).ours, since), entry);
            // EDGE hand-over, without a publish: the application hands the address on by its own means, which order
            // what the giver wrote. acq_rel as there: the daemon may be the other side, as the dead owner's recovery.
            if (view_.index_entry(layer, block).compare_exchange_strong(bits, ours.bits(), std::memory_order_acq_rel))
                return Errc::ok;
        }
        return Errc::contended;
    }

    // self: the taker, or the process whose blocks are named.
    LeafNames<Env> leaf_names(const Self &self, PoolAge since) const { return {view_, self.ours, since}; }

    // take() of a block in a leaf word, by a reference to this numa node. False: nothing was done, call take().
    [[gnu::always_inline]] bool take_in_leaf(const Self &self, Reference reference, PoolAge since, Block &taken) {
        const Block block = view_.reference_format.block(reference);
        if (block.base.value >= view_.geometry.frame_count || !can_be_in_leaf(block) ||
            !take_at(self, 0, block, reference, since)) [[unlikely]]
            return false;
        taken = block;
        return true;
    }

    // take_in_leaf() of successive references. give(n, base) gets the base of the n-th block. Returns how many have
    // been taken; the next one is for take(). The entries were written last by other CPUs: their misses overlap, where
    // those of locked instructions do not.
    template <class Give>
    [[gnu::always_inline]] unsigned take_many_in_leaf(const Self &self, const std::uint64_t *references,
                                                      unsigned wanted, PoolAge since, const Give &give) {
        const LeafNames<Env> names = leaf_names(self, since);
        for (unsigned next = 0; next < wanted; ++next) names.expect_take(Reference{references[next]});
        unsigned done = 0;
        for (; done < wanted; ++done) {
            FrameIndex base;
            if (!names.take(Reference{references[done]}, base)) [[unlikely]]
                break;
            give(done, base);
        }
        count(self.counters->takes, done);
        return done;
    }

    // Makes an owned block, which find_entry() has found, takeable by others; returns its name. One RMW, none if the
    // block is published already. Several threads of the process may publish the block at the same time: all return the
    // same name. The name is 0 if the process does not own the block any more: another process has taken it by the name
    // that another thread made. If the caller dies inside, the block is published or not; recovery gives it back either
    // way.
    Reference publish(Block block, IndexEntry entry) {
        Word &slot = view_.index_entry(block);
        const ProcessSlot owner = entry.owner();
        // In each round that fails another thread has published the block, and the block has gone or has come back
        // since.
        for (unsigned rounds = 0; rounds < kCasRoundsMax; ++rounds) {
            Reference name;
            if (publish_at(slot, layer_of(block.order), block, entry, name)) return name;
            if (!entry.is_owned() || entry.owner() != owner || entry.order() != block.order) break;
        }
        return {};
    }

    // publish() of a block of self's process in a leaf word. base exists. False: there is no such block, or another
    // thread of the process was quicker: call publish().
    [[gnu::always_inline]] bool publish_in_leaf(const Self &self, FrameIndex base, Reference &name) {
        Word &slot = view_.index[0][base.value];
        IndexEntry entry{slot.load(std::memory_order_acquire)};  // EDGE look-up
        const Block block{base, entry.order()};
        return entry.is_held_like_or_published(self.ours) && can_be_in_leaf(block) &&
               publish_at(slot, 0, block, entry, name);
    }

    // The name of the published block that begins at base, whichever process owns it. None: there is no such block.
    Reference find_name(FrameIndex base) const {
        // In each round that fails the block has changed its owner.
        for (unsigned rounds = 0; rounds < kCasRoundsMax; ++rounds) {
            Block block;
            IndexEntry entry;
            if (find_entry(base, block, entry) != Errc::ok || !can_be_taken(entry, block.order)) break;
            const unsigned layer = layer_of(block.order);
            const std::uint64_t number = number_of_name(layer, block, entry);
            // acquire: as in publish_at(). If the entry is unchanged, the number is the block's.
            if (view_.index_entry(layer, block).load(std::memory_order_acquire) == entry.bits())
                return view_.reference_format.reference(view_.numa_node, block, number);
        }
        return {};
    }

    // First step of a hand-off (hand_off.hpp): the held block of `entry` becomes nobody's, on its way. entry: on
    // success the new entry. The intent stays set. False: the block is not the process's any more, and nothing was
    // done: it is another's by now, or lent, and somebody may hold it.
    bool put_on_its_way(Actor actor, Block block, IndexEntry &entry) {
        if (entry.is_lent()) return false;
        const Self self = view_of(actor);
        begin(self, IntentKind::free, block);
        std::uint64_t bits = entry.bits();
        entry = after(layer_of(block.order), block, IndexEntry::owned(kHandOffOwner, block.order, 0, {}), entry);
        // EDGE ownership, as in become_freer(): a recovery that sees the block on its way finds the intent.
        if (!view_.index_entry(block).compare_exchange_strong(bits, entry.bits(), std::memory_order_acq_rel)) {
            end(self);
            return false;
        }
        Env::crash_point(CrashPoint::hand_off_on_its_way);
        return true;
    }

    // Last step of a hand-off, after the waiter's word names the block. tally: the block had an owner, and counts as
    // freed.
    void has_been_given(Actor actor, Block block, bool tally) {
        const Self self = view_of(actor);
        if (tally) count(self.counters->frees[block.order.value]);
        Env::crash_point(CrashPoint::hand_off_given);
        end(self);
    }

    // The waiter calls this to become the owner of the given block. False: the block is not on its way any more.
    bool receive(Actor actor, FrameIndex base, std::uint32_t generation, Note note, Block &block) {
        const Self self = view_of(actor);
        IndexEntry entry;
        if (find_entry(base, block, entry) != Errc::ok || entry.owner() != kHandOffOwner ||
            entry.generation() != generation)
            return false;
        // A store suffices: only the waiter that has been told of a block on its way writes its entry. EDGE commit
        // (release), as after a claim.
        const IndexEntry ours =
            after(layer_of(block.order), block, IndexEntry::owned(self.actor.process, block.order, 0, note), entry);
        view_.index_entry(block).store(ours.bits(), std::memory_order_release);
        Env::crash_point(CrashPoint::hand_off_received);
        count(self.counters->allocations[block.order.value]);
        count(self.counters->hand_offs);
        return true;
    }

    // The opposite of publish(): all references to the block become stale. False: another process took the block
    // before, or a thread has held it, which only the free ends. On success `entry` is the new entry.
    bool withdraw(Block block, IndexEntry &entry) {
        if (entry.is_lent()) return false;
        std::uint64_t bits = entry.bits();
        const IndexEntry now = after(layer_of(block.order), block,
                                     IndexEntry::owned(entry.owner(), entry.order(), 0, entry.note()), entry);
        // EDGE hand-over, the other side of it.
        if (!view_.index_entry(block).compare_exchange_strong(bits, now.bits(), std::memory_order_acq_rel))
            return false;
        entry = now;
        return true;
    }

    // The entry of the block, whatever it says. False: there is no such block.
    bool look(Block block, IndexEntry &entry) const {
        if (!view_.contains(block)) return false;
        entry = IndexEntry{view_.index_entry(block).load(std::memory_order_acquire)};  // EDGE look-up
        return true;
    }

    // Makes `to` the owner of the block, held from `since` on, with the next generation. A plain store: the caller
    // alone may change the entry, of a held block that is not published.
    void pass_on(Block block, IndexEntry entry, ProcessSlot to, PoolAge since) const {
        const unsigned layer = layer_of(block.order);
        const IndexEntry theirs =
            after(layer, block, entry.handed_to(IndexEntry::owned(to, Order{0}, 0, {}), since), entry);
        // EDGE commit (release), as after a claim.
        view_.index_entry(layer, block).store(theirs.bits(), std::memory_order_release);
    }

protected:
    using Base::can_be_in_leaf;
    using Base::view_;

    // Whether a client has made a reference to a block of this order at this entry.
    static bool can_be_taken(IndexEntry entry, Order order) {
        return entry.is_published(order) && entry.is_a_clients();
    }

    // take() of a block that can lie in this layer.
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
        // EDGE hand-over (acq_rel; partners: EDGE publish, EDGE ownership). Acquires the giver's bytes, which publish()
        // released; releases our ownership to later takers. Weakened: the taker reads a frame from before the giver
        // wrote it.
        if (!slot.compare_exchange_strong(bits, ours.bits(), std::memory_order_acq_rel)) [[unlikely]]
            return false;
        count(self.counters->takes);
        return true;
    }

    // False: the entry has changed; `entry` is the new one.
    [[gnu::always_inline]] bool publish_at(Word &slot, unsigned layer, Block block, IndexEntry &entry,
                                           Reference &name) {
        name = view_.reference_format.reference(view_.numa_node, block, number_of_name(layer, block, entry));
        std::uint64_t bits = entry.bits();
        if (entry.is_published()) {
            // acquire: as in the load that `entry` is from. If the entry is unchanged, the name is the block's.
            bits = slot.load(std::memory_order_acquire);
            if (bits == entry.bits()) [[likely]]
                return true;
            entry = IndexEntry{bits};
            return false;
        }
        // EDGE publish (release; partner: EDGE hand-over): the taker sees what the giver wrote into the block. A CAS,
        // although only the owner's process writes the entry: another of its threads may publish the block at this
        // moment, and another process may take it. A late store would make the giver the owner again.
        if (slot.compare_exchange_strong(bits, entry.published().bits(), std::memory_order_release,
                                         std::memory_order_acquire)) [[likely]]
            return true;
        entry = IndexEntry{bits};
        return false;
    }

    // The number is right if the entry is unchanged at a later look, by a CAS or otherwise.
    [[gnu::always_inline]] std::uint64_t number_of_name(unsigned layer, Block block, IndexEntry entry) const {
        // EDGE era (acquire: the second look at the entry comes after this one; partner: the entry's release, which
        // follows count_half()). The first look acquired the entry, so the half before its own has been counted.
        const std::uint16_t era = view_.era_word(layer, block).load(std::memory_order_acquire);
        return name_number(era, entry.generation());
    }
};

}  // namespace numacre::engine
