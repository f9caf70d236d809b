// `numacre bench`: the cost of an allocation and its free on this machine, beside the cost of one locked instruction;
// and `numacre bench replay`: the smallest pool in which a recorded program could run.
#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <vector>

#include "bytes.hpp"
#include "commands.hpp"
#include "json.hpp"
#include "numacre/numacre.h"
#include "replay.hpp"
#include "table.hpp"

namespace numacre::cli {
namespace {

struct Spread {
    double median = 0, least = 0, most = 0;
};

Spread spread_of(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return {values[values.size() / 2], values.front(), values.back()};
}

// Measures the nanoseconds of one call of operation, for each round. operation returns 0 or an errno, which ends the
// run.
template <class Operation>
int measure(std::uint64_t operations, std::uint64_t rounds, const Operation &operation, std::vector<double> &result) {
    // Warm up: the thread slot, the first fill of the cache and the first touch of metadata are not to be measured.
    for (std::uint64_t i = 0; i < std::min<std::uint64_t>(operations, 1000); ++i) {
        if (const int error = operation(); error != 0) return error;
    }
    for (std::uint64_t round = 0; round < rounds && !interrupted(); ++round) {
        const auto begin = std::chrono::steady_clock::now();
        for (std::uint64_t i = 0; i < operations; ++i) {
            if (const int error = operation(); error != 0) return error;
        }
        const auto end = std::chrono::steady_clock::now();
        result.push_back(std::chrono::duration<double, std::nano>(end - begin).count() /
                         static_cast<double>(operations));
    }
    return result.empty() ? EINTR : 0;
}

struct Row {
    std::uint64_t size_bytes = 0;
    bool cached = true;
    Spread nanoseconds;
    std::string error;  // empty: measured
};

std::string decimal(double value) {
    std::array<char, 40> text{};
    std::snprintf(text.data(), text.size(), "%.1f", value);
    return text.data();
}

// Reports an error of the C ABI as an error of the daemon, so that there is one way to report both.
[[noreturn]] void fail(int error, const std::string &doing) {
    if (error == -ECONNREFUSED) throw NoDaemonError(doing + ": " + numacre_last_error());
    const char *name = strerrorname_np(-error);
    throw CallError(name != nullptr ? name : "UNKNOWN", doing + ": " + numacre_last_error());
}

class Attachment {
public:
    explicit Attachment(const BenchArguments &arguments, const std::string &runtime_dir) {
        const int error = arguments.private_pool ? numacre_open_private(nullptr, &pool_)
                                                 : numacre_attach(runtime_dir.c_str(), arguments.pool.c_str(), &pool_);
        if (error != 0)
            fail(error, arguments.private_pool ? "no private pool" : "cannot attach to pool " + arguments.pool);
    }
    ~Attachment() { numacre_detach(pool_); }
    Attachment(const Attachment &) = delete;
    Attachment &operator=(const Attachment &) = delete;
    numacre_pool *get() const { return pool_; }

private:
    numacre_pool *pool_ = nullptr;
};

}  // namespace

int run_bench(Context &context, const BenchArguments &arguments) {
    constexpr std::uint64_t kMostOperations = 10'000'000, kMostRounds = 100;
    if (arguments.operations == 0 || arguments.operations > kMostOperations) {
        throw ArgumentError("--operations " + std::to_string(arguments.operations) + " is out of range: use 1 to " +
                            std::to_string(kMostOperations));
    }
    if (arguments.rounds == 0 || arguments.rounds > kMostRounds) {
        throw ArgumentError("--rounds " + std::to_string(arguments.rounds) + " is out of range: use 1 to " +
                            std::to_string(kMostRounds));
    }
    // Refuses a runtime directory that is too long for a socket address, without a call to the daemon.
    if (!arguments.private_pool) context.control();
    catch_interrupts();
    const Attachment attachment(arguments, context.runtime_dir);
    numacre_pool *pool = attachment.get();
    numacre_pool_info info{};
    info.struct_size = sizeof info;
    if (const int error = numacre_get_info(pool, &info); error != 0)
        fail(error, "cannot ask the pool what it is made of");

    // A cache line of its own: no other thread contends for it.
    alignas(64) static std::atomic<std::uint64_t> word{0};
    std::vector<double> locked_rounds;
    measure(
        arguments.operations, arguments.rounds,
        [&] {
            // relaxed: only the cost of the locked instruction is wanted, and no data is handed over.
            word.fetch_add(1, std::memory_order_relaxed);
            return 0;
        },
        locked_rounds);
    if (locked_rounds.empty()) return kExitFailed;
    const Spread locked = spread_of(locked_rounds);

    std::vector<std::uint64_t> sizes;
    for (std::uint64_t size = info.frame_bytes; size < info.largest_block_bytes; size *= 8) sizes.push_back(size);
    sizes.push_back(info.largest_block_bytes);
    std::vector<Row> rows;
    for (const std::uint64_t size : sizes) {
        for (const bool cached : {true, false}) {
            if (interrupted()) break;
            Row row{size, cached, {}, ""};
            std::vector<double> rounds;
            const int error = measure(
                arguments.operations, arguments.rounds,
                [&] {
                    void *block = nullptr;
                    const int refused = cached ? numacre_alloc(pool, size, &block)
                                               : numacre_alloc_on(pool, -1, size, NUMACRE_UNCACHED, &block);
                    if (refused != 0) return -refused;
                    return -numacre_free(pool, block);
                },
                rounds);
            if (error == 0) {
                row.nanoseconds = spread_of(rounds);
            } else {
                row.error = error == EINTR && interrupted() ? "interrupted" : numacre_last_error();
            }
            rows.push_back(std::move(row));
        }
    }
    const bool failed =
        interrupted() || std::any_of(rows.begin(), rows.end(), [](const Row &row) { return !row.error.empty(); });

    const std::string name = arguments.private_pool ? "(private)" : arguments.pool;
    if (context.json) {
        Json list = Json::array();
        for (const Row &row : rows) {
            const bool known = row.error.empty();
            const auto value = [&](double number) { return known ? Json(number) : Json(nullptr); };
            list.push_back({{"size_bytes", row.size_bytes},
                            {"cached", row.cached},
                            {"nanoseconds_per_pair", value(row.nanoseconds.median)},
                            {"nanoseconds_least", value(row.nanoseconds.least)},
                            {"nanoseconds_most", value(row.nanoseconds.most)},
                            {"ratio_to_locked_rmw", value(row.nanoseconds.median / locked.median)},
                            {"error", known ? Json(nullptr) : Json(row.error)}});
        }
        print_json(context.out, {{"pool", name},
                                 {"operations", arguments.operations},
                                 {"rounds", arguments.rounds},
                                 {"locked_rmw_nanoseconds", locked.median},
                                 {"sizes", list}});
        return failed ? kExitFailed : kExitOk;
    }
    context.out << "pool " << printable(name) << ": one thread, " << arguments.rounds << " rounds of "
                << arguments.operations << " pairs of allocation and free; median (least to most)\n"
                << "one uncontended locked read-modify-write: " << decimal(locked.median) << " ns\n";
    Table table({{"SIZE", Align::right},
                 {"PATH"},
                 {"NS A PAIR", Align::right},
                 {"LEAST", Align::right},
                 {"MOST", Align::right},
                 {"LOCKED RMWS", Align::right},
                 {""}});
    for (const Row &row : rows) {
        if (row.error.empty()) {
            table.add_row({format_bytes(row.size_bytes), row.cached ? "cached" : "uncached",
                           decimal(row.nanoseconds.median), decimal(row.nanoseconds.least),
                           decimal(row.nanoseconds.most), decimal(row.nanoseconds.median / locked.median)});
        } else {
            table.add_row(
                {format_bytes(row.size_bytes), row.cached ? "cached" : "uncached", "-", "-", "-", "-", row.error});
        }
    }
    table.print(context.out);
    return failed ? kExitFailed : kExitOk;
}

int run_replay(Context &context, const ReplayArguments &arguments) {
    const PoolShape shape{parse_bytes(arguments.frame), parse_bytes(arguments.largest)};
    const Workload workload = make_workload(read_trace_files(arguments.traces), shape);
    std::vector<Outcome> outcomes;
    for (const Engine &engine : product_engines()) outcomes.push_back(find_smallest_pool(workload, engine));
    if (context.json)
        print_json(context.out, replay_json(workload, outcomes));
    else
        print_replay(context.out, workload, outcomes);
    return kExitOk;
}

}  // namespace numacre::cli
