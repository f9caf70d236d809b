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
#include "numacre/shm/channel/figures.hpp"
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
    [[maybe_unused]] static constexpr std::uint64_t kRefusalRoundsMost = ProductionEnv::kRefusalRoundsMost;
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
        T fetch_or(T value, auto... order) {
            step();
            return value_.fetch_or(value, order...);
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
        const RecoveryStep step = recovery.recover_process(
            actors_[thread].process, {}, [this](ProcessSlot process) { return dead_.count(process.value) != 0; });
        if (step == RecoveryStep::blocked) return step;
        ThreadSlotIndex blocked_by{};
        if (pool_.kill_and_recover(actors_[thread].process.value, total, blocked_by) != RecoveryStep::done)
            std::abort();
        dead_.erase(actors_[thread].process.value);
        actors_[thread] = pool_.actor(thread, actors_[thread].process.value);
        return step;
    }
    // As recover(), but of the channel alone, and the daemon dies before its access number `access`; the next one ends
    // what it was in the middle of. False: it did not die.
    bool recover_with_a_death(unsigned thread, unsigned access) {
        const std::uint16_t process = actors_[thread].process.value;
        const bool died = dies(access, [&] {
            (void)ChannelRecovery<MortalEnv, OneNode>{view, kOwner, nodes()}.recover_process(
                ProcessSlot{process}, {}, [process](ProcessSlot other) { return other.value == process; });
        });
        const NodeView<ProductionEnv> nodes_of_pool[] = {pool_.node};
        ThreadSlotIndex blocked_by{};
        if (Recovery<ProductionEnv>{pool_.view, nodes_of_pool}.resume(blocked_by) != RecoveryStep::done) std::abort();
        ChannelRecovery<MortalEnv, OneNode>{view, kOwner, nodes()}.resume({});
        return died;
    }
    ChannelFigures figures() { return look_at_channel(view, kOwner, nodes()); }
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

// --- words and layout --------------------------------------------------------------------------------------------

TEST(ChannelWords, cells_have_what_was_put_into_them) {
    std::mt19937_64 random{1};
    for (unsigned run = 0; run < 10000; ++run) {
        const auto segment = static_cast<std::uint32_t>(random() % (1U << kSegmentBits));
        const std::uint64_t round = random() % (std::uint64_t{1} << kRoundBits);
        const auto total = static_cast<std::uint32_t>(random() & kTotalMask);
        const auto count = static_cast<unsigned>(1 + random() % kBurstMost);
        const CellWord empty = CellWord::empty(segment, round, 7);
        EXPECT_FALSE(empty.is_full());
        EXPECT_EQ(empty.segment(), segment);
        EXPECT_EQ(empty.round(), round);
        EXPECT_EQ(empty.total(), 7U);
        CellWord cell = empty.filled(segment ^ 1, count, total);
        for (unsigned taken = 0; taken < count;) {
            EXPECT_TRUE(cell.is_full());
            EXPECT_EQ(cell.segment(), segment ^ 1);
            EXPECT_EQ(cell.count(), count);
            EXPECT_EQ(cell.taken(), taken);
            EXPECT_EQ(cell.left(), count - taken);
            EXPECT_EQ(cell.total(), total);
            EXPECT_EQ(cell.received(), (total - (count - taken)) & kTotalMask);
            EXPECT_EQ(cell.round(), round);
            const auto more = static_cast<unsigned>(1 + random() % (count - taken));
            cell = cell.taken_from(more);
            taken += more;
        }
        EXPECT_EQ(cell, CellWord::empty(segment ^ 1, round + 1, total));
        EXPECT_EQ(cell.round(), (round + 1) % (std::uint64_t{1} << kRoundBits));
        EXPECT_EQ(cell.ahead_of(round), 1);
        EXPECT_EQ(empty.ahead_of(round + 1), -1);
    }
}

