// The shared words of the tree: named questions and pure steps on plain values. There are no atomics here; buddy/ loops
// around these steps with compare-and-swap.
//
// Tree (shm/README.md has the picture): layer 0 is leaf words of 64 frames, one bit a frame; layer j >= 1 is upper
// words of 8 children each, a child being a whole word of layer j-1. A block lives in exactly one word: orders 0..6 in
// a leaf word, orders 3j+4 .. 3j+6 in a layer-j word, as an aligned group of children.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "numacre/shm/units.hpp"

namespace numacre::engine {

inline constexpr unsigned kLeafFrames = 64;
inline constexpr unsigned kLeafOrder = 6;       // the order of a whole leaf word
inline constexpr unsigned kUpperFanOut = 8;     // children of an upper word
inline constexpr unsigned kUpperLevels = 3;     // orders that one upper layer adds
inline constexpr unsigned kMaxUpperLayers = 6;  // orders up to 24: 1 GiB of 64-byte frames
inline constexpr unsigned kMaxOrder = kLeafOrder + kUpperLevels * kMaxUpperLayers;

// The layer whose words hold blocks of this order: 0 for 0..6, 1 for 7..9, 2 for 10..12 ...
constexpr unsigned layer_of(Order order) {
    return order.value <= kLeafOrder ? 0 : (order.value - kLeafOrder + kUpperLevels - 1) / kUpperLevels;
}

// The order of a whole word of this layer, which is also the order of one child of the layer above.
constexpr unsigned word_order(unsigned layer) {
    return kLeafOrder + kUpperLevels * layer;
}

// ---------------------------------------------------------------------------------------------------------------------
// Leaf word: bit f set = frame f of the word belongs to an allocated (or in-flight) block. A leaf word has no tag:
// every step changes only bits that the stepping thread owns, so an equal value is an equal state.

namespace leaf {

// Aligned runs of 2^order frames, by order: the first frames of all possible runs, their last frames, the run that
// begins at frame 0, its length less one, and the complement of that, which saves the hot path an instruction. The
// tables are one object at namespace scope: a local constexpr array is copied to the stack on every call, and one
// address leads to all tables.
struct Runs {
    std::uint64_t first[kLeafOrder + 1];
    std::uint64_t last[kLeafOrder + 1];
    std::uint64_t run[kLeafOrder + 1];
    std::uint64_t length_less_one[kLeafOrder + 1];
    std::uint64_t begins[kLeafOrder + 1];
};
inline constexpr Runs kRuns = [] {
    Runs runs{};
    for (unsigned order = 0; order <= kLeafOrder; ++order) {
        const unsigned length = 1U << order;
        runs.length_less_one[order] = length - 1;
        runs.begins[order] = ~std::uint64_t{length - 1};
        runs.run[order] = ~std::uint64_t{0} >> (kLeafFrames - length);
        for (unsigned frame = 0; frame < kLeafFrames; frame += length) runs.first[order] |= std::uint64_t{1} << frame;
        runs.last[order] = runs.first[order] << (length - 1);
    }
    return runs;
}();

constexpr std::uint64_t mask(unsigned first_frame, unsigned order) {
    return kRuns.run[order] << first_frame;
}

// The first frame of the run of 2^order frames that contains this frame, of any word.
constexpr std::uint64_t rounded_down(std::uint64_t frame, unsigned order) {
    return frame & kRuns.begins[order];
}

// Bit f of the result is set when f is aligned to 2^order and frames f .. f+2^order-1 are all free.
constexpr std::uint64_t free_starts(std::uint64_t word, unsigned order) {
    if (order >= kLeafOrder) return word == 0 ? 1 : 0;
    std::uint64_t starts = ~word;
    for (unsigned width = 1; width < (1U << order); width <<= 1) starts &= starts >> width;
    return starts & kRuns.first[order];
}

// The last frames of aligned, free runs of 2^order: the lowest bit is right, bits above it may be wrong. 0: there is no
// such run. Four instructions whatever the order, no branch: subtracting the first frames' bits borrows through a run
// of zeros, into its last bit.
constexpr std::uint64_t free_ends(std::uint64_t word, unsigned order) {
    return (word - kRuns.first[order]) & ~word & kRuns.last[order];
}

// Largest free order plus one; 0 when the word is full.
constexpr unsigned free_value(std::uint64_t word) {
    if (word == 0) return kLeafOrder + 1;
    std::uint64_t starts = ~word;
    unsigned value = starts != 0 ? 1 : 0;
    for (unsigned order = 1; order < kLeafOrder && starts != 0; ++order) {
        starts &= (starts >> (1U << (order - 1))) & kRuns.first[order];
        if (starts != 0) value = order + 1;
    }
    return value;
}

}  // namespace leaf

// ---------------------------------------------------------------------------------------------------------------------
// Upper word, four planes of one bit a child and a tag:
//
//   bits  0.. 7  P    something is allocated below this child (or was, and the mark is not cleaned yet)
//   bits  8..15  F    the child belongs to a block allocated in this word
//   bits 16..23  COAL somebody is about to clear P: an allocation passing by must withdraw this mark
//   bits 24..31  DRAIN the daemon wants the child empty: allocations treat it like F (top layer only)
//   bits 32..63  tag  grows by one with every change that sets a bit or clears P, so that a clean decided on an old
//                     value fails (without it two live blocks overlap: tests/model). Clearing F alone need not
//                     advance the tag: the word has no earlier value before F is set again.

class UpperWord {
public:
    constexpr UpperWord() = default;
    constexpr explicit UpperWord(std::uint64_t bits) : bits_(bits) {}
    constexpr std::uint64_t bits() const { return bits_; }

