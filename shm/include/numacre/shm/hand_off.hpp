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
// Nothing here sleeps: the caller does, on the low half of its word (a futex), and wakes whom it is told to.
// (tests/model runs this file, deaths included.)
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <utility>

#include "numacre/shm/account.hpp"
#include "numacre/shm/buddy.hpp"

namespace numacre::engine {

// Where nobody counts what is held.
struct NoLimits {
    struct Charge {};
    std::optional<Charge> charge(ThreadSlotIndex, std::uint64_t) const { return Charge{}; }
    void uncharge(const Charge &, std::uint64_t) const {}
    void freed(std::uint32_t, Block) const {}
    bool has_taken_back() const { return false; }
};

// Nodes: Buddy<Env> &at(numa node), std::uint32_t count(), std::uint32_t nearest(numa node, rank): by distance.
// Limits: charge(thread, frames): counts them as on their way to the thread's process (OnTheWay), if it may hold them;
// nothing: it may not. uncharge(): takes that back. freed(numa node, block): it is in the tree again, and still counted
// by whoever held it. has_taken_back(): whether a charge was made and taken back since the last such question. A block
// is counted for whom it goes to before anybody else does not count it any more, so that nobody is granted in between
// what is not there; who receives it counts it as held before the word is empty.
template <class Env, class Nodes, class Limits = NoLimits>
class HandOff {
public:
    using Word = typename Env::template Atomic<std::uint64_t>;

    HandOff(const PoolView<Env> &pool, const Nodes &nodes, const Limits &limits = {})
        : pool_(pool), nodes_(nodes), limits_(limits) {}

    // --- who waits ---------------------------------------------------------------------------------------------------

    // Says what the thread waits for. Then: serve(), for there may be memory; sleep for as long as the word is what
    // this returned; receive() if it says so; serve() again as long as it waits, nudged or not (has_ended()). At the
    // end, however it ends, serve() once more if the flag is up: a nudge was for the others, too.
    // nodes: bit n: numa node n would do.
    WaitWord announce(Actor actor, Order order, NumaNode numa_node, std::uint64_t nodes) {
        // relaxed: a number, nothing more.
        const std::uint64_t ticket = pool_.header->wait_tickets.fetch_add(1, std::memory_order_relaxed);
        const WaitWord wish = WaitWord::waiting(order, numa_node, ticket);
        // relaxed: before the wish. Who reads that of another wish does not find this one any more.
        pool_.threads[actor.thread.value].nodes.store(nodes, std::memory_order_relaxed);
        // EDGE announce-then-flag (seq_cst; partner: serve(), which clears the flag before it looks at the words).
        word_of(actor.thread).store(wish.bits(), std::memory_order_seq_cst);
        raise_flag();
        return wish;
    }
    // So that those who release look for who waits.
    void raise_flag() {
        // EDGE flag-then-look (seq_cst RMW before the search for memory that follows; partner: the load of the flag
        // after a free's RMW). Weakened: we see no free block, they see no flag, and we sleep beside it.
        pool_.header->attention.fetch_or(Attention::kWaiters, std::memory_order_seq_cst);
    }

    // Waits no more. False: somebody was faster, the thread has been given a block: receive() it.
    bool withdraw(Actor actor) {
        Word &word = word_of(actor.thread);
        std::uint64_t bits = word.load(std::memory_order_acquire);
        // Nobody changes a wish but the daemon, by a nudge, once; the bound is for who scribbles.
        for (unsigned rounds = 0; WaitWord{bits}.is_waiting() && rounds < kCasRoundsMax; ++rounds)
            if (word.compare_exchange_weak(bits, 0, std::memory_order_acq_rel)) return true;
        return !WaitWord{bits}.is_given();
    }
    // The daemon's nudge, taken note of: what the word is now. (Nudged again, perhaps.)
    WaitWord calm(Actor actor, WaitWord wish) {
        std::uint64_t bits = wish.nudged().bits();
        (void)word_of(actor.thread).compare_exchange_strong(bits, wish.bits(), std::memory_order_acq_rel);
        return look(actor);
    }
    // Of the word as it is now: it does not wait for this any more.
    static bool has_ended(WaitWord wish, WaitWord now) { return now.not_nudged() != wish; }
    WaitWord look(Actor actor) const { return WaitWord{word_of(actor.thread).load(std::memory_order_acquire)}; }

