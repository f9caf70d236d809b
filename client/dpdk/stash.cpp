// Stashes past the common path: set up, taken away from their lcores, given back.
#include <linux/membarrier.h>
#include <pthread.h>
#include <rte_malloc.h>
#include <rte_pause.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

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
    if (shared.is_shared.load(std::memory_order_acquire) != 0) return 0;
    const unsigned self = rte_lcore_id();
    bool are_there = false;
    for (unsigned i = 0; i < RTE_MAX_LCORE && !are_there; ++i)
        are_there = i != self && shared.lcores[i].stashed.load(std::memory_order_relaxed) != 0;
    if (!are_there || pthread_mutex_trylock(&taking) != 0) return 0;
    unsigned moved = 0;
    std::uint8_t asked[RTE_MAX_LCORE]{};
    for (unsigned i = 0; i < RTE_MAX_LCORE; ++i) {
        LcoreShare &lcore = shared.lcores[i];
        if (i == self || lcore.stashed.load(std::memory_order_relaxed) == 0) continue;
        asked[i] = 1;
        lcore.is_revoked.store(1, std::memory_order_seq_cst);
    }
    const bool have_passed = pass_barrier();
    for (unsigned i = 0; i < RTE_MAX_LCORE; ++i) {
        if (asked[i] == 0) continue;
        LcoreShare &lcore = shared.lcores[i];
        if (have_passed && waits_until_outside(lcore)) moved += empty(shared, local, lcore);
        // release: the lcore sees the stash as it is now. A second process may have come meanwhile: its word is final.
        lcore.is_revoked.store(0, std::memory_order_seq_cst);
        if (shared.is_shared.load(std::memory_order_seq_cst) != 0) lcore.is_revoked.store(1, std::memory_order_seq_cst);
    }
    pthread_mutex_unlock(&taking);
    return moved;
}

void drain_stash(Shared &shared, const Local &local, LcoreShare &lcore) {
    if (lcore.stashed.load(std::memory_order_relaxed) == 0 || lcore.owner != this_process()) return;
    // Another thread of this process may just be taking it.
    if (pthread_mutex_trylock(&taking) != 0) return;
    (void)empty(shared, local, lcore);
    pthread_mutex_unlock(&taking);
}

unsigned reclaim(Shared &shared, const Local &local) {
    bool are_there = false;
    for (const LcoreShare &lcore : shared.lcores)
        are_there = are_there || lcore.stashed.load(std::memory_order_relaxed) != 0;
    if (!are_there) return 0;
    const int locked = pthread_mutex_trylock(&shared.reclaiming);
    if (locked == EOWNERDEAD) pthread_mutex_consistent(&shared.reclaiming);
    if (locked != 0 && locked != EOWNERDEAD) return 0;
    unsigned moved = 0;
    for (LcoreShare &lcore : shared.lcores) {
        if (lcore.stashed.load(std::memory_order_acquire) == 0 || !is_dead(lcore.owner)) continue;
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

void share(Shared &shared) {
    if (shared.is_shared.exchange(1, std::memory_order_seq_cst) != 0) return;
    for (LcoreShare &lcore : shared.lcores) lcore.is_revoked.store(1, std::memory_order_seq_cst);
}

void forget_lcore_cache(rte_mempool_cache &cache) {
    cache.size = 0;
    cache.flushthresh = 0;
}

void reset_after_fork() {
    taking = PTHREAD_MUTEX_INITIALIZER;
}

}  // namespace numacre::dpdk
