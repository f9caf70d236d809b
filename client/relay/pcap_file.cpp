#include "pcap_file.hpp"

#include <pcap/pcap.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>

namespace relay {

PcapFile::PcapFile(const std::string &path) {
    char message[PCAP_ERRBUF_SIZE] = "";
    const std::unique_ptr<pcap_t, decltype(&pcap_close)> file(
        pcap_open_offline_with_tstamp_precision(path.c_str(), PCAP_TSTAMP_PRECISION_NANO, message), &pcap_close);
    if (!file) throw std::runtime_error("cannot read '" + path + "': " + message);
    LinkType link_type{};
    switch (pcap_datalink(file.get())) {
        case DLT_EN10MB:
            link_type = LinkType::ethernet;
            break;
        case DLT_RAW:
            link_type = LinkType::raw_ip;
            break;
        case DLT_LINUX_SLL:
            link_type = LinkType::linux_sll;
            break;
        default: {
            const char *const name = pcap_datalink_val_to_name(pcap_datalink(file.get()));
            throw std::runtime_error("'" + path + "' has link type " + (name != nullptr ? name : "unknown") +
                                     ": only Ethernet, raw IP and Linux cooked captures can be relayed");
        }
    }
    pcap_pkthdr *header = nullptr;
    const unsigned char *bytes = nullptr;
    int result = 0;
    while ((result = pcap_next_ex(file.get(), &header, &bytes)) == 1) {
        const auto *const begin = reinterpret_cast<const std::byte *>(bytes);
        if (header->caplen > kCapturedBytesMax)
            throw std::runtime_error("'" + path + "' has a packet of " + std::to_string(header->caplen) +
                                     " bytes: at most " + std::to_string(kCapturedBytesMax) + " can be relayed");
        PacketHeader packet;
        packet.captured_bytes = header->caplen;
        packet.wire_bytes = std::max(header->len, header->caplen);
        // tv_usec holds nanoseconds at this precision.
        packet.timestamp_ns = timestamp_ns_of(header->ts.tv_sec, header->ts.tv_usec);
        packet.link_type = link_type;
        packets_.push_back({packet, bytes_.size()});
        bytes_.insert(bytes_.end(), begin, begin + header->caplen);
    }
    if (result == PCAP_ERROR) throw std::runtime_error("cannot read '" + path + "': " + pcap_geterr(file.get()));
}

}  // namespace relay
