// Closes what strangers have sent on its way to us. A connection takes along the descriptors that lie in it unread, and
// the last close of one of those may wait for whoever made it: a TCP socket that lingers, a file of a FUSE server. So
// that is a thread's own business, which gives each a few milliseconds (close_timer.hpp), and takes as long as it takes
// where that does not help. (Linux 6.16 and later refuse such packets on our socket: then there is nothing to wait
// for, and a close is made at once.)
#pragma once

#include <cstddef>
#include <memory>

#include "os/fd.hpp"

namespace numacre::daemon {

class Closer {
public:
    // at_once: nothing can have been sent that takes long to close.
    explicit Closer(bool at_once);
    // Does not wait: what is not closed yet the process's end closes, which lingers for nobody.
    ~Closer();
    Closer(const Closer &) = delete;
    Closer &operator=(const Closer &) = delete;

    // Any thread. Does not block.
    void close(Fd fd);
    // How many have not been closed yet.
    std::size_t backlog() const;

private:
    struct Shared;
    std::shared_ptr<Shared> shared_;  // null: at once
};

}  // namespace numacre::daemon
