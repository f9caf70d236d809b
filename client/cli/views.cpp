#include "views.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>
#include <ostream>
#include <set>
#include <utility>

#include "bytes.hpp"
#include "json.hpp"
#include "table.hpp"

namespace numacre::cli {
namespace {

std::string number(std::uint64_t value) {
    return std::to_string(value);
}

std::string fixed3(double value) {
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), "%.3f", value);
    return text.data();
}

std::string padded(const std::string &text, std::size_t width) {
    return text.size() < width ? std::string(width - text.size(), ' ') + text : text;
}

std::string age(bool known, const google::protobuf::Timestamp &since, std::int64_t now_unix_seconds) {
    return known ? format_duration(std::chrono::seconds(now_unix_seconds - since.seconds())) : "-";
}

std::string duration(const google::protobuf::Duration &time) {
    return format_duration(std::chrono::seconds(time.seconds()));
}

std::string plural(std::uint64_t count, const char *one, const char *many) {
    return number(count) + " " + (count == 1 ? one : many);
}

// "quarantined: pin held", "quarantined: 3 s left", "active, reads 2 blocks (8 KiB)".
std::string client_state_text(const v1::Client &client) {
    if (client.holds() != 0)
        return client.state() + ", reads " + plural(client.holds(), "block", "blocks") + " (" +
               format_bytes(client.hold_bytes()) + ")";
    if (client.has_quarantine_left()) return client.state() + ": " + duration(client.quarantine_left()) + " left";
    return client.state() + (client.quarantine_reason().empty() ? "" : ": " + client.quarantine_reason());
}

// Wide enough for "-1.000" and for seven digits, as in /proc/buddyinfo.
constexpr std::size_t kOrderColumnWidth = 7;

std::string line_head(const std::string &pool, std::uint32_t numa_node, const char *what) {
    return "Pool " + printable(pool) + ", node " + number(numa_node) + (*what != '\0' ? std::string(", ") + what : "");
}

}  // namespace

std::string access_text(const v1::Pool &pool) {
    if (pool.owner().empty() && pool.group().empty()) return "-";
    std::array<char, 16> mode{};
    std::snprintf(mode.data(), mode.size(), "%04o", pool.mode());
    return printable(pool.owner()) + ":" + printable(pool.group()) + " " + mode.data();
}

std::string policy_text(const v1::Pool &pool) {
    return pool.policy().empty() || pool.policy() == "local" ? "" : ", policy " + printable(pool.policy());
}

std::string sizes_text(const v1::Pool &pool) {
    if (pool.object_bytes() == 0)
        return "frame " + format_bytes(pool.frame_bytes()) + ", largest block " +
               format_bytes(pool.largest_block_bytes());
    std::string text =
        plural(pool.object_count(), "object", "objects") + " of " + number(pool.object_bytes()) + " B a numa node";
    if (pool.frame_bytes() != pool.object_bytes()) text += ", " + number(pool.frame_bytes()) + " B apart";
    if (!pool.made_within().empty()) text += ", made by clients of " + printable(pool.made_within());
    return text;
}

std::string backing_text(const v1::PoolNode &numa_node) {
    return std::string(backing_name(numa_node.backing())) + " (" + format_bytes(numa_node.page_bytes()) + " pages)";
}

std::string failures_text(const v1::GetStatsResponse &stats) {
    const Json failures = failures_json(stats);
    constexpr std::array<std::pair<const char *, const char *>, 4> kReasons{{{"out_of_frames", "out of frames"},
                                                                             {"fragmented", "fragmented"},
                                                                             {"quota", "over quota"},
                                                                             {"argument", "bad argument"}}};
    std::string text;
    for (const auto &[key, words] : kReasons) {
        const auto count = failures[key].get<std::uint64_t>();
        if (count == 0) continue;
        if (!text.empty()) text += ", ";
        text += number(count) + " " + words;
    }
    return text.empty() ? "none" : text;
}

