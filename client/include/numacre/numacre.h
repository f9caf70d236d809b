/* numacre: share hugepage memory between the processes of one machine.
 *
 * Attach once to a pool that numacred serves, then allocate and free in-process: no lock, no system call, and nothing
 * is lost when a process is killed at any instruction.
 *
 * Every function returns 0 or a negative errno value unless it says otherwise; results come through the last pointer
 * and are untouched on failure. numacre_last_error() returns a sentence about the calling thread's last failure: the
 * wrong value and the remedy.
 *
 * Threads: every function may be called from any thread at any time, but not on a pool that another thread is
 * detaching. No thread has to register. No call is a cancellation point: pthread_cancel takes effect after it. A thread
 * whose cancellation is asynchronous (PTHREAD_CANCEL_ASYNCHRONOUS) must not call. dlclose does not unload the library:
 * threads that have used the library run its code when they end. During that code all signals are blocked except those
 * that the thread's own instructions raise.
 *
 * Signals: a handler may call the library as follows, if no trace is recorded (NUMACRE_TRACE) and a call of its thread
 * on the handle has succeeded before. The handler may make any call except numacre_attach and its kin,
 * numacre_objects_open, numacre_open_private, numacre_detach, numacre_event_fd, numacre_pin, numacre_name_set,
 * numacre_name_remove, numacre_name_watch, numacre_channel_open, numacre_channel_close, numacre_channel_remove and
 * numacre_channel_fd on a handle that only this handler uses. Two handlers that share a handle must not interrupt each
 * other (sa_mask). On a handle that the interrupted code may be using, the handler may call numacre_free_uncached,
 * numacre_free_run, numacre_take, numacre_ref_of, numacre_usable_size, numacre_client_id, numacre_events and
 * numacre_is_asleep, and nothing else. The cache of a thread is not protected against the thread's own signal handlers:
 * a block might be lost, or handed out twice. A call that would have to change the pool's memory while its own thread
 * is in the middle of such a change returns -EBUSY and does nothing: call again when the handler has returned. A
 * handler whose call fails leaves its own sentence in numacre_last_error(). While a thread ends, calls of its handlers
 * return -EBUSY, also in a child that such a handler forks. After the library's destructor (by pthread_key_create) has
 * run in the thread, handlers of signals that cannot be blocked (SIGTRAP, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGSYS) must
 * not call the library any more.
 *
 * siglongjmp: a handler may leave by siglongjmp a call of its thread that sleeps until memory is free (NUMACRE_WAIT),
 * if numacre_is_asleep returns 1. Once such a call has begun to wait, handlers run while the call sleeps and at no
 * other time. The wish (the request that waits) ends with the thread's next allocation that finds nothing free or
 * waits, with the thread's first call a second later (not in a private pool), or with the thread. Until then a block
 * that the thread is given stays with the thread. Leaving any other call by siglongjmp, or by pthread_exit in a
 * handler, is a mistake: the thread's cached blocks, the blocks that the call was moving, and the thread slot then stay
 * taken until the process ends or detaches, and later calls of the thread may return -EBUSY or crash.
 *
 * fork: the child does not inherit the mapping. Every call on an inherited handle returns -ECHILD; attach again there.
 * A child of fork() of libc closes the inherited connections at once. A child of a raw fork (the system call, clone
 * without CLONE_VM, _Fork) closes the connections at its first call. Until that call or the child's end, blocks of a
 * parent that has called exec stay taken. A child of a raw fork may not attach if its parent had several threads:
 * libc's malloc may be locked in the child for ever. A child of vfork, or of clone with CLONE_VM and without
 * CLONE_THREAD, has the pool mapped and no record of its own. Such a child must not call the library, nor attach. The
 * child would use its parent's thread slot: if the child were killed in the middle of a call, the parent's thread would
 * get -EBUSY from then on. A handle that the child has attached has a seat of its own, which another client gets when
 * the child has ended. When the process that attached has ended, its blocks are given to other processes, and the child
 * may then write into blocks of theirs: end the child first.
 *
 * A child that a signal handler forks while its thread is inside a call must not return from the handler: it may end,
 * replace its program, or go on by other code. (A child forked while the call sleeps for want of memory may return; the
 * call fails with -ECHILD.)
 *
 * Core dumps do not contain the pool, which other processes have blocks in (MADV_DONTDUMP). To have a block in the
 * dump, call madvise(MADV_DODUMP) for its pages.
 *
 * Environment variables are ignored in a set-user-id or set-group-id program, or one with file capabilities.
 *
 * NUMACRE_TRACE=FILE in the environment records every allocation of the process in FILE (FILE.PID if that exists), for
 * `numacre bench replay`. Every call then enters the kernel and takes a lock of the process. A file that cannot be made
 * fails numacre_attach and numacre_open_private with -EINVAL.
 *
 * NUMACRE_CHECK_FREES=1 in the environment detects a block that two threads free at the same moment. One of the two
 * frees then returns -ESTALE, or -EPERM or -EINVAL if another process owns the block, or a larger block there, by then.
 * Without the variable such a double free may go unnoticed and may take the block from its next owner: a free trusts
 * its caller. With the variable no block is cached, all calls take longer paths, and a free costs one locked
 * instruction more. Anything but 1, 0 and nothing fails numacre_attach and numacre_open_private with -EINVAL.
 *
 * With NUMACRE_NOBARRIER=1 in the environment, no call of another process interrupts the CPUs of this process
 * (membarrier(2)), and nobody takes back what its threads cache: they give their caches back at their next calls. Nor
 * does this process interrupt others: its own calls fail where others could take cached blocks back. Other processes
 * may get -ENOMEM or -EDQUOT because of its caches. A process for which the kernel (before Linux 4.16) or a filter of
 * system calls forbids membarrier(2) behaves in the same way. A filter that ends the process for the call needs the
 * variable. Anything but 1, 0 and nothing fails numacre_attach and numacre_open_private with -EINVAL.
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

/* The version of this header; numacre_version() returns the version of the library. */
#define NUMACRE_VERSION_MAJOR 0 /* the number in the library's soname */
#define NUMACRE_VERSION_MINOR 2 /* until 1.0.0, the ABI may change with it */
#define NUMACRE_VERSION_PATCH 0 /* the ABI does not change with it */

/* A handle on a pool. Valid in the process that made it, until numacre_detach. */
typedef struct numacre_pool numacre_pool;

/* The name of a block in every process of the pool: 64 bits, never 0 for a block. A reference becomes stale when the
 * block is freed or changes owner. A stale reference is recognised, at least for a minute in which processes do nothing
 * but hand that block to and fro (2^34 re-uses; fewer in pools of more than 2^29 frames a numa node: shm/README.md). */
typedef uint64_t numacre_ref;
#define NUMACRE_REF_NULL ((numacre_ref)0) /* names no block */

/* Flags of numacre_alloc_on. */
#define NUMACRE_STRICT     0x01u /* this numa node or fail; without the flag: the nearest that has room */
#define NUMACRE_ZERO       0x02u /* the block is filled with zeros */
#define NUMACRE_UNCACHED   0x04u /* allocates from the shared tree, past the calling thread's cache */
#define NUMACRE_INTERLEAVE 0x10u /* with node -1: all numa nodes in turn; each thread has its own turn */
#define NUMACRE_LOCAL      0x20u /* with node -1: on the calling thread's numa node, regardless of policies */
/* If there is no room, the call waits until memory is released: for ever, or for the time of NUMACRE_WAIT_MS. A
 * released block goes straight to the thread that has waited longest for a block of that size; a larger block is split
 * for the threads that wait. Waiting threads sleep in the kernel and are woken one by one. A call that a quota refuses
 * does not wait: it fails with -EDQUOT.
 * If a waiting thread is killed, a block that is just being given to the thread comes back. If the giving thread is
 * killed, its block comes back too; without a daemon, other waiting threads may then sleep for up to a second longer. A
 * block that another thread has freed into its cache in the 10 ms before the wait begins may stay there until that
 * thread's next call, or until the daemon takes it back some seconds later. */
