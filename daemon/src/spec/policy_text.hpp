// The spelling of placement policies.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/failure.hpp"
#include "engine.hpp"
#include "numacre/shm/policy.hpp"

namespace numacre::daemon {

// "local" (or "nearest"), "strict", "preferred:1", "interleave", "interleave-frames"; all but local may name numa nodes
// of the pool: "interleave:0-2+5". The only spelling: in the configuration, and in the control plane.
Answer<Policy> parse_policy(std::string_view text);
std::string format_policy(const Policy &policy);
// Checks that a pool with so many numa nodes has those that the policy names.
Answer<void> check_policy(const Policy &policy, std::uint32_t numa_nodes);

}  // namespace numacre::daemon
