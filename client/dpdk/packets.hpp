// Packet mempools: mempools whose objects lie in an object pool that other DPDK primaries, and programs without DPDK,
// use as well. packets.cpp makes them; the device (vdev.cpp) turns what it receives into their mbufs.
//
// An object of the object pool is an element of rte_mempool, with the portable header in the part of its first line
// that rte_mempool leaves free:
//
//     0       numacre_packet: travels
//     40      rte_mempool_objhdr: of the process that owns the object
//     64      rte_mbuf, and the mempool's private area of each mbuf: of the process that owns the object
//     192 ..  headroom and data: travels
//
// Each world has a mempool of its own for such a pool, at addresses of its own. So nothing of an mbuf is valid in an
// object that comes from another owner, or out of the pool: whoever gets one writes all of it (begin_mbuf()).
#pragma once

#include <rte_eal.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>

#include <cstddef>
#include <cstdint>

#include "numacre/adaptors/packet.h"
#include "numacre/numacre.h"

#define RTE_MEMPOOL_NUMACRE_INTERNAL __attribute__((visibility("default")))

namespace numacre::dpdk {

inline constexpr std::size_t kMbufOffset = 64;
static_assert(sizeof(numacre_packet) == 32);
static_assert(sizeof(numacre_packet) + sizeof(rte_mempool_objhdr) <= kMbufOffset);
static_assert(kMbufOffset + sizeof(rte_mbuf) <= NUMACRE_PACKET_RESERVED_BYTES);

inline rte_mbuf *mbuf_of(void *block) {
    return reinterpret_cast<rte_mbuf *>(static_cast<char *>(block) + kMbufOffset);
}
inline void *block_of(rte_mbuf *mbuf) {
    return reinterpret_cast<char *>(mbuf) - kMbufOffset;
}

// The common part of all mbufs of a packet mempool, in this world.
struct MbufForm {
    rte_mempool *mempool;
    std::uint32_t buffer_offset;  // from the mbuf
    std::uint16_t buffer_bytes;
    std::uint16_t private_bytes;
    bool has_iova;  // I/O addresses are virtual ones

    static MbufForm of(rte_mempool *mempool) {
        const std::uint16_t private_bytes = rte_pktmbuf_priv_size(mempool);
        return {mempool, static_cast<std::uint32_t>(sizeof(rte_mbuf) + private_bytes),
                rte_pktmbuf_data_room_size(mempool), private_bytes, rte_eal_iova_mode() == RTE_IOVA_VA};
    }
};

// Makes the mbuf of a block that this process owns: free, one segment, one reference, no data. Of the mbuf, only fields
// that rte_pktmbuf_alloc() or the caller sets are left as they are.
[[gnu::always_inline]] inline rte_mbuf *begin_mbuf(const MbufForm &form, void *block) {
    rte_mbuf *const mbuf = mbuf_of(block);
    rte_mempool_objhdr *const header = reinterpret_cast<rte_mempool_objhdr *>(mbuf) - 1;
    const rte_iova_t iova = form.has_iova ? reinterpret_cast<std::uintptr_t>(mbuf) : RTE_BAD_IOVA;
    header->mp = form.mempool;
    header->iova = iova;
    mbuf->buf_addr = reinterpret_cast<char *>(mbuf) + form.buffer_offset;
    mbuf->buf_iova = form.has_iova ? iova + form.buffer_offset : RTE_BAD_IOVA;
    mbuf->data_off = RTE_MIN(static_cast<std::uint16_t>(RTE_PKTMBUF_HEADROOM), form.buffer_bytes);
    rte_mbuf_refcnt_set(mbuf, 1);
    mbuf->nb_segs = 1;
    mbuf->port = RTE_MBUF_PORT_INVALID;
    mbuf->ol_flags = 0;
    mbuf->buf_len = form.buffer_bytes;
    mbuf->pool = form.mempool;
    mbuf->next = nullptr;
    mbuf->priv_size = form.private_bytes;
    return mbuf;
}

}  // namespace numacre::dpdk

// Between the two plugins, not for programs.
extern "C" {
// This process's handle of a packet mempool's object pool; attaches, if this process has not. nullptr: it cannot, and
// the log says why. Thread-safe.
RTE_MEMPOOL_NUMACRE_INTERNAL numacre_pool *numacre_dpdk_pool(rte_mempool *mempool);
// A second process has the mempool: its objects may be another one's.
RTE_MEMPOOL_NUMACRE_INTERNAL bool numacre_dpdk_is_shared(const rte_mempool *mempool);
// The calling lcore has taken `taken` objects past rte_mempool, or given -taken away.
RTE_MEMPOOL_NUMACRE_INTERNAL void numacre_dpdk_count(rte_mempool *mempool, std::int64_t taken);
}
