// Packets on the attach socket, from anybody: every one is refused with words that fit into a reply, or is exactly a
// request of this version for a pool whose name may be looked up.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "attach/attach_message.hpp"
#include "spec/pool_spec.hpp"

namespace {

using namespace numacre;
using namespace numacre::daemon;

void require(bool holds) {
    if (!holds) std::abort();
}

void refuse(const Failure &failure) {
    require(failure.code != Errc::ok && !failure.message.empty());
    wire::AttachReply reply;
    put_message(reply, failure.message);
    require(reply.message.back() == '\0');
}

void receive_objects_request(std::size_t sent, std::span<const std::byte> received) {
    if (const auto fault =
            check_message(sent, received, wire::MessageType::objects_request, sizeof(wire::ObjectsRequest))) {
        refuse(*fault);
        return;
    }
    const auto wish = read_objects_request(received);
    if (!wish) {
        refuse(wish.error());
        return;
    }
    require(is_pool_name(wish->within) && is_pool_name(wish->name) && is_pool_name(wish->pool_name()));
    PoolSpec parent;
    parent.name = wish->within;
    PoolSpec spec =
        objects_of_client(parent, wish->name, wish->object_bytes, wish->object_count, wish->colours_objects);
    if (auto sizes = set_object_sizes(spec, [](std::string_view) { return false; }); !sizes) {
        refuse(sizes.error());
        return;
    }
    const auto geometry = geometry_of(spec);
    require(!spec.has_objects() || geometry);
    if (geometry) require(plausible(*geometry) && geometry->frame_count != 0);
}

void receive_pin_request(std::size_t sent, std::span<const std::byte> received) {
    if (const auto fault = check_message(sent, received, wire::MessageType::pin_request, sizeof(wire::PinRequest))) {
        refuse(*fault);
        return;
    }
    const auto wish = read_pin_request(received);
    if (!wish) {
        refuse(wish.error());
        return;
    }
    require(wish->numa_node.value < kMaxNumaNodes);
}

void receive_name_request(std::size_t sent, std::span<const std::byte> received) {
    if (const auto fault = check_message(sent, received, wire::MessageType::name_request, sizeof(wire::NameRequest))) {
        refuse(*fault);
        return;
    }
    const auto wish = read_name_request(received);
    if (!wish) {
        refuse(wish.error());
        return;
    }
    const NameEntry &entry = wish->entry;
    require(entry.name.is_good());
    require(entry.kind == NameKind::none || entry.kind == NameKind::reference || entry.kind == NameKind::objects);
    require((entry.kind == NameKind::reference) == (entry.value != 0));
    require(entry.kind == NameKind::objects ? is_pool_name(entry.objects.data()) : entry.objects[0] == 0);
}

void receive_bell_request(std::size_t sent, std::span<const std::byte> received) {
    if (const auto fault = check_message(sent, received, wire::MessageType::bell_request, sizeof(wire::BellRequest))) {
        refuse(*fault);
        return;
    }
    const auto wish = read_bell_request(received);
    if (!wish) {
        refuse(wish.error());
        return;
    }
    const bool makes = wish->wish == wire::BellRequest::Wish::make;
    require(makes || wish->wish == wire::BellRequest::Wish::fetch);
    require(makes ? is_pool_name(wish->channel) : wish->channel.empty() && wish->serial != 0);
}

// The daemon's buffer may be smaller than what was sent.
void receive(std::size_t sent, std::span<const std::byte> received) {
    if (const auto fault =
            check_message(sent, received, wire::MessageType::detach_request, sizeof(wire::DetachRequest)))
        refuse(*fault);
    else
        require(sent == sizeof(wire::DetachRequest) && received.size() == sent);

    if (is_of_type(wire::MessageType::pin_request, received)) {
        receive_pin_request(sent, received);
        return;
    }
    if (is_of_type(wire::MessageType::bell_request, received)) {
        receive_bell_request(sent, received);
        return;
    }
    if (is_of_type(wire::MessageType::name_request, received)) {
        receive_name_request(sent, received);
        return;
    }
    if (is_of_type(wire::MessageType::objects_request, received)) {
        receive_objects_request(sent, received);
        return;
    }
    if (const auto fault =
            check_message(sent, received, wire::MessageType::attach_request, sizeof(wire::AttachRequest))) {
        refuse(*fault);
        return;
    }
    const auto wish = read_attach_request(received);
    if (!wish) {
        refuse(wish.error());
        return;
    }
    require(is_pool_name(wish->pool_name) && wish->pool_name.find('/') == std::string::npos);
    require(wish->tier == wire::Tier::trusted || wish->tier == wire::Tier::observer);
    wire::AttachRequest again;
    again.tier = wish->tier;
    std::memcpy(again.pool_name.data(), wish->pool_name.data(), wish->pool_name.size());
    wire::AttachRequest request;
    std::memcpy(&request, received.data(), sizeof request);
    require(request.layout_version == again.layout_version &&
            std::strcmp(request.pool_name.data(), again.pool_name.data()) == 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
    if (size == 0) return 0;
    // The first byte: how much of the packet does not fit, and whether its header is made good, so that what is behind
    // it gets its turn too.
    const unsigned cut = data[0] & 0x3f;
    // Exactly as large as the packet: a byte read beyond it is found.
    std::vector<std::byte> packet(size - 1);
    if (!packet.empty()) std::memcpy(packet.data(), data + 1, packet.size());
    if ((data[0] & 0x80) != 0 && packet.size() >= sizeof(wire::WireHeader)) {
        wire::AttachRequest good;
        if ((data[0] & 0x40) != 0) packet.resize(sizeof good);
        std::memcpy(packet.data(), &good.header, sizeof good.header);
        if ((data[0] & 0x40) != 0) std::memcpy(packet.data() + sizeof good.header, &good.layout_version, 4);
    }
    const std::size_t fits = packet.size() - std::min<std::size_t>(packet.size(), (data[0] & 0x40) != 0 ? 0 : cut);
    receive(packet.size(), std::vector<std::byte>(packet.begin(), packet.begin() + static_cast<std::ptrdiff_t>(fits)));
    return 0;
}
