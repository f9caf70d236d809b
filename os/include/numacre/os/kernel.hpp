// The seam to the kernel: the system calls of the client and the daemon, one inline function for each, with libc's
// arguments, results and errno. The functions cost nothing. The simulator has a header of the same name, which its
// include path finds before this one.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
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

#define NUMACRE_OS_CALL [[gnu::always_inline]] inline

namespace numacre::os {

// --- files -----------------------------------------------------------------------------------------------------------

NUMACRE_OS_CALL ssize_t readlink(const char *path, char *text, size_t bytes) {
    return ::readlink(path, text, bytes);
}
NUMACRE_OS_CALL int open(const char *path, int flags) {
    return ::open(path, flags);
}
NUMACRE_OS_CALL ssize_t read(int fd, void *buffer, size_t bytes) {
    return ::read(fd, buffer, bytes);
}
NUMACRE_OS_CALL ssize_t pread(int fd, void *buffer, size_t bytes, off_t offset) {
    return ::pread(fd, buffer, bytes, offset);
}
NUMACRE_OS_CALL ssize_t pwrite(int fd, const void *buffer, size_t bytes, off_t offset) {
    return ::pwrite(fd, buffer, bytes, offset);
}
NUMACRE_OS_CALL ssize_t write(int fd, const void *buffer, size_t bytes) {
    return ::write(fd, buffer, bytes);
}
NUMACRE_OS_CALL int close(int fd) {
    return ::close(fd);
}
NUMACRE_OS_CALL int fstat(int fd, struct stat *status) {
    return ::fstat(fd, status);
}
NUMACRE_OS_CALL int fstatfs(int fd, struct statfs *system) {
    return ::fstatfs(fd, system);
}
NUMACRE_OS_CALL int stat(const char *path, struct stat *status) {
    return ::stat(path, status);
}
NUMACRE_OS_CALL int fchmod(int fd, mode_t mode) {
    return ::fchmod(fd, mode);
}
NUMACRE_OS_CALL int ftruncate(int fd, off_t bytes) {
    return ::ftruncate(fd, bytes);
}
NUMACRE_OS_CALL int fallocate(int fd, int mode, off_t offset, off_t bytes) {
    return ::fallocate(fd, mode, offset, bytes);
}
NUMACRE_OS_CALL off_t lseek(int fd, off_t offset, int whence) {
    return ::lseek(fd, offset, whence);
}
NUMACRE_OS_CALL int add_seals(int fd, int seals) {
    return ::fcntl(fd, F_ADD_SEALS, seals);
}
NUMACRE_OS_CALL int get_seals(int fd) {
    return ::fcntl(fd, F_GET_SEALS);
}
// A new descriptor of the file, closed on exec.
NUMACRE_OS_CALL int duplicate(int fd) {
    return ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
}
// Locks of an open file description (fcntl(2)): let go when the last copy of the descriptor is closed. Shared locks of
// one byte, so that a descriptor for reading suffices. 0, or -1 with errno.
NUMACRE_OS_CALL int lock_file_byte(int fd, off_t byte) {
    struct flock lock{};
    lock.l_type = F_RDLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = byte;
    lock.l_len = 1;
    return ::fcntl(fd, F_OFD_SETLK, &lock);
}
// 1: another file description than the descriptor's has a lock on the byte. 0: none has. -1 with errno.
NUMACRE_OS_CALL int has_other_file_lock(int fd, off_t byte) {
    struct flock lock{};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = byte;
    lock.l_len = 1;
    if (::fcntl(fd, F_OFD_GETLK, &lock) != 0) return -1;
    return lock.l_type == F_UNLCK ? 0 : 1;
}
// By syscall(): it works with every libc, and with flags that the libc's headers do not know yet.
NUMACRE_OS_CALL int memfd_create(const char *name, unsigned flags) {
    return static_cast<int>(::syscall(SYS_memfd_create, name, flags));
}
NUMACRE_OS_CALL int eventfd(unsigned count, int flags) {
    return ::eventfd(count, flags);
}
NUMACRE_OS_CALL int userfaultfd(int flags) {
    return static_cast<int>(::syscall(SYS_userfaultfd, flags));
}
NUMACRE_OS_CALL int ioctl(int fd, unsigned long request, void *argument) {
    return ::ioctl(fd, request, argument);
}

// Linux's AIO (io_submit(2)), for requests that signal an eventfd. 0 or the number of requests; -1 with errno.
NUMACRE_OS_CALL int io_setup(unsigned requests, aio_context_t *context) {
    return static_cast<int>(::syscall(SYS_io_setup, requests, context));
}
NUMACRE_OS_CALL int io_submit(aio_context_t context, long count, iocb **requests) {
    return static_cast<int>(::syscall(SYS_io_submit, context, count, requests));
}
NUMACRE_OS_CALL void io_destroy(aio_context_t context) {
    (void)::syscall(SYS_io_destroy, context);
}

// --- memory ----------------------------------------------------------------------------------------------------------

NUMACRE_OS_CALL void *mmap(void *where, size_t bytes, int protection, int flags, int fd, off_t offset) {
    return ::mmap(where, bytes, protection, flags, fd, offset);
}
NUMACRE_OS_CALL int mprotect(void *where, size_t bytes, int protection) {
    return ::mprotect(where, bytes, protection);
}
NUMACRE_OS_CALL int munmap(void *address, size_t bytes) {
    return ::munmap(address, bytes);
}
NUMACRE_OS_CALL int madvise(void *address, size_t bytes, int advice) {
    return ::madvise(address, bytes, advice);
}

// --- sockets ---------------------------------------------------------------------------------------------------------

NUMACRE_OS_CALL int socket(int domain, int type, int protocol) {
    return ::socket(domain, type, protocol);
}
NUMACRE_OS_CALL int connect(int fd, const sockaddr *address, socklen_t bytes) {
    return ::connect(fd, address, bytes);
}
NUMACRE_OS_CALL int setsockopt(int fd, int level, int option, const void *value, socklen_t bytes) {
    return ::setsockopt(fd, level, option, value, bytes);
}
NUMACRE_OS_CALL int getsockopt(int fd, int level, int option, void *value, socklen_t *bytes) {
    return ::getsockopt(fd, level, option, value, bytes);
}
NUMACRE_OS_CALL ssize_t send(int fd, const void *data, size_t bytes, int flags) {
    return ::send(fd, data, bytes, flags);
}
NUMACRE_OS_CALL ssize_t recv(int fd, void *data, size_t bytes, int flags) {
    return ::recv(fd, data, bytes, flags);
}
NUMACRE_OS_CALL ssize_t sendmsg(int fd, const msghdr *message, int flags) {
    return ::sendmsg(fd, message, flags);
}
NUMACRE_OS_CALL ssize_t recvmsg(int fd, msghdr *message, int flags) {
    return ::recvmsg(fd, message, flags);
}

// --- processes -------------------------------------------------------------------------------------------------------

NUMACRE_OS_CALL uid_t geteuid() {
    return ::geteuid();
}
NUMACRE_OS_CALL int pidfd_open(pid_t pid) {
    return static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
}
NUMACRE_OS_CALL int pidfd_send_signal(int pidfd, int signal_number) {
    return static_cast<int>(::syscall(SYS_pidfd_send_signal, pidfd, signal_number, nullptr, 0));
}
NUMACRE_OS_CALL int poll(pollfd *fds, nfds_t count, int milliseconds) {
    return ::poll(fds, count, milliseconds);
}
NUMACRE_OS_CALL ssize_t getrandom(void *buffer, size_t bytes) {
    return ::getrandom(buffer, bytes, 0);
}

// --- threads ---------------------------------------------------------------------------------------------------------

// Sleeps while *word is `value`, for at most `duration`. May return without cause. 0: woken, by any thread. Else an
// errno: EAGAIN if the word has another value, ETIMEDOUT, EINTR.
NUMACRE_OS_CALL int futex_wait(uint32_t *word, uint32_t value, const timespec *duration) {
    return ::syscall(SYS_futex, word, FUTEX_WAIT, value, duration, nullptr, 0) == 0 ? 0 : errno;
}
NUMACRE_OS_CALL void futex_wake(uint32_t *word, int count) {
    (void)::syscall(SYS_futex, word, FUTEX_WAKE, count, nullptr, nullptr, 0);
}
// From now on, the threads of this process pass a full memory barrier when any process calls pass_barrier(). 0: done.
NUMACRE_OS_CALL int register_for_barriers() {
    return static_cast<int>(::syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0));
}
// Every thread of a registered process has passed a full memory barrier between the beginning and the end of this call.
// 0: done. Else the kernel has no such call, or a filter forbids it.
NUMACRE_OS_CALL int pass_barrier() {
    return static_cast<int>(::syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0));
}
NUMACRE_OS_CALL int clock_gettime(clockid_t clock, timespec *time) {
    return ::clock_gettime(clock, time);
}
NUMACRE_OS_CALL int sched_yield() {
    return ::sched_yield();
}
NUMACRE_OS_CALL int pthread_sigmask(int how, const sigset_t *signals, sigset_t *before) {
    return ::pthread_sigmask(how, signals, before);
}
NUMACRE_OS_CALL int pthread_once(pthread_once_t *once, void (*routine)()) {
    return ::pthread_once(once, routine);
}
NUMACRE_OS_CALL int pthread_mutex_lock(pthread_mutex_t *mutex) {
    return ::pthread_mutex_lock(mutex);
}
NUMACRE_OS_CALL int pthread_mutex_unlock(pthread_mutex_t *mutex) {
    return ::pthread_mutex_unlock(mutex);
}
NUMACRE_OS_CALL pid_t gettid() {
    return static_cast<pid_t>(::syscall(SYS_gettid));
}
NUMACRE_OS_CALL pid_t getpid() {
    return ::getpid();
}
// Whether a thread of this process has ended. A later thread may have its number. The first thread keeps its number as
// a zombie as long as others run, so this reads its state. If the answer is not known, the thread counts as there.
NUMACRE_OS_CALL bool thread_is_gone(pid_t thread) {
    // A filter of system calls may answer anything: tgkill is believed only if it knows the calling thread.
    if (::syscall(SYS_tgkill, ::getpid(), static_cast<pid_t>(::syscall(SYS_gettid)), 0) != 0) return false;
    if (::syscall(SYS_tgkill, ::getpid(), thread, 0) != 0) return errno == ESRCH;
    if (thread != ::getpid()) return false;
    const int fd = ::open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    char text[128];  // longer than pid, (comm) and state
    const ssize_t length = ::read(fd, text, sizeof text - 1);
    ::close(fd);
    text[length > 0 ? length : 0] = '\0';
    const char *const end_of_comm = ::strrchr(text, ')');
    return end_of_comm != nullptr && end_of_comm[1] == ' ' && end_of_comm[2] == 'Z';
}
NUMACRE_OS_CALL int pthread_key_create(pthread_key_t *key, void (*at_thread_end)(void *)) {
    return ::pthread_key_create(key, at_thread_end);
}
NUMACRE_OS_CALL int pthread_setspecific(pthread_key_t key, const void *value) {
    return ::pthread_setspecific(key, value);
}
NUMACRE_OS_CALL int pthread_atfork(void (*prepare)(), void (*in_parent)(), void (*in_child)()) {
    return ::pthread_atfork(prepare, in_parent, in_child);
}

}  // namespace numacre::os

#undef NUMACRE_OS_CALL
