// The words of a channel: a cell of its ring, a message, and what a party is in the middle of. Each is one 64-bit word,
// so that a death leaves either the old or the new value. channel.hpp says how they work together.
#pragma once

#include <cstdint>

#include "numacre/shm/node_state.hpp"
#include "numacre/shm/owner.hpp"
#include "numacre/shm/units.hpp"

namespace numacre::engine {

inline constexpr unsigned kBurstMost = 64;  // messages of one send
inline constexpr unsigned kSegmentBits = 13;
inline constexpr unsigned kRoundBits = 21;
inline constexpr unsigned kTotalBits = 16;
inline constexpr std::uint32_t kTotalMask = (1U << kTotalBits) - 1;

// A place in a ring: cell number + round * cells. It grows for ever; words hold the round's lowest bits, so positions
// that differ by 2^kRoundBits rounds are the same place.
using RingPosition = std::uint64_t;

// A cell. Empty, it waits for the burst of its round, and keeps a segment that has no messages; full, it has that
// burst.
//   bit 0 full   1..6 taken: messages of the burst that have been received   7..13 count: messages of the burst
//   14..26 segment   27..42 total: messages sent through the ring up to the cell's last burst, that one included
//   43..63 round
class CellWord {
public:
    constexpr CellWord() = default;
    constexpr explicit CellWord(std::uint64_t bits) : bits_(bits) {}
    static constexpr CellWord empty(std::uint32_t segment, std::uint64_t round, std::uint32_t total) {
        return CellWord{std::uint64_t{segment} << kSegmentShift | std::uint64_t{total & kTotalMask} << kTotalShift |
                        round << kRoundShift};
    }
    // This empty cell with a burst in it.
    constexpr CellWord filled(std::uint32_t segment, unsigned count, std::uint32_t total) const {
        return CellWord{empty(segment, round(), total).bits_ | kFull | std::uint64_t{count} << kCountShift};
    }
    // This full cell after `more` further messages have been received. With its last message the cell is empty, and
    // waits for the next round.
    constexpr CellWord taken_from(unsigned more) const {
        return taken() + more < count() ? CellWord{bits_ + (std::uint64_t{more} << kTakenShift)}
                                        : empty(segment(), round() + 1, total());
    }
    constexpr std::uint64_t bits() const { return bits_; }
    constexpr bool is_full() const { return (bits_ & kFull) != 0; }
    constexpr unsigned taken() const { return static_cast<unsigned>(bits_ >> kTakenShift) & (kBurstMost - 1); }
    constexpr unsigned count() const { return static_cast<unsigned>(bits_ >> kCountShift) & (2 * kBurstMost - 1); }
    constexpr unsigned left() const { return taken() < count() ? count() - taken() : 0; }
    constexpr std::uint32_t segment() const {
        return static_cast<std::uint32_t>(bits_ >> kSegmentShift) & ((1U << kSegmentBits) - 1);
    }
    constexpr std::uint32_t total() const { return static_cast<std::uint32_t>(bits_ >> kTotalShift) & kTotalMask; }
    // Of a full cell: messages received through the ring before the next one of this cell.
    constexpr std::uint32_t received() const { return (total() - left()) & kTotalMask; }
    constexpr std::uint64_t round() const { return bits_ >> kRoundShift; }
    // By how many rounds this cell is ahead of `round`, of which the lowest bits count. Negative: behind.
    constexpr std::int64_t ahead_of(std::uint64_t round) const {
        return static_cast<std::int64_t>((this->round() - round) << kRoundShift) >> kRoundShift;
    }
    friend constexpr bool operator==(CellWord, CellWord) = default;

private:
    static constexpr std::uint64_t kFull = 1;
    static constexpr unsigned kTakenShift = 1;
    static constexpr unsigned kCountShift = 7;
    static constexpr unsigned kSegmentShift = 14;
    static constexpr unsigned kTotalShift = kSegmentShift + kSegmentBits;
    static constexpr unsigned kRoundShift = kTotalShift + kTotalBits;
    static_assert(kRoundShift + kRoundBits == 64);
    std::uint64_t bits_ = 0;
};

// A block in a channel: its place, and the generation that its index entry has while the channel owns it.
//   bits 0..33 base frame   34..39 numa node   40..44 order   45..63 generation
class Message {
public:
    constexpr Message() = default;
    constexpr explicit Message(std::uint64_t bits) : bits_(bits) {}
    constexpr Message(NumaNode numa_node, Block block, std::uint32_t generation)
        : bits_(block.base.value | std::uint64_t{numa_node.value & 63U} << kNodeShift |
                std::uint64_t{block.order.value} << kOrderShift | std::uint64_t{generation} << kGenerationShift) {}
    constexpr std::uint64_t bits() const { return bits_; }
    constexpr NumaNode numa_node() const { return NumaNode{static_cast<std::uint8_t>(bits_ >> kNodeShift & 63)}; }
    constexpr Block block() const {
        return {FrameIndex{bits_ & ((std::uint64_t{1} << kNodeShift) - 1)},
                Order{static_cast<std::uint32_t>(bits_ >> kOrderShift) & 31}};
    }
    constexpr std::uint32_t generation() const { return static_cast<std::uint32_t>(bits_ >> kGenerationShift); }
    constexpr Message with_generation(std::uint32_t generation) const { return {numa_node(), block(), generation}; }
    friend constexpr bool operator==(Message, Message) = default;

private:
    static constexpr unsigned kNodeShift = kMaxFrameIndexBits;
    static constexpr unsigned kOrderShift = kNodeShift + 6;
    static constexpr unsigned kGenerationShift = kOrderShift + 5;
    static_assert(kGenerationShift + kGenerationBits == 64);
    std::uint64_t bits_ = 0;
};

// receive: wants to change the cell, and may have done so. taking: has done so, and makes the messages its process's.
// undo: a send has been given up, and its messages go back to the sender.
enum class ErrandKind : std::uint8_t { none = 0, send = 1, undo = 2, receive = 3, taking = 4 };

// The operation that a party is in the middle of. Beside it stands the cell's word that it has seen (PartySlot::seen).
//   bits 0..2 kind   3 the ring of returned messages   4..10 count   11..42 position in the ring, its lowest bits
class Errand {
public:
    constexpr Errand() = default;
    constexpr explicit Errand(std::uint64_t bits) : bits_(bits) {}
    constexpr Errand(ErrandKind kind, bool is_of_returned, unsigned count, RingPosition position)
        : bits_(static_cast<std::uint64_t>(kind) | std::uint64_t{is_of_returned} << 3 | std::uint64_t{count} << 4 |
                std::uint64_t{static_cast<std::uint32_t>(position)} << 11) {}
    constexpr std::uint64_t bits() const { return bits_; }
    constexpr ErrandKind kind() const { return static_cast<ErrandKind>(bits_ & kKindMask); }
    constexpr bool is_receive() const { return kind() == ErrandKind::receive || kind() == ErrandKind::taking; }
    constexpr bool is_of_returned() const { return (bits_ & 8) != 0; }
    constexpr unsigned count() const { return static_cast<unsigned>(bits_ >> 4) & (2 * kBurstMost - 1); }
    // Enough of the position to find the cell.
    constexpr std::uint32_t position() const { return static_cast<std::uint32_t>(bits_ >> 11); }
    constexpr Errand as(ErrandKind kind) const {
        return Errand{(bits_ & ~kKindMask) | static_cast<std::uint64_t>(kind)};
    }

private:
    static constexpr std::uint64_t kKindMask = 7;
    std::uint64_t bits_ = 0;
};

}  // namespace numacre::engine
