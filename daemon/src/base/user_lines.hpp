// How much of the log one user can bring about. Pure bookkeeping: the time comes from the caller.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/token_bucket.hpp"

namespace numacre::daemon {

// Which of the lines of one kind get into the log: of each user, and of all users together, so many and no more. Those
// that do not are counted in the user's next one.
class UserLines {
public:
    using Time = TokenBucket::Time;
    // Of each user, after a pause; then it is kPerSecond.
    static constexpr std::uint32_t kRefusalsAtOnce = 10, kClientsAtOnce = 50;

    UserLines(Time now, std::uint32_t at_once) : at_once_(at_once), all_(kAllPerSecond, kAllAtOnce * at_once, now) {}
    // Nothing: no line. Else how many of the user's had none since the last that had.
    std::optional<std::uint64_t> line_for(std::uint32_t uid, Time now) {
        // A user whose bucket is full is like one that has never come. Should all be busy, their counts are given up:
        // what is kept stays bounded.
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
