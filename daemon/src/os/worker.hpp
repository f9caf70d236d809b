// A thread that does jobs one at a time, in order. Each pool has a worker of its own, for jobs that take long or change
// the allocator's state from the daemon's side (populate, punch, bring online, recover). So the engine has the single
// daemon-side caller for each pool that it wants, and a pool whose clients keep the kernel from its files stops no
// other pool.
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
    // name: the thread's name, as `top -H` shows it; 15 characters at most.
    explicit Worker(const char *name = "numacred-work");
    // Runs all posted jobs, then ends; waits for that. On its own thread: ends after the job in hand, which may have
    // held the last reference to the object that contains the worker.
    ~Worker();
    Worker(const Worker &) = delete;
    Worker &operator=(const Worker &) = delete;

    // Thread-safe, does not block. A job that is posted after finish() is dropped.
    void post(std::function<void()> job);

    // Posts the job, blocks until it has run, and returns its result. Never from the worker itself (it would wait for
    // itself), nor from the event loop (it would stall every client), nor after finish().
    template <class Job>
    auto run(Job job) -> decltype(job()) {
        std::optional<decltype(job())> answer;
        run_and_wait([&] { answer.emplace(job()); });
        return *std::move(answer);
    }

    // Does the work of the destructor, except that the object stays and may still be posted to. Not from the worker
    // itself.
    void finish();

    // How long the job in hand has been running, or has waited for the thread; 0 if there is no job. Thread-safe.
    std::chrono::milliseconds busy_for() const;

private:
    struct Thread;  // only worker.cpp knows its type; the simulator has a fiber
    void run_and_wait(const std::function<void()> &job);

    std::shared_ptr<Thread> thread_;  // shared with the thread
};

}  // namespace numacre::daemon
