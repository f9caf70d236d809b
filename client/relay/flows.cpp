// The second process: receives each block, parses its packet, counts its flow, frees it.
#include <arpa/inet.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include <numacre/inline.h>

#include "channel.hpp"
#include "flow_table.hpp"
#include "options.hpp"
#include "report.hpp"

namespace relay {
namespace {

using Clock = std::chrono::steady_clock;

// The number of blocks that each step works on together, so that the cache misses of a step overlap.
constexpr std::size_t kBatch = 64;

std::uint64_t random_seed() {
    std::uint64_t seed = 0;
    if (::getrandom(&seed, sizeof seed, 0) != sizeof seed) throw std::runtime_error("the kernel gives no random bytes");
    return seed;
}

std::string address_text(const FlowKey &key, const std::array<std::uint8_t, 16> &address) {
    char text[INET6_ADDRSTRLEN] = "?";
    ::inet_ntop(key.ip_version == 4 ? AF_INET : AF_INET6, address.data(), text, sizeof text);
    return text;
}

unsigned port_number(const std::array<std::uint8_t, 2> &port) {
    return static_cast<unsigned>(port[0] << 8 | port[1]);
}

class Flows {
public:
    Flows(const Options &options, Pool pool, const Fd &capture_process)
        : options_(options),
          pool_(std::move(pool)),
          channel_(open_channel(pool_.get(), options, NUMACRE_CHANNEL_RECEIVES)),
          capture_process_(capture_process),
          table_(random_seed(), options.flows_max) {
        numacre_pool_info info{};
        info.struct_size = sizeof info;
        if (numacre_get_info(pool_.get(), &info) != 0)
            throw std::runtime_error(std::string("cannot ask for the pool's frame size: ") + numacre_last_error());
        frame_bytes_ = info.frame_bytes;
    }

    int work();

private:
    // Receives packets into blocks_; waits for the first one, if wait_ms is not 0. Returns 0, or why there are none: an
    // error of numacre_receive.
    int receive(unsigned wait_ms);
    void parse_batch();
    void count_batch();
    // Whether the stream is over: an error of receive() says that nothing comes any more.
    bool is_over(int error);
    void print_report(bool peer_lost) const;

    struct Item {
        std::uint32_t wire_bytes;
        std::uint64_t hash;
        Parsed parsed;
    };

    const Options &options_;
    Pool pool_;
    Channel channel_;
    const Fd &capture_process_;
    bool capture_has_ended_ = false;
    FlowTable table_;
    std::uint64_t frame_bytes_ = 0;
    std::array<void *, kBatch> blocks_;
    std::array<Item, kBatch> batch_;  // of the same places as blocks_
    std::size_t batch_size_ = 0;
    Clock::time_point first_{}, last_{};
    std::uint64_t first_timestamp_ns_ = 0, last_timestamp_ns_ = 0;

