/* A client that uses <numacre/adaptors/io_uring.h>: io_uring_test.py runs it. The daemon is that of
 * NUMACRE_RUNTIME_DIR. usage: uring_client COMMAND [ARGUMENT ...], see main(). Exit status 0: all was as it should be;
 * 77: this machine has no io_uring, the reason is on standard error. */
#include <numacre/adaptors/io_uring.h>
/* liburing.h goes first: it sets the feature macros. */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <poll.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>

enum { kSkipped = 77, kBatch = 64, kBlocksMax = 4096 };

static numacre_pool *pool;
static struct io_uring ring;
static numacre_uring uring;
static numacre_pool_info info;

/* Ends the process, also in the middle of a burst. */
static void fail(const char *what, const char *why) {
    fprintf(stderr, "uring_client: %s: %s\n", what, why);
    exit(1);
}

static void expect(int condition, const char *what) {
    if (!condition) fail(what, "is not so");
}

static void of_library(const char *call, int error) {
    if (error != 0) fail(call, numacre_last_error());
}

static void of_kernel(const char *call, long result) {
    if (result < 0) fail(call, strerror(errno));
}

static void attach(void) {
    of_library("numacre_attach", numacre_attach(NULL, NULL, &pool));
    info.struct_size = sizeof info;
    of_library("numacre_get_info", numacre_get_info(pool, &info));
}

static void set_up_ring(void) {
    const int error = numacre_uring_queue_init(&uring, 256, &ring, 0);
    if (error == 0) return;
    fprintf(stderr, "uring_client: %s\n", uring.message);
    exit(kSkipped);
}

static void set_up(uint64_t slice_bytes, unsigned flags) {
    const numacre_uring_options options = {.slice_bytes = slice_bytes, .flags = flags};
    attach();
    set_up_ring();
    if (numacre_uring_register(&uring, &ring, pool, &options) != 0) fail("numacre_uring_register", uring.message);
}

static void tear_down(void) {
    if (numacre_uring_unregister(&uring) != 0) fail("numacre_uring_unregister", uring.message);
    io_uring_queue_exit(&ring);
    numacre_detach(pool);
}

static struct io_uring_sqe *next_sqe(void) {
    struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
    if (sqe == NULL) {
        expect(io_uring_submit(&ring) > 0, "io_uring_submit");
        sqe = io_uring_get_sqe(&ring);
    }
    if (sqe == NULL) fail("io_uring_get_sqe", "no place in the submission queue");
    return sqe;
}

/* The completion of the only request. */
static int result_of_one(void) {
    struct io_uring_cqe *cqe;
    expect(io_uring_submit_and_wait(&ring, 1) >= 0, "io_uring_submit_and_wait");
    expect(io_uring_peek_cqe(&ring, &cqe) == 0, "a completion is there");
    const int result = cqe->res;
    io_uring_cqe_seen(&ring, cqe);
    return result;
}

/* The byte at a place of a stream. */
static unsigned char byte_at(uint64_t place) {
    return (unsigned char)(place ^ place >> 8 ^ place >> 16 ^ place >> 24);
}

static void fill(unsigned char *bytes, uint64_t place, size_t count) {
    for (size_t i = 0; i < count; ++i) bytes[i] = byte_at(place + i);
}

static int is_stream(const unsigned char *bytes, uint64_t place, size_t count) {
    for (size_t i = 0; i < count; ++i)
        if (bytes[i] != byte_at(place + i)) return 0;
    return 1;
}

/* Two connected sockets of the loopback interface, or of AF_UNIX. */
static void connect_pair(int family, int ends[2]) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    if (family == AF_UNIX) {
        of_kernel("socketpair", socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends));
        return;
    }
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    of_kernel("socket", listener);
    of_kernel("bind", bind(listener, (struct sockaddr *)&address, length));
    of_kernel("listen", listen(listener, 1));
    of_kernel("getsockname", getsockname(listener, (struct sockaddr *)&address, &length));
    ends[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    of_kernel("connect", connect(ends[0], (struct sockaddr *)&address, length));
    ends[1] = accept(listener, NULL, NULL);
    of_kernel("accept", ends[1]);
    close(listener);
}

/* A child with one end of a connection. It must not keep the other end: it ends when this process does. */
static pid_t start(int (*run)(int), int socket, int other) {
    const pid_t child = fork();
    of_kernel("fork", child);
    if (child != 0) {
        close(socket);
        return child;
    }
    close(other);
    exit(run(socket));
}

static void expect_success_of(pid_t child, const char *who) {
    int status = -1;
    of_kernel("waitpid", waitpid(child, &status, 0));
    if (status != 0) fail(who, "has failed");
}

/* file SLICE_BYTES PATH: half of the pool is written to a file by WRITE_FIXED: 64-bit words, each its own number. The
 * other half is read from it by READ_FIXED, back to front. Prints how many fixed buffers were used. */
