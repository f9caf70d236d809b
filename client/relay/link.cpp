#include "link.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <new>
#include <stdexcept>
#include <system_error>

namespace relay {
namespace {

constexpr std::uint32_t kLinkMagic = 0x6b6e'6c72, kLinkVersion = 1;
constexpr int kConnectTries = 200, kConnectPauseMs = 50, kAcceptPollMs = 100, kHelloMs = 5000;
constexpr int kRequiredSeals = F_SEAL_SHRINK | F_SEAL_GROW;

// The first message, from writer to reader. It carries the ring's memfd.
struct Hello {
    std::uint32_t magic = kLinkMagic, version = kLinkVersion;
    std::uint32_t ring_slots = 0;
    LinkType link_type{};
    std::array<char, 64> pool{};  // terminated by 0
};

enum class MessageType : std::uint32_t { doorbell = 1, summary = 2 };
struct Message {
    MessageType type{};
    std::uint32_t zero = 0;
    Summary summary;
};
static_assert(std::is_trivially_copyable_v<Hello> && std::is_trivially_copyable_v<Message>);

[[noreturn]] void fail(const std::string &what) {
    throw std::system_error(errno, std::generic_category(), what);
}

sockaddr_un address_of(const std::string &path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof address.sun_path)
        throw std::runtime_error("socket path '" + path + "' is longer than 107 bytes: choose a shorter --socket");
    std::memcpy(address.sun_path, path.c_str(), path.size());
    return address;
}

Fd new_socket() {
    Fd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    if (socket.get() < 0) fail("cannot make a unix socket");
    return socket;
}

bool try_connect(int socket, const std::string &path) {
    const sockaddr_un address = address_of(path);
    return ::connect(socket, reinterpret_cast<const sockaddr *>(&address), sizeof address) == 0;
}

bool says_something(int socket) {
    pollfd waiting{socket, POLLIN, 0};
    char first_byte;
    return ::poll(&waiting, 1, kHelloMs) > 0 && ::recv(socket, &first_byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

volatile std::sig_atomic_t stop_flag = 0;

}  // namespace

bool stop_requested() {
    return stop_flag != 0;
}

void stop_on_signals() {
    struct sigaction action{};
    action.sa_handler = [](int) { stop_flag = 1; };
    // No SA_RESTART: a sleeping call must return, so that its caller looks at the flag.
    for (const int signal : {SIGINT, SIGTERM}) ::sigaction(signal, &action, nullptr);
}

Fd::~Fd() {
    if (fd_ >= 0) ::close(fd_);
}

void *RingMemory::map(const Fd &fd, std::uint32_t slots) {
    void *const memory = ::mmap(nullptr, ring_bytes(slots), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    if (memory == MAP_FAILED) fail("cannot map the ring");
    return memory;
}

RingMemory RingMemory::create(std::uint32_t slots) {
    if (!valid_ring_slots(slots))
        throw std::runtime_error("a ring of " + std::to_string(slots) +
                                 " slots is impossible: use a power of two from 2 to 16777216");
    Fd fd(::memfd_create("numacre-relay-ring", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (fd.get() < 0) fail("cannot make the ring's memory");
    if (::ftruncate(fd.get(), static_cast<off_t>(ring_bytes(slots))) != 0) fail("cannot size the ring's memory");
    if (::fcntl(fd.get(), F_ADD_SEALS, kRequiredSeals | F_SEAL_SEAL) != 0) fail("cannot seal the ring's memory");
    void *const memory = map(fd, slots);
    new (memory) RingHeader{};
    static_cast<RingHeader *>(memory)->slots = slots;
    return {std::move(fd), memory, slots};
}

RingMemory RingMemory::open(Fd fd, std::uint32_t slots) {
    if (!valid_ring_slots(slots))
        throw std::runtime_error("the capturer offers a ring of " + std::to_string(slots) + " slots");
    struct stat file{};
    const int seals = ::fcntl(fd.get(), F_GET_SEALS);
    if (seals < 0 || (seals & kRequiredSeals) != kRequiredSeals)
        throw std::runtime_error("the capturer's ring is not a memfd sealed against resizing");
    if (::fstat(fd.get(), &file) != 0) fail("cannot see the ring's size");
    if (static_cast<std::uint64_t>(file.st_size) != ring_bytes(slots))
        throw std::runtime_error("the capturer's ring has " + std::to_string(file.st_size) + " bytes instead of " +
                                 std::to_string(ring_bytes(slots)));
    void *const memory = map(fd, slots);
    RingMemory ring(std::move(fd), memory, slots);
    const auto &header = *static_cast<const RingHeader *>(memory);
    if (header.magic != kRingMagic || header.version != kRingVersion || header.slots != slots)
        throw std::runtime_error("the capturer's ring is of another version: run the same build on both sides");
    return ring;
}

RingMemory::~RingMemory() {
    if (memory_ != nullptr) ::munmap(memory_, ring_bytes(slots_));
}

Link Link::connect(const std::string &path) {
    for (int i = 0; i < kConnectTries && !stop_requested(); ++i) {
        Fd socket = new_socket();
        if (try_connect(socket.get(), path)) return Link(std::move(socket));
        if (errno != ENOENT && errno != ECONNREFUSED && errno != EINTR) break;
        ::poll(nullptr, 0, kConnectPauseMs);
    }
    fail("nobody listens at '" + path + "': start `relay flows` with the same --socket");
}

std::optional<Link> Link::accept(const std::string &path) {
    const sockaddr_un address = address_of(path);
    if (try_connect(new_socket().get(), path))
        throw std::runtime_error("'" + path + "' is in use by another `relay flows`: give this one its own --socket");
    // A socket that refuses connections is the leftover of a killed `relay flows`. Only a socket is removed.
    struct stat leftover{};
    if (errno == ECONNREFUSED && ::lstat(path.c_str(), &leftover) == 0 && S_ISSOCK(leftover.st_mode))
        ::unlink(path.c_str());

    const Fd listener = new_socket();
    const mode_t mask = ::umask(0177);  // only this user (and root) may connect
    const int bound = ::bind(listener.get(), reinterpret_cast<const sockaddr *>(&address), sizeof address);
    const int bind_errno = errno;
    ::umask(mask);
    errno = bind_errno;
    if (bound != 0) fail("cannot listen at '" + path + "': choose another --socket");
    if (::listen(listener.get(), 1) != 0) fail("cannot listen at '" + path + "'");
    std::fprintf(stderr, "relay flows: listening at %s\n", path.c_str());

    std::optional<Link> link;
    while (!link && !stop_requested()) {
        pollfd waiting{listener.get(), POLLIN, 0};
        if (::poll(&waiting, 1, kAcceptPollMs) <= 0) continue;
        Fd socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
        // A process that only checks whether a reader listens here sends nothing and closes the connection.
        if (socket.get() >= 0 && says_something(socket.get())) link.emplace(std::move(socket));
    }
    ::unlink(path.c_str());
    return link;
}

void Link::send_ring(const RingMemory &ring, std::uint32_t slots, LinkType link_type, const std::string &pool) {
    Hello hello;
    hello.ring_slots = slots;
    hello.link_type = link_type;
    std::memcpy(hello.pool.data(), pool.data(), std::min(pool.size(), hello.pool.size() - 1));
    iovec payload{&hello, sizeof hello};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    msghdr message{};
    message.msg_iov = &payload;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr *const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    const int fd = ring.fd();
    std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
    if (::sendmsg(socket_.get(), &message, MSG_NOSIGNAL) < 0) fail("cannot pass the ring to `relay flows`");
}

std::pair<RingMemory, LinkType> Link::receive_ring(const std::string &pool) {
    Hello hello;
    iovec payload{&hello, sizeof hello};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    msghdr message{};
    message.msg_iov = &payload;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t bytes = ::recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC);
    if (bytes < 0) fail("cannot receive the ring");
    if (bytes == 0) throw std::runtime_error("the capturer ended before it passed a ring");
    Fd fd;
    for (cmsghdr *header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
        int received = -1;
        std::memcpy(&received, CMSG_DATA(header), sizeof received);
        fd = Fd(received);
    }
    if (bytes != sizeof hello || hello.magic != kLinkMagic || hello.version != kLinkVersion || fd.get() < 0)
        throw std::runtime_error("what connected is not a `relay capture` of this version");
    hello.pool.back() = 0;
    if (pool != hello.pool.data())
        throw std::runtime_error("the capturer uses pool '" + std::string(hello.pool.data()) + "', this side '" + pool +
                                 "': give both the same --pool");
    if (hello.link_type != LinkType::ethernet && hello.link_type != LinkType::raw_ip &&
        hello.link_type != LinkType::linux_sll)
        throw std::runtime_error("the capturer announces unknown link type " +
                                 std::to_string(static_cast<std::uint32_t>(hello.link_type)));
    return {RingMemory::open(std::move(fd), hello.ring_slots), hello.link_type};
}

void Link::ring_doorbell() {
    const Message message{MessageType::doorbell, 0, {}};
    [[maybe_unused]] const ssize_t sent = ::send(socket_.get(), &message, sizeof message,
                                                 MSG_DONTWAIT | MSG_NOSIGNAL);  // hear() notices a gone peer
}

void Link::send_summary(const Summary &summary) {
    const Message message{MessageType::summary, 0, summary};
    while (::send(socket_.get(), &message, sizeof message, MSG_NOSIGNAL) < 0 && errno == EINTR) {
    }
}

void Link::wait(int timeout_ms, int other_fd) {
    if (peer_gone_) return;
    std::array<pollfd, 2> fds{pollfd{socket_.get(), POLLIN, 0}, pollfd{other_fd, POLLIN, 0}};
    if (::poll(fds.data(), fds.size(), timeout_ms) > 0 && fds[0].revents != 0) hear();
}

bool Link::peer_gone() {
    if (!peer_gone_) hear();
    return peer_gone_;
}

void Link::hear() {
    while (true) {
        Message message;
        const ssize_t bytes = ::recv(socket_.get(), &message, sizeof message, MSG_DONTWAIT);
        if (bytes < 0 && errno == EINTR) continue;
        if (bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
        if (bytes <= 0) {
            peer_gone_ = true;
            return;
        }
        if (bytes == sizeof message && message.type == MessageType::summary) peer_summary_ = message.summary;
    }
}

}  // namespace relay
