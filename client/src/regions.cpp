// The mapping of a pool into this process.
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <new>

#include "engine.hpp"
#include "errors.hpp"
#include "numacre/os/kernel.hpp"
#include "numacre/shm/presence.hpp"
#include "numacre/shm/validate.hpp"
#include "pool.hpp"

namespace numacre::client {
namespace {

// page_bytes: the largest pages that the file may have. mmap() and mprotect() take whole pages of the file: with larger
// ones they would reach beyond the reserved addresses, over memory of the program.
int check_fd(int fd, std::uint64_t bytes, std::uint64_t page_bytes, const char *what) {
    // Without the seal another process could shorten the file: every access beyond the new end would be a SIGBUS. The
    // seal is checked before the size: from then on the size cannot shrink.
    const int seals = os::get_seals(fd);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0)
        return fail(Errc::corrupt, "the daemon's %s region is not sealed against shrinking", what);
    struct stat status{};
    if (os::fstat(fd, &status) != 0 || static_cast<std::uint64_t>(status.st_size) < bytes)
        return fail(Errc::corrupt, "the daemon's %s region has %lld bytes instead of %llu", what,
                    static_cast<long long>(status.st_size), static_cast<unsigned long long>(bytes));
    struct statfs system{};
    const bool is_known = os::fstatfs(fd, &system) == 0;
    const std::uint64_t of_file =
        system.f_type == HUGETLBFS_MAGIC ? static_cast<std::uint64_t>(system.f_bsize) : kPageBytes;
    if (!is_known || of_file > page_bytes)
        return fail(Errc::corrupt, "the daemon's %s region has pages of %llu bytes instead of %llu", what,
                    static_cast<unsigned long long>(of_file), static_cast<unsigned long long>(page_bytes));
    return 0;
}

// Maps a file without access. In a process that has called mlockall(MCL_FUTURE), mmap() of accessible memory would fill
// in all pages, also offline memory and metadata of the whole capacity.
void *map_closed(void *where, std::uint64_t bytes, int fd) {
    void *const address = os::mmap(where, bytes, PROT_NONE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd, 0);
    if (address == MAP_FAILED) return nullptr;
    // A core dump would contain the blocks of all clients and read each absent page of the capacity, and the process
    // would keep its own blocks until then. Not needed for what follows: an error is left aside.
    (void)os::madvise(address, bytes, MADV_DONTDUMP);
    // A forked child must not work on the pool in the name of this process, least of all after this process's death. If
    // MADV_DONTFORK is refused (by a seccomp filter), the attach fails.
    return os::madvise(address, bytes, MADV_DONTFORK) == 0 ? address : nullptr;
}
bool open_map(void *address, std::uint64_t bytes) {
    return os::mprotect(address, bytes, PROT_READ | PROT_WRITE) == 0;
}

}  // namespace

