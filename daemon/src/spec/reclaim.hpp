// The spelling of the treatments of a dead client's blocks.
#pragma once

#include <string>
#include <string_view>

#include "base/failure.hpp"
#include "spec/pool_config.hpp"

namespace numacre::daemon {

// "fast", "zero", "quarantine:30s" (also m, h; 1 s to 24 h). The only spelling: in the configuration, and in the
// control plane.
Answer<Reclaim> parse_reclaim(std::string_view text);
std::string format_reclaim(const Reclaim &reclaim);

}  // namespace numacre::daemon
