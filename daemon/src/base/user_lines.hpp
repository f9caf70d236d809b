// Limits the share of the log that one user can cause. Pure bookkeeping: the caller passes the time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/token_bucket.hpp"

namespace numacre::daemon {

// Decides which lines of one kind get into the log. There is a limit for each user, and one for all users together.
// Lines that are left out are counted, and the user's next line has the count.
class UserLines {
public:
    using Time = TokenBucket::Time;
    // The number of a user's lines after a pause; then the rate is kPerSecond.
    static constexpr std::uint32_t kRefusalsAtOnce = 10, kClientsAtOnce = 50;

    UserLines(Time now, std::uint32_t at_once) : at_once_(at_once), all_(kAllPerSecond, kAllAtOnce * at_once, now) {}
    // No value: no line. Else the number of the user's lines that were left out since the last line.
    std::optional<std::uint64_t> line_for(std::uint32_t uid, Time now) {
        // A user whose bucket is full is like one that has never come, and is forgotten. If all users are busy, their
        // counts are given up: the table stays bounded.
        if (users_.size() >= kUsersMax && !users_.contains(uid)) {
            std::erase_if(users_, [now](const auto &entry) { return entry.second.bucket.is_full(now); });
            if (users_.size() >= kUsersMax) users_.clear();
        }
        User &user = users_.try_emplace(uid, User{TokenBucket(kPerSecond, at_once_, now)}).first->second;
        if (!user.bucket.take(now) || !all_.take(now)) {
            ++user.left_out;
            return std::nullopt;
        }
        return std::exchange(user.left_out, 0);
    }

private:
    struct User {
        TokenBucket bucket;
        std::uint64_t left_out = 0;
    };
    static constexpr std::uint32_t kPerSecond = 1, kAllPerSecond = 20, kAllAtOnce = 20;
    static constexpr std::size_t kUsersMax = 1024;

    std::uint32_t at_once_;
    std::unordered_map<std::uint32_t, User> users_;
    TokenBucket all_;
};

}  // namespace numacre::daemon
