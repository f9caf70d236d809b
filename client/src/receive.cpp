#include "receive.hpp"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "numacre/os/kernel.hpp"
#include "numacre/shm/attach_wire.hpp"

namespace numacre::client {

Received receive_with_fds(int connection, void *message, std::size_t bytes, int *fds, int room) {
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * wire::kMaxFds)];
    iovec part{message, bytes};
    msghdr packet{};
    packet.msg_iov = &part;
    packet.msg_iovlen = 1;
    packet.msg_control = control;
    packet.msg_controllen = CMSG_SPACE(sizeof(int) * static_cast<std::size_t>(room));
    Received received;
    // ECONNRESET: it has hung up with our request unread, and its reply is behind that news.
    bool was_reset = false;
    for (;;) {
        received.bytes = os::recvmsg(connection, &packet, MSG_CMSG_CLOEXEC);
        if (received.bytes >= 0 || (errno != EINTR && (errno != ECONNRESET || was_reset))) break;
        was_reset = was_reset || errno == ECONNRESET;
    }
    if (received.bytes < 0) return received;
    received.flags = packet.msg_flags;
    for (cmsghdr *header = CMSG_FIRSTHDR(&packet); header != nullptr; header = CMSG_NXTHDR(&packet, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
        const std::size_t here = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (std::size_t i = 0; i < here; ++i) {
            int fd = -1;
            memcpy(&fd, CMSG_DATA(header) + i * sizeof fd, sizeof fd);
            if (received.fds < room)
                fds[received.fds++] = fd;
            else
                os::close(fd);
        }
    }
    return received;
}

}  // namespace numacre::client
