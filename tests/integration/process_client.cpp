// A client whose process does what processes do: threads of it are cancelled, it forks and executes another program.
// usage: process_client RUNTIME_DIR cancel|exec|stack
//   cancel  attaches, says "attached"; for each line that it reads: a thread asks for the events' descriptor, "asking",
//           is cancelled, "cancelled", and after the next line joined; then asks again itself and says what that
//           returned
//   exec    attaches, holds 8 MiB, forks a child that waits, says the child's pid, and executes cat when it reads a
//   line
//   stack   everything in a thread with the least stack there is: attaches, allocates, detaches, says "detached"
#include <limits.h>
#include <pthread.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "numacre/numacre.h"
#include "support/sanitizer.hpp"

namespace {

void say(const char *what, long number) {
    std::printf("%s %ld\n", what, number);
    std::fflush(stdout);
}
bool hear() {
    char line[16];
    return std::fgets(line, sizeof line, stdin) != nullptr;
}

void *ask(void *pool) {
    int fd = -1;
    say("asking", 0);
    numacre_event_fd(static_cast<numacre_pool *>(pool), &fd);
    return nullptr;
}

int cancel(numacre_pool *pool) {
    say("attached", 0);
    if (!hear()) return 1;
    pthread_t thread;
    if (pthread_create(&thread, nullptr, ask, pool) != 0) return 1;
    usleep(200'000);  // it is in the middle of it by now, or the test sees less
    pthread_cancel(thread);
    say("cancelled", 0);
    if (!hear()) return 1;
    pthread_join(thread, nullptr);
    int fd = -1;
    say("again", numacre_event_fd(pool, &fd));
    return 0;
}

int execute(numacre_pool *pool) {
    void *blocks[2];
    if (numacre_alloc_bulk(pool, 4 << 20, blocks, 2) != 0) return 1;
    const pid_t child = fork();
    if (child == 0) {
        pause();
        _exit(0);
    }
    say("child", child);
    if (!hear()) return 1;
    execlp("cat", "cat", static_cast<char *>(nullptr));
    return 1;
}

[[maybe_unused]] void *attach_and_allocate(void *runtime_dir) {
    numacre_pool *pool = nullptr;
    int error = numacre_attach(static_cast<const char *>(runtime_dir), nullptr, &pool);
    void *block = nullptr;
    if (error == 0) error = numacre_alloc(pool, 1 << 20, &block);
    if (error == 0) error = numacre_free(pool, block);
    if (error == 0) error = numacre_alloc_on(pool, -1, 1, NUMACRE_WAIT_MS(1), &block);
    if (pool != nullptr) numacre_detach(pool);
    say("detached", error);
    return nullptr;
}

int use_least_stack(char *runtime_dir) {
#if defined(UNDER_SANITIZER)
    (void)runtime_dir;
    say("sanitized", 0);
    return 0;
#else
    pthread_attr_t attributes;
    pthread_t thread;
    if (pthread_attr_init(&attributes) != 0 ||
        pthread_attr_setstacksize(&attributes, static_cast<std::size_t>(PTHREAD_STACK_MIN)) != 0 ||
        pthread_create(&thread, &attributes, attach_and_allocate, runtime_dir) != 0)
        return 1;
    return pthread_join(thread, nullptr);
#endif
}

}  // namespace

int main(int argc, char **argv) {
    if (argc == 3 && std::strcmp(argv[2], "stack") == 0) return use_least_stack(argv[1]);
    numacre_pool *pool = nullptr;
    if (argc != 3 || numacre_attach(argv[1], nullptr, &pool) != 0) {
        std::fprintf(stderr, "process_client: %s\n", argc == 3 ? numacre_last_error() : "two arguments");
        return 1;
    }
    return std::strcmp(argv[2], "cancel") == 0 ? cancel(pool) : execute(pool);
}
