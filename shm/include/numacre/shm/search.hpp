// Where to look for a free block: the hint tree. Policy only: nothing here decides who owns what, and a wrong hint can cost
// time or (too gloomy) hide memory, never hand a block out twice.
//
// hint[level][w] has one byte for each of the eight words 8w .. 8w+7 of level-1: the largest order free there. Levels up to
// the top layer run beside the tree's layers; those above it only summarise, up to one root word. So a search is
// O(levels), also when nearly everything is taken. (verify/m6 of the model checks raise and lower.)
//
// Rules that keep a hint from being too low once all operations have ended:
//   - who frees: change the word by an RMW, then load the hint, raise it if the word now has more (EDGE free-then-hint);
//   - who lowers: CAS the hint down, then read the word again, raise if it has more (EDGE lower-then-look).
// Whoever does either announces it in its thread slot first, so that "nothing free" can be double-checked and a death
// repaired.
#pragma once

#include <cstdint>

#include "numacre/shm/layout.hpp"

namespace numacre {

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

    Search(const NodeView<Env> &view, Word &hint_work, std::uint32_t scatter)
        : view_(view), hint_work_(hint_work), scatter_(scatter) {}

    // Largest free order + 1 of a word (level 0: leaf word) as its own state and the hints just below tell; 0: nothing.
    std::uint32_t value_of(unsigned level, std::uint64_t word) const {
        if (level == 0) return capped(leaf::free_value(view_.leaf[word].load(std::memory_order_seq_cst)), kLeafOrder);
        const Candidates here = candidates(level, word);
        unsigned largest = 0;
        if (level <= view_.top_layer) {
            for (unsigned levels = kUpperLevels; levels > 0; --levels) {
                if (upper::free_starts(here.whole, levels) == 0) continue;
                largest = capped(word_order(level - 1) + levels + 1, kMaxOrder);
                break;
            }
        }
        for (unsigned child = 0; child < kUpperFanOut; ++child) {
            const unsigned value = here.below(child) ? hinted(here, level, child) : 0;
            if (value > largest) largest = value;
        }
        return largest;
    }

    // Walks from hint word (level, word) up and then down to a word of `layer` that may have a free block of `wanted` - 1
    // = its order. Lowers what it finds too hopeful. False: nothing, as far as hints and marks tell.
    bool find(unsigned level, std::uint64_t word, unsigned layer, unsigned wanted, std::uint64_t &found) {
        while (level <= view_.hint_levels) {
            const int child = best_child(level, word, wanted);
            if (child < 0) {
                lower(level, word);
                ++level;
                word /= kUpperFanOut;
                continue;
            }
            word = word * kUpperFanOut + static_cast<unsigned>(child);
            --level;
            // Descend; on a dead end the loop above climbs again, now with a lower hint in the way.
            while (level > layer) {
                const int next = best_child(level, word, wanted);
                if (next < 0) break;
                word = word * kUpperFanOut + static_cast<unsigned>(next);
                --level;
            }
            if (level == layer) {
                found = word;
                return true;
            }
        }
        return false;
    }

    // After (level, word) got more free memory: pass the news up. Stops where the hint already promises as much.
    void raise(unsigned level, std::uint64_t word) { propagate(level, word, false); }

    // The same without stopping early: for repair after a death.
    void raise_to_root(unsigned level, std::uint64_t word) { propagate(level, word, true); }

    // The free path's short cut: does the hint above a leaf word already promise all that a leaf word can have?
    bool leaf_hint_is_full(std::uint64_t word) const {
        // EDGE free-then-hint (seq_cst load after the seq_cst RMW that freed; partner: EDGE lower-then-look).
        // Weakened: the lowerer reads the word before our free, we read the hint before its CAS: the hint stays low and
        // the frames are hidden from every search.
        const HintWord hint{view_.hint[1][word / kUpperFanOut].load(std::memory_order_seq_cst)};
        return hint.value(word % kUpperFanOut, ceiling()) >= capped(kLeafOrder + 1, kLeafOrder);
    }

    // Lowers the hint for (level, word) to what it has. Exact again when this returns, unless others were at work.
    void lower(unsigned level, std::uint64_t word) {
        if (level >= view_.hint_levels) return;  // the root has nobody above it
        Word &hint = view_.hint[level + 1][word / kUpperFanOut];
        const unsigned child = word % kUpperFanOut;
        const unsigned value = value_of(level, word);
        HintWord seen{hint.load(std::memory_order_seq_cst)};
        if (seen.value(child, ceiling()) <= value) return;
        begin_hint_work(level, word);
        while (seen.value(child, ceiling()) > value) {
            std::uint64_t bits = seen.bits();
            if (hint.compare_exchange_weak(bits, seen.with_value(child, value, ceiling()).bits(),
                                           std::memory_order_seq_cst)) {
                Env::crash_point(CrashPoint::hint_lowered);
                // EDGE lower-then-look (seq_cst; partner: EDGE free-then-hint): the word may have got memory between our
                // first look and the CAS, by somebody who still saw the hint high.
                raise_steps(level, word, false);
                break;
            }
            seen = HintWord{bits};
        }
        end_hint_work();
    }

