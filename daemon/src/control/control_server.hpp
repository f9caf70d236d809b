// The control socket: numacre.v1.Control, grpc.health.v1.Health and reflection. No gRPC type in here.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <memory>
#include <string>

#include "control/control_gate.hpp"
#include "pool/pool_manager.hpp"

namespace numacre::daemon {

// Of the socket: who may open it, may do everything.
struct ControlAccess {
    std::uint32_t group = ::getegid();
    std::uint32_t mode = 0660;
};

class ControlServer {
public:
    // pools must outlive the server.
    ControlServer(PoolManager &pools, std::string socket_path, ControlAccess access = {}, ControlLimits limits = {});
    ~ControlServer();
    ControlServer(const ControlServer &) = delete;
    ControlServer &operator=(const ControlServer &) = delete;

    // Listens on the socket, which at no moment is open to more than `access` says. A socket that a dead daemon left
    // behind is replaced; one that somebody answers on is not. Once only. Sets the process's umask for as long as it
    // takes: no other thread should be making files.
    Answer<void> start();

    // Ends streams and resizes (these after the chunk in hand), waits for the calls under way, removes the socket. When
    // it returns nothing of the server runs any more and nobody calls the pool manager. Harmless when repeated; not to
    // be called from inside an RPC.
    void stop();

private:
    struct Side;
    struct Running;

    PoolManager &pools_;
    const std::string socket_path_;
    const ControlAccess access_;
    const ControlLimits limits_;
    std::unique_ptr<Running> running_;
};

// "unix:" and the path, escaped as gRPC's target syntax wants it.
std::string socket_target(const std::string &socket_path);

}  // namespace numacre::daemon
