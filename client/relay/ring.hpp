// A ring of references in shared memory, with one writer and one reader.
//
// The ring is a memfd of its own and not a block: a block is freed when its owner dies, but the survivor must still be
// able to read the ring. The ring has only references, never addresses. A side that is killed leaves whole, published
// references and nothing half-written. Each side range-checks the other side's words.
//
// A side that finds nothing to do may sleep. The side first announces its sleep (announce_sleep) and looks once more.
// The other side then learns from publish / close / advance that it has to ring the doorbell. No doorbell is lost:
//
//   EDGE publish-to-sleep   writer: head.store, then reader_asleep.load     reader: reader_asleep.store, then head.load
//   EDGE advance-to-sleep   reader: tail.store, then writer_sleeps_until.load
//                           writer: writer_sleeps_until.store, then tail.load
//   All eight are seq_cst: of two store-then-load pairs on two words at least one load must see the other's store.
//   Weakened: both may miss, and both sides sleep for ever beside a full or an empty ring.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>

namespace relay {

inline constexpr std::uint64_t kRingMagic = 0x676e'6972'7963'6c72;
inline constexpr std::uint32_t kRingVersion = 1;
inline constexpr std::uint32_t kRingSlotsMin = 2, kRingSlotsMax = 1U << 24;

// Each alignas(64) begins a cache line, so that the two sides write different lines.
struct RingHeader {
    std::uint64_t magic = kRingMagic;
    std::uint32_t version = kRingVersion;
    std::uint32_t slots = 0;
    alignas(64) std::atomic<std::uint64_t> head = 0;                 // references ever published; set by the writer
    std::atomic<std::uint64_t> closed = 0;                           // 1: head is final
    alignas(64) std::atomic<std::uint64_t> tail = 0;                 // references ever consumed; set by the reader
    alignas(64) std::atomic<std::uint64_t> reader_asleep = 0;        // 1: ring when head moves
    alignas(64) std::atomic<std::uint64_t> writer_sleeps_until = 0;  // not 0: ring when tail reaches it
};
static_assert(sizeof(RingHeader) == 320 && std::atomic<std::uint64_t>::is_always_lock_free);

constexpr bool valid_ring_slots(std::uint64_t slots) {
    return std::has_single_bit(slots) && slots >= kRingSlotsMin && slots <= kRingSlotsMax;
}
constexpr std::size_t ring_bytes(std::uint32_t slots) {
    return sizeof(RingHeader) + std::size_t{slots} * 8;
}

struct RingDamaged : std::runtime_error {
    RingDamaged()
        : std::runtime_error(
              "the ring is damaged: its head and tail are further apart than its size; restart both sides") {}
};

// The memory of a ring as one side sees it. slots is that side's own copy, so an index made with slots stays inside the
// mapping.
class RingView {
public:
    RingView(void *memory, std::uint32_t slots)
        : header_(static_cast<RingHeader *>(memory)),
          slots_(reinterpret_cast<std::uint64_t *>(static_cast<std::byte *>(memory) + sizeof(RingHeader))),
          count_(slots) {}

    RingHeader &header() const { return *header_; }
    std::uint32_t count() const { return count_; }
    std::uint64_t &slot(std::uint64_t position) const { return slots_[position & (count_ - 1)]; }

private:
    RingHeader *header_;
    std::uint64_t *slots_;
    std::uint32_t count_;
};

// The writing side; for one thread.
class RingWriter {
public:
    explicit RingWriter(RingView ring) : ring_(ring) {}

    // Appends a reference. False: the ring is full. The reader sees the reference after publish().
    bool try_push(std::uint64_t reference) {
        if (head_ - tail_seen_ == ring_.count()) {
            refresh_tail();
            if (head_ - tail_seen_ == ring_.count()) return false;
        }
        ring_.slot(head_++) = reference;
        return true;
    }

    std::uint64_t pushed() const { return head_; }
    std::uint64_t unpublished() const { return head_ - published_; }

    // True: ring the reader's doorbell.
    [[nodiscard]] bool publish() {
        if (published_ == head_) return false;
        published_ = head_;
        // The store is also the release that carries the slots, and the contents of the blocks, to the reader's acquire
        // of head.
        ring_.header().head.store(head_, std::memory_order_seq_cst);
        return reader_to_be_woken();
    }

    // Ends the stream. Call publish() first. True: ring the reader's doorbell.
    [[nodiscard]] bool close() {
        ring_.header().closed.store(1, std::memory_order_seq_cst);
        return reader_to_be_woken();
    }

