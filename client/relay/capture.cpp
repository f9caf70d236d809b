// The first process: it writes packets into blocks, and references into the ring.
#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <system_error>
#include <vector>

#include "live_capture.hpp"
#include "options.hpp"
#include "pcap_file.hpp"
#include "report.hpp"
#include "xdp_capture.hpp"

namespace relay {
namespace {

using Clock = std::chrono::steady_clock;

// The number of references that are published together: the ring's head moves between the two CPUs once for so many
// packets.
constexpr std::uint64_t kPublishEvery = 32;
// The longest single wait for memory; after it, signals and the peer are checked again.
constexpr unsigned kMemoryWaitMs = 50;
// When it is time to stop, the longest time for which the writer waits for a reader that makes no progress.
constexpr auto kGrace = std::chrono::seconds(2);

double seconds_between(Clock::time_point from, Clock::time_point to) {
    return std::chrono::duration<double>(to - from).count();
}

class Capture {
public:
    Capture(const Options &options, Pool pool, Link link, std::unique_ptr<XdpCapture> xdp)
        : options_(options),
          pool_(std::move(pool)),
          xdp_(std::move(xdp)),
          link_(std::move(link)),
          ring_(RingMemory::create(options.ring_slots)),
          writer_(ring_.view()),
          spins_(spins_before_sleep()) {}

    void announce(LinkType link_type) {
        link_.send_ring(ring_, options_.ring_slots, link_type, options_.pool);
        started_ = Clock::now();
    }

    void replay(const PcapFile &file);
    void relay_live(LiveCapture &live);
    void relay_xdp();
    int finish();

private:
    bool limit_reached() const { return options_.packets_max != 0 && packets_ >= options_.packets_max; }
    bool time_is_up() const {
        return options_.seconds_max > 0 && seconds_between(started_, Clock::now()) >= options_.seconds_max;
    }
    bool must_stop() { return stop_requested() || time_is_up() || link_.peer_gone(); }

    void publish() {
        if (writer_.publish()) link_.ring_doorbell();
    }

    // Allocates a block. nullptr: there is no room, and nothing is lost. Other failures throw.
    void *try_allocate(std::size_t bytes, unsigned flags = 0);
    // Allocates a block, and waits for room. nullptr: it is time to stop.
    void *allocate(std::size_t bytes);
    // Puts the references of blocks with packets into the ring, which has room for them.
    void push(std::span<void *const> blocks);
    // Waits until the ring has a free slot. False: the reader has gone, or it is time to stop. `ending`: it is time to
    // stop, but the reader gets kGrace to make room.
    bool wait_for_slot(bool ending = false);
    numacre_ref reference_of(const void *block);
    void free_block(void *block);
    void count(std::uint32_t wire_bytes) {
        ++packets_;
        bytes_ += wire_bytes;
    }
    void return_in_flight();

    const Options &options_;
    Pool pool_;
    std::unique_ptr<XdpCapture> xdp_;  // closed before the pool
    Link link_;
    RingMemory ring_;
    RingWriter writer_;
    unsigned spins_;
    Clock::time_point started_;

