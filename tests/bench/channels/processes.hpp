// The two processes of a measurement, and what they share beside the system under test.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "adaptor.hpp"

namespace numacre::bench {

// Nanoseconds of a clock that all processes share.
std::uint64_t now_ns();

inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb" ::: "memory");
#endif
}

// Memory that processes forked later share, at the same address; zeroed.
class SharedMemory {
public:
    // Throws Unavailable if there are too few hugepages, else std::runtime_error.
    SharedMemory(std::size_t bytes, bool hugepages);
    ~SharedMemory();
    SharedMemory(const SharedMemory &) = delete;
    SharedMemory &operator=(const SharedMemory &) = delete;
    std::byte *get() const { return memory_; }

private:
    std::size_t bytes_;
    std::byte *memory_ = nullptr;
};

inline constexpr std::uint64_t kNotKnown = ~std::uint64_t{0};

struct Control {
    // Written by the sender.
    alignas(kLineBytes) std::atomic<std::uint64_t> total{kNotKnown};  // messages, when all are sent
    std::uint64_t begin_ns = 0;                                       // stored before `total`
    Outcome of_sender;
    pid_t receiver_pid = 0;

    // Written by the receiver.
    alignas(kLineBytes) std::atomic<std::uint64_t> received{0};  // up to date whenever the receiver finds nothing
    std::atomic<std::uint64_t> entered{0};                       // how often the receiver has begun to wait
    std::uint64_t returned_ns = 0;                               // stored before `received`
    Outcome of_receiver;
    std::uint64_t end_ns = 0;

    // Of both.
    alignas(kLineBytes) std::atomic<std::uint32_t> ready{0};  // times that a process has come to meet()
    std::array<std::array<char, 512>, 2> messages{};          // why a process gave up
};

// Runs the sender on CPU 0 and the receiver on CPU 1, each in a process of its own, and returns when both have ended.
// Throws Unavailable if one of them does, std::runtime_error if one fails or does not end in time.
void run_pair(Control &control, const std::function<void()> &sender, const std::function<void()> &receiver);

// Returns when both processes are here.
void meet(Control &control);

// Returns when a process is in a system call that sleeps.
void wait_until_asleep(pid_t pid);

}  // namespace numacre::bench
