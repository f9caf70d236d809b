// Waiters whose wake-ups do not arrive: an observer has the pool region mapped, and needs no right to write for taking
// a wake-up that is meant for a waiter (FUTEX_WAIT on the same word), or for moving the waiter to another word
// (FUTEX_REQUEUE).
#include <gtest/gtest.h>

#include "support/sanitizer.hpp"

#if !defined(UNDER_SANITIZER)
#include <dlfcn.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <thread>

#include "numacre/numacre.h"

namespace {

std::uint64_t now_ns() {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(time.tv_nsec);
}

// What the library asks of futexes.
constexpr std::uint64_t kShortestNapNs = 1'000'000;
thread_local std::uint64_t waits_since = 0;  // 0: the calling thread does not wait
std::atomic<unsigned> naps;
std::atomic<unsigned> naps_too_long;
std::atomic<bool> steals_wake_ups = false;
std::atomic<unsigned> stolen;

void note_nap(const timespec *duration) {
    const std::uint64_t waited = now_ns() - waits_since;
    const std::uint64_t nap =
        static_cast<std::uint64_t>(duration->tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(duration->tv_nsec);
    naps_too_long += nap > std::max(waited, kShortestNapNs) ? 1 : 0;
    ++naps;
}

}  // namespace

// Found by the library before libc's.
extern "C" long syscall(long number, ...) noexcept {
    static const auto libcs = reinterpret_cast<long (*)(long, ...)>(dlsym(RTLD_NEXT, "syscall"));
    va_list list;
    va_start(list, number);
    long arguments[6];
    for (long &argument : arguments) argument = va_arg(list, long);
    va_end(list);
    if (number == SYS_futex && arguments[1] == FUTEX_WAKE && steals_wake_ups) {
        ++stolen;
        return 0;
    }
    if (number == SYS_futex && arguments[1] == FUTEX_WAIT && waits_since != 0)
        note_nap(reinterpret_cast<const timespec *>(arguments[3]));
    return libcs(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
}

namespace {

// So it finds what it has been given in twice the time at most, without any assertion on a clock.
TEST(Waiting, a_waiter_whose_wake_up_is_stolen_naps_no_longer_than_it_has_waited) {
    constexpr unsigned kChunks = 4;
    constexpr std::size_t kChunk = std::size_t{4} << 20;
    const numacre_private_options options{sizeof options, kChunks * kChunk, 4096, kChunk, 0, 0, 0};
    numacre_pool *pool = nullptr;
    ASSERT_EQ(numacre_open_private(&options, &pool), 0) << numacre_last_error();
    void *chunks[kChunks];
    ASSERT_EQ(numacre_alloc_bulk(pool, kChunk, chunks, kChunks), 0);
    steals_wake_ups = true;
    int result = -1;
    void *block = nullptr;
    std::thread waiter([&] {
        waits_since = now_ns();
        result = numacre_alloc_on(pool, -1, kChunk, NUMACRE_WAIT, &block);
    });
    while (naps < 3) usleep(1000);
    EXPECT_EQ(numacre_free(pool, chunks[1]), 0) << numacre_last_error();
    waiter.join();
    steals_wake_ups = false;
    EXPECT_EQ(result, 0);
    EXPECT_EQ(block, chunks[1]);
    EXPECT_GT(stolen, 0U);
    EXPECT_EQ(naps_too_long, 0U);
    numacre_detach(pool);
}

}  // namespace

#else

TEST(Waiting, a_waiter_whose_wake_up_is_stolen_naps_no_longer_than_it_has_waited) {
    GTEST_SKIP() << "NOT TESTED: a syscall() of the test's own is for builds without a sanitizer";
}

#endif
