#include "control/conversions.hpp"

#include <cstring>
#include <string>

#include "control/derived.hpp"
#include "control/printable.hpp"
#include "spec/access.hpp"
#include "spec/autosize.hpp"
#include "spec/policy_text.hpp"
#include "spec/pool_attributes.hpp"
#include "spec/pool_spec.hpp"
#include "spec/reclaim.hpp"

#ifndef NUMACRE_VERSION
#error "NUMACRE_VERSION is the project's version, from CMake"
#endif

namespace numacre::daemon {
namespace {

void set_time(google::protobuf::Timestamp *proto, std::chrono::system_clock::time_point time) {
    const auto since_epoch = time.time_since_epoch();
    const auto seconds = std::chrono::floor<std::chrono::seconds>(since_epoch);
    proto->set_seconds(seconds.count());
    proto->set_nanos(
        static_cast<std::int32_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(since_epoch - seconds).count()));
}

v1::Backing to_proto(wire::Backing backing) {
    switch (backing) {
        case wire::Backing::hugetlb:
            return v1::BACKING_HUGETLB;
        case wire::Backing::hugetlb_1g:
            return v1::BACKING_HUGETLB_1G;
        case wire::Backing::thp:
            return v1::BACKING_THP;
        case wire::Backing::small_pages:
            return v1::BACKING_SMALL_PAGES;
        case wire::Backing::private_memory:
            break;  // only pools without a daemon have it
    }
    return v1::BACKING_UNSPECIFIED;
}

template <class Repeated>
void add_holders(Repeated *proto, const std::vector<BlockHolder> &holders) {
    for (const BlockHolder &holder : holders) {
        v1::BlockHolder &added = *proto->Add();
        added.set_client_id(holder.client_id);
        added.set_pid(holder.pid);
        added.set_comm(printable(holder.comm));
        added.set_bytes(holder.bytes);
        added.set_pinned_bytes(holder.pinned_bytes);
    }
}

std::uint64_t failures(const CounterTotals &counters, FailureReason reason) {
    return counters.failures[static_cast<std::size_t>(reason)];
}

// True if a field of its own gives the attribute. Attributes that came after the map have no such field.
bool has_field(const v1::CreatePoolRequest &request, std::string_view key) {
    if (key == "capacity") return request.capacity_bytes() != 0;
    if (key == "online") return request.online_bytes() != 0 || request.node_online_bytes_size() != 0;
    if (key == "frame") return request.frame_bytes() != 0;
    if (key == "largest") return request.largest_block_bytes() != 0;
    if (key == "max-clients") return request.max_clients() != 0;
    if (key == "backing") return request.backing() != v1::BACKING_UNSPECIFIED;
    if (key == "owner") return !request.owner().empty();
    if (key == "group") return !request.group().empty();
    if (key == "mode") return request.mode() != 0;
    if (key == "reclaim") return !request.reclaim().empty();
    if (key == "low-watermark") return request.low_watermark_bytes() != 0;
    if (key == "policy") return !request.policy().empty();
    if (key == "autosize") return !request.autosize().empty();
    return false;
}

// As in a line of the configuration file: a very long user-quota would take very long to check.
Answer<void> check_value_length(const std::string &key, const std::string &value) {
    constexpr std::size_t kLongestValue = 4096;
    if (value.size() <= kLongestValue) return {};
    return bad_argument("the value of attribute " + quoted(key) + " has " + std::to_string(value.size()) +
                        " characters: use at most " + std::to_string(kLongestValue));
}

Answer<void> set_attributes(PoolSpec &spec, const v1::CreatePoolRequest &request) {
    for (const auto &[key, value] : request.attributes()) {
        if (find_pool_attribute(key) == nullptr)
            return bad_argument("attribute " + quoted(key) +
                                " is unknown: " + likely_attribute(key, pool_attribute_keys()));
        if (key == "name") return bad_argument("attribute \"name\" is not an attribute here: use the field name");
        if (has_field(request, key))
            return bad_argument("attribute " + quoted(key) + " is given twice, by its field and as " + quoted(value) +
                                ": leave one of them out");
        if (auto short_enough = check_value_length(key, value); !short_enough) return short_enough;
    }
    for (const PoolAttribute &attribute : pool_attributes()) {
        const auto given = request.attributes().find(std::string(attribute.key));
        if (given == request.attributes().end()) continue;
        if (const auto set = attribute.parse(spec, given->second); !set)
            return bad_argument(std::string(attribute.key) + " = " + quoted(given->second) + ": " +
                                printable(set.error().message));
    }
    return {};
}

const char *name_kind_name(NameKind kind) {
    switch (kind) {
        case NameKind::reference:
            return "reference";
        case NameKind::objects:
            return "objects";
        case NameKind::channel:
            return "channel";
        case NameKind::none:
            break;
    }
    return "nothing";
}

const char *quarantine_reason_name(QuarantineReason reason) {
    switch (reason) {
        case QuarantineReason::pin_held:
            return "pin held";
        case QuarantineReason::group:
            return "group";
        case QuarantineReason::pin_time:
            return "pin-quarantine";
    }
    return "unknown";
}

}  // namespace

