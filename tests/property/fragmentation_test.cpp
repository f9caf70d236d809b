// Fragmentation beside a serial buddy: the same random traces through the tree and through two of the textbook's. The
// tree must refuse nothing that the serial ones grant, and have nearly as many free largest blocks at the end. Not as
// many: a thread takes from the word where it was last before it looks for the best fit in the pool, and threads keep
// apart. What that costs is printed. Counts: the same on every run.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <optional>
#include <random>
#include <vector>

#include "client/cli/serial_buddy.hpp"
#include "numacre/shm/walk.hpp"
#include "support/shm_pool.hpp"

namespace numacre {
namespace {

constexpr unsigned kLargestOrder = 10;
constexpr std::uint64_t kChunks = 64;
constexpr std::uint64_t kFrames = kChunks << kLargestOrder;

using cli::Choice;
template <Choice kChoice>
struct SerialBuddy : cli::SerialBuddy<kChoice> {
    SerialBuddy() : cli::SerialBuddy<kChoice>(kChunks, kLargestOrder) {}
};

class Tree {
public:
    Tree() : pool_(64, std::uint64_t{64} << kLargestOrder, kChunks) {
        pool_.online_all();
        for (unsigned thread = 1; thread <= 4; ++thread) actors_.push_back(pool_.actor(thread, 1));
    }
    std::optional<std::uint64_t> allocate(unsigned order, unsigned thread) {
        Block block;
        if (buddy_.allocate(actors_[thread], Order{order}, {}, block) != Errc::ok) return std::nullopt;
        return block.base.value;
    }
    void release(std::uint64_t base, unsigned thread) {
        Block freed;
        ASSERT_EQ(buddy_.free(actors_[thread], FrameIndex{base}, freed), Errc::ok);
    }
    std::uint64_t largest_free() const {
        struct Count {
            std::uint64_t blocks = 0;
            void free(Block block) { blocks += block.order.value == kLargestOrder; }
            void owned(Block, IndexEntry) {}
            void taken(FrameIndex, std::uint64_t) {}
            void offline(Block) {}
            void damaged(Block) {}
        } count;
        walk_all(pool_.node, count);
        return count.blocks;
    }

private:
    test::ShmPool pool_;
    Buddy<ProductionEnv> buddy_{pool_.node, pool_.view};
    std::vector<Actor> actors_;
};

struct Held {
    std::optional<std::uint64_t> in_tree;
    std::optional<std::uint64_t> in_latest;
    std::optional<std::uint64_t> in_lowest;
    unsigned order;
    unsigned thread;
};

struct Count {
    std::uint64_t free = 0;  // largest blocks, at the end
    std::uint64_t refused = 0;
};
struct Outcome {
    Count tree, latest, lowest;
};

// Fills to `fill` of all frames with orders from pick_order, replaces random blocks, frees down to `rest`.
template <class PickOrder>
void run(Outcome &outcome, std::uint64_t seed, double fill, double rest, unsigned threads, PickOrder pick_order) {
    std::mt19937_64 random(seed);
    Tree tree;
    SerialBuddy<Choice::latest> latest;
    SerialBuddy<Choice::lowest> lowest;
    std::vector<Held> held;
    std::uint64_t used = 0;
    const auto allocate = [&] {
        const unsigned order = pick_order(random);
        const auto thread = static_cast<unsigned>(random() % threads);
        const Held block{tree.allocate(order, thread), latest.allocate(order), lowest.allocate(order), order, thread};
        outcome.tree.refused += !block.in_tree;
        outcome.latest.refused += !block.in_latest;
        outcome.lowest.refused += !block.in_lowest;
        held.push_back(block);
        used += std::uint64_t{1} << order;
    };
    const auto release = [&] {
        const std::size_t at = random() % held.size();
        const Held block = held[at];
        held[at] = held.back();
        held.pop_back();
        if (block.in_tree) tree.release(*block.in_tree, block.thread);
        if (block.in_latest) latest.release(*block.in_latest, block.order);
        if (block.in_lowest) lowest.release(*block.in_lowest, block.order);
        used -= std::uint64_t{1} << block.order;
    };
    const auto limit = static_cast<std::uint64_t>(fill * static_cast<double>(kFrames));
    while (used < limit) allocate();
    for (unsigned step = 0; step < 20000; ++step) {
        release();
        while (used < limit) allocate();
    }
    while (used > static_cast<std::uint64_t>(rest * static_cast<double>(kFrames))) release();
    outcome.tree.free += tree.largest_free();
    outcome.latest.free += latest.largest_free();
    outcome.lowest.free += lowest.largest_free();
}

unsigned halving(std::mt19937_64 &random) {  // twice as many of each order as of the next, as in co50 and co90
    unsigned order = 0;
    while (order < 3 && random() % 2 == 0) ++order;
    return order;
}
unsigned any(std::mt19937_64 &random) {
    return static_cast<unsigned>(random() % (kLargestOrder + 1));
}
unsigned single(std::mt19937_64 &) {
    return 0;
}

void compare(const char *name, double fill, double rest, unsigned threads, unsigned (*pick)(std::mt19937_64 &)) {
    Outcome outcome;
    for (std::uint64_t seed = 1; seed <= 8; ++seed) run(outcome, seed, fill, rest, threads, pick);
    const auto print = [](const char *what, Count count) {
        std::printf("  %s %4llu, %llu refused", what, static_cast<unsigned long long>(count.free),
                    static_cast<unsigned long long>(count.refused));
    };
    std::printf("%-28s %u threads, free largest blocks:", name, threads);
    print("tree", outcome.tree);
    print("latest first", outcome.latest);
    print("lowest first", outcome.lowest);
    std::printf("\n");
    // Each thread may have a chunk of its own in use for each order; with one thread that is little.
    if (threads == 1) {
        EXPECT_GE(10 * outcome.tree.free, 7 * outcome.lowest.free) << name;
    }
    EXPECT_LE(outcome.tree.refused, outcome.lowest.refused) << name;
}

#ifdef __SANITIZE_ADDRESS__
// Some fifty times slower, mostly in the maps of the serial buddies; threads beside each other are tests/stress.
constexpr unsigned kThreadCounts[] = {1};
#else
constexpr unsigned kThreadCounts[] = {1, 4};
#endif

TEST(Fragmentation, is_near_a_serial_buddys) {
    for (const unsigned threads : kThreadCounts) {
        compare("half full, four orders", 0.5, 0.5, threads, halving);
        compare("half full, then an eighth", 0.5, 0.125, threads, halving);
        compare("nine tenths, then an eighth", 0.9, 0.125, threads, halving);
        compare("half full, all orders", 0.5, 0.5, threads, any);
        compare("half full, then a tenth", 0.5, 0.1, threads, any);
        compare("half full, single frames", 0.5, 0.5, threads, single);
        compare("single frames, then few", 0.5, 0.01, threads, single);
    }
}

}  // namespace
}  // namespace numacre
