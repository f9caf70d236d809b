// Threads that never rest: each holds as many frames as it was told, and frees and allocates one of them after the
// other. A frame that it frees comes back from its cache at once.
//   churning_client RUNTIME_DIR POOL THREADS FRAMES
// Prints, once all hold their frames, in which chunks these lie: "0 3". Ends at the end of its input. Exit status 1: an
// allocation or free failed (stderr has it).
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <latch>
#include <set>
#include <thread>
#include <vector>

#include "numacre/numacre.h"

namespace {

constexpr std::size_t kBytes = 4096;

[[noreturn]] void fail(const char *what, int error) {
    std::fprintf(stderr, "%s: error %d, %s\n", what, error, numacre_last_error());
    std::exit(1);
}

void *allocate(numacre_pool *pool) {
    void *block = nullptr;
    if (const int error = numacre_alloc(pool, kBytes, &block); error != 0) fail("allocate", error);
    return block;
}

void free(numacre_pool *pool, void *block) {
    if (const int error = numacre_free(pool, block); error != 0) fail("free", error);
}

// Until it is told that it is over.
void churn(numacre_pool *pool, std::vector<void *> &held, const std::atomic<bool> &is_over) {
    while (!is_over.load())
        for (void *&block : held) {
            free(pool, block);
            block = allocate(pool);
        }
    for (void *const block : held) free(pool, block);
}

}  // namespace

int main(int argc, char **argv) {
    if (argc != 5) {
        std::fprintf(stderr, "usage: churning_client RUNTIME_DIR POOL THREADS FRAMES\n");
        return 2;
    }
    numacre_pool *pool = nullptr;
    if (const int error = numacre_attach(argv[1], argv[2], &pool); error != 0) fail("attach", error);
    numacre_pool_info info{};
    info.struct_size = sizeof info;
    void *base = nullptr;
    std::size_t region_bytes = 0;
    if (const int error = numacre_get_info(pool, &info); error != 0) fail("info", error);
    if (const int error = numacre_region(pool, 0, &base, &region_bytes); error != 0) fail("region", error);

    const auto threads = std::strtoul(argv[3], nullptr, 0);
    std::vector<std::vector<void *>> held(threads, std::vector<void *>(std::strtoul(argv[4], nullptr, 0)));
    std::latch all_hold(static_cast<std::ptrdiff_t>(threads) + 1);
    std::atomic<bool> is_over = false;
    std::vector<std::set<std::uint64_t>> chunks(threads);
    std::vector<std::thread> running;
    for (std::size_t i = 0; i < threads; ++i)
        running.emplace_back([&, i] {
            for (void *&block : held[i]) {
                block = allocate(pool);
                chunks[i].insert(static_cast<std::uint64_t>(static_cast<char *>(block) - static_cast<char *>(base)) /
                                 info.largest_block_bytes);
            }
            all_hold.arrive_and_wait();
            churn(pool, held[i], is_over);
        });
    all_hold.arrive_and_wait();
    std::set<std::uint64_t> all;
    for (const auto &each : chunks) all.insert(each.begin(), each.end());
    for (const std::uint64_t chunk : all) std::printf("%llu ", static_cast<unsigned long long>(chunk));
    std::puts("");
    std::fflush(stdout);

    for (char byte = 0; read(STDIN_FILENO, &byte, 1) > 0;) {
    }
    is_over.store(true);
    for (std::thread &thread : running) thread.join();
    numacre_detach(pool);
    return 0;
}
