// The names of blocks in leaf words, for calls about many of them: what a name and a take need, in a copy of its own.
// For the compiler, a store to shared memory might change any other memory, so that it would load all of this anew for
// each block. After a locked instruction nothing overlaps, and each instruction counts.
#pragma once

#include <cstdint>

#include "numacre/shm/layout.hpp"
#include "numacre/shm/owner.hpp"
#include "numacre/shm/reference.hpp"

namespace numacre::engine {

// The names of one numa node, as ReferenceFormat has them.
template <class Env>
class LeafNames {
public:
    using Word = typename NodeView<Env>::Word;
    using EraWord = typename NodeView<Env>::EraWord;

    // ours: what a taken block's entry says, without order, generation and note. since: the time of the takes.
    LeafNames(const NodeView<Env> &view, IndexEntry ours, PoolAge since)
        : format_(view.reference_format),
          of_node_(format_.bits_of(view.numa_node)),
          era_mask_(format_.era_mask()),
          ours_(ours.with(Note{since})),
          index_(view.index[0]),
          era_(view.era[0]),
          frame_count_(view.geometry.frame_count),
          largest_order_(view.largest_leaf_order) {}

    // The name that a block of this process has once its entry is `entry`, published. To be called before: nobody else
    // changes the entry, hence neither the block's era.
    [[gnu::always_inline]] Reference name(Block block, IndexEntry entry) const {
        // EDGE era: the half before the entry's own has been counted, as in number_of_name().
        const std::uint16_t era = era_[block.base.value].load(std::memory_order_acquire);
        return format_.reference(of_node_, block, name_number(era, entry.generation()));
    }

    // Fetches what take() of this reference is going to read and write.
    [[gnu::always_inline]] void expect_take(Reference reference) const {
        const std::uint64_t base = format_.block(reference).base.value;
        if (base >= frame_count_) [[unlikely]]
            return;
        __builtin_prefetch(&index_[base], 1);
        __builtin_prefetch(&era_[base]);
    }

    // Buddy::take() of the common case. reference: any bits, but those of this numa node. False: nothing was done, call
    // Buddy::take(). The take is not counted.
    [[gnu::always_inline]] bool take(Reference reference, FrameIndex &base) const {
        const Block block = format_.block(reference);
        base = block.base;
        if (base.value >= frame_count_ || block.order.value > largest_order_) [[unlikely]]
            return false;
        Word &slot = index_[base.value];
        std::uint64_t bits = slot.load(std::memory_order_acquire);
        const IndexEntry entry{bits};
        // EDGE era, as in Buddy::take_at().
        const std::uint16_t era = era_[base.value].load(std::memory_order_acquire);
        const std::uint64_t number = format_.number(reference);
        if (!entry.is_published_as(block.order, number) || !is_number_of_era(number, era, era_mask_) ||
            !entry.is_a_clients() || entry.is_last_of_half()) [[unlikely]]
            return false;
        // EDGE hand-over, as in Buddy::take_at().
        return slot.compare_exchange_strong(bits, entry.handed_on_in_half(ours_).bits(), std::memory_order_acq_rel);
    }

private:
    ReferenceFormat format_;
    std::uint64_t of_node_;
    std::uint64_t era_mask_;
    IndexEntry ours_;
    Word *index_;
    const EraWord *era_;
    std::uint64_t frame_count_;
    std::uint32_t largest_order_;
};

}  // namespace numacre::engine
