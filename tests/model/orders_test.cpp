// The allocator in memory that is weaker than sequential consistency: it is right there too, and each memory order in
// shm/ is either needed, so that some model fails when it is weakened by one step, or listed here with a reason.
// NUMACRE_MODEL_LONG=1 in the environment also looks whether the list is too long, and adds models.
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "engine_model.hpp"
#include "orders.hpp"

namespace numacre::model {
namespace {

struct Model {
    const char *name;
    Setup setup;
    unsigned kills_max = 0;
};

// Small, and the first ones notice most.
std::vector<Model> all_models() {
    const Geometry layers{.frame_bytes = 4096, .largest_order = 10, .frame_count = 1024};
    constexpr std::uint64_t kTwoFree = ~std::uint64_t{3};
    // One frame is free in the whole pool.
    const std::vector<std::pair<std::uint64_t, std::uint64_t>> but_one{{0, ~std::uint64_t{1}}, {1, ~std::uint64_t{0}}};
    std::vector<std::pair<std::uint64_t, std::uint64_t>> all_but_first;
    for (std::uint64_t word = 1; word < kUpperFanOut; ++word) all_but_first.emplace_back(word, ~std::uint64_t{0});
    return {
        {"two-words",
         {.clients = {{.process = 1, .orders = {5}, .operations = 2, .holds = {6}},
                      {.process = 2, .orders = {7}, .operations = 1, .holds = {5}}}}},
        {"newcomer",
         {.clients = {{.process = 1, .script = {5}}, {.process = 2, .holds = {6}, .script = {kFreeFirst, 7}}}}},
        {"one-block",
         {.clients = {{.process = 1, .script = {7, kFreeFirst}}, {.process = 2, .script = {7, kFreeFirst, 7}}}}},
        {"hand-over",
         {.clients = {{.process = 1, .script = {6, kGive, 7}}, {.process = 2, .script = {kTake, kFreeFirst, 6}}}}},
        {"one-frame",
         {.taken = but_one,
          .clients = {{.process = 1, .script = {0, kFreeFirst}}, {.process = 2, .script = {0, kFreeFirst, 0}}}}},
        // Eight leaf words, all used up: looked at in one go.
        {"full-group",
         {.geometry = {.frame_bytes = 4096, .largest_order = 9, .frame_count = 512},
          .taken = all_but_first,
          .clients = {{.process = 1, .holds = {6}, .script = {kFreeFirst}}, {.process = 2, .script = {6}}}}},
        {"death-of-an-owner",
         {.taken = but_one,
          .clients = {{.process = 1, .holds = {0}}, {.process = 2, .script = {0}, .mortal = false}},
          .daemon = true},
         1},
        {"death-in-free",
         {.clients = {{.process = 1, .holds = {7}, .script = {kFreeFirst}},
                      {.process = 2, .script = {7, kFreeFirst}, .mortal = false}},
          .daemon = true},
         1},
        {"two-layers",
         {.geometry = layers,
          .clients = {{.process = 1, .holds = {9}, .script = {kFreeFirst, 9}},
                      {.process = 2, .script = {10, kFreeFirst, 6}}}}},
        {"newcomer-above",
         {.geometry = layers,
          .clients = {{.process = 1, .script = {8}}, {.process = 2, .holds = {9}, .script = {kFreeFirst, 10}}}}},
        {"death-in-allocate",
         {.clients = {{.process = 1, .script = {7}}, {.process = 2, .script = {7, kFreeFirst, 7}, .mortal = false}},
          .daemon = true},
         1},
        // A relaxed store over a release store of the same word ends what the release carried (C++20; hardware of today
        // is kinder). With relaxed intents, recovery of process 1 sees process 2's second intent, which is in nobody's
        // way, but an old index entry of its first block, and takes that block's bits for the dead client's.
        {"second-intent",
         {.clients = {{.process = 1, .script = {6}}, {.process = 2, .script = {6, 6}, .mortal = false}},
          .daemon = true},
         1},
        {"death-in-bulk-free",
         {.clients = {{.process = 1, .script = {5}}, {.process = 2, .script = {5, kFreeAll, 6}, .mortal = false}},
          .daemon = true},
         1},
        // Published: others might take it.
        {"death-in-free-of-given",
         {.clients = {{.process = 1, .script = {5}},
                      {.process = 2, .script = {5, kGive, kFreeGiven, 6}, .mortal = false}},
          .daemon = true},
         1},
        {"death-in-bulk-free-of-given",
         {.clients = {{.process = 1, .script = {5}},
                      {.process = 2, .script = {5, kGive, kBulkFreeGiven, 6}, .mortal = false}},
          .daemon = true},
         1},
        {"bulk",
         {.taken = {{0, kTwoFree}, {1, ~std::uint64_t{0}}},
          .clients = {{.process = 1, .script = {kTwo + 0, kFreeAll}}, {.process = 2, .script = {kTwo + 0, kFreeAll}}}}},
        {"bulk-undo",
         {.clients = {{.process = 1, .script = {5, kFreeFirst, kTwo + 5}}, {.process = 2, .script = {7, kFreeFirst}}}}},
        {"cache",
         {.taken = {{0, kTwoFree}, {1, ~std::uint64_t{0}}},
          .clients = {{.process = 1, .script = {kRefill + 0, kUncache, kCache, kFlush}},
                      {.process = 2, .script = {0, kFreeFirst}}}}},
        {"cache-death",
         {.taken = {{0, kTwoFree}, {1, ~std::uint64_t{0}}},
          .clients = {{.process = 1, .script = {kRefill + 0, kUncache, kFlushOrFree}},
                      {.process = 2, .script = {0}, .mortal = false}},
          .daemon = true},
         1},
        {"idle-cache",
         {.taken = {{0, kTwoFree}, {1, ~std::uint64_t{0}}},
          .clients = {{.process = 1, .caches = {0}, .script = {kUncacheInside, kCacheInside, kUncacheInside}},
                      {.process = 2, .script = {kGather, 0}}}}},
        {"idle-cache-answer",
         {.taken = {{0, kTwoFree}, {1, ~std::uint64_t{0}}},
          .clients = {{.process = 1, .holds = {0}, .script = {kCacheInside, kCacheInside, kUncacheInside}},
                      {.process = 2, .script = {kGather, 0}}}}},
        {"idle-cache-named",
         {.taken = {{0, kTwoFree}, {1, ~std::uint64_t{0}}},
          .clients = {{.process = 1, .caches = {0}, .script = {kUncacheNamed, 0}},
                      {.process = 2, .script = {kTakeMany, kCacheInside, kUncacheNamed}}}}},
        {"idle-cache-named-found",
         {.taken = {{0, kTwoFree}, {1, ~std::uint64_t{0}}},
          .clients = {{.process = 1, .caches = {0}, .script = {kUncacheNamed}},
                      {.process = 2, .script = {kTakeFound, kFreeFirst}}}}},
        {"hold",
         {.taken = but_one,
          .clients = {{.process = 1, .holds = {0}, .script = {kGive, kFreeGiven, 0}},
                      {.process = 2, .script = {kHold, kDrop}}}}},
        {"hold-two",
         {.taken = but_one,
          .clients = {{.process = 1, .holds = {0}, .script = {kGive, kFreeGiven}},
                      {.process = 2, .script = {kHold, kDrop}},
                      {.process = 3, .script = {kHold, kDrop}}}}},
        {"hold-death",
         {.taken = but_one,
          .clients = {{.process = 1, .holds = {0}, .script = {kGive, kFreeGiven, 0}, .mortal = false},
                      {.process = 2, .script = {kHold, kDrop}}},
          .daemon = true},
         1},
        {"hold-death-of-the-owner",
         {.taken = but_one,
          .clients = {{.process = 1, .holds = {0}, .script = {kGive, kFreeGiven}},
                      {.process = 2, .script = {kHold, kDrop}, .mortal = false}},
          .daemon = true},
         1},
    };
}

std::vector<Model> models() {
    std::vector<Model> all = all_models();
    if (const char *const wanted = std::getenv("NUMACRE_ORDERS_MODELS"))
        std::erase_if(all, [wanted](const Model &model) { return !std::string_view(model.name).starts_with(wanted); });
    return all;
}

// Of a hand-off. Only to show that weaker memory does no harm: the orders of hand_off.hpp are not in the list below
// yet.
std::vector<Model> waiting_models() {
    // One frame is free in the whole pool, and it is held.
    const std::vector<std::pair<std::uint64_t, std::uint64_t>> but_one{{0, ~std::uint64_t{1}}, {1, ~std::uint64_t{0}}};
    return {
        {"wait",
         {.taken = but_one,
          .clients = {{.process = 1, .holds = {0}, .script = {kRelease}}, {.process = 2, .script = {kWait + 0}}}}},
        {"wait-brief",
         {.taken = but_one,
          .clients = {{.process = 1, .holds = {0}, .script = {kRelease}},
                      {.process = 2, .script = {kWaitBriefly + 0}}}}},
    };
}

// Only to show that weaker memory does no harm.
std::vector<Model> more_models() {
    const Geometry layers{.frame_bytes = 4096, .largest_order = 10, .frame_count = 1024};
    return {
        {"three",
         {.clients = {{.process = 1, .orders = {6}, .operations = 1},
                      {.process = 2, .orders = {5}, .operations = 1},
                      {.process = 3, .orders = {7}, .operations = 1}}}},
        {"two",
         {.clients = {{.process = 1, .orders = {5, 6, 7}, .operations = 2},
                      {.process = 2, .orders = {5, 6, 7}, .operations = 2}}}},
        {"layers",
         {.geometry = layers,
          .clients = {{.process = 1, .orders = {6, 10}, .operations = 2},
                      {.process = 2, .orders = {9, 10}, .operations = 2}}}},
        {"death-beside-two",
         {.clients = {{.process = 1, .holds = {7}, .script = {kFreeFirst}},
                      {.process = 2, .script = {7, kFreeFirst}, .mortal = false},
                      {.process = 3, .script = {7}, .mortal = false}},
          .daemon = true},
         1},
    };
}

Report explore(const Model &model, const Options &base) {
    Options options = base;
    options.kills_max = model.kills_max;
    options.barriers = std::string_view(model.name).starts_with("idle-cache");
    EngineModel engine(model.name, options, model.setup);
    return engine.run();
}

// --- the accesses ----------------------------------------------------------------------------------------------------

std::vector<Site> sites_of_all_models() {
    Options options;
    options.print = false;
    options.collect_sites = true;
    std::vector<Site> sites;
    for (const Model &model : models()) {
        options.kills_max = model.kills_max;
        EngineModel engine(model.name, options, model.setup);
        engine.run();
        const std::vector<Site> more = engine.explorer.sites();
        sites.insert(sites.end(), more.begin(), more.end());
    }
    sort_and_unite(sites);
    return sites;
}

// --- the list --------------------------------------------------------------------------------------------------------

// "More than needed" is argued, not proven: it holds for this algorithm as it stands. The others name what a model that
// could notice would need.
constexpr const char *kCoherent =
    "more than needed: the thread has seen this word with the mark, and a word never goes back";
constexpr const char *kRetried = "more than needed: a failed exchange only makes the loop look again";
constexpr const char *kUnused = "more than needed: after a failure the value is not looked at";
constexpr const char *kGuess = "more than needed: a guess; an RMW or another look decides";
constexpr const char *kOneWord = "more than needed: RMWs of one word are in one sequence whatever their order";
constexpr const char *kCarried = "more than needed: the RMW before or behind it carries it";
constexpr const char *kChannel =
    "more than needed if references and addresses come by a channel that synchronises, as here";
constexpr const char *kDead = "more than needed: only read after the kernel's word of a death, which synchronises";
constexpr const char *kDaemonOnly = "more than needed: only the daemon writes it";
constexpr const char *kSlotReuse = "needs a model in which a slot is used again after recovery";
constexpr const char *kPromise =
    "needs a promise across threads: that \"out of frames\" is true; here it is asked for what the client knows only";
constexpr const char *kLentFirst =
    "more than needed: the free of a lent block reads what this exchange has written, and with it the word";
constexpr const char *kUndone =
    "needs a claim undone beside a dead client's intent on the same block (seen to be noticed so, in 20 million "
    "states)";
constexpr const char *kOwnWrite =
    "more than needed: the caller has just written this word; what others free later they raise";
constexpr const char *kHints = "needs hints of two levels lowered and raised at once";
constexpr const char *kDeepRecovery = "needs recovery of a block in an upper word beside two living clients";

constexpr auto kNobodyWaits =
    "nobody waits in these models; if it misses who is giving a block, that goes to the tree, and is found gone";
constexpr Unnoticed kUnnoticed[] = {
    {"ownership.hpp take_at: load acquire -> relaxed", kGuess},
    {"ownership.hpp take_at: cas acq_rel -> acquire", kChannel},
    {"ownership.hpp take_at: cas acq_rel -> release", kChannel},
    {"ownership.hpp take_at: cas acquire on failure -> relaxed", kUnused},
    {"leaf_names.hpp take: load acquire -> relaxed", kGuess},
    {"leaf_names.hpp take: cas acq_rel -> acquire", kChannel},
    {"leaf_names.hpp take: cas acq_rel -> release", kChannel},
    {"leaf_names.hpp take: cas acquire on failure -> relaxed", kUnused},
    {"ownership.hpp find_name: load acquire -> relaxed", kGuess},
    {"ownership.hpp publish_in_leaf: load acquire -> relaxed", kChannel},
    {"ownership.hpp publish_at: cas release -> relaxed", kChannel},
    {"ownership.hpp publish_at: cas acquire on failure -> relaxed", kUnused},
    {"release.hpp free_in_leaf: load acquire -> relaxed", kChannel},
    {"tree.hpp find_in_layers: load acquire -> relaxed", kChannel},
    {"release.hpp free_in_layer: load acquire -> relaxed", kChannel},
    {"release.hpp become_freer: cas acq_rel -> release", kCarried},
    {"release.hpp become_freer: cas acquire on failure -> relaxed", kGuess},
    {"coalesce.hpp clean: load seq_cst -> acquire", kCoherent},
    {"coalesce.hpp clean: cas seq_cst on failure -> acquire", kRetried},
    {"coalesce.hpp clean: cas seq_cst -> acq_rel (2)", kHints},
    {"coalesce.hpp clean: cas seq_cst on failure -> acquire (2)", kRetried},
    {"coalesce.hpp clean_through: load seq_cst -> acquire", kGuess},
    {"tree.hpp commit: store release -> relaxed", kChannel},
    {"coalesce.hpp clean_children: load seq_cst -> acquire", kGuess},
    {"claim.hpp climb: cas seq_cst -> acq_rel", kOneWord},
    {"claim.hpp climb: cas seq_cst on failure -> acquire", kCoherent},
    {"claim.hpp leave_trace: store release -> relaxed", kUndone},
    {"release.hpp start_freeing: load acquire -> relaxed", kChannel},
    {"release.hpp start_freeing: cas acq_rel -> release", kCarried},
    {"release.hpp start_freeing: cas acquire on failure -> relaxed", kUnused},
    {"release.hpp unclaim: fetch_and seq_cst -> acq_rel", kHints},
    {"refusal.hpp collect_hint_work: load acquire -> relaxed", kPromise},
    {"refusal.hpp collect_hint_work: load acquire -> relaxed (2)", kPromise},
    {"elsewhere.hpp scan_and_claim: load acquire -> relaxed", kGuess},
    {"refusal.hpp stands_in: load acquire -> relaxed", kPromise},
    {"refusal.hpp holder_stands_in_leaf: load acquire -> relaxed", kPromise},
    {"refusal.hpp holder_stands_at: load acquire -> relaxed", kPromise},
    {"refusal.hpp operations_stand_in_leaf: load acquire -> relaxed", kPromise},
    {"refusal.hpp operations_stand_in_leaf: load acquire -> relaxed (2)", kPromise},
    {"refusal.hpp stand_everywhere: load acquire -> relaxed", kPromise},
    {"recovery.hpp recover: load acquire -> relaxed", kDead},
    {"recovery.hpp recover: store release -> relaxed", kSlotReuse},
    {"recovery.hpp finish_thread: load acquire -> relaxed", kDead},
    {"recovery.hpp finish_thread: load acquire -> relaxed (2)", kDead},
    {"recovery.hpp finish_thread: store release -> relaxed", kSlotReuse},
    {"recovery.hpp finish_thread: store release -> relaxed (2)", kSlotReuse},
    {"recovery.hpp finish_hints: load acquire -> relaxed", kDead},
    {"recovery.hpp resolve: load acquire -> relaxed (2)", kCoherent},
    {"recovery.hpp is_live: load acquire -> relaxed", kDaemonOnly},
    {"recovery.hpp is_live: load acquire -> relaxed (2)", kDaemonOnly},
    {"recovery.hpp bits_in_word: load seq_cst -> acquire", kGuess},
    {"recovery.hpp bits_in_word: load seq_cst -> acquire (2)", kGuess},
    {"recovery.hpp clear_bits: fetch_and seq_cst -> acq_rel (2)", kDeepRecovery},
    {"idle_caches.hpp answer_request: store release -> relaxed", kPromise},
    {"search.hpp leaf_value: load seq_cst -> acquire", kOwnWrite},
    {"search.hpp lower: load seq_cst -> acquire", kGuess},
    {"search.hpp lower: cas seq_cst on failure -> acquire", kRetried},
    {"search.hpp state_of: load seq_cst -> acquire", kHints},
    {"search.hpp empty_among: load seq_cst -> acquire", kHints},
    {"search.hpp raise_one: cas seq_cst -> acq_rel", kHints},
    {"search.hpp raise_one: cas seq_cst on failure -> acquire", kRetried},
    {"search.hpp end_hint_work: store release -> relaxed", kPromise},
    {"holds.hpp hold: load acquire -> relaxed", kGuess},
    {"holds.hpp hold_in_leaf: load acquire -> relaxed", kGuess},
    {"holds.hpp free_if_last: load seq_cst -> acquire", kDead},
    {"release.hpp free_lent: cas seq_cst on failure -> acquire", kUnused},
    {"recovery.hpp drop_holds: load acquire -> relaxed", kDead},
    {"holds.hpp hold: cas seq_cst -> acq_rel", kLentFirst},
    {"walk.hpp leaf_word: load acquire -> relaxed", kDead},
    {"walk.hpp leaf_word: load acquire -> relaxed (2)", kDead},
    {"walk.hpp upper_word: load acquire -> relaxed", kDead},
    {"hand_off.hpp nudge_waiters: load seq_cst -> acquire", kNobodyWaits},
    {"recovery.hpp take_back_given: load acquire -> relaxed", kNobodyWaits},
    {"recovery.hpp take_back_untold: load acquire -> relaxed", kNobodyWaits},
    {"walk.hpp allocated_child: load acquire -> relaxed", kDead},
};

constexpr int kPreemptions = 1;

// Which model notices; empty: none.
std::string noticed_by(const Weakening &weakening) {
    Options options;
    options.memory = MemoryMode::weak;
    options.weaken = weakening;
    options.print = false;
    options.shorten_transitions_max = 0;
    std::vector<Model> all = models();
    // Only these know the accesses of holds.
    const bool is_of_holds = std::string_view(weakening.file).ends_with("holds.hpp");
    std::stable_partition(all.begin(), all.end(), [&](const Model &model) {
        return std::string_view(model.name).starts_with("hold") == is_of_holds;
    });
    // Few bugs need many preemptions.
    for (const int preemptions : {kPreemptions, -1}) {
        options.preemptions_max = preemptions;
        for (const Model &model : all)
            if (!explore(model, options).clean()) return model.name;
    }
    return {};
}

TEST(Orders, each_is_noticed_when_weakened_or_listed_with_a_reason) {
    const std::vector<Named> all =
        weakenings_of(sites_of_all_models(), [](const Site &site) { return is_in(site, "numacre/shm/"); });
    EXPECT_GT(all.size(), 40U);
    expect_noticed_or_listed(all, kUnnoticed, noticed_by);
}

void expect_clean_in(MemoryMode memory) {
    Options options;
    options.memory = memory;
    options.states_max = 60'000'000;
    std::vector<Model> all = models();
    const std::vector<Model> waiting = waiting_models();
    all.insert(all.end(), waiting.begin(), waiting.end());
    if (long_runs()) {
        const std::vector<Model> more = more_models();
        all.insert(all.end(), more.begin(), more.end());
    }
    for (const Model &model : all) {
        // As large as all others together.
        options.preemptions_max = !long_runs() && std::string_view(model.name) == "cache-death" ? 2 : -1;
        const Report report = explore(model, options);
        EXPECT_TRUE(report.clean()) << model.name << ": " << report.violation;
        EXPECT_TRUE(report.complete) << model.name;
    }
}

TEST(Orders, the_engine_is_right_in_total_store_order) {
    expect_clean_in(MemoryMode::total_store_order);
}

TEST(Orders, the_engine_is_right_in_weak_memory) {
    expect_clean_in(MemoryMode::weak);
}

}  // namespace
}  // namespace numacre::model
