// Channels (shm/channel/): the calls of a program. The daemon makes and removes channels; here are the handle and the
// calls on it. Those of a private pool: private_channels.cpp; those of a reader of a broadcast: broadcast.cpp.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "broadcast.hpp"
#include "channel.hpp"
#include "channel_waits.hpp"
#include "connect.hpp"
#include "engine.hpp"
#include "errors.hpp"
#include "given_blocks.hpp"
#include "numacre/os/kernel.hpp"
#include "place.hpp"
#include "pool.hpp"
#include "private_channels.hpp"
#include "record.hpp"
#include "reference.hpp"
#include "report.hpp"
#include "struct_size.hpp"

namespace numacre::client {
namespace {

// A step of a growth on the pool's worker comes first, and may take seconds.
constexpr unsigned kChannelSeconds = 30;

}  // namespace

int fail_scribbled() {
    return fail_with_remedy(Errc::corrupt,
                            "the channel's memory is damaged: its words are not those of a channel; remove the "
                            "channel, and make it anew");
}

int fail_other_kind(const char *name, ChannelKind there) {
    return there == ChannelKind::broadcast
               ? fail_with_remedy(
                     Errc::already_exists,
                     "channel \"%s\" is a broadcast channel, of which each reader gets every message: open "
                     "it with NUMACRE_CHANNEL_BROADCAST, or use another name",
                     name)
               : fail_with_remedy(Errc::already_exists,
                                  "channel \"%s\" is a queue, of which one receiver gets a message: open it without "
                                  "NUMACRE_CHANNEL_BROADCAST, or use another name",
                                  name);
}

}  // namespace numacre::client

using namespace numacre;
using namespace numacre::client;

