/* numacre: share hugepage memory between the processes of one machine.
 *
 * Attach once to a pool that numacred serves, then allocate and free in-process: no lock, no system call, and nothing is
 * lost when a process is killed at any instruction.
 *
 * Every function returns 0 or a negative errno value unless it says otherwise; results come through the last pointer and
 * are untouched on failure. numacre_last_error() has a sentence for the calling thread's last failure: what was wrong,
 * with the value, and what to do.
 *
 * Threads: every function may be called from any thread at any time, but not on a pool that another thread is detaching.
 * No thread has to register. No call is a cancellation point: pthread_cancel takes effect after it. A thread whose
 * cancellation is asynchronous (PTHREAD_CANCEL_ASYNCHRONOUS) must not call. dlclose: the library stays loaded, for threads
 * that have used it run its code as they end, with all signals blocked but those that their own instructions raise.
 *
 * Signals: a handler may call the library as follows, if no trace is recorded (NUMACRE_TRACE) and a call of its thread on the
 * handle has succeeded before. It may make any call but numacre_attach, numacre_open_private, numacre_detach and numacre_event_fd on
 * a handle that is used in that handler only; two handlers that share it must not interrupt each other (sa_mask). On a handle
 * that the interrupted code may be using it may call numacre_free_uncached, numacre_take, numacre_ref_of,
 * numacre_usable_size, numacre_client_id and numacre_events, and nothing else: the caches of threads are not protected
 * against their own signal handlers, and a block might be lost, or handed out twice. Where a call would have to change the
 * pool's memory while its own thread is in the middle of such a change, it returns -EBUSY and has done nothing: call again
 * when the handler has returned. A handler whose call fails leaves its own sentence in numacre_last_error().
 * While its thread ends, a handler's call is refused by -EBUSY, in a child that the handler forks as well; once the
 * library's part of that is over (its destructor, by pthread_key_create), handlers of signals that cannot be blocked
 * (SIGTRAP, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGSYS) must not call any more.
 *
 * siglongjmp: a handler may leave a call of its thread that has fallen asleep for want of memory (NUMACRE_WAIT) by
 * siglongjmp, if numacre_is_asleep says so. Once such a call has begun to wait, handlers run while it sleeps and at no
 * other time. The wish ends with the thread's next allocation that finds nothing free or waits, with its first call a second
 * later (in a private pool: not by that), or with the thread; until then a block that the thread is given stays with it. To
 * leave any other call in that way, or by pthread_exit in a handler, is a mistake: what the thread had in its hands or in its
 * cache, and its thread slot, then stay taken until the process ends or detaches, and its calls may return -EBUSY or crash.
 *
 * fork: the child does not inherit the mapping. Every call on an inherited handle returns -ECHILD; attach again there. A child
 * of fork() of libc closes the inherited connections at once. A child of a raw fork (the system call, clone without CLONE_VM,
 * _Fork) closes them at its first call: until then, or its end, it keeps what a parent held that has called exec. Of a parent
 * with several threads, such a child may not attach: libc's malloc may be locked in it for ever.
 * A child of vfork, or of clone with CLONE_VM and without CLONE_THREAD, has the pool mapped and no record of its own. When the
 * process that attached has ended, its blocks are given to others, and the child may then write into theirs: end the child
 * first.
 *
 * Environment variables are ignored in a set-user-id or set-group-id program, or one with file capabilities.
 *
 * NUMACRE_TRACE=FILE in the environment records every allocation of the process in FILE (FILE.PID if that exists), for
 * `numacre bench replay`. Every call then enters the kernel and takes a lock of the process. A file that cannot be made fails
 * numacre_attach and numacre_open_private with -EINVAL.
 *
 * NUMACRE_CHECK_FREES=1 in the environment finds a block that two threads free at the same moment: one of them gets -ESTALE,
 * or -EPERM if another process has the block by then. Otherwise that may go unnoticed, and may take the block from whoever
 * gets it next: a free relies on the caller's word. Nothing is cached then, all calls go longer ways, and a free costs one
 * locked instruction more. Anything but 1, 0 and nothing fails numacre_attach and numacre_open_private with -EINVAL.
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

#define NUMACRE_VERSION_MAJOR 0
#define NUMACRE_VERSION_MINOR 1
#define NUMACRE_VERSION_PATCH 0

/* A handle on a pool. Valid in the process that made it, until numacre_detach. */
typedef struct numacre_pool numacre_pool;

