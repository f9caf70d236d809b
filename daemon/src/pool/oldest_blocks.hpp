// Selects from many blocks the few that have been held longest, to find leaks. The limit bounds the memory used.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "pool/pool_status.hpp"

namespace numacre::daemon {

class OldestBlocks {
public:
    explicit OldestBlocks(std::size_t limit) : limit_(limit) {}

    // Calls make() only if the block is among the oldest so far.
    template <class Make>
    void add(std::chrono::seconds held_for, std::uint64_t bytes, const Make &make) {
        ++count_;
        bytes_ += bytes;
        if (heap_.size() == limit_) {
            if (limit_ == 0 || !comes_before(held_for, bytes, heap_.front())) return;
            std::ranges::pop_heap(heap_, is_older);
            heap_.pop_back();
        }
        heap_.push_back(make());
        std::ranges::push_heap(heap_, is_older);
    }

    // Returns the selected blocks, the oldest first.
    BlockList take() && {
        std::ranges::sort(heap_, is_older);
        return {std::move(heap_), count_, bytes_};
    }

private:
    // Among blocks of one age the larger ones come first: they matter more.
    static bool comes_before(std::chrono::seconds held_for, std::uint64_t bytes, const HeldBlock &other) {
        return held_for != other.held_for ? held_for > other.held_for : bytes > other.bytes;
    }
    static bool is_older(const HeldBlock &a, const HeldBlock &b) { return comes_before(a.held_for, a.bytes, b); }

    std::size_t limit_;
    std::vector<HeldBlock> heap_;  // the youngest of the selected blocks on top
    std::uint64_t count_ = 0;
    std::uint64_t bytes_ = 0;
};

}  // namespace numacre::daemon
