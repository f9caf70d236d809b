#include "attach/connection_limits.hpp"

#include <algorithm>

namespace numacre::daemon {

ConnectionLimits::User &ConnectionLimits::user_of(std::uint32_t uid, Time now) {
    return users_.try_emplace(uid, User{TokenBucket(limits_.connections_per_second, now), 0, 0, std::nullopt})
        .first->second;
}

void ConnectionLimits::adopted(std::uint32_t uid, Time now) {
    ++user_of(uid, now).connections;
}

ConnectionLimits::Verdict ConnectionLimits::admit(std::uint32_t uid, Time now) {
    if (users_.size() >= next_sweep_) forget_idle(now);
    User &user = user_of(uid, now);
    const std::string who = "uid " + std::to_string(uid) + " ";
    Verdict verdict;
    if (!user.bucket.take(now))
        verdict.refused = who + "connects more than " + std::to_string(limits_.connections_per_second) +
                          " times a second: slow down, or raise --max-connections-per-second";
    else if (user.silent >= limits_.silent_connections)
        verdict.refused = who + "has " + std::to_string(user.silent) +
                          " connections that have not attached, a user's limit: attach with them, or close some";
    else if (user.connections >= limits_.connections)
        verdict.refused = who + "has its " + std::to_string(limits_.connections) +
                          " connections: close some, or raise --max-connections-per-user";
    if (verdict.refused.empty()) {
        ++user.connections;
        ++user.silent;
        return verdict;
    }
    verdict.is_news = !user.told || now - *user.told >= kNewsPeriod;
    if (verdict.is_news) user.told = now;
    return verdict;
}

void ConnectionLimits::attached(std::uint32_t uid) {
    if (const auto found = users_.find(uid); found != users_.end() && found->second.silent != 0) --found->second.silent;
}

void ConnectionLimits::closed(std::uint32_t uid, bool was_silent) {
    if (was_silent) attached(uid);
    const auto found = users_.find(uid);
    if (found != users_.end() && found->second.connections != 0) --found->second.connections;
}

bool ConnectionLimits::takes_event_fd(std::uint32_t uid) {
    const auto found = users_.find(uid);
    if (found == users_.end() || found->second.connections >= limits_.connections) return false;
    ++found->second.connections;
    return true;
}

// Forgets users without connections whose bucket is full: such a user is like one that has never come.
void ConnectionLimits::forget_idle(Time now) {
    std::erase_if(
        users_, [now](const auto &entry) { return entry.second.connections == 0 && entry.second.bucket.is_full(now); });
    next_sweep_ = std::max(kFirstSweep, 2 * users_.size());
}

void SilentConnections::remove(bool is_limited, std::uint32_t uid, Id id) {
    std::set<Id> &user = of(is_limited, uid);
    user.erase(id);
    if (is_limited && user.empty()) limited_.erase(uid);
}

std::size_t SilentConnections::count() const {
    std::size_t all = unlimited_.size();
    for (const auto &[uid, ids] : limited_) all += ids.size();
    return all;
}

std::optional<SilentConnections::Id> SilentConnections::first_to_go() const {
    const std::set<Id> *most = nullptr;
    for (const auto &[uid, ids] : limited_) {
        const bool is_more = most == nullptr || ids.size() > most->size();
        if (is_more || (ids.size() == most->size() && *ids.begin() < *most->begin())) most = &ids;
    }
    if (most == nullptr) most = &unlimited_;
    if (most->empty()) return std::nullopt;
    return *most->begin();
}

}  // namespace numacre::daemon
