#include "pool/client_table.hpp"

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "spec/pool_spec.hpp"

namespace numacre::daemon {

std::string_view client_state_name(ClientState state) {
    switch (state) {
        case ClientState::active:
            return "active";
        case ClientState::adopted:
            return "adopted";
        case ClientState::detaching:
            return "detaching";
        case ClientState::lost:
            return "lost connection";
        case ClientState::quarantined:
            return "quarantined";
        case ClientState::recovering:
            return "recovering";
    }
    return "unknown";
}

Failure no_such_client(std::uint32_t client_id) {
    return {Errc::no_such_client, "no client has the id " + std::to_string(client_id) +
                                      ": see `numacre clients` for those that are attached"};
}

ClientTable::ClientTable(const Description &description, PoolLedger &ledger)
    : description_(description),
      ledger_(ledger),
      slots_(description.now()->spec.max_clients + 1),  // slot 0 is the daemon
      clients_(slots_),
      versions_(slots_, 0) {
    versions_[kDaemonProcess.value] = 1;  // the daemon's slot counts as taken: it holds the blocks that it has seized
}

void ClientTable::adopt() {
    const MutexLock lock(mutex_);
    const auto records = ledger_.clients();
    for (std::uint32_t slot = 1; slot < clients_.size(); ++slot) {
        LedgerClient &record = records[slot];
        const std::uint32_t id = record.id.load(std::memory_order_acquire);
        if (id == 0) continue;
        const bool departing = record.is_departing.load(std::memory_order_acquire) != 0;
        ++versions_[slot];
        seats_ = slot + 1;
        Client client;
        client.id = id;
        client.slot = ProcessSlot{static_cast<std::uint16_t>(slot)};
        client.generation = record.generation;
        client.seat_version = versions_[slot];
        const std::uint64_t start_time_ticks = record.start_time_ticks.load(std::memory_order_relaxed);
        const auto peer = record.tier == wire::Tier::channel
                              ? std::nullopt
                              : find_peer({record.pid, record.pid_space, record.pidfd_inode, start_time_ticks});
        if (peer) {
            client.peer = *peer;
            record.start_time_ticks.store(peer->start_time_ticks, std::memory_order_relaxed);  // perhaps found out now
        }
        client.peer.pid = record.pid;
        client.peer.stack_start = record.stack_start;
        client.peer.uid = record.uid;
        client.peer.gid = record.gid;
        client.tier = record.tier;
        if (client.peer.comm.empty()) client.peer.comm.assign(record.comm, ::strnlen(record.comm, sizeof record.comm));
        client.attached = time_point_of(record.attached_ns);
        const bool is_channel = client.tier == wire::Tier::channel;
        client.state = departing || (!peer && !is_channel) ? ClientState::recovering : ClientState::adopted;
        clients_[slot] = std::move(client);
        ++(is_channel ? figures_.channels : figures_.clients);
    }
}

Answer<Client> ClientTable::take_seat(std::uint32_t client_id, Peer peer, wire::Tier tier) {
    const auto description = description_.now();
    const std::uint32_t limit = client_limit_of(description->spec);
    const std::uint32_t observer_limit = observer_limit_of(description->spec);
    const std::string pool = "pool \"" + description_.name() + "\"";
    const MutexLock lock(mutex_);
    if (is_closed_) return Unexpected{Failure{Errc::no_such_pool, pool + " is being deleted: use another"}};
    const auto is_observer = [](const auto &client) { return client && client->tier == wire::Tier::observer; };
    if (tier == wire::Tier::observer && observer_limit == 0)
        return Unexpected{Failure{Errc::too_many_clients,
                                  pool + " has one seat, which is not for observers: raise the pool's max-clients"}};
    if (tier == wire::Tier::observer &&
        std::count_if(clients_.begin(), clients_.begin() + seats_, is_observer) >= observer_limit)
        return Unexpected{Failure{Errc::too_many_clients, pool + " has its " + std::to_string(observer_limit) +
                                                              " observers, of " + std::to_string(limit) +
                                                              " clients: detach one, or raise the pool's max-clients"}};
    while (free_from_ < clients_.size() && clients_[free_from_]) ++free_from_;
    if (free_from_ == clients_.size() || figures_.clients + figures_.channels >= limit) {
        const auto waits = [](const auto &other) { return other && other->state == ClientState::quarantined; };
        const auto waiting = std::count_if(clients_.begin(), clients_.begin() + seats_, waits);
        return Unexpected{
            Failure{Errc::too_many_clients,
                    pool + " has its " + std::to_string(limit) + " clients" +
                        (figures_.channels == 0 ? "" : " and channels") + ": " +
                        (waiting == 0
                             ? std::string("detach one, or make the pool with a larger max-clients")
                             : std::to_string(waiting) +
                                   " of them have ended and wait in quarantine (numacre clients), for the end of a pin "
                                   "or of their group: end the processes that have the pins, let the group adopt its "
                                   "blocks or end, or make the pool with a larger max-clients")}};
    }
    const std::uint32_t slot = free_from_++;
    seats_ = std::max(seats_, slot + 1);
    Client client;
    client.id = client_id;
    client.slot = ProcessSlot{static_cast<std::uint16_t>(slot)};
    client.generation = ++ledger_.clients()[slot].generation;
    client.seat_version = ++versions_[slot];
    client.peer = std::move(peer);
    client.tier = tier;
    client.attached = std::chrono::system_clock::now();
    clients_[slot] = client;
    ++(tier == wire::Tier::channel ? figures_.channels : figures_.clients);
    return client;
}

void ClientTable::enter(const Client &client) {
    LedgerClient &ledger = ledger_.clients()[client.slot.value];
    ledger.pid = client.peer.pid;
    ledger.uid = client.peer.uid;
    ledger.gid = client.peer.gid;
    ledger.pid_space = client.peer.pid_space;
    ledger.pidfd_inode = client.peer.pidfd_inode;
    ledger.start_time_ticks.store(client.peer.start_time_ticks, std::memory_order_relaxed);
    ledger.stack_start = client.peer.stack_start;
    ledger.attached_ns = nanoseconds_of(client.attached);
    std::memset(ledger.comm, 0, sizeof ledger.comm);
    std::copy_n(client.peer.comm.begin(), std::min(client.peer.comm.size(), sizeof ledger.comm), ledger.comm);
    ledger.tier = client.tier;
    for (auto &opened : ledger.channels) opened.store(0, std::memory_order_relaxed);
    ledger.is_departing.store(0, std::memory_order_relaxed);
    ledger_.set_last_client_id(client.id);
    // release: the entry counts from here on.
    ledger.id.store(client.id, std::memory_order_release);
}

bool ClientTable::leave(ProcessSlot slot, Departure departure, std::uint64_t reclaimed_bytes, double recovery_seconds) {
    {
        const MutexLock lock(mutex_);
        if (!clients_[slot.value]) return false;
        --(clients_[slot.value]->tier == wire::Tier::channel ? figures_.channels : figures_.clients);
        clients_[slot.value].reset();
        free_from_ = std::min<std::uint32_t>(free_from_, slot.value);
        while (seats_ > 0 && !clients_[seats_ - 1]) --seats_;
        ++versions_[slot.value];
        if (departure == Departure::died) ++figures_.reaped;
        figures_.reclaimed_bytes += reclaimed_bytes;
        if (recovery_seconds > 0) figures_.last_recovery_seconds = recovery_seconds;
    }
    ledger_.clients()[slot.value].id.store(0, std::memory_order_release);
    return true;
}

bool ClientTable::close_door(bool force) {
    const MutexLock lock(mutex_);
    if (is_closed_ || (figures_.clients != 0 && !force)) return false;
    is_closed_ = true;
    return true;
}

void ClientTable::open_door() {
    const MutexLock lock(mutex_);
    is_closed_ = false;
}

bool ClientTable::is_closed() const {
    const MutexLock lock(mutex_);
    return is_closed_;
}

void ClientTable::set_state(ProcessSlot slot, ClientState state) {
    const MutexLock lock(mutex_);
    if (clients_[slot.value]) clients_[slot.value]->state = state;
}

void ClientTable::set_peer(const Client &client, const Peer &peer) {
    const MutexLock lock(mutex_);
    auto &seat = clients_[client.slot.value];
    if (!seat || seat->id != client.id) return;
    seat->peer.pidfd = peer.pidfd;
    seat->peer.is_certain = peer.is_certain;
    seat->peer.start_time_ticks = peer.start_time_ticks;
    ledger_.clients()[client.slot.value].start_time_ticks.store(peer.start_time_ticks, std::memory_order_relaxed);
}

void ClientTable::begin_departure(ProcessSlot slot, Departure departure) {
    ledger_.clients()[slot.value].is_departing.store(1, std::memory_order_release);
    set_state(slot, departure == Departure::detached ? ClientState::detaching : ClientState::recovering);
}

void ClientTable::note_wait(ProcessSlot slot, std::uint32_t for_client_id) {
    const MutexLock lock(mutex_);
    if (clients_[slot.value]) clients_[slot.value]->waits_for = for_client_id;
}

std::vector<Client> ClientTable::all() const {
    const MutexLock lock(mutex_);
    std::vector<Client> table;
    for (const auto &client : clients_)
        if (client) table.push_back(*client);
    return table;
}

std::optional<Client> ClientTable::find(std::uint32_t client_id) const {
    const MutexLock lock(mutex_);
    for (const auto &client : clients_)
        if (client && client->id == client_id) return client;
    return std::nullopt;
}

std::optional<Client> ClientTable::at(ProcessSlot slot) const {
    const MutexLock lock(mutex_);
    return slot.value < clients_.size() ? clients_[slot.value] : std::nullopt;
}

std::vector<ProcessSlot> ClientTable::seated() const {
    std::vector<ProcessSlot> slots;
    const MutexLock lock(mutex_);
    for (const auto &client : std::span(clients_).first(seats_))
        if (client) slots.push_back(client->slot);
    return slots;
}

std::uint32_t ClientTable::seats() const {
    const MutexLock lock(mutex_);
    return seats_;
}

std::vector<std::uint64_t> ClientTable::versions() const {
    const MutexLock lock(mutex_);
    return versions_;
}

ClientTable::Figures ClientTable::figures() const {
    const MutexLock lock(mutex_);
    Figures figures = figures_;
    for (const auto &client : clients_)
        if (client && client->waits_for != 0) ++figures.waiting_recoveries;
    return figures;
}

}  // namespace numacre::daemon
