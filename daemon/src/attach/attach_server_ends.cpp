// Ends of clients: by a detach, by the process's death, by an eviction; and clients that have lost their connection.
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "attach/attach_server.hpp"
#include "attach/connection.hpp"
#include "attach/session.hpp"
#include "os/log.hpp"

namespace numacre::daemon {

void AttachServer::detach(Session &session) {
    depart(session, Departure::detached);
}

void AttachServer::connection_ended(Session &session) {
    if (session.phase == Session::Phase::silent || session.phase == Session::Phase::bell) {
        close_session(session.id);
        return;
    }
    if (session.phase != Session::Phase::attached) return;
    // Descriptors that the client has not read stay in flight, and count, as long as the session exists;
    // close_session() takes care of them then.
    if (!session.is_limited || !has_unread(session.connection.get())) close_connection(session);
    // A lost connection alone gives no memory back: the process may have the memory mapped, and most likely is just
    // ending.
    session.pool->set_client_state(session.client.slot, ClientState::lost);
    lose(session);
}

// Closed only after the kernel has let go of the connection: else its release would be the last close, in our thread,
// and a packet could be received from another connection that has its number by then.
void AttachServer::close_connection(Session &session) {
    const auto connection = std::make_shared<Fd>(std::move(session.connection));
    loop_.cancel(std::exchange(session.packet_wait, 0), [this, connection] { closer_.close(std::move(*connection)); });
}

// Makes the session one of a client without a connection.
void AttachServer::lose(Session &session) {
    session.phase = Session::Phase::lost;
    if (session.death_wait == 0) watch_process(session);
    watch_lost();
    ask_after(session, [](const Session &there) {
        if (!there.peer.pidfd)
            log::warn(can_be_found(there.peer.identity())
                          ? "a client's process cannot be watched for now: it counts as attached until it can"
                          : "a client's process cannot be watched (another pid namespace?): it counts as attached "
                            "until it detaches",
                      {{"pool", there.pool->name()}, {"client", there.client.id}, {"pid", there.peer.pid}});
        else if (!there.peer.is_certain)
            log::warn(
                "whether a process is the client that it was cannot be told (/proc did not show it, on a kernel before "
                "6.9): the client counts as attached until the process with its pid ends",
                {{"pool", there.pool->name()}, {"client", there.client.id}, {"pid", there.peer.pid}});
    });
}

// Reads the presence word of a lost client. The client departs if the word says that it has left, or that it has never
// come; else if_there is called.
void AttachServer::ask_after(Session &session, std::function<void(Session &)> if_there) {
    Worker &worker = session.pool->record_worker();
    worker.post([this, id = session.id, pool = session.pool, client = session.client, if_there = std::move(if_there)] {
        const Presence::State state = pool->ask_after(client);
        loop_.post([this, id, state, if_there] {
            const auto found = sessions_.find(id);
            if (found == sessions_.end() || found->second->phase != Session::Phase::lost) return;
            if (state == Presence::State::left)
                depart(*found->second, Departure::detached);
            else if (state == Presence::State::given_up)
                depart(*found->second, Departure::unmapped);
            else
                if_there(*found->second);
        });
    });
}

void AttachServer::watch_process(Session &session) {
    if (!session.peer.pidfd) return;
    session.death_wait = loop_.when_readable(session.peer.pidfd->get(), [this, id = session.id] { process_ended(id); });
}

void AttachServer::process_ended(SessionId id) {
    const auto found = sessions_.find(id);
    if (found == sessions_.end()) return;
    found->second->death_wait = 0;
    if (!has_ended(*found->second->peer.pidfd)) {  // the wait itself failed, and the process goes on
        loop_.after(kFirstLostCheck, [this, id] {
            const auto again = sessions_.find(id);
            if (again != sessions_.end()) watch_process(*again->second);
        });
        return;
    }
    if (found->second->is_client()) depart(*found->second, Departure::died);
}

void AttachServer::depart(Session &session, Departure departure) {
    session.phase = Session::Phase::departing;
    const SessionId id = session.id;
    if (departure != Departure::detached) {
        drop_bells(session.pool->instance_id(), session.client.id);
        // It may have sent, and not rung. Nobody waits until its blocks have come back.
        ring_bells(session.pool->instance_id());
    }
    const auto confirm = [this, id, departure] {
        const auto found = sessions_.find(id);
        if (found == sessions_.end() || departure != Departure::detached ||
            std::exchange(found->second->has_detached, true))
            return;
        const wire::DetachReply reply;
        send_now(found->second->connection.get(), &reply, sizeof reply, {});
    };
    const auto close = [this, id, confirm] {
        const auto found = sessions_.find(id);
        if (found == sessions_.end()) return;
        const bool unread = has_unread(found->second->connection.get());  // before the detach reply is sent
        confirm();
        close_session(id, unread);
    };
    // The connection of a client that has detached is not needed any more, however long its blocks wait.
    const auto let_go = [this, id, departure, confirm] {
        const auto found = sessions_.find(id);
        if (found == sessions_.end() || departure != Departure::detached) return;
        Session &there = *found->second;
        const bool unread = there.is_limited && has_unread(there.connection.get());  // before the detach reply is sent
        confirm();
        if (!unread) close_connection(there);
    };
    reaper_.reap(session.pool, session.client, departure, close, let_go);
}

// A refusal may stay unread: it carries no descriptors.
void AttachServer::close_session(SessionId id) {
    const auto found = sessions_.find(id);
    if (found == sessions_.end()) return;
    close_session(id, found->second->has_been_served() && has_unread(found->second->connection.get()));
}

void AttachServer::close_session(SessionId id, bool has_unread) {
    const auto found = sessions_.find(id);
    if (found == sessions_.end()) return;
    Session &session = *found->second;
    for (const auto wait : {session.silence_wait, session.death_wait, session.signal_wait}) loop_.cancel(wait);
    // Closed only after the kernel has let go of the connection: else its release would be the last close, in our
    // thread.
    auto connection = std::make_shared<Fd>(std::move(session.connection));
    // A reply without descriptors may stay unread.
    const std::size_t unread = has_unread && session.is_limited ? unread_.of(session.peer.uid, id) : 0;
    loop_.cancel(session.packet_wait, [this, connection, unread, uid = session.peer.uid] {
        if (unread != 0)
            unread_.close_when_read(std::move(*connection), uid, unread);
        else
            closer_.close(std::move(*connection));
    });
    if (session.bell) bells_.erase(session.bell->serial);
    if (session.event_fd) {
        --event_fd_count_;
        if (session.is_limited) connection_limits_.closed(session.peer.uid, false);
    }
    unread_.forget(session.peer.uid, id);
    if (session.order) session.order->cancel();
    // relaxed: no other data goes with it.
    if (session.objects_order) session.objects_order->is_cancelled.store(true, std::memory_order_relaxed);
    if (session.pool) client_ids_.erase(session.client.id);
    const bool was_silent = session.phase == Session::Phase::silent;
    if (was_silent) silent_.remove(session.is_limited, session.peer.uid, id);
    if (session.is_limited) connection_limits_.closed(session.peer.uid, was_silent);
    sessions_.erase(found);
}

// Runs only while there are lost sessions: an idle daemon does not wake up.
void AttachServer::watch_lost() {
    if (watching_lost_) return;
    watching_lost_ = true;
    loop_.after(kFirstLostCheck, [this] { check_lost(); });
}

// The kernel's facts about one lost client.
struct AttachServer::Lost {
    SessionId id;
    Peer peer;
    bool has_ended = false;
    bool has_executed = false;
};

void AttachServer::check_lost() {
    bool any = false;
    for (const auto &[id, session] : sessions_) {
        if (session->phase != Session::Phase::lost) continue;
        any = true;
        if (std::exchange(session->is_looked_at, true)) continue;
        ask_after(*session, [this](Session &there) { look_at(there); });
    }
    if (any)
        loop_.after(kLostPeriod, [this] { check_lost(); });
    else
        watching_lost_ = false;
}

void AttachServer::look_at(Session &session) {
    if (!can_be_found(session.peer.identity())) {
        session.is_looked_at = false;
        return;
    }
    // Reads a few files of /proc, so it does not run on the loop.
    worker_.post([this, one = Lost{session.id, session.peer}]() mutable {
        if (!one.peer.pidfd) {
            auto found = find_peer(one.peer.identity());
            one.has_ended = !found;
            if (found) {
                one.peer.pidfd = std::move(found->pidfd);
                one.peer.is_certain = found->is_certain;
                one.peer.start_time_ticks = found->start_time_ticks;
            }
        }
        complete_identity(one.peer);
        one.has_executed = has_executed(one.peer.pid, one.peer.stack_start);
        loop_.post([this, one = std::move(one)] { judge(one); });
    });
}

void AttachServer::judge(const Lost &one) {
    const auto found = sessions_.find(one.id);
    if (found == sessions_.end() || found->second->phase != Session::Phase::lost) return;
    Session &session = *found->second;
    session.is_looked_at = false;
    const bool is_news =
        !session.peer.pidfd != !one.peer.pidfd || session.peer.start_time_ticks != one.peer.start_time_ticks;
    if (is_news) {
        session.peer.pidfd = one.peer.pidfd;
        session.peer.is_certain = one.peer.is_certain;
        session.peer.start_time_ticks = one.peer.start_time_ticks;
        session.pool->set_peer(session.client, session.peer);
        if (session.death_wait == 0) watch_process(session);
    }
    if (one.has_ended) {
        depart(session, Departure::died);
        return;
    }
    // If the process has ended, its own event is on the way, and the facts from /proc may be another process's.
    if (session.peer.pidfd && has_ended(*session.peer.pidfd)) return;
    if (one.has_executed) depart(session, Departure::unmapped);
}

void AttachServer::evict(std::uint32_t client_id, std::chrono::milliseconds grace) {
    loop_.post([this, client_id, grace] {
        const auto found = std::ranges::find_if(
            sessions_, [client_id](const auto &entry) { return entry.second->client.id == client_id; });
        if (found == sessions_.end()) return;
        if (found->second->phase == Session::Phase::attaching) {  // its client is in the pool's table already
            loop_.after(kEvictAgainAfter, [this, client_id, grace] { evict(client_id, grace); });
            return;
        }
        if (!found->second->is_client()) return;
        const SessionId id = found->first;
        log::info("evicting a client",
                  {{"client", client_id}, {"pid", found->second->peer.pid}, {"grace_ms", grace.count()}});
        tell(found->second->pool, {id}, EventBits::kEviction);
        end_client(id, SIGTERM);
        loop_.after(grace, [this, id] { end_client(id, SIGKILL); });
    });
}

void AttachServer::abandon(const std::shared_ptr<ManagedPool> &pool) {
    loop_.post([this, pool] {
        std::vector<SessionId> ids;
        for (const auto &[id, session] : sessions_)
            if (session->pool == pool || (session->bell && session->bell->instance_id == pool->instance_id()))
                ids.push_back(id);
        for (const SessionId id : ids) close_session(id);
    });
}

// Sends the signal only while the process is our client: a process that has detached, or runs another program, is a
// stranger.
void AttachServer::end_client(SessionId id, int signal) {
    const auto found = sessions_.find(id);
    if (found == sessions_.end()) return;
    Session &session = *found->second;
    // The client may have closed its connection a moment ago, as an exec does.
    if (session.phase == Session::Phase::attached && has_hung_up(session.connection.get())) connection_ended(session);
    // An observer without a connection is not an observer any more.
    if (!session.is_client() || (session.phase == Session::Phase::lost && session.client.tier == wire::Tier::observer))
        return;
    const Peer &peer = session.peer;
    if (!peer.pidfd || !peer.is_certain) {
        log::warn("a client cannot be evicted: its process cannot be found, or may be another's by now",
                  {{"client", session.client.id}, {"pid", peer.pid}});
        return;
    }
    // While the connection is open, it shows that the client is there. This job is not for the pool's workers: the
    // client may be the one that keeps them busy.
    const bool is_lost = session.phase == Session::Phase::lost;
    worker_.post([this, id, signal, is_lost, pool = session.pool, client = session.client] {
        if (is_lost && !pool->is_here(client)) return;
        const bool is_stranger = has_executed(client.peer.pid, client.peer.stack_start);
        loop_.post([this, id, signal, is_stranger] {
            const auto again = sessions_.find(id);
            if (again == sessions_.end() || !again->second->is_client()) return;
            if (!is_stranger) send(again->second->peer, signal);
            // Nothing of the pool is mapped any more, although a child may keep the connection open. If the process has
            // ended its own event is on the way, and what /proc showed may have been another's.
            else if (!has_ended(*again->second->peer.pidfd))
                depart(*again->second, Departure::unmapped);
        });
    });
}

void AttachServer::send(const Peer &peer, int signal) {
    if (has_ended(*peer.pidfd)) return;
    if (const int error = send_signal(*peer.pidfd, signal); error != 0 && error != ESRCH)
        log::warn("a signal could not be sent",
                  {{"signal", signal}, {"pid", peer.pid}, {"error", std::strerror(error)}});
}

}  // namespace numacre::daemon