#define NUMACRE_WAIT 0x08u
/* Allocates past the cache, in the smallest free space of the fullest chunk, so that other chunks become empty: for a
 * shrink, or for the largest blocks. A chunk in which a larger free space would have to be split counts as less full,
 * by an eighth for each halving. Each call reads the metadata (one bit per frame) of up to 2^20 frames; in a larger
 * pool each call reads another part. */
#define NUMACRE_COMPACT 0x80u
/* Waits for at most `ms` milliseconds (1 .. 16777215), then fails with -ETIMEDOUT. Contains NUMACRE_WAIT. 0 means for
 * ever, as NUMACRE_WAIT. */
#define NUMACRE_WAIT_MS(ms) (NUMACRE_WAIT | ((unsigned)(ms) << 8))

/* Attaches to a pool of the daemon whose runtime directory is runtime_dir (NULL: $NUMACRE_RUNTIME_DIR, else
 * /run/numacre). pool_name NULL: "default". Enters the kernel. Blocks for the handshake, 5 s at most. While so many
 * other processes connect that the socket's queue is full, the call blocks for up to 30 s before the handshake. A
 * process may attach to a pool more than once; each handle is a client of its own.
 * Errors: -ECONNREFUSED no daemon there; -ENOENT no such pool; -EPROTONOSUPPORT the daemon has another layout version;
 * -EUSERS the pool's client limit, too many pools open in this process, or no descriptor left; -EMLINK the daemon's
 * limit of connections, of this user or of all users; -EACCES the pool's owner, group and mode do not allow it; -EINVAL
 * a bad name, or a bad environment variable; -EUCLEAN the daemon's regions are wrong (short, unsealed, damaged);
 * -ETIMEDOUT no answer; -ENOMEM no memory, or no address space for the pool's capacity, left in this process. If the
 * caller is killed inside, the daemon frees its seat. */
NUMACRE_API int numacre_attach(const char *runtime_dir, const char *pool_name, numacre_pool **pool);

/* How to attach. Later versions append fields, and 0 or NULL is the default of each. */
typedef struct {
    size_t struct_size;      /* sizeof(numacre_attach_options) */
    const char *runtime_dir; /* as numacre_attach */
    const char *pool_name;   /* as numacre_attach */
    /* The address of the first block of numa node 0 (numacre_region); NULL: any. So that addresses are the same in all
     * processes, each attaches at the address that the first one got. */
    void *address;
    unsigned flags; /* 0, or NUMACRE_KEEP_DESCRIPTORS */
} numacre_attach_options;

/* Flag of numacre_attach_options: the handle keeps the descriptors of the blocks' files, for numacre_region_fd. */
#define NUMACRE_KEEP_DESCRIPTORS 1u

/* Attaches as numacre_attach, with options. options NULL: all defaults.
 * Errors: as numacre_attach; -EINVAL also struct_size not set (below 8 or above 4096), a field that is not 0 and newer
 * than the library, unknown flags, or an address that is no multiple of 2 MiB, of the pool's pages and, but for object
 * pools, of its largest block; -EEXIST the addresses of the pool's capacity are not all free in this process; -ENOMEM
 * also an address that the kernel does not give. If the caller is killed inside, the daemon frees its seat. */
NUMACRE_API int numacre_attach_with(const numacre_attach_options *options, numacre_pool **pool);

/* Attaches to the object pool `name` of the pool `pool`: object_count blocks of object_bytes each on each numa node
 * (numacre_private_options says more of objects). The daemon makes it if there is none; another process finds it by
 * the same call, or attaches to the pool "POOL.NAME" like to any other. It has memory of its own, pages and access
 * rights as `pool` had when it was made, and goes with its last client. flags: 0, or NUMACRE_OBJECTS_... Only root,
 * the daemon's user and the pool's owner may have object pools made, and other clients up to the pool's object-memory
 * (numacred.toml(5)). Detach it like any pool. Waits for the daemon, 60 s at most. Thread-safe. If the caller is
 * killed inside, the daemon deletes a pool that nobody else uses.
 * Errors: as numacre_attach; -EACCES also no right to have object pools made; -EDQUOT more than object-memory; -EUSERS
 * also 64 object pools within this one; -EEXIST there is a pool of that name that has other objects or was made with
 * other access rights; -EINVAL an impossible size, count or name, or a private pool; -ENOMEM also no memory for the
 * pool on the machine; -ECHILD. */
NUMACRE_API int numacre_objects_open(numacre_pool *pool, const char *name, uint64_t object_bytes, uint64_t object_count,
                                     unsigned flags, numacre_pool **objects);

/* Flags of numacre_objects_open. */
#define NUMACRE_OBJECTS_KEEP_DESCRIPTORS 1u /* NUMACRE_KEEP_DESCRIPTORS */
#define NUMACRE_OBJECTS_PLAIN            4u /* NUMACRE_PRIVATE_PLAIN_OBJECTS */

/* Gives back everything that this handle still owns and unmaps the pool: its pointers become invalid. NULL is ignored.
 * Enters the kernel; blocks until the daemon has confirmed that everything is back, 5 s at most. No other thread may be
 * inside a call on the handle. If the caller is killed inside, everything comes back as well. */
NUMACRE_API void numacre_detach(numacre_pool *pool);

/* Allocates a block of at least size_bytes, rounded up to a power of two of frames. The block is aligned to its size.
 * (In an object pool: an object, aligned to 64 B.)
 * The block comes from the calling thread's numa node, or from the nearest one that has room, or from the numa node
 * that a policy chooses (numacre_set_policy). Never blocks, lock-free. Enters the kernel only at a thread's first call,
 * to wake threads that wait for memory, in pools of several numa nodes, once a second at most, to look at the thread's
 * mempolicy and cpuset, and before it fails with -ENOMEM or -EDQUOT, to take back what other threads cache.
 * A thread keeps freed blocks of up to 64 frames in a cache of its own; the caches of all threads together hold about a
 * sixteenth of the online memory. A thread gives its cache back when it ends, and, at its next calls (256 blocks at
 * each), when memory has run out somewhere or the pool is to shrink. A call that finds no memory takes back what the
 * threads of all processes cache and have not used for 10 ms, also if they sleep or are stopped (SIGSTOP), but for
 * threads that are stopped inside numacre_alloc, numacre_free or their kin. Such a call walks over the pool's metadata,
 * about 1 ms for each GiB of 4 KiB blocks in use; other failing calls of the next 10 ms use the result. A thread that
 * stays at its quota does so once a second. For a shrink and a drain the daemon takes cached blocks back in this way;
 * it also takes back those of threads that have made no call for six seconds.
 *
 * Errors: -ENOMEM no free block of that size, or the free memory is reserved for other clients (for a block above 64
 * frames the call searches the whole numa node three times at most: a block that others free just behind each search
 * may be missed); -EDQUOT a quota of this client, of all clients of its user, or of the pool; -EINVAL size 0 or above
 * the largest block; -EUSERS no thread slot left in the pool or for this process; -EUCLEAN the daemon has found the
 * pool's shared metadata damaged: blocks may still be used and freed, but no block is allocated any more; -ECHILD. If
 * the caller is killed inside, the block comes back. */
NUMACRE_API int numacre_alloc(numacre_pool *pool, size_t size_bytes, void **block);

