/* numacre: share hugepage memory between the processes of one machine.
 *
 * Attach once to a pool that numacred serves, then allocate and free in-process: no lock, no system call, and nothing
 * is lost when a process is killed at any instruction.
 *
 * Every function returns 0 or a negative errno value unless it says otherwise; results come through the last pointer
 * and are untouched on failure. numacre_last_error() has a sentence for the calling thread's last failure: what was
 * wrong, with the value, and what to do.
 *
 * Threads: every function may be called from any thread at any time, but not on a pool that another thread is
 * detaching. No thread has to register. No call is a cancellation point: pthread_cancel takes effect after it. A thread
 * whose cancellation is asynchronous (PTHREAD_CANCEL_ASYNCHRONOUS) must not call. dlclose: the library stays loaded,
 * for threads that have used it run its code as they end, with all signals blocked but those that their own
 * instructions raise.
 *
 * Signals: a handler may call the library as follows, if no trace is recorded (NUMACRE_TRACE) and a call of its thread
 * on the handle has succeeded before. It may make any call but numacre_attach, numacre_open_private, numacre_detach and
 * numacre_event_fd on a handle that is used in that handler only; two handlers that share it must not interrupt each
 * other (sa_mask). On a handle that the interrupted code may be using it may call numacre_free_uncached, numacre_take,
 * numacre_ref_of, numacre_usable_size, numacre_client_id and numacre_events, and nothing else: the caches of threads
 * are not protected against their own signal handlers, and a block might be lost, or handed out twice. Where a call
 * would have to change the pool's memory while its own thread is in the middle of such a change, it returns -EBUSY and
 * has done nothing: call again when the handler has returned. A handler whose call fails leaves its own sentence in
 * numacre_last_error(). While its thread ends, a handler's call is refused by -EBUSY, in a child that the handler forks
 * as well; once the library's part of that is over (its destructor, by pthread_key_create), handlers of signals that
 * cannot be blocked (SIGTRAP, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGSYS) must not call any more.
 *
 * siglongjmp: a handler may leave a call of its thread that has fallen asleep for want of memory (NUMACRE_WAIT) by
 * siglongjmp, if numacre_is_asleep says so. Once such a call has begun to wait, handlers run while it sleeps and at no
 * other time. The wish ends with the thread's next allocation that finds nothing free or waits, with its first call a
 * second later (in a private pool: not by that), or with the thread; until then a block that the thread is given stays
 * with it. To leave any other call in that way, or by pthread_exit in a handler, is a mistake: what the thread had in
 * its hands or in its cache, and its thread slot, then stay taken until the process ends or detaches, and its calls may
 * return -EBUSY or crash.
 *
 * fork: the child does not inherit the mapping. Every call on an inherited handle returns -ECHILD; attach again there.
 * A child of fork() of libc closes the inherited connections at once. A child of a raw fork (the system call, clone
 * without CLONE_VM, _Fork) closes them at its first call: until then, or its end, it keeps what a parent held that has
 * called exec. Of a parent with several threads, such a child may not attach: libc's malloc may be locked in it for
 * ever. A child of vfork, or of clone with CLONE_VM and without CLONE_THREAD, has the pool mapped and no record of its
 * own. Such a child must not call the library, nor attach: it would use its parent's thread slot, and if it were killed
 * in the middle of a call, the parent's thread would get -EBUSY from then on; a handle that it has attached is its own
 * seat's, which somebody else gets when the child has ended. When the process that attached has ended, its blocks are
 * given to others, and the child may then write into theirs: end the child first.
 *
 * Environment variables are ignored in a set-user-id or set-group-id program, or one with file capabilities.
 *
 * NUMACRE_TRACE=FILE in the environment records every allocation of the process in FILE (FILE.PID if that exists), for
 * `numacre bench replay`. Every call then enters the kernel and takes a lock of the process. A file that cannot be made
 * fails numacre_attach and numacre_open_private with -EINVAL.
 *
 * NUMACRE_CHECK_FREES=1 in the environment finds a block that two threads free at the same moment: one of them gets
 * -ESTALE, or -EPERM or -EINVAL if another process has the block, or a larger one there, by then. Otherwise that may go
 * unnoticed, and may take the block from whoever gets it next: a free relies on the caller's word. Nothing is cached
 * then, all calls go longer ways, and a free costs one locked instruction more. Anything but 1, 0 and nothing fails
 * numacre_attach and numacre_open_private with -EINVAL.
 */
