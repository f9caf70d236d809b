// A control plane made of fixed figures, for tests of who talks to it. Served on a unix socket by the real gRPC.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "numacre/v1/control.grpc.pb.h"
#include "numacre/v1/error.pb.h"

namespace numacre::test {

inline constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

// One pool "default" on two numa nodes, the second not on hugepages; two clients, one with a name that is an attack on
// the terminal, and two channels. An unknown pool is NOT_FOUND with details. Answers are the same until a field below
// is changed.
class FakeControl final : public v1::Control::Service {
public:
    std::atomic<bool> corrupt{false};
    std::atomic<bool> has_quarantine{false};  // 1 MiB on numa node 0, 512 KiB on numa node 1
    std::atomic<bool> shrink_blocked{false};
    std::atomic<bool> resize_hangs{false};
    std::atomic<bool> client_stays{false};  // a deletion by force takes its time, then fails

    // What was asked for last.
    v1::ResizePoolRequest resize() { return locked(resize_); }
    v1::CreatePoolRequest create() { return locked(create_); }
    v1::DeletePoolRequest deletion() { return locked(delete_); }
    v1::DrainChunkRequest drain() { return locked(drain_); }
    v1::EvictClientRequest evict() { return locked(evict_); }
    v1::SetQuotaRequest quota() { return locked(quota_); }
    v1::SetPoolAttributesRequest settings() { return locked(settings_); }
    v1::ReserveRequest reservation() { return locked(reservation_); }
    v1::ListBlocksRequest blocks() { return locked(blocks_); }
    v1::RemoveChannelRequest removed_channel() { return locked(removed_channel_); }
    std::atomic<bool> resize_cancelled{false};

