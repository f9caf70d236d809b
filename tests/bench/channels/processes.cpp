#include "processes.hpp"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>

namespace numacre::bench {
namespace {

// A measurement takes a second at most; a process that is stuck is ended after this time.
constexpr std::uint64_t kPatienceNs = 60'000'000'000;
constexpr int kUnavailable = 77, kFailed = 1;
constexpr std::array<const char *, 2> kRoles{"sender", "receiver"};

std::runtime_error failure(const std::string &what) {
    return std::runtime_error(what + ": " + std::strerror(errno));
}

void pin_to(unsigned cpu) {
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET(cpu, &cpus);
    if (sched_setaffinity(0, sizeof cpus, &cpus) != 0)
        throw Unavailable("cannot run on CPU " + std::to_string(cpu) + ": " + std::strerror(errno));
}

pid_t start(Control &control, unsigned role, const std::function<void()> &work) {
    const pid_t parent = getpid();
    const pid_t child = fork();
    if (child < 0) throw failure("fork");
    if (child > 0) return child;
    int status = 0;
    const auto give_up = [&](const std::exception &error, int result) {
        std::snprintf(control.messages[role].data(), control.messages[role].size(), "%s", error.what());
        status = result;
    };
    try {
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) throw failure("prctl");
        if (getppid() != parent) _exit(kFailed);
        pin_to(role);
        work();
    } catch (const Unavailable &error) {
        give_up(error, kUnavailable);
    } catch (const std::exception &error) {
        give_up(error, kFailed);
    }
    _exit(status);
}

// Ends one process when the other has failed: the first would wait for the second for ever.
std::array<int, 2> statuses_of(const std::array<pid_t, 2> &children) {
    std::array<int, 2> statuses{};
    std::array<bool, 2> ended{};
    const std::uint64_t begin = now_ns();
    bool ending = false;
    while (!ended[0] || !ended[1]) {
        for (std::size_t i = 0; i < children.size(); ++i) {
            if (ended[i]) continue;
            if (ending) kill(children[i], SIGKILL);
            const pid_t result = waitpid(children[i], &statuses[i], ending ? 0 : WNOHANG);
            if (result < 0 && errno != EINTR) throw failure("waitpid");
            ended[i] = result == children[i];
            if (ended[i] && statuses[i] != 0) ending = true;
        }
        if (now_ns() - begin > kPatienceNs) ending = true;
        usleep(1000);
    }
    return statuses;
}

}  // namespace

std::uint64_t now_ns() {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(time.tv_nsec);
}

SharedMemory::SharedMemory(std::size_t bytes, bool hugepages) : bytes_(bytes) {
    constexpr std::size_t kHugepageBytes = std::size_t{2} << 20;
    if (hugepages) bytes_ = (bytes + kHugepageBytes - 1) / kHugepageBytes * kHugepageBytes;
    void *const memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE | (hugepages ? MAP_HUGETLB : 0), -1, 0);
    if (memory == MAP_FAILED && hugepages)
        throw Unavailable("there are no " + std::to_string(bytes_ / kHugepageBytes) +
                          " free hugepages of 2 MiB (/proc/sys/vm/nr_hugepages)");
    if (memory == MAP_FAILED) throw failure("mmap");
    memory_ = static_cast<std::byte *>(memory);
}

SharedMemory::~SharedMemory() {
    munmap(memory_, bytes_);
}

void run_pair(Control &control, const std::function<void()> &sender, const std::function<void()> &receiver) {
    std::fflush(nullptr);  // or the children would print it once more
    const pid_t receiving = start(control, 1, receiver);
    control.receiver_pid = receiving;
    const std::array<pid_t, 2> children{start(control, 0, sender), receiving};
    const std::array<int, 2> statuses = statuses_of(children);
    // A process that has said why it ended comes first: the other one was ended for that.
    for (std::size_t i = 0; i < statuses.size(); ++i) {
        if (!WIFEXITED(statuses[i]) || WEXITSTATUS(statuses[i]) == 0) continue;
        if (WEXITSTATUS(statuses[i]) == kUnavailable) throw Unavailable(control.messages[i].data());
        throw std::runtime_error(std::string(kRoles[i]) + ": " + control.messages[i].data());
    }
    for (std::size_t i = 0; i < statuses.size(); ++i)
        if (WIFSIGNALED(statuses[i]))
            throw std::runtime_error(std::string("the ") + kRoles[i] + " was ended by signal " +
                                     std::to_string(WTERMSIG(statuses[i])) +
                                     (WTERMSIG(statuses[i]) == SIGKILL ? ": it had not ended in time" : ""));
}

void meet(Control &control) {
    const std::uint32_t before = control.ready.fetch_add(1);
    while (control.ready.load() < before / 2 * 2 + 2) relax();
}

void wait_until_asleep(pid_t pid) {
    const std::string path = "/proc/" + std::to_string(pid) + "/stat";
    for (;;) {
        std::array<char, 512> text{};
        const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
        if (fd < 0 || read(fd, text.data(), text.size() - 1) <= 0) throw failure(path);
        close(fd);
        const char *const after_name = std::strrchr(text.data(), ')');
        if (after_name != nullptr && after_name[2] == 'S') return;
        sched_yield();
    }
}

}  // namespace numacre::bench
