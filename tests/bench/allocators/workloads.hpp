// The workloads. Each is a class with prepare (untimed), step (timed; returns how many pairs of allocation and free it
// did) and finish (untimed; frees everything). cache, linux, thread and the constant occupancy are those of the NBBS
// papers (Marotta et al., CLUSTER 2018 and IEEE TC 2021), larson is Larson and Krishnan's server, as those papers use
// it.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include "adaptor.hpp"
#include "relay.hpp"

namespace numacre::bench {

inline constexpr std::array<std::string_view, 7> kWorkloads{"cache", "linux",  "thread", "co50",
                                                            "co90",  "larson", "nf99"};

// Xorshift64*: good enough to choose victims, and cheap beside what is measured.
class Random {
public:
    explicit Random(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15U | 1) {}
    std::uint32_t below(std::uint32_t limit) {
        state_ ^= state_ >> 12;
        state_ ^= state_ << 25;
        state_ ^= state_ >> 27;
        const auto high = static_cast<std::uint32_t>((state_ * 0x2545f4914f6cdd1dU) >> 32);
        return static_cast<std::uint32_t>(std::uint64_t{high} * limit >> 32);
    }

private:
    std::uint64_t state_;
};

// What one worker knows of the run.
struct Part {
    const Run &run;
    std::uint64_t number = 0;  // of this worker
    Relay &relay;

    std::uint64_t pool_blocks() const { return run.pool_bytes / run.size_bytes; }
    // Of `wanted` blocks an own share: all workers' together take half of the pool at most.
    std::uint64_t burst(std::uint64_t wanted) const {
        return std::max<std::uint64_t>(1, std::min(wanted, pool_blocks() / 2 / run.workers()));
    }
    Random random() const { return Random(run.seed * kWorkersMax + number); }
};

// What all workloads share: counting refusals, and a free that forgives them.
template <class Thread>
class Workload {
public:
    std::uint64_t failed() const { return failed_; }
    double filled() const { return filled_; }

protected:
    Workload(Thread &thread, const Part &part) : thread_(thread), part_(part) {}
    [[gnu::always_inline]] void *allocate(std::uint64_t bytes) {
        void *const block = thread_.allocate(bytes);
        if (block == nullptr) [[unlikely]]
            ++failed_;
        return block;
    }
    [[gnu::always_inline]] void free(void *block) {
        if (block != nullptr) [[likely]]
            thread_.free(block);
    }

    Thread &thread_;
    const Part part_;
    double filled_ = 1;

private:
    std::uint64_t failed_ = 0;
};

// One block, again and again.
template <class Thread>
class CacheTest : public Workload<Thread> {
public:
    CacheTest(Thread &thread, const Part &part) : Workload<Thread>(thread, part) {}
    void prepare() {}
    std::uint64_t step() {
        constexpr std::uint64_t kPairs = 256;
        const std::uint64_t bytes = this->part_.run.size_bytes;
        for (std::uint64_t i = 0; i < kPairs; ++i) this->free(this->allocate(bytes));
        return kPairs;
    }
    void finish() {}
};

// A burst of allocations, then all their frees.
template <class Thread>
class BurstTest : public Workload<Thread> {
public:
    BurstTest(Thread &thread, const Part &part, std::uint64_t blocks)
        : Workload<Thread>(thread, part), blocks_(part.burst(blocks)) {}
    void prepare() {}
    std::uint64_t step() {
        const std::uint64_t bytes = this->part_.run.size_bytes;
        for (void *&block : blocks_) block = this->allocate(bytes);
        for (void *const block : blocks_) this->free(block);
        return blocks_.size();
    }
    void finish() {}

private:
    std::vector<void *> blocks_;
};

// A part of the pool is always taken: a random block is freed and one of the same size allocated. Sizes are the base
// size times 1, 2, 4, 8 (up to the largest block), twice as many of each as of the next.
template <class Thread>
class OccupancyTest : public Workload<Thread> {
public:
    OccupancyTest(Thread &thread, const Part &part, bool fixed_size, unsigned sizes, double occupancy)
        : Workload<Thread>(thread, part), random_(part.random()), occupancy_(occupancy) {
        const std::uint64_t base = part.run.size_bytes;
        sizes_ = fixed_size ? 1 : std::min<unsigned>(sizes, std::bit_width(kLargestBytes / base));
    }
    void prepare() {
        const double wanted = static_cast<double>(this->part_.run.pool_bytes) * occupancy_ /
                              static_cast<double>(this->part_.run.workers());
        const std::uint64_t base = this->part_.run.size_bytes;
        double taken = 0;
        while (taken + static_cast<double>(base) <= wanted) {
            std::uint64_t bytes = base << any_size();
            if (taken + static_cast<double>(bytes) > wanted) bytes = base;
            void *block = this->thread_.allocate(bytes);
            if (block == nullptr) block = this->thread_.allocate(bytes = base);
            if (block == nullptr) break;
            held_.push_back({block, bytes});
            taken += static_cast<double>(bytes);
        }
        this->filled_ = (taken + static_cast<double>(base)) > wanted ? 1 : taken / wanted;
    }
    std::uint64_t step() {
        constexpr std::uint64_t kPairs = 256;
        if (held_.empty()) return 0;
        const auto count = static_cast<std::uint32_t>(held_.size());
        for (std::uint64_t i = 0; i < kPairs; ++i) {
            Held &held = held_[random_.below(count)];
            this->free(held.block);
            held.block = this->allocate(held.bytes);
        }
        return kPairs;
    }
    void finish() {
        for (const Held &held : held_) this->free(held.block);
    }

private:
    struct Held {
        void *block;
        std::uint64_t bytes;
    };
    unsigned any_size() {
        // Of 2^n - 1 tickets the base size has 2^(n-1), the next half of that.
        const std::uint32_t ticket = random_.below((1U << sizes_) - 1) + 1;
        return sizes_ - static_cast<unsigned>(std::bit_width(ticket));
    }

