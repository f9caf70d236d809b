#include "session.hpp"

#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "access.hpp"
#include "attach_message.hpp"
#include "fd_passing.hpp"
#include "log.hpp"

namespace numacre::daemon {

struct AttachServer::Session {
    enum class Phase : std::uint8_t { silent, attached, lost, departing };

    SessionId id = 0;
    Phase phase = Phase::silent;
    Fd connection;
    Peer peer;
    bool is_limited = false;  // counted in user_limits_
    EventLoop::WaitId packet_wait = 0;
    EventLoop::WaitId silence_wait = 0;
    EventLoop::WaitId death_wait = 0;
    Fd event_fd;  // if the client has asked for it
    EventLoop::WaitId signal_wait = 0;
    bool has_been_refused_events = false;  // and the log says so, once
    bool signal_again = false;  // there is more to tell than what the signal under way is for
    // From attaching on:
    std::shared_ptr<ManagedPool> pool;
    Client client;
};

namespace {

// Root and the daemon's own user are in nobody's way.
bool is_limited(const Peer &who) {
    return who.uid != 0 && who.uid != ::geteuid();
}

// Never blocks. 0 or an errno.
int send_now(int connection, const void *data, std::size_t size, std::span<const int> fds) {
    return send_packet<wire::kMaxFds>(connection, data, size, fds, MSG_DONTWAIT);
}

}  // namespace

AttachServer::AttachServer(EventLoop &loop, Worker &worker, Registry &registry, Reaper &reaper,
                           const Topology &topology, Fd listener, Limits limits)
    : loop_(loop),
      worker_(worker),
      registry_(registry),
      reaper_(reaper),
      topology_(topology),
      listener_(std::move(listener)),
      limits_(limits),
      user_limits_(limits.of_a_user) {
    accepting_ = loop_.accept_each(listener_.get(), [this](int fd) { accepted(fd); });
    subscription_ = registry_.events().subscribe([this](const Event &event) { tell_of(event); });
}

AttachServer::~AttachServer() {
    loop_.cancel(accepting_);
    for (const auto &[id, session] : sessions_)
        for (const auto wait : {session->packet_wait, session->silence_wait, session->death_wait, session->signal_wait})
            loop_.cancel(wait);
}

void AttachServer::accepted(int fd_or_error) {
    if (fd_or_error < 0) {
        log::warn("a connection could not be accepted", {{"error", std::strerror(-fd_or_error)}});
        return;
    }
    auto made = std::make_unique<Session>();
    made->connection = Fd(fd_or_error);
    made->id = ++last_session_;
    const Peer who = credentials_of(made->connection.get());
    made->peer = who;
    if (is_limited(who)) {
        // Before /proc is asked: whoever is over the limit must not cost much.
        const auto verdict = user_limits_.admit(who.uid, std::chrono::steady_clock::now());
        if (!verdict.refused.empty()) {
            refuse(*made, Errc::too_many_clients, verdict.refused, verdict.is_news);
            return;
        }
        made->is_limited = true;
    }
    const auto turn_away = [&](Errc code, const std::string &message) {
        if (made->is_limited) user_limits_.closed(who.uid, true);
        refuse(*made, code, message);
    };
    if (sessions_.size() + event_fd_count_ >= limits_.connections || silent_count_ >= limits_.silent_connections) {
        turn_away(Errc::too_many_clients, "the daemon has " + std::to_string(sessions_.size()) + " connections, " +
                                              std::to_string(silent_count_) +
                                              " of them not attached yet: close some, or raise --max-connections");
        return;
    }
    auto peer = peer_of(made->connection.get());
    if (!peer) {
        turn_away(peer.error().code, peer.error().message);
        return;
    }
    made->peer = std::move(*peer);
    const SessionId id = made->id;
    made->silence_wait = loop_.after(limits_.silence, [this, id] {
        const auto found = sessions_.find(id);
        if (found == sessions_.end()) return;
        found->second->silence_wait = 0;
        refuse(*found->second, Errc::timed_out,
               "no attach request within " + std::to_string(limits_.silence.count()) + " ms of connecting");
        close_session(id);
    });
    ++silent_count_;
    sessions_.emplace(id, std::move(made));
    listen_to(id);
}

void AttachServer::adopt(std::shared_ptr<ManagedPool> pool, const Client &client) {
    auto made = std::make_unique<Session>();
    Session &session = *made;
    session.id = ++last_session_;
    session.phase = Session::Phase::lost;
    session.peer = client.peer;
    session.pool = std::move(pool);
    session.client = client;
    // The kernel said who it is when it attached; the ledger, which is ours alone, has kept that.
    session.is_limited = is_limited(client.peer);
    if (session.is_limited) user_limits_.adopted(client.peer.uid, std::chrono::steady_clock::now());
    const SessionId id = session.id;
    sessions_.emplace(id, std::move(made));
    if (client.state == ClientState::recovering) {
        depart(session, Departure::died);
        return;
    }
    if (session.peer.pidfd)
        session.death_wait = loop_.when_readable(session.peer.pidfd->get(), [this, id] { process_ended(id); });
    else
        log::warn("a client's process cannot be watched (another pid namespace?): it counts as attached for ever",
                  {{"pool", session.pool->spec().name}, {"client", client.id}, {"pid", client.peer.pid}});
    watch_lost();
}

void AttachServer::listen_to(SessionId id) {
    Session &session = *sessions_.at(id);
    session.packet_wait = loop_.receive_one(session.connection.get(), [this, id](int size, auto packet) {
        if (sessions_.contains(id)) received(id, size, packet);
    });
}

void AttachServer::received(SessionId id, int size, std::span<const std::byte> packet) {
    Session &session = *sessions_.at(id);
    session.packet_wait = 0;
    if (size <= 0) {
        connection_ended(session);
        return;
    }
    if (session.phase == Session::Phase::silent) {
        const auto fault = check_message(static_cast<std::size_t>(size), packet, wire::MessageType::attach_request,
                                         sizeof(wire::AttachRequest));
        if (fault) {
            refuse(session, fault->code, fault->message);
            close_session(id);
        } else {
            attach(session, packet);
        }
        return;
    }
    if (session.phase != Session::Phase::attached) return;
    // Once: so what a connection can ask for stays bounded.
    if (!session.event_fd && !check_message(static_cast<std::size_t>(size), packet, wire::MessageType::events_request,
                                            sizeof(wire::EventsRequest))) {
        give_event_fd(session);
        return;
    }
    const auto fault = check_message(static_cast<std::size_t>(size), packet, wire::MessageType::detach_request,
                                     sizeof(wire::DetachRequest));
    if (!fault) {
        detach(session);
        return;
    }
    log::warn("an attached client sent nonsense: its connection is closed",
              {{"client", session.client.id}, {"pid", session.peer.pid}, {"reason", fault->message}});
    connection_ended(session);
}

void AttachServer::refuse(Session &session, Errc code, const std::string &message, bool is_news) {
    registry_.count(&DaemonTotals::attach_refused);
    if (is_news)
        log::warn(
            "attach refused",
            {{"pid", session.peer.pid}, {"uid", session.peer.uid}, {"comm", session.peer.comm}, {"reason", message}});
    wire::AttachReply reply;
    reply.error = static_cast<std::uint32_t>(code);
    put_message(reply, message);
    // Whoever does not read its reply does not get one.
    send_now(session.connection.get(), &reply, sizeof reply, {});
    // Closing with packets unread would turn the reply into ECONNRESET at the other end.
    constexpr int kUnreadPacketsMax = 4;
    std::array<std::byte, EventLoop::kPacketBytes> unread;
    for (int i = 0; i < kUnreadPacketsMax; ++i)
        if (::recv(session.connection.get(), unread.data(), unread.size(), MSG_DONTWAIT) <= 0) break;
}

Answer<void> AttachServer::check_access(const Session &session, const ManagedPool &pool, wire::Tier tier) const {
    const PoolAccess &access = pool.spec().access;
    const Peer &peer = session.peer;
    if (may_attach(access, {peer.uid, peer.gid, peer.groups}, tier, ::geteuid())) return {};
    const char *const wanted = tier == wire::Tier::observer ? "observe (r)" : "use (w)";
    return Unexpected{Failure{Errc::access_denied,
                              "uid " + std::to_string(peer.uid) + " may not " + wanted + " pool \"" + pool.spec().name +
                                  "\", which is " + pool.owner() + ":" + pool.group() + " " + format_mode(access.mode) +
                                  ": join group " + pool.group() + ", or set the pool's owner, group or mode"}};
}

void AttachServer::attach(Session &session, std::span<const std::byte> packet) {
    const SessionId id = session.id;
    const auto fail = [&](Errc code, const std::string &message) {
        refuse(session, code, message);
        close_session(id);
    };
    const auto wish = read_attach_request(packet);
    if (!wish) return fail(wish.error().code, wish.error().message);
    const std::string &name = wish->pool_name;
    auto pool = registry_.find(name);
    if (!pool) return fail(pool.error().code, pool.error().message);
    if (const auto allowed = check_access(session, **pool, wish->tier); !allowed)
        return fail(allowed.error().code, allowed.error().message);
    auto client = (*pool)->seat(registry_.next_client_id(), session.peer, wish->tier);
    if (!client) return fail(client.error().code, client.error().message);

    session.pool = *pool;
    session.client = *client;
    if (!send_attached(session, wish->tier, *client)) {
        // It never had the memory.
        session.pool->vacate(client->slot, Departure::detached, {}, 0);
        registry_.count(&DaemonTotals::attach_refused);
        close_session(id);
        return;
    }
    loop_.cancel(std::exchange(session.silence_wait, 0));
    --silent_count_;
    if (session.is_limited) user_limits_.attached(session.peer.uid);
    session.phase = Session::Phase::attached;
    session.death_wait = loop_.when_readable(session.peer.pidfd->get(), [this, id] { process_ended(id); });
    registry_.count(&DaemonTotals::attach_ok);
    log::info("client attached", {{"pool", name},
                                  {"client", client->id},
                                  {"pid", session.peer.pid},
                                  {"uid", session.peer.uid},
                                  {"comm", session.peer.comm},
                                  {"tier", wish->tier == wire::Tier::observer ? "observer" : "trusted"}});
    Event event;
    event.pool = name;
    event.kind = "client_attached";
    event.message = session.peer.comm + " (pid " + std::to_string(session.peer.pid) + ") attached";
    event.client_id = client->id;
    registry_.events().publish(std::move(event));
    listen_to(id);
}

bool AttachServer::send_attached(Session &session, wire::Tier tier, const Client &client) {
    ManagedPool &pool = *session.pool;
    wire::AttachReply reply;
    reply.client_id = client.id;
    reply.process_slot = client.slot.value;
    reply.numa_node_count = static_cast<std::uint16_t>(pool.numa_node_count());
    reply.process_generation = client.generation;
    reply.instance_id = pool.instance_id();
    reply.pool_region_bytes = pool.pool_region().bytes();
    reply.process_slots = pool.process_slots();
    reply.thread_slots = pool.thread_slots();
    reply.geometry = pool.geometry();

    std::vector<int> fds{pool.pool_region().fd()};
    for (std::size_t i = 0; i < pool.numa_node_count(); ++i) {
        const NumaNode numa_node{static_cast<std::uint8_t>(i)};
        const NodeMemory &memory = pool.node_memory(numa_node);
        reply.nodes[i].os_numa_node = memory.os_numa_node();
        reply.nodes[i].backing = memory.data().backing();
        reply.nodes[i].page_bytes = static_cast<std::uint32_t>(memory.data().page_bytes());
        reply.nodes[i].node_region_bytes = memory.metadata().bytes();
        reply.nodes[i].data_region_bytes = memory.data().bytes();
        const auto nearest = topology_.nearest(numa_node);
        for (std::size_t rank = 0; rank < nearest.size(); ++rank) reply.nearest[i][rank] = nearest[rank].value;
        fds.push_back(memory.metadata().fd());
        fds.push_back(memory.data().fd());
    }
    std::vector<Fd> read_only;
    if (tier == wire::Tier::observer) {
        for (int &fd : fds) {
            auto reader = reopen_read_only(fd);
            if (!reader) {
                log::error("an observer cannot be served", {{"error", reader.error().message}});
                return false;
            }
            fd = reader->get();
            read_only.push_back(std::move(*reader));
        }
    }
    const int error = send_now(session.connection.get(), &reply, sizeof reply, fds);
    if (error != 0)
        log::warn("the attach reply could not be sent", {{"pid", session.peer.pid}, {"error", std::strerror(error)}});
    return error == 0;
}

void AttachServer::give_event_fd(Session &session) {
    Fd fd;
    if (sessions_.size() + event_fd_count_ < limits_.connections) fd = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!fd && !std::exchange(session.has_been_refused_events, true))
        log::warn("no descriptor for a client's events is left: raise --max-connections or the open file limit",
                  {{"pid", session.peer.pid}, {"client", session.client.id}});
    const wire::EventsReply reply;
    const int raw = fd.get();
    const std::span<const int> fds = fd ? std::span<const int>(&raw, 1) : std::span<const int>();
    if (const int error = send_now(session.connection.get(), &reply, sizeof reply, fds); error != 0) {
        log::warn("a client's descriptor for events could not be sent",
                  {{"pid", session.peer.pid}, {"error", std::strerror(error)}});
        connection_ended(session);
        return;
    }
    if (fd) {
        session.event_fd = std::move(fd);
        ++event_fd_count_;
        // What it has been told before it asked.
        tell(session, 0);
    }
    listen_to(session.id);
}

