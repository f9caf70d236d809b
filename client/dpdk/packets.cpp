// Packet mempools (packets.hpp): made and found, and their get and put.
#include "packets.hpp"

#include <pthread.h>
#include <rte_errno.h>
#include <rte_mempool.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "driver.hpp"
#include "rte_mempool_numacre.h"

namespace numacre::dpdk {
namespace {

constexpr std::size_t kBytesBeforeBuffer = kMbufOffset + sizeof(rte_mbuf);

// One mempool is made at a time.
pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;
PacketPool wish{};

class Locked {
public:
    Locked() { pthread_mutex_lock(&making); }
    ~Locked() { pthread_mutex_unlock(&making); }
    Locked(const Locked &) = delete;
    Locked &operator=(const Locked &) = delete;
};

// The wish of rte_mempool_numacre_packets's caller.
struct Request {
    const char *pool_name;
    const char *name;
    std::uint32_t count;  // 0: the object pool is there
    std::uint32_t object_bytes;
};

int say(int error, const Request &request, const char *reason) {
    NUMACRE_LOG(ERR, "no packets %s.%s: %s\n", request.pool_name, request.name, reason);
    return error;
}

// Returns 0 or -errno, with a line in the log.
int attach(const Request &request, PacketPool &packets) {
    std::snprintf(packets.name, sizeof packets.name, "%s.%s", request.pool_name, request.name);
    numacre_pool *base = nullptr, *made = nullptr;
    int error = 0;
    if (request.count != 0) {
        error = numacre_attach(runtime_dir(), request.pool_name, &base);
        if (error != 0) return say(error, request, numacre_last_error());
        error = numacre_objects_open(base, request.name, request.object_bytes, request.count, 0, &made);
    }
    // By an address that the world's other processes are likely to have free.
    if (error == 0) error = attach_somewhere(runtime_dir(), packets.name, &packets.pool);
    if (error != 0) {
        packets.pool = nullptr;
        error = say(error, request, numacre_last_error());
    }
    if (made != nullptr) numacre_detach(made);
    if (base != nullptr) numacre_detach(base);
    return error;
}

// The chunks of a packet mempool are the regions of the object pool. Returns 0 or -errno, with a line in the log.
int add_regions(rte_mempool *mempool, numacre_pool *pool, const Request &request, const numacre_pool_info &info) {
    for (std::uint32_t node = 0; node < info.numa_nodes; ++node) {
        void *region = nullptr;
        std::size_t bytes = 0;
        if (const int error = numacre_region(pool, static_cast<int>(node), &region, &bytes))
            return say(error, request, numacre_last_error());
        const rte_iova_t iova =
            rte_eal_iova_mode() == RTE_IOVA_VA ? reinterpret_cast<std::uintptr_t>(region) : RTE_BAD_IOVA;
        const int there =
            rte_mempool_populate_iova(mempool, static_cast<char *>(region), iova,
                                      std::min<std::size_t>(bytes, info.capacity_bytes), nullptr, nullptr);
        if (there <= 0) return say(there == 0 ? -ENOBUFS : there, request, "rte_mempool does not take the memory");
    }
    return 0;
}

// Makes rte_mempool's part. nullptr: the log says why, and `error` is -errno.
rte_mempool *make_mempool(const Request &request, const char *mempool_name, PacketPool &packets, int &error) {
    numacre_pool_info info{};
    info.struct_size = sizeof info;
    error = numacre_get_info(packets.pool, &info);
    if (error != 0) {
        say(error, request, numacre_last_error());
        return nullptr;
    }
    constexpr std::size_t kLeast = NUMACRE_PACKET_DATA_OFFSET + 64, kMost = kBytesBeforeBuffer + UINT16_MAX;
    if (info.frame_bytes < kLeast || info.frame_bytes > kMost || info.largest_block_bytes != info.frame_bytes) {
        error = -EINVAL;
        NUMACRE_LOG(ERR, "pool %s has blocks of %llu to %llu bytes: packets need objects of %zu to %zu bytes\n",
                    packets.name, static_cast<unsigned long long>(info.frame_bytes),
                    static_cast<unsigned long long>(info.largest_block_bytes), kLeast, kMost);
        return nullptr;
    }
    packets.object_bytes = info.frame_bytes;
    const auto count = static_cast<unsigned>(info.capacity_bytes / info.frame_bytes * info.numa_nodes);
    rte_mempool *const mempool =
        rte_mempool_create_empty(mempool_name, count, static_cast<unsigned>(info.frame_bytes - kMbufOffset), 0,
                                 sizeof(rte_pktmbuf_pool_private), SOCKET_ID_ANY, RTE_MEMPOOL_F_NO_SPREAD);
    if (mempool == nullptr) {
        error = -rte_errno;
        say(error, request, rte_strerror(rte_errno));
        return nullptr;
    }
    // The pool is the mempool's from here on, or closed.
    numacre_pool *const pool = packets.pool;
    rte_pktmbuf_pool_private form{};
    form.mbuf_data_room_size = static_cast<std::uint16_t>(info.frame_bytes - kBytesBeforeBuffer);
    // check_world() has found the driver.
    (void)rte_mempool_set_ops_byname(mempool, "numacre", &packets);
    rte_pktmbuf_pool_init(mempool, &form);
    error = mempool->header_size == kMbufOffset && mempool->trailer_size == 0
                ? add_regions(mempool, pool, request, info)
                : say(-EPROTO, request, "rte_mempool lays its objects out in another way");
    mempool->pool_config = nullptr;
    if (error == 0) return mempool;
    rte_mempool_free(mempool);
    return nullptr;
}

// nullptr: the log says why, and rte_errno is set.
rte_mempool *make_or_find(const Request &request) {
    int error = check_world();
    char name[RTE_MEMPOOL_NAMESIZE];
    if (error == 0 && std::snprintf(name, sizeof name, "np_%s", request.name) >= static_cast<int>(sizeof name))
        error = say(-ENAMETOOLONG, request, "use a name of at most 22 characters");
    rte_mempool *mempool = nullptr;
    if (error == 0) {
        watch_forks();
        const Locked locked;
        mempool = rte_mempool_lookup(name);
        if (mempool != nullptr) {
            char full_name[2 * kNameBytes];
            std::snprintf(full_name, sizeof full_name, "%s.%s", request.pool_name, request.name);
            const auto *const shared = static_cast<const Shared *>(mempool->pool_data);
            if (shared == nullptr || std::string_view(shared->pool_name) != full_name)
                error = say(-EEXIST, request, "the world has packets of this name in another pool");
            else if (numacre_dpdk_pool(mempool) == nullptr)
                error = -ECONNREFUSED;
        } else {
            wish = {};
            error = attach(request, wish);
            if (error == 0) mempool = make_mempool(request, name, wish, error);
            if (wish.pool != nullptr) numacre_detach(wish.pool);
            wish.pool = nullptr;
        }
    }
    if (error == 0) return mempool;
    rte_errno = -error;
    return nullptr;
}

// Calls `step` once more with another handle, in a child of fork(). Returns what it returns.
template <class Step>
int with_handle(Shared &shared, const Local *&local, const Step &step) {
    const int error = step(local->pool);
    if (error != -ECHILD) [[likely]]
        return error;
    local = enter(&shared);
    return local == nullptr ? error : step(local->pool);
}

}  // namespace

PacketPool *packet_pool_of(const rte_mempool *mempool) {
    // Other configurations are some program's, and mean nothing here.
    return mempool->pool_config == &wish ? &wish : nullptr;
}

int take_packets(rte_mempool *mempool, Shared &shared, const Local *local, void **table, unsigned count) {
    const int error = with_handle(
        shared, local, [&](numacre_pool *pool) { return numacre_alloc_bulk(pool, shared.object_bytes, table, count); });
    if (error != 0) [[unlikely]] {
        if (error != -ENOMEM && error != -EDQUOT)
            NUMACRE_LOG(ERR, "mempool %s gives no packet: %s\n", mempool->name, numacre_last_error());
        return -ENOBUFS;
    }
    const MbufForm form = MbufForm::of(mempool);
    for (unsigned i = 0; i < count; ++i) table[i] = begin_mbuf(form, table[i]);
    return 0;
}

unsigned put_packets(Shared &shared, const Local *local, void *const *table, unsigned count) {
    unsigned put = 0;
    for (unsigned done = 0; done < count;) {
        void *blocks[kBatch];
        const unsigned batch = std::min(count - done, kBatch);
        for (unsigned i = 0; i < batch; ++i) blocks[i] = block_of(static_cast<rte_mbuf *>(table[done + i]));
        const bool may_be_others = shared.is_shared.load(std::memory_order_acquire) != 0;
        const int error = with_handle(shared, local, [&](numacre_pool *pool) {
            if (may_be_others)
                if (const int adopted = numacre_adopt_bulk(pool, blocks, batch); adopted == -ECHILD) return adopted;
            return numacre_free_bulk(pool, blocks, batch);
        });
        if (error != 0)
            NUMACRE_LOG(ERR, "some of %u packets are not freed (pool %s): %s\n", batch, shared.pool_name,
                        numacre_last_error());
        put += error == 0 ? batch : batch - 1;
        done += batch;
    }
    return put;
}

}  // namespace numacre::dpdk

