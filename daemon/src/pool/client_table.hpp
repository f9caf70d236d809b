// The seats of a pool: the client at each process slot, and the part of its state that the ledger keeps for the next
// daemon. Thread-safe: no thread touches shared memory while it holds the lock, so the event loop may call as well. A
// thread holds the pool's record lock when it takes or leaves a seat: with that lock held, nobody comes or goes.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/failure.hpp"
#include "base/thread_safety.hpp"
#include "engine.hpp"
#include "memory/ledger.hpp"
#include "pool/client.hpp"
#include "pool/description.hpp"

namespace numacre::daemon {

class ClientTable {
public:
    // description and ledger outlive the table.
    ClientTable(const Description &description, PoolLedger &ledger);
    ClientTable(const ClientTable &) = delete;
    ClientTable &operator=(const ClientTable &) = delete;

    // The number of process slots, the daemon's included.
    std::uint32_t slots() const { return slots_; }

    // Takes over the clients that sat here before the daemon's start, as the ledger says.
    void adopt();

    // Seats the client, before shared memory says so. From then on no other client can be given the slot. no_such_pool:
    // the door is closed. too_many_clients: no seat is free, or none for observers.
    Answer<Client> take_seat(std::uint32_t client_id, Peer peer, wire::Tier tier);
    // Writes the client into the ledger, before the client can have the memory: the next daemon must know of it.
    void enter(const Client &client);
    // Frees the seat when nothing is left of the client. False: nobody sits there. recovery_seconds 0: there was
    // nothing to recover.
    bool leave(ProcessSlot slot, Departure departure, std::uint64_t reclaimed_bytes, double recovery_seconds);

    // Lets no new clients in from now on. False: there are clients and force is not set, or the door is closed already;
    // nothing has changed.
    // already.
    bool close_door(bool force);
    void open_door();
    bool is_closed() const;

    void set_state(ProcessSlot slot, ClientState state);
    // Sets the process that the daemon has found for the client: an earlier daemon had lost sight of the process,
    // or more is known about it now.
    void set_peer(const Client &client, const Peer &peer);
    // From now on the client counts as dead for the next daemon.
    void begin_departure(ProcessSlot slot, Departure departure);
    // Notes that the client with this id blocks the recovery of the client in the slot.
    void note_wait(ProcessSlot slot, std::uint32_t for_client_id);

    std::vector<Client> all() const;
    std::optional<Client> find(std::uint32_t client_id) const;
    // Nothing: nobody sits there, or the slot does not exist.
    std::optional<Client> at(ProcessSlot slot) const;
    std::vector<ProcessSlot> seated() const;
    // The lowest slot such that no client sits at this slot or beyond.
    std::uint32_t seats() const;
    // By process slot: an odd number while somebody sits there. The number changes with each arrival and departure.
    std::vector<std::uint64_t> versions() const;

    struct Figures {
        std::uint32_t clients = 0;   // processes
        std::uint32_t channels = 0;  // seats of channels
        std::uint32_t waiting_recoveries = 0;
        std::uint64_t reaped = 0;  // died with or without blocks
        std::uint64_t reclaimed_bytes = 0;
        double last_recovery_seconds = 0;
    };
    Figures figures() const;

private:
    const Description &description_;
    PoolLedger &ledger_;
    const std::uint32_t slots_;
    mutable Mutex mutex_;
    std::vector<std::optional<Client>> clients_ NUMACRE_GUARDED_BY(mutex_);  // by process slot
    std::vector<std::uint64_t> versions_ NUMACRE_GUARDED_BY(mutex_);         // by process slot
    std::uint32_t seats_ NUMACRE_GUARDED_BY(mutex_) = 0;
    std::uint32_t free_from_ NUMACRE_GUARDED_BY(mutex_) = 1;  // every process slot before this one is taken
    bool is_closed_ NUMACRE_GUARDED_BY(mutex_) = false;
    Figures figures_ NUMACRE_GUARDED_BY(mutex_);  // figures() counts waiting_recoveries on each call
};

}  // namespace numacre::daemon
