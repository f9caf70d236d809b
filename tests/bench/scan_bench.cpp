// How long one look at a whole pool takes (what a scrape does), at 1 GiB and 64 GiB of online 4 KiB frames, and what it
// costs a client that allocates meanwhile. Prints figures; asserts nothing about time. The metadata is real, frames are
// not needed.
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <random>
#include <thread>
#include <vector>

#include "support/shm_pool.hpp"

namespace numacre {

using namespace engine;
namespace {

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point begin) {
    return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

// Of this thread: what a scan costs, whoever else wants the machine.
double cpu_milliseconds() {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) / 1e6;
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

double scan_once(const test::ShmPool &pool) {
    std::vector<OwnerUsage> usage(test::ShmPool::kProcesses);
    NodeSnapshot snapshot;
    const double begin = cpu_milliseconds();
    scan_node<ProductionEnv>(pool.node, snapshot, usage);
    const double took = cpu_milliseconds() - begin;
    if (snapshot.free_frames + snapshot.used_frames != pool.geometry.frame_count) std::abort();
    return took;
}

void print_scans(const char *what, const test::ShmPool &pool) {
    std::vector<double> took;
    for (int i = 0; i < 5; ++i) took.push_back(scan_once(pool));
    std::printf("  scan, %-24s %9.3f ms of CPU (median of 5, %.3f .. %.3f)\n", what, median(took),
                *std::min_element(took.begin(), took.end()), *std::max_element(took.begin(), took.end()));
}

// Pairs of allocate and free a millisecond of the client's CPU, for about that long.
double client_rate(test::ShmPool &pool, Actor actor, double milliseconds) {
    Buddy<ProductionEnv> buddy{pool.node, pool.view};
    std::uint64_t pairs = 0;
    const auto begin = Clock::now();
    const double cpu_begin = cpu_milliseconds();
    do {
        for (int i = 0; i < 1000; ++i, ++pairs) {
            Block block;
            if (buddy.allocate(actor, Order{0}, {}, block) != Errc::ok) std::abort();
            Block freed;
            if (buddy.free(actor, block.base, freed) != Errc::ok) std::abort();
        }
    } while (milliseconds_since(begin) < milliseconds);
    return static_cast<double>(pairs) / (cpu_milliseconds() - cpu_begin);
}

void measure(std::uint64_t gibibytes) {
    std::printf("%llu GiB online, 4 KiB frames, largest block 4 MiB\n", static_cast<unsigned long long>(gibibytes));
    test::ShmPool pool{4096, 4 << 20, gibibytes * 256};
    pool.online_all();
    const Actor actor = pool.actor(1, 1);
    const Actor client = pool.actor(2, 2);
    Buddy<ProductionEnv> buddy{pool.node, pool.view};
    print_scans("empty", pool);
    std::mt19937_64 random{1};
    std::vector<Block> blocks;
    Block block;
    while (blocks.size() < pool.geometry.frame_count / 2 && buddy.allocate(actor, Order{0}, {}, block) == Errc::ok)
        blocks.push_back(block);
    std::vector<Block> kept;
    for (const Block held : blocks) {
        Block freed;
        if (random() % 2 == 0)
            kept.push_back(held);
        else if (buddy.free(actor, held.base, freed) != Errc::ok)
            std::abort();
    }
    print_scans("1/4 full, random 4 KiB", pool);
    while (pool.geometry.frame_count - kept.size() > 64 && buddy.allocate(actor, Order{0}, {}, block) == Errc::ok)
        kept.push_back(block);
    print_scans("full of 4 KiB blocks", pool);

    // One scan a second, as a scraper would; interleaved halves, so that the machine's mood hits both alike.
    std::vector<double> ratios;
    for (int round = 0; round < 5; ++round) {
        const double alone = client_rate(pool, client, 1000);
        std::atomic<bool> stop{false};
        std::thread scraper([&] {
            while (!stop) {
                (void)scan_once(pool);
                for (int i = 0; i < 100 && !stop; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
            }
        });
        const double beside = client_rate(pool, client, 1000);
        stop = true;
        scraper.join();
        ratios.push_back(beside / alone);
    }
    std::printf("  client's rate beside one scan a second / alone: %.3f (median of 5, %.3f .. %.3f)\n", median(ratios),
                *std::min_element(ratios.begin(), ratios.end()), *std::max_element(ratios.begin(), ratios.end()));
}

}  // namespace
}  // namespace numacre

int main() {
    numacre::measure(1);
    numacre::measure(64);
}
