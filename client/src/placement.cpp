// Which numa node the calling thread runs on, without entering the kernel.
#include <sched.h>
#include <sys/auxv.h>
#include <sys/rseq.h>

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

}  // namespace

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
