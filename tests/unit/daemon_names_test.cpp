// The daemon's side of names: who may change what, what the copy in the pool's region says, and what a daemon that is
// started again makes of ledger and copy.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "memory/ledger.hpp"
#include "pool/names.hpp"
#include "spec/pool_spec.hpp"

namespace numacre::daemon {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Found = NameReader<ProductionEnv>::Found;

NameText text(const std::string &name) {
    NameText words;
    EXPECT_EQ(NameText::read(name.c_str(), words), NameFault::none) << name;
    return words;
}

class NamesTest : public testing::Test {
protected:
    static constexpr NameAsker kAlice{1000, 1, false}, kBob{1001, 2, false}, kRoot{0, 3, true};

    NamesTest() { start({}); }
    // As a daemon that is started again does: the ledger and the copy stay.
    void start(const std::vector<std::uint32_t> &client_ids) {
        names_ = std::make_unique<Names>(*ledger_, *published_, "default");
        names_->take_over(client_ids);
    }
    Answer<std::uint64_t> bind(const std::string &name, std::uint64_t value, const NameAsker &asker = kAlice,
                               const NameCondition &condition = std::nullopt, bool is_of_pool = false) {
        NameEntry entry;
        entry.name = text(name);
        entry.kind = NameKind::reference;
        entry.value = value;
        entry.is_of_pool = is_of_pool;
        return names_->bind(entry, condition, asker);
    }
    // What a client finds.
    std::optional<std::uint64_t> published(const std::string &name) const {
        NameEntry entry;
        std::uint32_t place = 0;
        if (NameReader<ProductionEnv>(*published_).find(text(name), entry, place) != Found::yes) return std::nullopt;
        return entry.value;
    }
    std::vector<std::string> listed() const {
        std::vector<std::string> list;
        for (const NameEntry &entry : names_->list()) list.push_back(text_of(entry.name));
        return list;
    }

