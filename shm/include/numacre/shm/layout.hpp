// The offsets of all parts of shared memory. A pool is one pool region (processes and threads) and, per numa node, one
// node region (the allocator's metadata) and one data region (the frames). Only offsets and indices are stored, never
// addresses. Any change here that moves or reinterprets a byte raises kLayoutVersion, unless every value of it is
// harmless (Home).
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "numacre/error.hpp"
#include "numacre/shm/channel/layout.hpp"
#include "numacre/shm/env.hpp"
#include "numacre/shm/geometry.hpp"
#include "numacre/shm/hold_words.hpp"
#include "numacre/shm/names.hpp"
#include "numacre/shm/records.hpp"
#include "numacre/shm/reference.hpp"
#include "numacre/shm/thread_parts.hpp"
#include "numacre/shm/units.hpp"

namespace numacre::engine {

inline constexpr std::uint32_t kLayoutVersion = 15;
inline constexpr std::size_t kPageBytes = 4096;
inline constexpr std::uint64_t kHugepageBytes = std::uint64_t{2} << 20;
inline constexpr std::uint64_t kGiganticPageBytes = std::uint64_t{1} << 30;

// Upper bound of failures in a row of a compare-and-swap on one word that correct peers can cause. Beyond it somebody
// scribbles on the word for ever: loops that the daemon runs give up, so that no client keeps the daemon busy.
inline constexpr unsigned kCasRoundsMax = 1U << 20;

// ---------------------------------------------------------------------------------------------------------------------
// Offsets, in bytes from the region's start. Every part begins on a page, so that parts never touched cost no memory.

template <class Env>
struct NodeLayout {
    using Word = typename Env::template Atomic<std::uint64_t>;
    using EraWord = typename Env::template Atomic<std::uint16_t>;

    std::uint64_t leaf = 0;
    std::array<std::uint64_t, kMaxUpperLayers + 1> upper{};  // [1 .. top_layer]
    std::array<std::uint64_t, kMaxHintLevels + 1> hint{};    // [2 .. hint_levels]
    std::array<std::uint64_t, kMaxUpperLayers + 1> index{};  // [0 .. top_layer]
    std::array<std::uint64_t, kMaxUpperLayers + 1> era{};    // [0 .. top_layer], a word for each index entry
    std::uint64_t home = 0;
    std::uint64_t counters = 0;
    std::uint64_t region_bytes = 0;

    // The geometry must be plausible().
    static constexpr NodeLayout of(const Geometry &geometry, std::uint32_t thread_slots) {
        NodeLayout layout;
        std::uint64_t end = kPageBytes;
        const auto place = [&end](std::uint64_t count, std::uint64_t bytes_each) {
            const std::uint64_t offset = end;
            end += round_up(count * bytes_each, kPageBytes);
            return offset;
        };
        layout.home = place(thread_slots, sizeof(HomeWords<Env>));
        layout.counters = place(thread_slots, sizeof(ThreadCounters<Env>));
        for (unsigned level = geometry.hint_levels(); level >= 2; --level)
            layout.hint[level] = place(geometry.word_count(level), sizeof(Word));
        for (unsigned layer = geometry.top_layer(); layer >= 1; --layer)
            layout.upper[layer] = place(geometry.word_count(layer), sizeof(Word));
        layout.leaf = place(geometry.word_count(0), sizeof(Word));
        for (unsigned layer = geometry.top_layer() + 1; layer-- > 0;)
            layout.index[layer] = place(geometry.index_entry_count(layer), sizeof(Word));
        for (unsigned layer = geometry.top_layer() + 1; layer-- > 0;)
            layout.era[layer] = place(geometry.index_entry_count(layer), sizeof(EraWord));
        layout.region_bytes = end;
        return layout;
    }
};

template <class Env>
struct PoolLayout {
    std::uint64_t accounts = 0;
    std::uint64_t processes = 0;
    std::uint64_t threads = 0;
    std::uint64_t names = 0;
    std::uint64_t channels = 0;  // kChannelAreaBytes; a part of it has memory behind it once a channel lies there
    std::uint64_t holds = 0;     // not populated: a page comes when a thread of it first holds a block
    std::uint64_t region_bytes = 0;

    static constexpr PoolLayout of(std::uint32_t process_slots, std::uint32_t thread_slots) {
        PoolLayout layout;
        layout.accounts = kPageBytes;
        layout.processes = layout.accounts + round_up(kAccounts * sizeof(Account<Env>), kPageBytes);
        layout.threads = layout.processes + round_up(process_slots * sizeof(ProcessRecord<Env>), kPageBytes);
        layout.names = layout.threads + round_up(thread_slots * sizeof(ThreadSlot<Env>), kPageBytes);
        layout.channels = layout.names + round_up(sizeof(NameDirectory<Env>), kPageBytes);
        layout.holds = layout.channels + kChannelAreaBytes;
        layout.region_bytes = layout.holds + round_up(thread_slots * sizeof(HoldWords<Env>), kPageBytes);
        return layout;
    }
};

inline constexpr std::uint32_t kMaxProcessSlots = 0xff00;  // below kOfflineOwner
inline constexpr std::uint32_t kMaxThreadSlots = 0xffff;

// ---------------------------------------------------------------------------------------------------------------------
// Views: this process's addresses of the parts of shared memory. The geometry is the viewer's own trusted copy: an
// index computed from it stays inside the mapping whatever anybody writes to shared memory.

template <class Env>
struct NodeView {
    using Word = typename Env::template Atomic<std::uint64_t>;
    using EraWord = typename NodeLayout<Env>::EraWord;

