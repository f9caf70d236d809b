// CLEAN: removes marks with nothing allocated below them, so that a larger block can be claimed (lazy coalescing).
#pragma once

#include <cstdint>

#include "numacre/shm/buddy/ownership.hpp"

namespace numacre::engine {

template <class Env>
class BuddyCoalescing : public BuddyOwnership<Env> {
    using Base = BuddyOwnership<Env>;

public:
    using Base::Base;
    using Base::searcher;
    using Base::word_is_empty;
    using typename Base::Self;
    using typename Base::Word;

    // CLEAN, one level: clears the mark of (layer, word) in its parent if the word is empty. True: there is no mark
    // now. Dying inside leaves COAL set, which is harmless: the next allocation withdraws it, the next clean uses it.
    bool clean(unsigned layer, std::uint64_t word) {
        const unsigned child = word % kUpperFanOut;
        Word &state = view_.upper[layer + 1][word / kUpperFanOut];
        UpperWord seen{state.load(std::memory_order_seq_cst)};
        unsigned rounds = 0;
        while (seen.occupied_below(child)) {
            if (++rounds > kCasRoundsMax) return false;
            if (!seen.coalescing(child)) {
                if (!word_is_empty(layer, word)) return false;  // optional: saves the CAS
                std::uint64_t bits = seen.bits();
                if (!state.compare_exchange_weak(bits, seen.with_coalescing(child).bits(), std::memory_order_seq_cst)) {
                    seen = UpperWord{bits};
                    continue;
                }
                seen = seen.with_coalescing(child);
                Env::crash_point(CrashPoint::clean_after_coalescing);
            }
            // EDGE coalesce-then-look (seq_cst: COAL must be visible before this load; partner: EDGE claim-then-look).
            // Weakened: we see the child empty, an allocation below sees P without COAL and climbs on, we clear P over
            // a live block, and the parent is handed out whole.
            if (!word_is_empty(layer, word)) return false;
            std::uint64_t bits = seen.bits();
            // Compares the whole word, tag included: any change since we saw COAL makes us look again.
            if (state.compare_exchange_weak(bits, seen.without_mark(child).bits(), std::memory_order_seq_cst))
                return true;
            seen = UpperWord{bits};
        }
        return true;
    }

    // Cleans (layer, word) and all below it. False: something is allocated in or below it.
    bool clean_through(unsigned layer, std::uint64_t word, Search<Env> &search) {
        if (layer == 0) return clean(0, word);
        const UpperWord state{view_.upper[layer][word].load(std::memory_order_seq_cst)};
        bool empty = state.allocated_children() == 0;
        for (unsigned child = 0; child < kUpperFanOut && empty; ++child)
            if (state.occupied_below(child)) empty = clean_through(layer - 1, word * kUpperFanOut + child, search);
        if (empty) return clean(layer, word);
        search.lower(layer, word);  // its hint said that the whole word is free, or we would not be here
        return false;
    }

    // Cleans the marks below a block that is not allocated yet, so that it can be claimed. False: somebody is in there.
    bool clean_below(Actor actor, Block block) {
        const unsigned layer = layer_of(block.order);
        if (layer == 0) return false;
        Search<Env> search = searcher(actor);
        return clean_children(layer, block.base.value >> word_order(layer), group_of(layer, block), search);
    }

protected:
    using Base::group_of;
    using Base::view_;

    // Makes children of an upper word claimable for a block of this order: their marks may be left over from freed
    // blocks. False: there are no such children.
    [[gnu::noinline]] bool clean_a_group(const Self &self, unsigned layer, std::uint64_t word, Order order) {
        const unsigned levels = order.value - word_order(layer - 1);
        // relaxed: only a guess, cleaning looks again.
        const UpperWord seen{view_.upper[layer][word].load(std::memory_order_relaxed)};
        const auto open = static_cast<std::uint8_t>(~(seen.allocated_children() | seen.draining_children()));
        const std::uint8_t starts = upper::free_starts(open, levels);
        if (starts == 0) return false;
        Search<Env> search = searcher(self);
        for (unsigned child = 0; child < kUpperFanOut; ++child)
            if ((starts >> child & 1) != 0 && clean_children(layer, word, upper::group(child, levels), search))
                return true;
        return false;
    }

    // False: something is allocated below one of them.
    bool clean_children(unsigned layer, std::uint64_t word, std::uint8_t group, Search<Env> &search) {
        const UpperWord seen{view_.upper[layer][word].load(std::memory_order_seq_cst)};
        for (unsigned child = 0; child < kUpperFanOut; ++child) {
            const std::uint64_t below = word * kUpperFanOut + child;
            if ((group >> child & 1) == 0 || !seen.occupied_below(child)) continue;
            if (below >= view_.word_count[layer - 1] || !clean_through(layer - 1, below, search)) return false;
        }
        return true;
    }
};

}  // namespace numacre::engine
