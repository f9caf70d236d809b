// A process whose threads fill their caches and then make no call: idle_caches_test.py,
// tests/crash/idle_threads_test.py.
//
// usage: idle_cacher RUNTIME_DIR THREADS
//
// Prints "attached" once all caches are full. An empty line on standard input: each thread makes one round of calls
// (allocates and frees blocks of each size). A line with two numbers, milliseconds and a seed: each thread allocates
// and frees at random for so long, blocks of all sizes up to 4 MiB, and then frees what it holds; it may be refused.
// The answer is "ok", or what went wrong.
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "numacre/numacre.h"

namespace {

numacre_pool *pool;

// Empty: all calls succeeded.
std::string one_round(std::size_t bytes_of_each_size) {
    for (std::size_t size = 4096; size <= 65536; size *= 2) {
        std::vector<void *> blocks;
        for (std::size_t bytes = 0; bytes < bytes_of_each_size; bytes += size) {
            void *block = nullptr;
            if (numacre_alloc(pool, size, &block) != 0) return numacre_last_error();
            *static_cast<std::size_t *>(block) = size;
            blocks.push_back(block);
        }
        for (void *block : blocks) {
            if (*static_cast<std::size_t *>(block) != size) return "a block has been written to by another owner";
            if (numacre_free(pool, block) != 0) return numacre_last_error();
        }
    }
    return {};
}

// The first and the last word of a block say whose it is: another owner would overwrite them.
struct Stamped {
    std::uint64_t *first;
    std::uint64_t *last;
    std::uint64_t stamp;
    bool is_intact() const { return *first == stamp && *last == stamp; }
};

std::string random_work(std::uint64_t milliseconds, std::uint64_t seed) {
    constexpr std::size_t kHeldMax = 300;
    std::mt19937_64 random(seed);
    std::vector<Stamped> held;
    const auto free_one = [&](std::size_t which) -> std::string {
        std::swap(held[which], held.back());
        const Stamped block = held.back();
        held.pop_back();
        if (!block.is_intact()) return "a block has been written to by another owner";
        return numacre_free(pool, block.first) == 0 ? "" : numacre_last_error();
    };
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds);
    while (std::chrono::steady_clock::now() < end) {
        // Runs of allocations and of frees, so that caches fill and magazines of all orders are used.
        const std::size_t run = random() % 64;
        const unsigned order = static_cast<unsigned>(random() % 8 == 0 ? random() % 11 : random() % 7);
        for (std::size_t i = 0; i < run; ++i) {
            if (held.size() < kHeldMax && (random() & 1) != 0) {
                const std::size_t bytes = std::size_t{4096} << order;
                void *block = nullptr;
                const int error = numacre_alloc(pool, bytes, &block);
                if (error == -ENOMEM) break;
                if (error != 0) return numacre_last_error();
                auto *const words = static_cast<std::uint64_t *>(block);
                held.push_back({words, words + bytes / sizeof *words - 1, random()});
                *held.back().first = *held.back().last = held.back().stamp;
            } else if (!held.empty()) {
                if (std::string said = free_one(random() % held.size()); !said.empty()) return said;
            }
        }
    }
    while (!held.empty())
        if (std::string said = free_one(held.size() - 1); !said.empty()) return said;
    return {};
}

std::mutex mutex;
std::condition_variable changed;
unsigned round_wanted = 1;
unsigned done = 0;
std::uint64_t random_milliseconds = 0;  // 0: one_round()
std::uint64_t random_seed = 0;
std::string complaint;

void work(unsigned number) {
    for (unsigned round = 1;; ++round) {
        {
            std::unique_lock lock(mutex);
            changed.wait(lock, [&] { return round_wanted == round; });
        }
        const std::string said =
            random_milliseconds == 0 ? one_round(262144) : random_work(random_milliseconds, random_seed + number);
        const std::lock_guard lock(mutex);
        if (!said.empty()) complaint = said;
        ++done;
        changed.notify_all();
    }
}

}  // namespace

int main(int, char **arguments) {
    if (numacre_attach(arguments[1], nullptr, &pool) != 0) {
        std::puts(numacre_last_error());
        return 1;
    }
    const auto threads = static_cast<unsigned>(std::atoi(arguments[2]));
    std::vector<std::thread> all;
    for (unsigned i = 0; i < threads; ++i) all.emplace_back(work, i);
    const auto wait = [&] {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return done == threads; });
        done = 0;
    };
    wait();
    std::puts(complaint.empty() ? "attached" : complaint.c_str());
    std::fflush(stdout);
    char line[64];
    while (std::fgets(line, sizeof line, stdin) != nullptr) {
        {
            const std::lock_guard lock(mutex);
            char *rest = line;
            random_milliseconds = std::strtoull(rest, &rest, 10);
            random_seed = std::strtoull(rest, nullptr, 10);
            ++round_wanted;
            changed.notify_all();
        }
        wait();
        std::puts(complaint.empty() ? "ok" : complaint.c_str());
        std::fflush(stdout);
    }
    std::_Exit(0);
}