/* The name of a block in every process of the pool: 64 bits, never 0 for a block. It goes stale when the block is freed or
 * changes owner; a stale one is recognised, at least for a minute in which processes do nothing but hand that block to and
 * fro (2^34 re-uses; fewer in pools of more than 2^29 frames a numa node: shm/README.md). */
typedef uint64_t numacre_ref;
#define NUMACRE_REF_NULL ((numacre_ref)0)

/* Flags of numacre_alloc_on. */
#define NUMACRE_STRICT   0x01u /* that numa node or fail; without it the nearest node that has room */
#define NUMACRE_ZERO     0x02u /* the block is filled with zeros */
#define NUMACRE_UNCACHED 0x04u /* past the calling thread's cache, straight from the shared tree */
#define NUMACRE_INTERLEAVE 0x10u /* with node -1: in turn from all numa nodes, each thread by itself */
#define NUMACRE_LOCAL      0x20u /* with node -1: on the calling thread's numa node, whatever policy there is */
/* If there is no room, wait for a release; for ever, or as NUMACRE_WAIT_MS says. A block that is released goes straight to
 * who has waited longest for one of its size; a larger one is split for those who wait. Waiters sleep in the kernel and are
 * woken one by one. If a waiter is killed, what it was being given comes back; so does the block if who gives it is killed.
 * Without a daemon other waiters may then sleep up to a second longer. */
#define NUMACRE_WAIT     0x08u
/* Past the cache, in the smallest free space of the chunk that is fullest (one where that has to be split counts as less
 * full, by an eighth each time that it is halved): others become empty, for a shrink or for the largest blocks. Costs a look
 * at the metadata, a bit a frame, of up to 2^20 frames; in a larger pool these are others each time. */
#define NUMACRE_COMPACT  0x80u
/* Wait at most `ms` milliseconds (1 .. 16777215), then fail with -ETIMEDOUT. Contains NUMACRE_WAIT. */
#define NUMACRE_WAIT_MS(ms) (NUMACRE_WAIT | ((unsigned)(ms) << 8))

/* Attach to a pool of the daemon whose runtime directory is runtime_dir (NULL: $NUMACRE_RUNTIME_DIR, else /run/numacre).
 * pool_name NULL: "default". Blocks for the handshake, 5 s at most, and before it for up to 30 s while so many others
 * connect that the socket's queue is full; enters the kernel. A pool may be attached more than once; each handle is a
 * client of its own.
 * Errors: -ECONNREFUSED no daemon there; -ENOENT no such pool; -EPROTONOSUPPORT daemon of another layout version; -EUSERS
 * the pool's client limit, or the daemon's for this user; -EACCES by the pool's owner, group and mode; -EINVAL bad name;
 * -EUCLEAN the daemon's regions are not what they must be (short, unsealed, damaged); -ETIMEDOUT; -ENOMEM no memory, or no
 * address space for the pool's capacity, left in this process. */
NUMACRE_API int numacre_attach(const char *runtime_dir, const char *pool_name, numacre_pool **pool);

/* Give back everything that this handle still owns and unmap the pool: its pointers become invalid. NULL is ignored. No
 * other thread may be inside a call on the handle. */
NUMACRE_API void numacre_detach(numacre_pool *pool);

/* A block of at least size_bytes (rounded up to a power of two of frames, aligned to its size) on the calling thread's numa
 * node, or the nearest that has room; or where a policy says (see numacre_set_policy). Never blocks, lock-free; enters the
 * kernel only in pools of several numa nodes, once a second at most, to look at the thread's mempolicy and cpuset. A thread
 * keeps blocks of up to 64 frames in a cache of its own, all threads together about a sixteenth of the pool; it gives them
 * back when it ends and, at its next call, when memory has run out anywhere or the pool is to shrink.
 * Errors: -ENOMEM no free block of that size, or what is free is reserved for others (of blocks above 64 frames it is said
 * after three looks at the whole node at most: where others move what is in the way just ahead of each, one may have been
 * free); -EDQUOT a quota of this client, of all clients of its user, or of the pool; -EINVAL size 0 or above the largest
 * block; -EUSERS no thread slot left in the pool or for this process; -EUCLEAN the daemon has found the pool's shared metadata
 * damaged: nothing is allocated in it any more, what one has may still be used and freed; -ECHILD. If the caller is killed
 * inside, the block comes back. */
