// Passing of descriptors over a unix socket.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <span>

#include "numacre/os/kernel.hpp"

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83
#endif

namespace numacre::daemon {

// Makes a listening socket refuse messages with descriptors; its connections inherit this. No client needs to send any,
// and closing them may take as long as their sender likes. Before Linux 6.16 descriptors still come: see
// close_timer.hpp.
inline void refuse_descriptors(int listening_fd) {
    const int passes_rights = 0;
    (void)::setsockopt(listening_fd, SOL_SOCKET, SO_PASSRIGHTS, &passes_rights, sizeof passes_rights);
}

// True if descriptors can come with the messages of a listening socket's connections.
inline bool takes_descriptors(int listening_fd) {
    int passes_rights = 1;
    socklen_t bytes = sizeof passes_rights;
    return os::getsockopt(listening_fd, SOL_SOCKET, SO_PASSRIGHTS, &passes_rights, &bytes) != 0 || passes_rights != 0;
}

// Sends one packet with at most kFdsMax descriptors. Waits for the socket's SO_SNDTIMEO at most, or as flags say.
// Returns 0 or an errno: EPIPE if the other end is gone.
template <std::size_t kFdsMax>
int send_packet(int connection, const void *data, std::size_t size, std::span<const int> fds, int flags = 0) {
    iovec part{const_cast<void *>(data), size};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kFdsMax)> control{};
    if (!fds.empty()) {
        message.msg_control = control.data();
        message.msg_controllen = CMSG_SPACE(fds.size_bytes());
        cmsghdr *const rights = CMSG_FIRSTHDR(&message);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(fds.size_bytes());
        std::memcpy(CMSG_DATA(rights), fds.data(), fds.size_bytes());
    }
    for (;;) {
        // A packet goes as a whole or not at all.
        const ssize_t sent = os::sendmsg(connection, &message, flags | MSG_NOSIGNAL);
        if (sent >= 0) return 0;
        if (errno != EINTR) return errno;
    }
}

}  // namespace numacre::daemon
