// The folder of the daemon's sockets, held by one daemon at a time.
#pragma once

#include <chrono>
#include <string>

#include "base/failure.hpp"
#include "os/fd.hpp"

namespace numacre::daemon {

class RuntimeDir {
public:
    // Makes the folder if there is none, and takes it: refused while another daemon lives there. One that is just
    // ending is waited for; blocks for `patience` at most.
    static Answer<RuntimeDir> open(const std::string &path, std::chrono::milliseconds patience = kExitPatience);

    const std::string &path() const { return path_; }
    std::string attach_socket() const { return path_ + "/attach.sock"; }
    std::string control_socket() const { return path_ + "/control.sock"; }
    // Removes what a dead daemon left at a socket's path. Refuses what is no socket, and a socket that somebody still
    // answers after `patience`. Blocks for as long as that.
    Answer<void> clear_socket(const std::string &socket_path, std::chrono::milliseconds patience = kPatience) const;

private:
    // A killed daemon's attach socket answers for a moment after the process is gone (some 10 ms on an idle machine):
    // the kernel cancels what its io_uring was accepting only then.
    static constexpr std::chrono::seconds kPatience{5};
    // A daemon that was killed keeps its lock until the kernel has taken down its address space.
    static constexpr std::chrono::seconds kExitPatience{5};

    RuntimeDir(std::string path, Fd lock) : path_(std::move(path)), lock_(std::move(lock)) {}

    std::string path_;
    // Of numacred.lock in the folder, which stays there: a file that comes and goes could be locked by two. Not of the
    // folder itself, which others may open, and so lock.
    Fd lock_;
};

// Listening, SEQPACKET, for everybody (access is checked for each connection).
Answer<Fd> listen_for_clients(const std::string &socket_path);

}  // namespace numacre::daemon
