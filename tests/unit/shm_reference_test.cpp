// Names of blocks: how they are packed, and that no two of a block are the same when its generation comes round.
#include "numacre/shm/reference.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "numacre/shm/buddy.hpp"
#include "numacre/shm/recovery.hpp"
#include "support/actor.hpp"
#include "support/cached_block.hpp"
#include "support/shm_pool.hpp"

using namespace numacre;
using namespace numacre::engine;

namespace {

using test::look_at;
using test::ShmPool;
using TestBuddy = Buddy<ProductionEnv>;

TEST(ReferenceFormat, keeps_every_field_apart_in_pools_of_all_sizes) {
    constexpr std::uint64_t kMostFrames = std::uint64_t{1} << kMaxFrameIndexBits;
    for (const std::uint64_t frames : {std::uint64_t{1}, std::uint64_t{2}, std::uint64_t{3}, std::uint64_t{96},
                                       std::uint64_t{1} << 18, (std::uint64_t{1} << 29) - 64, kMostFrames})
        for (const std::uint32_t nodes : {1U, 2U, 3U, 8U, 63U, kMaxNumaNodes}) {
            const ReferenceFormat format{frames, nodes, frames % 3 * 0x123456789abcdef};
            const std::uint64_t numbers = ~std::uint64_t{0} >> (64 - std::min(format.number_bits(), kNameNumberBits));
            for (const std::uint32_t node : {0U, nodes - 1})
                for (Order order{0}; order.value <= kMaxOrder && order.frames() <= frames; ++order.value)
                    for (const std::uint64_t place : {std::uint64_t{0}, (frames >> order.value) - 1})
                        for (const std::uint64_t number : {std::uint64_t{0}, std::uint64_t{1}, numbers / 3, numbers}) {
                            const Block block{FrameIndex{place << order.value}, order};
                            const Reference reference =
                                format.reference(NumaNode{static_cast<std::uint8_t>(node)}, block, number);
                            ASSERT_EQ(format.block(reference), block) << frames << " frames, " << nodes << " nodes";
                            ASSERT_EQ(format.numa_node(reference), node);
                            ASSERT_TRUE(format.has_number(reference, number));
                            ASSERT_FALSE(format.has_number(reference, number ^ 1));
                            ASSERT_FALSE(format.has_number(reference, number ^ (numbers + 1) >> 1));
                            ASSERT_FALSE(format.is_impossible(reference));
                            ASSERT_NE(reference.bits(), 0U) << "0 is no reference";
                        }
        }
    EXPECT_EQ((ReferenceFormat{std::uint64_t{1} << 29, 1}.number_bits()), kNameNumberBits);
    EXPECT_EQ((ReferenceFormat{std::uint64_t{1} << 26, 8}.number_bits()), kNameNumberBits);
    EXPECT_EQ((ReferenceFormat{kMostFrames, kMaxNumaNodes}.number_bits()), 23U) << "as reference.hpp says";
}

TEST(ReferenceFormat, tells_the_instances_of_a_pool_apart) {
    constexpr std::uint32_t kNodes = 2;
    for (const std::uint64_t frames : {std::uint64_t{96}, std::uint64_t{1} << kMaxFrameIndexBits})
        for (const std::uint64_t instance : {std::uint64_t{1}, std::uint64_t{2}, std::uint64_t{0xfedcba9876543210}}) {
            const ReferenceFormat one{frames, kNodes, instance};
            const ReferenceFormat next{frames, kNodes, instance + 1};
            const Block block{FrameIndex{64}, Order{3}};
            // As many numbers of the next instance as a young pool has.
            const Reference reference = one.reference(NumaNode{1}, block, 7);
            ASSERT_TRUE(one.has_number(reference, 7));
            ASSERT_EQ(next.block(reference), block);
            ASSERT_EQ(next.numa_node(reference), 1U);
            for (std::uint64_t number = 0; number < 1000; ++number)
                ASSERT_FALSE(next.has_number(reference, number)) << frames << " frames, instance " << instance;
        }
}

TEST(Era, is_told_by_its_word_and_the_half_of_the_generation) {
    constexpr std::uint32_t kHalf = 1U << kHalfRoundBits;
    // The word is right or one behind, and comes round like the era.
    EXPECT_EQ(era_of(0, 1), 0);
    EXPECT_EQ(era_of(0, kHalf), 1);
    EXPECT_EQ(era_of(1, kHalf), 1);
    EXPECT_EQ(era_of(1, 1), 2);
    EXPECT_EQ(era_of(0xffff, 1), 0);
    EXPECT_EQ(name_number(0, kHalf - 1) + 1, name_number(0, kHalf)) << "it goes on from one half to the next";
    EXPECT_EQ(name_number(0xffff, kGenerationMax), (std::uint64_t{1} << kNameNumberBits) - 1);
    for (const std::uint32_t generation : {1U, kHalf - 2, kHalf, kGenerationMax - 1})
        EXPECT_FALSE(IndexEntry::owned({}, {}, generation, Note{~std::uint64_t{0}}).is_last_of_half()) << generation;
    for (const std::uint32_t generation : {kHalf - 1, kGenerationMax})
        EXPECT_TRUE(IndexEntry::owned({}, {}, generation, Note{~std::uint64_t{0}}).is_last_of_half()) << generation;
}

// --- in the tree -----------------------------------------------------------------------------------------------------

constexpr std::uint32_t kHalf = 1U << kHalfRoundBits;

// A block with a generation and an era word of the test's choice, and whoever does something with it.
struct Stage {
    ShmPool pool{4096, 4 << 20, 1};
    TestBuddy buddy;
    Actor giver;
    Actor taker;
    Order order;
    Block block;

