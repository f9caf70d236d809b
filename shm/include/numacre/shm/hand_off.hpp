// Waiting for memory, after Johnson & Davis (Space Efficient Parallel Buddy Memory Management, 1992). A block that is
// released goes straight to a thread that waits for a block of its size, not by way of the tree, where any thread might
// take it. A larger block is split for waiting threads, the longest waiting first; the rest of the block stays whole.
//
// A waiting thread says in a word of its slot (WaitWord) what it wants. A thread that releases a block picks a waiter,
// makes the block nobody's (kHandOffOwner: held, so that no search, no free and no recovery touches it), and writes
// into the waiter's word where the block lies. The waiter makes the block its own. These are two CASes, and no thread
// waits for another thread:
//
//   thread that dies    what is there                          who gives it back
//   waiter, waiting     a wish                                 recovery of the waiter forgets it
//   giver, before       its block, or a block on its way that  recovery of the giver, whose intent names the block: it
//     it has told         nobody has been told of                looks whether anybody was told
//   waiter, when told   a block on its way, and its word       recovery of the waiter
//   waiter, has         a block of its                         as any other
//
// Nothing here sleeps. The caller sleeps on the low half of its word (a futex), and wakes the threads that it is told
// to wake. (tests/model runs this file, deaths included.)
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <utility>

#include "numacre/shm/account.hpp"
#include "numacre/shm/buddy.hpp"

namespace numacre::engine {

// For pools in which nobody counts.
struct NoLimits {
    struct Charge {};
    std::optional<Charge> charge(ThreadSlotIndex, std::uint64_t) const { return Charge{}; }
    void uncharge(const Charge &, std::uint64_t) const {}
    void freed(std::uint32_t, Block) const {}
    bool has_taken_back() const { return false; }
};

// Nodes: Buddy<Env> &at(numa node), std::uint32_t count(), std::uint32_t nearest(numa node, rank): by distance.
// Limits: charge(thread, frames) counts the frames as on their way to the thread's process (OnTheWay) if the process
// may hold them; nullopt: it may not. uncharge() takes that back. freed(numa node, block): the block is in the tree
// again, and its last holder still counts it. has_taken_back(): whether a charge was made and taken back since the last
// such question. A block is counted for its receiver before its giver counts it no more, so that in between nobody is
// granted memory that is not there. The receiver counts the block as held before its word is empty.
template <class Env, class Nodes, class Limits = NoLimits>
class HandOff {
public:
    using Word = typename Env::template Atomic<std::uint64_t>;

    HandOff(const PoolView<Env> &pool, const Nodes &nodes, const Limits &limits = {})
        : pool_(pool), nodes_(nodes), limits_(limits) {}

    // --- the thread that waits ---------------------------------------------------------------------------------------

    // Says what the thread waits for. Afterwards the thread calls serve(), because there may be memory; sleeps for as
    // long as the word is the one that this call has returned; calls receive() if the word says so; and calls serve()
    // again as long as it waits, nudged or not (has_ended()). At the end, however the wait ends, the thread calls
    // serve() once more if the flag is up: a nudge was for other waiters, too. nodes: bit n is set if numa node n would
    // do.
    WaitWord announce(Actor actor, Order order, NumaNode numa_node, std::uint64_t nodes) {
        // relaxed: only a number.
        const std::uint64_t ticket = pool_.header->wait_tickets.fetch_add(1, std::memory_order_relaxed);
        const WaitWord wish = WaitWord::waiting(order, numa_node, ticket);
        // relaxed: stored before the wish. A giver that reads the nodes of another wish does not find that wish any
        // more.
        pool_.threads[actor.thread.value].nodes.store(nodes, std::memory_order_relaxed);
        // EDGE announce-then-flag (seq_cst; partner: serve(), which clears the flag before it looks at the words).
        word_of(actor.thread).store(wish.bits(), std::memory_order_seq_cst);
        raise_flag();
        return wish;
    }
    // Makes threads that release blocks look for waiters.
    void raise_flag() {
        // EDGE flag-then-look (seq_cst RMW before the search for memory that follows; partner: the load of the flag
        // after a free's RMW). Weakened: the waiter sees no free block, the releaser sees no flag, and the waiter
        // sleeps beside the block.
        pool_.header->attention.fetch_or(Attention::kWaiters, std::memory_order_seq_cst);
    }

