// Allocation and free of many blocks: first by the cache, then by leaf words of the tree (one atomic step each), and
// the remaining blocks one by one.
#include "bulk.hpp"

#include <sys/mman.h>

#include <algorithm>

#include "cache.hpp"
#include "engine.hpp"
#include "errors.hpp"
#include "fast_path.hpp"
#include "numacre/os/kernel.hpp"
#include "place.hpp"
#include "record.hpp"
#include "reference.hpp"
#include "report.hpp"

namespace numacre::client {
namespace {

// The addresses of a call's blocks until all of them are allocated: a call that fails leaves the caller's array as it
// was. Many addresses need memory of the kernel's: a call may come from a signal handler that has interrupted malloc().
class Addresses {
public:
    explicit Addresses(unsigned count) : bytes_(count * sizeof(void *)) {
        if (count <= kFew) return;
        void *const memory = os::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        at_ = memory == MAP_FAILED ? nullptr : static_cast<void **>(memory);
    }
    ~Addresses() {
        if (at_ != few_ && at_ != nullptr) os::munmap(static_cast<void *>(at_), bytes_);
    }
    Addresses(const Addresses &) = delete;
    Addresses &operator=(const Addresses &) = delete;
    // nullptr: the kernel has no memory.
    void **at() { return at_; }
    int no_memory() const {
        return fail_without_memory("the process has no memory for %zu addresses", bytes_ / sizeof(void *));
    }

private:
    static constexpr unsigned kFew = 128;  // few for the stack of a signal handler, too
    std::size_t bytes_;
    void *few_[kFew];
    void **at_ = few_;
};

// As many blocks as the cache takes, `wanted` at most. Returns their number.
unsigned slow_put_many(Lane &lane, void *const *blocks, unsigned wanted) {
    const CacheSteps steps{lane};
    return steps ? cached_put_many(lane.scale, lane, blocks, wanted) : 0;
}

// Makes room in the cache for the block of the leaf entry `found`. False: there is no room, or such a block cannot be
// cached.
bool slow_make_room_for(numacre_pool *pool, Lane &lane, const LeafEntry &found) {
    const unsigned order = found.entry.order().value;
    return found.entry.is_private(lane.private_pattern) && order < kCachedOrders &&
           make_room(pool, lane, *found.node, order);
}

// Allocates blocks behind the first `done`: all, or none and frees the first ones as well.
int slow_allocate_rest(numacre_pool *pool, std::size_t size_bytes, void **blocks, unsigned count, unsigned done) {
    int error = 0;
    // If some blocks have been allocated, the lane was undisturbed a moment ago. A change since then is reported one
    // call later: an error now would lose these blocks.
    Lane *const lane = done == 0 ? allocating_lane_of(pool, error) : lane_of(pool, error);
    if (lane == nullptr) return error;
    if (done != 0 && is_inside(lane->nodes[0])) [[unlikely]] {
        // Their places are still free. Whatever is asked for: a block that nobody has found in the cache may go in. (If
        // somebody has asked meanwhile, these blocks are found by the walk for a later answer only.)
        const CacheSteps steps{*lane};
        while (done-- > 0) {
            LeafEntry found;
            if (!look_up(*lane, blocks[done], found)) continue;
            if (found.entry.is_published())
                (void)found.node->buddy->withdraw(Block{found.frame(), found.entry.order()}, found.entry);
            (void)cached_put_found(*lane, found, blocks[done]);
        }
        return thread_is_inside(pool);
    }
    Plan plan = plan_of(pool, *lane, size_bytes);
    const std::uint32_t wanted = plan.first;
    if (fits_leaf_word(*lane, size_bytes) && !plan.is_turn) {
        const unsigned order = order_of(*lane, size_bytes);
        NodeLane &node = lane->nodes[wanted];
        const numacre_inline_wish wish = wish_for(*lane, node.magazines[order], size_bytes);
        if (const CacheSteps steps{*lane})
            done +=
                cached_take_many(lane->scale, *lane, node, node.magazines[order], wish, blocks + done, count - done);
        const Order of_blocks{order};
        const Note note = note_of(*lane, of_blocks, size_bytes);
        // Cached blocks have been charged already. The loop further down charges other blocks one by one.
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

}  // namespace

int slow_allocate_many(numacre_pool *pool, std::size_t size_bytes, void **blocks, unsigned count, unsigned done) {
    Addresses addresses{count};
    void **const at = addresses.at();
    if (at == nullptr) [[unlikely]] {
        int error = 0;
        if (const Lane *const lane = lane_of(pool, error))
            while (done-- > 0) slow_free_past_cache(pool, lane->actor, blocks[done]);
        return addresses.no_memory();
    }
    std::copy_n(blocks, done, at);
    if (const int error = slow_allocate_rest(pool, size_bytes, at, count, done)) return error;
    std::copy_n(at, count, blocks);
    return 0;
}

int slow_allocate_published(numacre_pool *pool, std::size_t size_bytes, void **blocks, numacre_ref *refs,
                            unsigned count, unsigned done) {
    if (const int error = slow_allocate_many(pool, size_bytes, blocks, count, done)) return error;
    // No other thread knows of these blocks: each is published at once. The first ones are published already.
    for (; done < count; ++done) refs[done] = slow_publish(pool, blocks[done]);
    return 0;
}

int slow_free_rest(numacre_pool *pool, void *const *blocks, unsigned count, unsigned done) {
    int error = 0;
    Lane *const lane = lane_of(pool, error);
    if (lane == nullptr) return error;
    if (is_inside(lane->nodes[0])) [[unlikely]]
        return thread_is_inside(pool);
    // While memory is short, no block is cached, as in cached_ensure_room().
    const bool may_cache = lane->undisturbed();
    if (!may_cache) answer_attention(pool, *lane);
    if (recording()) [[unlikely]]
        for (unsigned i = done; i < count; ++i) record_free(pool, blocks[i]);
    FirstFailure failure;
    while (done < count) {
        if (may_cache && !has_waiters(pool)) {
            // At most kLeafFrames blocks between two looks for waiters.
            const unsigned wanted = count - done < kLeafFrames ? count - done : kLeafFrames;
            const unsigned put = slow_put_many(*lane, blocks + done, wanted);
            done += put;
            if (put == wanted) continue;
            // Making room may take a while, so the entry is looked up again afterwards.
            LeafEntry found;
            if (slow_put(*lane, blocks[done], found) ||
                (found.slot != nullptr && slow_make_room_for(pool, *lane, found) &&
                 slow_put(*lane, blocks[done], found))) {
                ++done;
                continue;
            }
        }
        // The tree takes the blocks that do not fit: successive blocks of one numa node together.
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
        // A block that is larger, freed already, or owned by another process gets its own result.
        if (freed == batch && batch != 0) continue;
        failure.note(slow_free_past_cache(pool, lane->actor, blocks[done++]));
    }
    return failure.error();
}

}  // namespace numacre::client
