// Limits of several processes together: the words, the sums, the decision; and that no two get the last frames.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "numacre/shm/account.hpp"

namespace numacre {

using namespace engine;
namespace {

constexpr std::uint32_t kProcesses = 6;

struct Pool {
    std::vector<std::byte> memory{PoolLayout<ProductionEnv>::of(kProcesses, 2).region_bytes + kPageBytes};
    PoolView<ProductionEnv> view;

    explicit Pool(std::uint64_t accounting) {
        void *where = memory.data();
        std::size_t room = memory.size();
        std::align(kPageBytes, memory.size() - kPageBytes, where, room);
        view = PoolView<ProductionEnv>::at(where, kProcesses, 2);
        view.header->accounting = accounting;
        view.header->seats = kProcesses;
        view.header->online_frames = 100;
        for (std::uint32_t slot = 0; slot < kProcesses; ++slot) view.processes[slot].held = HeldFrames::of(0).bits();
    }
    Admission charge(std::uint16_t slot, std::uint64_t frames) {
        return numacre::charge(view, ProcessSlot{slot}, frames).answer;
    }
    std::uint64_t held(std::uint32_t slot) const { return HeldFrames{view.processes[slot].held}.frames(); }
};

constexpr std::uint64_t kQuotas = Accounting::kCount | Accounting::kShared;
constexpr std::uint64_t kAll = kQuotas | Accounting::kReservations;

TEST(HeldFrames, changes_with_each_change_and_stays_counted) {
    const HeldFrames five = HeldFrames::of(5);
    EXPECT_FALSE(HeldFrames{}.is_counted());
    EXPECT_EQ(five.with_more(3).frames(), 8U);
    EXPECT_EQ(five.with_fewer(7).frames(), 0U) << "never below nothing";
    EXPECT_EQ(five.with_more(3).with_fewer(3).frames(), 5U);
    EXPECT_NE(five.with_more(3).with_fewer(3).bits(), five.bits()) << "an old look is not taken for a new one";
    HeldFrames word = five;
    for (int i = 0; i < (1 << 19) + 3; ++i) word = word.changed_to(5);
    EXPECT_TRUE(word.is_counted() && word.frames() == 5);
}

TEST(OnTheWay, an_era_later_nothing_is_taken_back) {
    OnTheWay word;
    for (int i = 0; i < (1 << 12) + 3; ++i) {
        const OnTheWay more = word.with_more(5).with_more(2).with_fewer(2);
        EXPECT_EQ(more.frames(), 5U);
        EXPECT_EQ(more.era(), word.era());
        EXPECT_EQ(more.with_fewer(7).frames(), 0U) << "never below nothing";
        word = more.forgotten();
        EXPECT_EQ(word.frames(), 0U);
        EXPECT_NE(word.era(), more.era());
        ASSERT_NE(word.bits(), more.forgotten().with_more(0).bits()) << "each change tells";
    }
    EXPECT_TRUE(OnTheWay{}.has_room_for((std::uint64_t{1} << 36) - 1));
    EXPECT_FALSE(OnTheWay{}.with_more(1).has_room_for((std::uint64_t{1} << 36) - 1));
}

TEST(Account, what_is_on_the_way_counts_for_its_process_and_against_all_others) {
    Pool pool(kQuotas);
    pool.view.processes[1].quota_frames = 10;
    pool.view.accounts[kPoolAccount].quota_frames = 20;
    std::uint64_t era = 0;
    EXPECT_EQ(charge_on_the_way(pool.view, ProcessSlot{1}, 8, {}, era).answer, Admission::granted);
    EXPECT_EQ(pool.held(1), 0U);
    EXPECT_EQ(pool.charge(1, 3), Admission::over_client_quota);
    EXPECT_EQ(pool.charge(2, 13), Admission::over_pool_quota);
    std::uint64_t refused = 0;
    EXPECT_EQ(charge_on_the_way(pool.view, ProcessSlot{1}, 3, {}, refused).answer, Admission::over_client_quota);
    EXPECT_EQ(counted_frames(pool.view.processes[1]), 8U) << "nothing is left of what is refused";
    EXPECT_EQ(pool.charge(2, 12), Admission::granted);
    remove_on_the_way(pool.view, ProcessSlot{1}, 8, era);
    EXPECT_EQ(pool.charge(1, 8), Admission::granted);
}

TEST(Account, who_has_not_counted_is_not_changed) {
    Pool pool(kQuotas);
    pool.view.processes[1].held = 0;
    add_held(pool.view, ProcessSlot{1}, 7);
    remove_held(pool.view, ProcessSlot{1}, 7);
    EXPECT_EQ(pool.view.processes[1].held, 0U);
}

// A block goes to and fro between two, who count it first for the one and then no longer for the other.
TEST(Account, a_block_that_is_being_handed_over_is_never_missed) {
    constexpr std::uint64_t kFrames = 10;
    for (const auto &[giver, taker] : {std::pair<std::uint16_t, std::uint16_t>{1, 4}, {5, 1}}) {
        Pool pool(kQuotas);
        pool.view.accounts[kPoolAccount].quota_frames = kFrames;
        add_held(pool.view, ProcessSlot{giver}, kFrames);
        std::atomic<bool> is_over{false};
        std::thread hands_over([&, giver = giver, taker = taker] {
            while (!is_over.load(std::memory_order_relaxed)) {
                add_held(pool.view, ProcessSlot{taker}, kFrames);
                remove_held(pool.view, ProcessSlot{giver}, kFrames);
                add_held(pool.view, ProcessSlot{giver}, kFrames);
                remove_held(pool.view, ProcessSlot{taker}, kFrames);
            }
        });
        unsigned granted = 0;
        for (int i = 0; i < 500'000; ++i) granted += pool.charge(2, 1) == Admission::granted ? 1 : 0;
        is_over = true;
        hands_over.join();
        EXPECT_EQ(granted, 0U);
    }
}

// Calls a function before each load, so that a test acts between any two loads of a charge.
struct BetweenLoads {
    static inline std::function<void()> act;

    template <class T>
    class Atomic : public std::atomic<T> {
    public:
        using std::atomic<T>::atomic;
        using std::atomic<T>::operator=;
        T load(std::memory_order order = std::memory_order_seq_cst) const {
            if (act) act();
            return std::atomic<T>::load(order);
        }
    };
    static void pause() {}
    static constexpr void crash_point(CrashPoint) {}
};

// All hand-overs of one block, up to three, at any three loads of a charge: between two others, to and from the process
// that is charged, whatever the order of their seats.
TEST(Account, a_block_that_is_handed_over_between_any_loads_is_not_missed) {
    constexpr std::uint64_t kFrames = 10;
    constexpr std::size_t kHandOvers = 3;
    using View = PoolView<BetweenLoads>;
    std::vector<std::byte> memory(PoolLayout<BetweenLoads>::of(4, 2).region_bytes + kPageBytes);
    void *where = memory.data();
    std::size_t room = memory.size();
    std::align(kPageBytes, memory.size() - kPageBytes, where, room);
    const View view = View::at(where, 4, 2);
    view.header->accounting = kQuotas;
    view.header->seats = 4;
    view.accounts[kPoolAccount].quota_frames = kFrames;

    unsigned long charges = 0;
    std::array<std::uint16_t, 3> seats{1, 2, 3};  // of the process that is charged, and of two others
    do {
        for (unsigned way = 0; way < 3 * 2 * 2 * 2; ++way) {
            // The holder of the block: at the beginning, and after each hand-over.
            std::array<unsigned, kHandOvers + 1> holders{way % 3};
            for (std::size_t i = 0; i < kHandOvers; ++i) holders[i + 1] = (holders[i] + 1 + ((way / 3) >> i & 1)) % 3;
            std::array<unsigned, kHandOvers> at{};  // the loads before which they happen, not descending
            for (bool is_last = false; !is_last;) {
                for (const std::uint16_t seat : seats) view.processes[seat].held = HeldFrames::of(0).bits();
                add_held(view, ProcessSlot{seats[holders[0]]}, kFrames);
                unsigned load = 0;
                std::size_t done = 0;
                BetweenLoads::act = [&] {
                    const auto rest = std::exchange(BetweenLoads::act, nullptr);
                    for (; done < kHandOvers && at[done] == load; ++done) {
                        add_held(view, ProcessSlot{seats[holders[done + 1]]}, kFrames);
                        remove_held(view, ProcessSlot{seats[holders[done]]}, kFrames);
                    }
                    ++load;
                    BetweenLoads::act = rest;
                };
                const Admission answer = charge(view, ProcessSlot{seats[0]}, 1).answer;
                BetweenLoads::act = nullptr;
                ++charges;
                ASSERT_NE(answer, Admission::granted)
                    << "the process in seat " << seats[0] << "; the block goes from seat " << seats[holders[0]]
                    << " to " << seats[holders[1]] << ", " << seats[holders[2]] << ", " << seats[holders[3]]
                    << " before the loads " << at[0] << ", " << at[1] << ", " << at[2] << " of " << load;
                // The next one: loads that were never reached stand for "not at all".
                std::size_t digit = kHandOvers;
                while (digit > 0 && at[digit - 1] >= load) --digit;
                is_last = digit == 0;
                if (is_last) break;
                ++at[digit - 1];
                for (std::size_t i = digit; i < kHandOvers; ++i) at[i] = at[digit - 1];
            }
        }
    } while (std::ranges::next_permutation(seats).found);
    EXPECT_GT(charges, 100'000UL);
}

TEST(Account, a_question_is_answered_as_a_charge_and_counts_nothing) {
    Pool pool(kQuotas);
    pool.view.processes[1].quota_frames = 10;
    EXPECT_EQ(ask(pool.view, ProcessSlot{1}, 10), Admission::granted);
    EXPECT_EQ(ask(pool.view, ProcessSlot{1}, 11), Admission::over_client_quota);
    EXPECT_EQ(pool.held(1), 0U);
    ASSERT_EQ(pool.charge(1, 10), Admission::granted);
    EXPECT_EQ(ask(pool.view, ProcessSlot{1}, 1), Admission::over_client_quota);
    EXPECT_EQ(pool.held(1), 10U);
}

TEST(UnderWay, of_a_call_within_a_call_says_both) {
    constexpr ProcessSlot kOne{3}, kOther{4};
    const UnderWay outer = UnderWay{}.with(5, UnderWay::kNobody);
    EXPECT_EQ(outer.frames(), 5U);
    EXPECT_EQ(outer.giver(), UnderWay::kNobody);
    EXPECT_EQ(outer.with(7, kOne).frames(), 12U);
    EXPECT_EQ(outer.with(7, kOne).giver(), kOne);
    EXPECT_EQ(outer.with(7, kOne).with(1, UnderWay::kNobody).giver(), kOne);
    EXPECT_EQ(outer.with(7, kOne).with(1, kOne).giver(), kOne);
    EXPECT_EQ(outer.with(7, kOne).with(1, kOther).giver(), UnderWay::kAnybody);
    EXPECT_EQ(outer.with(7, kOne).with(1, kOther).with(1, kOne).giver(), UnderWay::kAnybody);
}

TEST(Account, each_limit_refuses_by_its_name_and_takes_nothing) {
    Pool pool(kQuotas);
    pool.view.processes[1].account = pool.view.processes[2].account = 3;
    pool.view.processes[1].quota_frames = 10;
    pool.view.accounts[3].quota_frames = 15;
    pool.view.accounts[kPoolAccount].quota_frames = 20;
    EXPECT_EQ(pool.charge(1, 11), Admission::over_client_quota);
    EXPECT_EQ(pool.charge(1, 10), Admission::granted);
    EXPECT_EQ(pool.charge(2, 6), Admission::over_user_quota);
    EXPECT_EQ(pool.charge(2, 5), Admission::granted);
    EXPECT_EQ(pool.charge(4, 6), Admission::over_pool_quota);
    EXPECT_EQ(pool.charge(4, 5), Admission::granted);
    EXPECT_EQ(pool.held(1) + pool.held(2) + pool.held(4), 20U);
    // Who is gone takes its word along.
    pool.view.processes[1].held = 0;
    EXPECT_EQ(pool.charge(2, 10), Admission::granted);
}

TEST(Account, impossible_numbers_in_shared_memory_hurt_nobody) {
    Pool pool(kQuotas);
    for (std::uint32_t slot = 0; slot < kProcesses; ++slot) pool.view.processes[slot].account = ~std::uint64_t{0};
    pool.view.header->seats = ~std::uint64_t{0};
    pool.view.accounts[kPoolAccount].quota_frames = 5;
    EXPECT_EQ(pool.charge(1, 6), Admission::over_pool_quota);
    EXPECT_EQ(pool.charge(1, 5), Admission::granted);
}

TEST(Account, a_promise_is_kept_free_until_it_is_used) {
    Pool pool(kAll);
    pool.view.processes[1].reserved_frames = 30;
    EXPECT_EQ(pool.charge(2, 71), Admission::reserved);
    EXPECT_EQ(pool.charge(2, 70), Admission::granted);
    EXPECT_EQ(pool.charge(2, 1), Admission::reserved);
    EXPECT_EQ(pool.charge(1, 20), Admission::granted);
    EXPECT_EQ(pool.charge(2, 1), Admission::reserved);
    EXPECT_EQ(pool.charge(1, 10), Admission::granted);
    // Although nothing is promised any more: who gives a frame back is promised it again.
    EXPECT_EQ(pool.charge(2, 1), Admission::full);
    EXPECT_EQ(pool.charge(1, 1), Admission::full);
}

TEST(Account, a_promise_is_kept_though_there_is_less_than_was_promised) {
    Pool pool(kAll);
    pool.view.processes[1].reserved_frames = 30;
    pool.view.processes[3].reserved_frames = 30;
    EXPECT_EQ(pool.charge(2, 40), Admission::granted);
    pool.view.header->online_frames = 60;
    EXPECT_EQ(pool.charge(1, 20), Admission::granted) << "what it was promised, as far as there is some";
    EXPECT_EQ(pool.charge(1, 11), Admission::reserved) << "one frame too much";
    EXPECT_EQ(pool.charge(2, 1), Admission::reserved);
}

TEST(Account, a_users_promise_contains_those_of_its_clients) {
    Pool pool(kAll);
    for (const unsigned slot : {1, 2}) pool.view.processes[slot].account = 5;
    pool.view.accounts[5].reserved_frames = 30;
    pool.view.processes[1].reserved_frames = 20;
    EXPECT_EQ(pool.charge(3, 71), Admission::reserved);
    EXPECT_EQ(pool.charge(3, 70), Admission::granted);
    EXPECT_EQ(pool.charge(2, 11), Admission::reserved) << "20 of the user's are its other client's";
    EXPECT_EQ(pool.charge(2, 10), Admission::granted);
    EXPECT_EQ(pool.charge(1, 20), Admission::granted);
}

TEST(Account, what_the_daemon_holds_is_not_free) {
    Pool pool(kAll);
    pool.view.processes[kDaemonProcess.value].held = HeldFrames::of(40).bits();
    pool.view.processes[1].reserved_frames = 30;
    EXPECT_EQ(pool.charge(2, 31), Admission::reserved);
    EXPECT_EQ(pool.charge(2, 30), Admission::granted);
}

// As a drain: online_frames has lost the whole unit, of which 30 frames are somebody's.
TEST(Account, what_is_held_where_a_unit_drains_takes_nothing_from_the_rest) {
    Pool pool(kAll);
    pool.view.processes[1].reserved_frames = 10;
    add_held(pool.view, ProcessSlot{3}, 30);
    pool.view.header->online_frames = 60;
    EXPECT_EQ(pool.charge(2, 21), Admission::reserved) << "as if it were held in the rest";
    pool.view.header->draining_held = DrainingHeld{}.changed_to(30).bits();
    EXPECT_EQ(pool.charge(2, 51), Admission::reserved);
    EXPECT_EQ(pool.charge(2, 50), Admission::granted);
    // 20 of them are freed there: that is no room for anybody.
    const auto drains = [] { return true; };
    note_freed(pool.view, 20, drains);
    remove_held(pool.view, ProcessSlot{3}, 20);
    EXPECT_EQ(pool.charge(2, 1), Admission::reserved);
    // Elsewhere it is.
    note_freed(pool.view, 5, [] { return false; });
    remove_held(pool.view, ProcessSlot{2}, 5);
    EXPECT_EQ(pool.charge(2, 6), Admission::reserved);
    EXPECT_EQ(pool.charge(2, 5), Admission::granted);
    note_freed(pool.view, 20, drains);
    EXPECT_EQ(DrainingHeld{pool.view.header->draining_held}.frames(), 0U) << "never below nothing";
    const std::uint64_t before = pool.view.header->draining_held;
    forget_draining_held(pool.view);
    EXPECT_NE(pool.view.header->draining_held, before) << "a look that has begun finds that it is too late";
}

// What another client still counts, and is about to count no more.
TEST(Account, a_block_that_is_handed_over_is_charged_once) {
    Pool pool(kAll);
    pool.view.accounts[kPoolAccount].quota_frames = 50;
    pool.view.header->online_frames = 50;
    ASSERT_EQ(pool.charge(1, 50), Admission::granted);
    EXPECT_EQ(pool.charge(2, 10), Admission::over_pool_quota);
    EXPECT_EQ(charge(pool.view, ProcessSlot{2}, 10, {ProcessSlot{1}, 10}).answer, Admission::granted);
    EXPECT_EQ(pool.charge(3, 1), Admission::over_pool_quota);
    remove_held(pool.view, ProcessSlot{1}, 10);
    EXPECT_EQ(pool.held(1) + pool.held(2), 50U);
}

// The daemon promises, and looks at what has been charged by then; a client that is charged later finds the promise.
TEST(Account, what_is_promised_while_somebody_is_charged_is_granted_to_one_of_the_two) {
    constexpr std::uint64_t kHalf = 60;  // of 100: both cannot have it
    std::atomic<unsigned> both{0}, granted{0};
    for (unsigned round = 0; round < 5'000; ++round) {
        Pool pool(kAll);
        std::atomic<unsigned> ready{0};
        const auto begin = [&ready] {
            ++ready;
            // Yields: with another program on the second core a round would take a time slice of the scheduler.
            while (ready < 2) std::this_thread::yield();
        };
        bool is_granted = false;
        std::thread charges([&] {
            begin();
            is_granted = pool.charge(2, kHalf) == Admission::granted;
        });
        begin();
        pool.view.processes[1].reserved_frames = kHalf;
        const bool is_promised = pool.held(2) == 0;
        charges.join();
        granted += is_granted;
        both += is_granted && is_promised;
    }
    EXPECT_EQ(both, 0U) << "of " << granted;
}

// Nor for a moment: it may stand still in that.
TEST(Account, who_asks_for_more_than_there_is_stands_in_nobodys_way) {
    Pool pool(kQuotas);
    pool.view.accounts[kPoolAccount].quota_frames = 50;
    std::atomic<bool> is_over{false};
    std::atomic<unsigned> asked{0};
    std::thread asks_for_too_much([&] {
        while (!is_over.load(std::memory_order_relaxed)) {
            EXPECT_EQ(pool.charge(4, 51), Admission::over_pool_quota);
            ++asked;
        }
    });
    unsigned refused = 0;
    for (unsigned i = 0; i < 200'000 || asked < 1000; ++i) {
        if (pool.charge(1, 1) == Admission::granted)
            remove_held(pool.view, ProcessSlot{1}, 1);
        else
            ++refused;
    }
    is_over = true;
    asks_for_too_much.join();
    EXPECT_EQ(refused, 0U);
}

TEST(Account, side_by_side_nobody_gets_beyond_a_limit) {
    Pool pool(kQuotas);
    constexpr std::uint64_t kLimit = 10;
    pool.view.accounts[kPoolAccount].quota_frames = kLimit;
    std::atomic<std::uint64_t> granted{0}, worst{0};
    std::vector<std::jthread> threads;
    for (std::uint16_t slot = 1; slot < kProcesses; ++slot)
        threads.emplace_back([&, slot] {
            for (int i = 0; i < 20000; ++i) {
                const std::uint64_t frames = 1 + i % 4;
                if (pool.charge(slot, frames) != Admission::granted) continue;
                const std::uint64_t now = granted.fetch_add(frames) + frames;
                std::uint64_t seen = worst.load();
                while (seen < now && !worst.compare_exchange_weak(seen, now)) {
                }
                granted.fetch_sub(frames);
                remove_held(pool.view, ProcessSlot{slot}, frames);
            }
        });
    threads.clear();
    EXPECT_LE(worst, kLimit);
    EXPECT_GT(worst, 0U);
    for (std::uint32_t slot = 1; slot < kProcesses; ++slot) EXPECT_EQ(pool.held(slot), 0U);
}

}  // namespace
}  // namespace numacre