#ifndef NUMACRE_NUMACRE_H
#define NUMACRE_NUMACRE_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__) && !defined(NUMACRE_STATIC)
#define NUMACRE_API __attribute__((visibility("default")))
#else
#define NUMACRE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header; numacre_version() has the library's. */
#define NUMACRE_VERSION_MAJOR 0 /* the number in the library's soname */
#define NUMACRE_VERSION_MINOR 2 /* until 1.0.0, the ABI may change with it */
#define NUMACRE_VERSION_PATCH 0 /* the ABI does not change with it */

/* A handle on a pool. Valid in the process that made it, until numacre_detach. */
typedef struct numacre_pool numacre_pool;

/* The name of a block in every process of the pool: 64 bits, never 0 for a block. It goes stale when the block is freed
 * or changes owner; a stale one is recognised, at least for a minute in which processes do nothing but hand that block
 * to and fro (2^34 re-uses; fewer in pools of more than 2^29 frames a numa node: shm/README.md). */
typedef uint64_t numacre_ref;
#define NUMACRE_REF_NULL ((numacre_ref)0) /* names no block */

/* Flags of numacre_alloc_on. */
#define NUMACRE_STRICT     0x01u /* that numa node or fail; without it the nearest node that has room */
#define NUMACRE_ZERO       0x02u /* the block is filled with zeros */
#define NUMACRE_UNCACHED   0x04u /* past the calling thread's cache, straight from the shared tree */
#define NUMACRE_INTERLEAVE 0x10u /* with node -1: in turn from all numa nodes, each thread by itself */
#define NUMACRE_LOCAL      0x20u /* with node -1: on the calling thread's numa node, whatever policy there is */
/* If there is no room, wait until memory is released: for ever, or as long as NUMACRE_WAIT_MS says. A released block
 * goes straight to the thread that has waited longest for a block of that size; a larger block is split for the threads
 * that wait. Waiting threads sleep in the kernel and are woken one by one. A quota is no reason to wait: the call fails
 * with -EDQUOT.
 * If a waiting thread is killed, the block that it was being given comes back. If the thread that gives is killed, its
 * block comes back too; without a daemon, others may then sleep for up to a second longer. A block that another thread
 * frees into its cache before the wait begins stays there until that thread's next call. */
#define NUMACRE_WAIT 0x08u
/* Past the cache, into the smallest free space of the fullest chunk, so that other chunks become empty: for a shrink,
 * or for the largest blocks. A chunk in which a larger free space would have to be split counts as less full, by an
 * eighth for each halving. Costs a look at the metadata, a bit a frame, of up to 2^20 frames; of a larger pool each
 * call looks at another part. */
#define NUMACRE_COMPACT 0x80u
/* Wait for at most `ms` milliseconds (1 .. 16777215), then fail with -ETIMEDOUT. Contains NUMACRE_WAIT. 0 is
 * NUMACRE_WAIT: for ever. */
#define NUMACRE_WAIT_MS(ms) (NUMACRE_WAIT | ((unsigned)(ms) << 8))

/* Attaches to a pool of the daemon whose runtime directory is runtime_dir (NULL: $NUMACRE_RUNTIME_DIR, else
 * /run/numacre). pool_name NULL: "default". Enters the kernel. Blocks for the handshake, 5 s at most, and before that
 * for up to 30 s while so many others connect that the socket's queue is full. A process may attach to a pool more than
 * once; each handle is a client of its own.
 * Errors: -ECONNREFUSED no daemon there; -ENOENT no such pool; -EPROTONOSUPPORT a daemon of another layout version;
 * -EUSERS the pool's client limit, too many pools open in this process, or no descriptor left; -EMLINK the daemon's
 * limit of connections for this user, or of all; -EACCES by the pool's owner, group and mode; -EINVAL a bad name, or a
 * bad environment variable; -EUCLEAN the daemon's regions are not what they must be (short, unsealed, damaged);
 * -ETIMEDOUT no answer; -ENOMEM no memory, or no address space for the pool's capacity, left in this process. If the
 * caller is killed inside, the daemon frees its seat. */
