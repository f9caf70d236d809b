// What one user can take up of the attach socket and of the log.
#include "attach/connection_limits.hpp"
#include "base/user_lines.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>

namespace numacre::daemon {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr ConnectionLimits::Time kStart{};

TEST(SilentConnections, of_the_user_who_has_most_the_oldest_gives_way) {
    SilentConnections silent;
    EXPECT_EQ(silent.first_to_go(), std::nullopt);
    std::uint64_t id = 0;
    for (const std::uint32_t uid : {1U, 2U, 2U, 3U, 3U, 3U}) silent.add(true, uid, ++id);
    EXPECT_EQ(silent.count(), 6U);
    EXPECT_EQ(silent.first_to_go(), 4U);
    silent.remove(true, 3, 4);
    EXPECT_EQ(silent.first_to_go(), 2U) << "of two users who have as many, the older one";
    silent.remove(true, 2, 2);
    EXPECT_EQ(silent.first_to_go(), 5U);
}

TEST(SilentConnections, a_newcomer_is_not_the_one_however_many_others_hold_all) {
    SilentConnections silent;
    std::uint64_t id = 0;
    for (int i = 0; i < 64; ++i)
        for (std::uint32_t uid = 1; uid <= 4; ++uid) silent.add(true, uid, ++id);
    const std::uint64_t newcomer = ++id;
    silent.add(true, 9, newcomer);
    for (int flood = 0; flood < 200; ++flood) {
        const auto victim = silent.first_to_go();
        ASSERT_TRUE(victim);
        ASSERT_NE(*victim, newcomer);
        const auto uid = static_cast<std::uint32_t>((*victim - 1) % 4 + 1);
        silent.remove(true, uid, *victim);
    }
}

TEST(SilentConnections, root_gives_way_to_nobody_but_root) {
    SilentConnections silent;
    silent.add(false, 0, 1);
    silent.add(false, 0, 2);
    silent.add(true, 7, 3);
    EXPECT_EQ(silent.first_to_go(), 3U);
    silent.remove(true, 7, 3);
    EXPECT_EQ(silent.first_to_go(), 1U);
}

TEST(UserLines, a_flood_of_one_user_gets_a_line_a_second_with_a_count) {
    UserLines lines(kStart, UserLines::kRefusalsAtOnce);
    unsigned first_second = 0, told = 0;
    std::uint64_t left_out = 0;
    for (int i = 0; i < 10'000; ++i) {
        if (const auto line = lines.line_for(4711, kStart + milliseconds(i))) {
            ++told;
            if (i < 1000) ++first_second;
            left_out += *line;
        }
    }
    EXPECT_LE(first_second, 11U);
    EXPECT_LE(told, 20U);
    const auto last = lines.line_for(4711, kStart + seconds(60));
    ASSERT_TRUE(last);
    EXPECT_EQ(told + left_out + *last, 10'000U) << "each refusal is a line or counted in one";
}

TEST(UserLines, another_user_is_heard_beside_a_flood_and_many_users_are_bounded) {
    UserLines lines(kStart, UserLines::kRefusalsAtOnce);
    for (int i = 0; i < 1000; ++i) (void)lines.line_for(4711, kStart);
    EXPECT_TRUE(lines.line_for(4712, kStart));
    unsigned told = 0;
    for (std::uint32_t uid = 0; uid < 100'000; ++uid) told += lines.line_for(uid, kStart + seconds(1)) ? 1 : 0;
    EXPECT_LE(told, 200U);
}

TEST(TokenBucket, gives_its_burst_and_then_its_rate) {
    TokenBucket bucket(10, 3, kStart);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(bucket.take(kStart));
    EXPECT_FALSE(bucket.take(kStart + milliseconds(99)));
    EXPECT_TRUE(bucket.take(kStart + milliseconds(101)));
    EXPECT_FALSE(bucket.is_full(kStart + milliseconds(300)));
    EXPECT_TRUE(bucket.is_full(kStart + milliseconds(500)));
}

}  // namespace
}  // namespace numacre::daemon