namespace {

int check_name(const char *name) {
    const auto is_allowed = [](char character) {
        return (character >= 'a' && character <= 'z') || (character >= '0' && character <= '9') || character == '.' ||
               character == '_' || character == '-';
    };
    const std::size_t length = name == nullptr ? 0 : strnlen(name, kChannelNameBytes);
    if (length != 0 && length < kChannelNameBytes && std::all_of(name, name + length, is_allowed)) return 0;
    return fail_with_remedy(
        Errc::bad_argument,
        "the channel's name \"%.60s\" is refused: use 1 to %zu characters of a-z, 0-9, '.', '_' and '-'",
        name == nullptr ? "(NULL)" : name, kChannelNameBytes - 1);
}

int check_sizes(const numacre_channel_options &options) {
    constexpr unsigned kFlags = NUMACRE_CHANNEL_SENDS | NUMACRE_CHANNEL_RECEIVES | NUMACRE_CHANNEL_EXISTING |
                                NUMACRE_CHANNEL_STAYS | NUMACRE_CHANNEL_BROADCAST;
    if ((options.flags & ~kFlags) != 0)
        return fail_with_remedy(Errc::bad_argument,
                                "numacre_channel_options.flags is %#x: use NUMACRE_CHANNEL_... or 0", options.flags);
    if (!wish_of(options).is_within_limits())
        return fail_with_remedy(
            Errc::bad_argument, "a channel of capacity %u, burst %u, parties %u: use at most %u, %u and %u",
            options.capacity, options.burst, options.parties, kChannelCapacityMost, kBurstMost, kPartiesMost);
    if (!wish_of(options).has_room_for_bursts())
        return fail_with_remedy(Errc::bad_argument,
                                "a channel of capacity %u has no room for a burst of %u: use a burst of at most %u, or "
                                "a larger capacity",
                                options.capacity, options.burst, options.capacity);
    if (options.last != 0 && kind_of(options) != ChannelKind::broadcast)
        return fail_with_remedy(Errc::bad_argument,
                                "numacre_channel_options.last is %u, and the channel is a queue, which has no messages "
                                "for those who come late: use 0, or NUMACRE_CHANNEL_BROADCAST",
                                options.last);
    if (options.reserved != 0)
        return fail_with_remedy(Errc::bad_argument, "numacre_channel_options.reserved is %u: set it to 0",
                                options.reserved);
    return 0;
}

// --- the daemon's ----------------------------------------------------------------------------------------------------

int ask(numacre_pool *pool, const char *name, wire::ChannelRequest::Wish wish, const numacre_channel_options &options,
        wire::ChannelReply &reply) {
    wire::ChannelRequest request;
    request.process_slot = pool->process.value;
    request.process_generation = pool->process_generation;
    request.instance_id = pool->instance_id;
    request.wish = wish;
    request.flags = ((options.flags & NUMACRE_CHANNEL_EXISTING) != 0 ? wire::ChannelRequest::kExisting : 0) |
                    ((options.flags & NUMACRE_CHANNEL_STAYS) != 0 ? wire::ChannelRequest::kStays : 0);
    std::memcpy(request.name.data(), name, strlen(name));
    request.capacity = options.capacity;
    request.burst = options.burst;
    request.parties = options.parties;
    request.kind = kind_of(options);
    const NotCancelled not_cancelled;
    return ask_daemon(pool->runtime_dir, &request, sizeof request, wire::MessageType::channel_reply, &reply,
                      sizeof reply, nullptr, kChannelSeconds);
}

int open_at_daemon(numacre_pool *pool, const char *name, const numacre_channel_options &options, ChannelPlace &found) {
    wire::ChannelReply reply;
    if (const int error = ask(pool, name, wire::ChannelRequest::Wish::open, options, reply)) return error;
    found = {reply.offset,
             {reply.capacity, reply.burst, reply.parties, static_cast<ChannelKind>(reply.kind)},
             ProcessSlot{reply.process_slot}};
    // A daemon that errs must not make us touch other memory.
    if (!found.shape.is_plausible() || found.shape.kind != kind_of(options) || found.offset % kChannelStep != 0 ||
        found.offset > kChannelAreaBytes || channel_bytes<Env>(found.shape) > kChannelAreaBytes - found.offset ||
        found.seat.value >= pool->view.process_slots)
        return fail(Errc::version_mismatch, "the daemon's channel does not fit into the pool's region");
    return 0;
}

void give_back(numacre_pool *pool, const char *name) {
    if (is_private(pool)) return close_private_channel(pool, name);
    wire::ChannelReply reply;
    // Without a daemon: the next one finds the channel open until this client's seat ends.
    (void)ask(pool, name, wire::ChannelRequest::Wish::close, {}, reply);
}

// --- counts ----------------------------------------------------------------------------------------------------------

// In a pool with limits: moves the counts of blocks from one owner to the other, around the change of their entries.
class CountedMove {
public:
    // frames: at most; 0: the pool has no limits.
    CountedMove(numacre_channel *channel, const Lane &lane, std::uint64_t frames, ProcessSlot from)
        : pool_(channel->pool), call_(pool_, lane.actor, frames, from) {}
    void done(ProcessSlot from, std::uint64_t from_generation, ProcessSlot to, std::uint64_t frames) const {
        add_held(pool_->view, to, frames);
        remove_lost(pool_->view, from, from_generation, frames);
    }

private:
    numacre_pool *pool_;
    CountedCall call_;
};

// --- sending ---------------------------------------------------------------------------------------------------------

int fail_refused_block(numacre_channel *channel, void *const *blocks, unsigned refused) {
    Place place{};
    Block block;
    IndexEntry entry;
    const bool is_owned = own_block(channel->pool, blocks[refused], place, block, entry);
    if (is_owned && entry.is_lent())
        return fail_with_remedy(Errc::not_owner,
                                "the block at %p has been held since it was allocated, and may be held still: send its "
                                "content in another block, or its reference in a message",
                                blocks[refused]);
    if (is_owned)
        return fail_with_remedy(Errc::not_owner,
                                "the block at %p is named twice, or another thread frees it: send each block once",
                                blocks[refused]);
    return not_owned(channel->pool, blocks[refused], "numacre_send");
}

// A block that has a reference could be taken while it is sent. A block that was held at some time may be held still.
bool withdraw(numacre_pool *pool, const void *address) {
    Place place{};
    Block block;
    IndexEntry entry;
    return own_block(pool, address, place, block, entry) &&
           (!entry.is_published() || pool->nodes[place.numa_node].buddy().withdraw(block, entry));
}

// The behaviour of a send for which there is no room.
enum class Full { refuse, drop_oldest };

SendResult send_places(numacre_channel *channel, const BlockPlace *places, unsigned count, Full full,
                       GivenBlocks &given, unsigned &refused) {
    numacre_pool *const pool = channel->pool;
    const PoolAge since = Attention::age(pool->view.header->attention.load(std::memory_order_relaxed));
    if (channel->broadcast) {
        // A send to a broadcast overwrites.
        const auto give = [&given](NumaNode numa_node, Block block) { given(numa_node, block); };
        return channel->broadcast->send(Heir{channel->party, pool->process, since}, places, count, give, refused);
    }
    const Actor actor{{}, pool->process};
    for (;;) {
        const SendResult result = channel->queue->send(channel->party, actor, places, count, since, refused);
        if (result != SendResult::full || full == Full::refuse || count > channel->shape.capacity) return result;
        const auto give = [&given](unsigned, NumaNode numa_node, Block block) { given(numa_node, block); };
        // Nothing there: others have received meanwhile.
        if (channel->queue->drop_oldest(channel->party, actor, since, give).result == ReceiveResult::scribbled)
            return SendResult::scribbled;
        // Not before: a block that is free does not come back by a recovery.
        given.free_all();
    }
}

int fail_full(numacre_channel *channel, unsigned count, Full full) {
    if (full == Full::drop_oldest)
        return fail_with_remedy(Errc::bad_argument,
                                "%u blocks in one send never have room in channel \"%s\" of capacity %u: send fewer",
                                count, channel->name, channel->shape.capacity);
    if (have_all_gone(channel, PartyOwner::kReceives))
        return fail(Errc::peers_gone, "the channel is full, and all of its receivers have gone");
    return fail_often(Errc::contended, "the channel has no room for so many blocks now");
}

int send_once(numacre_channel *channel, void *const *blocks, unsigned count, Full full, GivenBlocks &given) {
    numacre_pool *const pool = channel->pool;
    ring_what_is_owed(channel);
    BlockPlace places[kBurstMost];
    for (unsigned next = 0; next < count; ++next) {
        Place place{};
        if (!locate(pool, blocks[next], place)) return not_owned(pool, blocks[next], "numacre_send");
        places[next] = {NumaNode{static_cast<std::uint8_t>(place.numa_node)}, place.frame};
    }
    for (;;) {
        unsigned refused = 0;
        const SendResult result = send_places(channel, places, count, full, given, refused);
        if (channel->queue && given.count() != 0) [[unlikely]] {
            // Also if another sender has taken the room: who waits looks himself.
            wake_if_asleep(on_room(channel));
            ring_watchers(channel, ArmedWord::kRoom);
        }
        switch (result) {
            case SendResult::sent:
                wake_if_asleep(on_messages(channel));
                ring_watchers(channel, ArmedWord::kMessages);
                return 0;
            case SendResult::published:
                if (!withdraw(pool, blocks[refused])) return fail_refused_block(channel, blocks, refused);
                continue;
            case SendResult::full:
                return fail_full(channel, count, full);
            case SendResult::closed:
                return fail(Errc::end_of_stream, "the stream of channel \"%s\" has ended", channel->name);
            case SendResult::not_owned:
                return fail_refused_block(channel, blocks, refused);
            case SendResult::scribbled:
                return fail_scribbled();
        }
    }
}

std::uint64_t frames_of(numacre_pool *pool, void *const *blocks, unsigned count) {
    std::uint64_t frames = 0;
    for (unsigned next = 0; next < count; ++next) {
        Place place{};
        Block block;
        IndexEntry entry;
        if (own_block(pool, blocks[next], place, block, entry)) frames += block.order.frames();
    }
    return frames;
}

[[gnu::cold, gnu::noinline]] int send_counted(numacre_channel *channel, void *const *blocks, unsigned count, Full full,
                                              GivenBlocks &given) {
    numacre_pool *const pool = channel->pool;
    int error = 0;
    const Lane *const lane = lane_of(pool, error);
    if (lane == nullptr) return error;
    count_what_is_held(pool);
    const std::uint64_t frames = frames_of(pool, blocks, count);
    const CountedMove counted{channel, *lane, frames, pool->process};
    const std::uint64_t most_given =
        channel->broadcast || full == Full::drop_oldest ? kBurstMost * pool->geometry.largest().frames() : 0;
    const CountedCall of_given{pool, lane->actor, most_given, channel->seat};
    error = send_once(channel, blocks, count, full, given);
    if (error == 0) counted.done(pool->process, generation_of(pool->view, pool->process), channel->seat, frames);
    given.free_all();
    return error;
}

int check_send(numacre_channel *channel, void *const *blocks, unsigned count) {
    if (channel == nullptr) return no_result("numacre_send");
    if (channel->pool->fork_generation != fork_generation()) return fail_forked();
    const std::uint32_t most = channel->shape.burst;
    if (blocks == nullptr || count == 0 || count > most)
        return fail_with_remedy(Errc::bad_argument, "%u blocks in one send: send 1 to %u, the channel's burst", count,
                                most);
    return 0;
}

// given: blocks that had to go. They are free when the call returns.
int send(numacre_channel *channel, void *const *blocks, unsigned count, Full full, GivenBlocks &given) {
    if (channel->broadcast || full == Full::drop_oldest) {
        // Without a thread slot nothing could be freed.
        int error = 0;
        if (lane_of(channel->pool, error) == nullptr) return error;
    }
    if (is_counting(channel->pool)) return send_counted(channel, blocks, count, full, given);
    const int error = send_once(channel, blocks, count, full, given);
    given.free_all();
    return error;
}
int send(numacre_channel *channel, void *const *blocks, unsigned count) {
    GivenBlocks given{channel};
    return send(channel, blocks, count, Full::refuse, given);
}

// --- receiving -------------------------------------------------------------------------------------------------------

int receive_once(numacre_channel *channel, void **blocks, unsigned most, unsigned *count, int *redelivered,
                 std::uint64_t &frames) {
    numacre_pool *const pool = channel->pool;
    ring_what_is_owed(channel);
    const PoolAge since = Attention::age(pool->view.header->attention.load(std::memory_order_relaxed));
    bool has_looked_again = false;
    for (;;) {
        frames = 0;
        const auto give = [&](unsigned next, NumaNode numa_node, Block block) {
            blocks[next] = address_of(pool, numa_node.value, block);
            frames += block.order.frames();
        };
        // Enters the kernel: a thread that is killed there has received nothing yet.
        const auto wake_senders = [channel] {
            wake_if_asleep(on_room(channel));
            ring_watchers(channel, ArmedWord::kRoom);
        };
        const auto received =
            channel->queue->receive(channel->party, Actor{{}, pool->process}, most, since, give, wake_senders);
        if (received.result == ReceiveResult::received) {
            *count = received.count;
            if (redelivered != nullptr) *redelivered = received.is_redelivered ? 1 : 0;
            return 0;
        }
        if (received.result == ReceiveResult::scribbled) return fail_scribbled();
        const bool has_ended = is_closed(channel);
        const bool have_gone = have_all_gone(channel, PartyOwner::kSends);
        if (!has_ended && !have_gone) return fail_often(Errc::contended, "the channel is empty");
        // The last message may have been sent between the two looks.
        if (std::exchange(has_looked_again, true))
            return has_ended ? fail(Errc::end_of_stream, "the stream of channel \"%s\" has ended", channel->name)
                             : fail(Errc::peers_gone, "the channel is empty, and all of its senders have gone");
    }
}

[[gnu::cold, gnu::noinline]] int receive_counted(numacre_channel *channel, void **blocks, unsigned most,
                                                 unsigned *count, int *redelivered) {
    numacre_pool *const pool = channel->pool;
    int error = 0;
    const Lane *const lane = lane_of(pool, error);
    if (lane == nullptr) return error;
    count_what_is_held(pool);
    std::uint64_t frames = std::uint64_t{most < kBurstMost ? most : kBurstMost} * pool->geometry.largest().frames();
    const CountedMove counted{channel, *lane, frames, channel->seat};
    const std::uint64_t generation = generation_of(pool->view, channel->seat);
    error = receive_once(channel, blocks, most, count, redelivered, frames);
    if (error == 0) counted.done(channel->seat, generation, pool->process, frames);
    return error;
}

int check_receive(numacre_channel *channel, void **blocks, unsigned most, const unsigned *count) {
    if (channel == nullptr || blocks == nullptr || count == nullptr) return no_result("numacre_receive");
    if (channel->pool->fork_generation != fork_generation()) return fail_forked();
    if (channel->broadcast)
        return fail_with_remedy(Errc::bad_argument,
                                "channel \"%s\" is a broadcast channel, whose blocks nobody receives: use "
                                "numacre_channel_read()",
                                channel->name);
    if (most == 0) return fail_with_remedy(Errc::bad_argument, "0 blocks are to be received: ask for 1 or more");
    return 0;
}

int receive(numacre_channel *channel, void **blocks, unsigned most, unsigned *count, int *redelivered) {
    std::uint64_t frames = 0;
    const int error = is_counting(channel->pool) ? receive_counted(channel, blocks, most, count, redelivered)
                                                 : receive_once(channel, blocks, most, count, redelivered, frames);
    if (error != 0 || !recording()) [[likely]]
        return error;
    for (unsigned next = 0; next < *count; ++next) {
        Place place{};
        Block block;
        IndexEntry entry;
        if (own_block(channel->pool, blocks[next], place, block, entry))
            record_allocation(channel->pool, blocks[next],
                              static_cast<std::size_t>(channel->pool->geometry.bytes_of(block.order.frames())));
    }
    return 0;
}

// --- handles ---------------------------------------------------------------------------------------------------------

void leave(numacre_channel *channel) {
    if (channel->queue) return channel->queue->leave(channel->party);
    drop_what_is_read(channel,
                      [channel](const Heir &self, const auto &give) { channel->broadcast->leave(self, give); });
}

// Adds the figures of a party to those of its channel. relaxed, in both: each is one word by itself.
void add_roles(PartyOwner owner, numacre_channel_info &now) {
    now.senders += owner.sends() ? 1 : 0;
    now.receivers += owner.receives() ? 1 : 0;
}
void add_party(const PartySlot<Env> &slot, numacre_channel_info &now) {
    add_roles(PartyOwner{slot.owner.load(std::memory_order_relaxed)}, now);
    now.sent += slot.sent.load(std::memory_order_relaxed);
    now.received += slot.received.load(std::memory_order_relaxed);
    now.redelivered += slot.redelivered.load(std::memory_order_relaxed);
    now.dropped += slot.dropped.load(std::memory_order_relaxed);
}
void add_party(const BroadcastParty<Env> &slot, numacre_channel_info &now) {
    add_roles(PartyOwner{slot.owner.load(std::memory_order_relaxed)}, now);
    now.sent += slot.sent.load(std::memory_order_relaxed);
    now.received += slot.read.load(std::memory_order_relaxed);
    now.overtaken += slot.lost.load(std::memory_order_relaxed);
}

}  // namespace