namespace {

// "5 MiB (node 0: 3 MiB, node 2: 2 MiB)"; empty: nothing is in quarantine.
std::string quarantine_text(const v1::Pool &pool) {
    std::uint64_t bytes = 0;
    std::string by_node;
    for (const v1::PoolNode &numa_node : pool.nodes()) {
        if (numa_node.quarantined_bytes() == 0) continue;
        bytes += numa_node.quarantined_bytes();
        by_node += (by_node.empty() ? "node " : ", node ") + number(numa_node.node()) + ": " +
                   format_bytes(numa_node.quarantined_bytes());
    }
    return by_node.empty() ? "" : format_bytes(bytes) + " (" + by_node + ")";
}

// The limits that are set, as text; empty if there are none.
std::string limits_text(std::uint64_t quota_bytes, std::uint64_t soft_bytes, std::uint64_t reserved_bytes) {
    std::string text;
    for (const auto &[words, bytes] : {std::pair{"quota ", quota_bytes}, std::pair{"soft quota ", soft_bytes},
                                       std::pair{"reserved ", reserved_bytes}})
        if (bytes != 0) text += (text.empty() ? "" : ", ") + (words + format_bytes(bytes));
    return text;
}

}  // namespace

void print_status(std::ostream &out, const v1::Machine &machine, const std::vector<PoolReport> &pools,
                  std::int64_t now_unix_seconds, const Terminal &terminal) {
    out << "numacred " << printable(machine.version()) << ", up "
        << age(machine.has_started(), machine.started(), now_unix_seconds) << ", layout " << machine.layout_version()
        << ", " << plural(static_cast<std::uint64_t>(machine.nodes_size()), "numa node", "numa nodes") << " by "
        << printable(machine.topology_source()) << '\n'
        << "runtime directory " << printable(machine.runtime_dir()) << ", metrics "
        << (machine.metrics_address().empty() ? "off" : "on " + printable(machine.metrics_address())) << '\n';
    if (pools.empty()) {
        out << "\nno pools; make one with `numacre create NAME --capacity 1G --online 256M`\n";
    }
    for (const PoolReport &report : pools) {
        const v1::Pool &pool = report.pool;
        out << "\npool " << printable(pool.name()) << ": " << pool_state_name(pool.state()) << ", " << sizes_text(pool)
            << ", " << plural(pool.clients(), "client", "clients") << " (at most " << pool.max_clients() << "), access "
            << access_text(pool) << policy_text(pool) << '\n';
        if (pool.autosize() != "off" && !pool.autosize().empty())
            out << "  grows and shrinks by itself: " << printable(pool.autosize()) << '\n';
        if (pool.state() == v1::POOL_STATE_UNKNOWN) {
            out << "  the daemon has never been able to look at it: a client makes it wait for the pool's files\n";
            continue;
        }
        if (pool.stale_seconds() > 0)
            out << "  STALE: looked at " << format_duration(std::chrono::duration<double>(pool.stale_seconds()))
                << " ago; a look takes long, or a client makes the daemon wait for the pool's files\n";
        if (pool.state() == v1::POOL_STATE_CORRUPT) {
            out << "  CORRUPT: " << printable(pool.corrupt_reason())
                << "\n  stop its clients, keep the region for an inspection, then delete and create the pool\n";
        }
        Table table({{"node", Align::right},
                     {"capacity", Align::right},
                     {"online", Align::right},
                     {"used", Align::right},
                     {"free", Align::right},
                     {"largest free", Align::right},
                     {"", Align::right},
                     {"backing"}},
                    "  ");
        for (const v1::PoolNode &numa_node : pool.nodes()) {
            table.add_row({number(numa_node.node()), format_bytes(numa_node.capacity_bytes()),
                           format_bytes(numa_node.online_bytes()), format_bytes(numa_node.used_bytes()),
                           format_bytes(numa_node.free_bytes()), format_bytes(numa_node.largest_free_block_bytes()),
                           format_share(numa_node.used_bytes(), numa_node.online_bytes()), backing_text(numa_node)});
        }
        table.print(out);
        for (const v1::PoolNode &numa_node : pool.nodes()) {
            if (terminal.tty) {
                out << "  node " << numa_node.node() << ' '
                    << capacity_bar(numa_node.used_bytes(), numa_node.online_bytes(), numa_node.capacity_bytes(),
                                    std::clamp(terminal.columns, 40U, 100U) - 20, terminal.pen)
                    << '\n';
            }
            if (!numa_node.backing_note().empty()) {
                out << "  node " << numa_node.node() << " backing: " << printable(numa_node.backing_note()) << '\n';
            }
            if (numa_node.below_low_watermark()) {
                out << "  node " << numa_node.node() << " is below its low watermark of "
                    << format_bytes(pool.low_watermark_bytes()) << '\n';
            }
        }
        if (pool.quota_bytes() != 0 || pool.soft_quota_bytes() != 0) {
            out << "  all clients together: " << limits_text(pool.quota_bytes(), pool.soft_quota_bytes(), 0) << '\n';
        }
        for (const v1::User &user : pool.users()) {
            const std::string limits = limits_text(user.quota_bytes(), user.soft_quota_bytes(), user.reserved_bytes());
            if (limits.empty()) continue;
            out << "  user " << printable(user.name()) << ": " << format_bytes(user.used_bytes()) << " used by "
                << plural(user.clients(), "client", "clients") << ", " << limits << '\n';
        }
        if (const std::string quarantine = quarantine_text(pool); !quarantine.empty()) {
            out << "  in quarantine: " << quarantine << " of what is used, left by dead clients\n";
        }
        if (pool.reserved_bytes() != 0) {
            out << "  reserved: " << format_bytes(pool.reserved_bytes())
                << " of what is free is left to those who were promised it\n";
        }
        if (report.stats) {
            out << "  failed allocations: " << failures_text(*report.stats) << '\n'
                << "  reaped: " << plural(report.stats->clients_reaped(), "client", "clients") << ", "
                << format_bytes(report.stats->reclaimed_bytes()) << " given back\n";
        } else {
            out << "  statistics: not to be had: " << printable(report.stats_error) << '\n';
        }
    }
}

