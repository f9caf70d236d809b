// All that a seed decides, before anything runs. Limits make it smaller and leave the rest as it is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "daemon.hpp"
#include "kernel.hpp"
#include "scheduler.hpp"

namespace numacre::simulation {

// Upper bounds of what a seed draws, as they stand on the command line.
struct SystemLimits {
    std::uint64_t processes = 10;  // altogether, without forked children
    std::uint64_t together = 5;
    std::uint64_t threads = 3;       // of a process, beside its first
    std::uint64_t operations = 200;  // of a thread in a round
    std::uint64_t rounds = 3;        // attach, work, detach
    std::uint64_t handles = 2;
    std::uint64_t forks = 6;
    std::uint64_t execs = 4;
    std::uint64_t deaths = 6;
    std::uint64_t daemon_deaths = 5;
    std::uint64_t jobs = 40;      // of the control plane
    std::uint64_t reserves = 60;  // reservations, or other ones
    std::uint64_t faults = 1;     // 0: no call of the kernel fails, nobody stands still
    std::uint64_t schedule = 0;
};

inline constexpr unsigned kUsualHoard = 12;

struct SystemPlan {
    std::uint64_t seed = 0;
    DaemonPlan daemon;
    KernelPlan kernel;
    unsigned processes = 1, together = 1, threads = 1, operations = 1, rounds = 1, handles = 1;
    unsigned forks = 0, execs = 0, jobs = 0, reserves = 0;
    unsigned fork_percent = 0, exec_percent = 0, close_from_percent = 0, event_percent = 0, leave_percent = 0;
    unsigned pin_percent = 0;
    bool is_of_a_group = false;  // all clients have joined one group, and hand on addresses, not references
    unsigned publish_percent = 0, take_percent = 0, wait_percent = 0, uncached_percent = 0, bulk_percent = 0;
    unsigned run_percent = 0;
    unsigned hoard = kUsualHoard;                      // blocks of a thread, beyond which it frees
    unsigned sizing_percent = 0;                       // of the jobs, beside the usual ones: a resize or a drain
    unsigned orphan_percent = 0;                       // of the detaches: the daemon dies at that moment
    unsigned stop_percent = 0;                         // of the daemon's jobs: it ends as systemd would have it
    unsigned stranger_percent = 0;                     // of the processes: they speak to the socket without the library
    unsigned squeeze_percent = 0;                      // of the attaches: few descriptors are left
    std::vector<std::uint64_t> deaths, daemon_deaths;  // steps
    unsigned call_deaths = 0, call_daemon_deaths = 0;  // in calls of the kernel, at most
    std::uint64_t daemon_away_ns = 0;                  // at most, after its death
    std::uint64_t rest_ns = 0;                         // of the director
    bool is_clean = false;                             // nothing fails: then nothing may be refused
    SchedulePlan schedule;
};

SystemPlan make_system_plan(std::uint64_t seed, const SystemLimits &limits);
std::string to_text(const SystemPlan &plan);

// What came of a run.
struct SystemResult {
    std::string failure;  // empty: clean
    std::uint64_t steps = 0, operations = 0, attaches = 0, refusals = 0, deaths = 0, daemons = 0, forks = 0, takes = 0;
    std::uint64_t pins = 0;
};
SystemResult run_system(const SystemPlan &plan, bool trace);

}  // namespace numacre::simulation
