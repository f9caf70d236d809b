// A walk over one numa node's tree beside running clients: plain loads, bounded, nothing read is trusted. It visits
// marked parts only; free parts are reported as maximal blocks.
//
// A Visitor has: owned(Block, IndexEntry) for blocks that a process holds (in use or cached), free(Block),
// taken(FrameIndex first, frames) for frames that are marked but owned by nobody (an operation in flight),
// offline(Block) for chunks without memory, damaged(Block) for an index entry that no correct client can have written.
// A Visitor may have lost(Block), for blocks that are held but have lost bits of their word. Only then does the walk
// also read the entries of free frames in marked words, which costs as much as a pool full of single frames.
#pragma once

#include <bit>
#include <cstdint>

#include "numacre/shm/layout.hpp"

namespace numacre::engine {

template <class Env, class Visitor>
class Walk {
public:
    Walk(const NodeView<Env> &view, Visitor &visitor) : view_(view), visitor_(visitor) {}

    // Walks one word of the top layer.
    void top_word(std::uint64_t word) {
        if (view_.top_layer == 0)
            (void)leaf_word(word, false);
        else
            (void)upper_word(view_.top_layer, word);
    }

private:
    // True: the word is wholly free, and nothing has been reported (the parent merges it with its neighbours).
    bool leaf_word(std::uint64_t word, bool may_merge) {
        // acquire: entries of blocks claimed before.
        const std::uint64_t taken = view_.leaf[word].load(std::memory_order_acquire);
        if constexpr (kLooksForLost) look_below_free_frames(word, taken);
        if (taken == 0 && may_merge) return true;
        const std::uint64_t first = word * kLeafFrames;
        const unsigned largest = view_.geometry.largest_order < kLeafOrder ? view_.geometry.largest_order : kLeafOrder;
        for (unsigned frame = 0; frame < kLeafFrames && first + frame < view_.geometry.frame_count;) {
            if ((taken >> frame & 1) == 0) {
                unsigned order = 0;
                while (order < largest && (frame & ((2U << order) - 1)) == 0 &&
                       (taken & leaf::mask(frame, order + 1)) == 0)
                    ++order;
                visitor_.free(Block{FrameIndex{first + frame}, Order{order}});
                frame += 1U << order;
                continue;
            }
            const FrameIndex base{first + frame};
            const IndexEntry entry{view_.index[0][base.value].load(std::memory_order_acquire)};
            const unsigned order = entry.order().value;
            // The scan of a pool full of single frames spends all its time here.
            if (entry.is_held() && order <= largest && (frame & ((1U << order) - 1)) == 0) [[likely]] {
                const std::uint64_t run = leaf::mask(frame, order);
                if ((taken & run) == run) {
                    report_owned(Block{base, entry.order()}, entry);
                    frame += 1U << order;
                    continue;
                }
                look_for_lost(0, word, Block{base, entry.order()}, entry);
            } else if (entry.is_held()) {
                visitor_.damaged(Block{base, Order{0}});
            }
            visitor_.taken(base, 1);
            ++frame;
        }
        return false;
    }

    bool upper_word(unsigned layer, std::uint64_t word) {
        const UpperWord state{view_.upper[layer][word].load(std::memory_order_acquire)};
        const unsigned child_order = word_order(layer - 1);
        const std::uint64_t first = word * kUpperFanOut;
        const std::uint64_t below = view_.geometry.word_count(layer - 1);
        unsigned free_children = 0;
        for (unsigned child = 0; child < kUpperFanOut && first + child < below;) {
            if (state.allocated_here(child)) {
                child += allocated_child(layer, word, child, state);
                continue;
            }
            if constexpr (kLooksForLost)
                if (child % 2 == 0) look_below_free_child(layer, word, child);
            const bool is_free = !state.occupied_below(child) ||
                                 (layer == 1 ? leaf_word(first + child, true) : upper_word(layer - 1, first + child));
            if (is_free) free_children |= 1U << child;
            ++child;
        }
        if (free_children == 0xff && layer < view_.top_layer) return true;
        const unsigned levels_max = view_.geometry.largest_order - child_order < kUpperLevels
                                        ? view_.geometry.largest_order - child_order
                                        : kUpperLevels;
        for (unsigned child = 0; child < kUpperFanOut;) {
            if ((free_children >> child & 1) == 0) {
                ++child;
                continue;
            }
            unsigned levels = 0;
            while (levels < levels_max && (child & ((2U << levels) - 1)) == 0 &&
                   (~free_children & upper::group(child, levels + 1)) == 0)
                ++levels;
            visitor_.free(Block{FrameIndex{(first + child) << child_order}, Order{child_order + levels}});
            child += 1U << levels;
        }
        return false;
    }

