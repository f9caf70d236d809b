// Waiting for memory. A waiter raises a flag in shared memory, tries once more and sleeps on the pool's release epoch;
// a release that sees the flag clears it, moves the epoch and wakes everybody; whoever is still short raises the flag
// again. Threads with cached blocks see the flag too, at their next call, and give them back; a waiter looks again by
// itself from time to time, since they may see it late. A waiter that dies leaves at most a raised flag, which costs
// the next release one wake-up call.
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

#include "pool.hpp"

namespace numacre::client {
namespace {

// The epoch's low half; both supported architectures are little-endian.
std::uint32_t *futex_word(numacre_pool *pool) {
    return reinterpret_cast<std::uint32_t *>(&pool->view.header->release_epoch);
}

}  // namespace

void wake_waiters(numacre_pool *pool) {
    auto &attention = pool->view.header->attention;
    if ((attention.fetch_and(~Attention::kWaiters, std::memory_order_seq_cst) & Attention::kWaiters) == 0) return;
    pool->view.header->release_epoch.fetch_add(1, std::memory_order_seq_cst);
    syscall(SYS_futex, futex_word(pool), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

std::uint32_t announce_waiter(numacre_pool *pool) {
    const auto epoch = static_cast<std::uint32_t>(pool->view.header->release_epoch.load(std::memory_order_seq_cst));
    // seq_cst before the allocation that follows; partner: has_waiters().
    pool->view.header->attention.fetch_or(Attention::kWaiters, std::memory_order_seq_cst);
    return epoch;
}

void sleep_for_release(numacre_pool *pool, std::uint32_t epoch, std::uint64_t nanoseconds) {
    const timespec duration{static_cast<time_t>(nanoseconds / 1'000'000'000),
                            static_cast<long>(nanoseconds % 1'000'000'000)};
    syscall(SYS_futex, futex_word(pool), FUTEX_WAIT, epoch, &duration, nullptr, 0);
}

}  // namespace numacre::client
