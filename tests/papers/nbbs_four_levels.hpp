// NBBS with four levels of the tree (a bunch) in a 64-bit word: TC 3.6.2, conference III D (4lvl-nbbs, 4lvl-nb). Not
// safe (README.md).
//
// Levels 4k .. 4k+3 form the bunches; a word holds the 5 status bits of each of a bunch's 8 nodes at level 4k+3 (its
// leaves), positions 8 .. 15. A node further up is the sum of the leaves below it: occupied where they are, coalescing
// where they are. Where the tree ends inside a bunch, nodes of the last level cover several leaves; a frame count of
// 2^(4k+3) packs best.
//
// The paper gives no pseudocode here, only "pretty similar". The labels name the 1-level line that a step stands for;
// the slips of that version are corrected as there. Left to the reader were, and chosen here:
//   - T2 may fail for another leaf's sake; it is tried again while n's own leaves are all zero.
//   - The first phase of a release marks COAL on n's own leaves, so that the parent's bit, derived from its children,
//   is
//     what F13 would have made it. Without this, two releases in one bunch each see the other's block, neither climbs,
//     and memory is lost (tests/model/paper_test.cpp, two_releases_in_one_bunch_lose_nothing, then fails).
//   - F15's question about a buddy is asked at each level of a bunch, of the derived bits.
//   - A bunch that holds the base level has none above, so it takes no COAL marks: the last step, one CAS, says it all.
//   - The paper's tree[] keeps for each node a pointer to its bunch; a bunch's place is computed here.
// kBunchBytes is how far apart bunches lie: dense by default, 64 gives each its own cache line (see
// nbbs_one_level.hpp).
#pragma once

#include <cstddef>
#include <cstdint>

#include "papers/nbbs.hpp"

namespace numacre::papers {

template <class Env, std::size_t kBunchBytes = 8>
class FourLevelNodes {
public:
    using Word = typename Env::template Atomic<std::uint64_t>;
    struct alignas(kBunchBytes) Bunch {
        Word word;
    };
    static_assert(sizeof(Bunch) == kBunchBytes);

    static constexpr unsigned kLevels = 4;
    static constexpr unsigned kLeaves = 8;

    FourLevelNodes(const TreeShape &shape, std::byte *&memory)
        : base_level_(shape.base_level), bunches_(make_array<Bunch>(memory, bunch_count(shape))) {}
    static std::size_t memory_bytes(const TreeShape &shape) { return array_bytes<Bunch>(bunch_count(shape)); }

    // IS_FREE
    bool is_free(unsigned n) const { return (bunch_of(n).load(kOrdered) & leaves_of(n) & kAllBusy) == 0; }

    // TRYALLOC: 0, or the node at which it failed.
    unsigned try_allocate(unsigned n) {
        Word &own = bunch_of(n);
        const std::uint64_t leaves = leaves_of(n);
        std::uint64_t value;
        do {
            value = own.load(kOrdered);
            if ((value & leaves) != 0) return n;  // T3
        } while (!own.compare_exchange_strong(value, value | (leaves & kAllBusy), kOrdered));  // T2
        unsigned current = n;                                          // T4
        while (TreeShape::level_of(root_of(current)) > base_level_) {  // T5
            const unsigned child = root_of(current);                   // T6
            current = child >> 1;                                      // T7
            Word &word = bunch_of(current);
            const unsigned shift = shift_of(current);
            std::uint64_t changed;
            do {
                value = word.load(kOrdered);                   // T9
                if ((value >> shift & status::kOcc) != 0) {    // T10
                    free_node(n, TreeShape::level_of(child));  // T11
                    return current;                            // T12
                }
                changed = (value & ~(status::coal(child) << shift)) | status::occ(child) << shift;  // T13, T14
            } while (!word.compare_exchange_strong(value, changed, kOrdered));  // T15
        }
        return 0;  // T16
    }

    // FREENODE. upper_bound: the level of a bunch's root, or the base level.
    void free_node(unsigned n, unsigned upper_bound) {
        const unsigned root = root_of(n);
        Word &own = bunch_of(n);
        const std::uint64_t leaves = leaves_of(n);
        std::uint64_t value;
        bool climbs = true;
        // With no level above in this bunch, or no bunch above, marks here could tell nobody anything.
        if (TreeShape::level_of(n) > upper_bound && TreeShape::level_of(root) > base_level_ && n != root) {
            do {
                value = own.load(kOrdered);  // F11
            } while (!own.compare_exchange_strong(value, value | (leaves & kAllCoal), kOrdered));  // F12 .. F14
            climbs = !buddy_stays(value, n);  // F15 .. F17
        }
        unsigned child = root;
        while (climbs && TreeShape::level_of(child) > upper_bound) {  // F8
            const unsigned current = child >> 1;
            Word &word = bunch_of(current);
            const unsigned shift = shift_of(current);
            do {
                value = word.load(kOrdered);  // F11
            } while (
                !word.compare_exchange_strong(value, value | status::coal(child) << shift, kOrdered));  // F12 .. F14
            const std::uint64_t leaf = value >> shift;
            if ((leaf & status::occ_buddy(child)) != 0 && (leaf & status::coal_buddy(child)) == 0) break;  // F15 .. F17
            if (buddy_stays(value, current)) break;  // F15 .. F17, the levels above it
            child = root_of(current);                // F18, F19
        }
        std::uint64_t changed;
        do {
            value = own.load(kOrdered);
            changed = value & ~leaves;
        } while (!own.compare_exchange_strong(value, changed, kOrdered));  // F20
        if (TreeShape::level_of(root) > upper_bound && (changed & kAllBusy) == 0)
            unmark(root, upper_bound);  // F21, F22
    }

