// Checks of a client's messages on the attach socket (shm/attach_wire.hpp). Pure: bytes in, an answer out. Each message
// is untrusted input: anyone on the machine can send it (tests/fuzz/attach_message_fuzz.cpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/failure.hpp"
#include "engine.hpp"
#include "numacre/shm/attach_wire.hpp"
#include "pool/channel_wish.hpp"

namespace numacre::daemon {

// Returns the fault in a message's size or header, if there is one. packet_size is the size that the peer sent, which
// may be more than was received.
std::optional<Failure> check_message(std::size_t packet_size, std::span<const std::byte> packet,
                                     wire::MessageType expected, std::size_t expected_size);

struct AttachWish {
    std::string pool_name;
    wire::Tier tier{};
};
// An object pool that a client wants, made if there is none.
struct ObjectsWish {
    std::string within, name;
    std::uint64_t object_bytes = 0, object_count = 0;
    bool colours_objects = true;
    std::string pool_name() const { return within + "." + name; }
};
// Returns the wish of an attach request, or why it cannot be granted. packet must have passed check_message().
Answer<AttachWish> read_attach_request(std::span<const std::byte> packet);
// Likewise of an ObjectsRequest.
Answer<ObjectsWish> read_objects_request(std::span<const std::byte> packet);
// A range of a client's memory that is to stay where it is.
struct PinWish {
    std::uint64_t instance_id = 0, process_generation = 0;
    ProcessSlot slot;
    NumaNode numa_node;
    std::uint64_t first_byte = 0, bytes = 0;
};
// Likewise of a PinRequest. Whether there is such a range is for its pool to say.
Answer<PinWish> read_pin_request(std::span<const std::byte> packet);
// A wish about a channel of the client's pool.
struct ChannelOrder {
    std::uint64_t instance_id = 0, process_generation = 0;
    ProcessSlot slot;
    wire::ChannelRequest::Wish wish{};
    ChannelWish channel;
};
// Likewise of a ChannelRequest.
Answer<ChannelOrder> read_channel_request(std::span<const std::byte> packet);
// A wish about the bell of a party of a channel.
struct BellWish {
    std::uint64_t instance_id = 0, process_generation = 0;
    ProcessSlot slot;
    wire::BellRequest::Wish wish{};
    std::uint64_t serial = 0;  // to fetch
    std::string channel;       // to make
};
// Likewise of a BellRequest.
Answer<BellWish> read_bell_request(std::span<const std::byte> packet);
// A change of a name (pool/names.hpp) that a client wants.
struct NameWish {
    std::uint64_t instance_id = 0, process_generation = 0;
    ProcessSlot slot;
    NameEntry entry;  // kind none: the name is to be unbound
    std::optional<std::uint64_t> expected_version;
};
// Likewise of a NameRequest.
Answer<NameWish> read_name_request(std::span<const std::byte> packet);
// True: the message's header says that it is of this type. It may be no good one.
bool is_of_type(wire::MessageType type, std::span<const std::byte> packet);

// Puts the text into the reply, cut if it is too long; always terminated.
void put_message(wire::AttachReply &reply, const std::string &text);

}  // namespace numacre::daemon
