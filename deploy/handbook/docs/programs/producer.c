/* Fills a block of 1 MiB twice a second and prints the block's reference.
 * Build: cc -o producer producer.c $(pkg-config --cflags --libs numacre) */
#include <inttypes.h>
#include <numacre/numacre.h>
#include <stdio.h>
#include <unistd.h>

enum { kBlockBytes = 1 << 20 };

int main(void) {
    numacre_pool *pool;
    if (numacre_attach(NULL, "default", &pool) != 0) return fprintf(stderr, "%s\n", numacre_last_error()), 1;
    for (unsigned number = 1;; ++number) {
        void *block;
        while (numacre_alloc_on(pool, -1, kBlockBytes, NUMACRE_WAIT_MS(5000), &block) != 0)
            fprintf(stderr, "block %u: %s\n", number, numacre_last_error());
        snprintf(block, kBlockBytes, "block %u of process %d", number, (int)getpid());
        /* The reader of this line becomes the owner by numacre_take. Until then the block belongs to this process. */
        printf("%" PRIu64 "\n", numacre_ref_of(pool, block));
        fflush(stdout);
        usleep(500000);
    }
}
