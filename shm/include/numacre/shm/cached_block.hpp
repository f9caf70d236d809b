// The steps of a thread cache on the index entry of a block: plain stores, since an entry that its process holds and
// has not published is written by that process only (owner.hpp). Dying between any two of them leaves an entry that is
// held: it is given back like any other. (Clients go the same steps in C: numacre/inline.h.)
#pragma once

#include <atomic>
#include <cstdint>

#include "numacre/shm/owner.hpp"

namespace numacre {

// The entry, for the questions and steps below.
template <class Word>
IndexEntry load_for_cache(const Word &slot) {
    return IndexEntry{slot.load(std::memory_order_relaxed)};  // relaxed: ours alone, or we leave it as it is
}

// private_pattern: IndexEntry::private_to(the caller's process).
constexpr bool can_be_cached(IndexEntry entry, std::uint32_t private_pattern) {
    return entry.ownership() == private_pattern;
}
// A block that its owner frees. entry: what load_for_cache() gave.
template <class Word>
void store_into_cache(Word &slot, IndexEntry entry) {
    slot.store(entry.into_cache().bits(), std::memory_order_relaxed);  // relaxed: ours alone
}

// owned: what the entry says of the block when it is handed out again, but for the generation: the caller's process,
// the order of the cache, a note. False: it is no cached block of ours any more. Two threads freed it in the same
// moment, both cached it, and one of them has given it back since: it may be anybody's.
constexpr bool is_cached(IndexEntry entry, IndexEntry owned) {
    return entry.is_cached_like(owned);
}
// A cached block that is handed out again.
template <class Word>
void store_out_of_cache(Word &slot, IndexEntry entry, IndexEntry owned) {
    slot.store(entry.out_of_cache(owned).bits(), std::memory_order_relaxed);  // relaxed: as above, until EDGE publish
}

}  // namespace numacre