NUMACRE_API int numacre_attach(const char *runtime_dir, const char *pool_name, numacre_pool **pool);

/* Gives back everything that this handle still owns and unmaps the pool: its pointers become invalid. NULL is ignored.
 * Enters the kernel; blocks until the daemon has said that everything is back, 5 s at most. No other thread may be
 * inside a call on the handle. If the caller is killed inside, everything comes back all the same. */
NUMACRE_API void numacre_detach(numacre_pool *pool);

/* Allocates a block of at least size_bytes: rounded up to a power of two of frames, and aligned to its size. The block
 * comes from the calling thread's numa node, or from the nearest that has room, or from where a policy says
 * (numacre_set_policy). Never blocks, lock-free. Enters the kernel only in pools of several numa nodes, once a second
 * at most, to look at the thread's mempolicy and cpuset.
 * A thread keeps freed blocks of up to 64 frames in a cache of its own; the caches of all threads together hold about a
 * sixteenth of the pool. A thread gives its cache back when it ends, and, at its next call, when memory has run out
 * somewhere or the pool is to shrink.
 * Errors: -ENOMEM no free block of that size, or what is free is reserved for others (for blocks above 64 frames this
 * is said after three looks at the whole numa node at most: a block that others free just behind each look may be
 * missed); -EDQUOT a quota of this client, of all clients of its user, or of the pool; -EINVAL size 0 or above the
 * largest block; -EUSERS no thread slot left in the pool or for this process; -EUCLEAN the daemon has found the pool's
 * shared metadata damaged: blocks may still be used and freed, and none is allocated any more; -ECHILD. If the caller
 * is killed inside, the block comes back. */
NUMACRE_API int numacre_alloc(numacre_pool *pool, size_t size_bytes, void **block);

/* Allocates as numacre_alloc, on a given numa node of the pool (-1: the calling thread's, or where a policy says) and
 * with flags. Enters the kernel as numacre_alloc, and to wait. A thread that waits is charged when it is given a block:
 * -EDQUOT also if others have used up a quota by then.
 * Errors: as numacre_alloc; -ENODEV no such numa node; -EINVAL a numa node that the thread's cpuset excludes;
 * -ETIMEDOUT; -EBUSY in a signal handler (see Signals). */
NUMACRE_API int numacre_alloc_on(numacre_pool *pool, int numa_node, size_t size_bytes, unsigned flags, void **block);

/* Policies: which numa nodes blocks come from if a call does not say it (numacre_alloc, and numa node -1), in the words
 * of set_mempolicy(2). Numa nodes are bits: 1 << n is numa node n of the pool. The first level that has a policy
 * decides: the call (numacre_alloc_policy), the handle (numacre_set_policy), the calling thread (set_mempolicy(2),
 * numactl), the pool (`policy` in its configuration; local if not given).
 *
 * A cpuset (cpuset.mems) always holds: no block comes from a numa node that it excludes, and to name one is -EINVAL. A
 * cpuset that excludes all numa nodes of the pool is ignored: the pool's memory is the daemon's. The library asks the
 * kernel for mempolicy and cpuset at a thread's first call and again, once a second at most, at calls that go past its
 * cache or come after a tick of the daemon's; numacre_get_policy and numacre_set_policy ask at once. Every call looks
 * at the CPU that the thread runs on. With NUMACRE_MEMPOLICY=ignore in the environment, neither mempolicy nor cpuset
 * counts; any value but "ignore" and "respect" fails numacre_attach with -EINVAL.
 *
 * The local policy costs nothing. Any other policy keeps allocations, not frees, out of the shortest way through the
 * library, unless the thread's own numa node is its first choice. A pool of one numa node has nothing to choose. */
