// The checks before an allocation is refused: is it true that nothing is free?
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "numacre/shm/buddy/claim.hpp"

namespace numacre::engine {

template <class Env>
class BuddyRefusal : public BuddyClaim<Env> {
    using Base = BuddyClaim<Env>;

public:
    using Base::Base;
    using Base::searcher;
    using typename Base::Self;

protected:
    using Base::first_frame;
    using Base::leaf_word_block;
    using Base::pool_;
    using Base::view_;

    // A digest of obstacles: for every place where a block could lie, one thing that cannot go and come back without a
    // change. A held block is such a thing: its next holder has another generation.
    struct Obstacles {
        std::uint64_t digest = 0;
        bool everywhere = false;  // each place has such a thing
        void add(std::uint64_t place, std::uint64_t bits) {
            digest = (digest ^ place) * 0x9e37'79b9'7f4a'7c15;
            digest = (digest ^ digest >> 29 ^ bits) * 0xbf58'476d'1ce4'e5b9;
        }
        // Whether all obstacles were there at each moment between the two looks.
        bool stood_since(Obstacles before) const { return everywhere && before.everywhere && digest == before.digest; }
    };

    // Number of repetitions of a search that has found nothing and proven nothing, because others allocate and free all
    // the time. After them the block is refused all the same: a block may have been free at each moment, if it was
    // another block at each look. Each look reads words of the whole numa node, so all looks together read about so
    // many; in a small pool, where few blocks move, there are more looks. A block of a leaf word is searched for once
    // more, by hints. A proof would take a look at every frame's entry; hints suffice for such blocks, unless another
    // thread is changing hints at each look.
    unsigned refusal_rounds(unsigned layer) const {
        constexpr std::uint64_t kWordsRead = 1024, kLeast = 2, kMost = Env::kRefusalRoundsMost;
        if (layer == 0) return 1;
        return static_cast<unsigned>(std::clamp(kWordsRead / view_.word_count[layer], kLeast, kMost));
    }

    // order: above kLeafOrder.
    [[gnu::noinline]] Obstacles obstacles_to(Order order) const {
        Obstacles obstacles;
        for (std::uint64_t top = 0; top < view_.word_count[view_.top_layer]; ++top)
            if (!stand_everywhere(view_.top_layer, top, order, obstacles)) return obstacles;
        obstacles.everywhere = true;
        return obstacles;
    }

    // Adds the obstacles below (level, word). False: a place there may have no obstacle.
    bool stand_everywhere(unsigned level, std::uint64_t word, Order order, Obstacles &obstacles) const {
        const unsigned layer = layer_of(order);
        if (level == layer) {
            const unsigned levels = order.value - word_order(layer - 1);
            for (unsigned child = 0; child < kUpperFanOut; child += 1U << levels)
                if (!stands_in(level, word, upper::group(child, levels), obstacles)) return false;
            return true;
        }
        // acquire: successive looks must not be reordered.
        const UpperWord state{view_.upper[level][word].load(std::memory_order_acquire)};
        for (unsigned child = 0; child < kUpperFanOut; ++child) {
            const std::uint64_t below = word * kUpperFanOut + child;
            if (below >= view_.word_count[level - 1]) break;
            if (state.closed_to_allocation(child) ? !stands_in(level, word, upper::group(child, 0), obstacles)
                                                  : !stand_everywhere(level - 1, below, order, obstacles))
                return false;
        }
        return true;
    }

    // Adds an obstacle in one of these children of an upper word. Begins at the last child: the next allocation is more
    // likely in the first ones.
    bool stands_in(unsigned level, std::uint64_t word, std::uint8_t group, Obstacles &obstacles) const {
        const UpperWord state{view_.upper[level][word].load(std::memory_order_acquire)};
        for (unsigned child = kUpperFanOut; child-- > 0;) {
            if ((group >> child & 1) == 0) continue;
            const std::uint64_t below = word * kUpperFanOut + child;
            if (below >= view_.word_count[level - 1]) return true;  // there is no such place
            if (state.allocated_here(child)
                    ? holder_stands_at(level, FrameIndex{below << word_order(level - 1)}, obstacles)
                    : !state.draining(child) && state.occupied_below(child) &&
                          (level == 1 ? holder_stands_in_leaf(below, obstacles)
                                      : stands_in(level - 1, below, 0xff, obstacles)))
                return true;
            if (!state.closed_to_allocation(child)) continue;
            // A drain, or an operation under way on a block of this word. The tag changes if the child is opened and
            // closed again.
            obstacles.add(word << 4 | level, state.bits());
            return true;
        }
        return false;
    }

