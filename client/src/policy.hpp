// The choice of a block's numa nodes and of their order, computed from numbers alone.
#pragma once

#include <bit>
#include <cstdint>

#include "engine.hpp"
#include "numacre/shm/policy.hpp"

namespace numacre::client {

// The inputs of a choice beside the policy.
struct Surroundings {
    std::uint32_t numa_nodes = 0;                            // of the pool
    std::uint64_t allowed = 0;                               // those that the cpuset allows; at least one
    const std::uint8_t *by_distance = nullptr;               // all of them, by distance from the calling thread's CPU
    const std::uint8_t (*nearest)[kMaxNumaNodes] = nullptr;  // all of them, by distance from each of them
};

// The plan of one block: try `first`, then the numa nodes of `sooner`, then those of `later`, each set by distance.
struct Plan {
    std::uint32_t first = 0;
    const std::uint8_t *by_distance = nullptr;
    std::uint64_t sooner = 0;
    std::uint64_t later = 0;
    bool is_turn = false;  // first was chosen by a policy that interleaves

    constexpr Plan no_further() const { return {first, by_distance, 0, 0, is_turn}; }

    // Visits the other numa nodes of the plan in order, until visit(numa_node) returns true. False: no visit returned
    // true.
    template <class Visit>
    constexpr bool any_other(std::uint32_t numa_nodes, Visit visit) const {
        for (const std::uint64_t wanted : {sooner, later & ~sooner})
            for (std::uint32_t rank = 0; wanted != 0 && rank < numa_nodes; ++rank) {
                const std::uint32_t node = by_distance[rank];
                if (node != first && (wanted & bit_of(node)) != 0 && visit(node)) return true;
            }
        return false;
    }
};

// The state of one thread's interleaving.
struct Turns {
    std::uint32_t last = 0;
    std::uint64_t frames_given[kMaxNumaNodes] = {};

    // among: at least one numa node.
    constexpr std::uint32_t next(std::uint64_t among, bool by_frames, std::uint64_t frames) {
        const auto behind = static_cast<int>(last + 1) % 64;
        auto node = static_cast<std::uint32_t>((std::countr_zero(std::rotr(among, behind)) + behind) % 64);
        if (by_frames)
            for (std::uint64_t left = among; left != 0; left &= left - 1) {
                const auto other = static_cast<std::uint32_t>(std::countr_zero(left));
                if (frames_given[other] < frames_given[node]) node = other;
            }
        last = node;
        frames_given[node] += frames;
        return node;
    }
};

// The nearest numa node of `among`, which has at least one.
constexpr std::uint32_t nearest_of(const std::uint8_t *by_distance, std::uint32_t numa_nodes, std::uint64_t among) {
    for (std::uint32_t rank = 0; rank < numa_nodes; ++rank)
        if ((among & bit_of(by_distance[rank])) != 0) return by_distance[rank];
    return static_cast<std::uint32_t>(std::countr_zero(among)) % kMaxNumaNodes;
}

// A plan for one numa node, and for the others only if that one is full. numa_node: one that the cpuset allows.
constexpr Plan plan_on(const Surroundings &here, std::uint32_t numa_node) {
    return {numa_node, here.nearest[numa_node], here.allowed, 0, false};
}

// A plan by a policy that does not interleave. A policy that names no allowed node counts as a policy without nodes.
constexpr Plan plan_without_turn(const Policy &policy, const Surroundings &here) {
    const std::uint64_t named = policy.nodes & here.allowed;
    const std::uint64_t choice = policy.mode == PolicyMode::local || named == 0 ? here.allowed : named;
    Plan plan{nearest_of(here.by_distance, here.numa_nodes, choice), here.by_distance, choice, 0, false};
    if (policy.mode == PolicyMode::strict) return named == 0 ? plan.no_further() : plan;
    // After a single preferred node come those nearest to that node, as in the kernel.
    if (policy.mode == PolicyMode::preferred && std::has_single_bit(named)) return plan_on(here, plan.first);
    plan.later = here.allowed;
    return plan;
}

// A plan by any policy, for a block of `frames` frames. A policy that interleaves takes a turn.
constexpr Plan plan_by(const Policy &policy, const Surroundings &here, Turns &turns, std::uint64_t frames) {
    if (!policy.is_interleave()) return plan_without_turn(policy, here);
    const std::uint64_t named = policy.nodes & here.allowed;
    Plan plan = plan_on(
        here, turns.next(named != 0 ? named : here.allowed, policy.mode == PolicyMode::interleave_frames, frames));
    plan.is_turn = true;
    return plan;
}

}  // namespace numacre::client
