/* The parts of af_xdp_test.py: packets with sequence numbers over a pair of interfaces, by AF_XDP on blocks of a pool.
 *
 * usage: af_xdp_client traffic INTERFACE COUNT FIRST PAUSE_US    sends packets FIRST .. by AF_PACKET, in bursts of 32
 *        af_xdp_client receive POOL INTERFACE FLAGS LIMIT HEADROOM   receives by AF_XDP; references go to its output
 *        af_xdp_client check POOL                                takes the blocks of references from standard input
 *        af_xdp_client send POOL INTERFACE FLAGS COUNT           sends packets 0 .. COUNT - 1 by AF_XDP
 *        af_xdp_client forward POOL FROM TO FLAGS LIMIT          sends by TO the blocks that FROM has received
 *        af_xdp_client watch INTERFACE COUNT                     receives COUNT packets by AF_PACKET and checks them
 *        af_xdp_client churn POOL HELD                           allocates, fills, checks and frees until its input
 * ends af_xdp_client open POOL INTERFACE FLAGS [NAME=VALUE]... opens, says how that went, waits for its input's end
 *        af_xdp_client reopen POOL INTERFACE FLAGS TIMES         opens and closes the queue
 *        af_xdp_client fork POOL INTERFACE FLAGS                 forks with the queue open, and ends before the child
 *        af_xdp_client spawn POOL INTERFACE FLAGS                starts another program with the queue open
 *        af_xdp_client strand POOL INTERFACE FLAGS               sends when told to by a line of input, and closes
 *        af_xdp_client close_beside_child POOL INTERFACE FLAGS   closes the queue while a child has it open
 *        af_xdp_client misuse POOL INTERFACE FLAGS               what the calls refuse
 *
 * The daemon is that of NUMACRE_RUNTIME_DIR; POOL "private" is a pool of the process. FLAGS: NUMACRE_XDP_... as a
 * number. Each part ends with a line of NAME=VALUE words on standard error; exit status 0: what it saw was right. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <bpf/libbpf.h>
#include <inttypes.h>
#include <linux/if_packet.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <xdp/libxdp.h>

#include "numacre/adaptors/af_xdp.h"

enum { kBurst = 64, kEthernet = 14, kEtherType = 0x88b5, kSmallest = 60, kLargest = 1500 };

/* Begins each block that goes to another process. */
struct place {
    uint32_t offset, length;
};

/* The packet behind its Ethernet header. */
struct payload {
    uint64_t magic, sequence, words[];
};

static const uint64_t kMagic = 0x7061636b65742121;

static uint64_t word_of(uint64_t sequence, uint64_t i) {
    return (sequence + 1) * 0x9e3779b97f4a7c15 ^ i * 0xff51afd7ed558ccd;
}

static uint32_t length_of(uint64_t sequence) {
    return kSmallest + (uint32_t)(sequence * 37 % (kLargest - kSmallest + 1));
}

static uint32_t write_packet(unsigned char *packet, uint64_t sequence) {
    const uint32_t length = length_of(sequence), words = (length - kEthernet - sizeof(struct payload)) / 8;
    const uint64_t head[2] = {kMagic, sequence};
    memset(packet, 2, length);
    packet[12] = kEtherType >> 8;
    packet[13] = kEtherType & 255;
    memcpy(packet + kEthernet, head, sizeof head);
    for (uint32_t i = 0; i < words; ++i) {
        const uint64_t word = word_of(sequence, i);
        memcpy(packet + kEthernet + sizeof head + 8 * i, &word, 8);
    }
    return length;
}

/* 1: a packet of write_packet(). 0: a foreign one, e.g. of IPv6. -1: one that was damaged. */
static int check_packet(const unsigned char *packet, uint32_t length, uint64_t *sequence) {
    uint64_t head[2];
    if (length < kSmallest || packet[12] != kEtherType >> 8 || packet[13] != (kEtherType & 255)) return 0;
    memcpy(head, packet + kEthernet, sizeof head);
    *sequence = head[1];
    if (head[0] != kMagic || length != length_of(head[1])) return -1;
    const uint32_t words = (length - kEthernet - sizeof(struct payload)) / 8;
    for (uint32_t i = 0; i < words; ++i) {
        const uint64_t wanted = word_of(head[1], i);
        if (memcmp(packet + kEthernet + sizeof head + 8 * i, &wanted, 8) != 0) return -1;
    }
    return 1;
}

