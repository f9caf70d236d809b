// Waiting for memory, after Johnson & Davis (Space Efficient Parallel Buddy Memory Management, 1992): a block that is
// released goes straight to a thread that waits for one of its size, not by way of the tree, where anybody might take
// it; a larger one is split for those who wait, the longest waiting first, and what nobody needs of it stays whole.
//
// A waiting thread says in a word of its slot (WaitWord) what it wants. Who releases picks a waiter, makes the block
// nobody's (kHandOffOwner: held, so that no search, no free and no recovery touches it), and writes into that word
// where it lies; the waiter makes it its own. Two CASes, and nobody waits for anybody but for memory:
//
//   who dies            what is there                          who gives it back
//   waiter, waiting     a wish                                 recovery of the waiter forgets it
//   giver, before       its block, or a block on its way that  recovery of the giver, whose intent names the block: it
//     it has told         nobody has been told of                looks whether anybody was told
//   waiter, when told   a block on its way, and its word       recovery of the waiter
//   waiter, has         a block of its                         as any other
//
// Nothing here sleeps: the caller does, on the low half of its word (a futex), and wakes whom serve() names.
#pragma once

#include <cstdint>

#include "numacre/shm/buddy.hpp"

namespace numacre {

// buddy_of(numa node): the Buddy of one of the pool's numa_nodes.
template <class Env, class BuddyOf>
class HandOff {
public:
    using Word = typename Env::template Atomic<std::uint64_t>;

    HandOff(const PoolView<Env> &pool, std::uint32_t numa_nodes, const BuddyOf &buddy_of)
        : pool_(pool), numa_nodes_(numa_nodes), buddy_of_(buddy_of) {}

    // --- who waits ---------------------------------------------------------------------------------------------------

    // Says what the thread waits for, for others to see. Look for memory once more afterwards; then sleep for as long
    // as the word is what this returns.
    WaitWord announce(Actor actor, Order order, NumaNode numa_node, bool that_node_only) {
        // relaxed: whoever is not sure of its place has none.
        const std::uint64_t ticket = pool_.header->wait_tickets.fetch_add(1, std::memory_order_relaxed);
        const WaitWord wish = WaitWord::waiting(order, numa_node, that_node_only, ticket);
        word_of(actor.thread).store(wish.bits(), std::memory_order_seq_cst);
        raise_flag();
        return wish;
    }
    // So that those who release look at who waits. EDGE announce-then-look (seq_cst RMW before the search for memory
    // that follows; partner: EDGE free-then-flag). Weakened: we see no free block, they see no flag, and we sleep
    // beside it.
    void raise_flag() { pool_.header->attention.fetch_or(Attention::kWaiters, std::memory_order_seq_cst); }

    // Waits no more. False: somebody was faster, the thread has been given a block: receive() it.
    bool withdraw(Actor actor, WaitWord wish) {
        std::uint64_t bits = wish.bits();
        return word_of(actor.thread).compare_exchange_strong(bits, 0, std::memory_order_acq_rel);
    }

    // The block that the thread has been given, now its. False: none (any more).
    bool receive(Actor actor, Note note, NumaNode &numa_node, Block &block) {
        Word &word = word_of(actor.thread);
        const WaitWord given{word.load(std::memory_order_acquire)};
        bool got = false;
        if (given.is_given() && given.numa_node().value < numa_nodes_) {
            numa_node = given.numa_node();
            got = buddy_of_(numa_node.value).receive(actor, given.base(), given.generation(), note, block);
        }
        // release: the block is ours before the word says nothing of it.
        word.store(0, std::memory_order_release);
        return got;
    }

    // --- who releases ------------------------------------------------------------------------------------------------

