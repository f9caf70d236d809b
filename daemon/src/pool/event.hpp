// What has happened to a pool, for those who watch.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace numacre::daemon {

struct Event {
    std::chrono::system_clock::time_point time;
    std::string pool, kind, message;
    std::uint32_t client_id = 0, node = 0;
    std::uint64_t bytes = 0;
    std::optional<std::uint32_t> uid;  // whose clients it concerns
};

}  // namespace numacre::daemon
