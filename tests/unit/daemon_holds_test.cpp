// What the daemon does about blocks that clients hold to read them (numacre_hold): the blocks that a dead owner leaves
// are neither zeroed nor freed under their readers, and the daemon tells who reads, and what lingers.
#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <vector>

#include "managed_pool_fixture.hpp"
#include "numacre/shm/holds.hpp"

namespace numacre::daemon {
namespace {

class PoolWithReaders : public ManagedPoolTest, public testing::WithParamInterface<Reclaim::Kind> {
protected:
    PoolSpec spec() const override {
        PoolSpec spec = ManagedPoolTest::spec();
        spec.reclaim.kind = GetParam();
        spec.reclaim.hold = std::chrono::seconds(0);
        return spec;
    }
    void SetUp() override {
        ManagedPoolTest::SetUp();
        reader_ = seat(2);
        block_ = allocate(4096);
        name_ = buddy().publish(block_, entry());
        Block held;
        ASSERT_EQ(buddy().hold(buddy().view_of(reader_), shared_.holds[2], name_, held), Errc::ok);
    }
    IndexEntry entry() { return IndexEntry{memory().view().index_entry(block_).load()}; }
    void owner_dies() {
        pool_->begin_departure(actor_.process, Departure::died);
        Departed departed{actor_.process, {}, {}};
        pool_->worker().run([&] {
            pool_->reclaim(std::span(&departed, 1));
            return true;
        });
        ASSERT_EQ(departed.step, RecoveryStep::done);
        EXPECT_EQ(departed.total.blocks, 1U);
    }
    // The time of the next look; nothing: nothing is the daemon's.
    std::optional<std::chrono::steady_clock::time_point> release_seized() {
        return pool_->worker().run([&] { return pool_->release_seized(); });
    }
    void drop() {
        Buddy<ProductionEnv> engine = buddy();
        (void)engine.drop(engine.view_of(reader_), shared_.threads[2], shared_.holds[2], 0);
    }

    Actor reader_;
    Block block_;
    Reference name_;
};

TEST_P(PoolWithReaders, keeps_a_dead_owners_block_until_the_last_drop) {
    owner_dies();
    EXPECT_TRUE(entry().is_held()) << "freed under its reader";
    EXPECT_FALSE(entry().is_a_clients());
    if (GetParam() == Reclaim::Kind::fast) {
        EXPECT_TRUE(entry().is_lingering());
        EXPECT_EQ(release_seized(), std::nullopt) << "nothing is the daemon's";
    } else {
        for (int look = 0; look < 3; ++look) {
            const auto again = release_seized();
            ASSERT_TRUE(again) << "the daemon looks again, for nobody tells it of the drop";
            EXPECT_TRUE(entry().is_owned());
            EXPECT_EQ(entry().owner(), kDaemonProcess);
        }
    }
    drop();
    EXPECT_EQ(release_seized(), std::nullopt);
    EXPECT_FALSE(entry().is_held()) << "lost";
}

TEST_P(PoolWithReaders, a_daemon_that_is_started_again_waits_as_the_one_before) {
    owner_dies();
    if (GetParam() != Reclaim::Kind::fast) {
        ASSERT_TRUE(release_seized());
    }
    restart();
    ThreadSlotIndex blocked_by;
    ASSERT_EQ(pool_->worker().run([&] { return pool_->finish_predecessor(blocked_by); }), RecoveryStep::done);
    (void)release_seized();
    EXPECT_TRUE(entry().is_held());
    drop();
    EXPECT_EQ(release_seized(), std::nullopt);
    EXPECT_FALSE(entry().is_held());
}

TEST_P(PoolWithReaders, tells_who_reads_and_what_lingers) {
    const auto of_reader = [&] {
        for (const ClientStatus &client : pool_->client_statuses())
            if (client.client_id == 2) return client;
        return ClientStatus{};
    };
    EXPECT_EQ(of_reader().holds, 1U);
    EXPECT_EQ(of_reader().hold_bytes, 4096U);
    EXPECT_EQ(pool_->status().nodes[0].lingering_bytes, 0U);
    free(block_);
    EXPECT_EQ(pool_->status().nodes[0].lingering_bytes, 4096U);
    EXPECT_EQ(of_reader().used_bytes, 0U) << "who reads a block does not own it";
    drop();
    EXPECT_EQ(of_reader().holds, 0U);
    EXPECT_EQ(pool_->status().nodes[0].lingering_bytes, 0U);
}

INSTANTIATE_TEST_SUITE_P(Reclaim, PoolWithReaders,
                         testing::Values(Reclaim::Kind::fast, Reclaim::Kind::zero, Reclaim::Kind::quarantine));

}  // namespace
}  // namespace numacre::daemon
