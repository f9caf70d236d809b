// Takes back cached blocks of threads that do not use their caches (shm/idle_caches.hpp): the system call, how often it
// is made, and the counts of the processes that lose blocks.
#include "idle.hpp"

#include <cstdlib>
#include <cstring>

#include "engine.hpp"
#include "errors.hpp"
#include "numacre/os/kernel.hpp"
#include "numacre/shm/idle_caches.hpp"
#include "pool.hpp"

namespace numacre::client {
namespace {

constexpr std::uint64_t kBarrierAgainAfterNanoseconds = 10'000'000;

// Around each block that is taken back: the count of the process whose thread cached it.
class CountedLoss {
public:
    CountedLoss(numacre_pool *pool, Actor actor, std::uint32_t numa_node)
        : pool_(pool), actor_(actor), numa_node_(numa_node) {}

    void before(ProcessSlot process, Block block) {
        if (!is_counting(pool_)) return;
        generation_ = generation_of(pool_, process);
        call_.begin(pool_, actor_, block.order.frames(), process);
    }
    void after(ProcessSlot process, Block block, bool is_freed) {
        if (is_freed && is_counting(pool_) && process.value < pool_->view.process_slots) {
            note_freed(pool_, numa_node_, block);
            remove_held(pool_->view, process, block.order.frames(),
                        [&] { return generation_of(pool_, process) == generation_; });
        }
        call_.end();
    }

private:
    numacre_pool *pool_;
    Actor actor_;
    std::uint32_t numa_node_;
    std::uint64_t generation_ = 0;
    CountedCall call_;
};

// The latest request before which all CPUs have passed a barrier. 0: none.
std::uint64_t passed_request(numacre_pool *pool) {
    auto &header = *pool->view.header;
    const std::uint64_t now = now_nanoseconds();
    // relaxed: the CAS decides. Clocks of time namespaces differ: then there are more barriers, or fewer.
    std::uint64_t before = header.barrier_at.load(std::memory_order_relaxed);
    if (now - before >= kBarrierAgainAfterNanoseconds &&
        header.barrier_at.compare_exchange_strong(before, now, std::memory_order_relaxed)) {
        // seq_cst: the request stands in the word before the barrier.
        const std::uint64_t request = Attention::requests(header.attention.load(std::memory_order_seq_cst));
        // EDGE barrier-then-look (release; partner: the acquire below): whoever uses the barrier's result looks after
        // it.
        if (os::pass_barrier() == 0) header.barrier_for.store(request, std::memory_order_release);
    }
    return header.barrier_for.load(std::memory_order_acquire);
}

}  // namespace

int share_caches(numacre_pool *pool) {
    const char *const said = secure_getenv("NUMACRE_NOBARRIER");
    const bool is_unset = said == nullptr || *said == '\0' || strcmp(said, "0") == 0;
    if (!is_unset && strcmp(said, "1") != 0)
        return fail(Errc::bad_argument, "NUMACRE_NOBARRIER=%s: use 1, 0, or do not set it", said);
    pool->shares_caches = is_unset && os::register_for_barriers() == 0;
    return 0;
}

std::uint64_t take_back_idle_caches(numacre_pool *pool, const Lane &lane) {
    auto &header = *pool->view.header;
    // acquire: with the entries that the walk of that request has changed.
    const std::uint64_t gathered = header.gathered_for.load(std::memory_order_acquire);
    const std::uint64_t now = Attention::requests(header.attention.load(std::memory_order_seq_cst));
    if (!may_be_any_idle_cache(pool->view, lane.actor.thread, gathered, now)) return 0;
    const std::uint64_t request = passed_request(pool);
    if (request == 0 || request == gathered) return 0;
    std::uint64_t frames = 0;
    const bool leaves_none = all_are_outside(pool->view, request);
    for (std::uint32_t node = 0; node < pool->numa_nodes; ++node) {
        CountedLoss loss{pool, lane.actor, node};
        frames += IdleCaches<Env>{pool->view, pool->nodes[node].buddy().view(), request}.take_back(
            lane.actor, [&](ProcessSlot process, Block block) { loss.before(process, block); },
            [&](ProcessSlot process, Block block, bool is_freed) { loss.after(process, block, is_freed); });
    }
    // release: others that find this number need not walk. Of two walks at once the later one to end decides: an older
    // number costs a walk.
    if (leaves_none) header.gathered_for.store(request, std::memory_order_release);
    if (frames != 0 && has_waiters(pool)) serve_waiters(pool, lane.actor);
    return frames;
}

}  // namespace numacre::client
