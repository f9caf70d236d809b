#include "daemon.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <system_error>
#include <thread>
#include <utility>

#include "base/bytes.hpp"
#include "os/log.hpp"
#include "pool/sizing.hpp"
#include "spec/pool_spec.hpp"

namespace numacre::daemon {

namespace {

// A deletion by force: how long the clients get between SIGTERM and SIGKILL, and altogether.
constexpr std::chrono::milliseconds kForceGrace{2000};
constexpr std::chrono::milliseconds kForcePatience{10'000};
constexpr std::chrono::milliseconds kForcePoll{20};
constexpr std::chrono::milliseconds kReviveAgainAfter{2000};
// How long a deletion waits for the memory to be back.
constexpr std::chrono::milliseconds kDestroyPatience{5000};
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
// A job of a pool's worker takes a second at most, not counting the time that the kernel makes it wait.
constexpr std::chrono::milliseconds kStuckAfter{10'000};

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
            if (!client.peer.pidfd && client.state != ClientState::recovering) can_be_watched = false;
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
        loop_->post([this, pool, is_overfull] {
            being_told_.erase(pool->instance_id());
            if (is_overfull) punch_strays(pool);
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
    attach_server_ = std::make_unique<AttachServer>(*loop_, *worker_, registry_, reaper_, *topology_,
                                                    std::move(listener), options_.limits);
    watch_keeper();
    tell_clients();
    for (const auto &pool : registry_.all()) {
        reaper_.finish_predecessor(pool);
        for (const Client &client : pool->client_table()) attach_server_->adopt(pool, client);
    }
    watch_soft_limits();  // for adopted pools; without effect if there are none
    watch_placement();
}

void Daemon::set_metrics_address(std::string address) {
    const std::lock_guard lock(metrics_address_mutex_);
    metrics_address_ = std::move(address);
}

std::vector<std::string> Daemon::pool_names() {
    return registry_.names();
}

Answer<PoolStatus> Daemon::pool_status(const std::string &name) {
    const auto pool = registry_.find(name);
    if (!pool) return Unexpected{pool.error()};
    auto status = (*pool)->status_in_time();
    publish_news(**pool);
    publish_damage(**pool);
    return status;
}

void Daemon::publish_damage(ManagedPool &pool) {
    auto reason = pool.take_news_of_damage();
    if (!reason) return;
    Event event;
    event.pool = pool.name();
    event.kind = EventKind::pool_corrupt;
    event.message = std::move(*reason);
    registry_.events().publish(std::move(event));
}

std::shared_ptr<ManagedPool> Daemon::destroyed_elsewhere(std::shared_ptr<ManagedPool> pool) {
    ManagedPool *const address = pool.get();
    return {address, [this, pool = std::move(pool)](ManagedPool *) mutable {
                destroyer_->post([this, pool = std::move(pool)]() mutable {
                    const std::uint64_t id = pool->instance_id();
                    pool.reset();
                    {
                        const std::lock_guard lock(deleted_mutex_);
                        being_destroyed_.erase(id);
                    }
                    destroyed_.notify_all();
                });
            }};
}

Answer<std::shared_ptr<ManagedPool>> Daemon::make_pool(const PoolSpec &spec) {
    try {
        auto made = ManagedPool::create(spec, *topology_, hugepages_);
        if (!made) return made;
        return destroyed_elsewhere(std::move(*made));
    } catch (const std::system_error &failure) {
        return Unexpected{Failure{
            Errc::too_many_clients,
            std::string("the daemon can have no thread for it (") + failure.what() +
                "): raise the limit on threads (TasksMax=, pids.max, ulimit -u), or on address space (ulimit -v)"}};
    } catch (const std::bad_alloc &) {
        return Unexpected{Failure{Errc::out_of_frames,
                                  "the daemon has no memory left for it: free some, or raise its "
                                  "limit (MemoryMax=, ulimit -v, vm.overcommit_memory)"}};
    }
}

Answer<void> Daemon::create_pool(const PoolSpec &spec) {
    const auto geometry = geometry_of(spec);
    if (!geometry) return Unexpected{geometry.error()};
    const std::uint64_t of_a_pool = descriptors_of_a_pool(topology_->numa_nodes().size());
    if (const std::uint64_t pools = options_.descriptors_for_pools / of_a_pool; registry_.names().size() >= pools)
        return Unexpected{Failure{Errc::too_many_clients,
                                  "the daemon's open file limit has room for " + std::to_string(pools) + " pools of " +
                                      std::to_string(topology_->numa_nodes().size()) +
                                      " numa nodes beside its connections: raise the limit (LimitNOFILE=, ulimit -Hn), "
                                      "lower --max-connections, or delete a pool"}};
    if (!registry_.claim_name(spec.name))
        return Unexpected{Failure{Errc::already_exists, "there is a pool named \"" + spec.name +
                                                            "\" already: use another name, or delete it"}};
    auto pool = make_pool(spec);
    if (!pool) {
        registry_.release_name(spec.name);
        return Unexpected{Failure{pool.error().code, "pool \"" + spec.name + "\": " + pool.error().message}};
    }
    keep(**pool);
    (*pool)->ledger().set_state(LedgerState::serving);
    registry_.add(*pool);
    watch_soft_limits();
    for (std::size_t i = 0; i < (*pool)->numa_node_count(); ++i) {
        const NodeMemory &memory = (*pool)->node_memory(NumaNode{static_cast<std::uint8_t>(i)});
        log::info("pool ready", {{"pool", spec.name},
                                 {"numa_node", i},
                                 {"os_numa_node", memory.os_numa_node()},
                                 {"capacity", format_bytes(spec.capacity_bytes)},
                                 {"online", format_bytes(memory.online_bytes())},
                                 {"frame", format_bytes(spec.frame_bytes)},
                                 {"largest", format_bytes(spec.largest_block_bytes)},
                                 {"backing", std::string(backing_name(memory.data().backing()))}});
    }
    Event event;
    event.pool = spec.name;
    event.kind = EventKind::pool_created;
    event.message = "pool " + spec.name + " serves " + format_node_bytes(spec) + " a numa node";
    event.bytes = spec.online_bytes;
    registry_.events().publish(std::move(event));
    return {};
}

namespace {

std::string name_of(const Client &client, const ManagedPool &pool) {
    // A process that /proc does not show has no name.
    const std::string comm = client.peer.comm.empty() ? "" : client.peer.comm + ", ";
    return "client " + std::to_string(client.id) + " (" + comm + "pid " + std::to_string(client.peer.pid) +
           ") of pool \"" + pool.name() + "\"";
}

Failure does_not_end(const Client &client, const ManagedPool &pool) {
    return {Errc::timed_out, name_of(client, pool) + " does not end: " +
                                 why_beyond_signals(client.peer).value_or("see why") + ", then delete the pool again"};
}

}  // namespace

Answer<void> Daemon::end_clients(ManagedPool &pool) {
    for (const Client &client : pool.client_table()) attach_server_->evict(client.id, kForceGrace);
    const auto deadline = std::chrono::steady_clock::now() + kForcePatience;
    for (;;) {
        const std::vector<Client> left = pool.client_table();
        if (left.empty()) return {};
        if (stopping_.load(std::memory_order_relaxed))  // relaxed: seen at the next turn at the latest
            return Unexpected{
                Failure{Errc::daemon_gone, "the daemon is being stopped: delete the pool when it is back"}};
        if (std::chrono::steady_clock::now() >= deadline) return Unexpected{does_not_end(left.front(), pool)};
        std::this_thread::sleep_for(kForcePoll);
    }
}

Answer<void> Daemon::delete_pool(const std::string &name, bool force) {
    auto pool = registry_.find(name);
    if (!pool) return Unexpected{pool.error()};
    if (!(*pool)->close_door(force)) {
        const std::vector<Client> table = (*pool)->client_table();
        if (table.empty())
            return Unexpected{
                Failure{Errc::contended, "pool \"" + name + "\" is being deleted already: wait for that"}};
        return Unexpected{Failure{Errc::contended, "pool \"" + name + "\" has " + std::to_string(table.size()) +
                                                       " clients, the first is " + table.front().peer.comm + " (pid " +
                                                       std::to_string(table.front().peer.pid) +
                                                       "): end them, or delete by force"}};
    }
    if (auto ended = end_clients(**pool); !ended) {
        (*pool)->open_door();
        return ended;
    }
    const std::uint64_t id = (*pool)->instance_id();
    {
        // Waits for a resize that is under way on another thread.
        const std::lock_guard lock((*pool)->resize_mutex);
        (*pool)->announce_deletion();
        let_go(**pool);
        registry_.remove(name);
        const std::lock_guard lock_of_deleted(deleted_mutex_);
        std::erase_if(deleted_, [](const auto &deleted) { return deleted.expired(); });
        deleted_.push_back(*pool);
        being_destroyed_.insert(id);
    }
    // The frames are punched: an observer that has detached may keep a descriptor for as long as it likes.
    (*pool)->worker().post([pool = *pool] { pool->give_back_frames(); });
    log::info("pool deleted", {{"pool", name}});
    Event event;
    event.pool = name;
    event.kind = EventKind::pool_deleted;
    event.message = "pool " + name + " was deleted";
    registry_.events().publish(std::move(event));
    // The next pool may need the memory of this one. If other threads look at this pool for a while, or its worker is
    // stuck, the memory comes back later.
    pool->reset();
    std::unique_lock lock(deleted_mutex_);
    destroyed_.wait_for(lock, kDestroyPatience, [&] { return !being_destroyed_.contains(id); });
    return {};
}

Answer<void> Daemon::resize(const std::string &name, NumaNode node, std::uint64_t online_bytes, bool dry_run,
                            const std::function<bool(const ResizeStep &)> &progress) {
    const auto pool = registry_.find(name);
    if (!pool) return Unexpected{pool.error()};
    const ManagedPool::Turn turn(**pool);
    if (auto ours = turn.check(); !ours) return ours;
    const std::uint64_t before = (*pool)->has(node) ? (*pool)->node_memory(node).online_bytes() : 0;
    const auto begun = std::chrono::steady_clock::now();
    const auto result = resize_numa_node(**pool, node, online_bytes, dry_run, progress);
    if (dry_run || !(*pool)->has(node)) return result;

    note_resize(**pool, node, before, (*pool)->node_memory(node).online_bytes(), result, {}, begun);
    return result;
}

void Daemon::note_resize(const ManagedPool &pool, NumaNode node, std::uint64_t before, std::uint64_t after,
                         const Answer<void> &result, const std::string &by_whom,
                         std::chrono::steady_clock::time_point begun) {
    registry_.count(result            ? &DaemonTotals::resize_ok
                    : after != before ? &DaemonTotals::resize_partial
                                      : &DaemonTotals::resize_failed);
    const auto took = std::chrono::steady_clock::now() - begun;
    log::info("pool resized", {{"pool", pool.name()},
                               {"numa_node", node.value},
                               {"before", format_bytes(before)},
                               {"after", format_bytes(after)},
                               {"microseconds", std::chrono::duration_cast<std::chrono::microseconds>(took).count()},
                               {"result", by_whom + (result ? "ok" : result.error().message)}});
    if (after == before) return;
    Event event;
    event.pool = pool.name();
    event.kind = EventKind::resized;
    event.message = by_whom + "numa node " + std::to_string(node.value) + ": " + format_bytes(before) + " -> " +
                    format_bytes(after) + " online";
    event.node = node.value;
    event.bytes = after;
    registry_.events().publish(std::move(event));
}

void Daemon::autosize(const std::shared_ptr<ManagedPool> &pool) {
    for (const ManagedPool::Wish &wish : pool->take_autosize_wishes()) {
        pool->post_sizing([this, pool, wish] {
            const auto begun = std::chrono::steady_clock::now();
            const auto go_on = [this](const ResizeStep &) {
                return !stopping_.load(std::memory_order_relaxed);  // relaxed: seen at the next step at the latest
            };
            const auto result = resize_if_idle(*pool, wish.numa_node, wish.from_bytes, wish.to_bytes, go_on);
            const std::uint64_t now = pool->node_memory(wish.numa_node).online_bytes();
            if (!result) return;  // an operator's resize came first, or the memory is reserved: both take precedence
            registry_.count(!*result                          ? &DaemonTotals::autosize_failed
                            : wish.to_bytes > wish.from_bytes ? &DaemonTotals::autosize_grown
                                                              : &DaemonTotals::autosize_shrunk);
            note_resize(*pool, wish.numa_node, wish.from_bytes, now, *result, "autosize: ", begun);
        });
    }
}

Answer<DrainStatus> Daemon::drain_chunk(const std::string &name, NumaNode node, std::uint64_t chunk, bool undo) {
    const auto pool = registry_.find(name);
    if (!pool) return Unexpected{pool.error()};
    const ManagedPool::Turn turn(**pool);
    if (auto ours = turn.check(); !ours) return Unexpected{ours.error()};
    auto status = numacre::daemon::drain_chunk(**pool, node, chunk, undo);
    if (status && status->draining) reaper_.watch_drains(*pool);
    return status;
}

Answer<std::vector<std::shared_ptr<ManagedPool>>> Daemon::chosen_pools(const std::string &name) {
    if (name.empty()) return registry_.all();
    auto pool = registry_.find(name);
    if (!pool) return Unexpected{pool.error()};
    return std::vector{std::move(*pool)};
}

Answer<std::vector<ClientStatus>> Daemon::clients(const std::string &name) {
    const auto pools = chosen_pools(name);
    if (!pools) return Unexpected{pools.error()};
    std::vector<ClientStatus> statuses;
    for (const auto &pool : *pools) {
        std::ranges::move(pool->client_statuses_in_time(), std::back_inserter(statuses));
        publish_news(*pool);
    }
    return statuses;
}

Answer<BlockList> Daemon::blocks(const std::string &name, std::uint32_t client_id, std::uint32_t limit) {
    const auto pools = chosen_pools(name);
    if (!pools) return Unexpected{pools.error()};
    const auto has_client = [&](const auto &pool) { return pool->find_client(client_id).has_value(); };
    if (client_id != 0 && std::ranges::none_of(*pools, has_client)) return Unexpected{no_such_client(client_id)};
    OldestBlocks oldest(limit);
    for (const auto &pool : *pools) pool->add_oldest_blocks(client_id, oldest);
    return std::move(oldest).take();
}

Answer<void> Daemon::evict(std::uint32_t client_id, std::chrono::milliseconds grace) {
    for (const auto &pool : registry_.all()) {
        const auto client = pool->find_client(client_id);
        if (!client) continue;
        if (const auto reason = why_beyond_signals(client->peer))
            return Unexpected{Failure{Errc::access_denied, name_of(*client, *pool) + " cannot be evicted: " + *reason}};
        attach_server_->evict(client_id, std::max(grace, std::chrono::milliseconds{0}));
        return {};
    }
    return Unexpected{no_such_client(client_id)};
}

Answer<std::shared_ptr<ManagedPool>> Daemon::pool_of(const Holder &holder) {
    if (holder.kind != Holder::Kind::client) return registry_.find(holder.pool);
    for (const auto &pool : registry_.all())
        if (pool->find_client(holder.client_id)) return pool;
    return Unexpected{no_such_client(holder.client_id)};
}

Answer<void> Daemon::set_quota(const Holder &holder, std::uint64_t quota_bytes, std::uint64_t soft_bytes) {
    const auto pool = pool_of(holder);
    if (!pool) return Unexpected{pool.error()};
    const auto set = (*pool)->set_quota(holder, quota_bytes, soft_bytes);
    if (set) watch_soft_limits();
    publish_news(**pool);
    return set;
}

Answer<void> Daemon::reserve(const Holder &holder, std::uint64_t bytes) {
    const auto pool = pool_of(holder);
    if (!pool) return Unexpected{pool.error()};
    const auto reserved = (*pool)->reserve(holder, bytes);
    if (reserved) watch_soft_limits();
    publish_news(**pool);
    return reserved;
}

Answer<PoolSpec> Daemon::attributes(const std::string &name) {
    const auto pool = registry_.find(name);
    if (!pool) return Unexpected{pool.error()};
    return (*pool)->described();
}

Answer<PoolSpec> Daemon::set_attributes(const std::string &name, const AttributeChanges &changes) {
    const auto pool = registry_.find(name);
    if (!pool) return Unexpected{pool.error()};
    const ManagedPool::Turn turn(**pool);
    if (auto ours = turn.check(); !ours) return Unexpected{ours.error()};
    if ((*pool)->busy_for() >= kStuckAfter)
        return Unexpected{
            Failure{Errc::timed_out, "the kernel makes the daemon wait for the files of pool \"" + name +
                                         "\": evict the client that keeps them busy, then set the attributes again"}};
    const PoolSpec before = (*pool)->described();
    auto after = (*pool)->change(changes);
    if (!after) return after;
    for (const auto &change : changes)
        if (const PoolAttribute *const attribute = find_pool_attribute(change.first))
            log::info("pool attribute set", {{"pool", name},
                                             {"attribute", change.first},
                                             {"before", attribute->format(before)},
                                             {"after", attribute->format(*after)}});
    watch_soft_limits();
    reaper_.look_at_seized(*pool);
    return after;
}

namespace {

struct PossibleChanges {
    std::vector<const PoolAttribute *> made;
    std::vector<std::pair<const PoolAttribute *, std::string>> refused;  // and the reason
};

// As many of the changes as can be made together. A key that is refused keeps no other key from its value: access that
// the configuration narrows does not stay wide because of a number of clients that cannot be had.
PossibleChanges possible_changes(const ManagedPool &pool, const PoolSpec &wanted,
                                 const std::vector<const PoolAttribute *> &differing) {
    const auto check = [&](const std::vector<const PoolAttribute *> &attributes) {
        AttributeChanges changes;
        for (const PoolAttribute *const attribute : attributes)
            changes.emplace(attribute->key, attribute->format(wanted));
        return pool.check_change(changes);
    };
    if (check(differing)) return {differing, {}};
    PossibleChanges possible;
    // Again, as long as some change is added: a quota may have to wait for its soft quota.
    for (auto rest = differing; !rest.empty();) {
        possible.refused.clear();
        std::vector<const PoolAttribute *> left;
        for (const PoolAttribute *const attribute : rest) {
            possible.made.push_back(attribute);
            const auto checked = check(possible.made);
            if (checked) continue;
            possible.made.pop_back();
            possible.refused.emplace_back(attribute, checked.error().message);
            left.push_back(attribute);
        }
        if (left.size() == rest.size()) break;
        rest = std::move(left);
    }
    return possible;
}

}  // namespace

void Daemon::reconcile(const PoolSpec &wanted, std::span<const std::string> keys) {
    const auto pool = registry_.find(wanted.name);
    if (!pool) return;
    const PoolSpec is = (*pool)->described();
    const auto keeps = [&wanted, &is](const PoolAttribute &attribute, const std::string &reason) {
        log::warn("a pool differs from the configuration: it keeps its value",
                  {{"pool", wanted.name},
                   {"attribute", std::string(attribute.key)},
                   {"value", attribute.format(is)},
                   {"configured", attribute.format(wanted)},
                   {"reason", reason}});
    };
    std::vector<const PoolAttribute *> differing;
    for (const std::string &key : keys) {
        const PoolAttribute *const attribute = find_pool_attribute(key);
        // Its size is what resizes have made of it since it began.
        if (attribute == nullptr || key == "online") continue;
        const std::string configured = attribute->format(wanted);
        if (configured == attribute->format(is)) continue;
        if (attribute->is_changeable()) {
            differing.push_back(attribute);
        } else {
            keeps(*attribute, std::string(attribute->fixed_because));
        }
    }
    // In one call: access that is narrowed by several keys is never wide in between, and limits that fit together are
    // not compared with the old ones.
    const auto [changing, refused] = possible_changes(**pool, wanted, differing);
    for (const auto &[attribute, reason] : refused) keeps(*attribute, reason);
    if (changing.empty()) return;
    AttributeChanges changes;
    for (const PoolAttribute *const attribute : changing) changes.emplace(attribute->key, attribute->format(wanted));
    const auto set = set_attributes(wanted.name, changes);
    for (const PoolAttribute *const attribute : changing) {
        if (!set)
            keeps(*attribute, set.error().message);
        else
            log::warn("a pool differed from the configuration: it has the configured value now",
                      {{"pool", wanted.name},
                       {"attribute", std::string(attribute->key)},
                       {"before", attribute->format(is)},
                       {"configured", attribute->format(wanted)}});
    }
}

Answer<OccupancyMap> Daemon::map(const std::string &name, NumaNode node, std::uint32_t cells) {
    const auto pool = registry_.find(name);
    if (!pool) return Unexpected{pool.error()};
    if (!(*pool)->has(node))
        return Unexpected{Failure{Errc::no_such_node, "pool \"" + name + "\" has no numa node " +
                                                          std::to_string(node.value) + ": use 0 to " +
                                                          std::to_string((*pool)->numa_node_count() - 1)}};
    return (*pool)->occupancy(node, cells);
}

MachineStatus Daemon::machine() {
    MachineStatus status;
    for (std::size_t i = 0; i < topology_->numa_nodes().size(); ++i) {
        const MemoryNode &known = topology_->numa_nodes()[i];
        const NumaNode numa_node{static_cast<std::uint8_t>(i)};
        MachineNode node;
        node.os_numa_node = known.os_numa_node;
        node.total_bytes = known.total_bytes;
        node.free_bytes = std::min(topology_->available_bytes(numa_node), topology_->unbooked_bytes(numa_node));
        node.hugepages = hugepages_.pools(known.os_numa_node);
        node.cpus = known.cpus;
        node.distances = known.distances;
        status.nodes.push_back(std::move(node));
    }
    status.topology_source = topology_->source();
    status.started = started_;
    status.runtime_dir = options_.runtime_dir;
    const std::lock_guard lock(metrics_address_mutex_);
    status.metrics_address = metrics_address_;
    return status;
}

DaemonTotals Daemon::totals() {
    DaemonTotals totals = registry_.totals();
    totals.log_messages_dropped = log::dropped();
    return totals;
}

std::shared_ptr<void> Daemon::subscribe(std::function<void(const Event &)> handler) {
    return registry_.events().subscribe(std::move(handler));
}

}  // namespace numacre::daemon