/* Allocates as numacre_alloc, on a given numa node of the pool (-1: the calling thread's, or the one that a policy
 * chooses) and with flags. Enters the kernel as numacre_alloc, and to wait. A thread that waits is charged when it is
 * given a block: -EDQUOT is possible also after a wait, if others have used up a quota by then.
 * Errors: as numacre_alloc; -ENODEV no such numa node; -EINVAL a numa node that the thread's cpuset excludes;
 * -ETIMEDOUT; -EBUSY in a signal handler (see Signals). */
NUMACRE_API int numacre_alloc_on(numacre_pool *pool, int numa_node, size_t size_bytes, unsigned flags, void **block);

/* A policy chooses the numa nodes of blocks for calls that name none (numacre_alloc, and numa node -1). The words are
 * those of set_mempolicy(2). Numa nodes are bits: 1 << n is numa node n of the pool. The first level that has a policy
 * decides: the call (numacre_alloc_policy), the handle (numacre_set_policy), the calling thread (set_mempolicy(2),
 * numactl), the pool (`policy` in its configuration; local if not given).
 *
 * A cpuset (cpuset.mems) always applies: no block comes from a numa node that it excludes, and a call that names such a
 * numa node fails with -EINVAL. A cpuset that excludes all numa nodes of the pool is ignored: the pool's memory is the
 * daemon's. The library asks the kernel for mempolicy and cpuset at a thread's first call and again, once a second at
 * most, at calls that go past the thread's cache or come after a tick of the daemon; numacre_get_policy and
 * numacre_set_policy ask at once. Every call reads which CPU the thread runs on. With NUMACRE_MEMPOLICY=ignore in the
 * environment, mempolicy and cpuset are ignored; any value but "ignore" and "respect" fails numacre_attach with
 * -EINVAL.
 *
 * The local policy costs nothing. Any other policy keeps allocations, not frees, off the shortest path through the
 * library, unless the policy's first choice is the thread's own numa node. In a pool of one numa node, policies have no
 * effect. */
#define NUMACRE_POLICY_DEFAULT           0 /* no policy: the next level decides; takes no nodes */
#define NUMACRE_POLICY_LOCAL             1 /* the calling thread's node, then the others by distance; takes no nodes */
#define NUMACRE_POLICY_STRICT            2 /* only these, nearest first (MPOL_BIND); none given: the thread's own */
#define NUMACRE_POLICY_PREFERRED         3 /* these, nearest first, then the others by distance; none given: local */
#define NUMACRE_POLICY_INTERLEAVE        4 /* these in turn, block by block, each thread by itself; none given: all */
#define NUMACRE_POLICY_INTERLEAVE_FRAMES 5 /* interleave so that each gives about as many frames */

/* Sets the policy of a handle, for the next calls of all its threads. Cached blocks stay cached. Enters the kernel and
 * takes a lock of the handle. Thread-safe.
 * Errors: -EINVAL no such mode, numa nodes with a mode that takes none, or no numa node that the caller's cpuset
 * allows; -ENODEV a numa node that the pool does not have; -ECHILD. */
NUMACRE_API int numacre_set_policy(numacre_pool *pool, int mode, uint64_t numa_nodes);

/* Stores the policy in force for the calling thread, from whichever level, and the numa nodes that the thread's cpuset
 * allows. A result pointer may be NULL. Enters the kernel. Thread-safe. Errors: -EUSERS no thread slot left;
 * -ECHILD. */
NUMACRE_API int numacre_get_policy(numacre_pool *pool, int *mode, uint64_t *numa_nodes, uint64_t *allowed_nodes);

/* Allocates as numacre_alloc_on, by a policy of this call alone. flags: NUMACRE_ZERO, NUMACRE_UNCACHED,
 * NUMACRE_COMPACT, NUMACRE_WAIT.
 * Errors: as numacre_alloc_on and numacre_set_policy. If the caller is killed inside, the block comes back. */
NUMACRE_API int numacre_alloc_policy(numacre_pool *pool, int mode, uint64_t numa_nodes, size_t size_bytes,
                                     unsigned flags, void **block);

/* Frees a block that this process owns, into the calling thread's cache if the cache has room. Any thread may free it.
 * Never blocks, lock-free; enters the kernel only when a thread waits for memory.
 * Errors, after which nothing has changed: -EINVAL NULL, outside the pool, or inside a block; -ESTALE not allocated
 * (freed twice? for frees by two threads at the same moment see NUMACRE_CHECK_FREES); -EPERM another process owns the
 * block; -EUSERS the calling thread has no thread slot, and none is left in the pool or for this process: the block is
 * still owned, and a thread that has a slot can free it; -ECHILD. If the caller is killed inside, the block is
 * freed. */
NUMACRE_API int numacre_free(numacre_pool *pool, void *block);

/* Frees a block as numacre_free, but past the calling thread's cache: any process may get the block at once.
 * Errors: as numacre_free; -EBUSY in a signal handler that has interrupted a call of its thread (see Signals): the
 * block is still owned. */
NUMACRE_API int numacre_free_uncached(numacre_pool *pool, void *block);

/* Allocates all of `count` blocks, or none: after a failure the array is as it was. Blocks come from the calling
 * thread's cache first; the rest costs a locked instruction for each leaf word (64 frames), not for each block. Enters
 * the kernel as numacre_alloc, and for more than 128 blocks if the cache has fewer.
 * Errors: as numacre_alloc; -ENOMEM also if this process has no memory for so many addresses. */
NUMACRE_API int numacre_alloc_bulk(numacre_pool *pool, size_t size_bytes, void **blocks, unsigned count);

/* Allocates all of `count` blocks, or none, as numacre_alloc_bulk, together with the references of the blocks: refs[i]
 * is what numacre_ref_of(blocks[i]) returns. In a pool of one numa node a block from the calling thread's cache has its
 * reference without a locked instruction; any other costs as much as numacre_ref_of. The channel that passes a
 * reference has to synchronise, as numacre_ref_of says: all bytes are written after the reference was made. A process
 * that looks the block up by its address (numacre_virt_to_ref) may take it at once. After a failure both arrays are as
 * they were. They must not overlap. Thread-safe, lock-free; enters the kernel as numacre_alloc_bulk.
 * Errors: as numacre_alloc_bulk. If the caller is killed inside, the blocks come back, unless another process has taken
 * them. */
NUMACRE_API int numacre_alloc_ref_bulk(numacre_pool *pool, size_t size_bytes, void **blocks, numacre_ref *refs,
                                       unsigned count);

/* Frees `count` blocks, into the calling thread's cache as far as the cache has room. The other blocks, and blocks that
 * have a reference, return to the tree; blocks that follow each other in a leaf word return together. After a block
 * that cannot be freed, the call continues with the next one, and returns the first error. Errors: as numacre_free;
 * after -EUSERS and -ECHILD all blocks are still owned. */
NUMACRE_API int numacre_free_bulk(numacre_pool *pool, void *const *blocks, unsigned count);

/* Returns the reference of a block that this process owns. Returns NUMACRE_REF_NULL, with the reason in
 * numacre_last_error(), if this process owns no block there. The reference may be passed to another process by any
 * means; passing it does not change the owner. The first reference of a block costs one locked instruction, a further
 * one none.
 * Threads of one process may call this for one block at the same time: all get the same reference, or NUMACRE_REF_NULL
 * if another process has meanwhile taken the block by one of these references. No other thread may free the block at
 * that time: otherwise the call is a use after free, and may take the block from its next owner. Bytes that are written
 * into the block after its first reference was made reach the taker by the channel that passes the reference. This
 * channel has to synchronise (a pipe, a lock, release and acquire). */
