// The hint tree: it tells a search where to look for a free block. Policy only: nothing here decides about ownership. A
// wrong hint can cost time or (too low) hide memory, but never hand a block out twice.
//
// Level 1 consists of groups of 8 leaf words, one cache line each: searches read the words themselves, there is no hint
// for them. From level 2 on, hint[level][w] has one byte for each of the eight words of level - 1 below: the largest
// order free there, without regard to marks (an empty child may keep its mark; a claim cleans it). Levels up to the top
// layer run beside the tree's layers; levels above it only summarise, up to one root word. So a search is O(levels),
// also when nearly everything is taken. (tests/model checks raise and lower.)
//
// Blocks allocated in a child's own word are read from that word and not from the child's hint (room_beside). So eight
// allocations and eight frees of blocks that fill a child change the hints once, not sixteen times.
//
// Rules that keep a hint from being too low once all operations have ended:
//   - A free changes the word by an RMW, then loads the hints that depend on the word, and raises them if the word now
//     has more (EDGE free-then-hint).
//   - A thread that lowers a hint does so by CAS, then reads the words again, and raises the hint if they have more
//     (EDGE lower-then-look).
// A thread announces either step in its thread slot first, so that "nothing free" can be double-checked and a death
// repaired.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "numacre/shm/layout.hpp"

namespace numacre::engine {

// A thread's announcement that hints from (level, word) upwards may be too low for the moment.
//   bit 0 active   1..4 level   5..38 word   39..63 sequence
class HintWork {
public:
    constexpr explicit HintWork(std::uint64_t bits) : bits_(bits) {}
    constexpr std::uint64_t bits() const { return bits_; }
    constexpr bool active() const { return (bits_ & 1) != 0; }
    constexpr unsigned level() const { return static_cast<unsigned>(bits_ >> 1 & 15); }
    constexpr std::uint64_t word() const { return bits_ >> 5 & ((std::uint64_t{1} << 34) - 1); }
    constexpr HintWork begun(unsigned level, std::uint64_t word) const {
        return HintWork{(bits_ >> 39 << 39) | word << 5 | std::uint64_t{level} << 1 | 1};
    }
    constexpr HintWork ended() const { return HintWork{((bits_ >> 39) + 1) << 39}; }

private:
    std::uint64_t bits_;
};

template <class Env>
class Search {
public:
    using Word = typename Env::template Atomic<std::uint64_t>;

    Search(const NodeView<Env> &view, Word &hint_work, ThreadSlotIndex thread)
        : view_(view), hint_work_(hint_work), thread_(thread) {}

    // The child of a word of this level at which this thread's round of looks begins: the child on the path to the leaf
    // word where the thread likes to begin. That leaf word is a fraction of the whole pool, not chosen level by level,
    // for a root may have as few as two children.
    unsigned first_child(unsigned level) const {
        const std::uint64_t leaf_word = (std::uint64_t{scatter(thread_)} * view_.word_count[0]) >> 32;
        return static_cast<unsigned>(leaf_word >> (kUpperLevels * (level - 1))) % kUpperFanOut;
    }

