#include "attach/attach_server.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "attach/attach_message.hpp"
#include "attach/client_objects.hpp"
#include "attach/connection.hpp"
#include "attach/session.hpp"
#include "numacre/os/kernel.hpp"
#include "os/fd_passing.hpp"
#include "os/log.hpp"
#include "spec/access.hpp"

namespace numacre::daemon {
namespace {

// False for root and the daemon's own user, which are never limited.
bool is_limited(const Peer &who) {
    return who.uid != 0 && who.uid != os::geteuid();
}

// One in kReservedShare of all connections is reserved for root and the daemon's own user, who must be able to look at
// what the others do.
constexpr std::uint32_t kReservedShare = 16;
constexpr int kSparedAtOnce = 8;
constexpr std::chrono::milliseconds kUnreadPause{20};
constexpr std::chrono::seconds kUnreadPatience{3};
constexpr std::size_t kLaterAtOnce = 16;  // waiting sessions of a user that all try again once in kUnreadPause
constexpr std::size_t kLaterMost = 1024;  // bounds the pause, so that the last session tries before its client gives up
constexpr unsigned kEventsRequestsMax = 16;

}  // namespace

AttachServer::AttachServer(EventLoop &loop, Worker &worker, Registry &registry, Reaper &reaper,
                           const Topology &topology, ClientObjects &objects, Fd listener, Limits limits)
    : loop_(loop),
      worker_(worker),
      objects_(objects),
      registry_(registry),
      reaper_(reaper),
      topology_(topology),
      closer_(!takes_descriptors(listener.get())),
      listener_(std::move(listener)),
      limits_(limits),
      connection_limits_(limits.of_a_user),
      // Half of what may be in flight is for root and the daemon's own user.
      unread_(loop, closer_, connection_limits_,
              std::max<std::size_t>(limits.descriptors_in_flight / 2, 4 * descriptors_of_reply()),
              [this](SessionId id) {
                  const auto found = sessions_.find(id);
                  return found == sessions_.end() ? -1 : found->second->connection.get();
              }),
      refusal_lines_(std::chrono::steady_clock::now(), UserLines::kRefusalsAtOnce),
      arrival_lines_(std::chrono::steady_clock::now(), UserLines::kClientsAtOnce) {
    accept();
    reaper_.after_walks([this](std::uint64_t instance_id) { ring_bells(instance_id); });
    subscription_ = registry_.events().subscribe([this](const Event &event) { tell_of(event); });
}

AttachServer::~AttachServer() {
    reaper_.after_walks({});
    loop_.cancel(accepting_);
    closer_.close(std::move(listener_));
    for (const auto &[id, session] : sessions_) {
        for (const auto wait : {session->packet_wait, session->silence_wait, session->death_wait, session->signal_wait})
            loop_.cancel(wait);
        closer_.close(std::move(session->connection));
    }
}

void AttachServer::accept() {
    // Some connections take long to close, because of descriptors in them. No connection is accepted until some of them
    // are closed: turning a caller away is closing, too.
    if (closer_.backlog() >= kClosingMax) {
        loop_.after(kClosingPause, [this] { accept(); });
        return;
    }
    accepting_ = loop_.accept_each(listener_.get(), [this](int fd) { accepted(fd); });
}

void AttachServer::accepted(int fd_or_error) {
    if (fd_or_error < 0) {
        log::warn("a connection could not be accepted", {{"error", std::strerror(-fd_or_error)}});
        return;
    }
    auto made = std::make_unique<Session>();
    made->connection = Fd(fd_or_error);
    made->id = ++last_session_;
    struct Turned {  // turned away: a connection that does not become a session is closed like any other
        Closer &closer;
        std::unique_ptr<Session> &made;
        ~Turned() {
            if (made) closer.close(std::move(made->connection));
        }
    } const turned{closer_, made};
    // Connections that the kernel accepted meanwhile still arrive here.
    if (accepting_ != 0 && closer_.backlog() >= kClosingMax) {
        loop_.stop_accepting(std::exchange(accepting_, 0));
        accept();
    }
    const Peer who = credentials_of(made->connection.get());
    made->peer = who;
    if (is_limited(who)) {
        // Before any look at /proc: a user who is over the limit must not cost much.
        const auto verdict = connection_limits_.admit(who.uid, std::chrono::steady_clock::now());
        if (!verdict.refused.empty()) {
            refuse(*made, Errc::too_many_connections, verdict.refused, verdict.is_news);
            return;
        }
        made->is_limited = true;
    }
    const auto turn_away = [&](Errc code, const std::string &message) {
        if (made->is_limited) connection_limits_.closed(who.uid, true);
        refuse(*made, code, message);
    };
    const std::uint32_t reserved = reserved_from(*made);
    if (connections() + reserved >= limits_.connections) {
        turn_away(Errc::too_many_connections, "the daemon has " + std::to_string(connections()) + " connections of " +
                                                  std::to_string(limits_.connections) + ", " +
                                                  std::to_string(reserved) + " of them for root only: close some, or " +
                                                  "raise --max-connections and the open file limit");
        return;
    }
    make_room_among_the_silent();
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
               "no attach request within " + std::to_string(limits_.silence.count()) +
                   " ms of connecting: send it at once");
        close_session(id);
    });
    silent_.add(made->is_limited, made->peer.uid, id);
    sessions_.emplace(id, std::move(made));
    listen_to(id);
}

