// Many threads on one numa node's tree, real hardware reorderings. Every frame has an owner stamp that only its owner
// writes; a stamp that changes under an owner is a block owned twice. Bounded by operations; NUMACRE_SEED replays.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "numacre/shm/audit.hpp"
#include "support/shm_pool.hpp"

namespace numacre {

using namespace engine;
namespace {

using test::ShmPool;

std::uint64_t seed_from_environment() {
    const char *text = std::getenv("NUMACRE_SEED");
    return text != nullptr ? std::strtoull(text, nullptr, 0) : 20261120;
}

// What the daemon would take for damage, looked for beside running clients until they are done. Of a sound pool: never
// anything, not even once.
std::uint64_t audit_until(const ShmPool &pool, const std::atomic<bool> &done) {
    std::uint64_t findings = 0;
    const std::array<NodeView<ProductionEnv>, 1> nodes{pool.node};
    do {
        findings += Audit<ProductionEnv>(pool.view, pool.node).run();
        findings += count_impossible_thread_slots<ProductionEnv>(pool.view, nodes);
        std::array<OwnerUsage, ShmPool::kProcesses> usage{};
        NodeSnapshot snapshot;
        scan_node<ProductionEnv>(pool.node, snapshot, usage);
        findings += snapshot.damaged_entries + snapshot.lost_blocks;
        for (std::size_t i = 0; i < snapshot.unheld_count; ++i)
            if (is_taken_by_nobody(pool.view, pool.node, snapshot.unheld[i])) ++findings;
    } while (!done.load(std::memory_order_relaxed));
    return findings;
}

struct Load {
    unsigned largest_order;
    std::uint64_t chunks;
    unsigned threads;
    unsigned order_limit;   // mostly orders below this, sometimes any
    unsigned keep_percent;  // how full to run
};

class SharedTree : public ::testing::TestWithParam<Load> {};

TEST_P(SharedTree, never_owns_a_frame_twice_and_ends_empty) {
    const Load load = GetParam();
    const std::uint64_t seed = seed_from_environment();
    SCOPED_TRACE("replay: NUMACRE_SEED=" + std::to_string(seed));
    ShmPool pool{4096, std::uint64_t{4096} << load.largest_order, load.chunks, load.threads + 2};
    pool.online_all();

    std::vector<std::atomic<std::uint32_t>> stamps(pool.geometry.frame_count);
    std::atomic<std::uint64_t> faults{0};
    const unsigned operations = 200'000 / load.threads;
    const auto work = [&](unsigned index) {
        const Actor actor = pool.actor(index + 1, 1);
        Buddy<ProductionEnv> buddy{pool.node, pool.view};
        std::mt19937_64 random{seed + index};
        std::vector<Block> held;
        const std::uint64_t keep = pool.geometry.frame_count * load.keep_percent / 100 / load.threads;
        std::uint64_t frames_held = 0;
        const auto stamp = static_cast<std::uint32_t>(index + 1);
        for (unsigned i = 0; i < operations; ++i) {
            if (frames_held < keep ? random() % 8 != 0 : random() % 8 == 0) {
                const unsigned limit = random() % 16 == 0 ? load.largest_order : load.order_limit;
                const Order order{static_cast<std::uint32_t>(random() % (limit + 1))};
                Block block;
                if (buddy.allocate(actor, order, {}, block) != Errc::ok) continue;
                for (std::uint64_t f = 0; f < order.frames(); ++f)
                    if (stamps[block.base.value + f].exchange(stamp, std::memory_order_relaxed) != 0) ++faults;
                held.push_back(block);
                frames_held += order.frames();
            } else if (!held.empty()) {
                std::swap(held[random() % held.size()], held.back());
                const Block block = held.back();
                held.pop_back();
                frames_held -= block.order.frames();
                for (std::uint64_t f = 0; f < block.order.frames(); ++f)
                    if (stamps[block.base.value + f].exchange(0, std::memory_order_relaxed) != stamp) ++faults;
                Block freed;
                if (buddy.free(actor, block.base, freed) != Errc::ok || !(freed == block)) ++faults;
            }
        }
        for (const Block block : held) {
            for (std::uint64_t f = 0; f < block.order.frames(); ++f)
                if (stamps[block.base.value + f].exchange(0, std::memory_order_relaxed) != stamp) ++faults;
            Block freed;
            if (buddy.free(actor, block.base, freed) != Errc::ok) ++faults;
        }
    };
    std::vector<std::thread> threads;
    for (unsigned index = 0; index < load.threads; ++index) threads.emplace_back(work, index);
    std::atomic<bool> done{false};
    std::uint64_t findings = 0;
    std::thread auditor([&] { findings = audit_until(pool, done); });
    for (std::thread &thread : threads) thread.join();
    done = true;
    auditor.join();

    EXPECT_EQ(faults.load(), 0U);
    EXPECT_EQ(findings, 0U) << "a sound pool was taken for a damaged one";
    const NodeSnapshot after = pool.snapshot();
    EXPECT_EQ(after.used_frames, 0U);
    EXPECT_EQ(after.damaged_entries, 0U);
    // All coalesced: nothing but largest blocks, and every one of them can be had.
    EXPECT_EQ(after.free_blocks[load.largest_order], load.chunks);
    Buddy<ProductionEnv> buddy{pool.node, pool.view};
    for (std::uint64_t chunk = 0; chunk < load.chunks; ++chunk) {
        Block block;
        ASSERT_EQ(buddy.allocate(pool.actor(1, 1), pool.geometry.largest(), {}, block), Errc::ok) << "chunk " << chunk;
    }
    const CounterTotals totals = fold_counters(pool.node, pool.view.threads_in_use_bound());
    for (unsigned order = 0; order < load.largest_order; ++order)
        EXPECT_EQ(totals.allocations[order], totals.frees[order]) << "order " << order;
}

// Blocks of one leaf word by the dozen, chunks that come and go, threads whose process is recovered.
TEST(Audit, takes_no_step_of_clients_or_daemon_for_damage) {
    const std::uint64_t seed = seed_from_environment();
    SCOPED_TRACE("replay: NUMACRE_SEED=" + std::to_string(seed));
    constexpr unsigned kClients = 3;
    ShmPool pool{4096, 4096 << 8, 6, kClients + 2};
    pool.online_all();
    std::vector<Actor> actors;
    for (unsigned index = 0; index < kClients; ++index) actors.push_back(pool.actor(index + 1, index + 1));
    std::vector<std::thread> threads;
    for (unsigned index = 0; index < kClients; ++index) {
        threads.emplace_back([&, index] {
            Buddy<ProductionEnv> buddy{pool.node, pool.view};
            std::mt19937_64 random{seed + index};
            std::array<FrameIndex, 40> bases{};
            for (unsigned i = 0; i < 100'000; ++i) {
                const Order order{static_cast<std::uint32_t>(random() % 9)};
                Block block;
                if (order.value <= 3) {
                    const auto state = random() % 2 != 0 ? BlockState::cached : BlockState::owned;
                    const unsigned got =
                        buddy.allocate_many(actors[index], order, state, {}, bases.data(), bases.size());
                    buddy.free_many(actors[index], state, bases.data(), got);
                } else if (buddy.allocate(actors[index], order, {}, block) == Errc::ok) {
                    buddy.free(actors[index], block.base, block);
                }
            }
        });
    }
    std::atomic<bool> done{false};
    std::thread daemon([&] {
        Chunks<ProductionEnv> chunks{pool.node, pool.view};
        for (std::uint64_t chunk = 0; !done.load(std::memory_order_relaxed); chunk = (chunk + 1) % 6) {
            chunks.set_drain(chunk, true);
            if (chunks.try_take_offline(chunk)) chunks.bring_online(chunk);
            chunks.set_drain(chunk, false);
        }
    });
    std::uint64_t findings = 0;
    std::thread auditor([&] { findings = audit_until(pool, done); });
    for (std::thread &thread : threads) thread.join();
    done = true;
    daemon.join();
    auditor.join();
    EXPECT_EQ(findings, 0U) << "a sound pool was taken for a damaged one";
}

INSTANTIATE_TEST_SUITE_P(Loads, SharedTree,
                         ::testing::Values(Load{10, 4, 2, 3, 60}, Load{10, 2, 4, 10, 95}, Load{6, 3, 4, 2, 99},
                                           Load{9, 1, 3, 9, 80}, Load{13, 1, 4, 12, 90}, Load{3, 5, 4, 3, 99},
                                           Load{7, 2, 4, 7, 90}),
                         [](const auto &load) {
                             return "largest" + std::to_string(load.param.largest_order) + "_threads" +
                                    std::to_string(load.param.threads) + "_full" +
                                    std::to_string(load.param.keep_percent);
                         });

}  // namespace
}  // namespace numacre
