// A writer or a reader of a broadcast channel, for broadcast_test.py.
//
// usage: broadcast_client RUNTIME_DIR CHANNEL write FILE FIRST COUNT BURST PAUSE    sends numbered messages, in bursts
//        broadcast_client RUNTIME_DIR CHANNEL read FILE LAST MOST PAUSE             reads until the stream ends
//
// read-poll: as read, but waits by the channel's descriptor, without a timeout. PAUSE: microseconds between two bursts;
// a reader looks at what it has read before the pause and after it.
//
// FILE has a byte for each message, mapped: of a writer, whether its send has returned; of a reader, how often it has
// read the message. So it outlives a kill. Messages of one writer have numbers of one span of kSpan.
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>

#include "numacre/numacre.h"

namespace {

constexpr std::size_t kBlockBytes = 4096;
constexpr std::size_t kWords = kBlockBytes / sizeof(std::uint64_t);
constexpr std::uint64_t kPattern = 0x9e3779b97f4a7c15;
constexpr std::uint64_t kSpan = 1'000'000;

void check(int error, const char *call) {
    if (error == 0) return;
    std::fprintf(stderr, "%s: error %d, %s\n", call, error, numacre_last_error());
    std::exit(1);
}

std::atomic<std::uint8_t> *map_record(const char *path) {
    const int fd = ::open(path, O_RDWR | O_CLOEXEC);
    struct stat status{};
    if (fd < 0 || ::fstat(fd, &status) != 0) check(-errno, path);
    void *const memory =
        ::mmap(nullptr, static_cast<std::size_t>(status.st_size), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) check(-errno, "mmap");
    return static_cast<std::atomic<std::uint8_t> *>(memory);
}

void write_message(void *block, std::uint64_t number) {
    auto *const words = static_cast<std::uint64_t *>(block);
    for (std::size_t i = 0; i < kWords; ++i) words[i] = number * kPattern + i;
    words[0] = number;
}
std::uint64_t read_message(const void *block, const char *when) {
    const auto *const words = static_cast<const std::uint64_t *>(block);
    const std::uint64_t number = words[0];
    for (std::size_t i = 1; i < kWords; ++i)
        if (words[i] != number * kPattern + i) {
            std::fprintf(stderr, "message %llu is not what was sent, %s\n", static_cast<unsigned long long>(number),
                         when);
            std::exit(1);
        }
    return number;
}

void write_all(numacre_pool *pool, numacre_channel *channel, std::atomic<std::uint8_t> *record, std::uint64_t first,
               std::uint64_t count, unsigned burst, unsigned pause) {
    std::vector<void *> blocks(burst);
    for (std::uint64_t next = first; next < first + count;) {
        const auto left = first + count - next;
        const unsigned now = left < burst ? static_cast<unsigned>(left) : burst;
        check(numacre_alloc_bulk(pool, kBlockBytes, blocks.data(), now), "numacre_alloc_bulk");
        for (unsigned i = 0; i < now; ++i) write_message(blocks[i], next + i);
        check(numacre_send(channel, blocks.data(), now), "numacre_send");
        for (unsigned i = 0; i < now; ++i) record[next + i].store(1, std::memory_order_relaxed);
        next += now;
        if (pause != 0) ::usleep(pause);
    }
}

void wait_by_descriptor(numacre_channel *channel) {
    int fd = -1;
    check(numacre_channel_fd(channel, &fd), "numacre_channel_fd");
    check(numacre_channel_arm(channel, 1, 0), "numacre_channel_arm");
    pollfd one{fd, POLLIN, 0};
    while (::poll(&one, 1, -1) < 0 && errno == EINTR) {
    }
}

void read_all(numacre_channel *channel, std::atomic<std::uint8_t> *record, unsigned most, unsigned pause,
              bool by_descriptor) {
    std::vector<const void *> blocks(most);
    std::map<std::uint64_t, std::uint64_t> next_of;  // by the writer's span
    std::uint64_t all = 0, overtaken = 0;
    for (;;) {
        unsigned count = 0;
        std::uint64_t lost = 0;
        const int error = by_descriptor ? numacre_channel_read(channel, blocks.data(), most, &count, &lost)
                                        : numacre_channel_read_wait(channel, blocks.data(), most, 1000, &count, &lost);
        if (error == -ESHUTDOWN) break;
        if (error == -EPIPE) ::usleep(1000);
        if (error == -EAGAIN) wait_by_descriptor(channel);
        if (error == -EPIPE || error == -EAGAIN || error == -ETIMEDOUT) continue;
        check(error, "numacre_channel_read");
        std::vector<std::uint64_t> numbers(count);
        for (unsigned i = 0; i < count; ++i) numbers[i] = read_message(blocks[i], "as it came");
        if (pause != 0) ::usleep(pause);
        for (unsigned i = 0; i < count; ++i) {
            if (read_message(blocks[i], "a while later") != numbers[i]) check(-EUCLEAN, "a while later");
            std::uint64_t &next = next_of[numbers[i] / kSpan];
            if (numbers[i] < next) {
                std::fprintf(stderr, "message %llu comes behind %llu\n", static_cast<unsigned long long>(numbers[i]),
                             static_cast<unsigned long long>(next - 1));
                std::exit(1);
            }
            next = numbers[i] + 1;
            record[numbers[i]].fetch_add(1, std::memory_order_relaxed);
        }
        all += count;
        overtaken += lost;
    }
    std::printf("read %llu overtaken %llu\n", static_cast<unsigned long long>(all),
                static_cast<unsigned long long>(overtaken));
}

}  // namespace

int main(int count, char **arguments) {
    if (count < 8) return 2;
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    const auto number = [&](int which) { return count > which ? std::strtoull(arguments[which], nullptr, 10) : 0; };
    numacre_pool *pool = nullptr;
    check(numacre_attach(arguments[1], "default", &pool), "numacre_attach");
    const bool writes = std::strcmp(arguments[3], "write") == 0;
    numacre_channel_options options{};
    options.struct_size = sizeof options;
    options.flags = NUMACRE_CHANNEL_BROADCAST | (writes ? NUMACRE_CHANNEL_SENDS : NUMACRE_CHANNEL_RECEIVES);
    if (!writes) options.last = static_cast<std::uint32_t>(number(5));
    numacre_channel *channel = nullptr;
    check(numacre_channel_open(pool, arguments[2], &options, &channel), "numacre_channel_open");
    std::puts("open");
    std::atomic<std::uint8_t> *const record = map_record(arguments[4]);
    if (writes)
        write_all(pool, channel, record, number(5), number(6), static_cast<unsigned>(number(7)),
                  static_cast<unsigned>(number(8)));
    else
        read_all(channel, record, static_cast<unsigned>(number(6)), static_cast<unsigned>(number(7)),
                 std::strcmp(arguments[3], "read-poll") == 0);
    check(numacre_channel_close(channel), "numacre_channel_close");
    numacre_detach(pool);
    return 0;
}
