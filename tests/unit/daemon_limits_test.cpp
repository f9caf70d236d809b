// Limits that only warn: each crossing is told once, and one that only wavers is not told again. And what clients count
// for those that forbid: wrong, it is corrected; right, it outlives the daemon.
#include "pool/soft_limits.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "managed_pool_fixture.hpp"
#include "numacre/shm/account.hpp"

namespace numacre::daemon {

using namespace engine;
namespace {

constexpr std::uint64_t kNone = 0;

TEST(SoftQuota, is_exceeded_above_it_and_over_at_seven_eighths) {
    bool over = false;
    // What was used, and if that is over a soft quota of 800.
    const std::vector<std::pair<std::uint64_t, bool>> course{
        {0, false},   {799, false}, {800, false}, {801, true},  {800, true}, {701, true},
        {5000, true}, {701, true},  {700, false}, {800, false}, {801, true}, {0, false},
    };
    unsigned told = 0;
    for (const auto &[used, expected] : course) {
        const bool now = is_over_soft_quota(over, used, 800);
        EXPECT_EQ(now, expected) << used;
        if (now && !over) ++told;
        over = now;
    }
    EXPECT_EQ(told, 2U);
}

TEST(SoftQuota, none_is_never_exceeded_and_ends_what_was) {
    EXPECT_FALSE(is_over_soft_quota(false, 1000, kNone));
    EXPECT_FALSE(is_over_soft_quota(true, 1000, kNone));
}

TEST(SoftQuota, the_smallest_and_the_largest) {
    EXPECT_TRUE(is_over_soft_quota(false, 4096, 1));
    EXPECT_FALSE(is_over_soft_quota(true, 0, 1)) << "there is no eighth of it, and nothing is used";
    constexpr auto kLargest = std::numeric_limits<std::uint64_t>::max();
    EXPECT_FALSE(is_over_soft_quota(false, kLargest - 1, kLargest));
}

TEST(LowWatermark, begins_below_it_and_ends_at_nine_eighths) {
    constexpr std::uint64_t kOnline = 8000;
    bool below = false;
    const std::vector<std::pair<std::uint64_t, bool>> course{
        {8000, false}, {801, false}, {800, false}, {799, true},  {800, true}, {899, true},
        {0, true},     {899, true},  {900, false}, {800, false}, {799, true}, {8000, false},
    };
    unsigned begun = 0, ended = 0;
    for (const auto &[free, expected] : course) {
        const bool now = is_below_watermark(below, free, kOnline, 800);
        EXPECT_EQ(now, expected) << free;
        begun += now && !below ? 1 : 0;
        ended += !now && below ? 1 : 0;
        below = now;
    }
    EXPECT_EQ(begun, 2U);
    EXPECT_EQ(ended, 2U);
}

TEST(LowWatermark, none_is_never_passed) {
    EXPECT_FALSE(is_below_watermark(false, 0, 0, kNone));
    EXPECT_FALSE(is_below_watermark(true, 0, 0, kNone));
}

TEST(LowWatermark, all_of_a_small_numa_node_is_enough_to_end_it) {
    EXPECT_TRUE(is_below_watermark(true, 849, 850, 800));
    EXPECT_FALSE(is_below_watermark(true, 850, 850, 800)) << "nine eighths would be 900";
    EXPECT_TRUE(is_below_watermark(true, 700, 700, 800)) << "less than the watermark is online";
    EXPECT_TRUE(is_below_watermark(false, 700, 700, 800));
    EXPECT_FALSE(is_below_watermark(true, 800, 800, 800));
}

class CountsTest : public ManagedPoolTest {
protected:
    static constexpr std::uint64_t kQuota = kMiB;

    static Holder pool_holder() { return {.kind = Holder::Kind::pool, .pool = "default"}; }
    static Holder user(std::uint32_t uid) { return {.kind = Holder::Kind::user, .pool = "default", .uid = uid}; }
    static Holder client(std::uint32_t id) { return {.kind = Holder::Kind::client, .client_id = id, .pool = {}}; }