extern "C" int numacre_channel_open(numacre_pool *pool, const char *name, const numacre_channel_options *options,
                                    numacre_channel **channel) {
    if (pool == nullptr) return no_pool("numacre_channel_open");
    if (channel == nullptr) return no_result("numacre_channel_open");
    if (pool->fork_generation != fork_generation()) return fail_forked();
    numacre_channel_options wanted{};
    if (options != nullptr)
        if (const int error = read_options(*options, "numacre_channel_options", wanted)) return error;
    if (const int error = check_name(name)) return error;
    if (const int error = check_sizes(wanted)) return error;
    ChannelPlace found;
    if (const int error = is_private(pool) ? open_private_channel(pool, name, wanted, found)
                                           : open_at_daemon(pool, name, wanted, found))
        return error;
    void *const memory =
        os::mmap(nullptr, sizeof(numacre_channel), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        give_back(pool, name);
        return fail_without_memory("no memory for a channel's handle");
    }
    const bool sends = (wanted.flags & NUMACRE_CHANNEL_SENDS) != 0;
    const bool receives = (wanted.flags & NUMACRE_CHANNEL_RECEIVES) != 0;
    auto *const handle =
        new (memory) numacre_channel{pool, {}, {}, found.shape, kDaemonParty, receives || !sends, found.seat, {}, {}};
    if (found.shape.is_broadcast())
        handle->broadcast.emplace(broadcast_view_of(pool, found), found.seat, ChannelNodes{pool});
    else
        handle->queue.emplace(view_of(pool, found), found.seat, ChannelNodes{pool});
    std::memcpy(handle->name, name, strlen(name) + 1);
    const std::uint64_t roles =
        (sends || !receives ? PartyOwner::kSends : 0) | (receives || !sends ? PartyOwner::kReceives : 0);
    handle->party = with_ring(handle, [&](const auto &ring) { return ring.join(pool->process, roles); });
    if (handle->party == kDaemonParty) {
        os::munmap(memory, sizeof(numacre_channel));
        give_back(pool, name);
        return fail_with_remedy(Errc::too_many_clients,
                                "the channel \"%s\" has its %u parties: close one, or make it with more", name,
                                found.shape.parties);
    }
    if (handle->broadcast && !handle->broadcast->start(wanted.last)) {
        (void)numacre_channel_close(handle);
        return fail_scribbled();
    }
    *channel = handle;
    return 0;
}

