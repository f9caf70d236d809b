/* Concept: the choice of a block's numa node, by a policy of the handle (strict, preferred, interleave) or of one call.
 *
 * Build:  cc -std=c11 numa_policies.c $(pkg-config --cflags --libs numacre) -o numa_policies
 * Run:    numacred --topology synthetic:2x512M --runtime-dir /tmp/numacre \
 *             --pool name=default,capacity=16M,online=16M,backing=small &      # two numa nodes on any machine
 *         NUMACRE_RUNTIME_DIR=/tmp/numacre ./numa_policies [POOL]
 *         The example takes all free memory of numa node 1 for a moment: use a pool that no other program needs.
 * Prints (numbers vary):
 *     pool of 2 numa nodes
 *     interleave:         blocks from numa nodes 1 0 1 0
 *     one call local:     a block from numa node 0
 *     strict, node 1:     4 blocks, then -ENOMEM
 *     preferred, node 1:  a block from numa node 0, for node 1 is full
 *
 * The first policy that is set decides: the call's, then the handle's, the thread's (numactl), the pool's. */
#include <errno.h>
#include <inttypes.h>
#include <numacre/numacre.h>
#include <stdio.h>

#define NODE_1 (UINT64_C(1) << 1) /* nodes are bits, by the pool's own numbers */

static int failed(const char *call) {
    fprintf(stderr, "numa_policies: %s: %s\n", call, numacre_last_error());
    return 1;
}

/* The pool's number of the numa node that a block lies on; -1 if none. */
static int node_of(numacre_pool *pool, const void *block) {
    void *base = NULL;
    size_t size_bytes = 0;
    for (int node = 0; numacre_region(pool, node, &base, &size_bytes) == 0; ++node)
        if ((uintptr_t)block - (uintptr_t)base < size_bytes) return node;
    return -1;
}

static int interleave(numacre_pool *pool) {
    if (numacre_set_policy(pool, NUMACRE_POLICY_INTERLEAVE, 0) != 0) return failed("numacre_set_policy");
    void *blocks[4];
    if (numacre_alloc_bulk(pool, 4096, blocks, 4) != 0) return failed("numacre_alloc_bulk");
    printf("interleave:         blocks from numa nodes");
    for (int i = 0; i < 4; ++i) printf(" %d", node_of(pool, blocks[i]));
    printf("\n");
    if (numacre_free_bulk(pool, blocks, 4) != 0) return failed("numacre_free_bulk");

    /* This policy is for this call only; the handle still interleaves. */
    void *block = NULL;
    if (numacre_alloc_policy(pool, NUMACRE_POLICY_LOCAL, 0, 4096, 0, &block) != 0)
        return failed("numacre_alloc_policy");
    printf("one call local:     a block from numa node %d\n", node_of(pool, block));
    return numacre_free(pool, block) == 0 ? 0 : failed("numacre_free");
}

static int fill_node_1(numacre_pool *pool, size_t block_bytes) {
    int error = 0;
    unsigned count = 0;
    void *block = NULL;
    if (numacre_set_policy(pool, NUMACRE_POLICY_STRICT, NODE_1) != 0) return failed("numacre_set_policy");
    while ((error = numacre_alloc(pool, block_bytes, &block)) == 0) ++count;
    if (error != -ENOMEM) return failed("numacre_alloc");
    printf("strict, node 1:     %u blocks, then -ENOMEM\n", count);

    if (numacre_set_policy(pool, NUMACRE_POLICY_PREFERRED, NODE_1) != 0) return failed("numacre_set_policy");
    if (numacre_alloc(pool, block_bytes, &block) != 0) return failed("numacre_alloc");
    printf("preferred, node 1:  a block from numa node %d, for node 1 is full\n", node_of(pool, block));
    return 0; /* numacre_detach gives all of these blocks back */
}

int main(int argc, char **argv) {
    numacre_pool *pool = NULL;
    if (numacre_attach(NULL, argc > 1 ? argv[1] : "default", &pool) != 0) return failed("numacre_attach");

    numacre_pool_info info = {.struct_size = sizeof info};
    int status = numacre_get_info(pool, &info) == 0 ? 0 : failed("numacre_get_info");
    if (status == 0) printf("pool of %" PRIu32 " numa nodes\n", info.numa_nodes);
    if (status == 0) status = interleave(pool);
    if (status == 0) status = fill_node_1(pool, (size_t)info.largest_block_bytes);
    numacre_detach(pool);
    return status;
}
