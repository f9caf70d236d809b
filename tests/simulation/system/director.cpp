#include "director.hpp"

#include <algorithm>

namespace numacre::simulation {

void Director::direct() {
    unsigned to_start = run_.plan.processes, jobs = run_.plan.jobs, reserves = run_.plan.reserves;
    daemon_.start();
    if (run_.plan.is_clean)
        while (!daemon_.is_serving()) run_.rest(run_.plan.rest_ns);
    std::uint64_t pause_ns = run_.plan.rest_ns;
    while (to_start != 0 || living_clients() != 0) {
        const unsigned left = to_start + jobs + reserves;
        give_up_kept(daemon_.kept());
        if (!daemon_.lives()) {
            daemon_.forget_jobs();
            if (run_.plan.daemon_away_ns != 0) run_.rest(run_.random.below(run_.plan.daemon_away_ns));
            daemon_.start();
        }
        if (to_start != 0 && living_clients() < run_.plan.together) {
            start_client();
            --to_start;
        }
        if (jobs != 0 && run_.random.one_in(2)) {
            --jobs;
            one_job();
        }
        if (reserves != 0 && run_.random.one_in(2)) {
            --reserves;
            promises_.reserve_some();
        }
        // Seldom, while there is nothing to do.
        constexpr std::uint64_t kPauseMaxNs = 200'000'000;
        pause_ns =
            left != to_start + jobs + reserves ? run_.plan.rest_ns : std::min(kPauseMaxNs, pause_ns + pause_ns / 8);
        run_.rest(run_.random.below(2 * pause_ns));
    }
}

unsigned Director::living_clients() const {
    unsigned count = 0;
    for (const Program &program : run_.programs)
        if (run_.kernel.process(program.process).is_alive && !program.has_nothing) ++count;
    return count;
}

void Director::start_client() {
    const int id = run_.kernel.start_process("app", run_.random.one_in(2) ? kUid : 0, true);
    Program &program = run_.programs.emplace_back();
    program.process = id;
    const bool is_strange = run_.random.percent(run_.plan.stranger_percent);
    run_.scheduler.spawn(id, [this, at = run_.programs.size() - 1, is_strange] {
        if (is_strange)
            life_.run_stranger(at);
        else
            life_.run_client(at);
    });
}

void Director::one_job() {
    unsigned kind =
        run_.random.below(100 + run_.plan.stop_percent) < 100 ? static_cast<unsigned>(run_.random.below(6)) : 6;
    if (run_.random.percent(run_.plan.sizing_percent)) kind = run_.random.one_in(2) ? 2 : 3;
    switch (kind) {
        case 0:
        case 1:
            daemon_.begin_job([this] { (void)ask_daemon(daemon_.face()); });
            break;
        case 2: {
            const std::uint64_t unit = std::max<std::uint64_t>(run_.plan.daemon.largest_block_bytes, 4096);
            const std::uint64_t to = unit * run_.random.between(0, run_.plan.daemon.capacity_bytes / unit);
            const auto numa_node = static_cast<unsigned>(run_.random.below(run_.plan.daemon.numa_nodes));
            daemon_.begin_job([this, to, numa_node] { resize_pool(daemon_.face(), numa_node, to); });
            break;
        }
        case 3: {
            const std::uint64_t chunk =
                run_.random.below(run_.plan.daemon.capacity_bytes / run_.plan.daemon.largest_block_bytes);
            const auto numa_node = static_cast<unsigned>(run_.random.below(run_.plan.daemon.numa_nodes));
            const bool undo = run_.random.one_in(2);
            daemon_.begin_job([this, chunk, numa_node, undo] { drain_chunk(daemon_.face(), numa_node, chunk, undo); });
            break;
        }
        case 4:
            daemon_.begin_job([this] { evict_someone(daemon_.face(), run_.random); });
            break;
        case 5:
            daemon_.begin_job([this] {
                set_some_quota(daemon_.face(), run_.random,
                               run_.random.one_in(2) ? 0 : run_.random.below(run_.plan.daemon.capacity_bytes));
            });
            break;
        default:
            if (daemon_.jobs_running() == 0) daemon_.stop();
    }
}

}  // namespace numacre::simulation
