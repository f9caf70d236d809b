// numacre/inline.h beside the functions it stands for. That nothing is called: hot_path_test. That each misuse gets the
// function's answer: client_private_test, built with these calls as well. Kills inside: tests/crash.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <random>
#include <thread>
#include <vector>

#include "numacre/inline.h"
#include "numacre/os/kernel.hpp"
#include "numacre/shm/owner.hpp"

namespace numacre {

using namespace engine;
namespace {

class Inline : public ::testing::Test {
protected:
    void SetUp() override { pool = open_pool(); }
    void TearDown() override { numacre_detach(pool); }

    static numacre_pool *open_pool() {
        const numacre_private_options options{sizeof options, 16 << 20, 4096, 4 << 20, 0, 0, 0};
        numacre_pool *opened = nullptr;
        EXPECT_EQ(numacre_open_private(&options, &opened), 0) << numacre_last_error();
        return opened;
    }
    // So often that from then on nothing is called.
    static void get_used_to(numacre_pool *of, std::size_t bytes) {
        for (int i = 0; i < 64; ++i) {
            void *block = nullptr;
            ASSERT_EQ(numacre_alloc_inline(of, bytes, &block), 0) << numacre_last_error();
            ASSERT_EQ(numacre_free_inline(of, block), 0) << numacre_last_error();
        }
    }

