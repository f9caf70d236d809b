// The two NBBS trees under one global spin lock, without RMW instructions inside (conference IV: 1lvl-sl, 4lvl-sl).
// With one thread at a time in the tree its races are gone: these are right, and block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>

#include "papers/common.hpp"
#include "papers/nbbs_four_levels.hpp"
#include "papers/nbbs_one_level.hpp"
#include "papers/spin_lock.hpp"

namespace numacre::papers {

// Tree: an Nbbs over any Env. Its accesses all happen under the lock, so PlainEnv will do; the model checker wants its
// own Env there, to see them.
//
// Thread-safe; spins while another thread is inside, in user space for as long as that takes.
template <class Env, class Tree>
class SpinLocked {
public:
    SpinLocked(std::uint64_t frame_count, unsigned largest_order, unsigned threads_max = kDefaultThreadsMax)
        : SpinLocked(frame_count, largest_order, threads_max,
                     allocate_memory(memory_bytes(frame_count, largest_order, threads_max))) {}
    // In memory of the caller's: memory_bytes() at the beginning of a cache line.
    SpinLocked(std::uint64_t frame_count, unsigned largest_order, unsigned threads_max, std::byte *memory)
        : lock_(make_array<Lock>(memory, 1)), tree_(frame_count, largest_order, threads_max, memory) {}
    static std::size_t memory_bytes(std::uint64_t frame_count, unsigned largest_order,
                                    unsigned threads_max = kDefaultThreadsMax) {
        return array_bytes<Lock>(1) + Tree::memory_bytes(frame_count, largest_order, threads_max);
    }

    std::optional<std::uint64_t> allocate(unsigned order, unsigned thread) {
        const std::lock_guard<Lock> inside(*lock_);
        return tree_.allocate(order, thread);
    }
    void free(std::uint64_t frame) {
        const std::lock_guard<Lock> inside(*lock_);
        tree_.free(frame);
    }
    void free(std::uint64_t frame, unsigned thread) {
        const std::lock_guard<Lock> inside(*lock_);
        tree_.free(frame, thread);
    }

private:
    using Lock = SpinLock<Env>;

    SpinLocked(std::uint64_t frame_count, unsigned largest_order, unsigned threads_max, OwnMemory memory)
        : SpinLocked(frame_count, largest_order, threads_max, memory.get()) {
        memory_ = std::move(memory);
    }

    OwnMemory memory_;
    Lock *lock_;  // on a cache line of its own
    Tree tree_;
};

template <class Env, std::size_t kNodeBytes = 1>
using OneLevelSpinLock = SpinLocked<Env, NbbsOneLevel<PlainEnv, kNodeBytes>>;
template <class Env, std::size_t kBunchBytes = 8>
using FourLevelsSpinLock = SpinLocked<Env, NbbsFourLevels<PlainEnv, kBunchBytes>>;

}  // namespace numacre::papers
