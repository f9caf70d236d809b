// Bells: the eventfds by which parties of channels wait (shm/channel/bells.hpp). A party asks for its bell on a
// connection of its own, and keeps the connection: the bell lives in the connection's session, so it ends with the
// party's process, and counts as a connection and a descriptor of its user. Those who have to ring it fetch it, once.
// The daemon rings for them then, so that the wake-up does not wait until they have it; and it rings all bells of a
// pool when a client dies and after each walk of its recovery.
//
// A daemon that is started anew has no bells of the one before. Those who have fetched them go on ringing. A party
// learns from its connection's end that others will not get its bell, and makes another one.
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "attach/attach_message.hpp"
#include "attach/attach_server.hpp"
#include "attach/connection.hpp"
#include "attach/session.hpp"
#include "numacre/os/kernel.hpp"
#include "numacre/shm/attach_wire.hpp"

namespace numacre::daemon {

void AttachServer::see_to_bell(Session &session, const BellWish &wish) {
    if (wish.wish == wire::BellRequest::Wish::make)
        make_bell(session, wish);
    else
        fetch_bell(session, wish);
}

void AttachServer::make_bell(Session &session, const BellWish &wish) {
    const auto fail = [this, id = session.id](const Failure &why) { refuse_call(id, "bell", why); };
    auto caller = caller_about_channels(session, wish.instance_id, wish.slot, wish.process_generation);
    if (!caller) return fail(caller.error());
    Worker &worker = caller->pool->worker();
    begin_to_serve(session);
    watch_for_hang_up(session);
    worker.post([this, id = session.id, caller = std::move(*caller), name = wish.channel, fail] {
        const auto use = caller.pool->channel_use(caller.client, name);
        loop_.post([this, id, use, instance_id = caller.pool->instance_id(), client_id = caller.client.id, fail] {
            if (!use) return fail(use.error());
            give_new_bell(id, instance_id, client_id, *use);
        });
    });
}

std::string AttachServer::count_descriptor(const Session &session) {
    if (session.is_limited && unread_.would_be_too_many(session.peer.uid, 1))
        return "uid " + std::to_string(session.peer.uid) +
               " has replies that it does not read, as many as may be on their way: read them, and call again";
    if (connections() + reserved_from(session) >= limits_.connections)
        return "the daemon has its " + std::to_string(limits_.connections) +
               " connections and descriptors: close some, or raise --max-connections and the open file limit";
    if (session.is_limited && !connection_limits_.takes_event_fd(session.peer.uid))
        return "uid " + std::to_string(session.peer.uid) +
               " has its connections, and each descriptor of a channel counts as two: close some, or raise "
               "--max-connections-per-user";
    return {};
}

void AttachServer::give_new_bell(SessionId id, std::uint64_t instance_id, std::uint32_t client_id,
                                 const ManagedPool::ChannelUse &use) {
    const auto found = sessions_.find(id);
    if (found == sessions_.end()) return;  // the client has hung up meanwhile
    Session &session = *found->second;
    if (auto why = count_descriptor(session); !why.empty())
        return refuse_call(id, "bell", {Errc::too_many_clients, std::move(why)});
    Fd fd(os::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!fd) {
        if (session.is_limited) connection_limits_.closed(session.peer.uid, false);
        return refuse_call(
            id, "bell",
            {Errc::too_many_clients,
             "the daemon has no descriptor left for channels: raise its open file limit (LimitNOFILE=)"});
    }
    loop_.cancel(std::exchange(session.packet_wait, 0));
    // The clock outlives the daemon, so that no bell has the serial of an earlier daemon's.
    timespec now{};
    os::clock_gettime(CLOCK_MONOTONIC, &now);
    last_bell_ = std::max(last_bell_ + 1, static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 +
                                              static_cast<std::uint64_t>(now.tv_nsec));
    session.bell = Session::Bell{last_bell_, instance_id, client_id, use};
    session.event_fd = std::move(fd);
    session.phase = Session::Phase::bell;
    ++event_fd_count_;
    bells_.emplace(last_bell_, id);
    wire::BellReply reply;
    reply.serial = last_bell_;
    const std::array<int, 1> fds{session.event_fd.get()};
    if (session.is_limited) unread_.add(session.peer.uid, id, fds.size());
    if (send_now(session.connection.get(), &reply, sizeof reply, fds) != 0) {
        unread_.forget(session.peer.uid, id);
        return close_session(id);
    }
    listen_to(id);
}

void AttachServer::fetch_bell(Session &session, const BellWish &wish) {
    const auto fail = [this, id = session.id](const Failure &why) { refuse_call(id, "bell", why); };
    const auto caller = caller_of(session, wish.instance_id, wish.slot, wish.process_generation);
    if (!caller) return fail(caller.error());
    const auto found = bells_.find(wish.serial);
    // One sentence for both: who may not have a bell does not learn whether there is one.
    const auto no_such_bell = [&] {
        return fail({Errc::no_such_pool, "there is no bell " + std::to_string(wish.serial) +
                                             " in a channel that the client has open: its party has gone, or has it "
                                             "from an earlier daemon"});
    };
    if (found == bells_.end()) return no_such_bell();
    Session &party = *sessions_.at(found->second);
    if (party.bell->instance_id != wish.instance_id || !caller->pool->has_open(caller->client, party.bell->channel))
        return no_such_bell();
    const bool may_be_unread = !session.is_limited || !unread_.would_be_too_many(session.peer.uid, 1);
    begin_to_serve(session);
    loop_.cancel(std::exchange(session.packet_wait, 0));
    if (may_be_unread) {
        wire::BellReply reply;
        reply.serial = wish.serial;
        const std::array<int, 1> fds{party.event_fd.get()};
        if (session.is_limited) unread_.add(session.peer.uid, session.id, fds.size());
        if (send_now(session.connection.get(), &reply, sizeof reply, fds) == 0)
            session.phase = Session::Phase::departing;  // the descriptor may be unread
        else
            unread_.forget(session.peer.uid, session.id);
    }
    // Behind the reply: a caller that finds no reply yet can rely on it that the bell will be rung later.
    signal(party);
    close_session(session.id);
}

void AttachServer::ring_bells(std::uint64_t instance_id) {
    for (const auto &[serial, id] : bells_) {
        Session &party = *sessions_.at(id);
        if (party.bell->instance_id == instance_id) signal(party);
    }
}

void AttachServer::drop_bells(std::uint64_t instance_id, std::uint32_t client_id) {
    std::vector<SessionId> ids;
    for (const auto &[serial, id] : bells_) {
        const Session::Bell &bell = *sessions_.at(id)->bell;
        if (bell.instance_id == instance_id && bell.client_id == client_id) ids.push_back(id);
    }
    for (const SessionId id : ids) close_session(id);
}

}  // namespace numacre::daemon
