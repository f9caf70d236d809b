// Limits that only warn: pure functions that say whether a value is beyond a limit, given whether it was and the
// figures. A value counts as back only an eighth of the limit further, so that a value that goes up and down around a
// limit is told once.
#pragma once

#include <algorithm>
#include <cstdint>

namespace numacre::daemon {

inline constexpr std::uint64_t kHysteresisShare = 8;

// Compares a client's use with its soft quota. 0: it has none.
constexpr bool is_over_soft_quota(bool was_over, std::uint64_t used_bytes, std::uint64_t soft_bytes) {
    if (soft_bytes == 0) return false;
    return used_bytes > (was_over ? soft_bytes - soft_bytes / kHysteresisShare : soft_bytes);
}

// Compares the free memory of a numa node with the pool's low watermark. 0: the pool has none.
constexpr bool is_below_watermark(bool was_below, std::uint64_t free_bytes, std::uint64_t online_bytes,
                                  std::uint64_t watermark_bytes) {
    if (watermark_bytes == 0) return false;
    if (!was_below) return free_bytes < watermark_bytes;
    // No more than the online memory can be free: with a watermark near to it the state would never end.
    const std::uint64_t back_at =
        std::min(watermark_bytes + watermark_bytes / kHysteresisShare, std::max(watermark_bytes, online_bytes));
    return free_bytes < back_at;
}

}  // namespace numacre::daemon
