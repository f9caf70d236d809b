#include "stranger.hpp"

#include <sys/un.h>

#include <cstdio>
#include <cstring>

#include "numacre/os/kernel.hpp"
#include "receive.hpp"

namespace numacre::simulation {
namespace {

wire::AttachRequest request_for(wire::Tier tier) {
    wire::AttachRequest request;
    request.tier = tier;
    std::memcpy(request.pool_name.data(), "default", sizeof "default");
    return request;
}

void send_with_descriptor(int fd) {
    wire::AttachRequest request = request_for(wire::Tier::trusted);
    iovec part{&request, sizeof request};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr *const rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(rights), &fd, sizeof fd);
    (void)os::sendmsg(fd, &message, 0);
    (void)os::recv(fd, &request, sizeof request, 0);
}

// Reads, until it goes in one of several ways. What it gets it can read, and not write.
void observe(Run &run, int fd) {
    trace("observes");
    const wire::AttachRequest request = request_for(wire::Tier::observer);
    if (os::send(fd, &request, sizeof request, 0) < 0) return;
    wire::AttachReply reply;
    int fds[wire::kMaxFds];
    const client::Received received =
        client::receive_by(client::Deadline{5}, fd, &reply, sizeof reply, fds, wire::kMaxFds);
    if (received.bytes != static_cast<ssize_t>(sizeof reply) || reply.error != 0 || received.fds == 0) return;
    if (os::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0) != MAP_FAILED)
        fail("an observer can write to the pool");
    void *const place = os::mmap(nullptr, reply.pool_region_bytes, PROT_READ, MAP_SHARED, fds[0], 0);
    run.scheduler.sleep_ns(run.random.below(5'000'000'000));
    if (place != MAP_FAILED) {
        const Pool pool = Pool::at(place, reply.process_slots, reply.thread_slots);
        (void)pool.processes[reply.process_slot].state.load();
    }
    if (run.random.one_in(2)) {
        const wire::DetachRequest detach;
        wire::DetachReply over;
        if (os::send(fd, &detach, sizeof detach, 0) > 0) (void)os::recv(fd, &over, sizeof over, 0);
    }
}

}  // namespace

void speak_to_the_daemon(Run &run) {
    const int fd = os::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    const timeval patience{5, 0};
    os::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    sockaddr_un address{};
    std::snprintf(address.sun_path, sizeof address.sun_path, "/run/numacre/attach.sock");
    if (fd >= 0 && os::connect(fd, reinterpret_cast<const sockaddr *>(&address), sizeof address) == 0) {
        switch (run.random.below(5)) {
            case 0:
                trace("says nothing");
                run.scheduler.sleep_ns(run.random.below(12'000'000'000));
                break;
            case 1: {
                trace("sends nonsense");
                char nonsense[300] = {1};
                for (unsigned i = 0; i < 3; ++i)
                    (void)os::send(fd, nonsense, run.random.between(1, sizeof nonsense), 0);
                (void)os::recv(fd, nonsense, sizeof nonsense, 0);
                break;
            }
            case 2:
                trace("sends a descriptor");
                send_with_descriptor(fd);
                break;
            case 3:
                observe(run, fd);
                break;
            default: {
                // Its seat is given up, although it lives.
                trace("attaches and does not come");
                const wire::AttachRequest request = request_for(wire::Tier::trusted);
                (void)os::send(fd, &request, sizeof request, 0);
                if (run.random.one_in(2)) run.scheduler.sleep_ns(run.random.below(1'000'000'000));
            }
        }
    }
    os::close(fd);
}

}  // namespace numacre::simulation
