/* Attaches to "default", opens an object pool within it, says how that went, and holds objects until its input ends.
 * usage: objects_client NAME OBJECT_BYTES COUNT HELD   The daemon is that of NUMACRE_RUNTIME_DIR. Prints one line:
 * "open ERROR DISTANCE TEXT", where ERROR is 0 or -errno and DISTANCE that of the objects. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "numacre/numacre.h"

int main(int argc, char **argv) {
    numacre_pool *pool, *objects = NULL;
    if (argc != 5) return 2;
    if (numacre_attach(NULL, NULL, &pool) != 0) {
        fprintf(stderr, "numacre_attach: %s\n", numacre_last_error());
        return 1;
    }
    const unsigned long long bytes = strtoull(argv[2], NULL, 10);
    const int error = numacre_objects_open(pool, argv[1], bytes, strtoull(argv[3], NULL, 10), 0, &objects);
    numacre_pool_info info = {.struct_size = sizeof info};
    if (error == 0) (void)numacre_get_info(objects, &info);
    for (long held = error == 0 ? atol(argv[4]) : 0; held > 0; --held) {
        void *object;
        if (numacre_alloc_on(objects, -1, bytes, NUMACRE_UNCACHED, &object) != 0) {
            fprintf(stderr, "numacre_alloc_on: %s\n", numacre_last_error());
            return 1;
        }
        memset(object, 1, bytes);
    }
    printf("open %d %llu %s\n", error, (unsigned long long)info.frame_bytes, error == 0 ? "" : numacre_last_error());
    fflush(stdout);
    while (getchar() != EOF) continue;
    numacre_detach(objects);
    numacre_detach(pool);
    return 0;
}
