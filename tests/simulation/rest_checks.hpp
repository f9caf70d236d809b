// The checks when all threads sleep, when they rest after a round, and at the end.
#pragma once

#include "shadow.hpp"

namespace numacre::simulation {

class RestChecks {
public:
    RestChecks(const Plan &plan, const PoolMemory &memory, const Processes &processes, const TreeHistory &history,
               const Shadow &shadow, Verdict &verdict)
        : plan_(plan), memory_(memory), processes_(processes), history_(history), shadow_(shadow), verdict_(verdict) {}

    // Nobody can go on: then nobody waits for what is free.
    void check_wake_ups();
    // All threads rest. nobody_died: then all counts are exact.
    void check_when_quiet(bool nobody_died);
    // All have ended: all memory is free, and all slots are.
    void check_at_end(bool nobody_died);

private:
    bool is_forbidden(std::uint32_t thread, Order order) const;
    void check_slots(bool ended);

    const Plan &plan_;
    const PoolMemory &memory_;
    const Processes &processes_;
    const TreeHistory &history_;
    const Shadow &shadow_;
    Verdict &verdict_;
};

}  // namespace numacre::simulation
