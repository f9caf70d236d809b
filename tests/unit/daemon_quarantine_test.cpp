// When blocks of the dead come back: not before their time, and soon after it, whatever others leave behind meanwhile.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>

#include "pool/quarantine.hpp"

namespace numacre::daemon {
namespace {

using namespace std::chrono_literals;
using engine::Block;
using engine::FrameIndex;
using engine::NumaNode;
using engine::Order;

constexpr std::chrono::seconds kHold{30};

// With an index, as the pool has it: what is in quarantine, and what is written there.
class QuarantineTest : public ::testing::Test {
protected:
    struct Entry {
        Quarantine::Era era;
        Quarantine::Clock::time_point seized;
    };

    void seize(std::uint64_t blocks) {
        const Quarantine::Era era = quarantine_.era(now_);
        for (std::uint64_t i = 0; i < blocks; ++i) {
            quarantine_.add(NumaNode{0}, {FrameIndex{next_}, Order{0}}, era, now_);
            index_[next_++] = {era, now_};
        }
    }
    // Returns how many have come back.
    std::uint64_t release() {
        std::uint64_t released = 0;
        for (;;) {
            if (quarantine_.has_to_list(now_)) {
                quarantine_.begin_listing();
                for (const auto &[frame, entry] : index_)
                    quarantine_.list(NumaNode{0}, {FrameIndex{frame}, Order{0}}, entry.era, now_);
                quarantine_.end_listing();
            }
            std::uint64_t round = 0;
            while (const auto due = quarantine_.take_due(now_)) {
                const auto entry = index_.find(due->block.base.value);
                EXPECT_NE(entry, index_.end()) << "once";
                if (entry == index_.end()) continue;
                EXPECT_GE(now_ - entry->second.seized, kHold);
                index_.erase(entry);
                ++round;
            }
            if (round == 0) return released;
            released += round;
        }
    }

    Quarantine quarantine_{kHold};
    Quarantine::Clock::time_point now_{};
    std::map<std::uint64_t, Entry> index_;  // by frame
    std::uint64_t next_ = 0;
};

TEST_F(QuarantineTest, blocks_come_back_when_their_time_is_over) {
    seize(1000);
    EXPECT_EQ(quarantine_.next_due(), now_ + kHold);
    now_ += kHold - 1ns;
    EXPECT_EQ(release(), 0U);
    now_ += 1ns;
    EXPECT_EQ(release(), 1000U);
    EXPECT_TRUE(quarantine_.is_empty());
}

TEST_F(QuarantineTest, an_era_is_a_64th_of_the_time_that_blocks_are_held) {
    const Quarantine::Era first = quarantine_.era(now_);
    const Quarantine::Clock::duration length = Quarantine::Clock::duration(kHold) / 64;
    EXPECT_EQ(quarantine_.era(now_ + length - 1ns), first);
    EXPECT_NE(quarantine_.era(now_ + length), first);
}

TEST_F(QuarantineTest, all_of_millions_come_back_although_somebody_dies_again_and_again) {
    constexpr std::uint64_t kMany = 3 * Quarantine::kListed;
    seize(kMany);
    std::uint64_t released = 0;
    std::optional<std::chrono::nanoseconds> all_are_back;
    const auto begin = now_;
    while (now_ < begin + 3 * kHold) {
        now_ += 100ms;
        seize(1);
        released += release();
        if (!all_are_back && released >= kMany) all_are_back = now_ - begin;
    }
    ASSERT_TRUE(all_are_back);
    EXPECT_LE(*all_are_back, kHold + 1s);
    // Of those that came later no more than are held.
    EXPECT_LE(index_.size(), static_cast<std::size_t>((kHold + 2s) / 100ms));
    now_ += 2 * kHold;
    release();
    EXPECT_TRUE(quarantine_.is_empty());
    EXPECT_TRUE(index_.empty());
}

TEST_F(QuarantineTest, what_the_daemon_before_has_seized_is_held_anew) {
    seize(Quarantine::kListed + 10);
    Quarantine next{kHold};
    now_ += kHold / 2;
    for (auto &[frame, entry] : index_) {
        next.add(NumaNode{0}, {FrameIndex{frame}, Order{0}}, entry.era, now_);
        entry.seized = now_;
    }
    quarantine_ = next;
    seize(5);  // in an era that nothing of that is of
    now_ += kHold - 1ns;
    EXPECT_EQ(release(), 0U);
    now_ += kHold;
    EXPECT_EQ(release(), Quarantine::kListed + 15);
}

TEST_F(QuarantineTest, a_new_time_holds_for_all_blocks) {
    seize(10);
    const auto begin = now_;
    now_ += 2s;
    seize(1);
    quarantine_.set_hold(5s);
    EXPECT_EQ(quarantine_.next_due(), begin + 5s);
    for (int i = 0; i < 10; ++i) EXPECT_TRUE(quarantine_.take_due(begin + 5s)) << i;
    EXPECT_FALSE(quarantine_.take_due(begin + 7s - 1ns));
    quarantine_.set_hold(60s);
    EXPECT_EQ(quarantine_.next_due(), begin + 62s);
    quarantine_.set_hold(0s);
    EXPECT_TRUE(quarantine_.take_due(begin + 2s));
    EXPECT_TRUE(quarantine_.is_empty());
}

TEST_F(QuarantineTest, a_new_time_holds_for_blocks_that_stand_only_in_the_index) {
    seize(Quarantine::kListed + 10);
    quarantine_.set_hold(1s);
    now_ += kHold;  // as release() compares with the fixture's time
    seize(3);
    EXPECT_EQ(release(), Quarantine::kListed + 10);
    EXPECT_EQ(quarantine_.next_due(), now_ + 1s);
}

TEST_F(QuarantineTest, a_block_that_cannot_be_released_comes_back_later_and_keeps_the_others_waiting) {
    seize(2);
    now_ += kHold;
    const auto first = quarantine_.take_due(now_);
    ASSERT_TRUE(first);
    quarantine_.put_back(*first, now_ + 10s);
    EXPECT_EQ(quarantine_.next_due(), now_ + 10s);
    EXPECT_FALSE(quarantine_.take_due(now_ + 10s - 1ns));
    now_ += 10s;
    EXPECT_EQ(release(), 2U);
}

TEST_F(QuarantineTest, a_block_that_somebody_has_scribbled_over_is_found_in_the_end) {
    seize(Quarantine::kListed + 10);
    index_.rbegin()->second.era = Quarantine::Era{4711};
    now_ += 2 * kHold;
    EXPECT_EQ(release(), Quarantine::kListed + 9);
    EXPECT_FALSE(quarantine_.is_empty());
    now_ += 2 * kHold;
    EXPECT_EQ(release(), 1U);
    EXPECT_TRUE(quarantine_.is_empty());
}

}  // namespace
}  // namespace numacre::daemon