    // The number of free slots.
    std::uint64_t room() {
        refresh_tail();
        return ring_.count() - (head_ - tail_seen_);
    }
    bool has_room() { return room() != 0; }

    // Call only when everything is published and the ring is full. True: sleep until the doorbell, then call
    // cancel_sleep(). The doorbell comes when half of the ring is free, so that not every slot costs a wake-up. False:
    // there is room.
    [[nodiscard]] bool announce_sleep() {
        const std::uint64_t wake_at = head_ - ring_.count() / 2;
        ring_.header().writer_sleeps_until.store(wake_at, std::memory_order_seq_cst);
        refresh_tail();
        if (tail_seen_ < wake_at) return true;
        cancel_sleep();
        return false;
    }
    // relaxed: a doorbell that still comes is ignored.
    void cancel_sleep() { ring_.header().writer_sleeps_until.store(0, std::memory_order_relaxed); }

    // Visits the references that the reader has not consumed. Call after the reader's end.
    template <class Visit>
    std::uint64_t for_each_in_flight(Visit visit) {
        refresh_tail();
        for (std::uint64_t position = tail_seen_; position != head_; ++position) visit(ring_.slot(position));
        return head_ - tail_seen_;
    }

private:
    void refresh_tail() {
        const std::uint64_t tail = ring_.header().tail.load(std::memory_order_seq_cst);
        if (tail > published_ || head_ - tail > ring_.count()) throw RingDamaged();
        tail_seen_ = tail;
    }
    bool reader_to_be_woken() {
        auto &asleep = ring_.header().reader_asleep;
        // relaxed: the loser of the exchange just does not ring.
        return asleep.load(std::memory_order_seq_cst) != 0 && asleep.exchange(0, std::memory_order_relaxed) != 0;
    }

    RingView ring_;
    std::uint64_t head_ = 0, published_ = 0, tail_seen_ = 0;
};

// The reading side; for one thread.
class RingReader {
public:
    explicit RingReader(RingView ring) : ring_(ring) {}

    // Copies the oldest references without consuming them. Returns their number.
    std::size_t peek(std::span<std::uint64_t> references) {
        if (head_seen_ == tail_) refresh_head();
        const std::size_t count = std::min<std::uint64_t>(references.size(), head_seen_ - tail_);
        for (std::size_t i = 0; i < count; ++i) references[i] = ring_.slot(tail_ + i);
        return count;
    }

    // Consumes `count` peeked references. Call only after each of those blocks was taken or is known to be gone, for
    // the writer frees the blocks that it finds behind the tail of a dead reader. True: ring the writer's doorbell.
    [[nodiscard]] bool advance(std::size_t count) {
        tail_ += count;
        // The store is also the release that lets the writer use the slots again.
        ring_.header().tail.store(tail_, std::memory_order_seq_cst);
        auto &until = ring_.header().writer_sleeps_until;
        const std::uint64_t wake_at = until.load(std::memory_order_seq_cst);
        // relaxed: the loser of the exchange just does not ring.
        return wake_at != 0 && tail_ >= wake_at && until.exchange(0, std::memory_order_relaxed) != 0;
    }

    // True if there is a reference to peek at. For spinning.
    bool has_some() {
        refresh_head();
        return head_seen_ != tail_;
    }

    // True if the writer has closed the ring and all references are read. closed is read before head: a head seen after
    // closed is the final one.
    bool finished() { return ring_.header().closed.load(std::memory_order_seq_cst) != 0 && !has_some(); }

    // True: sleep until the doorbell, then call cancel_sleep(). False: there is something to do.
    [[nodiscard]] bool announce_sleep() {
        ring_.header().reader_asleep.store(1, std::memory_order_seq_cst);
        if (!has_some() && ring_.header().closed.load(std::memory_order_seq_cst) == 0) return true;
        cancel_sleep();
        return false;
    }
    // relaxed: a doorbell that still comes is ignored.
    void cancel_sleep() { ring_.header().reader_asleep.store(0, std::memory_order_relaxed); }

private:
    void refresh_head() {
        const std::uint64_t head = ring_.header().head.load(std::memory_order_seq_cst);
        if (head < tail_ || head - tail_ > ring_.count()) throw RingDamaged();
        head_seen_ = head;
    }

    RingView ring_;
    std::uint64_t tail_ = 0, head_seen_ = 0;
};

}  // namespace relay
