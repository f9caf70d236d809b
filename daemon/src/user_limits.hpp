// How much of the attach socket one user may take up, so that none can keep the others out. Pure bookkeeping: the time
// comes from the caller.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>

namespace numacre::daemon {

// So many tokens a second, and as many at once after a pause.
class TokenBucket {
public:
    using Time = std::chrono::steady_clock::time_point;

    explicit TokenBucket(std::uint32_t tokens_per_second, Time now)
        : per_second_(tokens_per_second), tokens_(tokens_per_second), filled_(now) {}
    // False: there is none left.
    bool take(Time now);
    bool is_full(Time now) const { return tokens_at(now) >= per_second_; }

private:
    double tokens_at(Time now) const;

    double per_second_;
    double tokens_;
    Time filled_;
};

class UserLimits {
public:
    using Time = TokenBucket::Time;

    struct Limits {
        std::uint32_t connections = 1024;
        std::uint32_t silent_connections = 64;  // that have not attached yet
        // A connection carries three messages at most (attach, events, detach), so this bounds messages too.
        std::uint32_t connections_per_second = 1000;
    };
    struct Verdict {
        std::string refused;  // why not; empty: come in
        bool is_news = true;  // false: the same user was refused within the last second; a line each would be a flood
    };

    explicit UserLimits(Limits limits) : limits_(limits) {}

    // A connection of the user. If it is let in, it counts until closed().
    Verdict admit(std::uint32_t uid, Time now);
    // A client of a daemon before us, which counts like a connection until closed(). More of them than there may be are
    // not turned out: they keep new ones from coming in.
    void adopted(std::uint32_t uid, Time now);
    // One that was let in has attached.
    void attached(std::uint32_t uid);
    void closed(std::uint32_t uid, bool was_silent);

    std::size_t known_users() const { return users_.size(); }

private:
    struct User {
        TokenBucket bucket;
        std::uint32_t connections = 0;
        std::uint32_t silent = 0;
        std::optional<Time> told;  // when its last refusal was news
    };
    User &user_of(std::uint32_t uid, Time now);
    void forget_idle(Time now);

    static constexpr std::size_t kFirstSweep = 1024;
    static constexpr std::chrono::seconds kNewsPeriod{1};

    Limits limits_;
    std::unordered_map<std::uint32_t, User> users_;
    std::size_t next_sweep_ = kFirstSweep;
};

}  // namespace numacre::daemon
