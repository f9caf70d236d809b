// A thread's own data on one numa node: its homes (where its next search begins) and its tallies. Only the slot's
// thread writes them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "numacre/shm/env.hpp"
#include "numacre/shm/node_state.hpp"
#include "numacre/shm/records.hpp"
#include "numacre/shm/units.hpp"

namespace numacre::engine {

// A place in the tree where a thread begins.
//   bits 0..39 the place + 1, 0 = nowhere yet. For a block in an upper word the place is that word, as counted in its
//   layer. For a block in a leaf word it is a frame: the block's beginning if that frame is free; else any frame of the
//   word
//   40..47 for an upper word: log2 of the children in the widest hole that is worth taking a block from there; the last
//   search found no smaller hole anywhere. In a leaf word any free run is taken
//   48..63 for blocks of an upper word, and blocks as large as a leaf word: how many more free groups or parents may be
//   begun without a search
class Home {
public:
    static constexpr std::uint64_t kBegunMax = 512;
    static constexpr std::uint64_t kBegunMaxOfParts = 32;  // of halves and quarters of an upper word
    constexpr explicit Home(std::uint64_t bits) : bits_(bits) {}
    constexpr explicit Home(std::uint64_t place, unsigned widest)
        : bits_((place + 1) | std::uint64_t{widest} << kWidestShift) {}
    // The home after a search that found nothing smaller than a free group or parent. most: how many more may be begun.
    static constexpr Home in_free(std::uint64_t place, unsigned widest, std::uint64_t most = kBegunMax) {
        return Home{Home{place, widest}.bits_ | most << kBegunShift};
    }
    constexpr std::uint64_t bits() const { return bits_; }
    // Moves the place; the results of the last search still hold.
    constexpr Home moved_to(std::uint64_t place) const { return Home{(bits_ & ~kPlaceMask) | (place + 1)}; }
    // Back to the word where a block has been freed: it has holes again.
    constexpr Home back_at(std::uint64_t word) const {
        return Home{word, static_cast<unsigned>(bits_ >> kWidestShift & 0xff)};
    }
    // The place, without leave to begin the next group or parent.
    constexpr Home without_next() const { return Home{bits_ << (64 - kBegunShift) >> (64 - kBegunShift)}; }
    constexpr bool may_begin_next() const { return bits_ >> kBegunShift != 0; }
    constexpr Home begun_at(std::uint64_t place) const {
        return Home{moved_to(place).bits_ - (std::uint64_t{1} << kBegunShift)};
    }
    // A home that is nowhere has a place beyond all pools.
    constexpr std::uint64_t place() const { return (bits_ & kPlaceMask) - 1; }
    constexpr unsigned widest() const {
        const auto levels = static_cast<unsigned>(bits_ >> kWidestShift & 0xff);
        return levels < kUpperLevels ? levels : kUpperLevels;  // limits scribbled values: "no hole" is not wide enough
    }

private:
    static constexpr unsigned kWidestShift = 40;
    static constexpr unsigned kBegunShift = 48;
    static constexpr std::uint64_t kPlaceMask = (std::uint64_t{1} << kWidestShift) - 1;
    std::uint64_t bits_;
};

// The homes of a thread. word[order] holds a Home: the place where the thread allocated or freed last, or the word
// after one that it has filled. A home is a preference and nothing else: only the slot's thread reads and writes it,
// the next user of the slot may go on there, and any value is harmless. There is one for each order: blocks of one size
// go where blocks of that size were, which keeps the rest whole.
template <class Env>
struct alignas(kCacheLineBytes) HomeWords {
    std::array<typename Env::template Atomic<std::uint64_t>, kMaxOrder + 1> word;
    // Passed: groups of leaf words that the thread has used up, or gone past, without lowering their hints. The
    // thread's next search lowers them.
    typename Env::template Atomic<std::uint64_t> passed;
};

// Adjacent groups: bits 0..47 the first one, 48..57 how many.
class Passed {
public:
    constexpr explicit Passed(std::uint64_t bits) : bits_(bits) {}
    constexpr std::uint64_t bits() const { return bits_; }
    constexpr std::uint64_t first() const { return bits_ << 16 >> 16; }
    constexpr std::uint64_t count() const { return bits_ >> 48 & 0x3ff; }
    // The groups from the first one to `group`, which is not before it.
    constexpr Passed through(std::uint64_t group) const {
        const std::uint64_t first_one = count() == 0 ? group : first();
        return Passed{first_one | (group + 1 - first_one) << 48};
    }

private:
    std::uint64_t bits_;
};

enum class FailureReason : std::uint8_t { out_of_frames, fragmented, quota, argument };
inline constexpr unsigned kFailureReasons = 4;

// One thread's tallies on one numa node. Only the slot's thread writes (plain load, store: no RMW, no shared line);
// anyone reads. The tallies stay when the slot changes hands, so that sums over all slots never decrease.
template <class Env>
struct alignas(kCacheLineBytes) ThreadCounters {
    using Word = typename Env::template Atomic<std::uint64_t>;
    std::array<Word, kMaxOrder + 1> allocations;  // by order
    std::array<Word, kMaxOrder + 1> frees;        // by order
    std::array<Word, kFailureReasons> failures;
    Word cas_retries;
    Word numa_miss;
    Word numa_foreign;
    Word takes;
    Word numa_other;      // blocks of this numa node for a thread on a CPU of another one
    Word interleave_hit;  // blocks by a policy that interleaves, on the numa node whose turn it was
    Word hand_offs;       // blocks that the thread waited for and was given (hand_off.hpp); allocations, too
    std::uint64_t reserved[3];
};

static_assert(sizeof(HomeWords<ProductionEnv>) == 256);
static_assert(sizeof(ThreadCounters<ProductionEnv>) == 512);
static_assert(offsetof(ThreadCounters<ProductionEnv>, frees) == 200);
static_assert(offsetof(ThreadCounters<ProductionEnv>, failures) == 400);

}  // namespace numacre::engine
