#include "pool/managed_pool.hpp"

#include <algorithm>
#include <bit>
#include <climits>
#include <cstring>
#include <numeric>
#include <span>
#include <system_error>

#include "base/bytes.hpp"
#include "engine.hpp"
#include "numacre/os/kernel.hpp"
#include "numacre/shm/account.hpp"
#include "numacre/shm/audit.hpp"
#include "numacre/shm/fit.hpp"
#include "numacre/shm/format.hpp"
#include "numacre/shm/hand_off.hpp"
#include "numacre/shm/validate.hpp"
#include "os/log.hpp"
#include "pool/limits.hpp"
#include "spec/access.hpp"
#include "spec/policy_text.hpp"
#include "spec/pool_spec.hpp"

namespace numacre::daemon {

namespace {

constexpr std::chrono::seconds kZeroAgainAfter{1};
// A caller that asks about all pools, as a scrape does, has ten seconds altogether.
constexpr std::chrono::milliseconds kLookPatience{2000};
// A client can bring it about as often as it likes.
constexpr std::chrono::seconds kStraysToldEvery{60};

// Populated, or zeroed, at once at most: between two such pieces the worker looks after dead clients.
constexpr std::uint64_t kPopulateBytesMax = std::uint64_t{64} << 20;

std::uint64_t random_id() {
    std::uint64_t id = 0;
    while (id == 0)
        if (os::getrandom(&id, sizeof id) != sizeof id)
            id = static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
    return id;
}

// As the keeper knows them, behind the pool's name.
constexpr const char *kPoolFile = "pool";
std::string metadata_file(std::uint32_t numa_node) {
    return "metadata" + std::to_string(numa_node);
}
std::string data_file(std::uint32_t numa_node) {
    return "frames" + std::to_string(numa_node);
}

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

// At least so long: from the end of the while that the code stands for.
std::chrono::seconds held_for(PoolAge since, std::chrono::seconds age_of_pool) {
    const auto age = static_cast<std::uint64_t>(age_of_pool.count());
    return std::chrono::seconds(age > since.last_second() ? age - since.last_second() : 0);
}

double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

std::string_view client_state_name(ClientState state) {
    switch (state) {
        case ClientState::active:
            return "active";
        case ClientState::adopted:
            return "adopted";
        case ClientState::detaching:
            return "detaching";
        case ClientState::lost:
            return "lost connection";
        case ClientState::recovering:
            return "recovering";
    }
    return "unknown";
}

Answer<std::shared_ptr<ManagedPool>> ManagedPool::create(const PoolSpec &spec, Topology &topology,
                                                         Hugepages &hugepages) {
    const auto geometry = geometry_of(spec);
    if (!geometry) return Unexpected{geometry.error()};
    const auto numa_nodes = static_cast<std::uint32_t>(topology.numa_nodes().size());
    if (auto known = check_policy(spec.policy, numa_nodes); !known) return Unexpected{known.error()};
    if (spec.node_online_bytes.size() > numa_nodes)
        return Unexpected{Failure{Errc::bad_argument, "online " + format_node_bytes(spec) + " names " +
                                                          std::to_string(spec.node_online_bytes.size()) +
                                                          " numa nodes, the machine has " + std::to_string(numa_nodes) +
                                                          ": give one size for each, or one for all"}};
    const auto layout = PoolLayout<ProductionEnv>::of(spec.max_clients + 1, spec.max_threads + 1);
    // Before the first page is taken: the ledger alone may be more than the machine has.
    if (auto enough = check_metadata_left(spec, *geometry, spec.max_threads + 1, numa_nodes,
                                          PoolLedger::bytes_for(spec, numa_nodes) + layout.region_bytes);
        !enough)
        return Unexpected{enough.error()};
    auto ledger = PoolLedger::create(spec, random_id(), numa_nodes);
    if (!ledger) return Unexpected{ledger.error()};
    auto pool_region = MetadataRegion::create("numacre:" + spec.name + ":pool", layout.region_bytes);
    if (!pool_region) return Unexpected{pool_region.error()};
    // All of it: each look reads the records of all processes and the slots of threads, and no client that comes later
    // could be told of a shortage.
    if (auto populated = pool_region->populate(0, layout.region_bytes); !populated)
        return Unexpected{populated.error()};

    std::shared_ptr<ManagedPool> pool(new ManagedPool(spec, *geometry, std::move(*ledger), std::move(*pool_region)));
    format_pool_region<ProductionEnv>(pool->pool_region_.address(), spec.name, pool->instance_id(), *geometry,
                                      numa_nodes, pool->process_slots_, pool->thread_slots_, spec.policy);
    std::memcpy(pool->header_.data(), pool->pool_region_.address(), pool->header_.size());
    for (std::uint32_t i = 0; i < numa_nodes; ++i) {
        const NodeMemory::Plan plan = pool->plan_of(NumaNode{static_cast<std::uint8_t>(i)});
        auto made = pool->worker().run([&] { return NodeMemory::create(plan, topology, hugepages); });
        if (!made) return Unexpected{made.error()};
        pool->add_node(std::move(*made));
        NodeMemory &memory = *pool->nodes_.back();

        // All of it, before the first page is taken: half a pool helps nobody.
        const std::uint64_t online_bytes = spec.online_bytes_on(memory.numa_node());
        if (auto enough = memory.check_growth(online_bytes); !enough) return Unexpected{enough.error()};
        const std::uint64_t step_units = std::max<std::uint64_t>(1, kPopulateBytesMax / memory.unit_bytes());
        Growth growth;  // nothing of it is undone: the pool as a whole is not made
        while (memory.online_bytes() < online_bytes) {
            const std::uint64_t wanted = (online_bytes - memory.online_bytes()) / memory.unit_bytes();
            const auto grown = pool->worker().run(
                [&] { return memory.bring_online(memory.next_offline(std::min(step_units, wanted)), growth); });
            if (!grown) return Unexpected{grown.error()};
        }
    }
    pool->publish_sizes();
    const auto records = pool->lock_records();
    {
        const std::lock_guard lock(pool->mutex_);
        pool->accounts_[kPoolAccount].limit.quota_bytes = spec.quota_bytes;
        pool->accounts_[kPoolAccount].limit.soft_quota_bytes = spec.soft_quota_bytes;
        for (std::size_t i = 0; i < spec.users.size(); ++i) pool->accounts_[i + 1] = {true, spec.users[i], false};
    }
    for (std::size_t i = 0; i < kAccounts; ++i) pool->write_limits(i);
    pool->write_accounting();
    return pool;
}

Answer<std::shared_ptr<ManagedPool>> ManagedPool::adopt(PoolLedger ledger, std::map<std::string, Fd> files,
                                                        Topology &topology, Hugepages &hugepages) {
    const PoolSpec spec = ledger.spec();
    const auto geometry = geometry_of(spec);
    if (!geometry) return Unexpected{geometry.error()};
    const auto layout = PoolLayout<ProductionEnv>::of(spec.max_clients + 1, spec.max_threads + 1);
    auto pool_region = MetadataRegion::adopt(std::move(files.at(kPoolFile)), layout.region_bytes);
    if (!pool_region) return Unexpected{pool_region.error()};

    std::shared_ptr<ManagedPool> pool(new ManagedPool(spec, *geometry, std::move(ledger), std::move(*pool_region)));
    pool->adopted_ = true;
    pool->is_as_before_ = false;
    pool->has_to_take_over_ = true;
    for (std::uint32_t i = 0; i < pool->ledger_.numa_nodes(); ++i) {
        auto made = NodeMemory::adopt(pool->plan_of(NumaNode{static_cast<std::uint8_t>(i)}), topology, hugepages,
                                      std::move(files.at(metadata_file(i))), std::move(files.at(data_file(i))));
        if (!made) return Unexpected{made.error()};
        pool->add_node(std::move(*made));
    }
    pool->adopt_clients();
    if (pool->ledger_.state() == LedgerState::corrupt)
        (void)pool->note_damage("found out before the daemon's last start");
    return pool;
}

ManagedPool::ManagedPool(const PoolSpec &spec, const Geometry &geometry, PoolLedger ledger, MetadataRegion pool_region)
    : spec_(spec),
      owner_(user_name(spec.access.owner)),
      group_(group_name(spec.access.group)),
      geometry_(geometry),
      process_slots_(spec.max_clients + 1),  // slot 0 is the daemon
      thread_slots_(spec.max_threads + 1),
      ledger_(std::move(ledger)),
      pool_region_(std::move(pool_region)),
      shared_(SharedPool::at(pool_region_.address(), process_slots_, thread_slots_)),
      quarantine_(spec.reclaim.hold),
      records_(process_slots_),
      wrong_counts_(process_slots_),
      clients_(process_slots_),
      seat_versions_(process_slots_, 0) {
    accounts_[kPoolAccount].is_used = true;
    records_[kDaemonProcess.value].state = ProcessState::active;
    seat_versions_[kDaemonProcess.value] = 1;  // it holds what it has seized
}

NodeMemory::Plan ManagedPool::plan_of(NumaNode numa_node) const {
    return {spec_, geometry_, numa_node, instance_id(), thread_slots_, shared_, &ledger_};
}

void ManagedPool::add_node(std::unique_ptr<NodeMemory> memory) {
    views_.push_back(memory->view());
    // relaxed: the ledger's entries are ours alone.
    autosize_history_.emplace_back();
    is_below_watermark_.push_back(
        ledger_.node(memory->numa_node()).is_below_watermark.load(std::memory_order_relaxed) != 0);
    nodes_.push_back(std::move(memory));
}

std::vector<std::string> ManagedPool::file_names(std::uint32_t numa_nodes) {
    std::vector<std::string> names{kLedgerFile, kPoolFile};
    for (std::uint32_t i = 0; i < numa_nodes; ++i) {
        names.push_back(metadata_file(i));
        names.push_back(data_file(i));
    }
    return names;
}

std::map<std::string, int> ManagedPool::kept_files() const {
    std::map<std::string, int> files{{kLedgerFile, ledger_.fd()}, {kPoolFile, pool_region_.fd()}};
    for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
        files[metadata_file(i)] = nodes_[i]->metadata().fd();
        files[data_file(i)] = nodes_[i]->data().fd();
    }
    return files;
}

void ManagedPool::adopt_clients() {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < kAccounts; ++i) {
        const LedgerAccount &kept = ledger_.accounts()[i];
        // acquire: with the entry's words.
        if (kept.is_used.load(std::memory_order_acquire) != 0 || i == kPoolAccount)
            accounts_[i] = {true,
                            {kept.uid.load(std::memory_order_relaxed), kept.quota_bytes.load(std::memory_order_relaxed),
                             kept.soft_quota_bytes.load(std::memory_order_relaxed),
                             kept.reserved_bytes.load(std::memory_order_relaxed)},
                            kept.is_over_soft_quota.load(std::memory_order_relaxed) != 0};
    }
    const auto records = ledger_.clients();
    for (std::uint32_t slot = 1; slot < process_slots_; ++slot) {
        LedgerClient &record = records[slot];
        const std::uint32_t id = record.id.load(std::memory_order_acquire);
        if (id == 0) continue;
        const bool departing = record.is_departing.load(std::memory_order_acquire) != 0;
        ++seat_versions_[slot];
        seats_ = slot + 1;
        Client client;
        client.id = id;
        client.slot = ProcessSlot{static_cast<std::uint16_t>(slot)};
        client.generation = record.generation;
        const std::uint64_t start_time_ticks = record.start_time_ticks.load(std::memory_order_relaxed);
        const auto peer = find_peer({record.pid, record.pid_space, record.pidfd_inode, start_time_ticks});
        if (peer) {
            client.peer = *peer;
            record.start_time_ticks.store(peer->start_time_ticks, std::memory_order_relaxed);  // perhaps found out now
        }
        client.peer.pid = record.pid;
        client.peer.stack_start = record.stack_start;
        client.peer.uid = record.uid;
        client.peer.gid = record.gid;
        client.tier = record.is_observer != 0 ? wire::Tier::observer : wire::Tier::trusted;
        if (client.peer.comm.empty()) client.peer.comm.assign(record.comm, ::strnlen(record.comm, sizeof record.comm));
        client.attached = time_point_of(record.attached_ns);
        client.quota_bytes = record.quota_bytes.load(std::memory_order_relaxed);
        client.soft_quota_bytes = record.soft_quota_bytes.load(std::memory_order_relaxed);
        client.is_over_soft_quota = record.is_over_soft_quota.load(std::memory_order_relaxed) != 0;
        client.reserved_bytes = record.reserved_bytes.load(std::memory_order_relaxed);
        client.state = departing || !peer ? ClientState::recovering : ClientState::adopted;
        clients_[slot] = std::move(client);
        ++client_count_;
    }
}

