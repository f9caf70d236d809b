// The capture of packets from a network interface; the kernel writes them straight into blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "packet.hpp"
#include "process.hpp"

namespace relay {

class LiveCapture {
public:
    // Needs CAP_NET_RAW. snap_bytes: the bytes kept of each packet.
    LiveCapture(const std::string &interface, std::uint32_t snap_bytes);
    ~LiveCapture();

    int fd() const { return socket_.get(); }
    // The size of a block: PacketHeader, the packet and a VLAN tag.
    std::size_t block_bytes() const;

    static constexpr std::size_t kBatch = 64;

    // Fills the first blocks, PacketHeader included, with the packets that have come, at most kBatch. Returns their
    // number. Never blocks; one system call.
    std::size_t receive(std::span<void *const> blocks);
    // Takes at most kBatch packets from the kernel and discards them. Returns their number.
    std::size_t discard();
    // The number of packets that have come and that neither receive() nor discard() has taken yet.
    std::uint64_t waiting();
    // The number of packets that the kernel has dropped because receive() came too late.
    std::uint64_t kernel_drops();

private:
    struct Batch;
    void update_statistics();
    Fd socket_;
    LinkType link_type_{};
    std::uint32_t snap_bytes_;
    std::unique_ptr<Batch> batch_;
    std::uint64_t arrived_ = 0, dropped_ = 0, received_ = 0;  // arrived_ includes the dropped ones
};

}  // namespace relay