    // The block that the thread has been given, now its; the thread waits no more. False: none. A word that still waits
    // is left as it is: somebody may be giving the thread a block at this moment.
    bool receive(Actor actor, Note note, std::uint32_t &numa_node, Block &block) {
        const WaitWord given = look(actor);
        if (!given.is_given()) return false;
        bool got = false;
        if (given.numa_node().value < nodes_.count()) {
            numa_node = given.numa_node().value;
            got = nodes_.at(numa_node).receive(actor, given.base(), given.generation(), note, block);
        }
        // release: the block is ours before the word forgets it. By CAS: no word but the one that was read.
        std::uint64_t bits = given.bits();
        (void)word_of(actor.thread)
            .compare_exchange_strong(bits, 0, std::memory_order_release, std::memory_order_relaxed);
        return got;
    }

    // --- who releases ------------------------------------------------------------------------------------------------

    enum class Given : std::uint8_t {
        no,           // nothing was done: there is nobody, or who waits longest wants less of it, or it is not ours, or
                      // its chunk is draining: free it
        yes,          // somebody has it
        undone,       // whom it was for has gone: it is free
        not_allowed,  // nothing was done: who waits may not hold it
    };

    // Gives the held block that entry tells of to whoever has waited longest, of those whom it serves and who may hold
    // it. If nobody has it in the end, serve() afterwards. Calls wake(ThreadSlotIndex). Dying inside: the block is
    // freed, or that thread's.
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
        for (unsigned round = 0; round < kRounds; ++round) {
            const Served served = serve_all(actor, exhausted, wake);
            if (served == Served::look_again) {
                exhausted = {};
                continue;
            }
            // A charge of ours that stood for a moment may have refused another server, which has left its waiter to
            // sleep beside a free block. The last server that takes a charge back meets nobody else's. What is
            // exhausted is so still, or a thread that has released something sees the flag.
            if (limits_.has_taken_back()) continue;
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
    static constexpr unsigned kRounds = 8;  // others got on in each; then those who wait look for themselves, in time

    enum class Served : std::uint8_t { all, not_all, look_again };
    static constexpr ThreadSlotIndex kNobody = kDaemonThread;

    // For which wish a block has been counted. Of that wish, not of a later one of the same thread: a wish may be taken
    // back, and what is on its way forgotten, before we look again.
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

    // before: for whom the block has been counted already. Taken back if that is not who gets it.
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
        // Or a chunk that is to become empty would be handed on for as long as threads wait. What is on its way when
        // the drain begins arrives.
        if (buddy.is_draining(block)) return Given::no;
        const std::uint64_t frames = block.order.frames();
        // Each thread once: somebody may scribble wishes for ever.
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
            (void)buddy.free_entry(actor, block, entry, tally);  // what the paper calls an undone split
            limits_.freed(numa_node, block);
            return Given::undone;
        }
        buddy.has_been_given(actor, block, tally);
        uncharge(before, frames);
        wake(waiter);
        return Given::yes;
    }