static int failed(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

static numacre_pool *attach(const char *name) {
    numacre_pool *pool;
    const numacre_private_options options = {.struct_size = sizeof options, .object_bytes = 2368, .object_count = 4096};
    if (strcmp(name, "private") == 0 ? numacre_open_private(&options, &pool) != 0
                                     : numacre_attach(NULL, name, &pool) != 0)
        failed("attach", numacre_last_error());
    return pool;
}

static int64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static uint32_t headroom_bytes;

static void open_queue(numacre_xdp *xdp, numacre_pool *pool, const char *interface, const char *flags) {
    const numacre_xdp_options options = {.interface_name = interface,
                                         .flags = (unsigned)atoi(flags),
                                         .headroom_bytes = headroom_bytes,
                                         .fill_entries = 256,
                                         .receive_entries = 256,
                                         .send_entries = 256,
                                         .completion_entries = 256};
    /* The kernel lets the queue of a dead process go by a worker, which waits for its turn on a busy machine. */
    const int64_t deadline = now_ms() + 60000;
    int error;
    while ((error = numacre_xdp_open(xdp, pool, &options)) == -EBUSY && now_ms() < deadline) usleep(100000);
    if (error != 0) failed("numacre_xdp_open", xdp->error);
}

/* Counts the blocks that can be had now, by having them all for a moment. */
static unsigned available(numacre_pool *pool, size_t bytes) {
    static void *all[1 << 16];
    unsigned count = 0;
    int error = 0;
    while (count < sizeof all / sizeof *all && (error = numacre_alloc(pool, bytes, &all[count])) == 0) ++count;
    if (error != -ENOMEM) failed("available", numacre_last_error());
    if (numacre_free_bulk(pool, all, count) != 0) failed("numacre_free_bulk", numacre_last_error());
    return count;
}

static int packet_socket(const char *interface) {
    const struct sockaddr_ll address = {
        .sll_family = AF_PACKET, .sll_protocol = htons(kEtherType), .sll_ifindex = (int)if_nametoindex(interface)};
    const int opened = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0), buffer_bytes = 16 << 20;
    if (opened < 0 || bind(opened, (const struct sockaddr *)&address, sizeof address) != 0)
        failed("packet socket", strerror(errno));
    setsockopt(opened, SOL_SOCKET, SO_RCVBUFFORCE, &buffer_bytes, sizeof buffer_bytes);
    return opened;
}

static int traffic(const char *interface, uint64_t count, uint64_t first, unsigned pause_us) {
    unsigned char packet[kLargest];
    const int opened = packet_socket(interface);
    for (uint64_t i = 0; i < count; ++i) {
        const uint32_t length = write_packet(packet, first + i);
        while (send(opened, packet, length, 0) != (ssize_t)length)
            if (errno != ENOBUFS && errno != EAGAIN && errno != EINTR) failed("send", strerror(errno));
        if (i % 32 == 31 && pause_us != 0) usleep(pause_us);
    }
    return 0;
}

static volatile sig_atomic_t stop;
static void on_signal(int number) {
    (void)number;
    stop = 1;
}

