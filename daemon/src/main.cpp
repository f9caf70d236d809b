// numacred: wiring. The part that starts first ends last.

#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "config.hpp"
#include "control/control_server.hpp"
#include "daemon.hpp"
#include "memory/missing_pages.hpp"
#include "memory/topology.hpp"
#include "metrics/metrics_server.hpp"
#include "os/event_loop.hpp"
#include "os/log.hpp"
#include "os/own_proc.hpp"
#include "os/runtime_dir.hpp"
#include "os/service_manager.hpp"
#include "os/socket_file.hpp"
#include "reload.hpp"
#include "version.hpp"

namespace numacre::daemon {
namespace {

constexpr int kExitFailed = 1;  // 2: the configuration is wrong
// How long the end waits for the log's last lines to be written, in case they have a reader.
constexpr std::chrono::milliseconds kLastLines{2000};

int fail(const Failure &failure) {
    log::error("cannot start", {{"reason", failure.message}});
    return kExitFailed;
}

// The limits of connections. Within them the daemon never runs out of descriptors, no matter which users connect.
struct Connections {
    std::uint32_t attach = 0;     // two descriptors each
    ControlLimits control;        // three each
    std::uint64_t for_pools = 0;  // descriptors left for pools
};

// Descriptors for files that are read for a moment, and for connections to the metrics server.
constexpr std::uint64_t kFilesDescriptors = 64, kMetricsDescriptors = 128;
// Descriptors for pools beyond the configured ones.
constexpr std::uint64_t kMorePoolsDescriptors = 64;

// pools_wanted: the number of descriptors of the configured pools.
Connections connections_within(std::uint64_t descriptors, std::uint32_t attach_wanted, std::uint64_t pools_wanted) {
    constexpr std::uint64_t kControlShare = 16, kUserShare = 4, kMetricsShare = 8;
    Connections may;
    may.control.connections = std::clamp<std::uint64_t>(descriptors / kControlShare, 8, may.control.connections);
    may.control.reserved = may.control.of_a_user = may.control.connections / kUserShare;
    const std::uint64_t others =
        kFilesDescriptors + std::min(kMetricsDescriptors, descriptors / kMetricsShare) + 3ULL * may.control.connections;
    const std::uint64_t taken = others + pools_wanted + kMorePoolsDescriptors;
    const std::uint64_t left = descriptors > taken ? (descriptors - taken) / 2 : 0;
    may.attach = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(left, 1, attach_wanted));
    may.for_pools = descriptors - std::min<std::uint64_t>(descriptors, others + 2ULL * may.attach);
    if (may.attach < attach_wanted)
        log::warn("the open file limit allows fewer clients than configured",
                  {{"max_connections", attach_wanted},
                   {"allowed", may.attach},
                   {"open_files", descriptors},
                   {"remedy", "raise the hard limit (LimitNOFILE=, ulimit -Hn), or lower max-connections"}});
    return may;
}

std::uint64_t raise_open_file_limit() {
    rlimit limit{};
    constexpr std::uint64_t kUsual = 1024;
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return kUsual;
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &limit);
    return limit.rlim_cur;
}

// To be called before any thread is started: then all threads inherit the mask, and signals come only by the
// descriptor.
Answer<Fd> take_over_signals() {
    // Makes a limit on the size of files (ulimit -f) an error of the call that meets it.
    ::signal(SIGXFSZ, SIG_IGN);
    ::signal(SIGPIPE, SIG_IGN);
    sigset_t taken;
    sigemptyset(&taken);
    sigaddset(&taken, SIGTERM);
    sigaddset(&taken, SIGINT);
    // SIGHUP must not end the daemon: systemd takes an end by SIGHUP for a clean one, and gives up the pools that it
    // keeps.
    sigaddset(&taken, SIGHUP);
    ::pthread_sigmask(SIG_BLOCK, &taken, nullptr);
    Fd signals(::signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!signals)
        return Unexpected{Failure{Errc::access_denied, std::string("signalfd failed: ") + std::strerror(errno) +
                                                           "; raise the open file limit (ulimit -n)"}};
    return signals;
}

class Watchdog {
public:
    explicit Watchdog(EventLoop &loop) : loop_(loop), period_(service_manager::watchdog_period()) {
        if (period_) tick();
    }

private:
    void tick() {
        service_manager::alive();
        loop_.after(*period_, [this] { tick(); });
    }
    EventLoop &loop_;
    std::optional<std::chrono::milliseconds> period_;
};

