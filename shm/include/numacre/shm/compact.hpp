// Where to allocate so that what is nearly empty becomes empty: in the fullest of some chunks. A look and nothing else;
// who wants it stores the answer as its home word, from where the allocator begins.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "numacre/shm/layout.hpp"

namespace numacre {

// Of PoolHeader::accounting, beside Accounting's: all that is allocated in the tree is to be so.
inline constexpr std::uint64_t kCompactPool = 8;

inline constexpr std::uint64_t kChunksCompared = 8;
inline constexpr std::uint64_t kWordsLookedAt = 64;  // of a chunk; of a larger one so many, spread evenly

// Of the chunk, that part which can be judged by its leaf words.
struct ChunkLook {
    std::uint64_t taken_frames = 0;
    std::uint64_t word = 0;  // the fullest that has room
    bool has_room = false;
};

template <class Env>
ChunkLook look_into_chunk(const NodeView<Env> &view, std::uint64_t chunk, Order order) {
    const auto relaxed = std::memory_order_relaxed;  // guesses: the claim decides
    const std::uint64_t words = view.geometry.chunk_frames() / kLeafFrames;
    const auto is_closed = [&](std::uint64_t word) {
        for (unsigned level = 1; level <= view.top_layer; ++level, word /= kUpperFanOut)
            if (UpperWord{view.upper[level][word / kUpperFanOut].load(relaxed)}.closed_to_allocation(word %
                                                                                                     kUpperFanOut))
                return true;
        return false;
    };
    ChunkLook look;
    std::uint64_t best = 0;
    for (std::uint64_t at = 0; at < words; at += std::max<std::uint64_t>(1, words / kWordsLookedAt)) {
        const std::uint64_t word = chunk * words + at;
        const std::uint64_t bits = view.leaf[word].load(relaxed);
        // Part of a larger block, or offline, or draining: as good as full.
        const bool closed = is_closed(word);
        const std::uint64_t taken = closed ? kLeafFrames : static_cast<std::uint64_t>(std::popcount(bits));
        look.taken_frames += taken;
        if (closed || leaf::free_starts(bits, order.value) == 0 || (look.has_room && taken <= best)) continue;
        look.has_room = true;
        look.word = word;
        best = taken;
    }
    return look;
}

// A leaf word with room for such a block, in the fullest of kChunksCompared chunks that have one. False: none of them
// has, or chunks are no larger than words. order: at most kLeafOrder. from: any number; another one compares others.
// Thread-safe, writes nothing; nothing it reads is trusted.
template <class Env>
bool find_in_fuller_chunk(const NodeView<Env> &view, Order order, std::uint64_t from, std::uint64_t &word) {
    if (view.top_layer == 0 || view.geometry.largest_order <= kLeafOrder) return false;
    const std::uint64_t chunks = view.geometry.chunk_count();
    ChunkLook best;
    for (std::uint64_t i = 0; i < std::min(kChunksCompared, chunks); ++i) {
        // Few chunks one after the other; of many, some anywhere (by the golden ratio).
        const std::uint64_t anywhere = ((from * kChunksCompared + i) * 0x9e37'79b9'7f4a'7c15) >> 32;
        const std::uint64_t chunk = chunks <= kChunksCompared ? i : anywhere % chunks;
        const ChunkLook look = look_into_chunk(view, chunk, order);
        if (look.has_room && (!best.has_room || look.taken_frames > best.taken_frames)) best = look;
    }
    word = best.word;
    return best.has_room;
}

}  // namespace numacre
