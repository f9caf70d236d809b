// A client of a pool, as the daemon knows it. The daemon writes the client's record in shared memory, and never reads
// it back.
#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>

#include "base/failure.hpp"
#include "engine.hpp"
#include "numacre/shm/attach_wire.hpp"
#include "numacre/shm/units.hpp"
#include "os/process_info.hpp"

namespace numacre::daemon {

enum class ClientState : std::uint8_t {
    active,
    adopted,     // it sat here before the daemon restarted; it has no connection
    detaching,   // it has asked to detach, and has unmapped the pool
    lost,        // its connection is gone, the process may still use the memory
    recovering,  // it has ended; its blocks are being taken back
    // It has ended; devices may still write to what is left of its blocks, or its group may adopt them, so that these
    // stay its own for a while.
    quarantined,
};
std::string_view client_state_name(ClientState state);

// The answer to requests about a client id that no pool has.
Failure no_such_client(std::uint32_t client_id);

// The way in which a client left.
enum class Departure : std::uint8_t { detached, died, unmapped };

struct Client {
    std::uint32_t id = 0;
    ProcessSlot slot;
    std::uint64_t generation = 0;
    std::uint64_t seat_version = 0;  // version of its slot: see ClientTable::versions()
    Peer peer;
    wire::Tier tier = wire::Tier::trusted;
    std::chrono::system_clock::time_point attached;
    ClientState state = ClientState::active;
    std::uint32_t waits_for = 0;  // id of the client that blocks its recovery; 0: nobody
};

// The client has let go of the memory, or has ended.
inline bool has_departed(const Client &client) {
    return client.state == ClientState::detaching || client.state == ClientState::recovering ||
           client.state == ClientState::quarantined;
}

}  // namespace numacre::daemon
