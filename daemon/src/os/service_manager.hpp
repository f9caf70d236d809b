// Messages to systemd (or any other process that set NOTIFY_SOCKET). Without NOTIFY_SOCKET every call does nothing. The
// manager's socket takes a few messages at a time, from anyone on the machine, and a manager may not read: no call
// waits for longer than its comment says.
#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <string>

namespace numacre::daemon::service_manager {

// Sends one message (sd_notify(3)), with descriptors if there are any. Waits for `patience` at most; 0: not at all.
// Returns 0 or an errno: EAGAIN if the manager did not take the message in that time, ENOENT without a manager. Any
// thread.
int tell(const std::string &message, std::chrono::milliseconds patience, std::span<const int> fds = {});

// Does not wait. EAGAIN: ready() has to be called again, or the manager waits for the message for ever.
int ready(const std::string &status);
// Waits for a second at most.
void stopping();
// Does not wait: the next message comes soon. For the event loop.
void alive();
// How often the manager wants alive(), if at all.
std::optional<std::chrono::milliseconds> watchdog_period();

}  // namespace numacre::daemon::service_manager
