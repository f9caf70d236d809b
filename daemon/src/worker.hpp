// The thread that does what takes long or changes the allocator's state from the daemon's side: populate, punch, bring
// online, recover. One at a time, in order, so that the engine has the single daemon-side caller that it wants.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <thread>

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
        std::packaged_task<decltype(job())()> task(std::move(job));
        auto answer = task.get_future();
        post([&task] { task(); });  // outlives the post: this frame waits
        return answer.get();
    }

private:
    void work();

    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::function<void()>> jobs_;  // guarded by mutex_
    bool stopping_ = false;                   // guarded by mutex_
    std::thread thread_;                      // last: it uses the others
};

}  // namespace numacre::daemon
