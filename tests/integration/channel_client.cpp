// One end of a channel, for channels_test.py.
//
// usage: channel_client RUNTIME_DIR CHANNEL send FILE FIRST COUNT BURST    sends numbered messages, in bursts
//        channel_client RUNTIME_DIR CHANNEL receive FILE MOST              receives until the stream ends
//        channel_client RUNTIME_DIR CHANNEL step FILE FIRST                sends the next message for each line of
//                                                                          standard input, and says "sent"; for
//                                                                          the line "n" it tries to send no block
//        channel_client RUNTIME_DIR CHANNEL open FLAGS CAPACITY BURST      opens the channel and says what it is told
//        channel_client RUNTIME_DIR CHANNEL reopen ROUNDS                  closes and opens it, again and again
//
// send-over: as send, but drops the oldest messages in place of waiting, and says how many in the end.
// send-epoll, receive-epoll, receive-uring: as send and receive, but wait by the channel's descriptor, without a
// timeout. These say "asleep" before the first wait, "daemon gone" when they learn of the daemon's end, and "renewed"
// when they have another descriptor.
//
// FILE is the record that all parties of a test share: two bytes for each message, mapped by everybody. Byte 0: it has
// been sent, as send has returned. Byte 1: how often a receiver has been given it. So the record outlives a kill. A
// line of standard input ends a client that waits for one.
#include <fcntl.h>
#include <liburing.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <vector>

#include "numacre/numacre.h"

namespace {

constexpr std::size_t kBlockBytes = 4096;
constexpr std::uint64_t kPattern = 0x9e3779b97f4a7c15;

struct Record {
    std::atomic<std::uint8_t> sent, received;
};

void check(int error, const char *call) {
    if (error == 0) return;
    std::fprintf(stderr, "%s: error %d, %s\n", call, error, numacre_last_error());
    std::exit(1);
}

Record *map_record(const char *path) {
    const int fd = ::open(path, O_RDWR | O_CLOEXEC);
    struct stat status{};
    if (fd < 0 || ::fstat(fd, &status) != 0) check(-errno, path);
    void *const memory =
        ::mmap(nullptr, static_cast<std::size_t>(status.st_size), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) check(-errno, "mmap");
    return static_cast<Record *>(memory);
}

// A message: its number in the first and the last word, and something that only it has in between.
void write_message(void *block, std::uint64_t number) {
    auto *const words = static_cast<std::uint64_t *>(block);
    words[0] = number;
    for (std::size_t i = 1; i < kBlockBytes / sizeof *words - 1; ++i) words[i] = number * kPattern + i;
    words[kBlockBytes / sizeof *words - 1] = number;
}
std::uint64_t read_message(const void *block) {
    const auto *const words = static_cast<const std::uint64_t *>(block);
    const std::uint64_t number = words[0];
    bool is_whole = words[kBlockBytes / sizeof *words - 1] == number;
    for (std::size_t i = 1; i < kBlockBytes / sizeof *words - 1; ++i) is_whole &= words[i] == number * kPattern + i;
    if (!is_whole) {
        std::fprintf(stderr, "message %llu is not what was sent\n", static_cast<unsigned long long>(number));
        std::exit(1);
    }
    return number;
}

// Waits by the descriptor of a channel, in one of two ways.
class Waiter {
public:
    Waiter(numacre_channel *channel, bool by_uring) : channel_(channel), by_uring_(by_uring) {
        check(numacre_channel_fd(channel_, &fd_), "numacre_channel_fd");
        if (by_uring_) {
            const int error = io_uring_queue_init(8, &ring_, 0);
            if (error < 0) {
                std::fprintf(stderr, "io_uring_queue_init: %s\n", std::strerror(-error));
                std::exit(77);
            }
        } else {
            epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
            if (epoll_ < 0) check(-errno, "epoll_create1");
            add();
        }
    }
    // Returns when there may be something.
    void wait(int messages, unsigned room) {
        int error = numacre_channel_arm(channel_, messages, room);
        while (error == -ECONNREFUSED) {
            std::puts("daemon gone");
            // A message that has come meanwhile does not wait for a daemon.
            if (is_readable()) return;
            renew();
            error = numacre_channel_arm(channel_, messages, room);
        }
        check(error, "numacre_channel_arm");
        if (!has_slept_) std::puts("asleep");
        has_slept_ = true;
        by_uring_ ? wait_by_uring() : wait_by_epoll();
    }

private:
    void add() const {
        epoll_event event{};
        event.events = EPOLLIN;
        if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, fd_, &event) != 0) check(-errno, "epoll_ctl");
    }
    bool is_readable() const {
        pollfd one{fd_, POLLIN, 0};
        return ::poll(&one, 1, 0) == 1;
    }
    // Until there is a daemon again, or somebody who has the descriptor signals it.
    void renew() {
        for (;;) {
            const int error = numacre_channel_fd(channel_, &fd_);
            if (error == 0) break;
            if (error != -ECONNREFUSED) check(error, "numacre_channel_fd");
            if (is_readable()) return;
            ::usleep(10'000);
        }
        if (!by_uring_) add();
        std::puts("renewed");
    }
    void wait_by_epoll() const {
        epoll_event event{};
        int ready = 0;
        do ready = ::epoll_wait(epoll_, &event, 1, -1);
        while (ready < 0 && errno == EINTR);
        if (ready != 1) check(-errno, "epoll_wait");
    }
    void wait_by_uring() {
        io_uring_sqe *const entry = io_uring_get_sqe(&ring_);
        io_uring_prep_poll_add(entry, fd_, POLLIN);
        int error = 0;
        do error = io_uring_submit_and_wait(&ring_, 1);
        while (error == -EINTR);
        io_uring_cqe *done = nullptr;
        if (error >= 0) do
                error = io_uring_wait_cqe(&ring_, &done);
            while (error == -EINTR);
        check(error < 0 ? error : 0, "io_uring_submit_and_wait");
        if (done->res < 0 || (done->res & POLLIN) == 0) check(done->res < 0 ? done->res : -EIO, "IORING_OP_POLL_ADD");
        io_uring_cqe_seen(&ring_, done);
    }

    numacre_channel *channel_;
    bool by_uring_;
    int fd_ = -1;
    int epoll_ = -1;
    io_uring ring_{};
    bool has_slept_ = false;
};

