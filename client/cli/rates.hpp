// Computes rates for `top` from two looks at the counters.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

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

}  // namespace numacre::cli
