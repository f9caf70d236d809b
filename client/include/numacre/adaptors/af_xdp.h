/* AF_XDP sockets whose packets lie in blocks of a pool. The kernel writes packets straight into blocks and sends
 * packets straight from blocks. A received block can be handed to another process by its reference, without a copy.
 *
 *     #include <numacre/adaptors/af_xdp.h>                  link with -lnumacre -lxdp
 *     ...
 *     numacre_xdp_options options = {0};
 *     numacre_xdp xdp;
 *     options.interface_name = "eth1";
 *     if (numacre_xdp_open(&xdp, pool, &options) != 0) fail(xdp.error);
 *     numacre_xdp_refill(&xdp, UINT_MAX);
 *     for (;;) {
 *         const unsigned count = numacre_xdp_receive(&xdp, blocks, offsets, lengths, 64);
 *         numacre_ref_bulk(pool, blocks, refs, count);      and pass the references on, or
 *         numacre_free_bulk(pool, blocks, count);
 *         numacre_xdp_refill(&xdp, 64);
 *         if (count == 0) poll(numacre_xdp_fd(&xdp), POLLIN), with a timeout: see numacre_xdp_refill
 *     }
 *     numacre_xdp_close(&xdp);                              before numacre_detach
 *
 * A numacre_xdp is one queue of one interface. It registers the memory of one numa node of the pool with the kernel
 * (the UMEM), all of it, and pins it (numacre_pin): the pool does not shrink below it, and does not move it, while the
 * socket is open. So all memory of that numa node has to be online, as that of an object pool always is. Several queues
 * take several numacre_xdp, of one thread or of several, on the same pool; a block that one of them has received may be
 * sent by another. Each costs the kernel 8 bytes for each page of 4 KiB, and counts against RLIMIT_MEMLOCK.
 *
 * With the default program, packets of the queue no longer reach the kernel's own network stack: ARP, DNS and logins
 * through that interface stop working. Use an interface or a queue of its own, or a program that chooses
 * (NUMACRE_XDP_NO_PROGRAM).
 *
 * Blocks. The kernel has chunks of 2048 to 4096 bytes. The first 256 bytes of a block, and headroom_bytes more, precede
 * the packet, and are the program's while it has the block: a good place for a header of its own, for example with the
 * packet's offset and length for the process that takes the block. (An XDP program of the caller's that calls
 * bpf_xdp_adjust_head, or adds metadata, uses these bytes: trust offsets[i] of numacre_xdp_receive.) The packet has the
 * rest of the chunk (1792 bytes of 2048); the kernel drops longer packets. Of a block larger than 4096 bytes, the
 * kernel uses the first 4096. Blocks that are a multiple of 4096 bytes apart, or 2048, are aligned chunks; other sizes
 * (objects of 2368 bytes) are chunks in unaligned mode.
 *
 * Zero copy in unaligned mode. The kernel does not take a chunk that lies in two pages whose addresses, as the device
 * sees them, do not follow each other: it skips the descriptor (rx_invalid_descs and tx_invalid_descs of
 * numacre_xdp_statistics), and never tells of the block again. So such a socket needs hugepages, in which neighbours
 * follow each other; numacre_xdp_give and _send refuse a block that lies in two of them, and numacre_xdp_refill keeps
 * it aside until the close (one of 885 objects of 2368 bytes in pages of 2 MiB). Behind an IOMMU that maps each 4 KiB
 * by itself this does not help: where rx_invalid_descs grows, use NUMACRE_XDP_COPY, or blocks of 2048 or 4096 bytes.
 *
 * Owners. The pool counts each block below as the process's that opened the socket.
 *
 *     the block is               since                       is used by    a kill of the process then
 *     in the fill ring           numacre_xdp_refill, _give   the kernel    brings it back (*)
 *     in the receive ring        a packet has come           the kernel    brings it back (*)
 *     received                   numacre_xdp_receive         the caller    brings it back, unless another took it
 *     in the send ring           numacre_xdp_send            the kernel    brings it back (*), the packet sent or not
 *     in the completion ring     the packet is sent          the kernel    brings it back (*)
 *     completed                  numacre_xdp_complete        the caller    brings it back
 *
 * (*) The kernel stops writing when the last descriptor of the socket is closed, which a death does too. The pin keeps
 * what a dead process had out of use until the pin's last holder is gone, and for the pool's pin-quarantine (5 s) after
 * that, since a driver may still be letting go. Then the blocks come back. A process that is killed leaves the XDP
 * program attached to the interface, where it passes all packets to the kernel's stack; the next numacre_xdp_open on
 * the interface uses it again, and `ip link set dev NAME xdp off` removes it.
 *
 * A reference that was made earlier stays valid while the kernel has the block. Hence do not give or send a block whose
 * reference another process may still take: that process would own memory that the kernel writes to. Nor give a block
 * to two sockets: each knows what it has given itself, and cannot see what another one has.
 *
 * Threads: one thread at a time may call numacre_xdp_refill, _give and _receive on a numacre_xdp, and one thread at a
 * time (the same or another) numacre_xdp_send and _complete. No other call may run beside them. Different numacre_xdp
 * are independent.
 *
 * fork: a child inherits the descriptors of socket and pin, and must not use the numacre_xdp (the rings are not mapped
 * there). The kernel has the blocks until the child has ended, called exec, or closed both: close(numacre_xdp_fd(&xdp))
 * and numacre_unpin(pool, xdp.pin). Pass the pin along with a socket that you pass to another process.
 *
 * Errors: functions that return int return -errno, and the sentence with the wrong value and the remedy is in
 * numacre_xdp.error, of numacre_xdp_send and _complete in numacre_xdp.send_error. C11 or C++11, gcc or clang, Linux 5.4
 * or newer, libxdp 1.2 or newer. Names that are not described here are private to this header. */
#ifndef NUMACRE_ADAPTORS_AF_XDP_H
#define NUMACRE_ADAPTORS_AF_XDP_H

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/if_link.h>
#include <linux/if_xdp.h>
#include <net/if.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>
#include <xdp/xsk.h>

#include "numacre/numacre.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Flags of numacre_xdp_options. Without flags: the driver's XDP if it has any, zero copy if it can. */
#define NUMACRE_XDP_COPY       0x01u /* the kernel copies packets into and out of blocks */
#define NUMACRE_XDP_ZEROCOPY   0x02u /* the device reads and writes blocks; fails where the driver cannot */
#define NUMACRE_XDP_SKB        0x04u /* the kernel's generic XDP, which every interface has */
#define NUMACRE_XDP_DRIVER     0x08u /* the driver's XDP; fails where the driver has none */
#define NUMACRE_XDP_NO_PROGRAM 0x10u /* loads no XDP program: the caller's own one redirects to numacre_xdp.socket */

#define NUMACRE_XDP_MESSAGE_BYTES 400 /* of a message, with the byte that ends it */

