// The published algorithm, as a baseline and as proof that the explorer finds its faults: R. Marotta et al., "NBBS: A
// Non-Blocking Buddy System for Multi-core Machines" (IEEE TC 2021), one tree node a word, written down from the
// paper's pseudocode. Never used by the product: it is not safe (paper_test.cpp).
//
// Line labels (T2, F13 ...) are the paper's. Corrected are the slips that are wrong even with a single thread, no more:
//   F9   marks COAL where the paper's MARK would set OCC;
//   A6   scans the nodes of `level`, 2^level .. 2^(level+1)-1, not those of the level above it;
//   A14  jumps to the first candidate behind the occupied subtree; the loop's own increment does not skip one more.
#pragma once

#include <bit>
#include <cstdint>

namespace numacre::model {

template <class Env>
class PaperTree {
public:
    using Word = typename Env::template Atomic<std::uint64_t>;

    // Table 1.
    static constexpr std::uint64_t kOccRight = 0x1;
    static constexpr std::uint64_t kOccLeft = 0x2;
    static constexpr std::uint64_t kCoalRight = 0x4;
    static constexpr std::uint64_t kCoalLeft = 0x8;
    static constexpr std::uint64_t kOcc = 0x10;
    static constexpr std::uint64_t kBusy = kOcc | kOccLeft | kOccRight;

    // tree: 2^(depth+1) words, node n at [n]; index: 2^depth words. All zero.
    PaperTree(Word *tree, Word *index, Word *release_count, unsigned depth, unsigned base_level = 0)
        : tree_(tree), index_(index), release_count_(release_count), depth_(depth), base_level_(base_level) {}

    static constexpr unsigned level_of(unsigned node) { return static_cast<unsigned>(std::bit_width(node)) - 1; }
    // The allocation unit at which the node's memory begins.
    constexpr unsigned first_unit(unsigned node) const {
        return (node - (1U << level_of(node))) << (depth_ - level_of(node));
    }
    static constexpr bool overlap(unsigned a, unsigned b) {
        const unsigned shallow = level_of(a) < level_of(b) ? a : b;
        const unsigned deep = shallow == a ? b : a;
        return deep >> (level_of(deep) - level_of(shallow)) == shallow;
    }

    // NBALLOC for a size that maps to `level`. The scan may begin anywhere at that level (paper, 3.3): `first`.
    // Returns the node, 0 for NULL.
    unsigned allocate(unsigned level, unsigned first) {
        const unsigned begin = 1U << level;
        const unsigned end = begin << 1;
        for (;;) {
            const std::uint64_t ts = release_count_->load();                      // A4
            for (unsigned scanned = 0; scanned < begin;) {                        // A6
                const unsigned i = begin + (first - begin + scanned) % begin;
                ++scanned;
                if ((tree_[i].load() & kBusy) != 0) continue;                     // A7
                const unsigned failed_at = try_allocate(i);                       // A8
                if (failed_at == 0) {                                             // A9
                    index_[first_unit(i)].store(i);                               // A10
                    return i;                                                     // A11
                }
                const unsigned d = 1U << (level - level_of(failed_at));           // A13
                const unsigned behind = (failed_at + 1) * d;                      // A14
                scanned += (behind < end ? behind : end) - i - 1;
            }
            if (ts == release_count_->load()) return 0;                           // A15 .. A17
        }
    }

    // TRYALLOC: 0, or the node at which it failed.
    unsigned try_allocate(unsigned n) {
        std::uint64_t free = 0;
        if (!tree_[n].compare_exchange_strong(free, kBusy)) return n;             // T2, T3
        unsigned current = n;                                                     // T4
        while (level_of(current) > base_level_) {                                 // T5
            const unsigned child = current;                                       // T6
            current >>= 1;                                                        // T7
            std::uint64_t value;
            std::uint64_t changed;
            do {
                value = tree_[current].load();                                    // T9
                if ((value & kOcc) != 0) {                                        // T10
                    free_node(n, level_of(child));                                // T11
                    return current;                                               // T12
                }
                changed = value & ~(kCoalLeft >> (child & 1));                    // T13
                changed |= kOccLeft >> (child & 1);                               // T14
            } while (!tree_[current].compare_exchange_strong(value, changed));    // T15
        }
        return 0;                                                                 // T16
    }

    // NBFREE of what begins at this unit.
    void free(unsigned unit) {
        const auto n = static_cast<unsigned>(index_[unit].load());                // F2
        free_node(n, base_level_);                                                // F3
        release_count_->fetch_add(1);                                             // F4
    }

private:
    static constexpr bool is_occ_buddy(std::uint64_t value, unsigned child) {
        return (value & kOccRight << (child & 1)) != 0;
    }
    static constexpr bool is_coal_buddy(std::uint64_t value, unsigned child) {
        return (value & kCoalRight << (child & 1)) != 0;
    }

    // FREENODE
    void free_node(unsigned n, unsigned upper_bound) {
        unsigned current = n >> 1;                                                // F6
        unsigned child = n;                                                       // F7
        while (level_of(child) > upper_bound) {                                   // F8
            const std::uint64_t or_value = kCoalLeft >> (child & 1);              // F9
            std::uint64_t value;
            bool swapped;
            do {
                value = tree_[current].load();                                    // F11
                std::uint64_t old = value;
                swapped = tree_[current].compare_exchange_strong(old, value | or_value);  // F12, F13
            } while (!swapped);                                                   // F14
            if (is_occ_buddy(value, child) && !is_coal_buddy(value, child)) break;  // F15 .. F17
            child = current;                                                      // F18
            current >>= 1;                                                        // F19
        }
        tree_[n].store(0);                                                        // F20
        if (level_of(n) != upper_bound) unmark(n, upper_bound);                   // F21, F22
    }

    // UNMARK
    void unmark(unsigned n, unsigned upper_bound) {
        unsigned current = n;                                                     // U2
        unsigned child;
        std::uint64_t changed;
        do {
            child = current;                                                      // U4
            current >>= 1;                                                        // U5
            std::uint64_t value;
            do {
                value = tree_[current].load();                                    // U7
                if ((value & kCoalLeft >> (child & 1)) == 0) return;              // U8, U9
                changed = value & ~((kOccLeft | kCoalLeft) >> (child & 1));       // U10
            } while (!tree_[current].compare_exchange_strong(value, changed));    // U11
        } while (level_of(current) > upper_bound && !is_occ_buddy(changed, child));  // U12, U13
    }

    Word *tree_;
    Word *index_;
    Word *release_count_;
    unsigned depth_;
    unsigned base_level_;
};

}  // namespace numacre::model
