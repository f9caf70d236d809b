// The owner of each frame: nobody gets what somebody else can still reach, nor writes over it, nor do all together get
// more than the pool's quota.
#pragma once

#include <vector>

#include "sessions.hpp"

namespace numacre::simulation {

struct HeldBlock {
    void *place = nullptr;
    std::uint64_t serial = 0;
    int session = -1;
    unsigned numa_node = 0;
    std::uint64_t first = 0, count = 0;  // frames
};

class Blocks {
public:
    Blocks(const SystemPlan &plan, const Sessions &sessions)
        : plan_(plan),
          sessions_(sessions),
          frames_(plan.daemon.capacity_bytes / plan.daemon.frame_bytes),
          owners_(plan.daemon.numa_nodes, std::vector<Owner>(frames_)) {}

    // from: whose block it was, if it was taken.
    HeldBlock got(const Handle &handle, void *place, const HeldBlock *from);
    // Nobody has got the block's frames since.
    bool is_still(const HeldBlock &block) const { return owners_[block.numa_node][block.first].serial == block.serial; }
    // Before it is freed.
    void gives_up(const HeldBlock &block);
    // A session begins to take a block; -1: it has not got it.
    void note_taker(const HeldBlock &block, int session);

private:
    struct Owner {
        int session = -1;
        std::uint64_t serial = 0;
        int taker =
            -1;  // a session in the middle of numacre_take(): if it dies there, the block may be its own, and free
    };

    void check_quota() const;
    std::uint64_t *last_word(const HeldBlock &block) const;
    void sign(const HeldBlock &block) const;
    void check_signature(const HeldBlock &block) const;

    const SystemPlan &plan_;
    const Sessions &sessions_;
    const std::uint64_t frames_;              // of a numa node
    std::vector<std::vector<Owner>> owners_;  // by numa node, frame
    std::uint64_t last_serial_ = 0;
};

}  // namespace numacre::simulation
