// Groups: processes that hand blocks to each other by address alone, as those of one DPDK world do.
#include "engine.hpp"
#include "errors.hpp"
#include "place.hpp"
#include "pool.hpp"
#include "record.hpp"
#include "reference.hpp"
#include "report.hpp"

using namespace numacre;
using namespace numacre::client;

namespace {

int adopt_one(numacre_pool *pool, const Lane &lane, std::uint64_t group, void *address) {
    Place place{};
    if (!locate(pool, address, place)) return not_a_block(pool, address, Errc::bad_argument);
    Buddy<Env> &buddy = pool->nodes[place.numa_node].buddy();
    const bool is_counted = is_counting(pool);
    if (is_counted) [[unlikely]]
        count_what_is_held(pool);
    Block block;
    IndexEntry entry;
    // As it is before the adoption; if the block changes hands in between, the counts are a block's too high until the
    // daemon compares them.
    Giver giver{pool->process, 0, 0};
    if (is_counted && buddy.find_entry(place.frame, block, entry) == Errc::ok &&
        entry.owner().value < pool->view.process_slots)
        giver = {entry.owner(), generation_of(pool->view, entry.owner()), block.order.frames()};
    const CountedCall call{pool, lane.actor, giver.frames, giver.process};
    // acquire: the daemon has cleared the word of a seat's earlier client before it seated the next one.
    const auto is_of_group = [&](ProcessSlot process) {
        return process.value < pool->view.process_slots &&
               pool->view.processes[process.value].group.load(std::memory_order_acquire) == group;
    };
    const Errc code = buddy.adopt(lane.actor, place.frame, age_now(lane), is_of_group, block, entry);
    if (code == Errc::not_owner)
        return fail_with_remedy(code,
                                "no block of this process or of its group begins at %p: adopt what the group has "
                                "allocated and not freed, and join it first (numacre_join)",
                                address);
    if (code != Errc::ok) return fail(code, "the block at %p changes hands all the time", address);
    if (is_counted && entry.owner() != pool->process) [[unlikely]]
        charge_taken(pool, giver, block.order.frames());
    if (recording() && entry.owner() != pool->process) [[unlikely]]
        record_allocation(pool, address, static_cast<std::size_t>(pool->geometry.bytes_of(block.order.frames())));
    return 0;
}

}  // namespace

extern "C" int numacre_join(numacre_pool *pool, uint64_t group) {
    if (pool == nullptr) return no_pool("numacre_join");
    if (pool->fork_generation != fork_generation()) return fail_forked();
    if (group == 0) return fail_with_remedy(Errc::bad_argument, "group 0 is none: use another number");
    std::uint64_t before = 0;
    // release: whoever finds this process in the group may adopt what it has allocated.
    if (pool->view.processes[pool->process.value].group.compare_exchange_strong(before, group,
                                                                                std::memory_order_acq_rel) ||
        before == group)
        return 0;
    return fail_with_remedy(Errc::already_exists,
                            "this client is of group %llu already, not %llu: attach once more for another group",
                            static_cast<unsigned long long>(before), static_cast<unsigned long long>(group));
}

extern "C" int numacre_adopt_bulk(numacre_pool *pool, void *const *blocks, unsigned count) {
    if (pool == nullptr) return no_pool("numacre_adopt_bulk");
    if (blocks == nullptr && count != 0) return no_result("numacre_adopt_bulk");
    if (pool->fork_generation != fork_generation()) return fail_forked();
    int error = 0;
    const Lane *const lane = lane_of(pool, error);
    if (lane == nullptr) return error;
    const std::uint64_t group =
        pool->view.processes[pool->process.value].group.load(std::memory_order_relaxed);  // our own
    if (group == 0)
        return fail_with_remedy(Errc::bad_argument, "this client is of no group: join one first (numacre_join)");
    FirstFailure failure;
    for (unsigned i = 0; i < count; ++i) failure.note(adopt_one(pool, *lane, group, blocks[i]));
    return failure.error();
}
