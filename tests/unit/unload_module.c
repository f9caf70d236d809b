/* A program's module that has the archive libnumacre.a in it: unload_test finds the calls here by their own names. */
#include <pthread.h>
#include <stddef.h>

#include "numacre/numacre.h"

typedef void (*Function)(void);
extern const Function numacre_module_uses[];
const Function numacre_module_uses[] = {(Function)numacre_open_private, (Function)numacre_alloc,
                                        (Function)numacre_free};

/* As it is loaded, it waits for a thread that opens a pool: while that thread would wait for the loader, nobody went
 * on. */
static void *open_and_close(void *nothing) {
    numacre_pool *pool = NULL;
    if (numacre_open_private(NULL, &pool) == 0) numacre_detach(pool);
    return nothing;
}
__attribute__((constructor)) static void open_in_a_thread(void) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, open_and_close, NULL) == 0) pthread_join(thread, NULL);
}
