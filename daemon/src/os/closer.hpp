// Closes descriptors and connections from strangers without waiting for the strangers. A connection takes along the
// descriptors that lie in it unread, and the last close of such a descriptor may wait for the process that made it: a
// TCP socket that lingers, a file of a FUSE server. So a thread of its own does the closes. It gives each one a few
// milliseconds (close_timer.hpp), and waits as long as it takes where that does not help. (Linux 6.16 and later refuse
// packets with descriptors on our socket: then there is nothing to wait for, and a close is made at once.)
#pragma once

#include <cstddef>
#include <memory>

#include "os/fd.hpp"

namespace numacre::daemon {

class Closer {
public:
    // at_once: no process can have sent a descriptor that takes long to close.
    explicit Closer(bool at_once);
    // Does not wait: the end of the process closes the remaining descriptors, and lingers for none.
    ~Closer();
    Closer(const Closer &) = delete;
    Closer &operator=(const Closer &) = delete;

    // Any thread. Does not block.
    void close(Fd fd);
    // The number of descriptors that have not been closed yet.
    std::size_t backlog() const;

private:
    struct Shared;
    std::shared_ptr<Shared> shared_;  // null: closes are made at once
};

}  // namespace numacre::daemon
