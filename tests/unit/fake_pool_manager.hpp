// A PoolManager without a daemon: answers what the test puts in, remembers what it was asked.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "pool/pool_manager.hpp"

namespace numacre::daemon {

// Golden numbers worked out by hand: n = {0: 3, 1: 1, 3: 2}, F = 21 frames, B = 6 blocks, in a pool of orders 0 .. 5.
inline PoolStatus golden_pool(const std::string &name = "default") {
    PoolStatus pool;
    pool.spec.name = name;
    pool.spec.capacity_bytes = 64 * 4096;
    pool.spec.largest_block_bytes = 32 * 4096;
    pool.spec.access = {1000, 100, 0640};
    pool.owner = "alice";
    pool.group = "users";
    pool.geometry = make_geometry(4096, 32 * 4096, 64 * 4096);
    pool.clients = 1;
    pool.clients_reaped = 5;
    pool.reclaimed_bytes = 12288;
    pool.last_recovery_seconds = 0.25;
    pool.recoveries_waiting = 1;
    pool.names = 3;
    pool.stale_for = std::chrono::milliseconds{2500};
    pool.looking_for = std::chrono::milliseconds{1250};
    pool.spec.reclaim = {Reclaim::Kind::quarantine, std::chrono::seconds(30)};
    pool.spec.low_watermark_bytes = 22 * 4096;
    pool.spec.policy = {PolicyMode::interleave, 0b101};
    pool.quota_bytes = 40 * 4096;
    pool.soft_quota_bytes = 30 * 4096;
    pool.reserved_bytes = 5 * 4096;
    pool.peak_client_bytes = 45 * 4096;
    pool.users = {{{4294967000, 20 * 4096, 10 * 4096, 6 * 4096}, 43 * 4096, 1}};
    pool.scan_seconds = 0.125;
    pool.created = std::chrono::system_clock::time_point{std::chrono::milliseconds{1'700'000'000'250}};

    NodeStatus first;
    first.node = NumaNode{0};
    first.os_numa_node = 2;
    first.backing = wire::Backing::thp;
    first.page_bytes = 2 << 20;
    first.backing_note = "no hugepages are free";
    first.capacity_bytes = 64 * 4096;
    first.online_bytes = 64 * 4096;
    first.metadata_bytes = 40960;
    first.metadata_resident_bytes = 8192;
    first.cached_bytes = 3 * 4096;
    first.quarantined_bytes = 2 * 4096;
    first.is_below_watermark = true;
    first.peak_used_bytes = 50 * 4096;
    first.snapshot.capacity_frames = 64;
    first.snapshot.free_frames = 21;
    first.snapshot.used_frames = 43;
    first.snapshot.free_blocks[0] = 3;
    first.snapshot.free_blocks[1] = 1;
    first.snapshot.free_blocks[3] = 2;
    first.snapshot.live_blocks[0] = 43;
    first.snapshot.granted_bytes = 40000;
    first.snapshot.requested_bytes = 30000;
    first.counters.allocations[0] = 1000;
    first.counters.allocations[5] = 7;
    first.counters.frees[0] = 957;
    first.counters.failures = {11, 12, 13, 14};
    first.counters.cas_retries = 21;
    first.counters.numa_hit = 22;
    first.counters.numa_miss = 23;
    first.counters.numa_foreign = 24;
    first.counters.interleave_hit = 25;
    first.counters.local_node = 26;
    first.counters.other_node = 27;
    first.counters.takes = 25;
    first.counters.hand_offs = 28;
    first.waiting_threads = 29;

    NodeStatus second;
    second.node = NumaNode{1};
    second.os_numa_node = 5;
    second.backing = wire::Backing::hugetlb;
    second.page_bytes = 2 << 20;
    second.capacity_bytes = 64 * 4096;
    second.online_bytes = 32 * 4096;
    second.snapshot.capacity_frames = 64;
    second.snapshot.offline_frames = 32;
    second.snapshot.used_frames = 32;  // nothing free

    pool.nodes = {first, second};
    return pool;
}

inline ClientStatus golden_client() {
    ClientStatus client;
    client.client_id = 17;
    client.pool = "default";
    client.pid = 4242;
    client.uid = 1000;
    client.gid = 100;
    client.comm = "relay";
    client.cgroup = "/user.slice";
    client.used_bytes = 43 * 4096;
    client.blocks = 43;
    client.quota_bytes = 1 << 20;
    client.soft_quota_bytes = 1 << 19;
    client.reserved_bytes = 1 << 18;
    client.threads = 3;
    client.state = "active";
    client.waits_for = 8;
    client.oldest_held_for = std::chrono::seconds{90};
    client.quarantine_reason = QuarantineReason::pin_time;
    client.quarantine_left = std::chrono::seconds{3};
    return client;
}

inline ChannelStatus golden_channel() {
    ChannelStatus channel;
    channel.pool = "default";
    channel.name = "frames";
    channel.client_id = 21;
    channel.uid = 1000;
    channel.stays = "always";
    channel.shape = {1024, 32, 16};
    channel.figures.waiting = 900;
    channel.figures.returned = 24;
    channel.figures.messages = 924;
    channel.figures.sent = 5000;
    channel.figures.received = 4100;
    channel.figures.redelivered = 7;
    channel.figures.dropped = 30;
    channel.figures.senders_sleep = true;
    channel.waiting_bytes = 924 * 4096;
    channel.oldest_waits_for = std::chrono::seconds{75};
    channel.parties = {{17, 4242, "relay", 3, 2, 1}, {18, 4243, "bad\xff\x1b[2Jname", 1, 1, 1}};
    return channel;
}

inline ChannelStatus golden_broadcast() {
    ChannelStatus channel;
    channel.pool = "default";
    channel.name = "news";
    channel.client_id = 22;
    channel.stays = "while needed";
    channel.shape = {64, 8, 16, ChannelKind::broadcast};
    channel.figures.waiting = 500;
    channel.figures.sent = 6000;
    channel.figures.received = 11000;
    channel.figures.overtaken = 44;
    channel.parties = {{17, 4242, "relay", 1, 0, 1}};
    return channel;
}

class FakePoolManager final : public PoolManager {
public:
    std::vector<std::string> pool_names() override {
        const std::scoped_lock lock{mutex_};
        std::vector<std::string> names;
        for (const auto &[name, pool] : pools_) names.push_back(name);
        return names;
    }
    Answer<PoolStatus> pool_status(const std::string &pool) override {
        const std::scoped_lock lock{mutex_};
        if (failure_) return Unexpected{*failure_};
        if (pool == unknown_) return Unexpected{Failure{Errc::timed_out, "it cannot be looked at"}};
        if (const auto found = pools_.find(pool); found != pools_.end()) return found->second;
        return Unexpected{no_such_pool(pool)};
    }
    Answer<PoolSpec> attributes(const std::string &pool) override {
        const auto status = pool_status(pool);
        if (!status) return Unexpected{status.error()};
        PoolSpec spec = status->spec;
        spec.online_bytes = spec.capacity_bytes;
        spec.backing = wire::Backing::small_pages;  // of which the golden pool has whole ones
        spec.quota_bytes = status->quota_bytes;
        spec.soft_quota_bytes = status->soft_quota_bytes;
        return spec;
    }
    Answer<PoolSpec> set_attributes(const std::string &pool, const AttributeChanges &changes) override {
        const auto spec = attributes(pool);
        if (!spec) return spec;
        auto after = changed(*spec, changes);
        if (!after) return after;
        const std::scoped_lock lock{mutex_};
        PoolStatus &status = pools_.at(pool);
        status.spec = *after;
        status.quota_bytes = after->quota_bytes;
        status.soft_quota_bytes = after->soft_quota_bytes;
        return after;
    }
    Answer<void> create_pool(const PoolSpec &spec) override {
        const std::scoped_lock lock{mutex_};
        if (failure_) return Unexpected{*failure_};
        if (pools_.contains(spec.name))
            return Unexpected{Failure{Errc::already_exists, "there is a pool named \"" + spec.name + "\" already"}};
        PoolStatus pool;
        pool.spec = spec;
        pool.geometry = make_geometry(spec.frame_bytes, spec.largest_block_bytes, spec.capacity_bytes);
        pools_[spec.name] = pool;
        return {};
    }
    Answer<void> delete_pool(const std::string &pool, Deletion deletion) override {
        const std::scoped_lock lock{mutex_};
        if (failure_) return Unexpected{*failure_};
        if (pools_.erase(pool) == 0) return Unexpected{no_such_pool(pool)};
        calls_.push_back(deletion == Deletion::of_unused  ? "delete"
                         : deletion == Deletion::by_force ? "delete forced"
                                                          : "delete abandoning");
        return {};
    }
    // A shrink to 0 goes on until it is stopped: only a bound far beyond any test's patience ends it.
    Answer<void> resize(const std::string &pool, NumaNode node, std::uint64_t online_bytes, bool dry_run,
                        const std::function<bool(const ResizeStep &)> &progress) override {
        {
            const std::scoped_lock lock{mutex_};
            if (failure_) return Unexpected{*failure_};
            if (!pools_.contains(pool)) return Unexpected{no_such_pool(pool)};
            if (node.value > 1) return Unexpected{Failure{Errc::no_such_node, "node 2 is not there"}};
            calls_.push_back(dry_run ? "resize dry" : "resize");
        }
        if (online_bytes == 0) {
            ResizeStep endless;
            for (unsigned step = 0; step < 60'000; ++step) {
                endless.online_bytes = step;
                if (!progress(endless)) {
                    resizes_stopped_ += 1;
                    return Unexpected{Failure{Errc::contended, "stopped"}};
                }
                std::this_thread::sleep_for(std::chrono::milliseconds{1});
            }
            return {};
        }
        ResizeStep half{online_bytes / 2, online_bytes, false, "one chunk", {}};
        if (!progress(half)) return Unexpected{Failure{Errc::contended, "stopped"}};
        ResizeStep all{online_bytes, online_bytes, true, "done", {{17, 4242, "relay", 8192}}};
        progress(all);
        return {};
    }
    Answer<DrainStatus> drain_chunk(const std::string &, NumaNode node, std::uint64_t chunk, bool undo) override {
        const std::scoped_lock lock{mutex_};
        if (failure_) return Unexpected{*failure_};
        calls_.push_back("drain " + std::to_string(node.value) + " " + std::to_string(chunk) + (undo ? " undo" : ""));
        return DrainStatus{4096, true, false, {{17, 4242, "relay", 4096}}};
    }
    Answer<std::vector<ClientStatus>> clients(const std::string &pool) override {
        const std::scoped_lock lock{mutex_};
        if (failure_) return Unexpected{*failure_};
        std::vector<ClientStatus> found;
        for (const ClientStatus &client : clients_)
            if (pool.empty() || client.pool == pool) found.push_back(client);
        return found;
    }
    Answer<BlockList> blocks(const std::string &pool, std::uint32_t client_id, std::uint32_t limit) override {
        const std::scoped_lock lock{mutex_};
        if (failure_) return Unexpected{*failure_};
        calls_.push_back("blocks " + pool + " " + std::to_string(client_id) + " " + std::to_string(limit));
        return BlockList{{{"default", 17, NumaNode{1}, 8192, 4096, 4000, true, std::chrono::seconds{90}}}, 43, 176128};
    }
    Answer<std::vector<NameStatus>> names(const std::string &pool) override {
        const std::scoped_lock lock{mutex_};
        if (failure_) return Unexpected{*failure_};
        calls_.push_back("names " + pool);
        NameStatus block{"default", {}}, objects{"default", {}};
        (void)NameText::read("block", block.entry.name);
        block.entry.kind = NameKind::reference;
        block.entry.value = 0xfedc'ba98'7654'3210;
        block.entry.user = 1000;
        block.entry.client_id = 17;
        block.entry.version = 5;
        (void)NameText::read("orders", objects.entry.name);
        objects.entry.kind = NameKind::objects;
        objects.entry.is_of_pool = true;
        std::string_view("default.orders").copy(objects.entry.objects.data(), kPoolNameBytes - 1);
        objects.entry.version = 7;
        return std::vector{block, objects};
    }
    Answer<void> remove_name(const std::string &pool, const NameText &name) override {
        const std::scoped_lock lock{mutex_};
        if (failure_) return Unexpected{*failure_};
        calls_.push_back("remove_name " + pool + " " + name.text().data());
        return {};
    }
    Answer<std::vector<ChannelStatus>> channels(const std::string &pool) override {
        const std::scoped_lock lock{mutex_};
        if (failure_) return Unexpected{*failure_};
        calls_.push_back("channels " + pool);
        return std::vector{golden_channel(), golden_broadcast()};
    }
    Answer<std::uint32_t> remove_channel(const std::string &pool, const std::string &name, bool ends) override {
        const std::scoped_lock lock{mutex_};
        if (failure_) return Unexpected{*failure_};
        calls_.push_back("remove_channel " + pool + " " + name + (ends ? " ends" : ""));
        return ends ? 2U : 0U;
    }
    Answer<void> evict(std::uint32_t client_id, std::chrono::milliseconds grace) override {
        const std::scoped_lock lock{mutex_};
        if (failure_) return Unexpected{*failure_};
        calls_.push_back("evict " + std::to_string(client_id) + " " + std::to_string(grace.count()));
        return {};
    }
    Answer<void> set_quota(const Holder &holder, std::uint64_t quota_bytes, std::uint64_t soft_bytes) override {
        const std::scoped_lock lock{mutex_};
        if (failure_) return Unexpected{*failure_};
        calls_.push_back("quota " + text(holder) + " " + std::to_string(quota_bytes) + " " +
                         std::to_string(soft_bytes));
        return {};
    }
    Answer<void> reserve(const Holder &holder, std::uint64_t bytes) override {
        const std::scoped_lock lock{mutex_};
        if (failure_) return Unexpected{*failure_};
        calls_.push_back("reserve " + text(holder) + " " + std::to_string(bytes));
        return {};
    }
    Answer<OccupancyMap> map(const std::string &pool, NumaNode, std::uint32_t cells) override {
        const std::scoped_lock lock{mutex_};
        if (failure_) return Unexpected{*failure_};
        const auto found = pools_.find(pool);
        if (found == pools_.end()) return Unexpected{no_such_pool(pool)};
        return OccupancyMap{found->second.geometry.capacity_bytes() / cells,
                            std::vector<MapCell>(cells, MapCell{32, 16, 8, 4}),
                            {{7, 700, "relay", 4096, 8192}}};
    }
    MachineStatus machine() override {
        MachineStatus machine;
        machine.nodes = {{2, 1 << 30, 1 << 29, {{2 << 20, 8, 4, 1}}, "0-1", {10, 21}}};
        machine.topology_source = "synthetic:2x512M";
        machine.metrics_address = "127.0.0.1:9853";
        machine.runtime_dir = "/run/numacre";
        return machine;
    }
    DaemonTotals totals() override {
        const std::scoped_lock lock{mutex_};
        return totals_;
    }
    std::shared_ptr<void> subscribe(std::function<void(const Event &)> handler) override {
        const std::scoped_lock lock{mutex_};
        const unsigned id = next_subscription_++;
        handlers_[id] = std::move(handler);
        return std::shared_ptr<void>{nullptr, [this, id](void *) {
                                         const std::scoped_lock inner{mutex_};
                                         handlers_.erase(id);
                                     }};
    }

