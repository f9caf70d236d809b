// The parts of a broadcast's memory, and this process's addresses of them. Offsets and numbers only, never addresses.
// Any change here that moves or reinterprets a byte raises kLayoutVersion (../layout.hpp).
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "numacre/shm/channel/broadcast_words.hpp"
#include "numacre/shm/channel/layout.hpp"

namespace numacre::engine {

// The numbers from which a broadcast's layout follows.
struct BroadcastShape {
    std::uint32_t capacity = 0;  // bursts that it keeps, at least: 1 .. kChannelCapacityMost
    std::uint32_t burst = 0;     // messages of one send, 1 .. kBurstMost
    std::uint32_t parties = 0;   // threads that may write or read at a time, 1 .. kPartiesMost

    // As many bursts as messages are to be kept: each has one at least.
    static constexpr BroadcastShape of(const ChannelShape &shape) {
        return {shape.capacity, shape.burst, shape.parties};
    }
    constexpr bool is_plausible() const {
        return capacity >= 1 && capacity <= kChannelCapacityMost && burst >= 1 && burst <= kBurstMost && parties >= 1 &&
               parties <= kPartiesMost;
    }
    constexpr std::uint32_t cells() const { return std::bit_ceil(capacity < 2 ? 2 : capacity); }
    // Each cell has one, and each party. A burst that was overwritten lingers for a reader who reads it, one for each
    // party at most; and each party may be in the middle of leaving or retiring another one.
    constexpr std::uint32_t segments() const { return cells() + 3 * parties; }
    friend constexpr bool operator==(BroadcastShape, BroadcastShape) = default;
};

template <class Env>
struct BroadcastHeader {
    using Word = typename Env::template Atomic<std::uint64_t>;
    using FutexWord = typename Env::template Atomic<std::uint32_t>;
    Word state;         // ChannelState
    Word roles_seen;    // PartyOwner::kSends, kReceives: there has been such a party
    Word readers;       // bit party - 1: the party may have a claim
    Word free_segment;  // a hint: where a free segment may be
    // A position that the ring's end has reached, or another: a hint.
    alignas(kCacheLineBytes) Word tail;
    // As in a channel. Nobody waits for room.
    alignas(kCacheLineBytes) Word receivers_asleep;
    FutexWord message_signal;
    // As in a channel (bells.hpp).
    Word message_watchers;
    Word room_watchers;
};

// One thread that writes or reads. Only that thread writes its words, and recovery after its death.
template <class Env>
struct alignas(2 * kCacheLineBytes) BroadcastParty {
    using Word = typename Env::template Atomic<std::uint64_t>;
    Word owner;    // PartyOwner; 0: free. Claimed by a CAS, cleared by the thread or by recovery
    Word errand;   // WriterErrand; stored last when it begins, and cleared when it is done
    Word seen;     // BroadcastCell: what the errand wants to change
    Word first;    // Message: the first one of a send
    Word segment;  // the segment that is the party's: it has the messages of a send, or those that it overwrote
    Word sent;     // messages, by tallies that stay when the slot changes hands
    std::uint64_t reserved[2];
    // Writers look at it after each burst.
    alignas(kCacheLineBytes) Word claim;  // ReaderClaim
    Word read;
    Word lost;   // messages that were overwritten before the reader came to them
    Word bell;   // as in a channel
    Word armed;  // likewise
    std::uint64_t reserved_too[3];
};

template <class Env>
struct BroadcastLayout {
    using Word = typename Env::template Atomic<std::uint64_t>;
    std::uint64_t parties = 0;
    std::uint64_t cells = 0;
    std::uint64_t states = 0;
    std::uint64_t segments = 0;
    std::uint64_t bytes = 0;

