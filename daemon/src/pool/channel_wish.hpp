// A channel as a client wants it.
#pragma once

#include <string>

#include "engine.hpp"
#include "numacre/shm/channel/layout.hpp"

namespace numacre::daemon {

struct ChannelWish {
    std::string name;
    ChannelShape shape;  // 0: any, or the default
    bool must_exist = false;
    bool stays = false;
};

}  // namespace numacre::daemon
