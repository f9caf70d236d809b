#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <set>
#include <string>

#include "memory/hugepages.hpp"
#include "memory/topology.hpp"

namespace numacre::daemon {
namespace {

TEST(SyntheticTopology, has_the_nodes_that_were_asked_for_laid_over_real_ones) {
    const auto made = make_topology("synthetic:3x512M");
    ASSERT_TRUE(made) << made.error().message;
    const Topology &topology = **made;
    EXPECT_EQ(topology.source(), "synthetic:3x512M");
    ASSERT_EQ(topology.numa_nodes().size(), 3U);

    const auto real = make_topology("libnuma");
    ASSERT_TRUE(real) << real.error().message;
    std::set<int> real_numbers;
    for (const MemoryNode &node : (*real)->numa_nodes()) real_numbers.insert(node.os_numa_node);
    for (const MemoryNode &node : topology.numa_nodes()) {
        EXPECT_EQ(node.total_bytes, std::uint64_t{512} << 20);
        EXPECT_TRUE(real_numbers.contains(node.os_numa_node)) << node.os_numa_node;
        EXPECT_EQ(node.distances.size(), 3U);
    }
    EXPECT_TRUE(topology.has(NumaNode{2}));
    EXPECT_FALSE(topology.has(NumaNode{3}));
}

TEST(SyntheticTopology, grants_what_a_node_has_and_no_byte_more) {
    const auto made = make_topology("synthetic:2x64M");
    ASSERT_TRUE(made) << made.error().message;
    Topology &topology = **made;
    constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

    ASSERT_TRUE(topology.take(NumaNode{0}, 60 * kMiB));
    EXPECT_EQ(topology.unbooked_bytes(NumaNode{0}), 4 * kMiB);
    EXPECT_EQ(topology.unbooked_bytes(NumaNode{1}), 64 * kMiB);
    const auto too_much = topology.take(NumaNode{0}, 4 * kMiB + 1);
    ASSERT_FALSE(too_much);
    EXPECT_EQ(too_much.error().code, Errc::out_of_frames);
    EXPECT_NE(too_much.error().message.find("4M"), std::string::npos) << too_much.error().message;
    EXPECT_TRUE(topology.take(NumaNode{0}, 4 * kMiB));
    topology.give_back(NumaNode{0}, 64 * kMiB);
    EXPECT_EQ(topology.unbooked_bytes(NumaNode{0}), 64 * kMiB);
}

TEST(SyntheticTopology, nearest_begins_with_the_node_itself_and_names_each_once) {
    const auto made = make_topology("synthetic:4x1G");
    ASSERT_TRUE(made) << made.error().message;
    for (std::uint8_t number = 0; number < 4; ++number) {
        const auto order = (*made)->nearest(NumaNode{number});
        ASSERT_EQ(order.size(), 4U);
        EXPECT_EQ(order.front(), NumaNode{number});
        EXPECT_EQ(std::set<NumaNode>(order.begin(), order.end()).size(), 4U);
    }
}

TEST(SyntheticTopology, impossible_shapes_are_refused_by_name) {
    for (const char *spec :
         {"synthetic:", "synthetic:2", "synthetic:x512M", "synthetic:0x512M", "synthetic:65x512M", "synthetic:2x",
          "synthetic:2x0", "synthetic:2x512Q", "synthetic:-1x1G", "synthetic:2 x1G", "sculpture", ""}) {
        EXPECT_FALSE(check_topology_spec(spec)) << spec;
        const auto made = make_topology(spec);
        ASSERT_FALSE(made) << spec;
        EXPECT_EQ(made.error().code, Errc::bad_argument);
        EXPECT_NE(made.error().message.find(spec), std::string::npos) << made.error().message;
        EXPECT_NE(made.error().message.find("synthetic:"), std::string::npos) << made.error().message;
    }
}

TEST(RealTopology, agrees_with_the_machine) {
    const auto made = make_topology("libnuma");
    ASSERT_TRUE(made) << made.error().message;
    const Topology &topology = **made;
    ASSERT_FALSE(topology.numa_nodes().empty());
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < topology.numa_nodes().size(); ++i) {
        const NumaNode numa_node{static_cast<std::uint8_t>(i)};
        const MemoryNode &node = topology.numa_nodes()[i];
        EXPECT_GT(node.total_bytes, 0U);
        EXPECT_GT(topology.available_bytes(numa_node), 0U);
        EXPECT_LE(topology.available_bytes(numa_node), node.total_bytes);
        ASSERT_EQ(node.distances.size(), topology.numa_nodes().size());
        EXPECT_EQ(node.distances[i], 10U);
        EXPECT_EQ(topology.nearest(numa_node).front(), numa_node);
        EXPECT_EQ(topology.unbooked_bytes(numa_node), std::numeric_limits<std::uint64_t>::max());
        total += node.total_bytes;
    }
    const auto pages = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES));
    EXPECT_LE(total, 2 * pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)));
}

