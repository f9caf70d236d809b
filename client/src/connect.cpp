#include "connect.hpp"

#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "errors.hpp"
#include "numacre/os/kernel.hpp"
#include "receive.hpp"

namespace numacre::client {

namespace {

// connect() waits while the kernel's queue of the socket is full, for a place among all waiting processes. A long wait
// there does not mean that the daemon does not answer.
constexpr std::uint64_t kConnectSeconds = 30;

int no_place() {
    return fail(Errc::timed_out,
                "the daemon did not accept the connection within %d s: too many connect at once, or it is stopped",
                static_cast<int>(kConnectSeconds));
}

}  // namespace

int no_answer(unsigned seconds) {
    return fail(Errc::timed_out, "the daemon did not answer within %u s", seconds);
}

int fail_refused(wire::AttachReply &reply) {
    const Errc code = reply.error < kErrors.size() ? static_cast<Errc>(reply.error) : Errc::version_mismatch;
    reply.message.back() = 0;
    if (reply.message.front() == 0) return fail(code, "the daemon has refused it, and gave no reason");
    return fail_with_remedy(code, "%s", reply.message.data());
}

int address_of(const char *runtime_dir, sockaddr_un &address) {
    address.sun_family = AF_UNIX;
    const int length = snprintf(address.sun_path, sizeof address.sun_path, "%s/attach.sock", runtime_dir);
    if (length >= 0 && static_cast<std::size_t>(length) < sizeof address.sun_path) return 0;
    return fail_with_remedy(Errc::bad_argument,
                            "runtime directory '%s' is too long for a socket's path: use one of at most %zu bytes",
                            runtime_dir, sizeof address.sun_path - sizeof "/attach.sock");
}

int make_socket() {
    const int connection = os::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (connection >= 0) return connection;
    return fail_with_remedy(Errc::too_many_clients,
                            "cannot make a socket: %s: raise the limit of descriptors (ulimit -n), or close some",
                            strerror(errno));
}

int connect_socket(int connection, const sockaddr_un &address) {
    if (connect_by(Deadline{kConnectSeconds}, connection, address)) return 0;
    const int error = errno;
    if (error == EAGAIN) return no_place();
    if (error == EACCES || error == EPERM) return fail(Errc::access_denied, "no access to %s", address.sun_path);
    return fail(Errc::daemon_gone, "no daemon at %s (%s)", address.sun_path, strerror(error));
}

}  // namespace numacre::client
