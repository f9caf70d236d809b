// What the C and C++ libraries do for the sources under test, in fibers on one OS thread: a lock that is taken lets
// others run, and time is the scheduler's. Defined in the program, these are found before the libraries' own.
#include <grp.h>
#include <pthread.h>
#include <pwd.h>
#include <time.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "kernel.hpp"

using numacre::simulation::Kernel;
using numacre::simulation::Scheduler;

namespace {

bool in_fiber() {
    return Scheduler::running != nullptr && Kernel::running != nullptr && Kernel::running->in_process();
}

// A process's own lock: those of all clients have one address.
const std::uint32_t *key_of(const pthread_mutex_t *mutex) {
    const auto process = static_cast<std::uintptr_t>(Kernel::running->current().id);
    return reinterpret_cast<const std::uint32_t *>(reinterpret_cast<std::uintptr_t>(mutex) ^ process << 48);
}

std::uint64_t now_ns() {
    return Scheduler::running == nullptr ? 1 : Scheduler::running->now_ns();
}

}  // namespace

extern "C" {

int pthread_mutex_lock(pthread_mutex_t *mutex) noexcept {
    if (mutex->__data.__kind == PTHREAD_MUTEX_RECURSIVE_NP) {
        ++mutex->__data.__lock;
        return 0;
    }
    if (in_fiber()) {
        numacre::simulation::step();
        while (mutex->__data.__lock != 0) Kernel::running->scheduler().wait_on(key_of(mutex), Kernel::kForEver);
    } else if (mutex->__data.__lock != 0) {
        std::fputs("simulation: a lock of a fiber is wanted outside fibers\n", stderr);
        std::abort();
    }
    mutex->__data.__lock = 1;
    if (in_fiber()) Kernel::running->loop_watch.takes(Kernel::running->scheduler().current(), mutex);
    return 0;
}

int pthread_mutex_unlock(pthread_mutex_t *mutex) noexcept {
    if (mutex->__data.__kind == PTHREAD_MUTEX_RECURSIVE_NP) {
        --mutex->__data.__lock;
        return 0;
    }
    mutex->__data.__lock = 0;
    if (in_fiber()) {
        Kernel::running->loop_watch.releases(Kernel::running->scheduler().current(), mutex);
        Kernel::running->scheduler().wake(key_of(mutex));
    }
    return 0;
}

int nanosleep(const timespec *time, timespec *) {
    if (in_fiber())
        Kernel::running->scheduler().sleep_ns(static_cast<std::uint64_t>(time->tv_sec) * 1'000'000'000 +
                                              static_cast<std::uint64_t>(time->tv_nsec));
    return 0;
}

int getpwuid_r(uid_t, passwd *, char *, size_t, passwd **result) {
    *result = nullptr;
    return 0;
}
int getgrgid_r(gid_t, group *, char *, size_t, group **result) {
    *result = nullptr;
    return 0;
}

}  // extern "C"

namespace std::chrono {
inline namespace _V2 {

steady_clock::time_point steady_clock::now() noexcept {
    return time_point(duration(static_cast<rep>(now_ns())));
}
system_clock::time_point system_clock::now() noexcept {
    return time_point(duration_cast<duration>(nanoseconds(static_cast<std::int64_t>(now_ns()))));
}

}  // namespace _V2
}  // namespace std::chrono
