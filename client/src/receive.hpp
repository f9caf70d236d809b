// Messages to and from the daemon, which may be slow or stopped: each call ends by a deadline, however often signals
// interrupt it.
#pragma once

#include <sys/types.h>
#include <sys/un.h>

#include <cstddef>
#include <cstdint>

namespace numacre::client {

// When a call that waits for the daemon gives up, all its steps together.
class Deadline {
public:
    explicit Deadline(std::uint64_t seconds);
    bool is_over() const;
    // The next call on the socket waits no longer than that: SO_RCVTIMEO, SO_SNDTIMEO.
    void limit(int connection) const;

private:
    std::uint64_t at_ns_;  // monotonic
};

// connect(2), send(2). False: errno says why; EAGAIN: the deadline is over.
bool connect_by(const Deadline &deadline, int connection, const sockaddr_un &address);
bool send_by(const Deadline &deadline, int connection, const void *message, std::size_t bytes);

struct Received {
    ssize_t bytes = 0;  // 0: it has hung up; -1: errno says why
    int fds = 0;        // how many have come, all ours to close
    int flags = 0;      // MSG_TRUNC: there was more of the message; MSG_CTRUNC: there were more descriptors
};

// room: descriptors that `fds` has place for, at most wire::kMaxFds; what comes beyond that is closed. EAGAIN: the
// deadline is over.
Received receive_by(const Deadline &deadline, int connection, void *message, std::size_t bytes, int *fds, int room);

}  // namespace numacre::client
