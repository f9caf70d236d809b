// The end of a thread that has used a pool: without a thread-specific key, in a destructor that runs behind the
// library's, and beside signals of other processes. Each test has a process of its own: a crash is that process's, and
// the library makes its key once.
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <thread>
#include <utility>

#include "numacre/numacre.h"
#include "pool.hpp"
#include "support/in_child.hpp"
#include "support/refused_call.hpp"
#include "support/sanitizer.hpp"

namespace {

using numacre::test::in_child;

constexpr std::size_t kChunk = std::size_t{4} << 20;
constexpr unsigned kChunks = 4;
constexpr unsigned kThreadLimit = 16;
constexpr unsigned kThreads = 100;

TEST(Keys, a_process_that_has_used_up_its_keys_is_refused_and_keeps_the_value_of_its_first) {
    EXPECT_EQ(in_child([] {
                  pthread_key_t key = 0;
                  while (pthread_key_create(&key, nullptr) == 0) {
                  }
                  static int mine;
                  if (pthread_setspecific(0, &mine) != 0) return false;
                  numacre_pool *pool = nullptr;
                  if (numacre_open_private(nullptr, &pool) != -EUSERS) {
                      std::puts("a pool was opened");
                      return false;
                  }
                  const bool says_why = std::strstr(numacre_last_error(), "PTHREAD_KEYS_MAX") != nullptr;
                  if (!says_why || numacre_attach("/nonexistent", nullptr, &pool) != -EUSERS ||
                      pthread_getspecific(0) != &mine)
                      return false;
                  // Some other library gives one back.
                  return pthread_key_delete(7) == 0 && numacre_open_private(nullptr, &pool) == 0;
              }),
              0);
}

// ThreadSanitizer has taken a thread apart before its last destructors run.
#if !defined(UNDER_THREAD_SANITIZER)
numacre_pool *pool = nullptr;

numacre_pool *open_pool() {
    const numacre_private_options options{sizeof options, kChunks * kChunk, 4096, kChunk, 0, 0, 0};
    numacre_pool *opened = nullptr;
    if (numacre_open_private(&options, &opened) != 0) return nullptr;
    // As a daemon limits a client.
    opened->view.processes[opened->process.value].thread_limit = kThreadLimit;
    return opened;
}
bool use(numacre_pool *used) {
    void *block = nullptr;
    const int error = numacre_alloc(used, 4096, &block);
    if (error != 0) std::printf("no block: %s\n", numacre_last_error());
    return error == 0 && numacre_free(used, block) == 0;
}
// All of it in one thread's hands: nobody who is gone keeps anything. A thread that is joined may be in the kernel for
// a moment more.
bool is_whole() {
    for (int tries = 0; tries < 1000; ++tries) {
        bool has_slot = false;
        std::thread{[&] { has_slot = use(pool); }}.join();  // a new thread's first call looks for those that are gone
        void *chunks[kChunks];
        if (has_slot && numacre_alloc_bulk(pool, kChunk, chunks, kChunks) == 0) return true;
        usleep(1000);
    }
    return false;
}

pthread_key_t own_key;
std::atomic<unsigned> rounds;
void call_again(void *value) {
    ++rounds;
    (void)use(pool);
    pthread_setspecific(own_key, value);
}

TEST(ThreadEnd, a_destructor_that_calls_in_the_last_round_keeps_no_slot) {
    EXPECT_EQ(in_child([] {
                  // The library's key first: of each round's destructors, its own runs before the program's.
                  pool = open_pool();
                  if (pool == nullptr || pthread_key_create(&own_key, call_again) != 0) return false;
                  unsigned refused = 0;
                  for (unsigned i = 0; i < kThreads; ++i)
                      std::thread{[&] {
                          refused += use(pool) ? 0 : 1;
                          pthread_setspecific(own_key, &own_key);
                      }}.join();
                  return refused == 0 && rounds == kThreads * PTHREAD_DESTRUCTOR_ITERATIONS && is_whole();
              }),
              0);
}

// Its first call, even.
void call_in_the_last_round(void *value) {
    const auto round = reinterpret_cast<std::uintptr_t>(value);
    if (round == PTHREAD_DESTRUCTOR_ITERATIONS)
        rounds += use(pool) ? 1 : 0;
    else
        pthread_setspecific(own_key, reinterpret_cast<void *>(round + 1));
}

TEST(ThreadEnd, a_destructor_that_makes_the_first_call_in_the_last_round_keeps_no_slot) {
    EXPECT_EQ(in_child([] {
                  pool = open_pool();
                  if (pool == nullptr || pthread_key_create(&own_key, call_in_the_last_round) != 0) return false;
                  for (unsigned i = 0; i < kThreads; ++i)
                      std::thread{[&] { pthread_setspecific(own_key, reinterpret_cast<void *>(1)); }}.join();
                  return rounds == kThreads && is_whole();
              }),
              0);
}

// A filter of system calls that does not know what the library asks for by now: nobody is known to be gone.
class Refused : public ::testing::TestWithParam<std::pair<unsigned, unsigned>> {};
TEST_P(Refused, a_thread_that_lives_is_not_taken_for_gone) {
    EXPECT_EQ(in_child([] {
                  const auto [number, error] = GetParam();
                  pool = open_pool();
                  if (pool == nullptr || !numacre::test::refuse_call(number, error)) return false;
                  void *block = nullptr;
                  if (numacre_alloc(pool, 4096, &block) != 0) return false;
                  for (int i = 0; i < 4; ++i) std::thread{[] { (void)use(pool); }}.join();
                  return numacre_free(pool, block) == 0 && use(pool);
              }),
              0);
}
INSTANTIATE_TEST_SUITE_P(ThreadEnd, Refused,
                         ::testing::Values(std::pair{SYS_gettid, EPERM}, std::pair{SYS_gettid, ENOSYS},
                                           std::pair{SYS_tgkill, EPERM}, std::pair{SYS_tgkill, ESRCH}));

// The kernel keeps it, as a zombie, for as long as there are others.
TEST(ThreadEnd, a_first_thread_that_ends_before_the_others_keeps_no_slot) {
    EXPECT_EQ(in_child([] {
                  pool = open_pool();
                  void *block = nullptr;
                  if (pool == nullptr || numacre_alloc(pool, 4096, &block) != 0 || numacre_free(pool, block) != 0)
                      return false;
                  std::thread{[] { _exit(is_whole() ? 0 : 1); }}.detach();
                  syscall(SYS_exit, 0);
                  return false;
              }),
              0);
}

// Its table of lanes is its parent's.
TEST(ThreadEnd, a_childs_first_thread_that_ends_before_the_others_keeps_no_slot) {
    EXPECT_EQ(in_child([] {
                  pool = open_pool();
                  if (pool == nullptr || !use(pool)) return false;
                  const pid_t child = fork();
                  if (child != 0) {
                      int status = -1;
                      return waitpid(child, &status, 0) == child && status == 0;
                  }
                  pool = open_pool();
                  if (pool == nullptr || !use(pool)) _exit(2);
                  std::thread{[] { _exit(is_whole() ? 0 : 1); }}.detach();
                  syscall(SYS_exit, 0);
                  return false;
              }),
              0);
}
#endif

#if !defined(UNDER_SANITIZER)
// A signal from outside may come at any instruction. The worst is right behind the munmap() of a lane.
numacre_pool *handlers_pool = nullptr;  // used in the handler only, after its thread has made a call on it
thread_local int signal_behind_munmap = 0;
std::atomic<unsigned> sent;
void call_in_handler(int) {
    void *block = nullptr;
    if (numacre_alloc(handlers_pool, 4096, &block) == 0) (void)numacre_free(handlers_pool, block);
}

bool threads_end_beside(int signal, unsigned threads) {
    struct sigaction action{};
    action.sa_handler = call_in_handler;
    if (sigaction(signal, &action, nullptr) != 0) return false;
    // Each thread's lane of the handler's pool goes last: a slot that its handler took then would be lost.
    pool = open_pool();
    handlers_pool = open_pool();
    if (pool == nullptr || handlers_pool == nullptr) return false;
    unsigned refused = 0;
    for (unsigned i = 0; i < threads; ++i)
        std::thread{[&] {
            refused += use(pool) && use(handlers_pool) ? 0 : 1;
            signal_behind_munmap = signal;
        }}.join();
    return refused == 0 && sent >= threads;
}

TEST(ThreadEnd, a_handler_of_sigabrt_finds_no_lane_that_is_unmapped_and_takes_no_slot) {
    EXPECT_EQ(in_child([] { return threads_end_beside(SIGABRT, kThreads) && is_whole(); }), 0);
}

// It cannot be blocked, for a thread's own instructions raise it.
TEST(ThreadEnd, a_handler_of_sigtrap_finds_no_lane_that_is_unmapped_and_takes_no_slot) {
    EXPECT_EQ(in_child([] { return threads_end_beside(SIGTRAP, kThreads) && is_whole(); }), 0);
}
#endif

#if defined(__x86_64__) && !defined(UNDER_SANITIZER)
// At instructions all over a thread's end: the handler makes calls with a handle of its own, which
// are done, or refused because the thread ends. Whatever was done leaves nothing behind.
constexpr greg_t kTrapFlag = 0x100;
constexpr std::uint64_t kStepsOfAnEnd = 7000, kStride = 149;  // a trap costs microseconds
thread_local std::uint64_t traps_left = 0;                    // 0: is not stepped through
std::atomic<unsigned> calls_done, calls_refused, calls_wrong;
pthread_key_t stepping_key, walking_key;

void count(int error) {
    (error == 0 ? calls_done : error == -EBUSY ? calls_refused : calls_wrong) += 1;
}
void step(int, siginfo_t *, void *context) {
    auto &flags = static_cast<ucontext_t *>(context)->uc_mcontext.gregs[REG_EFL];
    flags &= ~kTrapFlag;
    if (traps_left == 0) return;
    if (--traps_left != 0) {
        flags |= kTrapFlag;
        return;
    }
    const int error_before = errno;
    void *block = nullptr;
    int error = numacre_alloc(handlers_pool, 4096, &block);
    count(error);
    if (error == 0) count(numacre_free(handlers_pool, block));
    error = numacre_alloc_on(handlers_pool, -1, 8192, NUMACRE_UNCACHED, &block);
    count(error);
    if (error == 0) count(numacre_free_uncached(handlers_pool, block));
    errno = error_before;
}
// Before the library's destructor, and behind it: by the age of their keys.
void begin_to_step(void *) {
    raise(SIGTRAP);
}
void end_stepping(void *) {
    traps_left = 0;
}

bool is_whole_too() {
    numacre_pool *const before = pool;
    pool = handlers_pool;
    const bool whole = is_whole();
    pool = before;
    return whole;
}

bool threads_end_step_by_step() {
    if (pthread_key_create(&stepping_key, begin_to_step) != 0) return false;
    struct sigaction action{};
    action.sa_sigaction = step;
    action.sa_flags = SA_SIGINFO;
    if (sigaction(SIGTRAP, &action, nullptr) != 0) return false;
    // The handler's pool first, so that it goes first, and last in the second round.
    for (int round = 0; round < 2; ++round) {
        (round == 0 ? handlers_pool : pool) = open_pool();
        (round == 0 ? pool : handlers_pool) = open_pool();
        if (pool == nullptr || handlers_pool == nullptr) return false;
        if (round == 0 && pthread_key_create(&walking_key, end_stepping) != 0) return false;
        const auto end_a_thread = [&](std::uint64_t at) {
            std::thread{[&] {
                if (!use(pool) || !use(handlers_pool)) ++calls_wrong;
                traps_left = at;
                pthread_setspecific(stepping_key, &stepping_key);
                pthread_setspecific(walking_key, &walking_key);
            }}.join();
        };
        for (std::uint64_t at = 1; at < kStepsOfAnEnd; at += kStride) end_a_thread(at);
        if (!is_whole() || !is_whole_too()) {
            std::printf("round %d: blocks are lost\n", round);
            return false;
        }
        numacre_detach(pool);
        numacre_detach(handlers_pool);
    }
    std::printf("%u calls done, %u refused, %u wrong\n", calls_done.load(), calls_refused.load(), calls_wrong.load());
    return calls_wrong == 0 && calls_done != 0 && calls_refused != 0;
}

TEST(ThreadEnd, a_handler_that_calls_anywhere_in_it_leaves_nothing_behind) {
    EXPECT_EQ(in_child(threads_end_step_by_step), 0);
}
#endif

}  // namespace

#if !defined(UNDER_SANITIZER)
// Found by the library before libc's.
extern "C" int munmap(void *address, std::size_t bytes) noexcept {
    const auto result = static_cast<int>(syscall(SYS_munmap, address, bytes));
    if (signal_behind_munmap != 0) {
        ++sent;
        pthread_kill(pthread_self(), signal_behind_munmap);
    }
    return result;
}
#endif
