#include "pool/sizing.hpp"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/bytes.hpp"
#include "os/log.hpp"

namespace numacre::daemon {

namespace {

// Small units go together up to this, so that a pool of 64 KiB chunks does not take a step each.
constexpr std::uint64_t kStepBytes = std::uint64_t{16} << 20;
// A large shrink takes more at once, a quarter of what is to go: a claim is quick, and each run of pages that goes back
// interrupts the clients' CPUs once. Some milliseconds of the worker at most.
constexpr std::uint64_t kShrinkStepBytesMax = std::uint64_t{256} << 20;
constexpr std::uint64_t kShrinkStepBytesOfSmallPages = std::uint64_t{64} << 20;  // each page costs the kernel more
constexpr std::uint64_t kShrinkSteps = 4;

// Looked at in one job at most: a pool of tiny chunks has millions, and the pool's dead wait for its worker.
constexpr std::uint64_t kFramesAtOnce = std::uint64_t{1} << 22;
constexpr std::chrono::milliseconds kPatienceWithCaches{20};
// How often a shrink looks at units that it drains, before it says who is in the way; and how long at most it keeps
// allocations out of them, but for the first look, which takes as long as there are blocks.
constexpr int kDrainAttempts = 5;
constexpr std::chrono::milliseconds kDrainPatience{100};

using Progress = std::function<bool(const ResizeStep &)>;

// The memory of a step is withheld from others while it is looked at: where memory is promised, the steps stay small.
std::uint64_t shrink_step_bytes(const ManagedPool &pool, const NodeMemory &memory, std::uint64_t excess) {
    if (pool.has_reservations()) return kStepBytes;
    const bool is_huge = is_hugetlb(memory.data().backing());
    return std::clamp(excess / kShrinkSteps, kStepBytes, is_huge ? kShrinkStepBytesMax : kShrinkStepBytesOfSmallPages);
}

Failure damaged(const ManagedPool &pool) {
    return {Errc::corrupt, "pool \"" + pool.name() +
                               "\" is damaged and left as it is: see the runbook NumacrePoolCorrupt, then delete it"};
}

std::string describe(const std::vector<BlockHolder> &holders) {
    constexpr std::size_t kNamed = 5;
    std::string text;
    for (std::size_t i = 0; i < holders.size() && i < kNamed; ++i) {
        text += (i == 0 ? "" : ", ");
        text += holders[i].client_id == 0 ? (holders[i].comm.empty() ? "somebody who is leaving" : holders[i].comm)
                                          : "client " + std::to_string(holders[i].client_id) + " (" + holders[i].comm +
                                                ", pid " + std::to_string(holders[i].pid) + ")";
        if (holders[i].bytes != 0) text += " holds " + format_bytes(holders[i].bytes);
        if (holders[i].pinned_bytes != 0)
            text += (holders[i].bytes != 0 ? " and pins " : " pins ") + format_bytes(holders[i].pinned_bytes);
    }
    if (holders.size() > kNamed) text += " and " + std::to_string(holders.size() - kNamed) + " more";
    return text;
}

std::uint64_t units_in(std::uint64_t step_bytes, const NodeMemory &memory) {
    return std::max<std::uint64_t>(1, step_bytes / memory.unit_bytes());
}

// Calls job(first, last) on the worker for pieces of [0, count), one job a piece; each stands for a unit.
template <class Job>
void in_pieces(ManagedPool &pool, const NodeMemory &memory, std::uint64_t count, Job &&job) {
    const std::uint64_t frames_of_unit = pool.geometry().frames_in(memory.unit_bytes());
    const std::uint64_t piece = std::max<std::uint64_t>(1, kFramesAtOnce / frames_of_unit);
    for (std::uint64_t first = 0; first < count; first += piece)
        pool.worker().run([&] {
            job(first, std::min(count, first + piece));
            return true;
        });
}

// Takes back what a grow has brought online; blocks that clients have by now keep their units, and so does what has
// been promised meanwhile. The bytes that went.
std::uint64_t undo(ManagedPool &pool, NodeMemory &memory, std::uint64_t before, Growth growth) {
    const std::uint64_t reached = memory.online_bytes();
    const auto pass = [&](Growth part) {
        // A unit that an earlier pass has taken counts as gone already.
        pool.worker().run(
            [&] { return std::erase_if(part.units, [&](std::uint64_t unit) { return !memory.is_online(unit); }); });
        while (!part.units.empty()) {
            const std::uint64_t step_units = std::min<std::uint64_t>(units_in(kStepBytes, memory), part.units.size());
            const std::uint64_t step_bytes = step_units * memory.unit_bytes();
            const ManagedPool::Withheld withheld(pool, step_bytes);
            const auto empty =
                pool.empty_units({memory.numa_node(), std::span(part.units).last(step_units)}, step_bytes, withheld);
            if (!empty) break;
            part.units.resize(part.units.size() - step_units);
            part.units.insert(part.units.end(), empty->begin(), empty->end());
            pool.worker().run([&] { return memory.undo(part, empty->size()); });
        }
        growth.reserved_pages = part.reserved_pages;
        growth.ahead_bytes = part.ahead_bytes;
    };
    pass(growth);
    if (memory.online_bytes() > before) {
        // Perhaps only caches are in the way: threads that are at work empty them now, those of the others are taken.
        pool.worker().run([&] { return pool.gather_cached_blocks(); });
        std::this_thread::sleep_for(kPatienceWithCaches);
        pass(growth);
    }
    return reached - std::min(reached, memory.online_bytes());
}

Answer<void> grow(ManagedPool &pool, NodeMemory &memory, std::uint64_t target, const Progress &progress) {
    const std::uint64_t before = memory.online_bytes();
    if (auto enough = memory.check_memory_left(target - before); !enough) {
        progress(ResizeStep{before, target, true, enough.error().message, {}});
        return enough;
    }
    Growth growth;
    // Half a growth helps nobody, and the memory is missed elsewhere. Says in the last step, and in the failure, what
    // has become of the pool.
    const auto give_up = [&](Failure why) {
        const std::uint64_t undone = undo(pool, memory, before, std::move(growth));
        const std::uint64_t left = memory.online_bytes();
        why.message += "; ";
        if (undone != 0) why.message += format_bytes(undone) + " that had come online went back, ";
        why.message +=
            format_bytes(left) + (left > before ? " stay online: clients use some of it already, or it is reserved"
                                                : " are online, as before");
        progress(ResizeStep{left, target, true, why.message, {}, undone});
        return Unexpected{std::move(why)};
    };
    while (memory.online_bytes() < target) {
        const std::uint64_t missing = (target - memory.online_bytes()) / memory.unit_bytes();
        auto grown = pool.worker().run([&]() -> Answer<void> {
            const UnitRange units = memory.next_offline(std::min(units_in(kStepBytes, memory), missing));
            if (units.count == 0) return Unexpected{Failure{Errc::bad_argument, "everything is online already"}};
            return memory.bring_online(units, growth);
        });
        pool.publish_sizes();
        pool.wake_waiters();
        // A damaged pool is left as it is.
        if (pool.look_for_damage()) return Unexpected{damaged(pool)};
        if (!grown) return give_up(std::move(grown.error()));
        const bool done = memory.online_bytes() >= target;
        if (!progress(ResizeStep{memory.online_bytes(), target, done, {}, {}}) && !done)
            return give_up({Errc::cancelled, "cancelled"});
    }
    return {};
}

// The units that a shrink would like to take: the emptiest first, of equals the highest. Pinned ones, which cannot go,
// are last: they are only chosen where there is nothing else, to be told of.
std::vector<std::uint64_t> candidates(ManagedPool &pool, NodeMemory &memory, std::uint64_t limit) {
    constexpr std::uint64_t kPinned = ~std::uint64_t{0};
    std::vector<std::pair<std::uint64_t, std::uint64_t>> units;  // used frames, unit
    in_pieces(pool, memory, memory.unit_count(), [&](std::uint64_t unit, std::uint64_t last) {
        for (; unit < last; ++unit)
            if (memory.is_online(unit))
                units.emplace_back(memory.is_pinned(unit) ? kPinned : memory.used_frames(unit), unit);
    });
    const auto is_sooner = [](const auto &a, const auto &b) {
        return a.first != b.first ? a.first < b.first : a.second > b.second;
    };
    const auto end = units.begin() + static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(units.size(), limit));
    std::partial_sort(units.begin(), end, units.end(), is_sooner);
    std::vector<std::uint64_t> chosen;
    for (auto unit = units.begin(); unit != end; ++unit) chosen.push_back(unit->second);
    return chosen;
}

std::vector<UnitRange> as_ranges(const std::vector<std::uint64_t> &units) {
    std::vector<UnitRange> ranges;
    for (const std::uint64_t unit : units) ranges.push_back({unit, 1});
    return ranges;
}

// While it lives, the units that a shrink still wants get no new allocations: so that they empty, not fill again. Those
// that are online then are open again, unless an operator is draining them.
class ShrinkDrain {
public:
    ShrinkDrain(ManagedPool &pool, NodeMemory &memory) : pool_(pool), memory_(memory) {}
    ShrinkDrain(const ShrinkDrain &) = delete;
    ShrinkDrain &operator=(const ShrinkDrain &) = delete;
    ~ShrinkDrain() {
        if (drained_.empty()) return;
        in_pieces(pool_, memory_, drained_.size(), [&](std::uint64_t i, std::uint64_t last) {
            for (; i < last; ++i)
                if (memory_.drain_of(drained_[i]) == Drain::resize) memory_.set_drain(drained_[i], Drain::none);
        });
        pool_.publish_sizes();
        pool_.wake_waiters();
    }
    void add(const std::vector<std::uint64_t> &units) {
        in_pieces(pool_, memory_, units.size(), [&](std::uint64_t i, std::uint64_t last) {
            for (; i < last; ++i) {
                if (!memory_.is_online(units[i]) || memory_.drain_of(units[i]) != Drain::none ||
                    memory_.is_pinned(units[i]))
                    continue;
                memory_.set_drain(units[i], Drain::resize);
                drained_.push_back(units[i]);
            }
        });
    }

private:
    ManagedPool &pool_;
    NodeMemory &memory_;
    std::vector<std::uint64_t> drained_;
};

// Those of the units in which clients may allocate.
std::vector<std::uint64_t> open_units(const NodeMemory &memory, std::span<const std::uint64_t> units) {
    std::vector<std::uint64_t> open;
    std::ranges::copy_if(units, std::back_inserter(open),
                         [&](std::uint64_t unit) { return memory.drain_of(unit) == Drain::none; });
    return open;
}

enum class Pass : std::uint8_t { over, cancelled };

// One pass over units that are to go.
Pass shrink_pass(ManagedPool &pool, NodeMemory &memory, const std::vector<std::uint64_t> &units, std::uint64_t target,
                 const Progress &progress) {
    const std::uint64_t excess = memory.online_bytes() - std::min(memory.online_bytes(), target);
    const std::uint64_t step_units = units_in(shrink_step_bytes(pool, memory, excess), memory);
    bool is_reserved = false;  // the free memory is: then only units that drain go
    for (std::size_t i = 0; i < units.size() && memory.online_bytes() > target; i += step_units) {
        const std::uint64_t before = memory.online_bytes();
        {
            // Each time: others may have taken what was free, and what is promised is to be there. Of what drains
            // nobody gets anything as it is.
            const auto step = std::span(units).subspan(i, std::min<std::size_t>(step_units, units.size() - i));
            const auto open = open_units(memory, step);
            const std::uint64_t open_bytes = std::min(open.size() * memory.unit_bytes(), before - target);
            const ManagedPool::Withheld withheld(pool, is_reserved ? 0 : open_bytes);
            std::vector<std::uint64_t> empty;
            if (!is_reserved) {
                auto found = pool.empty_units({memory.numa_node(), open}, open_bytes, withheld);
                is_reserved = !found;
                if (found) empty = std::move(*found);
                std::ranges::sort(empty);
            }
            pool.worker().run([&] {
                // Not more than was asked for: an operator's drain may have ended meanwhile.
                const std::uint64_t online = memory.online_bytes();
                const std::uint64_t wanted = (online - std::min(online, target)) / memory.unit_bytes();
                std::vector<std::uint64_t> going;
                for (const std::uint64_t unit : step)
                    if (going.size() < wanted && memory.is_online(unit) &&
                        (std::ranges::binary_search(empty, unit) || memory.drain_of(unit) != Drain::none))
                        going.push_back(unit);
                return memory.take_offline(going);
            });
        }
        if (memory.online_bytes() == before) continue;
        const bool done = memory.online_bytes() <= target;
        if (!progress(ResizeStep{memory.online_bytes(), target, done, {}, {}}) && !done) return Pass::cancelled;
    }
    return Pass::over;
}

Answer<void> shrink(ManagedPool &pool, NodeMemory &memory, std::uint64_t target, const Progress &progress) {
    const auto chosen = [&] {
        const std::uint64_t online = memory.online_bytes();  // an operator's drain may have ended meanwhile
        return candidates(pool, memory, (online - std::min(online, target)) / memory.unit_bytes());
    };
    const auto cancelled = [&] {
        Failure why{Errc::cancelled, "cancelled; " + format_bytes(memory.online_bytes()) +
                                         " stay online, the rest has gone back to the machine already"};
        progress(ResizeStep{memory.online_bytes(), target, true, why.message, {}});
        return Unexpected{std::move(why)};
    };
    if (shrink_pass(pool, memory, chosen(), target, progress) == Pass::cancelled) return cancelled();

    // The hard way: nobody may allocate in what is to go.
    std::vector<BlockHolder> in_the_way;
    {
        ShrinkDrain drain(pool, memory);
        const auto drained = chosen();
        if (drained.empty()) return {};
        {
            // Nobody is given what an operator drains.
            const auto open = open_units(memory, drained);
            const ManagedPool::Withheld withheld(pool, open.size() * memory.unit_bytes());
            if (auto kept = pool.check_drain({memory.numa_node(), open}, withheld); !kept) return kept;
            drain.add(drained);
        }
        const auto open_again_at = std::chrono::steady_clock::now() + kDrainPatience;
        for (int attempt = 0; attempt < kDrainAttempts; ++attempt) {
            if (attempt > 1 && std::chrono::steady_clock::now() >= open_again_at) break;
            if (pool.look_for_damage()) return Unexpected{damaged(pool)};
            // As in the growth that is taken back.
            pool.worker().run([&] { return pool.gather_cached_blocks(); });
            std::this_thread::sleep_for(kPatienceWithCaches);
            // Those first, then whatever else has become empty.
            for (const auto &units : {drained, chosen()})
                if (shrink_pass(pool, memory, units, target, progress) == Pass::cancelled) return cancelled();
            if (memory.online_bytes() <= target) return {};
            if (!progress(ResizeStep{memory.online_bytes(), target, false, "draining what is in use", {}}))
                return cancelled();
        }
        in_the_way = pool.holders(memory.numa_node(), as_ranges(chosen()));
    }
    ResizeStep last{memory.online_bytes(), target, true, {}, std::move(in_the_way)};
    last.note = "the rest is in use: " + describe(last.blocked_by);
    progress(last);
    return Unexpected{
        Failure{Errc::contended, "pool \"" + pool.name() + "\", numa node " + std::to_string(memory.numa_node().value) +
                                     ": " + format_bytes(memory.online_bytes()) + " stay online, " +
                                     format_bytes(target) + " were asked for; " + describe(last.blocked_by) +
                                     ": have it freed or evict the client, then try again"}};
}

Answer<void> rehearse(ManagedPool &pool, NodeMemory &memory, std::uint64_t target, const Progress &progress) {
    ResizeStep step{memory.online_bytes(), target, true, {}, {}};
    if (target > step.online_bytes) {
        const auto possible = memory.check_growth(target - step.online_bytes);
        step.note = possible ? "would grow by " + format_bytes(target - step.online_bytes) : possible.error().message;
        progress(step);
        return possible;
    }
    const std::uint64_t excess = (step.online_bytes - target) / memory.unit_bytes();
    const auto units = candidates(pool, memory, excess);
    step.blocked_by = pool.holders(memory.numa_node(), as_ranges(units));
    step.note = step.blocked_by.empty() ? "would shrink by " + format_bytes(step.online_bytes - target)
                                        : "in the way: " + describe(step.blocked_by);
    progress(step);
    return {};
}

Failure pinned(const ManagedPool &pool, const std::vector<BlockHolder> &holders) {
    return {Errc::contended, "a part of what is to be drained of pool \"" + pool.name() + "\" is pinned: " +
                                 describe(holders) + ": have it unpinned, or evict the client, then try again"};
}

// Devices know the addresses of objects, and free objects keep their content: none of the memory goes.
Failure never_resized(const ManagedPool &pool, const std::string &wanted) {
    return {Errc::bad_argument, "pool \"" + pool.name() + "\" is an object pool, which is online as a whole: " +
                                    wanted + " is not possible; delete the pool, and make it again with another count"};
}

Answer<void> check_resizable(ManagedPool &pool, NumaNode numa_node) {
    if (pool.look_for_damage()) return Unexpected{damaged(pool)};
    if (!pool.has(numa_node))
        return Unexpected{Failure{Errc::no_such_node, "pool \"" + pool.name() + "\" has no numa node " +
                                                          std::to_string(numa_node.value) + ": use 0 to " +
                                                          std::to_string(pool.numa_node_count() - 1)}};
    ThreadSlotIndex blocked_by;
    if (pool.worker().run([&] { return pool.finish_predecessor(blocked_by); }) == RecoveryStep::done) return {};
    return Unexpected{
        Failure{Errc::contended, "pool \"" + pool.name() + "\" is not ready after the daemon's restart: thread slot " +
                                     std::to_string(blocked_by.value) +
                                     " stands still in the middle of an operation; let its process go on, or end it"}};
}

}  // namespace

