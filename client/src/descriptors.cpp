// The descriptors of the blocks' files, for programs that pass the memory on to a peer that maps it itself.
#include <cerrno>
#include <cstring>
#include <utility>

#include "errors.hpp"
#include "numacre/os/kernel.hpp"
#include "pool.hpp"
#include "report.hpp"

namespace numacre::client {

void keep_descriptors(numacre_pool *pool, int *fds) {
    for (std::uint32_t node = 0; node < pool->numa_nodes; ++node) {
        int &fd = fds[2 + 2 * node];
        NodeHandle &handle = pool->nodes[node];
        handle.data_inode = inode_of(fd);
        handle.data_fd = std::exchange(fd, -1);
    }
}

void close_descriptors(numacre_pool *pool) {
    if (!pool->keeps_descriptors) return;
    for (std::uint32_t node = 0; node < pool->numa_nodes; ++node) {
        NodeHandle &handle = pool->nodes[node];
        if (is_ours(handle.data_fd, handle.data_inode)) os::close(handle.data_fd);
        handle.data_fd = -1;
    }
}

}  // namespace numacre::client

using namespace numacre;
using namespace numacre::client;

extern "C" int numacre_region_fd(numacre_pool *pool, int numa_node, int *fd, uint64_t *offset) {
    if (pool == nullptr) return no_pool("numacre_region_fd");
    if (fd == nullptr || offset == nullptr) return no_result("numacre_region_fd");
    if (pool->fork_generation != fork_generation()) return fail_forked();
    if (numa_node < 0 || numa_node >= static_cast<int>(pool->numa_nodes))
        return fail(Errc::no_such_node, "numa node %d is not within 0 .. %u", numa_node, pool->numa_nodes - 1);
    if (is_private(pool))
        return fail_with_remedy(Errc::bad_argument, "a private pool has no file: attach to a pool of the daemon");
    if (!pool->keeps_descriptors)
        return fail_with_remedy(Errc::bad_argument,
                                "the handle has no descriptors: attach with NUMACRE_KEEP_DESCRIPTORS");
    const NodeHandle &node = pool->nodes[numa_node];
    if (!is_ours(node.data_fd, node.data_inode))
        return fail_with_remedy(Errc::daemon_gone, "this process has closed the handle's descriptor: attach anew");
    const int copy = os::duplicate(node.data_fd);
    if (copy < 0)
        return fail_with_remedy(Errc::too_many_clients,
                                "no descriptor left in this process (%s): raise the limit (ulimit -n), or close some",
                                strerror(errno));
    *fd = copy;
    *offset = 0;
    return 0;
}
