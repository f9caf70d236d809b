#include "worker.hpp"

#include <pthread.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

namespace numacre::daemon {

struct Worker::Thread {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void()>> jobs;  // guarded by mutex
    bool stopping = false;                   // guarded by mutex
    std::thread thread;                      // last: it uses the others

    Thread() : thread([this] { work(); }) { pthread_setname_np(thread.native_handle(), "numacred-work"); }

    void work() {
        std::unique_lock lock(mutex);
        for (;;) {
            changed.wait(lock, [this] { return stopping || !jobs.empty(); });
            if (jobs.empty()) return;
            const std::function<void()> job = std::move(jobs.front());
            jobs.pop_front();
            lock.unlock();
            job();
            lock.lock();
        }
    }
};

Worker::Worker() : thread_(std::make_unique<Thread>()) {}

Worker::~Worker() {
    {
        const std::lock_guard lock(thread_->mutex);
        thread_->stopping = true;
    }
    thread_->changed.notify_one();
    thread_->thread.join();
}

void Worker::post(std::function<void()> job) {
    {
        const std::lock_guard lock(thread_->mutex);
        thread_->jobs.push_back(std::move(job));
    }
    thread_->changed.notify_one();
}

void Worker::run_and_wait(const std::function<void()> &job) {
    struct Answer {
        std::mutex mutex;
        std::condition_variable changed;
        bool is_there = false;  // guarded by mutex
        std::exception_ptr thrown;
    } answer;  // outlives the post: this frame waits
    post([&job, &answer] {
        try {
            job();
        } catch (...) {
            answer.thrown = std::current_exception();
        }
        // Told under the lock: the frame may be gone the moment after.
        const std::lock_guard lock(answer.mutex);
        answer.is_there = true;
        answer.changed.notify_one();
    });
    std::unique_lock lock(answer.mutex);
    answer.changed.wait(lock, [&answer] { return answer.is_there; });
    if (answer.thrown) std::rethrow_exception(answer.thrown);
}

}  // namespace numacre::daemon
