#include "control/control_server.hpp"

#include <fcntl.h>
#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/server_posix.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/token_bucket.hpp"
#include "control/control_service.hpp"
#include "control/printable.hpp"
#include "os/fd.hpp"
#include "os/fd_passing.hpp"
#include "os/socket_file.hpp"
#include "os/umask.hpp"
#include "spec/access.hpp"

namespace numacre::daemon {
namespace {

// Requests contain only names and numbers.
constexpr int kMaxRequestBytes = 64 * 1024;
constexpr std::size_t kMaxGrpcBytes = std::size_t{128} << 20;
// The limit of streams on a connection. A call takes a thread while it lasts, and the gate bounds the connections. A
// quota of threads (ResourceQuota::SetMaxThreads) is no alternative: each time that no thread can be had, gRPC 1.51
// loses one thread of the quota for good.
constexpr int kMaxStreams = 20;
constexpr int kMaxPingStrikes = 2;
constexpr int kIdleMs = 300'000;
constexpr int kKeepaliveMs = 60'000;
constexpr int kKeepaliveTimeoutMs = 20'000;
// The time for streams to end, and again the time for the last answers to go out. A call that takes longer than both is
// cancelled, and then waited for.
constexpr std::chrono::milliseconds kStopGrace{250};
// A pause between the two, in which callers of streams read why the streams have ended. gRPC closes a connection once
// the last answer on it is written. A caller that writes to a closed connection (an acknowledgement is enough) gets
// "Broken pipe" and nothing else.
constexpr std::chrono::milliseconds kReadGrace{50};

// gRPC 1.51 aborts the process if it cannot start the first threads of a server. So this function starts as many
// threads as gRPC's two servers begin with, and some more, as a test. Throws std::system_error.
void try_threads() {
    constexpr int kThreads = 24;
    std::mutex gate;
    std::vector<std::jthread> threads;
    const std::lock_guard closed(gate);  // until all threads run, or one could not be started; then they are joined
    for (int i = 0; i < kThreads; ++i) threads.emplace_back([&gate] { const std::lock_guard passes(gate); });
}

Unexpected<Failure> failed(Errc code, const std::string &socket_path, const std::string &what) {
    return Unexpected{Failure{code, "control socket " + quoted(socket_path) + ": " + what}};
}

std::string reason(int error) {
    return std::strerror(error);
}

// Removes a socket on which no process answers. A live daemon's socket stays, and is an error.
Answer<void> make_room(const std::string &socket_path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (socket_path.empty())
        return failed(Errc::bad_argument, socket_path, "the path is empty: set the runtime directory");
    if (socket_path.size() >= sizeof(address.sun_path))
        return failed(Errc::bad_argument, socket_path,
                      "the path has " + std::to_string(socket_path.size()) + " bytes, a unix socket's may have " +
                          std::to_string(sizeof(address.sun_path) - 1) + ": use a shorter runtime directory");
    socket_path.copy(address.sun_path, sizeof(address.sun_path) - 1);

    const auto slash = socket_path.rfind('/');
    const std::string directory = slash == std::string::npos ? "." : slash == 0 ? "/" : socket_path.substr(0, slash);
    struct stat found{};
    if (::stat(directory.c_str(), &found) != 0)
        return failed(Errc::bad_argument, socket_path,
                      "cannot use the directory " + quoted(directory) + " (" + reason(errno) + "): create it");
    if (!S_ISDIR(found.st_mode))
        return failed(Errc::bad_argument, socket_path, quoted(directory) + " is not a directory: use another");
    if (::access(directory.c_str(), W_OK | X_OK) != 0)
        return failed(Errc::access_denied, socket_path,
                      "cannot write to the directory " + quoted(directory) + " (" + reason(errno) +
                          "): change its mode or owner, or use another with --runtime-dir");

    if (::lstat(socket_path.c_str(), &found) != 0) return {};
    if (!S_ISSOCK(found.st_mode))
        return failed(Errc::bad_argument, socket_path, "something that is not a socket is there: remove or rename it");
    const int probe = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (probe < 0) return failed(Errc::daemon_gone, socket_path, "no socket to be had: " + reason(errno));
    const int connected = ::connect(probe, reinterpret_cast<const sockaddr *>(&address), sizeof(address));
    const int error = connected == 0 ? 0 : errno;
    ::close(probe);
    if (error == ECONNREFUSED || error == ENOENT) {
        // The daemon of this socket is gone.
        if (::unlink(socket_path.c_str()) == 0 || errno == ENOENT) return {};
        return failed(Errc::access_denied, socket_path, "a dead daemon's cannot be removed: " + reason(errno));
    }
    return failed(Errc::bad_argument, socket_path,
                  "it is taken, another daemon answers there: stop that one, or use another --runtime-dir");
}

// Sets the group first and then the mode, so that the mode never applies to another group. Works on a descriptor, not
// on the name: a user who may write to the folder could have put a link there meanwhile.
Answer<void> open_to(const std::string &socket_path, const ControlAccess &access) {
    const Fd made(::open(socket_path.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    struct stat status{};
    if (!made || ::fstat(made.get(), &status) != 0)
        return failed(Errc::access_denied, socket_path, "it is gone again: " + reason(errno));
    if (!S_ISSOCK(status.st_mode) || status.st_uid != ::geteuid())
        return failed(Errc::access_denied, socket_path, "somebody has put another file there: use another directory");
    if (status.st_gid != access.group &&
        ::fchownat(made.get(), "", static_cast<uid_t>(-1), access.group, AT_EMPTY_PATH) != 0)
        return failed(Errc::access_denied, socket_path,
                      "cannot give it to group " + quoted(group_name(access.group)) + " (" + reason(errno) +
                          "): run as root, or choose with --control-group one that this user is a member of");
    // For a descriptor of O_PATH this is the only chmod().
    const std::string by_descriptor = "/proc/self/fd/" + std::to_string(made.get());
    if (::chmod(by_descriptor.c_str(), access.mode) != 0)
        return failed(Errc::access_denied, socket_path,
                      "cannot set its mode to " + format_mode(access.mode) + ": " + reason(errno));
    return {};
}

Answer<Fd> listen_at(const std::string &socket_path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    socket_path.copy(address.sun_path, sizeof(address.sun_path) - 1);  // make_room() has checked the length
    Fd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!listener) return failed(Errc::daemon_gone, socket_path, "no socket to be had: " + reason(errno));
    refuse_descriptors(listener.get());
    const UmaskFor closed(0);
    if (::bind(listener.get(), reinterpret_cast<const sockaddr *>(&address), sizeof(address)) != 0 ||
        ::listen(listener.get(), SOMAXCONN) != 0)
        return failed(Errc::access_denied, socket_path,
                      "cannot listen there (" + reason(errno) + "): use another --runtime-dir");
    return listener;
}

// Sends the libraries' own lines to our log: by themselves the libraries write to stderr, and wait for its reader.
// Callers can make them write any number of lines, so the lines are limited to a rate.
void log_for_library(spdlog::level::level_enum level, const char *library, const std::string &message) {
    static std::mutex mutex;
    static TokenBucket lines(5, 50, std::chrono::steady_clock::now());
    static std::uint64_t left_out = 0;
    const std::scoped_lock lock{mutex};
    if (!lines.take(std::chrono::steady_clock::now())) {
        ++left_out;
        return;
    }
    const std::string missing = left_out == 0 ? "" : " (" + std::to_string(left_out) + " lines before were left out)";
    left_out = 0;
    spdlog::log(level, "{}: {}{}", library, printable(message), missing);
}
void log_for_grpc(gpr_log_func_args *line) {
    log_for_library(line->severity == GPR_LOG_SEVERITY_ERROR  ? spdlog::level::err
                    : line->severity == GPR_LOG_SEVERITY_INFO ? spdlog::level::info
                                                              : spdlog::level::debug,
                    "gRPC", line->message);
}
void log_for_protobuf(google::protobuf::LogLevel level, const char *, int, const std::string &message) {
    log_for_library(level >= google::protobuf::LOGLEVEL_ERROR ? spdlog::level::err : spdlog::level::info, "protobuf",
                    message);
}

}  // namespace

std::string socket_target(const std::string &socket_path) {
    static constexpr char kHex[] = "0123456789ABCDEF";
    static constexpr std::string_view kPlain = "/-._~";
    std::string target = "unix:";
    for (const char c : socket_path) {
        const auto byte = static_cast<unsigned char>(c);
        const bool alphanumeric =
            (byte >= '0' && byte <= '9') || (byte >= 'A' && byte <= 'Z') || (byte >= 'a' && byte <= 'z');
        if (alphanumeric || kPlain.find(c) != std::string_view::npos) {
            target += c;
        } else {
            target += '%';
            target += kHex[byte >> 4];
            target += kHex[byte & 15];
        }
    }
    return target;
}

// One kind of callers. Its calls have threads, memory and watchers that the other kind's calls cannot take.
struct ControlServer::Side {
    explicit Side(PoolManager &pools) : service(pools) {}

