// The order of a worker's jobs, and its end.
#include "os/worker.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <thread>
#include <vector>

namespace numacre::daemon {
namespace {

using std::chrono::milliseconds;

TEST(Worker, finish_runs_what_was_posted_and_what_is_posted_later_is_dropped) {
    Worker worker;
    std::promise<void> gate;
    std::vector<int> ran;
    worker.post([&, opened = gate.get_future().share()] { opened.wait(); });
    for (int i = 0; i < 3; ++i) worker.post([&ran, i] { ran.push_back(i); });
    std::thread opener([&] { gate.set_value(); });
    worker.finish();
    opener.join();
    EXPECT_EQ(ran, (std::vector{0, 1, 2}));
    auto held = std::make_shared<int>(0);
    worker.post([&ran, held] { ran.push_back(3); });
    EXPECT_EQ(held.use_count(), 1) << "kept for nobody";
    worker.finish();
    EXPECT_EQ(ran.size(), 3U);
}

// A pool is deleted while its worker has the last job in hand, which holds the last reference to the pool.
TEST(Worker, may_end_on_its_own_thread) {
    struct Owner {
        Worker worker;
        std::promise<void> ended;
        ~Owner() { ended.set_value_at_thread_exit(); }
    };
    auto owner = std::make_shared<Owner>();
    std::promise<void> gate;
    auto ended = owner->ended.get_future();
    owner->worker.post([owner, opened = gate.get_future().share()] { opened.wait(); });
    owner.reset();
    gate.set_value();
    ended.wait();
}

TEST(Worker, tells_how_long_the_job_in_hand_has_been_running) {
    Worker worker;
    EXPECT_EQ(worker.busy_for(), milliseconds{0});
    std::promise<void> gate;
    worker.post([opened = gate.get_future().share()] { opened.wait(); });
    while (worker.busy_for() < milliseconds{20}) std::this_thread::sleep_for(milliseconds{1});
    gate.set_value();
    while (worker.busy_for() != milliseconds{0}) std::this_thread::sleep_for(milliseconds{1});
}

}  // namespace
}  // namespace numacre::daemon
