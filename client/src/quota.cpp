// A client's quota is a word that the daemon writes and the client obeys. What the client owns is counted in the index,
// which also knows of blocks that others took from it; while a quota is set, an estimate in private memory is kept up
// in between. It can only be too high (blocks taken away are not noticed), so before refusing we count again; it is
// forgotten whenever blocks move without it. Cached blocks count: they are the process's.
#include "numacre/shm/snapshot.hpp"
#include "pool.hpp"

namespace numacre::client {
namespace {

struct OwnFrames {
    ProcessSlot process;
    std::int64_t frames = 0;
    void owned(Block block, IndexEntry entry) {
        if (entry.owner() == process) frames += static_cast<std::int64_t>(block.order.frames());
    }
    void free(Block) {}
    void taken(FrameIndex, std::uint64_t) {}
    void offline(Block) {}
    void damaged(Block) {}
};

std::int64_t count_own_frames(numacre_pool *pool) {
    OwnFrames own{pool->process};
    for (std::uint32_t node = 0; node < pool->numa_nodes; ++node) walk_all(pool->nodes[node].buddy().view(), own);
    pool->quota_used_frames.store(own.frames, std::memory_order_relaxed);
    return own.frames;
}

}  // namespace

bool quota_allows(numacre_pool *pool, std::uint64_t frames) {
    const std::uint64_t quota = quota_of(pool);
    std::int64_t used = pool->quota_used_frames.load(std::memory_order_relaxed);
    if (used < 0 || static_cast<std::uint64_t>(used) + frames > quota) used = count_own_frames(pool);
    return static_cast<std::uint64_t>(used) + frames <= quota;
}

void quota_note(numacre_pool *pool, std::int64_t frames) {
    if (pool->quota_used_frames.load(std::memory_order_relaxed) < 0) return;  // not counted yet
    pool->quota_used_frames.fetch_add(frames, std::memory_order_relaxed);
}

}  // namespace numacre::client
