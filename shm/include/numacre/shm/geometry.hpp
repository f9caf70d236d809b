// The three numbers of a pool from which every size and offset of a node region follows.
#pragma once

#include <bit>
#include <cstdint>

#include "numacre/shm/node_state.hpp"
#include "numacre/shm/note.hpp"
#include "numacre/shm/owner.hpp"
#include "numacre/shm/units.hpp"

namespace numacre::engine {

inline constexpr std::uint64_t kMinFrameBytes = 64;
inline constexpr std::uint64_t kMaxFrameBytes = std::uint64_t{2} << 20;
inline constexpr std::uint64_t kMaxBlockBytes = std::uint64_t{1} << 30;
// The bytes of an object are a multiple of this, so that no two objects share a cache line.
inline constexpr std::uint64_t kObjectStepBytes = kCacheLineBytes;
// 8^10 leaf words of 64 frames are more than 2^kMaxFrameIndexBits frames.
inline constexpr unsigned kMaxHintLevels = 10;

// Conversion between the number of a frame and its offset in the data of its numa node. Frames of an object pool have a
// size that is no power of two; a division would take longer than all other steps of a free. With d = odd * 2^k, an
// offset that is a multiple of d, times the inverse of `odd` modulo 2^64, is the frame's number times 2^k (Granlund and
// Montgomery, Division by Invariant Integers using Multiplication, section 9).
class FrameScale {
public:
    constexpr FrameScale() = default;
    // frame_bytes: not 0
    constexpr explicit FrameScale(std::uint64_t frame_bytes)
        : bytes_(frame_bytes), inverse_(1), zeros_(static_cast<unsigned>(std::countr_zero(frame_bytes))) {
        const std::uint64_t odd = frame_bytes >> zeros_;
        // Newton's iteration doubles the number of correct bits: from 3 (odd * odd is 1 modulo 8) to 96.
        inverse_ = odd;
        for (int round = 0; round < 5; ++round) inverse_ *= 2 - odd * inverse_;
    }
    constexpr std::uint64_t offset(std::uint64_t frames) const { return frames * bytes_; }
    // The frame that begins at this offset. An offset inside a frame becomes a number larger than 2^64 / frame_bytes.
    constexpr std::uint64_t frame(std::uint64_t offset) const {
        return std::rotr(offset * inverse_, static_cast<int>(zeros_));
    }

private:
    std::uint64_t bytes_ = 1;
    std::uint64_t inverse_ = 1;
    std::uint64_t zeros_ = 0;  // log2 of the largest power of two that divides the frame's bytes
};

struct Geometry {
    // A power of two, or, where the largest block is one frame (an object pool), a multiple of kObjectStepBytes.
    std::uint32_t frame_bytes = 4096;
    std::uint32_t largest_order = 10;  // order of the largest block; a chunk is one largest block
    std::uint64_t frame_count = 0;     // capacity of one numa node, a whole number of chunks

    constexpr std::uint64_t bytes_of(std::uint64_t frames) const { return frames * frame_bytes; }
    constexpr std::uint64_t frames_in(std::uint64_t bytes) const { return bytes / frame_bytes; }  // whole ones
    // log2 of the smallest power of two that holds a frame: the scale of notes, and of a request's order.
    constexpr unsigned frame_shift() const { return static_cast<unsigned>(std::bit_width(frame_bytes - 1)); }
    // The bytes that a frame lacks to that power of two.
    constexpr std::uint64_t padding_bytes() const { return (std::uint64_t{1} << frame_shift()) - frame_bytes; }
    constexpr std::uint64_t capacity_bytes() const { return bytes_of(frame_count); }
    constexpr std::uint64_t chunk_frames() const { return std::uint64_t{1} << largest_order; }
    constexpr std::uint64_t chunk_bytes() const { return bytes_of(chunk_frames()); }
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

    // The bytes of a block of this order that nobody asked for, by its note: rounded down to a 256th of the smallest
    // power of two that holds the block.
    constexpr std::uint64_t slack_bytes(Order order, Note note) const {
        const std::uint64_t beyond = note.slack_bytes(order.value + frame_shift());
        const std::uint64_t padding = padding_bytes() << order.value;
        return beyond > padding ? beyond - padding : 0;
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
    return Geometry{static_cast<std::uint32_t>(frame_bytes),
                    static_cast<std::uint32_t>(std::countr_zero(largest_block_bytes / frame_bytes)),
                    capacity_bytes / frame_bytes};
}

// --- object pools ----------------------------------------------------------------------------------------------------
// Each block is one object of any multiple of 64 B, and none is larger. The objects lie one behind the other.

// Of all objects on a numa node: as much as a process has addresses for.
inline constexpr std::uint64_t kMaxObjectBytes = std::uint64_t{1} << 46;

enum class ObjectsFault : std::uint8_t { none, size_out_of_range, size_no_multiple, count_zero, too_many, too_large };

// The distance of objects. Where it were a power of two, the first lines of all objects would share a few sets of the
// processor's caches: with `coloured`, such objects lie one cache line further apart. Not for small ones: the line
// would be more than a sixteenth of the object, and the first lines of objects of 512 B share an eighth of all sets
// already.
constexpr std::uint64_t kLeastColoured = 1024;
constexpr std::uint64_t object_stride(std::uint64_t object_bytes, bool coloured) {
    const bool is_aligned = std::has_single_bit(object_bytes) && object_bytes >= kLeastColoured;
    return object_bytes + (coloured && is_aligned ? kObjectStepBytes : 0);
}

// object_bytes: 64 B .. 1 GiB, a multiple of 64 B; count: 1 .. 2^34, on one numa node, and at most 64 TiB of them.
constexpr ObjectsFault check_objects(std::uint64_t object_bytes, std::uint64_t count) {
    if (object_bytes < kObjectStepBytes || object_bytes > kMaxBlockBytes) return ObjectsFault::size_out_of_range;
    if (object_bytes % kObjectStepBytes != 0) return ObjectsFault::size_no_multiple;
    if (count == 0) return ObjectsFault::count_zero;
    if (count > (std::uint64_t{1} << kMaxFrameIndexBits)) return ObjectsFault::too_many;
    return count > kMaxObjectBytes / (object_bytes + kObjectStepBytes) ? ObjectsFault::too_large : ObjectsFault::none;
}

// stride_bytes: object_stride() of a size and count that check_objects() accepts.
constexpr Geometry make_object_geometry(std::uint64_t stride_bytes, std::uint64_t count) {
    return Geometry{static_cast<std::uint32_t>(stride_bytes), 0, count};
}

// Whether a geometry from a wire or from shared memory can be used.
constexpr bool plausible(const Geometry &geometry) {
    if (geometry.largest_order > kMaxOrder) return false;
    if (geometry.frame_bytes > kMaxBlockBytes + kObjectStepBytes) return false;
    if (geometry.frame_count > (std::uint64_t{1} << kMaxFrameIndexBits)) return false;
    if (geometry.largest_order == 0)
        return geometry.frame_bytes >= kObjectStepBytes && geometry.frame_bytes % kObjectStepBytes == 0 &&
               geometry.frame_count != 0 && geometry.frame_count <= kMaxObjectBytes / geometry.frame_bytes;
    return check_geometry(geometry.frame_bytes, geometry.chunk_bytes(), geometry.capacity_bytes()) ==
           GeometryFault::none;
}

}  // namespace numacre::engine
