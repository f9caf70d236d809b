// Reading together: threads of several processes hold one block, so that it is not freed under them. There is no
// counter, which a death would leave in doubt: each thread writes down what it holds (HoldWord), as with hazard
// pointers, and whoever frees a block that was ever held looks at the words of all threads.
//
//   hold                                 free of a lent block                 drop
//   entry named so?                      intent = free                        word = dropping      store, barrier
//   word = holds; bit    store, barrier  entry: lent -> lingering     CAS     entry lingering?
//   entry still so?                      nobody holds it?                       nobody holds it?
//     owned -> lent      CAS (the first)   lingering -> freeing       CAS         lingering -> freeing  CAS
//   else drop                              and so on, as any free                 and so on, as any free
//                                        else leave it                        bit = 0
//
// Three pairs of a store and a later load of the other side's word decide: either a holder sees that the entry has
// changed, or the look for holders sees its word; either a thread that drops sees that the block lingers, or the look
// sees that the word holds no more; and of two threads that drop, one sees the other. So a lingering block that nobody
// holds is seen by somebody, and one CAS decides who frees it. A look may see more holders than there are, never fewer:
// each of them looks in its turn.
//
// A death at any point: a word whose bit is set stands until recovery drops it, by the same steps; the intent of a
// thread that was freeing makes recovery look. Any thread that finds a lingering block that nobody holds may free it,
// however it came to that, so all of this may be done again.
#pragma once

#include <bit>
#include <cstdint>

#include "numacre/shm/layout.hpp"

namespace numacre::engine {

// The place of a word of the thread that holds the block which begins there; kHoldsMax: the thread holds no such block.
// For the thread itself.
template <class Env>
unsigned find_hold(const ThreadSlot<Env> &slot, const HoldWords<Env> &words, NumaNode numa_node, FrameIndex base) {
    const HoldWord there = HoldWord::holds(numa_node, Block{base, Order{0}});
    // relaxed, both: only the thread itself writes them.
    // From the end: of many holds the last ones are there, and are often the first to go.
    for (std::uint64_t left = slot.holds.load(std::memory_order_relaxed); left != 0;) {
        const auto place = static_cast<unsigned>(std::bit_width(left)) - 1;
        left ^= std::uint64_t{1} << place;
        if (HoldWord{words.word[place].load(std::memory_order_relaxed)}.holds_at(there)) return place;
    }
    return kHoldsMax;
}

// Whether a thread, perhaps a dead one, holds the block. No hold of it can begin now: its entry has been changed, or is
// not published. Costs a load for each thread slot that was ever used.
template <class Env>
bool has_readers(const PoolView<Env> &pool, NumaNode numa_node, Block block) {
    const std::uint64_t wanted = HoldWord::holds(numa_node, block).bits();
    // EDGE look-for-holds (seq_cst, all three, after the CAS on the entry; partners: EDGE hold-then-look,
    // drop-then-look). Also acquire: who has dropped the block has read it before. Weakened: a block is freed under a
    // thread that holds it, or the last drop and the free leave it to each other.
    const std::uint64_t mark = pool.header->thread_high_water.load(std::memory_order_seq_cst);
    const std::uint64_t threads = mark < pool.thread_slots ? mark : pool.thread_slots;
    for (std::uint64_t thread = kDaemonThread.value + 1U; thread < threads; ++thread)  // the daemon holds nothing
        for (std::uint64_t left = pool.threads[thread].holds.load(std::memory_order_seq_cst); left != 0;
             left &= left - 1)
            if (pool.holds[thread].word[static_cast<unsigned>(std::countr_zero(left))].load(
                    std::memory_order_seq_cst) == wanted)
                return true;
    return false;
}

}  // namespace numacre::engine
