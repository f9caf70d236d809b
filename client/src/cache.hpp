// The slow side of the thread cache. Each function works on the calling thread's own lane.
#pragma once

#include <cstdint>

#include "lane.hpp"
#include "numacre/numacre.h"

namespace numacre::client {

// Fills an empty magazine with some blocks, in an entered lane. False: no block could be put in.
[[gnu::cold]] bool refill(numacre_pool *pool, Lane &lane, NodeLane &node, unsigned order);
// Makes room in a magazine that is full or has not been used. The magazine's limit is computed anew. If the magazine is
// still full, some of its blocks return to the tree (for kSingleOrder and above only the blocks beyond the new limit,
// which more threads have lowered). False: there is no room.
[[gnu::cold]] bool make_room(numacre_pool *pool, Lane &lane, NodeLane &node, unsigned order);
// Returns up to `most` cached blocks to the tree. The result is their number, less those that others have taken back,
// and whether the cache is empty now.
struct GivenBack {
    std::uint32_t blocks;
    bool is_all;
};
[[gnu::cold]] GivenBack give_back_some(numacre_pool *pool, Lane &lane, std::uint32_t most);
// give_back_some() of all cached blocks. The result is their number.
[[gnu::cold]] std::uint32_t give_back_all(numacre_pool *pool, Lane &lane);
// Notes the bits of Attention as seen, which answers the requests for memory. If the bits have a new request, the
// thread's cache is empty.
void note_attention(Lane &lane, std::uint64_t bits);
// Acts on the pool's requests when lane.undisturbed() is false. Of a large cache a part is given back, and the lane
// stays disturbed: the rest goes back at the next calls.
[[gnu::cold]] void answer_attention(numacre_pool *pool, Lane &lane);
// The calling thread's lane, after it has acted on the pool's requests. nullptr: as lane_of(), or the thread is inside.
Lane *attentive_lane_of(numacre_pool *pool, int &error);
// Asks all threads to give back their caches. Called when memory has run out and the thread's own cache is empty.
[[gnu::cold]] void ask_others_to_give_back(numacre_pool *pool, Lane &lane);

}  // namespace numacre::client