std::uint32_t AttachServer::reserved_from(const Session &session) const {
    return session.is_limited ? limits_.connections / kReservedShare : 0;
}

// Ids are reused after 2^32 attaches: a client that has been there for so long keeps its id.
std::uint32_t AttachServer::unused_client_id() {
    for (;;) {
        const std::uint32_t id = registry_.next_client_id();
        if (!client_ids_.contains(id)) return id;
    }
}

void AttachServer::make_room_among_the_silent() {
    if (silent_.count() < limits_.silent_connections) return;
    auto oldest = silent_.first_to_go();
    // A connection whose message has arrived, but has not been read yet, is spared: in a flood of many users'
    // connections it is the honest one. Its message is read before long, so it no longer counts as silent.
    for (int spared = 0; oldest && spared < kSparedAtOnce; ++spared) {
        const Session &session = *sessions_.at(*oldest);
        std::byte byte{};
        if (os::recv(session.connection.get(), &byte, sizeof byte, MSG_PEEK | MSG_DONTWAIT) <= 0) break;
        silent_.remove(session.is_limited, session.peer.uid, *oldest);
        oldest = silent_.first_to_go();
    }
    if (!oldest || silent_.count() < limits_.silent_connections) return;
    refuse(*sessions_.at(*oldest), Errc::too_many_connections,
           "this connection has not attached, and had to make room for another: " + std::to_string(silent_.count()) +
               " are silent, and no user has more of them than this one: attach right after connecting");
    close_session(*oldest);
}

