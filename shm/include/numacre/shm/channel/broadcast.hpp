// A broadcast: a channel of which each reader gets every message. It keeps the last bursts that were sent; a writer
// that finds it full overwrites the oldest one, and waits for nobody. A reader has a cursor of its own; a reader that
// is too slow is overtaken, and told by how many messages. A late reader may begin with the last N messages. Many
// threads write, many read; each of them may be stopped or killed at any instruction. FIFO for each writer.
//
//      writer                                        reader, for each burst that it comes to
//   B1 its segment: total, list of messages  stores  C1 claim: the cell's segment       store, barrier
//   B2 errand: send to this cell, as seen    stores  C2 the cell unchanged? else on, as after C3
//   B3 entries: the channel's                stores  C3 the claim of the burst before is gone: D2
//   B4 cell: this segment, next round       one CAS     reads the messages
//   B5 its segment: the cell's old one;
//      errand: retire                        stores
//   B6 nobody has claimed the old burst?
//        entries: the writer's; errand none  stores
//      else leave it to its readers: L1 to L7
//
// B4 decides that a burst has been sent and the oldest one overwritten: one locked instruction a burst, and none a
// message. C1 is the one of a reader: a claim holds all messages of a burst, whose blocks stay the channel's and stay
// where they are until the reader has claimed the next burst, or drops this one. Either the reader sees at C2 that the
// cell has changed, or the writer sees the claim at B6 (EDGE claim-then-look). A claim names a segment; one that is out
// of date keeps a burst back until its reader has looked, and no longer. The claim of a burst and not the hold of a
// block (../holds.hpp): a hold has a barrier a message, another one at its end, and needs a published block.
//
// The thread that retires a burst owns its blocks: the writer that overwrote it, or the last reader to drop it
// (broadcast_segments.hpp). They may keep a block, or free it. Nobody takes a message over that is still in the ring:
// others may come to it.
//
// The channel is an owner like a process, as in channel.hpp; only the thread whose errand or claim has a message writes
// its entry. broadcast_recovery.hpp says what becomes of a party that dies.
#pragma once

#include <atomic>
#include <cstdint>

#include "numacre/shm/channel/broadcast_segments.hpp"
#include "numacre/shm/channel/sleepers.hpp"

namespace numacre::engine {

// The ring of a broadcast. Each cell says by its round which position it has; the tail in memory is a hint, which may
// have any value.
template <class Env>
class BroadcastRing {
public:
    explicit BroadcastRing(const BroadcastView<Env> &view) : view_(view) {}

    struct Place {
        bool found = false;  // false: the words are not those of a ring
        RingPosition position = 0;
        BroadcastCell cell;       // the burst that is to be overwritten there
        std::uint64_t total = 0;  // messages sent before it
    };

    // The first position that nobody has sent to.
    Place find_tail() const {
        // relaxed: a hint. Only the cell before it says what has been sent.
        const RingPosition hint = view_.header->tail.load(std::memory_order_relaxed) - 1;
        BroadcastCell last = look(hint);
        RingPosition position = view_.position_of(hint, last);
        for (std::uint32_t looks = 0; looks < looks_most(); ++looks) {
            const BroadcastCell next = look(position + 1);
            if (next.round() + 1 == view_.round_of(position + 1)) {
                // EDGE list-then-cell (acquire; partner: B1 of a later burst): if this total is another burst's, the
                // look behind it finds the cell changed.
                const std::uint64_t total = view_.total(last.segment()).load(std::memory_order_acquire);
                const BroadcastCell again = look(position);
                if (again == last) return {true, position + 1, next, total};
                last = again;
                position = view_.position_of(position, last);
            } else if (next.round() >= view_.round_of(position + 1)) {  // sent meanwhile
                last = next;
                position = view_.position_of(position + 1, last);
            } else {
                break;
            }
        }
        return {};
    }

    BroadcastCell look(RingPosition position) const {
        // seq_cst: also the second look of a reader (C2), and of one that is going to sleep (Sleepers).
        return BroadcastCell{view_.cell(position).load(std::memory_order_seq_cst)};
    }

