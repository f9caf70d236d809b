#include "blocks.hpp"

namespace numacre::simulation {

HeldBlock Blocks::got(const Handle &handle, void *place, const HeldBlock *from) {
    HeldBlock block;
    numacre_pool *const pool = handle.pool;
    block.place = place;
    block.session = handle.session;
    block.serial = ++last_serial_;
    const auto offset = static_cast<std::uint64_t>(static_cast<std::byte *>(place) - pool->span);
    block.numa_node = static_cast<unsigned>(offset >> pool->span_shift);
    if (block.numa_node >= plan_.daemon.numa_nodes) {
        fail("%s gets a block of numa node %u, which does not exist", sessions_.name_of(handle.session).c_str(),
             block.numa_node);
        return block;
    }
    block.first = pool->geometry.frames_in(static_cast<std::byte *>(place) - pool->nodes[block.numa_node].data);
    block.count = pool->geometry.frames_in(numacre_usable_size(pool, place));
    if (block.count == 0 || block.first + block.count > frames_) {
        fail("%s gets %llu frames at frame %llu of numa node %u; there are %llu",
             sessions_.name_of(handle.session).c_str(), static_cast<unsigned long long>(block.count),
             static_cast<unsigned long long>(block.first), block.numa_node, static_cast<unsigned long long>(frames_));
        return block;
    }
    for (std::uint64_t frame = block.first; frame < block.first + block.count; ++frame) {
        Owner &owner = owners_[block.numa_node][frame];
        const bool is_givers = from != nullptr && owner.serial == from->serial;
        const bool may_be_free = owner.taker >= 0 && !sessions_.is_holding(owner.taker);
        if (!is_givers && !may_be_free && sessions_.is_holding(owner.session)) {
            fail("%s gets %llu frames at frame %llu of numa node %u; frame %llu is owned by %s",
                 sessions_.name_of(handle.session).c_str(), static_cast<unsigned long long>(block.count),
                 static_cast<unsigned long long>(block.first), block.numa_node, static_cast<unsigned long long>(frame),
                 sessions_.name_of(owner.session).c_str());
            return block;
        }
        if (plan_.is_of_a_group && from == nullptr && owner.session >= 0 && owner.taker < 0 &&
            sessions_.has_outlived(handle.session, owner.session)) {
            fail("%s gets frame %llu of numa node %u, which %s has left to the group",
                 sessions_.name_of(handle.session).c_str(), static_cast<unsigned long long>(frame), block.numa_node,
                 sessions_.name_of(owner.session).c_str());
            return block;
        }
        owner = {handle.session, block.serial, -1};
    }
    trace("%s %llu frames at %llu of numa node %u, block %llu", from == nullptr ? "gets" : "takes",
          static_cast<unsigned long long>(block.count), static_cast<unsigned long long>(block.first), block.numa_node,
          static_cast<unsigned long long>(block.serial));
    sign(block);
    if (from == nullptr) check_quota();
    return block;
}

void Blocks::gives_up(const HeldBlock &block) {
    trace("frees block %llu", static_cast<unsigned long long>(block.serial));
    check_signature(block);
    for (std::uint64_t frame = block.first; frame < block.first + block.count; ++frame) {
        Owner &owner = owners_[block.numa_node][frame];
        if (owner.serial != block.serial) {
            fail("frame %llu of numa node %u of %s is not its own any more", static_cast<unsigned long long>(frame),
                 block.numa_node, sessions_.name_of(block.session).c_str());
            return;
        }
        owner = {};
    }
}

void Blocks::note_taker(const HeldBlock &block, int session) {
    for (std::uint64_t frame = block.first; frame < block.first + block.count; ++frame) {
        Owner &owner = owners_[block.numa_node][frame];
        if (owner.serial == block.serial) owner.taker = session;
    }
}

// What all clients hold together, against the quota that the pool has had since it was made: to the byte, whoever
// is in the middle of a call, stands still or is dead meanwhile.
void Blocks::check_quota() const {
    if (plan_.daemon.quota_bytes == 0) return;
    std::uint64_t held_bytes = 0;
    for (const auto &of_numa_node : owners_)
        for (const Owner &owner : of_numa_node)
            if (sessions_.is_holding(owner.session)) held_bytes += plan_.daemon.frame_bytes;
    if (held_bytes > plan_.daemon.quota_bytes)
        fail("the clients hold %llu bytes, the quota of the pool is %llu", static_cast<unsigned long long>(held_bytes),
             static_cast<unsigned long long>(plan_.daemon.quota_bytes));
}

std::uint64_t *Blocks::last_word(const HeldBlock &block) const {
    return reinterpret_cast<std::uint64_t *>(static_cast<std::byte *>(block.place) +
                                             (block.count - 1) * plan_.daemon.frame_bytes);
}

void Blocks::sign(const HeldBlock &block) const {
    *static_cast<std::uint64_t *>(block.place) = block.serial;
    *last_word(block) = block.serial;
}

void Blocks::check_signature(const HeldBlock &block) const {
    if (*static_cast<const std::uint64_t *>(block.place) != block.serial || *last_word(block) != block.serial)
        fail("somebody has written over the block at frame %llu of numa node %u of %s",
             static_cast<unsigned long long>(block.first), block.numa_node, sessions_.name_of(block.session).c_str());
}

}  // namespace numacre::simulation
