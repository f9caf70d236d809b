// FREE: decides which thread frees a block, clears its bits, and raises the hints.
#pragma once

#include <cstdint>

#include "numacre/shm/buddy/placement.hpp"
#include "numacre/shm/holds.hpp"

namespace numacre::engine {

template <class Env>
class BuddyRelease : public BuddyPlacement<Env> {
    using Base = BuddyPlacement<Env>;

public:
    using Base::Base;
    using Base::begin;
    using Base::end;
    using Base::find_entry;
    using Base::searcher;
    using Base::view_of;
    using typename Base::Self;
    using typename Base::ShortPath;
    using typename Base::Word;

    // free() of an unpublished block in a leaf word. base exists.
    [[gnu::always_inline]] ShortPath free_in_leaf(const Self &self, FrameIndex base, Block &freed) {
        const IndexEntry entry{view_.index[0][base.value].load(std::memory_order_acquire)};  // EDGE look-up
        freed = Block{base, entry.order()};
        if (!entry.is_held_like(self.ours) || !can_be_in_leaf(freed)) [[unlikely]]
            return ShortPath::refused;
        return free_private(self, 0, freed, entry);
    }

    // free() of an unpublished block in an upper word. base exists.
    [[gnu::always_inline]] ShortPath free_in_upper(const Self &self, FrameIndex base, Block &freed) {
        if (view_.top_layer == 0) [[unlikely]]
            return ShortPath::refused;
        // Nearly all such blocks are in layer 1, and there the compiler knows all values that depend on the layer.
        const ShortPath way = free_in_layer(self, 1, base, freed);
        if (way != ShortPath::refused) [[likely]]
            return way;
        Block above;  // not `freed`, which would have to be in memory then
        const ShortPath further = free_above(self, base, above);
        freed = above;
        return further;
    }

    [[gnu::noinline]] void finish_free(const Self &self, Block freed) {
        const unsigned layer = layer_of(freed.order);
        raise_hints(self, layer, freed.base.value >> word_order(layer));
        Env::crash_point(CrashPoint::free_after_hints);
        end(self);
    }

    // Frees the block that begins at `base` if `actor.process` owns it. freed: that block. One RMW, two if the block is
    // published. The caller guarantees that no other thread of the process frees the block at the same moment: see
    // free_checked(). Errors (nothing changed): bad_argument (no such frame), not_owner, stale_ref (not allocated, or
    // not from there).
    Errc free(Actor actor, FrameIndex base, Block &freed) {
        const Self self = view_of(actor);
        if (base.value < view_.geometry.frame_count) {
            ShortPath way = free_in_leaf(self, base, freed);
            if (way == ShortPath::refused) way = free_in_upper(self, base, freed);
            if (way == ShortPath::begun) finish_free(self, freed);
            if (way != ShortPath::refused) return Errc::ok;
        }
        return free_checked(actor, base, freed);
    }

    // Like free(), but without that guarantee: one CAS decides between all threads that free or take the block at once.
    // Two RMWs.
    Errc free_checked(Actor actor, FrameIndex base, Block &freed) {
        IndexEntry entry;
        const Errc found = find_entry(base, freed, entry);
        if (found != Errc::ok) return found;
        if (entry.owner() != actor.process) return Errc::not_owner;
        return free_entry(actor, freed, entry, true);
    }

    // Frees blocks of order at most kLeafOrder that the process holds in this state: owned, or cached by the caller.
    // The caller gives the guarantee of free(). contended: others may take the thread's cached blocks back meanwhile
    // (idle_caches.hpp), so that a CAS decides for each. Neighbours in the list that share a leaf word share the RMW on
    // it. Returns the number of freed blocks, counted from the first: the call ends before a base without such a block.
    unsigned free_many(Actor actor, BlockState state, const FrameIndex *bases, unsigned count_of_bases,
                       bool contended = false) {
        const Self self = view_of(actor);
        unsigned freed = 0;
        bool fits = true;
        while (fits && freed < count_of_bases && bases[freed].value < view_.geometry.frame_count) {
            const std::uint64_t word = bases[freed].value / kLeafFrames;
            begin(self, IntentKind::word, leaf_word_block(word));
            std::uint64_t mask = 0;
            while (freed < count_of_bases && bases[freed].value / kLeafFrames == word) {
                fits = start_freeing(self, state, bases[freed], contended, mask);
                if (!fits) break;
                ++freed;
            }
            if (mask != 0) release_in_leaf(self, word, mask);
            end(self);
        }
        return freed;
    }

    // Frees an owned block that find_entry() just found. stale_ref: another thread was faster. tally: count the free;
    // false for a chunk that comes online. A lent block that somebody holds lingers, and is nobody's from here on: its
    // last drop frees it.
    Errc free_entry(Actor actor, Block block, IndexEntry entry, bool tally) {
        const Self self = view_of(actor);
        const ShortPath way = free_found(self, layer_of(block.order), block, entry, tally);
        if (way == ShortPath::begun) finish_free(self, block);
        return way == ShortPath::refused ? Errc::stale_ref : Errc::ok;
    }

protected:
    using Base::can_be_in_leaf;
    using Base::group_of;
    using Base::home_of;
    using Base::leaf_word_block;
    using Base::pool_;
    using Base::set_home;
    using Base::view_;

