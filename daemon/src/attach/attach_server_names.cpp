// Names (names.hpp) that clients bind and unbind, each change on a connection of its own.
#include <memory>
#include <utility>

#include "attach/attach_message.hpp"
#include "attach/attach_server.hpp"
#include "attach/client_objects.hpp"
#include "attach/connection.hpp"
#include "attach/session.hpp"
#include "numacre/shm/attach_wire.hpp"

namespace numacre::daemon {

void AttachServer::change_name(Session &session, const NameWish &wish) {
    const auto fail = [this, id = session.id](const Failure &why) { refuse_call(id, "name", why); };
    auto caller = caller_of(session, wish.instance_id, wish.slot, wish.process_generation);
    if (!caller) return fail(caller.error());
    auto &[pool, client] = *caller;
    // Not worker(): a step of a growth may take seconds.
    Worker &worker = pool->record_worker();
    if (worker.busy_for() > kPatienceWithPool)
        return fail({Errc::timed_out, "pool \"" + pool->name() +
                                          "\" cannot change names now: the kernel makes the daemon wait for the "
                                          "pool's files; try again later, or end the client that keeps them busy"});
    begin_to_serve(session);
    watch_for_hang_up(session);
    const NameAsker asker{session.peer.uid, client.id, !session.is_limited};
    worker.post([this, id = session.id, pool = pool, client = client, asker, wish, fail] {
        const auto changed = pool->change_name(wish.entry, wish.expected_version, asker, &client);
        loop_.post([this, id, changed, fail] {
            if (!changed) return fail(changed.error());
            wire::NameReply reply;
            reply.version = *changed;
            answer_call(id, &reply, sizeof reply);
        });
    });
}

}  // namespace numacre::daemon
