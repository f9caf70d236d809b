// The published NBBS (tests/papers) loses memory and hands memory out twice (algorithm notes A1, A2), in both packings.
// Each of these tests passes when the fault is found: they are the baselines that the product's engine
// (engine_test.cpp) must not share, and evidence that this explorer sees such faults. The lock-based variants of the
// same trees are right.
#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "explorer.hpp"
#include "papers/buddy_spinlock.hpp"
#include "papers/nbbs_four_levels.hpp"
#include "papers/nbbs_one_level.hpp"
#include "papers/spinlock_variants.hpp"

namespace numacre::model {
namespace {

using papers::TreeShape;
namespace status = papers::status;
using OneLevel = papers::NbbsOneLevel<SimEnv>;
using FourLevels = papers::NbbsFourLevels<SimEnv>;

constexpr unsigned kHeldMax = 4;

struct Held {
    std::array<unsigned, kHeldMax> nodes;  // 0: none
};

// A step of a script. Each starts at a scheduling point.
struct Call {
    enum class Kind : std::uint8_t {
        allocate,      // NBALLOC that begins its scan at `node`
        try_allocate,  // TRYALLOC(node): all of an allocation but the choice of the next candidate
        free,          // what the thread holds
    };
    Kind kind = Kind::free;
    unsigned node = 0;
};
constexpr Call allocate(unsigned node) {
    return {Call::Kind::allocate, node};
}
constexpr Call try_allocate(unsigned node) {
    return {Call::Kind::try_allocate, node};
}
constexpr Call free_it() {
    return {};
}

// A part of a schedule: a thread takes some steps.
struct Move {
    std::uint8_t thread;
    int steps;
    const char *what;
};
Schedule schedule_of(const std::vector<Move> &moves) {
    Schedule schedule;
    for (const Move &move : moves)
        for (int step = 0; step < move.steps; ++step) schedule.push_back({Step::Kind::run, move.thread, 0});
    return schedule;
}

std::string status_text(std::uint64_t bits) {
    const std::array<const char *, 5> names{"OCC_R", "OCC_L", "COAL_R", "COAL_L", "OCC"};
    std::string text;
    for (unsigned bit = names.size(); bit-- > 0;)
        if ((bits >> bit & 1) != 0) text += (text.empty() ? "" : " ") + std::string(names[bit]);
    return text.empty() ? std::string("free") : text;
}

// Where a search begins plays no part here: the models name nodes, hence no per-thread positions.
constexpr unsigned kNoPositions = 0;

template <class Tree>
class PaperModel {
public:
    PaperModel(const std::string &name, const Options &options, std::uint64_t frame_count, unsigned largest_order)
        : explorer(name, options),
          tree(frame_count, largest_order, kNoPositions,
               static_cast<std::byte *>(
                   explorer.allocate(Tree::memory_bytes(frame_count, largest_order, kNoPositions)))) {
        if constexpr (kOneLevel) {
            nodes_ = tree.nodes().tree();
            explorer.label(nodes_, tree.shape().node_count(), "tree", 1);
        } else {
            nodes_ = tree.nodes().bunches();
            explorer.label(nodes_, Tree::Nodes::memory_bytes(tree.shape()), "bunch", 8);
        }
        explorer.label(tree.index_memory(), frame_count * sizeof(std::uint32_t), "index", sizeof(std::uint32_t));
        explorer.label(tree.release_count_memory(), sizeof(std::uint64_t), "release_count");
        explorer.describe_values([this](const void *address, std::uint64_t value) { return describe(address, value); });
        explorer.on_state([this] { check_overlap(); });
    }