    // --- questions ---
    constexpr bool occupied_below(unsigned child) const { return (bits_ >> child & kP) != 0; }
    constexpr bool allocated_here(unsigned child) const { return (bits_ >> child & kF) != 0; }
    constexpr bool coalescing(unsigned child) const { return (bits_ >> child & kCoal) != 0; }
    constexpr bool draining(unsigned child) const { return (bits_ >> child & kDrain) != 0; }

    // An allocation below this child has to be undone.
    constexpr bool closed_to_allocation(unsigned child) const { return (bits_ >> child & (kF | kDrain)) != 0; }
    // An allocation below this child may climb on without an RMW: its mark is there, nobody is about to take it away,
    // and the child is not closed. (The load is needed nevertheless: see climb().)
    constexpr bool passable(unsigned child) const { return (bits_ >> child & (kP | kF | kCoal | kDrain)) == kP; }
    // Nothing allocated here or below. COAL, DRAIN and the tag do not count.
    constexpr bool empty() const { return ((bits_ | bits_ >> 8) & 0xff) == 0; }

    // No child is allocated here or draining.
    constexpr bool is_open() const { return (bits_ & (0xff * kF | 0xff * kDrain)) == 0; }

    // Whether correct clients and the daemon can have made this word. There is never a mark beside F, nor COAL without
    // a mark.
    constexpr bool is_possible(bool top_layer) const {
        const std::uint64_t coalescing = bits_ >> 16 & 0xff;
        return (occupied_children() & allocated_children()) == 0 && (coalescing & ~bits_) == 0 &&
               (top_layer || draining_children() == 0);
    }

    constexpr std::uint8_t occupied_children() const { return static_cast<std::uint8_t>(bits_); }
    constexpr std::uint8_t allocated_children() const { return static_cast<std::uint8_t>(bits_ >> 8); }
    constexpr std::uint8_t draining_children() const { return static_cast<std::uint8_t>(bits_ >> 24); }
    // Whether an ordinary allocation may claim the whole word.
    constexpr bool is_claimable() const { return (bits_ & (0xff * kP | 0xff * kF | 0xff * kDrain)) == 0; }
    // Children that an ordinary allocation may claim in this word.
    constexpr std::uint8_t claimable_children() const {
        return static_cast<std::uint8_t>(~(bits_ | bits_ >> 8 | bits_ >> 24));
    }
    constexpr std::uint32_t tag() const { return static_cast<std::uint32_t>(bits_ >> 32); }

