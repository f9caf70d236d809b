// The form of a packet in a block, and the parser of the packet's headers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <span>
#include <type_traits>

namespace relay {

// The type of a packet's first header.
enum class LinkType : std::uint8_t { ethernet, raw_ip, linux_sll };

// The first bytes of every block. The packet follows at once, so that the headers of an ordinary Ethernet/IPv4/TCP
// packet still end near the block's first cache line; or, captured by AF_XDP, where the kernel has put it.
struct PacketHeader {
    std::uint32_t captured_bytes : 20 = 0;  // bytes of the packet in the block
    std::uint32_t packet_offset : 12 = 16;  // the packet's begin, in bytes behind the begin of the block
    std::uint32_t wire_bytes = 0;           // bytes on the wire, at least captured_bytes
    std::uint64_t timestamp_ns : 62 = 0;    // since 1970; until 2116
    LinkType link_type : 2 = LinkType::ethernet;
};
// libpcap refuses packets of more than 2^18 bytes.
inline constexpr std::uint32_t kCapturedBytesMax = (1U << 20) - 1;
static_assert(sizeof(PacketHeader) == 16 && std::is_trivially_copyable_v<PacketHeader>);

// A time as PacketHeader has it.
constexpr std::uint64_t timestamp_ns_of(std::time_t seconds, long nanoseconds) {
    return static_cast<std::uint64_t>(seconds) * 1'000'000'000 + static_cast<std::uint64_t>(nanoseconds);
}

// Writes the header into a block that has the packet already. A packet that begins where the header has to be (an XDP
// program may have moved its begin) is moved behind it; what then lies outside the block is cut off.
void put_header(std::span<std::byte> block, PacketHeader header);

// One direction of a conversation. Addresses and ports in network byte order; an IPv4 address fills the first four
// bytes. No padding byte is left unset, so keys compare and hash as plain bytes.
struct FlowKey {
    std::array<std::uint8_t, 16> source{};
    std::array<std::uint8_t, 16> destination{};
    std::array<std::uint8_t, 2> source_port{};  // 0 without ports: neither TCP nor UDP, or a later fragment
    std::array<std::uint8_t, 2> destination_port{};
    std::uint8_t protocol = 0;    // IANA number: 6 TCP, 17 UDP ...
    std::uint8_t ip_version = 0;  // 4 or 6
    std::array<std::uint8_t, 2> zero{};
    friend bool operator==(const FlowKey &, const FlowKey &) = default;
};
static_assert(sizeof(FlowKey) == 40 && std::has_unique_object_representations_v<FlowKey>);

inline constexpr std::uint8_t kProtocolTcp = 6;
inline constexpr std::uint8_t kProtocolUdp = 17;

enum class Verdict : std::uint8_t {
    flow,       // key is set
    not_ip,     // ARP, LLDP ...
    malformed,  // a header is cut off, or contradicts itself or the packet's length
};

struct Parsed {
    Verdict verdict = Verdict::malformed;
    std::uint8_t vlan_tags = 0;
    bool fragment = false;
    FlowKey key;
};

// Parses the headers of a packet. Reads nothing outside `captured`. Length fields are compared with wire_bytes, so a
// payload that the capture cut off is no fault, but a header that the capture cut off is one. A link_type that is none
// of the enumerators is malformed.
Parsed parse(LinkType link_type, std::span<const std::byte> captured, std::uint32_t wire_bytes);

}  // namespace relay
