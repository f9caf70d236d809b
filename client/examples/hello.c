/* Attach, allocate, write, name, free, detach. Build: cc hello.c $(pkg-config --cflags --libs numacre) */
#include <numacre/numacre.h>
#include <stdio.h>

int main(void) {
    numacre_pool *pool;
    void *block;
    if (numacre_attach(NULL, "default", &pool) != 0 || numacre_alloc(pool, 4096, &block) != 0)
        return fprintf(stderr, "%s\n", numacre_last_error()), 1;
    snprintf(block, 4096, "hello from block %#llx", (unsigned long long)numacre_ref_of(pool, block));
    puts(block);
    numacre_free(pool, block);
    numacre_detach(pool);
}
