/* Hands bursts of blocks from one handle to another: blocks of all numa nodes in turn, of several sizes, one of each
 * burst stale. usage: burst_hand_over ROUNDS   The daemon is that of NUMACRE_RUNTIME_DIR. Exit status 0: all came as it
 * should. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "numacre/numacre.h"

enum { kBurst = 200 };

static numacre_pool *giver, *taker;

static uint64_t largest_bytes;

/* In an object pool all sizes are that of an object. */
static size_t fitting(size_t bytes) {
    return bytes < largest_bytes ? bytes : (size_t)largest_bytes;
}

static int failed(const char *what) {
    fprintf(stderr, "%s: %s\n", what, numacre_last_error());
    return 1;
}

/* Whether the two addresses are those of one block. */
static int is_one_block(unsigned numa_nodes, const char *given, const char *taken) {
    for (unsigned node = 0; node < numa_nodes; ++node) {
        void *of_giver, *of_taker;
        size_t bytes;
        if (numacre_region(giver, (int)node, &of_giver, &bytes) != 0) return 0;
        if (numacre_region(taker, (int)node, &of_taker, &bytes) != 0) return 0;
        if (given >= (char *)of_giver && given < (char *)of_giver + bytes)
            return taken - (char *)of_taker == given - (char *)of_giver;
    }
    return 0;
}

static int hand_over(unsigned round, unsigned numa_nodes) {
    void *given[kBurst], *taken[kBurst];
    numacre_ref refs[kBurst];
    if (round % 2 != 0) {
        if (numacre_alloc_ref_bulk(giver, fitting((size_t)4096 << round % 5), given, refs, kBurst) != 0)
            return failed("numacre_alloc_ref_bulk");
    } else {
        for (unsigned i = 0; i < kBurst; ++i) {
            const unsigned node = (round % 4 != 0 ? i : i / 7) % numa_nodes;
            if (numacre_alloc_on(giver, (int)node, fitting((size_t)4096 << i % 3), NUMACRE_STRICT, &given[i]) != 0)
                return failed("numacre_alloc_on");
        }
        if (numacre_ref_bulk(giver, given, refs, kBurst) != 0) return failed("numacre_ref_bulk");
    }
    const unsigned stale = round % kBurst;
    if (numacre_free(giver, given[stale]) != 0) return failed("numacre_free");
    memset(taken, 1, sizeof taken);
    if (numacre_take_bulk(taker, refs, taken, kBurst) != -ESTALE) return failed("numacre_take_bulk");
    for (unsigned i = 0; i < kBurst; ++i) {
        if (i == stale) {
            if (taken[i] != NULL) return failed("a stale reference has a block");
            continue;
        }
        if (!is_one_block(numa_nodes, given[i], taken[i])) return failed("another block");
        if (numacre_free(taker, taken[i]) != 0) return failed("the taker's numacre_free");
    }
    return 0;
}

int main(int argc, char **argv) {
    const unsigned rounds = argc == 2 ? (unsigned)atoi(argv[1]) : 0;
    numacre_pool_info info = {.struct_size = sizeof info};
    if (rounds == 0) return failed("usage: burst_hand_over ROUNDS");
    if (numacre_attach(NULL, NULL, &giver) != 0 || numacre_attach(NULL, NULL, &taker) != 0)
        return failed("numacre_attach");
    if (numacre_get_info(giver, &info) != 0) return failed("numacre_get_info");
    largest_bytes = info.largest_block_bytes;
    for (unsigned round = 0; round < rounds; ++round)
        if (hand_over(round, info.numa_nodes) != 0) return 1;
    numacre_detach(giver);
    numacre_detach(taker);
    return 0;
}
