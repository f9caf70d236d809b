// ALLOCATE at a known word: takes free bits there, marks the words above, commits; or undoes all of it.
#pragma once

#include <bit>
#include <cstdint>

#include "numacre/shm/buddy/holds.hpp"

namespace numacre::engine {

template <class Env>
class BuddyClaim : public BuddyHolds<Env> {
    using Base = BuddyHolds<Env>;

public:
    using Base::after;
    using Base::Base;
    using Base::begin;
    using Base::clean_below;
    using Base::commit;
    using Base::end;
    using Base::view_of;
    using typename Base::Self;
    using typename Base::ShortPath;
    using typename Base::Word;

    // allocate() of a block of at most kLeafOrder (and at most the pool's largest) from the word where this thread was
    // last. note() is called after the claim, so that the caller need not keep the note until then.
    template <class MakeNote>
    [[gnu::always_inline]] ShortPath allocate_nearby(const Self &self, Order order, const MakeNote &note, Block &out) {
        const FrameIndex home{home_of(self, order).place()};
        if (home.value >= view_.geometry.frame_count) [[unlikely]]
            return ShortPath::refused;
        return allocate_in_leaf(self, home, order, [&] { return owned_by(self, order, note()); }, out);
    }

    // allocate_nearby() of a block larger than kLeafOrder. layer: layer_of(order).
    template <class MakeNote>
    [[gnu::always_inline]] ShortPath allocate_nearby_in_upper(const Self &self, unsigned layer, Order order,
                                                              const MakeNote &note, Block &out) {
        const std::uint64_t home = home_for(self, layer, order);
        if (home == kNoWord) [[unlikely]]
            return ShortPath::refused;
        return allocate_in_upper(
            self, layer, home, order, home_of(self, order).widest(), [&] { return owned_by(self, order, note()); },
            out);
    }

    // Ends a short path that raced.
    [[gnu::noinline]] void give_up(const Self &self) {
        end(self);
        count(self.counters->cas_retries);
    }

    // Ends a short path that has begun. False: the claim had to be undone.
    [[gnu::noinline]] bool finish_allocation(const Self &self, Note note, Block block) {
        const unsigned layer = layer_of(block.order);
        return finish_claim(self, layer, block.base.value >> word_order(layer), block, self.ours.of(block.order, note))
            .got;
    }

    // Allocates the given block and no other: FitLook has found it free, and not draining. False, and nothing changed:
    // the block is not free any more, or draining by now. Dying inside: as in allocate().
    bool allocate_at(Actor actor, Block block, Note note) {
        if (!view_.contains(block)) return false;
        const unsigned layer = layer_of(block.order);
        if (layer != 0 && !clean_below(actor, block)) return false;
        if (!claim_this(actor, block, IfDraining::refuse)) return false;
        keep_claim(view_of(actor), layer, block, IndexEntry::owned(actor.process, block.order, 0, note));
        return true;
    }

    // Claims exactly this block, even in a draining chunk. The intent stays set: the caller writes the index and ends
    // the intent.
    bool claim_exactly(Actor actor, Block block) { return claim_this(actor, block, IfDraining::claim); }

protected:
    using Base::clean_a_group;
    using Base::first_frame;
    using Base::go_on;
    using Base::group_of;
    using Base::has_next;
    using Base::home_for;
    using Base::home_of;
    using Base::home_word;
    using Base::kNoWord;
    using Base::leaf_word_block;
    using Base::owned_by;
    using Base::raise_hints;
    using Base::set_home;
    using Base::unclaim;
    using Base::unclaim_in_leaf;
    using Base::view_;

    static constexpr unsigned kClimbed = 0;

    struct Attempt {
        bool got = false;
        unsigned closed_at = 0;  // level whose word has a closed child on our path; 0: the word itself had no room
    };

    enum class IfDraining : bool { refuse, claim };

    // Claims this block and no other. On success the intent stays set; on failure nothing is left behind.
    bool claim_this(Actor actor, Block block, IfDraining if_draining) {
        const Self self = view_of(actor);
        const unsigned layer = layer_of(block.order);
        const std::uint64_t word = block.base.value >> word_order(layer);
        begin(self, IntentKind::allocate, block);
        if (!claim(layer, word, block, if_draining)) {
            end(self);
            return false;
        }
        if (climb(layer, word) == kClimbed) return true;
        undo(self, layer, word, block);
        end(self);
        return false;
    }

