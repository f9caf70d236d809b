// Questions to a connection of the attach socket, and one packet on it. Nothing here blocks.
#pragma once

#include <linux/sockios.h>
#include <sys/socket.h>

#include <cstddef>
#include <span>

#include "engine.hpp"
#include "numacre/os/kernel.hpp"
#include "numacre/shm/attach_wire.hpp"
#include "os/fd_passing.hpp"

namespace numacre::daemon {

// True if the other end is closed, and nothing that it has sent is unread.
inline bool has_hung_up(int connection) {
    std::byte byte{};
    return os::recv(connection, &byte, sizeof byte, MSG_PEEK | MSG_DONTWAIT) == 0;
}

// Returns 0 or an errno.
inline int send_now(int connection, const void *data, std::size_t size, std::span<const int> fds) {
    return send_packet<wire::kMaxFds>(connection, data, size, fds, MSG_DONTWAIT);
}

// True if the other end has not received all that we have sent, and still can.
inline bool has_unread(int connection) {
    int bytes = 0;
    return connection >= 0 && os::ioctl(connection, SIOCOUTQ, &bytes) == 0 && bytes != 0;
}

}  // namespace numacre::daemon
