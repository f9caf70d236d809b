// Where a block is to lie, for who wants to choose: a look at the words themselves, and nothing else. The answer is
// claimed by Buddy::allocate_at(). (The allocator's own search takes what is near, and knows the rest from hints.)
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "numacre/shm/layout.hpp"

namespace numacre::engine {

enum class Fit : std::uint8_t {
    nearby,   // no choice
    compact,  // in the chunk that is fullest, so that others become empty; the best fit in there (FitLook::worth())
    best,     // the smallest free space that suffices, the lowest of these, as a serial buddy system chooses
};

// Of PoolHeader::accounting, beside Accounting's: how blocks are to be chosen that do not say it themselves.
inline constexpr std::uint64_t kFitShift = 3;
inline constexpr std::uint64_t kFitMask = 3;
constexpr std::uint64_t accounting_of(Fit fit) {
    return static_cast<std::uint64_t>(fit) << kFitShift;
}
constexpr Fit fit_of(std::uint64_t accounting) {
    const std::uint64_t said = accounting >> kFitShift & kFitMask;
    return said <= static_cast<std::uint64_t>(Fit::best) ? static_cast<Fit>(said) : Fit::nearby;
}

// Leaf words that one look reads at most (but at least what one word of the top layer covers): 4 GiB of 4-KiB frames.
// Of larger nodes some chunks, others each time.
inline constexpr std::uint64_t kWordsLookedAt = 16384;

// Thread-safe, writes nothing; nothing it reads is trusted.
template <class Env>
class FitLook {
public:
    FitLook(const NodeView<Env> &view, Order order, Fit fit)
        : view_(view), order_(order), largest_order_(view.geometry.largest_order), by_chunk_(fit == Fit::compact) {}

    // The block to claim, unless somebody is quicker. from: any number; another one looks at other chunks of a node
    // that is too large for one look. False: none was seen.
    bool find(std::uint64_t from, Block &block) {
        const std::uint64_t tops = view_.word_count[view_.top_layer];
        const std::uint64_t words = std::uint64_t{1} << (kUpperLevels * view_.top_layer);
        const std::uint64_t looked_at = std::clamp<std::uint64_t>(kWordsLookedAt / words, 1, tops);
        const std::uint64_t first = looked_at == tops ? 0 : from * looked_at % tops;
        const unsigned top_order = word_order(view_.top_layer);
        Hole best;
        std::uint64_t most_worth = 0;
        for (std::uint64_t i = 0; i < looked_at; ++i) {
            const std::uint64_t top = (first + i) % tops;
            taken_frames_ = 0;
            if (by_chunk_) best_ = {};
            if (is_empty(view_.top_layer, top)) found(top << top_order, top_order);
            if (!by_chunk_ || best_.order == kNone || (best.order != kNone && worth() <= most_worth)) continue;
            best = best_;
            most_worth = worth();
        }
        if (!by_chunk_) best = best_;
        block = Block{FrameIndex{best.frame}, order_};
        return best.order != kNone;
    }

private:
    static constexpr unsigned kNone = kMaxOrder + 1;
    struct Hole {
        std::uint64_t frame = 0;
        unsigned order = kNone;
    };

    // Of the chunk that has been looked at: how full it is. But a space that has to be split is missed later, by who
    // then begins another chunk: so each level of that takes a part of it. (Without that, where sizes are mixed, hardly
    // a chunk becomes empty. With a part of the chunk's size instead, none does where blocks of one size are spread
    // thinly.)
    std::uint64_t worth() const {
        if (best_.order == largest_order_) return 0;  // it would be begun, however full those beside it are
        const std::uint64_t splits = std::min<std::uint64_t>(best_.order - order_.value, kSplitParts - 1);
        return taken_frames_ * (kSplitParts - splits);
    }
    static constexpr std::uint64_t kSplitParts = 8;

    // A free, aligned space whose buddy is not free, or a chunk.
    void found(std::uint64_t frame, unsigned order) {
        order = std::min(order, largest_order_);
        if (order >= order_.value && order < best_.order) best_ = {frame, order};
    }

    // Nothing is in use below the word: it is part of a larger space, which is for who asked. If not, all spaces in it
    // have been found that matter.
    bool is_empty(unsigned layer, std::uint64_t word) {
        if (best_.order == order_.value && !by_chunk_) return false;  // nothing will be better
        if (layer == 0) return is_leaf_empty(word);
        // relaxed: guesses, the claim decides. A mark may be kept from before, so the words below are looked at.
        const UpperWord state{view_.upper[layer][word].load(std::memory_order_relaxed)};
        const unsigned child_order = word_order(layer - 1);
        unsigned empty = 0;
        for (unsigned child = 0; child < kUpperFanOut; ++child) {
            const std::uint64_t below = word * kUpperFanOut + child;
            if (below >= view_.word_count[layer - 1]) break;
            if (state.closed_to_allocation(child))
                taken_frames_ += std::uint64_t{1} << child_order;
            else if (!state.occupied_below(child) || is_empty(layer - 1, below))
                empty |= 1U << child;
        }
        if (empty == 0xff) return true;
        const unsigned levels = order_.value > child_order ? order_.value - child_order : 0;
        if (levels >= kUpperLevels) return false;
        const auto holes = static_cast<std::uint8_t>(empty);
        upper::Hole hole = upper::smallest_hole(holes, levels);
        // Chunks beside each other are not one space.
        const unsigned chunk_levels = largest_order_ - child_order;
        if (hole.levels >= chunk_levels)
            if (const unsigned chunks = upper::free_starts(holes, std::min(chunk_levels, kUpperLevels)); chunks != 0)
                hole = {static_cast<unsigned>(std::countr_zero(chunks)), chunk_levels};
        if (hole.levels < kUpperLevels)
            found((word * kUpperFanOut + hole.first_child) << child_order, child_order + hole.levels);
        return false;
    }

    bool is_leaf_empty(std::uint64_t word) {
        const std::uint64_t state = view_.leaf[word].load(std::memory_order_relaxed);  // relaxed: as above
        if (state == 0) return true;
        taken_frames_ += static_cast<std::uint64_t>(std::popcount(state));
        std::uint64_t starts = leaf::free_starts(state, order_.value);
        for (unsigned order = order_.value; order < best_.order && starts != 0; ++order) {
            const std::uint64_t larger = order == largest_order_ ? 0 : leaf::free_starts(state, order + 1);
            const std::uint64_t lone = starts & ~(larger | larger << (1U << order));
            if (lone != 0) {
                found(word * kLeafFrames + static_cast<unsigned>(std::countr_zero(lone)), order);
                break;  // larger ones would be worse
            }
            starts = larger;
        }
        return false;
    }

    const NodeView<Env> &view_;
    Order order_;
    unsigned largest_order_;
    bool by_chunk_;
    Hole best_;
    std::uint64_t taken_frames_ = 0;  // in the chunk (or the few, of one word) looked at
};

}  // namespace numacre::engine
