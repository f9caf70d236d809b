// How many walks over a pool's metadata its departed clients cost: counted by what the pool's worker has done at
// points that the test chooses.
#include "pool/reaper.hpp"

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <vector>

#include "managed_pool_fixture.hpp"

namespace numacre::daemon {
namespace {

class ReaperTest : public ManagedPoolTest {
protected:
    void SetUp() override {
        ManagedPoolTest::SetUp();
        auto loop = EventLoop::create();
        ASSERT_TRUE(loop) << loop.error().message;
        loop_ = std::move(*loop);
        reaper_ = std::make_unique<Reaper>(*loop_, registry_);
    }
    // Before the loop, to which the worker's jobs post.
    void TearDown() override {
        if (pool_) pool_->end_workers();
    }

    // Nothing that is posted to the pool's worker runs before open().
    void close_gate() {
        pool_->worker().post([opened = gate_.get_future().share()] { opened.wait(); });
    }
    void open_gate() { gate_.set_value(); }

    std::uint64_t used_frames() { return pool_->status().nodes[0].snapshot.used_frames; }
    Client join(std::uint16_t number, wire::Tier tier) {
        const auto client = pool_->seat(number, Peer{}, tier);
        EXPECT_TRUE(client);
        return *client;
    }
    // With a block of one frame.
    Client join_with_block(std::uint16_t number) {
        const Client client = join(number, wire::Tier::trusted);
        const ThreadSlotIndex thread{number};
        shared_.threads[number].owner.store(ThreadOwner{client.slot}.bits());
        shared_.header->thread_high_water.store(number + 1);
        Block block;
        EXPECT_EQ(buddy().allocate(Actor{thread, client.slot}, Order{0}, {}, block), Errc::ok);
        return client;
    }

    std::unique_ptr<EventLoop> loop_;
    Registry registry_;
    std::unique_ptr<Reaper> reaper_;

private:
    std::promise<void> gate_;
};

TEST_F(ReaperTest, clients_that_end_while_the_worker_is_busy_are_recovered_in_one_walk) {
    constexpr std::uint16_t kClients = 8;
    std::vector<Client> clients;
    for (std::uint16_t number = 2; number < 2 + kClients; ++number) clients.push_back(join_with_block(number));
    ASSERT_EQ(used_frames(), kClients);
    close_gate();
    std::vector<std::uint64_t> used_when_done;
    for (const Client &client : clients)
        reaper_->reap(pool_, client, Departure::died, [&] {
            used_when_done.push_back(used_frames());
            if (used_when_done.size() == kClients) loop_->stop();
        });
    // Behind all that the reaper has given the worker to do by now: the first one's walk, and no other.
    std::uint64_t left_by_first = 0;
    pool_->worker().post([&] { left_by_first = used_frames(); });
    open_gate();
    loop_->run();
    EXPECT_EQ(left_by_first, kClients - 1U);
    ASSERT_EQ(used_when_done.size(), kClients);
    for (std::size_t i = 1; i < used_when_done.size(); ++i) EXPECT_EQ(used_when_done[i], 0U) << i;
}

TEST_F(ReaperTest, observers_cost_no_walk) {
    close_gate();
    int done = 0;
    for (std::uint16_t number = 2; number < 6; ++number)
        reaper_->reap(pool_, join(number, wire::Tier::observer), Departure::died, [&] {
            if (++done == 4) loop_->stop();
        });
    loop_->run();  // comes back only if they do not wait for the worker
    open_gate();
}

}  // namespace
}  // namespace numacre::daemon
