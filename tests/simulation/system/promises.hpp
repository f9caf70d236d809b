// Reservations: they are made and changed while clients work, and who has been promised memory is not refused it.
#pragma once

#include "daemon_control.hpp"
#include "sessions.hpp"

namespace numacre::simulation {

class Promises {
public:
    Promises(Run &run, Sessions &sessions, DaemonControl &daemon) : run_(run), sessions_(sessions), daemon_(daemon) {}

    // For a client, or all of a user: more than before, less, or nothing any more.
    void reserve_some();
    void note_daemon_death() { is_reserving_ = false; }

    // Of a refusal. Only where all have counted from the beginning: a call that is under way when the first limit is
    // set may leave a count wrong until the daemon corrects it. Only where nothing but the call itself has changed what
    // the client holds; a block that is handed on is not given back, so nobody can want it again.
    struct Asked {
        std::uint64_t promised_bytes = 0;
        unsigned promises = 0;
        bool is_alone = false;
    };
    Asked before_asking(const Program &program, const Handle &handle) const;
    void check(const Handle &handle, const Asked &before, unsigned frames) const;
    // The memory that was promised to the giver of a block has gone to somebody else, who may keep it: it may be
    // missing to anybody.
    void note_take_from(int giver);

private:
    std::uint64_t frames_held(const Handle &handle) const;

    Run &run_;
    Sessions &sessions_;
    DaemonControl &daemon_;
    bool is_reserving_ = false;
};

}  // namespace numacre::simulation
