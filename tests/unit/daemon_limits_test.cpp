// Limits that only warn: each crossing is told once, and one that only wavers is not told again.
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "limits.hpp"

namespace numacre::daemon {
namespace {

constexpr std::uint64_t kNone = 0;

TEST(SoftQuota, is_exceeded_above_it_and_over_at_seven_eighths) {
    bool over = false;
    // What was used, and if that is over a soft quota of 800.
    const std::vector<std::pair<std::uint64_t, bool>> course{
        {0, false},   {799, false}, {800, false}, {801, true},  {800, true}, {701, true},
        {5000, true}, {701, true},  {700, false}, {800, false}, {801, true}, {0, false},
    };
    unsigned told = 0;
    for (const auto &[used, expected] : course) {
        const bool now = is_over_soft_quota(over, used, 800);
        EXPECT_EQ(now, expected) << used;
        if (now && !over) ++told;
        over = now;
    }
    EXPECT_EQ(told, 2U);
}

TEST(SoftQuota, none_is_never_exceeded_and_ends_what_was) {
    EXPECT_FALSE(is_over_soft_quota(false, 1000, kNone));
    EXPECT_FALSE(is_over_soft_quota(true, 1000, kNone));
}

TEST(SoftQuota, the_smallest_and_the_largest) {
    EXPECT_TRUE(is_over_soft_quota(false, 4096, 1));
    EXPECT_FALSE(is_over_soft_quota(true, 0, 1)) << "there is no eighth of it, and nothing is used";
    constexpr auto kLargest = std::numeric_limits<std::uint64_t>::max();
    EXPECT_FALSE(is_over_soft_quota(false, kLargest - 1, kLargest));
}

TEST(LowWatermark, begins_below_it_and_ends_at_nine_eighths) {
    constexpr std::uint64_t kOnline = 8000;
    bool below = false;
    const std::vector<std::pair<std::uint64_t, bool>> course{
        {8000, false}, {801, false}, {800, false}, {799, true},  {800, true}, {899, true},
        {0, true},     {899, true},  {900, false}, {800, false}, {799, true}, {8000, false},
    };
    unsigned begun = 0, ended = 0;
    for (const auto &[free, expected] : course) {
        const bool now = is_below_watermark(below, free, kOnline, 800);
        EXPECT_EQ(now, expected) << free;
        begun += now && !below ? 1 : 0;
        ended += !now && below ? 1 : 0;
        below = now;
    }
    EXPECT_EQ(begun, 2U);
    EXPECT_EQ(ended, 2U);
}

TEST(LowWatermark, none_is_never_passed) {
    EXPECT_FALSE(is_below_watermark(false, 0, 0, kNone));
    EXPECT_FALSE(is_below_watermark(true, 0, 0, kNone));
}

TEST(LowWatermark, all_of_a_small_numa_node_is_enough_to_end_it) {
    EXPECT_TRUE(is_below_watermark(true, 849, 850, 800));
    EXPECT_FALSE(is_below_watermark(true, 850, 850, 800)) << "nine eighths would be 900";
    EXPECT_TRUE(is_below_watermark(true, 700, 700, 800)) << "less than the watermark is online";
    EXPECT_TRUE(is_below_watermark(false, 700, 700, 800));
    EXPECT_FALSE(is_below_watermark(true, 800, 800, 800));
}

}  // namespace
}  // namespace numacre::daemon
