#include "commands.hpp"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <iostream>
#include <optional>
#include <utility>
#include <vector>

#include "advise.hpp"
#include "bytes.hpp"
#include "doctor.hpp"
#include "json.hpp"
#include "numacre/numacre.h"
#include "rates.hpp"
#include "views.hpp"

namespace numacre::cli {
namespace {

std::vector<v1::Pool> chosen_pools(Context &context, const std::string &name) {
    if (!name.empty()) return {context.control().get_pool(name)};
    const v1::ListPoolsResponse all = context.control().list_pools();
    return {all.pools().begin(), all.pools().end()};
}

// The numa node of the option --node. The option may be left out if the pool has only one numa node.
std::uint32_t chosen_node(const v1::Pool &pool, const std::optional<std::uint32_t> &asked) {
    const auto count = static_cast<std::uint32_t>(pool.nodes_size());
    if (!asked && count == 1) return pool.nodes(0).node();
    if (!asked) {
        throw ArgumentError("pool " + pool.name() + " has " + std::to_string(count) +
                            " numa nodes: say which with --node N");
    }
    for (const v1::PoolNode &numa_node : pool.nodes()) {
        if (numa_node.node() == *asked) return *asked;
    }
    throw ArgumentError("pool " + pool.name() + " has no numa node " + std::to_string(*asked) + ", only 0 to " +
                        std::to_string(count == 0 ? 0 : count - 1));
}

const v1::PoolNode &node_of(const v1::Pool &pool, std::uint32_t numa_node) {
    return *std::find_if(pool.nodes().begin(), pool.nodes().end(),
                         [&](const v1::PoolNode &candidate) { return candidate.node() == numa_node; });
}

v1::Backing parse_backing(const std::string &text) {
    if (text.empty() || text == "best") return v1::BACKING_UNSPECIFIED;
    for (const v1::Backing backing :
         {v1::BACKING_HUGETLB_1G, v1::BACKING_HUGETLB, v1::BACKING_THP, v1::BACKING_SMALL_PAGES}) {
        if (text == backing_name(backing)) return backing;
    }
    throw ArgumentError("bad backing '" + printable(text) + "': use hugetlb-1g, hugetlb, thp, small or best");
}

// Parses a mode as octal text. 0 is refused: the daemon would take it for the default, which allows more than was asked
// for.
std::uint32_t parse_mode(const std::string &text) {
    constexpr std::uint32_t kWidest = 0666;
    std::uint32_t mode = 0;
    bool octal = !text.empty() && text.size() <= 4;
    for (const char digit : text) {
        octal = octal && digit >= '0' && digit <= '7';
        mode = mode << 3 | (static_cast<std::uint32_t>(digit - '0') & 7);
    }
    if (!octal) throw ArgumentError("bad mode '" + printable(text) + "': use an octal one, such as 0660");
    if ((mode & ~kWidest) != 0)
        throw ArgumentError("mode " + text + " is beyond 0666: only r (4) and w (2) mean something for a pool");
    if (mode == 0) throw ArgumentError("mode " + text + " lets nobody in but root: use 0600 to mean its owner alone");
    return mode;
}

}  // namespace

Control &Context::control() {
    if (!control_) control_ = connect_control(runtime_dir, timeout);
    return *control_;
}

std::int64_t now_unix_seconds() {
    return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
        .count();
}

int run_status(Context &context) {
    const v1::Machine machine = context.control().get_machine();
    const v1::ListPoolsResponse pools = context.control().list_pools();
    std::vector<PoolReport> reports;
    bool corrupt = false;
    for (const v1::Pool &pool : pools.pools()) {
        PoolReport report{pool, std::nullopt, ""};
        corrupt = corrupt || pool.state() == v1::POOL_STATE_CORRUPT;
        try {
            report.stats = context.control().get_stats(pool.name());
        } catch (const CallError &error) {
            // A pool that was deleted meanwhile, or a corrupt one, must not hide the others.
            report.stats_error = error.code + ": " + error.what();
        }
        reports.push_back(std::move(report));
    }
    if (context.json) {
        Json list = Json::array();
        for (const PoolReport &report : reports) {
            Json pool = pool_json(report.pool);
            const bool known = report.stats.has_value();
            pool["failures"] = known ? failures_json(*report.stats) : Json(nullptr);
            pool["clients_reaped"] = known ? Json(report.stats->clients_reaped()) : Json(nullptr);
            pool["reclaimed_bytes"] = known ? Json(report.stats->reclaimed_bytes()) : Json(nullptr);
            pool["numa_imbalance"] = known ? Json(report.stats->numa_imbalance()) : Json(nullptr);
            list.push_back(std::move(pool));
        }
        print_json(context.out, {{"daemon", daemon_json(machine, now_unix_seconds())}, {"pools", list}});
    } else {
        print_status(context.out, machine, reports, now_unix_seconds(), context.terminal);
    }
    return corrupt ? kExitCorruptPool : kExitOk;
}

int run_pools(Context &context) {
    const v1::ListPoolsResponse pools = context.control().list_pools();
    if (context.json) {
        Json list = Json::array();
        for (const v1::Pool &pool : pools.pools()) list.push_back(pool_json(pool));
        Json result;
        result["pools"] = list;
        print_json(context.out, result);
    } else {
        print_pools(context.out, pools);
    }
    return kExitOk;
}

namespace {

int run_blocks(Context &context, const ClientsArguments &arguments) {
    constexpr std::uint32_t kMostBlocks = 16384;
    if (arguments.limit == 0) throw ArgumentError("--limit 0 lists nothing: use 1 to 16384");
    if (arguments.limit > kMostBlocks)
        throw ArgumentError("--limit " + std::to_string(arguments.limit) + " is too many: use 1 to 16384");
    v1::ListBlocksRequest request;
    request.set_pool(arguments.pool);
    request.set_client_id(arguments.client_id);
    request.set_limit(arguments.limit);
    const v1::ListBlocksResponse blocks = context.control().list_blocks(request);
    if (context.json) {
        print_json(context.out, blocks_json(blocks));
    } else {
        print_blocks(context.out, blocks, context.control().list_clients(arguments.pool));
    }
    return kExitOk;
}

}  // namespace

int run_clients(Context &context, const ClientsArguments &arguments) {
    if (arguments.blocks) return run_blocks(context, arguments);
    const v1::ListClientsResponse response = context.control().list_clients(arguments.pool);
    std::vector<v1::Client> clients(response.clients().begin(), response.clients().end());
    std::sort(clients.begin(), clients.end(),
              [](const v1::Client &a, const v1::Client &b) { return a.client_id() < b.client_id(); });
    if (context.json) {
        Json list = Json::array();
        for (const v1::Client &client : clients) list.push_back(client_json(client));
        Json result;
        result["clients"] = list;
        print_json(context.out, result);
    } else {
        print_clients(context.out, clients, now_unix_seconds());
    }
    return kExitOk;
}

int run_names(Context &context, const std::string &pool, const std::string &remove) {
    if (!remove.empty()) {
        v1::RemoveNameRequest request;
        request.set_pool(pool);
        request.set_name(remove);
        context.control().remove_name(request);
        if (context.json)
            print_json(context.out, {{"pool", pool}, {"name", remove}, {"removed", true}});
        else
            context.out << "name " << printable(remove) << " of pool " << printable(pool) << " is removed\n";
        return kExitOk;
    }
    const v1::ListNamesResponse names = context.control().list_names(pool);
    if (context.json)
        print_json(context.out, names_json(names));
    else
        print_names(context.out, names);
    return kExitOk;
}

namespace {

int run_remove_channel(Context &context, const ChannelsArguments &arguments) {
    v1::RemoveChannelRequest request;
    request.set_pool(arguments.pool);
    request.set_name(arguments.remove);
    request.set_end(arguments.force);
    const std::uint32_t opened_by = context.control().remove_channel(request).opened_by();
    if (context.json) {
        print_json(context.out, {{"pool", arguments.pool},
                                 {"name", arguments.remove},
                                 {"ended", arguments.force},
                                 {"opened_by", opened_by},
                                 {"removed", opened_by == 0}});
        return kExitOk;
    }
    context.out << "channel " << printable(arguments.remove) << " of pool " << printable(arguments.pool);
    if (arguments.force) context.out << " has ended, and";
    if (opened_by == 0)
        context.out << " is removed\n";
    else
        context.out << " goes when " << opened_by << (opened_by == 1 ? " client closes" : " clients close") << " it"
                    << (arguments.force ? "\n" : "; --force also ends the stream\n");
    return kExitOk;
}

}  // namespace

int run_channels(Context &context, const ChannelsArguments &arguments) {
    if (!arguments.remove.empty()) return run_remove_channel(context, arguments);
    std::optional<std::chrono::milliseconds> interval;
    if (!arguments.interval.empty()) interval = parse_duration(arguments.interval);
    if (interval && *interval < std::chrono::milliseconds(50))
        throw ArgumentError("--interval " + printable(arguments.interval) +
                            " is too short for rates: use 50ms or more");
    std::vector<std::optional<ChannelRates>> rates;
    v1::ListChannelsResponse channels = context.control().list_channels(arguments.pool);
    if (interval) {
        const auto begun = std::chrono::steady_clock::now();
        catch_interrupts();
        sleep_unless_interrupted(*interval);
        v1::ListChannelsResponse later = context.control().list_channels(arguments.pool);
        rates = channel_rates(channels, later, std::chrono::steady_clock::now() - begun);
        channels = std::move(later);
    }
    if (context.json)
        print_json(context.out, channels_json(channels, rates));
    else
        print_channels(context.out, channels, rates);
    return kExitOk;
}

int run_nodes(Context &context) {
    const v1::Machine machine = context.control().get_machine();
    const v1::ListPoolsResponse pools = context.control().list_pools();
    if (!context.json) {
        print_nodes(context.out, machine, pools);
        return kExitOk;
    }
    Json result = machine_json(machine);
    for (int index = 0; index < machine.nodes_size(); ++index) {
        for (const v1::Pool &pool : pools.pools()) {
            for (const v1::PoolNode &share : pool.nodes()) {
                if (!lies_on(share, machine, index)) continue;
                result["nodes"][static_cast<std::size_t>(index)]["pools"].push_back(
                    {{"pool", pool.name()},
                     {"node", share.node()},
                     {"capacity_bytes", share.capacity_bytes()},
                     {"online_bytes", share.online_bytes()},
                     {"used_bytes", share.used_bytes()},
                     {"backing", backing_name(share.backing())}});
            }
        }
    }
    print_json(context.out, result);
    return kExitOk;
}

namespace {

// After a cancelled call its remaining progress is lost. So a second call, a dry run that changes nothing, waits for
// the first one to end on the daemon, and tells the online size after it.
v1::ResizeProgress after_interruption(Context &context, v1::ResizePoolRequest request, v1::ResizeProgress last) {
    const std::uint64_t reached = last.online_bytes();
    request.set_dry_run(true);
    try {
        context.control().resize_pool(
            request,
            [&](const v1::ResizeProgress &progress) {
                last.set_online_bytes(progress.online_bytes());
                last.set_target_bytes(progress.target_bytes());
            },
            [] { return true; });
    } catch (const CallError &) {
        // A refused dry run says only that the size could not be reached now, which does not matter here.
    }
    if (last.target_bytes() > reached && last.online_bytes() < reached) {
        last.set_undone_bytes(reached - last.online_bytes());
        last.set_note(format_bytes(last.undone_bytes()) + " that had come online went back");
    }
    return last;
}

}  // namespace

int run_resize(Context &context, const ResizeArguments &arguments) {
    const SizeChange change = parse_size_change(arguments.size);
    const v1::Pool pool = context.control().get_pool(arguments.pool);
    const v1::PoolNode numa_node = node_of(pool, chosen_node(pool, arguments.numa_node));
    v1::ResizePoolRequest request;
    request.set_pool(arguments.pool);
    request.set_node(numa_node.node());
    request.set_online_bytes(change.apply(numa_node.online_bytes()));
    request.set_dry_run(arguments.dry_run);
    // The daemon says of an object pool why it has no other size.
    if (pool.object_bytes() == 0 && request.online_bytes() > numa_node.capacity_bytes()) {
        throw ArgumentError("cannot bring " + format_bytes(request.online_bytes()) + " online on node " +
                            std::to_string(numa_node.node()) + " of pool " + pool.name() + ": its capacity is " +
                            format_bytes(numa_node.capacity_bytes()) + ", for good; create a larger pool");
    }

    catch_interrupts();
    const std::uint64_t from = numa_node.online_bytes();
    bool bar_shown = false;
    std::string last_line;
    const auto show = [&](const v1::ResizeProgress &progress) {
        if (context.json) return;
        const std::uint64_t target = progress.target_bytes(), online = progress.online_bytes();
        const std::string line = format_bytes(online) + " online, target " + format_bytes(target) +
                                 (progress.note().empty() ? "" : ": " + printable(progress.note()));
        if (context.terminal.tty && !arguments.dry_run) {
            const double way = static_cast<double>(target) - static_cast<double>(from);
            const double share = way == 0 ? 1 : (static_cast<double>(online) - static_cast<double>(from)) / way;
            context.out << "\r\033[K" << bar(share, 30, context.terminal.pen) << ' ' << line << std::flush;
            bar_shown = true;
        } else if (line != last_line && !progress.done()) {
            context.out << "  " << line << '\n' << std::flush;
            last_line = line;
        }
    };
    // A blocked shrink: the daemon first tells the holders, then answers with an error. Both are shown.
    v1::ResizeProgress result;
    std::optional<CallError> refused;
    try {
        context.control().resize_pool(
            request,
            [&](const v1::ResizeProgress &progress) {
                result = progress;
                show(progress);
            },
            [] { return !interrupted(); });
    } catch (const CallError &error) {
        if (result.target_bytes() == 0 && result.online_bytes() == 0) throw;
        refused = error;
    }
    if (bar_shown) context.out << '\n';
    if (interrupted()) result = after_interruption(context, request, std::move(result));

    const bool reached = !refused && result.done() && result.online_bytes() == result.target_bytes();
    if (context.json) {
        Json json = resize_json(request, result);
        json["error"] = nullptr;
        if (refused) json["error"] = {{"code", refused->code}, {"message", refused->what()}};
        print_json(context.out, json);
    } else {
        context.out << "pool " << printable(pool.name()) << ", node " << numa_node.node() << ": "
                    << format_bytes(result.online_bytes()) << " online" << (arguments.dry_run ? " (dry run)" : " now")
                    << ", wanted " << format_bytes(result.target_bytes())
                    << (result.note().empty() ? "" : ": " + printable(result.note())) << '\n';
        if (interrupted()) context.out << "stopped on request\n";
        print_holders(context.out, result.blocked_by());
    }
    if (refused) std::cerr << "numacre: " << refused->code << ": " << printable(refused->what()) << '\n';
    if (arguments.dry_run) return result.blocked_by().empty() ? kExitOk : kExitFailed;
    return reached ? kExitOk : kExitFailed;
}

int run_create(Context &context, const CreateArguments &arguments) {
    v1::CreatePoolRequest request;
    request.set_name(arguments.name);
    const auto object = arguments.attributes.find("object");
    const bool has_objects = object != arguments.attributes.end() && !object->second.empty() && object->second != "0";
    if (!has_objects && (arguments.capacity.empty() || arguments.online.empty()))
        throw ArgumentError(std::string(arguments.capacity.empty() ? "--capacity" : "--online") +
                            " is missing: give --capacity and --online, or --object and --count for a pool of objects");
    const auto count = arguments.attributes.find("count");
    if (has_objects && (count == arguments.attributes.end() || count->second.empty()))
        throw ArgumentError("--count is missing: give the number of objects on each numa node");
    if (!arguments.capacity.empty()) request.set_capacity_bytes(parse_bytes(arguments.capacity));
    if (!arguments.online.empty()) {
        for (const std::uint64_t online : parse_node_bytes(arguments.online)) request.add_node_online_bytes(online);
        request.set_online_bytes(*std::ranges::max_element(request.node_online_bytes()));
        if (request.node_online_bytes_size() == 1) request.clear_node_online_bytes();
    }
    if (!arguments.frame.empty()) request.set_frame_bytes(parse_bytes(arguments.frame));
    if (!arguments.largest.empty()) request.set_largest_block_bytes(parse_bytes(arguments.largest));
    request.set_max_clients(arguments.max_clients);
    request.set_backing(parse_backing(arguments.backing));
    request.set_owner(arguments.owner);
    request.set_reclaim(arguments.reclaim);
    request.set_group(arguments.group);
    request.set_policy(arguments.policy);
    if (!arguments.low_watermark.empty()) request.set_low_watermark_bytes(parse_bytes(arguments.low_watermark));
    request.set_autosize(arguments.autosize);
    if (!arguments.mode.empty()) request.set_mode(parse_mode(arguments.mode));
    for (const auto &[key, value] : arguments.attributes)
        if (!value.empty()) (*request.mutable_attributes())[key] = value;
    if (!has_objects && request.online_bytes() > request.capacity_bytes()) {
        throw ArgumentError("--online " + arguments.online + " is above --capacity " + arguments.capacity +
                            ": a pool cannot have more online than its capacity");
    }
    const v1::Pool pool = context.control().create_pool(request);
    if (context.json) {
        print_json(context.out, pool_json(pool));
        return kExitOk;
    }
    context.out << "created pool " << printable(pool.name()) << ": " << sizes_text(pool) << ", access "
                << access_text(pool) << policy_text(pool) << '\n';
    for (const v1::PoolNode &numa_node : pool.nodes()) {
        context.out << "  node " << numa_node.node() << ": " << format_bytes(numa_node.online_bytes()) << " online of "
                    << format_bytes(numa_node.capacity_bytes()) << ", " << backing_text(numa_node)
                    << (numa_node.backing_note().empty() ? "" : ": " + printable(numa_node.backing_note())) << '\n';
    }
    return kExitOk;
}

int run_delete(Context &context, const std::string &pool, bool force, bool abandon) {
    context.control().delete_pool(pool, force, abandon);
    if (context.json) {
        print_json(context.out, {{"pool", pool}, {"deleted", true}});
    } else {
        context.out << "deleted pool " << printable(pool) << '\n';
    }
    return kExitOk;
}

int run_drain(Context &context, const DrainArguments &arguments) {
    const v1::Pool pool = context.control().get_pool(arguments.pool);
    v1::DrainChunkRequest request;
    request.set_pool(arguments.pool);
    request.set_node(chosen_node(pool, arguments.numa_node));
    request.set_chunk(arguments.chunk);
    request.set_undo(arguments.undo);
    const v1::DrainChunkResponse response = context.control().drain_chunk(request);
    if (context.json) {
        print_json(context.out, drain_json(request, response));
        return kExitOk;
    }
    context.out << "pool " << printable(pool.name()) << ", node " << request.node() << ", chunk " << request.chunk()
                << ": ";
    if (response.offline()) {
        context.out << (arguments.undo ? "offline: there is nothing to undo; `numacre resize` brings memory online\n"
                                       : "empty, and offline now\n");
    } else if (response.draining()) {
        context.out << "draining, " << format_bytes(response.used_bytes())
                    << " still used; ask again to see, --undo to stop\n";
    } else {
        context.out << "open to allocations, " << format_bytes(response.used_bytes()) << " used\n";
    }
    print_holders(context.out, response.blocked_by());
    return kExitOk;
}

int run_evict(Context &context, std::uint32_t client_id, const std::string &grace_text) {
    const std::chrono::milliseconds grace = parse_duration(grace_text);
    if (client_id == 0) throw ArgumentError("0 is no client id: see `numacre clients`");
    context.control().evict_client(client_id, grace);
    if (context.json) {
        print_json(context.out, {{"client_id", client_id}, {"grace_milliseconds", grace.count()}, {"evicted", true}});
    } else {
        context.out << "client " << client_id << " was told to end; its blocks come back when it has\n";
    }
    return kExitOk;
}

namespace {

std::uint64_t parse_limit(const std::string &text) {
    if (text == "none") return 0;
    const std::uint64_t bytes = parse_bytes(text);
    if (bytes == 0)
        throw ArgumentError(
            "a quota of 0 would mean none to the daemon: say none, or 1 to allow no more than one frame");
    return bytes;
}

std::string limit_text(std::uint64_t bytes) {
    return bytes == 0 ? "none" : format_bytes(bytes);
}

}  // namespace

namespace {

struct ChosenHolder {
    std::uint32_t client_id = 0;
    std::string pool, user, size;

