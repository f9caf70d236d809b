// References of many blocks at once, and of blocks that are born with one. One process owns all blocks here: what two
// processes do to each other is in tests/crash.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "numacre/numacre.h"

namespace {

constexpr unsigned kMany = 32;
constexpr std::size_t kFrame = 4096;
constexpr std::size_t kLargest = 4 << 20;

class References : public ::testing::Test {
protected:
    void SetUp() override {
        const numacre_private_options options{sizeof options, 16 << 20, kFrame, kLargest, 0, 0, 0};
        ASSERT_EQ(numacre_open_private(&options, &pool), 0) << error();
    }
    void TearDown() override {
        void *all[4];
        EXPECT_EQ(numacre_alloc_bulk(pool, kLargest, all, 4), 0) << "all of it is free again: " << error();
        numacre_detach(pool);
    }
    static std::string error() { return numacre_last_error(); }
    void fill_cache(std::size_t size_bytes) {
        ASSERT_EQ(numacre_alloc_bulk(pool, size_bytes, blocks.data(), kMany), 0) << error();
        ASSERT_EQ(numacre_free_bulk(pool, blocks.data(), kMany), 0) << error();
    }
    // Each reference names its block, once.
    void expect_names(std::size_t size_bytes) {
        for (unsigned i = 0; i < kMany; ++i) {
            EXPECT_EQ(numacre_ref_of(pool, blocks[i]), refs[i]) << "block " << i << " of " << size_bytes << " bytes";
            EXPECT_EQ(numacre_virt_to_ref(pool, blocks[i]), refs[i]) << "block " << i;
            void *taken = nullptr;
            EXPECT_EQ(numacre_take(pool, refs[i], &taken), 0) << error();
            EXPECT_EQ(taken, blocks[i]);
            EXPECT_EQ(numacre_take(pool, refs[i], &taken), -ESTALE) << "the block has another name since";
            EXPECT_EQ(numacre_virt_to_ref(pool, blocks[i]), NUMACRE_REF_NULL);
        }
    }