namespace {

std::uint64_t event_bits_of(std::string_view kind) {
    if (kind == "low_watermark") return EventBits::kLowWatermark;
    if (kind == "low_watermark_ended") return EventBits::kLowWatermarkEnded;
    if (kind.ends_with("quota_soft_exceeded")) return EventBits::kSoftQuota;
    if (kind == "resized") return EventBits::kResized;
    if (kind == "pool_corrupt") return EventBits::kDamaged;
    return 0;
}

}  // namespace

void AttachServer::tell_of(const Event &event) {
    if (event_bits_of(event.kind) == 0) return;
    loop_.post([this, event] {
        for (const auto &[id, session] : sessions_) {
            if (!session->pool || session->pool->spec().name != event.pool) continue;
            if (event.client_id != 0 && event.client_id != session->client.id) continue;
            if (event.uid && *event.uid != session->peer.uid) continue;
            tell(*session, event_bits_of(event.kind));
        }
    });
}

void AttachServer::tell(Session &session, std::uint64_t event_bits) {
    session.pool->set_news(session.client, event_bits);
    if (!session.event_fd) return;
    if (session.signal_wait != 0) {
        // It may have been counted, and read, before the bits were set.
        session.signal_again = true;
        return;
    }
    session.signal_wait = loop_.signal(session.event_fd.get(), [this, id = session.id] {
        const auto found = sessions_.find(id);
        if (found == sessions_.end()) return;
        found->second->signal_wait = 0;
        if (std::exchange(found->second->signal_again, false)) tell(*found->second, 0);
    });
}