    Answer<PoolLedger> ledger_ = PoolLedger::create(PoolSpec{}, 1, 1);
    std::unique_ptr<Names::Directory> published_ = std::make_unique<Names::Directory>();
    std::unique_ptr<Names> names_;
};

TEST_F(NamesTest, what_is_bound_is_published_and_what_is_unbound_is_not) {
    EXPECT_EQ(*bind("b", 7), 1U);
    EXPECT_EQ(*bind("a", 8), 2U);
    EXPECT_EQ(published("b"), 7U);
    EXPECT_EQ(published_->version, 2U);
    EXPECT_THAT(listed(), ElementsAre("a", "b"));
    EXPECT_EQ(names_->count(), 2U);
    EXPECT_EQ(names_->find(text("b"))->user, 1000U);
    EXPECT_EQ(*bind("b", 9), 3U);
    EXPECT_EQ(published("b"), 9U);
    EXPECT_EQ(*names_->unbind(text("b"), std::nullopt, kAlice), 4U);
    EXPECT_EQ(published("b"), std::nullopt);
    EXPECT_EQ(names_->find(text("b")), std::nullopt);
    EXPECT_EQ(published_->version, 4U);
    EXPECT_THAT(names_->damage(), IsEmpty());
}

TEST_F(NamesTest, a_condition_that_does_not_hold_changes_nothing) {
    const std::uint64_t version = *bind("n", 7);
    EXPECT_EQ(bind("n", 8, kAlice, 0).error().code, Errc::already_exists);
    EXPECT_EQ(bind("n", 8, kAlice, version + 1).error().code, Errc::contended);
    EXPECT_EQ(bind("m", 8, kAlice, version).error().code, Errc::no_such_name);
    EXPECT_EQ(names_->unbind(text("n"), version + 1, kAlice).error().code, Errc::contended);
    EXPECT_EQ(published_->version, version);
    EXPECT_EQ(published("n"), 7U);
    EXPECT_TRUE(bind("n", 8, kAlice, version));
    EXPECT_TRUE(bind("m", 8, kAlice, 0));
}

TEST_F(NamesTest, a_name_is_changed_by_its_user_or_an_operator) {
    ASSERT_TRUE(bind("clients", 7));
    ASSERT_TRUE(bind("pools", 7, kAlice, std::nullopt, true));
    for (const std::string name : {"clients", "pools"}) {
        const auto refused = bind(name, 8, kBob);
        EXPECT_EQ(refused.error().code, Errc::access_denied);
        EXPECT_THAT(refused.error().message, HasSubstr("user 1000's"));
        EXPECT_EQ(names_->unbind(text(name), std::nullopt, kBob).error().code, Errc::access_denied);
        EXPECT_EQ(published(name), 7U);
    }
    // Another client of the same user: the name is that client's from then on.
    EXPECT_TRUE(bind("clients", 9, {1000, 9, false}));
    EXPECT_EQ(names_->find(text("clients"))->client_id, 9U);
    EXPECT_TRUE(bind("pools", 9, kRoot));
    EXPECT_EQ(names_->find(text("pools"))->user, 0U);
    EXPECT_FALSE(bind("pools", 9, kAlice));
    EXPECT_TRUE(names_->unbind(text("clients"), std::nullopt, kRoot));
}

TEST_F(NamesTest, a_user_has_a_quota_and_the_pool_a_bound) {
    for (std::size_t i = 0; i < Names::kOfUser; ++i) ASSERT_TRUE(bind("a" + std::to_string(i), 1));
    const auto refused = bind("more", 1);
    EXPECT_EQ(refused.error().code, Errc::over_quota);
    EXPECT_THAT(refused.error().message, HasSubstr("has 64 names"));
    EXPECT_TRUE(bind("a0", 2)) << "it has that already";
    ASSERT_TRUE(bind("b", 1, kBob));
    for (std::size_t i = names_->count(); i < kNames; ++i) ASSERT_TRUE(bind("r" + std::to_string(i), 1, kRoot));
    const auto full = bind("more", 1, kRoot);
    EXPECT_EQ(full.error().code, Errc::over_quota);
    EXPECT_THAT(full.error().message, HasSubstr("256 names"));
    EXPECT_THAT(names_->damage(), IsEmpty());
    EXPECT_TRUE(names_->unbind(text("b"), std::nullopt, kBob));
    EXPECT_TRUE(bind("more", 1, kRoot));
    EXPECT_EQ(published("more"), 1U);
}

TEST_F(NamesTest, the_end_of_a_client_takes_its_own_names_only) {
    ASSERT_TRUE(bind("own", 1));
    ASSERT_TRUE(bind("also", 1));
    ASSERT_TRUE(bind("pools", 1, kAlice, std::nullopt, true));
    ASSERT_TRUE(bind("others", 1, kBob));
    const std::uint64_t version = published_->version;
    names_->end_of_client(77);
    EXPECT_EQ(published_->version, version);
    names_->end_of_client(kAlice.client_id);
    EXPECT_THAT(listed(), ElementsAre("others", "pools"));
    EXPECT_EQ(published("own"), std::nullopt);
    EXPECT_EQ(published("pools"), 1U);
    EXPECT_GT(published_->version, version);
    EXPECT_THAT(names_->damage(), IsEmpty());
}

TEST_F(NamesTest, the_next_daemon_goes_on_with_the_ledger_and_makes_the_copy_anew) {
    ASSERT_TRUE(bind("living", 1));
    ASSERT_TRUE(bind("gone", 2, kBob));
    ASSERT_TRUE(bind("pools", 3, kBob, std::nullopt, true));
    const std::uint64_t version = published_->version;
    for (const unsigned fill : {0U, 1U, 0xa5U, 0xffU}) {
        SCOPED_TRACE(fill);
        // As after a death between the ledger and the copy, and worse.
        std::memset(static_cast<void *>(published_.get()), static_cast<int>(fill), sizeof(Names::Directory));
        start({kAlice.client_id});
        EXPECT_THAT(listed(), ElementsAre("living", "pools"));
        EXPECT_EQ(published("living"), 1U);
        EXPECT_EQ(published("gone"), std::nullopt);
        EXPECT_EQ(published("pools"), 3U);
        EXPECT_THAT(names_->damage(), IsEmpty());
        EXPECT_GT(published_->version, version) << "who watches looks anew";
    }
    EXPECT_GT(*bind("living", 4), version);
    EXPECT_EQ(published("living"), 4U);
    EXPECT_THAT(names_->damage(), IsEmpty());
}

TEST_F(NamesTest, the_next_daemon_finds_no_damage_wherever_the_last_name_was_being_removed) {
    ASSERT_TRUE(bind("n", 1));
    const std::uint32_t place = NameText::place_of(text("n").hash());
    const std::uint64_t state = published_->heads[place].state, hash = published_->heads[place].hash;
    ASSERT_NE(state, 0U);
    ASSERT_TRUE(names_->unbind(text("n"), std::nullopt, kAlice));
    const std::uint64_t version = published_->version;
    // The copy as it was after each store of the removal, the last first.
    const std::vector<std::array<std::uint64_t, 4>> deaths{
        {0, 0, 0, version - 1}, {0, 0, 9, version - 1}, {0, hash, 9, version - 1}, {state, hash, 9, version - 1}};
    for (const auto &[old_state, old_hash, old_reach, old_version] : deaths) {
        published_->heads[place].state = old_state;
        published_->heads[place].hash = old_hash;
        published_->reach = old_reach;
        published_->version = old_version;
        start({});
        EXPECT_EQ(names_->damage(), "");
        EXPECT_EQ(published("n"), std::nullopt);
        EXPECT_GE(published_->version, version);
    }
}

TEST_F(NamesTest, any_word_of_the_copy_that_is_written_over_is_noticed_where_it_matters) {
    ASSERT_TRUE(bind("n", 1));
    ASSERT_EQ(names_->damage(), "");
    const auto is_noticed = [&](Durable<std::uint64_t> &word) {
        const std::uint64_t before = word.exchange(word + 2);
        const bool is_damaged = !names_->damage().empty();
        word = before;
        return is_damaged;
    };
    EXPECT_TRUE(is_noticed(published_->version));
    EXPECT_TRUE(is_noticed(published_->reach));
    std::uint32_t counts = 0;
    for (std::uint32_t place = 0; place < kNames; ++place) {
        EXPECT_TRUE(is_noticed(published_->heads[place].hash)) << place;
        EXPECT_TRUE(is_noticed(published_->heads[place].state)) << place;
        const std::uint64_t state = published_->heads[place].state;
        if (state == 0) continue;
        ++counts;
        auto &copy = published_->copies[place][state & 1];
        for (auto &word : copy.name) EXPECT_TRUE(is_noticed(word));
        EXPECT_TRUE(is_noticed(copy.value[0]));
        EXPECT_TRUE(is_noticed(copy.owner));
        EXPECT_TRUE(is_noticed(copy.kind));
    }
    EXPECT_EQ(counts, 1U);
    EXPECT_EQ(names_->damage(), "");
}

}  // namespace
}  // namespace numacre::daemon
