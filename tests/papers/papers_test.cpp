// Every baseline with one thread: what goes in, what comes out, and that the corrections of the papers' slips are
// right.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "numacre/shm/env.hpp"
#include "papers/buddy_spinlock.hpp"
#include "papers/nbbs_four_levels.hpp"
#include "papers/nbbs_one_level.hpp"
#include "papers/spinlock_variants.hpp"

namespace numacre::papers {

using namespace engine;
namespace {

struct Size {
    std::uint64_t frame_count;
    unsigned largest_order;
};
// Trees that end at each of a bunch's four levels, with a base level at the root, inside a bunch and between two.
constexpr Size kSizes[] = {{1, 0},  {2, 1},  {4, 2},   {8, 3},   {16, 4},  {32, 2},
                           {64, 0}, {64, 3}, {128, 7}, {512, 5}, {256, 8}, {1024, 10}};

// Which frames are taken, and so what a buddy system must be able to give.
class Shadow {
public:
    explicit Shadow(std::uint64_t frame_count) : taken_(frame_count) {}
    bool free(std::uint64_t frame, unsigned order) const {
        for (std::uint64_t at = frame; at < frame + (std::uint64_t{1} << order); ++at)
            if (taken_[at]) return false;
        return true;
    }
    bool can_allocate(unsigned order) const {
        for (std::uint64_t frame = 0; frame < taken_.size(); frame += std::uint64_t{1} << order)
            if (free(frame, order)) return true;
        return false;
    }
    void set(std::uint64_t frame, unsigned order, bool taken) {
        for (std::uint64_t at = frame; at < frame + (std::uint64_t{1} << order); ++at) taken_[at] = taken;
    }

private:
    std::vector<bool> taken_;
};

struct Block {
    std::uint64_t frame;
    unsigned order;
};

template <class Allocator>
class Baseline : public ::testing::Test {};

using Allocators =
    ::testing::Types<NbbsOneLevel<ProductionEnv>, NbbsOneLevel<ProductionEnv, 64>, NbbsFourLevels<ProductionEnv>,
                     NbbsFourLevels<ProductionEnv, 64>, OneLevelSpinLock<ProductionEnv>,
                     FourLevelsSpinLock<ProductionEnv>, BuddySpinLock<ProductionEnv>>;
struct Names {
    template <class Allocator>
    static std::string GetName(int index) {
        constexpr const char *kNames[] = {"one_level",          "one_level_padded",    "four_levels",
                                          "four_levels_padded", "one_level_spin_lock", "four_levels_spin_lock",
                                          "buddy_spin_lock"};
        return kNames[index];
    }
};
TYPED_TEST_SUITE(Baseline, Allocators, Names);

TYPED_TEST(Baseline, hands_out_every_frame_once_and_takes_all_back) {
    static_assert(PaperAllocator<TypeParam>);
    for (const Size size : kSizes) {
        SCOPED_TRACE(std::to_string(size.frame_count) + " frames, largest order " + std::to_string(size.largest_order));
        TypeParam allocator(size.frame_count, size.largest_order);
        for (unsigned order = 0; order <= size.largest_order; ++order) {
            Shadow shadow(size.frame_count);
            std::vector<std::uint64_t> frames;
            while (const auto frame = allocator.allocate(order, 0)) {
                ASSERT_LT(*frame, size.frame_count);
                ASSERT_EQ(*frame % (std::uint64_t{1} << order), 0U);
                ASSERT_TRUE(shadow.free(*frame, order)) << "frame " << *frame << " twice, order " << order;
                shadow.set(*frame, order, true);
                frames.push_back(*frame);
            }
            ASSERT_EQ(frames.size(), size.frame_count >> order) << "order " << order;
            for (const std::uint64_t frame : frames) allocator.free(frame);
            std::vector<std::uint64_t> largest;
            while (const auto frame = allocator.allocate(size.largest_order, 1)) largest.push_back(*frame);
            ASSERT_EQ(largest.size(), size.frame_count >> size.largest_order) << "not all coalesced after " << order;
            for (const std::uint64_t frame : largest) allocator.free(frame, 1);
        }
        EXPECT_FALSE(allocator.allocate(size.largest_order + 1, 0));
    }
}

TYPED_TEST(Baseline, allocates_exactly_when_a_shadow_has_room) {
    for (const Size size : kSizes) {
        const char *text = std::getenv("NUMACRE_SEED");
        const std::uint64_t seed = text != nullptr ? std::strtoull(text, nullptr, 0) : 20261121;
        SCOPED_TRACE("replay: NUMACRE_SEED=" + std::to_string(seed) + ", " + std::to_string(size.frame_count) +
                     " frames, largest order " + std::to_string(size.largest_order));
        std::mt19937_64 random{seed};
        TypeParam allocator(size.frame_count, size.largest_order, 3);
        Shadow shadow(size.frame_count);
        std::vector<Block> held;
        for (int operation = 0; operation < 6000; ++operation) {
            const auto thread = static_cast<unsigned>(random() % 3);
            // Phases of growing and of shrinking, so that the tree is met full, empty and in between.
            const bool grow = random() % 100 < (operation / 500 % 2 == 0 ? 70U : 30U);
            if (grow || held.empty()) {
                const auto order = static_cast<unsigned>(random() % (size.largest_order + 1));
                const auto frame = allocator.allocate(order, thread);
                ASSERT_EQ(frame.has_value(), shadow.can_allocate(order)) << "operation " << operation;
                if (!frame) continue;
                ASSERT_EQ(*frame % (std::uint64_t{1} << order), 0U);
                ASSERT_LE(*frame + (std::uint64_t{1} << order), size.frame_count);
                ASSERT_TRUE(shadow.free(*frame, order)) << "operation " << operation;
                shadow.set(*frame, order, true);
                held.push_back({*frame, order});
            } else {
                std::swap(held[random() % held.size()], held.back());
                if (random() % 2 == 0)
                    allocator.free(held.back().frame, thread);
                else
                    allocator.free(held.back().frame);
                shadow.set(held.back().frame, held.back().order, false);
                held.pop_back();
            }
        }
        for (const Block block : held) allocator.free(block.frame);
        for (std::uint64_t left = size.frame_count >> size.largest_order; left != 0; --left)
            ASSERT_TRUE(allocator.allocate(size.largest_order, 0)) << "not all coalesced";
    }
}

TEST(NbbsSearch, a_thread_takes_again_what_it_freed_last) {
    NbbsOneLevel<ProductionEnv> allocator(256, 8);
    const auto first = allocator.allocate(3, 5);
    const auto second = allocator.allocate(3, 5);
    ASSERT_TRUE(first && second);
    EXPECT_EQ(*second, (*first + 8) % 256) << "the next node at the same level is the next to be tried";
    allocator.free(*first, 5);
    EXPECT_EQ(allocator.allocate(3, 5), first);
}

// The state that each packing derives for a node is the same after the same calls (TC Fig. 5).
TEST(NbbsNodes, both_packings_say_the_same_of_every_node) {
    for (const Size size : kSizes) {
        NbbsOneLevel<ProductionEnv> one(size.frame_count, size.largest_order);
        NbbsFourLevels<ProductionEnv> four(size.frame_count, size.largest_order);
        std::mt19937_64 random{7};
        std::vector<std::uint64_t> held;
        const TreeShape &shape = one.shape();
        for (int operation = 0; operation < 400; ++operation) {
            if (held.empty() || random() % 2 == 0) {
                const auto order = static_cast<unsigned>(random() % (size.largest_order + 1));
                const auto frame = one.allocate(order, 0);
                ASSERT_EQ(frame, four.allocate(order, 0));
                if (frame) held.push_back(*frame);
            } else {
                std::swap(held[random() % held.size()], held.back());
                one.free(held.back(), 0);
                four.free(held.back(), 0);
                held.pop_back();
            }
            // Below a block and above a full pair of buddies the packings differ by intention: free or busy there says
            // what can be allocated, and that must agree.
            for (unsigned node = 1U << shape.base_level; node < shape.node_count(); ++node) {
                bool inside = false;
                for (unsigned up = node >> 1; up >= 1U << shape.base_level; up >>= 1)
                    inside = inside || (one.nodes().status_of(up) & status::kOcc) != 0;
                if (inside) continue;
                ASSERT_EQ((one.nodes().status_of(node) & status::kBusy) != 0,
                          (four.nodes().status_of(node) & status::kBusy) != 0)
                    << "node " << node << ", operation " << operation;
                ASSERT_EQ(one.nodes().status_of(node) & status::kCoalBoth, 0U);
                ASSERT_EQ(four.nodes().status_of(node) & status::kCoalBoth, 0U);
            }
        }
    }
}

}  // namespace
}  // namespace numacre::papers
