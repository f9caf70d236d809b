// The ring of a channel: where it ends and where it begins. No word says so. A cell says by its round and its state
// whether the positions that it stands for have been sent and received, and the head and tail in memory are hints,
// which may have any value. So a party that dies or stops anywhere leaves nothing half done.
#pragma once

#include <atomic>
#include <cstdint>

#include "numacre/shm/channel/layout.hpp"

namespace numacre::engine {

template <class Env>
class Ring {
public:
    using Word = typename Env::template Atomic<std::uint64_t>;

    explicit Ring(const RingView<Env> &view) : view_(view) {}

    enum class Found : std::uint8_t {
        here,       // the cell at the position, as it was
        nothing,    // tail: all cells are full. head: nothing has been sent that has not been received
        scribbled,  // the words are not those of a ring
    };
    struct Place {
        Found found = Found::scribbled;
        RingPosition position = 0;
        CellWord cell;
        std::uint32_t sent = 0;  // of a tail: messages sent before it
    };

    // The first position that nobody has sent to. The cell is empty, and waits for this round.
    Place find_tail() const {
        // relaxed: a hint. Only the cell before it says what has been sent.
        RingPosition position = view_.tail->load(std::memory_order_relaxed) - 1;
        CellWord last = look(position);
        for (std::uint32_t looks = 0; looks < looks_most(); ++looks) {
            position = behind(position, last, last.is_full() ? 0 : 1);
            const CellWord cell = look(position);
            const std::int64_t ahead = cell.ahead_of(view_.round_of(position));
            if (ahead == 0 && !cell.is_full()) return {Found::here, position, cell, last.total()};
            if (ahead == -1 && cell.is_full()) return {Found::nothing, position, cell, last.total()};
            last = cell;  // sent meanwhile
        }
        return {};
    }

    // The first position whose burst has not been received whole. The cell is full.
    Place find_head() const {
        // relaxed: a hint. Only the cell before it says what has been received.
        RingPosition position = view_.head->load(std::memory_order_relaxed) - 1;
        CellWord last = look(position);
        for (std::uint32_t looks = 0; looks < looks_most(); ++looks) {
            position = behind(position, last, 1);
            const CellWord cell = look(position);
            if (cell.ahead_of(view_.round_of(position)) == 0)
                return {cell.is_full() ? Found::here : Found::nothing, position, cell};
            last = cell;  // received meanwhile
        }
        return {};
    }

    // Whether the cell is as it was when the place was found.
    bool is_unchanged(const Place &at) const { return look(at.position) == at.cell; }

    // EDGE send (acq_rel; partner: EDGE receive, look()): who finds the cell full finds the messages and all that the
    // sender wrote into the blocks before. seq_cst: before the look for sleepers (Sleepers). False: the cell has
    // changed.
    bool fill(const Place &at, CellWord filled) const {
        std::uint64_t bits = at.cell.bits();
        if (!view_.cell(at.position).compare_exchange_strong(bits, filled.bits(), std::memory_order_seq_cst))
            return false;
        pass(*view_.tail, at.position + 1);
        return true;
    }
    // EDGE receive (release: the messages have been read before, and the segment may be written again from here on;
    // acquire: EDGE send). False: the cell has changed, and what was read may be another burst's.
    bool take(const Place &at, CellWord rest) const {
        std::uint64_t bits = at.cell.bits();
        if (!view_.cell(at.position).compare_exchange_strong(bits, rest.bits(), std::memory_order_seq_cst))
            return false;
        if (!rest.is_full()) pass(*view_.head, at.position + 1);
        return true;
    }

    const RingView<Env> &view() const { return view_; }

private:
    // Each look that is not the last finds a cell that others have passed since the look before. Beyond this somebody
    // scribbles.
    std::uint32_t looks_most() const { return 4 * view_.cell_count + 1024; }

    // The position behind the one of this cell that is as many rounds ago as `rounds`, by the cell's own word.
    RingPosition behind(RingPosition position, CellWord cell, std::int64_t rounds) const {
        const std::int64_t ahead = cell.ahead_of(view_.round_of(position)) - rounds;
        return position + static_cast<std::uint64_t>(ahead) * view_.cell_count + 1;
    }

    CellWord look(RingPosition position) const {
        // seq_cst: also the look of a party that has said that it is going to sleep (Sleepers).
        return CellWord{view_.cell(position).load(std::memory_order_seq_cst)};
    }
    // relaxed: a hint, which may have any value: a thread that is stopped between the two accesses stores a position of
    // long ago. The way from there is as short as from any other: a cell says which rounds it has been through.
    void pass(Word &hint, RingPosition position) const {
        // Not over one that is ahead: it is newer, unless it is so by more than the whole ring.
        if (hint.load(std::memory_order_relaxed) - position > view_.cell_count)
            hint.store(position, std::memory_order_relaxed);
    }

    RingView<Env> view_;
};

}  // namespace numacre::engine
