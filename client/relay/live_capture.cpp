#include "live_capture.hpp"

#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <stdexcept>
#include <system_error>

namespace relay {
namespace {

constexpr int kReceiveBufferBytes = 32 << 20;
constexpr std::size_t kVlanTagBytes = 4, kMacAddressesBytes = 12;

template <class T>
void set_option(int socket, int level, int option, const T &value, const char *name) {
    if (::setsockopt(socket, level, option, &value, sizeof value) != 0)
        throw std::system_error(errno, std::generic_category(),
                                std::string("cannot set ") + name + " on the packet socket");
}

}  // namespace

struct LiveCapture::Batch {
    std::array<mmsghdr, kBatch> messages{};
    std::array<iovec, kBatch> payloads{};
    struct alignas(cmsghdr) Control {
        char bytes[CMSG_SPACE(sizeof(tpacket_auxdata)) + CMSG_SPACE(sizeof(timespec))];
    };
    std::array<Control, kBatch> controls{};
};

LiveCapture::LiveCapture(const std::string &interface, std::uint32_t snap_bytes)
    : socket_(::socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0)),
      snap_bytes_(snap_bytes),
      batch_(std::make_unique<Batch>()) {
    if (socket_.get() < 0 && errno == EPERM)
        throw std::runtime_error("capturing from interface '" + interface +
                                 "' needs CAP_NET_RAW: run as root, or use --pcap FILE");
    if (socket_.get() < 0) throw std::system_error(errno, std::generic_category(), "cannot make a packet socket");
    ifreq request{};
    if (interface.size() >= sizeof request.ifr_name || ::if_nametoindex(interface.c_str()) == 0)
        throw std::runtime_error("there is no interface '" + interface + "': `ip link` lists them");
    std::memcpy(request.ifr_name, interface.c_str(), interface.size());
    if (::ioctl(socket_.get(), SIOCGIFHWADDR, &request) != 0)
        throw std::system_error(errno, std::generic_category(),
                                "cannot ask for the type of interface '" + interface + "'");
    const int hardware = request.ifr_hwaddr.sa_family;
    if (hardware == ARPHRD_ETHER || hardware == ARPHRD_LOOPBACK) {
        link_type_ = LinkType::ethernet;
    } else if (hardware == ARPHRD_NONE) {
        link_type_ = LinkType::raw_ip;
    } else {
        throw std::runtime_error("interface '" + interface + "' has hardware type " + std::to_string(hardware) +
                                 ": only Ethernet, loopback and tun can be relayed");
    }
    // On loopback each packet passes twice, out and in. Only the incoming one is captured.
    if (hardware == ARPHRD_LOOPBACK)
        set_option(socket_.get(), SOL_PACKET, PACKET_IGNORE_OUTGOING, 1, "PACKET_IGNORE_OUTGOING");
    set_option(socket_.get(), SOL_PACKET, PACKET_AUXDATA, 1, "PACKET_AUXDATA");
    set_option(socket_.get(), SOL_SOCKET, SO_TIMESTAMPNS, 1, "SO_TIMESTAMPNS");
    // A privileged process gets a buffer beyond the system's limit, any other process one up to the limit. Both sizes
    // suffice.
    if (::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVBUFFORCE, &kReceiveBufferBytes, sizeof kReceiveBufferBytes) != 0)
        set_option(socket_.get(), SOL_SOCKET, SO_RCVBUF, kReceiveBufferBytes, "SO_RCVBUF");

    sockaddr_ll address{};
    address.sll_family = AF_PACKET;
    address.sll_protocol = htons(ETH_P_ALL);
    address.sll_ifindex = static_cast<int>(::if_nametoindex(interface.c_str()));
    if (::bind(socket_.get(), reinterpret_cast<const sockaddr *>(&address), sizeof address) != 0)
        throw std::system_error(errno, std::generic_category(), "cannot capture from interface '" + interface + "'");
    for (std::size_t i = 0; i < kBatch; ++i) {
        batch_->messages[i].msg_hdr.msg_iov = &batch_->payloads[i];
        batch_->messages[i].msg_hdr.msg_iovlen = 1;
    }
}

LiveCapture::~LiveCapture() = default;

std::size_t LiveCapture::block_bytes() const {
    return sizeof(PacketHeader) + snap_bytes_;
}