void AttachServer::detach(Session &session) {
    depart(session, Departure::detached);
}

void AttachServer::connection_ended(Session &session) {
    if (session.phase == Session::Phase::silent) {
        close_session(session.id);
        return;
    }
    if (session.phase != Session::Phase::attached) return;
    // Nothing comes back by this alone: the process may have the memory mapped, and most likely it is just ending.
    session.phase = Session::Phase::lost;
    session.connection.reset();
    session.pool->set_client_state(session.client.slot, ClientState::lost);
    watch_lost();
}

void AttachServer::process_ended(SessionId id) {
    const auto found = sessions_.find(id);
    if (found == sessions_.end()) return;
    found->second->death_wait = 0;
    if (!has_ended(*found->second->peer.pidfd)) {  // the wait itself failed: nobody dies of that
        loop_.after(kFirstLostCheck, [this, id] {
            const auto again = sessions_.find(id);
            if (again != sessions_.end())
                again->second->death_wait =
                    loop_.when_readable(again->second->peer.pidfd->get(), [this, id] { process_ended(id); });
        });
        return;
    }
    const auto phase = found->second->phase;
    if (phase == Session::Phase::attached || phase == Session::Phase::lost) depart(*found->second, Departure::died);
}

void AttachServer::depart(Session &session, Departure departure) {
    session.phase = Session::Phase::departing;
    const SessionId id = session.id;
    reaper_.reap(session.pool, session.client, departure, [this, id, departure] {
        const auto found = sessions_.find(id);
        if (found == sessions_.end()) return;
        if (departure == Departure::detached) {
            const wire::DetachReply reply;
            send_now(found->second->connection.get(), &reply, sizeof reply, {});
        }
        close_session(id);
    });
}

