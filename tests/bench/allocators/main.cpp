// `allocators`: numacre beside other allocators, each measurement in a process of its own, rounds interleaved. No
// figure fails it; an overlapping block, a crash, or a pool of ours that is full too early does.
#include <sys/utsname.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "child.hpp"
#include "daemon.hpp"
#include "peers.hpp"
#include "report.hpp"
#include "workloads.hpp"

namespace numacre::bench {
namespace {

struct Options {
    std::vector<std::string> allocators, workloads;
    std::vector<std::uint64_t> sizes{4096, 32768, 262144, 2097152};
    std::vector<std::uint64_t> threads{1, 2, 4}, processes{2, 4};
    std::uint64_t rounds = 5, timeout_seconds = 60;
    std::string json_path;
    Run run;
};

std::string check_size(const std::string &text) {
    const std::uint64_t bytes = std::strtoull(text.c_str(), nullptr, 10);
    if (std::has_single_bit(bytes) && bytes >= kFrameBytes && bytes <= kLargestBytes) return {};
    return "size " + text + " is not a power of two from 4K to 4M";
}

std::string check_pool(const std::string &text) {
    const std::uint64_t bytes = std::strtoull(text.c_str(), nullptr, 10);
    if (bytes != 0 && bytes % kLargestBytes == 0) return {};
    return "pool " + text + " is not a multiple of 4M";
}

std::vector<std::string> allocator_names() {
    std::vector<std::string> names;
    for (const Peer &peer : peers()) names.push_back(peer.name);
    return names;
}

void declare(CLI::App &app, Options &options) {
    const std::vector<std::string> workloads(kWorkloads.begin(), kWorkloads.end());
    const CLI::AsSizeValue size(false);
    Run &run = options.run;
    app.add_option("--allocator", options.allocators, "Only these")
        ->delimiter(',')
        ->check(CLI::IsMember(allocator_names()));
    app.add_option("--workload", options.workloads, "Only these")->delimiter(',')->check(CLI::IsMember(workloads));
    app.add_option("--size", options.sizes, "Base sizes of blocks: 4K,2M")
        ->delimiter(',')
        ->transform(size)
        ->check(CLI::Validator(check_size, ""));
    app.add_option("--threads", options.threads, "Numbers of threads; without --processes, these only")
        ->delimiter(',')
        ->check(CLI::Range(std::uint64_t{1}, kWorkersMax))
        ->capture_default_str();
    app.add_option("--processes", options.processes,
                   "Numbers of processes of one thread each, on one pool; without --threads, these only")
        ->delimiter(',')
        ->check(CLI::Range(std::uint64_t{1}, kWorkersMax))
        ->capture_default_str();
    app.add_option("--attach", run.attach,
                   "Runtime directory of a daemon: numacre's pool, of threads too, is its pool 'default'");
    app.add_option("--pool", run.pool_bytes, "Bytes of the pool; 64G works for those that do not write into blocks")
        ->transform(size)
        ->check(CLI::Validator(check_pool, ""))
        ->capture_default_str();
    app.add_option("--rounds", options.rounds, "Rounds; the median counts")
        ->check(CLI::Range(1, 1000))
        ->capture_default_str();
    app.add_option("--ms", run.milliseconds, "Milliseconds a measurement")
        ->check(CLI::Range(1, 60000))
        ->capture_default_str();
    app.add_option("--seed", run.seed, "Of the random choices")->capture_default_str();
    app.add_option("--timeout", options.timeout_seconds, "Seconds after which a measurement is ended")
        ->check(CLI::Range(1, 3600))
        ->capture_default_str();
    app.add_option("--json", options.json_path, "Write everything to this file too");
    app.add_flag("--check", run.check, "Before each measurement, stamp blocks and look for overlapping ones");
}

// Who asks for one kind of workers does not want the other kind's default.
void drop_the_kind_not_asked_for(const CLI::App &app, Options &options) {
    const bool threads = app.count("--threads") != 0, processes = app.count("--processes") != 0;
    if (threads && !processes) options.processes.clear();
    if (processes && !threads) options.threads.clear();
}

// Each number of workers, as a run of them.
std::vector<Run> worker_axis(const Options &options) {
    std::vector<Run> runs;
    Run run = options.run;
    for (const std::uint64_t count : options.threads) {
        run.threads = count;
        runs.push_back(run);
    }
    run.threads = 1;
    for (const std::uint64_t count : options.processes) {
        run.processes = count;
        runs.push_back(run);
    }
    return runs;
}

// What every ratio needs is measured whatever was asked for.
std::vector<const Peer *> chosen_peers(const Options &options) {
    std::vector<const Peer *> chosen;
    for (const Peer &peer : peers()) {
        const auto &names = options.allocators;
        const bool asked = names.empty() || std::find(names.begin(), names.end(), peer.name) != names.end();
        if (asked || peer.kind == Kind::floor) chosen.push_back(&peer);
    }
    return chosen;
}

Group measure_group(const Options &options, const Run &run) {
    Group group{run, {}};
    for (const Peer *peer : chosen_peers(options)) group.series.push_back({.peer = peer});
    for (std::uint64_t round = 0; round < options.rounds; ++round) {
        for (std::size_t i = 0; i < group.series.size(); ++i) {
            // Another one is first in every round: whatever the first one suffers, all suffer.
            Series &series = group.series[(i + round) % group.series.size()];
            if (!series.skip.empty() || !series.problem.empty()) continue;
            Run one = run;
            one.allocator = series.peer->name;
            one.seed = run.seed + round;
            // The floor is one and the same everywhere; between the memory accesses of a workload it would seem to
            // vanish.
            if (one.allocator == "rmw") one.workload = "cache";
            const Answer answer = measure_in_child(*series.peer, one, options.timeout_seconds);
            series.skip = answer.skip;
            series.problem = answer.problem;
            series.too_slow = answer.too_slow;
            if (answer.skip.empty() && answer.problem.empty()) series.rounds.push_back(answer.outcome);
        }
    }
    return group;
}

nlohmann::json machine() {
    utsname kernel{};
    uname(&kernel);
    std::ifstream cpuinfo("/proc/cpuinfo");
    std::string model, line;
    while (model.empty() && std::getline(cpuinfo, line))
        if (line.starts_with("model name")) model = line.substr(line.find(':') + 2);
    double load = 0;
    getloadavg(&load, 1);
    return {{"cpu", model},
            {"cpus", std::thread::hardware_concurrency()},
            {"kernel", std::string(kernel.sysname) + " " + kernel.release},
            {"load", load}};
}

// Which memory numacre's processes share; empty: there are none.
std::string backing_text(const Options &options) {
    if (!options.run.attach.empty()) return backing_of(options.run.attach) + ", of the daemon in " + options.run.attach;
    return options.processes.empty() ? "" : std::string(kDaemonBacking) + ", of a daemon for each measurement";
}

int compare(const Options &options) {
    const std::string backing = backing_text(options);
    nlohmann::json report{{"machine", machine()},
                          {"pool_bytes", options.run.pool_bytes},
                          {"rounds", options.rounds},
                          {"milliseconds", options.run.milliseconds},
                          {"seed", options.run.seed},
                          {"backing", backing.empty() ? nlohmann::json() : nlohmann::json(backing)},
                          {"groups", nlohmann::json::array()}};
    std::cout << report["machine"]["cpu"].get<std::string>() << ", " << report["machine"]["cpus"] << " CPUs, load "
              << std::lround(report["machine"]["load"].get<double>() * 10) / 10.0 << "; pool "
              << format_size(options.run.pool_bytes) << ", frames 4 KiB, largest block 4 MiB; median of "
              << options.rounds << " rounds of " << options.run.milliseconds << " ms, seed " << options.run.seed
              << '\n';
    if (!backing.empty()) std::cout << "numacre's shared pool: backing " << backing << '\n';
    std::cout << '\n';
    std::vector<std::string> faults;
    Skipped skipped;
    for (const std::string_view workload : kWorkloads) {
        const auto &asked = options.workloads;
        if (!asked.empty() && std::find(asked.begin(), asked.end(), workload) == asked.end()) continue;
        for (const std::uint64_t size : options.sizes) {
            for (Run run : worker_axis(options)) {
                run.workload = workload;
                run.size_bytes = size;
                const Group group = measure_group(options, run);
                print_group(std::cout, group);
                report["groups"].push_back(to_json(group));
                for (auto &[why, names] : skipped_in(group)) skipped[why].insert(names.begin(), names.end());
                const auto found = faults_of(group);
                faults.insert(faults.end(), found.begin(), found.end());
                // Each time: a long run that is interrupted has not been for nothing.
                if (!options.json_path.empty()) {
                    std::ofstream file(options.json_path);
                    if (!(file << report.dump(1) << '\n' << std::flush))
                        throw std::runtime_error("cannot write " + options.json_path);
                }
            }
        }
    }
    print_skipped(std::cout, "", skipped);
    for (const std::string &fault : faults) std::cout << "FAULT " << fault << '\n';
    return faults.empty() ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace
}  // namespace numacre::bench

int main(int argc, char **argv) {
    using namespace numacre::bench;
    if (argc > 1 && std::string_view(argv[1]) == kChildFlag) return child_main(argc, argv);
    Options options;
    CLI::App app{"allocators: time of an allocation and its free, numacre and others"};
    declare(app, options);
    CLI11_PARSE(app, argc, argv);
    drop_the_kind_not_asked_for(app, options);
    try {
        return compare(options);
    } catch (const std::exception &error) {
        std::cerr << "allocators: " << error.what() << '\n';
        return EXIT_FAILURE;
    }
}
