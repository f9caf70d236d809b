// Every metric: name, kind, unit, help, labels. No other C++ source spells a metric's name. Rules: base units; counters
// end in _total; a pid is a label of _info only, so that the other series do not multiply by process.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace numacre::daemon {

enum class Metric : std::uint8_t {
    pool_capacity_bytes,
    pool_online_bytes,
    pool_free_bytes,
    pool_used_bytes,
    pool_cached_bytes,
    pool_quarantined_bytes,
    pool_pinned_bytes,
    pool_lingering_bytes,
    low_watermark_bytes,
    pool_peak_used_bytes,
    pool_largest_free_block_bytes,
    pool_metadata_bytes,
    pool_metadata_resident_bytes,
    pool_backing_info,
    pool_corrupt,
    free_blocks,
    unusable_free_ratio,
    external_fragmentation_index,
    internal_fragmentation_ratio,
    quadratic_fragmentation,
    numa_imbalance,
    allocations_total,
    frees_total,
    allocation_failures_total,
    cas_retries_total,
    numa_hit_total,
    numa_miss_total,
    numa_foreign_total,
    numa_interleave_hit_total,
    numa_local_node_total,
    numa_other_node_total,
    hand_offs_total,
    waiting_threads,
    client_info,
    client_used_bytes,
    client_quota_bytes,
    client_soft_quota_bytes,
    client_reserved_bytes,
    client_pinned_bytes,
    user_used_bytes,
    user_quota_bytes,
    user_soft_quota_bytes,
    user_reserved_bytes,
    pool_quota_bytes,
    pool_soft_quota_bytes,
    pool_reserved_bytes,
    client_oldest_block_seconds,
    attaches_total,
    clients_reaped_total,
    reclaimed_bytes_total,
    recovery_duration_seconds,
    recoveries_waiting,
    pool_names,
    channel_waiting_messages,
    channel_capacity_messages,
    channel_oldest_seconds,
    channel_parties,
    channel_sent_total,
    channel_received_total,
    channel_redelivered_total,
    channel_dropped_total,
    channel_kept_messages,
    channel_overtaken_total,
    resize_operations_total,
    autosize_operations_total,
    scan_duration_seconds,
    pool_stale_seconds,
    log_messages_dropped_total,
    build_info,
};

enum class MetricKind : std::uint8_t { gauge, counter };

inline constexpr std::size_t kMaxMetricLabels = 5;
// Unused elements are empty.
using MetricLabels = std::array<std::string_view, kMaxMetricLabels>;

template <class... Names>
constexpr MetricLabels metric_labels(Names... names) {
    static_assert(sizeof...(names) <= kMaxMetricLabels);
    MetricLabels list{"", "", "", "", ""};  // spelled out: g++ 12 rejects a table of default-constructed views
    std::size_t at = 0;                     // NOLINT(misc-const-correctness): changes in the expanded pack
    ((list[at++] = names), ...);
    return list;
}

struct MetricRow {
    Metric metric;
    std::string_view name;
    MetricKind kind;
    std::string_view unit;
    std::string_view help;
    MetricLabels label_names;

    constexpr std::size_t label_count() const {
        std::size_t count = 0;
        while (count < label_names.size() && !label_names[count].empty()) ++count;
        return count;
    }
};

