#include "pool/managed_pool.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <span>
#include <system_error>

#include "base/bytes.hpp"
#include "engine.hpp"
#include "numacre/os/kernel.hpp"
#include "numacre/shm/account.hpp"
#include "numacre/shm/audit.hpp"
#include "numacre/shm/format.hpp"
#include "numacre/shm/hand_off.hpp"
#include "numacre/shm/idle_caches.hpp"
#include "numacre/shm/validate.hpp"
#include "os/log.hpp"
#include "spec/access.hpp"
#include "spec/policy_text.hpp"
#include "spec/pool_spec.hpp"

namespace numacre::daemon {

namespace {

// The address space of a process, 128 TiB, has room for other things as well.
constexpr std::uint64_t kAddressSpaceMax = std::uint64_t{64} << 40;

// Populated at once at most: between two such pieces the worker looks after dead clients.
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
constexpr const char *kPinsFile = "pins";
std::string metadata_file(std::uint32_t numa_node) {
    return "metadata" + std::to_string(numa_node);
}
std::string data_file(std::uint32_t numa_node) {
    return "frames" + std::to_string(numa_node);
}

}  // namespace

Answer<std::shared_ptr<ManagedPool>> ManagedPool::create(const PoolSpec &spec, Topology &topology,
                                                         Hugepages &hugepages) {
    const auto geometry = geometry_of(spec);
    if (!geometry) return Unexpected{geometry.error()};
    const auto numa_nodes = static_cast<std::uint32_t>(topology.numa_nodes().size());
    if (auto known = check_policy(spec.policy, numa_nodes); !known) return Unexpected{known.error()};
    // Each client reserves as much for each numa node (client/src/regions.cpp).
    if (const std::uint64_t span = std::bit_ceil(spec.capacity_bytes); span > kAddressSpaceMax / numa_nodes)
        return Unexpected{
            Failure{Errc::bad_argument,
                    "capacity " + format_bytes(spec.capacity_bytes) + " needs " + format_bytes(span) +
                        " of address space for each of " + std::to_string(numa_nodes) +
                        " numa nodes, and no process has more than " + format_bytes(kAddressSpaceMax) +
                        " for it: " + (spec.has_objects() ? "ask for fewer objects, of at most " : "use at most ") +
                        format_bytes(std::bit_floor(kAddressSpaceMax / numa_nodes))}};
    if (spec.node_online_bytes.size() > numa_nodes)
        return Unexpected{Failure{Errc::bad_argument, "online " + format_node_bytes(spec) + " names " +
                                                          std::to_string(spec.node_online_bytes.size()) +
                                                          " numa nodes, the machine has " + std::to_string(numa_nodes) +
                                                          ": give one size for each, or one for all"}};
    const auto layout = PoolLayout<ProductionEnv>::of(spec.max_clients + 1, spec.max_threads + 1);
    // Before the first page is taken: the ledger alone may be more than the machine has.
    if (auto enough = check_metadata_left(spec, *geometry, spec.max_threads + 1, topology,
                                          PoolLedger::bytes_for(spec, numa_nodes) + layout.region_bytes);
        !enough)
        return Unexpected{enough.error()};
    auto ledger = PoolLedger::create(spec, random_id(), numa_nodes);
    if (!ledger) return Unexpected{ledger.error()};
    auto pool_region = MetadataRegion::create("numacre:" + spec.name + ":pool", layout.region_bytes);
    if (!pool_region) return Unexpected{pool_region.error()};
    // Each look reads the records of all processes and the slots of threads, and no client that comes later could be
    // told of a shortage. A channel is populated when it is made; a page of hold words comes when one of its threads
    // first holds a block, and few programs do.
    if (auto populated = pool_region->populate(0, layout.channels); !populated) return Unexpected{populated.error()};

    auto pins_file = MetadataRegion::create("numacre:" + spec.name + ":pins", kPageBytes);
    if (!pins_file) return Unexpected{pins_file.error()};

    std::shared_ptr<ManagedPool> pool(new ManagedPool(spec, *geometry, std::move(*ledger), std::move(*pool_region),
                                                      std::move(*pins_file), Origin::made));
    format_pool_region<ProductionEnv>(pool->pool_region_.address(), spec.name, pool->instance_id(), *geometry,
                                      numa_nodes, pool->process_slots_, pool->thread_slots_, spec.policy);
    {
        const RecordsLock records(*pool);
        pool->records_.remember_header();
    }
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
    pool->limits_.begin();
    {
        const RecordsLock records(*pool);
        for (std::size_t i = 0; i < kAccounts; ++i) pool->records_.write_account(i, pool->limits_.settle(i));
        pool->write_accounting();
    }
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

    auto pins_file = MetadataRegion::adopt(std::move(files.at(kPinsFile)), kPageBytes);
    if (!pins_file) return Unexpected{pins_file.error()};

    std::shared_ptr<ManagedPool> pool(new ManagedPool(spec, *geometry, std::move(ledger), std::move(*pool_region),
                                                      std::move(*pins_file), Origin::adopted));
    for (std::uint32_t i = 0; i < pool->ledger_.numa_nodes(); ++i) {
        auto made = NodeMemory::adopt(pool->plan_of(NumaNode{static_cast<std::uint8_t>(i)}), topology, hugepages,
                                      std::move(files.at(metadata_file(i))), std::move(files.at(data_file(i))));
        if (!made) return Unexpected{made.error()};
        pool->add_node(std::move(*made));
    }
    pool->clients_.adopt();
    pool->limits_.adopt(pool->clients_.all());
    if (pool->ledger_.state() == LedgerState::corrupt)
        (void)pool->note_damage("found out before the daemon's last start");
    return pool;
}

ManagedPool::ManagedPool(const PoolSpec &spec, const Geometry &geometry, PoolLedger ledger, MetadataRegion pool_region,
                         MetadataRegion pins_file, Origin origin)
    : description_(spec),
      geometry_(geometry),
      process_slots_(spec.max_clients + 1),  // slot 0 is the daemon
      thread_slots_(spec.max_threads + 1),
      ledger_(std::move(ledger)),
      pool_region_(std::move(pool_region)),
      shared_(SharedPool::at(pool_region_.address(), process_slots_, thread_slots_)),
      pins_(ledger_, std::move(pins_file)),
      adopted_(origin == Origin::adopted),
      quarantine_(spec.reclaim.hold),
      clients_(description_, ledger_),
      limits_(description_, geometry_, ledger_),
      free_memory_(description_, geometry_, ledger_),
      records_(shared_, process_slots_, thread_limit_of(spec), !adopted_),
      names_(ledger_, *shared_.names, spec.name),
      has_to_take_over_(adopted_),
      held_counts_(shared_, process_slots_),
      gifts_seen_(process_slots_),
      scan_(geometry_, shared_, views_, nodes_, clients_, records_.withheld_bytes()) {}

NodeMemory::Plan ManagedPool::plan_of(NumaNode numa_node) const {
    return {description()->spec, geometry_, numa_node, instance_id(), thread_slots_, shared_, &ledger_, &pins_};
}

void ManagedPool::add_node(std::unique_ptr<NodeMemory> memory) {
    views_.push_back(memory->view());
    nodes_.push_back(std::move(memory));
}

std::vector<std::string> ManagedPool::file_names(std::uint32_t numa_nodes) {
    std::vector<std::string> names{kLedgerFile, kPoolFile, kPinsFile};
    for (std::uint32_t i = 0; i < numa_nodes; ++i) {
        names.push_back(metadata_file(i));
        names.push_back(data_file(i));
    }
    return names;
}

std::map<std::string, int> ManagedPool::kept_files() const {
    std::map<std::string, int> files{
        {kLedgerFile, ledger_.fd()}, {kPoolFile, pool_region_.fd()}, {kPinsFile, pins_.fd()}};
    for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
        files[metadata_file(i)] = nodes_[i]->metadata().fd();
        files[data_file(i)] = nodes_[i]->data().fd();
    }
    return files;
}

