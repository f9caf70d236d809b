// The index entry of a block (its holder), the intent of a thread (its operation under way) and the wait word of a
// thread. Each is one 64-bit word, so that a death leaves either the old or the new value.
#pragma once

#include <cstdint>

#include "numacre/shm/node_state.hpp"
#include "numacre/shm/note.hpp"
#include "numacre/shm/units.hpp"

namespace numacre::engine {

// Process slot 0 is the daemon (or, in a private pool, nobody); kOfflineOwner holds chunks that have no memory behind
// them. A restart of the daemon recovers the blocks that slot 0 held, never offline chunks.
inline constexpr ProcessSlot kDaemonProcess{0};
inline constexpr ProcessSlot kOfflineOwner{0xffff};
// The owner of a block on its way from the thread that released it to the thread that waits for it (hand_off.hpp).
inline constexpr ProcessSlot kHandOffOwner{0xfffe};
// The owner of a block that its last owner has freed while others held it (holds.hpp).
inline constexpr ProcessSlot kLingeringOwner{0xfffd};
inline constexpr ThreadSlotIndex kDaemonThread{0};

inline constexpr unsigned kGenerationBits = 19;
inline constexpr std::uint32_t kGenerationMax = (1U << kGenerationBits) - 1;

// Generations count 1 .. kGenerationMax and begin again at 1: 0 is "never allocated". The era (reference.hpp) tells
// references apart for longer than one round.
constexpr std::uint32_t next_generation(std::uint32_t generation) {
    return generation == kGenerationMax ? 1 : generation + 1;
}

// cached: the process holds the block, but no caller does: the block waits in a thread's cache to be handed out again.
enum class BlockState : std::uint8_t { none = 0, owned = 1, freeing = 2, cached = 3 };

// The index entry of the block that begins at the entry's frame. While an entry is held (owned or cached) and not
// published, nobody but its own process writes it: plain stores suffice. An entry is published once there is a
// reference to the block: another process may take the block at any moment, so only CAS is allowed from then on. A
// cached entry may be taken back by others while its thread is outside the cache's steps (idle_caches.hpp).
// The three bits of state and published are 7 for a block that is lent: owned, published, and held by a thread at some
// time since it was allocated (holds.hpp). It stays lent until it is freed, whoever takes it.
//   bits  0.. 1 state   2 published    3..7 order   8..23 holder (process slot if held, thread slot if freeing)
//   bits 24..42 generation   43..63 Note (in state freeing: left over from the last holder, without meaning);
//   in state cached: 43..58 the thread slot whose cache has the block (0: no thread's)
class IndexEntry {
public:
    constexpr IndexEntry() = default;
    constexpr explicit IndexEntry(std::uint64_t bits) : bits_(bits) {}
    constexpr std::uint64_t bits() const { return bits_; }

