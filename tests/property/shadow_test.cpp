// Random sequences of operations by several actors on one tree, compared after every step with the plainest allocator
// there is: one owner a frame. RapidCheck shrinks a failing sequence and prints the seed that replays it
// (RC_PARAMS="seed=...").
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <vector>

#include "support/shm_pool.hpp"

namespace numacre {

using namespace engine;
namespace {

using test::ShmPool;

constexpr unsigned kActors = 3;

struct Held {
    Block block;
    unsigned actor;
};

class Shadow {
public:
    Shadow(unsigned largest_order, std::uint64_t chunks)
        : pool_(64, std::uint64_t{64} << largest_order, chunks), owner_(pool_.geometry.frame_count, 0) {
        pool_.online_all();
        for (unsigned actor = 1; actor <= kActors; ++actor) actors_.push_back(pool_.actor(actor, actor));
    }

    void allocate(unsigned actor, unsigned order) {
        Block block;
        const Errc result = buddy().allocate(actors_[actor], Order{order}, {}, block);
        const bool possible = has_free(order);
        RC_ASSERT((result == Errc::ok) == possible);  // neither a false out-of-memory nor a block from nowhere
        if (result != Errc::ok) return;
        RC_ASSERT(pool_.node.contains(block));
        for (std::uint64_t f = 0; f < block.order.frames(); ++f) {
            RC_ASSERT(owner_[block.base.value + f] == 0);
            owner_[block.base.value + f] = static_cast<char>(actor + 1);
        }
        held_.push_back({block, actor});
    }

    void free(unsigned pick, unsigned by) {
        if (held_.empty()) return;
        const Held held = held_[pick % held_.size()];
        Block freed;
        const Errc result = buddy().free(actors_[by], held.block.base, freed);
        RC_ASSERT(result == (by == held.actor ? Errc::ok : Errc::not_owner));
        if (result != Errc::ok) return;
        RC_ASSERT(freed == held.block);
        forget(pick % held_.size());
    }

    // A free of any frame at all: only a base of a block of one's own may succeed.
    void free_anything(std::uint64_t frame, unsigned by) {
        frame %= pool_.geometry.frame_count;
        std::size_t at = held_.size();
        for (std::size_t i = 0; i < held_.size(); ++i)
            if (held_[i].block.base.value == frame) at = i;
        Block freed;
        const Errc result = buddy().free(actors_[by], FrameIndex{frame}, freed);
        if (at == held_.size())
            RC_ASSERT(result == Errc::stale_ref);
        else
            RC_ASSERT(result == (held_[at].actor == by ? Errc::ok : Errc::not_owner));
        if (result == Errc::ok) forget(at);
    }

    void take(unsigned pick, unsigned by) {
        if (held_.empty()) return;
        Held &held = held_[pick % held_.size()];
        Block found;
        IndexEntry entry;
        RC_ASSERT(buddy().find_entry(held.block.base, found, entry) == Errc::ok);
        const Reference reference = buddy().publish(held.block, entry);
        Block taken;
        RC_ASSERT(buddy().take(actors_[by], reference, {}, taken) == Errc::ok);
        RC_ASSERT(taken == held.block);
        RC_ASSERT(buddy().take(actors_[by], reference, {}, taken) == Errc::stale_ref);
        for (std::uint64_t f = 0; f < held.block.order.frames(); ++f)
            owner_[held.block.base.value + f] = static_cast<char>(by + 1);
        held.actor = by;
    }

    void die(unsigned actor) {
        Reclaimed total;
        ThreadSlotIndex blocked_by;
        RC_ASSERT(pool_.kill_and_recover(actor + 1, total, blocked_by) == RecoveryStep::done);
        std::uint64_t blocks = 0;
        for (std::size_t i = held_.size(); i-- > 0;)
            if (held_[i].actor == actor) {
                forget(i);
                ++blocks;
            }
        RC_ASSERT(total.blocks == blocks);
        actors_[actor] = pool_.actor(actor + 1, actor + 1);
    }

    void check() {
        NodeSnapshot snapshot;
        OwnerUsage usage[ShmPool::kProcesses] = {};
        scan_node<ProductionEnv>(pool_.node, snapshot, usage);
        std::uint64_t frames_of[kActors + 1] = {};
        for (const char owner : owner_) ++frames_of[static_cast<unsigned>(owner)];
        RC_ASSERT(snapshot.free_frames == frames_of[0]);
        RC_ASSERT(snapshot.damaged_entries + snapshot.lost_blocks == 0U);
        for (unsigned actor = 1; actor <= kActors; ++actor) RC_ASSERT(usage[actor].frames == frames_of[actor]);
    }

    std::uint64_t frame_count() const { return pool_.geometry.frame_count; }

private:
    Buddy<ProductionEnv> buddy() { return {pool_.node, pool_.view}; }
    bool has_free(unsigned order) const {
        for (std::uint64_t base = 0; base < owner_.size(); base += std::uint64_t{1} << order) {
            bool free = true;
            for (std::uint64_t f = base; f < base + (std::uint64_t{1} << order) && free; ++f) free = owner_[f] == 0;
            if (free) return true;
        }
        return false;
    }
    void forget(std::size_t index) {
        const Block block = held_[index].block;
        for (std::uint64_t f = 0; f < block.order.frames(); ++f) owner_[block.base.value + f] = 0;
        held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(index));
    }

    ShmPool pool_;
    std::vector<char> owner_;  // actor + 1, 0 = free
    std::vector<Held> held_;
    std::vector<Actor> actors_;
};

void run_random_operations(unsigned largest_order, std::uint64_t chunks) {
    Shadow shadow{largest_order, chunks};
    const auto operations = *rc::gen::container<std::vector<std::tuple<int, unsigned, unsigned, unsigned>>>(
        rc::gen::tuple(rc::gen::inRange(0, 100), rc::gen::inRange(0U, kActors), rc::gen::inRange(0U, largest_order + 1),
                       rc::gen::arbitrary<unsigned>()));
    for (const auto &[kind, actor, order, pick] : operations) {
        if (kind < 55)
            shadow.allocate(actor, order);
        else if (kind < 85)
            shadow.free(pick, actor);
        else if (kind < 90)
            shadow.free_anything(pick, actor);
        else if (kind < 97)
            shadow.take(pick, actor);
        else
            shadow.die(actor);
        shadow.check();
    }
}

RC_GTEST_PROP(ShadowAllocator, agrees_within_one_leaf_word, ()) {
    run_random_operations(5, 2);
}
RC_GTEST_PROP(ShadowAllocator, agrees_with_one_upper_layer, ()) {
    run_random_operations(8, 3);
}
RC_GTEST_PROP(ShadowAllocator, agrees_with_two_upper_layers, ()) {
    run_random_operations(11, 2);
}

}  // namespace
}  // namespace numacre
