// Memory that is not online is nobody's: a touch of it through a stale pointer must not take a page from the machine.
// The kernel's answer to such a touch is a new zero page, unless the mapping is watched: then it is SIGBUS for who did
// it (and EFAULT from a system call).
#include <fcntl.h>
#include <linux/userfaultfd.h>

#include "numacre/os/kernel.hpp"
#include "pool.hpp"

namespace numacre::client {

void open_guard(numacre_pool *pool) {
    // User mode only: what an unprivileged process may have. Nobody reads from it, for the kernel answers by itself.
    const int fd = os::userfaultfd(O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
    if (fd < 0) return;
    pool->guard = fd;
    pool->guard_inode = inode_of(pool->guard);
    uffdio_api api{};
    api.api = UFFD_API;
    api.features = UFFD_FEATURE_SIGBUS | UFFD_FEATURE_MISSING_HUGETLBFS | UFFD_FEATURE_MISSING_SHMEM;
    if (os::ioctl(pool->guard, UFFDIO_API, &api) != 0) close_guard(pool);
}

void guard_frames(const numacre_pool *pool, void *frames, std::uint64_t bytes) {
    if (pool->guard < 0) return;
    uffdio_register range{};
    range.range.start = reinterpret_cast<std::uintptr_t>(frames);
    range.range.len = bytes;
    // Missing pages: those that are in the file fault in as ever.
    range.mode = UFFDIO_REGISTER_MODE_MISSING;
    (void)os::ioctl(pool->guard, UFFDIO_REGISTER, &range);
}

void close_guard(numacre_pool *pool) {
    if (is_ours(pool->guard, pool->guard_inode)) os::close(pool->guard);
    pool->guard = -1;
}

}  // namespace numacre::client
