// A connection of the attach socket, from accept() to the end of the client's process. Only for the attach server's own
// sources. Belongs to the event loop's thread, but for SeatOrder.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "attach/attach_message.hpp"
#include "attach/attach_server.hpp"
#include "attach/client_objects.hpp"
#include "os/event_loop.hpp"
#include "os/fd.hpp"

namespace numacre::daemon {

// A request for a seat for a process, until a worker begins to serve it. The process's descriptors stay in the worker's
// queue no longer than the process waits. Thread-safe.
class SeatOrder {
public:
    explicit SeatOrder(Peer peer) : peer_(std::move(peer)) {}
    // No value: the request has been taken or cancelled.
    std::optional<Peer> take() {
        const std::lock_guard lock(mutex_);
        return std::exchange(peer_, std::nullopt);
    }
    void cancel() { (void)take(); }

private:
    std::mutex mutex_;
    std::optional<Peer> peer_;  // guarded by mutex_
};

struct AttachServer::Session {
    // attaching: the client's request is allowed, and a seat is being made.
    // bell: no client's connection, but a bell's: both end together.
    enum class Phase : std::uint8_t { silent, attaching, attached, lost, departing, bell };

    SessionId id = 0;
    Phase phase = Phase::silent;
    Fd connection;  // closed by closer_
    Peer peer;
    bool is_limited = false;  // counted in connection_limits_
    EventLoop::WaitId packet_wait = 0;
    EventLoop::WaitId silence_wait = 0;
    EventLoop::WaitId death_wait = 0;
    Fd event_fd;  // set if the client has asked for it; or the bell
    EventLoop::WaitId signal_wait = 0;
    std::optional<std::chrono::steady_clock::time_point> gives_up_at;  // while the user has too many unread replies
    unsigned events_requests = 0;
    bool has_been_refused_events = false;  // and the log says so, once
    bool signal_again = false;             // there is news that the signal under way does not cover
    // While attaching:
    AttachWish wish;
    std::shared_ptr<SeatOrder> order;
    std::shared_ptr<ObjectsOrder> objects_order;  // while the client's object pool is being made
    // From the seat on:
    std::shared_ptr<ManagedPool> pool;
    Client client;
    bool has_detached = false;  // and has been told so
    bool is_looked_at = false;  // lost: the worker is finding out what became of the process

    // Of a bell:
    struct Bell {
        std::uint64_t serial = 0;
        std::uint64_t instance_id = 0;  // of the pool
        std::uint32_t client_id = 0;
        ManagedPool::ChannelUse channel;
    };
    std::optional<Bell> bell;

    bool is_client() const { return phase == Phase::attached || phase == Phase::lost; }
    // True if a message that was sent may have carried descriptors.
    bool has_been_served() const { return is_client() || phase == Phase::departing || phase == Phase::bell; }
};

}  // namespace numacre::daemon
