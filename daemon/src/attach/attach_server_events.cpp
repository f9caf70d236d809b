// Events of pools: the bits in clients' records, and the descriptors that signal them.
#include <sys/eventfd.h>

#include <cstring>
#include <utility>
#include <vector>

#include "attach/attach_server.hpp"
#include "attach/connection.hpp"
#include "attach/session.hpp"
#include "numacre/os/kernel.hpp"
#include "os/log.hpp"

namespace numacre::daemon {
namespace {

// Returns 0 for events that clients are not told.
std::uint64_t event_bits_of(EventKind kind) {
    switch (kind) {
        case EventKind::low_watermark:
            return EventBits::kLowWatermark;
        case EventKind::low_watermark_ended:
            return EventBits::kLowWatermarkEnded;
        case EventKind::quota_soft_exceeded:
        case EventKind::user_quota_soft_exceeded:
        case EventKind::pool_quota_soft_exceeded:
            return EventBits::kSoftQuota;
        case EventKind::resized:
            return EventBits::kResized;
        case EventKind::pool_corrupt:
            return EventBits::kDamaged;
        case EventKind::client_attached:
        case EventKind::client_detached:
        case EventKind::client_reaped:
        case EventKind::pool_created:
        case EventKind::pool_adopted:
        case EventKind::pool_deleted:
        case EventKind::events_dropped:
            break;
    }
    return 0;
}

}  // namespace

void AttachServer::give_event_fd(Session &session) {
    // If the client has read its messages so far, their descriptors no longer count; else the new one counts with them.
    if (session.is_limited && !has_unread(session.connection.get())) unread_.forget(session.peer.uid, session.id);
    const bool may_be_unread = !session.is_limited || !unread_.would_be_too_many(session.peer.uid, 1);
    Fd fd;
    const bool is_counted = may_be_unread && connections() + reserved_from(session) < limits_.connections &&
                            (!session.is_limited || connection_limits_.takes_event_fd(session.peer.uid));
    if (is_counted) fd = Fd(os::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (is_counted && !fd && session.is_limited) connection_limits_.closed(session.peer.uid, false);
    const auto line = [&] { return refusal_lines_.line_for(session.peer.uid, std::chrono::steady_clock::now()); };
    if (!fd && !std::exchange(session.has_been_refused_events, true))
        if (const auto left_out = line())
            log::warn(
                "no descriptor for a client's events is left: raise --max-connections, --max-connections-per-user or "
                "the open file limit",
                {{"pid", session.peer.pid},
                 {"client", session.client.id},
                 {"refused_before_without_a_line", *left_out}});
    if (fd && session.is_limited) unread_.add(session.peer.uid, session.id, 1);
    const wire::EventsReply reply;
    const int raw = fd.get();
    const std::span<const int> fds = fd ? std::span<const int>(&raw, 1) : std::span<const int>();
    if (const int error = send_now(session.connection.get(), &reply, sizeof reply, fds); error != 0) {
        if (const auto left_out = line())
            log::warn("a client's descriptor for events could not be sent",
                      {{"pid", session.peer.pid},
                       {"error", std::strerror(error)},
                       {"refused_before_without_a_line", *left_out}});
        if (fd && session.is_limited) connection_limits_.closed(session.peer.uid, false);
        connection_ended(session);
        return;
    }
    if (fd) {
        session.event_fd = std::move(fd);
        ++event_fd_count_;
        // Covers news from before the client's request.
        signal(session);
    }
    listen_to(session.id);
}

void AttachServer::tell_of(const Event &event) {
    if (event_bits_of(event.kind) == 0) return;
    loop_.post([this, event] {
        std::shared_ptr<ManagedPool> pool;
        std::vector<SessionId> ids;
        for (const auto &[id, session] : sessions_) {
            if (!session->is_client() || session->pool->name() != event.pool) continue;
            if (event.client_id != 0 && event.client_id != session->client.id) continue;
            if (event.uid && *event.uid != session->peer.uid) continue;
            if (!pool) pool = session->pool;
            if (pool == session->pool) ids.push_back(id);  // not a client of an earlier pool of that name
        }
        if (pool) tell(pool, std::move(ids), event_bits_of(event.kind));
    });
}

// Sets the bits first, then signals.
void AttachServer::tell(const std::shared_ptr<ManagedPool> &pool, std::vector<SessionId> ids,
                        std::uint64_t event_bits) {
    std::vector<Client> clients;
    clients.reserve(ids.size());
    for (const SessionId id : ids) clients.push_back(sessions_.at(id)->client);
    pool->record_worker().post([this, pool, ids = std::move(ids), clients = std::move(clients), event_bits]() mutable {
        pool->set_news(clients, event_bits);
        loop_.post([this, ids = std::move(ids)] {
            for (const SessionId id : ids)
                if (const auto found = sessions_.find(id); found != sessions_.end()) signal(*found->second);
        });
    });
}

void AttachServer::signal(Session &session) {
    if (!session.event_fd) return;
    if (session.signal_wait != 0) {
        // The signal under way may have been counted, and read, before the bits were set.
        session.signal_again = true;
        return;
    }
    session.signal_wait = loop_.signal(session.event_fd.get(), [this, id = session.id] {
        const auto found = sessions_.find(id);
        if (found == sessions_.end()) return;
        found->second->signal_wait = 0;
        if (std::exchange(found->second->signal_again, false)) signal(*found->second);
    });
}

}  // namespace numacre::daemon
