#include "rest_checks.hpp"

namespace numacre::simulation {
namespace {

// The tree of a numa node, compared with the shadow.
struct Compare {
    const Processes &processes;
    const Shadow &shadow;
    Verdict &verdict;
    unsigned node;
    std::uint64_t owned_frames = 0, free_frames = 0, offline_frames = 0;
    std::array<std::int64_t, kMaxOrder + 1> live{};
    std::vector<std::uint64_t> by_slot;

    void owned(Block block, IndexEntry entry) {
        const std::uint32_t slot = entry.owner().value;
        if (entry.owner() == kDaemonProcess) return;  // seized
        if (slot >= by_slot.size())
            return verdict.record("frame " + std::to_string(first(block)) + " is held by slot " + std::to_string(slot));
        by_slot[slot] += block.order.frames();
        std::int32_t wanted = Shadow::kFree;
        if (!entry.is_cached()) {
            for (const Instance &instance : processes.instances())
                if (instance.slot == slot && instance.alive) wanted = instance.number;
            owned_frames += block.order.frames();
            ++live[block.order.value];
        }
        expect(block, wanted, entry.is_cached() ? "cached" : "owned", slot);
    }
    void free(Block block) {
        free_frames += block.order.frames();
        expect(block, Shadow::kFree, "free", 0);
    }
    void taken(FrameIndex frame, std::uint64_t frames) {
        verdict.record("at rest, " + std::to_string(frames) + " frames from " + std::to_string(frame.value) +
                       " on of numa node " + std::to_string(node) + " are taken by nobody");
    }
    void offline(Block block) {
        offline_frames += block.order.frames();
        expect(block, Shadow::kOffline, "offline", 0);
    }
    void damaged(Block block) {
        verdict.record("at rest, the entry of frame " + std::to_string(first(block)) + " is damaged");
    }
    void lost(Block block) {
        verdict.record("at rest, the block at frame " + std::to_string(first(block)) + " has lost frames");
    }
    void expect(Block block, std::int32_t wanted, const char *state, std::uint32_t slot) {
        for (std::uint64_t frame = first(block); frame < end(block); ++frame)
            if (shadow.owner(node, frame) != wanted)
                return verdict.record("at rest, the block of order " + std::to_string(block.order.value) +
                                      " at frame " + std::to_string(first(block)) + " of numa node " +
                                      std::to_string(node) + " is " + state + " (slot " + std::to_string(slot) +
                                      "), frame " + std::to_string(frame) + " should be " +
                                      std::to_string(shadow.owner(node, frame)) + "'s");
    }
};

}  // namespace

// The quota of the thread's process does not allow it a block of this order: another thread has used up the quota
// since the wish. Whoever frees a block of the process gives it to the thread.
bool RestChecks::is_forbidden(std::uint32_t thread, Order order) const {
    if ((peek(memory_.pool.header->accounting) & Accounting::kCount) == 0) return false;
    const ThreadOwner owner{peek(memory_.pool.threads[thread].owner)};
    if (!owner.in_use()) return false;
    const auto &record = memory_.pool.processes[owner.process().value];
    const std::uint64_t quota = peek(record.quota_frames);
    const std::uint64_t held = HeldFrames{peek(record.held)}.frames() + OnTheWay{peek(record.on_the_way)}.frames();
    return quota != 0 && held + order.frames() > quota;
}

void RestChecks::check_wake_ups() {
    for (std::uint32_t thread = 0; thread < memory_.pool.thread_slots; ++thread) {
        const WaitWord wish{peek(memory_.pool.threads[thread].waiting)};
        if (!wish.is_waiting()) continue;
        if (is_forbidden(thread, wish.order())) continue;
        const std::uint64_t nodes = peek(memory_.pool.threads[thread].nodes);
        Block found;
        for (unsigned node = 0; node < plan_.numa_nodes; ++node)
            if ((nodes >> node & 1) != 0 && history_.has_free_block(node, wish.order(), TreeHistory::kNow, found))
                return verdict_.record("thread slot " + std::to_string(thread) + " sleeps for a block of order " +
                                       std::to_string(wish.order().value) + " that is free at frame " +
                                       std::to_string(first(found)) + " of numa node " + std::to_string(node) +
                                       ", and nobody is about to tell it");
    }
}

void RestChecks::check_when_quiet(bool nobody_died) {
    verdict_.say("-- quiet --");
    std::vector<std::uint64_t> held(memory_.pool.process_slots, 0);
    for (unsigned node = 0; node < plan_.numa_nodes && verdict_.is_clean(); ++node) {
        Compare compare{processes_, shadow_, verdict_,
                        node,       0,       0,
                        0,          {},      std::vector<std::uint64_t>(memory_.pool.process_slots, 0)};
        walk_all(memory_.nodes[node], compare);
        if (const std::uint64_t owned = shadow_.owned_frames(node); owned != compare.owned_frames)
            verdict_.record(std::to_string(owned) + " frames of numa node " + std::to_string(node) +
                            " have owners, the tree knows of " + std::to_string(compare.owned_frames));
        for (std::uint32_t slot = 0; slot < memory_.pool.process_slots; ++slot) held[slot] += compare.by_slot[slot];
        const CounterTotals totals = fold_counters(memory_.nodes[node], memory_.pool.thread_slots);
        for (unsigned order = 0; nobody_died && order <= memory_.geometry.largest_order; ++order)
            if (static_cast<std::int64_t>(totals.allocations[order] - totals.frees[order]) != compare.live[order])
                verdict_.record(
                    "counters of order " + std::to_string(order) + " on numa node " + std::to_string(node) + " say " +
                    std::to_string(static_cast<std::int64_t>(totals.allocations[order] - totals.frees[order])) +
                    " blocks, there are " + std::to_string(compare.live[order]));
        if (const std::uint64_t words = Audit<Env>(memory_.pool, memory_.nodes[node]).run(); words != 0)
            verdict_.record("at rest, the audit finds " + std::to_string(words) + " impossible words");
    }
    for (std::uint32_t slot = 1; plan_.counts && nobody_died && slot < memory_.pool.process_slots; ++slot)
        if (const HeldFrames counted{peek(memory_.pool.processes[slot].held)};
            counted.is_counted() && counted.frames() != held[slot])
            verdict_.record("process slot " + std::to_string(slot) + " counts " + std::to_string(counted.frames()) +
                            " frames and holds " + std::to_string(held[slot]));
    for (std::uint32_t slot = 1; plan_.counts && nobody_died && slot < memory_.pool.process_slots; ++slot)
        if (const OnTheWay coming{peek(memory_.pool.processes[slot].on_the_way)}; coming.frames() != 0)
            verdict_.record("at rest, " + std::to_string(coming.frames()) + " frames are on the way to process slot " +
                            std::to_string(slot));
    check_slots(false);
}

void RestChecks::check_slots(bool ended) {
    if (const std::uint64_t found = count_impossible_thread_slots<Env>(memory_.pool, memory_.nodes); found != 0)
        verdict_.record("at rest, " + std::to_string(found) + " thread slots are impossible");
    for (std::uint32_t thread = 0; thread < memory_.pool.thread_slots; ++thread) {
        const auto &slot = memory_.pool.threads[thread];
        const std::string where = "at rest, thread slot " + std::to_string(thread);
        if (Intent{peek(slot.intent)}.active()) verdict_.record(where + " has an intent");
        if (HintWork{peek(slot.hint_work)}.active()) verdict_.record(where + " changes hints");
        if (peek(slot.waiting) != 0) verdict_.record(where + " has a word of waiting");
        if (ended && thread != 0 && peek(slot.owner) != 0) verdict_.record(where + " is taken");
    }
}

void RestChecks::check_at_end(bool nobody_died) {
    check_when_quiet(nobody_died);
    check_slots(true);
    for (unsigned node = 0; node < plan_.numa_nodes && verdict_.is_clean(); ++node) {
        NodeSnapshot snapshot;
        scan_node(memory_.nodes[node], snapshot, std::span<OwnerUsage>{});
        if (snapshot.free_frames != memory_.geometry.frame_count)
            verdict_.record("at the end " + std::to_string(snapshot.free_frames) + " of " +
                            std::to_string(memory_.geometry.frame_count) + " frames of numa node " +
                            std::to_string(node) + " are free");
        Buddy<Env> buddy{memory_.nodes[node], memory_.pool};
        for (std::uint64_t chunk = 0; chunk < memory_.geometry.chunk_count() && verdict_.is_clean(); ++chunk) {
            Block block;
            if (buddy.allocate({kDaemonThread, kDaemonProcess}, memory_.geometry.largest(), {}, block) != Errc::ok)
                verdict_.record("at the end only " + std::to_string(chunk) + " of " +
                                std::to_string(memory_.geometry.chunk_count()) + " largest blocks of numa node " +
                                std::to_string(node) + " can be found");
        }
    }
}

}  // namespace numacre::simulation
