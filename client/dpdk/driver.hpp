// The parts of the driver: ops.cpp (the data path), attach.cpp (the object pools behind mempools), runs.cpp (objects
// and tokens), hook.cpp (what happens as EAL starts), heap.cpp (mempool memory out of numacre's), helpers.cpp.
#pragma once

#include <rte_log.h>

#include "world.hpp"

namespace numacre::dpdk {

// --- runs.cpp --------------------------------------------------------------------------------------------------------

inline constexpr std::uint64_t kNoToken = ~std::uint64_t{0};

// Notes the mempool's next object, which takes bytes_with_header. is_behind: it lies behind the object before, in one
// piece of memory with it. False: EAL has no memory.
bool add_object(Shared &shared, void *object, std::size_t bytes_with_header, bool is_behind);
// Drops all objects but the first ones.
void keep_objects(Shared &shared, std::uint32_t first_ones);
// The object that a token stands for; any number of runs.
void *object_of(const Shared &shared, std::uint64_t token_offset);
// kNoToken: no object of the mempool begins there.
std::uint64_t token_offset_of(const Shared &shared, const void *object);

// --- world.cpp -------------------------------------------------------------------------------------------------------

// nullptr: EAL has no memory for it; the log says so.
World *world();
// Not 0.
std::uint64_t random_number();
// kMaxMempools: all slots are taken. A process that dies keeps its mempools' slots: the mempools stay as well.
std::uint32_t claim_slot(World &world);
void release_slot(World &world, std::uint32_t slot);

// --- hook.cpp --------------------------------------------------------------------------------------------------------

// Returns -EPROTO, with a line in the log, if this process has other mempool drivers than the first one.
int check_world();

// --- heap.cpp --------------------------------------------------------------------------------------------------------

// Maps the memory of heaps that other processes have made. Returns 0 or -errno, with a line in the log.
int attach_heaps();
// All objects of the mempool are mapped in this process, as far as heaps have them.
bool is_mapped(const Shared &shared);
// In a child of fork(): the handles and the lock are the parent's.
void reset_heaps_after_fork();
// Attaches at an address that is likely to be free in the world's other processes as well. Returns 0 or -errno.
int attach_somewhere(const char *runtime_dir, const char *name, numacre_pool **pool);
// The socket id of a heap that has `bytes` in one piece. -errno, with a line in the log.
int heap_for_mempool(const char *pool_name, std::size_t bytes);

// --- attach.cpp ------------------------------------------------------------------------------------------------------

// From the environment.
const char *runtime_dir();
const char *base_name();

// An object pool of packets that this process has attached to, for a mempool that is to be made.
struct PacketPool {
    numacre_pool *pool;  // nullptr: it is the mempool's now
    std::uint64_t object_bytes;
    char name[2 * kNameBytes];  // "POOL.NAME"
};
// Makes the object pool of a new mempool, with all tokens in this process's hands, and sets mempool->pool_data.
// packets: not nullptr if the mempool is to be one of packets; the handle is then the mempool's, also after a failure.
// Returns 0 or -errno, with a line in the log.
int make_shared(rte_mempool *mempool, PacketPool *packets);
// Gives `count` tokens from number `first` on into the pool: their objects exist.
int release_tokens(const Shared &shared, const Local &local, std::uint32_t first, std::uint32_t count);
// Gives the mempool up in this process, and what its processes share.
void delete_shared(Shared *shared);

// From now on a child of fork() does not use what it inherits.
void watch_forks();
// This process is a child of fork() of one that has used mempools.
extern bool is_child;
// This process's handles of mempools, by Shared::slot.
extern std::atomic<Local *> locals[kMaxMempools];
// Attaches this process to the mempool's object pool, or, in a child of fork(), anew. nullptr: it cannot, and the log
// says why; some milliseconds after such a failure it does not try.
Local *enter(Shared *shared);

// --- stash.cpp -------------------------------------------------------------------------------------------------------

inline constexpr unsigned kStashRoom = 512;   // at most, for an lcore
inline constexpr unsigned kStashBurst = 256;  // larger bursts go past the stash

// Gives the lcore its stash, if it may have one. Called by the lcore's thread.
void make_stash(Shared &shared, LcoreShare &lcore);
// Gives the mempool a depot, if it is large enough to be worth one. Called while one thread has the mempool.
void make_depot(Shared &shared);
// Moves what the depot has into the pool. Returns the number of objects.
unsigned drain_depot(Shared &shared, const Local &local);
// Moves what the depot and the stashes of other lcores have into the pool, while the mempool has one process. Returns
// the number of objects.
unsigned take_stashes(Shared &shared, const Local &local);
// Moves what the depot and the stashes of all lcores of this process have into the pool, after a second process has
// come: once, unless a thread has lost its CPU inside its stash. Returns the number of objects.
unsigned give_up_stashes(Shared &shared, Local &local);
// Moves what the depot and the stashes of dead processes have into the pool. Returns the number of objects.
unsigned reclaim(Shared &shared, const Local &local);
// As reclaim(), but only if the last look was some milliseconds ago: a look reads files.
unsigned reclaim_sometimes(Shared &shared, Local &local);
// From now on no stash of this mempool takes objects, and each lcore gives its cache up at its next call of the driver.
void share(Shared &shared);
// Empties DPDK's cache of this lcore, and lets the calling process go without it. Objects of a dead process that the
// cache has stay in quarantine. If another living process uses the cache, nothing changes, and the log says so.
void take_lcore_cache(rte_mempool &mempool, unsigned lcore);
// In the process that makes the mempool.
void note_lcore_caches(Shared &shared);
// From now on rte_mempool_put() calls the driver at once, and rte_mempool_get() asks for as much as it needs. Called by
// the lcore's thread, or while no thread uses the cache.
void forget_lcore_cache(rte_mempool_cache &cache);
// In a child of fork(): locks that other threads of the parent had.
void reset_after_fork();

// On CLOCK_MONOTONIC_COARSE: in steps of some milliseconds.
std::int64_t now_ms();

// --- process.cpp -----------------------------------------------------------------------------------------------------

const ProcessName &this_process();
// True only if no thread of that process runs any more. A process of another pid namespace, or one that cannot be
// looked at, counts as alive.
bool is_dead(const ProcessName &process);

// --- ops.cpp ---------------------------------------------------------------------------------------------------------

// Frees objects past the stashes. Returns the number of those that could be freed; of the others the log says why.
unsigned free_objects(Shared &shared, const Local &local, void *const *objects, unsigned count);
// Notes that the calling lcore has taken objects, or has put -taken.
void count_taken(Shared &shared, std::int64_t taken);
// Makes this process the owner of objects that the caller has, and stores their tokens. Returns 0, or -errno: then some
// are owned by nobody, or are no objects.
int adopt_objects(Shared &shared, const Local &local, void *const *objects, void **tokens, unsigned count);

// The bytes of a mempool's objects, in one piece.
std::size_t bytes_of_objects(const rte_mempool *mempool);

// --- packets.cpp -----------------------------------------------------------------------------------------------------

// The wish of the thread that is making a packet mempool of this configuration; nullptr: it is an ordinary one.
PacketPool *packet_pool_of(const rte_mempool *mempool);
// rte_mempool's get and put, for a packet mempool. Return 0, or -ENOBUFS after which the table is as it was.
int take_packets(rte_mempool *mempool, Shared &shared, const Local *local, void **table, unsigned count);
// Frees as many as can be freed, and returns their number; of the others the log says why.
unsigned put_packets(Shared &shared, const Local *local, void *const *table, unsigned count);

// --- log -------------------------------------------------------------------------------------------------------------

extern int log_type;
#define NUMACRE_LOG(level, ...) rte_log(RTE_LOG_##level, ::numacre::dpdk::log_type, "NUMACRE: " __VA_ARGS__)

}  // namespace numacre::dpdk
