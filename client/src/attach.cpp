// The attach handshake: shm/attach_wire.hpp has the messages.
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <new>

#include "connect.hpp"
#include "errors.hpp"
#include "idle.hpp"
#include "numacre/os/kernel.hpp"
#include "pool.hpp"
#include "receive.hpp"
#include "record.hpp"
#include "report.hpp"
#include "struct_size.hpp"

namespace numacre::client {
namespace {

constexpr unsigned kHandshakeSeconds = 5;
// The daemon makes the pool first, and to reserve many hugepages takes long.
constexpr unsigned kObjectsSeconds = 60;
constexpr int kObjectsTries = 5;

const char *runtime_dir_or_default(const char *runtime_dir) {
    if (runtime_dir != nullptr && *runtime_dir != 0) return runtime_dir;
    const char *const from_environment = secure_getenv("NUMACRE_RUNTIME_DIR");
    return from_environment != nullptr && *from_environment != 0 ? from_environment : "/run/numacre";
}

int connect_to_daemon(const char *runtime_dir, numacre_pool *pool) {
    sockaddr_un address{};
    if (const int error = address_of(runtime_dir, address)) return error;
    // The handle gets the socket at once: another thread may fork (is_ours()).
    const int connection = pool->connection = make_socket();
    if (connection < 0) return connection;
    pool->connection_inode = inode_of(connection);
    return connect_socket(connection, address);
}

// Receives one reply and its fds; returns how many fds came, or -errno with the error remembered.
int receive_reply(unsigned seconds, const Deadline &deadline, int connection, wire::AttachReply &reply, int *fds) {
    const Received received = receive_by(deadline, connection, &reply, sizeof reply, fds, wire::kMaxFds);
    if (received.bytes < 0 && errno == EAGAIN) return no_answer(seconds);
    if (received.bytes <= 0) return fail(Errc::daemon_gone, "the daemon closed the connection during the handshake");
    const bool whole = static_cast<std::size_t>(received.bytes) == sizeof reply && reply.header.magic == wire::kMagic &&
                       (received.flags & MSG_TRUNC) == 0;
    if (!whole || reply.header.version != wire::kVersion || reply.header.type != wire::MessageType::attach_reply ||
        reply.header.size_bytes != sizeof reply) {
        for (int i = 0; i < received.fds; ++i) os::close(fds[i]);
        return fail(Errc::version_mismatch, "the daemon's reply is not of wire version %u", wire::kVersion);
    }
    if ((received.flags & MSG_CTRUNC) != 0) {
        for (int i = 0; i < received.fds; ++i) os::close(fds[i]);
        return fail_with_remedy(Errc::too_many_clients,
                                "this process has too few descriptors left for the pool's regions (%d of %u came): "
                                "raise its limit (ulimit -n), or close some, and attach again",
                                received.fds, 1 + 2 * reply.numa_node_count);
    }
    return received.fds;
}

// Copies a pool's name. Returns 0, or -errno with the error remembered.
int put_name(const char *name, std::array<char, kPoolNameBytes> &place) {
    const std::size_t length = strlen(name);
    if (length == 0 || length >= kPoolNameBytes)
        return fail_with_remedy(Errc::bad_argument, "pool name '%s' has %zu characters: use 1 to %zu", name, length,
                                kPoolNameBytes - 1);
    memcpy(place.data(), name, length);
    return 0;
}

// request: an AttachRequest or an ObjectsRequest. seconds: how long the daemon may take.
int shake_hands(unsigned seconds, numacre_pool *pool, const void *request, std::size_t request_bytes) {
    const Deadline deadline{seconds};
    // EPIPE: the daemon may have refused the connection by a limit before our request, and hung up. Its reply can then
    // still be read.
    if (!send_by(deadline, pool->connection, request, request_bytes) && errno != EPIPE)
        return errno == EAGAIN ? no_answer(seconds)
                               : fail(Errc::daemon_gone, "cannot send to the daemon: %s", strerror(errno));

    static_assert(std::is_trivially_copyable_v<wire::AttachReply>);
    auto *const reply = static_cast<wire::AttachReply *>(calloc(1, sizeof(wire::AttachReply)));
    if (reply == nullptr) return fail_without_memory("no memory for the handshake");
    int fds[wire::kMaxFds];
    const int count = receive_reply(seconds, deadline, pool->connection, *reply, fds);
    int result = count < 0 ? count : 0;
    if (count >= 0) {
        if (reply->error != 0) {
            result = fail_refused(*reply);
        } else if (reply->layout_version != kLayoutVersion) {
            result = fail(Errc::version_mismatch, "the daemon's shared layout is version %u, this library's is %u",
                          reply->layout_version, kLayoutVersion);
        } else if (count != 1 + 2 * reply->numa_node_count) {
            result =
                fail(Errc::corrupt, "the daemon sent %d descriptors for %u numa nodes", count, reply->numa_node_count);
        } else {
            result = map_regions(pool, *reply, fds);
            if (result == 0 && pool->keeps_descriptors) keep_descriptors(pool, fds);
        }
        for (int i = 0; i < count; ++i)
            if (fds[i] >= 0) os::close(fds[i]);
    }
    free(reply);
    return result;
}

}  // namespace

bool has_connection(const numacre_pool *pool) {
    return is_ours(pool->connection, pool->connection_inode);
}

void close_connection(numacre_pool *pool) {
    if (has_connection(pool)) os::close(pool->connection);
    pool->connection = -1;
}

}  // namespace numacre::client

