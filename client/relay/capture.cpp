// The first process: it writes packets into blocks, and sends the blocks.
#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "channel.hpp"
#include "live_capture.hpp"
#include "options.hpp"
#include "pcap_file.hpp"
#include "report.hpp"
#include "xdp_capture.hpp"

namespace relay {
namespace {

using Clock = std::chrono::steady_clock;

// The number of packets that are sent together: a cache line moves between the two CPUs once for so many packets.
constexpr std::uint32_t kBurst = 32;
// The longest single wait for memory; after it, signals and the time limit are checked again.
constexpr unsigned kMemoryWaitMs = 50;
// When it is time to stop, the longest time for which a burst waits for room.
constexpr auto kGrace = std::chrono::seconds(2);

double seconds_between(Clock::time_point from, Clock::time_point to) {
    return std::chrono::duration<double>(to - from).count();
}

class Capture {
public:
    Capture(const Options &options, Pool pool, std::unique_ptr<XdpCapture> xdp)
        : options_(options),
          pool_(std::move(pool)),
          xdp_(std::move(xdp)),
          channel_(open_channel(pool_.get(), options, NUMACRE_CHANNEL_SENDS)),
          spins_(spins_before_sleep()),
          started_(Clock::now()) {
        const numacre_channel_info info = info_of(channel_.get());
        burst_most_ = std::min({kBurst, info.burst, info.capacity});
    }

    void replay(const PcapFile &file);
    void relay_live(LiveCapture &live);
    void relay_xdp();
    int finish();

private:
    // The packets that are still wanted, at most `most`.
    std::size_t wanted(std::size_t most) const {
        if (options_.packets_max == 0) return most;
        return std::min<std::uint64_t>(most, options_.packets_max - packets_ - burst_.size());
    }
    bool time_is_up() const {
        return options_.seconds_max > 0 && seconds_between(started_, Clock::now()) >= options_.seconds_max;
    }
    bool must_stop() const { return stop_requested() || time_is_up(); }

    // Allocates a block. nullptr: there is no room, and nothing is lost. Other failures throw.
    void *try_allocate(std::size_t bytes, unsigned flags = 0);
    // Allocates a block, and waits for room. nullptr: it is time to stop, or the reader has gone.
    void *allocate(std::size_t bytes);
    // Sends blocks with packets, and waits for room. False: the reader has gone, or makes no room although it is time
    // to stop; then it has freed those that it could not send.
    bool send(std::span<void *const> blocks);
    bool send_burst(std::span<void *const> burst);
    // Sends what the replay has gathered.
    bool flush() {
        const bool sent = send(burst_);
        burst_.clear();
        return sent;
    }
    // False: the replay is over.
    bool replay_once(const PcapFile &file);
    void free_block(void *block);
    // Whether there was a reader, and there is none now. If there never was one, says so once.
    bool reader_has_gone();

    const Options &options_;
    Pool pool_;
    std::unique_ptr<XdpCapture> xdp_;  // closed before the pool
    Channel channel_;
    std::size_t burst_most_ = 0;
    std::vector<void *> burst_;  // packets of a replay that are still to be sent
    unsigned spins_;
    Clock::time_point started_;
    bool peer_lost_ = false, said_nobody_reads_ = false;

