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
 * layout adds numacre_inline_lane_3, and its numacre_inline_lane_2 is a lane without blocks: each inline call of an old
 * program then becomes a call of the function. (So does each inline call of a program that was built for layout version
 * 10 or older, with numacre_inline_lane_1.)
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

/* The entry of a block that comes out of the cache. In memory: the hot path reads each value where it needs it, and has
 * registers left. */
struct numacre_inline_wish {
    uint64_t entry;  /* of a block that is handed out now, without its generation */
    uint64_t change; /* the difference to the entry of a block in the cache */
};

/* The thread's cache on one numa node. */
struct numacre_inline_node {
    char *data;      /* first frame */
    uint64_t *index; /* the owners of blocks, one word per frame, in shared memory */
    /* The size of the last calls, and the values that follow from it. While the size stays, a call is a comparison that
     * is predicted, and its stores wait for no address. */
    size_t asked_bytes; /* 0: nothing */
    struct numacre_inline_magazine *asked_magazine;
    struct numacre_inline_wish asked;
};

/* A thread's way into one pool. */
struct numacre_inline_lane {
    const void *handle; /* the pool; while the lane exists, no other pool has this address. The lane itself: no pool */
    const uint64_t *attention;
    uint64_t attention_seen;
    uint64_t *inside;                 /* in shared memory: 1 while this thread uses its cache */
    struct numacre_inline_node *only; /* the numa node of a pool that has only one; otherwise a node without blocks */
    /* The numa node and order of the last frees. */
    char *freed_data; /* of that numa node, as in numacre_inline_node */
    uint64_t *freed_index;
    struct numacre_inline_magazine *freed_magazine;
    uint64_t freed_like;  /* the bits of NUMACRE_INLINE_OURS in the entries of these blocks; 0: none */
    uint64_t frame_count; /* of a numa node */
    uint64_t frame_shift; /* log2 of a frame in bytes */
    /* For the entries of blocks that the thread caches: see numacre_inline_into_cache(). */
    uint64_t cached_without_note;
    uint64_t cached_mark;
    uint64_t all_but_generation;
};

/* The lane of the pool that the thread used last. Never null. */
NUMACRE_API extern __thread struct numacre_inline_lane *numacre_inline_lane_2
    __attribute__((tls_model("initial-exec")));
/* For programs that were built for layout version 10 or older: no pool's. */
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

/* False: since this thread last looked, a thread has begun to wait for memory or has run out of it, or the pool has
 * become older or was closed. */
NUMACRE_INLINE_FUNCTION int numacre_inline_is_undisturbed(const struct numacre_inline_lane *lane) {
    /* relaxed: as numacre_inline_begin() says. */
    return NUMACRE_INLINE_LOAD(lane->attention) == lane->attention_seen;
}

/* Begins the steps on the thread's cache. True: the lane belongs to `pool`, and the pool wants no attention; the steps
 * end with numacre_inline_end(*inside). False: there is nothing to end. */
NUMACRE_INLINE_FUNCTION int numacre_inline_enter(const struct numacre_inline_lane *lane, const numacre_pool *pool,
                                                 uint64_t **inside) {
    if (__builtin_expect(lane->handle != pool, 0)) return 0;
    *inside = lane->inside;
    numacre_inline_begin(*inside);
    if (__builtin_expect(numacre_inline_is_undisturbed(lane), 1)) return 1;
    numacre_inline_end(*inside);
    return 0;
}

/* Takes a block from a magazine. Returns 0 if the magazine is empty, or
 * if the top block was not a cached block any more; the top block is removed in that case. */
NUMACRE_INLINE_FUNCTION int numacre_inline_take(const struct numacre_inline_lane *lane,
                                                const struct numacre_inline_node *node,
                                                struct numacre_inline_magazine *magazine,
                                                const struct numacre_inline_wish *wish, void **block) {
    char **const above = magazine->top;
    char *address;
    uint64_t *slot;
    uint64_t now;
    if (__builtin_expect(above == magazine->bottom, 0)) return 0;
    address = above[-1];
    magazine->top = above - 1;
    slot = node->index + ((uint64_t)(address - node->data) >> lane->frame_shift);
    now = numacre_inline_handed_out(numacre_inline_entry(slot), wish->change);
    if (__builtin_expect(!numacre_inline_is_as_wanted(now, wish->entry, lane->all_but_generation), 0)) return 0;
    numacre_inline_out_of_cache(slot, now);
    *block = address;
    numacre_inline_count(magazine->allocations, 1);
    return 1;
}

/* Takes a block of the size of the last calls. */
NUMACRE_INLINE_FUNCTION int numacre_inline_take_as_before(const struct numacre_inline_lane *lane,
                                                          const struct numacre_inline_node *node, void **block) {
    return numacre_inline_take(lane, node, node->asked_magazine, &node->asked, block);
}

/* Puts a block into a magazine. entry: of an unpublished block of this process, of the magazine's order. Returns 0 if
 * the magazine has no room. */
NUMACRE_INLINE_FUNCTION int numacre_inline_put(const struct numacre_inline_lane *lane,
                                               struct numacre_inline_magazine *magazine, void *block, uint64_t *slot,
                                               uint64_t entry) {
    /* The limit may have been lowered meanwhile. */
    if (__builtin_expect(magazine->top >= magazine->limit, 0)) return 0;
    *magazine->top++ = (char *)block;
    numacre_inline_into_cache(slot, entry, lane->cached_without_note, lane->cached_mark);
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
    const struct numacre_inline_lane *const lane = numacre_inline_lane_2;
    /* numacre_alloc gets the address of this variable. If it got `block`, the caller's pointer would have to be in
     * memory, stored and read again. */
    void *other = NULL;
    uint64_t *inside = NULL;
    int error;
    if (__builtin_expect(block != NULL && numacre_inline_enter(lane, pool, &inside), 1)) {
        const int is_taken =
            size_bytes == lane->only->asked_bytes && numacre_inline_take_as_before(lane, lane->only, block);
        numacre_inline_end(inside);
        if (__builtin_expect(is_taken, 1)) return 0;
    }
    error = numacre_alloc(pool, size_bytes, block == NULL ? NULL : &other);
    if (error == 0) *block = other;
    return error;
}

/* As numacre_free. */
NUMACRE_INLINE_FUNCTION int numacre_free_inline(numacre_pool *pool, void *block) {
    const struct numacre_inline_lane *const lane = numacre_inline_lane_2;
    uint64_t *inside = NULL;
    uint64_t *slot;
    uint64_t entry;
    if (__builtin_expect(numacre_inline_enter(lane, pool, &inside), 1)) {
        const int is_put = numacre_inline_look_up(lane, block, &slot, &entry) &&
                           numacre_inline_is_as_before(lane, entry) &&
                           numacre_inline_put(lane, lane->freed_magazine, block, slot, entry);
        numacre_inline_end(inside);
        if (__builtin_expect(is_put, 1)) return 0;
    }
    return numacre_free(pool, block);
}

#ifdef __cplusplus
}
#endif

#endif
