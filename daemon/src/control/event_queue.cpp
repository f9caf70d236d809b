#include "control/event_queue.hpp"

#include <string>
#include <utility>

namespace numacre::daemon {

void EventQueue::push(const Event &event) {
    {
        const std::scoped_lock lock{mutex_};
        if (closed_) return;
        if (events_.size() == events_max_) {
            events_.pop_front();
            ++dropped_;
        }
        events_.push_back(event);
    }
    changed_.notify_one();
}

std::optional<Event> EventQueue::pop(std::chrono::milliseconds wait) {
    std::unique_lock lock{mutex_};
    changed_.wait_for(lock, wait, [this] { return closed_ || !events_.empty(); });
    if (closed_ || events_.empty()) return std::nullopt;
    if (dropped_ != 0) {
        Event notice;
        notice.time = events_.front().time;
        notice.kind = EventKind::events_dropped;
        notice.message = std::to_string(std::exchange(dropped_, 0)) +
                         " older events were dropped: this watcher reads more slowly than they come";
        return notice;
    }
    Event event = std::move(events_.front());
    events_.pop_front();
    return event;
}

void EventQueue::close() {
    {
        const std::scoped_lock lock{mutex_};
        closed_ = true;
    }
    changed_.notify_all();
}

}  // namespace numacre::daemon
