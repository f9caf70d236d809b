// What the daemon of an EngineModel does: it recovers the dead, or takes chunks offline and brings them online. (Part
// of engine_model.hpp.)
#pragma once

#include "engine_model.hpp"

namespace numacre::model {

inline void EngineModel::add_operator() {
    explorer.on_kill([this](int) { daemon_died_->store(1); });
    const ThreadOptions options{.name = "operator", .process = 0, .restartable = true, .may_wait_for_others = true};
    explorer.add_thread(options, [this](Thread &self) {
        // After a death: what it was in the middle of first, then all steps again.
        if (daemon_died_->load() != 0) {
            Recovery<SimEnv> recovery{pool_, std::span<const NodeView<SimEnv>>{&view_, 1}};
            ThreadSlotIndex blocked_by{};
            while (recovery.resume(blocked_by) == RecoveryStep::blocked) blocked_by = {};
            if (setup_.unit_chunks != 0) finish_unit(self);
        }
        for (const ChunkStep step : setup_.chunk_steps) {
            self.run_operation([&] {
                self.choose_operation(1);
                if (setup_.unit_chunks == 0)
                    take_chunk_step(step);
                else
                    take_unit_step(self, step);
            });
        }
    });
}

inline void EngineModel::take_chunk_step(ChunkStep step) {
    Chunks<SimEnv> chunks{view_, pool_};
    switch (step) {
        case ChunkStep::drain:
            chunks.set_drain(0, true);
            break;
        case ChunkStep::undrain:
            chunks.set_drain(0, false);
            break;
        case ChunkStep::offline:
            (void)chunks.try_take_offline(0);
            break;
        case ChunkStep::online:
            (void)chunks.bring_online(0);
            break;
    }
}

// NodeMemory::bring_online, take_offline of one unit, set_drain: the same writes in the same sequence.
inline void EngineModel::take_unit_step(Thread &self, ChunkStep step) {
    Chunks<SimEnv> chunks{view_, pool_};
    const auto set_state = [this](UnitState state) { unit_state_->store(static_cast<std::uint64_t>(state)); };
    const bool is_online = unit_state_->load() == static_cast<std::uint64_t>(UnitState::online);
    if (step == ChunkStep::drain || step == ChunkStep::undrain) {
        set_unit_drain(step == ChunkStep::drain);
    } else if (step == ChunkStep::online && !is_online) {
        set_state(UnitState::filling);
        populate_unit(true);
        set_state(UnitState::opening);
        open_unit(self, false);
        set_state(UnitState::online);
    } else if (step == ChunkStep::offline && is_online) {
        set_state(UnitState::closing);
        for (unsigned chunk = 0; chunk < setup_.unit_chunks; ++chunk) {
            if (chunks.try_take_offline(chunk)) continue;
            while (chunk-- > 0)
                if (!chunks.bring_online(chunk)) self.fail("a chunk that was just taken offline is not");
            set_state(UnitState::online);
            return;
        }
        set_state(UnitState::closed);
        populate_unit(false);
        set_state(UnitState::offline);
    }
}

// NodeMemory::finish_units and what ManagedPool::finish_predecessor does about drains.
inline void EngineModel::finish_unit(Thread &self) {
    const auto state = static_cast<UnitState>(unit_state_->load());
    if (state == UnitState::filling || state == UnitState::closed) {
        populate_unit(false);
        unit_state_->store(static_cast<std::uint64_t>(UnitState::offline));
    } else if (state == UnitState::opening || state == UnitState::closing) {
        open_unit(self, true);
        unit_state_->store(static_cast<std::uint64_t>(UnitState::online));
    }
    if (unit_is_draining_->load() != 0) set_unit_drain(true);
}

inline void EngineModel::open_unit(Thread &self, bool only_closed) {
    Chunks<SimEnv> chunks{view_, pool_};
    for (unsigned chunk = 0; chunk < setup_.unit_chunks; ++chunk) {
        if (only_closed && !chunks.is_offline(chunk)) continue;
        if (!chunks.bring_online(chunk)) self.fail("a chunk that shall be opened is not offline");
    }
}

inline void EngineModel::set_unit_drain(bool drain) {
    Chunks<SimEnv> chunks{view_, pool_};
    if (drain) unit_is_draining_->store(1);
    for (unsigned chunk = 0; chunk < setup_.unit_chunks; ++chunk) chunks.set_drain(chunk, drain);
    if (!drain) unit_is_draining_->store(0);
}

inline void EngineModel::populate_unit(bool populated) {
    unit_is_populated_->store(populated ? 1 : 0);
}

inline void EngineModel::release_seized(Thread &self, Recovery<SimEnv> &recovery) const {
    if (!setup_.quarantine) return;
    recovery.for_each_seized([&](NumaNode numa_node, Block block, PoolAge) {
        if (somebody_reads() && recovery.has_readers(numa_node, block)) return;  // it comes again
        touch_frames(self, block);                                               // zeroes it
        if (!recovery.release(numa_node, block)) self.fail("a seized block is not the daemon's: " + to_text(block));
    });
}

// Whether a seized block was held, and is held no more: the daemon looks again and again.
inline bool EngineModel::may_release_seized(Recovery<SimEnv> &recovery) const {
    bool may = false;
    if (setup_.quarantine && somebody_reads())
        recovery.for_each_seized(
            [&](NumaNode numa_node, Block block, PoolAge) { may = may || !recovery.has_readers(numa_node, block); });
    return may;
}

inline void EngineModel::add_daemon() {
    explorer.add_thread(
        {.name = "daemon", .process = 0, .restartable = true, .may_wait_for_others = true}, [this](Thread &self) {
            const auto state_of = [this](std::uint16_t process) -> Word & { return pool_.processes[process].state; };
            constexpr auto kActive = static_cast<std::uint64_t>(ProcessState::active);
            constexpr auto kDead = static_cast<std::uint64_t>(ProcessState::dead);
            Recovery<SimEnv> recovery{pool_, std::span<const NodeView<SimEnv>>{&view_, 1}};
            ThreadSlotIndex blocked_by{};
            // `blocked`: the daemon tries again later; other threads run meanwhile.
            if (daemon_died_->load() != 0) {
                while (recovery.resume(blocked_by) == RecoveryStep::blocked) blocked_by = {};
                release_seized(self, recovery);
            }
            for (;;) {
                self.run_operation([&] {
                    std::uint16_t process = 0;
                    const auto find_work = [&] {
                        for (std::uint16_t slot = 1; slot < process_slots_; ++slot)
                            if (is_dead_or_corpse(slot) &&
                                (state_of(slot).load() == kActive || state_of(slot).load() == kDead))
                                return slot;
                        return std::uint16_t{0};
                    };
                    self.rest_until([&] { return find_work() != 0 || may_release_seized(recovery); });
                    for (std::uint16_t slot = 1; slot < process_slots_ && process == 0; ++slot) {
                        if (!is_dead_or_corpse(slot)) continue;
                        const std::uint64_t state = state_of(slot).load();
                        if (state == kActive || state == kDead) process = slot;
                    }
                    if (process == 0) return release_seized(self, recovery);
                    state_of(process).store(kDead);
                    for (bool done = false; !done;) {
                        Reclaimed total;
                        blocked_by = {};
                        // The kernel tells of every death, also while we are at one of them.
                        for (std::uint16_t other = 1; other < process_slots_; ++other)
                            if (other != process && is_dead_or_corpse(other) && state_of(other).load() == kActive)
                                state_of(other).store(kDead);
                        const ProcessSlot slot{process};
                        done = (setup_.quarantine
                                    ? recovery.seize_process(slot, total, blocked_by, [](NumaNode, Block) {})
                                    : recovery.recover_process(slot, total, blocked_by)) == RecoveryStep::done;
                    }
                    release_seized(self, recovery);
                    state_of(process).store(static_cast<std::uint64_t>(ProcessState::free));
                    nudge_waiters(pool_, false, nobody_to_wake);
                });
            }
        });
    explorer.on_kill([this](int process) {
        if (process == 0) daemon_died_->store(1);
        // Whatever the dead was about to allocate, it will not complain about.
        for (std::size_t client = 0; client < setup_.clients.size(); ++client) {
            if (setup_.clients[client].process != process) continue;
            wanted_[client].store(0);
            free_throughout_[client].store(0);
            some_always_free_[client].store(0);
        }
    });
}

}  // namespace numacre::model
