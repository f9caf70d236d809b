// The accounting, checked with programs whose counts can be told by hand; the schedules, by what they are for; and that
// the same seed makes the same counts with real allocators.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "experiment.hpp"
#include "simulator.hpp"

namespace numacre::contention {
namespace {

using Word = ContentionEnv::Atomic<std::uint64_t>;

struct alignas(kLineBytes) Lines {
    Word word[kCoresMax][kLineBytes / sizeof(Word)];  // [line][word in it]
};

class Bench {
public:
    Bench() : lines(*reinterpret_cast<Lines *>(arena_.place(sizeof(Lines), "lines"))) {}

    Outcome run(const Plan &plan, const std::function<void(unsigned)> &body) {
        Simulator simulator(arena_, plan);
        return simulator.run(body);
    }
    Arena &arena() { return arena_; }

private:
    Arena arena_{std::size_t{1} << 20};

public:
    Lines &lines;
};

// Until all bodies have returned.
Plan to_the_end(unsigned cores, Schedule schedule = Schedule::random) {
    Plan plan;
    plan.schedule = schedule;
    plan.cores = cores;
    plan.operations = 1'000'000;
    return plan;
}

// Waits for its turn.
void after(Word &flag, std::uint64_t value) {
    while (flag.load() != value) ContentionEnv::pause();
}

TEST(Accounting, a_core_alone_pays_for_each_line_once) {
    Bench bench;
    const Outcome outcome = bench.run(to_the_end(1), [&](unsigned) {
        Word &word = bench.lines.word[0][0];
        word.store(5);
        for (int i = 0; i < 3; ++i) (void)word.load();
        word.fetch_add(2);
        std::uint64_t seven = 7;
        EXPECT_TRUE(word.compare_exchange_strong(seven, 8));
        EXPECT_FALSE(word.compare_exchange_strong(seven, 9));
        EXPECT_EQ(seven, 8U);
        EXPECT_EQ(word.exchange(3), 8U);
        (void)bench.lines.word[0][1].load();  // the same line
        (void)bench.lines.word[1][0].load();  // another one
    });
    EXPECT_EQ(outcome.counts, (Counts{.loads = 5, .stores = 1, .rmws = 4, .failed_cas = 1, .transfers = 0, .cold = 2}));
}

TEST(Accounting, a_failed_compare_and_swap_changes_nothing_but_takes_the_line) {
    Bench bench;
    bench.arena().label(&bench.lines.word[0][0], kLineBytes, "word");
    Word &word = bench.lines.word[0][0];
    Word &flag = bench.lines.word[1][0];
    const Outcome outcome = bench.run(to_the_end(2), [&](unsigned core) {
        if (core == 0) {
            word.store(1);  // cold
            flag.store(1);
            after(flag, 2);
            EXPECT_EQ(word.load(), 1U);  // transfer
        } else {
            after(flag, 1);
            std::uint64_t wrong = 3;
            EXPECT_FALSE(word.compare_exchange_strong(wrong, 4));  // transfer
            flag.store(2);
        }
    });
    EXPECT_EQ(outcome.counts.failed_cas, 1U);
    EXPECT_EQ(outcome.counts.rmws, 1U);
    EXPECT_EQ(outcome.by_label.back().transfers, 2U);
}

TEST(Accounting, readers_share_a_line_until_it_is_written) {
    // The line that gives turns is of no interest: what is looked at is one label.
    Bench bench;
    bench.arena().label(&bench.lines.word[0][0], kLineBytes, "shared");
    Word &word = bench.lines.word[0][0];
    Word &turn = bench.lines.word[1][0];
    const Outcome outcome = bench.run(to_the_end(3), [&](unsigned core) {
        const std::uint64_t at = core;
        for (std::uint64_t round = 0; round < 4; ++round) {
            after(turn, 3 * round + at);
            if (core == 0)
                word.store(round);  // cold; then three times an invalidation of two readers: one transfer
            else
                EXPECT_EQ(word.load(), round);  // a transfer each
            (void)word.load();                  // a hit
            turn.store(3 * round + at + 1);
        }
    });
    const Counts &shared = outcome.by_label.back();
    EXPECT_EQ(shared,
              (Counts{.loads = 8 + 12, .stores = 4, .rmws = 0, .failed_cas = 0, .transfers = 3 + 8, .cold = 1}));
}

TEST(Accounting, two_words_of_one_line_are_one_line_and_of_two_lines_two) {
    for (const bool one_line : {true, false}) {
        Bench bench;
        bench.arena().label(&bench.lines.word[0][0], 2 * kLineBytes, "data");
        Word *const words[2] = {&bench.lines.word[0][0], one_line ? &bench.lines.word[0][1] : &bench.lines.word[1][0]};
        Word &turn = bench.lines.word[2][0];
        constexpr std::uint64_t kRounds = 10;
        const Outcome outcome = bench.run(to_the_end(2), [&](unsigned core) {
            for (std::uint64_t round = 0; round < kRounds; ++round) {
                after(turn, 2 * round + core);
                words[core]->fetch_add(1);
                turn.store(2 * round + core + 1);
            }
        });
        const Counts &data = outcome.by_label.back();
        EXPECT_EQ(data.rmws, 2 * kRounds);
        EXPECT_EQ(data.transfers, one_line ? 2 * kRounds - 1 : 0);
        EXPECT_EQ(data.cold, one_line ? 1U : 2U);
    }
}

TEST(Accounting, what_is_counted_begins_after_the_warm_up) {
    Bench bench;
    Plan plan;
    plan.warm_up_operations = 10;
    plan.operations = 20;
    const Outcome outcome = bench.run(plan, [&](unsigned) {
        for (;;) {
            bench.lines.word[0][0].fetch_add(1);
            Simulator::end_operation();
        }
    });
    EXPECT_EQ(outcome.operations, 20U);
    EXPECT_EQ(outcome.counts, (Counts{.rmws = 20}));
    EXPECT_EQ(bench.lines.word[0][0].load(), 30U);
    EXPECT_FALSE(outcome.cut_short);
}

TEST(Accounting, narrow_words_wrap_in_their_width) {
    Bench bench;
    auto &byte = *reinterpret_cast<ContentionEnv::Atomic<std::uint8_t> *>(&bench.lines);
    bench.lines.word[0][0].store(0xff00);
    EXPECT_EQ(byte.fetch_sub(1), 0U);
    EXPECT_EQ(byte.load(), 0xffU);
    EXPECT_EQ(bench.lines.word[0][0].load(), 0xffffU);
}

// A counter by compare-and-swap, many times on each core.
Outcome increment(Bench &bench, Schedule schedule, unsigned cores, bool own_lines, std::uint64_t seed = 1) {
    Plan plan;
    plan.schedule = schedule;
    plan.cores = cores;
    plan.seed = seed;
    plan.warm_up_operations = 100 * cores;
    plan.operations = 500 * cores;
    return bench.run(plan, [&, own_lines](unsigned core) {
        Word &counter = bench.lines.word[own_lines ? core : 0][0];
        for (;;) {
            std::uint64_t seen = counter.load();
            while (!counter.compare_exchange_weak(seen, seen + 1)) {
            }
            Simulator::end_operation();
        }
    });
}

TEST(Schedules, no_schedule_fails_what_nobody_else_touches) {
    for (const Schedule schedule : {Schedule::random, Schedule::timed, Schedule::adversarial}) {
        Bench bench;
        const Outcome outcome = increment(bench, schedule, 16, true);
        EXPECT_EQ(outcome.counts.failed_cas, 0U);
        EXPECT_EQ(outcome.counts.transfers, 0U);
        EXPECT_EQ(outcome.operations, 16U * 500);
    }
}

TEST(Schedules, the_adversary_fails_each_operation_that_can_be_failed) {
    for (const unsigned cores : {2U, 8U, 32U}) {
        Bench bench;
        const Outcome outcome = increment(bench, Schedule::adversarial, cores, false);
        EXPECT_GT(outcome.per_operation(outcome.counts.failed_cas), 0.9) << cores;
        EXPECT_FALSE(outcome.cut_short) << "it holds nobody for ever";
    }
    // Where two meet rarely, chance makes few fail; the adversary waits until they do meet.
    const auto failed = [](Schedule schedule) {
        Bench bench;
        Plan plan;
        plan.schedule = schedule;
        plan.cores = 8;
        plan.operations = 8000;
        Random random{5};
        const Outcome outcome = bench.run(plan, [&](unsigned core) {
            for (;;) {
                Word &counter = bench.lines.word[random.below(8) == 0 ? 0 : 1 + core][0];
                for (int i = 0; i < 4; ++i) (void)bench.lines.word[1 + core][1].load();
                std::uint64_t seen = counter.load();
                while (!counter.compare_exchange_weak(seen, seen + 1)) {
                }
                Simulator::end_operation();
            }
        });
        return outcome.counts.failed_cas;
    };
    EXPECT_GT(failed(Schedule::adversarial), 2 * failed(Schedule::random));
}

TEST(Schedules, the_clock_adds_up) {
    // Alone: a load and a compare-and-swap of one's own line, and the work between operations.
    Bench alone;
    const double one = increment(alone, Schedule::timed, 1, true).operations_per_kilocycle();
    const auto least = static_cast<double>(kHitCycles + kRmwCycles + kWorkCyclesLeast);
    const auto most = static_cast<double>(kHitCycles + kRmwCycles + kWorkCyclesMost);
    EXPECT_GT(one, 1000 / most);
    EXPECT_LT(one, 1000 / least);
    // On lines of their own 16 cores do 16 times that ...
    Bench apart;
    EXPECT_NEAR(increment(apart, Schedule::timed, 16, true).operations_per_kilocycle(), 16 * one, 0.5 * one);
    // ... and on one line no more than its transfers allow, whatever their number.
    Bench together;
    EXPECT_LT(increment(together, Schedule::timed, 16, false).operations_per_kilocycle(),
              1000 / static_cast<double>(kTransferCycles));
}

TEST(Schedules, a_loop_without_end_is_cut_short) {
    for (const Schedule schedule : {Schedule::random, Schedule::timed, Schedule::adversarial}) {
        Bench bench;
        Plan plan = to_the_end(4, schedule);
        plan.steps_max = 10'000;
        const Outcome outcome = bench.run(plan, [&](unsigned) { after(bench.lines.word[0][0], 1); });
        EXPECT_TRUE(outcome.cut_short);
        EXPECT_EQ(outcome.operations, 0U);
    }
}

TEST(Owners, overlaps_are_noticed) {
    OwnerMap owners(64);
    owners.take(8, 3);
    owners.take(16, 0);
    EXPECT_EQ(owners.overlaps(), 0U);
    owners.take(12, 1);
    EXPECT_EQ(owners.overlaps(), 1U);
    owners.release(8, 3);
    owners.take(0, 4);
    EXPECT_EQ(owners.overlaps(), 1U);
    owners.take(64, 0);  // outside
    owners.take(33, 1);  // misaligned
    EXPECT_EQ(owners.overlaps(), 3U);
}

Experiment small_experiment(const std::string &workload, Schedule schedule, std::uint64_t seed) {
    Experiment experiment;
    experiment.task = {workload, std::uint64_t{1} << 14, 0, 8, seed};
    experiment.schedule = schedule;
    experiment.rounds = 1;
    experiment.steps_max = 300'000;
    return experiment;
}

TEST(Allocators, the_same_seed_makes_the_same_counts) {
    for (const Contender &contender : contenders())
        for (const Schedule schedule : {Schedule::random, Schedule::timed, Schedule::adversarial})
            for (const char *workload : {"linux", "co90", "larson"}) {
                SCOPED_TRACE(contender.name + ", " + workload + ", schedule " +
                             std::to_string(static_cast<int>(schedule)));
                const auto run = [&](std::uint64_t seed) {
                    const Result result = run_experiment(contender, small_experiment(workload, schedule, seed));
                    return std::tuple(result.outcome.counts, result.outcome.steps, result.outcome.cycles,
                                      result.outcome.operations, result.refused);
                };
                EXPECT_EQ(run(7), run(7));
            }
}

TEST(Allocators, another_seed_is_another_schedule) {
    const Contender &ours = contenders().front();
    std::set<std::uint64_t> steps;
    for (std::uint64_t seed = 1; seed <= 4; ++seed)
        steps.insert(run_experiment(ours, small_experiment("co90", Schedule::random, seed)).outcome.counts.loads);
    EXPECT_GT(steps.size(), 1U);
}

// By hand: shm/README.md, "The steps".
TEST(Allocators, ours_takes_one_rmw_to_allocate_and_one_to_free) {
    Experiment experiment = small_experiment("cache", Schedule::random, 1);
    experiment.task.cores = 4;
    const Outcome outcome = run_experiment(contenders().front(), experiment).outcome;
    EXPECT_NEAR(outcome.per_operation(outcome.counts.rmws), 1, 0.01);
    EXPECT_EQ(outcome.counts.failed_cas, 0U);
    EXPECT_EQ(outcome.counts.transfers, 0U);
}

}  // namespace
}  // namespace numacre::contention
