// The description of mempools: the parts that the processes of one DPDK world (a primary process and its secondaries)
// share, and the part of one process.
#pragma once

#include <pthread.h>
#include <rte_mempool.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "numacre/numacre.h"

namespace numacre::dpdk {

inline constexpr std::size_t kTokenBytes = 64;  // the smallest object of numacre; nobody touches a token's memory
inline constexpr std::uint32_t kMaxMempools = 512;
inline constexpr std::uint32_t kMaxAreas = 32;
inline constexpr std::size_t kNameBytes = 64;      // as numacre allows, with the terminating 0
inline constexpr std::size_t kHeapNameBytes = 32;  // as EAL allows, with the terminating 0
inline constexpr std::size_t kPathBytes = 108;     // as sun_path
inline constexpr unsigned kBatch = 64;             // objects that move together

// Objects at one distance: object i of the run stands at base + i * stride, and token first + i stands for it.
struct Run {
    char *base;
    std::uint64_t stride;
    // stride = odd part << shift, and inverse * odd part = 1 modulo 2^64. So inverse * offset, rotated, is the offset
    // of the token. An offset that is no object's becomes a number that is too large, or no token's (is_token()).
    std::uint64_t inverse;
    std::uint32_t rotation;
    std::uint32_t first;
    std::uint32_t count;

    static Run of(char *base, std::uint64_t stride, std::uint32_t first, std::uint32_t count);

    char *object(std::uint64_t token_offset) const { return base + (token_offset / kTokenBytes - first) * stride; }
    // Of an object of this run: less than count * kTokenBytes.
    std::uint64_t offset_in_run(const void *object) const {
        const std::uint64_t product = static_cast<std::uint64_t>(static_cast<const char *>(object) - base) * inverse;
        return product >> (rotation & 63) | product << (-rotation & 63);
    }
    bool contains(std::uint64_t offset_in_run) const { return offset_in_run < std::uint64_t{count} * kTokenBytes; }
    static bool is_token(std::uint64_t offset_in_run) { return offset_in_run % kTokenBytes == 0; }
};

// A process, also after its death.
struct ProcessName {
    std::uint64_t start;  // in clock ticks after the boot
    std::uint32_t pid;    // 0: no process
    std::uint32_t pid_namespace;

    bool operator==(const ProcessName &) const = default;
};

// The part of one lcore in a mempool; the last one is that of all threads that are no lcores, and has no stash.
//
// The stash: objects that the lcore's process owns and nobody uses, for bursts of a mempool without an lcore cache. It
// is used while the mempool has one process. The lcore's thread uses it between inside = 1 and inside = 0, without a
// locked instruction, and only if is_revoked is 0 then. The thread that takes a stash away sets is_revoked, lets all
// threads of the process pass a barrier (membarrier), and waits until inside is 0. Once the mempool has had a second
// process, is_revoked is kForEver.
//
// A kill between any two steps leaves entries [0, stashed) that are in nobody else's hands: an object is written before
// the count covers it, and the count falls before anybody else gets the object.
struct alignas(RTE_CACHE_LINE_SIZE) LcoreShare {
    std::atomic<std::int64_t> taken;  // objects dequeued less objects enqueued, by whichever process
    std::atomic<std::uint32_t> inside;
    std::atomic<std::uint32_t> is_revoked;
    std::atomic<std::uint32_t> stashed;
    std::uint32_t room;
    void **stash;
    ProcessName owner;       // of what is in the stash
    ProcessName cache_user;  // the process that uses DPDK's cache of this lcore