NUMACRE_API numacre_ref numacre_ref_of(numacre_pool *pool, const void *block);

/* Makes this process the owner of a referenced block, and stores the block's address in this process. The owner may
 * take its own reference; the reference is stale afterwards. Costs one locked instruction.
 * Errors: -ESTALE the block was freed or taken, or its owner has died; -EINVAL not a reference of this pool; -EUSERS
 * the calling thread has no thread slot, and none is left in the pool or for this process: the reference stays valid;
 * -ECHILD. If the caller is killed inside, the block belongs to exactly one of the two processes, and comes back if
 * that one is dead. */
NUMACRE_API int numacre_take(numacre_pool *pool, numacre_ref ref, void **block);

/* Stores the references of `count` blocks, as numacre_ref_of for each. For a block that this process does not own,
 * NUMACRE_REF_NULL is stored, the call continues with the next block, and returns the first error. The arrays must not
 * overlap. Never blocks. Thread-safe as numacre_ref_of.
 * Errors: -EPERM this process owns no block that begins there; -EINVAL a NULL pointer, and -ECHILD, after which nothing
 * is stored. */
NUMACRE_API int numacre_ref_bulk(numacre_pool *pool, void *const *blocks, numacre_ref *refs, unsigned count);

/* Takes `count` blocks by their references, as numacre_take for each. For a reference that numacre_take refuses (stale,
 * or none of this pool), NULL is stored, the call continues with the next reference, and returns the first error. One
 * locked instruction for each block; the accesses to what other CPUs have written last overlap. The arrays must not
 * overlap. Never blocks. Thread-safe.
 * Errors: as numacre_take; after -EUSERS, -EBUSY and -ECHILD nothing is stored, and all references are as they were. If
 * the caller is killed inside, each block belongs to exactly one of the processes, and comes back if that one is
 * dead. */
NUMACRE_API int numacre_take_bulk(numacre_pool *pool, const numacre_ref *refs, void **blocks, unsigned count);

/* Frees the block that a reference names, whichever process owns it, as numacre_take and numacre_free: for a receiver
 * that drops what it was sent. Enters the kernel as numacre_free. Thread-safe.
 * Errors: as numacre_take. If the caller is killed inside, the block comes back. */
NUMACRE_API int numacre_free_ref(numacre_pool *pool, numacre_ref ref);

/* Holds a referenced block for the calling thread, and stores the block's address in this process: until the thread
 * drops the block, nobody else gets its memory. Any number of threads and processes may hold one block at once, to read
 * it together; the block stays its owner's, and may be taken meanwhile. When the owner frees the block, all references
 * are stale at once, no count of any process contains the block any more, and the last drop frees it. So the usual way
 * is: the writer hands the reference to all readers, and frees the block when each of them has said that it holds it.
 * A thread may hold 64 blocks; a block that it holds several times counts and is dropped as often. Never blocks.
 * Thread-safe. Costs a locked instruction, and one more for the first hold of a block since it was allocated. That
 * block is not cached at its free, which looks at the holds of all threads of the pool.
 * Errors: as numacre_take; -ENOSPC the thread holds 64 blocks: drop one; -EBUSY a signal handler has interrupted this
 * thread in the middle of a change of the pool. If the caller is killed, or the thread ends, it holds nothing any
 * more. */
NUMACRE_API int numacre_hold(numacre_pool *pool, numacre_ref ref, void **block);

/* Ends a hold of the block at this address, by the thread that has held it. The thread must not touch the block
 * afterwards, unless it holds it still, or its process owns it. Frees the block if its owner has freed it and nobody
 * else holds it. Never blocks; enters the kernel only to wake a thread that waits for memory. Thread-safe. Costs a
 * locked instruction.
 * Errors: -EINVAL this thread holds no block that begins there, or the pool is NULL; -EBUSY as numacre_hold: the block
 * is still held; -EUSERS, -ECHILD as numacre_take. If the caller is killed inside, it holds the block no more. */
NUMACRE_API int numacre_drop(numacre_pool *pool, void *block);

/* Returns the reference of a block that begins at this address and has a reference, whichever process owns the block.
 * Returns NUMACRE_REF_NULL, with the reason in numacre_last_error(), if there is none. The reference may be stale at
 * once: only numacre_take tells. An address does not tell one use of a block from the next: a process that takes by an
 * address may get a block that was freed and allocated anew meanwhile. Costs no locked instruction. Never blocks.
 * Thread-safe. */
NUMACRE_API numacre_ref numacre_virt_to_ref(numacre_pool *pool, const void *block);

/* Tells a signal handler whether the interrupted call of its thread on this pool sleeps (NUMACRE_WAIT). Returns 1 if it
 * does: the handler may then leave that call by siglongjmp. Returns 0 otherwise. The result is 1 once for each sleep
 * (of a second at most): ask directly before the siglongjmp. A handler that may be interrupted by a handler that leaves
 * must not be inside a call (sa_mask): a block that it is just taking might be lost. Async-signal-safe, does not enter
 * the kernel, never fails. */
NUMACRE_API int numacre_is_asleep(numacre_pool *pool);

/* Returns the number of usable bytes at block (the block's whole power-of-two size; of an object, the distance to the
 * next one). Returns 0, with the reason in numacre_last_error(), if this process owns no block that begins there.
 * Never blocks. */
NUMACRE_API size_t numacre_usable_size(numacre_pool *pool, const void *block);

/* Stores this handle's client id, as `numacre clients` shows it. The id is 0 in a private pool. Never blocks. Errors:
 * -EINVAL a NULL pointer. */
NUMACRE_API int numacre_client_id(numacre_pool *pool, uint32_t *client_id);

/* Events that the daemon reports to its clients. */
#define NUMACRE_EVENT_LOW_WATERMARK       0x01u /* less than the pool's low watermark is free on a numa node */
#define NUMACRE_EVENT_LOW_WATERMARK_ENDED 0x02u /* enough is free again on that numa node */
#define NUMACRE_EVENT_SOFT_QUOTA          0x04u /* above a soft quota: this client's, its user's, or the pool's */
#define NUMACRE_EVENT_RESIZED             0x08u /* other memory is online on a numa node */
#define NUMACRE_EVENT_EVICTION 0x10u /* this client is being ended: SIGTERM now, SIGKILL after a grace period */
#define NUMACRE_EVENT_DAMAGED  0x20u /* the pool's metadata is damaged: allocations fail with -EUCLEAN */

/* Stores a descriptor that becomes readable when an event has happened (an eventfd; for poll, epoll, io_uring). The
 * descriptor belongs to the handle: do not read or close it; numacre_detach closes it. The first call asks the daemon,
 * blocks for 5 s at most and enters the kernel; later calls give the same descriptor, as long as that daemon runs. The
 * descriptor is readable at first, for earlier events. When the daemon ends, the descriptor stays silent for ever: a
 * call of this function tells, once the kernel has closed the connection. The daemon checks limits every few seconds,
 * so events of limits come late. The daemon does not wait for a client that does not look. A soft quota that is already
 * exceeded when a client attaches is not reported again. Thread-safe. Errors: -ECONNREFUSED the daemon that the pool
 * was attached to is gone (the next daemon sets the bits of numacre_events, but has no descriptor: attach anew), or the
 * program has closed the descriptor; -EUSERS the daemon's descriptors are used up; -ETIMEDOUT; -EINVAL a private pool;
 * -ECHILD. */
NUMACRE_API int numacre_event_fd(numacre_pool *pool, int *fd);

