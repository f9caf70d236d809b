// Threads of this process and the pool's thread slots. A thread gets its slot at its first call, by a CAS in shared memory;
// it needs neither the daemon nor a registration call. A thread that ends gives it back; a process that dies has its slots
// taken back by recovery.
#include <pthread.h>

#include <cstdlib>

#include "errors.hpp"
#include "pool.hpp"

namespace numacre::client {

thread_local ThreadTable thread_table __attribute__((tls_model("initial-exec"))) = {nullptr, 0};
std::uint32_t fork_generation = 1;

namespace {

constexpr std::uint32_t kMaxHandles = 1024;

// Guards the table of handles; never taken on the data path.
pthread_mutex_t registry_mutex = PTHREAD_MUTEX_INITIALIZER;
numacre_pool *handles[kMaxHandles];
std::uint64_t last_serial = 0;

pthread_once_t once = PTHREAD_ONCE_INIT;
pthread_key_t thread_end_key;

void release_slot(numacre_pool *pool, Actor actor) {
    // release: the slot's next user, or recovery, finds all our work done.
    pool->view.threads[actor.thread.value].owner.store(0, std::memory_order_release);
}

void at_thread_end(void *) {
    ThreadTable &table = thread_table;
    pthread_mutex_lock(&registry_mutex);
    for (std::uint32_t index = 0; index < table.count; ++index) {
        numacre_pool *pool = handles[index];
        if (pool == nullptr || table.entries[index].serial != pool->serial || pool->fork_generation != fork_generation)
            continue;
        release_slot(pool, table.entries[index].actor);
    }
    pthread_mutex_unlock(&registry_mutex);
    free(table.entries);
    table = {nullptr, 0};
}

// In the child no mapping of a pool exists (MADV_DONTFORK), and the registry's mutex may have been held by a thread that
// does not exist here.
void in_forked_child() {
    ++fork_generation;
    registry_mutex = PTHREAD_MUTEX_INITIALIZER;
}

void initialise() {
    pthread_key_create(&thread_end_key, at_thread_end);
    pthread_atfork(nullptr, nullptr, in_forked_child);
}

bool grow_table(std::uint32_t index) {
    ThreadTable &table = thread_table;
    if (index < table.count) return true;
    const std::uint32_t count = index + 8;
    auto *entries = static_cast<ThreadEntry *>(realloc(table.entries, count * sizeof(ThreadEntry)));
    if (entries == nullptr) return false;
    for (std::uint32_t i = table.count; i < count; ++i) entries[i] = ThreadEntry{0, {}};
    table = {entries, count};
    pthread_setspecific(thread_end_key, entries);
    return true;
}

}  // namespace

bool register_handle(numacre_pool *pool) {
    pthread_once(&once, initialise);
    pthread_mutex_lock(&registry_mutex);
    bool found = false;
    for (std::uint32_t index = 0; index < kMaxHandles && !found; ++index) {
        if (handles[index] != nullptr) continue;
        handles[index] = pool;
        pool->index = index;
        pool->serial = ++last_serial;
        pool->fork_generation = fork_generation;
        found = true;
    }
    pthread_mutex_unlock(&registry_mutex);
    return found;
}

void unregister_handle(numacre_pool *pool) {
    pthread_mutex_lock(&registry_mutex);
    if (handles[pool->index] == pool) handles[pool->index] = nullptr;
    pthread_mutex_unlock(&registry_mutex);
}

int enter_pool(numacre_pool *pool, Actor &actor) {
    if (pool->fork_generation != fork_generation)
        return fail(Errc::forked_handle, "this pool handle was made before fork()");
    if (!grow_table(pool->index)) return fail(Errc::too_many_clients, "no memory for this thread's table of pools");
    const std::uint64_t mine = ThreadOwner{pool->process}.bits();
    for (std::uint32_t thread = 1; thread < pool->view.thread_slots; ++thread) {
        auto &owner = pool->view.threads[thread].owner;
        std::uint64_t free_slot = 0;
        if (owner.load(std::memory_order_relaxed) != 0) continue;  // relaxed: only a guess, the CAS decides
        // acq_rel: what the slot's last user or recovery left is finished before we begin.
        if (!owner.compare_exchange_strong(free_slot, mine, std::memory_order_acq_rel)) continue;
        auto &mark = pool->view.header->thread_high_water;
        std::uint64_t seen = mark.load(std::memory_order_relaxed);
        // seq_cst: scans must find the slot before its first intent matters.
        while (seen <= thread && !mark.compare_exchange_weak(seen, thread + 1, std::memory_order_seq_cst)) {
        }
        actor = Actor{ThreadSlotIndex{static_cast<std::uint16_t>(thread)}, pool->process};
        thread_table.entries[pool->index] = ThreadEntry{pool->serial, actor};
        return 0;
    }
    return fail(Errc::too_many_clients, "all %u thread slots of the pool are taken", pool->view.thread_slots - 1);
}

void leave_pool(numacre_pool *pool) {
    ThreadTable &table = thread_table;
    if (pool->index >= table.count || table.entries[pool->index].serial != pool->serial) return;
    release_slot(pool, table.entries[pool->index].actor);
    table.entries[pool->index].serial = 0;
}

}  // namespace numacre::client
