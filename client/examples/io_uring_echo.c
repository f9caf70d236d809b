/* Concept: io_uring receives into blocks of the pool and sends from them. A TCP echo server of one thread: multishot
 * accept, multishot receive from a ring of provided buffers, zero-copy sends (plain ones where there are none).
 *
 * Build:  cc -std=c11 io_uring_echo.c $(pkg-config --cflags --libs numacre liburing) -o io_uring_echo
 * Run:    ./io_uring_echo PORT (0: any that is free), then for example: nc 127.0.0.1 PORT
 * Prints (numbers vary), and ends with its last connection:
 *     listens on 127.0.0.1:40127
 *     echoed 3000000 bytes in 750 blocks
 *
 * The feeder has a block while it is in the ring. From numacre_uring_take on this process has it, and could pass its
 * reference to another process. From the send on the kernel has it, until numacre_uring_send_completed says DONE.
 * A client that sends and never reads fills the pool: a real server bounds what a connection has to send. */
#include <numacre/adaptors/io_uring.h> /* first: liburing.h asks libc for what it needs */

#include <arpa/inet.h>

struct piece { /* a block to be sent back */
    struct piece *next;
    void *block;
    numacre_uring_sending sending;
};
struct connection {
    struct piece *first, **last; /* in the order in which they came; the first is under way */
    int fd, is_open;
};
enum { kAccept = 0, kSend = 1, kBlockBytes = 4096 }; /* user_data: kAccept, a connection, or a connection + kSend */

static numacre_pool *pool;
static struct io_uring ring;
static numacre_uring uring;
static numacre_uring_feeder feeder;

static int failed(const char *call, const char *why) {
    fprintf(stderr, "io_uring_echo: %s: %s\n", call, why);
    exit(1); /* the ring's requests end with the process; its blocks come back */
}

static struct io_uring_sqe *next_request(void) {
    struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
    if (sqe == NULL && io_uring_submit(&ring) >= 0) sqe = io_uring_get_sqe(&ring);
    return sqe != NULL ? sqe : (failed("io_uring_get_sqe", "the queue is full"), sqe);
}

static void receive(struct connection *connection) {
    struct io_uring_sqe *const sqe = next_request();
    numacre_uring_prep_recv_multishot(&feeder, sqe, connection->fd);
    io_uring_sqe_set_data(sqe, connection);
}

static void send_first(struct connection *connection) {
    struct io_uring_sqe *const sqe = next_request();
    numacre_uring_prep_send(&uring, sqe, &connection->first->sending);
    io_uring_sqe_set_data64(sqe, (uintptr_t)connection + kSend);
}

static void received(struct connection *connection, const struct io_uring_cqe *cqe) {
    void *const block = numacre_uring_take(&feeder, cqe); /* NULL at the end, and when the ring is empty */
    struct piece *const piece = block == NULL ? NULL : calloc(1, sizeof *piece);
    if (block != NULL && piece == NULL) failed("calloc", "no memory");
    if (piece != NULL) {
        piece->block = block;
        piece->sending = (numacre_uring_sending){.fd = connection->fd, .data = block, .size_bytes = (unsigned)cqe->res};
        *connection->last = piece;
        connection->last = &piece->next;
        if (connection->first == piece) send_first(connection);
    }
    /* Puts new blocks into the ring. Waits for one if the pool is full and the ring empty; goes on with what is there.
     */
    const int fed = numacre_uring_feed(&feeder, NUMACRE_WAIT_MS(1000));
    const int is_short = fed == -ENOMEM || fed == -EDQUOT; /* no memory, or above a quota */
    if (fed < 0 && !(is_short && feeder.held != 0)) failed("numacre_uring_feed", feeder.message);
    if ((cqe->flags & IORING_CQE_F_MORE) != 0) return;
    connection->is_open = cqe->res > 0 || cqe->res == -ENOBUFS; /* an empty ring ends the request */
    if (connection->is_open) receive(connection);
}

