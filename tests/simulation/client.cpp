// The client's sources as they are, and the kernel that they see: futexes, clock, memory and the thread's numa node are
// the scheduler's. Left out are those that talk to sockets, files and the kernel's tables (attach, regions, events,
// guard, placement, record): the simulator's next stage.
#include "client.hpp"

#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <dlfcn.h>
#include <sched.h>

#include "scheduler.hpp"

namespace numacre::simulation {
namespace {

constexpr std::size_t kHeapBytes = std::size_t{256} << 20;
std::byte *heap = nullptr;
std::size_t heap_used = 0;
std::uint32_t os_node = 0;

// What a killed fiber had is gone with its run: nothing is freed one by one.
void *simulated_allocation(std::size_t bytes, std::size_t alignment) {
    if (heap == nullptr) {
        void *const memory =
            mmap(nullptr, kHeapBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) return nullptr;
        heap = static_cast<std::byte *>(memory);
    }
    heap_used = round_up(heap_used, alignment);
    if (heap_used + bytes > kHeapBytes) return nullptr;
    void *const place = heap + heap_used;
    heap_used += bytes;
    return place;
}
void *simulated_malloc(std::size_t bytes) {
    void *const place = simulated_allocation(bytes, 16);
    if (place != nullptr) std::memset(place, 0, bytes);
    return place;
}
void simulated_free(void *) {}
}  // namespace
}  // namespace numacre::simulation

