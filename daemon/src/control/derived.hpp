// Figures that follow from a pool's status, computed in one place for gRPC and for the metrics. Pure.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine.hpp"
#include "numacre/shm/fragmentation.hpp"
#include "pool/pool_status.hpp"

namespace numacre::daemon {

inline std::uint64_t bytes_of(const Geometry &geometry, std::uint64_t frames) {
    return geometry.bytes_of(frames);
}

inline std::uint64_t used_bytes(const Geometry &geometry, const NodeStatus &numa_node) {
    return bytes_of(geometry, numa_node.snapshot.used_frames);
}
inline std::uint64_t free_bytes(const Geometry &geometry, const NodeStatus &numa_node) {
    return bytes_of(geometry, numa_node.snapshot.free_frames);
}
inline std::uint64_t largest_free_block_bytes(const Geometry &geometry, const NodeStatus &numa_node) {
    return bytes_of(geometry, numa_node.snapshot.largest_free_frames());
}

inline double internal_fragmentation_of(const NodeStatus &numa_node) {
    // The snapshot sums values that clients wrote. More requested than granted is a client's damage and must not wrap
    // here.
    const std::uint64_t granted = numa_node.snapshot.granted_bytes;
    return internal_fragmentation_ratio(granted, std::min(granted, numa_node.snapshot.requested_bytes));
}

// The largest less the smallest used share of online memory among the numa nodes: 0 .. 1. A numa node with nothing
// online has no share. With fewer than two shares there is no imbalance.
inline double numa_imbalance(const PoolStatus &pool) {
    double least = 1, most = 0;
    unsigned counted = 0;
    for (const NodeStatus &numa_node : pool.nodes) {
        if (numa_node.online_bytes == 0) continue;
        const double share =
            static_cast<double>(used_bytes(pool.geometry, numa_node)) / static_cast<double>(numa_node.online_bytes);
        least = std::min(least, share);
        most = std::max(most, share);
        ++counted;
    }
    return counted < 2 ? 0 : most - least;
}

}  // namespace numacre::daemon
