#include "os/closer.hpp"

#include <pthread.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "os/close_timer.hpp"

namespace numacre::daemon {

// Shared by the thread and the owner: the thread may outlive the owner.
struct Closer::Shared {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Fd> queue;     // guarded by mutex
    bool is_closing = false;  // guarded by mutex: a descriptor that has left the queue is being closed
    bool stopping = false;    // guarded by mutex

    void work() {
        const CloseTimer timer;
        std::unique_lock lock(mutex);
        for (;;) {
            changed.wait(lock, [this] { return stopping || !queue.empty(); });
            if (queue.empty()) return;
            Fd fd = std::move(queue.front());
            queue.pop_front();
            is_closing = true;
            lock.unlock();
            {
                const CloseTimer::Armed armed(timer);
                fd.reset();
            }
            lock.lock();
            is_closing = false;
        }
    }
};

Closer::Closer(bool at_once) : shared_(at_once ? nullptr : std::make_shared<Shared>()) {
    if (!shared_) return;
    std::thread thread([shared = shared_] { shared->work(); });
    pthread_setname_np(thread.native_handle(), "numacred-close");
    thread.detach();
}

Closer::~Closer() {
    if (!shared_) return;
    const std::lock_guard lock(shared_->mutex);
    shared_->stopping = true;
    shared_->changed.notify_one();
}

void Closer::close(Fd fd) {
    if (!fd || !shared_) return;  // the parameter closes it
    const std::lock_guard lock(shared_->mutex);
    shared_->queue.push_back(std::move(fd));
    shared_->changed.notify_one();
}

std::size_t Closer::backlog() const {
    if (!shared_) return 0;
    const std::lock_guard lock(shared_->mutex);
    return shared_->queue.size() + (shared_->is_closing ? 1 : 0);
}

}  // namespace numacre::daemon