#define NUMACRE_POLICY_DEFAULT    0 /* no policy: the next level decides; takes no nodes */
#define NUMACRE_POLICY_LOCAL      1 /* the calling thread's, then the others by distance from it; takes no nodes */
#define NUMACRE_POLICY_STRICT     2 /* these and no other, nearest first (MPOL_BIND); none given: the thread's own */
#define NUMACRE_POLICY_PREFERRED  3 /* these, nearest first, then the others by distance; none given: local */
#define NUMACRE_POLICY_INTERLEAVE 4 /* these in turn, block by block, each thread by itself; none given: all */
#define NUMACRE_POLICY_INTERLEAVE_FRAMES 5 /* interleave so that each gives about as many frames */

/* Sets the policy of a handle, for the next calls of all its threads. Blocks that they have cached stay cached. Enters
 * the kernel and takes a lock of the handle. Thread-safe.
 * Errors: -EINVAL no such mode, numa nodes with a mode that takes none, or no numa node that the caller's cpuset
 * allows; -ENODEV a numa node that the pool does not have; -ECHILD. */
NUMACRE_API int numacre_set_policy(numacre_pool *pool, int mode, uint64_t numa_nodes);

/* Tells the policy that holds for the calling thread, whichever level it comes from, and the numa nodes that its cpuset
 * allows. A result pointer may be NULL. Enters the kernel. Thread-safe. Errors: -EUSERS no thread slot left; -ECHILD.
 */
NUMACRE_API int numacre_get_policy(numacre_pool *pool, int *mode, uint64_t *numa_nodes, uint64_t *allowed_nodes);

/* Allocates as numacre_alloc_on, by a policy of this call alone. flags: NUMACRE_ZERO, NUMACRE_UNCACHED,
 * NUMACRE_COMPACT, NUMACRE_WAIT.
 * Errors: as numacre_alloc_on and numacre_set_policy. If the caller is killed inside, the block comes back. */
NUMACRE_API int numacre_alloc_policy(numacre_pool *pool, int mode, uint64_t numa_nodes, size_t size_bytes,
                                     unsigned flags, void **block);

/* Frees a block that this process owns, into the calling thread's cache if the cache has room. Any thread may free it.
 * Never blocks, lock-free; enters the kernel only when somebody waits for memory.
 * Errors, after which nothing has changed: -EINVAL NULL, outside the pool, or inside a block; -ESTALE not allocated
 * (freed twice? by two threads at the same moment: NUMACRE_CHECK_FREES); -EPERM another process owns the block; -EUSERS
 * the calling thread has no thread slot, and none is left in the pool or for this process: the block is still owned,
 * and a thread that has a slot can free it; -ECHILD. If the caller is killed inside, the block is freed. */
NUMACRE_API int numacre_free(numacre_pool *pool, void *block);

/* Frees a block as numacre_free, past the calling thread's cache: any process may get the block at once.
 * Errors: as numacre_free; -EBUSY in a signal handler that has interrupted a call of its thread (see Signals): the
 * block is still owned. */
NUMACRE_API int numacre_free_uncached(numacre_pool *pool, void *block);

/* Allocates all of `count` blocks, or none; after a failure the contents of `blocks` are meaningless. Blocks come from
 * the calling thread's cache first; the rest costs a locked instruction for each leaf word (64 frames), not for each
 * block. Errors: as numacre_alloc. */
NUMACRE_API int numacre_alloc_bulk(numacre_pool *pool, size_t size_bytes, void **blocks, unsigned count);

/* Frees `count` blocks, into the calling thread's cache as far as it has room. The others, and those that have a
 * reference, go back together where blocks follow each other in a leaf word. Goes on past a block that cannot be freed,
 * and returns the first error. Errors: as numacre_free; after -EUSERS and -ECHILD all blocks are still owned. */
NUMACRE_API int numacre_free_bulk(numacre_pool *pool, void *const *blocks, unsigned count);