/* All blocks that the kernel has at the end come back by the close; nothing may be left but what was handed over. */
static int receive(const char *name, const char *interface, const char *flags, uint64_t limit) {
    numacre_pool *const pool = attach(name);
    numacre_xdp xdp;
    void *blocks[kBurst];
    uint32_t offsets[kBurst], lengths[kBurst];
    numacre_ref refs[kBurst];
    uint64_t handed = 0, foreign = 0;
    open_queue(&xdp, pool, interface, flags);
    fprintf(stderr, "listening unaligned=%d zero_copy=%d chunk=%u\n", xdp.is_unaligned, xdp.is_zero_copy,
            xdp.chunk_bytes);
    while (handed < limit && !stop) {
        /* -ENOMEM: the blocks of those that were killed before are not back yet. */
        const int given = numacre_xdp_refill(&xdp, UINT_MAX);
        if (given < 0 && given != -ENOMEM) failed("numacre_xdp_refill", xdp.error);
        const unsigned count = numacre_xdp_receive(&xdp, blocks, offsets, lengths, kBurst);
        if (count == 0) {
            struct pollfd ready = {.fd = numacre_xdp_fd(&xdp), .events = POLLIN};
            (void)poll(&ready, 1, 20);
            continue;
        }
        unsigned kept = 0;
        for (unsigned i = 0; i < count; ++i) {
            uint64_t sequence;
            const struct place place = {offsets[i], lengths[i]};
            if (offsets[i] != NUMACRE_XDP_HEADROOM + headroom_bytes) failed("receive", "a packet lies elsewhere");
            const int is_ours = check_packet((unsigned char *)blocks[i] + offsets[i], lengths[i], &sequence);
            if (is_ours < 0) failed("receive", "a packet is damaged");
            if (is_ours == 0) {
                ++foreign;
                if (numacre_free(pool, blocks[i]) != 0) failed("numacre_free", numacre_last_error());
                continue;
            }
            memcpy(blocks[i], &place, sizeof place);
            blocks[kept++] = blocks[i];
        }
        if (kept == 0) continue;
        if (numacre_ref_bulk(pool, blocks, refs, kept) != 0) failed("numacre_ref_bulk", numacre_last_error());
        if (write(STDOUT_FILENO, refs, kept * sizeof *refs) != (ssize_t)(kept * sizeof *refs))
            failed("write", strerror(errno));
        handed += kept;
    }
    struct xdp_statistics kernel;
    if (numacre_xdp_statistics(&xdp, &kernel) != 0) failed("numacre_xdp_statistics", xdp.error);
    const uint64_t strays = xdp.strays;
    if (numacre_xdp_close(&xdp) != 0) failed("numacre_xdp_close", xdp.error);
    fprintf(stderr, "handed=%" PRIu64 " foreign=%" PRIu64 " strays=%" PRIu64 " dropped=%llu no_block=%llu\n", handed,
            foreign, strays, (unsigned long long)kernel.rx_dropped,
            (unsigned long long)kernel.rx_fill_ring_empty_descs);
    /* What was handed over has to stay this process's until somebody takes it. */
    while (!stop && getchar() != EOF) continue;
    numacre_detach(pool);
    return 0;
}

static int check(const char *name) {
    numacre_pool *const pool = attach(name);
    numacre_ref refs[kBurst];
    void *blocks[kBurst];
    uint64_t taken = 0, stale = 0, twice = 0, highest = 0;
    size_t have = 0;
    static unsigned char seen[1 << 25];
    fprintf(stderr, "checking\n");
    for (;;) {
        const ssize_t got = read(STDIN_FILENO, (char *)refs + have, sizeof refs - have);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        have += (size_t)got;
        const unsigned count = (unsigned)(have / sizeof *refs);
        if (count == 0) continue;
        const int error = numacre_take_bulk(pool, refs, blocks, count);
        if (error != 0 && error != -ESTALE) failed("numacre_take_bulk", numacre_last_error());
        for (unsigned i = 0; i < count; ++i) {
            struct place place;
            uint64_t sequence;
            if (blocks[i] == NULL) {
                ++stale;
                continue;
            }
            memcpy(&place, blocks[i], sizeof place);
            if (place.offset > 4096 || place.length > 4096 ||
                check_packet((unsigned char *)blocks[i] + place.offset, place.length, &sequence) != 1)
                failed("check", "a packet is damaged");
            if (sequence < sizeof seen) twice += seen[sequence]++ != 0;
            if (sequence > highest) highest = sequence;
            ++taken;
            /* Whatever the kernel might still write into the block would be seen by its next owner. */
            memset(blocks[i], 0, 2048);
            if (numacre_free_uncached(pool, blocks[i]) != 0) failed("numacre_free_uncached", numacre_last_error());
        }
        memmove(refs, refs + count, have -= count * sizeof *refs);
    }
    fprintf(stderr, "taken=%" PRIu64 " stale=%" PRIu64 " twice=%" PRIu64 " highest=%" PRIu64 "\n", taken, stale, twice,
            highest);
    numacre_detach(pool);
    return twice != 0;
}

