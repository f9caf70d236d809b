// Decides when a pool grows and shrinks by itself. Pure: the recent figures go in, the wanted online size comes out.
// Off unless asked for. An operator's resize begins the observation time anew.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/failure.hpp"
#include "spec/pool_config.hpp"

namespace numacre::daemon {

// "off", or LOW-HIGH:MIN-MAX[:STEP[:AFTER]], such as "10%-50%:64M-1G:64M:30s". The only spelling: in the configuration,
// and in the control plane.
Answer<Autosize> parse_autosize(std::string_view text);
std::string format_autosize(const Autosize &autosize);

// The figures of a pool's numa node, at a moment or for a short time from then on.
struct AutosizeSample {
    std::chrono::steady_clock::time_point time;
    std::uint64_t free_bytes = 0;  // at the end of that time
    std::uint64_t online_bytes = 0;
    std::uint64_t least_free_bytes = free_bytes, most_free_bytes = free_bytes;
};

// Adds a sample, and drops samples that are too old to count. Each look at the pool adds a sample, as often as callers
// like: the history stays short, and reaches back far enough.
void remember(std::deque<AutosizeSample> &history, const AutosizeSample &sample, std::chrono::seconds after);

// The bytes to have online, instead of the online bytes of the last sample; no value: leave the size. history begins
// with the oldest sample. The size grows if less than `low` of the online memory was free in each sample of the last
// `after`. It shrinks if more than `high` was free in each, and if afterwards the free share would still be more than
// halfway between both: so a growth never follows from a shrink, nor a shrink from a growth. Samples of another size do
// not count.
std::optional<std::uint64_t> autosize_wants(const Autosize &autosize, std::span<const AutosizeSample> history,
                                            std::uint64_t unit_bytes);

struct AutosizeWish {
    std::size_t numa_node = 0;  // the pool's
    std::uint64_t from_bytes = 0, to_bytes = 0;
};
// The last shrink of any numa node of the pool. No time: none has shrunk yet.
struct LastShrink {
    std::size_t numa_node = 0;
    std::optional<std::chrono::steady_clock::time_point> time;
};

// Asks autosize_wants() for each numa node of a pool; histories and unit_bytes are by numa node. Any number of them may
// grow at once, but only one shrinks, and the next one only when `after` has passed since `last`: their samples may
// show the same free memory, as when a promise counts as far as the other numa nodes do not have it. They take turns.
// `last` is replaced if the answer has a shrink.
std::vector<AutosizeWish> autosize_wishes(const Autosize &autosize,
                                          std::span<const std::deque<AutosizeSample>> histories,
                                          std::span<const std::uint64_t> unit_bytes, LastShrink &last);

}  // namespace numacre::daemon