    static constexpr IndexEntry owned(ProcessSlot owner, Order order, std::uint32_t generation, Note note) {
        return make(BlockState::owned, owner.value, order, generation, note);
    }
    static constexpr IndexEntry freeing(ThreadSlotIndex freer, Order order, std::uint32_t generation) {
        return make(BlockState::freeing, freer.value, order, generation, {});
    }
    static constexpr IndexEntry cached(ProcessSlot owner, ThreadSlotIndex thread, Order order,
                                       std::uint32_t generation) {
        return make(BlockState::cached, owner.value, order, generation,
                    Note{std::uint64_t{thread.value} << kThreadShift});
    }
    // Returns this entry, which has no order, generation and note, with `order` and `note` filled in.
    constexpr IndexEntry of(Order order, Note note) const {
        return IndexEntry{bits_ | std::uint64_t{order.value} << 3 | note.bits()};
    }
    // Returns this entry, which has no generation, with the one that follows `old`'s. A generation beyond the last one
    // ends up, 19 bits lower, as the first.
    constexpr IndexEntry after(IndexEntry old) const {
        static_assert(kGenerationMask + kGenerationStep == kGenerationStep << kGenerationBits);
        const std::uint64_t next = (old.bits_ & kGenerationMask) + kGenerationStep;
        return IndexEntry{bits_ | ((next | next >> kGenerationBits) & kGenerationMask)};
    }
    // after() without the wrap, for an `old` whose generation is not the last of its half (reference.hpp).
    constexpr IndexEntry after_in_half(IndexEntry old) const {
        return IndexEntry{bits_ | ((old.bits_ & kGenerationMask) + kGenerationStep)};
    }
    constexpr bool is_last_of_half() const {
        return (((bits_ & kGenerationMask) ^ ((bits_ & kGenerationMask) + kGenerationStep)) & kHalfBit) != 0;
    }
    // Returns this entry with the state and holder of `other`, and not published. `other` has no order, generation and
    // note.
    constexpr IndexEntry now(IndexEntry other) const {
        return IndexEntry{(bits_ & ~std::uint64_t{kStateMask | kPublished | kHolderMask}) | other.bits_};
    }
    // Returns this entry, which has no note yet, with `note`.
    constexpr IndexEntry with(Note note) const { return IndexEntry{bits_ | note.bits()}; }
    constexpr IndexEntry published() const { return IndexEntry{bits_ | kPublished}; }
    // Returns this entry, which is owned and published, as that of a lent block.
    constexpr IndexEntry lent() const { return IndexEntry{bits_ | kLent}; }
    // Returns `other`, which names an owner and nothing else, with this block's order and slack, held since `since`. A
    // lent block stays lent; any other is not published any more. The generation is filled in later.
    constexpr IndexEntry handed_to(IndexEntry other, PoolAge since) const {
        return IndexEntry{other.of(order(), note().with_since(since)).bits_ | lent_bits()};
    }

    // handed_to() and after_in_half() in one. other: with a note that has no slack.
    constexpr IndexEntry handed_on_in_half(IndexEntry other) const {
        constexpr std::uint64_t kKept = std::uint64_t{kOrderMask} | kGenerationMask | Note::kSlackMask;
        return IndexEntry{(bits_ & kKept) + (other.bits_ + kGenerationStep)};
    }

    constexpr BlockState state() const { return is_lent() ? BlockState::owned : static_cast<BlockState>(bits_ & 3); }
    constexpr bool is_owned() const { return state() == BlockState::owned; }
    constexpr bool is_freeing() const { return state() == BlockState::freeing; }
    constexpr bool is_cached() const { return state() == BlockState::cached; }
    // Some thread has held the block, and may hold it still: a free has to look (holds.hpp).
    constexpr bool is_lent() const { return (bits_ & kLent) == kLent; }
    // Freed by its owner, and not in the tree yet: somebody held the block.
    constexpr bool is_lingering() const { return ownership() == private_to(kLingeringOwner); }
    // Owned or cached: the block belongs to its process, and recovery gives it back when the process dies.
    constexpr bool is_held() const { return (bits_ & kHeldBit) != 0; }
    // State, holder and the published bit equal those of `other`.
    constexpr bool is_held_like(IndexEntry other) const { return ownership() == other.ownership(); }
    // State and holder equal those of `other`; the published bit may differ. (A cached entry is not like an owned one,
    // and neither is that of a lent block.)
    constexpr bool is_held_like_or_published(IndexEntry other) const {
        return ((bits_ ^ other.bits_) & (kStateMask | kHolderMask)) == 0;
    }
    // A reference to a block of this order at this entry may exist.
    constexpr bool is_published(Order order) const {
        // Owned, 5, or lent, 7.
        const IndexEntry name = make(BlockState::owned, 0, order, 0, {}).published();
        return ((bits_ ^ name.bits_) & (kHeldBit | kPublished | kOrderMask)) == 0;
    }
    // Whether this is the entry of a published block of this order that is not lent, with the generation that is the
    // lowest bits of `number`.
    constexpr bool is_published_as(Order order, std::uint64_t number) const {
        constexpr std::uint64_t kMask = std::uint64_t{kStateMask | kPublished | kOrderMask} | kGenerationMask;
        const std::uint64_t wanted = static_cast<std::uint64_t>(BlockState::owned) | kPublished |
                                     std::uint64_t{order.value} << 3 | number * kGenerationStep;
        return ((bits_ ^ wanted) & kMask) == 0;
    }
    // is_published_as() of a lent block.
    constexpr bool is_lent_as(Order order, std::uint64_t number) const {
        constexpr std::uint64_t kMask = std::uint64_t{kLent | kOrderMask} | kGenerationMask;
        const std::uint64_t wanted = kLent | std::uint64_t{order.value} << 3 | number * kGenerationStep;
        return ((bits_ ^ wanted) & kMask) == 0;
    }
    // The owner is a client: not the daemon, and none of the owners that are no process.
    constexpr bool is_a_clients() const {
        return static_cast<std::uint16_t>(owner().value - 1) < kLingeringOwner.value - 1;
    }
    constexpr bool is_published() const { return (bits_ & kPublished) != 0; }
    // State, published and holder in one number, to be compared with private_to().
    constexpr std::uint32_t ownership() const {
        return static_cast<std::uint32_t>(bits_) & (kStateMask | kPublished | kHolderMask);
    }
    constexpr std::uint32_t ownership_and_order() const {
        return static_cast<std::uint32_t>(bits_) & (kStateMask | kPublished | kHolderMask | kOrderMask);
    }
    // ownership() of a block that the process `owner` owns and that is not published.
    static constexpr std::uint32_t private_to(ProcessSlot owner) {
        return static_cast<std::uint32_t>(BlockState::owned) | std::uint32_t{owner.value} << kHolderShift;
    }
    // pattern: private_to(). If true, the process may keep the block in a cache (cached_block.h).
    constexpr bool is_private(std::uint32_t pattern) const { return ownership() == pattern; }
    constexpr Order order() const { return Order{static_cast<std::uint32_t>(bits_) >> 3 & 31}; }
    constexpr ProcessSlot owner() const { return ProcessSlot{static_cast<std::uint16_t>(bits_ >> 8)}; }
    constexpr ThreadSlotIndex freer() const { return ThreadSlotIndex{static_cast<std::uint16_t>(bits_ >> 8)}; }
    // Of a cached entry: the thread slot whose cache has the block.
    constexpr ThreadSlotIndex cacher() const {
        return ThreadSlotIndex{static_cast<std::uint16_t>(bits_ >> kThreadShift)};
    }
    constexpr std::uint32_t generation() const { return static_cast<std::uint32_t>(bits_ >> 24) & kGenerationMax; }
    constexpr Note note() const { return Note{bits_}; }