Answer<void> resize_numa_node(ManagedPool &pool, NumaNode numa_node, std::uint64_t online_bytes, bool dry_run,
                              const Progress &progress) {
    if (auto known = check_resizable(pool, numa_node); !known) return known;
    const std::uint64_t capacity = pool.geometry().capacity_bytes();
    if (pool.description()->spec.has_objects() && online_bytes != capacity)
        return Unexpected{never_resized(pool, "a size of " + format_bytes(online_bytes))};
    if (online_bytes > capacity)
        return Unexpected{Failure{Errc::bad_argument, std::to_string(online_bytes) +
                                                          " bytes online are more than pool \"" + pool.name() +
                                                          "\"'s capacity of " + format_bytes(capacity) +
                                                          " a numa node: ask for at most that"}};
    NodeMemory &memory = pool.node_memory(numa_node);
    const std::uint64_t target = round_up(online_bytes, memory.unit_bytes());

    const std::lock_guard lock(pool.resize_mutex);
    if (pool.is_deleted())
        return Unexpected{Failure{Errc::no_such_pool, "pool \"" + pool.name() + "\" has been deleted meanwhile"}};
    // Nobody has, or is given, what drains already.
    const std::uint64_t online = memory.online_bytes();
    const std::uint64_t open_bytes = online - std::min(online, memory.draining_bytes());
    if (target < open_bytes)
        if (auto free = pool.check_shrink(open_bytes - target); !free) return free;
    if (dry_run) return rehearse(pool, memory, target, progress);
    if (target == memory.online_bytes()) {
        std::string note = "nothing to do";
        if (target != online_bytes)
            note += ": memory comes and goes by " + format_bytes(memory.unit_bytes()) + ", so for " +
                    format_bytes(online_bytes) + " there have to be " + format_bytes(target);
        progress(ResizeStep{target, target, true, std::move(note), {}});
        return {};
    }
    return target > memory.online_bytes() ? grow(pool, memory, target, progress)
                                          : shrink(pool, memory, target, progress);
}

