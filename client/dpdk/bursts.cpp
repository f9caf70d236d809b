// The data path of the device: packets out of a channel, and into one. vdev.cpp says who owns a packet when.
#include <rte_mbuf.h>
#include <rte_mempool.h>
#include <rte_prefetch.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "device.hpp"

namespace numacre::dpdk {
namespace {

// --- the header ------------------------------------------------------------------------------------------------------
constexpr struct {
    std::uint64_t mbuf;  // all of these bits are set in a received mbuf
    std::uint32_t packet;
} kFlags[] = {
    {RTE_MBUF_F_RX_VLAN | RTE_MBUF_F_RX_VLAN_STRIPPED, NUMACRE_PACKET_VLAN},
    {RTE_MBUF_F_RX_QINQ | RTE_MBUF_F_RX_QINQ_STRIPPED, NUMACRE_PACKET_OUTER_VLAN},
    {RTE_MBUF_F_RX_RSS_HASH, NUMACRE_PACKET_HASH},
    {RTE_MBUF_F_RX_IP_CKSUM_GOOD, NUMACRE_PACKET_IP_CHECKSUM_GOOD},
    {RTE_MBUF_F_RX_IP_CKSUM_BAD, NUMACRE_PACKET_IP_CHECKSUM_BAD},
    {RTE_MBUF_F_RX_L4_CKSUM_GOOD, NUMACRE_PACKET_L4_CHECKSUM_GOOD},
    {RTE_MBUF_F_RX_L4_CKSUM_BAD, NUMACRE_PACKET_L4_CHECKSUM_BAD},
};

std::uint32_t packet_flags(std::uint64_t mbuf_flags) {
    std::uint32_t flags = 0;
    for (const auto &pair : kFlags)
        if ((mbuf_flags & pair.mbuf) == pair.mbuf) flags |= pair.packet;
    // A sender's wish for a tag is the receiver's tag that is not in the data.
    if ((mbuf_flags & RTE_MBUF_F_TX_VLAN) != 0) flags |= NUMACRE_PACKET_VLAN;
    if ((mbuf_flags & RTE_MBUF_F_TX_QINQ) != 0) flags |= NUMACRE_PACKET_VLAN | NUMACRE_PACKET_OUTER_VLAN;
    return flags;
}

std::uint64_t mbuf_flags(std::uint32_t packet_flags) {
    std::uint64_t flags = 0;
    for (const auto &pair : kFlags)
        if ((packet_flags & pair.packet) != 0) flags |= pair.mbuf;
    return flags;
}

[[gnu::always_inline]] inline void write_header(const rte_mbuf &mbuf, void *block, std::uint32_t data_offset,
                                                std::uint32_t data_bytes) {
    const std::uint32_t flags = mbuf.ol_flags == 0 ? 0 : packet_flags(mbuf.ol_flags);
    *static_cast<numacre_packet *>(block) = {
        .magic = NUMACRE_PACKET_MAGIC,
        .data_offset = data_offset,
        .data_bytes = data_bytes,
        .flags = flags,
        .packet_type = mbuf.packet_type,
        .hash = (flags & NUMACRE_PACKET_HASH) != 0 ? mbuf.hash.rss : 0,
        .vlan = (flags & NUMACRE_PACKET_VLAN) != 0 ? mbuf.vlan_tci : std::uint16_t{0},
        .outer_vlan = (flags & NUMACRE_PACKET_OUTER_VLAN) != 0 ? mbuf.vlan_tci_outer : std::uint16_t{0},
        .reserved = 0,
    };
}

// --- receive ---------------------------------------------------------------------------------------------------------
// nullptr: the block has no packet. The block is this process's.
[[gnu::always_inline]] inline rte_mbuf *accept(const MbufForm &form, const Queue &queue, void *block,
                                               std::uint32_t object_bytes) {
    std::uint32_t bytes = 0;
    const void *const data = numacre_packet_data(block, object_bytes, &bytes);
    if (data == nullptr) [[unlikely]]
        return nullptr;
    const auto data_offset = static_cast<std::size_t>(static_cast<const char *>(data) - static_cast<char *>(block));
    const numacre_packet header = *static_cast<const numacre_packet *>(block);
    rte_mbuf *const mbuf = begin_mbuf(form, block);
    mbuf->data_off = static_cast<std::uint16_t>(data_offset - kBytesBeforeBuffer);
    mbuf->port = queue.port;
    mbuf->ol_flags = header.flags == 0 ? 0 : mbuf_flags(header.flags);
    mbuf->packet_type = header.packet_type;
    mbuf->pkt_len = bytes;
    mbuf->data_len = static_cast<std::uint16_t>(bytes);
    mbuf->hash.rss = header.hash;
    mbuf->vlan_tci = header.vlan;
    mbuf->vlan_tci_outer = header.outer_vlan;
    mbuf->tx_offload = 0;
    return mbuf;
}

}  // namespace

std::uint16_t receive(void *at, rte_mbuf **mbufs, std::uint16_t most) {
    Queue &queue = *static_cast<Queue *>(at);
    const Device &device = *queue.device;
    const Handle *const handle = handle_of(queue);
    if (handle == nullptr) [[unlikely]]
        return 0;
    const MbufForm form = MbufForm::of(device.mempool);
    unsigned done = 0;
    std::uint64_t bytes = 0;
    // Each turn ends a burst of a sender's; malformed packets do not keep the caller here.
    for (unsigned turn = 0; turn < most && done < most; ++turn) {
        void *blocks[kMostBurst];
        unsigned count = 0;
        if (numacre_receive(handle->channel, blocks, std::min(most - done, kMostBurst), &count, nullptr) != 0) break;
        for (unsigned i = 0; i < count; ++i) {
            rte_prefetch0(blocks[i]);
            rte_prefetch0(mbuf_of(blocks[i]));
        }
        for (unsigned i = 0; i < count; ++i) {
            rte_mbuf *const mbuf = accept(form, queue, blocks[i], device.object_bytes);
            if (mbuf == nullptr) [[unlikely]] {
                queue.add(kRxMalformed, 1);
                (void)numacre_free(numacre_dpdk_pool(device.mempool), blocks[i]);
                continue;
            }
            bytes += mbuf->pkt_len;
            mbufs[done++] = mbuf;
        }
    }
    if (done != 0) {
        queue.add(kPackets, done);
        queue.add(kBytes, bytes);
        numacre_dpdk_count(device.mempool, done);
    }
    return static_cast<std::uint16_t>(done);
}

// --- transmit --------------------------------------------------------------------------------------------------------

namespace {

// Packets that go by one send.
struct Batch {
    void *blocks[kMostBurst];
    rte_mbuf *originals[kMostBurst];  // of which the block is a copy; nullptr: the block is the mbuf's own
    std::uint32_t bytes[kMostBurst];
    unsigned count;
};

enum class End { none, too_long, no_object };  // why a batch has no more

// The mbuf's object can go as it is.
[[gnu::always_inline]] inline bool is_direct(const Device &device, const rte_mbuf &mbuf) {
    return mbuf.pool == device.mempool && mbuf.nb_segs == 1 && RTE_MBUF_DIRECT(&mbuf) &&
           rte_mbuf_refcnt_read(&mbuf) == 1 && kBytesBeforeBuffer + mbuf.data_off >= NUMACRE_PACKET_RESERVED_BYTES;
}

// A new block with the data of all segments. nullptr: no block is free.
void *copy(const Device &device, numacre_pool *pool, const rte_mbuf &mbuf) {
    void *block = nullptr;
    if (numacre_alloc(pool, device.object_bytes, &block) != 0) return nullptr;
    write_header(mbuf, block, NUMACRE_PACKET_DATA_OFFSET, mbuf.pkt_len);
    char *to = static_cast<char *>(block) + NUMACRE_PACKET_DATA_OFFSET;
    std::uint32_t left = mbuf.pkt_len;
    for (const rte_mbuf *segment = &mbuf; segment != nullptr && left != 0; segment = segment->next) {
        const std::uint32_t part = std::min<std::uint32_t>(segment->data_len, left);
        std::memcpy(to, rte_pktmbuf_mtod(segment, const void *), part);
        to += part;
        left -= part;
    }
    std::memset(to, 0, left);  // pkt_len says more than the segments have
    return block;
}

// Fills a batch with the next packets. Nothing is taken from the caller yet.
End fill(Batch &batch, const Device &device, numacre_pool *pool, rte_mbuf *const *mbufs, unsigned count) {
    for (batch.count = 0; batch.count < count; ++batch.count) {
        rte_mbuf &mbuf = *mbufs[batch.count];
        const unsigned at = batch.count;
        batch.bytes[at] = mbuf.pkt_len;
        batch.originals[at] = nullptr;
        if (is_direct(device, mbuf)) [[likely]] {
            batch.blocks[at] = block_of(&mbuf);
            write_header(mbuf, batch.blocks[at], static_cast<std::uint32_t>(kBytesBeforeBuffer) + mbuf.data_off,
                         mbuf.data_len);
            continue;
        }
        if (mbuf.pkt_len > device.most_data()) return End::too_long;
        batch.blocks[at] = copy(device, pool, mbuf);
        if (batch.blocks[at] == nullptr) return End::no_object;
        batch.originals[at] = &mbuf;
    }
    return End::none;
}

// Sends a batch. Returns how many packets are the caller's no more: the first ones.
unsigned send(Queue &queue, const Handle &handle, numacre_pool *pool, Batch &batch) {
    const bool may_be_others = numacre_dpdk_is_shared(queue.device->mempool);
    // The send refuses a block that cannot be adopted.
    if (may_be_others) (void)numacre_adopt_bulk(pool, batch.blocks, batch.count);
    unsigned done = 0, refused = 0, step = batch.count;
    std::uint64_t bytes = 0;
    std::int64_t gone = 0;  // of the mempool's objects
    while (done < batch.count) {
        const unsigned n = std::min(step, batch.count - done);
        const int error = numacre_send(handle.channel, batch.blocks + done, n);
        if (error == 0) {
            for (unsigned i = done; i < done + n; ++i) {
                bytes += batch.bytes[i];
                if (batch.originals[i] == nullptr) ++gone;
            }
            done += n;
        } else if ((error == -EAGAIN || error == -EPIPE || error == -EPERM) && step > 1) {
            // Less may have room; a block that is not ours must not keep the others.
            step = error == -EPERM ? 1 : step / 2;
        } else if (error == -EPERM) {
            NUMACRE_LOG(ERR, "port %u: an mbuf is not sent: %s\n", queue.port, numacre_last_error());
            ++refused;
            ++done;
        } else {
            queue.add(kTxFull, 1);
            break;
        }
    }
    std::uint64_t copied = 0;
    for (unsigned i = 0; i < batch.count; ++i) {
        if (batch.originals[i] == nullptr) continue;
        if (i < done) {
            rte_pktmbuf_free(batch.originals[i]);
            ++copied;
        } else {
            (void)numacre_free(pool, batch.blocks[i]);
        }
    }
    queue.add(kPackets, done - refused);
    queue.add(kBytes, bytes);
    if (copied != 0) queue.add(kTxCopied, copied);
    if (refused != 0) queue.add(kTxRefused, refused);
    numacre_dpdk_count(queue.device->mempool, -gone);
    return done;
}

}  // namespace

std::uint16_t transmit(void *at, rte_mbuf **mbufs, std::uint16_t count) {
    Queue &queue = *static_cast<Queue *>(at);
    const Device &device = *queue.device;
    const Handle *const handle = handle_of(queue);
    if (handle == nullptr) [[unlikely]]
        return 0;
    numacre_pool *const pool = numacre_dpdk_pool(device.mempool);
    unsigned done = 0;
    while (done < count) {
        Batch batch;
        const End end = fill(batch, device, pool, mbufs + done, std::min(count - done, handle->burst));
        const unsigned sent = batch.count == 0 ? 0 : send(queue, *handle, pool, batch);
        done += sent;
        if (sent < batch.count) break;
        if (end == End::no_object) {
            queue.add(kTxNoObject, 1);
            break;
        }
        if (end == End::too_long) {
            queue.add(kTxTooLong, 1);
            rte_pktmbuf_free(mbufs[done++]);
        }
    }
    return static_cast<std::uint16_t>(done);
}

}  // namespace numacre::dpdk