NUMACRE_API int numacre_alloc(numacre_pool *pool, size_t size_bytes, void **block);

/* The same on a given numa node of the pool (-1: the calling thread's), with flags. Enters the kernel as
 * numacre_alloc, and to wait. Who waits holds nothing: -EDQUOT also if others have used up a quota by then.
 * Further errors: -ENODEV no such node; -EINVAL one that the thread's cpuset excludes; -ETIMEDOUT; -EBUSY in a signal handler
 * (see Signals). */
NUMACRE_API int numacre_alloc_on(numacre_pool *pool, int numa_node, size_t size_bytes, unsigned flags, void **block);

/* Where blocks come from if a call does not say it (numacre_alloc, and node -1), in the words of set_mempolicy(2). Nodes are
 * bits: 1 << n is numa node n of the pool. What is said of one call goes before what is said of the handle, that before
 * what the calling thread has by set_mempolicy(2) (numactl), that before the pool's own (`policy`; local if not given).
 *
 * A cpuset (cpuset.mems) always holds: numa nodes that it excludes are never fallen back to, and to name one is -EINVAL.
 * If it excludes all of the pool's, it is ignored: the pool's memory is the daemon's. The library asks the kernel for
 * both at a thread's first call and again, once a second at most, at calls that go past its cache or come after a tick of
 * the daemon's; numacre_get_policy and numacre_set_policy ask at once. Where the thread runs is looked at in every call.
 * NUMACRE_MEMPOLICY=ignore in the environment: neither mempolicy nor cpuset counts; anything but that and "respect"
 * fails numacre_attach with -EINVAL.
 *
 * The local policy costs nothing. Any other keeps allocations, not frees, out of the shortest way through the library,
 * unless the thread's own numa node is its first choice. In a pool of one numa node there is nothing to choose. */
#define NUMACRE_POLICY_DEFAULT           0 /* nothing: the next one who is asked decides; takes no nodes */
#define NUMACRE_POLICY_LOCAL             1 /* the calling thread's, then the others by distance from it; takes no nodes */
#define NUMACRE_POLICY_STRICT            2 /* these and no other, nearest first (MPOL_BIND); none given: the thread's own */
#define NUMACRE_POLICY_PREFERRED         3 /* these, nearest first, then the others by distance; none given: local */
#define NUMACRE_POLICY_INTERLEAVE        4 /* these in turn, block by block, each thread by itself; none given: all */
#define NUMACRE_POLICY_INTERLEAVE_FRAMES 5 /* the same, so that each gives about as many frames */

/* The policy of a handle, for all of its threads: from their next call on. Enters the kernel, takes a lock of the handle.
 * What they have cached stays cached. Thread-safe. Errors: -EINVAL no such mode, nodes with a mode that takes none, no node
 * that the caller's cpuset allows; -ENODEV a node that the pool has not; -ECHILD. */
NUMACRE_API int numacre_set_policy(numacre_pool *pool, int mode, uint64_t numa_nodes);

/* What holds for the calling thread, whoever has said it; and which numa nodes its cpuset allows. NULL: not wanted.
 * Thread-safe, enters the kernel. Errors: -EUSERS no thread slot left; -ECHILD. */
NUMACRE_API int numacre_get_policy(numacre_pool *pool, int *mode, uint64_t *numa_nodes, uint64_t *allowed_nodes);

/* numacre_alloc_on by a policy of its own. flags: NUMACRE_ZERO, _UNCACHED, _COMPACT, _WAIT. Errors: as numacre_alloc_on, and as
 * numacre_set_policy. If the caller is killed inside, the block comes back. */
NUMACRE_API int numacre_alloc_policy(numacre_pool *pool, int mode, uint64_t numa_nodes, size_t size_bytes, unsigned flags,
                                     void **block);

/* Free a block that this process owns, into the calling thread's cache if it has room. Any thread may. Never blocks (it enters
 * the kernel only when somebody waits for memory), lock-free.
 * Errors, nothing changed by any: -EINVAL NULL, outside the pool or inside a block; -ESTALE not allocated (freed twice? by two
 * threads at the same moment: NUMACRE_CHECK_FREES); -EPERM another process owns it; -EUSERS the calling thread has no thread
 * slot, and none is left in the pool or for this process: the block is still owned, and a thread that has a slot can free it;
 * -ECHILD. If the caller is killed inside, the block is freed. */
