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
    };
    std::vector<OfNode> nodes;
    // These of PoolScan::look() only.
    std::uint64_t promisable_frames = 0;
    std::uint64_t used_draining_frames = 0;  // held, and when they are free nobody gets them
    std::uint64_t withheld_frames = 0;       // from before it

    // Frames that the process holds, or has been granted.
    std::uint64_t granted_to(std::uint32_t slot) const {
        return coming[slot] + std::max(used_frames[slot], engine::HeldFrames{counts[slot]}.frames());
    }
    void add(const NodeSnapshot &snapshot) { nodes.push_back({snapshot.free_frames, snapshot.online_frames()}); }
};

}  // namespace numacre::daemon
