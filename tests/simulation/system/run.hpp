// The state that all parts of a run share: the plan, the scheduler, the kernel, one stream of random numbers, and the
// programs.
#pragma once

#include <cstdint>
#include <vector>

#include "../client.hpp"
#include "plan.hpp"

namespace numacre::simulation {

inline constexpr std::uint32_t kUid = 1000;  // of the clients that are not root's

struct Handle {
    numacre_pool *pool = nullptr;
    int session = -1;  // Sessions::at()
};

struct HeldPin {
    numacre_pool *pool = nullptr;
    int descriptor = -1;
};

// A process of the run, as its own program sees it.
struct Program {
    int process = 0;
    std::vector<Handle> handles;
    std::vector<Handle> stale;  // made before a fork
    std::vector<HeldPin> pins;
    unsigned working = 0;    // threads in the middle of operations
    unsigned lingering = 0;  // threads that have not ended
    bool may_end = false;    // ... and may now
    bool has_closed_all = false;
    bool is_child = false;
    bool has_nothing = false;  // it has let go of everything, and lives on until the end
};

// The address on which fibers of the run sleep: the scheduler does not look behind it.
inline const std::uint32_t *key_of(const void *object) {
    return static_cast<const std::uint32_t *>(object);
}

struct Run {
    Run(World &world, const SystemPlan &system_plan);

    // By the director: for so long, or until it is told that something has happened.
    void rest(std::uint64_t nanoseconds);
    void tell_director() { scheduler.wake_all(key_of(this)); }

    const SystemPlan plan;
    Scheduler scheduler;
    Kernel kernel;
    Random random;
    std::vector<Program> programs;
    SystemResult result;
    unsigned call_deaths_left, call_daemon_deaths_left;
    bool is_ending = false;  // all clients have ended: nobody dies any more
    bool is_over = false;    // ... and all is free: who lives on may end
};

}  // namespace numacre::simulation