    // One attempt at the leaf word of the frame `at`, first at that frame; any unusual case ends it. at: an existing
    // frame; it is rounded down to a block's beginning, for it may be scribbled.
    template <class MakeGrant>
    [[gnu::always_inline]] ShortPath allocate_in_leaf(const Self &self, FrameIndex at, Order order,
                                                      const MakeGrant &grant, Block &out) {
        const std::uint64_t word = at.value / kLeafFrames;
        Word &state = view_.leaf[word];
        // relaxed: only a guess, the CAS decides.
        std::uint64_t seen = state.load(std::memory_order_relaxed);
        // By a branch: the processor goes on with this frame's index entry while it waits for the word, which a locked
        // instruction has just changed.
        std::uint64_t base = leaf::rounded_down(at.value, order.value);
        std::uint64_t run = leaf::mask(base % kLeafFrames, order.value);
        if ((seen & run) != 0) {
            const std::uint64_t ends = leaf::free_ends(seen, order.value);
            if (ends == 0) [[unlikely]]
                return ShortPath::refused;
            const unsigned frame =
                static_cast<unsigned>(std::countr_zero(ends)) - leaf::kRuns.length_less_one[order.value];
            base = first_frame(word) + frame;
            run = leaf::mask(frame, order.value);
        }
        out = Block{FrameIndex{base}, order};
        begin(self, IntentKind::allocate, out);
        Env::crash_point(CrashPoint::allocate_after_intent);
        // EDGE claim-then-look (seq_cst, before the loads above the word; partner: EDGE coalesce-then-look). The CAS
        // also is EDGE unclaim-to-claim's acquire side: the old owner's last accesses happened before ours.
        const std::uint64_t claimed = seen | run;
        if (!state.compare_exchange_strong(seen, claimed, std::memory_order_seq_cst, std::memory_order_relaxed))
            [[unlikely]]
            return ShortPath::raced;
        Env::crash_point(CrashPoint::allocate_after_claim);
        // Go on here; if the word is used up, at the next one of the same cache line. No branch: in a pool that is
        // nearly full nobody could predict it.
        const auto used_up = static_cast<std::uint64_t>(claimed == ~std::uint64_t{0});
        set_home(self, order, home_of(self, order).moved_to(first_frame(word + (used_up & has_next(word)))));
        if (!is_marked_above(0, word)) [[unlikely]]
            return ShortPath::begun;
        keep_claim(self, 0, out, grant());
        return ShortPath::done;
    }

    // One attempt at an upper word, in its smallest hole of children without any mark. Refused also if that hole is
    // wider than `widest`, in levels. A block as large as the word has no choice of holes.
    template <class MakeGrant>
    [[gnu::always_inline]] ShortPath allocate_in_upper(const Self &self, unsigned layer, std::uint64_t word,
                                                       Order order, unsigned widest, const MakeGrant &grant,
                                                       Block &out) {
        const unsigned levels = order.value - word_order(layer - 1);
        // relaxed: only a guess, the CAS decides.
        const UpperWord seen{view_.upper[layer][word].load(std::memory_order_relaxed)};
        if (levels == kUpperLevels) {
            if (!seen.is_claimable()) [[unlikely]]
                return ShortPath::refused;
            const auto next = [&] { return go_on(home_of(self, order), word, true); };
            return claim_in_upper(self, layer, word, seen, 0, order, kUpperLevels, next, grant, out);
        }
        const upper::Hole hole = upper::smallest_hole(seen.claimable_children(), levels);
        if (hole.levels > widest) [[unlikely]]  // kUpperLevels at most: "no hole" is wider
            return ShortPath::refused;
        const auto next = [&] {
            // In a new place the width of its hole is the widest to take until the next search.
            if (home_word(self, layer, order) != word) return Home{word, hole.levels};
            const auto left =
                static_cast<std::uint8_t>(seen.claimable_children() & ~upper::group(hole.first_child, levels));
            return go_on(home_of(self, order), word, upper::smallest_hole(left, levels).levels > kUpperLevels);
        };
        return claim_in_upper(self, layer, word, seen, hole.first_child, order, levels, next, grant, out);
    }

