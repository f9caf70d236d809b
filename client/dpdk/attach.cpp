// The object pools behind mempools: made by the process that makes the mempool, attached to by the others.
#include <pthread.h>
#include <rte_lcore.h>
#include <rte_malloc.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "driver.hpp"

namespace numacre::dpdk {

std::atomic<Local *> locals[kMaxMempools];
bool is_child = false;

namespace {

// Guards `locals` and `base`; never taken on the data path but for a process's first call.
pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

class Locked {
public:
    Locked() { pthread_mutex_lock(&mutex); }
    ~Locked() { pthread_mutex_unlock(&mutex); }
    Locked(const Locked &) = delete;
    Locked &operator=(const Locked &) = delete;
};

// The pool that lends its access rights to the object pools; this process's handle.
numacre_pool *base = nullptr;

// The last enter() that has failed: the data path must not ask a daemon that is down at each call.
struct Failure {
    std::uint64_t id;  // of the mempool; 0: none
    std::int64_t ms;
};
Failure last_failure{};

// The handles are the parent's, and so are the locks that other threads had.
void begin_child() {
    mutex = PTHREAD_MUTEX_INITIALIZER;
    base = nullptr;
    reset_after_fork();
    reset_heaps_after_fork();
    last_failure = {};
    for (const std::atomic<Local *> &place : locals) {
        Local *const local = place.load(std::memory_order_relaxed);
        if (local == nullptr) continue;
        local->id = 0;
        is_child = true;
    }
}

const char *variable(const char *name, const char *otherwise) {
    const char *const value = secure_getenv(name);
    return value == nullptr || *value == '\0' ? otherwise : value;
}

}  // namespace

const char *runtime_dir() {
    return variable("NUMACRE_RUNTIME_DIR", "/run/numacre");
}
const char *base_name() {
    return variable("NUMACRE_DPDK_POOL", "default");
}

namespace {

void forget_base() {
    numacre_detach(base);
    base = nullptr;
}

// Returns 0 or -errno, with a line in the log.
int attach_base() {
    if (base != nullptr) return 0;
    const int error = numacre_attach(runtime_dir(), base_name(), &base);
    if (error != 0) {
        base = nullptr;
        NUMACRE_LOG(ERR, "no pool for mempools: %s (NUMACRE_RUNTIME_DIR=%s, NUMACRE_DPDK_POOL=%s)\n",
                    numacre_last_error(), runtime_dir(), base_name());
    }
    return error;
}

// Part of a pool's name: what is left of the mempool's after characters that numacre does not allow, and as much as
// there is room for behind the base pool's name.
void write_pool_name(char (&name)[kNameBytes], const char *mempool_name, std::uint64_t id) {
    constexpr std::size_t kNumber = sizeof "-0123456789abcdef";  // with the terminating 0
    char readable[RTE_MEMPOOL_NAMESIZE];
    const std::size_t used = std::strlen(base_name()) + 1 + kNumber;
    const std::size_t room = used < kNameBytes ? std::min(kNameBytes - used, sizeof readable - 1) : 0;
    std::size_t length = 0;
    for (; mempool_name[length] != '\0' && length < room; ++length) {
        const char c = mempool_name[length];
        const char lower = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
        const bool is_allowed =
            (lower >= 'a' && lower <= 'z') || (lower >= '0' && lower <= '9') || lower == '_' || lower == '-';
        readable[length] = is_allowed ? lower : '_';
    }
    readable[length] = '\0';
    std::snprintf(name, sizeof name, "%s-%016llx", readable, static_cast<unsigned long long>(id));
}

// Returns 0 or -errno, with a line in the log.
int find_tokens(const Shared &shared, Local &local) {
    void *tokens = nullptr;
    std::size_t bytes = 0;
    const int error = numacre_region(local.pool, static_cast<int>(shared.numa_node), &tokens, &bytes);
    if (error != 0) NUMACRE_LOG(ERR, "pool %s: %s\n", shared.pool_name, numacre_last_error());
    local.tokens = static_cast<char *>(tokens);
    return error;
}

void make_robust(pthread_mutex_t &lock) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&lock, &attributes);
    pthread_mutexattr_destroy(&attributes);
}

int join(const Shared &shared, const Local &local) {
    const int error = numacre_join(local.pool, shared.id);
    if (error != 0) NUMACRE_LOG(ERR, "pool %s: %s\n", shared.pool_name, numacre_last_error());
    return error;
}

// Takes the tokens of all numa nodes: those of other numa nodes than shared.numa_node stay taken.
int take_all_tokens(const Shared &shared, const Local &local, std::uint32_t numa_nodes) {
    for (std::uint32_t node = 0; node < numa_nodes; ++node) {
        void *run = nullptr;
        const int error = numacre_alloc_run(local.pool, static_cast<int>(node), shared.count * kTokenBytes, 0, &run);
        if (error != 0) return error;
    }
    return 0;
}