    [[gnu::always_inline]] ShortPath free_in_layer(const Self &self, unsigned layer, FrameIndex base, Block &freed) {
        const unsigned granule = view_.geometry.index_granule(layer);
        if ((base.value & ((std::uint64_t{1} << granule) - 1)) != 0) return ShortPath::refused;
        const IndexEntry entry{
            view_.index[layer][base.value >> granule].load(std::memory_order_acquire)};  // EDGE look-up
        freed = Block{base, entry.order()};
        if (!entry.is_held_like(self.ours) || layer_of(freed.order) != layer || !view_.contains(freed))
            return ShortPath::refused;
        return free_private(self, layer, freed, entry);
    }

    // free_in_upper() for the layers above layer 1.
    [[gnu::noinline]] ShortPath free_above(const Self &self, FrameIndex base, Block &freed) {
        for (unsigned layer = 2; layer <= view_.top_layer; ++layer)
            if (const ShortPath way = free_in_layer(self, layer, base, freed); way != ShortPath::refused) return way;
        return ShortPath::refused;
    }

    // Frees an owned block that was just found, also if others free or take it: refused if another thread was faster.
    ShortPath free_found(const Self &self, unsigned layer, Block block, IndexEntry entry, bool tally) {
        const IndexEntry found = entry;
        if (!found.is_lent() && become_freer(self, layer, block, entry)) return release(self, layer, block, tally);
        // Lent before, or since: it is the same block, and the same owner's. (A cached entry has other words in place
        // of the note, which may look like one.)
        return found.is_owned() && entry == found.lent() ? free_lent(self, layer, block, entry, tally)
                                                         : ShortPath::refused;
    }

    // free_found() of a lent block. done also if the block lingers.
    [[gnu::noinline]] ShortPath free_lent(const Self &self, unsigned layer, Block block, IndexEntry entry, bool tally) {
        begin_free(self, block);
        std::uint64_t bits = entry.bits();
        const IndexEntry lingers = entry.now(IndexEntry::owned(kLingeringOwner, Order{0}, 0, {}));
        // EDGE ownership, as in become_freer(): it decides between all that free or take the block. EDGE free-then-look
        // (seq_cst; partners: EDGE hold-then-look, drop-then-look). The intent stays until the look is done: if we die
        // before, recovery looks.
        if (!view_.index_entry(layer, block).compare_exchange_strong(bits, lingers.bits(), std::memory_order_seq_cst)) {
            end(self);
            return ShortPath::refused;
        }
        Env::crash_point(CrashPoint::free_lingers);
        if (tally) count(self.counters->frees[block.order.value]);
        if (!free_lingering(self, layer, block, lingers)) end(self);
        return ShortPath::done;
    }

    // Frees a lingering block if no thread holds it: then true. entry: read by seq_cst, or written.
    [[gnu::noinline]] bool free_lingering(const Self &self, unsigned layer, Block block, IndexEntry entry) {
        if (has_readers(pool_, view_.numa_node, block)) return false;
        if (!become_freer(self, layer, block, entry)) return false;
        if (release(self, layer, block, false) == ShortPath::begun) finish_free(self, block);
        return true;
    }

    // Frees the process's own, unpublished block: a plain store names the freeing thread.
    [[gnu::always_inline]] ShortPath free_private(const Self &self, unsigned layer, Block block, IndexEntry entry) {
        begin_free(self, block);
        // EDGE ownership, without a CAS: only the process itself writes the entry of a block that it has not published
        // (owner.hpp), and of its threads only the thread that frees the block. (If two threads free it by mistake:
        // shm/README.md, No CAS.) Weakened, as in become_freer(): recovery sees FREEING with no intent.
        view_.index_entry(layer, block).store(entry.now(self.freeing).bits(), std::memory_order_release);
        Env::crash_point(CrashPoint::free_after_ownership);
        return release(self, layer, block, true);
    }

    void begin_free(const Self &self, Block block) {
        begin(self, IntentKind::free, block);
        Env::crash_point(CrashPoint::free_after_intent);
    }

    // Clears the bits of a block that the calling thread frees, as index and intent say already. Marks above it stay:
    // the claim of a larger block cleans them when it comes (lazy coalescing).
    [[gnu::always_inline]] ShortPath release(const Self &self, unsigned layer, Block block, bool tally) {
        const std::uint64_t word = block.base.value >> word_order(layer);
        unclaim(layer, word, block);
        Env::crash_point(CrashPoint::free_after_unclaim);
        // The next block of this order comes from here: it and its index entry are likely still in the processor's
        // caches. (From an upper word only if the hole is no wider than other holes.)
        set_home(self, block.order, layer == 0 ? Home{block.base.value, 0} : home_of(self, block.order).back_at(word));
        if (tally) count(self.counters->frees[block.order.value]);
        if (!hints_suffice(self, layer, word)) [[unlikely]]
            return ShortPath::begun;
        Env::crash_point(CrashPoint::free_after_hints);
        end(self);
        return ShortPath::done;
    }

