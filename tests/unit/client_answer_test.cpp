// How a thread answers when cached blocks are asked for: on a private pool, in which the test moves the count of
// requests as a thread does that is short of memory.
#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "numacre/numacre.h"
#include "pool.hpp"
#include "support/cached_blocks.hpp"

namespace numacre::client {

using namespace engine;
using test::cached_blocks;
namespace {

constexpr unsigned kFrames = 16384;
constexpr unsigned kCached = 1000;
constexpr unsigned kAtOnceMax = 256;  // a call gives back no more

class Answer : public ::testing::Test {
protected:
    void SetUp() override {
        const numacre_private_options options{sizeof options, std::uint64_t{kFrames} * 4096, 4096, 4 << 20, 0, 0, 0};
        ASSERT_EQ(numacre_open_private(&options, &pool), 0) << numacre_last_error();
        std::vector<void *> blocks(kCached);
        for (void *&block : blocks) ASSERT_EQ(numacre_alloc(pool, 4096, &block), 0);
        for (void *const block : blocks) ASSERT_EQ(numacre_free(pool, block), 0);
        ASSERT_GE(cached(), kCached) << "this test is about a full cache";
    }
    void TearDown() override {
        std::vector<void *> all = everything(4 << 20);
        EXPECT_EQ(all.size(), kFrames / 1024) << "the pool is whole again";
        give_back(all);
        numacre_detach(pool);
    }

    unsigned cached() { return cached_blocks(pool, Order{0}); }
    void ask() { pool->view.header->attention.fetch_add(Attention::kPressureStep); }
    std::vector<void *> everything(std::size_t bytes) {
        std::vector<void *> blocks;
        for (void *block = nullptr; numacre_alloc_on(pool, -1, bytes, NUMACRE_UNCACHED, &block) == 0;)
            blocks.push_back(block);
        return blocks;
    }
    void give_back(std::vector<void *> &blocks) {
        for (void *const block : blocks) EXPECT_EQ(numacre_free_uncached(pool, block), 0) << numacre_last_error();
    }

    numacre_pool *pool = nullptr;
};

TEST_F(Answer, gives_a_full_cache_back_in_parts) {
    ask();
    unsigned left = cached();
    for (unsigned calls = 0; left != 0; ++calls) {
        ASSERT_LT(calls, kCached) << "each call gives something back";
        void *block = nullptr;
        ASSERT_EQ(numacre_alloc(pool, 4096, &block), 0);
        const unsigned after_allocation = cached();
        EXPECT_LE(left - after_allocation, kAtOnceMax);
        ASSERT_LE(after_allocation, left) << "an unanswered cache takes nothing in";
        ASSERT_EQ(numacre_free(pool, block), 0);
        left = cached();
        EXPECT_LE(after_allocation - left, kAtOnceMax);
        ASSERT_LE(left, after_allocation);
    }
}

// Nobody else can take the rest, and this may be the thread's last call.
TEST_F(Answer, gives_everything_back_at_once_if_the_process_takes_no_part) {
    void *own = nullptr;
    ASSERT_EQ(numacre_alloc(pool, 4096, &own), 0);
    pool->shares_caches = false;
    ask();
    ASSERT_EQ(numacre_free(pool, own), 0);
    EXPECT_EQ(cached(), 0U);
}

// The thread that waits looks for idle caches once a second only.
TEST_F(Answer, gives_everything_back_at_once_if_a_thread_waits) {
    void *own = nullptr;
    ASSERT_EQ(numacre_alloc(pool, 4096, &own), 0);
    ask();
    pool->view.header->attention.fetch_or(Attention::kWaiters);
    ASSERT_EQ(numacre_free(pool, own), 0);
    EXPECT_EQ(cached(), 0U);
}

TEST_F(Answer, leaves_to_others_what_it_has_not_given_back_yet) {
    if (!pool->shares_caches) GTEST_SKIP() << "SKIP: membarrier is not permitted here";
    void *own = nullptr;
    ASSERT_EQ(numacre_alloc(pool, 4096, &own), 0);
    ask();
    ASSERT_EQ(numacre_free(pool, own), 0);
    ASSERT_GT(cached(), kCached / 2) << "the answer is not at its end";

    std::vector<void *> of_the_other;
    std::thread([&] { of_the_other = everything(4096); }).join();
    EXPECT_EQ(of_the_other.size(), kFrames) << "nothing was in use";

    // The thread goes on with its answer. Its cache names blocks that are the other's by now.
    for (int calls = 0; calls < 10; ++calls) {
        void *none = nullptr;
        EXPECT_EQ(numacre_alloc(pool, 4096, &none), -ENOMEM);
    }
    std::sort(of_the_other.begin(), of_the_other.end());
    EXPECT_EQ(std::unique(of_the_other.begin(), of_the_other.end()), of_the_other.end());
    give_back(of_the_other);
}

// The barrier of a moment ago covers an earlier request, and there is no other one within 10 ms: the first look of the
// thread takes nothing back. No daemon is here, and nobody makes a call: only a further look of the thread can help.
TEST_F(Answer, is_not_waited_for_by_a_thread_that_waits_for_memory) {
    if (!pool->shares_caches) GTEST_SKIP() << "SKIP: membarrier is not permitted here";
    int result = -1;
    std::size_t had = 0;
    std::thread([&] {
        std::vector<void *> blocks(kFrames / 1024);
        timespec time{};
        clock_gettime(CLOCK_MONOTONIC, &time);
        const auto now =
            static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(time.tv_nsec);
        auto &header = *pool->view.header;
        header.barrier_for.store(Attention::requests(header.attention.load()));
        header.barrier_at.store(now);
        for (; had < blocks.size(); ++had) {
            result = numacre_alloc_on(pool, -1, 4 << 20, NUMACRE_WAIT | NUMACRE_WAIT_MS(30'000), &blocks[had]);
            if (result != 0) break;
        }
        for (std::size_t i = 0; i < had; ++i) EXPECT_EQ(numacre_free(pool, blocks[i]), 0);
    }).join();
    EXPECT_EQ(result, 0) << "it waited until the end of its patience";
    EXPECT_EQ(had, kFrames / 1024);
}

}  // namespace
}  // namespace numacre::client