    // Of which orders nothing is free, on which numa nodes: found out once for all who wait, who may be many. Whoever
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
    // acceptable nodes are all exhausted, and wishes that a thread has left behind in a slot that is nobody's now: what
    // would be given there is received by nobody.
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
            // relaxed: a thread has its slot before it wishes, and the wish brought us here. A slot that is given back
            // after this look is that of a thread that broke its wait off; its process's death does not do so before it
            // has taken the wish back.
            if (!ThreadOwner{pool_.threads[thread].owner.load(std::memory_order_relaxed)}.in_use()) continue;
            const ThreadSlotIndex candidate{static_cast<std::uint16_t>(thread)};
            if ((nodes_for(candidate) & nodes & ~exhausted.nodes(word.order())) == 0) continue;
            found = true;
            waiter = candidate;
            wish = word;
        }
        return found;
    }

    // False: it does not wait any more, or somebody else was faster.
    bool tell(ThreadSlotIndex waiter, WaitWord wish, WaitWord gift) {
        std::uint64_t bits = wish.bits();
        // EDGE give (release; partners: the acquire loads in receive() and recovery): the entry first.
        for (unsigned rounds = 0; rounds < kCasRoundsMax; ++rounds) {
            if (word_of(waiter).compare_exchange_weak(bits, gift.bits(), std::memory_order_acq_rel)) return true;
            if (WaitWord{bits}.not_nudged() != wish.not_nudged()) return false;
        }
        return false;  // nudged a million times: somebody scribbles
    }

    // Everybody once: a look at all words for each who is given something, and for each size that there is none of.
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

    // The numa nodes that would do; none that there is not, whatever somebody scribbles.
    std::uint64_t nodes_for(ThreadSlotIndex waiter) const {
        // relaxed: stored before the wish that brought us here.
        return pool_.threads[waiter.value].nodes.load(std::memory_order_relaxed) & kAnyNode >> (64 - nodes_.count());
    }

    // A block from the tree for this wish. no: there is none. not_allowed: there may be one, for others.
    template <class Wake>
    Given allocate_for(Actor actor, ThreadSlotIndex waiter, WaitWord wish, Exhausted &exhausted, Wake &wake) {
        const std::uint32_t wanted = wish.wanted_node().value;
        if (wanted >= nodes_.count()) return Given::no;  // scribbled
        const std::uint64_t would_do = nodes_for(waiter) & ~exhausted.nodes(wish.order());
        // Before it is taken from the tree, as by a thread that allocates.
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
        uncharge(charged, frames);  // unless somebody has the block
        return given;
    }
    template <class Wake>
    Given allocate_there(Actor actor, std::uint32_t numa_node, Charged &charged, Wake &wake) {
        Buddy<Env> &buddy = nodes_.at(numa_node);
        const WaitWord wish = charged.wish;
        FrameIndex base;
        // As if for a cache: nobody's allocation yet, and the process's, should it die.
        if (wish.order().value > buddy.view().geometry.largest_order ||
            buddy.allocate_many(actor, wish.order(), BlockState::cached, {}, &base, 1) == 0)
            return Given::no;
        const Block block{base, wish.order()};
        const IndexEntry entry{buddy.view().index_entry(block).load(std::memory_order_acquire)};
        if (give(actor, numa_node, block, entry, charged, wake) == Given::yes) return Given::yes;
        // Refused if give() has done it.
        if (buddy.free_entry(actor, block, entry, false) == Errc::ok) limits_.freed(numa_node, block);
        return Given::undone;
    }

    const PoolView<Env> &pool_;
    const Nodes &nodes_;
    const Limits limits_;
};

// The daemon's, who releases memory but is no thread of the allocator then: of each process, the first thread that
// waits is to look for itself and for the others. all: every thread. Calls wake(ThreadSlotIndex).
template <class Env, class Wake>
void nudge_waiters(const PoolView<Env> &pool, bool all, Wake &&wake) {
    // Whatever the flag says: who died may have been serving, and had it cleared.
    std::uint32_t last = ~0U;
    const std::uint32_t threads = pool.threads_in_use_bound();
    for (std::uint32_t thread = 1; thread < threads; ++thread) {
        auto &slot = pool.threads[thread];
        std::uint64_t bits = slot.waiting.load(std::memory_order_seq_cst);  // after what was released
        if (WaitWord{bits}.is_given())  // who gave it may have died before it came to wake it
            wake(ThreadSlotIndex{static_cast<std::uint16_t>(thread)});
        const ThreadOwner owner{slot.owner.load(std::memory_order_relaxed)};  // relaxed: a preference
        if (!WaitWord{bits}.is_waiting() || (!all && owner.process().value == last)) continue;
        last = owner.process().value;
        // If it fails the word has changed, which the thread notices as well.
        (void)slot.waiting.compare_exchange_strong(bits, WaitWord{bits}.nudged().bits(), std::memory_order_seq_cst);
        wake(ThreadSlotIndex{static_cast<std::uint16_t>(thread)});
    }
}

// Nobody gives any more what was on its way to the process when `seen` was read: forgotten. So that it is so, the
// wishes of the process's threads are taken back, and each wishes anew: no giver can tell them of what it has counted
// so far. False: something is about to arrive, or has changed meanwhile; nothing is forgotten. Calls
// wake(ThreadSlotIndex). Whoever dies inside has taken wishes back, no more.
template <class Env, class Wake>
bool forget_on_the_way(const PoolView<Env> &pool, ProcessSlot process, OnTheWay seen, Wake &&wake) {
    bool arrives = false;
    const std::uint32_t threads = pool.threads_in_use_bound();
    for (std::uint32_t thread = kDaemonThread.value + 1U; thread < threads; ++thread) {
        auto &slot = pool.threads[thread];
        std::uint64_t bits = slot.waiting.load(std::memory_order_seq_cst);
        if (bits == 0) continue;
        // A slot that is nobody's any more may have been the process's.
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
