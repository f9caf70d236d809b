// The parts of a channel's memory, and this process's addresses of them. Offsets and numbers only, never addresses. Any
// change here that moves or reinterprets a byte raises kLayoutVersion (../layout.hpp).
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "numacre/shm/channel/words.hpp"
#include "numacre/shm/env.hpp"
#include "numacre/shm/units.hpp"

namespace numacre::engine {

inline constexpr std::uint32_t kChannelCapacityMost = 4096;
inline constexpr std::uint32_t kPartiesMost = 64;  // beside the daemon's
inline constexpr std::uint32_t kDaemonParty = 0;
inline constexpr std::uint32_t kChannelBurstDefault = 32;
inline constexpr std::uint32_t kChannelCapacityDefault = 1024;
inline constexpr std::uint32_t kChannelPartiesDefault = 16;

// A pool's channels lie in an area of its region, each in one piece.
inline constexpr std::uint32_t kChannels = 16;
inline constexpr std::uint64_t kChannelAreaBytes = std::uint64_t{4} << 20;
inline constexpr std::size_t kChannelNameBytes = 48;  // with its terminating 0

// queue: one receiver gets a message (channel.hpp). broadcast: each reader gets each message (broadcast.hpp), whose
// memory has another layout (broadcast_layout.hpp).
enum class ChannelKind : std::uint32_t { queue = 0, broadcast = 1 };

// The numbers from which a channel's layout follows.
struct ChannelShape {
    std::uint32_t capacity = 0;  // messages, 1 .. kChannelCapacityMost; of a broadcast: those that it keeps at least
    std::uint32_t burst = 0;     // messages of one send, 1 .. kBurstMost
    std::uint32_t parties = 0;   // threads that may send or receive at a time, 1 .. kPartiesMost
    ChannelKind kind = ChannelKind::queue;