    // --- steps; each advances the tag ---
    constexpr UpperWord with_mark(unsigned child) const { return next((bits_ | kP << child) & ~(kCoal << child)); }
    constexpr UpperWord with_coalescing(unsigned child) const { return next(bits_ | kCoal << child); }
    constexpr UpperWord without_mark(unsigned child) const { return next(bits_ & ~((kP | kCoal) << child)); }
    constexpr UpperWord with_allocated(std::uint8_t group) const {
        return next((bits_ | spread(group, 8)) & ~spread(group, 16));
    }
    // A mask for an AND that clears the group's F bits and leaves all other bits, the tag included.
    static constexpr std::uint64_t all_but_allocated(std::uint8_t group) { return ~spread(group, 8); }
    constexpr UpperWord with_drain(std::uint8_t group) const { return next(bits_ | spread(group, 24)); }
    constexpr UpperWord without_drain(std::uint8_t group) const { return next(bits_ & ~spread(group, 24)); }

    friend constexpr bool operator==(UpperWord, UpperWord) = default;

private:
    static constexpr std::uint64_t kP = 1;
    static constexpr std::uint64_t kF = std::uint64_t{1} << 8;
    static constexpr std::uint64_t kCoal = std::uint64_t{1} << 16;
    static constexpr std::uint64_t kDrain = std::uint64_t{1} << 24;
    static constexpr std::uint64_t kTagStep = std::uint64_t{1} << 32;

    static constexpr std::uint64_t spread(std::uint8_t group, unsigned plane) { return std::uint64_t{group} << plane; }
    static constexpr UpperWord next(std::uint64_t bits) { return UpperWord{bits + kTagStep}; }