// The server of metrics. Its port is free to any user of the machine: a user who takes the port while no daemon runs
// must not keep the next daemon from serving memory. So the start is repeated until the port is free; all other parts
// work meanwhile.
class Metrics {
public:
    Metrics(Daemon &daemon, const std::string &address) : daemon_(daemon), server_(daemon, address) {}

    // Fails if another try would not help.
    Answer<void> start() {
        auto started = server_.start();
        if (started) {
            daemon_.set_metrics_address(server_.address());
            return {};
        }
        if (started.error().code != Errc::already_exists) return started;
        if (!std::exchange(has_said_so_, true))
            log::error("no metrics: they are tried again every two seconds", {{"reason", started.error().message}});
        daemon_.loop().after(kPause, [this] {
            if (auto later = start(); !later) log::error("no metrics", {{"reason", later.error().message}});
        });
        return {};
    }
    void stop() { server_.stop(); }
    const std::string &address() const { return server_.address(); }

private:
    static constexpr std::chrono::seconds kPause{2};

    Daemon &daemon_;
    MetricsServer server_;
    bool has_said_so_ = false;
};

// Ends a daemon that makes no progress, because the kernel makes one of its threads wait (for a file that a client
// keeps busy), or a library waits for a thread that it could not start. This end is as safe as any other kill.
class LastResort {
public:
    LastResort() : thread_([this](const std::stop_token &ended) { watch(ended); }) {}

    // Ends the process after `patience`, unless disarm() or another arm() comes first.
    void arm(std::chrono::seconds patience, std::string what, std::string remedy) {
        set(std::chrono::steady_clock::now() + patience, std::move(what), std::move(remedy));
    }
    void disarm() { set(std::nullopt, {}, {}); }

private:
    using Time = std::chrono::steady_clock::time_point;

    void set(std::optional<Time> until, std::string what, std::string remedy) {
        {
            const std::lock_guard lock(mutex_);
            until_ = until;
            what_ = std::move(what);
            remedy_ = std::move(remedy);
            ++version_;
        }
        changed_.notify_all();
    }
    void watch(const std::stop_token &ended) {
        std::unique_lock lock(mutex_);
        while (!ended.stop_requested()) {
            const auto is_other = [this, version = version_] { return version_ != version; };
            if (!until_) {
                changed_.wait(lock, ended, is_other);
                continue;
            }
            const Time until = *until_;  // a copy: wait_until() reads it again without the lock
            if (changed_.wait_until(lock, ended, until, is_other) || ended.stop_requested()) continue;
            log::error(what_, {{"remedy", remedy_}});
            log::flush(kLastLines);
            ::_exit(EXIT_FAILURE);
        }
    }

    std::mutex mutex_;
    std::condition_variable_any changed_;
    std::optional<Time> until_;  // guarded by mutex_
    std::string what_, remedy_;  // guarded by mutex_
    std::uint64_t version_ = 0;  // guarded by mutex_
    std::jthread thread_;        // the last member: the thread uses the others
};

constexpr const char *kThreadsRemedy =
    "a limit on threads may be in the way: raise TasksMax=, pids.max, --pids-limit or ulimit -u (the daemon has some "
    "200)";
constexpr std::chrono::seconds kServersPatience{60};
constexpr std::chrono::seconds kEndPatience{30};

// Repeats the announcement later if the service manager is busy.
void announce(EventLoop &loop, const std::string &status) {
    if (service_manager::ready(status) == EAGAIN)
        loop.after(std::chrono::seconds(1), [&loop, status] { announce(loop, status); });
}

void obey_signals(EventLoop &loop, int signals, Reload &reload) {
    loop.when_readable(signals, [&loop, signals, &reload] {
        signalfd_siginfo signal{};
        const bool is_read = ::read(signals, &signal, sizeof signal) == sizeof signal;
        if (is_read && signal.ssi_signo != SIGHUP) {
            log::info("stopping", {{"signal", ::strsignal(static_cast<int>(signal.ssi_signo))}});
            return loop.stop();
        }
        if (is_read) reload.again();
        obey_signals(loop, signals, reload);
    });
}

