// Fragmentation beside a serial buddy: the same random traces through the tree and through the textbook's allocator
// (free lists by order, best fit, lowest address first, coalesced at once). The tree must refuse nothing that the
// serial one grants, and have nearly as many free largest blocks at the end. Not as many: a thread takes from the word
// where it was last before it looks for the best fit in the pool, and threads keep apart. What that costs is printed.
// Counts: the same on every run.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "numacre/shm/walk.hpp"
#include "support/shm_pool.hpp"

namespace numacre {
namespace {

constexpr unsigned kLargestOrder = 10;
constexpr std::uint64_t kChunks = 64;
constexpr std::uint64_t kFrames = kChunks << kLargestOrder;

class SerialBuddy {
public:
    SerialBuddy() {
        for (std::uint64_t chunk = 0; chunk < kChunks; ++chunk) free_[kLargestOrder].insert(chunk << kLargestOrder);
    }
    std::optional<std::uint64_t> allocate(unsigned order) {
        unsigned from = order;
        while (from <= kLargestOrder && free_[from].empty()) ++from;
        if (from > kLargestOrder) return std::nullopt;
        const std::uint64_t base = *free_[from].begin();
        free_[from].erase(free_[from].begin());
        for (; from > order; --from) free_[from - 1].insert(base + (std::uint64_t{1} << (from - 1)));
        return base;
    }
    void release(std::uint64_t base, unsigned order) {
        while (order < kLargestOrder && free_[order].erase(base ^ std::uint64_t{1} << order) != 0)
            base &= ~(std::uint64_t{1} << order++);
        free_[order].insert(base);
    }
    std::uint64_t largest_free() const { return free_[kLargestOrder].size(); }

private:
    std::array<std::set<std::uint64_t>, kLargestOrder + 1> free_;
};

class Tree {
public:
    Tree() : pool_(64, std::uint64_t{64} << kLargestOrder, kChunks) {
        pool_.online_all();
        for (unsigned thread = 1; thread <= 4; ++thread) actors_.push_back(pool_.actor(thread, 1));
    }
    std::optional<std::uint64_t> allocate(unsigned order, unsigned thread) {
        Block block;
        if (buddy_.allocate(actors_[thread], Order{static_cast<std::uint8_t>(order)}, 0, block) != Errc::ok)
            return std::nullopt;
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
    std::optional<std::uint64_t> in_serial;
    unsigned order;
    unsigned thread;
};

struct Outcome {
    std::uint64_t tree_free, serial_free, tree_refused, serial_refused;
};

// Fills to `fill` of all frames with orders from pick_order, replaces random blocks, frees down to `rest`.
template <class PickOrder>
Outcome run(std::uint64_t seed, double fill, double rest, unsigned threads, PickOrder pick_order) {
    std::mt19937_64 random(seed);
    Tree tree;
    SerialBuddy serial;
    std::vector<Held> held;
    Outcome outcome{};
    std::uint64_t used = 0;
    const auto allocate = [&] {
        const unsigned order = pick_order(random);
        const auto thread = static_cast<unsigned>(random() % threads);
        const Held block{tree.allocate(order, thread), serial.allocate(order), order, thread};
        outcome.tree_refused += !block.in_tree;
        outcome.serial_refused += !block.in_serial;
        held.push_back(block);
        used += std::uint64_t{1} << order;
    };
    const auto release = [&] {
        const std::size_t at = random() % held.size();
        const Held block = held[at];
        held[at] = held.back();
        held.pop_back();
        if (block.in_tree) tree.release(*block.in_tree, block.thread);
        if (block.in_serial) serial.release(*block.in_serial, block.order);
        used -= std::uint64_t{1} << block.order;
    };
    const auto limit = static_cast<std::uint64_t>(fill * static_cast<double>(kFrames));
    while (used < limit) allocate();
    for (unsigned step = 0; step < 20000; ++step) {
        release();
        while (used < limit) allocate();
    }
    while (used > static_cast<std::uint64_t>(rest * static_cast<double>(kFrames))) release();
    outcome.tree_free = tree.largest_free();
    outcome.serial_free = serial.largest_free();
    return outcome;
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
    std::uint64_t tree = 0, serial = 0, tree_refused = 0, serial_refused = 0;
    for (std::uint64_t seed = 1; seed <= 8; ++seed) {
        const Outcome outcome = run(seed, fill, rest, threads, pick);
        tree += outcome.tree_free;
        serial += outcome.serial_free;
        tree_refused += outcome.tree_refused;
        serial_refused += outcome.serial_refused;
    }
    std::printf("%-28s %u threads: free largest blocks %llu (serial buddy %llu), refused %llu (%llu)\n", name, threads,
                static_cast<unsigned long long>(tree), static_cast<unsigned long long>(serial),
                static_cast<unsigned long long>(tree_refused), static_cast<unsigned long long>(serial_refused));
    // Each thread may have a chunk of its own in use for each order; with one thread that is little.
    if (threads == 1) {
        EXPECT_GE(10 * tree, 7 * serial) << name;
    }
    EXPECT_LE(tree_refused, serial_refused) << name;
}

TEST(Fragmentation, is_near_a_serial_buddys) {
    for (const unsigned threads : {1U, 4U}) {
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