/* Stores the NUMACRE_EVENT_... bits of events since the last call, and makes the descriptor unreadable. The result may
 * be 0 although the descriptor was readable. Never blocks; enters the kernel only if there is a descriptor.
 * Thread-safe: if two threads call at the same time, one of them gets a bit. The result is always 0 in a private pool.
 * Errors: -EINVAL, -ECHILD. */
NUMACRE_API int numacre_events(numacre_pool *pool, uint32_t *events);

/* The geometry of a pool. Later versions append fields; struct_size tells the library which fields the program was
 * compiled with. */
typedef struct {
    size_t struct_size;           /* in: sizeof(numacre_pool_info) */
    uint64_t capacity_bytes;      /* per numa node */
    uint64_t frame_bytes;         /* the smallest block; in an object pool the distance of objects */
    uint64_t largest_block_bytes; /* a larger size is -EINVAL; in an object pool as large as frame_bytes */
    uint64_t metadata_bytes;      /* address space of all metadata regions; touched as needed */
    uint32_t numa_nodes;          /* number of numa nodes of the pool: 0 .. numa_nodes - 1 */
    uint32_t backing;             /* NUMACRE_BACKING_... of numa node 0 */
} numacre_pool_info;

/* The kind of pages that back a pool's blocks. */
#define NUMACRE_BACKING_PRIVATE    0u /* memory of this process: a private pool */
#define NUMACRE_BACKING_HUGETLB    1u /* hugepages of 2 MiB */
#define NUMACRE_BACKING_THP        2u /* transparent hugepages */
#define NUMACRE_BACKING_SMALL      3u /* small pages */
#define NUMACRE_BACKING_HUGETLB_1G 4u /* hugepages of 1 GiB */

/* Fills in the first struct_size bytes of *info. A field that is newer than the library becomes 0. Thread-safe, never
 * blocks. Errors: -EINVAL info is NULL, or struct_size is not set (below 8 or above 4096). */
NUMACRE_API int numacre_get_info(numacre_pool *pool, numacre_pool_info *info);

/* Stores the address and size of this process's mapping of all blocks of numa node `numa_node`, for registering the
 * memory with a device. Offline memory is included: a pool can grow up to its capacity. The mapping is valid until
 * numacre_detach. Thread-safe, never blocks. Errors: -ENODEV no such numa node in the pool; -EINVAL a result pointer is
 * NULL. */
NUMACRE_API int numacre_region(numacre_pool *pool, int numa_node, void **base, size_t *size_bytes);

/* Allocates a run: memory in one piece of any number of frames, size_bytes rounded up to whole frames, also larger
 * than the largest block. alignment_bytes: 0, or a power of two up to the largest block or 2 MiB, whichever is larger
 * (up to 64 in an object pool whose objects lie at another distance than a power of two). numa_node -1: that of the
 * calling thread or of a policy, else the nearest one that has room. A run is blocks of the caller's that lie one
 * behind the other: each has its own reference, and numacre_usable_size of a block tells where the next one begins.
 * Free the run by numacre_free_run, or block by block. Lock-free. The call walks over the pool's metadata, about 1 ms
 * for each GiB of 4 KiB blocks in use, and bypasses the thread's cache: meant for buffers that a program sets up
 * once. Errors: as numacre_alloc; -ENODEV no such numa node; -ENOMEM no free run of that size and alignment; -EINVAL
 * a size of 0 or above the capacity of a numa node, a bad alignment, or run is NULL. If the caller dies inside, what
 * it has got comes back. */
NUMACRE_API int numacre_alloc_run(numacre_pool *pool, int numa_node, size_t size_bytes, size_t alignment_bytes,
                                  void **run);

/* Frees the blocks of a run, or of a part of one that consists of whole blocks. size_bytes: the size that was asked
 * for. Thread-safe, never blocks, bypasses the cache. Errors: as numacre_free_uncached; -EPERM a block between run
 * and run + size_bytes is not the caller's; -EINVAL the size is 0 or ends inside a block: nothing has been freed then.
 * If the caller dies inside, the rest comes back as well. */
NUMACRE_API int numacre_free_run(numacre_pool *pool, void *run, size_t size_bytes);

/* Stores a new descriptor of the file that has the blocks of numa node `numa_node`, and the offset of the region
 * (numacre_region) in that file: for a peer that maps the memory itself (vhost-user, QEMU's memory-backend-file,
 * memif). The caller closes the descriptor, which is closed on exec. The pool's whole memory of that numa node can be
 * read and written through it, and its pages can be taken away: give it only to those who may do that. A pool that
 * shrinks takes pages away from such a peer as well. The pool has to be attached with NUMACRE_KEEP_DESCRIPTORS.
 * Thread-safe; enters the kernel. If the caller dies, the peer keeps what it has. Errors: -ENODEV no such numa node in
 * the pool; -EINVAL a result pointer is NULL, a private pool, or a pool attached without the flag; -EUSERS no
 * descriptor left in this process; -ECONNREFUSED the program has closed the handle's descriptor; -ECHILD. */
NUMACRE_API int numacre_region_fd(numacre_pool *pool, int numa_node, int *fd, uint64_t *offset);

/* Makes this client a member of a group: processes that hand blocks to each other by address alone, such as those of
 * one DPDK world. group: any number but 0 that they agree on, a random one for each world; any client of the pool may
 * join any group. From then on a member that dies, or detaches, leaves the blocks that it had in use to the group: they
 * stay out of use, in state "quarantined", until a member adopts them (numacre_adopt_bulk) or none lives; blocks in its
 * threads' caches come back at once. Thread-safe, never blocks, for as long as the client is attached. Errors: -EINVAL
 * group is 0; -EEXIST the client has joined another group; -ECHILD. If the caller dies inside, it has joined or not. */
NUMACRE_API int numacre_join(numacre_pool *pool, uint64_t group);

/* Makes this client the owner of blocks that members of its group have in use, alive or dead, so that it can free them.
 * Blocks of its own stay as they are. References to an adopted block become stale. Use it for blocks that the former
 * owner has handed over, by a ring or a queue of the group's own, and does not touch or free any more: one of them may
 * be adopted only once. One locked instruction for each block. Continues behind a block that cannot be adopted, and
 * returns the first error: -EPERM no block in use of the group begins at an address; -EINVAL the client is of no group,
 * or blocks is NULL; -EAGAIN another member adopts it at this moment; -EUSERS no thread slot left; -ECHILD.
 * Thread-safe, never blocks. If the caller dies inside, each block is the former owner's or the caller's, and stays
 * with the group. */
NUMACRE_API int numacre_adopt_bulk(numacre_pool *pool, void *const *blocks, unsigned count);

/* Keeps memory where it is, for a device or the kernel that has it registered (an AF_XDP UMEM, io_uring's fixed
 * buffers, VFIO): while the pin lasts, nobody shrinks the pool below the range, drains it, moves its pages or takes
 * them away, and `numacre clients` and `resize --dry-run` name the client. address, size_bytes: any range of one numa
 * node's region (numacre_region) whose memory is online; the pool's resize units around it are pinned as a whole. Pin
 * before you register, and unpin after the device has let go. *pin is a descriptor, closed on exec; a child of fork()
 * has it as well. The pin ends when the last process that has the descriptor closes it or ends: so pass it on together
 * with the device's own descriptor, and keep it as long. If the client dies, its blocks in the range that were not in a
 * cache stay out of use until the pin has ended and the pool's pin-quarantine (5 s) has passed: the device may have
 * been writing there. Blocks of other clients in the range are theirs all the time, and whoever has a reference may
 * still take a published one. In a private pool, whose memory never moves, *pin becomes -1. Asks the daemon, also one
 * that has been restarted since the attach, and waits for 30 s at most; enters the kernel. Thread-safe. If the caller
 * dies inside, there is no pin, or one that ends at once. Errors: -EINVAL no such range of one numa node, or no memory
 * behind a part of it; -EAGAIN a part of the range is being taken offline; -EUSERS no more pins (64 a client, 512 a
 * pool) or descriptors; -ESRCH the daemon does not know this client; -ENOENT the pool has been deleted; -ECONNREFUSED
 * no daemon; -ETIMEDOUT; -ECHILD. */
