// The channels in memory that is weaker than sequential consistency: each memory order in shm/channel/ is either
// needed, so that some model fails when it is weakened by one step, or listed here with a reason. (channel_test.cpp:
// the orders as they are do no harm.)
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "channel_setups.hpp"
#include "orders.hpp"

namespace numacre::model {
namespace {

// Small, and the first ones notice most.
std::vector<ShortModel<ChannelSetup>> models() {
    return {
        {"pair", pair()},
        {"around", around()},
        {"asleep", sleepers()},
        {"watch", watchers()},
        {"rejoin", rejoining()},
        {"senders", sender_after_sender()},
        {"receivers", two_receivers()},
        {"death", with_daemon(pair()), 1},
        {"death-around", with_daemon(around()), 1},
        {"death-receivers", with_daemon(two_receivers()), 1},
    };
}

// Those of the allocator that only channels use are among them.
bool is_of_channels(const Site &site) {
    return is_in(site, "numacre/shm/channel/") || (is_in(site, "ownership.hpp") && site.function == "pass_on") ||
           (is_in(site, "ownership.hpp") && site.function == "look");
}

// "More than needed" is argued, not proven. The others are not noticed by these short runs: what would notice, or that
// nothing is known yet.
constexpr const char *kUnused = "more than needed: after a failure the value is not looked at";
constexpr const char *kDead = "more than needed: only read after the kernel's word of a death, which synchronises";
constexpr const char *kDaemonOnly = "more than needed: only the daemon reads it, after its own death";
constexpr const char *kCarried = "more than needed: the store or RMW behind it carries it";
constexpr const char *kSlotReuse = "needs a model in which a slot is used again after recovery";
constexpr const char *kInherited = "needs a party that dies with what it has inherited";
constexpr const char *kLate = "needs a death of a receiver that came late, in weak memory";
constexpr const char *kReadBefore = "more than needed behind has_watchers(), which has read the word in this order";
constexpr const char *kUndecided = "undecided: no short run notices, and nobody has argued that it is more than needed";

constexpr Unnoticed kUnnoticed[] = {
    {"ownership.hpp look: load acquire -> relaxed", kUndecided},
    {"ownership.hpp pass_on: store release -> relaxed", kCarried},
    {"bells.hpp ring: load seq_cst -> acquire", kReadBefore},
    {"channel.hpp join: cas acq_rel -> acquire", kInherited},
    {"channel.hpp join: cas acq_rel -> release", kInherited},
    {"channel.hpp join: cas acquire on failure -> relaxed", kUnused},
    {"channel.hpp leave: store release -> relaxed", kInherited},
    {"channel.hpp is_closed: load seq_cst -> acquire", kUndecided},
    {"blocks.hpp write_list: store release -> relaxed", kLate},
    {"channel.hpp undo: store release -> relaxed", kUndecided},
    {"channel.hpp receive_from: load acquire -> relaxed", kLate},
    {"channel.hpp receive_from: store release -> relaxed", kUndecided},
    {"channel.hpp begin: store release -> relaxed", kUndecided},
    {"channel.hpp begin: store release -> relaxed (2)", kUndecided},
    {"recovery.hpp recover_process: load acquire -> relaxed", kDead},
    {"recovery.hpp recover_process: store release -> relaxed", kSlotReuse},
    {"recovery.hpp finish: load acquire -> relaxed", kDead},
    {"recovery.hpp finish: load acquire -> relaxed (2)", kDead},
    {"recovery.hpp finish: store release -> relaxed", kSlotReuse},
    {"recovery.hpp finish: store release -> relaxed (2)", kSlotReuse},
    {"recovery.hpp finish_send: store release -> relaxed", kSlotReuse},
    {"recovery.hpp was_sent: load seq_cst -> acquire", kUndecided},
    {"recovery.hpp is_named: load acquire -> relaxed (2)", kUndecided},
    {"recovery.hpp return_unsent: load acquire -> relaxed", kDead},
    {"recovery.hpp give_back: load seq_cst -> acquire", kUndecided},
    {"recovery.hpp give_back: load acquire -> relaxed", kDead},
    {"recovery.hpp give_back: store release -> relaxed", kSlotReuse},
    {"recovery.hpp is_named_by_the_living: load acquire -> relaxed", kUndecided},
    {"recovery.hpp send_back: store release -> relaxed", kLate},
    {"recovery.hpp begin: store release -> relaxed", kDaemonOnly},
    {"recovery.hpp begin: store release -> relaxed (2)", kDaemonOnly},
    {"ring.hpp fill: cas seq_cst on failure -> acquire", kUnused},
    {"ring.hpp take: cas seq_cst -> acq_rel", kUndecided},
    {"ring.hpp take: cas seq_cst on failure -> acquire", kUnused},
    {"sleepers.hpp announce: load seq_cst -> acquire", kUndecided},
    {"sleepers.hpp call: store seq_cst -> release", kUndecided},
    {"sleepers.hpp call: fetch_add seq_cst -> acq_rel", kUndecided},
};

TEST(ChannelOrders, each_is_noticed_when_weakened_or_listed) {
    const std::vector<Named> all = weakenings_of(sites_of<ChannelModel>(models()), is_of_channels);
    EXPECT_GT(all.size(), 30U);
    expect_noticed_or_listed(all, kUnnoticed, [](const Weakening &weakening) {
        return noticed_by_short_runs<ChannelModel>(models(), weakening, 1);
    });
}

}  // namespace
}  // namespace numacre::model
