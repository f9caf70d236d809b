// `channel_bench`: messages from one process to another, by numacre and by others, all in one run whose rounds are
// interleaved. No figure fails it; a message that is lost, comes twice, or is out of order does.
#include <sched.h>
#include <sys/utsname.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "report.hpp"

namespace numacre::bench {
namespace {

constexpr std::string_view kLine = "cache line", kReference = "rte_ring mp_mc", kWakeReference = "futex";
constexpr std::array<std::string_view, 16> kSystems{kLine,
                                                    "numacre",
                                                    kReference,
                                                    "rte_ring sp_sc",
                                                    "rte_ring rts",
                                                    "rte_ring cached",
                                                    "numacre+ring",
                                                    "numacre+ring back",
                                                    "iceoryx2",
                                                    "boost queue",
                                                    "pipe",
                                                    "seqpacket",
                                                    "boost queue, copy",
                                                    "pipe, copy",
                                                    "seqpacket, copy",
                                                    kWakeReference};

struct Options {
    std::vector<std::string> systems, scenarios;
    unsigned rounds = 7;
    std::string planted;
    Run run;
};

struct Job {
    std::string key;
    Scenario scenario;
    Measure Entry::*measure;
    unsigned burst;
    bool written;
};

std::vector<Job> jobs() {
    std::vector<Job> list;
    const auto add = [&](std::string key, Kind kind, Measure Entry::*measure, unsigned burst, bool written) {
        const char *const payload = written ? "2 KiB written and read" : "payload untouched";
        std::string title = kind == Kind::one_way      ? "one way, bursts of " + std::to_string(burst) + ", " + payload
                            : kind == Kind::round_trip ? std::string("round trip, ") + payload
                                                       : "wake-up of a sleeping receiver";
        const std::string_view reference = kind == Kind::wake_up ? kWakeReference : kReference;
        list.push_back({std::move(key), {std::move(title), kind, std::string(reference)}, measure, burst, written});
    };
    for (const bool written : {false, true}) {
        const std::string suffix = written ? "-written" : "";
        for (const unsigned burst : {1U, kBurstMax})
            add("one-way-" + std::to_string(burst) + suffix, Kind::one_way, &Entry::one_way, burst, written);
        add("round-trip" + suffix, Kind::round_trip, &Entry::round_trip, 1, written);
    }
    add("wake-up", Kind::wake_up, &Entry::wake_up, 1, false);
    return list;
}

std::vector<std::string> keys() {
    std::vector<std::string> list;
    for (const Job &job : jobs()) list.push_back(job.key);
    return list;
}

const Entry *find(std::string_view name) {
    for (const Entry &entry : entries())
        if (entry.name == name) return &entry;
    return nullptr;
}

void measure(const Entry &entry, const Job &job, const Options &options, Series &series) {
    Run run = options.run;
    run.burst = job.burst;
    run.written = job.written;
    try {
        series.rounds.push_back((entry.*job.measure)(run));
    } catch (const Unavailable &why) {
        series.skipped = why.what();
    } catch (const std::exception &error) {
        series.failed = error.what();
    }
}

// The round trip of a cache line: how far apart the two CPUs are now.
double distance_ns(const Options &options) {
    Run run = options.run;
    run.planted = Planted::nothing;
    run.milliseconds = std::min<std::uint64_t>(run.milliseconds, 5);
    return find(kLine)->round_trip(run).ns;
}

std::vector<Series> measure_all(const Job &job, const Options &options, std::vector<double> &distances) {
    std::vector<Series> all;
    std::vector<const Entry *> measured;
    for (const std::string_view name : kSystems) {
        const auto &asked = options.systems;
        const bool is_reference = name == job.scenario.reference && options.planted.empty();
        if (!asked.empty() && !is_reference && std::find(asked.begin(), asked.end(), name) == asked.end()) continue;
        const Entry *const entry = find(name);
        if (entry != nullptr && entry->*job.measure == nullptr) continue;
        Series series;
        series.name = name;
        if (entry == nullptr) series.skipped = "not built: the headers of its library were missing at configure time";
        all.push_back(std::move(series));
        measured.push_back(entry);
    }
    if (all.empty()) return all;
    for (unsigned round = 0; round < options.rounds; ++round) {
        distances.push_back(distance_ns(options));
        for (std::size_t i = 0; i < all.size(); ++i) {
            const std::size_t which = (i + round) % all.size();  // the next round begins with another
            Series &series = all[which];
            if (series.skipped.empty() && series.failed.empty()) measure(*measured[which], job, options, series);
        }
    }
    return all;
}

// Whether the checks can see it: an untouched payload carries no number.
bool is_visible(Planted planted, const Job &job) {
    return planted != Planted::swapped || job.written || job.scenario.kind == Kind::wake_up;
}

int compare(const Options &options) {
    std::map<std::string, std::set<std::string>> skipped;
    int status = EXIT_SUCCESS;
    unsigned judged = 0;
    for (const Job &job : jobs()) {
        const auto &asked = options.scenarios;
        if (!asked.empty() && std::find(asked.begin(), asked.end(), job.key) == asked.end()) continue;
        if (!is_visible(options.run.planted, job)) continue;
        std::vector<double> distances;
        const std::vector<Series> all = measure_all(job, options, distances);
        if (!all.empty()) print(job.scenario, all, distances);
        for (const Series &series : all) {
            if (!series.skipped.empty()) skipped[series.skipped].insert(series.name);
            if (!series.skipped.empty()) continue;
            ++judged;
            const std::string faults = faults_of(series);
            if (!faults.empty())
                std::printf("FAULT %s, %s: %s\n", series.name.c_str(), job.key.c_str(), faults.c_str());
            if (!series.failed.empty() || faults.empty() == (options.run.planted != Planted::nothing))
                status = EXIT_FAILURE;
        }
    }
    for (const auto &[why, names] : skipped)
        for (const std::string &name : names) std::printf("SKIP of %s: %s\n", name.c_str(), why.c_str());
    if (options.run.planted != Planted::nothing)
        std::printf("%s: %s in %u measurements\n", options.planted.c_str(),
                    status == EXIT_SUCCESS ? "found" : "NOT FOUND everywhere", judged);
    if (judged == 0) {
        std::printf("nothing was measured\n");
        status = EXIT_FAILURE;
    }
    return status;
}

void print_machine(const Options &options) {
    utsname kernel{};
    uname(&kernel);
    std::ifstream cpuinfo("/proc/cpuinfo");
    std::string model, line;
    while (model.empty() && std::getline(cpuinfo, line))
        if (line.starts_with("model name")) model = line.substr(line.find(':') + 2);
    double load[1] = {};
    (void)getloadavg(load, 1);
    std::printf(
        "%s, %s %s, load %.1f; sender on CPU 0, receiver on CPU 1; %u messages of %zu B under way at most, %s pages;\n"
        "medians of %u interleaved rounds of %llu ms each\n\n",
        model.c_str(), kernel.sysname, kernel.release, load[0], options.run.shape.capacity, kPayloadBytes,
        options.run.shape.hugepages ? "huge" : "small", options.rounds,
        static_cast<unsigned long long>(options.run.milliseconds));
}

std::string check_capacity(const std::string &text) {
    const unsigned long capacity = std::strtoul(text.c_str(), nullptr, 10);
    if (std::has_single_bit(capacity) && capacity >= 2UL * kBurstMax && capacity <= 65536) return {};
    return "capacity " + text + " is not a power of two from 64 to 65536";
}

}  // namespace
}  // namespace numacre::bench