v1::Pool to_proto(const PoolStatus &pool) {
    v1::Pool proto;
    // Of a ledger that somebody may have damaged: a text that is no UTF-8 would cost the whole answer.
    proto.set_name(printable(pool.spec.name));
    proto.set_state(pool.corrupt ? v1::POOL_STATE_CORRUPT : v1::POOL_STATE_SERVING);
    proto.set_frame_bytes(pool.geometry.frame_bytes);
    proto.set_largest_block_bytes(pool.geometry.chunk_bytes());
    proto.set_object_bytes(pool.spec.object_bytes);
    proto.set_object_count(pool.spec.object_count);
    proto.set_made_within(printable(pool.spec.made_within));
    proto.set_wanted_backing(to_proto(pool.spec.backing));
    proto.set_clients(pool.clients);
    proto.set_stale_seconds(std::chrono::duration<double>(pool.stale_for).count());
    proto.set_looking_seconds(std::chrono::duration<double>(pool.looking_for).count());
    proto.set_max_clients(client_limit_of(pool.spec));
    proto.set_owner(printable(pool.owner));
    proto.set_group(printable(pool.group));
    proto.set_mode(pool.spec.access.mode);
    proto.set_reclaim(format_reclaim(pool.spec.reclaim));
    proto.set_low_watermark_bytes(pool.spec.low_watermark_bytes);
    proto.set_policy(format_policy(pool.spec.policy));
    proto.set_autosize(format_autosize(pool.spec.autosize));
    proto.set_quota_bytes(pool.quota_bytes);
    proto.set_soft_quota_bytes(pool.soft_quota_bytes);
    proto.set_reserved_bytes(pool.reserved_bytes);
    proto.set_peak_client_bytes(pool.peak_client_bytes);
    for (const UserStatus &user : pool.users) {
        v1::User &added = *proto.add_users();
        added.set_uid(user.limit.uid);
        added.set_name(printable(user_name(user.limit.uid)));
        added.set_used_bytes(user.used_bytes);
        added.set_quota_bytes(user.limit.quota_bytes);
        added.set_soft_quota_bytes(user.limit.soft_quota_bytes);
        added.set_reserved_bytes(user.limit.reserved_bytes);
        added.set_clients(user.clients);
    }
    set_time(proto.mutable_created(), pool.created);
    proto.set_corrupt_reason(printable(pool.corrupt_reason));
    for (const NodeStatus &numa_node : pool.nodes) {
        v1::PoolNode &added = *proto.add_nodes();
        added.set_node(numa_node.node.value);
        added.set_os_numa_node(numa_node.os_numa_node);
        added.set_capacity_bytes(numa_node.capacity_bytes);
        added.set_online_bytes(numa_node.online_bytes);
        added.set_used_bytes(used_bytes(pool.geometry, numa_node));
        added.set_free_bytes(free_bytes(pool.geometry, numa_node));
        added.set_largest_free_block_bytes(largest_free_block_bytes(pool.geometry, numa_node));
        added.set_metadata_bytes(numa_node.metadata_bytes);
        added.set_metadata_resident_bytes(numa_node.metadata_resident_bytes);
        added.set_backing(to_proto(numa_node.backing));
        added.set_page_bytes(numa_node.page_bytes);
        added.set_backing_note(printable(numa_node.backing_note));
        added.set_cached_bytes(numa_node.cached_bytes);
        added.set_quarantined_bytes(numa_node.quarantined_bytes);
        added.set_pinned_bytes(numa_node.pinned_bytes);
        added.set_lingering_bytes(numa_node.lingering_bytes);
        added.set_below_low_watermark(numa_node.is_below_watermark);
        added.set_peak_used_bytes(numa_node.peak_used_bytes);
    }
    return proto;
}

