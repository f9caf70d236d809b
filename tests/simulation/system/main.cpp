// The second stage's command line: ../README.md. Seeds run in processes of their own: what killed fibers had is gone
// with them, and a crash is a failure with a seed.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>

#include "plan.hpp"

using namespace numacre::simulation;

namespace {

struct Option {
    const char *name;
    std::uint64_t SystemLimits::*limit;
    bool may_be_none;
};
constexpr Option kLimits[] = {
    {"--processes", &SystemLimits::processes, false},
    {"--together", &SystemLimits::together, false},
    {"--threads", &SystemLimits::threads, true},
    {"--operations", &SystemLimits::operations, false},
    {"--rounds", &SystemLimits::rounds, false},
    {"--handles", &SystemLimits::handles, false},
    {"--forks", &SystemLimits::forks, true},
    {"--execs", &SystemLimits::execs, true},
    {"--deaths", &SystemLimits::deaths, true},
    {"--daemon-deaths", &SystemLimits::daemon_deaths, true},
    {"--jobs", &SystemLimits::jobs, true},
    {"--reserves", &SystemLimits::reserves, true},
    {"--faults", &SystemLimits::faults, true},
    {"--schedule", &SystemLimits::schedule, true},
};

std::string replay_line(std::uint64_t seed, const SystemLimits &limits) {
    std::string line = "simulation_system --seed " + std::to_string(seed);
    const SystemLimits usual;
    for (const Option &option : kLimits)
        if (limits.*option.limit != usual.*option.limit)
            line += std::string(" ") + option.name + " " + std::to_string(limits.*option.limit);
    return line + " --replay";
}

// What a seed's process tells ours.
struct Told {
    char failure[1200];
    std::uint64_t steps, operations, attaches, refusals, deaths, daemons, forks, takes, pins;
    std::uint64_t has_crashed;
};

int told_to = -1;

void tell(const Told &told) {
    const auto *from = reinterpret_cast<const char *>(&told);
    for (std::size_t left = sizeof told; left != 0;) {
        const ssize_t written = write(told_to, from, left);
        if (written <= 0) _exit(3);
        from += written;
        left -= static_cast<std::size_t>(written);
    }
}

void on_crash(int signal_number, siginfo_t *info, void *) {
    static Told told;
    const int process =
        Kernel::running != nullptr && Kernel::running->in_process() ? Kernel::running->current().id : -1;
    const char *const name = process < 0 ? "nobody" : Kernel::running->process(process).comm.c_str();
    std::snprintf(told.failure, sizeof told.failure, "step %llu: process %d (%s) crashes: signal %d%s",
                  static_cast<unsigned long long>(steps_done()), process, name, signal_number,
                  info->si_addr == nullptr ? ", at 0" : "");
    told.steps = steps_done();
    told.has_crashed = 1;
    tell(told);
    _exit(0);
}

void catch_crashes() {
    static char stack[64 << 10];
    stack_t alternative{};
    alternative.ss_sp = stack;
    alternative.ss_size = sizeof stack;
    sigaltstack(&alternative, nullptr);
    struct sigaction action{};
    action.sa_sigaction = on_crash;
    action.sa_flags = SA_ONSTACK | SA_SIGINFO;
    for (const int signal_number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT})
        sigaction(signal_number, &action, nullptr);
}

// Seeds one after the other in a process of their own; when it crashes, the next seed begins another.
class Runs {
public:
    Runs(SystemLimits limits, bool traces, std::uint64_t at_once)
        : limits_(limits), traces_(traces), at_once_(at_once) {}
    Runs(const Runs &) = delete;
    Runs &operator=(const Runs &) = delete;
    ~Runs() { end(); }