    // Gives the block, which actor.process owns, to whoever has waited longest for one that it serves. False: nothing
    // was done, for there is nobody, or that thread wants a smaller one, or the block is not ours: free it, then
    // serve(). Calls wake(ThreadSlotIndex) for the thread that has it. Dying inside: it is freed.
    template <class Wake>
    bool give(Actor actor, NumaNode numa_node, Block block, IndexEntry entry, Wake &&wake) {
        ThreadSlotIndex waiter;
        WaitWord wish;
        if (!find_oldest(numa_node, block.order, 0, waiter, wish) || wish.order() != block.order) return false;
        Buddy<Env> &buddy = buddy_of_(numa_node.value);
        if (!buddy.put_on_its_way(actor, block, entry)) return false;
        do {
            std::uint64_t bits = wish.bits();
            // EDGE give (release: with the block's entry; partner: the acquire load of receive() and of recovery).
            if (wish.order() == block.order &&
                word_of(waiter).compare_exchange_strong(
                    bits, WaitWord::given(numa_node, block.base, entry.generation()).bits(),
                    std::memory_order_acq_rel)) {
                Env::crash_point(CrashPoint::hand_off_after_give);
                buddy.has_been_given(actor, block);
                wake(waiter);
                return true;
            }
        } while (find_oldest(numa_node, block.order, wish.ticket() + 1, waiter, wish));
        // They have all gone: an undone split, as the paper calls it.
        (void)buddy.free_entry(actor, block, entry, true);
        return true;
    }

    // Gives what is free to those who wait, the longest waiting first: for whoever has released something else than
    // give() could. Bounded by the number of thread slots.
    template <class Wake>
    void serve(Actor actor, Wake &&wake) {
        // seq_cst: before the look at the words. Who announces itself after that look raises the flag after this.
        pool_.header->attention.fetch_and(~Attention::kWaiters, std::memory_order_seq_cst);
        bool unserved = false;
        std::uint64_t ticket = 0;
        ThreadSlotIndex waiter;
        WaitWord wish;
        const std::uint32_t threads = pool_.threads_in_use_bound();
        for (std::uint32_t round = 0; round < threads && find_oldest(wish_anywhere(), Order{kMaxOrder}, ticket, waiter, wish);
             ++round) {
            ticket = wish.ticket() + 1;
            if (!allocate_for(actor, wish, wake)) unserved = true;
        }
        if (unserved) raise_flag();
    }

private:
    static constexpr NumaNode wish_anywhere() { return NumaNode{kMaxNumaNodes}; }

    Word &word_of(ThreadSlotIndex thread) const { return pool_.threads[thread.value].waiting; }

    // Of those with a ticket of at least `from`, the longest waiting whom a block of this order on this numa node would
    // do. Some that are announced meanwhile are not seen.
    bool find_oldest(NumaNode numa_node, Order order, std::uint64_t from, ThreadSlotIndex &waiter,
                     WaitWord &wish) const {
        bool found = false;
        const std::uint32_t threads = pool_.threads_in_use_bound();
        for (std::uint32_t thread = 0; thread < threads; ++thread) {
            // seq_cst: after the flag was cleared.
            const WaitWord word{pool_.threads[thread].waiting.load(std::memory_order_seq_cst)};
            if (!word.is_waiting() || word.ticket() < from || word.order().value > order.value) continue;
            if (found && wish.ticket() <= word.ticket()) continue;
            if (numa_node.value != kMaxNumaNodes && word.that_node_only() && !(word.numa_node() == numa_node)) continue;
            found = true;
            waiter = ThreadSlotIndex{static_cast<std::uint16_t>(thread)};
            wish = word;
        }
        return found;
    }

    // A block from the tree for this wish, or for another that it fits. False: there is none.
    template <class Wake>
    bool allocate_for(Actor actor, WaitWord wish, Wake &wake) {
        const std::uint32_t first = wish.numa_node().value < numa_nodes_ ? wish.numa_node().value : 0;
        for (std::uint32_t step = 0; step < (wish.that_node_only() ? 1 : numa_nodes_); ++step) {
            const NumaNode numa_node{static_cast<std::uint8_t>((first + step) % numa_nodes_)};
            Buddy<Env> &buddy = buddy_of_(numa_node.value);
            Block block;
            if (buddy.allocate(actor, wish.order(), {}, block) != Errc::ok) continue;
            IndexEntry entry;
            if (buddy.find_entry(block.base, block, entry) != Errc::ok) return false;
            if (!give(actor, numa_node, block, entry, wake)) (void)buddy.free_entry(actor, block, entry, true);
            return true;
        }
        return false;
    }

    const PoolView<Env> &pool_;
    std::uint32_t numa_nodes_;
    const BuddyOf &buddy_of_;
};

}  // namespace numacre