static int file(uint64_t slice_bytes, const char *path) {
    static void *blocks[kBlocksMax];
    static unsigned char is_used[NUMACRE_URING_BUFFERS_MAX];
    unsigned count = 0;
    unsigned buffers = 0;
    set_up(slice_bytes, 0);
    const uint64_t words = info.largest_block_bytes / sizeof(uint64_t);
    const unsigned bytes = (unsigned)info.largest_block_bytes;
    while (count < kBlocksMax && numacre_alloc_on(pool, -1, (size_t)bytes, NUMACRE_UNCACHED, &blocks[count]) == 0)
        ++count;
    for (unsigned i = 0; i < count; ++i) {
        const int buffer = numacre_uring_buffer_of(&uring, blocks[i], bytes);
        expect(buffer >= 0, "each block lies in a fixed buffer");
        /* The rule: slices begin at multiples of slice_bytes, no block straddles two. */
        expect(numacre_uring_buffer_of(&uring, (char *)blocks[i] + bytes - 1, 1) == buffer, "a block is in one buffer");
        buffers += !is_used[buffer];
        is_used[buffer] = 1;
    }
    /* Past the page cache, where the file system and the blocks' addresses allow it. */
    const int direct = bytes % 4096 == 0 ? O_DIRECT : 0;
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | direct, 0600);
    if (fd < 0) fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    of_kernel("open", fd);
    const unsigned half = count / 2;
    for (unsigned i = 0; i < half; ++i) {
        for (uint64_t word = 0; word < words; ++word) ((uint64_t *)blocks[i])[word] = i * words + word;
        struct io_uring_sqe *const sqe = next_sqe();
        expect(numacre_uring_prep_write(&uring, sqe, fd, blocks[i], bytes, (uint64_t)i * bytes) == 1, "WRITE_FIXED");
        expect(sqe->opcode == IORING_OP_WRITE_FIXED, "the opcode of WRITE_FIXED");
        expect(result_of_one() == (int)bytes, "all is written");
    }
    for (unsigned i = 0; i < half; ++i) {
        void *const target = blocks[count - 1 - i];
        struct io_uring_sqe *const sqe = next_sqe();
        memset(target, 0xff, bytes);
        expect(numacre_uring_prep_read(&uring, sqe, fd, target, bytes, (uint64_t)i * bytes) == 1, "READ_FIXED");
        expect(sqe->opcode == IORING_OP_READ_FIXED, "the opcode of READ_FIXED");
        expect(result_of_one() == (int)bytes, "all is read");
    }
    for (unsigned i = 0; i < half; ++i)
        for (uint64_t word = 0; word < words; ++word)
            expect(((uint64_t *)blocks[count - 1 - i])[word] == i * words + word, "what was written was read");
    of_library("numacre_free_bulk", numacre_free_bulk(pool, blocks, count));
    printf("blocks=%u slices=%u buffers=%u\n", half, uring.slice_count, buffers);
    tear_down();
    return 0;
}

static uint64_t stream_bytes;

static int send_stream(int socket) {
    static unsigned char bytes[30000]; /* no multiple of a block */
    for (uint64_t place = 0; place < stream_bytes;) {
        const uint64_t left = stream_bytes - place;
        const size_t count = left < sizeof bytes ? (size_t)left : sizeof bytes;
        fill(bytes, place, count);
        for (size_t sent = 0; sent < count;) {
            const ssize_t more = send(socket, bytes + sent, count - sent, MSG_NOSIGNAL);
            if (more <= 0) return 1;
            sent += (size_t)more;
        }
        place += count;
    }
    return 0;
}

static int receive_stream(int socket) {
    static unsigned char bytes[50000];
    uint64_t place = 0;
    for (;;) {
        const ssize_t count = recv(socket, bytes, sizeof bytes, 0);
        if (count < 0) return 1;
        if (count == 0) break;
        expect(is_stream(bytes, place, (size_t)count), "the receiver gets what was sent");
        place += (uint64_t)count;
    }
    expect(place == stream_bytes, "the receiver gets all");
    return 0;
}

/* What the receiver of a stream tells the process that takes the blocks. */
struct handed {
    uint64_t place;
    numacre_ref ref;
    uint32_t bytes;
    uint32_t reserved;
};

/* Takes blocks, looks into them, frees them, until the giver closes or dies. A reference of a giver that has died is
 * stale. */
static int take_blocks(int socket) {
    struct handed handed[kBatch];
    numacre_ref refs[kBatch];
    void *blocks[kBatch];
    attach();
    for (;;) {
        const ssize_t got = recv(socket, handed, sizeof handed, 0);
        if (got <= 0) break;
        const unsigned count = (unsigned)((size_t)got / sizeof handed[0]);
        for (unsigned i = 0; i < count; ++i) refs[i] = handed[i].ref;
        const int error = numacre_take_bulk(pool, refs, blocks, count);
        if (error != 0 && error != -ESTALE) of_library("numacre_take_bulk", error);
        for (unsigned i = 0; i < count; ++i) {
            struct pollfd giver = {.fd = socket, .events = POLLRDHUP};
            if (blocks[i] == NULL) {
                while (poll(&giver, 1, 60000) < 0) {
                }
                expect((giver.revents & (POLLRDHUP | POLLHUP)) != 0, "only references of the dead are stale");
                continue;
            }
            expect(is_stream(blocks[i], handed[i].place, handed[i].bytes), "a taken block has what was received");
            of_library("the taker's numacre_free", numacre_free(pool, blocks[i]));
        }
    }
    numacre_detach(pool);
    return 0;
}

/* receive FLAGS BYTES: a stream goes through a small ring of provided buffers, and each block to a second process,
 * which takes, checks and frees it. At first the ring is left to run empty (-ENOBUFS). */
static int receive(unsigned flags, uint64_t bytes) {
    const numacre_uring_feeder_options options = {.group = 7, .entries = 8, .block_bytes = 4096, .flags = flags};
    numacre_uring_feeder feeder;
    struct io_uring_cqe *cqes[kBatch];
    void *blocks[kBatch];
    numacre_ref refs[kBatch];
    struct handed handed[kBatch];
    int connection[2];
    int hand[2];
    uint64_t place = 0;
    unsigned ran_empty = 0;
    unsigned passed = 0;
    int is_open = 1;
    stream_bytes = bytes;
    of_kernel("socketpair", socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, hand));
    const pid_t taker = start(take_blocks, hand[1], hand[0]);
    connect_pair(AF_INET, connection);
    const pid_t sender = start(send_stream, connection[0], connection[1]);
    set_up(0, 0);
    if (numacre_uring_feeder_open(&feeder, &ring, pool, &options) != 0) fail("feeder_open", feeder.message);
    expect(numacre_uring_feed(&feeder, 0) == 8, "the ring is filled");
    expect(numacre_uring_feed(&feeder, 0) == 0, "a full ring takes nothing");
    numacre_uring_prep_recv_multishot(&feeder, next_sqe(), connection[1]);
    while (is_open) {
        expect(io_uring_submit_and_wait(&ring, 1) >= 0, "io_uring_submit_and_wait");
        const unsigned count = io_uring_peek_batch_cqe(&ring, cqes, kBatch);
        unsigned has_ended = 0;
        unsigned handing = 0;
        const unsigned taken = numacre_uring_take_refs(&feeder, cqes, count, blocks, refs);
        for (unsigned i = 0; i < count; ++i) {
            has_ended |= (cqes[i]->flags & IORING_CQE_F_MORE) == 0;
            if (cqes[i]->res == 0) is_open = 0;
            if (cqes[i]->res == -ENOBUFS)
                ++ran_empty;
            else if (cqes[i]->res < 0)
                fail("receive", strerror(-cqes[i]->res));
            expect(numacre_uring_take(&feeder, cqes[i]) == NULL, "a block is given once");
            if (blocks[i] == NULL) continue;
            expect(refs[i] != NUMACRE_REF_NULL, "a block has a reference");
            handed[handing++] = (struct handed){.place = place, .ref = refs[i], .bytes = (uint32_t)cqes[i]->res};
            place += (uint32_t)cqes[i]->res;
        }
        expect(handing == taken, "as many blocks as take_refs says");
        io_uring_cq_advance(&ring, count);
        passed += taken;
        if (handing != 0) of_kernel("send", send(hand[0], handed, handing * sizeof handed[0], MSG_NOSIGNAL));
        /* At first no feed until the ring has run empty. */
        if (ran_empty != 0 && numacre_uring_feed(&feeder, 0) < 0) fail("numacre_uring_feed", feeder.message);
        if (is_open && has_ended) numacre_uring_prep_recv_multishot(&feeder, next_sqe(), connection[1]);
    }
    expect(place == stream_bytes, "all was received");
    if (numacre_uring_feeder_close(&feeder) != 0) fail("feeder_close", feeder.message);
    close(hand[0]);
    expect_success_of(taker, "the taker");
    expect_success_of(sender, "the sender");
    printf("passed=%u ran_empty=%u\n", passed, ran_empty);
    tear_down();
    return 0;
}

