// The C functions: they check the arguments, take the common path (fast_path.hpp), and record calls for a trace.
#include <cstddef>
#include <cstring>

#include "bulk.hpp"
#include "engine.hpp"
#include "errors.hpp"
#include "fast_path.hpp"
#include "place.hpp"
#include "record.hpp"
#include "reference.hpp"
#include "report.hpp"
#include "struct_size.hpp"

using namespace numacre;
using namespace numacre::client;

namespace {

constexpr unsigned kPlaceFlags = NUMACRE_STRICT | NUMACRE_INTERLEAVE | NUMACRE_LOCAL;
constexpr unsigned kKnownFlags = kPlaceFlags | NUMACRE_ZERO | NUMACRE_UNCACHED | NUMACRE_WAIT | NUMACRE_COMPACT;

int check_flags(unsigned flags) {
    if ((flags & 0xff & ~kKnownFlags) == 0 && (flags >> kWaitShift == 0 || (flags & NUMACRE_WAIT) != 0)) return 0;
    return fail(Errc::bad_argument,
                "flags %#x are not a combination of NUMACRE_STRICT, _ZERO, _UNCACHED, _INTERLEAVE, _LOCAL, _COMPACT, "
                "_WAIT[_MS]",
                flags);
}

// --- threads without a current lane ----------------------------------------------------------------------------------
// While a trace is recorded (record.hpp), no lane is ever current, so all calls come here.

// Makes the thread's lane of this pool the current one, if the thread has only used another pool meanwhile, or none.
// The call then takes the common path, in the entered lane. nullptr: the pool wants attention first, or a trace is
// recorded.
Lane *come_back_to(numacre_pool *pool, std::uint64_t *&inside) {
    int error = 0;
    return current_lane(pool) == nullptr && lane_of(pool, error) != nullptr ? entered_lane(pool, inside) : nullptr;
}

[[gnu::noinline]] int allocate_without_lane(numacre_pool *pool, std::size_t size_bytes, void **block) {
    if (pool == nullptr) return no_pool("numacre_alloc");
    std::uint64_t *inside = nullptr;
    if (Lane *const lane = come_back_to(pool, inside)) return cached_allocate(*lane, inside, size_bytes, block);
    const int error = slow_allocate(pool, size_bytes, block);
    if (error == 0 && recording()) [[unlikely]]
        record_allocation(pool, *block, size_bytes);
    return error;
}

[[gnu::noinline]] int allocate_on_without_lane(numacre_pool *pool, int numa_node, std::size_t size_bytes,
                                               unsigned flags, void **block) {
    if (pool == nullptr) return no_pool("numacre_alloc_on");
    if (const int error = check_flags(flags)) return error;
    const unsigned policy_flags = flags & (NUMACRE_INTERLEAVE | NUMACRE_LOCAL);
    if (policy_flags != 0 && (numa_node != -1 || policy_flags == (NUMACRE_INTERLEAVE | NUMACRE_LOCAL)))
        return fail(Errc::bad_argument,
                    "flags %#x on numa node %d: NUMACRE_INTERLEAVE and NUMACRE_LOCAL want node -1, one of them", flags,
                    numa_node);
    if (numa_node < -1 || numa_node >= static_cast<int>(pool->numa_nodes))
        return fail(Errc::no_such_node, "numa node %d is not within -1 .. %u", numa_node, pool->numa_nodes - 1);
    const int error = slow_allocate_on(pool, numa_node, size_bytes, flags, block);
    if (error == 0 && recording()) [[unlikely]]
        record_allocation(pool, *block, size_bytes);
    return error;
}

[[gnu::noinline]] int free_without_lane(numacre_pool *pool, void *block) {
    if (pool == nullptr) return no_pool("numacre_free");
    std::uint64_t *inside = nullptr;
    if (Lane *const lane = come_back_to(pool, inside)) return cached_free(*lane, inside, block);
    if (recording()) [[unlikely]]
        record_free(pool, block);
    return slow_free(pool, block);
}

[[gnu::noinline]] int free_uncached_without_lane(numacre_pool *pool, void *block) {
    if (pool == nullptr) return no_pool("numacre_free_uncached");
    if (recording()) [[unlikely]]
        record_free(pool, block);
    return slow_free_uncached(pool, block);
}

[[gnu::noinline]] int take_without_lane(numacre_pool *pool, numacre_ref ref, void **block) {
    if (pool == nullptr) return no_pool("numacre_take");
    int error = 0;
    const Lane *const lane = lane_of(pool, error);
    return lane == nullptr ? error : slow_take(pool, *lane, ref, block);
}

}  // namespace

