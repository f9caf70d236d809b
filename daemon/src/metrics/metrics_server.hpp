// Serves GET /metrics over HTTP.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "pool/pool_manager.hpp"

namespace numacre::daemon {

struct MetricsAddress {
    std::string host;  // an IPv4 address, or an IPv6 one without brackets
    std::uint16_t port = 0;
};

// "127.0.0.1:9853", "[::1]:9853", "localhost:9853", ":9853" or "9853"; without a host the address is 127.0.0.1. Port 0
// means any free port. localhost is the only host name: the meaning of a name may change between a check and its use.
Answer<MetricsAddress> parse_metrics_address(std::string_view text);

class MetricsServer {
public:
    static constexpr const char *kDefaultAddress = "127.0.0.1:9853";

    // pools must outlive the server.
    MetricsServer(PoolManager &pools, std::string address);
    ~MetricsServer();
    MetricsServer(const MetricsServer &) = delete;
    MetricsServer &operator=(const MetricsServer &) = delete;

    // Listens, and logs the address. May be called once. already_exists: another process listens there, and may go
    // later.
    Answer<void> start();
    // Waits for scrapes under way; after it returns no thread calls the pool manager. Harmless when repeated.
    void stop();
    // The address with the real port. Empty unless started.
    const std::string &address() const { return bound_address_; }

private:
    struct Running;

    PoolManager &pools_;
    const std::string wanted_address_;
    std::string bound_address_;
    std::unique_ptr<Running> running_;
};

}  // namespace numacre::daemon
