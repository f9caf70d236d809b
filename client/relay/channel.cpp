#include "channel.hpp"

#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

namespace relay {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kPatience = std::chrono::seconds(2);
constexpr auto kPause = std::chrono::milliseconds(20);

}  // namespace

Channel open_channel(numacre_pool *pool, const Options &options, std::uint32_t side) {
    const bool sends = side == NUMACRE_CHANNEL_SENDS;
    const auto give_up = Clock::now() + kPatience;
    for (;;) {
        numacre_channel_options wanted{};
        wanted.struct_size = sizeof wanted;
        wanted.capacity = options.capacity;
        wanted.flags = side;
        numacre_channel *opened = nullptr;
        if (numacre_channel_open(pool, options.channel.c_str(), &wanted, &opened) != 0)
            throw std::runtime_error("cannot open channel '" + options.channel + "': " + numacre_last_error());
        Channel channel(opened);
        const numacre_channel_info info = info_of(opened);
        const bool alone = (sends ? info.senders : info.receivers) == 1;
        const bool is_over = sends && info.has_ended != 0;
        if (alone && !is_over) return channel;
        if (stop_requested() || Clock::now() >= give_up)
            throw std::runtime_error(
                "channel '" + options.channel + "' " +
                (!alone ? std::string("is in use by another `relay ") + (sends ? "capture" : "flows") + "`: "
                        : "still has " + std::to_string(info.waiting) +
                              " packets of a capture that has ended: `relay flows` reads them; or ") +
                "give this one its own --channel");
        channel.reset();
        std::this_thread::sleep_for(kPause);
    }
}

numacre_channel_info info_of(numacre_channel *channel) {
    numacre_channel_info info{};
    info.struct_size = sizeof info;
    if (numacre_channel_get_info(channel, &info) != 0)
        throw std::runtime_error(std::string("cannot ask for the channel's state: ") + numacre_last_error());
    return info;
}

}  // namespace relay