using namespace numacre::dpdk;

rte_mempool *rte_mempool_numacre_packets(const char *pool_name, const char *name, unsigned count, unsigned data_bytes) {
    const char *const pool = pool_name == nullptr ? base_name() : pool_name;
    if (name == nullptr || *name == '\0' || (count == 0) != (data_bytes == 0) ||
        data_bytes > UINT16_MAX - RTE_PKTMBUF_HEADROOM) {
        NUMACRE_LOG(ERR,
                    "packets %s.%s, %u of %u bytes: give a name, and a count and at most %u bytes of data for each, or "
                    "0 and 0 for an object pool that is there\n",
                    pool, name == nullptr ? "NULL" : name, count, data_bytes, UINT16_MAX - RTE_PKTMBUF_HEADROOM);
        rte_errno = EINVAL;
        return nullptr;
    }
    const std::size_t object_bytes =
        RTE_ALIGN_CEIL(kBytesBeforeBuffer + RTE_PKTMBUF_HEADROOM + data_bytes, std::size_t{RTE_CACHE_LINE_SIZE});
    return make_or_find({pool, name, count, static_cast<std::uint32_t>(object_bytes)});
}

numacre_pool *numacre_dpdk_pool(rte_mempool *mempool) {
    auto *const shared = static_cast<Shared *>(mempool->pool_data);
    Local *const local = locals[shared->slot].load(std::memory_order_acquire);
    const Local *const here = local != nullptr && local->id == shared->id ? local : enter(shared);
    return here == nullptr ? nullptr : here->pool;
}

bool numacre_dpdk_is_shared(const rte_mempool *mempool) {
    return static_cast<const Shared *>(mempool->pool_data)->is_shared.load(std::memory_order_acquire) != 0;
}

void numacre_dpdk_count(rte_mempool *mempool, std::int64_t taken) {
    count_taken(*static_cast<Shared *>(mempool->pool_data), taken);
}
