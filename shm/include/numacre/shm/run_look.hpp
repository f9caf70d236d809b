// A run: frames in one piece, of a number that need be no power of two. To the tree a run is blocks that lie one behind
// the other, each claimed by itself; this file finds a place for them and tells which they are.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "numacre/shm/walk.hpp"

namespace numacre::engine {

// The first block of a run of `frames` frames from `base` on: the largest that begins there and does not reach beyond
// the run. The blocks of a run follow from where it begins and ends alone.
constexpr Block first_block_of_run(FrameIndex base, std::uint64_t frames, Order largest) {
    const auto of_length = static_cast<unsigned>(std::bit_width(frames)) - 1;
    const unsigned of_base = base.value == 0 ? kMaxOrder : static_cast<unsigned>(std::countr_zero(base.value));
    return {base, Order{std::min({of_length, of_base, largest.value})}};
}

// Looks at the words themselves, without hints: a walk over the numa node up to the place that is found. Thread-safe,
// writes nothing; nothing it reads is trusted. The claims of the blocks decide whether the place still is free.
template <class Env>
class RunLook {
public:
    // frames, align_frames: at least 1. is_draining(FrameIndex): true for frames that nobody is to get.
    RunLook(const NodeView<Env> &view, std::uint64_t frames, std::uint64_t align_frames)
        : view_(view), frames_(frames), align_(align_frames) {}

    // The lowest place that is free. False: there is none.
    template <class IsDraining>
    bool find(const IsDraining &is_draining, FrameIndex &base) const {
        struct Gather {
            const RunLook &look;
            const IsDraining &is_draining;
            std::uint64_t begin = 0, end = 0;  // the free frames that the walk has seen last
            bool is_found = false;

            void free(Block block) {
                if (is_found || is_draining(block.base)) return;
                if (block.base.value != end) begin = block.base.value;
                end = block.base.value + block.order.frames();
                const std::uint64_t first = round_up(begin, look.align_);
                is_found = first < end && end - first >= look.frames_;
            }
            // Behind each of these, the next free block does not begin where the last one ended.
            void owned(Block, IndexEntry) {}
            void taken(FrameIndex, std::uint64_t) {}
            void offline(Block) {}
            void damaged(Block) {}
        } gather{*this, is_draining};
        Walk<Env, Gather> walk{view_, gather};
        for (std::uint64_t word = 0; word < view_.geometry.word_count(view_.top_layer) && !gather.is_found; ++word)
            walk.top_word(word);
        base = FrameIndex{round_up(gather.begin, align_)};
        return gather.is_found;
    }

private:
    const NodeView<Env> &view_;
    std::uint64_t frames_, align_;
};

}  // namespace numacre::engine
