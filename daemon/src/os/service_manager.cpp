#include "os/service_manager.hpp"

#include <sys/socket.h>
#include <sys/un.h>
#include <systemd/sd-daemon.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "os/fd.hpp"
#include "os/fd_passing.hpp"

namespace numacre::daemon::service_manager {

namespace {

constexpr std::chrono::milliseconds kPatience{1000};

}  // namespace

// Does not use sd_notify(), which waits as long as the manager does not read.
int tell(const std::string &message, std::chrono::milliseconds patience, std::span<const int> fds) {
    const char *const name = std::getenv("NOTIFY_SOCKET");
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string_view path = name == nullptr ? "" : name;
    if (path.size() < 2 || path.size() >= sizeof address.sun_path || (path[0] != '/' && path[0] != '@')) return ENOENT;
    std::copy(path.begin(), path.end(), address.sun_path);
    if (path[0] == '@') address.sun_path[0] = '\0';  // an abstract name
    const Fd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!socket) return errno;
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(patience);
    const timeval limit{seconds.count(), std::chrono::microseconds(patience - seconds).count()};
    ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
    if (::connect(socket.get(), reinterpret_cast<const sockaddr *>(&address), size) != 0) return errno;
    return send_packet<1>(socket.get(), message.data(), message.size(), fds, patience.count() == 0 ? MSG_DONTWAIT : 0);
}

int ready(const std::string &status) {
    return tell("READY=1\nSTATUS=" + status, {});
}

void stopping() {
    (void)tell("STOPPING=1\nSTATUS=giving memory back", kPatience);
}

void alive() {
    (void)tell("WATCHDOG=1", {});
}

std::optional<std::chrono::milliseconds> watchdog_period() {
    std::uint64_t limit_us = 0;
    if (sd_watchdog_enabled(0, &limit_us) <= 0) return std::nullopt;
    // Half of the allowed time, as sd_watchdog_enabled(3) advises.
    return std::max(std::chrono::milliseconds(1), std::chrono::milliseconds(limit_us / 2000));
}

}  // namespace numacre::daemon::service_manager