    // Ends the wait. False: another thread was faster, and has given this thread a block: receive() it.
    bool withdraw(Actor actor) {
        Word &word = word_of(actor.thread);
        std::uint64_t bits = word.load(std::memory_order_acquire);
        // Only the daemon changes a wish, once, by a nudge. The bound is for clients that scribble.
        for (unsigned rounds = 0; WaitWord{bits}.is_waiting() && rounds < kCasRoundsMax; ++rounds)
            if (word.compare_exchange_weak(bits, 0, std::memory_order_acq_rel)) return true;
        return !WaitWord{bits}.is_given();
    }
    // Takes note of the daemon's nudge. Returns the word as it is now, which may be nudged again.
    WaitWord calm(Actor actor, WaitWord wish) {
        std::uint64_t bits = wish.nudged().bits();
        (void)word_of(actor.thread).compare_exchange_strong(bits, wish.bits(), std::memory_order_acq_rel);
        return look(actor);
    }
    // Whether the word, which is `now`, no longer waits for this wish.
    static bool has_ended(WaitWord wish, WaitWord now) { return now.not_nudged() != wish; }
    WaitWord look(Actor actor) const { return WaitWord{word_of(actor.thread).load(std::memory_order_acquire)}; }

    // Takes the block that the thread has been given; the thread waits no more. False: there is none. A word that still
    // waits is left as it is, because another thread may be giving this thread a block at this moment.
    bool receive(Actor actor, Note note, std::uint32_t &numa_node, Block &block) {
        const WaitWord given = look(actor);
        if (!given.is_given()) return false;
        bool got = false;
        if (given.numa_node().value < nodes_.count()) {
            numa_node = given.numa_node().value;
            got = nodes_.at(numa_node).receive(actor, given.base(), given.generation(), note, block);
        }
        // release: the block is this thread's before the word forgets it. By CAS: only the word that was read.
        std::uint64_t bits = given.bits();
        (void)word_of(actor.thread)
            .compare_exchange_strong(bits, 0, std::memory_order_release, std::memory_order_relaxed);
        return got;
    }

    // --- the thread that releases ------------------------------------------------------------------------------------

    enum class Given : std::uint8_t {
        no,           // nothing was done: there is no waiter, or the oldest one wants a smaller block, or the block is
                      // not the caller's, or its chunk is draining. The caller frees the block
        yes,          // a waiter has the block
        undone,       // the waiter has gone: the block is free
        not_allowed,  // nothing was done: no waiter may hold the block
    };

    // Gives the held block of this entry to the oldest waiter that it serves and that may hold it. If no waiter has the
    // block in the end, the caller calls serve(). Calls wake(ThreadSlotIndex). If the caller dies inside, the block is
    // freed or the waiter's.
    template <class Wake>
    Given give(Actor actor, std::uint32_t numa_node, Block block, IndexEntry entry, Wake &&wake) {
        Charged nobody;
        return give(actor, numa_node, block, entry, nobody, wake);
    }

    // Gives what is free to those who wait, the longest waiting first. For a thread that has released something in
    // another way than give(), or has taken a charge back, and for one that begins to wait.
    template <class Wake>
    void serve(Actor actor, Wake &&wake) {
        Exhausted exhausted;
        bool has_looked_anew = false;
        for (unsigned round = 0; round < kRounds; ++round) {
            const Served served = serve_all(actor, exhausted, wake);
            if (served == Served::look_again) {
                exhausted = {};
                continue;
            }
            // A charge of this thread that stood for a moment may have refused another server, which has left its
            // waiter to sleep beside a free block. The last server that takes a charge back meets no other charge. The
            // first time it looks for everything anew: a block that the refused server has freed lies in the tree
            // since.
            if (limits_.has_taken_back()) {
                if (!has_looked_anew) exhausted = {};
                has_looked_anew = true;
                continue;
            }
            // The flag stays up as long as somebody is left: a thread that releases after our look for memory sees it.
            if (served == Served::not_all) return;
            // seq_cst: before the look at the words. A thread that announces itself later raises the flag later.
            pool_.header->attention.fetch_and(~Attention::kWaiters, std::memory_order_seq_cst);
            exhausted = {};
            ThreadSlotIndex waiter;
            WaitWord wish;
            if (!find_oldest(kAnyNode, {}, Order{kMaxOrder}, 0, waiter, wish)) return;
            // The waiter has announced itself and looked for memory while the flag was down for a moment: a thread that
            // released some then has not seen the flag. Look for the waiter.
            raise_flag();
        }
    }

