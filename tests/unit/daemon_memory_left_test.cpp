// How much memory the machine and the cgroups leave to the daemon, from texts of /proc and /sys as the kernel writes
// them.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "memory/hugetlb_cgroup.hpp"

namespace numacre::daemon {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

class MemoryLeftTest : public testing::Test {
protected:
    void SetUp() override {
        root_ = std::filesystem::temp_directory_path() / ("numacre-memory-" + std::to_string(::getpid()));
        write("proc/meminfo", "MemTotal: 8388608 kB\nMemFree: 1 kB\nMemAvailable: 4194304 kB\n");
    }
    void TearDown() override { std::filesystem::remove_all(root_); }
    void write(const std::string &path, const std::string &text) const {
        std::filesystem::create_directories((root_ / path).parent_path());
        std::ofstream(root_ / path) << text;
    }
    void be_in_cgroup2() const {
        write("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
        write("proc/self/cgroup", "0::/system.slice/numacred.service\n");
    }
    std::filesystem::path root_;
};

TEST_F(MemoryLeftTest, without_cgroups_it_is_what_the_machine_has_available) {
    const MemoryLeft left = memory_left(root_);
    EXPECT_EQ(left.bytes, 4096 * kMiB);
    EXPECT_EQ(left.said_by, "the machine");
}

TEST_F(MemoryLeftTest, the_tightest_cgroup_counts_and_its_cache_is_free) {
    be_in_cgroup2();
    write("sys/fs/cgroup/system.slice/memory.max", std::to_string(1000 * kMiB) + "\n");
    write("sys/fs/cgroup/system.slice/memory.current", std::to_string(900 * kMiB) + "\n");
    write("sys/fs/cgroup/system.slice/memory.stat", "anon 1\ninactive_file " + std::to_string(300 * kMiB) + "\n");
    write("sys/fs/cgroup/system.slice/numacred.service/memory.max", "max\n");
    write("sys/fs/cgroup/system.slice/numacred.service/memory.current", "4096\n");
    const MemoryLeft left = memory_left(root_);
    EXPECT_EQ(left.bytes, 400 * kMiB);
    EXPECT_NE(left.said_by.find("cgroup /system.slice ("), std::string::npos) << left.said_by;
    EXPECT_NE(left.said_by.find("memory.max"), std::string::npos) << left.said_by;
}

TEST_F(MemoryLeftTest, of_version_1_too_and_beyond_the_limit_nothing_is_left) {
    write("proc/self/mountinfo", "35 25 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
    write("proc/self/cgroup", "9:memory:/pod\n1:name=systemd:/other\n");
    write("sys/fs/cgroup/memory/pod/memory.limit_in_bytes", "4096\n");
    write("sys/fs/cgroup/memory/pod/memory.usage_in_bytes", "8192\n");
    EXPECT_EQ(memory_left(root_).bytes, 0U);
}

TEST_F(MemoryLeftTest, what_cannot_be_read_limits_nothing) {
    std::filesystem::remove_all(root_);
    EXPECT_EQ(memory_left(root_).bytes, ~std::uint64_t{0});
}

}  // namespace
}  // namespace numacre::daemon
