// The device net_numacre (vdev.cpp): what its processes share, and this process's handles of its channels.
#pragma once

#include <rte_ether.h>
#include <rte_log.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "numacre/adaptors/packet.h"
#include "numacre/numacre.h"
#include "packets.hpp"

namespace numacre::dpdk {

extern int device_log_type;
#define NUMACRE_LOG(level, ...) rte_log(RTE_LOG_##level, device_log_type, "NUMACRE: " __VA_ARGS__)

inline constexpr unsigned kMostQueues = 8;  // a pool has 16 channels
inline constexpr unsigned kMostBurst = 64;  // of a channel
inline constexpr std::size_t kChannelNameBytes = 48;
// The device's mempool has no private area.
inline constexpr std::size_t kBytesBeforeBuffer = kMbufOffset + sizeof(rte_mbuf);

enum Direction : unsigned { kReceive, kTransmit, kDirections };

enum Counter : unsigned {
    kPackets,
    kBytes,
    kRxMalformed,
    kTxCopied,
    kTxTooLong,
    kTxRefused,
    kTxNoObject,
    kTxFull,
    kCounters
};

struct Device;

// One queue, in memory that all processes of the world have. Counters have one writer at a time.
struct alignas(RTE_CACHE_LINE_SIZE) Queue {
    Device *device;
    std::uint16_t port;
    std::uint16_t index;
    std::uint32_t direction;
    char channel[kChannelNameBytes];
    std::atomic<std::uint64_t> counters[kCounters];

    void add(Counter counter, std::uint64_t more) {
        std::atomic<std::uint64_t> &word = counters[counter];
        word.store(word.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
    }
    std::uint64_t count(Counter counter) const { return counters[counter].load(std::memory_order_relaxed); }
};

struct Device {
    rte_mempool *mempool;
    std::uint32_t object_bytes;
    std::uint32_t queues;
    std::uint32_t capacity, burst;  // of a channel that is made; 0: as the channel is, or numacre's default
    bool has[kDirections];
    rte_ether_addr address;
    Queue queue[kDirections][kMostQueues];

    std::uint32_t most_data() const { return object_bytes - NUMACRE_PACKET_DATA_OFFSET; }
};

// --- handles.cpp -----------------------------------------------------------------------------------------------------

struct Handle {
    numacre_channel *channel;
    unsigned burst;
    std::int64_t failed_ms;  // the last opening that has failed; 0: none
};
// By port, direction and queue.
extern Handle handles[RTE_MAX_ETHPORTS][kDirections][kMostQueues];
// The link is watched by handles of their own.
extern Handle watches[RTE_MAX_ETHPORTS][kDirections];

// Returns 0 or -errno, with a line in the log.
int open_handle(const Queue &queue, Handle &handle);
void close_handles(std::uint16_t port);
// A secondary opens its handle here. nullptr: it cannot now; the data path must not ask the daemon at each call.
[[gnu::cold]] Handle *open_late(const Queue &queue, Handle &handle);

[[gnu::always_inline]] inline Handle *handle_of(const Queue &queue) {
    Handle &handle = handles[queue.port][queue.direction][queue.index];
    return handle.channel != nullptr ? &handle : open_late(queue, handle);
}

// --- bursts.cpp ------------------------------------------------------------------------------------------------------

// rte_eth_rx_burst() and rte_eth_tx_burst() of a Queue. For one thread at a time. They never wait.
std::uint16_t receive(void *queue, rte_mbuf **mbufs, std::uint16_t most);
std::uint16_t transmit(void *queue, rte_mbuf **mbufs, std::uint16_t count);

}  // namespace numacre::dpdk
