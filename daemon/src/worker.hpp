// The thread that does what takes long or changes the allocator's state from the daemon's side: populate, punch, bring
// online, recover. One at a time, in order, so that the engine has the single daemon-side caller that it wants.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

namespace numacre::daemon {

class Worker {
public:
    Worker();
    // Runs what has been posted, then ends.
    ~Worker();
    Worker(const Worker &) = delete;
    Worker &operator=(const Worker &) = delete;

    // Thread-safe, does not block.
    void post(std::function<void()> job);

    // Posts, and blocks until the job has run; its result is the result. Never from the worker itself (it would wait
    // for itself) nor from the event loop (it would stall every client).
    template <class Job>
    auto run(Job job) -> decltype(job()) {
        std::optional<decltype(job())> answer;
        run_and_wait([&] { answer.emplace(job()); });
        return *std::move(answer);
    }

private:
    struct Thread;  // worker.cpp alone knows what it is; the simulator has a fiber
    void run_and_wait(const std::function<void()> &job);

    std::unique_ptr<Thread> thread_;
};

}  // namespace numacre::daemon
