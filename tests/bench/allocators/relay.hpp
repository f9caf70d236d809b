// Blocks on their way from worker to worker, be they threads or processes.
#pragma once

#include <pthread.h>

#include <array>
#include <cstdint>
#include <span>

#include "adaptor.hpp"
#include "memory.hpp"

namespace numacre::bench {

// The harness's own cost is two locks for kPerVisit frees. With many arrays a worker rarely has to wait for its next
// one, even where workers share a CPU.
class Relay {
public:
    static constexpr std::uint64_t kArraysPerWorker = 8;
    static constexpr std::uint64_t kLengthMax = 1000;
    static constexpr unsigned kPerVisit = 1000;
    struct Array {
        // Not initialised: what nobody uses takes no memory.
        std::uint64_t length;
        std::array<void *, kLengthMax> places;
        std::span<void *> blocks() { return {places.data(), length}; }
    };

    Relay();
    // A worker's own at the beginning; nobody has it before the first give.
    Array &array(std::uint64_t worker, std::uint64_t number) {
        return shared_->arrays[worker * kArraysPerWorker + number];
    }
    void give(std::uint64_t worker, Array &array);
    // nullptr: nothing is there now.
    Array *take(std::uint64_t worker);

private:
    static constexpr std::uint64_t kArrays = kWorkersMax * kArraysPerWorker;
    // std::mutex is for the threads of one process.
    class Mutex {
    public:
        Mutex();
        void lock() { pthread_mutex_lock(&mutex_); }
        void unlock() { pthread_mutex_unlock(&mutex_); }

    private:
        pthread_mutex_t mutex_{};
    };
    struct alignas(64) Box {
        Mutex mutex;
        std::uint64_t count = 0;
        std::array<std::uint16_t, kArrays> arrays;  // by their place in Shared
    };
    struct Shared {
        std::array<Box, kWorkersMax> boxes;
        std::array<Array, kArrays> arrays;
    };

    Memory memory_;
    Shared *shared_;
};

}  // namespace numacre::bench
