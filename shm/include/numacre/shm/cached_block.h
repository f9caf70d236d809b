/* The steps of a thread cache on the index entry of a block (owner.hpp): plain stores, since an entry that its process
 * holds and has not published is written by that process only. A death between any two steps leaves an entry that is
 * held: recovery gives the block back like any other.
 *
 * The steps are in C: programs compile them in (numacre/inline.h), so the numbers are part of the library's ABI
 * (client/src/lane.hpp pins them). The library runs these very lines, and so does the model checker. */
#ifndef NUMACRE_SHM_CACHED_BLOCK_H
#define NUMACRE_SHM_CACHED_BLOCK_H

#include <stdint.h>

#define NUMACRE_INLINE_FUNCTION static inline __attribute__((always_inline))

/* Masks of an entry: state, the published bit, order and holder; the bit of these that tells a cached block from one
 * that is handed out; the generation. */
#define NUMACRE_INLINE_OURS       ((uint64_t)0xffffff)
#define NUMACRE_INLINE_CACHED     ((uint64_t)2)
#define NUMACRE_INLINE_GENERATION ((uint64_t)0x7ffff000000)

/* relaxed: the entry is ours alone, or we leave it as it is; a process that gets the block from us synchronises
 * otherwise (EDGE publish, EDGE unclaim-to-claim). An environment that schedules the accesses itself defines these
 * macros before. */
#ifndef NUMACRE_INLINE_LOAD
#define NUMACRE_INLINE_LOAD(place)        __atomic_load_n((place), __ATOMIC_RELAXED)
#define NUMACRE_INLINE_STORE(place, bits) __atomic_store_n((place), (bits), __ATOMIC_RELAXED)
#endif

NUMACRE_INLINE_FUNCTION uint64_t numacre_inline_entry(const uint64_t *slot) {
    return NUMACRE_INLINE_LOAD(slot);
}

/* Whether the block can be cached. like: the bits of NUMACRE_INLINE_OURS in the entry of a block that is handed out, of
 * one's process and not published. */
NUMACRE_INLINE_FUNCTION int numacre_inline_is_like(uint64_t entry, uint64_t like) {
    return (entry & NUMACRE_INLINE_OURS) == like;
}

/* Puts a block that its owner frees into the cache. entry: its entry. */
NUMACRE_INLINE_FUNCTION void numacre_inline_into_cache(uint64_t *slot, uint64_t entry) {
    NUMACRE_INLINE_STORE(slot, entry | NUMACRE_INLINE_CACHED);
}

/* Whether the block still is a cached block of ours. owned: the block's entry when it is handed out again, without the
 * generation: one's process, the order of the cache, a note. 0: not any more. Two threads freed the block at the same
 * moment, both cached it, and one of them has given it back since: the block may be anybody's. */
NUMACRE_INLINE_FUNCTION int numacre_inline_is_cached(uint64_t entry, uint64_t owned) {
    return ((entry ^ owned) & NUMACRE_INLINE_OURS) == NUMACRE_INLINE_CACHED;
}

/* Hands a cached block out again. entry: its entry. */
NUMACRE_INLINE_FUNCTION void numacre_inline_out_of_cache(uint64_t *slot, uint64_t entry, uint64_t owned) {
    NUMACRE_INLINE_STORE(slot, (entry & NUMACRE_INLINE_GENERATION) | owned);
}

#endif
