// Concept: quotas and events. Allocations beyond a quota fail at once; a descriptor in poll() tells that a soft quota
// was crossed, so that the program can give memory back.
//
// Build:  c++ -std=c++20 quotas_and_events.cpp $(pkg-config --cflags --libs numacre) -o quotas_and_events
// Run:    numacre quota --user $(id -un) 8M --soft 4M      # lift it afterwards: numacre quota --user $(id -un) none
//         ./quotas_and_events [POOL]
// Prints (numbers vary):
//     client 1 listens for events
//     8 blocks of 1 MiB, then a quota is reached
//     event: above a soft quota
//     freed 6 blocks, and an allocation succeeds again
//
// The library enforces the quota (EDQUOT). The daemon checks soft quotas every few seconds, so the event comes late.
// The daemon reports a soft quota again only after a check has found at most 7/8 of the quota in use: wait 10 s between
// two runs.
#include <poll.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <numacre/numacre.hpp>
#include <utility>
#include <vector>

namespace {

constexpr std::size_t kBlockBytes = std::size_t{1} << 20;

int failed(const char *what, const numacre::Error &error) {
    std::fprintf(stderr, "quotas_and_events: %s: %s\n", what, error.message.c_str());
    return 1;
}

// True: one of `wanted` has happened. False: none within the timeout.
bool wait_for_event(numacre::Pool &pool, int event_fd, std::uint32_t wanted, std::chrono::seconds timeout) {
    const auto end = std::chrono::steady_clock::now() + timeout;
    for (;;) {
        // The descriptor is readable at first, and may be readable without a new event: look, then poll again.
        if ((pool.events() & wanted) != 0) return true;
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
        if (left.count() <= 0) return false;
        // A real program has its sockets in the same array.
        pollfd descriptors[] = {{event_fd, POLLIN, 0}};
        if (poll(descriptors, 1, static_cast<int>(left.count())) < 0 && errno != EINTR) {
            std::fprintf(stderr, "quotas_and_events: poll: %s\n", std::strerror(errno));
            return false;
        }
    }
}

}  // namespace

int main(int argc, char **argv) {
    auto pool = numacre::Pool::attach(argc > 1 ? argv[1] : "default");
    if (!pool) return failed("attach", pool.error());

    // The pool closes the descriptor. Only numacre_events (here: Pool::events) may read from it.
    const auto event_fd = pool->event_fd();
    if (!event_fd) return failed("event_fd", event_fd.error());
    std::printf("client %u listens for events\n", static_cast<unsigned>(pool->client_id()));

    std::vector<numacre::Block> blocks;  // after the pool: blocks must not outlive it
    for (;;) {
        auto block = pool->allocate(kBlockBytes);
        if (block) {
            blocks.push_back(std::move(*block));
            continue;
        }
        // Errc::out_of_frames: the pool is full. NUMACRE_WAIT waits for room in a full pool, never at a quota.
        if (block.error().code != numacre::Errc::over_quota) return failed("no quota was reached", block.error());
        std::printf("%zu blocks of 1 MiB, then a quota is reached\n", blocks.size());
        break;
    }

    if (!wait_for_event(*pool, *event_fd, NUMACRE_EVENT_SOFT_QUOTA, std::chrono::seconds(30))) {
        std::fprintf(stderr,
                     "quotas_and_events: no event within 30 s: set a soft quota (numacre quota ... --soft),"
                     " or wait 10 s after a run before\n");
        return 1;
    }
    std::printf("event: above a soft quota\n");

    const std::size_t keep = blocks.size() / 4;
    std::printf("freed %zu blocks", blocks.size() - keep);
    blocks.resize(keep);  // a block frees itself
    const auto block = pool->allocate(kBlockBytes);
    if (!block) return failed("after freeing", block.error());
    std::printf(", and an allocation succeeds again\n");
}
