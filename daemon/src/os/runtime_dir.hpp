// The directory of the daemon's sockets, held by one daemon at a time.
#pragma once

#include <chrono>
#include <string>

#include "base/failure.hpp"
#include "os/fd.hpp"

namespace numacre::daemon {

class RuntimeDir {
public:
    // Makes the directory if there is none, and takes it. Refused while another daemon holds it. Waits for a daemon
    // that is just ending, for `patience` at most.
    static Answer<RuntimeDir> open(const std::string &path, std::chrono::milliseconds patience = kExitPatience);

    const std::string &path() const { return path_; }
    std::string attach_socket() const { return path_ + "/attach.sock"; }
    std::string control_socket() const { return path_ + "/control.sock"; }
    // Removes a dead daemon's socket from the path. Refuses a file that is no socket, and a socket on which a process
    // still answers after `patience`. Blocks for `patience` at most.
    Answer<void> clear_socket(const std::string &socket_path, std::chrono::milliseconds patience = kPatience) const;

private:
    // A killed daemon's attach socket answers for a moment after the process is gone (some 10 ms on an idle machine):
    // only then does the kernel cancel the accepts of its io_uring.
    static constexpr std::chrono::seconds kPatience{5};
    // A daemon that was killed keeps its lock until the kernel has taken down its address space.
    static constexpr std::chrono::seconds kExitPatience{5};

    RuntimeDir(std::string path, Fd lock) : path_(std::move(path)), lock_(std::move(lock)) {}

    std::string path_;
    // The lock on numacred.lock in the directory. That file stays: two daemons could lock a file that comes and goes.
    // The directory itself is not locked, because others may open it, and so lock it.
    Fd lock_;
};

// A listening SEQPACKET socket, open to everybody (access is checked for each connection).
Answer<Fd> listen_for_clients(const std::string &socket_path);

}  // namespace numacre::daemon