inline constexpr std::array<MetricRow, static_cast<std::size_t>(Metric::build_info) + 1> kMetrics{{
    {Metric::pool_capacity_bytes, "numacre_pool_capacity_bytes", MetricKind::gauge, "bytes",
     "The most that the numa node of the pool can have online.", metric_labels("pool", "node")},
    {Metric::pool_online_bytes, "numacre_pool_online_bytes", MetricKind::gauge, "bytes",
     "Memory that is populated and can be allocated or is.", metric_labels("pool", "node")},
    {Metric::pool_free_bytes, "numacre_pool_free_bytes", MetricKind::gauge, "bytes", "Online and not used.",
     metric_labels("pool", "node")},
    {Metric::pool_used_bytes, "numacre_pool_used_bytes", MetricKind::gauge, "bytes",
     "In blocks that clients hold, their caches included.", metric_labels("pool", "node")},
    {Metric::pool_cached_bytes, "numacre_pool_cached_bytes", MetricKind::gauge, "bytes",
     "Part of the used bytes that lies in thread caches of clients.", metric_labels("pool", "node")},
    {Metric::pool_quarantined_bytes, "numacre_pool_quarantined_bytes", MetricKind::gauge, "bytes",
     "Part of the used bytes that ended clients have left and that is held before its next use.",
     metric_labels("pool", "node")},
    {Metric::pool_pinned_bytes, "numacre_pool_pinned_bytes", MetricKind::gauge, "bytes",
     "Online memory that stays where it is, because a device or the kernel has it registered.",
     metric_labels("pool", "node")},
    {Metric::pool_lingering_bytes, "numacre_pool_lingering_bytes", MetricKind::gauge, "bytes",
     "Part of the used bytes that its owners have freed and that others still hold to read it.",
     metric_labels("pool", "node")},
    {Metric::low_watermark_bytes, "numacre_low_watermark_bytes", MetricKind::gauge, "bytes",
     "Less free than this on the numa node is an event low_watermark; 0: none.", metric_labels("pool", "node")},
    {Metric::pool_peak_used_bytes, "numacre_pool_peak_used_bytes", MetricKind::gauge, "bytes",
     "The most that a scrape or another look has found used on the numa node since the pool was made.",
     metric_labels("pool", "node")},
    {Metric::pool_largest_free_block_bytes, "numacre_pool_largest_free_block_bytes", MetricKind::gauge, "bytes",
     "Largest block that is free as a whole; 0 when nothing is free.", metric_labels("pool", "node")},
    {Metric::pool_metadata_bytes, "numacre_pool_metadata_bytes", MetricKind::gauge, "bytes",
     "Address space of the allocator's metadata.", metric_labels("pool", "node")},
    {Metric::pool_metadata_resident_bytes, "numacre_pool_metadata_resident_bytes", MetricKind::gauge, "bytes",
     "Part of the allocator's metadata that takes up memory.", metric_labels("pool", "node")},
    {Metric::pool_backing_info, "numacre_pool_backing_info", MetricKind::gauge, "",
     "What the pool's memory is made of: hugetlb-1g, hugetlb, thp or small. Always 1.",
     metric_labels("pool", "node", "backing")},
    {Metric::pool_corrupt, "numacre_pool_corrupt", MetricKind::gauge, "",
     "1 when the daemon found shared metadata that no correct client writes and stopped serving the pool.",
     metric_labels("pool")},
    {Metric::free_blocks, "numacre_free_blocks", MetricKind::gauge, "blocks",
     "Maximal free blocks of exactly this order; a block of order k has 2^k frames.",
     metric_labels("pool", "node", "order")},
    {Metric::unusable_free_ratio, "numacre_unusable_free_ratio", MetricKind::gauge, "ratio",
     "Share of the free memory that is in blocks too small for this order; 1 when nothing is free.",
     metric_labels("pool", "node", "order")},
    {Metric::external_fragmentation_index, "numacre_external_fragmentation_index", MetricKind::gauge, "ratio",
     "-1: a block of this order can be had; else towards 0 and below it lacks memory, towards 1 memory is fragmented.",
     metric_labels("pool", "node", "order")},
    {Metric::internal_fragmentation_ratio, "numacre_internal_fragmentation_ratio", MetricKind::gauge, "ratio",
     "Share of the granted bytes that nobody asked for.", metric_labels("pool", "node")},
    {Metric::quadratic_fragmentation, "numacre_quadratic_fragmentation", MetricKind::gauge, "ratio",
     "0: all free memory is one block; towards 1: many small ones.", metric_labels("pool", "node")},
    {Metric::numa_imbalance, "numacre_numa_imbalance", MetricKind::gauge, "ratio",
     "Largest less smallest used share of the online memory over the numa nodes.", metric_labels("pool")},
    {Metric::allocations_total, "numacre_allocations_total", MetricKind::counter, "allocations", "Blocks handed out.",
     metric_labels("pool", "node", "order")},
    {Metric::frees_total, "numacre_frees_total", MetricKind::counter, "frees", "Blocks given back.",
     metric_labels("pool", "node", "order")},
    {Metric::allocation_failures_total, "numacre_allocation_failures_total", MetricKind::counter, "allocations",
     "Allocations that failed: out_of_frames, fragmented, quota or argument.", metric_labels("pool", "node", "reason")},
    {Metric::cas_retries_total, "numacre_cas_retries_total", MetricKind::counter, "retries",
     "Compare-and-swaps that lost a race and were tried again.", metric_labels("pool", "node")},
    {Metric::numa_hit_total, "numacre_numa_hit_total", MetricKind::counter, "allocations",
     "Allocations on this numa node that were meant for it.", metric_labels("pool", "node")},
    {Metric::numa_miss_total, "numacre_numa_miss_total", MetricKind::counter, "allocations",
     "Allocations on this numa node that were meant for another.", metric_labels("pool", "node")},
    {Metric::numa_foreign_total, "numacre_numa_foreign_total", MetricKind::counter, "allocations",
     "Allocations meant for this numa node that another one served.", metric_labels("pool", "node")},
    {Metric::numa_interleave_hit_total, "numacre_numa_interleave_hit_total", MetricKind::counter, "allocations",
     "Allocations by a policy that interleaves, on the numa node whose turn it was.", metric_labels("pool", "node")},
    {Metric::numa_local_node_total, "numacre_numa_local_node_total", MetricKind::counter, "allocations",
     "Allocations on this numa node for a thread that ran there.", metric_labels("pool", "node")},
    {Metric::numa_other_node_total, "numacre_numa_other_node_total", MetricKind::counter, "allocations",
     "Allocations on this numa node for a thread that ran on another.", metric_labels("pool", "node")},
    {Metric::hand_offs_total, "numacre_hand_offs_total", MetricKind::counter, "allocations",
     "Allocations that waited and were given a block as it was released.", metric_labels("pool", "node")},
    {Metric::waiting_threads, "numacre_waiting_threads", MetricKind::gauge, "threads",
     "Threads that wait for memory, by the numa node that they would like best.", metric_labels("pool", "node")},
    {Metric::client_info, "numacre_client_info", MetricKind::gauge, "", "An attached client process. Always 1.",
     metric_labels("pool", "client", "comm", "pid", "cgroup")},
    {Metric::client_used_bytes, "numacre_client_used_bytes", MetricKind::gauge, "bytes",
     "In blocks that the client holds.", metric_labels("pool", "client")},
    {Metric::client_quota_bytes, "numacre_client_quota_bytes", MetricKind::gauge, "bytes",
     "The most that the client may hold; 0: no limit.", metric_labels("pool", "client")},
    {Metric::client_soft_quota_bytes, "numacre_client_soft_quota_bytes", MetricKind::gauge, "bytes",
     "More used than this by the client is an event quota_soft_exceeded; 0: none.", metric_labels("pool", "client")},
    {Metric::client_reserved_bytes, "numacre_client_reserved_bytes", MetricKind::gauge, "bytes",
     "Promised to the client, used or not: others cannot take it.", metric_labels("pool", "client")},
    {Metric::client_pinned_bytes, "numacre_client_pinned_bytes", MetricKind::gauge, "bytes",
     "Pinned by the client, in use or not: it cannot go offline.", metric_labels("pool", "client")},
    {Metric::user_used_bytes, "numacre_user_used_bytes", MetricKind::gauge, "bytes",
     "In blocks that the clients of a user hold together.", metric_labels("pool", "uid")},
    {Metric::user_quota_bytes, "numacre_user_quota_bytes", MetricKind::gauge, "bytes",
     "The most that the clients of a user may hold together; 0: no limit.", metric_labels("pool", "uid")},
    {Metric::user_soft_quota_bytes, "numacre_user_soft_quota_bytes", MetricKind::gauge, "bytes",
     "More used than this by the user's clients is an event user_quota_soft_exceeded; 0: none.",
     metric_labels("pool", "uid")},
    {Metric::user_reserved_bytes, "numacre_user_reserved_bytes", MetricKind::gauge, "bytes",
     "Promised to the clients of a user, used or not: others cannot take it.", metric_labels("pool", "uid")},
    {Metric::pool_quota_bytes, "numacre_pool_quota_bytes", MetricKind::gauge, "bytes",
     "The most that all clients of the pool may hold together; 0: no limit.", metric_labels("pool")},
    {Metric::pool_soft_quota_bytes, "numacre_pool_soft_quota_bytes", MetricKind::gauge, "bytes",
     "More used than this by all clients together is an event pool_quota_soft_exceeded; 0: none.",
     metric_labels("pool")},
    {Metric::pool_reserved_bytes, "numacre_pool_reserved_bytes", MetricKind::gauge, "bytes",
     "Free memory that only those can take who were promised it.", metric_labels("pool")},
    {Metric::client_oldest_block_seconds, "numacre_client_oldest_block_seconds", MetricKind::gauge, "seconds",
     "How long the client has held the oldest of its blocks in use, rounded down; 0: it has none.",
     metric_labels("pool", "client")},
    {Metric::attaches_total, "numacre_attaches_total", MetricKind::counter, "attaches",
     "Attempts to attach to a pool, by result: ok or refused (no access, a limit, a bad message).",
     metric_labels("result")},
    {Metric::clients_reaped_total, "numacre_clients_reaped_total", MetricKind::counter, "clients",
     "Clients that ended, by cause: killed (died attached), detached, or lost (connection gone first).",
     metric_labels("cause")},
    {Metric::reclaimed_bytes_total, "numacre_reclaimed_bytes_total", MetricKind::counter, "bytes",
     "Taken back from clients that ended while they held it.", metric_labels("pool")},
    {Metric::recovery_duration_seconds, "numacre_recovery_duration_seconds", MetricKind::gauge, "seconds",
     "How long the last recovery after a client's end took; 0 before the first.", metric_labels("pool")},
    {Metric::recoveries_waiting, "numacre_recoveries_waiting", MetricKind::gauge, "clients",
     "Dead clients whose blocks wait for a living one that stands still in the middle of an operation on them.",
     metric_labels("pool")},
    {Metric::pool_names, "numacre_pool_names", MetricKind::gauge, "names",
     "Short names that clients have bound in the pool (numacre names).", metric_labels("pool")},
    {Metric::channel_waiting_messages, "numacre_channel_waiting_messages", MetricKind::gauge, "messages",
     "Messages that have been sent and not received, those included that a receiver had when it died.",
     metric_labels("pool", "channel")},
    {Metric::channel_capacity_messages, "numacre_channel_capacity_messages", MetricKind::gauge, "messages",
     "The most messages that may wait in the channel: a send beyond it fails or waits.",
     metric_labels("pool", "channel")},
    {Metric::channel_oldest_seconds, "numacre_channel_oldest_seconds", MetricKind::gauge, "seconds",
     "How long the oldest message has waited, rounded down; 0: none waits.", metric_labels("pool", "channel")},
    {Metric::channel_parties, "numacre_channel_parties", MetricKind::gauge, "threads",
     "Threads that have the channel open, by role: sender, receiver. One may be both.",
     metric_labels("pool", "channel", "role")},
    {Metric::channel_sent_total, "numacre_channel_sent_total", MetricKind::counter, "messages",
     "Messages sent since the channel was made.", metric_labels("pool", "channel")},
    {Metric::channel_received_total, "numacre_channel_received_total", MetricKind::counter, "messages",
     "Messages received since the channel was made.", metric_labels("pool", "channel")},
    {Metric::channel_redelivered_total, "numacre_channel_redelivered_total", MetricKind::counter, "messages",
     "Of the messages received, those that a receiver had when it died.", metric_labels("pool", "channel")},
    {Metric::channel_dropped_total, "numacre_channel_dropped_total", MetricKind::counter, "messages",
     "Messages that senders took out again to make room (numacre_send_over).", metric_labels("pool", "channel")},
    {Metric::channel_kept_messages, "numacre_channel_kept_messages", MetricKind::gauge, "messages",
     "Messages that a broadcast channel keeps for its readers. Nobody waits for them to be read.",
     metric_labels("pool", "channel")},
    {Metric::channel_overtaken_total, "numacre_channel_overtaken_total", MetricKind::counter, "messages",
     "Messages that were overwritten before a reader of a broadcast channel came to them. Each reader counts.",
     metric_labels("pool", "channel")},
    {Metric::resize_operations_total, "numacre_resize_operations_total", MetricKind::counter, "operations",
     "Resizes by result: ok, partial or failed.", metric_labels("result")},
    {Metric::autosize_operations_total, "numacre_autosize_operations_total", MetricKind::counter, "operations",
     "Of the resizes, those by pools' own policy, by result: grown, shrunk or failed.", metric_labels("result")},
    {Metric::scan_duration_seconds, "numacre_scan_duration_seconds", MetricKind::gauge, "seconds",
     "How long the scan of the pool for this scrape took.", metric_labels("pool")},
    {Metric::pool_stale_seconds, "numacre_pool_stale_seconds", MetricKind::gauge, "seconds",
     "How old the pool's other series are; 0 but where a scan takes longer than two seconds.", metric_labels("pool")},
    {Metric::log_messages_dropped_total, "numacre_log_messages_dropped_total", MetricKind::counter, "messages",
     "Log lines that were not written because nobody read stderr fast enough.", metric_labels()},
    {Metric::build_info, "numacre_build_info", MetricKind::gauge, "",
     "The daemon's version and the version of the shared memory layout. Always 1.",
     metric_labels("version", "layout_version")},
}};

constexpr const MetricRow &metric_row(Metric metric) {
    return kMetrics[static_cast<std::size_t>(metric)];
}

namespace detail {

constexpr bool names_follow_the_rules() {
    for (std::size_t at = 0; at < kMetrics.size(); ++at) {
        const MetricRow &row = kMetrics[at];
        const bool is_info = row.name.ends_with("_info");
        if (static_cast<std::size_t>(row.metric) != at) return false;  // metric_row() counts on it
        if (!row.name.starts_with("numacre_") || row.help.empty()) return false;
        if (row.name.ends_with("_total") != (row.kind == MetricKind::counter)) return false;
        if ((row.unit == "bytes" || row.unit == "seconds") && row.name.find(row.unit) == std::string_view::npos)
            return false;
        for (const std::string_view label : row.label_names)
            if (label == "pid" && !is_info) return false;
    }
    return true;
}
static_assert(names_follow_the_rules());

}  // namespace detail

}  // namespace numacre::daemon
