// How long threads have not used their caches. A thread that is idle needs no cache, and others may need its blocks.
// Not thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine.hpp"
#include "memory/node_memory.hpp"

namespace numacre::daemon {

class CacheAges {
public:
    static constexpr unsigned kLooksUntilOld = 5;  // one a second

    // Compares the tallies of all threads with those of the last look. True: a thread has made no call for so many
    // looks, and this is the first look that says so: its cached blocks are to be taken back.
    bool look(const SharedPool &pool, std::span<const View> numa_nodes);

private:
    struct Use {
        std::uint64_t calls = 0;
        unsigned looks = 0;  // since the last call; kLooksUntilOld + 1: told already
    };
    std::vector<Use> uses_;  // by thread slot
};

}  // namespace numacre::daemon
