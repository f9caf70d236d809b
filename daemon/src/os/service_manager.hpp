// What systemd (or whoever set NOTIFY_SOCKET) is told. Without it every call does nothing. The manager's socket takes a
// few messages at a time, from anybody on the machine, and a manager may not read: no call waits for longer than it
// says.
#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <string>

namespace numacre::daemon::service_manager {

// Sends one message (sd_notify(3)), with descriptors if there are any. Waits for so long at most; 0: not at all. 0 or
// an errno: EAGAIN if the manager did not take it in that time, ENOENT without a manager. Any thread.
int tell(const std::string &message, std::chrono::milliseconds patience, std::span<const int> fds = {});

// Does not wait. EAGAIN: to be told again, or the manager waits for it for ever.
int ready(const std::string &status);
// Waits for a second at most.
void stopping();
// Does not wait: the next one comes soon. For the event loop.
void alive();
// How often it wants to hear alive(), if at all.
std::optional<std::chrono::milliseconds> watchdog_period();

}  // namespace numacre::daemon::service_manager
