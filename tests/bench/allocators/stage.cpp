#include "stage.hpp"

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <thread>
#include <vector>

#include "memory.hpp"

namespace numacre::bench {
namespace {

std::vector<int> allowed_cpus;

std::uint64_t clock_ns(clockid_t clock) {
    timespec time{};
    clock_gettime(clock, &time);
    return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000U + static_cast<std::uint64_t>(time.tv_nsec);
}

// A process that ends early ends the measurement; the others follow it.
[[noreturn]] void give_up_on(int status) {
    // With an exit status it has printed why.
    if (WIFSIGNALED(status)) std::fprintf(stderr, "allocators: a process died of: %s\n", strsignal(WTERMSIG(status)));
    std::exit(EXIT_FAILURE);
}

void wait_until_all(const std::atomic<std::uint64_t> &arrived, const Run &run) {
    // acquire, partner: the release in arrive.
    while (arrived.load(std::memory_order_acquire) != run.workers()) {
        int status = 0;
        if (run.processes != 0 && waitpid(-1, &status, WNOHANG) > 0) give_up_on(status);
        std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
}

void tell_phases(Stage &stage, const Run &run) {
    // release, partner: the acquire in wait_for.
    const auto tell = [&](Phase phase) { stage.phase.store(phase, std::memory_order_release); };
    wait_until_all(stage.prepared, run);
    tell(Phase::warm_up);
    std::this_thread::sleep_for(std::chrono::milliseconds(run.milliseconds / 5));
    tell(Phase::timed);
    std::this_thread::sleep_for(std::chrono::milliseconds(run.milliseconds));
    tell(Phase::stop);
    wait_until_all(stage.stopped, run);
    tell(Phase::finish);
    wait_until_all(stage.finished, run);
    tell(Phase::leave);
}

Outcome sum_up(const Stage &stage, const Run &run) {
    Outcome outcome;
    std::uint64_t begin = stage.seats[0].begin_ns, end = stage.seats[0].end_ns;
    for (std::uint64_t i = 0; i < run.workers(); ++i) {
        const Seat &seat = stage.seats[i];
        begin = std::min(begin, seat.begin_ns);
        end = std::max(end, seat.end_ns);
        outcome.pairs += seat.pairs;
        outcome.failed += seat.failed;
        outcome.cpu_ns += static_cast<double>(seat.cpu_end_ns - seat.cpu_begin_ns);
        outcome.filled = std::min(outcome.filled, seat.filled);
    }
    // relaxed: all workers have ended, and were waited for.
    outcome.overlaps = stage.overlaps.load(std::memory_order_relaxed);
    outcome.wall_ns = static_cast<double>(end - begin);
    return outcome;
}

using Worker = std::function<void(Stage &, std::uint64_t)>;

void in_threads(Stage &stage, const Run &run, const Worker &worker) {
    std::vector<std::thread> threads;
    for (std::uint64_t i = 0; i < run.workers(); ++i) threads.emplace_back([&, i] { worker(stage, i); });
    tell_phases(stage, run);
    for (std::thread &thread : threads) thread.join();
}

void in_processes(Stage &stage, const Run &run, const Worker &worker) {
    for (std::uint64_t i = 0; i < run.workers(); ++i) {
        const pid_t child = fork();
        if (child < 0) give_up("fork", -errno);
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            try {
                worker(stage, i);
            } catch (const std::exception &error) {
                std::fprintf(stderr, "allocators: %s\n", error.what());
                _exit(EXIT_FAILURE);
            }
            _exit(EXIT_SUCCESS);
        }
    }
    tell_phases(stage, run);
    int status = 0;
    while (wait(&status) > 0)
        if (status != 0) give_up_on(status);
}

}  // namespace

void Stage::wait_for(Phase wanted) const {
    while (phase.load(std::memory_order_acquire) < wanted) std::this_thread::sleep_for(std::chrono::microseconds(50));
}

std::uint64_t wall_ns() {
    return clock_ns(CLOCK_MONOTONIC);
}
std::uint64_t thread_cpu_ns() {
    return clock_ns(CLOCK_THREAD_CPUTIME_ID);
}

std::uint64_t memory_bytes() {
    return static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

void remember_cpus() {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) give_up("sched_getaffinity", -errno);
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
        if (CPU_ISSET(cpu, &set)) allowed_cpus.push_back(cpu);
}

void pin_to_cpu(std::uint64_t number) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(allowed_cpus[number % allowed_cpus.size()], &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0) give_up("sched_setaffinity", -errno);
}

bool gets_the_same(const std::function<void *()> &take, const std::function<void(void *)> &give_back) {
    struct Meeting {
        std::atomic<void *> theirs{nullptr};
        std::atomic<std::uint32_t> took{0};
    };
    const Memory memory(sizeof(Meeting), Memory::With::processes);
    Meeting &meeting = *new (memory.get()) Meeting;
    const auto take_and_give_back = [&](std::atomic<void *> &block) {
        // seq_cst, here and below: speed does not matter.
        block = take();
        ++meeting.took;
        while (meeting.took < 2) std::this_thread::yield();
        give_back(block);
    };
    const pid_t child = fork();
    if (child < 0) give_up("fork", -errno);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        take_and_give_back(meeting.theirs);
        _exit(EXIT_SUCCESS);
    }
    std::atomic<void *> ours{nullptr};
    take_and_give_back(ours);
    int status = 0;
    waitpid(child, &status, 0);
    if (status != 0) give_up_on(status);
    return ours == meeting.theirs;
}

Outcome on_stage(const Run &run, const Worker &worker) {
    const Memory memory(sizeof(Stage), Memory::With::processes);
    Stage &stage = *new (memory.get()) Stage;
    if (run.processes == 0)
        in_threads(stage, run, worker);
    else
        in_processes(stage, run, worker);
    return sum_up(stage, run);
}

void give_up(const char *what, int error) {
    std::fprintf(stderr, "allocators: %s: %s\n", what, strerror(-error));
    _exit(EXIT_FAILURE);
}

}  // namespace numacre::bench
