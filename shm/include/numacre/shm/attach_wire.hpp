// Messages on the attach socket (unix SEQPACKET, <runtime dir>/attach.sock). One message a packet, fixed size, host
// byte order: both ends are on one machine. Every message begins with WireHeader; a receiver checks size, magic and
// version before it looks at anything else.
//
//   client                                   daemon
//   AttachRequest                  ->        or ObjectsRequest, to make an object pool and attach to it
//                                  <-        AttachReply + fds by SCM_RIGHTS: pool region, then per numa node its
//                                            node region and its data region (1 + 2 * numa_node_count fds)
//   ... works ...
//   EventsRequest (at most one)    ->
//                                  <-        EventsReply + by SCM_RIGHTS an eventfd, which the daemon signals after it
//                                            has set a bit of ProcessRecord::news; no fd: the daemon has none left
//   PinRequest                     ->        on a connection of its own, in place of an AttachRequest: so a client of
//                                  <-        an earlier daemon can pin, too. PinReply + by SCM_RIGHTS the pin's
//                                            descriptor, or AttachReply with the reason of a refusal; then the daemon
//                                            closes the connection
//   ChannelRequest                 ->        on a connection of its own, too, and with the same end. ChannelReply, or
//                                  <-        AttachReply with the reason of a refusal
//   BellRequest (make)             ->        likewise on a connection of its own, which stays open: BellReply + by
//                                  <-        SCM_RIGHTS the eventfd by which a party of a channel waits. The daemon
//                                  keeps
//                                            it for others until the connection closes; or AttachReply with the reason
//                                            of a refusal, and the daemon closes the connection
//   BellRequest (fetch)            ->        likewise, of whoever has to ring it: BellReply + the eventfd, and the
//   daemon
//                                  <-        rings it; or AttachReply. Then the daemon closes the connection
//   NameRequest                    ->        likewise on a connection of its own
//                                  <-        NameReply, or AttachReply with the reason of a refusal; then the daemon
//                                            closes the connection
//   DetachRequest (after unmapping) ->
//                                  <-        DetachReply (everything the client held has been given back)
//
// Between the reply and its work the client says in its record that it has come, and before DetachRequest that it has
// left (presence.hpp). The record counts, not the connection. If the connection closes before the client has come, the
// daemon gives the client up. If it closes later, no memory comes back by that alone: the process may still have the
// memory mapped. The daemon then waits until the kernel says that the process has ended (pidfd) or has replaced its
// program, or until the client's record says that it has left.
#pragma once

#include <array>
#include <cstdint>
#include <type_traits>

#include "numacre/shm/layout.hpp"

