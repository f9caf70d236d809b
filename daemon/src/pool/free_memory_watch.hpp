// How much is free on a pool's numa nodes, against its low watermark and its policy of size. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/thread_safety.hpp"
#include "engine.hpp"
#include "memory/ledger.hpp"
#include "pool/event.hpp"
#include "pool/use.hpp"
#include "spec/autosize.hpp"
#include "spec/pool_config.hpp"

namespace numacre::daemon {

class FreeMemoryWatch {
public:
    // All outlive the watch; numa nodes are the ledger's.
    FreeMemoryWatch(const PoolSpec &spec, const Geometry &geometry, PoolLedger &ledger);
    FreeMemoryWatch(const FreeMemoryWatch &) = delete;
    FreeMemoryWatch &operator=(const FreeMemoryWatch &) = delete;

    // The youngest scan, against the low watermark; what has been found out since the last call of take_news().
    void compare(const Use &use);
    std::vector<Event> take_news();
    bool is_below_watermark(std::size_t numa_node) const;
    // The most that was found to be in use, to the ledger.
    void raise_peaks(const Use &use);

    // The youngest scan, for the policy. draining_free_frames: by numa node, what of its free memory drains;
    // promised_frames: what nobody else can have, as far as the other numa nodes do not have it.
    void remember(const Use &use, std::span<const std::uint64_t> draining_free_frames, std::uint64_t promised_frames);
    // A size that the policy wants the numa node to have, instead of another. Told once, then the while that it takes
    // begins anew.
    struct Wish {
        std::uint64_t from_bytes = 0, to_bytes = 0;
    };
    std::optional<Wish> take_wish(std::size_t numa_node, std::uint64_t unit_bytes);

private:
    const PoolSpec &spec_;
    const Geometry &geometry_;
    PoolLedger &ledger_;
    mutable Mutex mutex_;
    std::vector<bool> is_below_ NUMACRE_GUARDED_BY(mutex_);                       // by numa node
    std::vector<std::deque<AutosizeSample>> history_ NUMACRE_GUARDED_BY(mutex_);  // by numa node
    std::vector<Event> news_ NUMACRE_GUARDED_BY(mutex_);
};

}  // namespace numacre::daemon
