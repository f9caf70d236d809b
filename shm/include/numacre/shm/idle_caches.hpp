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
// An answer raises `answered` and then gives all cached blocks back, each by a CAS. So a block is taken by one of the
// two. Blocks that the thread caches after its answer have another generation than any entry that was read before, or
// the read of `answered` comes after the answer: step 3 leaves them alone.
//
// If whoever takes back dies at any instruction, recovery finds an ordinary free of the thread slot that did it.
#pragma once

#include <cstdint>

#include "numacre/shm/buddy.hpp"
#include "numacre/shm/walk.hpp"

namespace numacre::engine {

// The first step of a thread's answer to a request, before the thread uses its cache again. `bits` are those of the
// attention word. The thread has no cached blocks, or gives all of them back by CAS afterwards (free_many with
// contended).
template <class Env>
void answer_request(ThreadSlot<Env> &slot, std::uint64_t bits) {
    // relaxed: EDGE answer-then-cache is made by the stores that put blocks into the cache. They are releases and
    // follow this one. Weakened: a block is taken from the thread for a request that the thread has answered, while the
    // thread hands the block out.
    slot.answered.store(Attention::requests(bits), std::memory_order_relaxed);
}

// True if a thread, other than `self`, may have cached blocks that the last walk has not taken back. gathered: the
// request of the last walk that began while all_are_outside(). A thread that has not answered that one has cached
// nothing since.
template <class Env>
bool may_be_any_idle_cache(const PoolView<Env> &pool, ThreadSlotIndex self, std::uint64_t gathered,
                           std::uint64_t request) {
    const std::uint32_t threads = pool.threads_in_use_bound();
    for (std::uint32_t thread = kDaemonThread.value + 1U; thread < threads; ++thread) {
        // relaxed: only a guess, the walk decides.
        const std::uint64_t answered = pool.threads[thread].answered.load(std::memory_order_relaxed);
        if (thread != self.value && Answered::is_before(answered, request) && !Answered::is_before(answered, gathered))
            return true;
    }
    return false;
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

    // Frees all cached blocks in the numa node whose threads are outside. Returns their frames. One walk over the
    // marked parts of the tree. Calls before(ProcessSlot, Block) before a block is freed, and
    // after(ProcessSlot, Block, bool is_freed) after it.
    template <class Before, class After>
    std::uint64_t take_back(Actor actor, Before &&before, After &&after) {
        Visitor<Before, After> visitor{*this, actor, before, after};
        walk_all(buddy_.view(), visitor);
        return visitor.frames;
    }
    // take_back() in the words that contain these frames.
    template <class Before, class After>
    std::uint64_t take_back_in(Actor actor, FrameIndex first, std::uint64_t frames, Before &&before, After &&after) {
        Visitor<Before, After> visitor{*this, actor, before, after};
        walk_frames(buddy_.view(), first, frames, visitor);
        return visitor.frames;
    }

private:
    template <class Before, class After>
    struct Visitor {
        IdleCaches &caches;
        Actor actor;
        Before &before;
        After &after;
        std::uint64_t frames = 0;

        void owned(Block block, IndexEntry entry) {
            if (!entry.is_cached() || !caches.is_idle(entry)) return;
            const ProcessSlot process = entry.owner();
            before(process, block);
            const bool is_freed = caches.buddy_.free_entry(actor, block, entry, false) == Errc::ok;
            if (is_freed) frames += block.order.frames();
            after(process, block, is_freed);
        }
        void free(Block) {}
        void taken(FrameIndex, std::uint64_t) {}
        void offline(Block) {}
        void damaged(Block) {}
    };

    // entry: cached. Its read (acquire, EDGE answer-then-cache) comes before these.
    bool is_idle(IndexEntry entry) const {
        const ThreadSlotIndex thread = entry.cacher();
        if (thread == kDaemonThread || thread.value >= pool_.thread_slots) return false;
        const auto &slot = pool_.threads[thread.value];
        // acquire: all stores of the thread's steps that have ended. relaxed: the entry's read is the edge.
        return slot.inside.load(std::memory_order_acquire) == 0 &&
               Answered::is_before(slot.answered.load(std::memory_order_relaxed), request_);
    }

    const PoolView<Env> &pool_;
    Buddy<Env> buddy_;
    std::uint64_t request_;
};

}  // namespace numacre::engine