using namespace numacre;
using namespace numacre::client;

extern "C" int numacre_attach(const char *runtime_dir, const char *pool_name, numacre_pool **pool) {
    const numacre_attach_options options{sizeof options, runtime_dir, pool_name, nullptr, 0};
    return numacre_attach_with(&options, pool);
}

namespace {

// Makes a handle by a request, an AttachRequest or an ObjectsRequest. name: of the pool.
int attach_by(const numacre_attach_options &wanted, const char *name, const void *request, std::size_t request_bytes,
              unsigned seconds, numacre_pool **pool) {
    const NotCancelled not_cancelled;
    if (const int error = start_recording()) return error;
    numacre_pool *const handle = new_handle();
    if (handle == nullptr) return fail_without_memory("no memory for a pool handle");
    // The handle is registered before it has a connection: a child that another thread forks meanwhile closes the
    // connection.
    if (!register_handle(handle)) {
        release_handle(handle);
        return fail_with_remedy(
            Errc::too_many_clients,
            "this process has too many pools open, or no memory or thread-specific key (PTHREAD_KEYS_MAX) for one "
            "more: detach from one");
    }
    handle->wished_span = static_cast<std::byte *>(wanted.address);
    handle->keeps_descriptors = (wanted.flags & NUMACRE_KEEP_DESCRIPTORS) != 0;
    snprintf(handle->runtime_dir, sizeof handle->runtime_dir, "%s", wanted.runtime_dir);
    snprintf(handle->name, sizeof handle->name, "%s", name);
    int error = read_checks(handle);
    if (error == 0) error = share_caches(handle);
    if (error == 0) error = connect_to_daemon(wanted.runtime_dir, handle);
    if (error == 0) error = shake_hands(seconds, handle, request, request_bytes);
    if (error != 0) {
        unmap_regions(handle);
        close_connection(handle);
        unregister_handle(handle);
        release_handle(handle);
        return error;
    }
    *pool = handle;
    return 0;
}

}  // namespace

extern "C" int numacre_attach_with(const numacre_attach_options *options, numacre_pool **pool) {
    if (pool == nullptr) return fail(Errc::bad_argument, "numacre_attach: the result pointer is NULL");
    numacre_attach_options wanted{};
    if (options != nullptr)
        if (const int error = read_options(*options, "numacre_attach_options", wanted)) return error;
    if ((wanted.flags & ~NUMACRE_KEEP_DESCRIPTORS) != 0)
        return fail_with_remedy(Errc::bad_argument,
                                "numacre_attach_options.flags is %#x: use 0 or NUMACRE_KEEP_DESCRIPTORS", wanted.flags);
    wanted.runtime_dir = runtime_dir_or_default(wanted.runtime_dir);
    const char *const name = wanted.pool_name != nullptr ? wanted.pool_name : "default";
    wire::AttachRequest request;
    if (const int error = put_name(name, request.pool_name)) return error;
    return attach_by(wanted, name, &request, sizeof request, kHandshakeSeconds, pool);
}

