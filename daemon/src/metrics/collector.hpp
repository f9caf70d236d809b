// What a scrape returns, computed while Prometheus waits: one bounded scan a pool.
#pragma once

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <chrono>
#include <mutex>
#include <vector>

#include "pool/pool_manager.hpp"

namespace numacre::daemon {

// Thread-safe. However many scrape at once, one scan at a time meets the clients; its result is for all who came before
// it began, so that nobody waits for more than two.
class Collector final : public prometheus::Collectable {
public:
    // pools must outlive the collector.
    explicit Collector(PoolManager &pools) : pools_(pools) {}

    std::vector<prometheus::MetricFamily> Collect() const override;

private:
    std::vector<prometheus::MetricFamily> scan() const;

    PoolManager &pools_;
    mutable std::mutex one_scrape_;
    mutable std::chrono::steady_clock::time_point begun_{};        // guarded by one_scrape_: the last scan
    mutable std::vector<prometheus::MetricFamily> latest_result_;  // guarded by one_scrape_: of that
};

}  // namespace numacre::daemon
