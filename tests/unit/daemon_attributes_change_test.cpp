// Attributes of a pool in use: which can change, what a change does to clients and to the next daemon, and that a
// refused change changes nothing.
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "managed_pool_fixture.hpp"
#include "memory/ledger.hpp"
#include "numacre/shm/fit.hpp"
#include "pool_attribute_values.hpp"
#include "spec/pool_attributes.hpp"
#include "spec/pool_spec.hpp"

namespace numacre::daemon {

using namespace engine;
namespace {

std::string value_of(const PoolSpec &spec, std::string_view key) {
    return find_pool_attribute(key)->format(spec);
}

// As the test's values suit a pool in use: max-clients and policy below what PoolSpec{} has.
std::string new_value(std::string_view key) {
    if (key == "policy") return "interleave:0";
    return kAttributeValues.find(key)->second;
}

TEST(AttributeChange, each_attribute_changes_alone_or_says_why_not) {
    for (const PoolAttribute &attribute : pool_attributes()) {
        SCOPED_TRACE(attribute.key);
        PoolSpec before;
        const auto after = changed(before, {{std::string(attribute.key), new_value(attribute.key)}});
        if (!attribute.is_changeable()) {
            ASSERT_FALSE(after);
            EXPECT_EQ(after.error().code, Errc::bad_argument);
            EXPECT_NE(after.error().message.find(std::string(attribute.key) + " = "), std::string::npos);
            const std::string_view reason =
                attribute.fixed_because.empty() ? attribute.changed_by : attribute.fixed_because;
            EXPECT_NE(after.error().message.find(reason), std::string::npos) << after.error().message;
            continue;
        }
        // Alone, a soft quota of 40M is below no quota; all others stand by themselves.
        ASSERT_TRUE(after) << after.error().message;
        EXPECT_EQ(attribute.format(*after), new_value(attribute.key));
        for (const PoolAttribute &other : pool_attributes()) {
            if (other.key == attribute.key) continue;
            EXPECT_EQ(other.format(*after), other.format(before)) << other.key;
        }
    }
}

TEST(AttributeChange, what_is_refused_names_key_value_and_remedy) {
    const PoolSpec spec;
    const std::vector<std::pair<AttributeChanges, std::string>> refused{
        {{{"colour", "red"}}, "unknown attribute \"colour\": use one of max-clients, "},
        {{{"pin_quarantine", "3s"}}, "unknown attribute \"pin_quarantine\": did you mean pin-quarantine?"},
        {{{std::string(100'000, 'q'), "3s"}}, "\": use one of "},
        {{{"pin-quarantine", "0s"}}, "pin-quarantine = 0s: \"0s\" is not within 1s to 24h: use a time such as 5s"},
        {{{"pin-quarantine", "25h"}}, "\"25h\" is not within 1s to 24h: use a time such as 5s"},
        {{{"pin-quarantine", "99999999999999999999s"}}, "s\" is not within 1s to 24h"},
        {{{"pin-quarantine", "5"}}, "\"5\" is no time: use one from 1s to 24h, such as 5s"},
        {{{"mode", "0777"}}, "mode = 0777: "},
        {{{"max-clients", "0"}}, "max-clients = 0: use 1 or more"},
        {{{"max-clients", "257"}}, "max-clients = 257: the pool was made for 256 processes"},
        {{{"low-watermark", "2G"}}, "more than capacity"},
        {{{"quota", "1M"}, {"soft-quota", "1M"}}, "is not below quota"},
        {{{"autosize", "10%-50%:64M-2G"}}, "autosize up to 2G is more than capacity"},
        {{{"online", "64M"}}, "online = 64M: use numacre resize"},
        {{{"owner", "no-such-user"}}, "owner = no-such-user: "},
    };
    for (const auto &[changes, message] : refused) {
        const auto after = changed(spec, changes);
        ASSERT_FALSE(after) << message;
        EXPECT_EQ(after.error().code, Errc::bad_argument);
        EXPECT_NE(after.error().message.find(message), std::string::npos) << after.error().message;
    }
}

TEST(PoolLedger, has_the_attributes_of_one_change_or_of_the_one_before) {
    PoolSpec spec;
    auto ledger = PoolLedger::create(spec, 1, 1);
    ASSERT_TRUE(ledger) << ledger.error().message;
    // More changes than there are copies.
    for (std::uint32_t i = 1; i <= 5; ++i) {
        spec.client_limit = i;
        spec.access = {i, i + 1, i % 2 == 0 ? 0600U : 0606U};
        spec.reclaim = {Reclaim::Kind::quarantine, std::chrono::seconds(i)};
        spec.autosize = {true, i, 50, 8 << 20, 64 << 20, 4 << 20, std::chrono::seconds(i)};
        spec.policy = {PolicyMode::interleave, i};
        spec.low_watermark_bytes = i * 4096;
        spec.fit = i % 2 == 0 ? Fit::best : Fit::compact;
        ledger->set_attributes(spec);
        const auto again = PoolLedger::open(Fd(::dup(ledger->fd())));
        ASSERT_TRUE(again) << again.error().message;
        for (const PoolAttribute &attribute : pool_attributes())
            EXPECT_EQ(attribute.format(again->spec()), attribute.format(spec)) << attribute.key << " of change " << i;
    }
}

class PoolInUse : public ManagedPoolTest {
protected:
    std::string topology() const override { return "synthetic:2x64M"; }

    PoolSpec change(const AttributeChanges &changes) {
        const auto after = pool_->change(changes);
        EXPECT_TRUE(after) << after.error().message;
        return after ? *after : PoolSpec{};
    }
    std::string refusal(const AttributeChanges &changes) {
        const auto after = pool_->change(changes);
        EXPECT_FALSE(after);
        return after ? "" : after.error().message;
    }
    bool seats(std::uint32_t id, wire::Tier tier = wire::Tier::trusted) {
        return static_cast<bool>(pool_->seat(id, Peer{}, tier));
    }
    std::string now(std::string_view key) { return value_of(pool_->described(), key); }
};

TEST_F(PoolInUse, every_change_is_there_for_the_next_daemon) {
    AttributeChanges changes;
    for (const PoolAttribute &attribute : pool_attributes())
        if (attribute.is_changeable()) changes.emplace(attribute.key, new_value(attribute.key));
    const PoolSpec after = change(changes);
    for (const auto &[key, value] : changes) EXPECT_EQ(value_of(after, key), value) << key;
    restart();
    for (const auto &[key, value] : changes) EXPECT_EQ(now(key), value) << key;
    EXPECT_FALSE(pool_->look_for_damage());
    EXPECT_EQ(now("capacity"), "128M");
    EXPECT_EQ(now("online"), "8M");
}

TEST_F(PoolInUse, a_refused_change_changes_nothing) {
    const auto all = [this] {
        std::string text;
        for (const PoolAttribute &attribute : pool_attributes())
            text += std::string(attribute.key) + "=" + now(attribute.key) + " ";
        return text;
    };
    const std::string before = all();
    EXPECT_NE(refusal({{"mode", "0600"}, {"quota", "4M"}, {"user-quota", "4711=1M"}, {"policy", "strict:2"}}), "");
    EXPECT_NE(refusal({{"mode", "0600"}, {"capacity", "64M"}}), "");
    EXPECT_EQ(all(), before);
}

TEST_F(PoolInUse, users_without_room_for_their_limits_leave_the_other_limits_as_they_were) {
    std::string users;
    for (int uid = 0; uid < 60; ++uid) users += std::to_string(5000 + uid) + "=1M ";
    change({{"user-quota", users}});
    Holder promised;
    promised.kind = Holder::Kind::user;
    for (std::uint32_t uid = 1; uid <= 3; ++uid) {
        promised.uid = uid;
        ASSERT_TRUE(pool_->reserve(promised, 4096));
    }
    const std::string before = now("user-quota");
    // One account is free after the first user has lost its own; two are wanted.
    EXPECT_NE(refusal({{"user-quota", users.substr(8) + "6000=2M 6001=2M"}}).find("limits for 63 users"),
              std::string::npos);
    EXPECT_EQ(now("user-quota").size(), before.size());
    for (const char *user : {"5000=1M", "5059=1M"}) EXPECT_NE(now("user-quota").find(user), std::string::npos) << user;
    EXPECT_EQ(now("user-quota").find("600"), std::string::npos);
    change({{"user-quota", users.substr(8) + "6000=2M"}});
    EXPECT_NE(now("user-quota").find("6000=2M"), std::string::npos);
    change({{"user-quota", ""}});
    EXPECT_EQ(now("user-quota"), "");
}

TEST_F(PoolInUse, fewer_clients_may_attach_than_there_are_seats) {
    change({{"max-clients", "2"}});
    EXPECT_TRUE(seats(2));
    EXPECT_FALSE(seats(3)) << "client 1 and client 2 are there";
    change({{"max-clients", "1"}});
    EXPECT_EQ(pool_->client_table().size(), 2U) << "who has attached stays";
    EXPECT_FALSE(seats(3, wire::Tier::observer)) << "a single seat is not for observers";
    change({{"max-clients", "256"}});
    EXPECT_TRUE(seats(3));
    EXPECT_TRUE(seats(4, wire::Tier::observer));
}

TEST_F(PoolInUse, clients_that_attach_find_the_new_policy_and_it_is_no_damage) {
    change({{"policy", "preferred:1"}});
    EXPECT_EQ(shared_.header->policy_mode, static_cast<std::uint32_t>(PolicyMode::preferred));
    EXPECT_EQ(shared_.header->policy_nodes, 0b10U);
    EXPECT_FALSE(pool_->look_for_damage());
    shared_.header->policy_nodes = 1;
    EXPECT_TRUE(pool_->look_for_damage()) << "somebody has scribbled";
}

TEST_F(PoolInUse, a_daemon_that_died_before_it_told_clients_the_policy_tells_them_later) {
    change({{"policy", "preferred:1"}});
    shared_.header->policy_mode = static_cast<std::uint32_t>(PolicyMode::local);
    restart();
    EXPECT_FALSE(pool_->look_for_damage());
    EXPECT_TRUE(seats(2));
    EXPECT_EQ(shared_.header->policy_mode, static_cast<std::uint32_t>(PolicyMode::preferred));
}

TEST_F(PoolInUse, the_fit_is_obeyed_from_now_on) {
    EXPECT_EQ(shared_.header->accounting.load(), accounting_of(Fit::nearby));
    change({{"fit", "best"}});
    EXPECT_EQ(shared_.header->accounting.load(), accounting_of(Fit::best));
    EXPECT_FALSE(pool_->look_for_damage());
}

TEST(PoolLedger, remembers_that_blocks_may_have_to_be_zeroed) {
    PoolSpec spec;
    auto ledger = PoolLedger::create(spec, 1, 1);
    ASSERT_TRUE(ledger);
    EXPECT_FALSE(ledger->has_zeroed());
    spec.reclaim.kind = Reclaim::Kind::zero;
    ledger->set_attributes(spec);
    for (int i = 0; i < 3; ++i) {
        spec.reclaim.kind = Reclaim::Kind::fast;
        ledger->set_attributes(spec);
        EXPECT_TRUE(ledger->has_zeroed()) << "some of the blocks that it had seized then may be there";
    }
}

TEST_F(PoolInUse, blocks_of_who_ended_under_zero_are_zeroed_whatever_the_pool_is_to_do_now) {
    change({{"reclaim", "zero"}});
    const Block block = allocate(kMiB);
    const std::uint64_t offset = pool_->geometry().bytes_of(block.base.value);
    const int fd = pool_->kept_files().at("frames0");
    const std::string secret(4096, 'x');
    ASSERT_EQ(::pwrite(fd, secret.data(), secret.size(), static_cast<off_t>(offset)), 4096);
    pool_->begin_departure(actor_.process, Departure::died);
    Departed departed;
    departed.process = actor_.process;
    pool_->worker().run([&] {
        pool_->reclaim(std::span(&departed, 1));
        return true;
    });
    ASSERT_EQ(departed.step, RecoveryStep::done);
    change({{"reclaim", "fast"}});
    restart();
    pool_->worker().run([&] {
        ThreadSlotIndex blocked_by;
        EXPECT_EQ(pool_->finish_predecessor(blocked_by), RecoveryStep::done);
        EXPECT_FALSE(pool_->release_seized()) << "all has been released";
        return true;
    });
    std::string found(4096, '?');
    ASSERT_EQ(::pread(pool_->kept_files().at("frames0"), found.data(), found.size(), static_cast<off_t>(offset)), 4096);
    EXPECT_EQ(found, std::string(4096, '\0'));
}

TEST_F(PoolInUse, a_user_quota_that_says_the_same_is_the_same) {
    change({{"user-quota", "4712=2M 4711=1M 4713=0"}});
    EXPECT_EQ(now("user-quota"), "4711=1M 4712=2M");
    PoolSpec again;
    ASSERT_TRUE(find_pool_attribute("user-quota")->parse(again, "4713=0 4712=2M 4711=1M"));
    EXPECT_EQ(value_of(again, "user-quota"), now("user-quota"));
    change({{"user-quota", "none"}});
    EXPECT_EQ(now("user-quota"), "");
}

TEST_F(PoolInUse, a_soft_quota_that_a_death_left_above_the_quota_forbids_no_change) {
    change({{"quota", "4M"}, {"soft-quota", "2M"}});
    pool_->ledger().accounts()[kPoolAccount].soft_quota_bytes.store(8 * kMiB);
    restart();
    EXPECT_EQ(now("soft-quota"), "0");
    change({{"mode", "0600"}});
}

TEST_F(PoolInUse, quotas_and_access_are_what_was_set) {
    change({{"quota", "4M"}, {"mode", "0604"}});
    EXPECT_EQ(shared_.accounts[kPoolAccount].quota_frames.load(), frames(4 * kMiB));
    EXPECT_EQ(pool_->description()->spec.access.mode, 0604U);
    EXPECT_EQ(pool_->status().quota_bytes, 4 * kMiB);
    change({{"quota", "0"}});
    EXPECT_EQ(shared_.accounts[kPoolAccount].quota_frames.load(), 0U);
}

}  // namespace
}  // namespace numacre::daemon
