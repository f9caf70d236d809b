// Threads that do not come to the end of their call: cancelled, or gone by siglongjmp(); and threads that end beside a
// signal handler that calls. What they leave behind must not be in anybody's way.
#include <gtest/gtest.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "numacre/numacre.h"
#include "pool.hpp"
#include "support/in_child.hpp"
#include "support/sanitizer.hpp"

namespace {

using numacre::test::in_child;

constexpr std::size_t kChunk = 4 << 20;

void *allocate_for_ever(void *argument) {
    auto *const pool = static_cast<numacre_pool *>(argument);
    for (;;) {
        pthread_testcancel();
        void *block = nullptr;
        if (numacre_alloc(pool, 4096, &block) == 0) numacre_free(pool, block);
    }
    return nullptr;
}

TEST(Cancel, a_thread_that_is_cancelled_while_a_trace_is_written_holds_nobody_up) {
    std::string folder = (std::filesystem::temp_directory_path() / "numacre-cancel-XXXXXX").string();
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    EXPECT_EQ(in_child([&] {
                  setenv("NUMACRE_TRACE", (folder + "/trace").c_str(), 1);
                  numacre_pool *pool = nullptr;
                  if (numacre_open_private(nullptr, &pool) != 0) return false;
                  for (unsigned round = 0; round < 100; ++round) {
                      pthread_t thread;
                      if (pthread_create(&thread, nullptr, allocate_for_ever, pool) != 0) return false;
                      usleep(100 + round * 7);
                      pthread_cancel(thread);
                      pthread_join(thread, nullptr);
                      void *block = nullptr;
                      if (numacre_alloc(pool, 4096, &block) != 0 || numacre_free(pool, block) != 0) return false;
                  }
                  numacre_detach(pool);
                  return true;
              }),
              0);
    std::filesystem::remove_all(folder);
}

thread_local sigjmp_buf way_out;
numacre_pool *waited_on = nullptr;
void leave(int) {
    if (numacre_is_asleep(waited_on) != 0) siglongjmp(way_out, 1);
}

// A thread that has left a wait for a chunk by siglongjmp(), while nothing was free. Stays alive until it is told.
class Leaver {
public:
    explicit Leaver(numacre_pool *pool) : pool_(pool) {
        sem_init(&waits_, 0, 0);
        sem_init(&left_, 0, 0);
        sem_init(&next_, 0, 0);
        sem_init(&done_, 0, 0);
        thread_ = std::thread([this] { run(); });
        sem_wait(&waits_);
        // It sleeps soon: before that the signal changes nothing.
        do {
            pthread_kill(thread_.native_handle(), SIGUSR1);
            usleep(1000);
        } while (sem_trywait(&left_) != 0);
    }
    void call_again() {
        call([this] {
            void *block = nullptr;
            if (numacre_alloc(pool_, 4096, &block) == 0) numacre_free(pool_, block);
        });
    }
    // In that thread.
    void call(const std::function<void()> &body) {
        body_ = body;
        sem_post(&next_);
        sem_wait(&done_);
    }
    void end() {
        stop_ = true;
        sem_post(&next_);
        thread_.join();
    }

private:
    void run() {
        void *block = nullptr;
        if (sigsetjmp(way_out, 1) == 0) {
            sem_post(&waits_);
            numacre_alloc_on(pool_, -1, kChunk, NUMACRE_WAIT, &block);
            abort();  // nothing is free
        }
        // It has left, and a handler that asks again must not tear it out of its next call.
        if (numacre_is_asleep(pool_) != 0) abort();
        sem_post(&left_);
        for (;;) {
            sem_wait(&next_);
            if (stop_) return;
            body_();
            sem_post(&done_);
        }
    }
    numacre_pool *pool_;
    sem_t waits_, left_, next_, done_;
    std::atomic<bool> stop_ = false;
    std::function<void()> body_;
    std::thread thread_;
};

class LeftWish : public ::testing::Test {
protected:
    void SetUp() override {
        struct sigaction action{};
        action.sa_handler = leave;
        sigaction(SIGUSR1, &action, nullptr);
        const numacre_private_options options{sizeof options, 4 * kChunk, 4096, kChunk, 0, 0, 0};
        ASSERT_EQ(numacre_open_private(&options, &pool), 0) << numacre_last_error();
        waited_on = pool;
        EXPECT_EQ(numacre_is_asleep(pool), 0);
        chunks.resize(4);
        ASSERT_EQ(take_all(), 0);
    }
    void TearDown() override { numacre_detach(pool); }
    int take_all() { return numacre_alloc_bulk(pool, kChunk, chunks.data(), 4); }
    int free_all() { return numacre_free_bulk(pool, chunks.data(), 4); }