    // The most general client: for ever, occupies any of these nodes by TRYALLOC or frees anything it holds. (Which
    // node a scan tries first is free in the paper, so trying one node stands for every scan.)
    void add_general_client(unsigned held_max, const std::vector<unsigned> &nodes) {
        add([this, held_max, nodes](Thread &self) {
            for (;;) self.run_operation([&] { operate(self, held_max, nodes); });
        });
        // One release_count more is no other state: TRYALLOC does not look at it.
        explorer.ignore(tree.release_count_memory(), sizeof(std::uint64_t));
    }

    void add_script(std::vector<Call> calls) {
        add([this, calls = std::move(calls)](Thread &self) {
            unsigned &held = self.local<Held>().nodes[0];
            for (const Call call : calls) {
                self.run_operation([&] {
                    self.choose_operation(1);
                    switch (call.kind) {
                        case Call::Kind::allocate:
                            held = tree.allocate_from(TreeShape::level_of(call.node), call.node);
                            break;
                        case Call::Kind::try_allocate:
                            if (tree.nodes().try_allocate(call.node) != 0) break;
                            tree.record(call.node);
                            held = call.node;
                            break;
                        case Call::Kind::free:
                            release(held);
                            break;
                    }
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

    // Everything is freed and nobody is at work, yet the block of this node cannot be had, nor ever again while nobody
    // allocates below it.
    void look_for_lost_memory(unsigned node) {
        explorer.on_quiet([this, node] {
            if (live().empty() && tree.nodes().try_allocate(node) != 0)
                explorer.fail("memory is lost: nothing is allocated, yet node " + std::to_string(node) + ", " +
                              status_text(tree.nodes().status_of(node)) + ", cannot be");
        });
    }

    // After each operation of a single thread: marks are where the live blocks put them, and nowhere else.
    void look_for_inexact_marks() {
        explorer.on_quiet([this] {
            const TreeShape &shape = tree.shape();
            const std::vector<unsigned> blocks = live();
            for (unsigned node = 1U << shape.base_level; node < shape.node_count(); ++node) {
                std::uint64_t expected = 0;
                bool inside = false;
                for (const unsigned block : blocks) {
                    if (!TreeShape::overlap(node, block)) continue;
                    const unsigned distance = TreeShape::level_of(block) - TreeShape::level_of(node);
                    if (node == block)
                        expected |= status::kBusy;
                    else if (TreeShape::level_of(block) < TreeShape::level_of(node))
                        inside = true;
                    else
                        expected |= status::occ(block >> (distance - 1));
                }
                if (inside) continue;  // a block's descendants are not marked
                std::uint64_t seen = tree.nodes().status_of(node);
                // Two occupied halves are an occupied node where four levels share a word (TC 3.6.2).
                if (!kOneLevel && (expected & status::kOcc) == 0 && (seen & status::kBusy) == status::kBusy)
                    seen &= ~status::kOcc;
                if (seen != expected)
                    explorer.fail("node " + std::to_string(node) + " is not what the live blocks make it: " +
                                  status_text(seen) + " instead of " + status_text(expected));
            }
        });
    }

    Explorer explorer;
    Tree tree;

private:
    static constexpr bool kOneLevel = std::is_same_v<Tree, OneLevel>;

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
        if (tree.nodes().try_allocate(node) != 0) return;
        tree.record(node);
        *place = node;
    }
    void release(unsigned &held) {
        const unsigned frame = tree.shape().first_frame(held);
        held = 0;  // from the call on the block is the caller's no more
        tree.free(frame);
    }
    void check_overlap() {
        const std::vector<unsigned> nodes = live();
        for (std::size_t i = 0; i < nodes.size(); ++i)
            for (std::size_t j = i + 1; j < nodes.size(); ++j)
                if (TreeShape::overlap(nodes[i], nodes[j]))
                    explorer.fail("two live blocks overlap: nodes " + std::to_string(nodes[i]) + " and " +
                                  std::to_string(nodes[j]));
    }
    std::string describe(const void *address, std::uint64_t value) const {
        const auto *at = static_cast<const std::byte *>(address);
        const auto *begin = static_cast<const std::byte *>(nodes_);
        if (at < begin || at >= begin + Tree::Nodes::memory_bytes(tree.shape())) return {};
        if constexpr (kOneLevel) return status_text(value);
        std::string text;
        for (unsigned position = 8; position < 16; ++position, value >>= status::kBits)
            if ((value & 0x1f) != 0)
                text += (text.empty() ? "" : "; ") + std::to_string(position) + ": " + status_text(value & 0x1f);
        return text.empty() ? std::string("free") : text;
    }

    const void *nodes_ = nullptr;
    int threads_ = 0;
};

bool starts_with(const std::string &text, const char *beginning) {
    return text.rfind(beginning, 0) == 0;
}

// --- one level a word: nodes 1 .. 7, base level 0

class OneLevelModel : public PaperModel<OneLevel> {
public:
    explicit OneLevelModel(const std::string &name, const Options &options = {}) : PaperModel(name, options, 4, 2) {}
};
const std::vector<unsigned> kAllNodes{1, 2, 3, 4, 5, 6, 7};

// The corrections of the paper's slips are the right ones: alone, the algorithm is exact.
TEST(PaperNbbs, is_exact_with_a_single_thread) {
    OneLevelModel model("paper-single");
    model.add_general_client(4, kAllNodes);
    model.look_for_inexact_marks();
    const Report report = model.explorer.run();
    EXPECT_TRUE(report.clean()) << report.trace;
    EXPECT_TRUE(report.complete);
}

TEST(PaperNbbs, two_live_blocks_overlap_on_the_schedule_of_stale_coalescing_marks) {
    OneLevelModel model("paper-overlap");
    model.add_script({allocate(2), free_it(), allocate(1)});
    model.add_script({allocate(4), free_it()});
    model.add_script({allocate(5)});
    const Schedule schedule = schedule_of({
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
    });
    const Report report = model.explorer.replay(schedule);
    EXPECT_EQ(report.violation, "two live blocks overlap: nodes 1 and 5") << report.trace;
    EXPECT_EQ(report.schedule.size(), schedule.size()) << "it happened before the schedule's end";
}

TEST(PaperNbbs, the_explorer_finds_an_overlap_by_itself) {
    OneLevelModel model("paper-general", {.search = SearchOrder::breadth_first});
    for (int thread = 0; thread < 3; ++thread) model.add_general_client(1, {1, 2, 4, 5});
    const Report report = model.explorer.run();
    EXPECT_TRUE(starts_with(report.violation, "two live blocks overlap")) << report.violation;
}

// One thread less, and the overlap is not there: it takes somebody who is late, and two who come and go meanwhile.
TEST(PaperNbbs, two_threads_of_two_blocks_do_not_overlap) {
    OneLevelModel model("paper-two");
    for (int thread = 0; thread < 2; ++thread) model.add_general_client(2, {1, 2, 4, 5});
    const Report report = model.explorer.run();
    EXPECT_TRUE(report.clean()) << report.trace;
    EXPECT_TRUE(report.complete);
}

// A rollback goes up to where its climb ended, and another's release stopped below that, at the mark that the rollback
// then clears: nobody clears what is above. The conference's NBALLOC ends where T1 does here; TC's, which knows that a
// release has happened, scans again, and that needs the third thread of the next test.
TEST(PaperNbbs, memory_is_lost_on_the_schedule_of_a_bounded_rollback) {
    OneLevelModel model("paper-loss-two");
    model.add_script({allocate(1), free_it(), allocate(5), free_it()});
    model.add_script({try_allocate(4)});
    model.look_for_lost_memory(1);
    const Schedule schedule = schedule_of({
        {0, 4, "T0 alloc(1): release_count, sees the root free, CAS, index: the root is live"},
        {1, 4, "T1 TRYALLOC(4): CAS, marks node 2 OCC_L, sees OCC at the root; pauses before its rollback"},
        {0, 3, "T0 free(1): index, F20 tree[1] = 0, F4"},
        {0, 8, "T0 alloc(5): release_count, sees node 5 free, CAS, marks node 2 OCC_R and the root OCC_L, index"},
        {0, 4, "T0 free(5): index, F11 and F13 COAL_R at node 2, where OCC_L makes it stop; F20 tree[5] = 0"},
        {0, 3, "T0 UNMARK: clears OCC_R at node 2 and leaves the root to T1, whose OCC_L is there; F4"},
        {1, 5, "T1 FREENODE(4, 1): F11, F13, F20, UNMARK clears OCC_L at node 2 and ends there: its bound"},
    });
    const Report report = model.explorer.replay(schedule);
    EXPECT_EQ(report.violation, "memory is lost: nothing is allocated, yet node 1, OCC_L, cannot be") << report.trace;
    EXPECT_EQ(report.schedule.size(), schedule.size()) << "it happened before the schedule's end";
}

TEST(PaperNbbs, memory_is_lost_by_whole_calls_of_three_threads) {
    OneLevelModel model("paper-loss-three");
    model.add_script({allocate(1), free_it()});
    model.add_script({allocate(4)});
    model.add_script({allocate(5), free_it()});
    model.look_for_lost_memory(1);
    const Schedule schedule = schedule_of({
        {0, 4, "T0 alloc(1): the root is live"},
        {1, 6, "T1 alloc(4): release_count, sees node 4 free, CAS, marks node 2, sees OCC at the root; pauses"},
        {0, 2, "T0 free(1): index, F20 tree[1] = 0; pauses before F4"},
        {2, 8, "T2 alloc(5): marks node 2 OCC_R and the root OCC_L: node 5 is live"},
        {2, 6, "T2 free(5): stops below the root; pauses before F4"},
        {1, 5, "T1 rolls back, up to node 2"},
        {1, 1, "T1 A15: no release has ended, NULL"},
        {2, 1, "T2 F4"},
        {0, 1, "T0 F4: all is free and all is quiet, and the root stays OCC_L"},
    });
    const Report report = model.explorer.replay(schedule);
    EXPECT_EQ(report.violation, "memory is lost: nothing is allocated, yet node 1, OCC_L, cannot be") << report.trace;
    EXPECT_EQ(report.schedule.size(), schedule.size()) << "it happened before the schedule's end";
}

TEST(PaperNbbs, the_explorer_finds_lost_memory_by_itself) {
    OneLevelModel model("paper-loss", {.search = SearchOrder::breadth_first});
    for (int thread = 0; thread < 2; ++thread) model.add_general_client(1, kAllNodes);
    model.look_for_lost_memory(1);
    const Report report = model.explorer.run();
    EXPECT_TRUE(starts_with(report.violation, "memory is lost")) << report.violation;
}

// --- four levels a word: node 8 is a leaf of the topmost bunch and the base level, 16 .. 17 and 32 .. 35 lie below it

class FourLevelsModel : public PaperModel<FourLevels> {
public:
    explicit FourLevelsModel(const std::string &name, const Options &options = {}) : PaperModel(name, options, 32, 2) {}
};

TEST(PaperNbbsFourLevels, is_exact_with_a_single_thread) {
    FourLevelsModel model("paper4-single");
    model.add_general_client(4, {8, 9, 16, 17, 32, 33, 34, 35});
    model.look_for_inexact_marks();
    const Report report = model.explorer.run();
    EXPECT_TRUE(report.clean()) << report.trace;
    EXPECT_TRUE(report.complete);
}

// A1 again. COAL stands in the word of another bunch than the blocks, so its ABA is the same.
TEST(PaperNbbsFourLevels, two_live_blocks_overlap_on_the_schedule_of_stale_coalescing_marks) {
    FourLevelsModel model("paper4-overlap");
    model.add_script({allocate(32), free_it(), allocate(8)});
    model.add_script({allocate(32), free_it()});
    model.add_script({allocate(33)});
    const Schedule schedule = schedule_of({
        {0, 7, "T0 alloc(32): release_count, sees it free, load and CAS, marks node 8 OCC_L, index: node 32 is live"},
        {0, 7, "T0 free(32): index, COAL on 32, COAL_L at node 8, F20; pauses before UNMARK"},
        {1, 7, "T1 alloc(32): clears COAL_L at node 8: node 32 is live again"},
        {1, 3, "T1 free(32): index, COAL on 32, where nobody else is, so it will go on to node 8; pauses"},
        {2, 7, "T2 alloc(33): in the same bunch, node 8 is marked already: node 33 is live"},
        {1, 2, "T1 goes on: F11, F13 COAL_L at node 8 again"},
        {0, 2, "T0 UNMARK: COAL_L is set, so it clears OCC_L at node 8, though node 33 is live below"},
        {0, 1, "T0 F4"},
        {0, 5, "T0 alloc(8) succeeds"},
    });
    const Report report = model.explorer.replay(schedule);
    EXPECT_EQ(report.violation, "two live blocks overlap: nodes 8 and 33") << report.trace;
    EXPECT_EQ(report.schedule.size(), schedule.size()) << "it happened before the schedule's end";
}

// A2 again, with node 8 in the root's place and a bunch in that of node 2.
TEST(PaperNbbsFourLevels, memory_is_lost_on_the_schedule_of_a_bounded_rollback) {
    FourLevelsModel model("paper4-loss-two");
    model.add_script({allocate(8), free_it(), allocate(33), free_it()});
    model.add_script({try_allocate(32)});
    model.look_for_lost_memory(8);
    const Schedule schedule = schedule_of({
        {0, 5, "T0 alloc(8): node 8 is live"},
        {1, 3, "T1 TRYALLOC(32): load and CAS, sees OCC at node 8; pauses before its rollback"},
        {0, 4, "T0 free(8): index, load and CAS (F20), F4"},
        {0, 7, "T0 alloc(33): in the same bunch, marks node 8 OCC_L: node 33 is live"},
        {0, 6, "T0 free(33): COAL on 33, stops at 32, which is occupied and not coalescing; F20; F4"},
        {1, 4, "T1 FREENODE(32, 4): COAL on 32, F20, and its bound is the bunch"},
    });
    const Report report = model.explorer.replay(schedule);
    EXPECT_EQ(report.violation, "memory is lost: nothing is allocated, yet node 8, OCC_L, cannot be") << report.trace;
    EXPECT_EQ(report.schedule.size(), schedule.size()) << "it happened before the schedule's end";
}

TEST(PaperNbbsFourLevels, the_explorer_finds_an_overlap_by_itself) {
    FourLevelsModel model("paper4-general", {.search = SearchOrder::breadth_first});
    for (int thread = 0; thread < 3; ++thread) model.add_general_client(1, {8, 32, 33});
    const Report report = model.explorer.run();
    EXPECT_TRUE(starts_with(report.violation, "two live blocks overlap")) << report.violation;
}

TEST(PaperNbbsFourLevels, two_threads_of_two_blocks_do_not_overlap) {
    FourLevelsModel model("paper4-two");
    for (int thread = 0; thread < 2; ++thread) model.add_general_client(2, {8, 32, 33});
    const Report report = model.explorer.run();
    EXPECT_TRUE(report.clean()) << report.trace;
    EXPECT_TRUE(report.complete);
}

TEST(PaperNbbsFourLevels, the_explorer_finds_lost_memory_by_itself) {
    FourLevelsModel model("paper4-loss", {.search = SearchOrder::breadth_first});
    for (int thread = 0; thread < 2; ++thread) model.add_general_client(1, {8, 32, 33});
    model.look_for_lost_memory(8);
    const Report report = model.explorer.run();
    EXPECT_TRUE(starts_with(report.violation, "memory is lost")) << report.violation;
}

// What the COAL marks on a block's own leaves are for (nbbs_four_levels.hpp): each of two releases in one bunch sees
// that the other will go, so that at least one of them climbs.
TEST(PaperNbbsFourLevels, two_releases_in_one_bunch_lose_nothing) {
    FourLevelsModel model("paper4-bunch");
    for (int thread = 0; thread < 2; ++thread) model.add_general_client(1, {32, 33});
    model.look_for_lost_memory(8);
    const Report report = model.explorer.run();
    EXPECT_TRUE(report.clean()) << report.trace;
    EXPECT_TRUE(report.complete);
}

// --- under a lock: every interleaving of two threads of four operations each is right

template <class Allocator>
class LockedPaper : public ::testing::Test {};

using LockedAllocators = ::testing::Types<papers::SpinLocked<SimEnv, OneLevel>, papers::SpinLocked<SimEnv, FourLevels>,
                                          papers::BuddySpinLock<SimEnv, SimEnv>>;
struct LockedNames {
    template <class Allocator>
    static std::string GetName(int index) {
        constexpr std::array<const char *, 3> kNames{"one_level", "four_levels", "buddy"};
        return kNames.at(static_cast<std::size_t>(index));
    }
};
TYPED_TEST_SUITE(LockedPaper, LockedAllocators, LockedNames);

TYPED_TEST(LockedPaper, two_threads_neither_overlap_nor_lose_memory) {
    constexpr std::uint64_t kFrameCount = 32;
    constexpr unsigned kLargestOrder = 5;
    constexpr int kThreads = 2;
    constexpr unsigned kThreadNumber = 0;  // of both: they begin their searches at the same nodes
    struct HeldBlock {
        std::uint64_t end;  // 0: none
        std::uint64_t frame;
    };
    Explorer explorer("paper-locked");
    TypeParam allocator(
        kFrameCount, kLargestOrder, 1,
        static_cast<std::byte *>(explorer.allocate(TypeParam::memory_bytes(kFrameCount, kLargestOrder, 1))));
    for (int thread = 0; thread < kThreads; ++thread) {
        explorer.add_thread(
            {},
            [&allocator](Thread &self) {
                auto &held = self.local<HeldBlock>();
                for (int operation = 0; operation < 4; ++operation) {
                    self.run_operation([&] {
                        const int choice = self.choose_operation(held.end == 0 ? 2 : 1);
                        if (held.end != 0) {
                            held.end = 0;  // from the call on the block is the caller's no more
                            allocator.free(held.frame, kThreadNumber);
                            return;
                        }
                        const unsigned order = choice == 0 ? 0 : kLargestOrder;
                        const auto frame = allocator.allocate(order, kThreadNumber);
                        if (!frame) return;
                        held.frame = *frame;
                        held.end = *frame + (std::uint64_t{1} << order);
                    });
                }
            },
            sizeof(HeldBlock));
    }
    explorer.on_state([&explorer] {
        const HeldBlock &a = explorer.local<HeldBlock>(0);
        const HeldBlock &b = explorer.local<HeldBlock>(1);
        if (a.end != 0 && b.end != 0 && a.frame < b.end && b.frame < a.end) explorer.fail("two live blocks overlap");
    });
    explorer.on_quiet([&explorer, &allocator] {
        const bool all_free = explorer.local<HeldBlock>(0).end == 0 && explorer.local<HeldBlock>(1).end == 0;
        if (allocator.allocate(kLargestOrder, kThreadNumber).has_value() != all_free)
            explorer.fail(all_free ? "memory is lost" : "the largest block is handed out over a live one");
    });
    const Report report = explorer.run();
    EXPECT_TRUE(report.clean()) << report.trace;
    EXPECT_TRUE(report.complete);
}

}  // namespace
}  // namespace numacre::model
