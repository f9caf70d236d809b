// Turns zeroed memory into a pool's regions. Nobody else sees the regions yet, so plain initial stores suffice.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "numacre/shm/layout.hpp"
#include "numacre/shm/policy.hpp"

namespace numacre::engine {

// region: PoolLayout::of(process_slots, thread_slots).region_bytes zeroed bytes. name: shorter than kPoolNameBytes.
template <class Env>
void format_pool_region(void *region, std::string_view name, std::uint64_t instance_id, const Geometry &geometry,
                        unsigned numa_nodes, std::uint32_t process_slots, std::uint32_t thread_slots,
                        const Policy &policy = {PolicyMode::local, 0}) {
    const auto view = PoolView<Env>::at(region, process_slots, thread_slots);
    auto &header = *view.header;
    header.magic = kPoolMagic;
    header.layout_version = kLayoutVersion;
    header.header_bytes = sizeof(PoolHeader<Env>);
    header.region_bytes = PoolLayout<Env>::of(process_slots, thread_slots).region_bytes;
    header.instance_id = instance_id;
    std::memcpy(header.name, name.data(), std::min(name.size(), kPoolNameBytes - 1));
    header.geometry = geometry;
    header.numa_node_count = numa_nodes;
    header.process_slots = process_slots;
    header.thread_slots = thread_slots;
    header.policy_mode = static_cast<std::uint32_t>(policy.mode);
    header.policy_nodes = policy.nodes;
    view.processes[kDaemonProcess.value].state.store(static_cast<std::uint64_t>(ProcessState::active),
                                                     std::memory_order_relaxed);
    view.threads[kDaemonThread.value].owner.store(ThreadOwner{kDaemonProcess}.bits(), std::memory_order_relaxed);
    header.thread_high_water.store(1, std::memory_order_relaxed);
    // release: the whole region is written before the word that says that the pool serves.
    header.state.store(static_cast<std::uint64_t>(PoolState::serving), std::memory_order_release);
}

// region: NodeLayout::of(geometry, thread_slots).region_bytes zeroed bytes. Every chunk begins offline. Touches the
// header, the top layer, its index and the hints above: at most 2 bytes for each chunk of 4 MiB. The layers below stay
// untouched.
template <class Env>
void format_node_region(void *region, const Geometry &geometry, NumaNode numa_node, std::uint64_t instance_id,
                        std::uint32_t thread_slots) {
    constexpr auto relaxed = std::memory_order_relaxed;  // nobody else sees the region yet
    auto &header = *static_cast<NodeHeader<Env> *>(region);
    header.magic = kNodeMagic;
    header.layout_version = kLayoutVersion;
    header.header_bytes = sizeof(NodeHeader<Env>);
    header.region_bytes = NodeLayout<Env>::of(geometry, thread_slots).region_bytes;
    header.instance_id = instance_id;
    header.geometry = geometry;
    header.numa_node = numa_node.value;
    header.thread_slots = thread_slots;

    const auto view = NodeView<Env>::at(region, geometry, numa_node, thread_slots);
    // Every top word is closed as a whole, including its part beyond the capacity. The children below look free and are
    // never reached.
    for (std::uint64_t word = 0; word < geometry.word_count(view.top_layer); ++word) {
        if (view.top_layer == 0)
            view.leaf[word].store(~std::uint64_t{0}, relaxed);
        else
            view.upper[view.top_layer][word].store(UpperWord{}.with_allocated(0xff).bits(), relaxed);
    }
    for (std::uint64_t chunk = 0; chunk < geometry.chunk_count(); ++chunk) {
        const Block block{FrameIndex{chunk << geometry.largest_order}, geometry.largest()};
        view.index_entry(block).store(IndexEntry::owned(kOfflineOwner, geometry.largest(), 1, {}).bits(), relaxed);
    }
    // Hints of "nothing free" below every top word: without them the first search would visit all top words.
    const unsigned ceiling = geometry.largest_order + 1;
    HintWord none;
    for (unsigned child = 0; child < kUpperFanOut; ++child) none = none.with_value(child, 0, ceiling);
    for (unsigned level = view.top_layer == 0 ? 2 : view.top_layer + 1; level <= view.hint_levels; ++level)
        for (std::uint64_t word = 0; word < geometry.word_count(level); ++word)
            view.hint[level][word].store(none.bits(), relaxed);
}

}  // namespace numacre::engine
