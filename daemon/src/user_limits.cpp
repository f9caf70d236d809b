#include "user_limits.hpp"

#include <algorithm>

namespace numacre::daemon {

double TokenBucket::tokens_at(Time now) const {
    if (now <= filled_) return tokens_;
    return std::min(per_second_, tokens_ + std::chrono::duration<double>(now - filled_).count() * per_second_);
}

bool TokenBucket::take(Time now) {
    tokens_ = tokens_at(now);
    filled_ = std::max(filled_, now);
    if (tokens_ < 1) return false;
    tokens_ -= 1;
    return true;
}

UserLimits::User &UserLimits::user_of(std::uint32_t uid, Time now) {
    return users_.try_emplace(uid, User{TokenBucket(limits_.connections_per_second, now), 0, 0, std::nullopt})
        .first->second;
}

void UserLimits::adopted(std::uint32_t uid, Time now) {
    ++user_of(uid, now).connections;
}

UserLimits::Verdict UserLimits::admit(std::uint32_t uid, Time now) {
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

void UserLimits::attached(std::uint32_t uid) {
    if (const auto found = users_.find(uid); found != users_.end() && found->second.silent != 0) --found->second.silent;
}

void UserLimits::closed(std::uint32_t uid, bool was_silent) {
    if (was_silent) attached(uid);
    const auto found = users_.find(uid);
    if (found != users_.end() && found->second.connections != 0) --found->second.connections;
}

// A user without connections whose bucket is full is like one that has never come.
void UserLimits::forget_idle(Time now) {
    std::erase_if(
        users_, [now](const auto &entry) { return entry.second.connections == 0 && entry.second.bucket.is_full(now); });
    next_sweep_ = std::max(kFirstSweep, 2 * users_.size());
}

}  // namespace numacre::daemon