void print_attributes(std::ostream &out, const google::protobuf::RepeatedPtrField<v1::PoolAttribute> &attributes) {
    Table table({{"ATTRIBUTE"}, {"VALUE"}, {"CHANGED BY"}});
    for (const v1::PoolAttribute &attribute : attributes)
        table.add_row({attribute.key(), attribute.value().empty() ? "-" : attribute.value(),
                       attribute.changed_by().empty() ? "-" : attribute.changed_by()});
    table.print(out);
}

void print_pools(std::ostream &out, const v1::ListPoolsResponse &pools) {
    Table table({{"POOL"},
                 {"STATE"},
                 {"NODES", Align::right},
                 {"FRAME", Align::right},
                 {"LARGEST", Align::right},
                 {"CAPACITY", Align::right},
                 {"ONLINE", Align::right},
                 {"USED", Align::right},
                 {"FREE", Align::right},
                 {"CLIENTS", Align::right},
                 {"BACKING"},
                 {"POLICY"},
                 {"ACCESS"},
                 {"OBJECTS"}});
    for (const v1::Pool &pool : pools.pools()) {
        std::uint64_t capacity = 0, online = 0, used = 0, free = 0;
        std::set<std::string> backings;
        for (const v1::PoolNode &numa_node : pool.nodes()) {
            capacity += numa_node.capacity_bytes();
            online += numa_node.online_bytes();
            used += numa_node.used_bytes();
            free += numa_node.free_bytes();
            backings.insert(backing_name(numa_node.backing()));
        }
        std::string backing;
        for (const std::string &name : backings) backing += (backing.empty() ? "" : ",") + name;
        table.add_row(
            {pool.name(), pool_state_name(pool.state()), number(static_cast<std::uint64_t>(pool.nodes_size())),
             format_bytes(pool.frame_bytes()), format_bytes(pool.largest_block_bytes()), format_bytes(capacity),
             format_bytes(online), format_bytes(used), format_bytes(free), number(pool.clients()), backing,
             pool.policy().empty() ? "-" : pool.policy(), access_text(pool),
             pool.object_bytes() == 0 ? "-" : number(pool.object_count()) + " of " + number(pool.object_bytes())});
    }
    table.print(out);
}

