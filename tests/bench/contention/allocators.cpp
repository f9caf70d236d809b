#include "allocators.hpp"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>

#include "llfree_like.hpp"
#include "numacre/shm/buddy.hpp"
#include "numacre/shm/chunks.hpp"
#include "numacre/shm/format.hpp"
#include "papers/buddy_spinlock.hpp"
#include "papers/nbbs_four_levels.hpp"
#include "papers/nbbs_one_level.hpp"
#include "support/cached_block.hpp"

namespace numacre::contention {

using namespace engine;
namespace {

using Env = ContentionEnv;
using Word = Env::Atomic<std::uint64_t>;
using test::into_cache;
using test::is_cached;
using test::look_at;
using test::out_of_cache;

// ---------------------------------------------------------------------------------------------------------------------
// The product's allocator (shm/buddy.hpp, the very source that clients run), as one client process: a thread slot a
// core, and one numa node's tree or several, each core at home in one.

class Numacre : public Allocator {
public:
    Numacre(Arena &arena, std::uint64_t frame_count, unsigned cores, unsigned numa_nodes)
        : cores_(cores), frames_of_node_(frame_count / numa_nodes) {
        constexpr std::uint32_t kProcessSlots = 2;  // the daemon and the client
        const std::uint32_t thread_slots = cores + 1;
        Geometry geometry;
        geometry.frame_bytes = 1U << kFrameShift;
        geometry.largest_order = kPoolLargestOrder;
        geometry.frame_count = frames_of_node_;
        if (!plausible(geometry)) throw std::runtime_error("no such pool");

        std::byte *const region =
            arena.place(PoolLayout<Env>::of(kProcessSlots, thread_slots).region_bytes, "pool header");
        format_pool_region<Env>(region, "contention", 1, geometry, numa_nodes, kProcessSlots, thread_slots);
        pool_ = PoolView<Env>::at(region, kProcessSlots, thread_slots);
        arena.label(pool_.threads, thread_slots * sizeof(ThreadSlot<Env>), "thread slots");
        for (unsigned core = 0; core < cores; ++core)
            pool_.threads[slot_of(core)].owner.store(ThreadOwner{kClient}.bits());
        pool_.header->thread_high_water.store(thread_slots);
        for (unsigned node = 0; node < numa_nodes; ++node) add_node(arena, geometry, node, thread_slots);
    }

    std::optional<std::uint64_t> allocate(unsigned core, unsigned order) override {
        Block block;
        const unsigned home = core * static_cast<unsigned>(nodes_.size()) / cores_;
        for (unsigned step = 0; step < nodes_.size(); ++step) {
            const unsigned node = (home + step) % nodes_.size();
            if (nodes_[node].allocate(actor_of(core), order_of(order), {}, block) == Errc::ok)
                return node * frames_of_node_ + block.base.value;
        }
        return std::nullopt;
    }
    void free(unsigned core, std::uint64_t frame, unsigned) override {
        Block freed;
        const Errc result =
            nodes_[frame / frames_of_node_].free(actor_of(core), FrameIndex{frame % frames_of_node_}, freed);
        if (result != Errc::ok) throw std::runtime_error("a live block could not be freed");
    }

protected:
    static constexpr ProcessSlot kClient{1};
    static constexpr Order order_of(unsigned order) { return Order{order}; }
    static constexpr std::uint16_t slot_of(unsigned core) { return static_cast<std::uint16_t>(core + 1); }
    static constexpr Actor actor_of(unsigned core) { return {ThreadSlotIndex{slot_of(core)}, kClient}; }