    // Of seeds that follow each other.
    SystemResult next(std::uint64_t seed) {
        if (child_ < 0 || left_ == 0) {
            end();
            begin(seed);
        }
        --left_;
        static Told told;
        std::size_t got = 0;
        while (got < sizeof told) {
            const ssize_t more = read(from_, reinterpret_cast<char *>(&told) + got, sizeof told - got);
            if (more <= 0) break;
            got += static_cast<std::size_t>(more);
        }
        SystemResult result;
        if (got < sizeof told) {
            result.failure = "step 0: the run ends with status " + std::to_string(end());
            return result;
        }
        if (told.has_crashed != 0) (void)end();
        result.failure = told.failure;
        result.steps = told.steps;
        result.operations = told.operations;
        result.attaches = told.attaches;
        result.refusals = told.refusals;
        result.deaths = told.deaths;
        result.daemons = told.daemons;
        result.forks = told.forks;
        result.takes = told.takes;
        result.pins = told.pins;
        return result;
    }

private:
    void begin(std::uint64_t seed) {
        int ends[2];
        if (pipe(ends) != 0) std::exit(2);
        std::fflush(stdout);
        child_ = ::fork();
        if (child_ != 0) {
            close(ends[1]);
            from_ = ends[0];
            left_ = at_once_;
            return;
        }
        close(ends[0]);
        std::signal(SIGPIPE, SIG_DFL);  // nobody listens any more: the end
        told_to = ends[1];
        catch_crashes();
        for (std::uint64_t i = 0; i < at_once_; ++i) {
            const SystemResult result = run_system(make_system_plan(seed + i, limits_), traces_);
            static Told told;
            std::snprintf(told.failure, sizeof told.failure, "%s", result.failure.c_str());
            told.steps = result.steps;
            told.operations = result.operations;
            told.attaches = result.attaches;
            told.refusals = result.refusals;
            told.deaths = result.deaths;
            told.daemons = result.daemons;
            told.forks = result.forks;
            told.takes = result.takes;
            told.pins = result.pins;
            std::fflush(stdout);
            tell(told);
        }
        _exit(0);
    }
    int end() {
        if (child_ < 0) return 0;
        close(from_);
        int status = 0;
        waitpid(child_, &status, 0);
        child_ = -1;
        return status;
    }

    const SystemLimits limits_;
    const bool traces_;
    const std::uint64_t at_once_;
    pid_t child_ = -1;
    int from_ = -1;
    std::uint64_t left_ = 0;
};

SystemResult try_seed(std::uint64_t seed, const SystemLimits &limits) {
    return Runs(limits, false, 1).next(seed);
}

// What a failure says, without its numbers: a smaller run that fails otherwise is another failure.
std::string kind_of(const std::string &failure) {
    std::string kind;
    for (const char character : failure.substr(std::min(failure.find(": "), failure.size())))
        if (character < '0' || character > '9') kind += character;
    return kind;
}

// Fewer of everything, for as long as some schedule still fails in the same way.
SystemLimits shrink(std::uint64_t seed, SystemLimits limits, const std::string &failure) {
    const std::string kind = kind_of(failure);
    constexpr unsigned kSchedules = 30;
    std::uint64_t least_steps = ~std::uint64_t{0};
    const auto still_fails = [&](SystemLimits smaller) {
        for (unsigned schedule = 0; schedule < kSchedules; ++schedule) {
            smaller.schedule = limits.schedule + schedule;
            const SystemResult result = try_seed(seed, smaller);
            if (result.failure.empty() || kind_of(result.failure) != kind) continue;
            limits = smaller;
            least_steps = result.steps;
            return true;
        }
        return false;
    };
    constexpr std::uint64_t kTo[] = {0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48};
    for (bool smaller = true; smaller;) {
        smaller = false;
        for (const Option &option : kLimits) {
            if (option.limit == &SystemLimits::schedule) continue;
            for (const std::uint64_t to : kTo) {
                if (to >= limits.*option.limit) break;
                if (to == 0 && !option.may_be_none) continue;
                SystemLimits tried = limits;
                tried.*option.limit = to;
                if (!still_fails(tried)) continue;
                smaller = true;
                break;
            }
        }
    }
    // The shortest of some schedules.
    const SystemLimits found = limits;
    for (unsigned schedule = 1; schedule <= 4 * kSchedules; ++schedule) {
        SystemLimits tried = found;
        tried.schedule += schedule;
        const SystemResult result = try_seed(seed, tried);
        if (result.failure.empty() || kind_of(result.failure) != kind || result.steps >= least_steps) continue;
        least_steps = result.steps;
        limits = tried;
    }
    return limits;
}