void AttachServer::adopt(std::shared_ptr<ManagedPool> pool, const Client &client) {
    auto made = std::make_unique<Session>();
    Session &session = *made;
    session.id = ++last_session_;
    session.phase = Session::Phase::lost;
    session.peer = client.peer;
    session.pool = std::move(pool);
    session.client = client;
    client_ids_.insert(client.id);
    // The kernel gave the uid when the client attached; the ledger, which is ours alone, has kept it.
    session.is_limited = is_limited(client.peer);
    if (session.is_limited) connection_limits_.adopted(client.peer.uid, std::chrono::steady_clock::now());
    const SessionId id = session.id;
    sessions_.emplace(id, std::move(made));
    if (client.state == ClientState::recovering) {
        depart(session, Departure::died);
        return;
    }
    lose(session);
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
        if (size == -EBADMSG && session.phase == Session::Phase::silent)
            refuse(session, Errc::bad_argument,
                   "descriptors came with the message, which nobody has asked for: send none");
        connection_ended(session);
        return;
    }
    if (session.phase == Session::Phase::silent) {
        received_first(session, static_cast<std::size_t>(size), packet);
        return;
    }
    // Nothing comes after a bell has been made.
    if (session.phase == Session::Phase::bell) return close_session(id);
    if (session.phase != Session::Phase::attached) return;
    // A client may ask once, and a few times more if no descriptor was left: so the requests of a connection are
    // bounded.
    if (!session.event_fd && session.events_requests < kEventsRequestsMax &&
        !check_message(static_cast<std::size_t>(size), packet, wire::MessageType::events_request,
                       sizeof(wire::EventsRequest))) {
        ++session.events_requests;
        give_event_fd(session);
        return;
    }
    const auto fault = check_message(static_cast<std::size_t>(size), packet, wire::MessageType::detach_request,
                                     sizeof(wire::DetachRequest));
    if (!fault) {
        detach(session);
        return;
    }
    if (const auto left_out = refusal_lines_.line_for(session.peer.uid, std::chrono::steady_clock::now()))
        log::warn("an attached client sent nonsense: its connection is closed",
                  {{"client", session.client.id},
                   {"pid", session.peer.pid},
                   {"reason", fault->message},
                   {"refused_before_without_a_line", *left_out}});
    connection_ended(session);
}

void AttachServer::received_first(Session &session, std::size_t size, std::span<const std::byte> packet) {
    using Type = wire::MessageType;
    const auto serve = [&](Type type, std::size_t expected_size, const auto &read, const auto &act) {
        const auto fault = check_message(size, packet, type, expected_size);
        auto wish = fault ? Unexpected{*fault} : read(packet);
        if (wish) return act(*wish);
        refuse(session, wish.error().code, wish.error().message);
        close_session(session.id);
    };
    if (is_of_type(Type::pin_request, packet))
        return serve(Type::pin_request, sizeof(wire::PinRequest), read_pin_request,
                     [&](const PinWish &wish) { pin(session, wish); });
    if (is_of_type(Type::channel_request, packet))
        return serve(Type::channel_request, sizeof(wire::ChannelRequest), read_channel_request,
                     [&](const ChannelOrder &order) { see_to_channel(session, order); });
    if (is_of_type(Type::bell_request, packet))
        return serve(Type::bell_request, sizeof(wire::BellRequest), read_bell_request,
                     [&](const BellWish &wish) { see_to_bell(session, wish); });
    if (is_of_type(Type::name_request, packet))
        return serve(Type::name_request, sizeof(wire::NameRequest), read_name_request,
                     [&](const NameWish &wish) { change_name(session, wish); });
    if (is_of_type(Type::objects_request, packet))
        return serve(Type::objects_request, sizeof(wire::ObjectsRequest), read_objects_request,
                     [&](const ObjectsWish &wish) { open_objects(session, wish); });
    serve(Type::attach_request, sizeof(wire::AttachRequest), read_attach_request, [&](AttachWish &wish) {
        session.wish = std::move(wish);
        attach(session);
    });
}

void AttachServer::refuse(Session &session, Errc code, const std::string &message, bool is_news) {
    registry_.count(&DaemonTotals::attach_refused);
    // A line for each refusal would be a flood that any user can cause.
    const auto now = std::chrono::steady_clock::now();
    if (const auto left_out = is_news ? refusal_lines_.line_for(session.peer.uid, now) : std::nullopt) {
        // The line has no program name. That would need a look at /proc, and a process without any rights is not looked
        // at.
        log::warn("attach refused", {{"pid", session.peer.pid},
                                     {"uid", session.peer.uid},
                                     {"reason", message},
                                     {"refused_before_without_a_line", *left_out}});
    }
    send_refusal(session, code, message);
}

