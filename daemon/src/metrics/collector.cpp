#include "metrics/collector.hpp"

#include <prometheus/metric_family.h>

#include <array>
#include <string>
#include <utility>

#include "control/derived.hpp"
#include "control/printable.hpp"
#include "metrics/names.hpp"

#ifndef NUMACRE_VERSION
#error "NUMACRE_VERSION is the project's version, from CMake"
#endif

namespace numacre::daemon {
namespace {

using std::to_string;

constexpr std::array<const char *, kFailureReasons> kFailureReasonLabels{"out_of_frames", "fragmented", "quota",
                                                                         "argument"};
static_assert(static_cast<unsigned>(FailureReason::out_of_frames) == 0 &&
              static_cast<unsigned>(FailureReason::fragmented) == 1 &&
              static_cast<unsigned>(FailureReason::quota) == 2 && static_cast<unsigned>(FailureReason::argument) == 3);

class Scrape {
public:
    // Adds one sample, with as many label values as the metric has labels, in the table's order.
    template <Metric metric, class Value, class... Labels>
    void add(Value value, Labels &&...values) {
        static_assert(sizeof...(Labels) == metric_row(metric).label_count());
        prometheus::ClientMetric sample;
        [[maybe_unused]] std::size_t at = 0;  // NOLINT(misc-const-correctness): changes in the expanded pack
        (sample.label.push_back({std::string{metric_row(metric).label_names[at++]}, std::forward<Labels>(values)}),
         ...);
        if (metric_row(metric).kind == MetricKind::counter) {
            sample.counter.value = static_cast<double>(value);
        } else {
            sample.gauge.value = static_cast<double>(value);
        }
        samples_[static_cast<std::size_t>(metric)].push_back(std::move(sample));
    }

