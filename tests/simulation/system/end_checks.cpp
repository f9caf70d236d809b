#include "end_checks.hpp"

#include <sys/mman.h>

namespace numacre::simulation {
namespace {

constexpr std::uint64_t kLookNs = 50'000'000;

}  // namespace

void EndChecks::finish() {
    run_.is_ending = true;
    run_.kernel.plan() = {};
    run_.kernel.plan().version = run_.plan.kernel.version;
    give_up_kept(daemon_.kept());
    trace("all clients have ended");
    const PoolReport report = wait_until_free();
    if (!report.is_there) fail("the pool is gone");
    if (report.is_corrupt) fail("the pool counts as damaged: %s", report.reason.c_str());
    if (report.free_frames != report.online_frames)
        fail("at the end %llu of %llu frames are free", static_cast<unsigned long long>(report.free_frames),
             static_cast<unsigned long long>(report.online_frames));
    check_slots();
    run_.is_over = true;
    run_.scheduler.wake_all(key_of(&run_.is_over));
    for (const Program &program : run_.programs)
        while (run_.kernel.process(program.process).is_alive) run_.rest(kLookNs);
    run_.rest(10'000'000'000);  // closes and late timers
    if (run_.kernel.process(daemon_.process()).fds.size() != daemon_.face().files_when_idle)
        fail("at the end the daemon has %zu descriptors instead of %zu",
             run_.kernel.process(daemon_.process()).fds.size(), daemon_.face().files_when_idle);
    daemon_.stop();
    if (!daemon_.kept().files.empty())
        fail("at the end %zu descriptors are kept for nobody", daemon_.kept().files.size());
    if (run_.kernel.memory_files() != 0)
        fail("at the end %zu memfds have not gone back to the machine", run_.kernel.memory_files());
}

// By the daemon's own account. The report is the last one.
PoolReport EndChecks::wait_until_free() {
    constexpr unsigned kLooksMax = 2000;
    constexpr unsigned kFullLooksMax = 50;
    PoolReport report;
    unsigned full_looks = 0, free_looks = 0;
    for (unsigned look = 0;; ++look) {
        if (look == kLooksMax) {
            fail("clients that have ended, or let go, are still there after %llu s:%s; %s",
                 static_cast<unsigned long long>(kLooksMax * kLookNs / 1'000'000'000), report.table.c_str(),
                 daemon_.is_serving() ? "the daemon serves" : "no daemon serves");
            return report;
        }
        if (!daemon_.lives()) {
            daemon_.forget_jobs();
            daemon_.start();
        }
        run_.rest(kLookNs);
        if (!daemon_.is_serving()) continue;
        report = {};
        bool is_there = false;
        daemon_.begin_job([this, &report, &is_there] {
            report = ask_daemon(daemon_.face());
            is_there = true;
            run_.tell_director();
        });
        while (!is_there) run_.rest(kLookNs);
        // One report is not of one moment: what it finds in use may have been freed since.
        if (report.clients == 0 && report.quarantined_bytes == 0 && daemon_.jobs_running() <= 0 &&
            (report.free_frames == report.online_frames || ++full_looks > kFullLooksMax) &&
            ++free_looks > 1)  // the last client's seat is given back after it has left the table
            return report;
    }
}

// In the shared memory itself.
void EndChecks::check_slots() {
    const auto found = daemon_.kept().files.find("default/pool");
    if (found == daemon_.kept().files.end()) return;
    const std::uint64_t bytes = found->second->bytes;
    void *const place = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, found->second->real_fd, 0);
    if (place == MAP_FAILED) return;
    const Pool pool = Pool::at(place, run_.plan.daemon.max_clients + 1, run_.plan.daemon.max_threads + 1);
    for (std::uint32_t thread = 1; thread < pool.thread_slots; ++thread)
        if (pool.threads[thread].owner.load() != 0) {
            fail("at the end thread slot %u is not free", thread);
            break;
        }
    for (std::uint32_t slot = 1; slot <= run_.plan.daemon.max_clients; ++slot)
        if (pool.processes[slot].state.load() != static_cast<std::uint64_t>(ProcessState::free)) {
            fail("at the end seat %u is not free", slot);
            break;
        }
    ::munmap(place, bytes);
}

}  // namespace numacre::simulation