    // B4. EDGE send (acq_rel; partner: look()): who finds the burst in the cell finds its list and what the writer
    // wrote into the blocks; the writer finds the list of the burst that it overwrites. seq_cst: before the looks for
    // claims and for sleepers. False: the cell has changed.
    bool fill(const Place &at, std::uint32_t segment, unsigned count) const {
        std::uint64_t bits = at.cell.bits();
        const BroadcastCell filled{view_.round_of(at.position), segment, count};
        if (!view_.cell(at.position).compare_exchange_strong(bits, filled.bits(), std::memory_order_seq_cst))
            return false;
        // relaxed: a hint, as in Ring::pass().
        if (view_.header->tail.load(std::memory_order_relaxed) - at.position - 1 > view_.cell_count)
            view_.header->tail.store(at.position + 1, std::memory_order_relaxed);
        return true;
    }

    // Positions before this one have no burst, and never had.
    RingPosition begin() const { return view_.cell_count; }

private:
    // As in Ring: beyond this somebody scribbles.
    std::uint32_t looks_most() const { return 4 * view_.cell_count + 1024; }

    BroadcastView<Env> view_;
};

enum class ReadResult : std::uint8_t {
    read,
    nothing,    // the reader has seen all that was sent
    overtaken,  // writers were faster at each of several attempts: the reader's position is a new one
    scribbled,  // the channel's words are damaged
};

// Nodes: Buddy<Env> &at(numa node), std::uint32_t count().
template <class Env, class Nodes>
class Broadcast {
public:
    using Word = typename Env::template Atomic<std::uint64_t>;
    using Slot = BroadcastParty<Env>;

    // owner: the channel's process slot. One object serves one thread at a time; it has the reader's cursor.
    Broadcast(const BroadcastView<Env> &view, ProcessSlot owner, const Nodes &nodes)
        : view_(view), ring_(view), owner_(owner), segments_(view, owner, nodes) {}

    // Claims a party slot for a thread of `process`. 0: all are taken. If the caller dies, recovery gives the slot
    // back.
    std::uint32_t join(ProcessSlot process, std::uint64_t roles) const {
        for (std::uint32_t party = 1; party <= view_.shape.parties; ++party) {
            Word &owner = view_.party(party).owner;
            std::uint64_t nobody = 0;
            if (owner.load(std::memory_order_relaxed) != 0) continue;  // relaxed: the CAS decides
            // acq_rel: all writes of the slot's last user, or of its recovery, come before ours.
            if (!owner.compare_exchange_strong(nobody, PartyOwner{process, roles}.bits(), std::memory_order_acq_rel))
                continue;
            // relaxed: as in Channel::join().
            view_.header->roles_seen.fetch_or(roles, std::memory_order_relaxed);
            // EDGE claim-then-look (seq_cst): a writer that does not find the bit has overwritten before our first
            // claim.
            if ((roles & PartyOwner::kReceives) != 0)
                view_.header->readers.fetch_or(bit_of(party), std::memory_order_seq_cst);
            return party;
        }
        return 0;
    }
    // Gives the party slot up, and drops what the party reads: give as in drop().
    template <class Give>
    void leave(const Heir &self, const Give &give) {
        drop(self, give);
        // No order: without a claim nobody asks for the bit.
        view_.header->readers.fetch_and(~bit_of(self.party), std::memory_order_relaxed);
        view_.party(self.party).owner.store(0, std::memory_order_release);
    }

    // As Channel::have_all_gone().
    bool have_all_gone(std::uint64_t role) const {
        if ((view_.header->roles_seen.load(std::memory_order_acquire) & role) == 0) return false;
        for (std::uint32_t party = 1; party <= view_.shape.parties; ++party) {
            const PartyOwner owner{view_.party(party).owner.load(std::memory_order_acquire)};
            if (owner.in_use() && (owner.bits() & role) != 0) return false;
        }
        return true;
    }

