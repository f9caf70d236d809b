// The events of one watcher, between the daemon's threads and the watcher's stream.
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

// The queue is bounded: push() never waits and never grows it, so a watcher that does not read costs the daemon only
// the queue. Thread-safe.
class EventQueue {
public:
    explicit EventQueue(std::size_t events_max) : events_max_(events_max) {}

    // Drops the oldest event when the queue is full. Does nothing after close().
    void push(const Event &event);

    // Waits at most `wait`. No value: no event came, or the queue is closed. After a loss the next result is an event
    // of kind "events_dropped", which gives the number of lost events.
    std::optional<Event> pop(std::chrono::milliseconds wait);

    // Ends a waiting pop() at once.
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
