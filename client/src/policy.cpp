// The choice of numa nodes for a thread's blocks: by the policy of the call, else of the handle (numacre_set_policy),
// else of the thread (its mempolicy), else of the pool; always within the thread's cpuset.
//
// The hot path looks up one byte, by the numa node on which the thread runs (Choices). As long as every call gets the
// local numa node, the byte is that node, and no policy costs anything. Otherwise the byte is "think": a node without
// blocks, so that the call finds nothing in the cache and comes here.
#include "policy.hpp"

#include <sys/mman.h>
#include <time.h>

#include <cerrno>
#include <cstring>

#include "errors.hpp"
#include "numacre/numacre.h"
#include "numacre/os/kernel.hpp"
#include "pool.hpp"

namespace numacre::client {
namespace {

constexpr std::uint64_t kPlacementLooksAgainAfterNanoseconds = 1'000'000'000;

std::uint64_t coarse_now() {
    timespec time{};
    os::clock_gettime(CLOCK_MONOTONIC_COARSE, &time);  // vdso
    return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(time.tv_nsec);
}

// The numa node that counts as the thread's own, regardless of policies.
std::uint32_t local_node(const numacre_pool *pool, std::uint32_t os_node) {
    return os_node < kMaxOsNumaNodes ? pool->dense_node_of[os_node] : 0;
}

const std::uint8_t *by_distance_from(const numacre_pool *pool, std::uint32_t os_node) {
    for (std::uint32_t i = 0; i < pool->stranger_count; ++i)
        if (pool->strangers[i].os_node == os_node) return pool->strangers[i].by_distance;
    return pool->nearest[local_node(pool, os_node)];
}

Surroundings surroundings(const numacre_pool *pool, std::uint64_t allowed, std::uint32_t os_node) {
    return {pool->numa_nodes, allowed, by_distance_from(pool, os_node), pool->nearest};
}

void store_choices(const numacre_pool *pool, Choices &choices, const Placement &placement) {
    const auto think = static_cast<std::uint8_t>(pool->numa_nodes);
    const auto choice = [&](const std::uint8_t *by_distance, std::uint8_t local) {
        if (placement.policy.is_interleave()) return think;
        const Surroundings there{pool->numa_nodes, placement.allowed, by_distance, pool->nearest};
        return plan_without_turn(placement.policy, there).first == local ? local : think;
    };
    std::uint8_t of_own[kMaxNumaNodes];
    for (std::uint32_t node = 0; node < pool->numa_nodes; ++node)
        of_own[node] = choice(pool->nearest[node], static_cast<std::uint8_t>(node));
    // relaxed: see Choices.
    for (std::size_t os_node = 0; os_node < kMaxOsNumaNodes; ++os_node)
        choices.of[os_node].store(of_own[pool->dense_node_of[os_node]], std::memory_order_relaxed);
    for (std::uint32_t i = 0; i < pool->stranger_count; ++i) {
        const Stranger &stranger = pool->strangers[i];
        choices.of[stranger.os_node].store(choice(stranger.by_distance, pool->dense_node_of[stranger.os_node]),
                                           std::memory_order_relaxed);
    }
}

void store_think(const numacre_pool *pool, Choices &choices) {
    for (auto &choice : choices.of)
        choice.store(static_cast<std::uint8_t>(pool->numa_nodes), std::memory_order_relaxed);
}

Choices &choices_of(numacre_pool *pool, const Lane &lane) {
    return pool->choices[lane.actor.thread.value];
}

std::uint64_t frames_of(const numacre_pool *pool, std::size_t size_bytes) {
    return size_bytes == 0 ? 0 : std::bit_ceil(((size_bytes - 1) >> pool->geometry.frame_shift()) + 1);
}

Plan only_plan(const numacre_pool *pool) {
    return {0, pool->nearest[0], 1, 0, false};
}

// Checks mode and nodes of a call, also for a pool of one numa node. Returns 0 and the policy, or -errno with the error
// remembered.
int check_policy(const numacre_pool *pool, const char *function, int mode, std::uint64_t nodes, Policy &policy) {
    if (mode < 0 || static_cast<std::uint32_t>(mode) >= kPolicyModes)
        return fail(Errc::bad_argument, "%s: mode %d is none of NUMACRE_POLICY_...", function, mode);
    policy = {static_cast<PolicyMode>(mode), nodes};
    if ((nodes & ~first_numa_nodes(pool->numa_nodes)) != 0)
        return fail(Errc::no_such_node, "%s: numa nodes %#llx are not all within 0 .. %u", function,
                    static_cast<unsigned long long>(nodes), pool->numa_nodes - 1);
    if (nodes != 0 && (policy.mode == PolicyMode::unset || policy.mode == PolicyMode::local))
        return fail(Errc::bad_argument, "%s: numa nodes %#llx with a mode that takes none", function,
                    static_cast<unsigned long long>(nodes));
    return 0;
}

int none_allowed(const char *function, std::uint64_t nodes, std::uint64_t allowed) {
    return fail_with_remedy(
        Errc::bad_argument,
        "%s: of numa nodes %#llx this thread's cpuset allows none, only %#llx: name one of those, widen the "
        "cpuset, or set NUMACRE_MEMPOLICY=ignore",
        function, static_cast<unsigned long long>(nodes), static_cast<unsigned long long>(allowed));
}

}  // namespace

int make_choices(numacre_pool *pool) {
    if (pool->numa_nodes == 1) return 0;
    // Only the entries of existing threads are touched.
    void *const memory = os::mmap(nullptr, pool->view.thread_slots * sizeof(Choices), PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return fail_without_memory("no memory for a pool handle: %s", strerror(errno));
    pool->choices = static_cast<Choices *>(memory);
    return 0;
}

void delete_choices(numacre_pool *pool) {
    if (pool->choices != nullptr) os::munmap(pool->choices, pool->view.thread_slots * sizeof(Choices));
}

void begin_placement(numacre_pool *pool, Lane &lane) {
    if (pool->numa_nodes == 1) return;
    lane.placement.policy = {PolicyMode::local, 0};
    lane.placement.allowed = first_numa_nodes(pool->numa_nodes);
    lane.placement.policy_version = 1;  // odd: no complete version
    store_think(pool, choices_of(pool, lane));
    look_at_placement(pool, lane);
}

void look_at_placement(numacre_pool *pool, Lane &lane) {
    const NotCancelled not_cancelled;  // ask_kernel() may read a file
    if (pool->numa_nodes == 1) return;
    Placement &placement = lane.placement;
    const KernelPlacement kernel = ask_kernel(pool);
    placement.looked_at_ns = coarse_now();
    placement.os_node = os_numa_node();
    for (;;) {
        // acquire; partner: the second fetch_add in numacre_set_policy. Makes its stores of mode and nodes visible.
        const std::uint32_t version = pool->policy_version.load(std::memory_order_acquire);
        if (version % 2 != 0) return;  // a thread is setting the policy, and afterwards makes us look again
        // relaxed: an unchanged version proves that mode and nodes belong together.
        Policy policy{static_cast<PolicyMode>(pool->policy_mode.load(std::memory_order_relaxed)),
                      pool->policy_nodes.load(std::memory_order_relaxed)};
        if (policy.mode == PolicyMode::unset) policy = kernel.policy;
        if (policy.mode == PolicyMode::unset) policy = pool->pool_policy;
        if (!(policy == placement.policy) || kernel.allowed != placement.allowed)
            placement.turns = Turns{lane.actor.thread.value % kMaxNumaNodes, {}};
        placement.policy = policy;
        placement.allowed = kernel.allowed;
        store_choices(pool, choices_of(pool, lane), placement);
        // acq_rel; partner: both fetch_adds in numacre_set_policy. Puts our choices before its "think", if it has not
        // begun yet. Weakened: our old choice lands on its "think", and this thread never hears of the policy.
        if (pool->policy_version.fetch_add(0, std::memory_order_acq_rel) == version) {
            placement.policy_version = version;
            return;
        }
    }
}

const Placement &placement_of(numacre_pool *pool, Lane &lane) {
    Placement &placement = lane.placement;
    if (pool->numa_nodes == 1) return placement;
    placement.os_node = os_numa_node();
    // relaxed: look_at_placement() acquires.
    if (placement.policy_version != pool->policy_version.load(std::memory_order_relaxed) ||
        coarse_now() - placement.looked_at_ns >= kPlacementLooksAgainAfterNanoseconds)
        look_at_placement(pool, lane);
    return placement;
}

Plan plan_of(numacre_pool *pool, Lane &lane, std::size_t size_bytes) {
    if (pool->numa_nodes == 1) return only_plan(pool);
    const Placement &placement = placement_of(pool, lane);
    const Plan plan = plan_by(placement.policy, surroundings(pool, placement.allowed, placement.os_node),
                              lane.placement.turns, frames_of(pool, size_bytes));
    // The byte said "think", and the plan is local again: the look sets the byte to the local node for the next call.
    if (!plan.is_turn && plan.first == local_node(pool, placement.os_node) && placement.os_node < kMaxOsNumaNodes &&
        obvious_numa_node(lane) == pool->numa_nodes)
        look_at_placement(pool, lane);
    return plan;
}

Plan plan_with(numacre_pool *pool, Lane &lane, const Policy &policy, std::size_t size_bytes) {
    if (policy.mode == PolicyMode::unset) return plan_of(pool, lane, size_bytes);
    if (pool->numa_nodes == 1) return only_plan(pool);
    const Placement &placement = placement_of(pool, lane);
    return plan_by(policy, surroundings(pool, placement.allowed, placement.os_node), lane.placement.turns,
                   frames_of(pool, size_bytes));
}

Plan plan_on(numacre_pool *pool, Lane &lane, std::uint32_t numa_node) {
    if (pool->numa_nodes == 1) return only_plan(pool);
    const Placement &placement = placement_of(pool, lane);
    return plan_on(surroundings(pool, placement.allowed, placement.os_node), numa_node);
}

void note_placement(numacre_pool *pool, Lane &lane, const Plan &plan, std::uint32_t numa_node, unsigned count) {
    if (pool->numa_nodes == 1) return;
    const auto counters_of = [&](std::uint32_t node) -> ThreadCounters<Env> & {
        return pool->nodes[node].buddy().view().counters[lane.actor.thread.value];
    };
    ThreadCounters<Env> &counters = counters_of(numa_node);
    if (numa_node != plan.first) {
        numacre::engine::count(counters.numa_miss, count);
        numacre::engine::count(counters_of(plan.first).numa_foreign, count);
    }
    if (numa_node != local_node(pool, lane.placement.os_node)) numacre::engine::count(counters.numa_other, count);
    if (plan.is_turn && numa_node == plan.first) numacre::engine::count(counters.interleave_hit, count);
}

int policy_of_call(numacre_pool *pool, Lane &lane, int mode, std::uint64_t nodes, Policy &policy) {
    if (const int error = check_policy(pool, "numacre_alloc_policy", mode, nodes, policy)) return error;
    if (pool->numa_nodes == 1 || nodes == 0) return 0;
    const Placement &placement = placement_of(pool, lane);
    return (nodes & placement.allowed) != 0 ? 0 : none_allowed("numacre_alloc_policy", nodes, placement.allowed);
}

}  // namespace numacre::client

using namespace numacre;
using namespace numacre::client;

extern "C" int numacre_set_policy(numacre_pool *pool, int mode, uint64_t numa_nodes) {
    if (pool == nullptr) return fail(Errc::bad_argument, "numacre_set_policy: the pool is NULL");
    if (pool->fork_generation != fork_generation()) return fail_forked();
    const NotCancelled not_cancelled;
    Policy policy;
    if (const int error = check_policy(pool, "numacre_set_policy", mode, numa_nodes, policy)) return error;
    if (pool->numa_nodes == 1) return 0;  // there is nothing to choose
    if (const std::uint64_t allowed = ask_kernel(pool).allowed; numa_nodes != 0 && (numa_nodes & allowed) == 0)
        return none_allowed("numacre_set_policy", numa_nodes, allowed);
    pthread_mutex_lock(&pool->policy_mutex);
    // acq_rel, both; partners: the load and the fetch_add in look_at_placement().
    pool->policy_version.fetch_add(1, std::memory_order_acq_rel);
    pool->policy_mode.store(static_cast<std::uint32_t>(policy.mode), std::memory_order_relaxed);
    pool->policy_nodes.store(policy.nodes, std::memory_order_relaxed);
    pool->policy_version.fetch_add(1, std::memory_order_acq_rel);
    // The next call of every thread takes the slow path.
    for (std::uint32_t slot = 1; slot < pool->view.threads_in_use_bound(); ++slot) {
        const ThreadOwner owner{pool->view.threads[slot].owner.load(std::memory_order_relaxed)};
        if (owner.in_use() && owner.process() == pool->process) store_think(pool, pool->choices[slot]);
    }
    pthread_mutex_unlock(&pool->policy_mutex);
    return 0;
}

extern "C" int numacre_get_policy(numacre_pool *pool, int *mode, uint64_t *numa_nodes, uint64_t *allowed_nodes) {
    if (pool == nullptr) return fail(Errc::bad_argument, "numacre_get_policy: the pool is NULL");
    int error = 0;
    Lane *const lane = lane_of(pool, error);
    if (lane == nullptr) return error;
    look_at_placement(pool, *lane);
    const Placement &placement = lane->placement;
    const bool is_single = pool->numa_nodes == 1;
    if (mode != nullptr) *mode = static_cast<int>(is_single ? PolicyMode::local : placement.policy.mode);
    if (numa_nodes != nullptr) *numa_nodes = is_single ? 0 : placement.policy.nodes;
    if (allowed_nodes != nullptr) *allowed_nodes = is_single ? 1 : placement.allowed;
    return 0;
}
