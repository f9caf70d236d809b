#!/usr/bin/env python3
"""Does the simulator see? Breaks the sources in one place at a time, and counts the seeds until it notices.

Two lists: FAULTS below, mends of faults that once were there, each taken out again; and tests/mutation's mutations. For
each: copies the sources, changes them, compiles the two files that depend on them, runs seed after seed.

usage: faults.py --check SOURCE                 are all old texts there?
       faults.py [--only NAME ...] [--mutations COUNT | --all-mutations] [--seeds N] [--jobs J] [--compiler CXX] SOURCE

--mutations COUNT: so many of them, spread over the list, instead of FAULTS. Takes minutes: by hand, not by ctest.
Exit status: 0 all FAULTS found within N seeds and the unchanged sources clean (mutations are only told of), 1
otherwise.
"""
import argparse
import concurrent.futures
import dataclasses
import os
import re
import shutil
import subprocess
import sys
import tempfile

SHM = "shm/include/numacre/shm/"


@dataclasses.dataclass(frozen=True)
class Change:
    file: str
    old: str
    new: str


@dataclasses.dataclass(frozen=True)
class Fault:
    name: str
    why: str
    changes: tuple
    seeds: int = 20000  # within which it must be found
    system: bool = False  # the second stage's, simulation_system
    options: tuple = ()  # of the simulator: the seeds of one theme alone, for what the others cannot meet