    numacre_pool *pool = nullptr;
    std::array<void *, kMany> blocks{};
    std::array<numacre_ref, kMany> refs{};
};

TEST_F(References, blocks_are_born_with_their_names_from_the_tree_and_from_the_cache) {
    // Up to a leaf word of 64 frames, blocks may come from the cache; larger ones never do.
    for (const std::size_t size_bytes : {kFrame, 3 * kFrame, 16 * kFrame, 64 * kFrame, 128 * kFrame})
        for (const bool is_cached : {false, true}) {
            const unsigned count = std::min<unsigned>(kMany, static_cast<unsigned>((12 << 20) / size_bytes / 2));
            if (is_cached && count == kMany) fill_cache(size_bytes);
            ASSERT_EQ(numacre_alloc_ref_bulk(pool, size_bytes, blocks.data(), refs.data(), count), 0) << error();
            if (count == kMany) {
                expect_names(size_bytes);
            } else {
                for (unsigned i = 0; i < count; ++i) EXPECT_EQ(numacre_ref_of(pool, blocks[i]), refs[i]);
            }
            ASSERT_EQ(numacre_free_bulk(pool, blocks.data(), count), 0) << error();
        }
}

// The block goes back into the cache under its old name, and comes out under another one.
TEST_F(References, a_name_of_birth_is_stale_when_the_block_is_freed) {
    fill_cache(kFrame);
    for (int (*const free_it)(numacre_pool *, void *) : {numacre_free, numacre_free_uncached})
        for (int round = 0; round < 3; ++round) {
            ASSERT_EQ(numacre_alloc_ref_bulk(pool, kFrame, blocks.data(), refs.data(), 1), 0) << error();
            const numacre_ref before = refs[0];
            void *const block = blocks[0];
            ASSERT_EQ(free_it(pool, block), 0) << error();
            void *taken = nullptr;
            EXPECT_EQ(numacre_take(pool, before, &taken), -ESTALE);
            ASSERT_EQ(numacre_alloc_ref_bulk(pool, kFrame, blocks.data(), refs.data(), 1), 0) << error();
            if (free_it == numacre_free) {
                EXPECT_EQ(blocks[0], block) << "not from the thread's cache";
            }
            EXPECT_NE(refs[0], before);
            EXPECT_EQ(numacre_take(pool, before, &taken), -ESTALE);
            EXPECT_EQ(numacre_take(pool, refs[0], &taken), 0) << error();
            ASSERT_EQ(numacre_free(pool, taken), 0);
        }
}

TEST_F(References, a_bulk_call_that_fails_leaves_the_arrays_as_they_were) {
    for (const bool is_cached : {false, true})
        // More than fit into the pool, by one block and by many; one more than the cache has.
        for (const std::size_t size_bytes : {kFrame, 16 * kFrame, 2 * 64 * kFrame}) {
            const auto count = static_cast<unsigned>((16 << 20) / size_bytes + 1);
            if (is_cached) {
                void *one = nullptr;
                ASSERT_EQ(numacre_alloc(pool, size_bytes, &one), 0);
                ASSERT_EQ(numacre_free(pool, one), 0);
            }
            std::vector<void *> array(count);
            std::vector<numacre_ref> names(count, 7);
            for (unsigned i = 0; i < count; ++i) array[i] = &array[i];
            for (int what = 0; what < 3; ++what) {
                EXPECT_EQ(what == 0   ? numacre_alloc_bulk(pool, size_bytes, array.data(), count)
                          : what == 1 ? numacre_alloc_ref_bulk(pool, size_bytes, array.data(), names.data(), count)
                                      : numacre_alloc_bulk(pool, kLargest + 1, array.data(), 1),
                          what == 2 ? -EINVAL : -ENOMEM);
                for (unsigned i = 0; i < count; ++i)
                    ASSERT_TRUE(array[i] == &array[i] && names[i] == 7) << "place " << i << " of " << count;
            }
        }
}

TEST_F(References, bulk_calls_go_on_behind_what_is_wrong_and_tell_the_first_error) {
    ASSERT_EQ(numacre_alloc_bulk(pool, kFrame, blocks.data(), kMany), 0) << error();
    ASSERT_EQ(numacre_free(pool, blocks[3]), 0);
    void *const freed = std::exchange(blocks[3], nullptr);
    void *const inside = std::exchange(blocks[5], static_cast<char *>(blocks[5]) + 1);
    EXPECT_EQ(numacre_ref_bulk(pool, blocks.data(), refs.data(), kMany), -EPERM);
    for (unsigned i = 0; i < kMany; ++i)
        EXPECT_EQ(refs[i], i == 3 || i == 5 ? NUMACRE_REF_NULL : numacre_ref_of(pool, blocks[i])) << i;
    EXPECT_EQ(numacre_virt_to_ref(pool, freed), NUMACRE_REF_NULL);
    EXPECT_EQ(numacre_virt_to_ref(pool, blocks[5]), NUMACRE_REF_NULL);
    EXPECT_EQ(numacre_virt_to_ref(pool, this), NUMACRE_REF_NULL);
    EXPECT_NE(error().find("no block that has a reference"), std::string::npos) << error();

    ASSERT_EQ(numacre_free_ref(pool, refs[8]), 0) << error();
    EXPECT_EQ(numacre_free_ref(pool, refs[8]), -ESTALE) << "twice";
    std::array<void *, kMany> taken{};
    taken.fill(this);
    EXPECT_EQ(numacre_take_bulk(pool, refs.data(), taken.data(), kMany), -EINVAL) << "the first mistake is no name";
    for (unsigned i = 0; i < kMany; ++i) EXPECT_EQ(taken[i], i == 3 || i == 5 || i == 8 ? nullptr : blocks[i]) << i;
    EXPECT_EQ(numacre_take_bulk(pool, refs.data() + 9, blocks.data(), 4), -ESTALE) << "taken already";
    for (void *&each : taken)
        if (each == nullptr) each = inside;  // once; the others are freed twice
    EXPECT_EQ(numacre_free_bulk(pool, taken.data(), kMany), -ESTALE);
}

TEST_F(References, bulk_calls_refuse_null_and_do_nothing_for_none) {
    EXPECT_EQ(numacre_ref_bulk(pool, nullptr, nullptr, 0), 0);
    EXPECT_EQ(numacre_take_bulk(pool, nullptr, nullptr, 0), 0);
    EXPECT_EQ(numacre_alloc_ref_bulk(pool, kFrame, nullptr, nullptr, 0), 0);
    EXPECT_EQ(numacre_ref_bulk(nullptr, blocks.data(), refs.data(), 1), -EINVAL);
    EXPECT_EQ(numacre_ref_bulk(pool, nullptr, refs.data(), 1), -EINVAL);
    EXPECT_EQ(numacre_ref_bulk(pool, blocks.data(), nullptr, 1), -EINVAL);
    EXPECT_EQ(numacre_take_bulk(nullptr, refs.data(), blocks.data(), 1), -EINVAL);
    EXPECT_EQ(numacre_take_bulk(pool, nullptr, blocks.data(), 1), -EINVAL);
    EXPECT_EQ(numacre_take_bulk(pool, refs.data(), nullptr, 1), -EINVAL);
    EXPECT_EQ(numacre_alloc_ref_bulk(nullptr, kFrame, blocks.data(), refs.data(), 1), -EINVAL);
    EXPECT_EQ(numacre_alloc_ref_bulk(pool, kFrame, nullptr, refs.data(), 1), -EINVAL);
    EXPECT_EQ(numacre_alloc_ref_bulk(pool, kFrame, blocks.data(), nullptr, 1), -EINVAL);
    EXPECT_EQ(numacre_free_ref(nullptr, 1), -EINVAL);
    EXPECT_EQ(numacre_free_ref(pool, NUMACRE_REF_NULL), -EINVAL);
    EXPECT_EQ(numacre_virt_to_ref(nullptr, blocks.data()), NUMACRE_REF_NULL);
}

}  // namespace
