// The calls of a reader of a broadcast channel.
#include "broadcast.hpp"

#include <cstdint>
#include <utility>

#include "channel.hpp"
#include "channel_waits.hpp"
#include "engine.hpp"
#include "errors.hpp"
#include "place.hpp"
#include "pool.hpp"
#include "report.hpp"

using namespace numacre;
using namespace numacre::client;

namespace {

int check_reader(numacre_channel *channel, const char *call) {
    if (channel == nullptr) return no_result(call);
    if (channel->pool->fork_generation != fork_generation()) return fail_forked();
    if (channel->broadcast) return 0;
    return fail_with_remedy(Errc::bad_argument,
                            "channel \"%s\" is a queue, whose blocks are received: use numacre_receive(), or open it "
                            "with NUMACRE_CHANNEL_BROADCAST under another name",
                            channel->name);
}

int check_read(numacre_channel *channel, const void **blocks, unsigned most, const unsigned *count) {
    if (blocks == nullptr || count == nullptr) return no_result("numacre_channel_read");
    if (const int error = check_reader(channel, "numacre_channel_read")) return error;
    // Writers look at the claims of readers only.
    if (!channel->receives)
        return fail_with_remedy(Errc::bad_argument,
                                "the handle of channel \"%s\" only sends: open another one with "
                                "NUMACRE_CHANNEL_RECEIVES to read",
                                channel->name);
    if (most == 0) return fail_with_remedy(Errc::bad_argument, "0 blocks are to be read: ask for 1 or more");
    // Without a thread slot, blocks that come to this process could not be freed.
    int error = 0;
    return lane_of(channel->pool, error) == nullptr ? error : 0;
}

int fail_unread(numacre_channel *channel, ReadResult result) {
    if (result == ReadResult::scribbled) return fail_scribbled();
    if (result == ReadResult::overtaken)
        return fail_often(Errc::contended, "writers were faster than the reader again and again: read again");
    const bool has_ended = is_closed(channel);
    const bool have_gone = have_all_gone(channel, PartyOwner::kSends);
    // The last message may have been sent between the two looks.
    if ((!has_ended && !have_gone) || has_messages(channel))
        return fail_often(Errc::contended, "the channel has nothing new");
    return has_ended ? fail(Errc::end_of_stream, "the stream of channel \"%s\" has ended", channel->name)
                     : fail(Errc::peers_gone, "the channel has nothing new, and all of its senders have gone");
}

int read(numacre_channel *channel, const void **blocks, unsigned most, unsigned *count, std::uint64_t *overtaken) {
    ring_what_is_owed(channel);
    PoolBroadcast::Read read;
    drop_what_is_read(channel, [&](const Heir &self, const auto &give) {
        const auto see = [&](unsigned next, NumaNode numa_node, Block block) {
            blocks[next] = address_of(channel->pool, numa_node.value, block);
        };
        read = channel->broadcast->read(self, most, see, give);
    });
    if (read.result != ReadResult::read) return fail_unread(channel, read.result);
    *count = read.count;
    if (overtaken != nullptr) *overtaken = read.lost;
    return 0;
}

}  // namespace

extern "C" int numacre_channel_read(numacre_channel *channel, const void **blocks, unsigned most, unsigned *count,
                                    uint64_t *overtaken) {
    if (const int error = check_read(channel, blocks, most, count)) return error;
    return read(channel, blocks, most, count, overtaken);
}

extern "C" int numacre_channel_read_wait(numacre_channel *channel, const void **blocks, unsigned most,
                                         unsigned timeout_ms, unsigned *count, uint64_t *overtaken) {
    if (const int error = check_read(channel, blocks, most, count)) return error;
    return wait_for(
        on_messages(channel), timeout_ms, "message", [&] { return read(channel, blocks, most, count, overtaken); },
        [&] { return has_messages(channel) || is_closed(channel) || have_all_gone(channel, PartyOwner::kSends); });
}

extern "C" int numacre_channel_read_end(numacre_channel *channel) {
    if (const int error = check_reader(channel, "numacre_channel_read_end")) return error;
    drop_what_is_read(channel, [channel](const Heir &self, const auto &give) { channel->broadcast->drop(self, give); });
    return 0;
}