/* Returns the reference of a block that this process owns; NUMACRE_REF_NULL, with the reason in numacre_last_error(),
 * if it owns none there. Pass the reference to another process by any means; passing it does not change the owner.
 * Costs one locked instruction for a block's first reference, none for a further one.
 * Threads of one process may refer to one block at the same time: all get the same reference, or NUMACRE_REF_NULL if
 * another process has taken the block meanwhile by one of them. No other thread may free the block at that time: that
 * is use after free, and may take the block from its next owner. Bytes that are written into the block after its first
 * reference was made reach the taker by the channel that passes the reference, which has to synchronise (a pipe, a
 * lock, release and acquire). */
NUMACRE_API numacre_ref numacre_ref_of(numacre_pool *pool, const void *block);

/* Makes this process the owner of a referenced block, and tells its address here. The owner may take its own reference:
 * the reference is stale then. Costs one locked instruction.
 * Errors: -ESTALE the block was freed or taken, or its owner has died; -EINVAL not a reference of this pool; -EUSERS
 * the calling thread has no thread slot, and none is left in the pool or for this process: the reference stays good;
 * -ECHILD. If the caller is killed inside, the block belongs to exactly one of the two processes, and comes back if
 * that one is dead. */
NUMACRE_API int numacre_take(numacre_pool *pool, numacre_ref ref, void **block);

/* For signal handlers: 1 if the handler has interrupted a call of its thread on this pool that sleeps (NUMACRE_WAIT),
 * so that it may leave that call by siglongjmp; else 0. It is 1 once for each sleep (of a second at most): ask at the
 * place that leaves if it is 1. A handler that may be interrupted by one that leaves must not be inside a call
 * (sa_mask): the block that it is just taking might be lost. Async-signal-safe, does not enter the kernel, never fails.
 */
NUMACRE_API int numacre_is_asleep(numacre_pool *pool);

/* Returns the bytes that may be used at block (its whole power-of-two size); 0, with the reason in
 * numacre_last_error(), if this process owns no block that begins there. Never blocks. */
NUMACRE_API size_t numacre_usable_size(numacre_pool *pool, const void *block);

/* Tells this handle's client id, as `numacre clients` shows it. 0 in a private pool. Never blocks. Errors: -EINVAL a
 * NULL pointer. */
NUMACRE_API int numacre_client_id(numacre_pool *pool, uint32_t *client_id);

/* What the daemon tells its clients. */
#define NUMACRE_EVENT_LOW_WATERMARK       0x01u /* less than the pool's low watermark is free on a numa node */
#define NUMACRE_EVENT_LOW_WATERMARK_ENDED 0x02u /* enough is free again on that numa node */
#define NUMACRE_EVENT_SOFT_QUOTA          0x04u /* above a soft quota: this client's, its user's, or the pool's */
#define NUMACRE_EVENT_RESIZED             0x08u /* other memory is online on a numa node */
#define NUMACRE_EVENT_EVICTION 0x10u /* this client is being ended: SIGTERM now, SIGKILL after a grace period */
#define NUMACRE_EVENT_DAMAGED  0x20u /* the pool's metadata is damaged: allocations fail with -EUCLEAN */

/* Tells a descriptor that becomes readable when something has happened (an eventfd; for poll, epoll, io_uring). It
 * belongs to the handle: do not read or close it, numacre_detach closes it. The first call asks the daemon: it blocks
 * for 5 s at most and enters the kernel; later calls give the same descriptor. The descriptor is readable at first, for
 * what happened before. The daemon looks at limits every few seconds, so these events come late; it waits for no client
 * that does not look. A soft quota that is exceeded already when a client attaches is not told again. Thread-safe.
 * Errors: -ECONNREFUSED the daemon that the pool was attached to is gone (the next daemon sets the bits of
 * numacre_events, but has no descriptor: attach anew), or the program has closed the descriptor; -EUSERS the daemon's
 * descriptors are used up; -ETIMEDOUT; -EINVAL a private pool; -ECHILD. */
NUMACRE_API int numacre_event_fd(numacre_pool *pool, int *fd);