NUMACRE_UNCHECKED ManagedPool::RecordsLock::RecordsLock(ManagedPool &pool) : lock_(pool.records_.mutex) {
    // Not in adopt(): the daemon's start waits for no client.
    if (!pool.has_to_take_over_) return;
    pool.take_over();
    pool.has_to_take_over_ = false;
}

NUMACRE_UNCHECKED ManagedPool::RecordsLock::~RecordsLock() = default;

// Writes anew what clients are told: the daemon before may have died between the ledger and the records.
void ManagedPool::take_over() {
    forget_draining_held(shared_);  // the daemon before may have freed what it had no time to note
    // An older daemon left it to whoever came first. Where there is no memory for it, it is as it was then.
    (void)pool_region_.populate(0, PoolLayout<ProductionEnv>::of(process_slots_, thread_slots_).channels);
    records_.write_policy(description()->spec.policy);  // the daemon before may have died between the ledger and this
    const bool is_ours =
        validate_pool_region<ProductionEnv>(pool_region_.address(), {geometry_, instance_id(), pool_region_.bytes()},
                                            process_slots_, thread_slots_) == Errc::ok &&
        std::ranges::all_of(nodes_, [](const auto &memory) { return memory->header_is_ours(); });
    records_.remember_header();
    for (std::size_t i = 0; i < kAccounts; ++i) records_.write_account(i, limits_.settle(i));
    const auto ledger = ledger_.clients();
    for (std::uint32_t i = 1; i < process_slots_; ++i) {
        const ProcessSlot slot{static_cast<std::uint16_t>(i)};
        PoolRecords::Record record;
        record.generation = ledger[i].generation;
        record.pid = ledger[i].pid;
        record.start_time_ticks = ledger[i].start_time_ticks.load(std::memory_order_relaxed);
        if (clients_.at(slot)) {
            // acquire: with what the daemon before wrote last about the client.
            const bool departs = ledger[i].is_departing.load(std::memory_order_acquire) != 0;
            record.state = departs ? ProcessState::dead : ProcessState::active;
            record.limits = limits_.words_of_client(slot);
        }
        records_.write(slot, record);
        // The daemon before may have died while it cleared the seat.
        if (record.state == ProcessState::free) {
            shared_.processes[i].held.store(0, std::memory_order_relaxed);
            records_.empty_way_to(slot);
        }
    }
    records_.write_seats(clients_.seats());
    std::vector<std::uint32_t> client_ids;
    for (const Client &client : clients_.all()) client_ids.push_back(client.id);
    names_.take_over(client_ids);
    records_.take_over_accounting();
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
                  {{"pool", description_.name()}, {"error", failure.what()}});
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

