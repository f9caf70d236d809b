// A capture file, read as a whole beforehand, so that a replay measures the relay and not the reading of the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "packet.hpp"

namespace relay {

class PcapFile {
public:
    // Throws with the reason if the file cannot be read to its end or its link type is not one of LinkType.
    explicit PcapFile(const std::string &path);

    std::size_t packets() const { return packets_.size(); }
    const PacketHeader &header(std::size_t index) const { return packets_[index].header; }
    std::span<const std::byte> bytes(std::size_t index) const {
        return {bytes_.data() + packets_[index].offset, packets_[index].header.captured_bytes};
    }

private:
    struct Packet {
        PacketHeader header;
        std::size_t offset;
    };
    std::vector<Packet> packets_;
    std::vector<std::byte> bytes_;
};

}  // namespace relay