/* Tells which of NUMACRE_EVENT_... have happened since the last call, and makes the descriptor unreadable. The answer
 * may be 0 although the descriptor was readable. Never blocks; enters the kernel only if there is a descriptor.
 * Thread-safe: of two threads one gets a bit. Always 0 in a private pool. Errors: -EINVAL, -ECHILD. */
NUMACRE_API int numacre_events(numacre_pool *pool, uint32_t *events);

/* The geometry of a pool. Later versions append fields; struct_size says which ones the program was compiled with. */
typedef struct {
    size_t struct_size;           /* in: sizeof(numacre_pool_info) */
    uint64_t capacity_bytes;      /* per numa node */
    uint64_t frame_bytes;         /* the smallest block */
    uint64_t largest_block_bytes; /* a larger size is -EINVAL */
    uint64_t metadata_bytes;      /* address space of all metadata regions; touched as needed */
    uint32_t numa_nodes;          /* how many the pool has: 0 .. numa_nodes - 1 */
    uint32_t backing;             /* NUMACRE_BACKING_... of numa node 0 */
} numacre_pool_info;

/* The pages that a pool's blocks lie in. */
#define NUMACRE_BACKING_PRIVATE    0u /* memory of this process: a private pool */
#define NUMACRE_BACKING_HUGETLB    1u /* hugepages of 2 MiB */
#define NUMACRE_BACKING_THP        2u /* transparent hugepages */
#define NUMACRE_BACKING_SMALL      3u /* small pages */
#define NUMACRE_BACKING_HUGETLB_1G 4u /* hugepages of 1 GiB */

/* Fills in *info as far as struct_size says. A field that is newer than the library becomes 0. Thread-safe, never
 * blocks. Errors: -EINVAL info is NULL, or struct_size is not set (below 8 or above 4096). */
NUMACRE_API int numacre_get_info(numacre_pool *pool, numacre_pool_info *info);

/* The address and size at which this process has mapped the blocks of numa node `numa_node`: for registering the memory
 * with a device. Offline memory is included: a pool can grow up to its capacity. Valid until numacre_detach.
 * Thread-safe, never blocks. Errors: -ENODEV no such numa node in the pool; -EINVAL a result pointer is NULL. */
NUMACRE_API int numacre_region(numacre_pool *pool, int numa_node, void **base, size_t *size_bytes);

/* The geometry of a pool inside this process, without a daemon. Later versions append fields, and 0 is the default of
 * each. */
typedef struct {
    size_t struct_size;           /* sizeof(numacre_private_options) */
    uint64_t capacity_bytes;      /* 0: 64 MiB */
    uint64_t frame_bytes;         /* 0: 4 KiB; a power of two from 64 B to 2 MiB */
    uint64_t largest_block_bytes; /* 0: 4 MiB, or the capacity if that is smaller; a power of two up to 1 GiB */
    unsigned flags;               /* 0, or one of NUMACRE_PRIVATE_... */
} numacre_private_options;

/* Flags of numacre_private_options. */
#define NUMACRE_PRIVATE_COMPACT 1u /* every allocation that the cache cannot serve is as with NUMACRE_COMPACT */
/* Every allocation that the cache cannot serve goes into the smallest free space that suffices, of these the lowest, as
 * in a serial buddy system. Costs as much as NUMACRE_PRIVATE_COMPACT. */
#define NUMACRE_PRIVATE_BEST_FIT 2u

/* Makes a pool inside this process. options NULL: all defaults. numacre_detach closes the pool. Memory is reserved, not
 * touched. Enters the kernel. Errors: -EINVAL an impossible geometry, unknown flags, struct_size not set (below 8 or
 * above 4096), or a field that is not 0 and newer than the library; -ENOMEM no address space, or no memory for the
 * handle; -EUSERS too many pools open in this process, or no thread-specific key left (PTHREAD_KEYS_MAX). */
NUMACRE_API int numacre_open_private(const numacre_private_options *options, numacre_pool **pool);

/* A sentence about the calling thread's last failed call: valid until its next failing call. Never NULL. */
NUMACRE_API const char *numacre_last_error(void);

/* "major.minor.patch". */
NUMACRE_API const char *numacre_version(void);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif
