// Death at each named crash point of each operation, one process at a time, then recovery: what was in flight is undone
// or completed, nothing is lost. (The model tests kill at every access, with others at work.)
#include <gtest/gtest.h>

#include <vector>

#include "numacre/shm/thread_slots.hpp"
#include "support/shm_pool.hpp"

namespace numacre {
namespace {

using test::ShmPool;

struct Died {};

// Production atomics; dies at the armed crash point.
struct CrashEnv {
    template <class T>
    using Atomic = std::atomic<T>;
    static void pause() noexcept {}
    static void crash_point(CrashPoint point) {
        if (armed && point == at) {
            armed = false;
            throw Died{};
        }
    }
    static inline bool armed = false;
    static inline CrashPoint at{};
};

NodeView<CrashEnv> crash_view(const ShmPool &pool) {
    return NodeView<CrashEnv>::at(pool.node_memory.address(), pool.geometry, NumaNode{0}, pool.thread_slots);
}
PoolView<CrashEnv> crash_pool_view(const ShmPool &pool) {
    return PoolView<CrashEnv>::at(pool.pool_memory.address(), ShmPool::kProcesses, pool.thread_slots);
}

constexpr CrashPoint kPoints[] = {
    CrashPoint::allocate_after_intent, CrashPoint::allocate_after_claim,   CrashPoint::allocate_after_climb,
    CrashPoint::allocate_after_commit, CrashPoint::undo_after_trace,       CrashPoint::undo_after_unclaim,
    CrashPoint::free_after_intent,     CrashPoint::free_after_ownership,   CrashPoint::free_after_unclaim,
    CrashPoint::free_after_hints,      CrashPoint::clean_after_coalescing, CrashPoint::hint_lowered};

class EveryCrashPoint : public ::testing::TestWithParam<CrashPoint> {};

TEST_P(EveryCrashPoint, loses_nothing_and_leaves_the_others_alone) {
    for (const unsigned order : {0U, 3U, 6U, 7U, 9U, 10U}) {
        SCOPED_TRACE("order " + std::to_string(order));
        ShmPool pool{4096, 4 << 20, 3};
        pool.online_all();
        Chunks<ProductionEnv> chunks{pool.node, pool.view};
        Buddy<ProductionEnv> survivor{pool.node, pool.view};
        const Actor living = pool.actor(1, 1);
        const Actor doomed = pool.actor(2, 2);
        Block kept;
        ASSERT_EQ(survivor.allocate(living, Order{2}, {}, kept), Errc::ok);

        Buddy<CrashEnv> victim{crash_view(pool), crash_pool_view(pool)};
        CrashEnv::at = GetParam();
        CrashEnv::armed = true;
        bool died = false;
        try {
            // Enough to pass every point: fill up (lowers hints), free all, take a whole chunk (cleans), drain
            // (undoes), twice.
            for (int round = 0; round < 2; ++round) {
                std::vector<Block> held;
                Block block;
                while (victim.allocate(doomed, Order{order}, {}, block) == Errc::ok) held.push_back(block);
                while (!held.empty()) {
                    Block freed;
                    EXPECT_EQ(victim.free(doomed, held.back().base, freed), Errc::ok);
                    held.pop_back();
                }
                Block freed;
                EXPECT_EQ(victim.allocate(doomed, pool.geometry.largest(), {}, block), Errc::ok);
                EXPECT_EQ(victim.free(doomed, block.base, freed), Errc::ok);
                for (std::uint64_t chunk = 0; chunk < 3; ++chunk) chunks.set_drain(chunk, true);
                EXPECT_EQ(victim.allocate(doomed, Order{order}, {}, block), Errc::out_of_frames);
                for (std::uint64_t chunk = 0; chunk < 3; ++chunk) chunks.set_drain(chunk, false);
            }
        } catch (const Died &) {
            died = true;
        }
        for (std::uint64_t chunk = 0; chunk < 3; ++chunk) chunks.set_drain(chunk, false);
        // Blocks of the top layer leave no marks, and what is claimed in it is never undone.
        const bool impossible =
            order == 10 && (GetParam() == CrashPoint::clean_after_coalescing ||
                            GetParam() == CrashPoint::undo_after_trace || GetParam() == CrashPoint::undo_after_unclaim);
        EXPECT_EQ(died, !impossible);
        CrashEnv::armed = false;

        Reclaimed total;
        ThreadSlotIndex blocked_by;
        ASSERT_EQ(pool.kill_and_recover(2, total, blocked_by), RecoveryStep::done);
        NodeSnapshot after = pool.snapshot();
        EXPECT_EQ(after.used_frames, 4U) << "only the survivor's block";
        EXPECT_EQ(after.live_blocks[2], 1U);
        EXPECT_EQ(Intent{pool.view.threads[2].intent.load()}.active(), false);
        EXPECT_EQ(pool.view.threads[2].owner.load(), 0U);
        Block freed;
        ASSERT_EQ(survivor.free(living, kept.base, freed), Errc::ok);
        after = pool.snapshot();
        EXPECT_EQ(after.free_blocks[10], 3U);
        for (int chunk = 0; chunk < 3; ++chunk) {
            Block block;
            EXPECT_EQ(survivor.allocate(living, Order{10}, {}, block), Errc::ok);
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Points, EveryCrashPoint, ::testing::ValuesIn(kPoints));

TEST(Recovery, gives_back_all_blocks_of_the_dead_and_none_of_the_living) {
    ShmPool pool{4096, 4 << 20, 2};
    pool.online_all();
    Buddy<ProductionEnv> buddy{pool.node, pool.view};
    const Actor living = pool.actor(1, 1);
    const Actor doomed = pool.actor(2, 2);
    std::uint64_t frames = 0;
    for (int i = 0; i < 200; ++i) {
        Block block;
        const Order order{static_cast<std::uint32_t>(i % 4)};
        ASSERT_EQ(buddy.allocate(i % 2 == 0 ? living : doomed, order, {}, block), Errc::ok);
        if (i % 2 != 0) frames += order.frames();
    }
    Reclaimed total;
    ThreadSlotIndex blocked_by;
    ASSERT_EQ(pool.kill_and_recover(2, total, blocked_by), RecoveryStep::done);
    EXPECT_EQ(total.blocks, 100U);
    EXPECT_EQ(total.frames, frames);
    OwnerUsage usage[ShmPool::kProcesses] = {};
    NodeSnapshot snapshot;
    scan_node<ProductionEnv>(pool.node, snapshot, usage);
    EXPECT_EQ(usage[1].blocks, 100U);
    EXPECT_EQ(usage[2].blocks, 0U);
}

TEST(Recovery, what_is_seized_is_the_daemon_s_until_it_is_released) {
    ShmPool pool{4096, 4 << 20, 1};
    pool.online_all();
    Buddy<ProductionEnv> buddy{pool.node, pool.view};
    const Actor doomed = pool.actor(1, 1);
    const Actor taker = pool.actor(2, 2);
    std::vector<Block> held(3);
    for (std::size_t i = 0; i < held.size(); ++i)
        ASSERT_EQ(buddy.allocate(doomed, Order{static_cast<std::uint32_t>(4 * i)}, {}, held[i]), Errc::ok);
    const IndexEntry entry{pool.node.index_entry(held[0]).load()};
    const Reference given = buddy.publish(held[0], entry);

    pool.view.processes[1].state.store(static_cast<std::uint64_t>(ProcessState::dead));
    const NodeView<ProductionEnv> nodes[] = {pool.node};
    Recovery<ProductionEnv> recovery{pool.view, nodes};
    Reclaimed total;
    ThreadSlotIndex blocked_by;
    std::vector<Block> seized;
    ASSERT_EQ(recovery.seize_process(ProcessSlot{1}, total, blocked_by,
                                     [&](NumaNode, Block block) { seized.push_back(block); }),
              RecoveryStep::done);
    EXPECT_EQ(total.blocks, held.size());
    EXPECT_EQ(pool.snapshot().used_frames, 1U + 16 + 256);
    Block taken;
    EXPECT_EQ(buddy.take(taker, given, {}, taken), Errc::stale_ref) << "the dead one's reference";

    // Another daemon finds them.
    std::vector<Block> found;
    recovery.for_each_seized([&](NumaNode, Block block) { found.push_back(block); });
    EXPECT_EQ(found, seized);
    for (const Block &block : seized) EXPECT_TRUE(recovery.release(NumaNode{0}, block));
    for (const Block &block : seized) EXPECT_FALSE(recovery.release(NumaNode{0}, block)) << "twice";
    EXPECT_EQ(pool.snapshot().used_frames, 0U);
    Block anew;
    ASSERT_EQ(buddy.allocate(taker, held[0].order, {}, anew), Errc::ok);
    EXPECT_FALSE(recovery.release(NumaNode{0}, anew)) << "somebody else's";
    ASSERT_EQ(buddy.free(taker, anew.base, anew), Errc::ok);
    EXPECT_EQ(buddy.take(taker, given, {}, taken), Errc::stale_ref);
}

TEST(Recovery, waits_for_a_living_thread_in_the_middle_of_an_overlapping_operation) {
    ShmPool pool{4096, 4 << 20, 1};
    pool.online_all();
    const Actor living = pool.actor(1, 1);
    const Actor doomed = pool.actor(2, 2);
    Buddy<CrashEnv> victim{crash_view(pool), crash_pool_view(pool)};
    CrashEnv::at = CrashPoint::allocate_after_claim;
    CrashEnv::armed = true;
    Block block;
    EXPECT_THROW((void)victim.allocate(doomed, Order{0}, {}, block), Died);
    // A stopped client whose intent names the same frame: it may be just about to claim it.
    const Intent dead_intent{pool.view.threads[doomed.thread.value].intent.load()};
    pool.view.threads[living.thread.value].intent.store(
        Intent{IntentKind::allocate, NumaNode{0}, dead_intent.block()}.bits());
    Reclaimed total;
    ThreadSlotIndex blocked_by;
    EXPECT_EQ(pool.kill_and_recover(2, total, blocked_by), RecoveryStep::blocked);
    EXPECT_EQ(blocked_by, living.thread);
    const FrameIndex frame = dead_intent.block().base;
    // Not marked above yet, so a snapshot would not look there.
    const auto &word = pool.node.leaf[frame.value / kLeafFrames];
    EXPECT_EQ(word.load(), leaf::mask(frame.value % kLeafFrames, 0)) << "nothing may be cleared while it is blocked";
    pool.view.threads[living.thread.value].intent.store(0);
    EXPECT_EQ(pool.kill_and_recover(2, total, blocked_by), RecoveryStep::done);
    EXPECT_EQ(word.load(), 0U);
}

TEST(Recovery, waits_for_no_thread_slot_that_claims_to_be_the_daemon_s) {
    ShmPool pool{4096, 4 << 20, 1};
    pool.online_all();
    const Actor doomed = pool.actor(2, 2);
    const Block block{FrameIndex{0}, Order{0}};
    pool.node.leaf[0] = 1;
    pool.view.threads[doomed.thread.value].intent = Intent{IntentKind::allocate, NumaNode{0}, block}.bits();
    // The daemon never ends: it would stand in the way for ever.
    pool.view.threads[1].owner = ThreadOwner{kDaemonProcess}.bits();
    pool.view.threads[1].intent = Intent{IntentKind::allocate, NumaNode{0}, block}.bits();
    Reclaimed total;
    ThreadSlotIndex blocked_by;
    EXPECT_EQ(pool.kill_and_recover(2, total, blocked_by), RecoveryStep::done);
    EXPECT_EQ(pool.node.leaf[0].load(), 0U);
}

TEST(Recovery, gives_back_a_thread_slot_wherever_its_claimant_died) {
    for (const CrashPoint point : {CrashPoint::thread_slot_after_mark, CrashPoint::thread_slot_after_claim}) {
        SCOPED_TRACE(static_cast<unsigned>(point));
        ShmPool pool{4096, 4 << 20, 1};
        pool.view.processes[1].state.store(static_cast<std::uint64_t>(ProcessState::active));
        CrashEnv::at = point;
        CrashEnv::armed = true;
        EXPECT_THROW((void)claim_thread_slot(crash_pool_view(pool), ProcessSlot{1}), Died);
        Reclaimed total;
        ThreadSlotIndex blocked_by;
        ASSERT_EQ(pool.kill_and_recover(1, total, blocked_by), RecoveryStep::done);
        for (std::uint32_t thread = 1; thread < pool.thread_slots; ++thread)
            EXPECT_EQ(claim_thread_slot(pool.view, ProcessSlot{2}).value, thread);
        EXPECT_EQ(claim_thread_slot(pool.view, ProcessSlot{2}), kDaemonThread) << "all are taken";
        EXPECT_EQ(pool.view.threads_in_use_bound(), pool.thread_slots);
    }
}

TEST(Recovery, never_takes_offline_chunks_for_somebody_s) {
    ShmPool pool{4096, 4 << 20, 2};
    (void)pool.actor(1, 1);
    Reclaimed total;
    ThreadSlotIndex blocked_by;
    ASSERT_EQ(pool.kill_and_recover(1, total, blocked_by), RecoveryStep::done);
    EXPECT_EQ(total.blocks, 0U);
    EXPECT_EQ(pool.snapshot().offline_frames, pool.geometry.frame_count);
}

}  // namespace
}  // namespace numacre