void AttachServer::close_session(SessionId id) {
    const auto found = sessions_.find(id);
    if (found == sessions_.end()) return;
    Session &session = *found->second;
    for (const auto wait : {session.packet_wait, session.silence_wait, session.death_wait, session.signal_wait})
        loop_.cancel(wait);
    if (session.event_fd) --event_fd_count_;
    const bool was_silent = session.phase == Session::Phase::silent;
    if (was_silent) --silent_count_;
    if (session.is_limited) user_limits_.closed(session.peer.uid, was_silent);
    sessions_.erase(found);
}

// Only while there are such sessions: an idle daemon does not wake up.
void AttachServer::watch_lost() {
    if (watching_lost_) return;
    watching_lost_ = true;
    loop_.after(kFirstLostCheck, [this] { check_lost(); });
}

void AttachServer::check_lost() {
    struct Lost {
        SessionId id;
        std::uint32_t pid;
        std::uint64_t stack_start;
        std::shared_ptr<ManagedPool> pool;
        bool unmapped;
    };
    std::vector<Lost> lost;
    for (const auto &[id, session] : sessions_)
        if (session->phase == Session::Phase::lost && session->peer.pid != 0)
            lost.push_back({id, session->peer.pid, session->peer.stack_start, session->pool, false});
    const bool any = std::any_of(sessions_.begin(), sessions_.end(),
                                 [](const auto &entry) { return entry.second->phase == Session::Phase::lost; });
    if (!any) {
        watching_lost_ = false;
        return;
    }
    // A large process has long maps: not on the loop.
    worker_.post([this, lost = std::move(lost)]() mutable {
        for (Lost &one : lost)
            one.unmapped = has_executed(one.pid, one.stack_start) ||
                           maps_any(one.pid, one.pool->files()) == std::optional<bool>(false);
        loop_.post([this, lost = std::move(lost)] {
            for (const Lost &one : lost) {
                const auto found = sessions_.find(one.id);
                if (found == sessions_.end() || found->second->phase != Session::Phase::lost) continue;
                const Peer &peer = found->second->peer;
                if (peer.pidfd && has_ended(*peer.pidfd)) continue;  // its own event is on the way
                if (one.unmapped) {
                    depart(*found->second, Departure::unmapped);
                } else {
                    log::debug("a client without connection still has the pool mapped",
                               {{"client", found->second->client.id}, {"pid", one.pid}});
                }
            }
            loop_.after(kLostPeriod, [this] { check_lost(); });
        });
    });
}

void AttachServer::evict(const Client &client, std::chrono::milliseconds grace) {
    const std::shared_ptr<const Fd> pidfd = client.peer.pidfd;
    if (!pidfd) {
        log::warn("a client cannot be evicted: its process cannot be found", {{"client", client.id}});
        return;
    }
    log::info("evicting a client", {{"client", client.id}, {"pid", client.peer.pid}, {"grace_ms", grace.count()}});
    if (const int error = send_signal(*pidfd, SIGTERM); error != 0 && error != ESRCH)
        log::warn("SIGTERM could not be sent", {{"pid", client.peer.pid}, {"error", std::strerror(error)}});
    loop_.post([this, pidfd, grace, pid = client.peer.pid, client_id = client.id] {
        for (const auto &[id, session] : sessions_)
            if (session->pool && session->client.id == client_id) tell(*session, EventBits::kEviction);
        loop_.after(grace, [pidfd, pid] {
            if (has_ended(*pidfd)) return;
            if (const int error = send_signal(*pidfd, SIGKILL); error != 0 && error != ESRCH)
                log::warn("SIGKILL could not be sent", {{"pid", pid}, {"error", std::strerror(error)}});
        });
    });
}

}  // namespace numacre::daemon