void AttachServer::send_refusal(const Session &session, Errc code, const std::string &message) {
    wire::AttachReply reply;
    reply.error = static_cast<std::uint32_t>(code);
    put_message(reply, message);
    // The send does not wait: a client that does not read its replies does not get one.
    send_now(session.connection.get(), &reply, sizeof reply, {});
    // Reads the packets that are left: closing with packets unread would turn the reply into ECONNRESET at the other
    // end. Packets with descriptors stay.
    constexpr int kUnreadPacketsMax = 4;
    for (int i = 0; i < kUnreadPacketsMax; ++i) {
        msghdr packet{};
        if (os::recvmsg(session.connection.get(), &packet, MSG_DONTWAIT | MSG_PEEK) < 0 ||
            (packet.msg_flags & MSG_CTRUNC) != 0 || os::recv(session.connection.get(), nullptr, 0, MSG_DONTWAIT) < 0)
            break;
    }
}

Answer<void> AttachServer::check_access(const Session &session, const ManagedPool &pool, wire::Tier tier) const {
    const auto description = pool.description();
    const PoolAccess &access = description->spec.access;
    const Peer &peer = session.peer;
    Credentials who{peer.uid, peer.gid, {}};
    std::vector<std::uint32_t> groups;
    if (depends_on_groups(access, who, tier, os::geteuid())) {
        auto known = groups_of(session.connection.get());
        if (!known) return Unexpected{known.error()};
        groups = std::move(*known);
        who.groups = groups;
    }
    if (may_attach(access, who, tier, os::geteuid())) return {};
    const char *const wanted = tier == wire::Tier::observer ? "observe (r)" : "use (w)";
    return Unexpected{Failure{Errc::access_denied, "uid " + std::to_string(peer.uid) + " may not " + wanted +
                                                       " pool \"" + pool.name() + "\", which is " + description->owner +
                                                       ":" + description->group + " " + format_mode(access.mode) +
                                                       ": join group " + description->group +
                                                       ", or set the pool's owner, group or mode"}};
}

void AttachServer::begin_to_serve(Session &session) {
    if (session.phase != Session::Phase::silent) return;
    session.phase = Session::Phase::attaching;
    loop_.cancel(std::exchange(session.silence_wait, 0));
    silent_.remove(session.is_limited, session.peer.uid, session.id);
    if (session.is_limited) connection_limits_.attached(session.peer.uid);
}

void AttachServer::open_objects(Session &session, const ObjectsWish &wish) {
    const auto fail = [this](Session &refused, const Failure &why) {
        refuse(refused, why.code, why.message);
        close_session(refused.id);
    };
    const auto parent = registry_.find(wish.within);
    if (!parent) return fail(session, parent.error());
    if (const auto allowed = check_access(session, **parent, wire::Tier::trusted); !allowed)
        return fail(session, allowed.error());
    session.wish = {wish.pool_name(), wire::Tier::trusted};
    const auto description = (*parent)->description();
    if (const auto there = registry_.find(wish.pool_name())) {
        const auto is_same = check_same_objects((*there)->description()->spec, wish, description->spec);
        return is_same ? attach(session) : fail(session, is_same.error());
    }
    const std::uint32_t uid = session.peer.uid;
    if (!may_make_any(uid, description->spec) && description->spec.object_memory_bytes == 0)
        return fail(session,
                    {Errc::access_denied, "uid " + std::to_string(uid) + " may make no object pool within pool \"" +
                                              wish.within + "\": let its owner " + description->owner +
                                              " make it, or an operator raise object-memory (numacre set)"});
    begin_to_serve(session);
    watch_for_hang_up(session);
    session.objects_order = std::make_shared<ObjectsOrder>();
    session.objects_order->wish = wish;
    session.objects_order->uid = uid;
    session.objects_order->parent_id = (*parent)->instance_id();
    objects_.make(session.objects_order, [this, id = session.id, fail](const Answer<void> &made) {
        loop_.post([this, id, fail, made] {
            objects_.watch();
            const auto found = sessions_.find(id);
            if (found == sessions_.end()) return;  // the client has hung up meanwhile
            Session &waiting = *found->second;
            waiting.objects_order.reset();
            if (!made) return fail(waiting, made.error());
            loop_.cancel(std::exchange(waiting.packet_wait, 0));
            attach(waiting);
        });
    });
}

