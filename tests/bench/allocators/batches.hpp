// For allocators that take and free many blocks by one call: a worker's single requests come from one batch of each
// size, and its frees go into another, so that each block goes through the allocator.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>

#include "adaptor.hpp"

namespace numacre::bench {

// Calls: bool take(void **blocks, unsigned count, std::size_t bytes), all or none; void give_back(void *const *blocks,
// unsigned count).
template <class Calls>
class Batches {
public:
    // held_bytes: about what the batch of a size may hold.
    Batches(Calls calls, std::size_t held_bytes) : calls_(calls), held_bytes_(held_bytes) {}
    ~Batches() {
        for (Batch &ready : ready_) give_back(ready);
        give_back(freed_);
    }
    Batches(const Batches &) = delete;
    Batches &operator=(const Batches &) = delete;

    [[gnu::always_inline]] void *allocate(std::size_t bytes) {
        Batch &ready = ready_[static_cast<std::size_t>(std::countr_zero(bytes / kFrameBytes))];
        if (ready.count == 0 && !refill(ready, bytes)) return nullptr;
        return ready.blocks[--ready.count];
    }
    [[gnu::always_inline]] void free(void *block) {
        freed_.blocks[freed_.count++] = block;
        if (freed_.count == kBatch) give_back(freed_);
    }

private:
    static constexpr unsigned kBatch = 32;
    static constexpr std::size_t kSizes = std::bit_width(kLargestBytes / kFrameBytes);
    struct Batch {
        std::array<void *, kBatch> blocks;
        unsigned count = 0;
    };

    bool refill(Batch &ready, std::size_t bytes) {
        // Of large blocks a whole batch would be a good part of a small pool.
        const auto wanted = static_cast<unsigned>(std::clamp<std::size_t>(held_bytes_ / bytes, 1, kBatch));
        if (take(ready, bytes, wanted)) return true;
        give_back(freed_);
        return take(ready, bytes, wanted) || take(ready, bytes, 1);
    }
    bool take(Batch &ready, std::size_t bytes, unsigned count) {
        if (!calls_.take(ready.blocks.data(), count, bytes)) return false;
        ready.count = count;
        return true;
    }
    void give_back(Batch &batch) {
        calls_.give_back(batch.blocks.data(), batch.count);
        batch.count = 0;
    }

    Calls calls_;
    std::size_t held_bytes_;
    std::array<Batch, kSizes> ready_;
    Batch freed_;
};

}  // namespace numacre::bench
