// The spelling of the address on which metrics are served.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/failure.hpp"

namespace numacre::daemon {

inline constexpr const char *kDefaultMetricsAddress = "127.0.0.1:9853";

struct MetricsAddress {
    std::string host;  // an IPv4 address, or an IPv6 one without brackets
    std::uint16_t port = 0;
};

// "127.0.0.1:9853", "[::1]:9853", "localhost:9853", ":9853" or "9853"; without a host the address is 127.0.0.1. Port 0
// means any free port. localhost is the only host name: the meaning of a name may change between a check and its use.
// bad_argument: the fault and the remedy, without the text.
Answer<MetricsAddress> parse_metrics_address(std::string_view text);

}  // namespace numacre::daemon
