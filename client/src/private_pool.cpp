// A private pool: the engine of shm/ on anonymous memory of this process, without a daemon.
#include <sys/mman.h>
#include <sys/sysinfo.h>

#include <cerrno>
#include <cstring>
#include <new>

#include "engine.hpp"
#include "errors.hpp"
#include "idle.hpp"
#include "numacre/shm/chunks.hpp"
#include "numacre/shm/format.hpp"
#include "pool.hpp"
#include "record.hpp"
#include "struct_size.hpp"

using namespace numacre;
using namespace numacre::client;

namespace {

constexpr std::uint64_t kDefaultCapacity = std::uint64_t{64} << 20;
constexpr std::uint64_t kDefaultFrame = 4096;
constexpr std::uint64_t kDefaultLargest = std::uint64_t{4} << 20;
constexpr std::uint32_t kThreadSlots = 4096;
constexpr ProcessSlot kOnlyProcess{1};
constexpr unsigned kFitFlags = NUMACRE_PRIVATE_COMPACT | NUMACRE_PRIVATE_BEST_FIT;

const char *describe(GeometryFault fault) {
    switch (fault) {
        case GeometryFault::none:
            break;
        case GeometryFault::frame_not_power_of_two:
            return "frame_bytes is not a power of two";
        case GeometryFault::frame_out_of_range:
            return "frame_bytes is not within 64 .. 2097152";
        case GeometryFault::block_not_power_of_two:
            return "largest_block_bytes is not a power of two";
        case GeometryFault::block_smaller_than_frame:
            return "largest_block_bytes is smaller than frame_bytes";
        case GeometryFault::block_too_large:
            return "largest_block_bytes is above 1 GiB or 2^24 frames";
        case GeometryFault::capacity_zero:
            return "capacity_bytes is 0";
        case GeometryFault::capacity_not_whole_blocks:
            return "capacity_bytes is not a multiple of largest_block_bytes";
        case GeometryFault::capacity_too_large:
            return "capacity_bytes is above 2^34 frames";
    }
    return "";
}

const char *describe(ObjectsFault fault) {
    switch (fault) {
        case ObjectsFault::none:
            break;
        case ObjectsFault::size_out_of_range:
            return "object_bytes is not within 64 .. 1073741824";
        case ObjectsFault::size_no_multiple:
            return "object_bytes is not a multiple of 64";
        case ObjectsFault::count_zero:
            return "object_count is 0";
        case ObjectsFault::too_many:
            return "object_count is above 2^34";
        case ObjectsFault::too_large:
            return "the objects together are above 2^46 bytes";
    }
    return "";
}

unsigned long long number(std::uint64_t value) {
    return value;
}

// The geometry of an object pool, or -errno with the error remembered.
int object_geometry_of(const numacre_private_options &wanted, Geometry &geometry) {
    if (wanted.frame_bytes != 0 || wanted.largest_block_bytes != 0 || wanted.capacity_bytes != 0)
        return fail_with_remedy(
            Errc::bad_argument,
            "numacre_private_options.object_bytes %llu beside frame_bytes %llu, largest_block_bytes %llu, "
            "capacity_bytes %llu: leave these 0 in an object pool",
            number(wanted.object_bytes), number(wanted.frame_bytes), number(wanted.largest_block_bytes),
            number(wanted.capacity_bytes));
    const ObjectsFault fault = check_objects(wanted.object_bytes, wanted.object_count);
    if (fault != ObjectsFault::none)
        return fail(Errc::bad_argument, "%s (object_bytes %llu, object_count %llu)", describe(fault),
                    number(wanted.object_bytes), number(wanted.object_count));
    const bool coloured = (wanted.flags & NUMACRE_PRIVATE_PLAIN_OBJECTS) == 0;
    geometry = make_object_geometry(object_stride(wanted.object_bytes, coloured), wanted.object_count);
    return 0;
}

int geometry_of(numacre_private_options wanted, Geometry &geometry) {
    const bool has_objects = wanted.object_bytes != 0 || wanted.object_count != 0;
    const unsigned known = kFitFlags | (has_objects ? NUMACRE_PRIVATE_PLAIN_OBJECTS : 0);
    if ((wanted.flags & ~known) != 0 || (wanted.flags & kFitFlags) == kFitFlags)
        return fail(Errc::bad_argument,
                    "numacre_private_options.flags is %#x instead of 0, NUMACRE_PRIVATE_COMPACT or "
                    "NUMACRE_PRIVATE_BEST_FIT, or NUMACRE_PRIVATE_PLAIN_OBJECTS of an object pool",
                    wanted.flags);
    if (has_objects) return object_geometry_of(wanted, geometry);
    if (wanted.frame_bytes == 0) wanted.frame_bytes = kDefaultFrame;
    if (wanted.capacity_bytes == 0) wanted.capacity_bytes = kDefaultCapacity;
    if (wanted.largest_block_bytes == 0) {
        wanted.largest_block_bytes = kDefaultLargest;
        while (wanted.largest_block_bytes > wanted.frame_bytes &&
               wanted.capacity_bytes % wanted.largest_block_bytes != 0)
            wanted.largest_block_bytes /= 2;
    }
    const GeometryFault fault = check_geometry(wanted.frame_bytes, wanted.largest_block_bytes, wanted.capacity_bytes);
    if (fault != GeometryFault::none)
        return fail(Errc::bad_argument, "%s (frame %llu, largest block %llu, capacity %llu bytes)", describe(fault),
                    number(wanted.frame_bytes), number(wanted.largest_block_bytes), number(wanted.capacity_bytes));
    geometry = make_geometry(wanted.frame_bytes, wanted.largest_block_bytes, wanted.capacity_bytes);
    return 0;
}

void *reserve_zeroed(std::uint64_t bytes) {
    void *const memory = reserve_addresses(bytes, kHugepageBytes);
    if (memory == nullptr) return nullptr;
    if (mprotect(memory, bytes, PROT_READ | PROT_WRITE) != 0) {
        munmap(memory, bytes);
        return nullptr;
    }
    madvise(memory, bytes, MADV_DONTFORK);
    return memory;
}

// Puts the index of a large pool into hugepages, where the system allows them: random accesses then miss the TLB less.
// The tables of threads stay in small pages, since most of these tables are never touched.
void prefer_hugepages_for_index(const NodeHandle &node, const Geometry &geometry) {
    const auto layout = NodeLayout<Env>::of(geometry, kThreadSlots);
    const std::uint64_t begin = round_up(layout.leaf, kHugepageBytes);
    const std::uint64_t end = layout.region_bytes / kHugepageBytes * kHugepageBytes;
    if (begin < end) madvise(static_cast<std::byte *>(node.node_region) + begin, end - begin, MADV_HUGEPAGE);
}

// Where the largest block lies in a leaf word, as an object does, the call writes the entries of all frames. The kernel
// would refuse none of that memory, and then end some process.
int check_touched_metadata(const Geometry &geometry) {
    struct sysinfo machine{};
    if (geometry.top_layer() != 0 || sysinfo(&machine) != 0) return 0;
    const std::uint64_t bytes = geometry.frame_count * sizeof(std::uint64_t);
    const std::uint64_t left = (std::uint64_t{machine.freeram} + machine.bufferram) * machine.mem_unit;
    const std::uint64_t all = std::uint64_t{machine.totalram} * machine.mem_unit;
    if (bytes <= left || bytes <= all / 4) return 0;
    return fail_with_remedy(Errc::out_of_frames,
                            "the metadata of %llu objects or frames takes %llu MiB, and the machine has %llu MiB free: "
                            "ask for fewer, or for larger ones",
                            number(geometry.frame_count), number(bytes >> 20), number(left >> 20));
}

int build(numacre_pool *pool) {
    if (const int error = read_checks(pool)) return error;
    if (const int error = share_caches(pool)) return error;
    pool->numa_nodes = 1;
    pool->process = kOnlyProcess;
    constexpr std::uint32_t processes = kOnlyProcess.value + 1 + kChannels;
    pool->pool_region_bytes = PoolLayout<Env>::of(processes, kThreadSlots).region_bytes;
    pool->pool_region = reserve_zeroed(pool->pool_region_bytes);
    NodeHandle &node = pool->nodes[0];
    node.node_region_bytes = NodeLayout<Env>::of(pool->geometry, kThreadSlots).region_bytes;
    if (const int error = check_touched_metadata(pool->geometry)) return error;
    node.node_region = reserve_zeroed(node.node_region_bytes);
    if (pool->pool_region == nullptr || node.node_region == nullptr)
        return fail_without_memory("no memory for the metadata of a private pool: %s", strerror(errno));
    prefer_hugepages_for_index(node, pool->geometry);
    if (const int error = reserve_span(pool, kPageBytes)) return error;
    if (mprotect(pool->span, pool->data_bytes, PROT_READ | PROT_WRITE) != 0)
        return fail_without_memory("no %llu bytes for a private pool: %s",
                                   static_cast<unsigned long long>(pool->data_bytes), strerror(errno));
    madvise(pool->span, pool->data_bytes, MADV_DONTFORK);
    node.data = pool->span;
    node.backing = wire::Backing::private_memory;

    format_pool_region<Env>(pool->pool_region, "private", pool->serial, pool->geometry, 1, processes, kThreadSlots);
    format_node_region<Env>(node.node_region, pool->geometry, NumaNode{0}, pool->serial, kThreadSlots);
    pool->view = PoolView<Env>::at(pool->pool_region, processes, kThreadSlots);
    pool->thread_limit = &pool->view.processes[pool->process.value].thread_limit;
    pool->view.processes[kOnlyProcess.value].state.store(static_cast<std::uint64_t>(ProcessState::active));
    new (node.buddy_storage) Buddy<Env>(
        NodeView<Env>::at(node.node_region, pool->geometry, NumaNode{0}, kThreadSlots, 1, pool->serial), pool->view);
    pool->reference_format = node.buddy().view().reference_format;
    Chunks<Env> chunks{node.buddy().view(), pool->view};
    for (std::uint64_t chunk = 0; chunk < pool->geometry.chunk_count(); ++chunk) chunks.bring_online(chunk);
    return 0;
}

}  // namespace

