// The channels of a pool (shm/channel/): which there are, who has them open, and what becomes of dead parties. The
// ledger says so, and shared memory is never asked. The worker's thread only, but for the figures that people ask for.
#include <algorithm>
#include <climits>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.hpp"
#include "numacre/os/kernel.hpp"
#include "numacre/shm/channel/area.hpp"
#include "numacre/shm/channel/broadcast_recovery.hpp"
#include "numacre/shm/channel/figures.hpp"
#include "numacre/shm/channel/recovery.hpp"
#include "os/log.hpp"
#include "pool/look_limits.hpp"
#include "pool/managed_pool.hpp"

namespace numacre::daemon {

namespace {

// A client's threads together: more than a channel has parties, as a failing open is counted for a moment.
constexpr std::uint8_t kOpenedMost = 200;

Failure no_such_channel(const std::string &name, const std::string &remedy) {
    return {Errc::no_such_pool, "there is no channel \"" + name + "\" in the pool: " + remedy};
}

std::string text_of(const ChannelShape &shape) {
    return std::string(shape.is_broadcast() ? "broadcast, " : "") + "capacity " + std::to_string(shape.capacity) +
           ", burst " + std::to_string(shape.burst) + ", parties " + std::to_string(shape.parties);
}

// A damaged ledger's may have no end.
std::string_view name_of(const LedgerChannel &channel) {
    return {channel.name, ::strnlen(channel.name, sizeof channel.name)};
}

NameText name_of(const ChannelWish &wish) {
    NameText name;
    // A channel's name is a name of the directory: it has fewer characters to choose from, and the same length.
    static_assert(kChannelNameBytes == kNameBytes);
    (void)NameText::read(wish.name.c_str(), name);
    return name;
}

std::string describe(NameKind kind) {
    switch (kind) {
        case NameKind::reference:
            return "a reference";
        case NameKind::objects:
            return "an object pool";
        case NameKind::channel:
            return "a channel that is going";
        case NameKind::none:
            break;
    }
    return "nothing";
}

const char *stays_name(ChannelStays stays) {
    switch (stays) {
        case ChannelStays::while_needed:
            return "while needed";
        case ChannelStays::always:
            return "always";
        case ChannelStays::no:
            return "removed";
        case ChannelStays::going:
            return "going";
    }
    return "unknown";
}

Failure other_kind(const std::string &name, ChannelKind there) {
    return {Errc::already_exists,
            there == ChannelKind::broadcast
                ? "channel \"" + name +
                      "\" is a broadcast channel, of which each reader gets every message: open it with "
                      "NUMACRE_CHANNEL_BROADCAST, or use another name"
                : "channel \"" + name +
                      "\" is a queue, of which one receiver gets a message: open it without "
                      "NUMACRE_CHANNEL_BROADCAST, or use another name"};
}

void wake(Sleepers<ProductionEnv> sleepers) {
    sleepers.call();
    os::futex_wake(reinterpret_cast<std::uint32_t *>(&sleepers.signal()), INT_MAX);
}
void wake_all(const ChannelView<ProductionEnv> &view) {
    wake(Sleepers<ProductionEnv>::on_messages(*view.header));
    wake(Sleepers<ProductionEnv>::on_room(*view.header));
}
void wake_all(const BroadcastView<ProductionEnv> &view) {
    wake(Sleepers<ProductionEnv>::on_messages(*view.header));
}

template <class Nodes>
Channel<ProductionEnv, Nodes> ring_on(const ChannelView<ProductionEnv> &view, ProcessSlot seat, const Nodes &nodes) {
    return {view, seat, nodes};
}
template <class Nodes>
Broadcast<ProductionEnv, Nodes> ring_on(const BroadcastView<ProductionEnv> &view, ProcessSlot seat,
                                        const Nodes &nodes) {
    return {view, seat, nodes};
}

}  // namespace

// The numa nodes, as the engine's channels want them.
struct ManagedPool::ChannelNodes {
    std::vector<Buddy<ProductionEnv>> *buddies;
    Buddy<ProductionEnv> &at(std::uint32_t numa_node) const { return (*buddies)[numa_node]; }
    std::uint32_t count() const { return static_cast<std::uint32_t>(buddies->size()); }
};

std::vector<Buddy<ProductionEnv>> ManagedPool::buddies() const {
    std::vector<Buddy<ProductionEnv>> all;
    all.reserve(views_.size());
    for (const View &view : views_) all.emplace_back(view, shared_);
    return all;
}

void *ManagedPool::memory_of(const LedgerChannel &channel) const {
    const auto layout = PoolLayout<ProductionEnv>::of(process_slots_, thread_slots_);
    return static_cast<std::byte *>(pool_region_.address()) + layout.channels + channel.offset;
}
ChannelView<ProductionEnv> ManagedPool::view_of(const LedgerChannel &channel) const {
    return ChannelView<ProductionEnv>::at(memory_of(channel), channel.shape);
}
BroadcastView<ProductionEnv> ManagedPool::broadcast_view_of(const LedgerChannel &channel) const {
    return BroadcastView<ProductionEnv>::at(memory_of(channel), BroadcastShape::of(channel.shape));
}

LedgerChannel *ManagedPool::find_channel(const std::string &name) const {
    for (LedgerChannel &each : ledger_.channels())
        if (each.client_id.load(std::memory_order_acquire) != 0 && name == name_of(each) && !is_going(each))
            return &each;
    return nullptr;
}

bool ManagedPool::is_going(const LedgerChannel &channel) const {
    if (channel.stays.load(std::memory_order_relaxed) == ChannelStays::going) return true;
    const auto seat = clients_.at(ProcessSlot{channel.slot});
    return !seat || seat->id != channel.client_id.load(std::memory_order_relaxed) || has_departed(*seat);
}

// Forgets a channel whose seat has gone, and its blocks with it.
void ManagedPool::forget_if_gone(LedgerChannel &channel) {
    const auto seat = clients_.at(ProcessSlot{channel.slot});
    if (seat && seat->id == channel.client_id.load(std::memory_order_relaxed)) return;
    const MutexLock lock(channels_mutex_);
    channel.client_id.store(0, std::memory_order_release);
}

Answer<std::optional<ManagedPool::OpenChannel>> ManagedPool::open_channel(const Client &client, const ChannelWish &wish,
                                                                          std::uint32_t channel_id) {
    const auto now = clients_.at(client.slot);
    if (!now || now->id != client.id || has_departed(*now)) return Unexpected{no_such_client(client.id)};
    LedgerChannel *channel = find_channel(wish.name);
    if (channel == nullptr) {
        if (wish.must_exist)
            return Unexpected{no_such_channel(wish.name, "open it without NUMACRE_CHANNEL_EXISTING first")};
        for (LedgerChannel &each : ledger_.channels()) {
            if (each.client_id.load(std::memory_order_acquire) == 0 || wish.name != name_of(each)) continue;
            forget_if_gone(each);
            if (each.client_id.load(std::memory_order_relaxed) != 0) return std::optional<OpenChannel>{};
        }
        auto made = make_channel(client, wish, channel_id);
        if (!made) return Unexpected{made.error()};
        channel = *made;
    } else if (wish.shape.kind != channel->shape.kind) {
        return Unexpected{other_kind(wish.name, channel->shape.kind)};
    } else if (!wish.shape.is_met_by(channel->shape)) {
        return Unexpected{Failure{Errc::already_exists, "there is a channel \"" + wish.name + "\" of " +
                                                            text_of(channel->shape) + ": ask for these, or for 0"}};
    }
    auto &opened = ledger_.clients()[client.slot.value].channels[channel - ledger_.channels().data()];
    const std::uint8_t before = opened.load(std::memory_order_relaxed);
    if (before >= kOpenedMost)
        return Unexpected{Failure{Errc::too_many_clients, "the client has channel \"" + wish.name + "\" open " +
                                                              std::to_string(before) + " times: close some handles"}};
    opened.store(before + 1, std::memory_order_release);
    if (wish.stays) channel->stays.store(ChannelStays::always, std::memory_order_release);
    return std::optional{OpenChannel{channel->offset, channel->shape, ProcessSlot{channel->slot}}};
}

Answer<LedgerChannel *> ManagedPool::make_channel(const Client &client, const ChannelWish &wish,
                                                  std::uint32_t channel_id) {
    const ChannelShape shape = wish.shape.with_defaults();
    const std::uint64_t bytes = channel_bytes<ProductionEnv>(shape);
    std::vector<ChannelExtent> taken;
    LedgerChannel *unused = nullptr;
    for (LedgerChannel &each : ledger_.channels())
        if (each.client_id.load(std::memory_order_acquire) != 0)
            taken.push_back({each.offset, channel_bytes<ProductionEnv>(each.shape)});
        else if (unused == nullptr)
            unused = &each;
    const std::uint64_t offset = find_channel_place(taken, bytes);
    if (unused == nullptr || offset == kChannelAreaBytes)
        return Unexpected{
            Failure{Errc::too_many_clients, "pool \"" + name() + "\" has no place for one more channel of " +
                                                format_bytes(bytes) + ": it has " + std::to_string(kChannels) +
                                                " channels at most, of " + format_bytes(kChannelAreaBytes) +
                                                " together: remove one, or ask for a smaller one"}};
    const auto layout = PoolLayout<ProductionEnv>::of(process_slots_, thread_slots_);
    if (auto populated = pool_region_.populate(layout.channels + offset, bytes); !populated)
        return Unexpected{populated.error()};
    if (const auto there = names_.find(name_of(wish)))
        return Unexpected{Failure{Errc::already_exists, "name \"" + wish.name + "\" is bound to " +
                                                            describe(there->kind) +
                                                            ": use another name for the channel, or remove that one"}};
    // For whoever has made it: its user's quota covers what is in the channel.
    Peer maker;
    maker.uid = client.peer.uid;
    maker.gid = client.peer.gid;
    maker.comm = wish.name.substr(0, sizeof LedgerClient::comm - 1);
    auto seated = seat(channel_id, std::move(maker), wire::Tier::channel);
    if (!seated) return Unexpected{seated.error()};
    {
        // Somebody may be looking at the channel that was here before.
        const MutexLock lock(channels_mutex_);
        unused->uid = client.peer.uid;
        unused->slot = seated->slot.value;
        unused->stays.store(wish.stays ? ChannelStays::always : ChannelStays::while_needed, std::memory_order_relaxed);
        unused->shape = shape;
        unused->offset = offset;
        std::memset(unused->name, 0, sizeof unused->name);
        wish.name.copy(unused->name, sizeof unused->name - 1);
        std::memset(memory_of(*unused), 0, bytes);
        if (shape.is_broadcast())
            format_broadcast(broadcast_view_of(*unused));
        else
            format_channel(view_of(*unused));
        // A channel whose maker died before this store is one that nobody has: its seat goes (take_unused_channels()).
        unused->client_id.store(channel_id, std::memory_order_release);
    }
    bind_channel(*unused, wish);
    log::info("channel made", {{"pool", name()}, {"channel", wish.name}, {"shape", text_of(shape)}});
    return unused;
}

// The name is the seat's, and goes with it. If there is no room for it, or another has been bound in this moment, the
// channel is found by those who open it all the same.
void ManagedPool::bind_channel(const LedgerChannel &channel, const ChannelWish &wish) {
    pool_region_.look_again();
    const RecordsLock records(*this);
    NameEntry entry;
    entry.name = name_of(wish);
    entry.kind = NameKind::channel;
    entry.value = static_cast<std::uint64_t>(&channel - ledger_.channels().data());
    // Of the daemon's making: no user's quota of names is used up by channels, of which there are few.
    const NameAsker asker{channel.uid, channel.client_id.load(std::memory_order_relaxed), true};
    if (const auto bound = names_.bind(entry, 0, asker); !bound)
        log::warn("a channel has no name in the directory",
                  {{"pool", name()}, {"channel", wish.name}, {"reason", bound.error().message}});
}

Answer<void> ManagedPool::close_channel(const Client &client, const std::string &name) {
    LedgerChannel *const channel = find_channel(name);
    if (channel == nullptr) return Unexpected{no_such_channel(name, "nothing has been closed")};
    auto &opened = ledger_.clients()[client.slot.value].channels[channel - ledger_.channels().data()];
    const std::uint8_t before = opened.load(std::memory_order_relaxed);
    if (before == 0)
        return Unexpected{
            Failure{Errc::bad_argument, "the client has not opened channel \"" + name + "\": nothing has been closed"}};
    opened.store(before - 1, std::memory_order_release);
    return {};
}

Answer<void> ManagedPool::remove_channel(const Client &client, const std::string &name) {
    LedgerChannel *const channel = find_channel(name);
    if (channel == nullptr) return Unexpected{no_such_channel(name, "nothing has been removed")};
    if (channel->uid != client.peer.uid && client.peer.uid != 0)
        return Unexpected{Failure{Errc::not_owner, "channel \"" + name + "\" was made by uid " +
                                                       std::to_string(channel->uid) +
                                                       ": that user or root may remove it"}};
    channel->stays.store(ChannelStays::no, std::memory_order_release);
    return {};
}

Answer<std::uint32_t> ManagedPool::remove_channel(const std::string &name, bool ends) {
    LedgerChannel *const channel = find_channel(name);
    if (channel == nullptr) return Unexpected{no_such_channel(name, "nothing has been removed")};
    channel->stays.store(ChannelStays::no, std::memory_order_release);
    if (ends) {
        std::vector<Buddy<ProductionEnv>> all = buddies();
        with_view(*channel, [&](const auto &view) {
            ring_on(view, ProcessSlot{channel->slot}, ChannelNodes{&all}).close();
            wake_all(view);
        });
    }
    const std::vector<Client> clients = clients_.all();
    return static_cast<std::uint32_t>(
        std::ranges::count_if(clients, [&](const Client &client) { return opened_by(client, *channel) != 0; }));
}

std::uint32_t ManagedPool::opened_by(const Client &client, const LedgerChannel &channel) const {
    // One in quarantine has ended, and its parties are recovered.
    if (client.tier == wire::Tier::channel || client.state == ClientState::quarantined) return 0;
    // relaxed: the worker's own, or a figure.
    return ledger_.clients()[client.slot.value].channels[&channel - ledger_.channels().data()].load(
        std::memory_order_relaxed);
}

Answer<std::vector<ChannelStatus>> ManagedPool::channel_statuses_in_time() {
    const auto seen = channels_look_.take(kLookPatience);
    if (!seen.found) return Unexpected{cannot_be_looked_at(name())};
    return *seen.found;
}

std::vector<ChannelStatus> ManagedPool::channel_statuses() {
    std::vector<ChannelStatus> statuses;
    const std::vector<Client> clients = clients_.all();
    for (const LedgerChannel &channel : ledger_.channels()) {
        // One at a time: the worker waits for no more than one of them.
        const MutexLock lock(channels_mutex_);
        if (channel.client_id.load(std::memory_order_acquire) != 0) statuses.push_back(status_of(channel, clients));
    }
    std::ranges::sort(statuses, {}, &ChannelStatus::name);
    return statuses;
}

ChannelStatus ManagedPool::status_of(const LedgerChannel &channel, std::span<const Client> clients) const {
    ChannelStatus status;
    status.pool = description_.name();
    status.name = name_of(channel);
    // relaxed: figures for people.
    status.client_id = channel.client_id.load(std::memory_order_relaxed);
    status.uid = channel.uid;
    status.stays = stays_name(channel.stays.load(std::memory_order_relaxed));
    status.shape = channel.shape;
    std::vector<Buddy<ProductionEnv>> all = buddies();
    status.figures = with_view(channel, [&](const auto &view) {
        return look_at_channel(view, ProcessSlot{channel.slot}, ChannelNodes{&all});
    });
    status.waiting_bytes = geometry_.bytes_of(status.figures.frames);
    // A broadcast has messages that it keeps, and none that wait.
    if (status.figures.messages != 0 && !channel.shape.is_broadcast())
        status.oldest_waits_for = held_for(status.figures.oldest, ledger_.age());
    // Which clients have it open is in the ledger. Their threads say themselves what they are.
    for (const Client &client : clients) {
        const std::uint32_t opened = opened_by(client, channel);
        if (opened == 0 || has_departed(client)) continue;
        ChannelParty &party =
            status.parties.emplace_back(ChannelParty{client.id, client.peer.pid, client.peer.comm, opened, 0, 0});
        with_view(channel, [&](const auto &view) {
            for (std::uint32_t slot = 1; slot <= view.shape.parties; ++slot) {
                const PartyOwner owner{view.party(slot).owner.load(std::memory_order_relaxed)};
                if (!owner.in_use() || owner.process() != client.slot) continue;
                party.senders += owner.sends() ? 1 : 0;
                party.receivers += owner.receives() ? 1 : 0;
            }
        });
    }
    std::ranges::sort(status.parties, {}, &ChannelParty::client_id);
    return status;
}

Answer<ManagedPool::ChannelUse> ManagedPool::channel_use(const Client &client, const std::string &name) const {
    const LedgerChannel *const channel = find_channel(name);
    if (channel == nullptr) return Unexpected{no_such_channel(name, "open it first")};
    const ChannelUse use{static_cast<std::size_t>(channel - ledger_.channels().data()),
                         channel->client_id.load(std::memory_order_relaxed)};
    if (has_open(client, use)) return use;
    return Unexpected{Failure{Errc::bad_argument, "the client has not opened channel \"" + name + "\": open it first"}};
}

bool ManagedPool::has_open(const Client &client, const ChannelUse &channel) const {
    // acquire: the channel of this seat, then who has it open.
    return ledger_.channels()[channel.number].client_id.load(std::memory_order_acquire) == channel.client_id &&
           ledger_.clients()[client.slot.value].channels[channel.number].load(std::memory_order_acquire) != 0;
}

std::vector<Client> ManagedPool::take_unused_channels() {
    std::vector<Client> unused;
    const auto channels = ledger_.channels();
    const std::vector<Client> clients = clients_.all();
    for (LedgerChannel &channel : channels) {
        if (channel.client_id.load(std::memory_order_acquire) != 0) forget_if_gone(channel);
    }
    for (const Client &client : clients) {
        if (client.tier != wire::Tier::channel || has_departed(client)) continue;
        const auto channel = std::ranges::find_if(channels, [&](const LedgerChannel &each) {
            return each.client_id.load(std::memory_order_relaxed) == client.id;
        });
        const auto has_it_open = [&](const Client &other) { return opened_by(other, *channel) != 0; };
        const bool is_used =
            channel != channels.end() && (stays_alone(*channel) || std::ranges::any_of(clients, has_it_open));
        if (is_used) continue;
        // Before anybody else can open it: this is the worker's thread.
        if (channel != channels.end()) channel->stays.store(ChannelStays::going, std::memory_order_release);
        unused.push_back(client);
    }
    return unused;
}

// Whether the channel stays although nobody has it open: what has been sent is not lost because its sender ends first.
bool ManagedPool::stays_alone(const LedgerChannel &channel) const {
    const ChannelStays stays = channel.stays.load(std::memory_order_relaxed);
    if (stays != ChannelStays::while_needed) return stays == ChannelStays::always;
    // A broadcast keeps messages for those who have it open.
    if (channel.shape.is_broadcast()) return false;
    std::vector<Buddy<ProductionEnv>> all = buddies();
    return Channel<ProductionEnv, ChannelNodes>{view_of(channel), ProcessSlot{channel.slot}, ChannelNodes{&all}}
        .has_messages();
}

std::vector<ProcessSlot> ManagedPool::recover_parties(std::span<const Departed> departed) {
    std::vector<ProcessSlot> blocked;
    std::vector<Buddy<ProductionEnv>> all = buddies();
    std::vector<bool> is_alive(process_slots_);
    for (const Client &client : clients_.all()) is_alive[client.slot.value] = !has_departed(client);
    const auto is_dead = [&](ProcessSlot slot) { return slot.value >= process_slots_ || !is_alive[slot.value]; };
    for (const LedgerChannel &channel : ledger_.channels()) {
        if (channel.client_id.load(std::memory_order_acquire) == 0) continue;
        if (channel.shape.is_broadcast()) {
            const auto view = broadcast_view_of(channel);
            BroadcastRecovery<ProductionEnv, ChannelNodes> recovery{view, ProcessSlot{channel.slot},
                                                                    ChannelNodes{&all}};
            for (const Departed &one : departed) recovery.recover_process(one.process, age_now());
            wake_all(view);
            continue;
        }
        const auto view = view_of(channel);
        ChannelRecovery<ProductionEnv, ChannelNodes> recovery{view, ProcessSlot{channel.slot}, ChannelNodes{&all}};
        recovery.resume(age_now());
        for (const Departed &one : departed)
            if (recovery.recover_process(one.process, age_now(), is_dead) == RecoveryStep::blocked)
                blocked.push_back(one.process);
        // The dead may have been about to wake somebody; and both sides look whether all of the others have gone.
        wake_all(view);
    }
    return blocked;
}

PoolAge ManagedPool::age_now() const {
    return PoolAge::of_seconds(static_cast<std::uint64_t>(ledger_.age().count()));
}

}  // namespace numacre::daemon
