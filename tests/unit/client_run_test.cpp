// Runs through the C ABI: memory in one piece of any number of frames.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "numacre/numacre.h"

namespace {

constexpr std::size_t kFrame = 4096;
constexpr std::size_t kLargest = 64 * kFrame;
constexpr std::size_t kCapacity = 16 * kLargest;

class Runs : public ::testing::Test {
protected:
    void SetUp() override { open({sizeof(numacre_private_options), kCapacity, kFrame, kLargest, 0, 0, 0}); }
    void TearDown() override { numacre_detach(pool); }
    void open(const numacre_private_options &options) {
        numacre_detach(pool);
        ASSERT_EQ(numacre_open_private(&options, &pool), 0) << numacre_last_error();
        std::size_t bytes = 0;
        void *first = nullptr;
        ASSERT_EQ(numacre_region(pool, 0, &first, &bytes), 0);
        base = static_cast<char *>(first);
    }
    // The offset of a run; npos: the errno is in `error`.
    std::size_t run_of(std::size_t bytes, std::size_t alignment = 0) {
        void *run = nullptr;
        error = numacre_alloc_run(pool, -1, bytes, alignment, &run);
        if (error != 0) return std::string::npos;
        std::memset(run, 0x5a, bytes);
        return static_cast<std::size_t>(static_cast<char *>(run) - base);
    }
    static std::string said() { return numacre_last_error(); }
    // All memory is free and in one piece again.
    void expect_all_free() {
        void *run = nullptr;
        ASSERT_EQ(numacre_alloc_run(pool, -1, kCapacity, 0, &run), 0) << said();
        EXPECT_EQ(run, base);
        EXPECT_EQ(numacre_free_run(pool, run, kCapacity), 0) << said();
        std::vector<void *> blocks(kCapacity / kLargest);
        EXPECT_EQ(numacre_alloc_bulk(pool, kLargest, blocks.data(), static_cast<unsigned>(blocks.size())), 0);
        EXPECT_EQ(numacre_free_bulk(pool, blocks.data(), static_cast<unsigned>(blocks.size())), 0);
    }

