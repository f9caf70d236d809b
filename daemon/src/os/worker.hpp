// A thread that does jobs one at a time, in order. Each pool has one of its own, for what takes long or changes the
// allocator's state from the daemon's side (populate, punch, bring online, recover): so the engine has the single
// daemon-side caller a pool that it wants, and a pool whose clients keep the kernel from its files stops no other pool.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

namespace numacre::daemon {

class Worker {
public:
    // name: the thread's, as `top -H` shows it; 15 characters at most.
    explicit Worker(const char *name = "numacred-work");
    // Runs what has been posted, then ends; waits for that. On its own thread: ends after the job in hand, which may
    // have held the last reference to what the worker is part of.
    ~Worker();
    Worker(const Worker &) = delete;
    Worker &operator=(const Worker &) = delete;

    // Thread-safe, does not block. Dropped after finish().
    void post(std::function<void()> job);

    // Posts, and blocks until the job has run; its result is the result. Never from the worker itself (it would wait
    // for itself), nor from the event loop (it would stall every client), nor after finish().
    template <class Job>
    auto run(Job job) -> decltype(job()) {
        std::optional<decltype(job())> answer;
        run_and_wait([&] { answer.emplace(job()); });
        return *std::move(answer);
    }

    // As the destructor, but for the object, which may still be posted to. Not from the worker itself.
    void finish();

    // How long the job in hand has been running, or has waited for the thread; 0 without one. Thread-safe.
    std::chrono::milliseconds busy_for() const;

private:
    struct Thread;  // worker.cpp alone knows what it is; the simulator has a fiber
    void run_and_wait(const std::function<void()> &job);

    std::shared_ptr<Thread> thread_;  // the thread's as well
};

}  // namespace numacre::daemon
