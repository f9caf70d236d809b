// The event loop's own promises, with real sockets.
#include "os/event_loop.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <vector>

#include "os/fd.hpp"

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

}  // namespace
}  // namespace numacre::daemon
