// What comes from the daemon: a message, descriptors, or the news that it is gone.
#include "receive.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <vector>

namespace numacre::client {
namespace {

class Receive : public ::testing::Test {
protected:
    void SetUp() override {
        file = open("/dev/null", O_RDONLY | O_CLOEXEC);
        ASSERT_GE(file, 0);
        ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()), 0);
    }
    void TearDown() override {
        close(file);
        for (const int end : ends)
            if (end >= 0) close(end);
    }
    int ours() const { return ends[0]; }
    int daemons() const { return ends[1]; }
    // The daemon's: so many descriptors of one file.
    void send_with(std::size_t count) const {
        std::uint64_t sent = kMessage;
        iovec part{&sent, sizeof sent};
        msghdr packet{};
        packet.msg_iov = &part;
        packet.msg_iovlen = 1;
        alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * 8)> control{};
        if (count != 0) {
            packet.msg_control = control.data();
            packet.msg_controllen = CMSG_SPACE(sizeof(int) * count);
            cmsghdr *const rights = CMSG_FIRSTHDR(&packet);
            rights->cmsg_level = SOL_SOCKET;
            rights->cmsg_type = SCM_RIGHTS;
            rights->cmsg_len = CMSG_LEN(sizeof(int) * count);
            const std::vector<int> given(count, file);
            std::memcpy(CMSG_DATA(rights), given.data(), sizeof(int) * count);
        }
        ASSERT_EQ(sendmsg(daemons(), &packet, 0), static_cast<ssize_t>(sizeof sent));
    }
    Received receive(int room, std::uint64_t patience_seconds = 60) {
        message = 0;
        fds.fill(-1);
        return receive_by(Deadline{patience_seconds}, ours(), &message, sizeof message, fds.data(), room);
    }
    void hang_up() {
        close(ends[1]);
        ends[1] = -1;
    }
    // Of the process.
    static std::ptrdiff_t descriptors() {
        return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                             std::filesystem::directory_iterator());
    }

    static constexpr std::uint64_t kMessage = 0x1234'5678'9abc'def0;
    int file = -1;
    std::array<int, 2> ends{-1, -1};
    std::uint64_t message = 0;
    std::array<int, 8> fds{};
};

TEST_F(Receive, gives_the_message_and_its_descriptors) {
    for (const int count : {0, 1, 2, 3, 8}) {
        send_with(static_cast<std::size_t>(count));
        const Received received = receive(8);
        EXPECT_EQ(received.bytes, static_cast<ssize_t>(sizeof message));
        EXPECT_EQ(received.flags & (MSG_TRUNC | MSG_CTRUNC), 0);
        EXPECT_EQ(message, kMessage);
        ASSERT_EQ(received.fds, count);
        for (int i = 0; i < 8; ++i) EXPECT_EQ(fds[static_cast<std::size_t>(i)] >= 0, i < count) << i << " of " << count;
        for (int i = 0; i < count; ++i) {
            const int fd = fds[static_cast<std::size_t>(i)];
            EXPECT_EQ(fcntl(fd, F_GETFD), FD_CLOEXEC);
            EXPECT_EQ(close(fd), 0);
        }
    }
}

// The kernel rounds up what there is room for.
TEST_F(Receive, keeps_no_descriptor_for_which_there_is_no_room) {
    const std::ptrdiff_t before = descriptors();
    for (const int room : {1, 3}) {
        send_with(8);
        const Received received = receive(room);
        EXPECT_EQ(message, kMessage);
        EXPECT_NE(received.flags & MSG_CTRUNC, 0);
        ASSERT_EQ(received.fds, room);
        for (int i = 0; i < room; ++i) EXPECT_EQ(close(fds[static_cast<std::size_t>(i)]), 0);
        EXPECT_EQ(fds[static_cast<std::size_t>(room)], -1);
        EXPECT_EQ(descriptors(), before);
    }
}

TEST_F(Receive, says_that_the_process_has_no_descriptor_left) {
    rlimit limit{};
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
    send_with(1);
    const rlimit none{0, limit.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    const Received received = receive(1);
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    EXPECT_EQ(received.bytes, static_cast<ssize_t>(sizeof message));
    EXPECT_EQ(received.fds, 0);
    EXPECT_NE(received.flags & MSG_CTRUNC, 0);
}

// It had answered, and refused us, before we asked.
TEST_F(Receive, reads_what_is_behind_the_news_that_a_request_was_not_read) {
    ASSERT_EQ(send(ours(), "?", 1, 0), 1);
    send_with(1);
    hang_up();
    const Received received = receive(1);
    EXPECT_EQ(received.bytes, static_cast<ssize_t>(sizeof message));
    EXPECT_EQ(message, kMessage);
    ASSERT_EQ(received.fds, 1);
    close(fds[0]);
}

// Signals that come more often than the deadline would make a wait that begins anew with each of them one for ever.
TEST_F(Receive, ends_by_its_deadline_however_often_signals_interrupt_it) {
    struct sigaction action{};
    action.sa_handler = [](int) {};
    struct sigaction before{};
    sigaction(SIGALRM, &action, &before);
    const itimerval often{{0, 200'000}, {0, 200'000}};
    setitimer(ITIMER_REAL, &often, nullptr);
    EXPECT_EQ(receive(1, 1).bytes, -1);
    EXPECT_EQ(errno, EAGAIN) << strerror(errno);
    // A sender, too: nobody reads, and the socket is full.
    errno = 0;
    const std::vector<std::byte> packet(1 << 16);
    const Deadline deadline{1};
    while (send_by(deadline, ours(), packet.data(), packet.size())) {
    }
    EXPECT_EQ(errno, EAGAIN) << strerror(errno);
    const itimerval never{};
    setitimer(ITIMER_REAL, &never, nullptr);
    sigaction(SIGALRM, &before, nullptr);
}

TEST_F(Receive, tells_silence_from_an_end) {
    EXPECT_EQ(receive(1, 0).bytes, -1);
    EXPECT_TRUE(errno == EAGAIN || errno == EWOULDBLOCK) << strerror(errno);
    hang_up();
    EXPECT_EQ(receive(1).bytes, 0);
}

}  // namespace
}  // namespace numacre::client
