// Ways of the kernel: a pipe and a SEQPACKET socket pair. Messages are pointers to blocks in
// shared memory, which come back by a second pipe or the other direction of the sockets, or they are the payloads
// themselves. Nobody sleeps, except where the sleeping receiver is measured: both processes have a CPU of their own,
// and a wake-up would take longer than the message.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "blocks.hpp"
#include "measure.hpp"

namespace numacre::bench {
namespace {

[[noreturn]] void fail(const char *call) {
    throw std::runtime_error(std::string(call) + ": " + std::strerror(errno));
}

bool is_busy() {
    return errno == EAGAIN || errno == EINTR;
}

enum class Calls { return_at_once, sleep };

// One direction of bytes. Both processes have both ends.
class Pipe {
public:
    Pipe(const Shape &shape, Calls calls) {
        if (pipe2(ends_.data(), O_CLOEXEC | (calls == Calls::return_at_once ? O_NONBLOCK : 0)) != 0) fail("pipe2");
        // Room for the payloads; the kernel may allow less.
        (void)fcntl(ends_[1], F_SETPIPE_SZ, static_cast<int>(shape.capacity * kPayloadBytes));
    }
    ~Pipe() {
        close(ends_[0]);
        close(ends_[1]);
    }
    Pipe(const Pipe &) = delete;
    Pipe &operator=(const Pipe &) = delete;
    ssize_t write_some(const void *bytes, std::size_t count) const { return write(ends_[1], bytes, count); }
    ssize_t read_some(void *bytes, std::size_t count) const { return read(ends_[0], bytes, count); }

private:
    std::array<int, 2> ends_{};
};

// One direction of packets.
class Packets {
public:
    Packets(const Shape &shape, Calls calls) {
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | (calls == Calls::return_at_once ? SOCK_NONBLOCK : 0), 0,
                       ends_.data()) != 0)
            fail("socketpair");
        // Room for the payloads and what the kernel adds to them; only root may have so much.
        const int bytes = static_cast<int>(2 * kPayloadBytes * shape.capacity);
        for (const int end : ends_) (void)setsockopt(end, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof bytes);
    }
    ~Packets() {
        close(ends_[0]);
        close(ends_[1]);
    }
    Packets(const Packets &) = delete;
    Packets &operator=(const Packets &) = delete;
    ssize_t write_some(const void *bytes, std::size_t count) const { return send(ends_[1], bytes, count, 0); }
    ssize_t read_some(void *bytes, std::size_t count) const { return recv(ends_[0], bytes, count, 0); }
    int reading_end() const { return ends_[0]; }
    int writing_end() const { return ends_[1]; }

private:
    std::array<int, 2> ends_{};
};

// A burst of pointers is one call, and one packet of Packets: all or nothing, because it is shorter than PIPE_BUF.
template <class Transport>
void put(const Transport &transport, void *const *blocks, unsigned count) {
    const std::size_t bytes = count * sizeof(void *);
    for (;;) {
        const ssize_t written = transport.write_some(static_cast<const void *>(blocks), bytes);
        if (written == static_cast<ssize_t>(bytes)) return;
        if (written >= 0 || !is_busy()) fail("write");
        relax();
    }
}

template <class Transport>
unsigned get(const Transport &transport, void **blocks, unsigned most) {
    const ssize_t bytes = transport.read_some(static_cast<void *>(blocks), most * sizeof(void *));
    if (bytes < 0 && is_busy()) return 0;
    if (bytes <= 0 || static_cast<std::size_t>(bytes) % sizeof(void *) != 0) fail("read");
    return static_cast<unsigned>(static_cast<std::size_t>(bytes) / sizeof(void *));
}

template <class Transport>
class Pointers {
public:
    explicit Pointers(const Shape &shape)
        : capacity_(shape.capacity),
          blocks_(shape),
          full_(shape, Calls::return_at_once),
          back_(shape, Calls::return_at_once) {}

