// Forked children that libc tells nothing of: syscall(SYS_fork) runs no pthread_atfork() handler. A pool is not mapped
// there, so every call on the parent's handle has to find out before it follows a pointer.
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "numacre/inline.h"
#include "numacre/numacre.h"
#include "support/in_child.hpp"
#include "support/refused_call.hpp"

namespace {

using numacre::test::in_child;

pid_t raw_fork() {
    return static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr));
}

class Fork : public ::testing::TestWithParam<pid_t (*)()> {
protected:
    void SetUp() override {
        ASSERT_EQ(numacre_open_private(nullptr, &pool), 0) << numacre_last_error();
        ASSERT_EQ(numacre_alloc(pool, 4096, &block), 0);
        ASSERT_EQ(numacre_alloc(pool, 2 << 20, &large), 0);
        reference = numacre_ref_of(pool, large);
        // The thread has a cache with something in it, and sizes and orders that its calls have been about.
        for (int i = 0; i < 100; ++i) {
            void *other = nullptr;
            ASSERT_EQ(numacre_alloc(pool, 4096, &other), 0);
            ASSERT_EQ(numacre_free(pool, other), 0);
        }
    }
    void TearDown() override {
        EXPECT_EQ(numacre_free(pool, block), 0) << "the parent goes on";
        EXPECT_EQ(numacre_free(pool, large), 0);
        numacre_detach(pool);
    }
    numacre_pool *pool = nullptr;
    void *block = nullptr;
    void *large = nullptr;
    numacre_ref reference = 0;
};

