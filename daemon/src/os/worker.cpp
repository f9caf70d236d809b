#include "os/worker.hpp"

#include <pthread.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>

#include "os/latch.hpp"

namespace numacre::daemon {

struct Worker::Thread {
    using Time = std::chrono::steady_clock::time_point;

    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void()>> jobs;  // guarded by mutex
    bool stopping = false;                   // guarded by mutex
    std::optional<Time> begun;  // guarded by mutex: of the job in hand, or of the wait of the first job in the queue
    std::thread thread;

    void work() {
        std::unique_lock lock(mutex);
        for (;;) {
            changed.wait(lock, [this] { return stopping || !jobs.empty(); });
            if (jobs.empty()) return;
            begun = std::chrono::steady_clock::now();
            std::function<void()> job = std::move(jobs.front());
            jobs.pop_front();
            lock.unlock();
            job();
            job = nullptr;  // destroys all that the job holds here, not under the lock
            lock.lock();
            begun.reset();
            if (!jobs.empty()) begun = std::chrono::steady_clock::now();
        }
    }
    void stop() {
        {
            const std::lock_guard lock(mutex);
            stopping = true;
        }
        changed.notify_one();
    }
};

Worker::Worker(const char *name) : thread_(std::make_shared<Thread>()) {
    thread_->thread = std::thread([thread = thread_] { thread->work(); });
    pthread_setname_np(thread_->thread.native_handle(), name);
}

Worker::~Worker() {
    if (thread_->thread.get_id() != std::this_thread::get_id()) {
        finish();
        return;
    }
    thread_->stop();
    thread_->thread.detach();
}

void Worker::finish() {
    thread_->stop();
    if (thread_->thread.joinable()) thread_->thread.join();
}

void Worker::post(std::function<void()> job) {
    {
        const std::lock_guard lock(thread_->mutex);
        if (thread_->stopping) return;
        if (!thread_->begun) thread_->begun = std::chrono::steady_clock::now();
        thread_->jobs.push_back(std::move(job));
    }
    thread_->changed.notify_one();
}

std::chrono::milliseconds Worker::busy_for() const {
    const std::lock_guard lock(thread_->mutex);
    if (!thread_->begun) return std::chrono::milliseconds{0};
    return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - *thread_->begun);
}

void Worker::run_and_wait(const std::function<void()> &job) {
    Latch is_done;  // outlives the posted job: this frame waits
    std::exception_ptr thrown;
    post([&] {
        try {
            job();
        } catch (...) {
            thrown = std::current_exception();
        }
        is_done.open();
    });
    is_done.wait();
    if (thrown) std::rethrow_exception(thrown);
}

}  // namespace numacre::daemon
