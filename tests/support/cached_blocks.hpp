// Counts cached blocks of a private pool by a look at its index.
#pragma once

#include <cstdint>

#include "engine.hpp"
#include "pool.hpp"

namespace numacre::test {

// Of this order, by all threads.
inline unsigned cached_blocks(numacre_pool *pool, engine::Order order) {
    const engine::NodeView<client::Env> &view = pool->nodes[0].buddy().view();
    unsigned found = 0;
    for (std::uint64_t frame = 0; frame < view.geometry.frame_count; frame += order.frames()) {
        const engine::IndexEntry entry{view.index_entry({engine::FrameIndex{frame}, order}).load()};
        found += entry.is_cached() && entry.order() == order ? 1 : 0;
    }
    return found;
}

}  // namespace numacre::test