/* The socket to open. 0 or NULL is the default of each field but the name. */
typedef struct {
    const char *interface_name;
    uint32_t queue;
    int numa_node;           /* of the pool: whose memory */
    uint32_t block_bytes;    /* 2048 or 4096; 0: the smallest block of at least 2048 B. Object pools: 0 */
    uint32_t headroom_bytes; /* before each received packet, beyond the kernel's 256 */
    uint32_t fill_entries;   /* sizes of the rings, powers of two; 0: 2048 */
    uint32_t receive_entries;
    uint32_t send_entries;
    uint32_t completion_entries;
    unsigned flags; /* NUMACRE_XDP_... */
} numacre_xdp_options;

/* An open socket with its UMEM. Stays where it is until numacre_xdp_close: libxdp keeps the addresses of the rings. The
 * caller may read the fields that have a comment, and calls libxdp by `socket`; all others are private. */
typedef struct {
    /* A sentence about the last call that failed. Each is written by one thread alone: send_error by numacre_xdp_send
     * and _complete, error by all other calls. */
    char error[NUMACRE_XDP_MESSAGE_BYTES], send_error[NUMACRE_XDP_MESSAGE_BYTES];
    numacre_pool *pool;
    struct xsk_socket *socket; /* for xsk_socket__update_xskmap and setsockopt */
    struct xsk_umem *umem;
    char *base;           /* address of the UMEM in this process */
    uint64_t size_bytes;  /* of the UMEM */
    uint32_t block_bytes; /* of the blocks that numacre_xdp_refill allocates */
    uint32_t chunk_bytes; /* the part of a block that the kernel uses */
    int is_unaligned;     /* 1: unaligned chunk mode */
    int is_zero_copy;     /* 1: the device reads and writes blocks */
    /* Blocks ever given to the kernel to receive into, and received; sent, and completed. Calls of the receiving thread
     * set the first two, calls of the sending thread the others. */
    uint64_t given, received, sent, completed;
    uint64_t strays;     /* descriptors for blocks that the kernel did not have: 0, or the rings are damaged */
    uint64_t withheld;   /* blocks that numacre_xdp_refill keeps aside: see "Zero copy in unaligned mode" */
    uint64_t page_bytes; /* no chunk may lie in two pages of this size; 0: chunks may */
    int pin;             /* descriptor of numacre_pin; -1: none */
    int numa_node;
    unsigned numa_nodes;
    unsigned interface_index;
    uint32_t queue;
    /* A bit for each 2048 bytes of the UMEM: the kernel has a block that begins there, to fill it, or to send it. */
    uint64_t *filling, *sending;
    struct xsk_ring_prod fill_ring, send_ring;
    struct xsk_ring_cons completion_ring, receive_ring;
} numacre_xdp;

#define NUMACRE_XDP_CHUNK_MIN 2048u
#define NUMACRE_XDP_CHUNK_MAX 4096u
#define NUMACRE_XDP_HEADROOM  256u /* the kernel's XDP_PACKET_HEADROOM */
#define NUMACRE_XDP_BATCH     64u
#define NUMACRE_XDP_WAIT_MS   5000 /* the longest wait for the end of an earlier socket, or of packets to send */
#define NUMACRE_XDP_LOOK_MS   5

/* Both stand outside what -std=c11 shows of libc's headers. */
#ifndef MADV_DONTFORK
#define MADV_DONTFORK 10
#ifndef __cplusplus
int madvise(void *address, size_t size_bytes, int advice);
#endif
#endif

#define NUMACRE_XDP_LOAD(word) __atomic_load_n((word), __ATOMIC_RELAXED)

/* Private. The kernel maps rings, and registers memory, by its own pages: 4 KiB, or up to 64 KiB on some machines. */
static inline uintptr_t numacre_xdp_page_bytes(void) {
    return (uintptr_t)sysconf(_SC_PAGESIZE);
}

/* Private. Returns the bit of a block, and the word that has it. Blocks are at least 2048 bytes apart: no two share a
 * bit. */
static inline uint64_t numacre_xdp_bit(uint64_t *bits, uint64_t offset, uint64_t **word) {
    *word = bits + (offset >> 17);
    return (uint64_t)1 << (offset >> 11 & 63);
}

/* Private. Notes that a block leaves the kernel. Returns 0 if the kernel did not have it. */
static inline int numacre_xdp_leaves(const numacre_xdp *xdp, uint64_t *bits, uint64_t offset) {
    uint64_t *word;
    uint64_t bit;
    if (__builtin_expect(offset >= xdp->size_bytes, 0)) return 0;
    bit = numacre_xdp_bit(bits, offset, &word);
    if (__builtin_expect((*word & bit) == 0, 0)) return 0;
    __atomic_store_n(word, *word & ~bit, __ATOMIC_RELAXED);
    return 1;
}

/* Private. Notes that a block goes to the kernel. The words have one writer; the other thread only looks (relaxed: a
 * look at a block of another thread is a mistake of the program, which need not be noticed). */
static inline void numacre_xdp_enters(uint64_t *bits, uint64_t offset) {
    uint64_t *word;
    const uint64_t bit = numacre_xdp_bit(bits, offset, &word);
    __atomic_store_n(word, *word | bit, __ATOMIC_RELAXED);
}

/* Private. Splits an address of a descriptor into the offset of the block in the UMEM, and that of the packet in the
 * block. */
static inline uint64_t numacre_xdp_block_of(const numacre_xdp *xdp, uint64_t address, uint64_t *packet_offset) {
    if (xdp->is_unaligned) {
        *packet_offset = address >> XSK_UNALIGNED_BUF_OFFSET_SHIFT;
        return address & XSK_UNALIGNED_BUF_ADDR_MASK;
    }
    *packet_offset = address & (xdp->chunk_bytes - 1);
    return address - *packet_offset;
}

/* Private. Stores a sentence about a failure in one of the numacre_xdp's two messages. Returns `error`. */
__attribute__((format(printf, 3, 4))) static inline int numacre_xdp_fail(char *message, int error, const char *format,
                                                                         ...) {
    __builtin_va_list arguments;
    __builtin_va_start(arguments, format);
    vsnprintf(message, NUMACRE_XDP_MESSAGE_BYTES, format, arguments);
    __builtin_va_end(arguments);
    return error;
}

/* Private. Whether a chunk lies in two pages, and the kernel would not take it. */
static inline int numacre_xdp_straddles(const numacre_xdp *xdp, uint64_t offset) {
    return xdp->page_bytes != 0 && offset / xdp->page_bytes != (offset + xdp->chunk_bytes - 1) / xdp->page_bytes;
}

/* Private. Finds the offset of a block that is to go to the kernel. The result is an error if no block of the process
 * begins there, if it is smaller than a chunk, if it does not lie in the UMEM, or if the kernel has it already.
 * is_fresh: the pool has just given the block out, so that it is the process's, and large enough. */