// ---------------------------------------------------------------------------------------------------------------------

Answer<Client> ManagedPool::seat(std::uint32_t client_id, Peer peer, wire::Tier tier) {
    if (is_due_for_look()) look_for_damage();
    const RecordsLock records(*this);
    if (const std::string damage = integrity_.reason(); !damage.empty())
        return Unexpected{Failure{Errc::corrupt, "pool \"" + description_.name() + "\" is damaged (" + damage +
                                                     "): see the runbook NumacrePoolCorrupt"}};
    auto taken = clients_.take_seat(client_id, std::move(peer), tier);
    if (!taken) return taken;
    const Client &client = *taken;
    auto &shared = shared_.processes[client.slot.value];
    // Before the ledger names the client: if we die, the next daemon finds either nobody or a word that it understands.
    // relaxed: the reply goes by the kernel, and a next daemon begins after our end.
    shared.presence.store(
        Presence{client.generation, tier == wire::Tier::trusted ? Presence::State::attaching : Presence::State::here}
            .bits(),
        std::memory_order_relaxed);
    limits_.seat(client);
    clients_.enter(client);

    // relaxed: the record means nothing before its state says so.
    shared.held.store(HeldFrames::of(0).bits(), std::memory_order_relaxed);
    records_.empty_way_to(client.slot);
    shared.news.store(0, std::memory_order_relaxed);
    shared.group.store(0, std::memory_order_relaxed);
    records_.write(client.slot, {ProcessState::active, client.generation, client.peer.pid, client.peer.start_time_ticks,
                                 limits_.words_of_client(client.slot)});
    held_counts_.forget(client.slot);
    records_.write_seats(clients_.seats());
    return taken;
}

