// Channels (shm/channel/): the calls of a program. The daemon makes and removes channels; here are the handle, the
// calls on it and the waits. Those of a private pool: private_channels.cpp.
#include <sys/mman.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <new>

#include "channel.hpp"
#include "connect.hpp"
#include "engine.hpp"
#include "errors.hpp"
#include "numacre/os/kernel.hpp"
#include "numacre/shm/channel/bells.hpp"
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
// The one who was to wake a sleeper may have been stopped or have died on the way.
constexpr std::uint64_t kSleeperLooksAgainAfterNanoseconds = 1'000'000'000;

using ChannelSleepers = Sleepers<Env>;

}  // namespace
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
    constexpr unsigned kFlags =
        NUMACRE_CHANNEL_SENDS | NUMACRE_CHANNEL_RECEIVES | NUMACRE_CHANNEL_EXISTING | NUMACRE_CHANNEL_STAYS;
    if ((options.flags & ~kFlags) != 0)
        return fail_with_remedy(Errc::bad_argument,
                                "numacre_channel_options.flags is %#x: use NUMACRE_CHANNEL_... or 0", options.flags);
    if (!wish_of(options).is_within_limits())
        return fail_with_remedy(
            Errc::bad_argument, "a channel of capacity %u, burst %u, parties %u: use at most %u, %u and %u",
            options.capacity, options.burst, options.parties, kChannelCapacityMost, kBurstMost, kPartiesMost);
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
    const NotCancelled not_cancelled;
    return ask_daemon(pool->runtime_dir, &request, sizeof request, wire::MessageType::channel_reply, &reply,
                      sizeof reply, nullptr, kChannelSeconds);
}

int open_at_daemon(numacre_pool *pool, const char *name, const numacre_channel_options &options, ChannelPlace &found) {
    wire::ChannelReply reply;
    if (const int error = ask(pool, name, wire::ChannelRequest::Wish::open, options, reply)) return error;
    found = {reply.offset, {reply.capacity, reply.burst, reply.parties}, ProcessSlot{reply.process_slot}};
    // A daemon that errs must not make us touch other memory.
    if (!found.shape.is_plausible() || found.offset % kChannelStep != 0 || found.offset > kChannelAreaBytes ||
        ChannelLayout<Env>::of(found.shape).bytes > kChannelAreaBytes - found.offset ||
        found.seat.value >= pool->view.process_slots)
        return fail(Errc::version_mismatch, "the daemon's channel does not fit into the pool's region");
    return 0;
}

bool is_private(const numacre_pool *pool) {
    return pool->runtime_dir[0] == 0;
}

void give_back(numacre_pool *pool, const char *name) {
    if (is_private(pool)) return close_private_channel(pool, name);
    wire::ChannelReply reply;
    // Without a daemon: the next one finds the channel open until this client's seat ends.
    (void)ask(pool, name, wire::ChannelRequest::Wish::close, {}, reply);
}

// --- waiting ---------------------------------------------------------------------------------------------------------

void wake_all(std::atomic<std::uint32_t> &signal) {
    os::futex_wake(reinterpret_cast<std::uint32_t *>(&signal), INT_MAX);
}
void wake_if_asleep(ChannelSleepers sleepers) {
    if (sleepers.must_wake()) [[unlikely]]
        wake_all(sleepers.signal());
}
ChannelSleepers on_messages(numacre_channel *channel) {
    return ChannelSleepers::on_messages(*channel->channel.view().header);
}
ChannelSleepers on_room(numacre_channel *channel) {
    return ChannelSleepers::on_room(*channel->channel.view().header);
}
// After a change of the ring.
void ring_watchers(numacre_channel *channel, std::uint64_t what) {
    if (Bells<Env>{channel->channel.view()}.has_watchers(what) || channel->bells.asking != 0) [[unlikely]]
        ring_bells(channel, what);
}
void ring_what_is_owed(numacre_channel *channel) {
    if (channel->bells.owed != 0) [[unlikely]]
        ring_owed(channel);
}
// The state of the channel has changed, and both sides look at it.
void call_all(numacre_channel *channel) {
    ring_watchers(channel, ArmedWord::kMessages);
    ring_watchers(channel, ArmedWord::kRoom);
    for (ChannelSleepers sleepers : {on_messages(channel), on_room(channel)}) {
        sleepers.call();
        wake_all(sleepers.signal());
    }
}

