// The steps on shared words of LLFree (L. Wrenger et al., "LLFree: Scalable and Optionally-Persistent Page-Frame
// Allocation", USENIX ATC 2023), written anew from the paper's description, for counting and nothing else: what a
// design of counters costs where many cores meet. Times of its own code mean nothing here.
//
//   bitfield   a bit a frame, 512 frames (a huge frame) a cache line
//   child      a counter of free frames for each bitfield; or the mark that it is allocated as a whole (order 9)
//   tree       kTreeChildren children; a counter of what no core has reserved, and whether a core has reserved the tree
//   local      one a core: the tree that it has reserved, what is free there, and where it allocated last
//
// An allocation takes from the core's local counter, then from a child's, then a bit; a free gives back in the other
// direction, to the local counter if the tree is the core's own, else to the tree's. A core whose local counter runs
// out takes what others gave back to its tree, then reserves another one.
//
// Not here: the kinds of trees, persistence, order 10 and above. The paper's trees have 32 children, whose counters
// fill a cache line; 8 leave a tree for each of 64 cores in 1 GiB, and their counters keep a line for themselves: both
// in its favour. Where there are fewer trees than cores, cores share a local counter, as there.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "numacre/shm/node_state.hpp"

namespace numacre::contention {

using namespace engine;

template <class Env>
class LlfreeLike {
public:
    static constexpr unsigned kTreeChildren = 8;
    static constexpr unsigned kChildFrames = 512;
    static constexpr unsigned kTreeFrames = kTreeChildren * kChildFrames;
    static constexpr unsigned kLargestOrder = 9;

    // frame_count: whole trees. memory: memory_bytes(), zeroed, at the beginning of a cache line.
    LlfreeLike(std::uint64_t frame_count, unsigned cores, std::byte *memory)
        : tree_count_(frame_count / kTreeFrames), local_count_(std::min<std::uint64_t>(cores, tree_count_)) {
        bits_ = reinterpret_cast<Word *>(memory);
        memory += frame_count / 8;
        children_ = reinterpret_cast<Half *>(memory);
        memory += lines(tree_count_ * kTreeStride * sizeof(Half));
        trees_ = reinterpret_cast<TreeWord *>(memory);
        memory += lines(tree_count_ * sizeof(TreeWord));
        locals_ = reinterpret_cast<Local *>(memory);
        for (std::uint64_t child = 0; child < tree_count_ * kTreeChildren; ++child) counter(child).store(kChildFrames);
        for (std::uint64_t tree = 0; tree < tree_count_; ++tree) trees_[tree].store(kTreeFrames);
    }
    static std::size_t memory_bytes(std::uint64_t frame_count, unsigned cores) {
        const std::uint64_t trees = frame_count / kTreeFrames;
        return frame_count / 8 + lines(trees * kTreeStride * sizeof(Half)) + lines(trees * sizeof(TreeWord)) +
               cores * sizeof(Local);
    }

    std::optional<std::uint64_t> allocate(unsigned order, unsigned core) {
        Local &local = locals_[core % local_count_];
        const std::uint64_t frames = std::uint64_t{1} << order;
        // Trees whose free frames are in pieces too small are put aside; each is tried once.
        for (std::uint64_t tried = 0; tried <= tree_count_; ++tried) {
            if (const auto start = take_from_local(local, frames)) {
                if (const auto frame = allocate_in_tree(*start / kTreeFrames, *start, order)) {
                    remember(local, *start, *frame);
                    return frame;
                }
                give_back(local, *start / kTreeFrames, frames);
            }
            if (take_back_what_others_freed(local, frames)) continue;
            if (!reserve_another(local, frames, core)) break;
        }
        return allocate_from_any(order);
    }

    void free(std::uint64_t frame, unsigned order, unsigned core) {
        clear(frame, order);
        Local &local = locals_[core % local_count_];
        const std::uint64_t tree = frame / kTreeFrames;
        give_back(local, tree, std::uint64_t{1} << order);
        // Several frees in a row in one tree: it is probably a good one to allocate from.
        const std::uint64_t before = local.last_free.load();
        const std::uint64_t times = before / kTimes == tree + 1 ? before % kTimes + 1 : 0;
        local.last_free.store((tree + 1) * kTimes + std::min(times, kFreesToReserve));
        if (times >= kFreesToReserve && tree_of(local.reserved.load()) != tree) reserve(local, tree, 0);
    }

private:
    using Word = typename Env::template Atomic<std::uint64_t>;
    using Half = typename Env::template Atomic<std::uint16_t>;
    using TreeWord = typename Env::template Atomic<std::uint32_t>;
    struct alignas(128) Local {
        Word reserved;   // bits 0..15 free frames, 16..63 frame to begin at + 1; 0: no tree
        Word last_free;  // tree + 1, and how often in a row
    };
    static constexpr std::uint64_t kTreeStride = 32;
    static constexpr std::uint16_t kWholeChild = 0x8000;
    static constexpr std::uint32_t kReserved = std::uint32_t{1} << 31;
    static constexpr std::uint64_t kFreeMask = 0xffff;
    static constexpr std::uint64_t kNoTree = ~std::uint64_t{0};
    static constexpr std::uint64_t kTimes = 8;
    static constexpr std::uint64_t kFreesToReserve = 4;

