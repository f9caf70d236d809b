#include "pool/integrity.hpp"

#include "numacre/shm/audit.hpp"
#include "numacre/shm/snapshot.hpp"

namespace numacre::daemon {

std::string damage_to_numa_node(const SharedPool &shared, const NodeMemory &memory, const Geometry &geometry,
                                const NodeStatus &status, const NodeScan &scan,
                                const std::vector<std::uint64_t> &seats_before,
                                const std::vector<std::uint64_t> &seats_after) {
    const View &view = memory.view();
    const NodeSnapshot &snapshot = status.snapshot;
    const std::string where = " on numa node " + std::to_string(status.node.value);
    if (snapshot.damaged_entries != 0 || snapshot.lost_blocks != 0) {
        // Scanned a second time: an entry may look impossible for the length of a change that was under way.
        NodeSnapshot again;
        std::vector<OwnerUsage> usage(scan.usage.size());
        scan_node(view, again, usage);
        if (snapshot.damaged_entries != 0 && again.damaged_entries != 0)
            return std::to_string(again.damaged_entries) + " impossible index entries" + where;
        if (snapshot.lost_blocks != 0 && again.lost_blocks != 0)
            return std::to_string(again.lost_blocks) + " live blocks that have lost frames" + where;
    }
    if (const std::uint64_t words = Audit<ProductionEnv>(shared, view).run(); words != 0)
        return std::to_string(words) + " impossible words of the tree" + where;

    // The words of offline chunks belong to the daemon alone: nobody else changes one.
    const std::uint64_t changes = scan.online_changes;
    if (changes % 2 == 0 && memory.online_changes() == changes &&
        geometry.bytes_of(snapshot.offline_frames) != geometry.capacity_bytes() - status.online_bytes)
        return "other chunks are offline than the daemon took offline" + where;

    for (std::size_t slot = 0; slot < scan.usage.size(); ++slot)
        if (seats_after[slot] % 2 == 0 && seats_after[slot] == seats_before[slot] && scan.usage[slot].frames != 0)
            return "blocks of process slot " + std::to_string(slot) + ", where nobody sits," + where;

    for (std::size_t i = 0; i < snapshot.unheld_count; ++i)
        // Checked twice: the verdict is final.
        if (is_taken_by_nobody(shared, view, snapshot.unheld[i]) &&
            is_taken_by_nobody(shared, view, snapshot.unheld[i]))
            return "frame " + std::to_string(snapshot.unheld[i].first.value) + " is taken by nobody" + where;
    return {};
}

}  // namespace numacre::daemon