    std::uint64_t packets_ = 0, bytes_ = 0;  // handed to the ring; bytes as on the wire
    std::uint64_t waits_pool_full_ = 0, waits_ring_full_ = 0;
    std::uint64_t dropped_pool_full_ = 0, dropped_by_kernel_ = 0;
    std::uint64_t in_flight_at_end_ = 0, returned_ = 0;
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
    publish();  // the reader frees only blocks of published references
    while (!must_stop())
        if (void *const block = try_allocate(bytes, NUMACRE_WAIT_MS(kMemoryWaitMs))) return block;
    return nullptr;
}

bool Capture::wait_for_slot(bool ending) {
    const auto give_up = Clock::now() + kGrace;
    ++waits_ring_full_;
    publish();
    for (unsigned spin = 0; spin < spins_; ++spin) {
        if (writer_.has_room()) return true;
        pause_cpu();
    }
    while (ending ? Clock::now() < give_up && !link_.peer_gone() : !must_stop()) {
        if (!writer_.announce_sleep()) return true;
        link_.wait(kSleepMs);
        writer_.cancel_sleep();
        if (writer_.has_room()) return true;
    }
    return false;
}

numacre_ref Capture::reference_of(const void *block) {
    const numacre_ref reference = numacre_ref_of(pool_.get(), block);
    if (reference == NUMACRE_REF_NULL)
        throw std::runtime_error(std::string("a block has no reference: ") + numacre_last_error());
    return reference;
}

void Capture::free_block(void *block) {
    if (numacre_free(pool_.get(), block) != 0)
        throw std::runtime_error(std::string("cannot free a block: ") + numacre_last_error());
    ++freed_;
}

void Capture::push(std::span<void *const> blocks) {
    std::array<numacre_ref, std::max(LiveCapture::kBatch, XdpCapture::kBatch)> references;
    if (numacre_ref_bulk(pool_.get(), blocks.data(), references.data(), static_cast<unsigned>(blocks.size())) != 0)
        throw std::runtime_error(std::string("a block has no reference: ") + numacre_last_error());
    for (std::size_t i = 0; i < blocks.size(); ++i) {
        PacketHeader header;
        std::memcpy(&header, blocks[i], sizeof header);
        if (!writer_.try_push(references[i])) throw RingDamaged();  // there was room, and we alone fill it
        count(header.wire_bytes);
    }
    publish();
}

void Capture::replay(const PcapFile &file) {
    for (std::uint64_t loop = 0; loop < options_.loops; ++loop) {
        for (std::size_t i = 0; i < file.packets(); ++i) {
            if (limit_reached() || stop_requested()) return;
            const PacketHeader &header = file.header(i);
            void *const block = allocate(sizeof header + header.captured_bytes);
            if (block == nullptr) return;
            std::memcpy(block, &header, sizeof header);
            const auto bytes = file.bytes(i);
            std::memcpy(static_cast<std::byte *>(block) + sizeof header, bytes.data(), bytes.size());
            const numacre_ref reference = reference_of(block);
            while (!writer_.try_push(reference)) {
                if (wait_for_slot()) continue;
                free_block(block);
                return;
            }
            count(header.wire_bytes);
            if (writer_.unpublished() >= kPublishEvery) {
                publish();
                if (time_is_up()) return;
            }
        }
    }
}

void Capture::relay_live(LiveCapture &live) {
    // Blocks that wait for a packet.
    std::vector<void *> blocks;
    // Set when it is time to stop: the number of packets that have come until then and are still to be relayed.
    std::optional<std::uint64_t> left;
    while (!limit_reached() && !link_.peer_gone() && (!left || *left > 0)) {
        if (!left && must_stop()) left = live.waiting();
        // While the ring is full, packets wait in the kernel's buffer, which is larger.
        if (!writer_.has_room() && !wait_for_slot(left.has_value())) {
            if (left) break;  // the reader stands still
            continue;
        }
        std::size_t wanted = std::min<std::uint64_t>(LiveCapture::kBatch, writer_.room());
        if (options_.packets_max != 0) wanted = std::min<std::uint64_t>(wanted, options_.packets_max - packets_);
        while (blocks.size() < wanted) {
            void *const block = try_allocate(live.block_bytes());
            if (block == nullptr) break;
            blocks.push_back(block);
        }
        wanted = std::min(wanted, blocks.size());
        const std::size_t received = wanted == 0 ? live.discard() : live.receive({blocks.data(), wanted});
        if (wanted == 0) dropped_pool_full_ += received;
        if (left) *left -= std::min<std::uint64_t>(*left, received);
        if (received == 0) {
            if (left) break;
            link_.wait(kSleepMs, live.fd());
            continue;
        }
        if (wanted == 0) continue;
        push(std::span(blocks).first(received));
        blocks.erase(blocks.begin(), blocks.begin() + static_cast<std::ptrdiff_t>(received));
    }
    for (void *const block : blocks) free_block(block);
    dropped_by_kernel_ = live.kernel_drops();
}

void Capture::relay_xdp() {
    XdpCapture &xdp = *xdp_;
    std::array<void *, XdpCapture::kBatch> blocks;
    xdp.start();
    // As in relay_live(). While the ring or the pool is full, packets wait in the socket's ring, or are dropped.
    std::optional<std::uint64_t> left;
    while (!limit_reached() && !link_.peer_gone() && (!left || *left > 0)) {
        if (!left && must_stop()) left = xdp.waiting();
        if (!writer_.has_room() && !wait_for_slot(left.has_value())) {
            if (left) break;  // the reader stands still
            continue;
        }
        std::size_t wanted = std::min<std::uint64_t>(blocks.size(), writer_.room());
        if (options_.packets_max != 0) wanted = std::min<std::uint64_t>(wanted, options_.packets_max - packets_);
        const std::size_t received = xdp.receive(std::span(blocks).first(wanted));
        if (left) *left -= std::min<std::uint64_t>(*left, received);
        if (received != 0) {
            push(std::span(blocks).first(received));
        } else if (left) {
            break;
        } else {
            link_.wait(kSleepMs, xdp.fd());
        }
    }
    const XdpCapture::Figures figures = xdp.close();
    allocated_ += figures.allocated;
    freed_ += figures.freed;
    dropped_pool_full_ = figures.dropped_without_block;
    dropped_by_kernel_ = figures.dropped_by_kernel;
}

// Frees the blocks that the reader did not consume: they still belong to this process. Each reference is taken first:
// the take fails for a block that the reader took before it died and that may have been allocated anew since, because
// that reference is stale.
void Capture::return_in_flight() {
    in_flight_at_end_ = writer_.for_each_in_flight([this](numacre_ref reference) {
        void *block = nullptr;
        if (numacre_take(pool_.get(), reference, &block) != 0) return;
        free_block(block);
        ++returned_;
    });
}

int Capture::finish() {
    publish();
    if (writer_.close()) link_.ring_doorbell();
    std::optional<Clock::time_point> give_up;
    std::uint64_t room_before = 0;
    // peer_gone() comes first: it reads the messages that have come, and the summary may be among them.
    while (!link_.peer_gone() && !link_.peer_summary()) {
        const std::uint64_t room = writer_.room();
        if (stop_requested() && (!give_up || room != room_before)) give_up = Clock::now() + kGrace;
        if (give_up && Clock::now() >= *give_up) break;
        room_before = room;
        link_.wait(kSleepMs);
    }
    const double seconds = seconds_between(started_, Clock::now());
    return_in_flight();
    const std::uint64_t handed_over = packets_ - returned_;
    const bool peer_lost = !link_.peer_summary() || in_flight_at_end_ != 0;

    Report report("capture");
    report.add("ended", std::string(peer_lost ? "peer lost" : stop_requested() ? "stopped" : "complete"));
    report.add("packets", packets_);
    report.add("bytes", bytes_);
    report.add("flows", link_.peer_summary() ? link_.peer_summary()->flows : 0);
    report.add("seconds", seconds);
    report.add("packets_per_second", seconds > 0 ? static_cast<double>(packets_) / seconds : 0.0);
    report.add("handed_over", handed_over);
    report.add("returned", returned_);
    report.add("waits_pool_full", waits_pool_full_);
    report.add("waits_ring_full", waits_ring_full_);
    report.add("dropped_pool_full", dropped_pool_full_);
    report.add("dropped_by_kernel", dropped_by_kernel_);
    report.add("blocks_held", allocated_ - freed_ - handed_over);
    report.print(options_.json);
    return peer_lost ? kPeerLost : kDone;
}

template <class MakeLink>
int capture(const Options &options, MakeLink make_link) {
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
    Link link = make_link();
    Capture capture(options, std::move(pool), std::move(link), std::move(xdp));
    capture.announce(file ? file->link_type() : live ? live->link_type() : LinkType::ethernet);
    if (file) {
        capture.replay(*file);
    } else if (options.af_xdp) {
        capture.relay_xdp();
    } else {
        // Packets that came before the other side connected do not belong to this run.
        for (std::uint64_t early = live->waiting(); early > 0;) {
            const std::size_t discarded = live->discard();
            if (discarded == 0) break;
            early -= std::min<std::uint64_t>(early, discarded);
        }
        std::fprintf(stderr, "relay capture: capturing from %s\n", options.interface.c_str());
        capture.relay_live(*live);
    }
    return capture.finish();
}

}  // namespace

int run_capture(const Options &options) {
    return capture(options, [&options] { return Link::connect(options.socket); });
}

int run_capture(const Options &options, Link link) {
    return capture(options, [&link] { return std::move(link); });
}

}  // namespace relay