static_assert(NUMACRE_PRIVATE_COMPACT == static_cast<unsigned>(Fit::compact) &&
              NUMACRE_PRIVATE_BEST_FIT == static_cast<unsigned>(Fit::best));

extern "C" int numacre_open_private(const numacre_private_options *options, numacre_pool **pool) {
    if (pool == nullptr) return fail(Errc::bad_argument, "numacre_open_private: the result pointer is NULL");
    numacre_private_options wanted{};
    if (options != nullptr)
        if (const int error = read_options(*options, "numacre_private_options", wanted)) return error;
    Geometry geometry;
    if (const int error = geometry_of(wanted, geometry)) return error;
    const NotCancelled not_cancelled;
    if (const int error = start_recording()) return error;
    numacre_pool *const handle = new_handle();
    if (handle == nullptr) return fail_without_memory("no memory for a pool handle");
    handle->set_geometry(geometry);
    if (!register_handle(handle)) {
        release_handle(handle);
        return fail_with_remedy(
            Errc::too_many_clients,
            "this process has too many pools open, or no memory or thread-specific key (PTHREAD_KEYS_MAX) for one "
            "more: detach from one");
    }
    if (const int error = build(handle)) {
        unregister_handle(handle);
        unmap_regions(handle);
        release_handle(handle);
        return error;
    }
    // relaxed: no other thread has the pool yet.
    handle->view.header->accounting.store(accounting_of(static_cast<Fit>(wanted.flags & kFitFlags)),
                                          std::memory_order_relaxed);
    *pool = handle;
    return 0;
}
