// The published NBBS loses memory and hands memory out twice (algorithm notes A1, A2). Each test passes when the fault
// is found: it is the baseline that the product's engine (engine_test.cpp) must not share, and evidence that this
// explorer sees such faults.
#include "paper_nbbs.hpp"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "explorer.hpp"

namespace numacre::model {
namespace {

using Tree = PaperTree<SimEnv>;
using Word = SimEnv::Atomic<std::uint64_t>;

constexpr unsigned kDepth = 2;  // nodes 1 .. 7
constexpr unsigned kNodes = 2 << kDepth;
constexpr unsigned kHeldMax = 4;

struct Held {
    std::array<unsigned, kHeldMax> nodes;  // 0: none
};

class PaperModel {
public:
    PaperModel(const std::string &name, const Options &options)
        : explorer(name, options),
          words_(static_cast<Word *>(explorer.allocate(kNodes * sizeof(Word)))),
          index_(static_cast<Word *>(explorer.allocate((1 << kDepth) * sizeof(Word)))),
          release_count_(explorer.make<Word>()),
          tree(words_, index_, release_count_, kDepth) {
        explorer.label(words_, kNodes * sizeof(Word), "tree");
        explorer.label(index_, (1 << kDepth) * sizeof(Word), "index");
        explorer.label(release_count_, sizeof(Word), "release_count");
        explorer.describe_values([this](const void *address, std::uint64_t value) {
            if (address < words_ || address >= words_ + kNodes) return std::string{};
            const std::array<const char *, 5> names{"OCC_R", "OCC_L", "COAL_R", "COAL_L", "OCC"};
            std::string text;
            for (unsigned bit = names.size(); bit-- > 0;)
                if ((value >> bit & 1) != 0) text += (text.empty() ? "" : " ") + std::string(names[bit]);
            return text.empty() ? std::string("free") : text;
        });
        explorer.on_state([this] { check_overlap(); });
    }

    // The most general client: for ever, occupies any node by TRYALLOC or frees anything it holds. (Which node a scan
    // tries first is free in the paper, so trying one node stands for every scan.)
    void add_general_client(unsigned held_max, const std::vector<unsigned> &nodes) {
        add([this, held_max, nodes](Thread &self) {
            for (;;) self.run_operation([&] { operate(self, held_max, nodes); });
        });
        // One release_count more is no other state: TRYALLOC does not look at it.
        explorer.ignore(release_count_, sizeof(Word));
    }

    // Operations in order, each starting at a scheduling point: n > 0 is NBALLOC that begins its scan at node n, 0
    // frees.
    void add_script(std::vector<unsigned> operations) {
        add([this, operations = std::move(operations)](Thread &self) {
            unsigned &held = self.local<Held>().nodes[0];
            for (const unsigned operation : operations) {
                self.run_operation([&] {
                    self.choose_operation(1);
                    if (operation == 0)
                        release(held);
                    else
                        held = tree.allocate(Tree::level_of(operation), operation);
                });
            }
        });
    }

    std::vector<unsigned> live() const {
        std::vector<unsigned> nodes;
        for (int thread = 0; thread < threads_; ++thread)
            for (const unsigned node : explorer.local<Held>(thread).nodes)
                if (node != 0) nodes.push_back(node);
        return nodes;
    }

    std::uint64_t word(unsigned node) const { return words_[node].load(); }