    explicit Stage(Order order_of_block) : buddy(pool.node, pool.view), order(order_of_block) {
        pool.online_all();
        giver = pool.actor(1, 1);
        taker = pool.actor(2, 2);
        if (buddy.allocate(giver, order, {}, block) != Errc::ok) std::abort();
    }
    auto &slot() { return pool.node.index_entry(block); }
    auto &era() { return pool.node.era_word(layer_of(order), block); }
    void set(std::uint32_t generation, std::uint16_t era_word) {
        const IndexEntry entry = look_at(slot());
        slot().store(IndexEntry::owned(entry.owner(), order, generation, entry.note()).bits());
        era().store(era_word);
    }
    std::uint64_t number() { return name_number(era().load(), look_at(slot()).generation()); }
    Reference refer() { return buddy.publish(block, look_at(slot())); }
    bool take_in_burst(Reference name) {
        const std::uint64_t bits = name.bits();
        return buddy.take_many_in_leaf(buddy.view_of(taker), &bits, 1, {}, [](unsigned, FrameIndex) {}) == 1;
    }
};

// All that changes a generation, each by one.
std::vector<std::pair<std::string, std::function<void(Stage &)>>> changes() {
    return {
        {"take",
         [](Stage &stage) {
             const Reference name = stage.refer();
             Block taken;
             ASSERT_EQ(stage.buddy.take(stage.taker, name, {}, taken), Errc::ok);
             EXPECT_EQ(stage.buddy.take(stage.giver, name, {}, taken), Errc::stale_ref);
         }},
        {"withdraw",
         [](Stage &stage) {
             const Reference name = stage.refer();
             IndexEntry entry = look_at(stage.slot());
             ASSERT_TRUE(stage.buddy.withdraw(stage.block, entry));
             Block taken;
             EXPECT_EQ(stage.buddy.take(stage.taker, name, {}, taken), Errc::stale_ref);
         }},
        {"free, allocate",
         [](Stage &stage) {
             const Reference name = stage.refer();
             Block freed;
             ASSERT_EQ(stage.buddy.free(stage.giver, stage.block.base, freed), Errc::ok);
             ASSERT_TRUE(stage.buddy.allocate_at(stage.giver, stage.block, {}));
             Block taken;
             EXPECT_EQ(stage.buddy.take(stage.taker, name, {}, taken), Errc::stale_ref);
         }},
        {"free, allocate many",
         [](Stage &stage) {
             Block freed;
             ASSERT_EQ(stage.buddy.free(stage.giver, stage.block.base, freed), Errc::ok);
             if (stage.order.value > kLeafOrder) {
                 ASSERT_TRUE(stage.buddy.allocate_at(stage.giver, stage.block, {}));
                 return;
             }
             FrameIndex base;
             ASSERT_EQ(stage.buddy.allocate_many(stage.giver, stage.order, BlockState::owned, {}, &base, 1), 1U);
             ASSERT_EQ(base, stage.block.base) << "there is nothing else in the pool";
         }},
        {"put on its way",
         [](Stage &stage) {
             IndexEntry entry = look_at(stage.slot());
             ASSERT_TRUE(stage.buddy.put_on_its_way(stage.giver, stage.block, entry));
         }},
        {"seized from the dead",
         [](Stage &stage) {
             stage.pool.view.processes[1].state.store(static_cast<std::uint64_t>(ProcessState::dead));
             const NodeView<ProductionEnv> nodes[] = {stage.pool.node};
             Recovery<ProductionEnv> recovery{stage.pool.view, nodes};
             Reclaimed total;
             ThreadSlotIndex blocked_by;
             ASSERT_EQ(recovery.seize_process(ProcessSlot{1}, total, blocked_by, [](NumaNode, Block) {}),
                       RecoveryStep::done);
         }},
    };
}

TEST(Names, go_on_where_a_half_round_ends) {
    for (const unsigned order : {0U, 6U, 7U, 10U})
        for (const auto &[what, change] : changes())
            for (const std::uint16_t halves : {0, 1, 2, 7, 0xfffe, 0xffff})  // gone through already
                for (const bool is_behind : {false, true}) {
                    SCOPED_TRACE(what + ", order " + std::to_string(order) + ", era " + std::to_string(halves));
                    if (halves == 0 && is_behind) continue;  // nothing lies before the first half
                    const bool is_odd = halves % 2 != 0;
                    Stage stage{Order{order}};
                    stage.set(is_odd ? kGenerationMax : kHalf - 1, static_cast<std::uint16_t>(halves - is_behind));
                    const std::uint64_t before = stage.number();
                    EXPECT_EQ(before >> kHalfRoundBits, halves);
                    change(stage);
                    // A round begins with generation 1: 0 is "never allocated".
                    constexpr std::uint64_t kRound = std::uint64_t{1} << kNameNumberBits;
                    EXPECT_EQ(stage.number(), (before + (is_odd ? 2 : 1)) % kRound);
                }
}

// What a thread kept that had been given a reference long ago.
TEST(Names, of_a_block_that_is_handed_to_and_fro_are_not_mistaken_for_older_ones) {
    Stage stage{Order{0}};
    std::vector<std::pair<Reference, std::uint32_t>> kept;  // with the generations at which they could be mistaken
    std::uint64_t mistaken_for = 0;
    for (std::uint32_t hand_over = 0; hand_over < 5 * kHalf; ++hand_over) {
        const Reference name = stage.refer();
        const std::uint32_t generation = look_at(stage.slot()).generation();
        Block taken;
        EXPECT_EQ(stage.buddy.find_name(stage.block.base), name);
        for (const auto &[old, then] : kept) {
            if (then != generation) continue;
            ++mistaken_for;
            ASSERT_NE(old, name);
            ASSERT_FALSE(stage.take_in_burst(old)) << "after " << hand_over;
            ASSERT_EQ(stage.buddy.take(stage.taker, old, {}, taken), Errc::stale_ref) << "after " << hand_over;
        }
        if (hand_over < 4 * kHalf && hand_over % (kHalf / 8) == 3) kept.emplace_back(name, generation);
        // The short way knows the middle of a half round only.
        const bool is_at_an_end = (generation & (kHalf - 1)) == kHalf - 1;
        if (hand_over % 2 == 0) {
            ASSERT_EQ(stage.take_in_burst(name), !is_at_an_end) << hand_over;
        }
        if (hand_over % 2 != 0 || is_at_an_end) {
            ASSERT_EQ(stage.buddy.take(stage.taker, name, {}, taken), Errc::ok) << hand_over;
        }
        std::swap(stage.giver, stage.taker);
    }
    EXPECT_EQ(mistaken_for, 32U) << "kept in halves 0, 1 and 2, met again in 2, 3 and 4, and once more in 4";
}

}  // namespace
