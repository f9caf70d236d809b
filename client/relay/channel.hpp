// The numacre channel between the two sides. Packets on their way are the channel's, so the end of a side loses none:
// what is left stays in the channel until somebody reads it.
//
// One channel carries one stream. The capture ends the stream at its own end. So a reader learns three things from its
// receive: -EAGAIN, nothing now; -ESHUTDOWN, that was all; -EPIPE, the capture died in the middle.
#pragma once

#include <numacre/numacre.h>

#include <cstdint>
#include <memory>

#include "options.hpp"

namespace relay {

struct CloseChannel {
    void operator()(numacre_channel *channel) const { numacre_channel_close(channel); }
};
using Channel = std::unique_ptr<numacre_channel, CloseChannel>;

// Opens options.channel for one side: NUMACRE_CHANNEL_SENDS or NUMACRE_CHANNEL_RECEIVES. Throws if somebody else is
// that side, or a stream that has ended is still there to be read where a new one is to begin. Both may pass by: it
// waits 2 s first. (A process that was killed has the channel open until the daemon has noticed.)
Channel open_channel(numacre_pool *pool, const Options &options, std::uint32_t side);

numacre_channel_info info_of(numacre_channel *channel);

}  // namespace relay
