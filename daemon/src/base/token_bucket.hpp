// Limits how often something may happen. Pure: the caller passes the time.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace numacre::daemon {

// Gives `tokens_per_second` tokens a second, and `burst` tokens at once after a pause.
class TokenBucket {
public:
    using Time = std::chrono::steady_clock::time_point;

    explicit TokenBucket(std::uint32_t tokens_per_second, Time now)
        : TokenBucket(tokens_per_second, tokens_per_second, now) {}
    TokenBucket(std::uint32_t tokens_per_second, std::uint32_t burst, Time now)
        : per_second_(tokens_per_second), burst_(burst), tokens_(burst), filled_(now) {}
    // False: no token is left.
    bool take(Time now) {
        tokens_ = tokens_at(now);
        filled_ = std::max(filled_, now);
        if (tokens_ < 1) return false;
        tokens_ -= 1;
        return true;
    }
    bool is_full(Time now) const { return tokens_at(now) >= burst_; }

private:
    double tokens_at(Time now) const {
        if (now <= filled_) return tokens_;
        return std::min(burst_, tokens_ + std::chrono::duration<double>(now - filled_).count() * per_second_);
    }

    double per_second_;
    double burst_;
    double tokens_;
    Time filled_;
};

}  // namespace numacre::daemon
