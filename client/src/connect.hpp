// Connections to the daemon's attach socket. Each function returns -errno with the error remembered if it fails.
#pragma once

#include <sys/un.h>

#include "engine.hpp"
#include "numacre/shm/attach_wire.hpp"

namespace numacre::client {

int address_of(const char *runtime_dir, sockaddr_un &address);
// The descriptor, which is closed on exec.
int make_socket();
// Waits for a place in the socket's queue.
int connect_socket(int connection, const sockaddr_un &address);
// Sends a request on a connection of its own to the daemon of a pool, and receives the reply: one message of
// reply_bytes and of this type, with a descriptor if fd is not null. A daemon that has been started since the attach
// will do. seconds: patience with the daemon.
int ask_daemon(const char *runtime_dir, const void *request, std::size_t request_bytes, wire::MessageType type,
               void *reply, std::size_t reply_bytes, int *fd, unsigned seconds);
// As ask_daemon(), on a connection that stands, and that stays open.
int ask_on(int connection, const void *request, std::size_t request_bytes, wire::MessageType type, void *reply,
           std::size_t reply_bytes, int *fd, unsigned seconds);
// The daemon has taken a request, and is silent.
[[gnu::cold]] int no_answer(unsigned seconds);
// The daemon has refused a request. Its sentence has the remedy. reply: its message gets an end.
[[gnu::cold]] int fail_refused(wire::AttachReply &reply);

}  // namespace numacre::client
