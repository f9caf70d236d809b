// The transfer of a block by its reference: publishing, taking, and moving the count to the taker.
#include "reference.hpp"

#include "engine.hpp"
#include "errors.hpp"
#include "record.hpp"
#include "report.hpp"

namespace numacre::client {
namespace {

// The process from which slow_take() would receive the block. If the block changes owner first, its entry differs, and
// the take fails.
[[gnu::cold]] Giver giver_of(numacre_pool *pool, Reference reference) {
    const std::uint32_t numa_node = pool->reference_format.numa_node(reference);
    if (numa_node >= pool->numa_nodes) return {pool->process, 0, 0};
    const NodeView<Env> &view = pool->nodes[numa_node].buddy().view();
    const Block block = pool->reference_format.block(reference);
    if (!view.contains(block)) return {pool->process, 0, 0};
    // relaxed: the CAS of Buddy::take() fails if it finds another entry.
    const ProcessSlot owner = IndexEntry{view.index_entry(block).load(std::memory_order_relaxed)}.owner();
    return {owner, generation_of(pool->view, owner), block.order.frames()};
}

// Publishes the caller's own block at this address. None: there is no such block, or another process has taken it.
Reference publish_own(numacre_pool *pool, const void *address) {
    Place place{};
    Block block;
    IndexEntry entry;
    if (!own_block(pool, address, place, block, entry)) return {};
    return pool->nodes[place.numa_node].buddy().publish(block, entry);
}

}  // namespace

numacre_ref slow_publish(numacre_pool *pool, const void *address) {
    const Reference name = publish_own(pool, address);
    if (name == Reference{}) (void)not_owned(pool, address, "numacre_ref_of");
    return name.bits();
}

int slow_publish_many(numacre_pool *pool, void *const *blocks, numacre_ref *refs, unsigned count, unsigned done) {
    if (pool->fork_generation != fork_generation()) return fail_forked();
    FirstFailure failure;
    for (; done < count; ++done) {
        refs[done] = publish_own(pool, blocks[done]).bits();
        if (refs[done] != NUMACRE_REF_NULL) [[likely]]
            continue;
        failure.note(not_owned(pool, blocks[done], "numacre_ref_bulk"));
    }
    return failure.error();
}

int slow_take_many(numacre_pool *pool, const Lane &lane, const numacre_ref *refs, void **blocks, unsigned count,
                   unsigned done) {
    FirstFailure failure;
    while (done < count) {
        void *taken = nullptr;
        failure.note(slow_take(pool, lane, refs[done], &taken));
        blocks[done++] = taken;
        // The short way records nothing.
        if (!recording()) [[likely]]
            done += take_many_in_leaf(lane, refs + done, blocks + done, count - done);
    }
    return failure.error();
}

int slow_take(numacre_pool *pool, const Lane &lane, numacre_ref ref, void **block) {
    const Reference reference{ref};
    const std::uint32_t numa_node = pool->reference_format.numa_node(reference);
    Block taken;
    const bool is_counted = is_counting(pool);
    if (is_counted) [[unlikely]]
        count_what_is_held(pool);
    const Giver giver = is_counted ? giver_of(pool, reference) : Giver{pool->process, 0, 0};
    const CountedCall call{pool, lane.actor, giver.frames, giver.process};
    const Errc code = numa_node < pool->numa_nodes
                          ? pool->nodes[numa_node].buddy().take(lane.actor, reference, age_now(lane), taken)
                          : Errc::bad_argument;
    if (code != Errc::ok) [[unlikely]]
        return fail(code,
                    code == Errc::stale_ref ? "reference %#llx names no block any more"
                                            : "%#llx is not a reference of this pool",
                    static_cast<unsigned long long>(ref));
    if (is_counted) [[unlikely]]
        charge_taken(pool, giver, taken.order.frames());
    *block = address_of(pool, numa_node, taken);
    // The taker does not know the size that the giver asked for.
    if (recording()) [[unlikely]]
        record_allocation(pool, *block, static_cast<std::size_t>(pool->geometry.bytes_of(taken.order.frames())));
    return 0;
}

}  // namespace numacre::client