void print_clients(std::ostream &out, const std::vector<v1::Client> &clients, std::int64_t now_unix_seconds) {
    std::uint64_t channels = 0, in_channels = 0;
    Table table({{"CLIENT", Align::right},
                 {"POOL"},
                 {"PID", Align::right},
                 {"COMM"},
                 {"USED", Align::right},
                 {"CACHED", Align::right},
                 {"BLOCKS", Align::right},
                 {"QUOTA", Align::right},
                 {"SOFT", Align::right},
                 {"RESERVED", Align::right},
                 {"PINNED", Align::right},
                 {"THREADS", Align::right},
                 {"SINCE", Align::right},
                 {"OLDEST", Align::right},
                 {"STATE"}});
    for (const v1::Client &client : clients) {
        // No process.
        if (client.state() == "channel") {
            ++channels;
            in_channels += client.used_bytes();
            continue;
        }
        table.add_row({number(client.client_id()), client.pool(), number(client.pid()), client.comm(),
                       client.not_looked_at() ? "-" : format_bytes(client.used_bytes()),
                       client.not_looked_at() ? "-" : format_bytes(client.cached_bytes()),
                       client.not_looked_at() ? "-" : number(client.blocks()),
                       client.quota_bytes() == 0 ? "-" : format_bytes(client.quota_bytes()),
                       client.soft_quota_bytes() == 0 ? "-" : format_bytes(client.soft_quota_bytes()),
                       client.reserved_bytes() == 0 ? "-" : format_bytes(client.reserved_bytes()),
                       client.pinned_bytes() == 0 ? "-" : format_bytes(client.pinned_bytes()), number(client.threads()),
                       age(client.has_attached(), client.attached(), now_unix_seconds),
                       client.has_oldest_held_for() ? duration(client.oldest_held_for()) : "-",
                       client_state_text(client)});
    }
    table.print(out);
    if (channels != 0)
        out << "and " << plural(channels, "channel", "channels") << " with " << format_bytes(in_channels)
            << " in messages: numacre channels\n";
}

void print_blocks(std::ostream &out, const v1::ListBlocksResponse &blocks, const v1::ListClientsResponse &clients) {
    std::map<std::uint32_t, const v1::Client *> by_id;
    for (const v1::Client &client : clients.clients()) by_id[client.client_id()] = &client;
    Table table({{"HELD FOR", Align::right},
                 {"SIZE", Align::right},
                 {"REQUESTED", Align::right},
                 {"CLIENT", Align::right},
                 {"PID", Align::right},
                 {"COMM"},
                 {"POOL"},
                 {"NODE", Align::right},
                 {"OFFSET", Align::right},
                 {"PUBLISHED"}});
    for (const v1::HeldBlock &block : blocks.blocks()) {
        const auto holder = by_id.find(block.client_id());
        const bool known = holder != by_id.end();  // the holder may have ended since
        std::array<char, 32> offset{};
        std::snprintf(offset.data(), offset.size(), "%#llx", static_cast<unsigned long long>(block.offset_bytes()));
        table.add_row({duration(block.held_for()), format_bytes(block.bytes()), format_bytes(block.requested_bytes()),
                       number(block.client_id()), known ? number(holder->second->pid()) : "-",
                       known ? holder->second->comm() : "-", block.pool(), number(block.node()), offset.data(),
                       block.published() ? "yes" : "no"});
    }
    table.print(out);
    out << plural(static_cast<std::uint64_t>(blocks.blocks_size()), "block", "blocks") << " of "
        << number(blocks.total_blocks()) << " in use (" << format_bytes(blocks.total_bytes())
        << "), those held longest first\n";
}