v1::Client to_proto(const ClientStatus &client) {
    v1::Client proto;
    proto.set_client_id(client.client_id);
    proto.set_pool(client.pool);
    proto.set_pid(client.pid);
    proto.set_uid(client.uid);
    proto.set_gid(client.gid);
    proto.set_comm(printable(client.comm));
    proto.set_cgroup(printable(client.cgroup));
    set_time(proto.mutable_attached(), client.attached);
    proto.set_used_bytes(client.used_bytes);
    proto.set_cached_bytes(client.cached_bytes);
    proto.set_waits_for_client_id(client.waits_for);
    proto.set_blocks(client.blocks);
    proto.set_not_looked_at(!client.has_been_looked_at);
    proto.set_quota_bytes(client.quota_bytes);
    proto.set_soft_quota_bytes(client.soft_quota_bytes);
    proto.set_reserved_bytes(client.reserved_bytes);
    proto.set_pinned_bytes(client.pinned_bytes);
    proto.set_holds(client.holds);
    proto.set_hold_bytes(client.hold_bytes);
    proto.set_threads(client.threads);
    proto.set_state(client.state);
    if (client.oldest_held_for) proto.mutable_oldest_held_for()->set_seconds(client.oldest_held_for->count());
    if (client.quarantine_reason) proto.set_quarantine_reason(quarantine_reason_name(*client.quarantine_reason));
    if (client.quarantine_left) proto.mutable_quarantine_left()->set_seconds(client.quarantine_left->count());
    return proto;
}

v1::ListBlocksResponse to_proto(const BlockList &list) {
    v1::ListBlocksResponse proto;
    for (const HeldBlock &block : list.blocks) {
        v1::HeldBlock &added = *proto.add_blocks();
        added.set_pool(block.pool);
        added.set_client_id(block.client_id);
        added.set_node(block.node.value);
        added.set_offset_bytes(block.offset_bytes);
        added.set_bytes(block.bytes);
        added.set_requested_bytes(block.requested_bytes);
        added.set_published(block.is_published);
        added.mutable_held_for()->set_seconds(block.held_for.count());
    }
    proto.set_total_blocks(list.count);
    proto.set_total_bytes(list.bytes);
    return proto;
}

v1::BoundName to_proto(const NameStatus &name) {
    const NameEntry &entry = name.entry;
    v1::BoundName proto;
    proto.set_pool(name.pool);
    const auto text = entry.name.text();
    proto.set_name(printable({text.data(), ::strnlen(text.data(), text.size())}));
    proto.set_kind(name_kind_name(entry.kind));
    if (entry.kind == NameKind::reference) proto.set_reference(entry.value);
    if (entry.kind == NameKind::channel) proto.set_channel(entry.value);
    proto.set_objects(printable({entry.objects.data(), ::strnlen(entry.objects.data(), entry.objects.size())}));
    proto.set_uid(entry.user);
    proto.set_client_id(entry.client_id);
    proto.set_version(entry.version);
    return proto;
}

v1::Channel to_proto(const ChannelStatus &channel) {
    const ChannelFigures &figures = channel.figures;
    v1::Channel proto;
    proto.set_pool(channel.pool);
    proto.set_name(printable(channel.name));
    proto.set_client_id(channel.client_id);
    proto.set_uid(channel.uid);
    proto.set_state(figures.has_ended ? "ended" : "open");
    proto.set_stays(channel.stays);
    proto.set_capacity_messages(channel.shape.capacity);
    proto.set_burst_messages(channel.shape.burst);
    proto.set_parties_most(channel.shape.parties);
    proto.set_waiting_messages(figures.waiting);
    proto.set_returned_messages(figures.returned);
    proto.set_waiting_bytes(channel.waiting_bytes);
    if (channel.oldest_waits_for) proto.mutable_oldest_waits_for()->set_seconds(channel.oldest_waits_for->count());
    proto.set_sent_messages(figures.sent);
    proto.set_received_messages(figures.received);
    proto.set_redelivered_messages(figures.redelivered);
    proto.set_kind(channel.shape.is_broadcast() ? "broadcast" : "queue");
    proto.set_dropped_messages(figures.dropped);
    proto.set_overtaken_messages(figures.overtaken);
    proto.set_receivers_sleep(figures.receivers_sleep);
    proto.set_senders_sleep(figures.senders_sleep);
    for (const ChannelParty &party : channel.parties) {
        v1::ChannelClient &added = *proto.add_clients();
        added.set_client_id(party.client_id);
        added.set_pid(party.pid);
        added.set_comm(printable(party.comm));
        added.set_opened(party.opened);
        added.set_senders(party.senders);
        added.set_receivers(party.receivers);
        proto.set_senders(proto.senders() + party.senders);
        proto.set_receivers(proto.receivers() + party.receivers);
    }
    return proto;
}

