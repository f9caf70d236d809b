// Stashes past the common path: set up, taken away from their lcores, given back.
#include <linux/membarrier.h>
#include <pthread.h>
#include <rte_lcore.h>
#include <rte_malloc.h>
#include <rte_pause.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "depot.hpp"
#include "driver.hpp"

namespace numacre::dpdk {
namespace {

constexpr unsigned kPatience = 20000;  // pauses; an lcore that is inside for longer has lost its CPU

// Only one thread takes stashes at a time; the others go without.
pthread_mutex_t taking = PTHREAD_MUTEX_INITIALIZER;

int membarrier(int command) {
    return static_cast<int>(syscall(SYS_membarrier, command, 0, 0));
}

// All threads of this process have passed a barrier after the call. False: the kernel does not offer that.
bool pass_barrier() {
    static std::atomic<int> is_registered{0};  // -1: it cannot
    int state = is_registered.load(std::memory_order_relaxed);
    if (state == 0) {
        state = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0 ? 1 : -1;
        is_registered.store(state, std::memory_order_relaxed);
    }
    return state == 1 && membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) == 0;
}

bool waits_until_outside(const LcoreShare &lcore) {
    for (unsigned tries = 0; tries < kPatience; ++tries) {
        if (lcore.inside.load(std::memory_order_acquire) == 0) return true;
        rte_pause();
    }
    return false;
}

// The pid is written last, and read first: a kill in between leaves nobody's name.
void write_name(ProcessName &to, const ProcessName &name) {
    const std::atomic_ref<std::uint32_t> pid(to.pid);
    pid.store(0, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    to.start = name.start;
    to.pid_namespace = name.pid_namespace;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    pid.store(name.pid, std::memory_order_release);
}

// The stash is nobody's but the caller's now.
unsigned empty(Shared &shared, const Local &local, LcoreShare &lcore) {
    unsigned moved = 0;
    while (const std::uint32_t stashed = lcore.stashed.load(std::memory_order_relaxed)) {
        void *objects[kBatch];
        const unsigned batch = std::min(stashed, kBatch);
        std::copy_n(lcore.stash + stashed - batch, batch, objects);
        // release: before the objects are anybody else's. A kill right behind leaves them in quarantine.
        lcore.stashed.store(stashed - batch, std::memory_order_release);
        moved += free_objects(shared, local, objects, batch);
    }
    return moved;
}

}  // namespace

std::int64_t now_ms() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return std::int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

void make_depot(Shared &shared) {
    constexpr unsigned kMostBatches = 64;
    const unsigned batches = std::min(kMostBatches, shared.count / (4 * kBatch));
    if (batches == 0) return;
    Depot &depot = shared.depot;
    depot.batches =
        static_cast<Batch *>(rte_zmalloc("numacre", std::size_t{batches} * sizeof(Batch), RTE_CACHE_LINE_SIZE));
    if (depot.batches == nullptr) return;  // it works without
    for (unsigned i = batches; i > 0; --i) push(depot, depot.empty, depot.batches[i - 1]);
}

unsigned drain_depot(Shared &shared, const Local &local) {
    Depot &depot = shared.depot;
    unsigned moved = 0;
    while (Batch *const batch = pop(depot, depot.full)) {
        void *objects[kBatch];
        const unsigned count = batch->count;
        std::copy_n(batch->objects, count, objects);
        push(depot, depot.empty, *batch);
        moved += free_objects(shared, local, objects, count);
    }
    return moved;
}

void make_stash(Shared &shared, LcoreShare &lcore) {
    if (shared.is_shared.load(std::memory_order_acquire) != 0 || lcore.stash != nullptr) return;
    const unsigned room = std::min(kStashRoom, shared.count / 4);
    if (room < 8) return;
    lcore.stash = static_cast<void **>(rte_malloc("numacre", room * sizeof(void *), RTE_CACHE_LINE_SIZE));
    if (lcore.stash == nullptr) return;  // it works without
    lcore.owner = this_process();
    lcore.room = room;
}

unsigned take_stashes(Shared &shared, const Local &local) {
    const unsigned self = rte_lcore_id();
    const ProcessName &here = this_process();
    const auto may_take = [&](unsigned i) {
        const LcoreShare &lcore = shared.lcores[i];
        return i != self && lcore.stashed.load(std::memory_order_relaxed) != 0 && lcore.owner == here;
    };
    unsigned moved = drain_depot(shared, local);
    bool are_there = false;
    for (unsigned i = 0; i < RTE_MAX_LCORE && !are_there; ++i) are_there = may_take(i);
    if (!are_there || pthread_mutex_trylock(&taking) != 0) return moved;
    bool is_asked[RTE_MAX_LCORE]{};
    for (unsigned i = 0; i < RTE_MAX_LCORE; ++i) {
        std::uint32_t before = 0;
        is_asked[i] = may_take(i) && shared.lcores[i].is_revoked.compare_exchange_strong(before, 1);  // seq_cst
    }
    const bool have_passed = pass_barrier();
    for (unsigned i = 0; i < RTE_MAX_LCORE; ++i) {
        if (!is_asked[i]) continue;
        LcoreShare &lcore = shared.lcores[i];
        if (have_passed && waits_until_outside(lcore)) moved += empty(shared, local, lcore);
        // seq_cst: the lcore sees the stash as it is now. kForEver, of a second process that has come, stays.
        std::uint32_t mine = 1;
        (void)lcore.is_revoked.compare_exchange_strong(mine, 0);
    }
    pthread_mutex_unlock(&taking);
    return moved;
}

unsigned give_up_stashes(Shared &shared, Local &local) {
    if (pthread_mutex_trylock(&taking) != 0) return 0;
    // The process that has come may be on its way through the lcores, or have been killed there.
    share(shared);
    const unsigned self = rte_lcore_id();
    const ProcessName &here = this_process();
    const bool have_passed = pass_barrier();
    bool are_all = true;
    unsigned moved = 0;
    for (unsigned i = 0; i < RTE_MAX_LCORE; ++i) {
        LcoreShare &lcore = shared.lcores[i];
        if (lcore.owner != here) continue;
        if (i == self || (have_passed && waits_until_outside(lcore)))
            moved += empty(shared, local, lcore);
        else
            are_all = false;
    }
    // Behind the stashes: a thread that was inside one pushes no more. A thread of an lcore without a stash may still
    // push a batch: reclaim() finds it.
    moved += drain_depot(shared, local);
    if (are_all) local.has_given_up.store(true, std::memory_order_relaxed);
    pthread_mutex_unlock(&taking);
    return moved;
}

unsigned reclaim(Shared &shared, const Local &local) {
    unsigned moved = drain_depot(shared, local);
    bool are_there = false;
    for (const LcoreShare &lcore : shared.lcores)
        are_there = are_there || lcore.stashed.load(std::memory_order_relaxed) != 0;
    if (!are_there) return moved;
    const int locked = pthread_mutex_trylock(&shared.reclaiming);
    if (locked == EOWNERDEAD) pthread_mutex_consistent(&shared.reclaiming);
    if (locked != 0 && locked != EOWNERDEAD) return moved;
    // One process has many lcores, and a look at a process reads a file.
    ProcessName alive{}, dead{};
    for (LcoreShare &lcore : shared.lcores) {
        if (lcore.stashed.load(std::memory_order_acquire) == 0 || lcore.owner == alive) continue;
        if (lcore.owner != dead) {
            const bool has_died = is_dead(lcore.owner);
            (has_died ? dead : alive) = lcore.owner;
            if (!has_died) continue;
        }
        while (const std::uint32_t stashed = lcore.stashed.load(std::memory_order_acquire)) {
            void *objects[kBatch];
            void *tokens[kBatch];
            const unsigned batch = std::min(stashed, kBatch);
            std::copy_n(lcore.stash + stashed - batch, batch, objects);
            // A kill behind the adoption leaves the objects in the stash, owned by another dead process: the next
            // caller adopts them from that one. A kill behind the store leaves them in quarantine.
            const bool are_ours = adopt_objects(shared, local, objects, tokens, batch) == 0;
            lcore.stashed.store(stashed - batch, std::memory_order_release);
            if (are_ours && numacre_free_bulk(local.pool, tokens, batch) == 0) moved += batch;
        }
    }
    pthread_mutex_unlock(&shared.reclaiming);
    return moved;
}

unsigned reclaim_sometimes(Shared &shared, Local &local) {
    constexpr std::int64_t kPauseMs = 10;
    const std::int64_t now = now_ms();
    std::int64_t before = local.looked_ms.load(std::memory_order_relaxed);
    if (now - before < kPauseMs || !local.looked_ms.compare_exchange_strong(before, now, std::memory_order_relaxed))
        return 0;
    return reclaim(shared, local);
}

void share(Shared &shared) {
    // Each caller does all of it: the one before may have been killed in between.
    if (shared.is_shared.load(std::memory_order_seq_cst) == 0) shared.is_shared.store(1, std::memory_order_seq_cst);
    for (LcoreShare &lcore : shared.lcores)
        if (lcore.is_revoked.load(std::memory_order_seq_cst) != LcoreShare::kForEver)
            lcore.is_revoked.store(LcoreShare::kForEver, std::memory_order_seq_cst);
}

void forget_lcore_cache(rte_mempool_cache &cache) {
    cache.size = 0;
    cache.flushthresh = 0;
}

void take_lcore_cache(rte_mempool &mempool, unsigned lcore) {
    ProcessName &user = static_cast<Shared *>(mempool.pool_data)->lcores[lcore].cache_user;
    const ProcessName other = user;
    if (other.pid != 0 && other != this_process() && !is_dead(other)) {
        NUMACRE_LOG(
            WARNING,
            "mempool %s: process %u uses lcore %u as well, and with it an lcore cache: give each process lcores "
            "of its own (-l)\n",
            mempool.name, other.pid, lcore);
        return;
    }
    write_name(user, this_process());
    rte_mempool_cache &cache = mempool.local_cache[lcore];
    forget_lcore_cache(cache);
    cache.len = 0;
}

void note_lcore_caches(Shared &shared) {
    for (unsigned lcore = 0; lcore < RTE_MAX_LCORE; ++lcore)
        if (rte_lcore_is_enabled(lcore) != 0) write_name(shared.lcores[lcore].cache_user, this_process());
}

void reset_after_fork() {
    taking = PTHREAD_MUTEX_INITIALIZER;
}

}  // namespace numacre::dpdk
