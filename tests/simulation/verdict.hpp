// The failure of a run, and its trace: a line for each operation and fault, with the step and who takes it.
#pragma once

#include <string>

#include "scheduler.hpp"

namespace numacre::simulation {

inline constexpr int kDaemon = 0;  // Fiber::process; clients are the numbers of their instances

class Verdict {
public:
    Verdict(Scheduler &scheduler, bool trace) : scheduler_(scheduler), trace_(trace) {}

    // The first failure counts; the run goes on.
    void record(const std::string &what);
    // The run is over: does not return to a fiber.
    [[gnu::format(printf, 2, 3)]] void fail(const char *what, ...);
    // A line of the trace.
    [[gnu::format(printf, 2, 3)]] void say(const char *what, ...);

    bool is_clean() const { return failure_.empty(); }
    const std::string &failure() const { return failure_; }

private:
    Scheduler &scheduler_;
    const bool trace_;
    std::string failure_;
};

}  // namespace numacre::simulation