static int send_all(const char *name, const char *interface, const char *flags, uint64_t count) {
    numacre_pool *const pool = attach(name);
    numacre_xdp xdp;
    open_queue(&xdp, pool, interface, flags);
    const size_t bytes = xdp.block_bytes;
    void *back[kBurst];
    uint64_t freed = 0;
    for (uint64_t sequence = 0; sequence < count;) {
        void *blocks[kBurst];
        uint32_t offsets[kBurst], lengths[kBurst];
        const unsigned burst = count - sequence < kBurst ? (unsigned)(count - sequence) : kBurst;
        if (numacre_alloc_bulk(pool, bytes, blocks, burst) != 0) failed("numacre_alloc_bulk", numacre_last_error());
        for (unsigned i = 0; i < burst; ++i) {
            offsets[i] = (uint32_t)((sequence + i) % 300);
            lengths[i] = write_packet((unsigned char *)blocks[i] + offsets[i], sequence + i);
        }
        for (unsigned done = 0; done < burst;) {
            const int sent = numacre_xdp_send(&xdp, blocks + done, offsets + done, lengths + done, burst - done);
            if (sent < 0) failed("numacre_xdp_send", xdp.send_error);
            done += (unsigned)sent;
            /* In turn: back to the caller, and freed. */
            const int completed = numacre_xdp_complete(&xdp, sequence / kBurst % 2 != 0 ? back : NULL, kBurst);
            if (completed < 0) failed("numacre_xdp_complete", xdp.send_error);
            if (sequence / kBurst % 2 != 0 && numacre_free_bulk(pool, back, (unsigned)completed) != 0)
                failed("numacre_free_bulk", numacre_last_error());
            freed += (unsigned)completed;
        }
        sequence += burst;
    }
    /* The close waits for the rest. */
    const uint64_t outstanding = xdp.sent - xdp.completed, sent = xdp.sent;
    if (numacre_xdp_close(&xdp) != 0) failed("numacre_xdp_close", xdp.error);
    fprintf(stderr,
            "sent=%" PRIu64 " freed=%" PRIu64 " outstanding=%" PRIu64 " completed=%" PRIu64 " strays=%" PRIu64
            " available=%u\n",
            sent, freed, outstanding, xdp.completed, xdp.strays, available(pool, bytes));
    while (getchar() != EOF) continue;
    numacre_detach(pool);
    return xdp.completed != count;
}

static int forward(const char *name, const char *from, const char *to, const char *flags, uint64_t limit) {
    numacre_pool *const pool = attach(name);
    numacre_xdp in, out;
    void *blocks[kBurst];
    uint32_t offsets[kBurst], lengths[kBurst];
    uint64_t forwarded = 0;
    open_queue(&in, pool, from, flags);
    open_queue(&out, pool, to, flags);
    fprintf(stderr, "listening\n");
    while (forwarded < limit) {
        if (numacre_xdp_refill(&in, UINT_MAX) < 0) failed("numacre_xdp_refill", in.error);
        const unsigned count = numacre_xdp_receive(&in, blocks, offsets, lengths, kBurst);
        for (unsigned done = 0; done < count;) {
            const int sent = numacre_xdp_send(&out, blocks + done, offsets + done, lengths + done, count - done);
            if (sent < 0) failed("numacre_xdp_send", out.send_error);
            done += (unsigned)sent;
            if (numacre_xdp_complete(&out, NULL, UINT_MAX) < 0) failed("numacre_xdp_complete", out.send_error);
        }
        for (unsigned i = 0; i < count; ++i) forwarded += lengths[i] >= kSmallest;
        struct pollfd ready = {.fd = numacre_xdp_fd(&in), .events = POLLIN};
        if (count == 0) (void)poll(&ready, 1, 20);
    }
    if (numacre_xdp_close(&in) != 0 || numacre_xdp_close(&out) != 0) failed("numacre_xdp_close", in.error);
    fprintf(stderr, "forwarded=%" PRIu64 " available=%u\n", forwarded, available(pool, in.block_bytes));
    while (getchar() != EOF) continue;
    numacre_detach(pool);
    return 0;
}