/* How many blocks of 64 KiB this process can have. */
static unsigned count_blocks(void) {
    static void *blocks[kBlocksMax];
    unsigned count = 0;
    while (count < kBlocksMax && numacre_alloc_on(pool, -1, 65536, NUMACRE_UNCACHED, &blocks[count]) == 0) ++count;
    for (unsigned i = 0; i < count; ++i) of_library("numacre_free", numacre_free_uncached(pool, blocks[i]));
    return count;
}

static int has_linux(int major, int minor) {
    struct utsname name;
    int found_major = 0;
    int found_minor = 0;
    of_kernel("uname", uname(&name));
    (void)sscanf(name.release, "%d.%d", &found_major, &found_minor);
    return found_major > major || (found_major == major && found_minor >= minor);
}

/* close: a feeder is not closed while a completion has a block that was not taken. */
static int close_early(void) {
    const numacre_uring_feeder_options options = {.group = 1, .entries = 4, .block_bytes = 4096};
    numacre_uring_feeder feeder;
    struct io_uring_cqe *cqe;
    int connection[2];
    connect_pair(AF_INET, connection);
    set_up(0, 0);
    if (numacre_uring_feeder_open(&feeder, &ring, pool, &options) != 0) fail("feeder_open", feeder.message);
    expect(numacre_uring_feeder_close(&feeder) == 0, "an empty feeder is closed");
    const numacre_uring_feeder_options in_pool = {
        .group = 1, .entries = 4, .block_bytes = 65536, .flags = NUMACRE_URING_RING_IN_POOL};
    const unsigned blocks_before = count_blocks();
    if (numacre_uring_feeder_open(&feeder, &ring, pool, &in_pool) != 0) fail("feeder_open", feeder.message);
    expect(numacre_uring_feed(&feeder, 0) == 4, "the ring is filled");
    expect(count_blocks() == blocks_before - 5, "the feeder has four blocks and the ring");
    expect(numacre_uring_feeder_close(&feeder) == 0, "a full feeder is closed");
    expect(count_blocks() == blocks_before, "the feeder gives everything back");
    expect(numacre_uring_feeder_close(&feeder) == 0, "a closed feeder is closed");
    const struct io_uring_cqe late = {.res = 1, .flags = IORING_CQE_F_BUFFER};
    expect(numacre_uring_feed(&feeder, 0) == 0, "a closed feeder takes nothing");
    expect(numacre_uring_take(&feeder, &late) == NULL, "a closed feeder has no block");
    expect(feeder.entries == 0 && feeder.held == 0, "a closed feeder has no places");
    if (numacre_uring_feeder_open(&feeder, &ring, pool, &options) != 0) fail("feeder_open", feeder.message);
    expect(numacre_uring_feed(&feeder, NUMACRE_WAIT) == 4, "the ring is filled");
    numacre_uring_prep_recv_multishot(&feeder, next_sqe(), connection[1]);
    of_kernel("send", send(connection[0], "abc", 3, 0));
    expect(io_uring_submit_and_wait(&ring, 1) >= 0, "io_uring_submit_and_wait");
    expect(io_uring_peek_cqe(&ring, &cqe) == 0, "a completion is there");
    const int error = numacre_uring_feeder_close(&feeder);
    if (!has_linux(6, 8)) {
        fprintf(stderr, "uring_client: this kernel (before Linux 6.8) does not tell which buffers are in use\n");
        return kSkipped;
    }
    expect(error == -EBUSY, "no close while a completion has a block");
    printf("%s\n", feeder.message);
    void *const block = numacre_uring_take(&feeder, cqe);
    expect(block != NULL && memcmp(block, "abc", 3) == 0, "the block has what was received");
    io_uring_cqe_seen(&ring, cqe);
    of_library("numacre_free", numacre_free(pool, block));
    of_kernel("shutdown", shutdown(connection[1], SHUT_RDWR));
    expect(io_uring_wait_cqe(&ring, &cqe) == 0 && (cqe->flags & IORING_CQE_F_MORE) == 0, "the receive has ended");
    expect(numacre_uring_take(&feeder, cqe) == NULL, "no block at the end");
    io_uring_cqe_seen(&ring, cqe);
    if (numacre_uring_feeder_close(&feeder) != 0) fail("feeder_close", feeder.message);
    tear_down();
    return 0;
}