namespace {

// "open", "ended, removed", "open, receivers sleep".
std::string channel_state_text(const v1::Channel &channel) {
    std::string text = channel.state();
    if (channel.stays() == "removed") text += ", removed";
    if (channel.senders_sleep()) text += ", senders sleep";
    if (channel.receivers_sleep()) text += ", receivers sleep";
    return text;
}

// An older daemon has queues only, and does not say so.
std::string kind_text(const v1::Channel &channel) {
    return channel.kind().empty() ? "queue" : channel.kind();
}

}  // namespace

void print_channels(std::ostream &out, const v1::ListChannelsResponse &channels,
                    const std::vector<std::optional<ChannelRates>> &rates) {
    std::vector<Table::Column> columns{{"CHANNEL"},
                                       {"POOL"},
                                       {"KIND"},
                                       {"WAITING", Align::right},
                                       {"RETURNED", Align::right},
                                       {"CAPACITY", Align::right},
                                       {"SIZE", Align::right},
                                       {"OLDEST", Align::right},
                                       {"SENDERS", Align::right},
                                       {"RECEIVERS", Align::right},
                                       {"SENT", Align::right},
                                       {"RECEIVED", Align::right},
                                       {"AGAIN", Align::right},
                                       {"DROPPED", Align::right},
                                       {"OVERTAKEN", Align::right}};
    if (!rates.empty()) {
        columns.push_back({"SENT/S", Align::right});
        columns.push_back({"RECEIVED/S", Align::right});
    }
    columns.push_back({"UID", Align::right});
    columns.push_back({"STAYS"});
    columns.push_back({"STATE"});
    Table table(std::move(columns));
    Table clients({{"CHANNEL"},
                   {"POOL"},
                   {"CLIENT", Align::right},
                   {"PID", Align::right},
                   {"COMM"},
                   {"OPENED", Align::right},
                   {"SENDERS", Align::right},
                   {"RECEIVERS", Align::right}});
    const auto rate_text = [](double rate) { return number(static_cast<std::uint64_t>(std::llround(rate))); };
    for (int i = 0; i < channels.channels_size(); ++i) {
        const v1::Channel &channel = channels.channels(i);
        std::vector<std::string> row{channel.name(),
                                     channel.pool(),
                                     kind_text(channel),
                                     number(channel.waiting_messages()),
                                     number(channel.returned_messages()),
                                     number(channel.capacity_messages()),
                                     format_bytes(channel.waiting_bytes()),
                                     channel.has_oldest_waits_for() ? duration(channel.oldest_waits_for()) : "-",
                                     number(channel.senders()),
                                     number(channel.receivers()),
                                     number(channel.sent_messages()),
                                     number(channel.received_messages()),
                                     number(channel.redelivered_messages()),
                                     number(channel.dropped_messages()),
                                     number(channel.overtaken_messages())};
        if (!rates.empty()) {
            const auto &rate = rates[static_cast<std::size_t>(i)];
            row.push_back(rate ? rate_text(rate->sent_per_second) : "-");
            row.push_back(rate ? rate_text(rate->received_per_second) : "-");
        }
        row.push_back(number(channel.uid()));
        row.push_back(channel.stays());
        row.push_back(channel_state_text(channel));
        table.add_row(std::move(row));
        for (const v1::ChannelClient &client : channel.clients())
            clients.add_row({channel.name(), channel.pool(), number(client.client_id()), number(client.pid()),
                             client.comm(), number(client.opened()), number(client.senders()),
                             number(client.receivers())});
    }
    table.print(out);
    if (clients.empty()) return;
    out << '\n';
    clients.print(out);
}

