// Blocks that go to a thread that waits, without going back into the tree: who gets one, who gets none.
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "numacre/shm/hand_off.hpp"
#include "support/shm_pool.hpp"

namespace numacre {

using namespace engine;
namespace {

using test::ShmPool;
using TestBuddy = Buddy<ProductionEnv>;

struct OnlyNode {
    Buddy<ProductionEnv> &buddy;
    Buddy<ProductionEnv> &at(std::uint32_t) const { return buddy; }
    std::uint32_t count() const { return 1; }
    std::uint32_t nearest(std::uint32_t, std::uint32_t) const { return 0; }
};
using OneNodeHandOff = HandOff<ProductionEnv, OnlyNode>;
constexpr auto nobody_to_wake = [](ThreadSlotIndex) {};

// One chunk, all of it online and free, and a thread that releases what another waits for.
struct OneChunk {
    ShmPool pool{4096, 4 << 20, 1};
    Buddy<ProductionEnv> buddy{pool.node, pool.view};
    OnlyNode node{buddy};
    OneNodeHandOff hand_off{pool.view, node};
    Actor releaser = pool.actor(1, 1);
    Actor waiter = pool.actor(2, 2);

    OneChunk() { pool.online_all(); }
    WaitWord wish_for_a_frame(Actor actor) { return hand_off.announce(actor, Order{0}, NumaNode{0}, 1); }
    // The block that the thread has been given goes back.
    void receive_and_free(Actor actor) {
        std::uint32_t numa_node = 0;
        Block block, freed;
        ASSERT_TRUE(hand_off.receive(actor, {}, numa_node, block));
        ASSERT_EQ(buddy.free(actor, block.base, freed), Errc::ok);
    }
};

// Or a chunk would be handed on from one to the next for as long as threads wait.
TEST(HandOff, a_block_of_a_draining_chunk_goes_to_nobody_who_waits) {
    for (const unsigned order : {0U, 6U, 7U, 9U, 10U}) {
        SCOPED_TRACE(order);
        ShmPool pool{4096, 4 << 20, 2};
        pool.online_all();
        Chunks<ProductionEnv> chunks{pool.node, pool.view};
        Buddy<ProductionEnv> buddy{pool.node, pool.view};
        const OnlyNode node{buddy};
        OneNodeHandOff hand_off{pool.view, node};
        const Actor releaser = pool.actor(1, 1);
        const Actor waiter = pool.actor(2, 2);
        for (const bool drains : {true, false}) {
            Block block;
            IndexEntry entry;
            ASSERT_EQ(buddy.allocate(releaser, Order{order}, {}, block), Errc::ok);
            ASSERT_EQ(buddy.find_entry(block.base, block, entry), Errc::ok);
            const std::uint64_t chunk = block.base.value >> pool.geometry.largest_order;
            chunks.set_drain(chunk, drains);
            const WaitWord wish = hand_off.announce(waiter, Order{order}, NumaNode{0}, 1);
            const auto given = hand_off.give(releaser, 0, block, entry, nobody_to_wake);
            EXPECT_EQ(given, drains ? OneNodeHandOff::Given::no : OneNodeHandOff::Given::yes);
            EXPECT_EQ(hand_off.look(waiter) == wish, drains);
            Block freed;
            if (drains) {
                ASSERT_EQ(buddy.free(releaser, block.base, freed), Errc::ok);
                EXPECT_EQ(chunks.used_frames(chunk), 0U);
                hand_off.serve(releaser, nobody_to_wake);  // from the other chunk
            }
            std::uint32_t numa_node = 0;
            ASSERT_TRUE(hand_off.receive(waiter, {}, numa_node, block));
            EXPECT_EQ(block.base.value >> pool.geometry.largest_order == chunk, !drains);
            ASSERT_EQ(buddy.free(waiter, block.base, freed), Errc::ok);
            chunks.set_drain(chunk, false);
        }
    }
}

// A wish in a thread slot that is nobody's: its thread went in the middle of its wait.
TEST(HandOff, a_wish_in_a_thread_slot_without_a_thread_is_passed_over) {
    OneChunk chunk;
    const auto &pool = chunk.pool.view;
    const Actor gone = chunk.pool.actor(3, 2);
    (void)chunk.wish_for_a_frame(gone);
    pool.threads[gone.thread.value].owner.store(0);
    (void)chunk.wish_for_a_frame(chunk.waiter);
    chunk.hand_off.serve(chunk.releaser, nobody_to_wake);
    EXPECT_TRUE(chunk.hand_off.look(gone).is_waiting());
    chunk.receive_and_free(chunk.waiter);
    EXPECT_EQ(chunk.pool.snapshot().used_frames, 0U);
    EXPECT_EQ(pool.header->attention.load() & Attention::kWaiters, 0U) << "nobody who waits is left";
}

// Its reader goes on reading: only the last drop gives the memory to anybody.
TEST(HandOff, a_block_that_was_held_goes_to_nobody_who_waits) {
    OneChunk chunk;
    const auto &pool = chunk.pool.view;
    const Actor reader = chunk.pool.actor(3, 3);
    Block block, held;
    IndexEntry entry;
    ASSERT_EQ(chunk.buddy.allocate(chunk.releaser, Order{0}, {}, block), Errc::ok);
    ASSERT_EQ(chunk.buddy.find_entry(block.base, block, entry), Errc::ok);
    const Reference name = chunk.buddy.publish(block, entry);
    ASSERT_EQ(chunk.buddy.hold(chunk.buddy.view_of(reader), pool.holds[3], name, held), Errc::ok);
    ASSERT_EQ(chunk.buddy.find_entry(block.base, block, entry), Errc::ok);
    EXPECT_FALSE(chunk.buddy.withdraw(block, entry)) << "it would be private, and cached when it is freed";
    const WaitWord wish = chunk.wish_for_a_frame(chunk.waiter);
    EXPECT_EQ(chunk.hand_off.give(chunk.releaser, 0, block, entry, nobody_to_wake), OneNodeHandOff::Given::no);
    EXPECT_EQ(chunk.hand_off.look(chunk.waiter), wish);
    Block freed;
    ASSERT_EQ(chunk.buddy.free(chunk.releaser, block.base, freed), Errc::ok);
    EXPECT_EQ(chunk.pool.snapshot().lingering_frames, 1U);
    chunk.hand_off.serve(chunk.releaser, nobody_to_wake);  // from what is free
    chunk.receive_and_free(chunk.waiter);
    EXPECT_TRUE(chunk.buddy.drop(chunk.buddy.view_of(reader), pool.threads[3], pool.holds[3], 0));
    EXPECT_EQ(chunk.pool.snapshot().used_frames, 0U);
}

// Givers have counted for a process, and none of them can give it any more: forgotten.
TEST(HandOff, what_is_on_the_way_is_forgotten_if_nothing_arrives) {
    OneChunk chunk;
    OneNodeHandOff &hand_off = chunk.hand_off;
    const auto &pool = chunk.pool.view;
    const Actor waiter = chunk.waiter;
    const Actor other = chunk.pool.actor(3, 3);
    std::vector<ThreadSlotIndex> woken;
    const auto wake = [&](ThreadSlotIndex thread) { woken.push_back(thread); };
    const auto seen = [&] { return OnTheWay{pool.processes[waiter.process.value].on_the_way.load()}; };
    const auto forget = [&](OnTheWay what) { return forget_on_the_way(pool, waiter.process, what, wake); };
    ASSERT_TRUE(add_on_the_way(pool, waiter.process, 1));

    // Both wait; only the process's own wish is taken back.
    const WaitWord wish = chunk.wish_for_a_frame(waiter);
    const WaitWord others = chunk.wish_for_a_frame(other);
    EXPECT_TRUE(forget(seen()));
    EXPECT_EQ(seen().frames(), 0U);
    EXPECT_TRUE(OneNodeHandOff::has_ended(wish, hand_off.look(waiter)));
    EXPECT_EQ(hand_off.look(other), others);
    EXPECT_EQ(woken, std::vector<ThreadSlotIndex>{waiter.thread});
    EXPECT_TRUE(hand_off.withdraw(other));

    // Counted for again since the look.
    const OnTheWay before = seen();
    ASSERT_TRUE(add_on_the_way(pool, waiter.process, 1));
    EXPECT_FALSE(forget(before));
    EXPECT_EQ(seen().frames(), 1U);

    // It has been given its block, and has not received it yet.
    (void)chunk.wish_for_a_frame(waiter);
    hand_off.serve(chunk.releaser, wake);
    EXPECT_FALSE(forget(seen()));
    EXPECT_EQ(seen().frames(), 1U);
    chunk.receive_and_free(waiter);
    EXPECT_TRUE(forget(seen()));
}

// A wish that is taken back and wished anew is another one: what was counted for the first does not do for it.
struct CountingLimits {
    struct Charge {
        int number = 0;
    };
    std::vector<int> *standing;
    int *last;
    std::function<void()> *at_charge;
    std::optional<Charge> charge(ThreadSlotIndex, std::uint64_t) const {
        standing->push_back(++*last);
        const Charge made{*last};
        if (*at_charge) std::exchange(*at_charge, nullptr)();
        return made;
    }
    void uncharge(const Charge &charge, std::uint64_t) const { std::erase(*standing, charge.number); }
    void freed(std::uint32_t, Block) const {}
    bool has_taken_back() const { return false; }
};
TEST(HandOff, what_is_counted_for_a_wish_does_not_do_for_the_next_one) {
    OneChunk chunk;
    std::vector<int> standing;
    int last = 0;
    std::function<void()> at_charge = [&] {
        ASSERT_TRUE(chunk.hand_off.withdraw(chunk.waiter));
        (void)chunk.wish_for_a_frame(chunk.waiter);
    };
    (void)chunk.wish_for_a_frame(chunk.waiter);
    HandOff<ProductionEnv, OnlyNode, CountingLimits>{chunk.pool.view, chunk.node, {&standing, &last, &at_charge}}.serve(
        chunk.releaser, nobody_to_wake);
    ASSERT_TRUE(chunk.hand_off.look(chunk.waiter).is_given());
    EXPECT_EQ(standing, std::vector<int>{2}) << "the second wish's, and no other";
    chunk.receive_and_free(chunk.waiter);
}

// Two threads that serve waiters of one quota refuse each other by charges that stand for a moment.
struct RefusingLimits {
    struct Charge {};
    // By the number of the charge: whether it is refused, and whether it stood for a moment before.
    bool (*is_refused)(int);
    bool (*is_taken_back)(int);
    int *charges;
    bool *has_one;
    std::optional<Charge> charge(ThreadSlotIndex, std::uint64_t) const {
        const int number = ++*charges;
        if (!is_refused(number)) return Charge{};
        *has_one = *has_one || is_taken_back(number);
        return std::nullopt;
    }
    void uncharge(const Charge &, std::uint64_t) const {}
    void freed(std::uint32_t, Block) const {}
    bool has_taken_back() const { return std::exchange(*has_one, false); }
};
TEST(HandOff, who_takes_a_charge_back_looks_once_more_and_no_oftener) {
    constexpr auto never = [](int) { return false; };
    constexpr auto always = [](int) { return true; };
    constexpr auto first = [](int number) { return number == 1; };
    for (const auto &[is_refused, is_taken_back, charges, is_given] :
         {std::tuple<bool (*)(int), bool (*)(int), int, bool>{first, always, 2, true},
          {always, first, 2, false},
          {always, never, 1, false}}) {
        OneChunk chunk;
        int made = 0;
        bool has_one = false;
        (void)chunk.wish_for_a_frame(chunk.waiter);
        HandOff<ProductionEnv, OnlyNode, RefusingLimits>{
            chunk.pool.view, chunk.node, {is_refused, is_taken_back, &made, &has_one}}
            .serve(chunk.releaser, nobody_to_wake);
        EXPECT_EQ(made, charges);
        EXPECT_EQ(chunk.hand_off.look(chunk.waiter).is_given(), is_given);
        if (is_given) chunk.receive_and_free(chunk.waiter);
    }
}

// An older wish for less that its process's quota forbids keeps no later one from what is free.
struct LimitsOfOneThread {
    struct Charge {};
    ThreadSlotIndex forbidden;
    std::optional<Charge> charge(ThreadSlotIndex waiter, std::uint64_t) const {
        return waiter == forbidden ? std::nullopt : std::optional<Charge>{Charge{}};
    }
    void uncharge(const Charge &, std::uint64_t) const {}
    void freed(std::uint32_t, Block) const {}
    bool has_taken_back() const { return false; }
};
TEST(HandOff, a_wish_that_is_forbidden_keeps_no_larger_later_one_waiting) {
    OneChunk chunk;
    const Actor forbidden = chunk.pool.actor(3, 3);
    HandOff<ProductionEnv, OnlyNode, LimitsOfOneThread> hand_off{chunk.pool.view, chunk.node, {forbidden.thread}};
    (void)hand_off.announce(forbidden, Order{4}, NumaNode{0}, 1);
    (void)hand_off.announce(chunk.waiter, Order{7}, NumaNode{0}, 1);
    hand_off.serve(chunk.releaser, nobody_to_wake);
    EXPECT_TRUE(hand_off.look(forbidden).is_waiting());
    ASSERT_TRUE(hand_off.look(chunk.waiter).is_given());
    chunk.receive_and_free(chunk.waiter);
}

// A thread that still waits: receive() must not forget its wish, nor what it is given at this moment.
TEST(HandOff, who_still_waits_receives_nothing_and_goes_on_waiting) {
    OneChunk chunk;
    OneNodeHandOff &hand_off = chunk.hand_off;
    const Actor waiter = chunk.waiter;
    const WaitWord wish = chunk.wish_for_a_frame(waiter);
    nudge_waiters(chunk.pool.view, true, nobody_to_wake);
    std::uint32_t numa_node = 0;
    Block block;
    EXPECT_FALSE(hand_off.receive(waiter, {}, numa_node, block));
    EXPECT_EQ(hand_off.look(waiter), wish.nudged());
    EXPECT_FALSE(OneNodeHandOff::has_ended(wish, hand_off.look(waiter)));
    hand_off.serve(chunk.releaser, nobody_to_wake);
    EXPECT_TRUE(OneNodeHandOff::has_ended(wish, hand_off.look(waiter)));
    EXPECT_TRUE(hand_off.receive(waiter, {}, numa_node, block));
    EXPECT_EQ(hand_off.look(waiter), WaitWord{});
}

}  // namespace
}  // namespace numacre