/* short: a pool with little memory left feeds what there is, and then says why. */
static int short_memory(void) {
    static void *blocks[kBlocksMax];
    const numacre_uring_feeder_options options = {.group = 1, .entries = 1024, .block_bytes = 65536};
    numacre_uring_feeder feeder;
    unsigned count = 0;
    set_up(0, 0);
    while (numacre_alloc_on(pool, -1, 65536, NUMACRE_UNCACHED, &blocks[count]) == 0) ++count;
    expect(count > 100, "the pool has blocks");
    of_library("numacre_free_bulk", numacre_free_bulk(pool, blocks, 77));
    if (numacre_uring_feeder_open(&feeder, &ring, pool, &options) != 0) fail("feeder_open", feeder.message);
    expect(numacre_uring_feed(&feeder, 0) == 77, "the ring gets all that there is");
    expect(numacre_uring_feed(&feeder, NUMACRE_WAIT) == -ENOMEM, "no wait beside blocks in the ring");
    printf("%s\n", feeder.message);
    if (numacre_uring_feeder_close(&feeder) != 0) fail("feeder_close", feeder.message);
    void *block[77];
    of_library("numacre_alloc_bulk", numacre_alloc_bulk(pool, 65536, block, 77));
    if (numacre_uring_feeder_open(&feeder, &ring, pool, &options) != 0) fail("feeder_open", feeder.message);
    expect(numacre_uring_feed(&feeder, NUMACRE_WAIT_MS(10)) == -ETIMEDOUT, "a wait for an empty ring");
    if (numacre_uring_feeder_close(&feeder) != 0) fail("feeder_close", feeder.message);
    of_library("numacre_free_bulk", numacre_free_bulk(pool, block, 77));
    of_library("numacre_free_bulk", numacre_free_bulk(pool, blocks + 77, count - 77));
    tear_down();
    return 0;
}

enum { kSends = 64, kSendBytes = 1 << 20 };

/* send FAMILY: blocks go out by SEND_ZC, each freed when the kernel has done with it. */
static int send_blocks(int family) {
    static numacre_uring_sending sendings[kSends];
    static void *blocks[kSends];
    int connection[2];
    unsigned next = 0;
    unsigned fixed = 0;
    unsigned notifications = 0;
    unsigned done = 0;
    stream_bytes = (uint64_t)kSends * kSendBytes;
    connect_pair(family, connection);
    const pid_t receiver = start(receive_stream, connection[1], connection[0]);
    set_up(0, 0);
    while (done < kSends) {
        /* One send is under way; blocks whose notification is still to come wait beside it. */
        if (next < kSends && (next == 0 || !sendings[next - 1].is_under_way) && next - done < 8) {
            of_library("numacre_alloc", numacre_alloc(pool, kSendBytes, &blocks[next]));
            fill(blocks[next], (uint64_t)next * kSendBytes, kSendBytes);
            sendings[next] =
                (numacre_uring_sending){.fd = connection[0], .data = blocks[next], .size_bytes = kSendBytes};
            struct io_uring_sqe *const sqe = next_sqe();
            numacre_uring_prep_send(&uring, sqe, &sendings[next]);
            fixed += sqe->opcode == IORING_OP_SEND_ZC && (sqe->ioprio & IORING_RECVSEND_FIXED_BUF) != 0;
            io_uring_sqe_set_data64(sqe, next++);
        }
        struct io_uring_cqe *cqe;
        expect(io_uring_submit_and_wait(&ring, 1) >= 0, "io_uring_submit_and_wait");
        while (done < kSends && io_uring_peek_cqe(&ring, &cqe) == 0) {
            numacre_uring_sending *const sending = &sendings[io_uring_cqe_get_data64(cqe)];
            void *const block = blocks[io_uring_cqe_get_data64(cqe)];
            notifications += (cqe->flags & IORING_CQE_F_NOTIF) != 0;
            const int result = numacre_uring_send_completed(sending, cqe);
            if (result == NUMACRE_URING_AGAIN) {
                struct io_uring_sqe *const sqe = next_sqe();
                numacre_uring_prep_send(&uring, sqe, sending);
                io_uring_sqe_set_data64(sqe, (uint64_t)(sending - sendings));
            }
            io_uring_cqe_seen(&ring, cqe);
            if (result != NUMACRE_URING_DONE) continue;
            expect(sending->error == 0 && sending->sent_bytes == kSendBytes, "all is sent");
            memset(block, 0, kSendBytes); /* a send that is not over would be seen by the receiver */
            of_library("numacre_free", numacre_free(pool, block));
            ++done;
        }
    }
    close(connection[0]);
    expect_success_of(receiver, "the receiver");
    printf("fixed=%u notifications=%u plain=%d\n", fixed, notifications, sendings[kSends - 1].is_plain);
    tear_down();
    return 0;
}

/* sending: what a send does at each completion, made up here: the kernel seldom sends a part. */
static int made_up_completions(void) {
    static const char data[1000];
    struct io_uring_sqe sqe = {0};
    struct io_uring_cqe result = {.res = 300, .flags = IORING_CQE_F_MORE};
    struct io_uring_cqe notification = {.flags = IORING_CQE_F_NOTIF};
    numacre_uring_sending sending = {.fd = 5, .data = data, .size_bytes = sizeof data};
    numacre_uring_prep_send(&uring, &sqe, &sending);
    expect(sqe.opcode == IORING_OP_SEND_ZC && sqe.fd == 5 && sqe.addr == (uintptr_t)data && sqe.len == 1000,
           "all is to be sent");
    expect(numacre_uring_send_completed(&sending, &result) == NUMACRE_URING_AGAIN, "a part was sent");
    numacre_uring_prep_send(&uring, &sqe, &sending);
    expect(sqe.addr == (uintptr_t)(data + 300) && sqe.len == 700, "the rest is to be sent");
    expect(numacre_uring_send_completed(&sending, &notification) == NUMACRE_URING_PENDING, "the first is notified of");
    result.res = 700;
    expect(numacre_uring_send_completed(&sending, &result) == NUMACRE_URING_PENDING, "all is sent");
    expect(numacre_uring_send_completed(&sending, &notification) == NUMACRE_URING_DONE, "both are notified of");
    expect(sending.error == 0 && sending.sent_bytes == 1000, "a send that has done all");

    /* No memory for a zero-copy send: a plain one, which has no notification. The first one's comes in between. */
    sending = (numacre_uring_sending){.fd = 5, .data = data, .size_bytes = sizeof data};
    numacre_uring_prep_send(&uring, &sqe, &sending);
    result.res = -ENOMEM;
    expect(numacre_uring_send_completed(&sending, &result) == NUMACRE_URING_AGAIN, "without zero copy, then");
    numacre_uring_prep_send(&uring, &sqe, &sending);
    expect(sqe.opcode == IORING_OP_SEND && sqe.len == 1000, "a plain send");
    result = (struct io_uring_cqe){.res = 1000};
    expect(numacre_uring_send_completed(&sending, &result) == NUMACRE_URING_PENDING, "the first has the block still");
    expect(numacre_uring_send_completed(&sending, &notification) == NUMACRE_URING_DONE, "and lets go of it");

    /* The peer has gone. */
    sending = (numacre_uring_sending){.fd = 5, .data = data, .size_bytes = sizeof data};
    numacre_uring_prep_send(&uring, &sqe, &sending);
    result = (struct io_uring_cqe){.res = -EPIPE, .flags = IORING_CQE_F_MORE};
    expect(numacre_uring_send_completed(&sending, &result) == NUMACRE_URING_PENDING, "the notification is to come");
    expect(numacre_uring_send_completed(&sending, &notification) == NUMACRE_URING_DONE, "it has come");
    expect(sending.error == -EPIPE, "the error of the send");
    return 0;
}

