// Channels (shm/channel/) that clients open, close and remove, each on a connection of its own.
#include <memory>
#include <optional>
#include <utility>

#include "attach/attach_server.hpp"
#include "attach/connection.hpp"
#include "attach/session.hpp"
#include "numacre/shm/attach_wire.hpp"

namespace numacre::daemon {

namespace {

using Wish = wire::ChannelRequest::Wish;

// How long an opening waits for an earlier channel of this name to go, and how often it looks. Clients wait for 30 s.
constexpr std::chrono::milliseconds kGoingPause{5};
constexpr std::chrono::seconds kGoingPatience{20};

// Nothing: a channel of this name is going.
Answer<std::optional<ManagedPool::OpenChannel>> carry_out(ManagedPool &pool, const Client &client,
                                                          const ChannelOrder &order, std::uint32_t channel_id) {
    if (order.wish == Wish::open) return pool.open_channel(client, order.channel, channel_id);
    const auto done = order.wish == Wish::close ? pool.close_channel(client, order.channel.name)
                                                : pool.remove_channel(client, order.channel.name);
    if (!done) return Unexpected{done.error()};
    return std::optional{ManagedPool::OpenChannel{}};
}

}  // namespace

Answer<AttachServer::Caller> AttachServer::caller_about_channels(const Session &session, std::uint64_t instance_id,
                                                                 ProcessSlot slot,
                                                                 std::uint64_t process_generation) const {
    auto caller = caller_of(session, instance_id, slot, process_generation);
    if (caller && caller->pool->worker().busy_for() > kPatienceWithPool)
        return Unexpected{
            Failure{Errc::timed_out, "pool \"" + caller->pool->name() +
                                         "\" cannot see to channels now, for it is being changed: try again later"}};
    return caller;
}

void AttachServer::see_to_channel(Session &session, const ChannelOrder &order) {
    const auto caller = caller_about_channels(session, order.instance_id, order.slot, order.process_generation);
    if (!caller) return refuse_call(session.id, "channel", caller.error());
    begin_to_serve(session);
    watch_for_hang_up(session);
    see_to_channel(session.id, *caller, order, std::chrono::steady_clock::now() + kGoingPatience);
}

void AttachServer::see_to_channel(SessionId id, const Caller &caller, const ChannelOrder &order,
                                  std::chrono::steady_clock::time_point until) {
    if (!sessions_.contains(id)) return;  // the client has hung up meanwhile
    const std::uint32_t channel_id = order.wish == Wish::open ? unused_client_id() : 0;
    caller.pool->worker().post([this, id, caller, order, until, channel_id] {
        auto done = carry_out(*caller.pool, caller.client, order, channel_id);
        loop_.post([this, id, caller, order, until, done = std::move(done)] {
            if (!done) return refuse_call(id, "channel", done.error());
            if (*done) return channel_is_seen_to(id, caller, order, **done);
            if (std::chrono::steady_clock::now() >= until)
                return refuse_call(id, "channel",
                                   {Errc::timed_out, "the channel \"" + order.channel.name +
                                                         "\" that was there before is going, and not all that is in "
                                                         "it is back: try again later"});
            loop_.after(kGoingPause, [this, id, caller, order, until] { see_to_channel(id, caller, order, until); });
        });
    });
}

void AttachServer::channel_is_seen_to(SessionId id, const Caller &caller, const ChannelOrder &order,
                                      const ManagedPool::OpenChannel &channel) {
    // An opening that nobody waits for any more is closed again with the client's seat.
    if (order.wish != Wish::open) reaper_.end_channels(caller.pool);
    wire::ChannelReply reply;
    reply.offset = channel.offset;
    reply.capacity = channel.shape.capacity;
    reply.burst = channel.shape.burst;
    reply.parties = channel.shape.parties;
    reply.process_slot = channel.seat.value;
    reply.kind = static_cast<std::uint16_t>(channel.shape.kind);
    answer_call(id, &reply, sizeof reply);
}

}  // namespace numacre::daemon
