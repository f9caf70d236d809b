// The Env (shm/include/numacre/shm/env.hpp) under which the product's sources run in the simulator: each access to an
// Atomic, each crash_point and each pause is a place where the scheduler (scheduler.hpp) may switch, stop or kill.
// Outside a fiber an access is a plain one.
#pragma once

#include <atomic>
#include <cstdint>
#include <type_traits>

#include "support/word_at.hpp"

namespace numacre::simulation {

// What an access looks at. One object, so that an access which decides nothing costs one decrement.
struct Door {
    std::int64_t left = 0;                     // accesses until the next decision; outside fibers practically infinite
    std::int64_t granted = 0;                  // what `left` began with
    std::uint64_t steps = 0;                   // accesses before that
    std::int64_t points_left = 0;              // named crash points until one of them is a fault
    std::uint64_t points = ~std::uint64_t{0};  // which, by CrashPoint's number
    std::int64_t spurious_left = 0;            // weak compare-and-swaps until one fails without cause
    bool has_adversary = false;                // looks at watched words are told beforehand
    bool is_watched = false;                   // who touches what is told
    const char *watched_begin = nullptr;       // changes of words in between are told to the world
    const char *watched_end = nullptr;
    const char *slots_begin = nullptr;  // the same of stores
    const char *slots_end = nullptr;
};
inline constexpr std::int64_t kNever = std::int64_t{1} << 62;
inline Door door;

inline std::uint64_t steps_done() {
    return door.steps + static_cast<std::uint64_t>(door.granted - door.left);
}
// Out of line: what is rare.
void decide();
void fault_at_point();
bool fails_without_cause();
void note_change(const void *word, std::uint64_t before, std::uint64_t after);

void note_access(const void *word);
void before_look(const void *word);
void note_store(const void *word, std::uint64_t before, std::uint64_t after);

inline void step() {
    if (--door.left < 0) [[unlikely]]
        decide();
}

struct SimulationEnv {
    static constexpr std::uint64_t kRefusalRoundsMost = 16;  // as in production
    // Sequentially consistent whatever the orders say: README.md says what that hides.
    template <class T>
    class Atomic {
        static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
        using order_type = std::memory_order;
        static constexpr order_type kSeqCst = std::memory_order_seq_cst;

    public:
        Atomic() = default;
        constexpr Atomic(T value) : value_(value) {}
        Atomic(const Atomic &) = delete;
        Atomic &operator=(const Atomic &) = delete;

        T load(order_type = kSeqCst) const {
            access();
            if constexpr (sizeof(T) == 8)
                if (door.has_adversary) [[unlikely]]
                    before_look(&value_);
            return value_;
        }
        void store(T value, order_type = kSeqCst) {
            access();
            if constexpr (sizeof(T) == 8) {
                const T old = value_;
                value_ = value;
                const auto *const at = reinterpret_cast<const char *>(&value_);
                if (at >= door.slots_begin && at < door.slots_end)
                    note_store(at, static_cast<std::uint64_t>(old), static_cast<std::uint64_t>(value));
            } else {
                value_ = value;
            }
        }
        T exchange(T value, order_type = kSeqCst) {
            return change([value](T) { return value; });
        }
        bool compare_exchange_strong(T &expected, T desired, order_type, order_type) {
            access();
            if (value_ != expected) {
                expected = value_;
                return false;
            }
            become(desired);
            return true;
        }
        bool compare_exchange_strong(T &expected, T desired, order_type order = kSeqCst) {
            return compare_exchange_strong(expected, desired, order, order);
        }
        bool compare_exchange_weak(T &expected, T desired, order_type, order_type) {
            if (--door.spurious_left < 0 && fails_without_cause()) [[unlikely]] {
                step();
                expected = value_;
                return false;
            }
            return compare_exchange_strong(expected, desired);
        }
        bool compare_exchange_weak(T &expected, T desired, order_type order = kSeqCst) {
            return compare_exchange_weak(expected, desired, order, order);
        }
        T fetch_add(T value, order_type = kSeqCst) {
            return change([value](T old) { return static_cast<T>(old + value); });
        }
        T fetch_sub(T value, order_type = kSeqCst) {
            return change([value](T old) { return static_cast<T>(old - value); });
        }
        T fetch_and(T value, order_type = kSeqCst) {
            return change([value](T old) { return static_cast<T>(old & value); });
        }
        T fetch_or(T value, order_type = kSeqCst) {
            return change([value](T old) { return static_cast<T>(old | value); });
        }

    private:
        void access() const {
            step();
            if (door.is_watched) [[unlikely]]
                note_access(&value_);
        }
        template <class Change>
        T change(const Change &how) {
            access();
            const T old = value_;
            become(how(old));
            return old;
        }
        void become(T now) {
            const T old = value_;
            value_ = now;
            if constexpr (sizeof(T) == 8) {
                const auto *const at = reinterpret_cast<const char *>(&value_);
                if (at >= door.watched_begin && at < door.watched_end)
                    note_change(at, static_cast<std::uint64_t>(old), static_cast<std::uint64_t>(now));
            }
        }

        T value_;
    };

    static void pause() { step(); }
    template <class Point>
    static void crash_point(Point point) {
        if ((door.points >> static_cast<unsigned>(point) & 1) != 0 && --door.points_left < 0) [[unlikely]]
            fault_at_point();
    }
};

static_assert(sizeof(SimulationEnv::Atomic<std::uint64_t>) == 8);

inline std::uint64_t load_plainly(const std::uint64_t *place) {
    return test::word_at<SimulationEnv>(place).load();
}

// The steps that are written in C (numacre/shm/cached_block.h, numacre/inline.h) go through the same door.
#define NUMACRE_INLINE_LOAD(place) ::numacre::simulation::load_plainly(place)
#define NUMACRE_INLINE_STORE(place, bits) \
    ::numacre::test::word_at<::numacre::simulation::SimulationEnv>(place).store(bits)
#define NUMACRE_INLINE_RELEASE(place, bits) NUMACRE_INLINE_STORE(place, bits)

}  // namespace numacre::simulation
