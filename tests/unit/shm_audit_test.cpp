#include "numacre/shm/audit.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <vector>

#include "support/shm_pool.hpp"

namespace numacre {

using namespace engine;
namespace {

using test::ShmPool;
using Env = ProductionEnv;

// Three layers of words, one chunk of three offline, a block of each layer held.
struct AuditedPool : ::testing::Test {
    ShmPool pool{4096, std::uint64_t{4096} << 10, 3};
    Actor actor = pool.actor(1, 1);
    Buddy<Env> buddy{pool.node, pool.view};
    Block single, middle;

    AuditedPool() {
        Chunks<Env> chunks{pool.node, pool.view};
        EXPECT_TRUE(chunks.bring_online(0) && chunks.bring_online(1));
        EXPECT_EQ(buddy.allocate(actor, Order{0}, {}, single), Errc::ok);
        EXPECT_EQ(buddy.allocate(actor, Order{7}, {}, middle), Errc::ok);
    }

    std::uint64_t words() const { return Audit<Env>(pool.view, pool.node).run(); }
    std::uint64_t slots() const {
        const std::array<NodeView<Env>, 1> nodes{pool.node};
        return count_impossible_thread_slots<Env>(pool.view, nodes);
    }
    std::uint64_t lost() const { return pool.snapshot().lost_blocks; }
    std::uint64_t nobodys() const {
        const NodeSnapshot snapshot = pool.snapshot();
        std::uint64_t count = 0;
        for (std::size_t i = 0; i < snapshot.unheld_count; ++i)
            count += is_taken_by_nobody(pool.view, pool.node, snapshot.unheld[i]) ? 1 : 0;
        return count;
    }
    std::atomic<std::uint64_t> &upper_above(Block block, unsigned layer) {
        return pool.node.upper[layer][block.base.value >> word_order(layer)];
    }
    unsigned child_of(Block block, unsigned layer) const {
        return static_cast<unsigned>(block.base.value >> word_order(layer - 1)) % kUpperFanOut;
    }
};

TEST_F(AuditedPool, nothing_is_found_in_a_sound_pool) {
    EXPECT_EQ(words(), 0U);
    EXPECT_EQ(slots(), 0U);
    EXPECT_EQ(nobodys(), 0U);
    EXPECT_EQ(lost(), 0U);
    Block freed;
    ASSERT_EQ(buddy.free(actor, single.base, freed), Errc::ok);
    EXPECT_EQ(words(), 0U) << "marks above what is free are kept";
    EXPECT_EQ(lost(), 0U);
}

TEST_F(AuditedPool, a_lost_mark_above_a_live_block_is_found_at_each_level) {
    for (unsigned layer = 1; layer <= pool.node.top_layer; ++layer) {
        auto &word = upper_above(single, layer);
        const std::uint64_t before = word.load();
        word = UpperWord{before}.without_mark(child_of(single, layer)).bits();
        EXPECT_GE(words(), 1U) << "layer " << layer;
        word = before;
    }
    auto &word = upper_above(middle, 2);
    word = UpperWord{word.load()}.without_mark(child_of(middle, 2)).bits();
    EXPECT_GE(words(), 1U);
}

TEST_F(AuditedPool, frames_without_a_mark_above_are_nobody_s_unless_a_claim_is_about_to_climb) {
    const FrameIndex frame{(single.base.value + 2 * kLeafFrames) % pool.geometry.chunk_frames()};
    pool.node.leaf[frame.value / kLeafFrames] = leaf::mask(frame.value % kLeafFrames, 0);
    EXPECT_EQ(words(), 1U);
    pool.view.threads[1].intent = Intent{IntentKind::allocate, NumaNode{0}, Block{frame, Order{0}}}.bits();
    EXPECT_EQ(words(), 0U);
}

TEST_F(AuditedPool, a_live_block_that_has_lost_frames_is_found_in_each_layer) {
    Block run, large;
    ASSERT_EQ(buddy.allocate(actor, Order{3}, {}, run), Errc::ok);
    ASSERT_EQ(buddy.allocate(actor, Order{8}, {}, large), Errc::ok);
    ASSERT_EQ(lost(), 0U);
    auto &word = pool.node.leaf[run.base.value / kLeafFrames];
    const std::uint64_t before = word.load();
    const auto frame = static_cast<unsigned>(run.base.value % kLeafFrames);
    for (const std::uint64_t gone :
         {leaf::mask(frame, 0), leaf::mask(frame + 7, 0), leaf::mask(frame, 2), leaf::mask(frame, 3)}) {
        word = before & ~gone;
        EXPECT_EQ(lost(), 1U) << std::hex << gone;
    }
    word = 0;
    EXPECT_GE(lost(), 1U) << "nothing is left of the word, but it is marked";
    word = before;

    for (const Block block : {middle, large}) {
        auto &upper = upper_above(block, 1);
        const std::uint64_t whole = upper.load();
        const unsigned child = child_of(block, 1);
        const unsigned last = child + (2U << (block.order.value - 7)) - 1;
        for (const unsigned gone : {1U << child, 1U << last, upper::group(child, block.order.value - 6U) + 0U}) {
            upper = (whole & UpperWord::all_but_allocated(static_cast<std::uint8_t>(gone)));
            EXPECT_EQ(lost(), 1U) << "order " << +block.order.value << ", children " << std::hex << gone;
        }
        upper = whole;
    }
    // The third chunk is offline: a block of the top layer.
    auto &top = pool.node.upper[2][0];
    top = (top.load() & UpperWord::all_but_allocated(0x30));
    EXPECT_EQ(lost(), 1U);
}

TEST_F(AuditedPool, a_block_that_is_being_freed_or_not_yet_held_has_lost_nothing) {
    for (const Block block : {single, middle}) {
        auto &entry = pool.node.index_entry(block);
        const IndexEntry held{entry.load()};
        const unsigned layer = layer_of(block.order);
        auto &word = layer == 0 ? pool.node.leaf[block.base.value / kLeafFrames] : upper_above(block, layer);
        const std::uint64_t whole = word.load();
        word = layer == 0 ? 0 : (whole & UpperWord::all_but_allocated(0xff));
        ASSERT_EQ(lost(), 1U);
        entry = IndexEntry::freeing(actor.thread, block.order, held.generation()).bits();
        EXPECT_EQ(lost(), 0U);
        entry = 0;
        EXPECT_EQ(lost(), 0U);
        // In a cache it is its process's as before.
        if (layer == 0) {
            entry = IndexEntry::cached(held.owner(), actor.thread, held.order(), held.generation()).bits();
            EXPECT_EQ(lost(), 1U);
        }
        word = whole;
        entry = held.bits();
        EXPECT_EQ(lost(), 0U);
    }
}

TEST_F(AuditedPool, an_impossible_entry_of_a_free_frame_is_found) {
    const FrameIndex frame{single.base.value | (kLeafFrames - 1)};
    ASSERT_EQ(pool.snapshot().damaged_entries, 0U);
    pool.node.index[0][frame.value] = IndexEntry::owned(ProcessSlot{1}, Order{1}, 1, {}).bits();
    EXPECT_EQ(pool.snapshot().damaged_entries, 1U) << "no block of two frames begins there";
}

TEST_F(AuditedPool, upper_words_that_nobody_writes_are_found) {
    auto &word = upper_above(middle, 1);
    const std::uint64_t before = word.load();
    const unsigned taken = child_of(middle, 1);
    for (const std::uint64_t bit : {std::uint64_t{1} << taken,            // a mark beside F
                                    std::uint64_t{1} << (16 + taken),     // COAL without a mark
                                    std::uint64_t{1} << (24 + taken)}) {  // DRAIN where there are no chunks
        word = before | bit;
        EXPECT_EQ(words(), 1U) << std::hex << bit;
    }
    word = before;
    // Four chunks fit into the top word, three exist.
    auto &top = pool.node.upper[2][0];
    top = top.load() & ~(std::uint64_t{1} << 15);
    EXPECT_EQ(words(), 1U);
}

TEST_F(AuditedPool, hints_above_the_ceiling_are_found_those_below_are_anybodys_guess) {
    pool.node.hint[2][0] = 11;
    EXPECT_EQ(words(), 0U);
    pool.node.hint[2][0] = 12;
    EXPECT_EQ(words(), 1U);
}

TEST_F(AuditedPool, frames_that_nobody_has_are_found_unless_an_intent_speaks_for_them) {
    // A neighbour of a block that is held: marked above.
    const FrameIndex frame{single.base.value | (kLeafFrames - 1)};
    pool.node.leaf[frame.value / kLeafFrames] |= leaf::mask(kLeafFrames - 1, 0);
    EXPECT_EQ(nobodys(), 1U);
    auto &intent = pool.view.threads[1].intent;
    intent = Intent{IntentKind::allocate, NumaNode{0}, Block{FrameIndex{frame.value - 1}, Order{1}}}.bits();
    EXPECT_EQ(nobodys(), 0U);
    intent = Intent{IntentKind::allocate, NumaNode{1}, Block{FrameIndex{frame.value - 1}, Order{1}}}.bits();
    EXPECT_EQ(nobodys(), 1U) << "of another numa node";
    intent = 0;

    auto &word = upper_above(middle, 1);
    word = UpperWord{word.load()}.with_allocated(0x80).bits();
    EXPECT_EQ(nobodys(), 2U);
}

TEST_F(AuditedPool, known_intents_cover_what_some_intent_overlaps_now) {
    pool.view.header->thread_high_water = pool.thread_slots;
    std::mt19937_64 random(20261125);
    for (int round = 0; round < 200; ++round) {
        std::vector<Intent> intents;
        for (std::uint32_t thread = 1; thread < pool.view.threads_in_use_bound(); ++thread) {
            // As scribbled: not aligned, beyond the end, of another numa node.
            const Block block{FrameIndex{random() % 4000}, Order{static_cast<std::uint32_t>(random() % 6)}};
            const Intent intent{IntentKind{static_cast<std::uint8_t>(random() % 4)},
                                NumaNode{static_cast<std::uint8_t>(random() % 2)}, block};
            pool.view.threads[thread].intent = intent.bits();
            if (intent.active() && intent.numa_node() == pool.node.numa_node) intents.push_back(intent);
        }
        const KnownIntents<Env> known(pool.view, pool.node.numa_node);
        for (int question = 0; question < 100; ++question) {
            const Block frames{FrameIndex{random() % 4000}, Order{static_cast<std::uint32_t>(random() % 4)}};
            const bool is_covered =
                std::ranges::any_of(intents, [&](const Intent &intent) { return overlaps(intent.block(), frames); });
            ASSERT_EQ(known.covers(frames), is_covered) << frames.base.value << " order " << frames.order.value;
        }
        for (std::uint32_t thread = 1; thread < pool.view.threads_in_use_bound(); ++thread)
            pool.view.threads[thread].intent = 0;
        ASSERT_FALSE(known.covers(Block{FrameIndex{0}, Order{12}})) << "of threads that have gone on since";
    }
}

TEST_F(AuditedPool, thread_slots_that_say_what_no_client_says_are_found) {
    auto &slot = pool.view.threads[1];
    const std::uint64_t owner = slot.owner.load();
    for (const std::uint64_t wrong : {std::uint64_t{1}, ThreadOwner{ProcessSlot{ShmPool::kProcesses}}.bits(),
                                      ThreadOwner{kDaemonProcess}.bits(), owner | std::uint64_t{1} << 40}) {
        slot.owner = wrong;
        EXPECT_EQ(slots(), 1U) << std::hex << wrong;
    }
    slot.owner = 0;
    EXPECT_EQ(slots(), 0U);
    pool.view.threads[0].owner = 0;
    EXPECT_EQ(slots(), 1U) << "the daemon's own";
    pool.view.threads[0].owner = ThreadOwner{kDaemonProcess}.bits();

    const auto intent = [](IntentKind kind, unsigned node, std::uint64_t base, unsigned order) {
        return Intent{kind, NumaNode{static_cast<std::uint8_t>(node)}, Block{FrameIndex{base}, Order{order}}}.bits();
    };
    for (const std::uint64_t wrong : {intent(IntentKind::free, 1, 0, 0), intent(IntentKind::free, 0, 1, 1),
                                      intent(IntentKind::allocate, 0, 0, 11), intent(IntentKind::allocate, 0, 3072, 0),
                                      intent(IntentKind::word, 0, 64, 5), intent(IntentKind::word, 0, 32, 6)}) {
        slot.intent = wrong;
        EXPECT_EQ(slots(), 1U) << std::hex << wrong;
    }
    slot.intent = intent(IntentKind::word, 0, 64, 6);
    EXPECT_EQ(slots(), 0U);
    slot.hint_work = HintWork{0}.begun(9, 0).bits();
    EXPECT_EQ(slots(), 1U);
}

TEST(Audit, of_words_that_nobody_has_enough_are_counted) {
    ShmPool pool{4096, std::uint64_t{4096} << 10, 8};
    pool.online_all();
    for (std::uint64_t word = 0; word < 100; ++word) pool.node.leaf[word] |= 1U << 5;
    EXPECT_EQ(Audit<Env>(pool.view, pool.node).run(), 64U);
}

TEST(Audit, frames_beyond_the_capacity_that_look_free_are_found) {
    ShmPool pool{4096, 4096 << 3, 5};  // 40 frames: the only leaf word has 24 more
    pool.online_all();
    EXPECT_EQ(Audit<Env>(pool.view, pool.node).run(), 0U);
    pool.node.leaf[0] &= ~(std::uint64_t{1} << 40);
    EXPECT_EQ(Audit<Env>(pool.view, pool.node).run(), 1U);
}

TEST(Audit, blocks_of_process_slots_that_there_are_not_are_found_by_the_scan) {
    ShmPool pool{4096, 4096 << 3, 5};
    pool.online_all();
    Buddy<Env> buddy{pool.node, pool.view};
    Block block;
    ASSERT_EQ(buddy.allocate(pool.actor(1, 1), Order{0}, {}, block), Errc::ok);
    pool.node.index_entry(block) = IndexEntry::owned(ProcessSlot{ShmPool::kProcesses}, Order{0}, 1, {}).bits();
    std::array<OwnerUsage, ShmPool::kProcesses> usage{};
    NodeSnapshot snapshot;
    scan_node<Env>(pool.node, snapshot, usage);
    EXPECT_EQ(snapshot.damaged_entries, 1U);
}

}  // namespace
}  // namespace numacre
