// The slow side of the thread cache: its limits, its refill, and its return of blocks.
//
// The design follows iBuddy's lazy layer (TC 2015): small magazines per order. An empty magazine takes many blocks of a
// leaf word at a time. A full magazine gives as many back, those that were freed last, and is never drained in a burst.
// (iBuddy passes a full magazine block by block; several blocks of one leaf word by one RMW are cheaper, where a word
// has several.) All threads together may hold about one sixteenth of what is online. When memory has run out anywhere
// (PoolHeader::attention), a thread gives all its cached blocks back at its next calls, some at each. A thread also
// gives them back at its end.
#include "cache.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <span>

#include "errors.hpp"
#include "numacre/shm/idle_caches.hpp"
#include "pool.hpp"
#include "report.hpp"

namespace numacre::client {
namespace {

constexpr std::uint32_t kLeastUseful = 4;  // a smaller magazine is not used
constexpr std::uint32_t kRefillBlocks = 32;
constexpr std::uint32_t kRestraint = 256;
// A call gives back so many blocks of a cache that has been asked for. That takes some tens of microseconds, also if
// each block costs misses of the processor's caches.
constexpr std::uint32_t kGivenBackAtOnce = 256;
constexpr std::uint64_t kLargestCachedBytes = 2 << 20;
// Divisors of a numa node's memory, for all threads together: the share of one order while the other orders hold
// nothing, and the share that one order always may hold.
constexpr std::uint64_t kShare = 16;
constexpr std::uint64_t kShareOfOneOrder = 32;

// Frames of a numa node that are online, on the average: where a pool can grow far, caches sized by its capacity would
// hold most of what is there.
std::uint64_t frames_there(const numacre_pool *pool) {
    // relaxed: a preference. 0: a private pool, all of which is there.
    const std::uint64_t online = pool->view.header->online_frames.load(std::memory_order_relaxed) / pool->numa_nodes;
    return online == 0 ? pool->geometry.frame_count : std::min(pool->geometry.frame_count, online);
}

std::uint32_t limit_of(const numacre_pool *pool, const NodeLane &node, unsigned order) {
    const Magazine &magazine = node.magazines[order];
    if (pool->checks_frees || order > pool->geometry.largest_order ||
        std::uint64_t{1} << magazine.block_shift > kLargestCachedBytes)
        return 0;
    const std::uint64_t threads = magazine.slots_bound > 2 ? magazine.slots_bound - 1 : 1;
    const std::uint64_t frames = frames_there(pool) / threads;
    std::uint64_t of_others = 0;
    for (unsigned other = 0; other < kCachedOrders; ++other)
        if (other != order) of_others += std::uint64_t{node.magazines[other].count()} << other;
    const std::uint64_t left = frames / kShare - std::min(frames / kShare, of_others);
    const std::uint64_t blocks = std::max(frames / kShareOfOneOrder, left) >> order;
    if (blocks < kLeastUseful) return 0;
    return blocks < kMagazineBlocks ? static_cast<std::uint32_t>(blocks) : kMagazineBlocks;
}

// Sets the magazine's limit to its present share. False: the share is 0.
bool prepare(const numacre_pool *pool, NodeLane &node, unsigned order) {
    Magazine &magazine = node.magazines[order];
    magazine.slots_bound = pool->view.threads_in_use_bound();
    const std::uint32_t capacity = limit_of(pool, node, order);
    magazine.limit = magazine.bottom + capacity;
    return capacity != 0;
}

// yes: others may take the thread's blocks back meanwhile. no: within CacheSteps.
enum class Contended : bool { no, yes };

// Gives back blocks until `keep` are left. A block that is no longer in this thread's cache (taken back by others, or
// freed by two threads in the same moment) is left to its owner. at_end() is called after each batch.
template <class AtEnd>
std::uint32_t give_back(const Lane &lane, NodeLane &node, Magazine &magazine, std::uint32_t keep, Contended contended,
                        const AtEnd &at_end) {
    std::uint32_t given = 0;
    while (magazine.count() > keep) {
        FrameIndex bases[kLeafFrames];
        std::uint32_t batch = 0;
        while (batch < kLeafFrames && magazine.count() > keep) bases[batch++] = frame_of(lane, node, *--magazine.top);
        for (std::uint32_t done = 0; done < batch; ++done) {
            const unsigned freed = node.buddy->free_many(lane.actor, BlockState::cached, bases + done, batch - done,
                                                         contended == Contended::yes);
            given += freed;
            done += freed;
        }
        at_end(std::span(bases).first(batch));
    }
    return given;
}

std::uint32_t give_back_counted(numacre_pool *pool, const Lane &lane, NodeLane &node, unsigned order,
                                std::uint32_t keep, Contended contended) {
    const std::uint32_t cached = node.magazines[order].count();
    const CountedCall call{pool, lane.actor, std::uint64_t{cached > keep ? cached - keep : 0} << order};
    const bool is_counted = is_counting(pool);
    // A block that others have taken back is noted twice then: the daemon's next look at drains mends the number.
    const auto note = [&](std::span<const FrameIndex> bases) {
        if (!is_counted) return;
        for (const FrameIndex base : bases)
            note_freed(pool->view, std::uint64_t{1} << order, [&] { return node.buddy->is_draining(base); });
    };
    const std::uint32_t blocks = give_back(lane, node, node.magazines[order], keep, contended, note);
    if (blocks != 0 && is_counted) uncharge_frames(pool, std::uint64_t{blocks} << order);
    return blocks;
}

// The number of blocks that go into an empty magazine, or out of a full one.
std::uint32_t blocks_at_a_time(const Magazine &magazine, unsigned order) {
    if (order >= kSingleOrder) return 0;
    const std::uint32_t capacity = magazine.capacity();
    return capacity < 2 * kRefillBlocks ? capacity / 2 : kRefillBlocks;
}

}  // namespace

bool refill(numacre_pool *pool, Lane &lane, NodeLane &node, unsigned order) {
    // The top block was not cached any more, but the magazine has other blocks.
    if (!node.magazines[order].is_empty()) return true;
    if (lane.restraint != 0) {
        --lane.restraint;
        return false;
    }
    Magazine &magazine = node.magazines[order];
    if (!prepare(pool, node, order)) return false;
    const std::uint32_t wanted = blocks_at_a_time(magazine, order);
    if (wanted == 0) return false;
    // Near a limit, blocks are allocated one by one past the cache: that path handles a refusal.
    const bool is_counted = is_counting(pool);
    const CountedCall call{pool, lane.actor, std::uint64_t{wanted} << order};
    if (is_counted && charge_frames(pool, lane.actor, std::uint64_t{wanted} << order) != Admission::granted) {
        // The refill is not tried at each call: a charge that stands for a moment may be the reason why others are
        // refused.
        lane.restraint = kRestraint;
        return false;
    }
    if (const Fit fit = fit_of(pool); fit != Fit::nearby) begin_where_it_fits(lane, node, fit, order);
    FrameIndex bases[kRefillBlocks];
    const unsigned got = node.buddy->allocate_many(lane.actor, Order{order}, BlockState::cached, {}, bases, wanted);
    if (is_counted && got != wanted) uncharge_frames(pool, std::uint64_t{wanted - got} << order);
    // The block of the lowest address is on top: it is handed out next.
    for (unsigned i = got; i-- > 0;) *magazine.top++ = address_of(lane, node, bases[i]);
    // Waiting threads may have been refused while the whole batch was charged.
    if (is_counted && got != wanted && has_waiters(pool)) serve_waiters(pool, lane.actor);
    return !magazine.is_empty();
}

int read_checks(numacre_pool *pool) {
    const char *const said = secure_getenv("NUMACRE_CHECK_FREES");
    if (said == nullptr || *said == '\0' || strcmp(said, "0") == 0) return 0;
    if (strcmp(said, "1") != 0)
        return fail_with_remedy(Errc::bad_argument, "NUMACRE_CHECK_FREES=%s: use 1, 0, or do not set it", said);
    pool->checks_frees = true;
    return 0;
}

void begin_where_it_fits(Lane &lane, NodeLane &node, Fit fit, unsigned order) {
    const NodeView<Env> &view = node.buddy->view();
    Block block;
    if (!FitLook{view, Order{order}, fit}.find(++lane.looks, block)) return;
    // relaxed: only this thread reads it.
    view.home[lane.actor.thread.value].word[order].store(Home{block.base.value, 0}.bits(), std::memory_order_relaxed);
}

bool make_room(numacre_pool *pool, Lane &lane, NodeLane &node, unsigned order) {
    const Magazine &magazine = node.magazines[order];
    if (lane.restraint != 0 || !magazine.is_full() || !prepare(pool, node, order)) return false;
    if (!magazine.is_full()) return true;
    const std::uint32_t keep = magazine.capacity() - blocks_at_a_time(magazine, order);
    std::uint32_t given = 0;
    {
        const CacheSteps steps{lane};
        if (!steps) return false;
        given = give_back_counted(pool, lane, node, order, keep, Contended::no);
    }
    if (given != 0 && has_waiters(pool)) serve_waiters(pool, lane.actor);
    return !magazine.is_full();
}

GivenBack give_back_some(numacre_pool *pool, Lane &lane, std::uint32_t most) {
    GivenBack result{0, true};
    for (std::uint32_t numa_node = 0; numa_node < lane.numa_nodes; ++numa_node) {
        NodeLane &node = lane.nodes[numa_node];
        for (unsigned order = 0; order < kCachedOrders; ++order) {
            const std::uint32_t cached = node.magazines[order].count();
            const std::uint32_t part = std::min(cached, most);
            most -= part;
            result.is_all = result.is_all && part == cached;
            result.blocks += give_back_counted(pool, lane, node, order, cached - part, Contended::yes);
        }
    }
    if (result.blocks != 0 && has_waiters(pool)) serve_waiters(pool, lane.actor);
    return result;
}

std::uint32_t give_back_all(numacre_pool *pool, Lane &lane) {
    return give_back_some(pool, lane, ~std::uint32_t{0}).blocks;
}

void note_attention(Lane &lane, std::uint64_t bits) {
    // While a thread waits, a chunk is draining, or the pool may be closed, each call looks again.
    lane.attention_seen = bits & ~(Attention::kWaiters | Attention::kLookAtState | Attention::kDraining);
    lane.since_now = Note{Attention::age(bits)};
    for (NodeLane *node = lane.nodes; node <= lane.only; ++node) node->allocates_nothing();
    auto &slot = lane.pool->view.threads[lane.actor.thread.value];
    if (lane.pool->shares_caches)
        answer_request(slot, bits);
    else
        slot.answered.store(Answered::kNever, std::memory_order_relaxed);
}

void answer_attention(numacre_pool *pool, Lane &lane) {
    const std::uint64_t now = lane.attention_word().load(std::memory_order_seq_cst);
    const std::uint64_t changed = now ^ lane.attention_seen;
    forget_wish(pool, lane);
    // A draining chunk concerns only its own blocks (slow_free). For blocks of that chunk that are cached already, the
    // daemon asks separately and repeatedly.
    if ((changed & ~(Attention::kAgeMask | Attention::kDraining)) != 0) {
        lane.restraint = kRestraint;
        // Until the answer the thread does not use its cache, and others may take what is left in it. So the thread may
        // answer some calls later, and no call takes long. (But at once if nobody can take it, or if a thread waits:
        // this may be the thread's last call.)
        const bool may_be_taken = pool->shares_caches && (now & Attention::kWaiters) == 0;
        if (!give_back_some(pool, lane, may_be_taken ? kGivenBackAtOnce : ~std::uint32_t{0}).is_all) return;
    }
    note_attention(lane, now);
    if ((changed & Attention::kAgeMask) != 0) look_at_placement(pool, lane);
}

Lane *attentive_lane_of(numacre_pool *pool, int &error) {
    Lane *const lane = lane_of(pool, error);
    if (lane != nullptr && is_inside_or_changes_hints(lane->nodes[0])) [[unlikely]] {
        error = thread_is_inside(pool);
        return nullptr;
    }
    if (lane != nullptr && !lane->undisturbed()) answer_attention(pool, *lane);
    return lane;
}

void ask_others_to_give_back(numacre_pool *pool, Lane &lane) {
    auto &attention = pool->view.header->attention;
    // seq_cst: before all CPUs pass a barrier (idle_caches.hpp). Other threads act at their next call. This thread's
    // cache is empty already.
    const std::uint64_t before = attention.fetch_add(Attention::kPressureStep, std::memory_order_seq_cst);
    note_attention(lane, before + Attention::kPressureStep);
    lane.restraint = kRestraint;
}

}  // namespace numacre::client