    unsigned cores_;
    std::uint64_t frames_of_node_;
    PoolView<Env> pool_;
    std::vector<Buddy<Env>> nodes_;

private:
    void add_node(Arena &arena, const Geometry &geometry, unsigned node, std::uint32_t thread_slots) {
        const NumaNode numa_node{static_cast<std::uint8_t>(node)};
        const auto layout = NodeLayout<Env>::of(geometry, thread_slots);
        std::byte *const region = arena.place(layout.region_bytes, "node header");
        format_node_region<Env>(region, geometry, numa_node, 1, thread_slots);
        const auto view = NodeView<Env>::at(region, geometry, numa_node, thread_slots);
        arena.label(view.home, thread_slots * sizeof(HomeWords<Env>), "thread slots");
        arena.label(view.counters, thread_slots * sizeof(ThreadCounters<Env>), "thread slots");
        arena.label(view.leaf, geometry.word_count(0) * sizeof(Word), "leaf words");
        for (unsigned layer = 1; layer <= view.top_layer; ++layer)
            arena.label(view.upper[layer], geometry.word_count(layer) * sizeof(Word),
                        "upper words " + std::to_string(layer));
        for (unsigned level = 2; level <= view.hint_levels; ++level)
            arena.label(view.hint[level], geometry.word_count(level) * sizeof(Word), "hints " + std::to_string(level));
        for (unsigned layer = 0; layer <= view.top_layer; ++layer)
            arena.label(view.index[layer], geometry.index_entry_count(layer) * sizeof(Word),
                        "index " + std::to_string(layer));
        Chunks<Env> chunks(view, pool_);
        for (std::uint64_t chunk = 0; chunk < geometry.chunk_count(); ++chunk)
            if (!chunks.bring_online(chunk)) throw std::runtime_error("a chunk does not come online");
        nodes_.emplace_back(view, pool_);
    }
};

// With a magazine a core and order in front, by the steps of shm/cached_block.h. The client's own
// (client/src/lane.hpp, cache.cpp) is written for real memory; sizes and rules here are the same: 32 blocks a refill
// (none of 32 frames and more), a full magazine is bypassed, all threads' magazines of one order hold 1/16 of the pool
// at most (the client's half of that while others hold the rest), and all are given back when memory runs out anywhere.
class NumacreCached final : public Numacre {
public:
    NumacreCached(Arena &arena, std::uint64_t frame_count, unsigned cores)
        : Numacre(arena, frame_count, cores, 1), lanes_(cores) {
        for (unsigned order = 0; order <= kLeafOrder; ++order) {
            const std::uint64_t share = frame_count / kShare / cores >> order;
            capacity_[order] = share < kLeastUseful ? 0 : std::min<std::uint64_t>(share, kMagazineBlocks);
        }
    }

    std::optional<std::uint64_t> allocate(unsigned core, unsigned order) override {
        look_at_attention(core);
        if (order > kLeafOrder || capacity_[order] == 0) return allocate_uncached(core, order);
        Lane &lane = lanes_[core];
        auto &magazine = lane.magazines[order];
        if (magazine.empty() && !refill(core, order)) return allocate_uncached(core, order);
        const std::uint64_t frame = magazine.back();
        magazine.pop_back();
        auto &slot = nodes_[0].view().index[0][frame];
        const IndexEntry entry = look_at(slot);
        const IndexEntry owned = IndexEntry::owned(actor_of(core).process, Order{order}, 0, {});
        if (const ThreadSlotIndex thread{slot_of(core)}; is_cached(entry, owned, thread))
            out_of_cache(slot, entry, owned, thread);
        count(nodes_[0].view().counters[slot_of(core)].allocations[order]);
        return frame;
    }

    void free(unsigned core, std::uint64_t frame, unsigned order) override {
        look_at_attention(core);
        Word &slot = nodes_[0].view().index[0][frame];
        const IndexEntry entry = look_at(slot);
        const unsigned found = entry.order().value;
        if (!entry.is_private(IndexEntry::private_to(kClient)) || found > kLeafOrder ||
            lanes_[core].magazines[found].size() >= capacity_[found])
            return Numacre::free(core, frame, order);
        into_cache(slot, entry, ThreadSlotIndex{slot_of(core)});
        lanes_[core].magazines[found].push_back(frame);
        count(nodes_[0].view().counters[slot_of(core)].frees[found]);
    }

private:
    static constexpr std::uint64_t kShare = 16;
    static constexpr std::uint64_t kLeastUseful = 4;
    static constexpr std::uint64_t kMagazineBlocks = 1024;
    static constexpr unsigned kRefillBlocks = 32;
    static constexpr unsigned kSingleOrder = kLeafOrder - 1;  // not refilled from here on
    static constexpr unsigned kRestraint = 256;

    struct Lane {
        std::array<std::vector<std::uint64_t>, kLeafOrder + 1> magazines;
        std::uint64_t attention_seen = 0;
        unsigned restraint = 0;
    };

    std::optional<std::uint64_t> allocate_uncached(unsigned core, unsigned order) {
        if (const auto frame = Numacre::allocate(core, order)) return frame;
        // Others' caches may have what is missing: they are asked, and give back at their next call.
        Lane &lane = lanes_[core];
        give_back_all(core);
        lane.attention_seen = pool_.header->attention.fetch_add(Attention::kPressureStep) + Attention::kPressureStep;
        lane.restraint = kRestraint;
        return Numacre::allocate(core, order);
    }

