// What the papers' algorithms share: the interface that benchmarks and tests see, the tree's arithmetic and the memory
// that they stand in. README.md says which paper is which, and what is wrong with the lock-free ones.
//
// "TC": R. Marotta, M. Ianni, A. Pellegrini, F. Quaglia, "NBBS: A Non-Blocking Buddy System for Multi-core Machines",
//       IEEE Transactions on Computers, 2021.
// "conference": the same authors with A. Scarselli, "A Non-blocking Buddy System for Scalable Memory Allocation on
//       Multi-core Machines", IEEE CLUSTER, 2018.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>

namespace numacre::papers {

inline constexpr std::size_t kCacheLineBytes = 64;
inline constexpr unsigned kDefaultThreadsMax = 64;

// Every baseline: constructed on (frame count, a power of two; largest order; perhaps threads_max) with memory of its
// own, or with one argument more in memory of the caller's. `thread` is below threads_max; it chooses where a search
// begins and nothing else.
template <class T>
concept PaperAllocator = std::constructible_from<T, std::uint64_t, unsigned> &&
                         std::constructible_from<T, std::uint64_t, unsigned, unsigned> &&
                         requires(T allocator, std::uint64_t frame, unsigned number) {
                             // The first frame of a block of 2^order frames; none if there is no free one, or order >
                             // largest order.
                             { allocator.allocate(number, number) } -> std::same_as<std::optional<std::uint64_t>>;
                             // frame: what allocate() returned, not freed since; nothing checks it. The second form
                             // lets this thread's next search begin here (TC 3.6.1).
                             { allocator.free(frame) } -> std::same_as<void>;
                             { allocator.free(frame, number) } -> std::same_as<void>;
                         };

inline void require(bool condition, const char *what) {
    if (condition) return;
    std::fprintf(stderr, "papers: %s\n", what);
    std::abort();
}

// A static complete binary tree, root 1, children of n at 2n and 2n+1, levels from 0 (TC 3.2). Its largest block may be
// smaller than the whole: those nodes are the base level, and nothing climbs above it.
struct TreeShape {
    unsigned depth = 0;
    unsigned base_level = 0;

    TreeShape(std::uint64_t frame_count, unsigned largest_order) {
        require(std::has_single_bit(frame_count), "the frame count must be a power of two");
        depth = static_cast<unsigned>(std::bit_width(frame_count)) - 1;
        require(depth <= 30, "at most 2^30 frames: nodes are numbered in 32 bits");
        require(largest_order <= depth, "the largest order must not exceed the tree");
        base_level = depth - largest_order;
    }

    static constexpr unsigned level_of(unsigned node) { return static_cast<unsigned>(std::bit_width(node)) - 1; }
    static constexpr bool overlap(unsigned a, unsigned b) {
        const unsigned shallow = level_of(a) < level_of(b) ? a : b;
        const unsigned deep = shallow == a ? b : a;
        return deep >> (level_of(deep) - level_of(shallow)) == shallow;
    }

    std::uint64_t frame_count() const { return std::uint64_t{1} << depth; }
    unsigned node_count() const { return 2U << depth; }  // index 0 is no node
    unsigned largest_order() const { return depth - base_level; }
    unsigned order_of(unsigned node) const { return depth - level_of(node); }
    // The frame at which the node's memory begins.
    unsigned first_frame(unsigned node) const { return (node - (1U << level_of(node))) << (depth - level_of(node)); }
};

template <class T>
constexpr std::size_t array_bytes(std::size_t count) {
    return (count * sizeof(T) + kCacheLineBytes - 1) / kCacheLineBytes * kCacheLineBytes;
}

// Makes `count` zero Ts at `at`, which is at the beginning of a cache line, and moves `at` behind them.
template <class T>
T *make_array(std::byte *&at, std::size_t count) {
    T *first = reinterpret_cast<T *>(at);
    std::uninitialized_value_construct_n(first, count);
    at += array_bytes<T>(count);
    return first;
}

struct FreeMemory {
    void operator()(std::byte *memory) const { std::free(memory); }
};
using OwnMemory = std::unique_ptr<std::byte, FreeMemory>;

inline OwnMemory allocate_memory(std::size_t bytes) {
    OwnMemory memory{static_cast<std::byte *>(std::aligned_alloc(kCacheLineBytes, bytes))};
    require(memory != nullptr, "out of memory");
    return memory;
}

}  // namespace numacre::papers
