#include "tree_history.hpp"

#include <algorithm>
#include <bit>

namespace numacre::simulation {

TreeHistory::TreeHistory(const PoolMemory &memory, Wishes &wishes, Verdict &verdict)
    : memory_(memory), wishes_(wishes), verdict_(verdict), stamps_(memory.nodes.size()) {
    for (std::size_t node = 0; node < stamps_.size(); ++node) {
        const Node &view = memory.nodes[node];
        Stamps &stamps = stamps_[node];
        stamps.frame.resize(view.word_count[0] * kLeafFrames);
        stamps.claimed[0].resize(view.word_count[0] * kLeafFrames);
        for (unsigned layer = 1; layer <= view.top_layer; ++layer) {
            stamps.child[layer].resize(view.word_count[layer] * kUpperFanOut);
            stamps.claimed[layer].resize(view.word_count[layer] * kUpperFanOut);
        }
    }
}

void TreeHistory::note_change(const void *word, std::uint64_t before, std::uint64_t after) {
    const unsigned numa_node = memory_.node_of(word);
    const Node &view = memory_.nodes[numa_node];
    Stamps &stamps = stamps_[numa_node];
    const std::uint64_t now = steps_done();
    const auto *const at = static_cast<const char *>(word);
    const auto place_in = [at](const auto *words, std::uint64_t count) {
        const auto *const begin = reinterpret_cast<const char *>(words);
        return at >= begin && at < begin + count * sizeof(std::uint64_t) ? (at - begin) / 8 : -1;
    };
    if (const auto leaf = place_in(view.leaf, view.word_count[0]); leaf >= 0) {
        for (std::uint64_t changed = before ^ after; changed != 0; changed &= changed - 1) {
            const std::size_t frame =
                static_cast<std::size_t>(leaf) * kLeafFrames + static_cast<unsigned>(std::countr_zero(changed));
            stamps.frame[frame] = now;
            if ((after >> (frame % kLeafFrames) & 1) != 0) wishes_.note_taken(numa_node, {FrameIndex{frame}, Order{0}});
            if ((after >> (frame % kLeafFrames) & 1) != 0) stamps.claimed[0][frame] = now;
        }
        return;
    }
    for (unsigned layer = 1; layer <= view.top_layer; ++layer) {
        const auto upper = place_in(view.upper[layer], view.word_count[layer]);
        if (upper < 0) continue;
        for (unsigned child = 0; child < kUpperFanOut; ++child) {
            const UpperWord old{before}, now_it_is{after};
            const std::size_t at_child = static_cast<std::size_t>(upper) * kUpperFanOut + child;
            if (old.allocated_here(child) != now_it_is.allocated_here(child) ||
                old.draining(child) != now_it_is.draining(child)) {
                stamps.child[layer][at_child] = now;
                if (now_it_is.closed_to_allocation(child))
                    wishes_.note_taken(numa_node,
                                       {FrameIndex{at_child << word_order(layer - 1)}, Order{word_order(layer - 1)}});
            }
            if (now_it_is.allocated_here(child) && !old.allocated_here(child)) stamps.claimed[layer][at_child] = now;
        }
        return;
    }
}

void TreeHistory::note_store(const void *word, std::uint64_t before, std::uint64_t after) {
    const auto offset = static_cast<std::size_t>(static_cast<const char *>(word) - door.slots_begin);
    if (offset % sizeof(ThreadSlot<Env>) != 0) return;
    wishes_.note_intent(offset / sizeof(ThreadSlot<Env>), Intent{after});
    if (const Intent intent{before}; intent.active()) {
        ended_intents_[intents_ended_ % kIntentsKept] = {steps_done(), intent};
        ++intents_ended_;
    }
}

bool TreeHistory::has_free_block(unsigned node, Order order, std::uint64_t since, Block &found) const {
    const Node &view = memory_.nodes[node];
    const Stamps &stamps = stamps_[node];
    const auto children_are_free = [&](unsigned level, std::uint64_t begin, std::uint64_t behind) {
        for (std::uint64_t child = begin; child < behind && child < view.word_count[level] * kUpperFanOut; ++child)
            if (UpperWord{peek(view.upper[level][child / kUpperFanOut])}.closed_to_allocation(child % kUpperFanOut) ||
                stamps.child[level][child] >= since)
                return false;
        return true;
    };
    for (std::uint64_t base = 0; base + order.frames() <= memory_.geometry.frame_count; base += order.frames()) {
        found = {FrameIndex{base}, order};
        bool free = true;
        for (std::uint64_t frame = base; free && frame < base + order.frames(); ++frame)
            free =
                (peek(view.leaf[frame / kLeafFrames]) >> frame % kLeafFrames & 1) == 0 && stamps.frame[frame] < since;
        for (unsigned level = 1; free && level <= view.top_layer; ++level) {
            const unsigned child_order = word_order(level - 1);
            const std::uint64_t begin = base >> child_order;
            free = children_are_free(level, begin, std::max(begin + 1, (base + order.frames()) >> child_order));
        }
        if (free && (since == kNow || is_settled(node, found, since))) return true;
    }
    return false;
}

// In no operation's hands since `since`. What is on its way into the tree or out of it is free or not as one likes.
bool TreeHistory::is_settled(unsigned node, Block block, std::uint64_t since) const {
    for (std::uint32_t thread = 0; thread < memory_.pool.thread_slots; ++thread) {
        const Intent intent{peek(memory_.pool.threads[thread].intent)};
        if (intent.active() && intent.numa_node().value == node && overlaps(intent.block(), block)) return false;
    }
    for (std::size_t back = 1; back <= kIntentsKept && back <= intents_ended_; ++back) {
        const EndedIntent &ended = ended_intents_[(intents_ended_ - back) % kIntentsKept];
        if (ended.step < since) return true;
        if (ended.intent.numa_node().value == node && overlaps(ended.intent.block(), block)) return false;
    }
    return intents_ended_ <= kIntentsKept;  // of a call that long nothing is known
}

std::uint64_t TreeHistory::claimed_at(unsigned node, Block block) const {
    const unsigned layer = layer_of(block.order);
    return stamps_[node].claimed[layer][layer == 0 ? first(block) : first(block) >> word_order(layer - 1)];
}

void TreeHistory::check_refusal(const Client &client, int node, Order order, std::uint64_t began) const {
    if (client.wish.always && order.value > kLeafOrder)
        verdict_.fail(
            "process %d is refused a block of order %u, in a call that began at step %llu; at every moment one was "
            "free, at last at frame %llu of numa node %u",
            client.instance->number, order.value, static_cast<unsigned long long>(began),
            static_cast<unsigned long long>(first(client.wish.witness)), client.wish.witness_node);
    Block found;
    for (unsigned other = 0; other < memory_.numa_nodes(); ++other)
        if ((node < 0 || other == static_cast<unsigned>(node)) && has_free_block(other, order, began, found))
            verdict_.fail(
                "process %d is refused a block of order %u, in a call that began at step %llu; all the time one "
                "was free at frame %llu of numa node %u",
                client.instance->number, order.value, static_cast<unsigned long long>(began),
                static_cast<unsigned long long>(first(found)), other);
}

}  // namespace numacre::simulation
