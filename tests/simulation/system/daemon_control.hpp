// The daemon's process as the director has it: started, asked by threads of its own, ended as systemd would.
#pragma once

#include <functional>

#include "run.hpp"

namespace numacre::simulation {

class DaemonControl {
public:
    explicit DaemonControl(Run &run) : run_(run) {}

    void start();
    // It is to end; returns when it has. Nothing happens while it does not serve.
    void stop();
    void kill() { run_.kernel.kill(process_); }
    // Its process has ended, in whatever way.
    void note_death();

    bool lives() const { return process_ >= 0; }
    int process() const { return process_; }  // -1: there is none
    bool is_serving() const { return face_.is_serving; }
    bool takes_jobs() const { return lives() && face_.is_serving && !is_stopping_; }

    // As the control plane would, by a thread of the daemon's own. Nothing happens if it takes no jobs.
    void begin_job(std::function<void()> job);
    int jobs_running() const { return jobs_running_; }
    void forget_jobs() { jobs_running_ = 0; }

    DaemonFace &face() { return face_; }
    Kept &kept() { return kept_; }

private:
    Run &run_;
    DaemonFace face_;
    Kept kept_;
    int process_ = -1;
    bool is_stopping_ = false;
    int jobs_running_ = 0;
};

}  // namespace numacre::simulation
