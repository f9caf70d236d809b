// The calls of rte_mempool_numacre.h that concern objects.
#include "rte_mempool_numacre.h"

#include <algorithm>
#include <cerrno>
#include <string_view>

#include "driver.hpp"

namespace numacre::dpdk {
namespace {

// nullptr: no mempool of this driver, or this process cannot attach to its pool.
Shared *shared_of(rte_mempool *mempool) {
    if (mempool == nullptr || mempool->pool_data == nullptr ||
        std::string_view(rte_mempool_get_ops(mempool->ops_index)->name) != "numacre") {
        NUMACRE_LOG(ERR, "mempool %s is none of the driver numacre\n", mempool == nullptr ? "NULL" : mempool->name);
        return nullptr;
    }
    return static_cast<Shared *>(mempool->pool_data);
}

Local *local_of(Shared *shared) {
    if (shared == nullptr) return nullptr;
    Local *const local = locals[shared->slot].load(std::memory_order_acquire);
    return local != nullptr && local->id == shared->id ? local : enter(shared);
}

}  // namespace
}  // namespace numacre::dpdk

using namespace numacre::dpdk;

int rte_mempool_numacre_give_burst(rte_mempool *mempool, void *const *objects, numacre_ref *refs, unsigned count) {
    Shared *const shared = shared_of(mempool);
    const Local *const local = local_of(shared);
    if (local == nullptr) return -EINVAL;
    for (unsigned done = 0; done < count;) {
        void *tokens[kBatch];
        const unsigned batch = std::min(count - done, kBatch);
        int error = adopt_objects(*shared, *local, objects + done, tokens, batch);
        if (error == 0) error = numacre_ref_bulk(local->pool, tokens, refs + done, batch);
        if (error != 0) {
            NUMACRE_LOG(ERR, "mempool %s: cannot give: %s\n", mempool->name,
                        error == -EINVAL ? "a pointer is none of its objects" : numacre_last_error());
            return error;
        }
        done += batch;
    }
    return 0;
}

int rte_mempool_numacre_take_burst(rte_mempool *mempool, const numacre_ref *refs, void **objects, unsigned count) {
    Shared *const shared = shared_of(mempool);
    const Local *const local = local_of(shared);
    if (local == nullptr) return -EINVAL;
    int taken = 0;
    (void)numacre_take_bulk(local->pool, refs, objects, count);
    for (unsigned i = 0; i < count; ++i) {
        if (objects[i] == nullptr) continue;
        objects[i] = object_of(*shared, static_cast<std::uint64_t>(static_cast<char *>(objects[i]) - local->tokens));
        ++taken;
    }
    return taken;
}

int rte_mempool_numacre_reclaim(rte_mempool *mempool) {
    Shared *const shared = shared_of(mempool);
    const Local *const local = local_of(shared);
    return local == nullptr ? -EINVAL : static_cast<int>(reclaim(*shared, *local));
}