TEST_P(Fork, every_call_on_the_parents_handle_is_refused) {
    using Call = std::function<bool()>;
    void *other = nullptr;
    void *blocks[8] = {block, large};
    numacre_ref names[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    const Call calls[] = {
        [&] { return numacre_alloc(pool, 4096, &other) == -ECHILD; },
        [&] { return numacre_alloc(pool, 2 << 20, &other) == -ECHILD; },
        [&] { return numacre_alloc_inline(pool, 4096, &other) == -ECHILD; },
        [&] { return numacre_free_inline(pool, block) == -ECHILD; },
        [&] { return numacre_alloc_on(pool, 0, 4096, NUMACRE_UNCACHED, &other) == -ECHILD; },
        [&] { return numacre_alloc_on(pool, -1, 4096, NUMACRE_WAIT_MS(1), &other) == -ECHILD; },
        [&] { return numacre_alloc_policy(pool, NUMACRE_POLICY_LOCAL, 0, 4096, 0, &other) == -ECHILD; },
        [&] { return numacre_alloc_bulk(pool, 4096, blocks, 8) == -ECHILD; },
        [&] { return numacre_free(pool, block) == -ECHILD; },
        [&] { return numacre_free(pool, large) == -ECHILD; },
        [&] { return numacre_free_uncached(pool, block) == -ECHILD; },
        [&] { return numacre_free_bulk(pool, blocks, 2) == -ECHILD; },
        [&] { return numacre_take(pool, reference, &other) == -ECHILD; },
        [&] { return numacre_ref_of(pool, block) == NUMACRE_REF_NULL; },
        [&] { return numacre_alloc_ref_bulk(pool, 4096, blocks, names, 8) == -ECHILD; },
        [&] { return numacre_ref_bulk(pool, blocks, names, 2) == -ECHILD && names[0] == 1 && names[1] == 1; },
        [&] { return numacre_take_bulk(pool, &reference, &other, 1) == -ECHILD && other == nullptr; },
        [&] { return numacre_free_ref(pool, reference) == -ECHILD; },
        [&] { return numacre_virt_to_ref(pool, block) == NUMACRE_REF_NULL; },
        [&] { return numacre_usable_size(pool, block) == 0; },
        [&] { return numacre_set_policy(pool, NUMACRE_POLICY_LOCAL, 0) == -ECHILD; },
        [&] { return numacre_get_policy(pool, nullptr, nullptr, nullptr) == -ECHILD; },
        [&] {
            std::uint32_t events = 0;
            return numacre_events(pool, &events) == -ECHILD;
        },
        [&] {
            int fd = -1;
            return numacre_event_fd(pool, &fd) == -ECHILD;
        },
        [&] {
            numacre_detach(pool);
            return true;
        },
    };
    int number = 0;
    for (const Call &call : calls) EXPECT_EQ(in_child(GetParam(), call), 0) << "call " << number++;
}

TEST_P(Fork, the_child_has_pools_of_its_own_and_children_again) {
    EXPECT_EQ(in_child(GetParam(),
                       [&] {
                           numacre_pool *own = nullptr;
                           void *other = nullptr;
                           if (numacre_open_private(nullptr, &own) != 0 || numacre_alloc(own, 4096, &other) != 0)
                               return false;
                           if (numacre_alloc(pool, 4096, &other) != -ECHILD) return false;
                           const int grandchild = in_child(GetParam(), [&] {
                               return numacre_alloc(own, 4096, &other) == -ECHILD &&
                                      numacre_free(pool, block) == -ECHILD;
                           });
                           void *another = nullptr;
                           const bool goes_on = numacre_alloc(own, 4096, &another) == 0;
                           numacre_detach(pool);
                           numacre_detach(own);
                           return goes_on && grandchild == 0;
                       }),
              0);
}

TEST_P(Fork, threads_of_the_child_find_out_together_and_end) {
    EXPECT_EQ(in_child(GetParam(),
                       [&] {
                           std::atomic<int> refused{0};
                           {
                               std::vector<std::jthread> threads;
                               for (int i = 0; i < 4; ++i)
                                   threads.emplace_back([&] {
                                       void *other = nullptr;
                                       refused += numacre_alloc(pool, 4096, &other) == -ECHILD;
                                   });
                           }
                           return refused == 4;
                       }),
              0);
}

// In a thread of a process that writes a trace, for then there are descriptors to be closed in the child.
struct Cancelled {
    numacre_pool *pool = nullptr;
    pid_t (*fork)() = nullptr;
    int status = -1;
    static void *run(void *argument) {
        auto &self = *static_cast<Cancelled *>(argument);
        pthread_cancel(pthread_self());  // takes effect at a cancellation point: neither fork() nor our calls are any
        const pid_t child = self.fork();
        if (child == 0) {
            void *other = nullptr;
            const bool is_refused = numacre_alloc(self.pool, 4096, &other) == -ECHILD;
            _exit(is_refused && numacre_free(self.pool, &self) == -ECHILD ? 7 : 1);
        }
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
        waitpid(child, &self.status, 0);
        return nullptr;
    }
};

TEST_P(Fork, a_cancellation_that_is_pending_stays_so_in_the_child) {
    std::string folder = (std::filesystem::temp_directory_path() / "numacre-fork-XXXXXX").string();
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    EXPECT_EQ(in_child([&] {
                  setenv("NUMACRE_TRACE", (folder + "/trace").c_str(), 1);
                  Cancelled work;
                  work.fork = GetParam();
                  pthread_t thread;
                  if (numacre_open_private(nullptr, &work.pool) != 0) return false;
                  if (pthread_create(&thread, nullptr, Cancelled::run, &work) != 0) return false;
                  pthread_join(thread, nullptr);
                  numacre_detach(work.pool);
                  return WIFEXITED(work.status) && WEXITSTATUS(work.status) == 7;
              }),
              0);
    std::filesystem::remove_all(folder);
}

// As before Linux 4.14, and where a filter of system calls refuses it.
TEST(ForkOfLibc, tells_the_child_also_where_the_kernel_wipes_nothing) {
    EXPECT_EQ(in_child([] {
                  numacre_pool *opened = nullptr;
                  void *place = nullptr;
                  if (!numacre::test::refuse_call(SYS_madvise, EINVAL, MADV_WIPEONFORK) ||
                      numacre_open_private(nullptr, &opened) != 0 || numacre_alloc(opened, 4096, &place) != 0)
                      return false;
                  return in_child(fork, [&] {
                             void *other = nullptr;
                             return numacre_alloc(opened, 4096, &other) == -ECHILD &&
                                    numacre_free(opened, place) == -ECHILD;
                         }) == 0;
              }),
              0);
}

INSTANTIATE_TEST_SUITE_P(, Fork, ::testing::Values(raw_fork, fork),
                         [](const auto &each) { return each.param == fork ? "of_libc" : "raw"; });

}  // namespace
