// The calls of os/ as the sources under test make them: each is one of the simulated kernel's.
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "kernel.hpp"
#include "numacre/os/kernel.hpp"

namespace numacre::os {

using namespace simulation;

namespace {

// Of a word that has one address in all processes, which is not the same word in all of them.
const std::uint32_t *key_of_word(const void *word) {
    const auto process = static_cast<std::uintptr_t>(Kernel::running->current().id);
    return reinterpret_cast<const std::uint32_t *>(reinterpret_cast<std::uintptr_t>(word) ^ process << 48);
}

constexpr std::uint64_t kPidSpaceInode = 7;
constexpr long kPidFsMagic = 0x50494446;
constexpr int kPeerPidfd = 77;

// Outside a run, and once only: what the daemon's sources find out about the machine they run on.
bool is_idle() {
    return Kernel::running == nullptr || !Kernel::running->in_process();
}
Kernel &kernel() {
    return *Kernel::running;
}
int failed(int error) {
    errno = error;
    return -1;
}

}  // namespace

ssize_t readlink(const char *path, char *text, size_t bytes) {
    kernel().enter_call();
    int fd = -1;
    const FilePtr file = std::sscanf(path, "/proc/self/fd/%d", &fd) == 1 ? kernel().file(fd) : nullptr;
    if (!file) return failed(ENOENT);
    const std::string name = file->kind == File::Kind::event ? "anon_inode:[eventfd]" : "something else";
    const std::size_t part = std::min(bytes, name.size());
    std::memcpy(text, name.data(), part);
    return static_cast<ssize_t>(part);
}

int open(const char *path, int) {
    if (is_idle()) return failed(ENOENT);
    kernel().enter_call();
    return kernel().open(path);
}

ssize_t read(int fd, void *buffer, size_t bytes) {
    if (is_idle()) return failed(EBADF);
    kernel().enter_call();
    const FilePtr file = kernel().file(fd);
    if (!file) return -1;
    if (kernel().fails(kernel().plan().interrupt_every)) return failed(EINTR);
    switch (file->kind) {
        case File::Kind::text: {
            const std::size_t left = std::min(bytes, file->text.size() - file->offset);
            if (left == 0) return 0;
            // Short, now and then.
            const std::size_t got = kernel().random().one_in(4) ? kernel().random().between(1, left) : left;
            std::memcpy(buffer, file->text.data() + file->offset, got);
            file->offset += got;
            return static_cast<ssize_t>(got);
        }
        case File::Kind::zeroes: {
            const std::size_t got = kernel().random().one_in(4) ? kernel().random().between(1, bytes) : bytes;
            std::memset(buffer, 0, got);
            return static_cast<ssize_t>(got);
        }
        case File::Kind::event:
            if (file->count == 0) return failed(EAGAIN);
            std::memcpy(buffer, &file->count, sizeof file->count);
            file->count = 0;
            return sizeof file->count;
        case File::Kind::programs:
            simulation::fail("the library reads descriptor %d, which is the program's", fd);
            return failed(EBADF);
        default:
            return failed(EINVAL);
    }
}

int close(int fd) {
    if (is_idle()) return 0;
    kernel().enter_call();
    return kernel().close(fd);
}

int fstat(int fd, struct stat *status) {
    if (is_idle()) return failed(EBADF);
    kernel().enter_call();
    const FilePtr file = kernel().file(fd);
    if (!file) return -1;
    *status = {};
    if (file->kind == File::Kind::memory && ::fstat(file->real_fd, status) != 0) return -1;
    status->st_ino = file->inode;
    return 0;
}

int fstatfs(int fd, struct statfs *system) {
    if (is_idle()) return failed(EBADF);
    kernel().enter_call();
    const FilePtr file = kernel().file(fd);
    if (!file) return -1;
    *system = {};
    system->f_type =
        file->kind == File::Kind::pidfd && kernel().plan().version == KernelPlan::Version::with_pidfs ? kPidFsMagic : 1;
    return 0;
}

int stat(const char *path, struct stat *status) {
    *status = {};
    unsigned pid = 0;
    if (std::sscanf(path, "/proc/%u", &pid) == 1) {
        const auto uid = kernel().uid_of(pid);
        if (!uid) return failed(ENOENT);
        status->st_uid = *uid;
        return 0;
    }
    status->st_ino = kPidSpaceInode;  // /proc/self/ns/pid: there is one
    return 0;
}

int fchmod(int fd, mode_t) {
    kernel().enter_call();
    return kernel().file(fd) ? 0 : -1;
}

int ftruncate(int fd, off_t bytes) {
    kernel().enter_call();
    const FilePtr file = kernel().file(fd);
    if (!file) return -1;
    file->bytes = static_cast<std::uint64_t>(bytes);
    return ::ftruncate(file->real_fd, bytes);
}

int fallocate(int fd, int mode, off_t offset, off_t bytes) {
    kernel().enter_call();
    const FilePtr file = kernel().file(fd);
    if (!file) return -1;
    if (kernel().fails(kernel().plan().interrupt_every)) return failed(EINTR);
    if ((mode & FALLOC_FL_PUNCH_HOLE) != 0)
        for (const PinnedRange &range : kernel().pinned())
            if (range.inode == file->inode && static_cast<std::uint64_t>(offset) < range.first_byte + range.bytes &&
                range.first_byte < static_cast<std::uint64_t>(offset + bytes) && !range.pin.expired())
                simulation::fail("%lld bytes from %lld on are punched, and %llu from %llu on are pinned",
                                 static_cast<long long>(bytes), static_cast<long long>(offset),
                                 static_cast<unsigned long long>(range.bytes),
                                 static_cast<unsigned long long>(range.first_byte));
    if ((mode & FALLOC_FL_PUNCH_HOLE) == 0 && kernel().fails(kernel().plan().enospc_every)) return failed(ENOSPC);
    return ::fallocate(file->real_fd, mode, offset, bytes);
}

ssize_t pread(int fd, void *buffer, size_t bytes, off_t offset) {
    kernel().enter_call();
    const FilePtr file = kernel().file(fd);
    return file ? ::pread(file->real_fd, buffer, bytes, offset) : -1;
}

ssize_t pwrite(int fd, const void *buffer, size_t bytes, off_t offset) {
    kernel().enter_call();
    const FilePtr file = kernel().file(fd);
    if (!file) return -1;
    if (kernel().fails(kernel().plan().interrupt_every)) return failed(EINTR);
    if (kernel().fails(kernel().plan().enospc_every)) return failed(ENOSPC);
    return ::pwrite(file->real_fd, buffer, bytes, offset);
}

// Bells of channels: the simulated clients open none.
ssize_t write(int fd, const void *, size_t) {
    kernel().enter_call();
    if (kernel().file(fd)) errno = EINVAL;
    return -1;
}
int io_setup(unsigned, aio_context_t *) {
    kernel().enter_call();
    return failed(ENOSYS);
}
int io_submit(aio_context_t, long, iocb **) {
    kernel().enter_call();
    return failed(ENOSYS);
}
void io_destroy(aio_context_t) {
    kernel().enter_call();
}

off_t lseek(int fd, off_t offset, int whence) {
    kernel().enter_call();
    const FilePtr file = kernel().file(fd);
    return file ? ::lseek(file->real_fd, offset, whence) : -1;
}

int add_seals(int fd, int seals) {
    kernel().enter_call();
    const FilePtr file = kernel().file(fd);
    if (!file) return -1;
    file->seals |= seals;
    return 0;
}

int get_seals(int fd) {
    kernel().enter_call();
    const FilePtr file = kernel().file(fd);
    return file ? file->seals : -1;
}

int duplicate(int fd) {
    kernel().enter_call();
    const FilePtr file = kernel().file(fd);
    return file ? kernel().install(file) : -1;
}

// A lock belongs to the file description, which a File is here.
int lock_file_byte(int fd, off_t byte) {
    kernel().enter_call();
    const FilePtr file = kernel().file(fd);
    if (!file) return -1;
    kernel().locks().push_back({file, file->inode, byte});
    return 0;
}

int has_other_file_lock(int fd, off_t byte) {
    kernel().enter_call();
    const FilePtr file = kernel().file(fd);
    if (!file) return -1;
    for (const FileLock &lock : kernel().locks()) {
        const FilePtr holder = lock.of.lock();
        if (holder && holder != file && lock.inode == file->inode && lock.byte == byte) return 1;
    }
    return 0;
}

int memfd_create(const char *name, unsigned) {
    kernel().enter_call();
    return kernel().make_memory(name);
}

int eventfd(unsigned count, int) {
    kernel().enter_call();
    if (kernel().fails(kernel().plan().emfile_every)) return failed(EMFILE);
    const FilePtr made = kernel().make_file(File::Kind::event);
    made->count = count;
    return kernel().install(made);
}

int userfaultfd(int) {
    kernel().enter_call();
    if (!kernel().plan().has_userfaultfd) return failed(EPERM);
    return kernel().install(kernel().make_file(File::Kind::guard));
}

int ioctl(int fd, unsigned long, void *) {
    kernel().enter_call();
    return kernel().file(fd) ? 0 : -1;
}

void *mmap(void *where, size_t bytes, int protection, int flags, int fd, off_t offset) {
    kernel().enter_call();
    return kernel().map(where, bytes, protection, flags, fd, offset);
}
int mprotect(void *address, size_t bytes, int protection) {
    kernel().enter_call();
    return kernel().protect(address, bytes, protection);
}
int munmap(void *address, size_t bytes) {
    if (is_idle()) return 0;
    kernel().enter_call();
    return kernel().unmap(address, bytes);
}
int madvise(void *address, size_t bytes, int advice) {
    kernel().enter_call();
    return kernel().advise(address, bytes, advice);
}

int socket(int, int, int) {
    kernel().enter_call();
    return kernel().install(kernel().make_file(File::Kind::socket));
}
int connect(int fd, const sockaddr *address, socklen_t) {
    kernel().enter_call();
    return kernel().connect(fd, reinterpret_cast<const sockaddr_un *>(address)->sun_path);
}
int setsockopt(int fd, int, int option, const void *value, socklen_t) {
    kernel().enter_call();
    const FilePtr file = kernel().file(fd);
    if (!file) return -1;
    timeval patience{};
    std::memcpy(&patience, value, sizeof patience);
    if (option == SO_RCVTIMEO) file->patience_ns = static_cast<std::uint64_t>(patience.tv_sec) * 1'000'000'000;
    return 0;
}

int getsockopt(int fd, int, int option, void *value, socklen_t *bytes) {
    kernel().enter_call();
    const FilePtr file = kernel().file(fd);
    if (!file) return -1;
    switch (option) {
        case SO_PEERCRED: {
            const Process &who = kernel().process(file->connected_by);
            const ucred credentials{static_cast<pid_t>(file->connected_by_pid), who.uid, who.uid};
            std::memcpy(value, &credentials, sizeof credentials);
            return 0;
        }
        case SO_PEERGROUPS:
            *bytes = 0;
            return 0;
        case kPeerPidfd: {
            if (kernel().plan().version == KernelPlan::Version::old) return failed(ENOPROTOOPT);
            if (!kernel().process(file->connected_by).is_alive) return failed(ESRCH);
            const int pidfd = kernel().pidfd_of(file->connected_by);
            std::memcpy(value, &pidfd, sizeof pidfd);
            return pidfd < 0 ? -1 : 0;
        }
        default:
            return failed(ENOPROTOOPT);
    }
}

ssize_t send(int fd, const void *data, size_t bytes, int) {
    kernel().enter_call();
    const auto *const begin = static_cast<const std::byte *>(data);
    return kernel().send(fd, {{begin, begin + bytes}, {}});
}

ssize_t recv(int fd, void *data, size_t bytes, int flags) {
    kernel().enter_call();
    Packet packet;
    const ssize_t got = kernel().receive(fd, (flags & MSG_PEEK) != 0, (flags & MSG_DONTWAIT) == 0, packet);
    if (got <= 0) return got;
    const std::size_t part = std::min(bytes, packet.bytes.size());
    if (part != 0) std::memcpy(data, packet.bytes.data(), part);
    return static_cast<ssize_t>(part);
}

ssize_t sendmsg(int fd, const msghdr *message, int) {
    kernel().enter_call();
    Packet packet;
    const auto *const begin = static_cast<const std::byte *>(message->msg_iov->iov_base);
    packet.bytes.assign(begin, begin + message->msg_iov->iov_len);
    if (message->msg_controllen != 0) {
        const cmsghdr *const rights = CMSG_FIRSTHDR(message);
        const std::size_t count = (rights->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (std::size_t i = 0; i < count; ++i) {
            int number = -1;
            std::memcpy(&number, CMSG_DATA(rights) + i * sizeof number, sizeof number);
            const FilePtr file = kernel().file(number);
            if (!file) return failed(EBADF);
            packet.files.push_back(file);
        }
    }
    return kernel().send(fd, std::move(packet));
}

ssize_t recvmsg(int fd, msghdr *message, int flags) {
    kernel().enter_call();
    Packet packet;
    const ssize_t got = kernel().receive(fd, (flags & MSG_PEEK) != 0, (flags & MSG_DONTWAIT) == 0, packet);
    if (got < 0) return got;
    message->msg_flags = 0;
    const std::size_t room = message->msg_iovlen == 0 ? 0 : message->msg_iov->iov_len;
    const std::size_t part = std::min(room, packet.bytes.size());
    if (part != 0) std::memcpy(message->msg_iov->iov_base, packet.bytes.data(), part);
    if (part < packet.bytes.size()) message->msg_flags |= MSG_TRUNC;
    const std::size_t fds_room =
        message->msg_controllen < CMSG_LEN(0) ? 0 : (message->msg_controllen - CMSG_LEN(0)) / sizeof(int);
    std::vector<int> installed;
    for (const FilePtr &file : packet.files) {
        const int number = installed.size() < fds_room && (flags & MSG_PEEK) == 0 ? kernel().install(file) : -1;
        if (number < 0) {
            message->msg_flags |= MSG_CTRUNC;
            break;
        }
        installed.push_back(number);
    }
    if (installed.empty()) {
        message->msg_controllen = 0;
    } else {
        cmsghdr *const rights = CMSG_FIRSTHDR(message);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(installed.size() * sizeof(int));
        std::memcpy(CMSG_DATA(rights), installed.data(), installed.size() * sizeof(int));
        message->msg_controllen = CMSG_SPACE(installed.size() * sizeof(int));
    }
    return static_cast<ssize_t>(part);
}

uid_t geteuid() {
    return 0;
}
int pidfd_open(pid_t pid) {
    if (is_idle()) return failed(EPERM);
    kernel().enter_call();
    return kernel().open_pidfd(static_cast<std::uint32_t>(pid));
}
int pidfd_send_signal(int pidfd, int signal_number) {
    const bool only_asks = signal_number == 0;
    if (!only_asks) kernel().enter_call();
    const FilePtr file = kernel().file(pidfd);
    if (!file) return -1;
    const int whose = file->of_process;
    if (!kernel().process(whose).is_alive) return failed(ESRCH);
    if (!only_asks && kernel().process(whose).is_client) kernel().kill(whose);
    return 0;
}
int poll(pollfd *fds, nfds_t count, int) {
    if (is_idle()) return 0;
    kernel().enter_call();
    int ready = 0;
    for (nfds_t i = 0; i < count; ++i) {
        const FilePtr file = kernel().file(fds[i].fd);
        fds[i].revents = static_cast<short>(!file ? POLLNVAL : kernel().is_ready(*file) ? POLLIN : 0);
        if (fds[i].revents != 0) ++ready;
    }
    return ready;
}
ssize_t getrandom(void *buffer, size_t bytes) {
    kernel().enter_call();
    for (std::size_t i = 0; i < bytes; ++i)
        static_cast<std::byte *>(buffer)[i] = static_cast<std::byte>(kernel().random().next());
    return static_cast<ssize_t>(bytes);
}

int futex_wait(uint32_t *word, uint32_t value, const timespec *duration) {
    kernel().enter_call();
    if (*word != value) return EAGAIN;
    if (kernel().random().one_in(16)) return 0;
    const bool is_woken = kernel().scheduler().wait_on(
        kernel().futex_key(word),
        static_cast<std::uint64_t>(duration->tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(duration->tv_nsec));
    return is_woken ? 0 : ETIMEDOUT;
}
void futex_wake(uint32_t *word, int) {
    kernel().enter_call();
    kernel().scheduler().wake(kernel().futex_key(word));
}
// Every access is at once visible to all.
int register_for_barriers() {
    return 0;
}
int pass_barrier() {
    step();
    return 0;
}
int clock_gettime(clockid_t, timespec *time) {
    const std::uint64_t now = Scheduler::running == nullptr ? 1 : Scheduler::running->now_ns();
    time->tv_sec = static_cast<time_t>(now / 1'000'000'000);
    time->tv_nsec = static_cast<long>(now % 1'000'000'000);
    return 0;
}
int sched_yield() {
    step();
    return 0;
}
int pthread_sigmask(int, const sigset_t *, sigset_t *) {
    return 0;
}
int pthread_once(pthread_once_t *once, void (*routine)()) {
    constexpr int kUnderWay = 1, kDone = 2;
    while (*once == kUnderWay) kernel().scheduler().wait_on(key_of_word(once), Kernel::kForEver);
    if (*once == kDone) return 0;
    *once = kUnderWay;
    routine();
    *once = kDone;
    kernel().scheduler().wake_all(key_of_word(once));
    return 0;
}
int pthread_mutex_lock(pthread_mutex_t *mutex) {
    return ::pthread_mutex_lock(mutex);
}
int pthread_mutex_unlock(pthread_mutex_t *mutex) {
    return ::pthread_mutex_unlock(mutex);
}
pid_t gettid() {
    return 1 + kernel().scheduler().current();
}
pid_t getpid() {
    return static_cast<pid_t>(kernel().current().pid);
}
bool thread_is_gone(pid_t thread) {
    return kernel().scheduler().fibers()[static_cast<std::size_t>(thread - 1)].state == FiberState::dead;
}
int pthread_key_create(pthread_key_t *key, void (*at_thread_end)(void *)) {
    *key = 0;
    kernel().current().at_thread_end = at_thread_end;
    return 0;
}
int pthread_setspecific(pthread_key_t, const void *value) {
    kernel().scheduler().fibers()[static_cast<std::size_t>(kernel().scheduler().current())].locals.value =
        const_cast<void *>(value);
    return 0;
}
int pthread_atfork(void (*)(), void (*)(), void (*in_child)()) {
    kernel().current().in_forked_child = in_child;
    return 0;
}

}  // namespace numacre::os
