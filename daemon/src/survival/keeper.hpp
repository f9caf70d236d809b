// The keeper holds a pool's memory open while there is no daemon. It is systemd's descriptor store, a holder process of
// our own, or none. Thread-safe.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/failure.hpp"
#include "os/fd.hpp"

namespace numacre::daemon {

class Keeper {
public:
    // kind as in --keep-memory: "auto" (systemd under systemd, else a holder), "systemd", "holder", "off". A holder
    // process is found in the runtime directory or started. holder_program is the result of find_holder_program().
    static Answer<std::unique_ptr<Keeper>> create(std::string_view kind, const std::string &runtime_dir,
                                                  const std::string &holder_program);
    virtual ~Keeper() = default;

    virtual std::string_view kind() const = 0;
    // The files that an earlier daemon has kept, by name: all of them, or a failure. May be called once.
    virtual Answer<std::map<std::string, Fd>> inherited() = 0;
    // Keeps a descriptor. It stays ours, and must stay open until drop(): after a keeper's death it is given again.
    // Failures are logged: the pool works, but does not outlive the daemon.
    virtual void keep(const std::string &name, int fd) = 0;
    virtual void drop(const std::string &name) = 0;
    // The daemon ends. pidfds: the processes that still use the kept files. If there are none, nothing is kept any
    // longer.
    virtual void leave(std::span<const int> pidfds) = 0;
    // Becomes readable when the keeper has died; then revive() gets another one. -1: the keeper does not die before us,
    // or it has died and there is no other one yet: then revive() is to be tried again.
    virtual int death_fd() const { return -1; }
    virtual bool can_be_revived() const { return false; }
    // May take seconds.
    virtual void revive() {}
    // True if the keeper lacks files that it was given, or there is no keeper: revive() tries to mend that. Does not
    // wait.
    virtual bool is_lost() { return false; }
};

bool is_keeper_kind(std::string_view text);

// The path of numacre-holder, beside this program; empty: this program cannot be found by its path. To be called before
// take_own_proc(): in a chroot, the kernel gives this program's path from outside it to a process that has changed its
// mount namespace.
std::string find_holder_program();

}  // namespace numacre::daemon