std::unique_lock<std::mutex> ManagedPool::lock_records() {
    std::unique_lock lock(record_mutex_);
    // Not in adopt(): the daemon's start waits for no client.
    if (has_to_take_over_) {
        take_over();
        has_to_take_over_ = false;
    }
    return lock;
}

// Writes anew what clients are told: the daemon before may have died between the ledger and the records.
void ManagedPool::take_over() {
    forget_draining_held(shared_);  // the daemon before may have freed what it had no time to note
    // An older daemon left it to whoever came first. Where there is no memory for it, it is as it was then.
    (void)pool_region_.populate(0, pool_region_.bytes());
    const bool is_ours =
        validate_pool_region<ProductionEnv>(pool_region_.address(), {geometry_, instance_id(), pool_region_.bytes()},
                                            process_slots_, thread_slots_) == Errc::ok &&
        std::ranges::all_of(nodes_, [](const auto &memory) { return memory->header_is_ours(); });
    std::memcpy(header_.data(), pool_region_.address(), header_.size());
    for (std::size_t i = 0; i < kAccounts; ++i) write_limits(i);
    const auto ledger = ledger_.clients();
    for (std::uint32_t i = 1; i < process_slots_; ++i) {
        const ProcessSlot slot{static_cast<std::uint16_t>(i)};
        Record record;
        record.generation = ledger[i].generation;
        record.pid = ledger[i].pid;
        record.start_time_ticks = ledger[i].start_time_ticks.load(std::memory_order_relaxed);
        {
            const std::lock_guard lock(mutex_);
            if (const auto &client = clients_[i]) {
                // acquire: with what the daemon before wrote last about the client.
                const bool departs = ledger[i].is_departing.load(std::memory_order_acquire) != 0;
                record.state = departs ? ProcessState::dead : ProcessState::active;
                record.quota_frames = quota_frames_of(client->quota_bytes);
                record.reserved_frames = quota_frames_of(client->reserved_bytes);
                record.account = account_of(client->peer.uid);
            }
        }
        write_record(slot, record);
        // The daemon before may have died while it cleared the seat.
        if (record.state == ProcessState::free) shared_.processes[i].held.store(0, std::memory_order_relaxed);
    }
    write_seats();
    // They have counted on without a daemon: only the first limit makes them begin anew.
    {
        const std::uint64_t counted = shared_.header->accounting.load(std::memory_order_relaxed);
        const std::lock_guard lock(mutex_);
        accounting_ = counted & Accounting::kCount;
    }
    write_accounting();
    if (!is_ours)
        declare_corrupt("a region's header has been overwritten");
    else if (is_corrupt())
        tell_of_damage();
}

void ManagedPool::post_sizing(std::function<void()> job) {
    if (ends_) return;
    try {
        if (!sizer_) sizer_ = std::make_unique<Worker>();
    } catch (const std::system_error &failure) {
        log::warn("a pool is not sized by itself, for there is no thread to be had",
                  {{"pool", spec_.name}, {"error", failure.what()}});
        return;
    }
    sizer_->post(std::move(job));
}

void ManagedPool::end_workers() {
    std::unique_ptr<Worker> sizer = worker_.run([this] {
        ends_ = true;
        return std::move(sizer_);
    });
    sizer.reset();
    worker_.finish();
    record_worker_.finish();
    look_worker_.finish();
}

RecoveryStep ManagedPool::finish_predecessor(ThreadSlotIndex &blocked_by) {
    if (!adopted_) return RecoveryStep::done;
    lock_records();  // taken over, if that has not been done yet
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
    // What it had seized and not released: its time begins anew.
    recovery.for_each_seized(
        [this](NumaNode numa_node, Block block, Quarantine::Era era) { seize(numa_node, block, era); });
    {
        const auto records = lock_records();
        is_as_before_ = true;
    }
    publish_sizes();
    adopted_ = false;
    return RecoveryStep::done;
}

// ---------------------------------------------------------------------------------------------------------------------

Answer<Client> ManagedPool::seat(std::uint32_t client_id, Peer peer, wire::Tier tier) {
    if (is_due_for_look()) look_for_damage();
    const auto records = lock_records();
    auto taken = take_seat(client_id, std::move(peer), tier);
    if (!taken) return taken;
    const Client &client = *taken;
    auto &shared = shared_.processes[client.slot.value];
    // Before the ledger names the client: if we die, the next daemon finds either nobody or a word that it understands.
    // relaxed: the reply goes by the kernel, and a next daemon begins after our end.
    shared.presence.store(
        Presence{client.generation, tier == wire::Tier::observer ? Presence::State::here : Presence::State::attaching}
            .bits(),
        std::memory_order_relaxed);
    enter(client, ledger_.clients()[client.slot.value]);

    // relaxed: the record means nothing before its state says so.
    shared.held.store(HeldFrames::of(0).bits(), std::memory_order_relaxed);
    shared.news.store(0, std::memory_order_relaxed);
    const std::size_t account = [&] {
        const std::lock_guard lock(mutex_);
        return account_of(client.peer.uid);
    }();
    write_record(client.slot, {ProcessState::active, client.generation, client.peer.pid, client.peer.start_time_ticks,
                               0, 0, account});
    wrong_counts_[client.slot.value] = {};  // of who sat there before
    write_seats();
    return taken;
}

// In the private table: the client sits there before shared memory says so, and nobody else can be given the slot.
Answer<Client> ManagedPool::take_seat(std::uint32_t client_id, Peer peer, wire::Tier tier) {
    const std::lock_guard lock(mutex_);
    if (closing_)
        return Unexpected{Failure{Errc::no_such_pool, "pool \"" + spec_.name + "\" is being deleted: use another"}};
    if (!corrupt_reason_.empty())
        return Unexpected{Failure{Errc::corrupt, "pool \"" + spec_.name + "\" is damaged (" + corrupt_reason_ +
                                                     "): see the runbook NumacrePoolCorrupt"}};
    const auto is_observer = [](const auto &client) { return client && client->tier == wire::Tier::observer; };
    if (tier == wire::Tier::observer && observer_limit_of(spec_) == 0)
        return Unexpected{Failure{Errc::too_many_clients, "pool \"" + spec_.name +
                                                              "\" has one seat, which is not for observers: raise the "
                                                              "pool's max-clients"}};
    if (const std::uint32_t limit = observer_limit_of(spec_);
        tier == wire::Tier::observer &&
        std::count_if(clients_.begin(), clients_.begin() + seats_, is_observer) >= limit)
        return Unexpected{Failure{Errc::too_many_clients, "pool \"" + spec_.name + "\" has its " +
                                                              std::to_string(limit) + " observers, of " +
                                                              std::to_string(spec_.max_clients) +
                                                              " clients: detach one, or raise the pool's max-clients"}};
    while (free_from_ < process_slots_ && clients_[free_from_]) ++free_from_;
    if (free_from_ == process_slots_)
        return Unexpected{Failure{Errc::too_many_clients, "pool \"" + spec_.name + "\" has its " +
                                                              std::to_string(spec_.max_clients) +
                                                              " clients: detach one, or raise the pool's max-clients"}};
    const std::uint32_t slot = free_from_++;
    seats_ = std::max(seats_, slot + 1);
    Client client;
    client.id = client_id;
    client.slot = ProcessSlot{static_cast<std::uint16_t>(slot)};
    client.generation = ++ledger_.clients()[slot].generation;
    client.peer = std::move(peer);
    client.tier = tier;
    client.attached = std::chrono::system_clock::now();
    clients_[slot] = client;
    ++seat_versions_[slot];
    ++client_count_;
    return client;
}

// The look goes over all process and thread slots: in a wide pool not each time, or attaching there would take long.
bool ManagedPool::is_due_for_look() {
    constexpr std::uint32_t kSlotsALook = 16384;
    const auto records = lock_records();
    if (seats_until_look_ != 0) {
        --seats_until_look_;
        return false;
    }
    seats_until_look_ = (process_slots_ + shared_.threads_in_use_bound()) / kSlotsALook;
    return true;
}

