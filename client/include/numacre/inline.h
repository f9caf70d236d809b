/* numacre_alloc and numacre_free, compiled into the caller, for loops in which a call is a good part of the work: while
 * the calling thread's cache has what is wanted, nothing is called. Whatever is less common is a call of the functions:
 * what they return, for whom they may be called, what a kill inside leaves behind is the same (numacre.h). The library
 * is built from this header as well.
 *
 *     #include <numacre/inline.h>
 *     ...
 *     error = numacre_alloc_inline(pool, 4096, &block);
 *     ...
 *     error = numacre_free_inline(pool, block);
 *
 * It gains where a cached block comes and goes at once, and little where one waits for memory (tests/bench has it
 * beside the functions: numacre-inline). Common is, for an allocation, a pool of one numa node and the size of the last
 * calls; for a free, the numa node and the order of the last ones. Where that changes from call to call, the functions
 * are quicker.
 *
 * C11 or C++11, by gcc or clang. Not in a function that another thread may go on with between two calls (a fiber that
 * moves): the compiler may keep where it has found the thread's cache.
 *
 * A program built with this header goes on working with later libraries: what is laid out here does not change. One
 * that lays it out otherwise calls it numacre_inline_lane_2, and has numacre_inline_lane_1 as one without blocks: each
 * call of the program becomes a function's.
 *
 * numacre_alloc_inline and numacre_free_inline are for use; all other names are between this header and the library. */
#ifndef NUMACRE_INLINE_H
#define NUMACRE_INLINE_H

#include "numacre/numacre.h"
#include "numacre/shm/cached_block.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Blocks of one order, last in first out. */
struct numacre_inline_magazine {
    char **top; /* behind the one that was put in last */
    char **bottom;
    char **limit;          /* at bottom: none wanted yet, or ever: the library decides */
    uint64_t *allocations; /* this thread's tally of the order, in shared memory; that of frees stands further on */
};
#define NUMACRE_INLINE_FREES_BESIDE 25 /* words */

/* The thread's on one numa node. */
struct numacre_inline_node {
    char *data;      /* first frame */
    uint64_t *index; /* who holds what, a word a frame, in shared memory */
    /* What call after call has asked for, and all that follows from it: while it is so, a call is a comparison that is
     * predicted, and its stores wait for no address. */
    size_t asked_bytes; /* 0: nothing */
    struct numacre_inline_magazine *asked_magazine;
    uint64_t asked_entry; /* of a block of that size that is handed out now, but for its generation */
};

/* A thread's way into one pool. */
struct numacre_inline_lane {
    const void *handle; /* the pool, which the lane keeps from being another's; itself: it is of none */
    const uint64_t *attention;
    uint64_t attention_seen;
    struct numacre_inline_node *only; /* the pool's numa node, if it has but one; otherwise one without blocks */
    /* What call after call has freed. */
    char *freed_data; /* of its numa node, as above */
    uint64_t *freed_index;
    struct numacre_inline_magazine *freed_magazine;
    uint64_t freed_like;  /* the bits of NUMACRE_INLINE_OURS in its entry; 0: nothing */
    uint64_t frame_count; /* of a numa node */
    uint64_t frame_shift; /* log2 of a frame in bytes */
};

/* The lane of the pool that the thread used last; never null. */
NUMACRE_API extern __thread struct numacre_inline_lane *numacre_inline_lane_1
    __attribute__((tls_model("initial-exec")));

NUMACRE_INLINE_FUNCTION void numacre_inline_count(uint64_t *tally, uint64_t more) {
    /* One writer, read by others at any time: no lock, but one instruction, or two that nobody sees half of. */
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
    __asm__ volatile("addq %1, %0" : "+m"(*tally) : "er"(more));
#else
    __atomic_store_n(tally, __atomic_load_n(tally, __ATOMIC_RELAXED) + more, __ATOMIC_RELAXED);
#endif
}

/* False: another pool's, or none's; or somebody waits for memory, or has run out of it, since we last looked; or the
 * pool is older, or closed. */
NUMACRE_INLINE_FUNCTION int numacre_inline_is_undisturbed(const struct numacre_inline_lane *lane,
                                                          const numacre_pool *pool) {
    /* relaxed: whoever needs it at once does not rely on us. */
    return lane->handle == pool && __atomic_load_n(lane->attention, __ATOMIC_RELAXED) == lane->attention_seen;
}

/* From a cache. entry: as numacre_inline_is_cached() wants it. 0: nothing is there; or what was on top is no cached
 * block any more, and has gone. */
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

/* The same of the size that calls have asked for. */
NUMACRE_INLINE_FUNCTION int numacre_inline_take_as_before(const struct numacre_inline_lane *lane,
                                                          const struct numacre_inline_node *node, void **block) {
    return numacre_inline_take(lane, node, node->asked_magazine, node->asked_entry, block);
}

/* Into a cache. entry: an own, unpublished block's, of the magazine's order. 0: there is no room. */
NUMACRE_INLINE_FUNCTION int numacre_inline_put(struct numacre_inline_magazine *magazine, void *block, uint64_t *slot,
                                               uint64_t entry) {
    /* The limit may have come down since. */
    if (__builtin_expect(magazine->top >= magazine->limit, 0)) return 0;
    *magazine->top++ = (char *)block;
    numacre_inline_into_cache(slot, entry);
    numacre_inline_count(magazine->allocations + NUMACRE_INLINE_FREES_BESIDE, 1);
    return 1;
}

/* The frame that begins so many bytes into a numa node's data. Rotated, so that the middle of a frame becomes a number
 * far too large. */
NUMACRE_INLINE_FUNCTION uint64_t numacre_inline_frame_at(uint64_t frame_shift, uint64_t offset) {
    return offset >> (frame_shift & 63) | offset << (-frame_shift & 63);
}

/* Where the entry of a block stands that begins there, and what it says. 0: no frame of the numa node that was freed
 * to. */
NUMACRE_INLINE_FUNCTION int numacre_inline_look_up(const struct numacre_inline_lane *lane, const void *block,
                                                   uint64_t **slot, uint64_t *entry) {
    const uint64_t frame = numacre_inline_frame_at(lane->frame_shift, (uintptr_t)block - (uintptr_t)lane->freed_data);
    if (__builtin_expect(frame >= lane->frame_count, 0)) return 0;
    *slot = lane->freed_index + frame;
    *entry = numacre_inline_entry(*slot);
    return 1;
}

/* entry: numacre_inline_look_up()'s. */
NUMACRE_INLINE_FUNCTION int numacre_inline_is_as_before(const struct numacre_inline_lane *lane, uint64_t entry) {
    return numacre_inline_is_like(entry, lane->freed_like);
}

/* As numacre_alloc. */
NUMACRE_INLINE_FUNCTION int numacre_alloc_inline(numacre_pool *pool, size_t size_bytes, void **block) {
    const struct numacre_inline_lane *const lane = numacre_inline_lane_1;
    /* The function gets the address of this one, or the caller's would have to be in memory, stored and read again. */
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
