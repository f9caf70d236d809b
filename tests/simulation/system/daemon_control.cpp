#include "daemon_control.hpp"

#include <utility>

namespace numacre::simulation {

void DaemonControl::start() {
    ++run_.result.daemons;
    face_ = {};
    process_ = run_.kernel.start_process("numacred", 0, false);
    is_stopping_ = false;
    run_.scheduler.spawn(process_, [this] {
        run_daemon(face_, run_.plan.daemon, kept_);
        const int id = run_.kernel.current().id;
        if (run_.kernel.current().fds.size() != 0 || !run_.kernel.current().in_flight.empty()) {
            if (!face_.could_not_start)
                fail("a daemon that has ended well leaves %zu descriptors open", run_.kernel.current().fds.size());
        }
        if (!run_.kernel.current().mappings.empty()) fail("a daemon that has ended well leaves memory mapped");
        if (id == process_) {
            process_ = -1;
            is_stopping_ = false;
        }
        run_.kernel.exit_process();
    });
}

void DaemonControl::stop() {
    if (!lives() || !face_.is_serving) return;
    is_stopping_ = true;
    trace("the daemon is to end");
    stop_daemon(face_);
    while (lives()) run_.rest(1'000'000);
}

void DaemonControl::note_death() {
    face_ = {};
    process_ = -1;
    is_stopping_ = false;
}

void DaemonControl::begin_job(std::function<void()> job) {
    if (!takes_jobs()) return;
    ++jobs_running_;
    run_.scheduler.spawn(process_, [this, job = std::move(job)] {
        job();
        --jobs_running_;
        run_.tell_director();
    });
}

}  // namespace numacre::simulation
