#include "connect.hpp"

#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
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

int ask_on(int connection, const void *request, std::size_t request_bytes, wire::MessageType type, void *reply,
           std::size_t reply_bytes, int *fd, unsigned seconds) {
    const Deadline deadline{seconds};
    // EPIPE: as in an attach, a refusal can then still be read.
    if (!send_by(deadline, connection, request, request_bytes) && errno != EPIPE)
        return errno == EAGAIN ? no_answer(seconds)
                               : fail(Errc::daemon_gone, "cannot send to the daemon: %s", strerror(errno));
    // A refusal is an AttachReply, which is longer than any reply.
    auto *const received_bytes = static_cast<wire::AttachReply *>(calloc(1, sizeof(wire::AttachReply)));
    if (received_bytes == nullptr) return fail_without_memory("no memory for the daemon's reply");
    int received_fd = -1;
    const Received received =
        receive_by(deadline, connection, received_bytes, sizeof *received_bytes, &received_fd, fd != nullptr ? 1 : 0);
    const wire::WireHeader header = received_bytes->header;
    const auto is_whole = [&](wire::MessageType wanted, std::size_t bytes) {
        return received.bytes == static_cast<ssize_t>(bytes) && header.magic == wire::kMagic && header.type == wanted &&
               header.version == wire::kVersion && header.size_bytes == bytes;
    };
    int error = 0;
    if (received.bytes < 0 && errno == EAGAIN) {
        error = no_answer(seconds);
    } else if (received.bytes <= 0) {
        error = fail(Errc::daemon_gone, "the daemon closed the connection instead of an answer");
    } else if (is_whole(wire::MessageType::attach_reply, sizeof(wire::AttachReply)) && received_bytes->error != 0) {
        error = fail_refused(*received_bytes);
    } else if (!is_whole(type, reply_bytes)) {
        error = fail(Errc::version_mismatch, "the daemon's reply is not of wire version %u", wire::kVersion);
    } else if (fd != nullptr && received_fd < 0) {
        error = fail_with_remedy(Errc::too_many_clients,
                                 "no descriptor left in this process for what the daemon gives: raise the limit "
                                 "(ulimit -n), or close some");
    } else {
        memcpy(reply, received_bytes, reply_bytes);
    }
    if (error == 0 && fd != nullptr)
        *fd = received_fd;
    else if (received_fd >= 0)
        os::close(received_fd);
    free(received_bytes);
    return error;
}

int ask_daemon(const char *runtime_dir, const void *request, std::size_t request_bytes, wire::MessageType type,
               void *reply, std::size_t reply_bytes, int *fd, unsigned seconds) {
    sockaddr_un daemon{};
    if (const int error = address_of(runtime_dir, daemon)) return error;
    const int connection = make_socket();
    if (connection < 0) return connection;
    int error = connect_socket(connection, daemon);
    if (error == 0) error = ask_on(connection, request, request_bytes, type, reply, reply_bytes, fd, seconds);
    os::close(connection);
    return error;
}

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