static inline int numacre_xdp_offset_of(const numacre_xdp *xdp, const void *block, int is_fresh, uint64_t *offset,
                                        char *message) {
    uint64_t *word;
    uint64_t bit;
    *offset = (uint64_t)((uintptr_t)block - (uintptr_t)xdp->base);
    if (__builtin_expect(*offset > xdp->size_bytes - xdp->chunk_bytes, 0))
        return numacre_xdp_fail(message, -EINVAL,
                                "%p does not begin a chunk of %u bytes in the socket's memory (%p, %llu bytes): give "
                                "blocks of the pool's numa node %d",
                                block, xdp->chunk_bytes, (void *)xdp->base, (unsigned long long)xdp->size_bytes,
                                xdp->numa_node);
    if (!is_fresh) {
        /* The kernel writes a whole chunk, whatever lies behind a smaller block. */
        const size_t block_bytes = numacre_usable_size(xdp->pool, block);
        if (__builtin_expect(block_bytes == 0, 0))
            return numacre_xdp_fail(message, -EINVAL,
                                    "%p is not the begin of a block of this process (%s): give the addresses that the "
                                    "allocation or numacre_xdp_receive has stored",
                                    block, numacre_last_error());
        if (__builtin_expect(block_bytes < xdp->chunk_bytes, 0))
            return numacre_xdp_fail(message, -EINVAL,
                                    "block %p has %llu bytes, and the kernel writes chunks of %u bytes: allocate "
                                    "blocks of at least %u bytes for this socket",
                                    block, (unsigned long long)block_bytes, xdp->chunk_bytes, xdp->chunk_bytes);
    }
    if (__builtin_expect(numacre_xdp_straddles(xdp, *offset), 0))
        return numacre_xdp_fail(message, -EINVAL,
                                "block %p lies in two hugepages, which the device cannot take as one chunk: use "
                                "another block, or NUMACRE_XDP_COPY",
                                block);
    bit = numacre_xdp_bit(xdp->filling, *offset, &word);
    if (__builtin_expect((NUMACRE_XDP_LOAD(word) & bit) != 0, 0))
        return numacre_xdp_fail(
            message, -EINVAL, "this socket has block %p already, to receive into: give it once, to one socket", block);
    bit = numacre_xdp_bit(xdp->sending, *offset, &word);
    if (__builtin_expect((NUMACRE_XDP_LOAD(word) & bit) != 0, 0))
        return numacre_xdp_fail(message, -EINVAL, "this socket has block %p already, to send: wait for its completion",
                                block);
    return 0;
}

/* Private. Chooses the size of blocks and chunks, and the part of the region that becomes the UMEM. */
static inline int numacre_xdp_lay_out(numacre_xdp *xdp, const numacre_xdp_options *options,
                                      const numacre_pool_info *info, size_t region_bytes) {
    uint64_t block = info->frame_bytes;
    /* A pool of blocks of one size, which need not be a power of two: an object pool. */
    if (info->largest_block_bytes == info->frame_bytes) {
        if (options->block_bytes != 0)
            return numacre_xdp_fail(xdp->error, -EINVAL,
                                    "block_bytes is %u, but all blocks of this pool have %llu bytes: leave it 0",
                                    options->block_bytes, (unsigned long long)block);
        if (block < NUMACRE_XDP_CHUNK_MIN)
            return numacre_xdp_fail(xdp->error, -EINVAL,
                                    "the pool's objects have %llu bytes, but AF_XDP needs at least %u: make a pool of "
                                    "larger objects (numacre create NAME --object 2368 --count N)",
                                    (unsigned long long)block, NUMACRE_XDP_CHUNK_MIN);
    } else {
        if (options->block_bytes != 0 && options->block_bytes != NUMACRE_XDP_CHUNK_MIN &&
            options->block_bytes != NUMACRE_XDP_CHUNK_MAX)
            return numacre_xdp_fail(xdp->error, -EINVAL, "block_bytes is %u: use 0, %u or %u", options->block_bytes,
                                    NUMACRE_XDP_CHUNK_MIN, NUMACRE_XDP_CHUNK_MAX);
        if (block < options->block_bytes) block = options->block_bytes;
        if (block < NUMACRE_XDP_CHUNK_MIN) block = NUMACRE_XDP_CHUNK_MIN;
        if (block > info->largest_block_bytes)
            return numacre_xdp_fail(xdp->error, -EINVAL,
                                    "the pool's largest block has %llu bytes, but AF_XDP needs %llu: use a pool with a "
                                    "larger `largest`",
                                    (unsigned long long)info->largest_block_bytes, (unsigned long long)block);
    }
    xdp->block_bytes = (uint32_t)block;
    xdp->chunk_bytes = block < NUMACRE_XDP_CHUNK_MAX ? (uint32_t)block : NUMACRE_XDP_CHUNK_MAX;
    xdp->is_unaligned = block != NUMACRE_XDP_CHUNK_MIN && block % NUMACRE_XDP_CHUNK_MAX != 0;
    xdp->size_bytes = xdp->is_unaligned ? region_bytes : region_bytes - region_bytes % xdp->chunk_bytes;
    if (xdp->size_bytes < xdp->chunk_bytes || (uintptr_t)xdp->base % numacre_xdp_page_bytes() != 0)
        return numacre_xdp_fail(xdp->error, -EINVAL, "%llu bytes at %p are no memory for packets: use a larger pool",
                                (unsigned long long)region_bytes, (void *)xdp->base);
    if (options->headroom_bytes > xdp->chunk_bytes - NUMACRE_XDP_HEADROOM - 64)
        return numacre_xdp_fail(
            xdp->error, -EINVAL, "headroom_bytes is %u: at most %u leave room for a packet in a chunk of %u bytes",
            options->headroom_bytes, xdp->chunk_bytes - NUMACRE_XDP_HEADROOM - 64, xdp->chunk_bytes);
    return 0;
}

/* Private. */
static inline uint32_t numacre_xdp_entries(uint32_t wanted) {
    return wanted == 0 ? 2048 : wanted;
}

/* Private. Keeps a ring out of children of fork: a mapping of it would keep the socket open, without the pin. The
 * ring's mapping begins with the page of its producer. */
static inline int numacre_xdp_keep_from_children(const void *producer, const void *ring, size_t ring_bytes) {
    const uintptr_t begin = (uintptr_t)producer & ~(numacre_xdp_page_bytes() - 1);
    return madvise((void *)begin, (size_t)((uintptr_t)ring + ring_bytes - begin), MADV_DONTFORK) == 0 ? 0 : -errno;
}

