// numacre_send_over, and broadcast channels, in a private pool. (Between processes:
// tests/integration/broadcast_test.py.)
#include <gtest/gtest.h>
#include <poll.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "numacre/numacre.h"
#include "numacre/numacre.hpp"

namespace {

class Broadcasts : public testing::Test {
protected:
    void SetUp() override {
        numacre_private_options options{};
        options.struct_size = sizeof options;
        options.capacity_bytes = 16U << 20;
        ASSERT_EQ(numacre_open_private(&options, &pool), 0) << numacre_last_error();
    }
    void TearDown() override {
        for (numacre_channel *const channel : opened) numacre_channel_close(channel);
        numacre_detach(pool);
    }
    static numacre_channel_options options_of(std::uint32_t flags, std::uint32_t capacity, std::uint32_t last = 0) {
        numacre_channel_options options{};
        options.struct_size = sizeof options;
        options.capacity = capacity;
        options.burst = 2;
        options.parties = 8;
        options.flags = flags;
        options.last = last;
        return options;
    }
    numacre_channel *open(std::uint32_t flags, std::uint32_t last = 0, std::uint32_t capacity = 4) {
        const numacre_channel_options options = options_of(flags, capacity, last);
        numacre_channel *channel = nullptr;
        EXPECT_EQ(numacre_channel_open(pool, "frames", &options, &channel), 0) << numacre_last_error();
        if (channel != nullptr) opened.push_back(channel);
        return channel;
    }
    numacre_channel *writer() { return open(NUMACRE_CHANNEL_BROADCAST | NUMACRE_CHANNEL_SENDS); }
    numacre_channel *reader(std::uint32_t last = 0) {
        return open(NUMACRE_CHANNEL_BROADCAST | NUMACRE_CHANNEL_RECEIVES, last);
    }
    void close(numacre_channel *channel) {
        std::erase(opened, channel);
        EXPECT_EQ(numacre_channel_close(channel), 0);
    }
    // Sends these numbers in one burst.
    void send(numacre_channel *by, const std::vector<std::uint64_t> &numbers) {
        std::vector<void *> blocks(numbers.size());
        ASSERT_EQ(numacre_alloc_bulk(pool, 4096, blocks.data(), static_cast<unsigned>(blocks.size())), 0);
        for (std::size_t i = 0; i < numbers.size(); ++i) *static_cast<std::uint64_t *>(blocks[i]) = numbers[i];
        ASSERT_EQ(numacre_send(by, blocks.data(), static_cast<unsigned>(blocks.size())), 0) << numacre_last_error();
    }
    static std::uint64_t number_in(const void *block) { return *static_cast<const std::uint64_t *>(block); }
    struct Read {
        int error = 0;
        std::vector<std::uint64_t> numbers;
        std::uint64_t overtaken = 0;
        friend bool operator==(const Read &, const Read &) = default;
    };
    static Read read(numacre_channel *by, unsigned most = 2) {
        std::vector<const void *> blocks(most);
        unsigned count = 0;
        Read read;
        read.error = numacre_channel_read(by, blocks.data(), most, &count, &read.overtaken);
        for (unsigned i = 0; i < count; ++i) read.numbers.push_back(number_in(blocks[i]));
        return read;
    }
    static numacre_channel_info info_of(numacre_channel *channel) {
        numacre_channel_info info{};
        info.struct_size = sizeof info;
        EXPECT_EQ(numacre_channel_get_info(channel, &info), 0);
        return info;
    }

