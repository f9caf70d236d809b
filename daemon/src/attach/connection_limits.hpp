// Limits one user's share of the attach socket, so that no user can keep the others out. Pure bookkeeping: the caller
// passes the time.
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
        std::uint32_t silent_connections = 64;  // connections that have not attached yet
        // A connection carries few messages (attach, events until it gets a descriptor, detach), so this bounds
        // messages too.
        std::uint32_t connections_per_second = 1000;
    };
    struct Verdict {
        std::string refused;  // the reason of a refusal; empty: admitted
        bool is_news = true;  // false: this user was refused within the last second; a line for each would be a flood
    };

    explicit ConnectionLimits(Limits limits) : limits_(limits) {}

    // Asks for a connection of the user. An admitted connection counts until closed().
    Verdict admit(std::uint32_t uid, Time now);
    // Counts a client of an earlier daemon like a connection, until closed(). Adopted clients beyond the limit are not
    // turned out: they keep new connections from coming in.
    void adopted(std::uint32_t uid, Time now);
    // An admitted connection has attached.
    void attached(std::uint32_t uid);
    void closed(std::uint32_t uid, bool was_silent);
    // Counts a descriptor for events like a connection, until closed(). False: the user has all its connections
    // already.
    bool takes_event_fd(std::uint32_t uid);

    std::size_t known_users() const { return users_.size(); }

private:
    struct User {
        TokenBucket bucket;
        std::uint32_t connections = 0;
        std::uint32_t silent = 0;
        std::optional<Time> told;  // the time of the last refusal that was news
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
// who has fewer of them than another is never the one to give way, so a user who comes to attach gets in.
class SilentConnections {
public:
    using Id = std::uint64_t;  // grows with each connection

    // is_limited: the user is neither root nor the daemon's own.
    void add(bool is_limited, std::uint32_t uid, Id id) { of(is_limited, uid).insert(id); }
    void remove(bool is_limited, std::uint32_t uid, Id id);
    std::size_t count() const;
    // The oldest of the limited user who has most of them; the oldest of all if no limited user has any.
    std::optional<Id> first_to_go() const;

private:
    std::set<Id> &of(bool is_limited, std::uint32_t uid) { return is_limited ? limited_[uid] : unlimited_; }

    std::map<std::uint32_t, std::set<Id>> limited_;  // by uid; none is empty
    std::set<Id> unlimited_;
};

}  // namespace numacre::daemon
