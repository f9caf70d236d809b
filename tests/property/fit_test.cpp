// NUMACRE_COMPACT: beside a serial buddy system, block by block; and the same random trace with and without it: how
// many chunks are empty at the end. Counts, the same on every run.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

#include "client/cli/serial_buddy.hpp"
#include "numacre/numacre.h"

namespace {

constexpr std::uint64_t kMiB = 1 << 20;
constexpr std::uint64_t kCapacity = 128 * kMiB, kChunk = 4 * kMiB;

struct Outcome {
    std::uint64_t empty_chunks = 0;
    std::uint64_t used_bytes = 0;
};

// Full for a while, then a tenth of it: what lives is renewed all the time, as buffers of a server are after a rush.
Outcome run(unsigned flags, unsigned orders, std::uint32_t seed) {
    const numacre_private_options options{sizeof options, kCapacity, 4096, kChunk, 0, 0, 0};
    numacre_pool *pool = nullptr;
    EXPECT_EQ(numacre_open_private(&options, &pool), 0);
    std::mt19937 random(seed);
    std::vector<void *> held;
    Outcome outcome;
    const auto allocate = [&] {
        void *block = nullptr;
        const std::size_t bytes = std::size_t{4096} << random() % orders;
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
    // Single frames: each of those left has a free buddy, which fits the next one best.
    for (const unsigned orders : {1U, 6U}) {
        for (const std::uint32_t seed : {1U, 2U, 3U}) {
            const Outcome with = run(NUMACRE_COMPACT, orders, seed);
            const Outcome without = run(0, orders, seed);
            std::printf("orders below %u, seed %u: %llu of %llu chunks empty with NUMACRE_COMPACT, %llu without\n",
                        orders, seed, static_cast<unsigned long long>(with.empty_chunks),
                        static_cast<unsigned long long>(kCapacity / kChunk),
                        static_cast<unsigned long long>(without.empty_chunks));
            EXPECT_EQ(with.used_bytes, without.used_bytes) << "the same trace";
            EXPECT_GT(with.empty_chunks, without.empty_chunks);
            // A tenth of 32 chunks is used: 4 at the least.
            EXPECT_GE(with.empty_chunks, 20U);
        }
    }
}

TEST(BestFit, chooses_what_a_serial_buddy_system_chooses) {
    struct Shape {
        std::uint64_t frame, chunk, chunks;
    };
    // Leaf words alone; chunks of one and of a few upper layers; a top word of several chunks.
    for (const Shape shape : {Shape{4096, 16 * 4096, 8},
                              {4096, 64 * 4096, 8},
                              {4096, 128 * 4096, 16},
                              {4096, 4 * kMiB, 5},
                              {64, kMiB, 3},
                              {65536, 64 * kMiB, 2}}) {
        const auto largest = static_cast<unsigned>(std::countr_zero(shape.chunk / shape.frame));
        const numacre_private_options options{
            sizeof options, shape.chunk * shape.chunks, shape.frame, shape.chunk, NUMACRE_PRIVATE_BEST_FIT, 0, 0};
        numacre_pool *pool = nullptr;
        ASSERT_EQ(numacre_open_private(&options, &pool), 0) << numacre_last_error();
        void *base = nullptr;
        std::size_t bytes = 0;
        ASSERT_EQ(numacre_region(pool, 0, &base, &bytes), 0);
        numacre::cli::SerialBuddy<numacre::cli::Choice::lowest> serial(shape.chunks, largest);
        struct Held {
            void *block;
            std::uint64_t frame;
            unsigned order;
        };
        std::vector<Held> held;
        std::mt19937 random(static_cast<std::uint32_t>(shape.chunk));
        unsigned refused = 0;
        for (int i = 0; i < 20000; ++i) {
            // Up and down between empty and full.
            if (random() % 100 < (i / 2000 % 2 == 0 ? 60U : 45U)) {
                const unsigned order = std::min(random() % (largest + 1), random() % (largest + 1));
                void *block = nullptr;
                const int error = numacre_alloc_on(pool, 0, shape.frame << order, NUMACRE_UNCACHED, &block);
                const auto expected = serial.allocate(order);
                ASSERT_EQ(error == 0, expected.has_value()) << "step " << i << ", order " << order;
                refused += error == 0 ? 0 : 1;
                if (error != 0) continue;
                const std::uint64_t frame =
                    (reinterpret_cast<std::uintptr_t>(block) - reinterpret_cast<std::uintptr_t>(base)) / shape.frame;
                ASSERT_EQ(frame, *expected) << "step " << i << ", order " << order;
                held.push_back({block, frame, order});
            } else if (!held.empty()) {
                std::swap(held[random() % held.size()], held.back());
                ASSERT_EQ(numacre_free_uncached(pool, held.back().block), 0);
                serial.release(held.back().frame, held.back().order);
                held.pop_back();
            }
        }
        EXPECT_GT(refused, 0U) << "it never came near the end of the pool";
        EXPECT_FALSE(held.empty());
        numacre_detach(pool);
    }
}

TEST(Compact, finds_what_there_is_in_a_full_pool_and_in_one_of_small_chunks) {
    for (const std::uint64_t chunk : {std::uint64_t{4096}, 64 * std::uint64_t{4096}, kChunk}) {
        const numacre_private_options options{sizeof options, 8 * kMiB, 4096, chunk, 0, 0, 0};
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
