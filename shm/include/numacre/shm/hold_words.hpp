// The words by which a thread says that it reads a block that others may own and free (buddy/holds.hpp).
#pragma once

#include <array>
#include <cstdint>

#include "numacre/shm/owner.hpp"
#include "numacre/shm/units.hpp"

namespace numacre::engine {

// So many blocks a thread may hold at once: one for each bit of ThreadSlot::holds.
inline constexpr unsigned kHoldsMax = 64;

// Names a place and an order, never a use of the block: a word that is out of date keeps nobody's block for ever,
// because its thread, or the recovery of its thread, drops it.
//   bits 0..1 state: 1 holds, 2 about to hold no more   2..6 order   7..12 numa node   13..46 base frame
class HoldWord {
public:
    constexpr HoldWord() = default;
    constexpr explicit HoldWord(std::uint64_t bits) : bits_(bits) {}
    static constexpr HoldWord holds(NumaNode numa_node, Block block) {
        return HoldWord{kHolds | std::uint64_t{block.order.value} << 2 | std::uint64_t{numa_node.value} << 7 |
                        block.base.value << 13};
    }
    constexpr std::uint64_t bits() const { return bits_; }
    constexpr bool is_holding() const { return (bits_ & kStateMask) == kHolds; }
    constexpr HoldWord dropping() const { return HoldWord{(bits_ & ~kStateMask) | kDrops}; }
    constexpr NumaNode numa_node() const { return NumaNode{static_cast<std::uint8_t>(bits_ >> 7 & 63)}; }
    constexpr Block block() const {
        return {FrameIndex{bits_ >> 13 & ((std::uint64_t{1} << kMaxFrameIndexBits) - 1)},
                Order{static_cast<std::uint32_t>(bits_ >> 2 & 31)}};
    }
    // Whether the thread holds a block that begins where that of `other` does; other: a word that holds.
    constexpr bool holds_at(HoldWord other) const { return ((bits_ ^ other.bits_) & ~kOrderMask) == 0; }
    friend constexpr bool operator==(HoldWord, HoldWord) = default;

private:
    static constexpr std::uint64_t kStateMask = 3;
    static constexpr std::uint64_t kOrderMask = 31U << 2;
    static constexpr std::uint64_t kHolds = 1;
    static constexpr std::uint64_t kDrops = 2;
    std::uint64_t bits_ = 0;
};

// The hold words of one thread slot. word[i] means something while bit i of ThreadSlot::holds is set. Only the slot's
// thread writes both; after its death its recovery does.
template <class Env>
struct alignas(kCacheLineBytes) HoldWords {
    std::array<typename Env::template Atomic<std::uint64_t>, kHoldsMax> word;
};

static_assert(sizeof(HoldWords<ProductionEnv>) == 512);

}  // namespace numacre::engine
