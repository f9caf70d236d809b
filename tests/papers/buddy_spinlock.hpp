// A buddy system on a tree under one spin lock, as the conference paper's section IV describes its competitor buddy-sl:
// "still based on a tree data structure, but synchronizes concurrent accesses using spin-locks". The paper says no
// more; the tree is the textbook's: each node knows the largest free block below it, so a search goes straight down.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>

#include "papers/common.hpp"
#include "papers/spin_lock.hpp"

namespace numacre::papers {

// NodeEnv: where the nodes live. All accesses happen under the lock, so PlainEnv will do; the model checker wants its
// own Env there, to see them.
//
// Thread-safe; spins while another thread is inside, in user space for as long as that takes. `thread` is not looked
// at.
template <class Env, class NodeEnv = PlainEnv>
class BuddySpinLock {
public:
    // threads_max: any number will do; the parameter is there because the others have it.
    BuddySpinLock(std::uint64_t frame_count, unsigned largest_order, unsigned /*threads_max*/ = kDefaultThreadsMax)
        : BuddySpinLock(frame_count, largest_order, kDefaultThreadsMax,
                        allocate_memory(memory_bytes(frame_count, largest_order))) {}
    // In memory of the caller's: memory_bytes() at the beginning of a cache line.
    BuddySpinLock(std::uint64_t frame_count, unsigned largest_order, unsigned /*threads_max*/, std::byte *memory)
        : shape_(frame_count, largest_order),
          lock_(make_array<Lock>(memory, 1)),
          nodes_(make_array<Node>(memory, shape_.node_count())) {
        for (unsigned n = 1; n < shape_.node_count(); ++n) set(n, whole(n));
    }
    static std::size_t memory_bytes(std::uint64_t frame_count, unsigned largest_order,
                                    unsigned /*threads_max*/ = kDefaultThreadsMax) {
        return array_bytes<Lock>(1) + array_bytes<Node>(TreeShape(frame_count, largest_order).node_count());
    }

    std::optional<std::uint64_t> allocate(unsigned order, unsigned /*thread*/) {
        if (order > shape_.largest_order()) return std::nullopt;
        const std::lock_guard<Lock> inside(*lock_);
        const unsigned wanted = order + 1;
        if (get(1) < wanted) return std::nullopt;
        unsigned n = 1;
        while (shape_.order_of(n) > order) {
            n <<= 1;
            if (get(n) < wanted) n |= 1;
        }
        set(n, 0);
        climb(n);
        return shape_.first_frame(n);
    }
    void free(std::uint64_t frame) {
        const std::lock_guard<Lock> inside(*lock_);
        // Below an allocated node all is still written down as free: the first node without anything is the block.
        unsigned n = (1U << shape_.depth) + static_cast<unsigned>(frame);
        while (get(n) != 0) n >>= 1;
        set(n, whole(n));
        climb(n);
    }
    void free(std::uint64_t frame, unsigned /*thread*/) { free(frame); }

private:
    using Lock = SpinLock<Env>;
    // Of the largest free block at or below this node: its order + 1. 0 for none, and for an allocated node.
    using Node = typename NodeEnv::template Atomic<std::uint8_t>;

    BuddySpinLock(std::uint64_t frame_count, unsigned largest_order, unsigned threads_max, OwnMemory memory)
        : BuddySpinLock(frame_count, largest_order, threads_max, memory.get()) {
        memory_ = std::move(memory);
    }

    // relaxed: the lock orders them all.
    unsigned get(unsigned n) const { return nodes_[n].load(std::memory_order_relaxed); }
    void set(unsigned n, unsigned value) {
        nodes_[n].store(static_cast<std::uint8_t>(value), std::memory_order_relaxed);
    }

    // A node that is free as a whole. Above the base level blocks do not merge.
    unsigned whole(unsigned n) const { return std::min(shape_.order_of(n), shape_.largest_order()) + 1; }

    void climb(unsigned n) {
        for (n >>= 1; n != 0; n >>= 1) {
            const unsigned left = get(2 * n);
            const unsigned right = get(2 * n + 1);
            const bool both_whole = left == whole(2 * n) && right == whole(2 * n + 1);
            const unsigned value = both_whole ? whole(n) : std::max(left, right);
            if (get(n) == value) return;
            set(n, value);
        }
    }

    OwnMemory memory_;
    TreeShape shape_;
    Lock *lock_;  // on a cache line of its own
    Node *nodes_;
};

}  // namespace numacre::papers
