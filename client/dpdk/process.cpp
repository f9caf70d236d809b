// Names of processes, and whether they live.
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "driver.hpp"

namespace numacre::dpdk {
namespace {

struct Look {
    bool exists;
    bool is_known;  // false: the kernel does not tell
    char state;
    long threads;
    unsigned long long start;
};

// text: "pid (name) state ...", as in /proc/PID/stat. The name may have any characters, so the last parenthesis ends
// it.
void read_fields(const char *text, Look &look) {
    constexpr int kState = 3, kThreads = 20, kStart = 22;
    look.exists = true;
    const char *at = std::strrchr(text, ')');
    for (int field = kState; at != nullptr && field <= kStart; ++field) {
        at = std::strchr(at, ' ');
        if (at == nullptr) return;
        ++at;
        if (field == kState) look.state = *at;
        if (field == kThreads) look.threads = std::strtol(at, nullptr, 10);
        if (field == kStart) look.start = std::strtoull(at, nullptr, 10);
    }
    look.is_known = look.start != 0;
}

Look look_at(std::uint32_t pid) {
    Look look{};
    char path[32];
    std::snprintf(path, sizeof path, "/proc/%u/stat", pid);
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) {
        look.is_known = errno == ENOENT;
        return look;
    }
    char text[1024];
    const ssize_t length = read(file, text, sizeof text - 1);
    const bool has_ended = length < 0 && errno == ESRCH;
    close(file);
    if (length <= 0) {
        look.is_known = has_ended;
        return look;
    }
    text[length] = '\0';
    read_fields(text, look);
    return look;
}

std::uint32_t pid_namespace() {
    struct stat status{};
    return stat("/proc/self/ns/pid", &status) == 0 ? static_cast<std::uint32_t>(status.st_ino) : 0;
}

ProcessName self;
pthread_once_t once = PTHREAD_ONCE_INIT;

void read_self() {
    const auto pid = static_cast<std::uint32_t>(getpid());
    self = {look_at(pid).start, pid, pid_namespace()};
}

}  // namespace

const ProcessName &this_process() {
    pthread_once(&once, read_self);
    if (self.pid != static_cast<std::uint32_t>(getpid())) [[unlikely]]
        read_self();  // in a child of fork(), which has one thread at first
    return self;
}

bool is_dead(const ProcessName &process) {
    if (process.pid == 0 || process.pid_namespace == 0 || process.pid_namespace != this_process().pid_namespace)
        return false;
    const Look look = look_at(process.pid);
    if (!look.is_known) return false;
    if (!look.exists || look.start != process.start) return true;
    // Nobody has waited for it yet. Its other threads may still run for a moment after the first one.
    return (look.state == 'Z' || look.state == 'X') && look.threads <= 1;
}

}  // namespace numacre::dpdk
