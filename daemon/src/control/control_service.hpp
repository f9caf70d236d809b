// numacre.v1.Control: each call checks, asks the pool manager and converts. A stream runs on a gRPC thread of its own.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "control/event_queue.hpp"
#include "numacre/v1/control.grpc.pb.h"
#include "pool/pool_manager.hpp"

namespace numacre::daemon {

class ControlService final : public v1::Control::Service {
public:
    // Each watcher holds a thread and a queue. More watchers are refused, so that other calls always find a thread.
    static constexpr std::size_t kMaxWatchers = 16;
    static constexpr std::size_t kMaxQueuedEvents = 1024;

    explicit ControlService(PoolManager &pools) : pools_(pools) {}

    // Ends streams at once and resizes after the chunk in hand; streams that begin later end at once. Returns when all
    // have ended, or after `patience`. Thread-safe.
    void end_streams(std::chrono::milliseconds patience);

    grpc::Status ListPools(grpc::ServerContext *context, const v1::ListPoolsRequest *request,
                           v1::ListPoolsResponse *response) override;
    grpc::Status GetPool(grpc::ServerContext *context, const v1::GetPoolRequest *request, v1::Pool *response) override;
    grpc::Status CreatePool(grpc::ServerContext *context, const v1::CreatePoolRequest *request,
                            v1::Pool *response) override;
    grpc::Status DeletePool(grpc::ServerContext *context, const v1::DeletePoolRequest *request,
                            v1::DeletePoolResponse *response) override;
    grpc::Status ResizePool(grpc::ServerContext *context, const v1::ResizePoolRequest *request,
                            grpc::ServerWriter<v1::ResizeProgress> *writer) override;
    grpc::Status DrainChunk(grpc::ServerContext *context, const v1::DrainChunkRequest *request,
                            v1::DrainChunkResponse *response) override;
    grpc::Status ListClients(grpc::ServerContext *context, const v1::ListClientsRequest *request,
                             v1::ListClientsResponse *response) override;
    grpc::Status ListBlocks(grpc::ServerContext *context, const v1::ListBlocksRequest *request,
                            v1::ListBlocksResponse *response) override;
    grpc::Status ListNames(grpc::ServerContext *context, const v1::ListNamesRequest *request,
                           v1::ListNamesResponse *response) override;
    grpc::Status RemoveName(grpc::ServerContext *context, const v1::RemoveNameRequest *request,
                            v1::RemoveNameResponse *response) override;
    grpc::Status ListChannels(grpc::ServerContext *context, const v1::ListChannelsRequest *request,
                              v1::ListChannelsResponse *response) override;
    grpc::Status RemoveChannel(grpc::ServerContext *context, const v1::RemoveChannelRequest *request,
                               v1::RemoveChannelResponse *response) override;
    grpc::Status EvictClient(grpc::ServerContext *context, const v1::EvictClientRequest *request,
                             v1::EvictClientResponse *response) override;
    grpc::Status SetQuota(grpc::ServerContext *context, const v1::SetQuotaRequest *request,
                          v1::SetQuotaResponse *response) override;
    grpc::Status Reserve(grpc::ServerContext *context, const v1::ReserveRequest *request,
                         v1::ReserveResponse *response) override;
    grpc::Status GetPoolAttributes(grpc::ServerContext *context, const v1::GetPoolAttributesRequest *request,
                                   v1::GetPoolAttributesResponse *response) override;
    grpc::Status SetPoolAttributes(grpc::ServerContext *context, const v1::SetPoolAttributesRequest *request,
                                   v1::SetPoolAttributesResponse *response) override;
    grpc::Status GetStats(grpc::ServerContext *context, const v1::GetStatsRequest *request,
                          v1::GetStatsResponse *response) override;
    grpc::Status GetFragmentation(grpc::ServerContext *context, const v1::GetFragmentationRequest *request,
                                  v1::GetFragmentationResponse *response) override;
    grpc::Status GetMap(grpc::ServerContext *context, const v1::GetMapRequest *request,
                        v1::GetMapResponse *response) override;
    grpc::Status WatchEvents(grpc::ServerContext *context, const v1::WatchEventsRequest *request,
                             grpc::ServerWriter<v1::Event> *writer) override;
    grpc::Status GetMachine(grpc::ServerContext *context, const v1::GetMachineRequest *request,
                            v1::Machine *response) override;

private:
    Answer<PoolStatus> status_of(const std::string &pool);
    // OK, or the reason why this call should go no further.
    grpc::Status check_alive(const grpc::ServerContext &context) const;
    // Null if there are too many watchers already.
    std::shared_ptr<EventQueue> add_watcher();

    PoolManager &pools_;
    std::atomic<bool> ending_{false};
    std::shared_timed_mutex streams_;  // each stream holds it shared while it is served
    std::mutex watchers_mutex_;
    std::vector<std::weak_ptr<EventQueue>> watchers_;
};

}  // namespace numacre::daemon