// Twice the number that limited users may leave unread. The kernel counts the descriptors in flight of all processes of
// our user together (unix(7), ETOOMANYREFS). This daemon may have the capability to send more; other daemons of that
// user may not.
constexpr std::uint64_t kDescriptorsInFlight = 2048;

int serve(const Config &config, Reload::Load load, const std::string &holder_program) {
    const std::uint64_t open_files = raise_open_file_limit();
    auto signals = take_over_signals();
    if (!signals) return fail(signals.error());
    if (!survive_missing_pages())
        log::warn("a client can end the daemon where memory is short, by taking pages of metadata away",
                  {{"reason", std::strerror(errno)}, {"remedy", "free memory, and start the daemon again"}});
    LastResort last_resort;  // outlives the daemon, because it limits the time of the daemon's own end
    auto runtime_dir = RuntimeDir::open(config.runtime_dir);
    if (!runtime_dir) return fail(runtime_dir.error());
    for (const std::string &socket : {runtime_dir->attach_socket(), runtime_dir->control_socket()})
        if (auto cleared = runtime_dir->clear_socket(socket); !cleared) return fail(cleared.error());
    auto loop = EventLoop::create();
    if (!loop) return fail(loop.error());
    auto topology = make_topology(config.topology);
    if (!topology) return fail(topology.error());
    log::info("numacred starts", {{"version", kVersion},
                                  {"layout_version", kLayoutVersion},
                                  {"pid", ::getpid()},
                                  {"runtime_dir", config.runtime_dir},
                                  {"topology", (*topology)->source()},
                                  {"numa_nodes", (*topology)->numa_nodes().size()},
                                  {"config", config.file.empty() ? "none" : config.file}});

    const std::uint64_t of_a_pool = Daemon::descriptors_of_a_pool((*topology)->numa_nodes().size());
    const Connections may = connections_within(open_files, config.max_connections, config.pools.size() * of_a_pool);
    Daemon::Options options;
    options.descriptors_for_pools = may.for_pools;
    options.runtime_dir = config.runtime_dir;
    options.reserve_hugepages = config.reserve_hugepages;
    options.limits.connections = may.attach;
    options.limits.descriptors_in_flight = std::min(open_files, kDescriptorsInFlight);
    constexpr std::uint32_t kUserShare = 4;
    const std::uint64_t of_a_user =
        std::uint64_t{config.max_connections_per_user} * may.attach / config.max_connections;
    options.limits.of_a_user = {static_cast<std::uint32_t>(std::max<std::uint64_t>(of_a_user, 1)),
                                options.limits.silent_connections / kUserShare, config.max_connections_per_second};
    auto keeper = Keeper::create(config.keep_memory, config.runtime_dir, holder_program);
    if (!keeper) return fail(keeper.error());
    Daemon daemon(std::move(options), std::move(*topology), std::move(*loop), std::move(*keeper));
    if (config.discard_kept) {
        if (auto discarded = daemon.discard_kept(); !discarded) return fail(discarded.error());
        return EXIT_SUCCESS;
    }
    if (auto adopted = daemon.adopt_pools(); !adopted) return fail(adopted.error());
    const bool has_adopted = !daemon.pool_names().empty();
    for (const PoolSpec &spec : config.pools) {
        if (daemon.has_pool(spec.name)) {
            log::info("a configured pool is there already", {{"pool", spec.name}});
            continue;
        }
        if (auto created = daemon.create_pool(spec); !created) {
            // Clients that go on must not be without a daemon because of a pool that is not theirs.
            if (!has_adopted) return fail(created.error());
            log::error("a configured pool is not there: the pools that were kept are served without it",
                       {{"pool", spec.name},
                        {"reason", created.error().message},
                        {"remedy", "mend it, and make the pool with `numacre create`, or start the daemon again"}});
        }
    }
    if (config.pools.empty())
        log::warn(
            "no pool is configured: make one with `numacre create`, --pool or [[pool]] in the configuration file");

    auto listener = listen_for_clients(runtime_dir->attach_socket());
    if (!listener) return fail(listener.error());
    const SocketFile attach_socket(runtime_dir->attach_socket());
    daemon.serve_clients(std::move(*listener));

    last_resort.arm(kServersPatience, "the servers of metrics and control do not start", kThreadsRemedy);
    std::optional<Metrics> metrics;
    if (!config.metrics_address.empty()) {
        metrics.emplace(daemon, config.metrics_address);
        if (auto started = metrics->start(); !started) return fail(started.error());
    }
    ControlServer control(daemon, runtime_dir->control_socket(), {config.control_group, config.control_mode},
                          may.control);
    if (auto started = control.start(); !started) return fail(started.error());

    last_resort.disarm();

    EventLoop &running = daemon.loop();
    std::optional<Reload> reload(std::in_place, daemon, config, std::move(load));
    reload->reconcile_at_start();
    obey_signals(running, signals->get(), *reload);
    const Watchdog watchdog(running);
    announce(running, "serving " + std::to_string(daemon.pool_names().size()) + " pools in " + config.runtime_dir);
    log::info("serving", {{"attach_socket", runtime_dir->attach_socket()},
                          {"control_socket", runtime_dir->control_socket()},
                          {"metrics_address", metrics && !metrics->address().empty() ? metrics->address() : "off"}});
    running.run();

    last_resort.arm(kEndPatience, "the daemon cannot end in order, for the kernel makes it wait: it is killed",
                    "end the clients of the pool whose worker is stuck");
    service_manager::stopping();
    daemon.begin_shutdown();
    reload.reset();
    control.stop();
    if (metrics) metrics->stop();
    log::info("stopped");
    return EXIT_SUCCESS;
}

}  // namespace
}  // namespace numacre::daemon

