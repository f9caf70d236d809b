// Connections to the daemon's attach socket. Each function returns -errno with the error remembered if it fails.
#pragma once

#include <sys/un.h>

#include <cstddef>

#include "engine.hpp"
#include "numacre/shm/attach_wire.hpp"

namespace numacre::client {

int address_of(const char *runtime_dir, sockaddr_un &address);
// The descriptor, which is closed on exec.
int make_socket();
// Waits for a place in the socket's queue.
int connect_socket(int connection, const sockaddr_un &address);
// The daemon has taken a request, and is silent.
[[gnu::cold]] int no_answer(unsigned seconds);
// The daemon has refused a request. Its sentence has the remedy. reply: its message gets an end.
[[gnu::cold]] int fail_refused(wire::AttachReply &reply);

// A request on a connection of its own: sends it, and receives the reply of this type, or the daemon's refusal
// (AttachReply). Waits for `seconds` at most. fd: null, or a place for the descriptor that has to come with the reply.
// Works with a daemon that has been restarted since the attach.
int ask_daemon(const char *runtime_dir, const void *request, std::size_t request_bytes, wire::MessageType reply_type,
               void *reply, std::size_t reply_bytes, int *fd, unsigned seconds);

}  // namespace numacre::client
