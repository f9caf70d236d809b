// One watcher's events, between the daemon's threads and the watcher's stream.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>

#include "pool/event.hpp"

namespace numacre::daemon {

// Bounded: push() never waits and never grows it, so a watcher that does not read costs the daemon nothing but its
// queue. Thread-safe.
class EventQueue {
public:
    explicit EventQueue(std::size_t events_max) : events_max_(events_max) {}

    // Drops the oldest event when full. After close() it does nothing.
    void push(const Event &event);

    // Waits at most that long. Nothing: nobody pushed, or the queue is closed. After a loss the first thing that comes
    // is an event of kind "events_dropped" which says how many.
    std::optional<Event> pop(std::chrono::milliseconds wait);

    // Ends the wait of pop() at once.
    void close();

private:
    const std::size_t events_max_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Event> events_;
    std::uint64_t dropped_ = 0;
    bool closed_ = false;
};

}  // namespace numacre::daemon
