// Computes rates for `top` and `channels` from two looks at the counters.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "control.hpp"

namespace numacre::cli {

struct Counts {
    std::uint64_t allocations = 0;
    std::uint64_t frees = 0;
    std::uint64_t failures = 0;
};
struct Rates {
    double allocations_per_second = 0;
    double frees_per_second = 0;
    double failures_per_second = 0;
};

Counts counts_of(const v1::NodeStats &numa_node);

class RateMeter {
public:
    using Key = std::pair<std::string, std::uint32_t>;  // pool, numa node
    using Clock = std::chrono::steady_clock;

    // The rates since the last look at this key. No value at the first look, when no time has passed, and when a
    // counter has gone down: then the pool or the daemon was replaced, and a rate would be meaningless.
    std::optional<Rates> look(const Key &key, const Counts &counts, Clock::time_point now);

private:
    struct Seen {
        Counts counts;
        Clock::time_point when;
    };
    std::map<Key, Seen> seen_;
};

// Messages a second through a channel.
struct ChannelRates {
    double sent_per_second = 0;
    double received_per_second = 0;
};

// The rates of each channel of `after` since `before`, in its order. No value for a channel that `before` has not,
// where a counter has gone down, and when no time has passed.
std::vector<std::optional<ChannelRates>> channel_rates(const v1::ListChannelsResponse &before,
                                                       const v1::ListChannelsResponse &after,
                                                       std::chrono::duration<double> between);

}  // namespace numacre::cli
