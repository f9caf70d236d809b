// A client that works at random until it is told to stop (SIGTERM: frees all, exit 0) or killed. Every block that it holds
// carries a stamp that only its owner writes: a stamp that changed means a block owned twice, exit 2. Passes references to
// whoever reads the shared ring file. Not a test by itself: kill_test.py runs many of them.
//
// usage: chaos_client RUNTIME_DIR RING_FILE SEED THREADS
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

#include "numacre/numacre.h"

namespace {

constexpr std::size_t kRingSlots = 64;
constexpr std::size_t kHeldMax = 200;
constexpr std::size_t kStampEvery = 4096;

std::atomic<bool> stop{false};

struct Held {
    void *address;
    std::size_t bytes;
    std::uint64_t stamp;
};

void write_stamps(const Held &held) {
    for (std::size_t at = 0; at < held.bytes; at += kStampEvery)
        *reinterpret_cast<std::uint64_t *>(static_cast<char *>(held.address) + at) = held.stamp + at;
}
void check_stamps(const Held &held) {
    for (std::size_t at = 0; at < held.bytes; at += kStampEvery) {
        const std::uint64_t found = *reinterpret_cast<std::uint64_t *>(static_cast<char *>(held.address) + at);
        if (found == held.stamp + at) continue;
        std::fprintf(stderr, "chaos_client %d: block %p + %zu has stamp %#llx instead of %#llx: owned twice\n", getpid(),
                     held.address, at, static_cast<unsigned long long>(found),
                     static_cast<unsigned long long>(held.stamp + at));
        _exit(2);
    }
}
[[noreturn]] void die(const char *what) {
    std::fprintf(stderr, "chaos_client %d: %s: %s\n", getpid(), what, numacre_last_error());
    _exit(3);
}

void work(numacre_pool *pool, std::atomic<std::uint64_t> *ring, std::uint64_t seed) {
    std::mt19937_64 random{seed};
    std::vector<Held> held;
    while (!stop.load(std::memory_order_relaxed)) {
        const unsigned dice = random() % 100;
        if (dice < 50 && held.size() < kHeldMax) {
            const std::size_t bytes = std::size_t{4096} << (random() % 16 == 0 ? random() % 11 : random() % 4);
            void *block = nullptr;
            const int error = numacre_alloc(pool, bytes, &block);
            if (error == -ENOMEM) continue;
            if (error != 0) die("alloc");
            held.push_back({block, bytes, random()});
            write_stamps(held.back());
        } else if (dice < 90 && !held.empty()) {
            std::swap(held[random() % held.size()], held.back());
            check_stamps(held.back());
            if (numacre_free(pool, held.back().address) != 0) die("free");
            held.pop_back();
        } else if (dice < 95 && !held.empty()) {
            // Give one away: into the ring; what lay there is taken, by whoever comes first, or has gone stale.
            check_stamps(held.back());
            const numacre_ref given = numacre_ref_of(pool, held.back().address);
            if (given == NUMACRE_REF_NULL) die("ref_of");
            ring[random() % kRingSlots].exchange(given, std::memory_order_acq_rel);
            held.pop_back();
        } else {
            const numacre_ref offered = ring[random() % kRingSlots].exchange(0, std::memory_order_acq_rel);
            void *block = nullptr;
            if (offered == 0) continue;
            const int error = numacre_take(pool, offered, &block);
            if (error == -ESTALE) continue;  // its giver died
            if (error != 0) die("take");
            held.push_back({block, numacre_usable_size(pool, block), random()});
            write_stamps(held.back());
        }
    }
    for (const Held &block : held) {
        check_stamps(block);
        if (numacre_free(pool, block.address) != 0) die("free at the end");
    }
}

}  // namespace

int main(int argc, char **argv) {
    if (argc != 5) {
        std::fprintf(stderr, "usage: %s RUNTIME_DIR RING_FILE SEED THREADS\n", argv[0]);
        return 64;
    }
    struct sigaction on_term {};
    on_term.sa_handler = [](int) { stop = true; };
    sigaction(SIGTERM, &on_term, nullptr);
    const int fd = open(argv[2], O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, kRingSlots * sizeof(std::uint64_t)) != 0) die("ring file");
    auto *const ring = static_cast<std::atomic<std::uint64_t> *>(
        mmap(nullptr, kRingSlots * sizeof(std::uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    if (ring == MAP_FAILED) die("ring map");
    numacre_pool *pool = nullptr;
    if (numacre_attach(argv[1], nullptr, &pool) != 0) die("attach");
    std::puts("attached");  // from here on SIGTERM is an order to clean up
    std::fflush(stdout);
    const std::uint64_t seed = std::strtoull(argv[3], nullptr, 0);
    std::vector<std::thread> threads;
    for (int i = 1; i < std::atoi(argv[4]); ++i) threads.emplace_back(work, pool, ring, seed + static_cast<std::uint64_t>(i));
    work(pool, ring, seed);
    for (std::thread &thread : threads) thread.join();
    numacre_detach(pool);
    return 0;
}