    // levels: of the order. home(): the next home.
    template <class MakeHome, class MakeGrant>
    [[gnu::always_inline]] ShortPath claim_in_upper(const Self &self, unsigned layer, std::uint64_t word,
                                                    UpperWord seen, unsigned first_child, Order order, unsigned levels,
                                                    const MakeHome &home, const MakeGrant &grant, Block &out) {
        out = Block{FrameIndex{(word * kUpperFanOut + first_child) << word_order(layer - 1)}, order};
        begin(self, IntentKind::allocate, out);
        Env::crash_point(CrashPoint::allocate_after_intent);
        std::uint64_t bits = seen.bits();
        // EDGE claim-then-look, as in allocate_in_leaf().
        if (!view_.upper[layer][word].compare_exchange_strong(
                bits, seen.with_allocated(upper::group(first_child, levels)).bits(), std::memory_order_seq_cst,
                std::memory_order_relaxed)) [[unlikely]]
            return ShortPath::raced;
        Env::crash_point(CrashPoint::allocate_after_claim);
        set_home(self, order, home());
        if (!is_marked_above(layer, word)) [[unlikely]]
            return ShortPath::begun;
        keep_claim(self, layer, out, grant());
        return ShortPath::done;
    }

    // word: in: a word of the layer below; out: its parent.
    [[gnu::always_inline]] bool is_marked_in(unsigned level, std::uint64_t &word) const {
        const unsigned child = word % kUpperFanOut;
        word /= kUpperFanOut;
        // EDGE claim-then-look
        return UpperWord{view_.upper[level][word].load(std::memory_order_seq_cst)}.passable(child);
    }

    // climb() where nothing has to be changed.
    [[gnu::always_inline]] bool is_marked_above(unsigned layer, std::uint64_t word) const {
        // Three layers are common (4 KiB, 4 MiB): they need no loop.
        constexpr unsigned kUsual = 2;
        if (layer < kUsual && view_.top_layer == kUsual) [[likely]]
            return is_marked_in(layer + 1, word) && (layer + 1 == kUsual || is_marked_in(layer + 2, word));
        for (unsigned level = layer + 1; level <= view_.top_layer; ++level)
            if (!is_marked_in(level, word)) return false;
        return true;
    }

    // Allocates in one word. Retries as often as other threads change the word: each change is their progress. On
    // failure nothing is left behind.
    Attempt try_word(const Self &self, unsigned layer, std::uint64_t word, Order order, IndexEntry grant, Block &out) {
        if (layer == 0) return try_leaf_word(self, FrameIndex{first_frame(word)}, order, grant, out);
        for (;;) {
            const ShortPath way = allocate_in_upper(self, layer, word, order, kUpperLevels, [&] { return grant; }, out);
            if (way == ShortPath::done) return {true, kClimbed};
            if (way == ShortPath::begun) return finish_claim(self, layer, word, out, grant);
            if (way == ShortPath::raced) give_up(self);
            if (way == ShortPath::refused && !clean_a_group(self, layer, word, order)) return {};
        }
    }

    // try_word() at the leaf word of the frame `at`, first at that frame.
    Attempt try_leaf_word(const Self &self, FrameIndex at, Order order, IndexEntry grant, Block &out) {
        for (;;) {
            const ShortPath way = allocate_in_leaf(self, at, order, [&] { return grant; }, out);
            if (way == ShortPath::done) return {true, kClimbed};
            if (way == ShortPath::begun) return finish_claim(self, 0, at.value / kLeafFrames, out, grant);
            if (way == ShortPath::refused) return {};
            give_up(self);
        }
    }

    // Climbs above a claim and commits it, or undoes it.
    Attempt finish_claim(const Self &self, unsigned layer, std::uint64_t word, Block block, IndexEntry grant) {
        const unsigned closed_at = climb(layer, word);
        if (closed_at != kClimbed) {
            undo(self, layer, word, block);
            end(self);
            return {false, closed_at};
        }
        keep_claim(self, layer, block, grant);
        return {true, kClimbed};
    }

    [[gnu::always_inline]] void keep_claim(const Self &self, unsigned layer, Block block, IndexEntry grant) {
        Env::crash_point(CrashPoint::allocate_after_climb);
        commit(layer, block, grant);
        Env::crash_point(CrashPoint::allocate_after_commit);
        if (grant.is_owned()) count(self.counters->allocations[block.order.value]);
        end(self);
    }

    // Claims the given block and no other; false if a part of it is taken.
    bool claim(unsigned layer, std::uint64_t word, Block block, IfDraining if_draining) {
        unsigned rounds = 0;
        if (layer == 0) {
            const std::uint64_t mask = leaf::mask(block.base.value % kLeafFrames, block.order.value);
            std::uint64_t seen = view_.leaf[word].load(std::memory_order_relaxed);
            while ((seen & mask) == 0 && ++rounds <= kCasRoundsMax)
                if (view_.leaf[word].compare_exchange_weak(seen, seen | mask, std::memory_order_seq_cst)) return true;
            return false;
        }
        const std::uint8_t group = group_of(layer, block);
        const auto closed = [if_draining](UpperWord state) {
            return state.occupied_children() | state.allocated_children() |
                   (if_draining == IfDraining::refuse ? state.draining_children() : 0);
        };
        std::uint64_t bits = view_.upper[layer][word].load(std::memory_order_relaxed);
        while ((closed(UpperWord{bits}) & group) == 0) {
            if (view_.upper[layer][word].compare_exchange_weak(bits, UpperWord{bits}.with_allocated(group).bits(),
                                                               std::memory_order_seq_cst))
                return true;
            if (++rounds > kCasRoundsMax) return false;
        }
        return false;
    }

