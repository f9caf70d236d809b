// NBBS, TC Algorithms 2 and 4: the search and the two public calls, over a tree of status bits (`Nodes`) that is packed
// one level a word (nbbs_one_level.hpp) or four (nbbs_four_levels.hpp). Not safe (README.md): a baseline.
//
// Line labels (A4, F3 ...) are TC's. Corrected here are slips that are wrong even with a single thread, and no more:
//   A6 (conference A9, A10)  the paper scans 2^(level-1) .. 2^level-1, which is the level above; its own 3.2 gives the
//       nodes of `level` as 2^level .. 2^(level+1)-1.
//   A14 (conference A19)  the paper jumps to the first candidate behind the occupied subtree, but the loop's own
//       increment then skips that one too. Here it does not.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "papers/common.hpp"

namespace numacre::papers {

// Status bits of a node: TC Table 1 and Algorithm 1. `child` is a node whose parent's bits are meant.
namespace status {

inline constexpr std::uint64_t kOccRight = 0x1;
inline constexpr std::uint64_t kOccLeft = 0x2;
inline constexpr std::uint64_t kCoalRight = 0x4;
inline constexpr std::uint64_t kCoalLeft = 0x8;
inline constexpr std::uint64_t kOcc = 0x10;
inline constexpr std::uint64_t kBusy = kOcc | kOccLeft | kOccRight;
inline constexpr std::uint64_t kCoalBoth = kCoalLeft | kCoalRight;
inline constexpr unsigned kBits = 5;

constexpr std::uint64_t occ(unsigned child) {
    return kOccLeft >> (child & 1);
}
constexpr std::uint64_t coal(unsigned child) {
    return kCoalLeft >> (child & 1);
}
constexpr std::uint64_t occ_buddy(unsigned child) {
    return kOccRight << (child & 1);
}
constexpr std::uint64_t coal_buddy(unsigned child) {
    return kCoalRight << (child & 1);
}

}  // namespace status

// The paper assumes sequential consistency (TC 3.2, 3.5), and so does every access of these trees; the two exceptions
// that 3.5 discusses say why at their place.
inline constexpr std::memory_order kOrdered = std::memory_order_seq_cst;

// Nodes(shape, memory) with memory_bytes(shape), is_free(n), try_allocate(n), free_node(n, upper_bound).
//
// allocate(), free(): lock-free by the paper's claim (TC 4.1), thread-safe by its claim (4.2) and not in fact. No call
// blocks or enters the kernel.
template <class Env, class NodesOfEnv>
class Nbbs {
public:
    using Nodes = NodesOfEnv;

    Nbbs(std::uint64_t frame_count, unsigned largest_order, unsigned threads_max = kDefaultThreadsMax)
        : Nbbs(frame_count, largest_order, threads_max,
               allocate_memory(memory_bytes(frame_count, largest_order, threads_max))) {}
    // In memory of the caller's: memory_bytes() at the beginning of a cache line.
    Nbbs(std::uint64_t frame_count, unsigned largest_order, unsigned threads_max, std::byte *memory)
        : shape_(frame_count, largest_order), threads_max_(threads_max), nodes_(shape_, memory) {
        index_ = make_array<IndexWord>(memory, shape_.frame_count());
        release_count_ = make_array<CountWord>(memory, 1);
        positions_ = make_array<PositionWord>(memory, positions_per_thread(shape_) * threads_max);
        scatter();
    }
    static std::size_t memory_bytes(std::uint64_t frame_count, unsigned largest_order,
                                    unsigned threads_max = kDefaultThreadsMax) {
        const TreeShape shape(frame_count, largest_order);
        return Nodes::memory_bytes(shape) + array_bytes<IndexWord>(shape.frame_count()) + array_bytes<CountWord>(1) +
               array_bytes<PositionWord>(positions_per_thread(shape) * threads_max);
    }

    std::optional<std::uint64_t> allocate(unsigned order, unsigned thread) {
        if (order > shape_.largest_order()) return std::nullopt;  // A2, A3
        const unsigned level = shape_.depth - order;              // A5
        PositionWord &position = position_of(thread, order);
        // relaxed: a thread's own advice to itself.
        const unsigned node = allocate_from(level, position.load(std::memory_order_relaxed));
        if (node == 0) return std::nullopt;
        const unsigned next = node + 1 < 2U << level ? node + 1 : 1U << level;  // 3.6.1
        position.store(next, std::memory_order_relaxed);
        return shape_.first_frame(node);
    }

