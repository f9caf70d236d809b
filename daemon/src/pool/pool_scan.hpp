// Looks at what is in use in a pool: walks over the shared metadata beside running clients, which take as long as there
// is metadata. Thread-safe; no thread of the event loop's.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine.hpp"
#include "memory/node_memory.hpp"
#include "pool/client_table.hpp"
#include "pool/use.hpp"

namespace numacre::daemon {

class PoolScan {
public:
    // All of them outlive the scan. withheld_bytes: what shrinks under way have withheld.
    PoolScan(const Geometry &geometry, const SharedPool &shared, const std::vector<View> &views,
             const std::vector<std::unique_ptr<NodeMemory>> &nodes, const ClientTable &clients,
             const std::atomic<std::uint64_t> &withheld_bytes);
    PoolScan(const PoolScan &) = delete;
    PoolScan &operator=(const PoolScan &) = delete;

    // The part of a Use that has to be known from before the walk.
    Use begin();
    // How many have begun.
    std::uint64_t begun() const;
    // Units of one numa node.
    struct Units {
        NumaNode numa_node;
        std::span<const std::uint64_t> units;
    };
    // The walk. Of all numa nodes, by process slot; `use` has the frames in use in `units` as well.
    std::vector<OwnerUsage> walk(Use &use, Units units = {}) const;
    // Both, and the frames that could be promised to somebody: neither those that are free in units that drain, nor
    // those that have been granted and not been taken yet. The frames in use in `units` are found by the same walk: a
    // block that moves between two walks is in neither of them, and would be missing.
    Use look(Units units = {});
    // Frames, by process slot: what threads in the middle of a call have counted and not changed in the tree, or the
    // other way round.
    std::vector<std::uint64_t> frames_under_way() const;

private:
    // Whether clients count what they hold.
    bool is_counting() const;
    void read_counts(Use &use) const;
    std::uint64_t unit_changes() const;
    NodeMemory::DrainingFrames draining_frames() const;
    void find_free_to_promise(Use &use, const NodeMemory::DrainingFrames &gone) const;

    const Geometry &geometry_;
    const SharedPool &shared_;
    const std::vector<View> &views_;
    const std::vector<std::unique_ptr<NodeMemory>> &nodes_;
    const ClientTable &clients_;
    const std::atomic<std::uint64_t> &withheld_bytes_;
    std::atomic<std::uint64_t> begun_{0};
};

}  // namespace numacre::daemon