    bool refill(unsigned core, unsigned order) {
        Lane &lane = lanes_[core];
        if (lane.restraint != 0) {
            --lane.restraint;
            return false;
        }
        if (order >= kSingleOrder) return false;
        const auto capacity = static_cast<unsigned>(capacity_[order]);
        const unsigned wanted = capacity < 2 * kRefillBlocks ? capacity / 2 : kRefillBlocks;
        std::array<FrameIndex, kRefillBlocks> bases;
        const unsigned got =
            nodes_[0].allocate_many(actor_of(core), order_of(order), BlockState::cached, {}, bases.data(), wanted);
        for (unsigned i = got; i-- > 0;) lane.magazines[order].push_back(bases[i].value);
        return got != 0;
    }

    void look_at_attention(unsigned core) {
        Lane &lane = lanes_[core];
        const std::uint64_t now = pool_.header->attention.load(std::memory_order_relaxed);
        if (now == lane.attention_seen) return;
        lane.attention_seen = now;
        lane.restraint = kRestraint;
        give_back_all(core);
    }

    void give_back_all(unsigned core) {
        for (auto &magazine : lanes_[core].magazines) {
            while (!magazine.empty()) {
                std::array<FrameIndex, kLeafFrames> bases;
                unsigned batch = 0;
                for (; batch < kLeafFrames && !magazine.empty(); magazine.pop_back())
                    bases[batch++] = FrameIndex{magazine.back()};
                nodes_[0].free_many(actor_of(core), BlockState::cached, bases.data(), batch);
            }
        }
    }

    std::vector<Lane> lanes_;  // each core's own, and private memory in truth: not counted
    std::array<std::uint64_t, kLeafOrder + 1> capacity_{};
};

// ---------------------------------------------------------------------------------------------------------------------

// The baselines of tests/papers, as they are.
template <class Paper>
class OfPapers final : public Allocator {
public:
    OfPapers(Arena &arena, std::uint64_t frame_count, unsigned cores)
        : paper_(frame_count, kPoolLargestOrder, cores,
                 arena.place(Paper::memory_bytes(frame_count, kPoolLargestOrder, cores), "tree")) {}
    std::optional<std::uint64_t> allocate(unsigned core, unsigned order) override {
        return paper_.allocate(order, core);
    }
    void free(unsigned core, std::uint64_t frame, unsigned) override { paper_.free(frame, core); }

private:
    Paper paper_;
};

class OfLlfree final : public Allocator {
public:
    OfLlfree(Arena &arena, std::uint64_t frame_count, unsigned cores)
        : llfree_(frame_count, cores, arena.place(Llfree::memory_bytes(frame_count, cores), "llfree")) {}
    std::optional<std::uint64_t> allocate(unsigned core, unsigned order) override {
        return llfree_.allocate(order, core);
    }
    void free(unsigned core, std::uint64_t frame, unsigned order) override { llfree_.free(frame, order, core); }

private:
    using Llfree = LlfreeLike<Env>;
    Llfree llfree_;
};

template <class Made, class... Extra>
auto maker(Extra... extra) {
    return [extra...](Arena &arena, std::uint64_t frame_count, unsigned cores) -> std::unique_ptr<Allocator> {
        return std::make_unique<Made>(arena, frame_count, cores, extra...);
    };
}

}  // namespace

const std::vector<Contender> &contenders() {
    static const std::vector<Contender> all{
        {"numacre", "one tree, no cache", true, true, 10, maker<Numacre>(1U)},
        {"numacre-4nodes", "four numa nodes' trees of a quarter each", true, true, 10, maker<Numacre>(4U)},
        {"numacre-cached", "one tree, magazines in front", true, true, 10, maker<NumacreCached>()},
        {"llfree_like", "counters and bitfields, a reserved tree a core", false, true, 2, maker<OfLlfree>()},
        {"nbbs-4lvl", "papers, four levels a word", false, false, 8, maker<OfPapers<papers::NbbsFourLevels<Env>>>()},
        {"nbbs-4lvl-padded", "the same, a word a cache line", false, false, 64,
         maker<OfPapers<papers::NbbsFourLevels<Env, kLineBytes>>>()},
        {"nbbs-1lvl", "papers, a byte a node", false, false, 8, maker<OfPapers<papers::NbbsOneLevel<Env>>>()},
        {"nbbs-1lvl-padded", "the same, a node a cache line", false, false, 140,
         maker<OfPapers<papers::NbbsOneLevel<Env, kLineBytes>>>()},
        {"buddy-spinlock", "papers, a tree under one spin lock", false, true, 4,
         maker<OfPapers<papers::BuddySpinLock<Env, Env>>>()},
    };
    return all;
}

}  // namespace numacre::contention
