// Tallies: one thread writes each, and any reader sums them up.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <type_traits>

#include "numacre/shm/layout.hpp"

namespace numacre::engine {

// Only the slot's own thread may call this. A load and a store, no RMW. relaxed: a tally orders nothing, and a reader
// that sees it a moment late is as good as a reader that came a moment earlier. Every call of the hot path counts, and
// compilers make three instructions of two accesses to an atomic: x86-64 has one instruction for both, which is not
// locked.
template <class Word>
void count(Word &tally, std::uint64_t amount = 1) {
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
    if constexpr (std::is_same_v<Word, std::atomic<std::uint64_t>>) {
        asm volatile("addq %1, %0" : "+m"(tally) : "er"(amount));
        return;
    }
#endif
    tally.store(tally.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
}

// Sums over all thread slots of one numa node. The sums never decrease, and are exact while nobody allocates.
struct CounterTotals {
    std::array<std::uint64_t, kMaxOrder + 1> allocations{};
    std::array<std::uint64_t, kMaxOrder + 1> frees{};
    std::array<std::uint64_t, kFailureReasons> failures{};
    std::uint64_t cas_retries = 0, numa_hit = 0, numa_miss = 0, numa_foreign = 0, takes = 0;
    std::uint64_t interleave_hit = 0, local_node = 0, other_node = 0, hand_offs = 0;
};

template <class Env>
CounterTotals fold_counters(const NodeView<Env> &view, std::uint32_t threads_bound) {
    CounterTotals totals;
    const auto read = [](const auto &tally) { return tally.load(std::memory_order_relaxed); };
    for (std::uint32_t thread = 0; thread < threads_bound; ++thread) {
        const auto &mine = view.counters[thread];
        for (unsigned order = 0; order <= kMaxOrder; ++order) {
            totals.allocations[order] += read(mine.allocations[order]);
            totals.frees[order] += read(mine.frees[order]);
        }
        for (unsigned reason = 0; reason < kFailureReasons; ++reason)
            totals.failures[reason] += read(mine.failures[reason]);
        totals.cas_retries += read(mine.cas_retries);
        totals.numa_miss += read(mine.numa_miss);
        totals.numa_foreign += read(mine.numa_foreign);
        totals.takes += read(mine.takes);
        totals.interleave_hit += read(mine.interleave_hit);
        totals.hand_offs += read(mine.hand_offs);
        totals.other_node += read(mine.numa_other);
    }
    // Every block that was allocated here either is a hit or was wanted elsewhere, and is for a thread either here or
    // elsewhere. So hits and local blocks need no counter of their own on the hot path.
    std::uint64_t allocations = 0;
    for (const std::uint64_t of_order : totals.allocations) allocations += of_order;
    totals.numa_hit = allocations > totals.numa_miss ? allocations - totals.numa_miss : 0;
    totals.local_node = allocations > totals.other_node ? allocations - totals.other_node : 0;
    return totals;
}

// Number of threads that wait for memory (hand_off.hpp), by preferred numa node.
template <class Env>
std::array<std::uint32_t, kMaxNumaNodes> count_waiters(const PoolView<Env> &pool, std::uint32_t threads_bound) {
    std::array<std::uint32_t, kMaxNumaNodes> waiters{};
    for (std::uint32_t thread = 0; thread < threads_bound; ++thread) {
        // relaxed: a number for people. wanted_node() has six bits.
        const WaitWord word{pool.threads[thread].waiting.load(std::memory_order_relaxed)};
        if (word.is_waiting()) ++waiters[word.wanted_node().value];
    }
    return waiters;
}

}  // namespace numacre::engine
