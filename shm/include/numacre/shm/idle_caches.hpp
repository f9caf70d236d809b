// Taking cached blocks back from threads that do not use their caches: asleep, busy elsewhere, or stopped. Their owner
// does nothing for it, and need not run.
//
// A thread works on its cache by plain stores, so nobody else may touch a cached block while the thread may be in the
// middle of these steps. An asymmetric fence keeps the two apart. The thread's side costs no fence:
//
//   inside = 1                  plain store
//   attention as before?        plain load; if not: inside = 0, and answer (below)
//   the steps of the cache      plain loads and stores
//   inside = 0                  plain store (release)
//
// The side that is short of memory pays:
//
//   1. moves the count of requests in the attention word
//   2. makes every CPU that runs a thread of a registered process pass a full barrier (membarrier, GLOBAL_EXPEDITED; a
//      thread that does not run has passed one when it was taken off its CPU)
//   3. for a cached entry: reads the entry, then `inside` and `answered` of the entry's thread. If the thread is not
//      inside and has not answered this request, a CAS on the entry decides (EDGE ownership)
//
// Why this is enough. Let a thread begin its steps by inside = 1, and let m be the barrier on its CPU. If the store
// comes before m, step 3 sees it: the thread is inside, or has ended these steps and all their stores are visible. If
// the store comes after m, the load of the attention word does too, and finds the request: the thread answers first.
// A thread that answers gives all cached blocks back, each by a CAS, and raises `answered` when it has none. So a block
// is taken by one of the two. The thread may take several calls for that: its cache stays unused until the answer, and
// what is left in the cache can be taken back. Blocks that the thread caches after its answer have another generation
// than any entry that was read before, or the read of `answered` comes after the answer: step 3 leaves them alone.
//
// If whoever takes back dies at any instruction, recovery finds an ordinary free of the thread slot that did it.
#pragma once

#include <cstdint>
#include <utility>

#include "numacre/shm/account.hpp"
#include "numacre/shm/buddy.hpp"
#include "numacre/shm/walk.hpp"

namespace numacre::engine {

// The last step of a thread's answer to a request, before the thread uses its cache again. `bits` are those of the
// attention word, read before the thread gave its cached blocks back by CAS (free_many with contended). It has none
// now.
template <class Env>
void answer_request(ThreadSlot<Env> &slot, std::uint64_t bits) {
    // EDGE answer-then-cache is made by the stores that put blocks into the cache. They are releases and follow this
    // one. Weakened: a block is taken from the thread for a request that the thread has answered, while the thread
    // hands the block out. release: who sees the answer finds the blocks that were given back.
    slot.answered.store(Attention::requests(bits), std::memory_order_release);
}

// The caches of the threads other than the caller's, as far as their answers tell.
struct OtherCaches {
    bool may_be_idle = false;   // one may have cached blocks that the last walk has not taken back
    bool has_answered = false;  // one has answered this very request, and given back what it had
};
// gathered: the request of the last walk that began while all_are_outside(). A thread that has not answered that one
// has cached nothing since.
template <class Env>
OtherCaches look_at_other_caches(const PoolView<Env> &pool, ThreadSlotIndex self, std::uint64_t gathered,
                                 std::uint64_t request) {
    OtherCaches others;
    const std::uint32_t threads = pool.threads_in_use_bound();
    for (std::uint32_t thread = kDaemonThread.value + 1U; thread < threads; ++thread) {
        if (thread == self.value) continue;
        // acquire: if it is an answer to this request, with the blocks that the thread has given back. Else only a
        // guess, the walk decides.
        const std::uint64_t answered = pool.threads[thread].answered.load(std::memory_order_acquire);
        if (answered == request) others.has_answered = true;
        if (!Answered::is_before(answered, request) || Answered::is_before(answered, gathered)) continue;
        others.may_be_idle = true;
        break;
    }
    return others;
}

// After a barrier for `request`: true if no thread that has not answered it is inside. None of them enters before it
// has answered, so a walk from now on leaves no cached block of theirs.
template <class Env>
bool all_are_outside(const PoolView<Env> &pool, std::uint64_t request) {
    const std::uint32_t threads = pool.threads_in_use_bound();
    for (std::uint32_t thread = kDaemonThread.value + 1U; thread < threads; ++thread) {
        const auto &slot = pool.threads[thread];
        // acquire, relaxed: as in IdleCaches.
        if (slot.inside.load(std::memory_order_acquire) != 0 &&
            Answered::is_before(slot.answered.load(std::memory_order_relaxed), request))
            return false;
    }
    return true;
}

template <class Env>
class IdleCaches {
public:
    // request: the number of a request that stood in the attention word before all CPUs passed a barrier.
    IdleCaches(const PoolView<Env> &pool, const NodeView<Env> &view, std::uint64_t request)
        : pool_(pool), buddy_(view, pool), request_(request) {}

