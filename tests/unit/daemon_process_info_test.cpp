// Whether two looks at a pid saw one process.
#include "os/process_info.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <future>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace numacre::daemon {
namespace {

constexpr std::uint64_t kSpace = 2;

ProcessIdentity process(std::uint64_t pidfd_inode, std::uint64_t start_time_ticks) {
    return {1234, kSpace, pidfd_inode, start_time_ticks};
}

TEST(ProcessIdentity, what_is_not_known_is_never_evidence_of_difference) {
    EXPECT_EQ(compare(process(0, 0), process(0, 0)), SameProcess::unknown);
    EXPECT_EQ(compare(process(0, 0), process(77, 5000)), SameProcess::unknown);
    EXPECT_EQ(compare(process(77, 0), process(0, 5000)), SameProcess::unknown);
    EXPECT_EQ(compare(process(77, 5000), process(0, 0)), SameProcess::unknown);
}

TEST(ProcessIdentity, the_pidfd_decides_where_it_is_known) {
    EXPECT_EQ(compare(process(77, 5000), process(77, 9000)), SameProcess::yes);
    EXPECT_EQ(compare(process(77, 5000), process(78, 5000)), SameProcess::no);
}

TEST(ProcessIdentity, else_the_start_time_to_a_tick) {
    EXPECT_EQ(compare(process(0, 5000), process(78, 5000)), SameProcess::yes);
    EXPECT_EQ(compare(process(0, 5000), process(0, 5001)), SameProcess::yes);
    EXPECT_EQ(compare(process(0, 5000), process(0, 4999)), SameProcess::yes);
    EXPECT_EQ(compare(process(0, 5000), process(0, 5002)), SameProcess::no);
    EXPECT_EQ(compare(process(0, 5002), process(0, 5000)), SameProcess::no);
}

TEST(ProcessIdentity, the_offset_of_a_time_namespace_is_that_of_the_boot_clock) {
    constexpr long kTicks = 100;
    EXPECT_EQ(boot_time_offset_ticks("monotonic           0         0\nboottime            0         0\n", kTicks), 0);
    EXPECT_EQ(boot_time_offset_ticks("monotonic 7 0\nboottime 100000 250000000\n", kTicks), 10'000'025);
    EXPECT_EQ(boot_time_offset_ticks("monotonic 7 0\nboottime -60 0\n", kTicks), -6000);
    EXPECT_EQ(boot_time_offset_ticks("", kTicks), std::nullopt);
    EXPECT_EQ(boot_time_offset_ticks("monotonic 7 0\n", kTicks), std::nullopt);
    EXPECT_EQ(boot_time_offset_ticks("boottime x 0\n", kTicks), std::nullopt);
}

TEST(ProcNumbers, are_ours_if_there_is_one_from_that_proc_down_to_us) {
    EXPECT_TRUE(has_one_number("Name:\tnumacred\nNSpid:\t4711\nNSpgid:\t1\n"));
    EXPECT_FALSE(has_one_number("Name:\tnumacred\nNSpid:\t4711\t12\nNSpgid:\t1\n")) << "of a namespace above ours";
    EXPECT_FALSE(has_one_number("NSpid:\t4711\t12\t3\n"));
    EXPECT_FALSE(has_one_number("NSpid:\n")) << "nonsense is no proof";
    EXPECT_FALSE(has_one_number(""));
    EXPECT_TRUE(has_one_number("Name:\tnumacred\n")) << "a kernel without pid namespaces";
}

TEST(Describe, tells_what_proc_shows_of_the_process) {
    std::array<int, 2> ends{};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends.data()), 0);
    const Fd one(ends[0]), other(ends[1]);
    auto peer = peer_of(one.get());
    ASSERT_TRUE(peer);
    EXPECT_EQ(peer->comm, "") << "asked before its rights have been looked at";
    EXPECT_EQ(peer->stack_start, 0U);
    describe(*peer);
    EXPECT_NE(peer->comm, "");
    EXPECT_NE(peer->start_time_ticks, 0U);
    EXPECT_NE(peer->stack_start, 0U);
    EXPECT_FALSE(has_executed(peer->pid, peer->stack_start));
    EXPECT_TRUE(has_executed(peer->pid, peer->stack_start + 16));
}

// The kernel keeps it as a zombie, without a stack, for as long as there are others.
TEST(Describe, tells_the_stack_of_a_process_whose_first_thread_has_ended) {
    std::array<int, 2> ends{};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends.data()), 0);
    const pid_t child = ::fork();
    if (child == 0) {
        std::thread{[&] {
            // It runs another program when the test has seen it.
            char byte = 0;
            if (::send(ends[1], &byte, 1, 0) != 1 || ::recv(ends[1], &byte, 1, 0) != 1) ::_exit(1);
            ::execl("/bin/sleep", "sleep", "1000", nullptr);
            ::_exit(1);
        }}.detach();
        ::syscall(SYS_exit, 0);
    }
    ASSERT_GT(child, 0);
    char byte = 0;
    ASSERT_EQ(::recv(ends[0], &byte, 1, 0), 1);
    const auto pid = static_cast<std::uint32_t>(child);
    const auto state = [&] {
        std::ifstream file("/proc/" + std::to_string(pid) + "/task/" + std::to_string(pid) + "/stat");
        std::string line;
        std::getline(file, line);
        return line.substr(line.rfind(')') + 2, 1);
    };
    while (state() != "Z") std::this_thread::yield();
    Peer peer;
    peer.pid = pid;
    peer.pidfd = std::make_shared<const Fd>(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
    describe(peer);
    EXPECT_NE(peer.stack_start, 0U);
    EXPECT_FALSE(has_executed(pid, peer.stack_start));
    ASSERT_EQ(::send(ends[0], &byte, 1, 0), 1);
    while (!has_executed(pid, peer.stack_start)) std::this_thread::yield();
    ::kill(child, SIGKILL);
    EXPECT_EQ(::waitpid(child, nullptr, 0), child);
    for (const int end : ends) ::close(end);
}