    // Largest free order + 1 below (level, word), as its words and the hints just below tell; 0: nothing is free. Never
    // too low once all is quiet; too high where a hint below is too high. level >= 1.
    unsigned value_of(unsigned level, std::uint64_t word) const {
        const unsigned open = open_children(level, word, state_of(level, word));
        const unsigned whole_child = word_order(level - 1) + 1;
        unsigned largest = 0;
        unsigned whole = 0;
        if (level == 1) {
            // The most frequent case: everything has just been taken.
            if (is_used_up(word)) return 0;
            for (unsigned left = open; left != 0; left &= left - 1) {
                const auto child = static_cast<unsigned>(std::countr_zero(left));
                const std::uint64_t state = leaf_state(word * kUpperFanOut + child);
                whole |= (state == 0 ? 1U : 0U) << child;
                if (largest <= kLeafOrder && leaf::free_ends(state, largest) != 0) largest = leaf::free_value(state);
            }
        } else {
            const HintWord hint = hint_of(level, word);
            const unsigned full = full_value(level - 1);
            for (unsigned left = open & hint.at_least(1, ceiling()); left != 0 && largest < full; left &= left - 1)
                largest = std::max(largest,
                                   potential(hint, level, word, static_cast<unsigned>(std::countr_zero(left)), full));
            // Several children can be whole only if one is.
            if (largest >= whole_child && level <= view_.top_layer) whole = empty_among(open, level, word);
        }
        for (unsigned levels = kUpperLevels; whole != 0 && level <= view_.top_layer && levels > 0; --levels) {
            if (upper::free_starts(static_cast<std::uint8_t>(whole), levels) == 0) continue;
            largest = word_order(level - 1) + levels + 1;
            break;
        }
        return largest < ceiling() ? largest : ceiling();
    }

    // Walks from (level, word) up and then down to a word of level `target` that may have a block of value `wanted`
    // (order + 1). Lowers the hints that it finds too hopeful. False: no such block, as far as hints tell (unless
    // somebody scribbled on them).
    bool find(unsigned level, std::uint64_t word, unsigned target, unsigned wanted, std::uint64_t &found) {
        for (unsigned steps = 0; level != target; ++steps) {
            if (steps == kStepsMax) return false;
            unsigned too_hopeful = 0;
            int child = best_child(level, word, wanted, target, too_hopeful);
            if (child < 0 && too_hopeful != 0) child = lower_all(too_hopeful, level, word, wanted);
            if (child >= 0) {
                word = word * kUpperFanOut + static_cast<unsigned>(child);
                --level;
                continue;
            }
            lower(level, word);
            if (++level > view_.hint_levels) return false;
            word /= kUpperFanOut;
        }
        found = word;
        return true;
    }

    // Raises the hints above after a free: (level, word) now has `value` (largest free order + 1) in or below it. Stops
    // at the first hint that promises as much already. Reads nothing but hints: other threads raise for their own
    // frees, and once a whole child is free all is promised (see hopeful()).
    void raise(unsigned level, std::uint64_t word, unsigned value) {
        value = hopeful(level, value);
        if (promises(level, word, value)) return;
        begin_hint_work(level, word);
        raise_from(level, word, value);
        end_hint_work();
    }

    // Raises hints after a free of a block in an upper word itself. Searches look into that word from its parent, so
    // the parent's own hint counts too.
    void raise_after_release(unsigned layer, std::uint64_t word) {
        if (hints_are_full(layer, word)) return;
        // seq_cst: EDGE free-then-hint, like the hints' loads that follow.
        const unsigned closed = closed_children(layer, word);
        const unsigned value = closed == 0 ? full_value(layer) : room_beside(closed, layer);
        raise(layer, word, value);
        if (layer < view_.hint_levels) raise(layer + 1, word / kUpperFanOut, value);
    }
    // raise_after_release() for a change that no intent announces. The announcement comes before open(), whose RMW
    // (seq_cst) carries it. Otherwise a search in between would find nothing free and nobody who is changing hints.
    template <class Open>
    void raise_after(unsigned layer, std::uint64_t word, const Open &open) {
        begin_hint_work(layer, word);
        open();
        raise_after_release(layer, word);
        end_hint_work();
    }
    // The short cut of raise_after_release(): the hints promise all there can be.
    [[gnu::always_inline]] bool hints_are_full(unsigned layer, std::uint64_t word) const {
        // EDGE free-then-hint, as in leaf_is_promised().
        const std::uint64_t above = word / kUpperFanOut;
        return (layer >= view_.hint_levels || hint_of(layer + 1, above).is_full(word % kUpperFanOut)) &&
               (layer + 1 >= view_.hint_levels ||
                hint_of(layer + 2, above / kUpperFanOut).is_full(above % kUpperFanOut));
    }