/* Private. */
static inline int numacre_xdp_keep_rings(const numacre_xdp *xdp) {
    const struct xsk_ring_prod *const fill = &xdp->fill_ring, *const send = &xdp->send_ring;
    const struct xsk_ring_cons *const completion = &xdp->completion_ring, *const receive = &xdp->receive_ring;
    int error = numacre_xdp_keep_from_children(fill->producer, fill->ring, fill->size * sizeof(uint64_t));
    if (error == 0)
        error =
            numacre_xdp_keep_from_children(completion->producer, completion->ring, completion->size * sizeof(uint64_t));
    if (error == 0)
        error =
            numacre_xdp_keep_from_children(receive->producer, receive->ring, receive->size * sizeof(struct xdp_desc));
    if (error == 0)
        error = numacre_xdp_keep_from_children(send->producer, send->ring, send->size * sizeof(struct xdp_desc));
    return error;
}

/* Private. Registers the memory. */
static inline int numacre_xdp_make_umem(numacre_xdp *xdp, const numacre_xdp_options *options) {
    struct xsk_umem_config config;
    int error;
    memset(&config, 0, sizeof config);
    config.fill_size = numacre_xdp_entries(options->fill_entries);
    config.comp_size = numacre_xdp_entries(options->completion_entries);
    config.frame_size = xdp->chunk_bytes;
    config.frame_headroom = options->headroom_bytes;
    config.flags = xdp->is_unaligned ? XDP_UMEM_UNALIGNED_CHUNK_FLAG : 0;
    error = xsk_umem__create(&xdp->umem, xdp->base, xdp->size_bytes, &xdp->fill_ring, &xdp->completion_ring, &config);
    if (error == 0) {
        /* Closed on exec, as the pin is. */
        if (fcntl(xsk_umem__fd(xdp->umem), F_SETFD, FD_CLOEXEC) == 0) return 0;
        return numacre_xdp_fail(xdp->error, -errno, "cannot set FD_CLOEXEC on an AF_XDP socket: %s", strerror(errno));
    }
    xdp->umem = NULL;
    switch (error) {
        case -EPERM:
            return numacre_xdp_fail(
                xdp->error, error,
                "an AF_XDP socket needs CAP_NET_RAW (and CAP_NET_ADMIN and CAP_BPF, to load the XDP "
                "program): run as root, or give the program these capabilities");
        case -EAFNOSUPPORT:
            return numacre_xdp_fail(xdp->error, error,
                                    "the kernel has no AF_XDP: use one with CONFIG_XDP_SOCKETS, 5.4 or newer");
        case -ENOBUFS:
            return numacre_xdp_fail(xdp->error, error,
                                    "pinning %llu bytes exceeds RLIMIT_MEMLOCK: raise the limit (ulimit -l, "
                                    "LimitMEMLOCK=), give the program CAP_IPC_LOCK, or use a smaller pool",
                                    (unsigned long long)xdp->size_bytes);
        case -ENOMEM:
        case -EFAULT:
            return numacre_xdp_fail(xdp->error, error,
                                    "the kernel cannot register %llu bytes of numa node %d: the machine's memory is "
                                    "short, or a part of the pool's memory is gone; use a smaller pool",
                                    (unsigned long long)xdp->size_bytes, xdp->numa_node);
        case -EINVAL:
            return numacre_xdp_fail(
                xdp->error, error,
                "the kernel refuses a UMEM of %llu bytes with chunks of %u bytes%s, fill_entries %u "
                "and completion_entries %u: the rings' sizes have to be powers of two, and unaligned "
                "chunks need Linux 5.4",
                (unsigned long long)xdp->size_bytes, xdp->chunk_bytes, xdp->is_unaligned ? " (unaligned)" : "",
                config.fill_size, config.comp_size);
        default:
            return numacre_xdp_fail(xdp->error, error, "cannot register %llu bytes with the kernel as a UMEM: %s",
                                    (unsigned long long)xdp->size_bytes, strerror(-error));
    }
}

/* Private. Says why a queue cannot be opened. is_program: the socket is fine, the XDP program is not. */
static inline int numacre_xdp_explain(numacre_xdp *xdp, const numacre_xdp_options *options, int error, int is_program) {
    const char *const name = options->interface_name;
    if (error == -EPERM || error == -EACCES)
        return numacre_xdp_fail(
            xdp->error, error,
            "the XDP program for interface '%s' needs CAP_NET_ADMIN and CAP_BPF (or CAP_SYS_ADMIN): "
            "run as root, or load a program and use NUMACRE_XDP_NO_PROGRAM",
            name);
    if (is_program)
        return numacre_xdp_fail(xdp->error, error,
                                "the XDP program cannot be attached to interface '%s': %s. The driver may have no XDP, "
                                "the MTU may be too large for it, or another program may be there (`ip link show %s`): "
                                "NUMACRE_XDP_SKB asks for the kernel's generic XDP",
                                name, strerror(-error), name);
    switch (error) {
        case -EBUSY:
            return numacre_xdp_fail(xdp->error, error,
                                    "queue %u of interface '%s' belongs to another AF_XDP socket: close that, or use "
                                    "another queue",
                                    options->queue, name);
        case -ENETDOWN:
            return numacre_xdp_fail(xdp->error, error, "interface '%s' is down: `ip link set %s up`", name, name);
        case -EOPNOTSUPP:
            return numacre_xdp_fail(xdp->error, error,
                                    "the driver of interface '%s' cannot do what flags %#x ask for: leave out "
                                    "NUMACRE_XDP_ZEROCOPY and NUMACRE_XDP_DRIVER",
                                    name, options->flags);
        case -EINVAL:
            return numacre_xdp_fail(
                xdp->error, error,
                "the kernel refuses queue %u of interface '%s' with receive_entries %u, send_entries "
                "%u and flags %#x: `ethtool -l %s` and /sys/class/net/%s/queues tell which queues "
                "there are, and the rings' sizes have to be powers of two",
                options->queue, name, numacre_xdp_entries(options->receive_entries),
                numacre_xdp_entries(options->send_entries), options->flags, name, name);
        default:
            return numacre_xdp_fail(xdp->error, error, "cannot open queue %u of interface '%s': %s", options->queue,
                                    name, strerror(-error));
    }
}

/* Private. Whether a socket is bound to a queue. */
static inline int numacre_xdp_is_bound(int socket) {
    return sendto(socket, NULL, 0, MSG_DONTWAIT, NULL, 0) == 0 || errno != ENXIO;
}