// The kernel makes /proc/PID/stat by a walk over all threads, so the daemon reads the first thread's. What it finds
// there has to be the process's own, whichever thread connects.
TEST(Describe, tells_of_a_process_with_many_threads_what_its_own_stat_says) {
    std::promise<void> gate;
    const std::shared_future<void> opened = gate.get_future().share();
    std::vector<std::thread> sleepers;
    for (int i = 0; i < 200; ++i) sleepers.emplace_back([opened] { opened.wait(); });
    Peer seen;
    std::thread([&] {
        std::array<int, 2> ends{};
        ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends.data()), 0);
        const Fd one(ends[0]), other(ends[1]);
        auto peer = peer_of(one.get());
        ASSERT_TRUE(peer);
        seen = std::move(*peer);
        describe(seen);
    }).join();
    gate.set_value();
    for (std::thread &sleeper : sleepers) sleeper.join();

    std::ifstream file("/proc/self/stat");
    const std::string line{std::istreambuf_iterator<char>(file), {}};
    std::istringstream words(line.substr(line.rfind(')') + 2));
    const std::vector<std::string> fields{std::istream_iterator<std::string>(words), {}};  // from the third on
    EXPECT_EQ(seen.pid, static_cast<std::uint32_t>(::getpid()));
    EXPECT_EQ(std::to_string(seen.stack_start), fields.at(28 - 3));
    std::ifstream offsets("/proc/self/timens_offsets");
    const std::string text{std::istreambuf_iterator<char>(offsets), {}};
    const std::int64_t offset = boot_time_offset_ticks(text, ::sysconf(_SC_CLK_TCK)).value_or(0);
    EXPECT_EQ(std::to_string(static_cast<std::int64_t>(seen.start_time_ticks) + offset), fields.at(22 - 3));
}

// A process that does nothing until it is told to end.
class Child {
public:
    Child() {
        if (::pipe(pipe_.data()) != 0) return;
        pid_ = ::fork();
        if (pid_ != 0) return;
        ::close(pipe_[1]);
        char byte = 0;
        (void)!::read(pipe_[0], &byte, 1);
        ::_exit(0);
    }
    Child(const Child &) = delete;
    Child &operator=(const Child &) = delete;
    ~Child() { end(); }
    void end() {
        if (pid_ <= 0) return;
        ::close(pipe_[1]);
        ::waitpid(pid_, nullptr, 0);
        ::close(pipe_[0]);
        pid_ = -1;
    }
    std::uint32_t pid() const { return static_cast<std::uint32_t>(pid_); }

private:
    std::array<int, 2> pipe_{-1, -1};
    pid_t pid_ = -1;
};

// What this process's own socket pair says about it: its pid space, above all.
ProcessIdentity own() {
    std::array<int, 2> ends{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends.data()), 0);
    const Fd one(ends[0]), other(ends[1]);
    auto peer = peer_of(one.get());
    EXPECT_TRUE(peer.has_value());
    if (peer) describe(*peer);
    return peer ? peer->identity() : ProcessIdentity{};
}

TEST(PeerOf, says_when_our_own_descriptors_are_used_up) {
    std::array<int, 2> ends{};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends.data()), 0);
    const Fd one(ends[0]), other(ends[1]);
    rlimit usual{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &usual), 0);
    const Fd next(::dup(one.get()));
    const rlimit none{static_cast<rlim_t>(next.get() + 1), usual.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
    const auto peer = peer_of(one.get());
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &usual), 0);
    ASSERT_FALSE(peer);
    EXPECT_EQ(peer.error().code, Errc::too_many_clients) << peer.error().message;
}

TEST(FindPeer, finds_a_living_process_and_says_how_certain_that_is) {
    const ProcessIdentity me = own();
    const auto found = find_peer(me);
    ASSERT_TRUE(found);
    EXPECT_TRUE(found->is_certain);
    EXPECT_TRUE(found->pidfd);
    const auto unknown = find_peer({me.pid, me.pid_space, 0, 0});
    ASSERT_TRUE(unknown);
    EXPECT_TRUE(unknown->pidfd);
    EXPECT_FALSE(unknown->is_certain);
    EXPECT_EQ(unknown->start_time_ticks, 0U) << "completed without a proof";
    EXPECT_FALSE(find_peer({me.pid, me.pid_space, 0, me.start_time_ticks + 2})) << "another start time";
}

TEST(FindPeer, completes_a_start_time_only_with_a_proof) {
    const ProcessIdentity me = own();
    if (me.pidfd_inode == 0) GTEST_SKIP() << "NOT TESTED: a kernel before 6.9";
    const auto found = find_peer({me.pid, me.pid_space, me.pidfd_inode, 0});
    ASSERT_TRUE(found);
    EXPECT_EQ(found->start_time_ticks, me.start_time_ticks);
}

TEST(FindPeer, a_pid_of_another_namespace_says_nothing) {
    Child child;
    const std::uint32_t pid = child.pid();
    const std::uint64_t space = own().pid_space;
    ASSERT_NE(space, 0U);
    for (const std::uint64_t other : {std::uint64_t{0}, space + 1}) {
        const auto found = find_peer({pid, other, 1, 1});
        ASSERT_TRUE(found);
        EXPECT_FALSE(found->pidfd);
    }
    child.end();
    EXPECT_TRUE(find_peer({pid, space + 1, 0, 0}));
    EXPECT_FALSE(find_peer({pid, space, 1, 1})) << "it has ended, or somebody else has its pid";
}

}  // namespace
}  // namespace numacre::daemon
