// Resizes that do not get where they were to: what is left of them. On small pages, over a synthetic numa node, in
// steps of 16 MiB (kStepBytes of sizing.cpp).
#include "sizing.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/stat.h>

#include "numacre/shm/buddy.hpp"

namespace numacre::daemon {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr NumaNode kNode{0};

class SizingTest : public testing::Test {
protected:
    void SetUp() override {
        auto topology = make_topology("synthetic:1x64M");
        ASSERT_TRUE(topology);
        topology_ = std::move(*topology);
        PoolSpec spec;
        spec.capacity_bytes = 128 * kMiB;
        spec.online_bytes = 8 * kMiB;
        spec.backing = wire::Backing::small_pages;
        auto made = ManagedPool::create(spec, *topology_, hugepages_, worker_);
        ASSERT_TRUE(made) << made.error().message;
        pool_ = *made;
        shared_ =
            PoolView<ProductionEnv>::at(pool_->pool_region().address(), pool_->process_slots(), pool_->thread_slots());
        const auto client = pool_->seat(1, Peer{}, wire::Tier::trusted);
        ASSERT_TRUE(client);
        actor_ = {ThreadSlotIndex{1}, client->slot};
        shared_.threads[1].owner.store(ThreadOwner{client->slot}.bits());
        shared_.header->thread_high_water.store(2);
    }

    NodeMemory &memory() { return pool_->node_memory(kNode); }
    Buddy<ProductionEnv> buddy() { return {memory().view(), shared_}; }
    std::uint64_t online() { return memory().online_bytes(); }
    // What the kernel has put behind the frames.
    std::uint64_t populated() {
        struct stat status{};
        EXPECT_EQ(::fstat(memory().data().fd(), &status), 0);
        return static_cast<std::uint64_t>(status.st_blocks) * 512;
    }
    void expect_online(std::uint64_t bytes) {
        EXPECT_EQ(online(), bytes);
        EXPECT_EQ(populated(), bytes);
        EXPECT_EQ(topology_->unbooked_bytes(kNode), 64 * kMiB - bytes);
        EXPECT_FALSE(pool_->status().corrupt) << pool_->status().corrupt_reason;
    }

    // on_step: as progress, with the number of the step from 0.
    Answer<void> resize(std::uint64_t bytes, const std::function<bool(int, const ResizeStep &)> &on_step = {}) {
        steps_.clear();
        return resize_numa_node(*pool_, worker_, kNode, bytes, false, [&](const ResizeStep &step) {
            steps_.push_back(step);
            return !on_step || on_step(static_cast<int>(steps_.size()) - 1, step);
        });
    }

    Block allocate(std::uint64_t bytes) {
        Block block;
        const auto frames = bytes >> pool_->geometry().frame_shift;
        EXPECT_EQ(buddy().allocate(actor_, Order{static_cast<std::uint8_t>(std::countr_zero(frames))}, {}, block),
                  Errc::ok);
        return block;
    }
    void free(Block block) {
        Block freed;
        EXPECT_EQ(buddy().free(actor_, block.base, freed), Errc::ok);
    }

