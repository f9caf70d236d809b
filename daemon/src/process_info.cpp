#include "process_info.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>

namespace numacre::daemon {

namespace {

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77  // Linux 6.5; glibc 2.36 does not know it
#endif

std::string proc_file(std::uint32_t pid, const char *name) {
    return "/proc/" + std::to_string(pid) + "/" + name;
}

std::string read_comm(std::uint32_t pid) {
    std::ifstream file(proc_file(pid, "comm"));
    std::string line;
    std::getline(file, line);
    return line;
}

// The cgroup v2 path, or that of the first hierarchy.
std::string read_cgroup(std::uint32_t pid) {
    std::ifstream file(proc_file(pid, "cgroup"));
    std::string line, first;
    while (std::getline(file, line)) {
        const std::size_t colon = line.rfind(':');
        if (colon == std::string::npos) continue;
        if (line.starts_with("0::")) return line.substr(colon + 1);
        if (first.empty()) first = line.substr(colon + 1);
    }
    return first;
}

// Fields of /proc/<pid>/stat, counted from 1 as proc(5) does.
constexpr int kStartTimeField = 22;
constexpr int kStackStartField = 28;

// 0: it cannot be read.
std::uint64_t read_stat(std::uint32_t pid, int field) {
    std::ifstream file(proc_file(pid, "stat"));
    std::string line;
    std::getline(file, line);
    const std::size_t name_end = line.rfind(')');  // the name before it may hold anything
    if (name_end == std::string::npos) return 0;
    std::istringstream words(line.substr(name_end + 1));
    constexpr int kFirstBehindName = 3;
    std::string skipped;
    for (int at = kFirstBehindName; at < field; ++at) words >> skipped;
    std::uint64_t value = 0;
    words >> value;
    return value;
}

constexpr auto kNobody = static_cast<std::uint32_t>(-1);

// Nothing: errno says why.
std::optional<std::vector<std::uint32_t>> read_groups(int connection_fd) {
    static_assert(sizeof(gid_t) == sizeof(std::uint32_t));
    constexpr std::size_t kRoom = 32;
    std::vector<std::uint32_t> groups(kRoom);
    for (;;) {
        auto size = static_cast<socklen_t>(groups.size() * sizeof groups[0]);
        if (::getsockopt(connection_fd, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &size) == 0) {
            groups.resize(size / sizeof groups[0]);
            return groups;
        }
        // ERANGE says how much it would be, and that never changes: they are those at the time of connecting.
        if (errno != ERANGE || size <= groups.size() * sizeof groups[0]) return std::nullopt;
        groups.resize(size / sizeof groups[0]);
    }
}

}  // namespace

Peer credentials_of(int connection_fd) {
    Peer peer;
    ucred credentials{0, kNobody, kNobody};
    socklen_t size = sizeof credentials;
    (void)::getsockopt(connection_fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size);
    peer.pid = static_cast<std::uint32_t>(credentials.pid);
    peer.uid = credentials.uid;
    peer.gid = credentials.gid;
    return peer;
}

Answer<Peer> peer_of(int connection_fd) {
    const auto gone = [](const char *call, int error) {
        return Unexpected{
            Failure{Errc::access_denied, std::string(call) + " failed: " + std::strerror(error) +
                                             " (the process has ended, or the kernel is older than 5.3)"}};
    };
    Peer peer = credentials_of(connection_fd);
    if (peer.uid == kNobody) return gone("SO_PEERCRED", errno);
    auto groups = read_groups(connection_fd);
    if (!groups) return gone("SO_PEERGROUPS", errno);
    peer.groups = std::move(*groups);
    int number = -1;
    socklen_t size = sizeof number;
    if (::getsockopt(connection_fd, SOL_SOCKET, SO_PEERPIDFD, &number, &size) != 0) {
        if (errno != ENOPROTOOPT) return gone("SO_PEERPIDFD", errno);
        // An older kernel: the pid may have been reused between connect() and here, which costs that one client its
        // reaping, nobody else anything.
        number = static_cast<int>(::syscall(SYS_pidfd_open, peer.pid, 0));
        if (number < 0) return gone("pidfd_open", errno);
    }
    peer.pidfd = std::make_shared<const Fd>(number);
    if (peer.pid != 0) {
        peer.comm = read_comm(peer.pid);
        peer.cgroup = read_cgroup(peer.pid);
        peer.start_time_ticks = read_stat(peer.pid, kStartTimeField);
        peer.stack_start = read_stat(peer.pid, kStackStartField);
    }
    return peer;
}

std::optional<Peer> find_peer(std::uint32_t pid, std::uint64_t start_time_ticks) {
    Peer peer;
    peer.pid = pid;
    peer.start_time_ticks = start_time_ticks;
    if (pid == 0) return peer;
    Fd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    // EINVAL: the number is that of a thread now.
    if (!pidfd && (errno == ESRCH || errno == EINVAL)) return std::nullopt;
    if (!pidfd) return peer;
    // The pidfd first, then the look: it names the process that had the start time, or a later one.
    const std::uint64_t found_ticks = read_stat(pid, kStartTimeField);
    if (found_ticks != 0 && found_ticks != start_time_ticks) return std::nullopt;
    peer.pidfd = std::make_shared<const Fd>(std::move(pidfd));
    peer.comm = read_comm(pid);
    peer.cgroup = read_cgroup(pid);
    return peer;
}

bool has_executed(std::uint32_t pid, std::uint64_t stack_start) {
    const std::uint64_t now = read_stat(pid, kStackStartField);
    return stack_start != 0 && now != 0 && now != stack_start;
}

bool has_ended(const Fd &pidfd) {
    pollfd wait{pidfd.get(), POLLIN, 0};
    return ::poll(&wait, 1, 0) == 1;
}

std::optional<bool> maps_any(std::uint32_t pid, std::span<const FileIdentity> files) {
    std::ifstream maps(proc_file(pid, "maps"));
    if (!maps) return std::nullopt;
    std::string line;
    bool read_any = false;
    while (std::getline(maps, line)) {
        read_any = true;
        unsigned major_number = 0, minor_number = 0;
        unsigned long inode = 0;
        // address range, permissions, offset, device, inode
        if (std::sscanf(line.c_str(), "%*s %*s %*s %x:%x %lu", &major_number, &minor_number, &inode) != 3) continue;
        const FileIdentity mapped{makedev(major_number, minor_number), inode};
        if (std::find(files.begin(), files.end(), mapped) != files.end()) return true;
    }
    // A living process has at least its stack: an empty file is one that we were not shown.
    return read_any ? std::optional<bool>(false) : std::nullopt;
}

int send_signal(const Fd &pidfd, int signal_number) {
    return ::syscall(SYS_pidfd_send_signal, pidfd.get(), signal_number, nullptr, 0) == 0 ? 0 : errno;
}

}  // namespace numacre::daemon
