// Runs one workload on one adaptor with all its workers, threads or processes, and times it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "adaptor.hpp"
#include "checked.hpp"
#include "relay.hpp"
#include "stage.hpp"
#include "workloads.hpp"

namespace numacre::bench {

template <class Adaptor>
void work(Adaptor &adaptor, const Run &run, Stage &stage, std::uint64_t number, Relay &relay) {
    pin_to_cpu(number);
    typename Adaptor::Thread thread(adaptor, number);
    with_workload(Adaptor::kTraits, thread, Part{run, number, relay}, [&](auto &workload) {
        workload.prepare();
        stage.arrive(stage.prepared);
        stage.wait_for(Phase::warm_up);
        while (stage.now() == Phase::warm_up) workload.step();
        Seat result;
        const std::uint64_t failed_before = workload.failed();
        result.cpu_begin_ns = thread_cpu_ns();
        result.begin_ns = wall_ns();
        // At least one: a step may take longer than the whole time.
        do result.pairs += workload.step();
        while (stage.now() == Phase::timed);
        result.end_ns = wall_ns();
        result.cpu_end_ns = thread_cpu_ns();
        result.failed = workload.failed() - failed_before;
        result.filled = workload.filled();
        stage.seats[number] = result;
        stage.arrive(stage.stopped);
        // Nobody passes anything on any more: what is here is everything.
        stage.wait_for(Phase::finish);
        workload.finish();
        // What a process still has goes with it, also what it has passed on and nobody has taken over yet.
        stage.arrive(stage.finished);
        stage.wait_for(Phase::leave);
    });
}

// All workers on one adaptor; with stamps if the run asks for them.
template <class Adaptor>
void work_maybe_checked(Adaptor &adaptor, const Run &run, Stage &stage, std::uint64_t number, Relay &relay) {
    if (run.check) {
        Checked<Adaptor> checked(adaptor, run, stage);
        work(checked, run, stage, number, relay);
    } else {
        work(adaptor, run, stage, number, relay);
    }
}

template <class Adaptor>
Outcome perform(Adaptor *shared, const Run &run) {
    Relay relay;
    return on_stage(run, [&](Stage &stage, std::uint64_t number) {
        if (shared != nullptr) {
            work_maybe_checked(*shared, run, stage, number, relay);
        } else {
            Adaptor own(run);
            work_maybe_checked(own, run, stage, number, relay);
        }
    });
}

// Of what is shared by fork, whether it is: a library may have private memory that nobody thought of.
template <class Adaptor>
void require_shared(Adaptor &adaptor, const Run &run) {
    std::optional<typename Adaptor::Thread> thread;
    const auto take = [&] {
        thread.emplace(adaptor, 0);
        return thread->allocate(run.size_bytes);
    };
    const auto give_back = [&](void *block) {
        if (block != nullptr) thread->free(block);
        thread.reset();
    };
    if (gets_the_same(take, give_back))
        throw Unavailable("what one process takes, another one gets too: its memory is not shared by fork");
}

template <class Adaptor>
Outcome measure(const Run &run) {
    constexpr Traits traits = Adaptor::kTraits;
    if (traits.writes_into_blocks && run.pool_bytes > memory_bytes() / 2)
        throw Unavailable("it writes into its blocks, and " + std::to_string(run.pool_bytes >> 20) +
                          " MiB of them are more than half of this machine's memory");
    const bool alone = run.processes != 0 && traits.sharing == Sharing::nothing;
    if (alone && run.workload == "larson") throw Unavailable("larson passes blocks on, and its processes share none");
    std::optional<Adaptor> adaptor(std::in_place, run);
    if (run.processes != 0) {
        if (traits.sharing == Sharing::by_fork)
            require_shared(*adaptor, run);
        else
            adaptor.reset();  // It worked; each process makes its own.
    }
    Adaptor *const shared = adaptor ? &*adaptor : nullptr;

    Run timed = run;
    timed.check = false;
    if (!run.check || !traits.has_blocks) {
        Outcome outcome = perform(shared, timed);
        outcome.alone = alone;
        return outcome;
    }
    Run checked = run;
    checked.milliseconds = std::min<std::uint64_t>(run.milliseconds, 20);
    const Outcome before = perform(shared, checked);
    Outcome outcome = perform(shared, timed);
    outcome.alone = alone;
    outcome.overlaps = before.overlaps;
    outcome.checked_pairs = before.pairs;
    outcome.failed += before.failed;
    outcome.filled = std::min(outcome.filled, before.filled);
    return outcome;
}

}  // namespace numacre::bench