    // Frees all cached blocks in the numa node whose threads are outside. One walk over the marked parts of the tree.
    // Calls before(ProcessSlot, Block) before a block is freed, and after(ProcessSlot, Block, bool is_freed) after it.
    template <class Before, class After>
    void take_back(Actor actor, Before &&before, After &&after) {
        Visitor<Before, After> visitor{*this, actor, before, after};
        walk_all(buddy_.view(), visitor);
    }

private:
    template <class Before, class After>
    struct Visitor {
        IdleCaches &caches;
        Actor actor;
        Before &before;
        After &after;

        void owned(Block block, IndexEntry entry) {
            if (!entry.is_cached() || !caches.is_idle(entry)) return;
            const ProcessSlot process = entry.owner();
            before(process, block);
            after(process, block, caches.buddy_.free_entry(actor, block, entry, false) == Errc::ok);
        }
        void free(Block) {}
        void taken(FrameIndex, std::uint64_t) {}
        void offline(Block) {}
        void damaged(Block) {}
    };

    // entry: cached. Its read (acquire, EDGE answer-then-cache) comes before these.
    bool is_idle(IndexEntry entry) const {
        const ThreadSlotIndex thread = entry.cacher();
        const ProcessSlot process = entry.owner();
        if (thread == kDaemonThread || thread.value >= pool_.thread_slots || process.value >= pool_.process_slots)
            return false;
        // The cache of a dead process is recovery's: zeroed or kept back, as the pool says. relaxed: a death that is
        // told in this moment changes nothing, the program had freed the block.
        if (pool_.processes[process.value].state.load(std::memory_order_relaxed) !=
            static_cast<std::uint64_t>(ProcessState::active))
            return false;
        const auto &slot = pool_.threads[thread.value];
        // acquire: all stores of the thread's steps that have ended. relaxed: the entry's read is the edge.
        return slot.inside.load(std::memory_order_acquire) == 0 &&
               Answered::is_before(slot.answered.load(std::memory_order_relaxed), request_);
    }

    const PoolView<Env> &pool_;
    Buddy<Env> buddy_;
    std::uint64_t request_;
};

// Around each block that is taken back: the count of the process whose thread cached it (account.hpp).
template <class Env>
class CountedLoss {
public:
    CountedLoss(const PoolView<Env> &pool, const NodeView<Env> &view, Actor actor)
        : pool_(pool), buddy_(view, pool), actor_(actor) {}