    constexpr bool is_plausible() const { return capacity >= 1 && burst >= 1 && parties >= 1 && is_within_limits(); }
    constexpr bool is_within_limits() const {
        return capacity <= kChannelCapacityMost && burst <= kBurstMost && parties <= kPartiesMost &&
               kind <= ChannelKind::broadcast;
    }
    // Of a wish: whether a whole burst finds room once the channel is empty. A broadcast has always room.
    constexpr bool has_room_for_bursts() const { return is_broadcast() || capacity == 0 || burst <= capacity; }
    constexpr bool is_broadcast() const { return kind == ChannelKind::broadcast; }
    // Of a shape that somebody wishes, where 0 is any: the shape of a channel that is made for it.
    constexpr ChannelShape with_defaults() const {
        ChannelShape made{capacity == 0 ? kChannelCapacityDefault : capacity, burst == 0 ? kChannelBurstDefault : burst,
                          parties == 0 ? kChannelPartiesDefault : parties, kind};
        if (burst == 0 && !made.has_room_for_bursts()) made.burst = made.capacity;
        return made;
    }
    // Likewise: whether a channel of the same kind that is there will do.
    constexpr bool is_met_by(const ChannelShape &there) const {
        return (capacity == 0 || capacity == there.capacity) && (burst == 0 || burst == there.burst) &&
               (parties == 0 || parties == there.parties);
    }
    // Each burst takes a cell, and each may have one message.
    constexpr std::uint32_t cells() const { return std::bit_ceil(capacity < 2 ? 2 : capacity); }
    // Never full, so that recovery waits for nobody to receive: each cell in use has a message, and there are no more
    // messages than each party may have been in the middle of receiving when the ring was empty last. A party that
    // begins to receive later receives returned ones, and if it dies they come back, perhaps in more cells.
    constexpr std::uint32_t returned_cells() const { return std::bit_ceil(parties * burst < 2 ? 2 : parties * burst); }
    // Each cell keeps a segment, and each party one. The daemon's are apart.
    constexpr std::uint32_t segments() const { return cells() + parties; }
    constexpr std::uint32_t returned_segments() const { return returned_cells() + 1; }
    friend constexpr bool operator==(ChannelShape, ChannelShape) = default;
};

enum class ChannelState : std::uint64_t { open = 0, closed = 1 };  // closed: nobody sends any more

template <class Env>
struct ChannelHeader {
    using Word = typename Env::template Atomic<std::uint64_t>;
    using FutexWord = typename Env::template Atomic<std::uint32_t>;
    Word state;       // ChannelState
    Word roles_seen;  // PartyOwner::kSends, kReceives: there has been such a party
    // Positions that the ring's head or tail has reached, or others: a hint. Written by each who passes them.
    alignas(kCacheLineBytes) Word head;
    alignas(kCacheLineBytes) Word tail;
    alignas(kCacheLineBytes) Word returned_head;
    Word returned_tail;
    // Somebody may be asleep on the signal beside it. A signal grows before its sleepers are woken.
    alignas(kCacheLineBytes) Word receivers_asleep;
    Word senders_asleep;
    FutexWord message_signal;
    FutexWord room_signal;
    // Bit party - 1: the party has a bell, and waits by it now or has done so (bells.hpp).
    Word message_watchers;
    Word room_watchers;
};

// The user of a party slot: bits 0..15 process slot, bit 16 in use, 17 sends, 18 receives.
class PartyOwner {
public:
    static constexpr std::uint64_t kSends = 1 << 17;
    static constexpr std::uint64_t kReceives = 1 << 18;
    constexpr explicit PartyOwner(std::uint64_t bits) : bits_(bits) {}
    constexpr PartyOwner(ProcessSlot process, std::uint64_t roles) : bits_(kInUse | process.value | roles) {}
    constexpr std::uint64_t bits() const { return bits_; }
    constexpr bool in_use() const { return (bits_ & kInUse) != 0; }
    constexpr bool sends() const { return in_use() && (bits_ & kSends) != 0; }
    constexpr bool receives() const { return in_use() && (bits_ & kReceives) != 0; }
    constexpr ProcessSlot process() const { return ProcessSlot{static_cast<std::uint16_t>(bits_)}; }

private:
    static constexpr std::uint64_t kInUse = 1 << 16;
    std::uint64_t bits_;
};

// One thread that sends or receives. Only that thread writes, and recovery after its death.
template <class Env>
struct alignas(2 * kCacheLineBytes) PartySlot {
    using Word = typename Env::template Atomic<std::uint64_t>;
    Word owner;    // PartyOwner; 0: free. Claimed by a CAS, cleared by the thread or by recovery
    Word errand;   // Errand; stored last when it begins, and cleared when it is done
    Word seen;     // CellWord: what the errand wants to change
    Word first;    // Message: the first one of a send
    Word segment;  // the segment that is the party's: it has the messages of a send
    Word sent;     // messages, by tallies that stay when the slot changes hands
    Word received;
    Word redelivered;  // of those received
    Word dropped;      // messages that a sender received to make room
    Word bell;         // serial of the party's eventfd; 0: it has none
    Word armed;        // ArmedWord. Set by the party, cleared by whoever has rung
    std::uint64_t reserved[5];
    std::array<Word, kBurstMost> claims;  // Message: what a receive wants to take
};

template <class Env>
struct ChannelLayout {
    using Word = typename Env::template Atomic<std::uint64_t>;
    std::uint64_t parties = 0;
    std::uint64_t cells = 0;
    std::uint64_t returned_cells = 0;
    std::uint64_t segments = 0;
    std::uint64_t returned_segments = 0;
    std::uint64_t bytes = 0;