namespace {

// Gives standard input, output and error a file where the caller has closed them: else the next file that is opened,
// perhaps a pool's memory, would get the number of standard error, and the log's lines.
void fill_standard_descriptors() {
    while (true) {
        const int fd = ::open("/dev/null", O_RDWR);
        if (fd > STDERR_FILENO) ::close(fd);
        if (fd < 0 || fd >= STDERR_FILENO) return;
    }
}

// Sets up one heap for all threads, which grows by large steps and never shrinks. A client can make one of our threads
// wait in the kernel with the lock of the address space. The event loop, which may need a little memory then, does not
// have to ask the kernel for it.
void keep_heap() {
    constexpr int kStepBytes = 16 << 20, kMmapFromBytes = 32 << 20;  // the largest value that glibc accepts
    mallopt(M_ARENA_MAX, 1);
    mallopt(M_TOP_PAD, kStepBytes);
    mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
    mallopt(M_MMAP_THRESHOLD, kMmapFromBytes);
}

}  // namespace

int main(int argc, char **argv) {
    using namespace numacre::daemon;
    fill_standard_descriptors();
    // From the first moment: a reload that comes while the daemon starts must not end it (take_over_signals()).
    ::signal(SIGHUP, SIG_DFL);
    sigset_t hang_up;
    sigemptyset(&hang_up);
    sigaddset(&hang_up, SIGHUP);
    ::pthread_sigmask(SIG_BLOCK, &hang_up, nullptr);
    keep_heap();
    const char *const from_environment = std::getenv("NUMACRE_RUNTIME_DIR");
    const auto load = [arguments = std::vector<std::string>(argv + 1, argv + argc),
                       runtime_dir = std::string(from_environment == nullptr ? "" : from_environment)] {
        return load_config(arguments, ::geteuid() == 0, runtime_dir);
    };
    const auto config = load();
    if (!config) {
        std::fputs(config.error().text.c_str(), config.error().code == 0 ? stdout : stderr);
        return config.error().code;
    }
    const std::string holder_program = find_holder_program();
    if (!config->check_only) take_own_proc();
    const auto format = config->log_format == "json" ? log::Format::json : log::Format::text;
    try {
        if (auto logging = log::setup(config->log_level, format); !logging) {
            std::fprintf(stderr, "numacred: %s\n", logging.error().message.c_str());
            return 2;
        }
    } catch (const std::system_error &failure) {
        std::fprintf(stderr, "numacred: no thread for the log (%s): %s\n", failure.what(), kThreadsRemedy);
        return EXIT_FAILURE;
    }
    if (config->check_only) {
        std::fputs(describe(*config).c_str(), stdout);
        return EXIT_SUCCESS;
    }
    int code = EXIT_FAILURE;
    try {
        code = serve(*config, load, holder_program);
    } catch (const std::system_error &failure) {
        // The standard library throws this when no thread can be started.
        log::error("cannot start", {{"reason", failure.what()}, {"remedy", kThreadsRemedy}});
    }
    log::flush(kLastLines);
    return code;
}
