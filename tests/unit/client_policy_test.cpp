// Where a block comes from, and in which order, by each policy: numbers alone.
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <vector>

#include "policy.hpp"

namespace numacre::client {
namespace {

// A line of five: 0 - 1 - 2 - 3 - 4.
constexpr std::uint32_t kNodes = 5;
constexpr std::uint64_t kAll = 0b11111;
constexpr std::uint8_t kNearest[kMaxNumaNodes][kMaxNumaNodes] = {
    {0, 1, 2, 3, 4}, {1, 0, 2, 3, 4}, {2, 1, 3, 0, 4}, {3, 2, 4, 1, 0}, {4, 3, 2, 1, 0}};

Surroundings at(std::uint32_t node, std::uint64_t allowed = kAll) {
    return {kNodes, allowed, kNearest[node], kNearest};
}

// The first, and the others behind it.
std::vector<int> order(const Plan &plan) {
    std::vector<int> nodes{static_cast<int>(plan.first)};
    EXPECT_FALSE(plan.any_other(kNodes, [&](std::uint32_t node) {
        nodes.push_back(static_cast<int>(node));
        return false;
    }));
    return nodes;
}
std::vector<int> order(PolicyMode mode, std::uint64_t nodes, const Surroundings &here) {
    return order(plan_without_turn(Policy{mode, nodes}, here));
}

TEST(Policies, local_is_the_threads_numa_node_and_then_the_nearest) {
    EXPECT_EQ(order(PolicyMode::local, 0, at(2)), (std::vector{2, 1, 3, 0, 4}));
    EXPECT_EQ(order(PolicyMode::local, 0, at(2, 0b11010)), (std::vector{1, 3, 4}))
        << "the cpuset has not the local one";
}

TEST(Policies, strict_is_nothing_else) {
    EXPECT_EQ(order(PolicyMode::strict, 0, at(3)), (std::vector{3}));
    EXPECT_EQ(order(PolicyMode::strict, 0b10011, at(3)), (std::vector{4, 1, 0}));
    EXPECT_EQ(order(PolicyMode::strict, 0b10011, at(3, 0b01111)), (std::vector{1, 0}));
    EXPECT_EQ(order(PolicyMode::strict, 0, at(3, 0b00011)), (std::vector{1})) << "the nearest that is allowed";
}

TEST(Policies, preferred_ones_come_first_and_then_the_others) {
    EXPECT_EQ(order(PolicyMode::preferred, 0b10001, at(1)), (std::vector{0, 4, 1, 2, 3}));
    EXPECT_EQ(order(PolicyMode::preferred, 0b10000, at(0)), (std::vector{4, 3, 2, 1, 0}))
        << "by distance from that one";
    EXPECT_EQ(order(PolicyMode::preferred, 0b10001, at(1, 0b01111)), (std::vector{0, 1, 2, 3}));
    EXPECT_EQ(order(PolicyMode::preferred, 0b10000, at(1, 0b01111)), (std::vector{1, 0, 2, 3})) << "as if not named";
    EXPECT_EQ(order(PolicyMode::preferred, 0, at(2)), order(PolicyMode::local, 0, at(2)));
}

std::vector<int> turns(const Policy &policy, const Surroundings &here, unsigned count, Turns &turns) {
    std::vector<int> nodes;
    for (unsigned i = 0; i < count; ++i) {
        const Plan plan = plan_by(policy, here, turns, 1);
        EXPECT_TRUE(plan.is_turn);
        nodes.push_back(static_cast<int>(plan.first));
    }
    return nodes;
}

TEST(Policies, interleave_takes_turns) {
    Turns begin{4, {}};
    EXPECT_EQ(turns({PolicyMode::interleave, 0}, at(2), 7, begin), (std::vector{0, 1, 2, 3, 4, 0, 1}));
    Turns again{1, {}};
    EXPECT_EQ(turns({PolicyMode::interleave, 0b10110}, at(2), 5, again), (std::vector{2, 4, 1, 2, 4}));
    EXPECT_EQ(turns({PolicyMode::interleave, 0b10110}, at(2, 0b00111), 3, again), (std::vector{1, 2, 1}));
    EXPECT_EQ(turns({PolicyMode::interleave, 0b10000}, at(2, 0b00011), 3, again), (std::vector{0, 1, 0}))
        << "none that is named is allowed";
    const Plan plan = plan_by({PolicyMode::interleave, 0b00010}, at(4), again, 1);
    EXPECT_EQ(order(plan), (std::vector{1, 0, 2, 3, 4})) << "full: by distance from the one whose turn it was";
}

TEST(Policies, interleave_uses_the_last_bit_of_a_mask) {
    Turns turns{62, {}};
    EXPECT_EQ(turns.next(~std::uint64_t{0}, false, 1), 63U);
    EXPECT_EQ(turns.next(~std::uint64_t{0}, false, 1), 0U);
    EXPECT_EQ(turns.next(std::uint64_t{1} << 63, false, 1), 63U);
}

TEST(Policies, interleave_by_frames_gives_each_as_many) {
    Turns turns;
    std::map<std::uint32_t, std::uint64_t> frames;
    // By block, one of the two would get all the large ones.
    for (unsigned i = 0; i < 128; ++i) {
        const std::uint64_t size = i % 2 == 0 ? 64 : 1;
        frames[plan_by({PolicyMode::interleave_frames, 0b1010}, at(0), turns, size).first] += size;
    }
    ASSERT_EQ(frames.size(), 2U);
    EXPECT_LE(frames[1] > frames[3] ? frames[1] - frames[3] : frames[3] - frames[1], 64U);
}

TEST(Policies, strict_for_one_call_leaves_the_first_alone) {
    Turns turns{2, {}};
    EXPECT_EQ(order(plan_by({PolicyMode::interleave, 0}, at(0), turns, 1).no_further()), (std::vector{3}));
    EXPECT_EQ(order(plan_on(at(0), 2)), (std::vector{2, 1, 3, 0, 4}));
    EXPECT_EQ(order(plan_on(at(0), 2).no_further()), (std::vector{2}));
    EXPECT_EQ(order(plan_on(at(0, 0b00111), 2)), (std::vector{2, 1, 0}));
}

TEST(Policies, what_shared_memory_says_can_always_be_followed) {
    const Policy local{PolicyMode::local, 0};
    EXPECT_EQ(sound_policy(0, 0, 2), local);
    EXPECT_EQ(sound_policy(kPolicyModes, 0, 2), local);
    EXPECT_EQ(sound_policy(~std::uint32_t{0}, ~std::uint64_t{0}, 64), local);
    EXPECT_EQ(sound_policy(2, 0b1110, 2), (Policy{PolicyMode::strict, 0b10}));
    EXPECT_EQ(sound_policy(2, 0b1100, 2), local) << "none of those that there are";
    EXPECT_EQ(sound_policy(4, ~std::uint64_t{0}, 64), (Policy{PolicyMode::interleave, ~std::uint64_t{0}}));
}

}  // namespace
}  // namespace numacre::client