FAULTS = [
    Fault(
        name="publish_by_a_store",
        why="two threads refer to one block; the later store takes it back from who has taken it (A1)",
        changes=(
            Change(
                SHM + "buddy/ownership.hpp",
                """if (slot.compare_exchange_strong(bits, entry.published().bits(), std::memory_order_release,
                                         std::memory_order_acquire)) [[likely]]
            return true;""",
                "slot.store(IndexEntry{bits}.published().bits(), std::memory_order_release);\n        return true;",
            ),
        ),
    ),
    Fault(
        name="resolve_beyond_the_end",
        why="recovery opens the frames behind the last one (A2)",
        changes=(
            Change(
                SHM + "recovery.hpp",
                "const std::uint64_t end = std::min(block.base.value + block.order.frames(), "
                "view.geometry.frame_count);",
                "const std::uint64_t end = block.base.value + block.order.frames();",
            ),
            Change(
                SHM + "recovery.hpp",
                "std::uint64_t mine = existing_bits_of(view, layer, block);",
                "std::uint64_t mine = bits_of(layer, block);",
            ),
        ),
    ),
    Fault(
        name="receive_forgets_by_a_store",
        why="a waiter that was nudged twice erases what it is just being told: the block is lost for ever (A5)",
        changes=(
            Change(SHM + "hand_off.hpp", "if (!given.is_given()) return false;\n        bool got = false;",
                   "bool got = false;"),
            Change(SHM + "hand_off.hpp", "if (given.numa_node().value < nodes_.count()) {",
                   "if (given.is_given() && given.numa_node().value < nodes_.count()) {"),
            Change(
                SHM + "hand_off.hpp",
                """std::uint64_t bits = given.bits();
        (void)word_of(actor.thread)
            .compare_exchange_strong(bits, 0, std::memory_order_release, std::memory_order_relaxed);""",
                "word_of(actor.thread).store(0, std::memory_order_release);",
            ),
            Change("client/src/waiting.cpp", "if (!hand_off.has_ended(wish, now)) continue;",
                   "if (now == wish) continue;"),
        ),
    ),
    Fault(
        name="hand_off_out_of_a_draining_chunk",
        why="a block of a draining chunk goes to who waits (A7)",
        changes=(Change(SHM + "hand_off.hpp", "if (buddy.is_draining(block)) return Given::no;", ""),),
    ),
    Fault(
        name="allocate_at_ignores_DRAIN",
        why="a block that was chosen by fit is claimed although its chunk drains by now (A7)",
        changes=(
            Change(
                SHM + "buddy/claim.hpp",
                "if (!claim_this(actor, block, IfDraining::refuse)) return false;",
                "if (!claim_this(actor, block, IfDraining::claim)) return false;",
            ),
        ),
    ),
    Fault(
        name="refusal_without_proof",
        options=("--theme", "1"),
        why="a large block is refused although at every moment one was free (A8)",
        changes=(
            Change(
                SHM + "buddy/elsewhere.hpp",
                "if (nothing_is_hidden(self, order)) return Errc::out_of_frames;",
                "if (round != 0 || nothing_is_hidden(self, order)) return Errc::out_of_frames;",
            ),
        ),
    ),
    # --- the second stage: mends of the attach protocol ---
    Fault(
        name="come_without_the_CAS",
        system=True,
        why="a client that is slow to map goes on although the daemon has given it up (A3)",
        changes=(
            Change(
                SHM + "presence.hpp",
                "return word.compare_exchange_strong(bits, Presence{generation, State::here}.bits(), "
                "std::memory_order_relaxed);",
                "word.store(Presence{generation, State::here}.bits(), std::memory_order_relaxed);\n"
                "        return bits != 0;",
            ),
        ),
    ),
    Fault(
        name="give_up_without_the_CAS",
        system=True,
        seeds=60000,  # the client has to come between a load and a store of the daemon's
        why="a client that has come is given up all the same (A3)",
        changes=(
            Change(
                SHM + "presence.hpp",
                """if (word.compare_exchange_strong(bits, Presence{generation, State::given_up}.bits(), \
std::memory_order_acq_rel,
                                         std::memory_order_acquire))
            return State::given_up;""",
                """const std::uint64_t seen = word.load(std::memory_order_acquire);
        const bool is_attaching = seen == bits;
        bits = seen;
        if (is_attaching) {
            word.store(Presence{generation, State::given_up}.bits(), std::memory_order_release);
            return State::given_up;
        }""",
            ),
        ),
    ),
    Fault(
        name="a_lost_connection_is_evidence",
        system=True,
        why="a client whose connection has gone is taken for gone (A3)",
        changes=(
            Change(
                "daemon/src/attach/attach_server_ends.cpp",
                "session.pool->set_client_state(session.client.slot, ClientState::lost);\n    lose(session);",
                "depart(session, Departure::unmapped);",
            ),
        ),
    ),
    Fault(
        name="nobody_is_given_up",
        system=True,
        why="a client that dies, or is refused, between the reply and its maps keeps its seat (A3)",
        changes=(
            Change(
                "daemon/src/attach/attach_server_ends.cpp",
                "else if (state == Presence::State::given_up)",
                "else if (state == Presence::State::given_up && false)",
            ),
        ),
    ),
    Fault(
        name="an_unknown_start_time_differs",
        system=True,
        why="where /proc did not show a client, the next daemon takes it for another process (A4)",
        changes=(
            Change(
                "daemon/src/os/process_info.cpp",
                "if (known.start_time_ticks == 0 || found.start_time_ticks == 0) return SameProcess::unknown;",
                "",
            ),
        ),
    ),
    Fault(
        name="leave_is_not_said",
        system=True,
        why="a detach after a restart of the daemon leaks until the process ends (A6)",
        changes=(
            Change(
                "client/src/regions.cpp",
                """if (pool->process_generation != 0)
        Presence::leave(pool->view.processes[pool->process.value].presence, pool->process_generation);""",
                "",
            ),
        ),
    ),
    Fault(
        name="nobody_looks_who_has_left",
        system=True,
        why="the word of a client without a connection is not read (A6)",
        changes=(
            Change("daemon/src/attach/attach_server_ends.cpp",
                   "ask_after(*session, [this](Session &there) { look_at(there); });", "look_at(*session);"),
        ),
    ),
    Fault(
        name="closes_what_has_the_number",
        system=True,
        why="the program has closed all descriptors and opened others; detach closes one of them (A6)",
        changes=(
            Change(
                "client/src/attach.cpp",
                "return is_ours(pool->connection, pool->connection_inode);",
                "return pool->connection >= 0;",
            ),
        ),
    ),
    Fault(
        name="events_of_a_foreign_descriptor",
        system=True,
        why="the same of the descriptor for events (found by the simulator)",
        changes=(
            Change(
                "client/src/events.cpp",
                """if (fd < 0 || inode_of(fd) != pool->event_fd_inode) return -1;
    const std::uint64_t known = pool->event_fd_id;
    return known == 0 || eventfd_id_of(fd).value_or(known) == known ? fd : -1;""",
                "return fd;",
            ),
        ),
    ),
    Fault(
        name="events_by_the_inode_alone",
        system=True,
        why="all eventfds have one inode: the program's own, opened by that number, is taken for ours",
        changes=(
            Change(
                "client/src/events.cpp",
                "return known == 0 || eventfd_id_of(fd).value_or(known) == known ? fd : -1;",
                "return known == 0 || known != 0 ? fd : -1;",
            ),
        ),
    ),
    Fault(
        name="proc_of_strangers_is_believed",
        system=True,
        why="/proc is another pid namespace's: a stranger with the client's number has replaced its program",
        changes=(
            Change(
                "daemon/src/os/process_info.cpp",
                "return status && has_one_number(*status);",
                "return status.has_value();",
            ),
        ),
    ),
    Fault(
        name="one_walk_for_the_first_alone",
        system=True,
        why="planted in reaper.cpp: of several that departed together the others come away with nothing",
        changes=(
            Change(
                "daemon/src/pool/reaper.cpp",
                "pool.reclaim(departed);",
                "pool.reclaim(std::span(departed).first(1));",
            ),
        ),
    ),
    Fault(
        name="no_page_no_matter",
        system=True,
        why="memory was short as the first pool was opened: a raw fork's child goes on as its parent (found by the "
            "simulator)",
        changes=(
            Change("client/src/threads.cpp", "if (page == nullptr) return false;", "if (page == nullptr) return true;"),
        ),
    ),
    Fault(
        name="limits_are_written_before_the_records",
        system=True,
        why="a daemon that takes a pool over writes a record of zeros for a moment, over a client that is there (found "
            "by the simulator)",
        changes=(Change("daemon/src/pool/managed_pool.cpp", "++i) records_.write_account(i, limits_.settle(i));",
                        "++i) write_account(i);"),),
    ),
    Fault(
        name="the_loop_tells_clients_itself",
        system=True,
        why="the event loop touches a pool's memory: a client can make the kernel wait there (fifth attacks)",
        changes=(
            Change("daemon/src/pool/reaper.cpp", "pool->begin_departure(client.slot, departure);",
                   "pool->begin_departure(client.slot, departure); pool->tell_clients();"),
        ),
    ),
    Fault(
        name="news_under_the_clients_lock",
        system=True,
        why="a pool's memory is touched under a lock that the event loop takes",
        changes=(
            Change("daemon/src/pool/managed_pool.cpp",
                   "const RecordsLock records(*this); for (const Client &client : clients) {",
                   "const MutexLock records(clients_.mutex_); for (const Client &client : clients) {"),
            Change("daemon/src/pool/client_table.hpp", "mutable Mutex mutex_;",
                   "public: mutable Mutex mutex_; private:"),
        ),
    ),
    # --- planted, by somebody tired ---
    Fault(
        name="seat_is_kept_when_the_reply_fails",
        system=True,
        why="planted in session.cpp: who cannot be sent the reply keeps its seat",
        changes=(Change("daemon/src/attach/attach_server.cpp", "pool->vacate(slot, Departure::detached, {}, 0);",
                        "(void)slot;"),),
    ),
    Fault(
        name="is_departing_is_not_cleared",
        system=True,
        why="planted in client_table.cpp: the ledger says of a new client that it departs, as the one before did",
        changes=(Change("daemon/src/pool/client_table.cpp", "ledger.is_departing.store(0, std::memory_order_relaxed);",
                        ""),),
    ),
    Fault(
        name="mark_dead_is_forgotten",
        system=True,
        why="planted in managed_pool_recovery.cpp: recovery runs over a process that counts as living",
        changes=(
            Change("daemon/src/pool/managed_pool_recovery.cpp", "mark_departing_dead(); if (look_for_damage())",
                   "if (look_for_damage())"),
        ),
    ),
    Fault(
        name="ledger_keeps_who_has_gone",
        system=True,
        why="planted in client_table.cpp: the next daemon finds a client that has been vacated",
        changes=(
            Change("daemon/src/pool/client_table.cpp",
                   "ledger_.clients()[slot.value].id.store(0, std::memory_order_release);", ""),
        ),
    ),
    Fault(
        name="leave_before_the_frames_are_unmapped",
        system=True,
        why="planted in regions.cpp: the client says that it has left, and then unmaps",
        changes=(
            Change(
                "client/src/regions.cpp",
                "delete_choices(pool);\n    if (pool->span != nullptr)",
                """delete_choices(pool);
    if (pool->process_generation != 0)
        Presence::leave(pool->view.processes[pool->process.value].presence, pool->process_generation);
    if (pool->span != nullptr)""",
            ),
        ),
    ),
    Fault(
        name="thread_ends_and_keeps_its_slot",
        system=True,
        why="planted in threads.cpp",
        changes=(
            Change(
                "client/src/threads.cpp",
                "give_back_all(pool, lane);\n    release_slot(pool, lane.actor);",
                "give_back_all(pool, lane);",
            ),
        ),
    ),
    Fault(
        name="child_keeps_the_parents_connection",
        system=True,
        why="planted in threads.cpp: a forked child does not close what is its parent's",
        changes=(Change("client/src/threads.cpp", "close_connection(pool);\n        close_guard(pool);",
                        "close_guard(pool);"),),
    ),
    Fault(
        name="refused_attach_keeps_its_connection",
        system=True,
        why="planted in attach.cpp: one way out closes nothing",
        changes=(
            Change("client/src/attach.cpp", "unmap_regions(handle);\n        close_connection(handle);",
                   "unmap_regions(handle);"),
        ),
    ),
    Fault(
        name="adopted_without_generation",
        system=True,
        why="planted in client_table.cpp: the next daemon does not know which generation of the seat its client is",
        changes=(Change("daemon/src/pool/client_table.cpp", "client.generation = record.generation;", ""),),
    ),
    Fault(
        name="the_dead_are_not_found_out",
        system=True,
        why="planted in process_info.cpp: a pid that nobody has any more counts as living",
        changes=(
            Change(
                "daemon/src/os/process_info.cpp",
                "if (!pidfd && (errno == ESRCH || errno == EINVAL || errno == ENOENT)) return std::nullopt;",
                "",
            ),
        ),
    ),
    Fault(
        name="the_dead_without_a_connection_stay",
        system=True,
        why="planted in session.cpp: the end of a process counts only while it is connected",
        changes=(
            Change(
                "daemon/src/attach/attach_server_ends.cpp",
                "if (found->second->is_client()) depart(*found->second, Departure::died);",
                "if (found->second->phase == Session::Phase::attached) depart(*found->second, Departure::died);",
            ),
        ),
    ),
    Fault(
        name="a_blocked_recovery_is_not_tried_again",
        system=True,
        why="planted in reaper.cpp",
        changes=(Change("daemon/src/pool/reaper.cpp",
                        "loop_.after(job->retry_after, [this, job] { this->step(job); });", ""),),
    ),
    Fault(
        name="the_predecessors_work_is_left",
        system=True,
        why="planted in managed_pool_recovery.cpp: the intent of a daemon that died is not resolved",
        changes=(
            Change(
                "daemon/src/pool/managed_pool_recovery.cpp",
                "if (recovery.resume(blocked_by) == RecoveryStep::blocked) return RecoveryStep::blocked;",
                "",
            ),
        ),
    ),
    Fault(
        name="half_opened_units_stay_so",
        system=True,
        why="planted in managed_pool_recovery.cpp: units that a daemon died over are not finished",
        changes=(Change("daemon/src/pool/managed_pool_recovery.cpp", "memory->finish_units();", ""),),
    ),
    Fault(
        name="what_is_held_is_read_once",
        system=True,
        why="a block that is handed on while everybody's counts are added up is missed: a quota is exceeded",
        changes=(
            Change(
                SHM + "account.hpp",
                "if (last.digest == before.digest && last.own == charged) return last;",
                "(void)charged;\n    if (last.digest != 1) return last;",
            ),
        ),
    ),
    Fault(
        name="what_the_process_itself_holds_is_read_once",
        system=True,
        why="a block that goes from the charged process to another while the others' counts are read is missed: a "
            "quota is exceeded",
        changes=(
            Change(
                SHM + "account.hpp",
                "if (last.digest == before.digest && last.own == charged) return last;",
                "(void)charged;\n    if (last.digest == before.digest) return last;",
            ),
            Change(
                SHM + "account.hpp",
                "return digest == other.digest && own == other.own;",
                "return digest == other.digest;",
            ),
        ),
    ),
    Fault(
        name="who_takes_a_charge_back_does_not_look_again",
        why="two that serve refuse each other by charges that stand for a moment: a waiter sleeps beside a free block",
        changes=(
            Change(SHM + "hand_off.hpp", "if (limits_.has_taken_back()) {", "if (limits_.has_taken_back() && false) {"),
        ),
    ),
    Fault(
        name="who_stands_still_counts_wrong",
        system=True,
        why="the daemon lowers the count of a client that is stopped between its count and its allocation: a quota is "
            "exceeded",
        changes=(
            Change(
                "daemon/src/pool/held_counts.cpp",
                "const std::uint64_t unsure = use.under_way[slot.value] + under_way[slot.value];",
                "const std::uint64_t unsure = 0 * under_way[slot.value];",
            ),
        ),
    ),
    Fault(
        name="reservations_are_not_obeyed",
        system=True,
        why="planted in account.hpp: clients take what others have been promised",
        changes=(
            Change(
                SHM + "account.hpp",
                "if ((accounting & Accounting::kReservations) == 0) return Admission::granted;",
                "if (accounting != ~std::uint64_t{0}) return Admission::granted;",
            ),
        ),
    ),
    Fault(
        name="a_drain_takes_what_is_promised",
        system=True,
        why="what is promised is not compared with what a drain keeps from everybody",
        changes=(
            Change(
                "daemon/src/pool/sizing.cpp",
                "if (is_new) allowed",
                "if (false) allowed",
            ),
        ),
    ),
    Fault(
        name="a_shrink_withholds_nothing",
        system=True,
        why="others are granted what a shrink is about to take: it is missing for who was promised it",
        changes=(
            Change(
                "daemon/src/pool/pool_records.cpp",
                "withheld_bytes_ += more_bytes - less_bytes;",
                "withheld_bytes_ += 0 * (more_bytes - less_bytes);",
            ),
        ),
    ),
    Fault(
        name="an_undone_growth_takes_what_is_promised",
        system=True,
        why="what has been promised while a pool grew goes with the growth",
        changes=(
            Change(
                "daemon/src/pool/sizing.cpp",
                "if (!empty) break;\n            part.units.resize(part.units.size() - step_units);\n"
                "            part.units.insert(part.units.end(), empty->begin(), empty->end());\n"
                "            pool.worker().run([&] { return memory.undo(part, empty->size()); });",
                "pool.worker().run([&] { return memory.undo(part, step_units); });",
            ),
        ),
    ),
    Fault(
        name="a_shrink_looks_twice",
        system=True,
        why="a shrink takes a unit that was in use when it looked: what its holder was promised is missing elsewhere",
        changes=(
            Change(
                "daemon/src/pool/sizing.cpp",
                "(std::ranges::binary_search(empty, unit) || memory.drain_of(unit) != Drain::none)",
                "(!empty.empty() || memory.drain_of(unit) != Drain::none)",
            ),
        ),
    ),
    Fault(
        name="a_shrink_forgets_what_is_in_use_where_it_takes",
        system=True,
        why="what the holder of a promise has in use where a shrink drains is given back there, and wanted elsewhere",
        changes=(
            Change(
                "daemon/src/pool/managed_pool_limits.cpp",
                "limits_.promises(use).needed_frames(use.used_draining_frames + used_frames);",
                "limits_.promises(use).needed_frames(use.used_draining_frames);",
            ),
        ),
    ),
    Fault(
        name="what_has_been_granted_may_go",
        system=True,
        why="a shrink takes what the holder of a promise has been granted and not taken yet, for nothing promised is "
            "unused",
        changes=(
            Change(
                "daemon/src/pool/managed_pool_limits.cpp",
                "if (free_frames == 0 && needed_frames == 0) return {};",
                "if (needed_frames == 0) return {};",
            ),
        ),
    ),
    Fault(
        name="a_restart_forgets_what_is_seized",
        system=True,
        why="a daemon that begins tells clients that all is there, before it has found what is in quarantine or drains",
        changes=(
            Change(
                "daemon/src/pool/managed_pool.cpp",
                "records_(shared_, process_slots_, thread_limit_of(spec), !adopted_),",
                "records_(shared_, process_slots_, thread_limit_of(spec), true),",
            ),
        ),
    ),
    Fault(
        name="all_that_is_promised_is_used_so_take_it",
        system=True,
        why="a promise that is used is given back between another's admission and its allocation, which takes it",
        changes=(
            Change(
                SHM + "account.hpp",
                "if (now.all() + seized + unused <= frames_for_all(view)) return Admission::granted;",
                "if (unused == 0 || now.all() + seized + unused <= frames_for_all(view)) return Admission::granted;",
            ),
        ),
    ),
    Fault(
        name="what_is_promised_is_read_before_the_charge",
        system=True,
        why="who reserves sees no charge, and who is charged does not see the reservation",
        changes=(
            Change(
                SHM + "account.hpp",
                "if (last.digest == before.digest && last.own == charged) return last;",
                "if (last.digest == before.digest && last.own == charged) {\n"
                "        last.others = before.others;\n        return last;\n    }",
            ),
        ),
    ),
    Fault(
        name="what_has_been_granted_is_promised_once_more",
        system=True,
        why="a reservation looks at what is free in the tree only, not at what another has been granted and is about "
            "to take",
        changes=(
            Change(
                "daemon/src/pool/pool_scan.cpp",
                "granted_frames += use.granted_to(slot) - use.used_frames[slot];",
                "granted_frames += 0 * slot;",
            ),
        ),
    ),
    Fault(
        name="what_is_freed_in_a_drain_is_not_noted",
        system=True,
        why="planted in quota.cpp: others get so much more than there is",
        changes=(
            Change(
                "client/src/quota.cpp",
                "engine::note_freed(pool->view, block.order.frames(), "
                "[&] { return pool->nodes[numa_node].buddy().is_draining(block); });",
                "(void)pool; (void)numa_node; (void)block;",
            ),
        ),
    ),
    Fault(
        name="what_is_on_its_way_counts_for_nobody",
        system=True,
        why="a block on its way to who waits is in nobody's count: others get it a second time, out of what was "
            "promised",
        changes=(
            Change("client/src/waiting.cpp", "if (!is_counting(pool_)) return Charge{};",
                   "if (from_.value < 0xffff) return Charge{};"),
        ),
    ),
    Fault(
        name="what_is_on_the_way_is_forgotten_beside_a_gift",
        system=True,
        why="planted in hand_off.hpp: a thread has been told of its block, and what was counted for it is forgotten: a "
            "quota is exceeded",
        changes=(
            Change(SHM + "hand_off.hpp", "if (arrives) return false;", "(void)arrives;"),
            Change("client/src/waiting.cpp", "constexpr std::uint64_t kStaleAfterNanoseconds = 10'000'000;",
                   "constexpr std::uint64_t kStaleAfterNanoseconds = 0;"),
        ),
    ),
    Fault(
        name="what_is_on_the_way_is_forgotten_with_the_wishes_standing",
        system=True,
        why="planted in hand_off.hpp: a giver tells a thread of a block for which nothing is counted any more: a quota "
            "is exceeded",
        changes=(
            Change(SHM + "hand_off.hpp",
                   "if (!slot.waiting.compare_exchange_weak(bits, 0, std::memory_order_seq_cst)) continue;",
                   "if (round != kCasRoundsMax) { bits = 0; break; }"),
            Change("client/src/waiting.cpp", "constexpr std::uint64_t kStaleAfterNanoseconds = 10'000'000;",
                   "constexpr std::uint64_t kStaleAfterNanoseconds = 0;"),
        ),
    ),
    Fault(
        name="a_shrink_takes_what_is_pinned",
        system=True,
        why="planted in node_memory.cpp: a device writes to a page that the machine has back",
        changes=(
            Change(
                "daemon/src/memory/node_memory.cpp",
                "|| !online_[unit] || is_pinned(unit)) return false;",
                "|| !online_[unit]) return false;",
            ),
        ),
    ),
    Fault(
        name="a_dead_member_leaves_nothing_to_its_group",
        system=True,
        why="planted in managed_pool_recovery.cpp: what is in a ring of the group is somebody else's by now",
        changes=(
            Change(
                "daemon/src/pool/managed_pool_recovery.cpp",
                "    if (group == 0) return false;",
                "    return false;",
            ),
        ),
    ),
    Fault(
        name="a_reservation_looks_once",
        system=True,
        why="planted in managed_pool_limits.cpp: who has taken what was free while it was promised is not noticed",
        changes=(
            Change(
                "daemon/src/pool/managed_pool_limits.cpp",
                "(void)promise(holder, before, nullptr, refused);",
                "(void)refused;\n        kept = {};",
            ),
        ),
    ),
    Fault(
        name="a_child_is_of_its_parents_generation",
        system=True,
        why="planted in threads.cpp: a forked child may use its parent's handle",
        changes=(Change("client/src/threads.cpp", "++last_generation;", ""),),
    ),
]


