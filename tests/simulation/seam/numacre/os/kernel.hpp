// The seam to the kernel (os/include/numacre/os/kernel.hpp), as the simulator has it: found before that one, the same
// functions, and a simulated kernel behind them. The first stage has the few that it needs in client.cpp, the second
// all in system/calls.cpp.
#pragma once

#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

namespace numacre::os {

// --- files -----------------------------------------------------------------------------------------------------------

ssize_t readlink(const char *path, char *text, size_t bytes);
int open(const char *path, int flags);
ssize_t read(int fd, void *buffer, size_t bytes);
ssize_t pread(int fd, void *buffer, size_t bytes, off_t offset);
ssize_t pwrite(int fd, const void *buffer, size_t bytes, off_t offset);
ssize_t write(int fd, const void *buffer, size_t bytes);
int close(int fd);
int fstat(int fd, struct stat *status);
int fstatfs(int fd, struct statfs *system);
int stat(const char *path, struct stat *status);
int fchmod(int fd, mode_t mode);
int ftruncate(int fd, off_t bytes);
int fallocate(int fd, int mode, off_t offset, off_t bytes);
off_t lseek(int fd, off_t offset, int whence);
int add_seals(int fd, int seals);
int get_seals(int fd);
int duplicate(int fd);
int lock_file_byte(int fd, off_t byte);
int has_other_file_lock(int fd, off_t byte);
// Through syscall(): one spelling for every libc, and flags that its headers do not know yet.
int memfd_create(const char *name, unsigned flags);
int eventfd(unsigned count, int flags);
int userfaultfd(int flags);
int ioctl(int fd, unsigned long request, void *argument);
int io_setup(unsigned requests, aio_context_t *context);
int io_submit(aio_context_t context, long count, iocb **requests);
void io_destroy(aio_context_t context);

// --- memory ----------------------------------------------------------------------------------------------------------

void *mmap(void *where, size_t bytes, int protection, int flags, int fd, off_t offset);
int mprotect(void *where, size_t bytes, int protection);
int munmap(void *address, size_t bytes);
int madvise(void *address, size_t bytes, int advice);

// --- sockets ---------------------------------------------------------------------------------------------------------

int socket(int domain, int type, int protocol);
int connect(int fd, const sockaddr *address, socklen_t bytes);
int setsockopt(int fd, int level, int option, const void *value, socklen_t bytes);
int getsockopt(int fd, int level, int option, void *value, socklen_t *bytes);
ssize_t send(int fd, const void *data, size_t bytes, int flags);
ssize_t recv(int fd, void *data, size_t bytes, int flags);
ssize_t sendmsg(int fd, const msghdr *message, int flags);
ssize_t recvmsg(int fd, msghdr *message, int flags);

// --- processes -------------------------------------------------------------------------------------------------------

uid_t geteuid();
int pidfd_open(pid_t pid);
int pidfd_send_signal(int pidfd, int signal_number);
int poll(pollfd *fds, nfds_t count, int milliseconds);
ssize_t getrandom(void *buffer, size_t bytes);

// --- threads ---------------------------------------------------------------------------------------------------------

// Sleeps while *word is `value`, for so long at most. May return without cause.
int futex_wait(uint32_t *word, uint32_t value, const timespec *duration);
void futex_wake(uint32_t *word, int count);
int register_for_barriers();
int pass_barrier();
int clock_gettime(clockid_t clock, timespec *time);
int sched_yield();
int pthread_sigmask(int how, const sigset_t *signals, sigset_t *before);
int pthread_once(pthread_once_t *once, void (*routine)());
int pthread_mutex_lock(pthread_mutex_t *mutex);
int pthread_mutex_unlock(pthread_mutex_t *mutex);
pid_t gettid();
pid_t getpid();
bool thread_is_gone(pid_t thread);
int pthread_key_create(pthread_key_t *key, void (*at_thread_end)(void *));
int pthread_setspecific(pthread_key_t key, const void *value);
int pthread_atfork(void (*prepare)(), void (*in_parent)(), void (*in_child)());

}  // namespace numacre::os
