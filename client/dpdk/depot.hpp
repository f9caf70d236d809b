// Batches of free objects, between the lcores of the process that a mempool has alone.
//
// An object that one lcore takes and another one puts would go through the pool each time: some locked instructions for
// each object. The depot moves up to 64 objects with four. It is two stacks of batches, full ones and empty ones; each
// is a word that names its first batch, with a counter of changes (a thread that has looked long ago must not succeed).
// Pushing and popping are lock-free, and safe for any thread of any process. A batch that is in neither stack is one
// thread's; if that thread is killed, the batch is lost, and its objects are in nobody else's hands: in quarantine.
//
// Once the mempool has a second process, nobody pushes full batches (LcoreShare::inside), and whoever finds the pool
// empty moves what is there into it.
#pragma once

#include "world.hpp"

namespace numacre::dpdk {

// The first batch of a stack, now the caller's; nullptr: the stack is empty.
inline Batch *pop(Depot &depot, std::atomic<std::uint64_t> &stack) {
    std::uint64_t head = stack.load(std::memory_order_acquire);
    for (;;) {
        const auto number = static_cast<std::uint32_t>(head);
        if (number == 0) return nullptr;
        Batch &first = depot.batches[number - 1];
        // Another thread may have popped it, and be changing it: then the exchange fails.
        const std::uint64_t next = first.next.load(std::memory_order_relaxed);
        // acquire: what the batch had when it was pushed.
        if (stack.compare_exchange_weak(head, ((head >> 32) + 1) << 32 | next, std::memory_order_acquire,
                                        std::memory_order_acquire))
            return &first;
    }
}

inline void push(Depot &depot, std::atomic<std::uint64_t> &stack, Batch &batch) {
    const auto number = static_cast<std::uint64_t>(&batch - depot.batches) + 1;
    std::uint64_t head = stack.load(std::memory_order_relaxed);
    do {
        batch.next.store(static_cast<std::uint32_t>(head), std::memory_order_relaxed);
        // release: all of the batch is there for the thread that pops it.
    } while (!stack.compare_exchange_weak(head, ((head >> 32) + 1) << 32 | number, std::memory_order_release,
                                          std::memory_order_relaxed));
}

inline bool has_full(const Depot &depot) {
    return static_cast<std::uint32_t>(depot.full.load(std::memory_order_relaxed)) != 0;
}

}  // namespace numacre::dpdk