    // Whether give() has charged a waiter and taken that back: then serve() afterwards.
    bool has_taken_back() const { return limits_.has_taken_back(); }

private:
    static constexpr std::uint64_t kAnyNode = ~std::uint64_t{0};
    // Other threads made progress in each round. After that waiting threads look for themselves, a second later.
    static constexpr unsigned kRounds = 8;

    enum class Served : std::uint8_t { all, not_all, look_again };
    static constexpr ThreadSlotIndex kNobody = kDaemonThread;

    // The wish for which a block has been counted. The charge is not for a later wish of the same thread: a wish may be
    // taken back, and the frames on the way forgotten, before this thread looks again.
    struct Charged {
        ThreadSlotIndex waiter = kNobody;
        WaitWord wish;
        typename Limits::Charge charge{};
        bool is_for(ThreadSlotIndex other, WaitWord its_wish) const {
            return waiter == other && wish.not_nudged() == its_wish.not_nudged();
        }
    };
    void uncharge(Charged &charged, std::uint64_t frames) {
        if (charged.waiter == kNobody) return;
        limits_.uncharge(charged.charge, frames);
        charged = {};
    }

    // before: the wish for which the block has been counted already. The count is taken back if another wish gets it.
    template <class Wake>
    Given give(Actor actor, std::uint32_t numa_node, Block block, IndexEntry entry, Charged &before, Wake &&wake) {
        ThreadSlotIndex waiter;
        WaitWord wish;
        const std::uint64_t here = std::uint64_t{1} << numa_node;
        // A block that was taken from the tree for a wish is not for older ones: these have been passed over already,
        // because their processes may not hold more.
        const std::uint64_t from = before.waiter == kNobody ? 0 : before.wish.ticket();
        if (!find_oldest(here, {}, block.order, from, waiter, wish) || wish.order() != block.order) return Given::no;
        Buddy<Env> &buddy = nodes_.at(numa_node);
        // Otherwise blocks of a chunk that is to become empty would be handed on for as long as threads wait. A block
        // that is on its way when the drain begins still arrives.
        if (buddy.is_draining(block)) return Given::no;
        const std::uint64_t frames = block.order.frames();
        // Each thread is looked at once: a client may scribble wishes for ever.
        std::uint32_t looks = pool_.threads_in_use_bound();
        const auto next = [&] {
            return looks-- > 0 && find_oldest(here, {}, block.order, wish.ticket() + 1, waiter, wish);
        };
        Charged charged;
        const auto may_have = [&] {
            if (wish.order() != block.order) return false;
            if (before.is_for(waiter, wish)) {
                charged = std::exchange(before, {});
                return true;
            }
            const auto charge = limits_.charge(waiter, frames);
            if (charge) charged = {waiter, wish, *charge};
            return charge.has_value();
        };
        while (!may_have())
            if (!next()) return Given::not_allowed;
        const bool tally = entry.is_owned();
        if (!buddy.put_on_its_way(actor, block, entry)) {
            uncharge(charged, frames);
            return Given::no;
        }
        const WaitWord gift =
            WaitWord::given(NumaNode{static_cast<std::uint8_t>(numa_node)}, block.base, entry.generation());
        bool is_for_somebody = true;
        while (is_for_somebody && !tell(waiter, wish, gift)) {
            uncharge(charged, frames);
            do is_for_somebody = next();
            while (is_for_somebody && !may_have());
        }
        if (!is_for_somebody) {
            (void)buddy.free_entry(actor, block, entry, tally);  // the paper's undone split
            limits_.freed(numa_node, block);
            return Given::undone;
        }
        buddy.has_been_given(actor, block, tally);
        uncharge(before, frames);
        wake(waiter);
        return Given::yes;
    }

    // The orders of which nothing is free, by numa node: found out once for all waiters, who may be many. A thread that
    // releases something after that look sees the flag, which is up.
    class Exhausted {
    public:
        void add(Order order, std::uint32_t numa_node) {
            for (unsigned larger = order.value; larger <= kMaxOrder; ++larger)
                nodes_[larger] |= std::uint64_t{1} << numa_node;
        }
        std::uint64_t nodes(Order order) const { return nodes_[order.value]; }

    private:
        std::array<std::uint64_t, kMaxOrder + 1> nodes_{};
    };

    Word &word_of(ThreadSlotIndex thread) const { return pool_.threads[thread.value].waiting; }

