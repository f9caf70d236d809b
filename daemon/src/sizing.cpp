#include "sizing.hpp"

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bytes.hpp"
#include "log.hpp"

namespace numacre::daemon {

namespace {

// Small units go together up to this, so that a pool of 64 KiB chunks does not take a step each.
constexpr std::uint64_t kStepBytes = std::uint64_t{16} << 20;
constexpr std::chrono::milliseconds kPatienceWithCaches{20};

using Progress = std::function<bool(const ResizeStep &)>;

Failure damaged(const ManagedPool &pool) {
    return {Errc::corrupt, "pool \"" + pool.spec().name +
                               "\" is damaged and left as it is: see the runbook NumacrePoolCorrupt, then delete it"};
}

Failure cancelled(const NodeMemory &memory) {
    return {Errc::timed_out, "cancelled at " + format_bytes(memory.online_bytes()) + " online: what was reached stays"};
}

std::string describe(const std::vector<BlockHolder> &holders) {
    constexpr std::size_t kNamed = 5;
    std::string text;
    for (std::size_t i = 0; i < holders.size() && i < kNamed; ++i) {
        text += (i == 0 ? "" : ", ");
        text += holders[i].client_id == 0 ? (holders[i].comm.empty() ? "somebody who is leaving" : holders[i].comm)
                                          : "client " + std::to_string(holders[i].client_id) + " (" + holders[i].comm +
                                                ", pid " + std::to_string(holders[i].pid) + ")";
        text += " holds " + format_bytes(holders[i].bytes);
    }
    if (holders.size() > kNamed) text += " and " + std::to_string(holders.size() - kNamed) + " more";
    return text;
}

Answer<void> grow(ManagedPool &pool, Worker &worker, NodeMemory &memory, std::uint64_t target,
                  const Progress &progress) {
    const std::uint64_t step_units = std::max<std::uint64_t>(1, kStepBytes / memory.unit_bytes());
    while (memory.online_bytes() < target) {
        const std::uint64_t missing = (target - memory.online_bytes()) / memory.unit_bytes();
        const auto grown = worker.run([&]() -> Answer<void> {
            const UnitRange units = memory.next_offline(std::min(step_units, missing));
            if (units.count == 0) return Unexpected{Failure{Errc::bad_argument, "everything is online already"}};
            return memory.bring_online(units);
        });
        pool.wake_waiters();
        if (pool.look_for_damage()) return Unexpected{damaged(pool)};
        if (!grown) {
            progress(ResizeStep{memory.online_bytes(), target, true, grown.error().message, {}});
            return grown;
        }
        const bool done = memory.online_bytes() >= target;
        if (!progress(ResizeStep{memory.online_bytes(), target, done, {}, {}}) && !done)
            return Unexpected{cancelled(memory)};
    }
    return {};
}

// The units that a shrink would like to take: the emptiest first, of equals the highest.
std::vector<std::uint64_t> candidates(NodeMemory &memory, std::uint64_t limit) {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> units;  // used frames, unit
    for (std::uint64_t unit = memory.unit_count(); unit-- > 0;)
        if (memory.is_online(unit)) units.emplace_back(memory.used_frames(unit), unit);
    std::sort(units.begin(), units.end(), [](const auto &a, const auto &b) {
        return a.first != b.first ? a.first < b.first : a.second > b.second;
    });
    if (units.size() > limit) units.resize(limit);
    std::vector<std::uint64_t> chosen;
    for (const auto &unit : units) chosen.push_back(unit.second);
    return chosen;
}

std::vector<UnitRange> as_ranges(const std::vector<std::uint64_t> &units) {
    std::vector<UnitRange> ranges;
    for (const std::uint64_t unit : units) ranges.push_back({unit, 1});
    return ranges;
}

// One pass over the candidates. False: cancelled.
bool shrink_pass(Worker &worker, NodeMemory &memory, std::uint64_t target, const Progress &progress) {
    const std::uint64_t excess = (memory.online_bytes() - target) / memory.unit_bytes();
    const auto units = worker.run([&] { return candidates(memory, excess); });
    const std::uint64_t step_units = std::max<std::uint64_t>(1, kStepBytes / memory.unit_bytes());
    for (std::size_t i = 0; i < units.size(); i += step_units) {
        const std::uint64_t before = memory.online_bytes();
        worker.run([&] {
            for (std::size_t k = i; k < units.size() && k < i + step_units; ++k) memory.try_take_offline(units[k]);
            return true;
        });
        if (memory.online_bytes() == before) continue;
        const bool done = memory.online_bytes() <= target;
        if (!progress(ResizeStep{memory.online_bytes(), target, done, {}, {}}) && !done) return false;
    }
    return true;
}

Answer<void> shrink(ManagedPool &pool, Worker &worker, NodeMemory &memory, std::uint64_t target,
                    const Progress &progress) {
    if (!shrink_pass(worker, memory, target, progress)) return Unexpected{cancelled(memory)};
    if (memory.online_bytes() <= target) return {};
    if (pool.look_for_damage()) return Unexpected{damaged(pool)};
    // Perhaps only caches are in the way: threads that are at work empty them now.
    pool.ask_for_cached_blocks();
    std::this_thread::sleep_for(kPatienceWithCaches);
    if (!shrink_pass(worker, memory, target, progress)) return Unexpected{cancelled(memory)};
    if (memory.online_bytes() <= target) return {};

    const auto units =
        worker.run([&] { return candidates(memory, (memory.online_bytes() - target) / memory.unit_bytes()); });
    ResizeStep last{memory.online_bytes(), target, true, {}, pool.holders(memory.numa_node(), as_ranges(units))};
    last.note = "the rest is in use: " + describe(last.blocked_by);
    progress(last);
    return Unexpected{Failure{
        Errc::contended, "pool \"" + pool.spec().name + "\", numa node " + std::to_string(memory.numa_node().value) +
                             ": " + format_bytes(memory.online_bytes()) + " stay online, " + format_bytes(target) +
                             " were asked for; " + describe(last.blocked_by) +
                             ": have it freed or evict the client, then try again"}};
}

Answer<void> rehearse(ManagedPool &pool, Worker &worker, NodeMemory &memory, std::uint64_t target,
                      const Progress &progress) {
    ResizeStep step{memory.online_bytes(), target, true, {}, {}};
    if (target > step.online_bytes) {
        const auto possible = memory.check_growth(target - step.online_bytes);
        step.note = possible ? "would grow by " + format_bytes(target - step.online_bytes) : possible.error().message;
        progress(step);
        return possible;
    }
    const std::uint64_t excess = (step.online_bytes - target) / memory.unit_bytes();
    const auto units = worker.run([&] { return candidates(memory, excess); });
    step.blocked_by = pool.holders(memory.numa_node(), as_ranges(units));
    step.note = step.blocked_by.empty() ? "would shrink by " + format_bytes(step.online_bytes - target)
                                        : "in the way: " + describe(step.blocked_by);
    progress(step);
    return {};
}

Answer<void> check_resizable(ManagedPool &pool, Worker &worker, NumaNode numa_node) {
    if (pool.look_for_damage()) return Unexpected{damaged(pool)};
    if (!pool.has(numa_node))
        return Unexpected{Failure{Errc::no_such_node, "pool \"" + pool.spec().name + "\" has no numa node " +
                                                          std::to_string(numa_node.value) + ": use 0 to " +
                                                          std::to_string(pool.numa_node_count() - 1)}};
    ThreadSlotIndex blocked_by;
    if (worker.run([&] { return pool.finish_predecessor(blocked_by); }) == RecoveryStep::done) return {};
    return Unexpected{Failure{
        Errc::contended, "pool \"" + pool.spec().name + "\" is not ready after the daemon's restart: thread slot " +
                             std::to_string(blocked_by.value) +
                             " stands still in the middle of an operation; let its process go on, or end it"}};
}

}  // namespace

Answer<void> resize_numa_node(ManagedPool &pool, Worker &worker, NumaNode numa_node, std::uint64_t online_bytes,
                              bool dry_run, const Progress &progress) {
    if (auto known = check_resizable(pool, worker, numa_node); !known) return known;
    const std::uint64_t capacity = pool.geometry().capacity_bytes();
    if (online_bytes > capacity)
        return Unexpected{Failure{Errc::bad_argument, std::to_string(online_bytes) +
                                                          " bytes online are more than pool \"" + pool.spec().name +
                                                          "\"'s capacity of " + format_bytes(capacity) +
                                                          " a numa node: ask for at most that"}};
    NodeMemory &memory = pool.node_memory(numa_node);
    const std::uint64_t target = round_up(online_bytes, memory.unit_bytes());

    const std::lock_guard lock(pool.resize_mutex);
    if (dry_run) return rehearse(pool, worker, memory, target, progress);
    if (target == memory.online_bytes()) {
        progress(ResizeStep{target, target, true, "nothing to do", {}});
        return {};
    }
    return target > memory.online_bytes() ? grow(pool, worker, memory, target, progress)
                                          : shrink(pool, worker, memory, target, progress);
}

Answer<DrainStatus> drain_chunk(ManagedPool &pool, Worker &worker, NumaNode numa_node, std::uint64_t chunk, bool undo) {
    if (auto known = check_resizable(pool, worker, numa_node); !known) return Unexpected{known.error()};
    if (chunk >= pool.geometry().chunk_count())
        return Unexpected{Failure{Errc::bad_argument, "pool \"" + pool.spec().name + "\" has no chunk " +
                                                          std::to_string(chunk) + ": use 0 to " +
                                                          std::to_string(pool.geometry().chunk_count() - 1)}};
    NodeMemory &memory = pool.node_memory(numa_node);
    const std::uint64_t unit = memory.unit_of_chunk(chunk);
    DrainStatus status = worker.run([&] {
        DrainStatus now;
        const std::pair<std::uint8_t, std::uint64_t> key{numa_node.value, unit};
        if (!memory.is_online(unit)) {
            now.offline = true;
            return now;
        }
        memory.set_drain(unit, !undo);
        if (undo) {
            pool.draining.erase(key);
        } else {
            pool.draining.insert(key);
            pool.ask_for_cached_blocks();
            finish_drains(pool);
        }
        now.offline = !memory.is_online(unit);
        now.draining = pool.draining.contains(key);
        now.used_bytes = now.offline ? 0 : memory.used_frames(unit) << pool.geometry().frame_shift;
        return now;
    });
    if (undo) pool.wake_waiters();
    if (!status.offline) status.blocked_by = pool.holders(numa_node, {{unit, 1}});
    return status;
}

bool finish_drains(ManagedPool &pool) {
    if (pool.is_corrupt()) pool.draining.clear();
    ThreadSlotIndex blocked_by;
    if (pool.finish_predecessor(blocked_by) == RecoveryStep::blocked) return true;
    for (auto at = pool.draining.begin(); at != pool.draining.end();) {
        NodeMemory &memory = pool.node_memory(NumaNode{at->first});
        const std::uint64_t unit = at->second;
        if (memory.is_online(unit) && !memory.try_take_offline(unit)) {
            ++at;
            continue;
        }
        // Offline it is closed anyway; back online it is a chunk like any other.
        memory.set_drain(unit, false);
        at = pool.draining.erase(at);
    }
    return !pool.draining.empty();
}

}  // namespace numacre::daemon