    numacre_pool *pool = nullptr;
    std::vector<void *> chunks;
};

TEST_F(LeftWish, what_a_thread_was_given_after_it_left_comes_back_at_its_next_call) {
    Leaver leaver(pool);
    ASSERT_EQ(free_all(), 0);
    leaver.call_again();
    // The small block may be in the thread's cache, which it gives back when memory runs out.
    if (take_all() != 0)
        leaver.call_again();
    else
        ASSERT_EQ(free_all(), 0);
    EXPECT_EQ(take_all(), 0) << numacre_last_error();
    leaver.end();
}

TEST_F(LeftWish, what_a_thread_was_given_after_it_left_comes_back_at_its_end) {
    Leaver leaver(pool);
    ASSERT_EQ(free_all(), 0);
    leaver.end();
    EXPECT_EQ(take_all(), 0) << numacre_last_error();
}

// What the thread frees itself may go to its own wish.
TEST_F(LeftWish, what_a_thread_frees_after_it_left_is_there_for_its_next_allocation) {
    Leaver leaver(pool);
    int freed = -1;
    int allocated = -1;
    leaver.call([&] {
        freed = numacre_free_uncached(pool, chunks[0]);
        allocated = numacre_alloc(pool, kChunk, chunks.data());
    });
    EXPECT_EQ(freed, 0);
    EXPECT_EQ(allocated, 0);
    leaver.end();
    EXPECT_EQ(free_all(), 0) << numacre_last_error();
    EXPECT_EQ(take_all(), 0) << numacre_last_error();
}

// --- threads that are torn out of a call, or end beside a handler that calls
// ------------------------------------------

// What a mistake of one thread may cost: its slot and what it had, and not the calls of the next thread.
#if defined(__x86_64__) && !defined(UNDER_SANITIZER)
std::atomic<unsigned> steps_left;
constexpr std::uint64_t kTrapFlag = 0x100;
void leave_at_last_step(int, siginfo_t *, void *context) {
    if (--steps_left != 0) return;
    static_cast<ucontext_t *>(context)->uc_mcontext.gregs[REG_EFL] &= ~static_cast<long long>(kTrapFlag);
    siglongjmp(way_out, 1);
}
__attribute__((noinline)) void begin_steps() {
    asm volatile("pushfq\n\torq $0x100, (%%rsp)\n\tpopfq" ::: "memory", "cc");
}
__attribute__((noinline)) void end_steps() {
    asm volatile("pushfq\n\tandq $~0x100, (%%rsp)\n\tpopfq" ::: "memory", "cc");
}

TEST(TornAway, a_thread_that_left_in_the_middle_of_a_change_costs_its_slot_and_nobody_elses_calls) {
    struct sigaction action{};
    action.sa_sigaction = leave_at_last_step;
    action.sa_flags = SA_SIGINFO;
    struct sigaction before{};
    sigaction(SIGTRAP, &action, &before);
    numacre_pool *pool = nullptr;
    ASSERT_EQ(numacre_open_private(nullptr, &pool), 0) << numacre_last_error();
    const auto in_thread = [](auto body) { std::thread{body}.join(); };
    int wrong = 0;
    std::atomic<bool> came_to_the_end = false;
    unsigned steps = 0;
    // Fewer threads than there are slots, for some lose theirs.
    for (unsigned step = 1; !came_to_the_end && step < 2000; step += 7, ++steps) {
        in_thread([&] {
            void *block = nullptr;
            if (numacre_alloc_on(pool, -1, 4096, NUMACRE_UNCACHED, &block) != 0) ++wrong;
            if (numacre_free_uncached(pool, block) != 0) ++wrong;
            steps_left = step;
            if (sigsetjmp(way_out, 1) == 0) {
                begin_steps();
                (void)numacre_alloc_on(pool, -1, 4096, NUMACRE_UNCACHED, &block);
                end_steps();
                came_to_the_end = steps_left != 0;
            }
        });
        in_thread([&] {
            void *block = nullptr;
            if (numacre_alloc_on(pool, -1, 4096, NUMACRE_UNCACHED, &block) != 0 ||
                numacre_free_uncached(pool, block) != 0)
                ++wrong;
        });
    }
    sigaction(SIGTRAP, &before, nullptr);
    EXPECT_EQ(wrong, 0) << numacre_last_error();
    EXPECT_TRUE(came_to_the_end);
    EXPECT_GT(steps, 10U);
    numacre_detach(pool);
}

// A sleeper's first handler frees a block past the cache, in steps of one instruction. The handler of the last step
// asks whether it may leave, and leaves if so: nothing may be lost by that.
struct {
    numacre_pool *pool;
    void *block;  // what the first handler frees
    bool has_left;
    unsigned asleep;  // how often the answer was yes, or no
    unsigned awake;
} sleeper;
void leave_at_last_step_if_asleep(int, siginfo_t *, void *context) {
    if (--steps_left != 0) return;
    static_cast<ucontext_t *>(context)->uc_mcontext.gregs[REG_EFL] &= ~static_cast<long long>(kTrapFlag);
    if (numacre_is_asleep(sleeper.pool) == 0) {
        ++sleeper.awake;
        return;
    }
    ++sleeper.asleep;
    sleeper.has_left = true;
    siglongjmp(way_out, 1);
}
void free_in_steps(int) {
    begin_steps();
    (void)numacre_free_uncached(sleeper.pool, sleeper.block);
    end_steps();
}

class NestedHandlers : public ::testing::Test {
protected:
    static constexpr std::size_t kFrame = 4096;
    static constexpr std::size_t kFrames = 64;
    static constexpr std::size_t kLargest = 16 * kFrame;

