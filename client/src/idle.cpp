// Takes back cached blocks of threads that do not use their caches (shm/idle_caches.hpp): the system calls.
#include "idle.hpp"

#include <cstdlib>
#include <cstring>

#include "engine.hpp"
#include "errors.hpp"
#include "numacre/os/kernel.hpp"
#include "numacre/shm/idle_caches.hpp"
#include "pool.hpp"

namespace numacre::client {
int share_caches(numacre_pool *pool) {
    const char *const said = secure_getenv("NUMACRE_NOBARRIER");
    const bool is_unset = said == nullptr || *said == '\0' || strcmp(said, "0") == 0;
    if (!is_unset && strcmp(said, "1") != 0)
        return fail_with_remedy(Errc::bad_argument, "NUMACRE_NOBARRIER=%s: use 1, 0, or do not set it", said);
    pool->shares_caches = is_unset && os::register_for_barriers() == 0;
    return 0;
}

bool take_back_idle_caches(numacre_pool *pool, Lane &lane, std::uint64_t before_ns) {
    const auto node_at = [pool](std::uint32_t node) -> const NodeView<Env> & {
        return pool->nodes[node].buddy().view();
    };
    // A process that takes no part makes no such system call either: a filter may end it for that. It uses the barriers
    // of others.
    const auto pass_barrier = [pool] { return pool->shares_caches && os::pass_barrier() == 0; };
    const bool may_have = engine::take_back_idle_caches(pool->view, pool->numa_nodes, node_at, lane.actor, before_ns,
                                                        lane.walked_seen, pass_barrier);
    if (may_have && has_waiters(pool)) serve_waiters(pool, lane.actor);
    return may_have;
}

}  // namespace numacre::client