    static constexpr std::uint32_t kForEver = 2;
};
static_assert(sizeof(LcoreShare) == RTE_CACHE_LINE_SIZE);

// Some free objects of a depot (depot.hpp).
struct alignas(RTE_CACHE_LINE_SIZE) Batch {
    std::atomic<std::uint32_t> next;  // 1 + the number of the next one in its stack; 0: it is the last one
    std::uint32_t count;              // of a full one: of its objects, 1 to kBatch
    alignas(RTE_CACHE_LINE_SIZE) void *objects[kBatch];
};
// The stacks: 1 + the number of the first batch, or 0, and above these 32 bits the number of changes.
struct Depot {
    alignas(RTE_CACHE_LINE_SIZE) std::atomic<std::uint64_t> full;
    alignas(RTE_CACHE_LINE_SIZE) std::atomic<std::uint64_t> empty;
    alignas(RTE_CACHE_LINE_SIZE) Batch *batches;
};

// A piece of memory of a heap, or of external buffers (heap_name ""), that all processes map at the same address. The
// state only grows; a process that dies in between leaves it as it is, and the piece counts for nothing.
struct Area {
    // free -> claimed by one process -> described: the others map it -> added: EAL has it, or dropped: EAL does not.
    enum State : std::uint32_t { free, claimed, described, added, dropped };
    std::atomic<std::uint32_t> state;
    char runtime_dir[kPathBytes];
    char pool_name[kNameBytes];
    char heap_name[kHeapNameBytes];
    void *region;  // of numa node 0 (numacre_region)
    char *begin;
    std::size_t bytes;
};

// One for the world, in a memzone.
struct World {
    std::atomic<std::uint64_t> group;  // of numacre_join, for memory; random
    Area areas[kMaxAreas];
    std::atomic<std::uint64_t> slots[kMaxMempools / 64];  // Shared::slot of the mempools that there are
    // Sticky: the world has had a second process.
    std::atomic<std::uint32_t> is_shared;
    // 1 + the driver's index in the table of mempool drivers, the same in all processes; 0: nobody has said.
    std::atomic<std::uint32_t> ops_number;
};

// One for each mempool, in EAL's memory: at the same address in all processes of the world. mempool->pool_data points
// to it.
struct Shared {
    static constexpr std::uint64_t kMagic = 0x6d656d706f6f6c31;  // "mempool1"

    std::uint64_t magic;
    std::uint64_t id;  // random: tells this mempool from an earlier one in the same slot
    std::uint32_t slot;
    std::uint32_t count;      // the mempool's objects, and tokens
    std::uint32_t numa_node;  // of the tokens, in the object pool
    // Sticky: a second process has this mempool. From then on no lcore cache is used, and objects may have been taken
    // by another process than the one that puts them.
    std::atomic<std::uint32_t> is_shared;
    std::uint32_t run_count;
    std::uint32_t run_room;
    Run run;    // the only run, if there is one only
    Run *runs;  // all of them, in the order of their tokens
    std::uint32_t *by_address;
    char runtime_dir[kPathBytes];
    char pool_name[2 * kNameBytes];  // "POOL.NAME" for numacre_attach
    pthread_mutex_t reclaiming;      // robust: who takes the stashes of dead processes
    LcoreShare lcores[RTE_MAX_LCORE + 1];
    Depot depot;
    // Of a packet mempool (packets.hpp): the distance of objects, which are the object pool's own blocks; and the
    // address of the first one, the same in all processes. 0: the objects lie elsewhere, and blocks are tokens.
    std::uint64_t object_bytes;
    void *region;

    // The number of objects in the runs.
    std::uint32_t populated_runs_end() const {
        return run_count == 0 ? 0 : runs[run_count - 1].first + runs[run_count - 1].count;
    }
};

// One for each mempool that this process has used.
struct Local {
    std::uint64_t id;  // of the mempool; 0: inherited by fork(), not to be used
    numacre_pool *pool;
    char *tokens;  // token 0
    // The stashes of this process are in the pool, after a second process has come.
    std::atomic<bool> has_given_up;
    std::atomic<std::int64_t> looked_ms;  // the last look for stashes of dead processes, on CLOCK_MONOTONIC_COARSE
};

}  // namespace numacre::dpdk