TEST(ChannelWords, messages_and_errands_have_what_was_put_into_them) {
    std::mt19937_64 random{1};
    for (unsigned run = 0; run < 10000; ++run) {
        const NumaNode node{static_cast<std::uint8_t>(random() % kMaxNumaNodes)};
        const Block block{FrameIndex{random() >> (64 - kMaxFrameIndexBits)},
                          Order{static_cast<std::uint32_t>(random() % 25)}};
        const auto generation = static_cast<std::uint32_t>(random() & kGenerationMax);
        const Message message{node, block, generation};
        EXPECT_EQ(message.numa_node().value, node.value);
        EXPECT_EQ(message.block().base.value, block.base.value);
        EXPECT_EQ(message.block().order.value, block.order.value);
        EXPECT_EQ(message.generation(), generation);
        EXPECT_EQ(message.with_generation(generation ^ 5), (Message{node, block, generation ^ 5}));
        const auto position = static_cast<std::uint32_t>(random());
        const auto count = static_cast<unsigned>(1 + random() % kBurstMost);
        const Errand errand{ErrandKind::receive, run % 2 == 0, count, position};
        EXPECT_EQ(errand.kind(), ErrandKind::receive);
        EXPECT_EQ(errand.is_of_returned(), run % 2 == 0);
        EXPECT_EQ(errand.count(), count);
        EXPECT_EQ(errand.position(), position);
        EXPECT_EQ(errand.as(ErrandKind::taking).bits(),
                  (Errand{ErrandKind::taking, run % 2 == 0, count, position}).bits());
    }
    const PartyOwner owner{ProcessSlot{0xfffd}, PartyOwner::kReceives};
    EXPECT_TRUE(owner.in_use() && owner.receives() && !owner.sends());
    EXPECT_EQ(owner.process().value, 0xfffd);
}

TEST(ChannelWords, parts_lie_one_after_the_other) {
    for (const std::uint32_t capacity : {1U, 2U, 3U, 64U, 100U, 4095U, 4096U})
        for (const std::uint32_t burst : {1U, 2U, 3U, 31U, 64U})
            for (const std::uint32_t parties : {1U, 2U, 3U, 33U, 64U}) {
                const ChannelShape shape{capacity, burst, parties};
                ASSERT_TRUE(shape.is_plausible());
                const auto layout = ChannelLayout<ProductionEnv>::of(shape);
                const std::uint64_t segment_bytes = std::uint64_t{8} * burst;
                const std::array<std::pair<std::uint64_t, std::uint64_t>, 6> parts{
                    {{0, sizeof(ChannelHeader<ProductionEnv>)},
                     {layout.parties, (parties + 1) * sizeof(PartySlot<ProductionEnv>)},
                     {layout.cells, std::uint64_t{8} * shape.cells()},
                     {layout.returned_cells, std::uint64_t{8} * shape.returned_cells()},
                     {layout.segments, segment_bytes * shape.segments()},
                     {layout.returned_segments, segment_bytes * shape.returned_segments()}}};
                std::uint64_t end = 0;
                for (const auto &[offset, bytes] : parts) {
                    EXPECT_GE(offset, end);
                    EXPECT_EQ(offset % (2 * kCacheLineBytes), 0U);
                    end = offset + bytes;
                }
                EXPECT_LE(end, layout.bytes);
                EXPECT_TRUE(std::has_single_bit(shape.cells()) && std::has_single_bit(shape.returned_cells()));
                EXPECT_GE(shape.cells(), capacity);
                EXPECT_LE(shape.segments(), 1U << kSegmentBits);
                EXPECT_LE(shape.returned_segments(), 1U << kSegmentBits);
            }
    for (const ChannelShape &shape : {ChannelShape{0, 1, 1}, ChannelShape{4097, 1, 1}, ChannelShape{1, 0, 1},
                                      ChannelShape{1, 65, 1}, ChannelShape{1, 1, 0}, ChannelShape{1, 1, 65}})
        EXPECT_FALSE(shape.is_plausible());
}

// --- sending and receiving -----------------------------------------------------------------------------------------

