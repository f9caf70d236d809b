// The channels' real source (shm/channel/) under every interleaving and every death: channel_model.hpp.
#include <gtest/gtest.h>

#include "channel_setups.hpp"

namespace numacre::model {
namespace {

constexpr unsigned kSoloSteps = 400;

void expect_proven(const std::string &name, const Options &options, const ChannelSetup &setup) {
    ChannelModel model(name, options, setup);
    const Report report = model.run();
    EXPECT_TRUE(report.clean()) << report.violation << '\n' << report.trace;
    EXPECT_TRUE(report.complete);
}

Options alive() {
    Options options;
    options.solo_steps_max = kSoloSteps;
    options.states_max = 60'000'000;
    return options;
}
// Any process may die, also the daemon that recovers.
Options mortal(unsigned kills, unsigned restarts = 0) {
    Options options = alive();
    options.kills_max = kills;
    options.restarts_max = restarts;
    return options;
}
Options in(MemoryMode memory, Options options) {
    options.memory = memory;
    options.solo_steps_max = 0;
    return options;
}

TEST(Channel, a_sender_and_a_receiver) {
    expect_proven("channel-pair", alive(), pair());
    expect_proven("channel-around", alive(), around());
}

TEST(Channel, two_senders_fill_it) {
    expect_proven("channel-senders", alive(), two_senders());
}

TEST(Channel, two_receivers_share_a_burst) {
    expect_proven("channel-receivers", alive(), two_receivers());
}

TEST(Channel, both_send_and_receive) {
    expect_proven("channel-both", alive(),
                  {.shape = {.capacity = 2, .burst = 1, .parties = 2},
                   .threads = {{.process = 1, .script = {1, kReceive + 1, 1}, .holds = 2},
                               {.process = 2, .script = {1, kReceive + 1, kReceive + 1}, .holds = 1}}});
}

TEST(Channel, a_block_that_is_named_twice_is_refused) {
    expect_proven("channel-twice", mortal(1),
                  with_daemon({.threads = {{.process = 1, .script = {kSendTwice + 1, 2}, .holds = 2}, receiver()}}));
}

TEST(Channel, nobody_sleeps_beside_a_message_or_room) {
    expect_proven("channel-asleep", alive(), sleepers());
    expect_proven("channel-asleep-death", mortal(1), with_daemon(sleepers()));
}

TEST(Channel, two_sleepers_are_woken) {
    expect_proven("channel-sleepers", alive(),
                  {.shape = {.capacity = 2, .burst = 1, .parties = 3},
                   .threads = {{.process = 1, .script = {1, 1}, .holds = 2},
                               {.process = 2, .script = {kAwait + 1}},
                               {.process = 3, .script = {kAwait + 1}}}});
}

TEST(Channel, nobody_watches_beside_a_message_or_room) {
    expect_proven("channel-watch", alive(), watchers());
    expect_proven("channel-watch-ringers", alive(), two_ringers());
    expect_proven("channel-watch-death", mortal(1), with_daemon(watchers()));
}

TEST(Channel, a_stopped_sender_takes_no_wake_up) {
    expect_proven("channel-watch-stopped", mortal(1), stopped_ringer());
}

TEST(Channel, two_watchers_are_woken) {
    expect_proven("channel-watchers", alive(), two_watchers());
    expect_proven("channel-watch-closing", alive(),
                  {.shape = {.capacity = 1, .burst = 1, .parties = 2},
                   .threads = {{.process = 1, .script = {kWatchRoom + 1, kWatchRoom + 1, kClose}, .holds = 2},
                               {.process = 2, .script = {kWatch + 1, kClose, kWatch + 1}}}});
}

TEST(ChannelLong, watchers_and_deaths) {
    expect_proven("channel-watchers-death", mortal(1), with_daemon(two_watchers()));
    expect_proven("channel-ringers-death", mortal(1), with_daemon(two_ringers()));
    expect_proven("channel-watch-daemon", mortal(1, 1), with_daemon(watchers()));
}

TEST(Channel, rounds_come_round) {
    // 2^21 rounds of two cells: the position goes on, the word's round begins again.
    ChannelSetup setup = around();
    setup.first_round = (std::uint64_t{1} << kRoundBits) - 1;
    expect_proven("channel-rounds", alive(), setup);
    expect_proven("channel-rounds-death", mortal(1), with_daemon(setup));
}

TEST(Channel, a_sender_drops_the_oldest_messages) {
    expect_proven("channel-over", alive(), overwriting());
    expect_proven("channel-over-both", alive(), overwriting_each_other());
    expect_proven("channel-over-death", mortal(1), with_daemon(overwriting()));
}

TEST(Channel, totals_come_round) {
    ChannelSetup setup = two_receivers();
    setup.first_round = (std::uint64_t{1} << kRoundBits) - 1;
    setup.first_total = kTotalMask - 1;
    expect_proven("channel-totals", alive(), setup);
    setup = around();
    setup.first_total = kTotalMask - 1;
    expect_proven("channel-totals-around", alive(), setup);
}

TEST(Channel, hints_are_far_behind) {
    ChannelSetup setup = around();
    setup.first_round = 7 + (std::uint64_t{1} << (kRoundBits - 1));
    setup.hints_behind = 2 * setup.first_round;
    expect_proven("channel-behind", alive(), setup);
    setup.first_round = (std::uint64_t{2} << kRoundBits) - 1;
    setup.hints_behind = 2 * setup.first_round + 1;
    expect_proven("channel-behind-more", alive(), setup);
}

TEST(Channel, it_is_closed_beside_its_users) {
    expect_proven("channel-closing", alive(), closing());
}

TEST(Channel, parties_leave_and_come_back) {
    expect_proven("channel-rejoin", alive(), rejoining());
    expect_proven("channel-rejoin-death", mortal(1), with_daemon(rejoining()));
}

TEST(Channel, a_party_slot_has_an_heir) {
    expect_proven("channel-heir", mortal(1), with_daemon(heir()));
}

TEST(Channel, two_parties_die_at_once) {
    expect_proven("channel-process", mortal(1), with_daemon(one_process()));
}

TEST(ChannelSlow, a_party_slot_has_an_heir_who_dies) {
    expect_proven("channel-heir-dies", mortal(2), with_daemon(heir()));
    expect_proven("channel-heir-daemon", mortal(1, 1), with_daemon(heir()));
}

TEST(ChannelSlow, two_parties_die_at_once_and_the_daemon) {
    expect_proven("channel-process-daemon", mortal(1, 1), with_daemon(one_process()));
}

TEST(Channel, a_death) {
    expect_proven("channel-death", mortal(1), with_daemon(pair()));
    expect_proven("channel-death-around", mortal(1), with_daemon(around()));
    expect_proven("channel-death-receivers", mortal(1), with_daemon(two_receivers()));
}

TEST(Channel, a_death_of_a_receiver_that_came_late) {
    Options options = mortal(1);
    options.preemptions_max = 1;  // ChannelSlow: without a bound
    expect_proven("channel-death-late", options, with_daemon(late_receiver()));
}

TEST(Channel, a_death_of_the_daemon_as_well) {
    expect_proven("channel-daemon", mortal(1, 1), with_daemon(pair()));
    expect_proven("channel-daemon-around", mortal(1, 1), with_daemon(around()));
}

TEST(ChannelSlow, everybody_dies) {
    expect_proven("channel-deaths", mortal(2), with_daemon(pair()));
    expect_proven("channel-deaths-around", mortal(2, 1), with_daemon(around()));
    expect_proven("channel-deaths-receivers", mortal(2), with_daemon(two_receivers()));
}

TEST(ChannelSlow, a_death_beside_three) {
    expect_proven("channel-death-senders", mortal(1), with_daemon(two_senders()));
    expect_proven("channel-daemon-receivers", mortal(1, 1), with_daemon(two_receivers()));
}

TEST(ChannelSlow, a_death_of_a_receiver_that_came_late) {
    expect_proven("channel-death-late", mortal(1), with_daemon(late_receiver()));
}

TEST(ChannelLong, a_death_of_the_daemon_beside_two_senders) {
    Options options = mortal(1, 1);
    options.states_max = 300'000'000;
    expect_proven("channel-daemon-senders", options, with_daemon(two_senders()));
}

TEST(Channel, stores_that_wait_in_buffers) {
    const auto x86 = MemoryMode::total_store_order;
    expect_proven("channel-tso", in(x86, alive()), pair());
    expect_proven("channel-tso-around", in(x86, alive()), around());
    expect_proven("channel-tso-asleep", in(x86, alive()), sleepers());
    expect_proven("channel-tso-watch", in(x86, alive()), watchers());
    expect_proven("channel-tso-death", in(x86, mortal(1)), with_daemon(pair()));
}

TEST(Channel, weak_memory) {
    const auto weak = MemoryMode::weak;
    expect_proven("channel-weak", in(weak, alive()), pair());
    expect_proven("channel-weak-around", in(weak, alive()), around());
    expect_proven("channel-weak-asleep", in(weak, alive()), sleepers());
    expect_proven("channel-weak-watch", in(weak, alive()), watchers());
    expect_proven("channel-weak-senders", in(weak, alive()), sender_after_sender());
}

TEST(ChannelSlow, weak_memory_and_a_death) {
    expect_proven("channel-weak-death", in(MemoryMode::weak, mortal(1)), with_daemon(pair()));
}

}  // namespace
}  // namespace numacre::model
