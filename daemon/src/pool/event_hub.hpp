// Tells subscribers what happens. Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "pool/event.hpp"

namespace numacre::daemon {

class EventHub {
public:
    // The handler is called from whatever thread publishes, and not any more once the returned object is destroyed
    // (which waits for a call that is under way, unless the handler itself does it).
    std::shared_ptr<void> subscribe(std::function<void(const Event &)> handler);
    // Fills in the time.
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
