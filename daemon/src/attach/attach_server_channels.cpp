// Channels (shm/channel/) that clients open, close and remove, each on a connection of its own.
#include <memory>
#include <utility>

#include "attach/attach_server.hpp"
#include "attach/connection.hpp"
#include "attach/session.hpp"
#include "numacre/shm/attach_wire.hpp"

namespace numacre::daemon {

namespace {

using Wish = wire::ChannelRequest::Wish;

Answer<ManagedPool::OpenChannel> carry_out(ManagedPool &pool, const Client &client, const ChannelOrder &order,
                                           std::uint32_t channel_id) {
    if (order.wish == Wish::open) return pool.open_channel(client, order.channel, channel_id);
    const auto done = order.wish == Wish::close ? pool.close_channel(client, order.channel.name)
                                                : pool.remove_channel(client, order.channel.name);
    if (!done) return Unexpected{done.error()};
    return ManagedPool::OpenChannel{};
}

}  // namespace

void AttachServer::see_to_channel(Session &session, const ChannelOrder &order) {
    const auto fail = [this, id = session.id](const Failure &why) { refuse_call(id, "channel", why); };
    const auto caller = caller_of(session, order.instance_id, order.slot, order.process_generation);
    if (!caller) return fail(caller.error());
    Worker &worker = caller->pool->worker();
    if (worker.busy_for() > kPatienceWithPool)
        return fail({Errc::timed_out, "pool \"" + caller->pool->name() +
                                          "\" cannot see to channels now, for it is being changed: try again later"});
    begin_to_serve(session);
    watch_for_hang_up(session);
    const std::uint32_t channel_id = order.wish == Wish::open ? unused_client_id() : 0;
    worker.post([this, id = session.id, caller = *caller, order, channel_id, fail] {
        auto done = carry_out(*caller.pool, caller.client, order, channel_id);
        loop_.post([this, id, pool = caller.pool, order, done = std::move(done), fail] {
            if (!done) return fail(done.error());
            // An opening that nobody waits for any more is closed again with the client's seat.
            if (order.wish != Wish::open) reaper_.end_channels(pool);
            const auto found = sessions_.find(id);
            if (found == sessions_.end()) return;
            Session &asking = *found->second;
            loop_.cancel(std::exchange(asking.packet_wait, 0));
            wire::ChannelReply reply;
            reply.offset = done->offset;
            reply.capacity = done->shape.capacity;
            reply.burst = done->shape.burst;
            reply.parties = done->shape.parties;
            reply.process_slot = done->seat.value;
            (void)send_now(asking.connection.get(), &reply, sizeof reply, {});
            close_session(id);
        });
    });
}

}  // namespace numacre::daemon