    friend constexpr bool operator==(IndexEntry, IndexEntry) = default;

private:
    static constexpr IndexEntry make(BlockState state, std::uint16_t holder, Order order, std::uint32_t generation,
                                     Note note) {
        return IndexEntry{static_cast<std::uint64_t>(state) | std::uint64_t{order.value} << 3 |
                          std::uint64_t{holder} << 8 | std::uint64_t{generation & kGenerationMax} << 24 | note.bits()};
    }
    // The bits of a lent entry that an owned one has not, if this one is lent; else 0.
    constexpr std::uint64_t lent_bits() const { return (bits_ & bits_ >> 1 & 2) * 3; }
    static constexpr std::uint32_t kHeldBit = 1;
    static constexpr std::uint32_t kStateMask = 3;
    static constexpr std::uint64_t kGenerationStep = std::uint64_t{1} << 24;
    static constexpr std::uint64_t kGenerationMask = kGenerationMax * kGenerationStep;
    static constexpr std::uint64_t kHalfBit = kGenerationStep << (kGenerationBits - 1);
    static constexpr std::uint32_t kPublished = 4;
    static constexpr std::uint32_t kLent = kStateMask | kPublished;
    static constexpr unsigned kHolderShift = 8;
    static constexpr unsigned kThreadShift = Note::kSinceShift;
    static constexpr std::uint32_t kHolderMask = std::uint32_t{0xffff} << kHolderShift;
    static constexpr std::uint32_t kOrderMask = 31U << 3;
    std::uint64_t bits_ = 0;
};

inline constexpr unsigned kMaxFrameIndexBits = 34;  // 64 TiB of 4 KiB frames, 1 TiB of 64-byte ones
inline constexpr unsigned kMaxNumaNodes = 64;

// word: several blocks of one leaf word are allocated or freed together; the intent's block is the whole word.
enum class IntentKind : std::uint8_t { none = 0, allocate = 1, free = 2, word = 3 };

// The operation that a thread is in the middle of. Only that thread writes it; recovery reads it.
//   bits 0..1 kind   2..6 order   7..12 numa node   13..46 base frame
class Intent {
public:
    constexpr Intent() = default;
    constexpr explicit Intent(std::uint64_t bits) : bits_(bits) {}
    constexpr Intent(IntentKind kind, NumaNode numa_node, Block block) : Intent(kind, of_node(numa_node), block) {}
    // node_bits: of_node()
    constexpr Intent(IntentKind kind, std::uint64_t node_bits, Block block)
        : bits_(static_cast<std::uint64_t>(kind) | std::uint64_t{block.order.value} << 2 | node_bits |
                block.base.value << 13) {}
    static constexpr std::uint64_t of_node(NumaNode numa_node) { return std::uint64_t{numa_node.value} << 7; }
    constexpr std::uint64_t bits() const { return bits_; }
    constexpr IntentKind kind() const { return static_cast<IntentKind>(bits_ & 3); }
    constexpr bool active() const { return kind() != IntentKind::none; }
    constexpr NumaNode numa_node() const { return NumaNode{static_cast<std::uint8_t>(bits_ >> 7 & 63)}; }
    constexpr Block block() const {
        return {FrameIndex{bits_ >> 13 & ((std::uint64_t{1} << kMaxFrameIndexBits) - 1)},
                Order{static_cast<std::uint32_t>(bits_ >> 2 & 31)}};
    }
    friend constexpr bool operator==(Intent, Intent) = default;

private:
    std::uint64_t bits_ = 0;
};

// A thread's wish for a block, or the block that it was given: one word, so that a death leaves one of the two. The low
// half is the futex word that the thread sleeps on.
//   bits 0..1 state (0: the thread does not wait)
//   waiting: 2 nudge by the daemon: look again yourself   3..7 order   8..13 preferred numa node
//            14..63 ticket: an earlier waiter has a smaller one
//   given:   2..35 base frame   36..41 numa node   42..60 generation of its index entry
class WaitWord {
public:
    constexpr WaitWord() = default;
    constexpr explicit WaitWord(std::uint64_t bits) : bits_(bits) {}
    static constexpr WaitWord waiting(Order order, NumaNode numa_node, std::uint64_t ticket) {
        return WaitWord{kWaiting | std::uint64_t{order.value} << 3 | std::uint64_t{numa_node.value & 63U} << 8 |
                        ticket << 14};
    }
    static constexpr WaitWord given(NumaNode numa_node, FrameIndex base, std::uint32_t generation) {
        return WaitWord{kGiven | base.value << 2 | std::uint64_t{numa_node.value} << 36 |
                        std::uint64_t{generation} << 42};
    }
    constexpr std::uint64_t bits() const { return bits_; }
    constexpr bool is_waiting() const { return (bits_ & 3) == kWaiting; }
    constexpr bool is_given() const { return (bits_ & 3) == kGiven; }

