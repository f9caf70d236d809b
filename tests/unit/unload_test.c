/* A thread uses a library that the program then closes, and ends: what the library does at a thread's end must still be
 * there. argv[1]: the library, or a module that has it inside. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct numacre_pool numacre_pool;

static int (*open_private)(const void *, numacre_pool **);
static int (*allocate)(numacre_pool *, size_t, void **);
static int (*free_block)(numacre_pool *, void *);
static numacre_pool *pool;
static pthread_barrier_t used;
static pthread_barrier_t closed;

static void *use(void *failures) {
    void *block;
    if (allocate(pool, 4096, &block) != 0 || free_block(pool, block) != 0) ++*(int *)failures;
    pthread_barrier_wait(&used);
    pthread_barrier_wait(&closed);
    return NULL;
}

static int find(void *library, const char *name, void *function) {
    void *const found = dlsym(library, name);
    if (found == NULL) return fprintf(stderr, "no %s: %s\n", name, dlerror()), 1;
    memcpy(function, &found, sizeof found);
    return 0;
}

int main(int argc, char **argv) {
    int failures = 0;
    pthread_t thread;
    void *library;
    if (argc != 2) return fprintf(stderr, "usage: unload_test LIBRARY\n"), 2;
    alarm(30); /* a module that never gets loaded is a failure */
    library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) return fprintf(stderr, "%s\n", dlerror()), 1;
    if (find(library, "numacre_open_private", &open_private) != 0 || find(library, "numacre_alloc", &allocate) != 0 ||
        find(library, "numacre_free", &free_block) != 0)
        return 1;
    if (open_private(NULL, &pool) != 0) return fprintf(stderr, "no pool\n"), 1;
    pthread_barrier_init(&used, NULL, 2);
    pthread_barrier_init(&closed, NULL, 2);
    if (pthread_create(&thread, NULL, use, &failures) != 0) return 1;
    pthread_barrier_wait(&used);
    if (dlclose(library) != 0) return fprintf(stderr, "%s\n", dlerror()), 1;
    pthread_barrier_wait(&closed);
    pthread_join(thread, NULL);
    if (failures != 0) fprintf(stderr, "the thread could not use the pool\n");
    return failures;
}
