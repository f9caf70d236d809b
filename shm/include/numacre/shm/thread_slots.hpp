// A client thread's claim of a thread slot: a CAS in shared memory, without the daemon.
#pragma once

#include <cstdint>

#include "numacre/shm/layout.hpp"
#include "numacre/shm/owner.hpp"

namespace numacre::engine {

// Claims a thread slot for a thread of `process`. Returns kDaemonThread, which no client gets, if all slots are taken.
// Lock-free; does not enter the kernel. A thread gives its slot back by a store (release) of 0 into the slot's owner.
// If the process dies at any instruction, recovery finds the slot by its owner and frees it.
template <class Env>
ThreadSlotIndex claim_thread_slot(const PoolView<Env> &pool, ProcessSlot process) {
    auto &mark = pool.header->thread_high_water;
    for (std::uint32_t thread = 1; thread < pool.thread_slots; ++thread) {
        auto &owner = pool.threads[thread].owner;
        if (owner.load(std::memory_order_relaxed) != 0) continue;  // relaxed: only a guess, the CAS decides
        // The mark rises before the claim: recovery looks at slots below the mark only, and this thread may die right
        // behind the claim. The mark is one too high if the thread dies here or loses the claim; that costs scans one
        // slot. relaxed: the thread that raised the mark did the steps that follow.
        std::uint64_t seen = mark.load(std::memory_order_relaxed);
        // seq_cst: scans must find the slot before its first intent matters.
        while (seen <= thread && !mark.compare_exchange_weak(seen, thread + 1, std::memory_order_seq_cst)) {
        }
        Env::crash_point(CrashPoint::thread_slot_after_mark);
        std::uint64_t free_slot = 0;
        // acq_rel: all writes of the slot's last user, or of its recovery, come before ours.
        if (!owner.compare_exchange_strong(free_slot, ThreadOwner{process}.bits(), std::memory_order_acq_rel)) continue;
        Env::crash_point(CrashPoint::thread_slot_after_claim);
        return ThreadSlotIndex{static_cast<std::uint16_t>(thread)};
    }
    return kDaemonThread;
}

}  // namespace numacre::engine
