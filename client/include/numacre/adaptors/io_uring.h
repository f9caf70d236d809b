/* io_uring on blocks of a pool: fixed buffers, rings of provided buffers, zero-copy sends. Header only, over liburing
 * 2.3 or newer, which the program includes and links (-luring). C11 or C++11, by gcc or clang.
 *
 *     #include <numacre/adaptors/io_uring.h>
 *     ...
 *     numacre_uring uring;
 *     error = numacre_uring_queue_init(&uring, 256, &ring, 0);             or io_uring_queue_init
 *     error = numacre_uring_register(&uring, &ring, pool, NULL);           the pool's memory as fixed buffers
 *     numacre_uring_prep_read(&uring, io_uring_get_sqe(&ring), fd, block, 4096, offset);          READ_FIXED
 *     ...
 *     error = numacre_uring_unregister(&uring);
 *
 * The owner of a block at each moment:
 *   allocated            the process
 *   read, write or send  the process, which must not free the block, hand it over, or change it before the request's
 *                        last completion (a zero-copy send: before numacre_uring_send_completed says so)
 *   in a provided ring   the process, which must not touch the block: the feeder has it, and the kernel writes into it
 *   numacre_uring_take   the process: the block is like any other, to be freed, or to be handed to another process by
 *                        its reference
 *
 * kill -9, at any instruction, with requests under way: a disk or a network card may write into, or read from, blocks
 * of the dead process for a while. numacre_uring_register pins the memory (numacre_pin), and the ring itself holds the
 * pin: the kernel lets go of it when the ring's last request has ended, also the last zero-copy send. Only then, and
 * 5 s later, the daemon gives the blocks to others. Blocks of a pool that is not registered have no such protection.
 *
 * Errors: 0 or a negative errno value, and a sentence in the `message` of the object: the wrong value and the remedy.
 * A message stays until the next failure of its object: no call that succeeds clears it.
 *
 * Threads: an object is used like its ring, by one thread at a time. numacre_uring_buffer_of and the numacre_uring_prep
 * functions only read a numacre_uring. Signal handlers must not call. Several rings may register one pool, each with
 * an object of its own; so may several pools one ring, with tables of the program's (NUMACRE_URING_TABLES).
 *
 * fork: a child has no mapping of the pool and must not use the objects. A child that keeps the ring's descriptor, or
 * the pin's, keeps the pin. Both are closed on exec. */
#ifndef NUMACRE_ADAPTORS_IO_URING_H
#define NUMACRE_ADAPTORS_IO_URING_H

#include <liburing.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "numacre/numacre.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The kernel's limits: a fixed buffer has at most 1 GiB, a ring at most 2^14 of them; a ring of provided buffers has
 * at most 2^15 entries. */
#define NUMACRE_URING_SLICE_MAX_BYTES ((uint64_t)1 << 30)
#define NUMACRE_URING_BUFFERS_MAX     16384u
#define NUMACRE_URING_ENTRIES_MAX     32768u

#define NUMACRE_URING_MESSAGE_BYTES 512 /* of a message, with the byte that ends it */

/* Flags of numacre_uring_options. */
#define NUMACRE_URING_TABLES 1u /* the ring has its tables of buffers and of files: use a part of them */
/* The ring does not hold the pin, and no file is registered. After a kill the blocks then come back 5 s after the
 * process's end, also if a request has not ended by then. */
#define NUMACRE_URING_NO_HOLD 2u

/* Flags of numacre_uring_feeder_options. */
#define NUMACRE_URING_RING_IN_POOL 1u /* the entries of the ring lie in a block of the pool, too */
#define NUMACRE_URING_WITH_REFS    2u /* blocks come with their references (numacre_alloc_ref_bulk) */

/* Options of numacre_uring_register. 0 is the default of each field. */
typedef struct {
    uint64_t numa_nodes;  /* bits: 1 << n is numa node n of the pool; 0: all */
    uint64_t size_bytes;  /* of each of them, from its first block on; 0: its capacity */
    uint64_t slice_bytes; /* the largest fixed buffer, up to 1 GiB; 0: 1 GiB */
    unsigned flags;       /* NUMACRE_URING_TABLES, NUMACRE_URING_NO_HOLD */
    /* With NUMACRE_URING_TABLES: the empty places of the ring's tables that this object may use. A place for each
     * slice; a file for each piece of online memory (one for each numa node, if no hole is in it). A place that has a
     * buffer or a file already is refused, as far as the kernel tells (/proc/self/fdinfo). */
    unsigned first_buffer;
    unsigned buffer_count;
    unsigned first_file;
    unsigned file_count;
} numacre_uring_options;

/* A part of a numa node's memory that no block straddles: a fixed buffer, as far as it is online. */
struct numacre_uring_slice {
    char *begin;
    uint64_t size_bytes;
    uint64_t online_bytes; /* from begin on: what is in front of the first offline block; registered */
};

/* A numa node whose memory is pinned and registered. */
struct numacre_uring_node {
    char *begin;
    uint64_t size_bytes;
    unsigned first_slice;
    unsigned slice_count;
};

/* A pool's memory in a ring. Programs read `message`, and nothing else. */
typedef struct {
    char message[NUMACRE_URING_MESSAGE_BYTES]; /* about the last failure; before the first, whatever was in *self */
    struct io_uring *ring;
    numacre_pool *pool;
    struct numacre_uring_node *nodes; /* NULL: nothing is registered */
    struct numacre_uring_slice *slices;
    int *pins; /* of each piece of online memory; -1 in a private pool */
    unsigned node_count;
    unsigned slice_count;
    unsigned pin_count;
    uint64_t slice_bytes; /* a multiple of the pool's largest block */
    uint64_t block_bytes; /* the pool's largest block */
    numacre_uring_options options;
    int has_table;              /* the ring has a table of buffers that this object made */
    unsigned registered_slices; /* the first so many slices are in the ring's table */
    unsigned held_pins;         /* the ring holds the first so many pins */
} numacre_uring;

/* A zero-copy send of a block, or of a part of one. The program fills in the first four fields; the others are 0. */
typedef struct {
    int fd;
    int flags; /* of send(2); MSG_NOSIGNAL and MSG_WAITALL are added */
    const char *data;
    unsigned size_bytes;
    unsigned sent_bytes;    /* out */
    int error;              /* out: 0 or a negative errno value */
    int is_plain;           /* the kernel or the socket has no zero-copy sends: IORING_OP_SEND */
    int is_under_way;       /* a completion with a result is still to come */
    unsigned notifications; /* completions that tell that the kernel has done with the block are still to come */
} numacre_uring_sending;

