/* numacre_alloc and numacre_free, compiled into the caller, for loops in which a call is a good part of the work. While
 * the calling thread's cache has a suitable block, or room for one, no function is called. Less common cases call
 * numacre_alloc or numacre_free. Results, permitted callers and the effects of a kill inside are those of these
 * functions (numacre.h). The library is built from this header as well.
 *
 *     #include <numacre/inline.h>
 *     ...
 *     error = numacre_alloc_inline(pool, 4096, &block);
 *     ...
 *     error = numacre_free_inline(pool, block);
 *
 * The header gains time where cached blocks are allocated and freed at once, and little where the program waits for
 * memory accesses (tests/bench compares it with the functions: numacre-inline). The common case of an allocation is a
 * pool of one numa node and the size of the last calls. The common case of a free is the numa node and the order of the
 * last frees. Where size or order change from call to call, the functions are faster.
 *
 * C11 or C++11, by gcc or clang. Do not use this header in a function that may move to another thread between two calls
 * (a fiber that moves): the compiler may keep the address of the first thread's cache.
 *
 * A program built with this header works with later libraries: the layout below does not change. A library with another
 * layout adds numacre_inline_lane_2, and its numacre_inline_lane_1 is a lane without blocks: each inline call of an old
 * program then becomes a call of the function.
 *
 * Programs use numacre_alloc_inline and numacre_free_inline; all other names are private to this header and the
 * library. */
#ifndef NUMACRE_INLINE_H
#define NUMACRE_INLINE_H

#include "numacre/numacre.h"
#include "numacre/shm/cached_block.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A stack of cached blocks of one order. */
struct numacre_inline_magazine {
    char **top; /* one past the block that was put in last */
    char **bottom;
    char **limit;          /* equal to bottom: takes no blocks (not yet, or never); the library sets it */
    uint64_t *allocations; /* this thread's count for the order, in shared memory; the count of frees follows */
};
#define NUMACRE_INLINE_FREES_BESIDE 25 /* distance in words */

/* The thread's cache on one numa node. */
struct numacre_inline_node {
    char *data;      /* first frame */
    uint64_t *index; /* the owners of blocks, one word per frame, in shared memory */
    /* The size of the last calls, and the values that follow from it. While the size stays, a call is a comparison that
     * is predicted, and its stores wait for no address. */
    size_t asked_bytes; /* 0: nothing */
    struct numacre_inline_magazine *asked_magazine;
    uint64_t asked_entry; /* the entry of a block of that size that is handed out now, without its generation */
};

/* A thread's way into one pool. */
struct numacre_inline_lane {
    const void *handle; /* the pool; while the lane exists, no other pool has this address. The lane itself: no pool */
    const uint64_t *attention;
    uint64_t attention_seen;
    struct numacre_inline_node *only; /* the numa node of a pool that has only one; otherwise a node without blocks */
    /* The numa node and order of the last frees. */
    char *freed_data; /* of that numa node, as in numacre_inline_node */
    uint64_t *freed_index;
    struct numacre_inline_magazine *freed_magazine;
    uint64_t freed_like;  /* the bits of NUMACRE_INLINE_OURS in the entries of these blocks; 0: none */
    uint64_t frame_count; /* of a numa node */
    uint64_t frame_shift; /* log2 of a frame in bytes */
};

/* The lane of the pool that the thread used last. Never null. */
NUMACRE_API extern __thread struct numacre_inline_lane *numacre_inline_lane_1
    __attribute__((tls_model("initial-exec")));

NUMACRE_INLINE_FUNCTION void numacre_inline_count(uint64_t *tally, uint64_t more) {
    /* The count has one writer, and other threads read it at any time. So one instruction without a lock prefix
     * suffices, or a load and a store that are each atomic. */
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
    __asm__ volatile("addq %1, %0" : "+m"(*tally) : "er"(more));
#else
    __atomic_store_n(tally, __atomic_load_n(tally, __ATOMIC_RELAXED) + more, __ATOMIC_RELAXED);
#endif
}

/* True: the lane belongs to `pool`, and the pool wants no attention. False: the lane belongs to another pool or to
 * none; or, since this thread last looked, a thread has begun to wait for memory or has run out of it, or the pool has
 * become older or was closed. */
NUMACRE_INLINE_FUNCTION int numacre_inline_is_undisturbed(const struct numacre_inline_lane *lane,
                                                          const numacre_pool *pool) {
    /* relaxed: nothing that is needed at once relies on this load. */
    return lane->handle == pool && __atomic_load_n(lane->attention, __ATOMIC_RELAXED) == lane->attention_seen;
}

/* Takes a block from a magazine. entry: as numacre_inline_is_cached() wants it. Returns 0 if the magazine is empty, or
 * if the top block was not a cached block any more; the top block is removed in that case. */
