// Events that the daemon reports to a client: bits in the client's process record, and an eventfd that the daemon
// signals. A client that does not ask for them costs the daemon nothing.
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>

#include "errors.hpp"
#include "numacre/os/kernel.hpp"
#include "pool.hpp"
#include "receive.hpp"

using namespace numacre;
using namespace numacre::client;

static_assert(NUMACRE_EVENT_LOW_WATERMARK == EventBits::kLowWatermark &&
              NUMACRE_EVENT_LOW_WATERMARK_ENDED == EventBits::kLowWatermarkEnded &&
              NUMACRE_EVENT_SOFT_QUOTA == EventBits::kSoftQuota && NUMACRE_EVENT_RESIZED == EventBits::kResized &&
              NUMACRE_EVENT_EVICTION == EventBits::kEviction && NUMACRE_EVENT_DAMAGED == EventBits::kDamaged);

namespace {

constexpr std::uint64_t kPatienceSeconds = 5;

constexpr char kProcFds[] = "/proc/self/fd/", kProcInfos[] = "/proc/self/fdinfo/";

// path: has room for ten more digits. No library function is used: signal handlers call this, too.
void write_path(char *path, const char *folder, int fd) {
    while (*folder != '\0') *path++ = *folder++;
    int power = 1;
    while (fd / power >= 10) power *= 10;
    for (; power != 0; power /= 10) *path++ = static_cast<char>('0' + fd / power % 10);
    *path = '\0';
}

// True if the descriptor is an eventfd. Used when no descriptor is left to open the file of fdinfo.
bool is_an_eventfd(int fd) {
    constexpr char kName[] = "anon_inode:[eventfd]";
    char path[sizeof kProcFds + 10];
    write_path(path, kProcFds, fd);
    char name[sizeof kName];
    return os::readlink(path, name, sizeof name) == sizeof kName - 1 && std::memcmp(name, kName, sizeof kName - 1) == 0;
}

// True if the daemon that this pool was attached to has closed the connection, or has ended.
bool daemon_has_hung_up(const numacre_pool *pool) {
    if (!has_connection(pool)) return false;
    pollfd connection{pool->connection, 0, 0};
    return os::poll(&connection, 1, 0) == 1 && (connection.revents & POLLHUP) != 0;
}

int ask_for_descriptor(numacre_pool *pool) {
    if (pool->event_fd == numacre_pool::kNoEventFd)
        return fail_with_remedy(Errc::daemon_gone, "the daemon did not answer for events before: attach anew");
    if (!has_connection(pool))
        return fail_with_remedy(Errc::daemon_gone,
                                "this process has closed the connection to the daemon: attach anew for events");
    const wire::EventsRequest request;
    pool->event_fd = numacre_pool::kNoEventFd;  // a late reply must not be taken for another
    const Deadline deadline{kPatienceSeconds};
    if (!send_by(deadline, pool->connection, &request, sizeof request))
        return fail_with_remedy(Errc::daemon_gone,
                                "the daemon that this pool was attached to is gone (%s): attach anew for events",
                                strerror(errno));
    wire::EventsReply reply;
    int fd = -1;
    const Received received = receive_by(deadline, pool->connection, &reply, sizeof reply, &fd, 1);
    if (received.bytes < 0 && errno == EAGAIN) return fail(Errc::timed_out, "the daemon did not answer for events");
    if (received.bytes != static_cast<ssize_t>(sizeof reply) || reply.header.type != wire::MessageType::events_reply) {
        if (fd >= 0) os::close(fd);
        return fail_with_remedy(Errc::daemon_gone, "the daemon closed the connection: attach anew for events");
    }
    if (fd < 0 && (received.flags & MSG_CTRUNC) != 0)
        return fail_with_remedy(
            Errc::too_many_clients,
            "this process has no descriptor left for events (ulimit -n): close some and attach anew");
    if (fd < 0) {
        pool->event_fd = -1;  // a later call may ask again
        return fail_with_remedy(
            Errc::too_many_clients,
            "the daemon has no descriptor left for events: raise its open file limit (LimitNOFILE=)");
    }
    pool->event_fd_inode = inode_of(fd);
    pool->event_fd_id = eventfd_id_of(fd).value_or(0);
    pool->event_fd = fd;
    return 0;
}

}  // namespace

std::optional<std::uint64_t> numacre::client::eventfd_id_of(int fd) {
    char path[sizeof kProcInfos + 10];
    write_path(path, kProcInfos, fd);
    const int file = os::open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0 && (errno == EMFILE || errno == ENFILE) && !is_an_eventfd(fd)) return 0;
    if (file < 0) return std::nullopt;
    char text[512] = {};
    std::size_t bytes = 0;
    for (;;) {
        const ssize_t got = os::read(file, text + bytes, sizeof text - 1 - bytes);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        bytes += static_cast<std::size_t>(got);
    }
    os::close(file);
    const char *const line = std::strstr(text, "eventfd-id:");
    if (line == nullptr) return 0;
    std::uint64_t id = 0;
    for (const char *at = line + sizeof "eventfd-id:" - 1; *at != '\0' && *at != '\n'; ++at)
        if (*at >= '0' && *at <= '9') id = 10 * id + static_cast<std::uint64_t>(*at - '0');
    return 1 + id;
}

int numacre::client::event_fd_of(const numacre_pool *pool) {
    // acquire: the inode belongs to this descriptor.
    const int fd = pool->event_fd.load(std::memory_order_acquire);
    if (fd < 0 || inode_of(fd) != pool->event_fd_inode) return -1;
    const std::uint64_t known = pool->event_fd_id;
    return known == 0 || eventfd_id_of(fd).value_or(known) == known ? fd : -1;
}

extern "C" {

int numacre_event_fd(numacre_pool *pool, int *fd) {
    if (pool == nullptr || fd == nullptr)
        return fail(Errc::bad_argument, "numacre_event_fd: the %s is NULL",
                    pool == nullptr ? "pool" : "result pointer");
    if (pool->fork_generation != fork_generation()) return fail_forked();
    const NotCancelled not_cancelled;
    if (pool->connection < 0) return fail(Errc::bad_argument, "a private pool has no daemon that would tell of events");
    os::pthread_mutex_lock(&pool->asking);
    int error = 0;
    if (pool->event_fd < 0)
        error = ask_for_descriptor(pool);
    else if (event_fd_of(pool) < 0)
        error = fail_with_remedy(Errc::daemon_gone, "this process has closed the descriptor for events: attach anew");
    else if (daemon_has_hung_up(pool))
        error = fail_with_remedy(
            Errc::daemon_gone,
            "the daemon that this pool was attached to is gone, and nobody signals its descriptor for events any "
            "more: attach anew for events");
    if (error == 0) *fd = pool->event_fd;
    os::pthread_mutex_unlock(&pool->asking);
    return error;
}

int numacre_events(numacre_pool *pool, uint32_t *events) {
    if (pool == nullptr || events == nullptr)
        return fail(Errc::bad_argument, "numacre_events: the %s is NULL", pool == nullptr ? "pool" : "result pointer");
    if (pool->fork_generation != fork_generation()) return fail_forked();
    const NotCancelled not_cancelled;
    std::uint64_t signals = 0;
    // The read comes first: a bit that is set after it signals again.
    if (const int fd = event_fd_of(pool); fd >= 0) (void)!os::read(fd, &signals, sizeof signals);
    // seq_cst: stays behind the read. The daemon sets bits before it signals.
    *events = static_cast<std::uint32_t>(
        pool->view.processes[pool->process.value].news.exchange(0, std::memory_order_seq_cst));
    return 0;
}

}  // extern "C"
