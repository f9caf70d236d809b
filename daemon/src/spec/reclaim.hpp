// The spelling of the treatments of a dead client's blocks, and of the time that they wait under a pin.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "base/failure.hpp"
#include "spec/pool_config.hpp"

namespace numacre::daemon {

// "fast", "zero", "quarantine:30s" (also m, h; 1 s to 24 h). The only spelling: in the configuration, and in the
// control plane.
Answer<Reclaim> parse_reclaim(std::string_view text);
// "5s", likewise.
Answer<std::chrono::seconds> parse_pin_quarantine(std::string_view text);
std::string format_reclaim(const Reclaim &reclaim);

}  // namespace numacre::daemon
