// The product's allocator under every interleaving of its atomic accesses, at the bounds that each test names.
// NUMACRE_MODEL_LONG=1 in the environment widens some of them. CMakeLists.txt says which run when: EngineLong is for
// `tests/run --deep`.
#include "engine_model.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

namespace numacre::model {
namespace {

bool long_runs() {
    const char *const wanted = std::getenv("NUMACRE_MODEL_LONG");
    return wanted != nullptr && wanted[0] == '1';
}

void expect_clean(const Report &report) {
    EXPECT_TRUE(report.clean()) << report.violation;
    EXPECT_TRUE(report.complete);
}

TEST(Engine, one_client_alone_is_exact) {
    EngineModel model("engine-single", {.solo_steps_max = 2000},
                      {.clients = {{.orders = {5, 6, 7}, .operations = 6, .held_max = 4}}});
    expect_clean(model.run());
}

// A hint that promises a single frame, after a search that found nothing, does not do for the two.
TEST(Engine, neighbours_freed_one_by_one_are_found_as_one_block) {
    EngineModel model("engine-neighbours", {.solo_steps_max = 2000},
                      {.taken = {{0, ~std::uint64_t{3}}, {1, ~std::uint64_t{0}}},
                       .clients = {{.process = 1, .script = {0, 0, 0, kFreeFirst, kFreeFirst, 1}}}});
    expect_clean(model.run());
}

TEST(Engine, two_clients_of_all_orders_in_a_tree_of_seven_blocks) {
    EngineModel model("engine-two", {.solo_steps_max = 2000, .find_livelocks = true},
                      {.clients = {{.process = 1, .orders = {5, 6, 7}, .operations = 2},
                                   {.process = 2, .orders = {5, 6, 7}, .operations = 2}}});
    expect_clean(model.run());
}

TEST(Engine, two_clients_in_crowded_leaf_words) {
    // Two free frames at the ends of each leaf word: claims meet in one word, and nothing ever empties it.
    constexpr std::uint64_t kCrowded = 0x7fff'ffff'ffff'fffe;
    EngineModel model("engine-crowded", {.solo_steps_max = 2000, .find_livelocks = true},
                      {.taken = {{0, kCrowded}, {1, kCrowded}},
                       .clients = {{.process = 1, .orders = {0}, .operations = 3},
                                   {.process = 2, .orders = {0, 1}, .operations = 3}}});
    expect_clean(model.run());
}

TEST(Engine, two_threads_of_one_process) {
    EngineModel model("engine-threads", {.solo_steps_max = 2000, .find_livelocks = true},
                      {.clients = {{.process = 1, .orders = {5, 7}, .operations = 2},
                                   {.process = 1, .orders = {6}, .operations = 2, .holds = {6}}}});
    expect_clean(model.run());
}

// What the tag in an upper word is for (algorithm notes A1): the first to clean leaf word 0 (in want of something
// larger) pauses with COAL set; an allocation withdraws that and frees again; the second cleaner sees the word empty
// and sets COAL just after the next allocation has passed. The mark and COAL look as they did; only the tag says that
// they are not.
TEST(Engine, a_late_clean_does_not_unmark_a_new_block) {
    EngineModel model("engine-late-clean", {.preemptions_max = long_runs() ? 4 : 3},
                      {.taken = {{1, ~std::uint64_t{0}}},
                       .clients = {{.process = 1, .script = {7}},
                                   {.process = 2, .script = {7}},
                                   {.process = 3, .holds = {6}, .script = {kFreeFirst, 6, kFreeFirst, 6}}}});
    expect_clean(model.run());
}

// A mark on the way up does not say that those above are there: whoever set it may be stopped half way.
TEST(Engine, a_climb_goes_on_above_a_mark_that_is_set) {
    // Slots 1 and 17 prefer the same words.
    EngineModel model("engine-climb", {.solo_steps_max = 4000},
                      {.geometry = {.frame_bytes = 4096, .largest_order = 10, .frame_count = 1024},
                       .clients = {{.process = 1, .script = {5}, .thread_slot = 1},
                                   {.process = 2, .script = {5, kFreeFirst}, .thread_slot = 17}}});
    expect_clean(model.run());
}

TEST(Engine, a_giver_and_its_taker) {
    EngineModel model(
        "engine-relay", {.solo_steps_max = 2000, .find_livelocks = true},
        {.clients = {{.process = 1, .script = {6, kGive, 7}}, {.process = 2, .script = {kTake, kFreeFirst, 6}}}});
    expect_clean(model.run());
}

TEST(Engine, a_death_of_giver_or_taker_loses_nothing) {
    EngineModel model(
        "engine-relay-death", {.kills_max = 1, .solo_steps_max = 4000},
        {.clients = {{.process = 1, .holds = {6}, .script = {kGive}}, {.process = 2, .script = {kTake, kFreeFirst}}},
         .daemon = true});
    expect_clean(model.run());
}

TEST(Engine, two_threads_of_one_process_die_together) {
    EngineModel model("engine-threads-death", {.kills_max = 1, .restarts_max = 1, .solo_steps_max = 4000},
                      {.clients = {{.process = 1, .script = {5}},
                                   {.process = 1, .holds = {5}, .script = {kFreeFirst}},
                                   {.process = 2, .script = {6}, .mortal = false}},
                       .daemon = true});
    expect_clean(model.run());
}

// Two threads of a process free one block, a third client wants just that memory, their process dies anywhere and the
// daemon meanwhile: at most one is told that it has freed it (if they live: exactly one), and the third's block is its
// own.
constexpr std::uint64_t kAllTaken = ~std::uint64_t{0};
Setup two_free_one_block(int order, int first, int second, std::vector<int> beside) {
    // Of order 5 there is this block and no other.
    std::vector<std::pair<std::uint64_t, std::uint64_t>> taken;
    if (order == 5) taken = {{0, kAllTaken << 32}, {1, kAllTaken}};
    return {.taken = taken,
            .clients = {{.process = 1, .script = {first}},
                        {.process = 1, .script = {second}},
                        {.process = 2, .script = std::move(beside), .mortal = false}},
            .daemon = true,
            .shared = order};
}

TEST(Engine, two_threads_of_one_process_free_the_same_block) {
    EngineModel model("engine-shared", {.solo_steps_max = 2000, .find_livelocks = true},
                      two_free_one_block(5, kFreeShared, kFreeShared, {5, kFreeFirst, 5}));
    expect_clean(model.run());
}

TEST(Engine, a_death_of_two_threads_that_free_the_same_block) {
    const auto beside = long_runs() ? std::vector<int>{5, kFreeFirst, 5} : std::vector<int>{5};
    EngineModel model("engine-shared-death", {.kills_max = 1, .restarts_max = 1, .solo_steps_max = 4000},
                      two_free_one_block(5, kFreeShared, kFreeShared, beside));
    expect_clean(model.run());
}

// In an upper word; what is wanted lies in it, or below it.
TEST(Engine, a_death_of_two_threads_that_free_the_same_large_block) {
    const auto beside = long_runs() ? std::vector<int>{7, kFreeFirst, 5} : std::vector<int>{7};
    const unsigned restarts = long_runs() ? 1 : 0;
    EngineModel model("engine-shared-large", {.kills_max = 1, .restarts_max = restarts, .solo_steps_max = 4000},
                      two_free_one_block(7, kFreeShared, kFreeShared, beside));
    expect_clean(model.run());
}

// Only one frame is free, so that who wants a frame gets just the one that two threads have freed.
Setup two_cache_one_block(std::vector<int> first, std::vector<int> second) {
    return {.taken = {{0, ~std::uint64_t{1}}, {1, kAllTaken}},
            .clients = {{.process = 1, .script = std::move(first)},
                        {.process = 1, .script = std::move(second)},
                        {.process = 2, .script = {kAwaitFree, 0, kFreeFirst, 0}, .mortal = false}},
            .daemon = true,
            .shared = 0};
}

// Both put it into their caches; one gives it back; another process gets it. From then on it does not come out of the
// other cache, also not when it is free again, nor does it get into it, and no death of the two takes it from its
// owner.
TEST(Engine, a_block_in_two_caches_is_left_in_one_when_another_process_has_got_it) {
    struct Threads {
        std::vector<int> first, second;
    };
    for (const Threads &threads :
         {Threads{{kCacheShared, kAwaitCached, kFlushShared}, {kCacheShared, kAwaitTaken, kUncacheShared}},
          Threads{{kCacheShared, kAwaitCached, kFlushShared}, {kCacheShared, kAwaitTaken, kFlushShared}},
          Threads{{kCacheShared, kFlushShared}, {kAwaitTaken, kCacheShared, kUncacheShared}}}) {
        EngineModel model("engine-two-caches", {.kills_max = 1, .restarts_max = 1, .solo_steps_max = 4000},
                          two_cache_one_block(threads.first, threads.second));
        expect_clean(model.run());
    }
}

// What that does not promise: a thread is stopped between its look at the entry and its plain store, which is two
// instructions; the other thread gives the block back, another process gets it, and loses it again by that store. Who
// frees one block twice at one moment can do so much harm, as can whoever writes into the metadata. It is no other past
// the cache. NUMACRE_CHECK_FREES finds who does.
TEST(Engine, a_block_freed_twice_is_not_safe_from_a_store_after_an_old_look) {
    EngineModel model("engine-two-caches-old-look", {.shorten_transitions_max = 0, .print = false},
                      two_cache_one_block({kCacheShared, kFlushShared}, {kCacheSlowly}));
    EXPECT_EQ(model.run().violation, "a client holds order 0 at 0, which the index does not say");
}
// A cached entry names one thread: of two that have put the block into their caches, the one that has stored last has
// it, and the other gets it no more, however late it comes.
TEST(Engine, a_block_in_two_caches_is_its_last_thread_s) {
    {
        EngineModel model("engine-two-caches-flushed", {},
                          two_cache_one_block({kCacheShared, kAwaitCached, kFlushShared},
                                              {kCacheShared, kAwaitCached, kFlushShared}));
        expect_clean(model.run());
    }
    EngineModel model("engine-two-caches-last", {},
                      {.clients = {{.process = 1, .script = {kCacheShared, kAwaitCached, kUncacheShared}},
                                   {.process = 1, .script = {kCacheShared, kAwaitCached, kUncacheShared}}},
                       .shared = 0});
    expect_clean(model.run());
}
TEST(Engine, a_block_freed_twice_past_the_cache_is_safe_if_that_is_checked) {
    {
        EngineModel model("engine-unchecked", {.shorten_transitions_max = 0, .print = false},
                          two_cache_one_block({kFreeUnchecked}, {kFreeUnchecked}));
        EXPECT_EQ(model.run().violation, "a live block's frames are not taken: order 0 at 0");
    }
    EngineModel model("engine-checked", {.solo_steps_max = 4000}, two_cache_one_block({kFreeShared}, {kFreeShared}));
    expect_clean(model.run());
}

// Two threads of a process make a reference to one block, a client takes the block by the first one: from then on the
// block is the taker's, however late the other thread comes, also if the taker frees it and has it again, or hands it
// back.
TEST(Engine, several_threads_of_a_process_refer_to_one_block) {
    for (const int order : {5, 7})
        for (const std::vector<int> &taker :
             {std::vector<int>{kTake, kFreeFirst, order}, std::vector<int>{kTake, kGive}}) {
            EngineModel model("engine-refer", {.solo_steps_max = 2000, .find_livelocks = true},
                              {.clients = {{.process = 1, .script = {kReferShared}},
                                           {.process = 1, .script = {kReferShared, kTake}},
                                           {.process = 2, .script = taker}},
                               .shared = order});
            expect_clean(model.run());
        }
}

TEST(Engine, a_death_beside_several_threads_that_refer_to_one_block) {
    EngineModel model("engine-refer-death", {.kills_max = 1, .restarts_max = 1, .solo_steps_max = 4000},
                      {.clients = {{.process = 1, .script = {kReferShared}},
                                   {.process = 1, .script = {kReferShared}},
                                   {.process = 2, .script = {kTake, kFreeFirst}}},
                       .daemon = true,
                       .shared = 5});
    expect_clean(model.run());
}

// Why a forked child must not use what it has a copy of. These models let it, and things go wrong. In the library it is
// refused (ECHILD), and the regions are not even mapped in it (MADV_DONTFORK): it makes no access, so that there is
// nothing to explore, and its parent's death is that of any process. tests/crash/kill_test.py forks real clients, kills
// the parents, lets the children live on, and counts those that were not refused.
TEST(Engine, a_forked_child_that_were_not_refused_would_hand_out_its_parents_cache_again) {
    EngineModel model("engine-fork-cache", {.shorten_transitions_max = 0, .print = false},
                      {.clients = {{.process = 1, .caches = {5}, .script = {kUncache}},
                                   {.process = 2, .script = {kUncache}, .forked_from = 0}}});
    EXPECT_EQ(model.run().violation, "two processes hold order 5 at 64");
}

// The parent dies: recovery takes the child's blocks. The child dies: nobody gives back its blocks.
TEST(Engine, a_forked_child_that_were_not_refused_would_lose_its_blocks_or_leak_them) {
    for (const bool parent_dies : {true, false}) {
        EngineModel model("engine-fork-death", {.kills_max = 1, .shorten_transitions_max = 0, .print = false},
                          {.clients = {{.process = 1, .script = {5}, .mortal = parent_dies},
                                       {.process = 2, .script = {5}, .mortal = !parent_dies, .forked_from = 0}},
                           .daemon = true});
        EXPECT_NE(model.run().violation.find(parent_dies ? "a client holds" : "nobody holds"), std::string::npos);
    }
}

// A reference and a clean hold on by numbers that begin anew some day.
TEST(Engine, generations_wrap) {
    EngineModel model(
        "engine-wrap-relay", {.kills_max = 1, .solo_steps_max = 4000},
        {.clients = {{.process = 1, .holds = {6}, .script = {kGive}}, {.process = 2, .script = {kTake, kFreeFirst}}},
         .wrapping = true,
         .daemon = true});
    expect_clean(model.run());
}

TEST(Engine, tags_wrap) {
    EngineModel model("engine-wrap-clean", {.solo_steps_max = 2000, .find_livelocks = true},
                      {.clients = {{.process = 1, .orders = {5, 7}, .operations = 2},
                                   {.process = 2, .orders = {6, 7}, .operations = 2}},
                       .wrapping = true});
    expect_clean(model.run());
}

// What the dead held, or had given, is the daemon's before it is anybody else's, whoever of all of them dies.
TEST(Engine, a_quarantine_keeps_what_a_dead_client_held) {
    EngineModel model(
        "engine-quarantine", {.kills_max = 1, .restarts_max = 1, .solo_steps_max = 4000},
        {.clients = {{.process = 1, .holds = {6}, .script = {kGive}}, {.process = 2, .script = {kTake, kFreeFirst}}},
         .daemon = true,
         .quarantine = true});
    expect_clean(model.run());
}

TEST(Engine, a_death_of_either_client_is_recovered_beside_the_other) {
    EngineModel model("engine-death", {.kills_max = 1, .solo_steps_max = 4000},
                      {.clients = {{.process = 1, .orders = {5}, .operations = 1},
                                   {.process = 2, .orders = {7}, .operations = 1, .holds = {6}}},
                       .daemon = true});
    expect_clean(model.run());
}

TEST(Engine, a_death_while_freeing_is_recovered) {
    EngineModel model(
        "engine-death-free", {.kills_max = 1, .solo_steps_max = 4000},
        {.clients = {{.process = 1, .operations = 1, .holds = {5}}, {.process = 2, .operations = 1, .holds = {5}}},
         .daemon = true});
    expect_clean(model.run());
}

// A claim in an upper word, where nobody has to be waited for above.
TEST(Engine, a_death_around_a_large_block_is_recovered) {
    EngineModel model("engine-death-large", {.kills_max = 1, .solo_steps_max = 4000},
                      {.clients = {{.process = 1, .script = {7, kFreeFirst}},
                                   {.process = 2, .script = {7, kFreeFirst}, .mortal = false}},
                       .daemon = true});
    expect_clean(model.run());
}

// A block that was given can be wanted back, or freed, by its giver: it has it, or the taker has, never both, never
// none.
TEST(Engine, a_giver_thinks_again) {
    for (const int what : {kWithdraw, kFreeGiven, kBulkFreeGiven}) {
        EngineModel model("engine-think-again", {.solo_steps_max = 2000},
                          {.clients = {{.process = 1, .holds = {5}, .script = {kGive, what, 5}},
                                       {.process = 2, .script = {kTake, kFreeFirst}}}});
        expect_clean(model.run());
    }
}

// Leaf words 0 and 1 are below a block of order 7. Client 0 is at home in word 0: claims there, sees the block on its
// climb and undoes the claim. Meanwhile the block is freed, and its owner wants more than there seems to be, which
// lowers the hint; then something smaller, for which it has no home and begins at the root.
TEST(Engine, an_undone_claim_hides_nothing) {
    for (const int what : {6, kTwo + 5}) {
        EngineModel model("engine-undo-hints", {.solo_steps_max = 2000},
                          {.clients = {{.process = 1, .script = {what}, .home = 0},
                                       {.process = 2, .holds = {7}, .script = {kFreeFirst, 6, 6, 5}}}});
        expect_clean(model.run());
    }
}

// Why an undone claim is written into the index before its bits go, with a new generation even if the entry says
// FREEING by the same thread already: the daemon, after a death with an intent on the same block, sees the bits and no
// owner; without a change in the index it takes them for the dead client's, and clears them from under the next owner.
// Both clients are at home in word 0, below a block of order 7 that is freed meanwhile.
TEST(Engine, a_death_beside_a_claim_that_is_undone) {
    for (const bool bulk : {false, true}) {
        // An entry of before makes the daemon wait at its first look, which is one preemption more.
        const Client undoer = bulk ? Client{.process = 1, .script = {kTwo + 5}, .home = 0}
                                   : Client{.process = 1, .used = {5}, .script = {5}, .home = 0};
        EngineModel model("engine-undo-death", {.preemptions_max = 4},
                          {.clients = {undoer, {.process = 2, .holds = {7}, .script = {kFreeFirst, 5}, .home = 0}},
                           .daemon = true,
                           .corpses = {{.process = 3, .block = {FrameIndex{0}, Order{5}}}}});
        expect_clean(model.run());
    }
}

// All leaf words from `first` on, of a pool of 8192 frames, whose hints have two levels below the root.
std::vector<std::pair<std::uint64_t, std::uint64_t>> taken_from(std::uint64_t first) {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> taken;
    for (std::uint64_t word = first; word < 8192 / kLeafFrames; ++word) taken.emplace_back(word, ~std::uint64_t{0});
    return taken;
}

// Who frees into a group whose hint somebody else has just raised goes home; the other has not come to the root yet.
// Without its announcement a search that begins there believes that nothing is free.
TEST(Engine, a_raise_on_its_way_up_is_known) {
    auto taken = taken_from(2);
    taken.emplace_back(0, ~std::uint64_t{0} << 32);
    taken.emplace_back(1, ~std::uint64_t{0} << 32);
    EngineModel model("engine-raise", {.solo_steps_max = 6000},
                      {.geometry = {.frame_bytes = 4096, .largest_order = 13, .frame_count = 8192},
                       .taken = taken,
                       .clients = {{.process = 1, .holds = {5}, .script = {kFreeFirst}},
                                   {.process = 2, .holds = {5}, .script = {kFreeFirst, 4}}},
                       .exhausted = true});
    expect_clean(model.run());
}

// The block fills its word, whose hint was never lowered: what is allocated in a word is read there. That of the word
// above was.
TEST(Engine, a_block_that_fills_its_word_is_found_when_freed) {
    EngineModel model(
        "engine-fill", {.solo_steps_max = 6000},
        {.geometry = {.frame_bytes = 4096, .largest_order = 13, .frame_count = 8192},
         .taken = taken_from(8),
         .clients = {{.process = 1, .holds = {9}, .script = {kFreeFirst, 8}}, {.process = 2, .script = {7}}},
         .exhausted = true});
    expect_clean(model.run());
}

// Where the largest block is smaller than a leaf word, the intent of a bulk call names a block that there is not.
TEST(Engine, a_death_in_a_bulk_call_in_a_pool_of_small_blocks) {
    EngineModel model("engine-small-death", {.kills_max = 1, .solo_steps_max = 4000},
                      {.geometry = {.frame_bytes = 4096, .largest_order = 1, .frame_count = 64},
                       .taken = {{0, ~std::uint64_t{0xf}}},
                       .clients = {{.process = 1, .script = {kTwo + 0, kFreeAll}, .home = 0},
                                   {.process = 2, .script = {1, kFreeFirst}}},
                       .daemon = true});
    expect_clean(model.run());
}

// The pool ends inside a leaf word, and a bulk call's intent names all of that.
TEST(Engine, a_death_in_a_bulk_call_in_a_pool_that_ends_inside_a_leaf_word) {
    for (const Geometry &geometry : {Geometry{.frame_bytes = 4096, .largest_order = 1, .frame_count = 6},
                                     Geometry{.frame_bytes = 4096, .largest_order = 2, .frame_count = 68}}) {
        std::vector<std::pair<std::uint64_t, std::uint64_t>> taken;
        if (geometry.frame_count > kLeafFrames) taken.emplace_back(0, ~std::uint64_t{0});
        const int home = geometry.frame_count > kLeafFrames ? 1 : 0;
        EngineModel model("engine-odd-death", {.kills_max = 1, .restarts_max = 1, .solo_steps_max = 4000},
                          {.geometry = geometry,
                           .taken = taken,
                           .clients = {{.process = 1, .script = {kTwo + 0, kFreeAll}, .home = home},
                                       {.process = 2, .script = {1, kFreeFirst}, .mortal = false}},
                           .daemon = true});
        expect_clean(model.run());
    }
}

// The pool ends inside an upper word: three chunks of a word that would have eight or four.
TEST(Engine, a_death_in_a_pool_that_ends_inside_an_upper_word) {
    for (const unsigned largest : {7U, 8U}) {
        EngineModel model("engine-odd-upper",
                          {.kills_max = 1, .preemptions_max = long_runs() ? -1 : 2, .solo_steps_max = 6000},
                          {.geometry = {.frame_bytes = 4096, .largest_order = largest, .frame_count = 3U << largest},
                           .clients = {{.process = 1, .script = {static_cast<int>(largest), 6, kFreeFirst, kFreeFirst}},
                                       {.process = 2, .script = {7, kFreeFirst}, .mortal = false}},
                           .daemon = true});
        expect_clean(model.run());
    }
}

// A block of a chunk that drains is not handed on, or the chunk would never be empty while somebody waits; it is given
// back, and who waits finds something else when there is.
TEST(Engine, a_drain_beside_a_hand_off) {
    EngineModel model("engine-wait-drain", {.preemptions_max = long_runs() ? 3 : 2, .solo_steps_max = 6000},
                      {.geometry = {.frame_bytes = 4096, .largest_order = 7, .frame_count = 256},
                       .taken = {{0, ~std::uint64_t{1}}, {1, kAllTaken}, {2, kAllTaken}, {3, kAllTaken}},
                       .clients = {{.process = 1, .holds = {0}, .script = {kRelease}},
                                   {.process = 2, .script = {kWait + 0, kRelease}}},
                       .chunk_steps = {ChunkStep::drain}});
    expect_clean(model.run());
}

// Two places for a block of order 7, and a client that has something small now in the one and now in the other, never
// in both: one of the two is free at every moment. Whoever looks at one after the other may find each of them taken,
// and has to prove that nothing was free before it says so.
TEST(Engine, what_is_free_now_here_now_there_is_not_out_of_frames) {
    std::vector<int> back_and_forth;
    for (int i = 0; i < (long_runs() ? 8 : 5); ++i)
        back_and_forth.insert(back_and_forth.end(), {kFreeFirst, i % 2 == 0 ? 6 : 5});
    EngineModel model("engine-back-and-forth", {.preemptions_max = -1},
                      {.geometry = {.frame_bytes = 4096, .largest_order = 7, .frame_count = 256},
                       .clients = {{.process = 1, .script = {7}},
                                   {.process = 2, .holds = {5}, .script = back_and_forth, .homes = {{5, 0}, {6, 2}}}}});
    expect_clean(model.run());
}

TEST(EngineLong, three_clients) {
    // Without a bound it is more than 60 million states.
    EngineModel model("engine-three", {.states_max = 60'000'000, .preemptions_max = 3},
                      {.clients = {{.process = 1, .orders = {6}, .operations = 2},
                                   {.process = 2, .orders = {5}, .operations = 2},
                                   {.process = 3, .orders = {7}, .operations = 1}}});
    expect_clean(model.run());
}

TEST(Engine, a_death_of_the_daemon_during_recovery) {
    EngineModel model("engine-daemon-death", {.kills_max = 1, .restarts_max = 1, .solo_steps_max = 4000},
                      {.clients = {{.process = 1, .orders = {5}, .operations = 1},
                                   {.process = 2, .orders = {7}, .operations = 1, .holds = {6}}},
                       .daemon = true});
    expect_clean(model.run());
}

// As a_death_beside_a_claim_that_is_undone, with a death in the run and nobody at home anywhere.
TEST(EngineLong, a_death_beside_three_and_a_claim_that_is_undone) {
    EngineModel model("engine-undo-death-three", {.states_max = 60'000'000, .kills_max = 1, .preemptions_max = 3},
                      {.clients = {{.process = 1, .script = {5}},
                                   {.process = 2, .script = {5}, .mortal = false},
                                   {.process = 3, .script = {7, kFreeFirst, 5}, .mortal = false}},
                       .daemon = true});
    expect_clean(model.run());
}

// Two frames are free at the beginning of each of two leaf words: bulk claims, single claims and bulk frees meet there.
constexpr std::uint64_t kTwoFree = ~std::uint64_t{3};

TEST(Engine, several_blocks_of_a_word_in_one_call) {
    EngineModel model("engine-bulk", {.solo_steps_max = 2000, .find_livelocks = true},
                      {.taken = {{0, kTwoFree}, {1, kTwoFree}},
                       .clients = {{.process = 1, .script = {kTwo + 0, kFreeAll, 0}},
                                   {.process = 2, .script = {0, kFreeFirst, kTwo + 0}}}});
    expect_clean(model.run());
}

TEST(Engine, a_bulk_claim_is_undone_under_a_larger_block) {
    EngineModel model("engine-bulk-undo", {.solo_steps_max = 2000, .find_livelocks = true},
                      {.clients = {{.process = 1, .script = {5, kFreeFirst, kTwo + 5, kFreeAll}},
                                   {.process = 2, .script = {7, kFreeFirst, 6}}}});
    expect_clean(model.run());
}

TEST(Engine, a_cache_is_filled_used_and_flushed) {
    EngineModel model("engine-cache", {.solo_steps_max = 2000, .find_livelocks = true},
                      {.taken = {{0, kTwoFree}, {1, ~std::uint64_t{0}}},
                       .clients = {{.process = 1, .script = {kRefill + 0, kUncache, kCache, kUncache, kGive, kFlush}},
                                   {.process = 2, .script = {0, kFreeFirst, kTake, kCache, kUncache, kFreeFirst}}}});
    expect_clean(model.run());
}

// A thread that is short of memory takes back a block that another thread has cached, while that other thread uses its
// cache by plain stores. In the memory of x86 and of C++20 the barrier keeps the two apart.
Setup idle_cache(std::vector<int> owner, std::vector<int> gatherer) {
    return {.taken = {{0, kTwoFree}, {1, ~std::uint64_t{0}}},
            .clients = {{.process = 1, .caches = {0}, .script = std::move(owner)},
                        {.process = 2, .script = std::move(gatherer), .mortal = false}}};
}
TEST(Engine, cached_blocks_are_taken_back_from_threads_that_do_not_use_them) {
    for (const MemoryMode memory : {MemoryMode::sequential, MemoryMode::total_store_order, MemoryMode::weak}) {
        EngineModel model("engine-idle-cache", {.memory = memory, .store_buffer_max = 3, .barriers = true},
                          idle_cache({kUncacheInside, kCacheInside, kUncacheInside}, {kGather, 0, kFreeFirst}));
        expect_clean(model.run());
    }
}
// The owner answers between two steps, and caches a block after that.
// A block that is born published: its name goes to another process, while a third one wants cached blocks back.
TEST(Engine, a_block_comes_out_of_a_cache_with_its_name) {
    for (const MemoryMode memory : {MemoryMode::sequential, MemoryMode::total_store_order, MemoryMode::weak}) {
        EngineModel model("engine-named", {.memory = memory, .store_buffer_max = 3, .barriers = true},
                          {.taken = {{0, kTwoFree}, {1, ~std::uint64_t{0}}},
                           .clients = {{.process = 1, .caches = {0}, .script = {kUncacheNamed, 0}},
                                       {.process = 2, .script = {kTakeMany, kCacheInside, kUncacheNamed}},
                                       {.process = 3, .script = {kGather}}}});
        expect_clean(model.run());
    }
}
// ... and before the name has got anywhere, somebody who knows the address takes the block.
TEST(Engine, a_block_that_is_born_published_is_taken_by_its_address) {
    for (const MemoryMode memory : {MemoryMode::sequential, MemoryMode::total_store_order, MemoryMode::weak}) {
        EngineModel model("engine-named-found", {.memory = memory, .store_buffer_max = 3, .barriers = true},
                          {.taken = {{0, kTwoFree}, {1, ~std::uint64_t{0}}},
                           .clients = {{.process = 1, .caches = {0}, .script = {kUncacheNamed}},
                                       {.process = 2, .script = {kTakeFound, kFreeFirst}},
                                       {.process = 3, .script = {kTakeMany, kFreeFirst}}}});
        expect_clean(model.run());
    }
}
TEST(Engine, the_giver_of_a_block_that_was_born_published_thinks_again) {
    for (const int what : {kWithdraw, kFreeGiven, kBulkFreeGiven}) {
        EngineModel model("engine-named-again", {.solo_steps_max = 2000},
                          {.taken = {{0, kTwoFree}, {1, ~std::uint64_t{0}}},
                           .clients = {{.process = 1, .caches = {0}, .script = {kUncacheNamed, what, 0}},
                                       {.process = 2, .script = {kTakeMany, kFreeFirst}}}});
        expect_clean(model.run());
    }
}
TEST(Engine, a_death_around_a_block_that_is_born_published_loses_nothing) {
    for (const bool is_giver_mortal : {true, false}) {
        EngineModel model(
            "engine-named-death", {.kills_max = 1, .memory = MemoryMode::total_store_order},
            {.taken = {{0, kTwoFree}, {1, ~std::uint64_t{0}}},
             .clients = {{.process = 1, .caches = {0}, .script = {kUncacheNamed}, .mortal = is_giver_mortal},
                         {.process = 2, .script = {kTakeMany, kCacheInside}, .mortal = !is_giver_mortal}},
             .daemon = true});
        expect_clean(model.run());
    }
}
TEST(Engine, a_block_cached_after_an_answer_is_not_taken_back_for_it) {
    EngineModel model("engine-idle-cache-answer", {.memory = MemoryMode::weak, .barriers = true},
                      {.taken = {{0, kTwoFree}, {1, ~std::uint64_t{0}}},
                       .clients = {{.process = 1, .holds = {0}, .script = {kCacheInside, kCacheInside, kUncacheInside}},
                                   {.process = 2, .script = {kGather, 0}}}});
    expect_clean(model.run());
}
TEST(Engine, two_that_are_short_at_once_take_a_cached_block_back_once) {
    EngineModel model("engine-idle-cache-two", {},
                      {.taken = {{0, kTwoFree}, {1, ~std::uint64_t{0}}},
                       .clients = {{.process = 1, .caches = {0}, .script = {kUncacheInside}},
                                   {.process = 1, .script = {kGather}},
                                   {.process = 2, .script = {kGather, 0}}}});
    expect_clean(model.run());
}
TEST(Engine, a_death_of_who_takes_cached_blocks_back_or_of_their_owner_loses_nothing) {
    for (const bool is_owner_mortal : {true, false}) {
        auto what = idle_cache({kUncacheInside, kCacheInside}, {kGather, 0});
        what.daemon = true;
        what.clients[0].mortal = is_owner_mortal;
        what.clients[1].mortal = !is_owner_mortal;
        EngineModel model("engine-idle-cache-death", {.kills_max = 1, .memory = MemoryMode::total_store_order},
                          std::move(what));
        expect_clean(model.run());
    }
}
// ... and what happens without the barrier.
TEST(Engine, without_a_barrier_a_cached_block_has_two_owners) {
    for (const MemoryMode memory : {MemoryMode::total_store_order, MemoryMode::weak}) {
        EngineModel model("engine-idle-cache-unfenced",
                          {.shorten_transitions_max = 0, .memory = memory, .store_buffer_max = 3, .print = false},
                          idle_cache({kUncacheInside}, {kGatherUnfenced, 0}));
        EXPECT_FALSE(model.run().clean());
    }
}

TEST(Engine, a_death_with_a_cache_or_in_a_bulk_call_loses_nothing) {
    EngineModel model("engine-cache-death", {.kills_max = 1, .solo_steps_max = 4000},
                      {.taken = {{0, kTwoFree}, {1, ~std::uint64_t{0}}},
                       .clients = {{.process = 1, .script = {kRefill + 0, kUncache, kCache, kUncache, kFlushOrFree}},
                                   {.process = 2, .script = {0, kFreeFirst}}},
                       .daemon = true});
    expect_clean(model.run());
}

TEST(Engine, a_death_in_a_bulk_free_beside_another) {
    EngineModel model("engine-bulk-death", {.kills_max = 1, .restarts_max = 1, .solo_steps_max = 4000},
                      {.taken = {{0, ~std::uint64_t{7}}, {1, ~std::uint64_t{0}}},
                       .clients = {{.process = 1, .holds = {0, 0}, .script = {kFreeAll}},
                                   {.process = 2, .holds = {0}, .script = {kFreeFirst, 0}}},
                       .daemon = true});
    expect_clean(model.run());
}

// Waiting (hand_off.hpp): who waits gets what is released, sleeps beside nothing that would do, and a death of any of
// them, at any access, neither loses a block nor leaves another asleep.
constexpr std::uint64_t kOneFree = ~std::uint64_t{1};

TEST(Engine, a_released_block_goes_to_who_waits) {
    EngineModel model("engine-wait", {.solo_steps_max = 4000},
                      {.taken = {{0, kOneFree}, {1, ~std::uint64_t{0}}},
                       .clients = {{.process = 1, .holds = {0}, .script = {kRelease, 0, kRelease}},
                                   {.process = 2, .script = {kWait + 0, kRelease}}}});
    expect_clean(model.run());
}

TEST(Engine, a_larger_block_is_split_for_two_who_wait) {
    EngineModel model("engine-wait-split", {.preemptions_max = long_runs() ? 3 : 1, .solo_steps_max = 4000},
                      {.taken = {{0, kTwoFree}, {1, ~std::uint64_t{0}}},
                       .clients = {{.process = 1, .holds = {1}, .script = {kRelease}},
                                   {.process = 2, .script = {kWait + 0, kRelease}},
                                   {.process = 3, .script = {kWait + 0, kRelease}}}});
    expect_clean(model.run());
}

TEST(Engine, a_death_around_a_hand_off_loses_nothing) {
    EngineModel model("engine-wait-death",
                      {.kills_max = 1, .preemptions_max = long_runs() ? -1 : 1, .solo_steps_max = 4000},
                      {.taken = {{0, kOneFree}, {1, ~std::uint64_t{0}}},
                       .clients = {{.process = 1, .holds = {0}, .script = {kRelease}},
                                   {.process = 2, .script = {kWait + 0, kRelease}}},
                       .daemon = true});
    expect_clean(model.run());
}

// A block of an upper word is nobody's allocation yet while somebody gets it out of the tree for who waits.
TEST(Engine, a_death_around_a_hand_off_of_a_large_block) {
    EngineModel model("engine-wait-large", {.kills_max = 1, .preemptions_max = long_runs() ? -1 : 1},
                      {.clients = {{.process = 1, .holds = {7}, .script = {kRelease}},
                                   {.process = 2, .script = {kWait + 7, kRelease}}},
                       .daemon = true});
    expect_clean(model.run());
}

TEST(Engine, deaths_of_two_around_a_hand_off) {
    EngineModel model(
        "engine-wait-deaths", {.kills_max = 2, .preemptions_max = long_runs() ? -1 : 2, .solo_steps_max = 4000},
        {.taken = {{0, kOneFree}, {1, ~std::uint64_t{0}}},
         .clients = {{.process = 1, .holds = {0}, .script = {kRelease}}, {.process = 2, .script = {kWait + 0}}},
         .daemon = true});
    expect_clean(model.run());
}

TEST(Engine, a_death_among_two_who_wait_leaves_nobody_asleep) {
    EngineModel model("engine-wait-death-three",
                      {.kills_max = 1, .preemptions_max = long_runs() ? 2 : 1, .solo_steps_max = 4000},
                      {.taken = {{0, kOneFree}, {1, ~std::uint64_t{0}}},
                       .clients = {{.process = 1, .holds = {0}, .script = {kRelease}, .mortal = false},
                                   {.process = 2, .script = {kWait + 0, kRelease}},
                                   {.process = 3, .script = {kWait + 0, kRelease}, .mortal = false}},
                       .daemon = true});
    expect_clean(model.run());
}

TEST(Engine, who_gives_up_waiting_may_have_been_given_a_block) {
    EngineModel model("engine-wait-brief",
                      {.kills_max = 1, .preemptions_max = long_runs() ? -1 : 2, .solo_steps_max = 4000},
                      {.taken = {{0, kOneFree}, {1, ~std::uint64_t{0}}},
                       .clients = {{.process = 1, .holds = {0}, .script = {kRelease}},
                                   {.process = 2, .script = {kWaitBriefly + 0, kRelease}}},
                       .daemon = true});
    expect_clean(model.run());
}

// Between the waiter's answer to a nudge and its next look it is nudged again, and is given a block behind that.
TEST(Engine, who_is_nudged_twice_loses_no_block_that_it_is_given) {
    for (const int wait : {kWait, kWaitBriefly}) {
        EngineModel model("engine-wait-nudges", {.preemptions_max = long_runs() ? -1 : 3, .solo_steps_max = 4000},
                          {.taken = {{0, kOneFree}, {1, ~std::uint64_t{0}}},
                           .clients = {{.process = 1, .holds = {0}, .script = {kRelease}},
                                       {.process = 2, .script = {wait + 0, kRelease}},
                                       {.process = 3, .script = {kNudge, kNudge}}}});
        expect_clean(model.run());
    }
}

// A look at the words, then a claim of what it found and nothing else (fit.hpp). Below a larger block that
// others want, where marks are kept from before, and in a chunk that is to go.
TEST(Engine, two_clients_that_take_what_a_look_has_found) {
    EngineModel model("engine-fit", {.solo_steps_max = 2000, .find_livelocks = true},
                      {.clients = {{.process = 1, .used = {5}, .script = {kFitting + 5, kFreeFirst}},
                                   {.process = 2, .script = {kFitting + 7, kFreeFirst, 5}}}});
    expect_clean(model.run());
}

TEST(Engine, a_look_beside_a_chunk_that_is_drained) {
    EngineModel model("engine-fit-drain", {.preemptions_max = long_runs() ? -1 : 2, .solo_steps_max = 4000},
                      {.geometry = {.frame_bytes = 4096, .largest_order = 7, .frame_count = 256},
                       .clients = {{.process = 1, .script = {kFitting + 7, kFreeFirst}, .thread_slot = 2}},
                       .chunk_steps = {ChunkStep::drain, ChunkStep::offline, ChunkStep::online, ChunkStep::undrain}});
    expect_clean(model.run());
}

TEST(Engine, a_death_of_a_client_that_takes_what_a_look_has_found) {
    EngineModel model("engine-fit-death", {.kills_max = 1, .solo_steps_max = 4000},
                      {.clients = {{.process = 1, .used = {5}, .script = {kFitting + 7}},
                                   {.process = 2, .script = {kFitting + 5, kFreeFirst}}},
                       .daemon = true});
    expect_clean(model.run());
}

TEST(Engine, a_chunk_is_drained_and_taken_offline_beside_clients) {
    // Of slots that like the chunk.
    EngineModel model("engine-drain", {.preemptions_max = long_runs() ? 4 : 2, .solo_steps_max = 4000},
                      {.geometry = {.frame_bytes = 4096, .largest_order = 7, .frame_count = 256},
                       .clients = {{.process = 1, .script = {5, kFreeFirst}, .thread_slot = 2},
                                   {.process = 2, .script = {7, kFreeFirst}, .thread_slot = 4}},
                       .chunk_steps = {ChunkStep::drain, ChunkStep::offline, ChunkStep::online, ChunkStep::undrain}});
    expect_clean(model.run());
}

// The operator opens a chunk, and has not come to its hints yet: what is free in it is there for whoever looks.
TEST(Engine, a_chunk_that_drains_no_more_is_hidden_from_nobody) {
    EngineModel model("engine-undrain", {.preemptions_max = long_runs() ? 4 : 2, .solo_steps_max = 4000},
                      {.geometry = {.frame_bytes = 4096, .largest_order = 7, .frame_count = 256},
                       .clients = {{.process = 1, .script = {5, kFreeFirst}, .thread_slot = 2},
                                   {.process = 2, .script = {7, kFreeFirst, 7}, .thread_slot = 4}},
                       .chunk_steps = {ChunkStep::drain, ChunkStep::offline, ChunkStep::online, ChunkStep::undrain}});
    expect_clean(model.run());
}

TEST(Engine, a_daemon_that_dies_while_it_takes_a_chunk_offline_or_online) {
    EngineModel model("engine-chunk-death",
                      {.restarts_max = 1, .preemptions_max = long_runs() ? 3 : 1, .solo_steps_max = 4000},
                      {.geometry = {.frame_bytes = 4096, .largest_order = 7, .frame_count = 256},
                       .clients = {{.process = 1, .script = {5, kFreeFirst}, .thread_slot = 2},
                                   {.process = 2, .script = {7, kFreeFirst}, .thread_slot = 4}},
                       .chunk_steps = {ChunkStep::offline, ChunkStep::online}});
    expect_clean(model.run());
}

// The daemon's unit of two chunks, as NodeMemory takes it off and on, dying between any two steps of the chunks and of
// its ledger. Somebody holds a block in the second chunk for a while: the first is then taken, and given back.
TEST(Engine, a_daemon_that_dies_in_the_middle_of_a_unit_of_several_chunks) {
    const Geometry geometry{.frame_bytes = 4096, .largest_order = 7, .frame_count = 256};
    const std::vector<ChunkStep> hard{ChunkStep::drain, ChunkStep::offline, ChunkStep::online, ChunkStep::undrain};
    const std::vector<ChunkStep> soft{ChunkStep::offline, ChunkStep::online};
    for (const auto &steps : {hard, soft}) {
        // At home in the second chunk.
        EngineModel model("engine-unit-death",
                          {.restarts_max = 1, .preemptions_max = long_runs() ? -1 : 2, .solo_steps_max = 4000},
                          {.geometry = geometry,
                           .clients = {{.process = 1, .script = {5, kFreeFirst}, .home = 2}},
                           .chunk_steps = steps,
                           .unit_chunks = 2});
        expect_clean(model.run());
    }
}

TEST(Engine, three_upper_layers) {
    EngineModel model(
        "engine-three-layers", {.preemptions_max = 2, .solo_steps_max = 6000},
        {.geometry = {.frame_bytes = 4096, .largest_order = 13, .frame_count = 8192},
         .clients = {{.process = 1, .script = {6, kFreeFirst, 13}}, {.process = 2, .script = {12, kFreeFirst, 9}}}});
    expect_clean(model.run());
}

TEST(EngineLong, four_clients) {
    EngineModel model("engine-four", {.preemptions_max = 2, .solo_steps_max = 2000},
                      {.clients = {{.process = 1, .script = {5, kFreeFirst}},
                                   {.process = 2, .script = {6, kFreeFirst}},
                                   {.process = 3, .script = {7, kFreeFirst}},
                                   {.process = 3, .script = {kTwo + 5, kFreeAll}}}});
    expect_clean(model.run());
}

TEST(Engine, two_upper_layers) {
    EngineModel model("engine-layers", {.solo_steps_max = 4000, .find_livelocks = true},
                      {.geometry = {.frame_bytes = 4096, .largest_order = 10, .frame_count = 1024},
                       .clients = {{.process = 1, .orders = {6, 10}, .operations = 2},
                                   {.process = 2, .orders = {9, 10}, .operations = 2}}});
    expect_clean(model.run());
}

// The word where the larger block lay, and nowhere else to look: what the lost race leaves is left for good.
TEST(Engine, a_race_lost_in_the_only_upper_word_leaves_nothing) {
    EngineModel model("engine-lost-large", {.solo_steps_max = 4000, .find_livelocks = true},
                      {.geometry = {.frame_bytes = 4096, .largest_order = 9, .frame_count = 512},
                       .clients = {{.process = 1, .script = {9, kFreeFirst, 9}}, {.process = 2, .script = {7}}}});
    expect_clean(model.run());
}

}  // namespace
}  // namespace numacre::model