    // Sends blocks of self.process that are not published, all or none: 1 to shape.burst. Never full.
    // give(NumaNode, Block): a block that was overwritten, and is self.process's now. refused: the first block that
    // cannot be sent. If the caller dies inside, all are sent, or all are freed.
    template <class Give>
    SendResult send(const Heir &self, const BlockPlace *places, unsigned count, const Give &give, unsigned &refused) {
        // relaxed: a send beside the end may be before it.
        if (view_.header->state.load(std::memory_order_relaxed) != 0) return SendResult::closed;
        Slot &slot = view_.party(self.party);
        const std::uint32_t segment = segments_.segment_of(slot);
        if (segment >= view_.segment_count) return SendResult::scribbled;
        const MessageBlocks<Env, Nodes> &blocks = segments_.blocks();
        Word *const list = view_.list(segment);
        const SendResult listed = blocks.write_list(list, self.process, places, count, refused);  // B1
        if (listed != SendResult::sent) return listed;
        // relaxed: recovery reads it after our death.
        slot.first.store(list[0].load(std::memory_order_relaxed), std::memory_order_relaxed);
        Place at = begin_send(slot, segment, count);
        if (!at.found) return SendResult::scribbled;
        for (unsigned moved = 0; moved < count; ++moved) {  // B3
            if (blocks.pass_listed(list[moved], self.process, owner_, self.since)) continue;
            refused = moved;
            undo(slot, list, moved, self);
            return SendResult::not_owned;
        }
        while (!ring_.fill(at, segment, count)) {  // B4
            // Another writer was faster.
            at = begin_send(slot, segment, count);
            if (at.found) continue;
            undo(slot, list, count, self);
            return SendResult::scribbled;
        }
        retire(slot, at, self, give);
        tally(slot.sent, count);
        return SendResult::sent;
    }

    // Sets the cursor: the reader gets all that is sent from here on, and before that up to `last` messages that are in
    // the ring. False: the words are damaged. For a reader that has claimed nothing.
    bool start(std::uint64_t last) {
        const Place tail = ring_.find_tail();
        if (!tail.found) return false;
        position_ = tail.position;
        passed_ = tail.total;
        skip_ = 0;
        std::uint64_t found = 0;
        while (found < last && position_ > ring_.begin()) {
            const BroadcastCell cell = ring_.look(position_ - 1);
            if (cell.round() != view_.round_of(position_ - 1)) break;  // overwritten meanwhile
            --position_;
            found += cell.count();
        }
        if (found > last) {
            skip_ = static_cast<unsigned>(found - last);
            found = last;
        }
        passed_ -= found;
        return true;
    }

    struct Read {
        ReadResult result = ReadResult::nothing;
        unsigned count = 0;
        std::uint64_t lost = 0;  // messages before these that were overwritten before the reader came to them
    };
    // Reads up to `most` messages, all of one burst: see(n, NumaNode, Block) tells of the n-th. Their blocks stay the
    // channel's, and stay readable, until this party reads on behind the burst, drops it or leaves: what it had read
    // before is dropped when it comes to another burst. give(NumaNode, Block): a block of those whose last reader it
    // was, after they were overwritten; it is self.process's now. Never waits. If the caller dies inside, or later, its
    // recovery drops what it has claimed.
    template <class See, class Give>
    Read read(const Heir &self, unsigned most, const See &see, const Give &give) {
        Read read;
        if (is_reading_ && skip_ < count_) return see_some(self, most, see, read);
        if (is_reading_) step();
        Slot &slot = view_.party(self.party);
        for (unsigned attempt = 0; attempt < kAttemptsMost; ++attempt) {
            const BroadcastCell cell = ring_.look(position_);
            if (cell.round() < view_.round_of(position_)) {
                drop(self, give);
                return read;
            }
            if (cell.round() == view_.round_of(position_)) {
                if (cell.count() <= skip_ || cell.count() > view_.shape.burst ||
                    cell.segment() >= view_.segment_count) {
                    drop(self, give);
                    return {ReadResult::scribbled, 0, 0};
                }
                if (claim(slot, cell, self, give)) {
                    count_ = cell.count();
                    // relaxed: the claimed segment is not written, and the look has acquired it.
                    const std::uint64_t first =
                        view_.total(cell.segment()).load(std::memory_order_relaxed) - count_ + skip_;
                    read.lost = first - passed_;
                    passed_ = first;
                    tally(slot.lost, read.lost);
                    return see_some(self, most, see, read);
                }
            }
            // Overtaken: to the oldest burst of all, and if writers are faster again, some bursts away from it.
            if (!jump(attempt)) {
                drop(self, give);
                return {ReadResult::scribbled, 0, 0};
            }
        }
        drop(self, give);
        return {ReadResult::overtaken, 0, 0};
    }