TEST(Channels, capacity_counts_messages_and_order_is_kept) {
    for (const std::uint32_t capacity : {1U, 2U, 3U, 7U, 8U, 100U}) {
        SCOPED_TRACE(capacity);
        Rig rig{{.capacity = capacity, .burst = 5, .parties = 2}};
        rig.join(1);
        rig.join(2);
        std::mt19937 random{capacity};
        Bases there;
        for (unsigned step = 0; step < 3000; ++step) {
            const unsigned count = 1 + random() % 5;
            if (random() % 2 == 0) {
                const Bases burst = rig.allocate(1, count);
                const bool fits = there.size() + count <= capacity;
                ASSERT_EQ(rig.object(1).has_room(count), fits);
                ASSERT_EQ(rig.send(1, burst), fits ? SendResult::sent : SendResult::full);
                if (fits) there.insert(there.end(), burst.begin(), burst.end());
                for (const std::uint64_t base : burst) {
                    Block freed;
                    ASSERT_EQ(rig.owner_of(base), fits ? Rig::kOwner : rig.actor(1).process);
                    if (!fits) {
                        ASSERT_EQ(rig.plain().free(rig.actor(1), FrameIndex{base}, freed), Errc::ok);
                    }
                }
            } else {
                ASSERT_EQ(rig.object(2).has_messages(), !there.empty());
                const Bases got = rig.receive(2, count);
                ASSERT_EQ(rig.last.result, there.empty() ? ReceiveResult::empty : ReceiveResult::received);
                ASSERT_TRUE(got.size() <= count && std::equal(got.begin(), got.end(), there.begin()));
                for (const std::uint64_t base : got) {
                    Block freed;
                    ASSERT_EQ(rig.plain().free(rig.actor(2), FrameIndex{base}, freed), Errc::ok);
                }
                there.erase(there.begin(), there.begin() + static_cast<std::ptrdiff_t>(got.size()));
            }
            ASSERT_EQ(rig.object(1).fill(), there.size());
        }
        EXPECT_TRUE(rig.has_sound_segments());
    }
}

TEST(Channels, a_receive_gets_one_burst_or_what_is_left_of_it) {
    Rig rig{{.capacity = 128, .burst = kBurstMost, .parties = 2}};
    rig.join(1);
    rig.join(2);
    const Bases first = rig.allocate(1, kBurstMost);
    const Bases second = rig.allocate(1, 3);
    ASSERT_EQ(rig.send(1, first), SendResult::sent);
    ASSERT_EQ(rig.send(1, second), SendResult::sent);
    EXPECT_EQ(rig.receive(2, 60), Bases(first.begin(), first.begin() + 60));
    EXPECT_EQ(rig.receive(2, 60), Bases(first.begin() + 60, first.end()));
    EXPECT_EQ(rig.receive(2, 60), second);
    EXPECT_FALSE(rig.last.is_redelivered);
    EXPECT_EQ(rig.view.parties[rig.party(1)].sent.load(), kBurstMost + 3);
    EXPECT_EQ(rig.view.parties[rig.party(2)].received.load(), kBurstMost + 3);
}

TEST(Channels, a_send_of_a_block_that_cannot_be_sent_changes_nothing) {
    Rig rig{{.capacity = 8, .burst = 4, .parties = 2}};
    rig.join(1);
    rig.join(2);
    const Bases ours = rig.allocate(1, 3);
    const std::uint64_t theirs = rig.allocate(2, 1)[0];
    const std::uint64_t published = rig.allocate(1, 1)[0];
    Block block;
    IndexEntry entry;
    ASSERT_EQ(rig.plain().find_entry(FrameIndex{published}, block, entry), Errc::ok);
    (void)rig.plain().publish(block, entry);
    Block freed;
    const std::uint64_t free = rig.allocate(1, 1)[0];
    ASSERT_EQ(rig.plain().free(rig.actor(1), FrameIndex{free}, freed), Errc::ok);
    struct Case {
        Bases burst;
        SendResult result;
        unsigned refused;
    };
    for (const Case &one : {Case{{ours[0], theirs}, SendResult::not_owned, 1}, Case{{free}, SendResult::not_owned, 0},
                            Case{{std::uint64_t{1} << 33}, SendResult::not_owned, 0},
                            Case{{ours[0], ours[1], published}, SendResult::published, 2},
                            Case{{ours[0], ours[1], ours[0]}, SendResult::not_owned, 2},
                            Case{{ours[0], ours[0], ours[1]}, SendResult::not_owned, 1}}) {
        EXPECT_EQ(rig.send(1, one.burst), one.result);
        EXPECT_EQ(rig.refused, one.refused);
        EXPECT_FALSE(rig.object(1).has_messages());
        for (const std::uint64_t base : ours) EXPECT_EQ(rig.owner_of(base), rig.actor(1).process);
        EXPECT_EQ(rig.owner_of(theirs), rig.actor(2).process);
        EXPECT_TRUE(rig.has_sound_segments());
    }
    EXPECT_EQ(rig.send(1, ours), SendResult::sent);
    EXPECT_EQ(rig.receive(2, 4), ours);
}

