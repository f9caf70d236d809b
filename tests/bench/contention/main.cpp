// `contention`: allocators on 1 to 128 virtual cores; what is counted, and what is asserted of the counts: README.md.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "experiment.hpp"

namespace numacre::contention {
namespace {

constexpr double kFailedCasMax = 0.05;    // ours, an operation, on cache and linux, under the random schedule ...
constexpr unsigned kFailedCasCores = 64;  // ... up to so many cores

struct Options {
    std::vector<std::string> allocators, workloads{kWorkloads.begin(), kWorkloads.end()};
    std::vector<std::string> schedules{"random", "timed", "adversarial"};
    std::vector<unsigned> orders{0}, cores{1, 2, 4, 8, 16, 32, 64, 128};
    std::uint64_t pool_bytes = std::uint64_t{1} << 30;
    std::uint64_t seed = 1, rounds = 2, steps_max = 20'000'000;
    std::string json_path;
    bool check = false;
    bool where = false;
};

struct Row {
    const Contender *contender;
    std::string schedule;
    Task task;
    Result result;
};

const std::map<std::string, Schedule> kSchedules{
    {"random", Schedule::random}, {"timed", Schedule::timed}, {"adversarial", Schedule::adversarial}};

void declare(CLI::App &app, Options &options) {
    std::vector<std::string> names, schedules;
    for (const Contender &contender : contenders()) names.push_back(contender.name);
    for (const auto &[name, schedule] : kSchedules) schedules.push_back(name);
    const std::vector<std::string> workloads(kWorkloads.begin(), kWorkloads.end());
    app.add_option("--allocator", options.allocators, "Only these")->delimiter(',')->check(CLI::IsMember(names));
    app.add_option("--workload", options.workloads, "Only these")->delimiter(',')->check(CLI::IsMember(workloads));
    app.add_option("--schedule", options.schedules, "Only these")->delimiter(',')->check(CLI::IsMember(schedules));
    app.add_option("--order", options.orders, "Orders of blocks, or of the smallest ones")
        ->delimiter(',')
        ->check(CLI::Range(0U, kLargestSimulatedOrder))
        ->capture_default_str();
    app.add_option("--cores", options.cores, "Numbers of virtual cores")
        ->delimiter(',')
        ->check(CLI::Range(1U, kCoresMax))
        ->capture_default_str();
    app.add_option("--pool", options.pool_bytes, "Bytes of 4 KiB frames, a power of two; only metadata takes memory")
        ->transform(CLI::AsSizeValue(false))
        ->check([](const std::string &text) -> std::string {
            const std::uint64_t bytes = std::strtoull(text.c_str(), nullptr, 10);
            const bool fits = bytes >= std::uint64_t{64} << 20 && (bytes & (bytes - 1)) == 0;
            return fits ? "" : "pool " + text + " is not a power of two from 64M";
        });
    app.add_option("--rounds", options.rounds, "Rounds of the workload that are counted, after one that is not")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app.add_option("--steps", options.steps_max, "Steps after which a run is cut short")->capture_default_str();
    app.add_option("--seed", options.seed, "The same seed makes the same counts")->capture_default_str();
    app.add_option("--json", options.json_path, "Write the figures here, for plot_contention.py");
    app.add_flag("--check", options.check, "Fail if blocks overlap, or ours fails too many compare-and-swaps");
    app.add_flag("--where", options.where, "Say on which words the transfers and failures were");
}

void print_header(const Task &task, const std::string &schedule) {
    std::printf("\n%s, order %u, %s schedule; an operation is one allocation or one free\n", task.workload.c_str(),
                task.order, schedule.c_str());
    std::printf("%-18s %5s %8s %8s %9s %9s %8s %9s %8s %8s\n", "ALLOCATOR", "CORES", "LOADS", "RMWS", "FAILED",
                "TRANSFERS", "COLD", "OPS/KCYC", "REFUSED", "OVERLAP");
}

void print_row(const Row &row) {
    const Outcome &outcome = row.result.outcome;
    const Counts &counts = outcome.counts;
    std::printf("%-18s %5u %8.2f %8.3f %9.4f %9.3f %8.3f ", row.contender->name.c_str(), row.task.cores,
                outcome.per_operation(counts.loads), outcome.per_operation(counts.rmws),
                outcome.per_operation(counts.failed_cas), outcome.per_operation(counts.transfers),
                outcome.per_operation(counts.cold));
    if (outcome.cycles != 0)
        std::printf("%9.2f ", outcome.operations_per_kilocycle());
    else
        std::printf("%9s ", "-");
    std::printf("%8llu %8llu%s\n", static_cast<unsigned long long>(row.result.refused),
                static_cast<unsigned long long>(row.result.overlaps), outcome.cut_short ? "  cut short" : "");
}

void print_where(const Row &row) {
    const Outcome &outcome = row.result.outcome;
    for (std::size_t label = 0; label < outcome.by_label.size(); ++label) {
        const Counts &counts = outcome.by_label[label];
        if (counts.transfers + counts.failed_cas == 0) continue;
        std::printf("    %-18s rmws %.4f  failed %.5f  transfers %.4f\n", row.result.labels[label].c_str(),
                    outcome.per_operation(counts.rmws), outcome.per_operation(counts.failed_cas),
                    outcome.per_operation(counts.transfers));
    }
}

nlohmann::json to_json(const Row &row) {
    const Outcome &outcome = row.result.outcome;
    const Counts &counts = outcome.counts;
    nlohmann::json json{{"allocator", row.contender->name},
                        {"ours", row.contender->ours},
                        {"workload", row.task.workload},
                        {"order", row.task.order},
                        {"cores", row.task.cores},
                        {"schedule", row.schedule},
                        {"operations", outcome.operations},
                        {"loads", outcome.per_operation(counts.loads)},
                        {"stores", outcome.per_operation(counts.stores)},
                        {"rmws", outcome.per_operation(counts.rmws)},
                        {"failed_cas", outcome.per_operation(counts.failed_cas)},
                        {"transfers", outcome.per_operation(counts.transfers)},
                        {"cold", outcome.per_operation(counts.cold)},
                        {"operations_per_kilocycle", nullptr},
                        {"refused", row.result.refused},
                        {"overlapping_blocks", row.result.overlaps},
                        {"cut_short", outcome.cut_short}};
    if (outcome.cycles != 0) json["operations_per_kilocycle"] = outcome.operations_per_kilocycle();
    return json;
}

bool write_json(const Options &options, const std::vector<Row> &rows) {
    nlohmann::json report{{"seed", options.seed},
                          {"pool_bytes", options.pool_bytes},
                          {"cycles",
                           {{"hit", kHitCycles},
                            {"rmw", kRmwCycles},
                            {"transfer", kTransferCycles},
                            {"pause", kPauseCycles},
                            {"work", {kWorkCyclesLeast, kWorkCyclesMost}}}},
                          {"results", nlohmann::json::array()}};
    for (const Row &row : rows) report["results"].push_back(to_json(row));
    std::ofstream file(options.json_path);
    file << report.dump(1) << '\n';
    return file.good();
}

// How a figure of one allocator changes from the least to the most cores.
void print_growth(const std::vector<Row> &rows) {
    std::printf("\nhow ours grows, an operation\n");
    for (std::size_t first = 0; first < rows.size();) {
        std::size_t last = first;
        const auto same = [&](const Row &a, const Row &b) {
            return a.contender == b.contender && a.schedule == b.schedule && a.task.workload == b.task.workload &&
                   a.task.order == b.task.order;
        };
        while (last + 1 < rows.size() && same(rows[first], rows[last + 1])) ++last;
        const Row &least = rows[first];
        const Row &most = rows[last];
        first = last + 1;
        if (!least.contender->ours || least.task.cores >= most.task.cores) continue;
        const Outcome &from = least.result.outcome;
        const Outcome &to = most.result.outcome;
        std::printf(
            "  %-16s %-6s order %u %-11s %3u -> %3u cores: RMWs %.2f -> %.2f, failed %.4f -> %.4f, transfers %.3f -> "
            "%.3f",
            least.contender->name.c_str(), least.task.workload.c_str(), least.task.order, least.schedule.c_str(),
            least.task.cores, most.task.cores, from.per_operation(from.counts.rmws), to.per_operation(to.counts.rmws),
            from.per_operation(from.counts.failed_cas), to.per_operation(to.counts.failed_cas),
            from.per_operation(from.counts.transfers), to.per_operation(to.counts.transfers));
        if (from.cycles != 0 && to.cycles != 0)
            std::printf(", throughput x%.1f", to.operations_per_kilocycle() / from.operations_per_kilocycle());
        std::printf("\n");
    }
}

std::string describe(const Row &row) {
    return row.contender->name + ", " + row.task.workload + ", order " + std::to_string(row.task.order) + ", " +
           std::to_string(row.task.cores) + " cores, " + row.schedule + ", seed " + std::to_string(row.task.seed);
}

// Counts and not times, so they may be asserted.
unsigned check(const Row &row) {
    unsigned wrong = 0;
    const auto complain = [&](const std::string &what) {
        std::printf("WRONG: %s: %s\n", describe(row).c_str(), what.c_str());
        ++wrong;
    };
    const Outcome &outcome = row.result.outcome;
    if (row.contender->safe && row.result.overlaps != 0)
        complain(std::to_string(row.result.overlaps) + " blocks overlap others");
    if (outcome.operations == 0) complain("no operation ended");
    if (!row.contender->ours) return wrong;
    const bool separate_sizes = row.task.workload != "co50" && row.task.workload != "co90";
    if (separate_sizes && row.result.refused != 0)
        complain(std::to_string(row.result.refused) + " allocations refused though half of the pool is free");
    if (row.schedule == "random" && row.task.cores <= kFailedCasCores &&
        (row.task.workload == "cache" || row.task.workload == "linux")) {
        const double failed = outcome.per_operation(outcome.counts.failed_cas);
        if (failed > kFailedCasMax)
            complain(std::to_string(failed) + " failed compare-and-swaps an operation, more than " +
                     std::to_string(kFailedCasMax));
    }
    return wrong;
}

int run(int argc, char **argv) {
    Options options;
    CLI::App app{"Allocators on virtual cores: what they do to shared lines"};
    declare(app, options);
    CLI11_PARSE(app, argc, argv);
    const auto chosen = [&](const Contender &contender) {
        return options.allocators.empty() || std::find(options.allocators.begin(), options.allocators.end(),
                                                       contender.name) != options.allocators.end();
    };
    std::sort(options.cores.begin(), options.cores.end());
    std::printf(
        "pool %llu MiB of 4 KiB frames, seed %llu; assumed cycles: hit %llu, locked instruction %llu, line transfer "
        "+%llu\n",
        static_cast<unsigned long long>(options.pool_bytes >> 20), static_cast<unsigned long long>(options.seed),
        static_cast<unsigned long long>(kHitCycles), static_cast<unsigned long long>(kRmwCycles),
        static_cast<unsigned long long>(kTransferCycles));
    std::vector<Row> rows;
    unsigned wrong = 0;
    for (const std::string &workload : options.workloads)
        for (const unsigned order : options.orders)
            for (const std::string &schedule : options.schedules) {
                Experiment experiment;
                experiment.task = {workload, options.pool_bytes >> kFrameShift, order, 1, options.seed};
                experiment.schedule = kSchedules.at(schedule);
                experiment.rounds = options.rounds;
                experiment.steps_max = options.steps_max;
                print_header(experiment.task, schedule);
                for (const Contender &contender : contenders()) {
                    if (!chosen(contender)) continue;
                    for (const unsigned cores : options.cores) {
                        experiment.task.cores = cores;
                        rows.push_back({&contender, schedule, experiment.task, run_experiment(contender, experiment)});
                        print_row(rows.back());
                        if (options.where) print_where(rows.back());
                        if (options.check) wrong += check(rows.back());
                        std::fflush(stdout);
                    }
                }
            }
    print_growth(rows);
    if (!options.json_path.empty() && !write_json(options, rows)) {
        std::fprintf(stderr, "contention: cannot write %s\n", options.json_path.c_str());
        return 2;
    }
    if (options.check) std::printf("\nchecked %zu runs, %u wrong\n", rows.size(), wrong);
    return wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace numacre::contention

int main(int argc, char **argv) {
    try {
        return numacre::contention::run(argc, argv);
    } catch (const std::exception &error) {
        std::fprintf(stderr, "contention: %s\n", error.what());
        return 2;
    }
}