void AttachServer::attach(Session &session) {
    // Processes that ended while they waited for a busy daemon would take the seats of those that still wait.
    if (has_hung_up(session.connection.get())) return close_session(session.id);
    const auto fail = [&](const Failure &why) {
        refuse(session, why.code, why.message);
        close_session(session.id);
    };
    const AttachWish &wish = session.wish;
    auto pool = registry_.find(wish.pool_name);
    if (!pool) return fail(pool.error());
    if (const auto allowed = check_access(session, **pool, wish.tier); !allowed) return fail(allowed.error());
    begin_to_serve(session);
    if (session.is_limited && unread_.would_be_too_many(session.peer.uid, descriptors_of_reply())) {
        attach_later(session);
        return;
    }
    // No attach waits for a pool that a client keeps busy: the next attach may be to another pool.
    Worker &worker = (*pool)->record_worker();
    if (worker.busy_for() > kPatienceWithPool)
        return fail({Errc::timed_out, "pool \"" + wish.pool_name +
                                          "\" cannot take clients now: the kernel makes the daemon wait for the pool's "
                                          "files; try again later, or end the client that keeps them busy"});
    describe(session.peer);
    const std::uint32_t client_id = unused_client_id();
    client_ids_.insert(client_id);
    session.client.id = client_id;
    watch_for_hang_up(session);
    session.order = std::make_shared<SeatOrder>(session.peer);
    worker.post([this, id = session.id, pool = std::move(*pool), client_id, order = session.order, tier = wish.tier] {
        auto peer = order->take();
        if (!peer) {
            loop_.post([this, client_id] { client_ids_.erase(client_id); });
            return;
        }
        auto client = pool->seat(client_id, std::move(*peer), tier);
        loop_.post([this, id, pool, client_id, client = std::move(client)] {
            const auto found = sessions_.find(id);
            if (!client) {
                client_ids_.erase(client_id);
                if (found == sessions_.end()) return;
                refuse(*found->second, client.error().code, client.error().message);
                close_session(id);
            } else if (found == sessions_.end()) {  // the client has hung up meanwhile
                give_seat_back(pool, *client);
            } else {
                found->second->pool = pool;
                found->second->client = *client;
                serve(*found->second);
            }
        });
    });
}

// Watches for a hang-up while the session is given a seat, which may take long. A client that sends something meanwhile
// is not watched any more.
void AttachServer::watch_for_hang_up(Session &session) {
    session.packet_wait = loop_.when_readable(session.connection.get(), [this, id = session.id] {
        const auto found = sessions_.find(id);
        if (found == sessions_.end()) return;
        found->second->packet_wait = 0;
        if (found->second->phase == Session::Phase::attaching && has_hung_up(found->second->connection.get()))
            close_session(id);
    });
}

// Gives back the seat of a client that never had the memory.
void AttachServer::give_seat_back(const std::shared_ptr<ManagedPool> &pool, const Client &client) {
    client_ids_.erase(client.id);
    pool->record_worker().post([pool, slot = client.slot] { pool->vacate(slot, Departure::detached, {}, 0); });
}

