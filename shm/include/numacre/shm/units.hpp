// Types for quantities that must not be mixed up, and their arithmetic.
#pragma once

#include <bit>
#include <compare>
#include <cstddef>
#include <cstdint>

namespace numacre::engine {

inline constexpr std::size_t kCacheLineBytes = 64;

// Index of a frame inside one numa node's pool, counted from that pool's first frame.
struct FrameIndex {
    std::uint64_t value = 0;
    friend constexpr auto operator<=>(FrameIndex, FrameIndex) = default;
};

// A block of order k is 2^k frames, aligned to its own size.
struct Order {
    std::uint32_t value = 0;
    constexpr std::uint64_t frames() const { return std::uint64_t{1} << value; }
    friend constexpr auto operator<=>(Order, Order) = default;
};

// The pool's number of a NUMA node of the machine: dense, 0 .. numa_node_count-1. Not a tree node.
struct NumaNode {
    std::uint8_t value = 0;
    friend constexpr auto operator<=>(NumaNode, NumaNode) = default;
};

// A client process's place in the pool's table, handed out by the daemon.
struct ProcessSlot {
    std::uint16_t value = 0;
    friend constexpr auto operator<=>(ProcessSlot, ProcessSlot) = default;
};

// A client thread's place in the pool's table: it names the intent word and the counters.
struct ThreadSlotIndex {
    std::uint16_t value = 0;
    friend constexpr auto operator<=>(ThreadSlotIndex, ThreadSlotIndex) = default;
};

struct Block {
    FrameIndex base;
    Order order;
    friend constexpr bool operator==(Block, Block) = default;
};

constexpr bool overlaps(Block a, Block b) {
    return a.base.value < b.base.value + b.order.frames() && b.base.value < a.base.value + a.order.frames();
}

// The smallest order whose block holds size_bytes. size_bytes must be at least 1.
constexpr Order order_for_bytes(std::uint64_t size_bytes, std::uint32_t frame_shift) {
    const std::uint64_t last_frame = (size_bytes - 1) >> frame_shift;
    return Order{static_cast<std::uint32_t>(std::bit_width(last_frame))};
}

constexpr std::uint64_t divide_up(std::uint64_t amount, std::uint64_t unit) {
    return (amount + unit - 1) / unit;
}
constexpr std::uint64_t round_up(std::uint64_t amount, std::uint64_t unit) {
    return divide_up(amount, unit) * unit;
}

}  // namespace numacre::engine
