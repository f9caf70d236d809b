/* Concept: hand a block to another process by reference. The bytes stay where they are; 64 bits go through a socket.
 *
 * Build:  cc -std=c11 hand_over.c $(pkg-config --cflags --libs numacre) -o hand_over
 * Run:    ./hand_over [POOL]
 * Prints (numbers vary):
 *     giver, client 1: wrote 25 bytes, passes reference 0x1000000001
 *     taker, client 2: read "no byte of this is copied"
 *     giver, client 1: the block was taken: my own take fails with -ESTALE
 *
 * The giver owns the block until numacre_take; from then on the taker owns the block. When the owner is killed, the
 * daemon frees the block, and a later take fails with -ESTALE. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <inttypes.h>
#include <numacre/numacre.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

struct message {
    numacre_ref ref;
    uint64_t text_bytes;
};

static int failed(const char *who, const char *call) {
    fprintf(stderr, "%s: %s: %s\n", who, call, numacre_last_error());
    return 1;
}

static int give(numacre_pool *pool, int peer) {
    static const char text[] = "no byte of this is copied";
    uint32_t client_id = 0;
    void *block = NULL;
    if (numacre_client_id(pool, &client_id) != 0) return failed("giver", "numacre_client_id");
    if (numacre_alloc(pool, sizeof text, &block) != 0) return failed("giver", "numacre_alloc");
    memcpy(block, text, sizeof text);
    const struct message message = {.ref = numacre_ref_of(pool, block), .text_bytes = strlen(text)};
    printf("giver, client %" PRIu32 ": wrote %" PRIu64 " bytes, passes reference %#" PRIx64 "\n", client_id,
           message.text_bytes, message.ref);
    fflush(stdout); /* before the taker prints */

    /* After the send the taker may own the block: from here on the code uses only the reference, never the address. */
    if (send(peer, &message, sizeof message, MSG_NOSIGNAL) < 0) perror("giver: send");
    char nothing;
    (void)!read(peer, &nothing, 1); /* returns when the taker has ended */

    /* A taker that ended too early has not taken the block. Then this take succeeds, and the block is freed here. */
    const int error = numacre_take(pool, message.ref, &block);
    if (error == 0) {
        fprintf(stderr, "giver: nobody took the block\n");
        return numacre_free(pool, block) == 0 ? 1 : failed("giver", "numacre_free");
    }
    if (error != -ESTALE) return failed("giver", "numacre_take");
    printf("giver, client %" PRIu32 ": the block was taken: my own take fails with -ESTALE\n", client_id);
    return 0;
}

static int take(numacre_pool *pool, const struct message *message) {
    uint32_t client_id = 0;
    void *block = NULL;
    if (numacre_client_id(pool, &client_id) != 0) return failed("taker", "numacre_client_id");
    if (numacre_take(pool, message->ref, &block) != 0) return failed("taker", "numacre_take");
    /* The address may differ from the giver's. The length comes from another process: check it before use. */
    if (message->text_bytes <= numacre_usable_size(pool, block))
        printf("taker, client %" PRIu32 ": read \"%.*s\"\n", client_id, (int)message->text_bytes, (const char *)block);
    return numacre_free(pool, block) == 0 ? 0 : failed("taker", "numacre_free");
}

static int be_giver(const char *pool_name, int peer) {
    numacre_pool *pool = NULL;
    if (numacre_attach(NULL, pool_name, &pool) != 0) return failed("giver", "numacre_attach");
    const int status = give(pool, peer);
    numacre_detach(pool);
    return status;
}

static int be_taker(const char *pool_name, int peer) {
    struct message message;
    numacre_pool *pool = NULL;
    if (read(peer, &message, sizeof message) != (ssize_t)sizeof message) return 1; /* the giver has said why */
    if (numacre_attach(NULL, pool_name, &pool) != 0) return failed("taker", "numacre_attach");
    const int status = take(pool, &message);
    numacre_detach(pool);
    return status;
}

int main(int argc, char **argv) {
    const char *const pool_name = argc > 1 ? argv[1] : "default";
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0) return perror("hand_over: socketpair"), 1;

    /* Fork first, then attach: a child does not inherit a handle (its calls on the parent's return -ECHILD). */
    const pid_t child = fork();
    if (child < 0) return perror("hand_over: fork"), 1;
    close(ends[child == 0 ? 0 : 1]);
    if (child == 0) return be_taker(pool_name, ends[1]);

    const int status = be_giver(pool_name, ends[0]);
    int taker_status = 0;
    close(ends[0]); /* a taker that still waits for a message ends */
    waitpid(child, &taker_status, 0);
    return status != 0 || taker_status != 0;
}