class Mistake(Exception):
    """The list or its surroundings are wrong: nothing was learnt about the simulator."""


def pattern_of(old):
    # Indentation, the ends of lines and comments between words may change without the loss of a fault.
    return re.compile(r"\s(?:\s|//[^\n]*\n)*".join(re.escape(word) for word in old.split()))


def apply(name, change, folder):
    path = os.path.join(folder, change.file)
    with open(path, encoding="utf-8") as file:
        text = file.read()
    found = pattern_of(change.old).findall(text)
    if len(found) != 1:
        raise Mistake(f"{name}: its old text is in {change.file} {len(found)} times instead of once; the code has "
                      "changed: say anew what is to be broken")
    with open(path, "w", encoding="utf-8") as file:
        file.write(pattern_of(change.old).sub(lambda _: change.new.strip("\n"), text))


def check(source):
    mistakes = 0
    with tempfile.TemporaryDirectory() as scratch:
        for fault in FAULTS:
            folder = os.path.join(scratch, fault.name)
            for change in fault.changes:
                path = os.path.join(folder, change.file)
                if not os.path.exists(path):
                    os.makedirs(os.path.dirname(path), exist_ok=True)
                    shutil.copy(os.path.join(source, change.file), path)
            try:
                for change in fault.changes:
                    apply(fault.name, change, folder)
            except Mistake as mistake:
                print(mistake)
                mistakes += 1
    print(f"{len(FAULTS)} faults, {mistakes} mistakes in the list")
    return 1 if mistakes else 0