void print_names(std::ostream &out, const v1::ListNamesResponse &names) {
    Table table(
        {{"NAME"}, {"POOL"}, {"KIND"}, {"BOUND TO"}, {"OWNER"}, {"UID", Align::right}, {"VERSION", Align::right}});
    for (const v1::BoundName &name : names.names()) {
        std::array<char, 32> reference{};
        std::snprintf(reference.data(), reference.size(), "%#llx", static_cast<unsigned long long>(name.reference()));
        const std::string bound_to = name.kind() == "objects"   ? name.objects()
                                     : name.kind() == "channel" ? number(name.channel())
                                                                : reference.data();
        table.add_row({name.name(), name.pool(), name.kind(), bound_to,
                       name.client_id() == 0 ? "pool" : "client " + number(name.client_id()), number(name.uid()),
                       number(name.version())});
    }
    table.print(out);
}

bool lies_on(const v1::PoolNode &share, const v1::Machine &machine, int index) {
    const int os_numa_node = machine.nodes(index).os_numa_node();
    if (share.os_numa_node() != os_numa_node) return false;
    const bool alone =
        std::count_if(machine.nodes().begin(), machine.nodes().end(),
                      [&](const v1::MachineNode &numa_node) { return numa_node.os_numa_node() == os_numa_node; }) == 1;
    return alone || share.node() == static_cast<std::uint32_t>(index);
}

void print_nodes(std::ostream &out, const v1::Machine &machine, const v1::ListPoolsResponse &pools) {
    out << "available: " << plural(static_cast<std::uint64_t>(machine.nodes_size()), "node", "nodes") << " by "
        << printable(machine.topology_source()) << '\n';
    std::set<int> os_numa_nodes;
    for (const v1::MachineNode &numa_node : machine.nodes()) os_numa_nodes.insert(numa_node.os_numa_node());
    const bool unique = os_numa_nodes.size() == static_cast<std::size_t>(machine.nodes_size());
    const auto name_of = [&](int index) {
        return std::to_string(unique ? machine.nodes(index).os_numa_node() : index);
    };
    for (int index = 0; index < machine.nodes_size(); ++index) {
        const v1::MachineNode &numa_node = machine.nodes(index);
        const std::string head = "node " + name_of(index) + " ";
        out << head << "cpus: " << (numa_node.cpus().empty() ? "none" : printable(numa_node.cpus())) << '\n'
            << head << "size: " << format_bytes(numa_node.total_bytes()) << '\n'
            << head << "free: " << format_bytes(numa_node.free_bytes()) << '\n';
        for (const v1::HugepagePool &pages : numa_node.hugepages()) {
            out << head << "hugepages of " << format_bytes(pages.page_bytes()) << ": " << pages.total() << " reserved, "
                << pages.free() << " free, " << pages.surplus() << " surplus\n";
        }
        for (const v1::Pool &pool : pools.pools()) {
            for (const v1::PoolNode &share : pool.nodes()) {
                if (!lies_on(share, machine, index)) continue;
                out << head << "pool " << printable(pool.name()) << " (its node " << share.node()
                    << "): " << format_bytes(share.online_bytes()) << " online of "
                    << format_bytes(share.capacity_bytes()) << ", " << format_bytes(share.used_bytes()) << " used, "
                    << backing_text(share) << '\n';
            }
        }
    }
    out << "node distances:\n";
    Table table([&] {
        std::vector<Table::Column> columns{{"node", Align::right}};
        for (int index = 0; index < machine.nodes_size(); ++index) columns.push_back({name_of(index), Align::right});
        return columns;
    }());
    for (int index = 0; index < machine.nodes_size(); ++index) {
        const v1::MachineNode &numa_node = machine.nodes(index);
        std::vector<std::string> row{name_of(index) + ":"};
        for (int i = 0; i < std::min(numa_node.distances_size(), machine.nodes_size()); ++i) {
            row.push_back(number(numa_node.distances(i)));
        }
        table.add_row(std::move(row));
    }
    table.print(out);
}

