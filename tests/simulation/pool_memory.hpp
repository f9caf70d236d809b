// The memory of the pool of a run, formatted as the daemon does it; all of it is offline at first.
#pragma once

#include <vector>

#include "client.hpp"
#include "plan.hpp"

namespace numacre::simulation {

// The bits of a word, read without a step.
template <class Word>
std::uint64_t peek(const Word &word) {
    return *reinterpret_cast<const std::uint64_t *>(&word);
}

inline std::uint64_t first(Block block) {
    return block.base.value;
}
inline std::uint64_t end(Block block) {
    return block.base.value + block.order.frames();
}

class PoolMemory {
public:
    explicit PoolMemory(const Plan &plan);
    ~PoolMemory();
    PoolMemory(const PoolMemory &) = delete;
    PoolMemory &operator=(const PoolMemory &) = delete;

    // The daemon has brought online what it will. From now on processes are counted as the plan says, and the
    // scheduler's door tells the world what changes in the trees and in the thread slots.
    void open(const Plan &plan);

    unsigned numa_nodes() const { return static_cast<unsigned>(nodes.size()); }
    std::uint64_t chunk_of(Block block) const { return block.base.value >> geometry.largest_order; }
    std::uint64_t first_frame(std::uint64_t chunk) const { return chunk << geometry.largest_order; }
    // Of which numa node is the watched word?
    unsigned node_of(const void *word) const {
        return static_cast<unsigned>(static_cast<std::size_t>(static_cast<const char *>(word) - regions_) /
                                     node_bytes_);
    }

    const Geometry geometry;
    Pool pool;
    std::vector<Node> nodes;

private:
    void *place_ = nullptr;
    std::size_t bytes_ = 0, node_bytes_ = 0;
    char *regions_ = nullptr;  // of the numa nodes, one after the other
};

}  // namespace numacre::simulation
