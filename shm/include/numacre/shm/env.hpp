// The environment of the allocator: atomics, a pause and crash points. In production it is std::atomic and nothing
// else. Under test every access is a scheduling point, so that the one source of the algorithm runs in the model
// checker and under crash injection.
#pragma once

#include <atomic>
#include <cstdint>

namespace numacre::engine {

// Points of death that shm/README.md's crash table describes. Their numbers are stable for the sake of test names only.
enum class CrashPoint : std::uint8_t {
    allocate_after_intent,
    allocate_after_claim,
    allocate_after_climb,
    allocate_after_commit,
    undo_after_trace,
    undo_after_unclaim,
    free_after_intent,
    free_after_ownership,
    free_after_unclaim,
    free_after_hints,
    clean_after_coalescing,
    hint_lowered,
    thread_slot_after_mark,
    thread_slot_after_claim,
    hand_off_on_its_way,
    hand_off_given,
    hand_off_received,
    free_lingers,
    hold_announced,
    hold_lent,
    drop_announced,
    drop_looked,
};

// An Env provides: Atomic<T> with the interface of std::atomic<T> (load, store, compare_exchange_*, fetch_and,
// fetch_add), pause() for a retry loop, crash_point(id), kRefusalRoundsMost (>= 2: BuddyRefusal::refusal_rounds).
struct ProductionEnv {
    template <class T>
    using Atomic = std::atomic<T>;

    static void pause() noexcept {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        asm volatile("yield");
#endif
    }

    static constexpr void crash_point(CrashPoint) noexcept {}

    static constexpr std::uint64_t kRefusalRoundsMost = 16;
};

static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "shared words must be plain lock-free 64-bit atomics");
static_assert(sizeof(std::atomic<std::uint64_t>) == 8, "shared words must be as large as what they hold");

}  // namespace numacre::engine