def daemon_sources(source):
    """The daemon's sources that the second stage has, as its CMakeLists.txt lists them: "attach/attach_message"."""
    with open(os.path.join(source, "tests/simulation/CMakeLists.txt"), encoding="utf-8") as file:
        return re.search(r"set\(daemon_sources\s(.*?)\)", file.read(), re.DOTALL).group(1).split()


class SystemWorkshop:
    """Builds simulation_system: the daemon's sources one by one, the client's in one."""

    # Those that include shm/, by way of the client's headers; and those that do not.
    DEPENDENT = ["tests/simulation/system/" + name + ".cpp"
                 for name in """blocks client client_life daemon_control director end_checks promises run sessions
                     stranger thread_work world""".split()]
    PLAIN = DEPENDENT + ["tests/simulation/system/" + name
                         for name in ("main.cpp", "plan.cpp", "kernel.cpp", "calls.cpp", "interpose.cpp")]
    PLAIN += ["tests/simulation/scheduler.cpp", "tests/support/fiber_switch.cpp"]

    def __init__(self, source, scratch, compiler, jobs):
        self.source = os.path.abspath(source)
        self.scratch = scratch
        self.compiler = compiler
        self.sources = ([f"daemon/src/{name}.cpp" for name in daemon_sources(self.source)]
                        + ["tests/simulation/system/daemon.cpp"] + self.PLAIN)
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            objects = pool.map(lambda name: self.compile(self.source, name, scratch), self.sources)
            self.objects = dict(zip(self.sources, objects))

    def compile(self, folder, name, into):
        target = os.path.join(into, name.replace("/", "_") + ".o")
        parts = ["tests/simulation/seam", "tests/simulation", ".", "tests", "shm/include"]
        command = self.compiler + ["-std=c++20", "-O2", "-w", "-D_GNU_SOURCE"]
        if name in self.PLAIN:
            parts += ["client/include", "client/src"]
        else:
            parts += ["daemon/src"]
            command += ["-include", os.path.join(folder, "tests/simulation/system/prelude.hpp")]
        command += [f"-I{os.path.join(folder, part)}" for part in parts]
        result = subprocess.run(command + ["-c", os.path.join(folder, name), "-o", target], capture_output=True,
                                text=True, errors="replace")
        if result.returncode != 0:
            raise Mistake("does not compile: " + result.stderr[-1500:])
        return target

    def depends(self, name, changed):
        if changed.endswith(".cpp"):
            return name == (changed if changed.startswith("daemon/") else "tests/simulation/system/client.cpp")
        return changed.startswith("shm/") and (name not in self.PLAIN or name in self.DEPENDENT)

    def try_one(self, name, changes, seeds, options):
        folder = os.path.join(self.scratch, name)
        for part in ("shm", "client", "daemon/src", "tests/simulation", "tests/support"):
            shutil.copytree(os.path.join(self.source, part), os.path.join(folder, part))
        try:
            for change in changes:
                apply(name, change, folder)
            objects = [
                self.compile(folder, part, folder) if any(self.depends(part, change.file) for change in changes)
                else kept
                for part, kept in self.objects.items()
            ]
            binary = os.path.join(folder, "simulation_system")
            subprocess.run(self.compiler + objects + ["-o", binary, "-pthread"], check=True)
            return verdict(binary, seeds, options)
        except Mistake as mistake:
            return "MISTAKE", str(mistake)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def verdict(binary, seeds, options):
    try:
        result = subprocess.run([binary, "--seed", "1", "--count", str(seeds), *options], capture_output=True,
                                text=True, errors="replace", timeout=900)
    except subprocess.TimeoutExpired:
        return "hangs", ""
    if result.returncode < 0:
        return f"crashes (signal {-result.returncode})", ""
    if result.returncode == 0:
        return "not found", ""
    seed = re.search(r"REPLAY: \w+ --seed (\d+)", result.stdout)
    said = re.search(r"FAILED step \d+: (.*)", result.stdout)
    if seed is None or said is None:
        return "ends oddly", result.stdout[-500:]
    return f"seed {seed.group(1)}", said.group(1)