    bool holder_stands_in_leaf(std::uint64_t word, Obstacles &obstacles) const {
        const std::uint64_t taken = view_.leaf[word].load(std::memory_order_acquire);
        for (std::uint64_t left = taken; left != 0;) {
            const auto frame = static_cast<unsigned>(std::bit_width(left)) - 1;
            if (holder_stands_at(0, FrameIndex{first_frame(word) + frame}, obstacles)) return true;
            left &= ~(std::uint64_t{1} << frame);
        }
        return taken != 0 && operations_stand_in_leaf(word, taken, obstacles);
    }

    // Adds operations under way as obstacles, where a leaf word has no held block. The frames of an operation were
    // somebody's before it, or will be after it, so an unchanged operation is an obstacle. (A thread may be stopped in
    // the operation: others must not retry again and again because of it.) Operations on many blocks of the word do not
    // count: a thread may end one and begin another, and between the two all its blocks are free, with equal intents
    // and entries before and after.
    [[gnu::noinline]] bool operations_stand_in_leaf(std::uint64_t word, std::uint64_t taken,
                                                    Obstacles &obstacles) const {
        bool some = false;
        const std::uint32_t threads = pool_.threads_in_use_bound();
        for (std::uint32_t thread = 0; thread < threads; ++thread) {
            // acquire: as above.
            const Intent intent{pool_.threads[thread].intent.load(std::memory_order_acquire)};
            if (!intent.active() || intent.kind() == IntentKind::word || intent.numa_node() != view_.numa_node ||
                !overlaps(intent.block(), leaf_word_block(word)))
                continue;
            obstacles.add(thread, intent.bits());
            some = true;
        }
        // An operation that has ended and begun again has left another generation.
        for (; taken != 0; taken &= taken - 1) {
            const std::uint64_t frame = first_frame(word) + static_cast<unsigned>(std::countr_zero(taken));
            if (frame < view_.geometry.frame_count)
                obstacles.add(frame, view_.index[0][frame].load(std::memory_order_acquire));
        }
        return some;
    }

    // Adds a held block of this layer that covers the frame (or the child of an upper word that begins there).
    bool holder_stands_at(unsigned layer, FrameIndex frame, Obstacles &obstacles) const {
        const unsigned granule = view_.geometry.index_granule(layer);
        for (unsigned order = granule; order <= word_order(layer) && order <= view_.geometry.largest_order; ++order) {
            const Block block{FrameIndex{frame.value >> order << order}, Order{order}};
            // acquire: as above.
            const IndexEntry entry{view_.index_entry(layer, block).load(std::memory_order_acquire)};
            if (!entry.is_held() || entry.order() != block.order) continue;
            obstacles.add(block.base.value, entry.bits());
            return true;
        }
        return false;
    }

    // True: no other thread is changing hints (nor, where whole words matter, in the middle of any operation) while the
    // root says that nothing suits. So "nothing is free" was true at the moment of reading the root.
    bool nothing_is_hidden(const Self &self, Order order) const {
        const std::uint32_t threads = pool_.threads_in_use_bound();
        const unsigned layer = layer_of(order);
        std::uint64_t before = 0;
        std::uint64_t after = 0;
        return collect_hint_work(self, layer, threads, before) &&
               searcher(self).value_of(view_.hint_levels, 0) <= order.value &&
               collect_hint_work(self, layer, threads, after) && before == after;
    }

    bool collect_hint_work(const Self &self, unsigned layer, std::uint32_t threads, std::uint64_t &digest) const {
        for (std::uint32_t thread = 0; thread < threads; ++thread) {
            if (thread == self.actor.thread.value) continue;
            // acquire (partner: end_hint_work): hint work that has ended is visible as a whole.
            const std::uint64_t bits = pool_.threads[thread].hint_work.load(std::memory_order_acquire);
            if (HintWork{bits}.active()) return false;
            if (layer != 0 && Intent{pool_.threads[thread].intent.load(std::memory_order_acquire)}.active())
                return false;
            digest = digest * 0x9e37'79b9'7f4a'7c15 + bits;
        }
        return true;
    }
};

}  // namespace numacre::engine
