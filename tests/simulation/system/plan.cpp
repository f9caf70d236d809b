#include "plan.hpp"

#include <algorithm>

#include "numacre/shm/env.hpp"
#include "numacre/shm/geometry.hpp"

namespace numacre::simulation {

SystemPlan make_system_plan(std::uint64_t seed, const SystemLimits &limits) {
    SystemPlan plan;
    plan.seed = seed;
    const auto at_most = [](std::uint64_t drawn, std::uint64_t limit) {
        return static_cast<unsigned>(std::min(drawn, limit));
    };
    Random shape(seed, 101);
    constexpr std::uint64_t kPage = 4096;
    plan.daemon.frame_bytes = std::uint64_t{256} << shape.below(5);
    plan.daemon.largest_block_bytes = plan.daemon.frame_bytes << shape.below(5);
    const std::uint64_t unit = std::max(plan.daemon.largest_block_bytes, kPage);
    const std::uint64_t units = shape.between(1, 6);
    plan.daemon.capacity_bytes = unit * units;
    plan.daemon.online_bytes = unit * (shape.one_in(3) ? shape.between(1, units) : units);
    plan.daemon.numa_nodes = shape.one_in(3) ? 2 : 1;
    plan.daemon.max_clients = static_cast<unsigned>(shape.one_in(3) ? shape.between(1, 3) : shape.between(4, 9));
    plan.daemon.max_threads = static_cast<unsigned>(shape.one_in(4) ? shape.between(2, 5) : shape.between(6, 30));
    plan.daemon.max_threads_per_client =
        std::min(plan.daemon.max_threads, static_cast<unsigned>(shape.one_in(5) ? shape.between(1, 3) : 0));
    plan.daemon.reclaim = static_cast<unsigned>(shape.one_in(3) ? shape.below(3) : 0);
    plan.daemon.fit = static_cast<unsigned>(shape.one_in(4) ? shape.below(3) : 0);
    plan.daemon.quota_bytes = shape.one_in(4) ? unit * shape.between(1, shape.one_in(2) ? units : 1 + units / 4) : 0;

    Random who(seed, 102);
    plan.processes = at_most(who.between(1, 10), limits.processes);
    plan.together = at_most(who.between(1, 5), limits.together);
    plan.threads = at_most(who.below(4), limits.threads);
    plan.operations = at_most(1 + who.scaled(60), limits.operations);
    plan.rounds = at_most(who.between(1, 3), limits.rounds);
    plan.handles = at_most(who.one_in(3) ? 2 : 1, limits.handles);
    plan.forks = at_most(who.one_in(3) ? who.between(1, 6) : 0, limits.forks);
    plan.execs = at_most(who.one_in(4) ? who.between(1, 4) : 0, limits.execs);

    Random what(seed, 103);
    plan.fork_percent = static_cast<unsigned>(what.between(1, 20));
    plan.exec_percent = static_cast<unsigned>(what.between(1, 30));
    plan.close_from_percent = what.one_in(3) ? static_cast<unsigned>(what.between(10, 60)) : 0;
    plan.event_percent = what.one_in(3) ? static_cast<unsigned>(what.between(10, 90)) : 0;
    plan.leave_percent = static_cast<unsigned>(what.one_in(3) ? what.between(10, 90) : 10);
    plan.publish_percent = static_cast<unsigned>(what.one_in(2) ? what.between(0, 40) : 5);
    plan.take_percent = plan.publish_percent;
    plan.wait_percent = static_cast<unsigned>(what.one_in(4) ? what.between(5, 60) : 0);
    plan.uncached_percent = static_cast<unsigned>(what.below(60));
    plan.bulk_percent = static_cast<unsigned>(what.one_in(3) ? what.between(5, 40) : 0);
    plan.stranger_percent = static_cast<unsigned>(what.one_in(3) ? what.between(5, 50) : 0);
    plan.stop_percent = static_cast<unsigned>(what.one_in(3) ? 20 : 2);
    plan.jobs = at_most(what.one_in(2) ? what.scaled(40) : 0, limits.jobs);
    plan.rest_ns = std::uint64_t{1000} << what.below(12);
    plan.daemon_away_ns = what.one_in(2) ? 0 : std::uint64_t{10'000} << what.below(20);

    Random pins(seed, 108);
    if (pins.one_in(3)) {
        plan.pin_percent = static_cast<unsigned>(pins.between(10, 90));
        // Pools that change their size under the pins.
        if (pins.one_in(2)) {
            plan.jobs = at_most(pins.between(10, 40), limits.jobs);
            plan.sizing_percent = 100;
            plan.operations = at_most(pins.between(20, 80), limits.operations);
        }
    }

    if (pins.one_in(4)) {
        plan.is_of_a_group = true;
        plan.publish_percent = plan.take_percent = static_cast<unsigned>(pins.between(5, 40));
    }

    // Full pools that change their size, where those who want more are not those who were promised it.
    Random promises(seed, 107);
    const bool is_about_promises = promises.one_in(4) && limits.reserves != 0;
    if (is_about_promises) {
        plan.reserves = at_most(promises.between(2, 60), limits.reserves);
        plan.jobs = at_most(promises.one_in(4) ? 0 : promises.between(5, 40), limits.jobs);
        plan.sizing_percent = static_cast<unsigned>(promises.below(100));
        plan.threads = promises.one_in(3) ? plan.threads : 0;
        plan.operations = at_most(promises.between(20, 60), limits.operations);
        plan.publish_percent = plan.take_percent = promises.one_in(4) ? plan.publish_percent : 0;
        plan.hoard = static_cast<unsigned>(promises.between(kUsualHoard + 1, 100));
        // Chunks of more than 64 frames have drain bits.
        std::uint64_t largest = unit;
        if (promises.one_in(2)) {
            plan.daemon.frame_bytes = std::uint64_t{256} << promises.below(2);
            largest = plan.daemon.largest_block_bytes = plan.daemon.frame_bytes << 7;
            largest = std::max(largest, kPage);
            plan.hoard = static_cast<unsigned>(promises.between(100, 300));
            plan.operations = at_most(promises.between(40, 200), limits.operations);
            plan.daemon.capacity_bytes = largest * units;
            plan.daemon.online_bytes = largest * (promises.one_in(3) ? promises.between(1, units) : units);
        }
        plan.daemon.capacity_bytes = std::min(plan.daemon.capacity_bytes, largest * 3);
        plan.daemon.online_bytes = std::min(plan.daemon.online_bytes, plan.daemon.capacity_bytes);
        // More than there is: it refuses nothing, and all count from the beginning. Promises are checked then only.
        plan.daemon.quota_bytes = promises.one_in(4) ? 0 : 4 * plan.daemon.capacity_bytes * plan.daemon.numa_nodes;
        plan.together = std::max(2U, plan.together);
    }

    // Objects. Those who are promised something count frames of chunks that come and go.
    if (Random objects(seed, 108); !is_about_promises && objects.one_in(6)) {
        DaemonPlan &daemon = plan.daemon;
        daemon.object_bytes = 64 * objects.between(1, 40);
        daemon.object_count = objects.between(1, objects.one_in(2) ? 20 : 400);
        daemon.frame_bytes = daemon.largest_block_bytes = engine::object_stride(daemon.object_bytes, true);
        daemon.capacity_bytes = daemon.online_bytes = daemon.frame_bytes * daemon.object_count;
        daemon.reclaim = daemon.reclaim == 1 ? 0 : daemon.reclaim;  // not zero
        if (daemon.quota_bytes != 0) daemon.quota_bytes = daemon.frame_bytes * objects.between(1, daemon.object_count);
    }

    Random runs(seed, 109);
    plan.run_percent = static_cast<unsigned>(runs.one_in(5) ? runs.between(3, 40) : 0);

    Random fate(seed, 104);
    const bool is_calm = fate.one_in(6) || (is_about_promises && fate.one_in(3));
    const std::uint64_t steps = 2000 + std::uint64_t{400} * plan.processes * plan.operations;
    const unsigned deaths = at_most(is_calm || fate.one_in(3) ? 0 : fate.between(1, 6), limits.deaths);
    for (unsigned i = 0; i < deaths; ++i) plan.deaths.push_back(fate.scaled(steps));
    const unsigned daemon_deaths = at_most(is_calm || fate.one_in(3) ? 0 : fate.between(1, 5), limits.daemon_deaths);
    for (unsigned i = 0; i < daemon_deaths; ++i) plan.daemon_deaths.push_back(fate.scaled(steps));
    std::sort(plan.deaths.begin(), plan.deaths.end());
    std::sort(plan.daemon_deaths.begin(), plan.daemon_deaths.end());
    if (!is_calm && fate.one_in(2)) {
        plan.kernel.kill_client_every = fate.between(5, 400);
        plan.call_deaths = at_most(fate.between(1, 6), limits.deaths);
    }
    if (!is_calm && fate.one_in(2)) {
        plan.kernel.kill_daemon_every = fate.between(10, 600);
        plan.call_daemon_deaths = at_most(fate.between(1, 5), limits.daemon_deaths);
        plan.orphan_percent = static_cast<unsigned>(fate.one_in(2) ? fate.between(10, 80) : 0);
    }

    Random faults(seed, 105);
    plan.kernel.version = static_cast<KernelPlan::Version>(faults.below(3));
    plan.kernel.has_userfaultfd = faults.one_in(2);
    const auto rate = [&](std::uint64_t usual) {
        return !is_calm && limits.faults != 0 && faults.one_in(4) ? usual + faults.scaled(20 * usual) : 0;
    };
    plan.kernel.emfile_every = rate(4);
    plan.kernel.enomem_every = rate(10);
    plan.kernel.enospc_every = rate(4);
    plan.kernel.interrupt_every = rate(3);
    plan.kernel.stall_every = rate(3);
    if (!is_calm && limits.faults != 0) {
        if (faults.one_in(3)) plan.kernel.hidden_percent = static_cast<unsigned>(faults.between(5, 95));
        plan.kernel.has_proc_of_strangers = faults.one_in(12);
        if (faults.one_in(4)) plan.squeeze_percent = static_cast<unsigned>(faults.between(5, 60));
        if (faults.one_in(2)) {
            plan.schedule.pause_every = 1000 + faults.scaled(50'000);
            plan.schedule.pause_max = 100 + faults.scaled(60'000);
        }
    }
    if (!is_calm && fate.one_in(3)) plan.schedule.point_every = 1 + fate.scaled(3000);
    plan.daemon.may_lack_memory = plan.kernel.enospc_every != 0 || plan.kernel.enomem_every != 0;
    plan.is_clean = is_calm && plan.forks == 0 && plan.execs == 0 && plan.close_from_percent == 0 && plan.jobs == 0 &&
                    plan.reserves == 0 && plan.stranger_percent == 0 &&
                    plan.daemon.max_clients > plan.processes * plan.handles * plan.rounds;

    Random order(seed, 106 + 1000 * limits.schedule);
    plan.schedule.seed = order.next();
    plan.schedule.bias = static_cast<Bias>(order.below(4));
    plan.schedule.mean_run = 1 + order.scaled(300);
    plan.schedule.changes = static_cast<unsigned>(order.below(30));
    plan.schedule.steps_expected = steps;
    plan.schedule.spurious_every = limits.faults != 0 && order.one_in(2) ? 20 + order.scaled(500) : 0;
    plan.schedule.steps_max = 8'000'000;
    plan.schedule.step_ns = std::uint64_t{50} << order.below(9);
    return plan;
}

std::string to_text(const SystemPlan &plan) {
    const auto number = [](std::uint64_t value) { return std::to_string(value); };
    return number(plan.daemon.capacity_bytes) + " bytes in frames of " + number(plan.daemon.frame_bytes) +
           " on each of " + number(plan.daemon.numa_nodes) + " numa nodes; " + number(plan.daemon.max_clients) +
           " seats, " + number(plan.processes) + " processes, " + number(plan.together) + " at once, of " +
           number(1 + plan.threads) + " threads, " + number(plan.rounds) + " rounds of " + number(plan.operations) +
           " operations; kernel " + number(static_cast<std::uint64_t>(plan.kernel.version)) + "; deaths " +
           number(plan.deaths.size()) + "+" + number(plan.call_deaths) + ", of daemons " +
           number(plan.daemon_deaths.size()) + "+" + number(plan.call_daemon_deaths);
}

}  // namespace numacre::simulation
