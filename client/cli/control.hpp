// The daemon's control plane as the verbs see it. This header includes protobuf, but not gRPC.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>

#include "numacre/v1/control.pb.h"

namespace numacre::cli {

namespace v1 = ::numacre::v1;

// The daemon answered with an error. code is the canonical name, such as "NOT_FOUND".
struct CallError : std::runtime_error {
    CallError(std::string canonical_code, const std::string &message)
        : std::runtime_error(message), code(std::move(canonical_code)) {}
    std::string code;
    // From the error's details, for programs: the name "no_such_pool", and the remedy. Empty if the daemon sent none.
    std::string reason;
    std::string remedy;
};

// No process listens on the control socket.
struct NoDaemonError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Each call blocks until it has an answer or the time is up, and throws CallError or NoDaemonError.
class Control {
public:
    virtual ~Control() = default;
    virtual const std::string &socket_path() const = 0;

    virtual v1::ListPoolsResponse list_pools() = 0;
    virtual v1::Pool get_pool(const std::string &pool) = 0;
    virtual v1::Pool create_pool(const v1::CreatePoolRequest &request) = 0;
    virtual void delete_pool(const std::string &pool, bool force, bool abandon) = 0;
    // Hands each message to progress, on the calling thread; no time limit. Another thread calls keep_going about ten
    // times a second; once keep_going returns false the call is cancelled, which is no error.
    virtual void resize_pool(const v1::ResizePoolRequest &request,
                             const std::function<void(const v1::ResizeProgress &)> &progress,
                             const std::function<bool()> &keep_going) = 0;
    virtual v1::DrainChunkResponse drain_chunk(const v1::DrainChunkRequest &request) = 0;
    virtual v1::ListClientsResponse list_clients(const std::string &pool) = 0;
    virtual v1::ListBlocksResponse list_blocks(const v1::ListBlocksRequest &request) = 0;
    virtual v1::ListNamesResponse list_names(const std::string &pool) = 0;
    virtual void remove_name(const v1::RemoveNameRequest &request) = 0;
    virtual v1::ListChannelsResponse list_channels(const std::string &pool) = 0;
    virtual v1::RemoveChannelResponse remove_channel(const v1::RemoveChannelRequest &request) = 0;
    virtual void set_quota(const v1::SetQuotaRequest &request) = 0;
    virtual void reserve(const v1::ReserveRequest &request) = 0;
    virtual void evict_client(std::uint32_t client_id, std::chrono::milliseconds grace) = 0;
    virtual v1::GetPoolAttributesResponse get_pool_attributes(const std::string &pool) = 0;
    virtual v1::SetPoolAttributesResponse set_pool_attributes(const v1::SetPoolAttributesRequest &request) = 0;
    virtual v1::GetStatsResponse get_stats(const std::string &pool) = 0;
    virtual v1::GetFragmentationResponse get_fragmentation(const std::string &pool) = 0;
    virtual v1::GetMapResponse get_map(const std::string &pool, std::uint32_t numa_node, std::uint32_t cells) = 0;
    virtual v1::Machine get_machine() = 0;
};

std::string control_socket_path(const std::string &runtime_dir);

// Does not connect yet. Throws ArgumentError if the path does not fit a socket address.
std::unique_ptr<Control> connect_control(const std::string &runtime_dir, std::chrono::milliseconds timeout);

}  // namespace numacre::cli