    std::atomic<std::uint64_t> &word(Actor actor) { return shared_.processes[actor.process.value].held; }
    HeldFrames counted(Actor actor) { return HeldFrames{word(actor)}; }
    std::uint64_t counted_bytes(Actor actor) {
        EXPECT_TRUE(counted(actor).is_counted());
        return pool_->geometry().bytes_of(counted(actor).frames());
    }
    Admission charge(Actor actor, std::uint64_t bytes) {
        return engine::charge(shared_, actor.process, frames(bytes)).answer;
    }
    void uncharge(Actor actor, std::uint64_t bytes) { remove_held(shared_, actor.process, frames(bytes)); }
    // As a client does that counts.
    Block take(Actor actor, std::uint64_t bytes) {
        EXPECT_EQ(charge(actor, bytes), Admission::granted);
        return allocate(actor, bytes);
    }
    void give_back(Actor actor, Block block) {
        free(actor, block);
        remove_held(shared_, actor.process, block.order.frames());
    }
};

// A giver that is stopped, and one that is dead: what they have counted for a client that waits.
TEST_F(CountsTest, what_is_on_the_way_and_never_arrives_is_forgotten) {
    ASSERT_TRUE(pool_->set_quota(client(1), kQuota, 0));
    const auto coming = [&] { return OnTheWay{shared_.processes[actor_.process.value].on_the_way}.frames(); };
    for (const bool giver_dies : {false, true}) {
        ASSERT_TRUE(add_on_the_way(shared_, actor_.process, frames(kQuota)));
        EXPECT_EQ(charge(actor_, 4096), Admission::over_client_quota);
        if (giver_dies) {
            pool_->reclaim({});
        } else {
            pool_->tell_clients();
            EXPECT_EQ(coming(), frames(kQuota)) << "it may be about to arrive";
            pool_->tell_clients();
        }
        EXPECT_EQ(coming(), 0U) << "giver dies: " << giver_dies;
        EXPECT_EQ(charge(actor_, 4096), Admission::granted);
        uncharge(actor_, 4096);
    }
    // The next one who sits there has no part in it, and no giver of before takes anything from that one.
    const auto era = add_on_the_way(shared_, actor_.process, 7);
    pool_->vacate(actor_.process, Departure::died, {}, 0);
    EXPECT_EQ(coming(), 0U);
    const Actor next = seat(2);
    ASSERT_EQ(next.process, actor_.process);
    ASSERT_TRUE(add_on_the_way(shared_, next.process, 5));
    remove_on_the_way(shared_, next.process, 7, *era);
    EXPECT_EQ(coming(), 5U);
}

// A client at work: its word has changed between any two looks.
TEST_F(CountsTest, a_wrong_one_is_corrected_also_of_a_client_that_never_stands_still) {
    ASSERT_TRUE(pool_->set_quota(pool_holder(), 4 * kMiB, 0));
    take(actor_, kMiB);
    for (const bool too_many : {true, false}) {
        const HeldFrames now = counted(actor_);
        word(actor_) = (too_many ? now.with_more(frames(kMiB / 2)) : now.with_fewer(frames(kMiB / 2))).bits();
        unsigned looks = 0;
        std::vector<Block> held;
        for (bool is_wrong = true; is_wrong && looks < 100; ++looks) {
            // It holds more each time, and at the fourth look it is in the middle of an allocation.
            held.push_back(take(actor_, 4096));
            if (looks == 3) add_held(shared_, actor_.process, frames(64 << 10));
            pool_->look_at_use();
            if (looks == 3) uncharge(actor_, 64 << 10);
            const std::uint64_t right = kMiB + held.size() * 4096;
            is_wrong = counted_bytes(actor_) != right;
            ASSERT_EQ(counted_bytes(actor_) > right, is_wrong && too_many) << "now the other way, at look " << looks;
        }
        EXPECT_LT(looks, 100U) << "still " << counted_bytes(actor_) << " bytes too_many: " << too_many;
        for (const Block block : held) give_back(actor_, block);
        EXPECT_EQ(counted_bytes(actor_), kMiB) << "too_many: " << too_many;
    }
}

TEST_F(CountsTest, what_is_under_way_is_no_error) {
    ASSERT_TRUE(pool_->set_quota(pool_holder(), 4 * kMiB, 0));
    take(actor_, kMiB);
    for (int look = 0; look < 40; ++look) {
        // Charged and not allocated yet, at three looks of four.
        const bool is_allocating = look % 4 != 3;
        if (is_allocating) add_held(shared_, actor_.process, frames(64 << 10));
        pool_->look_at_use();
        ASSERT_EQ(counted_bytes(actor_), kMiB + (is_allocating ? 64 << 10 : 0)) << "look " << look;
        if (is_allocating) uncharge(actor_, 64 << 10);
    }
}

// A thread that is stopped between its count and the tree, for as many looks as there are.
TEST_F(CountsTest, what_a_stopped_thread_says_to_be_under_way_is_no_error_and_hides_none) {
    ASSERT_TRUE(pool_->set_quota(pool_holder(), 4 * kMiB, 0));
    take(actor_, kMiB);
    constexpr std::uint64_t kCall = 64 << 10, kWrong = 512 << 10;
    const auto look = [this] {
        for (int i = 0; i < 10; ++i) pool_->look_at_use();
    };
    const std::uint64_t before = begin_under_way(shared_, actor_.thread, frames(kCall), UnderWay::kNobody);
    add_held(shared_, actor_.process, frames(kCall));
    look();
    EXPECT_EQ(counted_bytes(actor_), kMiB + kCall) << "charged, and not allocated yet";
    add_held(shared_, actor_.process, frames(kWrong));
    look();
    EXPECT_GE(counted_bytes(actor_), kMiB + kCall);
    EXPECT_LE(counted_bytes(actor_), kMiB + 2 * kCall) << "what goes beyond the call is corrected";
    end_under_way(shared_, actor_.thread, before);
    look();
    EXPECT_EQ(counted_bytes(actor_), kMiB);
    // Of a taker, for the process that it takes from: it still counts what it does not hold any more.
    const Actor taker = seat(2);
    add_held(shared_, actor_.process, frames(kCall));
    const std::uint64_t nothing = begin_under_way(shared_, taker.thread, frames(kCall), actor_.process);
    look();
    EXPECT_EQ(counted_bytes(actor_), kMiB + kCall);
    end_under_way(shared_, taker.thread, nothing);
    look();
    EXPECT_EQ(counted_bytes(actor_), kMiB);
}

// A thread that serves waiters, or takes a block, and is stopped before anybody counts the block.
TEST_F(CountsTest, what_a_stopped_thread_has_taken_is_counted_after_two_looks) {
    ASSERT_TRUE(pool_->set_quota(pool_holder(), 4 * kMiB, 0));
    take(actor_, kMiB);
    constexpr std::uint64_t kCall = 64 << 10;
    const std::uint64_t before = begin_under_way(shared_, actor_.thread, frames(kMiB), UnderWay::kNobody);
    const Block block = allocate(actor_, kCall);
    pool_->look_at_use();
    EXPECT_EQ(counted_bytes(actor_), kMiB) << "it may go on at once";
    pool_->look_at_use();
    EXPECT_EQ(counted_bytes(actor_), kMiB + kCall);
    // It goes on, and gives the block to another client.
    free(actor_, block);
    end_under_way(shared_, actor_.thread, before);
    for (int i = 0; i < 10; ++i) pool_->look_at_use();
    EXPECT_EQ(counted_bytes(actor_), kMiB);
}

// Recovery may have freed blocks that were on their way only, and no block that the client held.
TEST_F(CountsTest, what_is_freed_in_a_drain_by_recovery_is_no_room_elsewhere) {
    ASSERT_TRUE(pool_->set_quota(pool_holder(), 4 * kMiB, 0));
    shared_.header->draining_held = DrainingHeld{}.changed_to(frames(kMiB)).bits();
    pool_->vacate(actor_.process, Departure::died, {}, 0);
    EXPECT_EQ(DrainingHeld{shared_.header->draining_held}.frames(), 0U);
}

// Before the next daemon has looked at anything: those who are silent count as well.
TEST_F(CountsTest, outlive_the_daemon) {
    constexpr std::uint32_t kAlice = 4711, kBob = 4712;
    const Actor alice = seat(2, kAlice), her_other = seat(3, kAlice), bob = seat(4, kBob);
    ASSERT_TRUE(pool_->set_quota(pool_holder(), 4 * kQuota, 0));
    ASSERT_TRUE(pool_->set_quota(user(kAlice), kQuota, 0));
    ASSERT_TRUE(pool_->set_quota(client(1), kQuota, 0));
    take(actor_, kQuota);
    take(alice, kQuota);
    take(bob, 2 * kQuota);

    restart();
    EXPECT_EQ(counted_bytes(actor_), kQuota);
    EXPECT_EQ(counted_bytes(bob), 2 * kQuota);
    EXPECT_EQ(charge(actor_, 4096), Admission::over_client_quota);
    EXPECT_EQ(charge(her_other, 4096), Admission::over_user_quota);
    EXPECT_EQ(charge(bob, 4096), Admission::over_pool_quota);
    pool_->look_at_use();
    EXPECT_EQ(counted_bytes(bob), 2 * kQuota);
    EXPECT_EQ(charge(bob, 4096), Admission::over_pool_quota);
}

TEST_F(CountsTest, begin_anew_with_the_first_limit_after_none) {
    const Actor other = seat(2);
    ASSERT_TRUE(pool_->set_quota(pool_holder(), kQuota, 0));
    take(actor_, kQuota / 2);
    ASSERT_TRUE(pool_->set_quota(pool_holder(), 0, 0));
    restart();
    allocate(kQuota / 2);  // nobody counts
    ASSERT_TRUE(pool_->set_quota(pool_holder(), kQuota, 0));
    EXPECT_EQ(counted_bytes(actor_), kQuota);
    EXPECT_EQ(charge(other, 4096), Admission::over_pool_quota);
}

TEST_F(CountsTest, what_was_wrong_with_a_clients_is_nothing_to_the_next_on_its_seat) {
    ASSERT_TRUE(pool_->set_quota(pool_holder(), 4 * kMiB, 0));
    const Block block = take(actor_, kMiB);
    word(actor_) = counted(actor_).with_more(frames(kMiB)).bits();
    for (int look = 0; look < 3; ++look) {  // one less than it takes
        give_back(actor_, take(actor_, 4096));
        pool_->look_at_use();
    }
    pool_->begin_departure(actor_.process, Departure::died);
    free(block);
    pool_->vacate(actor_.process, Departure::died, {}, 0);

    const Actor next = seat(2);
    ASSERT_EQ(next.process, actor_.process);
    take(next, kMiB);
    add_held(shared_, next.process, 16);  // it is in the middle of an allocation
    pool_->look_at_use();
    remove_held(shared_, next.process, 16);
    EXPECT_EQ(counted_bytes(next), kMiB);
}

// Scribbled over, it would let a user's quota add up nobody.
TEST_F(CountsTest, are_added_up_for_all_seats_again_whatever_was_written_over_their_bound) {
    const Actor other = seat(2);
    ASSERT_TRUE(pool_->set_quota(pool_holder(), kQuota, 0));
    take(actor_, kQuota);
    shared_.header->seats = 0;
    pool_->tell_clients();
    EXPECT_EQ(charge(other, 4096), Admission::over_pool_quota);
}

// The ledger says that nobody sits there any more, the shared memory does not know it yet.
TEST_F(CountsTest, a_seat_that_a_daemon_died_clearing_counts_for_nobody) {
    const Actor stays = seat(2);
    ASSERT_TRUE(pool_->set_quota(pool_holder(), kQuota, 0));
    ASSERT_TRUE(pool_->set_quota(client(1), kQuota / 2, 0));
    ASSERT_TRUE(pool_->reserve(client(1), kQuota / 4));
    give_back(actor_, take(actor_, kQuota / 4));
    ASSERT_EQ(charge(actor_, kQuota / 4), Admission::granted);  // what its last threads left there
    pool_->begin_departure(actor_.process, Departure::died);
    pool_->ledger().clients()[actor_.process.value].id = 0;

    restart();
    pool_->tell_clients();  // with that the daemon takes the shared memory over
    const auto &record = shared_.processes[actor_.process.value];
    EXPECT_EQ(record.state, static_cast<std::uint64_t>(ProcessState::free));
    EXPECT_EQ(record.held, 0U);
    EXPECT_EQ(record.reserved_frames, 0U);
    EXPECT_EQ(record.account, kPoolAccount);
    take(stays, kQuota);
    EXPECT_EQ(pool_->client_table().size(), 1U);
    EXPECT_EQ(pool_->status().reserved_bytes, 0U);
    // And is somebody else's from the beginning.
    const Actor next = seat(3);
    EXPECT_EQ(next.process, actor_.process);
    EXPECT_EQ(counted_bytes(next), 0U);
    EXPECT_EQ(record.quota_frames, 0U);
    EXPECT_EQ(shared_.header->accounting, Accounting::kCount | Accounting::kShared);
}

}  // namespace
}  // namespace numacre::daemon
