// numacre_channel_fd and numacre_channel_arm in a private pool, whose process makes the descriptors itself. (Between
// processes: tests/integration/channels_test.py.)
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "numacre/numacre.h"

namespace {

class ChannelFd : public testing::Test {
protected:
    void SetUp() override {
        numacre_private_options options{};
        options.struct_size = sizeof options;
        options.capacity_bytes = 16U << 20;
        ASSERT_EQ(numacre_open_private(&options, &pool), 0) << numacre_last_error();
        receiver = open(NUMACRE_CHANNEL_RECEIVES);
        sender = open(NUMACRE_CHANNEL_SENDS);
    }
    void TearDown() override {
        numacre_channel_close(receiver);
        numacre_channel_close(sender);
        numacre_detach(pool);
    }
    numacre_channel *open(std::uint32_t flags) const {
        const numacre_channel_options options{sizeof options, 2, 2, 4, flags, 0, 0};
        numacre_channel *channel = nullptr;
        EXPECT_EQ(numacre_channel_open(pool, "frames", &options, &channel), 0) << numacre_last_error();
        return channel;
    }
    static int fd_of(numacre_channel *channel) {
        int fd = -1;
        EXPECT_EQ(numacre_channel_fd(channel, &fd), 0) << numacre_last_error();
        return fd;
    }
    static bool is_readable(int fd) {
        pollfd one{fd, POLLIN, 0};
        return poll(&one, 1, 0) == 1;
    }
    void send(numacre_channel *by) const {
        void *block = nullptr;
        ASSERT_EQ(numacre_alloc(pool, 4096, &block), 0);
        ASSERT_EQ(numacre_send(by, &block, 1), 0) << numacre_last_error();
    }
    void receive(numacre_channel *by) const {
        void *block = nullptr;
        unsigned count = 0;
        ASSERT_EQ(numacre_receive(by, &block, 1, &count, nullptr), 0) << numacre_last_error();
        ASSERT_EQ(numacre_free(pool, block), 0);
    }

    numacre_pool *pool = nullptr;
    numacre_channel *receiver = nullptr;
    numacre_channel *sender = nullptr;
};

TEST_F(ChannelFd, is_readable_once_there_is_a_message) {
    const int fd = fd_of(receiver);
    EXPECT_EQ(fd_of(receiver), fd);
    EXPECT_FALSE(is_readable(fd));
    send(sender);
    EXPECT_FALSE(is_readable(fd)) << "it is not armed";
    receive(receiver);
    ASSERT_EQ(numacre_channel_arm(receiver, 1, 0), 0);
    EXPECT_FALSE(is_readable(fd));
    send(sender);
    EXPECT_TRUE(is_readable(fd));
    ASSERT_EQ(numacre_channel_arm(receiver, 1, 0), 0);
    EXPECT_TRUE(is_readable(fd)) << "there is a message already";
    receive(receiver);
    ASSERT_EQ(numacre_channel_arm(receiver, 1, 0), 0);
    EXPECT_FALSE(is_readable(fd));
    ASSERT_EQ(numacre_channel_arm(receiver, 0, 0), 0);
    send(sender);
    EXPECT_FALSE(is_readable(fd)) << "it waits for nothing";
}

TEST_F(ChannelFd, each_receiver_has_its_own) {
    numacre_channel *const second = open(NUMACRE_CHANNEL_RECEIVES);
    const int first_fd = fd_of(receiver), second_fd = fd_of(second);
    EXPECT_NE(first_fd, second_fd);
    ASSERT_EQ(numacre_channel_arm(receiver, 1, 0), 0);
    ASSERT_EQ(numacre_channel_arm(second, 1, 0), 0);
    send(sender);
    EXPECT_TRUE(is_readable(first_fd));
    EXPECT_TRUE(is_readable(second_fd));
    receive(second);
    ASSERT_EQ(numacre_channel_arm(second, 1, 0), 0);
    EXPECT_FALSE(is_readable(second_fd));
    ASSERT_EQ(numacre_channel_close(second), 0);
    send(sender);  // nobody rings for the one that has gone, nor twice for one that has not armed again
    EXPECT_TRUE(is_readable(first_fd));
}

TEST_F(ChannelFd, is_readable_once_there_is_room) {
    const int fd = fd_of(sender);
    ASSERT_EQ(numacre_channel_arm(sender, 0, 1), 0);
    EXPECT_TRUE(is_readable(fd)) << "there is room already";
    send(sender);
    ASSERT_EQ(numacre_channel_arm(sender, 0, 2), 0);
    EXPECT_FALSE(is_readable(fd)) << "there is room for one only";
    send(sender);
    ASSERT_EQ(numacre_channel_arm(sender, 0, 1), 0);
    EXPECT_FALSE(is_readable(fd));
    receive(receiver);
    EXPECT_TRUE(is_readable(fd));
    ASSERT_EQ(numacre_channel_arm(sender, 0, 1), 0);
    EXPECT_TRUE(is_readable(fd));
}

TEST_F(ChannelFd, tells_of_the_end_and_of_the_last_sender_s_going) {
    const int fd = fd_of(receiver);
    ASSERT_EQ(numacre_channel_arm(receiver, 1, 0), 0);
    ASSERT_EQ(numacre_channel_close(sender), 0);
    EXPECT_TRUE(is_readable(fd));
    sender = open(NUMACRE_CHANNEL_SENDS);
    ASSERT_EQ(numacre_channel_arm(receiver, 1, 0), 0);
    EXPECT_FALSE(is_readable(fd));
    ASSERT_EQ(numacre_channel_end(sender), 0);
    EXPECT_TRUE(is_readable(fd));
    ASSERT_EQ(numacre_channel_arm(receiver, 1, 0), 0);
    EXPECT_TRUE(is_readable(fd));
}

TEST_F(ChannelFd, refuses_what_makes_no_sense) {
    int fd = -1;
    EXPECT_EQ(numacre_channel_fd(nullptr, &fd), -EINVAL);
    EXPECT_EQ(numacre_channel_fd(receiver, nullptr), -EINVAL);
    EXPECT_EQ(numacre_channel_arm(nullptr, 1, 0), -EINVAL);
    EXPECT_EQ(numacre_channel_arm(receiver, 1, 0), -EINVAL);
    EXPECT_NE(std::string(numacre_last_error()).find("numacre_channel_fd"), std::string::npos);
    fd = fd_of(receiver);
    EXPECT_EQ(numacre_channel_arm(receiver, 0, 3), -EINVAL);
    EXPECT_NE(std::string(numacre_last_error()).find("0 to 2"), std::string::npos);
    const pid_t child = fork();
    if (child == 0)
        _exit(numacre_channel_fd(receiver, &fd) == -ECHILD && numacre_channel_arm(receiver, 1, 0) == -ECHILD ? 0 : 1);
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
}

TEST_F(ChannelFd, is_closed_with_the_pool) {
    const int fd = fd_of(receiver);
    numacre_channel_close(receiver);
    numacre_channel_close(sender);
    numacre_detach(pool);
    pollfd one{fd, POLLIN, 0};
    EXPECT_EQ(poll(&one, 1, 0), 1);
    EXPECT_EQ(one.revents, POLLNVAL);
    SetUp();
}

}  // namespace
