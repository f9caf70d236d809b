#include "attach/attach_server.hpp"

#include <linux/sockios.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "attach/attach_message.hpp"
#include "numacre/os/kernel.hpp"
#include "os/fd_passing.hpp"
#include "os/log.hpp"
#include "spec/access.hpp"

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
    enum class Phase : std::uint8_t { silent, attaching, attached, lost, departing };

    SessionId id = 0;
    Phase phase = Phase::silent;
    Fd connection;  // closed by closer_
    Peer peer;
    bool is_limited = false;  // counted in connection_limits_
    EventLoop::WaitId packet_wait = 0;
    EventLoop::WaitId silence_wait = 0;
    EventLoop::WaitId death_wait = 0;
    Fd event_fd;  // set if the client has asked for it
    EventLoop::WaitId signal_wait = 0;
    std::optional<std::chrono::steady_clock::time_point> gives_up_at;  // while the user has too many unread replies
    unsigned events_requests = 0;
    bool has_been_refused_events = false;  // and the log says so, once
    bool signal_again = false;             // there is news that the signal under way does not cover
    // While attaching:
    AttachWish wish;
    std::shared_ptr<SeatOrder> order;
    // From the seat on:
    std::shared_ptr<ManagedPool> pool;
    Client client;
    bool is_looked_at = false;  // lost: the worker is finding out what became of the process

    bool is_client() const { return phase == Phase::attached || phase == Phase::lost; }
    // True if a message that was sent may have carried descriptors.
    bool has_been_served() const { return is_client() || phase == Phase::departing; }
};

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
constexpr std::size_t kUnreadShare = 8;
constexpr unsigned kEventsRequestsMax = 16;

// True if the other end is closed, and nothing that it has sent is unread.
bool has_hung_up(int connection) {
    std::byte byte{};
    return os::recv(connection, &byte, sizeof byte, MSG_PEEK | MSG_DONTWAIT) == 0;
}

// Never blocks. Returns 0 or an errno.
int send_now(int connection, const void *data, std::size_t size, std::span<const int> fds) {
    return send_packet<wire::kMaxFds>(connection, data, size, fds, MSG_DONTWAIT);
}

// True if the other end has not received all that we have sent, and still can.
bool has_unread(int connection) {
    int bytes = 0;
    return connection >= 0 && os::ioctl(connection, SIOCOUTQ, &bytes) == 0 && bytes != 0;
}

}  // namespace

AttachServer::AttachServer(EventLoop &loop, Worker &worker, Registry &registry, Reaper &reaper,
                           const Topology &topology, Fd listener, Limits limits)
    : loop_(loop),
      worker_(worker),
      registry_(registry),
      reaper_(reaper),
      topology_(topology),
      closer_(!takes_descriptors(listener.get())),
      listener_(std::move(listener)),
      limits_(limits),
      connection_limits_(limits.of_a_user),
      refusal_lines_(std::chrono::steady_clock::now(), UserLines::kRefusalsAtOnce),
      arrival_lines_(std::chrono::steady_clock::now(), UserLines::kClientsAtOnce) {
    accept();
    subscription_ = registry_.events().subscribe([this](const Event &event) { tell_of(event); });
}

