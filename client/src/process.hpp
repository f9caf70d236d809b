// What belongs to this process and to no forked child of it: the generation that handles are made in, and memory that a
// child finds empty.
//
// Pools are not mapped in a forked child (MADV_DONTFORK), so a call there must not follow a pointer into one. fork() of
// libc tells the library (pthread_atfork). A raw fork (syscall(SYS_fork), clone() without CLONE_VM, _Fork()) tells
// nobody: the child finds out by itself, since the kernel gives it zeros for the pages of wiped_in_child().
#pragma once

#include <pthread.h>
#include <signal.h>

#include <cstddef>
#include <cstdint>

#include "numacre/os/kernel.hpp"

namespace numacre::client {

// Of the calling process; never 0, another one in a forked child. Handles made before the fork are refused there. The
// first call in a child that nobody has told forgets what was the parent's. Lock-free, no system call otherwise.
std::uint32_t fork_generation();

// Zeroed memory in whole pages that a forked child finds zeroed again. nullptr: errno says why. Unmapped by
// munmap(memory, bytes rounded up to a page). is_wiped: whether the kernel knows that; if not, a child of a raw fork
// does not find out.
void *wiped_in_child(std::size_t bytes, bool *is_wiped = nullptr);

// While it lives the calling thread cannot be cancelled: pthread_cancel() takes effect after the call of the library. A
// thread that ended inside would leave a mutex locked, or a wish, for ever. Only deferred cancellation (the default) is
// supported; asynchronous cancellation may end a thread at any instruction.
class NotCancelled {
public:
    NotCancelled() { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
    ~NotCancelled() { pthread_setcancelstate(before_, nullptr); }
    NotCancelled(const NotCancelled &) = delete;
    NotCancelled &operator=(const NotCancelled &) = delete;

private:
    int before_ = PTHREAD_CANCEL_ENABLE;
};

// While it lives the calling thread runs no signal handler, where one would find the thread's lanes half made or half
// gone. Signals that the thread's own instructions raise (SIGSEGV ...) are let through: blocked, they would end the
// process without a word. Enters the kernel.
class SignalsBlocked {
public:
    SignalsBlocked() { block(&before_); }
    ~SignalsBlocked() { let_in(); }
    SignalsBlocked(const SignalsBlocked &) = delete;
    SignalsBlocked &operator=(const SignalsBlocked &) = delete;

    // For a while: handlers run now, and may leave by siglongjmp().
    void let_in() const { os::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
    static void keep_out() { block(nullptr); }

private:
    static void block(sigset_t *before) {
        sigset_t all;
        sigfillset(&all);
        for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS}) sigdelset(&all, own);
        os::pthread_sigmask(SIG_BLOCK, &all, before);
    }

    sigset_t before_{};
};

// The library stays in memory until the process ends, whatever dlclose() says: threads that have used it run its code
// as they end. Built as a shared library it is linked so; linked from the archive into somebody's module it asks for
// that.
void stay_loaded();

}  // namespace numacre::client
