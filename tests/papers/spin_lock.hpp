// What the papers' lock-based variants need: one lock, and atomics for what it protects that are none.
#pragma once

#include <atomic>
#include <cstdint>

namespace numacre::papers {

// Test and test-and-set; the papers do not say which kind theirs was. Whoever holds it and is preempted or killed makes
// everybody else spin.
template <class Env>
class SpinLock {
public:
    void lock() {
        // acquire: pairs with unlock()'s release; the last holder's plain writes are ours to read.
        while (taken_.exchange(1, std::memory_order_acquire) != 0) {
            // relaxed: only the exchange decides.
            while (taken_.load(std::memory_order_relaxed) != 0) Env::pause();
        }
    }
    void unlock() { taken_.store(0, std::memory_order_release); }

private:
    typename Env::template Atomic<std::uint32_t> taken_;
};

// An Env for code that only runs under a lock: "rather than using RMW instructions" (conference IV).
struct PlainEnv {
    template <class T>
    class Atomic {
    public:
        T load(std::memory_order) const { return value_; }
        void store(T value, std::memory_order) { value_ = value; }
        bool compare_exchange_strong(T &expected, T desired, std::memory_order) {
            if (value_ != expected) {
                expected = value_;
                return false;
            }
            value_ = desired;
            return true;
        }
        T fetch_add(T value, std::memory_order) {
            const T before = value_;
            value_ += value;
            return before;
        }

    private:
        T value_{};
    };
    static void pause() noexcept {}
};

}  // namespace numacre::papers