/* Results of numacre_uring_send_completed. */
#define NUMACRE_URING_PENDING 0 /* further completions come */
#define NUMACRE_URING_AGAIN   1 /* prepare the send again, for the rest */
#define NUMACRE_URING_DONE    2 /* the block is the program's again; `error` tells whether all was sent */

/* How to feed a ring of provided buffers. 0 is the default of each field that has one. */
typedef struct {
    unsigned group;       /* the buffer group's id, below 65536 */
    unsigned entries;     /* a power of two up to 32768 */
    uint64_t block_bytes; /* of each block, as numacre_alloc takes it; below 4 GiB */
    unsigned flags;       /* NUMACRE_URING_RING_IN_POOL, NUMACRE_URING_WITH_REFS */
} numacre_uring_feeder_options;

/* A ring of provided buffers that are blocks of a pool. Programs read `message`, `held` and `entries`. */
typedef struct {
    char message[NUMACRE_URING_MESSAGE_BYTES]; /* about the last failure */
    struct io_uring *ring;
    numacre_pool *pool;
    struct io_uring_buf_ring *buffers; /* NULL: closed */
    void **blocks;                     /* by buffer id: the block that is in the ring, or NULL */
    numacre_ref *refs;                 /* by buffer id; NULL without NUMACRE_URING_WITH_REFS */
    unsigned short *free_ids;          /* a stack */
    unsigned entries;
    unsigned held; /* blocks that the feeder has: in the ring, or in completions that were not taken yet */
    unsigned group;
    uint64_t block_bytes;
    uint64_t ring_bytes;
    unsigned flags;
} numacre_uring_feeder;

/* Private: stores a sentence and returns `error`. */
__attribute__((format(printf, 3, 4))) static inline int numacre_uring_fail(char *message, int error, const char *format,
                                                                           ...) {
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(message, NUMACRE_URING_MESSAGE_BYTES, format, arguments);
    va_end(arguments);
    return error;
}

/* Private: stores the library's sentence and returns `error`. */
static inline int numacre_uring_fail_as_library(char *message, int error, const char *call) {
    return numacre_uring_fail(message, error, "%s: %s", call, numacre_last_error());
}

/* Private: what forbids io_uring to this process. */
static inline const char *numacre_uring_forbidden_by(void) {
    FILE *const file = fopen("/proc/sys/kernel/io_uring_disabled", "re");
    const int value = file == NULL ? '0' : fgetc(file);
    if (file != NULL) (void)fclose(file);
    if (value == '2') return "kernel.io_uring_disabled is 2: set it to 0 (sysctl), or to 1 and use root";
    if (value == '1')
        return "kernel.io_uring_disabled is 1 and the process is neither privileged nor in the group "
               "kernel.io_uring_group: set it to 0 (sysctl), or join the group";
    return "a filter of system calls (seccomp) or a security module forbids it: allow io_uring_setup, io_uring_enter "
           "and io_uring_register in the container's or the unit's profile";
}

/* As io_uring_queue_init, and says why there is no ring. Clears *self, with its message. Enters the
 * kernel. If the caller is killed inside, nothing is left behind.
 * Errors: -ENOSYS a kernel without io_uring, or a filter that hides it; -EPERM forbidden by kernel.io_uring_disabled or
 * by a filter; -EINVAL entries 0 or above 32768, or flags that this kernel does not know; -EMFILE no descriptor left;
 * -ENOMEM. */
static inline int numacre_uring_queue_init(numacre_uring *self, unsigned entries, struct io_uring *ring,
                                           unsigned flags) {
    int error;
    memset(self, 0, sizeof *self);
    error = io_uring_queue_init(entries, ring, flags);
    if (error >= 0) return 0;
    if (error == -ENOSYS)
        return numacre_uring_fail(self->message, error,
                                  "no io_uring: the kernel has none, or a filter of system calls (seccomp) hides it: "
                                  "use Linux 5.19 or newer, and allow io_uring_setup, io_uring_enter and "
                                  "io_uring_register in the container's profile");
    if (error == -EPERM)
        return numacre_uring_fail(self->message, error, "no io_uring: %s", numacre_uring_forbidden_by());
    if (error == -EINVAL)
        return numacre_uring_fail(self->message, error,
                                  "no io_uring of %u entries with flags %#x: entries are 1 to 32768, and an older "
                                  "kernel knows fewer flags",
                                  entries, flags);
    if (error == -ENOMEM)
        return numacre_uring_fail(self->message, error,
                                  "no io_uring of %u entries: no memory, or (before Linux 5.12) above the limit of "
                                  "locked memory: ask for fewer entries, or raise it (ulimit -l)",
                                  entries);
    return numacre_uring_fail(self->message, error, "no io_uring of %u entries: %s", entries, strerror(-error));
}

