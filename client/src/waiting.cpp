// Waiting for memory: the system calls of a hand-off (shm/hand_off.hpp). Threads with cached blocks see the flag at
// their next call and give all these blocks back. A waiter looks again by itself from time to time: the thread that
// would have given it a block may have died while no daemon runs to notice the death.
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "engine.hpp"
#include "idle.hpp"
#include "numacre/os/kernel.hpp"
#include "numacre/shm/hand_off.hpp"
#include "policy.hpp"
#include "pool.hpp"

namespace numacre::client {
namespace {

constexpr std::uint64_t kWaiterLooksAgainAfterNanoseconds = 1'000'000'000;
constexpr std::uint64_t kShortestNapNanoseconds = 1'000'000;
// While the free memory is reserved for others, nobody tells a waiter when that ends.
constexpr std::uint64_t kReservedAgainAfterNanoseconds = 50'000'000;
// A quota that refuses may be used up by a charge of another thread of the process that stands for a moment only.
constexpr unsigned kRefusals = 3;
// A gift that a thread has left behind, by siglongjmp() out of a wait, stays on the way: about a second.
constexpr unsigned kRefusalsMost = 1000;
constexpr std::uint64_t kRefusedAgainAfterNanoseconds = 1'000'000;
// A gift takes microseconds. A giver that has not finished by then stands still, or is dead.
constexpr std::uint64_t kStaleAfterNanoseconds = 10'000'000;

struct Nodes {
    numacre_pool *pool;
    Buddy<Env> &at(std::uint32_t numa_node) const { return pool->nodes[numa_node].buddy(); }
    std::uint32_t count() const { return pool->numa_nodes; }
    std::uint32_t nearest(std::uint32_t numa_node, std::uint32_t rank) const { return pool->nearest[numa_node][rank]; }
};

// The word's low half; both supported architectures are little-endian.
std::uint32_t *futex_word(numacre_pool *pool, ThreadSlotIndex thread) {
    return reinterpret_cast<std::uint32_t *>(&pool->view.threads[thread.value].waiting);
}

struct Wake {
    numacre_pool *pool;
    void operator()(ThreadSlotIndex thread) const { os::futex_wake(futex_word(pool, thread), 1); }
};

// An observer has the word mapped as well. Without any right to write, it can take a wake-up that is meant for this
// thread, or move this thread to another futex (FUTEX_REQUEUE). So naps grow with the wait: a waiter that is told
// nothing finds its block in twice the time, or a second later. since: begin of the wait.
void sleep_in_naps(numacre_pool *pool, ThreadSlotIndex thread, WaitWord wish, std::uint64_t since,
                   std::uint64_t nanoseconds) {
    std::uint64_t now = now_nanoseconds();
    const std::uint64_t end = now + nanoseconds;
    int error = ETIMEDOUT;
    while (error == ETIMEDOUT && now < end) {
        const std::uint64_t nap =
            std::min(end - now, std::clamp(now - since, kShortestNapNanoseconds, kWaiterLooksAgainAfterNanoseconds));
        const timespec duration{static_cast<time_t>(nap / 1'000'000'000), static_cast<long>(nap % 1'000'000'000)};
        error = os::futex_wait(futex_word(pool, thread), static_cast<std::uint32_t>(wish.bits()), &duration);
        now = now_nanoseconds();
    }
}

// The limits of the processes whose threads wait. from: the client whose block is given; kDaemonProcess: the blocks
// come from the tree. For one look at the waiters.
class Limits {
public:
    explicit Limits(numacre_pool *pool, ProcessSlot from = kDaemonProcess) : pool_(pool), from_(from) {}