    // For a waiting word:
    constexpr WaitWord nudged() const { return WaitWord{bits_ | 4}; }
    constexpr WaitWord not_nudged() const { return WaitWord{bits_ & ~std::uint64_t{4}}; }
    constexpr Order order() const { return Order{static_cast<std::uint32_t>(bits_) >> 3 & 31}; }
    constexpr NumaNode wanted_node() const { return NumaNode{static_cast<std::uint8_t>(bits_ >> 8 & 63)}; }
    constexpr std::uint64_t ticket() const { return bits_ >> 14; }
    // For a given word:
    constexpr FrameIndex base() const {
        return FrameIndex{bits_ >> 2 & ((std::uint64_t{1} << kMaxFrameIndexBits) - 1)};
    }
    constexpr NumaNode numa_node() const { return NumaNode{static_cast<std::uint8_t>(bits_ >> 36 & 63)}; }
    constexpr std::uint32_t generation() const { return static_cast<std::uint32_t>(bits_ >> 42) & kGenerationMax; }
    friend constexpr bool operator==(WaitWord, WaitWord) = default;

private:
    static constexpr std::uint64_t kWaiting = 1;
    static constexpr std::uint64_t kGiven = 2;
    std::uint64_t bits_ = 0;
};

}  // namespace numacre::engine
