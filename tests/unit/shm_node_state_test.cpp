// The pure steps on the shared words, against the plainest possible re-statement of what they mean.
#include <gtest/gtest.h>

#include <bit>
#include <random>

#include "numacre/shm/node_state.hpp"

namespace numacre {

using namespace engine;
namespace {

bool run_is_free(std::uint64_t word, unsigned first, unsigned order) {
    for (unsigned frame = first; frame < first + (1U << order); ++frame)
        if ((word >> frame & 1) != 0) return false;
    return true;
}

TEST(LeafWord, mask_covers_exactly_the_block) {
    for (unsigned order = 0; order <= kLeafOrder; ++order)
        for (unsigned first = 0; first < kLeafFrames; first += 1U << order) {
            std::uint64_t expected = 0;
            for (unsigned frame = first; frame < first + (1U << order); ++frame) expected |= std::uint64_t{1} << frame;
            EXPECT_EQ(leaf::mask(first, order), expected) << "order " << order << " at " << first;
        }
}

TEST(LeafWord, free_starts_and_free_value_agree_with_a_naive_scan) {
    std::mt19937_64 random{7};
    for (int round = 0; round < 2000; ++round) {
        // From nearly empty to nearly full.
        std::uint64_t word = random();
        for (int i = 0; i < round % 6; ++i) word = round % 2 == 0 ? word & random() : word | random();
        unsigned value = 0;
        for (unsigned order = 0; order <= kLeafOrder; ++order) {
            std::uint64_t starts = 0;
            for (unsigned first = 0; first < kLeafFrames; first += 1U << order)
                if (run_is_free(word, first, order)) starts |= std::uint64_t{1} << first;
            ASSERT_EQ(leaf::free_starts(word, order), starts) << std::hex << word << " order " << order;
            const std::uint64_t ends = leaf::free_ends(word, order);
            ASSERT_EQ(ends != 0, starts != 0) << std::hex << word << " order " << order;
            if (starts != 0) {
                value = order + 1;
                ASSERT_EQ(std::countr_zero(ends), std::countr_zero(starts) + (1 << order) - 1) << std::hex << word;
            }
        }
        ASSERT_EQ(leaf::free_value(word), value) << std::hex << word;
    }
    for (unsigned order = 0; order <= kLeafOrder; ++order) {
        EXPECT_EQ(std::countr_zero(leaf::free_ends(0, order)), (1 << order) - 1);
        EXPECT_EQ(leaf::free_ends(~std::uint64_t{0}, order), 0U);
        // What is free is the last run of all, and each frame before it is taken but for the first of its run.
        const std::uint64_t last = leaf::mask(kLeafFrames - (1U << order), order);
        EXPECT_EQ(std::countr_zero(leaf::free_ends(~last, order)), 63);
        if (order > 0 && order < kLeafOrder) {
            EXPECT_EQ(leaf::free_ends(~leaf::kRuns.first[order], order), 0U);
            EXPECT_EQ(leaf::free_ends(leaf::kRuns.first[order], order), 0U) << "a taken first frame";
        }
    }
    EXPECT_EQ(leaf::free_value(0), kLeafOrder + 1);
    EXPECT_EQ(leaf::free_value(~std::uint64_t{0}), 0U);
}

TEST(UpperWord, every_step_changes_what_it_says_and_the_tag) {
    const UpperWord empty;
    EXPECT_TRUE(empty.empty());
    const UpperWord marked = empty.with_mark(3);
    EXPECT_TRUE(marked.occupied_below(3));
    EXPECT_TRUE(marked.passable(3));
    EXPECT_FALSE(marked.empty());
    EXPECT_EQ(marked.tag(), 1U);
    const UpperWord coalescing = marked.with_coalescing(3);
    EXPECT_TRUE(coalescing.coalescing(3));
    EXPECT_FALSE(coalescing.passable(3)) << "an allocation must withdraw COAL by an RMW";
    EXPECT_EQ(coalescing.with_mark(3).bits() & 0xff'ffff, marked.bits() & 0xff'ffff);
    const UpperWord cleaned = coalescing.without_mark(3);
    EXPECT_TRUE(cleaned.empty());
    EXPECT_FALSE(cleaned.coalescing(3));
    EXPECT_EQ(cleaned.tag(), 3U);
    const UpperWord allocated = cleaned.with_allocated(0b0011'0000);
    EXPECT_TRUE(allocated.allocated_here(4) && allocated.allocated_here(5));
    EXPECT_TRUE(allocated.closed_to_allocation(4));
    EXPECT_FALSE(allocated.closed_to_allocation(6));
    EXPECT_EQ(allocated.claimable_children(), 0b1100'1111);
    EXPECT_TRUE(UpperWord{allocated.bits() & UpperWord::all_but_allocated(0b0011'0000)}.empty());
    EXPECT_EQ(allocated.bits() & UpperWord::all_but_allocated(0b0011'0000), cleaned.bits() + (std::uint64_t{1} << 32))
        << "the tag stays";
    const UpperWord draining = cleaned.with_drain(0b11);
    EXPECT_TRUE(draining.closed_to_allocation(0));
    EXPECT_TRUE(draining.empty()) << "DRAIN alone is not occupancy";
    EXPECT_TRUE(marked.is_open() && coalescing.is_open());
    EXPECT_FALSE(allocated.is_open() || draining.is_open());
    EXPECT_EQ(draining.without_drain(0b11).claimable_children(), 0xff);
}

TEST(UpperWord, the_tag_wraps_without_touching_the_planes) {
    const UpperWord last{std::uint64_t{0xffff'ffff} << 32 | 0b1000};
    EXPECT_EQ(last.with_mark(0).tag(), 0U);
    EXPECT_EQ(last.with_mark(0).occupied_children(), 0b1001);
}

TEST(UpperWord, groups_are_aligned) {
    EXPECT_EQ(upper::group(0, 3), 0xff);
    EXPECT_EQ(upper::group(4, 2), 0xf0);
    EXPECT_EQ(upper::group(6, 1), 0xc0);
    EXPECT_EQ(upper::free_starts(0b1111'0110, 0), 0b1111'0110);
    EXPECT_EQ(upper::free_starts(0b1111'0110, 1), 0b0101'0000) << "1 and 2 are free but not aligned together";
    EXPECT_EQ(upper::free_starts(0b1111'0110, 2), 0b0001'0000);
    EXPECT_EQ(upper::free_starts(0xff, 3), 1);
    for (unsigned children = 0; children < 256; ++children) {
        unsigned largest = 0;
        for (unsigned levels = 0; levels <= kUpperLevels; ++levels)
            for (unsigned first = 0; first < kUpperFanOut; first += 1U << levels)
                if ((upper::group(first, levels) & ~children) == 0) largest = levels + 1;
        EXPECT_EQ(upper::kFreeSizes[children], largest) << children;
    }
}

TEST(HintWord, zeroed_memory_promises_the_largest_order_and_scribbles_promise_nothing) {
    const unsigned ceiling = 11;
    EXPECT_EQ(HintWord{}.value(5, ceiling), ceiling);
    HintWord hint;
    for (unsigned child = 0; child < kUpperFanOut; ++child) hint = hint.with_value(child, child, ceiling);
    for (unsigned child = 0; child < kUpperFanOut; ++child) EXPECT_EQ(hint.value(child, ceiling), child);
    EXPECT_EQ(hint.largest_value(ceiling), 7U);
    EXPECT_EQ(HintWord{~std::uint64_t{0}}.value(0, ceiling), 0U);
}

TEST(HintWord, eight_at_once_are_what_they_are_one_by_one) {
    std::mt19937_64 random{11};
    for (int round = 0; round < 2000; ++round) {
        // Bytes of all kinds, and of the few small values that there are; also what nobody but a scribbler writes.
        HintWord hint{random() & (round % 2 == 0 ? 0x1f1f'1f1f'1f1f'1f1f : ~std::uint64_t{0})};
        for (unsigned ceiling = 1; ceiling <= kMaxOrder + 1; ++ceiling)
            for (unsigned least = 1; least <= ceiling; ++least) {
                unsigned expected = 0;
                for (unsigned child = 0; child < kUpperFanOut; ++child)
                    expected |= (hint.value(child, ceiling) >= least ? 1U : 0U) << child;
                ASSERT_EQ(hint.at_least(least, ceiling), expected)
                    << std::hex << hint.bits() << std::dec << " at least " << least << " of " << ceiling;
            }
    }
}

TEST(Layers, orders_fall_into_the_layer_that_the_picture_says) {
    const unsigned expected[] = {0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 5, 6, 6, 6};
    static_assert(std::size(expected) == kMaxOrder + 1);
    for (std::uint8_t order = 0; order <= kMaxOrder; ++order) {
        EXPECT_EQ(layer_of(Order{order}), expected[order]);
        EXPECT_LE(order, word_order(layer_of(Order{order})));
    }
}

}  // namespace
}  // namespace numacre
