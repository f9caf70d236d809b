// When the daemon takes back what a thread caches and does not use.
#include <gtest/gtest.h>

#include <cstdint>
#include <span>

#include "pool/cache_ages.hpp"
#include "support/shm_pool.hpp"

namespace numacre::daemon {
namespace {

class CacheAgesTest : public ::testing::Test {
protected:
    CacheAgesTest() {
        shm_.online_all();
        for (const unsigned thread : {kUsed, kIdle}) (void)shm_.actor(thread, 1);
    }

    bool look() { return ages_.look(shm_.view, std::span<const View>(&shm_.node, 1)); }
    void call(unsigned thread) { shm_.node.counters[thread].frees[0].fetch_add(1); }
    // The number of times that a look said so in these many looks, one a second, while one thread makes calls.
    unsigned told(unsigned looks) {
        unsigned times = 0;
        for (unsigned i = 0; i < looks; ++i) {
            call(kUsed);
            times += look() ? 1 : 0;
        }
        return times;
    }

    static constexpr unsigned kUsed = 1, kIdle = 2;
    test::ShmPool shm_{4096, 4 << 20, 4};
    CacheAges ages_;
};

TEST_F(CacheAgesTest, a_thread_without_calls_is_told_of_once_after_some_seconds) {
    EXPECT_EQ(told(CacheAges::kLooksUntilOld), 0U) << "the first look sees no call before it either";
    EXPECT_EQ(told(1), 1U);
    EXPECT_EQ(told(100), 0U) << "its cache has been taken back";
    call(kIdle);
    EXPECT_EQ(told(CacheAges::kLooksUntilOld + 1), 0U);
    EXPECT_EQ(told(1), 1U) << "it may have cached something since";
    EXPECT_EQ(told(100), 0U);
}

TEST_F(CacheAgesTest, a_thread_that_has_ended_asks_for_nothing) {
    shm_.view.threads[kIdle].owner.store(0);
    EXPECT_EQ(told(100), 0U) << "all others would have to give their caches back for it";
}

TEST_F(CacheAgesTest, nor_does_a_thread_whose_cache_nobody_can_take_or_has_been_taken) {
    shm_.view.threads[kIdle].answered.store(Answered::kNever);
    EXPECT_EQ(told(100), 0U);
    shm_.view.threads[kIdle].answered.store(1);
    shm_.view.header->gathered_for.store(2);
    EXPECT_EQ(told(100), 0U);
}

}  // namespace
}  // namespace numacre::daemon
