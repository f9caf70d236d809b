// Attaches to a pool, and touches its frames at an offset: offline_toucher RUNTIME_DIR POOL OFFSET
// [read|write|unguarded] read and write do it by load and store; unguarded does it in a process that may not have a
// userfaultfd. Prints "attached" before, "touched" after.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "numacre/numacre.h"

namespace {

bool forbid_userfaultfd() {
    sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_userfaultfd, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog program{sizeof filter / sizeof filter[0], filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

}  // namespace

int main(int count, char **arguments) {
    if (count != 5) return 2;
    std::signal(SIGBUS, SIG_DFL);  // not a sanitizer's
    const char *const how = arguments[4];
    if (std::strcmp(how, "unguarded") == 0 && !forbid_userfaultfd()) {
        std::perror("seccomp");
        return 2;
    }
    numacre_pool *pool = nullptr;
    void *block = nullptr;
    if (numacre_attach(arguments[1], arguments[2], &pool) != 0 || numacre_alloc(pool, 1, &block) != 0) {
        std::fprintf(stderr, "%s\n", numacre_last_error());
        return 2;
    }
    std::memset(block, 1, 64);
    std::puts("attached");
    std::fflush(stdout);
    if (std::getchar() != '\n') return 2;
    // An empty pool gives its first frame first.
    volatile char *const frame = static_cast<char *>(block) + std::strtoull(arguments[3], nullptr, 0);
    if (std::strcmp(how, "write") == 0)
        *frame = 1;
    else
        (void)*frame;
    std::puts("touched");
    numacre_detach(pool);
    return 0;
}
