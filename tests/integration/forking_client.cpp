// A client that forks, as another thread of it might, just before each call that the library makes of libc while it
// attaches and detaches: once with success and once to a pool that there is not. Says of each child's descriptors of
// the library that it found open: when, before which call, and what they are. usage: forking_client RUNTIME_DIR
#include <dlfcn.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "numacre/numacre.h"

namespace {

constexpr int kHighest = 64;

const char *now = nullptr;  // null: the program does not call the library
unsigned forks = 0;

// What keeps a client alive in the daemon's eyes, or its memory. (Those of the regions are open for a moment only, and
// nobody watches for their end.)
bool is_the_librarys(const char *target) {
    return std::strncmp(target, "socket:", 7) == 0 || std::strcmp(target, "anon_inode:[userfaultfd]") == 0;
}

void fork_before(const char *call) {
    if (now == nullptr) return;
    const char *const meanwhile = now;
    now = nullptr;
    std::fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        for (int fd = 3; fd < kHighest; ++fd) {
            char path[64];
            char target[256] = {};
            std::snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
            if (readlink(path, target, sizeof target - 1) > 0 && is_the_librarys(target))
                std::printf("%s, before %s: %s\n", meanwhile, call, target);
        }
        std::fflush(stdout);
        _exit(0);
    }
    if (child < 0 || waitpid(child, nullptr, 0) != child) std::printf("no child: %s\n", call);
    ++forks;
    now = meanwhile;
}

template <class Function>
Function next(Function, const char *name) {
    return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

}  // namespace

// Found by the library before libc's.
#define FORK_BEFORE(result, name, parameters, arguments, ...)                              \
    extern "C" result name parameters __VA_ARGS__ {                                        \
        static const auto libcs = next(static_cast<result(*) parameters>(nullptr), #name); \
        fork_before(#name);                                                                \
        return libcs arguments;                                                            \
    }
FORK_BEFORE(int, fstat, (int fd, struct stat *status), (fd, status), noexcept)
FORK_BEFORE(int, connect, (int fd, const sockaddr *address, socklen_t bytes), (fd, address, bytes))
FORK_BEFORE(int, setsockopt, (int fd, int level, int option, const void *value, socklen_t bytes),
            (fd, level, option, value, bytes), noexcept)
FORK_BEFORE(ssize_t, send, (int fd, const void *data, size_t bytes, int flags), (fd, data, bytes, flags))
FORK_BEFORE(ssize_t, recvmsg, (int fd, msghdr *message, int flags), (fd, message, flags))
FORK_BEFORE(void *, mmap, (void *where, size_t bytes, int protection, int flags, int fd, off_t offset),
            (where, bytes, protection, flags, fd, offset), noexcept)
FORK_BEFORE(int, munmap, (void *address, size_t bytes), (address, bytes), noexcept)
FORK_BEFORE(int, mprotect, (void *address, size_t bytes, int protection), (address, bytes, protection), noexcept)
FORK_BEFORE(int, madvise, (void *address, size_t bytes, int advice), (address, bytes, advice), noexcept)
FORK_BEFORE(int, close, (int fd), (fd))

int main(int argc, char **argv) {
    if (argc != 2) return 1;
    numacre_pool *pool = nullptr;
    now = "attach";
    const int error = numacre_attach(argv[1], nullptr, &pool);
    now = nullptr;
    if (error != 0) {
        std::fprintf(stderr, "forking_client: %s\n", numacre_last_error());
        return 1;
    }
    now = "detach";
    numacre_detach(pool);
    now = "refused attach";
    const int refused = numacre_attach(argv[1], "another", &pool);
    now = nullptr;
    std::fprintf(stderr, "%u children\n", forks);
    return refused != 0 && forks > 20 ? 0 : 1;
}