// Before the client can have the memory: a daemon after us must know of it.
void ManagedPool::enter(const Client &client, LedgerClient &ledger) {
    ledger.pid = client.peer.pid;
    ledger.uid = client.peer.uid;
    ledger.gid = client.peer.gid;
    ledger.pid_space = client.peer.pid_space;
    ledger.pidfd_inode = client.peer.pidfd_inode;
    ledger.start_time_ticks.store(client.peer.start_time_ticks, std::memory_order_relaxed);
    ledger.stack_start = client.peer.stack_start;
    ledger.attached_ns = nanoseconds_of(client.attached);
    std::memset(ledger.comm, 0, sizeof ledger.comm);
    std::copy_n(client.peer.comm.begin(), std::min(client.peer.comm.size(), sizeof ledger.comm), ledger.comm);
    ledger.is_observer = client.tier == wire::Tier::observer ? 1 : 0;
    ledger.quota_bytes.store(0, std::memory_order_relaxed);
    ledger.soft_quota_bytes.store(0, std::memory_order_relaxed);
    ledger.reserved_bytes.store(0, std::memory_order_relaxed);
    ledger.is_over_soft_quota.store(0, std::memory_order_relaxed);
    ledger.is_departing.store(0, std::memory_order_relaxed);
    ledger_.set_last_client_id(client.id);
    // release: the entry counts from here on.
    ledger.id.store(client.id, std::memory_order_release);
}

void ManagedPool::set_client_state(ProcessSlot slot, ClientState state) {
    const std::lock_guard lock(mutex_);
    if (clients_[slot.value]) clients_[slot.value]->state = state;
}

Presence::State ManagedPool::ask_after(const Client &client) {
    if (client.tier == wire::Tier::observer) return Presence::State::given_up;
    return Presence::give_up(shared_.processes[client.slot.value].presence, client.generation);
}

bool ManagedPool::is_here(const Client &client) const {
    const auto *const word = reinterpret_cast<const std::byte *>(&shared_.processes[client.slot.value].presence);
    const auto offset = static_cast<off_t>(word - static_cast<const std::byte *>(pool_region_.address()));
    std::uint64_t bits = 0;
    if (os::pread(pool_region_.fd(), &bits, sizeof bits, offset) != sizeof bits) return true;
    return Presence{bits}.state_of(client.generation) == Presence::State::here;
}

void ManagedPool::set_peer(const Client &client, const Peer &peer) {
    const std::lock_guard lock(mutex_);
    auto &seat = clients_[client.slot.value];
    if (!seat || seat->id != client.id) return;
    seat->peer.pidfd = peer.pidfd;
    seat->peer.is_certain = peer.is_certain;
    seat->peer.start_time_ticks = peer.start_time_ticks;
    ledger_.clients()[client.slot.value].start_time_ticks.store(peer.start_time_ticks, std::memory_order_relaxed);
}

void ManagedPool::begin_departure(ProcessSlot slot, Departure departure) {
    ledger_.clients()[slot.value].is_departing.store(1, std::memory_order_release);
    set_client_state(slot, departure == Departure::detached ? ClientState::detaching : ClientState::recovering);
}

// All that depart, not only those whose recovery begins: none of them stands in another's way.
void ManagedPool::mark_departing_dead() {
    const auto records = lock_records();
    for (const Client &client : client_table()) {
        const bool departs = client.state == ClientState::detaching || client.state == ClientState::recovering;
        // EDGE death-to-recovery (seq_cst; partner: recovery's acquire loads). The kernel has ordered all of the
        // process's stores before its end.
        if (departs && records_[client.slot.value].state == ProcessState::active)
            set_record_state(client.slot, ProcessState::dead, std::memory_order_seq_cst);
    }
}

void ManagedPool::write_record(ProcessSlot slot, const Record &what) {
    records_[slot.value] = what;
    // relaxed: the record means nothing before its state says so.
    auto &record = shared_.processes[slot.value];
    record.generation.store(what.generation, std::memory_order_relaxed);
    record.pid.store(what.pid, std::memory_order_relaxed);
    record.start_time_ticks.store(what.start_time_ticks, std::memory_order_relaxed);
    record.quota_frames.store(what.quota_frames, std::memory_order_relaxed);
    record.reserved_frames.store(what.reserved_frames, std::memory_order_relaxed);
    record.account.store(what.account, std::memory_order_relaxed);
    record.thread_limit.store(thread_limit_of(spec_), std::memory_order_relaxed);
    // EDGE seat-to-use (release; partner: the acquire loads of the state in recovery and in clients).
    // Weakened: somebody sees an active slot with the last user's generation.
    record.state.store(static_cast<std::uint64_t>(what.state), std::memory_order_release);
}

void ManagedPool::set_record_state(ProcessSlot slot, ProcessState state, std::memory_order order) {
    records_[slot.value].state = state;
    shared_.processes[slot.value].state.store(static_cast<std::uint64_t>(state), order);
}

void ManagedPool::set_news(std::span<const Client> clients, std::uint64_t event_bits) {
    pool_region_.look_again();
    const auto records = lock_records();
    for (const Client &client : clients) {
        const Record &record = records_[client.slot.value];
        // seq_cst: before the signal; partner: the exchange in the client.
        if (record.state != ProcessState::free && record.generation == client.generation)
            shared_.processes[client.slot.value].news.fetch_or(event_bits, std::memory_order_seq_cst);
    }
}

std::optional<Client> ManagedPool::note_blocked(ProcessSlot slot, ThreadSlotIndex blocked_by) {
    auto in_the_way = client_of(blocked_by);
    const std::lock_guard lock(mutex_);
    if (in_the_way && clients_[slot.value]) clients_[slot.value]->waits_for = in_the_way->id;
    return in_the_way;
}

void ManagedPool::vacate(ProcessSlot slot, Departure departure, const Reclaimed &total, double recovery_seconds) {
    const auto records = lock_records();
    {
        const std::lock_guard lock(mutex_);
        if (!clients_[slot.value]) return;
        clients_[slot.value].reset();
        free_from_ = std::min<std::uint32_t>(free_from_, slot.value);
        while (seats_ > 0 && !clients_[seats_ - 1]) --seats_;
        ++seat_versions_[slot.value];
        --client_count_;
        if (departure == Departure::died) ++clients_reaped_;
        reclaimed_bytes_ += total.frames << geometry_.frame_shift;
        if (recovery_seconds > 0) last_recovery_seconds_ = recovery_seconds;  // else there was nothing to recover
    }
    ledger_.clients()[slot.value].id.store(0, std::memory_order_release);
    // Nobody has noted what recovery has freed in units that drain.
    if (total.frames != 0) forget_draining_held(shared_);
    // What it held has been given back, and with its word it leaves what its user and the pool hold.
    Record left = records_[slot.value];
    left.quota_frames = left.reserved_frames = 0;
    left.account = kPoolAccount;
    write_record(slot, left);
    shared_.processes[slot.value].held.store(0, std::memory_order_release);  // after the above
    write_seats();
    write_accounting();
    // release: who takes the slot next finds everything given back.
    set_record_state(slot, ProcessState::free, std::memory_order_release);
}

std::vector<Client> ManagedPool::client_table() const {
    const std::lock_guard lock(mutex_);
    std::vector<Client> table;
    for (const auto &client : clients_)
        if (client) table.push_back(*client);
    return table;
}

std::optional<Client> ManagedPool::find_client(std::uint32_t client_id) const {
    const std::lock_guard lock(mutex_);
    for (const auto &client : clients_)
        if (client && client->id == client_id) return client;
    return std::nullopt;
}

std::optional<Client> ManagedPool::client_of(ThreadSlotIndex thread) const {
    if (thread.value >= thread_slots_) return std::nullopt;
    // relaxed: to be told to people.
    const ThreadOwner owner{shared_.threads[thread.value].owner.load(std::memory_order_relaxed)};
    const std::lock_guard lock(mutex_);
    return owner.in_use() && owner.process().value < process_slots_ ? clients_[owner.process().value] : std::nullopt;
}

std::optional<Client> *ManagedPool::seat_of(std::uint32_t client_id) {
    for (auto &client : clients_)
        if (client && client->id == client_id) return &client;
    return nullptr;
}

Failure no_such_client(std::uint32_t client_id) {
    return {Errc::no_such_client, "no client has the id " + std::to_string(client_id) +
                                      ": see `numacre clients` for those that are attached"};
}

Answer<void> ManagedPool::set_quota(const Holder &holder, std::uint64_t quota_bytes, std::uint64_t soft_bytes) {
    {
        const auto records = lock_records();
        std::unique_lock lock(mutex_);
        if (holder.kind == Holder::Kind::client) {
            auto *const client = seat_of(holder.client_id);
            if (client == nullptr) return Unexpected{no_such_client(holder.client_id)};
            const ProcessSlot slot = (*client)->slot;
            LedgerClient &ledger = ledger_.clients()[slot.value];
            (*client)->quota_bytes = quota_bytes;
            ledger.quota_bytes.store(quota_bytes, std::memory_order_relaxed);
            // Another limit is crossed anew. A death between these stores tells it once too often at most.
            if ((*client)->soft_quota_bytes != soft_bytes) {
                (*client)->is_over_soft_quota = false;
                ledger.is_over_soft_quota.store(0, std::memory_order_relaxed);
            }
            (*client)->soft_quota_bytes = soft_bytes;
            ledger.soft_quota_bytes.store(soft_bytes, std::memory_order_relaxed);
            lock.unlock();
            Record record = records_[slot.value];
            record.quota_frames = quota_frames_of(quota_bytes);
            write_record(slot, record);
        } else {
            const auto account = claim_account(holder);
            if (!account) return Unexpected{account.error()};
            AccountState &state = accounts_[*account];
            if (state.limit.soft_quota_bytes != soft_bytes) state.is_over_soft_quota = false;
            state.limit.quota_bytes = quota_bytes;
            state.limit.soft_quota_bytes = soft_bytes;
            lock.unlock();
            write_account(*account);
        }
        write_accounting();
    }
    look_at_use();   // counts for those who do not call for a while
    wake_waiters();  // there may be more for them
    return {};
}

// Is there as much free as is promised and not used yet?
Answer<void> ManagedPool::check_promises(const Use &use) const {
    const std::uint64_t needed = promises(use).needed_frames(use.used_draining_frames);
    // A shrink that has looked before anything was reserved takes this much, or has just taken it.
    if (needed + use.withheld_frames <= use.promisable_frames) return {};
    return Unexpected{Failure{Errc::out_of_frames,
                              "pool \"" + spec_.name + "\" has " +
                                  format_bytes(use.promisable_frames << geometry_.frame_shift) + " free, " +
                                  format_bytes(needed << geometry_.frame_shift) +
                                  " would be reserved and not used yet: reserve less, free some, or grow the pool"}};
}

