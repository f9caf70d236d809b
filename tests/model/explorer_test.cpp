// Does the checker itself see what it must see? Small programs with known outcomes.
#include "explorer.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

namespace numacre::model {
namespace {

using Word = SimEnv::Atomic<std::uint64_t>;

Options quiet_options() {
    Options options;
    options.print = false;
    return options;
}

// Each of `threads` adds 1 once; `racy` by a load and a store, else by a CAS loop.
struct Counter {
    Explorer explorer;
    Word *const value;
    std::set<std::uint64_t> finals;

    Counter(int threads, bool racy, const Options &options)
        : explorer("counter", options), value(explorer.make<Word>()) {
        explorer.label(value, sizeof *value, "value");
        for (int thread = 0; thread < threads; ++thread) {
            explorer.add_thread({}, [this, racy](Thread &) {
                std::uint64_t seen = value->load();
                if (racy) {
                    value->store(seen + 1);
                } else {
                    while (!value->compare_exchange_weak(seen, seen + 1)) {
                    }
                }
            });
        }
        explorer.on_quiet([this, threads] {
            finals.insert(value->load());
            if (value->load() != static_cast<std::uint64_t>(threads)) explorer.fail("an increment is lost");
        });
    }
};

TEST(Explorer, finds_the_lost_increment_and_the_shortest_schedule_for_it) {
    Counter counter(2, true, quiet_options());
    const Report report = counter.explorer.run();
    EXPECT_EQ(report.violation, "an increment is lost");
    EXPECT_FALSE(report.complete);
    EXPECT_EQ(report.schedule.size(), 4U) << report.trace;
    EXPECT_NE(report.trace.find("store"), std::string::npos) << report.trace;
    EXPECT_NE(report.trace.find("value"), std::string::npos) << report.trace;
}

TEST(Explorer, passes_the_cas_counter_with_its_only_final_value) {
    Counter counter(3, false, quiet_options());
    const Report report = counter.explorer.run();
    EXPECT_TRUE(report.clean()) << report.trace;
    EXPECT_TRUE(report.complete);
    EXPECT_EQ(counter.finals, std::set<std::uint64_t>{3});
}

TEST(Explorer, sees_every_final_value_of_a_race) {
    // Two threads, each twice "load, store + 1": 2, 3 and 4 can come out, nothing else.
    Explorer explorer("twice", quiet_options());
    Word *const value = explorer.make<Word>();
    for (int thread = 0; thread < 2; ++thread) {
        explorer.add_thread({}, [value](Thread &) {
            for (int round = 0; round < 2; ++round) value->store(value->load() + 1);
        });
    }
    std::set<std::uint64_t> finals;
    explorer.on_quiet([&] { finals.insert(value->load()); });
    const Report report = explorer.run();
    EXPECT_TRUE(report.complete);
    EXPECT_EQ(finals, (std::set<std::uint64_t>{2, 3, 4}));
}

TEST(Explorer, counts_the_states_of_independent_threads_exactly) {
    // Each thread stands before access 1, 2, 3 or has finished: 4 x 4 states, whatever the order. Transitions: from
    // every state one a thread that can still go.
    Explorer explorer("grid", quiet_options());
    Word *const words = static_cast<Word *>(explorer.allocate(2 * sizeof(Word)));
    for (int thread = 0; thread < 2; ++thread) {
        explorer.add_thread({}, [words, thread](Thread &) {
            for (std::uint64_t step = 1; step <= 3; ++step) words[thread].store(step);
        });
    }
    const Report report = explorer.run();
    EXPECT_TRUE(report.complete);
    EXPECT_EQ(report.states, 16U);
    EXPECT_EQ(report.transitions, 24U);
    EXPECT_EQ(report.quiet_states, 1U);
}

TEST(Explorer, finds_the_lost_wakeup_as_a_deadlock) {
    for (const bool ask_again : {false, true}) {
        Explorer explorer("wakeup", quiet_options());
        Word *const ready = explorer.make<Word>();
        Word *const sleeping = explorer.make<Word>();
        Word *const wakeups = explorer.make<Word>();
        explorer.add_thread({.name = "sleeper"}, [=](Thread &self) {
            if (ready->load() != 0) return;
            sleeping->store(1);
            if (ask_again && ready->load() != 0) return;
            self.wait_until([=] { return wakeups->load() != 0; });
        });
        explorer.add_thread({.name = "waker"}, [=](Thread &) {
            ready->store(1);
            if (sleeping->load() != 0) wakeups->store(1);
        });
        const Report report = explorer.run();
        EXPECT_EQ(report.complete, ask_again);
        EXPECT_EQ(report.violation.rfind("deadlock", 0), ask_again ? std::string::npos : 0U) << report.trace;
    }
}

TEST(Explorer, knows_a_spin_loop_as_a_cycle) {
    Options options = quiet_options();
    options.states_max = 1000;
    Explorer explorer("spin", options);
    Word *const flag = explorer.make<Word>();
    explorer.add_thread({}, [flag](Thread &) {
        while (flag->load() == 0) SimEnv::pause();
    });
    explorer.add_thread({}, [flag](Thread &) { flag->store(1); });
    const Report report = explorer.run();
    EXPECT_TRUE(report.clean()) << report.trace;
    EXPECT_TRUE(report.complete);
    // Spinning, free to go, gone; a dead register after the first round may double that.
    EXPECT_GE(report.states, 3U);
    EXPECT_LE(report.states, 6U);
}

TEST(Explorer, reports_a_spin_lock_as_not_obstruction_free) {
    Options options = quiet_options();
    options.solo_steps_max = 20;
    Explorer explorer("lock", options);
    Word *const lock = explorer.make<Word>();
    for (int thread = 0; thread < 2; ++thread) {
        explorer.add_thread({}, [lock](Thread &self) {
            self.choose_operation(1);
            std::uint64_t free = 0;
            while (!lock->compare_exchange_weak(free, 1)) free = 0;
            lock->store(0);
        });
    }
    const Report report = explorer.run();
    EXPECT_NE(report.violation.find("does not end its operation within 20 steps"), std::string::npos)
        << report.violation;
}

TEST(Explorer, accepts_a_cas_loop_as_obstruction_free) {
    Options options = quiet_options();
    options.solo_steps_max = 20;
    Counter counter(2, false, options);
    const Report report = counter.explorer.run();
    EXPECT_TRUE(report.clean()) << report.trace;
    EXPECT_TRUE(report.complete);
}

TEST(Explorer, explores_a_death_before_every_access_and_after_the_last) {
    Options options = quiet_options();
    options.kills_max = 1;
    Explorer explorer("death", options);
    Word *const steps = explorer.make<Word>();
    Word *const mourned = explorer.make<Word>();
    explorer.add_thread({.name = "client", .process = 1}, [steps](Thread &) {
        for (std::uint64_t step = 1; step <= 3; ++step) steps->store(step);
    });
    explorer.add_thread({.name = "daemon", .process = 0, .restartable = true, .may_wait_for_others = true},
                        [&explorer, mourned](Thread &self) {
                            self.rest_until([&explorer, mourned] { return explorer.dead(1) && mourned->load() == 0; });
                            mourned->store(1);
                        });
    std::set<std::uint64_t> reached;
    explorer.on_quiet([&] {
        if (explorer.dead(1) && mourned->load() == 0) explorer.fail("nobody mourned");
        if (explorer.dead(1)) reached.insert(steps->load());
    });
    const Report report = explorer.run();
    EXPECT_TRUE(report.clean()) << report.trace;
    EXPECT_TRUE(report.complete);
    EXPECT_EQ(reached, (std::set<std::uint64_t>{0, 1, 2, 3}));
}

TEST(Explorer, restarts_a_restartable_process_from_the_beginning) {
    // The work is not idempotent: a restart between its two steps does the first one twice.
    for (const unsigned restarts : {0U, 1U}) {
        Options options = quiet_options();
        options.restarts_max = restarts;
        Explorer explorer("restart", options);
        Word *const done = explorer.make<Word>();
        Word *const finished = explorer.make<Word>();
        explorer.add_thread({.name = "daemon", .process = 0, .restartable = true}, [=](Thread &self) {
            self.rest_until([=] { return finished->load() == 0; });
            done->store(done->load() + 1);
            finished->store(1);
        });
        std::set<std::uint64_t> counts;
        explorer.on_quiet([&] { counts.insert(done->load()); });
        const Report report = explorer.run();
        EXPECT_TRUE(report.complete);
        EXPECT_EQ(counts, restarts == 0 ? (std::set<std::uint64_t>{1}) : (std::set<std::uint64_t>{1, 2}));
    }
}

TEST(Explorer, respawns_a_dead_process_when_its_daemon_says_so) {
    Options options = quiet_options();
    options.kills_max = 1;
    Explorer explorer("respawn", options);
    Word *const lives = explorer.make<Word>();
    explorer.add_thread({.name = "client", .process = 1}, [lives](Thread &) { lives->fetch_add(1); });
    explorer.add_thread({.name = "daemon", .process = 0, .restartable = true, .may_wait_for_others = true},
                        [&explorer](Thread &self) {
                            self.rest_until([&explorer] { return explorer.dead(1); });
                            explorer.respawn(1);
                        });
    std::set<std::uint64_t> counts;
    explorer.on_quiet([&] {
        if (!explorer.dead(1)) counts.insert(lives->load());
    });
    const Report report = explorer.run();
    EXPECT_TRUE(report.clean()) << report.trace;
    EXPECT_TRUE(report.complete);
    EXPECT_EQ(counts, (std::set<std::uint64_t>{1, 2}));
}

TEST(Explorer, a_preemption_bound_hides_what_needs_more_preemptions) {
    for (const int bound : {0, 1}) {
        Options options = quiet_options();
        options.preemptions_max = bound;
        Counter counter(2, true, options);
        const Report report = counter.explorer.run();
        EXPECT_EQ(report.clean(), bound == 0);
        EXPECT_EQ(report.complete, bound == 0);
    }
}

TEST(Explorer, takes_every_option_of_a_choice_and_keeps_locals_for_the_invariant) {
    struct Local {
        int picked;
    };
    Explorer explorer("choice", quiet_options());
    Word *const word = explorer.make<Word>();
    explorer.add_thread(
        {},
        [word](Thread &self) {
            self.local<Local>().picked = 1 + self.choose_operation(5);
            word->store(7);
        },
        sizeof(Local));
    std::set<int> picked;
    explorer.on_quiet([&] { picked.insert(explorer.local<Local>(0).picked); });
    EXPECT_TRUE(explorer.run().complete);
    EXPECT_EQ(picked, (std::set<int>{0, 1, 2, 3, 4, 5}));  // 0: still at the choice
}

TEST(Explorer, takes_back_what_a_check_writes) {
    Explorer explorer("undo", quiet_options());
    Word *const word = explorer.make<Word>();
    explorer.add_thread({}, [word](Thread &) { word->store(word->load() + 1); });
    explorer.on_state([&] {
        if (word->load() > 1) explorer.fail("a check's write stayed");
        word->store(100);
    });
    EXPECT_TRUE(explorer.run().clean());
}

TEST(Explorer, ignored_words_make_no_states_and_private_ones_no_steps) {
    Explorer explorer("ignored", quiet_options());
    Word *const tally = explorer.make<Word>();
    Word *const own = explorer.make<Word>();
    Word *const word = explorer.make<Word>();
    explorer.ignore(tally, sizeof *tally);
    explorer.keep_private(own, sizeof *own);
    explorer.add_thread({}, [=](Thread &self) {
        while (self.choose_operation(2) == 0) {  // for ever, were the tally part of the state
            tally->fetch_add(1);
            own->store(1);
            word->store(1);
            own->store(0);
        }
    });
    const Report report = explorer.run();
    EXPECT_TRUE(report.complete);
    EXPECT_EQ(report.states, 4U);  // at the choice or finished, with word 0 or 1
}

TEST(Explorer, narrow_atomics_do_not_disturb_their_neighbours) {
    struct Pair {
        SimEnv::Atomic<std::uint32_t> low;
        SimEnv::Atomic<std::uint16_t> middle;
        SimEnv::Atomic<std::uint8_t> high;
    };
    Explorer explorer("narrow", quiet_options());
    Pair *const pair = explorer.make<Pair>();
    explorer.add_thread({}, [pair](Thread &) { pair->low.fetch_sub(1); });
    explorer.add_thread({}, [pair](Thread &) { pair->middle.fetch_or(0xff00); });
    explorer.add_thread({}, [pair](Thread &) { pair->high.exchange(0x5a); });
    explorer.on_quiet([&] {
        if (pair->low.load() != 0xffffffff || pair->middle.load() != 0xff00 || pair->high.load() != 0x5a)
            explorer.fail("a neighbour was disturbed");
    });
    const Report report = explorer.run();
    EXPECT_TRUE(report.clean()) << report.trace;
    EXPECT_EQ(report.states, 8U);
}

TEST(Explorer, stops_at_the_cap_and_says_so) {
    Options options = quiet_options();
    options.states_max = 10;
    Counter counter(3, false, options);
    const Report report = counter.explorer.run();
    EXPECT_TRUE(report.clean());
    EXPECT_FALSE(report.complete);
}

TEST(Explorer, replays_a_violation_by_hand_and_from_the_environment) {
    Report found;
    {
        Counter counter(2, true, quiet_options());
        found = counter.explorer.run();
    }
    {
        Counter counter(2, true, quiet_options());
        const Report again = counter.explorer.replay(found.schedule);
        EXPECT_EQ(again.violation, found.violation);
        EXPECT_EQ(again.trace, found.trace);
        // The root is back: the same explorer explores as if nothing had been.
        EXPECT_EQ(counter.explorer.run().violation, found.violation);
    }
    ASSERT_EQ(setenv("NUMACRE_REPLAY", ("counter:" + to_text(found.schedule)).c_str(), 1), 0);
    {
        Counter counter(2, true, quiet_options());
        EXPECT_EQ(counter.explorer.run().trace, found.trace);
    }
    ASSERT_EQ(setenv("NUMACRE_REPLAY", "counter:0,0,0,0", 1), 0);
    {
        Counter counter(2, true, quiet_options());
        EXPECT_EQ(counter.explorer.run().violation, "replay: step 3 of the schedule is not possible here");
    }
    ASSERT_EQ(unsetenv("NUMACRE_REPLAY"), 0);
}

// Each wants to read back what it wrote: alone it does, beside the other perhaps never. What they write is told apart
// by bit 0, and by a tag above it that grows if `tagged`.
struct Overwriters {
    Explorer explorer;
    Word *const word;

