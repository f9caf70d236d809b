/* A program without DPDK at the end of a chain of DPDK programs, for dpdk_vdev_test.py.
 *
 * usage: packet_peer RUNTIME_DIR CHANNEL send FIRST COUNT            sends numbered packets
 *        packet_peer RUNTIME_DIR CHANNEL receive RECORD [same-block]  receives until standard input ends
 *        packet_peer RUNTIME_DIR CHANNEL count COUNT BYTES            receives COUNT packets of BYTES bytes
 *        packet_peer RUNTIME_DIR CHANNEL garble                       sends one block that is no packet
 *
 * RECORD is a file of one byte for each packet: how often it has been received, mapped, so that it outlives a kill.
 * same-block: each packet has to be received in the block in which it was sent. The packets are objects of
 * "default.packets", of which the first process makes OBJECTS. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "numacre/adaptors/packet.h"
#include "numacre/numacre.h"

enum { OBJECT_BYTES = 2368, OBJECTS = 4096, BURST = 32, TAG = 123 };

/* What a numbered packet has behind its Ethernet header; the rest of the packet follows from the number. */
struct message {
    uint64_t number;
    uint64_t block; /* where in the pool the sender had it */
};

static numacre_pool *pool;
static numacre_channel *channel;
static const char *region;

static void check(int error, const char *what) {
    if (error >= 0) return;
    fprintf(stderr, "%s: error %d, %s\n", what, error, numacre_last_error());
    exit(1);
}

static void fail(const char *what, unsigned long long number) {
    fprintf(stderr, "%s: %llu\n", what, number);
    exit(1);
}

static void open_channel(const char *runtime_dir, const char *name, uint32_t flags) {
    numacre_pool *base;
    numacre_channel_options options;
    void *begin;
    size_t bytes;
    check(numacre_attach(runtime_dir, "default", &base), "attach");
    check(numacre_objects_open(base, "packets", OBJECT_BYTES, OBJECTS, 0, &pool), "objects_open");
    numacre_detach(base);
    check(numacre_region(pool, 0, &begin, &bytes), "region");
    region = begin;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.capacity = OBJECTS; /* never full: what forwards packets drops those that do not fit */
    options.flags = flags;
    check(numacre_channel_open(pool, name, &options, &channel), "channel_open");
}

static unsigned char *map_record(const char *path, uint64_t *count) {
    struct stat status;
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &status) != 0) fail("no record", 0);
    *count = (uint64_t)status.st_size;
    unsigned char *const record = mmap(NULL, (size_t)status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (record == MAP_FAILED) fail("cannot map the record", 0);
    close(fd);
    return record;
}

/* 60 to 1514 bytes. */
static uint32_t length_of(uint64_t number) {
    return (uint32_t)(60 + number * 7919 % 1455);
}
static unsigned char byte_of(uint64_t number, uint32_t at) {
    return (unsigned char)(number * 31 + at);
}

static void write_packet(void *block, uint64_t number) {
    static const unsigned char header[14] = {2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5};
    const uint32_t length = length_of(number);
    const struct message message = {number, (uint64_t)((char *)block - region)};
    unsigned char *const data = numacre_packet_write(block, OBJECT_BYTES, NUMACRE_PACKET_DATA_OFFSET, length);
    if (data == NULL) fail("no room for packet", number);
    memcpy(data, header, sizeof header);
    memcpy(data + sizeof header, &message, sizeof message);
    for (uint32_t i = sizeof header + sizeof message; i < length; ++i) data[i] = byte_of(number, i);
    ((numacre_packet *)block)->flags = NUMACRE_PACKET_VLAN;
    ((numacre_packet *)block)->vlan = TAG;
}

static uint64_t read_packet(void *block, uint64_t most, int is_same_block) {
    uint32_t length = 0;
    struct message message;
    const unsigned char *const data = numacre_packet_data(block, OBJECT_BYTES, &length);
    if (data == NULL || length < 14 + sizeof message) fail("no packet of ours, bytes", length);
    memcpy(&message, data + 14, sizeof message);
    if (message.number >= most || length != length_of(message.number)) fail("wrong length, bytes", length);
    for (uint32_t i = 14 + sizeof message; i < length; ++i)
        if (data[i] != byte_of(message.number, i)) fail("wrong bytes in packet", message.number);
    const numacre_packet *const packet = block;
    if ((packet->flags & NUMACRE_PACKET_VLAN) == 0 || packet->vlan != TAG) fail("no tag on packet", message.number);
    if (is_same_block && message.block != (uint64_t)((char *)block - region)) fail("copied packet", message.number);
    return message.number;
}

