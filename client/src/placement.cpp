// Which numa node the calling thread runs on, without entering the kernel; and which one of a pool's is nearest to
// that.
#include <fcntl.h>
#include <sched.h>
#include <sys/auxv.h>
#include <sys/rseq.h>
#include <unistd.h>

#include <cstdio>

#include "nearest.hpp"
#include "pool.hpp"

namespace numacre::client {
namespace {

#ifndef AT_RSEQ_FEATURE_SIZE
#define AT_RSEQ_FEATURE_SIZE 27
#endif

// The kernel keeps the node's number in the thread's rseq area, from 24 bytes of features on.
constexpr unsigned long kRseqWithNodeId = 24;
constexpr std::size_t kRseqNodeIdOffset = 20;

const bool rseq_has_node_id = __rseq_size != 0 && getauxval(AT_RSEQ_FEATURE_SIZE) >= kRseqWithNodeId;

// A file of /sys is a page at most.
struct SysFile {
    char text[kPageBytes + 1];

    bool read(const char *path) {
        const int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0) return false;
        const ssize_t got = ::read(fd, text, kPageBytes);
        close(fd);
        text[got > 0 ? got : 0] = '\0';
        return got > 0;
    }
};

}  // namespace

void place_other_numa_nodes(numacre_pool *pool) {
    if (pool->numa_nodes == 1) return;
    SysFile online;
    if (!online.read("/sys/devices/system/node/online")) return;
    std::int32_t os_nodes[kMaxNumaNodes];
    for (std::uint32_t node = 0; node < pool->numa_nodes; ++node) os_nodes[node] = pool->nodes[node].os_numa_node;
    SysFile distances;
    const auto distances_of = [&](std::uint32_t os_node) -> const char * {
        char path[64];
        snprintf(path, sizeof path, "/sys/devices/system/node/node%u/distance", os_node);
        return distances.read(path) ? distances.text : nullptr;
    };
    place_by_distance(online.text, distances_of, {os_nodes, pool->numa_nodes}, pool->dense_node_of);
}

std::uint32_t os_numa_node() {
#if defined(__x86_64__) || defined(__aarch64__)
    if (rseq_has_node_id) {
        const auto *area = static_cast<const std::byte *>(__builtin_thread_pointer()) + __rseq_offset;
        return *reinterpret_cast<const volatile std::uint32_t *>(area + kRseqNodeIdOffset);
    }
#endif
    unsigned cpu = 0;
    unsigned node = 0;
    return getcpu(&cpu, &node) == 0 ? node : 0;  // vdso
}

}  // namespace numacre::client
