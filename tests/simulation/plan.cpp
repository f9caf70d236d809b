#include "plan.hpp"

#include <algorithm>
#include <cstdio>

#include "numacre/shm/env.hpp"
#include "numacre/shm/geometry.hpp"

namespace numacre::simulation {

using namespace engine;

Plan make_plan(std::uint64_t seed, const Limits &limits) {
    Plan plan;
    plan.seed = seed;
    // A stream for each part: a limit on one leaves the others as they are.
    const std::uint64_t theme = limits.theme < 8 ? limits.theme : Random(seed, 6).below(8);
    Random geometry(seed, 1), people(seed, 2), work(seed, 3), daemon(seed, 4), faults(seed, 5);
    const auto up_to = [](std::uint64_t drawn, std::uint64_t limit) { return std::min(drawn, limit); };

    plan.frame_bytes = 1U << geometry.between(6, 21);
    // Half of all: largest blocks below a leaf word, whose last word then may end anywhere.
    plan.largest_order = static_cast<unsigned>(geometry.percent(40) ? geometry.below(7) : geometry.between(6, 10));
    const std::uint64_t frames_max = up_to(geometry.one_in(3) ? 5000 : geometry.scaled(2500) + 1, limits.frames);
    plan.chunks =
        std::max<std::uint64_t>(1, geometry.between(1, std::max<std::uint64_t>(1, frames_max >> plan.largest_order)));
    if (geometry.percent(60)) plan.chunks = std::min<std::uint64_t>(plan.chunks, geometry.between(1, 12));
    plan.numa_nodes =
        static_cast<unsigned>(up_to(geometry.percent(60) ? 1 : geometry.between(1, 8), limits.numa_nodes));
    // More in one run only costs time.
    while (plan.numa_nodes > 1 && plan.numa_nodes * (plan.chunks << plan.largest_order) > 12'000) --plan.numa_nodes;

    plan.processes = static_cast<unsigned>(up_to(people.between(1, 4), limits.processes));
    for (unsigned process = 0; process < 4; ++process)
        plan.threads.push_back(static_cast<unsigned>(up_to(people.between(1, 4), limits.threads)));
    plan.operations = static_cast<unsigned>(up_to(people.scaled(110) + 5, limits.operations));
    plan.rounds = static_cast<unsigned>(up_to(people.between(1, 3), limits.rounds));
    plan.steps = limits.steps != 0 ? limits.steps : 400'000;

    const auto weight = [&work](unsigned most) {
        return static_cast<unsigned>(work.one_in(4) ? 0 : work.below(most) + 1);
    };
    plan.work = {weight(20), weight(20), weight(20) + 4, weight(12), weight(8), weight(6),
                 weight(12), weight(8),  weight(14),     weight(6),  weight(3), 1};
    if (plan.work.allocate + plan.work.allocate_on == 0) plan.work.allocate_on = 10;
    plan.fill_percent = static_cast<unsigned>(work.one_in(3) ? work.between(90, 130) : work.between(5, 100));
    plan.wait_percent = static_cast<unsigned>(work.percent(50) ? work.below(60) : 0);
    plan.compact_percent = static_cast<unsigned>(work.percent(40) ? work.below(70) : 0);
    plan.strict_percent = static_cast<unsigned>(work.below(101));
    plan.order_spread = static_cast<unsigned>(work.below(4));
    plan.one_order = static_cast<unsigned>(work.below(plan.largest_order + 1));
    plan.fit = static_cast<unsigned>(work.one_in(4) ? work.between(1, 2) : 0);
    plan.checks_frees = work.one_in(8);
    plan.counts = work.one_in(5);

    const auto job = [&daemon](unsigned most) {
        return static_cast<unsigned>(daemon.one_in(3) ? 0 : daemon.below(most) + 1);
    };
    plan.daemon = {job(10), job(10), job(8), job(8), job(8), job(4), job(4), job(3), job(3), plan.counts ? job(5) : 0};
    plan.daemon_rest_ns = (daemon.scaled(20'000) + 50) * 100;
    plan.jobs = up_to(daemon.scaled(400), limits.jobs);
    plan.offline_percent = static_cast<unsigned>(daemon.one_in(3) ? daemon.below(60) : 0);
    plan.seizes = daemon.one_in(4);

    // What general plans meet too rarely: each of these has an eighth of the seeds.
    switch (theme) {
        case 0:  // memory is short, nearly all wait for it, and the daemon nudges all the time
            plan.wait_percent = 90;
            plan.fill_percent = 100;
            plan.compact_percent = 0;
            for (unsigned &threads : plan.threads)
                threads = static_cast<unsigned>(up_to(std::max(threads, 3U), limits.threads));
            plan.order_spread = 3;
            plan.work.allocate = 0;
            plan.work.allocate_on = 10;
            plan.work.free = 10;
            plan.work.free_bulk = 0;
            plan.work.bulk = plan.work.share = plan.work.publish = 0;
            plan.daemon = {2, 10, 0, 0, 0, 0, 0, 0, 0, 0};
            plan.daemon_rest_ns = daemon.scaled(40) * 100;
            plan.jobs = up_to(400, limits.jobs);
            plan.chunks = geometry.between(1, 3);
            plan.largest_order = std::min(plan.largest_order, 7U);
            plan.numa_nodes = std::min(plan.numa_nodes, 2U);
            plan.operations = std::max(plan.operations, 20U);
            plan.operations = static_cast<unsigned>(up_to(plan.operations, limits.operations));
            plan.work.free_uncached = 6;
            plan.one_order = plan.largest_order;
            break;
        case 1:  // the orders of upper words, a few of them
            plan.largest_order = static_cast<unsigned>(geometry.between(7, 10));
            plan.chunks = geometry.between(1, 3);
            plan.numa_nodes = 1;
            plan.order_spread = 3;
            plan.one_order = static_cast<unsigned>(geometry.between(7, plan.largest_order));
            plan.fill_percent = static_cast<unsigned>(work.between(70, 100));
            plan.work.free += 10;
            plan.work.free_bulk = 0;
            plan.work.stop = 0;
            plan.wait_percent = 0;
            for (unsigned &threads : plan.threads)
                threads = static_cast<unsigned>(up_to(std::max(threads, 3U), limits.threads));
            if (seed % 4 != 0) {
                // A few small blocks come and go in the chunks, of which one or another is always free.
                plan.held_max = 1;
                plan.order_spread = 4;
                plan.chunks = geometry.between(2, 5);
                plan.compact_percent = 0;
                plan.work.stop = static_cast<unsigned>(work.below(12));
                plan.work.allocate = plan.work.withdraw = plan.work.ask = 0;
                plan.work.allocate_on = 10;
                plan.daemon.drain = plan.daemon.offline = 0;
            }
            plan.operations = std::max(plan.operations, 30U);
            plan.operations = static_cast<unsigned>(up_to(plan.operations, limits.operations));
            plan.work.bulk = plan.work.share = plan.work.publish = plan.work.take = 0;
            break;
        case 2:  // several threads give away the same few blocks
            plan.work.publish = 20;
            plan.work.share = 2;
            plan.work.take = 20;
            plan.work.free += 10;
            plan.processes = std::max(plan.processes, 2U);
            plan.processes = static_cast<unsigned>(up_to(plan.processes, limits.processes));
            break;
        default:
            break;
    }

    // Roughly where operations will be: an allocation and its free are some 60 accesses.
    std::uint64_t threads = 0;
    for (unsigned process = 0; process < plan.processes; ++process) threads += plan.threads[process];
    const std::uint64_t expected = threads * plan.operations * plan.rounds * 60 + 2000;
    const std::uint64_t deaths = faults.percent(55) ? faults.scaled(6) : 0;
    for (std::uint64_t i = 0; i < deaths; ++i) plan.deaths.push_back(faults.below(expected));
    const std::uint64_t daemon_deaths = faults.percent(35) ? faults.scaled(4) : 0;
    for (std::uint64_t i = 0; i < daemon_deaths; ++i) plan.daemon_deaths.push_back(faults.below(expected));
    plan.point_deaths = static_cast<unsigned>(faults.percent(50) ? faults.scaled(4) : 0);
    plan.deaths.resize(static_cast<std::size_t>(up_to(plan.deaths.size(), limits.deaths)));
    plan.daemon_deaths.resize(static_cast<std::size_t>(up_to(plan.daemon_deaths.size(), limits.daemon_deaths)));
    plan.point_deaths = static_cast<unsigned>(up_to(plan.point_deaths, limits.deaths));
    std::sort(plan.deaths.begin(), plan.deaths.end());
    std::sort(plan.daemon_deaths.begin(), plan.daemon_deaths.end());

    SchedulePlan &schedule = plan.schedule;
    schedule.seed = seed * 1'000'003 + limits.schedule;
    schedule.steps_expected = expected;
    switch (faults.below(8)) {
        case 0:
        case 1:
            schedule.bias = Bias::uniform;
            break;
        case 2:
        case 3:
        case 4:
            schedule.bias = Bias::runs;
            break;
        case 5:
        case 6:
            schedule.bias = Bias::priorities;
            break;
        default:
            schedule.bias = Bias::starve;
    }
    // The thread that looks while others move is to be slow.
    if (theme == 1) schedule.bias = Bias::starve;
    schedule.mean_run = faults.scaled(200) + 1;
    schedule.changes = static_cast<unsigned>(faults.scaled(expected / 200 + 5));
    schedule.point_every = faults.percent(60) ? faults.scaled(400) + 5 : 0;
    schedule.spurious_every = faults.percent(40) ? faults.scaled(60) + 2 : 0;
    schedule.pause_every = faults.percent(60) ? faults.scaled(8000) + 100 : 0;
    schedule.pause_max = faults.scaled(60'000) + 10;
    if (faults.one_in(3)) schedule.points = faults.next() & faults.next();
    if (theme == 1 && seed % 4 != 0) {
        // Somebody stands still with a hint lowered; all others must look at the words.
        schedule.point_every = faults.between(1, 6);
        schedule.points = std::uint64_t{1} << static_cast<unsigned>(CrashPoint::hint_lowered);
        schedule.pause_max = faults.between(2000, 60'000);
        plan.point_deaths = 0;
    }
    if (theme == 1 && seed % 2 == 1) {
        // One small block fewer than chunks, on the move; and whoever wants a chunk meets one in each that it looks at.
        plan.chunks = 2 + seed / 4 % 2;
        plan.in_play_max = static_cast<unsigned>(plan.chunks);
        plan.operations =
            static_cast<unsigned>(up_to(400, limits.operations == Limits{}.operations ? 400 : limits.operations));
        plan.work = {};
        plan.work.allocate_on = 10;
        plan.work.free = 10;
        plan.work.stop = static_cast<unsigned>(faults.below(4));
        plan.daemon = {};
        plan.deaths.clear();
        plan.daemon_deaths.clear();
        schedule.point_every = 0;
        schedule.points = ~std::uint64_t{0};
        schedule.bias = Bias::runs;
        schedule.adversary = true;
    }
    if (limits.faults == 0) {
        schedule.spurious_every = schedule.pause_every = 0;
        if (plan.point_deaths == 0) schedule.point_every = 0;
    }
    schedule.steps_max = plan.steps + 6'000'000;
    // Objects. A stream of its own, at the end: nothing else of the seed changes.
    if (Random objects(seed, 7); plan.largest_order == 0 && objects.percent(75))
        plan.frame_bytes = static_cast<std::uint32_t>(engine::kObjectStepBytes * objects.between(1, 70));
    return plan;
}

std::string to_text(const Plan &plan) {
    char text[512];
    static constexpr const char *kBiases[] = {"uniform", "runs", "priorities", "starve"};
    unsigned threads = 0;
    for (unsigned process = 0; process < plan.processes; ++process) threads += plan.threads[process];
    std::snprintf(
        text, sizeof text,
        "%llu frames of %u bytes (%llu chunks of order %u) on each of %u numa nodes; %u processes, %u threads, %u x %u "
        "operations each; %zu deaths, %zu of the daemon, %u at named points; schedule %s (runs of %llu)",
        static_cast<unsigned long long>(plan.chunks << plan.largest_order), plan.frame_bytes,
        static_cast<unsigned long long>(plan.chunks), plan.largest_order, plan.numa_nodes, plan.processes, threads,
        plan.rounds, plan.operations, plan.deaths.size(), plan.daemon_deaths.size(), plan.point_deaths,
        kBiases[static_cast<unsigned>(plan.schedule.bias)], static_cast<unsigned long long>(plan.schedule.mean_run));
    return text;
}

}  // namespace numacre::simulation