std::size_t LiveCapture::receive(std::span<void *const> blocks) {
    Batch &batch = *batch_;
    const std::size_t wanted = std::min(blocks.size(), kBatch);
    // The block keeps room behind the packet for a tag that the network card has removed.
    const std::size_t room_bytes = snap_bytes_ - kVlanTagBytes;
    for (std::size_t i = 0; i < wanted; ++i) {
        batch.payloads[i] = {static_cast<std::byte *>(blocks[i]) + sizeof(PacketHeader), room_bytes};
        batch.messages[i].msg_hdr.msg_control = batch.controls[i].bytes;
        batch.messages[i].msg_hdr.msg_controllen = sizeof batch.controls[i].bytes;
    }
    // MSG_TRUNC: the returned length is the packet's, not the length that fitted.
    const int received = ::recvmmsg(socket_.get(), batch.messages.data(), static_cast<unsigned>(wanted),
                                    MSG_DONTWAIT | MSG_TRUNC, nullptr);
    if (received < 0) {
        if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return 0;
        throw std::system_error(errno, std::generic_category(), "capturing failed");
    }
    for (std::size_t i = 0; i < static_cast<std::size_t>(received); ++i) {
        auto *const packet = static_cast<std::byte *>(blocks[i]) + sizeof(PacketHeader);
        msghdr &message = batch.messages[i].msg_hdr;
        PacketHeader header;
        header.link_type = link_type_;
        header.wire_bytes = batch.messages[i].msg_len;
        header.captured_bytes = static_cast<std::uint32_t>(std::min<std::size_t>(header.wire_bytes, room_bytes));
        for (cmsghdr *control = CMSG_FIRSTHDR(&message); control != nullptr; control = CMSG_NXTHDR(&message, control)) {
            if (control->cmsg_level == SOL_SOCKET && control->cmsg_type == SCM_TIMESTAMPNS) {
                timespec time{};
                std::memcpy(&time, CMSG_DATA(control), sizeof time);
                header.timestamp_ns = timestamp_ns_of(time.tv_sec, time.tv_nsec);
            }
            if (control->cmsg_level == SOL_PACKET && control->cmsg_type == PACKET_AUXDATA) {
                tpacket_auxdata auxiliary{};
                std::memcpy(&auxiliary, CMSG_DATA(control), sizeof auxiliary);
                const bool stripped = (auxiliary.tp_status & TP_STATUS_VLAN_VALID) != 0;
                if (!stripped || header.captured_bytes < kMacAddressesBytes) continue;
                const bool tpid_known = (auxiliary.tp_status & TP_STATUS_VLAN_TPID_VALID) != 0;
                const std::uint16_t tag[2] = {htons(tpid_known ? auxiliary.tp_vlan_tpid : std::uint16_t{ETH_P_8021Q}),
                                              htons(auxiliary.tp_vlan_tci)};
                static_assert(sizeof tag == kVlanTagBytes);
                std::memmove(packet + kMacAddressesBytes + kVlanTagBytes, packet + kMacAddressesBytes,
                             header.captured_bytes - kMacAddressesBytes);
                std::memcpy(packet + kMacAddressesBytes, tag, sizeof tag);
                header.captured_bytes += kVlanTagBytes;
                header.wire_bytes += kVlanTagBytes;
            }
        }
        std::memcpy(blocks[i], &header, sizeof header);
    }
    received_ += static_cast<std::size_t>(received);
    return static_cast<std::size_t>(received);
}

std::size_t LiveCapture::discard() {
    std::size_t discarded = 0;
    std::byte nothing;
    while (discarded < kBatch && ::recv(socket_.get(), &nothing, sizeof nothing, MSG_DONTWAIT | MSG_TRUNC) >= 0)
        ++discarded;
    received_ += discarded;
    return discarded;
}

void LiveCapture::update_statistics() {
    tpacket_stats since_last_time{};
    socklen_t size = sizeof since_last_time;
    if (::getsockopt(socket_.get(), SOL_PACKET, PACKET_STATISTICS, &since_last_time, &size) != 0)
        throw std::system_error(errno, std::generic_category(), "cannot ask for the packet socket's statistics");
    arrived_ += since_last_time.tp_packets;
    dropped_ += since_last_time.tp_drops;
}

std::uint64_t LiveCapture::waiting() {
    update_statistics();
    return arrived_ - dropped_ - received_;
}

std::uint64_t LiveCapture::kernel_drops() {
    update_statistics();
    return dropped_;
}

}  // namespace relay
