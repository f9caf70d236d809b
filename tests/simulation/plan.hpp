// All that a seed decides, before anything runs. Limits make a plan smaller and leave the rest of it as it is: that is
// how a failing seed shrinks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "scheduler.hpp"

namespace numacre::simulation {

// Upper bounds of what a seed draws, as they stand on the command line.
struct Limits {
    std::uint64_t processes = 4;
    std::uint64_t threads = 4;       // of a process
    std::uint64_t operations = 120;  // of a thread in a round
    std::uint64_t rounds = 3;
    std::uint64_t numa_nodes = 8;
    std::uint64_t frames = 5000;
    std::uint64_t deaths = 6;
    std::uint64_t daemon_deaths = 4;
    std::uint64_t jobs = 1000;   // of the daemon in a round, beside what it must
    std::uint64_t faults = 1;    // 0: nobody stands still, nothing fails without cause
    std::uint64_t steps = 0;     // 0: as the seed says. Then no new operations begin
    std::uint64_t schedule = 0;  // another one for the same work
    std::uint64_t theme = 8;     // below 8: of all seeds
};

struct Plan {
    std::uint64_t seed = 0;
    std::uint32_t frame_bytes = 4096;
    unsigned largest_order = 0;
    std::uint64_t chunks = 1;
    unsigned numa_nodes = 1;
    unsigned processes = 1;
    std::vector<unsigned> threads;  // by process
    unsigned operations = 1;
    unsigned rounds = 1;
    std::uint64_t steps = 0;
    std::vector<std::uint64_t> deaths;         // steps at which a client process dies
    std::vector<std::uint64_t> daemon_deaths;  // steps
    unsigned point_deaths = 0;                 // at named crash points, at most
    std::uint64_t jobs = 0;
    // How likely an operation is, in parts of their sum.
    struct Work {
        unsigned allocate, allocate_on, free, free_uncached, bulk, free_bulk, publish, share, take, withdraw, ask, stop;
    } work{};
    unsigned fill_percent = 50;  // of the pool: below it threads rather allocate
    unsigned wait_percent = 0;   // of the allocations past the cache
    unsigned compact_percent = 0;
    unsigned strict_percent = 50;
    unsigned in_play_max = 0;   // blocks that are held, or in the hands of a call, of all threads; 0: any number
    unsigned held_max = 0;      // of a thread; 0: as fill_percent says
    unsigned order_spread = 0;  // 0: mostly small, 1: all alike, 2: mostly large, 3: one order, 4: small and largest
    unsigned one_order = 0;
    unsigned fit = 0;
    bool checks_frees = false;
    bool counts = false;           // what processes hold is counted from the beginning
    unsigned offline_percent = 0;  // of the chunks, at the beginning
    bool seizes = false;           // what the dead held is the daemon's for a while
    // The daemon's jobs, as above.
    struct Jobs {
        unsigned nudge, nudge_twice, drain, offline, online, audit, snapshot, pressure, age, quota;
    } daemon{};
    std::uint64_t daemon_rest_ns = 0;
    SchedulePlan schedule;
};

Plan make_plan(std::uint64_t seed, const Limits &limits);
std::string to_text(const Plan &plan);

// What came of a run.
struct Result {
    std::string failure;  // empty: clean
    std::uint64_t steps = 0;
    std::uint64_t operations = 0;
    std::uint64_t deaths = 0;
    std::uint64_t hand_offs = 0;
    std::uint64_t refusals = 0;
};
// trace: each operation and fault is printed.
Result run(const Plan &plan, bool trace);

}  // namespace numacre::simulation