/* Private. Opens the queue. An earlier socket's end takes a while in the kernel: the queue is busy until then. */
static inline int numacre_xdp_make_socket(numacre_xdp *xdp, const numacre_xdp_options *options) {
    struct xsk_socket_config config;
    int error, waited_ms;
    memset(&config, 0, sizeof config);
    config.rx_size = numacre_xdp_entries(options->receive_entries);
    config.tx_size = numacre_xdp_entries(options->send_entries);
    config.bind_flags = XDP_USE_NEED_WAKEUP;
    if ((options->flags & NUMACRE_XDP_COPY) != 0) config.bind_flags |= XDP_COPY;
    if ((options->flags & NUMACRE_XDP_ZEROCOPY) != 0) config.bind_flags |= XDP_ZEROCOPY;
    if ((options->flags & NUMACRE_XDP_SKB) != 0) config.xdp_flags |= XDP_FLAGS_SKB_MODE;
    if ((options->flags & NUMACRE_XDP_DRIVER) != 0) config.xdp_flags |= XDP_FLAGS_DRV_MODE;
    if ((options->flags & NUMACRE_XDP_NO_PROGRAM) != 0) config.libbpf_flags = XSK_LIBBPF_FLAGS__INHIBIT_PROG_LOAD;
    for (waited_ms = 0;; waited_ms += NUMACRE_XDP_LOOK_MS) {
        int is_bound;
        error = xsk_socket__create(&xdp->socket, options->interface_name, options->queue, xdp->umem, &xdp->receive_ring,
                                   &xdp->send_ring, &config);
        if (error == 0) return 0;
        xdp->socket = NULL;
        is_bound = numacre_xdp_is_bound(xsk_umem__fd(xdp->umem));
        if (error != -EBUSY || is_bound || waited_ms >= NUMACRE_XDP_WAIT_MS)
            return numacre_xdp_explain(xdp, options, error, is_bound);
        (void)poll(NULL, 0, NUMACRE_XDP_LOOK_MS);
    }
}

static inline int numacre_xdp_close(numacre_xdp *xdp);

/* Private. The steps of numacre_xdp_open that need a close when they fail. */
static inline int numacre_xdp_open_parts(numacre_xdp *xdp, const numacre_xdp_options *options,
                                         const numacre_pool_info *info) {
    struct xdp_options kernel_options;
    socklen_t size = sizeof kernel_options;
    const size_t words = (size_t)(xdp->size_bytes >> 17) + 1;
    int error;
    xdp->filling = (uint64_t *)calloc(words, sizeof *xdp->filling);
    xdp->sending = (uint64_t *)calloc(words, sizeof *xdp->sending);
    if (xdp->filling == NULL || xdp->sending == NULL)
        return numacre_xdp_fail(xdp->error, -ENOMEM, "no memory for %llu bytes of bits",
                                (unsigned long long)words * 16);
    error = numacre_pin(xdp->pool, xdp->base, xdp->size_bytes, &xdp->pin);
    if (error != 0) {
        xdp->pin = -1;
        return numacre_xdp_fail(xdp->error, error,
                                "cannot pin %llu bytes of numa node %d: %s. The socket needs all of it online: numacre "
                                "resize POOL %lluM, or use an object pool, which always is",
                                (unsigned long long)xdp->size_bytes, xdp->numa_node, numacre_last_error(),
                                (unsigned long long)info->capacity_bytes >> 20);
    }
    error = numacre_xdp_make_umem(xdp, options);
    if (error == 0) error = numacre_xdp_make_socket(xdp, options);
    if (error != 0) return error;
    if (getsockopt(xsk_socket__fd(xdp->socket), SOL_XDP, XDP_OPTIONS, &kernel_options, &size) == 0)
        xdp->is_zero_copy = (kernel_options.flags & XDP_OPTIONS_ZEROCOPY) != 0;
    if (xdp->is_zero_copy && xdp->is_unaligned) {
        if (info->backing != NUMACRE_BACKING_HUGETLB && info->backing != NUMACRE_BACKING_HUGETLB_1G)
            return numacre_xdp_fail(
                xdp->error, -EOPNOTSUPP,
                "blocks of %u bytes cross pages that are not neighbours, which zero copy refuses: use a "
                "pool of hugepages, NUMACRE_XDP_COPY, or blocks of 2048 or 4096 bytes",
                xdp->block_bytes);
        xdp->page_bytes = (uint64_t)1 << (info->backing == NUMACRE_BACKING_HUGETLB ? 21 : 30);
    }
    error = numacre_xdp_keep_rings(xdp);
    if (error != 0)
        return numacre_xdp_fail(xdp->error, error, "cannot keep the rings out of forked children: %s",
                                strerror(-error));
    return 0;
}

/* Opens a queue of an interface on the memory of one numa node of the pool. The kernel has no block yet: call
 * numacre_xdp_refill. Enters the kernel, and blocks for up to 5 s while an earlier socket's end frees the queue.
 * After a failure xdp has only the sentence; numacre_xdp_close does nothing. If the caller is killed inside, nothing is
 * lost; the XDP program may stay attached.
 * Errors: -EINVAL a NULL pointer, a pool whose blocks do not suit or whose memory is not online as a whole, a bad size
 * of a ring, or no such queue; -ENODEV no such interface, or no such numa node; -ENOMEM, -EFAULT the kernel cannot pin
 * the memory; -ENOBUFS RLIMIT_MEMLOCK; -EPERM CAP_NET_RAW, CAP_NET_ADMIN or CAP_BPF is missing; -EBUSY another socket
 * has the queue; -ENETDOWN the interface is down (zero copy only); -EOPNOTSUPP the driver cannot do what the flags ask
 * for; -EAFNOSUPPORT no AF_XDP in the kernel; those of numacre_pin; what libxdp says about the XDP program. */
static inline int numacre_xdp_open(numacre_xdp *xdp, numacre_pool *pool, const numacre_xdp_options *options) {
    numacre_pool_info info;
    void *base = NULL;
    size_t region_bytes = 0;
    int error;
    if (xdp == NULL) return -EINVAL;
    memset(xdp, 0, sizeof *xdp);
    xdp->pin = -1;
    if (pool == NULL || options == NULL || options->interface_name == NULL)
        return numacre_xdp_fail(xdp->error, -EINVAL, "the pool, the options or interface_name is NULL: give all three");
    xdp->pool = pool;
    xdp->numa_node = options->numa_node;
    xdp->queue = options->queue;
    xdp->interface_index = if_nametoindex(options->interface_name);
    if (xdp->interface_index == 0)
        return numacre_xdp_fail(xdp->error, -ENODEV, "there is no interface '%s': `ip link` lists them",
                                options->interface_name);
    memset(&info, 0, sizeof info);
    info.struct_size = sizeof info;
    error = numacre_get_info(pool, &info);
    if (error == 0) error = numacre_region(pool, options->numa_node, &base, &region_bytes);
    if (error != 0)
        return numacre_xdp_fail(xdp->error, error, "numa node %d of the pool: %s", options->numa_node,
                                numacre_last_error());
    xdp->base = (char *)base;
    xdp->numa_nodes = info.numa_nodes;
    error = numacre_xdp_lay_out(xdp, options, &info, region_bytes);
    if (error == 0) error = numacre_xdp_open_parts(xdp, options, &info);
    if (error != 0) {
        char why[sizeof xdp->error];
        memcpy(why, xdp->error, sizeof why);
        (void)numacre_xdp_close(xdp);
        memcpy(xdp->error, why, sizeof why);
    }
    return error;
}