    class Sender {
    public:
        explicit Sender(Pointers &system) : full_(system.full_), back_(system.back_), free_(system.capacity_) {
            for (unsigned i = 0; i < system.capacity_; ++i) free_[i] = system.blocks_.at(i);
            end_ = system.capacity_;
        }
        template <class Fill>
        void send(unsigned count, Fill fill) {
            while (end_ - begin_ < count) refill();
            void **const blocks = &free_[begin_];
            begin_ += count;
            for (unsigned i = 0; i < count; ++i) fill(blocks[i]);
            put(full_, blocks, count);
        }

    private:
        void refill() {
            std::copy(free_.begin() + begin_, free_.begin() + end_, free_.begin());
            end_ -= begin_;
            begin_ = 0;
            const unsigned got = get(back_, &free_[end_], static_cast<unsigned>(free_.size()) - end_);
            end_ += got;
            if (got == 0) relax();
        }
        const Transport &full_, &back_;
        std::vector<void *> free_;
        unsigned begin_ = 0, end_ = 0;
    };

    class Receiver {
    public:
        explicit Receiver(Pointers &system) : full_(system.full_), back_(system.back_) {}
        template <class Read>
        unsigned receive(unsigned most, Read read) {
            std::array<void *, kBurstMax> blocks;
            const unsigned count = get(full_, blocks.data(), most);
            if (count == 0) return 0;
            for (unsigned i = 0; i < count; ++i) read(blocks[i]);
            put(back_, blocks.data(), count);
            return count;
        }

    private:
        const Transport &full_, &back_;
    };

    // One block goes to and fro.
    class Asker {
    public:
        explicit Asker(Pointers &system) : full_(system.full_), back_(system.back_), block_(system.blocks_.at(0)) {}
        template <class Fill, class Read>
        void ask(Fill fill, Read read) {
            fill(block_);
            put(full_, &block_, 1);
            while (get(back_, &block_, 1) == 0) relax();
            read(block_);
        }

    private:
        const Transport &full_, &back_;
        void *block_;
    };

    class Answerer {
    public:
        explicit Answerer(Pointers &system) : full_(system.full_), back_(system.back_) {}
        template <class Read, class Fill>
        bool answer(Read read, Fill fill) {
            void *block = nullptr;
            if (get(full_, &block, 1) == 0) return false;
            read(block);
            fill(block);
            put(back_, &block, 1);
            return true;
        }

    private:
        const Transport &full_, &back_;
    };

private:
    unsigned capacity_;
    SharedBlocks blocks_;
    Transport full_, back_;
};

// --- copies ----------------------------------------------------------------------------------------------------------

class PipeCopies {
public:
    explicit PipeCopies(const Shape &shape) : pipe_(shape, Calls::return_at_once) {}

    class Sender {
    public:
        explicit Sender(PipeCopies &system) : pipe_(system.pipe_) {}
        template <class Fill>
        void send(unsigned count, Fill fill) {
            for (unsigned i = 0; i < count; ++i) fill(payloads_.at(i));
            const std::size_t bytes = count * kPayloadBytes;
            for (std::size_t done = 0; done < bytes;) {
                const ssize_t written = pipe_.write_some(payloads_.get() + done, bytes - done);
                if (written < 0 && !is_busy()) fail("write");
                if (written < 0)
                    relax();
                else
                    done += static_cast<std::size_t>(written);
            }
        }

    private:
        const Pipe &pipe_;
        OwnPayloads payloads_;
    };

    class Receiver {
    public:
        explicit Receiver(PipeCopies &system) : pipe_(system.pipe_) {}
        template <class Read>
        unsigned receive(unsigned most, Read read) {
            const ssize_t got = pipe_.read_some(payloads_.get() + held_, most * kPayloadBytes - held_);
            if (got < 0 && is_busy()) return 0;
            if (got <= 0) fail("read");
            held_ += static_cast<std::size_t>(got);
            const auto count = static_cast<unsigned>(held_ / kPayloadBytes);
            for (unsigned i = 0; i < count; ++i) read(payloads_.at(i));
            // A payload may have come in part.
            held_ %= kPayloadBytes;
            std::memmove(payloads_.get(), payloads_.at(count == kBurstMax ? 0 : count), held_);
            return count;
        }

