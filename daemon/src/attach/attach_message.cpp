#include "attach/attach_message.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "spec/pool_spec.hpp"

namespace numacre::daemon {

std::optional<Failure> check_message(std::size_t packet_size, std::span<const std::byte> packet,
                                     wire::MessageType expected, std::size_t expected_size) {
    if (packet_size < sizeof(wire::WireHeader) || packet.size() < sizeof(wire::WireHeader))
        return Failure{Errc::bad_argument, "a message of " + std::to_string(packet_size) +
                                               " bytes is shorter than a header: truncated, or no numacre client"};
    wire::WireHeader header;
    std::memcpy(&header, packet.data(), sizeof header);
    if (header.magic != wire::kMagic)
        return Failure{Errc::bad_argument, "the message's magic number is " + std::to_string(header.magic) + ", not " +
                                               std::to_string(wire::kMagic) + ": no numacre client"};
    if (header.version != wire::kVersion)
        return Failure{Errc::version_mismatch, "the client speaks version " + std::to_string(header.version) +
                                                   " of the attach protocol, the daemon version " +
                                                   std::to_string(wire::kVersion) + ": upgrade the older one"};
    if (header.type != expected)
        return Failure{Errc::bad_argument, "message type " + std::to_string(static_cast<unsigned>(header.type)) +
                                               " is out of place, type " +
                                               std::to_string(static_cast<unsigned>(expected)) +
                                               " was due: no numacre client"};
    if (header.size_bytes != expected_size || packet_size != expected_size || packet.size() != expected_size)
        return Failure{Errc::bad_argument, "the message has " + std::to_string(packet_size) + " bytes and says " +
                                               std::to_string(header.size_bytes) + ", it must have " +
                                               std::to_string(expected_size) + ": truncated or damaged"};
    return std::nullopt;
}

namespace {

Answer<void> check_layout_version(std::uint32_t version) {
    if (version == kLayoutVersion) return {};
    return Unexpected{Failure{Errc::version_mismatch, "the client has shared-memory layout version " +
                                                          std::to_string(version) + ", the daemon has version " +
                                                          std::to_string(kLayoutVersion) + ": upgrade the older one"}};
}

Answer<std::string> read_name(const std::array<char, kPoolNameBytes> &text) {
    const auto end = std::find(text.begin(), text.end(), '\0');
    std::string name(text.begin(), end);
    if (end != text.end() && is_pool_name(name)) return name;
    return Unexpected{Failure{Errc::bad_argument, "the pool's name is refused: use 1 to " +
                                                      std::to_string(kPoolNameBytes - 1) +
                                                      " characters of a-z, 0-9, '.', '_' and '-'"}};
}

}  // namespace

Answer<AttachWish> read_attach_request(std::span<const std::byte> packet) {
    wire::AttachRequest request;
    std::memcpy(&request, packet.data(), sizeof request);
    if (auto known = check_layout_version(request.layout_version); !known) return Unexpected{known.error()};
    if (request.tier != wire::Tier::trusted && request.tier != wire::Tier::observer)
        return Unexpected{Failure{Errc::bad_argument, "tier " +
                                                          std::to_string(static_cast<std::uint32_t>(request.tier)) +
                                                          " is unknown: 0 is trusted, 1 is observer"}};
    auto name = read_name(request.pool_name);
    if (!name) return Unexpected{std::move(name.error())};
    return AttachWish{std::move(*name), request.tier};
}

Answer<ObjectsWish> read_objects_request(std::span<const std::byte> packet) {
    wire::ObjectsRequest request;
    std::memcpy(&request, packet.data(), sizeof request);
    if (auto known = check_layout_version(request.layout_version); !known) return Unexpected{known.error()};
    if ((request.flags & ~wire::ObjectsRequest::kPlainObjects) != 0)
        return Unexpected{Failure{Errc::bad_argument, "flags " + std::to_string(request.flags) + " are unknown: use " +
                                                          std::to_string(wire::ObjectsRequest::kPlainObjects) +
                                                          " or 0"}};
    auto within = read_name(request.within);
    if (!within) return Unexpected{std::move(within.error())};
    auto name = read_name(request.name);
    if (!name) return Unexpected{std::move(name.error())};
    // Otherwise "c" within "a.b" and "b.c" within "a" would be one pool, with the rights of either.
    if (name->find('.') != std::string::npos)
        return Unexpected{Failure{Errc::bad_argument, "the object pool's name \"" + *name +
                                                          "\" has a dot, which separates it from its pool's name: use "
                                                          "a-z, 0-9, '_' and '-'"}};
    ObjectsWish wish{std::move(*within), std::move(*name), request.object_bytes, request.object_count,
                     (request.flags & wire::ObjectsRequest::kPlainObjects) == 0};
    if (is_pool_name(wish.pool_name())) return wish;
    return Unexpected{Failure{Errc::bad_argument, "the pool's name \"" + wish.pool_name() + "\" has " +
                                                      std::to_string(wish.pool_name().size()) +
                                                      " characters: use a shorter name"}};
}

Answer<PinWish> read_pin_request(std::span<const std::byte> packet) {
    wire::PinRequest request;
    std::memcpy(&request, packet.data(), sizeof request);
    if (auto known = check_layout_version(request.layout_version); !known) return Unexpected{known.error()};
    if (request.numa_node >= kMaxNumaNodes)
        return Unexpected{Failure{Errc::no_such_node, "numa node " + std::to_string(request.numa_node) +
                                                          " is beyond the last possible one: use 0 to " +
                                                          std::to_string(kMaxNumaNodes - 1)}};
    return PinWish{request.instance_id,
                   request.process_generation,
                   ProcessSlot{request.process_slot},
                   NumaNode{static_cast<std::uint8_t>(request.numa_node)},
                   request.first_byte,
                   request.bytes};
}

Answer<ChannelOrder> read_channel_request(std::span<const std::byte> packet) {
    using Request = wire::ChannelRequest;
    Request request;
    std::memcpy(&request, packet.data(), sizeof request);
    if (auto known = check_layout_version(request.layout_version); !known) return Unexpected{known.error()};
    const auto refused = [](const std::string &why) { return Unexpected{Failure{Errc::bad_argument, why}}; };
    if (request.wish != Request::Wish::open && request.wish != Request::Wish::close &&
        request.wish != Request::Wish::remove)
        return refused("wish " + std::to_string(static_cast<std::uint32_t>(request.wish)) +
                       " about a channel is unknown: 0 opens, 1 closes, 2 removes");
    if ((request.flags & ~(Request::kExisting | Request::kStays)) != 0)
        return refused("flags " + std::to_string(request.flags) + " of a channel are unknown: use " +
                       std::to_string(Request::kExisting) + ", " + std::to_string(Request::kStays) + " or 0");
    const auto end = std::ranges::find(request.name, '\0');
    const std::string name(request.name.begin(), end);
    if (end == request.name.end() || !is_pool_name(name))
        return refused("the channel's name is refused: use 1 to " + std::to_string(kChannelNameBytes - 1) +
                       " characters of a-z, 0-9, '.', '_' and '-'");
    if (request.kind > ChannelKind::broadcast)
        return refused("kind " + std::to_string(static_cast<std::uint32_t>(request.kind)) +
                       " of a channel is unknown: 0 is a queue, 1 a broadcast channel");
    const ChannelShape shape{request.capacity, request.burst, request.parties, request.kind};
    if (!shape.is_within_limits())
        return refused("a channel of capacity " + std::to_string(request.capacity) + ", burst " +
                       std::to_string(request.burst) + ", parties " + std::to_string(request.parties) +
                       ": use at most " + std::to_string(kChannelCapacityMost) + ", " + std::to_string(kBurstMost) +
                       " and " + std::to_string(kPartiesMost));
    if (!shape.has_room_for_bursts())
        return refused("a channel of capacity " + std::to_string(shape.capacity) + " has no room for a burst of " +
                       std::to_string(shape.burst));
    return ChannelOrder{
        request.instance_id,
        request.process_generation,
        ProcessSlot{request.process_slot},
        request.wish,
        {name, shape, (request.flags & Request::kExisting) != 0, (request.flags & Request::kStays) != 0}};
}

Answer<BellWish> read_bell_request(std::span<const std::byte> packet) {
    using Request = wire::BellRequest;
    Request request;
    std::memcpy(&request, packet.data(), sizeof request);
    if (auto known = check_layout_version(request.layout_version); !known) return Unexpected{known.error()};
    BellWish wish{request.instance_id,
                  request.process_generation,
                  ProcessSlot{request.process_slot},
                  request.wish,
                  request.serial,
                  {}};
    if (request.wish == Request::Wish::fetch) {
        if (request.serial != 0) return wish;
        return Unexpected{Failure{Errc::bad_argument, "bell 0 is none: fetch one that a party has"}};
    }
    if (request.wish != Request::Wish::make)
        return Unexpected{Failure{Errc::bad_argument, "wish " +
                                                          std::to_string(static_cast<std::uint16_t>(request.wish)) +
                                                          " about a bell is unknown: 0 makes, 1 fetches"}};
    const auto end = std::ranges::find(request.name, '\0');
    wish.channel.assign(request.name.begin(), end);
    if (end != request.name.end() && is_pool_name(wish.channel)) return wish;
    return Unexpected{Failure{Errc::bad_argument, "the channel's name is refused: use 1 to " +
                                                      std::to_string(kChannelNameBytes - 1) +
                                                      " characters of a-z, 0-9, '.', '_' and '-'"}};
}

namespace {

std::string describe(NameFault fault) {
    switch (fault) {
        case NameFault::none:
            break;
        case NameFault::empty:
            return "is empty";
        case NameFault::too_long:
            return "is too long";
        case NameFault::bad_character:
            return "has a character that is none of '!' to '~', or is '/'";
    }
    return "is refused";
}

Unexpected<Failure> bad_name(NameFault fault) {
    return bad_argument("the name " + describe(fault) + ": use 1 to " + std::to_string(kNameBytes - 1) +
                        " printable ASCII characters without space and '/'");
}

}  // namespace

Answer<NameWish> read_name_request(std::span<const std::byte> packet) {
    using Request = wire::NameRequest;
    Request request;
    std::memcpy(&request, packet.data(), sizeof request);
    if (auto known = check_layout_version(request.layout_version); !known) return Unexpected{known.error()};
    if ((request.flags & ~(Request::kOfPool | Request::kCompare)) != 0 || request.reserved != 0)
        return bad_argument("flags " + std::to_string(request.flags) + " of a name are unknown: use " +
                            std::to_string(Request::kOfPool) + ", " + std::to_string(Request::kCompare) + " or 0");
    NameWish wish;
    wish.instance_id = request.instance_id;
    wish.process_generation = request.process_generation;
    wish.slot = ProcessSlot{request.process_slot};
    if (const NameFault fault = NameText::read(request.name.data(), wish.entry.name); fault != NameFault::none)
        return bad_name(fault);
    if (request.kind >= kNameKinds)
        return bad_argument("kind " + std::to_string(request.kind) +
                            " of a name is unknown: 1 is a reference, 2 an "
                            "object pool");
    wish.entry.kind = static_cast<NameKind>(request.kind);
    wish.entry.is_of_pool = (request.flags & Request::kOfPool) != 0;
    if ((request.flags & Request::kCompare) != 0) wish.expected_version = request.version;
    switch (wish.entry.kind) {
        case NameKind::none:
            break;
        case NameKind::channel:
            return bad_argument(
                "a name is bound to a channel by the daemon alone: bind it to a reference or to an "
                "object pool");
        case NameKind::reference:
            if (request.value == 0) return bad_argument("reference 0 names no block: bind one that does, or unbind");
            wish.entry.value = request.value;
            break;
        case NameKind::objects: {
            auto objects = read_name(request.objects);
            if (!objects) return Unexpected{std::move(objects.error())};
            std::copy(objects->begin(), objects->end(), wish.entry.objects.begin());
            break;
        }
    }
    return wish;
}

bool is_of_type(wire::MessageType type, std::span<const std::byte> packet) {
    wire::WireHeader header;
    if (packet.size() < sizeof header) return false;
    std::memcpy(&header, packet.data(), sizeof header);
    return header.type == type;
}

void put_message(wire::AttachReply &reply, const std::string &text) {
    constexpr std::string_view kCut = "...";
    const std::size_t room = reply.message.size() - 1;
    std::string fitting = text;
    if (fitting.size() > room) fitting = fitting.substr(0, room - kCut.size()) + std::string(kCut);
    std::copy(fitting.begin(), fitting.end(), reply.message.begin());
}

}  // namespace numacre::daemon
