// The capture of packets from one queue of an interface by AF_XDP: the kernel writes them into blocks of the pool, and
// hands them to nobody else.
#pragma once

#include <numacre/numacre.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace relay {

class XdpCapture {
public:
    // Opens the queue. Needs CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF, and a relay that was built with libxdp. The pool
    // outlives this object.
    XdpCapture(numacre_pool *pool, const std::string &interface, std::uint32_t queue);
    ~XdpCapture();

    // Packets that come from now on are captured.
    void start();
    int fd() const;

    static constexpr std::size_t kBatch = 64;

    // Stores blocks with packets that have come, PacketHeader included, at most kBatch; they are the caller's. Returns
    // their number. Never blocks; no system call, as far as the driver needs none.
    std::size_t receive(std::span<void *> blocks);
    // The number of packets that have come and that receive() has not taken yet.
    std::uint64_t waiting() const;

    struct Figures {
        std::uint64_t allocated = 0, freed = 0;   // blocks
        std::uint64_t dropped_without_block = 0;  // packets: the pool had no block for them
        std::uint64_t dropped_by_kernel = 0;      // packets: receive() came too late, or they were too long for a block
    };
    // Closes the socket. Call it once; nothing else afterwards.
    Figures close();

private:
    struct Socket;
    std::unique_ptr<Socket> socket_;
};

}  // namespace relay
