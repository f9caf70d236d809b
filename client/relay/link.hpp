// The unix socket between the two sides. The socket carries the ring once, then doorbells and the reader's summary. The
// kernel closes a process's socket with the process, so each side also learns from the socket that the other side is
// gone, kill -9 included.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "packet.hpp"
#include "ring.hpp"

namespace relay {

// Owns a file descriptor.
class Fd {
public:
    Fd() = default;
    explicit Fd(int fd) : fd_(fd) {}
    Fd(Fd &&other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    Fd &operator=(Fd &&other) noexcept {
        std::swap(fd_, other.fd_);
        return *this;
    }
    ~Fd();
    int get() const { return fd_; }

private:
    int fd_ = -1;
};

// A ring's memfd and its mapping in this process.
class RingMemory {
public:
    // Makes a new ring that is sealed against resizing: the other side cannot shorten the memfd under a mapping.
    static RingMemory create(std::uint32_t slots);
    // Opens a ring that another process made. Throws if the ring does not have `slots` slots, or is not sealed.
    static RingMemory open(Fd fd, std::uint32_t slots);

    RingMemory(RingMemory &&other) noexcept
        : fd_(std::move(other.fd_)), memory_(std::exchange(other.memory_, nullptr)), slots_(other.slots_) {}
    RingMemory &operator=(RingMemory &&) = delete;
    ~RingMemory();
    RingView view() const { return {memory_, slots_}; }
    int fd() const { return fd_.get(); }

private:
    RingMemory(Fd fd, void *memory, std::uint32_t slots) : fd_(std::move(fd)), memory_(memory), slots_(slots) {}
    static void *map(const Fd &fd, std::uint32_t slots);

    Fd fd_;
    void *memory_;
    std::uint32_t slots_;
};

// The reading side's result, sent at its end.
struct Summary {
    std::uint64_t packets = 0;
    std::uint64_t bytes = 0;
    std::uint64_t flows = 0;
};

class Link {
public:
    explicit Link(Fd socket) : socket_(std::move(socket)) {}

    // Writing side: connects to the reader at `path`, and waits up to 10 s until the reader listens.
    static Link connect(const std::string &path);
    // Reading side: listens at `path` until a writer comes. Empty if a signal asks to stop first.
    static std::optional<Link> accept(const std::string &path);

    void send_ring(const RingMemory &ring, std::uint32_t slots, LinkType link_type, const std::string &pool);
    // Throws if the writer sends anything but a ring, or uses another pool than `pool`.
    std::pair<RingMemory, LinkType> receive_ring(const std::string &pool);

    // Never blocks. If the socket is full, unread doorbells are already in it.
    void ring_doorbell();
    // Blocks while the socket is full; a writer that awaits the summary empties the socket.
    void send_summary(const Summary &summary);

    // Sleeps until a doorbell, a summary, the peer's end or a signal comes, `other_fd` (unless -1) is readable, or the
    // time is up.
    void wait(int timeout_ms, int other_fd = -1);
    // True if the peer's process has closed the link or has ended. Enters the kernel.
    bool peer_gone();
    const std::optional<Summary> &peer_summary() const { return peer_summary_; }

private:
    void hear();

    Fd socket_;
    bool peer_gone_ = false;
    std::optional<Summary> peer_summary_;
};

// True after SIGINT or SIGTERM, once stop_on_signals() has been called.
bool stop_requested();
void stop_on_signals();

}  // namespace relay