TEST(Channels, nobody_sends_into_a_closed_one_and_what_is_there_is_received) {
    Rig rig{{.capacity = 8, .burst = 4, .parties = 2}};
    rig.join(1);
    rig.join(2);
    const Bases sent = rig.allocate(1, 2);
    const Bases late = rig.allocate(1, 1);
    ASSERT_EQ(rig.send(1, sent), SendResult::sent);
    EXPECT_FALSE(rig.object(2).is_closed());
    rig.object(2).close();
    EXPECT_TRUE(rig.object(1).is_closed());
    EXPECT_EQ(rig.send(1, late), SendResult::closed);
    EXPECT_EQ(rig.owner_of(late[0]), rig.actor(1).process);
    EXPECT_EQ(rig.receive(2, 4), sent);
}

TEST(Channels, party_slots_are_claimed_once) {
    Rig rig{{.capacity = 8, .burst = 4, .parties = 2}};
    for (const unsigned thread : {1U, 2U, 3U}) rig.join(thread);
    EXPECT_EQ(rig.party(1), 1U);
    EXPECT_EQ(rig.party(2), 2U);
    EXPECT_EQ(rig.party(3), kDaemonParty);
    rig.object(1).leave(rig.party(1));
    rig.join(3);
    EXPECT_EQ(rig.party(3), 1U);
}

TEST(ChannelReturned, comes_first_and_says_so) {
    Rig rig{{.capacity = 8, .burst = 4, .parties = 3}};
    for (const unsigned thread : {1U, 2U, 3U}) rig.join(thread);
    const Bases first = rig.allocate(1, 3);
    const Bases second = rig.allocate(1, 1);
    ASSERT_EQ(rig.send(1, first), SendResult::sent);
    ASSERT_EQ(rig.send(1, second), SendResult::sent);
    EXPECT_THROW(
        rig.object(2).receive(rig.party(2), rig.actor(2), 2, {}, [](unsigned, NumaNode, Block) { throw Died{}; }),
        Died);
    ASSERT_EQ(rig.recover(2), RecoveryStep::done);
    EXPECT_EQ(rig.receive(3, 4), (Bases{first[0], first[1]}));
    EXPECT_TRUE(rig.last.is_redelivered);
    EXPECT_EQ(rig.view.parties[rig.party(3)].redelivered.load(), 2U);
    EXPECT_EQ(rig.receive(3, 4), Bases{first[2]});
    EXPECT_FALSE(rig.last.is_redelivered);
    EXPECT_EQ(rig.receive(3, 4), second);
}

// A receive that wakes a sender enters the kernel: seen losing what a receiver had that was killed there.
TEST(ChannelReturned, has_what_a_receiver_had_that_died_while_it_woke_a_sender) {
    Rig rig{{.capacity = 4, .burst = 4, .parties = 3}};
    for (const unsigned thread : {1U, 2U, 3U}) rig.join(thread);
    const Bases blocks = rig.allocate(1, 4);
    ASSERT_EQ(rig.send(1, blocks), SendResult::sent);
    unsigned given = 0;
    const auto give = [&given](unsigned, NumaNode, Block) { ++given; };
    EXPECT_THROW(rig.object(2).receive(rig.party(2), rig.actor(2), 4, {}, give, [] { throw Died{}; }), Died);
    EXPECT_EQ(given, 4U);
    ASSERT_EQ(rig.recover(2), RecoveryStep::done);
    EXPECT_EQ(rig.receive(3, 4), blocks);
    EXPECT_TRUE(rig.last.is_redelivered);
}

TEST(ChannelLayout, default_bursts_find_room_in_an_empty_channel) {
    EXPECT_EQ((ChannelShape{1, 0, 0}).with_defaults().burst, 1U);
    EXPECT_EQ((ChannelShape{16, 0, 0}).with_defaults().burst, 16U);
    EXPECT_EQ((ChannelShape{0, 64, 0}).with_defaults().burst, 64U);
    EXPECT_EQ((ChannelShape{1, 0, 0, ChannelKind::broadcast}).with_defaults().burst, kChannelBurstDefault);
    EXPECT_FALSE((ChannelShape{1, 2, 0}).has_room_for_bursts());
    EXPECT_TRUE((ChannelShape{2, 2, 0}).has_room_for_bursts());
    EXPECT_TRUE((ChannelShape{0, 64, 0}).has_room_for_bursts());
}

