// The C ABI on a private pool: every call, every misuse that needs no second process.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "numacre/numacre.h"

namespace {

class PrivatePool : public ::testing::Test {
protected:
    void SetUp() override {
        const numacre_private_options options{sizeof options, 16 << 20, 4096, 4 << 20, 0, 0, 0};
        ASSERT_EQ(numacre_open_private(&options, &pool), 0) << numacre_last_error();
    }
    void TearDown() override { numacre_detach(pool); }
    static std::string error() { return numacre_last_error(); }
    // At the same moment, as near as may be. The other thread has ended on return.
    std::array<int, 2> free_by_two_threads(int (*free_it)(numacre_pool *, void *), void *block) const {
        std::array<int, 2> results{1, 1};
        std::thread other([&] { results[0] = free_it(pool, block); });
        results[1] = free_it(pool, block);
        other.join();
        return results;
    }

    numacre_pool *pool = nullptr;
};

TEST_F(PrivatePool, gives_aligned_writable_blocks_of_the_next_power_of_two) {
    for (const std::size_t size : {1UL, 4096UL, 4097UL, 100'000UL, 4UL << 20}) {
        void *block = nullptr;
        ASSERT_EQ(numacre_alloc(pool, size, &block), 0) << error();
        const std::size_t usable = numacre_usable_size(pool, block);
        EXPECT_GE(usable, size);
        EXPECT_EQ(usable & (usable - 1), 0U);
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % std::min<std::size_t>(usable, 2 << 20), 0U);
        std::memset(block, 0xab, usable);
        EXPECT_EQ(numacre_free(pool, block), 0) << error();
        EXPECT_EQ(numacre_usable_size(pool, block), 0U);
    }
}

TEST_F(PrivatePool, what_was_freed_last_comes_back_first_on_whatever_numa_node_was_asked_for) {
    for (const int numa_node : {-1, 0}) {
        void *first = nullptr;
        ASSERT_EQ(numacre_alloc_on(pool, numa_node, 4096, 0, &first), 0) << error();
        std::memset(first, 0xab, 4096);
        ASSERT_EQ(numacre_free(pool, first), 0);
        void *again = nullptr;
        ASSERT_EQ(numacre_alloc_on(pool, numa_node, 4000, NUMACRE_ZERO, &again), 0) << error();
        EXPECT_EQ(again, first) << "not from the thread's cache";
        const auto *const bytes = static_cast<const unsigned char *>(again);
        EXPECT_TRUE(std::all_of(bytes, bytes + 4096, [](unsigned char byte) { return byte == 0; }));
        ASSERT_EQ(numacre_free(pool, again), 0);
    }
}

TEST_F(PrivatePool, refuses_sizes_that_cannot_be) {
    void *block = &pool;
    EXPECT_EQ(numacre_alloc(pool, 0, &block), -EINVAL);
    EXPECT_NE(error().find("size 0"), std::string::npos) << error();
    EXPECT_EQ(numacre_alloc(pool, (4 << 20) + 1, &block), -EINVAL);
    EXPECT_NE(error().find("4194305"), std::string::npos) << error();
    EXPECT_EQ(numacre_alloc(pool, SIZE_MAX, &block), -EINVAL);
    EXPECT_EQ(block, &pool) << "the result is untouched on failure";
}

TEST_F(PrivatePool, refuses_frees_that_cannot_be_and_loses_nothing) {
    void *block = nullptr;
    ASSERT_EQ(numacre_alloc(pool, 3 * 4096, &block), 0);
    char *const bytes = static_cast<char *>(block);
    int outside = 0;
    EXPECT_EQ(numacre_free(pool, nullptr), -EINVAL);
    EXPECT_NE(error().find("NULL"), std::string::npos);
    EXPECT_EQ(numacre_free(pool, &outside), -EINVAL);
    EXPECT_NE(error().find("outside"), std::string::npos) << error();
    EXPECT_EQ(numacre_free(pool, bytes + 17), -EINVAL);
    EXPECT_NE(error().find("inside a frame"), std::string::npos) << error();
    EXPECT_EQ(numacre_free(pool, bytes + 4096), -EINVAL);
    EXPECT_NE(error().find("inside the block"), std::string::npos) << error();
    EXPECT_EQ(numacre_free(pool, bytes + (64 << 20)), -EINVAL);
    EXPECT_EQ(numacre_usable_size(pool, block), 4U * 4096);
    EXPECT_EQ(numacre_free(pool, block), 0);
    EXPECT_EQ(numacre_free(pool, block), -ESTALE);
    EXPECT_TRUE(error().ends_with("freed already: free each block once, by the address that its allocation gave"))
        << error();
}

TEST_F(PrivatePool, is_full_when_it_is_full_and_whole_again_afterwards) {
    std::vector<void *> blocks;
    void *block = nullptr;
    while (numacre_alloc(pool, 4096, &block) == 0) blocks.push_back(block);
    EXPECT_EQ(blocks.size(), 4096U);
    EXPECT_EQ(numacre_alloc(pool, 4096, &block), -ENOMEM);
    EXPECT_TRUE(error().ends_with(
        "on any numa node that is allowed (0, the first: full): free blocks, wait, or open a larger pool"))
        << error();
    EXPECT_EQ(error().find("in one piece"), std::string::npos) << error();
    for (const auto &[size, remedy] : {std::pair<std::size_t, const char *>{0, "ask for 1 byte or more"},
                                       {(4 << 20) + 1,
                                        "ask for less, use numacre_alloc_run(), or a pool of a larger "
                                        "largest block"},
                                       {(16 << 20) + 1,
                                        "ask for less, or use a pool of a larger capacity and largest "
                                        "block"}}) {
        EXPECT_EQ(numacre_alloc(pool, size, &block), -EINVAL);
        EXPECT_TRUE(error().ends_with(std::string("the pool's largest block: ") + remedy)) << error();
    }
    for (std::size_t i = 0; i < blocks.size(); i += 2) EXPECT_EQ(numacre_free(pool, blocks[i]), 0);
    EXPECT_EQ(numacre_alloc(pool, 8192, &block), -ENOMEM);
    EXPECT_NE(error().find("not in one piece"), std::string::npos) << error();
    for (std::size_t i = 1; i < blocks.size(); i += 2) EXPECT_EQ(numacre_free(pool, blocks[i]), 0);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(numacre_alloc(pool, 4 << 20, &block), 0) << error();
}

TEST_F(PrivatePool, bulk_is_all_or_nothing) {
    void *blocks[5000];
    std::fill(std::begin(blocks), std::end(blocks), nullptr);
    EXPECT_EQ(numacre_alloc_bulk(pool, 4096, blocks, 5000), -ENOMEM);
    void *all[4];
    ASSERT_EQ(numacre_alloc_bulk(pool, 4 << 20, all, 4), 0) << "the failed bulk gave everything back: " << error();
    EXPECT_EQ(numacre_free_bulk(pool, all, 4), 0);
    std::fill(std::begin(blocks), std::end(blocks), nullptr);
    ASSERT_EQ(numacre_alloc_bulk(pool, 4096, blocks, 32), 0);
    std::swap(blocks[3], blocks[40]);  // a NULL among them
    EXPECT_EQ(numacre_free_bulk(pool, blocks, 32), -EINVAL);
    EXPECT_EQ(numacre_free(pool, blocks[40]), 0) << "the others were freed, this one was not given";
    EXPECT_EQ(numacre_free(pool, blocks[31]), -ESTALE);
    // Code and sentence are those of the first failure.
    EXPECT_EQ(numacre_free_bulk(pool, blocks + 2, 2), -ESTALE);
    EXPECT_NE(error().find("no block begins at"), std::string::npos) << error();
    EXPECT_EQ(numacre_alloc_bulk(pool, 4096, nullptr, 0), 0);
}

// 256 KiB is the largest block that goes by leaf word, 512 KiB lies in an upper one.
TEST_F(PrivatePool, a_bulk_free_of_blocks_of_every_size_frees_each_once) {
    std::vector<void *> blocks;
    for (int i = 0; i < 3; ++i) {
        for (const std::size_t size : {4096UL, 256UL << 10, 512UL << 10, 1UL << 20, 8192UL}) {
            void *block = nullptr;
            ASSERT_EQ(numacre_alloc_on(pool, -1, size, NUMACRE_UNCACHED, &block), 0) << error();
            blocks.push_back(block);
        }
    }
    // The last one's reference makes it unfit for the cache, so that all go to the tree together.
    for (void *const block : blocks) ASSERT_NE(numacre_ref_of(pool, block), NUMACRE_REF_NULL);
    EXPECT_EQ(numacre_free_bulk(pool, blocks.data(), static_cast<unsigned>(blocks.size())), 0) << error();
    for (void *const block : blocks) EXPECT_EQ(numacre_free(pool, block), -ESTALE);
    void *all[4];
    EXPECT_EQ(numacre_alloc_bulk(pool, 4 << 20, all, 4), 0) << error();
}

// Where all but a few of them go into the cache many at a time.
TEST_F(PrivatePool, a_bulk_free_into_the_cache_finds_what_does_not_belong_there) {
    constexpr unsigned kMany = 48;
    void *blocks[kMany];
    for (int i = 0; i < 64; ++i) {
        ASSERT_EQ(numacre_alloc_bulk(pool, 4096, blocks, kMany), 0) << error();
        ASSERT_EQ(numacre_free_bulk(pool, blocks, kMany), 0) << error();
    }
    ASSERT_EQ(numacre_alloc_bulk(pool, 4096, blocks, kMany), 0) << error();
    std::vector<void *> kept{blocks[20], blocks[25], blocks[26], blocks[kMany - 1]};
    ASSERT_EQ(numacre_alloc(pool, 8192, &blocks[kMany - 1]), 0) << error();
    const numacre_ref reference = numacre_ref_of(pool, blocks[17]);
    ASSERT_NE(reference, NUMACRE_REF_NULL);
    blocks[20] = blocks[3];
    blocks[25] = nullptr;
    blocks[26] = static_cast<char *>(blocks[26]) + 64;
    EXPECT_EQ(numacre_free_bulk(pool, blocks, kMany), -ESTALE) << "the first mistake: one of them is there twice";
    for (unsigned i = 0; i < kMany; ++i) EXPECT_NE(numacre_free(pool, blocks[i]), 0) << i << " was freed, or is none";
    void *taken = nullptr;
    EXPECT_EQ(numacre_take(pool, reference, &taken), -ESTALE);
    EXPECT_EQ(numacre_free_bulk(pool, kept.data(), 4), 0) << error();
    void *all[4];
    EXPECT_EQ(numacre_alloc_bulk(pool, 4 << 20, all, 4), 0) << error();
}

TEST_F(PrivatePool, a_bulk_free_names_what_was_freed_before_and_leaves_the_cache_its_blocks) {
    void *blocks[3];
    ASSERT_EQ(numacre_alloc_bulk(pool, 4096, blocks, 3), 0);
    ASSERT_EQ(numacre_free(pool, blocks[0]), 0);  // now in the thread's cache
    EXPECT_EQ(numacre_free_bulk(pool, blocks, 3), -ESTALE);
    EXPECT_NE(error().find("freed already"), std::string::npos) << error();
    EXPECT_EQ(numacre_free(pool, blocks[1]), -ESTALE) << "the others were freed";
    // What is in the cache is not in the tree as well: no block is handed out twice.
    std::vector<void *> all(4096);
    for (std::size_t i = 0; i < all.size(); ++i) {
        const unsigned flags = i % 2 == 0 ? 0 : NUMACRE_UNCACHED;
        ASSERT_EQ(flags == 0 ? numacre_alloc(pool, 4096, &all[i]) : numacre_alloc_on(pool, -1, 4096, flags, &all[i]), 0)
            << error();
    }
    std::sort(all.begin(), all.end());
    EXPECT_EQ(std::adjacent_find(all.begin(), all.end()), all.end()) << "handed out twice";
}

TEST_F(PrivatePool, flags_are_checked_and_obeyed) {
    void *block = nullptr;
    ASSERT_EQ(numacre_alloc(pool, 65536, &block), 0);
    std::memset(block, 0xff, 65536);
    ASSERT_EQ(numacre_free(pool, block), 0);
    ASSERT_EQ(numacre_alloc_on(pool, 0, 65536, NUMACRE_ZERO | NUMACRE_STRICT | NUMACRE_UNCACHED, &block), 0) << error();
    const auto *const bytes = static_cast<const unsigned char *>(block);
    EXPECT_TRUE(std::all_of(bytes, bytes + 65536, [](unsigned char byte) { return byte == 0; }));
    EXPECT_EQ(numacre_alloc_on(pool, 1, 4096, 0, &block), -ENODEV);
    EXPECT_NE(error().find("numa node 1"), std::string::npos);
    EXPECT_EQ(numacre_alloc_on(pool, -2, 4096, 0, &block), -ENODEV);
    EXPECT_EQ(numacre_alloc_on(pool, 0, 4096, 0x40, &block), -EINVAL);
    EXPECT_EQ(numacre_alloc_on(pool, 0, 4096, 5U << 8, &block), -EINVAL) << "a timeout without NUMACRE_WAIT";
}

TEST_F(PrivatePool, a_waiting_allocation_times_out_or_gets_what_is_released) {
    void *all[4];
    ASSERT_EQ(numacre_alloc_bulk(pool, 4 << 20, all, 4), 0);
    void *block = nullptr;
    EXPECT_EQ(numacre_alloc_on(pool, -1, 4096, NUMACRE_WAIT_MS(20), &block), -ETIMEDOUT);
    int result = -1;
    std::thread waiter([&] { result = numacre_alloc_on(pool, -1, 4096, NUMACRE_WAIT, &block); });
    EXPECT_EQ(numacre_free(pool, all[2]), 0);
    waiter.join();
    EXPECT_EQ(result, 0);
    const auto offset = reinterpret_cast<std::uintptr_t>(block) - reinterpret_cast<std::uintptr_t>(all[2]);
    EXPECT_LT(offset, 4U << 20) << "it can only have come from what was released";
}

TEST_F(PrivatePool, references_are_taken_once) {
    void *block = nullptr;
    ASSERT_EQ(numacre_alloc(pool, 4096, &block), 0);
    const numacre_ref ref = numacre_ref_of(pool, block);
    ASSERT_NE(ref, NUMACRE_REF_NULL);
    void *taken = nullptr;
    ASSERT_EQ(numacre_take(pool, ref, &taken), 0) << error();
    EXPECT_EQ(taken, block);
    EXPECT_EQ(numacre_take(pool, ref, &taken), -ESTALE);
    EXPECT_NE(numacre_ref_of(pool, block), ref) << "a new owner, a new generation";
    EXPECT_EQ(numacre_free(pool, block), 0);
    EXPECT_EQ(numacre_ref_of(pool, block), NUMACRE_REF_NULL);
    EXPECT_EQ(numacre_take(pool, ref, &taken), -ESTALE);
    EXPECT_EQ(numacre_take(pool, NUMACRE_REF_NULL, &taken), -EINVAL);
    EXPECT_EQ(numacre_take(pool, ~numacre_ref{0}, &taken), -EINVAL);
}

TEST_F(PrivatePool, null_arguments_are_errors) {
    void *block = nullptr;
    EXPECT_EQ(numacre_alloc(nullptr, 1, &block), -EINVAL);
    EXPECT_EQ(numacre_alloc(pool, 1, nullptr), -EINVAL);
    EXPECT_EQ(numacre_alloc_on(nullptr, -1, 1, NUMACRE_UNCACHED, &block), -EINVAL);
    EXPECT_EQ(numacre_free(nullptr, &block), -EINVAL);
    EXPECT_EQ(numacre_free_uncached(nullptr, &block), -EINVAL);
    EXPECT_EQ(numacre_take(nullptr, 1, &block), -EINVAL);
    EXPECT_STREQ(numacre_last_error(), "numacre_take: the pool is NULL: fix the call");
    EXPECT_EQ(numacre_open_private(nullptr, nullptr), -EINVAL);
    EXPECT_EQ(numacre_attach(nullptr, nullptr, nullptr), -EINVAL);
    EXPECT_EQ(numacre_usable_size(nullptr, block), 0U);
    EXPECT_EQ(numacre_ref_of(nullptr, block), NUMACRE_REF_NULL);
    numacre_detach(nullptr);
}

// A thread knows a pool by its handle's address. Were that given to the next pool while the thread still has what it
// knows of the one that is gone, it would go on there.
TEST(PrivatePoolHandles, a_thread_does_not_take_the_next_pool_for_the_one_that_is_gone) {
    const numacre_private_options options{sizeof options, 16 << 20, 4096, 4 << 20, 0, 0, 0};
    numacre_pool *pool = nullptr;
    ASSERT_EQ(numacre_open_private(&options, &pool), 0);
    int turn = 0;  // even: the other thread's
    std::mutex mutex;
    std::condition_variable changed;
    const auto wait_for = [&](int wanted) {
        std::unique_lock lock{mutex};
        changed.wait(lock, [&] { return turn == wanted; });
    };
    const auto pass_on = [&] {
        {
            const std::lock_guard lock{mutex};
            ++turn;
        }
        changed.notify_all();
    };
    std::thread other{[&] {
        for (int round = 0; round < 20; ++round) {
            wait_for(2 * round);
            void *block = nullptr;
            EXPECT_EQ(numacre_alloc(pool, 4096, &block), 0);
            void *base = nullptr;
            std::size_t bytes = 0;
            EXPECT_EQ(numacre_region(pool, 0, &base, &bytes), 0);
            EXPECT_LT(static_cast<std::size_t>(static_cast<char *>(block) - static_cast<char *>(base)), bytes);
            EXPECT_EQ(numacre_free(pool, block), 0);
            pass_on();
        }
    }};
    for (int round = 0; round < 20; ++round) {
        wait_for(2 * round + 1);
        numacre_detach(pool);
        EXPECT_EQ(numacre_open_private(&options, &pool), 0);
        pass_on();
    }
    other.join();
    numacre_detach(pool);
}

// Both pools count the names of their blocks from the same number: without the pool's own salt the old name is the name
// of the new block.
TEST(PrivatePoolHandles, a_reference_to_a_closed_pool_is_stale_in_the_next_pool) {
    const numacre_private_options options{sizeof options, 16 << 20, 4096, 4 << 20, 0, 0, 0};
    for (const std::size_t size : {std::size_t{4096}, std::size_t{4} << 20}) {
        numacre_pool *pool = nullptr;
        void *block = nullptr;
        ASSERT_EQ(numacre_open_private(&options, &pool), 0) << numacre_last_error();
        ASSERT_EQ(numacre_alloc(pool, size, &block), 0);
        const numacre_ref old = numacre_ref_of(pool, block);
        ASSERT_NE(old, NUMACRE_REF_NULL);
        numacre_detach(pool);

        ASSERT_EQ(numacre_open_private(&options, &pool), 0) << numacre_last_error();
        ASSERT_EQ(numacre_alloc(pool, size, &block), 0);
        const numacre_ref current = numacre_ref_of(pool, block);
        ASSERT_NE(current, NUMACRE_REF_NULL);
        void *taken = nullptr;
        EXPECT_EQ(numacre_take(pool, old, &taken), -ESTALE);
        EXPECT_EQ(taken, nullptr);
        EXPECT_EQ(numacre_take(pool, current, &taken), 0) << numacre_last_error();
        EXPECT_EQ(taken, block);
        numacre_detach(pool);
    }
}

TEST(PrivateOptions, impossible_geometries_are_named) {
    numacre_pool *pool = nullptr;
    const auto open = [&pool](std::uint64_t capacity, std::uint64_t frame, std::uint64_t largest) {
        const numacre_private_options options{sizeof options, capacity, frame, largest, 0, 0, 0};
        return numacre_open_private(&options, &pool);
    };
    EXPECT_EQ(open(1 << 20, 48, 4096), -EINVAL);
    EXPECT_NE(std::string{numacre_last_error()}.find("48"), std::string::npos);
    EXPECT_EQ(open(1 << 20, 32, 4096), -EINVAL);
    EXPECT_EQ(open((1 << 20) + 1, 4096, 4096), -EINVAL);
    EXPECT_EQ(open(1 << 20, 4096, 3 << 20), -EINVAL);
    EXPECT_EQ(open(std::uint64_t{4} << 30, 4096, std::uint64_t{2} << 30), -EINVAL);
    const numacre_private_options old{1, 0, 0, 0, 0, 0, 0};
    EXPECT_EQ(numacre_open_private(&old, &pool), -EINVAL);
    const numacre_private_options flagged{sizeof flagged, 0, 0, 0, 8, 0, 0};
    EXPECT_EQ(numacre_open_private(&flagged, &pool), -EINVAL);
    EXPECT_EQ(pool, nullptr);
}

TEST(PrivateOptions, defaults_and_extremes_work) {
    const numacre_private_options cases[] = {
        {sizeof(numacre_private_options), 0, 0, 0, 0, 0, 0},
        {sizeof(numacre_private_options), 64, 64, 64, 0, 0, 0},
        {sizeof(numacre_private_options), 12 << 20, 64, 4 << 20, 0, 0, 0},
        {sizeof(numacre_private_options), std::uint64_t{4} << 30, 2 << 20, std::uint64_t{1} << 30, 0, 0, 0},
        {sizeof(numacre_private_options), std::uint64_t{1} << 40, 4096, std::uint64_t{1} << 30, 0, 0, 0}};
    for (const auto &options : cases) {
#ifdef __SANITIZE_THREAD__
        // ThreadSanitizer leaves a program 1.5 TiB for all its mappings; whether one of 1 TiB fits depends on where the
        // rest was put.
        if (options.capacity_bytes >= std::uint64_t{1} << 40) {
            std::puts("Skipped under ThreadSanitizer: the 1 TiB pool (no address space for it)");
            continue;
        }
#endif
        numacre_pool *pool = nullptr;
        ASSERT_EQ(numacre_open_private(&options, &pool), 0) << numacre_last_error();
        numacre_pool_info info{};
        info.struct_size = sizeof info;
        ASSERT_EQ(numacre_get_info(pool, &info), 0);
        void *block = nullptr;
        ASSERT_EQ(numacre_alloc(pool, info.largest_block_bytes, &block), 0) << numacre_last_error();
        static_cast<char *>(block)[info.largest_block_bytes - 1] = 1;
        EXPECT_EQ(numacre_free(pool, block), 0);
        void *base = nullptr;
        std::size_t bytes = 0;
        ASSERT_EQ(numacre_region(pool, 0, &base, &bytes), 0);
        EXPECT_EQ(bytes, info.capacity_bytes);
        numacre_detach(pool);
    }
}

TEST(PrivateOptions, blocks_of_all_sizes_are_aligned_to_their_size) {
    constexpr std::uint64_t kLargest = std::uint64_t{1} << 30;
    // The kernel puts each pool elsewhere.
    for (int attempt = 0; attempt < 4; ++attempt) {
        const numacre_private_options options{sizeof options, 2 * kLargest, 4096, kLargest, 0, 0, 0};
        numacre_pool *pool = nullptr;
        ASSERT_EQ(numacre_open_private(&options, &pool), 0) << numacre_last_error();
        for (std::uint64_t size = 4096; size <= kLargest; size *= 2) {
            void *block = nullptr;
            ASSERT_EQ(numacre_alloc(pool, size, &block), 0) << numacre_last_error();
            EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % size, 0U) << block << " of " << size << " bytes";
            EXPECT_EQ(numacre_free(pool, block), 0);
        }
        numacre_detach(pool);
    }
}

