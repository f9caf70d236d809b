// The simulator's command line: README.md.
#include <ctime>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "plan.hpp"

using namespace numacre::simulation;

namespace {

struct Option {
    const char *name;
    std::uint64_t Limits::*limit;
};
constexpr Option kLimits[] = {
    {"--processes", &Limits::processes},
    {"--threads", &Limits::threads},
    {"--operations", &Limits::operations},
    {"--rounds", &Limits::rounds},
    {"--nodes", &Limits::numa_nodes},
    {"--frames", &Limits::frames},
    {"--deaths", &Limits::deaths},
    {"--daemon-deaths", &Limits::daemon_deaths},
    {"--jobs", &Limits::jobs},
    {"--faults", &Limits::faults},
    {"--steps", &Limits::steps},
    {"--schedule", &Limits::schedule},
    {"--theme", &Limits::theme},
};

std::string replay_line(std::uint64_t seed, const Limits &limits) {
    std::string line = "simulation --seed " + std::to_string(seed);
    const Limits usual;
    for (const Option &option : kLimits)
        if (limits.*option.limit != usual.*option.limit)
            line += std::string(" ") + option.name + " " + std::to_string(limits.*option.limit);
    return line + " --replay";
}

Result try_seed(std::uint64_t seed, const Limits &limits, bool trace = false) {
    return run(make_plan(seed, limits), trace);
}

// What a failure says, without its numbers: a smaller run that fails otherwise is another failure.
std::string kind_of(const std::string &failure) {
    std::string kind;
    for (const char character : failure.substr(std::min(failure.find(": "), failure.size())))
        if (character < '0' || character > '9') kind += character;
    return kind;
}

// Fewer of everything, for as long as some schedule still fails in the same way.
Limits shrink(std::uint64_t seed, Limits limits, const std::string &failure) {
    const std::string kind = kind_of(failure);
    constexpr unsigned kSchedules = 60;
    std::uint64_t least_steps = ~std::uint64_t{0};
    const auto still_fails = [&](Limits smaller) {
        for (unsigned schedule = 0; schedule < kSchedules; ++schedule) {
            smaller.schedule = schedule == 0 ? limits.schedule : limits.schedule + schedule;
            const Result result = try_seed(seed, smaller);
            if (result.failure.empty() || kind_of(result.failure) != kind) continue;
            limits = smaller;
            least_steps = result.steps;
            return true;
        }
        return false;
    };
    constexpr std::uint64_t kTo[] = {0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 2048};
    const Plan whole = make_plan(seed, limits);
    limits.operations = std::min<std::uint64_t>(limits.operations, whole.operations);
    limits.jobs = std::min(limits.jobs, whole.jobs);
    for (bool smaller = true; smaller;) {
        smaller = false;
        for (const Option &option : kLimits) {
            if (option.limit == &Limits::schedule || option.limit == &Limits::steps || option.limit == &Limits::theme)
                continue;
            const bool may_be_none = option.limit == &Limits::deaths || option.limit == &Limits::daemon_deaths ||
                                     option.limit == &Limits::jobs || option.limit == &Limits::faults;
            for (const std::uint64_t to : kTo) {
                if (to >= limits.*option.limit) break;
                if (to == 0 && !may_be_none) continue;
                Limits tried = limits;
                tried.*option.limit = to;
                if (!still_fails(tried)) continue;
                smaller = true;
                break;
            }
        }
    }
    // The shortest of some schedules.
    const Limits found = limits;
    for (unsigned schedule = 1; schedule <= 4 * kSchedules; ++schedule) {
        Limits tried = found;
        tried.schedule += schedule;
        const Result result = try_seed(seed, tried);
        if (result.failure.empty() || kind_of(result.failure) != kind || result.steps >= least_steps) continue;
        least_steps = result.steps;
        limits = tried;
    }
    return limits;
}

int usage() {
    std::fprintf(
        stderr,
        "usage: simulation [--seed N | --seeds A..B | --seed time] [--count C] [--seconds S] [--replay] [--shrink] "
        "[--keep-going]\n"
        "       limits: --processes --threads --operations --rounds --nodes --frames --deaths --daemon-deaths --jobs "
        "--faults\n"
        "               --steps M (then nothing new begins) --schedule K (another schedule of the same work)\n"
        "               --theme T (0 waiting, 1 upper words, 2 references, 3 .. 7 none, 8 as the seed says)\n");
    return 2;
}

}  // namespace

