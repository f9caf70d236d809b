#include "bells.hpp"

#include <fcntl.h>
#include <linux/aio_abi.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "channel.hpp"
#include "connect.hpp"
#include "errors.hpp"
#include "numacre/os/kernel.hpp"
#include "numacre/shm/channel/bells.hpp"
#include "pool.hpp"
#include "receive.hpp"
#include "report.hpp"

namespace numacre::client {
namespace {

// As for an opening of a channel.
constexpr unsigned kBellSeconds = 30;
constexpr std::uint64_t kLeftAloneNanoseconds = 10'000'000;

bool is_open(const KeptFd &kept) {
    return kept.fd >= 0 && is_ours(kept.fd, kept.inode);
}
KeptFd keep(int fd) {
    return {fd, inode_of(fd)};
}
void drop(KeptFd &kept) {
    if (is_open(kept)) os::close(kept.fd);
    kept = {};
}

// False: the number is another file's by now. An eventfd does not block, unless its party makes it block and fills it:
// those who have a pool trust each other that far, as they can write into each other's blocks.
bool ring_one(const KeptFd &bell) {
    if (!is_open(bell)) return false;
    constexpr std::uint64_t kOne = 1;
    // A bell that has been rung 2^64 times is readable, too.
    return os::write(bell.fd, &kOne, sizeof kOne) == sizeof kOne || errno == EAGAIN;
}

wire::BellRequest request_of(const numacre_pool *pool, wire::BellRequest::Wish wish) {
    wire::BellRequest request;
    request.process_slot = pool->process.value;
    request.process_generation = pool->process_generation;
    request.instance_id = pool->instance_id;
    request.wish = wish;
    return request;
}

bool is_whole(const Received &received, const wire::BellReply &reply) {
    return received.bytes == static_cast<ssize_t>(sizeof reply) && (received.flags & MSG_TRUNC) == 0 &&
           reply.header.magic == wire::kMagic && reply.header.type == wire::MessageType::bell_reply &&
           reply.header.version == wire::kVersion && reply.header.size_bytes == sizeof reply;
}

// --- the bells of others ---------------------------------------------------------------------------------------------

void end_asking(HandleBells &bells, OtherBell &other) {
    if (other.asking.fd < 0) return;
    drop(other.asking);
    --bells.asking;
}

// Looks whether the daemon has replied. True: it has not yet, and will ring the bell when it does.
bool is_on_its_way(HandleBells &bells, OtherBell &other) {
    if (other.asking.fd < 0) return false;
    if (!is_open(other.asking)) {
        other.asking = {};
        --bells.asking;
        return false;
    }
    wire::BellReply reply;
    int fd = -1;
    const Received received = receive_by(Deadline{0}, other.asking.fd, &reply, sizeof reply, &fd, 1);
    if (received.bytes < 0 && errno == EAGAIN) return true;
    end_asking(bells, other);
    if (fd >= 0 && is_whole(received, reply) && reply.serial == other.serial) {
        other.bell = keep(fd);
        return false;
    }
    if (fd >= 0) os::close(fd);
    // Refused, or the daemon has ended. It has perhaps not rung.
    other.serial = 0;
    bells.not_before = now_nanoseconds() + kLeftAloneNanoseconds;
    return false;
}

// Asks for the bell, and does not wait for the reply. False: the daemon cannot be asked now.
bool ask_for(numacre_channel *channel, OtherBell &other, std::uint64_t serial) {
    HandleBells &bells = channel->bells;
    if (bells.not_before != 0 && now_nanoseconds() < bells.not_before) return false;
    bells.not_before = 0;
    const auto give_up = [&](int connection) {
        if (connection >= 0) os::close(connection);
        bells.not_before = now_nanoseconds() + kLeftAloneNanoseconds;
        return false;
    };
    sockaddr_un daemon{};
    if (address_of(channel->pool->runtime_dir, daemon) != 0) return false;
    const int connection = os::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (connection < 0) return give_up(connection);
    wire::BellRequest request = request_of(channel->pool, wire::BellRequest::Wish::fetch);
    request.serial = serial;
    if (os::connect(connection, reinterpret_cast<const sockaddr *>(&daemon), sizeof daemon) != 0 ||
        os::send(connection, &request, sizeof request, MSG_NOSIGNAL | MSG_DONTWAIT) !=
            static_cast<ssize_t>(sizeof request))
        return give_up(connection);
    other.serial = serial;
    other.asking = keep(connection);
    ++bells.asking;
    return true;
}

enum class Rung : std::uint8_t { yes, by_the_daemon, not_now };

Rung ring_party(numacre_channel *channel, std::uint32_t party, std::uint64_t serial) {
    HandleBells &bells = channel->bells;
    // Its own thread looks at the ring before it sleeps.
    if (party == channel->party)
        return serial == bells.serial && ring_one(bells.bell) ? Rung::yes : Rung::by_the_daemon;
    OtherBell &other = bells.others[party - 1];
    if (is_on_its_way(bells, other)) {
        if (other.serial == serial) return Rung::by_the_daemon;
        end_asking(bells, other);  // for an earlier bell of this party
    }
    if (other.serial == serial && ring_one(other.bell)) return Rung::yes;
    drop(other.bell);
    other.serial = 0;
    return ask_for(channel, other, serial) ? Rung::by_the_daemon : Rung::not_now;
}

// --- of a private pool -----------------------------------------------------------------------------------------------

// A bell of a private pool stays until the pool is closed, for the next user of the party slot: somebody may be about
// to ring it.
std::atomic<int> &private_bell(numacre_channel *channel, std::uint32_t party) {
    return channel->pool->private_channels
        .bells[channel->seat.value - kFirstPrivateChannel.value][party - 1];  // descriptor + 1; 0: none yet
}

bool ring_private(numacre_channel *channel, std::uint32_t party) {
    const int fd = private_bell(channel, party).load(std::memory_order_acquire) - 1;
    return fd >= 0 && ring_one({fd, channel->pool->private_channels.bell_inode.load(std::memory_order_relaxed)});
}

int make_private(numacre_channel *channel) {
    std::atomic<int> &there = private_bell(channel, channel->party);
    int fd = there.load(std::memory_order_acquire) - 1;
    // The program may have closed it, although it must not: the number is perhaps another file's.
    if (fd < 0 || !is_open({fd, channel->pool->private_channels.bell_inode.load(std::memory_order_relaxed)})) {
        fd = os::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (fd < 0)
            return fail_with_remedy(Errc::too_many_clients,
                                    "no descriptor left in this process (%s): raise the limit (ulimit -n), or close "
                                    "some",
                                    strerror(errno));
        // All eventfds have one inode. relaxed: the store behind it carries it.
        channel->pool->private_channels.bell_inode.store(inode_of(fd), std::memory_order_relaxed);
        there.store(fd + 1, std::memory_order_release);
    }
    channel->bells.bell = keep(fd);
    channel->bells.serial = static_cast<std::uint64_t>(fd) + 1;
    return 0;
}

// --- the own bell ----------------------------------------------------------------------------------------------------

bool has_daemon_hung_up(const HandleBells &bells) {
    if (!is_open(bells.lifeline)) return true;
    pollfd lifeline{bells.lifeline.fd, 0, 0};
    return os::poll(&lifeline, 1, 0) != 0;
}

// Has the kernel ring the bell when the daemon ends: a request of Linux's AIO waits for the end of the lifeline, and
// the bell is its result descriptor. So a party that sleeps learns that it needs another bell, although no thread of
// this process looks. Without AIO in the kernel (or behind a filter of system calls) it learns when it is armed next.
void let_the_kernel_ring(HandleBells &bells) {
    aio_context_t context = 0;
    if (os::io_setup(1, &context) != 0) return;
    iocb request{};
    request.aio_lio_opcode = IOCB_CMD_POLL;
    request.aio_fildes = static_cast<std::uint32_t>(bells.lifeline.fd);
    request.aio_buf = POLLIN | POLLHUP;
    request.aio_flags = IOCB_FLAG_RESFD;
    request.aio_resfd = static_cast<std::uint32_t>(bells.bell.fd);
    iocb *requests[] = {&request};
    if (os::io_submit(context, 1, requests) == 1)
        bells.hang_up_watch = context;
    else
        os::io_destroy(context);
}

void forget_own(HandleBells &bells) {
    if (bells.hang_up_watch != 0) os::io_destroy(std::exchange(bells.hang_up_watch, 0));
    // The daemon forgets the bell also if a child, forked meanwhile, has the connection open.
    const wire::WireHeader end;
    if (is_open(bells.lifeline)) (void)os::send(bells.lifeline.fd, &end, sizeof end, MSG_NOSIGNAL | MSG_DONTWAIT);
    drop(bells.lifeline);
    // An eventfd shares its inode with other files: only the number tells whether the program has closed ours.
    if (is_open(bells.bell) &&
        (bells.bell_id == 0 || eventfd_id_of(bells.bell.fd).value_or(bells.bell_id) == bells.bell_id)) {
        // Others have the file, too: in an epoll set that still has it, it would be readable for as long as they do.
        std::uint64_t rung = 0;
        (void)!os::read(bells.bell.fd, &rung, sizeof rung);
        drop(bells.bell);
    }
    bells.bell = {};
    bells.serial = 0;
}

int make_at_daemon(numacre_channel *channel) {
    sockaddr_un daemon{};
    if (const int error = address_of(channel->pool->runtime_dir, daemon)) return error;
    const int connection = make_socket();
    if (connection < 0) return connection;
    wire::BellRequest request = request_of(channel->pool, wire::BellRequest::Wish::make);
    std::memcpy(request.name.data(), channel->name, strlen(channel->name));
    wire::BellReply reply;
    int fd = -1;
    int error = connect_socket(connection, daemon);
    if (error == 0)
        error = ask_on(connection, &request, sizeof request, wire::MessageType::bell_reply, &reply, sizeof reply, &fd,
                       kBellSeconds);
    if (error == 0 && reply.serial == 0) error = fail(Errc::version_mismatch, "the daemon's bell has no serial");
    if (error != 0) {
        if (fd >= 0) os::close(fd);
        os::close(connection);
        return error;
    }
    HandleBells &bells = channel->bells;
    if (bells.serial != 0) forget_own(bells);
    bells.lifeline = keep(connection);
    bells.bell = keep(fd);
    bells.bell_id = eventfd_id_of(fd).value_or(0);
    bells.serial = reply.serial;
    let_the_kernel_ring(bells);
    return 0;
}

}  // namespace

void ring_bells(numacre_channel *channel, std::uint64_t what) {
    const NotCancelled not_cancelled;
    const int error_before = errno;
    HandleBells &bells = channel->bells;
    bells.owed &= ~what;
    const auto ring = [&](std::uint32_t party, std::uint64_t serial) {
        if (is_private(channel->pool)) return ring_private(channel, party);
        const Rung rung = ring_party(channel, party, serial);
        if (rung == Rung::not_now) bells.owed |= what;
        return rung == Rung::yes;
    };
    with_ring(channel, [&](const auto &of_channel) { bells_on(of_channel.view()).ring(what, ring); });
    // Replies that nobody reads would count against the user.
    for (std::uint32_t other = 0; bells.asking != 0 && other < channel->shape.parties; ++other)
        (void)is_on_its_way(bells, bells.others[other]);
    errno = error_before;
}

void ring_owed(numacre_channel *channel) {
    for (const std::uint64_t what : {ArmedWord::kMessages, ArmedWord::kRoom})
        if ((channel->bells.owed & what) != 0) ring_bells(channel, what);
}

void drop_inherited_bells(numacre_channel *channel) {
    HandleBells &bells = channel->bells;
    // The bells of a private pool are the pool's.
    if (is_private(channel->pool)) return;
    drop(bells.lifeline);
    drop(bells.bell);
    for (OtherBell &other : bells.others) {
        drop(other.asking);
        drop(other.bell);
    }
}

void close_bells(numacre_channel *channel) {
    HandleBells &bells = channel->bells;
    if (is_private(channel->pool)) return;
    if (bells.serial != 0) forget_own(bells);
    for (OtherBell &other : bells.others) {
        end_asking(bells, other);
        drop(other.bell);
    }
}

}  // namespace numacre::client