void print_stats(std::ostream &out, const std::string &pool, const v1::GetStatsResponse &stats) {
    out << "pool " << printable(pool) << ": " << plural(stats.clients_reaped(), "client", "clients") << " reaped, "
        << format_bytes(stats.reclaimed_bytes()) << " given back, numa imbalance " << fixed3(stats.numa_imbalance())
        << '\n';
    std::vector<Table::Column> columns{{" "}};
    for (const v1::NodeStats &numa_node : stats.nodes()) {
        columns.push_back({"node" + number(numa_node.node()), Align::right});
    }
    columns.push_back({"total", Align::right});
    Table table(std::move(columns));
    const auto add = [&](const char *name, const auto &value_of, bool bytes) {
        std::vector<std::string> row{name};
        std::uint64_t total = 0;
        for (const v1::NodeStats &numa_node : stats.nodes()) {
            const std::uint64_t value = value_of(numa_node);
            total += value;
            row.push_back(bytes ? format_bytes(value) : number(value));
        }
        row.push_back(bytes ? format_bytes(total) : number(total));
        table.add_row(std::move(row));
    };
    const auto sum_orders = [](const v1::NodeStats &numa_node, std::uint64_t (v1::OrderStats::*field)() const) {
        std::uint64_t total = 0;
        for (const v1::OrderStats &order : numa_node.orders()) total += (order.*field)();
        return total;
    };
    add("numa_hit", [](const v1::NodeStats &n) { return n.numa_hit(); }, false);
    add("numa_miss", [](const v1::NodeStats &n) { return n.numa_miss(); }, false);
    add("numa_foreign", [](const v1::NodeStats &n) { return n.numa_foreign(); }, false);
    add("interleave_hit", [](const v1::NodeStats &n) { return n.interleave_hit(); }, false);
    add("local_node", [](const v1::NodeStats &n) { return n.local_node(); }, false);
    add("other_node", [](const v1::NodeStats &n) { return n.other_node(); }, false);
    add("allocations", [&](const v1::NodeStats &n) { return sum_orders(n, &v1::OrderStats::allocations); }, false);
    add("frees", [&](const v1::NodeStats &n) { return sum_orders(n, &v1::OrderStats::frees); }, false);
    add("takes", [](const v1::NodeStats &n) { return n.takes(); }, false);
    add("hand_offs", [](const v1::NodeStats &n) { return n.hand_offs(); }, false);
    add("waiting now", [](const v1::NodeStats &n) { return n.waiting_threads(); }, false);
    add("failed: out of frames", [](const v1::NodeStats &n) { return n.failures_out_of_frames(); }, false);
    add("failed: fragmented", [](const v1::NodeStats &n) { return n.failures_fragmented(); }, false);
    add("failed: quota", [](const v1::NodeStats &n) { return n.failures_quota(); }, false);
    add("failed: argument", [](const v1::NodeStats &n) { return n.failures_argument(); }, false);
    add("cas_retries", [](const v1::NodeStats &n) { return n.cas_retries(); }, false);
    add("online", [](const v1::NodeStats &n) { return n.online_bytes(); }, true);
    add("used", [](const v1::NodeStats &n) { return n.used_bytes(); }, true);
    add("requested", [](const v1::NodeStats &n) { return n.requested_bytes(); }, true);
    add("free", [](const v1::NodeStats &n) { return n.free_bytes(); }, true);
    table.print(out);

    Table orders({{"node", Align::right},
                  {"order", Align::right},
                  {"block", Align::right},
                  {"allocations", Align::right},
                  {"frees", Align::right},
                  {"live", Align::right},
                  {"free", Align::right}});
    for (const v1::NodeStats &numa_node : stats.nodes()) {
        for (const v1::OrderStats &order : numa_node.orders()) {
            orders.add_row({number(numa_node.node()), number(order.order()), format_bytes(order.block_bytes()),
                            number(order.allocations()), number(order.frees()), number(order.live_blocks()),
                            number(order.free_blocks())});
        }
    }
    out << '\n';
    orders.print(out);
}