    // process is kDaemonProcess if nobody counts.
    struct Charge {
        ProcessSlot process = kDaemonProcess;
        std::uint64_t era = 0;
    };
    std::optional<Charge> charge(ThreadSlotIndex waiter, std::uint64_t frames) const {
        if (!is_counting(pool_)) return Charge{};
        // relaxed: the thread has its slot for as long as it waits.
        const ThreadOwner owner{pool_->view.threads[waiter.value].owner.load(std::memory_order_relaxed)};
        Charge made{owner.process()};
        if (!owner.in_use() || made.process.value >= pool_->view.process_slots) return std::nullopt;
        // A process may have a thousand threads that wait, and each look goes over all clients.
        if (made.process == last_refused_ && frames >= last_refused_frames_) return std::nullopt;
        if (made.process == from_) {
            // The process holds the block already. Uncounted for a moment if a client scribbles.
            made.era = add_on_the_way(pool_->view, made.process, frames).value_or(~std::uint64_t{0});
        } else {
            const Charging charging = charge_on_the_way(pool_->view, made.process, frames, {from_, frames}, made.era);
            has_taken_back_ = has_taken_back_ || charging.is_taken_back;
            if (charging.answer != Admission::granted) {
                last_refused_ = made.process;
                last_refused_frames_ = frames;
                return std::nullopt;
            }
        }
        return made;
    }
    bool has_taken_back() const {
        last_refused_ = kDaemonProcess;  // the next look asks everybody
        return std::exchange(has_taken_back_, false);
    }
    void uncharge(const Charge &made, std::uint64_t frames) const {
        if (made.process != kDaemonProcess) remove_on_the_way(pool_->view, made.process, frames, made.era);
    }
    void freed(std::uint32_t numa_node, Block block) const {
        if (is_counting(pool_)) note_freed(pool_, numa_node, block);
    }

private:
    numacre_pool *pool_;
    ProcessSlot from_;
    mutable ProcessSlot last_refused_ = kDaemonProcess;
    mutable std::uint64_t last_refused_frames_ = 0;
    mutable bool has_taken_back_ = false;
};
using Server = HandOff<Env, Nodes, Limits>;

// Around the receipt of a gift. Its largest possible size counts as held before the thread's word is empty, and until
// then nobody forgets the frames on the way to the process. So a gift is counted at every moment, and twice at some
// moments.
class CountedGift {
public:
    CountedGift(numacre_pool *pool, Actor actor, std::uint64_t frames)
        : pool_(pool), frames_(is_counting(pool) ? frames : 0), call_(pool, actor, frames_) {
        if (frames_ == 0) return;
        era_ = OnTheWay{record().on_the_way.load(std::memory_order_seq_cst)}.era();
        add_held(pool_->view, pool_->process, frames_);
    }
    CountedGift(const CountedGift &) = delete;
    CountedGift &operator=(const CountedGift &) = delete;
    ~CountedGift() {
        if (frames_ != held_) remove_held(pool_->view, pool_->process, frames_ - held_);
    }
    void is_received(std::uint64_t frames) {
        if (frames_ == 0) return;
        held_ = frames;
        remove_on_the_way(pool_->view, pool_->process, frames, era_);
    }
    void is_freed() { held_ = 0; }

private:
    const ProcessRecord<Env> &record() const { return pool_->view.processes[pool_->process.value]; }
    numacre_pool *pool_;
    std::uint64_t frames_;
    const CountedCall call_;
    std::uint64_t era_ = 0;
    std::uint64_t held_ = 0;
};

// A thread that serves others may have a block in its hands that stands in no record but the index. If the thread
// serves in a signal handler that has interrupted its sleep, another handler must not leave that sleep by siglongjmp.
class NotAsleep {
public:
    explicit NotAsleep(numacre_pool *pool) : lane_(find_lane(pool)) {
        if (lane_ == nullptr || !lane_->is_asleep) {
            lane_ = nullptr;
            return;
        }
        lane_->is_asleep = false;
        std::atomic_signal_fence(std::memory_order_seq_cst);
    }
    NotAsleep(const NotAsleep &) = delete;
    NotAsleep &operator=(const NotAsleep &) = delete;
    ~NotAsleep() {
        std::atomic_signal_fence(std::memory_order_seq_cst);
        if (lane_ != nullptr) lane_->is_asleep = true;
    }

private:
    Lane *lane_;
};

}  // namespace

bool is_anything_on_the_way(const numacre_pool *pool) {
    const auto &word = pool->view.processes[pool->process.value].on_the_way;
    return OnTheWay{word.load(std::memory_order_relaxed)}.frames() != 0;  // relaxed: there is a next look
}

std::uint64_t now_nanoseconds() {
    timespec time{};
    os::clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(time.tv_nsec);
}

bool forget_stale_gifts(numacre_pool *pool) {
    const OnTheWay seen{pool->view.processes[pool->process.value].on_the_way.load(std::memory_order_seq_cst)};
    if (seen.frames() == 0) return false;
    // relaxed: threads that see each other's stores late wait a little longer, or not at all: neither is wrong.
    const std::uint64_t now = now_nanoseconds();
    if (pool->gifts_seen.exchange(seen.bits(), std::memory_order_relaxed) != seen.bits()) {
        pool->gifts_seen_at.store(now, std::memory_order_relaxed);
        return false;
    }
    if (now - pool->gifts_seen_at.load(std::memory_order_relaxed) < kStaleAfterNanoseconds) return false;
    return forget_on_the_way(pool->view, pool->process, seen, Wake{pool});
}

void serve_waiters(numacre_pool *pool, Actor actor) {
    const NotAsleep not_asleep{pool};
    // For a moment a block from the tree is this process's in the index, and counted as on its way to another process.
    // A scan of the daemon that meets the block must not correct this process's count by it.
    const CountedCall call{pool, actor, pool->geometry.largest().frames()};
    const Nodes nodes{pool};
    Server{pool->view, nodes, Limits{pool}}.serve(actor, Wake{pool});
}

bool give_to_waiter(numacre_pool *pool, Actor actor, std::uint32_t numa_node, Block block, IndexEntry entry) {
    const NotAsleep not_asleep{pool};
    const Nodes nodes{pool};
    Server hand_off{pool->view, nodes, Limits{pool, pool->process}};
    const auto given = hand_off.give(actor, numa_node, block, entry, Wake{pool});
    if (given != Server::Given::yes && given != Server::Given::undone) return false;
    // Not before: the receiver counts the block already, and a limit holds in between.
    uncount_freed(pool, numa_node, block);
    // While the block counted twice, other waiters may have been refused.
    const bool may_have_refused = hand_off.has_taken_back() || (is_counting(pool) && has_waiters(pool));
    if (given == Server::Given::undone || may_have_refused) serve_waiters(pool, actor);
    return true;
}

bool forget_wish(numacre_pool *pool, const Lane &lane) {
    const Nodes nodes{pool};
    Server hand_off{pool->view, nodes, Limits{pool}};
    if (hand_off.look(lane.actor) == WaitWord{} || hand_off.withdraw(lane.actor)) return false;
    std::uint32_t numa_node = 0;
    Block block;
    Block freed;
    // Whatever its size.
    CountedGift gift{pool, lane.actor, pool->geometry.largest().frames()};
    if (!hand_off.receive(lane.actor, lane.since_now, numa_node, block)) return false;
    (void)nodes.at(numa_node).free(lane.actor, block.base, freed);
    if (is_counting(pool)) note_freed(pool, numa_node, block);
    gift.is_received(block.order.frames());
    gift.is_freed();
    if (has_waiters(pool)) serve_waiters(pool, lane.actor);
    return true;
}

Errc wait_for_block(numacre_pool *pool, Lane &lane, const Plan &plan, Order order, Note note, unsigned timeout_ms,
                    Charge &charge, std::uint32_t &got, Block &block) {
    // Signal handlers run while the thread sleeps and at no other time: the thread then holds nothing but its wish, and
    // a handler may leave by siglongjmp.
    const SignalsBlocked signals_blocked;
    lane.is_asleep = false;  // a handler may have left before
    forget_wish(pool, lane);
    const Nodes nodes{pool};
    const std::uint64_t would_do = bit_of(plan.first) | plan.sooner | plan.later;
    Server hand_off{pool->view, nodes, Limits{pool}};
    const Actor actor = lane.actor;
    const std::uint64_t begin = now_nanoseconds();
    const std::uint64_t patience = std::uint64_t{timeout_ms} * 1'000'000;
    Errc over = Errc::ok;
    bool received = false;
    WaitWord wish;
    std::uint64_t asked_at = begin;
    bool has_asked = false;
    unsigned refusals = 0;  // by a quota, one after the other
    while (!received) {
        // Only asked, without a charge, which would refuse the process's other threads for a moment. A thread that may
        // not have the block does not get in line for it either: whoever releases something would look at it in vain,
        // as long as that is reserved for others.
        charge.answer = is_counting(pool) ? ask_frames(pool, order.frames()) : Admission::granted;
        const bool may = charge.answer == Admission::granted || charge.answer == Admission::full;
        refusals = charge.is_over_quota() ? refusals + 1 : 0;
        if (wish.is_waiting() && !may && hand_off.withdraw(actor)) wish = WaitWord{};
        if (wish.is_waiting()) {
            hand_off.raise_flag();  // a thread that had lowered it for a moment may have died
        } else if (may) {
            wish = hand_off.announce(actor, order, NumaNode{static_cast<std::uint8_t>(plan.first)}, would_do);
        }
        // Once a second: threads that were inside before the wait, or have used their caches since, may be idle by now.
        // Blocks in the caches of others count for these others, too: a thread that may not have a block asks at once.
        const std::uint64_t looked_at = now_nanoseconds();
        if ((!may && !has_asked) || looked_at - asked_at >= kWaiterLooksAgainAfterNanoseconds) {
            has_asked = true;
            asked_at = looked_at;
            // seq_cst: as in ask_others_to_give_back().
            pool->view.header->attention.fetch_add(Attention::kPressureStep, std::memory_order_seq_cst);
            (void)take_back_idle_caches(pool, lane, looked_at);
        }
        serve_waiters(pool, actor);
        // relaxed: an age in seconds; a look later is soon enough for everything else.
        const std::uint64_t attention = lane.attention_word().load(std::memory_order_relaxed);
        std::uint64_t slice = may             ? kWaiterLooksAgainAfterNanoseconds
                              : refusals == 0 ? kReservedAgainAfterNanoseconds
                                              : kRefusedAgainAfterNanoseconds;
        if (is_damaged(*pool, attention)) {
            over = Errc::corrupt;
        } else if (refusals >= kRefusals && (refusals >= kRefusalsMost || !is_anything_on_the_way(pool))) {
            over = Errc::over_quota;
        } else if (timeout_ms != 0) {
            const std::uint64_t waited = now_nanoseconds() - begin;
            if (waited >= patience)
                over = Errc::timed_out;
            else
                slice = std::min(slice, patience - waited);
        }
        if (over != Errc::ok && hand_off.withdraw(actor)) break;
        if (over == Errc::ok && hand_off.look(actor) == wish) {
            lane.is_asleep = true;
            std::atomic_signal_fence(std::memory_order_seq_cst);  // handlers of this thread look at it
            signals_blocked.let_in();
            sleep_in_naps(pool, actor.thread, wish, begin, slice);
            SignalsBlocked::keep_out();
            std::atomic_signal_fence(std::memory_order_seq_cst);
            lane.is_asleep = false;
            // A handler has forked, and this is the child: nothing of the pool is mapped here.
            if (pool->fork_generation != fork_generation()) return Errc::forked_handle;
        }
        WaitWord now = hand_off.look(actor);
        if (now == wish.nudged()) now = hand_off.calm(actor, wish);
        if (!hand_off.has_ended(wish, now)) continue;
        CountedGift gift{pool, actor, order.frames()};
        received = hand_off.receive(actor, note.with_since(Attention::age(attention)), got, block);
        if (received) gift.is_received(order.frames());
        wish = WaitWord{};
    }
    if (has_waiters(pool)) serve_waiters(pool, actor);
    return received ? Errc::ok : over;
}

}  // namespace numacre::client