class Workshop:
    # Those that include shm/, by way of the client's headers; and those that do not.
    DEPENDENT = ["tests/simulation/" + name + ".cpp"
                 for name in """client daemon_steps operations pool_memory processes rest_checks shadow tokens
                     tree_history wishes world""".split()]
    OTHERS = ("tests/simulation/main.cpp", "tests/simulation/plan.cpp", "tests/simulation/scheduler.cpp",
              "tests/simulation/verdict.cpp", "tests/support/fiber_switch.cpp")

    def __init__(self, source, scratch, compiler):
        self.source = os.path.abspath(source)
        self.scratch = scratch
        self.compiler = compiler
        self.others = [self.compile(self.source, name, scratch) for name in self.OTHERS]

    def compile(self, folder, name, into):
        target = os.path.join(into, os.path.basename(name) + ".o")
        includes = [f"-I{os.path.join(folder, part)}"
                    for part in ("tests/simulation/seam", "shm/include", "client/include", "client/src", ".", "tests")]
        result = subprocess.run(self.compiler + ["-std=c++20", "-O2", "-w", *includes, "-c", os.path.join(folder, name),
                                                 "-o", target],
                                capture_output=True, text=True, errors="replace")
        if result.returncode != 0:
            raise Mistake("does not compile: " + result.stderr[-1500:])
        return target

    def try_one(self, name, changes, seeds, options):
        folder = os.path.join(self.scratch, name)
        for part in ("shm", "client", "tests/simulation", "tests/support"):
            shutil.copytree(os.path.join(self.source, part), os.path.join(folder, part))
        try:
            for change in changes:
                apply(name, change, folder)
            objects = [self.compile(folder, part, folder) for part in self.DEPENDENT]
            binary = os.path.join(folder, "simulation")
            subprocess.run(self.compiler + objects + self.others + ["-o", binary, "-pthread"], check=True)
            return verdict(binary, seeds, options)
        except Mistake as mistake:
            return "MISTAKE", str(mistake)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--mutations", type=int, default=0, metavar="COUNT")
    parser.add_argument("--all-mutations", action="store_true")
    parser.add_argument("--stage", choices=("engine", "system", "both"), default="both")
    parser.add_argument("--seeds", type=int, default=0, help="default: what the fault says; of mutations 10000")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--compiler", default="g++", help="may have arguments: 'ccache g++'")
    parser.add_argument("source", nargs="?", default=".", help="the top of the tree")
    arguments = parser.parse_args()
    if arguments.check:
        return check(arguments.source)

    sys.path.insert(0, os.path.join(os.path.abspath(arguments.source), "tests", "mutation"))
    jobs = []
    is_mutations = arguments.mutations or arguments.all_mutations
    if is_mutations:
        from mutations import MUTATIONS
        every = 1 if arguments.all_mutations else max(1, len(MUTATIONS) // arguments.mutations)
        chosen = MUTATIONS[::every] if not arguments.mutations else MUTATIONS[::every][:arguments.mutations]
        if arguments.only:
            chosen = [m for m in MUTATIONS if m.name in arguments.only]
        jobs = [(m.name, (Change(SHM + m.file, m.old, m.new),), arguments.seeds or 10000, ()) for m in chosen]
    else:
        stages = {"engine": (False,), "system": (True,), "both": (False, True)}[arguments.stage]
        chosen = [f for f in FAULTS if f.system in stages and (not arguments.only or f.name in arguments.only)]
        for system in stages:
            jobs.append(("unchanged" + " system" * system, (), arguments.seeds or 5000, ()))
            jobs += [(f.name, f.changes, arguments.seeds or f.seeds, f.options) for f in chosen if f.system == system]
        themes = sorted({f.options for f in chosen if f.options})
        jobs += [("unchanged " + " ".join(options), (), arguments.seeds or 20000, options) for options in themes]
        system_jobs = {"unchanged system", *(f.name for f in chosen if f.system)}
    if is_mutations:
        system_jobs = set()
    wrong = 0
    found = 0
    with tempfile.TemporaryDirectory() as scratch:
        compiler = arguments.compiler.split()
        system = SystemWorkshop(arguments.source, scratch, compiler, arguments.jobs) if system_jobs else None
        engine = (Workshop(arguments.source, scratch, compiler)
                  if any(job[0] not in system_jobs for job in jobs) else None)
        with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
            futures = [(job, pool.submit((system if job[0] in system_jobs else engine).try_one, *job)) for job in jobs]
            for (name, _, seeds, options), future in futures:
                what, detail = future.result()
                is_found = what.startswith("seed ") or what.startswith("crashes")
                found += is_found
                good = what == "not found" if name.startswith("unchanged") else is_found
                wrong += not good and not is_mutations
                print(f"| {name.replace('_', ' ')} | "
                      f"{' '.join((what, *options)) if is_found else what + f' in {seeds} seeds'} | {detail} |",
                      flush=True)
    print(f"{found} of {len(jobs)} found")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
