// Rules of all looks at a pool (managed_pool_looks.cpp, managed_pool_channels.cpp): how long they may take, and what an
// age code means.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "base/failure.hpp"
#include "engine.hpp"
#include "numacre/shm/note.hpp"

namespace numacre::daemon {

// A caller that asks about all pools, as a scrape does, has ten seconds altogether.
inline constexpr std::chrono::milliseconds kLookPatience{2000};

// Lower bound of the hold time: the age code is a bucket; its last second is used.
inline std::chrono::seconds held_for(PoolAge since, std::chrono::seconds age_of_pool) {
    const auto age = static_cast<std::uint64_t>(age_of_pool.count());
    return std::chrono::seconds(age > since.last_second() ? age - since.last_second() : 0);
}

inline Failure cannot_be_looked_at(const std::string &pool) {
    return {Errc::timed_out, "pool \"" + pool +
                                 "\" cannot be looked at: the kernel makes the daemon wait for the pool's files; evict "
                                 "the client that keeps them busy"};
}

}  // namespace numacre::daemon