    std::unique_ptr<Topology> topology_;
    Hugepages hugepages_{false};
    Worker worker_;
    std::shared_ptr<ManagedPool> pool_;
    PoolView<ProductionEnv> shared_;
    Actor actor_;
    std::vector<ResizeStep> steps_;
};

TEST_F(SizingTest, a_growth_that_fails_half_way_goes_back) {
    // 8 + 3 x 16 MiB fit into the numa node, the fourth step does not.
    const auto grown = resize(88 * kMiB);
    ASSERT_FALSE(grown);
    EXPECT_EQ(grown.error().code, Errc::out_of_frames);
    EXPECT_THAT(grown.error().message,
                AllOf(HasSubstr("8M left"), HasSubstr("48M that had come online went back, 8M are online, as before")));
    ASSERT_EQ(steps_.size(), 4U);
    EXPECT_EQ(steps_[2].online_bytes, 56 * kMiB);
    EXPECT_EQ(steps_[3].online_bytes, 8 * kMiB);
    EXPECT_EQ(steps_[3].undone_bytes, 48 * kMiB);
    EXPECT_TRUE(steps_[3].done);
    EXPECT_EQ(steps_[3].note, grown.error().message);
    expect_online(8 * kMiB);
    ASSERT_TRUE(resize(64 * kMiB));
    expect_online(64 * kMiB);
}

TEST_F(SizingTest, a_growth_that_is_cancelled_after_any_step_goes_back) {
    for (int last = 0; last < 3; ++last) {
        const auto grown = resize(64 * kMiB, [&](int number, const ResizeStep &) { return number < last; });
        ASSERT_FALSE(grown);
        EXPECT_EQ(grown.error().code, Errc::timed_out);
        ASSERT_EQ(steps_.size(), static_cast<std::size_t>(last) + 2);
        EXPECT_EQ(steps_.back().undone_bytes, (static_cast<std::uint64_t>(last) + 1) * 16 * kMiB);
        EXPECT_TRUE(steps_.back().done);
        expect_online(8 * kMiB);
    }
}

TEST_F(SizingTest, what_clients_use_of_a_growth_stays_and_the_failure_says_so) {
    for (int i = 0; i < 2; ++i) allocate(4 * kMiB);  // all that is online
    Block taken;
    const auto grown = resize(88 * kMiB, [&](int number, const ResizeStep &) {
        if (number == 0) taken = allocate(4 * kMiB);
        return true;
    });
    ASSERT_FALSE(grown);
    EXPECT_THAT(grown.error().message, HasSubstr("44M that had come online went back, 12M stay online"));
    EXPECT_EQ(steps_.back().online_bytes, 12 * kMiB);
    expect_online(12 * kMiB);
    free(taken);
    ASSERT_TRUE(resize(8 * kMiB));
    expect_online(8 * kMiB);
}

TEST_F(SizingTest, a_shrink_that_is_blocked_opens_again_what_it_drained) {
    ASSERT_TRUE(resize(16 * kMiB));
    std::vector<Block> blocks;
    for (int i = 0; i < 4; ++i) {  // a little of each unit
        blocks.push_back(allocate(2 * kMiB));
        blocks.push_back(allocate(2 * kMiB));
    }
    for (std::size_t i = 0; i < blocks.size(); i += 2) free(blocks[i]);
    bool was_draining = false;
    const auto shrunk = resize(8 * kMiB, [&](int, const ResizeStep &step) {
        if (step.note == "draining what is in use")
            worker_.run([&] {
                for (std::uint64_t unit = 0; unit < 4; ++unit) was_draining |= memory().drain_of(unit) == Drain::resize;
                return true;
            });
        return true;
    });
    ASSERT_FALSE(shrunk);
    EXPECT_EQ(shrunk.error().code, Errc::contended);
    EXPECT_TRUE(was_draining);
    for (int i = 0; i < 4; ++i) allocate(2 * kMiB);
    expect_online(16 * kMiB);
}

TEST_F(SizingTest, a_shrink_keeps_allocations_out_of_what_it_waits_for) {
    ASSERT_TRUE(resize(16 * kMiB));
    std::vector<Block> blocks;
    for (int i = 0; i < 4; ++i) {
        blocks.push_back(allocate(2 * kMiB));
        blocks.push_back(allocate(2 * kMiB));
    }
    for (std::size_t i = 0; i < blocks.size(); i += 2) free(blocks[i]);
    // Somebody who frees one block for each that it allocates: without the drain the units would never empty.
    std::vector<Block> held;
    for (std::size_t i = 1; i < blocks.size(); i += 2) held.push_back(blocks[i]);
    const auto shrunk = resize(8 * kMiB, [&](int, const ResizeStep &step) {
        if (step.done || step.note.empty()) return true;
        for (Block &block : held) {
            free(block);
            block = allocate(2 * kMiB);
        }
        return true;
    });
    EXPECT_TRUE(shrunk) << shrunk.error().message;
    expect_online(8 * kMiB);
}

TEST_F(SizingTest, a_shrink_that_is_cancelled_keeps_what_it_has_and_drains_nothing) {
    ASSERT_TRUE(resize(64 * kMiB));
    const auto shrunk = resize(8 * kMiB, [](int, const ResizeStep &) { return false; });
    ASSERT_FALSE(shrunk);
    EXPECT_EQ(shrunk.error().code, Errc::timed_out);
    EXPECT_THAT(shrunk.error().message, HasSubstr("48M stay online"));
    expect_online(48 * kMiB);
    for (int i = 0; i < 12; ++i) allocate(4 * kMiB);
}

}  // namespace
}  // namespace numacre::daemon