/* The kinds of requests of a burst, in user_data beside a number. */
enum { kRead = 1, kWrite, kSend, kReceive, kBurstBlocks = 48, kBurstBytes = 64 << 10 };

static uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* A burst: reads and writes of a file, zero-copy sends to a socket of its own, receives from a ring of provided buffers
 * and blocks handed to another process, all at once, until the process is killed. */
struct burst {
    numacre_uring_feeder feeder;
    int connection[2];
    int file;
    int hand;
    void *blocks[kBurstBlocks];
    numacre_uring_sending sending;
    void *sent_block;
    uint64_t sent_place;
    uint64_t received_place;
    uint64_t random;
};

static void burst_file(struct burst *burst, unsigned which) {
    struct io_uring_sqe *const sqe = next_sqe();
    const uint64_t offset = next_random(&burst->random) % 64 * kBurstBytes;
    if (burst->blocks[which] == NULL)
        of_library("numacre_alloc",
                   numacre_alloc_on(pool, -1, kBurstBytes, NUMACRE_WAIT_MS(60000), &burst->blocks[which]));
    if (next_random(&burst->random) % 4 != 0)
        numacre_uring_prep_read(&uring, sqe, burst->file, burst->blocks[which], kBurstBytes, offset);
    else
        numacre_uring_prep_write(&uring, sqe, burst->file, burst->blocks[which], kBurstBytes, offset);
    io_uring_sqe_set_data64(sqe, (uint64_t)kRead << 32 | which);
}

static void burst_send(struct burst *burst) {
    struct io_uring_sqe *const sqe = next_sqe();
    if (burst->sent_block == NULL) {
        const unsigned bytes = 1 + (unsigned)(next_random(&burst->random) % kBurstBytes);
        of_library("numacre_alloc", numacre_alloc_on(pool, -1, bytes, NUMACRE_WAIT_MS(60000), &burst->sent_block));
        fill(burst->sent_block, burst->sent_place, bytes);
        burst->sending =
            (numacre_uring_sending){.fd = burst->connection[0], .data = burst->sent_block, .size_bytes = bytes};
        burst->sent_place += bytes;
    }
    numacre_uring_prep_send(&uring, sqe, &burst->sending);
    io_uring_sqe_set_data64(sqe, (uint64_t)kSend << 32);
}

static void burst_receive(struct burst *burst) {
    struct io_uring_sqe *const sqe = next_sqe();
    numacre_uring_prep_recv_multishot(&burst->feeder, sqe, burst->connection[1]);
    io_uring_sqe_set_data64(sqe, (uint64_t)kReceive << 32);
}

static void burst_received(struct burst *burst, struct io_uring_cqe *cqe) {
    void *block;
    numacre_ref ref;
    if (numacre_uring_take_refs(&burst->feeder, &cqe, 1, &block, &ref) == 1) {
        const struct handed handed = {.place = burst->received_place, .ref = ref, .bytes = (uint32_t)cqe->res};
        burst->received_place += (uint32_t)cqe->res;
        /* Every third block stays here and is freed. */
        if (next_random(&burst->random) % 3 == 0)
            of_library("numacre_free", numacre_free(pool, block));
        else
            of_kernel("send", send(burst->hand, &handed, sizeof handed, MSG_NOSIGNAL));
    }
    if (numacre_uring_feed(&burst->feeder, NUMACRE_WAIT_MS(60000)) < 0) fail("feed", burst->feeder.message);
    if ((cqe->flags & IORING_CQE_F_MORE) == 0) burst_receive(burst);
}

_Noreturn static void burst(uint64_t seed, const char *path) {
    static struct burst burst;
    const numacre_uring_feeder_options options = {
        .group = 1,
        .entries = 32,
        .block_bytes = 16384,
        .flags = (seed % 2 != 0 ? NUMACRE_URING_WITH_REFS : 0) | (seed % 3 == 0 ? NUMACRE_URING_RING_IN_POOL : 0)};
    int hand[2];
    burst.random = seed * 2654435761u + 1;
    of_kernel("socketpair", socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, hand));
    (void)start(take_blocks, hand[1], hand[0]);
    burst.hand = hand[0];
    connect_pair(AF_INET, burst.connection);
    burst.file = open(path, O_RDWR | O_CLOEXEC | O_DIRECT);
    if (burst.file < 0) burst.file = open(path, O_RDWR | O_CLOEXEC);
    of_kernel("open", burst.file);
    set_up(8 << 20, 0);
    if (numacre_uring_feeder_open(&burst.feeder, &ring, pool, &options) != 0) fail("feeder_open", burst.feeder.message);
    if (numacre_uring_feed(&burst.feeder, NUMACRE_WAIT_MS(60000)) < 0) fail("feed", burst.feeder.message);
    burst_receive(&burst);
    burst_send(&burst);
    for (unsigned i = 0; i < kBurstBlocks; ++i) burst_file(&burst, i);
    printf("attached\n");
    fflush(stdout);
    for (;;) {
        struct io_uring_cqe *cqe;
        const int submitted = io_uring_submit_and_wait(&ring, 1);
        /* A signal, or the kernel is short of something for a moment: completions first. */
        if (submitted < 0 && submitted != -EINTR && submitted != -EAGAIN && submitted != -EBUSY)
            fail("io_uring_submit_and_wait", strerror(-submitted));
        while (io_uring_peek_cqe(&ring, &cqe) == 0) {
            const uint64_t data = io_uring_cqe_get_data64(cqe);
            const unsigned which = (unsigned)data;
            if (data >> 32 == kRead) {
                if (cqe->res != kBurstBytes) fail("a read or write", strerror(cqe->res < 0 ? -cqe->res : EIO));
                if (next_random(&burst.random) % 2 == 0) {
                    of_library("numacre_free", numacre_free(pool, burst.blocks[which]));
                    burst.blocks[which] = NULL;
                }
                burst_file(&burst, which);
            } else if (data >> 32 == kReceive) {
                burst_received(&burst, cqe);
            } else {
                const int result = numacre_uring_send_completed(&burst.sending, cqe);
                if (result == NUMACRE_URING_DONE) {
                    if (burst.sending.error != 0) fail("send", strerror(-burst.sending.error));
                    of_library("numacre_free", numacre_free(pool, burst.sent_block));
                    burst.sent_block = NULL;
                }
                if (result != NUMACRE_URING_PENDING) burst_send(&burst);
            }
            io_uring_cqe_seen(&ring, cqe);
        }
    }
}

