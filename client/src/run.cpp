// Runs: memory in one piece whose size is no power of two, as blocks that lie one behind the other. Each block is
// claimed by itself and belongs to the process from then on, so a death at any moment leaves blocks like any others.
#include "numacre/shm/run_look.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstddef>

#include "allocate.hpp"
#include "cache.hpp"
#include "engine.hpp"
#include "errors.hpp"
#include "fast_path.hpp"
#include "free.hpp"
#include "idle.hpp"
#include "place.hpp"
#include "record.hpp"
#include "reference.hpp"
#include "report.hpp"

using namespace numacre;
using namespace numacre::client;

namespace {

// How often a place is looked for: others may claim a part of it before we do.
constexpr int kTries = 3;

struct Run {
    numacre_pool *pool;
    std::size_t size_bytes;
    std::uint64_t frames, align_frames;

    // Visits the run's blocks, if the run begins at `base`, until visit(block, the bytes asked of it) returns false.
    // Returns how many frames have been visited before.
    template <class Visit>
    std::uint64_t each_block(FrameIndex base, const Visit &visit) const {
        std::uint64_t done = 0;
        while (done < frames) {
            const Block block =
                first_block_of_run(FrameIndex{base.value + done}, frames - done, pool->geometry.largest());
            const std::uint64_t behind = size_bytes - pool->scale.offset(done);
            if (!visit(block, std::min(behind, pool->scale.offset(block.order.frames())))) break;
            done += block.order.frames();
        }
        return done;
    }
};

// Claims a run's blocks. False, and nothing is claimed: somebody was quicker.
bool claim_run(const Lane &lane, std::uint32_t numa_node, const Run &run, FrameIndex base) {
    Buddy<Env> &buddy = run.pool->nodes[numa_node].buddy();
    const std::uint64_t claimed = run.each_block(base, [&](Block block, std::uint64_t bytes) {
        return buddy.allocate_at(lane.actor, block, note_of(lane, block.order, bytes));
    });
    if (claimed == run.frames) return true;
    std::uint64_t left = claimed;
    run.each_block(base, [&](Block block, std::uint64_t) {
        if (left < block.order.frames()) return false;
        left -= block.order.frames();
        Block freed;
        if (buddy.free(lane.actor, block.base, freed) == Errc::ok && is_counting(run.pool))
            note_freed(run.pool, numa_node, freed);
        return true;
    });
    // A thread that waits may have looked while the blocks were ours.
    if (claimed != 0 && has_waiters(lane)) serve_waiters(run.pool, lane.actor);
    return false;
}

bool allocate_run_on(const Lane &lane, std::uint32_t numa_node, const Run &run, FrameIndex &base) {
    const Buddy<Env> &buddy = run.pool->nodes[numa_node].buddy();
    const auto is_draining = [&](FrameIndex frame) { return buddy.is_draining(frame); };
    RunLook look{buddy.view(), run.frames, run.align_frames, is_draining};
    for (int i = 0; i < kTries; ++i) {
        if (!look.find(base)) return false;
        if (claim_run(lane, numa_node, run, base)) return true;
    }
    return false;
}

bool allocate_run_planned(const Lane &lane, const Plan &plan, const Run &run, std::uint32_t &got, FrameIndex &base) {
    got = plan.first;
    return allocate_run_on(lane, got, run, base) || plan.any_other(run.pool->numa_nodes, [&](std::uint32_t other) {
        got = other;
        return allocate_run_on(lane, other, run, base);
    });
}

// As slow_allocate_under_pressure(), for a run.
[[gnu::cold]] bool allocate_run_under_pressure(Lane &lane, const Plan &plan, const Run &run, std::uint32_t &got,
                                               FrameIndex &base) {
    const bool has_forgotten = forget_wish(run.pool, lane);
    if ((give_back_all(run.pool, lane) != 0 || has_forgotten) && allocate_run_planned(lane, plan, run, got, base))
        return true;
    ask_others_to_give_back(run.pool, lane);
    return take_back_idle_caches(run.pool, lane, now_nanoseconds()) && allocate_run_planned(lane, plan, run, got, base);
}

int check_run(const numacre_pool *pool, std::size_t size_bytes, std::size_t alignment_bytes) {
    if (size_bytes == 0 || size_bytes > pool->data_bytes)
        return fail_with_remedy(
            Errc::bad_argument, "size %zu is not within 1 .. %llu bytes, the capacity of a numa node: %s", size_bytes,
            static_cast<unsigned long long>(pool->data_bytes),
            size_bytes == 0 ? "ask for 1 byte or more" : "ask for less, or use a pool of a larger capacity");
    if (alignment_bytes == 0) return 0;
    const bool has_power = std::has_single_bit(pool->geometry.frame_bytes);
    const std::uint64_t most =
        has_power ? std::max<std::uint64_t>(pool->geometry.chunk_bytes(), kHugepageBytes) : kCacheLineBytes;
    if (std::has_single_bit(alignment_bytes) && alignment_bytes <= most) return 0;
    return fail_with_remedy(Errc::bad_argument,
                            "alignment %zu is none that this pool can give: use 0, or a power of two up to %llu",
                            alignment_bytes, static_cast<unsigned long long>(most));
}

// The frames of [run, run + size_bytes), which have to be whole blocks of the caller's. Returns 0, or -errno with the
// error remembered.
int check_own_run(numacre_pool *pool, void *run, std::size_t size_bytes, std::uint64_t &blocks) {
    std::uint64_t at = 0;
    for (blocks = 0; at < size_bytes; ++blocks) {
        Place place{};
        Block block;
        IndexEntry entry;
        char *const address = static_cast<char *>(run) + at;
        if (!own_block(pool, address, place, block, entry)) {
            if (pool->fork_generation != fork_generation()) return fail_forked();
            const bool is_others = locate(pool, address, place) && pool->nodes[place.numa_node].buddy().find_entry(
                                                                       place.frame, block, entry) == Errc::ok;
            return not_a_block(pool, address, is_others ? Errc::not_owner : Errc::stale_ref);
        }
        at += pool->scale.offset(block.order.frames());
    }
    if (at - size_bytes < pool->geometry.frame_bytes) return 0;
    return fail_with_remedy(Errc::bad_argument,
                            "%zu bytes from %p end inside a block: give the size that was allocated", size_bytes, run);
}

}  // namespace

