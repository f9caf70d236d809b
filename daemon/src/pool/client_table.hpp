// The seats of a pool: the client at each process slot, with what the ledger keeps of it for the next daemon.
// Thread-safe: the lock is never held by who touches shared memory, so the event loop asks as well. A seat is taken and
// left by who holds the pool's record lock: with that held, nobody comes or goes.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/failure.hpp"
#include "base/thread_safety.hpp"
#include "engine.hpp"
#include "memory/ledger.hpp"
#include "pool/client.hpp"
#include "spec/pool_config.hpp"

namespace numacre::daemon {

class ClientTable {
public:
    // Both outlive the table.
    ClientTable(const PoolSpec &spec, PoolLedger &ledger);
    ClientTable(const ClientTable &) = delete;
    ClientTable &operator=(const ClientTable &) = delete;

    // Process slots, the daemon's included.
    std::uint32_t slots() const { return slots_; }

    // Takes over the clients that sat here before the daemon's start, as the ledger says.
    void adopt();

    // The client sits here before shared memory says so, and nobody else can be given the slot. no_such_pool: the door
    // is closed; too_many_clients: there is no seat, or none for observers.
    Answer<Client> take_seat(std::uint32_t client_id, Peer peer, wire::Tier tier);
    // In the ledger, before the client can have the memory: a daemon after us must know of it.
    void enter(const Client &client);
    // Nothing is left of the client. False: nobody sits there. recovery_seconds 0: there was nothing to recover.
    bool leave(ProcessSlot slot, Departure departure, std::uint64_t reclaimed_bytes, double recovery_seconds);

    // No new clients from now on. False: there are clients and force is not set, nothing has changed. Or it is closed
    // already.
    bool close_door(bool force);
    void open_door();
    bool is_closed() const;

    void set_state(ProcessSlot slot, ClientState state);
    // The daemon before us had lost sight of its process, or we have found out more about it.
    void set_peer(const Client &client, const Peer &peer);
    // From now on it counts as dead for a daemon after us.
    void begin_departure(ProcessSlot slot, Departure departure);
    // Its recovery is blocked by that client.
    void note_wait(ProcessSlot slot, std::uint32_t for_client_id);

    std::vector<Client> all() const;
    std::optional<Client> find(std::uint32_t client_id) const;
    // Nothing: nobody sits there, or there is no such slot.
    std::optional<Client> at(ProcessSlot slot) const;
    std::vector<ProcessSlot> seated() const;
    // No client sits at this process slot or beyond.
    std::uint32_t seats() const;
    // By process slot: an odd number while somebody sits there, another one after each change.
    std::vector<std::uint64_t> versions() const;

    struct Figures {
        std::uint32_t clients = 0;
        std::uint32_t waiting_recoveries = 0;
        std::uint64_t reaped = 0;  // died with or without blocks
        std::uint64_t reclaimed_bytes = 0;
        double last_recovery_seconds = 0;
    };
    Figures figures() const;

private:
    const PoolSpec &spec_;
    PoolLedger &ledger_;
    const std::uint32_t slots_;
    mutable Mutex mutex_;
    std::vector<std::optional<Client>> clients_ NUMACRE_GUARDED_BY(mutex_);  // by process slot
    std::vector<std::uint64_t> versions_ NUMACRE_GUARDED_BY(mutex_);         // by process slot
    std::uint32_t seats_ NUMACRE_GUARDED_BY(mutex_) = 0;
    std::uint32_t free_from_ NUMACRE_GUARDED_BY(mutex_) = 1;  // every process slot before it is taken
    bool is_closed_ NUMACRE_GUARDED_BY(mutex_) = false;
    Figures figures_ NUMACRE_GUARDED_BY(mutex_);  // waiting_recoveries is counted when asked for
};

}  // namespace numacre::daemon