// The look goes over all process and thread slots: in a wide pool not each time, or attaching there would take long.
bool ManagedPool::is_due_for_look() {
    constexpr std::uint32_t kSlotsALook = 16384;
    const RecordsLock records(*this);
    if (seats_until_look_ != 0) {
        --seats_until_look_;
        return false;
    }
    seats_until_look_ = (process_slots_ + shared_.threads_in_use_bound()) / kSlotsALook;
    return true;
}

Presence::State ManagedPool::ask_after(const Client &client) {
    if (client.tier != wire::Tier::trusted) return Presence::State::given_up;
    return Presence::give_up(shared_.processes[client.slot.value].presence, client.generation);
}

bool ManagedPool::is_here(const Client &client) const {
    const auto *const word = reinterpret_cast<const std::byte *>(&shared_.processes[client.slot.value].presence);
    const auto offset = static_cast<off_t>(word - static_cast<const std::byte *>(pool_region_.address()));
    std::uint64_t bits = 0;
    if (os::pread(pool_region_.fd(), &bits, sizeof bits, offset) != sizeof bits) return true;
    return Presence{bits}.state_of(client.generation) == Presence::State::here;
}

// All that depart, not only those whose recovery begins: none of them stands in another's way.
void ManagedPool::mark_departing_dead() {
    const RecordsLock records(*this);
    for (const Client &client : clients_.all()) {
        const bool departs = has_departed(client);
        // Before the first of its blocks goes: a name leads to no block of somebody else's.
        if (departs) names_.end_of_client(client.id);
        // EDGE death-to-recovery (seq_cst; partner: recovery's acquire loads). The kernel has ordered all of the
        // process's stores before its end.
        if (departs && records_.of(client.slot).state == ProcessState::active)
            records_.set_state(client.slot, ProcessState::dead, std::memory_order_seq_cst);
    }
}

Answer<std::uint64_t> ManagedPool::change_name(const NameEntry &entry, const NameCondition &condition,
                                               const NameAsker &asker, const Client *client) {
    pool_region_.look_again();
    const RecordsLock records(*this);
    if (client != nullptr) {
        // Under the lock: whoever departs from here on loses its names after this change (mark_departing_dead()).
        const auto now = clients_.at(client->slot);
        if (!now || now->id != client->id || has_departed(*now)) return Unexpected{no_such_client(client->id)};
        if (const std::string damage = integrity_.reason(); !damage.empty())
            return Unexpected{Failure{Errc::corrupt, "pool \"" + description_.name() + "\" is damaged (" + damage +
                                                         "): see the runbook NumacrePoolCorrupt"}};
    }
    if (const auto there = names_.find(entry.name); there && there->kind == NameKind::channel)
        return Unexpected{
            Failure{Errc::already_exists, "name \"" + text_of(entry.name) + "\" is a channel's, and goes with it: " +
                                              (client == nullptr ? "use numacre channels --remove"
                                                                 : "remove the channel (numacre_channel_remove), or "
                                                                   "use another name")}};
    return entry.kind == NameKind::none ? names_.unbind(entry.name, condition, asker)
                                        : names_.bind(entry, condition, asker);
}

