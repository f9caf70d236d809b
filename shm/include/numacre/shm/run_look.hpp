// A run: frames in one piece, of a number that need be no power of two. To the tree a run is blocks that lie one behind
// the other, each claimed by itself; this file finds a place for them and tells which they are.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "numacre/shm/layout.hpp"

namespace numacre::engine {

// The first block of a run of `frames` frames from `base` on: the largest that begins there and does not reach beyond
// the run. The blocks of a run follow from where it begins and ends alone.
constexpr Block first_block_of_run(FrameIndex base, std::uint64_t frames, Order largest) {
    const auto of_length = static_cast<unsigned>(std::bit_width(frames)) - 1;
    const unsigned of_base = base.value == 0 ? kMaxOrder : static_cast<unsigned>(std::countr_zero(base.value));
    return {base, Order{std::min({of_length, of_base, largest.value})}};
}

// Looks at the words themselves, without hints, in the order of the frames, up to the place that is found. (A Walk
// reports the free children of a word after the others, so that pieces that lie one behind the other come apart.)
// Thread-safe, writes nothing; nothing it reads is trusted. The claims of the blocks decide whether the place still is
// free.
template <class Env, class IsDraining>
class RunLook {
public:
    // frames, align_frames: at least 1. is_draining(FrameIndex): true for frames that nobody is to get.
    RunLook(const NodeView<Env> &view, std::uint64_t frames, std::uint64_t align_frames, const IsDraining &is_draining)
        : view_(view), frames_(frames), align_(align_frames), is_draining_(is_draining) {}

    // The lowest place that is free. False: there is none.
    bool find(FrameIndex &base) {
        begin_ = end_ = 0;
        const unsigned top = view_.top_layer;
        for (std::uint64_t word = 0; word < view_.geometry.word_count(top); ++word)
            if (top == 0 ? leaf_word(word) : upper_word(top, word)) {
                base = FrameIndex{round_up(begin_, align_)};
                return true;
            }
        return false;
    }

private:
    // Each returns true if the run is complete.
    bool upper_word(unsigned layer, std::uint64_t word) {
        // acquire: the words below are read as they were left by who marked this one.
        const UpperWord state{view_.upper[layer][word].load(std::memory_order_acquire)};
        const unsigned child_order = word_order(layer - 1);
        const std::uint64_t first = word * kUpperFanOut;
        for (unsigned child = 0; child < kUpperFanOut && first + child < view_.geometry.word_count(layer - 1);
             ++child) {
            if (state.allocated_here(child)) continue;
            if (!state.occupied_below(child)) {
                if (add((first + child) << child_order, std::uint64_t{1} << child_order)) return true;
            } else if (layer == 1 ? leaf_word(first + child) : upper_word(layer - 1, first + child)) {
                return true;
            }
        }
        return false;
    }
    bool leaf_word(std::uint64_t word) {
        const std::uint64_t first = word * kLeafFrames;
        std::uint64_t free = ~view_.leaf[word].load(std::memory_order_acquire);
        while (free != 0) {
            const auto begin = static_cast<unsigned>(std::countr_zero(free));
            const auto length = static_cast<unsigned>(std::countr_one(free >> begin));
            if (add(first + begin, length)) return true;
            // In two steps: a shift by 64 is undefined.
            free &= ~std::uint64_t{0} << begin << (length - 1) << 1;
        }
        return false;
    }
    // A piece of free frames, behind all pieces before.
    bool add(std::uint64_t first, std::uint64_t frames) {
        const std::uint64_t behind = std::min(first + frames, view_.geometry.frame_count);
        if (behind <= first || is_draining_(FrameIndex{first})) return false;
        if (first != end_) begin_ = first;
        end_ = behind;
        const std::uint64_t aligned = round_up(begin_, align_);
        return aligned < end_ && end_ - aligned >= frames_;
    }

    const NodeView<Env> &view_;
    std::uint64_t frames_, align_;
    const IsDraining &is_draining_;
    std::uint64_t begin_ = 0, end_ = 0;  // the free frames that have been seen last
};

}  // namespace numacre::engine
