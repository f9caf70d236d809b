#include "daemon.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "base/bytes.hpp"
#include "os/log.hpp"

namespace numacre::daemon {

namespace {

constexpr std::chrono::milliseconds kReviveAgainAfter{2000};
// The period of telling clients. The code of a pool's age is no finer than this.
constexpr std::chrono::milliseconds kTellPeriod{1000};
// How often the daemon looks at the use of pools with soft limits. Each look is a scan of their metadata, and takes no
// more than one part in kLookShare of the worker's time.
constexpr std::chrono::milliseconds kLookPeriod{5000};
constexpr int kLookShare = 20;
// How often, and for what share of the time, the daemon checks whether the kernel has moved pages to other numa nodes.
constexpr std::chrono::milliseconds kPlacementPeriod{10'000};
constexpr int kPlacementShare = 50;
// How often the daemon looks at the use of a pool that sizes itself.
constexpr std::chrono::milliseconds kAutosizePeriod{1000};

}  // namespace

Daemon::Daemon(Options options, std::unique_ptr<Topology> topology, std::unique_ptr<EventLoop> loop,
               std::unique_ptr<Keeper> keeper)
    : options_(std::move(options)),
      topology_(std::move(topology)),
      keeper_(std::move(keeper)),
      hugepages_(options_.reserve_hugepages),
      destroyer_(std::make_unique<Worker>()),
      loop_(std::move(loop)),
      worker_(std::make_unique<Worker>()),
      keeper_worker_(std::make_unique<Worker>()),
      reaper_(*loop_, registry_) {}

Daemon::~Daemon() {
    begin_shutdown();
    // Before all others: it makes and deletes pools.
    if (client_objects_) client_objects_->finish();
    // The workers end first: their jobs use the members that follow. Jobs that they post are not run any more.
    for (const auto &pool : registry_.all()) pool->end_workers();
    for (const auto &deleted : deleted_)
        if (const auto pool = deleted.lock()) pool->end_workers();
    worker_.reset();
    keeper_worker_.reset();
    attach_server_.reset();
    std::vector<int> pidfds;  // the pools' client tables hold them open
    bool can_be_watched = true;
    for (const auto &pool : registry_.all())
        for (const Client &client : pool->client_table()) {
            if (client.tier == wire::Tier::channel) continue;  // no process
            if (!client.peer.pidfd && !has_departed(client)) can_be_watched = false;
            if (client.peer.pidfd && !has_ended(*client.peer.pidfd)) pidfds.push_back(client.peer.pidfd->get());
        }
    if (!pidfds.empty())
        log::info("pools stay for their clients and the next daemon",
                  {{"clients", pidfds.size()}, {"kept_by", std::string(keeper_->kind())}});
    // If the adoption was refused, the pools in the keeper are not ours to give up. Nor are they given up if a client's
    // process cannot be watched, so that the end of the last client stays unknown: then they are kept until a daemon
    // comes for them.
    if (is_heir_ && can_be_watched) keeper_->leave(pidfds);
    for (const std::string &name : registry_.names()) registry_.remove(name);
    // Jobs that were posted but are not run any more may hold the last reference to a pool.
    loop_.reset();
    destroyer_->finish();
    hugepages_.give_back_all();
}

namespace {

// "default/frames0" -> pool and file; the pool's name is empty for a file that belongs to no pool.
std::pair<std::string, std::string> split_kept_name(const std::string &name) {
    const std::size_t slash = name.find('/');
    return slash == std::string::npos ? std::pair{std::string(), name}
                                      : std::pair{name.substr(0, slash), name.substr(slash + 1)};
}
std::string kept_name(const std::string &pool, const std::string &file) {
    return pool + "/" + file;
}
constexpr const char *kMachineFile = "machine";

struct Inheritance {
    PoolLedger ledger;
    std::map<std::string, Fd> files;
};

}  // namespace

Answer<void> Daemon::adopt_pools() {
    auto inherited = keeper_->inherited();
    if (!inherited) return Unexpected{inherited.error()};
    const auto adopted = adopt(std::move(*inherited));
    if (adopted) return {};
    Failure failure = adopted.error();
    if (failure.code == Errc::corrupt || failure.code == Errc::version_mismatch)
        failure.message += "; to give up all pools that are kept in " + options_.runtime_dir +
                           ", end their clients and run: numacred --runtime-dir " + options_.runtime_dir +
                           " --discard-kept";
    return Unexpected{std::move(failure)};
}

Answer<void> Daemon::adopt(std::map<std::string, Fd> inherited) {
    std::map<std::string, std::map<std::string, Fd>> by_pool;
    for (auto &[name, fd] : inherited) {
        const auto [pool, file] = split_kept_name(name);
        by_pool[pool][file] = std::move(fd);
    }
    // All files are checked before anything is changed.
    std::vector<Inheritance> pools;
    std::vector<std::string> worthless;
    for (auto &[name, files] : by_pool) {
        if (name.empty()) continue;
        const auto give_up = [&worthless, &pool = name, &of = files] {
            for (const auto &file : of) worthless.push_back(kept_name(pool, file.first));
        };
        const auto ledger_file = files.find(ManagedPool::kLedgerFile);
        if (ledger_file == files.end()) {  // the daemon died keeping or dropping the files: nobody has seen that pool
            give_up();
            continue;
        }
        auto ledger = PoolLedger::open(std::move(ledger_file->second));
        if (!ledger)
            return Unexpected{Failure{ledger.error().code, "pool \"" + name + "\": " + ledger.error().message}};
        if (ledger->state() == LedgerState::making || ledger->state() == LedgerState::deleted) {
            give_up();
            continue;
        }
        const auto is_same_node = [&](const LedgerNode &kept, const MemoryNode &here) {
            return kept.os_numa_node == here.os_numa_node;
        };
        if (!std::ranges::equal(ledger->nodes(), topology_->numa_nodes(), is_same_node))
            return Unexpected{Failure{Errc::version_mismatch,
                                      "pool \"" + name + "\" was made for " + std::to_string(ledger->numa_nodes()) +
                                          " numa nodes, or others than those of the topology " + topology_->source() +
                                          " has " + std::to_string(topology_->numa_nodes().size()) +
                                          ": start with the same --topology"}};
        for (const std::string &file : ManagedPool::file_names(ledger->numa_nodes()))
            if (!files.contains(file))
                return Unexpected{Failure{Errc::corrupt, "pool \"" + name + "\": its \"" + file + "\" was not kept"}};
        pools.push_back({std::move(*ledger), std::move(files)});
    }

    const auto machine = by_pool[""].find(kMachineFile);
    auto record =
        machine == by_pool[""].end() ? MachineLedger::create() : MachineLedger::open(std::move(machine->second));
    if (!record) return Unexpected{record.error()};
    std::vector<std::shared_ptr<ManagedPool>> adopted;
    for (Inheritance &one : pools) {
        registry_.begin_after(one.ledger.last_client_id());
        auto pool = ManagedPool::adopt(std::move(one.ledger), std::move(one.files), *topology_, hugepages_);
        if (!pool) return Unexpected{pool.error()};
        adopted.push_back(destroyed_elsewhere(std::move(*pool)));
    }

    machine_ledger_.emplace(std::move(*record));
    count_reserved_pages();
    is_heir_ = true;
    for (const auto &pool : adopted) {
        const std::string &name = pool->name();
        log::info("pool adopted from the daemon before", {{"pool", name}, {"clients", pool->client_table().size()}});
        registry_.claim_name(name);
        registry_.add(pool);
        Event event;
        event.pool = name;
        event.kind = EventKind::pool_adopted;
        event.message = "pool " + name + " was taken over from the daemon before";
        registry_.events().publish(std::move(event));
    }
    for (const std::string &name : worthless) keeper_->drop(name);
    // Closes the files of worthless pools, so that the hugepages reserved for them count as idle, too.
    by_pool.clear();
    Hugepages::Pages in_use;
    for (const auto &pool : adopted) pool->count_hugepages(in_use);
    hugepages_.give_back_idle(in_use);
    // Keeps all files again: if the keeper dies, its replacement has to be given all of them.
    keeper_->keep(kMachineFile, machine_ledger_->fd());
    for (const auto &pool : registry_.all()) keep(*pool);
    return {};
}

Answer<void> Daemon::discard_kept() {
    auto inherited = keeper_->inherited();
    if (!inherited) return Unexpected{inherited.error()};
    auto &files = *inherited;
    if (const auto machine = files.find(kMachineFile); machine != files.end()) {
        // A record of another version is left alone: its hugepages stay reserved.
        if (auto record = MachineLedger::open(std::move(machine->second)); record) {
            machine_ledger_.emplace(std::move(*record));
            count_reserved_pages();
        }
    }
    log::info("what was kept is given up", {{"runtime_dir", options_.runtime_dir}, {"descriptors", files.size()}});
    is_heir_ = true;  // and there is no client to leave the pools to
    return {};
}

void Daemon::count_reserved_pages() {
    std::vector<int> os_numa_nodes;
    for (const MemoryNode &node : topology_->numa_nodes()) os_numa_nodes.push_back(node.os_numa_node);
    hugepages_.record_in(*machine_ledger_, os_numa_nodes);
}

void Daemon::keep(ManagedPool &pool) {
    // The ledger goes last: without it, a daemon that comes after a death in between gives the other files up.
    const auto files = pool.kept_files();
    for (const auto &[file, fd] : files)
        if (file != ManagedPool::kLedgerFile) keeper_->keep(kept_name(pool.name(), file), fd);
    keeper_->keep(kept_name(pool.name(), ManagedPool::kLedgerFile), files.at(ManagedPool::kLedgerFile));
}

void Daemon::let_go(const ManagedPool &pool) {
    for (const auto &[file, fd] : pool.kept_files()) keeper_->drop(kept_name(pool.name(), file));
}

void Daemon::watch_keeper() {
    const auto revive = [this] { revive_keeper(true); };
    if (keeper_->death_fd() >= 0)
        loop_->when_readable(keeper_->death_fd(), revive);
    else if (keeper_->can_be_revived())
        // The keeper could not be started: no process or descriptor is left, or its file is just being replaced.
        loop_->after(kReviveAgainAfter, revive);
}

// A holder may take seconds to start, or to fail to start. Only keeper_worker_ waits for it, and no thread waits for
// that worker.
void Daemon::revive_keeper(bool is_watching) {
    if (is_reviving_) {
        if (is_watching) loop_->after(kReviveAgainAfter, [this] { revive_keeper(true); });
        return;
    }
    is_reviving_ = true;
    keeper_worker_->post([this, is_watching] {
        keeper_->revive();
        loop_->post([this, is_watching] {
            is_reviving_ = false;
            if (is_watching) watch_keeper();
        });
    });
}

void Daemon::tell_clients() {
    for (const auto &pool : registry_.all()) {
        tell_clients_of(pool);
        publish_damage(*pool);
        look_for_stuck_worker(*pool);
    }
    if (keeper_->is_lost()) revive_keeper(false);
    loop_->after(kTellPeriod, [this] { tell_clients(); });
}

// Posts one job at a time, so a pool whose clients keep the daemon from its records is told only as often as it can be.
void Daemon::tell_clients_of(const std::shared_ptr<ManagedPool> &pool) {
    if (!being_told_.insert(pool->instance_id()).second) return;
    pool->record_worker().post([this, pool] {
        pool->tell_clients();
        // The memory of a file is read by one system call, which on some kernels waits for a process that writes the
        // file.
        const bool is_overfull = pool->is_overfull();
        const bool has_idle_caches = pool->look_for_idle_caches();
        loop_->post([this, pool, is_overfull, has_idle_caches] {
            being_told_.erase(pool->instance_id());
            if (is_overfull) punch_strays(pool);
            if (has_idle_caches) gather_cached_blocks(pool);
        });
    });
}

// Runs on the worker, behind the growth that may be the reason.
void Daemon::punch_strays(const std::shared_ptr<ManagedPool> &pool) {
    if (!punching_strays_.insert(pool->instance_id()).second) return;
    pool->worker().post([this, pool] {
        pool->punch_strays();
        loop_->post([this, id = pool->instance_id()] { punching_strays_.erase(id); });
    });
}

void Daemon::gather_cached_blocks(const std::shared_ptr<ManagedPool> &pool) {
    if (!gathering_.insert(pool->instance_id()).second) return;
    pool->worker().post([this, pool] {
        pool->gather_cached_blocks_sparingly();
        loop_->post([this, id = pool->instance_id()] { gathering_.erase(id); });
    });
}

// A client can keep the kernel from the pool's files for as long as it likes: by a write() to one of them from a page
// that never arrives, or by holes in memory that is mapped many thousand times. Then no client of this pool is reaped
// and nothing of it is resized or drained, or no process attaches to it.
void Daemon::look_for_stuck_worker(ManagedPool &pool) {
    if (pool.busy_for() < kStuckAfter) {
        if (stuck_.erase(pool.instance_id()) != 0) log::info("a pool's workers go on", {{"pool", pool.name()}});
    } else if (stuck_.insert(pool.instance_id()).second) {
        log::error(
            "the kernel lets the daemon wait for a pool's files: nobody attaches to this pool, nothing of it is reaped "
            "or resized until the client that keeps them busy ends. Other pools go on",
            {{"pool", pool.name()},
             {"seconds", std::chrono::duration_cast<std::chrono::seconds>(kStuckAfter).count()},
             {"remedy",
              "evict the pool's clients, one after the other (numacre clients, numacre evict); if that does not help, "
              "abort the FUSE connection that one of them writes from (/sys/fs/fuse/connections/N/abort)"}});
    }
}

void Daemon::watch_soft_limits() {
    loop_->post([this] {
        for (const auto &pool : registry_.all())
            if (pool->has_limits_to_watch() && watched_for_limits_.insert(pool->instance_id()).second)
                look_at_soft_limits(pool);
    });
}

void Daemon::look_at_soft_limits(const std::shared_ptr<ManagedPool> &pool) {
    pool->worker().post([this, pool] {
        const auto begun = std::chrono::steady_clock::now();
        pool->look_at_use();
        publish_news(*pool);
        autosize(pool);
        const auto scanned = std::chrono::steady_clock::now() - begun;
        const auto wait = std::max(pool->description()->spec.autosize.is_on ? kAutosizePeriod : kLookPeriod,
                                   std::chrono::ceil<std::chrono::milliseconds>(scanned * kLookShare));
        loop_->post([this, wait, id = pool->instance_id(), weak = std::weak_ptr(pool)] {
            // Decided on the loop: a call that sets a limit after this check finds that no watch runs, and begins one.
            const auto here = weak.lock();
            if (!here || !here->has_limits_to_watch()) {
                watched_for_limits_.erase(id);
                return;
            }
            loop_->after(wait, [this, id, weak] {
                if (const auto again = weak.lock())
                    look_at_soft_limits(again);
                else
                    watched_for_limits_.erase(id);
            });
        });
    });
}

// Pools are placed on the numa nodes where they are needed, but the kernel may still move them: when a client's cpuset
// is narrowed, the kernel moves the pages that the client has mapped, for everybody.
void Daemon::watch_placement() {
    if (!topology_->is_placement_needed()) return;
    for (const auto &pool : registry_.all()) {
        if (!being_placed_.insert(pool->instance_id()).second) continue;
        struct Sweep {
            std::chrono::steady_clock::duration taken{0};
            bool refused = false;
        };
        const auto sweep = std::make_shared<Sweep>();
        // One numa node a job: between the jobs the worker looks after dead clients.
        for (std::size_t i = 0; i < pool->numa_node_count(); ++i)
            pool->worker().post([pool, i, sweep] {
                if (sweep->refused) return;
                const auto begun = std::chrono::steady_clock::now();
                const auto moved = pool->node_memory(NumaNode{static_cast<std::uint8_t>(i)}).bring_home();
                sweep->taken += std::chrono::steady_clock::now() - begun;
                sweep->refused = !moved;
                if (!moved)
                    log::warn("pages that the kernel moves to other numa nodes stay there",
                              {{"pool", pool->name()}, {"numa_node", i}, {"error", moved.error().message}});
                else if (*moved != 0)
                    log::warn("pages had been moved to other numa nodes, and were moved back",
                              {{"pool", pool->name()}, {"numa_node", i}, {"pages", *moved}});
            });
        pool->worker().post([this, pool, sweep] {
            if (sweep->refused) return;  // and this pool is never looked at again
            const auto wait = std::chrono::ceil<std::chrono::milliseconds>(sweep->taken * kPlacementShare);
            loop_->post([this, id = pool->instance_id(), wait] {
                loop_->after(wait, [this, id] { being_placed_.erase(id); });
            });
        });
    }
    loop_->after(kPlacementPeriod, [this] { watch_placement(); });
}

void Daemon::publish_news(ManagedPool &pool) {
    const std::lock_guard lock(news_mutex_);
    for (Event &event : pool.take_news()) {
        log::info(event_kind_name(event.kind), {{"pool", event.pool}, {"reason", event.message}});
        registry_.events().publish(std::move(event));
    }
}

void Daemon::serve_clients(Fd listener) {
    client_objects_ = std::make_unique<ClientObjects>(*loop_, registry_, *this);
    attach_server_ = std::make_unique<AttachServer>(*loop_, *worker_, registry_, reaper_, *topology_, *client_objects_,
                                                    std::move(listener), options_.limits);
    client_objects_->watch();  // for adopted pools; without effect if there are none of clients
    watch_keeper();
    tell_clients();
    for (const auto &pool : registry_.all()) {
        reaper_.finish_predecessor(pool);
        for (const Client &client : pool->client_table())
            // A channel that stays is nobody's to watch.
            if (client.tier != wire::Tier::channel || has_departed(client)) attach_server_->adopt(pool, client);
        reaper_.end_channels(pool);
    }
    watch_soft_limits();  // for adopted pools; without effect if there are none
    watch_placement();
}

}  // namespace numacre::daemon
