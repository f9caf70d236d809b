// The client's sources as they are, over the simulated kernel. Left out are those that ask for what the kernel of these
// runs has not (placement, record, private pools).
#include "../client.hpp"

#include <dlfcn.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "kernel.hpp"

namespace numacre::simulation {
namespace {

// Zeroed, as calloc()'s is: a piece may have been another's.
void *simulated_malloc(std::size_t bytes) {
    void *const place = Kernel::running->allocate(bytes);
    if (place != nullptr) std::memset(place, 0, bytes);
    return place;
}
void simulated_free(void *place) {
    if (place != nullptr && !Kernel::running->release(place)) std::free(place);
}

}  // namespace
}  // namespace numacre::simulation

#define malloc(bytes)        ::numacre::simulation::simulated_malloc(bytes)
#define calloc(count, bytes) ::numacre::simulation::simulated_malloc((count) * (bytes))
#include "client/src/adopt.cpp"
#include "client/src/allocate.cpp"
#include "client/src/api.cpp"
#include "client/src/bulk.cpp"
#include "client/src/cache.cpp"
#include "client/src/descriptors.cpp"
#include "client/src/errors.cpp"
#include "client/src/events.cpp"
#include "client/src/free.cpp"
#include "client/src/guard.cpp"
#include "client/src/hold.cpp"
#include "client/src/idle.cpp"
#include "client/src/names.cpp"
#include "client/src/policy.cpp"
#include "client/src/quota.cpp"
#include "client/src/receive.cpp"
#include "client/src/reference.cpp"
#include "client/src/regions.cpp"
#include "client/src/report.cpp"
#include "client/src/run.cpp"
#include "client/src/waiting.cpp"
// Only here: elsewhere it is a member's name.
#define free(place) ::numacre::simulation::simulated_free(place)
#include "client/src/attach.cpp"
#include "client/src/connect.cpp"
#include "client/src/pin.cpp"
#include "client/src/threads.cpp"
#undef free
#undef malloc
#undef calloc

// --- what the sources that are left out define -----------------------------------------------------------------------

namespace numacre::client {

std::uint32_t os_numa_node() {
    // Of the thread's, and now and then of another's.
    simulation::Kernel &kernel = *simulation::Kernel::running;
    return static_cast<std::uint32_t>(kernel.scheduler().current()) % 2;
}
KernelPlacement ask_kernel(const numacre_pool *pool) {
    return {{}, first_numa_nodes(pool->numa_nodes)};
}
int read_heed(numacre_pool *) {
    return 0;
}
void place_other_numa_nodes(numacre_pool *) {}
void close_private_bells(numacre_pool *) {}
std::atomic<bool> is_recording = false;
int start_recording() {
    return 0;
}
void record_allocation(numacre_pool *, const void *, std::size_t) {}
void record_free(numacre_pool *, const void *) {}
void record_detach(numacre_pool *) {}
void forget_recording_in_child() {}

}  // namespace numacre::client

namespace numacre::simulation {

static_assert(sizeof(client::lane_table) <= sizeof(ThreadLocals::table));

void load_thread_locals(const ThreadLocals &locals) {
    if (Kernel::running != nullptr) Kernel::running->enter_process(locals.process);
    numacre_inline_lane_2 = locals.lane == nullptr ? &client::no_lane : static_cast<numacre_inline_lane *>(locals.lane);
    std::memcpy(static_cast<void *>(&client::lane_table), locals.table, sizeof client::lane_table);
    errno = locals.error;
}
void save_thread_locals(ThreadLocals &locals) {
    locals.lane = numacre_inline_lane_2;
    std::memcpy(locals.table, static_cast<const void *>(&client::lane_table), sizeof client::lane_table);
    locals.error = errno;
}

namespace {

constexpr std::size_t kHandlesKept = 16;  // a process of these runs has not more of them at once

// Every variable of the sources above that lives as long as its process. tests/simulation/README.md: a new one has to
// be named here, or all processes share it.
template <class Visit>
void for_each_global(const Visit &visit) {
    visit(&client::registry_mutex, sizeof client::registry_mutex);
    visit(&client::handles, kHandlesKept * sizeof client::handles[0]);
    visit(&client::last_serial, sizeof client::last_serial);
    visit(&client::once, sizeof client::once);
    visit(&client::thread_end_key, sizeof client::thread_end_key);
    visit(&client::has_key, sizeof client::has_key);
    visit(&client::first_generation, sizeof client::first_generation);
    visit(&client::generation, sizeof client::generation);
    visit(&client::page_is_wiped, sizeof client::page_is_wiped);
    visit(&client::telling_thread, sizeof client::telling_thread);
    visit(&client::last_generation, sizeof client::last_generation);
    visit(&client::noted_tables, sizeof client::noted_tables);
    visit(&client::next_look, sizeof client::next_look);
}

}  // namespace

void save_client_globals(ClientGlobals &globals) {
    std::byte *to = globals.bytes;
    for_each_global([&](const void *from, std::size_t bytes) {
        std::memcpy(to, from, bytes);
        to += bytes;
    });
    if (to > globals.bytes + sizeof globals.bytes) std::abort();
}
void load_client_globals(const ClientGlobals &globals) {
    const std::byte *from = globals.bytes;
    for_each_global([&](auto *to, std::size_t bytes) {
        std::memcpy(static_cast<void *>(to), from, bytes);
        from += bytes;
    });
}
const ClientGlobals &fresh_client_globals() {
    static const ClientGlobals fresh = [] {
        ClientGlobals globals{};
        save_client_globals(globals);
        return globals;
    }();
    return fresh;
}
void forget_once_in_child() {
    if (client::once == 1) client::once = PTHREAD_ONCE_INIT;
}

}  // namespace numacre::simulation
