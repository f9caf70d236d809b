/* Reads references, takes their blocks, prints the contents, and keeps the last eight blocks.
 * Build: cc -o consumer consumer.c $(pkg-config --cflags --libs numacre) */
#include <inttypes.h>
#include <numacre/numacre.h>
#include <stdio.h>

enum { kKept = 8 };

int main(void) {
    numacre_pool *pool;
    void *kept[kKept] = {0};
    numacre_ref ref;
    if (numacre_attach(NULL, "default", &pool) != 0) return fprintf(stderr, "%s\n", numacre_last_error()), 1;
    for (unsigned at = 0; scanf("%" SCNu64, &ref) == 1; at = (at + 1) % kKept) {
        void *block;
        if (numacre_take(pool, ref, &block) != 0) {
            printf("%s\n", numacre_last_error());
        } else {
            printf("%s\n", (char *)block);
            if (kept[at] != NULL) numacre_free(pool, kept[at]);
            kept[at] = block;
        }
        fflush(stdout);
    }
    numacre_detach(pool);
}