    Overwriters(const Options &options, bool tagged) : explorer("overwriters", options), word(explorer.make<Word>()) {
        for (int thread = 0; thread < 2; ++thread) {
            explorer.add_thread({}, [this, thread, tagged](Thread &self) {
                self.run_operation([&] {
                    std::uint64_t value = 2 + static_cast<std::uint64_t>(thread);
                    for (word->store(value); word->load() != value; word->store(value)) value += tagged ? 2 : 0;
                });
            });
        }
    }
};

TEST(Explorer, finds_two_that_undo_each_other_for_ever) {
    Options options = quiet_options();
    options.solo_steps_max = 20;
    {
        Overwriters program(options, false);
        const Report report = program.explorer.run();
        EXPECT_TRUE(report.clean()) << report.violation;
        EXPECT_TRUE(report.complete);
    }
    options.find_livelocks = true;
    Report found;
    {
        Overwriters program(options, false);
        found = program.explorer.run();
        EXPECT_EQ(found.violation.rfind("livelock", 0), 0U) << found.violation;
        EXPECT_FALSE(found.complete);
    }
    Overwriters again(options, false);
    EXPECT_EQ(again.explorer.replay(found.schedule).violation, found.violation);
}

TEST(Explorer, finds_a_livelock_behind_a_growing_tag_by_its_length) {
    Options options = quiet_options();
    options.depth_max = 200;
    options.states_max = 100'000;
    options.find_livelocks = true;
    {
        Overwriters program(options, true);
        const Report report = program.explorer.run();
        EXPECT_TRUE(report.clean()) << report.violation;
        EXPECT_FALSE(report.complete);
    }
    options.find_livelocks = false;
    options.steps_without_end_max = 100;
    Report found;
    {
        Overwriters program(options, true);
        found = program.explorer.run();
        EXPECT_EQ(found.violation, "no operation has ended in 100 steps");
    }
    Overwriters again(options, true);
    EXPECT_EQ(again.explorer.replay(found.schedule).violation, found.violation);
}

TEST(Explorer, accepts_a_cas_loop_as_lock_free) {
    for (const MemoryMode memory : {MemoryMode::sequential, MemoryMode::total_store_order, MemoryMode::weak}) {
        Options options = quiet_options();
        options.memory = memory;
        options.find_livelocks = true;
        options.steps_without_end_max = 20;
        Counter counter(3, false, options);
        const Report report = counter.explorer.run();
        EXPECT_TRUE(report.clean()) << report.trace;
        EXPECT_TRUE(report.complete);
    }
}

TEST(Explorer, a_spinning_client_is_a_livelock_and_a_daemon_that_waits_is_none) {
    for (const bool daemon : {false, true}) {
        Options options = quiet_options();
        options.find_livelocks = true;
        Explorer explorer("spinner", options);
        Word *const flag = explorer.make<Word>();
        explorer.add_thread({.may_wait_for_others = daemon}, [flag](Thread &) {
            while (flag->load() == 0) SimEnv::pause();
        });
        explorer.add_thread({}, [flag](Thread &) { flag->store(1); });
        EXPECT_EQ(explorer.run().clean(), daemon);
    }
}

// Thread 1 changes the word to and fro. The search first sees the way there as an operation of thread 0's that ends,
// and only then as a step of thread 1's, to a state that it knows.
TEST(Explorer, finds_a_livelock_also_where_the_first_way_round_ends_an_operation) {
    Options options = quiet_options();
    options.find_livelocks = true;
    Explorer explorer("detour", options);
    auto *const word = explorer.make<SimEnv::Atomic<std::uint8_t>>();
    explorer.add_thread({}, [word](Thread &self) {
        for (;;) {
            self.choose_operation(1);
            word->fetch_or(0x80);
        }
    });
    explorer.add_thread({}, [word](Thread &) {
        for (;;) word->fetch_add(0x80);
    });
    EXPECT_EQ(explorer.run().violation.rfind("livelock", 0), 0U);
}

// Two take turns at a counter: whoever sees the other's flag down has it. Every order that is written is needed.
struct TurnTaking {
    struct Shared {
        Word flags[2];
        Word counter;
        Word inside;  // the checker's: who is between taking and giving back
        Word turns;
    };
    Explorer explorer;
    Shared *const shared;