// Plain files in place of sysfs: what is written to nr_hugepages stays there, and no page ever becomes free by it.
class HugepagesOverFiles : public testing::TestWithParam<std::uint64_t> {
protected:
    void SetUp() override {
        root_ = std::filesystem::temp_directory_path() / ("numacre-hugepages-" + std::to_string(::getpid()));
        folder_ = root_ / "node0" / "hugepages" / ("hugepages-" + std::to_string(kPage / 1024) + "kB");
        std::filesystem::create_directories(folder_);
        write("nr_hugepages", 10);
        write("free_hugepages", 2);
        write("surplus_hugepages", 0);
    }
    void TearDown() override { std::filesystem::remove_all(root_); }

    void write(const char *name, std::uint64_t count) const { std::ofstream(folder_ / name) << count; }
    std::uint64_t total() const {
        std::uint64_t count = 0;
        std::ifstream(folder_ / "nr_hugepages") >> count;
        return count;
    }

    const std::uint64_t kPage = GetParam();
    static constexpr std::uint64_t kPlenty = std::uint64_t{1} << 40;
    std::filesystem::path root_, folder_;
};

INSTANTIATE_TEST_SUITE_P(PageSizes, HugepagesOverFiles, testing::Values(kHugepageBytes, kGiganticPageBytes),
                         [](const auto &page) { return page.param == kHugepageBytes ? "2M" : "1G"; });

TEST_P(HugepagesOverFiles, reads_what_the_kernel_says) {
    const Hugepages hugepages(false, root_, root_);
    const auto pool = hugepages.pool(0, kPage);
    ASSERT_TRUE(pool);
    EXPECT_EQ(pool->total, 10U);
    EXPECT_EQ(pool->free, 2U);
    EXPECT_EQ(pool->unreserved, 2U);
    EXPECT_EQ(hugepages.pools(0).size(), 1U);
    EXPECT_FALSE(hugepages.pool(0, kPage / 2));
    EXPECT_FALSE(hugepages.pool(1, kPage));
}

TEST_P(HugepagesOverFiles, enough_free_pages_change_nothing) {
    Hugepages hugepages(true, root_, root_);
    EXPECT_TRUE(hugepages.ensure_free(0, kPage, 2, kPlenty, Hugepages::For::new_file));
    EXPECT_EQ(total(), 10U);
}

// A mapping of any user reserves pages without touching them: the kernel counts those as free, and gives them to nobody
// else.
TEST_P(HugepagesOverFiles, pages_that_mappings_have_reserved_are_not_free) {
    const std::filesystem::path machine = root_ / "machine" / ("hugepages-" + std::to_string(kPage / 1024) + "kB");
    std::filesystem::create_directories(machine);
    const auto say = [&](const char *file, int count) { std::ofstream(machine / file) << count; };
    say("nr_hugepages", 30);
    say("free_hugepages", 12);
    say("surplus_hugepages", 0);
    for (const int reserved : {10, 11, 12, 20}) {
        say("resv_hugepages", reserved);
        const std::uint64_t left = reserved < 12 ? static_cast<std::uint64_t>(12 - reserved) : 0;
        Hugepages hugepages(false, root_, root_ / "machine");
        EXPECT_EQ(hugepages.pool(0, kPage)->unreserved, std::min<std::uint64_t>(left, 2));
        EXPECT_EQ(hugepages.ensure_free(0, kPage, 2, kPlenty, Hugepages::For::new_file).has_value(), left >= 2)
            << reserved;
        // They may be reserved in that very file: the kernel knows.
        EXPECT_TRUE(hugepages.ensure_free(0, kPage, 2, kPlenty, Hugepages::For::old_file)) << reserved;
        if (left >= 2) continue;
        const auto result = hugepages.ensure_free(0, kPage, 2, kPlenty, Hugepages::For::new_file);
        EXPECT_NE(result.error().message.find(std::to_string(2 - left) + " of them reserved by mappings"),
                  std::string::npos)
            << result.error().message;
        // Raised by as many as are missing, in either case.
        write("nr_hugepages", 10);
        Hugepages raising(true, root_, root_ / "machine");
        EXPECT_TRUE(raising.ensure_free(0, kPage, 2, kPlenty, Hugepages::For::old_file));
        EXPECT_EQ(total(), 12 - left);
        raising.give_back_all();
        EXPECT_EQ(total(), 10U);
    }
}