    numacre_pool *pool = nullptr;
    char *base = nullptr;
    int error = 0;
};

TEST_F(Runs, lie_one_behind_the_other_without_waste) {
    EXPECT_EQ(run_of(3 * kFrame), 0U);
    EXPECT_EQ(run_of(5 * kFrame + 1), 3 * kFrame);
    EXPECT_EQ(run_of(kLargest + kFrame), 9 * kFrame);
    EXPECT_EQ(run_of(1), 9 * kFrame + kLargest + kFrame);
    EXPECT_EQ(numacre_free_run(pool, base, 3 * kFrame), 0);
    EXPECT_EQ(numacre_free_run(pool, base + 3 * kFrame, 5 * kFrame + 1), 0) << said();
    EXPECT_EQ(numacre_free_run(pool, base + 9 * kFrame, kLargest + kFrame), 0) << said();
    EXPECT_EQ(numacre_free_run(pool, base + 10 * kFrame + kLargest, 1), 0);
    expect_all_free();
}

TEST_F(Runs, consist_of_blocks_that_the_caller_owns) {
    const std::size_t at = run_of(77 * kFrame);
    ASSERT_NE(at, std::string::npos);
    std::size_t behind = at;
    while (behind < at + 77 * kFrame) {
        const std::size_t bytes = numacre_usable_size(pool, base + behind);
        ASSERT_NE(bytes, 0U);
        EXPECT_NE(numacre_ref_of(pool, base + behind), NUMACRE_REF_NULL);
        behind += bytes;
    }
    EXPECT_EQ(behind, at + 77 * kFrame);
    // Block by block, or as a part.
    const std::size_t first = numacre_usable_size(pool, base + at);
    EXPECT_EQ(numacre_free(pool, base + at), 0);
    EXPECT_EQ(numacre_free_run(pool, base + at + first, 77 * kFrame - first), 0) << said();
    expect_all_free();
}

TEST_F(Runs, find_a_hole_that_is_as_large_as_they_are) {
    std::vector<void *> frames(kCapacity / kFrame);
    ASSERT_EQ(numacre_alloc_bulk(pool, kFrame, frames.data(), static_cast<unsigned>(frames.size())), 0);
    EXPECT_EQ(run_of(kFrame), std::string::npos);
    EXPECT_EQ(error, -ENOMEM);
    for (const std::size_t frame : {101U, 102U, 103U, 500U, 502U})
        ASSERT_EQ(numacre_free_uncached(pool, base + frame * kFrame), 0);
    EXPECT_EQ(run_of(4 * kFrame), std::string::npos);
    EXPECT_EQ(error, -ENOMEM);
    EXPECT_NE(said().find("16384 bytes"), std::string::npos) << said();
    EXPECT_EQ(run_of(2 * kFrame, 2 * kFrame), 102 * kFrame);
    EXPECT_EQ(numacre_free_run(pool, base + 102 * kFrame, 2 * kFrame), 0);
    EXPECT_EQ(run_of(3 * kFrame), 101 * kFrame);
    // Over the end of a largest block, and of a leaf word.
    for (std::size_t frame = 60; frame < 70; ++frame) ASSERT_EQ(numacre_free_uncached(pool, base + frame * kFrame), 0);
    EXPECT_EQ(run_of(10 * kFrame), 60 * kFrame);
}

TEST_F(Runs, are_aligned_as_asked) {
    EXPECT_EQ(run_of(kFrame), 0U);
    for (const std::size_t alignment : {std::size_t{64}, kFrame, 4 * kFrame, kLargest}) {
        const std::size_t at = run_of(5 * kFrame, alignment);
        ASSERT_NE(at, std::string::npos) << said();
        EXPECT_EQ((reinterpret_cast<std::uintptr_t>(base) + at) % alignment, 0U);
    }
    for (const std::size_t bad : {std::size_t{3}, std::size_t{3} * kFrame, std::size_t{4} << 20}) {
        EXPECT_EQ(run_of(kFrame, bad), std::string::npos);
        EXPECT_EQ(error, -EINVAL);
        EXPECT_NE(said().find(std::to_string(bad)), std::string::npos) << said();
    }
}

TEST_F(Runs, beyond_the_pool_are_refused_with_the_remedy) {
    for (const auto &[bytes, remedy] :
         {std::pair{std::size_t{0}, ": ask for 1 byte or more"},
          std::pair{kCapacity + 1, "the capacity of a numa node: ask for less, or use a pool of a larger capacity"}}) {
        EXPECT_EQ(run_of(bytes), std::string::npos);
        EXPECT_EQ(error, -EINVAL);
        EXPECT_TRUE(said().ends_with(remedy)) << said();
    }
}

TEST_F(Runs, take_what_threads_cache) {
    void *one = nullptr;
    ASSERT_EQ(numacre_alloc(pool, kFrame, &one), 0);
    ASSERT_EQ(numacre_free(pool, one), 0);
    std::thread([&] {
        void *other = nullptr;
        ASSERT_EQ(numacre_alloc(pool, 2 * kFrame, &other), 0);
        ASSERT_EQ(numacre_free(pool, other), 0);
    }).join();
    EXPECT_EQ(run_of(kCapacity), 0U) << said();
}

TEST_F(Runs, wrong_calls_are_refused_and_free_nothing) {
    EXPECT_EQ(run_of(0), std::string::npos);
    EXPECT_EQ(error, -EINVAL);
    EXPECT_EQ(run_of(kCapacity + 1), std::string::npos);
    EXPECT_EQ(error, -EINVAL);
    void *run = nullptr;
    EXPECT_EQ(numacre_alloc_run(pool, 1, kFrame, 0, &run), -ENODEV);
    EXPECT_EQ(numacre_alloc_run(pool, -1, kFrame, 0, nullptr), -EINVAL);
    EXPECT_EQ(numacre_alloc_run(nullptr, -1, kFrame, 0, &run), -EINVAL);
    ASSERT_EQ(run_of(6 * kFrame), 0U);
    EXPECT_EQ(numacre_free_run(pool, base, 7 * kFrame), -ESTALE);
    EXPECT_EQ(numacre_free_run(pool, base, 3 * kFrame), -EINVAL) << "ends inside a block";
    EXPECT_NE(said().find("inside a block"), std::string::npos);
    EXPECT_EQ(numacre_free_run(pool, base + kFrame, 5 * kFrame), -EINVAL) << "begins inside a block";
    EXPECT_EQ(numacre_free_run(pool, base + 1, 5 * kFrame), -EINVAL) << "begins inside a frame";
    EXPECT_EQ(numacre_free_run(pool, base - kFrame, kFrame), -EINVAL) << "outside the pool";
    EXPECT_EQ(numacre_free_run(pool, base, 0), -EINVAL);
    EXPECT_EQ(numacre_free_run(pool, nullptr, kFrame), -EINVAL);
    EXPECT_EQ(numacre_free_run(nullptr, base, kFrame), -EINVAL);
    EXPECT_EQ(numacre_free_run(pool, base, 6 * kFrame), 0);
    EXPECT_EQ(numacre_free_run(pool, base, 6 * kFrame), -ESTALE);
    expect_all_free();
}

TEST_F(Runs, of_objects_lie_at_the_distance_of_objects) {
    open({sizeof(numacre_private_options), 0, 0, 0, 0, 2368, 1000});
    ASSERT_EQ(run_of(10 * 2368), 0U);
    EXPECT_EQ(run_of(100 * 2368 - 5), 10 * 2368U);
    EXPECT_EQ(numacre_usable_size(pool, base + 3 * 2368), 2368U);
    EXPECT_EQ(numacre_free_run(pool, base, 10 * 2368), 0) << said();
    EXPECT_EQ(run_of(891 * 2368), std::string::npos);
    EXPECT_EQ(run_of(890 * 2368), 110 * 2368U);
    EXPECT_EQ(run_of(2368, 4096), std::string::npos);
    EXPECT_EQ(error, -EINVAL);
}

// Beside a bitmap of the frames: a run is refused only if no such piece is free, and is the lowest of all.
TEST_F(Runs, are_found_wherever_there_is_room) {
    for (const std::size_t largest : {16 * kFrame, 64 * kFrame, 512 * kFrame, 4096 * kFrame}) {
        const std::size_t capacity = std::max<std::size_t>(4096 * kFrame, 2 * largest);
        open({sizeof(numacre_private_options), capacity, kFrame, largest, 0, 0, 0});
        std::mt19937 random(static_cast<unsigned>(largest));
        std::vector<bool> taken(capacity / kFrame);
        std::map<std::size_t, std::size_t> held;  // by first frame
        const auto lowest = [&](std::size_t frames, std::size_t align) {
            std::size_t free = 0, first = 0;
            for (std::size_t frame = 0; frame < taken.size(); ++frame) {
                free = taken[frame] ? 0 : free + 1;
                first = (frame + 1 - free + align - 1) / align * align;
                if (free != 0 && first + frames <= frame + 1) return first;
            }
            return std::string::npos;
        };
        unsigned refused = 0;
        for (int i = 0; i < 3000; ++i) {
            if (!held.empty() && random() % 5 < 2) {
                const auto chosen = std::next(held.begin(), static_cast<std::ptrdiff_t>(random() % held.size()));
                ASSERT_EQ(numacre_free_run(pool, base + chosen->first * kFrame, chosen->second * kFrame), 0) << said();
                for (std::size_t frame = 0; frame < chosen->second; ++frame) taken[chosen->first + frame] = false;
                held.erase(chosen);
                continue;
            }
            const std::size_t frames = 1 + random() % (random() % 6 == 0 ? 700 : 70);
            const std::size_t align = random() % 3 == 0 ? std::size_t{1} << random() % 5 : 1;
            const std::size_t wanted = lowest(frames, align);
            void *run = nullptr;
            const int result = numacre_alloc_run(pool, -1, frames * kFrame, align * kFrame, &run);
            if (wanted == std::string::npos) {
                ASSERT_EQ(result, -ENOMEM);
                ++refused;
                continue;
            }
            ASSERT_EQ(result, 0) << frames << " frames are free from " << wanted << " on: " << said();
            ASSERT_EQ(static_cast<char *>(run) - base, static_cast<std::ptrdiff_t>(wanted * kFrame));
            for (std::size_t frame = 0; frame < frames; ++frame) taken[wanted + frame] = true;
            held[wanted] = frames;
        }
        EXPECT_GT(refused, 10U) << "the test has to fill the pool";
    }
}

// Runs and blocks, allocated and freed by several threads at once: none overlaps another.
TEST_F(Runs, of_several_threads_do_not_overlap) {
    std::vector<std::thread> threads;
    for (unsigned number = 0; number < 4; ++number)
        threads.emplace_back([&, number] {
            std::mt19937 random(number + 1);
            std::map<char *, std::size_t> held;
            for (int i = 0; i < 4000; ++i) {
                if (held.size() > 6 || (!held.empty() && random() % 2 == 0)) {
                    const auto chosen = std::next(held.begin(), static_cast<std::ptrdiff_t>(random() % held.size()));
                    const auto [run, bytes] = *chosen;
                    held.erase(chosen);
                    for (std::size_t at = 0; at < bytes; at += kFrame)
                        ASSERT_EQ(run[at], static_cast<char>(number + 1)) << "somebody else has written here";
                    ASSERT_EQ(numacre_free_run(pool, run, bytes), 0) << said();
                    continue;
                }
                const std::size_t bytes = 1 + random() % (random() % 8 == 0 ? 3 * kLargest : 9 * kFrame);
                void *run = nullptr;
                const int result = random() % 3 == 0 && bytes <= kLargest
                                       ? numacre_alloc(pool, bytes, &run)
                                       : numacre_alloc_run(pool, -1, bytes, random() % 4 == 0 ? 4 * kFrame : 0, &run);
                ASSERT_TRUE(result == 0 || result == -ENOMEM) << result << said();
                if (result != 0) continue;
                // A block of numacre_alloc may be larger than asked for: it is freed as a run of its own size.
                const std::size_t owned = bytes <= kLargest ? std::max(bytes, std::size_t{1}) : bytes;
                for (std::size_t at = 0; at < owned; at += kFrame)
                    static_cast<char *>(run)[at] = static_cast<char>(number + 1);
                std::size_t all = 0;
                while (all < owned) all += numacre_usable_size(pool, static_cast<char *>(run) + all);
                for (std::size_t at = 0; at < all; at += kFrame)
                    static_cast<char *>(run)[at] = static_cast<char>(number + 1);
                held[static_cast<char *>(run)] = all;
            }
            for (const auto &[run, bytes] : held) ASSERT_EQ(numacre_free_run(pool, run, bytes), 0) << said();
        });
    for (std::thread &thread : threads) thread.join();
    expect_all_free();
}

}  // namespace