    void before(ProcessSlot process, Block block) {
        is_counted_ = is_counting(pool_) && process.value < pool_.process_slots;
        if (!is_counted_) return;
        generation_ = generation_of(pool_, process);
        under_way_ = begin_under_way(pool_, actor_.thread, block.order.frames(), process);
    }
    void after(ProcessSlot process, Block block, bool is_freed) {
        if (!is_counted_) return;
        if (is_freed) {
            note_freed(pool_, block.order.frames(), [&] { return buddy_.is_draining(block); });
            remove_lost(pool_, process, generation_, block.order.frames());
        }
        end_under_way(pool_, actor_.thread, under_way_);
    }

private:
    const PoolView<Env> &pool_;
    Buddy<Env> buddy_;
    Actor actor_;
    bool is_counted_ = false;
    std::uint64_t generation_ = 0;
    std::uint64_t under_way_ = 0;
};

inline constexpr std::uint64_t kBarrierAgainAfterNanoseconds = 10'000'000;

// The latest request before which all CPUs have passed a barrier; 0: none. latest: the count of requests now. Calls
// pass_barrier() at most once in 10 ms for the pool, whoever calls; callers of the same moment do so each.
// pass_barrier() returns true if the barrier has been passed. now_ns: monotonic.
template <class Env, class PassBarrier>
std::uint64_t passed_request(const PoolView<Env> &pool, std::uint64_t latest, std::uint64_t now_ns,
                             PassBarrier &&pass_barrier) {
    auto &header = *pool.header;
    // acquire: with barrier_for. Clocks of time namespaces differ: then there are more barriers.
    const std::uint64_t at = header.barrier_at.load(std::memory_order_acquire);
    if (now_ns - at >= kBarrierAgainAfterNanoseconds && pass_barrier()) {
        // release, twice; partners: the acquires of this function. Others look at the threads after the barrier, and
        // see its request once they see its time. A caller that was stopped in here leaves a later request alone, but
        // not a scribbled one.
        std::uint64_t before = header.barrier_for.load(std::memory_order_relaxed);
        if (!Answered::is_before(latest, before) || Answered::is_before(latest + (std::uint64_t{1} << 32), before))
            (void)header.barrier_for.compare_exchange_strong(before, latest, std::memory_order_release);
        header.barrier_at.store(now_ns, std::memory_order_release);
        return latest;
    }
    const std::uint64_t passed = header.barrier_for.load(std::memory_order_acquire);
    return Answered::is_before(latest, passed) ? 0 : passed;  // scribbled
}

// Takes back the cached blocks of all threads that are outside of their caches, on all numa nodes. The caller has moved
// the count of requests in the attention word. now_ns: monotonic, from before that. node_at(i): the NodeView of numa
// node i. True: blocks may have come back since the caller's last search, by this call, by a walk of others or by an
// answer: a further search is worth while. walked_seen: for the caller's next call, 0 at first. Walks over the marked
// parts of the pool unless a walk for a request with the last barrier has ended, or no thread can have anything.
template <class Env, class NodeAt, class PassBarrier>
bool take_back_idle_caches(const PoolView<Env> &pool, std::uint32_t numa_nodes, NodeAt &&node_at, Actor actor,
                           std::uint64_t now_ns, std::uint64_t &walked_seen, PassBarrier &&pass_barrier) {
    auto &header = *pool.header;
    // seq_cst: the caller's request stands in the word before the barrier.
    const std::uint64_t latest = Attention::requests(header.attention.load(std::memory_order_seq_cst));
    // acquire: with the entries that the walk for that request has changed.
    std::uint64_t gathered = header.gathered_for.load(std::memory_order_acquire);
    // Scribbled: as if it had been long ago.
    if (Answered::is_before(latest, gathered)) gathered = latest - (std::uint64_t{1} << 45);
    // acquire, here and below: with the entries that the walk has changed.
    const std::uint64_t walked = header.walked_for.load(std::memory_order_acquire);
    const bool has_been_walked = std::exchange(walked_seen, walked) != walked;
    const OtherCaches others = look_at_other_caches(pool, actor.thread, gathered, latest);
    const bool may_have_come_back = has_been_walked || others.has_answered;
    if (!others.may_be_idle) return may_have_come_back;
    const std::uint64_t request = passed_request(pool, latest, now_ns, pass_barrier);
    if (request == 0) return may_have_come_back;
    if (walked == request) return true;
    const bool leaves_none = all_are_outside(pool, request);
    for (std::uint32_t node = 0; node < numa_nodes; ++node) {
        const NodeView<Env> &view = node_at(node);
        CountedLoss<Env> loss{pool, view, actor};
        IdleCaches<Env>{pool, view, request}.take_back(
            actor, [&](ProcessSlot process, Block block) { loss.before(process, block); },
            [&](ProcessSlot process, Block block, bool is_freed) { loss.after(process, block, is_freed); });
    }
    // release: others that find these numbers need not walk. Of two walks at once the later one to end decides: an
    // older number costs a walk.
    if (leaves_none) header.gathered_for.store(request, std::memory_order_release);
    header.walked_for.store(request, std::memory_order_release);
    walked_seen = request;
    return true;
}

}  // namespace numacre::engine