namespace numacre::engine::wire {

inline constexpr std::uint32_t kMagic = 0x7263'6d6e;  // "nmcr" in memory
inline constexpr std::uint16_t kVersion = 1;

enum class MessageType : std::uint16_t {
    attach_request = 1,
    attach_reply = 2,
    detach_request = 3,
    detach_reply = 4,
    events_request = 5,
    events_reply = 6,
    objects_request = 7,
    pin_request = 8,
    pin_reply = 9,
    channel_request = 10,
    channel_reply = 11,
    name_request = 12,
    name_reply = 13,
    bell_request = 14,
    bell_reply = 15
};

struct WireHeader {
    std::uint32_t magic = kMagic;
    std::uint16_t version = kVersion;
    MessageType type{};
    std::uint32_t size_bytes = 0;  // of the whole message
    std::uint32_t reserved = 0;
};

// channel: not a process, and in no message: a seat that the daemon keeps for a channel of the pool.
enum class Tier : std::uint32_t { trusted = 0, observer = 1, channel = 2 };

struct AttachRequest {
    WireHeader header{kMagic, kVersion, MessageType::attach_request, sizeof(AttachRequest), 0};
    std::uint32_t layout_version = kLayoutVersion;
    Tier tier = Tier::trusted;
    std::array<char, kPoolNameBytes> pool_name{};  // terminated by 0
};

enum class Backing : std::uint32_t { private_memory = 0, hugetlb = 1, thp = 2, small_pages = 3, hugetlb_1g = 4 };

struct NodeDescription {
    std::int32_t os_numa_node = 0;  // the kernel's number
    Backing backing{};
    std::uint32_t page_bytes = 0;  // of the data region
    std::uint32_t reserved = 0;
    std::uint64_t node_region_bytes = 0;
    std::uint64_t data_region_bytes = 0;  // = capacity
};

struct AttachReply {
    WireHeader header{kMagic, kVersion, MessageType::attach_reply, sizeof(AttachReply), 0};
    std::uint32_t error = 0;  // Errc; 0 = attached
    std::uint32_t layout_version = kLayoutVersion;
    std::uint32_t client_id = 0;  // not reused while the daemon lives
    std::uint16_t process_slot = 0;
    std::uint16_t numa_node_count = 0;
    std::uint64_t process_generation = 0;
    std::uint64_t instance_id = 0;
    std::uint64_t pool_region_bytes = 0;
    std::uint32_t process_slots = 0;
    std::uint32_t thread_slots = 0;
    Geometry geometry;
    std::array<char, 256> message{};  // the reason of a refusal, and the remedy; terminated by 0
    // nearest[n]: nodes by distance from n.
    std::array<std::array<std::uint8_t, kMaxNumaNodes>, kMaxNumaNodes> nearest{};
    std::array<NodeDescription, kMaxNumaNodes> nodes{};
};

// In place of an AttachRequest: attaches to the object pool "within.name", which the daemon makes before if there is
// none. The reply is an AttachReply.
struct ObjectsRequest {
    WireHeader header{kMagic, kVersion, MessageType::objects_request, sizeof(ObjectsRequest), 0};
    std::uint32_t layout_version = kLayoutVersion;
    std::uint32_t flags = 0;                           // kPlainObjects
    std::array<char, kPoolNameBytes> within{};         // the pool that lends its rights; terminated by 0
    std::array<char, kPoolNameBytes> name{};           // terminated by 0
    std::uint64_t object_bytes = 0, object_count = 0;  // of each numa node
    static constexpr std::uint32_t kPlainObjects = 1;
};

// Keeps frames of a client where they are, for as long as somebody has the descriptor that comes with the reply.
// Refused unless it is the client's process that asks.
struct PinRequest {
    WireHeader header{kMagic, kVersion, MessageType::pin_request, sizeof(PinRequest), 0};
    std::uint32_t layout_version = kLayoutVersion;
    std::uint16_t process_slot = 0;
    std::uint16_t numa_node = 0;
    std::uint64_t process_generation = 0, instance_id = 0;  // as in AttachReply
    std::uint64_t first_byte = 0, bytes = 0;                // of the numa node's frames
};
struct PinReply {
    WireHeader header{kMagic, kVersion, MessageType::pin_reply, sizeof(PinReply), 0};
    std::uint64_t first_byte = 0, bytes = 0;  // the pinned range: whole resize units
};

// Opens a channel of the pool for a client, gives it back, or removes a channel that stays. Refused unless it is the
// client's process that asks. Each open is given back by a close, or with the client's seat.
struct ChannelRequest {
    enum class Wish : std::uint32_t { open = 0, close = 1, remove = 2 };
    static constexpr std::uint32_t kExisting = 1;  // not made if there is none
    static constexpr std::uint32_t kStays = 2;
    WireHeader header{kMagic, kVersion, MessageType::channel_request, sizeof(ChannelRequest), 0};
    std::uint32_t layout_version = kLayoutVersion;
    std::uint16_t process_slot = 0;
    std::uint16_t reserved = 0;
    std::uint64_t process_generation = 0, instance_id = 0;  // as in AttachReply
    Wish wish = Wish::open;
    std::uint32_t flags = 0;
    std::array<char, kChannelNameBytes> name{};  // terminated by 0
    // 0: any, or the default
    std::uint32_t capacity = 0, burst = 0, parties = 0;
    ChannelKind kind = ChannelKind::queue;
};
struct ChannelReply {
    WireHeader header{kMagic, kVersion, MessageType::channel_reply, sizeof(ChannelReply), 0};
    std::uint64_t offset = 0;  // in the area (PoolLayout::channels)
    std::uint32_t capacity = 0, burst = 0, parties = 0;
    std::uint16_t process_slot = 0;  // the channel's own
    std::uint16_t kind = 0;          // ChannelKind
};

// Makes the bell (channel/bells.hpp) of a party that the client has, or fetches that of another one. Refused unless it
// is the client's process that asks, and the client has the channel open.
struct BellRequest {
    enum class Wish : std::uint16_t { make = 0, fetch = 1 };
    WireHeader header{kMagic, kVersion, MessageType::bell_request, sizeof(BellRequest), 0};
    std::uint32_t layout_version = kLayoutVersion;
    std::uint16_t process_slot = 0;
    Wish wish = Wish::make;
    std::uint64_t process_generation = 0, instance_id = 0;  // as in AttachReply
    std::uint64_t serial = 0;                               // fetch: PartySlot::bell; make: 0
    std::array<char, kChannelNameBytes> name{};             // make: the channel's, terminated by 0
};
struct BellReply {
    WireHeader header{kMagic, kVersion, MessageType::bell_reply, sizeof(BellReply), 0};
    std::uint64_t serial = 0;  // not 0; of no other bell since the machine has started
};

// Binds a name of the pool (names.hpp), or unbinds it. Refused unless it is the client's process that asks.
struct NameRequest {
    WireHeader header{kMagic, kVersion, MessageType::name_request, sizeof(NameRequest), 0};
    std::uint32_t layout_version = kLayoutVersion;
    std::uint16_t process_slot = 0;
    std::uint16_t reserved = 0;                             // 0
    std::uint64_t process_generation = 0, instance_id = 0;  // as in AttachReply
    std::uint32_t kind = 0;                                 // NameKind; 0: unbind the name
    std::uint32_t flags = 0;                                // kOfPool, kCompare
    std::uint64_t version = 0;                              // with kCompare: that the name must have; 0: no such name
    std::uint64_t value = 0;                                // the reference
    std::array<char, kNameBytes> name{};                    // terminated by 0
    std::array<char, kPoolNameBytes> objects{};             // terminated by 0
    static constexpr std::uint32_t kOfPool = 1, kCompare = 2;
};
struct NameReply {
    WireHeader header{kMagic, kVersion, MessageType::name_reply, sizeof(NameReply), 0};
    std::uint64_t version = 0;  // of the change
};

struct DetachRequest {
    WireHeader header{kMagic, kVersion, MessageType::detach_request, sizeof(DetachRequest), 0};
};
struct DetachReply {
    WireHeader header{kMagic, kVersion, MessageType::detach_reply, sizeof(DetachReply), 0};
};

struct EventsRequest {
    WireHeader header{kMagic, kVersion, MessageType::events_request, sizeof(EventsRequest), 0};
};
struct EventsReply {
    WireHeader header{kMagic, kVersion, MessageType::events_reply, sizeof(EventsReply), 0};
};

static_assert(sizeof(WireHeader) == 16);
static_assert(sizeof(AttachRequest) == 88);
static_assert(sizeof(ObjectsRequest) == 168);
static_assert(sizeof(PinRequest) == 56);
static_assert(sizeof(PinReply) == 32);
static_assert(sizeof(ChannelRequest) == 112);
static_assert(sizeof(ChannelReply) == 40);
static_assert(sizeof(BellRequest) == 96);
static_assert(sizeof(BellReply) == 24);
static_assert(sizeof(NameRequest) == 176);
static_assert(sizeof(NameReply) == 24);
static_assert(sizeof(NodeDescription) == 32);
static_assert(sizeof(AttachReply) == 16 + 64 + 256 + 4096 + 64 * 32);
static_assert(std::is_trivially_copyable_v<AttachRequest> && std::is_trivially_copyable_v<AttachReply>);

inline constexpr std::size_t kMaxFds = 1 + 2 * kMaxNumaNodes;

}  // namespace numacre::engine::wire