    // Ends the claim of what the party has read. Messages of the burst that it has not seen yet it sees when it reads
    // on, unless they are overwritten before. give as in read().
    template <class Give>
    void drop(const Heir &self, const Give &give) {
        if (is_reading_ && skip_ == count_) step();
        is_reading_ = false;
        if (!has_claim_) return;
        has_claim_ = false;
        // EDGE drop-then-look (seq_cst; partners: EDGE linger-then-look, and this store of another reader). Also
        // release: what we have read was read before.
        view_.party(self.party).claim.store(0, std::memory_order_seq_cst);
        segments_.look_after(claimed_, self, give);
    }

    // Nobody sends any more from here on.
    void close() const { view_.header->state.store(1, std::memory_order_seq_cst); }
    bool is_closed() const { return view_.header->state.load(std::memory_order_seq_cst) != 0; }
    // Whether a read would find something.
    bool has_messages() const {
        const RingPosition next = is_reading_ && skip_ == count_ ? position_ + 1 : position_;
        return ring_.look(next).round() >= view_.round_of(next);
    }
    // Messages sent before the reader's next one: those that it has read, that it has lost, and that were sent before
    // it came.
    std::uint64_t passed() const { return passed_; }

    // Messages that it keeps, as seen at about this moment.
    std::uint32_t fill() const {
        std::uint32_t messages = 0;
        for (std::uint32_t cell = 0; cell < view_.cell_count; ++cell) {
            // relaxed: a figure.
            const unsigned count = BroadcastCell{view_.cells[cell].load(std::memory_order_relaxed)}.count();
            messages += count < view_.shape.burst ? count : view_.shape.burst;
        }
        return messages;
    }
    // Makes all blocks that it keeps heir.process's, before its memory becomes something else. Nobody has it open.
    template <class Give>
    void give_all(const Heir &heir, const Give &give) const {
        for (std::uint32_t cell = 0; cell < view_.cell_count; ++cell) {
            const BroadcastCell last = ring_.look(cell);
            segments_.give_blocks(last.segment(), last.count(), heir, give);
        }
    }

    const BroadcastView<Env> &view() const { return view_; }

private:
    using Place = typename BroadcastRing<Env>::Place;

    static std::uint64_t bit_of(std::uint32_t party) { return std::uint64_t{1} << (party - 1); }

    // B2, after the total. at: where the burst goes.
    Place begin_send(Slot &slot, std::uint32_t segment, unsigned count) const {
        const Place at = ring_.find_tail();
        if (!at.found || at.cell.count() > view_.shape.burst || at.cell.segment() >= view_.segment_count) return {};
        // EDGE list-then-cell (release): who reads this finds that the segment is in its old cell no more.
        view_.total(segment).store(at.total + count, std::memory_order_release);
        // release: a recovery that reads another errand's cell here finds that errand done.
        slot.seen.store(at.cell.bits(), std::memory_order_release);
        // EDGE errand-before-change (release; partner: the acquire loads in recovery): the entries and the cell change
        // later.
        slot.errand.store(WriterErrand{WriterErrandKind::send, count, at.position}.bits(), std::memory_order_release);
        return at;
    }
    // Gives the first `moved` messages back to the process. release: recovery frees what it finds of them from here on.
    void undo(Slot &slot, const Word *list, unsigned moved, const Heir &self) const {
        // relaxed: our own word.
        const WriterErrand errand{slot.errand.load(std::memory_order_relaxed)};
        slot.errand.store(errand.as(WriterErrandKind::undo).bits(), std::memory_order_release);
        Message ours;
        while (moved-- > 0)
            (void)segments_.blocks().move(Message{list[moved].load(std::memory_order_relaxed)}, owner_, self.process,
                                          self.since, ours);
        segments_.end(slot);
    }
    // B5 and B6.
    template <class Give>
    void retire(Slot &slot, const Place &at, const Heir &self, const Give &give) const {
        // release, both: if we die in between, the segment says that the burst has been sent.
        slot.segment.store(at.cell.segment(), std::memory_order_release);
        const WriterErrand errand{WriterErrandKind::retire, at.cell.count(), at.position - view_.cell_count};
        slot.errand.store(errand.bits(), std::memory_order_release);
        segments_.retire(errand, self, give);
    }

