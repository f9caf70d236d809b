// NUMACRE_COMPACT: the same random trace with and without it; how many chunks are empty at the end. Counts, the same on
// every run.
#include <gtest/gtest.h>

#include <cstdio>
#include <random>
#include <vector>

#include "numacre/numacre.h"

namespace {

constexpr std::uint64_t kMiB = 1 << 20;
constexpr std::uint64_t kCapacity = 128 * kMiB, kChunk = 4 * kMiB;

struct Outcome {
    std::uint64_t empty_chunks = 0;
    std::uint64_t used_bytes = 0;
};

// Full for a while, then a tenth of it: what lives is renewed all the time, as buffers of a server are after a rush.
Outcome run(unsigned flags, std::uint32_t seed) {
    const numacre_private_options options{sizeof options, kCapacity, 4096, kChunk, 0};
    numacre_pool *pool = nullptr;
    EXPECT_EQ(numacre_open_private(&options, &pool), 0);
    std::mt19937 random(seed);
    std::vector<void *> held;
    Outcome outcome;
    const auto allocate = [&] {
        void *block = nullptr;
        const std::size_t bytes = std::size_t{4096} << random() % 6;
        ASSERT_EQ(numacre_alloc_on(pool, 0, bytes, flags | NUMACRE_UNCACHED, &block), 0) << numacre_last_error();
        outcome.used_bytes += numacre_usable_size(pool, block);
        held.push_back(block);
    };
    const auto release = [&] {
        std::swap(held[random() % held.size()], held.back());
        outcome.used_bytes -= numacre_usable_size(pool, held.back());
        ASSERT_EQ(numacre_free_uncached(pool, held.back()), 0);
        held.pop_back();
    };
    while (outcome.used_bytes < kCapacity * 8 / 10) allocate();
    while (outcome.used_bytes > kCapacity / 10) release();
    for (int i = 0; i < 20000; ++i) {
        release();
        allocate();
    }
    void *chunk = nullptr;
    while (numacre_alloc_on(pool, 0, kChunk, NUMACRE_STRICT | NUMACRE_UNCACHED, &chunk) == 0) ++outcome.empty_chunks;
    numacre_detach(pool);
    return outcome;
}

TEST(Compact, leaves_more_chunks_empty_than_without) {
    for (const std::uint32_t seed : {1U, 2U, 3U}) {
        const Outcome with = run(NUMACRE_COMPACT, seed);
        const Outcome without = run(0, seed);
        std::printf("seed %u: %llu of %llu chunks empty with NUMACRE_COMPACT, %llu without\n", seed,
                    static_cast<unsigned long long>(with.empty_chunks),
                    static_cast<unsigned long long>(kCapacity / kChunk),
                    static_cast<unsigned long long>(without.empty_chunks));
        EXPECT_EQ(with.used_bytes, without.used_bytes) << "the same trace";
        EXPECT_GT(with.empty_chunks, without.empty_chunks);
        // A tenth of 32 chunks is used: 4 at the least.
        EXPECT_GE(with.empty_chunks, 20U);
    }
}

TEST(Compact, finds_what_there_is_in_a_full_pool_and_in_one_of_small_chunks) {
    for (const std::uint64_t chunk : {std::uint64_t{4096}, 64 * std::uint64_t{4096}, kChunk}) {
        const numacre_private_options options{sizeof options, 8 * kMiB, 4096, chunk, 0};
        numacre_pool *pool = nullptr;
        ASSERT_EQ(numacre_open_private(&options, &pool), 0) << numacre_last_error();
        void *block = nullptr;
        unsigned got = 0;
        while (numacre_alloc_on(pool, -1, 4096, NUMACRE_COMPACT, &block) == 0) ++got;
        EXPECT_EQ(got, 8 * kMiB / 4096);
        ASSERT_EQ(numacre_free(pool, block == nullptr ? nullptr : block), 0) << "the last one that was got";
        numacre_detach(pool);
    }
}

}  // namespace
