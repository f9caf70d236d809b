// The findings of a scan of a pool: frames in use, with which limits, promises and counts are compared.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine.hpp"
#include "numacre/shm/account.hpp"
#include "numacre/shm/snapshot.hpp"

namespace numacre::daemon {

struct Use {
    std::uint64_t number = 0;                // of the scan, in the order in which they began
    std::vector<std::uint64_t> seats;        // by process slot, from before it: ClientTable::versions()
    std::vector<std::uint64_t> used_frames;  // by process slot
    std::vector<std::uint64_t> coming;       // by process slot: frames on the way to it, from before the counts
    std::vector<std::uint64_t> counts;       // by process slot: HeldFrames from before it
    std::vector<std::uint64_t> under_way;    // by process slot: frames, from before it, but after the counts
    struct OfNode {
        std::uint64_t free_frames = 0, online_frames = 0;
        std::uint64_t cached_frames = 0;  // used ones, in the caches of threads
    };
    std::vector<OfNode> nodes;
    // The fields from here on are filled in by PoolScan::look() only.
    // Less than 0: more has been granted, and not been taken yet, than is free.
    std::int64_t promisable_frames = 0;
    std::uint64_t used_draining_frames = 0;       // held, and when they are free nobody gets them
    std::uint64_t withheld_frames = 0;            // from before the walk
    std::vector<std::uint64_t> used_unit_frames;  // of the units that were asked for, in their order

    // Frames that the process holds, or has been granted.
    std::uint64_t granted_to(std::uint32_t slot) const {
        return coming[slot] + std::max(used_frames[slot], engine::HeldFrames{counts[slot]}.frames());
    }
    // For people: never below 0.
    std::uint64_t free_to_promise() const {
        return promisable_frames < 0 ? 0 : static_cast<std::uint64_t>(promisable_frames);
    }
    bool can_spare(std::uint64_t frames) const {
        return promisable_frames >= 0 && frames <= static_cast<std::uint64_t>(promisable_frames);
    }
    void add(const NodeSnapshot &snapshot) {
        nodes.push_back({snapshot.free_frames, snapshot.online_frames(), snapshot.cached_frames});
    }
};

}  // namespace numacre::daemon
