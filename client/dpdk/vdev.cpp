// net_numacre: a virtual Ethernet device whose queues are channels of numacre.
//
//     --vdev net_numacre0,packets=NAME,rx=CHANNEL,tx=CHANNEL,...
//
// Whole objects of an object pool travel. The mempool of a device (packets.hpp) has its objects there, and each
// world, a primary process with its secondaries, has such a mempool of its own over the same object pool. To transmit
// is to make the object the channel's (numacre_send), to receive is to become its owner (numacre_receive): the packet
// is not copied, and no process has it twice. A program without DPDK sends and receives the same objects by
// numacre/adaptors/packet.h.
//
// Of an mbuf these travel: length, place of the data, packet type, hash, VLAN tags, verdicts on checksums. They go
// through the portable header at the object's begin, written by transmit() and checked by receive(). All else of an
// mbuf (pool, addresses, next, reference count, port) is written anew by the receiver, for it means nothing in another
// world; dynamic fields, timestamps and the private area do not travel.
//
// Some mbufs do not go as they are: a packet in several segments, a clone, an external buffer, an mbuf that somebody
// else refers to as well (reference count above 1), or one of another mempool. Each is copied into one new object, and
// counted (tx_copied). A packet that is longer than an object's room is dropped, and counted (tx_too_long, and as an
// error). If there is no free object for a copy, the burst ends there (tx_no_object): the rest stays the caller's.
//
// Ownership. Objects that a world's process has taken, received or allocated, are numacre's blocks in use by that
// process; there are no stashes, depots or lcore caches in a packet mempool, only numacre's caches of threads. Thus a
// process always owns what it sends, but for an mbuf that another process of its world has handed it by a ring: as soon
// as a world has a second process, objects are adopted before they are sent (numacre_adopt_bulk), one locked
// instruction each. The channel takes ownership at numacre_send's compare-and-swap, the receiver gets it in
// numacre_receive:
//
//     killed                                the packet
//     before, or inside a send              the world's. Without secondaries it comes back at once; with some, it is in
//                                           quarantine until they end, as all objects of a mempool are (README.md)
//     behind a send                         in the channel: another process receives it, now or later
//     inside a receive                      others receive it: nobody has seen it before
//     behind a receive                      the world's, as above: lost, never delivered a second time
//     in the middle of a burst of several   each batch of up to `burst` packets by itself, as above
//     sends
//
// A burst that the channel has no room for is sent in halves, down to single packets. The rest stays the
// caller's, as with any device whose ring is full. That is so as well if all receivers have gone: packets wait in the
// channel for the next one. An mbuf that the process does not own (freed, or sent before) is refused by numacre, and
// counted (tx_refused, and as an error), and the rest of the burst goes on: a double send cannot reach a receiver.
//
// Queues. Queue q of a device has the channels RX.q and TX.q. A handle of a channel is one process's, and for one
// thread at a time, which is what DPDK asks of a queue's callers. The primary opens its handles when the device is
// started, a secondary at its first burst. Handles that watch the link are separate, for any thread may ask for the
// link.
//
// Link: up while the device is started, and some process has the other end of the channels of queue 0 open: for the
// transmit channel a receiver, without one a sender of the receive channel. The daemon closes the channels of a process
// that has died. A packet's presence never depends on the link.
#include <rte_bus_vdev.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_ether.h>
#include <rte_kvargs.h>
#include <rte_log.h>
#include <rte_malloc.h>
#include <rte_mbuf.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "device.hpp"
#include "ethdev.hpp"
#include "numacre/numacre.h"
#include "rte_mempool_numacre.h"

