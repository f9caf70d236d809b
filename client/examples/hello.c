/* Concept: the life of a block. Attach, allocate, write, free, detach, and the meaning of each call's failure.
 *
 * Build:  cc -std=c11 hello.c $(pkg-config --cflags --libs numacre) -o hello
 * Run:    ./hello [POOL]
 *         A daemon serves POOL ("default" if not given) in $NUMACRE_RUNTIME_DIR, else in /run/numacre.
 * Prints (numbers vary):
 *     attached as client 1
 *     asked for 10000 bytes, may use 16384
 *     the block says: hello from client 1
 *
 * Functions of numacre.h return 0 or a negative errno value. numacre_last_error() tells the reason and the remedy. */
#include <inttypes.h>
#include <numacre/numacre.h>
#include <stdio.h>

/* The sentence is about the calling thread's last failed call: print it before the next call that can fail. */
static int failed(const char *call) {
    fprintf(stderr, "hello: %s: %s\n", call, numacre_last_error());
    return 1;
}

static int greet(numacre_pool *pool) {
    uint32_t client_id = 0;
    if (numacre_client_id(pool, &client_id) != 0) return failed("numacre_client_id");
    printf("attached as client %" PRIu32 "\n", client_id);

    /* -ENOMEM: the pool is full. -EDQUOT: a quota is reached. The handle stays valid after both, and a later call may
     * succeed. -EINVAL: a mistake of the program (size 0, or more than the pool's largest block). */
    const size_t asked_bytes = 10000;
    void *block = NULL;
    if (numacre_alloc(pool, asked_bytes, &block) != 0) return failed("numacre_alloc");

    /* A block is a power of two of frames, so its size is often larger than the size that was asked for. */
    const size_t usable_bytes = numacre_usable_size(pool, block);
    printf("asked for %zu bytes, may use %zu\n", asked_bytes, usable_bytes);

    snprintf(block, usable_bytes, "hello from client %" PRIu32, client_id);
    printf("the block says: %s\n", (const char *)block);

    /* A free that fails has changed nothing. -ESTALE: freed before. -EPERM: another process owns the block. -EINVAL: no
     * block begins at this address. All three are mistakes of the program. */
    if (numacre_free(pool, block) != 0) return failed("numacre_free");
    return 0;
}

int main(int argc, char **argv) {
    const char *const pool_name = argc > 1 ? argv[1] : "default";
    numacre_pool *pool = NULL;

    /* -ECONNREFUSED: no daemon there. -ENOENT: no such pool. -EACCES: this user may not attach. After a failure nothing
     * is attached, so there is nothing to detach. */
    if (numacre_attach(NULL, pool_name, &pool) != 0) return failed("numacre_attach");

    const int status = greet(pool);

    /* Gives back all blocks that this handle still owns, also after an early return of greet(). Cannot fail. */
    numacre_detach(pool);
    return status;
}
