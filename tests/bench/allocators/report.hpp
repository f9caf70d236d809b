// From rounds to figures: medians net of the harness, ratios, tables, JSON, and what a checked run must fulfil.
#pragma once

#include <iosfwd>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "adaptor.hpp"
#include "peers.hpp"

namespace numacre::bench {

// All rounds of one allocator in one workload.
struct Series {
    const Peer *peer = nullptr;
    std::vector<Outcome> rounds = {};
    std::string skip = {}, problem = {};
    bool too_slow = false;
};

// All allocators in one workload: the same size, pool and number of workers.
struct Group {
    Run run;
    std::vector<Series> series;
};

struct Figure {
    double median = 0, least = 0, most = 0;
};

struct Row {
    const Series *series = nullptr;
    Figure wall_ns, cpu_ns;  // a pair, net of the empty loop
    double to_rmw = 0;       // 0: the floor is too small to tell
    double to_best_of_kind = 0, to_best = 0;
    std::uint64_t pairs = 0, failed = 0, overlaps = 0;
    double filled = 1;
    bool alone = false;  // each process had an allocator to itself
};

std::vector<Row> rows_of(const Group &group);

void print_group(std::ostream &out, const Group &group);

// Who could not be measured, by the reason.
using Skipped = std::map<std::string, std::set<std::string>>;
Skipped skipped_in(const Group &group);
void print_skipped(std::ostream &out, const char *indent, const Skipped &skipped);

nlohmann::json to_json(const Group &group);

// What is wrong with the group, whatever its speed: one sentence each.
std::vector<std::string> faults_of(const Group &group);

std::string format_size(std::uint64_t bytes);

}  // namespace numacre::bench
