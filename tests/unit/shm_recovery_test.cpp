// Death at each named crash point of each operation, one process at a time, then recovery: what was in flight is undone
// or completed, nothing is lost. (The model tests kill at every access, with others at work.)
#include <gtest/gtest.h>

#include <vector>

#include "numacre/shm/audit.hpp"
#include "numacre/shm/thread_slots.hpp"
#include "support/shm_pool.hpp"

namespace numacre {

using namespace engine;
namespace {

using test::ShmPool;

struct Died {};

// Production atomics; dies at the armed crash point.
struct CrashEnv {
    static constexpr std::uint64_t kRefusalRoundsMost = engine::ProductionEnv::kRefusalRoundsMost;
    template <class T>
    using Atomic = std::atomic<T>;
    static void pause() noexcept {}
    static void crash_point(CrashPoint point) {
        if (!armed || point != at) return;
        if (passed != 0) {
            --passed;
            return;
        }
        armed = false;
        throw Died{};
    }
    static inline bool armed = false;
    static inline CrashPoint at{};
    static inline unsigned passed = 0;  // so often it does not die there
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

// Pools whose end lies inside a leaf word, or inside a word of a higher layer.
struct OddGeometry {
    unsigned largest_order;
    std::uint64_t chunks;
};
constexpr OddGeometry kOddGeometries[] = {{0, 1},  {0, 3},   {0, 63},  {0, 65}, {0, 200}, {1, 1}, {1, 33}, {2, 1},
                                          {2, 24}, {2, 143}, {3, 5},   {3, 9},  {4, 3},   {4, 7}, {4, 33}, {5, 1},
                                          {5, 3},  {5, 17},  {6, 1},   {6, 9},  {7, 1},   {7, 5}, {8, 3},  {9, 1},
                                          {9, 13}, {10, 1},  {10, 11}, {11, 3}, {12, 3}};

// Bits of leaf words that stand for no frame: closed, whatever happens.
bool nothing_is_open_beyond_the_end(const ShmPool &pool) {
    const std::uint64_t frames = pool.geometry.frame_count;
    const std::uint64_t exist = frames % kLeafFrames;
    return exist == 0 || ~pool.node.leaf[frames / kLeafFrames].load() >> exist == 0;
}
std::uint64_t count_damage(const ShmPool &pool) {
    const NodeView<ProductionEnv> nodes[] = {pool.node};
    const NodeSnapshot snapshot = pool.snapshot();
    return Audit<ProductionEnv>{pool.view, pool.node}.run() + snapshot.damaged_entries + snapshot.lost_blocks +
           count_impossible_thread_slots<ProductionEnv>(pool.view, nodes);
}
// All frames, each once, none beyond the end.
void expect_all_frames_can_be_had(ShmPool &pool, Actor actor) {
    Buddy<ProductionEnv> buddy{pool.node, pool.view};
    std::vector<bool> had(pool.geometry.frame_count, false);
    std::vector<Block> blocks;
    for (Block block; buddy.allocate(actor, Order{0}, {}, block) == Errc::ok;) {
        ASSERT_LT(block.base.value, pool.geometry.frame_count) << "a frame that does not exist";
        ASSERT_FALSE(had[block.base.value]);
        had[block.base.value] = true;
        blocks.push_back(block);
    }
    EXPECT_EQ(blocks.size(), pool.geometry.frame_count);
    for (const Block &block : blocks) {
        Block freed;
        ASSERT_EQ(buddy.free(actor, block.base, freed), Errc::ok);
    }
}

// Calls for many blocks have intents on whole leaf words, also where the last one is not whole.
TEST(OddGeometry, a_death_in_calls_for_many_blocks_opens_nothing_beyond_the_end) {
    for (const OddGeometry &geometry : kOddGeometries)
        for (const CrashPoint point : kPoints)
            for (const unsigned deaths_passed : {0U, 1U, 2U, 5U}) {
                SCOPED_TRACE("order " + std::to_string(geometry.largest_order) + ", " +
                             std::to_string(geometry.chunks) + " chunks, crash point " +
                             std::to_string(static_cast<unsigned>(point)) + ", passed " +
                             std::to_string(deaths_passed) + " times");
                ShmPool pool{4096, std::uint64_t{4096} << geometry.largest_order, geometry.chunks};
                pool.online_all();
                Buddy<ProductionEnv> survivor{pool.node, pool.view};
                const Actor living = pool.actor(1, 1);
                const Actor doomed = pool.actor(2, 2);
                // The last frame is somebody's: so the doomed one's last leaf word is in part another's.
                Block kept{};
                const Block last{FrameIndex{pool.geometry.frame_count - 1}, Order{0}};
                const bool keeps = pool.geometry.frame_count > 1 && survivor.allocate_at(living, last, {});
                if (keeps) kept = last;
                Buddy<CrashEnv> victim{crash_view(pool), crash_pool_view(pool)};
                CrashEnv::at = point;
                CrashEnv::passed = deaths_passed;
                CrashEnv::armed = true;
                try {
                    for (const unsigned order : {0U, 1U, 3U}) {
                        if (order > geometry.largest_order) break;
                        std::vector<FrameIndex> bases(pool.geometry.frame_count);
                        for (const BlockState state : {BlockState::owned, BlockState::cached}) {
                            const auto got = victim.allocate_many(doomed, Order{order}, state, {}, bases.data(),
                                                                  static_cast<unsigned>(bases.size() >> order));
                            EXPECT_EQ(victim.free_many(doomed, state, bases.data(), got), got);
                        }
                    }
                } catch (const Died &) {
                }
                CrashEnv::armed = false;
                CrashEnv::passed = 0;
                Reclaimed total;
                ThreadSlotIndex blocked_by;
                ASSERT_EQ(pool.kill_and_recover(2, total, blocked_by), RecoveryStep::done);
                EXPECT_TRUE(nothing_is_open_beyond_the_end(pool));
                EXPECT_EQ(count_damage(pool), 0U);
                EXPECT_EQ(pool.snapshot().used_frames, keeps ? 1U : 0U);
                Block freed;
                if (keeps) {
                    ASSERT_EQ(survivor.free(living, kept.base, freed), Errc::ok);
                }
                expect_all_frames_can_be_had(pool, living);
                if (HasFatalFailure() || HasNonfatalFailure()) return;
            }
}

// Whatever the doomed was doing last, its intent may be on any word.
TEST(OddGeometry, an_intent_on_the_last_word_clears_what_there_is_of_it) {
    for (const OddGeometry &geometry : kOddGeometries) {
        SCOPED_TRACE("order " + std::to_string(geometry.largest_order) + ", " + std::to_string(geometry.chunks) +
                     " chunks");
        ShmPool pool{4096, std::uint64_t{4096} << geometry.largest_order, geometry.chunks};
        pool.online_all();
        const Actor doomed = pool.actor(2, 2);
        const std::uint64_t word = (pool.geometry.frame_count - 1) / kLeafFrames;
        const std::uint64_t first = word * kLeafFrames;
        // Claimed, and not committed.
        pool.view.threads[2].intent.store(
            Intent{IntentKind::word, NumaNode{0}, Block{FrameIndex{first}, Order{kLeafOrder}}}.bits());
        pool.node.leaf[word].fetch_or(1);
        Reclaimed total;
        ThreadSlotIndex blocked_by;
        ASSERT_EQ(pool.kill_and_recover(doomed.process.value, total, blocked_by), RecoveryStep::done);
        EXPECT_EQ(pool.node.leaf[word].load() & 1, 0U) << "what was claimed is lost";
        EXPECT_TRUE(nothing_is_open_beyond_the_end(pool));
        EXPECT_EQ(count_damage(pool), 0U);
        expect_all_frames_can_be_had(pool, pool.actor(1, 1));
    }
}

// Of one block, which the other process owns, or holds.
struct ReaderAndOwner {
    ShmPool pool{4096, 4 << 20, 1};
    Actor living, doomed;
    Buddy<ProductionEnv> survivor{pool.node, pool.view};
    Buddy<CrashEnv> victim{crash_view(pool), crash_pool_view(pool)};
    Block block, held;
    Reference name;