extern "C" int numacre_objects_open(numacre_pool *pool, const char *name, uint64_t object_bytes, uint64_t object_count,
                                    unsigned flags, numacre_pool **objects) {
    if (pool == nullptr) return no_pool("numacre_objects_open");
    if (objects == nullptr) return no_result("numacre_objects_open");
    if (name == nullptr) return fail(Errc::bad_argument, "numacre_objects_open: the name is NULL");
    if (pool->fork_generation != fork_generation()) return fail_forked();
    if (is_private(pool))
        return fail_with_remedy(Errc::bad_argument,
                                "a private pool has no daemon that would make objects: use "
                                "numacre_open_private with object_bytes");
    if ((flags & ~(NUMACRE_OBJECTS_PLAIN | NUMACRE_OBJECTS_KEEP_DESCRIPTORS)) != 0)
        return fail_with_remedy(
            Errc::bad_argument,
            "flags %#x are unknown: use 0, or NUMACRE_OBJECTS_PLAIN and NUMACRE_OBJECTS_KEEP_DESCRIPTORS", flags);
    wire::ObjectsRequest request;
    request.flags = (flags & NUMACRE_OBJECTS_PLAIN) != 0 ? wire::ObjectsRequest::kPlainObjects : 0;
    request.object_bytes = object_bytes;
    request.object_count = object_count;
    if (const int error = put_name(pool->name, request.within)) return error;
    if (const int error = put_name(name, request.name)) return error;
    char full_name[2 * kPoolNameBytes];
    snprintf(full_name, sizeof full_name, "%s.%s", pool->name, name);
    if (strlen(full_name) >= kPoolNameBytes)
        return fail_with_remedy(Errc::bad_argument,
                                "pool name '%s' has %zu characters instead of at most %zu: use a shorter name",
                                full_name, strlen(full_name), kPoolNameBytes - 1);
    const numacre_attach_options wanted{sizeof wanted, pool->runtime_dir, full_name, nullptr,
                                        (flags & NUMACRE_OBJECTS_KEEP_DESCRIPTORS) != 0 ? NUMACRE_KEEP_DESCRIPTORS : 0};
    // -ENOENT also where the pool has just lost its last client and is being deleted: the daemon makes it anew.
    int error = 0;
    for (int i = 0; i < kObjectsTries; ++i) {
        error = attach_by(wanted, full_name, &request, sizeof request, kObjectsSeconds, objects);
        if (error != -ENOENT) break;
        constexpr timespec kPause{0, 20'000'000};
        (void)nanosleep(&kPause, nullptr);
    }
    return error;
}

extern "C" void numacre_detach(numacre_pool *pool) {
    if (pool == nullptr) return;
    const NotCancelled not_cancelled;
    if (const int fd = event_fd_of(pool); fd >= 0) os::close(fd);
    if (pool->fork_generation != fork_generation()) {  // a forked child's copy: the pool is not mapped, and the daemon
                                                       // is not told
        close_guard(pool);
        close_descriptors(pool);
        close_private_bells(pool);
        close_connection(pool);
        delete_choices(pool);
        unregister_handle(pool);
        release_handle(pool);
        return;
    }
    if (recording()) record_detach(pool);
    leave_pool(pool);
    close_handle(pool);
    close_private_bells(pool);
    unmap_regions(pool);
    if (has_connection(pool)) {
        // Since unmap_regions() the daemon may give our blocks to others. Its reply confirms that it has.
        const Deadline deadline{kHandshakeSeconds};
        const wire::DetachRequest request;
        wire::DetachReply reply;
        if (send_by(deadline, pool->connection, &request, sizeof request))
            (void)receive_by(deadline, pool->connection, &reply, sizeof reply, nullptr, 0);
        close_connection(pool);
    }
    unregister_handle(pool);
    release_handle(pool);
}
