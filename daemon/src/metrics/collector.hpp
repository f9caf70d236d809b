// What a scrape returns, computed while Prometheus waits: one bounded scan a pool, nothing kept in between.
#pragma once

#include <prometheus/collectable.h>

#include <mutex>
#include <vector>

#include "pool_manager.hpp"

namespace numacre::daemon {

// Thread-safe. Scrapes that come at once take turns, so that however many scrape, one scan at a time meets the clients.
class Collector final : public prometheus::Collectable {
public:
    // pools must outlive the collector.
    explicit Collector(PoolManager &pools) : pools_(pools) {}

    std::vector<prometheus::MetricFamily> Collect() const override;

private:
    PoolManager &pools_;
    mutable std::mutex one_scrape_;
};

}  // namespace numacre::daemon
