// The driver's steps at the end of rte_eal_init(), in each process that has loaded it. DPDK 22.11 calls a bus's
// probe() there, and nothing else of a driver without devices. The declarations are those of that version (its header
// is not installed); with other versions, a secondary does all this at its first call instead.
#include <rte_config.h>
#include <rte_debug.h>
#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_lcore.h>
#include <rte_version.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "driver.hpp"

namespace numacre::dpdk {
namespace {

std::uint32_t own_index() {
    for (std::uint32_t i = 0; i < rte_mempool_ops_table.num_ops; ++i)
        if (std::strcmp(rte_mempool_ops_table.ops[i].name, "numacre") == 0) return i;
    return RTE_MEMPOOL_MAX_OPS_IDX;
}

}  // namespace

int check_world() {
    World *const all = world();
    if (all == nullptr) return -ENOMEM;
    const std::uint32_t number = own_index() + 1;
    std::uint32_t there = 0;
    if (all->ops_number.compare_exchange_strong(there, number, std::memory_order_acq_rel) || there == number) return 0;
    NUMACRE_LOG(ERR,
                "mempool driver numacre is number %u in this process and %u in the first one: start all processes with "
                "the same -d options in the same order\n",
                number, there);
    return -EPROTO;
}

#if RTE_VERSION >= RTE_VERSION_NUM(22, 11, 0, 0) && RTE_VERSION < RTE_VERSION_NUM(23, 3, 0, 0)
namespace {

// Called with the list of mempools locked.
void join_mempool(rte_mempool *mempool, void *) {
    auto *const shared = static_cast<Shared *>(mempool->pool_data);
    if (mempool->ops_index != static_cast<std::int32_t>(own_index()) || shared == nullptr) return;
    // From now on objects of a process that dies stay owned, also if this process has not used the mempool yet.
    if (enter(shared) == nullptr) {
        share(*shared);
        NUMACRE_LOG(ERR, "mempool %s: this process has not joined it, and tries again at its first use\n",
                    mempool->name);
    }
    for (unsigned lcore = 0; mempool->cache_size != 0 && lcore < RTE_MAX_LCORE; ++lcore)
        if (rte_lcore_is_enabled(lcore) != 0) take_lcore_cache(*mempool, lcore);
}

// Returns 0 or -errno, with a line in the log.
int join_world() {
    World *const all = world();
    if (all == nullptr) return -ENOMEM;
    // EAL only prints what a bus returns, and goes on: the first use of a mempool would call another driver.
    if (const int error = check_world()) rte_exit(EXIT_FAILURE, "NUMACRE: %s\n", std::strerror(-error));
    if (rte_eal_process_type() != RTE_PROC_SECONDARY) return 0;
    // seq_cst: a process that makes a mempool sees this, or this process sees the mempool.
    all->is_shared.fetch_or(1, std::memory_order_seq_cst);
    const int error = attach_heaps();
    rte_mempool_walk(join_mempool, nullptr);  // also if a heap is not mapped: other mempools have other memory
    return error;
}

struct Bus {
    Bus *next;
    Bus **previous;
    const char *name;
    int (*scan)();
    int (*probe)();
    rte_device *(*find_device)(const rte_device *, int (*)(const rte_device *, const void *), const void *);
    void *plug, *unplug, *parse, *devargs_parse, *dma_map, *dma_unmap;
    int scan_mode;
    void *get_iommu_class, *dev_iterate, *hot_unplug_handler, *sigbus_handler, *cleanup;
};

extern "C" void rte_bus_register(Bus *bus);

constinit Bus bus{
    .next = nullptr,
    .previous = nullptr,
    .name = "numacre",
    .scan = [] { return 0; },
    .probe = [] { return join_world(); },
    .find_device = [](const rte_device *, int (*)(const rte_device *, const void *), const void *) -> rte_device * {
        return nullptr;
    },
    .plug = nullptr,
    .unplug = nullptr,
    .parse = nullptr,
    .devargs_parse = nullptr,
    .dma_map = nullptr,
    .dma_unmap = nullptr,
    .scan_mode = 0,
    .get_iommu_class = nullptr,
    .dev_iterate = nullptr,
    .hot_unplug_handler = nullptr,
    .sigbus_handler = nullptr,
    .cleanup = nullptr,
};

[[gnu::constructor]] void register_hook() {
    rte_bus_register(&bus);
}

}  // namespace
#endif

}  // namespace numacre::dpdk
