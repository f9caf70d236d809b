// The numa node on which the calling thread runs, found without entering the kernel; the pool's nearest numa node; and
// the numa nodes that the kernel allows the thread.
#include <fcntl.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/rseq.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "errors.hpp"
#include "nearest.hpp"
#include "pool.hpp"

namespace numacre::client {
namespace {

#ifndef AT_RSEQ_FEATURE_SIZE
#define AT_RSEQ_FEATURE_SIZE 27
#endif

// The kernel keeps the node's number in the thread's rseq area if that area has at least 24 bytes of features.
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

// Constants that <linux/mempolicy.h> of some distributions lacks.
constexpr int kPreferredMany = 5;       // Linux 5.15
constexpr int kWeightedInterleave = 6;  // Linux 6.9
constexpr int kModeFlags = 7 << 13;     // MPOL_F_STATIC_NODES, _RELATIVE_NODES, _NUMA_BALANCING

// A set of the machine's numa nodes, as a mask of the kernel.
struct OsNodes {
    std::uint64_t bits[kMaxOsNumaNodes / 64];

    void add(std::uint32_t os_node) { bits[os_node / 64] |= std::uint64_t{1} << os_node % 64; }
    bool has(std::uint32_t os_node) const { return (bits[os_node / 64] >> os_node % 64 & 1) != 0; }

    // The numa node at place `number` of the set; after the last one, counting continues with the first.
    std::uint32_t nth(std::uint32_t number) const {
        std::uint32_t count = 0;
        for (const std::uint64_t word : bits) count += static_cast<std::uint32_t>(std::popcount(word));
        std::uint32_t os_node = 0;
        for (std::uint32_t left = count == 0 ? 0 : number % count; os_node < kMaxOsNumaNodes - 1; ++os_node)
            if (has(os_node) && left-- == 0) break;
        return os_node;
    }

    std::uint64_t in(const numacre_pool *pool) const {
        std::uint64_t nodes = 0;
        for (std::uint32_t node = 0; node < pool->numa_nodes; ++node) {
            const std::int32_t os_node = pool->nodes[node].os_numa_node;
            if (os_node >= 0 && static_cast<std::size_t>(os_node) < kMaxOsNumaNodes &&
                has(static_cast<std::uint32_t>(os_node)))
                nodes |= bit_of(node);
        }
        return nodes;
    }
};

// Reads the numa nodes of the cpuset from /proc, for threads that may not call get_mempolicy (in a container, by its
// seccomp profile).
bool read_allowed(OsNodes &allowed) {
    SysFile status;
    if (!status.read("/proc/thread-self/status")) return false;
    static constexpr char kKey[] = "\nMems_allowed_list:\t";
    const char *const list = strstr(status.text, kKey);
    if (list == nullptr) return false;
    for_each_os_numa_node(list + sizeof kKey - 1, [&](std::uint32_t os_node) { allowed.add(os_node); });
    return true;
}

Policy translate(int mode, std::uint64_t nodes) {
    switch (mode) {
        case MPOL_LOCAL:
            return {PolicyMode::local, 0};
        case MPOL_BIND:
            return {nodes != 0 ? PolicyMode::strict : PolicyMode::local, nodes};
        case MPOL_PREFERRED:  // without a node: local
        case kPreferredMany:
            return {nodes != 0 ? PolicyMode::preferred : PolicyMode::local, nodes};
        case MPOL_INTERLEAVE:
        case kWeightedInterleave:
            return {PolicyMode::interleave, nodes};
        default:
            return {};
    }
}

}  // namespace

KernelPlacement ask_kernel(const numacre_pool *pool) {
    const std::uint64_t all = first_numa_nodes(pool->numa_nodes);
    if (!pool->heeds_kernel) return {{}, all};
    KernelPlacement found{{}, all};
    OsNodes allowed{};
    if (syscall(SYS_get_mempolicy, nullptr, allowed.bits, kMaxOsNumaNodes, nullptr, MPOL_F_MEMS_ALLOWED) == 0 ||
        read_allowed(allowed)) {
        // A cpuset without a node of the pool is ignored: the daemon, not the client, has taken the memory.
        if (const std::uint64_t nodes = allowed.in(pool); nodes != 0) found.allowed = nodes;
    }
    int mode = MPOL_DEFAULT;
    OsNodes nodes{};
    if (syscall(SYS_get_mempolicy, &mode, nodes.bits, kMaxOsNumaNodes, nullptr, 0) != 0) return found;
    if ((mode & MPOL_F_RELATIVE_NODES) != 0) {
        OsNodes shifted{};
        for (std::uint32_t number = 0; number < kMaxOsNumaNodes; ++number)
            if (nodes.has(number)) shifted.add(allowed.nth(number));
        nodes = shifted;
    }
    found.policy = translate(mode & ~kModeFlags, nodes.in(pool)&found.allowed);
    return found;
}

int read_heed(numacre_pool *pool) {
    const char *const said = secure_getenv("NUMACRE_MEMPOLICY");
    if (said == nullptr || *said == '\0' || strcmp(said, "respect") == 0) return 0;
    if (strcmp(said, "ignore") != 0)
        return fail_with_remedy(Errc::bad_argument, "NUMACRE_MEMPOLICY=%s: use respect, ignore, or do not set it",
                                said);
    pool->heeds_kernel = false;
    return 0;
}

void place_other_numa_nodes(numacre_pool *pool) {
    if (pool->numa_nodes == 1) return;
    // The buffers are not on the stack: a thread with the smallest possible stack may attach.
    struct Files {
        SysFile online, distances;
    };
    const std::unique_ptr<Files, decltype(&free)> files(static_cast<Files *>(malloc(sizeof(Files))), &free);
    if (files == nullptr) return;
    SysFile &online = files->online, &distances = files->distances;
    if (!online.read("/sys/devices/system/node/online")) return;
    std::int32_t os_nodes[kMaxNumaNodes];
    for (std::uint32_t node = 0; node < pool->numa_nodes; ++node) os_nodes[node] = pool->nodes[node].os_numa_node;
    const auto distances_of = [&](std::uint32_t os_node) -> const char * {
        char path[64];
        snprintf(path, sizeof path, "/sys/devices/system/node/node%u/distance", os_node);
        return distances.read(path) ? distances.text : nullptr;
    };
    const PoolNodes own{os_nodes, pool->numa_nodes};
    place_by_distance(online.text, distances_of, own, pool->dense_node_of);
    for_each_os_numa_node(online.text, [&](std::uint32_t os_node) {
        if (own.dense(os_node) < own.count || pool->stranger_count == kMaxNumaNodes) return;
        const char *const line = distances_of(os_node);
        if (line == nullptr) return;
        Stranger &stranger = pool->strangers[pool->stranger_count++];
        stranger.os_node = os_node;
        rank_by_distance(online.text, line, own, stranger.by_distance);
    });
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