    std::uint64_t bits_ = 0;
};

namespace upper {

// By levels: the first children of all groups, and the group that begins at child 0.
inline constexpr std::uint8_t kAligned[kUpperLevels + 1] = {0xff, 0x55, 0x11, 0x01};
inline constexpr std::uint8_t kGroup[kUpperLevels + 1] = {0x01, 0x03, 0x0f, 0xff};

// The 2^levels children of a block that starts at first_child.
constexpr std::uint8_t group(unsigned first_child, unsigned levels) {
    return static_cast<std::uint8_t>(kGroup[levels] << first_child);
}

// Bit c is set when children c .. c+2^levels-1 are all in `free_children` and c is aligned.
constexpr std::uint8_t free_starts(std::uint8_t free_children, unsigned levels) {
    unsigned starts = free_children;
    for (unsigned width = 1; width < (1U << levels); width <<= 1) starts &= starts >> width;
    return static_cast<std::uint8_t>(starts & kAligned[levels]);
}

// An aligned group of 2^levels free children, whose buddy is not free. levels > kUpperLevels: none.
struct Hole {
    unsigned first_child;
    unsigned levels;
};
// The smallest hole that takes a block of 2^levels children: the least is left over from it.
constexpr Hole find_smallest_hole(std::uint8_t free_children, unsigned levels) {
    unsigned starts = free_starts(free_children, levels);
    while (starts != 0 && levels < kUpperLevels) {
        const unsigned larger = free_starts(free_children, levels + 1);
        const unsigned lone = starts & ~(larger | larger << (1U << levels));
        if (lone != 0) return {static_cast<unsigned>(std::countr_zero(lone)), levels};
        starts = larger;
        ++levels;
    }
    return {0, starts != 0 ? kUpperLevels : kUpperLevels + 1};
}
// All results of find_smallest_hole(), by levels and free children: bits 0..2 first child, from bit 3 on levels.
inline constexpr auto kSmallestHoles = [] {
    std::array<std::array<std::uint8_t, 256>, kUpperLevels + 1> holes{};
    for (unsigned levels = 0; levels <= kUpperLevels; ++levels)
        for (unsigned children = 0; children < 256; ++children) {
            const Hole hole = find_smallest_hole(static_cast<std::uint8_t>(children), levels);
            holes[levels][children] = static_cast<std::uint8_t>(hole.levels << 3 | hole.first_child);
        }
    return holes;
}();
// By free children: the number of group sizes (1, 2, 4, 8 children) that are free, one more than the largest's levels.
inline constexpr auto kFreeSizes = [] {
    std::array<std::uint8_t, 256> largest{};
    for (unsigned children = 0; children < 256; ++children)
        for (unsigned levels = 0; levels <= kUpperLevels; ++levels)
            if (free_starts(static_cast<std::uint8_t>(children), levels) != 0)
                largest[children] = static_cast<std::uint8_t>(levels + 1);
    return largest;
}();
constexpr Hole smallest_hole(std::uint8_t free_children, unsigned levels) {
    const unsigned hole = kSmallestHoles[levels][free_children];
    return {hole & 7, hole >> 3};
}

}  // namespace upper

// ---------------------------------------------------------------------------------------------------------------------
// Hint word: one byte for each child, the shortfall of the largest free block below that child from the pool's largest
// block: 0 = the largest order may be free there. So zeroed memory is a valid hint: too high a hint is harmless, as the
// search corrects it; too low a hint would hide memory. A *value* is largest free order + 1, 0 for none; the byte is
// ceiling - value.

class HintWord {
public:
    constexpr HintWord() = default;
    constexpr explicit HintWord(std::uint64_t bits) : bits_(bits) {}
    constexpr std::uint64_t bits() const { return bits_; }

    // ceiling = largest order + 1. A byte out of range (scribbled) reads as "nothing free".
    constexpr unsigned value(unsigned child, unsigned ceiling) const {
        const unsigned shortfall = static_cast<unsigned>(bits_ >> (8 * child)) & 0xff;
        return shortfall < ceiling ? ceiling - shortfall : 0;
    }
    // The children whose value is at least `least` (1 .. ceiling), as bits: their bytes are below a limit. One
    // subtraction compares all eight bytes: a borrow from a byte's upper bit marks a byte below the limit.
    constexpr std::uint8_t at_least(unsigned least, unsigned ceiling) const {
        constexpr std::uint64_t kOnes = 0x0101'0101'0101'0101;
        constexpr std::uint64_t kUpperBits = 0x80 * kOnes;
        const std::uint64_t below = ~((bits_ | kUpperBits) - kOnes * (ceiling - least + 1)) & ~bits_ & kUpperBits;
        return static_cast<std::uint8_t>((below >> 7) * 0x0102'0408'1020'4080 >> 56);
    }
    // Whether the hint promises the pool's largest block, the most that it can promise.
    constexpr bool is_full(unsigned child) const { return (bits_ >> (8 * child) & 0xff) == 0; }
    constexpr HintWord with_value(unsigned child, unsigned value, unsigned ceiling) const {
        const std::uint64_t cleared = bits_ & ~(std::uint64_t{0xff} << (8 * child));
        return HintWord{cleared | std::uint64_t{ceiling - value} << (8 * child)};
    }
    constexpr unsigned largest_value(unsigned ceiling) const {
        unsigned largest = 0;
        for (unsigned child = 0; child < kUpperFanOut; ++child) {
            const unsigned here = value(child, ceiling);
            if (here > largest) largest = here;
        }
        return largest;
    }
    friend constexpr bool operator==(HintWord, HintWord) = default;

private:
    std::uint64_t bits_ = 0;
};

}  // namespace numacre::engine