Answer<void> ManagedPool::reserve(const Holder &holder, std::uint64_t bytes) {
    if (const std::uint64_t most = geometry_.capacity_bytes() * nodes_.size(); bytes > most)
        return Unexpected{Failure{Errc::out_of_frames, "pool \"" + spec_.name + "\" has room for " +
                                                           format_bytes(most) + " on all numa nodes, " +
                                                           format_bytes(bytes) + " would be reserved: reserve less"}};
    // One at a time: a refused one takes back what it has promised, and nothing else.
    const std::lock_guard one_at_a_time(reserve_mutex_);
    // Before others are told of it: what is not there would keep them from what is.
    Use use = look();
    std::uint64_t before = 0;
    if (auto promised = promise(holder, bytes, &use, before); !promised) return promised;
    if (bytes <= before) {
        wake_waiters();  // there is more for the others
        return {};
    }
    // Until all count and know of it, others may have taken what was free.
    if (!all_have_counted()) look_at_use();
    use = look();
    auto kept = [&] {
        const std::lock_guard lock(mutex_);
        return check_promises(use);
    }();
    std::uint64_t refused = 0;
    if (!kept) (void)promise(holder, before, nullptr, refused);
    return kept;
}

// Not after the first limit: who has not called since then counts as nothing when others add up what all hold.
bool ManagedPool::all_have_counted() {
    const auto records = lock_records();
    return std::ranges::all_of(seated(), [this](ProcessSlot slot) {
        // relaxed: who counts itself after this counts right.
        return HeldFrames{shared_.processes[slot.value].held.load(std::memory_order_relaxed)}.is_counted();
    });
}

// Reserves; before: what was until now. More is refused if it was not there in this look.
Answer<void> ManagedPool::promise(const Holder &holder, std::uint64_t bytes, const Use *use, std::uint64_t &before) {
    {
        const auto records = lock_records();
        std::unique_lock lock(mutex_);
        const auto check = [&]() -> Answer<void> {
            if (use == nullptr || bytes <= before) return {};
            return check_promises(*use);
        };
        if (holder.kind == Holder::Kind::client) {
            auto *const client = seat_of(holder.client_id);
            if (client == nullptr) return Unexpected{no_such_client(holder.client_id)};
            before = std::exchange((*client)->reserved_bytes, bytes);
            if (auto enough = check(); !enough) {
                (*client)->reserved_bytes = before;
                return enough;
            }
            const ProcessSlot slot = (*client)->slot;
            ledger_.clients()[slot.value].reserved_bytes.store(bytes, std::memory_order_relaxed);
            lock.unlock();
            if (bytes > before) forget_draining_held(shared_);
            Record record = records_[slot.value];
            record.reserved_frames = quota_frames_of(bytes);
            write_record(slot, record);
        } else {
            const auto account = claim_account(holder);
            if (!account) return Unexpected{account.error()};
            before = std::exchange(accounts_[*account].limit.reserved_bytes, bytes);
            const auto enough = check();
            if (!enough) accounts_[*account].limit.reserved_bytes = before;
            lock.unlock();
            if (bytes > before) forget_draining_held(shared_);
            write_account(*account);
            if (!enough) return enough;
        }
        write_accounting();
    }
    publish_sizes();
    look_at_drains();
    return {};
}

Answer<void> ManagedPool::check_shrink(std::uint64_t bytes, std::uint64_t used_bytes) {
    {
        const std::lock_guard lock(mutex_);
        if ((wanted_accounting() & Accounting::kReservations) == 0) return {};
    }
    const Use use = look();
    const std::uint64_t free_bytes = use.promisable_frames << geometry_.frame_shift;
    const std::lock_guard lock(mutex_);
    const std::uint64_t used_draining_frames = use.used_draining_frames + (used_bytes >> geometry_.frame_shift);
    const std::uint64_t needed_bytes = promises(use).needed_frames(used_draining_frames) << geometry_.frame_shift;
    // Somebody else's, too, who looks at this moment.
    const std::uint64_t gone_bytes = std::max(bytes, use.withheld_frames << geometry_.frame_shift);
    if (needed_bytes == 0 || needed_bytes + gone_bytes - used_bytes <= free_bytes) return {};
    return Unexpected{Failure{Errc::contended, "pool \"" + spec_.name + "\" has " + format_bytes(free_bytes) +
                                                   " free, of which " + format_bytes(needed_bytes) +
                                                   " are reserved: it cannot shrink by " + format_bytes(bytes) +
                                                   "; shrink less, or reserve less with `numacre reserve`"}};
}

void ManagedPool::publish_sizes() {
    const auto records = lock_records();  // the last to look is the last to write
    write_sizes();
}

void ManagedPool::write_sizes() {
    write_seized();
    std::uint64_t online_bytes = 0, gone_bytes = withheld_bytes_.load(std::memory_order_relaxed);
    for (const auto &memory : nodes_) {
        // Whole: what is freed there is not to be had, and is freed at any time. Before what is online: a unit that
        // goes offline in between is missing twice, not there twice.
        gone_bytes += memory->draining_bytes();
        online_bytes += memory->online_bytes();
    }
    auto &word = shared_.header->online_frames;
    std::uint64_t frames = (online_bytes - std::min(online_bytes, gone_bytes)) >> geometry_.frame_shift;
    // relaxed: the daemon's own.
    if (!is_as_before_) frames = std::min(frames, word.load(std::memory_order_relaxed));
    // EDGE withhold-then-look (seq_cst store, then seq_cst loads of what is held, in begin_look(); partner: charge(),
    // which counts and then looks here). Weakened: a client is granted what is about to go, and the daemon does not see
    // it: somebody who was promised that does not get it.
    word.store(frames, std::memory_order_seq_cst);
}

// A walk over all that drains. Until the next one what is held there counts as if it were held in the rest.
void ManagedPool::look_at_drains() {
    auto &word = shared_.header->draining_held;
    std::uint64_t seen = word.load(std::memory_order_seq_cst);  // before the look
    {
        const std::lock_guard lock(mutex_);
        if ((wanted_accounting() & Accounting::kReservations) == 0) return;
    }
    std::uint64_t frames = 0;
    for (const auto &memory : nodes_) frames += memory->draining_frames().noted;
    const auto records = lock_records();
    // The holder of a promise may give back what it holds there, and want as much elsewhere. The look does not ask
    // whose the blocks are: they change hands.
    const auto promised = [this] {
        const std::lock_guard lock(mutex_);
        return promised_frames();
    }();
    frames -= std::min(frames, std::accumulate(promised.begin(), promised.end(), std::uint64_t{0}));
    // Not if anybody has noted or forgotten something since: then after the next look.
    if (DrainingHeld{seen}.frames() != frames)
        word.compare_exchange_strong(seen, DrainingHeld{seen}.changed_to(frames).bits());
}

// What the daemon holds.
void ManagedPool::write_seized() {
    std::uint64_t frames = 0;
    for (const auto &memory : nodes_) frames += memory->quarantined_frames();
    auto &word = shared_.processes[kDaemonProcess.value].held;
    // relaxed: the daemon's own, compared with sums that move all the time.
    if (!is_as_before_) frames = std::max(frames, HeldFrames{word.load(std::memory_order_relaxed)}.frames());
    // release: after what has been noted of them.
    word.store(HeldFrames::of(frames).bits(), std::memory_order_release);
}

void ManagedPool::withhold(std::uint64_t more, std::uint64_t less) {
    {
        const auto records = lock_records();
        withheld_bytes_ += more - less;
    }
    publish_sizes();
}

std::size_t ManagedPool::account_of(std::uint32_t uid) const {
    for (std::size_t i = kPoolAccount + 1; i < kAccounts; ++i)
        if (accounts_[i].is_used && accounts_[i].limit.uid == uid) return i;
    return kPoolAccount;
}

// The holder's account, or a free one.
Answer<std::size_t> ManagedPool::claim_account(const Holder &holder) {
    if (holder.kind == Holder::Kind::pool) return std::size_t{kPoolAccount};
    if (const std::size_t known = account_of(holder.uid); known != kPoolAccount) return known;
    for (std::size_t i = kPoolAccount + 1; i < kAccounts; ++i) {
        if (accounts_[i].is_used) continue;
        accounts_[i] = {true, {holder.uid, 0, 0, 0}, false};
        return i;
    }
    return Unexpected{Failure{Errc::too_many_clients, "pool \"" + spec_.name + "\" has limits for " +
                                                          std::to_string(kAccounts - 1) +
                                                          " users, the most there can be: set another user's to none"}};
}

// To the ledger, to shared memory, and into the records of the user's clients. One without limits is given up.
void ManagedPool::write_account(std::size_t account) {
    write_limits(account);
    if (account == kPoolAccount) return;
    const auto [of_its_clients, slots] = [&] {
        const std::lock_guard lock(mutex_);
        std::vector<ProcessSlot> found;
        for (const auto &client : clients_)
            if (client && client->peer.uid == accounts_[account].limit.uid) found.push_back(client->slot);
        return std::pair(accounts_[account].is_used ? account : kPoolAccount, std::move(found));
    }();
    for (const ProcessSlot slot : slots) {
        Record record = records_[slot.value];
        record.account = of_its_clients;
        write_record(slot, record);
    }
}

void ManagedPool::write_limits(std::size_t account) {
    WrittenLimit &written = written_limits_[account];
    {
        const std::lock_guard lock(mutex_);
        AccountState &state = accounts_[account];
        UserLimit &limit = state.limit;
        if (account != kPoolAccount)
            state.is_used = state.is_used && (limit.quota_bytes | limit.soft_quota_bytes | limit.reserved_bytes) != 0;
        LedgerAccount &ledger = ledger_.accounts()[account];
        // relaxed: is_used follows.
        ledger.uid.store(limit.uid, std::memory_order_relaxed);
        ledger.quota_bytes.store(limit.quota_bytes, std::memory_order_relaxed);
        ledger.soft_quota_bytes.store(limit.soft_quota_bytes, std::memory_order_relaxed);
        ledger.reserved_bytes.store(limit.reserved_bytes, std::memory_order_relaxed);
        ledger.is_over_soft_quota.store(state.is_over_soft_quota ? 1 : 0, std::memory_order_relaxed);
        ledger.is_used.store(state.is_used ? 1 : 0, std::memory_order_release);
        written = {quota_frames_of(limit.quota_bytes), quota_frames_of(limit.reserved_bytes)};
    }
    // relaxed: obeyed from the next look on.
    shared_.accounts[account].quota_frames.store(written.quota_frames, std::memory_order_relaxed);
    shared_.accounts[account].reserved_frames.store(written.reserved_frames, std::memory_order_relaxed);
}

void ManagedPool::write_seats() {
    const std::uint32_t seats = [this] {
        const std::lock_guard lock(mutex_);
        return seats_;
    }();
    // seq_cst: before the new client can charge anything; partner: seats_bound().
    shared_.header->seats.store(seats, std::memory_order_seq_cst);
}

