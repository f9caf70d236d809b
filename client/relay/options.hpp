// The options of the command line, and the code that both sides use at their begin and end.
#pragma once

#include <numacre/numacre.h>
#include <sched.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#include "process.hpp"

namespace relay {

struct Options {
    std::string pool = "default";
    std::string runtime_dir;  // empty: the library's default
    std::string channel = "relay";
    std::uint32_t capacity = 0;  // packets on their way; 0: as the channel is, 1024 in a new one
    bool json = false;
    // capture
    std::string pcap;  // empty: live
    std::string interface = "lo";
    std::uint64_t loops = 1;          // number of replays of the file
    std::uint64_t packets_max = 0;    // 0: no limit
    double seconds_max = 0;           // 0: no limit
    bool af_xdp = false;              // live: by AF_XDP instead of AF_PACKET
    std::uint32_t queue = 0;          // of the interface, for AF_XDP
    std::uint32_t snap_bytes = 2032;  // live: bytes captured of each packet; with the header a block of 2 KiB
    // flows
    std::uint64_t flows_max = 1 << 20;
    std::uint32_t top = 5;
};

// Exit codes.
inline constexpr int kDone = 0, kFailed = 1, kPeerLost = 3;

struct DetachPool {
    void operator()(numacre_pool *pool) const { numacre_detach(pool); }
};
using Pool = std::unique_ptr<numacre_pool, DetachPool>;

inline Pool attach(const Options &options) {
    numacre_pool *pool = nullptr;
    const char *const runtime_dir = options.runtime_dir.empty() ? nullptr : options.runtime_dir.c_str();
    if (numacre_attach(runtime_dir, options.pool.c_str(), &pool) != 0)
        throw std::runtime_error("cannot attach to pool '" + options.pool + "': " + numacre_last_error());
    return Pool(pool);
}

// The number of looks before a side goes to sleep: some ten microseconds. On one CPU the result is 0, since looking
// only keeps the other side from working.
inline unsigned spins_before_sleep() {
    cpu_set_t cpus;
    return sched_getaffinity(0, sizeof cpus, &cpus) == 0 && CPU_COUNT(&cpus) == 1 ? 0 : 300;
}

inline void pause_cpu() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// The longest sleep: a signal that came just before the sleep, or a time limit, is noticed at most this much later.
inline constexpr int kSleepMs = 100;

// Each function runs one side to its report. Returns an exit code.
int run_capture(const Options &options);
// capture_process: a pidfd, if only this process is to send. When it ends without having sent, nobody is awaited.
int run_flows(const Options &options, const Fd &capture_process = {});

}  // namespace relay
