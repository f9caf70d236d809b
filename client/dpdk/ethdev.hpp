// The drivers' side of DPDK 22.11, as far as a virtual device needs it. The declarations are those of that version:
// Debian does not install its headers for drivers (ethdev_driver.h, bus_vdev_driver.h, dev_driver.h). Include it after
// no other version of them. Functions that this driver does not have are numbered gaps.
#pragma once

#include <pthread.h>
#include <rte_config.h>
#include <rte_dev.h>
#include <rte_devargs.h>
#include <rte_ethdev.h>
#include <rte_version.h>

#include <cstddef>
#include <cstdint>

#if RTE_VERSION < RTE_VERSION_NUM(22, 11, 0, 0) || RTE_VERSION >= RTE_VERSION_NUM(23, 3, 0, 0)
#error "net_numacre knows the drivers' side of DPDK 22.11 only"
#endif

struct rte_driver {
    rte_driver *next;
    rte_driver **previous;
    const char *name;
    const char *alias;
};

struct rte_device {
    rte_device *next;
    rte_device **previous;
    const char *name;
    const char *bus_info;
    const rte_driver *driver;
    const void *bus;
    int numa_node;
    rte_devargs *devargs;
};

struct rte_vdev_device {
    rte_vdev_device *next;
    rte_vdev_device **previous;
    rte_device device;
};

struct rte_vdev_driver {
    rte_vdev_driver *next;
    rte_vdev_driver **previous;
    rte_driver driver;
    int (*probe)(rte_vdev_device *);
    int (*remove)(rte_vdev_device *);
    void *dma_map;
    void *dma_unmap;
    std::uint32_t flags;
};

// Shared by the processes of a world.
struct alignas(RTE_CACHE_LINE_SIZE) rte_eth_dev_data {
    char name[RTE_ETH_NAME_MAX_LEN];
    void **rx_queues;
    void **tx_queues;
    std::uint16_t nb_rx_queues;
    std::uint16_t nb_tx_queues;
    rte_eth_dev_sriov sriov;
    void *dev_private;
    rte_eth_link dev_link;
    rte_eth_conf dev_conf;
    std::uint16_t mtu;
    std::uint32_t min_rx_buf_size;
    std::uint64_t rx_mbuf_alloc_failed;
    rte_ether_addr *mac_addrs;
    std::uint64_t mac_pool_sel[RTE_ETH_NUM_RECEIVE_MAC_ADDR];
    rte_ether_addr *hash_mac_addrs;
    std::uint16_t port_id;
    std::uint8_t promiscuous : 1, scattered_rx : 1, all_multicast : 1, dev_started : 1, lro : 1, dev_configured : 1,
        flow_configured : 1;
    std::uint8_t rx_queue_state[RTE_MAX_QUEUES_PER_PORT];
    std::uint8_t tx_queue_state[RTE_MAX_QUEUES_PER_PORT];
    std::uint32_t dev_flags;
    int numa_node;
    rte_vlan_filter_conf vlan_filter_conf;
    rte_eth_dev_owner owner;
    std::uint16_t representor_id;
    std::uint16_t backer_port_id;
    pthread_mutex_t flow_ops_mutex;
};

namespace numacre::dpdk {
struct EthOperations;
}

// One for each process.
struct alignas(RTE_CACHE_LINE_SIZE) rte_eth_dev {
    std::uint16_t (*rx_pkt_burst)(void *queue, rte_mbuf **mbufs, std::uint16_t most);
    std::uint16_t (*tx_pkt_burst)(void *queue, rte_mbuf **mbufs, std::uint16_t count);
    void *tx_pkt_prepare;
    void *rx_queue_count;
    void *rx_descriptor_status;
    void *tx_descriptor_status;
    rte_eth_dev_data *data;
    void *process_private;
    const numacre::dpdk::EthOperations *dev_ops;
    rte_device *device;
    void *intr_handle;
    void *link_intr_cbs[2];
    void *post_rx_burst_cbs[RTE_MAX_QUEUES_PER_PORT];
    void *pre_tx_burst_cbs[RTE_MAX_QUEUES_PER_PORT];
    rte_eth_dev_state state;
    void *security_ctx;
};

namespace numacre::dpdk {

// eth_dev_ops: 113 functions.
struct EthOperations {
    int (*configure)(rte_eth_dev *);  // 0
    int (*start)(rte_eth_dev *);
    int (*stop)(rte_eth_dev *);
    void *from_3[2];
    int (*close)(rte_eth_dev *);  // 5
    void *from_6[1];
    int (*update_link)(rte_eth_dev *, int wait);  // 7
    void *from_8[1];
    int (*enable_promiscuous)(rte_eth_dev *);  // 9
    int (*disable_promiscuous)(rte_eth_dev *);
    int (*enable_all_multicast)(rte_eth_dev *);
    int (*disable_all_multicast)(rte_eth_dev *);
    void *from_13[2];
    int (*set_address)(rte_eth_dev *, rte_ether_addr *);  // 15
    void *from_16[1];
    int (*set_mtu)(rte_eth_dev *, std::uint16_t);  // 17
    int (*get_stats)(rte_eth_dev *, rte_eth_stats *);
    int (*reset_stats)(rte_eth_dev *);
    int (*get_xstats)(rte_eth_dev *, rte_eth_xstat *, unsigned);
    int (*reset_xstats)(rte_eth_dev *);
    int (*get_xstats_names)(rte_eth_dev *, rte_eth_xstat_name *, unsigned);
    void *from_23[1];
    int (*get_info)(rte_eth_dev *, rte_eth_dev_info *);  // 24
    void *from_25[16];
    int (*set_up_rx_queue)(rte_eth_dev *, std::uint16_t, std::uint16_t, unsigned, const rte_eth_rxconf *,
                           rte_mempool *);  // 41
    void *from_42[3];
    int (*set_up_tx_queue)(rte_eth_dev *, std::uint16_t, std::uint16_t, unsigned, const rte_eth_txconf *);  // 45
    void *from_46[67];
};
static_assert(offsetof(EthOperations, close) == 5 * sizeof(void *));
static_assert(offsetof(EthOperations, set_mtu) == 17 * sizeof(void *));
static_assert(offsetof(EthOperations, get_info) == 24 * sizeof(void *));
static_assert(offsetof(EthOperations, set_up_tx_queue) == 45 * sizeof(void *));
static_assert(sizeof(EthOperations) == 113 * sizeof(void *));

}  // namespace numacre::dpdk

extern "C" {
void rte_vdev_register(rte_vdev_driver *driver);
rte_eth_dev *rte_eth_dev_allocate(const char *name);
rte_eth_dev *rte_eth_dev_allocated(const char *name);
rte_eth_dev *rte_eth_dev_attach_secondary(const char *name);
int rte_eth_dev_release_port(rte_eth_dev *device);
void rte_eth_dev_probing_finish(rte_eth_dev *device);
}
