// The broadcasts in memory that is weaker than sequential consistency: each memory order in shm/channel/broadcast*.hpp
// is either needed, so that some model fails when it is weakened by one step, or listed here with a reason.
// (broadcast_test.cpp: the orders as they are do no harm.)
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "broadcast_setups.hpp"
#include "orders.hpp"

namespace numacre::model {
namespace {

// Small, and the first ones notice most.
std::vector<ShortModel<BroadcastSetup>> models() {
    return {
        {"one", one_reader()},
        {"overtaken", overtaken()},
        {"readers", two_readers()},
        {"writers-alone", writers_alone()},
        {"again", coming_again()},
        {"end", ending()},
        {"writers", two_writers()},
        {"death-overtaken", with_daemon(overtaken()), 1},
        {"death-writers", with_daemon(writers_alone()), 1},
    };
}

bool is_of_broadcasts(const Site &site) {
    return is_in(site, "numacre/shm/channel/broadcast");
}

// "More than needed" is argued, not proven. Of the others nothing is known yet: the short runs do not notice them.
constexpr const char *kUnused = "more than needed: after a failure the value is not looked at";
constexpr const char *kDead = "more than needed: only read after the kernel's word of a death, which synchronises";
constexpr const char *kUndecided = "undecided: no short run notices, and nobody has argued that it is more than needed";

constexpr Unnoticed kUnnoticed[] = {
    {"broadcast.hpp find_tail: load acquire -> relaxed", kUndecided},
    {"broadcast.hpp fill: cas seq_cst on failure -> acquire", kUnused},
    {"broadcast.hpp join: cas acq_rel -> acquire", kUndecided},
    {"broadcast.hpp join: cas acq_rel -> release", kUndecided},
    {"broadcast.hpp join: cas acquire on failure -> relaxed", kUnused},
    {"broadcast.hpp join: fetch_or seq_cst -> acq_rel", kUndecided},
    {"broadcast.hpp leave: store release -> relaxed", kUndecided},
    {"broadcast.hpp drop: store seq_cst -> release", kUndecided},
    {"broadcast.hpp close: store seq_cst -> release", kUndecided},
    {"broadcast.hpp is_closed: load seq_cst -> acquire", kUndecided},
    {"broadcast.hpp begin_send: store release -> relaxed", kUndecided},
    {"broadcast.hpp begin_send: store release -> relaxed (2)", kUndecided},
    {"broadcast.hpp begin_send: store release -> relaxed (3)", kUndecided},
    {"broadcast.hpp retire: store release -> relaxed", kUndecided},
    {"broadcast.hpp retire: store release -> relaxed (2)", kUndecided},
    {"broadcast_recovery.hpp recover_process: load acquire -> relaxed", kDead},
    {"broadcast_recovery.hpp recover_process: store release -> relaxed", kUndecided},
    {"broadcast_recovery.hpp recover: store seq_cst -> release", kUndecided},
    {"broadcast_recovery.hpp finish_errand: load acquire -> relaxed", kDead},
    {"broadcast_recovery.hpp finish_errand: load acquire -> relaxed (2)", kDead},
    {"broadcast_recovery.hpp finish_errand: store release -> relaxed", kUndecided},
    {"broadcast_recovery.hpp finish_errand: store release -> relaxed (2)", kUndecided},
    {"broadcast_recovery.hpp finish_errand: store release -> relaxed (3)", kUndecided},
    {"broadcast_recovery.hpp sweep: load seq_cst -> acquire", kUndecided},
    {"broadcast_recovery.hpp find: load acquire -> relaxed", kDead},
    {"broadcast_recovery.hpp return_unsent: load acquire -> relaxed", kDead},
    {"broadcast_segments.hpp retire: store release -> relaxed", kUndecided},
    {"broadcast_segments.hpp move_into: store release -> relaxed", kUndecided},
    {"broadcast_segments.hpp move_into: store release -> relaxed (2)", kUndecided},
    {"broadcast_segments.hpp set_free: store release -> relaxed", kUndecided},
    {"broadcast_segments.hpp give_blocks: load acquire -> relaxed", kUndecided},
    {"broadcast_segments.hpp is_claimed: load seq_cst -> acquire", kUndecided},
    {"broadcast_segments.hpp end: store release -> relaxed", kUndecided},
    {"broadcast_segments.hpp retire_if_unread: cas seq_cst -> acq_rel", kUndecided},
    {"broadcast_segments.hpp retire_if_unread: cas seq_cst on failure -> acquire", kUnused},
    {"broadcast_segments.hpp take_free: cas acq_rel -> acquire", kUndecided},
    {"broadcast_segments.hpp take_free: cas acq_rel -> release", kUndecided},
    {"broadcast_segments.hpp take_free: cas acquire on failure -> relaxed", kUnused},
};

TEST(BroadcastOrders, each_is_noticed_when_weakened_or_listed) {
    const std::vector<Named> all = weakenings_of(sites_of<BroadcastModel>(models()), is_of_broadcasts);
    EXPECT_GT(all.size(), 30U);
    expect_noticed_or_listed(all, kUnnoticed, [](const Weakening &weakening) {
        return noticed_by_short_runs<BroadcastModel>(models(), weakening, 2);
    });
}

}  // namespace
}  // namespace numacre::model
