// The second process: takes each block, parses its packet, counts its flow, frees it.
#include <arpa/inet.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <vector>

#include <numacre/inline.h>

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
    Flows(const Options &options, Pool pool, Link link)
        : options_(options), pool_(std::move(pool)), link_(std::move(link)), table_(random_seed(), options.flows_max) {
        numacre_pool_info info{};
        info.struct_size = sizeof info;
        if (numacre_get_info(pool_.get(), &info) != 0)
            throw std::runtime_error(std::string("cannot ask for the pool's frame size: ") + numacre_last_error());
        frame_bytes_ = info.frame_bytes;
    }

    int work();

private:
    // Takes the blocks of `references` into batch_, and advances the ring.
    void take(RingReader &reader, std::span<const numacre_ref> references);
    void parse_batch(LinkType link_type);
    void count_batch();
    void report_and_tell(bool peer_lost);

    struct Item {
        void *block;
        std::uint32_t wire_bytes;
        std::uint64_t hash;
        Parsed parsed;
    };

    const Options &options_;
    Pool pool_;
    Link link_;
    FlowTable table_;
    std::uint64_t frame_bytes_ = 0;
    std::array<Item, kBatch> batch_;
    std::size_t batch_size_ = 0;
    Clock::time_point first_{}, last_{};
    std::uint64_t first_timestamp_ns_ = 0, last_timestamp_ns_ = 0;

    std::uint64_t packets_ = 0, bytes_ = 0;
    std::uint64_t malformed_ = 0, not_ip_ = 0, vlan_ = 0, fragments_ = 0, untracked_ = 0;
    std::uint64_t ipv4_ = 0, ipv6_ = 0, tcp_ = 0, udp_ = 0;
    std::uint64_t lost_with_producer_ = 0, bad_references_ = 0;
    std::uint64_t freed_ = 0;
};

void Flows::take(RingReader &reader, std::span<const numacre_ref> references) {
    batch_size_ = 0;
    std::array<void *, kBatch> blocks{};
    (void)numacre_take_bulk(pool_.get(), references.data(), blocks.data(), static_cast<unsigned>(references.size()));
    for (std::size_t i = 0; i < references.size(); ++i) {
        void *block = blocks[i];
        // Asked once more, it says why.
        const int result = block != nullptr ? 0 : numacre_take(pool_.get(), references[i], &block);
        if (result == 0) {
            __builtin_prefetch(block);
            batch_[batch_size_++].block = block;
        } else if (result == -ESTALE) {
            ++lost_with_producer_;  // the producer died, and the daemon has given the block back
        } else if (result == -EINVAL) {
            ++bad_references_;
        } else {
            throw std::runtime_error(std::string("cannot take a block: ") + numacre_last_error());
        }
    }
    if (reader.advance(references.size())) link_.ring_doorbell();
}

void Flows::parse_batch(LinkType link_type) {
    for (Item &item : std::span(batch_).first(batch_size_)) {
        // The header is copied once, then checked and used, since another process wrote it.
        PacketHeader header;
        std::memcpy(&header, item.block, sizeof header);
        const std::uint64_t needed_bytes = std::uint64_t{header.packet_offset} + header.captured_bytes;
        if (header.packet_offset < sizeof header ||
            (needed_bytes > frame_bytes_ && needed_bytes > numacre_usable_size(pool_.get(), item.block))) {
            header.packet_offset = sizeof header;
            header.captured_bytes = 0;
        }
        item.wire_bytes = header.wire_bytes;
        item.parsed =
            parse(link_type, {static_cast<const std::byte *>(item.block) + header.packet_offset, header.captured_bytes},
                  header.wire_bytes);
        if (packets_ == 0 && &item == batch_.data()) first_timestamp_ns_ = header.timestamp_ns;
        last_timestamp_ns_ = std::max(last_timestamp_ns_, header.timestamp_ns);
        if (item.parsed.verdict == Verdict::flow) {
            item.hash = table_.hash(item.parsed.key);
            table_.prefetch(item.hash);
        }
    }
}

void Flows::count_batch() {
    for (const Item &item : std::span(batch_).first(batch_size_)) {
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
        if (numacre_free_inline(pool_.get(), item.block) != 0)
            throw std::runtime_error(std::string("cannot free a block: ") + numacre_last_error());
        ++freed_;
    }
}

int Flows::work() {
    auto [ring, link_type] = link_.receive_ring(options_.pool);
    RingReader reader(ring.view());
    const unsigned spins = spins_before_sleep();
    bool peer_lost = false;
    std::array<numacre_ref, kBatch> references;
    while (!stop_requested()) {
        const std::size_t count = reader.peek(references);
        if (count != 0) {
            if (packets_ == 0) first_ = Clock::now();
            take(reader, std::span(references).first(count));
            parse_batch(link_type);
            count_batch();
            continue;
        }
        last_ = Clock::now();
        if (reader.finished()) break;
        // The writer was killed: its published references were read above, and nothing more can come.
        if (peer_lost) break;
        bool more = false;
        for (unsigned spin = 0; spin < spins && !more; ++spin) {
            pause_cpu();
            more = reader.has_some();
        }
        if (more || !reader.announce_sleep()) continue;
        link_.wait(kSleepMs);
        reader.cancel_sleep();
        peer_lost = link_.peer_gone();
    }
    if (stop_requested()) last_ = Clock::now();
    peer_lost = peer_lost && !reader.finished();
    report_and_tell(peer_lost);
    return peer_lost ? kPeerLost : kDone;
}

void Flows::report_and_tell(bool peer_lost) {
    link_.send_summary({packets_, bytes_, table_.flows()});
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
    report.add("lost_with_producer", lost_with_producer_);
    report.add("bad_references", bad_references_);
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

int run_flows(const Options &options) {
    // The attach comes first: a failure is reported before any capturer connects.
    Pool pool = attach(options);
    std::optional<Link> link = Link::accept(options.socket);
    if (!link) return kDone;  // a signal came before any capturer
    return Flows(options, std::move(pool), std::move(*link)).work();
}

int run_flows(const Options &options, Link link) {
    return Flows(options, attach(options), std::move(link)).work();
}

}  // namespace relay
