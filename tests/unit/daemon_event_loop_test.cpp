// The event loop's own promises, with real sockets.
#include "os/event_loop.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <memory>
#include <vector>

#include "os/fd.hpp"
#include "support/in_child.hpp"
#include "support/refused_call.hpp"

namespace numacre::daemon {
namespace {

// A listening socket by an abstract name, and one that connects to it.
class Listener {
public:
    Listener() : fd_(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
        address_.sun_family = AF_UNIX;
        std::snprintf(address_.sun_path + 1, sizeof address_.sun_path - 1, "numacre-event-loop-%d", ::getpid());
        EXPECT_EQ(::bind(fd_.get(), reinterpret_cast<const sockaddr *>(&address_), sizeof address_), 0);
        EXPECT_EQ(::listen(fd_.get(), 256), 0);
    }
    int fd() const { return fd_.get(); }
    Fd connect() const {
        Fd connection(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
        EXPECT_EQ(::connect(connection.get(), reinterpret_cast<const sockaddr *>(&address_), sizeof address_), 0);
        return connection;
    }

private:
    sockaddr_un address_{};
    Fd fd_;
};

bool is_hung_up(const Fd &connection) {
    pollfd asked{connection.get(), POLLIN, 0};
    return ::poll(&asked, 1, 0) == 1 && (asked.revents & POLLHUP) != 0;
}

// A profile that allows the set-up and not the wait: the daemon would say that it serves, spin, and obey no signal.
TEST(EventLoop, is_refused_where_its_wait_is_refused) {
    EXPECT_EQ(test::in_child([] {
                  if (!test::refuse_call(__NR_io_uring_enter, EPERM)) return false;
                  const auto made = EventLoop::create();
                  return !made && made.error().message.starts_with("io_uring_enter failed");
              }),
              0);
}

// Many come at once; the first one is too much already. Whoever had come further than the backlog by then was closed
// without an answer, by whoever made the flood: any user.
TEST(EventLoop, delivers_whom_it_has_accepted_before_it_stops_accepting) {
    auto made = EventLoop::create();
    ASSERT_TRUE(made) << made.error().message;
    EventLoop &loop = **made;
    const Listener listener;
    std::vector<Fd> connections;
    for (int i = 0; i < 60; ++i) connections.push_back(listener.connect());
    std::vector<Fd> accepted;
    EventLoop::WaitId accepting = 0;
    accepting = loop.accept_each(listener.fd(), [&](int fd) {
        ASSERT_GE(fd, 0);
        accepted.emplace_back(fd);
        if (accepted.size() == 1) loop.stop_accepting(accepting);
    });
    std::size_t before = 0;
    loop.after(std::chrono::milliseconds{200}, [&] {
        // A later one waits for whoever accepts next.
        connections.push_back(listener.connect());
        loop.after(std::chrono::milliseconds{100}, [&] {
            before = accepted.size();
            loop.accept_each(listener.fd(), [&](int fd) {
                accepted.emplace_back(fd);
                if (accepted.size() == connections.size()) loop.stop();
            });
            loop.after(std::chrono::seconds{30}, [&] { loop.stop(); });
        });
    });
    loop.run();
    EXPECT_LT(before, connections.size());
    EXPECT_EQ(accepted.size(), connections.size());
    for (const Fd &connection : connections) EXPECT_FALSE(is_hung_up(connection));
}

constexpr int kSkipped = 77;

bool is_readable(const Fd &fd) {
    pollfd asked{fd.get(), POLLIN, 0};
    return ::poll(&asked, 1, 0) == 1;
}

// In a process of a user who may have no more threads: a limit that counts for the kernel's own, too, which writes to
// the eventfd. Its exit status.
template <class Program>
int status_without_threads(Program program) {
    const pid_t child = ::fork();
    if (child == 0) {
        // root is above the limit.
        if (::geteuid() == 0 && ::setresuid(65534, 65534, 65534) != 0) ::_exit(kSkipped);
        const auto loop = EventLoop::create();
        const Fd event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
        rlimit before{};
        if (!loop || !event || ::getrlimit(RLIMIT_NPROC, &before) != 0) ::_exit(kSkipped);
        const rlimit none{0, before.rlim_max};
        if (::setrlimit(RLIMIT_NPROC, &none) != 0) ::_exit(kSkipped);
        ::_exit(program(**loop, event, [before] { ::setrlimit(RLIMIT_NPROC, &before); }));
    }
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status)) << status;
    return WEXITSTATUS(status);
}

TEST(EventLoop, a_signal_for_which_the_kernel_has_no_thread_is_sent_when_it_has_one) {
    const int status = status_without_threads([](EventLoop &loop, const Fd &event, const auto &lift_limit) {
        bool is_done = false, was_early = false, was_readable = false;
        loop.signal(event.get(), [&] {
            is_done = true;
            was_readable = is_readable(event);
            loop.stop();
        });
        loop.after(std::chrono::milliseconds{300}, [&] {
            was_early = is_done;
            lift_limit();
        });
        loop.after(std::chrono::seconds{30}, [&] { loop.stop(); });
        loop.run();
        return !is_done ? 1 : was_early ? 2 : was_readable ? 0 : 3;
    });
    if (status == kSkipped) GTEST_SKIP() << "no io_uring for users here";
    EXPECT_EQ(status, 0);
}

TEST(EventLoop, a_signal_that_is_cancelled_while_it_waits_for_a_thread_is_gone_at_once) {
    const int status = status_without_threads([](EventLoop &loop, const Fd &event, const auto &lift_limit) {
        bool is_done = false, is_gone = false, was_gone = false;
        const EventLoop::WaitId signal = loop.signal(event.get(), [&] { is_done = true; });
        loop.after(std::chrono::milliseconds{300}, [&] {
            loop.cancel(signal, [&] { is_gone = true; });
            was_gone = is_gone;
            lift_limit();
        });
        loop.after(std::chrono::seconds{2}, [&] { loop.stop(); });
        loop.run();
        return is_done ? 1 : !was_gone ? 2 : is_readable(event) ? 3 : 0;
    });
    if (status == kSkipped) GTEST_SKIP() << "no io_uring for users here";
    EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace numacre::daemon