// What there is to be obeyed. If that is the first limit, nobody has counted so far.
void ManagedPool::write_accounting() {
    std::uint64_t wanted = 0, before = 0;
    {
        const std::lock_guard lock(mutex_);
        wanted = wanted_accounting();
        before = std::exchange(accounting_, wanted);
    }
    if ((wanted & ~before & Accounting::kCount) != 0) {
        // Looks that have begun by now do not see all that they would count for others.
        last_look_ = looks_.load(std::memory_order_relaxed) + 1;  // relaxed: as in begin_look()
        for (const ProcessSlot slot : seated()) shared_.processes[slot.value].held.store(0, std::memory_order_relaxed);
        forget_draining_held(shared_);  // who does not count notes nothing either
    }
    // seq_cst: what clients have counted before is forgotten first, and scans that count for them come after it.
    shared_.header->accounting.store(wanted, std::memory_order_seq_cst);
}

std::uint64_t ManagedPool::wanted_accounting() const {
    std::uint64_t wanted = accounting_of(spec_.fit);
    for (const auto &client : std::span(clients_).first(seats_)) {
        if (!client) continue;
        if (client->quota_bytes != 0) wanted |= Accounting::kCount;
        if (client->reserved_bytes != 0) wanted |= Accounting::kCount | Accounting::kShared | Accounting::kReservations;
    }
    for (const AccountState &account : accounts_) {
        if (account.limit.quota_bytes != 0) wanted |= Accounting::kCount | Accounting::kShared;
        if (account.limit.reserved_bytes != 0)
            wanted |= Accounting::kCount | Accounting::kShared | Accounting::kReservations;
    }
    return wanted;
}

std::vector<ProcessSlot> ManagedPool::seated() const {
    std::vector<ProcessSlot> slots;
    const std::lock_guard lock(mutex_);
    for (const auto &client : std::span(clients_).first(seats_))
        if (client) slots.push_back(client->slot);
    return slots;
}

// What a client counts, against what a scan found. A difference may be what its threads say to be under way. One beyond
// that is an error, and corrected, if it is still the same at the next look; so is the least difference that several
// looks have agreed on: a client that works on never stands still.
void ManagedPool::correct_counts(const Use &use) {
    std::vector<ProcessSlot> slots;  // whose clients sit there since before the scan
    {
        const std::lock_guard lock(mutex_);
        if ((accounting_ & Accounting::kCount) == 0) return;
        for (const auto &client : std::span(clients_).first(seats_))
            if (client && seat_versions_[client->slot.value] == use.seats[client->slot.value])
                slots.push_back(client->slot);
    }
    const std::vector<std::uint64_t> under_way = frames_under_way();
    for (const ProcessSlot process : slots) {
        const std::uint32_t slot = process.value;
        auto &word = shared_.processes[slot].held;
        const std::uint64_t unsure = use.under_way[slot] + under_way[slot];
        std::uint64_t bits = use.counts[slot];
        const HeldFrames seen{bits};
        const std::uint64_t found = use.used_frames[slot];
        const WrongCount before = std::exchange(wrong_counts_[slot], {});
        if (!seen.is_counted()) {
            word.compare_exchange_strong(bits, HeldFrames::of(found).bits(), std::memory_order_seq_cst);
            continue;
        }
        const std::uint64_t off = std::max(seen.frames(), found) - std::min(seen.frames(), found);
        if (off > unsure && before.bits == bits) {
            // By what is certain: the rest when its threads have done with it.
            const std::uint64_t sure = off - unsure;
            word.compare_exchange_strong(bits,
                                         (found > seen.frames() ? seen.with_more(sure) : seen.with_fewer(sure)).bits(),
                                         std::memory_order_seq_cst);
            continue;
        }
        // It was counted before the scan, and again after it.
        bits = word.load(std::memory_order_relaxed);
        const auto [least, most] = std::minmax({seen.frames(), HeldFrames{bits}.frames()});
        WrongCount now{seen.bits(), 0, 0, 1};
        if (least > found + unsure) now.too_many = least - found - unsure;
        if (most + unsure < found) now.too_few = found - most - unsure;
        if (now.too_many == 0 && now.too_few == 0) continue;
        if ((now.too_many != 0) == (before.too_many != 0) && (now.too_few != 0) == (before.too_few != 0)) {
            now.too_many = std::min(now.too_many, before.too_many);
            now.too_few = std::min(now.too_few, before.too_few);
            now.looks = before.looks + 1;
        }
        constexpr unsigned kLooksThatAgree = 4;
        if (now.looks < kLooksThatAgree) {
            wrong_counts_[slot] = now;
            continue;
        }
        for (unsigned round = 0; round < kCasRoundsMax && HeldFrames{bits}.is_counted(); ++round)
            if (word.compare_exchange_weak(bits,
                                           HeldFrames{bits}.with_more(now.too_few).with_fewer(now.too_many).bits()))
                break;
    }
}

void ManagedPool::raise_peaks(const Use &use) {
    // relaxed, all: figures for people; written with mutex_ held.
    const auto raise = [](Durable<std::uint64_t> &peak, std::uint64_t bytes) {
        if (bytes > peak.load(std::memory_order_relaxed)) peak.store(bytes, std::memory_order_relaxed);
    };
    for (std::size_t i = 0; i < use.nodes.size(); ++i)
        raise(ledger_.nodes()[i].peak_used_bytes, (use.nodes[i].online_frames - use.nodes[i].free_frames)
                                                      << geometry_.frame_shift);
    for (std::uint32_t slot = kDaemonProcess.value + 1; slot < process_slots_; ++slot)
        if (clients_[slot] && seat_versions_[slot] == use.seats[slot])
            raise(ledger_.peak_client_bytes(), use.used_frames[slot] << geometry_.frame_shift);
}

void ManagedPool::compare_accounts(const Use &use) {
    for (std::size_t i = 0; i < kAccounts; ++i) {
        AccountState &account = accounts_[i];
        if (!account.is_used) continue;
        std::uint64_t used_frames = 0;
        for (std::uint32_t slot = kDaemonProcess.value + 1; slot < process_slots_; ++slot)
            if (clients_[slot] && seat_versions_[slot] == use.seats[slot] &&
                (i == kPoolAccount || clients_[slot]->peer.uid == account.limit.uid))
                used_frames += use.used_frames[slot];
        const std::uint64_t used_bytes = used_frames << geometry_.frame_shift;
        const bool is_over =
            numacre::daemon::is_over_soft_quota(account.is_over_soft_quota, used_bytes, account.limit.soft_quota_bytes);
        if (is_over == account.is_over_soft_quota) continue;
        account.is_over_soft_quota = is_over;
        ledger_.accounts()[i].is_over_soft_quota.store(is_over ? 1 : 0, std::memory_order_relaxed);
        if (!is_over) continue;
        Event found =
            event(i == kPoolAccount ? EventKind::pool_quota_soft_exceeded : EventKind::user_quota_soft_exceeded);
        found.bytes = used_bytes;
        if (i != kPoolAccount) found.uid = account.limit.uid;
        found.message = (i == kPoolAccount ? "the clients of pool " + spec_.name + " hold "
                                           : "clients of uid " + std::to_string(account.limit.uid) + " hold ") +
                        format_bytes(used_bytes) + ", the soft quota is " +
                        format_bytes(account.limit.soft_quota_bytes);
        news_.push_back(std::move(found));
    }
}

// By account: what was promised to a client is part of what its user was promised.
std::array<std::uint64_t, kAccounts> ManagedPool::promised_frames() const {
    std::array<std::uint64_t, kAccounts> frames{};
    for (const auto &client : std::span(clients_).first(seats_))
        if (client) frames[account_of(client->peer.uid)] += quota_frames_of(client->reserved_bytes);
    for (std::size_t i = 0; i < kAccounts; ++i)
        frames[i] = std::max(frames[i], quota_frames_of(accounts_[i].limit.reserved_bytes));
    return frames;
}

ManagedPool::Promises ManagedPool::promises(const Use &use) const {
    Holdings holdings;
    for (std::uint32_t slot = kDaemonProcess.value + 1; slot < process_slots_; ++slot)
        if (const auto &client = clients_[slot])
            holdings.add(account_of(client->peer.uid), use.granted_to(slot), quota_frames_of(client->reserved_bytes));
    const auto promised = promised_frames();
    Promises all;
    for (std::size_t i = 0; i < kAccounts; ++i) {
        const std::uint64_t unused = holdings.unused(i, quota_frames_of(accounts_[i].limit.reserved_bytes));
        all.unused_frames += unused;
        all.held_frames += promised[i] - unused;
    }
    return all;
}

// Not what is free in units that somebody drains: nobody gets that.
void ManagedPool::find_free_to_promise(Use &use, const NodeMemory::DrainingFrames &gone) const {
    std::uint64_t free_frames = 0;
    for (const Use::OfNode &node : use.nodes) free_frames += node.free_frames;
    // What has been granted, and is on its way: counted before it is taken.
    std::uint64_t granted_frames = 0;
    for (std::uint32_t slot = kDaemonProcess.value + 1; slot < process_slots_; ++slot)
        granted_frames += use.granted_to(slot) - use.used_frames[slot];
    use.promisable_frames = free_frames - std::min(free_frames, gone.free + granted_frames);
    use.used_draining_frames = gone.used;
}

void ManagedPool::add_users(PoolStatus &status, const Use &use) const {
    status.quota_bytes = accounts_[kPoolAccount].limit.quota_bytes;
    status.soft_quota_bytes = accounts_[kPoolAccount].limit.soft_quota_bytes;
    status.reserved_bytes = promises(use).unused_frames << geometry_.frame_shift;
    std::map<std::uint32_t, UserStatus> users;
    for (std::size_t i = kPoolAccount + 1; i < kAccounts; ++i)
        if (accounts_[i].is_used) users[accounts_[i].limit.uid].limit = accounts_[i].limit;
    for (std::uint32_t slot = kDaemonProcess.value + 1; slot < process_slots_; ++slot) {
        if (!clients_[slot]) continue;
        UserStatus &user = users[clients_[slot]->peer.uid];
        ++user.clients;
        // Of somebody who came during the scan nothing is known yet.
        if (seat_versions_[slot] == use.seats[slot]) user.used_bytes += use.used_frames[slot] << geometry_.frame_shift;
    }
    for (auto &[uid, user] : users) {
        user.limit.uid = uid;
        status.users.push_back(std::move(user));
    }
}

// Rounded up: a quota of less than a frame is not "no quota".
std::uint64_t ManagedPool::quota_frames_of(std::uint64_t quota_bytes) const {
    return quota_bytes / geometry_.frame_bytes() + (quota_bytes % geometry_.frame_bytes() != 0 ? 1 : 0);
}

bool ManagedPool::has_limits_to_watch() const {
    const std::lock_guard lock(mutex_);
    if (!corrupt_reason_.empty()) return false;
    return spec_.low_watermark_bytes != 0 || spec_.autosize.is_on || (wanted_accounting() & Accounting::kCount) != 0 ||
           std::ranges::any_of(clients_, [](const auto &client) { return client && client->soft_quota_bytes != 0; }) ||
           std::ranges::any_of(accounts_, [](const auto &account) { return account.limit.soft_quota_bytes != 0; });
}