v1::ResizeProgress to_proto(const ResizeStep &step) {
    v1::ResizeProgress proto;
    proto.set_online_bytes(step.online_bytes);
    proto.set_target_bytes(step.target_bytes);
    proto.set_done(step.done);
    proto.set_note(printable(step.note));
    add_holders(proto.mutable_blocked_by(), step.blocked_by);
    proto.set_undone_bytes(step.undone_bytes);
    return proto;
}

v1::DrainChunkResponse to_proto(const DrainStatus &drain) {
    v1::DrainChunkResponse proto;
    proto.set_used_bytes(drain.used_bytes);
    proto.set_draining(drain.draining);
    proto.set_offline(drain.offline);
    add_holders(proto.mutable_blocked_by(), drain.blocked_by);
    return proto;
}

v1::GetMapResponse to_proto(const OccupancyMap &map) {
    v1::GetMapResponse proto;
    proto.set_bytes_per_cell(map.bytes_per_cell);
    for (const MapCell &cell : map.cells) {
        v1::MapCell &added = *proto.add_cells();
        added.set_frames(cell.frames);
        added.set_used_frames(cell.used_frames);
        added.set_offline_frames(cell.offline_frames);
        added.set_pinned_frames(cell.pinned_frames);
    }
    for (const PinStatus &pin : map.pins) {
        v1::Pin &added = *proto.add_pins();
        added.set_client_id(pin.client_id);
        added.set_pid(pin.pid);
        added.set_comm(printable(pin.comm));
        added.set_offset_bytes(pin.offset_bytes);
        added.set_bytes(pin.bytes);
    }
    return proto;
}

v1::Event to_proto(const Event &event) {
    v1::Event proto;
    set_time(proto.mutable_time(), event.time);
    proto.set_pool(event.pool);
    proto.set_kind(event_kind_name(event.kind));
    // The kinds are in the same order, but the proto's numbers begin at 1.
    proto.set_type(static_cast<v1::EventKind>(static_cast<int>(event.kind) + 1));
    if (event.uid) proto.set_uid(*event.uid);
    proto.set_message(printable(event.message));
    proto.set_client_id(event.client_id);
    proto.set_node(event.node);
    proto.set_bytes(event.bytes);
    return proto;
}

v1::Machine to_proto(const MachineStatus &machine) {
    v1::Machine proto;
    for (const MachineNode &numa_node : machine.nodes) {
        v1::MachineNode &added = *proto.add_nodes();
        added.set_os_numa_node(numa_node.os_numa_node);
        added.set_total_bytes(numa_node.total_bytes);
        added.set_free_bytes(numa_node.free_bytes);
        added.set_cpus(numa_node.cpus);
        for (const unsigned distance : numa_node.distances) added.add_distances(distance);
        for (const HugepagePool &hugepages : numa_node.hugepages) {
            v1::HugepagePool &pages = *added.add_hugepages();
            pages.set_page_bytes(hugepages.page_bytes);
            pages.set_total(hugepages.total);
            pages.set_free(hugepages.free);
            pages.set_surplus(hugepages.surplus);
        }
    }
    proto.set_topology_source(printable(machine.topology_source));
    proto.set_version(NUMACRE_VERSION);
    proto.set_layout_version(kLayoutVersion);
    set_time(proto.mutable_started(), machine.started);
    proto.set_metrics_address(printable(machine.metrics_address));
    proto.set_runtime_dir(printable(machine.runtime_dir));
    return proto;
}

