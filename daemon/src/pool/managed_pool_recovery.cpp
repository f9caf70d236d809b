// The estate of the dead: recovery, the quarantine, and what the daemon before was in the middle of.
// The worker's thread only.
#include <algorithm>
#include <chrono>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.hpp"
#include "engine.hpp"
#include "numacre/shm/account.hpp"
#include "numacre/shm/recovery.hpp"
#include "os/log.hpp"
#include "pool/managed_pool.hpp"

namespace numacre::daemon {

namespace {

constexpr std::chrono::seconds kZeroAgainAfter{1};
// A seized block that others hold: how often the daemon looks again, and at how many of them at once. Each look costs a
// load for each thread slot.
constexpr std::chrono::milliseconds kReadAgainAfter{100};
constexpr unsigned kReadLooksMax = 256;
// A client can bring it about as often as it likes.
constexpr std::chrono::seconds kStraysToldEvery{60};
// Zeroed at once at most: between two such pieces the worker looks after dead clients.
constexpr std::uint64_t kZeroedBytesMax = std::uint64_t{64} << 20;

}  // namespace

RecoveryStep ManagedPool::finish_predecessor(ThreadSlotIndex &blocked_by) {
    if (!adopted_) return RecoveryStep::done;
    {
        const RecordsLock taken_over(*this);
    }
    if (is_corrupt()) return RecoveryStep::done;
    Recovery<ProductionEnv> recovery(shared_, std::span<const View>(views_));
    if (recovery.resume(blocked_by) == RecoveryStep::blocked) return RecoveryStep::blocked;
    for (const auto &memory : nodes_) {
        memory->finish_units();
        for (std::uint64_t unit = 0; unit < memory->unit_count(); ++unit) {
            const Drain drain = memory->drain_of(unit);
            if (drain == Drain::none) continue;
            // Whichever it was, perhaps it has reached some of the unit's chunks only.
            memory->set_drain(unit, drain == Drain::wanted ? Drain::wanted : Drain::none);
            if (drain == Drain::wanted) draining.insert({memory->numa_node().value, unit});
        }
    }
    // Blocks that it had seized and not released: their time begins anew.
    zeroes_seized_ = ledger_.has_zeroed();
    recovery.for_each_seized(
        [this](NumaNode numa_node, Block block, Quarantine::Era era) { seize(numa_node, block, era); });
    {
        const RecordsLock records(*this);
        records_.take_all();
    }
    publish_sizes();
    adopted_ = false;
    return RecoveryStep::done;
}

void ManagedPool::reclaim(std::span<Departed> departed) {
    const auto all = [&](RecoveryStep step, ThreadSlotIndex blocked_by) {
        for (Departed &one : departed) {
            one.step = step;
            one.blocked_by = blocked_by;
        }
    };
    ThreadSlotIndex blocked_by;
    mark_departing_dead();
    // The owners that a damaged pool names are not to be believed, and a thread that it shows in the way may stand
    // there for ever.
    if (look_for_damage()) return all(RecoveryStep::done, blocked_by);
    if (finish_predecessor(blocked_by) == RecoveryStep::blocked) return all(RecoveryStep::blocked, blocked_by);
    // A living thread receives from the same burst at this moment: soon it does no more.
    if (const std::vector<ProcessSlot> waiting = recover_parties(departed); !waiting.empty()) {
        std::vector<Departed> ready;
        for (const Departed &one : departed)
            if (std::ranges::find(waiting, one.process) == waiting.end()) ready.push_back(one);
        if (!ready.empty()) reclaim_blocks(ready);
        for (Departed &one : departed) {
            const auto found = std::ranges::find(ready, one.process, &Departed::process);
            if (found != ready.end()) {
                one = *found;
            } else {
                one.step = RecoveryStep::blocked;
                one.blocked_by = kDaemonThread;
            }
        }
        return;
    }
    reclaim_blocks(departed);
}

void ManagedPool::reclaim_blocks(std::span<Departed> departed) {
    Recovery<ProductionEnv> recovery(shared_, std::span<const View>(views_));
    const Reclaim reclaim = description_.now()->spec.reclaim;
    std::vector<Pins::Pin> pinned;
    std::vector<ProcessSlot> of_a_group;
    for (const Departed &one : departed) {
        pins_.begin_departure(one.process);
        const auto more = quarantine_of(one.process);
        pinned.insert(pinned.end(), more.begin(), more.end());
        if (has_group(one.process)) of_a_group.push_back(one.process);
    }
    const auto keeps = [&](NumaNode numa_node, Block block, IndexEntry entry) {
        if (std::ranges::find(of_a_group, entry.owner()) != of_a_group.end()) return true;
        return std::ranges::any_of(pinned, [&](const Pins::Pin &pin) {
            return pin.slot == entry.owner() && pin.overlaps(numa_node, geometry_.bytes_of(block.base.value),
                                                             geometry_.bytes_of(block.order.frames()));
        });
    };
    if (reclaim.kind == Reclaim::Kind::fast) {
        recovery.recover(departed, keeps);
    } else {
        zeroes_seized_ = zeroes_seized_ || reclaim.kind == Reclaim::Kind::zero;
        const Quarantine::Era era = quarantine_.era(Quarantine::Clock::now());
        recovery.seize(
            departed, era, [this, era](NumaNode numa_node, Block block) { seize(numa_node, block, era); }, keeps);
    }
    // Before any count is lowered: nobody has noted the blocks that recovery has freed in units that drain.
    forget_draining_held(shared_);
    // A dead client may have been giving a block to another.
    forget_stale_gifts(Stale::all);
}

std::vector<Pins::Pin> ManagedPool::quarantine_of(ProcessSlot slot) {
    return pins_.quarantine_of(slot, description_.now()->spec.pin_quarantine, Pins::Clock::now());
}

bool ManagedPool::has_pins(ProcessSlot slot, bool has_blocks) {
    return has_blocks ? !quarantine_of(slot).empty() : pins_.has_descriptor(slot);
}

// The clients say themselves of which group they are: who says a wrong one keeps, or gives away, its own blocks.
bool ManagedPool::has_group(ProcessSlot slot, std::span<const Client> clients) const {
    const auto group_of = [this](ProcessSlot process) {
        return shared_.processes[process.value].group.load(std::memory_order_acquire);
    };
    const std::uint64_t group = group_of(slot);
    if (group == 0) return false;
    return std::ranges::any_of(clients, [&](const Client &client) {
        return client.slot != slot && client.tier == wire::Tier::trusted && !has_departed(client) &&
               group_of(client.slot) == group;
    });
}

Answer<ManagedPool::Pinned> ManagedPool::pin(const Client &client, NumaNode numa_node, std::uint64_t first_byte,
                                             std::uint64_t bytes) {
    const auto now = clients_.at(client.slot);
    if (!now || now->id != client.id || has_departed(*now)) return Unexpected{no_such_client(client.id)};
    const NodeMemory &memory = node_memory(numa_node);
    const std::uint64_t unit_bytes = memory.unit_bytes();
    const std::uint64_t first = first_byte / unit_bytes, end = divide_up(first_byte + bytes, unit_bytes);
    const auto refused = [&](std::uint64_t unit, const std::string &why, Errc code) {
        return Unexpected{Failure{code, "bytes " + std::to_string(unit * unit_bytes) + " to " +
                                            std::to_string((unit + 1) * unit_bytes) + " of numa node " +
                                            std::to_string(numa_node.value) + " of pool \"" + description_.name() +
                                            "\" " + why}};
    };
    for (std::uint64_t unit = first; unit < end; ++unit) {
        if (!memory.is_online(unit))
            return refused(unit, "have no memory: pin what is online, or grow the pool first (numacre resize)",
                           Errc::bad_argument);
        if (memory.drain_of(unit) != Drain::none)
            return refused(unit,
                           "are being taken offline: try again when the resize is over, or undo the drain (numacre "
                           "drain --undo)",
                           Errc::contended);
    }
    auto descriptor = pins_.add({client.slot, numa_node, first * unit_bytes, (end - first) * unit_bytes},
                                description_.now()->spec.pin_quarantine, Pins::Clock::now());
    if (!descriptor) return Unexpected{descriptor.error()};
    return Pinned{std::move(*descriptor), first * unit_bytes, (end - first) * unit_bytes};
}

bool ManagedPool::is_overfull() const {
    return std::ranges::any_of(nodes_, [](const auto &memory) { return memory->is_overfull(); });
}

void ManagedPool::punch_strays() {
    if (adopted_) return;  // a unit that was being filled is finish_units()'s
    for (const auto &memory : nodes_) strays_bytes_ += memory->punch_strays();
    const auto now = std::chrono::steady_clock::now();
    if (strays_bytes_ == 0 || now - strays_told_ < kStraysToldEvery) return;
    log::warn("a client had put memory behind frames that are offline: the machine has it back",
              {{"pool", description_.name()}, {"bytes", std::exchange(strays_bytes_, 0)}});
    strays_told_ = now;
}

void ManagedPool::seize(NumaNode numa_node, Block block, Quarantine::Era era) {
    quarantine_.add(numa_node, block, era, Quarantine::Clock::now());
    nodes_[numa_node.value]->count_quarantined(static_cast<std::int64_t>(block.order.frames()));
    const RecordsLock records(*this);
    write_seized();
}

void ManagedPool::list_seized() {
    const auto now = Quarantine::Clock::now();
    std::vector<std::int64_t> frames(nodes_.size());
    // Each block's numa node and first frame.
    const auto key_of = [](NumaNode numa_node, Block block) { return std::pair{numa_node.value, block.base.value}; };
    std::set<std::pair<std::uint8_t, std::uint64_t>> read;
    for (const Quarantine::Seized &one : read_seized_) read.insert(key_of(one.numa_node, one.block));
    quarantine_.begin_listing();
    Recovery<ProductionEnv>(shared_, std::span<const View>(views_))
        .for_each_seized([&](NumaNode numa_node, Block block, Quarantine::Era era) {
            frames[numa_node.value] += static_cast<std::int64_t>(block.order.frames());
            if (read.contains(key_of(numa_node, block))) return;
            quarantine_.list(numa_node, block, era, now);
        });
    quarantine_.end_listing();
    // Blocks that somebody has scribbled are counted, too.
    for (std::size_t i = 0; i < nodes_.size(); ++i)
        nodes_[i]->count_quarantined(frames[i] - static_cast<std::int64_t>(nodes_[i]->quarantined_frames()));
}

std::optional<std::chrono::steady_clock::time_point> ManagedPool::release_seized() {
    if (look_for_damage() || is_deleted()) {
        quarantine_.clear();
        read_seized_.clear();
        return std::nullopt;
    }
    ThreadSlotIndex blocked_by;
    if (finish_predecessor(blocked_by) == RecoveryStep::blocked)
        return std::chrono::steady_clock::now() + std::chrono::seconds(1);
    const auto now = Quarantine::Clock::now();
    const Reclaim reclaim = description_.now()->spec.reclaim;
    quarantine_.set_hold(reclaim.hold);
    // Blocks of clients that ended while the pool was to zero them are zeroed, whatever it is to do now.
    zeroes_seized_ = zeroes_seized_ || reclaim.kind == Reclaim::Kind::zero;
    if (quarantine_.has_to_list(now)) list_seized();
    Recovery<ProductionEnv> recovery(shared_, std::span<const View>(views_));
    std::uint64_t bytes = 0;
    std::vector<std::int64_t> released(nodes_.size());  // frames, by numa node
    std::vector<Quarantine::Seized> were_read = std::exchange(read_seized_, {});
    for (unsigned looks = 0; bytes < kZeroedBytesMax; ++looks) {
        std::optional<Quarantine::Seized> due;
        if (were_read.empty() || looks >= kReadLooksMax) {
            due = quarantine_.take_due(now);
        } else {
            due = were_read.back();
            were_read.pop_back();
        }
        if (!due) break;
        const Quarantine::Seized &one = *due;
        if (recovery.has_readers(one.numa_node, one.block)) {
            read_seized_.push_back(one);
            continue;
        }
        const NodeMemory &memory = *nodes_[one.numa_node.value];
        const std::uint64_t block_bytes = geometry_.bytes_of(one.block.order.frames());
        bytes += block_bytes;
        if (zeroes_seized_) {
            if (auto zeroed = memory.zero(one.block); !zeroed) {
                log::error("blocks of a client that is gone cannot be zeroed: they stay where they are for now",
                           {{"pool", description_.name()}, {"reason", zeroed.error().message}});
                quarantine_.put_back(one, now + kZeroAgainAfter);
                break;
            }
        }
        released[one.numa_node.value] += static_cast<std::int64_t>(one.block.order.frames());
        if (!recovery.release(one.numa_node, one.block))
            declare_corrupt("a block that the daemon held on numa node " + std::to_string(one.numa_node.value) +
                            " has been overwritten");
    }
    read_seized_.insert(read_seized_.end(), were_read.begin(), were_read.end());  // these come first the next time
    if (bytes != 0) {
        {
            const RecordsLock records(*this);
            forget_draining_held(shared_);  // as in vacate(), and before they count as held no more
            for (std::size_t i = 0; i < nodes_.size(); ++i) nodes_[i]->count_quarantined(-released[i]);
            write_sizes();
        }
        wake_waiters();
    }
    std::optional<std::chrono::steady_clock::time_point> next;
    if (!quarantine_.is_empty()) next = quarantine_.next_due();
    // Nobody tells of a drop.
    if (!read_seized_.empty()) next = std::min(next.value_or(now + kReadAgainAfter), now + kReadAgainAfter);
    if (!next) zeroes_seized_ = false;
    return next;
}

}  // namespace numacre::daemon
