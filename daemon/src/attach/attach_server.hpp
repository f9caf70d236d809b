// The attach socket: gives pools to clients and notices when clients go. Belongs to the event loop's thread. Its
// sources: attach_server.cpp (from a connection to a seat), attach_server_events.cpp, attach_server_pins.cpp,
// attach_server_bells.cpp, attach_server_channels.cpp, attach_server_names.cpp, attach_server_ends.cpp.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "attach/connection_limits.hpp"
#include "attach/unread_replies.hpp"
#include "base/user_lines.hpp"
#include "engine.hpp"
#include "memory/topology.hpp"
#include "numacre/shm/attach_wire.hpp"
#include "os/closer.hpp"
#include "os/event_loop.hpp"
#include "os/fd.hpp"
#include "os/worker.hpp"
#include "pool/managed_pool.hpp"
#include "pool/reaper.hpp"
#include "pool/registry.hpp"

namespace numacre::daemon {

class ClientObjects;
class SeatOrder;
struct NameWish;
struct ObjectsWish;
struct PinWish;
struct BellWish;
struct ChannelOrder;

class AttachServer {
public:
    struct Limits {
        std::uint32_t connections = 4096;  // all together; each descriptor for events, or bell, counts as one more
        // Descriptors that may be sent and not yet received. Limited users together may have half of them.
        std::uint64_t descriptors_in_flight = 65536;
        std::uint32_t silent_connections = 256;  // not attached yet; beyond, the oldest of one user is closed
        std::chrono::milliseconds silence{10'000};
        ConnectionLimits::Limits of_a_user;  // root and the daemon's own user have no such limits
    };

    AttachServer(EventLoop &loop, Worker &worker, Registry &registry, Reaper &reaper, const Topology &topology,
                 ClientObjects &objects, Fd listener, Limits limits);
    AttachServer(const AttachServer &) = delete;
    AttachServer &operator=(const AttachServer &) = delete;
    // Closes all connections and gives nothing back: the clients go on with the memory that they have mapped.
    ~AttachServer();

    // Adds a client of an earlier daemon, whose connection ended with that daemon. To be called before the loop runs.
    void adopt(std::shared_ptr<ManagedPool> pool, const Client &client);

    // Ends a client's process: SIGTERM now, SIGKILL if the process is still there after the grace period. Each signal
    // is sent only while the process is our client. Any thread.
    void evict(std::uint32_t client_id, std::chrono::milliseconds grace);

    // Forgets the clients of a pool that is being deleted. Any thread.
    void abandon(const std::shared_ptr<ManagedPool> &pool);

    // All bells of the pool's channels: somebody has died who may have been about to ring, recovery has changed
    // channels, or an operator has ended one. On the loop's thread.
    void ring_bells(std::uint64_t instance_id);

private:
    struct Session;
    using SessionId = UnreadReplies::SessionId;

