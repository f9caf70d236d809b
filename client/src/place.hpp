// Conversion between addresses and (numa node, frame) by the handle alone: for calls that have no lane, and for
// arbitrary addresses.
#pragma once

#include <cstdint>

#include "pool.hpp"

namespace numacre::client {

struct Place {
    std::uint32_t numa_node;
    FrameIndex frame;
};

inline void *address_of(numacre_pool *pool, std::uint32_t numa_node, Block block) {
    return pool->nodes[numa_node].data + (pool->scale.offset(block.base.value));
}

// False: the address is not that of a frame's first byte in this pool.
inline bool locate(const numacre_pool *pool, const void *address, Place &place) {
    const std::uint64_t offset =
        reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(pool->span);
    if (offset >= pool->span_bytes) return false;
    place.numa_node = static_cast<std::uint32_t>(offset >> pool->span_shift);
    const std::uint64_t in_node = offset & ((std::uint64_t{1} << pool->span_shift) - 1);
    place.frame = FrameIndex{pool->scale.frame(in_node)};
    return place.frame.value < pool->geometry.frame_count;
}

}  // namespace numacre::client
