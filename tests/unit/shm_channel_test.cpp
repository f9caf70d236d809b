// A channel's words, layout, capacity and order, one thread at a time; a death at each access of a call, and what
// happens when the ring has gone round very often since. (The model tests kill at every access, with others at work.)
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "numacre/shm/channel/channel.hpp"
#include "numacre/shm/channel/recovery.hpp"
#include "support/shm_pool.hpp"

namespace numacre {

using namespace engine;
namespace {

using test::ShmPool;
using test::ZeroedMemory;

struct Died {};

// Production atomics; dies before the access that is armed.
struct MortalEnv {
    static constexpr std::uint64_t kRefusalRoundsMost = ProductionEnv::kRefusalRoundsMost;
    static inline unsigned accesses_left = 0;  // 0: it does not die

    static void step() {
        if (accesses_left != 0 && --accesses_left == 0) throw Died{};
    }
    template <class T>
    class Atomic {
    public:
        T load(auto... order) const {
            step();
            return value_.load(order...);
        }
        void store(T value, auto... order) {
            step();
            value_.store(value, order...);
        }
        bool compare_exchange_strong(T &expected, T desired, auto... orders) {
            step();
            return value_.compare_exchange_strong(expected, desired, orders...);
        }
        bool compare_exchange_weak(T &expected, T desired, auto... orders) {
            step();
            return value_.compare_exchange_weak(expected, desired, orders...);
        }
        T fetch_add(T value, auto... order) {
            step();
            return value_.fetch_add(value, order...);
        }
        T fetch_and(T value, auto... order) {
            step();
            return value_.fetch_and(value, order...);
        }

    private:
        std::atomic<T> value_;
    };
    static void pause() noexcept {}
    static void crash_point(CrashPoint) noexcept {}
};

struct OneNode {
    Buddy<MortalEnv> *buddy;
    Buddy<MortalEnv> &at(std::uint32_t) const { return *buddy; }
    std::uint32_t count() const { return 1; }
};

// A channel and its pool. Thread n is of process n, has thread slot n and, after join(), party slot party(n).
class Rig {
public:
    using TheChannel = Channel<MortalEnv, OneNode>;
    static constexpr ProcessSlot kOwner{ShmPool::kProcesses - 1};

    explicit Rig(const ChannelShape &shape, std::uint64_t chunks = 4)
        : shape_(shape), pool_(4096, 64 * 4096, chunks), memory_(ChannelLayout<MortalEnv>::of(shape).bytes) {
        pool_.online_all();
        view = ChannelView<MortalEnv>::at(memory_.address(), shape);
        format_channel(view);
        for (unsigned thread = 1; thread < kOwner.value; ++thread) {
            actors_[thread] = pool_.actor(thread, thread);
            objects_.push_back(TheChannel{view, kOwner, nodes()});
        }
    }
    void join(unsigned thread) { parties_[thread] = object(thread).join(actors_[thread].process, PartyOwner::kSends); }
    std::uint32_t party(unsigned thread) const { return parties_[thread]; }
    Actor actor(unsigned thread) const { return actors_[thread]; }
    TheChannel &object(unsigned thread) { return objects_[thread - 1]; }
    OneNode nodes() { return {&buddy_}; }
    Buddy<ProductionEnv> &plain() { return plain_; }
    std::size_t memory_words() const { return ChannelLayout<MortalEnv>::of(shape_).bytes / 8; }
    std::uint64_t *memory() const { return static_cast<std::uint64_t *>(memory_.address()); }

