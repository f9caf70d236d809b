// The note in a block's index entry: the part of the block that nobody asked for (slack), and the time since when the
// block is held. The tree carries a note and never looks at it.
#pragma once

#include <bit>
#include <cstdint>

namespace numacre::engine {

// An age of the pool in seconds, in 13 bits: five of exponent, eight of mantissa. The code is exact for the first 512
// s, later to one part in 256 of the pool's age at that moment. That suffices to find blocks forgotten days ago, and
// the code never wraps.
class PoolAge {
public:
    static constexpr unsigned kBits = 13;

    constexpr PoolAge() = default;
    constexpr explicit PoolAge(std::uint32_t code) : code_(code & kMask) {}
    // Monotonic in seconds. Ages beyond the last code (17,000 years) become the last code.
    static constexpr PoolAge of_seconds(std::uint64_t seconds) {
        if (seconds < kMantissas) return PoolAge{static_cast<std::uint32_t>(seconds)};
        const auto halvings = static_cast<unsigned>(std::bit_width(seconds)) - (kMantissaBits + 1);
        if (halvings >= kExponentMax) return PoolAge{kMask};
        const auto mantissa = static_cast<std::uint32_t>(seconds >> halvings) - kMantissas;
        return PoolAge{(halvings + 1) << kMantissaBits | mantissa};
    }
    constexpr std::uint32_t code() const { return code_; }
    // The pool was at least this old.
    constexpr std::uint64_t first_second() const {
        const unsigned exponent = code_ >> kMantissaBits;
        const std::uint64_t mantissa = code_ & (kMantissas - 1);
        return exponent == 0 ? mantissa : (kMantissas + mantissa) << (exponent - 1);
    }
    // The pool was at most this old.
    constexpr std::uint64_t last_second() const {
        return code_ == kMask ? ~std::uint64_t{0} : PoolAge{code_ + 1}.first_second() - 1;
    }
    friend constexpr bool operator==(PoolAge, PoolAge) = default;

private:
    static constexpr unsigned kMantissaBits = 8;
    static constexpr std::uint32_t kMantissas = 1U << kMantissaBits;
    static constexpr std::uint32_t kMask = (1U << kBits) - 1;
    static constexpr unsigned kExponentMax = kMask >> kMantissaBits;
    std::uint32_t code_ = 0;
};

// The upper bits of an index entry, at their place there:
//   bits 43..55 held since (PoolAge)   56..63 slack: what is granted beyond what was requested, in 256ths of the block,
//                                      rounded down
class Note {
public:
    static constexpr unsigned kSinceShift = 43;
    static constexpr unsigned kSlackShift = kSinceShift + PoolAge::kBits;
    static constexpr std::uint64_t kSinceMask = ((std::uint64_t{1} << PoolAge::kBits) - 1) << kSinceShift;
    static constexpr std::uint64_t kSlackMask = ~std::uint64_t{0} << kSlackShift;
    static constexpr std::uint64_t kMask = kSinceMask | kSlackMask;
    static constexpr unsigned kSlackBits = 64 - kSlackShift;

    constexpr Note() = default;
    constexpr explicit Note(std::uint64_t bits) : bits_(bits & kMask) {}
    constexpr explicit Note(PoolAge since) : bits_(std::uint64_t{since.code()} << kSinceShift) {}
    // Returns this note, which has no slack yet, with the slack of a block of 2^block_shift bytes of which `size_bytes`
    // (1 .. all) were requested. The unrequested bytes are -size_bytes modulo the block. Every allocation runs this
    // code: shifting up and down needs no mask, and the compiler has none to build.
    constexpr Note for_request(std::uint64_t size_bytes, unsigned block_shift) const {
        Note note = *this;
        note.bits_ |= (0 - size_bytes) << (64 - block_shift) >> kSlackShift << kSlackShift;
        return note;
    }
    constexpr Note with_since(PoolAge since) const {
        return Note{(bits_ & kSlackMask) | std::uint64_t{since.code()} << kSinceShift};
    }
    constexpr std::uint64_t bits() const { return bits_; }
    constexpr PoolAge since() const { return PoolAge{static_cast<std::uint32_t>(bits_ >> kSinceShift)}; }
    constexpr std::uint64_t slack_bytes(unsigned block_shift) const {
        const std::uint64_t parts = bits_ >> kSlackShift;
        return block_shift >= kSlackBits ? parts << (block_shift - kSlackBits) : parts >> (kSlackBits - block_shift);
    }
    friend constexpr bool operator==(Note, Note) = default;

private:
    std::uint64_t bits_ = 0;
};

}  // namespace numacre::engine
