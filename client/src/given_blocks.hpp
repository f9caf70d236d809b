// Blocks that a call on a channel makes this process's although nobody asks for them: overwritten ones. They are freed.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "channel.hpp"
#include "engine.hpp"
#include "numacre/numacre.h"
#include "place.hpp"
#include "pool.hpp"
#include "record.hpp"

namespace numacre::client {

class GivenBlocks {
public:
    explicit GivenBlocks(numacre_channel *channel) : channel_(channel) {}
    ~GivenBlocks() { free_all(); }
    GivenBlocks(const GivenBlocks &) = delete;
    GivenBlocks &operator=(const GivenBlocks &) = delete;

    // The engine's `give`. The caller has a thread slot: otherwise blocks would stay this process's. After kBurstMost
    // blocks it frees them, so what gives more has to have finished with these.
    void operator()(NumaNode numa_node, Block block) {
        if (waiting_ == kBurstMost) [[unlikely]]
            free_all();
        blocks_[waiting_++] = address_of(channel_->pool, numa_node.value, block);
        frames_ += block.order.frames();
        ++count_;
    }
    // All of them until now, those that are free already included.
    unsigned count() const { return count_; }

    // In a pool with limits, the call that gives has announced kBurstMost of the largest blocks (CountedCall).
    void free_all() {
        if (waiting_ == 0) [[likely]]
            return;
        numacre_pool *const pool = channel_->pool;
        if (is_counting(pool)) [[unlikely]] {
            add_held(pool->view, pool->process, frames_);
            remove_lost(pool->view, channel_->seat, generation_of(pool->view, channel_->seat), frames_);
        }
        if (recording()) [[unlikely]]
            for (unsigned next = 0; next < waiting_; ++next)
                record_allocation(pool, blocks_[next], numacre_usable_size(pool, blocks_[next]));
        // In a handler that has interrupted its thread's change of the cache nothing has been freed.
        if (numacre_free_bulk(pool, blocks_, waiting_) == -EBUSY) [[unlikely]]
            for (unsigned next = 0; next < waiting_; ++next) (void)numacre_free_uncached(pool, blocks_[next]);
        waiting_ = 0;
        frames_ = 0;
    }

private:
    numacre_channel *channel_;
    unsigned waiting_ = 0;
    unsigned count_ = 0;
    std::uint64_t frames_ = 0;  // of those that wait
    void *blocks_[kBurstMost];
};

}  // namespace numacre::client
