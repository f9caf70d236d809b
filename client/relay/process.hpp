// Descriptors with an owner, and the signals that ask a side to stop.
#pragma once

#include <utility>

namespace relay {

// Owns a file descriptor.
class Fd {
public:
    Fd() = default;
    explicit Fd(int fd) : fd_(fd) {}
    Fd(Fd &&other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    Fd &operator=(Fd &&other) noexcept {
        std::swap(fd_, other.fd_);
        return *this;
    }
    ~Fd();
    int get() const { return fd_; }

private:
    int fd_ = -1;
};

// Sleeps until `fd` is readable, a signal comes, or the time is up. Returns whether it is readable. -1: never is.
bool wait_until_readable(int fd, int timeout_ms);

// True after SIGINT or SIGTERM, once stop_on_signals() has been called.
bool stop_requested();
void stop_on_signals();

}  // namespace relay
