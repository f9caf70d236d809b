// Which pages of a pool's metadata there are: all that the daemon looks at from the moment when the pool is made, or
// has grown. A page that comes into being because the daemon looks may not be had (vm.overcommit_memory=2 at its
// limit), and the pool would count as damaged.
#include "numacre/shm/recovery.hpp"
#include "pool/sizing.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "managed_pool_fixture.hpp"
#include "pool/oldest_blocks.hpp"

namespace numacre::daemon {
namespace {

constexpr std::uint64_t kKiB = std::uint64_t{1} << 10, kMiB = kKiB << 10, kGiB = kMiB << 10;

struct Shape {
    std::uint64_t frame_bytes, largest_block_bytes, capacity_bytes;
    std::uint32_t numa_nodes = 1;
    std::uint32_t max_clients = 256, max_threads = 4096;
    Reclaim::Kind reclaim = Reclaim::Kind::fast;
};

std::ostream &operator<<(std::ostream &out, const Shape &shape) {
    return out << shape.capacity_bytes / kMiB << "M in frames of " << shape.frame_bytes << " and blocks up to "
               << shape.largest_block_bytes << " on " << shape.numa_nodes << ", " << shape.max_clients << " clients";
}

// By the file's name: for each run of pages that are there, where it begins and where it ends.
using Pages = std::map<std::string, std::vector<std::pair<off_t, off_t>>>;

Pages pages_of(const ManagedPool &pool) {
    Pages pages;
    for (const auto &[name, fd] : pool.kept_files()) {
        if (name.starts_with("frames")) continue;
        auto &runs = pages[name];
        for (off_t begin = 0, end = 0; (begin = ::lseek(fd, end, SEEK_DATA)) >= 0; runs.emplace_back(begin, end))
            end = ::lseek(fd, begin, SEEK_HOLE);
    }
    return pages;
}

class MetadataPagesTest : public ManagedPoolTest, public testing::WithParamInterface<Shape> {
protected:
    static constexpr std::uint64_t kOnline = 8 * kMiB;

    std::string topology() const override { return "synthetic:" + std::to_string(GetParam().numa_nodes) + "x64M"; }
    PoolSpec spec() const override {
        PoolSpec spec = ManagedPoolTest::spec();
        spec.frame_bytes = GetParam().frame_bytes;
        spec.largest_block_bytes = GetParam().largest_block_bytes;
        spec.capacity_bytes = GetParam().capacity_bytes;
        spec.online_bytes = kOnline;
        spec.max_clients = GetParam().max_clients;
        spec.max_threads = GetParam().max_threads;
        spec.reclaim.kind = GetParam().reclaim;
        return spec;
    }
    // Nobody has looked at the pool yet.
    void SetUp() override {
        create();
        if (pool_ != nullptr) made_ = pages_of(*pool_);
    }

    void expect_the_same_pages(const std::string &after) {
        for (const auto &[name, runs] : pages_of(*pool_))
            EXPECT_EQ(runs, made_.at(name)) << name << ", after " << after;
        EXPECT_FALSE(pool_->is_corrupt()) << after << ": " << pool_->status().corrupt_reason;
    }
    // Each numa node by itself.
    void resize(std::uint64_t bytes) {
        for (std::uint8_t node = 0; node < GetParam().numa_nodes; ++node) {
            const auto done = resize_numa_node(*pool_, NumaNode{node}, bytes, false, [](const auto &) { return true; });
            EXPECT_TRUE(done) << done.error().message;
        }
    }
    void grow(std::uint64_t bytes) {
        resize(bytes);
        made_ = pages_of(*pool_);
    }

