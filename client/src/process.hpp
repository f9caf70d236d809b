// State that belongs to this process and to none of its forked children: the generation in which handles are made, and
// memory that a child finds empty.
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

// The generation of the calling process: never 0, and a different one in a forked child. Handles made before the fork
// are refused in the child. In a child of a raw fork, the first call forgets the parent's state. All other calls are
// lock-free and make no system call.
std::uint32_t fork_generation();

// Maps zeroed memory in whole pages that a forked child finds zeroed again. nullptr: errno has the reason. The caller
// unmaps it by munmap(memory, bytes rounded up to a page). is_wiped: true if the kernel wipes the memory in a child; if
// not, a child of a raw fork does not notice the fork.
void *wiped_in_child(std::size_t bytes, bool *is_wiped = nullptr);

// While an object of this class exists, the calling thread cannot be cancelled: pthread_cancel() takes effect after the
// call of the library. A thread that ended inside would leave a mutex locked, or a wish, for ever. Only deferred
// cancellation (the default) is supported; asynchronous cancellation may end a thread at any instruction.
class NotCancelled {
public:
    NotCancelled() { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
    ~NotCancelled() { pthread_setcancelstate(before_, nullptr); }
    NotCancelled(const NotCancelled &) = delete;
    NotCancelled &operator=(const NotCancelled &) = delete;

private:
    int before_ = PTHREAD_CANCEL_ENABLE;
};

// While an object of this class exists, the calling thread runs no signal handler: a handler would find the thread's
// lanes half made or half gone. Signals that the thread's own instructions raise (SIGSEGV ...) are not blocked: if they
// were, such a signal would end the process at once. Enters the kernel.
class SignalsBlocked {
public:
    SignalsBlocked() { block(&before_); }
    ~SignalsBlocked() { let_in(); }
    SignalsBlocked(const SignalsBlocked &) = delete;
    SignalsBlocked &operator=(const SignalsBlocked &) = delete;

    // Lets handlers run for a while; a handler may leave by siglongjmp().
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

// Keeps the library in memory until the process ends, also after dlclose(): threads that have used it run its code when
// they end. The shared library is linked with that property. A module that links the archive gets it by this call.
void stay_loaded();

}  // namespace numacre::client
