// The words of a broadcast: a cell of its ring, a segment's state, what a writer is in the middle of, what a reader
// reads. Each is one 64-bit word, so that a death leaves either the old or the new value. broadcast.hpp says how they
// work together.
#pragma once

#include <cstdint>

#include "numacre/shm/channel/words.hpp"

namespace numacre::engine {

// A cell: the last burst that was sent to it. It is never empty: before the first round it has a burst of no messages.
//   bits 0..6 count: messages of the burst   7..19 segment   20..63 round
// A round does not come round: so a cell that has the same word twice was the same in between.
class BroadcastCell {
public:
    static constexpr unsigned kRoundBits = 44;
    constexpr BroadcastCell() = default;
    constexpr explicit BroadcastCell(std::uint64_t bits) : bits_(bits) {}
    constexpr BroadcastCell(std::uint64_t round, std::uint32_t segment, unsigned count)
        : bits_(count | std::uint64_t{segment} << kSegmentShift | round << kRoundShift) {}
    constexpr std::uint64_t bits() const { return bits_; }
    constexpr unsigned count() const { return static_cast<unsigned>(bits_) & (2 * kBurstMost - 1); }
    constexpr std::uint32_t segment() const {
        return static_cast<std::uint32_t>(bits_ >> kSegmentShift) & ((1U << kSegmentBits) - 1);
    }
    constexpr std::uint64_t round() const { return bits_ >> kRoundShift; }
    friend constexpr bool operator==(BroadcastCell, BroadcastCell) = default;

private:
    static constexpr unsigned kSegmentShift = 7;
    static constexpr unsigned kRoundShift = kSegmentShift + kSegmentBits;
    static_assert(kRoundShift + kRoundBits == 64);
    std::uint64_t bits_ = 0;
};

// ordinary: in a cell, or a party's own. leaving: its burst has been overwritten under a reader, and the party is about
// to leave it there. lingering: nobody's; the last reader retires it. retiring: the party makes its blocks its
// process's. free: nobody's, without a burst. taken: the party is about to make it its own.
enum class SegmentState : std::uint8_t { ordinary = 0, leaving = 1, lingering = 2, retiring = 3, free = 4, taken = 5 };

// The use of a segment that is neither in a cell nor a party's own.
//   bits 0..2 state   3..9 party   10..16 count   17..63 position of its burst, the lowest bits
// The position tells the times apart that a segment lingers.
class SegmentWord {
public:
    constexpr SegmentWord() = default;
    constexpr explicit SegmentWord(std::uint64_t bits) : bits_(bits) {}
    constexpr SegmentWord(SegmentState state, std::uint32_t party, unsigned count, RingPosition position)
        : bits_(static_cast<std::uint64_t>(state) | std::uint64_t{party & 127U} << 3 | std::uint64_t{count} << 10 |
                position << 17) {}
    constexpr std::uint64_t bits() const { return bits_; }
    constexpr SegmentState state() const { return static_cast<SegmentState>(bits_ & 7); }
    constexpr bool is(SegmentState state, std::uint32_t party) const {
        return this->state() == state && this->party() == party;
    }
    constexpr std::uint32_t party() const { return static_cast<std::uint32_t>(bits_ >> 3) & 127; }
    constexpr unsigned count() const { return static_cast<unsigned>(bits_ >> 10) & (2 * kBurstMost - 1); }
    constexpr SegmentWord as(SegmentState state, std::uint32_t party) const {
        return SegmentWord{(bits_ & ~std::uint64_t{1023}) | static_cast<std::uint64_t>(state) |
                           std::uint64_t{party & 127U} << 3};
    }

private:
    std::uint64_t bits_ = 0;
};

// send: wants to change the cell that stands beside it, and may have done so. undo: the send has been given up, and its
// messages go back to the writer. retire: has overwritten a burst, whose segment is the party's now.
enum class WriterErrandKind : std::uint8_t { none = 0, send = 1, undo = 2, retire = 3 };

// The operation that a writer is in the middle of.
//   bits 0..1 kind   2..8 count: messages sent, or overwritten   9..63 position
class WriterErrand {
public:
    constexpr WriterErrand() = default;
    constexpr explicit WriterErrand(std::uint64_t bits) : bits_(bits) {}
    constexpr WriterErrand(WriterErrandKind kind, unsigned count, RingPosition position)
        : bits_(static_cast<std::uint64_t>(kind) | std::uint64_t{count} << 2 | position << 9) {}
    constexpr std::uint64_t bits() const { return bits_; }
    constexpr WriterErrandKind kind() const { return static_cast<WriterErrandKind>(bits_ & 3); }
    constexpr unsigned count() const { return static_cast<unsigned>(bits_ >> 2) & (2 * kBurstMost - 1); }
    constexpr RingPosition position() const { return bits_ >> 9; }
    constexpr WriterErrand as(WriterErrandKind kind) const {
        return WriterErrand{(bits_ & ~std::uint64_t{3}) | static_cast<std::uint64_t>(kind)};
    }

private:
    std::uint64_t bits_ = 0;
};

// The burst that a reader reads, or is about to: that of a segment. 0: nothing.
class ReaderClaim {
public:
    constexpr ReaderClaim() = default;
    constexpr explicit ReaderClaim(std::uint64_t bits) : bits_(bits) {}
    static constexpr ReaderClaim of(std::uint32_t segment) { return ReaderClaim{std::uint64_t{segment} + 1}; }
    constexpr std::uint64_t bits() const { return bits_; }
    friend constexpr bool operator==(ReaderClaim, ReaderClaim) = default;

private:
    std::uint64_t bits_ = 0;
};

}  // namespace numacre::engine
