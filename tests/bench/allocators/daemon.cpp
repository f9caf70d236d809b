#include "daemon.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <thread>
#include <vector>

#include "adaptor.hpp"
#include "numacre/numacre.h"
#include "stage.hpp"

namespace numacre::bench {
namespace {

// CMake's choice; empty where the daemon is not built.
constexpr const char *kProgram = NUMACRE_BENCH_DAEMON;

std::string last_line(const std::string &path) {
    std::ifstream file(path);
    std::string line, last;
    while (std::getline(file, line))
        if (!line.empty()) last = line;
    return last;
}

}  // namespace

Daemon::Daemon(std::uint64_t pool_bytes) {
    if (!std::filesystem::exists(kProgram))
        throw Unavailable("numacred, which processes need to share a pool, was not built");
    if (pool_bytes > memory_bytes() / 2)
        throw Unavailable("numacred puts memory behind its whole pool, and " + std::to_string(pool_bytes >> 20) +
                          " MiB are more than half of this machine's memory");
    // Short: the path of a unix socket has to fit into 107 bytes.
    std::string name = "/tmp/numacre-bench-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make " + name + ": " + strerror(errno));
    runtime_dir_ = name;
    try {
        start(pool_bytes);
        wait_until_it_serves();
    } catch (...) {
        stop();
        throw;
    }
}

Daemon::~Daemon() {
    stop();
}

void Daemon::start(std::uint64_t pool_bytes) {
    const std::string bytes = std::to_string(pool_bytes);
    // One numa node, as a private pool has it, however many the machine has.
    std::vector<std::string> arguments{kProgram,
                                       "--config",
                                       "/dev/null",
                                       "--runtime-dir",
                                       runtime_dir_,
                                       "--metrics-address",
                                       "",
                                       "--topology",
                                       "synthetic:1x" + std::to_string(memory_bytes()),
                                       "--pool",
                                       "name=default,capacity=" + bytes + ",online=" + bytes +
                                           ",frame=" + std::to_string(kFrameBytes) +
                                           ",largest=" + std::to_string(kLargestBytes) + ",backing=" + kDaemonBacking};
    std::vector<char *> argv;
    for (std::string &argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    const int log = open(log_path().c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (log < 0) throw std::runtime_error("cannot make " + log_path() + ": " + strerror(errno));
    pid_ = fork();
    if (pid_ == 0) {
        // Whoever started the benchmark may end it at any time.
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        dup2(log, STDOUT_FILENO);
        dup2(log, STDERR_FILENO);
        execv(kProgram, argv.data());
        give_up(kProgram, -errno);
    }
    close(log);
    if (pid_ < 0) throw std::runtime_error(std::string("fork: ") + strerror(errno));
}

void Daemon::wait_until_it_serves() {
    using Clock = std::chrono::steady_clock;
    const auto deadline = Clock::now() + std::chrono::seconds(60);
    numacre_pool *pool = nullptr;
    while (numacre_attach(runtime_dir_.c_str(), nullptr, &pool) != 0) {
        if (waitpid(pid_, nullptr, WNOHANG) != 0) {
            pid_ = -1;
            throw Unavailable("numacred ended: " + last_line(log_path()));
        }
        if (Clock::now() > deadline) throw Unavailable("numacred does not serve: " + last_line(log_path()));
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    numacre_detach(pool);
}

void Daemon::stop() {
    if (pid_ > 0) {
        kill(pid_, SIGTERM);
        waitpid(pid_, nullptr, 0);
    }
    std::error_code ignored;
    std::filesystem::remove_all(runtime_dir_, ignored);
}

std::string backing_of(const std::string &runtime_dir) {
    numacre_pool *pool = nullptr;
    if (numacre_attach(runtime_dir.c_str(), nullptr, &pool) != 0) throw std::runtime_error(numacre_last_error());
    numacre_pool_info info{};
    info.struct_size = sizeof info;
    numacre_get_info(pool, &info);
    numacre_detach(pool);
    switch (info.backing) {
        case NUMACRE_BACKING_HUGETLB:
            return "hugetlb";
        case NUMACRE_BACKING_HUGETLB_1G:
            return "hugetlb-1g";
        case NUMACRE_BACKING_THP:
            return "thp";
        default:
            return kDaemonBacking;
    }
}

}  // namespace numacre::bench