TEST(ChannelFigures, count_what_waits_and_what_has_passed) {
    Rig rig{{.capacity = 16, .burst = 4, .parties = 3}};
    for (const unsigned thread : {1U, 2U, 3U}) rig.join(thread);
    EXPECT_EQ(rig.figures().waiting, 0U);
    EXPECT_EQ(rig.figures().messages, 0U);
    const auto send_at = [&rig](const Bases &bases, std::uint64_t second) {
        std::vector<BlockPlace> places;
        for (const std::uint64_t base : bases) places.push_back({NumaNode{0}, FrameIndex{base}});
        unsigned refused = 0;
        return rig.object(1).send(rig.party(1), rig.actor(1), places.data(), static_cast<unsigned>(places.size()),
                                  PoolAge::of_seconds(second), refused);
    };
    ASSERT_EQ(send_at(rig.allocate(1, 4), 20), SendResult::sent);
    ASSERT_EQ(send_at(rig.allocate(1, 3), 10), SendResult::sent) << "a stopped sender's clock";
    ASSERT_EQ(send_at(rig.allocate(1, 1), 30), SendResult::sent);
    ChannelFigures figures = rig.figures();
    EXPECT_EQ(figures.waiting, 8U);
    EXPECT_EQ(figures.returned, 0U);
    EXPECT_EQ(figures.messages, 8U);
    EXPECT_EQ(figures.frames, 8U);
    EXPECT_EQ(figures.oldest, PoolAge::of_seconds(10));
    EXPECT_EQ(figures.sent, 8U);
    EXPECT_EQ(figures.received, 0U);
    EXPECT_FALSE(figures.has_ended || figures.receivers_sleep || figures.senders_sleep);
    // Half of the first burst, and the half of what is left that a receiver has in hand when it dies.
    EXPECT_EQ(rig.receive(3, 2).size(), 2U);
    EXPECT_THROW(
        rig.object(2).receive(rig.party(2), rig.actor(2), 2, {}, [](unsigned, NumaNode, Block) { throw Died{}; }),
        Died);
    figures = rig.figures();
    EXPECT_EQ(figures.waiting, 4U);
    EXPECT_EQ(figures.messages, 4U) << "those in its hands wait no more";
    ASSERT_EQ(rig.recover(2), RecoveryStep::done);
    figures = rig.figures();
    EXPECT_EQ(figures.waiting, 4U);
    EXPECT_EQ(figures.returned, 2U);
    EXPECT_EQ(figures.messages, 6U);
    EXPECT_EQ(rig.receive(3, 4).size(), 2U);
    figures = rig.figures();
    EXPECT_EQ(figures.received, 4U);
    EXPECT_EQ(figures.redelivered, 2U);
    // Its slot passes to another thread, and the tallies stay.
    rig.object(3).leave(rig.party(3));
    rig.object(1).leave(rig.party(1));
    EXPECT_EQ(rig.figures().sent, 8U);
    EXPECT_EQ(rig.figures().received, 4U);
    rig.join(4);
    EXPECT_EQ(rig.receive(4, 4).size(), 3U);
    EXPECT_EQ(rig.figures().received, 7U);
    EXPECT_EQ(rig.figures().oldest, PoolAge::of_seconds(30));
    Sleepers<MortalEnv>::on_messages(*rig.view.header).announce();
    rig.object(4).close();
    figures = rig.figures();
    EXPECT_TRUE(figures.has_ended && figures.receivers_sleep);
    EXPECT_FALSE(figures.senders_sleep);
}

// A cell that names messages that have been received, and sent again elsewhere, adds nothing.
TEST(ChannelFigures, a_block_counts_once_whatever_the_words_say) {
    Rig rig{{.capacity = 8, .burst = 4, .parties = 2}};
    rig.join(1);
    rig.join(2);
    ASSERT_EQ(rig.send(1, rig.allocate(1, 2)), SendResult::sent);
    const CellWord sent{rig.view.ring.cells[0].load()};
    ASSERT_TRUE(sent.is_full());
    EXPECT_EQ(rig.receive(2, 2).size(), 2U);
    EXPECT_EQ(rig.figures().messages, 0U);
    rig.view.ring.cells[0].store(sent.bits());
    EXPECT_EQ(rig.figures().messages, 0U) << "they are the receiver's";
}