std::uint32_t numa_node_for(int socket_id, std::uint32_t numa_nodes) {
    return socket_id >= 0 && static_cast<std::uint32_t>(socket_id) < numa_nodes ? static_cast<std::uint32_t>(socket_id)
                                                                                : 0;
}

int make_local(rte_mempool *mempool, Shared &shared, Local &local) {
    char name[kNameBytes];
    write_pool_name(name, mempool->name, shared.id);
    std::snprintf(shared.pool_name, sizeof shared.pool_name, "%s.%s", base_name(), name);
    std::snprintf(shared.runtime_dir, sizeof shared.runtime_dir, "%s", runtime_dir());
    int error = numacre_objects_open(base, name, kTokenBytes, shared.count, 0, &local.pool);
    if (error == -ENOENT) {  // the base pool has been deleted: another one may have its name
        forget_base();
        if (const int gone = attach_base()) return gone;
        error = numacre_objects_open(base, name, kTokenBytes, shared.count, 0, &local.pool);
    }
    if (error != 0) {
        local.pool = nullptr;
        NUMACRE_LOG(ERR, "no object pool for mempool %s of %u objects: %s\n", mempool->name, shared.count,
                    numacre_last_error());
        return error;
    }
    numacre_pool_info info{};
    info.struct_size = sizeof info;
    error = numacre_get_info(local.pool, &info);
    if (error == 0) {
        shared.numa_node = numa_node_for(mempool->socket_id, info.numa_nodes);
        if (info.numa_nodes > 1)
            error = numacre_set_policy(local.pool, NUMACRE_POLICY_PREFERRED, std::uint64_t{1} << shared.numa_node);
    }
    if (error == 0) error = take_all_tokens(shared, local, info.numa_nodes);
    if (error != 0) {
        NUMACRE_LOG(ERR, "object pool %s: %s\n", shared.pool_name, numacre_last_error());
        return error;
    }
    if (const int found = find_tokens(shared, local)) return found;
    return join(shared, local);
}

// The blocks of the object pool are the mempool's objects, and free ones are its own.
int make_packets(PacketPool &packets, Shared &shared, Local &local) {
    local.pool = packets.pool;
    packets.pool = nullptr;
    std::snprintf(shared.pool_name, sizeof shared.pool_name, "%s", packets.name);
    std::snprintf(shared.runtime_dir, sizeof shared.runtime_dir, "%s", runtime_dir());
    if (const int error = find_tokens(shared, local)) return error;
    shared.region = local.tokens;
    shared.object_bytes = packets.object_bytes;
    // numacre's cache of each thread is the only one.
    for (LcoreShare &lcore : shared.lcores) lcore.is_revoked.store(LcoreShare::kForEver, std::memory_order_relaxed);
    return join(shared, local);
}

// NUMACRE_DPDK_MOVE=1: the memory of the objects, which EAL is about to reserve, comes from the pool.
int move_memory(rte_mempool *mempool) {
    const char *const said = variable("NUMACRE_DPDK_MOVE", "0");
    if (std::strcmp(said, "0") == 0 || rte_malloc_heap_socket_is_external(mempool->socket_id) == 1) return 0;
    if (std::strcmp(said, "1") != 0) {
        NUMACRE_LOG(ERR, "NUMACRE_DPDK_MOVE=%s: use 1, 0, or do not set it\n", said);
        return -EINVAL;
    }
    const int socket = heap_for_mempool(base_name(), bytes_of_objects(mempool));
    if (socket < 0) return socket;
    mempool->socket_id = socket;
    return 0;
}

}  // namespace

void watch_forks() {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, [] { pthread_atfork(nullptr, nullptr, begin_child); });
}