void ManagedPool::set_news(std::span<const Client> clients, std::uint64_t event_bits) {
    pool_region_.look_again();
    const RecordsLock records(*this);
    for (const Client &client : clients) {
        const PoolRecords::Record &record = records_.of(client.slot);
        // seq_cst: before the signal; partner: the exchange in the client.
        if (record.state != ProcessState::free && record.generation == client.generation)
            shared_.processes[client.slot.value].news.fetch_or(event_bits, std::memory_order_seq_cst);
    }
}

std::optional<Client> ManagedPool::note_blocked(ProcessSlot slot, ThreadSlotIndex blocked_by) {
    auto in_the_way = client_of(blocked_by);
    if (in_the_way) clients_.note_wait(slot, in_the_way->id);
    return in_the_way;
}

void ManagedPool::vacate(ProcessSlot slot, Departure departure, const Reclaimed &total, double recovery_seconds) {
    const RecordsLock records(*this);
    // While the ledger still has the client: a death of the daemon in between leaves no name without one.
    if (const auto client = clients_.at(slot)) names_.end_of_client(client->id);
    if (!clients_.leave(slot, departure, geometry_.bytes_of(total.frames), recovery_seconds)) return;
    pins_.forget(slot);
    limits_.vacate(slot);
    // Nobody has noted the blocks that recovery has freed in units that drain: those that were on their way included,
    // which `total` does not count.
    forget_draining_held(shared_);
    // The client's memory has been given back; its word leaves the sums of its user and of the pool.
    records_.set_limits(slot, {});
    shared_.processes[slot.value].held.store(0, std::memory_order_release);  // after the above
    records_.empty_way_to(slot);
    records_.write_seats(clients_.seats());
    write_accounting();
    // release: who takes the slot next finds everything given back.
    records_.set_state(slot, ProcessState::free, std::memory_order_release);
}

void ManagedPool::end_promise(ProcessSlot slot) {
    const RecordsLock records(*this);
    limits_.end_promise(slot);
    records_.set_limits(slot, limits_.words_of_client(slot));
    write_accounting();
}

std::optional<Client> ManagedPool::client_of(ThreadSlotIndex thread) const {
    if (thread.value >= thread_slots_) return std::nullopt;
    // relaxed: to be told to people.
    const ThreadOwner owner{shared_.threads[thread.value].owner.load(std::memory_order_relaxed)};
    return owner.in_use() ? clients_.at(owner.process()) : std::nullopt;
}

void ManagedPool::publish_sizes() {
    const RecordsLock records(*this);  // the last to look is the last to write
    write_sizes();
}

void ManagedPool::write_sizes() {
    write_seized();
    std::uint64_t online_bytes = 0, draining_bytes = 0;
    for (const auto &memory : nodes_) {
        // Whole: what is freed there is not to be had, and is freed at any time. Before what is online: a unit that
        // goes offline in between is missing twice, not there twice.
        draining_bytes += memory->draining_bytes();
        online_bytes += memory->online_bytes();
    }
    records_.write_online(online_bytes, draining_bytes, geometry_);
}

// A walk over all that drains. Until the next one what is held there counts as if it were held in the rest.
void ManagedPool::look_at_drains() {
    auto &word = shared_.header->draining_held;
    std::uint64_t seen = word.load(std::memory_order_seq_cst);  // before the look
    if (!limits_.has_reservations()) return;
    std::uint64_t frames = 0;
    for (const auto &memory : nodes_) frames += memory->draining_frames().noted;
    const RecordsLock records(*this);
    // The holder of a promise may give back what it holds there, and want as much elsewhere. The look does not ask
    // whose the blocks are: they change hands.
    frames -= std::min(frames, limits_.promised_frames());
    // Not if anybody has noted or forgotten something since: then after the next look.
    if (DrainingHeld{seen}.frames() != frames)
        word.compare_exchange_strong(seen, DrainingHeld{seen}.changed_to(frames).bits());
}