extern "C" int numacre_channel_close(numacre_channel *channel) {
    if (channel == nullptr) return 0;
    numacre_pool *const pool = channel->pool;
    if (pool->fork_generation != fork_generation()) {
        drop_inherited_bells(channel);
        return fail_forked();
    }
    {
        const NotCancelled not_cancelled;
        with_ring(channel, [channel](const auto &ring) { bells_on(ring.view()).remove(channel->party); });
        leave(channel);
        channel->party = kDaemonParty;  // the slot may be another's by now, who is to be rung like all others
        call_all(channel);
        close_bells(channel);
    }
    give_back(pool, channel->name);
    os::munmap(channel, sizeof(numacre_channel));
    return 0;
}

extern "C" int numacre_channel_end(numacre_channel *channel) {
    if (channel == nullptr) return no_result("numacre_channel_end");
    if (channel->pool->fork_generation != fork_generation()) return fail_forked();
    with_ring(channel, [](const auto &ring) { ring.close(); });
    call_all(channel);
    return 0;
}

extern "C" int numacre_channel_remove(numacre_pool *pool, const char *name) {
    if (pool == nullptr) return no_pool("numacre_channel_remove");
    if (pool->fork_generation != fork_generation()) return fail_forked();
    if (const int error = check_name(name)) return error;
    if (is_private(pool)) return remove_private_channel(pool, name);
    wire::ChannelReply reply;
    return ask(pool, name, wire::ChannelRequest::Wish::remove, {}, reply);
}