void send_by_steps(numacre_pool *pool, numacre_channel *channel, Record *record, std::uint64_t next) {
    for (int character = 0; (character = std::getchar()) != EOF;) {
        if (character == 'n') {
            void *none = nullptr;
            if (numacre_send(channel, &none, 1) == -EPERM) std::puts("nothing sent");
            (void)std::getchar();
            continue;
        }
        if (character != '\n') continue;
        void *block = nullptr;
        check(numacre_alloc(pool, kBlockBytes, &block), "numacre_alloc");
        write_message(block, next);
        check(numacre_send(channel, &block, 1), "numacre_send");
        record[next++].sent.store(1, std::memory_order_relaxed);
        std::puts("sent");
    }
}

void send_all(numacre_pool *pool, numacre_channel *channel, Record *record, std::uint64_t first, std::uint64_t count,
              unsigned burst, Waiter *waiter) {
    for (std::uint64_t next = first; next < first + count;) {
        const auto left = first + count - next;
        const unsigned now = left < burst ? static_cast<unsigned>(left) : burst;
        std::vector<void *> blocks(now);
        check(numacre_alloc_bulk(pool, kBlockBytes, blocks.data(), now), "numacre_alloc_bulk");
        for (unsigned i = 0; i < now; ++i) write_message(blocks[i], next + i);
        // A second is more than enough, unless the receivers are all dead: then somebody starts others.
        int error = 0;
        const auto try_once = [&] {
            return waiter == nullptr ? numacre_send_wait(channel, blocks.data(), now, 1000)
                                     : numacre_send(channel, blocks.data(), now);
        };
        while ((error = try_once()) == -ETIMEDOUT || error == -EPIPE || error == -EAGAIN) {
            if (error == -EPIPE) ::usleep(1000);
            if (error == -EAGAIN) waiter->wait(0, now);
        }
        check(error, "numacre_send_wait");
        for (unsigned i = 0; i < now; ++i) record[next + i].sent.store(1, std::memory_order_relaxed);
        next += now;
    }
}

void send_over_all(numacre_pool *pool, numacre_channel *channel, Record *record, std::uint64_t first,
                   std::uint64_t count, unsigned burst) {
    std::vector<void *> blocks(burst);
    std::uint64_t all = 0;
    for (std::uint64_t next = first; next < first + count;) {
        const auto left = first + count - next;
        const unsigned now = left < burst ? static_cast<unsigned>(left) : burst;
        check(numacre_alloc_bulk(pool, kBlockBytes, blocks.data(), now), "numacre_alloc_bulk");
        for (unsigned i = 0; i < now; ++i) write_message(blocks[i], next + i);
        unsigned dropped = 0;
        check(numacre_send_over(channel, blocks.data(), now, &dropped), "numacre_send_over");
        for (unsigned i = 0; i < now; ++i) record[next + i].sent.store(1, std::memory_order_relaxed);
        all += dropped;
        next += now;
    }
    std::printf("dropped %llu\n", static_cast<unsigned long long>(all));
}

