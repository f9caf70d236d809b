#include "spec/metrics_address.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <charconv>
#include <system_error>

namespace numacre::daemon {

Answer<MetricsAddress> parse_metrics_address(std::string_view text) {
    const auto bad = [](const std::string &fault) {
        return Unexpected{Failure{Errc::bad_argument, fault + "; use IP:PORT, such as " + kDefaultMetricsAddress +
                                                          ", or port 0 for any that is free"}};
    };
    const auto colon = text.rfind(':');
    std::string_view host = colon == std::string_view::npos ? std::string_view{} : text.substr(0, colon);
    const std::string_view digits = colon == std::string_view::npos ? text : text.substr(colon + 1);

    MetricsAddress address;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), address.port);
    if (digits.empty() || error != std::errc{} || end != digits.data() + digits.size())
        return bad("the port is not a number from 0 to 65535");
    const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
    if (bracketed) host = host.substr(1, host.size() - 2);
    address.host = host.empty() || host == "localhost" ? "127.0.0.1" : std::string{host};
    in6_addr binary{};  // has room for an IPv4 address, too
    if (::inet_pton(bracketed ? AF_INET6 : AF_INET, address.host.c_str(), &binary) != 1)
        return bad("the host is not an IPv4 address, an IPv6 address in brackets, or localhost");
    return address;
}

}  // namespace numacre::daemon
