// The limits on this process (shm/account.hpp). Cached blocks count as the process's. A take of a block that was handed
// over is never refused, but the block then counts for the taker and no longer for the giver.
#include <utility>

#include "engine.hpp"
#include "numacre/shm/snapshot.hpp"
#include "pool.hpp"

namespace numacre::client {
namespace {

constexpr int kTries = 3;  // two processes that want the last frames at once may refuse each other

}  // namespace

void count_what_is_held(numacre_pool *pool) {
    auto &held = pool->view.processes[pool->process.value].held;
    std::uint64_t bits = held.load(std::memory_order_relaxed);  // relaxed: the CAS decides
    if (HeldFrames{bits}.is_counted()) return;
    OwnFrames own{pool->process};
    for (std::uint32_t node = 0; node < pool->numa_nodes; ++node) walk_all(pool->nodes[node].buddy().view(), own);
    // Failed: another thread, or the daemon, was first.
    held.compare_exchange_strong(bits, HeldFrames::of(own.frames).bits(), std::memory_order_relaxed);
}

void CountedCall::begin(numacre_pool *pool, Actor actor, std::uint64_t frames, ProcessSlot giver) {
    pool_ = pool;
    thread_ = actor.thread;
    before_ = begin_under_way(pool->view, thread_, frames, giver);
}

void CountedCall::end_now() {
    end_under_way(pool_->view, thread_, before_);
    pool_ = nullptr;
}

Admission charge_frames(numacre_pool *pool, Actor actor, std::uint64_t frames) {
    count_what_is_held(pool);
    Charging charging;
    bool has_refused_others = false;
    const auto try_once = [&] {
        charging = charge(pool->view, pool->process, frames);
        has_refused_others = has_refused_others || charging.is_taken_back;
        return charging.answer == Admission::granted;
    };
    bool is_granted = false;
    for (int i = 0; i < kTries && !is_granted; ++i) is_granted = try_once();
    if (!is_granted && forget_stale_gifts(pool)) (void)try_once();
    // A thread that serves a waiter may have met a charge that is gone by now.
    if (has_refused_others && has_waiters(pool)) serve_waiters(pool, actor);
    return charging.answer;
}

Admission ask_frames(numacre_pool *pool, std::uint64_t frames) {
    count_what_is_held(pool);
    const Admission answer = ask(pool->view, pool->process, frames);
    if (answer == Admission::granted || !forget_stale_gifts(pool)) return answer;
    return ask(pool->view, pool->process, frames);
}

void Charge::undo() {
    const bool was_made = std::exchange(is_made, false);
    if (was_made) uncharge_frames(pool, frames);
    call.end();
    if (was_made && has_waiters(pool)) serve_waiters(pool, actor);
}

void uncharge_frames(numacre_pool *pool, std::uint64_t frames) {
    remove_held(pool->view, pool->process, frames);
}

void note_freed(numacre_pool *pool, std::uint32_t numa_node, Block block) {
    engine::note_freed(pool->view, block.order.frames(),
                       [&] { return pool->nodes[numa_node].buddy().is_draining(block); });
}

void uncharge_freed(numacre_pool *pool, std::uint32_t numa_node, Block block) {
    note_freed(pool, numa_node, block);
    uncharge_frames(pool, block.order.frames());
}

void charge_taken(numacre_pool *pool, Giver giver, std::uint64_t frames) {
    if (giver.process == pool->process || giver.process.value >= pool->view.process_slots) return;
    add_held(pool->view, pool->process, frames);
    remove_lost(pool->view, giver.process, giver.generation, frames);
}

}  // namespace numacre::client
