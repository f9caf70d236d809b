#include "relay.hpp"

#include <mutex>
#include <new>
#include <stdexcept>

namespace numacre::bench {

Relay::Mutex::Mutex() {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    const int error = pthread_mutex_init(&mutex_, &attributes);
    pthread_mutexattr_destroy(&attributes);
    if (error != 0) throw std::runtime_error("no mutex that processes can share");
}

Relay::Relay() : memory_(sizeof(Shared), Memory::With::processes), shared_(new (memory_.get()) Shared) {}

void Relay::give(std::uint64_t worker, Array &array) {
    Box &box = shared_->boxes[worker];
    const std::lock_guard lock(box.mutex);
    box.arrays[box.count++] = static_cast<std::uint16_t>(&array - shared_->arrays.data());
}

Relay::Array *Relay::take(std::uint64_t worker) {
    Box &box = shared_->boxes[worker];
    const std::lock_guard lock(box.mutex);
    return box.count == 0 ? nullptr : &shared_->arrays[box.arrays[--box.count]];
}

}  // namespace numacre::bench