    static constexpr std::size_t lines(std::size_t bytes) { return (bytes + 127) / 128 * 128; }
    static constexpr std::uint64_t reservation(std::uint64_t start, std::uint64_t free) {
        return (start + 1) << 16 | free;
    }
    static constexpr std::uint64_t start_of(std::uint64_t reserved) { return (reserved >> 16) - 1; }
    static constexpr std::uint64_t tree_of(std::uint64_t reserved) {
        return reserved == 0 ? kNoTree : start_of(reserved) / kTreeFrames;
    }

    // --- counters

    // Where to begin; none: the core has no tree or not so much.
    std::optional<std::uint64_t> take_from_local(Local &local, std::uint64_t frames) {
        std::uint64_t seen = local.reserved.load();
        while ((seen & kFreeMask) >= frames)
            if (local.reserved.compare_exchange_weak(seen, seen - frames)) return start_of(seen);
        return std::nullopt;
    }

    void give_back(Local &local, std::uint64_t tree, std::uint64_t frames) {
        std::uint64_t seen = local.reserved.load();
        while (tree_of(seen) == tree)
            if (local.reserved.compare_exchange_weak(seen, seen + frames)) return;
        trees_[tree].fetch_add(static_cast<std::uint32_t>(frames));
    }

    bool take_back_what_others_freed(Local &local, std::uint64_t frames) {
        std::uint64_t mine = local.reserved.load();
        const std::uint64_t tree = tree_of(mine);
        if (tree == kNoTree || (mine & kFreeMask) >= frames) return false;
        std::uint32_t seen = trees_[tree].load();
        do {
            if ((seen & ~kReserved) + (mine & kFreeMask) < frames) return false;
        } while (!trees_[tree].compare_exchange_weak(seen, seen & kReserved));
        give_back(local, tree, seen & ~kReserved);
        return true;
    }

    // A used tree that has enough, or else any that has: whole trees are left for large blocks as long as may be.
    bool reserve_another(Local &local, std::uint64_t frames, unsigned core) {
        const std::uint64_t old = tree_of(local.reserved.load());
        const std::uint64_t begin = old == kNoTree ? core * tree_count_ / local_count_ : old + 1;
        for (const bool whole_too : {false, true}) {
            for (std::uint64_t step = 0; step < tree_count_; ++step) {
                const std::uint64_t tree = (begin + step) % tree_count_;
                const std::uint32_t seen = trees_[tree].load();
                if ((seen & kReserved) != 0 || seen < std::max<std::uint64_t>(frames, kTreeFrames / 32)) continue;
                if (!whole_too && seen > kTreeFrames - kTreeFrames / 8) continue;
                if (reserve(local, tree, static_cast<std::uint32_t>(frames))) return true;
            }
        }
        return false;
    }

    bool reserve(Local &local, std::uint64_t tree, std::uint32_t least) {
        std::uint32_t seen = trees_[tree].load();
        do {
            if ((seen & kReserved) != 0 || seen < least) return false;
        } while (!trees_[tree].compare_exchange_weak(seen, kReserved));
        const std::uint64_t old = local.reserved.exchange(reservation(tree * kTreeFrames, seen));
        if (old != 0) {
            std::uint32_t left = trees_[tree_of(old)].load();
            while (!trees_[tree_of(old)].compare_exchange_weak(
                left, (left & ~kReserved) + static_cast<std::uint32_t>(old & kFreeMask))) {
            }
        }
        return true;
    }

    // The last resort: what is left in any tree, reserved by others or not.
    std::optional<std::uint64_t> allocate_from_any(unsigned order) {
        const std::uint64_t frames = std::uint64_t{1} << order;
        for (std::uint64_t tree = 0; tree < tree_count_; ++tree) {
            std::uint32_t seen = trees_[tree].load();
            while ((seen & ~kReserved) >= frames) {
                if (!trees_[tree].compare_exchange_weak(seen, seen - static_cast<std::uint32_t>(frames))) continue;
                if (const auto frame = allocate_in_tree(tree, tree * kTreeFrames, order)) return frame;
                trees_[tree].fetch_add(static_cast<std::uint32_t>(frames));
                break;
            }
        }
        for (std::uint64_t other = 0; other < local_count_; ++other) {
            const auto start = take_from_local(locals_[other], frames);
            if (!start) continue;
            if (const auto frame = allocate_in_tree(*start / kTreeFrames, *start, order)) return frame;
            give_back(locals_[other], *start / kTreeFrames, frames);
        }
        return std::nullopt;
    }

