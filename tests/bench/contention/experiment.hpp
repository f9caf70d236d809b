// One allocator, one workload, one number of cores, one schedule: counts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "allocators.hpp"
#include "simulator.hpp"
#include "workloads.hpp"

namespace numacre::contention {

struct Experiment {
    Task task;
    Schedule schedule = Schedule::random;
    std::uint64_t rounds = 2;  // counted, after one of warming up
    std::uint64_t steps_max = 20'000'000;
};

struct Result {
    Outcome outcome;
    std::vector<std::string> labels;  // of outcome.by_label
    std::uint64_t overlaps = 0;
    std::uint64_t refused = 0;
};

inline Result run_experiment(const Contender &contender, const Experiment &experiment) {
    const Task &task = experiment.task;
    // Slots and headers on top.
    Arena arena(task.frame_count * contender.arena_bytes_per_frame + (std::size_t{8} << 20));
    const auto allocator = contender.make(arena, task.frame_count, task.cores);
    const auto workload = Workload::make(task, *allocator);
    workload->prepare();
    const std::uint64_t round = workload->operations_per_round() * task.cores;
    Plan plan;
    plan.schedule = experiment.schedule;
    plan.cores = task.cores;
    plan.seed = task.seed;
    plan.warm_up_operations = round;
    plan.operations = round * experiment.rounds;
    plan.steps_max = experiment.steps_max;
    Simulator simulator(arena, plan);
    Result result;
    result.outcome = simulator.run([&workload](unsigned core) { workload->run(core); });
    result.labels = arena.label_names();
    result.overlaps = workload->overlaps();
    result.refused = workload->refused();
    return result;
}

}  // namespace numacre::contention
