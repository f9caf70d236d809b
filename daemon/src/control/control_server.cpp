#include "control/control_server.hpp"

#include <fcntl.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "access.hpp"
#include "control/control_service.hpp"
#include "control/printable.hpp"

namespace numacre::daemon {
namespace {

// Requests are names and numbers.
constexpr int kMaxRequestBytes = 64 * 1024;
// Watchers take one each, so do resizes; beyond it calls are answered with RESOURCE_EXHAUSTED.
constexpr int kMaxThreads = 48;
// For streams to end, and then for answers that are almost out. Calls longer than both are told that they are
// cancelled, and then waited for.
constexpr std::chrono::milliseconds kStopGrace{250};
// In between, for callers of streams to read why these have ended. gRPC closes a connection once the last answer on it
// is written; a caller that writes (it need only acknowledge something) to one that is closed is told "Broken pipe" and
// nothing else.
constexpr std::chrono::milliseconds kReadGrace{50};

Unexpected<Failure> failed(Errc code, const std::string &socket_path, const std::string &what) {
    return Unexpected{Failure{code, "control socket " + quoted(socket_path) + ": " + what}};
}

std::string reason(int error) {
    return std::strerror(error);
}

// gRPC removes whatever socket lies at the path before it binds, a live daemon's too: so look first.
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
    if (error == ECONNREFUSED || error == ENOENT) return {};  // its daemon is gone; gRPC removes it
    return failed(Errc::bad_argument, socket_path,
                  "it is taken, another daemon answers there: stop that one, or use another --runtime-dir");
}

// gRPC makes the socket with whatever the umask leaves: nothing, for the life of this object.
class ClosedUmask {
public:
    ClosedUmask() : before_(::umask(S_IRWXU | S_IRWXG | S_IRWXO)) {}
    ClosedUmask(const ClosedUmask &) = delete;
    ClosedUmask &operator=(const ClosedUmask &) = delete;
    ~ClosedUmask() { ::umask(before_); }

private:
    mode_t before_;
};

// First the group, then the mode: never the mode for another group.
Answer<void> open_to(const std::string &socket_path, const ControlAccess &access) {
    struct stat made{};
    if (::lstat(socket_path.c_str(), &made) != 0)
        return failed(Errc::access_denied, socket_path, "it is gone again: " + reason(errno));
    if (made.st_gid != access.group && ::lchown(socket_path.c_str(), static_cast<uid_t>(-1), access.group) != 0)
        return failed(Errc::access_denied, socket_path,
                      "cannot give it to group " + quoted(group_name(access.group)) + " (" + reason(errno) +
                          "): run as root, or choose with --control-group one that this user is a member of");
    if (::chmod(socket_path.c_str(), access.mode) != 0)
        return failed(Errc::access_denied, socket_path,
                      "cannot set its mode to " + format_mode(access.mode) + ": " + reason(errno));
    return {};
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

struct ControlServer::Running {
    explicit Running(PoolManager &pools) : service(pools) {}

    ControlService service;  // before the server: it must live until the server's threads have ended
    std::unique_ptr<grpc::Server> server;
};

ControlServer::ControlServer(PoolManager &pools, std::string socket_path, ControlAccess access)
    : pools_(pools), socket_path_(std::move(socket_path)), access_(access) {}

ControlServer::~ControlServer() {
    stop();
}

Answer<void> ControlServer::start() {
    if (running_) return failed(Errc::bad_argument, socket_path_, "it is being served already: start once only");
    if (auto room = make_room(socket_path_); !room) return room;

    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    auto running = std::make_unique<Running>(pools_);
    int bound = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort(socket_target(socket_path_), grpc::InsecureServerCredentials(), &bound);
    builder.SetMaxReceiveMessageSize(kMaxRequestBytes);
    builder.SetResourceQuota(grpc::ResourceQuota{"numacre control"}.SetMaxThreads(kMaxThreads));
    builder.RegisterService(&running->service);
    {
        const ClosedUmask closed;
        running->server = builder.BuildAndStart();
    }
    if (!running->server || bound == 0)
        return failed(Errc::access_denied, socket_path_,
                      "gRPC cannot listen there: see its line on stderr for why, or use another --runtime-dir");
    running_ = std::move(running);
    if (auto opened = open_to(socket_path_, access_); !opened) {
        stop();
        return opened;
    }
    running_->server->GetHealthCheckService()->SetServingStatus(v1::Control::service_full_name(), true);
    return {};
}

void ControlServer::stop() {
    if (!running_) return;
    running_->server->GetHealthCheckService()->SetServingStatus(false);
    running_->service.end_streams(kStopGrace);
    std::this_thread::sleep_for(kReadGrace);
    running_->server->Shutdown(std::chrono::system_clock::now() + kStopGrace);
    running_->server->Wait();
    running_.reset();
}

}  // namespace numacre::daemon
