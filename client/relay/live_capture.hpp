// Packets from a network interface, written by the kernel straight into blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "link.hpp"
#include "packet.hpp"

namespace relay {

class LiveCapture {
public:
    // Needs CAP_NET_RAW. snap_bytes: how much of each packet is kept.
    LiveCapture(const std::string &interface, std::uint32_t snap_bytes);
    ~LiveCapture();

    LinkType link_type() const { return link_type_; }
    int fd() const { return socket_.get(); }
    // What a block has to hold: PacketHeader, the packet and a VLAN tag.
    std::size_t block_bytes() const;

    static constexpr std::size_t kBatch = 64;

    // Fills the first blocks, PacketHeader included, with the packets that are there; how many. At most kBatch. Never
    // blocks; one system call.
    std::size_t receive(std::span<void *const> blocks);
    // Takes at most kBatch packets from the kernel and throws them away; how many.
    std::size_t discard();
    // Packets that have come and that neither receive() nor discard() has seen yet.
    std::uint64_t waiting();
    // Packets that the kernel has thrown away, because receive() came too late.
    std::uint64_t kernel_drops();

private:
    struct Batch;
    void update_statistics();
    Fd socket_;
    LinkType link_type_{};
    std::uint32_t snap_bytes_;
    std::unique_ptr<Batch> batch_;
    std::uint64_t arrived_ = 0, dropped_ = 0, received_ = 0;  // dropped ones have arrived, too
};

}  // namespace relay