int main(int argc, char **argv) {
    using namespace numacre::bench;
    Options options;
    CLI::App app{"channel_bench: messages from one process to another, numacre and others"};
    const std::vector<std::string> names(kSystems.begin(), kSystems.end());
    bool quick = false;
    app.add_option("--system", options.systems, "Only this one, and those that the ratios need; may be repeated")
        ->check(CLI::IsMember(names));
    app.add_option("--scenario", options.scenarios, "Only these")->delimiter(',')->check(CLI::IsMember(keys()));
    app.add_option("--rounds", options.rounds, "Rounds; the median counts")
        ->check(CLI::Range(1, 1000))
        ->capture_default_str();
    app.add_option("--ms", options.run.milliseconds, "Milliseconds a measurement")
        ->check(CLI::Range(1, 10'000))
        ->capture_default_str();
    app.add_option("--capacity", options.run.shape.capacity, "Messages under way at most")
        ->check(CLI::Validator(check_capacity, ""))
        ->capture_default_str();
    app.add_flag("--hugepages", options.run.shape.hugepages, "For the blocks and rings of the others");
    app.add_flag("--quick", quick, "One round of 5 ms: that everything works; the figures mean nothing");
    const std::map<std::string, Planted> faults{
        {"lost", Planted::lost}, {"extra", Planted::extra}, {"swapped", Planted::swapped}};
    app.add_option("--plant", options.planted, "Makes the sender wrong: succeeds if each measurement finds it")
        ->check(CLI::IsMember(faults));
    CLI11_PARSE(app, argc, argv);
    if (!options.planted.empty()) options.run.planted = faults.at(options.planted);
    if (quick) {
        options.rounds = 1;
        options.run.milliseconds = 5;
    }
    cpu_set_t cpus;
    if (sched_getaffinity(0, sizeof cpus, &cpus) != 0 || !CPU_ISSET(0, &cpus) || !CPU_ISSET(1, &cpus)) {
        std::printf("SKIP: channel_bench needs the CPUs 0 and 1\n");
        return 77;
    }
    try {
        print_machine(options);
        return compare(options);
    } catch (const std::exception &error) {
        std::fprintf(stderr, "channel_bench: %s\n", error.what());
        return EXIT_FAILURE;
    }
}