extern "C" int numacre_alloc_run(numacre_pool *pool, int numa_node, size_t size_bytes, size_t alignment_bytes,
                                 void **run) {
    if (pool == nullptr) return no_pool("numacre_alloc_run");
    if (run == nullptr) return no_result("numacre_alloc_run");
    int error = 0;
    Lane *const lane = allocating_lane_of(pool, error);
    if (lane == nullptr) return error;
    if (numa_node < -1 || numa_node >= static_cast<int>(pool->numa_nodes))
        return fail(Errc::no_such_node, "numa node %d is not within -1 .. %u", numa_node, pool->numa_nodes - 1);
    if (const int bad = check_run(pool, size_bytes, alignment_bytes)) return bad;
    const auto wanted = static_cast<std::uint32_t>(numa_node);
    if (numa_node >= 0 && pool->numa_nodes != 1 && (placement_of(pool, *lane).allowed & bit_of(wanted)) == 0)
        return not_allowed(pool, wanted);
    const Plan plan = numa_node < 0 ? plan_of(pool, *lane, size_bytes) : plan_on(pool, *lane, wanted).no_further();
    const std::uint64_t frame_bytes = pool->geometry.frame_bytes;
    const Run wish{pool, size_bytes, divide_up(size_bytes, frame_bytes),
                   alignment_bytes > frame_bytes ? alignment_bytes / frame_bytes : 1};
    Charge charge{pool, lane->actor, wish.frames};
    if (!charge.make())
        if (const Errc code = slow_charge_under_pressure(pool, *lane, charge); code != Errc::ok)
            return allocation_failed(pool, *lane, plan.first, code, wish.frames, size_bytes, charge.answer);
    std::uint32_t got = 0;
    FrameIndex base;
    if (!allocate_run_planned(*lane, plan, wish, got, base) &&
        !allocate_run_under_pressure(*lane, plan, wish, got, base)) {
        charge.undo();
        return allocation_failed(pool, *lane, plan.first, Errc::out_of_frames, wish.frames, size_bytes, charge.answer);
    }
    note_placement(pool, *lane, plan, got);
    wish.each_block(base, [&](Block block, std::uint64_t bytes) {
        if (recording()) [[unlikely]]
            record_allocation(pool, address_of(pool, got, block), bytes);
        return true;
    });
    *run = address_of(pool, got, Block{base, Order{0}});
    return 0;
}

extern "C" int numacre_free_run(numacre_pool *pool, void *run, size_t size_bytes) {
    if (pool == nullptr) return no_pool("numacre_free_run");
    if (run == nullptr || size_bytes == 0)
        return fail(Errc::bad_argument, "numacre_free_run: %zu bytes from %p are no run", size_bytes, run);
    std::uint64_t blocks = 0;
    if (const int error = check_own_run(pool, run, size_bytes, blocks)) return error;
    int first_error = 0;
    for (auto *address = static_cast<char *>(run); blocks > 0; --blocks) {
        // Before the free: another process may have the block the moment after.
        const std::size_t bytes = numacre_usable_size(pool, address);
        const int error = numacre_free_uncached(pool, address);
        if (first_error == 0) first_error = error;
        // No thread slot, or inside a signal handler: nothing has been freed yet, and the next one fares no better.
        if (bytes == 0 || error == -EUSERS || error == -EBUSY) break;
        address += bytes;
    }
    return first_error;
}