    ReaderAndOwner() {
        pool.online_all();
        living = pool.actor(1, 1);
        doomed = pool.actor(2, 2);
    }
    void allocate(Actor owner, Order order) {
        ASSERT_EQ(survivor.allocate(owner, order, {}, block), Errc::ok);
        name = survivor.publish(block, IndexEntry{pool.node.index_entry(block).load()});
    }
    template <class Env>
    static Errc hold(Buddy<Env> &buddy, const PoolView<Env> &view, Actor actor, Reference name, Block &held) {
        return buddy.hold(buddy.view_of(actor), view.holds[actor.thread.value], name, held);
    }
    template <class Env>
    static void drop(Buddy<Env> &buddy, const PoolView<Env> &view, Actor actor, Block block) {
        auto &words = view.holds[actor.thread.value];
        auto &slot = view.threads[actor.thread.value];
        const unsigned place = find_hold(slot, words, NumaNode{0}, block.base);
        ASSERT_NE(place, kHoldsMax);
        (void)buddy.drop(buddy.view_of(actor), slot, words, place);
    }
    void free_by(Actor owner) {
        Block freed;
        EXPECT_EQ(survivor.free(owner, block.base, freed), Errc::ok);
    }
    void recover() {
        CrashEnv::armed = false;
        Reclaimed total;
        ThreadSlotIndex blocked_by;
        ASSERT_EQ(pool.kill_and_recover(2, total, blocked_by), RecoveryStep::done);
        EXPECT_EQ(pool.view.threads[2].holds.load(), 0U);
        EXPECT_EQ(pool.view.threads[2].intent.load(), 0U);
    }
};

TEST(RecoveryOfHolds, a_dead_reader_holds_nothing_wherever_it_died) {
    for (const unsigned order : {0U, 7U, 10U})
        for (const CrashPoint point : {CrashPoint::hold_announced, CrashPoint::hold_lent, CrashPoint::drop_announced,
                                       CrashPoint::free_after_ownership, CrashPoint::drop_looked})
            for (const bool is_freed_before : {false, true}) {
                SCOPED_TRACE("order " + std::to_string(order) + ", point " + std::to_string(static_cast<int>(point)) +
                             (is_freed_before ? ", freed before" : ""));
                ReaderAndOwner both;
                both.allocate(both.living, Order{order});
                const auto view = crash_pool_view(both.pool);
                CrashEnv::at = point;
                CrashEnv::armed = true;
                bool is_freed = false;
                bool died = false;
                try {
                    ASSERT_EQ(both.hold(both.victim, view, both.doomed, both.name, both.held), Errc::ok);
                    is_freed = is_freed_before;
                    if (is_freed) both.free_by(both.living);
                    EXPECT_EQ(both.pool.snapshot().used_frames, both.block.order.frames()) << "freed under its reader";
                    EXPECT_EQ(both.pool.snapshot().lingering_frames, is_freed ? both.block.order.frames() : 0U);
                    both.drop(both.victim, view, both.doomed, both.block);
                } catch (const Died &) {
                    died = true;
                }
                EXPECT_EQ(died, point != CrashPoint::free_after_ownership || is_freed);
                both.recover();
                if (!is_freed) {
                    EXPECT_EQ(both.pool.snapshot().used_frames, both.block.order.frames());
                    both.free_by(both.living);
                }
                EXPECT_EQ(both.pool.snapshot().used_frames, 0U);
                EXPECT_EQ(count_damage(both.pool), 0U);
            }
}

TEST(RecoveryOfHolds, a_dead_owners_block_goes_with_its_last_reader_wherever_the_owner_died) {
    for (const unsigned order : {0U, 7U, 10U})
        for (const CrashPoint point :
             {CrashPoint::free_after_intent, CrashPoint::free_lingers, CrashPoint::hand_off_given /* nowhere */})
            for (const bool is_dropped_before : {false, true}) {
                SCOPED_TRACE("order " + std::to_string(order) + ", point " + std::to_string(static_cast<int>(point)) +
                             (is_dropped_before ? ", dropped before" : ""));
                ReaderAndOwner both;
                both.allocate(both.doomed, Order{order});
                ASSERT_EQ(both.hold(both.survivor, both.pool.view, both.living, both.name, both.held), Errc::ok);
                CrashEnv::at = point;
                CrashEnv::armed = true;
                try {
                    Block freed;
                    EXPECT_EQ(both.victim.free(both.doomed, both.block.base, freed), Errc::ok);
                } catch (const Died &) {
                }
                if (is_dropped_before) both.drop(both.survivor, both.pool.view, both.living, both.block);
                both.recover();
                if (!is_dropped_before) {
                    EXPECT_EQ(both.pool.snapshot().used_frames, both.block.order.frames()) << "freed under its reader";
                    EXPECT_EQ(both.pool.snapshot().lingering_frames, both.block.order.frames());
                    both.drop(both.survivor, both.pool.view, both.living, both.block);
                }
                EXPECT_EQ(both.pool.snapshot().used_frames, 0U);
                EXPECT_EQ(count_damage(both.pool), 0U);
            }
}

TEST(RecoveryOfHolds, a_seized_block_waits_for_its_readers) {
    ReaderAndOwner both;
    both.allocate(both.doomed, Order{7});
    ASSERT_EQ(both.hold(both.survivor, both.pool.view, both.living, both.name, both.held), Errc::ok);
    both.pool.view.processes[2].state.store(static_cast<std::uint64_t>(ProcessState::dead));
    const NodeView<ProductionEnv> nodes[] = {both.pool.node};
    Recovery<ProductionEnv> recovery{both.pool.view, nodes};
    Reclaimed total;
    ThreadSlotIndex blocked_by;
    unsigned seized = 0;
    const RecoveryStep step = recovery.seize_process(ProcessSlot{2}, total, blocked_by, [&](NumaNode, Block block) {
        ++seized;
        EXPECT_TRUE(block == both.block);
    });
    EXPECT_EQ(step, RecoveryStep::done);
    EXPECT_EQ(seized, 1U);
    EXPECT_TRUE(recovery.has_readers(NumaNode{0}, both.block));
    both.drop(both.survivor, both.pool.view, both.living, both.block);
    EXPECT_FALSE(recovery.has_readers(NumaNode{0}, both.block));
    EXPECT_EQ(both.pool.snapshot().used_frames, both.block.order.frames())
        << "the last drop frees nothing of the daemon's";
    EXPECT_TRUE(recovery.release(NumaNode{0}, both.block));
    EXPECT_EQ(both.pool.snapshot().used_frames, 0U);
}

TEST(RecoveryOfHolds, words_that_name_no_block_are_cleared) {
    ReaderAndOwner both;
    both.allocate(both.living, Order{0});
    auto &words = both.pool.view.holds[2];
    words.word[0].store(~std::uint64_t{0});
    words.word[5].store(HoldWord::holds(NumaNode{3}, Block{FrameIndex{1}, Order{0}}).bits());
    words.word[63].store(HoldWord::holds(NumaNode{0}, Block{FrameIndex{1}, Order{24}}).bits());
    both.pool.view.threads[2].holds.store(std::uint64_t{1} << 63 | 1U << 5 | 1);
    both.recover();
    EXPECT_EQ(both.pool.snapshot().used_frames, 1U);
}

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

// Each with its own total and its own end, in one walk.
TEST(Recovery, of_several_gives_back_each_one_s_blocks_and_waits_for_whose_way_is_blocked) {
    ShmPool pool{4096, 4 << 20, 2};
    pool.online_all();
    Buddy<ProductionEnv> buddy{pool.node, pool.view};
    const Actor actors[] = {pool.actor(1, 1), pool.actor(2, 3), pool.actor(3, 5), pool.actor(4, 6)};
    for (unsigned i = 0; i < 40; ++i) {
        Block block;
        ASSERT_EQ(buddy.allocate(actors[i % 4], Order{i % 4}, {}, block), Errc::ok);
    }
    // One of the dead had intended what the living one, which is stopped, is in the middle of as well.
    const auto intend = [&](const Actor &actor, std::uint64_t frame) {
        pool.view.threads[actor.thread.value].intent.store(
            Intent{IntentKind::allocate, NumaNode{0}, Block{FrameIndex{frame}, Order{0}}}.bits());
        pool.node.leaf[frame / kLeafFrames].fetch_or(std::uint64_t{1} << frame % kLeafFrames);
    };
    intend(actors[1], 1500);  // the living one
    intend(actors[3], 1500);

    std::vector<Departed> departed;
    for (const unsigned dead : {0U, 2U, 3U}) {
        pool.view.processes[actors[dead].process.value].state = static_cast<std::uint64_t>(ProcessState::dead);
        departed.push_back({actors[dead].process, {}, {}});
    }
    const NodeView<ProductionEnv> nodes[] = {pool.node};
    Recovery<ProductionEnv> recovery{pool.view, nodes};
    recovery.recover(departed);
    for (std::size_t i = 0; i < departed.size(); ++i) {
        const unsigned order = i == 0 ? 0 : static_cast<unsigned>(i) + 1;
        EXPECT_EQ(departed[i].total.blocks, 10U) << i;
        EXPECT_EQ(departed[i].total.frames, 10U << order) << i;
        EXPECT_EQ(departed[i].step, i == 2 ? RecoveryStep::blocked : RecoveryStep::done) << i;
    }
    EXPECT_EQ(departed[2].blocked_by, actors[1].thread);
    OwnerUsage usage[ShmPool::kProcesses] = {};
    NodeSnapshot snapshot;
    scan_node<ProductionEnv>(pool.node, snapshot, usage);
    for (const Actor &actor : actors)
        EXPECT_EQ(usage[actor.process.value].blocks, actor.process == actors[1].process ? 10U : 0U);
    for (const unsigned thread : {1U, 3U}) EXPECT_EQ(pool.view.threads[thread].owner.load(), 0U);
    for (const unsigned thread : {2U, 4U}) EXPECT_NE(pool.view.threads[thread].owner.load(), 0U);

    // Again, when the living one has gone on: totals go on as well.
    pool.view.threads[actors[1].thread.value].intent.store(0);
    recovery.recover(departed);
    for (const Departed &one : departed) {
        EXPECT_EQ(one.step, RecoveryStep::done);
        EXPECT_EQ(one.total.blocks, 10U);
    }
    EXPECT_EQ(pool.view.threads[4].owner.load(), 0U);
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
    recovery.for_each_seized([&](NumaNode, Block block, PoolAge) { found.push_back(block); });
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

// Two threads of the dead process: the first one's operation overlaps a living one's, the second one's does not.
TEST(Recovery, goes_on_past_the_thread_for_which_it_has_to_wait) {
    ShmPool pool{4096, 4 << 20, 2};
    pool.online_all();
    const auto intend = [&](unsigned thread, std::uint64_t frame) {
        pool.view.threads[thread].intent.store(
            Intent{IntentKind::allocate, NumaNode{0}, Block{FrameIndex{frame}, Order{0}}}.bits());
        pool.node.leaf[frame / kLeafFrames].fetch_or(std::uint64_t{1} << frame % kLeafFrames);
    };
    pool.actor(1, 1);
    for (const unsigned thread : {2U, 3U, 4U, 5U}) pool.actor(thread, 2);
    intend(1, 100);
    intend(2, 100);
    intend(3, 300);
    intend(4, 100);
    intend(5, 500);
    Reclaimed total;
    ThreadSlotIndex blocked_by;
    ASSERT_EQ(pool.kill_and_recover(2, total, blocked_by), RecoveryStep::blocked);
    EXPECT_EQ(blocked_by.value, 1U);
    EXPECT_EQ(pool.view.threads[3].owner.load(), 0U);
    EXPECT_EQ(pool.view.threads[5].owner.load(), 0U);
    EXPECT_EQ(pool.node.leaf[1].load(), leaf::mask(100 % kLeafFrames, 0)) << "the living one is about to have it";
    EXPECT_EQ(pool.node.leaf[4].load() | pool.node.leaf[7].load(), 0U);
    pool.view.threads[1].intent.store(0);
    ASSERT_EQ(pool.kill_and_recover(2, total, blocked_by), RecoveryStep::done);
    EXPECT_EQ(pool.view.threads[2].owner.load(), 0U);
    EXPECT_EQ(pool.view.threads[4].owner.load(), 0U);
}

TEST(Recovery, takes_the_wish_of_the_dead_back_before_it_has_to_wait) {
    ShmPool pool{4096, 4 << 20, 1};
    pool.online_all();
    const Block block{FrameIndex{100}, Order{0}};
    for (const unsigned process : {1U, 2U}) {
        pool.actor(process, static_cast<std::uint16_t>(process));
        pool.view.threads[process].intent.store(Intent{IntentKind::allocate, NumaNode{0}, block}.bits());
    }
    pool.node.leaf[100 / kLeafFrames].fetch_or(std::uint64_t{1} << 100 % kLeafFrames);
    pool.view.threads[2].waiting.store(WaitWord::waiting(Order{0}, NumaNode{0}, 7).bits());
    Reclaimed total;
    ThreadSlotIndex blocked_by;
    ASSERT_EQ(pool.kill_and_recover(2, total, blocked_by), RecoveryStep::blocked) << "thread 1 is in the way";
    EXPECT_EQ(pool.view.threads[2].waiting.load(), 0U) << "a block would go to the dead";
    EXPECT_EQ(pool.view.threads[2].owner.load(), ThreadOwner{ProcessSlot{2}}.bits());
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
