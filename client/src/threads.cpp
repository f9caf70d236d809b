// Threads of this process and the pool's thread slots. A thread gets its slot at its first call, by a CAS in shared
// memory; it needs neither the daemon nor a registration call. A thread that ends gives it back; a process that dies
// has its slots taken back by recovery.
#include <pthread.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "cache.hpp"
#include "errors.hpp"
#include "numacre/shm/thread_slots.hpp"
#include "pool.hpp"
#include "record.hpp"

namespace numacre::client {
namespace {
struct NoLane : numacre_inline_lane {
    constexpr NoLane() : numacre_inline_lane{} { handle = this; }  // which is no pool's address
};
constinit NoLane no_lane;
}  // namespace
}  // namespace numacre::client

constinit __thread numacre_inline_lane *numacre_inline_lane_1 = &numacre::client::no_lane;

namespace numacre::client {

std::uint32_t fork_generation = 1;

namespace {

constexpr std::uint32_t kMaxHandles = 1024;

// Guards the table of handles; never taken on the data path.
pthread_mutex_t registry_mutex = PTHREAD_MUTEX_INITIALIZER;
numacre_pool *handles[kMaxHandles];
std::uint64_t last_serial = 0;

pthread_once_t once = PTHREAD_ONCE_INIT;
pthread_key_t thread_end_key;

// All lanes of the calling thread, by the pools' index; nullptr: none.
struct LaneTable {
    Lane **lanes;
    std::uint32_t count;
};
thread_local LaneTable lane_table __attribute__((tls_model("initial-exec"))) = {nullptr, 0};

void free_lane(Lane *lane) {
    if (numacre_inline_lane_1 == lane) numacre_inline_lane_1 = &no_lane;
    for (std::uint32_t node = 0; node < lane->numa_nodes; ++node)
        for (Magazine &magazine : lane->nodes[node].magazines) free(magazine.bottom);
    release_handle(lane->pool);
    free(lane);
}

void release_slot(numacre_pool *pool, Actor actor) {
    // release: the slot's next user, or recovery, finds all our work done.
    pool->view.threads[actor.thread.value].owner.store(0, std::memory_order_release);
    pool->threads.fetch_sub(1, std::memory_order_relaxed);  // relaxed: a count, it hands nothing over
}

// Counts one more thread of this process. False: it has as many as it may, in `limit`.
bool may_have_thread(numacre_pool *pool, std::uint64_t &limit) {
    // relaxed, all of it: only the count itself matters.
    limit = pool->thread_limit->load(std::memory_order_relaxed);
    std::uint32_t threads = pool->threads.load(std::memory_order_relaxed);
    do {
        if (limit != 0 && threads >= limit) return false;
    } while (!pool->threads.compare_exchange_weak(threads, threads + 1, std::memory_order_relaxed));
    return true;
}

void at_thread_end(void *) {
    LaneTable &table = lane_table;
    pthread_mutex_lock(&registry_mutex);
    for (std::uint32_t index = 0; index < table.count; ++index) {
        Lane *const lane = table.lanes[index];
        if (lane == nullptr) continue;
        numacre_pool *const pool = handles[index];
        if (pool == lane->pool && pool->fork_generation == fork_generation) {
            give_back_all(pool, *lane);
            release_slot(pool, lane->actor);
        }
        free_lane(lane);
    }
    pthread_mutex_unlock(&registry_mutex);
    free(table.lanes);
    table = {nullptr, 0};
}

// In the child no mapping of a pool exists (MADV_DONTFORK), and the registry's mutex may have been held by a thread
// that does not exist here.
void in_forked_child() {
    ++fork_generation;
    numacre_inline_lane_1 = &no_lane;
    registry_mutex = PTHREAD_MUTEX_INITIALIZER;
    forget_recording_in_child();
    forget_asking_in_child();
}

void initialise() {
    pthread_key_create(&thread_end_key, at_thread_end);
    pthread_atfork(nullptr, nullptr, in_forked_child);
}

bool grow_table(std::uint32_t index) {
    LaneTable &table = lane_table;
    if (index < table.count) return true;
    const std::uint32_t count = index + 8;
    auto *lanes = static_cast<Lane **>(realloc(table.lanes, count * sizeof(Lane *)));
    if (lanes == nullptr) return false;
    for (std::uint32_t i = table.count; i < count; ++i) lanes[i] = nullptr;
    table = {lanes, count};
    pthread_setspecific(thread_end_key, lanes);
    return true;
}

constinit const Word always{1};

Lane *new_lane(numacre_pool *pool, Actor actor) {
    // The one behind the last has no blocks: see Choices.
    const std::uint32_t nodes = pool->numa_nodes == 1 ? 1 : pool->numa_nodes + 1;
    const std::size_t bytes = sizeof(Lane) + nodes * sizeof(NodeLane);
    void *const memory = aligned_alloc(alignof(Lane), bytes);
    if (memory == nullptr) return nullptr;
    memset(memory, 0, bytes);
    auto *const lane = static_cast<Lane *>(memory);
    // relaxed: whoever calls has a reference, and need not find anything done.
    pool->references.fetch_add(1, std::memory_order_relaxed);
    lane->handle = lane->pool = pool;
    lane->attention = bits_of(pool->view.header->attention);
    lane->regulation = pool->checks_frees ? &always : &pool->view.header->accounting;
    lane->frame_count = pool->geometry.frame_count;
    lane->span = pool->span;
    lane->span_shift = pool->span_shift;
    lane->frame_shift = pool->geometry.frame_shift;
    lane->numa_nodes = pool->numa_nodes;
    lane->orders = pool->geometry.largest_order + 1U;
    lane->leaf_bytes = std::uint64_t{1} << (std::min(lane->orders, kCachedOrders) - 1 + lane->frame_shift);
    lane->private_pattern = IndexEntry::private_to(actor.process);
    lane->choices = pool->choices == nullptr ? nullptr : &pool->choices[actor.thread.value];
    lane->actor = actor;
    lane->nodes = reinterpret_cast<NodeLane *>(lane + 1);
    for (std::uint32_t node = 0; node < pool->numa_nodes; ++node) {
        const NodeView<Env> &view = pool->nodes[node].buddy().view();
        lane->nodes[node].data = reinterpret_cast<char *>(pool->nodes[node].data);
        lane->nodes[node].index = bits_of(*view.index[0]);
        lane->nodes[node].buddy = &pool->nodes[node].buddy();
        lane->nodes[node].self = lane->nodes[node].buddy->view_of(actor);
        for (unsigned order = 0; order < kCachedOrders; ++order) {
            Magazine &magazine = lane->nodes[node].magazines[order];
            magazine.allocations = bits_of(view.counters[actor.thread.value].allocations[order]);
            magazine.as_owned = IndexEntry::owned(actor.process, Order{order}, 0, {});
            magazine.block_shift = order + lane->frame_shift;
        }
    }
    lane->only = &lane->nodes[nodes - 1];
    lane->frees_nothing(lane->nodes[0]);
    note_attention(*lane, lane->attention_word().load(std::memory_order_relaxed));
    begin_placement(pool, *lane);
    return lane;
}

// While everything is recorded no lane is the current one, and so no call takes the hot path (record.hpp).
Lane *make_current(Lane *lane) {
    if (!recording()) numacre_inline_lane_1 = lane;
    return lane;
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

Lane *enter_pool(numacre_pool *pool, int &error) {
    if (pool->fork_generation != fork_generation) {
        error = fail(Errc::forked_handle, "this pool handle was made before fork()");
        return nullptr;
    }
    if (!grow_table(pool->index)) {
        error = fail(Errc::too_many_clients, "no memory for this thread's table of pools");
        return nullptr;
    }
    Lane *&lane = lane_table.lanes[pool->index];
    if (lane != nullptr && lane->pool == pool) return make_current(lane);
    if (lane != nullptr) free_lane(lane);  // of a pool that was detached
    lane = nullptr;
    std::uint64_t limit = 0;
    if (!may_have_thread(pool, limit)) {
        error = fail(Errc::too_many_clients,
                     "this process has %llu threads on the pool, a client's limit: end one, or raise the pool's "
                     "max-threads-per-client",
                     static_cast<unsigned long long>(limit));
        return nullptr;
    }
    const Actor actor{claim_thread_slot(pool->view, pool->process), pool->process};
    if (actor.thread == kDaemonThread) {
        pool->threads.fetch_sub(1, std::memory_order_relaxed);
        error = fail(Errc::too_many_clients, "all %u thread slots of the pool are taken", pool->view.thread_slots - 1);
        return nullptr;
    }
    lane = new_lane(pool, actor);
    if (lane != nullptr) return make_current(lane);
    release_slot(pool, actor);
    error = fail(Errc::too_many_clients, "no memory for this thread's lane");
    return nullptr;
}

void leave_pool(numacre_pool *pool) {
    LaneTable &table = lane_table;
    if (pool->index >= table.count || table.lanes[pool->index] == nullptr) return;
    Lane *const lane = table.lanes[pool->index];
    table.lanes[pool->index] = nullptr;
    if (lane->pool == pool) {
        give_back_all(pool, *lane);  // what other threads have cached the daemon gives back
        release_slot(pool, lane->actor);
    }
    free_lane(lane);
}

}  // namespace numacre::client