numacre_pool *new_handle() {
    void *const memory =
        os::mmap(nullptr, sizeof(numacre_pool), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? nullptr : new (memory) numacre_pool;
}

std::uint64_t inode_of(int fd) {
    struct stat status{};
    return os::fstat(fd, &status) == 0 ? status.st_ino : 0;
}

bool is_ours(int fd, std::uint64_t inode) {
    return fd >= 0 && (inode == 0 || inode_of(fd) == inode);
}

void release_handle(numacre_pool *pool) {
    // acq_rel: the last holder sees that all others are done with the handle.
    if (pool->references.fetch_sub(1, std::memory_order_acq_rel) == 1) os::munmap(pool, sizeof(numacre_pool));
}

void *reserve_addresses(std::uint64_t bytes, std::uint64_t alignment) {
    void *const reserved =
        os::mmap(nullptr, bytes + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED) return nullptr;
    const auto begin = reinterpret_cast<std::uintptr_t>(reserved);
    const std::uintptr_t aligned = round_up(begin, alignment);
    if (aligned > begin) os::munmap(reserved, aligned - begin);
    const std::uintptr_t end = round_up(aligned + bytes, kPageBytes);
    if (begin + bytes + alignment > end) os::munmap(reinterpret_cast<void *>(end), begin + bytes + alignment - end);
    return reinterpret_cast<void *>(aligned);
}

namespace {
// Reserves addresses where the program wants them, or fails.
int reserve_wished(numacre_pool *pool, std::uint64_t alignment) {
    std::byte *const wished = pool->wished_span;
    if ((reinterpret_cast<std::uintptr_t>(wished) & (alignment - 1)) != 0)
        return fail_with_remedy(
            Errc::bad_argument,
            "address %p is no multiple of %llu, as this pool's blocks and pages need: use one, or NULL",
            static_cast<void *>(wished), static_cast<unsigned long long>(alignment));
    void *const reserved = os::mmap(wished, pool->span_bytes, PROT_NONE,
                                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    const int error = errno;
    if (reserved == wished) {
        pool->span = wished;
        return 0;
    }
    // A kernel before Linux 4.17 takes the address for a hint.
    if (reserved != MAP_FAILED) os::munmap(reserved, pool->span_bytes);
    if (reserved != MAP_FAILED || error == EEXIST)
        return fail_with_remedy(
            Errc::already_exists,
            "addresses %p .. %p are not all free in this process: use others, or unmap what is there",
            static_cast<void *>(wished), static_cast<void *>(wished + pool->span_bytes));
    return fail_without_memory("cannot reserve %llu bytes of address space at %p: %s",
                               static_cast<unsigned long long>(pool->span_bytes), static_cast<void *>(wished),
                               strerror(error));
}
}  // namespace

int reserve_span(numacre_pool *pool, std::uint64_t page_bytes) {
    // The alignment covers the largest block as well: a block is aligned to its size in every process. (Objects whose
    // size is no power of two are aligned to cache lines.)
    const std::uint64_t chunk_bytes = pool->geometry.chunk_bytes();
    const std::uint64_t block_bytes = std::has_single_bit(chunk_bytes) ? chunk_bytes : kCacheLineBytes;
    const std::uint64_t page_alignment = page_bytes > kHugepageBytes ? page_bytes : kHugepageBytes;
    const std::uint64_t alignment = block_bytes > page_alignment ? block_bytes : page_alignment;
    pool->data_bytes = pool->geometry.capacity_bytes();
    // The stride covers all frames that words of the top layer can name: if a corrupted word offers frames that do not
    // exist, their addresses lie in no other memory.
    const std::uint64_t named_bytes =
        round_up(pool->data_bytes, pool->geometry.bytes_of(std::uint64_t{1} << word_order(pool->geometry.top_layer())));
    const std::uint64_t stride = std::bit_ceil(named_bytes > alignment ? named_bytes : alignment);
    pool->span_shift = static_cast<std::uint32_t>(std::countr_zero(stride));
    pool->span_bytes = stride * pool->numa_nodes;
    if (pool->wished_span != nullptr) {
        if (const int error = reserve_wished(pool, alignment)) return error;
        (void)os::madvise(pool->span, pool->span_bytes, MADV_DONTFORK);
        return 0;
    }
    void *const reserved = reserve_addresses(pool->span_bytes, alignment);
    if (reserved == nullptr)
        return fail_without_memory("no %llu bytes of address space: %s",
                                   static_cast<unsigned long long>(pool->span_bytes), strerror(errno));
    pool->span = static_cast<std::byte *>(reserved);
    // The padding as well: a forked child may want to attach at these addresses. Not needed otherwise: an error is left
    // aside.
    (void)os::madvise(pool->span, pool->span_bytes, MADV_DONTFORK);
    return 0;
}

namespace {
// Maps metadata at an aligned address, so that a hugepage that the daemon made of metadata can be mapped as one.
void *map_metadata(std::uint64_t bytes, int fd) {
    void *const where = reserve_addresses(bytes, kHugepageBytes);
    if (where == nullptr) return nullptr;
    if (map_closed(where, bytes, fd) != nullptr && open_map(where, bytes)) return where;
    os::munmap(where, bytes);
    return nullptr;
}
}  // namespace

int map_regions(numacre_pool *pool, const wire::AttachReply &reply, const int *fds) {
    if (!plausible(reply.geometry) || reply.numa_node_count == 0 || reply.numa_node_count > kMaxNumaNodes ||
        reply.process_slots > kMaxProcessSlots || reply.thread_slots > kMaxThreadSlots || reply.thread_slots < 2 ||
        reply.process_slot >= reply.process_slots)
        return fail(Errc::corrupt, "the daemon's attach reply makes no sense");
    pool->set_geometry(reply.geometry);
    pool->numa_nodes = reply.numa_node_count;
    pool->process = ProcessSlot{reply.process_slot};
    pool->client_id = reply.client_id;
    pool->instance_id = reply.instance_id;

    const std::uint64_t pool_bytes = PoolLayout<Env>::of(reply.process_slots, reply.thread_slots).region_bytes;
    if (const int error = check_fd(fds[0], pool_bytes, kPageBytes, "pool")) return error;
    pool->pool_region = map_metadata(pool_bytes, fds[0]);
    if (pool->pool_region == nullptr) return fail_without_memory("cannot map the pool region: %s", strerror(errno));
    pool->pool_region_bytes = pool_bytes;
    const Errc sound = validate_pool_region<Env>(pool->pool_region, {reply.geometry, reply.instance_id, pool_bytes},
                                                 reply.process_slots, reply.thread_slots);
    if (sound != Errc::ok) return fail(sound, "the pool region's header does not fit the daemon's reply");
    pool->view = PoolView<Env>::at(pool->pool_region, reply.process_slots, reply.thread_slots);
    auto &record = pool->view.processes[pool->process.value];
    pool->thread_limit = &record.thread_limit;

    std::uint64_t page_bytes = kPageBytes;
    for (std::uint32_t node = 0; node < pool->numa_nodes; ++node) {
        const std::uint64_t each = reply.nodes[node].page_bytes;
        // Memory is opened by whole pages. With another page size, open_map() would open addresses beyond the region,
        // over memory of the program.
        if (each != kPageBytes && each != kHugepageBytes && each != kGiganticPageBytes)
            return fail(Errc::corrupt, "the daemon's attach reply says pages of %llu bytes",
                        static_cast<unsigned long long>(each));
        if (each > page_bytes) page_bytes = each;
    }
    if (const int error = reserve_span(pool, page_bytes)) return error;
    open_guard(pool);

    const std::uint64_t node_bytes = NodeLayout<Env>::of(reply.geometry, reply.thread_slots).region_bytes;
    for (auto &dense : pool->dense_node_of) dense = 0;
    for (std::uint32_t node = pool->numa_nodes; node-- > 0;) {
        NodeHandle &handle = pool->nodes[node];
        const NumaNode dense{static_cast<std::uint8_t>(node)};
        const int node_fd = fds[1 + 2 * node];
        const int data_fd = fds[2 + 2 * node];
        if (const int error = check_fd(node_fd, node_bytes, kPageBytes, "metadata")) return error;
        if (const int error = check_fd(data_fd, pool->data_bytes, reply.nodes[node].page_bytes, "data")) return error;
        handle.node_region = map_metadata(node_bytes, node_fd);
        if (handle.node_region == nullptr)
            return fail_without_memory("cannot map the metadata of numa node %u: %s", node, strerror(errno));
        handle.node_region_bytes = node_bytes;
        const Errc node_sound = validate_node_region<Env>(
            handle.node_region, {reply.geometry, reply.instance_id, node_bytes}, dense, reply.thread_slots);
        if (node_sound != Errc::ok) return fail(node_sound, "the header of numa node %u's metadata does not fit", node);
        std::byte *const where = pool->span + (std::uint64_t{node} << pool->span_shift);
        // Whole pages: mprotect() cannot open a part of a hugepage, nor can a part be guarded.
        const std::uint64_t page =
            reply.nodes[node].page_bytes > kPageBytes ? reply.nodes[node].page_bytes : kPageBytes;
        const std::uint64_t mapped_bytes = round_up(pool->data_bytes, page);
        const bool is_mapped = map_closed(where, mapped_bytes, data_fd) != nullptr;
        if (is_mapped) guard_frames(pool, where, mapped_bytes);
        if (!is_mapped || !open_map(where, mapped_bytes))
            return fail_without_memory("cannot map the frames of numa node %u: %s", node, strerror(errno));
        handle.data = where;
        handle.backing = reply.nodes[node].backing;
        handle.os_numa_node = reply.nodes[node].os_numa_node;
        new (handle.buddy_storage)
            Buddy<Env>(NodeView<Env>::at(handle.node_region, reply.geometry, dense, reply.thread_slots,
                                         pool->numa_nodes, reply.instance_id),
                       pool->view);
        pool->reference_format = handle.buddy().view().reference_format;
        if (handle.os_numa_node >= 0 && static_cast<std::size_t>(handle.os_numa_node) < kMaxOsNumaNodes)
            pool->dense_node_of[handle.os_numa_node] = dense.value;
        for (std::uint32_t rank = 0; rank < pool->numa_nodes; ++rank) {
            const std::uint8_t next = reply.nearest[node][rank];
            pool->nearest[node][rank] = next < pool->numa_nodes ? next : static_cast<std::uint8_t>(rank);
        }
    }
    place_other_numa_nodes(pool);
    // The daemon checks its own header. A client that corrupts the header harms only its own pool.
    pool->pool_policy = sound_policy(pool->view.header->policy_mode, pool->view.header->policy_nodes, pool->numa_nodes);
    if (const int error = read_heed(pool)) return error;
    if (const int error = make_choices(pool)) return error;
    // Presence::come() is called last: from here on the daemon assumes that we have everything mapped. Until now the
    // daemon may have given us up.
    if (!Presence::come(record.presence, reply.process_generation))
        return fail_with_remedy(
            Errc::daemon_gone,
            "the daemon has given this client up while it was attaching (it was started anew): attach again");
    pool->process_generation = reply.process_generation;
    return 0;
}

void unmap_regions(numacre_pool *pool) {
    delete_choices(pool);
    if (pool->span != nullptr) os::munmap(pool->span, pool->span_bytes);
    for (std::uint32_t node = 0; node < pool->numa_nodes; ++node)
        if (pool->nodes[node].node_region != nullptr)
            os::munmap(pool->nodes[node].node_region, pool->nodes[node].node_region_bytes);
    // Nothing of the pool is used after this. The daemon need not be running.
    if (pool->process_generation != 0)
        Presence::leave(pool->view.processes[pool->process.value].presence, pool->process_generation);
    pool->process_generation = 0;
    if (pool->pool_region != nullptr) os::munmap(pool->pool_region, pool->pool_region_bytes);
    close_guard(pool);
    close_descriptors(pool);
}

}  // namespace numacre::client
