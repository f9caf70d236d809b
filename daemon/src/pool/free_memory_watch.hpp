// Compares the free memory of a pool's numa nodes with the low watermark and the autosize policy. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "base/thread_safety.hpp"
#include "engine.hpp"
#include "memory/ledger.hpp"
#include "pool/description.hpp"
#include "pool/event.hpp"
#include "pool/use.hpp"
#include "spec/autosize.hpp"
#include "spec/pool_config.hpp"

namespace numacre::daemon {

class FreeMemoryWatch {
public:
    // description, geometry and ledger outlive the watch. The watched numa nodes are those in the ledger.
    FreeMemoryWatch(const Description &description, const Geometry &geometry, PoolLedger &ledger);
    FreeMemoryWatch(const FreeMemoryWatch &) = delete;
    FreeMemoryWatch &operator=(const FreeMemoryWatch &) = delete;

    // Compares the youngest scan with the low watermark. Memory that threads cache may be all that is missing: then a
    // crossing is told only if a later scan, after the caches have been taken back, still finds too little.
    void compare(const Use &use);
    // True: the caches are to be taken back before a crossing is told.
    bool wants_caches() const;
    void caches_are_taken_back();
    // Returns the events that were found since the last call of take_news().
    std::vector<Event> take_news();
    bool is_below_watermark(std::size_t numa_node) const;
    // Writes to the ledger the maximum use that was found.
    void raise_peaks(const Use &use);

    // Remembers the youngest scan for the policy. draining_free_frames: by numa node, the part of its free memory that
    // drains. promised_frames: frames that only the holders of promises can have; they count here as far as the other
    // numa nodes do not have them.
    void remember(const Use &use, std::span<const std::uint64_t> draining_free_frames, std::uint64_t promised_frames);
    // The rule has changed: its time begins anew.
    void forget_history();
    // The new sizes that the policy wants for the numa nodes, and the sizes that they replace. Each wish is returned
    // once; then its observation window restarts. unit_bytes: by numa node.
    std::vector<AutosizeWish> take_wishes(std::span<const std::uint64_t> unit_bytes);

private:
    const Description &description_;
    const Geometry &geometry_;
    PoolLedger &ledger_;
    mutable Mutex mutex_;
    std::vector<bool> is_below_ NUMACRE_GUARDED_BY(mutex_);  // by numa node
    enum class Caches : std::uint8_t { as_they_are, wanted, taken_back };
    std::vector<Caches> caches_ NUMACRE_GUARDED_BY(mutex_);                       // by numa node; since it was above
    std::vector<std::deque<AutosizeSample>> history_ NUMACRE_GUARDED_BY(mutex_);  // by numa node
    LastShrink last_shrink_ NUMACRE_GUARDED_BY(mutex_);
    std::vector<Event> news_ NUMACRE_GUARDED_BY(mutex_);
};

}  // namespace numacre::daemon