    grpc::Status ListPools(grpc::ServerContext *, const v1::ListPoolsRequest *,
                           v1::ListPoolsResponse *response) override {
        *response->add_pools() = pool();
        return grpc::Status::OK;
    }
    grpc::Status GetPool(grpc::ServerContext *, const v1::GetPoolRequest *request, v1::Pool *response) override {
        if (request->pool() != "default") return no_such_pool(request->pool());
        *response = pool();
        return grpc::Status::OK;
    }
    grpc::Status CreatePool(grpc::ServerContext *, const v1::CreatePoolRequest *request, v1::Pool *response) override {
        if (request->name() == "default") return {grpc::StatusCode::ALREADY_EXISTS, "there is a pool \"default\""};
        store(create_, *request);
        *response = pool();
        response->set_name(request->name());
        return grpc::Status::OK;
    }
    grpc::Status DeletePool(grpc::ServerContext *, const v1::DeletePoolRequest *request,
                            v1::DeletePoolResponse *) override {
        if (request->pool() != "default") return no_such_pool(request->pool());
        store(delete_, *request);
        if (client_stays && request->force()) {
            std::this_thread::sleep_for(std::chrono::seconds(1));
            v1::ErrorDetail detail;
            detail.set_reason("timed_out");
            v1::ErrorStatus status;
            status.add_details()->set_value(detail.SerializeAsString());
            return {grpc::StatusCode::DEADLINE_EXCEEDED, "client 7 does not end: see why", status.SerializeAsString()};
        }
        return grpc::Status::OK;
    }
    grpc::Status ResizePool(grpc::ServerContext *context, const v1::ResizePoolRequest *request,
                            grpc::ServerWriter<v1::ResizeProgress> *writer) override {
        store(resize_, *request);
        v1::ResizeProgress progress;
        progress.set_target_bytes(request->online_bytes());
        if (resize_hangs && request->dry_run()) {
            progress.set_online_bytes(64 * kMiB);
            writer->Write(progress);
            return {grpc::StatusCode::RESOURCE_EXHAUSTED, "there is not enough for it now"};
        }
        if (resize_hangs) {
            progress.set_online_bytes(192 * kMiB);
            writer->Write(progress);
            while (!context->IsCancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
            resize_cancelled = true;
            return {grpc::StatusCode::CANCELLED, "cancelled"};
        }
        if (!request->dry_run()) {
            progress.set_online_bytes((256 * kMiB + request->online_bytes()) / 2);
            progress.set_note("half way");
            writer->Write(progress);
        }
        progress.set_done(true);
        progress.set_note("the last word");
        progress.set_online_bytes(shrink_blocked || request->dry_run() ? 256 * kMiB : request->online_bytes());
        if (shrink_blocked) {
            v1::BlockHolder *holder = progress.add_blocked_by();
            holder->set_client_id(7);
            holder->set_pid(4242);
            holder->set_comm("relay");
            holder->set_bytes(3 * kMiB);
            progress.add_blocked_by()->set_bytes(kMiB);
        }
        writer->Write(progress);
        if (shrink_blocked && !request->dry_run()) return {grpc::StatusCode::ABORTED, "in use: 3 MiB by relay"};
        return grpc::Status::OK;
    }
    grpc::Status DrainChunk(grpc::ServerContext *, const v1::DrainChunkRequest *request,
                            v1::DrainChunkResponse *response) override {
        store(drain_, *request);
        response->set_draining(!request->undo());
        response->set_used_bytes(kMiB);
        response->add_blocked_by()->set_bytes(kMiB);
        return grpc::Status::OK;
    }
    grpc::Status ListClients(grpc::ServerContext *, const v1::ListClientsRequest *request,
                             v1::ListClientsResponse *response) override {
        if (!request->pool().empty() && request->pool() != "default") return no_such_pool(request->pool());
        v1::Client *client = response->add_clients();
        client->set_client_id(8);
        client->set_pool("default");
        client->set_pid(4243);
        client->set_comm("\033[2Jevil\n");
        client->set_used_bytes(kMiB);
        client->set_blocks(256);
        client->set_threads(2);
        client->set_state("active");
        client->mutable_attached()->set_seconds(1'000'000'000);
        client->mutable_oldest_held_for()->set_seconds(3 * 86'400 + 5);
        client = response->add_clients();
        client->set_client_id(7);
        client->set_pool("default");
        client->set_pid(4242);
        client->set_comm("relay");
        client->set_used_bytes(3 * kMiB);
        client->set_quota_bytes(16 * kMiB);
        client->set_soft_quota_bytes(12 * kMiB);
        client->set_reserved_bytes(5 * kMiB);
        client->set_state("lost connection");
        client = response->add_clients();
        client->set_client_id(21);
        client->set_pool("default");
        client->set_comm("frames");
        client->set_used_bytes(kMiB / 2);
        client->set_state("channel");
        return grpc::Status::OK;
    }
    grpc::Status ListBlocks(grpc::ServerContext *, const v1::ListBlocksRequest *request,
                            v1::ListBlocksResponse *response) override {
        if (!request->pool().empty() && request->pool() != "default") return no_such_pool(request->pool());
        for (const std::uint32_t client : {8U, 9U}) {
            v1::HeldBlock *block = response->add_blocks();
            block->set_pool("default");
            block->set_client_id(client);
            block->set_node(1);
            block->set_offset_bytes(0x5000);
            block->set_bytes(8192);
            block->set_requested_bytes(5000);
            block->set_published(client == 9);
            block->mutable_held_for()->set_seconds(3 * 86'400 + 5);
        }
        response->set_total_blocks(257);
        response->set_total_bytes(kMiB);
        store(blocks_, *request);
        return grpc::Status::OK;
    }
    grpc::Status ListNames(grpc::ServerContext *, const v1::ListNamesRequest *request,
                           v1::ListNamesResponse *response) override {
        if (!request->pool().empty() && request->pool() != "default") return no_such_pool(request->pool());
        v1::BoundName *name = response->add_names();
        name->set_pool("default");
        name->set_name("first-block");
        name->set_kind("reference");
        name->set_reference(0xfedc'ba98'7654'3210);
        name->set_uid(1000);
        name->set_client_id(7);
        name->set_version(5);
        name = response->add_names();
        name->set_pool("default");
        name->set_name("orders");
        name->set_kind("objects");
        name->set_objects("default.orders");
        name->set_version(7);
        return grpc::Status::OK;
    }
    grpc::Status RemoveName(grpc::ServerContext *, const v1::RemoveNameRequest *request,
                            v1::RemoveNameResponse *) override {
        if (request->name() != "orders") return {grpc::StatusCode::NOT_FOUND, "no name " + request->name()};
        return grpc::Status::OK;
    }
    grpc::Status ListChannels(grpc::ServerContext *, const v1::ListChannelsRequest *request,
                              v1::ListChannelsResponse *response) override {
        if (!request->pool().empty() && request->pool() != "default") return no_such_pool(request->pool());
        // Each look finds 1000 messages more.
        const std::uint64_t looks = channel_looks_.fetch_add(1);
        v1::Channel *channel = response->add_channels();
        channel->set_pool("default");
        channel->set_name("frames");
        channel->set_client_id(21);
        channel->set_uid(1000);
        channel->set_state("open");
        channel->set_stays("while needed");
        channel->set_capacity_messages(1024);
        channel->set_burst_messages(32);
        channel->set_parties_most(16);
        channel->set_waiting_messages(900);
        channel->set_returned_messages(24);
        channel->set_waiting_bytes(924 * kMiB);
        channel->mutable_oldest_waits_for()->set_seconds(65);
        channel->set_senders(2);
        channel->set_sent_messages(5000 + 1000 * looks);
        channel->set_received_messages(4100 + 1000 * looks);
        channel->set_redelivered_messages(7);
        channel->set_kind("queue");
        channel->set_dropped_messages(31);
        channel->set_senders_sleep(true);
        v1::ChannelClient *client = channel->add_clients();
        client->set_client_id(8);
        client->set_pid(4243);
        client->set_comm("\033[2Jevil\n");
        client->set_opened(2);
        client->set_senders(2);
        channel = response->add_channels();
        channel->set_pool("default");
        channel->set_name("jobs");
        channel->set_client_id(22);
        channel->set_state("ended");
        channel->set_stays("removed");
        channel->set_capacity_messages(8);
        return grpc::Status::OK;
    }
    grpc::Status RemoveChannel(grpc::ServerContext *, const v1::RemoveChannelRequest *request,
                               v1::RemoveChannelResponse *response) override {
        if (request->name() != "frames" && request->name() != "jobs")
            return {grpc::StatusCode::NOT_FOUND, "no channel " + request->name()};
        if (request->name() == "frames") response->set_opened_by(1);
        store(removed_channel_, *request);
        return grpc::Status::OK;
    }
    grpc::Status EvictClient(grpc::ServerContext *, const v1::EvictClientRequest *request,
                             v1::EvictClientResponse *) override {
        if (request->client_id() != 7) {
            return {grpc::StatusCode::NOT_FOUND, "no client " + std::to_string(request->client_id())};
        }
        store(evict_, *request);
        return grpc::Status::OK;
    }
    grpc::Status Reserve(grpc::ServerContext *, const v1::ReserveRequest *request, v1::ReserveResponse *) override {
        store(reservation_, *request);
        return grpc::Status::OK;
    }
    grpc::Status SetQuota(grpc::ServerContext *, const v1::SetQuotaRequest *request, v1::SetQuotaResponse *) override {
        if (request->client_id() != 7 && request->pool().empty()) {
            return {grpc::StatusCode::NOT_FOUND, "no client " + std::to_string(request->client_id())};
        }
        store(quota_, *request);
        return grpc::Status::OK;
    }
    static void add_attribute(v1::PoolAttribute *attribute, const std::string &key, const std::string &value) {
        attribute->set_key(key);
        attribute->set_value(value);
        attribute->set_help("Help of " + key);
        if (key == "capacity")
            attribute->set_fixed_because("it is so: make another pool");
        else
            attribute->set_changed_by("numacre set");
    }
    grpc::Status GetPoolAttributes(grpc::ServerContext *, const v1::GetPoolAttributesRequest *request,
                                   v1::GetPoolAttributesResponse *response) override {
        if (request->pool() != "default") return no_such_pool(request->pool());
        add_attribute(response->add_attributes(), "capacity", "1G");
        add_attribute(response->add_attributes(), "user-quota", "");
        add_attribute(response->add_attributes(), "mode", "0660");
        return grpc::Status::OK;
    }
    grpc::Status SetPoolAttributes(grpc::ServerContext *, const v1::SetPoolAttributesRequest *request,
                                   v1::SetPoolAttributesResponse *response) override {
        if (request->pool() != "default") return no_such_pool(request->pool());
        store(settings_, *request);
        for (const std::string key : {"capacity", "user-quota", "mode"}) {
            const auto set = request->attributes().find(key);
            add_attribute(response->add_attributes(), key, set == request->attributes().end() ? "old" : set->second);
        }
        return grpc::Status::OK;
    }
    grpc::Status GetStats(grpc::ServerContext *, const v1::GetStatsRequest *request,
                          v1::GetStatsResponse *response) override {
        if (request->pool() != "default") return no_such_pool(request->pool());
        if (corrupt) return {grpc::StatusCode::DATA_LOSS, "pool default is corrupt"};
        const std::uint64_t look = ++looks_;
        for (std::uint32_t number = 0; number < 2; ++number) {
            v1::NodeStats *numa_node = response->add_nodes();
            numa_node->set_node(number);
            numa_node->set_used_bytes(2 * kMiB);
            numa_node->set_online_bytes(256 * kMiB);
            numa_node->set_free_bytes(254 * kMiB);
            numa_node->set_numa_hit(1000);
            for (std::uint32_t order = 0; order < 11; ++order) {
                v1::OrderStats *line = numa_node->add_orders();
                line->set_order(order);
                line->set_block_bytes(std::uint64_t{4096} << order);
                line->set_allocations(order == 0 ? 1000 * look : 0);
                line->set_frees(order == 0 ? 1000 * look - 512 : 0);
                line->set_live_blocks(order == 0 ? 512 : 0);
                line->set_free_blocks(order == 10 ? 63 : 0);
            }
        }
        response->mutable_nodes(0)->set_failures_out_of_frames(3);
        response->set_clients_reaped(2);
        response->set_reclaimed_bytes(5 * kMiB);
        response->set_numa_imbalance(0.25);
        return grpc::Status::OK;
    }
    grpc::Status GetFragmentation(grpc::ServerContext *, const v1::GetFragmentationRequest *request,
                                  v1::GetFragmentationResponse *response) override {
        if (request->pool() != "default") return no_such_pool(request->pool());
        for (std::uint32_t number = 0; number < 2; ++number) {
            v1::NodeFragmentation *numa_node = response->add_nodes();
            numa_node->set_node(number);
            for (std::uint32_t order = 0; order < 11; ++order) {
                v1::OrderFragmentation *line = numa_node->add_orders();
                line->set_order(order);
                line->set_free_blocks(order == 10 ? 63 : 0);
                line->set_external_fragmentation_index(-1);
            }
        }
        return grpc::Status::OK;
    }
    grpc::Status GetMap(grpc::ServerContext *, const v1::GetMapRequest *request,
                        v1::GetMapResponse *response) override {
        if (request->pool() != "default") return no_such_pool(request->pool());
        if (request->cells() > 65536) return {grpc::StatusCode::INVALID_ARGUMENT, "too many cells"};
        // The daemon folds into at most as many cells as were wanted.
        const std::uint32_t cells = std::min<std::uint32_t>(request->cells() == 0 ? 256 : request->cells(), 256);
        response->set_bytes_per_cell(1024 * kMiB / cells);
        for (std::uint32_t i = 0; i < cells; ++i) {
            v1::MapCell *cell = response->add_cells();
            cell->set_frames(262144 / cells);
            if (i * 4 >= cells) cell->set_offline_frames(cell->frames());
            if (i == 0) cell->set_used_frames(cell->frames());
        }
        return grpc::Status::OK;
    }
    grpc::Status GetMachine(grpc::ServerContext *, const v1::GetMachineRequest *, v1::Machine *response) override {
        for (int number = 0; number < 2; ++number) {
            v1::MachineNode *numa_node = response->add_nodes();
            numa_node->set_os_numa_node(number);
            numa_node->set_total_bytes(2048 * kMiB);
            numa_node->set_free_bytes(1024 * kMiB);
            numa_node->set_cpus(number == 0 ? "0-1" : "2-3");
            numa_node->add_distances(number == 0 ? 10 : 21);
            numa_node->add_distances(number == 0 ? 21 : 10);
            v1::HugepagePool *pages = numa_node->add_hugepages();
            pages->set_page_bytes(2 * kMiB);
            pages->set_total(128);
            pages->set_free(64);
        }
        response->set_topology_source("synthetic:2x2G");
        response->set_version("9.9.9");
        response->set_layout_version(1);
        response->mutable_started()->set_seconds(1'000'000'000);
        response->set_metrics_address("127.0.0.1:9853");
        response->set_runtime_dir("/made/up");
        return grpc::Status::OK;
    }

private:
    v1::Pool pool() const {
        v1::Pool pool;
        pool.set_name("default");
        pool.set_state(corrupt ? v1::POOL_STATE_CORRUPT : v1::POOL_STATE_SERVING);
        if (corrupt) pool.set_corrupt_reason("leaf 12 has a tag that nobody wrote");
        pool.set_frame_bytes(4096);
        pool.set_largest_block_bytes(4 * kMiB);
        pool.set_clients(2);
        pool.set_max_clients(256);
        pool.set_owner("root");
        pool.set_group("dpdk");
        pool.set_mode(0640);
        pool.set_low_watermark_bytes(16 * kMiB);
        pool.set_autosize("5%-40%:8M-64M:8M:30s");
        pool.set_quota_bytes(200 * kMiB);
        pool.set_reserved_bytes(3 * kMiB);
        v1::User *user = pool.add_users();
        user->set_uid(1000);
        user->set_name("alice");
        user->set_used_bytes(3 * kMiB);
        user->set_soft_quota_bytes(40 * kMiB);
        user->set_reserved_bytes(6 * kMiB);
        user->set_clients(1);
        pool.mutable_created()->set_seconds(1'000'000'000);
        for (std::uint32_t number = 0; number < 2; ++number) {
            v1::PoolNode *numa_node = pool.add_nodes();
            numa_node->set_node(number);
            numa_node->set_os_numa_node(static_cast<int>(number));
            numa_node->set_capacity_bytes(1024 * kMiB);
            numa_node->set_online_bytes(256 * kMiB);
            numa_node->set_used_bytes(2 * kMiB);
            numa_node->set_free_bytes(254 * kMiB);
            numa_node->set_largest_free_block_bytes(4 * kMiB);
            numa_node->set_backing(number == 0 ? v1::BACKING_HUGETLB : v1::BACKING_SMALL_PAGES);
            numa_node->set_page_bytes(number == 0 ? 2 * kMiB : 4096);
            if (number == 1) numa_node->set_backing_note("0 of 128 hugepages were free");
            numa_node->set_below_low_watermark(number == 1);
            if (has_quarantine) numa_node->set_quarantined_bytes(kMiB >> number);
        }
        return pool;
    }

    static grpc::Status no_such_pool(const std::string &name) {
        const std::string message = "no pool \"" + name + "\"";
        v1::ErrorDetail detail;
        detail.set_reason("no_such_pool");
        (*detail.mutable_metadata())["remedy"] = "see `numacre pools` for the names";
        v1::ErrorStatus status;
        status.set_code(static_cast<int>(grpc::StatusCode::NOT_FOUND));
        status.set_message(message);
        google::protobuf::Any *any = status.add_details();
        any->set_type_url("type.googleapis.com/google.rpc.ErrorInfo");
        any->set_value(detail.SerializeAsString());
        return {grpc::StatusCode::NOT_FOUND, message, status.SerializeAsString()};
    }

    template <class T>
    T locked(const T &value) {
        const std::lock_guard<std::mutex> hold(mutex_);
        return value;
    }
    template <class T>
    void store(T &place, const T &value) {
        const std::lock_guard<std::mutex> hold(mutex_);
        place = value;
    }

    std::atomic<std::uint64_t> looks_{0};
    std::mutex mutex_;  // of all below
    v1::ResizePoolRequest resize_;
    v1::CreatePoolRequest create_;
    v1::DeletePoolRequest delete_;
    v1::DrainChunkRequest drain_;
    v1::EvictClientRequest evict_;
    v1::SetQuotaRequest quota_;
    v1::SetPoolAttributesRequest settings_;
    v1::ReserveRequest reservation_;
    v1::ListBlocksRequest blocks_;
    v1::RemoveChannelRequest removed_channel_;
    std::atomic<std::uint64_t> channel_looks_{0};
};

// Serves until destroyed.
class FakeControlServer {
public:
    explicit FakeControlServer(const std::string &runtime_dir) {
        grpc::ServerBuilder builder;
        builder.AddListeningPort("unix:" + runtime_dir + "/control.sock", grpc::InsecureServerCredentials());
        builder.RegisterService(&service_);
        server_ = builder.BuildAndStart();
    }
    ~FakeControlServer() {
        // At once: a client that is busy elsewhere does not hang up by itself.
        if (server_) server_->Shutdown(std::chrono::system_clock::now());
    }
    bool serving() const { return server_ != nullptr; }
    FakeControl &service() { return service_; }

private:
    FakeControl service_;
    std::unique_ptr<grpc::Server> server_;
};

}  // namespace numacre::test