// Fields are only ever appended: a program and a library of different versions agree on the first ones.
TEST(StructSize, a_program_that_knows_fewer_fields_of_the_info_gets_those_and_nothing_beyond) {
    numacre_pool *pool = nullptr;
    ASSERT_EQ(numacre_open_private(nullptr, &pool), 0) << numacre_last_error();
    numacre_pool_info whole{};
    whole.struct_size = sizeof whole;
    ASSERT_EQ(numacre_get_info(pool, &whole), 0);
    struct Guarded {
        numacre_pool_info info;
        std::array<unsigned char, 64> behind;
    };
    for (std::size_t size = sizeof(std::size_t); size <= sizeof(Guarded); size += 4) {
        Guarded guarded;
        std::memset(&guarded, 0xa5, sizeof guarded);
        guarded.info.struct_size = size;
        ASSERT_EQ(numacre_get_info(pool, &guarded.info), 0) << size << ": " << numacre_last_error();
        whole.struct_size = size;
        EXPECT_EQ(std::memcmp(&guarded, &whole, std::min(size, sizeof whole)), 0) << size;
        const auto *const bytes = reinterpret_cast<const unsigned char *>(&guarded);
        for (std::size_t i = std::min(size, sizeof whole); i < sizeof guarded; ++i)
            EXPECT_EQ(bytes[i], i < size ? 0 : 0xa5) << "byte " << i << " of a struct of " << size;
    }
    for (const std::size_t size : {std::size_t{0}, std::size_t{7}, std::size_t{4097}, ~std::size_t{0}}) {
        numacre_pool_info info{};
        info.struct_size = size;
        EXPECT_EQ(numacre_get_info(pool, &info), -EINVAL) << size;
        EXPECT_NE(std::string{numacre_last_error()}.find(std::to_string(size)), std::string::npos);
    }
    numacre_detach(pool);
}