extern "C" int numacre_send(numacre_channel *channel, void *const *blocks, unsigned count) {
    if (const int error = check_send(channel, blocks, count)) return error;
    return send(channel, blocks, count);
}

extern "C" int numacre_send_wait(numacre_channel *channel, void *const *blocks, unsigned count, unsigned timeout_ms) {
    if (const int error = check_send(channel, blocks, count)) return error;
    if (channel->broadcast) return send(channel, blocks, count);
    return wait_for(
        on_room(channel), timeout_ms, "room", [&] { return send(channel, blocks, count); },
        [&] {
            return has_room(channel, count) || is_closed(channel) || have_all_gone(channel, PartyOwner::kReceives);
        });
}

extern "C" int numacre_send_over(numacre_channel *channel, void *const *blocks, unsigned count, unsigned *dropped) {
    if (dropped != nullptr) *dropped = 0;
    if (const int error = check_send(channel, blocks, count)) return error;
    GivenBlocks given{channel};
    const int error = send(channel, blocks, count, Full::drop_oldest, given);
    if (dropped != nullptr) *dropped = given.count();
    return error;
}

extern "C" int numacre_receive(numacre_channel *channel, void **blocks, unsigned most, unsigned *count,
                               int *redelivered) {
    if (const int error = check_receive(channel, blocks, most, count)) return error;
    return receive(channel, blocks, most, count, redelivered);
}