/* Private. numacre_xdp_give of blocks that are fresh (numacre_xdp_offset_of), or of any. */
static inline int numacre_xdp_fill(numacre_xdp *xdp, void *const *blocks, unsigned count, int are_fresh) {
    unsigned room = xsk_prod_nb_free(&xdp->fill_ring, count), i;
    uint32_t at = 0;
    if (room > count) room = count;
    for (i = 0; i < room; ++i) {
        uint64_t offset;
        const int error = numacre_xdp_offset_of(xdp, blocks[i], are_fresh, &offset, xdp->error);
        if (error != 0 && i == 0) return error;
        if (error != 0) break;
        (void)xsk_ring_prod__reserve(&xdp->fill_ring, 1, &at);
        *xsk_ring_prod__fill_addr(&xdp->fill_ring, at) = offset;
        numacre_xdp_enters(xdp->filling, offset);
    }
    if (i != 0) xsk_ring_prod__submit(&xdp->fill_ring, i);
    xdp->given += i;
    return (int)i;
}

/* Gives blocks of the caller's to the kernel, to receive packets into. Returns how many, the first of the array, the
 * kernel has now: fewer than count if the fill ring is full, or at a block that is refused. Does not enter the kernel.
 * Errors, if there is one at the first block: -EINVAL the address is not the begin of a block of this process, the
 * block is smaller than a chunk (the kernel would write past its end), lies outside the socket's memory or in two
 * hugepages that zero copy cannot join, or this socket has it already; what other sockets have is not known here. If
 * the caller is killed inside, the blocks come back. */
static inline int numacre_xdp_give(numacre_xdp *xdp, void *const *blocks, unsigned count) {
    return numacre_xdp_fill(xdp, blocks, count, 0);
}

/* Private. Keeps aside those of the blocks that the kernel would not take: their bits are set, so that the close frees
 * them. The others move to the front of the array. Returns their number. */
static inline unsigned numacre_xdp_withhold(numacre_xdp *xdp, void **blocks, unsigned count) {
    unsigned kept = 0, i;
    if (xdp->page_bytes == 0) return count;
    for (i = 0; i < count; ++i) {
        const uint64_t offset = (uint64_t)((char *)blocks[i] - xdp->base);
        if (numacre_xdp_straddles(xdp, offset)) {
            numacre_xdp_enters(xdp->filling, offset);
            ++xdp->withheld;
        } else {
            blocks[kept++] = blocks[i];
        }
    }
    return kept;
}

/* Allocates up to `count` blocks of the socket's numa node, as many as the fill ring has room for and the pool has, and
 * gives them to the kernel. Returns their number. Does not block. Errors, if not even one block could be had: those of
 * numacre_alloc_bulk and numacre_alloc_on (-ENOMEM, -EDQUOT ...). -ENOMEM and
 * -EDQUOT are no reason to stop: the kernel goes on with the blocks that it has. When it has none left it drops
 * packets, and none of them wakes a poll, so bound the wait, and refill again. A refill of a full pool costs several
 * allocations that fail: do not repeat it at each turn of a busy loop. If the caller is killed inside, the blocks come
 * back. */
static inline int numacre_xdp_refill(numacre_xdp *xdp, unsigned count) {
    void *blocks[NUMACRE_XDP_BATCH];
    unsigned room = xsk_prod_nb_free(&xdp->fill_ring, count < xdp->fill_ring.size ? count : xdp->fill_ring.size);
    unsigned total = 0, batch = NUMACRE_XDP_BATCH;
    int error = 0;
    if (room > count) room = count;
    while (total < room && batch > 0) {
        unsigned wanted = room - total < batch ? room - total : batch;
        int given;
        if (xdp->numa_nodes == 1) {
            error = numacre_alloc_bulk(xdp->pool, xdp->block_bytes, blocks, wanted);
        } else {
            unsigned i;
            for (i = 0; i < wanted; ++i) {
                error = numacre_alloc_on(xdp->pool, xdp->numa_node, xdp->block_bytes, NUMACRE_STRICT, &blocks[i]);
                if (error != 0) break;
            }
            if (i != 0) error = 0;
            wanted = i;
        }
        if (error != 0) {
            /* All or none: a smaller number may still be there. */
            if (error != -ENOMEM && error != -EDQUOT) break;
            batch = wanted / 2;
            continue;
        }
        wanted = numacre_xdp_withhold(xdp, blocks, wanted);
        given = numacre_xdp_fill(xdp, blocks, wanted, 1);
        if (given < 0 || (unsigned)given < wanted) {
            /* Never, unless the pool gives blocks that the kernel has. */
            const unsigned kept = given < 0 ? 0 : (unsigned)given;
            (void)numacre_free_bulk(xdp->pool, blocks + kept, wanted - kept);
            total += kept;
            if (given < 0 && total == 0) return given;
            break;
        }
        total += wanted;
    }
    if (total == 0 && error != 0)
        return numacre_xdp_fail(xdp->error, error, "no block of %u bytes for the kernel: %s", xdp->block_bytes,
                                numacre_last_error());
    return (int)total;
}

/* Stores up to `count` blocks with packets that have come, and that are the caller's now. The packet of block i begins
 * offsets[i] bytes behind the block's begin, and has lengths[i] bytes. Returns their number. Never fails, never blocks;
 * enters the kernel only if there is none and the driver asks to be called. If the caller is killed inside, the blocks
 * come back. */
static inline unsigned numacre_xdp_receive(numacre_xdp *xdp, void **blocks, uint32_t *offsets, uint32_t *lengths,
                                           unsigned count) {
    uint32_t at = 0;
    const unsigned found = xsk_ring_cons__peek(&xdp->receive_ring, count, &at);
    unsigned stored = 0, i;
    for (i = 0; i < found; ++i) {
        const struct xdp_desc *const description = xsk_ring_cons__rx_desc(&xdp->receive_ring, at + i);
        uint64_t packet_offset;
        const uint64_t offset = numacre_xdp_block_of(xdp, description->addr, &packet_offset);
        if (__builtin_expect(numacre_xdp_leaves(xdp, xdp->filling, offset), 1)) {
            blocks[stored] = xdp->base + offset;
            offsets[stored] = (uint32_t)packet_offset;
            lengths[stored] = description->len;
            ++stored;
        } else {
            ++xdp->strays;
        }
    }
    if (found != 0) {
        xsk_ring_cons__release(&xdp->receive_ring, found);
    } else if (xsk_ring_prod__needs_wakeup(&xdp->fill_ring)) {
        (void)recvfrom(xsk_socket__fd(xdp->socket), NULL, 0, MSG_DONTWAIT, NULL, NULL);
    }
    xdp->received += stored;
    return stored;
}