std::optional<Answer<void>> resize_if_idle(ManagedPool &pool, NumaNode numa_node, std::uint64_t from_bytes,
                                           std::uint64_t to_bytes, const Progress &progress) {
    if (auto known = check_resizable(pool, numa_node); !known) return known;
    NodeMemory &memory = pool.node_memory(numa_node);
    const std::unique_lock lock(pool.resize_mutex, std::try_to_lock);
    if (!lock.owns_lock() || pool.is_deleted() || memory.online_bytes() != from_bytes) return std::nullopt;
    // Reserved memory stays, whatever the policy says. That is no failure.
    if (to_bytes < from_bytes && !pool.check_shrink(from_bytes - to_bytes)) return std::nullopt;
    return to_bytes > from_bytes ? grow(pool, memory, to_bytes, progress) : shrink(pool, memory, to_bytes, progress);
}

Answer<DrainStatus> drain_chunk(ManagedPool &pool, NumaNode numa_node, std::uint64_t chunk, bool undo) {
    if (auto known = check_resizable(pool, numa_node); !known) return Unexpected{known.error()};
    if (pool.description()->spec.has_objects()) return Unexpected{never_resized(pool, "a drain")};
    if (chunk >= pool.geometry().chunk_count())
        return Unexpected{Failure{Errc::bad_argument, "pool \"" + pool.name() + "\" has no chunk " +
                                                          std::to_string(chunk) + ": use 0 to " +
                                                          std::to_string(pool.geometry().chunk_count() - 1)}};
    NodeMemory &memory = pool.node_memory(numa_node);
    const std::uint64_t unit = memory.unit_of_chunk(chunk);
    Answer<void> allowed;
    DrainStatus status = pool.worker().run([&] {
        DrainStatus now;
        const std::pair<std::uint8_t, std::uint64_t> key{numa_node.value, unit};
        if (!memory.is_online(unit)) {
            now.offline = true;
            return now;
        }
        // A unit that is drained already has been checked before.
        const bool is_new = !undo && memory.drain_of(unit) == Drain::none;
        if (is_new && memory.is_pinned(unit)) {
            allowed = Unexpected{pinned(pool, pool.holders(numa_node, {{unit, 1}}))};
            return now;
        }
        const ManagedPool::Withheld withheld(pool, is_new ? memory.unit_bytes() : 0);
        if (is_new) allowed = pool.check_drain({numa_node, std::span(&unit, 1)}, withheld);
        if (!allowed) return now;
        memory.set_drain(unit, undo ? Drain::none : Drain::wanted);
        if (undo) {
            pool.draining.erase(key);
        } else {
            pool.draining.insert(key);
            finish_drains(pool);
        }
        now.offline = !memory.is_online(unit);
        now.draining = pool.draining.contains(key);
        now.used_bytes = now.offline ? 0 : pool.geometry().bytes_of(memory.used_frames(unit));
        return now;
    });
    if (!allowed) return Unexpected{allowed.error()};
    if (undo)
        pool.wake_waiters();
    else
        pool.look_at_drains();
    if (!status.offline) status.blocked_by = pool.holders(numa_node, {{unit, 1}});
    return status;
}

bool finish_drains(ManagedPool &pool) {
    if (pool.is_corrupt()) pool.draining.clear();
    ThreadSlotIndex blocked_by;
    if (pool.finish_predecessor(blocked_by) == RecoveryStep::blocked) return true;
    // Each time: a call that was under way when it was asked, or did not see the drain, has cached something since.
    if (!pool.draining.empty()) pool.gather_cached_blocks_sparingly();
    for (auto at = pool.draining.begin(); at != pool.draining.end();) {
        NodeMemory &memory = pool.node_memory(NumaNode{at->first});
        const std::uint64_t unit = at->second;
        // If not, a shrink has taken the unit meanwhile, and perhaps a growth has brought it back.
        const bool is_wanted = memory.drain_of(unit) == Drain::wanted;
        if (is_wanted && memory.is_online(unit) && memory.take_offline(std::span(&unit, 1)) == 0) {
            ++at;
            continue;
        }
        if (is_wanted) memory.set_drain(unit, Drain::none);
        at = pool.draining.erase(at);
    }
    pool.publish_sizes();
    return !pool.draining.empty();
}

}  // namespace numacre::daemon