void receive_all(numacre_pool *pool, numacre_channel *channel, Record *record, unsigned most, Waiter *waiter) {
    std::vector<void *> blocks(most);
    std::uint64_t all = 0;
    for (;;) {
        unsigned count = 0;
        int redelivered = 0;
        const int error = waiter == nullptr
                              ? numacre_receive_wait(channel, blocks.data(), most, 1000, &count, &redelivered)
                              : numacre_receive(channel, blocks.data(), most, &count, &redelivered);
        if (error == -EAGAIN) {
            waiter->wait(1, 0);
            continue;
        }
        if (error == -ETIMEDOUT || error == -EPIPE) {
            if (error == -EPIPE) ::usleep(1000);
            continue;
        }
        if (error == -ESHUTDOWN) break;
        check(error, "numacre_receive_wait");
        for (unsigned i = 0; i < count; ++i)
            record[read_message(blocks[i])].received.fetch_add(1, std::memory_order_relaxed);
        check(numacre_free_bulk(pool, blocks.data(), count), "numacre_free_bulk");
        all += count;
    }
    std::printf("received %llu\n", static_cast<unsigned long long>(all));
}

// Closes the channel and opens it again at once, many times: each handle is one of the channel that others find.
void reopen(numacre_pool *pool, const char *name, std::uint64_t rounds) {
    for (std::uint64_t round = 0; round < rounds; ++round) {
        numacre_channel *first = nullptr, *again = nullptr, *other = nullptr;
        check(numacre_channel_open(pool, name, nullptr, &first), "numacre_channel_open");
        check(numacre_channel_close(first), "numacre_channel_close");
        check(numacre_channel_open(pool, name, nullptr, &again), "numacre_channel_open, again");
        ::usleep(20'000);  // what goes has gone
        numacre_channel_options options{};
        options.struct_size = sizeof options;
        options.flags = NUMACRE_CHANNEL_EXISTING;
        check(numacre_channel_open(pool, name, &options, &other), "numacre_channel_open, of what the process has open");
        check(numacre_channel_close(other), "numacre_channel_close");
        check(numacre_channel_close(again), "numacre_channel_close");
    }
}

}  // namespace

int main(int count, char **arguments) {
    if (count < 4) return 2;
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    const auto number = [&](int which) { return count > which ? std::strtoull(arguments[which], nullptr, 10) : 0; };
    numacre_pool *pool = nullptr;
    check(numacre_attach(arguments[1], "default", &pool), "numacre_attach");
    if (std::strcmp(arguments[3], "reopen") == 0) {
        reopen(pool, arguments[2], number(4));
        numacre_detach(pool);
        return 0;
    }
    numacre_channel_options options{};
    options.struct_size = sizeof options;
    const bool steps = std::strcmp(arguments[3], "step") == 0;
    const bool sends = std::strncmp(arguments[3], "send", 4) == 0 || steps;
    const bool receives = std::strncmp(arguments[3], "receive", 7) == 0;
    const bool over = std::strcmp(arguments[3], "send-over") == 0;
    const char *const way = over ? nullptr : std::strchr(arguments[3], '-');
    if (!sends && !receives) {
        options.flags = static_cast<std::uint32_t>(number(4));
        options.capacity = static_cast<std::uint32_t>(number(5));
        options.burst = static_cast<std::uint32_t>(number(6));
    }
    numacre_channel *channel = nullptr;
    const int error = numacre_channel_open(pool, arguments[2], &options, &channel);
    if (!sends && !receives) {
        numacre_channel_info info{};
        info.struct_size = sizeof info;
        if (error == 0) check(numacre_channel_get_info(channel, &info), "numacre_channel_get_info");
        std::printf("%d %s\n", error, error == 0 ? "open" : numacre_last_error());
        std::printf("%u %u %u waiting %u\n", info.capacity, info.burst, info.parties, info.waiting);
        std::vector<char> line(64);
        const bool ends = std::fgets(line.data(), static_cast<int>(line.size()), stdin) != nullptr &&
                          std::strcmp(line.data(), "end\n") == 0;
        if (ends) check(numacre_channel_end(channel), "numacre_channel_end");
        if (std::strcmp(line.data(), "remove\n") == 0) std::printf("%d\n", numacre_channel_remove(pool, arguments[2]));
    } else {
        check(error, "numacre_channel_open");
        // First: whoever is told may take this process's descriptors away.
        Record *const record = map_record(arguments[4]);
        std::puts("open");
        std::optional<Waiter> waiter;
        if (way != nullptr) waiter.emplace(channel, std::strcmp(way, "-uring") == 0);
        if (over)
            send_over_all(pool, channel, record, number(5), number(6), static_cast<unsigned>(number(7)));
        else if (steps)
            send_by_steps(pool, channel, record, number(5));
        else if (sends)
            send_all(pool, channel, record, number(5), number(6), static_cast<unsigned>(number(7)),
                     waiter ? &*waiter : nullptr);
        else
            receive_all(pool, channel, record, static_cast<unsigned>(number(5)), waiter ? &*waiter : nullptr);
    }
    check(numacre_channel_close(channel), "numacre_channel_close");
    numacre_detach(pool);
    return 0;
}