static int watch(const char *interface, uint64_t count) {
    const int opened = packet_socket(interface);
    const int64_t deadline = now_ms() + 60000;
    static unsigned char seen[1 << 25];
    uint64_t right = 0, twice = 0;
    fprintf(stderr, "watching\n");
    while (right < count && now_ms() < deadline) {
        unsigned char packet[4096];
        uint64_t sequence;
        struct pollfd ready = {.fd = opened, .events = POLLIN};
        if (poll(&ready, 1, 100) != 1) continue;
        const ssize_t length = recv(opened, packet, sizeof packet, MSG_DONTWAIT);
        const int is_ours = length > 0 ? check_packet(packet, (uint32_t)length, &sequence) : 0;
        if (is_ours < 0) failed("watch", "a packet is damaged");
        if (is_ours == 0) continue;
        if (sequence < sizeof seen) twice += seen[sequence]++ != 0;
        ++right;
    }
    fprintf(stderr, "right=%" PRIu64 " twice=%" PRIu64 "\n", right, twice);
    return right != count || twice != 0;
}

/* Keeps `held` blocks, each full of its own pattern; whoever else writes into one is found out. */
static int churn(const char *name, unsigned held) {
    numacre_pool *const pool = attach(name);
    uint64_t **const blocks = calloc(held, sizeof *blocks), rounds = 0, *const marks = calloc(held, sizeof *marks);
    fprintf(stderr, "churning\n");
    for (struct pollfd end = {.fd = STDIN_FILENO, .events = POLLIN}; poll(&end, 1, 0) == 0; ++rounds) {
        for (unsigned i = 0; i < held; ++i) {
            void *block;
            for (unsigned word = 0; blocks[i] != NULL && word < 256; ++word)
                if (blocks[i][word] != marks[i] + word) failed("churn", "somebody else has written into a block");
            if (blocks[i] != NULL && numacre_free_uncached(pool, blocks[i]) != 0)
                failed("numacre_free_uncached", numacre_last_error());
            blocks[i] = NULL;
            const int error = numacre_alloc_on(pool, -1, 2048, NUMACRE_UNCACHED, &block);
            if (error == -ENOMEM) continue;
            if (error != 0) failed("numacre_alloc_on", numacre_last_error());
            blocks[i] = block;
            marks[i] = rounds * held + i;
            for (unsigned word = 0; word < 256; ++word) blocks[i][word] = marks[i] + word;
        }
    }
    fprintf(stderr, "rounds=%" PRIu64 "\n", rounds);
    free((void *)blocks);
    free(marks);
    numacre_detach(pool);
    return 0;
}

static int open_only(const char *name, const char *interface, const char *flags, int more, char **words) {
    numacre_pool *const pool = attach(name);
    numacre_xdp_options options = {.interface_name = interface, .flags = (unsigned)atoi(flags)};
    numacre_xdp xdp;
    for (int i = 0; i < more; ++i) {
        char key[32];
        unsigned value;
        if (sscanf(words[i], "%31[a-z_]=%u", key, &value) != 2) return 2;
        if (strcmp(key, "queue") == 0) options.queue = value;
        if (strcmp(key, "numa_node") == 0) options.numa_node = (int)value;
        if (strcmp(key, "block") == 0) options.block_bytes = value;
        if (strcmp(key, "headroom") == 0) options.headroom_bytes = value;
        if (strcmp(key, "fill") == 0) options.fill_entries = value;
        if (strcmp(key, "receive") == 0) options.receive_entries = value;
        if (strcmp(key, "memlock") == 0) {
            const struct rlimit limit = {value, value};
            if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0) failed("setrlimit", strerror(errno));
        }
    }
    const int error = numacre_xdp_open(&xdp, pool, &options);
    int given = 0;
    if (error == 0) given = numacre_xdp_refill(&xdp, UINT_MAX);
    printf("open %d %d %u %u %s\n", error, xdp.is_unaligned, xdp.chunk_bytes, (unsigned)given,
           error == 0 && given >= 0 ? "" : xdp.error);
    fflush(stdout);
    while (getchar() != EOF) continue;
    if (error == 0 && numacre_xdp_close(&xdp) != 0) failed("numacre_xdp_close", xdp.error);
    numacre_detach(pool);
    return 0;
}

