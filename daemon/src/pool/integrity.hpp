// The verdict that a pool's shared metadata is damaged, which is final, and the audit of a numa node that finds damage.
// Thread-safe. No thread touches shared memory while it holds the verdict's lock.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/thread_safety.hpp"
#include "engine.hpp"
#include "memory/node_memory.hpp"
#include "pool/pool_status.hpp"

namespace numacre::daemon {

class Integrity {
public:
    // False: the pool is known to be damaged already.
    bool note_damage(const std::string &reason) {
        const MutexLock lock(mutex_);
        if (!reason_.empty()) return false;
        reason_ = reason;
        is_news_ = true;
        return true;
    }
    bool is_damaged() const { return !reason().empty(); }
    // Empty: the pool is not damaged.
    std::string reason() const {
        const MutexLock lock(mutex_);
        return reason_;
    }
    // Returns the reason once, after the pool has been found to be damaged.
    std::optional<std::string> take_news() {
        const MutexLock lock(mutex_);
        if (!std::exchange(is_news_, false)) return std::nullopt;
        return reason_;
    }

private:
    mutable Mutex mutex_;
    std::string reason_ NUMACRE_GUARDED_BY(mutex_);
    bool is_news_ NUMACRE_GUARDED_BY(mutex_) = false;
};

// The result of a scan of a numa node's metadata, and the state before the scan that the audit needs.
struct NodeScan {
    std::vector<OwnerUsage> usage;     // by process slot
    std::uint64_t online_changes = 0;  // NodeMemory::online_changes()
};

// Looks for damage to the numa node's metadata beside running clients, and describes it in words; empty: none.
// seats_before, seats_after: ClientTable::versions() from before the scan and from after it.
std::string damage_to_numa_node(const SharedPool &shared, const NodeMemory &memory, const Geometry &geometry,
                                const NodeStatus &status, const NodeScan &scan,
                                const std::vector<std::uint64_t> &seats_before,
                                const std::vector<std::uint64_t> &seats_after);

}  // namespace numacre::daemon