/* watch: allocates, fills, looks and frees, until standard input ends: a block that somebody else writes into, in the
 * kernel or out of it, is noticed. */
static int watch(void) {
    enum { kWatched = 64 };
    static uint64_t *blocks[kWatched];
    static uint64_t marks[kWatched];
    static size_t words[kWatched];
    struct pollfd input = {.fd = 0, .events = POLLIN};
    uint64_t random = 88172645463325252u;
    uint64_t looked = 0;
    attach();
    printf("attached\n");
    fflush(stdout);
    while (poll(&input, 1, 0) == 0) {
        for (unsigned n = 0; n < kWatched; ++n) {
            const unsigned i = (unsigned)(next_random(&random) % kWatched);
            for (size_t word = 0; blocks[i] != NULL && word < words[i]; ++word)
                if (blocks[i][word] != (marks[i] ^ word)) fail("watch", "a block has changed its content");
            looked += blocks[i] != NULL;
            if (blocks[i] != NULL) of_library("numacre_free", numacre_free_uncached(pool, blocks[i]));
            blocks[i] = NULL;
            void *block;
            const size_t bytes = (size_t)4096 << next_random(&random) % 6;
            const int error = numacre_alloc_on(pool, -1, bytes, NUMACRE_UNCACHED, &block);
            if (error == -ENOMEM) continue; /* the dead have it for now */
            of_library("numacre_alloc", error);
            blocks[i] = block;
            words[i] = bytes / sizeof(uint64_t);
            marks[i] = next_random(&random);
            for (size_t word = 0; word < words[i]; ++word) blocks[i][word] = marks[i] ^ word;
        }
    }
    numacre_detach(pool);
    printf("looked=%llu\n", (unsigned long long)looked);
    return looked == 0;
}

/* register FLAGS: registers and has a block, then obeys letters: u unregisters, f forks a child that keeps the ring's
 * descriptor and not the pins', q ends. */
static int stay_registered(unsigned flags) {
    void *block;
    set_up(0, flags);
    of_library("numacre_alloc", numacre_alloc_on(pool, -1, 1 << 20, NUMACRE_UNCACHED, &block));
    printf("attached\n");
    for (;;) {
        fflush(stdout);
        const int letter = getchar();
        if (letter == 'q' || letter == EOF) return 0;
        if (letter == 'u') {
            if (numacre_uring_unregister(&uring) != 0) fail("numacre_uring_unregister", uring.message);
            printf("unregistered\n");
        }
        if (letter == 'b') printf("buffer=%d\n", numacre_uring_buffer_of(&uring, block, 1 << 20));
        if (letter == 'f') {
            const pid_t child = fork();
            if (child == 0) {
                for (unsigned i = 0; i < uring.pin_count; ++i) close(uring.pins[i]);
                prctl(PR_SET_NAME, "uring_keeper");
                close(0);
                close(1);
                close(2);
                for (;;) pause();
            }
            printf("child=%d\n", child);
        }
    }
}

/* late FLAGS PATH: a READ_FIXED past the page cache, whose answer does not come while the process lives. */
_Noreturn static void read_late(unsigned flags, const char *path) {
    void *block;
    set_up(0, flags);
    of_library("numacre_alloc", numacre_alloc_on(pool, -1, 65536, NUMACRE_UNCACHED, &block));
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
    of_kernel("open", fd);
    expect(numacre_uring_prep_read(&uring, next_sqe(), fd, block, 65536, 0) == 1, "READ_FIXED");
    expect(io_uring_submit(&ring) == 1, "io_uring_submit");
    for (;;) pause();
}

/* hog: has all blocks that there are, each filled with one byte, and at a letter says how many have changed. */
static int hog(void) {
    static unsigned char *blocks[kBlocksMax];
    unsigned count = 0;
    unsigned changed = 0;
    void *block;
    attach();
    for (; numacre_alloc_on(pool, -1, 65536, NUMACRE_UNCACHED, &block) == 0; ++count) {
        expect(count < kBlocksMax, "the pool is small");
        blocks[count] = block;
        memset(block, 0x3c, 65536);
    }
    printf("attached\n");
    fflush(stdout);
    (void)getchar();
    for (unsigned i = 0; i < count; ++i) {
        unsigned byte = 0;
        while (byte < 65536 && blocks[i][byte] == 0x3c) ++byte;
        changed += byte < 65536;
    }
    printf("blocks=%u changed=%u\n", count, changed);
    return 0;
}

