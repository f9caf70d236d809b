// The slow side of the thread cache. Each function works on the calling thread's own lane.
#pragma once

#include <cstdint>

#include "lane.hpp"
#include "numacre/numacre.h"

namespace numacre::client {

// The magazine is empty: get some blocks. False: nothing to be had this way.
[[gnu::cold]] bool refill(numacre_pool *pool, Lane &lane, NodeLane &node, unsigned order);
// The magazine is full, or has not been used: may it hold more? If it is full some of its blocks go back to the tree
// (of kSingleOrder and above only those that are too many by now, as there are more threads). False: there is no room.
[[gnu::cold]] bool make_room(numacre_pool *pool, Lane &lane, NodeLane &node, unsigned order);
// Everything cached goes back to the tree. Returns how many blocks that were.
[[gnu::cold]] std::uint32_t give_back_all(numacre_pool *pool, Lane &lane);
// Takes over what Attention says, without doing anything about it.
void note_attention(Lane &lane, std::uint64_t bits);
// Does what is asked of us if lane.undisturbed() is false.
[[gnu::cold]] void answer_attention(numacre_pool *pool, Lane &lane);
// The calling thread's lane, with what others wait for given back. nullptr: as lane_of(), or the thread is inside.
Lane *attentive_lane_of(numacre_pool *pool, int &error);
// Memory has run out, our own cache is empty.
[[gnu::cold]] void ask_others_to_give_back(numacre_pool *pool, Lane &lane);

}  // namespace numacre::client
