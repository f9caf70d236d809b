// When to ask a pool for blocks again that had too few. A refill of a full pool costs several allocations that fail,
// each of which takes back what other threads cache. At each turn of the capture it would cost more than the packets
// do.
#pragma once

#include <algorithm>
#include <chrono>

namespace relay {

class RefillPause {
public:
    using Clock = std::chrono::steady_clock;
    static constexpr Clock::duration kShortest = std::chrono::milliseconds(1);
    // While it lasts, a socket may run out of blocks though the pool has some: so it is short.
    static constexpr Clock::duration kLongest = std::chrono::milliseconds(8);

    bool is_over(Clock::time_point now) const { return now >= until_; }
    // A refill has got `got` of `wanted` blocks.
    void refilled(unsigned got, unsigned wanted, Clock::time_point now) {
        if (got != 0) length_ = kShortest;
        if (got >= wanted) return;
        until_ = now + length_;
        if (got == 0) length_ = std::min(2 * length_, kLongest);
    }

private:
    Clock::time_point until_{};
    Clock::duration length_ = kShortest;
};

}  // namespace relay