    // The next allocation begins at the word of this one.
    void remember(Local &local, std::uint64_t start, std::uint64_t frame) {
        if (start / kLeafFrames == frame / kLeafFrames) return;
        std::uint64_t seen = local.reserved.load();
        while (tree_of(seen) == frame / kTreeFrames)
            if (local.reserved.compare_exchange_weak(seen, reservation(frame, seen & kFreeMask))) return;
    }

    // --- children and bits

    Half &counter(std::uint64_t child) {
        return children_[child / kTreeChildren * kTreeStride + child % kTreeChildren];
    }

    std::optional<std::uint64_t> allocate_in_tree(std::uint64_t tree, std::uint64_t start, unsigned order) {
        const std::uint64_t first = start % kTreeFrames / kChildFrames;
        for (unsigned step = 0; step < kTreeChildren; ++step) {
            const std::uint64_t child = tree * kTreeChildren + (first + step) % kTreeChildren;
            const std::uint64_t row = step == 0 ? start % kChildFrames / kLeafFrames : 0;
            if (order == kLargestOrder) {
                std::uint16_t whole = kChildFrames;
                if (counter(child).load() == kChildFrames && counter(child).compare_exchange_strong(whole, kWholeChild))
                    return child * kChildFrames;
            } else if (take_from_child(child, 1U << order)) {
                if (const auto frame = set(child, row, order)) return frame;
                counter(child).fetch_add(static_cast<std::uint16_t>(1U << order));
            }
        }
        return std::nullopt;
    }

    bool take_from_child(std::uint64_t child, unsigned frames) {
        std::uint16_t seen = counter(child).load();
        while (seen != kWholeChild && seen >= frames)
            if (counter(child).compare_exchange_weak(seen, static_cast<std::uint16_t>(seen - frames))) return true;
        return false;
    }

    std::optional<std::uint64_t> set(std::uint64_t child, std::uint64_t first_row, unsigned order) {
        constexpr std::uint64_t kRows = kChildFrames / kLeafFrames;
        const std::uint64_t width = order <= kLeafOrder ? 1 : std::uint64_t{1} << (order - kLeafOrder);
        for (std::uint64_t step = 0; step < kRows; step += width) {
            const std::uint64_t row = (first_row / width * width + step) % kRows;
            const std::uint64_t word = child * kRows + row;
            if (order > kLeafOrder) {
                if (set_words(word, width)) return word * kLeafFrames;
                continue;
            }
            std::uint64_t seen = bits_[word].load();
            while (const std::uint64_t starts = leaf::free_starts(seen, order)) {
                const auto frame = static_cast<unsigned>(std::countr_zero(starts));
                if (bits_[word].compare_exchange_weak(seen, seen | leaf::mask(frame, order)))
                    return word * kLeafFrames + frame;
            }
        }
        return std::nullopt;
    }

    bool set_words(std::uint64_t word, std::uint64_t width) {
        for (std::uint64_t at = 0; at < width; ++at) {
            std::uint64_t empty = 0;
            if (bits_[word + at].load() == 0 && bits_[word + at].compare_exchange_strong(empty, ~std::uint64_t{0}))
                continue;
            while (at-- > 0) bits_[word + at].store(0);
            return false;
        }
        return true;
    }

    void clear(std::uint64_t frame, unsigned order) {
        const std::uint64_t child = frame / kChildFrames;
        if (order == kLargestOrder) {
            counter(child).exchange(kChildFrames);
            return;
        }
        const std::uint64_t word = frame / kLeafFrames;
        if (order <= kLeafOrder)
            bits_[word].fetch_and(~leaf::mask(frame % kLeafFrames, order));
        else
            for (std::uint64_t at = 0; at < std::uint64_t{1} << (order - kLeafOrder); ++at)
                bits_[word + at].exchange(0);
        counter(child).fetch_add(static_cast<std::uint16_t>(1U << order));
    }

    std::uint64_t tree_count_;
    std::uint64_t local_count_;
    Word *bits_ = nullptr;
    Half *children_ = nullptr;
    TreeWord *trees_ = nullptr;
    Local *locals_ = nullptr;
};

}  // namespace numacre::contention