// Calls try_once() until it gives another answer than -EAGAIN, or the time is over. is_worth_it(): whether it would be
// another one now.
template <class Try, class IsWorthIt>
int wait_for(ChannelSleepers sleepers, unsigned timeout_ms, const char *what, const Try &try_once,
             const IsWorthIt &is_worth_it) {
    const std::uint64_t begin = now_nanoseconds();
    const std::uint64_t patience = std::uint64_t{timeout_ms} * 1'000'000;
    for (;;) {
        const int error = try_once();
        if (error != -EAGAIN) return error;
        const std::uint64_t waited = now_nanoseconds() - begin;
        if (timeout_ms != 0 && waited >= patience)
            return fail(Errc::timed_out, "no %s in the channel within %u ms", what, timeout_ms);
        const std::uint32_t signal = sleepers.announce();
        if (is_worth_it()) continue;
        const std::uint64_t nap = timeout_ms == 0 ? kSleeperLooksAgainAfterNanoseconds
                                                  : std::min(patience - waited, kSleeperLooksAgainAfterNanoseconds);
        const timespec duration{static_cast<time_t>(nap / 1'000'000'000), static_cast<long>(nap % 1'000'000'000)};
        (void)os::futex_wait(reinterpret_cast<std::uint32_t *>(&sleepers.signal()), signal, &duration);
    }
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

int fail_scribbled() {
    return fail(Errc::corrupt, "the channel's memory is damaged: its words are not those of a channel");
}

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

int send_once(numacre_channel *channel, void *const *blocks, unsigned count) {
    numacre_pool *const pool = channel->pool;
    ring_what_is_owed(channel);
    BlockPlace places[kBurstMost];
    for (unsigned next = 0; next < count; ++next) {
        Place place{};
        if (!locate(pool, blocks[next], place)) return not_owned(pool, blocks[next], "numacre_send");
        places[next] = {NumaNode{static_cast<std::uint8_t>(place.numa_node)}, place.frame};
    }
    const PoolAge since = Attention::age(pool->view.header->attention.load(std::memory_order_relaxed));
    for (;;) {
        unsigned refused = 0;
        const SendResult result =
            channel->channel.send(channel->party, Actor{{}, pool->process}, places, count, since, refused);
        switch (result) {
            case SendResult::sent:
                wake_if_asleep(on_messages(channel));
                ring_watchers(channel, ArmedWord::kMessages);
                return 0;
            case SendResult::published:
                if (!withdraw(pool, blocks[refused])) return fail_refused_block(channel, blocks, refused);
                continue;
            case SendResult::full:
                if (channel->channel.have_all_gone(PartyOwner::kReceives))
                    return fail(Errc::peers_gone, "the channel is full, and all of its receivers have gone");
                return fail_often(Errc::contended, "the channel has no room for so many blocks now");
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

[[gnu::cold, gnu::noinline]] int send_counted(numacre_channel *channel, void *const *blocks, unsigned count) {
    numacre_pool *const pool = channel->pool;
    int error = 0;
    const Lane *const lane = lane_of(pool, error);
    if (lane == nullptr) return error;
    count_what_is_held(pool);
    const std::uint64_t frames = frames_of(pool, blocks, count);
    const CountedMove counted{channel, *lane, frames, pool->process};
    error = send_once(channel, blocks, count);
    if (error == 0) counted.done(pool->process, generation_of(pool->view, pool->process), channel->seat, frames);
    return error;
}

int check_send(numacre_channel *channel, void *const *blocks, unsigned count) {
    if (channel == nullptr) return no_result("numacre_send");
    if (channel->pool->fork_generation != fork_generation()) return fail_forked();
    const std::uint32_t most = channel->channel.view().shape.burst;
    if (blocks == nullptr || count == 0 || count > most)
        return fail_with_remedy(Errc::bad_argument, "%u blocks in one send: send 1 to %u, the channel's burst", count,
                                most);
    return 0;
}

int send(numacre_channel *channel, void *const *blocks, unsigned count) {
    return is_counting(channel->pool) ? send_counted(channel, blocks, count) : send_once(channel, blocks, count);
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
        const auto received = channel->channel.receive(channel->party, Actor{{}, pool->process}, most, since,
                                                       [&](unsigned next, NumaNode numa_node, Block block) {
                                                           blocks[next] = address_of(pool, numa_node.value, block);
                                                           frames += block.order.frames();
                                                       });
        if (received.result == ReceiveResult::received) {
            *count = received.count;
            if (redelivered != nullptr) *redelivered = received.is_redelivered ? 1 : 0;
            wake_if_asleep(on_room(channel));
            ring_watchers(channel, ArmedWord::kRoom);
            return 0;
        }
        if (received.result == ReceiveResult::scribbled) return fail_scribbled();
        const bool has_ended = channel->channel.is_closed();
        const bool have_gone = channel->channel.have_all_gone(PartyOwner::kSends);
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
    auto *const handle = new (memory) numacre_channel{
        pool, PoolChannel{view_of(pool, found), found.seat, ChannelNodes{pool}}, kDaemonParty, found.seat, {}, {}};
    std::memcpy(handle->name, name, strlen(name) + 1);
    const bool sends = (wanted.flags & NUMACRE_CHANNEL_SENDS) != 0;
    const bool receives = (wanted.flags & NUMACRE_CHANNEL_RECEIVES) != 0;
    const std::uint64_t roles =
        (sends || !receives ? PartyOwner::kSends : 0) | (receives || !sends ? PartyOwner::kReceives : 0);
    handle->party = handle->channel.join(pool->process, roles);
    if (handle->party == kDaemonParty) {
        os::munmap(memory, sizeof(numacre_channel));
        give_back(pool, name);
        return fail_with_remedy(Errc::too_many_clients,
                                "the channel \"%s\" has its %u parties: close one, or make it with more", name,
                                found.shape.parties);
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
        Bells<Env>{channel->channel.view()}.remove(channel->party);
        channel->channel.leave(channel->party);
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
    channel->channel.close();
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
    return wait_for(
        on_room(channel), timeout_ms, "room", [&] { return send(channel, blocks, count); },
        [&] {
            return channel->channel.has_room(count) || channel->channel.is_closed() ||
                   channel->channel.have_all_gone(PartyOwner::kReceives);
        });
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
        [&] {
            return channel->channel.has_messages() || channel->channel.is_closed() ||
                   channel->channel.have_all_gone(PartyOwner::kSends);
        });
}

extern "C" int numacre_channel_get_info(numacre_channel *channel, numacre_channel_info *info) {
    if (channel == nullptr || info == nullptr) return no_result("numacre_channel_get_info");
    if (channel->pool->fork_generation != fork_generation()) return fail_forked();
    const std::size_t size = info->struct_size;
    if (!is_struct_size(size))
        return fail_with_remedy(Errc::bad_argument,
                                "numacre_channel_info.struct_size is %zu: set it to sizeof(numacre_channel_info)",
                                size);
    const ChannelView<Env> &view = channel->channel.view();
    numacre_channel_info now{};
    now.struct_size = size;
    now.capacity = view.shape.capacity;
    now.burst = view.shape.burst;
    now.parties = view.shape.parties;
    now.waiting = channel->channel.fill();
    for (std::uint32_t party = 1; party <= view.shape.parties; ++party) {
        const PartySlot<Env> &slot = view.parties[party];
        // relaxed: each is one word by itself.
        const PartyOwner owner{slot.owner.load(std::memory_order_relaxed)};
        now.senders += owner.sends() ? 1 : 0;
        now.receivers += owner.receives() ? 1 : 0;
        now.sent += slot.sent.load(std::memory_order_relaxed);
        now.received += slot.received.load(std::memory_order_relaxed);
        now.redelivered += slot.redelivered.load(std::memory_order_relaxed);
    }
    now.has_ended = channel->channel.is_closed() ? 1 : 0;
    std::memset(info, 0, size);
    std::memcpy(info, &now, std::min(size, sizeof now));
    return 0;
}
