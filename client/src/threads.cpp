// Threads of this process and the pool's thread slots. A thread gets its slot at its first call, by a CAS in shared
// memory, without the daemon and without a registration call. A thread that ends gives its slot back. Recovery takes
// back the slots of a process that has died.
#include <dlfcn.h>
#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

#include "cache.hpp"
#include "engine.hpp"
#include "errors.hpp"
#include "hold.hpp"
#include "numacre/os/kernel.hpp"
#include "numacre/shm/thread_slots.hpp"
#include "pool.hpp"
#include "process.hpp"
#include "record.hpp"

namespace numacre::client {
namespace {
struct NoLane : numacre_inline_lane {
    constexpr NoLane() : numacre_inline_lane{} { handle = this; }  // no pool has this address
};
constinit NoLane no_lane;
}  // namespace
}  // namespace numacre::client

// The model again: g++ does not take it over from the declaration.
constinit __thread numacre_inline_lane *numacre_inline_lane_2 __attribute__((tls_model("initial-exec"))) =
    &numacre::client::no_lane;
// For programs that were built for layout version 10 or older: never a lane, so that their calls are function calls.
constinit __thread numacre_inline_lane *numacre_inline_lane_1 __attribute__((tls_model("initial-exec"))) =
    &numacre::client::no_lane;

