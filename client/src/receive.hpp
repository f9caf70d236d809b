// Messages to and from the daemon, which may be slow or stopped: each call ends by a deadline, however often signals
// interrupt it.
#pragma once

#include <sys/types.h>
#include <sys/un.h>

#include <cstddef>
#include <cstdint>

namespace numacre::client {

// The time at which a call that waits for the daemon gives up; it covers all steps of the call together.
class Deadline {
public:
    explicit Deadline(std::uint64_t seconds);
    bool is_over() const;
    // Limits the next call on the socket to the time left: SO_RCVTIMEO, SO_SNDTIMEO.
    void limit(int connection) const;

private:
    std::uint64_t at_ns_;  // monotonic
};

// connect(2) and send(2) by a deadline. False: errno has the reason; EAGAIN: the deadline is over.
bool connect_by(const Deadline &deadline, int connection, const sockaddr_un &address);
bool send_by(const Deadline &deadline, int connection, const void *message, std::size_t bytes);

struct Received {
    ssize_t bytes = 0;  // 0: the peer has hung up; -1: errno has the reason
    int fds = 0;        // number of descriptors received; the caller closes them
    int flags = 0;      // MSG_TRUNC: the message was longer; MSG_CTRUNC: there were more descriptors
};

// Receives one message. room: the size of `fds`, at most wire::kMaxFds; further descriptors are closed. EAGAIN: the
// deadline is over.
Received receive_by(const Deadline &deadline, int connection, void *message, std::size_t bytes, int *fds, int room);

}  // namespace numacre::client