NUMACRE_API int numacre_free(numacre_pool *pool, void *block);

/* numacre_free past the calling thread's cache: any process may get the block at once. Errors as numacre_free.
 * Further error: -EBUSY in a signal handler that has interrupted a call of its thread (see Signals): the block is still
 * owned. */
NUMACRE_API int numacre_free_uncached(numacre_pool *pool, void *block);

/* All of `count` blocks, or none: then what `blocks` points to is meaningless. What the calling thread's cache has goes first;
 * the rest takes a locked instruction a leaf word (64 frames), not a block. Errors as numacre_alloc. */
NUMACRE_API int numacre_alloc_bulk(numacre_pool *pool, size_t size_bytes, void **blocks, unsigned count);

/* Free `count` blocks, into the calling thread's cache as far as it has room; what is left over, or has a reference, goes back
 * together where blocks follow each other in a leaf word. Goes on past a bad one; returns the first error. Errors as
 * numacre_free; after -EUSERS and -ECHILD all blocks are still owned. */
NUMACRE_API int numacre_free_bulk(numacre_pool *pool, void *const *blocks, unsigned count);

/* The reference of a block that this process owns; NUMACRE_REF_NULL if it does not. Pass it to another process by any
 * means; passing it does not change the owner. One locked instruction for a block's first reference, none for a further one.
 * Threads of one process may refer to one block at the same time: all get the same reference, or NUMACRE_REF_NULL if another
 * process has taken the block meanwhile by one of them. Not beside a numacre_free of the same block by another thread: that is
 * use after free, and may take the block from its next owner. What is written into the block after its first reference was made
 * reaches the taker by the way on which the reference is passed, which has to synchronise (a pipe, a lock, release and
 * acquire). */
NUMACRE_API numacre_ref numacre_ref_of(numacre_pool *pool, const void *block);

/* Become the owner of a referenced block and learn its address here. One locked instruction.
 * Errors: -ESTALE it was freed, taken by somebody else, or its owner died; -EINVAL not a reference of this pool; -EUSERS the
 * calling thread has no thread slot, and none is left in the pool or for this process: the reference stays good. If the
 * caller is killed inside, the block belongs to exactly one of the two, and comes back if that one is the dead. */
NUMACRE_API int numacre_take(numacre_pool *pool, numacre_ref ref, void **block);

/* For signal handlers: 1 if the handler has interrupted a call of its thread on this pool that sleeps (NUMACRE_WAIT), so that
 * it may leave that call by siglongjmp; else 0. It says 1 once for each sleep (of a second at most): ask where you leave if
 * it says 1. A handler that may be interrupted by one that leaves must not be inside a call (sa_mask): what it is just taking
 * might be lost.
 * Async-signal-safe, enters no kernel, never fails. */
NUMACRE_API int numacre_is_asleep(numacre_pool *pool);

/* Bytes that may be used at block (its whole power-of-two size); 0 if this process does not own it. */
NUMACRE_API size_t numacre_usable_size(numacre_pool *pool, const void *block);

/* This handle's client id, as `numacre clients` shows it. 0 in a private pool. */
NUMACRE_API int numacre_client_id(numacre_pool *pool, uint32_t *client_id);

/* What the daemon tells its clients. */
#define NUMACRE_EVENT_LOW_WATERMARK       0x01u /* less than the pool's low watermark is free on a numa node */
#define NUMACRE_EVENT_LOW_WATERMARK_ENDED 0x02u
#define NUMACRE_EVENT_SOFT_QUOTA          0x04u /* above a soft quota: this client's, its user's, or the pool's */
#define NUMACRE_EVENT_RESIZED             0x08u /* other memory is online on a numa node */
#define NUMACRE_EVENT_EVICTION            0x10u /* this client is being ended: SIGTERM now, SIGKILL after a grace period */
#define NUMACRE_EVENT_DAMAGED             0x20u /* the pool's metadata is damaged: allocations fail with -EUCLEAN */