AttachServer::~AttachServer() {
    loop_.cancel(accepting_);
    closer_.close(std::move(listener_));
    for (auto &[uid, unread] : unread_)
        for (Unread::Left &left : unread.left) closer_.close(std::move(left.connection));
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
               "no attach request within " + std::to_string(limits_.silence.count()) + " ms of connecting");
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
            refuse(session, Errc::bad_argument, "descriptors came with the message, which nobody has asked for");
        connection_ended(session);
        return;
    }
    if (session.phase == Session::Phase::silent) {
        const auto fault = check_message(static_cast<std::size_t>(size), packet, wire::MessageType::attach_request,
                                         sizeof(wire::AttachRequest));
        if (fault) {
            refuse(session, fault->code, fault->message);
            close_session(id);
            return;
        }
        auto wish = read_attach_request(packet);
        if (!wish) {
            refuse(session, wish.error().code, wish.error().message);
            close_session(id);
            return;
        }
        session.wish = std::move(*wish);
        attach(session);
        return;
    }
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
    // From here on the session is served, however long that takes, and no longer counts as silent.
    if (session.phase == Session::Phase::silent) {
        session.phase = Session::Phase::attaching;
        loop_.cancel(std::exchange(session.silence_wait, 0));
        silent_.remove(session.is_limited, session.peer.uid, session.id);
        if (session.is_limited) connection_limits_.attached(session.peer.uid);
    }
    if (session.is_limited && has_too_many_unread(session.peer.uid, descriptors_of_reply())) {
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
    int error = session.is_limited && has_too_many_unread(session.peer.uid, descriptors) ? ETOOMANYREFS : 0;
    if (error == 0) {
        if (session.is_limited) unread_[session.peer.uid].sessions[id] = descriptors;
        error = send_attached(session, session.wish.tier, session.client);
    }
    if (error != 0) {
        give_seat_back(session.pool, session.client);
        session.client = {};
        session.pool.reset();
        forget_reply_to(session);
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

// Descriptors in flight count against the limit of all daemons of our user (RLIMIT_NOFILE, for processes that lack
// CAP_SYS_RESOURCE): unread replies would keep all others from attaching. Limited users together have half of the
// descriptors that may be in flight. Each of them has an eighth of the part of that half that the others leave. So
// however many users take their share, the next one has a share, too.
bool AttachServer::has_too_many_unread(std::uint32_t uid, std::size_t descriptors) {
    const std::size_t most = std::max<std::size_t>(limits_.descriptors_in_flight / 2, 4 * descriptors_of_reply());
    const auto are_too_many = [&] {
        std::size_t others = 0, own = 0;
        for (const auto &[whose, unread] : unread_) (whose == uid ? own : others) += unread.descriptors();
        if (others + own + descriptors > most) return true;
        return own != 0 && own + descriptors > (most - others) / kUnreadShare;
    };
    if (!are_too_many()) return false;
    // The sessions are asked only now and then: each costs a system call.
    const auto now = std::chrono::steady_clock::now();
    if (now - unread_asked_ >= kUnreadPause / 2) {
        unread_asked_ = now;
        forget_read();
    }
    return are_too_many();
}

void AttachServer::forget_read() {
    const auto is_read = [this](const auto &session) {
        const auto found = sessions_.find(session.first);
        return found == sessions_.end() || !has_unread(found->second->connection.get());
    };
    for (auto user = unread_.begin(); user != unread_.end();) {
        std::erase_if(user->second.sessions, is_read);
        std::erase_if(user->second.left, [&](Unread::Left &left) {
            if (has_unread(left.connection.get())) return false;
            closer_.close(std::move(left.connection));
            connection_limits_.closed(user->first, false);
            --left_unread_count_;
            return true;
        });
        user = user->second.is_empty() ? unread_.erase(user) : std::next(user);
    }
}

std::size_t AttachServer::Unread::descriptors() const {
    std::size_t all = 0;
    for (const auto &[id, of_session] : sessions) all += of_session;
    for (const Left &one : left) all += one.descriptors;
    return all;
}

std::size_t AttachServer::descriptors_of_reply() const {
    return 1 + 2 * topology_.numa_nodes().size();
}

std::size_t AttachServer::unread_descriptors_of(const Session &session) const {
    const auto user = unread_.find(session.peer.uid);
    if (user == unread_.end()) return 0;
    const auto found = user->second.sessions.find(session.id);
    return found == user->second.sessions.end() ? 0 : found->second;
}

void AttachServer::forget_reply_to(const Session &session) {
    const auto unread = unread_.find(session.peer.uid);
    if (unread == unread_.end()) return;
    unread->second.sessions.erase(session.id);
    if (unread->second.is_empty()) unread_.erase(unread);
}

// Closing the connection would not take back descriptors in flight: they stay with the other end, which may keep them
// for as long as it likes. So a connection that a user leaves unread goes on counting as a connection.
void AttachServer::close_when_read(Fd connection, std::uint32_t uid, std::size_t descriptors) {
    connection_limits_.adopted(uid, std::chrono::steady_clock::now());
    unread_[uid].left.push_back({std::move(connection), descriptors});
    ++left_unread_count_;
    watch_left_unread();
}

// Runs only while there are such connections: an idle daemon does not wake up.
void AttachServer::watch_left_unread() {
    if (std::exchange(watching_left_unread_, true)) return;
    loop_.after(kLeftUnreadPeriod, [this] {
        watching_left_unread_ = false;
        forget_read();
        if (left_unread_count_ != 0) watch_left_unread();
    });
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

void AttachServer::give_event_fd(Session &session) {
    // If the client has read its messages so far, their descriptors no longer count; else the new one counts with them.
    if (session.is_limited && !has_unread(session.connection.get())) forget_reply_to(session);
    const bool may_be_unread = !session.is_limited || !has_too_many_unread(session.peer.uid, 1);
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
    if (fd && session.is_limited) ++unread_[session.peer.uid].sessions[session.id];
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

void AttachServer::detach(Session &session) {
    depart(session, Departure::detached);
}

void AttachServer::connection_ended(Session &session) {
    if (session.phase == Session::Phase::silent) {
        close_session(session.id);
        return;
    }
    if (session.phase != Session::Phase::attached) return;
    // Descriptors that the client has not read stay in flight, and count, as long as the session exists;
    // close_session() takes care of them then.
    if (!session.is_limited || !has_unread(session.connection.get())) closer_.close(std::move(session.connection));
    // A lost connection alone gives no memory back: the process may have the memory mapped, and most likely is just
    // ending.
    session.pool->set_client_state(session.client.slot, ClientState::lost);
    lose(session);
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
    reaper_.reap(session.pool, session.client, departure, [this, id, departure] {
        const auto found = sessions_.find(id);
        if (found == sessions_.end()) return;
        const int connection = found->second->connection.get();
        const bool unread = has_unread(connection);  // before the detach reply is sent
        if (departure == Departure::detached) {
            const wire::DetachReply reply;
            send_now(connection, &reply, sizeof reply, {});
        }
        close_session(id, unread);
    });
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
    const std::size_t unread = has_unread && session.is_limited ? unread_descriptors_of(session) : 0;
    loop_.cancel(session.packet_wait, [this, connection, unread, uid = session.peer.uid] {
        if (unread != 0)
            close_when_read(std::move(*connection), uid, unread);
        else
            closer_.close(std::move(*connection));
    });
    if (session.event_fd) {
        --event_fd_count_;
        if (session.is_limited) connection_limits_.closed(session.peer.uid, false);
    }
    forget_reply_to(session);
    if (session.order) session.order->cancel();
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

// Sends the signal only while the process is our client: a process that has detached, or runs another program, is a
// stranger.
void AttachServer::end_client(SessionId id, int signal) {
    const auto found = sessions_.find(id);
    if (found == sessions_.end()) return;
    Session &session = *found->second;
    // The client may have closed its connection a moment ago, as an exec does.
    std::byte byte{};
    if (session.phase == Session::Phase::attached &&
        os::recv(session.connection.get(), &byte, sizeof byte, MSG_PEEK | MSG_DONTWAIT) == 0)
        connection_ended(session);
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
