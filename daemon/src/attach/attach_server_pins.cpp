// Pins (pins.hpp) that clients ask for, each on a connection of its own.
#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "attach/attach_server.hpp"
#include "attach/connection.hpp"
#include "attach/session.hpp"
#include "numacre/shm/attach_wire.hpp"
#include "os/log.hpp"

namespace numacre::daemon {

namespace {

Failure no_such_client_here() {
    return {Errc::no_such_client,
            "no client of this process has such a seat in a pool: attach first, and ask before the pool is detached "
            "from or deleted"};
}

// Whether the process that has connected is the client's. Before Linux 6.9, where pidfds have no numbers of their own:
// two processes that live at the same time and have one number in one pid namespace are one process. (Where the daemon
// has no pidfd of a client that counts as living, another process of the same user may have got its number. That one
// would have to know the seat as well, and gets a descriptor that pins memory, no more.)
bool are_same(const Peer &client, const Peer &connected) {
    if (client.pidfd_inode != 0 && connected.pidfd_inode != 0) return client.pidfd_inode == connected.pidfd_inode;
    return client.pid != 0 && client.pid == connected.pid && client.pid_space == connected.pid_space &&
           client.uid == connected.uid && (!client.pidfd || !has_ended(*client.pidfd));
}

}  // namespace

Answer<AttachServer::Caller> AttachServer::caller_of(const Session &session, std::uint64_t instance_id,
                                                     ProcessSlot slot, std::uint64_t process_generation) const {
    const auto pools = registry_.all();
    const auto pool = std::ranges::find(pools, instance_id, [](const auto &each) { return each->instance_id(); });
    if (pool == pools.end())
        return Unexpected{
            Failure{Errc::no_such_pool, "the pool has been deleted: attach to one that is there (numacre pools)"}};
    // A process that may attach may do this, and this one has attached.
    auto client = (*pool)->client_at(slot);
    if (!client || client->generation != process_generation || client->tier != wire::Tier::trusted ||
        !are_same(client->peer, session.peer))
        return Unexpected{no_such_client_here()};
    return Caller{*pool, std::move(*client)};
}

void AttachServer::answer_call(SessionId id, const void *reply, std::size_t reply_bytes) {
    const auto found = sessions_.find(id);
    if (found == sessions_.end()) return;  // the client has hung up meanwhile
    Session &session = *found->second;
    loop_.cancel(std::exchange(session.packet_wait, 0));
    (void)send_now(session.connection.get(), reply, reply_bytes, {});
    close_session(id);
}

void AttachServer::refuse_call(SessionId id, const char *what, const Failure &why) {
    const auto found = sessions_.find(id);
    if (found == sessions_.end()) return;  // the client has hung up meanwhile
    // No attach is refused: clients ask often how much of a pool is online, or whether a channel is there.
    log::debug(std::string(what) + " refused", {{"pid", found->second->peer.pid}, {"reason", why.message}});
    send_refusal(*found->second, why.code, why.message);
    close_session(id);
}

void AttachServer::pin(Session &session, const PinWish &wish) {
    const auto fail = [this, id = session.id](const Failure &why) { refuse_call(id, "pin", why); };
    auto caller = caller_of(session, wish.instance_id, wish.slot, wish.process_generation);
    if (!caller) return fail(caller.error());
    auto &[pool, client] = *caller;
    if (!pool->has(wish.numa_node))
        return fail({Errc::no_such_node, "pool \"" + pool->name() + "\" has no numa node " +
                                             std::to_string(wish.numa_node.value) + ": use 0 to " +
                                             std::to_string(pool->numa_node_count() - 1)});
    const std::uint64_t capacity = pool->geometry().capacity_bytes();
    if (wish.bytes == 0 || wish.first_byte >= capacity || wish.bytes > capacity - wish.first_byte)
        return fail({Errc::bad_argument, std::to_string(wish.bytes) + " bytes from byte " +
                                             std::to_string(wish.first_byte) + " on are no range within the " +
                                             std::to_string(capacity) + " bytes of a numa node of pool \"" +
                                             pool->name() + "\": pin a range that numacre_region() tells"});
    if (session.is_limited && unread_.would_be_too_many(session.peer.uid, 1))
        return fail({Errc::too_many_clients, "uid " + std::to_string(session.peer.uid) +
                                                 " has replies that it does not read, as many as may be on their way: "
                                                 "read them, and pin again"});
    Worker &worker = pool->worker();
    if (worker.busy_for() > kPatienceWithPool)
        return fail({Errc::timed_out,
                     "pool \"" + pool->name() + "\" cannot pin now, for it is being changed: try again later"});
    begin_to_serve(session);
    watch_for_hang_up(session);
    worker.post([this, id = session.id, pool = pool, client = client, wish, fail] {
        // Shared, as a job can be copied. Dropped with the job, the descriptor ends the pin.
        const auto pinned = std::make_shared<Answer<ManagedPool::Pinned>>(
            pool->pin(client, wish.numa_node, wish.first_byte, wish.bytes));
        loop_.post([this, id, pinned, fail] {
            if (!*pinned) return fail(pinned->error());
            const auto found = sessions_.find(id);
            if (found != sessions_.end()) send_pin(*found->second, **pinned);
        });
    });
}

void AttachServer::send_pin(Session &session, const ManagedPool::Pinned &pinned) {
    loop_.cancel(std::exchange(session.packet_wait, 0));
    wire::PinReply reply;
    reply.first_byte = pinned.first_byte;
    reply.bytes = pinned.bytes;
    const std::array<int, 1> fds{pinned.descriptor.get()};
    if (session.is_limited) unread_.add(session.peer.uid, session.id, fds.size());
    // A client that does not get it has no pin: ours is closed with the answer.
    if (const int error = send_now(session.connection.get(), &reply, sizeof reply, fds); error == 0)
        session.phase = Session::Phase::departing;  // the descriptor may be unread
    else if (session.is_limited)
        unread_.forget(session.peer.uid, session.id);
    close_session(session.id);
}

}  // namespace numacre::daemon
