// `numacre top`: the pools and their biggest clients, shown at each interval.
#include <algorithm>
#include <array>
#include <cstdio>
#include <iostream>
#include <sstream>
#include <vector>

#include "bytes.hpp"
#include "commands.hpp"
#include "json.hpp"
#include "rates.hpp"
#include "table.hpp"
#include "views.hpp"

namespace numacre::cli {
namespace {

struct NodeLine {
    std::string pool;
    bool corrupt = false;
    v1::PoolNode numa_node;
    std::optional<Rates> rates;
};

struct Snapshot {
    std::int64_t unix_seconds = 0;
    v1::Machine machine;
    std::vector<NodeLine> lines;
    std::vector<v1::Client> clients;  // the biggest first
};

Snapshot take_snapshot(Control &control, RateMeter &meter) {
    Snapshot snapshot;
    snapshot.machine = control.get_machine();
    snapshot.unix_seconds = now_unix_seconds();
    const v1::ListPoolsResponse pools = control.list_pools();
    for (const v1::Pool &pool : pools.pools()) {
        std::optional<v1::GetStatsResponse> stats;
        try {
            stats = control.get_stats(pool.name());
        } catch (const CallError &) {
            // The pool is corrupt, or was deleted since it was listed: its line stays, without rates.
        }
        const auto now = RateMeter::Clock::now();
        for (const v1::PoolNode &numa_node : pool.nodes()) {
            NodeLine line{pool.name(), pool.state() == v1::POOL_STATE_CORRUPT, numa_node, std::nullopt};
            if (stats) {
                for (const v1::NodeStats &counters : stats->nodes()) {
                    if (counters.node() != numa_node.node()) continue;
                    line.rates = meter.look({pool.name(), numa_node.node()}, counts_of(counters), now);
                }
            }
            snapshot.lines.push_back(std::move(line));
        }
    }
    const v1::ListClientsResponse clients = control.list_clients("");
    snapshot.clients.assign(clients.clients().begin(), clients.clients().end());
    std::sort(snapshot.clients.begin(), snapshot.clients.end(), [](const v1::Client &a, const v1::Client &b) {
        return a.used_bytes() != b.used_bytes() ? a.used_bytes() > b.used_bytes() : a.client_id() < b.client_id();
    });
    return snapshot;
}

std::string rate_text(const std::optional<Rates> &rates, double Rates::*field) {
    if (!rates) return "-";
    const double value = (*rates).*field;
    std::array<char, 40> text{};
    if (value >= 1e6) {
        std::snprintf(text.data(), text.size(), "%.2fM", value / 1e6);
    } else if (value >= 1e4) {
        std::snprintf(text.data(), text.size(), "%.1fk", value / 1e3);
    } else {
        std::snprintf(text.data(), text.size(), "%.0f", value);
    }
    return text.data();
}

void print_snapshot(std::ostream &out, const Snapshot &snapshot, const Terminal &terminal, std::size_t most_clients) {
    out << "numacre top - " << format_time(snapshot.unix_seconds) << ", numacred "
        << printable(snapshot.machine.version()) << ", " << snapshot.clients.size()
        << (snapshot.clients.size() == 1 ? " client\n\n" : " clients\n\n");
    std::size_t name_columns = 4;
    for (const NodeLine &line : snapshot.lines) name_columns = std::max(name_columns, display_width(line.pool));
    const unsigned rest = static_cast<unsigned>(name_columns) + 60;
    const unsigned bar_columns = std::clamp(terminal.columns > rest ? terminal.columns - rest : 0U, 8U, 60U);
    const auto pad_left = [](const std::string &text, std::size_t width) {
        return std::string(text.size() < width ? width - text.size() : 0, ' ') + text;
    };
    const auto pad_right = [](const std::string &text, std::size_t width) {
        const std::size_t taken = display_width(text);
        return text + std::string(taken < width ? width - taken : 0, ' ');
    };
    out << pad_right("POOL", name_columns) << " NODE " << pad_right("USED OF ONLINE", bar_columns + 2)
        << pad_left("USED", 12) << pad_left("ONLINE", 12) << pad_left("ALLOC/s", 10) << pad_left("FREE/s", 10)
        << pad_left("FAIL/s", 8) << '\n';
    for (const NodeLine &line : snapshot.lines) {
        const double share =
            line.numa_node.online_bytes() == 0
                ? 0
                : static_cast<double>(line.numa_node.used_bytes()) / static_cast<double>(line.numa_node.online_bytes());
        out << pad_right(printable(line.pool), name_columns) << pad_left(std::to_string(line.numa_node.node()), 5)
            << ' ' << bar(share, bar_columns, terminal.pen) << pad_left(format_bytes(line.numa_node.used_bytes()), 12)
            << pad_left(format_bytes(line.numa_node.online_bytes()), 12)
            << pad_left(rate_text(line.rates, &Rates::allocations_per_second), 10)
            << pad_left(rate_text(line.rates, &Rates::frees_per_second), 10)
            << pad_left(rate_text(line.rates, &Rates::failures_per_second), 8) << (line.corrupt ? "  CORRUPT" : "")
            << '\n';
    }
    out << '\n';
    const std::size_t shown = std::min(most_clients, snapshot.clients.size());
    print_clients(out, {snapshot.clients.begin(), snapshot.clients.begin() + static_cast<std::ptrdiff_t>(shown)},
                  snapshot.unix_seconds);
    if (shown < snapshot.clients.size()) out << "... and " << snapshot.clients.size() - shown << " more\n";
}

Json snapshot_json(const Snapshot &snapshot, double interval_seconds) {
    Json numa_nodes = Json::array();
    for (const NodeLine &line : snapshot.lines) {
        const auto rate = [&](double Rates::*field) { return line.rates ? Json((*line.rates).*field) : Json(nullptr); };
        numa_nodes.push_back({{"pool", line.pool},
                              {"node", line.numa_node.node()},
                              {"state", line.corrupt ? "corrupt" : "serving"},
                              {"online_bytes", line.numa_node.online_bytes()},
                              {"used_bytes", line.numa_node.used_bytes()},
                              {"allocations_per_second", rate(&Rates::allocations_per_second)},
                              {"frees_per_second", rate(&Rates::frees_per_second)},
                              {"failures_per_second", rate(&Rates::failures_per_second)}});
    }
    Json clients = Json::array();
    for (const v1::Client &client : snapshot.clients) clients.push_back(client_json(client));
    return {{"time", format_time(snapshot.unix_seconds)},
            {"interval_seconds", interval_seconds},
            {"nodes", numa_nodes},
            {"clients", clients}};
}

// Cuts off lines that do not fit: they would scroll the screen away.
std::string fit_to_screen(const std::string &text, unsigned rows) {
    std::string result;
    unsigned row = 0;
    std::istringstream lines(text);
    for (std::string line; row < rows && std::getline(lines, line); ++row) {
        // Each line is wiped to its end, and at last the screen below the last line: so nothing flickers.
        result += (row == 0 ? "" : "\r\n") + line + "\033[K";
    }
    return "\033[H" + result + "\033[J";
}

int run_live(Context &context, std::chrono::milliseconds interval, std::uint64_t count) {
    RateMeter meter;
    {
        LiveScreen screen;
        Snapshot snapshot;
        std::string trouble;
        bool any = false;
        auto next = std::chrono::steady_clock::now();
        for (std::uint64_t shown = 0; !interrupted();) {
            const auto now = std::chrono::steady_clock::now();
            const bool due = now >= next;
            if (due) {
                if (count != 0 && shown == count) break;
                ++shown;
                next = now + interval;
                try {
                    snapshot = take_snapshot(context.control(), meter);
                    trouble.clear();
                    any = true;
                } catch (const NoDaemonError &error) {
                    // The daemon may be restarting: its clients go on meanwhile, and so does top, if it has had a look
                    // before.
                    if (!any) throw;
                    trouble = error.what();
                } catch (const CallError &error) {
                    if (!any) throw;
                    trouble = error.code + ": " + error.what();
                }
            }
            context.terminal = look_at_terminal(context.terminal.pen.ascii);
            std::ostringstream text;
            const std::size_t room = context.terminal.rows > snapshot.lines.size() + 7
                                         ? context.terminal.rows - snapshot.lines.size() - 7
                                         : 1;
            if (!trouble.empty()) text << printable(trouble) << '\n';
            print_snapshot(text, snapshot, context.terminal, room);
            text << "q quits";
            context.out << fit_to_screen(text.str(), context.terminal.rows) << std::flush;
            if (!context.out) break;
            const auto left =
                std::chrono::duration_cast<std::chrono::milliseconds>(next - std::chrono::steady_clock::now());
            const auto key =
                screen.wait_key(std::clamp(left, std::chrono::milliseconds(0), std::chrono::milliseconds(60'000)));
            if (key == 'q' || key == 'Q') break;
        }
    }
    return kExitOk;
}

int run_plain(Context &context, std::chrono::milliseconds interval, std::uint64_t count) {
    constexpr std::size_t kMostClients = 20;
    RateMeter meter;
    auto before = std::chrono::steady_clock::now();
    take_snapshot(context.control(), meter);
    for (std::uint64_t shown = 0; count == 0 || shown < count; ++shown) {
        sleep_unless_interrupted(interval);
        if (interrupted()) break;
        const Snapshot snapshot = take_snapshot(context.control(), meter);
        const auto now = std::chrono::steady_clock::now();
        if (context.json) {
            print_json(context.out, snapshot_json(snapshot, std::chrono::duration<double>(now - before).count()), -1);
        } else {
            if (shown != 0) context.out << '\n';
            print_snapshot(context.out, snapshot, context.terminal, kMostClients);
        }
        before = now;
        context.out << std::flush;
        if (!context.out) break;  // the reader is gone
    }
    return kExitOk;
}

}  // namespace

int run_top(Context &context, const TopArguments &arguments) {
    const std::chrono::milliseconds interval = parse_duration(arguments.interval);
    if (interval < std::chrono::milliseconds(50)) {
        throw ArgumentError("--interval " + arguments.interval +
                            " is too short: each look scans the pools' metadata; use 50ms or more");
    }
    catch_interrupts();
    const std::uint64_t count = context.json && arguments.count == 0 ? 1 : arguments.count;
    if (context.terminal.tty && !context.json) return run_live(context, interval, count);
    return run_plain(context, interval, count);
}

}  // namespace numacre::cli