extern "C" {

int numacre_alloc(numacre_pool *pool, size_t size_bytes, void **block) {
    if (block == nullptr) [[unlikely]]
        return no_result("numacre_alloc");
    std::uint64_t *inside;
    Lane *const lane = entered_lane(pool, inside);
    if (lane == nullptr) [[unlikely]]
        return allocate_without_lane(pool, size_bytes, block);
    return cached_allocate(*lane, inside, size_bytes, block);
}

int numacre_alloc_on(numacre_pool *pool, int numa_node, size_t size_bytes, unsigned flags, void **block) {
    if (block == nullptr) [[unlikely]]
        return no_result("numacre_alloc_on");
    const Lane *const lane = undisturbed_lane(pool);
    if (flags == NUMACRE_UNCACHED && numa_node == -1 && lane != nullptr) [[likely]] {
        if (lane->numa_nodes > 1) [[unlikely]]
            return tree_allocate_locally(*lane, size_bytes, block);
        // `only` is loaded separately: with the node in one register for both paths, the compiler saves registers for
        // the path into a leaf word before it knows that this path is taken.
        if (!fits_leaf_word(*lane, size_bytes)) [[unlikely]]
            return tree_allocate_large(*lane, lane->only_node(), size_bytes, block);
        return tree_allocate_in_leaf(*lane, lane->nodes[0], size_bytes, block);
    }
    return allocate_on_without_lane(pool, numa_node, size_bytes, flags, block);
}

int numacre_alloc_policy(numacre_pool *pool, int mode, uint64_t numa_nodes, size_t size_bytes, unsigned flags,
                         void **block) {
    if (pool == nullptr) return no_pool("numacre_alloc_policy");
    if (block == nullptr) return no_result("numacre_alloc_policy");
    if ((flags & kPlaceFlags) != 0)
        return fail(Errc::bad_argument, "numacre_alloc_policy: flags %#x say where beside the policy", flags);
    if (const int error = check_flags(flags)) return error;
    int error = 0;
    Lane *const lane = allocating_lane_of(pool, error);
    if (lane == nullptr) return error;
    Policy policy;
    error = policy_of_call(pool, *lane, mode, numa_nodes, policy);
    if (error != 0) return error;
    error = slow_allocate_planned(pool, *lane, plan_with(pool, *lane, policy, size_bytes), size_bytes, flags, block);
    if (error == 0 && recording()) [[unlikely]]
        record_allocation(pool, *block, size_bytes);
    return error;
}

int numacre_free(numacre_pool *pool, void *block) {
    std::uint64_t *inside;
    Lane *const lane = entered_lane(pool, inside);
    if (lane == nullptr) [[unlikely]]
        return free_without_lane(pool, block);
    return cached_free(*lane, inside, block);
}

int numacre_free_uncached(numacre_pool *pool, void *block) {
    if (const Lane *const lane = current_lane(pool)) [[likely]]
        return tree_free(*lane, block);
    return free_uncached_without_lane(pool, block);
}

int numacre_alloc_bulk(numacre_pool *pool, size_t size_bytes, void **blocks, unsigned count) {
    unsigned done = 0;
    std::uint64_t *inside;
    Lane *const lane = entered_lane(pool, inside);
    if (lane != nullptr) [[likely]] {
        if (lane->numa_nodes == 1 && blocks != nullptr && fits_leaf_word(*lane, size_bytes)) [[likely]] {
            NodeLane &node = lane->nodes[0];
            Magazine &magazine = node.magazines[order_of(*lane, size_bytes)];
            // All or nothing: a call that fails further down leaves the array as it was.
            if (magazine.count() >= count) [[likely]]
                done = with_scale(*lane, [&](auto scale) {
                    return cached_take_many(scale, *lane, node, magazine, wish_for(*lane, magazine, size_bytes), blocks,
                                            count);
                });
        }
        numacre_inline_end(inside);
        if (done == count && blocks != nullptr) [[likely]]
            return 0;
    }
    if (pool == nullptr) return no_pool("numacre_alloc_bulk");
    if (blocks == nullptr && count != 0) return no_result("numacre_alloc_bulk");
    return slow_allocate_many(pool, size_bytes, blocks, count, done);
}

int numacre_alloc_ref_bulk(numacre_pool *pool, size_t size_bytes, void **blocks, numacre_ref *refs, unsigned count) {
    unsigned done = 0;
    std::uint64_t *inside;
    Lane *const lane = entered_lane(pool, inside);
    const bool has_room = blocks != nullptr && refs != nullptr;
    if (lane != nullptr) [[likely]] {
        if (lane->numa_nodes == 1 && has_room && fits_leaf_word(*lane, size_bytes)) [[likely]] {
            NodeLane &node = lane->nodes[0];
            const Order order{order_of(*lane, size_bytes)};
            Magazine &magazine = node.magazines[order.value];
            const auto names = node.buddy->leaf_names(node.self, {});
            if (magazine.count() >= count) [[likely]]
                done = with_scale(*lane, [&](auto scale) {
                    return cached_take_many(
                        scale, *lane, node, magazine, published_wish_for(*lane, magazine, size_bytes), count,
                        [&](unsigned number, char *address, FrameIndex frame, std::uint64_t *slot, std::uint64_t now) {
                            const Reference name = names.name(Block{frame, order}, IndexEntry{now});
                            numacre_inline_out_of_cache_named(slot, now);
                            blocks[number] = address;
                            refs[number] = name.bits();
                        });
                });
        }
        numacre_inline_end(inside);
        if (done == count && has_room) [[likely]]
            return 0;
    }
    if (pool == nullptr) return no_pool("numacre_alloc_ref_bulk");
    if (!has_room && count != 0) return no_result("numacre_alloc_ref_bulk");
    return slow_allocate_published(pool, size_bytes, blocks, refs, count, done);
}

int numacre_free_bulk(numacre_pool *pool, void *const *blocks, unsigned count) {
    unsigned done = 0;
    std::uint64_t *inside;
    const Lane *const lane = entered_lane(pool, inside);
    if (lane != nullptr) [[likely]] {
        // An undisturbed lane has no waiters; for more blocks than kLeafFrames, slow_free_rest() looks again.
        if (blocks != nullptr && count <= kLeafFrames) [[likely]]
            done = with_scale(*lane, [&](auto scale) { return cached_put_many(scale, *lane, blocks, count); });
        numacre_inline_end(inside);
        if (done == count && blocks != nullptr) [[likely]]
            return 0;
    }
    if (pool == nullptr) return no_pool("numacre_free_bulk");
    if (blocks == nullptr && count != 0) return fail(Errc::bad_argument, "numacre_free_bulk: the blocks are NULL");
    return slow_free_rest(pool, blocks, count, done);
}

numacre_ref numacre_ref_of(numacre_pool *pool, const void *block) {
    if (const Lane *const lane = current_lane(pool)) [[likely]] {
        NodeLane *node = nullptr;
        std::uint64_t frame = 0;
        Reference name;
        if (find_frame(*lane, block, node, frame) && node->buddy->publish_in_leaf(node->self, FrameIndex{frame}, name))
            [[likely]]
            return name.bits();
    }
    return slow_publish(pool, block);
}

int numacre_take(numacre_pool *pool, numacre_ref ref, void **block) {
    if (block == nullptr) return no_result("numacre_take");
    const Lane *const lane = current_lane(pool);
    if (lane == nullptr) [[unlikely]]
        return take_without_lane(pool, ref, block);
    const Reference reference{ref};
    const std::uint32_t numa_node = lane->reference_format.numa_node(reference);
    if (numa_node < lane->numa_nodes && !is_regulated(*lane)) [[likely]] {
        const NodeLane &node = lane->nodes[numa_node];
        Block taken;
        if (node.buddy->take_in_leaf(node.self, reference, age_now(*lane), taken)) [[likely]] {
            *block = address_of(*lane, node, taken.base);
            return 0;
        }
    }
    return slow_take(pool, *lane, ref, block);
}

int numacre_ref_bulk(numacre_pool *pool, void *const *blocks, numacre_ref *refs, unsigned count) {
    if (pool == nullptr) return no_pool("numacre_ref_bulk");
    if (blocks == nullptr && count != 0) return fail(Errc::bad_argument, "numacre_ref_bulk: the blocks are NULL");
    if (refs == nullptr && count != 0) return no_result("numacre_ref_bulk");
    unsigned done = 0;
    if (const Lane *const lane = current_lane(pool)) [[likely]] {
        for (; done < count; ++done) {
            NodeLane *node = nullptr;
            std::uint64_t frame = 0;
            Reference name;
            if (!find_frame(*lane, blocks[done], node, frame) ||
                !node->buddy->publish_in_leaf(node->self, FrameIndex{frame}, name)) [[unlikely]]
                break;
            refs[done] = name.bits();
        }
        if (done == count) [[likely]]
            return 0;
    }
    return slow_publish_many(pool, blocks, refs, count, done);
}

int numacre_take_bulk(numacre_pool *pool, const numacre_ref *refs, void **blocks, unsigned count) {
    if (pool == nullptr) return no_pool("numacre_take_bulk");
    if (refs == nullptr && count != 0) return fail(Errc::bad_argument, "numacre_take_bulk: the references are NULL");
    if (blocks == nullptr && count != 0) return no_result("numacre_take_bulk");
    unsigned done = 0;
    const Lane *lane = current_lane(pool);
    if (lane == nullptr) [[unlikely]] {
        int error = 0;
        lane = lane_of(pool, error);
        if (lane == nullptr) return error;
    } else {
        done = take_many_in_leaf(*lane, refs, blocks, count);
        if (done == count) [[likely]]
            return 0;
    }
    return slow_take_many(pool, *lane, refs, blocks, count, done);
}

int numacre_free_ref(numacre_pool *pool, numacre_ref ref) {
    if (pool == nullptr) return no_pool("numacre_free_ref");
    void *block = nullptr;
    if (const int error = numacre_take(pool, ref, &block)) return error;
    return numacre_free(pool, block);
}

numacre_ref numacre_virt_to_ref(numacre_pool *pool, const void *block) {
    Place place{};
    Reference name;
    if (pool == nullptr) {
        (void)no_pool("numacre_virt_to_ref");
    } else if (pool->fork_generation != fork_generation()) {
        (void)fail_forked();
    } else {
        if (locate(pool, block, place)) name = pool->nodes[place.numa_node].buddy().find_name(place.frame);
        if (name == Reference{}) (void)fail(Errc::stale_ref, "no block that has a reference begins at %p", block);
    }
    return name.bits();
}

int numacre_is_asleep(numacre_pool *pool) {
    if (pool == nullptr || pool->fork_generation != fork_generation()) return 0;
    Lane *const lane = find_lane(pool);
    // Another handler may have interrupted the sleep before, and be inside a call of its own.
    if (lane == nullptr || !lane->is_asleep || is_inside_or_changes_hints(lane->nodes[0])) return 0;
    // The answer is 1 only once: nothing else clears the flag for a thread that leaves now.
    lane->is_asleep = false;
    return 1;
}

size_t numacre_usable_size(numacre_pool *pool, const void *block) {
    Place place{};
    Block found;
    IndexEntry entry;
    if (!own_block(pool, block, place, found, entry)) {
        (void)not_owned(pool, block, "numacre_usable_size");
        return 0;
    }
    return static_cast<size_t>(pool->geometry.bytes_of(found.order.frames()));
}

int numacre_client_id(numacre_pool *pool, uint32_t *client_id) {
    if (pool == nullptr) return no_pool("numacre_client_id");
    if (client_id == nullptr) return no_result("numacre_client_id");
    *client_id = pool->client_id;
    return 0;
}

int numacre_get_info(numacre_pool *pool, numacre_pool_info *info) {
    if (pool == nullptr) return no_pool("numacre_get_info");
    if (info == nullptr) return no_result("numacre_get_info");
    const std::size_t room = info->struct_size;
    if (!is_struct_size(room))
        return fail_with_remedy(Errc::bad_argument,
                                "numacre_pool_info.struct_size is %zu: set it to sizeof(numacre_pool_info)", room);
    numacre_pool_info found{};
    found.struct_size = room;
    found.capacity_bytes = pool->geometry.capacity_bytes();
    found.frame_bytes = pool->geometry.frame_bytes;
    found.largest_block_bytes = pool->geometry.chunk_bytes();
    found.metadata_bytes = pool->pool_region_bytes;
    for (std::uint32_t node = 0; node < pool->numa_nodes; ++node)
        found.metadata_bytes += pool->nodes[node].node_region_bytes;
    found.numa_nodes = pool->numa_nodes;
    found.backing = static_cast<std::uint32_t>(pool->nodes[0].backing);
    // An older program has fewer fields than the library. A newer program has more, and finds 0 in the additional ones.
    std::memcpy(info, &found, room < sizeof found ? room : sizeof found);
    if (room > sizeof found) std::memset(reinterpret_cast<char *>(info) + sizeof found, 0, room - sizeof found);
    return 0;
}

int numacre_region(numacre_pool *pool, int numa_node, void **base, size_t *size_bytes) {
    if (pool == nullptr) return no_pool("numacre_region");
    if (base == nullptr || size_bytes == nullptr) return no_result("numacre_region");
    if (numa_node < 0 || numa_node >= static_cast<int>(pool->numa_nodes))
        return fail(Errc::no_such_node, "numa node %d is not within 0 .. %u", numa_node, pool->numa_nodes - 1);
    *base = pool->nodes[numa_node].data;
    *size_bytes = pool->data_bytes;
    return 0;
}

const char *numacre_last_error(void) {
    return last_error();
}

#define NUMACRE_TEXT_(number) #number
#define NUMACRE_TEXT(number)  NUMACRE_TEXT_(number)
const char *numacre_version(void) {
    return NUMACRE_TEXT(NUMACRE_VERSION_MAJOR) "." NUMACRE_TEXT(NUMACRE_VERSION_MINOR) "." NUMACRE_TEXT(
        NUMACRE_VERSION_PATCH);
}

}  // extern "C"
