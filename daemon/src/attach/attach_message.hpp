// What a client may say on the attach socket (shm/attach_wire.hpp). Pure: bytes in, an answer out. Whatever comes is
// input from anybody on the machine (tests/fuzz/attach_message_fuzz.cpp).
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "base/failure.hpp"
#include "engine.hpp"
#include "numacre/shm/attach_wire.hpp"

namespace numacre::daemon {

// What is wrong with a message's size or header, or nothing. The packet's size is what the peer sent, which may be more
// than was received.
std::optional<Failure> check_message(std::size_t packet_size, std::span<const std::byte> packet,
                                     wire::MessageType expected, std::size_t expected_size);

struct AttachWish {
    std::string pool_name;
    wire::Tier tier{};
};
// What an attach request asks for, or why that cannot be. packet: one that check_message() found sound.
Answer<AttachWish> read_attach_request(std::span<const std::byte> packet);

// The reply's text, cut where it is too long; always terminated.
void put_message(wire::AttachReply &reply, const std::string &text);

}  // namespace numacre::daemon
