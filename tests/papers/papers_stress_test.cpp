// The lock-based baselines with two threads. Every frame has a stamp that only its owner writes; a stamp that changes
// under an owner is a block owned twice. Bounded by operations; NUMACRE_SEED replays the calls, not their timing.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "numacre/shm/env.hpp"
#include "papers/buddy_spinlock.hpp"
#include "papers/spinlock_variants.hpp"

namespace numacre::papers {

using namespace engine;
namespace {

constexpr std::uint64_t kFrameCount = 2048;
constexpr unsigned kLargestOrder = 9;
constexpr unsigned kThreads = 2;
constexpr int kOperations = 200'000;  // a thread

template <class Allocator>
class LockedBaseline : public ::testing::Test {};

using Allocators =
    ::testing::Types<OneLevelSpinLock<ProductionEnv>, FourLevelsSpinLock<ProductionEnv>, BuddySpinLock<ProductionEnv>>;
struct Names {
    template <class Allocator>
    static std::string GetName(int index) {
        constexpr const char *kNames[] = {"one_level", "four_levels", "buddy"};
        return kNames[index];
    }
};
TYPED_TEST_SUITE(LockedBaseline, Allocators, Names);

TYPED_TEST(LockedBaseline, never_owns_a_frame_twice_and_ends_empty) {
    const char *text = std::getenv("NUMACRE_SEED");
    const std::uint64_t seed = text != nullptr ? std::strtoull(text, nullptr, 0) : 20261121;
    SCOPED_TRACE("replay: NUMACRE_SEED=" + std::to_string(seed));
    TypeParam allocator(kFrameCount, kLargestOrder);
    std::vector<std::atomic<unsigned>> stamps(kFrameCount);
    std::atomic<std::uint64_t> faults{0};
    const auto work = [&](unsigned thread) {
        struct Block {
            std::uint64_t frame;
            unsigned order;
        };
        std::mt19937_64 random{seed + thread};
        std::vector<Block> held;
        // relaxed throughout: a stamp needs no order to be caught when it is not the owner's.
        const auto stamp = [&](const Block &block, unsigned from, unsigned to) {
            for (std::uint64_t at = block.frame; at < block.frame + (std::uint64_t{1} << block.order); ++at)
                if (stamps[at].exchange(to, std::memory_order_relaxed) != from)
                    faults.fetch_add(1, std::memory_order_relaxed);
        };
        const auto give_back = [&] {
            stamp(held.back(), thread + 1, 0);
            allocator.free(held.back().frame, thread);
            held.pop_back();
        };
        for (int operation = 0; operation < kOperations; ++operation) {
            if (held.empty() || random() % 100 < 55) {
                const auto order =
                    static_cast<unsigned>(random() % 8 != 0 ? random() % 3 : random() % (kLargestOrder + 1));
                if (const auto frame = allocator.allocate(order, thread)) {
                    held.push_back({*frame, order});
                    stamp(held.back(), 0, thread + 1);
                    continue;
                }
            }
            if (held.empty()) continue;
            std::swap(held[random() % held.size()], held.back());
            give_back();
        }
        while (!held.empty()) give_back();
    };
    std::vector<std::thread> threads;
    for (unsigned thread = 0; thread < kThreads; ++thread) threads.emplace_back(work, thread);
    for (std::thread &thread : threads) thread.join();
    EXPECT_EQ(faults.load(), 0U);
    for (std::uint64_t left = kFrameCount >> kLargestOrder; left != 0; --left)
        EXPECT_TRUE(allocator.allocate(kLargestOrder, 0)) << "not all coalesced";
}

}  // namespace
}  // namespace numacre::papers
