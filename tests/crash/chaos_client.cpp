// A client that works at random until it is told to stop (SIGTERM: frees all, exit 0) or killed. Every block that it
// holds carries a stamp that only its owner writes: a stamp that changed means a block owned twice, exit 2. Passes
// references to whoever reads the shared ring file. Not a test by itself: kill_test.py runs many of them.
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
constexpr std::size_t kManyMax = 40;
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
        std::fprintf(stderr, "chaos_client %d: block %p + %zu has stamp %#llx instead of %#llx: owned twice\n",
                     getpid(), held.address, at, static_cast<unsigned long long>(found),
                     static_cast<unsigned long long>(held.stamp + at));
        _exit(2);
    }
}
[[noreturn]] void die(const char *what) {
    std::fprintf(stderr, "chaos_client %d: %s: %s\n", getpid(), what, numacre_last_error());
    _exit(3);
}

std::size_t some_size(std::mt19937_64 &random) {
    return std::size_t{4096} << (random() % 16 == 0 ? random() % 11 : random() % 4);
}

// What one thread does, every way there is: cached, past the cache, many at once, handed over.
class Worker {
public:
    Worker(numacre_pool *pool, std::atomic<std::uint64_t> *ring, std::uint64_t seed)
        : pool_(pool), ring_(ring), random_(seed) {}

    void run() {
        while (!stop.load(std::memory_order_relaxed)) {
            const unsigned dice = random_() % 100;
            if (dice < 40)
                allocate();
            else if (dice < 48)
                allocate_many();
            else if (dice < 80)
                free_one();
            else if (dice < 88)
                free_many();
            else if (dice < 94)
                give();
            else
                take();
        }
        while (!held_.empty()) free_one();
    }

private:
    void hold(void *address, std::size_t bytes) {
        held_.push_back({address, bytes, random_()});
        write_stamps(held_.back());
    }
    Held let_go() {
        std::swap(held_[random_() % held_.size()], held_.back());
        const Held held = held_.back();
        check_stamps(held);
        held_.pop_back();
        return held;
    }

    void allocate() {
        if (held_.size() >= kHeldMax) return;
        const std::size_t bytes = some_size(random_);
        void *block = nullptr;
        const int error = random_() % 3 == 0 ? numacre_alloc_on(pool_, -1, bytes, NUMACRE_UNCACHED, &block)
                                             : numacre_alloc(pool_, bytes, &block);
        if (error == -ENOMEM) return;
        if (error != 0) die("alloc");
        hold(block, bytes);
    }
    void allocate_many() {
        const auto count = static_cast<unsigned>(1 + random_() % kManyMax);
        if (held_.size() + count > kHeldMax) return;
        const std::size_t bytes = std::size_t{4096} << random_() % 4;
        void *blocks[kManyMax];
        const int error = numacre_alloc_bulk(pool_, bytes, blocks, count);
        if (error == -ENOMEM) return;
        if (error != 0) die("alloc_bulk");
        for (unsigned i = 0; i < count; ++i) hold(blocks[i], bytes);
    }
    void free_one() {
        if (held_.empty()) return;
        const Held held = let_go();
        const int error =
            random_() % 3 == 0 ? numacre_free_uncached(pool_, held.address) : numacre_free(pool_, held.address);
        if (error != 0) die("free");
    }
    void free_many() {
        void *blocks[kManyMax];
        unsigned count = 0;
        while (count < kManyMax && !held_.empty()) blocks[count++] = let_go().address;
        if (numacre_free_bulk(pool_, blocks, count) != 0) die("free_bulk");
    }
    // Into the ring; what lay there is taken, by whoever comes first, or goes stale with its giver.
    void give() {
        if (held_.empty()) return;
        const numacre_ref given = numacre_ref_of(pool_, let_go().address);
        if (given == NUMACRE_REF_NULL) die("ref_of");
        ring_[random_() % kRingSlots].exchange(given, std::memory_order_acq_rel);
    }
    void take() {
        const numacre_ref offered = ring_[random_() % kRingSlots].exchange(0, std::memory_order_acq_rel);
        void *block = nullptr;
        if (offered == 0) return;
        const int error = numacre_take(pool_, offered, &block);
        if (error == -ESTALE) return;  // its giver died
        if (error != 0) die("take");
        hold(block, numacre_usable_size(pool_, block));
    }

    numacre_pool *pool_;
    std::atomic<std::uint64_t> *ring_;
    std::mt19937_64 random_;
    std::vector<Held> held_;
};

void work(numacre_pool *pool, std::atomic<std::uint64_t> *ring, std::uint64_t seed) {
    Worker(pool, ring, seed).run();
}

}  // namespace

int main(int argc, char **argv) {
    if (argc != 5) {
        std::fprintf(stderr, "usage: %s RUNTIME_DIR RING_FILE SEED THREADS\n", argv[0]);
        return 64;
    }
    struct sigaction on_term{};
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
    for (int i = 1; i < std::atoi(argv[4]); ++i)
        threads.emplace_back(work, pool, ring, seed + static_cast<std::uint64_t>(i));
    work(pool, ring, seed);
    for (std::thread &thread : threads) thread.join();
    numacre_detach(pool);
    return 0;
}
