// Reading together: numacre_hold and numacre_drop. A thread's hold words lie beside its slot in shared memory; the
// addresses that it holds are found there, not in a table of the library.
#include "hold.hpp"

#include <bit>

#include "engine.hpp"
#include "errors.hpp"
#include "fast_path.hpp"
#include "numacre/numacre.h"
#include "report.hpp"

using namespace numacre;
using namespace numacre::client;

namespace {

[[gnu::cold, gnu::noinline]] const Lane *enter(numacre_pool *pool, const char *function, int &error) {
    error = pool == nullptr ? no_pool(function) : 0;
    return pool == nullptr ? nullptr : lane_of(pool, error);
}

[[gnu::cold, gnu::noinline]] int not_held(numacre_ref ref, Errc code) {
    if (code == Errc::too_many_holds) return fail(code, "the thread holds %u blocks, as many as it may", kHoldsMax);
    if (code == Errc::stale_ref)
        return fail(code, "reference %#llx names no block any more", static_cast<unsigned long long>(ref));
    return fail(code, "%#llx is not a reference of this pool", static_cast<unsigned long long>(ref));
}

// Of any block, lent or not yet.
[[gnu::noinline]] int slow_hold(const Lane &lane, const NodeLane &node, Reference reference, void **block) {
    Block held;
    const Errc code = node.buddy->hold(node.self, *lane.holds, reference, held);
    if (code != Errc::ok) [[unlikely]] {
        // A hold that came too late may have been the last one, and have freed the block.
        if (has_waiters(lane)) serve_waiters(lane.pool, lane.actor);
        return not_held(reference.bits(), code);
    }
    *block = address_of(lane, node, held.base);
    return 0;
}

[[gnu::cold, gnu::noinline]] int not_dropped(const void *block) {
    return fail_with_remedy(Errc::bad_argument,
                            "this thread holds no block that begins at %p: drop what it has held, by the address that "
                            "numacre_hold has stored",
                            block);
}

// The block is free again: somebody may wait for it.
[[gnu::cold, gnu::noinline]] int serve_after_drop(const Lane &lane) {
    serve_waiters(lane.pool, lane.actor);
    return 0;
}

}  // namespace

namespace numacre::client {

void drop_all(numacre_pool *pool, const Lane &lane) {
    auto &slot = pool->view.threads[lane.actor.thread.value];
    HoldWords<Env> &words = *lane.holds;
    bool is_any_freed = false;
    // relaxed: only the thread itself wrote these words, or it is gone and the kernel has said so.
    for (std::uint64_t left = slot.holds.load(std::memory_order_relaxed); left != 0; left &= left - 1) {
        const auto place = static_cast<unsigned>(std::countr_zero(left));
        const HoldWord word{words.word[place].load(std::memory_order_relaxed)};
        const NodeLane &node = lane.nodes[word.numa_node().value < lane.numa_nodes ? word.numa_node().value : 0];
        is_any_freed = node.buddy->drop(node.self, slot, words, place) || is_any_freed;
    }
    if (is_any_freed && has_waiters(pool)) serve_waiters(pool, lane.actor);
}

}  // namespace numacre::client

extern "C" {

int numacre_hold(numacre_pool *pool, numacre_ref ref, void **block) {
    if (block == nullptr) [[unlikely]]
        return no_result("numacre_hold");
    const Lane *lane = current_lane(pool);
    if (lane == nullptr) [[unlikely]] {
        int error = 0;
        lane = enter(pool, "numacre_hold", error);
        if (lane == nullptr) return error;
    }
    const Reference reference{ref};
    const std::uint32_t numa_node = lane->reference_format.numa_node(reference);
    if (numa_node >= lane->numa_nodes) [[unlikely]]
        return not_held(ref, Errc::bad_argument);
    const NodeLane &node = lane->nodes[numa_node];
    // A reference that goes stale in this moment may leave the block to this thread to free.
    if (is_inside_or_changes_hints(node)) [[unlikely]]
        return thread_is_inside(lane->pool);
    char *address = nullptr;
    if (node.buddy->hold_in_leaf(node.self, *lane->holds, reference,
                                 [&](FrameIndex base) { address = address_of(*lane, node, base); })) [[likely]] {
        *block = address;
        return 0;
    }
    return slow_hold(*lane, node, reference, block);
}

int numacre_drop(numacre_pool *pool, void *block) {
    const Lane *lane = current_lane(pool);
    if (lane == nullptr) [[unlikely]] {
        int error = 0;
        lane = enter(pool, "numacre_drop", error);
        if (lane == nullptr) return error;
    }
    NodeLane *node = nullptr;
    std::uint64_t frame = 0;
    if (!find_frame(*lane, block, node, frame)) [[unlikely]]
        return not_dropped(block);
    HoldWords<Env> &words = *lane->holds;
    const unsigned place = find_hold(*node->self.slot, words, node->buddy->view().numa_node, FrameIndex{frame});
    if (place == kHoldsMax) [[unlikely]]
        return not_dropped(block);
    if (is_inside_or_changes_hints(*node)) [[unlikely]]
        return thread_is_inside(lane->pool);
    if (node->buddy->drop(node->self, *node->self.slot, words, place) && has_waiters(*lane)) [[unlikely]]
        return serve_after_drop(*lane);
    return 0;
}

}  // extern "C"
