// The guard of offline memory: a touch of offline memory through a stale pointer must not take a page from the machine.
// By default the kernel maps a new zero page at such a touch. With a userfaultfd on the mapping, the touching thread
// gets SIGBUS (and a system call gets EFAULT).
#include <fcntl.h>
#include <linux/userfaultfd.h>

#include "numacre/os/kernel.hpp"
#include "pool.hpp"

namespace numacre::client {

void open_guard(numacre_pool *pool) {
    // User mode only, since an unprivileged process may have that. No thread reads from the descriptor, since the
    // kernel raises the SIGBUS by itself.
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
    // Only missing pages are guarded: pages that are in the file fault in as usual.
    range.mode = UFFDIO_REGISTER_MODE_MISSING;
    (void)os::ioctl(pool->guard, UFFDIO_REGISTER, &range);
}

void close_guard(numacre_pool *pool) {
    if (is_ours(pool->guard, pool->guard_inode)) os::close(pool->guard);
    pool->guard = -1;
}

}  // namespace numacre::client
