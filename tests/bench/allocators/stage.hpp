// What the workers of one measurement share, be they threads or processes: the phase and each worker's result.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>

#include "adaptor.hpp"

namespace numacre::bench {

enum class Phase : std::uint32_t { prepare, warm_up, timed, stop, finish, leave };

struct alignas(64) Seat {
    std::uint64_t pairs = 0, failed = 0;
    std::uint64_t begin_ns = 0, end_ns = 0;
    std::uint64_t cpu_begin_ns = 0, cpu_end_ns = 0;
    double filled = 1;
};

struct Stage {
    alignas(64) std::atomic<Phase> phase{Phase::prepare};
    alignas(64) std::atomic<std::uint64_t> prepared{0};
    std::atomic<std::uint64_t> stopped{0};
    std::atomic<std::uint64_t> finished{0};
    std::atomic<std::uint64_t> overlaps{0};  // what checked.hpp found
    std::array<Seat, kWorkersMax> seats;

    // relaxed: nothing is handed over in the timed loop; arrive and wait_for do that.
    Phase now() const { return phase.load(std::memory_order_relaxed); }
    // release, partner: the acquire in on_stage. It carries the seats.
    static void arrive(std::atomic<std::uint64_t> &at) { at.fetch_add(1, std::memory_order_release); }
    // acquire, partner: the release in on_stage. It carries what the other workers gave to the relay.
    void wait_for(Phase wanted) const;
};

std::uint64_t wall_ns();
std::uint64_t thread_cpu_ns();
std::uint64_t memory_bytes();

// The CPUs that this process may use, asked before an allocator's library pins anything.
void remember_cpus();
// Worker `number` stays on the allowed CPUs in turn.
void pin_to_cpu(std::uint64_t number);

// Whether what one process takes, another one gets too: then they share nothing. Each of the two calls `take` at once
// with the other, and `give_back` after both took.
bool gets_the_same(const std::function<void *()> &take, const std::function<void(void *)> &give_back);

// Runs `worker` for each of the run's workers at once, and tells the phases.
Outcome on_stage(const Run &run, const std::function<void(Stage &stage, std::uint64_t number)> &worker);

// Ends the process: a wrong answer of the allocator, which no figure may hide.
[[noreturn]] void give_up(const char *what, int error);

}  // namespace numacre::bench
