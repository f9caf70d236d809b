// A process whose threads fill their caches and then make no call: idle_caches_test.py.
// usage: idle_cacher RUNTIME_DIR THREADS
// Prints "attached" once all caches are full. A line on standard input: each thread makes one round of calls (allocates
// and frees blocks of each size), and the answer is "ok", or what went wrong.
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <condition_variable>

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

std::mutex mutex;
std::condition_variable changed;
unsigned round_wanted = 1;
unsigned done = 0;
std::string complaint;

void work() {
    for (unsigned round = 1;; ++round) {
        {
            std::unique_lock lock(mutex);
            changed.wait(lock, [&] { return round_wanted == round; });
        }
        const std::string said = one_round(262144);
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
    for (unsigned i = 0; i < threads; ++i) all.emplace_back(work);
    const auto wait = [&] {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return done == threads; });
        done = 0;
    };
    wait();
    std::puts(complaint.empty() ? "attached" : complaint.c_str());
    std::fflush(stdout);
    while (std::getchar() == '\n') {
        {
            const std::lock_guard lock(mutex);
            ++round_wanted;
            changed.notify_all();
        }
        wait();
        std::puts(complaint.empty() ? "ok" : complaint.c_str());
        std::fflush(stdout);
    }
    std::_Exit(0);
}