v1::GetStatsResponse stats_of(const PoolStatus &pool) {
    v1::GetStatsResponse proto;
    for (const NodeStatus &numa_node : pool.nodes) {
        const CounterTotals &counters = numa_node.counters;
        v1::NodeStats &added = *proto.add_nodes();
        added.set_node(numa_node.node.value);
        for (unsigned order = 0; order <= pool.geometry.largest_order; ++order) {
            v1::OrderStats &of_order = *added.add_orders();
            of_order.set_order(order);
            of_order.set_block_bytes(bytes_of(pool.geometry, std::uint64_t{1} << order));
            of_order.set_allocations(counters.allocations[order]);
            of_order.set_frees(counters.frees[order]);
            of_order.set_live_blocks(numa_node.snapshot.live_blocks[order]);
            of_order.set_free_blocks(numa_node.snapshot.free_blocks[order]);
        }
        added.set_failures_out_of_frames(failures(counters, FailureReason::out_of_frames));
        added.set_failures_fragmented(failures(counters, FailureReason::fragmented));
        added.set_failures_quota(failures(counters, FailureReason::quota));
        added.set_failures_argument(failures(counters, FailureReason::argument));
        added.set_cas_retries(counters.cas_retries);
        added.set_numa_hit(counters.numa_hit);
        added.set_numa_miss(counters.numa_miss);
        added.set_numa_foreign(counters.numa_foreign);
        added.set_interleave_hit(counters.interleave_hit);
        added.set_local_node(counters.local_node);
        added.set_other_node(counters.other_node);
        added.set_takes(counters.takes);
        added.set_hand_offs(counters.hand_offs);
        added.set_waiting_threads(numa_node.waiting_threads);
        added.set_used_bytes(used_bytes(pool.geometry, numa_node));
        added.set_requested_bytes(numa_node.snapshot.requested_bytes);
        added.set_free_bytes(free_bytes(pool.geometry, numa_node));
        added.set_online_bytes(numa_node.online_bytes);
    }
    proto.set_clients_reaped(pool.clients_reaped);
    proto.set_reclaimed_bytes(pool.reclaimed_bytes);
    proto.set_numa_imbalance(numa_imbalance(pool));
    return proto;
}

v1::GetFragmentationResponse fragmentation_of(const PoolStatus &pool) {
    v1::GetFragmentationResponse proto;
    for (const NodeStatus &numa_node : pool.nodes) {
        const BlocksByOrder &free_blocks = numa_node.snapshot.free_blocks;
        v1::NodeFragmentation &added = *proto.add_nodes();
        added.set_node(numa_node.node.value);
        for (unsigned order = 0; order <= pool.geometry.largest_order; ++order) {
            v1::OrderFragmentation &of_order = *added.add_orders();
            of_order.set_order(order);
            of_order.set_free_blocks(free_blocks[order]);
            of_order.set_unusable_free_ratio(unusable_free_ratio(free_blocks, order));
            of_order.set_external_fragmentation_index(external_fragmentation_index(free_blocks, order));
        }
        added.set_quadratic_fragmentation(quadratic_fragmentation(free_blocks));
        added.set_internal_fragmentation_ratio(internal_fragmentation_of(numa_node));
        added.set_free_bytes(free_bytes(pool.geometry, numa_node));
        added.set_largest_free_block_bytes(largest_free_block_bytes(pool.geometry, numa_node));
    }
    return proto;
}

void add_attributes(const PoolSpec &spec, google::protobuf::RepeatedPtrField<v1::PoolAttribute> &attributes) {
    for (const PoolAttribute &attribute : pool_attributes()) {
        v1::PoolAttribute &added = *attributes.Add();
        added.set_key(std::string(attribute.key));
        added.set_value(printable(attribute.format(spec)));
        added.set_help(std::string(attribute.help));
        const std::string_view fixed = fixed_because(attribute, spec);
        added.set_changed_by(std::string(fixed.empty() ? attribute.changed_by : std::string_view{}));
        added.set_fixed_because(std::string(fixed));
    }
}

