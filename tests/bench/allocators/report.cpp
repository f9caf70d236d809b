#include "report.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>
#include <ostream>

namespace numacre::bench {
namespace {

Figure figure_of(const std::vector<Outcome> &rounds, const std::function<double(const Outcome &)> &value) {
    std::vector<double> values;
    for (const Outcome &round : rounds) values.push_back(value(round));
    if (values.empty()) return {};
    std::sort(values.begin(), values.end());
    return {values[values.size() / 2], values.front(), values.back()};
}

Figure wall_of(const std::vector<Outcome> &rounds) {
    return figure_of(rounds, [](const Outcome &o) { return o.wall_ns / static_cast<double>(o.pairs); });
}
Figure cpu_of(const std::vector<Outcome> &rounds) {
    return figure_of(rounds, [](const Outcome &o) { return o.cpu_ns / static_cast<double>(o.pairs); });
}

Figure net(const Figure &figure, const Figure &harness) {
    return {figure.median - harness.median, figure.least - harness.median, figure.most - harness.median};
}

const Series *find(const Group &group, std::string_view name) {
    for (const Series &series : group.series)
        if (series.peer->name == name && !series.rounds.empty()) return &series;
    return nullptr;
}

// The least median among other people's allocators that `counts` and that did all that was asked; 0 if there is none.
double best(const std::vector<Row> &rows, const std::function<bool(const Peer &)> &counts) {
    double least = 0;
    for (const Row &row : rows) {
        const Peer &peer = *row.series->peer;
        if (peer.ours || peer.kind == Kind::floor || !counts(peer) || row.wall_ns.median <= 0) continue;
        // Refusing is quick.
        if (row.failed != 0 || row.overlaps != 0 || row.filled < 1) continue;
        if (least == 0 || row.wall_ns.median < least) least = row.wall_ns.median;
    }
    return least;
}

// Below this a difference of two loops is noise, and no ratio is made of it.
constexpr double kLeastNs = 0.2;

double ratio(double value, double base) {
    return base < kLeastNs ? 0 : std::max(value, 0.0) / base;
}

std::string decimal(double value, int digits) {
    std::array<char, 40> text{};
    std::snprintf(text.data(), text.size(), "%.*f", digits, value);
    return text.data();
}
std::string times(double value) {
    return value == 0 ? "-" : decimal(value, value < 10 ? 2 : 0);
}

std::string remarks_of(const Row &row) {
    std::string text;
    if (row.alone) text += "  ALONE";
    if (row.failed != 0)
        text += "  OUT OF MEMORY " + std::to_string(row.failed) + " times in " + std::to_string(row.pairs) + " pairs";
    if (row.filled < 1) text += "  FILLED to " + decimal(row.filled * 100, 1) + " % of what was asked";
    if (row.overlaps != 0) text += "  OVERLAPPING BLOCKS " + std::to_string(row.overlaps);
    return text;
}

void print_line(std::ostream &out, const std::array<std::string, 8> &cells) {
    std::array<char, 160> line{};
    std::snprintf(line.data(), line.size(), "  %-20s %-7s %9s %19s %9s %8s %8s %8s", cells[0].c_str(), cells[1].c_str(),
                  cells[2].c_str(), cells[3].c_str(), cells[4].c_str(), cells[5].c_str(), cells[6].c_str(),
                  cells[7].c_str());
    out << line.data();
}

std::string workers_text(const Run &run) {
    const std::uint64_t count = run.workers();
    const char *const one = run.processes != 0 ? "process" : "thread";
    const char *const many = run.processes != 0 ? "processes" : "threads";
    return std::to_string(count) + " " + (count == 1 ? one : many);
}

// Nothing but a full pool may refuse here: no more is asked for than there is, and one size cannot fragment another.
bool refusal_is_false(const Run &run) {
    return run.workers() == 1 || (run.workload != "co50" && run.workload != "co90");
}

}  // namespace

std::string format_size(std::uint64_t bytes) {
    constexpr std::array<const char *, 4> kUnits{"B", "KiB", "MiB", "GiB"};
    std::size_t unit = 0;
    while (bytes % 1024 == 0 && bytes != 0 && unit + 1 < kUnits.size()) {
        bytes /= 1024;
        ++unit;
    }
    return std::to_string(bytes) + " " + kUnits[unit];
}

std::vector<Row> rows_of(const Group &group) {
    const Series *const empty = find(group, "empty");
    const Figure harness = empty != nullptr ? wall_of(empty->rounds) : Figure{};
    const Figure harness_cpu = empty != nullptr ? cpu_of(empty->rounds) : Figure{};
    std::vector<Row> rows;
    for (const Series &series : group.series) {
        if (series.rounds.empty() || &series == empty) continue;
        Row row;
        row.series = &series;
        // The floor as it is: the loop around a locked instruction hides behind it.
        const bool gross = series.peer->kind == Kind::floor;
        row.wall_ns = net(wall_of(series.rounds), gross ? Figure{} : harness);
        row.cpu_ns = net(cpu_of(series.rounds), gross ? Figure{} : harness_cpu);
        for (const Outcome &round : series.rounds) {
            row.pairs += round.pairs;
            row.failed += round.failed;
            row.overlaps += round.overlaps;
            row.filled = std::min(row.filled, round.filled);
            row.alone = row.alone || round.alone;
        }
        rows.push_back(row);
    }
    const auto rmw = std::find_if(rows.begin(), rows.end(), [](const Row &r) { return r.series->peer->name == "rmw"; });
    const double floor = rmw != rows.end() ? rmw->wall_ns.median : 0;
    const double best_of_all = best(rows, [](const Peer &) { return true; });
    for (Row &row : rows) {
        const Kind kind = row.series->peer->kind;
        row.to_rmw = ratio(row.wall_ns.median, floor);
        row.to_best = ratio(row.wall_ns.median, best_of_all);
        row.to_best_of_kind =
            ratio(row.wall_ns.median, best(rows, [&](const Peer &peer) { return peer.kind == kind; }));
    }
    return rows;
}

void print_group(std::ostream &out, const Group &group) {
    const Series *const empty = find(group, "empty");
    out << group.run.workload << ", " << format_size(group.run.size_bytes) << ", " << workers_text(group.run);
    if (empty != nullptr) {
        const Figure harness = wall_of(empty->rounds);
        out << "; the empty loop, subtracted: " << decimal(harness.median, 1) << " ns (" << decimal(harness.least, 1)
            << " .. " << decimal(harness.most, 1) << ")";
    }
    out << '\n';
    print_line(out, {"ALLOCATOR", "KIND", "NS A PAIR", "LEAST .. MOST", "CPU NS", "x RMW", "x KIND", "x BEST"});
    out << '\n';
    for (const Row &row : rows_of(group)) {
        const Peer &peer = *row.series->peer;
        const bool floor = peer.kind == Kind::floor;
        print_line(
            out, {peer.name, name_of(peer.kind), decimal(row.wall_ns.median, 1),
                  decimal(row.wall_ns.least, 1) + " .. " + decimal(row.wall_ns.most, 1), decimal(row.cpu_ns.median, 1),
                  times(row.to_rmw), floor ? "" : times(row.to_best_of_kind), floor ? "" : times(row.to_best)});
        out << remarks_of(row) << '\n';
    }
    for (const Series &series : group.series)
        if (!series.problem.empty()) out << "  FAILED " << series.peer->name << ": " << series.problem << '\n';
    print_skipped(out, "  ", skipped_in(group));
    out << std::endl;
}

Skipped skipped_in(const Group &group) {
    Skipped skipped;
    for (const Series &series : group.series)
        if (!series.skip.empty()) skipped[series.skip].insert(series.peer->name);
    return skipped;
}

void print_skipped(std::ostream &out, const char *indent, const Skipped &skipped) {
    for (const auto &[why, names] : skipped) {
        out << indent << "SKIPPED";
        for (const std::string &name : names) out << ' ' << name;
        out << ": " << why << '\n';
    }
}

nlohmann::json to_json(const Group &group) {
    using Json = nlohmann::json;
    const auto figure = [](const Figure &f) {
        return Json{{"median", f.median}, {"least", f.least}, {"most", f.most}};
    };
    const auto known = [](double value) { return value == 0 ? Json(nullptr) : Json(value); };
    Json results = Json::array(), left_out = Json::array();
    for (const Row &row : rows_of(group)) {
        const Peer &peer = *row.series->peer;
        Json rounds = Json::array();
        for (const Outcome &round : row.series->rounds)
            rounds.push_back({{"pairs", round.pairs}, {"wall_ns", round.wall_ns}, {"cpu_ns", round.cpu_ns}});
        results.push_back({{"allocator", peer.name},
                           {"kind", name_of(peer.kind)},
                           {"ours", peer.ours},
                           {"ns_per_pair", figure(row.wall_ns)},
                           {"cpu_ns_per_pair", figure(row.cpu_ns)},
                           {"ratio_to_rmw", known(row.to_rmw)},
                           {"ratio_to_best_of_kind", known(row.to_best_of_kind)},
                           {"ratio_to_best", known(row.to_best)},
                           {"pairs", row.pairs},
                           {"out_of_memory", row.failed},
                           {"filled", row.filled},
                           {"overlapping_blocks", row.overlaps},
                           {"alone", row.alone},
                           {"rounds", rounds}});
    }
    for (const Series &series : group.series) {
        if (!series.skip.empty()) left_out.push_back({{"allocator", series.peer->name}, {"skipped", series.skip}});
        if (!series.problem.empty()) left_out.push_back({{"allocator", series.peer->name}, {"failed", series.problem}});
    }
    const Series *const empty = find(group, "empty");
    return {{"workload", group.run.workload},
            {"size_bytes", group.run.size_bytes},
            {"threads", group.run.processes == 0 ? group.run.threads : 0},
            {"processes", group.run.processes},
            {"empty_ns_per_pair", empty != nullptr ? figure(wall_of(empty->rounds)) : Json(nullptr)},
            {"results", results},
            {"left_out", left_out}};
}

std::vector<std::string> faults_of(const Group &group) {
    std::vector<std::string> faults;
    const std::string where = ", " + group.run.workload + ", " + format_size(group.run.size_bytes) + ", " +
                              workers_text(group.run) + ", seed " + std::to_string(group.run.seed);
    for (const Series &series : group.series) {
        // How slow others become is a figure like any other.
        const bool forgiven = series.peer->known_faults || (series.too_slow && !series.peer->ours);
        if (!series.problem.empty() && !forgiven) faults.push_back(series.peer->name + where + ": " + series.problem);
    }
    for (const Row &row : rows_of(group)) {
        const Peer &peer = *row.series->peer;
        if (row.overlaps != 0 && !peer.known_faults)
            faults.push_back(peer.name + where + ": " + std::to_string(row.overlaps) + " overlapping blocks");
        if (peer.ours && !peer.holds_back && row.failed != 0 && refusal_is_false(group.run))
            faults.push_back(peer.name + where + ": out of memory " + std::to_string(row.failed) +
                             " times in a pool that had room");
        if (peer.ours && !peer.holds_back && row.filled < 1)
            faults.push_back(peer.name + where + ": could be filled to " + decimal(row.filled * 100, 1) +
                             " % of what was asked only");
        const bool unchecked = std::any_of(row.series->rounds.begin(), row.series->rounds.end(),
                                           [](const Outcome &round) { return round.checked_pairs == 0; });
        if (group.run.check && peer.kind != Kind::floor && unchecked)
            faults.push_back(peer.name + where + ": no block was checked");
    }
    return faults;
}

}  // namespace numacre::bench
