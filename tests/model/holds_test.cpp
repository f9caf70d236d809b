// Blocks that several processes hold (shm/holds.hpp), in every interleaving and with a death at every access: what is
// held is not freed, and what nobody holds any more comes back.
#include "engine_model.hpp"

#include <gtest/gtest.h>

#include <string>

namespace numacre::model {
namespace {

constexpr std::uint64_t kAllTaken = ~std::uint64_t{0};
// Of order 5 there is one block and no other: whoever allocates gets what was held.
const std::vector<std::pair<std::uint64_t, std::uint64_t>> kOneOfOrder5{{0, kAllTaken << 32}, {1, kAllTaken}};

struct Story {
    std::string name;
    std::vector<Client> clients;
};

Client owner(std::vector<int> script) {
    return {.process = 1, .holds = {5}, .script = std::move(script)};
}
Client other(std::uint16_t process, std::vector<int> script, bool mortal = true) {
    return {.process = process, .script = std::move(script), .mortal = mortal};
}

void expect_clean(const Story &story, Options options, bool daemon = false, bool quarantine = false) {
    SCOPED_TRACE(story.name);
    EngineModel model(story.name, options,
                      {.taken = kOneOfOrder5, .clients = story.clients, .daemon = daemon, .quarantine = quarantine});
    const Report report = model.run();
    EXPECT_TRUE(report.clean()) << report.violation;
    EXPECT_TRUE(report.complete);
}

const std::vector<Story> kTwo{
    {"hold-free", {owner({kGive, kFreeGiven, 5}), other(2, {kHold, kDrop})}},
    {"hold-bulk-free", {owner({kGive, kBulkFreeGiven, 5}), other(2, {kHold, kDrop})}},
    {"hold-withdraw", {owner({kGive, kWithdraw, kFreeFirst, 5}), other(2, {kHold, kDrop})}},
    {"hold-twice", {owner({kGive, kFreeGiven, 5}), other(2, {kHold, kHold, kDrop, kDrop})}},
    {"hold-take", {owner({kGive, 5}), other(2, {kHold, kTake, kFreeFirst, kDrop, 5})}},
    {"hold-again", {owner({kGive, kFreeGiven, 5, kGive, kFreeGiven}), other(2, {kHold, kDrop, kHold, kDrop})}},
};
const std::vector<Story> kThree{
    {"hold-free-beside", {owner({kGive, kFreeGiven}), other(2, {kHold, kDrop}), other(3, {5})}},
    {"hold-two-readers", {owner({kGive, kFreeGiven, 5}), other(2, {kHold, kDrop}), other(3, {kHold, kDrop})}},
    {"hold-two-threads", {owner({kGive, kFreeGiven}), other(2, {kHold, kDrop}), other(2, {kHold, kDrop})}},
    {"hold-beside-take", {owner({kGive, 5}), other(2, {kTake, kFreeFirst}), other(3, {kHold, kDrop})}},
    {"hold-beside-take-many", {owner({kGive, 5}), other(2, {kTakeMany, kFreeFirst}), other(3, {kHold, kDrop})}},
    {"hold-withdraw-beside", {owner({kGive, kWithdraw, kFreeFirst}), other(2, {kHold, kDrop}), other(3, {5})}},
    {"hold-taken-twice", {owner({kGive, 5}), other(2, {kTake, kGive, kFreeGiven}), other(3, {kHold, kDrop})}},
};

TEST(Holds, what_is_held_is_not_freed_and_the_last_drop_frees) {
    for (const auto *stories : {&kTwo, &kThree})
        for (const Story &story : *stories) expect_clean(story, {.solo_steps_max = 4000, .find_livelocks = true});
}

TEST(Holds, in_the_memory_of_x86) {
    for (const auto *stories : {&kTwo, &kThree})
        for (const Story &story : *stories) expect_clean(story, {.memory = MemoryMode::total_store_order});
}

TEST(Holds, in_weak_memory) {
    for (const Story &story : kTwo) expect_clean(story, {.memory = MemoryMode::weak});
}

TEST(HoldsLong, three_in_weak_memory) {
    for (const Story &story : kThree) expect_clean(story, {.memory = MemoryMode::weak});
}

TEST(Holds, a_death_loses_nothing) {
    for (const Story &story : kTwo)
        expect_clean(story, {.kills_max = 1, .restarts_max = 1, .solo_steps_max = 4000}, true);
}

TEST(Holds, a_death_of_two_loses_nothing) {
    for (const Story &story : kTwo) expect_clean(story, {.kills_max = 2, .solo_steps_max = 4000}, true);
}

// Minutes.
TEST(HoldsLong, a_death_of_one_of_three_loses_nothing) {
    for (const Story &story : kThree) expect_clean(story, {.kills_max = 1, .solo_steps_max = 4000}, true);
}

TEST(Holds, a_block_that_the_daemon_seizes_is_not_zeroed_under_its_readers) {
    for (const Story &story : kTwo) expect_clean(story, {.kills_max = 1, .restarts_max = 1}, true, true);
}

}  // namespace
}  // namespace numacre::model