NUMACRE_INLINE_FUNCTION int numacre_inline_take(const struct numacre_inline_lane *lane,
                                                const struct numacre_inline_node *node,
                                                struct numacre_inline_magazine *magazine, uint64_t entry,
                                                void **block) {
    char **const above = magazine->top;
    char *address;
    uint64_t *slot;
    uint64_t before;
    if (__builtin_expect(above == magazine->bottom, 0)) return 0;
    address = above[-1];
    magazine->top = above - 1;
    slot = node->index + ((uint64_t)(address - node->data) >> lane->frame_shift);
    before = numacre_inline_entry(slot);
    if (__builtin_expect(!numacre_inline_is_cached(before, entry), 0)) return 0;
    numacre_inline_out_of_cache(slot, before, entry);
    *block = address;
    numacre_inline_count(magazine->allocations, 1);
    return 1;
}

/* Takes a block of the size of the last calls. */
NUMACRE_INLINE_FUNCTION int numacre_inline_take_as_before(const struct numacre_inline_lane *lane,
                                                          const struct numacre_inline_node *node, void **block) {
    return numacre_inline_take(lane, node, node->asked_magazine, node->asked_entry, block);
}

/* Puts a block into a magazine. entry: of an unpublished block of this process, of the magazine's order. Returns 0 if
 * the magazine has no room. */
NUMACRE_INLINE_FUNCTION int numacre_inline_put(struct numacre_inline_magazine *magazine, void *block, uint64_t *slot,
                                               uint64_t entry) {
    /* The limit may have been lowered meanwhile. */
    if (__builtin_expect(magazine->top >= magazine->limit, 0)) return 0;
    *magazine->top++ = (char *)block;
    numacre_inline_into_cache(slot, entry);
    numacre_inline_count(magazine->allocations + NUMACRE_INLINE_FREES_BESIDE, 1);
    return 1;
}

/* The frame that begins at byte `offset` of a numa node's data. The offset is rotated, so that an offset inside a frame
 * becomes a number far too large. */
NUMACRE_INLINE_FUNCTION uint64_t numacre_inline_frame_at(uint64_t frame_shift, uint64_t offset) {
    return offset >> (frame_shift & 63) | offset << (-frame_shift & 63);
}

/* Finds the entry of the block that begins at `block`: its place and its value. Returns 0 if the address is no frame of
 * the numa node of the last frees. */
NUMACRE_INLINE_FUNCTION int numacre_inline_look_up(const struct numacre_inline_lane *lane, const void *block,
                                                   uint64_t **slot, uint64_t *entry) {
    const uint64_t frame = numacre_inline_frame_at(lane->frame_shift, (uintptr_t)block - (uintptr_t)lane->freed_data);
    if (__builtin_expect(frame >= lane->frame_count, 0)) return 0;
    *slot = lane->freed_index + frame;
    *entry = numacre_inline_entry(*slot);
    return 1;
}

/* True if the block is like those of the last frees. entry: from numacre_inline_look_up(). */
NUMACRE_INLINE_FUNCTION int numacre_inline_is_as_before(const struct numacre_inline_lane *lane, uint64_t entry) {
    return numacre_inline_is_like(entry, lane->freed_like);
}

/* As numacre_alloc. */
NUMACRE_INLINE_FUNCTION int numacre_alloc_inline(numacre_pool *pool, size_t size_bytes, void **block) {
    const struct numacre_inline_lane *const lane = numacre_inline_lane_1;
    /* numacre_alloc gets the address of this variable. If it got `block`, the caller's pointer would have to be in
     * memory, stored and read again. */
    void *other = NULL;
    int error;
    if (__builtin_expect(block != NULL && numacre_inline_is_undisturbed(lane, pool) &&
                             size_bytes == lane->only->asked_bytes &&
                             numacre_inline_take_as_before(lane, lane->only, block),
                         1))
        return 0;
    error = numacre_alloc(pool, size_bytes, block == NULL ? NULL : &other);
    if (error == 0) *block = other;
    return error;
}

/* As numacre_free. */
NUMACRE_INLINE_FUNCTION int numacre_free_inline(numacre_pool *pool, void *block) {
    const struct numacre_inline_lane *const lane = numacre_inline_lane_1;
    uint64_t *slot;
    uint64_t entry;
    if (__builtin_expect(numacre_inline_is_undisturbed(lane, pool) &&
                             numacre_inline_look_up(lane, block, &slot, &entry) &&
                             numacre_inline_is_as_before(lane, entry) &&
                             numacre_inline_put(lane->freed_magazine, block, slot, entry),
                         1))
        return 0;
    return numacre_free(pool, block);
}

#ifdef __cplusplus
}
#endif

#endif