    // largest order + 1
    unsigned ceiling() const { return view_.geometry.largest_order + 1; }

private:
    struct Candidates {
        HintWord hint;
        std::uint8_t whole = 0;  // children without a mark: a group of them is a free block of this layer
        // Children that are not closed: their hint tells what is free below. Also where there is no mark: a claim whose mark
        // is still on its way is known to the hint only, and a search that trusted the missing mark would come back to
        // the same full word until that claim gets on (tests/model found it: "engine-two").
        std::uint8_t open = 0;
        bool below(unsigned child) const { return (open >> child & 1) != 0; }
    };

    // value, but not more than a child of that order can have, nor than the pool's largest block.
    unsigned capped(unsigned value, unsigned child_order) const {
        const unsigned limit = child_order + 1 < ceiling() ? child_order + 1 : ceiling();
        return value < limit ? value : limit;
    }

    unsigned hinted(const Candidates &here, unsigned level, unsigned child) const {
        return level <= view_.top_layer ? capped(here.hint.value(child, ceiling()), word_order(level - 1))
                                        : here.hint.value(child, ceiling());
    }

    Candidates candidates(unsigned level, std::uint64_t word) const {
        Candidates here;
        here.hint = HintWord{view_.hint[level][word].load(std::memory_order_seq_cst)};
        const std::uint64_t below = level == 1 ? view_.geometry.word_count(0) : view_.geometry.hint_word_count(level - 1);
        const std::uint64_t first = word * kUpperFanOut;
        const std::uint64_t existing = below > first ? below - first : 0;
        const auto exists = static_cast<std::uint8_t>(existing >= kUpperFanOut ? 0xff : (1U << existing) - 1);
        if (level <= view_.top_layer) {
            const UpperWord state{view_.upper[level][word].load(std::memory_order_seq_cst)};
            here.whole = state.claimable_children() & exists;
            here.open = static_cast<std::uint8_t>(~(state.allocated_children() | state.draining_children()) & exists);
        } else {
            here.open = exists;
        }
        return here;
    }

    // The child with the least that suffices (best fit keeps large blocks whole), ties by this thread's own scatter (so
    // that threads meet less often). -1: none.
    int best_child(unsigned level, std::uint64_t word, unsigned wanted) const {
        const Candidates here = candidates(level, word);
        const unsigned start = scatter_ >> (3 * level % 30) & 7;
        int best = -1;
        unsigned best_value = kMaxOrder + 2;
        for (unsigned step = 0; step < kUpperFanOut; ++step) {
            const unsigned child = (start + step) % kUpperFanOut;
            const unsigned value = here.below(child) ? hinted(here, level, child) : 0;
            if (value >= wanted && value < best_value) {
                best = static_cast<int>(child);
                best_value = value;
            }
        }
        return best;
    }

    void propagate(unsigned level, std::uint64_t word, bool to_root) {
        if (!to_root && !needs_raise(level, word)) return;
        begin_hint_work(level, word);
        raise_steps(level, word, to_root);
        end_hint_work();
    }

    bool needs_raise(unsigned level, std::uint64_t word) const {
        if (level >= view_.hint_levels) return false;
        const HintWord hint{view_.hint[level + 1][word / kUpperFanOut].load(std::memory_order_seq_cst)};
        const unsigned promised = hint.value(word % kUpperFanOut, ceiling());
        return promised < ceiling() && promised < value_of(level, word);
    }

    void raise_steps(unsigned level, std::uint64_t word, bool to_root) {
        for (; level < view_.hint_levels; ++level, word /= kUpperFanOut) {
            Word &hint = view_.hint[level + 1][word / kUpperFanOut];
            const unsigned child = word % kUpperFanOut;
            const unsigned value = value_of(level, word);
            HintWord seen{hint.load(std::memory_order_seq_cst)};
            bool raised = false;
            while (!raised && seen.value(child, ceiling()) < value) {
                std::uint64_t bits = seen.bits();
                raised = hint.compare_exchange_weak(bits, seen.with_value(child, value, ceiling()).bits(),
                                                    std::memory_order_seq_cst);
                if (!raised) seen = HintWord{bits};
            }
            if (!raised && !to_root) return;  // whoever made it this high carries it on, and has announced so
        }
    }

    void begin_hint_work(unsigned level, std::uint64_t word) {
        // relaxed: the hint's CAS that follows is seq_cst and carries it; nested work keeps the outer, lower start.
        if (depth_++ != 0) return;
        const HintWork idle{hint_work_.load(std::memory_order_relaxed)};
        hint_work_.store(idle.begun(level, word).bits(), std::memory_order_relaxed);
    }
    void end_hint_work() {
        if (--depth_ != 0) return;
        // release (partner: the acquire loads of hints_at_rest): whoever sees the announcement gone sees the hints done.
        const HintWork active{hint_work_.load(std::memory_order_relaxed)};
        hint_work_.store(active.ended().bits(), std::memory_order_release);
    }

    const NodeView<Env> &view_;
    Word &hint_work_;
    std::uint32_t scatter_;
    unsigned depth_ = 0;
};

}  // namespace numacre