    std::vector<prometheus::MetricFamily> families() && {
        std::vector<prometheus::MetricFamily> all;
        for (const MetricRow &row : kMetrics) {
            auto &samples = samples_[static_cast<std::size_t>(row.metric)];
            if (samples.empty()) continue;
            const auto type =
                row.kind == MetricKind::counter ? prometheus::MetricType::Counter : prometheus::MetricType::Gauge;
            all.push_back({std::string{row.name}, std::string{row.help}, type, std::move(samples)});
        }
        return all;
    }

private:
    std::array<std::vector<prometheus::ClientMetric>, kMetrics.size()> samples_;
};

void add_numa_node(Scrape &scrape, const std::string &pool, const PoolStatus &of, const NodeStatus &status) {
    const Geometry &geometry = of.geometry;
    const std::string node = to_string(status.node.value);
    const CounterTotals &counters = status.counters;
    const BlocksByOrder &blocks = status.snapshot.free_blocks;

    scrape.add<Metric::pool_capacity_bytes>(status.capacity_bytes, pool, node);
    scrape.add<Metric::pool_online_bytes>(status.online_bytes, pool, node);
    scrape.add<Metric::pool_free_bytes>(free_bytes(geometry, status), pool, node);
    scrape.add<Metric::pool_used_bytes>(used_bytes(geometry, status), pool, node);
    scrape.add<Metric::pool_cached_bytes>(status.cached_bytes, pool, node);
    scrape.add<Metric::pool_quarantined_bytes>(status.quarantined_bytes, pool, node);
    scrape.add<Metric::pool_pinned_bytes>(status.pinned_bytes, pool, node);
    scrape.add<Metric::pool_lingering_bytes>(status.lingering_bytes, pool, node);
    scrape.add<Metric::low_watermark_bytes>(of.spec.low_watermark_bytes, pool, node);
    scrape.add<Metric::pool_peak_used_bytes>(status.peak_used_bytes, pool, node);
    scrape.add<Metric::pool_largest_free_block_bytes>(largest_free_block_bytes(geometry, status), pool, node);
    scrape.add<Metric::pool_metadata_bytes>(status.metadata_bytes, pool, node);
    scrape.add<Metric::pool_metadata_resident_bytes>(status.metadata_resident_bytes, pool, node);
    scrape.add<Metric::pool_backing_info>(1, pool, node, backing_name(status.backing));

    for (unsigned order = 0; order <= geometry.largest_order; ++order) {
        const std::string label = to_string(order);
        scrape.add<Metric::free_blocks>(blocks[order], pool, node, label);
        scrape.add<Metric::unusable_free_ratio>(unusable_free_ratio(blocks, order), pool, node, label);
        scrape.add<Metric::external_fragmentation_index>(external_fragmentation_index(blocks, order), pool, node,
                                                         label);
        scrape.add<Metric::allocations_total>(counters.allocations[order], pool, node, label);
        scrape.add<Metric::frees_total>(counters.frees[order], pool, node, label);
    }
    scrape.add<Metric::internal_fragmentation_ratio>(internal_fragmentation_of(status), pool, node);
    scrape.add<Metric::quadratic_fragmentation>(quadratic_fragmentation(blocks), pool, node);

    for (std::size_t reason = 0; reason < kFailureReasons; ++reason)
        scrape.add<Metric::allocation_failures_total>(counters.failures[reason], pool, node,
                                                      kFailureReasonLabels[reason]);
    scrape.add<Metric::cas_retries_total>(counters.cas_retries, pool, node);
    scrape.add<Metric::numa_hit_total>(counters.numa_hit, pool, node);
    scrape.add<Metric::numa_miss_total>(counters.numa_miss, pool, node);
    scrape.add<Metric::numa_foreign_total>(counters.numa_foreign, pool, node);
    scrape.add<Metric::numa_interleave_hit_total>(counters.interleave_hit, pool, node);
    scrape.add<Metric::numa_local_node_total>(counters.local_node, pool, node);
    scrape.add<Metric::numa_other_node_total>(counters.other_node, pool, node);
    scrape.add<Metric::hand_offs_total>(counters.hand_offs, pool, node);
    scrape.add<Metric::waiting_threads>(status.waiting_threads, pool, node);
}

void add_pool(Scrape &scrape, const std::string &pool, const PoolStatus &status) {
    scrape.add<Metric::pool_corrupt>(status.corrupt ? 1 : 0, pool);
    scrape.add<Metric::numa_imbalance>(numa_imbalance(status), pool);
    scrape.add<Metric::reclaimed_bytes_total>(status.reclaimed_bytes, pool);
    scrape.add<Metric::recovery_duration_seconds>(status.last_recovery_seconds, pool);
    scrape.add<Metric::recoveries_waiting>(status.recoveries_waiting, pool);
    scrape.add<Metric::pool_names>(status.names, pool);
    scrape.add<Metric::pool_stale_seconds>(std::chrono::duration<double>(status.stale_for).count(), pool);
    scrape.add<Metric::scan_duration_seconds>(status.scan_seconds, pool);
    scrape.add<Metric::pool_quota_bytes>(status.quota_bytes, pool);
    scrape.add<Metric::pool_soft_quota_bytes>(status.soft_quota_bytes, pool);
    scrape.add<Metric::pool_reserved_bytes>(status.reserved_bytes, pool);
    for (const UserStatus &user : status.users) {
        const std::string uid = to_string(user.limit.uid);
        scrape.add<Metric::user_used_bytes>(user.used_bytes, pool, uid);
        scrape.add<Metric::user_quota_bytes>(user.limit.quota_bytes, pool, uid);
        scrape.add<Metric::user_soft_quota_bytes>(user.limit.soft_quota_bytes, pool, uid);
        scrape.add<Metric::user_reserved_bytes>(user.limit.reserved_bytes, pool, uid);
    }
    for (const NodeStatus &numa_node : status.nodes) add_numa_node(scrape, pool, status, numa_node);
}

void add_client(Scrape &scrape, const ClientStatus &client) {
    const std::string id = to_string(client.client_id);
    scrape.add<Metric::client_info>(1, client.pool, id, printable(client.comm), to_string(client.pid),
                                    printable(client.cgroup));
    if (client.has_been_looked_at) scrape.add<Metric::client_used_bytes>(client.used_bytes, client.pool, id);
    scrape.add<Metric::client_quota_bytes>(client.quota_bytes, client.pool, id);
    scrape.add<Metric::client_soft_quota_bytes>(client.soft_quota_bytes, client.pool, id);
    scrape.add<Metric::client_reserved_bytes>(client.reserved_bytes, client.pool, id);
    scrape.add<Metric::client_pinned_bytes>(client.pinned_bytes, client.pool, id);
    if (!client.has_been_looked_at) return;
    scrape.add<Metric::client_oldest_block_seconds>(client.oldest_held_for.value_or(std::chrono::seconds{0}).count(),
                                                    client.pool, id);
}

// A pool has kChannels channels at most, which bounds the series.
void add_channel(Scrape &scrape, const ChannelStatus &channel) {
    const ChannelFigures &figures = channel.figures;
    std::uint64_t senders = 0, receivers = 0;
    for (const ChannelParty &party : channel.parties) {
        senders += party.senders;
        receivers += party.receivers;
    }
    const std::string name = printable(channel.name);
    if (channel.shape.is_broadcast()) {
        // A broadcast channel has no backlog, and no series of waiting messages.
        scrape.add<Metric::channel_kept_messages>(figures.waiting, channel.pool, name);
        scrape.add<Metric::channel_overtaken_total>(figures.overtaken, channel.pool, name);
        scrape.add<Metric::channel_sent_total>(figures.sent, channel.pool, name);
        scrape.add<Metric::channel_received_total>(figures.received, channel.pool, name);
        scrape.add<Metric::channel_parties>(senders, channel.pool, name, "sender");
        scrape.add<Metric::channel_parties>(receivers, channel.pool, name, "receiver");
        return;
    }
    scrape.add<Metric::channel_waiting_messages>(figures.waiting + figures.returned, channel.pool, name);
    scrape.add<Metric::channel_capacity_messages>(channel.shape.capacity, channel.pool, name);
    scrape.add<Metric::channel_oldest_seconds>(channel.oldest_waits_for.value_or(std::chrono::seconds{0}).count(),
                                               channel.pool, name);
    scrape.add<Metric::channel_parties>(senders, channel.pool, name, "sender");
    scrape.add<Metric::channel_parties>(receivers, channel.pool, name, "receiver");
    scrape.add<Metric::channel_sent_total>(figures.sent, channel.pool, name);
    scrape.add<Metric::channel_received_total>(figures.received, channel.pool, name);
    scrape.add<Metric::channel_redelivered_total>(figures.redelivered, channel.pool, name);
    scrape.add<Metric::channel_dropped_total>(figures.dropped, channel.pool, name);
}

}  // namespace

std::vector<prometheus::MetricFamily> Collector::Collect() const {
    const auto came = std::chrono::steady_clock::now();
    const std::scoped_lock lock{one_scrape_};
    if (latest_result_.empty() || begun_ < came) {
        begun_ = std::chrono::steady_clock::now();
        latest_result_ = scan();
    }
    return latest_result_;
}

std::vector<prometheus::MetricFamily> Collector::scan() const {
    Scrape scrape;
    scrape.add<Metric::build_info>(1, NUMACRE_VERSION, to_string(kLayoutVersion));
    for (const std::string &pool : pools_.pool_names()) {
        const auto status = pools_.pool_status(pool);
        if (status) {
            add_pool(scrape, pool, *status);
        } else if (status.error().code == Errc::corrupt) {
            scrape.add<Metric::pool_corrupt>(1, pool);
        }
        // Otherwise the pool was deleted after its name was listed, or cannot be looked at: its series end here.
    }
    if (const auto clients = pools_.clients(""))
        for (const ClientStatus &client : *clients) add_client(scrape, client);
    if (const auto channels = pools_.channels(""))
        for (const ChannelStatus &channel : *channels) add_channel(scrape, channel);

    const DaemonTotals totals = pools_.totals();
    scrape.add<Metric::log_messages_dropped_total>(totals.log_messages_dropped);
    scrape.add<Metric::attaches_total>(totals.attach_ok, "ok");
    scrape.add<Metric::attaches_total>(totals.attach_refused, "refused");
    scrape.add<Metric::clients_reaped_total>(totals.reaped_killed, "killed");
    scrape.add<Metric::clients_reaped_total>(totals.reaped_detached, "detached");
    scrape.add<Metric::clients_reaped_total>(totals.reaped_lost, "lost");
    scrape.add<Metric::resize_operations_total>(totals.resize_ok, "ok");
    scrape.add<Metric::resize_operations_total>(totals.resize_partial, "partial");
    scrape.add<Metric::resize_operations_total>(totals.resize_failed, "failed");
    scrape.add<Metric::autosize_operations_total>(totals.autosize_grown, "grown");
    scrape.add<Metric::autosize_operations_total>(totals.autosize_shrunk, "shrunk");
    scrape.add<Metric::autosize_operations_total>(totals.autosize_failed, "failed");
    return std::move(scrape).families();
}

}  // namespace numacre::daemon
