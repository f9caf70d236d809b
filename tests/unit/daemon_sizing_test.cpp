// Resizes that do not get where they were to: what is left of them. On small pages, over a synthetic numa node, in
// steps of 16 MiB (kStepBytes of sizing.cpp).
#include "numacre/shm/account.hpp"
#include "pool/sizing.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/stat.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <initializer_list>
#include <map>
#include <string>
#include <vector>

#include "managed_pool_fixture.hpp"

namespace numacre::daemon {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class SizingTest : public ManagedPoolTest {
protected:
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
        return resize_numa_node(*pool_, kNode, bytes, false, [&](const ResizeStep &step) {
            steps_.push_back(step);
            return !on_step || on_step(static_cast<int>(steps_.size()) - 1, step);
        });
    }

    // To somebody who is not here.
    Answer<void> reserve(std::uint64_t bytes) {
        return pool_->reserve({.kind = Holder::Kind::user, .pool = "default", .uid = 4711}, bytes);
    }
    std::uint64_t free_bytes() { return pool_->geometry().bytes_of(pool_->status().nodes[0].snapshot.free_frames); }

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

TEST_F(SizingTest, a_resize_that_waited_while_the_pool_was_deleted_is_refused) {
    ASSERT_TRUE(pool_->close_door(true));
    pool_->announce_deletion();
    for (const std::uint64_t wanted : {4 * kMiB, 64 * kMiB}) {
        const auto resized = resize(wanted);
        ASSERT_FALSE(resized);
        EXPECT_EQ(resized.error().code, Errc::no_such_pool);
    }
    expect_online(8 * kMiB);
}

TEST_F(SizingTest, a_drain_that_a_shrink_has_fulfilled_takes_nothing_that_a_growth_brings_back) {
    const Block held = allocate(4 * kMiB);
    ASSERT_TRUE(drain_chunk(*pool_, kNode, held.base.value / pool_->geometry().chunk_frames(), false));
    free(held);
    ASSERT_TRUE(resize(0));
    ASSERT_TRUE(resize(8 * kMiB));
    EXPECT_FALSE(pool_->worker().run([&] { return finish_drains(*pool_); }));
    expect_online(8 * kMiB);
}

TEST_F(SizingTest, so_many_calls_may_wait_for_one_pool_and_no_more) {
    std::deque<ManagedPool::Turn> waiting;
    while (waiting.size() < 100) {
        waiting.emplace_back(*pool_);
        if (!waiting.back().check()) break;
    }
    ASSERT_LT(waiting.size(), 10U);
    EXPECT_EQ(waiting.back().check().error().code, Errc::contended);
    waiting.clear();
    EXPECT_TRUE(ManagedPool::Turn(*pool_).check());
}

TEST_F(SizingTest, a_growth_that_is_cancelled_after_any_step_goes_back) {
    for (int last = 0; last < 3; ++last) {
        const auto grown = resize(64 * kMiB, [&](int number, const ResizeStep &) { return number < last; });
        ASSERT_FALSE(grown);
        EXPECT_EQ(grown.error().code, Errc::cancelled);
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
            pool_->worker().run([&] {
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
    EXPECT_EQ(shrunk.error().code, Errc::cancelled);
    EXPECT_THAT(shrunk.error().message, HasSubstr("48M stay online"));
    expect_online(48 * kMiB);
    for (int i = 0; i < 12; ++i) allocate(4 * kMiB);
}

TEST_F(SizingTest, a_drain_leaves_what_is_promised) {
    ASSERT_TRUE(reserve(6 * kMiB));
    const auto refused = drain_chunk(*pool_, kNode, 0, false);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Errc::contended);
    EXPECT_THAT(refused.error().message, HasSubstr("6M are reserved"));
    EXPECT_EQ(memory().drain_of(0), Drain::none);
    EXPECT_TRUE(pool_->draining.empty());
    expect_online(8 * kMiB);
    for (int i = 0; i < 2; ++i) free(allocate(4 * kMiB));

    ASSERT_TRUE(reserve(4 * kMiB));
    const auto drained = drain_chunk(*pool_, kNode, 0, false);
    ASSERT_TRUE(drained) << drained.error().message;
    EXPECT_TRUE(drained->offline);
    expect_online(4 * kMiB);
}

TEST_F(SizingTest, a_drain_is_called_off_whatever_is_promised) {
    allocate(2 * kMiB);  // in the first unit, so that it does not go at once
    const auto drained = drain_chunk(*pool_, kNode, 0, false);
    ASSERT_TRUE(drained) << drained.error().message;
    EXPECT_TRUE(drained->draining);
    ASSERT_TRUE(reserve(4 * kMiB));
    ASSERT_TRUE(drain_chunk(*pool_, kNode, 0, true));
    EXPECT_EQ(memory().drain_of(0), Drain::none);
    allocate(4 * kMiB);
    allocate(2 * kMiB);
}

TEST_F(SizingTest, what_is_free_where_an_operator_drains_is_not_promised) {
    const Block block = allocate(2 * kMiB);
    ASSERT_TRUE(drain_chunk(*pool_, kNode, 0, false));
    EXPECT_FALSE(reserve(6 * kMiB)) << "2 of them nobody would be given";
    EXPECT_TRUE(reserve(4 * kMiB));
    EXPECT_TRUE(drain_chunk(*pool_, kNode, 0, false)) << "as it is already";
    restart();
    EXPECT_FALSE(reserve(6 * kMiB))
        << "the next daemon, too, before it has finished what this one was in the middle of";
    EXPECT_TRUE(reserve(4 * kMiB));
    ThreadSlotIndex blocked_by;
    pool_->worker().run([&] { return pool_->finish_predecessor(blocked_by); });
    free(block);
    pool_->worker().run([&] { return finish_drains(*pool_); });
    EXPECT_EQ(free_bytes(), 4 * kMiB);
}

// Whose chunks have no bit that keeps allocations out.
class SmallChunksTest : public SizingTest {
protected:
    static constexpr std::uint64_t kChunk = 256 << 10;
    PoolSpec spec() const override {
        PoolSpec spec = SizingTest::spec();
        spec.capacity_bytes = 4 * kMiB;
        spec.largest_block_bytes = kChunk;
        spec.online_bytes = kMiB;
        return spec;
    }
};
TEST_F(SmallChunksTest, what_is_free_where_an_operator_drains_is_not_promised) {
    ASSERT_FALSE(memory().keeps_allocations_out());
    const Block block = allocate(4096);
    const std::uint64_t chunk = block.base.value / frames(kChunk);
    ASSERT_TRUE(drain_chunk(*pool_, kNode, chunk, false));
    EXPECT_FALSE(reserve(kMiB - 4096)) << "the chunk goes as soon as it is empty";
    EXPECT_TRUE(reserve(kMiB - kChunk));
    pool_->tell_clients();
    EXPECT_EQ(shared_.header->attention.load() & Attention::kDraining, 0U) << "no call of a client's looks for marks";
    restart();
    EXPECT_FALSE(reserve(kMiB - 4096));
    EXPECT_TRUE(reserve(kMiB - kChunk));
    ThreadSlotIndex blocked_by;
    pool_->worker().run([&] { return pool_->finish_predecessor(blocked_by); });
    free(block);
    pool_->worker().run([&] { return finish_drains(*pool_); });
    EXPECT_EQ(online(), kMiB - kChunk);
    EXPECT_EQ(free_bytes(), kMiB - kChunk) << "what is promised is there";
}

// What clients compare with when they ask for what is not promised to them.
TEST_F(SizingTest, what_drains_is_granted_to_nobody_who_was_not_promised_it) {
    const auto asks = [this](std::uint64_t bytes) {
        const Admission answer = charge(shared_, actor_.process, frames(bytes)).answer;
        if (answer == Admission::granted) remove_held(shared_, actor_.process, frames(bytes));
        return answer;
    };
    ASSERT_TRUE(reserve(4 * kMiB));
    EXPECT_EQ(asks(4 * kMiB), Admission::granted);
    const Block block = allocate(4096);
    ASSERT_TRUE(drain_chunk(*pool_, kNode, 0, false));
    EXPECT_EQ(asks(4096), Admission::reserved) << "the other half is promised";
    restart();
    pool_->publish_sizes();
    EXPECT_EQ(asks(4096), Admission::reserved) << "also by a daemon that does not know yet";
    ASSERT_TRUE(drain_chunk(*pool_, kNode, 0, true));
    EXPECT_EQ(asks(4 * kMiB), Admission::granted);
    {
        const ManagedPool::Withheld about_to_go(*pool_, 4 * kMiB);
        EXPECT_EQ(asks(4096), Admission::reserved);
    }
    EXPECT_EQ(asks(4 * kMiB), Admission::granted);
    free(block);
    ASSERT_TRUE(reserve(0));
    // By a shrink that has looked when nothing was promised.
    const ManagedPool::Withheld about_to_go(*pool_, 4 * kMiB);
    EXPECT_FALSE(reserve(4 * kMiB + 4096));
    EXPECT_TRUE(reserve(4 * kMiB));
}

// Memory in use where an operator drains cannot be had by others, and is not missing elsewhere either.
TEST_F(SizingTest, what_is_in_use_where_a_unit_drains_takes_nothing_from_what_is_free) {
    const auto asks = [this](std::uint64_t bytes) {
        const Admission answer = charge(shared_, actor_.process, frames(bytes)).answer;
        if (answer == Admission::granted) remove_held(shared_, actor_.process, frames(bytes));
        return answer;
    };
    ASSERT_TRUE(reserve(kMiB));
    const Block block = allocate(2 * kMiB);
    add_held(shared_, actor_.process, frames(2 * kMiB));
    ASSERT_TRUE(drain_chunk(*pool_, kNode, 0, false));
    pool_->tell_clients();
    // Its holder may be who has been promised that, and want as much again.
    EXPECT_EQ(asks(2 * kMiB), Admission::granted);
    EXPECT_EQ(asks(3 * kMiB), Admission::reserved);
    ASSERT_TRUE(reserve(0));
    ASSERT_TRUE(reserve(4096));
    EXPECT_EQ(asks(4 * kMiB - 2 * 4096), Admission::granted);
    EXPECT_EQ(asks(4 * kMiB), Admission::reserved);
    // Called off: all is to be had again, and the block is in its way.
    ASSERT_TRUE(drain_chunk(*pool_, kNode, 0, true));
    EXPECT_EQ(DrainingHeld{shared_.header->draining_held}.frames(), 0U);
    EXPECT_EQ(asks(6 * kMiB - 4096), Admission::granted);
    EXPECT_EQ(asks(6 * kMiB), Admission::reserved);
    free(block);
}

// Granted, and not taken yet: it will be.
TEST_F(SizingTest, what_a_client_has_been_granted_is_not_promised) {
    ASSERT_TRUE(reserve(4096));
    ASSERT_EQ(charge(shared_, actor_.process, frames(4 * kMiB)).answer, Admission::granted);
    EXPECT_FALSE(reserve(6 * kMiB));
    EXPECT_TRUE(reserve(4 * kMiB));
    remove_held(shared_, actor_.process, frames(4 * kMiB));
    EXPECT_TRUE(reserve(6 * kMiB));
}

// By the holder of a promise, of which nothing is unused then.
TEST_F(SizingTest, what_a_client_has_been_granted_is_not_taken_away) {
    constexpr std::uint32_t kHers = 4711;
    const Actor hers = seat(2, kHers);
    allocate(4 * kMiB);
    ASSERT_TRUE(reserve(4 * kMiB));
    ASSERT_EQ(charge(shared_, hers.process, frames(4 * kMiB)).answer, Admission::granted);
    const auto shrunk = resize(4 * kMiB);
    ASSERT_FALSE(shrunk);
    EXPECT_EQ(shrunk.error().code, Errc::contended);
    EXPECT_EQ(free_bytes(), 4 * kMiB);
    const auto refused = drain_chunk(*pool_, kNode, 1, false);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Errc::contended);
    allocate(hers, 4 * kMiB);
}

TEST_F(SizingTest, what_the_daemon_before_held_is_held_until_all_of_it_is_found) {
    auto &held = shared_.processes[kDaemonProcess.value].held;
    held = HeldFrames::of(frames(4 * kMiB)).bits();
    restart();
    pool_->publish_sizes();
    EXPECT_EQ(HeldFrames{shared_.processes[kDaemonProcess.value].held}.frames(), frames(4 * kMiB));
    ThreadSlotIndex blocked_by;
    ASSERT_EQ(pool_->worker().run([&] { return pool_->finish_predecessor(blocked_by); }), RecoveryStep::done);
    EXPECT_EQ(HeldFrames{shared_.processes[kDaemonProcess.value].held}.frames(), 0U);
}

// The holder of a promise that is all in use may give the memory back, and want it again.
TEST_F(SizingTest, a_drain_leaves_what_was_promised_and_is_in_use_there) {
    constexpr std::uint32_t kHers = 4711;
    const Actor hers = seat(2, kHers);
    allocate(hers, 4 * kMiB);
    allocate(4 * kMiB);
    ASSERT_TRUE(reserve(4 * kMiB));
    for (const std::uint64_t chunk : {0, 1}) {
        const auto refused = drain_chunk(*pool_, kNode, chunk, false);
        ASSERT_FALSE(refused);
        EXPECT_EQ(refused.error().code, Errc::contended);
    }
}

TEST_F(SizingTest, what_is_promised_of_a_growth_stays) {
    for (int i = 0; i < 2; ++i) allocate(4 * kMiB);  // all that is online
    const auto grown = resize(64 * kMiB, [&](int number, const ResizeStep &) {
        if (number == 0) {
            EXPECT_TRUE(reserve(16 * kMiB));
        }
        return number < 1;
    });
    ASSERT_FALSE(grown);
    EXPECT_THAT(grown.error().message, HasSubstr("16M that had come online went back, 24M stay online"));
    expect_online(24 * kMiB);
    EXPECT_EQ(free_bytes(), 16 * kMiB);
}

// Caches that fill again meanwhile are what would keep it from its end.
TEST_F(SizingTest, a_drain_asks_for_caches_as_long_as_it_lasts_and_says_so) {
    const auto attention = [&] { return shared_.header->attention.load(); };
    const auto says_so = [&] { return (attention() & Attention::kDraining) != 0; };
    allocate(2 * kMiB);
    EXPECT_FALSE(says_so());
    std::uint64_t before = attention();
    ASSERT_TRUE(drain_chunk(*pool_, kNode, 0, false));
    EXPECT_TRUE(says_so());
    EXPECT_NE(attention() & ~Attention::kDraining, before);
    for (int round = 0; round < 3; ++round) {
        before = attention();
        ASSERT_TRUE(pool_->worker().run([&] { return finish_drains(*pool_); }));
        EXPECT_NE(attention(), before) << round;
        pool_->tell_clients();
        EXPECT_TRUE(says_so()) << round;
    }
    restart();
    shared_.header->attention.fetch_and(~Attention::kDraining);
    ThreadSlotIndex blocked_by;
    pool_->worker().run([&] { return pool_->finish_predecessor(blocked_by); });
    ASSERT_TRUE(pool_->worker().run([&] { return finish_drains(*pool_); }));
    EXPECT_TRUE(says_so()) << "the daemon after it goes on";
    ASSERT_TRUE(drain_chunk(*pool_, kNode, 0, true));
    pool_->tell_clients();
    EXPECT_FALSE(says_so());
    before = attention();
    ASSERT_FALSE(pool_->worker().run([&] { return finish_drains(*pool_); }));
    EXPECT_EQ(attention(), before);
}

TEST_F(SizingTest, a_shrink_says_that_it_drains_and_when_it_does_no_more) {
    ASSERT_TRUE(resize(16 * kMiB));
    std::vector<Block> blocks;
    for (int i = 0; i < 8; ++i) blocks.push_back(allocate(2 * kMiB));
    for (std::size_t i = 0; i < blocks.size(); i += 2) free(blocks[i]);
    bool said_so = false;
    ASSERT_FALSE(resize(8 * kMiB, [&](int, const ResizeStep &step) {
        if (step.note == "draining what is in use") {
            pool_->tell_clients();
            said_so = (shared_.header->attention.load() & Attention::kDraining) != 0;
        }
        return true;
    }));
    EXPECT_TRUE(said_so);
    pool_->tell_clients();
    EXPECT_EQ(shared_.header->attention.load() & Attention::kDraining, 0U);
}

TEST_F(SizingTest, several_drains_together_leave_what_is_promised) {
    ASSERT_TRUE(resize(12 * kMiB));
    std::vector<Block> blocks;
    for (int i = 0; i < 6; ++i) blocks.push_back(allocate(2 * kMiB));
    std::ranges::sort(blocks, {}, [](const Block &block) { return block.base.value; });
    for (const std::size_t freed : {1U, 3U, 4U, 5U})
        free(blocks[freed]);  // half of the first two units, all of the last
    for (const std::uint64_t chunk : {0U, 1U}) ASSERT_TRUE(drain_chunk(*pool_, kNode, chunk, false));
    ASSERT_TRUE(reserve(4 * kMiB));
    EXPECT_FALSE(drain_chunk(*pool_, kNode, 2, false)) << "all that others may still be given";
    allocate(4 * kMiB);
}

TEST_F(SizingTest, a_shrink_stops_where_others_have_taken_what_was_free_besides_a_promise) {
    ASSERT_TRUE(resize(64 * kMiB));
    ASSERT_TRUE(reserve(16 * kMiB));
    const auto shrunk = resize(16 * kMiB, [&](int number, const ResizeStep &) {
        if (number == 0)
            for (int i = 0; i < 2; ++i) allocate(4 * kMiB);
        return true;
    });
    ASSERT_FALSE(shrunk);
    EXPECT_EQ(shrunk.error().code, Errc::contended);
    EXPECT_THAT(shrunk.error().message, AllOf(HasSubstr("24M free"), HasSubstr("16M are reserved")));
    EXPECT_EQ(online(), 32 * kMiB);
    EXPECT_EQ(free_bytes(), 24 * kMiB);
    // As far as the promise lets it, and no further.
    EXPECT_TRUE(resize(24 * kMiB));
    EXPECT_FALSE(resize(20 * kMiB));
    EXPECT_EQ(free_bytes(), 16 * kMiB);
    for (int i = 0; i < 4; ++i) allocate(4 * kMiB);  // nothing is left drained
}

TEST_F(SizingTest, a_shrink_that_would_break_a_promise_is_refused_as_a_whole) {
    ASSERT_TRUE(resize(64 * kMiB));
    ASSERT_TRUE(reserve(16 * kMiB));
    const auto shrunk = resize(12 * kMiB);
    ASSERT_FALSE(shrunk);
    EXPECT_EQ(shrunk.error().code, Errc::contended);
    EXPECT_TRUE(steps_.empty());
    EXPECT_EQ(online(), 64 * kMiB);
}

TEST_F(SizingTest, a_policy_of_size_leaves_what_is_promised) {
    ASSERT_TRUE(reserve(6 * kMiB));
    const auto nothing = [](const ResizeStep &) { return true; };
    EXPECT_FALSE(resize_if_idle(*pool_, kNode, 8 * kMiB, 4 * kMiB, nothing));
    EXPECT_EQ(online(), 8 * kMiB);
    ASSERT_TRUE(reserve(4 * kMiB));
    EXPECT_TRUE(resize_if_idle(*pool_, kNode, 8 * kMiB, 4 * kMiB, nothing));
    EXPECT_EQ(online(), 4 * kMiB);
}

TEST_F(SizingTest, a_promise_that_cannot_be_kept_is_not_made_and_a_smaller_one_always_is) {
    ASSERT_TRUE(reserve(4 * kMiB));
    const auto refused = reserve(12 * kMiB);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Errc::out_of_frames);
    EXPECT_EQ(pool_->status().reserved_bytes, 4 * kMiB) << "what was promised before still is";
    // By somebody who does not count.
    for (int i = 0; i < 2; ++i) allocate(4 * kMiB);
    EXPECT_FALSE(reserve(5 * kMiB));
    EXPECT_TRUE(reserve(3 * kMiB));
    EXPECT_EQ(pool_->status().reserved_bytes, 3 * kMiB);
}

// More units than one job looks at (kFramesAtOnce of sizing.cpp): of 64 KiB, in frames of 64 bytes.
class ManyUnitsTest : public SizingTest {
protected:
    static constexpr std::uint64_t kUnitBytes = 64 << 10, kUnitFrames = kUnitBytes / 64;
    static constexpr std::uint64_t kPiece = (std::uint64_t{1} << 22) / kUnitFrames, kUnits = kPiece + 64;