std::vector<Event> ManagedPool::take_news() {
    const std::lock_guard lock(mutex_);
    return std::exchange(news_, {});
}

Event ManagedPool::event(EventKind kind) const {
    Event event;
    event.pool = spec_.name;
    event.kind = kind;
    return event;
}

void ManagedPool::compare_with_limits(const Use &use) {
    // Scans run beside each other: an old one's figures, come late, would end what a younger one has seen begin.
    const auto records = lock_records();
    // What a damaged pool says is not to be believed.
    if (is_corrupt()) return;
    const bool is_youngest = use.number >= last_look_;
    if (is_youngest) {
        last_look_ = use.number;
        correct_counts(use);
    }
    std::vector<std::uint64_t> draining_frames;  // free ones, by numa node
    if (is_youngest && spec_.autosize.is_on)
        for (const auto &memory : nodes_) draining_frames.push_back(memory->draining_frames().free);
    const std::lock_guard lock(mutex_);
    raise_peaks(use);
    if (!is_youngest) return;
    if (spec_.autosize.is_on) remember_for_autosize(use, draining_frames);
    compare_accounts(use);
    for (std::uint32_t slot = 1; slot < process_slots_; ++slot) {
        auto &client = clients_[slot];
        if (!client || seat_versions_[slot] != use.seats[slot]) continue;  // what was found may be another's
        const std::uint64_t used_bytes = use.used_frames[slot] << geometry_.frame_shift;
        const bool is_over = is_over_soft_quota(client->is_over_soft_quota, used_bytes, client->soft_quota_bytes);
        if (is_over == client->is_over_soft_quota) continue;
        client->is_over_soft_quota = is_over;
        // relaxed, here and below: read only by the daemon after this one.
        ledger_.clients()[slot].is_over_soft_quota.store(is_over ? 1 : 0, std::memory_order_relaxed);
        if (!is_over) continue;
        Event found = event(EventKind::quota_soft_exceeded);
        found.client_id = client->id;
        found.bytes = used_bytes;
        found.message = client->peer.comm + " (pid " + std::to_string(client->peer.pid) + ") holds " +
                        format_bytes(used_bytes) + ", its soft quota is " + format_bytes(client->soft_quota_bytes);
        news_.push_back(std::move(found));
    }
    for (std::size_t i = 0; i < use.nodes.size(); ++i) {
        const std::uint64_t free_bytes = use.nodes[i].free_frames << geometry_.frame_shift;
        const std::uint64_t online_bytes = use.nodes[i].online_frames << geometry_.frame_shift;
        const bool is_below =
            is_below_watermark(is_below_watermark_[i], free_bytes, online_bytes, spec_.low_watermark_bytes);
        if (is_below == is_below_watermark_[i]) continue;
        is_below_watermark_[i] = is_below;
        ledger_.nodes()[i].is_below_watermark.store(is_below ? 1 : 0, std::memory_order_relaxed);
        Event found = event(is_below ? EventKind::low_watermark : EventKind::low_watermark_ended);
        found.node = static_cast<std::uint32_t>(i);
        found.bytes = free_bytes;
        found.message = "numa node " + std::to_string(i) + ": " + format_bytes(free_bytes) + " free of " +
                        format_bytes(online_bytes) + " online, the low watermark is " +
                        format_bytes(spec_.low_watermark_bytes);
        news_.push_back(std::move(found));
    }
}

// Free is what anybody can have: neither what is free in units that drain, nor what is promised to somebody, as far as
// the other numa nodes do not have it.
void ManagedPool::remember_for_autosize(const Use &use, std::span<const std::uint64_t> draining_frames) {
    const std::uint64_t unused_frames = promises(use).unused_frames;
    std::uint64_t all_free_frames = 0;
    for (const Use::OfNode &node : use.nodes) all_free_frames += node.free_frames;
    for (std::size_t i = 0; i < use.nodes.size(); ++i) {
        const Use::OfNode &node = use.nodes[i];
        const std::uint64_t elsewhere = all_free_frames - node.free_frames;
        const std::uint64_t gone = unused_frames - std::min(unused_frames, elsewhere) + draining_frames[i];
        const std::uint64_t free_frames = node.free_frames - std::min(node.free_frames, gone);
        remember(autosize_history_[i],
                 {std::chrono::steady_clock::now(), free_frames << geometry_.frame_shift,
                  node.online_frames << geometry_.frame_shift},
                 spec_.autosize.after);
    }
}

std::vector<ManagedPool::Wish> ManagedPool::take_autosize_wishes() {
    const std::lock_guard lock(mutex_);
    std::vector<Wish> wishes;
    if (!corrupt_reason_.empty() || closing_) return wishes;
    for (std::size_t i = 0; i < autosize_history_.size(); ++i) {
        const std::vector<AutosizeSample> history(autosize_history_[i].begin(), autosize_history_[i].end());
        const auto wanted = autosize_wants(spec_.autosize, history, nodes_[i]->unit_bytes());
        if (!wanted) continue;
        wishes.push_back({nodes_[i]->numa_node(), history.back().online_bytes, *wanted});
        autosize_history_[i].clear();
    }
    return wishes;
}

bool ManagedPool::is_corrupt() const {
    const std::lock_guard lock(mutex_);
    return !corrupt_reason_.empty();
}

bool ManagedPool::close_door(bool force) {
    const std::lock_guard lock(mutex_);
    if (closing_ || (client_count_ != 0 && !force)) return false;
    closing_ = true;
    return true;
}

void ManagedPool::open_door() {
    const std::lock_guard lock(mutex_);
    closing_ = false;
}

Answer<void> ManagedPool::Turn::check() const {
    if (is_ours_) return {};
    return Unexpected{Failure{
        Errc::contended, std::to_string(kTurns) + " calls wait for pool \"" + pool_.spec().name +
                             "\" already: let them come to their end; if the log says that its worker is stuck, end "
                             "the clients that keep its files busy"}};
}

void ManagedPool::announce_deletion() {
    is_deleted_.store(true, std::memory_order_relaxed);
    ledger_.set_state(LedgerState::deleted);
    pool_region_.look_again();
    // release: nothing follows that anybody may rely on; it is the last word.
    shared_.header->state.store(static_cast<std::uint64_t>(PoolState::deleted), std::memory_order_release);
    wake_waiters(true);
}

bool ManagedPool::is_draining() const {
    return std::ranges::any_of(nodes_, [](const auto &memory) { return memory->is_draining(); });
}

void ManagedPool::ask_for_cached_blocks() {
    // relaxed: a wish. Each thread sees it at its next call. The flag goes first: who has given back what it had does
    // not begin anew.
    if (is_draining()) shared_.header->attention.fetch_or(Attention::kDraining, std::memory_order_relaxed);
    shared_.header->attention.fetch_add(Attention::kPressureStep, std::memory_order_relaxed);
}

void ManagedPool::tell_clients() {
    const PoolAge age = PoolAge::of_seconds(static_cast<std::uint64_t>(ledger_.age().count()));
    const bool serves = !is_corrupt();
    pool_region_.look_again();
    publish_sizes();
    look_at_drains();
    {
        // Again: somebody may have scribbled over it, and then quotas of users add up nobody.
        const auto records = lock_records();
        write_seats();
    }
    // Again: it may have been scribbled over since.
    if (!serves && ledger_.state() == LedgerState::corrupt)
        shared_.header->state.store(static_cast<std::uint64_t>(PoolState::corrupt), std::memory_order_release);
    auto &attention = shared_.header->attention;
    // relaxed: an age in seconds, and a hint to look at the state. Bounded: somebody may scribble here for ever; there
    // is a next time.
    std::uint64_t bits = attention.load(std::memory_order_relaxed);
    for (unsigned round = 0; round < kCasRoundsMax; ++round) {
        // Each time: a drain may have begun or ended meanwhile.
        const std::uint64_t told = Attention::told(bits, age, serves, is_draining());
        if (bits == told || attention.compare_exchange_weak(bits, told, std::memory_order_relaxed)) return;
    }
}

void ManagedPool::wake_waiters(bool all) {
    nudge_waiters(shared_, all, [this](ThreadSlotIndex thread) {
        auto *const low_half = reinterpret_cast<std::uint32_t *>(&shared_.threads[thread.value].waiting);
        static_assert(std::endian::native == std::endian::little, "the futex word is the first half");
        os::futex_wake(low_half, 1);
    });
}

void ManagedPool::wake_waiters_soon(const std::shared_ptr<ManagedPool> &pool) {
    if (pool->wake_is_due_.exchange(true)) return;
    pool->worker().post([pool] {
        pool->wake_is_due_.store(false);  // before the look: who asks from now on is not seen by it
        pool->wake_waiters();
    });
}

void ManagedPool::give_back_frames() {
    for (const auto &memory : nodes_) memory->give_back_frames();
}

// ---------------------------------------------------------------------------------------------------------------------

bool ManagedPool::note_damage(const std::string &reason) {
    {
        const std::lock_guard lock(mutex_);
        if (!corrupt_reason_.empty()) return false;
        corrupt_reason_ = reason;
        damage_is_news_ = true;
    }
    log::error("pool is damaged: no new clients, see the runbook NumacrePoolCorrupt",
               {{"pool", spec_.name}, {"reason", reason}});
    return true;
}

void ManagedPool::tell_of_damage() {
    pool_region_.look_again();
    // release: the last word about this pool.
    shared_.header->state.store(static_cast<std::uint64_t>(PoolState::corrupt), std::memory_order_release);
    // Its clients are refused from their next allocation on; who waits for memory hears it now.
    shared_.header->attention.fetch_or(Attention::kLookAtState, std::memory_order_seq_cst);
    wake_waiters(true);
}

void ManagedPool::declare_corrupt(const std::string &reason) {
    if (!note_damage(reason)) return;
    ledger_.set_state(LedgerState::corrupt);
    tell_of_damage();
}

std::optional<std::string> ManagedPool::take_news_of_damage() {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(damage_is_news_, false)) return std::nullopt;
    return corrupt_reason_;
}