TEST_P(HugepagesOverFiles, without_permission_the_shortage_names_numbers_and_command) {
    Hugepages hugepages(false, root_, root_);
    const auto result = hugepages.ensure_free(0, kPage, 5, kPlenty, Hugepages::For::new_file);
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, Errc::out_of_frames);
    EXPECT_NE(result.error().message.find("2 free"), std::string::npos) << result.error().message;
    EXPECT_NE(result.error().message.find("5 are needed"), std::string::npos) << result.error().message;
    EXPECT_NE(result.error().message.find("echo 13 > "), std::string::npos) << result.error().message;
    EXPECT_EQ(total(), 10U);
}

TEST_P(HugepagesOverFiles, a_reservation_that_brings_no_free_page_is_rolled_back) {
    Hugepages hugepages(true, root_, root_);
    const auto result = hugepages.ensure_free(0, kPage, 5, kPlenty, Hugepages::For::new_file);
    ASSERT_FALSE(result);
    EXPECT_EQ(total(), 10U);
    hugepages.give_back_all();
    EXPECT_EQ(total(), 10U);
}

// The daemon that was changing nr_hugepages died, before the kernel had heard of it or after: what the next one counts
// is what has come about.
TEST_P(HugepagesOverFiles, a_reservation_that_its_daemon_did_not_live_to_count_is_counted) {
    struct Case {
        std::uint64_t raised_before, nr_before, nr_after, nr_now, raised;
    };
    // As many digits each: these files are not cut when they are written.
    for (const Case &one : {Case{0, 210, 216, 210, 0}, Case{0, 210, 216, 216, 6}, Case{4, 210, 216, 213, 7},  // raising
                            Case{0, 210, 216, 240, 6}, Case{4, 210, 216, 205, 4},  // others do, too
                            Case{6, 216, 210, 216, 6}, Case{6, 216, 210, 210, 0}, Case{6, 216, 210, 202, 0}}) {
        auto ledger = MachineLedger::create();
        ASSERT_TRUE(ledger);
        LedgerReservation &kept = *ledger->reservation(0, kPage);
        kept.raised_pages = one.raised_before;
        kept.raised_before = one.raised_before;
        kept.nr_before = one.nr_before;
        kept.nr_after = one.nr_after;
        kept.is_changing = 1;
        write("nr_hugepages", one.nr_now);
        Hugepages hugepages(true, root_, root_);
        const int numa_nodes[] = {0};
        hugepages.record_in(*ledger, numa_nodes);
        EXPECT_EQ(kept.raised_pages, one.raised);
        EXPECT_EQ(kept.is_changing, 0U);
        hugepages.give_back_all();
        EXPECT_EQ(total(), one.nr_now - one.raised);
    }
}

TEST_P(HugepagesOverFiles, the_machines_last_memory_is_never_reserved) {
    Hugepages hugepages(true, root_, root_);
    EXPECT_FALSE(hugepages.ensure_free(0, kPage, 5, 3 * kPage + kNodeHeadroomBytes - 1, Hugepages::For::new_file));
    EXPECT_EQ(total(), 10U);
}

// The kernel would count them on top, before Linux 6.7: see write_reservation().
TEST_P(HugepagesOverFiles, beside_surplus_pages_of_other_nodes_the_machines_count_is_written) {
    if (::syscall(SYS_set_mempolicy, MPOL_DEFAULT, nullptr, 0) != 0) GTEST_SKIP() << "no set_mempolicy() here";
    const std::filesystem::path machine = root_ / "machine" / ("hugepages-" + std::to_string(kPage / 1024) + "kB");
    std::filesystem::create_directories(machine);
    const auto say = [&](const char *file, int count) { std::ofstream(machine / file) << count; };
    // Of the others: 4 reserved, 16 surplus.
    say("nr_hugepages", 30);
    say("free_hugepages", 0);
    say("surplus_hugepages", 16);
    say("nr_hugepages_mempolicy", 14);
    Hugepages hugepages(true, root_, root_ / "machine");
    EXPECT_FALSE(hugepages.ensure_free(0, kPage, 5, kPlenty, Hugepages::For::new_file)) << "files bring no pages";
    EXPECT_EQ(total(), 10U) << "written to the node after all";
    int written = 0;
    std::ifstream(machine / "nr_hugepages_mempolicy") >> written;
    EXPECT_EQ(written, 4 + 10 + 3);
    int mode = -1;
    ASSERT_EQ(::syscall(SYS_get_mempolicy, &mode, nullptr, 0, nullptr, 0), 0);
    EXPECT_EQ(mode, MPOL_DEFAULT) << "the thread's policy is left as it was";
}

TEST_P(HugepagesOverFiles, pages_of_others_are_never_given_back) {
    Hugepages hugepages(true, root_, root_);
    hugepages.give_back(0, kPage, 5);
    hugepages.give_back_all();
    EXPECT_EQ(total(), 10U);
}

}  // namespace
}  // namespace numacre::daemon
