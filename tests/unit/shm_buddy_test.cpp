// The allocator with one thread: what goes in, what comes out, what is refused, what chunks and drains do.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <set>
#include <vector>

#include "numacre/shm/buddy.hpp"
#include "support/cached_block.hpp"
#include "support/shm_pool.hpp"

namespace numacre {

using namespace engine;
namespace {

using test::into_cache;
using test::is_cached;
using test::is_like;
using test::look_at;
using test::out_of_cache;
using test::ShmPool;
using TestBuddy = Buddy<ProductionEnv>;

class AnyGeometry : public ::testing::TestWithParam<unsigned> {};

TEST_P(AnyGeometry, hands_out_every_frame_once_and_takes_all_back) {
    const unsigned largest = GetParam();
    ShmPool pool{64, std::uint64_t{64} << largest, 3};
    pool.online_all();
    TestBuddy buddy{pool.node, pool.view};
    const Actor actor = pool.actor(1, 1);
    for (unsigned order = 0; order <= largest; ++order) {
        std::vector<Block> blocks;
        Block block;
        while (buddy.allocate(actor, Order{order}, {}, block) == Errc::ok) {
            ASSERT_TRUE(pool.node.contains(block));
            blocks.push_back(block);
            if (blocks.size() > pool.geometry.frame_count) break;
        }
        ASSERT_EQ(blocks.size(), pool.geometry.frame_count >> order) << "order " << order;
        EXPECT_EQ(pool.snapshot().free_frames, 0U);
        for (const Block held : blocks) {
            Block freed;
            ASSERT_EQ(buddy.free(actor, held.base, freed), Errc::ok);
            ASSERT_EQ(freed, held);
            ASSERT_EQ(buddy.free(actor, held.base, freed), Errc::stale_ref) << "a second free must be refused";
        }
        const NodeSnapshot after = pool.snapshot();
        EXPECT_EQ(after.free_blocks[largest], 3U) << "all coalesced after order " << order;
    }
}

TEST_P(AnyGeometry, chunks_come_online_go_offline_and_are_never_allocated_from_while_offline) {
    const unsigned largest = GetParam();
    ShmPool pool{4096, std::uint64_t{4096} << largest, 4};
    Chunks<ProductionEnv> chunks{pool.node, pool.view};
    TestBuddy buddy{pool.node, pool.view};
    const Actor actor = pool.actor(1, 1);
    Block block;
    EXPECT_EQ(buddy.allocate(actor, Order{0}, {}, block), Errc::out_of_frames);
    EXPECT_TRUE(chunks.is_offline(2));
    ASSERT_TRUE(chunks.bring_online(2));
    EXPECT_FALSE(chunks.bring_online(2)) << "it is online already";
    EXPECT_FALSE(chunks.bring_online(4)) << "there is no such chunk";
    ASSERT_EQ(buddy.allocate(actor, Order{0}, {}, block), Errc::ok);
    EXPECT_EQ(block.base.value >> largest, 2U);
    EXPECT_EQ(chunks.used_frames(2), 1U);
    EXPECT_FALSE(chunks.try_take_offline(2));
    Block freed;
    ASSERT_EQ(buddy.free(actor, block.base, freed), Errc::ok);
    EXPECT_TRUE(chunks.try_take_offline(2)) << "only marks that are kept were in the way";
    EXPECT_EQ(buddy.allocate(actor, Order{0}, {}, block), Errc::out_of_frames);
    EXPECT_EQ(pool.snapshot().offline_frames, pool.geometry.frame_count);
    const CounterTotals totals = fold_counters(pool.node, pool.view.threads_in_use_bound());
    for (unsigned order = 0; order <= largest; ++order) {
        EXPECT_EQ(totals.allocations[order], order == 0 ? 1U : 0U);
        EXPECT_EQ(totals.frees[order], order == 0 ? 1U : 0U) << "a chunk that comes online is nobody's free";
    }
}

INSTANTIATE_TEST_SUITE_P(LargestOrders, AnyGeometry, ::testing::Values(0U, 2U, 5U, 6U, 7U, 8U, 9U, 10U, 12U, 13U));

TEST(Buddy, refuses_what_it_must) {
    ShmPool pool{4096, 4 << 20, 2};
    pool.online_all();
    TestBuddy buddy{pool.node, pool.view};
    const Actor mine = pool.actor(1, 1);
    const Actor theirs = pool.actor(2, 2);
    Block block;
    EXPECT_EQ(buddy.allocate(mine, Order{11}, {}, block), Errc::bad_argument);
    ASSERT_EQ(buddy.allocate(mine, Order{3}, {}, block), Errc::ok);
    Block freed;
    EXPECT_EQ(buddy.free(theirs, block.base, freed), Errc::not_owner);
    EXPECT_EQ(buddy.free(mine, FrameIndex{block.base.value + 1}, freed), Errc::stale_ref) << "inside the block";
    EXPECT_EQ(buddy.free(mine, FrameIndex{pool.geometry.frame_count}, freed), Errc::bad_argument);
    Block covering;
    ASSERT_TRUE(buddy.find_covering(FrameIndex{block.base.value + 5}, covering));
    EXPECT_EQ(covering, block);
    EXPECT_EQ(pool.snapshot().used_frames, 8U) << "refusals change nothing";
    EXPECT_EQ(buddy.free(mine, block.base, freed), Errc::ok);
}

// As long as the block is in its first half round.
Reference reference_to(const ShmPool &pool, Block block, std::uint32_t generation) {
    return pool.node.reference_format.reference(NumaNode{0}, block, name_number(0, generation));
}

bool take_in_burst(TestBuddy &buddy, Actor actor, Reference reference) {
    const std::uint64_t bits = reference.bits();
    return buddy.take_many_in_leaf(buddy.view_of(actor), &bits, 1, {}, [](unsigned, FrameIndex) {}) == 1;
}

// The short ways, which refuse what they are not for.
TEST(Buddy, only_a_holder_publishes) {
    ShmPool pool{4096, 4 << 20, 1};
    pool.online_all();
    TestBuddy buddy{pool.node, pool.view};
    const Actor mine = pool.actor(1, 1);
    const Actor other = pool.actor(2, 2);
    Block block;
    ASSERT_EQ(buddy.allocate(mine, Order{2}, {}, block), Errc::ok);
    auto &slot = pool.node.index_entry(block);
    const std::uint64_t before = slot.load();
    Reference name;
    EXPECT_FALSE(buddy.publish_in_leaf(buddy.view_of(other), block.base, name)) << "another process's";
    into_cache(slot, look_at(slot), mine.thread);
    EXPECT_FALSE(buddy.publish_in_leaf(buddy.view_of(mine), block.base, name)) << "nobody uses it";
    slot.store(before);
    EXPECT_FALSE(buddy.publish_in_leaf(buddy.view_of(mine), FrameIndex{block.base.value + 1}, name)) << "inside it";
    EXPECT_FALSE(look_at(slot).is_published());
    ASSERT_TRUE(buddy.publish_in_leaf(buddy.view_of(mine), block.base, name));
    EXPECT_TRUE(look_at(slot).is_published());
    Reference again;
    ASSERT_TRUE(buddy.publish_in_leaf(buddy.view_of(mine), block.base, again));
    EXPECT_EQ(again.bits(), name.bits()) << "its name is the same until it changes hands";

    Block taken;
    const auto named = [&](Block of, std::uint32_t generation) { return reference_to(pool, of, generation); };
    const std::uint32_t generation = look_at(slot).generation();
    const FrameIndex behind{pool.geometry.frame_count};
    for (const Reference wrong :
         {named(block, 0), named(block, generation + 1), named({block.base, Order{1}}, generation),
          named({FrameIndex{block.base.value + 1}, block.order}, generation), named({behind, block.order}, generation),
          named({block.base, Order{7}}, generation), named({block.base, Order{31}}, generation)}) {
        EXPECT_FALSE(buddy.take_in_leaf(buddy.view_of(other), wrong, {}, taken)) << wrong.bits();
        EXPECT_FALSE(take_in_burst(buddy, other, wrong)) << wrong.bits();
    }
    ASSERT_TRUE(buddy.take_in_leaf(buddy.view_of(other), name, {}, taken));
    EXPECT_EQ(taken, block);
    EXPECT_FALSE(buddy.take_in_leaf(buddy.view_of(mine), name, {}, taken)) << "it has been taken";
    EXPECT_FALSE(buddy.publish_in_leaf(buddy.view_of(mine), block.base, name));

    Block large;
    ASSERT_EQ(buddy.allocate(mine, Order{8}, {}, large), Errc::ok);
    EXPECT_FALSE(buddy.publish_in_leaf(buddy.view_of(mine), large.base, name)) << "in no leaf word";
    // Whatever the leaf layer says.
    auto &scribbled = pool.node.index[0][large.base.value];
    scribbled.store(pool.node.index_entry(large).load());
    EXPECT_FALSE(buddy.publish_in_leaf(buddy.view_of(mine), large.base, name));
    scribbled.store(scribbled.load() | 4);
    EXPECT_FALSE(buddy.take_in_leaf(buddy.view_of(other), named(large, look_at(scribbled).generation()), {}, taken));
    EXPECT_FALSE(take_in_burst(buddy, other, named(large, look_at(scribbled).generation())));
}

// As numacre_take_bulk: the burst ends at the first reference that is not for the short way.
TEST(Buddy, a_burst_takes_what_single_takes_would) {
    ShmPool pool{4096, 4 << 20, 1};
    pool.online_all();
    TestBuddy buddy{pool.node, pool.view};
    const Actor giver = pool.actor(1, 1);
    const Actor taker = pool.actor(2, 2);
    constexpr unsigned kMany = 100;
    std::array<std::uint64_t, kMany> references{};
    std::array<Block, kMany> blocks{};
    for (unsigned i = 0; i < kMany; ++i) {
        ASSERT_EQ(buddy.allocate(giver, Order{i % 3}, {}, blocks[i]), Errc::ok);
        const IndexEntry entry = look_at(pool.node.index_entry(blocks[i]));
        ASSERT_FALSE(take_in_burst(buddy, taker, reference_to(pool, blocks[i], entry.generation()))) << "not given yet";
        references[i] = buddy.publish(blocks[i], entry).bits();
    }
    Block taken;
    ASSERT_EQ(buddy.take(giver, Reference{references[70]}, PoolAge{1}, taken), Errc::ok);
    const auto burst = [&](unsigned from) {
        return buddy.take_many_in_leaf(
            buddy.view_of(taker), references.data() + from, kMany - from, PoolAge{3},
            [&](unsigned number, FrameIndex base) { EXPECT_EQ(base, blocks[from + number].base); });
    };
    const std::uint64_t takes_before = pool.node.counters[taker.thread.value].takes.load();
    EXPECT_EQ(burst(0), 70U);
    EXPECT_EQ(burst(70), 0U) << "stale";
    EXPECT_EQ(burst(71), kMany - 71);
    EXPECT_EQ(burst(0), 0U) << "taken already";
    EXPECT_EQ(pool.node.counters[taker.thread.value].takes.load() - takes_before, kMany - 1);
    for (unsigned i = 0; i < kMany; ++i) {
        const IndexEntry entry = look_at(pool.node.index_entry(blocks[i]));
        EXPECT_EQ(entry.owner(), i == 70 ? giver.process : taker.process);
        EXPECT_EQ(entry.note().since(), PoolAge{i == 70 ? 1U : 3U});
        EXPECT_FALSE(entry.is_published());
        EXPECT_EQ(entry.order(), blocks[i].order);
        EXPECT_EQ(buddy.free(entry.owner() == giver.process ? giver : taker, blocks[i].base, taken), Errc::ok);
    }
    // A block in quarantine is the daemon's, whatever a client has made of it before.
    ASSERT_EQ(buddy.allocate(Actor{kDaemonThread, kDaemonProcess}, Order{0}, {}, taken), Errc::ok);
    auto &slot = pool.node.index_entry(taken);
    slot.store(look_at(slot).published().bits());
    EXPECT_FALSE(take_in_burst(buddy, taker, reference_to(pool, taken, look_at(slot).generation())));
    EXPECT_EQ(buddy.find_name(taken.base), Reference{});
}

TEST(Buddy, a_reference_is_taken_once_and_goes_stale) {
    ShmPool pool{4096, 4 << 20, 1};
    pool.online_all();
    TestBuddy buddy{pool.node, pool.view};
    const Actor giver = pool.actor(1, 1);
    const Actor taker = pool.actor(2, 2);
    Block block;
    ASSERT_EQ(buddy.allocate(giver, Order{2}, {}, block), Errc::ok);
    IndexEntry entry;
    Block found;
    ASSERT_EQ(buddy.find_entry(block.base, found, entry), Errc::ok);
    Block taken;
    EXPECT_EQ(buddy.take(taker, reference_to(pool, block, entry.generation()), {}, taken), Errc::stale_ref)
        << "a block that was not given";
    const Reference reference = buddy.publish(block, entry);
    ASSERT_EQ(buddy.take(taker, reference, {}, taken), Errc::ok);
    EXPECT_EQ(taken, block);
    EXPECT_EQ(buddy.take(taker, reference, {}, taken), Errc::stale_ref);
    Block freed;
    EXPECT_EQ(buddy.free(giver, block.base, freed), Errc::not_owner);
    EXPECT_EQ(buddy.free(taker, block.base, freed), Errc::ok);
    EXPECT_EQ(buddy.take(giver, reference, {}, taken), Errc::stale_ref);
    EXPECT_EQ(buddy.take(giver, Reference{~std::uint64_t{0}}, {}, taken), Errc::bad_argument);
    EXPECT_EQ(buddy.take(giver, Reference{0}, {}, taken), Errc::bad_argument);
    // The same frames again, given again: the old reference still names the block of before.
    ASSERT_EQ(buddy.allocate(giver, Order{2}, {}, block), Errc::ok);
    ASSERT_EQ(block, pool.node.reference_format.block(reference));
    EXPECT_EQ(buddy.take(taker, reference, {}, taken), Errc::stale_ref);
    ASSERT_EQ(buddy.find_entry(block.base, found, entry), Errc::ok);
    const Reference second = buddy.publish(block, entry);
    EXPECT_EQ(buddy.take(taker, reference, {}, taken), Errc::stale_ref);
    // Taken, and given on: what the first taker took by is used up.
    ASSERT_EQ(buddy.take(taker, second, {}, taken), Errc::ok);
    ASSERT_EQ(buddy.find_entry(block.base, found, entry), Errc::ok);
    const Reference third = buddy.publish(block, entry);
    EXPECT_EQ(buddy.take(giver, second, {}, taken), Errc::stale_ref);
    // Withdrawn and given anew.
    ASSERT_EQ(buddy.find_entry(block.base, found, entry), Errc::ok);
    ASSERT_TRUE(buddy.withdraw(block, entry));
    EXPECT_EQ(buddy.take(giver, third, {}, taken), Errc::stale_ref);
    const Reference fourth = buddy.publish(block, entry);
    EXPECT_EQ(buddy.take(giver, third, {}, taken), Errc::stale_ref);
    // Freed, though it was given.
    ASSERT_EQ(buddy.free(taker, block.base, freed), Errc::ok);
    ASSERT_EQ(buddy.allocate(taker, Order{2}, {}, block), Errc::ok);
    ASSERT_EQ(block, pool.node.reference_format.block(fourth));
    ASSERT_EQ(buddy.find_entry(block.base, found, entry), Errc::ok);
    (void)buddy.publish(block, entry);
    EXPECT_EQ(buddy.take(giver, fourth, {}, taken), Errc::stale_ref);
}

// The leaf word where the thread goes on.
std::uint64_t home_of(const ShmPool &pool, Actor actor, unsigned order) {
    const Home home{pool.node.home[actor.thread.value].word[order].load(std::memory_order_relaxed)};
    return home.place() / kLeafFrames;
}

TEST(Buddy, who_fills_a_leaf_word_goes_on_at_the_next_one) {
    ShmPool pool{4096, 16 << 20, 1};
    pool.online_all();
    TestBuddy buddy{pool.node, pool.view};
    const Actor actor = pool.actor(1, 1);
    // No mark is there yet, so each claim has to climb.
    for (unsigned i = 0; i < kUpperFanOut; ++i) {
        Block block;
        ASSERT_EQ(buddy.allocate(actor, Order{kLeafOrder}, {}, block), Errc::ok);
        const std::uint64_t word = block.base.value / kLeafFrames;
        EXPECT_EQ(word % kUpperFanOut, i);
        EXPECT_EQ(home_of(pool, actor, kLeafOrder), i + 1 < kUpperFanOut ? word + 1 : word) << "block " << i;
    }
}

// Once a search has found nothing that was less than free. What that sees of others goes first: words that are taken
// whole it sees all, of others only what somebody was disappointed by.
TEST(Buddy, who_uses_up_what_was_free_goes_on_at_the_next_that_is_free) {
    for (const unsigned order : {kLeafOrder, word_order(1), word_order(1) - 1, word_order(1) - 2}) {
        // Of eight words.
        const unsigned group = kUpperFanOut << (order == kLeafOrder ? 0 : word_order(1) - order);
        ShmPool pool{4096, 16 << 20, 16};
        pool.online_all();
        TestBuddy buddy{pool.node, pool.view};
        const Actor actor = pool.actor(1, 1);
        const Order of_blocks{order};
        // Where this thread begins; and three groups further on somebody has been.
        const std::uint64_t begin = pool.node.geometry.frame_count / 2 >> order;
        const std::uint64_t others = begin + 3 * group;
        ASSERT_TRUE(buddy.allocate_at(pool.actor(2, 2), {FrameIndex{others << order}, of_blocks}, {}));
        std::vector<std::uint64_t> places;
        for (unsigned i = 0; i < 5 * group; ++i) {
            Block block;
            ASSERT_EQ(buddy.allocate(actor, of_blocks, {}, block), Errc::ok);
            places.push_back(block.base.value >> order);
            // No search was disappointed by what it had used up, or that would be lowered now.
            if (places.back() == begin + 3 * group - 1) {
                const unsigned level = order == kLeafOrder ? 2 : 3;
                const std::uint64_t hints = pool.node.hint[level][begin / group / kUpperFanOut].load();
                EXPECT_EQ(hints & 0xffffff, 0U) << "order " << order;
            }
        }
        std::vector<std::uint64_t> expected;
        const auto expect_from = [&expected](std::uint64_t place, unsigned count) {
            for (unsigned i = 0; i < count; ++i) expected.push_back(place + i);
        };
        if (order == word_order(1)) expect_from(others + 1, group - 1);
        expect_from(begin, 3 * group);
        if (order != word_order(1)) expect_from(others + 1, group - 1);
        expect_from(others + group, group + 1);
        EXPECT_EQ(places, expected) << "order " << order;
    }
}

// Or a search in a large pool could meet all of it at once.
TEST(Buddy, hints_of_what_was_passed_by_are_lowered_by_the_threads_next_search) {
    ShmPool pool{4096, 16 << 20, 32};
    pool.online_all();
    TestBuddy buddy{pool.node, pool.view};
    const Actor actor = pool.actor(1, 1);
    const std::uint64_t begin = pool.node.geometry.frame_count / 2 / kLeafFrames / kUpperFanOut;
    constexpr std::uint64_t kGroups = 100;
    Block block;
    for (std::uint64_t i = 0; i < kGroups * kUpperFanOut; ++i)
        ASSERT_EQ(buddy.allocate(actor, Order{kLeafOrder}, {}, block), Errc::ok);
    ASSERT_EQ(block.base.value / kLeafFrames, (begin + kGroups) * kUpperFanOut - 1) << "one group after the other";
    const auto too_hopeful = [&] {
        unsigned groups = 0;
        for (std::uint64_t group = begin; group + 1 < begin + kGroups; ++group)
            groups += HintWord{pool.node.hint[2][group / kUpperFanOut].load()}.is_full(group % kUpperFanOut) ? 1 : 0;
        return groups;
    };
    EXPECT_EQ(too_hopeful(), kGroups - 1);
    // Of whatever size, and wherever it goes: the thread is at home in the first group, of which nothing is left.
    for (std::uint64_t word = 0; word < kUpperFanOut; ++word)
        ASSERT_TRUE(buddy.allocate_at(pool.actor(2, 2), {FrameIndex{word * kLeafFrames}, Order{kLeafOrder}}, {}));
    pool.node.home[actor.thread.value].word[0].store(1);
    ASSERT_EQ(buddy.allocate(actor, Order{0}, {}, block), Errc::ok);
    ASSERT_LT(block.base.value, kUpperFanOut * kUpperFanOut * kLeafFrames) << "near its home";
    EXPECT_EQ(too_hopeful(), 0U);
}

// Uses up a group or parent from its first word on, as after a search that has found nothing that was less than free.
void use_up(const ShmPool &pool, TestBuddy &buddy, Actor actor, Order order, std::uint64_t word) {
    const std::uint64_t place = order.value == kLeafOrder ? word * kLeafFrames : word;
    pool.node.home[actor.thread.value].word[order.value].store(Home::in_free(place, kUpperLevels).bits());
    for (unsigned i = 0; i < kUpperFanOut; ++i) {
        Block block;
        ASSERT_EQ(buddy.allocate(actor, order, {}, block), Errc::ok);
        ASSERT_EQ(block.base.value, (word + i) << order.value);
    }
}

TEST(Buddy, who_uses_up_what_was_free_goes_on_past_what_is_used_up) {
    for (const unsigned order : {kLeafOrder, word_order(1)}) {
        ShmPool pool{4096, 16 << 20, 16};
        pool.online_all();
        TestBuddy buddy{pool.node, pool.view};
        const Order of_blocks{order};
        const Actor actor = pool.actor(1, 1);
        use_up(pool, buddy, pool.actor(2, 2), of_blocks, kUpperFanOut);
        use_up(pool, buddy, actor, of_blocks, 0);
        Block block;
        ASSERT_EQ(buddy.allocate(actor, of_blocks, {}, block), Errc::ok);
        EXPECT_EQ(block.base.value >> order, 2 * kUpperFanOut);
    }
}

// Nor for ever: what is passed by keeps hints that a search will meet one by one.
TEST(Buddy, halves_of_upper_words_go_on_until_there_may_be_something_better) {
    ShmPool pool{4096, 16 << 20, 160};
    pool.online_all();
    TestBuddy buddy{pool.node, pool.view};
    const Actor actor = pool.actor(1, 1);
    const Order half{word_order(1) - 1};
    const Order quarter{word_order(1) - 2};
    const Order whole{word_order(1)};
    const auto goes_on = [&](Order order) {
        return Home{pool.node.home[actor.thread.value].word[order.value].load()}.may_begin_next();
    };
    Block block;
    ASSERT_EQ(buddy.allocate(actor, half, {}, block), Errc::ok);
    const std::uint64_t begin = block.base.value >> half.value;
    constexpr std::uint64_t kAParent = 2 * kUpperFanOut;
    for (std::uint64_t i = 1; i < Home::kBegunMaxOfParts * kAParent + 2; ++i) {
        ASSERT_EQ(buddy.allocate(actor, half, {}, block), Errc::ok);
        ASSERT_EQ(block.base.value >> half.value, begin + i) << "one beside the other";
    }
    EXPECT_FALSE(goes_on(half)) << "enough";
    // What is freed ends it.
    pool.node.home[actor.thread.value].word[half.value].store(Home::in_free(0, kUpperLevels).bits());
    ASSERT_EQ(buddy.allocate(actor, half, {}, block), Errc::ok);
    ASSERT_TRUE(goes_on(half));
    Block freed;
    ASSERT_EQ(buddy.free(actor, block.base, freed), Errc::ok);
    EXPECT_FALSE(goes_on(half)) << "the block that has been freed";
    // And what a search for another size has begun: the rest of that word.
    for (const Order order : {half, whole})
        pool.node.home[actor.thread.value].word[order.value].store(Home::in_free(0, kUpperLevels).bits());
    ASSERT_EQ(buddy.allocate(actor, quarter, {}, block), Errc::ok);
    EXPECT_FALSE(goes_on(half));
    EXPECT_FALSE(goes_on(whole));
    EXPECT_EQ(Home{pool.node.home[actor.thread.value].word[half.value].load()}.place(), 0U) << "the place is kept";
}

// And not into the part of the pool where another thread is: each goes round in its own.
TEST(Buddy, a_burst_after_a_burst_stays_where_the_first_one_was) {
    ShmPool pool{4096, 16 << 20, 16};
    pool.online_all();
    TestBuddy buddy{pool.node, pool.view};
    const Actor actor = pool.actor(1, 1);
    std::set<std::uint64_t> places[2];
    for (auto &burst : places) {
        std::vector<Block> blocks(20 * kUpperFanOut);
        for (Block &block : blocks) {
            ASSERT_EQ(buddy.allocate(actor, Order{kLeafOrder}, {}, block), Errc::ok);
            burst.insert(block.base.value);
        }
        for (Block block : blocks) ASSERT_EQ(buddy.free(actor, block.base, block), Errc::ok);
    }
    EXPECT_EQ(places[0], places[1]);
}

// What goes back from a cache leaves holes, too.
TEST(Buddy, who_frees_many_does_not_go_on_past_them) {
    ShmPool pool{4096, 16 << 20, 16};
    pool.online_all();
    TestBuddy buddy{pool.node, pool.view};
    const Actor actor = pool.actor(1, 1);
    FrameIndex bases[3 * kUpperFanOut];
    for (FrameIndex &base : bases) {
        Block block;
        ASSERT_EQ(buddy.allocate(actor, Order{kLeafOrder}, {}, block), Errc::ok);
        base = block.base;
    }
    ASSERT_EQ(buddy.free_many(actor, BlockState::owned, bases, 2), 2U);
    for (unsigned i = 2; i-- > 0;) {
        Block block;
        ASSERT_EQ(buddy.allocate(actor, Order{kLeafOrder}, {}, block), Errc::ok);
        EXPECT_LE(block.base.value, bases[1].value);
    }
}

// Its frames and its index entry are those that a processor still has at hand.
TEST(Buddy, the_block_freed_last_is_the_next_one) {
    ShmPool pool{4096, 4 << 20, 2};
    pool.online_all();
    TestBuddy buddy{pool.node, pool.view};
    const Actor actor = pool.actor(1, 1);
    for (unsigned order = 0; order < kLeafOrder; ++order) {
        const Order of_blocks{order};
        std::vector<Block> blocks(6);
        for (Block &block : blocks) ASSERT_EQ(buddy.allocate(actor, of_blocks, {}, block), Errc::ok);
        Block freed;
        ASSERT_EQ(buddy.free(actor, blocks[1].base, freed), Errc::ok);
        ASSERT_EQ(buddy.free(actor, blocks[3].base, freed), Errc::ok);
        Block again;
        ASSERT_EQ(buddy.allocate(actor, of_blocks, {}, again), Errc::ok);
        EXPECT_EQ(again, blocks[3]);
        // Then the lowest in the word, or if it had one alone, the next word.
        ASSERT_EQ(buddy.allocate(actor, of_blocks, {}, again), Errc::ok);
        EXPECT_NE(again, blocks[3]);
    }
}

TEST(Buddy, scribbled_homes_cost_time_and_nothing_else) {
    ShmPool pool{4096, 4 << 20, 2};
    pool.online_all();
    TestBuddy buddy{pool.node, pool.view};
    const Actor actor = pool.actor(1, 1);
    for (unsigned order = 0; order <= pool.node.geometry.largest_order; ++order)
        for (const std::uint64_t scribbled :
             {~std::uint64_t{0}, std::uint64_t{0xff} << 56, std::uint64_t{0xff} << 56 | 1, std::uint64_t{4} << 56 | 2,
              std::uint64_t{0xff} << 48 | 1, std::uint64_t{4} << 48 | 2, std::uint64_t{0xffff} << 48 | 1,
              std::uint64_t{1} << 55, std::uint64_t{0xff} << 40 | 1, std::uint64_t{4} << 40 | 2,
              std::uint64_t{0xffffff} << 40 | 1, std::uint64_t{1} << 47, std::uint64_t{2}, std::uint64_t{64},
              pool.node.word_count[0], pool.node.word_count[0] + 1, pool.geometry.frame_count,
              pool.geometry.frame_count + 1}) {
            Block blocks[2];
            for (Block &block : blocks) {
                pool.node.home[actor.thread.value].word[order].store(scribbled, std::memory_order_relaxed);
                ASSERT_EQ(buddy.allocate(actor, Order{order}, {}, block), Errc::ok);
                ASSERT_EQ(block.base.value % block.order.frames(), 0U) << scribbled;
                ASSERT_LE(block.base.value + block.order.frames(), pool.geometry.frame_count) << scribbled;
            }
            ASSERT_NE(blocks[0], blocks[1]);
            for (const Block &block : blocks) {
                pool.node.home[actor.thread.value].word[order].store(scribbled, std::memory_order_relaxed);
                Block freed;
                ASSERT_EQ(buddy.free(actor, block.base, freed), Errc::ok);
            }
        }
}

TEST(Buddy, scribbled_homes_in_words_that_are_used_up_cost_no_more) {
    ShmPool pool{4096, 16 << 20, 16};
    pool.online_all();
    TestBuddy buddy{pool.node, pool.view};
    const Actor actor = pool.actor(1, 1);
    const Order half{word_order(1) - 1};
    const std::uint64_t words = pool.node.word_count[1];
    for (const std::uint64_t word : {std::uint64_t{0}, std::uint64_t{7}, words - 9, words - 1})
        ASSERT_TRUE(buddy.allocate_at(pool.actor(2, 2), {FrameIndex{word << word_order(1)}, Order{word_order(1)}}, {}));
    for (const std::uint64_t word : {std::uint64_t{0}, std::uint64_t{7}, words - 9, words - 1, words, words + 7})
        for (const std::uint64_t scribbled :
             {std::uint64_t{0}, std::uint64_t{3}, std::uint64_t{0xff}, std::uint64_t{0x103}, std::uint64_t{0xff00},
              std::uint64_t{0xffff03}, std::uint64_t{0xffffff}}) {
            pool.node.home[actor.thread.value].word[half.value].store((word + 1) | scribbled << 40);
            Block block;
            ASSERT_EQ(buddy.allocate(actor, half, {}, block), Errc::ok);
            ASSERT_EQ(block.base.value % block.order.frames(), 0U) << word << ", " << scribbled;
            ASSERT_LE(block.base.value + block.order.frames(), pool.geometry.frame_count) << word << ", " << scribbled;
            Block freed;
            ASSERT_EQ(buddy.free(actor, block.base, freed), Errc::ok);
        }
}

TEST(Buddy, only_what_nobody_else_can_reach_is_cached) {
    ShmPool pool{4096, 4 << 20, 1};
    pool.online_all();
    TestBuddy buddy{pool.node, pool.view};
    const Actor mine = pool.actor(1, 1);
    Block block;
    ASSERT_EQ(buddy.allocate(mine, Order{2}, {}, block), Errc::ok);
    auto &slot = pool.node.index_entry(block);
    const auto can_be_cached = [&](ProcessSlot by) {
        const bool is_private = look_at(slot).is_private(IndexEntry::private_to(by));
        // Asked where the order is known as well.
        EXPECT_EQ(is_like(look_at(slot), IndexEntry::owned(by, Order{2}, 0, {})), is_private);
        return is_private;
    };
    EXPECT_TRUE(can_be_cached(mine.process));
    EXPECT_FALSE(is_like(look_at(slot), IndexEntry::owned(mine.process, Order{3}, 0, {})));
    EXPECT_FALSE(can_be_cached(ProcessSlot{2}));
    (void)buddy.publish(block, look_at(slot));
    EXPECT_FALSE(can_be_cached(mine.process)) << "somebody may take it";
    IndexEntry entry = look_at(slot);
    ASSERT_TRUE(buddy.withdraw(block, entry));
    into_cache(slot, entry, mine.thread);
    Block freed;
    EXPECT_EQ(buddy.free(mine, block.base, freed), Errc::stale_ref) << "freed already, as its user sees it";
    EXPECT_FALSE(can_be_cached(mine.process));
    EXPECT_EQ(buddy.free_many(mine, BlockState::owned, &block.base, 1), 0U) << "in a bulk free, too";
}

TEST(Buddy, a_block_says_since_when_its_holder_has_it) {
    ShmPool pool{4096, 4 << 20, 1};
    pool.online_all();
    TestBuddy buddy{pool.node, pool.view};
    const Actor giver = pool.actor(1, 1);
    const Actor taker = pool.actor(2, 2);
    Block block;
    ASSERT_EQ(buddy.allocate(giver, Order{2}, Note{PoolAge{5}}.for_request(12288, 14), block), Errc::ok);
    auto &slot = pool.node.index_entry(block);
    EXPECT_EQ(look_at(slot).note().since(), PoolAge{5});
    into_cache(slot, look_at(slot), giver.thread);
    const Note note = Note{PoolAge{6}}.for_request(16320, 14);
    const std::uint32_t generation = look_at(slot).generation();
    out_of_cache(slot, look_at(slot), IndexEntry::owned(giver.process, Order{2}, 0, note), giver.thread);
    EXPECT_EQ(look_at(slot).generation(), generation);
    EXPECT_EQ(look_at(slot).note(), Note{PoolAge{6}}.for_request(16320, 14)) << "its next use is another one";
    const Reference reference = buddy.publish(block, look_at(slot));
    Block taken;
    ASSERT_EQ(buddy.take(taker, reference, PoolAge{9}, taken), Errc::ok);
    EXPECT_EQ(look_at(slot).note(), Note{PoolAge{9}}.for_request(16320, 14)) << "the taker's from now on";
}

// Two threads that free a block in the same moment may both cache it.
TEST(Buddy, what_another_thread_gave_back_from_its_cache_does_not_come_out_of_ours) {
    ShmPool pool{4096, 4 << 20, 1};
    pool.online_all();
    TestBuddy buddy{pool.node, pool.view};
    const Actor mine = pool.actor(1, 1);
    const Actor other = pool.actor(2, 2);
    const IndexEntry in_my_cache = IndexEntry::owned(mine.process, Order{2}, 0, {});
    Block block;
    ASSERT_EQ(buddy.allocate(mine, Order{2}, {}, block), Errc::ok);
    auto &slot = pool.node.index_entry(block);
    into_cache(slot, look_at(slot), mine.thread);
    EXPECT_TRUE(is_cached(look_at(slot), in_my_cache, mine.thread));
    EXPECT_FALSE(is_cached(look_at(slot), IndexEntry::owned(mine.process, Order{3}, 0, {}), mine.thread))
        << "another cache";
    ASSERT_EQ(buddy.free_many(mine, BlockState::cached, &block.base, 1), 1U);
    EXPECT_FALSE(is_cached(look_at(slot), in_my_cache, mine.thread)) << "it is free";
    EXPECT_EQ(buddy.free_many(mine, BlockState::cached, &block.base, 1), 0U);
    const std::uint64_t home = pool.node.home[mine.thread.value].word[2].load();
    pool.node.home[other.thread.value].word[2].store(home);
    Block again;
    ASSERT_EQ(buddy.allocate(other, Order{2}, {}, again), Errc::ok);
    ASSERT_EQ(again, block);
    EXPECT_FALSE(is_cached(look_at(slot), in_my_cache, mine.thread)) << "it is another's";
    into_cache(slot, look_at(slot), other.thread);
    EXPECT_FALSE(is_cached(look_at(slot), in_my_cache, mine.thread)) << "it waits in another's cache";
}

// Also not to a thread that is at home there.
TEST(Buddy, a_draining_chunk_is_not_handed_out_whole) {
    ShmPool pool{4096, 4 << 20, 2};
    pool.online_all();
    Chunks<ProductionEnv> chunks{pool.node, pool.view};
    TestBuddy buddy{pool.node, pool.view};
    const Actor actor = pool.actor(1, 1);
    const Order whole = pool.node.geometry.largest();
    Block block;
    Block freed;
    ASSERT_EQ(buddy.allocate(actor, whole, {}, block), Errc::ok);
    ASSERT_EQ(buddy.free(actor, block.base, freed), Errc::ok);
    chunks.set_drain(block.base.value >> whole.value, true);
    Block other;
    ASSERT_EQ(buddy.allocate(actor, whole, {}, other), Errc::ok);
    EXPECT_NE(other, block);
    EXPECT_EQ(buddy.allocate(actor, whole, {}, block), Errc::out_of_frames);
}

// A place that was chosen by a look (fit.hpp) may have been looked at before the drain began.
TEST(Buddy, a_place_in_a_draining_chunk_is_refused) {
    for (const unsigned largest : {7U, 9U, 10U, 13U}) {
        ShmPool pool{4096, std::uint64_t{4096} << largest, 2};
        pool.online_all();
        Chunks<ProductionEnv> chunks{pool.node, pool.view};
        Buddy<ProductionEnv> buddy{pool.node, pool.view};
        chunks.set_drain(0, true);
        for (unsigned order = 0; order <= largest; ++order) {
            EXPECT_FALSE(buddy.allocate_at(pool.actor(1, 1), {FrameIndex{0}, Order{order}}, {})) << order;
            ASSERT_TRUE(buddy.allocate_at(pool.actor(1, 1), {FrameIndex{1U << largest}, Order{order}}, {})) << order;
            Block freed;
            ASSERT_EQ(buddy.free(pool.actor(1, 1), FrameIndex{1U << largest}, freed), Errc::ok);
        }
        EXPECT_TRUE(chunks.try_take_offline(0)) << "the drain is not in its own way";
    }
}

TEST(Buddy, an_allocation_below_a_draining_chunk_is_undone) {
    ShmPool pool{4096, 4 << 20, 2};
    pool.online_all();
    Chunks<ProductionEnv> chunks{pool.node, pool.view};
    TestBuddy buddy{pool.node, pool.view};
    const Actor actor = pool.actor(1, 1);
    Block block;
    ASSERT_EQ(buddy.allocate(actor, Order{0}, {}, block), Errc::ok);
    const std::uint64_t chunk = block.base.value >> 10;
    chunks.set_drain(chunk, true);
    // Its home word lies in the draining chunk: claimed, seen on the climb, undone, and found elsewhere.
    Block other;
    ASSERT_EQ(buddy.allocate(actor, Order{0}, {}, other), Errc::ok);
    EXPECT_NE(other.base.value >> 10, chunk);
    EXPECT_EQ(chunks.used_frames(chunk), 1U);
    Block freed;
    ASSERT_EQ(buddy.free(actor, block.base, freed), Errc::ok);
    ASSERT_TRUE(chunks.try_take_offline(chunk));
    ASSERT_TRUE(chunks.bring_online(chunk));
    chunks.set_drain(chunk, false);
    std::uint64_t blocks = 1;
    while (buddy.allocate(actor, Order{0}, {}, block) == Errc::ok) ++blocks;
    EXPECT_EQ(blocks, pool.geometry.frame_count);
}

TEST(Buddy, finds_the_last_free_frame_of_a_full_pool_whatever_the_hints_said) {
    ShmPool pool{4096, 4 << 20, 8};
    pool.online_all();
    TestBuddy buddy{pool.node, pool.view};
    const Actor actor = pool.actor(1, 1);
    const Actor other = pool.actor(2, 2);
    std::vector<Block> blocks;
    Block block;
    while (buddy.allocate(actor, Order{0}, {}, block) == Errc::ok) blocks.push_back(block);
    ASSERT_EQ(blocks.size(), pool.geometry.frame_count);
    for (std::size_t i = 0; i < blocks.size(); i += 997) {
        Block freed;
        ASSERT_EQ(buddy.free(actor, blocks[i].base, freed), Errc::ok);
        ASSERT_EQ(buddy.allocate(other, Order{0}, {}, block), Errc::ok)
            << "the one free frame is " << blocks[i].base.value;
        ASSERT_EQ(block, blocks[i]);
        ASSERT_EQ(buddy.allocate(other, Order{0}, {}, freed), Errc::out_of_frames);
        ASSERT_EQ(buddy.free(other, block.base, freed), Errc::ok);
        ASSERT_EQ(buddy.allocate(actor, Order{0}, {}, block), Errc::ok);
    }
}

// Production atomics; before each access, somebody else may do something.
struct AdversaryEnv {
    static constexpr std::uint64_t kRefusalRoundsMost = engine::ProductionEnv::kRefusalRoundsMost;
    static inline std::function<void(const void *)> before;
    template <class T>
    class Atomic {
    public:
        T load(std::memory_order order = std::memory_order_seq_cst) const {
            meet();
            return value_.load(order);
        }
        void store(T value, std::memory_order order = std::memory_order_seq_cst) {
            meet();
            value_.store(value, order);
        }
        template <class... Orders>
        bool compare_exchange_strong(T &expected, T desired, Orders... orders) {
            meet();
            return value_.compare_exchange_strong(expected, desired, orders...);
        }
        template <class... Orders>
        bool compare_exchange_weak(T &expected, T desired, Orders... orders) {
            return compare_exchange_strong(expected, desired, orders...);
        }
        T fetch_and(T value, std::memory_order order) {
            meet();
            return value_.fetch_and(value, order);
        }
        T fetch_or(T value, std::memory_order order) {
            meet();
            return value_.fetch_or(value, order);
        }
        T fetch_add(T value, std::memory_order order) {
            meet();
            return value_.fetch_add(value, order);
        }

