// numacre_hold and numacre_drop, by the threads of one process. tests/model has every interleaving, tests/crash has
// other processes and deaths.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "numacre/numacre.h"
#include "numacre/numacre.hpp"

namespace {

constexpr std::size_t kFrame = 4096;
constexpr std::size_t kLargest = 4 << 20;
constexpr unsigned kHolds = 64;

class Holds : public ::testing::Test {
protected:
    void SetUp() override {
        const numacre_private_options options{sizeof options, 16 << 20, kFrame, kLargest, 0, 0, 0};
        ASSERT_EQ(numacre_open_private(&options, &pool), 0) << error();
    }
    void TearDown() override {
        EXPECT_TRUE(all_is_free());
        numacre_detach(pool);
    }
    static std::string error() { return numacre_last_error(); }
    // Takes all of the pool and frees it.
    bool all_is_free() {
        void *all[4];
        if (numacre_alloc_bulk(pool, kLargest, all, 4) != 0) return false;
        return numacre_free_bulk(pool, all, 4) == 0;
    }
    void *allocate(std::size_t bytes = kFrame) {
        void *block = nullptr;
        EXPECT_EQ(numacre_alloc(pool, bytes, &block), 0) << error();
        return block;
    }
    // In another thread, which ends.
    template <class Call>
    static void elsewhere(const Call &call) {
        std::thread{call}.join();
    }

