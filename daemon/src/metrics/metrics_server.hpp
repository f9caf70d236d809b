// Serves GET /metrics over HTTP.
#pragma once

#include <memory>
#include <string>

#include "pool/pool_manager.hpp"

namespace numacre::daemon {

class MetricsServer {
public:
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