int main(int count, char **arguments) {
    Limits limits;
    std::uint64_t first = 1, last = 1, seconds = 0, steps_in_all = 0;
    bool replay = false, shrinks = false, keeps_going = false, quiet = false;
    for (int i = 1; i < count; ++i) {
        const std::string argument = arguments[i];
        const char *const value = i + 1 < count ? arguments[i + 1] : nullptr;
        if (argument == "--replay") {
            replay = true;
            continue;
        }
        if (argument == "--shrink") {
            shrinks = true;
            continue;
        }
        if (argument == "--keep-going") {
            keeps_going = true;
            continue;
        }
        if (argument == "--quiet") {
            quiet = true;
            continue;
        }
        if (value == nullptr) return usage();
        ++i;
        char *rest = nullptr;
        if (argument == "--seed" && std::strcmp(value, "time") == 0) {
            first = last = static_cast<std::uint64_t>(std::time(nullptr)) * 1000;
            continue;
        }
        const std::uint64_t number = std::strtoull(value, &rest, 0);
        if (argument == "--seeds") {
            if (std::strncmp(rest, "..", 2) != 0) return usage();
            first = number;
            last = std::strtoull(rest + 2, &rest, 0);
        } else if (argument == "--seed") {
            first = last = number;
        } else if (argument == "--count") {
            last = first + number - 1;
        } else if (argument == "--seconds") {
            seconds = number;
        } else if (argument == "--total-steps") {
            steps_in_all = number;
        } else {
            const Option *found = nullptr;
            for (const Option &option : kLimits)
                if (argument == option.name) found = &option;
            if (found == nullptr) return usage();
            limits.*found->limit = number;
        }
        if (rest == value || *rest != '\0') return usage();
    }
    if ((seconds != 0 || steps_in_all != 0) && last == first) last = ~std::uint64_t{0};

    const auto began = std::chrono::steady_clock::now();
    const auto passed = [&began] {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    };
    std::uint64_t steps = 0, operations = 0, deaths = 0, hand_offs = 0, refusals = 0, seeds = 0, failures = 0;
    if (!quiet) std::printf("seeds from %llu on\n", static_cast<unsigned long long>(first));
    for (std::uint64_t seed = first; seed <= last; ++seed) {
        if (seconds != 0 && passed() >= static_cast<double>(seconds)) break;
        if (steps_in_all != 0 && steps >= steps_in_all) break;
        if (replay)
            std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed),
                        to_text(make_plan(seed, limits)).c_str());
        const Result result = try_seed(seed, limits, replay);
        ++seeds;
        steps += result.steps;
        operations += result.operations;
        deaths += result.deaths;
        hand_offs += result.hand_offs;
        refusals += result.refusals;
        if (result.failure.empty()) continue;
        ++failures;
        Limits smallest = limits;
        std::string failure = result.failure;
        if (shrinks) {
            smallest = shrink(seed, limits, failure);
            failure = try_seed(seed, smallest).failure;
        }
        std::printf("FAILED %s\n       (%s)\nREPLAY: %s\n", failure.c_str(), to_text(make_plan(seed, smallest)).c_str(),
                    replay_line(seed, smallest).c_str());
        std::fflush(stdout);
        if (!keeps_going) break;
    }
    if (!quiet || failures == 0)
        std::printf(
            "%llu seeds, %llu failed; %llu steps, %llu operations, %llu deaths, %llu hand-offs, %llu refusals; %.1f "
            "s\n",
            static_cast<unsigned long long>(seeds), static_cast<unsigned long long>(failures),
            static_cast<unsigned long long>(steps), static_cast<unsigned long long>(operations),
            static_cast<unsigned long long>(deaths), static_cast<unsigned long long>(hand_offs),
            static_cast<unsigned long long>(refusals), passed());
    return failures == 0 ? 0 : 1;
}
