// The counts of what clients hold, against what scans find. A client that dies, is stopped or scribbles leaves a
// wrong count, by which its user and the pool would be measured for ever. Used with the pool's record lock held.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine.hpp"
#include "memory/node_memory.hpp"
#include "pool/use.hpp"

namespace numacre::daemon {

class HeldCounts {
public:
    // shared: outlives the counts.
    HeldCounts(const SharedPool &shared, std::uint32_t process_slots) : shared_(shared), wrong_(process_slots) {}

    // use: the youngest scan; slots: whose clients sit there since before it; under_way: by process slot, frames, from
    // after the scan.
    void correct(const Use &use, std::span<const ProcessSlot> slots, std::span<const std::uint64_t> under_way);
    // Somebody else sits there.
    void forget(ProcessSlot slot) { wrong_[slot.value] = {}; }

private:
    struct Wrong {
        std::uint64_t bits = 0;  // of HeldFrames
        // By at least so much, in all of the last looks.
        std::uint64_t too_many = 0, too_few = 0;
        unsigned looks = 0;
        std::uint64_t unsure = 0;  // frames under way in the last look
    };
    void correct(ProcessSlot slot, const Use &use, std::uint64_t unsure);

    const SharedPool &shared_;
    std::vector<Wrong> wrong_;  // by process slot: what the last looks have found
};

}  // namespace numacre::daemon