    // The oldest waiter with order <= `order` and ticket >= `from` that accepts one of `nodes`. Skips waiters whose
    // acceptable nodes are all exhausted, and wishes that a thread has left behind in a slot that is no thread's now:
    // nobody would receive the block.
    bool find_oldest(std::uint64_t nodes, const Exhausted &exhausted, Order order, std::uint64_t from,
                     ThreadSlotIndex &waiter, WaitWord &wish) const {
        bool found = false;
        const std::uint32_t threads = pool_.threads_in_use_bound();
        for (std::uint32_t thread = kDaemonThread.value + 1U; thread < threads; ++thread) {  // the daemon never waits
            // seq_cst: after the flag was cleared.
            const WaitWord word{pool_.threads[thread].waiting.load(std::memory_order_seq_cst)};
            if (!word.is_waiting() || word.ticket() < from || word.order().value > order.value ||
                (found && wish.ticket() <= word.ticket()))
                continue;
            // relaxed: a thread has its slot before it wishes, and the wish was read first. A slot that is given back
            // after this look belongs to a thread that broke its wait off. Recovery of a dead process takes the wish
            // back before it gives up the slot.
            if (!ThreadOwner{pool_.threads[thread].owner.load(std::memory_order_relaxed)}.in_use()) continue;
            const ThreadSlotIndex candidate{static_cast<std::uint16_t>(thread)};
            if ((nodes_for(candidate) & nodes & ~exhausted.nodes(word.order())) == 0) continue;
            found = true;
            waiter = candidate;
            wish = word;
        }
        return found;
    }

    // False: the waiter does not wait any more, or another giver was faster.
    bool tell(ThreadSlotIndex waiter, WaitWord wish, WaitWord gift) {
        std::uint64_t bits = wish.bits();
        // EDGE give (release; partners: the acquire loads in receive() and recovery): the entry first.
        for (unsigned rounds = 0; rounds < kCasRoundsMax; ++rounds) {
            if (word_of(waiter).compare_exchange_weak(bits, gift.bits(), std::memory_order_acq_rel)) return true;
            if (WaitWord{bits}.not_nudged() != wish.not_nudged()) return false;
        }
        return false;  // nudged a million times: a client scribbles
    }

    // Serves each waiter once. Costs a look at all words for each waiter that is given something, and for each order
    // that is exhausted.
    template <class Wake>
    Served serve_all(Actor actor, Exhausted &exhausted, Wake &wake) {
        Served served = Served::all;
        std::uint64_t ticket = 0;
        ThreadSlotIndex waiter;
        WaitWord wish;
        for (std::uint32_t looks = pool_.threads_in_use_bound(); looks > 0; --looks) {
            if (!find_oldest(kAnyNode, exhausted, Order{kMaxOrder}, ticket, waiter, wish)) return served;
            ticket = wish.ticket() + 1;
            const Given given = allocate_for(actor, waiter, wish, exhausted, wake);
            if ((given == Given::no || given == Given::not_allowed) && served == Served::all) served = Served::not_all;
            if (given == Given::undone) served = Served::look_again;
        }
        return Served::not_all;
    }

    // The numa nodes that would do. Only nodes of the pool, whatever a client has scribbled.
    std::uint64_t nodes_for(ThreadSlotIndex waiter) const {
        // relaxed: stored before the wish, which was read first.
        return pool_.threads[waiter.value].nodes.load(std::memory_order_relaxed) & kAnyNode >> (64 - nodes_.count());
    }

    // Takes a block from the tree for this wish. no: there is none. not_allowed: the waiter may not hold it.
    template <class Wake>
    Given allocate_for(Actor actor, ThreadSlotIndex waiter, WaitWord wish, Exhausted &exhausted, Wake &wake) {
        const std::uint32_t wanted = wish.wanted_node().value;
        if (wanted >= nodes_.count()) return Given::no;  // scribbled
        const std::uint64_t would_do = nodes_for(waiter) & ~exhausted.nodes(wish.order());
        // The charge comes before the block is taken from the tree, as in a thread that allocates.
        const std::uint64_t frames = wish.order().frames();
        const auto charge = limits_.charge(waiter, frames);
        if (!charge) return Given::not_allowed;
        Charged charged{waiter, wish, *charge};
        const auto from = [&](std::uint32_t numa_node) {
            if ((would_do >> numa_node & 1) == 0) return Given::no;
            const Given given = allocate_there(actor, numa_node, charged, wake);
            if (given == Given::no) exhausted.add(wish.order(), numa_node);
            return given;
        };
        Given given = from(wanted);
        for (std::uint32_t rank = 0; given == Given::no && rank < nodes_.count(); ++rank)
            if (const std::uint32_t other = nodes_.nearest(wanted, rank); other != wanted) given = from(other);
        uncharge(charged, frames);  // without effect if the waiter has the block
        return given;
    }
    template <class Wake>
    Given allocate_there(Actor actor, std::uint32_t numa_node, Charged &charged, Wake &wake) {
        Buddy<Env> &buddy = nodes_.at(numa_node);
        const WaitWord wish = charged.wish;
        FrameIndex base;
        // The block is no allocation yet, and recovery finds it if the process dies.
        if (wish.order().value > buddy.view().geometry.largest_order ||
            buddy.allocate_to_give(actor, wish.order(), base) != Errc::ok)
            return Given::no;
        const Block block{base, wish.order()};
        const IndexEntry entry{buddy.view().index_entry(block).load(std::memory_order_acquire)};
        if (give(actor, numa_node, block, entry, charged, wake) == Given::yes) return Given::yes;
        // Without effect if give() has freed the block.
        if (buddy.free_entry(actor, block, entry, false) == Errc::ok) limits_.freed(numa_node, block);
        return Given::undone;
    }

