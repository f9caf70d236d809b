// What numacre_hold and numacre_drop cost, and the free of a block that was held, which looks at the holds of all
// threads of the pool. In a private pool: the same steps as in a shared one. Prints medians and the spread of the
// rounds; asserts nothing about time. What is checked is that each call succeeds, and that all memory is free in the
// end.
//
// usage: hold_bench [ROUNDS]
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "numacre/numacre.h"

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t kFrame = 4096;
constexpr unsigned kBlocks = 512;
constexpr unsigned kPairs = 100'000;

void expect(int error, const char *what) {
    if (error == 0) return;
    std::fprintf(stderr, "%s: %s\n", what, numacre_last_error());
    std::exit(1);
}

template <class Work>
double nanoseconds_each(unsigned count, const Work &work) {
    const auto begin = Clock::now();
    work();
    return std::chrono::duration<double, std::nano>(Clock::now() - begin).count() / count;
}

void print(const std::string &what, std::vector<double> rounds) {
    std::sort(rounds.begin(), rounds.end());
    std::printf("%-58s %9.1f ns   (%.1f .. %.1f)\n", what.c_str(), rounds[rounds.size() / 2], rounds.front(),
                rounds.back());
}

// Threads that have used the pool once, so that each has a slot, and that live until the end.
class Others {
public:
    Others(numacre_pool *pool, unsigned count) {
        for (unsigned i = 0; i < count; ++i)
            threads_.emplace_back([this, pool] {
                void *block = nullptr;
                expect(numacre_alloc_on(pool, -1, kFrame, NUMACRE_UNCACHED, &block), "alloc");
                expect(numacre_free_uncached(pool, block), "free");
                ready_.fetch_add(1);
                ready_.notify_one();
                ends_.wait(false);
            });
        for (unsigned seen = 0; (seen = ready_.load()) != count;) ready_.wait(seen);
    }
    ~Others() {
        ends_ = true;
        ends_.notify_all();
        for (std::thread &thread : threads_) thread.join();
    }
    Others(const Others &) = delete;
    Others &operator=(const Others &) = delete;

private:
    std::vector<std::thread> threads_;
    std::atomic<unsigned> ready_ = 0;
    std::atomic<bool> ends_ = false;
};

enum class Kind { plain, published, was_held };

// Of kBlocks blocks, past the cache.
double free_each(numacre_pool *pool, Kind kind) {
    std::vector<void *> blocks(kBlocks);
    for (void *&block : blocks) expect(numacre_alloc_on(pool, -1, kFrame, NUMACRE_UNCACHED, &block), "alloc");
    for (void *const block : blocks) {
        if (kind == Kind::plain) continue;
        const numacre_ref ref = numacre_ref_of(pool, block);
        void *held = nullptr;
        if (kind == Kind::was_held) expect(numacre_hold(pool, ref, &held), "hold");
        if (kind == Kind::was_held) expect(numacre_drop(pool, held), "drop");
    }
    return nanoseconds_each(kBlocks, [&] {
        for (void *const block : blocks) expect(numacre_free_uncached(pool, block), "free");
    });
}

}  // namespace

int main(int argc, char **argv) {
    const unsigned rounds = argc > 1 ? static_cast<unsigned>(std::atoi(argv[1])) : 21;
    const numacre_private_options options{sizeof options, 16 << 20, kFrame, 4 << 20, 0, 0, 0};
    numacre_pool *pool = nullptr;
    expect(numacre_open_private(&options, &pool), "open");
    void *block = nullptr;
    expect(numacre_alloc(pool, kFrame, &block), "alloc");
    const numacre_ref ref = numacre_ref_of(pool, block);
    std::vector<double> pairs;
    std::vector<double> deep_pairs;
    const auto hold_and_drop = [&] {
        for (unsigned i = 0; i < kPairs; ++i) {
            void *held = nullptr;
            if (numacre_hold(pool, ref, &held) != 0 || numacre_drop(pool, held) != 0) expect(1, "hold or drop");
        }
    };
    void *held = nullptr;
    for (unsigned round = 0; round < rounds; ++round) pairs.push_back(nanoseconds_each(kPairs, hold_and_drop));
    void *deep = nullptr;
    expect(numacre_alloc(pool, kFrame, &deep), "alloc");
    for (unsigned i = 0; i < 63; ++i) expect(numacre_hold(pool, numacre_ref_of(pool, deep), &held), "hold");
    for (unsigned round = 0; round < rounds; ++round) deep_pairs.push_back(nanoseconds_each(kPairs, hold_and_drop));
    for (unsigned i = 0; i < 63; ++i) expect(numacre_drop(pool, deep), "drop");
    print("hold + drop, uncontended", pairs);
    print("hold + drop, the thread holds 63 other blocks", deep_pairs);
    for (const unsigned threads : {1U, 64U, 1024U}) {
        const Others others{pool, threads - 1};
        for (const Kind kind : {Kind::plain, Kind::published, Kind::was_held}) {
            std::vector<double> frees;
            for (unsigned round = 0; round < rounds; ++round) frees.push_back(free_each(pool, kind));
            print(std::string("free of a block that was ") +
                      (kind == Kind::plain       ? "never published"
                       : kind == Kind::published ? "published, never held"
                                                 : "held") +
                      ", " + std::to_string(threads) + " threads",
                  frees);
        }
    }
    expect(numacre_free(pool, block), "free");
    expect(numacre_free(pool, deep), "free");
    void *all[4];
    expect(numacre_alloc_bulk(pool, 4 << 20, all, 4), "all of it");
    numacre_detach(pool);
    return 0;
}
