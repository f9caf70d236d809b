// What the kernel says about another process. None of it is trusted further than to be shown, but for the pidfd.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/failure.hpp"
#include "os/fd.hpp"

namespace numacre::daemon {

// What tells a process from all others, for a daemon that knew it and one that comes later. 0 in any field: not known,
// which never makes two processes different.
struct ProcessIdentity {
    std::uint32_t pid = 0;        // 0: it lives in a pid namespace that we cannot see into
    std::uint64_t pid_space = 0;  // the pid namespace that the pid is a number of
    // The inode of its pidfd: since Linux 6.9 never used again until the machine is started anew.
    std::uint64_t pidfd_inode = 0;
    // Since the machine was started, as a process outside of all time namespaces reads it.
    std::uint64_t start_time_ticks = 0;
};

enum class SameProcess : std::uint8_t { no, yes, unknown };
// `found` has the pid of `known` in its pid space now. no and yes are proofs.
SameProcess compare(const ProcessIdentity &known, const ProcessIdentity &found);

// As the kernel writes it to /proc/self/timens_offsets, in ticks: what is added to start times that we read. Nothing:
// it is not that file's text.
std::optional<std::int64_t> boot_time_offset_ticks(const std::string &text, long ticks_per_second);

// Of /proc/self/status: whether this process has one number from the pid namespace of that /proc down to its own, that
// is, whether both are one namespace.
bool has_one_number(const std::string &status);

struct Peer {
    std::uint32_t pid = 0;  // 0: it lives in a pid namespace that we cannot see into
    std::uint32_t uid = 0;
    std::uint32_t gid = 0;
    std::string comm;
    std::string cgroup;
    std::uint64_t pid_space = 0, pidfd_inode = 0, start_time_ticks = 0;  // ProcessIdentity
    std::uint64_t stack_start = 0;    // changes when the process replaces its program; 0: not shown to us
    std::shared_ptr<const Fd> pidfd;  // names this very process for ever, however pids are reused
    // The pidfd is the client's, for certain. If not, it is of a process that has the client's pid: the client itself,
    // or one that came after it. When that has ended the client has, too; before that it counts as living.
    bool is_certain = true;

    ProcessIdentity identity() const { return {pid, pid_space, pidfd_inode, start_time_ticks}; }
};

// pid, uid and gid alone, by one system call. 0 and -1 when even that fails.
Peer credentials_of(int connection_fd);

// The supplementary groups of the process that connected, at the time when it did. The kernel copies and translates
// each, on the thread that asks, and any user with a subordinate gid can have 65536 (1 ms): hence the bound.
// access_denied: there are more, or the kernel does not say.
inline constexpr std::size_t kPeerGroupsMax = 1024;
Answer<std::vector<std::uint32_t>> groups_of(int connection_fd);

// Of the process at the other end of a unix socket: that which connected, or that which listened, whatever its number
// is in our pid namespace. Empty: errno says why; ENOPROTOOPT: before Linux 6.5.
Fd pidfd_of_peer(int connection_fd);

// The process that connected to a unix socket, without what /proc says. Fails (with errno's text) when that process has
// ended already.
Answer<Peer> peer_of(int connection_fd);

// What /proc says of a peer: comm, cgroup, start time and stack. Costs four small files: not for callers without
// rights.
void describe(Peer &peer);

// A process that was known, without uid and gid. Nothing: it has ended, for certain. pidfd null: it cannot be told, and
// counts as living; for good if the pid is 0 or of another pid namespace than ours, else until we have a descriptor
// left.
std::optional<Peer> find_peer(const ProcessIdentity &known);
// Whether find_peer() may say more the next time.
bool can_be_found(const ProcessIdentity &known);

// The start time, if it was not known and can be read now, of a process that the pidfd proves to be the one.
void complete_identity(Peer &peer);

// Whether the process has replaced its program (exec) since it had this stack: nothing that it had mapped then is
// mapped now, even if it maps the same files again. False also if it cannot be told: without address space
// randomisation, or where /proc does not show it or is another pid namespace's. The pid has to be one of our pid
// namespace. Does not wait for the process, whatever it is in the middle of (as reading its maps would).
bool has_executed(std::uint32_t pid, std::uint64_t stack_start);

bool has_ended(const Fd &pidfd);

// kill(2) by pidfd: 0 or an errno.
int send_signal(const Fd &pidfd, int signal_number);
// Why no signal of ours can end the process, and the remedy. Nothing: one can, or it has ended.
std::optional<std::string> why_beyond_signals(const Peer &peer);

}  // namespace numacre::daemon
