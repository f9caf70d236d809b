// The data path: objects of a mempool to tokens of an object pool and back. The owner of a token owns the object.
#include <rte_lcore.h>
#include <rte_memcpy.h>

#include <algorithm>
#include <cerrno>
#include <iterator>

#include "depot.hpp"
#include "driver.hpp"

namespace numacre::dpdk {
namespace {

[[gnu::always_inline]] inline Shared *shared_of(const rte_mempool *mempool) {
    return static_cast<Shared *>(mempool->pool_data);
}

[[gnu::always_inline]] inline Local *local_of(Shared *shared) {
    Local *const local = locals[shared->slot].load(std::memory_order_acquire);
    return local != nullptr && local->id == shared->id ? local : enter(shared);
}

// For a few pointers: no call of memcpy().
[[gnu::always_inline]] inline void copy_pointers(void **to, void *const *from, unsigned n) {
    rte_memcpy(static_cast<void *>(to), static_cast<const void *>(from), n * sizeof(void *));
}

[[gnu::always_inline]] inline void add_taken(LcoreShare &lcore, std::int64_t taken) {
    // relaxed: the word has one writer, and it may be read at any time.
    lcore.taken.store(lcore.taken.load(std::memory_order_relaxed) + taken, std::memory_order_relaxed);
}

[[gnu::always_inline]] inline void count(Shared &shared, std::int64_t taken) {
    const unsigned lcore = rte_lcore_id();
    if (lcore < RTE_MAX_LCORE && !is_child) [[likely]] {  // a child of fork() has its parent's lcores
        add_taken(shared.lcores[lcore], taken);
    } else {
        shared.lcores[RTE_MAX_LCORE].taken.fetch_add(taken, std::memory_order_relaxed);
    }
}

[[gnu::always_inline]] inline void to_objects(const Shared &shared, const Local &local, void **table, unsigned n) {
    const char *const tokens = local.tokens;
    if (shared.run_count == 1) [[likely]] {
        char *const base = shared.run.base;
        const std::uint64_t stride = shared.run.stride;
        for (unsigned i = 0; i < n; ++i)
            table[i] = base + static_cast<std::uint64_t>(static_cast<char *>(table[i]) - tokens) / kTokenBytes * stride;
    } else {
        for (unsigned i = 0; i < n; ++i)
            table[i] = object_of(shared, static_cast<std::uint64_t>(static_cast<char *>(table[i]) - tokens));
    }
}

// False: some pointer is none of the mempool's objects.
[[gnu::always_inline]] inline bool to_tokens(const Shared &shared, const Local &local, void *const *objects,
                                             void **tokens, unsigned n) {
    char *const first = local.tokens;
    std::uint64_t worst = 0;
    if (shared.run_count == 1) [[likely]] {
        const Run run = shared.run;
        const std::uint64_t end = std::uint64_t{run.count} * kTokenBytes;
        for (unsigned i = 0; i < n; ++i) {
            const std::uint64_t offset = run.offset_in_run(objects[i]);
            worst |= static_cast<std::uint64_t>(offset >= end) | (offset % kTokenBytes);
            tokens[i] = first + offset;
        }
    } else {
        for (unsigned i = 0; i < n; ++i) {
            const std::uint64_t offset = token_offset_of(shared, objects[i]);
            worst |= static_cast<std::uint64_t>(offset == kNoToken);
            tokens[i] = first + offset;
        }
    }
    return worst == 0;
}

// Past the cache of numacre's that the thread has: the stash is the cache, and an object in a cache would be out of
// other lcores' reach. Returns the first error, which says that the object is not freed.
int free_past_cache(numacre_pool *pool, void *const *tokens, unsigned n) {
    int first_error = 0;
    for (unsigned i = 0; i < n; ++i) {
        const int error = numacre_free_uncached(pool, tokens[i]);
        if (first_error == 0) first_error = error;
    }
    return first_error;
}

// Objects may be another process's, dead or alive; what is ours already stays as it is. The cache of numacre's takes
// them: other processes reach what is in it, and it does not outlive this process.
int adopt_and_free(numacre_pool *pool, void *const *tokens, unsigned n) {
    const int error = numacre_adopt_bulk(pool, tokens, n);
    if (error == -ECHILD) return error;
    const int freed = numacre_free_bulk(pool, tokens, n);
    return error != 0 ? error : freed;
}

// Frees tokens that the caller has, whichever process of the world has taken them. Returns the number of those freed.
unsigned free_tokens(Shared &shared, const Local *&local, void **tokens, unsigned n) {
    int error = 0;
    for (int attempt = 0; attempt < 2; ++attempt) {
        // Frees what it can, also after an error: a second attempt might free an object's next use.
        error = shared.is_shared.load(std::memory_order_acquire) != 0 ? adopt_and_free(local->pool, tokens, n)
                                                                      : free_past_cache(local->pool, tokens, n);
        if (error != -ECHILD) break;
        const char *const before = local->tokens;
        local = enter(&shared);  // a child of fork(): its tokens have other addresses
        if (local == nullptr) return 0;
        for (unsigned i = 0; i < n; ++i) tokens[i] = local->tokens + (static_cast<char *>(tokens[i]) - before);
    }
    if (error == 0) [[likely]]
        return n;
    NUMACRE_LOG(ERR, "some of %u objects are not freed (pool %s): %s\n", n, shared.pool_name, numacre_last_error());
    return n - 1;
}

// Begins the steps on the calling lcore's stash. nullptr: there is nothing to end.
[[gnu::always_inline]] inline LcoreShare *enter_stash(Shared &shared, unsigned lcore) {
    if (lcore >= RTE_MAX_LCORE || is_child) [[unlikely]]
        return nullptr;
    LcoreShare &own = shared.lcores[lcore];
    own.inside.store(1, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    // relaxed: whoever revokes makes this processor pass a barrier before it looks at `inside`.
    if (own.is_revoked.load(std::memory_order_relaxed) == 0) [[likely]]
        return &own;
    own.inside.store(0, std::memory_order_release);
    return nullptr;
}
[[gnu::always_inline]] inline void leave_stash(LcoreShare &own) {
    own.inside.store(0, std::memory_order_release);
}

// Puts n objects into the calling lcore's stash: all or none.
[[gnu::always_inline]] inline bool stash_objects(Shared &shared, void *const *objects, unsigned n) {
    LcoreShare *const own = enter_stash(shared, rte_lcore_id());
    if (own == nullptr) [[unlikely]]
        return false;
    const std::uint32_t stashed = own->stashed.load(std::memory_order_relaxed);
    const bool has_room = stashed + n <= own->room;
    if (has_room) [[likely]] {
        copy_pointers(own->stash + stashed, objects, n);
        own->stashed.store(stashed + n, std::memory_order_release);
        add_taken(*own, -static_cast<std::int64_t>(n));
    }
    leave_stash(*own);
    return has_room;
}

// Puts n objects into the depot, by batches. Returns how many it has taken: fewer if it has no room, or if a pointer is
// none of the mempool's objects. Inside.
unsigned put_into_depot(Shared &shared, const Local &local, void *const *objects, unsigned n) {
    // Fewer objects are not worth a batch: there are few.
    constexpr unsigned kLeast = kBatch / 4;
    unsigned done = 0;
    while (n - done >= kLeast) {
        void *tokens[kBatch];
        if (!to_tokens(shared, local, objects + done, tokens, std::min(n - done, kBatch))) break;
        Batch *const batch = pop(shared.depot, shared.depot.empty);
        if (batch == nullptr) break;
        batch->count = std::min(n - done, kBatch);
        copy_pointers(batch->objects, objects + done, batch->count);
        done += batch->count;
        push(shared.depot, shared.depot.full, *batch);
    }
    return done;
}

// Moves objects from the calling lcore's stash into the depot, or into the pool, until at most `keep` are left.
void spill(Shared &shared, const Local &local, unsigned keep) {
    for (;;) {
        LcoreShare *const own = enter_stash(shared, rte_lcore_id());
        if (own == nullptr) return;
        const std::uint32_t stashed = own->stashed.load(std::memory_order_relaxed);
        const unsigned n = stashed <= keep ? 0 : std::min(stashed - keep, kBatch);
        void *objects[kBatch];
        std::copy_n(own->stash + stashed - n, n, objects);
        // release: before the objects are anybody else's.
        own->stashed.store(stashed - n, std::memory_order_release);
        const unsigned in_depot = keep == 0 ? 0 : put_into_depot(shared, local, objects, n);
        leave_stash(*own);
        if (n == 0) return;
        if (in_depot < n) free_objects(shared, local, objects + in_depot, n - in_depot);
    }
}

// The calling lcore's cache. In a child of fork() that may be the cache of an lcore of its parent: nullptr.
rte_mempool_cache *cache_of_lcore(rte_mempool *mempool) {
    const unsigned lcore = rte_lcore_id();
    if (is_child) return nullptr;
    return mempool->cache_size != 0 && lcore < RTE_MAX_LCORE ? &mempool->local_cache[lcore] : nullptr;
}

bool is_shared(const Shared &shared) {
    return shared.is_shared.load(std::memory_order_acquire) != 0;
}

// Returns 0, or -ENOBUFS after which the table is as it was.
int allocate(rte_mempool *mempool, Shared &shared, const Local *local, void **table, unsigned n) {
    int error = numacre_alloc_bulk(local->pool, kTokenBytes, table, n);
    if (error == -ECHILD) [[unlikely]] {  // a child of fork()
        local = enter(&shared);
        if (local == nullptr) return -ENOBUFS;
        error = numacre_alloc_bulk(local->pool, kTokenBytes, table, n);
    }
    if (error != 0) [[unlikely]] {
        if (error != -ENOMEM && error != -EDQUOT)
            NUMACRE_LOG(ERR, "mempool %s gives no object: %s\n", mempool->name, numacre_last_error());
        return -ENOBUFS;
    }
    to_objects(shared, *local, table, n);
    return 0;
}

// Takes n objects past the stash, and from other stashes if the pool has too few.
int allocate_or_reclaim(rte_mempool *mempool, Shared &shared, Local *local, void **table, unsigned n) {
    if (allocate(mempool, shared, local, table, n) == 0) [[likely]]
        return 0;
    const unsigned found = is_shared(shared) ? reclaim_sometimes(shared, *local) : take_stashes(shared, *local);
    return found == 0 ? -ENOBUFS : allocate(mempool, shared, local, table, n);
}

// Takes n objects: batches out of the depot, and out of the pool what these lack. The rest of the last batch goes into
// the stash, if there is one, and back into the depot otherwise. False: the depot has nothing, or the pool too little,
// and the table is as it was. Inside.
bool take_from_depot(rte_mempool *mempool, Shared &shared, const Local *local, LcoreShare &own, void **table,
                     unsigned n) {
    constexpr unsigned kMost = 16;  // the lcore cache wants 1024 objects at most
    Depot &depot = shared.depot;
    Batch *batches[kMost];
    unsigned batch_count = 0, there = 0;
    while (there < n && batch_count < kMost) {
        Batch *const batch = pop(depot, depot.full);
        if (batch == nullptr) break;
        batches[batch_count++] = batch;
        there += batch->count;
    }
    if (batch_count == 0) return false;
    const unsigned taken = std::min(there, n);
    const bool is_whole = taken == n || allocate(mempool, shared, local, table + taken, n - taken) == 0;
    unsigned at = 0;
    for (unsigned i = 0; i < batch_count; ++i) {
        Batch &batch = *batches[i];
        if (is_whole) {
            const unsigned part = std::min(batch.count, taken - at);
            batch.count -= part;
            copy_pointers(table + at, batch.objects + batch.count, part);
            at += part;
            const std::uint32_t stashed = own.stashed.load(std::memory_order_relaxed);
            if (batch.count != 0 && stashed + batch.count <= own.room) {
                copy_pointers(own.stash + stashed, batch.objects, batch.count);
                own.stashed.store(stashed + batch.count, std::memory_order_release);
                batch.count = 0;
            }
        }
        push(depot, batch.count == 0 ? depot.empty : depot.full, batch);
    }
    return is_whole;
}

[[gnu::noinline]] int dequeue_past_stash(rte_mempool *mempool, void **table, unsigned n) {
    Shared &shared = *shared_of(mempool);
    Local *const local = local_of(&shared);
    if (local == nullptr) [[unlikely]]
        return -ENOBUFS;
    if (shared.object_bytes != 0) {
        const int error = take_packets(mempool, shared, local, table, n);
        if (error == 0) count(shared, n);
        return error;
    }
    LcoreShare *const own = rte_lcore_id() < RTE_MAX_LCORE ? &shared.lcores[rte_lcore_id()] : nullptr;
    if (is_shared(shared)) {
        if (!local->has_given_up.load(std::memory_order_relaxed)) [[unlikely]]
            give_up_stashes(shared, *local);
        if (rte_mempool_cache *const cache = cache_of_lcore(mempool); cache != nullptr && cache->size != 0) {
            // rte_mempool_get() wants cache->size objects beside those that it was asked for, and reads the size again
            // behind this call.
            if (table == cache->objs && n > cache->size) n -= cache->size;
            forget_lcore_cache(*cache);
        }
        if (allocate_or_reclaim(mempool, shared, local, table, n) != 0) return -ENOBUFS;
        count(shared, n);
        return 0;
    }
    if (has_full(shared.depot))
        if (LcoreShare *const entered = enter_stash(shared, rte_lcore_id())) {
            const bool is_done = take_from_depot(mempool, shared, local, *entered, table, n);
            leave_stash(*entered);
            if (is_done) {
                count(shared, n);
                return 0;
            }
        }
    if (own != nullptr && n <= kStashBurst && mempool->cache_size == 0 &&
        own->is_revoked.load(std::memory_order_relaxed) == 0) {
        // Fills the stash by half, and takes from it once more.
        make_stash(shared, *own);
        void *more[kStashRoom / 2];
        const unsigned wanted = own->room / 2;
        if (wanted >= n && allocate(mempool, shared, local, more, wanted) == 0) {
            std::copy_n(more, n, table);
            if (LcoreShare *const entered = enter_stash(shared, rte_lcore_id())) {
                const std::uint32_t stashed = entered->stashed.load(std::memory_order_relaxed);
                const unsigned rest = std::min(wanted - n, entered->room - stashed);
                std::copy_n(more + n, rest, entered->stash + stashed);
                entered->stashed.store(stashed + rest, std::memory_order_release);
                leave_stash(*entered);
                if (rest < wanted - n) free_objects(shared, *local, more + n + rest, wanted - n - rest);
            } else {
                free_objects(shared, *local, more + n, wanted - n);
            }
            count(shared, n);
            return 0;
        }
    }
    if (allocate(mempool, shared, local, table, n) == 0) {
        count(shared, n);
        return 0;
    }
    // The objects of the own stash count as well.
    if (own != nullptr && own->stashed.load(std::memory_order_relaxed) != 0) spill(shared, *local, 0);
    if (allocate_or_reclaim(mempool, shared, local, table, n) != 0) return -ENOBUFS;
    count(shared, n);
    return 0;
}

int dequeue(rte_mempool *mempool, void **table, unsigned n) {
    Shared &shared = *shared_of(mempool);
    if (n <= kStashBurst) [[likely]] {
        if (LcoreShare *const own = enter_stash(shared, rte_lcore_id())) [[likely]] {
            const std::uint32_t stashed = own->stashed.load(std::memory_order_relaxed);
            const bool has_enough = stashed >= n;
            if (has_enough) [[likely]] {
                copy_pointers(table, own->stash + stashed - n, n);
                own->stashed.store(stashed - n, std::memory_order_release);
                add_taken(*own, n);
            }
            leave_stash(*own);
            if (has_enough) [[likely]]
                return 0;
        }
    }
    return dequeue_past_stash(mempool, table, n);
}

[[gnu::noinline]] int enqueue_past_stash(rte_mempool *mempool, void *const *table, unsigned n) {
    Shared &shared = *shared_of(mempool);
    Local *const local = local_of(&shared);
    if (local == nullptr) [[unlikely]]
        return -EINVAL;
    if (shared.object_bytes != 0) {
        const unsigned put = put_packets(shared, local, table, n);
        count(shared, -static_cast<std::int64_t>(put));
        return put == n ? 0 : -EINVAL;
    }
    LcoreShare *const own = rte_lcore_id() < RTE_MAX_LCORE ? &shared.lcores[rte_lcore_id()] : nullptr;
    if (is_shared(shared)) {
        if (!local->has_given_up.load(std::memory_order_relaxed)) [[unlikely]]
            give_up_stashes(shared, *local);
        if (rte_mempool_cache *const cache = cache_of_lcore(mempool)) {
            const bool is_flush = table >= cache->objs && table < cache->objs + std::size(cache->objs);
            if (is_flush) {
                // Before these objects are anybody else's. All callers set the length again behind this call.
                cache->len = std::min(cache->len, static_cast<std::uint32_t>(table - cache->objs));
                // The objects that the caller puts there next come here at its next put.
                forget_lcore_cache(*cache);
            } else if (cache->size != 0 || cache->len != 0) {
                const std::uint32_t length = cache->len;
                forget_lcore_cache(*cache);
                cache->len = 0;
                std::atomic_signal_fence(std::memory_order_seq_cst);
                count(shared, -static_cast<std::int64_t>(free_objects(shared, *local, cache->objs, length)));
            }
        }
    } else if (own != nullptr && n <= kStashBurst && mempool->cache_size == 0 &&
               own->is_revoked.load(std::memory_order_relaxed) == 0) {
        make_stash(shared, *own);
        if (own->stashed.load(std::memory_order_relaxed) + n > own->room && own->room >= 2 * n)
            spill(shared, *local, own->room / 2);
        if (stash_objects(shared, table, n)) return 0;
    }
    unsigned done = 0;
    if (!is_shared(shared))
        if (LcoreShare *const entered = enter_stash(shared, rte_lcore_id())) {
            done = put_into_depot(shared, *local, table, n);
            leave_stash(*entered);
        }
    if (done < n) done += free_objects(shared, *local, table + done, n - done);
    count(shared, -static_cast<std::int64_t>(done));
    return done == n ? 0 : -EINVAL;
}

int enqueue(rte_mempool *mempool, void *const *table, unsigned n) {
    if (n <= kStashBurst && stash_objects(*shared_of(mempool), table, n)) [[likely]]
        return 0;
    return enqueue_past_stash(mempool, table, n);
}

unsigned get_count(const rte_mempool *mempool) {
    const Shared &shared = *shared_of(mempool);
    std::int64_t taken = 0;
    for (const LcoreShare &lcore : shared.lcores) taken += lcore.taken.load(std::memory_order_relaxed);
    const std::int64_t there = shared.object_bytes != 0 ? shared.count : shared.populated_runs_end();
    return static_cast<unsigned>(taken < 0 ? there : taken > there ? 0 : there - taken);
}

int alloc(rte_mempool *mempool) {
    return make_shared(mempool, packet_pool_of(mempool));
}

void free_all(rte_mempool *mempool) {
    Shared *const shared = shared_of(mempool);
    if (shared == nullptr || shared->magic != Shared::kMagic) return;
    mempool->pool_data = nullptr;
    delete_shared(shared);
}

// With virtual I/O addresses, objects may cross pages: they are packed, and lie in one run.
bool packs(const rte_mempool *mempool) {
    return rte_eal_iova_mode() == RTE_IOVA_VA || (mempool->flags & RTE_MEMPOOL_F_NO_IOVA_CONTIG) != 0;
}

ssize_t calc_mem_size(const rte_mempool *mempool, std::uint32_t objects, std::uint32_t page_shift,
                      std::size_t *min_chunk, std::size_t *align) {
    return rte_mempool_op_calc_mem_size_helper(mempool, objects, packs(mempool) ? 0 : page_shift, 0, min_chunk, align);
}

int populate(rte_mempool *mempool, unsigned most, void *address, rte_iova_t iova, std::size_t length,
             rte_mempool_populate_obj_cb_t *callback, void *argument) {
    Shared &shared = *shared_of(mempool);
    if (shared.object_bytes != 0) {
        // The objects are there, and some are other processes': nothing is written into them, and rte_mempool gets no
        // list of them.
        const unsigned there = static_cast<unsigned>(std::min<std::uint64_t>(most, length / shared.object_bytes));
        mempool->populated_size += there;
        return static_cast<int>(there);
    }
    const std::size_t total = mempool->header_size + mempool->elt_size + mempool->trailer_size;
    std::size_t page = 0;
    if (const int error = packs(mempool) ? 0 : rte_mempool_get_page_size(mempool, &page)) return error;
    const Local *const local = locals[shared.slot].load(std::memory_order_relaxed);
    if (local == nullptr || local->id != shared.id) {
        NUMACRE_LOG(ERR, "mempool %s is populated by another process than the one that has made it\n", mempool->name);
        return -EPERM;
    }
    char *const begin = static_cast<char *>(address);
    const std::uint32_t first = shared.populated_runs_end();
    std::size_t offset = 0;
    unsigned done = 0;
    for (; done < most; ++done) {
        if (page != 0 && total <= page) {
            char *const at = begin + offset;
            char *const next = RTE_PTR_ALIGN_CEIL(at + 1, page);
            if (at + total > next) offset += static_cast<std::size_t>(next - at);
        }
        if (offset + total > length) break;
        char *const object = begin + offset + mempool->header_size;
        if (!add_object(shared, object, total, done != 0)) {
            NUMACRE_LOG(ERR, "EAL has no memory for the table of mempool %s\n", mempool->name);
            break;
        }
        callback(mempool, argument, object, iova == RTE_BAD_IOVA ? RTE_BAD_IOVA : iova + offset + mempool->header_size);
        offset += total;
    }
    if (done == 0) return 0;
    if (const int error = release_tokens(shared, *local, first, done)) {
        keep_objects(shared, first);
        return error;
    }
    return static_cast<int>(done);
}

int get_info(const rte_mempool *, rte_mempool_info *info) {
    info->contig_block_size = 0;
    return 0;
}

[[gnu::constructor]] void register_ops() {
    rte_mempool_ops ops{};
    constexpr char kName[] = "numacre";
    for (std::size_t i = 0; i < sizeof kName; ++i) ops.name[i] = kName[i];
    ops.alloc = alloc;
    ops.free = free_all;
    ops.enqueue = enqueue;
    ops.dequeue = dequeue;
    ops.get_count = get_count;
    ops.calc_mem_size = calc_mem_size;
    ops.populate = populate;
    ops.get_info = get_info;
    log_type = rte_log_register_type_and_pick_level("pmd.mempool.numacre", RTE_LOG_NOTICE);
    rte_mempool_register_ops(&ops);
}

}  // namespace

int log_type = 0;

void count_taken(Shared &shared, std::int64_t taken) {
    count(shared, taken);
}

unsigned free_objects(Shared &shared, const Local &local, void *const *objects, unsigned n) {
    const Local *now = &local;
    unsigned freed = 0;
    for (unsigned done = 0; done < n;) {
        void *tokens[kBatch];
        const unsigned batch = std::min(n - done, kBatch);
        if (to_tokens(shared, *now, objects + done, tokens, batch)) [[likely]] {
            freed += free_tokens(shared, now, tokens, batch);
        } else {
            for (unsigned i = 0; i < batch; ++i) {
                if (to_tokens(shared, *now, objects + done + i, tokens, 1))
                    freed += free_tokens(shared, now, tokens, 1);
                else
                    NUMACRE_LOG(ERR, "%p is no object of the mempool whose objects %s has\n", objects[done + i],
                                shared.pool_name);
            }
        }
        done += batch;
    }
    return freed;
}

std::size_t bytes_of_objects(const rte_mempool *mempool) {
    std::size_t page = 0, least = 0, align = 0;
    if (!packs(mempool)) page = RTE_PGSIZE_2M;
    const ssize_t bytes = calc_mem_size(mempool, mempool->size,
                                        page == 0 ? 0 : rte_bsf32(static_cast<std::uint32_t>(page)), &least, &align);
    return bytes < 0 ? 0 : static_cast<std::size_t>(bytes);
}

int adopt_objects(Shared &shared, const Local &local, void *const *objects, void **tokens, unsigned n) {
    if (!to_tokens(shared, local, objects, tokens, n)) return -EINVAL;
    return numacre_adopt_bulk(local.pool, tokens, n);
}

}  // namespace numacre::dpdk