/* A descriptor that becomes readable when something has happened (an eventfd; for poll, epoll, io_uring). The handle's own:
 * do not read or close it, numacre_detach does. The first call asks the daemon: it blocks for 5 s at most and enters the
 * kernel; later ones give the same descriptor. It is readable at first, for what happened before. Thread-safe. Limits are
 * looked at every few seconds, so these events come late; nobody waits for a client that does not look.
 * Errors: -ECONNREFUSED the daemon that the pool was attached to is gone (a daemon after it goes on setting what
 * numacre_events tells, but has no descriptor: attach anew), or the program has closed the descriptor; -EUSERS the daemon's
 * descriptors are used up; -ETIMEDOUT; -EINVAL a private pool; -ECHILD. */
NUMACRE_API int numacre_event_fd(numacre_pool *pool, int *fd);

/* Which of NUMACRE_EVENT_... have happened since the last call, and makes the descriptor unreadable. 0 may come although it
 * was readable. Never blocks; enters the kernel only if there is a descriptor. Thread-safe: of two threads one gets a bit.
 * Errors: -EINVAL, -ECHILD. In a private pool always 0. */
NUMACRE_API int numacre_events(numacre_pool *pool, uint32_t *events);

/* The geometry of a pool. Later versions append fields; struct_size says which ones the program was compiled with. */
typedef struct {
    size_t struct_size;           /* in: sizeof(numacre_pool_info) */
    uint64_t capacity_bytes;      /* per numa node */
    uint64_t frame_bytes;
    uint64_t largest_block_bytes;
    uint64_t metadata_bytes;      /* address space of all metadata regions; touched as needed */
    uint32_t numa_nodes;
    uint32_t backing;             /* NUMACRE_BACKING_... of numa node 0 */
} numacre_pool_info;
#define NUMACRE_BACKING_PRIVATE    0u
#define NUMACRE_BACKING_HUGETLB    1u /* hugepages of 2 MiB */
#define NUMACRE_BACKING_THP        2u
#define NUMACRE_BACKING_SMALL      3u
#define NUMACRE_BACKING_HUGETLB_1G 4u

/* Fills in *info as far as struct_size says. A field that is newer than the library becomes 0. Thread-safe, never blocks.
 * Errors: -EINVAL info is NULL, or struct_size is not set (below 8 or above 4096). */
NUMACRE_API int numacre_get_info(numacre_pool *pool, numacre_pool_info *info);

/* The address and size at which this process has mapped the blocks of numa node `numa_node`: for registering the memory with
 * a device. Offline memory is included: a pool can grow up to its capacity. Valid until numacre_detach. Thread-safe, never
 * blocks. Errors: -ENODEV no such numa node in the pool; -EINVAL a result pointer is NULL. */
NUMACRE_API int numacre_region(numacre_pool *pool, int numa_node, void **base, size_t *size_bytes);

/* The geometry of a pool inside this process, without a daemon. Later versions append fields, and 0 is the default of each. */
typedef struct {
    size_t struct_size;           /* sizeof(numacre_private_options) */
    uint64_t capacity_bytes;      /* 0: 64 MiB */
    uint64_t frame_bytes;         /* 0: 4 KiB; a power of two from 64 B to 2 MiB */
    uint64_t largest_block_bytes; /* 0: 4 MiB, or the capacity if that is smaller; a power of two up to 1 GiB */
    unsigned flags;               /* 0, or one of the below */
} numacre_private_options;
#define NUMACRE_PRIVATE_COMPACT 1u /* every allocation that the cache cannot serve is as with NUMACRE_COMPACT */
/* ... goes into the smallest free space that suffices, of these the lowest, as in a serial buddy system. The same cost. */
#define NUMACRE_PRIVATE_BEST_FIT 2u

/* Makes a pool inside this process. options NULL: all defaults. numacre_detach closes the pool. Memory is reserved, not touched.
 * Enters the kernel. Errors: -EINVAL an impossible geometry, unknown flags, struct_size not set (below 8 or above 4096), or
 * a field that is not 0 and newer than the library; -ENOMEM no address space, or no memory for the handle; -EUSERS too many pools
 * open in this process, or no thread-specific key left (PTHREAD_KEYS_MAX). */
NUMACRE_API int numacre_open_private(const numacre_private_options *options, numacre_pool **pool);

/* A sentence about the calling thread's last failed call: valid until its next failing call. Never NULL. */
NUMACRE_API const char *numacre_last_error(void);

/* "major.minor.patch". */
NUMACRE_API const char *numacre_version(void);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif
