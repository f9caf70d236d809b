// Limits that only warn: when something has gone beyond one, and when it is back. Pure: what was and the figures in,
// what is now out. Being back takes an eighth more, so that what goes up and down around a limit is told once.
#pragma once

#include <algorithm>
#include <cstdint>

namespace numacre::daemon {

inline constexpr std::uint64_t kHysteresisShare = 8;

// A client's use, against its soft quota. 0: it has none.
constexpr bool is_over_soft_quota(bool was_over, std::uint64_t used_bytes, std::uint64_t soft_bytes) {
    if (soft_bytes == 0) return false;
    return used_bytes > (was_over ? soft_bytes - soft_bytes / kHysteresisShare : soft_bytes);
}

// What is free on a numa node, against the pool's low watermark. 0: it has none.
constexpr bool is_below_watermark(bool was_below, std::uint64_t free_bytes, std::uint64_t online_bytes,
                                  std::uint64_t watermark_bytes) {
    if (watermark_bytes == 0) return false;
    if (!was_below) return free_bytes < watermark_bytes;
    // More than all that is online cannot be free: a watermark near to it would never be left again.
    const std::uint64_t back_at =
        std::min(watermark_bytes + watermark_bytes / kHysteresisShare, std::max(watermark_bytes, online_bytes));
    return free_bytes < back_at;
}

}  // namespace numacre::daemon
