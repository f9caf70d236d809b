// A message with descriptors, from the daemon.
#pragma once

#include <sys/types.h>

#include <cstddef>

namespace numacre::client {

struct Received {
    ssize_t bytes = 0;  // 0: it has hung up; -1: errno says why
    int fds = 0;        // how many have come, all ours to close
    int flags = 0;      // MSG_TRUNC: there was more of the message; MSG_CTRUNC: there were more descriptors
};

// Waits for as long as the socket's SO_RCVTIMEO. room: descriptors that `fds` has place for, at most wire::kMaxFds;
// what comes beyond that is closed.
Received receive_with_fds(int connection, void *message, std::size_t bytes, int *fds, int room);

}  // namespace numacre::client