using namespace numacre;
using namespace numacre::client;

extern "C" int numacre_channel_fd(numacre_channel *channel, int *fd) {
    if (channel == nullptr || fd == nullptr) return no_result("numacre_channel_fd");
    if (channel->pool->fork_generation != fork_generation()) return fail_forked();
    const NotCancelled not_cancelled;
    HandleBells &bells = channel->bells;
    const bool is_good =
        bells.serial != 0 && is_open(bells.bell) && (is_private(channel->pool) || !has_daemon_hung_up(bells));
    if (!is_good) {
        if (const int error = is_private(channel->pool) ? make_private(channel) : make_at_daemon(channel)) return error;
        with_ring(channel, [&](const auto &ring) { bells_on(ring.view()).install(channel->party, bells.serial); });
    }
    *fd = bells.bell.fd;
    return 0;
}

extern "C" int numacre_channel_arm(numacre_channel *channel, int messages, unsigned room) {
    if (channel == nullptr) return no_result("numacre_channel_arm");
    if (channel->pool->fork_generation != fork_generation()) return fail_forked();
    const std::uint32_t most = channel->shape.burst;
    if (room > most)
        return fail_with_remedy(Errc::bad_argument,
                                "room for %u blocks is to be waited for: use 0 to %u, the channel's burst", room, most);
    const HandleBells &bells = channel->bells;
    if (bells.serial == 0)
        return fail_with_remedy(Errc::bad_argument,
                                "the handle has no descriptor: call numacre_channel_fd() before it is armed");
    const NotCancelled not_cancelled;
    if (!is_open(bells.bell))
        return fail_with_remedy(Errc::bad_argument,
                                "this process has closed the channel's descriptor: call numacre_channel_fd() anew");
    std::uint64_t rung = 0;
    (void)!os::read(bells.bell.fd, &rung, sizeof rung);  // EAGAIN: nobody has rung
    const std::uint64_t what = (messages != 0 ? ArmedWord::kMessages : 0) | (room != 0 ? ArmedWord::kRoom : 0);
    with_ring(channel, [&](const auto &ring) { bells_on(ring.view()).arm(channel->party, what); });
    const bool has_message = messages != 0 && (has_messages(channel) || have_all_gone(channel, PartyOwner::kSends));
    const bool has_space = room != 0 && (has_room(channel, room) || have_all_gone(channel, PartyOwner::kReceives));
    if (has_message || has_space || (what != 0 && is_closed(channel))) (void)ring_one(bells.bell);
    if (!is_private(channel->pool) && has_daemon_hung_up(bells))
        return fail_with_remedy(Errc::daemon_gone,
                                "the daemon that made the channel's descriptor has ended: the descriptor is armed, but "
                                "who comes anew cannot signal it; call numacre_channel_fd() for another one");
    return 0;
}