    // Marks every ancestor. It looks at all of them, also above one that is marked already: the thread that marked it
    // may have come no further yet (tests/model). Returns kClimbed, or the level whose word is closed on our path.
    unsigned climb(unsigned layer, std::uint64_t word) {
        for (unsigned level = layer + 1; level <= view_.top_layer; ++level) {
            const unsigned child = word % kUpperFanOut;
            word /= kUpperFanOut;
            Word &state = view_.upper[level][word];
            UpperWord seen{state.load(std::memory_order_seq_cst)};  // EDGE claim-then-look
            while (!seen.passable(child)) {
                if (seen.closed_to_allocation(child)) return level;
                std::uint64_t bits = seen.bits();
                if (state.compare_exchange_weak(bits, seen.with_mark(child).bits(), std::memory_order_seq_cst)) break;
                seen = UpperWord{bits};
            }
        }
        return kClimbed;
    }

    // Allocates several blocks of one leaf word by one CAS. 0: the word has no room, or is closed from above.
    unsigned allocate_in_word(const Self &self, std::uint64_t word, Order order, IndexEntry grant, FrameIndex *bases,
                              unsigned wanted) {
        Word &leaf_word = view_.leaf[word];
        // relaxed: only a guess, the CAS decides.
        std::uint64_t seen = leaf_word.load(std::memory_order_relaxed);
        std::uint64_t mask = 0;
        unsigned got = 0;
        bool begun = false;
        for (;;) {
            mask = 0;
            got = 0;
            for (std::uint64_t starts = leaf::free_starts(seen, order.value); starts != 0 && got < wanted;
                 starts &= starts - 1) {
                const auto frame = static_cast<unsigned>(std::countr_zero(starts));
                mask |= leaf::mask(frame, order.value);
                bases[got++] = FrameIndex{word * kLeafFrames + frame};
            }
            if (got == 0) {
                if (begun) end(self);
                return 0;
            }
            if (!begun) begin(self, IntentKind::word, leaf_word_block(word));
            begun = true;
            Env::crash_point(CrashPoint::allocate_after_intent);
            // EDGE claim-then-look, as for one block.
            if (leaf_word.compare_exchange_weak(seen, seen | mask, std::memory_order_seq_cst,
                                                std::memory_order_relaxed))
                break;
            count(self.counters->cas_retries);
        }
        Env::crash_point(CrashPoint::allocate_after_claim);
        if (climb(0, word) != kClimbed) [[unlikely]] {
            for (unsigned i = 0; i < got; ++i) leave_trace(self, Block{bases[i], order});
            Env::crash_point(CrashPoint::undo_after_trace);
            unclaim_in_leaf(word, mask);
            Env::crash_point(CrashPoint::undo_after_unclaim);
            raise_hints(self, 0, word);
            end(self);
            return 0;
        }
        Env::crash_point(CrashPoint::allocate_after_climb);
        for (unsigned i = 0; i < got; ++i) commit(0, Block{bases[i], order}, grant);
        Env::crash_point(CrashPoint::allocate_after_commit);
        if (grant.is_owned()) count(self.counters->allocations[order.value], got);
        end(self);
        return got;
    }

    void leave_trace(const Self &self, Block block) {
        Word &slot = view_.index_entry(block);
        const IndexEntry old{slot.load(std::memory_order_relaxed)};  // relaxed: as in commit()
        const IndexEntry trace = IndexEntry::freeing(self.actor.thread, block.order, 0);
        slot.store(after(layer_of(block.order), block, trace, old).bits(), std::memory_order_release);
    }

    // The index is written before the bits are cleared: recovery must be able to tell an undone claim from one in
    // flight.
    [[gnu::noinline]] void undo(const Self &self, unsigned layer, std::uint64_t word, Block block) {
        leave_trace(self, block);
        Env::crash_point(CrashPoint::undo_after_trace);
        unclaim(layer, word, block);
        Env::crash_point(CrashPoint::undo_after_unclaim);
        raise_hints(self, layer, word);
    }
};

}  // namespace numacre::engine