    void accept();
    void accepted(int fd_or_error);
    // The number of connections, and of descriptors for events, that the session's user may not take.
    std::uint32_t reserved_from(const Session &session) const;
    std::uint32_t unused_client_id();
    void make_room_among_the_silent();
    // The sum that limits_.connections bounds.
    std::size_t connections() const { return sessions_.size() + event_fd_count_ + unread_.connections(); }
    std::size_t descriptors_of_reply() const;
    void attach_later(Session &session);
    void listen_to(SessionId id);
    void received(SessionId id, int size, std::span<const std::byte> packet);
    // The first message of a connection: what it asks for is done, or refused.
    void received_first(Session &session, std::size_t size, std::span<const std::byte> packet);
    void attach(Session &session);
    // Attaches to the object pool, which is made before if there is none.
    void open_objects(Session &session, const ObjectsWish &wish);
    // Of a client, on a connection that it has made for this; see pins.hpp.
    void pin(Session &session, const PinWish &wish);
    void send_pin(Session &session, const ManagedPool::Pinned &pinned);
    // A client that calls on a connection that it has made for this.
    struct Caller {
        std::shared_ptr<ManagedPool> pool;
        Client client;
    };
    // Of a client, too, on a connection that it has made for this.
    void see_to_channel(Session &session, const ChannelOrder &order);
    // Tries again until then while an earlier channel of the name is going.
    void see_to_channel(SessionId id, const Caller &caller, const ChannelOrder &order,
                        std::chrono::steady_clock::time_point until);
    void channel_is_seen_to(SessionId id, const Caller &caller, const ChannelOrder &order,
                            const ManagedPool::OpenChannel &channel);
    // Likewise; see attach_server_bells.cpp.
    void see_to_bell(Session &session, const BellWish &wish);
    void make_bell(Session &session, const BellWish &wish);
    void give_new_bell(SessionId id, std::uint64_t instance_id, std::uint32_t client_id,
                       const ManagedPool::ChannelUse &use);
    void fetch_bell(Session &session, const BellWish &wish);
    // Forgets the bells of a client whose process has ended: a child that it forked may keep the connections open.
    void drop_bells(std::uint64_t instance_id, std::uint32_t client_id);
    // The reason why no descriptor more may be kept for the session's user; empty: it is counted from here on.
    std::string count_descriptor(const Session &session);
    // Likewise; see names.hpp.
    void change_name(Session &session, const NameWish &wish);
    // Refuses a request that a client has made on a connection of its own. what: the request, for the log.
    void refuse_call(SessionId id, const char *what, const Failure &why);
    // The client with this seat, if it is the process at the other end of the connection.
    Answer<Caller> caller_of(const Session &session, std::uint64_t instance_id, ProcessSlot slot,
                             std::uint64_t process_generation) const;
    // caller_of(), whose pool can see to channels now.
    Answer<Caller> caller_about_channels(const Session &session, std::uint64_t instance_id, ProcessSlot slot,
                                         std::uint64_t process_generation) const;
    // Answers a request that a client has made on a connection of its own, if the client is still there. A client that
    // does not read the reply has what it has asked for all the same.
    void answer_call(SessionId id, const void *reply, std::size_t reply_bytes);
    // From here on the session is served, however long that takes, and no longer counts as silent.
    void begin_to_serve(Session &session);
    void watch_for_hang_up(Session &session);
    void give_seat_back(const std::shared_ptr<ManagedPool> &pool, const Client &client);
    void serve(Session &session);
    void detach(Session &session);
    void give_event_fd(Session &session);
    // Tells the event to the clients that it concerns. Any thread.
    void tell_of(const Event &event);
    void tell(const std::shared_ptr<ManagedPool> &pool, std::vector<SessionId> ids, std::uint64_t event_bits);
    void signal(Session &session);
    // is_news: the refusal deserves a line in the log. The refusal is counted in any case.
    void refuse(Session &session, Errc code, const std::string &message, bool is_news = true);
    void send_refusal(const Session &session, Errc code, const std::string &message);
    Answer<void> check_access(const Session &session, const ManagedPool &pool, wire::Tier tier) const;
    // 0, or an errno.
    int send_attached(Session &session, wire::Tier tier, const Client &client);
    void connection_ended(Session &session);
    void close_connection(Session &session);
    void lose(Session &session);
    void ask_after(Session &session, std::function<void(Session &)> if_there);
    void watch_process(Session &session);
    void process_ended(SessionId id);
    void depart(Session &session, Departure departure);
    void end_client(SessionId id, int signal);
    static void send(const Peer &peer, int signal);
    void close_session(SessionId id);
    void close_session(SessionId id, bool has_unread);
    void watch_lost();
    void check_lost();
    struct Lost;
    void look_at(Session &session);
    void judge(const Lost &one);

    static constexpr std::size_t kClosingMax = 256;
    static constexpr std::chrono::milliseconds kClosingPause{100};
    static constexpr std::chrono::milliseconds kFirstLostCheck{1000};
    static constexpr std::chrono::milliseconds kLostPeriod{3000};
    static constexpr std::chrono::milliseconds kEvictAgainAfter{20};
    static constexpr std::chrono::milliseconds kPatienceWithPool{2000};

    EventLoop &loop_;
    Worker &worker_;
    ClientObjects &objects_;
    Registry &registry_;
    Reaper &reaper_;
    const Topology &topology_;
    Closer closer_;
    Fd listener_;
    Limits limits_;
    EventLoop::WaitId accepting_ = 0;
    std::unordered_map<SessionId, std::unique_ptr<Session>> sessions_;
    SessionId last_session_ = 0;
    std::unordered_set<std::uint32_t> client_ids_;  // of sessions_
    SilentConnections silent_;
    std::unordered_map<std::uint32_t, std::size_t> later_;  // by uid: sessions that will try to attach again
    ConnectionLimits connection_limits_;
    UnreadReplies unread_;  // of limited users
    UserLines refusal_lines_;
    UserLines arrival_lines_;
    bool watching_lost_ = false;
    std::uint32_t event_fd_count_ = 0;
    std::unordered_map<std::uint64_t, SessionId> bells_;  // by serial
    std::uint64_t last_bell_ = 0;
    std::shared_ptr<void> subscription_;
};

}  // namespace numacre::daemon