    std::vector<std::uint64_t> allocate(unsigned thread, unsigned count) {
        std::vector<std::uint64_t> bases;
        while (bases.size() < count) {
            Block block;
            if (plain_.allocate(actors_[thread], Order{0}, {}, block) != Errc::ok) std::abort();
            bases.push_back(block.base.value);
        }
        return bases;
    }
    SendResult send(unsigned thread, const std::vector<std::uint64_t> &bases) {
        std::vector<BlockPlace> places;
        places.reserve(bases.size());
        for (const std::uint64_t base : bases) places.push_back({NumaNode{0}, FrameIndex{base}});
        return object(thread).send(party(thread), actors_[thread], places.data(), static_cast<unsigned>(places.size()),
                                   {}, refused);
    }
    std::vector<std::uint64_t> receive(unsigned thread, unsigned most) {
        std::vector<std::uint64_t> bases;
        last = object(thread).receive(party(thread), actors_[thread], most, {},
                                      [&bases](unsigned, NumaNode, Block block) { bases.push_back(block.base.value); });
        return bases;
    }
    // Receives one block after the other until nothing is there.
    std::vector<std::uint64_t> receive_all(unsigned thread) {
        std::vector<std::uint64_t> all;
        for (;;) {
            const std::vector<std::uint64_t> some = receive(thread, kBurstMost);
            if (last.result != ReceiveResult::received) return all;
            all.insert(all.end(), some.begin(), some.end());
        }
    }
    // Runs the call, and dies before its access number `access`, from 1. False: the call has fewer.
    static bool dies(unsigned access, const std::function<void()> &call) {
        MortalEnv::accesses_left = access;
        try {
            call();
        } catch (const Died &) {
            return true;
        }
        MortalEnv::accesses_left = 0;
        return false;
    }
    // Of the channel, and of the pool if that is done.
    RecoveryStep recover(unsigned thread) {
        dead_.insert(actors_[thread].process.value);
        ChannelRecovery<MortalEnv, OneNode> recovery{view, kOwner, nodes()};
        Reclaimed total{};
        const RecoveryStep step =
            recovery.recover_process(actors_[thread].process, {}, total,
                                     [this](ProcessSlot process) { return dead_.count(process.value) != 0; });
        if (step == RecoveryStep::blocked) return step;
        ThreadSlotIndex blocked_by{};
        if (pool_.kill_and_recover(actors_[thread].process.value, total, blocked_by) != RecoveryStep::done)
            std::abort();
        dead_.erase(actors_[thread].process.value);
        actors_[thread] = pool_.actor(thread, actors_[thread].process.value);
        return step;
    }
    void resume() { ChannelRecovery<MortalEnv, OneNode>{view, kOwner, nodes()}.resume({}); }
    ProcessSlot owner_of(std::uint64_t base) {
        Block block;
        IndexEntry entry;
        return plain_.find_entry(FrameIndex{base}, block, entry) == Errc::ok ? entry.owner() : kDaemonProcess;
    }
    bool is_free(std::uint64_t base) {
        Block block;
        IndexEntry entry;
        return plain_.find_entry(FrameIndex{base}, block, entry) != Errc::ok;
    }
    // Each segment of the ring, and of that of the returned messages, is in one place.
    bool has_sound_segments() {
        std::set<std::uint64_t> seen;
        for (std::uint32_t cell = 0; cell < view.ring.cell_count; ++cell)
            seen.insert(CellWord{view.ring.cells[cell].load()}.segment());
        for (std::uint32_t party = 1; party <= shape_.parties; ++party) seen.insert(view.parties[party].segment.load());
        std::set<std::uint64_t> returned{view.parties[kDaemonParty].segment.load()};
        for (std::uint32_t cell = 0; cell < view.returned.cell_count; ++cell)
            returned.insert(CellWord{view.returned.cells[cell].load()}.segment());
        return seen.size() == shape_.segments() && returned.size() == shape_.returned_segments();
    }
    // Sends blocks round, from one thread to another and back, until the ring has gone round so often.
    void go_round(std::uint64_t rounds, unsigned there, unsigned back) {
        std::vector<std::uint64_t> block = allocate(there, 1);
        for (std::uint64_t burst = 0; burst < rounds * view.ring.cell_count; ++burst) {
            if (send(there, block) != SendResult::sent || receive(back, 1) != block) {
                ADD_FAILURE() << "after " << burst << " bursts";
                return;
            }
            std::swap(there, back);
        }
        Block freed;
        if (plain_.free(actors_[there], FrameIndex{block[0]}, freed) != Errc::ok) ADD_FAILURE();
    }