    // Whether no frame is free in the eight leaf words of the group.
    bool is_used_up(std::uint64_t group) const {
        if ((group + 1) * kUpperFanOut > view_.word_count[0]) return false;
        const Word *const words = &view_.leaf[group * kUpperFanOut];
        std::uint64_t taken_in_all = ~std::uint64_t{0};
        // seq_cst: EDGE free-then-hint, EDGE lower-then-look
        for (unsigned child = 0; child < kUpperFanOut; ++child)
            taken_in_all &= words[child].load(std::memory_order_seq_cst);
        return taken_in_all == ~std::uint64_t{0};
    }

    // Children whose hints promise `wanted`.
    unsigned hopeful_children(unsigned level, std::uint64_t word, unsigned wanted) const {
        return hint_of(level, word).at_least(wanted, ceiling());
    }

    // Largest free order + 1 of a leaf word.
    unsigned leaf_value(std::uint64_t word) const {
        return leaf::free_value(view_.leaf[word].load(std::memory_order_seq_cst));  // EDGE free-then-hint
    }

    // Raises all hints from (level, word) up to the root, without stopping early: for repair after a death.
    void raise_to_root(unsigned level, std::uint64_t word) {
        begin_hint_work(level, word);
        for (; level < view_.hint_levels; ++level, word /= kUpperFanOut)
            (void)raise_one(level, word, hopeful(level, value_of(level, word)));
        end_hint_work();
    }

    // The free path's short cut: does the hint above a leaf word's group promise as much as the word has now?
    [[gnu::always_inline]] bool leaf_is_promised(std::uint64_t word) const {
        const std::uint64_t group = word / kUpperFanOut;
        // EDGE free-then-hint (seq_cst loads after the seq_cst RMW that freed; partner: EDGE lower-then-look).
        // Weakened: the lowerer reads the word before our free, we read the hint before its CAS: the hint stays low and
        // the frames are hidden from every search.
        const HintWord hint = hint_of(2, group / kUpperFanOut);
        if (hint.is_full(group % kUpperFanOut)) return true;
        const unsigned value = hint.value(group % kUpperFanOut, ceiling());
        // `value` is the smallest order that the hint does not promise. (A whole leaf word promises all: see
        // hopeful().)
        return value >= full_value(1) || leaf::free_ends(leaf_state(word), std::min(value, kLeafOrder)) == 0;
    }

    // Lowers the hint for (level, word) to the word's own value. The hint is exact when this returns, unless other
    // threads were at work.
    void lower(unsigned level, std::uint64_t word) {
        if (level >= view_.hint_levels) return;                                        // the root has no hint above it
        if (level <= view_.top_layer && closed_children(level, word) == 0xff) return;  // the parent sees that itself
        const unsigned child = word % kUpperFanOut;
        const unsigned value = value_of(level, word);
        Word &hint = view_.hint[level + 1][word / kUpperFanOut];
        HintWord seen{hint.load(std::memory_order_seq_cst)};
        // The parent sees the blocks in the word itself without this hint.
        if (potential(seen, level + 1, word / kUpperFanOut, child) <= value) return;
        begin_hint_work(level, word);
        for (unsigned rounds = 0; seen.value(child, ceiling()) > value && rounds < kCasRoundsMax; ++rounds) {
            std::uint64_t bits = seen.bits();
            if (hint.compare_exchange_weak(bits, seen.with_value(child, value, ceiling()).bits(),
                                           std::memory_order_seq_cst)) {
                Env::crash_point(CrashPoint::hint_lowered);
                // EDGE lower-then-look (seq_cst; partner: EDGE free-then-hint): a thread that still saw the hint high
                // may have freed memory into the word between our first look and the CAS.
                raise_from(level, word, value_of(level, word));
                break;
            }
            seen = HintWord{bits};
        }
        end_hint_work();
    }

    // The largest value that a word of this level can have.
    unsigned full_value(unsigned level) const {
        return word_order(level) + 1 < ceiling() ? word_order(level) + 1 : ceiling();
    }

