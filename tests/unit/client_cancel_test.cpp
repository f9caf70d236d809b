// Threads that do not come to the end of their call: cancelled, or gone by siglongjmp() out of a wait. What they leave
// behind must not be in anybody's way.
#include <gtest/gtest.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "numacre/numacre.h"

namespace {

constexpr std::size_t kChunk = 4 << 20;

// In a process of its own: the recorder looks at the environment once. A mutex that stays locked is the alarm's.
int in_child(const std::function<bool()> &child) {
    const pid_t pid = fork();
    if (pid == 0) {
        alarm(60);
        _exit(child() ? 0 : 1);
    }
    int status = -1;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    return status;
}

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
void leave(int) {
    siglongjmp(way_out, 1);
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
        // It sleeps soon; should the signal come earlier, the thread leaves at another point of the wait.
        usleep(20'000);
        pthread_kill(thread_.native_handle(), SIGUSR1);
        sem_wait(&left_);
    }
    void call_again() {
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
        sem_post(&left_);
        for (;;) {
            sem_wait(&next_);
            if (stop_) return;
            if (numacre_alloc(pool_, 4096, &block) == 0) numacre_free(pool_, block);
            sem_post(&done_);
        }
    }
    numacre_pool *pool_;
    sem_t waits_, left_, next_, done_;
    std::atomic<bool> stop_ = false;
    std::thread thread_;
};

class LeftWish : public ::testing::Test {
protected:
    void SetUp() override {
        struct sigaction action{};
        action.sa_handler = leave;
        sigaction(SIGUSR1, &action, nullptr);
        const numacre_private_options options{sizeof options, 4 * kChunk, 4096, kChunk, 0};
        ASSERT_EQ(numacre_open_private(&options, &pool), 0) << numacre_last_error();
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

}  // namespace
