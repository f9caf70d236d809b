// The cost of a pair of allocation and free, and the longest single call, in a client of a pool that is perhaps being
// resized meanwhile (resize_figures.py does that). A call is timed by the CPU time of its thread: time in which the
// kernel ran another thread does not count, interrupts of the CPU do. So the steps `nothing` are timed as well: their
// longest "call" is the kernel's and the clock's own.
//
// usage: pause_bench MILLISECONDS      on a live daemon: $NUMACRE_RUNTIME_DIR. Prints one JSON object.
#include <time.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "numacre/numacre.h"

namespace {

constexpr std::size_t kFrame = 4096;
constexpr unsigned kBurst = 1000;
constexpr std::uint64_t kLong = 30'000;  // ns

std::uint64_t now(clockid_t clock) {
    timespec time{};
    clock_gettime(clock, &time);
    return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(time.tv_nsec);
}

[[noreturn]] void give_up(const char *what) {
    std::fprintf(stderr, "pause_bench: %s: %s\n", what, numacre_last_error());
    std::exit(1);
}

// Each way of calling: steps(timed) does some pairs, returns their number, and calls timed(call) for each call.
struct Pairs {
    numacre_pool *pool;
    std::size_t bytes;
    bool cached;
    template <class Timed>
    unsigned operator()(const Timed &timed) const {
        void *block = nullptr;
        if (cached) {
            timed([&] {
                if (numacre_alloc(pool, bytes, &block) != 0) give_up("numacre_alloc");
            });
            timed([&] {
                if (numacre_free(pool, block) != 0) give_up("numacre_free");
            });
        } else {
            timed([&] {
                if (numacre_alloc_on(pool, -1, bytes, NUMACRE_UNCACHED, &block) != 0) give_up("numacre_alloc_on");
            });
            timed([&] {
                if (numacre_free_uncached(pool, block) != 0) give_up("numacre_free_uncached");
            });
        }
        return 1;
    }
};

// The thread's cache is full half of the time.
struct Bursts {
    numacre_pool *pool;
    template <class Timed>
    unsigned operator()(const Timed &timed) const {
        static std::array<void *, kBurst> blocks;
        for (void *&block : blocks)
            timed([&] {
                if (numacre_alloc(pool, kFrame, &block) != 0) give_up("numacre_alloc");
            });
        for (void *const block : blocks)
            timed([&] {
                if (numacre_free(pool, block) != 0) give_up("numacre_free");
            });
        return kBurst;
    }
};

struct Nothing {
    template <class Timed>
    unsigned operator()(const Timed &timed) const {
        timed([] { asm volatile("" ::: "memory"); });
        timed([] { asm volatile("" ::: "memory"); });
        return 1;
    }
};

template <class Steps>
nlohmann::json measure(const char *name, const Steps &steps, std::uint64_t ns) {
    std::uint64_t pairs = 0;
    const std::uint64_t cpu = now(CLOCK_THREAD_CPUTIME_ID);
    const std::uint64_t wall = now(CLOCK_MONOTONIC);
    std::uint64_t wall_ns = 0;
    do
        for (int i = 0; i < 64; ++i) pairs += steps([](const auto &call) { call(); });
    while ((wall_ns = now(CLOCK_MONOTONIC) - wall) < ns);
    const std::uint64_t cpu_ns = now(CLOCK_THREAD_CPUTIME_ID) - cpu;

    std::uint64_t longest = 0, calls = 0, long_calls = 0;
    const auto timed = [&](const auto &call) {
        const std::uint64_t begin = now(CLOCK_THREAD_CPUTIME_ID);
        call();
        const std::uint64_t took = now(CLOCK_THREAD_CPUTIME_ID) - begin;
        longest = std::max(longest, took);
        if (took > kLong) ++long_calls;
        ++calls;
    };
    const std::uint64_t timed_from = now(CLOCK_THREAD_CPUTIME_ID);
    for (const std::uint64_t begin = now(CLOCK_MONOTONIC); now(CLOCK_MONOTONIC) - begin < ns;) (void)steps(timed);
    const std::uint64_t timed_ns = now(CLOCK_THREAD_CPUTIME_ID) - timed_from;
    return {{"steps", name},
            {"cpu_ns_per_pair", static_cast<double>(cpu_ns) / static_cast<double>(pairs)},
            {"wall_ns_per_pair", static_cast<double>(wall_ns) / static_cast<double>(pairs)},
            {"timed_calls", calls},
            {"longest_call_us", static_cast<double>(longest) / 1000},
            {"long_calls_per_second", static_cast<double>(long_calls) * 1e9 / static_cast<double>(timed_ns)}};
}

}  // namespace

int main(int argc, char **argv) {
    const std::uint64_t ns = argc == 2 ? std::strtoull(argv[1], nullptr, 10) * 1'000'000 : 0;
    if (ns == 0) {
        std::fputs("usage: pause_bench MILLISECONDS\n", stderr);
        return 2;
    }
    numacre_pool *pool = nullptr;
    if (numacre_attach(nullptr, nullptr, &pool) != 0) give_up("numacre_attach");
    nlohmann::json all = nlohmann::json::array();
    all.push_back(measure("nothing", Nothing{}, ns));
    all.push_back(measure("4K", Pairs{pool, kFrame, true}, ns));
    all.push_back(measure("4K, bursts of 1000", Bursts{pool}, ns));
    all.push_back(measure("4K, uncached", Pairs{pool, kFrame, false}, ns));
    all.push_back(measure("512K", Pairs{pool, std::size_t{512} << 10, true}, ns));
    std::puts(all.dump().c_str());
    numacre_detach(pool);
}