static int reopen(const char *name, const char *interface, const char *flags, unsigned times) {
    numacre_pool *const pool = attach(name);
    size_t bytes = 0;
    for (unsigned i = 0; i < times; ++i) {
        numacre_xdp xdp;
        int is_free;
        open_queue(&xdp, pool, interface, flags);
        if (numacre_xdp_refill(&xdp, UINT_MAX) <= 0) failed("numacre_xdp_refill", xdp.error);
        const unsigned interface_index = xdp.interface_index;
        bytes = xdp.block_bytes;
        if (numacre_xdp_queue_is_free(interface_index, 0) != 0) failed("reopen", "the queue of an open socket is free");
        if (numacre_xdp_close(&xdp) != 0) failed("numacre_xdp_close", xdp.error);
        if (numacre_xdp_close(&xdp) != 0) failed("the second numacre_xdp_close", xdp.error);
        const int64_t deadline = now_ms() + 60000;
        while ((is_free = numacre_xdp_queue_is_free(interface_index, 0)) == 0 && now_ms() < deadline) usleep(1000);
        if (is_free != 1) failed("reopen", strerror(-is_free));
    }
    fprintf(stderr, "reopened=%u available=%u\n", times, available(pool, bytes));
    numacre_detach(pool);
    return 0;
}

static int fork_with_open_queue(const char *name, const char *interface, const char *flags) {
    numacre_pool *const pool = attach(name);
    numacre_xdp xdp;
    open_queue(&xdp, pool, interface, flags);
    if (numacre_xdp_refill(&xdp, UINT_MAX) <= 0) failed("numacre_xdp_refill", xdp.error);
    const pid_t child = fork();
    if (child < 0) failed("fork", strerror(errno));
    if (child == 0) {
        /* The child has the descriptors, and not the rings: this would be written into the fill ring. */
        unsigned char there;
        const int is_mapped =
            mincore((void *)((uintptr_t)xdp.fill_ring.producer & ~(uintptr_t)4095), 4096, &there) == 0;
        fprintf(stderr, "child=%d rings_mapped=%d\n", (int)getpid(), is_mapped);
        fclose(stdout);
        for (;;) pause();
    }
    printf("child %d\n", (int)child);
    fflush(stdout);
    while (getchar() != EOF) continue;
    return 0;
}

static int spawn(const char *name, const char *interface, const char *flags) {
    numacre_pool *const pool = attach(name);
    numacre_xdp xdp;
    open_queue(&xdp, pool, interface, flags);
    const pid_t child = fork();
    if (child == 0) {
        execlp("sleep", "sleep", "600", (char *)NULL);
        _exit(127);
    }
    printf("child %d\n", (int)child);
    fflush(stdout);
    while (getchar() != EOF) continue;
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    /* The other program has no socket; that the queue is free within 5 s is not what is asked here. */
    const int error = numacre_xdp_close(&xdp);
    if (error != 0 && error != -ETIMEDOUT) failed("numacre_xdp_close", xdp.error);
    numacre_detach(pool);
    return 0;
}

