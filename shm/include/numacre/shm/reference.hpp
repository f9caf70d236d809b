// References: names of blocks that are valid in every process of the pool. An era keeps names apart when a block's
// generation wraps.
//
// A generation has 19 bits in the index entry, beside all fields that change in one step with it. Two processes that
// hand one block to and fro as fast as they can, 30 cycles a time and two generations each, use up all generations in
// milliseconds. So each block also has an era: how many halves of a round its generation has been through. Era and
// generation make a name's number of 34 bits, which wraps after a minute of nothing but hand-overs (2^33 of them).
//
//     entry's generation   half 0        half 1        half 0        half 1
//     era                  0             1             2             3
//     era word             0 ....... 0   0 | 1 ... 1   1 | 2 ... 2   2 | 3 ...     | : count_half()
//
// The era word lies beside the index, not in the entry, and needs no step of its own at the boundary: a thread that is
// about to take a generation out of its half first makes the word say which half that is (count_half()). So the word is
// the era or one less, and the generation's highest bit, which is the era's lowest, tells which (era_of). A thread that
// looks at the word between a look at the entry and a CAS that finds the entry unchanged has the right era. A death
// between any two steps leaves either the old value of the word or the value that the next step would have written.
//
// Limit: if a thread is stopped between a look and a CAS for exactly 2^19 generations, the CAS cannot tell, as with any
// wrapping counter.
#pragma once

#include <bit>
#include <cstdint>

#include "numacre/shm/owner.hpp"
#include "numacre/shm/units.hpp"

namespace numacre::engine {

inline constexpr unsigned kEraBits = 16;
inline constexpr unsigned kHalfRoundBits = kGenerationBits - 1;
inline constexpr unsigned kNameNumberBits = kEraBits + kHalfRoundBits;

// Whether the era word counts the half that this generation is in.
constexpr bool is_half_counted(std::uint16_t era_word, std::uint32_t generation) {
    return ((era_word ^ generation >> kHalfRoundBits) & 1) == 0;
}
constexpr std::uint16_t era_of(std::uint16_t era_word, std::uint32_t generation) {
    return static_cast<std::uint16_t>(era_word + ((era_word ^ generation >> kHalfRoundBits) & 1));
}
// The number of the name of a block whose entry has this generation. The generation is the number's lowest 19 bits.
constexpr std::uint64_t name_number(std::uint16_t era_word, std::uint32_t generation) {
    return std::uint64_t{era_of(era_word, generation)} << kHalfRoundBits | (generation & ((1U << kHalfRoundBits) - 1));
}

// Whether name_number(era_word, generation) is `number`, of which the generation is known to be the lowest 19 bits. The
// lowest of the era's bits is the generation's highest, so of the word and the word + 1 only one can be the era. mask:
// ReferenceFormat::era_mask(). (Where the era comes round with the next half, the right number is refused, and one that
// no name has passes: a program that makes up numbers can make up the right one as well.)
constexpr bool is_number_of_era(std::uint64_t number, std::uint16_t era_word, std::uint64_t mask) {
    return (((number >> kHalfRoundBits) - era_word) & mask) <= 1;
}

// 64 bits that a program passes on as it likes; only a pool's ReferenceFormat can read them. 0: none.
class Reference {
public:
    constexpr Reference() = default;
    constexpr explicit Reference(std::uint64_t bits) : bits_(bits) {}
    constexpr std::uint64_t bits() const { return bits_; }
    friend constexpr bool operator==(Reference, Reference) = default;

private:
    std::uint64_t bits_ = 0;
};

// The format of a pool's references. It follows from the pool's geometry and instance, so all processes of the pool
// have one format:
//   bits 0 .. f          the block: 2 * base + 2^order; its lowest bit that is set tells the order. Never 0.
//   the next n           numa node
//   the rest             the name's number xor the instance's salt, or as many of the lower bits as there is room for
// The salt has 34 bits. It makes a reference to a deleted pool stale in the pool that has its name now, although the
// numbers of both begin at 0. By chance one in 2^34 is not stale (one in 2^23 in the largest pools). f and n are as
// many bits as the last frame and the last numa node need. All 34 bits of the number have room in pools of up to 2^29
// frames a numa node (2 TiB of 4 KiB frames), with 8 numa nodes up to 2^26; in the largest possible pools 23 bits have
// room.
class ReferenceFormat {
public:
    constexpr ReferenceFormat() = default;
    // frame_count: frames of each numa node, 1 .. 2^34. numa_nodes: 1 .. 64. instance_id: the pool's, any number.
    constexpr ReferenceFormat(std::uint64_t frame_count, std::uint32_t numa_nodes, std::uint64_t instance_id = 0)
        : node_shift_(static_cast<std::uint32_t>(std::bit_width(frame_count - 1)) + 1),
          number_shift_(node_shift_ + static_cast<std::uint32_t>(std::bit_width(numa_nodes - 1))),
          block_mask_((std::uint64_t{1} << node_shift_) - 1),
          place_mask_((std::uint64_t{1} << number_shift_) - 1),
          salt_(salt_of(instance_id) << number_shift_) {}

    constexpr Reference reference(NumaNode numa_node, Block block, std::uint64_t number) const {
        return reference(bits_of(numa_node), block, number);
    }
    // numa_node_bits: bits_of(numa_node)
    constexpr Reference reference(std::uint64_t numa_node_bits, Block block, std::uint64_t number) const {
        return Reference{(block.base.value << 1 | std::uint64_t{1} << block.order.value) | numa_node_bits |
                         (number << number_shift_ ^ salt_)};
    }
    constexpr std::uint64_t bits_of(NumaNode numa_node) const { return std::uint64_t{numa_node.value} << node_shift_; }
    // Accepts any bits: the result may be a block that does not exist.
    constexpr Block block(Reference reference) const {
        const std::uint64_t block = reference.bits() & block_mask_;
        return {FrameIndex{(block & (block - 1)) >> 1}, Order{static_cast<std::uint32_t>(std::countr_zero(block))}};
    }
    constexpr std::uint32_t numa_node(Reference reference) const {
        return static_cast<std::uint32_t>((reference.bits() & place_mask_) >> node_shift_);
    }
    // The number of the reference's name, or only its lower bits if there is no room for all.
    constexpr std::uint64_t number(Reference reference) const { return (reference.bits() ^ salt_) >> number_shift_; }
    constexpr bool has_number(Reference reference, std::uint64_t number) const {
        return (reference.bits() ^ salt_ ^ number << number_shift_) <= place_mask_;
    }
    // Whether no pool of this geometry gives out these bits: the number is longer than any name's.
    constexpr bool is_impossible(Reference reference) const {
        return number_bits() > kNameNumberBits && number(reference) >> kNameNumberBits != 0;
    }
    constexpr unsigned number_bits() const { return 64 - number_shift_; }
    // The bits of an era, or of what a number may have in place of it, that references have room for.
    constexpr std::uint64_t era_mask() const { return ~std::uint64_t{0} >> number_shift_ >> kHalfRoundBits; }

private:
    // Upper bits of a product with 2^64 / phi: instances with neighbouring numbers get very different salts.
    static constexpr std::uint64_t salt_of(std::uint64_t instance_id) {
        return instance_id * 0x9E3779B97F4A7C15 >> (64 - kNameNumberBits);
    }

    std::uint32_t node_shift_ = 1;    // at most 35
    std::uint32_t number_shift_ = 1;  // at most 41
    std::uint64_t block_mask_ = 1;
    std::uint64_t place_mask_ = 1;  // the bits of block and numa node
    std::uint64_t salt_ = 0;        // shifted to the number's place
};

}  // namespace numacre::engine