NUMACRE_API int numacre_pin(numacre_pool *pool, const void *address, size_t size_bytes, int *pin);

/* Closes a pin's descriptor, as close(2) would; the pin ends if no other process has it. -1 does nothing in a private
 * pool. Works in a forked child, too. Thread-safe; enters the kernel. Errors: -EINVAL the descriptor is no pin of this
 * pool: it stays open. */
NUMACRE_API int numacre_unpin(numacre_pool *pool, int pin);

/* A channel: a bounded queue of blocks in a pool, between any number of threads and processes. A block that has been
 * sent belongs to the channel until somebody receives it: the death of its sender loses nothing. If a receiver dies
 * inside numacre_receive, others receive first what that one had taken out of the channel. Nobody waits for a thread
 * that is stopped or dead. Messages of one sender arrive in the order in which they were sent. */
typedef struct numacre_channel numacre_channel;

/* A channel as it is to be made. Later versions append fields, and 0 is the default of each. */
typedef struct {
    size_t struct_size; /* sizeof(numacre_channel_options) */
    uint32_t capacity;  /* blocks that may be on their way, 1 .. 4096; 0: 1024 */
    uint32_t burst;     /* blocks of one send at most, 1 .. 64, not more than capacity; 0: 32, or capacity if less */
    uint32_t parties;   /* threads that may have the channel open at a time, 1 .. 64; 0: 16 */
    uint32_t flags;     /* NUMACRE_CHANNEL_...; 0: sends and receives */
    uint32_t last;      /* broadcast: the handle first reads up to so many of the last blocks that are there */
    uint32_t reserved;  /* 0 */
} numacre_channel_options;

/* Flags of numacre_channel_options. */
#define NUMACRE_CHANNEL_SENDS    1u /* the caller only sends */
#define NUMACRE_CHANNEL_RECEIVES 2u /* the caller only receives */
#define NUMACRE_CHANNEL_EXISTING 4u /* the channel has to be there; its sizes are as they are, and 0 here */
/* The channel stays when nobody has it open, until numacre_channel_remove or the pool's end. Without the flag it goes
 * when nobody has it open and it has no messages. */
#define NUMACRE_CHANNEL_STAYS 8u
/* A broadcast channel: each reader gets every block, to read and not to own (numacre_channel_read). The channel keeps
 * at least the last `capacity` blocks, in as many sends at most (rounded up to a power of two, 2 at least); further
 * sends overwrite the oldest and wait for nobody. A reader that is too slow is overtaken, and told by how many blocks.
 * Blocks that are overwritten are freed, by the sender or by the last reader that reads them. The blocks of as many
 * sends stay the channel's, also when all have been read. Without NUMACRE_CHANNEL_STAYS the channel goes when nobody
 * has it open, with all that is in it. All who open it give this flag. */
#define NUMACRE_CHANNEL_BROADCAST 16u

/* Opens a channel of the pool by its name, and makes it if there is none. name: 1 to 47 characters of a-z, 0-9, '.',
 * '_',
 * '-'. options NULL: all defaults. A handle is for one thread at a time: each thread opens the channel itself. A
 * channel has a seat in the pool like a client (numacre clients), and lies in the pool's metadata: 16 channels a pool,
 * 4 MiB together. Asks the daemon, also one that has been restarted since the attach, and waits for 30 s at most; a
 * private pool has channels between the threads of its process. Enters the kernel. Thread-safe. If the caller dies
 * inside, the channel is there or not, and goes as if the caller had closed it. Errors: -EINVAL a bad name, sizes,
 * flags or struct_size, or result NULL; -EEXIST there is a channel of that name with other sizes (0 fits any), or one
 * that is a broadcast channel where a queue is wanted, or the other way round; -ENOENT
 * NUMACRE_CHANNEL_EXISTING and there is none, or the pool has been deleted; -EUSERS no channel, seat or party is left;
 * -ENOMEM no memory; -ESRCH the daemon does not know this client; -ECONNREFUSED no daemon; -ETIMEDOUT; -ECHILD. */
NUMACRE_API int numacre_channel_open(numacre_pool *pool, const char *name, const numacre_channel_options *options,
                                     numacre_channel **channel);

/* Closes a handle. Messages stay in the channel. Before numacre_detach. NULL does nothing. Enters the kernel. No other
 * thread may use the handle. If the caller dies inside, the handle is closed. Errors: -ECHILD. */
NUMACRE_API int numacre_channel_close(numacre_channel *channel);

/* Ends the stream: no send succeeds any more, and receivers are told so once they have received what is there. Wakes
 * all who wait. Never blocks. If the caller dies inside, the stream has ended or not. Errors: -ECHILD. */
NUMACRE_API int numacre_channel_end(numacre_channel *channel);

/* Removes a channel as soon as nobody has it open, also one with NUMACRE_CHANNEL_STAYS. Messages that are left in it
 * are freed. Asks the daemon as numacre_channel_open. Errors: -ENOENT no such channel, or the pool has been deleted;
 * -EPERM another user has made it; -EINVAL a bad name; -EUSERS no descriptor or connection is left; -ENOMEM no memory;
 * -ESRCH the daemon does not know this client; -ECONNREFUSED no daemon; -ETIMEDOUT; -ECHILD. */
NUMACRE_API int numacre_channel_remove(numacre_pool *pool, const char *name);

/* Sends `count` blocks that this process owns, all or none, 1 to the channel's burst: they belong to the channel from
 * then on, and references to them become stale. Bytes that were written before are seen by the receiver. One locked
 * instruction in all, two more for a block that has a reference; enters the kernel only to wake a receiver that sleeps.
 * Never waits. If the caller dies inside, all are sent, or all are freed.
 * Errors: -EAGAIN the channel is full; -EPERM a block is not the caller's, is named twice, or has been held
 * (numacre_hold) since it was allocated; -ESHUTDOWN the stream has ended; -EPIPE the channel is full, and there were
 * receivers and all of them are gone; -EINVAL a bad count or a NULL pointer; -EUCLEAN the channel's memory is damaged;
 * -EUSERS (only in a pool with quotas) no thread slot is left; -ECHILD. The caller still has all blocks then. */
NUMACRE_API int numacre_send(numacre_channel *channel, void *const *blocks, unsigned count);

/* As numacre_send, but waits for room, timeout_ms at most; 0: for ever. Sleeps in the kernel. Also -ETIMEDOUT. */
NUMACRE_API int numacre_send_wait(numacre_channel *channel, void *const *blocks, unsigned count, unsigned timeout_ms);

/* As numacre_send, but never full: as long as there is no room, it takes the oldest burst out of the channel, or what
 * is left of it, and frees these blocks. dropped (may be NULL): how many blocks; it is set also if the call fails, as
 * others may have taken the room. Blocks that came back after a death (redelivered) are not dropped. To a broadcast
 * channel every send is one that overwrites: numacre_send and numacre_send_wait do the same there, never wait and never
 * return -EAGAIN or -EPIPE. If the caller dies inside, all are sent, or all are freed; what it had taken out to make
 * room is freed, or received by others (redelivered). Errors: as numacre_send, without -EAGAIN and -EPIPE; -EINVAL also
 * more blocks than the channel's capacity; -EUSERS in any pool. */