    // largest order + 1
    unsigned ceiling() const { return view_.geometry.largest_order + 1; }

private:
    std::uint64_t leaf_state(std::uint64_t word) const { return view_.leaf[word].load(std::memory_order_seq_cst); }
    HintWord hint_of(unsigned level, std::uint64_t word) const {
        return HintWord{view_.hint[level][word].load(std::memory_order_seq_cst)};
    }
    unsigned promised(unsigned level, std::uint64_t word) const {
        return hint_of(level + 1, word / kUpperFanOut).value(word % kUpperFanOut, ceiling());
    }

    // The word of the tree at this place; an empty word above the top layer.
    UpperWord state_of(unsigned level, std::uint64_t word) const {
        return level > view_.top_layer ? UpperWord{}
                                       : UpperWord{view_.upper[level][word].load(std::memory_order_seq_cst)};
    }
    // Children that exist and are neither allocated in this word nor draining.
    unsigned open_children(unsigned level, std::uint64_t word, UpperWord state) const {
        const std::uint64_t below =
            level - 1 <= view_.top_layer ? view_.word_count[level - 1] : view_.geometry.word_count(level - 1);
        const std::uint64_t first = word * kUpperFanOut;
        const std::uint64_t existing = below > first ? below - first : 0;
        const unsigned exists = existing >= kUpperFanOut ? 0xff : (1U << existing) - 1;
        return exists & ~(state.allocated_children() | state.draining_children());
    }
    unsigned closed_children(unsigned layer, std::uint64_t word) const {
        const UpperWord state = state_of(layer, word);
        return state.allocated_children() | state.draining_children();
    }

    // Upper bound of a child's value: its hint, limited by the room beside the blocks in its own word. level >= 2.
    unsigned potential(HintWord hint, unsigned level, std::uint64_t word, unsigned child) const {
        return potential(hint, level, word, child, full_value(level - 1));
    }
    // full: full_value(level - 1)
    unsigned potential(HintWord hint, unsigned level, std::uint64_t word, unsigned child, unsigned full) const {
        return potential(hint, child, full, state_of(level - 1, word * kUpperFanOut + child), level - 1);
    }
    // below: the child's own word
    unsigned potential(HintWord hint, unsigned child, unsigned full, UpperWord below, unsigned layer) const {
        return std::min(std::min(hint.value(child, ceiling()), full), room_in(below, layer));
    }
    // Upper bound of an upper word's value: the room beside the blocks in the word itself.
    static unsigned room_in(UpperWord state, unsigned layer) {
        const unsigned closed = state.allocated_children() | state.draining_children();
        return closed == 0 ? ~0U : room_beside(closed, layer);
    }
    // closed: not 0.
    static unsigned room_beside(unsigned closed, unsigned layer) {
        const unsigned sizes = upper::kFreeSizes[closed ^ 0xff];
        return sizes == 0 ? 0 : word_order(layer - 1) + sizes;
    }

    // Children whose chunk has been in use: a search prefers them to a chunk that is still whole. Marks may be old, so
    // this is a preference only. All children if the word is not in the top layer.
    unsigned children_in_use(unsigned level, UpperWord state) const {
        if (level != view_.top_layer) return 0xff;
        unsigned used = state.occupied_children() | state.allocated_children();
        const unsigned levels = view_.geometry.largest_order - word_order(level - 1);
        if (levels >= 1) used |= (used & 0x55) << 1 | (used & 0xaa) >> 1;
        if (levels >= 2) used |= (used & 0x33) << 2 | (used & 0xcc) >> 2;
        if (levels >= 3) used |= used << 4 | used >> 4;
        return used;
    }

    // The smallest hole of at least `wanted` in an upper word itself. An empty child can be part of a hole, marked or
    // not: a claim cleans the mark.
    upper::Hole smallest_hole(unsigned layer, std::uint64_t word, UpperWord state, unsigned wanted) const {
        const unsigned child_value = word_order(layer - 1) + 1;
        const unsigned open = open_children(layer, word, state);
        unsigned free = open & ~state.occupied_children();
        if (const unsigned marked = open & ~free; marked != 0) free |= empty_among(marked, layer, word);
        return upper::smallest_hole(static_cast<std::uint8_t>(free), wanted - child_value);
    }