    numacre_pool *pool = nullptr;
    std::vector<numacre_channel *> opened;
};

TEST_F(Broadcasts, each_reader_gets_every_block) {
    numacre_channel *const sender = writer(), *const first = reader(), *const second = reader();
    send(sender, {1, 2});
    send(sender, {3});
    for (numacre_channel *const each : {first, second}) {
        EXPECT_EQ(read(each), (Read{0, {1, 2}, 0}));
        EXPECT_EQ(read(each), (Read{0, {3}, 0}));
        EXPECT_EQ(read(each).error, -EAGAIN);
    }
    EXPECT_EQ(read(reader()).error, -EAGAIN) << "it came late";
    EXPECT_EQ(read(reader(1)), (Read{0, {3}, 0}));
    numacre_channel *const late = reader(2);
    EXPECT_EQ(read(late), (Read{0, {2}, 0}));
    EXPECT_EQ(read(late), (Read{0, {3}, 0}));
    const numacre_channel_info info = info_of(first);
    EXPECT_EQ(info.is_broadcast, 1U);
    EXPECT_EQ(info.sent, 3U);
    EXPECT_EQ(info.received, 9U);
    EXPECT_EQ(info.waiting, 3U);
    EXPECT_EQ(info.receivers, 5U);
}

TEST_F(Broadcasts, what_is_read_stays_as_it_is_when_it_is_overwritten) {
    numacre_channel *const sender = writer(), *const slow = reader();
    send(sender, {1, 2});
    const void *blocks[2] = {};
    unsigned count = 0;
    std::uint64_t overtaken = 0;
    ASSERT_EQ(numacre_channel_read(slow, blocks, 2, &count, &overtaken), 0);
    for (std::uint64_t number = 3; number < 53; ++number) send(sender, {number});
    EXPECT_EQ(number_in(blocks[0]), 1U);
    EXPECT_EQ(number_in(blocks[1]), 2U);
    EXPECT_EQ(info_of(sender).waiting, 4U) << "a send has one block, and four sends are kept";
    EXPECT_EQ(read(slow), (Read{0, {49}, 46}));
    EXPECT_EQ(info_of(sender).overtaken, 46U);
    EXPECT_EQ(read(slow), (Read{0, {50}, 0}));
}

TEST_F(Broadcasts, blocks_that_are_overwritten_are_free_and_the_rest_with_the_last_handle) {
    numacre_channel *const sender = writer(), *const slow = reader();
    send(sender, {1, 2});
    EXPECT_EQ(read(slow).numbers.size(), 2U);
    // More than the pool has: 4096 blocks.
    for (std::uint64_t number = 0; number < 10'000; ++number) send(sender, {number, number});
    EXPECT_EQ(numacre_channel_read_end(slow), 0);
    EXPECT_EQ(numacre_channel_read_end(slow), 0) << "once more";
    close(slow);
    close(sender);
    // The calling thread caches some of them.
    std::vector<void *> all;
    for (void *block = nullptr; numacre_alloc(pool, 4096, &block) == 0;) all.push_back(block);
    EXPECT_EQ(all.size(), 4096U);
}

TEST_F(Broadcasts, the_end_comes_behind_what_is_there) {
    numacre_channel *const sender = writer(), *const first = reader(), *const second = reader();
    send(sender, {1});
    EXPECT_EQ(numacre_channel_end(sender), 0);
    EXPECT_EQ(read(first), (Read{0, {1}, 0}));
    EXPECT_EQ(read(first).error, -ESHUTDOWN);
    void *block = nullptr;
    ASSERT_EQ(numacre_alloc(pool, 4096, &block), 0);
    EXPECT_EQ(numacre_send(sender, &block, 1), -ESHUTDOWN);
    EXPECT_EQ(numacre_free(pool, block), 0) << "it is the caller's still";
    EXPECT_EQ(read(second), (Read{0, {1}, 0}));
}

TEST_F(Broadcasts, a_reader_is_told_that_all_writers_have_gone_and_a_writer_needs_no_reader) {
    numacre_channel *const listener = reader();
    EXPECT_EQ(read(listener).error, -EAGAIN) << "there has been no writer yet";
    numacre_channel *const sender = writer();
    send(sender, {1});
    close(sender);
    EXPECT_EQ(read(listener), (Read{0, {1}, 0}));
    EXPECT_EQ(read(listener).error, -EPIPE);
    numacre_channel *const other = writer();
    EXPECT_EQ(read(listener).error, -EAGAIN);
    close(listener);
    for (std::uint64_t number = 0; number < 100; ++number) send(other, {number});
}

TEST_F(Broadcasts, a_reader_sleeps_until_there_is_something) {
    numacre_channel *const sender = writer(), *const listener = reader();
    const void *blocks[2] = {};
    unsigned count = 0;
    EXPECT_EQ(numacre_channel_read_wait(listener, blocks, 2, 1, &count, nullptr), -ETIMEDOUT);
    std::thread thread{[&] { send(sender, {7}); }};
    EXPECT_EQ(numacre_channel_read_wait(listener, blocks, 2, 0, &count, nullptr), 0);
    thread.join();
    ASSERT_EQ(count, 1U);
    EXPECT_EQ(number_in(blocks[0]), 7U);
}

TEST_F(Broadcasts, a_reader_waits_by_its_descriptor) {
    numacre_channel *const sender = writer(), *const listener = reader();
    int fd = -1;
    ASSERT_EQ(numacre_channel_fd(listener, &fd), 0) << numacre_last_error();
    const auto is_readable = [fd] {
        pollfd one{fd, POLLIN, 0};
        return poll(&one, 1, 0) == 1;
    };
    ASSERT_EQ(numacre_channel_arm(listener, 1, 0), 0);
    EXPECT_FALSE(is_readable());
    send(sender, {1});
    EXPECT_TRUE(is_readable());
    EXPECT_EQ(read(listener), (Read{0, {1}, 0}));
    ASSERT_EQ(numacre_channel_arm(listener, 1, 0), 0);
    EXPECT_FALSE(is_readable());
    EXPECT_EQ(numacre_channel_end(sender), 0);
    EXPECT_TRUE(is_readable());
    int senders = -1;
    ASSERT_EQ(numacre_channel_fd(sender, &senders), 0);
    ASSERT_EQ(numacre_channel_arm(sender, 0, 2), 0);
    pollfd one{senders, POLLIN, 0};
    EXPECT_EQ(poll(&one, 1, 0), 1) << "there is always room";
}

TEST_F(Broadcasts, calls_of_the_other_kind_are_refused_with_the_name_and_the_remedy) {
    numacre_channel *const sender = writer(), *const listener = reader();
    const auto refuses = [](int error, const char *remedy) {
        EXPECT_EQ(error, -EINVAL);
        const std::string sentence = numacre_last_error();
        EXPECT_NE(sentence.find("\"frames\""), std::string::npos) << sentence;
        EXPECT_NE(sentence.find(remedy), std::string::npos) << sentence;
    };
    void *block = nullptr;
    unsigned count = 0;
    refuses(numacre_receive(listener, &block, 1, &count, nullptr), "numacre_channel_read()");
    refuses(numacre_receive_wait(listener, &block, 1, 1, &count, nullptr), "numacre_channel_read()");
    const void *read_block = nullptr;
    refuses(numacre_channel_read(sender, &read_block, 1, &count, nullptr), "NUMACRE_CHANNEL_RECEIVES");
    EXPECT_EQ(numacre_channel_read(listener, &read_block, 0, &count, nullptr), -EINVAL);
    EXPECT_EQ(numacre_channel_read(listener, nullptr, 1, &count, nullptr), -EINVAL);
    EXPECT_EQ(numacre_channel_read_end(nullptr), -EINVAL);
    numacre_channel *other = nullptr;
    numacre_channel_options options = options_of(0, 0);
    EXPECT_EQ(numacre_channel_open(pool, "frames", &options, &other), -EEXIST);
    EXPECT_NE(std::string(numacre_last_error()).find("NUMACRE_CHANNEL_BROADCAST"), std::string::npos);
    options.last = 5;
    EXPECT_EQ(numacre_channel_open(pool, "queue", &options, &other), -EINVAL);
    options.last = 0;
    options.reserved = 1;
    EXPECT_EQ(numacre_channel_open(pool, "queue", &options, &other), -EINVAL);
    options.reserved = 0;
    ASSERT_EQ(numacre_channel_open(pool, "queue", &options, &other), 0);
    EXPECT_EQ(numacre_channel_read(other, &read_block, 1, &count, nullptr), -EINVAL);
    EXPECT_EQ(numacre_channel_read_end(other), -EINVAL);
    EXPECT_EQ(numacre_channel_close(other), 0);
}

// As a program of before they were there has compiled them.
TEST_F(Broadcasts, shorter_structs_of_older_programs_do) {
    numacre_channel_options options = options_of(0, 4, 99);
    options.struct_size = offsetof(numacre_channel_options, last);
    numacre_channel *channel = nullptr;
    ASSERT_EQ(numacre_channel_open(pool, "frames", &options, &channel), 0) << numacre_last_error();
    opened.push_back(channel);
    numacre_channel_info info{};
    info.struct_size = offsetof(numacre_channel_info, dropped);
    info.dropped = 77;
    ASSERT_EQ(numacre_channel_get_info(channel, &info), 0);
    EXPECT_EQ(info.dropped, 77U) << "not written";
    EXPECT_EQ(info.capacity, 4U);
}

TEST_F(Broadcasts, send_over_drops_the_oldest_of_a_queue) {
    numacre_channel *const channel = open(0);
    unsigned dropped = 99;
    for (std::uint64_t number = 1; number <= 6; ++number) {
        void *block = nullptr;
        ASSERT_EQ(numacre_alloc(pool, 4096, &block), 0);
        *static_cast<std::uint64_t *>(block) = number;
        ASSERT_EQ(numacre_send_over(channel, &block, 1, &dropped), 0) << numacre_last_error();
        EXPECT_EQ(dropped, number <= 4 ? 0U : 1U);
    }
    const numacre_channel_info info = info_of(channel);
    EXPECT_EQ(info.dropped, 2U);
    EXPECT_EQ(info.waiting, 4U);
    EXPECT_EQ(info.sent, 6U);
    EXPECT_EQ(info.received, 0U);
    void *blocks[2] = {};
    unsigned count = 0;
    for (const std::uint64_t number : {3, 4, 5, 6}) {
        ASSERT_EQ(numacre_receive(channel, blocks, 2, &count, nullptr), 0);
        ASSERT_EQ(count, 1U);
        EXPECT_EQ(number_in(blocks[0]), number);
        EXPECT_EQ(numacre_free(pool, blocks[0]), 0);
    }
    // The dropped ones are free: the pool has 4096 blocks.
    for (std::uint64_t number = 0; number < 10'000; ++number) {
        ASSERT_EQ(numacre_alloc(pool, 4096, &blocks[0]), 0);
        ASSERT_EQ(numacre_send_over(channel, blocks, 1, nullptr), 0);
    }
}

TEST_F(Broadcasts, send_over_refuses_what_never_has_room) {
    numacre_channel_options options = options_of(0, 1);
    numacre_channel *channel = nullptr;
    EXPECT_EQ(numacre_channel_open(pool, "frames", &options, &channel), -EINVAL) << "a burst of 2";
    EXPECT_NE(std::string(numacre_last_error()).find("capacity 1"), std::string::npos);
    options.burst = 0;
    ASSERT_EQ(numacre_channel_open(pool, "frames", &options, &channel), 0);
    opened.push_back(channel);
    void *blocks[2] = {};
    ASSERT_EQ(numacre_alloc_bulk(pool, 4096, blocks, 2), 0);
    EXPECT_EQ(numacre_send_over(channel, blocks, 2, nullptr), -EINVAL);
    EXPECT_EQ(numacre_send_over(channel, blocks, 1, nullptr), 0);
    EXPECT_EQ(numacre_channel_end(channel), 0);
    EXPECT_EQ(numacre_send_over(channel, blocks + 1, 1, nullptr), -ESHUTDOWN);
    EXPECT_EQ(numacre_free(pool, blocks[1]), 0);
}

TEST(BroadcastsOfCpp, read_as_in_c) {
    auto pool = numacre::Pool::open_private({.capacity_bytes = 16U << 20});
    ASSERT_TRUE(pool) << pool.error().message;
    auto sender = pool->channel("frames", {.capacity = 4, .burst = 2, .receives = false, .broadcast = true});
    auto listener = pool->channel("frames", {.sends = false, .broadcast = true, .last = 1});
    ASSERT_TRUE(sender && listener);
    for (int number = 0; number < 6; ++number) {
        auto block = pool->allocate(4096);
        ASSERT_TRUE(block);
        std::memset(block->data(), number, 4096);
        const auto dropped = sender->send_over(*block);
        ASSERT_TRUE(dropped) << dropped.error().message;
        EXPECT_EQ(*dropped, number < 4 ? 0U : 1U) << "overwritten";
        EXPECT_EQ(block->data(), nullptr) << "the channel's";
    }
    const void *blocks[2] = {};
    const auto read = listener->read(blocks);
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(read->count, 1U);
    EXPECT_EQ(read->overtaken, 2U);
    EXPECT_EQ(*static_cast<const char *>(blocks[0]), 2);
    EXPECT_TRUE(listener->end_read());
    EXPECT_TRUE(listener->read_wait(blocks, std::chrono::milliseconds{1000}));
}

}  // namespace
