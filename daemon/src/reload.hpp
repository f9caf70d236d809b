// Applies the configuration while the daemon runs: to pools that were there before its start, and again after SIGHUP. A
// thread of its own does it, because it looks names up and makes pools, and a client can make the kernel wait.
#pragma once

#include <atomic>
#include <functional>
#include <utility>

#include "config.hpp"
#include "daemon.hpp"
#include "os/worker.hpp"

namespace numacre::daemon {

class Reload {
public:
    using Load = std::function<Result<Config, ConfigExit>()>;

    // running: the configuration that the daemon was started with. load: reads it again, as at the start. daemon
    // outlives the object.
    Reload(Daemon &daemon, Config running, Load load)
        : daemon_(daemon), running_(std::move(running)), load_(std::move(load)) {}
    // Waits for the pool in hand, not for the others.
    ~Reload() { is_ending_ = true; }
    Reload(const Reload &) = delete;
    Reload &operator=(const Reload &) = delete;

    // Returns at once, as again() does. For the pools that an earlier daemon has left.
    void reconcile_at_start();
    // A configuration that is refused changes nothing. Otherwise: pools that are missing are made, pools that are there
    // get the attributes that the configuration names, as far as these can change in use; other pools stay. Keys of the
    // daemon itself take effect at its next start. All of that is logged. Calls before the beginning of one that waits
    // are that one.
    void again();

private:
    void read_and_apply();
    void apply(const Config &config);
    void say_what_waits_for_a_restart(const Config &config) const;

    Daemon &daemon_;
    const Config running_;
    const Load load_;
    std::atomic<bool> is_due_{false};
    std::atomic<bool> is_ending_{false};
    Worker worker_{"numacred-reload"};  // the last member: its jobs use the others
};

}  // namespace numacre::daemon
