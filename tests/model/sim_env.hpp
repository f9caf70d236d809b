// The Env (shm/include/numacre/shm/env.hpp) under which the real allocator source runs in the model checker. Each
// access to an Atomic is one step of the explorer; with no explorer at work it is a plain access.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <source_location>
#include <type_traits>

#include "support/word_at.hpp"

namespace numacre::model {

// 32 bits, as `bytes` below, so that a Request has no padding: it lies on a fiber's stack, which tells states apart.
enum class Access : std::uint32_t {
    load,
    store,
    exchange,
    compare_exchange,
    fetch_add,
    fetch_sub,
    fetch_and,
    fetch_or,
    barrier  // of all threads at once (pass_barrier()): reads and writes nothing
};

struct Request {
    Access kind;
    std::uint32_t bytes;  // size of the accessed object: 1, 2, 4 or 8
    std::memory_order order;
    std::memory_order failure_order;  // compare_exchange only
    void *address;
    std::uint64_t operand;       // what is stored, added ...
    std::uint64_t expected;      // compare_exchange only
    std::source_location where;  // of the call, in the code under test
};

// Lets the scheduler decide when (and, in a weak memory mode, what is seen), then performs the access. Returns the
// value before it. The one door between the code under test and the explorer (explorer.cpp).
std::uint64_t access(const Request &request);

struct SimEnv {
    // One round more is like the one before it; it only multiplies states.
    static constexpr std::uint64_t kRefusalRoundsMost = 2;

    // Sequential consistency ignores the orders; Options::memory has modes that do not. `where` is for
    // Explorer::sites() and Options::weaken, nobody passes it.
    template <class T>
    class Atomic {
        static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8 && (sizeof(T) & (sizeof(T) - 1)) == 0,
                      "the explorer knows accesses of 1, 2, 4 and 8 bytes");
        using order_type = std::memory_order;
        using place = std::source_location;
        static constexpr order_type kSeqCst = std::memory_order_seq_cst;

    public:
        Atomic() = default;
        constexpr Atomic(T value) : value_(value) {}
        Atomic(const Atomic &) = delete;
        Atomic &operator=(const Atomic &) = delete;

        T load(order_type order = kSeqCst, place where = place::current()) const {
            return from_bits(run(Access::load, T{}, order, where));
        }
        void store(T value, order_type order = kSeqCst, place where = place::current()) {
            run(Access::store, value, order, where);
        }
        T exchange(T value, order_type order = kSeqCst, place where = place::current()) {
            return from_bits(run(Access::exchange, value, order, where));
        }
        bool compare_exchange_strong(T &expected, T desired, order_type success, order_type failure,
                                     place where = place::current()) {
            const std::uint64_t wanted = to_bits(expected);
            const std::uint64_t seen = access(
                {Access::compare_exchange, sizeof(T), success, failure, &value_, to_bits(desired), wanted, where});
            if (seen == wanted) return true;
            expected = from_bits(seen);
            return false;
        }
        bool compare_exchange_strong(T &expected, T desired, order_type order = kSeqCst,
                                     place where = place::current()) {
            return compare_exchange_strong(expected, desired, order, of_failure(order), where);
        }
        // Never fails without cause: a spurious failure only repeats the caller's loop.
        bool compare_exchange_weak(T &expected, T desired, order_type success, order_type failure,
                                   place where = place::current()) {
            return compare_exchange_strong(expected, desired, success, failure, where);
        }
        bool compare_exchange_weak(T &expected, T desired, order_type order = kSeqCst, place where = place::current()) {
            return compare_exchange_strong(expected, desired, order, of_failure(order), where);
        }
        T fetch_add(T value, order_type order = kSeqCst, place where = place::current()) {
            return from_bits(run(Access::fetch_add, value, order, where));
        }
        T fetch_sub(T value, order_type order = kSeqCst, place where = place::current()) {
            return from_bits(run(Access::fetch_sub, value, order, where));
        }
        T fetch_and(T value, order_type order = kSeqCst, place where = place::current()) {
            return from_bits(run(Access::fetch_and, value, order, where));
        }
        T fetch_or(T value, order_type order = kSeqCst, place where = place::current()) {
            return from_bits(run(Access::fetch_or, value, order, where));
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
        // What std::atomic makes of a single order.
        static constexpr order_type of_failure(order_type order) {
            if (order == std::memory_order_acq_rel) return std::memory_order_acquire;
            return order == std::memory_order_release ? std::memory_order_relaxed : order;
        }
        std::uint64_t run(Access kind, T operand, order_type order, place where) const {
            return access({kind, sizeof(T), order, order, &value_, to_bits(operand), 0, where});
        }

        // mutable: a load goes through the same door as a write.
        mutable T value_;
    };

    static void pause() noexcept {}
    // A death is explored before every access anyway, so there is nothing to do at a named point.
    template <class Point>
    static constexpr void crash_point(Point) noexcept {}
};

// The step of membarrier(GLOBAL_EXPEDITED): every thread passes a full barrier between the beginning and the end of
// this one step. place: any word of the explorer's, which the step does not touch.
inline void pass_barrier(SimEnv::Atomic<std::uint64_t> &place,
                         std::source_location where = std::source_location::current()) {
    (void)access({Access::barrier, sizeof(std::uint64_t), std::memory_order_relaxed, std::memory_order_relaxed, &place,
                  0, 0, where});
}

static_assert(sizeof(SimEnv::Atomic<std::uint64_t>) == 8, "shared structures must keep their layout in the model");

// What is written in C (numacre/shm/cached_block.h) goes through the same door.
#define NUMACRE_INLINE_LOAD(place) \
    ::numacre::test::word_at<::numacre::model::SimEnv>(place).load(std::memory_order_relaxed)
#define NUMACRE_INLINE_STORE(place, bits) \
    ::numacre::test::word_at<::numacre::model::SimEnv>(place).store((bits), std::memory_order_relaxed)
#define NUMACRE_INLINE_RELEASE(place, bits) \
    ::numacre::test::word_at<::numacre::model::SimEnv>(place).store((bits), std::memory_order_release)

}  // namespace numacre::model
