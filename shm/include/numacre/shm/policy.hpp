// The choice of numa nodes for a pool's blocks, in the words of set_mempolicy(2). Nodes are the pool's own numbers.
#pragma once

#include <bit>
#include <cstdint>

#include "numacre/shm/owner.hpp"

namespace numacre::engine {

// The values are those in shared memory and in the C ABI.
enum class PolicyMode : std::uint32_t {
    unset = 0,              // no policy is set: the next level decides
    local = 1,              // the calling thread's numa node, then the others by distance from that node
    strict = 2,             // the given ones and no other, nearest first; none given: the calling thread's
    preferred = 3,          // the given ones, nearest first, then the others by distance
    interleave = 4,         // in turn, block by block, each thread by itself; none given: all
    interleave_frames = 5,  // in turn, so that each gives about as many frames
};
inline constexpr std::uint32_t kPolicyModes = 6;

struct Policy {
    PolicyMode mode = PolicyMode::unset;
    std::uint64_t nodes = 0;  // bit n: numa node n; 0: none given

    constexpr bool is_interleave() const {
        return mode == PolicyMode::interleave || mode == PolicyMode::interleave_frames;
    }
    friend constexpr bool operator==(const Policy &, const Policy &) = default;
};

static_assert(kMaxNumaNodes == 64, "one bit a numa node");
constexpr std::uint64_t first_numa_nodes(std::uint32_t count) {
    return count >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1;
}
constexpr std::uint64_t bit_of(std::uint32_t numa_node) {
    return std::uint64_t{1} << numa_node;
}

// Makes a valid policy of values in shared memory, which anybody may have written.
constexpr Policy sound_policy(std::uint32_t mode, std::uint64_t nodes, std::uint32_t numa_nodes) {
    const Policy policy{static_cast<PolicyMode>(mode), nodes & first_numa_nodes(numa_nodes)};
    if (mode == 0 || mode >= kPolicyModes || (nodes != 0 && policy.nodes == 0)) return {PolicyMode::local, 0};
    return policy;
}

}  // namespace numacre::engine
