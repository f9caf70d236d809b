/* Concept: a private pool. The calls work on memory of this process alone, without daemon and set-up: for unit tests,
 * for a first look, and for programs that want the allocator without sharing.
 *
 * Build:  cc -std=c11 private_pool.c $(pkg-config --cflags --libs numacre) -o private_pool
 * Run:    ./private_pool [FRAME_BYTES]
 * Prints:
 *     pool of 16777216 bytes, frames of 4096 bytes, blocks of at most 1048576 bytes
 *     16 blocks fill the pool; one more: -ENOMEM
 *     freed twice: -ESTALE
 *     address inside a block: -EINVAL
 *     events: -EINVAL, for want of a daemon
 *     detached with 15 blocks left
 *
 * A mistake returns an error and never crashes; the handle stays valid. numacre_last_error() names value and remedy. */
#include <errno.h>
#include <numacre/numacre.h>
#include <stdio.h>
#include <stdlib.h>

enum { kBlocks = 16 };

/* Returns 1 if `error` equals `expected`. Otherwise prints both to stderr and returns 0. */
static int is_as_expected(const char *what, int error, int expected) {
    if (error == expected) return 1;
    fprintf(stderr, "private_pool: %s: %d instead of %d: %s\n", what, error, expected,
            error == 0 ? "no error" : numacre_last_error());
    return 0;
}

static int use(numacre_pool *pool) {
    /* struct_size tells the library which version of the structure the program was compiled with. */
    numacre_pool_info info = {.struct_size = sizeof info};
    if (!is_as_expected("numacre_get_info", numacre_get_info(pool, &info), 0)) return 1;
    printf("pool of %llu bytes, frames of %llu bytes, blocks of at most %llu bytes\n",
           (unsigned long long)info.capacity_bytes, (unsigned long long)info.frame_bytes,
           (unsigned long long)info.largest_block_bytes);

    void *blocks[kBlocks];
    void *one_more = NULL;
    for (int i = 0; i < kBlocks; ++i)
        if (!is_as_expected("numacre_alloc", numacre_alloc(pool, (size_t)info.largest_block_bytes, &blocks[i]), 0))
            return 1;
    if (!is_as_expected("one more", numacre_alloc(pool, 1, &one_more), -ENOMEM)) return 1;
    printf("%d blocks fill the pool; one more: -ENOMEM\n", kBlocks);

    if (!is_as_expected("numacre_free", numacre_free(pool, blocks[0]), 0)) return 1;
    if (!is_as_expected("freed twice", numacre_free(pool, blocks[0]), -ESTALE)) return 1;
    printf("freed twice: -ESTALE\n");

    void *const inside = (char *)blocks[1] + info.frame_bytes;
    if (!is_as_expected("inside a block", numacre_free(pool, inside), -EINVAL)) return 1;
    printf("address inside a block: -EINVAL\n");

    int event_fd = -1;
    if (!is_as_expected("numacre_event_fd", numacre_event_fd(pool, &event_fd), -EINVAL)) return 1;
    printf("events: -EINVAL, for want of a daemon\n");
    return 0;
}

int main(int argc, char **argv) {
    /* A field that is 0 has its default: frames of 4 KiB. */
    const numacre_private_options options = {
        .struct_size = sizeof options,
        .capacity_bytes = 16u << 20,
        .frame_bytes = argc > 1 ? strtoull(argv[1], NULL, 10) : 0,
        .largest_block_bytes = 1u << 20,
    };
    numacre_pool *pool = NULL;
    if (!is_as_expected("numacre_open_private", numacre_open_private(&options, &pool), 0)) return 1;
    const int status = use(pool);
    numacre_detach(pool); /* gives all memory back to the system, also that of allocated blocks */
    if (status == 0) printf("detached with %d blocks left\n", kBlocks - 1);
    return status;
}
