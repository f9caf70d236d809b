#include "shadow.hpp"

namespace numacre::simulation {

Shadow::Shadow(const PoolMemory &memory, const TreeHistory &history, Verdict &verdict)
    : memory_(memory),
      history_(history),
      verdict_(verdict),
      owners_(memory.nodes.size(), std::vector<std::int32_t>(memory.geometry.frame_count, kFree)),
      freed_at_(memory.nodes.size(), std::vector<std::uint64_t>(memory.geometry.frame_count)),
      drained_at_(memory.nodes.size(), std::vector<std::uint64_t>(memory.geometry.chunk_count())) {}

std::uint64_t Shadow::owned_frames(unsigned node) const {
    std::uint64_t owned = 0;
    for (const std::int32_t owner : owners_[node]) owned += owner > 0;
    return owned;
}

void Shadow::set_offline(unsigned node, std::uint64_t chunk) {
    for (std::uint64_t frame = memory_.first_frame(chunk); frame < memory_.first_frame(chunk + 1); ++frame) {
        if (owners_[node][frame] != kFree)
            return verdict_.fail("chunk %llu of numa node %u goes offline over frame %llu of process %d",
                                 static_cast<unsigned long long>(chunk), node, static_cast<unsigned long long>(frame),
                                 owners_[node][frame]);
        owners_[node][frame] = kOffline;
    }
}

void Shadow::set_online(unsigned node, std::uint64_t chunk) {
    for (std::uint64_t frame = memory_.first_frame(chunk); frame < memory_.first_frame(chunk + 1); ++frame)
        if (owners_[node][frame] == kOffline) owners_[node][frame] = kFree;
}

Held Shadow::acquire(const Client &client, void *address, Order order, std::uint64_t began, bool cached) {
    const numacre_pool &pool = *client.instance->pool;
    const auto offset = static_cast<std::uint64_t>(static_cast<std::byte *>(address) - pool.span);
    Held held{address, static_cast<std::uint32_t>(offset >> pool.span_shift), {}, nullptr};
    const std::uint64_t in_node = offset & ((std::uint64_t{1} << pool.span_shift) - 1);
    held.block = {FrameIndex{memory_.geometry.frames_in(in_node)}, order};
    if (offset >= pool.span_bytes || in_node % memory_.geometry.frame_bytes != 0 ||
        end(held.block) > memory_.geometry.frame_count || (first(held.block) & (order.frames() - 1)) != 0) {
        verdict_.fail(
            "process %d gets a block of order %u at frame %llu of numa node %u, which does not exist (%llu frames)",
            client.instance->number, order.value, static_cast<unsigned long long>(first(held.block)), held.numa_node,
            static_cast<unsigned long long>(memory_.geometry.frame_count));
    }
    own(client, held);
    const std::uint64_t drained = drained_at_[held.numa_node][memory_.chunk_of(held.block)];
    if (drained != 0 && !cached) {
        if (const std::uint64_t claimed = history_.claimed_at(held.numa_node, held.block); claimed > drained)
            verdict_.fail(
                "process %d gets a block of order %u at frame %llu of numa node %u, claimed at step %llu: its chunk "
                "has been draining since step %llu",
                client.instance->number, order.value, static_cast<unsigned long long>(first(held.block)),
                held.numa_node, static_cast<unsigned long long>(claimed), static_cast<unsigned long long>(drained));
        if (const std::uint64_t freed = freed_at_[held.numa_node][first(held.block)]; freed > drained)
            verdict_.fail(
                "process %d is handed a block of order %u at frame %llu of numa node %u, released at step %llu: "
                "its chunk has been draining since step %llu (the call began at %llu)",
                client.instance->number, order.value, static_cast<unsigned long long>(first(held.block)),
                held.numa_node, static_cast<unsigned long long>(freed), static_cast<unsigned long long>(drained),
                static_cast<unsigned long long>(began));
    }
    return held;
}

void Shadow::own(const Client &client, const Held &held) {
    for (std::uint64_t frame = first(held.block); frame < end(held.block); ++frame) {
        std::int32_t &owner = owners_[held.numa_node][frame];
        if (owner != kFree)
            verdict_.fail("process %d gets a block of order %u at frame %llu of numa node %u; frame %llu %s %d",
                          client.instance->number, held.block.order.value,
                          static_cast<unsigned long long>(first(held.block)), held.numa_node,
                          static_cast<unsigned long long>(frame),
                          owner == kOffline ? "is offline" : "is owned by process", owner);
        owner = client.instance->number;
    }
    frames_held_ += held.block.order.frames();
}

void Shadow::disown(const Client &client, const Held &held) {
    for (std::uint64_t frame = first(held.block); frame < end(held.block); ++frame) {
        if (owners_[held.numa_node][frame] != client.instance->number)
            verdict_.fail(
                "process %d holds a block of order %u at frame %llu of numa node %u no more: frame %llu is %d's",
                client.instance->number, held.block.order.value, static_cast<unsigned long long>(first(held.block)),
                held.numa_node, static_cast<unsigned long long>(frame), owners_[held.numa_node][frame]);
        owners_[held.numa_node][frame] = kFree;
        freed_at_[held.numa_node][frame] = steps_done();
    }
    frames_held_ -= held.block.order.frames();
}

void Shadow::end_of_giver(const Token &token) {
    for (std::uint64_t frame = first(token.block); frame < end(token.block); ++frame) {
        std::int32_t &owner = owners_[token.numa_node][frame];
        if (owner == token.giver->number) {
            owner = kFree;
            --frames_held_;
        }
    }
}

void Shadow::give_to_dead(const Token &token, const Instance &taker) {
    for (std::uint64_t frame = first(token.block); frame < end(token.block); ++frame)
        owners_[token.numa_node][frame] = taker.number;
}

void Shadow::forget(const Instance &dead) {
    for (std::vector<std::int32_t> &of_node : owners_)
        for (std::int32_t &owner : of_node)
            if (owner == dead.number) {
                owner = kFree;
                --frames_held_;
            }
}

}  // namespace numacre::simulation