    numacre_pool *pool = nullptr;
    void *held = nullptr;
};

TEST_F(Holds, a_block_that_is_freed_while_it_is_held_comes_back_with_the_last_drop) {
    for (const std::size_t bytes : {kFrame, 3 * kFrame, 64 * kFrame, 128 * kFrame, kLargest})
        for (int way = 0; way < 5; ++way) {
            void *const block = allocate(bytes);
            std::memset(block, 7, bytes);
            const numacre_ref ref = numacre_ref_of(pool, block);
            ASSERT_EQ(numacre_hold(pool, ref, &held), 0) << error();
            EXPECT_EQ(held, block);
            switch (way) {
                case 0:
                    ASSERT_EQ(numacre_free(pool, block), 0) << error();
                    break;
                case 1:
                    ASSERT_EQ(numacre_free_uncached(pool, block), 0) << error();
                    break;
                case 2:
                    ASSERT_EQ(numacre_free_bulk(pool, &block, 1), 0) << error();
                    break;
                case 3:
                    ASSERT_EQ(numacre_free_ref(pool, ref), 0) << error();
                    break;
                default:
                    elsewhere([&] { EXPECT_EQ(numacre_free(pool, block), 0) << error(); });
            }
            void *other = nullptr;
            EXPECT_EQ(numacre_hold(pool, ref, &other), -ESTALE) << "freed";
            EXPECT_EQ(numacre_take(pool, ref, &other), -ESTALE);
            EXPECT_EQ(numacre_virt_to_ref(pool, block), NUMACRE_REF_NULL);
            EXPECT_EQ(numacre_ref_of(pool, block), NUMACRE_REF_NULL);
            EXPECT_EQ(numacre_usable_size(pool, block), 0U);
            EXPECT_EQ(numacre_free(pool, block), -EPERM) << "twice";
            EXPECT_FALSE(all_is_free()) << bytes << " bytes, way " << way << ": freed under its reader";
            EXPECT_EQ(static_cast<char *>(held)[bytes - 1], 7);
            EXPECT_EQ(numacre_drop(pool, held), 0) << error();
            EXPECT_TRUE(all_is_free()) << bytes << " bytes, way " << way << ": lost";
            EXPECT_EQ(numacre_drop(pool, held), -EINVAL) << "not held";
        }
}

TEST_F(Holds, a_block_that_was_held_is_freed_by_its_owner_as_any_other) {
    void *const block = allocate();
    const numacre_ref ref = numacre_ref_of(pool, block);
    for (int round = 0; round < 3; ++round) {
        ASSERT_EQ(numacre_hold(pool, ref, &held), 0) << error();
        ASSERT_EQ(numacre_drop(pool, held), 0) << error();
        EXPECT_EQ(numacre_ref_of(pool, block), ref) << "a hold changes no name";
    }
    EXPECT_EQ(numacre_usable_size(pool, block), kFrame);
    ASSERT_EQ(numacre_free(pool, block), 0) << error();
    EXPECT_EQ(numacre_free(pool, block), -ESTALE) << "twice";
    EXPECT_TRUE(all_is_free());
}

TEST_F(Holds, a_held_block_may_change_its_owner_and_lingers_when_the_new_owner_frees_it) {
    for (const std::size_t bytes : {kFrame, 128 * kFrame}) {
        void *const block = allocate(bytes);
        const numacre_ref ref = numacre_ref_of(pool, block);
        ASSERT_EQ(numacre_hold(pool, ref, &held), 0) << error();
        void *taken = nullptr;
        ASSERT_EQ(numacre_take(pool, ref, &taken), 0) << error();
        EXPECT_EQ(numacre_hold(pool, ref, &taken), -ESTALE) << "taken";
        const numacre_ref next = numacre_ref_of(pool, taken);
        EXPECT_NE(next, ref);
        // By the call about many, whose short way does not know lent blocks.
        ASSERT_EQ(numacre_take_bulk(pool, &next, &taken, 1), 0) << error();
        ASSERT_EQ(numacre_free(pool, taken), 0) << error();
        EXPECT_FALSE(all_is_free());
        ASSERT_EQ(numacre_drop(pool, held), 0) << error();
        EXPECT_TRUE(all_is_free());
    }
}

TEST_F(Holds, holds_of_one_block_count) {
    void *const block = allocate();
    const numacre_ref ref = numacre_ref_of(pool, block);
    for (int i = 0; i < 3; ++i) ASSERT_EQ(numacre_hold(pool, ref, &held), 0) << error();
    ASSERT_EQ(numacre_free(pool, block), 0) << error();
    for (int i = 0; i < 3; ++i) {
        EXPECT_FALSE(all_is_free());
        ASSERT_EQ(numacre_drop(pool, held), 0) << error();
    }
    EXPECT_EQ(numacre_drop(pool, held), -EINVAL);
}

TEST_F(Holds, a_thread_holds_as_many_blocks_as_it_may_and_says_what_to_do_then) {
    std::array<void *, kHolds + 1> blocks{};
    std::array<numacre_ref, kHolds + 1> refs{};
    ASSERT_EQ(numacre_alloc_ref_bulk(pool, kFrame, blocks.data(), refs.data(), kHolds + 1), 0) << error();
    for (unsigned i = 0; i < kHolds; ++i) {
        ASSERT_EQ(numacre_hold(pool, refs[i], &held), 0) << error();
        EXPECT_EQ(held, blocks[i]);
    }
    EXPECT_EQ(numacre_hold(pool, refs[kHolds], &held), -ENOSPC);
    EXPECT_NE(error().find("64 blocks"), std::string::npos) << error();
    EXPECT_NE(error().find("drop one"), std::string::npos) << error();
    elsewhere([&] {
        void *here = nullptr;
        EXPECT_EQ(numacre_hold(pool, refs[kHolds], &here), 0) << "another thread has words of its own";
        EXPECT_EQ(numacre_drop(pool, blocks[0]), -EINVAL) << "another thread's";
        EXPECT_EQ(numacre_drop(pool, here), 0);
    });
    ASSERT_EQ(numacre_drop(pool, blocks[40]), 0) << error();
    ASSERT_EQ(numacre_hold(pool, refs[kHolds], &held), 0) << error();
    ASSERT_EQ(numacre_free_bulk(pool, blocks.data(), kHolds + 1), 0) << error();
    EXPECT_FALSE(all_is_free());
    for (unsigned i = 0; i <= kHolds; ++i)
        EXPECT_EQ(numacre_drop(pool, blocks[i]), i == 40 ? -EINVAL : 0) << i << ": " << error();
}

TEST_F(Holds, a_thread_that_ends_drops_what_it_holds) {
    void *const block = allocate();
    const numacre_ref ref = numacre_ref_of(pool, block);
    std::atomic<bool> is_held = false;
    std::atomic<bool> may_end = false;
    std::thread reader{[&] {
        void *here = nullptr;
        EXPECT_EQ(numacre_hold(pool, ref, &here), 0) << error();
        EXPECT_EQ(numacre_hold(pool, ref, &here), 0) << error();
        is_held = true;
        is_held.notify_one();
        may_end.wait(false);
    }};
    is_held.wait(false);
    EXPECT_EQ(numacre_free(pool, block), 0) << error();
    EXPECT_FALSE(all_is_free());
    may_end = true;
    may_end.notify_one();
    reader.join();
    EXPECT_TRUE(all_is_free());
}

TEST_F(Holds, a_last_drop_serves_a_thread_that_waits) {
    void *all[4];
    ASSERT_EQ(numacre_alloc_bulk(pool, kLargest, all, 4), 0) << error();
    const numacre_ref ref = numacre_ref_of(pool, all[0]);
    ASSERT_EQ(numacre_hold(pool, ref, &held), 0) << error();
    ASSERT_EQ(numacre_free(pool, all[0]), 0) << error();
    std::atomic<bool> has = false;
    std::thread waiter{[&] {
        void *block = nullptr;
        EXPECT_EQ(numacre_alloc_on(pool, -1, kLargest, NUMACRE_WAIT, &block), 0) << error();
        has = true;
        EXPECT_EQ(block, all[0]);
        EXPECT_EQ(numacre_free(pool, block), 0) << error();
    }};
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // so that it mostly sleeps by then
    EXPECT_FALSE(has);
    ASSERT_EQ(numacre_drop(pool, held), 0) << error();
    waiter.join();
    for (int i = 1; i < 4; ++i) EXPECT_EQ(numacre_free(pool, all[i]), 0);
}

TEST_F(Holds, a_held_block_is_not_given_to_a_thread_that_waits) {
    void *all[4];
    ASSERT_EQ(numacre_alloc_bulk(pool, kLargest, all, 4), 0) << error();
    ASSERT_EQ(numacre_hold(pool, numacre_ref_of(pool, all[0]), &held), 0) << error();
    std::atomic<void *> got = nullptr;
    std::thread waiter{[&] {
        void *block = nullptr;
        EXPECT_EQ(numacre_alloc_on(pool, -1, kLargest, NUMACRE_WAIT, &block), 0) << error();
        got = block;
    }};
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ASSERT_EQ(numacre_free(pool, all[0]), 0) << error();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(got, nullptr);
    ASSERT_EQ(numacre_free(pool, all[1]), 0) << error();
    waiter.join();
    EXPECT_EQ(got, all[1]);
    EXPECT_EQ(numacre_free(pool, got), 0) << error();
    ASSERT_EQ(numacre_drop(pool, held), 0) << error();
    for (int i = 2; i < 4; ++i) EXPECT_EQ(numacre_free(pool, all[i]), 0);
}

TEST_F(Holds, what_cannot_be_held_is_refused) {
    void *const block = allocate();
    const numacre_ref ref = numacre_ref_of(pool, block);
    EXPECT_EQ(numacre_hold(nullptr, ref, &held), -EINVAL);
    EXPECT_EQ(numacre_hold(pool, ref, nullptr), -EINVAL);
    EXPECT_EQ(numacre_hold(pool, NUMACRE_REF_NULL, &held), -EINVAL);
    EXPECT_EQ(numacre_hold(pool, ~numacre_ref{0}, &held), -EINVAL);
    EXPECT_EQ(numacre_drop(nullptr, block), -EINVAL);
    EXPECT_EQ(numacre_drop(pool, block), -EINVAL) << "owned, but not held";
    EXPECT_NE(error().find("numacre_hold"), std::string::npos) << error();
    EXPECT_EQ(numacre_drop(pool, &held), -EINVAL);
    EXPECT_EQ(numacre_drop(pool, nullptr), -EINVAL);
    EXPECT_EQ(held, nullptr) << "a failure leaves the result alone";
    EXPECT_EQ(numacre_free(pool, block), 0);
}

TEST_F(Holds, readers_beside_an_owner_that_frees_read_what_was_written) {
    constexpr int kReaders = 2;
    constexpr int kRounds = 3000;
    std::atomic<numacre_ref> name = NUMACRE_REF_NULL;
    std::atomic<bool> ends = false;
    std::atomic<std::uint64_t> holds = 0;
    std::vector<std::thread> readers;
    for (int i = 0; i < kReaders; ++i)
        readers.emplace_back([&] {
            std::uint64_t count = 0;
            while (!ends) {
                void *here = nullptr;
                const numacre_ref ref = name.load();
                if (ref == NUMACRE_REF_NULL || numacre_hold(pool, ref, &here) != 0) continue;
                ++count;
                for (int look = 0; look < 2; ++look) {
                    numacre_ref stamp = 0;
                    std::memcpy(&stamp, here, sizeof stamp);
                    if (stamp != ref) ADD_FAILURE() << "the block was freed under its reader";
                }
                if (numacre_drop(pool, here) != 0) ADD_FAILURE() << error();
            }
            holds += count;
        });
    for (int round = 0; round < kRounds; ++round) {
        void *const block = allocate();
        const numacre_ref ref = numacre_ref_of(pool, block);
        std::memcpy(block, &ref, sizeof ref);
        name = ref;
        if (round % 4 == 0) std::this_thread::yield();
        if (round % 2 == 0) name = NUMACRE_REF_NULL;
        ASSERT_EQ(numacre_free(pool, block), 0) << error();
        // The next owner of the frame writes over it.
        void *const next = allocate();
        std::memset(next, 0xee, sizeof ref);
        ASSERT_EQ(numacre_free(pool, next), 0) << error();
    }
    ends = true;
    for (std::thread &reader : readers) reader.join();
    RecordProperty("holds", std::to_string(holds));
}

TEST_F(Holds, the_cpp_face_drops_by_itself) {
    auto opened = numacre::Pool::open_private({.capacity_bytes = 16 << 20, .largest_block_bytes = 4 << 20});
    ASSERT_TRUE(opened);
    numacre::Pool mine = std::move(*opened);
    auto block = mine.allocate(kFrame);
    ASSERT_TRUE(block);
    const numacre::Ref ref = block->ref();
    {
        auto hold = mine.hold(ref);
        ASSERT_TRUE(hold);
        EXPECT_EQ(hold->data(), block->data());
        numacre::Hold moved = std::move(*hold);
        EXPECT_FALSE(*hold);
        EXPECT_TRUE(moved);
        block->reset();
        auto again = mine.hold(ref);
        ASSERT_FALSE(again);
        EXPECT_EQ(again.error().code, numacre::Errc::stale_ref);
    }
    for (int i = 0; i < 4; ++i) {
        auto whole = mine.allocate(4 << 20);
        ASSERT_TRUE(whole) << "the last drop has freed the block";
        (void)whole->release();
    }
}

}  // namespace
