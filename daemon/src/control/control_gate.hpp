// The gate stands between the control socket and gRPC, which by itself has no limits that hold against a hostile
// caller: gRPC 1.51 accepts no further connection after one shortage of descriptors, keeps everything that a caller
// does not read, and answers each frame that it gets. The gate accepts connections, counts them, and passes bytes on by
// these rules:
//   - While a caller has an answer to read, no more bytes are read from that caller. So the daemon's memory for a
//     connection is bounded by the buffers of the sockets, whatever the caller sends.
//   - Frames pass at a bounded rate, which bounds the work that gRPC does for the frames of a flood.
//   - Calls of a user pass at a bounded rate on all connections together, and cancelled calls (RST_STREAM) at a lower
//     one. gRPC counts a cancelled call no more, but the call still takes its thread: callers that cancel at once would
//     take all of them (CVE-2023-44487). A caller that connects anew cancels as well.
//   - A caller that sends nothing at first, or does not read for long, is cut off.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/token_bucket.hpp"
#include "os/fd.hpp"

namespace numacre::daemon {

struct ControlLimits {
    std::size_t connections = 64;
    std::size_t reserved = 16;               // connections kept for root and the daemon's own user
    std::size_t of_a_user = 16;              // connections of any other user
    std::uint32_t frames_per_second = 1000;  // for each connection
    std::uint32_t frames_at_once = 64;
    // Of a user, root and the daemon's own user excepted.
    std::uint32_t calls_per_second = 100, calls_at_once = 200;
    std::uint32_t resets_per_second = 10, resets_at_once = 64;
    std::chrono::milliseconds silence{10'000};  // limit of the time until the first byte
    std::chrono::milliseconds stall{30'000};    // limit of the time for which an answer stays unread
};

// The calls that a user may still make, and cancel.
struct CallAllowance {
    CallAllowance(const ControlLimits &limits, TokenBucket::Time now)
        : calls(limits.calls_per_second, limits.calls_at_once, now),
          resets(limits.resets_per_second, limits.resets_at_once, now) {}
    bool is_full(TokenBucket::Time now) const { return calls.is_full(now) && resets.is_full(now); }

    TokenBucket calls, resets;
};

// Follows the HTTP/2 frames of a stream of bytes. Bytes are admitted in order; each frame takes a token.
class FrameMeter {
public:
    using Time = TokenBucket::Time;
    // of_user: outlives the meter. Null: calls and cancelled calls are not counted.
    FrameMeter(const ControlLimits &limits, Time now, CallAllowance *of_user = nullptr)
        : bucket_(limits.frames_per_second, limits.frames_at_once, now), of_user_(of_user) {}
    // Returns how many of these bytes may pass now. They follow the bytes that were admitted last. Returns no value for
    // a caller to cut off: the bytes are not HTTP/2; or the caller goes on opening streams without having acknowledged
    // the server's settings (gRPC does not limit the number of streams before that); or a header block grows without
    // end (gRPC keeps it before it looks at its size).
    std::optional<std::size_t> admit(const char *bytes, std::size_t count, Time now);

private:
    static constexpr std::size_t kHeaderBytes = 9;
    static constexpr unsigned char kHeadersFrame = 1, kResetFrame = 3, kSettingsFrame = 4, kContinuationFrame = 9;
    static constexpr unsigned char kAcknowledges = 1;
    bool may_begin(unsigned char type, Time now);

    static constexpr std::uint64_t kHeaderBlockMax = 64ULL * 1024;  // eight times what gRPC accepts in the end
    static constexpr unsigned kStreamsBeforeMax = 16;

    TokenBucket bucket_;
    CallAllowance *of_user_;
    std::size_t preface_seen_ = 0;
    std::size_t header_seen_ = 0;  // bytes of the header under way
    std::uint32_t length_ = 0;     // from the bytes of the header seen so far
    std::uint32_t payload_left_ = 0;
    unsigned char type_ = 0;          // of the header under way
    bool has_acknowledged_ = false;   // the caller has acknowledged the server's settings
    unsigned streams_before_ = 0;     // streams opened before the acknowledgement
    std::uint64_t header_block_ = 0;  // bytes of a HEADERS frame and of its CONTINUATION frames
};

class CloseTimer;

class ControlGate {
public:
    // The gate calls serve on its own thread, with the server's end of each connection: non-blocking, owned by serve.
    // is_privileged: the caller is root or the daemon's own user.
    using Serve = std::function<void(int fd, bool is_privileged)>;
    ControlGate(Fd listener, Serve serve, ControlLimits limits);
    ControlGate(const ControlGate &) = delete;
    ControlGate &operator=(const ControlGate &) = delete;
    // Cuts off all remaining connections.
    ~ControlGate();

    // After this returns, serve is not called any more; open connections go on.
    void stop_accepting();
    // To be called after the server has closed its ends: sends the server's last bytes out, for at most `patience`.
    void finish(std::chrono::milliseconds patience);

private:
    using Time = TokenBucket::Time;
    struct Buffer;
    struct Connection;

    void work();
    // Returns false if the connection has to be closed.
    bool pass(Connection &connection, short caller_events, short server_events, Time now);
    bool is_overdue(const Connection &connection, Time now) const;
    Time next_look(const Connection &connection) const;
    void accept_all(Time now);
    bool may_come_in(std::uint32_t uid) const;
    void forget_idle_users(Time now);
    void tell(Time now, const char *what, const char *why);
    void wake() const;

    Fd listener_;
    Fd wake_;
    const Serve serve_;
    const ControlLimits limits_;
    // A user whose allowance is not full yet stays when the last connection has gone.
    struct OfUser {
        std::size_t connections = 0;
        CallAllowance allowance;
    };

    // These are used by the thread only, which also owns the timer.
    std::map<std::uint32_t, OfUser> of_users_;  // by uid; outlives the connections, whose meters point into it
    std::list<Connection> connections_;
    Time accept_again_{};
    const CloseTimer *close_timer_ = nullptr;
    TokenBucket news_;
    std::mutex mutex_;
    bool is_accepting_ = true;          // guarded by mutex_
    std::optional<Time> finish_until_;  // guarded by mutex_
    std::thread thread_;                // the last member: the thread uses the others
};

}  // namespace numacre::daemon