/* grown: memory that has come online after the registration is read by the plain request. Letter g: it has. */
static int grown(const char *path) {
    static void *blocks[kBlocksMax];
    unsigned count = 0;
    unsigned fixed = 0;
    unsigned plain = 0;
    set_up(0, 0);
    printf("attached\n");
    fflush(stdout);
    (void)getchar();
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    of_kernel("open", fd);
    while (numacre_alloc_on(pool, -1, (size_t)info.largest_block_bytes, NUMACRE_UNCACHED, &blocks[count]) == 0) ++count;
    for (unsigned i = 0; i < count; ++i) {
        struct io_uring_sqe *const sqe = next_sqe();
        const int is_fixed = numacre_uring_prep_read(&uring, sqe, fd, blocks[i], 4096, 0);
        expect(sqe->opcode == (is_fixed ? IORING_OP_READ_FIXED : IORING_OP_READ), "the opcode");
        expect(result_of_one() == 4096, "4096 bytes are read");
        expect(is_stream(blocks[i], 0, 4096), "what the file has is read");
        fixed += (unsigned)is_fixed;
        plain += (unsigned)!is_fixed;
    }
    if (numacre_uring_unregister(&uring) != 0) fail("numacre_uring_unregister", uring.message);
    if (numacre_uring_register(&uring, &ring, pool, NULL) != 0) fail("numacre_uring_register", uring.message);
    unsigned fixed_now = 0;
    for (unsigned i = 0; i < count; ++i)
        fixed_now += numacre_uring_buffer_of(&uring, blocks[i], info.largest_block_bytes) >= 0;
    of_library("numacre_free_bulk", numacre_free_bulk(pool, blocks, count));
    printf("fixed=%u plain=%u fixed_now=%u\n", fixed, plain, fixed_now);
    tear_down();
    return 0;
}

/* A ring counts what is locked for it only if its maker has not CAP_IPC_LOCK. */
static void let_lock(uint64_t bytes) {
    struct rlimit limit;
    of_kernel("getrlimit", getrlimit(RLIMIT_MEMLOCK, &limit));
    limit.rlim_cur = bytes;
    of_kernel("setrlimit", setrlimit(RLIMIT_MEMLOCK, &limit));
}

static void lock_at_most(uint64_t bytes) {
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2];
    let_lock(bytes);
    of_kernel("capget", syscall(SYS_capget, &header, data));
    data[0].effective &= ~(1u << CAP_IPC_LOCK);
    of_kernel("capset", syscall(SYS_capset, &header, data));
}

/* refuse OPTION VALUE ...: prints the error and message of a registration with these options. */
static int refuse(int argc, char **argv) {
    numacre_uring_options options = {0};
    int has_own_buffers = 0;
    int has_own_files = 0;
    uint64_t locked_bytes = 0;
    for (int i = 0; i + 1 < argc; i += 2) {
        const uint64_t value = strtoull(argv[i + 1], NULL, 0);
        if (strcmp(argv[i], "slice_bytes") == 0) options.slice_bytes = value;
        if (strcmp(argv[i], "size_bytes") == 0) options.size_bytes = value;
        if (strcmp(argv[i], "numa_nodes") == 0) options.numa_nodes = value;
        if (strcmp(argv[i], "flags") == 0) options.flags = (unsigned)value;
        if (strcmp(argv[i], "first_buffer") == 0) options.first_buffer = (unsigned)value;
        if (strcmp(argv[i], "buffer_count") == 0) options.buffer_count = (unsigned)value;
        if (strcmp(argv[i], "first_file") == 0) options.first_file = (unsigned)value;
        if (strcmp(argv[i], "file_count") == 0) options.file_count = (unsigned)value;
        if (strcmp(argv[i], "own_buffers") == 0) has_own_buffers = (int)value;
        if (strcmp(argv[i], "own_files") == 0) has_own_files = (int)value;
        if (strcmp(argv[i], "locked_bytes") == 0) locked_bytes = value;
    }
    attach();
    if (locked_bytes != 0) lock_at_most(locked_bytes);
    set_up_ring();
    if (has_own_buffers != 0)
        expect(io_uring_register_buffers_sparse(&ring, (unsigned)has_own_buffers) == 0, "a table of buffers");
    if (has_own_files != 0)
        expect(io_uring_register_files_sparse(&ring, (unsigned)has_own_files) == 0, "a table of files");
    const int error = numacre_uring_register(&uring, &ring, pool, &options);
    printf("%d %s\n", error, error == 0 ? "" : uring.message);
    /* The ring is as it was: a registration that suits it works. */
    if (error != 0) {
        options = (numacre_uring_options){0};
        if (has_own_buffers != 0 || has_own_files != 0) options.flags = NUMACRE_URING_NO_HOLD;
        if (has_own_buffers != 0) options.flags |= NUMACRE_URING_TABLES;
        options.buffer_count = (unsigned)has_own_buffers;
        if (locked_bytes != 0) {
            options.size_bytes = 4 << 20;
            let_lock(2 * options.size_bytes);
        }
        if (numacre_uring_register(&uring, &ring, pool, &options) != 0) fail("after a refusal", uring.message);
    }
    tear_down();
    return 0;
}

/* tables: two registrations, of two handles, share the tables of one ring. */
static int tables(void) {
    numacre_uring other = {0};
    numacre_pool *second;
    void *blocks[2];
    attach();
    set_up_ring();
    of_library("numacre_attach", numacre_attach(NULL, NULL, &second));
    expect(io_uring_register_buffers_sparse(&ring, 100) == 0, "a table of buffers");
    expect(io_uring_register_files_sparse(&ring, 10) == 0, "a table of files");
    numacre_uring_options options = {.flags = NUMACRE_URING_TABLES,
                                     .slice_bytes = 8 << 20,
                                     .first_buffer = 10,
                                     .buffer_count = 40,
                                     .first_file = 1,
                                     .file_count = 4};
    if (numacre_uring_register(&uring, &ring, pool, &options) != 0) fail("register", uring.message);
    options.first_buffer = 50;
    options.first_file = 5;
    if (numacre_uring_register(&other, &ring, second, &options) != 0) fail("register", other.message);
    of_library("numacre_alloc", numacre_alloc(pool, 4096, &blocks[0]));
    of_library("numacre_alloc", numacre_alloc(second, 4096, &blocks[1]));
    const int buffer = numacre_uring_buffer_of(&uring, blocks[0], 4096);
    const int other_buffer = numacre_uring_buffer_of(&other, blocks[1], 4096);
    expect(buffer >= 10 && buffer < 50 && other_buffer >= 50 && other_buffer < 90, "buffers as the options say");
    expect(numacre_uring_buffer_of(&uring, blocks[1], 4096) == -1, "a block of another mapping has no buffer");
    /* The first goes, the second stays usable. */
    if (numacre_uring_unregister(&uring) != 0) fail("unregister", uring.message);
    const int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    expect(numacre_uring_prep_read(&other, next_sqe(), fd, blocks[1], 4096, 0) == 1, "READ_FIXED");
    expect(result_of_one() == 4096, "4096 bytes are read");
    struct io_uring_sqe *const sqe = next_sqe();
    io_uring_prep_read_fixed(sqe, fd, blocks[0], 4096, 0, buffer);
    expect(result_of_one() == -EFAULT, "the place of the first is empty");
    if (numacre_uring_unregister(&other) != 0) fail("unregister", other.message);
    io_uring_queue_exit(&ring);
    numacre_detach(second);
    numacre_detach(pool);
    return 0;
}