    std::string text() const {
        if (client_id != 0) return "client " + std::to_string(client_id);
        return (user.empty() ? "" : "user " + user + " in ") + ("pool " + pool);
    }
    Json json() const {
        if (client_id != 0) return {{"client_id", client_id}};
        return user.empty() ? Json{{"pool", pool}} : Json{{"pool", pool}, {"user", user}};
    }
    template <class Request>
    void put_into(Request &request) const {
        request.set_client_id(client_id);
        request.set_pool(pool);
        request.set_user(user);
    }
};

ChosenHolder holder_of(const HolderArguments &arguments) {
    ChosenHolder holder;
    const bool is_client = arguments.user.empty() && arguments.pool.empty();
    const std::size_t wanted = is_client ? 2 : 1;
    if (arguments.words.size() != wanted)
        throw ArgumentError(is_client ? "CLIENT and SIZE are wanted; or SIZE alone with --user or --pool"
                                      : "SIZE alone is wanted beside --user and --pool: a client has its own limits");
    holder.size = arguments.words.back();
    if (is_client) {
        const std::string &id = arguments.words.front();
        const auto [end, error] = std::from_chars(id.data(), id.data() + id.size(), holder.client_id);
        if (error != std::errc{} || end != id.data() + id.size() || holder.client_id == 0)
            throw ArgumentError("\"" + id + "\" is no client id: see `numacre clients`; --user takes a user");
    } else {
        holder.user = arguments.user;
        holder.pool = arguments.pool.empty() ? "default" : arguments.pool;
    }
    return holder;
}

}  // namespace

int run_quota(Context &context, const QuotaArguments &arguments) {
    const ChosenHolder holder = holder_of(arguments.of);
    v1::SetQuotaRequest request;
    holder.put_into(request);
    request.set_quota_bytes(parse_limit(holder.size));
    if (!arguments.soft.empty()) request.set_soft_bytes(parse_limit(arguments.soft));
    if (request.quota_bytes() != 0 && request.soft_bytes() >= request.quota_bytes()) {
        throw ArgumentError("--soft " + arguments.soft + " is not below the quota of " + holder.size +
                            ": it would never be exceeded");
    }
    context.control().set_quota(request);
    if (context.json) {
        Json json = holder.json();
        json["quota_bytes"] = request.quota_bytes();
        json["soft_quota_bytes"] = request.soft_bytes();
        print_json(context.out, json);
    } else {
        context.out << printable(holder.text()) << ": quota " << limit_text(request.quota_bytes()) << ", soft quota "
                    << limit_text(request.soft_bytes()) << '\n';
    }
    return kExitOk;
}

int run_reserve(Context &context, const HolderArguments &arguments) {
    const ChosenHolder holder = holder_of(arguments);
    if (holder.client_id == 0 && holder.user.empty())
        throw ArgumentError("a pool reserves nothing from itself: give a CLIENT, or --user");
    v1::ReserveRequest request;
    holder.put_into(request);
    request.set_bytes(holder.size == "none" ? 0 : parse_bytes(holder.size));
    context.control().reserve(request);
    if (context.json) {
        Json json = holder.json();
        json["reserved_bytes"] = request.bytes();
        print_json(context.out, json);
    } else {
        context.out << printable(holder.text()) << ": reserved " << limit_text(request.bytes()) << '\n';
    }
    return kExitOk;
}

namespace {

using Attributes = google::protobuf::RepeatedPtrField<v1::PoolAttribute>;

const v1::PoolAttribute &attribute_of(const Attributes &attributes, const std::string &key) {
    std::string keys;
    for (const v1::PoolAttribute &attribute : attributes) {
        if (attribute.key() == key) return attribute;
        keys += (keys.empty() ? "" : ", ") + attribute.key();
    }
    throw ArgumentError("unknown attribute '" + printable(key) + "': a pool has " + printable(keys));
}

void print_attributes_json(Context &context, const std::string &pool, const Attributes &attributes) {
    Json list = Json::array();
    for (const v1::PoolAttribute &attribute : attributes) list.push_back(attribute_json(attribute));
    print_json(context.out, {{"pool", pool}, {"attributes", list}});
}

}  // namespace

int run_get(Context &context, const std::string &pool, const std::string &key) {
    v1::GetPoolAttributesResponse found = context.control().get_pool_attributes(pool);
    if (!key.empty()) {
        const v1::PoolAttribute wanted = attribute_of(found.attributes(), key);
        // The value alone, for scripts.
        if (!context.json) {
            context.out << printable(wanted.value()) << '\n';
            return kExitOk;
        }
        found.clear_attributes();
        *found.add_attributes() = wanted;
    }
    if (context.json)
        print_attributes_json(context, pool, found.attributes());
    else
        print_attributes(context.out, found.attributes());
    return kExitOk;
}

int run_set(Context &context, const std::string &pool, const std::vector<std::string> &settings) {
    v1::SetPoolAttributesRequest request;
    request.set_pool(pool);
    for (const std::string &setting : settings) {
        const std::size_t equals = setting.find('=');
        if (equals == std::string::npos || equals == 0)
            throw ArgumentError("'" + printable(setting) + "' is no KEY=VALUE, such as mode=0600");
        const std::string key = setting.substr(0, equals);
        if (!request.mutable_attributes()->insert({key, setting.substr(equals + 1)}).second)
            throw ArgumentError("attribute '" + printable(key) + "' is given twice: keep one");
    }
    v1::SetPoolAttributesResponse after = context.control().set_pool_attributes(request);
    const Attributes all = after.attributes();
    after.clear_attributes();
    for (const v1::PoolAttribute &attribute : all)
        if (request.attributes().contains(attribute.key())) *after.add_attributes() = attribute;
    if (context.json)
        print_attributes_json(context, pool, after.attributes());
    else
        for (const v1::PoolAttribute &attribute : after.attributes())
            context.out << printable(attribute.key() + " = " + attribute.value()) << '\n';
    return kExitOk;
}

int run_stats(Context &context, const std::string &name) {
    Json list = Json::array();
    bool first = true;
    for (const v1::Pool &pool : chosen_pools(context, name)) {
        const v1::GetStatsResponse stats = context.control().get_stats(pool.name());
        if (context.json) {
            list.push_back(stats_json(pool.name(), stats));
        } else {
            if (!first) context.out << '\n';
            print_stats(context.out, pool.name(), stats);
        }
        first = false;
    }
    if (context.json) {
        Json result;
        result["pools"] = list;
        print_json(context.out, result);
    }
    return kExitOk;
}

namespace {

template <class ToJson, class Print>
int run_fragmentation(Context &context, const std::string &name, bool heads, bool ratios, const ToJson &to_json,
                      const Print &print) {
    Json list = Json::array();
    for (const v1::Pool &pool : chosen_pools(context, name)) {
        const v1::GetFragmentationResponse fragmentation = context.control().get_fragmentation(pool.name());
        if (context.json) {
            list.push_back(to_json(pool, fragmentation));
            continue;
        }
        if (heads && !fragmentation.nodes().empty()) {
            print_order_heads(context.out, pool, static_cast<unsigned>(fragmentation.nodes(0).orders_size()), ratios);
        }
        print(context.out, pool.name(), fragmentation);
    }
    if (context.json) {
        Json result;
        result["pools"] = list;
        print_json(context.out, result);
    }
    return kExitOk;
}

}  // namespace

int run_buddyinfo(Context &context, const std::string &pool, bool heads) {
    return run_fragmentation(context, pool, heads, false, buddyinfo_json, print_buddyinfo);
}

int run_extfrag(Context &context, const std::string &pool, bool heads) {
    return run_fragmentation(
        context, pool, heads, true,
        [](const v1::Pool &p, const v1::GetFragmentationResponse &f) { return fragmentation_json(p.name(), f); },
        print_extfrag);
}

int run_map(Context &context, const MapArguments &arguments) {
    constexpr std::uint32_t kMostCells = 65536;
    if (arguments.cells > kMostCells) {
        throw ArgumentError("--cells " + std::to_string(arguments.cells) + " is too many: at most " +
                            std::to_string(kMostCells));
    }
    Json list = Json::array();
    bool first = true;
    for (const v1::Pool &pool : chosen_pools(context, arguments.pool)) {
        std::vector<std::uint32_t> numa_nodes;
        if (arguments.numa_node) {
            numa_nodes.push_back(chosen_node(pool, arguments.numa_node));
        } else {
            for (const v1::PoolNode &numa_node : pool.nodes()) numa_nodes.push_back(numa_node.node());
        }
        for (const std::uint32_t number : numa_nodes) {
            const v1::PoolNode &numa_node = node_of(pool, number);
            constexpr std::uint32_t kRows = 8, kJsonCells = 256;
            std::uint32_t cells = arguments.cells;
            if (cells == 0) {
                cells = context.json ? kJsonCells
                                     : map_columns(numa_node.capacity_bytes(), context.terminal.columns) * kRows;
                // Cells of 2^k bytes, so that rows begin at offsets that a reader recognises.
                std::uint64_t cell_bytes = 1;
                while (numa_node.capacity_bytes() / cells > cell_bytes) cell_bytes *= 2;
                cells = static_cast<std::uint32_t>(numa_node.capacity_bytes() / cell_bytes);
            }
            // A cell is at least a frame.
            if (pool.frame_bytes() != 0) {
                cells = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(
                    numa_node.capacity_bytes() / pool.frame_bytes(), 1, std::min(cells, kMostCells)));
            }
            const v1::GetMapResponse map = context.control().get_map(pool.name(), number, cells);
            if (context.json) {
                list.push_back(map_json(pool.name(), number, map));
                continue;
            }
            if (!first) context.out << '\n';
            first = false;
            context.out << "pool " << printable(pool.name()) << ", node " << number << ": "
                        << format_bytes(numa_node.used_bytes()) << " used of " << format_bytes(numa_node.online_bytes())
                        << " online, " << format_bytes(numa_node.capacity_bytes()) << " in all\n"
                        << draw_map(map_cells(map), map.bytes_per_cell(), context.terminal.columns,
                                    context.terminal.pen)
                        << map_legend(map.bytes_per_cell(), context.terminal.pen) << '\n';
            print_pins(context.out, map);
        }
    }
    if (context.json) {
        Json result;
        result["maps"] = list;
        print_json(context.out, result);
    }
    return kExitOk;
}