TEST(StructSize, options_of_an_older_program_have_defaults_behind_and_a_newer_one_is_told_what_is_unknown) {
    struct Newer {
        numacre_private_options options;
        std::uint64_t field;
    };
    using Options = numacre_private_options;
    for (const std::size_t size :
         {offsetof(Options, capacity_bytes), offsetof(Options, frame_bytes), offsetof(Options, largest_block_bytes),
          offsetof(Options, flags), offsetof(Options, object_bytes), sizeof(Options)}) {
        Newer newer{{size, std::uint64_t{1} << 20, 64, 1 << 16, ~0U, ~std::uint64_t{0}, ~std::uint64_t{0}},
                    ~std::uint64_t{0}};
        if (size > offsetof(Options, flags)) newer.options.flags = NUMACRE_PRIVATE_COMPACT;
        if (size == sizeof(Options)) newer.options.object_bytes = newer.options.object_count = 0;
        numacre_pool *pool = nullptr;
        ASSERT_EQ(numacre_open_private(&newer.options, &pool), 0) << size << ": " << numacre_last_error();
        numacre_pool_info info{};
        info.struct_size = sizeof info;
        ASSERT_EQ(numacre_get_info(pool, &info), 0);
        const bool has_capacity = size >= offsetof(Options, frame_bytes);
        EXPECT_EQ(info.capacity_bytes, has_capacity ? std::uint64_t{1} << 20 : std::uint64_t{64} << 20) << size;
        const bool has_frame = size >= offsetof(Options, largest_block_bytes);
        EXPECT_EQ(info.frame_bytes, has_frame ? 64U : 4096U) << size;
        numacre_detach(pool);
    }
    Newer newer{{sizeof newer, std::uint64_t{1} << 20, 0, 0, 0, 0, 0}, 0};
    numacre_pool *pool = nullptr;
    ASSERT_EQ(numacre_open_private(&newer.options, &pool), 0) << numacre_last_error();
    numacre_detach(pool);
    newer.field = 1;
    EXPECT_EQ(numacre_open_private(&newer.options, &pool), -EINVAL);
    EXPECT_NE(std::string{numacre_last_error()}.find("field at byte " + std::to_string(offsetof(Newer, field))),
              std::string::npos)
        << numacre_last_error();
    for (const std::size_t size : {std::size_t{0}, std::size_t{7}, std::size_t{4097}, ~std::size_t{0}}) {
        const numacre_private_options options{size, 0, 0, 0, 0, 0, 0};
        EXPECT_EQ(numacre_open_private(&options, &pool), -EINVAL) << size;
        EXPECT_NE(std::string{numacre_last_error()}.find(std::to_string(size)), std::string::npos);
    }
}

