#include "pool/pool_scan.hpp"

#include <algorithm>
#include <utility>

#include "numacre/shm/account.hpp"

namespace numacre::daemon {

PoolScan::PoolScan(const Geometry &geometry, const SharedPool &shared, const std::vector<View> &views,
                   const std::vector<std::unique_ptr<NodeMemory>> &nodes, const ClientTable &clients,
                   const std::atomic<std::uint64_t> &withheld_bytes)
    : geometry_(geometry),
      shared_(shared),
      views_(views),
      nodes_(nodes),
      clients_(clients),
      withheld_bytes_(withheld_bytes) {}

std::uint64_t PoolScan::begun() const {
    return begun_.load(std::memory_order_relaxed);  // relaxed: compared under the record lock
}

Use PoolScan::begin() {
    Use use;
    use.number = begun_.fetch_add(1, std::memory_order_relaxed) + 1;  // relaxed: as in begun()
    use.seats = clients_.versions();
    use.used_frames.resize(use.seats.size(), 0);
    read_counts(use);
    use.under_way = frames_under_way();
    return use;
}

// As settle() of account.hpp, and for the same reason: a block that is handed on between two reads would hide as much
// that has been granted and not been taken yet.
void PoolScan::read_counts(Use &use) const {
    constexpr unsigned kReadings = 8;
    const auto slots = static_cast<std::uint32_t>(use.seats.size());
    use.coming.assign(slots, 0);
    use.counts.assign(slots, 0);
    // Words that nobody keeps up any more have old counts in them.
    if (!is_counting()) return;
    std::vector<Words> last(slots);
    for (unsigned reading = 0; reading < kReadings; ++reading) {
        bool agrees = reading != 0;
        for (std::uint32_t i = 0; i < slots; ++i) {
            const std::uint32_t slot = reading % 2 == 0 ? i : slots - 1 - i;
            const Words words = words_of(shared_.processes[slot]);
            agrees = agrees && words == last[slot];
            last[slot] = words;
            use.coming[slot] = std::max(use.coming[slot], OnTheWay{words.on_the_way}.frames());
            if (HeldFrames{words.held}.frames() >= HeldFrames{use.counts[slot]}.frames()) use.counts[slot] = words.held;
        }
        if (!agrees) continue;
        for (std::uint32_t slot = 0; slot < slots; ++slot) {
            use.coming[slot] = OnTheWay{last[slot].on_the_way}.frames();
            use.counts[slot] = last[slot].held;
        }
        return;
    }
}

// seq_cst: a look that begins after the counting reads counts, see PoolRecords::write_accounting().
bool PoolScan::is_counting() const {
    return (shared_.header->accounting.load(std::memory_order_seq_cst) & Accounting::kCount) != 0;
}

std::vector<std::uint64_t> PoolScan::frames_under_way() const {
    std::vector<std::uint64_t> frames(clients_.slots(), 0);
    if (!is_counting()) return frames;
    std::uint64_t of_anybody = 0;
    const std::uint32_t threads = shared_.threads_in_use_bound();
    // The daemon's own slot as well: the daemon takes idle caches back.
    for (std::uint32_t thread = kDaemonThread.value; thread < threads; ++thread) {
        const UnderWay call{shared_.threads[thread].under_way.load(std::memory_order_seq_cst)};
        if (call.frames() == 0) continue;
        const ThreadOwner owner{shared_.threads[thread].owner.load(std::memory_order_relaxed)};
        if (owner.in_use() && owner.process().value < frames.size()) frames[owner.process().value] += call.frames();
        if (call.giver() == UnderWay::kAnybody)
            of_anybody += call.frames();
        else if (call.giver() != UnderWay::kNobody && call.giver().value < frames.size())
            frames[call.giver().value] += call.frames();
    }
    for (std::uint64_t &of_process : frames) of_process += of_anybody;
    return frames;
}

std::vector<OwnerUsage> PoolScan::walk(Use &use, Units units) const {
    std::vector<OwnerUsage> usage(use.used_frames.size());
    std::vector<std::pair<std::uint64_t, std::size_t>> places;  // unit, where it stands in `units`; ascending
    for (std::size_t i = 0; i < units.units.size(); ++i) places.emplace_back(units.units[i], i);
    std::ranges::sort(places);
    use.used_unit_frames.assign(units.units.size(), 0);
    for (std::size_t i = 0; i < views_.size(); ++i) {
        const View &view = views_[i];
        NodeSnapshot snapshot;
        if (units.units.empty() || i != units.numa_node.value) {
            scan_node(view, snapshot, usage);
        } else {
            const std::uint64_t unit_frames = geometry_.frames_in(nodes_[i]->unit_bytes());
            scan_node(view, snapshot, usage, [&](FrameIndex first, std::uint64_t frames) {
                const std::uint64_t unit = first.value / unit_frames;
                const auto place = std::ranges::lower_bound(places, std::pair{unit, std::size_t{0}});
                if (place != places.end() && place->first == unit) use.used_unit_frames[place->second] += frames;
            });
        }
        use.add(snapshot);
    }
    for (std::size_t slot = 0; slot < usage.size(); ++slot) use.used_frames[slot] = usage[slot].frames;
    return usage;
}

Use PoolScan::look(Units units) {
    // seq_cst: after the promise of reserve()'s last look, if a shrink has seen none.
    const std::uint64_t withheld_bytes = withheld_bytes_.load(std::memory_order_seq_cst);
    const std::uint64_t changes = unit_changes();
    const NodeMemory::DrainingFrames before = draining_frames();
    Use use = begin();
    use.withheld_frames = geometry_.frames_in(withheld_bytes);
    walk(use, units);
    NodeMemory::DrainingFrames gone = draining_frames();
    // Of what has changed meanwhile nobody knows whether the walk has found it: it counts as gone whichever it was.
    if (changes != unit_changes()) {
        gone.free += before.free;
        gone.used += before.used;
    }
    find_free_to_promise(use, gone);
    return use;
}

void PoolScan::find_free_to_promise(Use &use, const NodeMemory::DrainingFrames &gone) const {
    std::uint64_t free_frames = 0;
    for (const Use::OfNode &node : use.nodes) free_frames += node.free_frames;
    // Frames that have been granted and not been taken yet: they are counted before they are taken.
    std::uint64_t granted_frames = 0;
    for (std::uint32_t slot = kDaemonProcess.value + 1; slot < use.used_frames.size(); ++slot)
        granted_frames += use.granted_to(slot) - use.used_frames[slot];
    use.promisable_frames =
        static_cast<std::int64_t>(free_frames) - static_cast<std::int64_t>(gone.free + granted_frames);
    use.used_draining_frames = gone.used;
}

std::uint64_t PoolScan::unit_changes() const {
    std::uint64_t changes = 0;
    for (const auto &memory : nodes_) changes += memory->unit_changes();
    return changes;
}

NodeMemory::DrainingFrames PoolScan::draining_frames() const {
    NodeMemory::DrainingFrames all;
    for (const auto &memory : nodes_) {
        const NodeMemory::DrainingFrames here = memory->draining_frames();
        all.free += here.free;
        all.used += here.used;
    }
    return all;
}

}  // namespace numacre::daemon
