#include "json.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <ostream>

#include "bytes.hpp"

namespace numacre::cli {
namespace {

Json time_json(bool known, const google::protobuf::Timestamp &time) {
    return known ? Json(format_time(time.seconds())) : Json(nullptr);
}

Json pool_node_json(const v1::PoolNode &numa_node) {
    return {{"node", numa_node.node()},
            {"os_numa_node", numa_node.os_numa_node()},
            {"capacity_bytes", numa_node.capacity_bytes()},
            {"online_bytes", numa_node.online_bytes()},
            {"used_bytes", numa_node.used_bytes()},
            {"free_bytes", numa_node.free_bytes()},
            {"cached_bytes", numa_node.cached_bytes()},
            {"quarantined_bytes", numa_node.quarantined_bytes()},
            {"pinned_bytes", numa_node.pinned_bytes()},
            {"lingering_bytes", numa_node.lingering_bytes()},
            {"largest_free_block_bytes", numa_node.largest_free_block_bytes()},
            {"metadata_bytes", numa_node.metadata_bytes()},
            {"metadata_resident_bytes", numa_node.metadata_resident_bytes()},
            {"backing", backing_name(numa_node.backing())},
            {"page_bytes", numa_node.page_bytes()},
            {"backing_note", numa_node.backing_note()},
            {"below_low_watermark", numa_node.below_low_watermark()},
            {"peak_used_bytes", numa_node.peak_used_bytes()}};
}

// The mode as chmod takes it: octal text of four digits.
std::string mode_text(std::uint32_t mode) {
    std::array<char, 16> text{};
    std::snprintf(text.data(), text.size(), "%04o", mode);
    return text.data();
}

Json failures_json(std::uint64_t out_of_frames, std::uint64_t fragmented, std::uint64_t quota, std::uint64_t argument) {
    return {{"out_of_frames", out_of_frames}, {"fragmented", fragmented}, {"quota", quota}, {"argument", argument}};
}

}  // namespace

const char *backing_name(v1::Backing backing) {
    switch (backing) {
        case v1::BACKING_HUGETLB:
            return "hugetlb";
        case v1::BACKING_HUGETLB_1G:
            return "hugetlb-1g";
        case v1::BACKING_THP:
            return "thp";
        case v1::BACKING_SMALL_PAGES:
            return "small";
        default:
            return "unknown";
    }
}

bool is_hugetlb(v1::Backing backing) {
    return backing == v1::BACKING_HUGETLB || backing == v1::BACKING_HUGETLB_1G;
}

v1::Backing asked_backing(const v1::Pool &pool) {
    return pool.wanted_backing() == v1::BACKING_UNSPECIFIED ? v1::BACKING_HUGETLB : pool.wanted_backing();
}

std::uint64_t hugepage_bytes(v1::Backing backing) {
    return backing == v1::BACKING_HUGETLB_1G ? std::uint64_t{1} << 30 : std::uint64_t{2} << 20;
}

bool is_fallback(const v1::Pool &pool, const v1::PoolNode &numa_node) {
    const v1::Backing asked = asked_backing(pool);
    if (asked == v1::BACKING_SMALL_PAGES) return false;
    if (asked == v1::BACKING_THP) return numa_node.backing() == v1::BACKING_SMALL_PAGES;
    return !is_hugetlb(numa_node.backing()) || numa_node.page_bytes() < hugepage_bytes(asked);
}

const char *pool_state_name(v1::PoolState state) {
    switch (state) {
        case v1::POOL_STATE_SERVING:
            return "serving";
        case v1::POOL_STATE_CORRUPT:
            return "corrupt";
        default:
            return "unknown";
    }
}

Json daemon_json(const v1::Machine &machine, std::int64_t now_unix_seconds) {
    return {{"version", machine.version()},
            {"layout_version", machine.layout_version()},
            {"started", time_json(machine.has_started(), machine.started())},
            {"uptime_seconds", machine.has_started()
                                   ? Json(std::max<std::int64_t>(0, now_unix_seconds - machine.started().seconds()))
                                   : Json(nullptr)},
            {"topology_source", machine.topology_source()},
            {"numa_nodes", machine.nodes_size()},
            {"metrics_address", machine.metrics_address()},
            {"runtime_dir", machine.runtime_dir()}};
}

Json machine_json(const v1::Machine &machine) {
    Json numa_nodes = Json::array();
    for (const v1::MachineNode &numa_node : machine.nodes()) {
        Json hugepages = Json::array();
        for (const v1::HugepagePool &pages : numa_node.hugepages()) {
            hugepages.push_back({{"page_bytes", pages.page_bytes()},
                                 {"total", pages.total()},
                                 {"free", pages.free()},
                                 {"surplus", pages.surplus()}});
        }
        numa_nodes.push_back({{"node", numa_nodes.size()},
                              {"os_numa_node", numa_node.os_numa_node()},
                              {"total_bytes", numa_node.total_bytes()},
                              {"free_bytes", numa_node.free_bytes()},
                              {"cpus", numa_node.cpus()},
                              {"distances", Json(numa_node.distances())},
                              {"hugepages", hugepages},
                              {"pools", Json::array()}});
    }
    return {{"topology_source", machine.topology_source()}, {"nodes", numa_nodes}};
}

Json attribute_json(const v1::PoolAttribute &attribute) {
    Json json = {{"key", attribute.key()}, {"value", attribute.value()}, {"help", attribute.help()}};
    json["changed_by"] = attribute.changed_by().empty() ? Json(nullptr) : Json(attribute.changed_by());
    json["fixed_because"] = attribute.fixed_because().empty() ? Json(nullptr) : Json(attribute.fixed_because());
    return json;
}

Json pool_json(const v1::Pool &pool) {
    Json numa_nodes = Json::array();
    std::uint64_t capacity = 0, online = 0, used = 0, free = 0, quarantined = 0;
    for (const v1::PoolNode &numa_node : pool.nodes()) {
        numa_nodes.push_back(pool_node_json(numa_node));
        capacity += numa_node.capacity_bytes();
        online += numa_node.online_bytes();
        used += numa_node.used_bytes();
        free += numa_node.free_bytes();
        quarantined += numa_node.quarantined_bytes();
    }
    Json users = Json::array();
    for (const v1::User &user : pool.users()) {
        users.push_back({{"uid", user.uid()},
                         {"name", user.name()},
                         {"used_bytes", user.used_bytes()},
                         {"quota_bytes", user.quota_bytes()},
                         {"soft_quota_bytes", user.soft_quota_bytes()},
                         {"reserved_bytes", user.reserved_bytes()},
                         {"clients", user.clients()}});
    }
    return {{"name", pool.name()},
            {"state", pool_state_name(pool.state())},
            {"corrupt_reason", pool.corrupt_reason()},
            {"stale_seconds", pool.stale_seconds()},
            {"looking_seconds", pool.looking_seconds()},
            {"frame_bytes", pool.frame_bytes()},
            {"largest_block_bytes", pool.largest_block_bytes()},
            {"object_bytes", pool.object_bytes()},
            {"object_count", pool.object_count()},
            {"made_within", pool.made_within()},
            {"capacity_bytes", capacity},
            {"online_bytes", online},
            {"used_bytes", used},
            {"free_bytes", free},
            {"quarantined_bytes", quarantined},
            {"clients", pool.clients()},
            {"max_clients", pool.max_clients()},
            {"owner", pool.owner()},
            {"group", pool.group()},
            {"mode", mode_text(pool.mode())},
            {"reclaim", pool.reclaim()},
            {"low_watermark_bytes", pool.low_watermark_bytes()},
            {"policy", pool.policy()},
            {"wanted_backing", backing_name(pool.wanted_backing())},
            {"autosize", pool.autosize()},
            {"quota_bytes", pool.quota_bytes()},
            {"soft_quota_bytes", pool.soft_quota_bytes()},
            {"reserved_bytes", pool.reserved_bytes()},
            {"peak_client_bytes", pool.peak_client_bytes()},
            {"users", users},
            {"created", time_json(pool.has_created(), pool.created())},
            {"nodes", numa_nodes}};
}

Json client_json(const v1::Client &client) {
    const auto text_or_null = [](const std::string &text) { return text.empty() ? Json(nullptr) : Json(text); };
    const auto known = [&client](std::uint64_t figure) {
        return client.not_looked_at() ? Json(nullptr) : Json(figure);
    };
    return {{"client_id", client.client_id()},
            {"pool", client.pool()},
            {"pid", client.pid()},
            {"uid", client.uid()},
            {"gid", client.gid()},
            {"comm", client.comm()},
            {"cgroup", client.cgroup()},
            {"attached", time_json(client.has_attached(), client.attached())},
            {"used_bytes", known(client.used_bytes())},
            {"cached_bytes", known(client.cached_bytes())},
            {"blocks", known(client.blocks())},
            {"quota_bytes", client.quota_bytes()},
            {"soft_quota_bytes", client.soft_quota_bytes()},
            {"reserved_bytes", client.reserved_bytes()},
            {"pinned_bytes", client.pinned_bytes()},
            {"holds", known(client.holds())},
            {"hold_bytes", known(client.hold_bytes())},
            {"threads", known(client.threads())},
            {"state", client.state()},
            {"quarantine_reason", text_or_null(client.quarantine_reason())},
            {"quarantine_left_seconds",
             client.has_quarantine_left() ? Json(client.quarantine_left().seconds()) : Json(nullptr)},
            {"waits_for", client.waits_for_client_id()},
            {"oldest_held_seconds",
             client.has_oldest_held_for() ? Json(client.oldest_held_for().seconds()) : Json(nullptr)}};
}

Json blocks_json(const v1::ListBlocksResponse &blocks) {
    Json list = Json::array();
    for (const v1::HeldBlock &block : blocks.blocks()) {
        list.push_back({{"pool", block.pool()},
                        {"client_id", block.client_id()},
                        {"node", block.node()},
                        {"offset_bytes", block.offset_bytes()},
                        {"bytes", block.bytes()},
                        {"requested_bytes", block.requested_bytes()},
                        {"published", block.published()},
                        {"held_seconds", block.held_for().seconds()}});
    }
    return {{"blocks", list}, {"total_blocks", blocks.total_blocks()}, {"total_bytes", blocks.total_bytes()}};
}

namespace {

Json or_null(const std::optional<ChannelRates> *rates, double ChannelRates::*rate) {
    if (rates == nullptr || !*rates) return nullptr;
    return (**rates).*rate;
}

}  // namespace

Json channels_json(const v1::ListChannelsResponse &channels, const std::vector<std::optional<ChannelRates>> &rates) {
    Json list = Json::array();
    for (int i = 0; i < channels.channels_size(); ++i) {
        const v1::Channel &channel = channels.channels(i);
        const std::optional<ChannelRates> *const rate = rates.empty() ? nullptr : &rates[static_cast<std::size_t>(i)];
        Json clients = Json::array();
        for (const v1::ChannelClient &client : channel.clients())
            clients.push_back({{"client_id", client.client_id()},
                               {"pid", client.pid()},
                               {"comm", client.comm()},
                               {"opened", client.opened()},
                               {"senders", client.senders()},
                               {"receivers", client.receivers()}});
        list.push_back({{"pool", channel.pool()},
                        {"name", channel.name()},
                        {"client_id", channel.client_id()},
                        {"uid", channel.uid()},
                        {"kind", channel.kind().empty() ? "queue" : channel.kind()},
                        {"state", channel.state()},
                        {"stays", channel.stays()},
                        {"capacity_messages", channel.capacity_messages()},
                        {"burst_messages", channel.burst_messages()},
                        {"parties_most", channel.parties_most()},
                        {"waiting_messages", channel.waiting_messages()},
                        {"returned_messages", channel.returned_messages()},
                        {"waiting_bytes", channel.waiting_bytes()},
                        {"oldest_seconds",
                         channel.has_oldest_waits_for() ? Json(channel.oldest_waits_for().seconds()) : Json(nullptr)},
                        {"senders", channel.senders()},
                        {"receivers", channel.receivers()},
                        {"sent_messages", channel.sent_messages()},
                        {"received_messages", channel.received_messages()},
                        {"redelivered_messages", channel.redelivered_messages()},
                        {"dropped_messages", channel.dropped_messages()},
                        {"overtaken_messages", channel.overtaken_messages()},
                        {"sent_per_second", or_null(rate, &ChannelRates::sent_per_second)},
                        {"received_per_second", or_null(rate, &ChannelRates::received_per_second)},
                        {"receivers_sleep", channel.receivers_sleep()},
                        {"senders_sleep", channel.senders_sleep()},
                        {"clients", clients}});
    }
    Json result;
    result["channels"] = list;
    return result;
}

Json names_json(const v1::ListNamesResponse &names) {
    Json list = Json::array();
    for (const v1::BoundName &name : names.names()) {
        list.push_back({{"pool", name.pool()},
                        {"name", name.name()},
                        {"kind", name.kind()},
                        {"reference", name.kind() == "reference" ? Json(name.reference()) : Json(nullptr)},
                        {"objects", name.objects().empty() ? Json(nullptr) : Json(name.objects())},
                        {"channel", name.kind() == "channel" ? Json(name.channel()) : Json(nullptr)},
                        {"uid", name.uid()},
                        {"client_id", name.client_id() == 0 ? Json(nullptr) : Json(name.client_id())},
                        {"version", name.version()}});
    }
    Json result;
    result["names"] = list;
    return result;
}

Json failures_json(const v1::GetStatsResponse &stats) {
    std::uint64_t out_of_frames = 0, fragmented = 0, quota = 0, argument = 0;
    for (const v1::NodeStats &numa_node : stats.nodes()) {
        out_of_frames += numa_node.failures_out_of_frames();
        fragmented += numa_node.failures_fragmented();
        quota += numa_node.failures_quota();
        argument += numa_node.failures_argument();
    }
    return failures_json(out_of_frames, fragmented, quota, argument);
}

Json stats_json(const std::string &pool, const v1::GetStatsResponse &stats) {
    Json numa_nodes = Json::array();
    for (const v1::NodeStats &numa_node : stats.nodes()) {
        Json orders = Json::array();
        std::uint64_t allocations = 0, frees = 0;
        for (const v1::OrderStats &order : numa_node.orders()) {
            allocations += order.allocations();
            frees += order.frees();
            orders.push_back({{"order", order.order()},
                              {"block_bytes", order.block_bytes()},
                              {"allocations", order.allocations()},
                              {"frees", order.frees()},
                              {"live_blocks", order.live_blocks()},
                              {"free_blocks", order.free_blocks()}});
        }
        numa_nodes.push_back(
            {{"node", numa_node.node()},
             {"online_bytes", numa_node.online_bytes()},
             {"used_bytes", numa_node.used_bytes()},
             {"free_bytes", numa_node.free_bytes()},
             {"requested_bytes", numa_node.requested_bytes()},
             {"allocations", allocations},
             {"frees", frees},
             {"takes", numa_node.takes()},
             {"hand_offs", numa_node.hand_offs()},
             {"waiting_threads", numa_node.waiting_threads()},
             {"failures", failures_json(numa_node.failures_out_of_frames(), numa_node.failures_fragmented(),
                                        numa_node.failures_quota(), numa_node.failures_argument())},
             {"cas_retries", numa_node.cas_retries()},
             {"numa_hit", numa_node.numa_hit()},
             {"numa_miss", numa_node.numa_miss()},
             {"numa_foreign", numa_node.numa_foreign()},
             {"interleave_hit", numa_node.interleave_hit()},
             {"local_node", numa_node.local_node()},
             {"other_node", numa_node.other_node()},
             {"orders", orders}});
    }
    return {{"name", pool},
            {"clients_reaped", stats.clients_reaped()},
            {"reclaimed_bytes", stats.reclaimed_bytes()},
            {"numa_imbalance", stats.numa_imbalance()},
            {"nodes", numa_nodes}};
}

Json fragmentation_json(const std::string &pool, const v1::GetFragmentationResponse &fragmentation) {
    Json numa_nodes = Json::array();
    for (const v1::NodeFragmentation &numa_node : fragmentation.nodes()) {
        Json orders = Json::array();
        for (const v1::OrderFragmentation &order : numa_node.orders()) {
            orders.push_back({{"order", order.order()},
                              {"free_blocks", order.free_blocks()},
                              {"unusable_free_ratio", order.unusable_free_ratio()},
                              {"external_fragmentation_index", order.external_fragmentation_index()}});
        }
        numa_nodes.push_back({{"node", numa_node.node()},
                              {"free_bytes", numa_node.free_bytes()},
                              {"largest_free_block_bytes", numa_node.largest_free_block_bytes()},
                              {"quadratic_fragmentation", numa_node.quadratic_fragmentation()},
                              {"internal_fragmentation_ratio", numa_node.internal_fragmentation_ratio()},
                              {"orders", orders}});
    }
    return {{"name", pool}, {"nodes", numa_nodes}};
}

Json buddyinfo_json(const v1::Pool &pool, const v1::GetFragmentationResponse &fragmentation) {
    Json numa_nodes = Json::array();
    for (const v1::NodeFragmentation &numa_node : fragmentation.nodes()) {
        Json free_blocks = Json::array();
        for (const v1::OrderFragmentation &order : numa_node.orders()) free_blocks.push_back(order.free_blocks());
        numa_nodes.push_back({{"node", numa_node.node()}, {"free_blocks", free_blocks}});
    }
    return {{"name", pool.name()}, {"frame_bytes", pool.frame_bytes()}, {"nodes", numa_nodes}};
}

Json map_json(const std::string &pool, std::uint32_t numa_node, const v1::GetMapResponse &map) {
    Json cells = Json::array();
    std::uint64_t offset = 0;
    for (const v1::MapCell &cell : map.cells()) {
        cells.push_back({{"offset_bytes", offset},
                         {"frames", cell.frames()},
                         {"used_frames", cell.used_frames()},
                         {"offline_frames", cell.offline_frames()},
                         {"pinned_frames", cell.pinned_frames()}});
        offset += map.bytes_per_cell();
    }
    Json pins = Json::array();
    for (const v1::Pin &pin : map.pins())
        pins.push_back({{"client_id", pin.client_id()},
                        {"pid", pin.pid()},
                        {"comm", pin.comm()},
                        {"offset_bytes", pin.offset_bytes()},
                        {"bytes", pin.bytes()}});
    return {{"pool", pool},
            {"node", numa_node},
            {"bytes_per_cell", map.bytes_per_cell()},
            {"cells", cells},
            {"pins", pins}};
}

Json holders_json(const google::protobuf::RepeatedPtrField<v1::BlockHolder> &holders) {
    Json result = Json::array();
    for (const v1::BlockHolder &holder : holders) {
        result.push_back({{"client_id", holder.client_id()},
                          {"pid", holder.pid()},
                          {"comm", holder.comm()},
                          {"bytes", holder.bytes()},
                          {"pinned_bytes", holder.pinned_bytes()}});
    }
    return result;
}

Json resize_json(const v1::ResizePoolRequest &request, const v1::ResizeProgress &progress) {
    return {{"pool", request.pool()},
            {"node", request.node()},
            {"dry_run", request.dry_run()},
            {"requested_bytes", request.online_bytes()},
            {"online_bytes", progress.online_bytes()},
            {"target_bytes", progress.target_bytes()},
            {"done", progress.done()},
            {"note", progress.note()},
            {"undone_bytes", progress.undone_bytes()},
            {"blocked_by", holders_json(progress.blocked_by())}};
}

Json drain_json(const v1::DrainChunkRequest &request, const v1::DrainChunkResponse &response) {
    return {{"pool", request.pool()},
            {"node", request.node()},
            {"chunk", request.chunk()},
            {"undo", request.undo()},
            {"draining", response.draining()},
            {"offline", response.offline()},
            {"used_bytes", response.used_bytes()},
            {"blocked_by", holders_json(response.blocked_by())}};
}

void print_json(std::ostream &out, const Json &json, int indent) {
    out << json.dump(indent, ' ', false, Json::error_handler_t::replace) << '\n';
}

}  // namespace numacre::cli
