// The protocol between numacred and its holder (daemon/holder): unix SEQPACKET, <runtime dir>/holder.sock, one
// fixed-size message a packet, descriptors by SCM_RIGHTS. The holder greets each connection with `hello`. All other
// messages are requests of the daemon, which the holder answers at once. A daemon may be newer than the holder that it
// finds: kHolderVersion says whether they understand each other, and these messages should never have to change.
#pragma once

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <span>

#include "os/fd_passing.hpp"

namespace numacre::holder {

inline constexpr std::uint32_t kHolderMagic = 0x6468'6d6e;  // "nmhd" in memory
inline constexpr std::uint16_t kHolderVersion = 1;
inline constexpr std::size_t kNameBytes = 96;  // with its terminating 0
inline constexpr std::size_t kMaxFds = 64;     // in one packet
// The holder's end of the connection that it is started with.
inline constexpr int kFirstConnection = 3;

enum class MessageType : std::uint16_t {
    hello,   // value: the pid of the holder, in its own pid namespace: for people
    keep,    // name, one descriptor; replaces the descriptor that was kept under that name. -> done
    drop,    // name. -> done
    list,    // -> `entry`, name and descriptor, for each; then done
    entry,   // if the descriptor cannot be sent (ETOOMANYREFS), value is its number in the holder
    leave,   // pidfds; value: the number of pidfds still to come. With the last one the list is whole: once all its
             // processes have ended and no daemon is connected, the holder ends. A list that is not whole when its
             // connection ends is forgotten. -> done
    finish,  // -> done; the holder ends
    done,
};

struct Message {
    std::uint32_t magic = kHolderMagic;
    std::uint16_t version = kHolderVersion;
    MessageType type{};
    std::uint32_t value = 0;
    std::array<char, kNameBytes> name{};
};

// Limits the time for which either end waits for the other.
inline void limit_patience(int connection) {
    const timeval patience{5, 0};
    ::setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    ::setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
}

// False: the other end is gone, or does not take the message (errno).
inline bool send_message(int connection, const Message &message, std::span<const int> fds = {}) {
    errno = daemon::send_packet<kMaxFds>(connection, &message, sizeof message, fds);
    return errno == 0;
}

// Returns the number of descriptors that came with the message, at most fds.size(). -1: the other end is gone, or sent
// a packet that is no message of this protocol (no descriptor is left open then). Terminates the name.
inline int receive_message(int connection, Message &message, std::span<int> fds) {
    iovec part{&message, sizeof message};
    msghdr packet{};
    packet.msg_iov = &part;
    packet.msg_iovlen = 1;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kMaxFds)> control{};
    packet.msg_control = control.data();
    packet.msg_controllen = control.size();
    ssize_t received = 0;
    do {
        received = ::recvmsg(connection, &packet, MSG_CMSG_CLOEXEC);
    } while (received < 0 && errno == EINTR);
    int count = 0;
    bool fits = received == static_cast<ssize_t>(sizeof message) && (packet.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0;
    std::array<int, kMaxFds> surplus{};
    std::size_t surplus_count = 0;
    for (cmsghdr *part_of = received < 0 ? nullptr : CMSG_FIRSTHDR(&packet); part_of != nullptr;
         part_of = CMSG_NXTHDR(&packet, part_of)) {
        if (part_of->cmsg_level != SOL_SOCKET || part_of->cmsg_type != SCM_RIGHTS) continue;
        const std::size_t here = (part_of->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (std::size_t i = 0; i < here; ++i) {
            int fd = -1;
            std::memcpy(&fd, CMSG_DATA(part_of) + i * sizeof fd, sizeof fd);
            if (static_cast<std::size_t>(count) < fds.size())
                fds[static_cast<std::size_t>(count++)] = fd;
            else if (surplus_count < surplus.size())
                surplus[surplus_count++] = fd;
        }
    }
    fits = fits && surplus_count == 0 && message.magic == kHolderMagic && message.version == kHolderVersion;
    for (std::size_t i = 0; i < surplus_count; ++i) ::close(surplus[i]);
    if (!fits) {
        for (int i = 0; i < count; ++i) ::close(fds[static_cast<std::size_t>(i)]);
        return -1;
    }
    message.name.back() = 0;
    return count;
}

}  // namespace numacre::holder
