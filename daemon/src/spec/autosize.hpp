// When a pool grows and shrinks by itself. Pure: the figures of the last while in, the size to have out. Off unless
// asked for; an operator's resize begins the while anew.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/failure.hpp"
#include "spec/pool_config.hpp"

namespace numacre::daemon {

// "off", or LOW-HIGH:MIN-MAX[:STEP[:AFTER]], such as "10%-50%:64M-1G:64M:30s". The one spelling: in the configuration,
// in the control plane.
Answer<Autosize> parse_autosize(std::string_view text);
std::string format_autosize(const Autosize &autosize);

// What a numa node of a pool looked like, at a moment or for a short while from then on.
struct AutosizeSample {
    std::chrono::steady_clock::time_point time;
    std::uint64_t free_bytes = 0;  // at the while's end
    std::uint64_t online_bytes = 0;
    std::uint64_t least_free_bytes = free_bytes, most_free_bytes = free_bytes;
};

// Adds a sample, and drops what is too old to count. Anybody who looks at the pool makes a sample, as often as they
// like: the history stays short, and reaches back far enough.
void remember(std::deque<AutosizeSample> &history, const AutosizeSample &sample, std::chrono::seconds after);

// The bytes to have online instead of the last sample's; nothing: leave it. history: the oldest first. It grows if less
// than `low` of what is online was free in each sample of the last `after`, and shrinks if it was more than `high` and
// would still be more than halfway between both afterwards, so that one never follows from the other. Samples of
// another size count for nothing.
std::optional<std::uint64_t> autosize_wants(const Autosize &autosize, std::span<const AutosizeSample> history,
                                            std::uint64_t unit_bytes);

}  // namespace numacre::daemon