static void sent(struct connection *connection, const struct io_uring_cqe *cqe) {
    struct piece *const piece = connection->first;
    const int result = numacre_uring_send_completed(&piece->sending, cqe);
    if (result == NUMACRE_URING_AGAIN) send_first(connection); /* the rest, or all of it by a plain send */
    if (result != NUMACRE_URING_DONE) return;
    connection->first = piece->next;
    if (connection->first == NULL) connection->last = &connection->first;
    if (connection->first != NULL) send_first(connection);
    numacre_free(pool, piece->block);
    free(piece);
}

static void listen_for(int listener) {
    struct io_uring_sqe *const sqe = next_request();
    io_uring_prep_multishot_accept(sqe, listener, NULL, NULL, 0);
    io_uring_sqe_set_data64(sqe, kAccept);
}

static struct connection *accepted(int listener, const struct io_uring_cqe *cqe) {
    struct connection *const connection = calloc(1, sizeof *connection);
    if (cqe->res < 0 || connection == NULL) failed("accept", cqe->res < 0 ? strerror(-cqe->res) : "no memory");
    *connection = (struct connection){.last = &connection->first, .fd = cqe->res, .is_open = 1};
    if ((cqe->flags & IORING_CQE_F_MORE) == 0) listen_for(listener);
    receive(connection);
    return connection;
}

static void serve(int listener) {
    unsigned long long bytes = 0, blocks = 0;
    unsigned connections = 0;
    listen_for(listener);
    do {
        struct io_uring_cqe *cqe;
        while (io_uring_submit(&ring) < 0 || io_uring_wait_cqe(&ring, &cqe) != 0) {
        } /* a signal came in between */
        const uint64_t data = io_uring_cqe_get_data64(cqe);
        struct connection *connection = (struct connection *)(uintptr_t)(data & ~(uint64_t)kSend);
        if (data == kAccept) {
            connection = accepted(listener, cqe);
            ++connections;
        } else if ((data & kSend) != 0) {
            sent(connection, cqe);
        } else {
            bytes += cqe->res > 0 ? (unsigned)cqe->res : 0;
            blocks += cqe->res > 0;
            received(connection, cqe);
        }
        io_uring_cqe_seen(&ring, cqe);
        if (connection->is_open || connection->first != NULL) continue;
        close(connection->fd);
        free(connection);
        --connections;
    } while (connections != 0);
    printf("echoed %llu bytes in %llu blocks\n", bytes, blocks);
}

int main(int argc, char **argv) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    const numacre_uring_feeder_options ring_of_blocks = {.entries = 64, .block_bytes = kBlockBytes};
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    address.sin_port = htons((uint16_t)(argc > 1 ? strtoul(argv[1], NULL, 10) : 0));
    if (numacre_attach(NULL, NULL, &pool) != 0) failed("numacre_attach", numacre_last_error());
    if (numacre_uring_queue_init(&uring, 256, &ring, 0) != 0) failed("numacre_uring_queue_init", uring.message);
    if (numacre_uring_register(&uring, &ring, pool, NULL) != 0) /* works without, by requests that pin each block */
        fprintf(stderr, "io_uring_echo: goes on without fixed buffers: %s\n", uring.message);
    if (numacre_uring_feeder_open(&feeder, &ring, pool, &ring_of_blocks) != 0 || numacre_uring_feed(&feeder, 0) < 0)
        failed("numacre_uring_feeder_open", feeder.message);
    if (bind(listener, (struct sockaddr *)&address, length) != 0 || listen(listener, 16) != 0 ||
        getsockname(listener, (struct sockaddr *)&address, &length) != 0)
        failed("listen", strerror(errno));
    printf("listens on 127.0.0.1:%d\n", ntohs(address.sin_port));
    fflush(stdout);
    serve(listener);
    /* No request uses a block any more: the accept has none. */
    if (numacre_uring_feeder_close(&feeder) != 0) failed("numacre_uring_feeder_close", feeder.message);
    if (numacre_uring_unregister(&uring) != 0) failed("numacre_uring_unregister", uring.message);
    io_uring_queue_exit(&ring);
    numacre_detach(pool);
    return 0;
}