    ChannelView<MortalEnv> view;
    TheChannel::Received last{};
    unsigned refused = 0;

private:
    ChannelShape shape_;
    ShmPool pool_;
    ZeroedMemory memory_;
    Buddy<MortalEnv> buddy_{
        NodeView<MortalEnv>::at(pool_.node_memory.address(), pool_.geometry, NumaNode{0}, pool_.thread_slots),
        PoolView<MortalEnv>::at(pool_.pool_memory.address(), ShmPool::kProcesses, pool_.thread_slots)};
    Buddy<ProductionEnv> plain_{pool_.node, pool_.view};
    std::array<Actor, ShmPool::kProcesses> actors_{};
    std::array<std::uint32_t, ShmPool::kProcesses> parties_{};
    std::vector<TheChannel> objects_;
    std::set<std::uint16_t> dead_;
};

using Bases = std::vector<std::uint64_t>;

// --- what has gone round -----------------------------------------------------------------------------------------

constexpr std::uint64_t kHalfOfTheRounds = std::uint64_t{1} << (kRoundBits - 1);

TEST(ChannelRounds, hints_may_have_any_value) {
    // A thread that was stopped between the two accesses of Ring::pass() stores a position of long ago.
    const auto behind = [](std::uint64_t rounds) { return 0 - 2 * rounds; };
    for (const std::uint64_t off :
         {std::uint64_t{0}, behind(1), behind(3), behind(kHalfOfTheRounds - 1), behind(kHalfOfTheRounds),
          behind(kHalfOfTheRounds + 1), behind(2 * kHalfOfTheRounds - 2), behind(2 * kHalfOfTheRounds - 1),
          behind(2 * kHalfOfTheRounds), std::uint64_t{1}, std::uint64_t{2}, std::uint64_t{3}, std::uint64_t{4},
          std::uint64_t{1} << 40, ~std::uint64_t{0}}) {
        SCOPED_TRACE(off);
        for (unsigned sent_before = 0; sent_before <= 2; ++sent_before) {
            Rig rig{{.capacity = 2, .burst = 1, .parties = 2}};
            rig.join(1);
            rig.join(2);
            rig.go_round(2, 1, 2);
            const Bases blocks = rig.allocate(1, 4);
            unsigned sent = 0;
            for (; sent < sent_before; ++sent) ASSERT_EQ(rig.send(1, {blocks[sent]}), SendResult::sent);
            rig.view.header->head.store(rig.view.header->head.load() + off);
            rig.view.header->tail.store(rig.view.header->tail.load() + off);
            for (; sent < 2; ++sent) ASSERT_EQ(rig.send(1, {blocks[sent]}), SendResult::sent);
            EXPECT_EQ(rig.send(1, {blocks[2]}), SendResult::full);
            EXPECT_EQ(rig.object(1).fill(), 2U);
            EXPECT_EQ(rig.receive(2, 1), Bases{blocks[0]});
            EXPECT_EQ(rig.send(1, {blocks[2]}), SendResult::sent);
            EXPECT_EQ(rig.receive(2, 1), Bases{blocks[1]});
            EXPECT_EQ(rig.receive(2, 1), Bases{blocks[2]});
            EXPECT_EQ(rig.receive(2, 1), Bases{});
            EXPECT_EQ(rig.last.result, ReceiveResult::empty);
        }
    }
}

TEST(ChannelRounds, a_dead_sender_s_burst_was_sent_however_long_ago) {
    Rig rig{{.capacity = 1, .burst = 1, .parties = 3}};
    for (const unsigned thread : {1U, 2U, 3U}) rig.join(thread);
    const Bases block = rig.allocate(1, 1);
    // Before it has the cell's segment for its own.
    unsigned access = 1;
    for (;; ++access) {
        Rig other{{.capacity = 1, .burst = 1, .parties = 1}};
        other.join(1);
        const Bases same = other.allocate(1, 1);
        ASSERT_TRUE(Rig::dies(access, [&] { other.send(1, same); }));
        if (CellWord{other.view.ring.cells[0].load()}.is_full()) break;
    }
    ASSERT_TRUE(Rig::dies(access, [&] { rig.send(1, block); }));
    ASSERT_TRUE(CellWord{rig.view.ring.cells[0].load()}.is_full());
    ASSERT_EQ(rig.receive(2, 1), block);
    rig.go_round(kHalfOfTheRounds + 3, 2, 3);
    const Bases next = rig.allocate(2, 1);
    ASSERT_EQ(rig.send(2, next), SendResult::sent);
    EXPECT_EQ(rig.recover(1), RecoveryStep::done);
    EXPECT_TRUE(rig.has_sound_segments());
    EXPECT_EQ(rig.owner_of(block[0]), rig.actor(2).process);
    EXPECT_EQ(rig.receive(3, 1), next);
}

TEST(ChannelRounds, capacity_is_exact_though_another_sender_s_totals_have_come_round) {
    Rig rig{{.capacity = kChannelCapacityMost, .burst = kBurstMost, .parties = 3}, 80};
    for (const unsigned thread : {1U, 2U, 3U}) rig.join(thread);
    const Bases one = rig.allocate(1, 1);
    ASSERT_EQ(rig.send(1, one), SendResult::sent);  // has seen the head
    ASSERT_EQ(rig.receive(3, 1), one);
    // As many messages as totals have values, and full.
    unsigned sent = 0;
    Bases burst;
    for (; sent + kChannelCapacityMost < kTotalMask + 1; sent += kBurstMost) {
        if (burst.empty()) burst = rig.allocate(2, kBurstMost);
        ASSERT_EQ(rig.send(2, burst), SendResult::sent);
        const Bases got = rig.receive(3, kBurstMost);
        ASSERT_EQ(got, burst);
        for (const std::uint64_t base : got) {
            Block freed;
            ASSERT_EQ(rig.plain().free(rig.actor(3), FrameIndex{base}, freed), Errc::ok);
        }
        burst.clear();
    }
    for (; sent < kTotalMask + 1; sent += kBurstMost)
        ASSERT_EQ(rig.send(2, rig.allocate(2, kBurstMost)), SendResult::sent);
    ASSERT_EQ(rig.object(3).fill(), kChannelCapacityMost);
    EXPECT_EQ(rig.send(1, rig.allocate(1, 1)), SendResult::full);
}

TEST(ChannelReturned, there_is_room_for_whatever_the_dead_had_received) {
    constexpr unsigned kBurst = 8;
    Rig rig{{.capacity = 64, .burst = kBurst, .parties = 2}};
    rig.join(1);
    Bases all;
    for (unsigned bursts = 0; bursts < 2; ++bursts) {
        const Bases blocks = rig.allocate(1, kBurst);
        all.insert(all.end(), blocks.begin(), blocks.end());
        ASSERT_EQ(rig.send(1, blocks), SendResult::sent);
    }
    // Each receiver dies before it has told its caller of the last message: first of the burst, then of one message of
    // what is left of the burst.
    for (unsigned deaths = 0; deaths < 3 * kBurst; ++deaths) {
        rig.join(2);
        ASSERT_NE(rig.party(2), kDaemonParty) << deaths;
        const unsigned most = deaths == 0 ? kBurst : 1;
        EXPECT_THROW(rig.object(2).receive(rig.party(2), rig.actor(2), most, {},
                                           [&](unsigned next, NumaNode, Block) {
                                               if (next + 1 == most) throw Died{};
                                           }),
                     Died);
        ASSERT_EQ(rig.recover(2), RecoveryStep::done) << deaths;
    }
    rig.join(2);
    Bases got = rig.receive_all(2);
    std::sort(got.begin(), got.end());
    std::sort(all.begin(), all.end());
    EXPECT_EQ(got, all);
    EXPECT_TRUE(rig.has_sound_segments());
}

}  // namespace
}  // namespace numacre
