// Who may attach, and how much of the attach socket one user may take up.
#include "spec/access.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "attach/connection_limits.hpp"
#include "memory/ledger.hpp"
#include "spec/pool_spec.hpp"

namespace numacre::daemon {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::uint32_t kDaemon = 990, kOwner = 1000, kGroup = 100, kStranger = 65534;

std::uint32_t value_or(const Answer<std::uint32_t> &answer, std::uint32_t otherwise) {
    return answer ? *answer : otherwise;
}

struct Row {
    const char *what;
    std::uint32_t mode;
    std::uint32_t uid, gid;
    std::vector<std::uint32_t> groups;
    bool may_use, may_observe;
};

TEST(MayAttach, the_first_class_that_fits_decides) {
    const std::vector<Row> rows{
        {"owner", 0600, kOwner, 7, {}, true, true},
        {"owner, r only", 0400, kOwner, 7, {}, false, true},
        {"owner, w only", 0200, kOwner, 7, {}, true, false},
        {"owner, whose group may more", 0060, kOwner, kGroup, {kGroup}, false, false},
        {"owner, where all others may", 0066, kOwner, 7, {}, false, false},
        {"member", 0060, kStranger, kGroup, {}, true, true},
        {"member, r only", 0640, kStranger, kGroup, {}, false, true},
        {"member by a supplementary group", 0060, kStranger, 7, {8, kGroup, 9}, true, true},
        {"member, where all others may", 0606, kStranger, kGroup, {}, false, false},
        {"supplementary member, where all others may", 0606, kStranger, 7, {kGroup}, false, false},
        {"other", 0660, kStranger, 7, {8, 9}, false, false},
        {"other, r only", 0664, kStranger, 7, {}, false, true},
        {"other, w only", 0662, kStranger, 7, {}, true, false},
        {"other", 0666, kStranger, 7, {}, true, true},
        {"other, by bits that mean nothing", 07111, kStranger, 7, {}, false, false},
        {"a gid equal to the owner's uid is no owner", 0600, kStranger, kOwner, {kOwner}, false, false},
        {"a uid equal to the group's gid is no member", 0060, kGroup, 7, {}, false, false},
        {"root", 0000, 0, 0, {}, true, true},
        {"root's group is not root", 0000, kStranger, 0, {0}, false, false},
        {"the daemon's own user", 0000, kDaemon, 7, {}, true, true},
    };
    for (const Row &row : rows) {
        const PoolAccess access{kOwner, kGroup, row.mode};
        const Credentials who{row.uid, row.gid, row.groups};
        EXPECT_EQ(may_attach(access, who, wire::Tier::trusted, kDaemon), row.may_use) << row.what;
        EXPECT_EQ(may_attach(access, who, wire::Tier::observer, kDaemon), row.may_observe) << row.what;
        for (const wire::Tier tier : {wire::Tier::trusted, wire::Tier::observer}) {
            if (depends_on_groups(access, {row.uid, row.gid, {}}, tier, kDaemon)) continue;
            EXPECT_EQ(may_attach(access, who, tier, kDaemon), may_attach(access, {row.uid, row.gid, {}}, tier, kDaemon))
                << row.what << ": its groups were not asked for, and decide";
        }
    }
    const PoolAccess shared{kOwner, kGroup, 0664};
    EXPECT_TRUE(depends_on_groups(shared, {kStranger, 7, {}}, wire::Tier::trusted, kDaemon));
    EXPECT_FALSE(depends_on_groups(shared, {kStranger, 7, {}}, wire::Tier::observer, kDaemon));
    for (const std::uint32_t uid : {0U, kOwner, kDaemon})
        EXPECT_FALSE(depends_on_groups(shared, {uid, 7, {}}, wire::Tier::trusted, kDaemon)) << uid;
}

TEST(Names, are_found_by_name_and_by_number) {
    EXPECT_EQ(value_or(parse_user("root"), 1), 0U);
    EXPECT_EQ(value_or(parse_group("root"), 1), 0U);
    EXPECT_EQ(value_or(parse_user("4711"), 0), 4711U);
    EXPECT_EQ(value_or(parse_group("4294967294"), 0), 4294967294U);
    for (const char *bad : {"", "no-such-name", "-1", "4294967295", "4294967296", "12x", " 12", "0x10"}) {
        EXPECT_FALSE(parse_user(bad)) << bad;
        EXPECT_FALSE(parse_group(bad)) << bad;
    }
    EXPECT_EQ(user_name(0), "root");
    EXPECT_EQ(group_name(0), "root");
    EXPECT_EQ(user_name(4294967200), "4294967200");
    EXPECT_EQ(group_name(4294967200), "4294967200");
}

TEST(Mode, is_octal_and_at_most_0666) {
    for (const auto &[text, mode] : std::vector<std::pair<const char *, std::uint32_t>>{
             {"0", 0}, {"0660", 0660}, {"660", 0660}, {"0666", 0666}, {"0004", 04}}) {
        const auto parsed = parse_mode(text);
        ASSERT_TRUE(parsed) << text;
        EXPECT_EQ(*parsed, mode);
        EXPECT_EQ(value_or(parse_mode(format_mode(mode)), 0777), mode);
    }
    for (const char *bad : {"", "0667", "0770", "1660", "0668", "066 ", "-660", "u=rw", "00660", "0o660"})
        EXPECT_FALSE(parse_mode(bad)) << bad;
    EXPECT_EQ(format_mode(0640), "0640");
}

TEST(PoolLedger, keeps_who_may_attach) {
    PoolSpec spec;
    spec.max_threads_per_client = 7;
    spec.access = {kOwner, kGroup, 0604};
    auto ledger = PoolLedger::create(spec, 1, 1);
    ASSERT_TRUE(ledger) << ledger.error().message;
    const auto again = PoolLedger::open(Fd(::dup(ledger->fd())));
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_EQ(again->spec().access, spec.access);
    EXPECT_EQ(again->spec().max_threads_per_client, 7U);
}

class Limits : public testing::Test {
protected:
    // Why not, or empty.
    std::string admit(std::uint32_t uid) { return limits_.admit(uid, now_).refused; }

