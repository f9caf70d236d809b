/* Concept: a full pool. An allocation fails at once, or waits with a timeout until another process frees a block.
 *
 * Build:  cc -std=c11 waiting.c $(pkg-config --cflags --libs numacre) -o waiting
 * Run:    ./waiting [POOL]
 *         The example takes all free memory of the pool for a moment: use a pool that no other program needs.
 * Prints (numbers vary):
 *     holder: took 4 blocks of 4194304 bytes
 *     waiter, no wait: no free block
 *     waiter, 200 ms at most: no free block
 *     holder: frees one block
 *     waiter, 30 s at most: got a block after 100 ms
 *
 * Waiters sleep in the kernel. A freed block goes straight to the process that has waited longest. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <numacre/numacre.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int failed(const char *who, const char *call) {
    fprintf(stderr, "%s: %s: %s\n", who, call, numacre_last_error());
    return 1;
}

static long long now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

/* Takes all blocks, tells the waiter, and frees one block when the waiter asks. */
static int hold(numacre_pool *pool, size_t block_bytes, int peer) {
    void *block = NULL;
    unsigned count = 0;
    int error;
    while ((error = numacre_alloc_on(pool, -1, block_bytes, NUMACRE_UNCACHED, &block)) == 0) ++count;
    if (error != -ENOMEM || count == 0) return failed("holder", "numacre_alloc_on");
    /* The failed call has not changed `block`: it is still the last block taken. Detach gives back the others. */
    printf("holder: took %u blocks of %zu bytes\n", count, block_bytes);
    fflush(stdout);

    char byte = 'f';
    if (send(peer, &byte, 1, MSG_NOSIGNAL) != 1 || read(peer, &byte, 1) != 1) return 1; /* the waiter has said why */
    nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);                          /* so that the waiter sleeps */
    printf("holder: frees one block\n");
    fflush(stdout);
    /* Uncached: if nobody waits yet, numacre_free may keep the block in this thread's cache for some seconds. */
    if (numacre_free_uncached(pool, block) != 0) return failed("holder", "numacre_free_uncached");
    return read(peer, &byte, 1) == 0 ? 0 : 1; /* returns when the waiter has ended */
}

static int wait_for_block(numacre_pool *pool, size_t block_bytes, int peer) {
    void *block = NULL;
    int error = numacre_alloc(pool, block_bytes, &block);
    if (error == 0) return fprintf(stderr, "waiter: another program frees memory of this pool\n"), 1;
    if (error != -ENOMEM) return failed("waiter", "numacre_alloc");
    printf("waiter, no wait: no free block\n");

    /* The timeout is part of the flags. NUMACRE_WAIT alone waits for ever. */
    error = numacre_alloc_on(pool, -1, block_bytes, NUMACRE_WAIT_MS(200), &block);
    if (error == 0) return fprintf(stderr, "waiter: another program frees memory of this pool\n"), 1;
    if (error != -ETIMEDOUT) return failed("waiter", "numacre_alloc_on");
    printf("waiter, 200 ms at most: no free block\n");
    fflush(stdout);

    const long long begin_ms = now_ms();
    if (send(peer, "w", 1, MSG_NOSIGNAL) != 1) return perror("waiter: send"), 1;
    if (numacre_alloc_on(pool, -1, block_bytes, NUMACRE_WAIT_MS(30000), &block) != 0)
        return failed("waiter", "numacre_alloc_on");
    printf("waiter, 30 s at most: got a block after %lld ms\n", now_ms() - begin_ms);
    return numacre_free(pool, block) == 0 ? 0 : failed("waiter", "numacre_free");
}

static int attach_as(const char *who, int (*role)(numacre_pool *, size_t, int), const char *pool_name, int peer) {
    numacre_pool *pool = NULL;
    numacre_pool_info info = {.struct_size = sizeof info};
    if (numacre_attach(NULL, pool_name, &pool) != 0) return failed(who, "numacre_attach");
    const int error = numacre_get_info(pool, &info);
    const int status = error == 0 ? role(pool, info.largest_block_bytes, peer) : failed(who, "numacre_get_info");
    numacre_detach(pool);
    return status;
}

int main(int argc, char **argv) {
    const char *const pool_name = argc > 1 ? argv[1] : "default";
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0) return perror("waiting: socketpair"), 1;
    const pid_t child = fork(); /* before any attach: a child does not inherit a handle */
    if (child < 0) return perror("waiting: fork"), 1;
    close(ends[child == 0 ? 0 : 1]);
    if (child == 0) return attach_as("holder", hold, pool_name, ends[1]);

    char byte;
    int status = 1; /* the holder has said why */
    if (read(ends[0], &byte, 1) == 1) status = attach_as("waiter", wait_for_block, pool_name, ends[0]);
    int holder_status = 0;
    close(ends[0]); /* the holder ends */
    waitpid(child, &holder_status, 0);
    return status != 0 || holder_status != 0;
}