    void free(std::uint64_t frame) { (void)free_at(frame); }
    void free(std::uint64_t frame, unsigned thread) {
        const unsigned node = free_at(frame);
        // relaxed: a thread's own advice to itself.
        position_of(thread, shape_.order_of(node)).store(node, std::memory_order_relaxed);  // 3.6.1
    }

    // --- for the model tests, which want to name nodes

    // NBALLOC with its scan beginning at node `first` of `level`, as 3.3 permits. The node, 0 for NULL.
    unsigned allocate_from(unsigned level, unsigned first) {
        const unsigned begin = 1U << level;
        const unsigned end = begin << 1;
        for (;;) {
            const std::uint64_t ts = release_count_->load(kOrdered);  // A4
            for (unsigned scanned = 0; scanned < begin;) {            // A6
                const unsigned i = begin + (first - begin + scanned) % begin;
                ++scanned;
                if (!nodes_.is_free(i)) continue;                   // A7
                const unsigned failed_at = nodes_.try_allocate(i);  // A8
                if (failed_at == 0) {                               // A9
                    record(i);                                      // A10
                    return i;                                       // A11
                }
                const unsigned d = 1U << (level - TreeShape::level_of(failed_at));  // A13
                const unsigned behind = (failed_at + 1) * d;                        // A14
                scanned += (behind < end ? behind : end) - i - 1;
            }
            if (ts == release_count_->load(kOrdered)) return 0;  // A15 .. A17
        }
    }
    // relaxed: whoever frees the block has its frame from whoever allocated it, and that handing over orders this too.
    // (TC 3.5 would have a barrier here.)
    void record(unsigned node) { index_[shape_.first_frame(node)].store(node, std::memory_order_relaxed); }
    Nodes &nodes() { return nodes_; }
    const TreeShape &shape() const { return shape_; }
    const void *index_memory() const { return index_; }
    const void *release_count_memory() const { return release_count_; }

private:
    using IndexWord = typename Env::template Atomic<std::uint32_t>;
    using CountWord = typename Env::template Atomic<std::uint64_t>;
    using PositionWord = typename Env::template Atomic<std::uint32_t>;

    Nbbs(std::uint64_t frame_count, unsigned largest_order, unsigned threads_max, OwnMemory memory)
        : Nbbs(frame_count, largest_order, threads_max, memory.get()) {
        memory_ = std::move(memory);
    }

    // NBFREE
    unsigned free_at(std::uint64_t frame) {
        const unsigned n = index_[frame].load(std::memory_order_relaxed);  // F2
        nodes_.free_node(n, shape_.base_level);                            // F3
        release_count_->fetch_add(1, kOrdered);                            // F4
        return n;
    }

    // One per order, whole cache lines a thread.
    static std::size_t positions_per_thread(const TreeShape &shape) {
        return array_bytes<PositionWord>(shape.largest_order() + 1) / sizeof(PositionWord);
    }
    PositionWord &position_of(unsigned thread, unsigned order) {
        return positions_[positions_per_thread(shape_) * thread + order];
    }
    // "Initially populating the caches of the different threads with random references" (3.6.1): the same ones each
    // time, so that runs can be repeated.
    void scatter() {
        for (unsigned thread = 0; thread < threads_max_; ++thread) {
            for (unsigned order = 0; order <= shape_.largest_order(); ++order) {
                std::uint64_t mixed = (std::uint64_t{thread} << 8 | order) + 0x9e37'79b9'7f4a'7c15;
                mixed = (mixed ^ mixed >> 30) * 0xbf58'476d'1ce4'e5b9;
                mixed = (mixed ^ mixed >> 27) * 0x94d0'49bb'1331'11eb;
                const unsigned begin = 1U << (shape_.depth - order);
                // relaxed: nobody else is here yet.
                position_of(thread, order)
                    .store(begin + static_cast<unsigned>((mixed ^ mixed >> 31) % begin), std::memory_order_relaxed);
            }
        }
    }

    OwnMemory memory_;
    TreeShape shape_;
    unsigned threads_max_;
    Nodes nodes_;
    IndexWord *index_ = nullptr;
    CountWord *release_count_ = nullptr;
    PositionWord *positions_ = nullptr;
};

}  // namespace numacre::papers
