#include "control/control_service.hpp"

#include <algorithm>
#include <chrono>
#include <string>

#include "control/checks.hpp"
#include "control/conversions.hpp"
#include "control/printable.hpp"
#include "control/status.hpp"

namespace numacre::daemon {
namespace {

// How long a watcher that its caller has cancelled may keep its thread: gRPC's synchronous calls report a cancellation
// only when asked. The end of the server does not wait for this.
constexpr std::chrono::milliseconds kCancelPoll{200};

}  // namespace

void ControlService::end_streams(std::chrono::milliseconds patience) {
    // seq_cst and before the lock: a watcher that add_watcher() lets in after this walk sees the flag.
    ending_.store(true);
    {
        const std::scoped_lock lock{watchers_mutex_};
        for (const auto &watcher : watchers_)
            if (const auto queue = watcher.lock()) queue->close();
    }
    const std::unique_lock ended{streams_, patience};  // returns also if they have not ended in time
}

Answer<PoolStatus> ControlService::status_of(const std::string &pool) {
    if (auto name = check_pool_name(pool); !name) return Unexpected{std::move(name.error())};
    return pools_.pool_status(pool);
}

grpc::Status ControlService::check_alive(const grpc::ServerContext &context) const {
    if (ending_.load()) return to_status({Errc::daemon_gone, "numacred is shutting down: start it again, then retry"});
    if (context.deadline() <= std::chrono::system_clock::now())
        return to_status({Errc::timed_out, "the call's deadline has passed: allow more time"});
    if (context.IsCancelled()) return {grpc::StatusCode::CANCELLED, "cancelled by the caller"};
    return grpc::Status::OK;
}

grpc::Status ControlService::ListPools(grpc::ServerContext *context, const v1::ListPoolsRequest *,
                                       v1::ListPoolsResponse *response) {
    for (const std::string &name : pools_.pool_names()) {
        if (auto alive = check_alive(*context); !alive.ok()) return alive;
        const auto pool = pools_.pool_status(name);
        if (pool) {
            *response->add_pools() = to_proto(*pool);
        } else if (pool.error().code == Errc::corrupt) {
            v1::Pool &corrupt = *response->add_pools();
            corrupt.set_name(name);
            corrupt.set_state(v1::POOL_STATE_CORRUPT);
            corrupt.set_corrupt_reason(printable(pool.error().message));
        } else if (pool.error().code == Errc::timed_out) {
            v1::Pool &unknown = *response->add_pools();
            unknown.set_name(name);
            unknown.set_state(v1::POOL_STATE_UNKNOWN);
        } else if (pool.error().code != Errc::no_such_pool) {  // such a pool was deleted after its name was listed
            return to_status(pool.error());
        }
    }
    return grpc::Status::OK;
}

grpc::Status ControlService::GetPool(grpc::ServerContext *, const v1::GetPoolRequest *request, v1::Pool *response) {
    const auto pool = status_of(request->pool());
    if (!pool) return to_status(pool.error());
    *response = to_proto(*pool);
    return grpc::Status::OK;
}

grpc::Status ControlService::CreatePool(grpc::ServerContext *context, const v1::CreatePoolRequest *request,
                                        v1::Pool *response) {
    const auto spec = to_pool_spec(*request);
    if (!spec) return to_status(spec.error());
    if (const auto valid = check_pool_spec(*spec); !valid) return to_status(valid.error());
    if (auto alive = check_alive(*context); !alive.ok()) return alive;
    if (const auto created = pools_.create_pool(*spec); !created) return to_status(created.error());
    const auto pool = pools_.pool_status(spec->name);
    if (!pool) return to_status(pool.error());
    *response = to_proto(*pool);
    return grpc::Status::OK;
}

grpc::Status ControlService::DeletePool(grpc::ServerContext *context, const v1::DeletePoolRequest *request,
                                        v1::DeletePoolResponse *) {
    if (const auto name = check_pool_name(request->pool()); !name) return to_status(name.error());
    if (auto alive = check_alive(*context); !alive.ok()) return alive;
    if (request->abandon() && !request->force())
        return to_status(Failure{Errc::bad_argument, "abandon is for a deletion by force: set force as well"});
    const Deletion deletion = request->abandon() ? Deletion::abandoning
                              : request->force() ? Deletion::by_force
                                                 : Deletion::of_unused;
    if (const auto deleted = pools_.delete_pool(request->pool(), deletion); !deleted) return to_status(deleted.error());
    return grpc::Status::OK;
}

grpc::Status ControlService::ResizePool(grpc::ServerContext *context, const v1::ResizePoolRequest *request,
                                        grpc::ServerWriter<v1::ResizeProgress> *writer) {
    const std::shared_lock serving{streams_};
    if (const auto name = check_pool_name(request->pool()); !name) return to_status(name.error());
    const auto numa_node = check_numa_node(request->node());
    if (!numa_node) return to_status(numa_node.error());
    if (const auto size = check_online_bytes(request->online_bytes()); !size) return to_status(size.error());
    if (auto alive = check_alive(*context); !alive.ok()) return alive;

    grpc::Status stopped = grpc::Status::OK;
    bool done = false;
    const auto progress = [&](const ResizeStep &step) {
        done = done || step.done;
        const bool written = writer->Write(to_proto(step));
        if (done) return true;
        stopped = check_alive(*context);
        if (stopped.ok() && !written) stopped = {grpc::StatusCode::CANCELLED, "the caller is gone"};
        return stopped.ok();
    };
    const auto resized =
        pools_.resize(request->pool(), *numa_node, request->online_bytes(), request->dry_run(), progress);
    // After we stopped the resize, the pool manager's answer repeats our reason, and adds the outcome for the pool.
    if (!stopped.ok())
        return {stopped.error_code(),
                stopped.error_message() + (resized ? "" : ": " + printable(resized.error().message)),
                stopped.error_details()};
    if (!resized) return to_status(resized.error());
    return grpc::Status::OK;
}

grpc::Status ControlService::DrainChunk(grpc::ServerContext *context, const v1::DrainChunkRequest *request,
                                        v1::DrainChunkResponse *response) {
    if (const auto name = check_pool_name(request->pool()); !name) return to_status(name.error());
    const auto numa_node = check_numa_node(request->node());
    if (!numa_node) return to_status(numa_node.error());
    if (auto alive = check_alive(*context); !alive.ok()) return alive;
    const auto drained = pools_.drain_chunk(request->pool(), *numa_node, request->chunk(), request->undo());
    if (!drained) return to_status(drained.error());
    *response = to_proto(*drained);
    return grpc::Status::OK;
}

grpc::Status ControlService::ListClients(grpc::ServerContext *, const v1::ListClientsRequest *request,
                                         v1::ListClientsResponse *response) {
    if (!request->pool().empty()) {
        if (const auto name = check_pool_name(request->pool()); !name) return to_status(name.error());
    }
    const auto clients = pools_.clients(request->pool());
    if (!clients) return to_status(clients.error());
    for (const ClientStatus &client : *clients) *response->add_clients() = to_proto(client);
    return grpc::Status::OK;
}

grpc::Status ControlService::ListBlocks(grpc::ServerContext *, const v1::ListBlocksRequest *request,
                                        v1::ListBlocksResponse *response) {
    if (!request->pool().empty()) {
        if (const auto name = check_pool_name(request->pool()); !name) return to_status(name.error());
    }
    if (const auto limit = check_listed_blocks(request->limit()); !limit) return to_status(limit.error());
    const auto blocks = pools_.blocks(request->pool(), request->client_id(),
                                      request->limit() == 0 ? kDefaultListedBlocks : request->limit());
    if (!blocks) return to_status(blocks.error());
    *response = to_proto(*blocks);
    return grpc::Status::OK;
}

grpc::Status ControlService::ListNames(grpc::ServerContext *, const v1::ListNamesRequest *request,
                                       v1::ListNamesResponse *response) {
    if (!request->pool().empty()) {
        if (const auto name = check_pool_name(request->pool()); !name) return to_status(name.error());
    }
    const auto names = pools_.names(request->pool());
    if (!names) return to_status(names.error());
    for (const NameStatus &name : *names) *response->add_names() = to_proto(name);
    return grpc::Status::OK;
}

grpc::Status ControlService::RemoveName(grpc::ServerContext *context, const v1::RemoveNameRequest *request,
                                        v1::RemoveNameResponse *) {
    if (const auto name = check_pool_name(request->pool()); !name) return to_status(name.error());
    const auto name = check_name(request->name());
    if (!name) return to_status(name.error());
    if (auto alive = check_alive(*context); !alive.ok()) return alive;
    if (const auto removed = pools_.remove_name(request->pool(), *name); !removed) return to_status(removed.error());
    return grpc::Status::OK;
}

grpc::Status ControlService::ListChannels(grpc::ServerContext *, const v1::ListChannelsRequest *request,
                                          v1::ListChannelsResponse *response) {
    if (!request->pool().empty()) {
        if (const auto name = check_pool_name(request->pool()); !name) return to_status(name.error());
    }
    const auto channels = pools_.channels(request->pool());
    if (!channels) return to_status(channels.error());
    for (const ChannelStatus &channel : *channels) *response->add_channels() = to_proto(channel);
    return grpc::Status::OK;
}

grpc::Status ControlService::RemoveChannel(grpc::ServerContext *context, const v1::RemoveChannelRequest *request,
                                           v1::RemoveChannelResponse *response) {
    if (const auto name = check_pool_name(request->pool()); !name) return to_status(name.error());
    // A channel's name is a name of the directory.
    if (const auto name = check_name(request->name()); !name) return to_status(name.error());
    if (auto alive = check_alive(*context); !alive.ok()) return alive;
    const auto removed = pools_.remove_channel(request->pool(), request->name(), request->end());
    if (!removed) return to_status(removed.error());
    response->set_opened_by(*removed);
    return grpc::Status::OK;
}

grpc::Status ControlService::EvictClient(grpc::ServerContext *context, const v1::EvictClientRequest *request,
                                         v1::EvictClientResponse *) {
    if (const auto id = check_client_id(request->client_id()); !id) return to_status(id.error());
    std::chrono::milliseconds grace = kDefaultEvictGrace;
    if (request->has_grace()) {
        const auto wanted = check_evict_grace(request->grace().seconds(), request->grace().nanos());
        if (!wanted) return to_status(wanted.error());
        grace = *wanted;
    }
    if (auto alive = check_alive(*context); !alive.ok()) return alive;
    if (const auto evicted = pools_.evict(request->client_id(), grace); !evicted) return to_status(evicted.error());
    return grpc::Status::OK;
}

grpc::Status ControlService::SetQuota(grpc::ServerContext *context, const v1::SetQuotaRequest *request,
                                      v1::SetQuotaResponse *) {
    const auto holder = check_holder(request->client_id(), request->pool(), request->user(), true);
    if (!holder) return to_status(holder.error());
    if (const auto quota = check_quota(request->quota_bytes(), request->soft_bytes()); !quota)
        return to_status(quota.error());
    if (auto alive = check_alive(*context); !alive.ok()) return alive;
    if (const auto set = pools_.set_quota(*holder, request->quota_bytes(), request->soft_bytes()); !set)
        return to_status(set.error());
    return grpc::Status::OK;
}

grpc::Status ControlService::Reserve(grpc::ServerContext *context, const v1::ReserveRequest *request,
                                     v1::ReserveResponse *) {
    const auto holder = check_holder(request->client_id(), request->pool(), request->user(), false);
    if (!holder) return to_status(holder.error());
    if (auto alive = check_alive(*context); !alive.ok()) return alive;
    if (const auto reserved = pools_.reserve(*holder, request->bytes()); !reserved) return to_status(reserved.error());
    return grpc::Status::OK;
}

grpc::Status ControlService::GetPoolAttributes(grpc::ServerContext *, const v1::GetPoolAttributesRequest *request,
                                               v1::GetPoolAttributesResponse *response) {
    if (const auto name = check_pool_name(request->pool()); !name) return to_status(name.error());
    const auto spec = pools_.attributes(request->pool());
    if (!spec) return to_status(spec.error());
    add_attributes(*spec, *response->mutable_attributes());
    return grpc::Status::OK;
}

grpc::Status ControlService::SetPoolAttributes(grpc::ServerContext *context,
                                               const v1::SetPoolAttributesRequest *request,
                                               v1::SetPoolAttributesResponse *response) {
    if (const auto name = check_pool_name(request->pool()); !name) return to_status(name.error());
    const auto changes = to_changes(*request);
    if (!changes) return to_status(changes.error());
    if (auto alive = check_alive(*context); !alive.ok()) return alive;
    const auto spec = pools_.set_attributes(request->pool(), *changes);
    if (!spec) return to_status(spec.error());
    add_attributes(*spec, *response->mutable_attributes());
    return grpc::Status::OK;
}

grpc::Status ControlService::GetStats(grpc::ServerContext *, const v1::GetStatsRequest *request,
                                      v1::GetStatsResponse *response) {
    const auto pool = status_of(request->pool());
    if (!pool) return to_status(pool.error());
    *response = stats_of(*pool);
    return grpc::Status::OK;
}

grpc::Status ControlService::GetFragmentation(grpc::ServerContext *, const v1::GetFragmentationRequest *request,
                                              v1::GetFragmentationResponse *response) {
    const auto pool = status_of(request->pool());
    if (!pool) return to_status(pool.error());
    *response = fragmentation_of(*pool);
    return grpc::Status::OK;
}

grpc::Status ControlService::GetMap(grpc::ServerContext *, const v1::GetMapRequest *request,
                                    v1::GetMapResponse *response) {
    if (const auto name = check_pool_name(request->pool()); !name) return to_status(name.error());
    const auto numa_node = check_numa_node(request->node());
    if (!numa_node) return to_status(numa_node.error());
    if (const auto cells = check_map_cells(request->cells()); !cells) return to_status(cells.error());
    std::uint32_t cells = request->cells();
    if (cells == 0) {
        const auto pool = pools_.pool_status(request->pool());
        if (!pool) return to_status(pool.error());
        cells = static_cast<std::uint32_t>(std::min<std::uint64_t>(pool->geometry.chunk_count(), kMaxMapCells));
    }
    const auto map = pools_.map(request->pool(), *numa_node, cells);
    if (!map) return to_status(map.error());
    *response = to_proto(*map);
    return grpc::Status::OK;
}

std::shared_ptr<EventQueue> ControlService::add_watcher() {
    const std::scoped_lock lock{watchers_mutex_};
    std::erase_if(watchers_, [](const auto &watcher) { return watcher.expired(); });
    if (watchers_.size() >= kMaxWatchers) return nullptr;
    auto queue = std::make_shared<EventQueue>(kMaxQueuedEvents);
    watchers_.push_back(queue);
    return queue;
}

grpc::Status ControlService::WatchEvents(grpc::ServerContext *context, const v1::WatchEventsRequest *request,
                                         grpc::ServerWriter<v1::Event> *writer) {
    const std::shared_lock serving{streams_};
    const std::string &pool = request->pool();
    if (!pool.empty()) {
        if (const auto name = check_pool_name(pool); !name) return to_status(name.error());
        const auto names = pools_.pool_names();
        if (std::find(names.begin(), names.end(), pool) == names.end())
            return to_status({Errc::no_such_pool,
                              "there is no pool " + quoted(pool) + ": see `numacre pools`, or watch all with \"\""});
    }
    const auto queue = add_watcher();
    if (!queue)
        return to_status({Errc::too_many_clients, "there are " + std::to_string(kMaxWatchers) +
                                                      " watchers already, the most that numacred serves: end one"});
    // The handler shares the queue, and the subscription ends before this call does: no event comes after that.
    const auto subscription = pools_.subscribe([queue, pool](const Event &event) {
        if (pool.empty() || event.pool == pool) queue->push(event);
    });
    // Tells the caller that no event is missed from here on.
    writer->SendInitialMetadata();
    while (true) {
        if (auto alive = check_alive(*context); !alive.ok()) return alive;
        const auto event = queue->pop(kCancelPoll);
        if (event && !writer->Write(to_proto(*event))) return {grpc::StatusCode::CANCELLED, "the caller is gone"};
    }
}

grpc::Status ControlService::GetMachine(grpc::ServerContext *, const v1::GetMachineRequest *, v1::Machine *response) {
    *response = to_proto(pools_.machine());
    return grpc::Status::OK;
}

}  // namespace numacre::daemon