    // shape: plausible
    static constexpr ChannelLayout of(const ChannelShape &shape) {
        ChannelLayout layout;
        std::uint64_t end = round_up(sizeof(ChannelHeader<Env>), 2 * kCacheLineBytes);
        const auto place = [&end](std::uint64_t count, std::uint64_t bytes_each) {
            const std::uint64_t offset = end;
            end += round_up(count * bytes_each, 2 * kCacheLineBytes);
            return offset;
        };
        const std::uint64_t segment_bytes = std::uint64_t{shape.burst} * sizeof(Word);
        layout.parties = place(shape.parties + 1, sizeof(PartySlot<Env>));
        layout.cells = place(shape.cells(), sizeof(Word));
        layout.returned_cells = place(shape.returned_cells(), sizeof(Word));
        layout.segments = place(shape.segments(), segment_bytes);
        layout.returned_segments = place(shape.returned_segments(), segment_bytes);
        layout.bytes = end;
        return layout;
    }
};

// A ring of cells and the segments that its messages are in.
template <class Env>
struct RingView {
    using Word = typename Env::template Atomic<std::uint64_t>;
    Word *cells = nullptr;
    Word *segments = nullptr;
    Word *head = nullptr;
    Word *tail = nullptr;
    std::uint32_t cell_count = 0;  // a power of two
    std::uint32_t segment_count = 0;
    std::uint32_t burst = 0;

    Word &cell(RingPosition position) const { return cells[position & (cell_count - 1)]; }
    std::uint64_t round_of(RingPosition position) const {
        return (position / cell_count) & ((std::uint64_t{1} << kRoundBits) - 1);
    }
    // segment: any number; one that does not exist (somebody has scribbled) is another one's.
    Word *segment(std::uint32_t segment) const {
        return segments + std::uint64_t{segment < segment_count ? segment : 0} * burst;
    }
};

template <class Env>
struct ChannelView {
    ChannelShape shape;  // the viewer's own trusted copy
    ChannelHeader<Env> *header = nullptr;
    PartySlot<Env> *parties = nullptr;  // shape.parties + 1: slot 0 is the daemon's
    RingView<Env> ring;
    RingView<Env> returned;

    static ChannelView at(void *memory, const ChannelShape &shape) {
        using Word = typename Env::template Atomic<std::uint64_t>;
        const auto layout = ChannelLayout<Env>::of(shape);
        auto *const bytes = static_cast<std::byte *>(memory);
        const auto words = [bytes](std::uint64_t offset) { return reinterpret_cast<Word *>(bytes + offset); };
        ChannelView view;
        view.shape = shape;
        view.header = reinterpret_cast<ChannelHeader<Env> *>(bytes);
        view.parties = reinterpret_cast<PartySlot<Env> *>(bytes + layout.parties);
        view.ring = {words(layout.cells), words(layout.segments), &view.header->head, &view.header->tail,
                     shape.cells(),       shape.segments(),       shape.burst};
        view.returned = {words(layout.returned_cells),
                         words(layout.returned_segments),
                         &view.header->returned_head,
                         &view.header->returned_tail,
                         shape.returned_cells(),
                         shape.returned_segments(),
                         shape.burst};
        return view;
    }
    const RingView<Env> &ring_of(bool is_of_returned) const { return is_of_returned ? returned : ring; }
    PartySlot<Env> &party(std::uint32_t party) const { return parties[party]; }
};

// Makes zeroed memory a channel. Nobody else sees it yet.
template <class Env>
void format_channel(const ChannelView<Env> &view) {
    constexpr auto relaxed = std::memory_order_relaxed;
    for (const RingView<Env> &ring : {view.ring, view.returned})
        for (std::uint32_t cell = 0; cell < ring.cell_count; ++cell)
            ring.cells[cell].store(CellWord::empty(cell, 0, 0).bits(), relaxed);
    for (std::uint32_t party = 1; party <= view.shape.parties; ++party)
        view.parties[party].segment.store(view.shape.cells() + party - 1, relaxed);
    view.parties[kDaemonParty].segment.store(view.shape.returned_cells(), relaxed);
}

static_assert(sizeof(PartySlot<ProductionEnv>) == 128 + kBurstMost * 8);
static_assert(kChannelCapacityMost + kPartiesMost <= 1U << kSegmentBits);
static_assert(kPartiesMost * kBurstMost + 1 <= 1U << kSegmentBits);

}  // namespace numacre::engine
