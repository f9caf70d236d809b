// The director: it starts and ends everybody, and has the daemon do what the control plane may ask.
#pragma once

#include "client_life.hpp"

namespace numacre::simulation {

class Director {
public:
    Director(Run &run, DaemonControl &daemon, Promises &promises, ClientLife &life)
        : run_(run), daemon_(daemon), promises_(promises), life_(life) {}

    // Until all clients have been started, and have ended or let go of everything.
    void direct();

private:
    unsigned living_clients() const;
    void start_client();
    void one_job();

    Run &run_;
    DaemonControl &daemon_;
    Promises &promises_;
    ClientLife &life_;
};

}  // namespace numacre::simulation
