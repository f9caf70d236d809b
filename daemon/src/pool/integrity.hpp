// The verdict that a pool's shared metadata is damaged, which is for good, and the audit of a numa node that finds it.
// Thread-safe; the lock of the verdict is never held by who touches shared memory.
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
    // False: it is known to be damaged already.
    bool note_damage(const std::string &reason) {
        const MutexLock lock(mutex_);
        if (!reason_.empty()) return false;
        reason_ = reason;
        is_news_ = true;
        return true;
    }
    bool is_damaged() const { return !reason().empty(); }
    // Empty: it is not.
    std::string reason() const {
        const MutexLock lock(mutex_);
        return reason_;
    }
    // Once, after the pool has been found to be damaged: the reason.
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

// The findings of a scan of a numa node's metadata, and what was true before it.
struct NodeScan {
    std::vector<OwnerUsage> usage;     // by process slot
    std::uint64_t online_changes = 0;  // NodeMemory::online_changes()
};

// The damage to the numa node's metadata, in words, looked for beside running clients; empty: none. seats_before,
// seats_after: ClientTable::versions() from before the scan, and from after it.
std::string damage_to_numa_node(const SharedPool &shared, const NodeMemory &memory, const Geometry &geometry,
                                const NodeStatus &status, const NodeScan &scan,
                                const std::vector<std::uint64_t> &seats_before,
                                const std::vector<std::uint64_t> &seats_after);

}  // namespace numacre::daemon
