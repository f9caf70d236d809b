// What systemd (or whoever set NOTIFY_SOCKET) is told. Without it every call does nothing.
#pragma once

#include <chrono>
#include <optional>
#include <string>

namespace numacre::daemon::service_manager {

void ready(const std::string &status);
void stopping();
void alive();
// How often it wants to hear alive(), if at all.
std::optional<std::chrono::milliseconds> watchdog_period();

}  // namespace numacre::daemon::service_manager
