// A numacred of the benchmark's own, with one pool: what processes share of numacre.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace numacre::bench {

// Small pages: nobody needs to reserve hugepages, and the workloads do not write into blocks.
inline constexpr const char *kDaemonBacking = "small";

class Daemon {
public:
    // Serves when the constructor returns. Throws Unavailable.
    explicit Daemon(std::uint64_t pool_bytes);
    ~Daemon();
    Daemon(const Daemon &) = delete;
    Daemon &operator=(const Daemon &) = delete;
    const std::string &runtime_dir() const { return runtime_dir_; }

private:
    void start(std::uint64_t pool_bytes);
    void wait_until_it_serves();
    void stop();
    std::string log_path() const { return runtime_dir_ + "/log"; }

    std::string runtime_dir_;
    pid_t pid_ = -1;
};

// The backing of pool 'default' of the daemon that serves this directory. Throws std::runtime_error.
std::string backing_of(const std::string &runtime_dir);

}  // namespace numacre::bench
