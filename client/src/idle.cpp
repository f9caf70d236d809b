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
        return fail(Errc::bad_argument, "NUMACRE_NOBARRIER=%s: use 1, 0, or do not set it", said);
    pool->shares_caches = is_unset && os::register_for_barriers() == 0;
    return 0;
}

std::uint64_t take_back_idle_caches(numacre_pool *pool, const Lane &lane) {
    const auto node_at = [pool](std::uint32_t node) -> const NodeView<Env> & {
        return pool->nodes[node].buddy().view();
    };
    const std::uint64_t frames = engine::take_back_idle_caches(
        pool->view, pool->numa_nodes, node_at, lane.actor, now_nanoseconds(), [] { return os::pass_barrier() == 0; });
    if (frames != 0 && has_waiters(pool)) serve_waiters(pool, lane.actor);
    return frames;
}

}  // namespace numacre::client