// Writes the frames that the daemon holds.
void ManagedPool::write_seized() {
    std::uint64_t frames = 0;
    for (const auto &memory : nodes_) frames += memory->quarantined_frames();
    records_.write_seized(frames);
}

void ManagedPool::withhold(std::uint64_t more_bytes, std::uint64_t less_bytes) {
    {
        const RecordsLock records(*this);
        records_.withhold(more_bytes, less_bytes);
    }
    publish_sizes();
}

Answer<void> ManagedPool::Turn::check() const {
    if (is_ours_) return {};
    return Unexpected{Failure{
        Errc::contended, std::to_string(kTurns) + " calls wait for pool \"" + pool_.name() +
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
    names_.wake();
}

// Where chunks bear no mark, clients would look for one at every call.
bool ManagedPool::clients_see_drains() const {
    return std::ranges::any_of(
        nodes_, [](const auto &memory) { return memory->is_draining() && memory->keeps_allocations_out(); });
}

void ManagedPool::ask_for_cached_blocks() {
    // Each thread sees it at its next call. The flag goes first: who has given back what it had does not begin anew.
    if (clients_see_drains()) shared_.header->attention.fetch_or(Attention::kDraining, std::memory_order_relaxed);
    // seq_cst: before the barrier.
    shared_.header->attention.fetch_add(Attention::kPressureStep, std::memory_order_seq_cst);
}

bool ManagedPool::gather_cached_blocks() {
    timespec time{};
    os::clock_gettime(CLOCK_MONOTONIC, &time);
    const std::uint64_t before_ns =
        static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(time.tv_nsec);
    ask_for_cached_blocks();
    const bool may_have = !adopted_ && !is_corrupt() && take_back_idle_caches(before_ns);
    if (may_have) wake_waiters(false);
    free_memory_.caches_are_taken_back();
    return may_have;
}

void ManagedPool::gather_cached_blocks_sparingly() {
    constexpr int kPauses = 20;
    const auto begin = std::chrono::steady_clock::now();
    if (begin < next_gather_) {
        ask_for_cached_blocks();
        return;
    }
    (void)gather_cached_blocks();
    const auto end = std::chrono::steady_clock::now();
    next_gather_ = end + kPauses * (end - begin);
}

bool ManagedPool::take_back_idle_caches(std::uint64_t before_ns) {
    // Where the barrier is forbidden, the clients have been asked, no more.
    return engine::take_back_idle_caches(
        shared_, static_cast<std::uint32_t>(views_.size()),
        [this](std::uint32_t node) -> const View & { return views_[node]; }, Actor{kDaemonThread, kDaemonProcess},
        before_ns, walked_seen_, [] { return os::pass_barrier() == 0; });
}

bool ManagedPool::look_for_idle_caches() {
    return cache_ages_.look(shared_, std::span<const View>(views_)) || free_memory_.wants_caches();
}

void ManagedPool::tell_clients() {
    pool_region_.look_again();
    publish_sizes();
    look_at_drains();
    {
        // Again: somebody may have scribbled over it, and then quotas of users add up nobody.
        const RecordsLock records(*this);
        records_.write_seats(clients_.seats());
    }
    forget_stale_gifts(Stale::since_the_last_look);
    pins_.look(description()->spec.pin_quarantine, Pins::Clock::now());
    tell_age();
}

// A giver that is stopped, or dead, has counted for a client what that will never get: the client's limits, its user's
// and the pool's would be smaller by it.
void ManagedPool::forget_stale_gifts(Stale stale) {
    const RecordsLock records(*this);
    if (!records_.is_counting()) return;
    for (const ProcessSlot slot : clients_.seated()) {
        const OnTheWay seen{shared_.processes[slot.value].on_the_way.load(std::memory_order_seq_cst)};
        const std::uint64_t before = std::exchange(gifts_seen_[slot.value], seen.bits());
        if (seen.frames() == 0 || (stale == Stale::since_the_last_look && before != seen.bits())) continue;
        (void)forget_on_the_way(shared_, slot, seen, [this](ThreadSlotIndex thread) { wake(thread); });
    }
}

void ManagedPool::tell_age() {
    const PoolAge age = age_now();
    const bool serves = !is_corrupt();
    // Again: it may have been scribbled over since.
    if (!serves && ledger_.state() == LedgerState::corrupt)
        shared_.header->state.store(static_cast<std::uint64_t>(PoolState::corrupt), std::memory_order_release);
    auto &attention = shared_.header->attention;
    // relaxed: an age in seconds, and a hint to look at the state. Bounded: somebody may scribble here for ever; there
    // is a next time.
    std::uint64_t bits = attention.load(std::memory_order_relaxed);
    for (unsigned round = 0; round < kCasRoundsMax; ++round) {
        // Each time: a drain may have begun or ended meanwhile.
        const std::uint64_t told = Attention::told(bits, age, serves, clients_see_drains());
        if (bits == told || attention.compare_exchange_weak(bits, told, std::memory_order_relaxed)) return;
    }
}

void ManagedPool::wake_waiters(bool all) {
    nudge_waiters(shared_, all, [this](ThreadSlotIndex thread) { wake(thread); });
}

void ManagedPool::wake(ThreadSlotIndex waiter) {
    auto *const low_half = reinterpret_cast<std::uint32_t *>(&shared_.threads[waiter.value].waiting);
    static_assert(std::endian::native == std::endian::little, "the futex word is the first half");
    os::futex_wake(low_half, 1);
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
    if (!integrity_.note_damage(reason)) return false;
    log::error("pool is damaged: no new clients, see the runbook NumacrePoolCorrupt",
               {{"pool", description_.name()}, {"reason", reason}});
    return true;
}

void ManagedPool::tell_of_damage() {
    pool_region_.look_again();
    // release: the last word about this pool.
    shared_.header->state.store(static_cast<std::uint64_t>(PoolState::corrupt), std::memory_order_release);
    // Its clients are refused from their next allocation on; who waits for memory hears it now.
    shared_.header->attention.fetch_or(Attention::kLookAtState, std::memory_order_seq_cst);
    wake_waiters(true);
    names_.wake();
}

void ManagedPool::declare_corrupt(const std::string &reason) {
    if (!note_damage(reason)) return;
    ledger_.set_state(LedgerState::corrupt);
    tell_of_damage();
}

// Shared memory is read here only to find out that somebody scribbled over it.
std::string ManagedPool::damage_to_our_own() {
    const RecordsLock records(*this);
    if (std::string damage = records_.damage_to_header(); !damage.empty()) return damage;
    const auto &header = *shared_.header;
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
    // In this order: a pool that is deleted says so after its door is closed, a damaged one after the verdict.
    if (state != PoolState::serving && !is_corrupt() && !clients_.is_closed())
        return "the pool's state has been overwritten";
    if (std::string damage = names_.damage(); !damage.empty()) return damage;
    return records_.damage_to_records();
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

void ManagedPool::check_integrity(PoolStatus &status, std::span<const NodeScan> scans,
                                  const std::vector<std::uint64_t> &seats) {
    if (!look_for_damage()) {
        for (std::size_t i = 0; i < status.nodes.size(); ++i) {
            const std::string damage = damage_to_numa_node(shared_, *nodes_[i], geometry_, status.nodes[i], scans[i],
                                                           seats, clients_.versions());
            if (damage.empty()) continue;
            declare_corrupt(damage);
            break;
        }
    }
    status.corrupt_reason = integrity_.reason();
    status.corrupt = !status.corrupt_reason.empty();
}

}  // namespace numacre::daemon
