// The steps of a thread cache (numacre/shm/cached_block.h) on an index entry of any Env, in the words of owner.hpp. An
// Env whose accesses are more than accesses has said so before: sim_env.hpp, contention_env.hpp.
#pragma once

#include <cstdint>

#include "numacre/shm/cached_block.h"
#include "numacre/shm/owner.hpp"

namespace numacre::test {

using namespace engine;

template <class Word>
std::uint64_t *place_of(Word &slot) {
    static_assert(sizeof slot == sizeof(std::uint64_t));
    return reinterpret_cast<std::uint64_t *>(&slot);
}
template <class Word>
IndexEntry look_at(Word &slot) {
    return IndexEntry{numacre_inline_entry(place_of(slot))};
}
// like: owned, without generation and note.
inline bool is_like(IndexEntry entry, IndexEntry like) {
    return numacre_inline_is_like(entry.bits(), like.bits()) != 0;
}
// Of the entries of blocks in the thread's cache.
inline std::uint64_t cached_mark(ThreadSlotIndex thread) {
    return NUMACRE_INLINE_CACHED | std::uint64_t{thread.value} << NUMACRE_INLINE_THREAD_SHIFT;
}
template <class Word>
void into_cache(Word &slot, IndexEntry entry, ThreadSlotIndex thread) {
    numacre_inline_into_cache(place_of(slot), entry.bits(), NUMACRE_INLINE_OURS | NUMACRE_INLINE_GENERATION,
                              cached_mark(thread));
}
// The entry of a block in the thread's cache, as it is when the block is handed out. owned: without generation; may be
// published.
inline std::uint64_t handed_out(IndexEntry entry, IndexEntry owned, ThreadSlotIndex thread) {
    const IndexEntry change{owned.note().bits() ^ cached_mark(thread)};
    return numacre_inline_handed_out(entry.bits(), (owned.is_published() ? change.published() : change).bits());
}
inline bool is_cached(IndexEntry entry, IndexEntry owned, ThreadSlotIndex thread) {
    return numacre_inline_is_as_wanted(handed_out(entry, owned, thread), owned.bits(), ~NUMACRE_INLINE_GENERATION) != 0;
}
template <class Word>
void out_of_cache(Word &slot, IndexEntry entry, IndexEntry owned, ThreadSlotIndex thread) {
    numacre_inline_out_of_cache(place_of(slot), handed_out(entry, owned, thread));
}
// now: handed_out(), published
template <class Word>
void out_of_cache_named(Word &slot, IndexEntry now) {
    numacre_inline_out_of_cache_named(place_of(slot), now.bits());
}

}  // namespace numacre::test