    // C1 to C3. False: the cell has changed, and nothing may be read.
    template <class Give>
    bool claim(Slot &slot, BroadcastCell cell, const Heir &self, const Give &give) {
        // EDGE claim-then-look (seq_cst; partner: EDGE overwrite-then-look). The store is also the drop of the claim
        // before: EDGE drop-then-look.
        slot.claim.store(ReaderClaim::of(cell.segment()).bits(), std::memory_order_seq_cst);
        is_reading_ = ring_.look(position_) == cell;
        if (has_claim_ && claimed_ != cell.segment()) segments_.look_after(claimed_, self, give);
        has_claim_ = true;
        claimed_ = cell.segment();
        return is_reading_;
    }

    template <class See>
    Read see_some(const Heir &self, unsigned most, const See &see, Read read) {
        const unsigned left = count_ - skip_;
        const unsigned seen = left < most ? left : most;
        const Word *const list = view_.list(claimed_);
        for (unsigned next = 0; next < seen; ++next) {
            // relaxed: as the total.
            const Message message{list[skip_ + next].load(std::memory_order_relaxed)};
            // The blocks of a claimed burst are the channel's, unless somebody has scribbled.
            if (!segments_.blocks().is_owned(message, owner_)) continue;
            see(read.count++, message.numa_node(), message.block());
        }
        read.result = read.count != 0 ? ReadResult::read : ReadResult::scribbled;
        skip_ += seen;
        passed_ += seen;
        tally(view_.party(self.party).read, read.count);
        return read;
    }
    // To the next burst.
    void step() {
        ++position_;
        skip_ = 0;
        is_reading_ = false;
    }
    // False: the words are damaged.
    bool jump(unsigned attempt) {
        const Place tail = ring_.find_tail();
        if (!tail.found) return false;
        const std::uint64_t ahead = attempt == 0 ? 0 : std::uint64_t{1} << (attempt - 1);
        const RingPosition oldest = tail.position - view_.cell_count + ahead;
        const RingPosition next = oldest < tail.position ? oldest : tail.position - 1;
        if (next <= position_) return true;  // it has only begun to be overwritten
        position_ = next;
        skip_ = 0;
        return true;
    }
    // Only the party writes it.
    static void tally(Word &word, std::uint64_t more) {
        word.store(word.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
    }

    // The last ones look at the newest burst.
    static constexpr unsigned kAttemptsMost = 16;
    static_assert(kChannelCapacityMost <= 1U << (kAttemptsMost - 3));

    BroadcastView<Env> view_;
    BroadcastRing<Env> ring_;
    ProcessSlot owner_;
    BroadcastSegments<Env, Nodes> segments_;
    // The cursor.
    RingPosition position_ = 0;
    unsigned skip_ = 0;          // messages of the burst at the position that the reader has seen, or passes over
    unsigned count_ = 0;         // of the burst that is being read
    std::uint64_t passed_ = 0;   // messages sent before the next one
    bool is_reading_ = false;    // the claim is good, and for the burst at the position
    bool has_claim_ = false;     // our claim stands, good or not
    std::uint32_t claimed_ = 0;  // its segment
};

}  // namespace numacre::engine