// Each call ends soon, and touches nothing beside the channel's memory and the blocks' entries.
TEST(Channels, whoever_scribbles_over_one_harms_nothing_beside_it) {
    for (unsigned run = 0; run < 300; ++run) {
        SCOPED_TRACE(run);
        std::mt19937_64 random{run};
        const ChannelShape shape{static_cast<std::uint32_t>(1 + random() % 20),
                                 static_cast<std::uint32_t>(1 + random() % 4), 3};
        Rig rig{shape};
        for (const unsigned thread : {1U, 2U, 3U}) rig.join(thread);
        const Bases others = rig.allocate(4, 4);
        for (unsigned step = 0; step < 60; ++step) {
            if (step > 5) {
                std::uint64_t &word = rig.memory()[random() % rig.memory_words()];
                const std::uint64_t values[] = {random(), ~std::uint64_t{0}, word ^ std::uint64_t{1} << random() % 64,
                                                rig.memory()[random() % rig.memory_words()]};
                word = values[random() % 4];
            }
            const auto thread = static_cast<unsigned>(1 + random() % 3);
            // Enough for a walk over both rings; a loop that a scribble could keep going takes more.
            MortalEnv::accesses_left = 40 * (4 * (shape.cells() + shape.returned_cells()) + 4096);
            switch (random() % 5) {
                case 0:
                    (void)rig.recover(thread);
                    rig.join(thread);
                    break;
                case 1:
                    rig.resume();
                    break;
                case 2:
                    (void)rig.receive(thread, static_cast<unsigned>(1 + random() % 64));
                    EXPECT_LE(rig.last.count, shape.burst);
                    break;
                default:
                    if (rig.party(thread) != kDaemonParty)
                        (void)rig.send(thread, rig.allocate(thread, static_cast<unsigned>(1 + random() % shape.burst)));
            }
            (void)rig.object(thread).fill();
            (void)rig.object(thread).has_messages();
            (void)rig.object(thread).has_room(1);
            const ChannelFigures figures = rig.figures();
            ASSERT_LE(figures.waiting, shape.capacity);
            ASSERT_LE(figures.returned, shape.parties * shape.burst);
            ASSERT_LE(figures.messages, shape.capacity + shape.parties * shape.burst);
            ASSERT_NE(MortalEnv::accesses_left, 0U) << "a call did not end";
            MortalEnv::accesses_left = 0;
            for (const std::uint64_t base : others) ASSERT_EQ(rig.owner_of(base), rig.actor(4).process);
        }
    }
}

// --- deaths ------------------------------------------------------------------------------------------------------

// Beside a death, the others use each cell and each segment again; the daemon dies in its recovery, too.
class ChannelDeaths : public ::testing::Test {
protected:
    // Two senders, two receivers, and what a stopped receiver of the same cell does to it.
    static constexpr ChannelShape kShape{.capacity = 2, .burst = 2, .parties = 4};

    // prepare(rig), then act(rig, blocks) dies at each access, others(rig) go on, recovery dies at each access.
    // check(rig, blocks, died)
    template <class Prepare, class Act, class Others, class Check>
    static void at_each_access(unsigned victim, const Prepare &prepare, const Act &act, const Others &others,
                               const Check &check) {
        bool died = true;
        for (unsigned access = 1; died; ++access) {
            bool daemon_died = true;
            for (unsigned in_recovery = 1; daemon_died && died; ++in_recovery) {
                SCOPED_TRACE("access " + std::to_string(access) + ", of recovery " + std::to_string(in_recovery));
                Rig rig{kShape};
                for (const unsigned thread : {1U, 2U, 3U, 4U}) rig.join(thread);
                const Bases blocks = prepare(rig);
                died = Rig::dies(access, [&] { act(rig, blocks); });
                others(rig);
                daemon_died = rig.recover_with_a_death(victim, in_recovery);
                ASSERT_EQ(rig.recover(victim), RecoveryStep::done);
                EXPECT_TRUE(rig.has_sound_segments());
                check(rig, blocks, died);
                if (HasFailure()) return;
            }
        }
    }
    // The others send and receive so often that each cell is used again. What they receive beside their own:
    static Bases go_on(Rig &rig, unsigned sender, unsigned receiver) {
        Bases others;
        for (unsigned burst = 0; burst < 5; ++burst) {
            const Bases own = rig.allocate(sender, 1);
            while (rig.send(sender, own) != SendResult::sent) {
                const Bases some = rig.receive(receiver, kBurstMost);
                if (some.empty()) {
                    ADD_FAILURE() << "no way on";
                    return others;
                }
                others.insert(others.end(), some.begin(), some.end());
            }
            const Bases all = rig.receive_all(receiver);
            others.insert(others.end(), all.begin(), all.end());
            std::erase(others, own[0]);
        }
        return others;
    }
};