    void SetUp() override {
        struct sigaction action{};
        action.sa_sigaction = leave_at_last_step_if_asleep;
        action.sa_flags = SA_SIGINFO;
        sigaction(SIGTRAP, &action, &trap_before_);
        action = {};
        action.sa_handler = free_in_steps;
        sigaction(SIGUSR1, &action, nullptr);
        const numacre_private_options options{sizeof options, kFrames * kFrame, kFrame, kLargest, 0, 0, 0};
        ASSERT_EQ(numacre_open_private(&options, &pool), 0) << numacre_last_error();
        sleeper = {};
        sleeper.pool = pool;
    }
    void TearDown() override {
        sigaction(SIGTRAP, &trap_before_, nullptr);
        numacre_detach(pool);
    }

    bool somebody_waits() const {
        for (std::uint32_t thread = 1; thread < pool->view.threads_in_use_bound(); ++thread)
            if (numacre::engine::WaitWord{pool->view.threads[thread].waiting.load()}.is_waiting()) return true;
        return false;
    }
    std::vector<void *> take_all() const {
        std::vector<void *> frames;
        void *frame = nullptr;
        while (numacre_alloc_on(pool, -1, kFrame, NUMACRE_UNCACHED, &frame) == 0) frames.push_back(frame);
        return frames;
    }
    // Sleeps for a frame while all are taken, and is interrupted. Returns how many steps of the free were made.
    unsigned sleep_and_be_interrupted(unsigned step) {
        std::vector<void *> frames = take_all();
        EXPECT_EQ(frames.size(), kFrames) << "frames are lost";
        if (frames.empty()) return 0;
        sleeper.block = frames.back();
        frames.pop_back();
        sleeper.has_left = false;
        steps_left = step;
        const pthread_t self = pthread_self();
        // From the announcement on the library lets signals in only while it sleeps.
        std::thread waker([&] {
            while (!somebody_waits()) usleep(50);
            pthread_kill(self, SIGUSR1);
        });
        static int result;
        static void *got;
        result = 0;
        got = nullptr;
        if (sigsetjmp(way_out, 1) == 0) result = numacre_alloc_on(pool, -1, kFrame, NUMACRE_WAIT, &got);
        waker.join();
        EXPECT_EQ(result, 0) << numacre_last_error();
        if (!sleeper.has_left)
            frames.push_back(got);
        else if (numacre_usable_size(pool, sleeper.block) != 0)
            frames.push_back(sleeper.block);  // left before the free had begun
        // A new wait ends a wish that was left.
        void *none = nullptr;
        EXPECT_EQ(numacre_alloc_on(pool, -1, kLargest, NUMACRE_WAIT_MS(1), &none), -ETIMEDOUT);
        for (void *const frame : frames) EXPECT_EQ(numacre_free_uncached(pool, frame), 0) << numacre_last_error();
        return step - steps_left;
    }

