// The gate stands between the control socket and gRPC, which by itself has no limits that hold against a hostile
// caller: gRPC 1.51 accepts no further connection after one shortage of descriptors, keeps everything that a caller
// does not read, and answers each frame that it gets. The gate accepts connections, counts them, and passes bytes on by
// these rules:
//   - While a caller has an answer to read, no more bytes are read from that caller. So the daemon's memory for a
//     connection is bounded by the buffers of the sockets, whatever the caller sends.
//   - Frames pass at a bounded rate, which bounds the work that gRPC does for the frames of a flood.
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
    std::chrono::milliseconds silence{10'000};  // limit of the time until the first byte
    std::chrono::milliseconds stall{30'000};    // limit of the time for which an answer stays unread
};

// Follows the HTTP/2 frames of a stream of bytes. Bytes are admitted in order; each frame takes a token.
class FrameMeter {
public:
    using Time = TokenBucket::Time;
    FrameMeter(const ControlLimits &limits, Time now) : bucket_(limits.frames_per_second, limits.frames_at_once, now) {}
    // Returns how many of these bytes may pass now. They follow the bytes that were admitted last. Returns no value for
    // a caller to cut off: the bytes are not HTTP/2; or the caller goes on opening streams without having acknowledged
    // the server's settings (gRPC does not limit the number of streams before that); or a header block grows without
    // end (gRPC keeps it before it looks at its size).
    std::optional<std::size_t> admit(const char *bytes, std::size_t count, Time now);

private:
    static constexpr std::size_t kHeaderBytes = 9;
    static constexpr unsigned char kHeadersFrame = 1, kSettingsFrame = 4, kContinuationFrame = 9, kAcknowledges = 1;
    static constexpr std::uint64_t kHeaderBlockMax = 64ULL * 1024;  // eight times what gRPC accepts in the end
    static constexpr unsigned kStreamsBeforeMax = 16;

    TokenBucket bucket_;
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
    void tell(Time now, const char *what, const char *why);
    void wake() const;

    Fd listener_;
    Fd wake_;
    const Serve serve_;
    const ControlLimits limits_;
    std::list<Connection> connections_;              // used by the thread only
    std::map<std::uint32_t, std::size_t> of_users_;  // used by the thread only
    Time accept_again_{};                            // used by the thread only
    const CloseTimer *close_timer_ = nullptr;        // used by the thread only, which also owns the timer
    TokenBucket news_;                               // used by the thread only
    std::mutex mutex_;
    bool is_accepting_ = true;          // guarded by mutex_
    std::optional<Time> finish_until_;  // guarded by mutex_
    std::thread thread_;                // the last member: the thread uses the others
};

}  // namespace numacre::daemon
