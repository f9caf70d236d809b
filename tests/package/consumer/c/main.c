#include <errno.h>
#include <numacre/inline.h>
#include <numacre/numacre.h>
#include <stdio.h>
#include <string.h>

static int failed(const char *what, int result) {
    fprintf(stderr, "%s: %d (%s)\n", what, result, numacre_last_error());
    return 1;
}

int main(void) {
    numacre_private_options options;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.capacity_bytes = 16u << 20;

    numacre_pool *pool = NULL;
    int result = numacre_open_private(&options, &pool);
    if (result != 0) return failed("numacre_open_private", result);

    void *block = NULL;
    result = numacre_alloc(pool, 10000, &block);
    if (result != 0) return failed("numacre_alloc", result);
    if (numacre_usable_size(pool, block) != 16384) return failed("numacre_usable_size of 10000 bytes is not 16384", 0);
    memset(block, 0x5a, 16384);

    numacre_ref ref = numacre_ref_of(pool, block);
    void *again = NULL;
    result = numacre_take(pool, ref, &again);
    if (result != 0 || again != block) return failed("numacre_take of our own block", result);

    result = numacre_free(pool, block);
    if (result != 0) return failed("numacre_free", result);
    result = numacre_free(pool, block);
    if (result != -ESTALE) return failed("numacre_free of a freed block is not -ESTALE", result);

    /* The same, compiled into this program. */
    for (int i = 0; i < 64; ++i) {
        result = numacre_alloc_inline(pool, 4096, &block);
        if (result != 0) return failed("numacre_alloc_inline", result);
        result = numacre_free_inline(pool, block);
        if (result != 0) return failed("numacre_free_inline", result);
    }
    result = numacre_free_inline(pool, block);
    if (result != -ESTALE) return failed("numacre_free_inline of a freed block is not -ESTALE", result);
    numacre_detach(pool);
    printf("numacre %s\n", numacre_version());
    return 0;
}
