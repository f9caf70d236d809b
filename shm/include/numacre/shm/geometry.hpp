// The three numbers of a pool from which every size and offset of a node region follows.
#pragma once

#include <bit>
#include <cstdint>

#include "numacre/shm/node_state.hpp"
#include "numacre/shm/owner.hpp"
#include "numacre/shm/units.hpp"

namespace numacre::engine {

inline constexpr std::uint64_t kMinFrameBytes = 64;
inline constexpr std::uint64_t kMaxFrameBytes = std::uint64_t{2} << 20;
inline constexpr std::uint64_t kMaxBlockBytes = std::uint64_t{1} << 30;
// 8^10 leaf words of 64 frames are more than 2^kMaxFrameIndexBits frames.
inline constexpr unsigned kMaxHintLevels = 10;

struct Geometry {
    std::uint32_t frame_shift = 12;    // log2 of the frame's bytes
    std::uint32_t largest_order = 10;  // order of the largest block; a chunk is one largest block
    std::uint64_t frame_count = 0;     // capacity of one numa node, a whole number of chunks

    constexpr std::uint64_t frame_bytes() const { return std::uint64_t{1} << frame_shift; }
    constexpr std::uint64_t capacity_bytes() const { return frame_count << frame_shift; }
    constexpr std::uint64_t chunk_frames() const { return std::uint64_t{1} << largest_order; }
    constexpr std::uint64_t chunk_bytes() const { return chunk_frames() << frame_shift; }
    constexpr std::uint64_t chunk_count() const { return frame_count >> largest_order; }
    constexpr Order largest() const { return Order{largest_order}; }
    // The layer that holds largest blocks; marks climb up to it and no further.
    constexpr unsigned top_layer() const { return layer_of(largest()); }
    constexpr std::uint64_t word_count(unsigned layer) const {
        return divide_up(frame_count, std::uint64_t{1} << word_order(layer));
    }
    // Hint level h >= 2 has one word for 8 words of level h-1, level 1 being groups of 8 leaf words; the last level,
    // the root, has one word. A word of a level covers as many frames as a word of the layer with that number, whether
    // or not that layer exists.
    constexpr unsigned hint_levels() const {
        unsigned level = 2;
        while (word_count(level) > 1) ++level;
        return level;
    }
    // log2 of the frames of an index entry: each entry of a layer stands for one of the layer's smallest blocks.
    constexpr unsigned index_granule(unsigned layer) const { return layer == 0 ? 0 : word_order(layer - 1) + 1; }
    constexpr std::uint64_t index_entry_count(unsigned layer) const {
        return divide_up(frame_count, std::uint64_t{1} << index_granule(layer));
    }

    friend constexpr bool operator==(const Geometry &, const Geometry &) = default;
};

enum class GeometryFault : std::uint8_t {
    none,
    frame_not_power_of_two,
    frame_out_of_range,
    block_not_power_of_two,
    block_smaller_than_frame,
    block_too_large,
    capacity_zero,
    capacity_not_whole_blocks,
    capacity_too_large,
};

// Returns the fault of these sizes, or none. frame_bytes: 64 B .. 2 MiB, a power of two; largest_block_bytes: a power
// of two from frame_bytes to 1 GiB and at most 2^24 frames; capacity_bytes: whole largest blocks, at most 2^34 frames.
constexpr GeometryFault check_geometry(std::uint64_t frame_bytes, std::uint64_t largest_block_bytes,
                                       std::uint64_t capacity_bytes) {
    if (!std::has_single_bit(frame_bytes)) return GeometryFault::frame_not_power_of_two;
    if (frame_bytes < kMinFrameBytes || frame_bytes > kMaxFrameBytes) return GeometryFault::frame_out_of_range;
    if (!std::has_single_bit(largest_block_bytes)) return GeometryFault::block_not_power_of_two;
    if (largest_block_bytes < frame_bytes) return GeometryFault::block_smaller_than_frame;
    if (largest_block_bytes > kMaxBlockBytes || largest_block_bytes / frame_bytes > (std::uint64_t{1} << kMaxOrder))
        return GeometryFault::block_too_large;
    if (capacity_bytes == 0) return GeometryFault::capacity_zero;
    if (capacity_bytes % largest_block_bytes != 0) return GeometryFault::capacity_not_whole_blocks;
    if (capacity_bytes / frame_bytes > (std::uint64_t{1} << kMaxFrameIndexBits))
        return GeometryFault::capacity_too_large;
    return GeometryFault::none;
}

// Requires sizes that check_geometry() accepts.
constexpr Geometry make_geometry(std::uint64_t frame_bytes, std::uint64_t largest_block_bytes,
                                 std::uint64_t capacity_bytes) {
    return Geometry{static_cast<std::uint32_t>(std::countr_zero(frame_bytes)),
                    static_cast<std::uint32_t>(std::countr_zero(largest_block_bytes / frame_bytes)),
                    capacity_bytes / frame_bytes};
}

// Whether a geometry from a wire or from shared memory can be used.
constexpr bool plausible(const Geometry &geometry) {
    if (geometry.frame_shift > 21 || geometry.largest_order > kMaxOrder) return false;
    if (geometry.frame_count > (std::uint64_t{1} << kMaxFrameIndexBits)) return false;
    return check_geometry(geometry.frame_bytes(), geometry.chunk_bytes(), geometry.capacity_bytes()) ==
           GeometryFault::none;
}

}  // namespace numacre::engine
