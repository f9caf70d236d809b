// The choice of a block's place for callers that ask for one: a look at the words themselves, without hints.
// Buddy::allocate_at() claims the answer. (The allocator's own search takes a block nearby, and knows other places from
// hints.)
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "numacre/shm/layout.hpp"

namespace numacre::engine {

enum class Fit : std::uint8_t {
    nearby,   // no choice
    compact,  // the best fit in the fullest chunk, so that others become empty (FitLook::worth())
    best,     // the smallest free space that suffices, the lowest of these, as a serial buddy system chooses
};

// Bits of PoolHeader::accounting, beside Accounting's: the fit for blocks whose caller does not choose one.
inline constexpr std::uint64_t kFitShift = 3;
inline constexpr std::uint64_t kFitMask = 3;
constexpr std::uint64_t accounting_of(Fit fit) {
    return static_cast<std::uint64_t>(fit) << kFitShift;
}
constexpr Fit fit_of(std::uint64_t accounting) {
    const std::uint64_t said = accounting >> kFitShift & kFitMask;
    return said <= static_cast<std::uint64_t>(Fit::best) ? static_cast<Fit>(said) : Fit::nearby;
}

// Upper bound of leaf words that one look reads (but it reads at least those of one word of the top layer): 4 GiB of
// 4-KiB frames. On a larger numa node each look reads some chunks, and the next look others.
inline constexpr std::uint64_t kWordsLookedAt = 16384;

// Thread-safe, writes nothing; nothing it reads is trusted.
template <class Env>
class FitLook {
public:
    FitLook(const NodeView<Env> &view, Order order, Fit fit)
        : view_(view), order_(order), largest_order_(view.geometry.largest_order), by_chunk_(fit == Fit::compact) {}

    // Finds the block to claim; another thread may claim it first. from: any number; different numbers look at
    // different chunks of a numa node that is too large for one look. False: the look saw no such block.
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

    // The worth of the chunk that has been looked at: how full it is, less a part for each level by which its space has
    // to be split. A space that has been split is missed later, by a caller that then begins another chunk. (Without
    // the reduction, hardly a chunk becomes empty where sizes are mixed. With a part of the chunk's size instead, none
    // becomes empty where blocks of one size are spread thinly.)
    std::uint64_t worth() const {
        if (best_.order == largest_order_) return 0;  // a free chunk: it would be begun, however full others are
        const std::uint64_t splits = std::min<std::uint64_t>(best_.order - order_.value, kSplitParts - 1);
        return taken_frames_ * (kSplitParts - splits);
    }
    static constexpr std::uint64_t kSplitParts = 8;

    // Notes a free, aligned space whose buddy is not free, or a chunk.
    void found(std::uint64_t frame, unsigned order) {
        order = std::min(order, largest_order_);
        if (order >= order_.value && order < best_.order) best_ = {frame, order};
    }

    // True: nothing is in use below the word; it is part of a larger space, which the caller notes. False: all spaces
    // in the word that matter have been noted.
    bool is_empty(unsigned layer, std::uint64_t word) {
        if (best_.order == order_.value && !by_chunk_) return false;  // no other space can be better
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
    std::uint64_t taken_frames_ = 0;  // in the chunk (or the few chunks of one word) looked at
};

}  // namespace numacre::engine