/* Private. Makes the device send what is in the send ring. Errors that pass by themselves are none. */
static inline int numacre_xdp_kick(numacre_xdp *xdp) {
    if (!xsk_ring_prod__needs_wakeup(&xdp->send_ring) ||
        sendto(xsk_socket__fd(xdp->socket), NULL, 0, MSG_DONTWAIT, NULL, 0) >= 0 || errno == EAGAIN || errno == EBUSY ||
        errno == ENOBUFS || errno == EINTR)
        return 0;
    return numacre_xdp_fail(xdp->send_error, -errno, "the kernel does not send: %s. Is the interface up?",
                            strerror(errno));
}

/* Sends packets: puts blocks into the send ring and tells the device. The packet of block i begins offsets[i] bytes
 * behind the block's begin, and has lengths[i] bytes. Returns how many, the first of the arrays, are on their way:
 * fewer than count if the ring is full, or at a block that is refused. These are the kernel's until
 * numacre_xdp_complete; the others stay the caller's. Errors, if there is one at the first block: -EINVAL for the
 * reasons of numacre_xdp_give, or the packet is empty or does not lie in the chunk; -ENXIO, -ENETDOWN the interface is
 * gone or down (the packets stay in the ring). The sentence is in send_error. If the caller is killed inside, the
 * blocks come back, the packets sent or not. */
static inline int numacre_xdp_send(numacre_xdp *xdp, void *const *blocks, const uint32_t *offsets,
                                   const uint32_t *lengths, unsigned count) {
    unsigned room = xsk_prod_nb_free(&xdp->send_ring, count), i;
    uint32_t at = 0;
    int error = 0;
    if (room > count) room = count;
    for (i = 0; i < room; ++i) {
        struct xdp_desc *description;
        uint64_t offset;
        error = numacre_xdp_offset_of(xdp, blocks[i], 0, &offset, xdp->send_error);
        if (error == 0 &&
            (lengths[i] == 0 || offsets[i] >= xdp->chunk_bytes || lengths[i] > xdp->chunk_bytes - offsets[i]))
            error =
                numacre_xdp_fail(xdp->send_error, -EINVAL,
                                 "a packet of %u bytes at offset %u is empty or does not lie in a chunk of %u bytes",
                                 lengths[i], offsets[i], xdp->chunk_bytes);
        if (error != 0) break;
        (void)xsk_ring_prod__reserve(&xdp->send_ring, 1, &at);
        description = xsk_ring_prod__tx_desc(&xdp->send_ring, at);
        description->addr =
            xdp->is_unaligned ? offset | (uint64_t)offsets[i] << XSK_UNALIGNED_BUF_OFFSET_SHIFT : offset + offsets[i];
        description->len = lengths[i];
        description->options = 0;
        numacre_xdp_enters(xdp->sending, offset);
    }
    if (i != 0) xsk_ring_prod__submit(&xdp->send_ring, i);
    xdp->sent += i;
    if (i == 0 && error != 0) return error;
    if (xdp->completed != xdp->sent) error = numacre_xdp_kick(xdp);
    /* The packets in the ring are on their way: the next call tries again. */
    return i == 0 && error != 0 ? error : (int)i;
}

/* Stores up to `count` blocks whose packets are sent, and that are the caller's again; if blocks is NULL, frees them
 * (numacre_free_bulk). Returns their number. Also makes the device send what is still in the send ring, so call it
 * until xdp->completed equals xdp->sent. Enters the kernel only for that. Blocks come in the order in which the kernel
 * has finished with them. If the caller is killed inside, the blocks come back. Errors, with the sentence in
 * send_error: those of numacre_free_bulk, after which the other blocks are freed, and all of them count as completed;
 * -ENXIO, -ENETDOWN, if there is no block, the interface is gone or down. */
static inline int numacre_xdp_complete(numacre_xdp *xdp, void **blocks, unsigned count) {
    void *freed[NUMACRE_XDP_BATCH];
    unsigned total = 0;
    int error = 0;
    while (total < count) {
        void **const stored = blocks == NULL ? freed : blocks + total;
        unsigned wanted = count - total, found, kept = 0, i;
        uint32_t at = 0;
        if (blocks == NULL && wanted > NUMACRE_XDP_BATCH) wanted = NUMACRE_XDP_BATCH;
        found = xsk_ring_cons__peek(&xdp->completion_ring, wanted, &at);
        if (found == 0) break;
        for (i = 0; i < found; ++i) {
            uint64_t packet_offset;
            const uint64_t offset =
                numacre_xdp_block_of(xdp, *xsk_ring_cons__comp_addr(&xdp->completion_ring, at + i), &packet_offset);
            if (__builtin_expect(numacre_xdp_leaves(xdp, xdp->sending, offset), 1)) {
                stored[kept++] = xdp->base + offset;
            } else {
                ++xdp->strays;
            }
        }
        xsk_ring_cons__release(&xdp->completion_ring, found);
        xdp->completed += kept;
        total += kept;
        if (blocks == NULL) error = numacre_free_bulk(xdp->pool, freed, kept);
        if (error != 0)
            return numacre_xdp_fail(xdp->send_error, error, "a block that was sent cannot be freed: %s",
                                    numacre_last_error());
    }
    if (xdp->completed != xdp->sent) error = numacre_xdp_kick(xdp);
    return error != 0 && total == 0 ? error : (int)total;
}

/* Returns the descriptor for poll: POLLIN a packet has come, POLLOUT the send ring has room. */
static inline int numacre_xdp_fd(const numacre_xdp *xdp) {
    return xsk_socket__fd(xdp->socket);
}

/* Stores what the kernel counts for the socket (linux/if_xdp.h): rx_dropped are packets that were too long or had no
 * block, rx_ring_full packets that numacre_xdp_receive was too slow for, rx_fill_ring_empty_descs packets (in zero copy
 * mode: looks of the driver) for which there was no block. A kernel before 5.9 has no more than the first three fields;
 * the others are 0. Enters the kernel. Errors: -EINVAL. */
static inline int numacre_xdp_statistics(numacre_xdp *xdp, struct xdp_statistics *statistics) {
    socklen_t size = sizeof *statistics;
    memset(statistics, 0, sizeof *statistics);
    if (getsockopt(xsk_socket__fd(xdp->socket), SOL_XDP, XDP_STATISTICS, statistics, &size) == 0) return 0;
    return numacre_xdp_fail(xdp->error, -errno, "cannot ask for the statistics of an AF_XDP socket: %s",
                            strerror(errno));
}

