// The Env (shm/include/numacre/shm/env.hpp) under which allocators run on virtual cores. Each access to an Atomic is a
// scheduling point and is accounted (simulator.hpp); outside a simulation it is a plain access that nobody counts.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "support/word_at.hpp"

namespace numacre::contention {

enum class Access : std::uint8_t {
    load,
    store,
    exchange,
    compare_exchange,
    fetch_add,
    fetch_sub,
    fetch_and,
    fetch_or,
    pause  // no memory: a turn of a loop that waits for others
};

constexpr bool is_rmw(Access kind) {
    return kind != Access::load && kind != Access::store && kind != Access::pause;
}

struct Request {
    Access kind;
    std::uint8_t bytes;  // of the accessed object: 1, 2, 4 or 8
    void *address;
    std::uint64_t operand;   // what is stored, added ...
    std::uint64_t expected;  // compare_exchange only
};

// Lets the schedule decide who goes on, then performs the access. Returns the value before it. The one door between
// the code under test and the simulator (simulator.cpp).
std::uint64_t access(const Request &request);

struct ContentionEnv {
    static constexpr std::uint64_t kRefusalRoundsMost = 16;  // as in production
    // Sequentially consistent whatever the orders say: what is asked here is how often, not whether it is right.
    template <class T>
    class Atomic {
        static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8 && (sizeof(T) & (sizeof(T) - 1)) == 0);
        using order_type = std::memory_order;
        static constexpr order_type kSeqCst = std::memory_order_seq_cst;

    public:
        Atomic() = default;
        constexpr Atomic(T value) : value_(value) {}
        Atomic(const Atomic &) = delete;
        Atomic &operator=(const Atomic &) = delete;

        T load(order_type = kSeqCst) const { return run(Access::load, T{}); }
        void store(T value, order_type = kSeqCst) { run(Access::store, value); }
        T exchange(T value, order_type = kSeqCst) { return run(Access::exchange, value); }
        bool compare_exchange_strong(T &expected, T desired, order_type, order_type) {
            const std::uint64_t wanted = to_bits(expected);
            const std::uint64_t seen = access({Access::compare_exchange, sizeof(T), &value_, to_bits(desired), wanted});
            if (seen == wanted) return true;
            expected = from_bits(seen);
            return false;
        }
        bool compare_exchange_strong(T &expected, T desired, order_type order = kSeqCst) {
            return compare_exchange_strong(expected, desired, order, order);
        }
        // Never fails without cause, as on x86.
        bool compare_exchange_weak(T &expected, T desired, order_type, order_type) {
            return compare_exchange_strong(expected, desired);
        }
        bool compare_exchange_weak(T &expected, T desired, order_type = kSeqCst) {
            return compare_exchange_strong(expected, desired);
        }
        T fetch_add(T value, order_type = kSeqCst) { return run(Access::fetch_add, value); }
        T fetch_sub(T value, order_type = kSeqCst) { return run(Access::fetch_sub, value); }
        T fetch_and(T value, order_type = kSeqCst) { return run(Access::fetch_and, value); }
        T fetch_or(T value, order_type = kSeqCst) { return run(Access::fetch_or, value); }

    private:
        // Through the low bytes of a word: simulator.cpp insists on little endian.
        static std::uint64_t to_bits(T value) {
            std::uint64_t bits = 0;
            std::memcpy(&bits, &value, sizeof value);
            return bits;
        }
        static T from_bits(std::uint64_t bits) {
            T value;
            std::memcpy(&value, &bits, sizeof value);
            return value;
        }
        T run(Access kind, T operand) const {
            return from_bits(access({kind, sizeof(T), &value_, to_bits(operand), 0}));
        }

        // mutable: a load goes through the same door as a write.
        mutable T value_;
    };

    static void pause() { access({Access::pause, 0, nullptr, 0, 0}); }
    template <class Point>
    static constexpr void crash_point(Point) noexcept {}
};

static_assert(sizeof(ContentionEnv::Atomic<std::uint64_t>) == 8,
              "what is shared must lie on the lines that it really lies on");

// What is written in C (numacre/shm/cached_block.h) goes through the same door.
#define NUMACRE_INLINE_LOAD(place) ::numacre::test::word_at<::numacre::contention::ContentionEnv>(place).load()
#define NUMACRE_INLINE_STORE(place, bits) \
    ::numacre::test::word_at<::numacre::contention::ContentionEnv>(place).store(bits)
#define NUMACRE_INLINE_RELEASE(place, bits) NUMACRE_INLINE_STORE(place, bits)

}  // namespace numacre::contention
