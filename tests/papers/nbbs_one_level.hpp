// NBBS with one tree node a word: TC 3.2 .. 3.4, conference III A .. C (1lvl-nbbs, 1lvl-nb). Not safe (README.md).
//
// Line labels (T2, F13 ...) are TC's. Corrected are slips that are wrong even with a single thread, and no more (those
// of the search stand in nbbs.hpp):
//   F9   TC takes MARK for the value to set, which is OCC; the text beside it (3.4) and conference F5 say COAL.
//   conference F5   takes the modulus of `current`; the side is that of the child below it, as in TC's Algorithm 1.
//   conference F16  assigns from `actual`, which does not exist; `current` is meant (TC F18).
//   conference F20  compares the node's index with a level; its level is meant (TC F21). Without consequence but a
//       needless look above the base level.
//
// kNodeBytes is how far apart nodes lie. Dense by default, a byte each: in an occupied tree, whose search reads many
// nodes, that measured 2 to 4 times faster than a cache line each, and no slower with two threads. 64 gives each node
// its own line, at 128 bytes a frame.
#pragma once

#include <cstddef>
#include <cstdint>

#include "papers/nbbs.hpp"

namespace numacre::papers {

template <class Env, std::size_t kNodeBytes = 1>
class OneLevelNodes {
public:
    using Word = typename Env::template Atomic<std::uint8_t>;
    struct alignas(kNodeBytes) Node {
        Word word;
    };
    static_assert(sizeof(Node) == kNodeBytes);

    OneLevelNodes(const TreeShape &shape, std::byte *&memory)
        : base_level_(shape.base_level), tree_(make_array<Node>(memory, shape.node_count())) {}
    static std::size_t memory_bytes(const TreeShape &shape) { return array_bytes<Node>(shape.node_count()); }

    // IS_FREE
    bool is_free(unsigned n) const { return (tree_[n].word.load(kOrdered) & status::kBusy) == 0; }

    // TRYALLOC: 0, or the node at which it failed.
    unsigned try_allocate(unsigned n) {
        std::uint8_t free = 0;
        if (!tree_[n].word.compare_exchange_strong(free, status::kBusy, kOrdered)) return n;  // T2, T3
        unsigned current = n;                                                                 // T4
        while (TreeShape::level_of(current) > base_level_) {                                  // T5
            const unsigned child = current;                                                   // T6
            current >>= 1;                                                                    // T7
            std::uint8_t value;
            std::uint8_t changed;
            do {
                value = tree_[current].word.load(kOrdered);    // T9
                if ((value & status::kOcc) != 0) {             // T10
                    free_node(n, TreeShape::level_of(child));  // T11
                    return current;                            // T12
                }
                changed = static_cast<std::uint8_t>((value & ~status::coal(child)) | status::occ(child));  // T13, T14
            } while (!tree_[current].word.compare_exchange_strong(value, changed, kOrdered));  // T15
        }
        return 0;  // T16
    }

    // FREENODE
    void free_node(unsigned n, unsigned upper_bound) {
        unsigned current = n >> 1;                          // F6
        unsigned child = n;                                 // F7
        while (TreeShape::level_of(child) > upper_bound) {  // F8
            std::uint8_t value;
            std::uint8_t changed;
            do {
                value = tree_[current].word.load(kOrdered);                        // F11
                changed = static_cast<std::uint8_t>(value | status::coal(child));  // F9, F12
            } while (!tree_[current].word.compare_exchange_strong(value, changed, kOrdered));  // F13, F14
            if ((value & status::occ_buddy(child)) != 0 && (value & status::coal_buddy(child)) == 0)
                break;        // F15 .. F17
            child = current;  // F18
            current >>= 1;    // F19
        }
        // release, not more: "a simple write" (3.4). What the barrier of 3.5 is for, that others learn of the release
        // soon, comes with the CAS of UNMARK or the addition of F4.
        tree_[n].word.store(0, std::memory_order_release);                  // F20
        if (TreeShape::level_of(n) != upper_bound) unmark(n, upper_bound);  // F21, F22
    }

    // For the model tests.
    const Node *tree() const { return tree_; }
    std::uint64_t status_of(unsigned n) const { return tree_[n].word.load(kOrdered); }

private:
    // UNMARK
    void unmark(unsigned n, unsigned upper_bound) {
        unsigned current = n;  // U2
        unsigned child;
        std::uint8_t changed;
        do {
            child = current;  // U4
            current >>= 1;    // U5
            std::uint8_t value;
            do {
                value = tree_[current].word.load(kOrdered);                                                // U7
                if ((value & status::coal(child)) == 0) return;                                            // U8, U9
                changed = static_cast<std::uint8_t>(value & ~(status::occ(child) | status::coal(child)));  // U10
            } while (!tree_[current].word.compare_exchange_strong(value, changed, kOrdered));  // U11
        } while (TreeShape::level_of(current) > upper_bound && (changed & status::occ_buddy(child)) == 0);  // U12, U13
    }

    unsigned base_level_;
    Node *tree_;
};

template <class Env, std::size_t kNodeBytes = 1>
using NbbsOneLevel = Nbbs<Env, OneLevelNodes<Env, kNodeBytes>>;

}  // namespace numacre::papers
