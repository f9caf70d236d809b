#include "os/service_manager.hpp"

#include <systemd/sd-daemon.h>

#include <algorithm>
#include <cstdint>

namespace numacre::daemon::service_manager {

void ready(const std::string &status) {
    sd_notify(0, ("READY=1\nSTATUS=" + status).c_str());
}

void stopping() {
    sd_notify(0, "STOPPING=1\nSTATUS=giving memory back");
}

void alive() {
    sd_notify(0, "WATCHDOG=1");
}

std::optional<std::chrono::milliseconds> watchdog_period() {
    std::uint64_t limit_us = 0;
    if (sd_watchdog_enabled(0, &limit_us) <= 0) return std::nullopt;
    // Half of what is allowed, as sd_watchdog_enabled(3) advises.
    return std::max(std::chrono::milliseconds(1), std::chrono::milliseconds(limit_us / 2000));
}

}  // namespace numacre::daemon::service_manager
