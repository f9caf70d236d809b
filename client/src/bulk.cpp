// Many blocks at once: from and into the cache, then leaf words of the tree by one atomic step each, then block by
// block what neither took.
#include "bulk.hpp"

#include "cache.hpp"
#include "engine.hpp"
#include "errors.hpp"
#include "fast_path.hpp"
#include "place.hpp"
#include "record.hpp"
#include "report.hpp"

namespace numacre::client {
namespace {

// Makes room for a block of which the leaf layer says `found`. False: there is none, or no such block can be cached.
bool cached_make_room_for(numacre_pool *pool, Lane &lane, const LeafEntry &found) {
    const unsigned order = found.entry.order().value;
    return found.entry.is_private(lane.private_pattern) && order < kCachedOrders &&
           make_room(pool, lane, *found.node, order);
}

}  // namespace

int slow_allocate_rest(numacre_pool *pool, std::size_t size_bytes, void **blocks, unsigned count, unsigned done) {
    int error = 0;
    // If some blocks are there, the lane was undisturbed a moment ago: a change since then is told a call later, not by
    // an error that would leave these blocks with nobody.
    Lane *const lane = done == 0 ? allocating_lane_of(pool, error) : lane_of(pool, error);
    if (lane == nullptr) return error;
    if (done != 0 && is_inside(lane->nodes[0])) [[unlikely]] {
        while (done-- > 0) (void)cached_put(*lane, blocks[done]);  // their places are still free
        return thread_is_inside(pool);
    }
    Plan plan = plan_of(pool, *lane, size_bytes);
    const std::uint32_t wanted = plan.first;
    if (fits_leaf_word(*lane, size_bytes) && !plan.is_turn) {
        const unsigned order = order_of(*lane, size_bytes);
        NodeLane &node = lane->nodes[wanted];
        const IndexEntry entry = entry_for(*lane, node.magazines[order], size_bytes);
        done += cached_take_many(*lane, node, node.magazines[order], entry, blocks + done, count - done);
        const Order of_blocks{order};
        const Note note = note_of(*lane, of_blocks, size_bytes);
        // Cached blocks have been charged for. Others are charged for one by one, further down.
        while (done < count && !is_counting(pool)) {
            FrameIndex bases[kLeafFrames];
            const unsigned ask = count - done < kLeafFrames ? count - done : kLeafFrames;
            if (const Fit fit = fit_of(pool); fit != Fit::nearby) [[unlikely]]
                begin_where_it_fits(*lane, node, fit, order);
            const unsigned got =
                pool->nodes[wanted].buddy().allocate_many(lane->actor, of_blocks, BlockState::owned, note, bases, ask);
            for (unsigned i = 0; i < got; ++i) blocks[done++] = address_of(*lane, node, bases[i]);
            if (got < ask) break;
        }
        note_placement(pool, *lane, plan, wanted, done);
    }
    for (; done < count; ++done) {
        void *address = nullptr;
        if (plan.is_turn && done != 0) plan = plan_of(pool, *lane, size_bytes);
        error = plan.is_turn ? slow_allocate_planned(pool, *lane, plan, size_bytes, 0, &address)
                             : slow_allocate_past_cache(pool, *lane, plan, size_bytes, 0, &address);
        if (error != 0) {
            while (done-- > 0) slow_free_past_cache(pool, lane->actor, blocks[done]);
            return error;
        }
        blocks[done] = address;
    }
    if (recording()) [[unlikely]]
        for (done = 0; done < count; ++done) record_allocation(pool, blocks[done], size_bytes);
    return 0;
}

int slow_free_rest(numacre_pool *pool, void *const *blocks, unsigned count, unsigned done) {
    int error = 0;
    Lane *const lane = lane_of(pool, error);
    if (lane == nullptr) return error;
    if (is_inside(lane->nodes[0])) [[unlikely]]
        return thread_is_inside(pool);
    // Not while memory is short, as in cached_ensure_room().
    const bool may_cache = lane->undisturbed();
    if (!may_cache) answer_attention(pool, *lane);
    if (recording()) [[unlikely]]
        for (unsigned i = done; i < count; ++i) record_free(pool, blocks[i]);
    int first_error = 0;
    while (done < count) {
        if (may_cache && !has_waiters(pool)) {
            // At most so many between two looks for waiters.
            const unsigned wanted = count - done < kLeafFrames ? count - done : kLeafFrames;
            const unsigned put = cached_put_many(*lane, blocks + done, wanted);
            done += put;
            if (put == wanted) continue;
            // After making room the entry is looked up anew: that may have taken a while.
            LeafEntry found;
            if (look_up(*lane, blocks[done], found) &&
                (cached_put_found(*lane, found, blocks[done]) ||
                 (cached_make_room_for(pool, *lane, found) && cached_put(*lane, blocks[done])))) {
                ++done;
                continue;
            }
        }
        // The tree takes what does not fit: together, as many blocks of one numa node as follow each other.
        FrameIndex bases[kLeafFrames];
        Place first{};
        unsigned batch = 0;
        if (!is_counting(pool) && !pool->checks_frees && locate(pool, blocks[done], first)) {
            Place place = first;
            do {
                bases[batch++] = place.frame;
            } while (batch < kLeafFrames && done + batch < count && locate(pool, blocks[done + batch], place) &&
                     place.numa_node == first.numa_node);
        }
        const unsigned freed =
            pool->nodes[first.numa_node].buddy().free_many(lane->actor, BlockState::owned, bases, batch);
        if (freed != 0) {
            if (has_waiters(pool)) serve_waiters(pool, lane->actor);
            done += freed;
        }
        // A block that is larger, freed already, or another process's has an answer of its own.
        if (freed == batch && batch != 0) continue;
        const int result = slow_free_past_cache(pool, lane->actor, blocks[done++]);
        if (first_error == 0) first_error = result;
    }
    return first_error;
}

}  // namespace numacre::client
