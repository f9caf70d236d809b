// Mempool memory out of a pool of numacre: external heaps of EAL and pinned external buffers.
#include <pthread.h>
#include <rte_errno.h>
#include <rte_malloc.h>
#include <rte_mbuf.h>
#include <rte_memory.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "driver.hpp"
#include "rte_mempool_numacre.h"

namespace numacre::dpdk {
namespace {

constexpr std::size_t kPiece = std::size_t{2} << 20;  // sizes of heap memory are multiples of it

pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
// By World::areas: this process has mapped, pinned and told EAL of the memory.
struct Mapped {
    numacre_pool *pool;  // nullptr: not mapped
    bool is_pinned;
    bool is_added;
};
Mapped mapped[kMaxAreas];

// The pools whose memory the heaps have; the first without a name ends them.
struct Handle {
    char name[kNameBytes];
    numacre_pool *pool;
};
Handle handles[kMaxAreas];

class Locked {
public:
    Locked() { pthread_mutex_lock(&mutex); }
    ~Locked() { pthread_mutex_unlock(&mutex); }
    Locked(const Locked &) = delete;
    Locked &operator=(const Locked &) = delete;
};

// The I/O addresses of the pages of a range; in memory of malloc().
class IoAddresses {
public:
    IoAddresses(char *begin, std::size_t bytes, std::size_t page) : count_(bytes / page) {
        at_ = static_cast<rte_iova_t *>(std::calloc(count_, sizeof *at_));
        if (at_ == nullptr) {
            error_ = -ENOMEM;
            return;
        }
        for (std::size_t i = 0; i < count_; ++i) {
            char *const address = begin + i * page;
            // The kernel tells the physical address of a page that this process has touched.
            (void)*static_cast<volatile char *>(address);
            at_[i] = rte_eal_iova_mode() == RTE_IOVA_VA ? reinterpret_cast<std::uintptr_t>(address)
                                                        : rte_mem_virt2phy(address);
            if (at_[i] == RTE_BAD_IOVA) error_ = -ENOTSUP;
        }
    }
    ~IoAddresses() { std::free(at_); }
    IoAddresses(const IoAddresses &) = delete;
    IoAddresses &operator=(const IoAddresses &) = delete;
    int error() const { return error_; }
    rte_iova_t *at() const { return at_; }
    unsigned count() const { return static_cast<unsigned>(count_); }

private:
    std::size_t count_;
    rte_iova_t *at_ = nullptr;
    int error_ = 0;
};

std::size_t page_of(numacre_pool *pool) {
    // With virtual I/O addresses all pages are one piece for a device.
    if (rte_eal_iova_mode() == RTE_IOVA_VA) return kPiece;
    numacre_pool_info info{};
    info.struct_size = sizeof info;
    if (numacre_get_info(pool, &info) == 0 &&
        (info.backing == NUMACRE_BACKING_HUGETLB || info.backing == NUMACRE_BACKING_HUGETLB_1G))
        return kPiece;
    return static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

int say(int error, const char *what) {
    NUMACRE_LOG(ERR, "%s: %s\n", what, numacre_last_error());
    return error;
}

// This process's handle of a pool, as a member of the world: what it owns outlives it. nullptr: the log says why, and
// `error` is -errno.
numacre_pool *handle_of(const char *name, const World &all, int &error) {
    Handle *handle = handles;
    while (handle < std::end(handles) && handle->name[0] != '\0' && std::strcmp(handle->name, name) != 0) ++handle;
    if (handle == std::end(handles)) {
        NUMACRE_LOG(ERR, "mempool memory comes from %u pools, the most: pool %s is one too many\n", kMaxAreas, name);
        error = -ENOSPC;
        return nullptr;
    }
    if (handle->pool != nullptr) return handle->pool;
    numacre_pool *pool = nullptr;
    error = attach_somewhere(runtime_dir(), name, &pool);
    if (error == 0) error = numacre_join(pool, all.group.load(std::memory_order_acquire));
    if (error != 0) {
        NUMACRE_LOG(ERR, "no mempool memory: %s\n", numacre_last_error());
        numacre_detach(pool);
        return nullptr;
    }
    std::snprintf(handle->name, sizeof handle->name, "%s", name);
    handle->pool = pool;
    return pool;
}

// A run that is pinned and stays with the world. Returns 0 or -errno, with a line in the log.
int take_run(numacre_pool *pool, int numa_node, std::size_t bytes, char **run, int *pin) {
    void *memory = nullptr;
    if (const int error = numacre_alloc_run(pool, numa_node, bytes, kPiece, &memory))
        return say(error, "no memory for mempools");
    if (const int error = numacre_pin(pool, memory, bytes, pin)) {
        const int result = say(error, "cannot pin mempool memory");
        numacre_free_run(pool, memory, bytes);
        return result;
    }
    *run = static_cast<char *>(memory);
    return 0;
}

int no_io_addresses(std::size_t page) {
    NUMACRE_LOG(
        ERR,
        "EAL uses physical addresses (--iova-mode=pa), and the kernel does not tell those of numacre's %zu-byte "
        "pages: start with --iova-mode=va\n",
        page);
    return -ENOTSUP;
}

int socket_of(const char *heap_name) {
    const int socket = rte_malloc_heap_get_socket(heap_name);
    if (socket >= 0) {
        if (rte_malloc_heap_socket_is_external(socket) == 1) return socket;
        NUMACRE_LOG(ERR, "heap %s is not external: choose another name\n", heap_name);
        return -EEXIST;
    }
    if (rte_malloc_heap_create(heap_name) != 0) {
        NUMACRE_LOG(ERR, "cannot make heap %s: %s\n", heap_name, rte_strerror(rte_errno));
        return -rte_errno;
    }
    return rte_malloc_heap_get_socket(heap_name);
}

// Memory for a heap (heap_name "": external memory outside of heaps), and its number among World::areas.
struct Memory {
    Area *area;
    std::uint32_t number;
    numacre_pool *pool;
    char *begin;
    std::size_t bytes, page;
    int pin;
};

// nullptr: there is none.
Area *claim_area(World &all) {
    for (Area &area : all.areas) {
        std::uint32_t before = Area::free;
        if (area.state.compare_exchange_strong(before, Area::claimed, std::memory_order_acq_rel)) return &area;
    }
    NUMACRE_LOG(ERR, "heaps and external buffers have %u pieces of memory, the most: add larger ones\n", kMaxAreas);
    return nullptr;
}

// Lets other processes map the memory, before EAL has it and others get objects there. Returns 0 or -errno, with a line
// in the log.
int describe(const Memory &memory, const char *pool_name, const char *heap_name) {
    Area &area = *memory.area;
    std::size_t region_bytes = 0;
    if (const int error = numacre_region(memory.pool, 0, &area.region, &region_bytes))
        return say(error, "no memory for mempools");
    std::snprintf(area.runtime_dir, sizeof area.runtime_dir, "%s", runtime_dir());
    std::snprintf(area.pool_name, sizeof area.pool_name, "%s", pool_name);
    std::snprintf(area.heap_name, sizeof area.heap_name, "%s", heap_name);
    area.begin = memory.begin;
    area.bytes = memory.bytes;
    mapped[memory.number] = {memory.pool, true, true};
    area.state.store(Area::described, std::memory_order_release);
    return 0;
}

// The end of what take_memory() has begun. `error` of giving the memory to EAL: 0 keeps it. Returns `error`.
int keep_memory(const Memory &memory, int error) {
    if (error == 0) {
        memory.area->state.store(Area::added, std::memory_order_release);
        return 0;  // the pin stays, as long as this process
    }
    mapped[memory.number] = {};
    memory.area->state.store(Area::dropped, std::memory_order_release);
    numacre_unpin(memory.pool, memory.pin);
    numacre_free_run(memory.pool, memory.begin, memory.bytes);
    return error;
}

// Returns 0 or -errno, with a line in the log. With the lock.
int take_memory(const char *pool_name, const char *heap_name, int numa_node, std::size_t size_bytes, Memory &memory) {
    World *const all = world();
    if (all == nullptr) return -ENOMEM;
    int error = 0;
    memory.pool = handle_of(pool_name, *all, error);
    if (memory.pool == nullptr) return error;
    memory.bytes = RTE_ALIGN_CEIL(size_bytes, kPiece);
    memory.page = page_of(memory.pool);
    error = take_run(memory.pool, numa_node, memory.bytes, &memory.begin, &memory.pin);
    if (error != 0) return error;
    memory.area = claim_area(*all);
    if (memory.area == nullptr) {
        numacre_unpin(memory.pool, memory.pin);
        numacre_free_run(memory.pool, memory.begin, memory.bytes);
        return -ENOSPC;
    }
    memory.number = static_cast<std::uint32_t>(memory.area - all->areas);
    error = describe(memory, pool_name, heap_name);
    return error == 0 ? 0 : keep_memory(memory, error);
}

int add_to_heap(const char *heap_name, const char *pool_name, int numa_node, std::size_t size_bytes) {
    watch_forks();
    const Locked locked;
    const int socket = socket_of(heap_name);
    if (socket < 0) return socket;
    Memory memory{};
    if (const int error = take_memory(pool_name, heap_name, numa_node, size_bytes, memory)) return error;
    const IoAddresses addresses(memory.begin, memory.bytes, memory.page);
    int error = addresses.error();
    if (error == -ENOTSUP) error = no_io_addresses(memory.page);
    if (error == 0 && rte_malloc_heap_memory_add(heap_name, memory.begin, memory.bytes, addresses.at(),
                                                 addresses.count(), memory.page) != 0) {
        error = -rte_errno;
        NUMACRE_LOG(ERR, "heap %s does not take memory: %s\n", heap_name, rte_strerror(rte_errno));
    }
    error = keep_memory(memory, error);
    return error == 0 ? socket : error;
}

int make_extmem(const char *pool_name, int numa_node, std::uint16_t element_bytes, std::uint32_t count,
                rte_pktmbuf_extmem &extmem) {
    watch_forks();
    const Locked locked;
    Memory memory{};
    if (const int error = take_memory(pool_name, "", numa_node, std::size_t{element_bytes} * count, memory))
        return error;
    const IoAddresses addresses(memory.begin, memory.bytes, memory.page);
    int error = addresses.error();
    // A piece for external buffers is one piece for a device, too.
    if (error == -ENOTSUP || (error == 0 && rte_eal_iova_mode() != RTE_IOVA_VA)) error = no_io_addresses(memory.page);
    if (error == 0 &&
        rte_extmem_register(memory.begin, memory.bytes, addresses.at(), addresses.count(), memory.page) != 0) {
        error = -rte_errno;
        NUMACRE_LOG(ERR, "EAL does not register memory: %s\n", rte_strerror(rte_errno));
    }
    if (error == 0) extmem = {memory.begin, addresses.at()[0], memory.bytes, element_bytes};
    return keep_memory(memory, error);
}

// This process's handle of the pool that has the area, mapped where the world has it. nullptr: the log says why, and
// `error` is -errno.
numacre_pool *map_area(const World &all, const Area &area, int &error) {
    for (std::uint32_t i = 0; i < kMaxAreas; ++i)
        if (mapped[i].pool != nullptr && all.areas[i].region == area.region) return mapped[i].pool;
    numacre_attach_options options{};
    options.struct_size = sizeof options;
    options.runtime_dir = area.runtime_dir;
    options.pool_name = area.pool_name;
    options.address = area.region;
    numacre_pool *pool = nullptr;
    error = numacre_attach_with(&options, &pool);
    if (error == 0) error = numacre_join(pool, all.group.load(std::memory_order_acquire));
    if (error == 0) return pool;
    NUMACRE_LOG(ERR, "mempool memory of pool %s at %p: %s\n", area.pool_name, area.region, numacre_last_error());
    numacre_detach(pool);
    return nullptr;
}

// Returns 0 or -errno, with a line in the log.
int attach_area(const World &all, const Area &area, std::uint32_t state, Mapped &here) {
    int error = 0;
    if (here.pool == nullptr) here.pool = map_area(all, area, error);
    if (here.pool == nullptr) return error;
    if (state != Area::added) return 0;
    if (!here.is_pinned) {
        int pin = -1;  // as long as this process: a device may have been told of the memory here
        error = numacre_pin(here.pool, area.begin, area.bytes, &pin);
        if (error != 0) return say(error, "cannot pin mempool memory");
        here.is_pinned = true;
    }
    if (here.is_added) return 0;
    const int result = area.heap_name[0] == '\0'
                           ? rte_extmem_attach(area.begin, area.bytes)
                           : rte_malloc_heap_memory_attach(area.heap_name, area.begin, area.bytes);
    if (result != 0) {
        NUMACRE_LOG(ERR, "EAL does not take memory at %p: %s\n", area.begin, rte_strerror(rte_errno));
        return -rte_errno;
    }
    here.is_added = true;
    return 0;
}

}  // namespace

// Below where the kernel maps libraries, above EAL's memory.
int attach_somewhere(const char *runtime_dir, const char *name, numacre_pool **pool) {
    constexpr std::uintptr_t kFirst = std::uintptr_t{0x20} << 40, kStep = std::uintptr_t{1} << 40;
    constexpr unsigned kTries = 16;
    numacre_attach_options options{};
    options.struct_size = sizeof options;
    options.runtime_dir = runtime_dir;
    options.pool_name = name;
    int error = -EEXIST;
    for (unsigned i = 0; i < kTries && (error == -EEXIST || error == -ENOMEM); ++i) {
        options.address = reinterpret_cast<void *>(kFirst + i * kStep);
        error = numacre_attach_with(&options, pool);
    }
    if (error != -EEXIST && error != -ENOMEM) return error;
    options.address = nullptr;
    return numacre_attach_with(&options, pool);
}

void reset_heaps_after_fork() {
    mutex = PTHREAD_MUTEX_INITIALIZER;
    for (Handle &handle : handles) handle = {};
    // The child inherits EAL's knowledge.
    for (Mapped &here : mapped) here = {nullptr, false, here.is_added};
}

int attach_heaps() {
    World *const all = world();
    if (all == nullptr) return -ENOMEM;
    watch_forks();
    const Locked locked;
    int first_error = 0;
    for (std::uint32_t i = 0; i < kMaxAreas; ++i) {
        const std::uint32_t state = all->areas[i].state.load(std::memory_order_acquire);
        if (state != Area::described && state != Area::added) continue;
        const int error = attach_area(*all, all->areas[i], state, mapped[i]);
        if (first_error == 0) first_error = error;
    }
    return first_error;
}

bool is_mapped(const Shared &shared) {
    const World *const all = world();
    if (all == nullptr) return false;
    const Locked locked;
    for (std::uint32_t i = 0; i < kMaxAreas; ++i) {
        const std::uint32_t state = all->areas[i].state.load(std::memory_order_acquire);
        if ((state != Area::described && state != Area::added) || mapped[i].pool != nullptr) continue;
        const char *const begin = all->areas[i].begin;
        for (const Run *run = shared.runs; run < shared.runs + shared.run_count; ++run)
            if (run->base >= begin && run->base < begin + all->areas[i].bytes) return false;
    }
    return true;
}

int heap_for_mempool(const char *pool_name, std::size_t bytes) {
    constexpr char kHeap[] = "numacre";
    // Room for EAL's headers of a piece of memory, and for alignment.
    constexpr std::size_t kSlack = 256 << 10;
    const int there = rte_malloc_heap_get_socket(kHeap);
    // Another process may have added what has room.
    if (const int error = attach_heaps()) return error;
    rte_malloc_socket_stats stats{};
    if (there >= 0 && rte_malloc_get_socket_stats(there, &stats) == 0 && stats.greatest_free_size >= bytes + kSlack)
        return there;
    return add_to_heap(kHeap, pool_name, -1, bytes + kSlack);
}

}  // namespace numacre::dpdk

using namespace numacre::dpdk;

int rte_mempool_numacre_heap(const char *heap_name, const char *pool_name, int numa_node, size_t size_bytes) {
    if (heap_name == nullptr || *heap_name == '\0' || std::strlen(heap_name) >= kHeapNameBytes || size_bytes == 0) {
        NUMACRE_LOG(ERR, "rte_mempool_numacre_heap: give a heap name of 1 to %zu characters and a size\n",
                    kHeapNameBytes - 1);
        return -EINVAL;
    }
    return add_to_heap(heap_name, pool_name == nullptr ? base_name() : pool_name, numa_node, size_bytes);
}

int rte_mempool_numacre_attach_heaps(void) {
    return attach_heaps();
}

int rte_mempool_numacre_extmem(const char *pool_name, int numa_node, uint16_t element_bytes, uint32_t count,
                               rte_pktmbuf_extmem *extmem) {
    if (extmem == nullptr || count == 0 || element_bytes == 0 || element_bytes % RTE_CACHE_LINE_SIZE != 0) {
        NUMACRE_LOG(ERR,
                    "rte_mempool_numacre_extmem: %u buffers of %u bytes: give a multiple of %d bytes, and a count\n",
                    count, element_bytes, RTE_CACHE_LINE_SIZE);
        return -EINVAL;
    }
    return make_extmem(pool_name == nullptr ? base_name() : pool_name, numa_node, element_bytes, count, *extmem);
}