int run_doctor(Context &context) {
    DaemonFacts daemon;
    try {
        Control &control = context.control();
        daemon.machine = control.get_machine();
        const v1::ListPoolsResponse pools = control.list_pools();
        daemon.pools.assign(pools.pools().begin(), pools.pools().end());
        const v1::ListClientsResponse clients = control.list_clients("");
        daemon.clients.assign(clients.clients().begin(), clients.clients().end());
        daemon.reachable = true;
        const v1::ListChannelsResponse channels = control.list_channels("");
        daemon.channels.assign(channels.channels().begin(), channels.channels().end());
    } catch (const NoDaemonError &error) {
        daemon.error = error.what();
        // The finding's command is the remedy, so the part behind the colon goes.
        daemon.error.resize(std::min(daemon.error.size(), daemon.error.find(": start it")));
    } catch (const CallError &error) {
        // A daemon of an earlier version has no channels; that it is one is said anyway.
        if (daemon.reachable) daemon.reachable = error.code == "UNIMPLEMENTED";
        daemon.error = error.code + ": " + error.what();
        daemon.denied = error.code == "PERMISSION_DENIED";
    }
    const std::string socket = control_socket_path(context.runtime_dir);
    const SystemFacts system =
        gather_system_facts("", context.runtime_dir, daemon.reachable ? listener_pid(socket) : 0);
    const std::vector<Finding> findings = examine(system, daemon, numacre_version());
    if (context.json) {
        print_json(context.out, findings_json(findings));
    } else {
        print_findings(context.out, findings, context.terminal.pen);
    }
    return count_level(findings, Level::problem) == 0 ? kExitOk : kExitFailed;
}