    // Decides which thread frees. True: the calling thread, and its intent says so. False: another thread was faster,
    // or has held the block; `entry` is the present entry.
    bool become_freer(const Self &self, unsigned layer, Block block, IndexEntry &entry) {
        begin_free(self, block);
        // EDGE ownership (acq_rel; partners: EDGE commit, EDGE hand-over). The one place that decides which thread
        // frees: a second free, a free of a block that was handed on and recovery all meet in this CAS. Release
        // publishes the intent: a thread that sees FREEING(thread) must find that thread's intent. Weakened: recovery
        // sees FREEING with no intent, takes the free for finished, and clears bits that the block's next owner has by
        // then.
        std::uint64_t bits = entry.bits();
        Word &slot = view_.index_entry(layer, block);
        if (!slot.compare_exchange_strong(bits, entry.now(self.freeing).bits(), std::memory_order_acq_rel))
            [[unlikely]] {
            end(self);
            entry = IndexEntry{bits};
            return false;
        }
        Env::crash_point(CrashPoint::free_after_ownership);
        return true;
    }

    // Becomes the freer of one block of a free_many(): as in free_private() or, if others may take it, become_freer().
    // Adds the block's bits to mask.
    bool start_freeing(const Self &self, BlockState state, FrameIndex base, bool contended, std::uint64_t &mask) {
        Word &slot = view_.index[0][base.value];
        std::uint64_t bits = slot.load(std::memory_order_acquire);  // EDGE look-up
        const IndexEntry entry{bits};
        const Block block{base, entry.order()};
        // A lent block may have to linger: it is freed by itself.
        if (entry.state() != state || entry.owner() != self.actor.process || block.order.value > kLeafOrder ||
            entry.is_lent() || !view_.contains(block) || (entry.is_cached() && entry.cacher() != self.actor.thread))
            return false;
        // EDGE ownership
        if (!entry.is_published() && !contended)
            slot.store(entry.now(self.freeing).bits(), std::memory_order_release);
        else if (!slot.compare_exchange_strong(bits, entry.now(self.freeing).bits(), std::memory_order_acq_rel))
            return false;
        Env::crash_point(CrashPoint::free_after_ownership);
        mask |= leaf::mask(base.value % kLeafFrames, block.order.value);
        if (entry.is_owned()) count(self.counters->frees[block.order.value]);
        if (block.order.value == kLeafOrder) set_home(self, block.order, Home{base.value, 0});
        return true;
    }

    // Clears the bits of the blocks of a free_many() in one word.
    void release_in_leaf(const Self &self, std::uint64_t word, std::uint64_t mask) {
        unclaim_in_leaf(word, mask);
        Env::crash_point(CrashPoint::free_after_unclaim);
        if (!hints_suffice(self, 0, word)) raise_hints(self, 0, word);
        Env::crash_point(CrashPoint::free_after_hints);
    }

    // False: the hints seem to be too low.
    [[gnu::always_inline]] bool hints_suffice(const Self &self, unsigned layer, std::uint64_t word) const {
        return layer == 0 ? searcher(self).leaf_is_promised(word) : searcher(self).hints_are_full(layer, word);
    }

    void raise_hints(const Self &self, unsigned layer, std::uint64_t word) {
        Search<Env> search = searcher(self);
        if (layer == 0)
            search.raise(1, word / kUpperFanOut, search.leaf_value(word));
        else
            search.raise_after_release(layer, word);
    }

    [[gnu::always_inline]] void unclaim_in_leaf(std::uint64_t word, std::uint64_t mask) {
        // EDGE unclaim-to-claim (release in seq_cst; partner: the claim). Carries our last bytes and our index entry to
        // the next owner. seq_cst also for EDGE free-then-hint.
        view_.leaf[word].fetch_and(~mask, std::memory_order_seq_cst);
    }

    [[gnu::always_inline]] void unclaim(unsigned layer, std::uint64_t word, Block block) {
        if (layer == 0) {
            unclaim_in_leaf(word, leaf::mask(block.base.value % kLeafFrames, block.order.value));
            return;
        }
        // EDGE unclaim-to-claim, as in a leaf. One AND, so that a process that scribbles over the word cannot keep us
        // here, and clearing a clear bit harms no neighbour. The AND leaves the tag as it is: clearing F alone cannot
        // bring back an earlier value of the word, and the claim that sets F again advances the tag.
        view_.upper[layer][word].fetch_and(UpperWord::all_but_allocated(group_of(layer, block)),
                                           std::memory_order_seq_cst);
    }
};

}  // namespace numacre::engine
