// The end of a run, after all clients have ended: their memory is free again, soon; then the daemon ends, and nothing
// is left.
#pragma once

#include "daemon_control.hpp"

namespace numacre::simulation {

class EndChecks {
public:
    EndChecks(Run &run, DaemonControl &daemon) : run_(run), daemon_(daemon) {}

    // By the director.
    void finish();

private:
    PoolReport wait_until_free();
    void check_slots();

    Run &run_;
    DaemonControl &daemon_;
};

}  // namespace numacre::simulation
