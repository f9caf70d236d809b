// Who asks what a look has found, while looks come and go, and while one stands still.
#include "pool/look.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <stdexcept>
#include <thread>
#include <vector>

namespace numacre::daemon {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kForEver{std::chrono::hours{1}};

class LookTest : public testing::Test {
protected:
    // Runs what the worker has, and ends it before the look.
    void TearDown() override { worker_.finish(); }
    // Nothing that is posted to the worker runs before the promise is kept.
    void close_gate() {
        worker_.post([opened = gate_.get_future().share()] { opened.wait(); });
    }
    void open_gate() { gate_.set_value(); }

    std::atomic<int> begun_{0};
    Worker worker_;
    Look<int> look_{worker_, [this] { return ++begun_; }};

private:
    std::promise<void> gate_;
};

TEST_F(LookTest, each_call_finds_what_a_look_after_it_has_found) {
    for (int i = 1; i <= 3; ++i) {
        const auto result = look_.take(kForEver);
        ASSERT_TRUE(result.found);
        EXPECT_EQ(*result.found, i);
        EXPECT_EQ(result.stale_for, milliseconds{0});
    }
}

TEST_F(LookTest, all_who_ask_before_it_begins_share_one) {
    close_gate();
    std::vector<std::thread> callers;
    std::vector<int> found(8);
    for (std::size_t i = 0; i < found.size(); ++i)
        callers.emplace_back([&, i] { found[i] = *look_.take(kForEver).found; });
    // The worker is at the gate: each caller joins the look that waits behind it, whenever it comes.
    std::this_thread::sleep_for(milliseconds{20});
    open_gate();
    for (std::thread &caller : callers) caller.join();
    EXPECT_EQ(*std::ranges::max_element(found), begun_);
    EXPECT_LE(begun_, static_cast<int>(found.size()));
}

TEST_F(LookTest, one_that_stands_still_gives_what_the_last_has_found_and_how_old_that_is) {
    EXPECT_EQ(*look_.take(kForEver).found, 1);
    close_gate();
    const auto result = look_.take(milliseconds{1});
    ASSERT_TRUE(result.found);
    EXPECT_EQ(*result.found, 1);
    EXPECT_GT(result.stale_for, milliseconds{0});
    // However many ask meanwhile: one look waits.
    for (int i = 0; i < 5; ++i) (void)look_.take(milliseconds{1});
    open_gate();
    EXPECT_EQ(*look_.take(kForEver).found, begun_);
    EXPECT_LE(begun_, 3);
}

TEST_F(LookTest, without_one_that_has_ended_there_is_nothing) {
    close_gate();
    EXPECT_FALSE(look_.take(milliseconds{1}).found);
    open_gate();
}

TEST_F(LookTest, what_it_throws_reaches_who_asks_and_the_worker_lives) {
    bool fails = true;
    Look<int> failing{worker_, [&] { return fails ? throw std::runtime_error("no memory") : 7; }};
    EXPECT_THROW((void)failing.take(kForEver), std::runtime_error);
    fails = false;
    EXPECT_EQ(*failing.take(kForEver).found, 7);
}

}  // namespace
}  // namespace numacre::daemon
