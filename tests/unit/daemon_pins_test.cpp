// Pins by the locks of real files: how long one lasts, and what a new one may displace (pins.hpp).
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "memory/ledger.hpp"
#include "memory/pins.hpp"
#include "memory/region.hpp"
#include "spec/pool_spec.hpp"

namespace numacre::daemon {
namespace {

using std::chrono::seconds;
constexpr std::chrono::milliseconds kHold{5000};
constexpr std::uint64_t kUnit = 4 << 20;
constexpr ProcessSlot kClient{1}, kOther{2};

class PinsTest : public testing::Test {
protected:
    PinsTest() { start(); }

    // As a daemon that is started again does.
    void start() {
        auto file = pins_ ? MetadataRegion::adopt(Fd(::dup(pins_->fd())), kPageBytes)
                          : MetadataRegion::create("pins", kPageBytes);
        pins_ = std::make_unique<Pins>(*ledger_, std::move(*file));
    }
    Fd add(ProcessSlot slot, std::uint64_t unit, std::uint64_t units = 1) {
        auto made = pins_->add({slot, NumaNode{0}, unit * kUnit, units * kUnit}, kHold, now_);
        return made ? std::move(*made) : Fd{};
    }
    bool covers(std::uint64_t unit) const { return pins_->covers(NumaNode{0}, unit * kUnit, kUnit); }
    std::size_t kept(ProcessSlot slot) { return pins_->quarantine_of(slot, kHold, now_).size(); }

    Answer<PoolLedger> ledger_ = PoolLedger::create(PoolSpec{}, 1, 1);
    std::unique_ptr<Pins> pins_;
    Pins::Clock::time_point now_ = Pins::Clock::now();
};

TEST_F(PinsTest, a_pin_lasts_as_long_as_a_copy_of_its_descriptor) {
    Fd pin = add(kClient, 3);
    Fd copy(::dup(pin.get()));
    EXPECT_TRUE(covers(3));
    EXPECT_FALSE(covers(2) || covers(4));
    pin = Fd{};
    EXPECT_TRUE(covers(3));
    copy = Fd{};
    EXPECT_FALSE(covers(3));
    EXPECT_TRUE(pins_->all().empty());
}

TEST_F(PinsTest, a_dead_clients_pin_stays_for_the_hold_time_after_its_descriptor) {
    Fd pin = add(kClient, 3);
    pins_->begin_departure(kClient);
    now_ += 10 * kHold;
    EXPECT_EQ(kept(kClient), 1U) << "somebody has it";
    pin = Fd{};
    EXPECT_EQ(kept(kClient), 1U);
    now_ += kHold - seconds(1);
    EXPECT_EQ(kept(kClient), 1U);
    EXPECT_TRUE(covers(3));
    now_ += seconds(1);
    EXPECT_EQ(kept(kClient), 0U);
    EXPECT_FALSE(covers(3));
}

TEST_F(PinsTest, a_wait_says_whether_somebody_holds_a_pin_or_how_long_the_last_one_takes) {
    EXPECT_FALSE(pins_->wait_of(kClient, kHold, now_).is_held || pins_->wait_of(kClient, kHold, now_).left);
    Fd pin = add(kClient, 3), later = add(kClient, 5);
    const Fd of_another = add(kOther, 3);
    pins_->begin_departure(kClient);
    pin = Fd{};
    EXPECT_EQ(kept(kClient), 2U);
    EXPECT_TRUE(pins_->wait_of(kClient, kHold, now_).is_held) << "the second one";
    EXPECT_FALSE(pins_->wait_of(kClient, kHold, now_).left);
    now_ += seconds(2);
    later = Fd{};
    EXPECT_FALSE(pins_->wait_of(kClient, kHold, now_).is_held);
    EXPECT_EQ(pins_->wait_of(kClient, kHold, now_).left, kHold) << "nobody has looked since";
    EXPECT_EQ(kept(kClient), 2U);
    now_ += seconds(2);
    EXPECT_EQ(pins_->wait_of(kClient, kHold, now_).left, kHold - seconds(2));
    now_ += 2 * kHold;
    EXPECT_EQ(pins_->wait_of(kClient, kHold, now_).left, std::chrono::milliseconds(0)) << "and nobody has looked";
    EXPECT_EQ(kept(kClient), 0U);
    EXPECT_FALSE(pins_->wait_of(kClient, kHold, now_).left);
}

// The kernel lets the locks of a process go before anybody hears of its death.
TEST_F(PinsTest, a_new_pin_does_not_forget_one_whose_client_may_be_dying) {
    add(kClient, 3);
    const Fd of_a_thread = add(kClient, 5);
    pins_->begin_departure(kClient);
    EXPECT_EQ(kept(kClient), 2U);
}

TEST_F(PinsTest, a_pin_that_is_over_lends_its_place_to_one_around_it) {
    for (unsigned i = 0; i < 2 * PoolLedger::kPins; ++i) ASSERT_TRUE(add(kClient, 3, 2)) << i;
    EXPECT_EQ(kept(kClient), 1U);
    EXPECT_TRUE(add(kClient, 3, 1));
    EXPECT_EQ(kept(kClient), 2U) << "smaller than what was pinned before";
}

TEST_F(PinsTest, a_pin_that_ended_long_before_its_client_keeps_nothing) {
    add(kClient, 3);
    pins_->look(kHold, now_);
    now_ += kHold;
    pins_->look(kHold, now_);
    pins_->begin_departure(kClient);
    EXPECT_EQ(kept(kClient), 0U);
}

TEST_F(PinsTest, there_is_a_most_of_a_client_and_of_the_pool) {
    std::vector<Fd> pins;
    for (std::size_t i = 0; i < Pins::kOfClient; ++i) pins.push_back(add(kClient, i));
    EXPECT_FALSE(add(kClient, 1));
    for (std::uint16_t slot = 2; pins.size() < PoolLedger::kPins; ++slot)
        for (std::size_t i = 0; i < Pins::kOfClient; ++i) pins.push_back(add(ProcessSlot{slot}, i));
    for (const Fd &pin : pins) EXPECT_TRUE(pin);
    EXPECT_FALSE(add(ProcessSlot{100}, 1));
    pins.pop_back();
    now_ += kHold;
    pins_->look(kHold, now_ - kHold);
    pins_->look(kHold, now_);
    EXPECT_TRUE(add(ProcessSlot{100}, 1));
}

TEST_F(PinsTest, the_next_daemon_knows_them) {
    const Fd pin = add(kClient, 3);
    const Fd other = add(kOther, 4);
    start();
    EXPECT_TRUE(covers(3) && covers(4));
    EXPECT_TRUE(pins_->has_descriptor(kClient));
    pins_->forget(kClient);
    EXPECT_FALSE(covers(3));
    EXPECT_FALSE(pins_->has_descriptor(kClient));
    start();
    EXPECT_TRUE(!covers(3) && covers(4));
}

// Two pins of two clients on one range, and their union.
TEST_F(PinsTest, overlapping_pins_count_once) {
    const Fd one = add(kClient, 2, 3), two = add(kOther, 4, 3), three = add(kClient, 3, 1);
    const auto all = [](const Pins::Pin &) { return true; };
    EXPECT_EQ(Pins::bytes_in(pins_->all(), all), 5 * kUnit);
    EXPECT_EQ(Pins::bytes_in(pins_->all(), [](const Pins::Pin &pin) { return pin.slot == kClient; }), 3 * kUnit);
}

}  // namespace
}  // namespace numacre::daemon
