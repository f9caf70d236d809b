// Replies with descriptors that users have not read yet. Descriptors in flight count against the limit of all daemons
// of our user (RLIMIT_NOFILE, for processes that lack CAP_SYS_RESOURCE): unread replies would keep all others from
// attaching. Belongs to the event loop's thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "attach/connection_limits.hpp"
#include "os/closer.hpp"
#include "os/event_loop.hpp"
#include "os/fd.hpp"

namespace numacre::daemon {

class UnreadReplies {
public:
    using SessionId = std::uint64_t;

    // most: descriptors that limited users together may leave unread. connection_of: of a session; -1: the session has
    // ended, or has no connection any more. The others outlive the object.
    UnreadReplies(EventLoop &loop, Closer &closer, ConnectionLimits &limits, std::size_t most,
                  std::function<int(SessionId)> connection_of);
    // Closes the connections that are left.
    ~UnreadReplies();
    UnreadReplies(const UnreadReplies &) = delete;
    UnreadReplies &operator=(const UnreadReplies &) = delete;

    // True if `descriptors` more would be too many for this user. Each limited user has an eighth of the part of the
    // limit that the others leave. So however many users take their share, the next one has a share, too.
    bool would_be_too_many(std::uint32_t uid, std::size_t descriptors);
    // A reply with so many descriptors is being sent to the session. They count with those that it has not read.
    void add(std::uint32_t uid, SessionId session, std::size_t descriptors);
    // Descriptors of the session that count.
    std::size_t of(std::uint32_t uid, SessionId session) const;
    // They count no more: the session has read them, or has not been sent them.
    void forget(std::uint32_t uid, SessionId session);
    // Closing the connection would not take back descriptors in flight: they stay with the other end, which may keep
    // them for as long as it likes. So a connection that a user leaves unread goes on counting as a connection.
    void close_when_read(Fd connection, std::uint32_t uid, std::size_t descriptors);
    // The number of connections that are closed when they are read.
    std::size_t connections() const { return left_count_; }

private:
    struct Left {
        Fd connection;
        std::size_t descriptors;
    };
    struct OfUser {
        std::map<SessionId, std::size_t> sessions;  // the number of descriptors that each has perhaps not read yet
        std::vector<Left> left;                     // of sessions that have ended without reading them
        bool is_empty() const { return sessions.empty() && left.empty(); }
        std::size_t descriptors() const;
    };

    void forget_read();
    void watch_left();

    static constexpr std::size_t kShare = 8;
    static constexpr std::chrono::milliseconds kAskedAgainAfter{10};
    static constexpr std::chrono::milliseconds kLeftPeriod{1000};

    EventLoop &loop_;
    Closer &closer_;
    ConnectionLimits &limits_;
    const std::size_t most_;
    const std::function<int(SessionId)> connection_of_;
    std::map<std::uint32_t, OfUser> users_;  // by uid, of limited users
    std::size_t left_count_ = 0;             // in all of users_
    std::chrono::steady_clock::time_point asked_{};
    bool is_watching_left_ = false;
};

}  // namespace numacre::daemon
