#include "report.hpp"

#include <algorithm>
#include <cstdio>
#include <functional>

namespace numacre::bench {
namespace {

struct Figure {
    double median = 0, least = 0, most = 0;
};

Figure figure_of(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return {values[values.size() / 2], values.front(), values.back()};
}

Figure figure_of(const Series &series, const std::function<double(const Outcome &)> &value) {
    std::vector<double> values;
    for (const Outcome &round : series.rounds) values.push_back(value(round));
    return figure_of(std::move(values));
}

// Empty: the reference has no figure of a round.
std::vector<double> ratios(const Series &series, const Series *reference) {
    std::vector<double> values;
    if (reference == nullptr || reference->rounds.size() != series.rounds.size()) return values;
    for (std::size_t i = 0; i < series.rounds.size(); ++i)
        values.push_back(series.rounds[i].ns / reference->rounds[i].ns);
    return values;
}

std::string spread(const char *format, const Figure &figure) {
    char text[80];
    std::snprintf(text, sizeof text, format, figure.least, figure.most);
    return text;
}

void print_row(Kind kind, const Series &series, const Series *reference) {
    const Figure ns = figure_of(series, [](const Outcome &o) { return o.ns; });
    const char *const digits = kind == Kind::one_way ? "%.1f .. %.1f" : "%.0f .. %.0f";
    std::printf("  %-18s %9.*f %19s", series.name.c_str(), kind == Kind::one_way ? 1 : 0, ns.median,
                spread(digits, ns).c_str());
    if (kind == Kind::one_way) {
        std::printf(" %9.1f", figure_of(series, [](const Outcome &o) { return o.mean_ns; }).median);
    } else {
        const Figure tail = figure_of(series, [](const Outcome &o) { return o.p999_ns; });
        std::printf(" %9.0f %19s", tail.median, spread("%.0f .. %.0f", tail).c_str());
    }
    if (kind == Kind::wake_up)
        std::printf(" %9.0f", figure_of(series, [](const Outcome &o) { return o.send_ns; }).median);
    const std::vector<double> all = ratios(series, reference);
    if (all.empty()) {
        std::printf(" %7s %15s", "-", "-");
    } else {
        const Figure ratio = figure_of(all);
        std::printf(" %7.2f %15s", ratio.median, spread("%.2f .. %.2f", ratio).c_str());
    }
    std::uint64_t messages = 0;
    for (const Outcome &round : series.rounds) messages += round.messages;
    std::printf(" %11llu\n", static_cast<unsigned long long>(messages));
}

}  // namespace

void print(const Scenario &scenario, const std::vector<Series> &series, const std::vector<double> &distances) {
    const Series *reference = nullptr;
    for (const Series &one : series)
        if (one.name == scenario.reference && !one.rounds.empty()) reference = &one;
    const Figure distance = figure_of(distances);
    std::printf("%s; x: ratio to %s; a cache line takes %.0f ns (%.0f .. %.0f) to and fro\n", scenario.title.c_str(),
                scenario.reference.c_str(), distance.median, distance.least, distance.most);
    std::printf("  %-18s %9s %19s", "SYSTEM", scenario.kind == Kind::one_way ? "NS" : "MEDIAN NS", "LEAST .. MOST");
    if (scenario.kind == Kind::one_way)
        std::printf(" %9s", "MEAN");
    else
        std::printf(" %9s %19s", "99.9 %", "LEAST .. MOST");
    if (scenario.kind == Kind::wake_up) std::printf(" %9s", "SEND NS");
    std::printf(" %7s %15s %11s\n", "x", "LEAST .. MOST", "MESSAGES");
    for (const Series &one : series)
        if (!one.rounds.empty()) print_row(scenario.kind, one, reference);
    std::printf("\n");
    std::fflush(stdout);
}

std::string faults_of(const Series &series) {
    if (!series.failed.empty()) return series.failed;
    std::uint64_t lost = 0, extra = 0, misplaced = 0;
    for (const Outcome &round : series.rounds) {
        lost += round.lost;
        extra += round.extra;
        misplaced += round.misplaced;
    }
    if (lost + extra + misplaced == 0) return {};
    return std::to_string(lost) + " messages lost, " + std::to_string(extra) + " too many, " +
           std::to_string(misplaced) + " out of order or with another content";
}

}  // namespace numacre::bench
