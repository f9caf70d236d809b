// The kernel's facts about another process. They are trusted only enough to be shown, except the pidfd.
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

// Tells a process from all others, for a daemon that knew it and for a later daemon. 0 in a field means unknown, which
// never makes two processes different.
struct ProcessIdentity {
    std::uint32_t pid = 0;        // 0: it lives in a pid namespace that we cannot see into
    std::uint64_t pid_space = 0;  // the pid namespace that the pid is a number of
    // The inode of its pidfd: since Linux 6.9 never used again until the machine is restarted.
    std::uint64_t pidfd_inode = 0;
    // Ticks since the machine's start, as a process outside of all time namespaces reads them.
    std::uint64_t start_time_ticks = 0;
};

enum class SameProcess : std::uint8_t { no, yes, unknown };
// `found` is the process that has the pid of `known` in its pid space now. no and yes are proofs.
SameProcess compare(const ProcessIdentity &known, const ProcessIdentity &found);

// The offset in ticks to add to start times that we read. text is the content of /proc/self/timens_offsets. No value:
// text is not of that form.
std::optional<std::int64_t> boot_time_offset_ticks(const std::string &text, long ticks_per_second);

// True if this process has one number from the pid namespace of its /proc down to its own, that is, if both are one
// namespace. status is the content of /proc/self/status.
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
    // The pidfd is the client's for certain. If false, it belongs to a process that has the client's pid: the client
    // itself, or a later process. When that process has ended, the client has, too; before that it counts as living.
    bool is_certain = true;

    ProcessIdentity identity() const { return {pid, pid_space, pidfd_inode, start_time_ticks}; }
};

// Reads only pid, uid and gid, by one system call. They are 0 and -1 if even that fails.
Peer credentials_of(int connection_fd);

// The supplementary groups of the process that connected, at the time of its connect(). The kernel copies and
// translates each group on the calling thread, and any user with a subordinate gid can have 65536 (1 ms): hence the
// bound. access_denied: there are more, or the kernel does not tell.
inline constexpr std::size_t kPeerGroupsMax = 1024;
Answer<std::vector<std::uint32_t>> groups_of(int connection_fd);

// A pidfd of the process at the other end of a unix socket: the one that connected, or the one that listened, whatever
// its number is in our pid namespace. Empty: errno has the reason; ENOPROTOOPT: before Linux 6.5.
Fd pidfd_of_peer(int connection_fd);

// The process that connected to a unix socket, without facts from /proc. Fails (with errno's text) if that process has
// ended already.
Answer<Peer> peer_of(int connection_fd);

// Adds facts from /proc to a peer: comm, cgroup, start time and stack. Reads four small files: not for callers without
// rights.
void describe(Peer &peer);

// Finds a process that was known, without uid and gid. No value: the process has ended, for certain. A null pidfd: the
// process cannot be told from others, and counts as living. That is for good if the pid is 0 or of another pid
// namespace than ours, else until a descriptor is free.
std::optional<Peer> find_peer(const ProcessIdentity &known);
// True if find_peer() may find more the next time.
bool can_be_found(const ProcessIdentity &known);

// Fills in the start time, if it was unknown and can be read now, of a process that the pidfd proves to be the
// client's.
void complete_identity(Peer &peer);

// True if the process has replaced its program (exec) since it had this stack: none of its mappings from then exists
// now, even if it maps those files again. False also if this cannot be told: without address space randomisation, or
// where /proc does not show the process or is another pid namespace's. The pid has to be one of our pid namespace. Does
// not wait for the process, whatever it is in the middle of (a read of its maps would).
bool has_executed(std::uint32_t pid, std::uint64_t stack_start);

bool has_ended(const Fd &pidfd);

// kill(2) by pidfd. Returns 0 or an errno.
int send_signal(const Fd &pidfd, int signal_number);
// Why no signal of ours can end the process, and the remedy. No value: a signal can, or the process has ended.
std::optional<std::string> why_beyond_signals(const Peer &peer);

}  // namespace numacre::daemon