    numacre_pool *pool = nullptr;

private:
    struct sigaction trap_before_{};
};

TEST_F(NestedHandlers, a_handler_that_interrupts_another_one_that_serves_waiters_may_not_leave) {
    constexpr unsigned kPositionsMax = 100;
    const unsigned steps = sleep_and_be_interrupted(~0U);
    ASSERT_GT(steps, 100U);
    const unsigned stride = std::max(1U, steps / kPositionsMax);
    for (unsigned step = 1; step < steps && !HasFailure(); step += stride) {
        SCOPED_TRACE("at instruction " + std::to_string(step));
        sleep_and_be_interrupted(step);
    }
    EXPECT_EQ(take_all().size(), kFrames) << "frames are lost";
    EXPECT_GT(sleeper.asleep, 0U) << "before the free has begun, and after it";
    EXPECT_GT(sleeper.awake, 0U);
}
#endif

// ThreadSanitizer has taken a thread's signals apart before its last destructors run.
#if !defined(UNDER_THREAD_SANITIZER)
// A program's own data of a thread, whose destructor runs behind the library's, and as often as there are rounds.
pthread_key_t own_key;
numacre_ref stale_reference;
std::atomic<int> handled;
void raise_at_thread_end(void *value) {
    pthread_setspecific(own_key, value);
    pthread_kill(pthread_self(), SIGUSR2);
}
void take_in_handler(int) {
    void *block = nullptr;
    (void)numacre_take(waited_on, stale_reference, &block);
    ++handled;
}

TEST(ThreadEnd, a_handler_that_calls_while_its_thread_ends_takes_no_slot) {
    numacre_pool *pool = nullptr;
    ASSERT_EQ(numacre_open_private(nullptr, &pool), 0) << numacre_last_error();
    waited_on = pool;
    void *block = nullptr;
    ASSERT_EQ(numacre_alloc(pool, 4096, &block), 0);
    stale_reference = numacre_ref_of(pool, block);
    ASSERT_EQ(numacre_free_uncached(pool, block), 0);
    ASSERT_EQ(pthread_key_create(&own_key, raise_at_thread_end), 0);
    struct sigaction action{};
    action.sa_handler = take_in_handler;
    sigaction(SIGUSR2, &action, nullptr);
    // More threads than a private pool has slots.
    for (unsigned thread = 0; thread < 5000; ++thread)
        std::thread{[&] {
            void *mine = nullptr;
            if (numacre_alloc(pool, 4096, &mine) != 0 || numacre_free(pool, mine) != 0) handled = -100'000;
            pthread_kill(pthread_self(), SIGUSR2);
            pthread_setspecific(own_key, &own_key);
        }}.join();
    EXPECT_EQ(handled, 5000) << "each thread's own signal, none of its end";
    pthread_key_delete(own_key);
    numacre_detach(pool);
}
#endif

}  // namespace
