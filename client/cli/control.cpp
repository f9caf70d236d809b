#include "control.hpp"

#include <grp.h>
#include <grpcpp/grpcpp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>

#include "bytes.hpp"
#include "numacre/v1/control.grpc.pb.h"
#include "numacre/v1/error.pb.h"

namespace numacre::cli {
namespace {

// The daemon waits up to 10 s for clients to end, and then says which one did not; it waits 5 s for the memory to come
// back.
constexpr std::chrono::milliseconds kForcedDeletion{15'000};
constexpr std::int64_t kLongestHandshakeMs = 3'600'000;

const char *code_name(grpc::StatusCode code) {
    static constexpr std::array<const char *, 17> kNames{
        "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
        "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
        "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
        "DATA_LOSS", "UNAUTHENTICATED"};
    const auto index = static_cast<std::size_t>(code);
    return index < kNames.size() ? kNames[index] : "UNKNOWN";
}

// gRPC's target is a URI, in which a path may hold neither of these as they are.
std::string percent_encoded(const std::string &path) {
    static constexpr char kDigits[] = "0123456789ABCDEF";
    std::string result;
    for (const char character : path) {
        const auto byte = static_cast<unsigned char>(character);
        if (byte <= 0x20 || byte >= 0x7f || std::strchr("%?#\"<>\\^`{|}", character) != nullptr) {
            result += '%';
            result += kDigits[byte >> 4];
            result += kDigits[byte & 15];
        } else {
            result += character;
        }
    }
    return result;
}

// 0 if a process accepts connections at path, else the errno of connect().
int probe(const std::string &path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (socket < 0) return errno;
    const int result =
        ::connect(socket, reinterpret_cast<const sockaddr *>(&address), sizeof address) == 0 || errno == EAGAIN ? 0
                                                                                                                : errno;
    ::close(socket);
    return result;
}

// The remedy for a user who may not open the socket.
std::string who_may(const std::string &path) {
    struct stat found{};
    if (::stat(path.c_str(), &found) != 0) return "run this as root, or have its directory opened to this user";
    const group *const entry = ::getgrgid(found.st_gid);
    const std::string name = entry != nullptr ? entry->gr_name : std::to_string(found.st_gid);
    return "run this as root or as a member of group " + printable(name) +
           " (numacred's --control-group chooses the group)";
}

class GrpcControl final : public Control {
public:
    GrpcControl(std::string socket_path, std::chrono::milliseconds timeout)
        : socket_path_(std::move(socket_path)), timeout_(timeout) {}

    const std::string &socket_path() const override { return socket_path_; }

    v1::ListPoolsResponse list_pools() override {
        return call<v1::ListPoolsResponse>(&Stub::ListPools, v1::ListPoolsRequest{});
    }
    v1::Pool get_pool(const std::string &pool) override { return call_of_pool(&Stub::GetPool, pool); }
    v1::Pool create_pool(const v1::CreatePoolRequest &request) override {
        return call<v1::Pool>(&Stub::CreatePool, request);
    }
    void delete_pool(const std::string &pool, bool force, bool abandon) override {
        v1::DeletePoolRequest request;
        request.set_pool(pool);
        request.set_force(force);
        request.set_abandon(abandon);
        call<v1::DeletePoolResponse>(&Stub::DeletePool, request, force ? kForcedDeletion : std::chrono::milliseconds{});
    }
    void resize_pool(const v1::ResizePoolRequest &request,
                     const std::function<void(const v1::ResizeProgress &)> &progress,
                     const std::function<bool()> &keep_going) override {
        grpc::ClientContext context;
        std::atomic<bool> ended{false};
        std::atomic<bool> stopped{false};
        std::thread watcher([&] {
            // relaxed: each flag is a yes or no; join() hands over the data that the flags are about.
            while (!ended.load(std::memory_order_relaxed)) {
                if (!keep_going()) {
                    stopped.store(true, std::memory_order_relaxed);
                    context.TryCancel();
                    return;
                }
                std::this_thread::sleep_for(std::chrono::milliseconds(100));
            }
        });
        grpc::Status status;
        try {
            const auto reader = stub().ResizePool(&context, request);
            v1::ResizeProgress message;
            while (reader->Read(&message)) progress(message);
            status = reader->Finish();
        } catch (...) {
            ended.store(true, std::memory_order_relaxed);
            watcher.join();
            throw;
        }
        ended.store(true, std::memory_order_relaxed);
        watcher.join();
        const bool wanted =
            stopped.load(std::memory_order_relaxed) && status.error_code() == grpc::StatusCode::CANCELLED;
        if (!wanted) check(status, timeout_);
    }
    v1::DrainChunkResponse drain_chunk(const v1::DrainChunkRequest &request) override {
        return call<v1::DrainChunkResponse>(&Stub::DrainChunk, request);
    }
    v1::ListClientsResponse list_clients(const std::string &pool) override {
        return call_of_pool(&Stub::ListClients, pool);
    }
    v1::ListBlocksResponse list_blocks(const v1::ListBlocksRequest &request) override {
        return call<v1::ListBlocksResponse>(&Stub::ListBlocks, request);
    }
    v1::ListNamesResponse list_names(const std::string &pool) override { return call_of_pool(&Stub::ListNames, pool); }
    void remove_name(const v1::RemoveNameRequest &request) override {
        call<v1::RemoveNameResponse>(&Stub::RemoveName, request);
    }
    v1::ListChannelsResponse list_channels(const std::string &pool) override {
        return call_of_pool(&Stub::ListChannels, pool);
    }
    v1::RemoveChannelResponse remove_channel(const v1::RemoveChannelRequest &request) override {
        return call<v1::RemoveChannelResponse>(&Stub::RemoveChannel, request);
    }
    void reserve(const v1::ReserveRequest &request) override { call<v1::ReserveResponse>(&Stub::Reserve, request); }
    void set_quota(const v1::SetQuotaRequest &request) override {
        call<v1::SetQuotaResponse>(&Stub::SetQuota, request);
    }
    void evict_client(std::uint32_t client_id, std::chrono::milliseconds grace) override {
        v1::EvictClientRequest request;
        request.set_client_id(client_id);
        request.mutable_grace()->set_seconds(grace.count() / 1000);
        request.mutable_grace()->set_nanos(static_cast<std::int32_t>(grace.count() % 1000) * 1'000'000);
        // The daemon may answer only once the grace period is over.
        call<v1::EvictClientResponse>(&Stub::EvictClient, request, grace);
    }
    v1::GetPoolAttributesResponse get_pool_attributes(const std::string &pool) override {
        return call_of_pool(&Stub::GetPoolAttributes, pool);
    }
    v1::SetPoolAttributesResponse set_pool_attributes(const v1::SetPoolAttributesRequest &request) override {
        return call<v1::SetPoolAttributesResponse>(&Stub::SetPoolAttributes, request);
    }
    v1::GetStatsResponse get_stats(const std::string &pool) override { return call_of_pool(&Stub::GetStats, pool); }
    v1::GetFragmentationResponse get_fragmentation(const std::string &pool) override {
        return call_of_pool(&Stub::GetFragmentation, pool);
    }
    v1::GetMapResponse get_map(const std::string &pool, std::uint32_t numa_node, std::uint32_t cells) override {
        v1::GetMapRequest request;
        request.set_pool(pool);
        request.set_node(numa_node);
        request.set_cells(cells);
        return call<v1::GetMapResponse>(&Stub::GetMap, request);
    }
    v1::Machine get_machine() override { return call<v1::Machine>(&Stub::GetMachine, v1::GetMachineRequest{}); }

private:
    using Stub = v1::Control::Stub;

    // A call whose request names a pool, and nothing else.
    template <class Response, class Request>
    Response call_of_pool(grpc::Status (Stub::*method)(grpc::ClientContext *, const Request &, Response *),
                          const std::string &pool) {
        Request request;
        request.set_pool(pool);
        return call<Response>(method, request);
    }

    template <class Response, class Request>
    Response call(grpc::Status (Stub::*method)(grpc::ClientContext *, const Request &, Response *),
                  const Request &request, std::chrono::milliseconds extra = {}) {
        grpc::ClientContext context;
        const std::chrono::milliseconds patience = timeout_ + extra;
        context.set_deadline(std::chrono::system_clock::now() + patience);
        Response response;
        check((stub().*method)(&context, request, &response), patience);
        return response;
    }

    // A channel that failed is not used again: between short calls no thread polls the channel's new connection, so it
    // would find a restarted daemon only seconds later.
    Stub &stub() {
        if (stub_) return *stub_;
        grpc::ChannelArguments arguments;
        arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
        // Without this the new channel is given the connection of the old one.
        arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
        // A map of 65536 cells, or some thousands of clients, is beyond the 4 MiB that gRPC allows.
        arguments.SetMaxReceiveMessageSize(64 << 20);
        // The time limit of the daemon's handshake. It is longer than any call waits: a call to a daemon that is slow
        // to answer then runs out of time, and the daemon is not taken for absent.
        arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS,
                         static_cast<int>(std::min<std::int64_t>(timeout_.count(), kLongestHandshakeMs - 1000)) + 1000);
        stub_ = v1::Control::NewStub(grpc::CreateCustomChannel("unix:" + percent_encoded(socket_path_),
                                                               grpc::InsecureChannelCredentials(), arguments));
        return *stub_;
    }

    void check(const grpc::Status &status, std::chrono::milliseconds patience) {
        if (status.ok()) return;
        if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
            stub_.reset();
            const int error = probe(socket_path_);
            if (error == EACCES || error == EPERM) {
                throw CallError("PERMISSION_DENIED", "no access to " + socket_path_ + ": " + who_may(socket_path_));
            }
            if (error != 0) {
                const std::string runtime_dir = std::filesystem::path(socket_path_).parent_path().string();
                throw NoDaemonError("no daemon at " + socket_path_ + " (" + std::generic_category().message(error) +
                                    "): start it with `systemctl start numacred` or `numacred --runtime-dir " +
                                    runtime_dir + "`, or name the right directory with --runtime-dir");
            }
        }
        std::string message = status.error_message();
        // A status with details is the daemon's own answer: something there took too long.
        if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED && status.error_details().empty()) {
            message += ": no answer from " + socket_path_ + " within " + std::to_string(patience.count()) +
                       " ms. The daemon may still do it: look before you call again, and wait longer with --timeout";
        }
        CallError error(code_name(status.error_code()), message);
        v1::ErrorStatus details;
        v1::ErrorDetail detail;
        if (details.ParseFromString(status.error_details()) && details.details_size() != 0 &&
            detail.ParseFromString(details.details(0).value())) {
            error.reason = detail.reason();
            const auto remedy = detail.metadata().find("remedy");
            if (remedy != detail.metadata().end()) error.remedy = remedy->second;
        }
        throw error;
    }

    std::string socket_path_;
    std::chrono::milliseconds timeout_;
    std::unique_ptr<Stub> stub_;
};

}  // namespace

std::string control_socket_path(const std::string &runtime_dir) {
    return (std::filesystem::absolute(runtime_dir) / "control.sock").lexically_normal().string();
}

std::unique_ptr<Control> connect_control(const std::string &runtime_dir, std::chrono::milliseconds timeout) {
    std::string path = control_socket_path(runtime_dir);
    if (path.size() >= sizeof(sockaddr_un::sun_path)) {
        throw ArgumentError("the runtime directory '" + printable(runtime_dir) + "' is too long: " + path +
                            " does not fit a socket address of " + std::to_string(sizeof(sockaddr_un::sun_path) - 1) +
                            " bytes; use a shorter one");
    }
    return std::make_unique<GrpcControl>(std::move(path), timeout);
}

}  // namespace numacre::cli
