// The life of a client's process: it attaches, its threads work, it forks, replaces its program, detaches or ends.
#pragma once

#include "daemon_control.hpp"
#include "thread_work.hpp"

namespace numacre::simulation {

class ClientLife {
public:
    ClientLife(Run &run, Sessions &sessions, ThreadWork &work, DaemonControl &daemon)
        : run_(run), sessions_(sessions), work_(work), daemon_(daemon) {}

    // at: of Run::programs. By the first thread of the process; these do not return.
    void run_client(std::size_t at);
    void run_stranger(std::size_t at);

private:
    bool attach_one(Program &program);
    void open_events(const Handle &handle);
    void pin_or_unpin(Program &program);
    void unpin(Program &program);
    void start_threads(std::size_t at);
    void work_in_first_thread(std::size_t at);
    void run_thread(std::size_t at, unsigned operations, bool lingers);
    void end_thread();
    void fork_child(std::size_t at);
    void try_stale(Program &program);
    void replace_program(Program &program);
    void detach_all(Program &program);
    void live_on(Program &program);

    void check_thread_slots(const Program &program) const;
    void check_nothing_left(const Program &program, std::size_t files_before) const;

    Run &run_;
    Sessions &sessions_;
    ThreadWork &work_;
    DaemonControl &daemon_;
    unsigned forks_ = 0, execs_ = 0;
};

}  // namespace numacre::simulation