    private:
        const Pipe &pipe_;
        OwnPayloads payloads_;
        std::size_t held_ = 0;
    };

private:
    Pipe pipe_;
};

// A message is a packet; a burst is one call.
class PacketCopies {
public:
    explicit PacketCopies(const Shape &shape) : packets_(shape, Calls::return_at_once) {}

    class Burst {
    public:
        Burst() {
            for (unsigned i = 0; i < kBurstMax; ++i) {
                parts_[i] = {.iov_base = payloads.at(i), .iov_len = kPayloadBytes};
                headers[i].msg_hdr.msg_iov = &parts_[i];
                headers[i].msg_hdr.msg_iovlen = 1;
            }
        }
        Burst(const Burst &) = delete;
        Burst &operator=(const Burst &) = delete;
        OwnPayloads payloads;
        std::array<mmsghdr, kBurstMax> headers{};

    private:
        std::array<iovec, kBurstMax> parts_{};
    };

    class Sender {
    public:
        explicit Sender(PacketCopies &system) : end_(system.packets_.writing_end()) {}
        template <class Fill>
        void send(unsigned count, Fill fill) {
            for (unsigned i = 0; i < count; ++i) fill(burst_.payloads.at(i));
            for (unsigned done = 0; done < count;) {
                const int sent = sendmmsg(end_, &burst_.headers[done], count - done, 0);
                if (sent < 0 && !is_busy()) fail("sendmmsg");
                if (sent < 0)
                    relax();
                else
                    done += static_cast<unsigned>(sent);
            }
        }

    private:
        int end_;
        Burst burst_;
    };

    class Receiver {
    public:
        explicit Receiver(PacketCopies &system) : end_(system.packets_.reading_end()) {}
        template <class Read>
        unsigned receive(unsigned most, Read read) {
            const int count = recvmmsg(end_, burst_.headers.data(), most, 0, nullptr);
            if (count < 0 && is_busy()) return 0;
            if (count < 0) fail("recvmmsg");
            for (unsigned i = 0; i < static_cast<unsigned>(count); ++i) read(burst_.payloads.at(i));
            return static_cast<unsigned>(count);
        }

    private:
        int end_;
        Burst burst_;
    };

private:
    Packets packets_;
};

// --- a receiver that sleeps ------------------------------------------------------------------------------------------

// The message is the number itself.
template <class Transport>
class Numbers {
public:
    explicit Numbers(const Shape &shape) : transport_(shape, Calls::sleep) {}
    class Waker {
    public:
        explicit Waker(Numbers &system) : transport_(system.transport_) {}
        void wake(std::uint64_t sequence) {
            if (transport_.write_some(&sequence, sizeof sequence) != sizeof sequence) fail("write");
        }

    private:
        const Transport &transport_;
    };
    class Waiter {
    public:
        explicit Waiter(Numbers &system) : transport_(system.transport_) {}
        std::uint64_t wait() {
            std::uint64_t sequence = 0;
            if (transport_.read_some(&sequence, sizeof sequence) != sizeof sequence) fail("read");
            return sequence;
        }

    private:
        const Transport &transport_;
    };

private:
    Transport transport_;
};

// A system whose receiver sleeps by other calls than those that are measured awake.
template <class Awake, class Asleep>
Entry both(std::string_view name) noexcept {
    Entry entry = entry_of<Awake>(name);
    entry.wake_up = wake_up<Asleep>;
    return entry;
}

const Registered pipe_pointers{both<Pointers<Pipe>, Numbers<Pipe>>("pipe")};
const Registered packet_pointers{both<Pointers<Packets>, Numbers<Packets>>("seqpacket")};
const Registered pipe_copies{entry_of<PipeCopies>("pipe, copy")};
const Registered packet_copies{entry_of<PacketCopies>("seqpacket, copy")};

}  // namespace
}  // namespace numacre::bench
