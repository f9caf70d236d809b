// Stands between the control socket and gRPC, which by itself has no limits that hold against a hostile caller:
// gRPC 1.51 accepts nothing any more after one shortage of descriptors, keeps everything that a caller does not read,
// and answers each frame that it gets. The gate accepts, counts connections, and passes bytes on by these rules:
//   - While a caller has an answer to read, nothing more is read from that caller. So what the daemon keeps for a
//     connection is bounded by the buffers of the sockets, whatever the caller sends.
//   - Frames pass at a bounded rate: what gRPC does for each frame of a flood, it does slowly.
//   - A caller that says nothing at first, or does not read for long, is cut off.
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
    std::size_t reserved = 16;               // of them, for root and the daemon's own user
    std::size_t of_a_user = 16;              // any other
    std::uint32_t frames_per_second = 1000;  // of a connection
    std::uint32_t frames_at_once = 64;
    std::chrono::milliseconds silence{10'000};  // until the first byte
    std::chrono::milliseconds stall{30'000};    // with an answer that is not read
};

// Follows the HTTP/2 frames of a stream of bytes. Bytes are admitted in order; each frame takes a token.
class FrameMeter {
public:
    using Time = TokenBucket::Time;
    FrameMeter(const ControlLimits &limits, Time now) : bucket_(limits.frames_per_second, limits.frames_at_once, now) {}
    // How many of these bytes, which follow those that were admitted last, may pass now. Nothing: no HTTP/2; or of a
    // caller that goes on opening streams without having acknowledged the server's settings: until then gRPC does not
    // limit their number; or of one whose header block goes on and on, which gRPC keeps before it looks at its size.
    std::optional<std::size_t> admit(const char *bytes, std::size_t count, Time now);

private:
    static constexpr std::size_t kHeaderBytes = 9;
    static constexpr unsigned char kHeadersFrame = 1, kSettingsFrame = 4, kContinuationFrame = 9, kAcknowledges = 1;
    static constexpr std::uint64_t kHeaderBlockMax = 64 * 1024;  // eight times what gRPC accepts in the end
    static constexpr unsigned kStreamsBeforeMax = 16;

    TokenBucket bucket_;
    std::size_t preface_seen_ = 0;
    std::size_t header_seen_ = 0;  // bytes of the header under way
    std::uint32_t length_ = 0;     // as far as the header has said it
    std::uint32_t payload_left_ = 0;
    unsigned char type_ = 0;          // of the header under way
    bool has_acknowledged_ = false;   // the server's settings
    unsigned streams_before_ = 0;     // opened before that
    std::uint64_t header_block_ = 0;  // bytes of a HEADERS frame and of those that continue it
};

class CloseTimer;

class ControlGate {
public:
    // serve gets the server's end of each connection, non-blocking, and owns it; called on the gate's thread.
    // is_privileged: root's, or the daemon's own user's.
    using Serve = std::function<void(int fd, bool is_privileged)>;
    ControlGate(Fd listener, Serve serve, ControlLimits limits);
    ControlGate(const ControlGate &) = delete;
    ControlGate &operator=(const ControlGate &) = delete;
    // Cuts off who is still there.
    ~ControlGate();

    // serve is not called any more when this returns; connections go on.
    void stop_accepting();
    // Once the server has closed its ends: what it has said last still goes out, for so long at most.
    void finish(std::chrono::milliseconds patience);

private:
    using Time = TokenBucket::Time;
    struct Buffer;
    struct Connection;

    void work();
    // Whether it stays.
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
    std::list<Connection> connections_;              // the thread's only
    std::map<std::uint32_t, std::size_t> of_users_;  // the thread's only
    Time accept_again_{};                            // the thread's only
    const CloseTimer *close_timer_ = nullptr;        // the thread's only, and lives there
    TokenBucket news_;                               // the thread's only
    std::mutex mutex_;
    bool is_accepting_ = true;          // guarded by mutex_
    std::optional<Time> finish_until_;  // guarded by mutex_
    std::thread thread_;                // last: it uses the others
};

}  // namespace numacre::daemon