/* Private. */
static inline int numacre_uring_fail_to_register(numacre_uring *self, unsigned slice, int error) {
    const struct numacre_uring_slice *const failed = &self->slices[slice];
    const unsigned buffer = self->options.first_buffer + slice;
    uint64_t before_bytes = 0;
    struct rlimit limit;
    unsigned i;
    for (i = 0; i < slice; ++i) before_bytes += self->slices[i].online_bytes;
    if (error == -ENOMEM && getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        return numacre_uring_fail(
            self->message, error,
            "fixed buffer %u: %llu bytes cannot be locked beside %llu: the limit of locked memory (RLIMIT_MEMLOCK) is "
            "%llu bytes: raise it (ulimit -l, LimitMEMLOCK= of the unit), or register less (size_bytes)",
            buffer, (unsigned long long)failed->online_bytes, (unsigned long long)before_bytes,
            (unsigned long long)limit.rlim_cur);
    if (error == -EINVAL || error == -ENXIO)
        return numacre_uring_fail(self->message, error,
                                  "fixed buffer %u: the ring's table of buffers has no such place: make one of %u "
                                  "(io_uring_register_buffers_sparse), or name another first_buffer",
                                  buffer, self->options.first_buffer + self->slice_count);
    if (error == -EFAULT)
        return numacre_uring_fail(self->message, error,
                                  "fixed buffer %u: a page of the %llu bytes at %p is missing: is the pool's memory "
                                  "punched by another process? Look at the daemon's log",
                                  buffer, (unsigned long long)failed->online_bytes, (void *)failed->begin);
    return numacre_uring_fail(self->message, error, "fixed buffer %u: %llu bytes at %p cannot be registered: %s",
                              buffer, (unsigned long long)failed->online_bytes, (void *)failed->begin,
                              strerror(-error));
}

/* Private: the fixed buffer of a slice: registers it, or with size_bytes 0 makes its place empty. */
static inline int numacre_uring_set_buffer(const numacre_uring *self, unsigned slice, uint64_t size_bytes) {
    struct iovec part;
    __u64 tag = 0;
    int count;
    part.iov_base = size_bytes == 0 ? NULL : self->slices[slice].begin;
    part.iov_len = (size_t)size_bytes;
    count = io_uring_register_buffers_update_tag(self->ring, self->options.first_buffer + slice, &part, &tag, 1);
    return count < 0 ? count : count == 1 ? 0 : -EFAULT;
}

/* Private: whether a line of fdinfo shows an empty place: "<none>", or the buffer that Linux before 6.13 puts there. */
static inline int numacre_uring_is_empty_place(const char *text) {
    return strncmp(text, "<none>", 6) == 0 || strncmp(text, "0xffffffffffffffff/", 19) == 0 ||
           strncmp(text, "0x0/", 4) == 0;
}

/* Private: the first of `count` places of a table of the ring ("UserFiles", "UserBufs") that is not empty. -1: none is,
 * or the kernel does not tell. The kernel's own calls replace what is there, without a word. */
static inline int numacre_uring_taken_place(const struct io_uring *ring, const char *table, unsigned first,
                                            unsigned count) {
    char path[64], line[256];
    const size_t length = strlen(table);
    int is_in_table = 0, is_begin = 1, taken = -1;
    FILE *file;
    (void)snprintf(path, sizeof path, "/proc/self/fdinfo/%d", ring->ring_fd);
    file = fopen(path, "re");
    if (file == NULL) return -1;
    while (taken < 0 && fgets(line, sizeof line, file) != NULL) {
        const int is_whole = is_begin; /* else the rest of a long line */
        char *end;
        unsigned long place;
        is_begin = strchr(line, '\n') != NULL;
        if (!is_whole) continue;
        if (line[0] != ' ' && (line[0] < '0' || line[0] > '9')) { /* a place of five digits begins with one */
            is_in_table = strncmp(line, table, length) == 0 && line[length] == ':';
            continue;
        }
        place = strtoul(line, &end, 10);
        if (!is_in_table || end == line || *end != ':') continue;
        end += strspn(end, ": ");
        if (place >= first && place - first < count && !numacre_uring_is_empty_place(end)) taken = (int)place;
    }
    (void)fclose(file);
    return taken;
}

/* Private: makes the ring's table of buffers, with empty places. */
static inline int numacre_uring_make_table(numacre_uring *self) {
    int error = io_uring_register_buffers_sparse(self->ring, self->slice_count);
    if (error == -EINVAL) { /* before Linux 5.19 */
        struct iovec *const none = (struct iovec *)calloc(self->slice_count, sizeof *none);
        if (none == NULL)
            return numacre_uring_fail(self->message, -ENOMEM, "no memory for %u slices", self->slice_count);
        error = io_uring_register_buffers(self->ring, none, self->slice_count);
        free(none);
    }
    if (error == -EBUSY)
        return numacre_uring_fail(self->message, error,
                                  "the ring has fixed buffers already: unregister them, or make one table for all "
                                  "(io_uring_register_buffers_sparse) and use NUMACRE_URING_TABLES");
    if (error < 0)
        return numacre_uring_fail(self->message, error, "no table of %u fixed buffers: %s", self->slice_count,
                                  strerror(-error));
    self->has_table = 1;
    return 0;
}

/* Private: pins the longest piece of online memory that begins at `begin`: *size_bytes of at most limit_bytes, whole
 * blocks. 0 bytes, without a pin: the first block is offline. */
static inline int numacre_uring_pin_piece(numacre_uring *self, char *begin, uint64_t limit_bytes, uint64_t *size_bytes,
                                          int *pin) {
    /* In blocks. The daemon pins what is online as a whole, so a piece can be looked for by halves. */
    uint64_t online = 0;
    uint64_t offline = (limit_bytes + self->block_bytes - 1) / self->block_bytes + 1;
    uint64_t wanted = offline - 1;
    *size_bytes = 0;
    *pin = -1;
    while (online + 1 < offline) {
        const uint64_t wanted_bytes =
            wanted * self->block_bytes < limit_bytes ? wanted * self->block_bytes : limit_bytes;
        int longer = -1;
        const int error = numacre_pin(self->pool, begin, (size_t)wanted_bytes, &longer);
        if (error == 0) {
            if (online != 0) (void)numacre_unpin(self->pool, *pin);
            *pin = longer;
            *size_bytes = wanted_bytes;
            online = wanted;
        } else if (error == -EINVAL || error == -EAGAIN) {
            offline = wanted;
        } else {
            if (online != 0) (void)numacre_unpin(self->pool, *pin);
            return numacre_uring_fail_as_library(self->message, error, "numacre_pin");
        }
        /* The first block next: most slices of a pool that may grow are offline as a whole. */
        wanted = online == 0 ? 1 : online + (offline - online) / 2;
    }
    return 0;
}

/* Private: pins the online memory of a numa node and notes in its slices how much of each is online. */
static inline int numacre_uring_pin_node(numacre_uring *self, const struct numacre_uring_node *node) {
    uint64_t at = 0;
    while (at < node->size_bytes) {
        uint64_t online_bytes;
        int pin;
        const int error = numacre_uring_pin_piece(self, node->begin + at, node->size_bytes - at, &online_bytes, &pin);
        if (error != 0) return error;
        if (online_bytes != 0) self->pins[self->pin_count++] = pin;
        /* The next piece begins with a slice. */
        do {
            struct numacre_uring_slice *const slice =
                &self->slices[node->first_slice + (unsigned)(at / self->slice_bytes)];
            slice->online_bytes = online_bytes < slice->size_bytes ? online_bytes : slice->size_bytes;
            online_bytes -= slice->online_bytes;
            at += slice->size_bytes;
        } while (online_bytes != 0);
    }
    return 0;
}

/* Private: has the ring hold the pins, so that they last as long as its requests, also after a kill. */
static inline int numacre_uring_hold_pins(numacre_uring *self) {
    int error;
    if ((self->options.flags & NUMACRE_URING_NO_HOLD) != 0 || self->pins[0] < 0) return 0;
    if ((self->options.flags & NUMACRE_URING_TABLES) != 0) {
        if (self->pin_count > self->options.file_count)
            return numacre_uring_fail(self->message, -EMFILE,
                                      "%u pins and %u places for files (file_count): name more, register less "
                                      "(size_bytes), or do without (NUMACRE_URING_NO_HOLD)",
                                      self->pin_count, self->options.file_count);
        error = numacre_uring_taken_place(self->ring, "UserFiles", self->options.first_file, self->pin_count);
        if (error >= 0)
            return numacre_uring_fail(self->message, -EBUSY,
                                      "place %d of the ring's table of files has a file already: name empty places "
                                      "(first_file %u, %u pins)",
                                      error, self->options.first_file, self->pin_count);
        error = io_uring_register_files_update(self->ring, self->options.first_file, self->pins, self->pin_count);
        if (error > 0) self->held_pins = (unsigned)error; /* a part of them, at least */
        if (error >= 0 && (unsigned)error != self->pin_count) error = -EINVAL;
    } else {
        error = io_uring_register_files(self->ring, self->pins, self->pin_count);
    }
    if (error == -EBUSY)
        return numacre_uring_fail(self->message, error,
                                  "the ring has files already: unregister them, make a table with %u places more and "
                                  "use NUMACRE_URING_TABLES, or do without (NUMACRE_URING_NO_HOLD)",
                                  self->pin_count);
    if (error < 0)
        return numacre_uring_fail(self->message, error, "the ring does not hold %u pins as its files %u ff.: %s",
                                  self->pin_count, self->options.first_file, strerror(-error));
    self->held_pins = self->pin_count;
    return 0;
}

/* Unregisters what numacre_uring_register has registered, and unpins it; before io_uring_queue_exit and before
 * numacre_detach. No request may use a block of the pool: from now on the blocks may move, and those of a process that
 * is killed are given to others. Does nothing if nothing is registered. Enters the kernel; Linux before 6.13 waits
 * for requests that use the buffers. If the caller is killed inside, the same happens by its end.
 * Errors: the first of the kernel or of numacre_unpin; all that can be undone is undone. */
static inline int numacre_uring_unregister(numacre_uring *self) {
    const int none = -1;
    int first_error = 0;
    int error;
    unsigned i;
    if (self->nodes == NULL) return 0;
    if (self->has_table) first_error = io_uring_unregister_buffers(self->ring);
    for (i = 0; !self->has_table && i < self->registered_slices; ++i) {
        error = self->slices[i].online_bytes == 0 ? 0 : numacre_uring_set_buffer(self, i, 0);
        if (first_error == 0) first_error = error;
    }
    if (self->held_pins != 0 && (self->options.flags & NUMACRE_URING_TABLES) == 0) {
        error = io_uring_unregister_files(self->ring);
        if (first_error == 0) first_error = error;
    }
    for (i = 0; (self->options.flags & NUMACRE_URING_TABLES) != 0 && i < self->held_pins; ++i) {
        error = io_uring_register_files_update(self->ring, self->options.first_file + i, &none, 1);
        if (first_error == 0 && error < 0) first_error = error;
    }
    if (first_error != 0)
        (void)numacre_uring_fail(self->message, first_error, "the ring's buffers or files cannot be unregistered: %s",
                                 strerror(-first_error));
    for (i = 0; i < self->pin_count; ++i) {
        error = numacre_unpin(self->pool, self->pins[i]);
        if (error != 0 && first_error == 0)
            first_error = numacre_uring_fail_as_library(self->message, error, "numacre_unpin");
    }
    free(self->nodes);
    free(self->slices);
    free(self->pins);
    self->nodes = NULL;
    self->slices = NULL;
    self->pins = NULL;
    self->node_count = self->slice_count = self->pin_count = self->registered_slices = self->held_pins = 0;
    self->has_table = 0;
    return first_error;
}

/* Private: the numa nodes that are asked for, and their slices. */
static inline int numacre_uring_cut(numacre_uring *self, const numacre_pool_info *info) {
    const uint64_t wanted = self->options.numa_nodes != 0 ? self->options.numa_nodes : ~(uint64_t)0;
    uint64_t slices = 0;
    unsigned node;
    unsigned i;
    for (node = 0; node < info->numa_nodes && node < 64; ++node) {
        struct numacre_uring_node *const next = &self->nodes[self->node_count];
        void *begin;
        size_t size_bytes;
        int error;
        if ((wanted >> node & 1) == 0) continue;
        error = numacre_region(self->pool, (int)node, &begin, &size_bytes);
        if (error != 0) return numacre_uring_fail_as_library(self->message, error, "numacre_region");
        next->begin = (char *)begin;
        next->size_bytes = size_bytes;
        if (self->options.size_bytes != 0 && self->options.size_bytes < size_bytes)
            next->size_bytes = self->options.size_bytes / self->block_bytes * self->block_bytes;
        next->first_slice = (unsigned)slices;
        slices += (next->size_bytes + self->slice_bytes - 1) / self->slice_bytes;
        if (slices > NUMACRE_URING_BUFFERS_MAX)
            return numacre_uring_fail(self->message, -E2BIG,
                                      "more than %u fixed buffers of %llu bytes: use larger ones (slice_bytes, up to "
                                      "1 GiB), or register less (size_bytes, numa_nodes)",
                                      NUMACRE_URING_BUFFERS_MAX, (unsigned long long)self->slice_bytes);
        next->slice_count = (unsigned)slices - next->first_slice;
        self->node_count++;
    }
    if (slices == 0)
        return numacre_uring_fail(self->message, -EINVAL,
                                  "nothing to register: size_bytes %llu is less than the largest block (%llu bytes), "
                                  "or the pool has none of the numa nodes %#llx (it has 0 to %u)",
                                  (unsigned long long)self->options.size_bytes, (unsigned long long)self->block_bytes,
                                  (unsigned long long)self->options.numa_nodes, info->numa_nodes - 1);
    if ((self->options.flags & NUMACRE_URING_TABLES) != 0 && slices > self->options.buffer_count)
        return numacre_uring_fail(self->message, -E2BIG,
                                  "%llu slices of at most %llu bytes and %u places for buffers (buffer_count): name "
                                  "more, use larger slices (up to 1 GiB), or register less (size_bytes, numa_nodes)",
                                  (unsigned long long)slices, (unsigned long long)self->slice_bytes,
                                  self->options.buffer_count);
    self->slices = (struct numacre_uring_slice *)calloc((size_t)slices, sizeof *self->slices);
    self->pins = (int *)calloc((size_t)slices, sizeof *self->pins);
    if (self->slices == NULL || self->pins == NULL)
        return numacre_uring_fail(self->message, -ENOMEM, "no memory for %llu slices", (unsigned long long)slices);
    self->slice_count = (unsigned)slices;
    for (node = 0; node < self->node_count; ++node)
        for (i = 0; i < self->nodes[node].slice_count; ++i) {
            struct numacre_uring_slice *const slice = &self->slices[self->nodes[node].first_slice + i];
            const uint64_t left = self->nodes[node].size_bytes - i * self->slice_bytes;
            slice->begin = self->nodes[node].begin + i * self->slice_bytes;
            slice->size_bytes = left < self->slice_bytes ? left : self->slice_bytes;
        }
    return 0;
}

/* Private: numacre_uring_register(), after which a failure is undone. */
static inline int numacre_uring_begin(numacre_uring *self) {
    numacre_pool_info info;
    const uint64_t slice_bytes =
        self->options.slice_bytes != 0 ? self->options.slice_bytes : NUMACRE_URING_SLICE_MAX_BYTES;
    unsigned i;
    int error;
    memset(&info, 0, sizeof info);
    info.struct_size = sizeof info;
    error = numacre_get_info(self->pool, &info);
    if (error != 0) return numacre_uring_fail_as_library(self->message, error, "numacre_get_info");
    self->block_bytes = info.largest_block_bytes;
    if (slice_bytes < self->block_bytes || slice_bytes > NUMACRE_URING_SLICE_MAX_BYTES)
        return numacre_uring_fail(self->message, -EINVAL,
                                  "slice_bytes %llu is not within the pool's largest block (%llu bytes) and 1 GiB: 0 "
                                  "is the default",
                                  (unsigned long long)slice_bytes, (unsigned long long)self->block_bytes);
    /* The region begins with a block of the largest size, and no block crosses a multiple of that size. */
    self->slice_bytes = slice_bytes / self->block_bytes * self->block_bytes;
    self->nodes = (struct numacre_uring_node *)calloc(info.numa_nodes, sizeof *self->nodes);
    if (self->nodes == NULL)
        return numacre_uring_fail(self->message, -ENOMEM, "no memory for %u numa nodes", info.numa_nodes);
    error = numacre_uring_cut(self, &info);
    for (i = 0; error == 0 && i < self->node_count; ++i) error = numacre_uring_pin_node(self, &self->nodes[i]);
    if (error != 0) return error;
    if (self->pin_count == 0)
        return numacre_uring_fail(self->message, -ENODATA, "no slice of the pool begins with online memory: %s",
                                  numacre_last_error());
    if ((self->options.flags & NUMACRE_URING_TABLES) != 0) {
        error = numacre_uring_taken_place(self->ring, "UserBufs", self->options.first_buffer, self->slice_count);
        if (error >= 0)
            return numacre_uring_fail(self->message, -EBUSY,
                                      "place %d of the ring's table of buffers has a buffer already: name empty places "
                                      "(first_buffer %u, %u slices)",
                                      error, self->options.first_buffer, self->slice_count);
    }
    error = numacre_uring_hold_pins(self);
    if (error == 0 && (self->options.flags & NUMACRE_URING_TABLES) == 0) error = numacre_uring_make_table(self);
    for (i = 0; error == 0 && i < self->slice_count; ++i) {
        if (self->slices[i].online_bytes != 0) error = numacre_uring_set_buffer(self, i, self->slices[i].online_bytes);
        if (error != 0) return numacre_uring_fail_to_register(self, i, error);
        self->registered_slices = i + 1;
    }
    return error;
}

/* Private: clears *self, but for the message, which only has to end somewhere: it may be of an earlier failure. */
static inline void numacre_uring_clear(numacre_uring *self) {
    const size_t kept = offsetof(numacre_uring, ring);
    memset((char *)self + kept, 0, sizeof *self - kept);
    self->message[sizeof self->message - 1] = 0;
}

/* Pins the online memory of a pool (numacre_pin) and registers it as fixed buffers of the ring, in slices.
 *
 * Slices: slice i of a numa node begins at i * slice_bytes from its first block; slice_bytes is options->slice_bytes
 * (1 GiB at most) rounded down to a multiple of the pool's largest block. So no block lies in two slices; a run
 * (numacre_alloc_run) may. Of each slice the memory in front of its first offline block is registered. Memory that
 * comes online later is not: register again, when NUMACRE_EVENT_RESIZED tells. Blocks outside are read and written by
 * the plain requests; numacre_uring_prep_... choose.
 *
 * The memory stays where it is until numacre_uring_unregister: a shrink or drain of it is refused. The ring holds the
 * pins in a table of files that this call makes (see NUMACRE_URING_TABLES, NUMACRE_URING_NO_HOLD).
 *
 * options NULL: all defaults. *self: cleared by the call, but for `message`; unregister it before, if it is registered:
 * a second registration fails with -EBUSY, and the first one lasts as long as the ring. The ring and the pool outlive
 * the registration. Asks the daemon and enters the kernel; takes about as long as it takes to walk over all pages. Not
 * thread-safe for one ring. If the caller is killed inside, everything is undone by its end.
 * Errors, after which nothing is registered: -ENOMEM above RLIMIT_MEMLOCK (for processes without CAP_IPC_LOCK), or no
 * memory; -EBUSY the ring has buffers or files already, or a place that is named has one; -E2BIG more slices than the
 * ring may have (16384) or than buffer_count; -EMFILE more pins than file_count; -EINVAL bad options; -ENODATA nothing
 * is online; -EFAULT a page is missing; those of numacre_pin. */
static inline int numacre_uring_register(numacre_uring *self, struct io_uring *ring, numacre_pool *pool,
                                         const numacre_uring_options *options) {
    char message[sizeof self->message];
    int error;
    numacre_uring_clear(self);
    self->ring = ring;
    self->pool = pool;
    if (options != NULL) self->options = *options;
    if ((self->options.flags & ~(NUMACRE_URING_TABLES | NUMACRE_URING_NO_HOLD)) != 0)
        return numacre_uring_fail(self->message, -EINVAL, "unknown flags %#x", self->options.flags);
    if ((self->options.flags & NUMACRE_URING_TABLES) == 0 && (self->options.first_buffer | self->options.buffer_count |
                                                              self->options.first_file | self->options.file_count) != 0)
        return numacre_uring_fail(self->message, -EINVAL,
                                  "first_buffer, buffer_count, first_file and file_count are for NUMACRE_URING_TABLES");
    error = numacre_uring_begin(self);
    if (error == 0) return 0;
    memcpy(message, self->message, sizeof message);
    (void)numacre_uring_unregister(self);
    memcpy(self->message, message, sizeof message);
    return error;
}

/* Returns the fixed buffer that has all of [address, address + size_bytes), as IORING_OP_READ_FIXED and its kin take
 * it (buf_index). Returns -1 if there is none, or *self has nothing registered. Never blocks. */
static inline int numacre_uring_buffer_of(const numacre_uring *self, const void *address, uint64_t size_bytes) {
    unsigned i;
    for (i = 0; i < self->node_count; ++i) {
        const struct numacre_uring_node *const node = &self->nodes[i];
        const uint64_t offset = (uint64_t)((uintptr_t)address - (uintptr_t)node->begin);
        if (offset < node->size_bytes) {
            const unsigned slice = node->first_slice + (unsigned)(offset / self->slice_bytes);
            const uint64_t in_slice = offset % self->slice_bytes;
            const uint64_t online_bytes = self->slices[slice].online_bytes;
            return size_bytes <= online_bytes && in_slice <= online_bytes - size_bytes
                       ? (int)(self->options.first_buffer + slice)
                       : -1;
        }
    }
    return -1;
}

/* Prepares a read of a file into a block, or into a part of one: READ_FIXED if the memory is registered, else READ.
 * Returns 1 for READ_FIXED. The block is the kernel's until the completion. Sets neither user_data nor flags of the
 * request. */
static inline int numacre_uring_prep_read(const numacre_uring *self, struct io_uring_sqe *sqe, int fd, void *block,
                                          unsigned size_bytes, uint64_t file_offset) {
    const int buffer = numacre_uring_buffer_of(self, block, size_bytes);
    if (buffer < 0)
        io_uring_prep_read(sqe, fd, block, size_bytes, file_offset);
    else
        io_uring_prep_read_fixed(sqe, fd, block, size_bytes, file_offset, buffer);
    return buffer >= 0;
}

/* Prepares a write of a block to a file: WRITE_FIXED or WRITE, as numacre_uring_prep_read. The block must not change
 * until the completion. */
static inline int numacre_uring_prep_write(const numacre_uring *self, struct io_uring_sqe *sqe, int fd,
                                           const void *block, unsigned size_bytes, uint64_t file_offset) {
    const int buffer = numacre_uring_buffer_of(self, block, size_bytes);
    if (buffer < 0)
        io_uring_prep_write(sqe, fd, block, size_bytes, file_offset);
    else
        io_uring_prep_write_fixed(sqe, fd, block, size_bytes, file_offset, buffer);
    return buffer >= 0;
}

/* Prepares a send of what is left of *sending: SEND_ZC, from a fixed buffer if the memory is registered, else SEND
 * (is_plain). The program gives the request a user_data by which it finds *sending again, and must not change, free or
 * hand over the block until numacre_uring_send_completed returns NUMACRE_URING_DONE. To keep the order of a stream,
 * have one send under way on a socket. */
static inline void numacre_uring_prep_send(const numacre_uring *self, struct io_uring_sqe *sqe,
                                           numacre_uring_sending *sending) {
    const char *const data = sending->data + sending->sent_bytes;
    const unsigned left_bytes = sending->size_bytes - sending->sent_bytes;
    const int flags = sending->flags | MSG_NOSIGNAL | MSG_WAITALL;
    const int buffer = sending->is_plain ? -1 : numacre_uring_buffer_of(self, data, left_bytes);
    if (sending->is_plain)
        io_uring_prep_send(sqe, sending->fd, data, left_bytes, flags);
    else if (buffer < 0)
        io_uring_prep_send_zc(sqe, sending->fd, data, left_bytes, flags, 0);
    else
        io_uring_prep_send_zc_fixed(sqe, sending->fd, data, left_bytes, flags, 0, (unsigned)buffer);
    sending->is_under_way = 1;
}

/* Takes note of a completion of *sending. A zero-copy send has two: the result, and the notification that the kernel
 * (the network card, the peer) has done with the block, which may be much later. Returns NUMACRE_URING_PENDING,
 * NUMACRE_URING_AGAIN (a part was sent; or the kernel, the socket or a limit does not do zero-copy sends, and the next
 * one is plain) or NUMACRE_URING_DONE: the block is the program's again, and sending->error tells of the send.
 * After NUMACRE_URING_AGAIN, prepare the send again before the next completion is looked at. To give up instead, set
 * sending->error; the block is the program's again at once if sending->notifications is 0, else at
 * NUMACRE_URING_DONE. */
static inline int numacre_uring_send_completed(numacre_uring_sending *sending, const struct io_uring_cqe *cqe) {
    if ((cqe->flags & IORING_CQE_F_NOTIF) != 0) {
        sending->notifications--;
    } else {
        const int could_do_without =
            cqe->res == -EINVAL || cqe->res == -EOPNOTSUPP || cqe->res == -ENOMEM || cqe->res == -ENOBUFS;
        sending->is_under_way = 0;
        if ((cqe->flags & IORING_CQE_F_MORE) != 0) sending->notifications++;
        if (cqe->res < 0 && could_do_without && !sending->is_plain) {
            sending->is_plain = 1;
            return NUMACRE_URING_AGAIN;
        }
        if (cqe->res < 0)
            sending->error = cqe->res;
        else if (cqe->res == 0 && sending->sent_bytes < sending->size_bytes)
            sending->error = -EPIPE;
        else
            sending->sent_bytes += (unsigned)cqe->res;
        if (sending->error == 0 && sending->sent_bytes < sending->size_bytes) return NUMACRE_URING_AGAIN;
    }
    return sending->is_under_way || sending->notifications != 0 ? NUMACRE_URING_PENDING : NUMACRE_URING_DONE;
}

/* Private: frees what the feeder has but for blocks in the ring. */
static inline void numacre_uring_feeder_forget(numacre_uring_feeder *self) {
    if (self->buffers != NULL && (self->flags & NUMACRE_URING_RING_IN_POOL) != 0)
        (void)numacre_free(self->pool, self->buffers);
    else if (self->buffers != NULL)
        (void)munmap(self->buffers, (size_t)self->ring_bytes);
    free((void *)self->blocks);
    free(self->refs);
    free(self->free_ids);
    self->buffers = NULL;
    self->blocks = NULL;
    self->refs = NULL;
    self->free_ids = NULL;
    /* A feeder that is closed has no place to feed, and no completion is of it. */
    self->entries = self->held = 0;
}

/* Private: memory for the entries of the ring, a whole number of pages, filled with zeros. */
static inline int numacre_uring_feeder_make_ring(numacre_uring_feeder *self) {
    const uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
    void *memory;
    self->ring_bytes = (self->entries * sizeof(struct io_uring_buf) + page_bytes - 1) / page_bytes * page_bytes;
    if ((self->flags & NUMACRE_URING_RING_IN_POOL) != 0) {
        const int error = numacre_alloc(self->pool, (size_t)self->ring_bytes, &memory);
        if (error != 0) return numacre_uring_fail_as_library(self->message, error, "numacre_alloc of the ring");
        if ((uintptr_t)memory % page_bytes != 0) {
            (void)numacre_free(self->pool, memory);
            return numacre_uring_fail(self->message, -EINVAL,
                                      "blocks of the pool begin inside pages, which the kernel does not take for a "
                                      "ring: do without NUMACRE_URING_RING_IN_POOL");
        }
        memset(memory, 0, (size_t)self->ring_bytes);
    } else {
        memory = mmap(NULL, (size_t)self->ring_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED)
            return numacre_uring_fail(self->message, -ENOMEM, "no memory for a ring of %u entries", self->entries);
        /* A child has no use for it, and a page that is shared with a child would be copied at the next feed. */
        (void)madvise(memory, (size_t)self->ring_bytes, MADV_DONTFORK);
    }
    self->buffers = (struct io_uring_buf_ring *)memory;
    return 0;
}

/* Private: numacre_uring_feeder_open(), after which a failure is undone. */
static inline int numacre_uring_feeder_begin(numacre_uring_feeder *self) {
    struct io_uring_buf_reg registration;
    unsigned i;
    int error;
    self->blocks = (void **)calloc(self->entries, sizeof *self->blocks);
    self->free_ids = (unsigned short *)calloc(self->entries, sizeof *self->free_ids);
    if ((self->flags & NUMACRE_URING_WITH_REFS) != 0)
        self->refs = (numacre_ref *)calloc(self->entries, sizeof *self->refs);
    if (self->blocks == NULL || self->free_ids == NULL ||
        (self->refs == NULL && (self->flags & NUMACRE_URING_WITH_REFS) != 0))
        return numacre_uring_fail(self->message, -ENOMEM, "no memory for a feeder of %u entries", self->entries);
    for (i = 0; i < self->entries; ++i) self->free_ids[i] = (unsigned short)(self->entries - 1 - i);
    error = numacre_uring_feeder_make_ring(self);
    if (error != 0) return error;
    memset(&registration, 0, sizeof registration);
    registration.ring_addr = (uint64_t)(uintptr_t)self->buffers;
    registration.ring_entries = self->entries;
    registration.bgid = (__u16)self->group;
    error = io_uring_register_buf_ring(self->ring, &registration, 0);
    if (error == -EEXIST)
        return numacre_uring_fail(self->message, error, "the ring has a buffer group %u already: use another id",
                                  self->group);
    if (error == -EINVAL)
        return numacre_uring_fail(self->message, error,
                                  "the kernel has no rings of provided buffers, or does not take group %u of %u "
                                  "entries: use Linux 5.19 or newer",
                                  self->group, self->entries);
    if (error < 0)
        return numacre_uring_fail(self->message, error, "buffer group %u of %u entries cannot be registered: %s",
                                  self->group, self->entries, strerror(-error));
    return 0;
}

/* Makes a ring of provided buffers (a buffer group of `ring`) for blocks of options->block_bytes, and leaves it empty:
 * numacre_uring_feed fills it. Needs Linux 5.19. Register the pool as well (numacre_uring_register) if requests of the
 * group can outlive the process (reads of a disk with O_DIRECT). *self: cleared by the call; the ring and the
 * pool outlive the feeder. Enters the kernel. If the caller is killed inside, everything comes back.
 * Errors, after which nothing is left: -EINVAL bad options, no such rings in this kernel, or NUMACRE_URING_RING_IN_POOL
 * in a pool whose blocks begin inside pages; -EEXIST the ring has that group; -ENOMEM; those of numacre_alloc with
 * NUMACRE_URING_RING_IN_POOL. */
static inline int numacre_uring_feeder_open(numacre_uring_feeder *self, struct io_uring *ring, numacre_pool *pool,
                                            const numacre_uring_feeder_options *options) {
    int error;
    memset(self, 0, sizeof *self);
    if (options == NULL || options->entries == 0 || options->entries > NUMACRE_URING_ENTRIES_MAX ||
        (options->entries & (options->entries - 1)) != 0 || options->group > 65535)
        return numacre_uring_fail(
            self->message, -EINVAL, "entries %u is no power of two from 1 to %u, or group %u is not below 65536",
            options == NULL ? 0 : options->entries, NUMACRE_URING_ENTRIES_MAX, options == NULL ? 0 : options->group);
    if (options->block_bytes == 0 || options->block_bytes > UINT32_MAX ||
        (options->flags & ~(NUMACRE_URING_RING_IN_POOL | NUMACRE_URING_WITH_REFS)) != 0)
        return numacre_uring_fail(self->message, -EINVAL,
                                  "block_bytes %llu is not within 1 and 4 GiB - 1, or flags %#x are unknown",
                                  (unsigned long long)options->block_bytes, options->flags);
    self->ring = ring;
    self->pool = pool;
    self->entries = options->entries;
    self->group = options->group;
    self->block_bytes = options->block_bytes;
    self->flags = options->flags;
    error = numacre_uring_feeder_begin(self);
    if (error != 0) numacre_uring_feeder_forget(self);
    return error;
}

/* Private: puts new blocks into the ring. */
static inline void numacre_uring_feeder_put(numacre_uring_feeder *self, void *const *blocks, const numacre_ref *refs,
                                            unsigned count) {
    unsigned i;
    for (i = 0; i < count; ++i) {
        const unsigned short id = self->free_ids[self->entries - self->held - 1];
        self->held++;
        self->blocks[id] = blocks[i];
        if (self->refs != NULL) self->refs[id] = refs[i];
        io_uring_buf_ring_add(self->buffers, blocks[i], (unsigned)self->block_bytes, id,
                              io_uring_buf_ring_mask(self->entries), (int)i);
    }
    /* The kernel reads the entries behind this store. */
    io_uring_buf_ring_advance(self->buffers, (int)count);
}

#define NUMACRE_URING_FEED_BURST 128u /* numacre_alloc_bulk enters the kernel for more */

/* Fills the ring's free places with new blocks, and returns how many it has put in: fewer than there are places if
 * memory is short, and none if the feeder is closed. Call it after completions were taken, and when a request has ended
 * with -ENOBUFS (the ring was empty): feed, then prepare the request again. -ENOMEM and -EDQUOT while the feeder still
 * holds blocks (held) are no reason to stop: go on with what is in the ring, and feed again later.
 * flags: 0; or NUMACRE_WAIT, NUMACRE_WAIT_MS(ms): if there is no memory and the feeder holds no block, waits for one.
 * Enters the kernel as numacre_alloc_bulk, and to wait. If the caller is killed inside, the blocks come back.
 * Errors, when no block was put in and there is a free place: those of numacre_alloc and, with flags, of
 * numacre_alloc_on. */
static inline int numacre_uring_feed(numacre_uring_feeder *self, unsigned flags) {
    void *blocks[NUMACRE_URING_FEED_BURST];
    numacre_ref refs[NUMACRE_URING_FEED_BURST];
    unsigned burst = NUMACRE_URING_FEED_BURST;
    unsigned put = 0;
    int error = 0;
    while (self->held < self->entries && burst != 0) {
        const unsigned places = self->entries - self->held;
        const unsigned count = places < burst ? places : burst;
        if (self->refs != NULL)
            error = numacre_alloc_ref_bulk(self->pool, (size_t)self->block_bytes, blocks, refs, count);
        else
            error = numacre_alloc_bulk(self->pool, (size_t)self->block_bytes, blocks, count);
        if (error == 0) {
            numacre_uring_feeder_put(self, blocks, refs, count);
            put += count;
        } else if (error == -ENOMEM || error == -EDQUOT) {
            burst = count / 2; /* all or none: perhaps half of them */
        } else {
            burst = 0;
        }
    }
    if (put != 0 || error == 0) return (int)put;
    if (error == -ENOMEM && self->held == 0 && (flags & NUMACRE_WAIT) != 0) {
        error = numacre_alloc_on(self->pool, -1, (size_t)self->block_bytes, flags, &blocks[0]);
        if (error == 0 && self->refs != NULL) {
            refs[0] = numacre_ref_of(self->pool, blocks[0]);
            if (refs[0] == NUMACRE_REF_NULL) {
                (void)numacre_free(self->pool, blocks[0]);
                error = -EPERM;
            }
        }
        if (error == 0) {
            numacre_uring_feeder_put(self, blocks, refs, 1);
            return 1;
        }
    }
    return numacre_uring_fail_as_library(self->message, error, "feed");
}

/* Prepares a receive that goes on until it fails, the peer closes, or the ring is empty (-ENOBUFS), with a completion
 * for each block that it has filled (multishot, Linux 6.0). A completion without IORING_CQE_F_MORE in its flags is the
 * request's last: prepare it again if the connection goes on. user_data is the program's. Do not add
 * IORING_RECVSEND_BUNDLE (Linux 6.10): a completion of a bundle stands for several blocks and names only the first. */
static inline void numacre_uring_prep_recv_multishot(const numacre_uring_feeder *self, struct io_uring_sqe *sqe,
                                                     int fd) {
    io_uring_prep_recv_multishot(sqe, fd, NULL, 0, 0);
    sqe->flags |= IOSQE_BUFFER_SELECT;
    sqe->buf_group = (__u16)self->group;
}

/* Returns the block of a completion of the feeder's group, and gives it to the caller; its place in the ring is free
 * for numacre_uring_feed. Returns NULL if the completion has none (an error, the end of a connection), or if it was
 * taken already, or if the feeder is closed. Look at every completion: one with a result of 0 or an error may have a
 * block as well. cqe->res bytes of the block were written. Each completion has one block at most, so requests of the
 * group must not be bundles (IORING_RECVSEND_BUNDLE): the other blocks of a bundle would never be given back. Never
 * blocks. */
static inline void *numacre_uring_take(numacre_uring_feeder *self, const struct io_uring_cqe *cqe) {
    const unsigned id = cqe->flags >> IORING_CQE_BUFFER_SHIFT;
    void *block;
    if ((cqe->flags & IORING_CQE_F_BUFFER) == 0 || id >= self->entries) return NULL;
    block = self->blocks[id];
    if (block == NULL) return NULL;
    self->blocks[id] = NULL;
    self->held--;
    self->free_ids[self->entries - self->held - 1] = (unsigned short)id;
    return block;
}

/* Takes the blocks of `count` completions as numacre_uring_take, and stores their references, to be passed to other
 * processes (numacre_take_bulk). With NUMACRE_URING_WITH_REFS the references are there already, else this is
 * numacre_ref_bulk. Entry i belongs to cqes[i]: NULL and NUMACRE_REF_NULL for a completion without a block. Returns how
 * many blocks it has taken. The channel that passes the references has to synchronise, as numacre_ref_of says. Never
 * blocks.
 * A block beside NUMACRE_REF_NULL is the caller's as well; numacre_last_error says why it has no reference. */
static inline unsigned numacre_uring_take_refs(numacre_uring_feeder *self, struct io_uring_cqe *const *cqes,
                                               unsigned count, void **blocks, numacre_ref *refs) {
    unsigned taken = 0;
    unsigned i;
    for (i = 0; i < count; ++i) {
        blocks[i] = numacre_uring_take(self, cqes[i]);
        if (blocks[i] == NULL)
            refs[i] = NUMACRE_REF_NULL;
        else if (self->refs != NULL)
            refs[i] = self->refs[cqes[i]->flags >> IORING_CQE_BUFFER_SHIFT];
        else
            refs[i] = numacre_ref_of(self->pool, blocks[i]);
        taken += blocks[i] != NULL;
    }
    return taken;
}

/* As struct io_uring_buf_status and IORING_REGISTER_PBUF_STATUS of newer headers. */
struct numacre_uring_group_status {
    uint32_t group;
    uint32_t head; /* out: how many entries the kernel has used, modulo 2^16 */
    uint32_t reserved[8];
};
#define NUMACRE_URING_REGISTER_PBUF_STATUS 26u

/* Unregisters the ring of provided buffers and frees the blocks in it. Before, end the requests of the group (cancel
 * them, or shut their sockets down) and take the completions: a block that a request has picked is not in the ring any
 * more, and the kernel may be writing into it. Before io_uring_queue_exit. Does nothing if the feeder is closed. Enters
 * the kernel.
 * Errors: -EBUSY requests have picked blocks whose completions were not taken: nothing has changed, take them and close
 * again. This is advice, and no lock: Linux before 6.8 does not tell, and a request that is still there may pick a
 * block right after the look; the kernel would then write into a block that is free. That no request is left is the
 * caller's to know. The kernel's errors; those of numacre_free, after which the feeder is closed all the same. */
static inline int numacre_uring_feeder_close(numacre_uring_feeder *self) {
    struct numacre_uring_group_status status;
    int first_error;
    unsigned i;
    if (self->buffers == NULL) return 0;
    memset(&status, 0, sizeof status);
    status.group = self->group;
    if (io_uring_register((unsigned)self->ring->ring_fd, NUMACRE_URING_REGISTER_PBUF_STATUS, &status, 1) == 0) {
        const unsigned in_ring = (unsigned short)(self->buffers->tail - status.head);
        if (in_ring < self->held)
            return numacre_uring_fail(self->message, -EBUSY,
                                      "%u blocks of buffer group %u are with requests: end them (cancel), take their "
                                      "completions, then close again",
                                      self->held - in_ring, self->group);
    }
    first_error = io_uring_unregister_buf_ring(self->ring, (int)self->group);
    if (first_error < 0)
        return numacre_uring_fail(self->message, first_error, "buffer group %u cannot be unregistered: %s", self->group,
                                  strerror(-first_error));
    first_error = 0;
    for (i = 0; i < self->entries; ++i) {
        const int error = self->blocks[i] == NULL ? 0 : numacre_free(self->pool, self->blocks[i]);
        if (error != 0 && first_error == 0)
            first_error = numacre_uring_fail_as_library(self->message, error, "numacre_free");
    }
    numacre_uring_feeder_forget(self);
    return first_error;
}

#ifdef __cplusplus
}
#endif

#endif
