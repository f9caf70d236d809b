// Distributes events to subscribers. Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "pool/event.hpp"

namespace numacre::daemon {

class EventHub {
public:
    // Calls the handler from whatever thread publishes, until the returned object is destroyed. The destruction waits
    // for a call that is under way, unless the handler itself destroys the object.
    std::shared_ptr<void> subscribe(std::function<void(const Event &)> handler);
    // Sets the event's time and calls the handlers.
    void publish(Event event);

private:
    struct Subscription {
        std::recursive_mutex mutex;
        std::function<void(const Event &)> handler;  // guarded by mutex
    };
    std::mutex mutex_;
    std::vector<std::weak_ptr<Subscription>> subscriptions_;  // guarded by mutex_
};

}  // namespace numacre::daemon