namespace numacre::dpdk {

int device_log_type = 0;

namespace {

// Those that are no part of rte_eth_stats by themselves.
constexpr struct {
    Counter counter;
    const char *name;
} kXstats[] = {
    {kRxMalformed, "rx_malformed"}, {kTxCopied, "tx_copied"},      {kTxTooLong, "tx_too_long"},
    {kTxRefused, "tx_refused"},     {kTxNoObject, "tx_no_object"}, {kTxFull, "tx_full"},
};

Device &device_of(const rte_eth_dev *dev) {
    return *static_cast<Device *>(dev->data->dev_private);
}

void set_link(rte_eth_dev *dev, bool is_up) {
    rte_eth_link link{};
    link.link_speed = RTE_ETH_SPEED_NUM_UNKNOWN;
    link.link_duplex = RTE_ETH_LINK_FULL_DUPLEX;
    link.link_autoneg = RTE_ETH_LINK_FIXED;
    link.link_status = is_up ? RTE_ETH_LINK_UP : RTE_ETH_LINK_DOWN;
    // One word, which other processes read.
    static_assert(sizeof link == sizeof(std::uint64_t));
    std::uint64_t word = 0;
    std::memcpy(&word, &link, sizeof word);
    __atomic_store_n(reinterpret_cast<std::uint64_t *>(&dev->data->dev_link), word, __ATOMIC_RELEASE);
}

// In a secondary: the primary has said so last.
int update_link(rte_eth_dev *dev, int) {
    if (rte_eal_process_type() != RTE_PROC_PRIMARY || dev->data->dev_started == 0) return 0;
    const Device &device = device_of(dev);
    const Direction direction = device.has[kTransmit] ? kTransmit : kReceive;
    const Handle &watch = watches[dev->data->port_id][direction];
    numacre_channel_info info{};
    info.struct_size = sizeof info;
    const bool is_known = watch.channel != nullptr && numacre_channel_get_info(watch.channel, &info) == 0;
    set_link(dev, is_known && (direction == kTransmit ? info.receivers : info.senders) != 0);
    return 0;
}

int start(rte_eth_dev *dev) {
    const Device &device = device_of(dev);
    const std::uint16_t port = dev->data->port_id;
    int error = 0;
    for (unsigned direction = 0; direction < kDirections && error == 0; ++direction) {
        if (!device.has[direction]) continue;
        const unsigned queues = direction == kReceive ? dev->data->nb_rx_queues : dev->data->nb_tx_queues;
        for (unsigned queue = 0; queue < queues && error == 0; ++queue)
            error = open_handle(device.queue[direction][queue], handles[port][direction][queue]);
        if (error == 0) error = open_handle(device.queue[direction][0], watches[port][direction]);
    }
    if (error != 0) close_handles(port);
    return error;
}

int stop(rte_eth_dev *dev) {
    dev->data->dev_started = 0;
    close_handles(dev->data->port_id);
    set_link(dev, false);
    return 0;
}

// The mempool stays, for the program may have packets.
int close_device(rte_eth_dev *dev) {
    if (rte_eal_process_type() != RTE_PROC_PRIMARY) {
        close_handles(dev->data->port_id);
        return 0;
    }
    if (dev->data->dev_private == nullptr) return 0;
    (void)stop(dev);
    dev->data->mac_addrs = nullptr;  // a part of the private memory, which ethdev frees
    return 0;
}

int get_info(rte_eth_dev *dev, rte_eth_dev_info *info) {
    const Device &device = device_of(dev);
    info->max_mac_addrs = 1;
    info->max_rx_pktlen = device.most_data();
    info->min_mtu = RTE_ETHER_MIN_MTU;
    info->max_mtu = static_cast<std::uint16_t>(device.most_data() - RTE_ETHER_HDR_LEN - RTE_ETHER_CRC_LEN);
    info->max_rx_queues = static_cast<std::uint16_t>(device.queues);
    info->max_tx_queues = static_cast<std::uint16_t>(device.queues);
    info->tx_offload_capa = RTE_ETH_TX_OFFLOAD_MULTI_SEGS | RTE_ETH_TX_OFFLOAD_VLAN_INSERT;
    return 0;
}

// The mempool that the program names is not used: packets lie in the device's.
int set_up_rx_queue(rte_eth_dev *dev, std::uint16_t queue, std::uint16_t, unsigned, const rte_eth_rxconf *,
                    rte_mempool *) {
    dev->data->rx_queues[queue] = &device_of(dev).queue[kReceive][queue];
    return 0;
}
int set_up_tx_queue(rte_eth_dev *dev, std::uint16_t queue, std::uint16_t, unsigned, const rte_eth_txconf *) {
    dev->data->tx_queues[queue] = &device_of(dev).queue[kTransmit][queue];
    return 0;
}

int get_stats(rte_eth_dev *dev, rte_eth_stats *stats) {
    const Device &device = device_of(dev);
    for (unsigned i = 0; i < device.queues; ++i) {
        const Queue &rx = device.queue[kReceive][i];
        const Queue &tx = device.queue[kTransmit][i];
        stats->ipackets += rx.count(kPackets);
        stats->ibytes += rx.count(kBytes);
        stats->ierrors += rx.count(kRxMalformed);
        stats->opackets += tx.count(kPackets);
        stats->obytes += tx.count(kBytes);
        stats->oerrors += tx.count(kTxTooLong) + tx.count(kTxRefused);
        if (i >= RTE_ETHDEV_QUEUE_STAT_CNTRS) continue;
        stats->q_ipackets[i] = rx.count(kPackets);
        stats->q_ibytes[i] = rx.count(kBytes);
        stats->q_errors[i] = rx.count(kRxMalformed);
        stats->q_opackets[i] = tx.count(kPackets);
        stats->q_obytes[i] = tx.count(kBytes);
    }
    return 0;
}

int reset_stats(rte_eth_dev *dev) {
    for (auto &direction : device_of(dev).queue)
        for (Queue &queue : direction)
            for (std::atomic<std::uint64_t> &word : queue.counters) word.store(0, std::memory_order_relaxed);
    return 0;
}

int get_xstats(rte_eth_dev *dev, rte_eth_xstat *stats, unsigned room) {
    if (stats == nullptr || room < std::size(kXstats)) return static_cast<int>(std::size(kXstats));
    for (unsigned i = 0; i < std::size(kXstats); ++i) {
        stats[i].id = i;
        stats[i].value = 0;
        for (const auto &direction : device_of(dev).queue)
            for (const Queue &queue : direction) stats[i].value += queue.count(kXstats[i].counter);
    }
    return static_cast<int>(std::size(kXstats));
}

int get_xstats_names(rte_eth_dev *, rte_eth_xstat_name *names, unsigned room) {
    if (names != nullptr && room >= std::size(kXstats))
        for (unsigned i = 0; i < std::size(kXstats); ++i)
            std::snprintf(names[i].name, sizeof names[i].name, "%s", kXstats[i].name);
    return static_cast<int>(std::size(kXstats));
}

// A channel has one receiver for each packet, whatever its address: promiscuous, always.
int accept_all(rte_eth_dev *) {
    return 0;
}

constexpr EthOperations operations = [] {
    EthOperations all{};
    all.configure = accept_all;
    all.start = start;
    all.stop = stop;
    all.close = close_device;
    all.update_link = update_link;
    all.enable_promiscuous = accept_all;
    all.disable_promiscuous = accept_all;
    all.enable_all_multicast = accept_all;
    all.disable_all_multicast = accept_all;
    all.set_address = [](rte_eth_dev *, rte_ether_addr *) { return 0; };
    all.set_mtu = [](rte_eth_dev *, std::uint16_t) { return 0; };  // ethdev has compared it with the largest
    all.get_stats = get_stats;
    all.reset_stats = reset_stats;
    all.get_xstats = get_xstats;
    all.reset_xstats = reset_stats;
    all.get_xstats_names = get_xstats_names;
    all.get_info = get_info;
    all.set_up_rx_queue = set_up_rx_queue;
    all.set_up_tx_queue = set_up_tx_queue;
    return all;
}();

// --- options ---------------------------------------------------------------------------------------------------------
struct Options {
    const char *pool = nullptr;
    const char *packets = "packets";
    const char *rx = nullptr;
    const char *tx = nullptr;
    unsigned count = 8192, data = 2048, queues = 1, capacity = 0, burst = 0;
};

const char *const kKeys[] = {"pool", "packets", "rx", "tx", "count", "data", "queues", "capacity", "burst", nullptr};

// Returns 0 or -errno, with a line in the log. The options point into `arguments`.
int read_options(const char *device, const rte_kvargs *arguments, Options &options) {
    const struct {
        const char *key;
        const char **value;
    } texts[] = {{"pool", &options.pool}, {"packets", &options.packets}, {"rx", &options.rx}, {"tx", &options.tx}};
    for (const auto &text : texts)
        if (const char *const value = rte_kvargs_get(arguments, text.key)) *text.value = value;
    const struct {
        const char *key;
        unsigned *value;
        unsigned least, most;
    } numbers[] = {{"count", &options.count, 0, 1u << 30},
                   {"data", &options.data, 0, UINT16_MAX - RTE_PKTMBUF_HEADROOM},
                   {"queues", &options.queues, 1, kMostQueues},
                   {"capacity", &options.capacity, 0, 4096},
                   {"burst", &options.burst, 0, kMostBurst}};
    for (const auto &number : numbers) {
        const char *const value = rte_kvargs_get(arguments, number.key);
        if (value == nullptr) continue;
        char *end = nullptr;
        errno = 0;
        const unsigned long read = std::strtoul(value, &end, 10);
        if (errno != 0 || *value < '0' || *value > '9' || *end != '\0' || read < number.least || read > number.most) {
            NUMACRE_LOG(ERR, "%s: %s=%s: give a number from %u to %u\n", device, number.key, value, number.least,
                        number.most);
            return -EINVAL;
        }
        *number.value = static_cast<unsigned>(read);
    }
    if (options.count == 0) options.data = 0;  // the object pool is there
    if (options.rx == nullptr && options.tx == nullptr) {
        NUMACRE_LOG(ERR, "%s: give the name of a channel: rx=NAME, tx=NAME, or both\n", device);
        return -EINVAL;
    }
    for (const char *const name : {options.rx, options.tx})
        if (name != nullptr && (*name == '\0' || std::strlen(name) + sizeof ".0" > kChannelNameBytes)) {
            NUMACRE_LOG(ERR, "%s: channel \"%s\": give a name of 1 to %zu characters\n", device, name,
                        kChannelNameBytes - sizeof ".0");
            return -EINVAL;
        }
    if (options.rx != nullptr && options.tx != nullptr && std::strcmp(options.rx, options.tx) == 0) {
        NUMACRE_LOG(ERR, "%s: rx and tx are both %s: the device would receive its own packets\n", device, options.rx);
        return -EINVAL;
    }
    return 0;
}

// --- probe -----------------------------------------------------------------------------------------------------------
void set_bursts(rte_eth_dev *dev) {
    const auto nothing = [](void *, rte_mbuf **, std::uint16_t) { return std::uint16_t{0}; };
    const Device &device = device_of(dev);
    dev->dev_ops = &operations;
    dev->rx_pkt_burst = nothing;
    dev->tx_pkt_burst = nothing;
    if (device.has[kReceive]) dev->rx_pkt_burst = receive;
    if (device.has[kTransmit]) dev->tx_pkt_burst = transmit;
}

void fill_in(Device &device, std::uint16_t port, const Options &options) {
    device.object_bytes = device.mempool->elt_size + static_cast<std::uint32_t>(kMbufOffset);
    device.queues = options.queues;
    device.capacity = options.capacity;
    device.burst = options.burst;
    rte_eth_random_addr(device.address.addr_bytes);
    for (unsigned direction = 0; direction < kDirections; ++direction) {
        const char *const name = direction == kReceive ? options.rx : options.tx;
        device.has[direction] = name != nullptr;
        for (unsigned i = 0; i < kMostQueues; ++i) {
            Queue &queue = device.queue[direction][i];
            queue.device = &device;
            queue.port = port;
            queue.index = static_cast<std::uint16_t>(i);
            queue.direction = direction;
            std::snprintf(queue.channel, sizeof queue.channel, "%s.%u", name == nullptr ? "" : name, i);
        }
    }
}

int probe_primary(rte_vdev_device *vdev, const Options &options) {
    const char *const name = vdev->device.name;
    rte_mempool *const mempool =
        rte_mempool_numacre_packets(options.pool, options.packets, options.count, options.data);
    if (mempool == nullptr) return -rte_errno;
    rte_eth_dev *const dev = rte_eth_dev_allocate(name);
    if (dev == nullptr) return -ENOMEM;
    auto *const device = static_cast<Device *>(rte_zmalloc("numacre", sizeof(Device), RTE_CACHE_LINE_SIZE));
    if (device == nullptr) {
        rte_eth_dev_release_port(dev);
        return -ENOMEM;
    }
    device->mempool = mempool;
    fill_in(*device, dev->data->port_id, options);
    dev->data->dev_private = device;
    dev->data->mac_addrs = &device->address;
    dev->data->promiscuous = 1;
    dev->data->all_multicast = 1;
    dev->data->numa_node = vdev->device.numa_node;
    dev->data->dev_flags |= RTE_ETH_DEV_AUTOFILL_QUEUE_XSTATS;
    dev->device = &vdev->device;
    set_link(dev, false);
    set_bursts(dev);
    rte_eth_dev_probing_finish(dev);
    return 0;
}

int probe_secondary(rte_vdev_device *vdev) {
    rte_eth_dev *const dev = rte_eth_dev_attach_secondary(vdev->device.name);
    if (dev == nullptr) return -ENODEV;
    dev->device = &vdev->device;
    set_bursts(dev);
    rte_eth_dev_probing_finish(dev);
    return 0;
}

int probe(rte_vdev_device *vdev) {
    const char *const name = vdev->device.name;
    if (rte_eal_process_type() == RTE_PROC_SECONDARY) return probe_secondary(vdev);
    const char *const text = vdev->device.devargs == nullptr ? "" : vdev->device.devargs->args;
    rte_kvargs *const arguments = rte_kvargs_parse(text, kKeys);
    if (arguments == nullptr) {
        NUMACRE_LOG(ERR,
                    "%s: options \"%s\": there are pool, packets, rx, tx, count, data, queues, capacity and burst\n",
                    name, text);
        return -EINVAL;
    }
    Options options;
    int error = read_options(name, arguments, options);
    if (error == 0) error = probe_primary(vdev, options);
    rte_kvargs_free(arguments);
    return error;
}

int remove(rte_vdev_device *vdev) {
    rte_eth_dev *const dev = rte_eth_dev_allocated(vdev->device.name);
    if (dev == nullptr) return 0;
    (void)close_device(dev);
    return rte_eth_dev_release_port(dev);
}

constinit rte_vdev_driver driver{
    .next = nullptr,
    .previous = nullptr,
    .driver = {.next = nullptr, .previous = nullptr, .name = "net_numacre", .alias = nullptr},
    .probe = probe,
    .remove = remove,
    .dma_map = nullptr,
    .dma_unmap = nullptr,
    .flags = 0,
};

[[gnu::constructor]] void register_driver() {
    device_log_type = rte_log_register_type_and_pick_level("pmd.net.numacre", RTE_LOG_NOTICE);
    rte_vdev_register(&driver);
}

}  // namespace
}  // namespace numacre::dpdk