    // All that the daemon does without being told to change anything.
    void look(const std::string &when) {
        (void)pool_->status();
        expect_the_same_pages("status, " + when);
        (void)pool_->client_statuses();
        pool_->look_at_use();
        OldestBlocks blocks(100);
        pool_->add_oldest_blocks(0, blocks);
        expect_the_same_pages("clients, " + when);
        for (std::uint8_t i = 0; i < GetParam().numa_nodes; ++i) {
            const NumaNode node{i};
            (void)pool_->occupancy(node, 0);
            (void)pool_->holders(node, {{0, pool_->node_memory(node).unit_count()}});
            (void)pool_->node_memory(node).draining_frames();
        }
        expect_the_same_pages("map and holders, " + when);
        EXPECT_FALSE(pool_->look_for_damage());
        pool_->tell_clients();
        pool_->wake_waiters(true);
        (void)pool_->gather_cached_blocks();
        EXPECT_TRUE(pool_->check_shrink(0));
        expect_the_same_pages("what is looked at from time to time, " + when);
    }

    // A client with blocks of the smallest and of the largest order on each numa node, which then ends.
    void join_and_die(std::uint16_t number) {
        const Actor actor = seat(number);
        EXPECT_TRUE(pool_->set_quota({.kind = Holder::Kind::client, .client_id = number, .pool = {}}, 4 * kMiB, kMiB));
        for (std::uint8_t i = 0; i < GetParam().numa_nodes; ++i)
            for (const Order order : {Order{0}, pool_->geometry().largest()}) {
                Block block;
                EXPECT_EQ((Buddy<ProductionEnv>{pool_->node_memory(NumaNode{i}).view(), shared_}.allocate(actor, order,
                                                                                                          {}, block)),
                          Errc::ok);
            }
        look("with a client");
        pool_->begin_departure(actor.process, Departure::died);
        Departed departed{actor.process, {}, {}};
        pool_->worker().run([&] {
            pool_->reclaim(std::span(&departed, 1));
            return pool_->release_seized();
        });
        EXPECT_EQ(departed.step, RecoveryStep::done);
        EXPECT_EQ(departed.total.blocks, 2U * GetParam().numa_nodes);
        pool_->vacate(actor.process, Departure::died, departed.total, 0);
        expect_the_same_pages("a client was reaped");
    }

