// Rings of DPDK in memory of any kind. Compiled with DPDK's own options.
#pragma once

#include <rte_ring.h>

#include <cstddef>
#include <stdexcept>
#include <string>

namespace numacre::bench {

// A multiple of a cache line.
inline std::size_t ring_bytes(unsigned capacity) {
    const ssize_t bytes = rte_ring_get_memsize(2 * capacity);  // holds one less than it has room for
    if (bytes < 0) throw std::runtime_error("no ring has room for " + std::to_string(capacity));
    return static_cast<std::size_t>(bytes);
}

// Holds exactly `capacity` pointers.
inline rte_ring *make_ring(std::byte *memory, unsigned capacity, unsigned flags) {
    rte_ring *const ring = reinterpret_cast<rte_ring *>(memory);
    const int result = rte_ring_init(ring, "channel", capacity, flags | RING_F_EXACT_SZ);
    if (result != 0) throw std::runtime_error("rte_ring_init: error " + std::to_string(result));
    return ring;
}

}  // namespace numacre::bench