Answer<AttributeChanges> to_changes(const v1::SetPoolAttributesRequest &request) {
    if (request.attributes().empty())
        return bad_argument("no attribute is named: give KEY=VALUE, with KEY one of " + changeable_attribute_keys());
    for (const auto &[key, value] : request.attributes())
        if (auto short_enough = check_value_length(key, value); !short_enough)
            return Unexpected{std::move(short_enough.error())};
    return AttributeChanges(request.attributes().begin(), request.attributes().end());
}

Answer<PoolSpec> to_pool_spec(const v1::CreatePoolRequest &request) {
    PoolSpec spec;
    spec.name = request.name();
    spec.capacity_bytes = request.capacity_bytes();
    spec.online_bytes = request.online_bytes();
    spec.node_online_bytes.assign(request.node_online_bytes().begin(), request.node_online_bytes().end());
    if (!spec.node_online_bytes.empty()) spec.online_bytes = spec.node_online_bytes.front();
    if (request.frame_bytes() != 0) spec.frame_bytes = request.frame_bytes();
    if (request.largest_block_bytes() != 0) spec.largest_block_bytes = request.largest_block_bytes();
    if (request.max_clients() != 0) spec.max_clients = request.max_clients();
    spec.low_watermark_bytes = request.low_watermark_bytes();
    if (request.mode() != 0) spec.access.mode = request.mode();
    const auto named = [](const char *what, const std::string &text, Answer<std::uint32_t> parsed) {
        if (!parsed) parsed.error().message = std::string(what) + " " + quoted(text) + ": " + parsed.error().message;
        return parsed;
    };
    if (!request.owner().empty()) {
        auto owner = named("owner", request.owner(), parse_user(request.owner()));
        if (!owner) return Unexpected{std::move(owner.error())};
        spec.access.owner = *owner;
    }
    if (!request.group().empty()) {
        auto group = named("group", request.group(), parse_group(request.group()));
        if (!group) return Unexpected{std::move(group.error())};
        spec.access.group = *group;
    }
    if (!request.policy().empty()) {
        const auto policy = parse_policy(request.policy());
        if (!policy)
            return Unexpected{Failure{policy.error().code,
                                      "policy " + quoted(request.policy()) +
                                          ": use local, strict, preferred:1, interleave or interleave-frames; numa "
                                          "nodes as in interleave:0-2+5"}};
        spec.policy = *policy;
    }
    if (!request.reclaim().empty()) {
        const auto reclaim = parse_reclaim(request.reclaim());
        if (!reclaim)
            return Unexpected{Failure{reclaim.error().code,
                                      "reclaim " + quoted(request.reclaim()) + ": use fast, zero or quarantine:30s"}};
        spec.reclaim = *reclaim;
    }
    if (!request.autosize().empty()) {
        const auto autosize = parse_autosize(request.autosize());
        if (!autosize)
            return Unexpected{
                Failure{autosize.error().code, "autosize " + quoted(request.autosize()) +
                                                   ": use off, or LOW-HIGH:MIN-MAX[:STEP[:AFTER]] such as "
                                                   "10%-50%:64M-1G:64M:30s"}};
        spec.autosize = *autosize;
    }
    switch (request.backing()) {
        case v1::BACKING_UNSPECIFIED:
        case v1::BACKING_HUGETLB:
            spec.backing = wire::Backing::hugetlb;
            break;
        case v1::BACKING_HUGETLB_1G:
            spec.backing = wire::Backing::hugetlb_1g;
            break;
        case v1::BACKING_THP:
            spec.backing = wire::Backing::thp;
            break;
        case v1::BACKING_SMALL_PAGES:
            spec.backing = wire::Backing::small_pages;
            break;
        default:
            return Unexpected{
                Failure{Errc::bad_argument, "backing " + std::to_string(static_cast<int>(request.backing())) +
                                                " is unknown: use 0 or 1 (hugetlb), 2 (thp), 3 (small pages) "
                                                "or 4 (hugetlb-1g)"}};
    }
    if (auto set = set_attributes(spec, request); !set) return Unexpected{std::move(set.error())};
    const auto is_named = [&](std::string_view key) {
        return has_field(request, key) || request.attributes().contains(std::string(key));
    };
    if (auto sizes = set_object_sizes(spec, is_named); !sizes) return Unexpected{std::move(sizes.error())};
    return spec;
}

}  // namespace numacre::daemon