    private:
        void meet() const {
            if (before) before(&value_);
        }
        std::atomic<T> value_;
    };
    static void pause() noexcept {}
    static void crash_point(CrashPoint) noexcept {}
};

// Two places for a large block and a frame that is now in the one, now in the other: at every moment one of the two is
// free. Whoever moves the frame sees each look of the other thread coming, and puts the frame where that looks next, so
// many times. Returns what is told to who wants the large block.
Errc allocate_while_a_frame_moves(unsigned order, unsigned moves_max, bool somebody_is_stopped, unsigned &moves) {
    // Two chunks, and for orders below the largest nothing but one place in each.
    ShmPool pool{4096, std::uint64_t{4096} << order, 2};
    pool.online_all();
    Buddy<ProductionEnv> mover{pool.node, pool.view};
    const Actor moving = pool.actor(2, 2);
    const Actor wanting = pool.actor(1, 1);
    const std::uint64_t frames = std::uint64_t{1} << order;
    std::uint64_t at = 0;
    // Both have been used: their marks are there, and only the frames' own words say that one of them is free.
    Block used;
    EXPECT_TRUE(mover.allocate_at(moving, {FrameIndex{frames}, Order{0}}, {}));
    EXPECT_EQ(mover.free(moving, FrameIndex{frames}, used), Errc::ok);
    EXPECT_TRUE(mover.allocate_at(moving, {FrameIndex{at}, Order{0}}, {}));
    // In the middle of an operation that is nowhere near; so it is not enough to look at hints.
    if (somebody_is_stopped) {
        pool.actor(3, 3);
        pool.view.threads[3].intent.store(
            Intent{IntentKind::allocate, NumaNode{0}, Block{FrameIndex{1}, Order{0}}}.bits());
    }
    moves = 0;
    bool is_moving = false;
    AdversaryEnv::before = [&](const void *address) {
        const auto *const word = static_cast<const std::atomic<std::uint64_t> *>(address);
        const auto *const leaf = reinterpret_cast<const std::atomic<std::uint64_t> *>(pool.node.leaf);
        if (is_moving || moves == moves_max || word < leaf || word >= leaf + pool.node.word_count[0]) return;
        const std::uint64_t looked_at = static_cast<std::uint64_t>(word - leaf) * kLeafFrames;
        if (looked_at == at || looked_at % frames != 0) return;
        is_moving = true;
        ++moves;
        Block freed;
        EXPECT_EQ(mover.free(moving, FrameIndex{at}, freed), Errc::ok);
        at = looked_at;
        EXPECT_TRUE(mover.allocate_at(moving, {FrameIndex{at}, Order{0}}, {}));
        is_moving = false;
    };
    Buddy<AdversaryEnv> buddy{
        NodeView<AdversaryEnv>::at(pool.node_memory.address(), pool.geometry, NumaNode{0}, pool.thread_slots),
        PoolView<AdversaryEnv>::at(pool.pool_memory.address(), ShmPool::kProcesses, pool.thread_slots)};
    Block block;
    const Errc result = buddy.allocate(wanting, Order{order}, {}, block);
    AdversaryEnv::before = nullptr;
    if (result == Errc::ok) {
        EXPECT_NE(block.base.value, at / frames * frames);
    }
    return result;
}

TEST(Buddy, a_large_block_is_refused_only_if_none_was_free_at_some_moment) {
    for (const bool somebody_is_stopped : {false, true})
        for (const unsigned order : {7U, 8U, 9U, 10U, 12U, 13U})
            for (unsigned moves_max = 0; moves_max <= 12; ++moves_max) {
                unsigned moves = 0;
                const Errc result = allocate_while_a_frame_moves(order, moves_max, somebody_is_stopped, moves);
                EXPECT_EQ(result, Errc::ok) << "order " << order << ", the frame moved " << moves << " of " << moves_max
                                            << " times, somebody stopped: " << somebody_is_stopped;
                if (result != Errc::ok) break;
            }
}
// What cannot be proven while the frame goes on and on moving is refused in the end, too.
TEST(Buddy, a_search_ends_however_long_others_go_on) {
    for (const unsigned order : {9U, 10U, 13U}) {
        unsigned moves = 0;
        EXPECT_EQ(allocate_while_a_frame_moves(order, ~0U, true, moves), Errc::out_of_frames);
        std::printf("order %u: refused after the frame had moved %u times under its looks\n", order, moves);
    }
}

TEST(Buddy, a_hint_left_too_low_by_the_dead_hides_nothing) {
    ShmPool pool{4096, 4 << 20, 2};
    pool.online_all();
    TestBuddy buddy{pool.node, pool.view};
    const Actor actor = pool.actor(1, 1);
    const Actor dead = pool.actor(2, 2);
    // What a death between lowering the root's hint and the second look leaves behind.
    pool.view.threads[dead.thread.value].hint_work.store(HintWork{0}.begun(pool.node.hint_levels - 1, 0).bits());
    const unsigned ceiling = pool.geometry.largest_order + 1;
    HintWord none;
    for (unsigned child = 0; child < kUpperFanOut; ++child) none = none.with_value(child, 0, ceiling);
    auto &root = pool.node.hint[pool.node.hint_levels][0];
    root.store(none.bits());
    // And a marked chunk, so that the top word must ask its hints.
    Block block;
    EXPECT_EQ(buddy.allocate(actor, Order{0}, {}, block), Errc::ok) << "found by looking at the words themselves";
    Reclaimed total;
    ThreadSlotIndex blocked_by;
    ASSERT_EQ(pool.kill_and_recover(2, total, blocked_by), RecoveryStep::done);
    EXPECT_FALSE(HintWork{pool.view.threads[2].hint_work.load()}.active());
    EXPECT_NE(HintWord{root.load()}.value(0, ceiling), 0U) << "recovery raises it";
}

TEST(Snapshot, tells_owners_requested_bytes_and_maximal_free_blocks) {
    ShmPool pool{4096, 4 << 20, 1};
    pool.online_all();
    TestBuddy buddy{pool.node, pool.view};
    const Actor one = pool.actor(1, 1);
    const Actor two = pool.actor(3, 2);  // of a slot that likes the same half
    Block a;
    Block b;
    ASSERT_EQ(buddy.allocate(one, Order{0}, Note{PoolAge{7}}.for_request(128, 12), a), Errc::ok);
    ASSERT_EQ(buddy.allocate(two, Order{3}, Note{PoolAge{9}}.for_request(32768 - 5 * 128, 15), b), Errc::ok);
    Block earlier;
    ASSERT_EQ(buddy.allocate(two, Order{3}, Note{PoolAge{8}}, earlier), Errc::ok);
    NodeSnapshot snapshot;
    OwnerUsage usage[ShmPool::kProcesses] = {};
    scan_node<ProductionEnv>(pool.node, snapshot, usage);
    EXPECT_EQ(usage[1].frames, 1U);
    EXPECT_EQ(usage[2].frames, 16U);
    EXPECT_EQ(usage[1].oldest, PoolAge{7});
    EXPECT_EQ(usage[2].oldest, PoolAge{8});
    EXPECT_EQ(snapshot.used_frames, 17U);
    EXPECT_EQ(snapshot.free_frames, 1024U - 17);
    EXPECT_EQ(snapshot.granted_bytes, 17U * 4096);
    EXPECT_EQ(snapshot.requested_bytes, 128U + 16 * 4096 - 5 * 128);
    std::uint64_t frames = 0;
    for (unsigned order = 0; order <= kMaxOrder; ++order) frames += snapshot.free_blocks[order] << order;
    EXPECT_EQ(frames, snapshot.free_frames);
    EXPECT_EQ(snapshot.free_blocks[10], 0U);
    EXPECT_EQ(snapshot.largest_free_frames(), 512U);
    CellUsage cells[4] = {};
    scan_occupancy<ProductionEnv>(pool.node, 256, cells);
    std::uint64_t used = 0;
    for (const CellUsage &cell : cells) {
        EXPECT_EQ(cell.frames, 256U);
        used += cell.used_frames;
    }
    EXPECT_EQ(used, 17U);
    // An entry that nobody can have written is counted and survived.
    pool.node.index[0][a.base.value].store(IndexEntry::owned(ProcessSlot{1}, Order{24}, 1, {}).bits());
    EXPECT_EQ(pool.snapshot().damaged_entries, 1U);
}

}  // namespace
}  // namespace numacre