    // For the model tests.
    const Bunch *bunches() const { return bunches_; }
    // The node's status as the paper derives it (Fig. 5).
    std::uint64_t status_of(unsigned n) const {
        const std::uint64_t value = bunch_of(n).load(kOrdered);
        if (TreeShape::level_of(n) % kLevels == kLevels - 1) return value >> shift_of(n) & 0x1f;
        std::uint64_t result = 0;
        const std::uint64_t leaves = leaves_of(n);
        if ((value & leaves & kAllOcc) == (leaves & kAllOcc)) result |= status::kOcc;
        // Halves by leaves, not by children: where the tree ends inside the bunch there are leaves, but no children.
        const unsigned half = leaf_count(n) / 2 * status::kBits;
        const std::uint64_t left = leaves & ((std::uint64_t{1} << (shift_of_first(n) + half)) - 1);
        const std::uint64_t right = leaves & ~left;
        if ((value & left & kAllBusy) != 0) result |= status::kOccLeft;
        if ((value & right & kAllBusy) != 0) result |= status::kOccRight;
        if ((value & left & kAllCoal) != 0) result |= status::kCoalLeft;
        if ((value & right & kAllCoal) != 0) result |= status::kCoalRight;
        return result;
    }

private:
    static constexpr std::uint64_t kEachLeaf = 0x08'4210'8421;  // bit 0 of each
    static constexpr std::uint64_t kAllOcc = kEachLeaf * status::kOcc;
    static constexpr std::uint64_t kAllBusy = kEachLeaf * status::kBusy;
    static constexpr std::uint64_t kAllCoal = kEachLeaf * status::kCoalBoth;
    static_assert(kEachLeaf == ((std::uint64_t{1} << kLeaves * status::kBits) - 1) / ((1U << status::kBits) - 1));

    // D_n
    static constexpr unsigned level_in_bunch(unsigned n) { return TreeShape::level_of(n) % kLevels; }
    static constexpr unsigned root_of(unsigned n) { return n >> level_in_bunch(n); }
    // Bunches stand level by level: 1, 16, 256 ...
    static constexpr std::size_t bunches_above(unsigned level) {
        return 0x1111'1111 & ((std::uint64_t{1} << level) - 1);
    }
    static std::size_t bunch_count(const TreeShape &shape) {
        return bunches_above(shape.depth / kLevels * kLevels + kLevels);
    }
    Word &bunch_of(unsigned n) const {
        const unsigned level = TreeShape::level_of(n) - level_in_bunch(n);
        return bunches_[bunches_above(level) + root_of(n) - (std::size_t{1} << level)].word;
    }
    // The positions p of n's leaves are b_n * 2^(3-D_n) .. (b_n + 1) * 2^(3-D_n) - 1.
    static constexpr unsigned leaf_count(unsigned n) { return kLeaves >> level_in_bunch(n); }
    static constexpr unsigned shift_of_first(unsigned n) {
        const unsigned b = (n & ((1U << level_in_bunch(n)) - 1)) + (1U << level_in_bunch(n));
        return (b * leaf_count(n) - kLeaves) * status::kBits;
    }
    static constexpr std::uint64_t leaves_of(unsigned n) {
        return ((std::uint64_t{1} << leaf_count(n) * status::kBits) - 1) << shift_of_first(n);
    }
    // Of a leaf.
    static constexpr unsigned shift_of(unsigned leaf) { return shift_of_first(leaf); }

    // On the way from n to its bunch's root, is there a buddy that is occupied and not coalescing?
    static bool buddy_stays(std::uint64_t value, unsigned n) {
        for (const unsigned root = root_of(n); n != root; n >>= 1) {
            const std::uint64_t buddy = value & leaves_of(n ^ 1);
            if ((buddy & kAllBusy) != 0 && (buddy & kAllCoal) == 0) return true;
        }
        return false;
    }

    // UNMARK, from a bunch that has become empty.
    void unmark(unsigned root, unsigned upper_bound) {
        unsigned child = root;  // U2, U4
        std::uint64_t changed;
        do {
            const unsigned current = child >> 1;  // U5
            Word &word = bunch_of(current);
            const unsigned shift = shift_of(current);
            std::uint64_t value;
            do {
                value = word.load(kOrdered);                                               // U7
                if ((value >> shift & status::coal(child)) == 0) return;                   // U8, U9
                changed = value & ~((status::occ(child) | status::coal(child)) << shift);  // U10
            } while (!word.compare_exchange_strong(value, changed, kOrdered));  // U11
            child = root_of(current);
        } while (TreeShape::level_of(child) > upper_bound && (changed & kAllBusy) == 0);  // U12, U13
    }

    unsigned base_level_;
    Bunch *bunches_;
};

template <class Env, std::size_t kBunchBytes = 8>
using NbbsFourLevels = Nbbs<Env, FourLevelNodes<Env, kBunchBytes>>;

}  // namespace numacre::papers
