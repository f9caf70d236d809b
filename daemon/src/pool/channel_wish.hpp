// A channel as a client wants it.
#pragma once

#include <cstdint>
#include <string>

namespace numacre::daemon {

struct ChannelWish {
    std::string name;
    std::uint32_t capacity = 0, burst = 0, parties = 0;  // 0: any, or the default
    bool must_exist = false;
    bool stays = false;
};

}  // namespace numacre::daemon