    bool start();
    void end_calls() {
        server->GetHealthCheckService()->SetServingStatus(false);
        service.end_streams(kStopGrace);
    }

    ControlService service;  // before the server: it must live until the server's threads have ended
    std::unique_ptr<grpc::Server> server;
};

struct ControlServer::Running {
    explicit Running(PoolManager &pools) : privileged(pools), others(pools) {}

    Side privileged;  // root and the daemon's own user
    Side others;
    std::optional<SocketFile> socket;
    std::optional<ControlGate> gate;  // destroyed before the servers: it hands connections to them
};

bool ControlServer::Side::start() {
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(kMaxRequestBytes);
    builder.SetResourceQuota(grpc::ResourceQuota{"numacre control"}.Resize(kMaxGrpcBytes));
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreams);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, kMaxPingStrikes);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kIdleMs);
    // Keepalive finds callers that are connected but do not answer any more.
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
    builder.RegisterService(&service);
    server = builder.BuildAndStart();
    if (server) server->GetHealthCheckService()->SetServingStatus(v1::Control::service_full_name(), true);
    return server != nullptr;
}

ControlServer::ControlServer(PoolManager &pools, std::string socket_path, ControlAccess access, ControlLimits limits)
    : pools_(pools), socket_path_(std::move(socket_path)), access_(access), limits_(limits) {}

