/* The steps of a thread cache on the index entry of a block (owner.hpp): plain stores, since an entry that its process
 * holds and has not published is written by that process only; a cached one also by who takes idle caches back, but not
 * while the thread is in these steps (idle_caches.hpp). A death between any two steps leaves an entry that is
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
/* Where the entry of a cached block names the thread slot whose cache has it: in place of the note. */
#define NUMACRE_INLINE_THREAD_SHIFT 43

/* relaxed: the entry is ours alone, or we leave it as it is; a process that gets the block from us synchronises
 * otherwise (EDGE publish, EDGE unclaim-to-claim). An environment that schedules the accesses itself defines these
 * macros before. */
#ifndef NUMACRE_INLINE_LOAD
#define NUMACRE_INLINE_LOAD(place)          __atomic_load_n((place), __ATOMIC_RELAXED)
#define NUMACRE_INLINE_STORE(place, bits)   __atomic_store_n((place), (bits), __ATOMIC_RELAXED)
#define NUMACRE_INLINE_RELEASE(place, bits) __atomic_store_n((place), (bits), __ATOMIC_RELEASE)
#endif

/* Around a thread's steps on its cache. inside: the thread slot's word. Between the two the thread looks at the pool's
 * attention word, and goes on only if that asks for nothing new: then nobody takes its cached blocks back until the
 * end (idle_caches.hpp). The compiler keeps the order; the processor need not: whoever takes blocks back makes all
 * processors pass a barrier. */
NUMACRE_INLINE_FUNCTION void numacre_inline_begin(uint64_t *inside) {
    NUMACRE_INLINE_STORE(inside, 1);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
}
NUMACRE_INLINE_FUNCTION void numacre_inline_end(uint64_t *inside) {
    NUMACRE_INLINE_RELEASE(inside, 0);
}

NUMACRE_INLINE_FUNCTION uint64_t numacre_inline_entry(const uint64_t *slot) {
    return NUMACRE_INLINE_LOAD(slot);
}

/* Whether the block can be cached. like: the bits of NUMACRE_INLINE_OURS in the entry of a block that is handed out, of
 * one's process and not published. */
NUMACRE_INLINE_FUNCTION int numacre_inline_is_like(uint64_t entry, uint64_t like) {
    return (entry & NUMACRE_INLINE_OURS) == like;
}

/* Puts a block that its owner frees into the cache. entry: its entry. without_note: NUMACRE_INLINE_OURS and
 * NUMACRE_INLINE_GENERATION, in memory: as a constant in the code the number takes an instruction more. mark:
 * NUMACRE_INLINE_CACHED and the thread slot. release: EDGE answer-then-cache (idle_caches.hpp). */
NUMACRE_INLINE_FUNCTION void numacre_inline_into_cache(uint64_t *slot, uint64_t entry, uint64_t without_note,
                                                       uint64_t mark) {
    NUMACRE_INLINE_RELEASE(slot, (entry & without_note) | mark);
}

/* The entry of a cached block when it is handed out again: everything but the generation changes. change: the
 * difference between the two entries. */
NUMACRE_INLINE_FUNCTION uint64_t numacre_inline_handed_out(uint64_t entry, uint64_t change) {
    return entry ^ change;
}

/* Whether that entry is the wanted one: the block still was in this thread's cache. now: numacre_inline_handed_out().
 * owned: the wanted entry (one's process, the order of the cache, a note), without generation. all_but_generation: a
 * mask, in memory as above. 0: the block was not in the cache any more. Two threads freed the block at the same moment,
 * both cached it, and one of them has given it back since: the block may be anybody's. */
NUMACRE_INLINE_FUNCTION int numacre_inline_is_as_wanted(uint64_t now, uint64_t owned, uint64_t all_but_generation) {
    return (now & all_but_generation) == owned;
}

/* Hands a cached block out again. now: as above. */
NUMACRE_INLINE_FUNCTION void numacre_inline_out_of_cache(uint64_t *slot, uint64_t now) {
    NUMACRE_INLINE_STORE(slot, now);
}
/* Hands a cached block out that is published from the start. now: as above, and published. The caller has made the
 * block's name already: from this store on, others may take the block. release: EDGE publish. A process that finds the
 * entry acquires what this thread has acquired and written. */
NUMACRE_INLINE_FUNCTION void numacre_inline_out_of_cache_named(uint64_t *slot, uint64_t now) {
    NUMACRE_INLINE_RELEASE(slot, now);
}

#endif
