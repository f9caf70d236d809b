#include "control/control_gate.hpp"

#include <poll.h>
#include <pthread.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "os/close_timer.hpp"

namespace numacre::daemon {

namespace {

constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
// How long no connection is accepted after a shortage of descriptors or memory.
constexpr std::chrono::milliseconds kShortagePause{100};
// How long the caller may take to read the server's last bytes after the server has closed the connection.
constexpr std::chrono::milliseconds kLastWords{1000};
// The time after which the gate looks again at a caller that may send no more frames for now.
constexpr std::chrono::milliseconds kThrottle{2};

bool would_block(int error) {
    return error == EAGAIN || error == EINTR;
}

std::uint32_t uid_of(const Fd &connection) {
    ucred peer{};
    socklen_t size = sizeof peer;
    if (::getsockopt(connection.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return ~std::uint32_t{0};
    return peer.uid;
}

bool is_privileged(std::uint32_t uid) {
    return uid == 0 || uid == ::geteuid();
}

}  // namespace

bool FrameMeter::may_begin(unsigned char type, Time now) {
    if (of_user_ == nullptr) return true;
    if (type == kHeadersFrame) return of_user_->calls.take(now);
    if (type == kResetFrame) return of_user_->resets.take(now);
    return true;
}

std::optional<std::size_t> FrameMeter::admit(const char *bytes, std::size_t count, Time now) {
    std::size_t at = 0;
    while (at < count) {
        if (preface_seen_ < kPreface.size()) {
            if (bytes[at] != kPreface[preface_seen_]) return std::nullopt;
            ++preface_seen_;
            ++at;
        } else if (payload_left_ != 0) {
            const auto passed = std::min<std::size_t>(payload_left_, count - at);
            payload_left_ -= static_cast<std::uint32_t>(passed);
            at += passed;
        } else {
            if (header_seen_ == 0 && !bucket_.take(now)) return at;
            // The header begins with the payload's length in three bytes, high byte first; then the type, then the
            // flags.
            const auto byte = static_cast<unsigned char>(bytes[at]);
            if (header_seen_ < 3)
                length_ = length_ << 8 | byte;
            else if (header_seen_ == 3) {
                if (!may_begin(byte, now)) return at;
                type_ = byte;
            } else if (header_seen_ == 4) {
                if (type_ == kSettingsFrame && (byte & kAcknowledges) != 0) has_acknowledged_ = true;
                if (type_ == kHeadersFrame && !has_acknowledged_ && ++streams_before_ > kStreamsBeforeMax)
                    return std::nullopt;
            }
            ++at;
            if (++header_seen_ == kHeaderBytes) {
                payload_left_ = std::exchange(length_, 0);
                header_seen_ = 0;
                if (type_ == kHeadersFrame) header_block_ = payload_left_;
                if (type_ == kContinuationFrame) header_block_ += payload_left_;
                if (header_block_ > kHeaderBlockMax) return std::nullopt;
            }
        }
    }
    return at;
}

// Filled only when empty, so all of its bytes came by one read.
struct ControlGate::Buffer {
    std::array<char, std::size_t{16} * 1024> bytes{};
    std::size_t begin = 0, end = 0;

    bool is_empty() const { return begin == end; }
    const char *data() const { return bytes.data() + begin; }
    std::size_t size() const { return end - begin; }

    // Returns the result of recv(). To be called only when empty.
    ssize_t fill(const Fd &from) {
        const ssize_t got = ::recv(from.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
        begin = 0;
        end = got > 0 ? static_cast<std::size_t>(got) : 0;
        return got;
    }
    // False: the other end is gone.
    bool drain(const Fd &to, std::size_t most) {
        const ssize_t sent = ::send(to.get(), data(), std::min(most, size()), MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0) return would_block(errno);
        begin += static_cast<std::size_t>(sent);
        return true;
    }
};

struct ControlGate::Connection {
    Connection(Fd caller_end, Fd server_end, std::uint32_t whose, const ControlLimits &limits, Time now,
               CallAllowance *of_user)
        : caller(std::move(caller_end)),
          server(std::move(server_end)),
          uid(whose),
          meter(limits, now, of_user),
          made(now) {}

    Fd caller, server;
    std::uint32_t uid;
    FrameMeter meter;
    Buffer to_server, to_caller;
    std::size_t admitted = 0;  // bytes of to_server that may pass
    bool has_spoken = false;
    bool server_has_ended = false;
    Time made;
    Time unread_since{};  // the last time when bytes entered or left to_caller

    bool is_throttled() const { return !to_server.is_empty() && admitted == 0; }
    // The events to wait for, by the rules at the head of control_gate.hpp.
    pollfd caller_wait() const {
        short events = 0;
        if (to_server.is_empty() && to_caller.is_empty()) events |= POLLIN;
        if (!to_caller.is_empty()) events |= POLLOUT;
        return {caller.get(), events, 0};
    }
    pollfd server_wait() const {
        short events = 0;
        if (to_caller.is_empty()) events |= POLLIN;
        if (admitted != 0) events |= POLLOUT;
        // A server's end without events to wait for is left out: poll() would report its hang-up again and again while
        // the caller does not read.
        return {server_has_ended || events == 0 ? -1 : server.get(), events, 0};
    }
};

ControlGate::ControlGate(Fd listener, Serve serve, ControlLimits limits)
    : listener_(std::move(listener)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      serve_(std::move(serve)),
      limits_(limits),
      news_(1, 1, std::chrono::steady_clock::now()),
      thread_([this] { work(); }) {
    pthread_setname_np(thread_.native_handle(), "numacred-gate");
}

ControlGate::~ControlGate() {
    finish({});
}

void ControlGate::wake() const {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
}

void ControlGate::stop_accepting() {
    {
        const std::scoped_lock lock{mutex_};
        is_accepting_ = false;
    }
    wake();
}

void ControlGate::finish(std::chrono::milliseconds patience) {
    if (!thread_.joinable()) return;
    {
        const std::scoped_lock lock{mutex_};
        is_accepting_ = false;
        finish_until_ = std::chrono::steady_clock::now() + patience;
    }
    wake();
    thread_.join();
}

void ControlGate::tell(Time now, const char *what, const char *why) {
    if (news_.take(now)) spdlog::warn("control socket: {}: {}", what, why);
}

bool ControlGate::may_come_in(std::uint32_t uid) const {
    if (is_privileged(uid)) return connections_.size() < limits_.connections;
    const auto found = of_users_.find(uid);
    return connections_.size() + limits_.reserved < limits_.connections &&
           (found == of_users_.end() || found->second.connections < limits_.of_a_user);
}

void ControlGate::forget_idle_users(Time now) {
    std::erase_if(of_users_, [now](const auto &user) {
        return user.second.connections == 0 && user.second.allowance.is_full(now);
    });
}

void ControlGate::accept_all(Time now) {
    constexpr int kAtOnce = 16;
    for (int i = 0; i < kAtOnce; ++i) {
        // The pair is made first: an accepted caller can be told nothing, a caller in the queue simply waits.
        std::array<int, 2> ends{-1, -1};
        const bool paired = ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) == 0;
        Fd ours(ends[0]), theirs(ends[1]);
        Fd caller;
        if (paired) caller = Fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (!caller) {
            const int error = errno;
            if (paired && (would_block(error) || error == ECONNABORTED)) return;
            tell(now, "callers wait, for a connection cannot be accepted", std::strerror(error));
            accept_again_ = now + kShortagePause;
            return;
        }
        const std::uint32_t uid = uid_of(caller);
        if (!may_come_in(uid)) {
            tell(now, "a caller was turned away", "too many connections are open: end some");
            const CloseTimer::Armed armed(*close_timer_);
            caller.reset();
            continue;
        }
        const std::scoped_lock lock{mutex_};
        if (!is_accepting_) return;
        const int server_end = theirs.release();
        forget_idle_users(now);
        OfUser &user = of_users_.try_emplace(uid, OfUser{0, CallAllowance(limits_, now)}).first->second;
        ++user.connections;
        connections_.emplace_back(std::move(caller), std::move(ours), uid, limits_, now,
                                  is_privileged(uid) ? nullptr : &user.allowance);
        serve_(server_end, is_privileged(uid));
    }
}

bool ControlGate::pass(Connection &one, short caller_events, short server_events, Time now) {
    const bool caller_is_gone = (caller_events & (POLLHUP | POLLERR)) != 0;
    // The caller's last request may still be there, but the answer would have no reader.
    if (caller_is_gone) return false;
    if ((caller_events & POLLIN) != 0 && one.to_server.is_empty() && one.to_caller.is_empty()) {
        // Descriptors that were passed along are closed here (before Linux 6.16: refuse_descriptors()).
        const CloseTimer::Armed armed(*close_timer_);
        const ssize_t got = one.to_server.fill(one.caller);
        if (got == 0 || (got < 0 && !would_block(errno))) return false;
        one.has_spoken = one.has_spoken || got > 0;
    }
    if (!one.to_server.is_empty() && one.admitted == 0) {
        const auto admitted = one.meter.admit(one.to_server.data(), one.to_server.size(), now);
        if (!admitted) {
            tell(now, "a caller was cut off", "it does not speak HTTP/2, or does not acknowledge its limits");
            return false;
        }
        one.admitted = *admitted;
    }
    if (one.admitted != 0 && !one.server_has_ended) {
        const std::size_t before = one.to_server.size();
        if (!one.to_server.drain(one.server, one.admitted)) one.server_has_ended = true;
        one.admitted -= before - one.to_server.size();
    }
    if ((server_events & (POLLIN | POLLHUP | POLLERR)) != 0 && one.to_caller.is_empty()) {
        const ssize_t got = one.to_caller.fill(one.server);
        if (got == 0 || (got < 0 && !would_block(errno))) one.server_has_ended = true;
        one.unread_since = now;
    }
    if (!one.to_caller.is_empty()) {
        const std::size_t before = one.to_caller.size();
        if (!one.to_caller.drain(one.caller, before)) return false;
        if (one.to_caller.size() != before) one.unread_since = now;
    }
    return !one.server_has_ended || !one.to_caller.is_empty();
}

ControlGate::Time ControlGate::next_look(const Connection &one) const {
    Time next = Time::max();
    if (!one.has_spoken) next = one.made + limits_.silence;
    if (!one.to_caller.is_empty())
        next = std::min(next, one.unread_since + (one.server_has_ended ? kLastWords : limits_.stall));
    return next;
}

bool ControlGate::is_overdue(const Connection &one, Time now) const {
    return now >= next_look(one);
}

void ControlGate::work() {
    const CloseTimer close_timer;
    close_timer_ = &close_timer;
    std::vector<pollfd> waits;
    for (;;) {
        const Time begun = std::chrono::steady_clock::now();
        Time next = Time::max();
        bool is_accepting = false;
        {
            const std::scoped_lock lock{mutex_};
            is_accepting = is_accepting_;
            if (finish_until_) {
                if (connections_.empty() || begun >= *finish_until_) break;
                next = *finish_until_;
            }
        }
        const bool is_pausing = begun < accept_again_;
        if (is_accepting && is_pausing) next = std::min(next, accept_again_);
        waits.assign({{wake_.get(), POLLIN, 0}, {is_accepting && !is_pausing ? listener_.get() : -1, POLLIN, 0}});
        for (const Connection &one : connections_) {
            waits.push_back(one.caller_wait());
            waits.push_back(one.server_wait());
            next = std::min(next, one.is_throttled() ? begun + kThrottle : next_look(one));
        }
        int timeout = -1;
        if (next != Time::max())
            timeout = static_cast<int>(
                std::max<std::int64_t>(0, std::chrono::ceil<std::chrono::milliseconds>(next - begun).count()));
        if (::poll(waits.data(), waits.size(), timeout) < 0) continue;

        const Time now = std::chrono::steady_clock::now();
        if (waits[0].revents != 0) {
            std::uint64_t count = 0;
            [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &count, sizeof count);
        }
        auto wait = waits.begin() + 2;
        for (auto one = connections_.begin(); one != connections_.end(); wait += 2) {
            if (pass(*one, wait[0].revents, wait[1].revents, now) && !is_overdue(*one, now)) {
                ++one;
                continue;
            }
            --of_users_.at(one->uid).connections;
            const CloseTimer::Armed armed(*close_timer_);
            one = connections_.erase(one);
        }
        if (waits[1].revents != 0) accept_all(now);
    }
    const CloseTimer::Armed armed(close_timer);
    connections_.clear();
}

}  // namespace numacre::daemon