namespace numacre::client {

// Both are null where this file is linked into a program without a dynamic linker.
extern "C" {
[[gnu::weak]] int dladdr(const void *, Dl_info *) noexcept;
[[gnu::weak]] void *dlopen(const char *, int) noexcept;
}

namespace {

constexpr std::uint32_t kMaxHandles = 1024;

// Guards the table of handles; never taken on the data path.
pthread_mutex_t registry_mutex = PTHREAD_MUTEX_INITIALIZER;
numacre_pool *handles[kMaxHandles];
std::uint64_t last_serial = 0;

pthread_once_t once = PTHREAD_ONCE_INIT;
pthread_key_t thread_end_key;
bool has_key = false;  // thread_end_key exists: making it may fail while all keys are used up; guarded by
                       // registry_mutex

// 0: the process is a forked child that has not been told. kTelling: a thread of the child is forgetting the parent's
// state.
using Generation = std::atomic<std::uint32_t>;
constexpr std::uint32_t kTelling = ~0U;
std::atomic<pid_t> telling_thread{0};
constinit Generation first_generation{1};
// Points to memory that a child finds empty, from the first handle on.
constinit std::atomic<Generation *> generation{&first_generation};
bool page_is_wiped = false;  // guarded by registry_mutex
// Lies in memory that a child inherits.
std::uint32_t last_generation = 1;

// The entry of a thread for a pool. The lane itself is empty in a forked child, so the values that are needed to free
// the lane are here.
struct Seat {
    Lane *lane;
    numacre_pool *pool;
    std::size_t bytes;  // of the lane's mapping
};
struct NotedTable;
// All lanes of the calling thread, by the pools' index; lane nullptr: no lane.
struct LaneTable {
    Seat *seats;
    std::uint32_t count;
    bool has_lock;  // the thread holds or awaits registry_mutex for its table
    NotedTable *noted;
    std::uint32_t noted_in;  // the generation of `noted`
};
thread_local LaneTable lane_table __attribute__((tls_model("initial-exec"))) = {nullptr, 0, false, nullptr, 0};

// A thread's table in a list that other threads can read. at_thread_end() tells the end of a thread, but not if the
// thread has made its first call, or another call, in the last round of destructors (PTHREAD_DESTRUCTOR_ITERATIONS). So
// a thread that enters a pool checks whether some threads of the list are gone.
struct NotedTable {
    NotedTable *next, *before;
    pid_t process, thread;  // the thread that made the entry; another process: a child of vfork(), in its parent's
                            // thread
    Seat *seats;
    std::uint32_t count;
};
// registry_mutex guards both.
constinit NotedTable *noted_tables = nullptr;
constinit NotedTable *next_look = nullptr;  // nullptr: the first table
constexpr unsigned kLooksEach = 2;          // more than one, so that more tables go than come

// Handlers of signals that cannot be blocked (SIGTRAP, SIGSEGV sent by another process) may look at any moment, so the
// lane is unreachable before it is unmapped.
void free_lane(Seat &seat) {
    const Seat gone = seat;
    if (numacre_inline_lane_2 == gone.lane) numacre_inline_lane_2 = &no_lane;
    seat = {};
    std::atomic_signal_fence(std::memory_order_seq_cst);
    os::munmap(gone.lane, gone.bytes);
    release_handle(gone.pool);
}

void release_slot(numacre_pool *pool, Actor actor) {
    auto &slot = pool->view.threads[actor.thread.value];
    // relaxed: perhaps left over from a call that a signal handler has left; ordered by the release below.
    slot.under_way.store(0, std::memory_order_relaxed);
    slot.inside.store(0, std::memory_order_relaxed);  // of a thread that has ended in the middle of a call
    // release: the slot's next user, or recovery, sees all our work done.
    slot.owner.store(0, std::memory_order_release);
    pool->threads.fetch_sub(1, std::memory_order_relaxed);  // relaxed: a count that publishes no data
}

// Counts one more thread of this process. False: the process has as many threads as `limit` allows.
bool may_have_thread(numacre_pool *pool, std::uint64_t &limit) {
    // relaxed, all three: only the count itself matters.
    limit = pool->thread_limit->load(std::memory_order_relaxed);
    std::uint32_t threads = pool->threads.load(std::memory_order_relaxed);
    do {
        if (limit != 0 && threads >= limit) return false;
    } while (!pool->threads.compare_exchange_weak(threads, threads + 1, std::memory_order_relaxed));
    return true;
}

// True if the thread was taken out of a call in the middle of a change (by longjmp or pthread_exit in a signal
// handler). The slot still describes that change. The thread's next change would overwrite the description, and the
// blocks of the unfinished change would be lost for ever. So the slot, and the blocks that the thread has cached, stay
// as they are until the process ends or detaches: recovery then finishes the change from the slot.
bool was_torn_away(const numacre_pool *pool, Actor actor) {
    const auto &slot = pool->view.threads[actor.thread.value];
    // relaxed: only the thread itself writes these words.
    return slot.intent.load(std::memory_order_relaxed) != 0 ||
           HintWork{slot.hint_work.load(std::memory_order_relaxed)}.active();
}

void give_up_slot(numacre_pool *pool, Lane &lane) {
    if (was_torn_away(pool, lane.actor)) return;
    forget_wish(pool, lane);
    drop_all(pool, lane);
    give_back_all(pool, lane);  // this thread's cache; the daemon gives back those of other threads
    release_slot(pool, lane.actor);
}

// Gives up all slots of a table, that of the calling thread or of a thread that is gone. registry_mutex is held.
void give_up_seats(Seat *seats, std::uint32_t count) {
    const std::uint32_t our_generation = fork_generation();
    for (std::uint32_t index = 0; index < count; ++index) {
        Seat &seat = seats[index];
        if (seat.lane == nullptr) continue;
        numacre_pool *const pool = handles[index];
        if (pool == seat.pool && !pool->is_leaving && pool->fork_generation == our_generation)
            give_up_slot(pool, *seat.lane);
        free_lane(seat);
    }
}

// Holds registry_mutex while a thread works on its table. A handler of a signal that cannot be blocked would wait for
// the mutex, and for the heap, in its own thread. So enter_pool(), to which all calls of such a handler come, refuses
// these calls.
class TableLock {
public:
    TableLock() {
        lane_table.has_lock = true;
        std::atomic_signal_fence(std::memory_order_seq_cst);
        os::pthread_mutex_lock(&registry_mutex);
    }
    ~TableLock() {
        os::pthread_mutex_unlock(&registry_mutex);
        std::atomic_signal_fence(std::memory_order_seq_cst);
        lane_table.has_lock = false;
    }
    TableLock(const TableLock &) = delete;
    TableLock &operator=(const TableLock &) = delete;
};

// forget_noted() to look_at_all() are called with registry_mutex held.
void forget_noted(NotedTable *noted) {
    if (next_look == noted) next_look = noted->next;
    if (noted->next != nullptr) noted->next->before = noted->before;
    (noted->before != nullptr ? noted->before->next : noted_tables) = noted->next;
    free(noted);
}

// Puts the calling thread's changed table into the list. False: no memory.
bool note_table(LaneTable &table) {
    const std::uint32_t our_generation = fork_generation();
    if (table.noted == nullptr || table.noted_in != our_generation) {
        auto *const noted = static_cast<NotedTable *>(malloc(sizeof(NotedTable)));
        if (noted == nullptr) return false;
        *noted = {noted_tables, nullptr, os::getpid(), os::gettid(), nullptr, 0};
        if (noted_tables != nullptr) noted_tables->before = noted;
        noted_tables = noted;
        table.noted = noted;
        table.noted_in = our_generation;
    }
    table.noted->seats = table.seats;
    table.noted->count = table.count;
    return true;
}

bool is_gone(const NotedTable &noted) {
    const NotCancelled not_cancelled;  // for the first thread, thread_is_gone() reads a file
    const pid_t own = os::gettid();
    // A filter of system calls (seccomp) may refuse gettid(): then no thread is known to be gone.
    if (own <= 0 || noted.thread <= 0 || noted.process != os::getpid()) return false;
    // The kernel may have given the number to another thread. If that is the calling thread, the noted thread is gone.
    const bool is_own = &noted == lane_table.noted && lane_table.noted_in == fork_generation();
    return noted.thread == own ? !is_own : os::thread_is_gone(noted.thread);
}

// Gives up the slots of the noted thread if that thread is gone and could not do so itself. Returns the next table of
// the list.
NotedTable *give_up_if_gone(NotedTable *noted) {
    NotedTable *const next = noted->next;
    if (is_gone(*noted)) {
        give_up_seats(noted->seats, noted->count);
        free(noted->seats);
        forget_noted(noted);
    }
    return next;
}

void look_at_some() {
    for (unsigned looks = 0; looks < kLooksEach && noted_tables != nullptr; ++looks)
        next_look = give_up_if_gone(next_look != nullptr ? next_look : noted_tables);
}

void look_at_all() {
    for (NotedTable *noted = noted_tables; noted != nullptr;) noted = give_up_if_gone(noted);
}

void at_thread_end(void *) {
    // Signals stay blocked: a handler that called now, or while other destructors run, would get a lane that nobody
    // takes back. A destructor that calls the library makes this one run once more, except in the last round
    // (NotedTable).
    SignalsBlocked::keep_out();
    LaneTable &table = lane_table;
    const TableLock lock;
    numacre_inline_lane_2 = &no_lane;
    give_up_seats(table.seats, table.count);
    if (table.noted != nullptr && table.noted_in == fork_generation()) forget_noted(table.noted);
    Seat *const seats = table.seats;
    table.noted = nullptr;
    table.count = 0;
    table.seats = nullptr;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    free(seats);
}

// In the child no mapping of a pool exists, and mutexes may have been held by threads that do not exist here. For the
// daemon a client is alive as long as its connection is open. So the parent's connection may not stay open in a child
// that outlives the parent, or goes on when the parent calls exec. Async-signal-safe.
void forget_the_parents() {
    const NotCancelled not_cancelled;  // close() is a cancellation point, and fork() is none
    numacre_inline_lane_2 = &no_lane;
    registry_mutex = PTHREAD_MUTEX_INITIALIZER;
    forget_recording_in_child();
    noted_tables = next_look = nullptr;
    for (numacre_pool *const pool : handles) {
        if (pool == nullptr) continue;
        close_connection(pool);
        close_guard(pool);
        close_descriptors(pool);
    }
    ++last_generation;
}

// Called by pthread_atfork(): the child has one thread.
void in_forked_child() {
    Generation &ours = *generation.load(std::memory_order_relaxed);
    // The child has been told already, by a call in another atfork handler or in a signal handler. Handles that it has
    // attached since then are its own. Where the page is not wiped, only this function tells the child.
    if (page_is_wiped && ours.load(std::memory_order_relaxed) != 0) return;
    forget_the_parents();
    ours.store(last_generation, std::memory_order_release);
}

// Called in a child that nobody has told; the child may have several threads by now.
[[gnu::cold, gnu::noinline]] std::uint32_t in_untold_child(Generation &ours) {
    const SignalsBlocked signals_blocked;  // a handler that called here would wait for its own thread
    std::uint32_t seen = 0;
    const pid_t own = os::gettid();
    if (ours.compare_exchange_strong(seen, kTelling, std::memory_order_acq_rel)) {
        telling_thread.store(own, std::memory_order_relaxed);  // relaxed: only this thread looks for its own number
        forget_the_parents();
        ours.store(last_generation, std::memory_order_release);
        telling_thread.store(0, std::memory_order_relaxed);
    }
    while ((seen = ours.load(std::memory_order_acquire)) == kTelling) {
        // A handler of a signal that cannot be blocked has interrupted this thread in forget_the_parents(). No pool has
        // the generation kTelling.
        if (telling_thread.load(std::memory_order_relaxed) == own) return kTelling;
        os::sched_yield();
    }
    return seen;
}

void initialise() {
    os::pthread_atfork(nullptr, nullptr, in_forked_child);
}

// Makes the page of the generation before there is a handle. False: no memory. Without the page only children of fork()
// would be told. registry_mutex is held.
bool make_generation_page() {
    if (generation.load(std::memory_order_relaxed) != &first_generation) return true;
    void *const page = wiped_in_child(sizeof(Generation), &page_is_wiped);
    if (page == nullptr) return false;
    generation.store(new (page) Generation{last_generation}, std::memory_order_release);
    return true;
}

bool grow_table(std::uint32_t index) {
    LaneTable &table = lane_table;
    if (index < table.count) {
        // A child of fork() has its parent's table, and an empty list of tables.
        if (table.noted != nullptr && table.noted_in == fork_generation()) return true;
        const TableLock lock;
        return note_table(table);
    }
    // The key is set first: without it nobody would tell of the thread's end. The value may be any but NULL;
    // at_thread_end() reads lane_table.
    if (table.count == 0 && os::pthread_setspecific(thread_end_key, &table) != 0) return false;
    const std::uint32_t count = index + 8;
    auto *const seats = static_cast<Seat *>(calloc(count, sizeof(Seat)));
    if (seats == nullptr) return false;
    const TableLock lock;
    Seat *const before = table.seats;
    const std::uint32_t count_before = table.count;
    std::copy_n(before, count_before, seats);
    table.seats = seats;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    table.count = count;
    if (note_table(table)) {
        free(before);
        return true;
    }
    table.count = count_before;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    table.seats = before;
    free(seats);
    return false;
}

constinit const Word always{1};

// Makes a lane. One mapping has the lane, then its NodeLanes, then room for the blocks of all their magazines, which
// takes memory only when it is used. The mapping is empty in a forked child: the lane's handle is then that of no pool,
// so the child's calls take the long path and are refused there.
Seat new_lane(numacre_pool *pool, Actor actor) {
    // In a pool of several numa nodes, an additional NodeLane has no blocks: see Choices.
    // That NodeLane also keeps the inlined steps, which shift, from objects whose size is no power of two.
    const bool shifts = std::has_single_bit(pool->geometry.frame_bytes);
    const std::uint32_t nodes = pool->numa_nodes == 1 && shifts ? 1 : pool->numa_nodes + 1;
    const std::size_t lane_bytes = sizeof(Lane) + nodes * sizeof(NodeLane);
    const std::size_t bytes =
        lane_bytes + std::size_t{pool->numa_nodes} * kCachedOrders * kMagazineBlocks * sizeof(char *);
    void *const memory = wiped_in_child(bytes);
    if (memory == nullptr) return {};
    auto *const lane = static_cast<Lane *>(memory);
    auto *room = reinterpret_cast<char **>(static_cast<char *>(memory) + lane_bytes);
    // relaxed: the caller has a reference, and needs to see no other data.
    pool->references.fetch_add(1, std::memory_order_relaxed);
    lane->handle = lane->pool = pool;
    lane->attention = bits_of(pool->view.header->attention);
    lane->inside = bits_of(pool->view.threads[actor.thread.value].inside);
    lane->cached_without_note = NUMACRE_INLINE_OURS | NUMACRE_INLINE_GENERATION;
    lane->all_but_generation = ~NUMACRE_INLINE_GENERATION;
    lane->cached_mark = NUMACRE_INLINE_CACHED | std::uint64_t{actor.thread.value} << NUMACRE_INLINE_THREAD_SHIFT;
    lane->regulation = pool->checks_frees ? &always : &pool->view.header->accounting;
    lane->node_frames = pool->geometry.frame_count;
    lane->frame_count = shifts ? pool->geometry.frame_count : 0;
    lane->span = pool->span;
    lane->span_shift = pool->span_shift;
    lane->reference_format = pool->reference_format;
    lane->frame_shift = pool->geometry.frame_shift();
    lane->scale = pool->scale;
    lane->numa_nodes = pool->numa_nodes;
    lane->shifting_nodes = shifts ? pool->numa_nodes : 0;
    lane->leaf_bytes = pool->geometry.bytes_of(std::uint64_t{1} << std::min(pool->geometry.largest_order, kLeafOrder));
    lane->largest_bytes = pool->geometry.chunk_bytes();
    lane->private_pattern = IndexEntry::private_to(actor.process);
    lane->choices = pool->choices == nullptr ? nullptr : &pool->choices[actor.thread.value];
    lane->actor = actor;
    lane->holds = &pool->view.holds[actor.thread.value];
    lane->nodes = reinterpret_cast<NodeLane *>(lane + 1);
    for (std::uint32_t node = 0; node < pool->numa_nodes; ++node) {
        const NodeView<Env> &view = pool->nodes[node].buddy().view();
        lane->nodes[node].data = reinterpret_cast<char *>(pool->nodes[node].data);
        lane->nodes[node].index = bits_of(*view.index[0]);
        lane->nodes[node].buddy = &pool->nodes[node].buddy();
        lane->nodes[node].self = lane->nodes[node].buddy->view_of(actor);
        for (unsigned order = 0; order < kCachedOrders; ++order) {
            Magazine &magazine = lane->nodes[node].magazines[order];
            magazine.top = magazine.bottom = magazine.limit = room;
            room += kMagazineBlocks;
            magazine.allocations = bits_of(view.counters[actor.thread.value].allocations[order]);
            magazine.as_owned = IndexEntry::owned(actor.process, Order{order}, 0, {});
            magazine.block_shift = order + lane->frame_shift;
        }
    }
    lane->only = &lane->nodes[nodes - 1];
    lane->frees_nothing(lane->nodes[0]);
    note_attention(*lane, lane->attention_word().load(std::memory_order_relaxed));
    begin_placement(pool, *lane);
    return {lane, pool, bytes};
}

// Makes the lane the current one. While a trace is recorded no lane is current, so no call takes the hot path
// (record.hpp).
Lane *make_current(Lane *lane) {
    if (!recording()) numacre_inline_lane_2 = lane;
    return lane;
}
}  // namespace

std::uint32_t fork_generation() {
    // acquire; partner: the release stores of the generation. A thread that sees the child's generation finds the
    // parent's state forgotten.
    Generation &ours = *generation.load(std::memory_order_acquire);
    const std::uint32_t seen = ours.load(std::memory_order_acquire);
    return seen != 0 && seen != kTelling ? seen : in_untold_child(ours);
}

void *wiped_in_child(std::size_t bytes, bool *is_wiped) {
    void *const memory = os::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    (void)os::madvise(memory, bytes, MADV_NOHUGEPAGE);  // most of it is never touched
    // Before Linux 4.14, and where a filter of system calls refuses it, only children of fork() are told.
    const bool wipes = os::madvise(memory, bytes, MADV_WIPEONFORK) == 0;
    if (is_wiped != nullptr) *is_wiped = wipes;
    return memory;
}

void stay_loaded() {
    if (dladdr == nullptr || dlopen == nullptr) return;
    Dl_info here{};
    if (dladdr(reinterpret_cast<const void *>(&stay_loaded), &here) == 0 || here.dli_fname == nullptr) return;
    // The reference from dlopen() is never given back. If this code is part of the program itself, dlopen() has nothing
    // to open, and nothing can be unloaded.
    (void)dlopen(here.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
}

#if !defined(NUMACRE_IS_NODELETE)
namespace {
// Runs when the module is loaded, in the thread that has the loader's lock. Any other thread might wait for that lock
// while the module's constructor waits for the thread.
[[gnu::constructor]] void stay_loaded_from_the_start() {
    stay_loaded();
}
}  // namespace
#endif

bool register_handle(numacre_pool *pool) {
    os::pthread_once(&once, initialise);
    (void)fork_generation();  // a child that nobody told forgets its parent's lock first
    os::pthread_mutex_lock(&registry_mutex);
    if (!has_key) has_key = os::pthread_key_create(&thread_end_key, at_thread_end) == 0;
    const bool has_page = make_generation_page();
    const std::uint32_t our_generation = fork_generation();
    bool found = false;
    for (std::uint32_t index = 0; index < kMaxHandles && has_page && has_key && !found; ++index) {
        if (handles[index] != nullptr) continue;
        handles[index] = pool;
        pool->index = index;
        pool->serial = ++last_serial;
        pool->fork_generation = our_generation;
        found = true;
    }
    os::pthread_mutex_unlock(&registry_mutex);
    return found;
}

void close_handle(numacre_pool *pool) {
    os::pthread_mutex_lock(&registry_mutex);
    pool->is_leaving = true;
    os::pthread_mutex_unlock(&registry_mutex);
}

void unregister_handle(numacre_pool *pool) {
    os::pthread_mutex_lock(&registry_mutex);
    if (handles[pool->index] == pool) handles[pool->index] = nullptr;
    os::pthread_mutex_unlock(&registry_mutex);
}

namespace {
bool enter_anew(numacre_pool *pool, Seat &seat, int &error) {
    std::uint64_t limit = 0;
    if (!may_have_thread(pool, limit)) {
        error = fail_with_remedy(
            Errc::too_many_clients,
            "this process has %llu threads on the pool, a client's limit: end one, or raise the pool's "
            "max-threads-per-client",
            static_cast<unsigned long long>(limit));
        return false;
    }
    const Actor actor{claim_thread_slot(pool->view, pool->process), pool->process};
    if (actor.thread == kDaemonThread) {
        pool->threads.fetch_sub(1, std::memory_order_relaxed);
        error = fail(Errc::too_many_clients, "all %u thread slots of the pool are taken", pool->view.thread_slots - 1);
        return false;
    }
    seat = new_lane(pool, actor);
    if (seat.lane != nullptr) return true;
    release_slot(pool, actor);
    error = fail_with_remedy(Errc::too_many_clients, "no memory for this thread's lane: let the process free some");
    return false;
}
}  // namespace

Lane *enter_pool(numacre_pool *pool, int &error) {
    if (pool->fork_generation != fork_generation()) {
        error = fail_forked();
        return nullptr;
    }
    if (lane_table.has_lock) {
        error = fail(Errc::thread_is_inside, "this thread is just getting its slots, or giving them up as it ends");
        return nullptr;
    }
    if (pool->index < lane_table.count) {
        const Seat &seat = lane_table.seats[pool->index];
        if (seat.lane != nullptr && seat.pool == pool) return make_current(seat.lane);
    }
    const SignalsBlocked signals_blocked;
    if (!grow_table(pool->index)) {
        error = fail_with_remedy(Errc::too_many_clients,
                                 "no memory for this thread's table of pools: let the process free some");
        return nullptr;
    }
    Seat &seat = lane_table.seats[pool->index];
    if (seat.lane != nullptr) free_lane(seat);  // the lane of a pool that was detached
    {
        const TableLock lock;
        look_at_some();
    }
    bool is_in = enter_anew(pool, seat, error);
    if (!is_in) {
        {
            const TableLock lock;
            look_at_all();
        }
        is_in = enter_anew(pool, seat, error);
    }
    return is_in ? make_current(seat.lane) : nullptr;
}

Lane *find_lane(const numacre_pool *pool) {
    const LaneTable &table = lane_table;
    if (table.has_lock || pool->index >= table.count || table.seats[pool->index].pool != pool) return nullptr;
    return table.seats[pool->index].lane;
}

void leave_pool(numacre_pool *pool) {
    const SignalsBlocked signals_blocked;
    const LaneTable &table = lane_table;
    if (pool->index >= table.count || table.seats[pool->index].lane == nullptr) return;
    Seat &seat = table.seats[pool->index];
    if (seat.pool == pool) give_up_slot(pool, *seat.lane);
    free_lane(seat);
}

}  // namespace numacre::client
