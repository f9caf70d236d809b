// When a further search is worth while after others were asked for their caches. (tests/model has the protocol itself,
// client_answer_test.cpp the client's part.)
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>

#include "numacre/shm/idle_caches.hpp"
#include "support/shm_pool.hpp"

namespace numacre::test {
namespace {

class IdleCachesTest : public ::testing::Test {
protected:
    IdleCachesTest() {
        shm_.online_all();
        self_ = shm_.actor(1, 1);
        (void)shm_.actor(2, 1);
        // Nobody has cached anything, and a walk has told so.
        request_ = Attention::requests(shm_.view.header->attention.load());
        for (const unsigned thread : {1U, 2U}) shm_.view.threads[thread].answered.store(request_);
    }

    // One failing call: asks, and looks for what there is.
    bool look() {
        request_ = Attention::requests(shm_.view.header->attention.fetch_add(Attention::kPressureStep) +
                                       Attention::kPressureStep);
        shm_.view.threads[self_.thread.value].answered.store(request_);
        meanwhile_();
        now_ns_ += 2 * kBarrierAgainAfterNanoseconds;
        const auto node_at = [this](std::uint32_t) -> const NodeView<ProductionEnv> & { return shm_.node; };
        return take_back_idle_caches(shm_.view, 1, node_at, self_, now_ns_, walked_seen_, [this] {
            ++barriers_;
            return true;
        });
    }

    ShmPool shm_{4096, 4 << 20, 4};
    Actor self_{};
    std::uint64_t request_ = 0;
    std::uint64_t now_ns_ = 1;
    std::uint64_t walked_seen_ = 0;
    unsigned barriers_ = 0;
    std::function<void()> meanwhile_ = [] {};
};

TEST_F(IdleCachesTest, one_barrier_and_walk_is_enough_while_nobody_caches_anything) {
    EXPECT_TRUE(look());
    EXPECT_EQ(barriers_, 1U);
    EXPECT_FALSE(look());
    EXPECT_FALSE(look());
    EXPECT_EQ(barriers_, 1U);
}

// Between the search that has failed and the look, the thread has given back what it had.
TEST_F(IdleCachesTest, an_answer_to_this_very_request_is_worth_a_search) {
    (void)look();
    meanwhile_ = [this] { shm_.view.threads[2].answered.store(request_); };
    EXPECT_TRUE(look());
    EXPECT_EQ(barriers_, 1U) << "there is nothing to take back";
}

TEST_F(IdleCachesTest, a_walk_of_others_is_worth_a_search_once) {
    (void)look();
    // They have asked before, have taken back all that was cached, and say so.
    shm_.view.header->attention.fetch_add(Attention::kPressureStep);
    meanwhile_ = [this] {
        shm_.view.header->gathered_for.store(request_ - 1);
        shm_.view.header->walked_for.store(request_ - 1);
    };
    EXPECT_TRUE(look());
    meanwhile_ = [] {};
    EXPECT_FALSE(look());
    EXPECT_EQ(barriers_, 1U);
}

}  // namespace
}  // namespace numacre::test
