// What the explorer's memory modes allow and forbid: the litmus tests of the literature, with known outcomes. A pair of
// orders is (of stores, of loads).
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <set>
#include <vector>

#include "explorer.hpp"

namespace numacre::model {
namespace {

using Word = SimEnv::Atomic<std::uint64_t>;
using std::memory_order_acq_rel;
using std::memory_order_acquire;
using std::memory_order_relaxed;
using std::memory_order_release;
using std::memory_order_seq_cst;

constexpr MemoryMode kSc = MemoryMode::sequential;
constexpr MemoryMode kTso = MemoryMode::total_store_order;
constexpr MemoryMode kWeak = MemoryMode::weak;

struct Shared {
    Word x, y, z;
};
using Registers = std::array<std::uint64_t, 3>;
using Program = std::function<void(Shared &, Registers &)>;
// Of each thread its registers that were used, in sequence; then x, y if asked for.
using Outcome = std::vector<std::uint64_t>;
using Outcomes = std::set<Outcome>;

struct Orders {
    std::memory_order store;
    std::memory_order load;
};
constexpr Orders kRelaxed{memory_order_relaxed, memory_order_relaxed};
constexpr Orders kReleaseAcquire{memory_order_release, memory_order_acquire};
constexpr Orders kSeqCst{memory_order_seq_cst, memory_order_seq_cst};

constexpr std::uint64_t kUnused = ~std::uint64_t{0};

Outcomes outcomes(MemoryMode mode, const std::vector<Program> &programs, bool with_memory = false) {
    Options options;
    options.memory = mode;
    options.barriers = true;
    options.print = false;
    Explorer explorer("litmus", options);
    auto *const shared = explorer.make<Shared>();
    for (const Program &program : programs)
        explorer.add_thread(
            {},
            [shared, &program](Thread &self) {
                auto &registers = self.local<Registers>();
                registers.fill(kUnused);
                program(*shared, registers);
            },
            sizeof(Registers));
    Outcomes all;
    explorer.on_quiet([&] {
        Outcome outcome;
        for (std::size_t thread = 0; thread < programs.size(); ++thread)
            for (const std::uint64_t value : explorer.local<Registers>(static_cast<int>(thread)))
                if (value != kUnused) outcome.push_back(value);
        if (with_memory) outcome.insert(outcome.end(), {shared->x.load(), shared->y.load()});
        all.insert(outcome);
    });
    const Report report = explorer.run();
    EXPECT_TRUE(report.clean()) << report.trace;
    EXPECT_TRUE(report.complete);
    EXPECT_FALSE(report.histories_cut);
    return all;
}

bool allowed(MemoryMode mode, const std::vector<Program> &programs, const Outcome &outcome, bool with_memory = false) {
    return outcomes(mode, programs, with_memory).contains(outcome);
}

// --- store buffering: both loads before both stores ------------------------------------------------------------------

std::vector<Program> store_buffering(Orders orders) {
    return {[orders](Shared &m, Registers &r) {
                m.x.store(1, orders.store);
                r[0] = m.y.load(orders.load);
            },
            [orders](Shared &m, Registers &r) {
                m.y.store(1, orders.store);
                r[0] = m.x.load(orders.load);
            }};
}

TEST(Litmus, store_buffering) {
    const Outcomes in_order{{0, 1}, {1, 0}, {1, 1}};
    Outcomes all = in_order;
    all.insert({0, 0});
    EXPECT_EQ(outcomes(kSc, store_buffering(kRelaxed)), in_order);
    for (const Orders orders : {kRelaxed, kReleaseAcquire}) {
        EXPECT_EQ(outcomes(kTso, store_buffering(orders)), all);
        EXPECT_EQ(outcomes(kWeak, store_buffering(orders)), all);
    }
    for (const MemoryMode mode : {kTso, kWeak}) EXPECT_EQ(outcomes(mode, store_buffering(kSeqCst)), in_order);
    // x86 makes the store a full barrier, so there the loads may be weak. C++ (and ARM) want both to be seq_cst.
    EXPECT_EQ(outcomes(kTso, store_buffering({memory_order_seq_cst, memory_order_relaxed})), in_order);
    EXPECT_EQ(outcomes(kWeak, store_buffering({memory_order_seq_cst, memory_order_acquire})), all);
    EXPECT_EQ(outcomes(kWeak, store_buffering({memory_order_release, memory_order_seq_cst})), all);
}

TEST(Litmus, store_buffering_by_rmw) {
    const auto program = [](std::memory_order rmw, std::memory_order load) -> std::vector<Program> {
        return {[=](Shared &m, Registers &r) {
                    m.x.fetch_add(1, rmw);
                    r[0] = m.y.load(load);
                },
                [=](Shared &m, Registers &r) {
                    std::uint64_t expected = 0;
                    m.y.compare_exchange_strong(expected, 1, rmw, memory_order_relaxed);
                    r[0] = m.x.load(load);
                }};
    };
    EXPECT_FALSE(allowed(kTso, program(memory_order_relaxed, memory_order_relaxed), {0, 0}));
    EXPECT_FALSE(allowed(kWeak, program(memory_order_seq_cst, memory_order_seq_cst), {0, 0}));
    EXPECT_TRUE(allowed(kWeak, program(memory_order_acq_rel, memory_order_seq_cst), {0, 0}));
    EXPECT_TRUE(allowed(kWeak, program(memory_order_seq_cst, memory_order_acquire), {0, 0}));
}

// The barrier of all threads at once (membarrier) replaces the fences of both sides. The first thread may have come to
// its end by then.
TEST(Litmus, store_buffering_with_a_barrier_of_all_threads_on_one_side) {
    for (const bool has_barrier : {true, false}) {
        const std::vector<Program> program{[](Shared &m, Registers &r) {
                                               m.x.store(1, memory_order_relaxed);
                                               r[0] = m.y.load(memory_order_relaxed);
                                           },
                                           [has_barrier](Shared &m, Registers &r) {
                                               m.y.store(1, memory_order_relaxed);
                                               if (has_barrier) pass_barrier(m.z);
                                               r[0] = m.x.load(memory_order_relaxed);
                                           }};
        EXPECT_FALSE(allowed(kSc, program, {0, 0}));
        for (const MemoryMode mode : {kTso, kWeak}) EXPECT_EQ(allowed(mode, program, {0, 0}), !has_barrier);
    }
}

// No fences of one thread in this code base; an RMW of a word that both write is as good as one.
TEST(Litmus, store_buffering_with_an_rmw_of_one_word_in_between) {
    const std::vector<Program> program{[](Shared &m, Registers &r) {
                                           m.x.store(1, memory_order_relaxed);
                                           m.z.fetch_add(0, memory_order_acq_rel);
                                           r[0] = m.y.load(memory_order_relaxed);
                                       },
                                       [](Shared &m, Registers &r) {
                                           m.y.store(1, memory_order_relaxed);
                                           m.z.fetch_add(0, memory_order_acq_rel);
                                           r[0] = m.x.load(memory_order_relaxed);
                                       }};
    for (const MemoryMode mode : {kSc, kTso, kWeak}) EXPECT_FALSE(allowed(mode, program, {0, 0}));
}

// --- message passing: the flag is seen, the data is not --------------------------------------------------------------

std::vector<Program> message_passing(Orders orders) {
    return {[orders](Shared &m, Registers &) {
                m.x.store(1, memory_order_relaxed);
                m.y.store(1, orders.store);
            },
            [orders](Shared &m, Registers &r) {
                r[0] = m.y.load(orders.load);
                r[1] = m.x.load(memory_order_relaxed);
            }};
}

TEST(Litmus, message_passing) {
    const Outcomes in_order{{0, 0}, {0, 1}, {1, 1}};
    for (const Orders orders : {kRelaxed, kReleaseAcquire, kSeqCst}) {
        EXPECT_EQ(outcomes(kSc, message_passing(orders)), in_order);
        EXPECT_EQ(outcomes(kTso, message_passing(orders)), in_order);
    }
    EXPECT_EQ(outcomes(kWeak, message_passing(kReleaseAcquire)), in_order);
    EXPECT_EQ(outcomes(kWeak, message_passing(kSeqCst)), in_order);
    for (const Orders orders :
         {kRelaxed, Orders{memory_order_release, memory_order_relaxed},
          Orders{memory_order_relaxed, memory_order_acquire}, Orders{memory_order_relaxed, memory_order_seq_cst}})
        EXPECT_TRUE(allowed(kWeak, message_passing(orders), {1, 0}));
}

// What comes after a seq_cst store, and is no seq_cst itself, may be seen before it, even by a seq_cst load.
TEST(Litmus, message_passing_behind_a_seq_cst_store) {
    const auto program = [](Orders flag) -> std::vector<Program> {
        return {[=](Shared &m, Registers &) {
                    m.x.exchange(1, memory_order_seq_cst);
                    m.y.store(1, flag.store);
                },
                [=](Shared &m, Registers &r) {
                    r[0] = m.y.load(flag.load);
                    r[1] = m.x.load(memory_order_seq_cst);
                }};
    };
    EXPECT_TRUE(allowed(kWeak, program(kRelaxed), {1, 0}));
    EXPECT_TRUE(allowed(kWeak, program({memory_order_relaxed, memory_order_acquire}), {1, 0}));
    EXPECT_TRUE(allowed(kWeak, program({memory_order_release, memory_order_relaxed}), {1, 0}));
    EXPECT_FALSE(allowed(kWeak, program(kReleaseAcquire), {1, 0}));
    EXPECT_FALSE(allowed(kWeak, program(kSeqCst), {1, 0}));
    EXPECT_FALSE(allowed(kTso, program(kRelaxed), {1, 0}));
}

// --- others ----------------------------------------------------------------------------------------------------------

// Both loads see the other thread's later store. C++20 allows it for relaxed, no hardware of ours shows it for what
// this project does; the weak mode has no reads from the future, so it does not show it either.
TEST(Litmus, load_buffering_is_not_modelled) {
    const std::vector<Program> program{[](Shared &m, Registers &r) {
                                           r[0] = m.y.load(memory_order_relaxed);
                                           m.x.store(1, memory_order_relaxed);
                                       },
                                       [](Shared &m, Registers &r) {
                                           r[0] = m.x.load(memory_order_relaxed);
                                           m.y.store(1, memory_order_relaxed);
                                       }};
    for (const MemoryMode mode : {kSc, kTso, kWeak}) EXPECT_FALSE(allowed(mode, program, {1, 1}));
}

// Two readers disagree about which of two independent writes came first.
TEST(Litmus, independent_reads_of_independent_writes) {
    const auto program = [](Orders orders) -> std::vector<Program> {
        return {[=](Shared &m, Registers &) { m.x.store(1, orders.store); },
                [=](Shared &m, Registers &) { m.y.store(1, orders.store); },
                [=](Shared &m, Registers &r) {
                    r[0] = m.x.load(orders.load);
                    r[1] = m.y.load(orders.load);
                },
                [=](Shared &m, Registers &r) {
                    r[0] = m.y.load(orders.load);
                    r[1] = m.x.load(orders.load);
                }};
    };
    const Outcome disagree{1, 0, 1, 0};
    for (const Orders orders : {kRelaxed, kReleaseAcquire}) {
        EXPECT_FALSE(allowed(kSc, program(orders), disagree));
        EXPECT_FALSE(allowed(kTso, program(orders), disagree));
        EXPECT_TRUE(allowed(kWeak, program(orders), disagree));
    }
    EXPECT_FALSE(allowed(kWeak, program(kSeqCst), disagree));
    EXPECT_TRUE(allowed(kWeak, program({memory_order_seq_cst, memory_order_acquire}), disagree));
}

// Each thread's first store ends up last.
TEST(Litmus, two_plus_two_writes) {
    const auto program = [](std::memory_order order) -> std::vector<Program> {
        return {[=](Shared &m, Registers &) {
                    m.x.store(1, order);
                    m.y.store(2, order);
                },
                [=](Shared &m, Registers &) {
                    m.y.store(1, order);
                    m.x.store(2, order);
                }};
    };
    for (const std::memory_order order : {memory_order_relaxed, memory_order_release}) {
        EXPECT_FALSE(allowed(kSc, program(order), {1, 1}, true));
        EXPECT_FALSE(allowed(kTso, program(order), {1, 1}, true));
        EXPECT_TRUE(allowed(kWeak, program(order), {1, 1}, true));
    }
    EXPECT_FALSE(allowed(kWeak, program(memory_order_seq_cst), {1, 1}, true));
}

// R: my store is last, yet I do not see what the other stored before its own.
TEST(Litmus, a_store_that_is_last_and_a_load) {
    const auto program = [](Orders orders) -> std::vector<Program> {
        return {[=](Shared &m, Registers &) {
                    m.x.store(1, orders.store);
                    m.y.store(1, orders.store);
                },
                [=](Shared &m, Registers &r) {
                    m.y.store(2, orders.store);
                    r[0] = m.x.load(orders.load);
                }};
    };
    EXPECT_FALSE(allowed(kSc, program(kRelaxed), {0, 1, 2}, true));
    EXPECT_TRUE(allowed(kTso, program(kRelaxed), {0, 1, 2}, true));
    EXPECT_FALSE(allowed(kTso, program(kSeqCst), {0, 1, 2}, true));
    EXPECT_TRUE(allowed(kWeak, program(kReleaseAcquire), {0, 1, 2}, true));
    EXPECT_FALSE(allowed(kWeak, program(kSeqCst), {0, 1, 2}, true));
}

TEST(Litmus, one_location_is_coherent_whatever_the_orders) {
    const std::vector<Program> program{[](Shared &m, Registers &) {
                                           m.x.store(1, memory_order_relaxed);
                                           m.x.store(2, memory_order_relaxed);
                                       },
                                       [](Shared &m, Registers &r) {
                                           r[0] = m.x.load(memory_order_relaxed);
                                           r[1] = m.x.load(memory_order_relaxed);
                                       }};
    const Outcomes expected{{0, 0, 2, 0}, {0, 1, 2, 0}, {0, 2, 2, 0}, {1, 1, 2, 0}, {1, 2, 2, 0}, {2, 2, 2, 0}};
    for (const MemoryMode mode : {kSc, kTso, kWeak}) EXPECT_EQ(outcomes(mode, program, true), expected);
}

TEST(Litmus, a_thread_sees_its_own_stores) {
    const auto program = [](Shared &m, Registers &r) {
        m.x.store(m.x.load(memory_order_relaxed) + 1, memory_order_relaxed);
        r[0] = m.x.load(memory_order_relaxed);
    };
    for (const MemoryMode mode : {kSc, kTso, kWeak})
        for (const Outcome &outcome : outcomes(mode, {program, program}))
            EXPECT_TRUE(outcome[0] != 0 && outcome[1] != 0);
}

// What I read I pass on, though I read it relaxed: the reader of my release cannot see an older value.
TEST(Litmus, write_read_causality) {
    const auto program = [](Orders orders) -> std::vector<Program> {
        return {[=](Shared &m, Registers &) { m.x.store(1, memory_order_relaxed); },
                [=](Shared &m, Registers &r) {
                    r[0] = m.x.load(memory_order_relaxed);
                    m.y.store(1, orders.store);
                },
                [=](Shared &m, Registers &r) {
                    r[0] = m.y.load(orders.load);
                    r[1] = m.x.load(memory_order_relaxed);
                }};
    };
    EXPECT_FALSE(allowed(kTso, program(kRelaxed), {1, 1, 0}));
    EXPECT_FALSE(allowed(kWeak, program(kReleaseAcquire), {1, 1, 0}));
    EXPECT_TRUE(allowed(kWeak, program(kRelaxed), {1, 1, 0}));
}

// An RMW of any order between the release and the acquire carries the release on; a plain store breaks the chain, also
// one by the releasing thread (C++20).
TEST(Litmus, release_sequences) {
    const auto program = [](bool rmw) -> std::vector<Program> {
        return {[](Shared &m, Registers &) {
                    m.x.store(1, memory_order_relaxed);
                    m.y.store(1, memory_order_release);
                },
                [rmw](Shared &m, Registers &) {
                    std::uint64_t expected = 1;
                    if (rmw)
                        m.y.compare_exchange_strong(expected, 2, memory_order_relaxed);
                    else if (m.y.load(memory_order_relaxed) == 1)
                        m.y.store(2, memory_order_relaxed);
                },
                [](Shared &m, Registers &r) {
                    r[0] = m.y.load(memory_order_acquire);
                    r[1] = m.x.load(memory_order_relaxed);
                }};
    };
    for (const MemoryMode mode : {kSc, kTso, kWeak}) EXPECT_FALSE(allowed(mode, program(true), {2, 0}));
    EXPECT_TRUE(allowed(kWeak, program(false), {2, 0}));
    EXPECT_FALSE(allowed(kTso, program(false), {2, 0}));
    const std::vector<Program> own_store{[](Shared &m, Registers &) {
                                             m.x.store(1, memory_order_relaxed);
                                             m.y.store(1, memory_order_release);
                                             m.y.store(2, memory_order_relaxed);
                                         },
                                         [](Shared &m, Registers &r) {
                                             r[0] = m.y.load(memory_order_acquire);
                                             r[1] = m.x.load(memory_order_relaxed);
                                         }};
    EXPECT_TRUE(allowed(kWeak, own_store, {2, 0}));
    EXPECT_FALSE(allowed(kWeak, own_store, {1, 0}));
}

TEST(Litmus, rmws_of_any_order_are_atomic) {
    const Program add = [](Shared &m, Registers &r) { r[0] = m.x.fetch_add(1, memory_order_relaxed); };
    const Program win = [](Shared &m, Registers &r) {
        std::uint64_t expected = 0;
        r[0] = m.x.compare_exchange_strong(expected, 1, memory_order_relaxed) ? 1 : 0;
    };
    for (const MemoryMode mode : {kSc, kTso, kWeak}) {
        EXPECT_EQ(outcomes(mode, {add, add}, true), (Outcomes{{0, 1, 2, 0}, {1, 0, 2, 0}}));
        EXPECT_EQ(outcomes(mode, {win, win}, true), (Outcomes{{0, 1, 1, 0}, {1, 0, 1, 0}}));
    }
}

// An RMW may take an old value's place only if nobody has: a store goes before or behind it, never between.
TEST(Litmus, nothing_comes_between_an_rmw_and_what_it_read) {
    const std::vector<Program> program{
        [](Shared &m, Registers &r) { r[0] = m.x.fetch_add(10, memory_order_relaxed); },
        [](Shared &m, Registers &) { m.x.store(1, memory_order_relaxed); },
    };
    // It read 0: either the store is last (1), or it would have to be between. It read 1: 11.
    for (const MemoryMode mode : {kSc, kTso, kWeak})
        EXPECT_EQ(outcomes(mode, program, true), (Outcomes{{0, 1, 0}, {1, 11, 0}}));
}

TEST(Litmus, a_failed_exchange_has_an_order_of_its_own) {
    const auto program = [](std::memory_order failure) -> std::vector<Program> {
        return {[](Shared &m, Registers &) {
                    m.x.store(1, memory_order_relaxed);
                    m.y.store(1, memory_order_release);
                },
                [failure](Shared &m, Registers &r) {
                    std::uint64_t expected = 7;
                    m.y.compare_exchange_strong(expected, 8, memory_order_seq_cst, failure);
                    r[0] = expected;
                    r[1] = m.x.load(memory_order_relaxed);
                }};
    };
    EXPECT_TRUE(allowed(kWeak, program(memory_order_relaxed), {1, 0}));
    EXPECT_FALSE(allowed(kWeak, program(memory_order_acquire), {1, 0}));
}

// What a wait passes on: a channel everything, the kernel's word of a death everything that the dead did.
TEST(Litmus, a_channel_synchronises) {
    for (const MemoryMode mode : {kSc, kTso, kWeak}) {
        Options options;
        options.memory = mode;
        options.print = false;
        Explorer explorer("channel", options);
        auto *const shared = explorer.make<Shared>();
        explorer.keep_as_channel(&shared->z, sizeof shared->z);
        explorer.add_thread({}, [shared](Thread &) {
            shared->x.store(1, memory_order_relaxed);
            shared->z.store(1);
        });
        explorer.add_thread({}, [shared](Thread &self) {
            self.wait_until([shared] { return shared->z.load() != 0; });
            if (shared->z.load() == 0 || shared->x.load(memory_order_relaxed) == 0) self.fail("not carried over");
        });
        const Report report = explorer.run();
        EXPECT_TRUE(report.clean()) << report.trace;
        EXPECT_TRUE(report.complete);
    }
}

TEST(Litmus, a_death_makes_visible_what_the_dead_stored_unless_it_shall_be_lost) {
    for (const MemoryMode mode : {kSc, kTso, kWeak}) {
        for (const bool lose : {false, true}) {
            Options options;
            options.memory = mode;
            options.lose_buffers_at_death = lose;
            options.kills_max = 1;
            options.print = false;
            Explorer explorer("dying", options);
            auto *const shared = explorer.make<Shared>();
            auto *const made = explorer.make<Word>();  // how many stores the thread has executed
            explorer.keep_private(made, sizeof *made);
            explorer.add_thread({.process = 1}, [=](Thread &) {
                shared->x.store(1, memory_order_relaxed);
                made->store(1);
                shared->y.store(1, memory_order_relaxed);
                made->store(2);
            });
            // It learns of the death from the kernel, so relaxed loads tell it all.
            explorer.add_thread(
                {.process = 0, .restartable = true},
                [&explorer, shared](Thread &self) {
                    self.rest_until([&] { return explorer.dead(1); });
                    self.local<Registers>() = {shared->x.load(memory_order_relaxed),
                                               shared->y.load(memory_order_relaxed), 1};
                },
                sizeof(Registers));
            Outcomes left;
            explorer.on_quiet([&] {
                const Registers &found = explorer.local<Registers>(1);
                if (found[2] != 0) left.insert({made->load(), found[0], found[1]});
            });
            EXPECT_TRUE(explorer.run().complete);
            Outcomes expected{{0, 0, 0}, {1, 1, 0}, {2, 1, 1}};
            if (mode == kTso && lose) expected.insert({{1, 0, 0}, {2, 0, 0}, {2, 1, 0}});
            EXPECT_EQ(left, expected);
        }
    }
}

TEST(Litmus, a_store_buffer_has_no_more_room_than_was_said) {
    for (const unsigned room : {1U, 2U, 3U}) {
        Options options;
        options.memory = kTso;
        options.store_buffer_max = room;
        options.print = false;
        Explorer explorer("room", options);
        auto *const shared = explorer.make<Shared>();
        auto *const made = explorer.make<Word>();
        explorer.keep_private(made, sizeof *made);
        explorer.add_thread({}, [=](Thread &) {
            for (std::uint64_t value = 1; value <= 4; ++value) {
                shared->x.store(value, memory_order_relaxed);
                made->store(value);
            }
        });
        std::uint64_t waiting_max = 0;
        explorer.on_step([&] { waiting_max = std::max(waiting_max, made->load() - shared->x.load()); });
        EXPECT_TRUE(explorer.run().complete);
        EXPECT_EQ(waiting_max, room);
    }
}

}  // namespace
}  // namespace numacre::model