void print_order_heads(std::ostream &out, const v1::Pool &pool, unsigned orders, bool ratios) {
    std::string line(line_head(pool.name(), 0, ratios ? "unusable" : "").size(), ' ');
    for (unsigned order = 0; order < orders; ++order) {
        line += " " + padded(format_bytes_short(pool.frame_bytes() << order), kOrderColumnWidth);
    }
    out << line << '\n';
}

void print_buddyinfo(std::ostream &out, const std::string &pool, const v1::GetFragmentationResponse &fragmentation) {
    for (const v1::NodeFragmentation &numa_node : fragmentation.nodes()) {
        std::string line = line_head(pool, numa_node.node(), "");
        for (const v1::OrderFragmentation &order : numa_node.orders()) {
            line += " " + padded(number(order.free_blocks()), kOrderColumnWidth);
        }
        out << line << '\n';
    }
}

void print_extfrag(std::ostream &out, const std::string &pool, const v1::GetFragmentationResponse &fragmentation) {
    const auto print_lines = [&](const char *what, double (v1::OrderFragmentation::*field)() const) {
        for (const v1::NodeFragmentation &numa_node : fragmentation.nodes()) {
            std::string line = line_head(pool, numa_node.node(), what);
            for (const v1::OrderFragmentation &order : numa_node.orders()) {
                line += " " + padded(fixed3((order.*field)()), kOrderColumnWidth);
            }
            out << line << '\n';
        }
    };
    print_lines("unusable", &v1::OrderFragmentation::unusable_free_ratio);
    print_lines("extfrag ", &v1::OrderFragmentation::external_fragmentation_index);
}

void print_holders(std::ostream &out, const google::protobuf::RepeatedPtrField<v1::BlockHolder> &holders) {
    if (holders.empty()) return;
    out << "blocks in the way:\n";
    Table table(
        {{"CLIENT", Align::right}, {"PID", Align::right}, {"COMM"}, {"BYTES", Align::right}, {"PINNED", Align::right}},
        "  ");
    for (const v1::BlockHolder &holder : holders) {
        const bool attached = holder.client_id() != 0;
        table.add_row({attached ? number(holder.client_id()) : "-", attached ? number(holder.pid()) : "-",
                       attached ? holder.comm() : "(nobody that is attached)", format_bytes(holder.bytes()),
                       holder.pinned_bytes() == 0 ? "-" : format_bytes(holder.pinned_bytes())});
    }
    table.print(out);
}

void print_pins(std::ostream &out, const v1::GetMapResponse &map) {
    if (map.pins().empty()) return;
    out << "pinned:\n";
    Table table(
        {{"OFFSET", Align::right}, {"BYTES", Align::right}, {"CLIENT", Align::right}, {"PID", Align::right}, {"COMM"}},
        "  ");
    for (const v1::Pin &pin : map.pins()) {
        std::array<char, 32> offset{};
        std::snprintf(offset.data(), offset.size(), "%#llx", static_cast<unsigned long long>(pin.offset_bytes()));
        table.add_row(
            {offset.data(), format_bytes(pin.bytes()), number(pin.client_id()), number(pin.pid()), pin.comm()});
    }
    table.print(out);
}

std::vector<Cell> map_cells(const v1::GetMapResponse &map) {
    std::vector<Cell> cells;
    for (const v1::MapCell &cell : map.cells()) {
        cells.push_back({cell.frames(), cell.used_frames(), cell.offline_frames()});
    }
    return cells;
}

}  // namespace numacre::cli
