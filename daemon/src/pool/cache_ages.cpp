#include "pool/cache_ages.hpp"

#include "numacre/shm/thread_parts.hpp"

namespace numacre::daemon {

namespace {

// Allocations and frees of the orders that are cached.
std::uint64_t calls_of(std::uint32_t thread, std::span<const View> numa_nodes) {
    std::uint64_t calls = 0;
    for (const View &view : numa_nodes)
        for (unsigned order = 0; order <= kLeafOrder; ++order)
            // relaxed: tallies, of which only a change matters.
            calls += view.counters[thread].allocations[order].load(std::memory_order_relaxed) +
                     view.counters[thread].frees[order].load(std::memory_order_relaxed);
    return calls;
}

// False: the thread's cache is its own, or has been taken back since the thread last looked.
bool may_cache(const SharedPool &pool, std::uint32_t thread) {
    // relaxed, all: only a guess.
    const auto &slot = pool.threads[thread];
    const std::uint64_t answered = slot.answered.load(std::memory_order_relaxed);
    return answered != Answered::kNever &&
           !Answered::is_before(answered, pool.header->gathered_for.load(std::memory_order_relaxed));
}

}  // namespace

bool CacheAges::look(const SharedPool &pool, std::span<const View> numa_nodes) {
    const std::uint32_t threads = pool.threads_in_use_bound();
    if (uses_.size() < threads) uses_.resize(threads);
    bool is_any_old = false;
    for (std::uint32_t thread = kDaemonThread.value + 1U; thread < threads; ++thread) {
        Use &use = uses_[thread];
        // relaxed: only a guess.
        if (!ThreadOwner{pool.threads[thread].owner.load(std::memory_order_relaxed)}.in_use()) continue;
        const std::uint64_t calls = calls_of(thread, numa_nodes);
        if (calls != use.calls) {
            use = {calls, 0};
            continue;
        }
        if (use.looks > kLooksUntilOld || !may_cache(pool, thread)) continue;
        ++use.looks;
        is_any_old = is_any_old || use.looks > kLooksUntilOld;
    }
    return is_any_old;
}

}  // namespace numacre::daemon