    Random random_;
    double occupancy_;
    unsigned sizes_ = 1;
    std::vector<Held> held_;
};

// Each worker replaces blocks of an array at random, then passes the array on: most frees are of another worker's
// blocks.
template <class Thread>
class LarsonTest : public Workload<Thread> {
public:
    LarsonTest(Thread &thread, const Part &part) : Workload<Thread>(thread, part), random_(part.random()) {}
    void prepare() {
        const std::uint64_t length = std::max<std::uint64_t>(
            1, this->part_.burst(Relay::kLengthMax * Relay::kArraysPerWorker) / Relay::kArraysPerWorker);
        for (std::uint64_t i = 0; i < Relay::kArraysPerWorker; ++i) {
            Relay::Array &array = this->part_.relay.array(this->part_.number, i);
            array.length = length;
            for (void *&block : array.blocks()) block = this->thread_.allocate(this->part_.run.size_bytes);
            give(this->part_.number, array);
        }
    }
    std::uint64_t step() {
        Relay::Array *const array = take();
        if (array == nullptr) {
            std::this_thread::yield();
            return 0;
        }
        const std::uint64_t bytes = this->part_.run.size_bytes;
        const std::span<void *> blocks = array->blocks();
        const auto count = static_cast<std::uint32_t>(blocks.size());
        for (unsigned i = 0; i < Relay::kPerVisit; ++i) {
            void *&block = blocks[random_.below(count)];
            this->free(block);
            block = this->allocate(bytes);
        }
        give((this->part_.number + 1) % this->part_.run.workers(), *array);
        return Relay::kPerVisit;
    }
    void finish() {
        while (Relay::Array *const array = take())
            for (void *const block : array->blocks()) this->free(block);
    }

private:
    void give(std::uint64_t worker, Relay::Array &array) {
        if constexpr (Passes<Thread>) {
            if (this->part_.run.processes != 0)
                for (void *&block : array.blocks())
                    if (block != nullptr) block = this->thread_.pass_on(block);
        }
        this->part_.relay.give(worker, array);
    }
    Relay::Array *take() {
        Relay::Array *const array = this->part_.relay.take(this->part_.number);
        if constexpr (Passes<Thread>) {
            if (array != nullptr && this->part_.run.processes != 0)
                for (void *&block : array->blocks())
                    if (block != nullptr) block = this->thread_.take_over(block);
        }
        return array;
    }

    Random random_;
};

// Calls perform(workload) with the run's workload on the given thread of an adaptor.
template <class Thread, class Perform>
void with_workload(const Traits &traits, Thread &thread, const Part &part, const Perform &perform) {
    const std::string_view name = part.run.workload;
    const auto occupied = [&](unsigned sizes, double occupancy) {
        OccupancyTest<Thread> test(thread, part, traits.fixed_size, sizes, occupancy);
        perform(test);
    };
    if (name == "cache") {
        CacheTest<Thread> test(thread, part);
        perform(test);
    } else if (name == "linux") {
        BurstTest<Thread> test(thread, part, 1000);
        perform(test);
    } else if (name == "thread") {
        BurstTest<Thread> test(thread, part, 10000 / part.run.workers());
        perform(test);
    } else if (name == "co50") {
        occupied(4, 0.50);
    } else if (name == "co90") {
        occupied(4, 0.90);
    } else if (name == "larson") {
        LarsonTest<Thread> test(thread, part);
        perform(test);
    } else if (name == "nf99") {
        occupied(1, 0.99);
    }
}

}  // namespace numacre::bench