// Shared memory is read here only to find out that somebody scribbled over it.
std::string ManagedPool::damage_to_our_own() {
    const auto records = lock_records();
    const auto &header = *shared_.header;
    if (std::memcmp(&header, header_.data(), header_.size()) != 0) return "the pool's header has been overwritten";
    const std::uint64_t mark = header.thread_high_water.load(std::memory_order_relaxed);
    if (mark == 0 || mark > thread_slots_) return "the pool's count of threads has been overwritten";
    for (const auto &memory : nodes_) {
        const std::string numa_node = " numa node " + std::to_string(memory->numa_node().value);
        if (!memory->header_is_ours()) return "the header of" + numa_node + "'s metadata has been overwritten";
        if (memory->overwritten_chunks() != 0)
            return "entries of offline chunks on" + numa_node + " have been overwritten";
    }
    if (const auto slots = count_impossible_thread_slots(shared_, std::span<const View>(views_)); slots != 0)
        return std::to_string(slots) + " impossible thread slots";
    const auto state = static_cast<PoolState>(header.state.load(std::memory_order_relaxed));
    const std::uint64_t accounting = header.accounting.load(std::memory_order_relaxed);
    {
        const std::lock_guard lock(mutex_);
        if (state != PoolState::serving && corrupt_reason_.empty() && !closing_)
            return "the pool's state has been overwritten";
        if (accounting != accounting_) return "what clients are to count has been overwritten";
    }
    for (std::size_t i = 0; i < kAccounts; ++i)
        if (shared_.accounts[i].quota_frames.load(std::memory_order_relaxed) != written_limits_[i].quota_frames ||
            shared_.accounts[i].reserved_frames.load(std::memory_order_relaxed) != written_limits_[i].reserved_frames)
            return "the limits of account " + std::to_string(i) + " have been overwritten";
    for (std::uint32_t slot = 0; slot < process_slots_; ++slot) {
        const auto &record = shared_.processes[slot];
        const Record &ours = records_[slot];
        if (record.state.load(std::memory_order_relaxed) != static_cast<std::uint64_t>(ours.state) ||
            record.generation.load(std::memory_order_relaxed) != ours.generation ||
            record.pid.load(std::memory_order_relaxed) != ours.pid ||
            record.start_time_ticks.load(std::memory_order_relaxed) != ours.start_time_ticks ||
            record.quota_frames.load(std::memory_order_relaxed) != ours.quota_frames ||
            record.reserved_frames.load(std::memory_order_relaxed) != ours.reserved_frames ||
            record.account.load(std::memory_order_relaxed) != ours.account)
            return "the record of process slot " + std::to_string(slot) + " has been overwritten";
        // relaxed: its state is the client's business, the generation is ours.
        const bool is_seat = slot != kDaemonProcess.value && ours.state != ProcessState::free;
        if (is_seat && !Presence{record.presence.load(std::memory_order_relaxed)}.is_of(ours.generation))
            return "the presence of process slot " + std::to_string(slot) + " has been overwritten";
    }
    return {};
}

bool ManagedPool::has_lost_pages() const {
    return pool_region_.is_lost() ||
           std::ranges::any_of(nodes_, [](const auto &memory) { return memory->metadata().is_lost(); });
}

bool ManagedPool::look_for_damage() {
    std::string damage = damage_to_our_own();
    // Asked afterwards: the look itself may have met the page, and what it found then is none of a client's writing.
    if (has_lost_pages())
        damage =
            "pages of its metadata cannot be had: a client has taken them away, and the machine has no more to give";
    if (!damage.empty()) declare_corrupt(damage);
    return is_corrupt();
}

std::vector<std::uint64_t> ManagedPool::seat_versions() const {
    const std::lock_guard lock(mutex_);
    return seat_versions_;
}

std::string ManagedPool::damage_to_numa_node(const NodeStatus &status, const Scan &scan) {
    const std::size_t number = status.node.value;
    const View &view = views_[number];
    const NodeSnapshot &snapshot = status.snapshot;
    const std::string where = " on numa node " + std::to_string(number);
    if (snapshot.damaged_entries != 0 || snapshot.lost_blocks != 0) {
        // Once more: an entry may look impossible for the length of a change that was under way.
        NodeSnapshot again;
        std::vector<OwnerUsage> usage(process_slots_);
        scan_node(view, again, usage);
        if (snapshot.damaged_entries != 0 && again.damaged_entries != 0)
            return std::to_string(again.damaged_entries) + " impossible index entries" + where;
        if (snapshot.lost_blocks != 0 && again.lost_blocks != 0)
            return std::to_string(again.lost_blocks) + " live blocks that have lost frames" + where;
    }
    if (const std::uint64_t words = Audit<ProductionEnv>(shared_, view).run(); words != 0)
        return std::to_string(words) + " impossible words of the tree" + where;

    // Offline chunks are the daemon's alone: nobody else changes a word of them.
    const std::uint64_t changes = scan.online_changes[number];
    if (changes % 2 == 0 && nodes_[number]->online_changes() == changes &&
        snapshot.offline_frames << geometry_.frame_shift != geometry_.capacity_bytes() - status.online_bytes)
        return "other chunks are offline than the daemon took offline" + where;

    const std::vector<std::uint64_t> seats = seat_versions();
    for (std::uint32_t slot = 0; slot < process_slots_; ++slot)
        if (seats[slot] % 2 == 0 && seats[slot] == scan.seats[slot] && scan.usage[number][slot].frames != 0)
            return "blocks of process slot " + std::to_string(slot) + ", where nobody sits," + where;

    for (std::size_t i = 0; i < snapshot.unheld_count; ++i)
        // Twice: the verdict is for good.
        if (is_taken_by_nobody(shared_, view, snapshot.unheld[i]) &&
            is_taken_by_nobody(shared_, view, snapshot.unheld[i]))
            return "frame " + std::to_string(snapshot.unheld[i].first.value) + " is taken by nobody" + where;
    return {};
}

void ManagedPool::check_integrity(PoolStatus &status, const Scan &scan) {
    if (!look_for_damage()) {
        for (const NodeStatus &numa_node : status.nodes) {
            const std::string damage = damage_to_numa_node(numa_node, scan);
            if (damage.empty()) continue;
            declare_corrupt(damage);
            break;
        }
    }
    const std::lock_guard lock(mutex_);
    status.corrupt = !corrupt_reason_.empty();
    status.corrupt_reason = corrupt_reason_;
}

PoolStatus ManagedPool::status() {
    PoolStatus status;
    status.spec = spec_;
    status.owner = owner_;
    status.group = group_;
    status.geometry = geometry_;
    status.created = ledger_.created();
    const std::uint32_t threads = shared_.threads_in_use_bound();
    Scan scan;
    Use use = begin_look();
    scan.seats = use.seats;
    const auto waiters = count_waiters(shared_, threads);
    const auto start = std::chrono::steady_clock::now();
    for (const auto &memory : nodes_) {
        NodeStatus numa_node;
        numa_node.node = memory->numa_node();
        numa_node.os_numa_node = memory->os_numa_node();
        numa_node.backing = memory->data().backing();
        numa_node.page_bytes = memory->data().page_bytes();
        numa_node.backing_note = memory->backing_note();
        numa_node.capacity_bytes = geometry_.capacity_bytes();
        scan.online_changes.push_back(memory->online_changes());
        numa_node.online_bytes = memory->online_bytes();
        numa_node.metadata_bytes = memory->metadata().bytes();
        numa_node.metadata_resident_bytes = memory->metadata().resident_bytes();
        scan_node(memory->view(), numa_node.snapshot, scan.usage.emplace_back(process_slots_));
        use.add(numa_node.snapshot);
        for (std::uint32_t slot = 0; slot < process_slots_; ++slot)
            use.used_frames[slot] += scan.usage.back()[slot].frames;
        numa_node.quarantined_bytes = memory->quarantined_frames() << geometry_.frame_shift;
        numa_node.cached_bytes = numa_node.snapshot.cached_frames << geometry_.frame_shift;
        numa_node.counters = fold_counters(memory->view(), threads);
        numa_node.waiting_threads = waiters[numa_node.node.value];
        status.nodes.push_back(std::move(numa_node));
    }
    status.scan_seconds = seconds_since(start);
    check_integrity(status, scan);
    compare_with_limits(use);
    const std::lock_guard lock(mutex_);
    add_users(status, use);
    status.peak_client_bytes = ledger_.peak_client_bytes().load(std::memory_order_relaxed);
    for (std::size_t i = 0; i < status.nodes.size(); ++i)
        status.nodes[i].peak_used_bytes = ledger_.nodes()[i].peak_used_bytes.load(std::memory_order_relaxed);
    for (std::size_t i = 0; i < status.nodes.size(); ++i) status.nodes[i].is_below_watermark = is_below_watermark_[i];
    status.clients = client_count_;
    status.clients_reaped = clients_reaped_;
    status.reclaimed_bytes = reclaimed_bytes_;
    status.last_recovery_seconds = last_recovery_seconds_;
    for (const auto &client : clients_)
        if (client && client->waits_for != 0) ++status.recoveries_waiting;
    return status;
}

namespace {

Failure cannot_be_looked_at(const std::string &pool) {
    return {Errc::timed_out, "pool \"" + pool +
                                 "\" cannot be looked at: the kernel makes the daemon wait for the pool's files; evict "
                                 "the client that keeps them busy"};
}

}  // namespace

Answer<PoolStatus> ManagedPool::status_in_time() {
    const auto seen = status_look_.take(kLookPatience);
    if (!seen.found) return Unexpected{cannot_be_looked_at(spec_.name)};
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
    for (const Client &client : client_table()) {
        statuses.push_back(known_of(client));
        statuses.back().has_been_looked_at = false;
        if (!seen.found) continue;
        const auto before = std::ranges::find(*seen.found, client.id, &ClientStatus::client_id);
        if (before == seen.found->end()) continue;
        statuses.back() = *before;
        statuses.back().state = client_state_name(client.state);
    }
    return statuses;
}

// All but what is in shared memory.
ClientStatus ManagedPool::known_of(const Client &client) const {
    ClientStatus status;
    status.client_id = client.id;
    status.pool = spec_.name;
    status.pid = client.peer.pid;
    status.uid = client.peer.uid;
    status.gid = client.peer.gid;
    status.comm = client.peer.comm;
    status.cgroup = client.peer.cgroup;
    status.attached = client.attached;
    status.quota_bytes = client.quota_bytes;
    status.soft_quota_bytes = client.soft_quota_bytes;
    status.reserved_bytes = client.reserved_bytes;
    status.state = client_state_name(client.state);
    status.waits_for = client.waits_for;
    return status;
}

ManagedPool::Use ManagedPool::begin_look() const {
    Use use;
    use.number = looks_.fetch_add(1, std::memory_order_relaxed) + 1;  // relaxed: compared under the lock
    use.seats = seat_versions();
    use.used_frames.resize(process_slots_, 0);
    for (std::uint32_t slot = 0; slot < process_slots_; ++slot)
        use.counts.push_back(shared_.processes[slot].held.load(std::memory_order_seq_cst));
    use.under_way = frames_under_way();
    return use;
}

