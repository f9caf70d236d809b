// The views of a pool for people and the control plane: its state, its clients, its blocks.
#include <algorithm>
#include <bit>
#include <chrono>
#include <set>
#include <span>

#include "base/bytes.hpp"
#include "engine.hpp"
#include "numacre/shm/counters.hpp"
#include "numacre/shm/hand_off.hpp"
#include "numacre/shm/snapshot.hpp"
#include "numacre/shm/walk.hpp"
#include "pool/look_limits.hpp"
#include "pool/managed_pool.hpp"

namespace numacre::daemon {

namespace {

// A walk that only asks for blocks that are held.
template <class Visit>
struct HeldScan {
    const Visit &visit;
    void owned(Block block, IndexEntry entry) { visit(block, entry); }
    void free(Block) {}
    void taken(FrameIndex, std::uint64_t) {}
    void offline(Block) {}
    void damaged(Block) {}
};

double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

PoolStatus ManagedPool::status() {
    PoolStatus status;
    const auto now = description();
    status.spec = now->spec;
    status.owner = now->owner;
    status.group = now->group;
    status.geometry = geometry_;
    status.created = ledger_.created();
    const std::uint32_t threads = shared_.threads_in_use_bound();
    std::vector<NodeScan> scans;
    Use use = scan_.begin();
    const auto waiters = count_waiters(shared_, threads);
    const auto start = std::chrono::steady_clock::now();
    const std::vector<Client> table = client_table();
    const std::vector<Pins::Pin> pins = pins_.all();
    for (const auto &memory : nodes_) {
        NodeStatus numa_node;
        numa_node.node = memory->numa_node();
        numa_node.os_numa_node = memory->os_numa_node();
        numa_node.backing = memory->data().backing();
        numa_node.page_bytes = memory->data().page_bytes();
        numa_node.backing_note = memory->backing_note();
        numa_node.capacity_bytes = geometry_.capacity_bytes();
        NodeScan &scan = scans.emplace_back();
        scan.usage.resize(process_slots_);
        scan.online_changes = memory->online_changes();
        numa_node.online_bytes = memory->online_bytes();
        numa_node.metadata_bytes = memory->metadata().bytes();
        numa_node.metadata_resident_bytes = memory->metadata().resident_bytes();
        scan_node(memory->view(), numa_node.snapshot, scan.usage);
        use.add(numa_node.snapshot);
        for (std::uint32_t slot = 0; slot < process_slots_; ++slot) use.used_frames[slot] += scan.usage[slot].frames;
        numa_node.quarantined_bytes = geometry_.bytes_of(memory->quarantined_frames());
        for (const Client &client : table)
            if (client.state == ClientState::quarantined)
                numa_node.quarantined_bytes += geometry_.bytes_of(scan.usage[client.slot.value].frames);
        numa_node.pinned_bytes =
            Pins::bytes_in(pins, [&](const Pins::Pin &pin) { return pin.numa_node == memory->numa_node(); });
        numa_node.cached_bytes = geometry_.bytes_of(numa_node.snapshot.cached_frames);
        numa_node.lingering_bytes = geometry_.bytes_of(numa_node.snapshot.lingering_frames);
        numa_node.counters = fold_counters(memory->view(), threads);
        numa_node.waiting_threads = waiters[numa_node.node.value];
        status.nodes.push_back(std::move(numa_node));
    }
    status.scan_seconds = seconds_since(start);
    check_integrity(status, scans, use.seats);
    compare_with_limits(use);
    limits_.add_to(status, use);
    // relaxed: figures for people.
    status.peak_client_bytes = ledger_.peak_client_bytes().load(std::memory_order_relaxed);
    for (std::size_t i = 0; i < status.nodes.size(); ++i) {
        status.nodes[i].peak_used_bytes = ledger_.nodes()[i].peak_used_bytes.load(std::memory_order_relaxed);
        status.nodes[i].is_below_watermark = free_memory_.is_below_watermark(i);
    }
    const ClientTable::Figures figures = clients_.figures();
    status.clients = figures.clients;
    status.names = names_.count();
    status.clients_reaped = figures.reaped;
    status.reclaimed_bytes = figures.reclaimed_bytes;
    status.last_recovery_seconds = figures.last_recovery_seconds;
    status.recoveries_waiting = figures.waiting_recoveries;
    return status;
}

Answer<PoolStatus> ManagedPool::status_in_time() {
    const auto seen = status_look_.take(kLookPatience);
    if (!seen.found) return Unexpected{cannot_be_looked_at(description_.name())};
    PoolStatus status = *seen.found;
    status.stale_for = seen.stale_for;
    status.looking_for = look_worker_.busy_for();
    return status;
}

std::vector<ClientStatus> ManagedPool::client_statuses_in_time() {
    const auto seen = clients_look_.take(kLookPatience);
    if (seen.found && seen.stale_for.count() == 0) return *seen.found;
    // The client that keeps the pool busy has to be found all the same, to be evicted.
    std::vector<ClientStatus> statuses;
    const std::vector<Pins::Pin> pins = pins_.all();
    for (const Client &client : client_table()) {
        const ClientStatus &known = statuses.emplace_back(known_of(client, pins));
        statuses.back().has_been_looked_at = false;
        if (!seen.found) continue;
        const auto before = std::ranges::find(*seen.found, client.id, &ClientStatus::client_id);
        if (before == seen.found->end()) continue;
        ClientStatus mixed = *before;
        mixed.state = known.state;
        // Groups are in shared memory: as in the last look.
        const bool has_group = client.state == ClientState::quarantined &&
                               known.quarantine_reason != QuarantineReason::pin_held &&
                               before->quarantine_reason == QuarantineReason::group;
        if (!has_group) {
            mixed.quarantine_reason = known.quarantine_reason;
            mixed.quarantine_left = known.quarantine_left;
        }
        statuses.back() = std::move(mixed);
    }
    return statuses;
}

// All but what is in shared memory.
ClientStatus ManagedPool::known_of(const Client &client, const std::vector<Pins::Pin> &pins) const {
    ClientStatus status;
    status.client_id = client.id;
    status.pool = description_.name();
    status.pid = client.peer.pid;
    status.uid = client.peer.uid;
    status.gid = client.peer.gid;
    status.comm = client.peer.comm;
    status.cgroup = client.peer.cgroup;
    status.attached = client.attached;
    const PoolLimits::OfClient limits = limits_.of(client);
    status.quota_bytes = limits.quota_bytes;
    status.soft_quota_bytes = limits.soft_quota_bytes;
    status.reserved_bytes = limits.reserved_bytes;
    status.pinned_bytes = Pins::bytes_in(pins, [&](const Pins::Pin &pin) { return pin.slot == client.slot; });
    // A channel is active for as long as it is there.
    const bool is_channel = client.tier == wire::Tier::channel && !has_departed(client);
    status.state = is_channel ? "channel" : client_state_name(client.state);
    status.waits_for = client.waits_for;
    if (client.state != ClientState::quarantined) return status;
    const Pins::Wait wait = pins_.wait_of(client.slot, description_.now()->spec.pin_quarantine, Pins::Clock::now());
    if (wait.is_held) status.quarantine_reason = QuarantineReason::pin_held;
    if (wait.left) {
        status.quarantine_reason = QuarantineReason::pin_time;
        status.quarantine_left = std::chrono::ceil<std::chrono::seconds>(*wait.left);
    }
    return status;
}

void ManagedPool::look_at_use() {
    Use use = scan_.begin();
    scan_.walk(use);
    compare_with_limits(use);
}

std::vector<ClientStatus> ManagedPool::client_statuses() {
    Use use = scan_.begin();
    const std::vector<Client> table = client_table();
    std::vector<ClientStatus> statuses;
    if (table.empty()) return statuses;

    const std::vector<OwnerUsage> usage = scan_.walk(use);
    compare_with_limits(use);
    std::vector<std::uint32_t> threads(process_slots_, 0);
    struct Holds {
        std::uint64_t count = 0, frames = 0;
    };
    std::vector<Holds> holds(process_slots_);
    for (std::uint32_t thread = 1; thread < shared_.threads_in_use_bound(); ++thread) {
        // relaxed: only counted.
        const ThreadOwner owner{shared_.threads[thread].owner.load(std::memory_order_relaxed)};
        if (!owner.in_use() || owner.process().value >= process_slots_) continue;
        ++threads[owner.process().value];
        // acquire: with the words.
        for (std::uint64_t left = shared_.threads[thread].holds.load(std::memory_order_acquire); left != 0;
             left &= left - 1) {
            const HoldWord word{shared_.holds[thread].word[static_cast<unsigned>(std::countr_zero(left))].load(
                std::memory_order_relaxed)};
            if (!word.is_holding() || !views_.front().contains(word.block())) continue;
            ++holds[owner.process().value].count;
            holds[owner.process().value].frames += word.block().order.frames();
        }
    }
    const std::chrono::seconds age = ledger_.age();
    const std::vector<Pins::Pin> pins = pins_.all();
    for (const Client &client : table) {
        ClientStatus status = known_of(client, pins);
        if (client.state == ClientState::quarantined && status.quarantine_reason != QuarantineReason::pin_held &&
            has_group(client.slot, table)) {
            // Its blocks wait for the group after the time of its pins as well.
            status.quarantine_reason = QuarantineReason::group;
            status.quarantine_left.reset();
        }
        status.used_bytes = geometry_.bytes_of(usage[client.slot.value].frames);
        status.cached_bytes = geometry_.bytes_of(usage[client.slot.value].cached_frames);
        status.blocks = usage[client.slot.value].blocks;
        if (status.blocks != 0) status.oldest_held_for = held_for(usage[client.slot.value].oldest, age);
        status.threads = threads[client.slot.value];
        status.holds = holds[client.slot.value].count;
        status.hold_bytes = geometry_.bytes_of(holds[client.slot.value].frames);
        statuses.push_back(std::move(status));
    }
    return statuses;
}

void ManagedPool::add_oldest_blocks(std::uint32_t client_id, OldestBlocks &blocks) {
    std::vector<std::uint32_t> ids(process_slots_, 0);
    for (const Client &client : client_table())
        if (client_id == 0 || client.id == client_id) ids[client.slot.value] = client.id;
    if (std::ranges::all_of(ids, [](std::uint32_t id) { return id == 0; })) return;
    const std::chrono::seconds age = ledger_.age();
    for (std::size_t i = 0; i < views_.size(); ++i) {
        const auto visit = [&](Block block, IndexEntry entry) {
            const std::uint32_t id = entry.owner().value < process_slots_ ? ids[entry.owner().value] : 0;
            if (id == 0 || entry.is_cached()) return;
            const std::uint64_t bytes = geometry_.bytes_of(block.order.frames());
            const std::chrono::seconds held = held_for(entry.note().since(), age);
            blocks.add(held, bytes, [&] {
                return HeldBlock{.pool = description_.name(),
                                 .client_id = id,
                                 .node = NumaNode{static_cast<std::uint8_t>(i)},
                                 .offset_bytes = geometry_.bytes_of(block.base.value),
                                 .bytes = bytes,
                                 .requested_bytes = bytes - geometry_.slack_bytes(block.order, entry.note()),
                                 .is_published = entry.is_published(),
                                 .held_for = held};
            });
        };
        HeldScan scan{visit};
        walk_all(views_[i], scan);
    }
}

OccupancyMap ManagedPool::occupancy(NumaNode numa_node, std::uint32_t cells) {
    constexpr std::uint64_t kCellsMax = 65536;
    const std::uint64_t frames = geometry_.frame_count;
    const std::uint64_t wanted = std::clamp<std::uint64_t>(cells == 0 ? geometry_.chunk_count() : cells, 1, kCellsMax);
    const std::uint64_t frames_per_cell = divide_up(frames, wanted);
    std::vector<CellUsage> usage(divide_up(frames, frames_per_cell));
    scan_occupancy(views_[numa_node.value], frames_per_cell, std::span<CellUsage>(usage));
    OccupancyMap map;
    map.bytes_per_cell = geometry_.bytes_of(frames_per_cell);
    for (const CellUsage &cell : usage) map.cells.push_back({cell.frames, cell.used_frames, cell.offline_frames, 0});
    std::vector<Pins::Pin> pins = pins_.all();
    std::erase_if(pins, [&](const Pins::Pin &pin) { return pin.numa_node != numa_node; });
    std::ranges::sort(pins, {}, &Pins::Pin::first_byte);
    for (const Pins::Pin &pin : pins) {
        const auto client = clients_.at(pin.slot);
        if (!client) continue;  // gone since
        map.pins.push_back({client->id, client->peer.pid, client->peer.comm, pin.first_byte, pin.bytes});
    }
    for (std::size_t i = 0; !pins.empty() && i < map.cells.size(); ++i) {
        const std::uint64_t first = i * map.bytes_per_cell, bytes = geometry_.bytes_of(map.cells[i].frames);
        std::vector<Pins::Pin> here;
        for (const Pins::Pin &pin : pins) {
            if (!pin.overlaps(numa_node, first, bytes)) continue;
            const std::uint64_t begin = std::max(pin.first_byte, first);
            here.push_back({pin.slot, numa_node, begin, std::min(pin.first_byte + pin.bytes, first + bytes) - begin});
        }
        map.cells[i].pinned_frames =
            geometry_.frames_in(Pins::bytes_in(std::move(here), [](const Pins::Pin &) { return true; }));
    }
    return map;
}

std::vector<BlockHolder> ManagedPool::holders(NumaNode numa_node, const std::vector<UnitRange> &units) {
    std::vector<OwnerUsage> usage(process_slots_);
    const std::uint64_t unit_frames = geometry_.frames_in(node_memory(numa_node).unit_bytes());
    for (const UnitRange &range : units)
        scan_holders(views_[numa_node.value], FrameIndex{range.first * unit_frames}, range.count * unit_frames,
                     std::span<OwnerUsage>(usage));
    const std::uint64_t unit_bytes = node_memory(numa_node).unit_bytes();
    std::vector<std::uint64_t> pinned(process_slots_);
    const std::vector<Pins::Pin> pins = pins_.all();
    for (const UnitRange &range : units) {
        const std::uint64_t begin = range.first * unit_bytes, end = begin + range.count * unit_bytes;
        std::vector<Pins::Pin> here;
        for (const Pins::Pin &pin : pins)
            if (pin.slot.value < process_slots_ && pin.overlaps(numa_node, begin, end - begin)) {
                const std::uint64_t first = std::max(pin.first_byte, begin);
                here.push_back({pin.slot, numa_node, first, std::min(pin.first_byte + pin.bytes, end) - first});
            }
        std::set<std::uint16_t> slots;
        for (const Pins::Pin &pin : here) slots.insert(pin.slot.value);
        for (const std::uint16_t slot : slots)
            pinned[slot] += Pins::bytes_in(here, [&](const Pins::Pin &pin) { return pin.slot.value == slot; });
    }
    std::vector<BlockHolder> found;
    for (std::uint32_t slot = 0; slot < process_slots_; ++slot) {
        if (usage[slot].frames == 0 && pinned[slot] == 0) continue;
        BlockHolder holder;
        holder.bytes = geometry_.bytes_of(usage[slot].frames);
        holder.pinned_bytes = pinned[slot];
        if (slot == kDaemonProcess.value) holder.comm = "the quarantine";
        if (const auto client = clients_.at(ProcessSlot{static_cast<std::uint16_t>(slot)})) {
            holder.client_id = client->id;
            holder.pid = client->peer.pid;
            holder.comm = client->peer.comm;
        }
        found.push_back(std::move(holder));
    }
    std::sort(found.begin(), found.end(), [](const auto &a, const auto &b) {
        return std::max(a.bytes, a.pinned_bytes) > std::max(b.bytes, b.pinned_bytes);
    });
    return found;
}

}  // namespace numacre::daemon
