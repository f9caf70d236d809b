#include "attach/attach_message.hpp"

#include <algorithm>
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
                                               std::to_string(static_cast<unsigned>(expected)) + " was due"};
    if (header.size_bytes != expected_size || packet_size != expected_size || packet.size() != expected_size)
        return Failure{Errc::bad_argument, "the message has " + std::to_string(packet_size) + " bytes and says " +
                                               std::to_string(header.size_bytes) + ", it must have " +
                                               std::to_string(expected_size) + ": truncated or damaged"};
    return std::nullopt;
}

Answer<AttachWish> read_attach_request(std::span<const std::byte> packet) {
    wire::AttachRequest request;
    std::memcpy(&request, packet.data(), sizeof request);
    if (request.layout_version != kLayoutVersion)
        return Unexpected{
            Failure{Errc::version_mismatch, "the client has shared-memory layout version " +
                                                std::to_string(request.layout_version) + ", the daemon has version " +
                                                std::to_string(kLayoutVersion) + ": upgrade the older one"}};
    if (request.tier != wire::Tier::trusted && request.tier != wire::Tier::observer)
        return Unexpected{Failure{Errc::bad_argument, "tier " +
                                                          std::to_string(static_cast<std::uint32_t>(request.tier)) +
                                                          " is unknown: 0 is trusted, 1 is observer"}};
    const auto end = std::find(request.pool_name.begin(), request.pool_name.end(), '\0');
    std::string name(request.pool_name.begin(), end);
    if (end == request.pool_name.end() || !is_pool_name(name))
        return Unexpected{Failure{Errc::bad_argument, "the pool's name is refused: use 1 to " +
                                                          std::to_string(kPoolNameBytes - 1) +
                                                          " characters of a-z, 0-9, '.', '_' and '-'"}};
    return AttachWish{std::move(name), request.tier};
}

void put_message(wire::AttachReply &reply, const std::string &text) {
    constexpr std::string_view kCut = "...";
    const std::size_t room = reply.message.size() - 1;
    std::string fitting = text;
    if (fitting.size() > room) fitting = fitting.substr(0, room - kCut.size()) + std::string(kCut);
    std::copy(fitting.begin(), fitting.end(), reply.message.begin());
}

}  // namespace numacre::daemon