NUMACRE_API int numacre_send_over(numacre_channel *channel, void *const *blocks, unsigned count, unsigned *dropped);

/* Reads up to `most` blocks of a broadcast channel, all of one send; stores their number. The blocks stay the
 * channel's: read them, do not write, free or send them. Their memory stays as it is, also if they are overwritten in
 * the channel meanwhile, until this handle's next numacre_channel_read, numacre_channel_read_wait,
 * numacre_channel_read_end or numacre_channel_close: a reader that takes long keeps the blocks of one send and no more.
 * A handle first reads what is sent after it was opened (numacre_channel_options.last: and some of what was there).
 * Blocks of one sender come in the order in which they were sent, each once. overtaken (may be NULL): blocks that were
 * overwritten before this reader came to them, since its last successful read. One locked instruction (a barrier) in
 * all, none if it returns more of the same send; enters the kernel only to wake threads that wait for memory. Never
 * waits. If the caller dies inside, or later, the daemon ends what it read. Errors: -EAGAIN nothing new, or senders
 * overtook the reader at each of several attempts; -ESHUTDOWN nothing new, and the stream has ended; -EPIPE nothing
 * new, and there were senders and all of them are gone; -EINVAL most is 0, a pointer NULL, the channel is no broadcast
 * channel, or the handle only sends; -EUCLEAN the channel's memory is damaged; -EUSERS no thread slot is left; -ECHILD.
 * After a failure, what was read before may not be read any more. */
NUMACRE_API int numacre_channel_read(numacre_channel *channel, const void **blocks, unsigned most, unsigned *count,
                                     uint64_t *overtaken);

/* As numacre_channel_read, but waits for a message, timeout_ms at most; 0: for ever. Sleeps in the kernel. Also
 * -ETIMEDOUT. */
NUMACRE_API int numacre_channel_read_wait(numacre_channel *channel, const void **blocks, unsigned most,
                                          unsigned timeout_ms, unsigned *count, uint64_t *overtaken);

/* Ends the reading of what the last numacre_channel_read has returned, before a pause: nothing is kept back for this
 * handle then. The next read goes on behind it. Never blocks. If the caller dies inside, the daemon ends it. Errors:
 * -EINVAL the channel is NULL or no broadcast channel; -ECHILD. */
NUMACRE_API int numacre_channel_read_end(numacre_channel *channel);

/* Receives up to `most` blocks, which this process owns from then on. Stores their number: those of one burst, or what
 * is left of it. redelivered (may be NULL): 1 if another receiver had taken them out of the channel and died; such
 * blocks come first, and late. One locked instruction in all; enters the kernel only to wake a sender that waits for
 * room. Never waits. If the caller dies inside, others receive the blocks, wake-up included; in the last few
 * instructions they are the caller's, and freed with its others. Errors: -EAGAIN the channel is empty; -ESHUTDOWN it
 * is empty and the stream has ended; -EPIPE it is empty, and there were senders and all of them are gone; -EINVAL most
 * is 0 or a pointer NULL; -EUCLEAN; -EUSERS; -ECHILD. */
NUMACRE_API int numacre_receive(numacre_channel *channel, void **blocks, unsigned most, unsigned *count,
                                int *redelivered);

/* As numacre_receive, but waits for a message, timeout_ms at most; 0: for ever. Sleeps in the kernel. Also -ETIMEDOUT.
 */
NUMACRE_API int numacre_receive_wait(numacre_channel *channel, void **blocks, unsigned most, unsigned timeout_ms,
                                     unsigned *count, int *redelivered);

/* Stores a descriptor that becomes readable when there may be something to receive, or room, so that a program can wait
 * for channels beside its sockets: poll, epoll, io_uring (IORING_OP_POLL_ADD). Each handle has one of its own, an
 * eventfd: no other receiver takes its wake-up, stopped or dead. Nobody signals it before numacre_channel_arm: arm it,
 * wait, call numacre_receive until it finds nothing, arm it again. The program does not read from it:
 * numacre_channel_arm does. The descriptor stays the handle's; numacre_channel_close closes it. The first call asks the
 * daemon, and waits for 30 s at most; later calls store the same descriptor, and another one if the daemon has ended
 * meanwhile (the old one is closed). A private pool needs no daemon. Enters the kernel. If the caller dies inside,
 * nothing is left. Errors: -ECONNREFUSED no daemon: numacre_receive_wait needs none; -EUSERS no descriptor or
 * connection is left, here or in the daemon, where a descriptor counts as two connections; -EINVAL a pointer is NULL;
 * -ENOENT the pool has been deleted; -ESRCH the daemon does not know this client; -ENOMEM; -EPROTONOSUPPORT the daemon
 * is too old; -ETIMEDOUT; -ECHILD. */
NUMACRE_API int numacre_channel_fd(numacre_channel *channel, int *fd);

/* Makes the handle's descriptor unreadable, and has it signalled once when there is something to receive (messages not
 * 0), or room for `room` blocks (0: not for room; at most the channel's burst), or the stream ends, or all of the other
 * side have gone; at once if it is so already. Call it before each wait. Both 0: nobody signals it any more. Signals
 * may come without a cause. A sender does not enter the kernel for a handle that is not armed. Some system calls.
 * A sender that is killed before it has signalled is made up for by the daemon; one that is stopped there signals when
 * it goes on, and one that cannot ask the daemon for the descriptor at its next call on its handle for which it can:
 * wait with a timeout where that matters (numacre_receive_wait looks again each second). Never blocks. If the caller
 * dies inside, nobody misses anything. Errors: -ECONNREFUSED the daemon that made the descriptor has ended (the
 * descriptor is signalled then): it is armed all the same, and those who have signalled it before go on; call
 * numacre_channel_fd for another one; -EINVAL channel is NULL, room is more than the burst, or numacre_channel_fd has
 * not been called; -ECHILD. */
NUMACRE_API int numacre_channel_arm(numacre_channel *channel, int messages, unsigned room);

/* A channel as it is. Later versions append fields. */
typedef struct {
    size_t struct_size;    /* in: sizeof(numacre_channel_info) */
    uint32_t capacity;     /* blocks */
    uint32_t burst;        /* blocks */
    uint32_t parties;      /* threads */
    uint32_t waiting;      /* blocks on their way, at about this moment */
    uint32_t senders;      /* parties now */
    uint32_t receivers;    /* parties now */
    uint64_t sent;         /* blocks */
    uint64_t received;     /* blocks, those that were redelivered each time */
    uint64_t redelivered;  /* blocks */
    uint32_t has_ended;    /* 1: the stream has ended */
    uint32_t is_broadcast; /* 1: NUMACRE_CHANNEL_BROADCAST; `waiting` blocks are kept, `received` counts each reader */
    uint64_t dropped;      /* blocks that numacre_send_over has taken out to make room */
    uint64_t overtaken;    /* blocks that were overwritten before a reader came to them, for each reader */
} numacre_channel_info;

/* Fills in the first struct_size bytes of *info. Never blocks. Errors: -EINVAL info is NULL, or struct_size is not set
 * (below 8 or above 4096); -ECHILD. */
NUMACRE_API int numacre_channel_get_info(numacre_channel *channel, numacre_channel_info *info);

/* The kinds of what a name is bound to, and the flags of numacre_name. */
#define NUMACRE_NAME_REFERENCE 1u /* a block: numacre_name.reference */
#define NUMACRE_NAME_OBJECTS   2u /* an object pool: numacre_name.objects */
#define NUMACRE_NAME_CHANNEL   3u /* a channel: numacre_name.channel; only the daemon binds such names */
#define NUMACRE_NAME_POOL      1u /* owned by the pool: stays when the client that has bound it ends */
#define NUMACRE_NAME_COMPARE   2u /* numacre_name_set: only if the name has numacre_name.version */

