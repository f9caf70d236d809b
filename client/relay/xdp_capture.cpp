#include "xdp_capture.hpp"

#include <stdexcept>

#include "packet.hpp"
#include "refill_pause.hpp"

#ifdef RELAY_HAS_XDP

#include <bpf/libbpf.h>
#include <xdp/libxdp.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdio>
#include <cstring>
#include <ctime>

#include "numacre/adaptors/af_xdp.h"

namespace relay {

// Does not move: libxdp keeps the addresses of the rings.
struct XdpCapture::Socket {
    numacre_xdp xdp{};
    RefillPause pause;
    xdp_statistics before{};  // the kernel's counts at start()
    std::string name;         // of the interface
    ~Socket() { numacre_xdp_close(&xdp); }

    void fail() const { throw std::runtime_error(xdp.error); }
    void refill() {
        const unsigned wanted = xsk_prod_nb_free(&xdp.fill_ring, xdp.fill_ring.size);
        if (wanted == 0) return;
        const auto now = RefillPause::Clock::now();
        if (!pause.is_over(now)) return;
        const int given = numacre_xdp_refill(&xdp, wanted);
        // A full pool is no fault: the kernel drops packets until blocks come back.
        if (given < 0 && given != -ENOMEM && given != -EDQUOT) fail();
        pause.refilled(given < 0 ? 0 : static_cast<unsigned>(given), wanted, now);
    }
    xdp_statistics statistics() {
        xdp_statistics now{};
        if (numacre_xdp_statistics(&xdp, &now) != 0) fail();
        return now;
    }
};

XdpCapture::XdpCapture(numacre_pool *pool, const std::string &interface, std::uint32_t queue)
    : socket_(std::make_unique<Socket>()) {
    // Both talk at each program that they load.
    ::libbpf_set_print(nullptr);
    ::libxdp_set_print(nullptr);
    numacre_xdp_options options{};
    options.interface_name = interface.c_str();
    options.queue = queue;
    if (numacre_xdp_open(&socket_->xdp, pool, &options) != 0) socket_->fail();
    socket_->name = interface;
}

XdpCapture::~XdpCapture() = default;

void XdpCapture::start() {
    socket_->before = socket_->statistics();
    socket_->refill();
    std::fprintf(stderr, "relay capture: capturing from %s, queue %u, by AF_XDP (%s)\n", socket_->name.c_str(),
                 socket_->xdp.queue, socket_->xdp.is_zero_copy != 0 ? "zero copy" : "the kernel copies");
}

int XdpCapture::fd() const {
    return numacre_xdp_fd(&socket_->xdp);
}

std::size_t XdpCapture::receive(std::span<void *> blocks) {
    std::array<std::uint32_t, kBatch> offsets, lengths;
    const std::size_t received = numacre_xdp_receive(&socket_->xdp, blocks.data(), offsets.data(), lengths.data(),
                                                     static_cast<unsigned>(std::min(blocks.size(), kBatch)));
    socket_->refill();
    if (received == 0) return 0;
    // AF_XDP has no time of arrival: the time at which the burst was found.
    timespec now{};
    ::clock_gettime(CLOCK_REALTIME, &now);
    for (std::size_t i = 0; i < received; ++i) {
        PacketHeader header;
        header.captured_bytes = lengths[i] & kCapturedBytesMax;
        header.packet_offset = offsets[i] & 0xfff;
        header.wire_bytes = lengths[i];
        header.timestamp_ns = timestamp_ns_of(now.tv_sec, now.tv_nsec);
        put_header({static_cast<std::byte *>(blocks[i]), socket_->xdp.chunk_bytes}, header);
    }
    return received;
}

std::uint64_t XdpCapture::waiting() const {
    const xsk_ring_cons &ring = socket_->xdp.receive_ring;
    return __atomic_load_n(ring.producer, __ATOMIC_ACQUIRE) - ring.cached_cons;
}

XdpCapture::Figures XdpCapture::close() {
    const xdp_statistics &before = socket_->before, now = socket_->statistics();
    numacre_xdp &xdp = socket_->xdp;
    Figures figures;
    figures.allocated = xdp.given;
    // The close frees the blocks that the kernel has at the end.
    figures.freed = xdp.given - xdp.received;
    // The kernel counts a packet without a block as dropped, too.
    figures.dropped_without_block = now.rx_fill_ring_empty_descs - before.rx_fill_ring_empty_descs;
    const std::uint64_t dropped = (now.rx_dropped - before.rx_dropped) + (now.rx_ring_full - before.rx_ring_full);
    figures.dropped_by_kernel = dropped - std::min(dropped, figures.dropped_without_block);
    if (numacre_xdp_close(&xdp) != 0) socket_->fail();
    return figures;
}

}  // namespace relay

#else

namespace relay {

struct XdpCapture::Socket {};

XdpCapture::XdpCapture(numacre_pool *, const std::string &, std::uint32_t) {
    throw std::runtime_error(
        "this relay was built without AF_XDP: install libxdp and libbpf (Debian: libxdp-dev, libbpf-dev), configure "
        "and "
        "build again; or leave out --af-xdp");
}

XdpCapture::~XdpCapture() = default;
void XdpCapture::start() {}
int XdpCapture::fd() const {
    return -1;
}
std::size_t XdpCapture::receive(std::span<void *>) {
    return 0;
}
std::uint64_t XdpCapture::waiting() const {
    return 0;
}
XdpCapture::Figures XdpCapture::close() {
    return {};
}

}  // namespace relay

#endif
