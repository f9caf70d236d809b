// The Env (shm/include/numacre/shm/env.hpp) under which the real allocator source runs in the model checker. Each
// access to an Atomic is one step of the explorer; with no explorer at work it is a plain access.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace numacre::model {

enum class Access : std::uint8_t { load, store, exchange, compare_exchange, fetch_add, fetch_sub, fetch_and, fetch_or };

struct Request {
    Access kind;
    std::uint8_t bytes;  // size of the accessed object: 1, 2, 4 or 8
    void *address;
    std::uint64_t operand;   // what is stored, added ...
    std::uint64_t expected;  // compare_exchange only
};

// Lets the scheduler decide when, then performs the access. Returns the value before it. The one door between the code
// under test and the explorer (explorer.cpp).
std::uint64_t access(const Request &request);

struct SimEnv {
    template <class T>
    class Atomic {
        static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8 && (sizeof(T) & (sizeof(T) - 1)) == 0,
                      "the explorer knows accesses of 1, 2, 4 and 8 bytes");

    public:
        Atomic() = default;
        constexpr Atomic(T value) : value_(value) {}
        Atomic(const Atomic &) = delete;
        Atomic &operator=(const Atomic &) = delete;

        // Memory orders are accepted and ignored: the explorer knows sequential consistency only (README.md).
        T load(std::memory_order = std::memory_order_seq_cst) const { return from_bits(run(Access::load, 0, 0)); }
        void store(T value, std::memory_order = std::memory_order_seq_cst) { run(Access::store, to_bits(value), 0); }
        T exchange(T value, std::memory_order = std::memory_order_seq_cst) {
            return from_bits(run(Access::exchange, to_bits(value), 0));
        }
        bool compare_exchange_strong(T &expected, T desired, std::memory_order = std::memory_order_seq_cst,
                                     std::memory_order = std::memory_order_seq_cst) {
            const std::uint64_t wanted = to_bits(expected);
            const std::uint64_t seen = run(Access::compare_exchange, to_bits(desired), wanted);
            if (seen == wanted) return true;
            expected = from_bits(seen);
            return false;
        }
        // Never fails without cause: a spurious failure only repeats the caller's loop.
        bool compare_exchange_weak(T &expected, T desired, std::memory_order success = std::memory_order_seq_cst,
                                   std::memory_order failure = std::memory_order_seq_cst) {
            return compare_exchange_strong(expected, desired, success, failure);
        }
        T fetch_add(T value, std::memory_order = std::memory_order_seq_cst) {
            return from_bits(run(Access::fetch_add, to_bits(value), 0));
        }
        T fetch_sub(T value, std::memory_order = std::memory_order_seq_cst) {
            return from_bits(run(Access::fetch_sub, to_bits(value), 0));
        }
        T fetch_and(T value, std::memory_order = std::memory_order_seq_cst) {
            return from_bits(run(Access::fetch_and, to_bits(value), 0));
        }
        T fetch_or(T value, std::memory_order = std::memory_order_seq_cst) {
            return from_bits(run(Access::fetch_or, to_bits(value), 0));
        }

    private:
        static std::uint64_t to_bits(T value) {
            std::uint64_t bits = 0;
            std::memcpy(&bits, &value, sizeof value);  // little endian: explorer.cpp insists on x86-64
            return bits;
        }
        static T from_bits(std::uint64_t bits) {
            T value;
            std::memcpy(&value, &bits, sizeof value);
            return value;
        }
        std::uint64_t run(Access kind, std::uint64_t operand, std::uint64_t expected) const {
            return access({kind, sizeof(T), &value_, operand, expected});
        }

        // mutable: a load goes through the same door as a write.
        mutable T value_;
    };

    static void pause() noexcept {}
    // A death is explored before every access anyway, so there is nothing to do at a named point.
    template <class Point>
    static constexpr void crash_point(Point) noexcept {}
};

static_assert(sizeof(SimEnv::Atomic<std::uint64_t>) == 8, "shared structures must keep their layout in the model");

}  // namespace numacre::model
