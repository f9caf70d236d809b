// A pool as the daemon keeps it, on small pages over a synthetic numa node, and what its clients do, by hand. There is
// one thread: what happens between two steps of the daemon is what the test puts there.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <bit>
#include <map>
#include <memory>
#include <string>

#include "numacre/shm/buddy.hpp"
#include "pool/managed_pool.hpp"

namespace numacre::daemon {

using namespace engine;

class ManagedPoolTest : public testing::Test {
protected:
    static constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
    static constexpr NumaNode kNode{0};

    virtual std::string topology() const { return "synthetic:1x64M"; }
    virtual PoolSpec spec() const {
        PoolSpec spec;
        spec.capacity_bytes = 128 * kMiB;
        spec.online_bytes = 8 * kMiB;
        spec.backing = wire::Backing::small_pages;
        return spec;
    }

    void SetUp() override {
        create();
        if (pool_ != nullptr) actor_ = seat(1);
    }
    // The pool, before anybody has it.
    void create() {
        auto made_topology = make_topology(topology());
        ASSERT_TRUE(made_topology);
        topology_ = std::move(*made_topology);
        auto made = ManagedPool::create(spec(), *topology_, hugepages_);
        ASSERT_TRUE(made) << made.error().message;
        serve(*made);
    }

    // A client with one thread.
    Actor seat(std::uint16_t number, std::uint32_t uid = 0) {
        Peer peer;
        peer.uid = uid;
        const auto client = pool_->seat(number, std::move(peer), wire::Tier::trusted);
        EXPECT_TRUE(client);
        const ThreadSlotIndex thread{number};
        shared_.threads[number].owner.store(ThreadOwner{client->slot}.bits());
        shared_.header->thread_high_water.store(number + 1);
        return {thread, client->slot};
    }
    // The daemon's end by SIGKILL, as far as the pool notices, and the next one's beginning.
    void restart() {
        std::map<std::string, Fd> files;
        for (const auto &[name, fd] : pool_->kept_files()) files[name] = Fd(::dup(fd));
        auto ledger = PoolLedger::open(std::move(files.at(ManagedPool::kLedgerFile)));
        ASSERT_TRUE(ledger) << ledger.error().message;
        pool_.reset();
        auto adopted = ManagedPool::adopt(std::move(*ledger), std::move(files), *topology_, hugepages_);
        ASSERT_TRUE(adopted) << adopted.error().message;
        serve(*adopted);
    }

    NodeMemory &memory() { return pool_->node_memory(kNode); }
    Buddy<ProductionEnv> buddy() { return {memory().view(), shared_}; }
    std::uint64_t frames(std::uint64_t bytes) const { return pool_->geometry().frames_in(bytes); }

    // By itself, counting nothing.
    Block allocate(std::uint64_t bytes) { return allocate(actor_, bytes); }
    Block allocate(Actor actor, std::uint64_t bytes) {
        Block block;
        const Order order{static_cast<std::uint32_t>(std::countr_zero(frames(bytes)))};
        EXPECT_EQ(buddy().allocate(actor, order, {}, block), Errc::ok);
        return block;
    }
    void free(Block block) { free(actor_, block); }
    void free(Actor actor, Block block) {
        Block freed;
        EXPECT_EQ(buddy().free(actor, block.base, freed), Errc::ok);
    }

    std::unique_ptr<Topology> topology_;
    Hugepages hugepages_{false};
    std::shared_ptr<ManagedPool> pool_;
    PoolView<ProductionEnv> shared_;
    Actor actor_;  // of client 1

private:
    void serve(std::shared_ptr<ManagedPool> pool) {
        pool_ = std::move(pool);
        shared_ =
            PoolView<ProductionEnv>::at(pool_->pool_region().address(), pool_->process_slots(), pool_->thread_slots());
    }
};

}  // namespace numacre::daemon