    explicit TurnTaking(const Options &options) : explorer("turns", options), shared(explorer.make<Shared>()) {
        explorer.keep_private(&shared->inside, sizeof shared->inside);
        explorer.keep_private(&shared->turns, sizeof shared->turns);
        for (int thread = 0; thread < 2; ++thread) {
            explorer.add_thread({}, [this, thread](Thread &) {
                for (int i = 0; i < 2; ++i) turn(thread);
            });
        }
        explorer.on_state([this] {
            if (shared->inside.load() > 1) explorer.fail("two are inside");
        });
        explorer.on_quiet([this] {
            if (shared->counter.load() != shared->turns.load()) explorer.fail("a turn is lost");
        });
    }

    void turn(int thread) {
        Word &mine = shared->flags[thread];
        mine.store(1, std::memory_order_seq_cst);
        if (shared->flags[1 - thread].load(std::memory_order_seq_cst) == 0) {
            shared->inside.fetch_add(1);
            // relaxed: the flags carry it.
            const std::uint64_t before = shared->counter.load(std::memory_order_relaxed);
            shared->counter.store(before + 1, std::memory_order_relaxed);
            shared->turns.fetch_add(1);
            shared->inside.fetch_sub(1);
        }
        mine.store(0, std::memory_order_release);
    }
};

TEST(Explorer, lists_the_sites_and_notices_each_that_is_weakened) {
    Options options = quiet_options();
    options.memory = MemoryMode::weak;
    options.collect_sites = true;
    std::vector<Site> sites;
    {
        TurnTaking program(options);
        const Report report = program.explorer.run();
        EXPECT_TRUE(report.clean()) << report.trace;
        EXPECT_TRUE(report.complete);
        sites = program.explorer.sites();
    }
    ASSERT_EQ(sites.size(), 5U);
    unsigned weakenings = 0;
    for (const Site &site : sites) {
        EXPECT_EQ(site.function, "turn") << to_text(site);
        for (const Weakening &weakening : one_step_weaker(site)) {
            options.weaken = weakening;
            const Report report = TurnTaking(options).explorer.run();
            EXPECT_FALSE(report.clean()) << to_text(site) << " -> " << to_text(weakening.to);
            EXPECT_GT(report.weakened, 0U);
            ++weakenings;
        }
    }
    EXPECT_EQ(weakenings, 3U);
    // x86 needs the store only, and weakens only what is asked for.
    options.memory = MemoryMode::total_store_order;
    options.weaken = one_step_weaker(sites[0]).at(0);
    EXPECT_FALSE(TurnTaking(options).explorer.run().clean());
    options.weaken = one_step_weaker(sites[1]).at(0);
    EXPECT_TRUE(TurnTaking(options).explorer.run().clean());
}

TEST(Explorer, says_what_is_one_step_weaker) {
    using std::memory_order_acquire, std::memory_order_acq_rel, std::memory_order_release, std::memory_order_relaxed,
        std::memory_order_seq_cst;
    const auto weaker = [](Access access, std::memory_order order) {
        std::vector<std::memory_order> all;
        for (const Weakening &weakening : one_step_weaker({.line = 1, .access = access, .order = order}))
            if (!weakening.failure) all.push_back(weakening.to);
        return all;
    };
    using Orders = std::vector<std::memory_order>;
    EXPECT_EQ(weaker(Access::load, memory_order_seq_cst), Orders{memory_order_acquire});
    EXPECT_EQ(weaker(Access::store, memory_order_seq_cst), Orders{memory_order_release});
    EXPECT_EQ(weaker(Access::fetch_or, memory_order_seq_cst), Orders{memory_order_acq_rel});
    EXPECT_EQ(weaker(Access::exchange, memory_order_acq_rel), (Orders{memory_order_acquire, memory_order_release}));
    EXPECT_EQ(weaker(Access::load, memory_order_acquire), Orders{memory_order_relaxed});
    EXPECT_EQ(weaker(Access::store, memory_order_release), Orders{memory_order_relaxed});
    EXPECT_TRUE(weaker(Access::store, memory_order_relaxed).empty());
    const Site cas{.line = 1, .access = Access::compare_exchange, .failure_order = memory_order_acquire};
    ASSERT_EQ(one_step_weaker(cas).size(), 2U);
    EXPECT_TRUE(one_step_weaker(cas)[1].failure);
}

TEST(Explorer, a_schedule_survives_its_text) {
    const Schedule schedule{
        {Step::Kind::run, 0, 2}, {Step::Kind::run, 1, 0}, {Step::Kind::flush, 2, 0}, {Step::Kind::kill, 1, 0}};
    EXPECT_EQ(to_text(schedule), "0.2,1,f2,k1");
    Schedule read;
    EXPECT_TRUE(from_text("0.2,1,f2,k1", read));
    EXPECT_EQ(read, schedule);
    for (const char *const bad : {"x", "0,", "0..1", "0.", "-1", "300", "k", "0 1"})
        EXPECT_FALSE(from_text(bad, read)) << bad;
}

}  // namespace
}  // namespace numacre::model