    // A child that belongs to a block of this word. Returns how many children the report covers.
    unsigned allocated_child(unsigned layer, std::uint64_t word, unsigned child, UpperWord state) {
        const unsigned child_order = word_order(layer - 1);
        const FrameIndex base{(word * kUpperFanOut + child) << child_order};
        // Blocks of this layer begin at even children; an odd one met here has lost its block's beginning.
        if (child % 2 == 0) {
            const IndexEntry entry{
                view_.index[layer][base.value >> view_.geometry.index_granule(layer)].load(std::memory_order_acquire)};
            const Block block{base, entry.order()};
            // A block on its way to a waiter (hand_off.hpp) counts as held, like a cached one.
            if (entry.is_held() && layer_of(block.order) == layer && view_.contains(block)) {
                const unsigned levels = block.order.value - child_order;
                const std::uint8_t group = upper::group(child, levels);
                if ((state.allocated_children() & group) == group) {
                    report_owned(block, entry);
                    return 1U << levels;
                }
                look_for_lost(layer, word, block, entry);
            } else if (entry.is_held()) {
                visitor_.damaged(Block{base, Order{child_order}});
            }
        }
        visitor_.taken(base, std::uint64_t{1} << child_order);
        return 1;
    }

    static constexpr bool kLooksForLost = requires(Visitor &visitor) { visitor.lost(Block{}); };

    // Does a block begin where the word says that nothing does?
    void look_below_free_frames(std::uint64_t word, std::uint64_t taken) {
        const std::uint64_t first = word * kLeafFrames;
        const std::uint64_t exist = view_.geometry.frame_count - first;
        std::uint64_t free = ~taken;
        if (exist < kLeafFrames) free &= (std::uint64_t{1} << exist) - 1;
        for (; free != 0; free &= free - 1) {
            const FrameIndex base{first + static_cast<unsigned>(std::countr_zero(free))};
            const IndexEntry entry{view_.index[0][base.value].load(std::memory_order_acquire)};
            if (!entry.is_held()) [[likely]]
                continue;
            const Block block{base, entry.order()};
            if (block.order.value <= kLeafOrder && view_.contains(block))
                look_for_lost(0, word, block, entry);
            else
                visitor_.damaged(Block{base, Order{0}});
        }
    }
    void look_below_free_child(unsigned layer, std::uint64_t word, unsigned child) {
        const unsigned child_order = word_order(layer - 1);
        const FrameIndex base{(word * kUpperFanOut + child) << child_order};
        const IndexEntry entry{
            view_.index[layer][base.value >> view_.geometry.index_granule(layer)].load(std::memory_order_acquire)};
        if (!entry.is_held()) return;
        const Block block{base, entry.order()};
        if (layer_of(block.order) == layer && view_.contains(block))
            look_for_lost(layer, word, block, entry);
        else
            visitor_.damaged(Block{base, Order{child_order}});
    }

    // A block had all its bits before its entry said that it is held (EDGE commit), and keeps them until the entry says
    // that it is being freed (EDGE ownership); a later holder has another generation. So if the entry is unchanged
    // before and after a look that finds bits missing, the entry is wrong, whatever other threads do. entry: read
    // before the look. An earlier look at the word does not count, for the block may be younger.
    [[gnu::noinline]] void look_for_lost(unsigned layer, std::uint64_t word, Block block, IndexEntry entry) {
        if constexpr (kLooksForLost) {
            std::uint64_t bits = 0;
            std::uint64_t present = 0;
            // acquire: before the entry is read again. A thread that sees the bits gone after an unclaim sees that the
            // entry has changed.
            if (layer == 0) {
                bits = leaf::mask(block.base.value % kLeafFrames, block.order.value);
                present = view_.leaf[word].load(std::memory_order_acquire);
            } else {
                const unsigned child_order = word_order(layer - 1);
                bits = upper::group(static_cast<unsigned>(block.base.value >> child_order) % kUpperFanOut,
                                    block.order.value - child_order);
                present = UpperWord{view_.upper[layer][word].load(std::memory_order_acquire)}.allocated_children();
            }
            if ((present & bits) != bits &&
                view_.index_entry(layer, block).load(std::memory_order_acquire) == entry.bits())
                visitor_.lost(block);
        }
    }

    void report_owned(Block block, IndexEntry entry) {
        if (entry.owner() == kOfflineOwner) [[unlikely]]
            visitor_.offline(block);
        else
            visitor_.owned(block, entry);
    }

    const NodeView<Env> &view_;
    Visitor &visitor_;
};

template <class Env, class Visitor>
void walk_all(const NodeView<Env> &view, Visitor &visitor) {
    Walk<Env, Visitor> walk{view, visitor};
    for (std::uint64_t word = 0; word < view.geometry.word_count(view.top_layer); ++word) walk.top_word(word);
}

// Walks the top words that contain a part of the given frames.
template <class Env, class Visitor>
void walk_frames(const NodeView<Env> &view, FrameIndex first, std::uint64_t frames, Visitor &visitor) {
    Walk<Env, Visitor> walk{view, visitor};
    const unsigned order = word_order(view.top_layer);
    const std::uint64_t words = view.geometry.word_count(view.top_layer);
    for (std::uint64_t word = first.value >> order; word < words && word << order < first.value + frames; ++word)
        walk.top_word(word);
}

}  // namespace numacre::engine