    // For the tests.
    void set_pool(const PoolStatus &pool) {
        const std::scoped_lock lock{mutex_};
        pools_[pool.spec.name] = pool;
    }
    void set_clients(std::vector<ClientStatus> clients) {
        const std::scoped_lock lock{mutex_};
        clients_ = std::move(clients);
    }
    void set_totals(const DaemonTotals &totals) {
        const std::scoped_lock lock{mutex_};
        totals_ = totals;
    }
    void make_unknown(const std::string &pool) {
        const std::scoped_lock lock{mutex_};
        unknown_ = pool;
    }
    void fail_with(std::optional<Failure> failure) {
        const std::scoped_lock lock{mutex_};
        failure_ = std::move(failure);
    }
    void emit(const Event &event) {
        const std::scoped_lock lock{mutex_};
        for (const auto &[id, handler] : handlers_) handler(event);
    }
    std::size_t subscribers() {
        const std::scoped_lock lock{mutex_};
        return handlers_.size();
    }
    std::vector<std::string> calls() {
        const std::scoped_lock lock{mutex_};
        return calls_;
    }
    unsigned resizes_stopped() const { return resizes_stopped_; }

private:
    static std::string text(const Holder &holder) {
        if (holder.kind == Holder::Kind::client) return std::to_string(holder.client_id);
        return holder.pool + (holder.kind == Holder::Kind::user ? ":" + std::to_string(holder.uid) : "");
    }
    static Failure no_such_pool(const std::string &pool) {
        return {Errc::no_such_pool, "there is no pool \"" + pool + "\""};
    }

    std::mutex mutex_;
    std::map<std::string, PoolStatus> pools_;
    std::vector<ClientStatus> clients_;
    DaemonTotals totals_;
    std::optional<Failure> failure_;
    std::string unknown_;
    std::map<unsigned, std::function<void(const Event &)>> handlers_;
    unsigned next_subscription_ = 0;
    std::vector<std::string> calls_;
    std::atomic<unsigned> resizes_stopped_{0};
};

}  // namespace numacre::daemon
