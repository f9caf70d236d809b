#include "os/process_info.hpp"

#include <dirent.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <sstream>
#include <string_view>

#include "numacre/os/kernel.hpp"

namespace numacre::daemon {

namespace {

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77  // Linux 6.5; glibc 2.36 does not know it
#endif

std::string proc_file(std::uint32_t pid, const char *name) {
    return "/proc/" + std::to_string(pid) + "/" + name;
}

// No value: errno has the reason.
std::optional<std::string> read_text(const std::string &path) {
    const Fd file(os::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!file) return std::nullopt;
    std::string text;
    for (;;) {
        constexpr std::size_t kPiece = 1024;
        const std::size_t before = text.size();
        text.resize(before + kPiece);
        const ssize_t got = os::read(file.get(), text.data() + before, kPiece);
        text.resize(before + (got > 0 ? static_cast<std::size_t>(got) : 0));
        if (got == 0) return text;
        if (got < 0 && errno != EINTR) return std::nullopt;  // the process has ended meanwhile
    }
}

std::string first_line(const std::string &text) {
    return text.substr(0, text.find('\n'));
}

// True if /proc shows the processes of our pid namespace under their numbers. If /proc is another namespace's (a
// container with the machine's /proc, `unshare --pid` without a new one), strangers have the numbers of our clients,
// and its content is no evidence of anything. Checked each time: /proc can be mounted anew.
bool numbers_as_we_do() {
    const auto status = read_text("/proc/self/status");
    return status && has_one_number(*status);
}

// Empty: /proc does not show the file.
std::string read_of(std::uint32_t pid, const char *name) {
    return read_text(proc_file(pid, name)).value_or("");
}

// The cgroup v2 path, or else the path of the first hierarchy.
std::string read_cgroup(std::uint32_t pid) {
    std::istringstream file(read_of(pid, "cgroup"));
    std::string line, first;
    while (std::getline(file, line)) {
        const std::size_t colon = line.rfind(':');
        if (colon == std::string::npos) continue;
        if (line.starts_with("0::")) return line.substr(colon + 1);
        if (first.empty()) first = line.substr(colon + 1);
    }
    return first;
}

struct Stat {  // 0: cannot be read
    std::uint64_t start_time = 0;
    std::uint64_t stack_start = 0;
};

Stat read_stat(std::uint32_t pid, std::uint32_t thread) {
    const std::string line = first_line(read_of(pid, ("task/" + std::to_string(thread) + "/stat").c_str()));
    const std::size_t name_end = line.rfind(')');  // the name before it may contain any character
    if (name_end == std::string::npos) return {};
    std::istringstream words(line.substr(name_end + 1));
    // Numbers of fields, counted from 1 as in proc(5).
    constexpr int kFirstBehindName = 3, kStartTimeField = 22, kStackStartField = 28;
    Stat stat;
    std::string skipped;
    for (int at = kFirstBehindName; at < kStartTimeField; ++at) words >> skipped;
    words >> stat.start_time;
    for (int at = kStartTimeField + 1; at < kStackStartField; ++at) words >> skipped;
    words >> stat.stack_start;
    return stat;
}

// A thread of the process other than the first one; 0: there is none.
std::uint32_t other_thread(std::uint32_t pid) {
    const auto close = [](DIR *folder) { ::closedir(folder); };
    const std::unique_ptr<DIR, decltype(close)> threads(::opendir(proc_file(pid, "task").c_str()));
    if (!threads) return 0;
    // Four entries suffice: only ., .. and the first thread are not another thread.
    constexpr int kEntries = 4;
    for (int i = 0; i < kEntries; ++i) {
        const dirent *const entry = ::readdir(threads.get());
        if (entry == nullptr) return 0;
        const auto number = static_cast<std::uint32_t>(std::strtoul(entry->d_name, nullptr, 10));
        if (number != 0 && number != pid) return number;
    }
    return 0;
}

// Reads the stat of the first thread: for the process's own, the kernel walks all of its threads, of which there may be
// many thousands. A first thread that has ended before the others has no stack; the stack is then another thread's.
Stat read_stat(std::uint32_t pid) {
    Stat stat = read_stat(pid, pid);
    if (stat.start_time == 0 || stat.stack_start != 0) return stat;
    if (const std::uint32_t other = other_thread(pid); other != 0) stat.stack_start = read_stat(pid, other).stack_start;
    return stat;
}

#ifndef PID_FS_MAGIC
#define PID_FS_MAGIC 0x50494446
#endif

// 0: the kernel is older than 6.9, where all pidfds have one inode.
std::uint64_t inode_of_pidfd(int fd) {
    struct statfs system{};
    struct stat status{};
    if (os::fstatfs(fd, &system) != 0 || system.f_type != PID_FS_MAGIC || os::fstat(fd, &status) != 0) return 0;
    return status.st_ino;
}

// Our pid namespace, as a number that no other namespace has. 0: unknown.
std::uint64_t find_own_pid_space() {
    // The inode of the namespace's first process comes first, because the inodes of namespaces themselves are used
    // again. The order is fixed, so that daemons on one machine agree.
    const Fd first(os::pidfd_open(1));
    if (!first && (errno == EMFILE || errno == ENFILE || errno == ENOMEM)) return 0;
    if (const std::uint64_t inode = first ? inode_of_pidfd(first.get()) : 0; inode != 0) return inode;
    struct stat status{};
    return os::stat("/proc/self/ns/pid", &status) == 0 ? std::uint64_t{status.st_ino} : std::uint64_t{0};
}

std::uint64_t own_pid_space() {
    static std::atomic<std::uint64_t> own{0};  // relaxed: every thread finds the same number
    if (const std::uint64_t known = own.load(std::memory_order_relaxed); known != 0) return known;
    const std::uint64_t found = find_own_pid_space();
    own.store(found, std::memory_order_relaxed);
    return found;
}

std::optional<std::int64_t> own_offset_ticks() {
    const auto text = read_text("/proc/self/timens_offsets");
    // ENOENT: a kernel without time namespaces; or no /proc, and then there is no start time either.
    if (!text) return errno == ENOENT ? std::optional<std::int64_t>(0) : std::nullopt;
    return boot_time_offset_ticks(*text, ::sysconf(_SC_CLK_TCK));
}

// Converts a start time that /proc shows to ticks since the machine's start. 0: cannot be told.
std::uint64_t since_machine_start(std::uint64_t shown) {
    const auto offset = shown == 0 ? std::nullopt : own_offset_ticks();
    return offset ? shown - static_cast<std::uint64_t>(*offset) : 0;
}
std::uint64_t read_start_time(std::uint32_t pid) {
    return since_machine_start(read_stat(pid).start_time);
}

constexpr auto kNobody = static_cast<std::uint32_t>(-1);

}  // namespace

Answer<std::vector<std::uint32_t>> groups_of(int connection_fd) {
    static_assert(sizeof(gid_t) == sizeof(std::uint32_t));
    std::vector<std::uint32_t> groups(kPeerGroupsMax);
    auto size = static_cast<socklen_t>(groups.size() * sizeof groups[0]);
    if (os::getsockopt(connection_fd, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &size) == 0) {
        groups.resize(size / sizeof groups[0]);
        return groups;
    }
    if (errno == ERANGE)  // size has the size that would be needed
        return Unexpected{Failure{Errc::access_denied,
                                  "the process has " + std::to_string(size / sizeof groups[0]) +
                                      " supplementary groups, of which at most " + std::to_string(kPeerGroupsMax) +
                                      " are looked at: attach with fewer, with the pool's group as the primary one, "
                                      "or as its owner"}};
    return Unexpected{Failure{Errc::access_denied, std::string("SO_PEERGROUPS failed: ") + std::strerror(errno)}};
}

Peer credentials_of(int connection_fd) {
    Peer peer;
    ucred credentials{0, kNobody, kNobody};
    socklen_t size = sizeof credentials;
    (void)os::getsockopt(connection_fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size);
    peer.pid = static_cast<std::uint32_t>(credentials.pid);
    peer.uid = credentials.uid;
    peer.gid = credentials.gid;
    return peer;
}

Fd pidfd_of_peer(int connection_fd) {
    int number = -1;
    socklen_t size = sizeof number;
    return os::getsockopt(connection_fd, SOL_SOCKET, SO_PEERPIDFD, &number, &size) == 0 ? Fd(number) : Fd();
}

Answer<Peer> peer_of(int connection_fd) {
    const auto gone = [](const char *call, int error) {
        if (error == EMFILE || error == ENFILE || error == ENOMEM)
            return Unexpected{Failure{Errc::too_many_clients,
                                      std::string("the daemon has no descriptor left (") + call +
                                          "): close some connections, or raise its open file limit (LimitNOFILE=)"}};
        return Unexpected{
            Failure{Errc::access_denied, std::string(call) + " failed: " + std::strerror(error) +
                                             " (the process has ended, or the kernel is older than 5.3)"}};
    };
    Peer peer = credentials_of(connection_fd);
    if (peer.uid == kNobody) return gone("SO_PEERCRED", errno);
    int number = pidfd_of_peer(connection_fd).release();
    if (number < 0) {
        if (errno != ENOPROTOOPT) return gone("SO_PEERPIDFD", errno);
        // On an older kernel the pid may have been used again between connect() and here. Then the client is not reaped
        // before that other process ends. No other process is harmed: an uncertain process gets no signals.
        number = os::pidfd_open(static_cast<pid_t>(peer.pid));
        if (number < 0) return gone("pidfd_open", errno);
        peer.is_certain = false;
    }
    peer.pidfd = std::make_shared<const Fd>(number);
    peer.pid_space = own_pid_space();
    peer.pidfd_inode = inode_of_pidfd(number);
    return peer;
}

void describe(Peer &peer) {
    if (peer.pid == 0 || !peer.pidfd || !numbers_as_we_do()) return;
    // An older kernel: the process becomes certain if it belongs to the peer's user. A process that got the pid by the
    // client's end and a race then belongs to that user as well.
    struct stat directory{};
    if (!peer.is_certain)
        peer.is_certain =
            os::stat(("/proc/" + std::to_string(peer.pid)).c_str(), &directory) == 0 && directory.st_uid == peer.uid;
    Peer found;
    found.comm = first_line(read_of(peer.pid, "comm"));
    found.cgroup = read_cgroup(peer.pid);
    const Stat stat = read_stat(peer.pid);
    // Checked last: a process that still lives has lived all the time, and so the pid was its own.
    if (has_ended(*peer.pidfd)) return;
    peer.comm = std::move(found.comm);
    peer.cgroup = std::move(found.cgroup);
    peer.start_time_ticks = since_machine_start(stat.start_time);
    peer.stack_start = stat.stack_start;
}

bool has_one_number(const std::string &status) {
    std::istringstream lines(status);
    std::string line;
    while (std::getline(lines, line)) {
        constexpr std::string_view kNumbers = "NSpid:";
        if (!line.starts_with(kNumbers)) continue;
        std::istringstream numbers(line.substr(kNumbers.size()));
        std::uint32_t number = 0;
        unsigned count = 0;
        while (numbers >> number) ++count;
        return count == 1;
    }
    return !status.empty();  // a kernel without pid namespaces
}

std::optional<std::int64_t> boot_time_offset_ticks(const std::string &text, long ticks_per_second) {
    constexpr std::int64_t kNanoseconds = 1'000'000'000;
    std::istringstream words(text);
    std::string clock;
    std::int64_t seconds = 0, nanoseconds = 0;
    while (words >> clock >> seconds >> nanoseconds)
        if (clock == "boottime") return seconds * ticks_per_second + nanoseconds * ticks_per_second / kNanoseconds;
    return std::nullopt;
}

SameProcess compare(const ProcessIdentity &known, const ProcessIdentity &found) {
    if (known.pidfd_inode != 0 && found.pidfd_inode != 0)
        return known.pidfd_inode == found.pidfd_inode ? SameProcess::yes : SameProcess::no;
    if (known.start_time_ticks == 0 || found.start_time_ticks == 0) return SameProcess::unknown;
    // An offset that is no multiple of a tick moves a start time by one tick.
    const auto apart = static_cast<std::int64_t>(known.start_time_ticks - found.start_time_ticks);
    return std::abs(apart) <= 1 ? SameProcess::yes : SameProcess::no;
}

bool can_be_found(const ProcessIdentity &known) {
    // An equal number in another namespace is another process: neither its life nor its end proves anything.
    return known.pid != 0 && known.pid_space != 0 && known.pid_space == own_pid_space();
}

std::optional<Peer> find_peer(const ProcessIdentity &known) {
    Peer peer;
    peer.pid = known.pid;
    peer.pid_space = known.pid_space;
    peer.pidfd_inode = known.pidfd_inode;
    peer.start_time_ticks = known.start_time_ticks;
    peer.is_certain = false;
    if (!can_be_found(known)) return peer;
    Fd pidfd(os::pidfd_open(static_cast<pid_t>(known.pid)));
    // EINVAL, ENOENT (since Linux 6.15): the number now belongs to a thread.
    if (!pidfd && (errno == ESRCH || errno == EINVAL || errno == ENOENT)) return std::nullopt;
    if (!pidfd) return peer;
    const bool is_shown = numbers_as_we_do();
    // The pidfd is opened before the look: the start time is that of the process that the pidfd names, or of a later
    // one.
    const ProcessIdentity found{known.pid, known.pid_space, inode_of_pidfd(pidfd.get()),
                                is_shown ? read_start_time(known.pid) : 0};
    const SameProcess same = compare(known, found);
    if (same == SameProcess::no) return std::nullopt;
    peer.is_certain = same == SameProcess::yes;
    peer.pidfd = std::make_shared<const Fd>(std::move(pidfd));
    if (is_shown) {
        peer.comm = first_line(read_of(known.pid, "comm"));
        peer.cgroup = read_cgroup(known.pid);
    }
    if (peer.is_certain) complete_identity(peer);
    return peer;
}

void complete_identity(Peer &peer) {
    if (peer.start_time_ticks != 0 || !peer.is_certain || !peer.pidfd || !can_be_found(peer.identity())) return;
    if (!numbers_as_we_do()) return;
    const std::uint64_t found = read_start_time(peer.pid);
    // Checked last: a process that still lives has lived all the time, and so the pid was its own.
    if (!has_ended(*peer.pidfd)) peer.start_time_ticks = found;
}

bool has_executed(std::uint32_t pid, std::uint64_t stack_start) {
    if (stack_start == 0 || !numbers_as_we_do()) return false;
    const std::uint64_t now = read_stat(pid).stack_start;
    return now != 0 && now != stack_start;
}

bool has_ended(const Fd &pidfd) {
    pollfd wait{pidfd.get(), POLLIN, 0};
    return os::poll(&wait, 1, 0) == 1;
}

int send_signal(const Fd &pidfd, int signal_number) {
    return os::pidfd_send_signal(pidfd.get(), signal_number) == 0 ? 0 : errno;
}

std::optional<std::string> why_beyond_signals(const Peer &peer) {
    if (!peer.pidfd)
        return "the daemon has restarted since it attached, and does not find its process: have it detach, or start "
               "the "
               "daemon in the pid namespace that it attached in";
    if (!peer.is_certain) return "the process that has its pid may be another one by now: end it by hand if it is not";
    const int error = send_signal(*peer.pidfd, 0);
    if (error == 0 || error == ESRCH) return std::nullopt;
    // The kernel's error for a process of a pid namespace that is not below ours.
    if (error == EINVAL)
        return "it runs in a pid namespace that the daemon cannot see into: end it by hand where it runs";
    return std::string("the daemon may not send it a signal (") + std::strerror(error) +
           "): end it by hand, or run the daemon as root";
}

}  // namespace numacre::daemon
