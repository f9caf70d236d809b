// Frees past the common path, tier by tier: the cache of other numa nodes and orders, the tree, and blocks that waiters
// or limits have to hear of.
#include "free.hpp"

#include "cache.hpp"
#include "engine.hpp"
#include "fast_path.hpp"
#include "place.hpp"
#include "reference.hpp"
#include "report.hpp"

namespace numacre::client {
namespace {

// Frees a block that the cache did not take. A block larger than a leaf word is never cached, and does not need all
// checks of slow_free().
[[gnu::always_inline]] inline int tree_free_not_cached(const Lane &lane, const LeafEntry &found, void *address) {
    if (!found.entry.is_held() && !has_waiters(lane) && !is_regulated(lane) && !is_inside(*found.node))
        return tree_free_large(lane, *found.node, found.frame(), address);
    return slow_free(lane.pool, address);
}

// Gives the caller's block directly to a waiting thread, if a thread waits for such a block. False: nothing was done.
[[gnu::cold]] bool slow_give_to_waiter(numacre_pool *pool, const Lane &lane, void *address) {
    Place place{};
    Block block;
    IndexEntry entry;
    if (!own_block(pool, address, place, block, entry)) return false;
    const CountedCall call{pool, lane.actor, block.order.frames()};
    return give_to_waiter(pool, lane.actor, place.numa_node, block, entry);
}

// Makes sure that the magazine has room. False also while memory is short: the free by which a thread learns of the
// shortage may be the thread's last call.
bool cached_ensure_room(numacre_pool *pool, Lane &lane, NodeLane &node, unsigned order) {
    return (lane.restraint == 0 && !node.magazines[order].is_full()) || make_room(pool, lane, node, order);
}

// The frames of the block that begins at `place`, if the pool counts; else 0.
std::uint64_t counted_frames_at(numacre_pool *pool, Place place) {
    Block block;
    IndexEntry entry;
    return is_counting(pool) && pool->nodes[place.numa_node].buddy().find_entry(place.frame, block, entry) == Errc::ok
               ? block.order.frames()
               : 0;
}

}  // namespace

// --- cached_ ---------------------------------------------------------------------------------------------------------

int cached_free_other_node(Lane &lane, void *address) {
    LeafEntry found;
    const bool is_found = look_up(lane, address, found);
    const bool is_put = is_found && cached_put_found(lane, found, address);
    leave_cache(lane);
    if (is_put) [[likely]]
        return 0;
    return is_found ? tree_free_not_cached(lane, found, address) : slow_free(lane.pool, address);
}

int cached_free_other_order(Lane &lane, void *address, std::uint64_t *slot, std::uint64_t entry) {
    const LeafEntry found{lane.freed_node, slot, IndexEntry{entry}};
    const bool is_put = cached_put_same_node(lane, found, address);
    leave_cache(lane);
    if (is_put) [[likely]]
        return 0;
    return tree_free_not_cached(lane, found, address);
}

// --- tree_ -----------------------------------------------------------------------------------------------------------

int tree_free_past_full(const Lane &lane, void *address, std::uint64_t *slot, std::uint64_t entry) {
    const Magazine &magazine = static_cast<const Magazine &>(*lane.freed_magazine);
    if (magazine.capacity() == 0 || magazine.block_shift < lane.frame_shift + kSingleOrder ||
        magazine.slots_bound != lane.pool->view.threads_in_use_bound() || has_waiters(lane))
        return tree_free_not_cached(lane, LeafEntry{lane.freed_node, slot, IndexEntry{entry}}, address);
    return tree_free(lane, address);
}

int tree_free_large(const Lane &lane, NodeLane &node, FrameIndex base, void *address) {
    Block freed;
    const auto way = node.buddy->free_in_upper(node.self, base, freed);
    if (way == ShortPath::refused) [[unlikely]]
        return slow_free_uncached(lane.pool, address);
    if (way == ShortPath::begun) [[unlikely]]
        return tree_finish_free(lane, node, freed.base, freed.order.value);
    if (has_waiters(lane)) [[unlikely]]
        return tree_serve_waiters(lane);
    return 0;
}

int tree_finish_free(const Lane &lane, NodeLane &node, FrameIndex base, unsigned order) {
    node.buddy->finish_free(node.self, {base, Order{order}});
    return has_waiters(lane) ? tree_serve_waiters(lane) : 0;
}

int tree_serve_waiters(const Lane &lane) {
    serve_waiters(lane.pool, lane.actor);
    return 0;
}

// --- slow_ -----------------------------------------------------------------------------------------------------------

int slow_free(numacre_pool *pool, void *address) {
    int error = 0;
    Lane *const lane = attentive_lane_of(pool, error);
    if (lane == nullptr) return error;
    NodeLane *node = nullptr;
    std::uint64_t frame = 0;
    Block block;
    IndexEntry entry;
    LeafEntry found;
    // seq_cst: as in has_waiters(). The draining bit needs no order: the daemon asks again for blocks that were missed.
    const std::uint64_t attention = lane->attention_word().load(std::memory_order_seq_cst);
    // A cached block of a draining chunk would be handed out again and again, and the chunk would never be empty.
    const auto is_to_go = [&] {
        return (attention & Attention::kDraining) != 0 && node->buddy->is_draining(block.base);
    };
    if ((attention & Attention::kWaiters) != 0) [[unlikely]] {
        if (slow_give_to_waiter(pool, *lane, address)) return 0;
    } else if (find_frame(*lane, address, node, frame) && node->buddy->find_in_leaf(FrameIndex{frame}, block, entry) &&
               entry.owner() == pool->process && !is_to_go() &&
               cached_ensure_room(pool, *lane, *node, block.order.value) &&
               (!entry.is_published() || node->buddy->withdraw(block, entry)) && slow_put(*lane, address, found)) {
        return 0;
    }
    return tree_free(*lane, address);
}

int slow_free_uncached(numacre_pool *pool, void *address) {
    int error = 0;
    Lane *const lane = lane_of(pool, error);
    if (lane == nullptr) return error;
    return is_inside_or_changes_hints(lane->nodes[0]) ? thread_is_inside(pool)
                                                      : slow_free_past_cache(pool, lane->actor, address);
}

int slow_free_past_cache(numacre_pool *pool, Actor actor, void *address) {
    Place place{};
    if (!locate(pool, address, place)) [[unlikely]]
        return not_a_block(pool, address, Errc::bad_argument);
    Block freed;
    Buddy<Env> &buddy = pool->nodes[place.numa_node].buddy();
    if (is_counting(pool)) [[unlikely]]
        count_what_is_held(pool);
    const CountedCall call{pool, actor, counted_frames_at(pool, place)};
    const Errc code =
        pool->checks_frees ? buddy.free_checked(actor, place.frame, freed) : buddy.free(actor, place.frame, freed);
    if (code != Errc::ok) [[unlikely]]
        return not_a_block(pool, address, code);
    uncount_freed(pool, place.numa_node, freed);
    if (has_waiters(pool)) [[unlikely]]
        serve_waiters(pool, actor);
    return 0;
}

}  // namespace numacre::client