    numacre_pool *pool = nullptr;
};

TEST_F(Inline, and_the_functions_are_one_allocator) {
    struct Held {
        std::uint64_t *block;
        std::size_t words;
        std::uint64_t stamp;
    };
    std::vector<Held> held;
    std::mt19937_64 random{20261123};
    std::size_t bytes = 4096;
    constexpr unsigned kMany = 80;  // more than a leaf word has
    for (int i = 0; i < 200'000; ++i) {
        // In runs, so that one size is what calls are about, and then another.
        if (random() % 100 == 0) bytes = std::size_t{1} + random() % (4096U << random() % 8);
        if (held.empty() || (held.size() < 300 && random() % 2 == 0)) {
            void *blocks[kMany];
            unsigned got = 1;
            int error = 0;
            if (random() % 16 == 0)
                error = numacre_alloc_bulk(pool, bytes, blocks, got = static_cast<unsigned>(1 + random() % kMany));
            else
                error =
                    random() % 4 == 0 ? numacre_alloc(pool, bytes, blocks) : numacre_alloc_inline(pool, bytes, blocks);
            if (error == -ENOMEM) continue;
            ASSERT_EQ(error, 0) << numacre_last_error();
            for (unsigned each = 0; each < got; ++each) {
                ASSERT_GE(numacre_usable_size(pool, blocks[each]), bytes);
                auto *const words = static_cast<std::uint64_t *>(blocks[each]);
                const std::size_t count = numacre_usable_size(pool, words) / sizeof *words;
                const std::uint64_t stamp = random();
                words[0] = words[count - 1] = stamp;
                held.push_back({words, count, stamp});
            }
        } else if (random() % 16 == 0) {
            std::shuffle(held.begin(), held.end(), random);
            void *blocks[kMany];
            unsigned count = 0;
            for (; count < kMany && !held.empty(); ++count) {
                ASSERT_EQ(held.back().block[0], held.back().stamp) << "somebody else has the block";
                ASSERT_EQ(held.back().block[held.back().words - 1], held.back().stamp) << "somebody else has the block";
                blocks[count] = held.back().block;
                held.pop_back();
            }
            ASSERT_EQ(numacre_free_bulk(pool, blocks, count), 0) << numacre_last_error();
        } else {
            std::swap(held[random() % held.size()], held.back());
            const Held last = held.back();
            held.pop_back();
            ASSERT_EQ(last.block[0], last.stamp) << "somebody else has the block";
            ASSERT_EQ(last.block[last.words - 1], last.stamp) << "somebody else has the block";
            ASSERT_EQ(random() % 4 == 0 ? numacre_free(pool, last.block) : numacre_free_inline(pool, last.block), 0)
                << numacre_last_error();
        }
    }
    for (const Held &each : held) ASSERT_EQ(numacre_free_inline(pool, each.block), 0) << numacre_last_error();
    void *largest[4];
    EXPECT_EQ(numacre_alloc_bulk(pool, 4 << 20, largest, 4), 0) << "all of it is free again";
}

TEST_F(Inline, mistakes_are_found_where_nothing_is_called) {
    get_used_to(pool, 4096);
    void *block = nullptr;
    ASSERT_EQ(numacre_alloc_inline(pool, 4096, &block), 0);
    auto *const bytes = static_cast<char *>(block);
    EXPECT_EQ(numacre_free_inline(pool, bytes + 64), -EINVAL) << "inside";
    EXPECT_EQ(numacre_free_inline(pool, bytes - (64 << 20)), -EINVAL) << "before the pool";
    EXPECT_EQ(numacre_free_inline(pool, bytes + (64 << 20)), -EINVAL) << "behind the pool";
    EXPECT_EQ(numacre_free_inline(pool, nullptr), -EINVAL);
    EXPECT_EQ(numacre_free_inline(nullptr, block), -EINVAL);
    EXPECT_EQ(numacre_free_inline(pool, block), 0);
    EXPECT_EQ(numacre_free_inline(pool, block), -ESTALE) << "twice";
    EXPECT_EQ(numacre_alloc_inline(pool, 4096, nullptr), -EINVAL);
    EXPECT_EQ(numacre_alloc_inline(nullptr, 4096, &block), -EINVAL);
    void *const before = block;
    EXPECT_EQ(numacre_alloc_inline(pool, 0, &block), -EINVAL);
    EXPECT_EQ(numacre_alloc_inline(pool, (4 << 20) + 1, &block), -EINVAL);
    EXPECT_EQ(block, before) << "untouched on failure";
}

TEST_F(Inline, a_published_block_is_freed_as_any_other_and_its_reference_is_gone) {
    get_used_to(pool, 4096);
    void *block = nullptr;
    ASSERT_EQ(numacre_alloc_inline(pool, 4096, &block), 0);
    const numacre_ref ref = numacre_ref_of(pool, block);
    ASSERT_NE(ref, NUMACRE_REF_NULL);
    ASSERT_EQ(numacre_free_inline(pool, block), 0);
    void *taken = nullptr;
    EXPECT_EQ(numacre_take(pool, ref, &taken), -ESTALE);
    std::vector<void *> others;
    void *again = nullptr;
    while (numacre_alloc_inline(pool, 4096, &again) == 0 && again != block) others.push_back(again);
    ASSERT_EQ(again, block) << "it is lost";
    EXPECT_NE(numacre_ref_of(pool, again), ref);
    EXPECT_EQ(numacre_take(pool, ref, &taken), -ESTALE) << "its next owner's is another one";
    ASSERT_EQ(numacre_free_inline(pool, again), 0);
    for (void *const each : others) ASSERT_EQ(numacre_free_inline(pool, each), 0);
}

TEST_F(Inline, pools_in_turn_keep_to_their_own_blocks) {
    numacre_pool *const other = open_pool();
    get_used_to(pool, 4096);
    get_used_to(other, 8192);
    for (int i = 0; i < 100; ++i) {
        void *mine = nullptr;
        void *others = nullptr;
        ASSERT_EQ(numacre_alloc_inline(pool, 4096, &mine), 0);
        ASSERT_EQ(numacre_alloc_inline(other, 4096, &others), 0);
        EXPECT_EQ(numacre_free_inline(other, mine), -EINVAL);
        EXPECT_EQ(numacre_free_inline(pool, others), -EINVAL);
        EXPECT_EQ(numacre_free_inline(pool, mine), 0);
        EXPECT_EQ(numacre_free_inline(other, others), 0);
    }
    numacre_detach(other);
}

// What one thread has in its cache is not lost to the others.
TEST_F(Inline, has_nothing_cached_any_more_when_memory_has_run_out) {
    if (os::pass_barrier() != 0) GTEST_SKIP() << "NOT TESTED: membarrier(2) is not permitted here";
    get_used_to(pool, 4096);
    std::thread([&] {
        void *block = nullptr;
        while (numacre_alloc_inline(pool, 4096, &block) == 0) {
        }
    }).join();
    void *block = nullptr;
    EXPECT_EQ(numacre_alloc_inline(pool, 4096, &block), -ENOMEM) << "what this thread had cached has been taken back";
}

// What a later library would do: a lane of this layout that is no pool's.
TEST_F(Inline, without_a_lane_of_this_layout_each_call_is_a_function_s) {
    numacre_inline_lane none{};
    none.handle = &none;
    for (int i = 0; i < 64; ++i) {
        void *block = nullptr;
        numacre_inline_lane_2 = &none;
        ASSERT_EQ(numacre_alloc_inline(pool, 4096, &block), 0) << numacre_last_error();
        numacre_inline_lane_2 = &none;
        ASSERT_EQ(numacre_free_inline(pool, block), 0) << numacre_last_error();
    }
}

// What the entry's steps say of a block is the model's (cached_block.h); here, what becomes of the magazine.
TEST(InlineMagazine, keeps_what_is_cached_and_nothing_else) {
    constexpr unsigned kFrames = 4;
    static char frames[kFrames][4096];
    char *blocks[kFrames - 1] = {};
    std::uint64_t tallies[NUMACRE_INLINE_FREES_BESIDE + 1] = {};
    const IndexEntry ours = IndexEntry::owned(ProcessSlot{1}, Order{0}, 7, {});
    std::uint64_t index[kFrames] = {ours.bits(), ours.bits(), ours.bits(), ours.bits()};
    numacre_inline_lane lane{};
    lane.frame_shift = 12;
    lane.cached_without_note = NUMACRE_INLINE_OURS | NUMACRE_INLINE_GENERATION;
    lane.all_but_generation = ~NUMACRE_INLINE_GENERATION;
    lane.cached_mark = NUMACRE_INLINE_CACHED | std::uint64_t{3} << NUMACRE_INLINE_THREAD_SHIFT;
    numacre_inline_node node{};
    node.data = frames[0];
    node.index = index;
    numacre_inline_magazine magazine{blocks, blocks, blocks + kFrames - 1, tallies};
    for (unsigned i = 0; i < kFrames; ++i)
        ASSERT_EQ(numacre_inline_put(&lane, &magazine, frames[i], &index[i], index[i]) != 0, i < kFrames - 1)
            << "has room for 3";
    EXPECT_EQ(index[0], IndexEntry::cached(ProcessSlot{1}, ThreadSlotIndex{3}, Order{0}, 7).bits());
    EXPECT_EQ(index[kFrames - 1], ours.bits()) << "there was no room: nothing happened";
    EXPECT_EQ(tallies[NUMACRE_INLINE_FREES_BESIDE], kFrames - 1);

    index[1] = IndexEntry::owned(ProcessSlot{2}, Order{0}, 8, {}).bits();
    const Note note = Note{PoolAge{6}}.for_request(4000, 12);
    const numacre_inline_wish wish{IndexEntry::owned(ProcessSlot{1}, Order{0}, 0, note).bits(),
                                   note.bits() ^ lane.cached_mark};
    void *block = nullptr;
    EXPECT_NE(numacre_inline_take(&lane, &node, &magazine, &wish, &block), 0);
    EXPECT_EQ(block, frames[2]) << "last in, first out";
    EXPECT_EQ(index[2], IndexEntry::owned(ProcessSlot{1}, Order{0}, 7, note).bits()) << "its generation stays";
    EXPECT_EQ(numacre_inline_take(&lane, &node, &magazine, &wish, &block), 0) << "another process has it";
    EXPECT_EQ(block, frames[2]) << "untouched";
    EXPECT_EQ(index[1], IndexEntry::owned(ProcessSlot{2}, Order{0}, 8, {}).bits());
    EXPECT_NE(numacre_inline_take(&lane, &node, &magazine, &wish, &block), 0);
    EXPECT_EQ(block, frames[0]) << "what was none of ours has not been kept";
    EXPECT_EQ(numacre_inline_take(&lane, &node, &magazine, &wish, &block), 0) << "it is empty";
    EXPECT_EQ(tallies[0], 2U);
}

}  // namespace
}  // namespace numacre