/* taken: places of the program's in a ring's tables are refused, and stay as they are. */
static int taken_places(void) {
    static char own[4096];
    const struct iovec own_buffer = {own, sizeof own};
    const __u64 tag = 0;
    const int own_file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    numacre_uring_options options = {.flags = NUMACRE_URING_TABLES,
                                     .slice_bytes = 8 << 20,
                                     .first_buffer = 10,
                                     .buffer_count = 40,
                                     .first_file = 1,
                                     .file_count = 4};
    attach();
    set_up_ring();
    expect(io_uring_register_buffers_sparse(&ring, 100) == 0, "a table of buffers");
    expect(io_uring_register_files_sparse(&ring, 10) == 0, "a table of files");
    expect(io_uring_register_buffers_update_tag(&ring, 12, &own_buffer, &tag, 1) == 1, "a buffer");
    expect(io_uring_register_files_update(&ring, 1, &own_file, 1) == 1, "a file");
    expect(numacre_uring_register(&uring, &ring, pool, &options) == -EBUSY, "no place of another buffer");
    printf("%s\n", uring.message);
    options.first_buffer = 20;
    expect(numacre_uring_register(&uring, &ring, pool, &options) == -EBUSY, "no place of another file");
    printf("%s\n", uring.message);
    options.first_file = 2;
    if (numacre_uring_register(&uring, &ring, pool, &options) != 0) fail("register", uring.message);
    expect(strstr(uring.message, "table of files") != NULL, "a message stays until the next failure");
    if (numacre_uring_unregister(&uring) != 0) fail("unregister", uring.message);
    /* Both are what they were. */
    struct io_uring_sqe *const sqe = next_sqe();
    io_uring_prep_read_fixed(sqe, 1, own, sizeof own, 0, 12);
    sqe->flags |= IOSQE_FIXED_FILE;
    expect(result_of_one() == (int)sizeof own && memcmp(own, "\177ELF", 4) == 0, "the program is read");
    tear_down();
    return 0;
}

/* private: all of it on a private pool, without a daemon. */
static int private_pool(void) {
    void *block;
    void *run;
    of_library("numacre_open_private", numacre_open_private(NULL, &pool));
    set_up_ring();
    const numacre_uring_options options = {.slice_bytes = 5 << 20}; /* becomes 4 MiB, the largest block */
    if (numacre_uring_register(&uring, &ring, pool, &options) != 0) fail("register", uring.message);
    expect(uring.slice_count == 16, "64 MiB are 16 slices of 4 MiB");
    of_library("numacre_alloc", numacre_alloc(pool, 4096, &block));
    const int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    expect(numacre_uring_prep_read(&uring, next_sqe(), fd, block, 4096, 0) == 1, "READ_FIXED");
    expect(result_of_one() == 4096 && memcmp(block, "\177ELF", 4) == 0, "the program is read");
    /* A run that crosses slices is read by the plain request. */
    of_library("numacre_alloc_run", numacre_alloc_run(pool, -1, 9 << 20, 0, &run));
    expect(numacre_uring_prep_read(&uring, next_sqe(), fd, run, 9 << 20, 0) == 0, "READ of a run");
    expect(result_of_one() > 0 && memcmp(run, "\177ELF", 4) == 0, "the program is read");
    tear_down();
    return 0;
}

/* filter ERRNO: a ring behind a filter that answers io_uring_setup with this error. */
static int behind_filter(unsigned error) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog program = {.len = sizeof filter / sizeof filter[0], .filter = filter};
    of_kernel("prctl", prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    of_kernel("prctl", prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
    const int result = numacre_uring_queue_init(&uring, 8, &ring, 0);
    printf("%d %s\n", result, uring.message);
    return 0;
}

int main(int argc, char **argv) {
    const char *const command = argc > 1 ? argv[1] : "";
    const uint64_t number = argc > 2 ? strtoull(argv[2], NULL, 0) : 0;
    if (strcmp(command, "file") == 0 && argc == 4) return file(number, argv[3]);
    if (strcmp(command, "receive") == 0 && argc == 4) return receive((unsigned)number, strtoull(argv[3], NULL, 0));
    if (strcmp(command, "close") == 0) return close_early();
    if (strcmp(command, "short") == 0) return short_memory();
    if (strcmp(command, "send") == 0 && argc == 3) return send_blocks(strcmp(argv[2], "unix") == 0 ? AF_UNIX : AF_INET);
    if (strcmp(command, "sending") == 0) return made_up_completions();
    if (strcmp(command, "burst") == 0 && argc == 4) burst(number, argv[3]);
    if (strcmp(command, "watch") == 0) return watch();
    if (strcmp(command, "register") == 0 && argc == 3) return stay_registered((unsigned)number);
    if (strcmp(command, "late") == 0 && argc == 4) read_late((unsigned)number, argv[3]);
    if (strcmp(command, "hog") == 0) return hog();
    if (strcmp(command, "grown") == 0 && argc == 3) return grown(argv[2]);
    if (strcmp(command, "refuse") == 0) return refuse(argc - 2, argv + 2);
    if (strcmp(command, "tables") == 0) return tables();
    if (strcmp(command, "taken") == 0) return taken_places();
    if (strcmp(command, "private") == 0) return private_pool();
    if (strcmp(command, "filter") == 0 && argc == 3) return behind_filter((unsigned)number);
    fail("usage", "see main()");
    return 1;
}