    Pages made_;
};

TEST_P(MetadataPagesTest, are_there_before_the_daemon_looks_at_them) {
    ASSERT_NE(pool_, nullptr);
    look("of a pool that has just been made");
    join_and_die(1);

    resize(kOnline / 2);
    look("after a shrink");
    resize(kOnline);
    expect_the_same_pages("a growth to what was online before");
    grow(4 * kOnline);
    look("after a growth");
    join_and_die(2);
    // Until what is left does not fill a chunk.
    for (std::uint8_t node = 0; node < GetParam().numa_nodes; ++node) {
        EXPECT_TRUE(drain_chunk(*pool_, NumaNode{node}, 0, false));
        EXPECT_TRUE(drain_chunk(*pool_, NumaNode{node}, pool_->geometry().chunk_count() - 1, false));
    }
    look("after a drain");

    restart();
    look("of a pool that has been adopted");
    ThreadSlotIndex blocked_by;
    EXPECT_EQ(pool_->worker().run([&] { return pool_->finish_predecessor(blocked_by); }), RecoveryStep::done);
    look("after the restart");
    grow(5 * kOnline);
    look("after a growth behind the restart");
    join_and_die(3);
}

// However many clients and threads there are: no page of the pool's records is the first one's to take.
TEST_P(MetadataPagesTest, of_all_seats_and_threads_are_there_before_anybody_comes) {
    ASSERT_NE(pool_, nullptr);
    // A seat takes as long as there are seats.
    for (std::uint32_t slot = 1; slot < std::min(pool_->process_slots(), 500U); ++slot)
        ASSERT_TRUE(pool_->seat(slot, Peer{}, wire::Tier::trusted));
    for (std::uint32_t thread = 1; thread < pool_->thread_slots(); ++thread)
        shared_.threads[thread].owner.store(ThreadOwner{ProcessSlot{1}}.bits());
    shared_.header->thread_high_water.store(pool_->thread_slots());
    look("with every thread slot taken");
}

INSTANTIATE_TEST_SUITE_P(shapes, MetadataPagesTest,
                         testing::Values(Shape{64, 64 * kKiB, kGiB}, Shape{64, 4 * kMiB, kGiB, 2},
                                         Shape{64, 4 * kKiB, 64 * kMiB}, Shape{64, 64, 64 * kMiB},
                                         Shape{kKiB, kMiB, 4 * kGiB, 1, 60000, 65000},
                                         Shape{4 * kKiB, 4 * kMiB, 16 * kGiB, 3, 16, 64, Reclaim::Kind::zero},
                                         Shape{4 * kKiB, 128 * kKiB, 100 * kMiB, 2, 8, 8},
                                         Shape{64 * kKiB, 64 * kKiB, 64 * kGiB}, Shape{2 * kMiB, 4 * kMiB, 64 * kGiB}),
                         [](const auto &shape) { return "shape_" + std::to_string(shape.index); });

// A pool of which nothing is online. A page that a client's search takes is the client's end where there is no memory.
class NothingOnlineTest : public MetadataPagesTest {
protected:
    PoolSpec spec() const override {
        PoolSpec spec = MetadataPagesTest::spec();
        spec.online_bytes = 0;
        return spec;
    }
};

TEST_P(NothingOnlineTest, a_search_takes_no_page) {
    ASSERT_NE(pool_, nullptr);
    const Actor actor = seat(1);
    expect_the_same_pages("a client's attach");
    for (std::uint8_t i = 0; i < GetParam().numa_nodes; ++i)
        for (unsigned order = 0; order <= pool_->geometry().largest_order; ++order) {
            Block block;
            EXPECT_NE((Buddy<ProductionEnv>{pool_->node_memory(NumaNode{i}).view(), shared_}.allocate(
                          actor, Order{static_cast<std::uint8_t>(order)}, {}, block)),
                      Errc::ok);
            expect_the_same_pages("a search for order " + std::to_string(order));
        }
}

INSTANTIATE_TEST_SUITE_P(shapes, NothingOnlineTest,
                         testing::Values(Shape{16 * kKiB, 16 * kMiB, 16 * kMiB}, Shape{4 * kKiB, 4 * kMiB, 16 * kMiB},
                                         Shape{64, 512 * kKiB, 2 * kMiB}, Shape{4 * kKiB, 256 * kKiB, 64 * kMiB},
                                         Shape{64, 64, 64 * kMiB}, Shape{4 * kKiB, 4 * kMiB, kGiB, 2}),
                         [](const auto &shape) { return "shape_" + std::to_string(shape.index); });

// A shortage of pages is a refusal in words, and nobody's end.
TEST(MetadataRegion, that_there_is_no_memory_for_is_refused_in_words) {
    auto region = MetadataRegion::create("numacre:test", kMiB);
    ASSERT_TRUE(region) << region.error().message;
    ASSERT_TRUE(region->populate(0, 64 * kKiB));
    // A missing page is SIGBUS, as at the limit of vm.overcommit_memory=2.
    const Fd faults(static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY)));
    uffdio_api api{.api = UFFD_API, .features = UFFD_FEATURE_SIGBUS, .ioctls = 0};
    uffdio_register missing{};
    missing.range = {reinterpret_cast<std::uintptr_t>(region->address()), kMiB};
    missing.mode = UFFDIO_REGISTER_MODE_MISSING;
    if (!faults || ::ioctl(faults.get(), UFFDIO_API, &api) != 0 ||
        ::ioctl(faults.get(), UFFDIO_REGISTER, &missing) != 0)
        GTEST_SKIP() << "NOT TESTED: userfaultfd: " << std::strerror(errno);
    EXPECT_TRUE(region->populate(0, 64 * kKiB));
    const auto populated = region->populate(0, kMiB);
    ASSERT_FALSE(populated);
    EXPECT_EQ(populated.error().code, Errc::out_of_frames);
    EXPECT_EQ(
        populated.error().message,
        "allocating 1M of metadata: Cannot allocate memory; free memory on the machine, or raise the cgroup's limit "
        "or vm.overcommit_ratio");
    EXPECT_FALSE(region->is_lost());
}

}  // namespace
}  // namespace numacre::daemon