    Explorer explorer;

private:
    Word *words_;
    Word *index_;
    Word *release_count_;
    int threads_ = 0;

public:
    Tree tree;

private:
    void add(Explorer::Script script) {
        explorer.add_thread({.name = "T" + std::to_string(threads_)}, std::move(script), sizeof(Held));
        ++threads_;
    }
    void operate(Thread &self, unsigned held_max, const std::vector<unsigned> &nodes) {
        auto &held = self.local<Held>().nodes;
        std::array<unsigned *, kHeldMax> taken{};
        unsigned *place = nullptr;
        int taken_count = 0;
        for (unsigned slot = 0; slot < held_max; ++slot) {
            if (held[slot] == 0)
                place = &held[slot];
            else
                taken[static_cast<unsigned>(taken_count++)] = &held[slot];
        }
        const int allocations = place != nullptr ? static_cast<int>(nodes.size()) : 0;
        const int choice = self.choose_operation(allocations + taken_count);
        if (choice >= allocations) {
            release(*taken[static_cast<unsigned>(choice - allocations)]);
            return;
        }
        const unsigned node = nodes[static_cast<unsigned>(choice)];
        if (tree.try_allocate(node) != 0) return;
        index_[tree.first_unit(node)].store(node);
        *place = node;
    }
    void release(unsigned &held) {
        const unsigned unit = tree.first_unit(held);
        held = 0;  // from the call on the block is the caller's no more
        tree.free(unit);
    }
    void check_overlap() {
        const std::vector<unsigned> nodes = live();
        for (std::size_t i = 0; i < nodes.size(); ++i)
            for (std::size_t j = i + 1; j < nodes.size(); ++j)
                if (Tree::overlap(nodes[i], nodes[j]))
                    explorer.fail("two live blocks overlap: nodes " + std::to_string(nodes[i]) + " and " +
                                  std::to_string(nodes[j]));
    }
};

const std::vector<unsigned> kAllNodes{1, 2, 3, 4, 5, 6, 7};

// The corrections of paper_nbbs.hpp are the right ones: alone, the algorithm is exact.
TEST(PaperNbbs, is_exact_with_a_single_thread) {
    PaperModel model("paper-single", {});
    model.add_general_client(4, kAllNodes);
    model.explorer.on_quiet([&model] {
        std::array<std::uint64_t, kNodes> expected{};
        for (const unsigned node : model.live()) {
            expected[node] |= Tree::kBusy;
            for (unsigned at = node; at > 1; at >>= 1) expected[at >> 1] |= Tree::kOccLeft >> (at & 1);
        }
        for (unsigned node = 1; node < kNodes; ++node) {
            if ((model.word(node) & Tree::kBusy) != expected[node])
                model.explorer.fail("node " + std::to_string(node) + " is not what the live blocks make it");
        }
    });
    const Report report = model.explorer.run();
    EXPECT_TRUE(report.clean()) << report.trace;
    EXPECT_TRUE(report.complete);
}

TEST(PaperNbbs, two_live_blocks_overlap_on_the_schedule_of_stale_coalescing_marks) {
    PaperModel model("paper-overlap", {});
    model.add_script({2, 0, 1});
    model.add_script({4, 0});
    model.add_script({5});
    struct Move {
        std::uint8_t thread;
        int steps;
        const char *what;
    };
    const std::vector<Move> moves{
        {0, 3, "T0 alloc(2): reads release_count, sees node 2 free, CAS"},
        {1, 3, "T1 alloc(4): the same, CAS"},
        {2, 3, "T2 alloc(5): the same, CAS"},
        {0, 3, "T0 marks the root, writes the index: node 2 is live"},
        {0, 4, "T0 free(2): index, F11 and F13 root.COAL_L = 1, F20 tree[2] = 0; pauses before UNMARK"},
        {1, 5, "T1 marks node 2 and the root (which clears COAL_L), writes the index: node 4 is live"},
        {1, 3, "T1 free(4): index, F11 and F13 COAL at node 2; pauses"},
        {2, 5, "T2 marks node 2 and the root, writes the index: node 5 is live"},
        {1, 2, "T1 goes on: F11, F13 root.COAL_L = 1 again"},
        {0, 2, "T0 UNMARK at the root: COAL_L is set, so it clears OCC_L, though node 5 is live below"},
        {0, 1, "T0 F4"},
        {0, 4, "T0 alloc(1): CAS 0 -> BUSY succeeds at the root"},
    };
    Schedule schedule;
    for (const Move &move : moves)
        for (int step = 0; step < move.steps; ++step) schedule.push_back({Step::Kind::run, move.thread, 0});
    const Report report = model.explorer.replay(schedule);
    EXPECT_EQ(report.violation, "two live blocks overlap: nodes 1 and 5") << report.trace;
    EXPECT_EQ(report.schedule.size(), schedule.size()) << "it happened before the schedule's end";
}

TEST(PaperNbbs, the_explorer_finds_an_overlap_by_itself) {
    PaperModel model("paper-general", {.search = SearchOrder::breadth_first});
    for (int thread = 0; thread < 3; ++thread) model.add_general_client(1, {1, 2, 4, 5});
    const Report report = model.explorer.run();
    EXPECT_EQ(report.violation.rfind("two live blocks overlap", 0), 0U) << report.violation;
}

TEST(PaperNbbs, two_threads_lose_memory_for_ever) {
    PaperModel model("paper-loss", {.search = SearchOrder::breadth_first});
    for (int thread = 0; thread < 2; ++thread) model.add_general_client(1, kAllNodes);
    model.explorer.on_quiet([&model] {
        // Everything is freed and nobody is at work; a mark below the root that nobody will clear hides all its memory.
        if (model.live().empty() && (model.word(1) & Tree::kBusy) != 0 && model.tree.try_allocate(1) != 0)
            model.explorer.fail("memory is lost: nothing is allocated, yet the largest block cannot be");
    });
    const Report report = model.explorer.run();
    EXPECT_EQ(report.violation.rfind("memory is lost", 0), 0U) << report.violation;
}

}  // namespace
}  // namespace numacre::model
