// Byte counts in people's notation: 4096, 4K, 2M, 1G, 1T (powers of 1024; "KiB" and "KB" mean "K").
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/failure.hpp"

namespace numacre::daemon {

// Refuses signs, fractions, blanks, unknown units and numbers that do not fit 64 bits; the message names the text.
Answer<std::uint64_t> parse_bytes(std::string_view text);

// Exact, and parse_bytes() reads it back: uses the largest unit that divides the number. 268435456 -> "256M", 4097 ->
// "4097".
std::string format_bytes(std::uint64_t bytes);

// The online sizes that numa nodes begin with: one size for all, or several with slashes between them, "256M/128M": one
// for each numa node, the last one for all further numa nodes.
Answer<std::vector<std::uint64_t>> parse_node_bytes(std::string_view text);

}  // namespace numacre::daemon