    const PoolView<Env> &pool_;
    const Nodes &nodes_;
    const Limits limits_;
};

// For the daemon, which releases memory without being a thread of the allocator: tells the first waiting thread of each
// process to look for itself and for the others. all: every waiting thread. Calls wake(ThreadSlotIndex).
template <class Env, class Wake>
void nudge_waiters(const PoolView<Env> &pool, bool all, Wake &&wake) {
    // Whatever the flag says: a thread that has died may have been serving, and may have cleared the flag.
    std::uint32_t last = ~0U;
    const std::uint32_t threads = pool.threads_in_use_bound();
    for (std::uint32_t thread = 1; thread < threads; ++thread) {
        auto &slot = pool.threads[thread];
        std::uint64_t bits = slot.waiting.load(std::memory_order_seq_cst);  // after what was released
        if (WaitWord{bits}.is_given())  // its giver may have died before the wake-up
            wake(ThreadSlotIndex{static_cast<std::uint16_t>(thread)});
        const ThreadOwner owner{slot.owner.load(std::memory_order_relaxed)};  // relaxed: a preference
        if (!WaitWord{bits}.is_waiting() || (!all && owner.process().value == last)) continue;
        last = owner.process().value;
        // If the CAS fails, the word has changed, which the thread notices as well.
        (void)slot.waiting.compare_exchange_strong(bits, WaitWord{bits}.nudged().bits(), std::memory_order_seq_cst);
        wake(ThreadSlotIndex{static_cast<std::uint16_t>(thread)});
    }
}

// Forgets the frames that were on their way to the process when `seen` was read, because no giver will deliver them.
// The wishes of the process's threads are taken back first, and each thread wishes anew: no giver can tell a thread of
// a block that it has counted before. False: a block is about to arrive, or the word has changed meanwhile; nothing is
// forgotten. Calls wake(ThreadSlotIndex). A caller that dies inside has taken wishes back, no more.
template <class Env, class Wake>
bool forget_on_the_way(const PoolView<Env> &pool, ProcessSlot process, OnTheWay seen, Wake &&wake) {
    bool arrives = false;
    const std::uint32_t threads = pool.threads_in_use_bound();
    for (std::uint32_t thread = kDaemonThread.value + 1U; thread < threads; ++thread) {
        auto &slot = pool.threads[thread];
        std::uint64_t bits = slot.waiting.load(std::memory_order_seq_cst);
        if (bits == 0) continue;
        // A slot that is no thread's any more may have been the process's.
        const ThreadOwner owner{slot.owner.load(std::memory_order_seq_cst)};
        if (owner.in_use() && owner.process() != process) continue;
        // EDGE take-back-then-forget (seq_cst, both; partner: charge_on_the_way(), and then tell()). Weakened: a thread
        // is given a block that is counted nowhere.
        for (unsigned round = 0; WaitWord{bits}.is_waiting() && round < kCasRoundsMax; ++round) {
            if (!slot.waiting.compare_exchange_weak(bits, 0, std::memory_order_seq_cst)) continue;
            bits = 0;
            wake(ThreadSlotIndex{static_cast<std::uint16_t>(thread)});
        }
        arrives = arrives || WaitWord{bits}.is_waiting() || WaitWord{bits}.is_given();
    }
    if (arrives) return false;
    std::uint64_t bits = seen.bits();
    return pool.processes[process.value].on_the_way.compare_exchange_strong(bits, seen.forgotten().bits(),
                                                                            std::memory_order_seq_cst);
}

}  // namespace numacre::engine