    PoolSpec spec() const override {
        PoolSpec spec;
        spec.capacity_bytes = spec.online_bytes = kUnits * kUnitBytes;
        spec.frame_bytes = 64;
        spec.largest_block_bytes = kUnitBytes;
        spec.backing = wire::Backing::small_pages;
        return spec;
    }
    std::string topology() const override { return "synthetic:1x512M"; }

    // That many blocks of one frame.
    void use(std::uint64_t unit, std::uint64_t blocks) {
        for (std::uint64_t i = 0; i < blocks; ++i)
            ASSERT_TRUE(buddy().allocate_at(actor_, Block{FrameIndex{unit * kUnitFrames + i}, Order{0}}, {}));
    }
};

TEST_F(ManyUnitsTest, a_shrink_takes_the_emptiest_and_of_equals_the_highest_wherever_they_are) {
    const std::map<std::uint64_t, std::uint64_t> used{{3, 0},          {7, 1},          {kPiece - 1, 0}, {kPiece, 0},
                                                      {kPiece + 9, 1}, {kUnits - 2, 0}, {kUnits - 1, 2}};
    for (std::uint64_t unit = 0; unit < kUnits; ++unit) use(unit, used.contains(unit) ? used.at(unit) : 3);
    const auto are_online = [&](std::initializer_list<std::uint64_t> units) {
        return std::ranges::all_of(units, [&](std::uint64_t unit) { return memory().is_online(unit); });
    };
    ASSERT_TRUE(resize((kUnits - 3) * kUnitBytes));
    for (const std::uint64_t gone : {kPiece - 1, kPiece, kUnits - 2}) EXPECT_FALSE(memory().is_online(gone)) << gone;
    EXPECT_TRUE(are_online({3, 7, kPiece + 9, kUnits - 1}));

    // Units in use are drained before the shrink gives up.
    std::vector<std::uint64_t> drained;
    EXPECT_FALSE(resize((kUnits - 7) * kUnitBytes, [&](int, const ResizeStep &step) {
        if (step.note == "draining what is in use")
            for (std::uint64_t unit = 0; unit < kUnits; ++unit)
                if (memory().is_online(unit) && memory().drain_of(unit) == Drain::resize) drained.push_back(unit);
        return step.note.empty();
    }));
    EXPECT_FALSE(memory().is_online(3));
    EXPECT_THAT(drained, testing::ElementsAre(7, kPiece + 9, kUnits - 1));
    for (std::uint64_t unit = 0; unit < kUnits; ++unit) EXPECT_NE(memory().drain_of(unit), Drain::resize) << unit;
}

}  // namespace
}  // namespace numacre::daemon