    std::uint64_t packets_ = 0, bytes_ = 0;  // sent; bytes as on the wire
    std::uint64_t not_sent_ = 0;             // captured, and freed because nobody made room
    std::uint64_t waits_pool_full_ = 0, waits_channel_full_ = 0;
    std::uint64_t dropped_pool_full_ = 0, dropped_by_kernel_ = 0;
    std::uint64_t allocated_ = 0, freed_ = 0;
};

void *Capture::try_allocate(std::size_t bytes, unsigned flags) {
    void *block = nullptr;
    const int result = flags == 0 ? numacre_alloc(pool_.get(), bytes, &block)
                                  : numacre_alloc_on(pool_.get(), -1, bytes, flags, &block);
    if (result == 0) {
        ++allocated_;
        return block;
    }
    if (result != -ENOMEM && result != -ETIMEDOUT && result != -EDQUOT)
        throw std::runtime_error("cannot allocate " + std::to_string(bytes) + " bytes: " + numacre_last_error());
    return nullptr;
}

void *Capture::allocate(std::size_t bytes) {
    if (void *const block = try_allocate(bytes)) return block;
    ++waits_pool_full_;
    if (!flush()) return nullptr;  // the reader frees only what has been sent
    while (!must_stop() && !peer_lost_) {
        if (void *const block = try_allocate(bytes, NUMACRE_WAIT_MS(kMemoryWaitMs))) return block;
        peer_lost_ = reader_has_gone();
    }
    return nullptr;
}

void Capture::free_block(void *block) {
    if (numacre_free(pool_.get(), block) != 0)
        throw std::runtime_error(std::string("cannot free a block: ") + numacre_last_error());
    ++freed_;
}

bool Capture::send(std::span<void *const> blocks) {
    while (!blocks.empty()) {
        const auto burst = blocks.first(std::min(blocks.size(), burst_most_));
        std::uint64_t wire_bytes = 0;
        for (const void *const block : burst) {
            PacketHeader header;
            std::memcpy(&header, block, sizeof header);
            wire_bytes += header.wire_bytes;
        }
        if (!send_burst(burst)) break;
        packets_ += burst.size();
        bytes_ += wire_bytes;
        blocks = blocks.subspan(burst.size());
    }
    for (void *const block : blocks) free_block(block);
    not_sent_ += blocks.size();
    return blocks.empty();
}

bool Capture::send_burst(std::span<void *const> burst) {
    const auto count = static_cast<unsigned>(burst.size());
    int error = numacre_send(channel_.get(), burst.data(), count);
    if (error == -EAGAIN) ++waits_channel_full_;
    for (unsigned spin = 0; spin < spins_ && error == -EAGAIN; ++spin) {
        pause_cpu();
        error = numacre_send(channel_.get(), burst.data(), count);
    }
    std::optional<Clock::time_point> give_up;
    while (error == -EAGAIN || error == -ETIMEDOUT) {
        if (!give_up && must_stop()) give_up = Clock::now() + kGrace;
        if (give_up && Clock::now() >= *give_up) return false;
        error = numacre_send_wait(channel_.get(), burst.data(), count, kSleepMs);
        if (error == -ETIMEDOUT) (void)reader_has_gone();  // the next send tells us so
    }
    peer_lost_ = error == -EPIPE;
    if (error != 0 && !peer_lost_)
        throw std::runtime_error(std::string("cannot send packets: ") + numacre_last_error());
    return error == 0;
}

bool Capture::reader_has_gone() {
    const numacre_channel_info info = info_of(channel_.get());
    if (info.receivers != 0) return false;
    if (info.received == 0 && !std::exchange(said_nobody_reads_, true))
        std::fprintf(
            stderr,
            "relay capture: nobody reads channel '%s' of pool '%s': start `relay flows` with the same --channel "
            "and --pool\n",
            options_.channel.c_str(), options_.pool.c_str());
    return info.received != 0;
}

void Capture::replay(const PcapFile &file) {
    burst_.reserve(burst_most_);
    for (std::uint64_t loop = 0; loop < options_.loops && replay_once(file); ++loop) {
    }
    (void)flush();
}

bool Capture::replay_once(const PcapFile &file) {
    for (std::size_t i = 0; i < file.packets(); ++i) {
        if (wanted(1) == 0 || stop_requested()) return false;
        const PacketHeader &header = file.header(i);
        void *const block = allocate(sizeof header + header.captured_bytes);
        if (block == nullptr) return false;
        std::memcpy(block, &header, sizeof header);
        const auto bytes = file.bytes(i);
        std::memcpy(static_cast<std::byte *>(block) + sizeof header, bytes.data(), bytes.size());
        burst_.push_back(block);
        if (burst_.size() >= burst_most_ && (!flush() || time_is_up())) return false;
    }
    return true;
}

void Capture::relay_live(LiveCapture &live) {
    // Blocks that wait for a packet.
    std::vector<void *> blocks;
    // Set when it is time to stop: the number of packets that have come until then and are still to be relayed.
    std::optional<std::uint64_t> left;
    while (wanted(1) != 0 && (!left || *left > 0)) {
        if (!left && must_stop()) left = live.waiting();
        std::size_t room = wanted(LiveCapture::kBatch);
        while (blocks.size() < room) {
            void *const block = try_allocate(live.block_bytes());
            if (block == nullptr) break;
            blocks.push_back(block);
        }
        room = std::min(room, blocks.size());
        const std::size_t received = room == 0 ? live.discard() : live.receive({blocks.data(), room});
        if (room == 0) dropped_pool_full_ += received;
        if (left) *left -= std::min<std::uint64_t>(*left, received);
        if (received == 0) {
            if (left) break;
            wait_until_readable(live.fd(), kSleepMs);
            continue;
        }
        if (room == 0) continue;
        // While the channel is full, packets wait in the kernel's buffer, which is larger.
        const bool sent = send(std::span(blocks).first(received));
        blocks.erase(blocks.begin(), blocks.begin() + static_cast<std::ptrdiff_t>(received));
        if (!sent) break;
    }
    for (void *const block : blocks) free_block(block);
    dropped_by_kernel_ = live.kernel_drops();
}

void Capture::relay_xdp() {
    XdpCapture &xdp = *xdp_;
    std::array<void *, XdpCapture::kBatch> blocks;
    xdp.start();
    // As in relay_live(). While the channel or the pool is full, packets wait in the socket's ring, or are dropped.
    std::optional<std::uint64_t> left;
    while (wanted(1) != 0 && (!left || *left > 0)) {
        if (!left && must_stop()) left = xdp.waiting();
        const std::size_t received = xdp.receive(std::span(blocks).first(wanted(blocks.size())));
        if (left) *left -= std::min<std::uint64_t>(*left, received);
        if (received != 0) {
            if (!send(std::span(blocks).first(received))) break;
        } else if (left) {
            break;
        } else {
            wait_until_readable(xdp.fd(), kSleepMs);
        }
    }
    const XdpCapture::Figures figures = xdp.close();
    allocated_ += figures.allocated;
    freed_ += figures.freed;
    dropped_pool_full_ = figures.dropped_without_block;
    dropped_by_kernel_ = figures.dropped_by_kernel;
}

int Capture::finish() {
    const double seconds = seconds_between(started_, Clock::now());
    const bool stopped = stop_requested();
    if (numacre_channel_end(channel_.get()) != 0)
        throw std::runtime_error(std::string("cannot end the stream: ") + numacre_last_error());

    Report report("capture");
    report.add("ended", std::string(peer_lost_ ? "peer lost" : stopped ? "stopped" : "complete"));
    report.add("packets", packets_);
    report.add("bytes", bytes_);
    report.add("seconds", seconds);
    report.add("packets_per_second", seconds > 0 ? static_cast<double>(packets_) / seconds : 0.0);
    report.add("waits_pool_full", waits_pool_full_);
    report.add("waits_channel_full", waits_channel_full_);
    report.add("dropped_pool_full", dropped_pool_full_);
    report.add("dropped_by_kernel", dropped_by_kernel_);
    report.add("not_sent", not_sent_);
    report.add("in_channel_at_end", std::uint64_t{info_of(channel_.get()).waiting});
    report.add("blocks_held", allocated_ - freed_ - packets_);
    report.print(options_.json);
    return peer_lost_ ? kPeerLost : kDone;
}

}  // namespace

int run_capture(const Options &options) {
    std::optional<PcapFile> file;
    std::optional<LiveCapture> live;
    if (!options.pcap.empty()) {
        file.emplace(options.pcap);
    } else if (!options.af_xdp) {
        live.emplace(options.interface, options.snap_bytes);
    }
    Pool pool = attach(options);
    std::unique_ptr<XdpCapture> xdp;
    if (options.af_xdp) xdp = std::make_unique<XdpCapture>(pool.get(), options.interface, options.queue);
    Capture capture(options, std::move(pool), std::move(xdp));
    if (file) {
        capture.replay(*file);
    } else if (options.af_xdp) {
        capture.relay_xdp();
    } else {
        std::fprintf(stderr, "relay capture: capturing from %s\n", options.interface.c_str());
        capture.relay_live(*live);
    }
    return capture.finish();
}

}  // namespace relay
