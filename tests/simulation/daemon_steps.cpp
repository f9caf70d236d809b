#include "daemon_steps.hpp"

namespace numacre::simulation {

DaemonSteps::DaemonSteps(const Plan &plan, PoolMemory &memory, Processes &processes, Shadow &shadow,
                         const Tokens &tokens, Scheduler &scheduler, Verdict &verdict)
    : plan_(plan),
      memory_(memory),
      processes_(processes),
      shadow_(shadow),
      tokens_(tokens),
      scheduler_(scheduler),
      verdict_(verdict),
      random_(plan.seed, 11),
      usage_(memory.pool.process_slots),
      chunk_(memory.nodes.size(), std::vector<ChunkState>(memory.geometry.chunk_count(), ChunkState::online)),
      wants_drain_(memory.nodes.size(), std::vector<bool>(memory.geometry.chunk_count())) {
    for (unsigned node = 0; node < memory_.numa_nodes(); ++node) {
        Chunks<Env> chunks{memory_.nodes[node], memory_.pool};
        for (std::uint64_t chunk = 0; chunk < memory_.geometry.chunk_count(); ++chunk) {
            if (random_.percent(plan_.offline_percent))
                set_offline(node, chunk);
            else
                chunks.bring_online(chunk);
        }
    }
    begin_round();
}

void DaemonSteps::spawn(bool again) {
    fiber_ = scheduler_.spawn(kDaemon, [this, again] { serve(again); });
}

void DaemonSteps::die() {
    verdict_.say("the daemon dies");
    ++deaths_;
    scheduler_.kill(kDaemon);
    spawn(true);
    Fiber &next = fiber();
    next.state = FiberState::paused;
    next.paused_until = steps_done() + scheduler_.random().scaled(5000);
}

void DaemonSteps::unpark() {
    if (fiber().state == FiberState::parked) fiber().state = FiberState::ready;
}

Fiber &DaemonSteps::fiber() {
    return scheduler_.fibers()[static_cast<std::size_t>(fiber_)];
}

void DaemonSteps::serve(bool again) {
    is_restarting_ = again;
    if (again) finish_predecessor();
    is_restarting_ = false;
    for (;;) {
        if (Instance *const dead = processes_.somebody_dead()) {
            reap(*dead);
        } else if (clients_ended()) {
            break;
        } else if (clients_rest() || jobs_left_ == 0 || processes_.are_winding_down()) {
            scheduler_.park();
        } else {
            --jobs_left_;
            do_job();
            rest();
        }
    }
    release_seized();
    for (unsigned node = 0; node < plan_.numa_nodes; ++node)
        for (std::uint64_t chunk = 0; chunk < memory_.geometry.chunk_count(); ++chunk) {
            if (wants_drain_[node][chunk]) drain(node, chunk, false);
            if (chunk_[node][chunk] == ChunkState::offline) bring_online(node, chunk);
        }
    ended_ = true;
}

void DaemonSteps::finish_predecessor() {
    verdict_.say("a daemon begins anew");
    Recovery<Env> recovery(memory_.pool, std::span<const Node>(memory_.nodes));
    ThreadSlotIndex blocked_by;
    while (recovery.resume(blocked_by) == RecoveryStep::blocked) {
        verdict_.say("resume is blocked by thread slot %u", blocked_by.value);
        rest();
        mark_dead();
    }
    for (unsigned node = 0; node < plan_.numa_nodes; ++node) {
        Chunks<Env> chunks{memory_.nodes[node], memory_.pool};
        for (std::uint64_t chunk = 0; chunk < memory_.geometry.chunk_count(); ++chunk) {
            if (chunk_[node][chunk] == ChunkState::closing) {
                if (chunks.is_offline(chunk))
                    set_offline(node, chunk);
                else
                    chunk_[node][chunk] = ChunkState::online;
            } else if (chunk_[node][chunk] == ChunkState::opening) {
                if (chunks.is_offline(chunk)) chunks.bring_online(chunk);
                chunk_[node][chunk] = ChunkState::online;
            }
            if (drain_unsure_ && drain_node_ == node && drain_chunk_ == chunk)
                drain(node, chunk, wants_drain_[node][chunk]);
        }
    }
    release_seized();
    wake_waiters(false);
}

bool DaemonSteps::clients_rest() const {
    for (const Fiber &fiber : scheduler_.fibers_of_all())
        if (fiber.process != kDaemon && fiber.state != FiberState::parked && fiber.state != FiberState::ended &&
            fiber.state != FiberState::dead)
            return false;
    return true;
}

bool DaemonSteps::clients_ended() const {
    for (const Fiber &fiber : scheduler_.fibers_of_all())
        if (fiber.process != kDaemon && fiber.state != FiberState::ended && fiber.state != FiberState::dead)
            return false;
    return true;
}

void DaemonSteps::rest() {
    scheduler_.sleep_ns(random_.below(2 * plan_.daemon_rest_ns) + 100);
}

void DaemonSteps::wake_waiters(bool all) {
    nudge_waiters(memory_.pool, all, [this](ThreadSlotIndex thread) {
        scheduler_.wake(reinterpret_cast<const std::uint32_t *>(&memory_.pool.threads[thread.value].waiting));
    });
}

// As soon as the kernel says so, whatever else the daemon is busy with.
void DaemonSteps::mark_dead() {
    for (Instance &instance : processes_.instances())
        if (!instance.alive && !instance.recovered)
            memory_.pool.processes[instance.slot].state.store(static_cast<std::uint64_t>(ProcessState::dead),
                                                              std::memory_order_seq_cst);
}

void DaemonSteps::reap(Instance &dead) {
    while (tokens_.is_pinned_by_others(dead)) rest();
    verdict_.say("reaps process %d", dead.number);
    mark_dead();
    shadow_.forget(dead);
    Recovery<Env> recovery(memory_.pool, std::span<const Node>(memory_.nodes));
    Reclaimed total;
    ThreadSlotIndex blocked_by;
    const ProcessSlot slot{dead.slot};
    while ((plan_.seizes ? recovery.seize_process(slot, total, blocked_by, [](NumaNode, Block) {})
                         : recovery.recover_process(slot, total, blocked_by)) == RecoveryStep::blocked) {
        verdict_.say("recovery is blocked by thread slot %u", blocked_by.value);
        rest();
        mark_dead();  // perhaps it is they who are in the way
    }
    if (plan_.seizes) {
        rest();
        release_seized();
    }
    wake_waiters(false);
    auto &record = memory_.pool.processes[dead.slot];
    record.quota_frames.store(0);
    record.held.store(0);
    record.on_the_way.store(OnTheWay{record.on_the_way.load()}.forgotten().bits());
    record.state.store(static_cast<std::uint64_t>(ProcessState::free));
    dead.recovered = true;
    verdict_.say("process %d is recovered", dead.number);
    if (processes_.round() < plan_.rounds && processes_.instances().size() < 20 && !processes_.are_winding_down() &&
        random_.percent(70))
        processes_.start(dead.seat);
}

void DaemonSteps::release_seized() {
    Recovery<Env> recovery(memory_.pool, std::span<const Node>(memory_.nodes));
    bool released = false;
    recovery.for_each_seized(
        [&](NumaNode node, Block block, PoolAge) { released = recovery.release(node, block) || released; });
    if (released) wake_waiters(false);
}

void DaemonSteps::set_offline(unsigned node, std::uint64_t chunk) {
    shadow_.set_offline(node, chunk);
    chunk_[node][chunk] = ChunkState::offline;
}

void DaemonSteps::drain(unsigned node, std::uint64_t chunk, bool wanted) {
    verdict_.say("%s chunk %llu of numa node %u ...", wanted ? "drains" : "stops draining",
                 static_cast<unsigned long long>(chunk), node);
    wants_drain_[node][chunk] = wanted;
    shadow_.set_draining(node, chunk, 0);
    drain_unsure_ = true;
    drain_node_ = node;
    drain_chunk_ = chunk;
    Chunks<Env>{memory_.nodes[node], memory_.pool}.set_drain(chunk, wanted);
    drain_unsure_ = false;
    if (wanted && memory_.nodes[node].top_layer != 0) shadow_.set_draining(node, chunk, steps_done());
    if (!wanted) wake_waiters(false);
    verdict_.say("done");
}

void DaemonSteps::bring_online(unsigned node, std::uint64_t chunk) {
    verdict_.say("brings chunk %llu of numa node %u online ...", static_cast<unsigned long long>(chunk), node);
    shadow_.set_online(node, chunk);
    chunk_[node][chunk] = ChunkState::opening;
    if (!Chunks<Env>{memory_.nodes[node], memory_.pool}.bring_online(chunk))
        verdict_.fail("an offline chunk cannot be brought online");
    chunk_[node][chunk] = ChunkState::online;
    wake_waiters(false);
}

void DaemonSteps::try_take_offline(unsigned node, std::uint64_t chunk) {
    if (chunk_[node][chunk] != ChunkState::online) return;
    verdict_.say("would take chunk %llu of numa node %u offline ...", static_cast<unsigned long long>(chunk), node);
    chunk_[node][chunk] = ChunkState::closing;
    if (Chunks<Env>{memory_.nodes[node], memory_.pool}.try_take_offline(chunk)) {
        set_offline(node, chunk);
        verdict_.say("has");
    } else {
        chunk_[node][chunk] = ChunkState::online;
        // What was claimed for a moment is free again.
        verdict_.say("cannot");
    }
}

void DaemonSteps::do_job() {
    Random &random = random_;
    const Plan::Jobs &jobs = plan_.daemon;
    std::uint64_t all = 0;
    const auto chance = [&](std::uint64_t weight) { return all += weight; };
    const std::uint64_t nudge = chance(jobs.nudge), twice = chance(jobs.nudge_twice), draining = chance(jobs.drain),
                        offline = chance(jobs.offline), online = chance(jobs.online), audit = chance(jobs.audit),
                        snapshot = chance(jobs.snapshot), pressure = chance(jobs.pressure), age = chance(jobs.age),
                        quota = chance(jobs.quota);
    if (all == 0) return;
    const std::uint64_t drawn = random.below(all);
    const auto node = static_cast<unsigned>(random.below(plan_.numa_nodes));
    const std::uint64_t chunk = random.below(memory_.geometry.chunk_count());
    if (drawn < nudge) {
        wake_waiters(random.one_in(2));
    } else if (drawn < twice) {
        for (std::uint64_t times = random.between(2, 6); times > 0; --times) wake_waiters(true);
    } else if (drawn < draining) {
        drain(node, chunk, !wants_drain_[node][chunk]);
    } else if (drawn < offline) {
        try_take_offline(node, chunk);
    } else if (drawn < online) {
        if (chunk_[node][chunk] == ChunkState::offline) bring_online(node, chunk);
    } else if (drawn < audit) {
        look_for_damage(node);
    } else if (drawn < snapshot) {
        NodeSnapshot seen;
        scan_node(memory_.nodes[node], seen, std::span<OwnerUsage>{});
        if (seen.free_frames > memory_.geometry.frame_count || seen.offline_frames > memory_.geometry.frame_count)
            verdict_.fail("a snapshot counts more than there is");
    } else if (drawn < pressure) {
        memory_.pool.header->attention.fetch_add(Attention::kPressureStep, std::memory_order_relaxed);
    } else if (drawn < age) {
        std::uint64_t bits = memory_.pool.header->attention.load(std::memory_order_relaxed);
        // That a chunk is draining is a preference there: clients may see it late, or for ever.
        (void)memory_.pool.header->attention.compare_exchange_weak(
            bits, Attention::told(bits, PoolAge::of_seconds(++age_), true, random.one_in(2)),
            std::memory_order_relaxed);
    } else if (drawn < quota) {
        memory_.pool.processes[random.between(1, plan_.processes)].quota_frames.store(
            random.one_in(3) ? 0 : random.scaled(memory_.geometry.frame_count));
        wake_waiters(false);  // as ManagedPool::set_quota(): there may be more for them
    }
}

// ManagedPool::damage_to_numa_node().
void DaemonSteps::look_for_damage(unsigned node) {
    const Node &view = memory_.nodes[node];
    NodeSnapshot snapshot;
    scan_node(view, snapshot, std::span<OwnerUsage>(usage_));
    if (snapshot.damaged_entries != 0 || snapshot.lost_blocks != 0) {
        NodeSnapshot once_more;
        scan_node(view, once_more, std::span<OwnerUsage>(usage_));
        if (snapshot.damaged_entries != 0 && once_more.damaged_entries != 0)
            verdict_.fail("an audit finds impossible index entries");
        if (snapshot.lost_blocks != 0 && once_more.lost_blocks != 0)
            verdict_.fail("an audit finds live blocks that have lost frames");
    }
    if (const std::uint64_t words = Audit<Env>(memory_.pool, view).run(); words != 0)
        verdict_.fail("an audit finds %llu impossible words of the tree of numa node %u",
                      static_cast<unsigned long long>(words), node);
    for (std::size_t i = 0; i < snapshot.unheld_count; ++i)
        if (is_taken_by_nobody(memory_.pool, view, snapshot.unheld[i]) &&
            is_taken_by_nobody(memory_.pool, view, snapshot.unheld[i]))
            verdict_.fail("an audit finds frame %llu of numa node %u taken by nobody",
                          static_cast<unsigned long long>(snapshot.unheld[i].first.value), node);
    if (count_impossible_thread_slots<Env>(memory_.pool, memory_.nodes) != 0) {
        for (std::uint32_t thread = 0; thread < memory_.pool.thread_slots; ++thread) {
            const auto &slot = memory_.pool.threads[thread];
            verdict_.say("thread slot %u: owner %#llx, intent %#llx, hint work %#llx", thread,
                         static_cast<unsigned long long>(peek(slot.owner)),
                         static_cast<unsigned long long>(peek(slot.intent)),
                         static_cast<unsigned long long>(peek(slot.hint_work)));
        }
        verdict_.fail("an audit finds impossible thread slots");
    }
}

}  // namespace numacre::simulation