/* A name of a pool, and what it is bound to. Later versions append fields, and 0 is the default of each. */
typedef struct {
    size_t struct_size;    /* in: sizeof(numacre_name) */
    uint32_t kind;         /* NUMACRE_NAME_REFERENCE, ... */
    uint32_t flags;        /* NUMACRE_NAME_POOL; numacre_name_set: and NUMACRE_NAME_COMPARE */
    uint64_t version;      /* grows with each change of a name of the pool, never given twice */
    numacre_ref reference; /* NUMACRE_NAME_REFERENCE; else 0 */
    uint64_t channel;      /* NUMACRE_NAME_CHANNEL; else 0 */
    uint32_t user;         /* out: the user (uid) that has bound it */
    uint32_t client_id;    /* out: the client that owns it (numacre_client_id); 0: the pool owns it */
    char name[48];         /* out: the name */
    char objects[64];      /* NUMACRE_NAME_OBJECTS: the object pool's whole name, "pool.objects"; else empty */
} numacre_name;

/* Binds a name of the pool, or binds it to something else. name: 1 to 47 printable ASCII characters without space and
 * '/'. binding: kind, flags, version and the field of the kind count; the others are ignored. A reference stays one
 * that any process may take: the name keeps no block. Without NUMACRE_NAME_POOL the name is this client's, and goes
 * when the client detaches or dies, before its blocks do; with it the name stays until somebody removes it or the pool
 * is deleted, also over a restart of the daemon. With NUMACRE_NAME_COMPARE the name has to have that version, and 0
 * means that there must be no such name: of several processes that bind a name in this way exactly one succeeds. A name
 * that is bound may be changed by processes of the user that has bound it, by root and by the daemon's user; it is the
 * caller's from then on. *version, unless NULL: the name's new version. Asks the daemon, also one that has been
 * restarted since the attach, and waits for 30 s at most; enters the kernel. In a private pool the call takes a lock of
 * the process, and all names go with the pool. Thread-safe. If the caller dies inside, the name is bound as before or
 * as wanted, and a name of the caller's own goes with it. Errors: -EINVAL a bad name, kind, flag or struct_size, no
 * reference, a bad pool name, or a kind that only the daemon binds; -EEXIST the name is bound, and was to be free;
 * -EAGAIN it has another version; -ENODATA it is not bound, and was to have a version; -EACCES the name is another
 * user's; -EDQUOT 64 names of the user (root has no such limit), or 256 of the pool; -ESRCH the daemon does not know
 * this client; -ENOENT the pool has been deleted; -EUCLEAN the pool is damaged; -ECONNREFUSED no daemon; -EMLINK the
 * daemon's limit of connections; -EUSERS no descriptor left; -ENOMEM; -ETIMEDOUT; -ECHILD. */
NUMACRE_API int numacre_name_set(numacre_pool *pool, const char *name, const numacre_name *binding, uint64_t *version);

/* Looks a name up, and fills in the first struct_size bytes of *binding. kind: the kind that the name has to be bound
 * to; 0: any. Reads shared memory only, also while no daemon runs: no lock, no system call. Thread-safe; never blocks.
 * Errors: -ENODATA no such name; -EINVAL a bad name, another kind, binding is NULL, or struct_size is not set;
 * -EUCLEAN the directory has been overwritten; -ECHILD. */
NUMACRE_API int numacre_name_get(numacre_pool *pool, const char *name, uint32_t kind, numacre_name *binding);

/* Unbinds a name. version: the one that the name has to have; 0: any. Blocks as numacre_name_set.
 * Errors: as numacre_name_set; -ENODATA no such name. If the caller dies inside, the name is bound or not. */
NUMACRE_API int numacre_name_remove(numacre_pool *pool, const char *name, uint64_t version);

/* Lists the names of the pool, in no order: fills in bindings[0] and following, at most `most` of them, each of
 * bindings[0].struct_size bytes, and stores in *count how many names there are. bindings may be NULL if most is 0. Each
 * entry is whole; names that change meanwhile may be missing. *version, unless NULL: the directory's version before the
 * look, for numacre_name_watch. Reads shared memory only, as numacre_name_get. Thread-safe; never blocks. Errors:
 * -EINVAL bindings or count is NULL, or struct_size is not set; -EUCLEAN the directory has been overwritten; -ECHILD.
 */
NUMACRE_API int numacre_name_list(numacre_pool *pool, numacre_name *bindings, size_t most, size_t *count,
                                  uint64_t *version);

/* Sleeps until the directory's version is another than *version, which 0 is if any name was ever bound, and stores
 * that. A change by any process wakes all who watch; so does the start of a daemon, without a change. timeout_ms: -1
 * for ever, 0 looks and does not sleep. Enters the kernel to sleep; needs no daemon. Thread-safe. Errors: -ETIMEDOUT no
 * change; -ENOENT the pool has been deleted; -EUCLEAN the pool is damaged; -EINVAL version is NULL; -ECHILD. */
NUMACRE_API int numacre_name_watch(numacre_pool *pool, uint64_t *version, int timeout_ms);

/* The geometry of a pool inside this process, without a daemon. Later versions append fields, and 0 is the default of
 * each. */
typedef struct {
    size_t struct_size;           /* sizeof(numacre_private_options) */
    uint64_t capacity_bytes;      /* 0: 64 MiB */
    uint64_t frame_bytes;         /* 0: 4 KiB; a power of two from 64 B to 2 MiB */
    uint64_t largest_block_bytes; /* 0: 4 MiB, or the capacity if that is smaller; a power of two up to 1 GiB */
    unsigned flags;               /* 0, or one of NUMACRE_PRIVATE_... */
    /* An object pool: object_count blocks of object_bytes each, a multiple of 64 B up to 1 GiB, one behind the other.
     * The three sizes above are 0 then. No block is larger, and free objects keep their content. */
    uint64_t object_bytes; /* 0: no object pool */
    uint64_t object_count; /* the objects of the pool, all of them */
} numacre_private_options;

/* Flags of numacre_private_options. */
#define NUMACRE_PRIVATE_COMPACT 1u /* every allocation that the cache cannot serve acts as with NUMACRE_COMPACT */
/* Every allocation that the cache cannot serve takes the smallest free space that suffices, and the lowest of several,
 * as a serial buddy system does. Costs as much as NUMACRE_PRIVATE_COMPACT. */
#define NUMACRE_PRIVATE_BEST_FIT 2u
/* Objects whose size is a power of two from 1 KiB on lie at that distance. Without the flag they lie 64 B further
 * apart, so that the first lines of all objects do not share a few sets of the processor's caches. */
#define NUMACRE_PRIVATE_PLAIN_OBJECTS 4u

/* Makes a pool inside this process. options NULL: all defaults. numacre_detach closes the pool. The call reserves
 * memory and does not touch it; of its metadata it touches 8 bytes for each largest block (each object). Enters the
 * kernel. Errors: -EINVAL an impossible geometry, unknown flags, struct_size not set (below 8 or above 4096), or a
 * field that is not 0 and newer than the library; -ENOMEM no address space, or no memory for the handle; -EUSERS too
 * many pools open in this process, or no thread-specific key left (PTHREAD_KEYS_MAX). */
NUMACRE_API int numacre_open_private(const numacre_private_options *options, numacre_pool **pool);

/* Returns a sentence about the calling thread's last failed call. Never NULL; valid until the thread's next failing
 * call. */
NUMACRE_API const char *numacre_last_error(void);

/* Returns the library's version, "major.minor.patch". */
NUMACRE_API const char *numacre_version(void);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif
