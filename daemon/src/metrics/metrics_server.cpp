#include "metrics/metrics_server.hpp"

#include <CivetServer.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <prometheus/exposer.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "control/printable.hpp"
#include "metrics/collector.hpp"
#include "spec/metrics_address.hpp"

namespace numacre::daemon {
namespace {

// A connection that sends no request, or one byte at a time, or does not read its answer, holds one thread until the
// time limit. So kThreads such connections a second cause no delay. More of them queue: N at once delay a scrape by N /
// kThreads times the limit.
constexpr const char *kThreads = "128";
constexpr const char *kTimeLimitMs = "1000";
constexpr const char *kRequestBytesMax = "8192";

struct Endpoint {
    sockaddr_storage address{};
    socklen_t size = 0;
};

Endpoint endpoint_of(const MetricsAddress &address) {
    Endpoint endpoint;
    sockaddr_in v4{};
    sockaddr_in6 v6{};
    if (::inet_pton(AF_INET, address.host.c_str(), &v4.sin_addr) == 1) {
        v4.sin_family = AF_INET;
        v4.sin_port = htons(address.port);
        std::memcpy(&endpoint.address, &v4, sizeof(v4));
        endpoint.size = sizeof(v4);
    } else if (::inet_pton(AF_INET6, address.host.c_str(), &v6.sin6_addr) == 1) {
        v6.sin6_family = AF_INET6;
        v6.sin6_port = htons(address.port);
        std::memcpy(&endpoint.address, &v6, sizeof(v6));
        endpoint.size = sizeof(v6);
    }
    return endpoint;
}

std::string spelled(const MetricsAddress &address) {
    const bool v6 = address.host.find(':') != std::string::npos;
    return (v6 ? '[' + address.host + ']' : address.host) + ':' + std::to_string(address.port);
}

bool is_loopback(const MetricsAddress &address) {
    return address.host.starts_with("127.") || address.host == "::1";
}

// Returns why the address cannot be listened on. The HTTP server does not tell; the kernel does, for an equal bind().
int bind_error(const MetricsAddress &address) {
    const Endpoint endpoint = endpoint_of(address);
    const int probe = ::socket(endpoint.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (probe < 0) return errno;
    const int yes = 1;
    ::setsockopt(probe, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));  // as the HTTP server does
    const auto *target = reinterpret_cast<const sockaddr *>(&endpoint.address);
    const bool listens = ::bind(probe, target, endpoint.size) == 0 && ::listen(probe, 1) == 0;
    const int error = listens ? 0 : errno;
    ::close(probe);
    return error;
}

// The HTTP server reads a body to its end after the answer, however long the sender takes: kTimeLimitMs does not hold
// there. So a request that announces a body is refused, and its connection closed. civetweb calls this.
int refuse_body(mg_connection *connection) {
    constexpr int kPayloadTooLarge = 413, kIsWithoutBody = 0;
    const bool has_body = mg_get_request_info(connection)->content_length > 0 ||
                          mg_get_header(connection, "Transfer-Encoding") != nullptr;
    if (!has_body) return kIsWithoutBody;
    mg_send_http_error(connection, kPayloadTooLarge, "%s",
                       "metrics are asked for without a body: send a GET without one");
    return kPayloadTooLarge;
}

// Opens a connection and closes it at once. Its success does not matter.
void knock(const Endpoint &endpoint) {
    const int knocker = ::socket(endpoint.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (knocker < 0) return;
    (void)::connect(knocker, reinterpret_cast<const sockaddr *>(&endpoint.address), endpoint.size);
    ::close(knocker);
}

}  // namespace

struct MetricsServer::Running {
    std::shared_ptr<Collector> collector;  // before the exposer: it must live until the exposer's threads have ended
    std::unique_ptr<prometheus::Exposer> exposer;
    Endpoint endpoint;
};

MetricsServer::MetricsServer(PoolManager &pools, std::string address)
    : pools_(pools), wanted_address_(std::move(address)) {}

MetricsServer::~MetricsServer() {
    stop();
}

Answer<void> MetricsServer::start() {
    auto address = parse_metrics_address(wanted_address_);
    if (!address)
        return Unexpected{Failure{address.error().code,
                                  "metrics address " + quoted(wanted_address_) + ": " + address.error().message}};
    if (running_)
        return Unexpected{Failure{Errc::bad_argument, "metrics are served on " + bound_address_ + " already"}};

    auto running = std::make_unique<Running>();
    running->collector = std::make_shared<Collector>(pools_);
    CivetCallbacks callbacks;
    callbacks.begin_request = refuse_body;
    try {
        running->exposer = std::make_unique<prometheus::Exposer>(
            std::vector<std::string>{"listening_ports", spelled(*address), "num_threads", kThreads,
                                     "request_timeout_ms", kTimeLimitMs, "enable_keep_alive", "no", "max_request_size",
                                     kRequestBytesMax},
            &callbacks);
    } catch (const std::exception &failure) {
        const int error = bind_error(*address);
        const std::string why = error != 0 ? std::strerror(error) : failure.what();
        const std::string remedy = error == EADDRINUSE ? "somebody else listens there: stop that, or use another port"
                                                         " with --metrics-address (port 0 picks one)"
                                                       : "use another with --metrics-address";
        const Errc code = error == EACCES       ? Errc::access_denied
                          : error == EADDRINUSE ? Errc::already_exists
                                                : Errc::bad_argument;
        return Unexpected{Failure{code, "cannot serve metrics on " + spelled(*address) + " (" + why + "): " + remedy}};
    }
    running->exposer->RegisterCollectable(running->collector);
    const std::vector<int> ports = running->exposer->GetListeningPorts();
    if (!ports.empty()) address->port = static_cast<std::uint16_t>(ports.front());
    bound_address_ = spelled(*address);
    running->endpoint = endpoint_of(*address);
    running_ = std::move(running);
    spdlog::info("metrics on http://{}/metrics", bound_address_);
    if (!is_loopback(*address))
        spdlog::warn("metrics on {} can be read by everybody who reaches it: there is no password", bound_address_);
    return {};
}

void MetricsServer::stop() {
    if (!running_) return;
    // The HTTP server's accepting thread checks for its end every two seconds, or when a connection comes.
    std::optional<std::jthread> knocking;
    try {
        knocking.emplace([endpoint = running_->endpoint](const std::stop_token &stopped) {
            while (!stopped.stop_requested()) {
                knock(endpoint);
                std::this_thread::sleep_for(std::chrono::milliseconds{10});
            }
        });
    } catch (const std::system_error &) {
        // No thread can be started: then the end takes those two seconds.
    }
    running_.reset();
    bound_address_.clear();
}

}  // namespace numacre::daemon
