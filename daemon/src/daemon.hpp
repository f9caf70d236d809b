// The whole daemon: the implementation behind the interface that the control plane sees.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "attach/attach_server.hpp"
#include "attach/client_objects.hpp"
#include "engine.hpp"
#include "memory/hugepages.hpp"
#include "memory/ledger.hpp"
#include "memory/topology.hpp"
#include "os/event_loop.hpp"
#include "os/worker.hpp"
#include "pool/pool_manager.hpp"
#include "pool/reaper.hpp"
#include "pool/registry.hpp"
#include "survival/keeper.hpp"

namespace numacre::daemon {

class Daemon final : public PoolManager {
public:
    struct Options {
        std::string runtime_dir;
        bool reserve_hugepages = true;
        AttachServer::Limits limits;
        std::uint64_t descriptors_for_pools = std::numeric_limits<std::uint64_t>::max();
    };
    // A pool's descriptors: ledger and pool region, and for each numa node metadata and frames.
    static std::uint64_t descriptors_of_a_pool(std::size_t numa_nodes) { return 2 + 2 * numa_nodes; }

    Daemon(Options options, std::unique_ptr<Topology> topology, std::unique_ptr<EventLoop> loop,
           std::unique_ptr<Keeper> keeper);
    // Ends pools without clients, and gives reserved hugepages back to the kernel. Clients go on with the memory that
    // they have mapped: if there are any, the keeper keeps all pools for the next daemon, until the last of these
    // clients has ended.
    ~Daemon() override;

    EventLoop &loop() { return *loop_; }
    // Takes over the pools that an earlier daemon has left with the keeper. All or nothing: on failure (another layout
    // version, other numa nodes, a missing file) nothing has been changed. To be called first, from the loop's thread.
    Answer<void> adopt_pools();
    // The alternative to adopt_pools(): gives up the keeper's pools. Destroy the daemon next.
    Answer<void> discard_kept();
    bool has_pool(const std::string &name) { return static_cast<bool>(registry_.find(name)); }
    // Makes a pool that is there what a configuration wants, as far as that can change in use. Says each difference at
    // warning level. keys: the attributes that the configuration names; the pool keeps its others. Any thread but the
    // loop's while that runs.
    void reconcile(const PoolSpec &wanted, std::span<const std::string> keys);
    // From the loop's thread, before run(). From here on the daemon looks after adopted clients.
    void serve_clients(Fd listener);
    // The address at which the metrics are really served, known only once they are served.
    void set_metrics_address(std::string address);
    // Calls that wait for clients to go stop waiting. To be called before the control plane is stopped.
    void begin_shutdown() { stopping_.store(true, std::memory_order_relaxed); }  // relaxed: polled