/* Packets that no device takes: their blocks come back by the close. */
static int strand(const char *name, const char *interface, const char *flags) {
    numacre_pool *const pool = attach(name);
    numacre_xdp xdp;
    void *blocks[kBurst];
    uint32_t offsets[kBurst] = {0}, lengths[kBurst];
    open_queue(&xdp, pool, interface, flags);
    const size_t bytes = xdp.block_bytes;
    if (numacre_alloc_bulk(pool, bytes, blocks, kBurst) != 0) failed("numacre_alloc_bulk", numacre_last_error());
    for (unsigned i = 0; i < kBurst; ++i) lengths[i] = write_packet(blocks[i], i);
    fprintf(stderr, "ready\n");
    if (getchar() == EOF) return 1;
    const int sent = numacre_xdp_send(&xdp, blocks, offsets, lengths, kBurst);
    const int completed = numacre_xdp_complete(&xdp, NULL, UINT_MAX);
    if (numacre_xdp_close(&xdp) != 0) failed("numacre_xdp_close", xdp.error);
    fprintf(stderr, "sent=%d error=%d available=%u\n", sent, -completed, available(pool, bytes));
    numacre_detach(pool);
    return 0;
}

static int close_beside_child(const char *name, const char *interface, const char *flags) {
    numacre_pool *const pool = attach(name);
    for (int is_polite = 0; is_polite < 2; ++is_polite) {
        numacre_xdp xdp;
        int ready[2];
        char byte;
        open_queue(&xdp, pool, interface, flags);
        const size_t bytes = xdp.block_bytes;
        const int given = numacre_xdp_refill(&xdp, UINT_MAX);
        if (pipe(ready) != 0) failed("pipe", strerror(errno));
        const pid_t child = fork();
        if (child < 0) failed("fork", strerror(errno));
        if (child == 0) {
            if (is_polite && (close(numacre_xdp_fd(&xdp)) != 0 || numacre_unpin(pool, xdp.pin) != 0)) _exit(1);
            (void)!write(ready[1], "r", 1);
            for (;;) pause();
        }
        (void)!read(ready[0], &byte, 1);
        close(ready[0]);
        close(ready[1]);
        const int error = numacre_xdp_close(&xdp);
        fprintf(stderr, "error%d=%d given%d=%d available%d=%u\n", is_polite, -error, is_polite, given, is_polite,
                available(pool, bytes));
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
    }
    numacre_detach(pool);
    return 0;
}

static void expect(const char *what, int got, int wanted) {
    if (got == wanted) return;
    fprintf(stderr, "%s returned %d, not %d\n", what, got, wanted);
    exit(1);
}

static int misuse(const char *name, const char *interface, const char *flags) {
    numacre_pool *const pool = attach(name);
    numacre_xdp xdp;
    void *block, *other;
    uint32_t offset = 0, length = 100;
    const numacre_xdp_options nothing = {0};
    expect("open without a name", numacre_xdp_open(&xdp, pool, &nothing), -EINVAL);
    expect("open without a pool", numacre_xdp_open(&xdp, NULL, &nothing), -EINVAL);
    expect("close after that", numacre_xdp_close(&xdp), 0);
    open_queue(&xdp, pool, interface, flags);
    if (numacre_alloc(pool, xdp.block_bytes, &block) != 0 || numacre_alloc(pool, xdp.block_bytes, &other) != 0)
        failed("numacre_alloc", numacre_last_error());
    void *pair[2] = {block, block};
    expect("give of a foreign address", numacre_xdp_give(&xdp, &(void *){&offset}, 1), -EINVAL);
    expect("give twice", numacre_xdp_give(&xdp, pair, 2), 1);
    expect("give again", numacre_xdp_give(&xdp, pair, 1), -EINVAL);
    expect("send of a given block", numacre_xdp_send(&xdp, pair, &offset, &length, 1), -EINVAL);
    expect("send of a foreign address", numacre_xdp_send(&xdp, &(void *){&offset}, &offset, &length, 1), -EINVAL);
    offset = xdp.chunk_bytes - 50;
    expect("send beyond the chunk", numacre_xdp_send(&xdp, &other, &offset, &length, 1), -EINVAL);
    offset = UINT32_MAX - 10;
    expect("send far beyond the chunk", numacre_xdp_send(&xdp, &other, &offset, &length, 1), -EINVAL);
    offset = length = 0;
    expect("send of nothing", numacre_xdp_send(&xdp, &other, &offset, &length, 1), -EINVAL);
    expect("nothing sent", (int)xdp.sent, 0);
    /* The kernel would write a chunk: into whatever lies behind a smaller block. */
    void *inside = (char *)other + 64, *small = NULL;
    expect("give of an address inside a block", numacre_xdp_give(&xdp, &inside, 1), -EINVAL);
    expect("send of an address inside a block", numacre_xdp_send(&xdp, &inside, &offset, &length, 1), -EINVAL);
    if (numacre_alloc(pool, 64, &small) != 0) failed("numacre_alloc", numacre_last_error());
    if (numacre_usable_size(pool, small) < xdp.chunk_bytes)
        expect("give of a small block", numacre_xdp_give(&xdp, &small, 1), -EINVAL);
    expect("free of the small block", numacre_free(pool, small), 0);
    length = write_packet(other, 7);
    expect("send", numacre_xdp_send(&xdp, &other, &offset, &length, 1), 1);
    void *back = NULL;
    const int64_t deadline = now_ms() + 60000;
    int completed = 0;
    while (completed == 0 && now_ms() < deadline) completed = numacre_xdp_complete(&xdp, &back, 1);
    expect("complete", completed, 1);
    if (back != other) failed("misuse", "another block is completed");
    expect("free", numacre_free(pool, back), 0);
    expect("strays", (int)xdp.strays, 0);
    expect("close", numacre_xdp_close(&xdp), 0);
    expect("free of what the close has freed", numacre_free(pool, block) != 0, 1);
    numacre_detach(pool);
    return 0;
}