static void send_packets(uint64_t first, uint64_t count) {
    for (uint64_t next = first; next < first + count;) {
        void *blocks[BURST];
        const uint64_t left = first + count - next;
        const unsigned now = left < BURST ? (unsigned)left : BURST;
        int error;
        while ((error = numacre_alloc_bulk(pool, OBJECT_BYTES, blocks, now)) == -ENOMEM) usleep(100);
        check(error, "alloc");
        for (unsigned i = 0; i < now; ++i) write_packet(blocks[i], next + i);
        /* -EPIPE: the receiver has died, and somebody starts another one. */
        while ((error = numacre_send_wait(channel, blocks, now, 1000)) == -ETIMEDOUT || error == -EPIPE) usleep(1000);
        check(error, "send");
        next += now;
    }
}

static int has_input_ended(void) {
    struct pollfd input = {STDIN_FILENO, POLLIN | POLLHUP, 0};
    return poll(&input, 1, 0) == 1;
}

static void receive_packets(const char *record_path, int is_same_block) {
    uint64_t most;
    unsigned char *const record = map_record(record_path, &most);
    while (!has_input_ended()) {
        void *blocks[BURST];
        unsigned count = 0;
        const int error = numacre_receive_wait(channel, blocks, BURST, 100, &count, NULL);
        if (error == -ETIMEDOUT || error == -EPIPE) {
            if (error == -EPIPE) usleep(1000);
            continue;
        }
        check(error, "receive");
        for (unsigned i = 0; i < count; ++i) {
            const uint64_t number = read_packet(blocks[i], most, is_same_block);
            if (++record[number] > 1) fail("received twice", number);
        }
        check(numacre_free_bulk(pool, blocks, count), "free");
    }
}

static void count_packets(uint64_t wanted, uint32_t bytes) {
    for (uint64_t done = 0; done < wanted;) {
        void *blocks[BURST];
        unsigned count = 0;
        const int error = numacre_receive_wait(channel, blocks, BURST, 1000, &count, NULL);
        if (error == -ETIMEDOUT || error == -EPIPE) {
            if (error == -EPIPE) usleep(1000);
            continue;
        }
        check(error, "receive");
        for (unsigned i = 0; i < count; ++i) {
            uint32_t length = 0;
            if (numacre_packet_data(blocks[i], OBJECT_BYTES, &length) == NULL || length != bytes)
                fail("wrong length, bytes", length);
        }
        check(numacre_free_bulk(pool, blocks, count), "free");
        done += count;
    }
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    const char *const mode = argv[3];
    const int sends = strcmp(mode, "send") == 0 || strcmp(mode, "garble") == 0;
    open_channel(argv[1], argv[2], sends ? NUMACRE_CHANNEL_SENDS : NUMACRE_CHANNEL_RECEIVES);
    printf("ready\n");
    fflush(stdout);
    if (strcmp(mode, "send") == 0 && argc == 6) {
        send_packets(strtoull(argv[4], NULL, 10), strtoull(argv[5], NULL, 10));
    } else if (strcmp(mode, "receive") == 0 && argc >= 5) {
        receive_packets(argv[4], argc == 6);
    } else if (strcmp(mode, "count") == 0 && argc == 6) {
        count_packets(strtoull(argv[4], NULL, 10), (uint32_t)strtoul(argv[5], NULL, 10));
    } else if (strcmp(mode, "garble") == 0) {
        void *block;
        check(numacre_alloc(pool, OBJECT_BYTES, &block), "alloc");
        write_packet(block, 0);
        ((numacre_packet *)block)->data_offset = OBJECT_BYTES - 1;
        check(numacre_send(channel, &block, 1), "send");
    } else {
        return 2;
    }
    check(numacre_channel_close(channel), "close");
    numacre_detach(pool);
    return 0;
}
