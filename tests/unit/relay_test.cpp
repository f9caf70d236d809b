// The parts of client/relay that need no pool: header, parser, flow table, capture file, report.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "flow_table.hpp"
#include "packet.hpp"
#include "pcap_file.hpp"
#include "refill_pause.hpp"
#include "report.hpp"

namespace relay {
namespace {

using Bytes = std::vector<std::uint8_t>;

TEST(RelayPacket, a_header_does_not_overwrite_its_packet) {
    constexpr std::size_t kBlockBytes = 256;
    for (const unsigned offset : {0U, 1U, 15U, 16U, 17U, 100U}) {
        SCOPED_TRACE(offset);
        std::vector<std::byte> block(kBlockBytes);
        const unsigned packet_bytes = kBlockBytes - offset;
        for (unsigned i = 0; i < packet_bytes; ++i) block[offset + i] = static_cast<std::byte>(i + 1);
        PacketHeader header;
        header.packet_offset = offset;
        header.captured_bytes = header.wire_bytes = packet_bytes;
        put_header(block, header);
        std::memcpy(&header, block.data(), sizeof header);
        EXPECT_EQ(header.packet_offset, std::max<unsigned>(offset, sizeof header));
        EXPECT_EQ(header.wire_bytes, packet_bytes);
        EXPECT_EQ(header.captured_bytes, kBlockBytes - header.packet_offset);
        for (unsigned i = 0; i < header.captured_bytes; ++i)
            ASSERT_EQ(block[header.packet_offset + i], static_cast<std::byte>(i + 1));
    }
}

TEST(RelayPacket, a_header_keeps_the_largest_values) {
    PacketHeader header;
    header.captured_bytes = kCapturedBytesMax;
    header.packet_offset = 4095;
    header.wire_bytes = 0xffff'ffff;
    header.timestamp_ns = timestamp_ns_of(4'600'000'000, 999'999'999);  // in 2115
    header.link_type = LinkType::linux_sll;
    EXPECT_EQ(header.captured_bytes, kCapturedBytesMax);
    EXPECT_EQ(header.packet_offset, 4095U);
    EXPECT_EQ(header.wire_bytes, 0xffff'ffffU);
    EXPECT_EQ(header.timestamp_ns, 4'600'000'000'999'999'999U);
    EXPECT_EQ(header.link_type, LinkType::linux_sll);
}

TEST(RelayRefill, a_full_pool_is_not_asked_at_each_turn) {
    RefillPause pause;
    RefillPause::Clock::time_point now{std::chrono::seconds(1)};
    EXPECT_TRUE(pause.is_over(now));
    pause.refilled(64, 64, now);
    EXPECT_TRUE(pause.is_over(now)) << "there was enough";
    // 100 ms of turns, ten in each millisecond.
    unsigned asked = 0;
    for (int turn = 0; turn < 1000; ++turn, now += std::chrono::microseconds(100)) {
        if (!pause.is_over(now)) continue;
        ++asked;
        pause.refilled(0, 64, now);
    }
    EXPECT_EQ(asked, 15U) << "after 1, 2, 4, 8, 8 ... ms";
    now += RefillPause::kLongest;
    ASSERT_TRUE(pause.is_over(now));
    pause.refilled(10, 64, now);
    EXPECT_FALSE(pause.is_over(now)) << "a part of what was wanted: the pool is empty now";
    EXPECT_TRUE(pause.is_over(now + RefillPause::kShortest));
    pause.refilled(64, 64, now += RefillPause::kShortest);
    EXPECT_TRUE(pause.is_over(now));
}

void append16(Bytes &bytes, unsigned value) {
    bytes.push_back(static_cast<std::uint8_t>(value >> 8));
    bytes.push_back(static_cast<std::uint8_t>(value));
}

Bytes operator+(Bytes left, const Bytes &right) {
    left.insert(left.end(), right.begin(), right.end());
    return left;
}

Bytes ethernet(unsigned ether_type) {
    Bytes bytes(12, 0x02);
    append16(bytes, ether_type);
    return bytes;
}

Bytes vlan_tag(unsigned next_type) {
    Bytes bytes;
    append16(bytes, 42);
    append16(bytes, next_type);
    return bytes;
}

Bytes udp(std::size_t payload_bytes) {
    Bytes bytes;
    append16(bytes, 5353);
    append16(bytes, 53);
    append16(bytes, static_cast<unsigned>(8 + payload_bytes));
    append16(bytes, 0);
    bytes.resize(8 + payload_bytes, 0x55);
    return bytes;
}

Bytes tcp(std::size_t payload_bytes, unsigned header_words = 5) {
    Bytes bytes;
    append16(bytes, 40000);
    append16(bytes, 443);
    bytes.resize(12);
    bytes.push_back(static_cast<std::uint8_t>(header_words << 4));
    bytes.resize(std::max<std::size_t>(20, header_words * 4) + payload_bytes);
    return bytes;
}

Bytes ipv4(unsigned protocol, const Bytes &payload, unsigned fragment = 0, unsigned header_words = 5) {
    Bytes bytes{static_cast<std::uint8_t>(0x40 | header_words), 0};
    append16(bytes, static_cast<unsigned>(header_words * 4 + payload.size()));
    append16(bytes, 7);
    append16(bytes, fragment);
    bytes.push_back(64);
    bytes.push_back(static_cast<std::uint8_t>(protocol));
    append16(bytes, 0);
    for (const std::uint8_t byte : {10, 0, 0, 1, 10, 0, 0, 2}) bytes.push_back(byte);
    bytes.resize(std::max<std::size_t>(20, header_words * 4));
    return bytes + payload;
}

Bytes ipv6(unsigned next_header, const Bytes &payload) {
    Bytes bytes{0x60, 0, 0, 0};
    append16(bytes, static_cast<unsigned>(payload.size()));
    bytes.push_back(static_cast<std::uint8_t>(next_header));
    bytes.push_back(64);
    bytes.resize(40);
    bytes[8] = bytes[24] = 0xfd;
    bytes[23] = 1;
    bytes[39] = 2;
    return bytes + payload;
}

// From a heap buffer of exactly that size, so that AddressSanitizer sees a read behind the end.
Parsed parse_exactly(const Bytes &packet, std::size_t captured_bytes, LinkType link_type = LinkType::ethernet) {
    const auto copy = std::make_unique<std::byte[]>(captured_bytes);
    std::transform(packet.begin(), packet.begin() + static_cast<std::ptrdiff_t>(captured_bytes), copy.get(),
                   [](std::uint8_t byte) { return std::byte{byte}; });
    return parse(link_type, {copy.get(), captured_bytes}, static_cast<std::uint32_t>(packet.size()));
}

Parsed parse_whole(const Bytes &packet, LinkType link_type = LinkType::ethernet) {
    return parse_exactly(packet, packet.size(), link_type);
}

unsigned number(const std::array<std::uint8_t, 2> &port) {
    return static_cast<unsigned>(port[0] << 8 | port[1]);
}

TEST(RelayParser, reads_udp_over_ipv4) {
    const Parsed parsed = parse_whole(ethernet(0x0800) + ipv4(17, udp(10)));
    ASSERT_EQ(parsed.verdict, Verdict::flow);
    EXPECT_EQ(parsed.key.ip_version, 4);
    EXPECT_EQ(parsed.key.protocol, kProtocolUdp);
    EXPECT_EQ(number(parsed.key.source_port), 5353U);
    EXPECT_EQ(number(parsed.key.destination_port), 53U);
    EXPECT_THAT(std::vector(parsed.key.source.begin(), parsed.key.source.begin() + 5),
                testing::ElementsAre(10, 0, 0, 1, 0));
    EXPECT_THAT(std::vector(parsed.key.destination.begin(), parsed.key.destination.begin() + 5),
                testing::ElementsAre(10, 0, 0, 2, 0));
    EXPECT_EQ(parsed.vlan_tags, 0);
    EXPECT_FALSE(parsed.fragment);
}

TEST(RelayParser, reads_tcp_over_ipv6_with_extension_headers) {
    Bytes hop_by_hop{60, 0, 0, 0, 0, 0, 0, 0};
    Bytes destination_options{6, 1};
    destination_options.resize(16);
    const Parsed parsed = parse_whole(ethernet(0x86dd) + ipv6(0, hop_by_hop + destination_options + tcp(3)));
    ASSERT_EQ(parsed.verdict, Verdict::flow);
    EXPECT_EQ(parsed.key.ip_version, 6);
    EXPECT_EQ(parsed.key.protocol, kProtocolTcp);
    EXPECT_EQ(number(parsed.key.destination_port), 443U);
    EXPECT_EQ(parsed.key.source[15], 1);
    EXPECT_EQ(parsed.key.destination[15], 2);
}

TEST(RelayParser, looks_behind_vlan_tags) {
    const Parsed two = parse_whole(ethernet(0x88a8) + vlan_tag(0x8100) + vlan_tag(0x0800) + ipv4(6, tcp(0)));
    ASSERT_EQ(two.verdict, Verdict::flow);
    EXPECT_EQ(two.vlan_tags, 2);
    Bytes five = ethernet(0x8100);
    for (int i = 0; i < 4; ++i) five = five + vlan_tag(0x8100);
    EXPECT_EQ(parse_whole(five + vlan_tag(0x0800) + ipv4(6, tcp(0))).verdict, Verdict::malformed);
}

TEST(RelayParser, reads_other_link_types) {
    EXPECT_EQ(parse_whole(ipv4(17, udp(0)), LinkType::raw_ip).verdict, Verdict::flow);
    EXPECT_EQ(parse_whole(ipv6(17, udp(0)), LinkType::raw_ip).key.ip_version, 6);
    Bytes cooked(14, 0);
    append16(cooked, 0x0800);
    EXPECT_EQ(parse_whole(cooked + ipv4(6, tcp(0)), LinkType::linux_sll).verdict, Verdict::flow);
    EXPECT_EQ(parse_whole(ipv4(17, udp(0)), LinkType{3}).verdict, Verdict::malformed) << "nobody writes this one";
}

TEST(RelayParser, tells_what_is_not_ip) {
    EXPECT_EQ(parse_whole(ethernet(0x0806) + Bytes(28)).verdict, Verdict::not_ip);
    EXPECT_EQ(parse_whole(ethernet(60) + Bytes(60)).verdict, Verdict::not_ip) << "an 802.3 length is not a type";
}

TEST(RelayParser, counts_later_fragments_without_ports) {
    const Parsed first = parse_whole(ethernet(0x0800) + ipv4(17, udp(16), 0x2000));
    EXPECT_TRUE(first.fragment);
    EXPECT_EQ(number(first.key.source_port), 5353U);
    // What looks like a UDP header of nonsense is payload here.
    const Parsed later = parse_whole(ethernet(0x0800) + ipv4(17, Bytes(8, 0xff), 0x0003));
    ASSERT_EQ(later.verdict, Verdict::flow);
    EXPECT_TRUE(later.fragment);
    EXPECT_EQ(number(later.key.source_port), 0U);

    Bytes fragment_header{17, 0, 0x00, 0x08, 0, 0, 0, 1};
    const Parsed later6 = parse_whole(ethernet(0x86dd) + ipv6(44, fragment_header + Bytes(8, 0xff)));
    ASSERT_EQ(later6.verdict, Verdict::flow);
    EXPECT_EQ(later6.key.protocol, kProtocolUdp);
    EXPECT_TRUE(later6.fragment);
    EXPECT_EQ(number(later6.key.destination_port), 0U);
}

TEST(RelayParser, first_fragment_may_be_shorter_than_its_datagram) {
    Bytes datagram = udp(1000);
    datagram.resize(64);
    EXPECT_EQ(parse_whole(ethernet(0x0800) + ipv4(17, datagram, 0x2000)).verdict, Verdict::flow);
    EXPECT_EQ(parse_whole(ethernet(0x0800) + ipv4(17, datagram)).verdict, Verdict::malformed);
}

TEST(RelayParser, ethernet_padding_is_not_payload) {
    // The TCP header claims to reach into the padding.
    EXPECT_EQ(parse_whole(ethernet(0x0800) + ipv4(6, tcp(0)) + Bytes(6)).verdict, Verdict::flow);
    Bytes header = tcp(0);
    header[12] = 6 << 4;
    EXPECT_EQ(parse_whole(ethernet(0x0800) + ipv4(6, header) + Bytes(6)).verdict, Verdict::malformed);
}

TEST(RelayParser, refuses_headers_that_contradict_themselves) {
    const auto changed = [](Bytes packet, std::size_t at, std::uint8_t value) {
        packet[at] = value;
        return parse_whole(packet).verdict;
    };
    const Bytes four = ethernet(0x0800) + ipv4(17, udp(4));
    EXPECT_EQ(changed(four, 14, 0x65), Verdict::malformed) << "version 6 behind IPv4's type";
    EXPECT_EQ(changed(four, 14, 0x44), Verdict::malformed) << "header of 16 bytes";
    EXPECT_EQ(changed(four, 14, 0x4f), Verdict::malformed) << "header longer than the packet";
    EXPECT_EQ(changed(four, 17, 19), Verdict::malformed) << "total length below the header's";
    EXPECT_EQ(changed(four, 17, 33), Verdict::malformed) << "total length above the packet's";
    EXPECT_EQ(changed(four, 14 + 20 + 5, 7), Verdict::malformed) << "UDP length below its header's";
    const Bytes six = ethernet(0x86dd) + ipv6(6, tcp(0));
    EXPECT_EQ(changed(six, 14, 0x40), Verdict::malformed) << "version 4 behind IPv6's type";
    EXPECT_EQ(changed(six, 14 + 5, 21), Verdict::malformed) << "payload length above the packet's";
    EXPECT_EQ(changed(six, 14 + 40 + 12, 4 << 4), Verdict::malformed) << "TCP header of 16 bytes";
    Bytes endless = ethernet(0x86dd);
    Bytes options;
    for (int i = 0; i < 20; ++i) options = options + Bytes{0, 0, 0, 0, 0, 0, 0, 0};
    EXPECT_EQ(parse_whole(endless + ipv6(0, options)).verdict, Verdict::malformed) << "nothing but extension headers";
}

TEST(RelayParser, length_zero_means_to_the_end_of_the_packet) {
    Bytes four = ethernet(0x0800) + ipv4(6, tcp(100));
    four[16] = four[17] = 0;
    EXPECT_EQ(parse_whole(four).verdict, Verdict::flow);
    Bytes six = ethernet(0x86dd) + ipv6(6, tcp(100));
    six[18] = six[19] = 0;
    EXPECT_EQ(parse_whole(six).verdict, Verdict::flow);
}

// Cut anywhere: malformed while a header is incomplete, a flow as soon as the last header is there.
TEST(RelayParser, cut_off_header_is_malformed_and_cut_off_payload_is_not) {
    const Bytes l2 = ethernet(0x8100) + vlan_tag(0x86dd);
    const Bytes packet = l2 + ipv6(17, udp(64));
    const std::size_t headers_bytes = l2.size() + 40 + 8;
    for (std::size_t captured = 0; captured <= packet.size(); ++captured)
        EXPECT_EQ(parse_exactly(packet, captured).verdict,
                  captured < headers_bytes ? Verdict::malformed : Verdict::flow)
            << "captured " << captured << " of " << packet.size();
}

TEST(RelayParser, survives_any_bytes) {
    std::mt19937 random(20240611);
    const std::vector<Bytes> seeds{ethernet(0x0800) + ipv4(6, tcp(20, 7), 0, 7),
                                   ethernet(0x86dd) + ipv6(0, Bytes(16) + udp(9)),
                                   ethernet(0x8100) + vlan_tag(0x0800) + ipv4(17, udp(3))};
    std::map<Verdict, int> verdicts;
    for (int i = 0; i < 60000; ++i) {
        Bytes packet = seeds[random() % seeds.size()];
        for (unsigned change = random() % 4; change > 0; --change)
            packet[random() % packet.size()] = static_cast<std::uint8_t>(random());
        ++verdicts[parse_exactly(packet, random() % (packet.size() + 1)).verdict];
    }
    EXPECT_EQ(verdicts.size(), 3U) << "all verdicts are met, or the seeds are too tame";
}

FlowKey key_of(unsigned number) {
    FlowKey key;
    key.ip_version = 4;
    key.protocol = kProtocolTcp;
    key.source = {static_cast<std::uint8_t>(number >> 16), static_cast<std::uint8_t>(number >> 8),
                  static_cast<std::uint8_t>(number)};
    return key;
}

TEST(RelayFlowTable, counts_as_a_plain_map_does) {
    FlowTable table(1, 1 << 20);
    std::map<unsigned, std::pair<std::uint64_t, std::uint64_t>> expected;
    std::mt19937 random(7);
    for (int i = 0; i < 100000; ++i) {
        const unsigned flow = random() % 20000;
        const std::uint64_t bytes = 60 + random() % 1440;
        const FlowKey key = key_of(flow);
        ASSERT_TRUE(table.count(key, table.hash(key), bytes));
        ++expected[flow].first;
        expected[flow].second += bytes;
    }
    EXPECT_EQ(table.flows(), expected.size());
    std::size_t visited = 0;
    table.for_each([&](const FlowTable::Entry &entry) {
        const unsigned flow =
            static_cast<unsigned>(entry.key.source[0] << 16 | entry.key.source[1] << 8 | entry.key.source[2]);
        ++visited;
        EXPECT_EQ(entry.packets, expected[flow].first);
        EXPECT_EQ(entry.bytes, expected[flow].second);
    });
    EXPECT_EQ(visited, expected.size());
}

TEST(RelayFlowTable, all_keys_with_one_hash_are_still_told_apart) {
    FlowTable table(1, 100);
    for (unsigned round = 0; round < 3; ++round)
        for (unsigned flow = 0; flow < 50; ++flow) ASSERT_TRUE(table.count(key_of(flow), 1023, 1));
    EXPECT_EQ(table.flows(), 50U);
    table.for_each([](const FlowTable::Entry &entry) { EXPECT_EQ(entry.packets, 3U); });
}

TEST(RelayFlowTable, full_table_refuses_new_flows_and_counts_old_ones) {
    FlowTable table(1, 2);
    for (unsigned flow = 0; flow < 2; ++flow) EXPECT_TRUE(table.count(key_of(flow), table.hash(key_of(flow)), 1));
    EXPECT_FALSE(table.count(key_of(2), table.hash(key_of(2)), 1));
    EXPECT_TRUE(table.count(key_of(1), table.hash(key_of(1)), 1));
    EXPECT_EQ(table.flows(), 2U);
}

TEST(RelayFlowTable, hash_depends_on_the_seed) {
    EXPECT_NE(FlowTable(1, 1).hash(key_of(5)), FlowTable(2, 1).hash(key_of(5)));
}

TEST(RelayPcapFile, refuses_what_is_no_capture_or_is_cut_off) {
    const std::string path = testing::TempDir() + "/relay-pcap-" + std::to_string(::getpid()) + ".pcap";
    const auto write = [&path](const Bytes &bytes) {
        std::FILE *const file = std::fopen(path.c_str(), "wb");
        ASSERT_NE(file, nullptr);
        ASSERT_EQ(std::fwrite(bytes.data(), 1, bytes.size(), file), bytes.size());
        std::fclose(file);
    };
    const auto header = [](std::uint8_t link_type) {
        Bytes bytes{0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0};
        bytes.resize(16);
        for (const std::uint8_t byte : {0xff, 0xff, 0, 0}) bytes.push_back(byte);
        for (const std::uint8_t byte : {link_type, std::uint8_t{0}, std::uint8_t{0}, std::uint8_t{0}})
            bytes.push_back(byte);
        return bytes;
    };
    const Bytes record{1, 0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 0, 9, 0, 0, 0, 0xaa, 0xbb, 0xcc, 0xdd};
    write(header(1) + record + record);
    const PcapFile good(path);
    ASSERT_EQ(good.packets(), 2U);
    EXPECT_EQ(good.header(1).captured_bytes, 4U);
    EXPECT_EQ(good.header(1).wire_bytes, 9U);
    EXPECT_EQ(good.header(1).timestamp_ns, 1'000'002'000U);
    EXPECT_EQ(good.header(1).link_type, LinkType::ethernet);
    EXPECT_EQ(good.bytes(1)[3], std::byte{0xdd});

    write(header(101) + record);
    EXPECT_EQ(PcapFile(path).header(0).link_type, LinkType::raw_ip);

    write(header(1) + record + Bytes(record.begin(), record.end() - 2));
    EXPECT_THROW(PcapFile{path}, std::runtime_error) << "the last packet is cut off";
    write(header(105) + record);
    EXPECT_THAT([&] { PcapFile{path}; }, testing::ThrowsMessage<std::runtime_error>(testing::HasSubstr("IEEE802_11")));
    write(Bytes(40, 0x41));
    EXPECT_THROW(PcapFile{path}, std::runtime_error);
    ::unlink(path.c_str());
    EXPECT_THROW(PcapFile{path}, std::runtime_error);
}

TEST(RelayReport, quotes_for_json) {
    EXPECT_EQ(Report::quoted("a\"b\\c\n"), "\"a\\\"b\\\\c\\u000a\"");
}

}  // namespace
}  // namespace relay
