// The ring of a channel: where it ends and where it begins. No word says so. A cell says by its round and its state
// whether the positions that it stands for have been sent and received, and the head and tail in memory are hints: they
// name positions that were passed once. So a party that dies or stops anywhere leaves nothing half done.
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
    };

    // The first position that nobody has sent to. The cell is empty, and waits for this round.
    Place find_tail() const {
        RingPosition position = view_.tail->load(std::memory_order_relaxed);  // relaxed: a hint
        for (std::uint32_t looks = 0; looks < looks_most(); ++looks) {
            const CellWord cell = look(position);
            const std::int64_t ahead = cell.ahead_of(view_.round_of(position));
            if (cell.is_full()) {
                if (ahead < 0) return {Found::nothing, position, cell};
                position += static_cast<std::uint64_t>(ahead) * view_.cell_count + 1;
            } else {
                if (ahead < 0) return {};
                if (ahead == 0) return {Found::here, position, cell};
                position += static_cast<std::uint64_t>(ahead - 1) * view_.cell_count + 1;
            }
        }
        return {};
    }

    // The first position whose burst has not been received whole. The cell is full.
    Place find_head() const {
        RingPosition position = view_.head->load(std::memory_order_relaxed);  // relaxed: a hint
        for (std::uint32_t looks = 0; looks < looks_most(); ++looks) {
            const CellWord cell = look(position);
            const std::int64_t ahead = cell.ahead_of(view_.round_of(position));
            if (ahead < 0) return {};
            if (ahead == 0) return {cell.is_full() ? Found::here : Found::nothing, position, cell};
            position += static_cast<std::uint64_t>(ahead - 1) * view_.cell_count + 1;
        }
        return {};
    }

    // Messages that had been sent before the tail at `position` was found.
    std::uint32_t sent_before(RingPosition position) const { return position == 0 ? 0 : look(position - 1).total(); }

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
    // The way from any hint to the end, if others send and receive meanwhile; beyond it somebody scribbles. Each look
    // that is not the last finds a cell that others have passed since.
    std::uint32_t looks_most() const { return 4 * view_.cell_count + 64; }

    CellWord look(RingPosition position) const {
        // seq_cst: also the look of a party that has said that it is going to sleep (Sleepers).
        return CellWord{view_.cell(position).load(std::memory_order_seq_cst)};
    }
    // relaxed: a hint. An older position is never stored over a newer one but by a thread that was stopped in between,
    // and then the way from there is short: each look at a cell leads past all rounds that it has been through.
    static void pass(Word &hint, RingPosition position) {
        if (hint.load(std::memory_order_relaxed) < position) hint.store(position, std::memory_order_relaxed);
    }

    RingView<Env> view_;
};

}  // namespace numacre::engine
