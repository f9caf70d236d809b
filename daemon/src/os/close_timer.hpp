// Closes that do not wait. The last close of a TCP socket that lingers (SO_LINGER) waits until the other end has read
// what was sent, for as long as its owner chose; and whoever sends us a socket by SCM_RIGHTS makes the last close of it
// ours. A signal ends that wait, and the socket is closed all the same.
#pragma once

#include <time.h>

#include <optional>

namespace numacre::daemon {

// Belongs to the thread that makes it: interrupts what that thread waits for, every few milliseconds while it is armed.
// Other threads, and the same thread while it is not armed, are left alone.
class CloseTimer {
public:
    // Where the kernel has no timer left (RLIMIT_SIGPENDING), closes wait for as long as they like.
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
