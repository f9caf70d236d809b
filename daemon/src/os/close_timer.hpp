// Makes closes that do not wait. The last close of a TCP socket that lingers (SO_LINGER) waits until the other end has
// read all data, for as long as the socket's owner chose. A process that sends us a socket by SCM_RIGHTS makes its last
// close ours. A signal ends that wait, and the socket is closed all the same.
#pragma once

#include <time.h>

#include <optional>

namespace numacre::daemon {

// Belongs to the thread that makes it. While armed, it interrupts the blocking calls of this thread every few
// milliseconds. It never interrupts other threads, or this thread while it is not armed.
class CloseTimer {
public:
    // If the kernel has no timer left (RLIMIT_SIGPENDING), closes wait for as long as they like.
    CloseTimer();
    ~CloseTimer();
    CloseTimer(const CloseTimer &) = delete;
    CloseTimer &operator=(const CloseTimer &) = delete;

    class Armed {
    public:
        explicit Armed(const CloseTimer &timer) : timer_(timer) { timer_.set(true); }
        ~Armed() { timer_.set(false); }
        Armed(const Armed &) = delete;
        Armed &operator=(const Armed &) = delete;

    private:
        const CloseTimer &timer_;
    };

private:
    void set(bool armed) const;

    std::optional<timer_t> timer_;
};

}  // namespace numacre::daemon
