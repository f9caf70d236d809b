// The control socket: serves numacre.v1.Control, grpc.health.v1.Health and reflection. This header has no gRPC type.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <memory>
#include <string>

#include "control/control_gate.hpp"
#include "pool/pool_manager.hpp"

namespace numacre::daemon {

// Access to the socket. A user who may open the socket may do everything.
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

    // Listens on the socket, which at no moment is open to more users than `access` says. Replaces a socket that a dead
    // daemon left behind, but not a socket on which a process answers. May be called once. Sets the process's umask
    // while it runs: no other thread should create files then.
    Answer<void> start();

    // Ends streams and resizes (a resize after the chunk in hand), waits for the calls under way, removes the socket.
    // When stop() returns, no part of the server runs any more and no thread of it calls the pool manager. Harmless
    // when repeated; must not be called from inside an RPC.
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

// "unix:" and the path, escaped for gRPC's target syntax.
std::string socket_target(const std::string &socket_path);

}  // namespace numacre::daemon
