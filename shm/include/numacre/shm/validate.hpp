// Compares a region's header with the region that the daemon described. The check runs once, when a region is mapped;
// afterwards each process uses its own copy of the geometry.
#pragma once

#include <cstdint>
#include <cstring>

#include "numacre/shm/layout.hpp"

namespace numacre::engine {

struct ExpectedRegion {
    Geometry geometry;
    std::uint64_t instance_id = 0;
    std::uint64_t region_bytes = 0;  // mapped bytes
};

// Returns ok, version_mismatch, or corrupt. region: readable for at least the size of a header.
template <class Env>
Errc validate_pool_region(const void *region, const ExpectedRegion &expected, std::uint32_t process_slots,
                          std::uint32_t thread_slots) {
    const auto &header = *static_cast<const PoolHeader<Env> *>(region);
    if (header.magic != kPoolMagic) return Errc::corrupt;
    if (header.layout_version != kLayoutVersion || header.header_bytes != sizeof(PoolHeader<Env>))
        return Errc::version_mismatch;
    if (process_slots > kMaxProcessSlots || thread_slots > kMaxThreadSlots) return Errc::corrupt;
    if (expected.region_bytes < PoolLayout<Env>::of(process_slots, thread_slots).region_bytes) return Errc::corrupt;
    if (header.process_slots != process_slots || header.thread_slots != thread_slots ||
        header.instance_id != expected.instance_id || !(header.geometry == expected.geometry))
        return Errc::corrupt;
    return Errc::ok;
}

template <class Env>
Errc validate_node_region(const void *region, const ExpectedRegion &expected, NumaNode numa_node,
                          std::uint32_t thread_slots) {
    const auto &header = *static_cast<const NodeHeader<Env> *>(region);
    if (header.magic != kNodeMagic) return Errc::corrupt;
    if (header.layout_version != kLayoutVersion || header.header_bytes != sizeof(NodeHeader<Env>))
        return Errc::version_mismatch;
    if (!plausible(expected.geometry) ||
        expected.region_bytes < NodeLayout<Env>::of(expected.geometry, thread_slots).region_bytes)
        return Errc::corrupt;
    if (header.instance_id != expected.instance_id || !(header.geometry == expected.geometry) ||
        header.numa_node != numa_node.value || header.thread_slots != thread_slots)
        return Errc::corrupt;
    return Errc::ok;
}

}  // namespace numacre::engine