extern "C" int numacre_receive_wait(numacre_channel *channel, void **blocks, unsigned most, unsigned timeout_ms,
                                    unsigned *count, int *redelivered) {
    if (const int error = check_receive(channel, blocks, most, count)) return error;
    return wait_for(
        on_messages(channel), timeout_ms, "message", [&] { return receive(channel, blocks, most, count, redelivered); },
        [&] { return has_messages(channel) || is_closed(channel) || have_all_gone(channel, PartyOwner::kSends); });
}

extern "C" int numacre_channel_get_info(numacre_channel *channel, numacre_channel_info *info) {
    if (channel == nullptr || info == nullptr) return no_result("numacre_channel_get_info");
    if (channel->pool->fork_generation != fork_generation()) return fail_forked();
    const std::size_t size = info->struct_size;
    if (!is_struct_size(size))
        return fail_with_remedy(Errc::bad_argument,
                                "numacre_channel_info.struct_size is %zu: set it to sizeof(numacre_channel_info)",
                                size);
    numacre_channel_info now{};
    now.struct_size = size;
    now.capacity = channel->shape.capacity;
    now.burst = channel->shape.burst;
    now.parties = channel->shape.parties;
    now.is_broadcast = channel->broadcast ? 1 : 0;
    with_ring(channel, [&now](const auto &ring) {
        now.waiting = ring.fill();
        for (std::uint32_t party = 1; party <= ring.view().shape.parties; ++party)
            add_party(ring.view().party(party), now);
    });
    now.has_ended = is_closed(channel) ? 1 : 0;
    std::memset(info, 0, size);
    std::memcpy(info, &now, std::min(size, sizeof now));
    return 0;
}
