// How a thread of a client gets a thread slot: by a CAS in shared memory, it asks nobody.
#pragma once

#include <cstdint>

#include "numacre/shm/layout.hpp"
#include "numacre/shm/owner.hpp"

namespace numacre::engine {

// The daemon's own slot, which is never given out: all others are taken. Lock-free; does not enter the kernel. To give
// it back is a store (release) of 0 into its owner. A process that dies at whatever instruction: recovery finds the
// slot by its owner and frees it.
template <class Env>
ThreadSlotIndex claim_thread_slot(const PoolView<Env> &pool, ProcessSlot process) {
    auto &mark = pool.header->thread_high_water;
    for (std::uint32_t thread = 1; thread < pool.thread_slots; ++thread) {
        auto &owner = pool.threads[thread].owner;
        if (owner.load(std::memory_order_relaxed) != 0) continue;  // relaxed: only a guess, the CAS decides
        // Before the claim: recovery looks at slots below the mark only, and we may die right behind the claim. A mark
        // that is one too high, should we die here or somebody be faster, costs scans one slot.
        // relaxed: whoever raised it did what follows.
        std::uint64_t seen = mark.load(std::memory_order_relaxed);
        // seq_cst: scans must find the slot before its first intent matters.
        while (seen <= thread && !mark.compare_exchange_weak(seen, thread + 1, std::memory_order_seq_cst)) {
        }
        Env::crash_point(CrashPoint::thread_slot_after_mark);
        std::uint64_t free_slot = 0;
        // acq_rel: what the slot's last user or recovery left is finished before we begin.
        if (!owner.compare_exchange_strong(free_slot, ThreadOwner{process}.bits(), std::memory_order_acq_rel)) continue;
        Env::crash_point(CrashPoint::thread_slot_after_claim);
        return ThreadSlotIndex{static_cast<std::uint16_t>(thread)};
    }
    return kDaemonThread;
}

}  // namespace numacre::engine
