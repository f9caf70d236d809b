#include "os/latch.hpp"

#include <condition_variable>
#include <mutex>

namespace numacre::daemon {

struct Latch::Door {
    std::mutex mutex;
    std::condition_variable changed;
    bool is_open = false;  // guarded by mutex
};

Latch::Latch() : door_(std::make_unique<Door>()) {}
Latch::~Latch() = default;

void Latch::open() {
    // Notifies under the lock: the latch may be gone right after the unlock.
    const std::lock_guard lock(door_->mutex);
    door_->is_open = true;
    door_->changed.notify_all();
}

void Latch::wait() {
    std::unique_lock lock(door_->mutex);
    door_->changed.wait(lock, [this] { return door_->is_open; });
}

bool Latch::wait_for(std::chrono::milliseconds patience) {
    std::unique_lock lock(door_->mutex);
    return door_->changed.wait_for(lock, patience, [this] { return door_->is_open; });
}

}  // namespace numacre::daemon