int make_shared(rte_mempool *mempool, PacketPool *packets) {
    if (const int error = check_world()) return error;
    if (packets == nullptr)
        if (const int error = move_memory(mempool)) return error;
    watch_forks();
    const Locked locked;
    if (packets == nullptr)
        if (const int error = attach_base()) return error;
    World *const all = world();
    if (all == nullptr) return -ENOMEM;
    auto *const shared = static_cast<Shared *>(rte_zmalloc("numacre", sizeof(Shared), RTE_CACHE_LINE_SIZE));
    Local *const local = new (std::nothrow) Local{};
    if (shared == nullptr || local == nullptr) {
        NUMACRE_LOG(ERR, "no memory to describe mempool %s\n", mempool->name);
        rte_free(shared);
        delete local;
        return -ENOMEM;
    }
    const std::uint32_t slot = claim_slot(*all);
    if (slot == kMaxMempools) {
        NUMACRE_LOG(ERR, "there are %u mempools of this driver: free one before you make %s\n", kMaxMempools,
                    mempool->name);
        rte_free(shared);
        delete local;
        return -ENOSPC;
    }
    shared->magic = Shared::kMagic;
    shared->id = random_number();
    make_robust(shared->reclaiming);
    shared->slot = slot;
    shared->count = mempool->size;
    note_lcore_caches(*shared);
    if (packets == nullptr) make_depot(*shared);
    local->id = shared->id;
    if (const int error =
            packets == nullptr ? make_local(mempool, *shared, *local) : make_packets(*packets, *shared, *local)) {
        numacre_detach(local->pool);
        delete local;
        rte_free(shared->depot.batches);
        rte_free(shared);
        release_slot(*all, slot);
        return error;
    }
    if (Local *const old =
            locals[slot].load(std::memory_order_relaxed)) {  // of a mempool that another process has freed
        if (old->id != 0) numacre_detach(old->pool);
        delete old;
    }
    locals[slot].store(local, std::memory_order_release);
    mempool->pool_data = shared;
    // seq_cst, and a store: a process that comes sees this mempool, or this process sees that one.
    if (all->is_shared.fetch_or(0, std::memory_order_seq_cst) != 0) {
        share(*shared);
        for (unsigned i = 0; mempool->cache_size != 0 && i < RTE_MAX_LCORE; ++i)
            forget_lcore_cache(mempool->local_cache[i]);
    }
    return 0;
}

int release_tokens(const Shared &shared, const Local &local, std::uint32_t first, std::uint32_t count) {
    const int error =
        numacre_free_run(local.pool, local.tokens + std::size_t{first} * kTokenBytes, std::size_t{count} * kTokenBytes);
    if (error != 0) NUMACRE_LOG(ERR, "object pool %s: %s\n", shared.pool_name, numacre_last_error());
    return error;
}

namespace {

// nullptr: the log says why. With the lock.
Local *attach_to(Shared &shared) {
    Local *const fresh = new (std::nothrow) Local{};
    if (fresh == nullptr) return nullptr;
    fresh->id = shared.id;
    numacre_attach_options options{};
    options.struct_size = sizeof options;
    options.runtime_dir = shared.runtime_dir;
    options.pool_name = shared.pool_name;
    options.address = shared.region;  // nullptr: any
    if (numacre_attach_with(&options, &fresh->pool) != 0) {
        NUMACRE_LOG(ERR, "cannot attach to a mempool's pool %s: %s\n", shared.pool_name, numacre_last_error());
        delete fresh;
        return nullptr;
    }
    // Before this process owns any object.
    if (find_tokens(shared, *fresh) == 0 && join(shared, *fresh) == 0) return fresh;
    numacre_detach(fresh->pool);
    delete fresh;
    return nullptr;
}

}  // namespace

Local *enter(Shared *shared) {
    constexpr std::int64_t kPauseMs = 100;
    watch_forks();
    {
        const Locked locked;
        if (last_failure.id == shared->id && now_ms() - last_failure.ms < kPauseMs) return nullptr;
    }
    const bool are_mapped = attach_heaps() == 0 || is_mapped(*shared);
    const Locked locked;
    // relaxed: stored with the lock, which this thread has.
    Local *const local = locals[shared->slot].load(std::memory_order_relaxed);
    if (local != nullptr && local->id == shared->id) return local;        // another thread was first
    if (local != nullptr && local->id != 0) numacre_detach(local->pool);  // of a mempool that another process has freed
    if (local != nullptr) local->id = 0;
    Local *const fresh = are_mapped ? attach_to(*shared) : nullptr;
    if (fresh == nullptr) {
        last_failure = {shared->id, now_ms()};
        return nullptr;
    }
    share(*shared);
    // release: another thread that finds the handle finds it whole.
    locals[shared->slot].store(fresh, std::memory_order_release);
    return fresh;
}

void delete_shared(Shared *shared) {
    const Locked locked;
    Local *const local = locals[shared->slot].load(std::memory_order_relaxed);
    if (local != nullptr && local->id == shared->id) {
        locals[shared->slot].store(nullptr, std::memory_order_relaxed);
        numacre_detach(local->pool);
        delete local;
    }
    for (const LcoreShare &lcore : shared->lcores) rte_free(static_cast<void *>(lcore.stash));
    rte_free(shared->depot.batches);
    rte_free(shared->runs);
    rte_free(shared->by_address);
    shared->magic = 0;
    if (World *const all = world()) release_slot(*all, shared->slot);
    rte_free(shared);
}

}  // namespace numacre::dpdk
