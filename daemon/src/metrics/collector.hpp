// Computes the result of a scrape while Prometheus waits: one bounded scan for each pool.
#pragma once

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <chrono>
#include <mutex>
#include <vector>

#include "pool/pool_manager.hpp"

namespace numacre::daemon {

// Thread-safe. One scan runs at a time, however many callers scrape at once. Its result is for all callers that came
// before it began, so no caller waits for more than two scans.
class Collector final : public prometheus::Collectable {
public:
    // pools must outlive the collector.
    explicit Collector(PoolManager &pools) : pools_(pools) {}

    std::vector<prometheus::MetricFamily> Collect() const override;

private:
    std::vector<prometheus::MetricFamily> scan() const;

    PoolManager &pools_;
    mutable std::mutex one_scrape_;
    mutable std::chrono::steady_clock::time_point begun_{};        // guarded by one_scrape_: start of the last scan
    mutable std::vector<prometheus::MetricFamily> latest_result_;  // guarded by one_scrape_: result of the last scan
};

}  // namespace numacre::daemon