// Sends the attach reply to a session that has a seat.
void AttachServer::serve(Session &session) {
    const SessionId id = session.id;
    loop_.cancel(std::exchange(session.packet_wait, 0));
    // The check and the count are one step here: other sessions have been given seats since the last check.
    const std::size_t descriptors = descriptors_of_reply();
    int error = session.is_limited && unread_.would_be_too_many(session.peer.uid, descriptors) ? ETOOMANYREFS : 0;
    if (error == 0) {
        if (session.is_limited) unread_.add(session.peer.uid, id, descriptors);
        error = send_attached(session, session.wish.tier, session.client);
    }
    if (error != 0) {
        give_seat_back(session.pool, session.client);
        session.client = {};
        session.pool.reset();
        unread_.forget(session.peer.uid, session.id);
        if (error == ETOOMANYREFS) {
            attach_later(session);
            return;
        }
        registry_.count(&DaemonTotals::attach_refused);
        close_session(id);
        return;
    }
    session.phase = Session::Phase::attached;
    watch_process(session);
    registry_.count(&DaemonTotals::attach_ok);
    const std::string &name = session.wish.pool_name;
    // A line for each attach would be a flood that any user who may attach can cause. Where a user's clients come too
    // fast, the line is only at debug level.
    const auto left_out = arrival_lines_.line_for(session.peer.uid, std::chrono::steady_clock::now());
    const auto say = left_out ? log::info : log::debug;
    say("client attached", {{"pool", name},
                            {"client", session.client.id},
                            {"pid", session.peer.pid},
                            {"uid", session.peer.uid},
                            {"comm", session.peer.comm},
                            {"tier", session.wish.tier == wire::Tier::observer ? "observer" : "trusted"}});
    if (left_out.value_or(0) != 0)
        log::info("a user's clients attached before without a line",
                  {{"uid", session.peer.uid}, {"clients", *left_out}});
    Event event;
    event.pool = name;
    event.kind = EventKind::client_attached;
    event.message = session.peer.comm + " (pid " + std::to_string(session.peer.pid) + ") attached";
    event.client_id = session.client.id;
    registry_.events().publish(std::move(event));
    listen_to(id);
}

// Repeats the attach until some replies have been read, which a burst of attaches does almost at once. The refusal
// comes before the client gives up by itself (five seconds: client/src/attach.cpp), so that the client learns the
// reason.
void AttachServer::attach_later(Session &session) {
    const auto now = std::chrono::steady_clock::now();
    if (!session.gives_up_at) session.gives_up_at = now + kUnreadPatience;
    const std::uint32_t uid = session.peer.uid;
    if (now >= *session.gives_up_at) {
        refuse(session, Errc::too_many_clients,
               "uid " + std::to_string(uid) +
                   ", or another, has attach replies that it does not read, as many as may be on their way: end the "
                   "processes that keep them, or give the daemon a higher open file limit or CAP_SYS_RESOURCE");
        close_session(session.id);
        return;
    }
    // The more sessions of a user wait, the less often each tries: a thousand of them would keep the loop from all
    // others.
    const std::size_t waiting = ++later_[uid];
    const auto pause = kUnreadPause * static_cast<int>(1 + std::min(waiting, kLaterMost) / kLaterAtOnce);
    loop_.after(pause, [this, id = session.id, uid] {
        if (--later_[uid] == 0) later_.erase(uid);
        if (const auto found = sessions_.find(id); found != sessions_.end()) attach(*found->second);
    });
}

std::size_t AttachServer::descriptors_of_reply() const {
    return 1 + 2 * topology_.numa_nodes().size();
}

int AttachServer::send_attached(Session &session, wire::Tier tier, const Client &client) {
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
                return EACCES;
            }
            fd = reader->get();
            read_only.push_back(std::move(*reader));
        }
    }
    const int error = send_now(session.connection.get(), &reply, sizeof reply, fds);
    if (error == 0 || error == ETOOMANYREFS) return error;
    if (const auto left_out = refusal_lines_.line_for(session.peer.uid, std::chrono::steady_clock::now()))
        log::warn("the attach reply could not be sent", {{"pid", session.peer.pid},
                                                         {"uid", session.peer.uid},
                                                         {"error", std::strerror(error)},
                                                         {"refused_before_without_a_line", *left_out}});
    return error;
}

}  // namespace numacre::daemon
