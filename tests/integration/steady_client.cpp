// A well-behaved client: allocates and frees blocks of many sizes, and looks whether what it wrote into them is still
// there.
//   steady_client RUNTIME_DIR POOL [SEED]
// Prints "attached". "event_fd" on its input is answered by what numacre_event_fd returns. Each other line is answered
// by one: it then holds nothing but its lasting blocks, and says how many bytes those are and how many rounds it has
// made: "HELD ROUNDS"; it goes on after the next line. Ends at the end of its input. Exit status 1: an allocation or
// free failed, or a pattern was not what it should be (stderr has it).
#include <poll.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "numacre/numacre.h"

namespace {

struct Held {
    void *address;
    std::size_t bytes;
    std::uint64_t pattern;
};

[[noreturn]] void fail(const char *what, int error) {
    std::fprintf(stderr, "%s: error %d, %s\n", what, error, numacre_last_error());
    std::exit(1);
}

class Steady {
public:
    Steady(numacre_pool *pool, std::uint64_t seed) : pool_(pool), random_(seed) {
        for (unsigned shift = 12; shift <= 20; ++shift) lasting_.push_back(allocate(std::size_t{1} << shift));
    }

    void round() {
        std::vector<Held> passing;
        for (unsigned i = 0; i < 16; ++i) passing.push_back(allocate(1 + random_() % (1U << (12 + random_() % 9))));
        for (const Held &held : lasting_) check(held);
        for (const Held &held : passing) {
            check(held);
            if (const int error = numacre_free_uncached(pool_, held.address); error != 0) fail("free", error);
        }
        ++rounds_;
    }

    std::uint64_t held_bytes() const {
        std::uint64_t sum = 0;
        for (const Held &held : lasting_) sum += held.bytes;
        return sum;
    }
    std::uint64_t rounds() const { return rounds_; }

private:
    Held allocate(std::size_t bytes) {
        Held held{nullptr, bytes, random_()};
        // Past the cache: what is used is then what is held, to the byte.
        if (const int error = numacre_alloc_on(pool_, -1, bytes, NUMACRE_UNCACHED, &held.address); error != 0)
            fail("allocate", error);
        for (std::size_t at = 0; at + 8 <= bytes; at += 512)
            std::memcpy(static_cast<char *>(held.address) + at, &held.pattern, 8);
        return held;
    }

    void check(const Held &held) const {
        for (std::size_t at = 0; at + 8 <= held.bytes; at += 512) {
            std::uint64_t there = 0;
            std::memcpy(&there, static_cast<const char *>(held.address) + at, 8);
            if (there != held.pattern) fail("somebody wrote into our block", 0);
        }
    }

    numacre_pool *pool_;
    std::mt19937_64 random_;
    std::vector<Held> lasting_;
    std::uint64_t rounds_ = 0;
};

}  // namespace

int main(int argc, char **argv) {
    if (argc < 3) {
        std::fprintf(stderr, "usage: steady_client RUNTIME_DIR POOL [SEED]\n");
        return 2;
    }
    numacre_pool *pool = nullptr;
    if (const int error = numacre_attach(argv[1], argv[2], &pool); error != 0) fail("attach", error);
    Steady steady(pool, argc > 3 ? std::strtoull(argv[3], nullptr, 0) : 1);
    std::puts("attached");
    std::fflush(stdout);
    for (;;) {
        steady.round();
        // A moment's rest: others work on this machine too.
        pollfd input{STDIN_FILENO, POLLIN, 0};
        if (poll(&input, 1, 1) <= 0) continue;
        char line[64];
        if (std::fgets(line, sizeof line, stdin) == nullptr) break;
        if (std::strcmp(line, "event_fd\n") == 0) {
            int fd = -1;
            std::printf("%d\n", numacre_event_fd(pool, &fd));
            std::fflush(stdout);
            continue;
        }
        std::printf("%llu %llu\n", static_cast<unsigned long long>(steady.held_bytes()),
                    static_cast<unsigned long long>(steady.rounds()));
        std::fflush(stdout);
        // Quiet until the next line.
        if (std::fgets(line, sizeof line, stdin) == nullptr) break;
    }
    numacre_detach(pool);
    return 0;
}
