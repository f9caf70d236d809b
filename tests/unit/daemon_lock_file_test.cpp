// Locks between daemons that no other user can take.
#include "os/lock_file.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>

#include "memory/hugepages.hpp"
#include "os/runtime_dir.hpp"

namespace numacre::daemon {
namespace {

using std::chrono::milliseconds;

class LockFileTest : public testing::Test {
protected:
    void SetUp() override {
        folder_ = std::filesystem::temp_directory_path() / ("numacre-lock-" + std::to_string(::getpid()));
        std::filesystem::create_directory(folder_);
    }
    void TearDown() override { std::filesystem::remove_all(folder_); }
    std::string path(const char *name = "lock") const { return folder_ / name; }

    std::filesystem::path folder_;
};

// Of the message.
void expect_refused(const std::string &path, const std::string &says) {
    const auto file = open_lock_file(path);
    ASSERT_FALSE(file);
    EXPECT_NE(file.error().message.find(path), std::string::npos) << file.error().message;
    EXPECT_NE(file.error().message.find(says), std::string::npos) << file.error().message;
}

TEST_F(LockFileTest, another_name_of_one_of_our_files_is_refused_and_the_file_stays_as_it_is) {
    std::ofstream(path("precious")) << "content";
    ASSERT_EQ(::chmod(path("precious").c_str(), S_IRUSR | S_IWUSR), 0);
    ASSERT_EQ(::link(path("precious").c_str(), path().c_str()), 0);
    expect_refused(path(), "hard link");
    EXPECT_EQ(std::filesystem::file_size(path("precious")), 7U);
}

TEST_F(LockFileTest, is_made_for_this_user_alone_and_excludes_others) {
    const auto first = open_lock_file(path()), second = open_lock_file(path());
    ASSERT_TRUE(first && second);
    struct stat status{};
    ASSERT_EQ(::fstat(first->get(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777, 0600U);
    EXPECT_TRUE(take_lock(*first, milliseconds(0)));
    EXPECT_FALSE(take_lock(*second, milliseconds(20)));
    write_holder(*first);
    EXPECT_EQ(read_holder(*second), ::getpid());
}

TEST_F(LockFileTest, another_kind_of_file_is_refused_and_none_is_waited_for) {
    std::ofstream(path("target"));
    std::filesystem::permissions(path("target"), std::filesystem::perms::owner_read);
    std::filesystem::create_symlink(path("target"), path("link"));
    expect_refused(path("link"), "is no regular file: remove it");
    ASSERT_EQ(::mkfifo(path("fifo").c_str(), 0600), 0);
    expect_refused(path("fifo"), "is no regular file: remove it");
    std::filesystem::create_directory(path("folder"));
    expect_refused(path("folder"), "is no regular file: remove it");
}

TEST_F(LockFileTest, a_file_that_others_may_open_is_refused) {
    std::ofstream{path()};
    ASSERT_EQ(::chmod(path().c_str(), 0644), 0);
    expect_refused(path(), "is open to other users");
}

TEST_F(LockFileTest, another_users_file_in_a_sticky_folder_names_its_owner_and_the_remedy) {
    if (::geteuid() != 0) GTEST_SKIP() << "NOT TESTED: needs root, to give a file to another user";
    ASSERT_EQ(::chmod(folder_.c_str(), 01777), 0);
    const std::string lock = path("numacred.lock");
    std::ofstream{lock};
    ASSERT_EQ(::chown(lock.c_str(), 65534, 65534), 0);
    ASSERT_EQ(::chmod(lock.c_str(), 0666), 0);
    expect_refused(lock, "belongs to uid 65534");
    const auto opened = RuntimeDir::open(folder_, milliseconds(0));
    ASSERT_FALSE(opened);
    EXPECT_NE(opened.error().message.find("belongs to uid 65534"), std::string::npos) << opened.error().message;
    EXPECT_NE(opened.error().message.find("--runtime-dir"), std::string::npos) << opened.error().message;
}

TEST_F(LockFileTest, a_lock_on_the_folder_keeps_no_daemon_out) {
    const Fd folder(::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    ASSERT_EQ(::flock(folder.get(), LOCK_EX), 0);
    const auto opened = RuntimeDir::open(folder_, milliseconds(0));
    EXPECT_TRUE(opened) << opened.error().message;
}

TEST_F(LockFileTest, the_second_daemon_is_told_the_pid_of_the_first) {
    const auto first = RuntimeDir::open(folder_);
    ASSERT_TRUE(first);
    const auto second = RuntimeDir::open(folder_, milliseconds(20));
    ASSERT_FALSE(second);
    EXPECT_NE(second.error().message.find("another numacred (pid " + std::to_string(::getpid()) + ") serves"),
              std::string::npos)
        << second.error().message;
}

TEST_F(LockFileTest, a_lock_file_that_was_removed_is_made_anew) {
    const auto first = RuntimeDir::open(folder_);
    ASSERT_TRUE(first);
    std::filesystem::remove(path("numacred.lock"));
    const auto held = open_lock_file(path("numacred.lock"));
    ASSERT_TRUE(held);
    EXPECT_FALSE(is_at(Fd(::open(folder_.c_str(), O_RDONLY)), path("numacred.lock")));
    EXPECT_TRUE(is_at(*held, path("numacred.lock")));
}

class HugepageLockTest : public LockFileTest {
protected:
    static constexpr std::uint64_t kPage = std::uint64_t{2} << 20;
    // As the kernel has it: everybody may read.
    void SetUp() override {
        LockFileTest::SetUp();
        const std::filesystem::path counts = folder_ / "node0/hugepages/hugepages-2048kB";
        std::filesystem::create_directories(counts);
        for (const char *name : {"nr_hugepages", "free_hugepages", "surplus_hugepages"})
            std::ofstream(counts / name) << 0;
        nr_hugepages_ = counts / "nr_hugepages";
    }
    Hugepages hugepages() const { return Hugepages(false, folder_, folder_, folder_); }
    std::filesystem::path nr_hugepages_;
};

// On the code before this test waited for ever.
TEST_F(HugepageLockTest, a_lock_on_what_everybody_may_read_holds_nobody_up) {
    const Fd stranger(::open(nr_hugepages_.c_str(), O_RDONLY | O_CLOEXEC));
    ASSERT_EQ(::flock(stranger.get(), LOCK_EX), 0);
    EXPECT_TRUE(hugepages().lock(0, kPage, milliseconds(0)));
}

TEST_F(HugepageLockTest, two_daemons_exclude_each_other_page_size_by_page_size) {
    const Hugepages one = hugepages(), other = hugepages();
    std::optional<Hugepages::Lock> held = one.lock(0, kPage);
    ASSERT_TRUE(*held);
    EXPECT_FALSE(other.lock(0, kPage, milliseconds(20))) << "goes on without the lock";
    EXPECT_TRUE(other.lock(0, kPage << 9, milliseconds(20)));
    EXPECT_TRUE(other.lock(1, kPage, milliseconds(20)));
    held.reset();
    EXPECT_TRUE(other.lock(0, kPage, milliseconds(0)));
}

// More than one thread counts and raises hugepages.
TEST_F(HugepageLockTest, threads_of_a_daemon_exclude_each_other_also_where_the_file_cannot_be_locked) {
    const Hugepages stranger = hugepages(), ours = hugepages();
    const Hugepages::Lock in_the_way = stranger.lock(0, kPage);
    std::optional<Hugepages::Lock> first = ours.lock(0, kPage, milliseconds(0));
    ASSERT_FALSE(*first);
    std::atomic<bool> second_has_it{false};
    std::thread second([&] {
        const Hugepages::Lock held = ours.lock(0, kPage, milliseconds(0));
        second_has_it = true;
    });
    std::this_thread::sleep_for(milliseconds(50));
    EXPECT_FALSE(second_has_it);
    first.reset();
    second.join();
}

// It may be populating a file that a client keeps busy.
TEST_F(HugepageLockTest, a_thread_that_does_not_get_on_stops_no_other) {
    const Hugepages ours = hugepages();
    const Hugepages::Lock stuck = ours.lock(0, kPage);
    bool other_has_it = true;
    std::thread other(
        [&] { other_has_it = static_cast<bool>(ours.lock(0, kPage, milliseconds(0), milliseconds(20))); });
    other.join();
    EXPECT_FALSE(other_has_it) << "goes on without the lock";
}

}  // namespace
}  // namespace numacre::daemon