// What these sources ask of the kernel.
namespace numacre::os {

using namespace engine;
using simulation::Scheduler;

// Of the client's own memory only: what it maps of a pool is left out. What is tiny is the process's for good: the
// generation that tells forked children.
void *mmap(void *, std::size_t bytes, int protection, int flags, int, off_t) {
    if (bytes < kCacheLineBytes) return ::mmap(nullptr, bytes, protection, flags, -1, 0);
    void *const place = simulation::simulated_allocation(bytes, kPageBytes);  // zeroed: forget_clients()
    return place == nullptr ? MAP_FAILED : place;
}
int munmap(void *, std::size_t) {
    return 0;
}
int madvise(void *, std::size_t, int) {
    return 0;
}
void futex_wake(std::uint32_t *word, int) {
    simulation::step();
    Scheduler::running->wake(word);
}
int futex_wait(std::uint32_t *word, std::uint32_t value, const timespec *time) {
    simulation::step();
    if (*word != value) return EAGAIN;
    if (Scheduler::running->random().one_in(16)) return 0;  // as the kernel may
    const bool is_woken = Scheduler::running->wait_on(
        word, static_cast<std::uint64_t>(time->tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(time->tv_nsec));
    return is_woken ? 0 : ETIMEDOUT;
}
// Every access is at once visible to all.
int register_for_barriers() {
    return 0;
}
int pass_barrier() {
    simulation::step();
    return 0;
}
int clock_gettime(clockid_t, timespec *time) {
    const std::uint64_t now = Scheduler::running == nullptr ? 1 : Scheduler::running->now_ns();
    time->tv_sec = static_cast<time_t>(now / 1'000'000'000);
    time->tv_nsec = static_cast<long>(now % 1'000'000'000);
    return 0;
}
int sched_yield() {
    return ::sched_yield();
}
int pthread_sigmask(int, const sigset_t *, sigset_t *) {
    return 0;
}
int pthread_once(pthread_once_t *once, void (*routine)()) {
    return ::pthread_once(once, routine);
}
int pthread_mutex_lock(pthread_mutex_t *mutex) {
    return ::pthread_mutex_lock(mutex);
}
int pthread_mutex_unlock(pthread_mutex_t *mutex) {
    return ::pthread_mutex_unlock(mutex);
}
// Nobody's twice: all processes of a run share the library's list of threads, none of whom is ever found gone.
pid_t gettid() {
    static pid_t last = 0;
    return ++last;
}
pid_t getpid() {
    return 0;
}
bool thread_is_gone(pid_t) {
    return false;
}
int pthread_key_create(pthread_key_t *key, void (*at_thread_end)(void *)) {
    return ::pthread_key_create(key, at_thread_end);
}
int pthread_setspecific(pthread_key_t key, const void *value) {
    return ::pthread_setspecific(key, value);
}
int pthread_atfork(void (*prepare)(), void (*in_parent)(), void (*in_child)()) {
    return ::pthread_atfork(prepare, in_parent, in_child);
}

}  // namespace numacre::os

#define malloc(bytes)        ::numacre::simulation::simulated_malloc(bytes)
#define calloc(count, bytes) ::numacre::simulation::simulated_malloc((count) * (bytes))
#include "client/src/allocate.cpp"
#include "client/src/api.cpp"
#include "client/src/bulk.cpp"
#include "client/src/cache.cpp"
#include "client/src/free.cpp"
#include "client/src/hold.cpp"
#include "client/src/idle.cpp"
#include "client/src/policy.cpp"
#include "client/src/quota.cpp"
#include "client/src/reference.cpp"
#include "client/src/report.cpp"
#include "client/src/run.cpp"
#include "client/src/waiting.cpp"
// Only here: elsewhere it is a member's name.
#define free(place) ::numacre::simulation::simulated_free(place)
#include "client/src/threads.cpp"
#undef free
#undef malloc
#undef calloc

// --- what the sources that are left out define -----------------------------------------------------------------------

namespace numacre::client {

int fail(Errc code, const char *, ...) {
    return -to_errno(code);
}
int fail_with_remedy(Errc code, const char *, ...) {
    return -to_errno(code);
}
int fail_without_memory(const char *, ...) {
    return -to_errno(Errc::out_of_frames);
}
void FirstFailure::keep(int error) {
    if (error_ == 0) error_ = error;
}
const char *last_error() {
    return "";
}
std::uint32_t os_numa_node() {
    return simulation::os_node;
}
KernelPlacement ask_kernel(const numacre_pool *pool) {
    return {{}, first_numa_nodes(pool->numa_nodes)};
}
numacre_pool *new_handle() {
    void *const memory = simulation::simulated_allocation(sizeof(numacre_pool), alignof(numacre_pool));
    return memory == nullptr ? nullptr : new (memory) numacre_pool;
}
void release_handle(numacre_pool *pool) {
    pool->references.fetch_sub(1, std::memory_order_acq_rel);
}
std::atomic<bool> is_recording = false;
void record_allocation(numacre_pool *, const void *, std::size_t) {}
void record_free(numacre_pool *, const void *) {}
void forget_recording_in_child() {}
void close_connection(numacre_pool *) {}
void close_guard(numacre_pool *) {}
void close_descriptors(numacre_pool *) {}

}  // namespace numacre::client

namespace numacre::simulation {

static_assert(sizeof(client::lane_table) <= sizeof(ThreadLocals::table));

void load_thread_locals(const ThreadLocals &locals) {
    numacre_inline_lane_2 = locals.lane == nullptr ? &client::no_lane : static_cast<numacre_inline_lane *>(locals.lane);
    std::memcpy(static_cast<void *>(&client::lane_table), locals.table, sizeof client::lane_table);
}
void save_thread_locals(ThreadLocals &locals) {
    locals.lane = numacre_inline_lane_2;
    std::memcpy(locals.table, static_cast<const void *>(&client::lane_table), sizeof client::lane_table);
}
void set_os_numa_node(std::uint32_t numa_node) {
    os_node = numa_node;
}
void forget_clients() {
    if (heap_used != 0) madvise(heap, round_up(heap_used, kPageBytes), MADV_DONTNEED);
    heap_used = 0;
    for (numacre_pool *&handle : client::handles) handle = nullptr;
    client::noted_tables = client::next_look = nullptr;
}

}  // namespace numacre::simulation