    // The subset of `children` (existing ones, of an upper word of the tree) that is empty, as their own words and
    // their hints tell.
    unsigned empty_among(unsigned children, unsigned layer, std::uint64_t word) const {
        const std::uint64_t first = word * kUpperFanOut;
        unsigned empty = 0;
        if (layer == 1) {
            for (unsigned left = children; left != 0; left &= left - 1) {
                const auto child = static_cast<unsigned>(std::countr_zero(left));
                empty |= (leaf_state(first + child) == 0 ? 1U : 0U) << child;
            }
            return empty;
        }
        children &= hint_of(layer, word).at_least(word_order(layer - 1) + 1, ceiling());
        const auto *const below = &view_.upper[layer - 1][first];
        for (unsigned left = children; left != 0; left &= left - 1) {
            const auto child = static_cast<unsigned>(std::countr_zero(left));
            empty |= (UpperWord{below[child].load(std::memory_order_seq_cst)}.is_open() ? 1U : 0U) << child;
        }
        return empty;
    }

    // The child with the smallest value that suffices (best fit keeps large blocks whole). Ties go to a child in a
    // chunk that is in use, further ties to the first one from where this thread likes to begin (so that threads meet
    // less often). -1: none. level >= 2. Hints of subtrees know the largest free block only, not the smallest that
    // suffices. So for blocks larger than a leaf word, this reads the words that contain the holes and compares their
    // smallest holes. too_hopeful: children that have no such hole, whatever their hints say.
    int best_child(unsigned level, std::uint64_t word, unsigned wanted, unsigned target, unsigned &too_hopeful) const {
        const bool whole_word = wanted == word_order(target) + 1;
        const unsigned layer = whole_word && target < view_.top_layer ? target + 1 : target;
        const bool by_hole = level - 1 == layer && wanted > kLeafOrder + 1;
        const UpperWord state = state_of(level, word);
        const unsigned open = open_children(level, word, state);
        const HintWord hint = hint_of(level, word);
        if (level == layer && whole_word) {
            const upper::Hole hole = smallest_hole(level, word, state, wanted);
            // The hint has to agree: a search that found nothing there lowers it.
            if (hole.levels <= kUpperLevels && hint.value(hole.first_child, ceiling()) >= wanted &&
                potential(hint, level, word, hole.first_child) >= wanted)
                return static_cast<int>(hole.first_child);
        }
        const unsigned in_use = children_in_use(level, state);
        const unsigned start = first_child(level);
        const auto hopeful = static_cast<std::uint8_t>(open & hint.at_least(wanted, ceiling()));
        const unsigned full = full_value(level - 1);
        int best = -1;
        unsigned best_rank = ~0U;
        for (unsigned left = std::rotr(hopeful, static_cast<int>(start)); left != 0; left &= left - 1) {
            const unsigned child = (start + static_cast<unsigned>(std::countr_zero(left))) % kUpperFanOut;
            const UpperWord below = state_of(level - 1, word * kUpperFanOut + child);
            unsigned value = potential(hint, child, full, below, level - 1);
            if (value < wanted) continue;
            if (by_hole) {
                const upper::Hole hole = smallest_hole(layer, word * kUpperFanOut + child, below, wanted);
                if (hole.levels > kUpperLevels) {
                    too_hopeful |= 1U << child;
                    continue;
                }
                value = word_order(layer - 1) + 1 + hole.levels;
            }
            const unsigned rank = 2 * value + ((in_use >> child & 1) ^ 1);
            if (rank >= best_rank) continue;
            best = static_cast<int>(child);
            best_rank = rank;
            if (rank == 2 * wanted) break;
        }
        return best;
    }