int run_advise(Context &context, const std::string &name, const std::string &look_for_text) {
    const std::chrono::milliseconds look_for = parse_duration(look_for_text);
    catch_interrupts();
    std::vector<Advice> all;
    const std::vector<v1::Pool> pools = chosen_pools(context, name);
    std::vector<std::uint64_t> peaks(pools.size(), 0);
    std::vector<v1::GetStatsResponse> last(pools.size());
    const auto end = std::chrono::steady_clock::now() + look_for;
    for (;;) {
        for (std::size_t i = 0; i < pools.size(); ++i) {
            last[i] = context.control().get_stats(pools[i].name());
            for (const v1::NodeStats &numa_node : last[i].nodes())
                peaks[i] = std::max(peaks[i], numa_node.used_bytes());
        }
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
        if (left.count() <= 0 || interrupted()) break;
        // Each look scans the pool's metadata: five looks a second disturb nobody.
        sleep_unless_interrupted(std::min(left, std::chrono::milliseconds(200)));
    }
    for (std::size_t i = 0; i < pools.size(); ++i) all.push_back(advise(pools[i], last[i], peaks[i]));
    if (context.json) {
        Json list = Json::array();
        for (const Advice &advice : all) list.push_back(advice_json(advice));
        Json result;
        result["pools"] = list;
        print_json(context.out, result);
        return kExitOk;
    }
    bool first = true;
    for (const Advice &advice : all) {
        if (!first) context.out << '\n';
        first = false;
        print_advice(context.out, advice);
    }
    return kExitOk;
}

}  // namespace numacre::cli
