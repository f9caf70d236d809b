// How much of the attach socket one user may take up, so that none can keep the others out. Pure bookkeeping: the time
// comes from the caller.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>

#include "base/token_bucket.hpp"

namespace numacre::daemon {

class ConnectionLimits {
public:
    using Time = TokenBucket::Time;

    struct Limits {
        std::uint32_t connections = 1024;
        std::uint32_t silent_connections = 64;  // that have not attached yet
        // A connection carries few messages (attach, events until it gets a descriptor, detach), so this bounds
        // messages too.
        std::uint32_t connections_per_second = 1000;
    };
    struct Verdict {
        std::string refused;  // why not; empty: come in
        bool is_news = true;  // false: the same user was refused within the last second; a line each would be a flood
    };

    explicit ConnectionLimits(Limits limits) : limits_(limits) {}

    // A connection of the user. If it is let in, it counts until closed().
    Verdict admit(std::uint32_t uid, Time now);
    // A client of a daemon before us, which counts like a connection until closed(). More of them than there may be are
    // not turned out: they keep new ones from coming in.
    void adopted(std::uint32_t uid, Time now);
    // One that was let in has attached.
    void attached(std::uint32_t uid);
    void closed(std::uint32_t uid, bool was_silent);
    // A descriptor for events, which counts like a connection until closed(). False: the user has its connections.
    bool takes_event_fd(std::uint32_t uid);

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

// Connections that have not attached yet, by age, so that one can be closed to make room for the next. A limited user
// who has fewer of them than another is never the one to give way: whoever comes to attach gets in.
class SilentConnections {
public:
    using Id = std::uint64_t;  // grows with each connection

    // is_limited: of a user who is neither root nor the daemon's own.
    void add(bool is_limited, std::uint32_t uid, Id id) { of(is_limited, uid).insert(id); }
    void remove(bool is_limited, std::uint32_t uid, Id id);
    std::size_t count() const;
    // The oldest of the limited user who has most; the oldest of all where no limited user has any.
    std::optional<Id> first_to_go() const;

private:
    std::set<Id> &of(bool is_limited, std::uint32_t uid) { return is_limited ? limited_[uid] : unlimited_; }

    std::map<std::uint32_t, std::set<Id>> limited_;  // by uid; none is empty
    std::set<Id> unlimited_;
};

}  // namespace numacre::daemon