/* Private. Whether a new socket could have the queue: 1, 0 (an earlier one still has it), or a negative errno value. */
static inline int numacre_xdp_queue_is_free(unsigned interface_index, uint32_t queue) {
    struct xdp_umem_reg memory;
    struct sockaddr_xdp address;
    const uint32_t entries = 2;
    int result = 1;
    const int probe = socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0);
    const size_t page_bytes = numacre_xdp_page_bytes();
    void *const page = aligned_alloc(page_bytes, page_bytes);
    memset(&memory, 0, sizeof memory);
    memory.addr = (uint64_t)(uintptr_t)page;
    memory.len = page_bytes;
    memory.chunk_size = NUMACRE_XDP_CHUNK_MAX;
    memset(&address, 0, sizeof address);
    address.sxdp_family = AF_XDP;
    address.sxdp_flags = XDP_COPY;
    address.sxdp_ifindex = interface_index;
    address.sxdp_queue_id = queue;
    if (probe < 0 || page == NULL || setsockopt(probe, SOL_XDP, XDP_UMEM_REG, &memory, sizeof memory) != 0 ||
        setsockopt(probe, SOL_XDP, XDP_UMEM_FILL_RING, &entries, sizeof entries) != 0 ||
        setsockopt(probe, SOL_XDP, XDP_UMEM_COMPLETION_RING, &entries, sizeof entries) != 0 ||
        setsockopt(probe, SOL_XDP, XDP_RX_RING, &entries, sizeof entries) != 0) {
        result = -errno;
    } else if (bind(probe, (const struct sockaddr *)&address, sizeof address) != 0) {
        /* Without the interface there is no device that could write. */
        result = errno == EBUSY ? 0 : errno == ENODEV || errno == ENETDOWN ? 1 : -errno;
    }
    if (probe >= 0) close(probe);
    free(page);
    return result;
}

/* Private. Notes the result of a free: *error becomes the first failure, with its sentence, *failed counts them. */
static inline void numacre_xdp_note_free(numacre_xdp *xdp, const void *block, int result, int *error,
                                         uint64_t *failed) {
    if (result == 0) return;
    if ((*failed)++ == 0)
        *error = numacre_xdp_fail(xdp->error, result, "block %p, which the kernel had, cannot be freed: %s", block,
                                  numacre_last_error());
}

/* Private. Frees the blocks that the bits name, of a socket that the kernel has no more. *error, *failed: as above. */
static inline void numacre_xdp_free_all(numacre_xdp *xdp, const uint64_t *bits, int *error, uint64_t *failed) {
    const uint64_t words = (xdp->size_bytes >> 17) + 1;
    uint64_t word;
    for (word = 0; word < words; ++word) {
        uint64_t left = bits[word];
        for (; left != 0; left &= left - 1) {
            /* The bit tells the 2048 bytes in which the block begins, not where: so the offset is rounded up. */
            uint64_t offset = word << 17 | (uint64_t)__builtin_ctzll(left) << 11;
            if (xdp->is_unaligned) offset = (offset + xdp->block_bytes - 1) / xdp->block_bytes * xdp->block_bytes;
            numacre_xdp_note_free(xdp, xdp->base + offset, numacre_free(xdp->pool, xdp->base + offset), error, failed);
        }
    }
}

/* Private. Waits until the kernel has let the queue go, and nobody else has the socket. */
static inline int numacre_xdp_await_end(numacre_xdp *xdp) {
    const unsigned long long left = xdp->given - xdp->received + xdp->sent - xdp->completed + xdp->withheld;
    int waited_ms, is_free;
    for (waited_ms = 0;; waited_ms += NUMACRE_XDP_LOOK_MS) {
        is_free = numacre_xdp_queue_is_free(xdp->interface_index, xdp->queue);
        if (is_free != 0 || waited_ms >= NUMACRE_XDP_WAIT_MS) break;
        (void)poll(NULL, 0, NUMACRE_XDP_LOOK_MS);
    }
    /* A process that cannot ask (without CAP_NET_RAW by now) takes the close for the end, unless a device may write. */
    if (is_free > 0 || (is_free < 0 && !xdp->is_zero_copy)) return 0;
    return numacre_xdp_fail(xdp->error, is_free == 0 ? -ETIMEDOUT : is_free,
                            "queue %u is not free after the close (%s): a child has the socket, or another socket has "
                            "the queue by now. %llu blocks stay with this process until it ends",
                            xdp->queue, is_free == 0 ? "for 5 s" : strerror(-is_free), left);
}

/* Closes the socket, waits until the kernel has let the blocks go, frees those that it had, and unpins the memory.
 * Blocks that the caller has stay the caller's. The packets of the send ring are sent, as far as the device takes them
 * within 5 s; packets in the receive ring are dropped. Blocks for as long, and for 5 s more while a child still has the
 * socket. xdp is closed in any case; a second call does nothing, nor does a call for a numacre_xdp that is all zeros.
 * If the caller is killed inside, everything comes back. Errors: -ETIMEDOUT the queue is still taken after 5 s, by a
 * child that has the socket or by a new socket: blocks that the kernel had, and the pin, stay with the process until it
 * ends. Those of numacre_free, for the first block that cannot be freed: somebody has freed it, or taken it
 * by an old reference, while the kernel had it. The sentence tells how many there are; all others are freed. */
static inline int numacre_xdp_close(numacre_xdp *xdp) {
    int error = 0, free_error = 0, waited_ms = 0;
    uint64_t failed = 0;
    if (xdp->pool == NULL) return 0;
    while (xdp->socket != NULL && waited_ms < NUMACRE_XDP_WAIT_MS && xdp->completed != xdp->sent) {
        void *blocks[NUMACRE_XDP_BATCH];
        const int completed = numacre_xdp_complete(xdp, blocks, NUMACRE_XDP_BATCH);
        int i;
        for (i = 0; i < completed; ++i)
            numacre_xdp_note_free(xdp, blocks[i], numacre_free(xdp->pool, blocks[i]), &free_error, &failed);
        if (completed < 0) break;
        if (completed != 0) continue;
        (void)poll(NULL, 0, 1);
        ++waited_ms;
    }
    if (xdp->socket != NULL) xsk_socket__delete(xdp->socket);
    if (xdp->umem != NULL) (void)xsk_umem__delete(xdp->umem);
    if (xdp->socket != NULL) error = numacre_xdp_await_end(xdp);
    xdp->socket = NULL;
    xdp->umem = NULL;
    if (error == 0) {
        if (xdp->filling != NULL) numacre_xdp_free_all(xdp, xdp->filling, &free_error, &failed);
        if (xdp->sending != NULL) numacre_xdp_free_all(xdp, xdp->sending, &free_error, &failed);
        if (xdp->pin >= 0) (void)numacre_unpin(xdp->pool, xdp->pin);
        xdp->pin = -1;
        error = free_error;
    }
    if (error == free_error && failed > 1) {
        const size_t length = strlen(xdp->error);
        (void)snprintf(xdp->error + length, sizeof xdp->error - length, "; and %llu more",
                       (unsigned long long)(failed - 1));
    }
    free(xdp->filling);
    free(xdp->sending);
    xdp->filling = xdp->sending = NULL;
    return error;
}

#ifdef __cplusplus
}
#endif

#endif