ControlServer::~ControlServer() {
    stop();
}

Answer<void> ControlServer::start() {
    if (running_) return failed(Errc::bad_argument, socket_path_, "it is being served already: start once only");
    if (auto room = make_room(socket_path_); !room) return room;

    gpr_set_log_function(log_for_grpc);
    google::protobuf::SetLogHandler(log_for_protobuf);
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    try_threads();
    auto running = std::make_unique<Running>(pools_);
    for (Side *const side : {&running->privileged, &running->others})
        if (!side->start())
            return failed(Errc::access_denied, socket_path_, "gRPC cannot be started: see its line on stderr for why");
    auto listener = listen_at(socket_path_);
    if (!listener) return Unexpected{std::move(listener.error())};
    running_ = std::move(running);
    running_->socket.emplace(socket_path_);
    if (auto opened = open_to(socket_path_, access_); !opened) {
        stop();
        return opened;
    }
    running_->gate.emplace(
        std::move(*listener),
        [running = running_.get()](int fd, bool is_privileged) {
            const Side &side = is_privileged ? running->privileged : running->others;
            grpc::AddInsecureChannelFromFd(side.server.get(), fd);
        },
        limits_);
    return {};
}

void ControlServer::stop() {
    if (!running_) return;
    running_->socket.reset();
    if (running_->gate) running_->gate->stop_accepting();
    const std::array sides{&running_->privileged, &running_->others};
    for (Side *const side : sides) side->end_calls();
    std::this_thread::sleep_for(kReadGrace);
    const auto deadline = std::chrono::system_clock::now() + kStopGrace;
    for (Side *const side : sides) side->server->Shutdown(deadline);
    for (Side *const side : sides) side->server->Wait();
    if (running_->gate) running_->gate->finish(kStopGrace);
    // gRPC 1.51 counts timer threads that it could not start, and waits for them when its last server is destroyed: for
    // ever, in a daemon that has once been short of threads. So both servers, which have ended, are kept: the process
    // is about to end, too.
    static auto *const ended = new std::vector<std::unique_ptr<grpc::Server>>;
    for (Side *const side : sides) ended->push_back(std::move(side->server));
    running_.reset();
}

}  // namespace numacre::daemon
