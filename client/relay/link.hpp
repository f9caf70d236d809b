// The unix socket between the two sides. It carries the ring once, then doorbells and the reader's summary; and because
// the kernel closes it with its process, it is also how each side learns that the other is gone, kill -9 included.
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

// A ring's memfd and its mapping here.
class RingMemory {
public:
    // A new ring, sealed against resizing: a mapping of it cannot be cut short by the other side.
    static RingMemory create(std::uint32_t slots);
    // A ring that another process made. Throws if it is not one of `slots` slots, or not sealed.
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

// What the reading side has to say at its end.
struct Summary {
    std::uint64_t packets = 0;
    std::uint64_t bytes = 0;
    std::uint64_t flows = 0;
};

class Link {
public:
    explicit Link(Fd socket) : socket_(std::move(socket)) {}

    // Writing side: waits up to 10 s for a reader to listen at `path`.
    static Link connect(const std::string &path);
    // Reading side: listens at `path` until a writer comes; nothing if a signal asks to stop first.
    static std::optional<Link> accept(const std::string &path);

    void send_ring(const RingMemory &ring, std::uint32_t slots, LinkType link_type, const std::string &pool);
    // Throws if the writer hands over something else, or uses another pool than `pool`.
    std::pair<RingMemory, LinkType> receive_ring(const std::string &pool);

    // Never blocks. A full socket means that doorbells are waiting to be heard already.
    void ring_doorbell();
    // Blocks while the socket is full; a writer that awaits the summary empties it.
    void send_summary(const Summary &summary);

    // Sleeps until a doorbell, a summary, the peer's end, a signal, `other_fd` (unless -1) is readable, or the time is
    // up.
    void wait(int timeout_ms, int other_fd = -1);
    // The peer's process has closed the link or has ended. Enters the kernel.
    bool peer_gone();
    const std::optional<Summary> &peer_summary() const { return peer_summary_; }

private:
    void hear();

    Fd socket_;
    bool peer_gone_ = false;
    std::optional<Summary> peer_summary_;
};

// Set by SIGINT and SIGTERM.
bool stop_requested();
void stop_on_signals();

}  // namespace relay