// What threads in the middle of a call have counted and not changed in the tree, or the other way round.
std::vector<std::uint64_t> ManagedPool::frames_under_way() const {
    std::vector<std::uint64_t> frames(process_slots_, 0);
    // relaxed: what is counted for the first time just now is told by HeldFrames::is_counted().
    if ((shared_.header->accounting.load(std::memory_order_relaxed) & Accounting::kCount) == 0) return frames;
    std::uint64_t of_anybody = 0;
    const std::uint32_t threads = shared_.threads_in_use_bound();
    for (std::uint32_t thread = kDaemonThread.value + 1; thread < threads; ++thread) {
        const UnderWay call{shared_.threads[thread].under_way.load(std::memory_order_seq_cst)};
        // A block on its way to it: counted, and nobody's in the index.
        const bool is_given = WaitWord{shared_.threads[thread].waiting.load(std::memory_order_seq_cst)}.is_given();
        if (call.frames() == 0 && !is_given) continue;
        const ThreadOwner owner{shared_.threads[thread].owner.load(std::memory_order_relaxed)};
        if (owner.in_use() && owner.process().value < process_slots_)
            frames[owner.process().value] += call.frames() + (is_given ? geometry_.largest().frames() : 0);
        if (call.giver() == UnderWay::kAnybody)
            of_anybody += call.frames();
        else if (call.giver() != UnderWay::kNobody && call.giver().value < process_slots_)
            frames[call.giver().value] += call.frames();
    }
    for (std::uint64_t &of_process : frames) of_process += of_anybody;
    return frames;
}

// Of all numa nodes, by process slot.
std::vector<OwnerUsage> ManagedPool::scan_use(Use &use) const {
    std::vector<OwnerUsage> usage(process_slots_);
    for (const View &view : views_) {
        NodeSnapshot snapshot;
        scan_node(view, snapshot, usage);
        use.add(snapshot);
    }
    for (std::uint32_t slot = 0; slot < process_slots_; ++slot) use.used_frames[slot] = usage[slot].frames;
    return usage;
}

ManagedPool::Use ManagedPool::look() const {
    // seq_cst: after the promise of reserve()'s last look, if a shrink has seen none.
    const std::uint64_t withheld_bytes = withheld_bytes_.load(std::memory_order_seq_cst);
    const std::uint64_t changes = unit_changes();
    const NodeMemory::DrainingFrames before = draining_frames();
    Use use = begin_look();
    use.withheld_frames = withheld_bytes >> geometry_.frame_shift;
    scan_use(use);
    NodeMemory::DrainingFrames gone = draining_frames();
    // Of what has changed meanwhile nobody knows whether the scan has found it: it counts as gone whichever it was.
    if (changes != unit_changes()) {
        gone.free += before.free;
        gone.used += before.used;
    }
    find_free_to_promise(use, gone);
    return use;
}

std::uint64_t ManagedPool::unit_changes() const {
    std::uint64_t changes = 0;
    for (const auto &memory : nodes_) changes += memory->unit_changes();
    return changes;
}

NodeMemory::DrainingFrames ManagedPool::draining_frames() const {
    NodeMemory::DrainingFrames all;
    for (const auto &memory : nodes_) {
        const NodeMemory::DrainingFrames here = memory->draining_frames();
        all.free += here.free;
        all.used += here.used;
    }
    return all;
}

void ManagedPool::look_at_use() {
    Use use = begin_look();
    scan_use(use);
    compare_with_limits(use);
}

std::vector<ClientStatus> ManagedPool::client_statuses() {
    Use use = begin_look();
    const std::vector<Client> table = client_table();
    std::vector<ClientStatus> statuses;
    if (table.empty()) return statuses;

    const std::vector<OwnerUsage> usage = scan_use(use);
    compare_with_limits(use);
    std::vector<std::uint32_t> threads(process_slots_, 0);
    for (std::uint32_t thread = 1; thread < shared_.threads_in_use_bound(); ++thread) {
        // relaxed: only counted.
        const ThreadOwner owner{shared_.threads[thread].owner.load(std::memory_order_relaxed)};
        if (owner.in_use() && owner.process().value < process_slots_) ++threads[owner.process().value];
    }
    const std::chrono::seconds age = ledger_.age();
    for (const Client &client : table) {
        ClientStatus status = known_of(client);
        status.used_bytes = usage[client.slot.value].frames << geometry_.frame_shift;
        status.cached_bytes = usage[client.slot.value].cached_frames << geometry_.frame_shift;
        status.blocks = usage[client.slot.value].blocks;
        if (status.blocks != 0) status.oldest_held_for = held_for(usage[client.slot.value].oldest, age);
        status.threads = threads[client.slot.value];
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
            const unsigned block_shift = block.order.value + geometry_.frame_shift;
            const std::uint64_t bytes = std::uint64_t{1} << block_shift;
            const std::chrono::seconds held = held_for(entry.note().since(), age);
            blocks.add(held, bytes, [&] {
                return HeldBlock{.pool = spec_.name,
                                 .client_id = id,
                                 .node = NumaNode{static_cast<std::uint8_t>(i)},
                                 .offset_bytes = block.base.value << geometry_.frame_shift,
                                 .bytes = bytes,
                                 .requested_bytes = bytes - entry.note().slack_bytes(block_shift),
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
    map.bytes_per_cell = frames_per_cell << geometry_.frame_shift;
    for (const CellUsage &cell : usage) map.cells.push_back({cell.frames, cell.used_frames, cell.offline_frames});
    return map;
}

std::vector<BlockHolder> ManagedPool::holders(NumaNode numa_node, const std::vector<UnitRange> &units) {
    std::vector<OwnerUsage> usage(process_slots_);
    const std::uint64_t unit_frames = node_memory(numa_node).unit_bytes() >> geometry_.frame_shift;
    for (const UnitRange &range : units)
        scan_holders(views_[numa_node.value], FrameIndex{range.first * unit_frames}, range.count * unit_frames,
                     std::span<OwnerUsage>(usage));
    std::vector<BlockHolder> found;
    const std::lock_guard lock(mutex_);
    for (std::uint32_t slot = 0; slot < process_slots_; ++slot) {
        if (usage[slot].frames == 0) continue;
        BlockHolder holder;
        holder.bytes = usage[slot].frames << geometry_.frame_shift;
        if (slot == kDaemonProcess.value) holder.comm = "the quarantine";
        if (clients_[slot]) {
            holder.client_id = clients_[slot]->id;
            holder.pid = clients_[slot]->peer.pid;
            holder.comm = clients_[slot]->peer.comm;
        }
        found.push_back(std::move(holder));
    }
    std::sort(found.begin(), found.end(), [](const auto &a, const auto &b) { return a.bytes > b.bytes; });
    return found;
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
    // What a damaged pool says about owners is not to be believed, and what it says about who is in the way may be so
    // for ever.
    if (look_for_damage()) return all(RecoveryStep::done, blocked_by);
    if (finish_predecessor(blocked_by) == RecoveryStep::blocked) return all(RecoveryStep::blocked, blocked_by);
    Recovery<ProductionEnv> recovery(shared_, std::span<const View>(views_));
    if (spec_.reclaim.kind == Reclaim::Kind::fast) {
        recovery.recover(departed);
    } else {
        const Quarantine::Era era = quarantine_.era(Quarantine::Clock::now());
        recovery.seize(departed, era, [this, era](NumaNode numa_node, Block block) { seize(numa_node, block, era); });
    }
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
              {{"pool", spec_.name}, {"bytes", std::exchange(strays_bytes_, 0)}});
    strays_told_ = now;
}

void ManagedPool::seize(NumaNode numa_node, Block block, Quarantine::Era era) {
    quarantine_.add(numa_node, block, era, Quarantine::Clock::now());
    nodes_[numa_node.value]->count_quarantined(static_cast<std::int64_t>(block.order.frames()));
    const auto records = lock_records();
    write_seized();
}

void ManagedPool::list_seized() {
    const auto now = Quarantine::Clock::now();
    std::vector<std::int64_t> frames(nodes_.size());
    quarantine_.begin_listing();
    Recovery<ProductionEnv>(shared_, std::span<const View>(views_))
        .for_each_seized([&](NumaNode numa_node, Block block, Quarantine::Era era) {
            frames[numa_node.value] += static_cast<std::int64_t>(block.order.frames());
            quarantine_.list(numa_node, block, era, now);
        });
    quarantine_.end_listing();
    // What somebody has scribbled is counted, too.
    for (std::size_t i = 0; i < nodes_.size(); ++i)
        nodes_[i]->count_quarantined(frames[i] - static_cast<std::int64_t>(nodes_[i]->quarantined_frames()));
}

std::optional<std::chrono::steady_clock::time_point> ManagedPool::release_seized() {
    if (look_for_damage() || is_deleted()) {
        quarantine_.clear();
        return std::nullopt;
    }
    ThreadSlotIndex blocked_by;
    if (finish_predecessor(blocked_by) == RecoveryStep::blocked)
        return std::chrono::steady_clock::now() + std::chrono::seconds(1);
    const auto now = Quarantine::Clock::now();
    if (quarantine_.has_to_list(now)) list_seized();
    Recovery<ProductionEnv> recovery(shared_, std::span<const View>(views_));
    std::uint64_t bytes = 0;
    std::vector<std::int64_t> released(nodes_.size());  // frames, by numa node
    while (bytes < kPopulateBytesMax) {
        const auto due = quarantine_.take_due(now);
        if (!due) break;
        const Quarantine::Seized &one = *due;
        NodeMemory &memory = *nodes_[one.numa_node.value];
        const std::uint64_t block_bytes = one.block.order.frames() << geometry_.frame_shift;
        bytes += block_bytes;
        if (spec_.reclaim.kind == Reclaim::Kind::zero) {
            if (auto zeroed = memory.zero(one.block); !zeroed) {
                log::error("blocks of a client that is gone cannot be zeroed: they stay where they are for now",
                           {{"pool", spec_.name}, {"reason", zeroed.error().message}});
                quarantine_.put_back({one.numa_node, one.block, now + kZeroAgainAfter});
                break;
            }
        }
        released[one.numa_node.value] += static_cast<std::int64_t>(one.block.order.frames());
        if (!recovery.release(one.numa_node, one.block))
            declare_corrupt("a block that the daemon held on numa node " + std::to_string(one.numa_node.value) +
                            " has been overwritten");
    }
    if (bytes != 0) {
        {
            const auto records = lock_records();
            forget_draining_held(shared_);  // as in vacate(), and before they count as held no more
            for (std::size_t i = 0; i < nodes_.size(); ++i) nodes_[i]->count_quarantined(-released[i]);
            write_sizes();
        }
        wake_waiters();
    }
    if (quarantine_.is_empty()) return std::nullopt;
    return quarantine_.next_due();
}

}  // namespace numacre::daemon
