// Gathers the doctor's facts: reads /proc and /sys, tries three system calls, and judges nothing.
#include <fcntl.h>
#include <linux/io_uring.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>

#include "bytes.hpp"
#include "doctor.hpp"

namespace numacre::cli {
namespace {

namespace fs = std::filesystem;

std::optional<std::string> read_text(const fs::path &path) {
    const std::ifstream file(path);
    if (!file) return std::nullopt;
    std::ostringstream text;
    text << file.rdbuf();
    std::string result = text.str();
    while (!result.empty() && (result.back() == '\n' || result.back() == ' ')) result.pop_back();
    return result;
}

template <class Integer>
std::optional<Integer> to_integer(std::string_view text, int base = 10) {
    Integer value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
    if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
    return value;
}

template <class Integer>
std::optional<Integer> read_integer(const fs::path &path) {
    const auto text = read_text(path);
    return text ? to_integer<Integer>(*text) : std::nullopt;
}

// The entries of a folder, sorted; none if there is no such folder.
std::vector<fs::path> entries(const fs::path &folder) {
    std::vector<fs::path> result;
    std::error_code error;
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
        result.push_back(entry->path());
    }
    std::sort(result.begin(), result.end());
    return result;
}

// The number N in a name "prefixN...".
std::optional<std::uint64_t> number_behind(const fs::path &path, std::string_view prefix) {
    const std::string name = path.filename().string();
    if (name.compare(0, prefix.size(), prefix) != 0) return std::nullopt;
    std::uint64_t value = 0;
    const char *begin = name.data() + prefix.size();
    const auto [end, error] = std::from_chars(begin, name.data() + name.size(), value);
    return error == std::errc{} && end != begin ? std::optional(value) : std::nullopt;
}

void gather_hugepages(const fs::path &root, SystemFacts &facts) {
    const auto read_folder = [&](const fs::path &folder, int os_numa_node) {
        for (const fs::path &size : entries(folder)) {
            const auto kibibytes = number_behind(size, "hugepages-");
            if (!kibibytes) continue;
            HugepageFacts pages;
            pages.os_numa_node = os_numa_node;
            pages.page_bytes = *kibibytes * 1024;
            pages.total = read_integer<std::uint64_t>(size / "nr_hugepages").value_or(0);
            pages.free = read_integer<std::uint64_t>(size / "free_hugepages").value_or(0);
            pages.surplus = read_integer<std::uint64_t>(size / "surplus_hugepages").value_or(0);
            // The kernel counts reserved pages for the machine, not for each numa node: this numa node has free pages
            // for a pool as far as the machine has.
            const fs::path machine = root / "sys/kernel/mm/hugepages" / size.filename();
            const auto reserved = read_integer<std::uint64_t>(machine / "resv_hugepages").value_or(0);
            const auto free = read_integer<std::uint64_t>(machine / "free_hugepages").value_or(pages.free);
            pages.promised = pages.free - std::min(pages.free, free - std::min(free, reserved));
            facts.hugepages.push_back(pages);
        }
    };
    int numa_nodes = 0;
    for (const fs::path &numa_node : entries(root / "sys/devices/system/node")) {
        const auto number = number_behind(numa_node, "node");
        if (!number) continue;
        ++numa_nodes;
        read_folder(numa_node / "hugepages", static_cast<int>(*number));
    }
    facts.numa_nodes = std::max(1, numa_nodes);
    // A kernel without NUMA has only the sum for the machine.
    if (numa_nodes == 0) read_folder(root / "sys/kernel/mm/hugepages", 0);
    std::sort(facts.hugepages.begin(), facts.hugepages.end(), [](const HugepageFacts &a, const HugepageFacts &b) {
        return std::pair(a.os_numa_node, a.page_bytes) < std::pair(b.os_numa_node, b.page_bytes);
    });
}

int try_io_uring() {
    io_uring_params parameters{};
    const long ring = ::syscall(__NR_io_uring_setup, 1, &parameters);
    if (ring < 0) return errno;
    ::close(static_cast<int>(ring));
    return 0;
}

// Asks for the features that client/src/guard.cpp asks for.
int try_userfaultfd() {
    const long fd = ::syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
    if (fd < 0) return errno;
    uffdio_api api{};
    api.api = UFFD_API;
    api.features = UFFD_FEATURE_SIGBUS | UFFD_FEATURE_MISSING_HUGETLBFS | UFFD_FEATURE_MISSING_SHMEM;
    const int error = ::ioctl(static_cast<int>(fd), UFFDIO_API, &api) == 0 ? 0 : errno;
    ::close(static_cast<int>(fd));
    return error;
}

int try_memfd() {
    const int memfd = ::memfd_create("numacre-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (memfd < 0) return errno;
    ::close(memfd);
    return 0;
}

// The soft limit on the line of /proc/PID/limits that begins with name.
std::optional<std::uint64_t> limit_of(const std::string &limits, std::string_view name) {
    const auto line = limits.find(name);
    if (line == std::string::npos) return std::nullopt;
    std::istringstream rest(limits.substr(line + name.size()));
    std::string soft;
    rest >> soft;
    return to_integer<std::uint64_t>(soft);  // "unlimited" is no number
}

// "hugetlb.2MB.max" -> 2 MiB; the kernel writes MB and GB for MiB and GiB.
std::optional<std::uint64_t> page_bytes_of(const std::string &name) {
    constexpr std::string_view kHead = "hugetlb.", kTail = "B.max";
    if (name.size() <= kHead.size() + kTail.size() || name.compare(0, kHead.size(), kHead) != 0 ||
        name.compare(name.size() - kTail.size(), kTail.size(), kTail) != 0) {
        return std::nullopt;
    }
    try {
        return parse_bytes(name.substr(kHead.size(), name.size() - kHead.size() - kTail.size()));
    } catch (const ArgumentError &) {
        return std::nullopt;  // "hugetlb.2MB.rsvd.max": the reservation limit; we map with MAP_NORESERVE, so it does
                              // not apply
    }
}

void gather_hugetlb_limits(const fs::path &root, const fs::path &process, SystemFacts &facts) {
    const auto membership = read_text(process / "cgroup");
    if (!membership) return;
    std::istringstream lines(*membership);
    for (std::string line; std::getline(lines, line);) {
        // cgroup v2 has one line, "0::/path"; v1's hugetlb controller has other names, and its limits are not read.
        if (line.compare(0, 3, "0::") != 0) continue;
        // A limit of any ancestor group binds as well.
        for (fs::path group = line.substr(3);; group = group.parent_path()) {
            const fs::path folder = root / "sys/fs/cgroup" / group.relative_path();
            for (const fs::path &file : entries(folder)) {
                const auto page_bytes = page_bytes_of(file.filename().string());
                const auto limit = page_bytes ? read_integer<std::uint64_t>(file) : std::nullopt;  // "max" is no number
                if (!limit) continue;
                std::string current = file.filename().string();
                current.replace(current.size() - 3, 3, "current");
                facts.hugetlb_limits.push_back(
                    {group.string(), *page_bytes, *limit, read_integer<std::uint64_t>(folder / current).value_or(0)});
            }
            if (group == group.parent_path()) break;
        }
    }
}

}  // namespace

SystemFacts gather_system_facts(const std::string &root_text, const std::string &runtime_dir, int daemon_pid) {
    const fs::path root = root_text.empty() ? fs::path("/") : fs::path(root_text);
    SystemFacts facts;
    gather_hugepages(root, facts);

    const fs::path sysctl = root / "proc/sys";
    facts.io_uring_disabled = read_integer<long>(sysctl / "kernel/io_uring_disabled");
    facts.memfd_noexec = read_integer<long>(sysctl / "vm/memfd_noexec");
    facts.overcommit_memory = read_integer<long>(sysctl / "vm/overcommit_memory");
    facts.overcommit_hugepages = read_integer<std::uint64_t>(sysctl / "vm/nr_overcommit_hugepages").value_or(0);
    facts.numa_balancing = read_integer<long>(sysctl / "kernel/numa_balancing");
    facts.io_uring_errno = try_io_uring();
    facts.memfd_errno = try_memfd();
    facts.userfaultfd_errno = try_userfaultfd();

    if (const auto choices = read_text(root / "sys/kernel/mm/transparent_hugepage/shmem_enabled")) {
        const auto open = choices->find('['), close = choices->find(']');
        if (open != std::string::npos && close != std::string::npos && open < close) {
            facts.thp_shmem = choices->substr(open + 1, close - open - 1);
        }
    }

    fs::path process = root / "proc" / std::to_string(daemon_pid);
    facts.limits_of = "numacred (pid " + std::to_string(daemon_pid) + ")";
    if (daemon_pid == 0 || !read_text(process / "limits")) {
        process = root / "proc/self";
        facts.limits_of = "this shell";
    }
    if (const auto limits = read_text(process / "limits")) {
        facts.memlock_bytes = limit_of(*limits, "Max locked memory");
        facts.file_size_bytes = limit_of(*limits, "Max file size");
    }
    if (const auto status = read_text(process / "status")) {
        constexpr std::string_view kName = "CapEff:\t";
        constexpr unsigned kCapIpcLock = 14;
        if (const auto line = status->find(kName); line != std::string::npos) {
            const auto set = to_integer<std::uint64_t>(std::string_view(*status).substr(line + kName.size(), 16), 16);
            facts.privileged = set && (*set >> kCapIpcLock & 1) != 0;
        }
    }
    gather_hugetlb_limits(root, process, facts);

    struct statvfs shm{};
    if (::statvfs((root / "dev/shm").c_str(), &shm) == 0) {
        facts.shm_total_bytes = std::uint64_t{shm.f_blocks} * shm.f_frsize;
        facts.shm_free_bytes = std::uint64_t{shm.f_bavail} * shm.f_frsize;
    }

    facts.runtime_dir = runtime_dir;
    struct stat status{};
    if (::stat(runtime_dir.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) {
        facts.runtime_dir_exists = true;
        facts.runtime_dir_mode = status.st_mode & 07777;
    }
    return facts;
}

int listener_pid(const std::string &socket_path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (socket_path.size() >= sizeof address.sun_path) return 0;
    std::memcpy(address.sun_path, socket_path.c_str(), socket_path.size() + 1);
    const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (socket < 0) return 0;
    int pid = 0;
    ucred peer{};
    socklen_t size = sizeof peer;
    // For the connecting side SO_PEERCRED is the process that called listen().
    if (::connect(socket, reinterpret_cast<const sockaddr *>(&address), sizeof address) == 0 &&
        ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0) {
        pid = peer.pid;
    }
    ::close(socket);
    return pid;
}

}  // namespace numacre::cli