    Geometry geometry;
    NumaNode numa_node;
    std::uint32_t thread_slots = 0;
    unsigned top_layer = 0;
    unsigned largest_leaf_order = 0;  // largest order of a block in a leaf word
    unsigned hint_levels = 0;
    std::array<std::uint64_t, kMaxUpperLayers + 1> word_count{};  // by layer: geometry.word_count()
    Word *leaf = nullptr;
    std::array<Word *, kMaxUpperLayers + 1> upper{};
    std::array<Word *, kMaxHintLevels + 1> hint{};
    std::array<Word *, kMaxUpperLayers + 1> index{};
    std::array<EraWord *, kMaxUpperLayers + 1> era{};
    ReferenceFormat reference_format;
    HomeWords<Env> *home = nullptr;
    ThreadCounters<Env> *counters = nullptr;

    // numa_nodes, instance_id: the pool's. A process that makes or takes references passes both; other processes may
    // omit them.
    static NodeView at(void *region, const Geometry &geometry, NumaNode numa_node, std::uint32_t thread_slots,
                       std::uint32_t numa_nodes = kMaxNumaNodes, std::uint64_t instance_id = 0) {
        const auto layout = NodeLayout<Env>::of(geometry, thread_slots);
        auto *const bytes = static_cast<std::byte *>(region);
        const auto words = [bytes](std::uint64_t offset) { return reinterpret_cast<Word *>(bytes + offset); };
        NodeView view;
        view.geometry = geometry;
        view.numa_node = numa_node;
        view.thread_slots = thread_slots;
        view.top_layer = geometry.top_layer();
        view.largest_leaf_order = std::min<unsigned>(geometry.largest_order, kLeafOrder);
        view.hint_levels = geometry.hint_levels();
        for (unsigned layer = 0; layer <= view.top_layer; ++layer) view.word_count[layer] = geometry.word_count(layer);
        view.leaf = words(layout.leaf);
        for (unsigned layer = 1; layer <= view.top_layer; ++layer) view.upper[layer] = words(layout.upper[layer]);
        for (unsigned level = 2; level <= view.hint_levels; ++level) view.hint[level] = words(layout.hint[level]);
        for (unsigned layer = 0; layer <= view.top_layer; ++layer) {
            view.index[layer] = words(layout.index[layer]);
            view.era[layer] = reinterpret_cast<EraWord *>(bytes + layout.era[layer]);
        }
        view.reference_format = ReferenceFormat{geometry.frame_count, numa_nodes, instance_id};
        view.home = reinterpret_cast<HomeWords<Env> *>(bytes + layout.home);
        view.counters = reinterpret_cast<ThreadCounters<Env> *>(bytes + layout.counters);
        return view;
    }

    Word &index_entry(Block block) const { return index_entry(layer_of(block.order), block); }
    // layer: layer_of(block.order).
    Word &index_entry(unsigned layer, Block block) const {
        return index[layer][block.base.value >> geometry.index_granule(layer)];
    }
    EraWord &era_word(unsigned layer, Block block) const {
        return era[layer][block.base.value >> geometry.index_granule(layer)];
    }
    bool contains(Block block) const {
        return block.order.value <= geometry.largest_order && block.base.value < geometry.frame_count &&
               (block.base.value & (block.order.frames() - 1)) == 0;
    }
};

template <class Env>
struct PoolView {
    PoolHeader<Env> *header = nullptr;
    Account<Env> *accounts = nullptr;
    ProcessRecord<Env> *processes = nullptr;
    ThreadSlot<Env> *threads = nullptr;
    NameDirectory<Env> *names = nullptr;
    HoldWords<Env> *holds = nullptr;  // of each thread slot
    std::uint32_t process_slots = 0;
    std::uint32_t thread_slots = 0;

    static PoolView at(void *region, std::uint32_t process_slots, std::uint32_t thread_slots) {
        const auto layout = PoolLayout<Env>::of(process_slots, thread_slots);
        auto *const bytes = static_cast<std::byte *>(region);
        return {reinterpret_cast<PoolHeader<Env> *>(bytes),
                reinterpret_cast<Account<Env> *>(bytes + layout.accounts),
                reinterpret_cast<ProcessRecord<Env> *>(bytes + layout.processes),
                reinterpret_cast<ThreadSlot<Env> *>(bytes + layout.threads),
                reinterpret_cast<NameDirectory<Env> *>(bytes + layout.names),
                reinterpret_cast<HoldWords<Env> *>(bytes + layout.holds),
                process_slots,
                thread_slots};
    }

    // Number of thread slots that a scan has to look at: at most `thread_slots`, whatever the shared word says.
    std::uint32_t threads_in_use_bound() const {
        // acquire: the mark rises before a slot below it is claimed (thread_slots.hpp). A process that has seen an
        // effect of the slot's user sees a mark above the slot.
        const std::uint64_t mark = header->thread_high_water.load(std::memory_order_acquire);
        return mark < thread_slots ? static_cast<std::uint32_t>(mark) : thread_slots;
    }
    // Number of process slots that a scan for clients has to look at: at most `process_slots`.
    std::uint32_t seats_bound() const {
        // seq_cst: a seat counts before its client can hold anything (account.hpp, charge-then-look).
        const std::uint64_t seats = header->seats.load(std::memory_order_seq_cst);
        return seats < process_slots ? static_cast<std::uint32_t>(seats) : process_slots;
    }
};

}  // namespace numacre::engine
