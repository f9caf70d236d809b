// Byte counts as people write them: 4096, 4K, 2M, 1G, 1T (powers of 1024; "KiB" and "KB" mean the same as "K").
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "pool_manager.hpp"

namespace numacre::daemon {

// Refuses signs, fractions, blanks, unknown units and what does not fit 64 bits; the message names the text.
Answer<std::uint64_t> parse_bytes(std::string_view text);

// Exact and parsed back by parse_bytes: the largest unit that divides it. 268435456 -> "256M", 4097 -> "4097".
std::string format_bytes(std::uint64_t bytes);

}  // namespace numacre::daemon