int usage() {
    std::fputs(
        "usage: simulation_system [--seed N | --seeds A..B | --seed time] [--count C] [--seconds S] [--total-steps N] "
        "[--replay] [--shrink] [--keep-going] [--quiet]\n       limits:",
        stderr);
    for (const Option &option : kLimits) std::fprintf(stderr, " %s", option.name);
    std::fputs("\n", stderr);
    return 2;
}

}  // namespace

int main(int count, char **arguments) {
    SystemLimits limits;
    std::uint64_t first = 1, last = 1, seconds = 0, steps_in_all = 0;
    bool replay = false, shrinks = false, keeps_going = false, quiet = false;
    for (int i = 1; i < count; ++i) {
        const std::string argument = arguments[i];
        const char *const value = i + 1 < count ? arguments[i + 1] : nullptr;
        bool *const flag = argument == "--replay"       ? &replay
                           : argument == "--shrink"     ? &shrinks
                           : argument == "--keep-going" ? &keeps_going
                           : argument == "--quiet"      ? &quiet
                                                        : nullptr;
        if (flag != nullptr) {
            *flag = true;
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

    warm_up_daemon();
    (void)fresh_client_globals();
    std::time_t began = std::time(nullptr);  // steady_clock is the simulated one here
    constexpr std::uint64_t kAtOnce = 50;
    Runs runs(limits, replay, std::min(kAtOnce, last - first + 1 == 0 ? kAtOnce : last - first + 1));
    SystemResult all;
    std::uint64_t seeds = 0, failures = 0;
    if (!quiet) std::printf("seeds from %llu on\n", static_cast<unsigned long long>(first));
    for (std::uint64_t seed = first; seed <= last; ++seed) {
        if (seconds != 0 && static_cast<std::uint64_t>(std::time(nullptr) - began) >= seconds) break;
        if (steps_in_all != 0 && all.steps >= steps_in_all) break;
        if (replay)
            std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed),
                        to_text(make_system_plan(seed, limits)).c_str());
        const SystemResult result = runs.next(seed);
        ++seeds;
        all.steps += result.steps;
        all.operations += result.operations;
        all.attaches += result.attaches;
        all.refusals += result.refusals;
        all.deaths += result.deaths;
        all.daemons += result.daemons;
        all.forks += result.forks;
        all.takes += result.takes;
        all.pins += result.pins;
        if (result.failure.empty()) continue;
        ++failures;
        SystemLimits smallest = limits;
        std::string failure = result.failure;
        if (shrinks) {
            smallest = shrink(seed, limits, failure);
            failure = try_seed(seed, smallest).failure;
        }
        std::printf("FAILED %s\n       (%s)\nREPLAY: %s\n", failure.c_str(),
                    to_text(make_system_plan(seed, smallest)).c_str(), replay_line(seed, smallest).c_str());
        std::fflush(stdout);
        if (!keeps_going) break;
    }
    if (!quiet || failures == 0)
        std::printf(
            "%llu seeds, %llu failed; %llu steps, %llu operations, %llu attaches, %llu refusals, %llu processes ended, "
            "%llu daemons begun, %llu forks, %llu takes, %llu pins; %lld s\n",
            static_cast<unsigned long long>(seeds), static_cast<unsigned long long>(failures),
            static_cast<unsigned long long>(all.steps), static_cast<unsigned long long>(all.operations),
            static_cast<unsigned long long>(all.attaches), static_cast<unsigned long long>(all.refusals),
            static_cast<unsigned long long>(all.deaths), static_cast<unsigned long long>(all.daemons),
            static_cast<unsigned long long>(all.forks), static_cast<unsigned long long>(all.takes),
            static_cast<unsigned long long>(all.pins), static_cast<long long>(std::time(nullptr) - began));
    return failures == 0 ? 0 : 1;
}
