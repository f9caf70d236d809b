#include "receive.hpp"

#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>

#include <cerrno>
#include <cstring>

#include "engine.hpp"
#include "numacre/os/kernel.hpp"
#include "numacre/shm/attach_wire.hpp"

namespace numacre::client {

namespace {

constexpr std::uint64_t kNanoseconds = 1'000'000'000;

std::uint64_t monotonic_ns() {
    timespec now{};
    os::clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * kNanoseconds + static_cast<std::uint64_t>(now.tv_nsec);
}

// Repeats a call that a signal interrupts. The kernel's timeout would start anew at each repetition, so the deadline is
// set again before each.
template <class Call>
ssize_t repeat_by(const Deadline &deadline, int connection, const Call &call) {
    for (;;) {
        deadline.limit(connection);
        const ssize_t result = call();
        if (result >= 0 || errno != EINTR) return result;
        if (deadline.is_over()) {
            errno = EAGAIN;
            return -1;
        }
    }
}

}  // namespace

Deadline::Deadline(std::uint64_t seconds) : at_ns_(monotonic_ns() + seconds * kNanoseconds) {}

bool Deadline::is_over() const {
    return monotonic_ns() >= at_ns_;
}

void Deadline::limit(int connection) const {
    const std::uint64_t now = monotonic_ns();
    const std::uint64_t left_us = now < at_ns_ ? (at_ns_ - now) / 1000 : 0;
    // A timeout of 0 would mean for ever.
    const timeval patience{static_cast<time_t>(left_us / 1'000'000), static_cast<suseconds_t>(left_us % 1'000'000 | 1)};
    os::setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    os::setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
}

bool connect_by(const Deadline &deadline, int connection, const sockaddr_un &address) {
    return repeat_by(deadline, connection, [&] {
               return os::connect(connection, reinterpret_cast<const sockaddr *>(&address), sizeof address);
           }) == 0;
}

bool send_by(const Deadline &deadline, int connection, const void *message, std::size_t bytes) {
    return repeat_by(deadline, connection, [&] { return os::send(connection, message, bytes, MSG_NOSIGNAL); }) ==
           static_cast<ssize_t>(bytes);
}

Received receive_by(const Deadline &deadline, int connection, void *message, std::size_t bytes, int *fds, int room) {
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * wire::kMaxFds)];
    iovec part{message, bytes};
    msghdr packet{};
    packet.msg_iov = &part;
    packet.msg_iovlen = 1;
    packet.msg_control = control;
    packet.msg_controllen = CMSG_SPACE(sizeof(int) * static_cast<std::size_t>(room));
    Received received;
    // ECONNRESET: the daemon has hung up with our request unread. Its reply comes at the next recvmsg().
    bool was_reset = false;
    for (;;) {
        received.bytes =
            repeat_by(deadline, connection, [&] { return os::recvmsg(connection, &packet, MSG_CMSG_CLOEXEC); });
        if (received.bytes >= 0 || errno != ECONNRESET || was_reset) break;
        was_reset = true;
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