TEST(Attach, without_a_daemon_says_so) {
    numacre_pool *pool = nullptr;
    EXPECT_EQ(numacre_attach("/nonexistent/numacre", nullptr, &pool), -ECONNREFUSED);
    EXPECT_NE(std::string{numacre_last_error()}.find("/nonexistent/numacre/attach.sock"), std::string::npos);
    const std::string too_long(200, 'x');
    EXPECT_EQ(numacre_attach(too_long.c_str(), nullptr, &pool), -EINVAL);
}

TEST_F(PrivatePool, a_forked_child_is_refused) {
    void *block = nullptr;
    ASSERT_EQ(numacre_alloc(pool, 4096, &block), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        void *other = nullptr;
        const bool refused = numacre_alloc(pool, 4096, &other) == -ECHILD && numacre_free(pool, block) == -ECHILD &&
                             numacre_ref_of(pool, block) == NUMACRE_REF_NULL &&
                             std::strstr(numacre_last_error(), "fork") != nullptr;
        numacre_detach(pool);  // must be harmless
        numacre_pool *own = nullptr;
        const bool fresh = numacre_open_private(nullptr, &own) == 0 && numacre_alloc(own, 1, &other) == 0;
        _exit(refused && fresh ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    EXPECT_EQ(numacre_free(pool, block), 0) << "the parent goes on";
}

TEST_F(PrivatePool, has_no_daemon_that_tells_of_events) {
    int fd = -5;
    EXPECT_EQ(numacre_event_fd(pool, &fd), -EINVAL);
    EXPECT_EQ(fd, -5);
    EXPECT_EQ(numacre_event_fd(nullptr, &fd), -EINVAL);
    EXPECT_EQ(numacre_event_fd(pool, nullptr), -EINVAL);
    std::uint32_t events = 7;
    EXPECT_EQ(numacre_events(pool, &events), 0);
    EXPECT_EQ(events, 0U);
    EXPECT_EQ(numacre_events(pool, nullptr), -EINVAL);
}

TEST_F(PrivatePool, threads_come_and_go_without_using_up_slots) {
    // More threads over time than there are slots.
    for (int round = 0; round < 1200; ++round) {
        std::vector<std::thread> threads;
        for (int i = 0; i < 4; ++i)
            threads.emplace_back([this] {
                void *block = nullptr;
                ASSERT_EQ(numacre_alloc(pool, 4096, &block), 0) << numacre_last_error();
                ASSERT_EQ(numacre_free(pool, block), 0);
            });
        for (std::thread &thread : threads) thread.join();
    }
    void *all[4];
    EXPECT_EQ(numacre_alloc_bulk(pool, 4 << 20, all, 4), 0) << "threads that ended left no mark";
}

// NUMACRE_CHECK_FREES: whatever they free and by what call, one of the two is told.
class CheckedPool : public PrivatePool {
protected:
    void SetUp() override {
        setenv("NUMACRE_CHECK_FREES", "1", 1);
        PrivatePool::SetUp();
        unsetenv("NUMACRE_CHECK_FREES");
    }
};

int free_in_bulk(numacre_pool *pool, void *block) {
    return numacre_free_bulk(pool, &block, 1);
}

TEST_F(CheckedPool, two_threads_freeing_one_block_free_it_once) {
    for (const std::size_t size : {std::size_t{4096}, std::size_t{1} << 20})
        for (int (*const free_it)(numacre_pool *, void *) : {numacre_free, numacre_free_uncached, free_in_bulk})
            for (int round = 0; round < 700; ++round) {
                void *block = nullptr;
                ASSERT_EQ(numacre_alloc(pool, size, &block), 0);
                const auto results = free_by_two_threads(free_it, block);
                ASSERT_EQ((results[0] == 0) + (results[1] == 0), 1);
                ASSERT_EQ(std::min(results[0], results[1]), -ESTALE);
            }
    void *all[4];
    EXPECT_EQ(numacre_alloc_bulk(pool, 4 << 20, all, 4), 0) << error();
}

TEST_F(CheckedPool, keeps_nothing_in_caches) {
    void *blocks[100];
    for (void *&block : blocks) ASSERT_EQ(numacre_alloc(pool, 4096, &block), 0) << error();
    for (void *const block : blocks) ASSERT_EQ(numacre_free(pool, block), 0) << error();
    void *all[4];
    EXPECT_EQ(numacre_alloc_bulk(pool, 4 << 20, all, 4), 0) << "without giving back a cache first: " << error();
    std::thread([&] { EXPECT_EQ(numacre_free_bulk(pool, all, 4), 0); }).join();
}

TEST(PrivatePoolChecks, another_value_is_refused) {
    numacre_pool *pool = nullptr;
    setenv("NUMACRE_CHECK_FREES", "yes", 1);
    EXPECT_EQ(numacre_open_private(nullptr, &pool), -EINVAL);
    EXPECT_STREQ(numacre_last_error(), "NUMACRE_CHECK_FREES=yes: use 1, 0, or do not set it");
    EXPECT_EQ(numacre_attach("/nowhere", nullptr, &pool), -EINVAL);
    setenv("NUMACRE_CHECK_FREES", "0", 1);
    EXPECT_EQ(numacre_open_private(nullptr, &pool), 0);
    unsetenv("NUMACRE_CHECK_FREES");
    numacre_detach(pool);
}

// Otherwise both may succeed, each thread with the block in its cache. The other thread ends here, and gives back its
// cache.
TEST_F(PrivatePool, two_threads_freeing_one_block_do_not_make_two_of_it) {
    for (int (*const free_it)(numacre_pool *, void *) : {numacre_free, numacre_free_uncached})
        for (int round = 0; round < 2000; ++round) {
            void *block = nullptr;
            ASSERT_EQ(numacre_alloc(pool, 4096, &block), 0);
            const auto results = free_by_two_threads(free_it, block);
            ASSERT_EQ(std::max(results[0], results[1]), 0);
            void *again[2];
            ASSERT_EQ(numacre_alloc_on(pool, -1, 4096, NUMACRE_UNCACHED, &again[0]), 0);
            ASSERT_EQ(numacre_alloc(pool, 4096, &again[1]), 0);
            ASSERT_NE(again[0], again[1]);
            for (void *const each : again) ASSERT_EQ(numacre_free_uncached(pool, each), 0);
        }
    void *all[4];
    EXPECT_EQ(numacre_alloc_bulk(pool, 4 << 20, all, 4), 0) << error();
}

}  // namespace