    std::uint64_t packets_ = 0, bytes_ = 0;
    std::uint64_t malformed_ = 0, not_ip_ = 0, vlan_ = 0, fragments_ = 0, untracked_ = 0;
    std::uint64_t ipv4_ = 0, ipv6_ = 0, tcp_ = 0, udp_ = 0;
    std::uint64_t redelivered_ = 0;
    std::uint64_t freed_ = 0;
};

int Flows::receive(unsigned wait_ms) {
    batch_size_ = 0;
    int error = 0;
    // One call receives at most one burst.
    while (error == 0 && batch_size_ < kBatch) {
        void **const blocks = blocks_.data() + batch_size_;
        const auto most = static_cast<unsigned>(kBatch - batch_size_);
        unsigned count = 0;
        int redelivered = 0;
        error = wait_ms != 0 && batch_size_ == 0
                    ? numacre_receive_wait(channel_.get(), blocks, most, wait_ms, &count, &redelivered)
                    : numacre_receive(channel_.get(), blocks, most, &count, &redelivered);
        for (const void *const block : std::span(blocks, count)) __builtin_prefetch(block);
        batch_size_ += count;
        if (redelivered != 0) redelivered_ += count;
    }
    return batch_size_ != 0 ? 0 : error;
}

void Flows::parse_batch() {
    for (std::size_t i = 0; i < batch_size_; ++i) {
        const void *const block = blocks_[i];
        Item &item = batch_[i];
        // The header is copied once, then checked and used, since another process wrote it.
        PacketHeader header;
        std::memcpy(&header, block, sizeof header);
        const std::uint64_t needed_bytes = std::uint64_t{header.packet_offset} + header.captured_bytes;
        if (header.packet_offset < sizeof header ||
            (needed_bytes > frame_bytes_ && needed_bytes > numacre_usable_size(pool_.get(), block))) {
            header.packet_offset = sizeof header;
            header.captured_bytes = 0;
        }
        item.wire_bytes = header.wire_bytes;
        item.parsed = parse(header.link_type,
                            {static_cast<const std::byte *>(block) + header.packet_offset, header.captured_bytes},
                            header.wire_bytes);
        if (packets_ == 0 && i == 0) first_timestamp_ns_ = header.timestamp_ns;
        last_timestamp_ns_ = std::max<std::uint64_t>(last_timestamp_ns_, header.timestamp_ns);
        if (item.parsed.verdict == Verdict::flow) {
            item.hash = table_.hash(item.parsed.key);
            table_.prefetch(item.hash);
        }
    }
}

void Flows::count_batch() {
    for (std::size_t i = 0; i < batch_size_; ++i) {
        const Item &item = batch_[i];
        const Parsed &parsed = item.parsed;
        ++packets_;
        bytes_ += item.wire_bytes;
        vlan_ += parsed.vlan_tags != 0;
        switch (parsed.verdict) {
            case Verdict::malformed:
                ++malformed_;
                break;
            case Verdict::not_ip:
                ++not_ip_;
                break;
            case Verdict::flow:
                ++(parsed.key.ip_version == 4 ? ipv4_ : ipv6_);
                tcp_ += parsed.key.protocol == kProtocolTcp;
                udp_ += parsed.key.protocol == kProtocolUdp;
                fragments_ += parsed.fragment;
                if (!table_.count(parsed.key, item.hash, item.wire_bytes)) ++untracked_;
        }
        if (numacre_free_inline(pool_.get(), blocks_[i]) != 0)
            throw std::runtime_error(std::string("cannot free a block: ") + numacre_last_error());
        ++freed_;
    }
}

int Flows::work() {
    std::fprintf(stderr, "relay flows: reading channel '%s'\n", options_.channel.c_str());
    const unsigned spins = spins_before_sleep();
    bool peer_lost = false;
    while (!stop_requested()) {
        int error = receive(0);
        for (unsigned spin = 0; spin < spins && error == -EAGAIN; ++spin) {
            pause_cpu();
            error = receive(0);
        }
        if (error == -EAGAIN) error = receive(kSleepMs);
        if (error == 0) {
            if (packets_ == 0) first_ = Clock::now();
            parse_batch();
            count_batch();
            last_ = Clock::now();
        } else if (is_over(error)) {
            peer_lost = error == -EPIPE;
            break;
        }
    }
    print_report(peer_lost);
    return peer_lost ? kPeerLost : kDone;
}

bool Flows::is_over(int error) {
    if (error != -EAGAIN && error != -ETIMEDOUT && error != -EPIPE && error != -ESHUTDOWN)
        throw std::runtime_error(std::string("cannot receive packets: ") + numacre_last_error());
    const bool ended = error == -ESHUTDOWN;
    if (packets_ != 0) return ended || error == -EPIPE;
    // Nothing has come yet. A stream of no packets is ours; any other has been read by somebody else.
    if (ended && info_of(channel_.get()).sent == 0) return true;
    // One more look: the capture may have sent something just before its end.
    if (std::exchange(capture_has_ended_, wait_until_readable(capture_process_.get(), 0))) return true;
    if (ended) channel_.reset();  // it goes as soon as nobody has it open
    if (ended || error == -EPIPE) wait_until_readable(-1, kSleepMs);
    if (ended) channel_ = open_channel(pool_.get(), options_, NUMACRE_CHANNEL_RECEIVES);
    return false;
}

void Flows::print_report(bool peer_lost) const {
    const double seconds = packets_ == 0 ? 0.0 : std::chrono::duration<double>(last_ - first_).count();

    Report report("flows");
    report.add("ended", std::string(peer_lost ? "peer lost" : stop_requested() ? "stopped" : "complete"));
    report.add("packets", packets_);
    report.add("bytes", bytes_);
    report.add("flows", table_.flows());
    report.add("seconds", seconds);
    report.add("packets_per_second", seconds > 0 ? static_cast<double>(packets_) / seconds : 0.0);
    report.add("ipv4", ipv4_);
    report.add("ipv6", ipv6_);
    report.add("tcp", tcp_);
    report.add("udp", udp_);
    report.add("vlan", vlan_);
    report.add("fragments", fragments_);
    report.add("not_ip", not_ip_);
    report.add("malformed", malformed_);
    report.add("flows_not_tracked", untracked_);
    report.add("capture_span_seconds", packets_ == 0 || last_timestamp_ns_ < first_timestamp_ns_
                                           ? 0.0
                                           : static_cast<double>(last_timestamp_ns_ - first_timestamp_ns_) / 1e9);
    report.add("redelivered", redelivered_);
    report.add("blocks_held", packets_ - freed_);

    std::vector<const FlowTable::Entry *> entries;
    table_.for_each([&entries](const FlowTable::Entry &entry) { entries.push_back(&entry); });
    const std::size_t shown = std::min<std::size_t>(entries.size(), options_.top);
    std::partial_sort(entries.begin(), entries.begin() + static_cast<std::ptrdiff_t>(shown), entries.end(),
                      [](const auto *a, const auto *b) { return a->packets > b->packets; });
    std::string list;
    for (const FlowTable::Entry *const shown_entry : std::span(entries).first(shown)) {
        const FlowTable::Entry &entry = *shown_entry;
        const std::string source = address_text(entry.key, entry.key.source);
        const std::string destination = address_text(entry.key, entry.key.destination);
        const std::string source_port = std::to_string(port_number(entry.key.source_port));
        const std::string destination_port = std::to_string(port_number(entry.key.destination_port));
        const std::string protocol = std::to_string(entry.key.protocol);
        report.add_text("protocol " + protocol + "  " + source + " port " + source_port + " -> " + destination +
                        " port " + destination_port + ": " + std::to_string(entry.packets) + " packets, " +
                        std::to_string(entry.bytes) + " bytes");
        list += (list.empty() ? "" : ", ") + std::string("{\"protocol\": ") + protocol + ", \"source\": \"" + source +
                "\", \"source_port\": " + source_port + ", \"destination\": \"" + destination +
                "\", \"destination_port\": " + destination_port + ", \"packets\": " + std::to_string(entry.packets) +
                ", \"bytes\": " + std::to_string(entry.bytes) + "}";
    }
    report.add_json("top_flows", "[" + list + "]");
    report.print(options_.json);
}

}  // namespace

int run_flows(const Options &options, const Fd &capture_process) {
    return Flows(options, attach(options), capture_process).work();
}

}  // namespace relay