TEST_F(ChannelDeaths, of_a_sender_beside_a_ring_that_goes_round) {
    Bases got;
    at_each_access(
        1, [](Rig &rig) { return rig.allocate(1, 2); }, [](Rig &rig, const Bases &blocks) { rig.send(1, blocks); },
        [&got](Rig &rig) { got = go_on(rig, 2, 3); },
        [&got](Rig &rig, const Bases &blocks, bool died) {
            // All, or none.
            if (!got.empty() || !died) {
                EXPECT_EQ(got, blocks);
                for (const std::uint64_t base : blocks) EXPECT_EQ(rig.owner_of(base), rig.actor(3).process);
            } else {
                for (const std::uint64_t base : blocks) EXPECT_TRUE(rig.is_free(base));
            }
            EXPECT_EQ(go_on(rig, 2, 3), Bases{});
        });
}

TEST_F(ChannelDeaths, of_a_sender_who_takes_its_burst_back) {
    at_each_access(
        1, [](Rig &rig) { return rig.allocate(1, 1); },
        [](Rig &rig, const Bases &blocks) { rig.send(1, {blocks[0], blocks[0]}); },
        [](Rig &rig) { EXPECT_EQ(go_on(rig, 2, 3), Bases{}); },
        [](Rig &rig, const Bases &blocks, bool) {
            EXPECT_TRUE(rig.is_free(blocks[0]));
            EXPECT_EQ(go_on(rig, 2, 3), Bases{});
        });
}

TEST_F(ChannelDeaths, of_a_sender_whose_messages_a_stopped_receiver_has) {
    Bases got;
    at_each_access(
        1, [](Rig &rig) { return rig.allocate(1, 2); }, [](Rig &rig, const Bases &blocks) { rig.send(1, blocks); },
        [&got](Rig &rig) {
            // Dies, for us, but is not recovered: as if stopped, before it has the first message.
            const bool has_messages = rig.object(4).has_messages();
            for (unsigned access = 1; has_messages; ++access) {
                if (!Rig::dies(access, [&] { rig.receive(4, 2); })) {
                    ADD_FAILURE();
                    break;
                }
                if (!rig.object(4).has_messages()) break;
            }
            got = go_on(rig, 2, 3);
        },
        [&got](Rig &rig, const Bases &blocks, bool) {
            EXPECT_EQ(got, Bases{});
            ASSERT_EQ(rig.recover(4), RecoveryStep::done);
            const Bases returned = rig.receive_all(3);
            if (returned.empty()) {
                for (const std::uint64_t base : blocks) EXPECT_TRUE(rig.is_free(base));
            } else {
                EXPECT_EQ(returned, blocks);
                EXPECT_TRUE(rig.has_sound_segments());
            }
            EXPECT_EQ(go_on(rig, 2, 3), Bases{});
        });
}

TEST_F(ChannelDeaths, of_a_receiver_beside_a_ring_that_goes_round) {
    Bases got;
    bool has_returned = false;
    at_each_access(
        3,
        [](Rig &rig) {
            const Bases blocks = rig.allocate(1, 2);
            EXPECT_EQ(rig.send(1, blocks), SendResult::sent);
            return blocks;
        },
        [&has_returned](Rig &rig, const Bases &) {
            has_returned = false;
            rig.receive(3, 1);
            has_returned = true;
        },
        [&got](Rig &rig) { got = go_on(rig, 2, 4); },
        [&got, &has_returned](Rig &rig, const Bases &blocks, bool) {
            const Bases more = go_on(rig, 2, 4);
            got.insert(got.end(), more.begin(), more.end());
            std::sort(got.begin(), got.end());
            if (has_returned)
                EXPECT_EQ(got, Bases{blocks[1]});
            else if (got.size() == 1)  // it died behind its last step
                EXPECT_TRUE(rig.is_free(blocks[0]));
            else
                EXPECT_EQ(got, blocks);
        });
}

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
