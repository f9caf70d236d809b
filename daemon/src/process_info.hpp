// What the kernel says about another process. None of it is trusted further than to be shown, but for the pidfd.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fd.hpp"
#include "region.hpp"

namespace numacre::daemon {

struct Peer {
    std::uint32_t pid = 0;  // 0: it lives in a pid namespace that we cannot see into
    std::uint32_t uid = 0;
    std::uint32_t gid = 0;
    std::vector<std::uint32_t> groups;  // supplementary; of a client of a daemon before us: unknown, empty
    std::string comm;
    std::string cgroup;
    std::uint64_t start_time_ticks = 0;
    std::uint64_t stack_start = 0;    // changes when the process replaces its program; 0: not shown to us
    std::shared_ptr<const Fd> pidfd;  // names this very process for ever, however pids are reused
};

// pid, uid and gid alone, by one system call. 0 and -1 when even that fails.
Peer credentials_of(int connection_fd);

// Who connected to a unix socket. Fails (with errno's text) when that process has ended already.
Answer<Peer> peer_of(int connection_fd);

// A process that was known by pid and start time, without uid and gid. Nothing: it has ended, for certain. pidfd null:
// it cannot be told (it lives in a pid namespace that we cannot see into, pid 0, or we have no descriptors left), and
// it counts as living.
std::optional<Peer> find_peer(std::uint32_t pid, std::uint64_t start_time_ticks);

// Whether the process has replaced its program (exec) since it had this stack: nothing that it had mapped then is
// mapped now, even if it maps the same files again. False also if it cannot be told: without address space
// randomisation, or where /proc does not show it.
bool has_executed(std::uint32_t pid, std::uint64_t stack_start);

bool has_ended(const Fd &pidfd);

// Whether a process maps one of these files. Nothing: cannot be told (no such process, or no permission).
std::optional<bool> maps_any(std::uint32_t pid, std::span<const FileIdentity> files);

// kill(2) by pidfd: 0 or an errno.
int send_signal(const Fd &pidfd, int signal_number);

}  // namespace numacre::daemon