int main(int argc, char **argv) {
    const char *const role = argc > 1 ? argv[1] : "";
    /* Both talk at each program that they load. */
    libbpf_set_print(NULL);
    libxdp_set_print(NULL);
    signal(SIGTERM, on_signal);
    signal(SIGPIPE, SIG_IGN);
    if (strcmp(role, "traffic") == 0 && argc == 6)
        return traffic(argv[2], strtoull(argv[3], NULL, 10), strtoull(argv[4], NULL, 10), (unsigned)atoi(argv[5]));
    if (strcmp(role, "receive") == 0 && argc == 7) headroom_bytes = (uint32_t)atoi(argv[6]);
    if (strcmp(role, "receive") == 0 && argc == 7)
        return receive(argv[2], argv[3], argv[4], strtoull(argv[5], NULL, 10));
    if (strcmp(role, "check") == 0 && argc == 3) return check(argv[2]);
    if (strcmp(role, "send") == 0 && argc == 6) return send_all(argv[2], argv[3], argv[4], strtoull(argv[5], NULL, 10));
    if (strcmp(role, "forward") == 0 && argc == 7)
        return forward(argv[2], argv[3], argv[4], argv[5], strtoull(argv[6], NULL, 10));
    if (strcmp(role, "watch") == 0 && argc == 4) return watch(argv[2], strtoull(argv[3], NULL, 10));
    if (strcmp(role, "churn") == 0 && argc == 4) return churn(argv[2], (unsigned)atoi(argv[3]));
    if (strcmp(role, "open") == 0 && argc >= 5) return open_only(argv[2], argv[3], argv[4], argc - 5, argv + 5);
    if (strcmp(role, "reopen") == 0 && argc == 6) return reopen(argv[2], argv[3], argv[4], (unsigned)atoi(argv[5]));
    if (strcmp(role, "fork") == 0 && argc == 5) return fork_with_open_queue(argv[2], argv[3], argv[4]);
    if (strcmp(role, "spawn") == 0 && argc == 5) return spawn(argv[2], argv[3], argv[4]);
    if (strcmp(role, "strand") == 0 && argc == 5) return strand(argv[2], argv[3], argv[4]);
    if (strcmp(role, "close_beside_child") == 0 && argc == 5) return close_beside_child(argv[2], argv[3], argv[4]);
    if (strcmp(role, "misuse") == 0 && argc == 5) return misuse(argv[2], argv[3], argv[4]);
    fprintf(stderr, "bad usage; see the top of af_xdp_client.c\n");
    return 2;
}
