#include "child.hpp"

#include <signal.h>
#include <sys/prctl.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>

#include "stage.hpp"

namespace numacre::bench {
namespace {

Outcome measure_named(const Run &run) {
    const auto entry =
        std::find_if(entries().begin(), entries().end(), [&](const Entry &e) { return e.name == run.allocator; });
    if (entry == entries().end())
        throw Unavailable("its adaptor was not built: the headers of its library were missing at configure time");
    return entry->measure(run);
}

}  // namespace

std::vector<std::string> child_arguments(const Run &run) {
    std::vector<std::string> arguments{kChildFlag,
                                       "--allocator=" + run.allocator,
                                       "--workload=" + run.workload,
                                       "--size=" + std::to_string(run.size_bytes),
                                       "--pool=" + std::to_string(run.pool_bytes),
                                       "--threads=" + std::to_string(run.threads),
                                       "--processes=" + std::to_string(run.processes),
                                       "--ms=" + std::to_string(run.milliseconds),
                                       "--seed=" + std::to_string(run.seed)};
    if (!run.attach.empty()) arguments.push_back("--attach=" + run.attach);
    if (run.check) arguments.push_back("--check");
    return arguments;
}

int child_main(int argc, char **argv) {
    // The parent ends a measurement that hangs, and may itself be ended.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    remember_cpus();
    Run run;
    CLI::App app{"allocators: one measurement"};
    app.add_flag(kChildFlag);
    app.add_option("--allocator", run.allocator);
    app.add_option("--workload", run.workload);
    app.add_option("--size", run.size_bytes);
    app.add_option("--pool", run.pool_bytes);
    app.add_option("--threads", run.threads);
    app.add_option("--processes", run.processes);
    app.add_option("--attach", run.attach);
    app.add_option("--ms", run.milliseconds);
    app.add_option("--seed", run.seed);
    app.add_flag("--check", run.check);
    CLI11_PARSE(app, argc, argv);
    try {
        const Outcome outcome = measure_named(run);
        std::cout << nlohmann::json{{"pairs", outcome.pairs},
                                    {"wall_ns", outcome.wall_ns},
                                    {"cpu_ns", outcome.cpu_ns},
                                    {"failed", outcome.failed},
                                    {"filled", outcome.filled},
                                    {"overlaps", outcome.overlaps},
                                    {"checked_pairs", outcome.checked_pairs},
                                    {"alone", outcome.alone}}
                  << std::endl;
    } catch (const Unavailable &why) {
        std::cout << nlohmann::json{{"skip", why.what()}} << std::endl;
    } catch (const std::exception &error) {
        std::cerr << "allocators: " << run.allocator << ": " << error.what() << '\n';
        return EXIT_FAILURE;
    }
    return EXIT_SUCCESS;
}

}  // namespace numacre::bench
