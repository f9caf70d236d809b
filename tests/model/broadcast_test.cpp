// The broadcasts' real source (shm/channel/broadcast*.hpp) under every interleaving and every death:
// broadcast_model.hpp.
#include <gtest/gtest.h>

#include "broadcast_setups.hpp"

namespace numacre::model {
namespace {

constexpr unsigned kSoloSteps = 600;

void expect_proven(const std::string &name, const Options &options, const BroadcastSetup &setup) {
    BroadcastModel model(name, options, setup);
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

TEST(Broadcast, a_writer_and_a_reader) {
    expect_proven("broadcast-one", alive(), one_reader());
}

TEST(Broadcast, a_reader_is_overtaken_and_told) {
    expect_proven("broadcast-overtaken", alive(), overtaken());
}

TEST(Broadcast, the_last_of_two_readers_retires_a_burst) {
    expect_proven("broadcast-readers", alive(), two_readers());
}

TEST(Broadcast, two_writers) {
    expect_proven("broadcast-writers-alone", alive(), writers_alone());
}

TEST(Broadcast, a_reader_that_comes_late_gets_the_last_messages) {
    expect_proven("broadcast-late", alive(), latecomer());
}

TEST(Broadcast, a_reader_that_overwrites_what_it_reads) {
    expect_proven("broadcast-own", alive(), reads_its_own());
}

TEST(Broadcast, nobody_sleeps_beside_a_message_or_after_the_end) {
    expect_proven("broadcast-asleep", alive(), awaiting());
    expect_proven("broadcast-end", alive(), ending());
}

TEST(Broadcast, readers_leave_and_come_back) {
    expect_proven("broadcast-again", alive(), coming_again());
    expect_proven("broadcast-again-death", mortal(1), with_daemon(coming_again()));
}

TEST(Broadcast, the_hint_may_have_any_value) {
    BroadcastSetup setup = overtaken();
    setup.tail_hint = std::uint64_t{0} - 3;
    expect_proven("broadcast-hint-behind", alive(), setup);
    setup.tail_hint = std::uint64_t{1} << 40 | 1;
    expect_proven("broadcast-hint-ahead", alive(), setup);
}

TEST(Broadcast, a_death) {
    expect_proven("broadcast-death-one", mortal(1), with_daemon(one_reader()));
    expect_proven("broadcast-death-once", mortal(1), with_daemon(overtaken_once()));
}

TEST(Broadcast, a_death_of_the_daemon_as_well) {
    expect_proven("broadcast-daemon-one", mortal(1, 1), with_daemon(one_reader()));
}

TEST(BroadcastSlow, two_writers_and_a_reader) {
    expect_proven("broadcast-writers", alive(), two_writers());
}

TEST(BroadcastSlow, a_death_while_a_reader_is_overtaken) {
    expect_proven("broadcast-death-overtaken", mortal(1), with_daemon(overtaken()));
    expect_proven("broadcast-death-writers-alone", mortal(1), with_daemon(writers_alone()));
}

TEST(BroadcastSlow, a_death_of_the_daemon_as_well) {
    expect_proven("broadcast-daemon-once", mortal(1, 1), with_daemon(overtaken_once()));
}

// For hours of your own, and many gigabytes: model_broadcast --gtest_filter=BroadcastLong.*
TEST(BroadcastLong, deaths_while_a_reader_is_overtaken) {
    expect_proven("broadcast-daemon-overtaken", mortal(1, 1), with_daemon(overtaken()));
    expect_proven("broadcast-deaths-overtaken", mortal(2), with_daemon(overtaken()));
}

TEST(BroadcastSlow, everybody_dies) {
    expect_proven("broadcast-deaths", mortal(2), with_daemon(overtaken_once()));
    expect_proven("broadcast-deaths-writers-alone", mortal(2), with_daemon(writers_alone()));
}

TEST(BroadcastSlow, a_death_beside_three) {
    expect_proven("broadcast-death-readers", mortal(1), with_daemon(two_readers()));
    expect_proven("broadcast-death-writers", mortal(1), with_daemon(two_writers()));
}

TEST(Broadcast, stores_that_wait_in_buffers) {
    const auto x86 = MemoryMode::total_store_order;
    expect_proven("broadcast-tso", in(x86, alive()), overtaken());
    expect_proven("broadcast-tso-asleep", in(x86, alive()), ending());
    expect_proven("broadcast-tso-writers", in(x86, alive()), writers_alone());
}

TEST(Broadcast, weak_memory) {
    const auto weak = MemoryMode::weak;
    expect_proven("broadcast-weak-one", in(weak, alive()), one_reader());
    expect_proven("broadcast-weak-writers", in(weak, alive()), writers_alone());
}

TEST(BroadcastSlow, weak_memory_and_lingering_bursts) {
    const auto weak = MemoryMode::weak;
    expect_proven("broadcast-weak-overtaken", in(weak, alive()), overtaken());
    expect_proven("broadcast-weak-readers", in(weak, alive()), two_readers());
}

}  // namespace
}  // namespace numacre::model