    std::vector<std::string> pool_names() override;
    Answer<PoolStatus> pool_status(const std::string &pool) override;
    Answer<void> create_pool(const PoolSpec &spec) override;
    Answer<void> delete_pool(const std::string &pool, Deletion deletion) override;
    Answer<void> resize(const std::string &pool, NumaNode node, std::uint64_t online_bytes, bool dry_run,
                        const std::function<bool(const ResizeStep &)> &progress) override;
    Answer<DrainStatus> drain_chunk(const std::string &pool, NumaNode node, std::uint64_t chunk, bool undo) override;
    Answer<std::vector<ClientStatus>> clients(const std::string &pool) override;
    Answer<std::vector<NameStatus>> names(const std::string &pool) override;
    Answer<void> remove_name(const std::string &pool, const NameText &name) override;
    Answer<std::vector<ChannelStatus>> channels(const std::string &pool) override;
    Answer<std::uint32_t> remove_channel(const std::string &pool, const std::string &name, bool ends) override;
    Answer<BlockList> blocks(const std::string &pool, std::uint32_t client_id, std::uint32_t limit) override;
    Answer<void> evict(std::uint32_t client_id, std::chrono::milliseconds grace) override;
    Answer<void> set_quota(const Holder &holder, std::uint64_t quota_bytes, std::uint64_t soft_bytes) override;
    Answer<void> reserve(const Holder &holder, std::uint64_t bytes) override;
    Answer<PoolSpec> attributes(const std::string &pool) override;
    Answer<PoolSpec> set_attributes(const std::string &pool, const AttributeChanges &changes) override;
    Answer<OccupancyMap> map(const std::string &pool, NumaNode node, std::uint32_t cells) override;
    MachineStatus machine() override;
    DaemonTotals totals() override;
    std::shared_ptr<void> subscribe(std::function<void(const Event &)> handler) override;

private:
    // A job of a pool's worker takes a second at most, not counting the time that the kernel makes it wait.
    static constexpr std::chrono::milliseconds kStuckAfter{10'000};
    // A change of a pool whose workers the kernel lets wait is refused. then: the rest of the remedy.
    static std::optional<Failure> refusal_if_stuck(const ManagedPool &pool, const char *then);

    Answer<std::shared_ptr<ManagedPool>> make_pool(const PoolSpec &spec);
    std::shared_ptr<ManagedPool> destroyed_elsewhere(std::shared_ptr<ManagedPool> pool);
    Answer<void> end_clients(const std::shared_ptr<ManagedPool> &pool, Deletion deletion);
    void keep(ManagedPool &pool);
    void let_go(const ManagedPool &pool);
    void watch_keeper();
    void revive_keeper(bool is_watching);
    void tell_clients();
    void tell_clients_of(const std::shared_ptr<ManagedPool> &pool);
    void publish_damage(ManagedPool &pool);
    void punch_strays(const std::shared_ptr<ManagedPool> &pool);
    void gather_cached_blocks(const std::shared_ptr<ManagedPool> &pool);
    // Makes sure that soft quotas and low watermarks are checked for as long as there are any. Any thread.
    void watch_soft_limits();
    void look_at_soft_limits(const std::shared_ptr<ManagedPool> &pool);
    void watch_placement();
    void look_for_stuck_worker(ManagedPool &pool);
    void publish_news(ManagedPool &pool);
    // The pool of the client, or the pool that is named.
    Answer<std::shared_ptr<ManagedPool>> pool_of(const Holder &holder);
    // Does what the pool's policy wants. From the pool's worker.
    void autosize(const std::shared_ptr<ManagedPool> &pool);
    void note_resize(const ManagedPool &pool, NumaNode node, std::uint64_t before, std::uint64_t after,
                     const Answer<void> &result, const std::string &by_whom,
                     std::chrono::steady_clock::time_point begun);
    // The pool of that name, or all pools if the name is empty.
    Answer<std::vector<std::shared_ptr<ManagedPool>>> chosen_pools(const std::string &name);
    void count_reserved_pages();
    // Takes over the pools whose files the keeper has returned. All or nothing, as adopt_pools().
    Answer<void> adopt(std::map<std::string, Fd> inherited);

    Options options_;
    std::chrono::system_clock::time_point started_ = std::chrono::system_clock::now();
    std::unique_ptr<Topology> topology_;
    std::unique_ptr<Keeper> keeper_;
    bool is_heir_ = false;                         // the pools in the keeper are ours
    std::optional<MachineLedger> machine_ledger_;  // before hugepages_, which writes in it
    Hugepages hugepages_;
    // Destroys pools, whichever thread had the last reference: that takes long, and uses the members above.
    std::unique_ptr<Worker> destroyer_;
    std::unique_ptr<EventLoop> loop_;
    Registry registry_;
    // Workers for jobs that belong to no pool. Both are ended by hand, before all members that their jobs use.
    std::unique_ptr<Worker> worker_, keeper_worker_;
    Reaper reaper_;
    std::unique_ptr<ClientObjects> client_objects_;  // ended by hand, as the workers
    std::unique_ptr<AttachServer> attach_server_;
    std::atomic<bool> stopping_{false};
    // Used by the loop's thread only. Instance ids of pools whose worker has such a job, or will have it by a timer.
    std::set<std::uint64_t> watched_for_limits_, punching_strays_, gathering_, being_placed_, being_told_, stuck_;
    bool is_reviving_ = false;  // the loop's thread only
    std::mutex deleted_mutex_;
    std::vector<std::weak_ptr<ManagedPool>> deleted_;  // guarded by deleted_mutex_: their workers may still have a job
    // Guarded by deleted_mutex_: instance ids of deleted pools whose memory has not gone back yet.
    std::set<std::uint64_t> being_destroyed_;
    std::condition_variable destroyed_;  // with deleted_mutex_: being_destroyed_ has become smaller
    std::mutex news_mutex_;              // keeps the order: news that is found first is published first
    std::mutex metrics_address_mutex_;
    std::string metrics_address_;  // guarded by metrics_address_mutex_
};

}  // namespace numacre::daemon
