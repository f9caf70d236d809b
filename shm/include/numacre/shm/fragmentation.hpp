// Fragmentation figures from the number of maximal free blocks of each order. Pure arithmetic.
//   n_i = maximal free blocks of order i, F = sum n_i 2^i, B = sum n_i, S_j = sum_{i>=j} n_i 2^i
// External fragmentation index and unusable free ratio as in the Linux kernel's extfrag (Gorman & Whitcroft).
#pragma once

#include <array>
#include <cstdint>

#include "numacre/shm/node_state.hpp"

namespace numacre::engine {

using BlocksByOrder = std::array<std::uint64_t, kMaxOrder + 1>;

// Frames in free blocks of at least this order: S_j. F is S_0.
constexpr double free_frames_from(const BlocksByOrder &free_blocks, unsigned order) {
    double frames = 0;
    for (unsigned i = order; i <= kMaxOrder; ++i)
        frames += static_cast<double>(free_blocks[i]) * static_cast<double>(std::uint64_t{1} << i);
    return frames;
}

// Share of the free frames that a request of this order cannot use: 0 .. 1; 1 when nothing is free.
constexpr double unusable_free_ratio(const BlocksByOrder &free_blocks, unsigned order) {
    const double free_frames = free_frames_from(free_blocks, 0);
    if (free_frames == 0) return 1;
    return (free_frames - free_frames_from(free_blocks, order)) / free_frames;
}

// -1: a request of this order would succeed. Else it fails: towards 0 for lack of memory, towards 1 for fragmentation.
constexpr double external_fragmentation_index(const BlocksByOrder &free_blocks, unsigned order) {
    if (free_frames_from(free_blocks, order) > 0) return -1;
    double blocks = 0;
    for (const std::uint64_t count : free_blocks) blocks += static_cast<double>(count);
    if (blocks == 0) return 0;
    const double wanted = static_cast<double>(std::uint64_t{1} << order);
    return 1 - (1 + free_frames_from(free_blocks, 0) / wanted) / blocks;
}

// 0: all free memory is one block, or nothing is free; towards 1: many small blocks.
constexpr double quadratic_fragmentation(const BlocksByOrder &free_blocks) {
    const double free_frames = free_frames_from(free_blocks, 0);
    if (free_frames == 0) return 0;
    double squares = 0;
    for (unsigned i = 0; i <= kMaxOrder; ++i) {
        const double frames = static_cast<double>(std::uint64_t{1} << i);
        squares += static_cast<double>(free_blocks[i]) * frames * frames;
    }
    return 1 - squares / (free_frames * free_frames);
}

// Share of the granted bytes that nobody asked for: 0 when nothing is granted.
constexpr double internal_fragmentation_ratio(std::uint64_t granted_bytes, std::uint64_t requested_bytes) {
    if (granted_bytes == 0) return 0;
    return static_cast<double>(granted_bytes - requested_bytes) / static_cast<double>(granted_bytes);
}

}  // namespace numacre::engine
