#include "wishes.hpp"

#include <algorithm>

namespace numacre::simulation {

void Wishes::begin(Client &client, int node, Order order) {
    // Where several numa nodes would do the search looks at one after the other, and proves nothing of all together.
    if (node < 0 && plan_.numa_nodes == 1) node = 0;
    client.wish = {node >= 0, true, node, order, 0, {}};
    client.wish.always = node >= 0 && find_witness(client);
    client.wish.active = client.wish.always;
    looks_left_ = client.random.below(15);  // below what shm/README.md gives up at
    active_ += client.wish.active;
}

void Wishes::finish(Client &client) {
    active_ -= client.wish.active;
    client.wish.active = false;
}

void Wishes::note_taken(unsigned node, Block block) {
    if (active_ == 0) return;
    for (Client &client : processes_.clients()) {
        Client::Wish &wish = client.wish;
        if (!wish.active || wish.witness_node != node || !overlaps(wish.witness, block)) continue;
        if (is_free_now(client, node, wish.witness) || find_witness(client)) continue;
        wish.always = false;
        finish(client);
    }
}

// Free, and in nobody else's hands, at this moment.
bool Wishes::is_free_now(const Client &client, unsigned node, Block block) const {
    const Node &view = memory_.nodes[node];
    for (std::uint64_t frame = first(block); frame < end(block);) {
        const auto bits = static_cast<unsigned>(std::min<std::uint64_t>(end(block) - frame, kLeafFrames));
        const std::uint64_t mask =
            leaf::mask(static_cast<unsigned>(frame % kLeafFrames), static_cast<unsigned>(std::bit_width(bits) - 1));
        if ((peek(view.leaf[frame / kLeafFrames]) & mask) != 0) return false;
        frame += bits;
    }
    for (unsigned level = 1; level <= view.top_layer; ++level) {
        const unsigned child_order = word_order(level - 1);
        const std::uint64_t begin = first(block) >> child_order;
        for (std::uint64_t child = begin; child < std::max(begin + 1, end(block) >> child_order); ++child)
            if (UpperWord{peek(view.upper[level][child / kUpperFanOut])}.closed_to_allocation(child % kUpperFanOut))
                return false;
    }
    for (std::uint32_t thread = 0; thread < memory_.pool.thread_slots; ++thread) {
        const Intent intent{peek(memory_.pool.threads[thread].intent)};
        if (intent.active() && fiber_of_slot_[thread] != client.fiber && intent.numa_node().value == node &&
            overlaps(intent.block(), block))
            return false;
    }
    return true;
}

bool Wishes::find_witness(Client &client) {
    Client::Wish &wish = client.wish;
    for (unsigned node = 0; node < plan_.numa_nodes; ++node) {
        if (wish.numa_node >= 0 && static_cast<unsigned>(wish.numa_node) != node) continue;
        for (std::uint64_t base = 0; base + wish.order.frames() <= memory_.geometry.frame_count;
             base += wish.order.frames()) {
            const Block block{FrameIndex{base}, wish.order};
            if (!is_free_now(client, node, block)) continue;
            wish.witness_node = node;
            wish.witness = block;
            return true;
        }
    }
    return false;
}

void Wishes::note_intent(std::size_t thread, Intent intent) {
    fiber_of_slot_[thread] = scheduler_.current();
    if (intent.active()) note_taken(intent.numa_node().value, intent.block());
}

void Wishes::before_look(const void *word) {
    const int fiber = scheduler_.current();
    const auto at = static_cast<const char *>(word);
    for (Client &client : processes_.clients()) {
        if (client.fiber != fiber || !client.wish.active || client.wish.order.value != memory_.geometry.largest_order ||
            looks_left_ == 0)
            continue;
        for (unsigned node = 0; node < plan_.numa_nodes; ++node) {
            const auto *const begin = reinterpret_cast<const char *>(memory_.nodes[node].leaf);
            if (at < begin || at >= begin + memory_.nodes[node].word_count[0] * 8) continue;
            const std::uint64_t chunk =
                static_cast<std::uint64_t>(at - begin) / 8 * kLeafFrames >> memory_.geometry.largest_order;
            const auto is_taken = [this, node, chunk] {
                for (std::uint64_t frame = memory_.first_frame(chunk); frame < memory_.first_frame(chunk + 1);
                     frame += kLeafFrames)
                    if (peek(memory_.nodes[node].leaf[frame / kLeafFrames]) != 0) return true;
                return false;
            };
            --looks_left_;
            const std::function<bool()> holds = is_taken;
            scheduler_.let_others_until(holds, 3000);
        }
    }
}

}  // namespace numacre::simulation