    // shape: plausible
    static constexpr BroadcastLayout of(const BroadcastShape &shape) {
        BroadcastLayout layout;
        std::uint64_t end = round_up(sizeof(BroadcastHeader<Env>), 2 * kCacheLineBytes);
        const auto place = [&end](std::uint64_t count, std::uint64_t bytes_each) {
            const std::uint64_t offset = end;
            end += round_up(count * bytes_each, 2 * kCacheLineBytes);
            return offset;
        };
        layout.parties = place(shape.parties, sizeof(BroadcastParty<Env>));
        layout.cells = place(shape.cells(), sizeof(Word));
        layout.states = place(shape.segments(), sizeof(Word));
        layout.segments = place(shape.segments(), (std::uint64_t{shape.burst} + 1) * sizeof(Word));
        layout.bytes = end;
        return layout;
    }
};

template <class Env>
struct BroadcastView {
    using Word = typename Env::template Atomic<std::uint64_t>;
    BroadcastShape shape;  // the viewer's own trusted copy
    BroadcastHeader<Env> *header = nullptr;
    BroadcastParty<Env> *parties = nullptr;  // of party 1: a party's number is one more than its place
    Word *cells = nullptr;
    Word *states = nullptr;
    Word *segments = nullptr;
    std::uint32_t cell_count = 0;  // a power of two
    std::uint32_t segment_count = 0;

    static BroadcastView at(void *memory, const BroadcastShape &shape) {
        const auto layout = BroadcastLayout<Env>::of(shape);
        auto *const bytes = static_cast<std::byte *>(memory);
        const auto words = [bytes](std::uint64_t offset) { return reinterpret_cast<Word *>(bytes + offset); };
        return {shape,
                reinterpret_cast<BroadcastHeader<Env> *>(bytes),
                reinterpret_cast<BroadcastParty<Env> *>(bytes + layout.parties),
                words(layout.cells),
                words(layout.states),
                words(layout.segments),
                shape.cells(),
                shape.segments()};
    }

    BroadcastParty<Env> &party(std::uint32_t party) const { return parties[party - 1]; }
    Word &cell(RingPosition position) const { return cells[position & (cell_count - 1)]; }
    std::uint64_t round_of(RingPosition position) const { return position / cell_count; }
    // The position of the burst that is in the cell that `position` stands for.
    RingPosition position_of(RingPosition position, BroadcastCell cell) const {
        return cell.round() * cell_count + (position & (cell_count - 1));
    }
    // segment: any number; one that does not exist (somebody has scribbled) is another one's.
    Word &state(std::uint32_t segment) const { return states[segment < segment_count ? segment : 0]; }
    // Messages sent up to the segment's burst, that one included.
    Word &total(std::uint32_t segment) const { return at(segment)[0]; }
    Word *list(std::uint32_t segment) const { return at(segment) + 1; }

private:
    Word *at(std::uint32_t segment) const {
        return segments + std::uint64_t{segment < segment_count ? segment : 0} * (std::uint64_t{shape.burst} + 1);
    }
};

// Makes zeroed memory a broadcast. Nobody else sees it yet. Positions begin with the second round.
template <class Env>
void format_broadcast(const BroadcastView<Env> &view) {
    constexpr auto relaxed = std::memory_order_relaxed;
    const std::uint32_t cells = view.cell_count;
    const std::uint32_t parties = view.shape.parties;
    for (std::uint32_t cell = 0; cell < cells; ++cell)
        view.cells[cell].store(BroadcastCell{0, cell, 0}.bits(), relaxed);
    for (std::uint32_t party = 1; party <= parties; ++party)
        view.party(party).segment.store(cells + party - 1, relaxed);
    for (std::uint32_t segment = cells + parties; segment < view.segment_count; ++segment)
        view.states[segment].store(SegmentWord{SegmentState::free, 0, 0, 0}.bits(), relaxed);
    view.header->free_segment.store(cells + parties, relaxed);
    view.header->tail.store(cells, relaxed);
}

// The memory that a channel of any kind takes. shape: plausible
template <class Env>
constexpr std::uint64_t channel_bytes(const ChannelShape &shape) {
    return shape.is_broadcast() ? BroadcastLayout<Env>::of(BroadcastShape::of(shape)).bytes
                                : ChannelLayout<Env>::of(shape).bytes;
}

static_assert(sizeof(BroadcastParty<ProductionEnv>) == 128);
static_assert(kChannelCapacityMost + 3 * kPartiesMost <= 1U << kSegmentBits);

}  // namespace numacre::engine
