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
#include <new>

#include "driver.hpp"
#include "rte_mempool_numacre.h"

namespace numacre::dpdk {
namespace {

constexpr std::size_t kPiece = std::size_t{2} << 20;  // sizes of heap memory are multiples of it

pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
bool is_mapped[kMaxAreas];  // by World::areas: this process has the memory

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

// Attaches at an address that is likely to be free in the other processes as well: below where the kernel maps
// libraries, above EAL's memory.
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

// This process's handle of a pool, as a member of the world: what it owns outlives it. nullptr: the log says why, and
// `error` is -errno.
numacre_pool *handle_of(const char *name, const World &all, int &error) {
    Handle *handle = handles;
    while (handle < handles + kMaxAreas - 1 && handle->name[0] != '\0' && std::strcmp(handle->name, name) != 0)
        ++handle;
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
int take_run(numacre_pool *pool, int numa_node, std::size_t bytes, char **run) {
    void *memory = nullptr;
    if (const int error = numacre_alloc_run(pool, numa_node, bytes, kPiece, &memory))
        return say(error, "no memory for mempools");
    int pin = -1;
    if (const int error = numacre_pin(pool, memory, bytes, &pin)) {
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

// Lets other processes map the memory.
void describe(World &all, std::uint32_t number, numacre_pool *pool, const char *pool_name, const char *heap_name,
              char *begin, std::size_t bytes) {
    Area &area = all.areas[number];
    void *region = nullptr;
    std::size_t region_bytes = 0;
    if (numacre_region(pool, 0, &region, &region_bytes) != 0) return;
    std::snprintf(area.runtime_dir, sizeof area.runtime_dir, "%s", runtime_dir());
    std::snprintf(area.pool_name, sizeof area.pool_name, "%s", pool_name);
    std::snprintf(area.heap_name, sizeof area.heap_name, "%s", heap_name);
    area.region = region;
    area.begin = begin;
    area.bytes = bytes;
    is_mapped[number] = true;
    all.area_count.store(number + 1, std::memory_order_release);
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
    World *all;
    std::uint32_t number;
    numacre_pool *pool;
    char *begin;
    std::size_t bytes, page;
};

// Returns 0 or -errno, with a line in the log. With the lock.
int take_memory(const char *pool_name, int numa_node, std::size_t size_bytes, Memory &memory) {
    memory.all = world();
    if (memory.all == nullptr) return -ENOMEM;
    memory.number = memory.all->area_count.load(std::memory_order_acquire);
    if (memory.number == kMaxAreas) {
        NUMACRE_LOG(ERR, "heaps and external buffers have %u pieces of memory, the most: add larger ones\n", kMaxAreas);
        return -ENOSPC;
    }
    int error = 0;
    memory.pool = handle_of(pool_name, *memory.all, error);
    if (memory.pool == nullptr) return error;
    memory.bytes = RTE_ALIGN_CEIL(size_bytes, kPiece);
    memory.page = page_of(memory.pool);
    return take_run(memory.pool, numa_node, memory.bytes, &memory.begin);
}

// `error` of giving the memory to EAL: 0 keeps it.
int keep_memory(const Memory &memory, const char *pool_name, const char *heap_name, int error) {
    if (error == 0)
        describe(*memory.all, memory.number, memory.pool, pool_name, heap_name, memory.begin, memory.bytes);
    else
        numacre_free_run(memory.pool, memory.begin, memory.bytes);
    return error;
}

int add_to_heap(const char *heap_name, const char *pool_name, int numa_node, std::size_t size_bytes) {
    const Locked locked;
    const int socket = socket_of(heap_name);
    if (socket < 0) return socket;
    Memory memory{};
    if (const int error = take_memory(pool_name, numa_node, size_bytes, memory)) return error;
    const IoAddresses addresses(memory.begin, memory.bytes, memory.page);
    int error = addresses.error();
    if (error == -ENOTSUP) error = no_io_addresses(memory.page);
    if (error == 0 && rte_malloc_heap_memory_add(heap_name, memory.begin, memory.bytes, addresses.at(),
                                                 addresses.count(), memory.page) != 0) {
        error = -rte_errno;
        NUMACRE_LOG(ERR, "heap %s does not take memory: %s\n", heap_name, rte_strerror(rte_errno));
    }
    error = keep_memory(memory, pool_name, heap_name, error);
    return error == 0 ? socket : error;
}

int make_extmem(const char *pool_name, int numa_node, std::uint16_t element_bytes, std::uint32_t count,
                rte_pktmbuf_extmem &extmem) {
    const Locked locked;
    Memory memory{};
    if (const int error = take_memory(pool_name, numa_node, std::size_t{element_bytes} * count, memory)) return error;
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
    return keep_memory(memory, pool_name, "", error);
}

int map_area(World &all, const Area &area) {
    // One handle for each piece: a piece may come from another pool. The address tells which ones are the same.
    for (std::uint32_t i = 0; i < kMaxAreas; ++i)
        if (is_mapped[i] && all.areas[i].region == area.region) return 0;
    numacre_attach_options options{};
    options.struct_size = sizeof options;
    options.runtime_dir = area.runtime_dir;
    options.pool_name = area.pool_name;
    options.address = area.region;
    numacre_pool *pool = nullptr;
    int error = numacre_attach_with(&options, &pool);
    if (error == 0) error = numacre_join(pool, all.group.load(std::memory_order_acquire));
    if (error != 0) {
        NUMACRE_LOG(ERR, "mempool memory of pool %s at %p: %s\n", area.pool_name, area.region, numacre_last_error());
        numacre_detach(pool);
    }
    return error;
}

}  // namespace

void reset_heaps_after_fork() {
    mutex = PTHREAD_MUTEX_INITIALIZER;
    for (Handle &handle : handles) handle = {};
}

int attach_heaps() {
    World *const all = world();
    if (all == nullptr) return -ENOMEM;
    const Locked locked;
    const std::uint32_t count = std::min(all->area_count.load(std::memory_order_acquire), kMaxAreas);
    for (std::uint32_t i = 0; i < count; ++i) {
        const Area &area = all->areas[i];
        if (is_mapped[i]) continue;
        if (const int error = map_area(*all, area)) return error;
        const int result = area.heap_name[0] == '\0'
                               ? rte_extmem_attach(area.begin, area.bytes)
                               : rte_malloc_heap_memory_attach(area.heap_name, area.begin, area.bytes);
        if (result != 0) {
            NUMACRE_LOG(ERR, "EAL does not take memory at %p: %s\n", area.begin, rte_strerror(rte_errno));
            return -rte_errno;
        }
        is_mapped[i] = true;
    }
    return 0;
}

int heap_for_mempool(const char *pool_name, std::size_t bytes) {
    constexpr char kHeap[] = "numacre";
    // Room for EAL's headers of a piece of memory, and for alignment.
    constexpr std::size_t kSlack = 256 << 10;
    const int there = rte_malloc_heap_get_socket(kHeap);
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