    // Lowers the hints of all these children at once, which have no block of `wanted`, rather than one after another as
    // searches get there. Returns a child that still promises `wanted`; -1: none.
    int lower_all(unsigned children, unsigned level, std::uint64_t word, unsigned wanted) {
        for (unsigned left = children; left != 0; left &= left - 1)
            lower(level - 1, word * kUpperFanOut + static_cast<unsigned>(std::countr_zero(left)));
        children &= hopeful_children(level, word, wanted);
        return children == 0 ? -1 : std::countr_zero(children);
    }

    bool promises(unsigned level, std::uint64_t word, unsigned value) const {
        return level >= view_.hint_levels || promised(level, word) >= value;
    }

    // The value to promise for `value`: everything once a whole child is free, for the rest often follows, and each
    // free would otherwise raise the hint. A search that finds less lowers the hint again. (So a raise need not look
    // for neighbours that have become one block, either.)
    unsigned hopeful(unsigned level, unsigned value) const {
        return value > word_order(level - 1) || value > full_value(level) ? full_value(level) : value;
    }

    void raise_from(unsigned level, std::uint64_t word, unsigned value) {
        // Stops where the hint is this high already: the thread that raised it carries it on, and has announced that.
        for (; level < view_.hint_levels && raise_one(level, word, value); ++level, word /= kUpperFanOut)
            value = hopeful(level + 1, value);
    }

    // False: the hint was as high already.
    bool raise_one(unsigned level, std::uint64_t word, unsigned value) {
        Word &hint = view_.hint[level + 1][word / kUpperFanOut];
        const unsigned child = word % kUpperFanOut;
        HintWord seen{hint.load(std::memory_order_seq_cst)};
        for (unsigned rounds = 0; seen.value(child, ceiling()) < value && rounds < kCasRoundsMax; ++rounds) {
            std::uint64_t bits = seen.bits();
            if (hint.compare_exchange_weak(bits, seen.with_value(child, value, ceiling()).bits(),
                                           std::memory_order_seq_cst))
                return true;
            seen = HintWord{bits};
        }
        return false;
    }

    // The place where this thread likes to begin, as a fraction of 2^32. It spreads threads over the pool: the slot's
    // bits in reverse (van der Corput's sequence). So the threads of the first n slots begin as far apart as they can,
    // for every n. For 2^n threads, each has a subtree of its own, with the cache lines of its hints and upper words.
    static constexpr std::uint32_t scatter(ThreadSlotIndex thread) {
        std::uint32_t bits = thread.value;
        bits = (bits & 0x5555) << 1 | (bits & 0xaaaa) >> 1;
        bits = (bits & 0x3333) << 2 | (bits & 0xcccc) >> 2;
        bits = (bits & 0x0f0f) << 4 | (bits & 0xf0f0) >> 4;
        bits = (bits & 0x00ff) << 8 | (bits & 0xff00) >> 8;
        return bits << 16;
    }

    void begin_hint_work(unsigned level, std::uint64_t word) {
        // relaxed: the hint's CAS that follows is seq_cst and carries it; nested work keeps the outer, lower start.
        if (depth_++ != 0) return;
        const HintWork idle{hint_work_.load(std::memory_order_relaxed)};
        hint_work_.store(idle.begun(level, word).bits(), std::memory_order_relaxed);
    }
    void end_hint_work() {
        if (--depth_ != 0) return;
        // release (partner: the acquire loads of collect_hint_work): a thread that sees the announcement gone sees the
        // finished hints.
        const HintWork active{hint_work_.load(std::memory_order_relaxed)};
        hint_work_.store(active.ended().bits(), std::memory_order_release);
    }

    // Upper bound of steps down and up. Each step up lowers a hint, or has lost a race: only scribbled metadata takes
    // this many.
    static constexpr unsigned kStepsMax = 1 << 16;

    const NodeView<Env> &view_;
    Word &hint_work_;
    ThreadSlotIndex thread_;
    unsigned depth_ = 0;
};

}  // namespace numacre::engine
