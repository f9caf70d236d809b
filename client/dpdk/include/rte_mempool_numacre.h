/* The mempool driver "numacre" for DPDK: calls beside those of rte_mempool, for programs that know of numacre. A
 * program that does not know it needs none of them: `-d librte_mempool_numacre.so --mbuf-pool-ops-name=numacre`.
 * numacre_dpdk(7) describes the driver.
 *
 * A *world* is a DPDK primary process and its secondaries. Every function returns 0 (or a number) or -errno unless it
 * says otherwise, and writes a line into DPDK's log when it fails. A program links librte_mempool_numacre, or finds the
 * functions by dlsym in the driver that EAL has loaded. */
#ifndef RTE_MEMPOOL_NUMACRE_H
#define RTE_MEMPOOL_NUMACRE_H

#include <stddef.h>
#include <stdint.h>

#include "numacre/numacre.h"

#ifdef __cplusplus
extern "C" {
#endif

struct rte_mempool;
struct rte_pktmbuf_extmem;

#define RTE_MEMPOOL_NUMACRE_API __attribute__((visibility("default")))

/* Stores the references of `count` objects of a mempool of this driver, which the caller has: the objects are then on
 * their way to another process, and the caller uses them no more. References go through any channel (an rte_ring of
 * 64-bit values, a pipe). An object whose reference nobody takes comes back by rte_mempool_numacre_take_burst in the
 * giving process; do not put the object itself into the mempool. The arrays must not overlap. Thread-safe, does not
 * block. Errors: -EINVAL no mempool of this driver, or a pointer that is none of its objects; -EPERM an object that no
 * process of the world has; then no reference may be used. If the caller is killed inside, the objects are quarantined
 * (numacre_dpdk(7)). */
RTE_MEMPOOL_NUMACRE_API int rte_mempool_numacre_give_burst(struct rte_mempool *mempool, void *const *objects,
                                                           numacre_ref *refs, unsigned count);

/* Makes this process the owner of objects by their references, and stores the objects, at the same address as in the
 * giving process. The death of the giving process does not concern these objects any more; if the taking process dies,
 * they are quarantined. For a stale reference NULL is stored, and the call continues. Returns the number of objects
 * taken. Thread-safe, does not block. Errors: -EINVAL no mempool of this driver. If the caller is killed inside, each
 * object is owned by exactly one of the two processes. */
RTE_MEMPOOL_NUMACRE_API int rte_mempool_numacre_take_burst(struct rte_mempool *mempool, const numacre_ref *refs,
                                                           void **objects, unsigned count);

/* Moves the objects that stashes of dead processes have into the mempool. (A mempool that runs out of objects does so
 * by itself.) Returns the number of objects. Thread-safe; reads /proc. Errors: -EINVAL no mempool of this driver. If
 * the caller is killed inside, a later call goes on; up to 64 objects are quarantined. */
RTE_MEMPOOL_NUMACRE_API int rte_mempool_numacre_reclaim(struct rte_mempool *mempool);

/* Adds `size_bytes` of numacre's memory (rounded up to 2 MiB) to the external heap `heap_name` of EAL, and makes the
 * heap if there is none. The memory is a run (numacre_alloc_run) of the pool `pool_name` (NULL: $NUMACRE_DPDK_POOL,
 * else "default") of the daemon at $NUMACRE_RUNTIME_DIR, on numa node `numa_node` of the pool (-1: any), pinned, and
 * stays with the heap as long as a process of the world lives. Returns the heap's socket id: a mempool
 * (rte_pktmbuf_pool_create) or a memzone that names it lies in the pool. All drivers of devices see ordinary memory
 * segments. Secondaries that start later map the memory at the same address by themselves. Other processes, also
 * children of fork(), have to call rte_mempool_numacre_attach_heaps before they use the memory. Errors: -ENOMEM no run
 * of that size in the pool; -EEXIST a heap name that is not an external heap's; -ENOSPC 32 pieces of memory already;
 * -ENOTSUP EAL runs without virtual I/O addresses, and the kernel does not tell physical ones: use
 * --iova-mode=va; -EINVAL a bad argument. Call it after rte_eal_init. If the caller dies inside, the memory stays with
 * the world, unused. */
RTE_MEMPOOL_NUMACRE_API int rte_mempool_numacre_heap(const char *heap_name, const char *pool_name, int numa_node,
                                                     size_t size_bytes);

/* Maps the memory of all heaps of numacre that other processes of the world have made, at the same address as there.
 * Errors: those of numacre_attach_with; -EEXIST the addresses are not free in this process. Thread-safe. */
RTE_MEMPOOL_NUMACRE_API int rte_mempool_numacre_attach_heaps(void);

/* Describes memory for pinned external buffers: fills in *extmem for `count` buffers of `element_bytes` each (data
 * room, headroom included; a multiple of 64), out of the pool `pool_name` (as rte_mempool_numacre_heap). Pass it to
 * rte_pktmbuf_pool_create_extbuf. The memory is a run of the pool on numa node `numa_node` (-1: any), pinned and
 * registered with EAL (rte_extmem_register), and stays as long as a process of the world lives.
 * Errors: as rte_mempool_numacre_heap. */
RTE_MEMPOOL_NUMACRE_API int rte_mempool_numacre_extmem(const char *pool_name, int numa_node, uint16_t element_bytes,
                                                       uint32_t count, struct rte_pktmbuf_extmem *extmem);

/* Makes, or finds in this world, the mempool of packets whose mbufs lie in the object pool `name` of the pool
 * `pool_name` (NULL: $NUMACRE_DPDK_POOL, else "default") of the daemon at $NUMACRE_RUNTIME_DIR, as the device
 * net_numacre sends them. Other worlds, and programs without DPDK, use the same object pool: each world has a mempool
 * of its own for it. If there is no such object pool, it is made, with `count` packets on each numa node of the pool
 * and room for `data_bytes` of data in each, behind a headroom of RTE_PKTMBUF_HEADROOM; 0 and 0: the object pool has to
 * be there. The mempool has no lcore caches, for numacre has one for each thread. Its objects are not listed
 * (rte_mempool_obj_iter finds none): most are other processes'. Its free packets come back from processes that die, and
 * rte_mempool_avail_count counts what others have as free. Do not free the mempool while a device uses it. Thread-safe.
 * Enters the kernel. If the caller is killed inside, the object pool is there or not, and goes with its last client.
 * NULL: DPDK's log says why, and rte_errno is EINVAL a bad argument; EEXIST the object pool has other sizes, or the
 * world has packets of this name in another pool; ENAMETOOLONG; or an errno of numacre_objects_open or numacre_attach.
 */
RTE_MEMPOOL_NUMACRE_API struct rte_mempool *rte_mempool_numacre_packets(const char *pool_name, const char *name,
                                                                        unsigned count, unsigned data_bytes);

#ifdef __cplusplus
}
#endif

#endif
