/* Packets in blocks: the form in which the DPDK device net_numacre (numacre_dpdk(7)) sends and receives them through
 * channels (numacre_channel_open), for programs that have no DPDK.
 *
 * A packet is one block of an object pool. It begins with a numacre_packet, which says where in the block the data lie.
 * Bytes up to NUMACRE_PACKET_RESERVED_BYTES are the header, and room for what a receiver keeps about the packet (a DPDK
 * process: its mbuf): nobody else reads them. The rest may have data at any place, so that headers are put in front of
 * the data without moving them.
 *
 * A receiver must not trust a header: any process of the pool may have written it. numacre_packet_data() checks it. */
#ifndef NUMACRE_PACKET_H
#define NUMACRE_PACKET_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NUMACRE_PACKET_MAGIC          0x316b706eu /* "npk1": also the version of this form */
#define NUMACRE_PACKET_RESERVED_BYTES 256u        /* data begin there or later */
#define NUMACRE_PACKET_DATA_OFFSET    320u        /* where data usually begin: with 64 bytes for headers in front */

/* Flags of a packet: which fields say something, and what has been checked. */
#define NUMACRE_PACKET_VLAN             0x01u /* vlan: a tag (TCI) that is not in the data */
#define NUMACRE_PACKET_OUTER_VLAN       0x02u /* outer_vlan: the outer one of two such tags */
#define NUMACRE_PACKET_HASH             0x04u /* hash */
#define NUMACRE_PACKET_IP_CHECKSUM_GOOD 0x08u
#define NUMACRE_PACKET_IP_CHECKSUM_BAD  0x10u
#define NUMACRE_PACKET_L4_CHECKSUM_GOOD 0x20u
#define NUMACRE_PACKET_L4_CHECKSUM_BAD  0x40u

/* The first bytes of a block with a packet; in the byte order of the machine. Unknown flags are ignored. */
typedef struct {
    uint32_t magic;       /* NUMACRE_PACKET_MAGIC */
    uint32_t data_offset; /* bytes from the block's first byte to the packet's first byte */
    uint32_t data_bytes;  /* of the packet; all of it is in this block */
    uint32_t flags;       /* NUMACRE_PACKET_... */
    uint32_t packet_type; /* as rte_mbuf's (RTE_PTYPE_...); 0: unknown */
    uint32_t hash;        /* of the flow (RSS) */
    uint16_t vlan;
    uint16_t outer_vlan;
    uint32_t reserved; /* 0 */
} numacre_packet;

/* Writes the header of a packet of `data_bytes` bytes that begin `data_offset` bytes into the block, without flags.
 * block_bytes: the size of the pool's objects. Returns where the data belong; NULL: they do not fit into the block, or
 * begin in the reserved bytes, and nothing is written. The caller owns the block. Never blocks. */
static inline void *numacre_packet_write(void *block, size_t block_bytes, uint32_t data_offset, uint32_t data_bytes) {
    if (data_offset < NUMACRE_PACKET_RESERVED_BYTES || data_offset > block_bytes ||
        data_bytes > block_bytes - data_offset)
        return NULL;
    numacre_packet *const packet = (numacre_packet *)block;
    packet->magic = NUMACRE_PACKET_MAGIC;
    packet->data_offset = data_offset;
    packet->data_bytes = data_bytes;
    packet->flags = 0;
    packet->packet_type = 0;
    packet->hash = 0;
    packet->vlan = 0;
    packet->outer_vlan = 0;
    packet->reserved = 0;
    return (char *)block + data_offset;
}

/* Returns where the data of the packet in a received block are, and stores their number. NULL: the block has no packet,
 * or its header leads out of the block; free the block. block_bytes: the size of the pool's objects. The caller owns
 * the block. Never blocks. */
static inline void *numacre_packet_data(void *block, size_t block_bytes, uint32_t *data_bytes) {
    /* Each field is read once: another process may still write here, against the rules. */
    const volatile numacre_packet *const packet = (const volatile numacre_packet *)block;
    const uint32_t magic = packet->magic;
    const uint32_t offset = packet->data_offset;
    const uint32_t bytes = packet->data_bytes;
    if (magic != NUMACRE_PACKET_MAGIC || offset < NUMACRE_PACKET_RESERVED_BYTES || offset > block_bytes ||
        bytes > block_bytes - offset)
        return NULL;
    *data_bytes = bytes;
    return (char *)block + offset;
}

#ifdef __cplusplus
}
#endif

#endif
