#include "packet.hpp"

#include <algorithm>
#include <cstring>

namespace relay {
namespace {

constexpr std::uint16_t kEtherIpv4 = 0x0800, kEtherIpv6 = 0x86dd;
constexpr std::size_t kEthernetBytes = 14, kSllBytes = 16, kVlanBytes = 4;
constexpr std::size_t kIpv4Bytes = 20, kIpv6Bytes = 40, kTcpBytes = 20, kUdpBytes = 8;
// Real packets have no more; without a bound a packet of nothing but tags or extension headers would be walked to its
// end.
constexpr unsigned kVlanTagsMax = 4, kExtensionHeadersMax = 8;

constexpr bool is_vlan(std::uint16_t ether_type) {
    return ether_type == 0x8100 || ether_type == 0x88a8 || ether_type == 0x9100;
}

// The rest of the packet: its captured bytes, and perhaps more bytes that were only on the wire.
class Rest {
public:
    Rest(std::span<const std::byte> captured, std::size_t wire_bytes)
        : captured_(captured), wire_bytes_(std::max(wire_bytes, captured.size())) {}

    bool has(std::size_t bytes) const { return captured_.size() >= bytes; }
    std::size_t wire_bytes() const { return wire_bytes_; }

    // byte(), big16(), copy() and skip() may be used only within the bytes that has() has allowed.
    std::uint8_t byte(std::size_t offset) const { return static_cast<std::uint8_t>(captured_[offset]); }
    std::uint16_t big16(std::size_t offset) const {
        return static_cast<std::uint16_t>(byte(offset) << 8 | byte(offset + 1));
    }
    template <std::size_t N>
    void copy(std::size_t offset, std::size_t bytes, std::array<std::uint8_t, N> &to) const {
        std::memcpy(to.data(), captured_.data() + offset, bytes);
    }
    void skip(std::size_t bytes) {
        captured_ = captured_.subspan(bytes);
        wire_bytes_ -= bytes;
    }
    // Drops the bytes behind the first `bytes`: Ethernet's padding.
    void limit(std::size_t bytes) {
        wire_bytes_ = std::min(wire_bytes_, bytes);
        captured_ = captured_.first(std::min(captured_.size(), wire_bytes_));
    }

private:
    std::span<const std::byte> captured_;
    std::size_t wire_bytes_;
};

bool read_ports(const Rest &rest, Parsed &parsed) {
    FlowKey &key = parsed.key;
    if (key.protocol == kProtocolTcp) {
        if (!rest.has(kTcpBytes)) return false;
        const std::size_t header_bytes = (rest.byte(12) >> 4) * std::size_t{4};
        if (header_bytes < kTcpBytes || header_bytes > rest.wire_bytes()) return false;
    } else if (key.protocol == kProtocolUdp) {
        if (!rest.has(kUdpBytes)) return false;
        // 0 marks a jumbogram. A first fragment carries fewer bytes than the datagram's length field.
        const std::size_t datagram_bytes = rest.big16(4);
        if (datagram_bytes != 0 && datagram_bytes < kUdpBytes) return false;
        if (datagram_bytes > rest.wire_bytes() && !parsed.fragment) return false;
    } else {
        return true;
    }
    rest.copy(0, 2, key.source_port);
    rest.copy(2, 2, key.destination_port);
    return true;
}

bool read_ipv4(Rest rest, Parsed &parsed) {
    if (!rest.has(kIpv4Bytes) || rest.byte(0) >> 4 != 4) return false;
    const std::size_t header_bytes = (rest.byte(0) & 15) * std::size_t{4};
    if (header_bytes < kIpv4Bytes || !rest.has(header_bytes)) return false;
    // 0: segmentation offload leaves the length to the network card; the length of the packet counts instead.
    const std::size_t total_bytes = rest.big16(2);
    if (total_bytes != 0) {
        if (total_bytes < header_bytes || total_bytes > rest.wire_bytes()) return false;
        rest.limit(total_bytes);
        if (!rest.has(header_bytes)) return false;
    }
    FlowKey &key = parsed.key;
    key.ip_version = 4;
    key.protocol = rest.byte(9);
    rest.copy(12, 4, key.source);
    rest.copy(16, 4, key.destination);
    const std::uint16_t fragment = rest.big16(6);
    const bool later_fragment = (fragment & 0x1fff) != 0;
    parsed.fragment = later_fragment || (fragment & 0x2000) != 0;
    rest.skip(header_bytes);
    return later_fragment || read_ports(rest, parsed);
}

bool read_ipv6(Rest rest, Parsed &parsed) {
    if (!rest.has(kIpv6Bytes) || rest.byte(0) >> 4 != 6) return false;
    // 0: a jumbogram, or the length is left to the network card; the length of the packet counts instead.
    const std::size_t payload_bytes = rest.big16(4);
    if (payload_bytes != 0) {
        if (kIpv6Bytes + payload_bytes > rest.wire_bytes()) return false;
        rest.limit(kIpv6Bytes + payload_bytes);
    }
    FlowKey &key = parsed.key;
    key.ip_version = 6;
    rest.copy(8, 16, key.source);
    rest.copy(24, 16, key.destination);
    std::uint8_t next = rest.byte(6);
    rest.skip(kIpv6Bytes);

    for (unsigned headers = 0; headers <= kExtensionHeadersMax; ++headers) {
        constexpr std::uint8_t kHopByHop = 0, kRouting = 43, kFragment = 44, kAuthentication = 51, kDestination = 60;
        const bool extension = next == kHopByHop || next == kRouting || next == kFragment || next == kAuthentication ||
                               next == kDestination;
        if (!extension) {
            key.protocol = next;
            return read_ports(rest, parsed);
        }
        if (!rest.has(8)) return false;
        std::size_t header_bytes = (rest.byte(1) + std::size_t{1}) * 8;
        if (next == kAuthentication) header_bytes = (rest.byte(1) + std::size_t{2}) * 4;
        if (next == kFragment) {
            header_bytes = 8;
            const std::uint16_t fragment = rest.big16(2);
            parsed.fragment = parsed.fragment || (fragment & 0xfff9) != 0;
            if ((fragment & 0xfff8) != 0) {
                key.protocol = rest.byte(0);
                return true;
            }
        }
        if (!rest.has(header_bytes)) return false;
        next = rest.byte(0);
        rest.skip(header_bytes);
    }
    return false;
}

}  // namespace

void put_header(std::span<std::byte> block, PacketHeader header) {
    if (header.packet_offset < sizeof header) {
        const std::size_t bytes = std::min<std::size_t>(header.captured_bytes, block.size() - sizeof header);
        std::memmove(block.data() + sizeof header, block.data() + header.packet_offset, bytes);
        header.packet_offset = sizeof header;
        header.captured_bytes = static_cast<std::uint32_t>(bytes) & kCapturedBytesMax;
    }
    std::memcpy(block.data(), &header, sizeof header);
}

Parsed parse(LinkType link_type, std::span<const std::byte> captured, std::uint32_t wire_bytes) {
    Parsed parsed;
    Rest rest(captured, wire_bytes);
    std::uint16_t ether_type = 0;
    switch (link_type) {
        case LinkType::ethernet:
            if (!rest.has(kEthernetBytes)) return parsed;
            ether_type = rest.big16(12);
            rest.skip(kEthernetBytes);
            break;
        case LinkType::linux_sll:
            if (!rest.has(kSllBytes)) return parsed;
            ether_type = rest.big16(14);
            rest.skip(kSllBytes);
            break;
        case LinkType::raw_ip:
            if (!rest.has(1)) return parsed;
            ether_type = rest.byte(0) >> 4 == 6 ? kEtherIpv6 : kEtherIpv4;
            break;
        default:
            return parsed;  // another process wrote it
    }
    while (is_vlan(ether_type)) {
        if (parsed.vlan_tags == kVlanTagsMax || !rest.has(kVlanBytes)) return parsed;
        ether_type = rest.big16(2);
        rest.skip(kVlanBytes);
        ++parsed.vlan_tags;
    }
    if (ether_type == kEtherIpv4) {
        if (read_ipv4(rest, parsed)) parsed.verdict = Verdict::flow;
    } else if (ether_type == kEtherIpv6) {
        if (read_ipv6(rest, parsed)) parsed.verdict = Verdict::flow;
    } else {
        parsed.verdict = Verdict::not_ip;
    }
    return parsed;
}

}  // namespace relay
