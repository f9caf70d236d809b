#include "pool/event_hub.hpp"

#include <algorithm>
#include <utility>

namespace numacre::daemon {

std::shared_ptr<void> EventHub::subscribe(std::function<void(const Event &)> handler) {
    auto subscription = std::make_shared<Subscription>();
    subscription->handler = std::move(handler);
    {
        const std::lock_guard lock(mutex_);
        std::erase_if(subscriptions_, [](const auto &entry) { return entry.expired(); });
        subscriptions_.push_back(subscription);
    }
    // publish() may hold a reference of its own, so the end of the caller's reference has to switch the handler off.
    Subscription *const key = subscription.get();
    return std::shared_ptr<void>(key, [kept = std::move(subscription)](void *) {
        std::function<void(const Event &)> dropped;  // destroyed after the lock is released
        const std::lock_guard lock(kept->mutex);
        dropped.swap(kept->handler);
    });
}

void EventHub::publish(Event event) {
    event.time = std::chrono::system_clock::now();
    std::vector<std::shared_ptr<Subscription>> live;
    {
        const std::lock_guard lock(mutex_);
        for (const auto &entry : subscriptions_)
            if (auto subscription = entry.lock()) live.push_back(std::move(subscription));
    }
    for (const auto &subscription : live) {
        const std::lock_guard lock(subscription->mutex);
        // A copy: the handler may end its own subscription.
        if (const auto handler = subscription->handler) handler(event);
    }
}

}  // namespace numacre::daemon
