// The allocator of one numa node: a non-blocking buddy system after Marotta et al. (NBBS, IEEE TC 2021), corrected,
// packed wider and made to survive the death of any process. All atomics of the tree are in this file, in buddy/,
// search.hpp and recovery.hpp.
//
// Every operation is lock-free, never blocks, never enters the kernel. A process may die at any instruction of an
// operation; Recovery then completes or undoes the operation. shm/README.md has the steps, the crash table and the
// edges.
//
// Each file of buddy/ is one layer, a base class of the next: tree, ownership, coalesce, placement, release, holds,
// claim, refusal, elsewhere. A layer knows those below it and none above.
#pragma once

#include <cstdint>

#include "numacre/error.hpp"
#include "numacre/shm/buddy/elsewhere.hpp"

namespace numacre::engine {

template <class Env>
class Buddy : public BuddyElsewhere<Env> {
    using Base = BuddyElsewhere<Env>;

public:
    using Base::Base;
    using Base::give_up;
    using Base::view_of;
    using typename Base::Self;
    using typename Base::ShortPath;

    // Allocates a block of `order` for actor.process. Errors: out_of_frames, bad_argument. Common path: one RMW (the
    // claim), then one load for each upper layer, and four plain stores.
    Errc allocate(Actor actor, Order order, Note note, Block &out) {
        return allocate_as(view_of(actor), order, IndexEntry::owned(actor.process, order, 0, note), out);
    }

    // Continues allocate() after a short path refused. Errors: out_of_frames.
    Errc allocate_further(const Self &self, Order order, Note note, Block &out) {
        const unsigned layer = layer_of(order);
        return allocate_elsewhere(self, layer, home_word(self, layer, order), {}, order, self.ours.of(order, note),
                                  out);
    }

    // Allocates blocks of one order (at most kLeafOrder), many of a leaf word by one RMW. Returns their number: fewer
    // than `wanted` when no more are free. state: owned or cached; only owned blocks count as allocations. If the
    // caller dies inside, recovery gives back the committed blocks as owned by the process, and clears the bits of the
    // others.
    unsigned allocate_many(Actor actor, Order order, BlockState state, Note note, FrameIndex *bases, unsigned wanted) {
        const Self self = view_of(actor);
        const IndexEntry grant = state == BlockState::owned ? self.ours.of(order, note)
                                                            : IndexEntry::cached(actor.process, actor.thread, order, 0);
        return allocate_many_as(self, order, grant, bases, wanted);
    }

    // Allocates a block as if for a cache, but for none that anybody takes blocks back from: the block is on its way to
    // a waiter (hand_off.hpp). Errors: as allocate().
    Errc allocate_to_give(Actor actor, Order order, FrameIndex &base) {
        const IndexEntry grant = IndexEntry::cached(actor.process, kDaemonThread, order, 0);
        return allocate_many_as(view_of(actor), order, grant, &base, 1) == 1 ? Errc::ok : Errc::out_of_frames;
    }

private:
    using Base::allocate_elsewhere;
    using Base::allocate_in_upper;
    using Base::allocate_in_word;
    using Base::finish_claim;
    using Base::home_for;
    using Base::home_of;
    using Base::home_word;
    using Base::kNoWord;
    using Base::try_leaf_word;
    using Base::view_;
    using typename Base::Attempt;

    unsigned allocate_many_as(const Self &self, Order order, IndexEntry grant, FrameIndex *bases, unsigned wanted) {
        unsigned got = 0;
        while (got < wanted) {
            const std::uint64_t home = home_word(self, layer_of(order), order);
            const unsigned more = home == kNoWord || order.value >= kLeafOrder
                                      ? 0
                                      : allocate_in_word(self, home, order, grant, bases + got, wanted - got);
            got += more;
            if (more != 0) continue;
            Block block;
            if (allocate_as(self, order, grant, block) != Errc::ok) break;  // also finds the next home
            bases[got++] = block.base;
        }
        return got;
    }

    Errc allocate_as(const Self &self, Order order, IndexEntry grant, Block &out) {
        if (order.value > view_.geometry.largest_order) return Errc::bad_argument;
        const unsigned layer = layer_of(order);
        if (layer == 0) {
            // Read once, so that the checked value is the used value, also if somebody scribbles over the word.
            const FrameIndex at{home_of(self, order).place()};
            if (at.value >= view_.geometry.frame_count)
                return allocate_elsewhere(self, 0, kNoWord, {}, order, grant, out);
            const Attempt first = try_leaf_word(self, at, order, grant, out);
            return first.got ? Errc::ok : allocate_elsewhere(self, 0, at.value / kLeafFrames, first, order, grant, out);
        }
        const std::uint64_t home = home_for(self, layer, order);
        if (home == kNoWord) return allocate_elsewhere(self, layer, kNoWord, {}, order, grant, out);
        const ShortPath way =
            allocate_in_upper(self, layer, home, order, home_of(self, order).widest(), [&] { return grant; }, out);
        if (way == ShortPath::done || (way == ShortPath::begun && finish_claim(self, layer, home, out, grant).got))
            return Errc::ok;
        if (way == ShortPath::raced) give_up(self);
        return allocate_elsewhere(self, layer, home, {}, order, grant, out);
    }
};

}  // namespace numacre::engine