    ConnectionLimits::Time now_{seconds{1000}};  // the test's own clock
    ConnectionLimits limits_{{.connections = 5, .silent_connections = 3, .connections_per_second = 10}};
};

TEST(TokenBucket, gives_a_burst_and_then_its_rate) {
    TokenBucket::Time now{seconds{5}};
    TokenBucket bucket(4, now);
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(bucket.take(now)) << i;
    EXPECT_FALSE(bucket.take(now));
    EXPECT_FALSE(bucket.take(now + milliseconds{249}));
    EXPECT_TRUE(bucket.take(now + milliseconds{250}));
    EXPECT_FALSE(bucket.take(now + milliseconds{251}));
    EXPECT_FALSE(bucket.take(now)) << "a clock that goes back gives nothing";
    now += seconds{3600};
    EXPECT_TRUE(bucket.is_full(now)) << "and no more than full";
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(bucket.take(now)) << i;
    EXPECT_FALSE(bucket.take(now));
}

TEST_F(Limits, silent_connections_are_limited_and_attaching_makes_room) {
    for (int i = 0; i < 3; ++i) EXPECT_EQ(admit(kOwner), "");
    EXPECT_NE(admit(kOwner).find("uid 1000 has 3 connections that have not attached"), std::string::npos);
    EXPECT_EQ(admit(kStranger), "") << "another user has limits of its own";
    limits_.attached(kOwner);
    EXPECT_EQ(admit(kOwner), "");
    EXPECT_NE(admit(kOwner), "");
    limits_.closed(kOwner, true);
    EXPECT_EQ(admit(kOwner), "");
}

TEST_F(Limits, connections_are_limited_and_closing_makes_room) {
    for (int i = 0; i < 5; ++i) {
        EXPECT_EQ(admit(kOwner), "") << i;
        limits_.attached(kOwner);
    }
    const std::string refused = admit(kOwner);
    EXPECT_NE(refused.find("its 5 connections"), std::string::npos) << refused;
    EXPECT_NE(refused.find("--max-connections-per-user"), std::string::npos) << refused;
    limits_.closed(kOwner, false);
    EXPECT_EQ(admit(kOwner), "");
}

TEST_F(Limits, clients_of_a_daemon_before_count_until_they_are_gone) {
    for (int i = 0; i < 6; ++i) limits_.adopted(kOwner, now_);
    EXPECT_NE(admit(kOwner).find("--max-connections-per-user"), std::string::npos);
    EXPECT_EQ(admit(kStranger), "");
    limits_.closed(kOwner, false);
    EXPECT_NE(admit(kOwner), "") << "there were more than there may be";
    limits_.closed(kOwner, false);
    EXPECT_EQ(admit(kOwner), "");
    limits_.attached(kOwner);
    EXPECT_NE(admit(kOwner), "");
}

TEST(Observers, have_a_quarter_of_the_seats_but_never_all) {
    for (const auto &[clients, observers] : std::vector<std::pair<std::uint32_t, std::uint32_t>>{
             {1, 0}, {2, 1}, {3, 1}, {4, 1}, {7, 1}, {8, 2}, {256, 64}}) {
        PoolSpec spec;
        spec.max_clients = clients;
        EXPECT_EQ(observer_limit_of(spec), observers) << clients;
    }
}

TEST_F(Limits, connections_in_a_second_are_limited) {
    for (int i = 0; i < 10; ++i) {
        EXPECT_EQ(admit(kOwner), "") << i;
        limits_.closed(kOwner, true);
    }
    const std::string refused = admit(kOwner);
    EXPECT_NE(refused.find("--max-connections-per-second"), std::string::npos) << refused;
    EXPECT_EQ(admit(kStranger), "");
    now_ += milliseconds{100};
    EXPECT_EQ(admit(kOwner), "");
    EXPECT_NE(admit(kOwner), "");
}

TEST_F(Limits, a_refusal_is_news_once_a_second) {
    unsigned news = 0;
    const ConnectionLimits::Time start = now_;
    // 100 a second for three seconds: a tenth of them is let in.
    for (; now_ < start + seconds{3}; now_ += milliseconds{10}) {
        const auto verdict = limits_.admit(kOwner, now_);
        if (verdict.refused.empty()) {
            limits_.closed(kOwner, true);
        } else if (verdict.is_news) {
            ++news;
        }
    }
    EXPECT_EQ(news, 3U);
}

TEST_F(Limits, users_who_have_gone_are_forgotten) {
    for (std::uint32_t uid = 1; uid <= 100'000; ++uid) {
        ASSERT_EQ(admit(uid), "");
        limits_.closed(uid, true);
        now_ += milliseconds{1};
    }
    EXPECT_LE(limits_.known_users(), 4096U);
    // One that is still connected is not.
    ASSERT_EQ(admit(7), "");
    now_ += seconds{3600};
    for (std::uint32_t uid = 200'000; uid < 210'000; ++uid) {
        ASSERT_EQ(admit(uid), "");
        limits_.closed(uid, true);
        now_ += milliseconds{1};
    }
    for (int i = 0; i < 2; ++i) EXPECT_EQ(admit(7), "");
    EXPECT_NE(admit(7), "") << "the first connection was forgotten";
}

}  // namespace
}  // namespace numacre::daemon
