// What the daemon tells of a pool's channels, how an operator removes one, and what a death in a broadcast leaves.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "managed_pool_fixture.hpp"
#include "numacre/shm/channel/broadcast.hpp"
#include "numacre/shm/channel/channel.hpp"

namespace numacre::daemon {
namespace {

class PoolWithChannels : public ManagedPoolTest {
protected:
    struct OneNode {
        Buddy<ProductionEnv> *buddy;
        Buddy<ProductionEnv> &at(std::uint32_t) const { return *buddy; }
        std::uint32_t count() const { return 1; }
    };
    using TheChannel = Channel<ProductionEnv, OneNode>;
    using TheBroadcast = Broadcast<ProductionEnv, OneNode>;

    Client client_of(Actor actor) { return *pool_->client_at(actor.process); }
    // Nothing: an earlier channel of the name is going.
    Answer<std::optional<ManagedPool::OpenChannel>> try_to_open(Actor actor, const std::string &name, ChannelKind kind,
                                                                bool stays = false) {
        ChannelWish wish;
        wish.name = name;
        wish.shape = {8, 4, 3, kind};
        wish.stays = stays;
        const std::uint32_t id = next_id_++;
        return pool_->worker().run([&] { return pool_->open_channel(client_of(actor), wish, id); });
    }
    ManagedPool::OpenChannel open(Actor actor, const std::string &name, bool stays = false,
                                  ChannelKind kind = ChannelKind::queue) {
        const auto opened = try_to_open(actor, name, kind, stays);
        EXPECT_TRUE(opened) << opened.error().message;
        EXPECT_TRUE(*opened);
        return opened->value_or(ManagedPool::OpenChannel{});
    }
    std::optional<ManagedPool::OpenChannel> try_open(Actor actor, const std::string &name) {
        const auto opened = try_to_open(actor, name, ChannelKind::queue);
        EXPECT_TRUE(opened) << opened.error().message;
        return *opened;
    }
    ManagedPool::OpenChannel open_broadcast(Actor actor, bool stays = false) {
        return open(actor, "news", stays, ChannelKind::broadcast);
    }
    void close(Actor actor, const std::string &name) {
        EXPECT_TRUE(pool_->worker().run([&] { return pool_->close_channel(client_of(actor), name); }));
    }
    Answer<std::uint32_t> remove(const std::string &name, bool ends) {
        return pool_->worker().run([&] { return pool_->remove_channel(name, ends); });
    }
    std::vector<Client> take_unused() {
        return pool_->worker().run([&] { return pool_->take_unused_channels(); });
    }
    std::size_t unused() { return take_unused().size(); }
    void *memory_of(const ManagedPool::OpenChannel &channel) {
        const auto layout = PoolLayout<ProductionEnv>::of(pool_->process_slots(), pool_->thread_slots());
        return static_cast<std::byte *>(pool_->pool_region().address()) + layout.channels + channel.offset;
    }
    ChannelView<ProductionEnv> view_of(const ManagedPool::OpenChannel &channel) {
        return ChannelView<ProductionEnv>::at(memory_of(channel), channel.shape);
    }
    TheBroadcast broadcast_of(const ManagedPool::OpenChannel &channel) {
        return {BroadcastView<ProductionEnv>::at(memory_of(channel), BroadcastShape::of(channel.shape)), channel.seat,
                OneNode{&*buddy_}};
    }
    // Blocks that it overwrites are freed.
    void send_to(TheBroadcast &broadcast, std::uint32_t party, Actor actor, unsigned count) {
        std::vector<BlockPlace> places;
        for (unsigned i = 0; i < count; ++i) places.push_back({kNode, allocate(actor, 8192).base});
        unsigned refused = 0;
        const auto free_it = [&](NumaNode, Block block) { free(actor, block); };
        ASSERT_EQ(broadcast.send({party, actor.process, {}}, places.data(), count, free_it, refused), SendResult::sent);
    }
    // A client's end, and all that the daemon does for it.
    void die(Actor actor) {
        pool_->begin_departure(actor.process, Departure::died);
        Departed departed{actor.process, {}, {}};
        pool_->worker().run([&] {
            pool_->reclaim(std::span(&departed, 1));
            return 0;
        });
        ASSERT_EQ(departed.step, RecoveryStep::done);
    }
    std::uint64_t used_frames() { return pool_->status().nodes[0].snapshot.used_frames; }
    TheChannel channel_of(const ManagedPool::OpenChannel &channel) {
        return {view_of(channel), channel.seat, OneNode{&*buddy_}};
    }
    SendResult send(const ManagedPool::OpenChannel &channel, std::uint32_t party, unsigned count) {
        std::vector<BlockPlace> places;
        for (unsigned i = 0; i < count; ++i) places.push_back({kNode, allocate(8192).base});
        unsigned refused = 0;
        return channel_of(channel).send(party, actor_, places.data(), count, {}, refused);
    }
    ChannelStatus status(const std::string &name) {
        const auto all = pool_->channel_statuses_in_time();
        EXPECT_TRUE(all);
        const auto found = std::ranges::find(*all, name, &ChannelStatus::name);
        if (found == all->end()) {
            ADD_FAILURE() << "no channel " << name;
            return {};
        }
        return *found;
    }
    void SetUp() override {
        ManagedPoolTest::SetUp();
        other_ = seat(2, 1000);
        buddy_.emplace(buddy());
    }

    Actor other_;
    std::optional<Buddy<ProductionEnv>> buddy_;

private:
    std::uint32_t next_id_ = 100;
};

// Seen failing when an opening looked at the name alone: the handle's area and seat were the next channel's soon.
TEST_F(PoolWithChannels, opens_none_that_is_going_and_another_one_when_it_has_gone) {
    (void)open(other_, "frames", true);
    const auto before = open(actor_, "zebra");
    close(actor_, "zebra");
    const auto going = take_unused();
    ASSERT_EQ(going.size(), 1U);
    EXPECT_FALSE(try_open(actor_, "zebra"));
    EXPECT_EQ(status("zebra").stays, "going");
    EXPECT_FALSE(pool_->worker().run([&] { return pool_->close_channel(client_of(actor_), "zebra"); }));
    EXPECT_FALSE(remove("zebra", true)) << "nobody has it any more";
    EXPECT_FALSE(try_open(actor_, "zebra")) << "and that has not brought it back";
    pool_->vacate(going.front().slot, Departure::detached, {}, 0);
    const auto after = open(actor_, "zebra");
    EXPECT_EQ(after.offset, before.offset) << "the area is used again";
    EXPECT_EQ(status("zebra").stays, "while needed");
}

TEST_F(PoolWithChannels, tells_how_full_each_is_and_whose_threads_it_has) {
    EXPECT_TRUE(pool_->channel_statuses_in_time()->empty());
    (void)open(other_, "zebra", true);
    const auto frames = open(other_, "frames");
    (void)open(actor_, "frames");
    (void)open(actor_, "frames");
    const std::uint32_t sender = channel_of(frames).join(actor_.process, PartyOwner::kSends);
    (void)channel_of(frames).join(actor_.process, PartyOwner::kSends | PartyOwner::kReceives);
    (void)channel_of(frames).join(other_.process, PartyOwner::kReceives);
    ASSERT_EQ(send(frames, sender, 3), SendResult::sent);
    ASSERT_EQ(send(frames, sender, 4), SendResult::sent);
    const auto all = pool_->channel_statuses_in_time();
    ASSERT_TRUE(all);
    ASSERT_EQ(all->size(), 2U);
    EXPECT_EQ(all->back().name, "zebra") << "by name";
    EXPECT_EQ(all->back().stays, "always");
    EXPECT_FALSE(all->back().oldest_waits_for);
    const ChannelStatus &status = all->front();
    EXPECT_EQ(status.pool, pool_->name());
    EXPECT_EQ(status.uid, 1000U) << "who has made it";
    EXPECT_EQ(status.stays, "while needed");
    EXPECT_EQ(status.shape, (ChannelShape{8, 4, 3}));
    EXPECT_EQ(status.figures.waiting, 7U);
    EXPECT_EQ(status.figures.sent, 7U);
    EXPECT_EQ(status.waiting_bytes, 7U * 8192);
    EXPECT_TRUE(status.oldest_waits_for);
    EXPECT_FALSE(status.figures.has_ended);
    ASSERT_EQ(status.parties.size(), 2U);
    EXPECT_EQ(status.parties[0].client_id, 1U);
    EXPECT_EQ(status.parties[0].opened, 2U);
    EXPECT_EQ(status.parties[0].senders, 2U);
    EXPECT_EQ(status.parties[0].receivers, 1U);
    EXPECT_EQ(status.parties[1].client_id, 2U);
    EXPECT_EQ(status.parties[1].senders, 0U);
    EXPECT_EQ(status.parties[1].receivers, 1U);
}

// Names, sizes, seats and clients are the ledger's; a party is only a client's that has the channel open.
TEST_F(PoolWithChannels, words_that_somebody_has_scribbled_over_make_figures_wrong_and_nothing_else) {
    const auto frames = open(actor_, "frames");
    const auto view = view_of(frames);
    const std::uint64_t words = ChannelLayout<ProductionEnv>::of(frames.shape).bytes / sizeof(std::uint64_t);
    auto *const memory = reinterpret_cast<std::atomic<std::uint64_t> *>(view.header);
    for (const std::uint64_t value : {~std::uint64_t{0}, std::uint64_t{0x0101010101010101}, std::uint64_t{1} << 16}) {
        for (std::uint64_t word = 0; word < words; ++word) memory[word].store(value);
        const ChannelStatus found = status("frames");
        EXPECT_LE(found.figures.waiting, 8U);
        EXPECT_LE(found.figures.returned, 12U);
        EXPECT_EQ(found.waiting_bytes, 0U) << "no block is the channel's";
        EXPECT_EQ(found.shape, (ChannelShape{8, 4, 3}));
        ASSERT_EQ(found.parties.size(), 1U) << "of those that have it open";
        EXPECT_EQ(found.parties[0].client_id, 1U);
    }
}

TEST_F(PoolWithChannels, one_that_is_removed_goes_when_nobody_has_it_open_with_what_is_in_it) {
    const auto frames = open(actor_, "frames", true);
    const std::uint32_t sender = channel_of(frames).join(actor_.process, PartyOwner::kSends);
    ASSERT_EQ(send(frames, sender, 1), SendResult::sent);
    const auto removed = remove("frames", false);
    ASSERT_TRUE(removed);
    EXPECT_EQ(*removed, 1U);
    EXPECT_EQ(status("frames").stays, "removed");
    EXPECT_FALSE(status("frames").figures.has_ended);
    EXPECT_EQ(send(frames, sender, 1), SendResult::sent) << "its programs go on";
    EXPECT_EQ(unused(), 0U);
    close(actor_, "frames");
    EXPECT_EQ(unused(), 1U);
    const auto again = remove("others", false);
    ASSERT_FALSE(again);
    EXPECT_EQ(again.error().code, Errc::no_such_pool);
}

TEST_F(PoolWithChannels, one_that_is_ended_refuses_sends_and_wakes_all_who_wait) {
    const auto frames = open(actor_, "frames");
    const std::uint32_t sender = channel_of(frames).join(actor_.process, PartyOwner::kSends);
    ASSERT_EQ(send(frames, sender, 2), SendResult::sent);
    auto receivers = Sleepers<ProductionEnv>::on_messages(*view_of(frames).header);
    const std::uint32_t signal = receivers.announce();
    EXPECT_TRUE(status("frames").figures.receivers_sleep);
    ASSERT_TRUE(remove("frames", true));
    EXPECT_NE(receivers.signal().load(), signal);
    EXPECT_FALSE(status("frames").figures.receivers_sleep);
    EXPECT_TRUE(status("frames").figures.has_ended);
    EXPECT_EQ(send(frames, sender, 1), SendResult::closed);
    EXPECT_EQ(status("frames").figures.waiting, 2U) << "receivers get what is there";
}

TEST_F(PoolWithChannels, a_restart_of_the_daemon_changes_no_figure) {
    const auto frames = open(actor_, "frames", true);
    const std::uint32_t sender = channel_of(frames).join(actor_.process, PartyOwner::kSends);
    ASSERT_EQ(send(frames, sender, 4), SendResult::sent);
    const ChannelStatus before = status("frames");
    ASSERT_NO_FATAL_FAILURE(restart());
    const ChannelStatus after = status("frames");
    EXPECT_EQ(after.client_id, before.client_id);
    EXPECT_EQ(after.stays, "always");
    EXPECT_EQ(after.figures.sent, 4U);
    EXPECT_EQ(after.figures.waiting, 4U);
}

TEST_F(PoolWithChannels, a_channel_has_one_kind_whoever_opens_it_and_after_a_restart) {
    const auto news = open_broadcast(actor_, true);
    (void)open(actor_, "frames", true);
    const auto check = [&] {
        const auto as_queue = try_to_open(other_, "news", ChannelKind::queue);
        ASSERT_FALSE(as_queue);
        EXPECT_EQ(as_queue.error().code, Errc::already_exists);
        EXPECT_NE(as_queue.error().message.find("\"news\" is a broadcast channel"), std::string::npos);
        EXPECT_NE(as_queue.error().message.find("open it with NUMACRE_CHANNEL_BROADCAST"), std::string::npos);
        const auto as_broadcast = try_to_open(other_, "frames", ChannelKind::broadcast);
        ASSERT_FALSE(as_broadcast);
        EXPECT_EQ(as_broadcast.error().code, Errc::already_exists);
        EXPECT_NE(as_broadcast.error().message.find("\"frames\" is a queue"), std::string::npos);
    };
    check();
    ASSERT_NO_FATAL_FAILURE(restart());
    check();
    const auto again = try_to_open(other_, "news", ChannelKind::broadcast);
    ASSERT_TRUE(again) << again.error().message;
    ASSERT_TRUE(*again);
    EXPECT_EQ((*again)->shape, news.shape);
    EXPECT_EQ((*again)->offset, news.offset);
}

TEST_F(PoolWithChannels, a_broadcast_tells_what_it_keeps_and_by_how_much_readers_were_overtaken) {
    const auto news = open_broadcast(actor_);
    (void)open(other_, "news", false, ChannelKind::broadcast);
    TheBroadcast writer = broadcast_of(news), reader = broadcast_of(news);
    const std::uint32_t sender = writer.join(actor_.process, PartyOwner::kSends);
    const std::uint32_t receiver = reader.join(other_.process, PartyOwner::kReceives);
    ASSERT_TRUE(reader.start(0));
    for (int burst = 0; burst < 10; ++burst) send_to(writer, sender, actor_, 2);
    const auto see = [](unsigned, NumaNode, Block) {};
    const auto keep = [](NumaNode, Block) {};
    EXPECT_EQ(reader.read({receiver, other_.process, {}}, 4, see, keep).lost, 4U);
    const ChannelStatus before = status("news");
    ASSERT_NO_FATAL_FAILURE(restart());
    for (const ChannelStatus &now : {before, status("news")}) {
        EXPECT_EQ(now.shape.kind, ChannelKind::broadcast);
        EXPECT_EQ(now.figures.sent, 20U);
        EXPECT_EQ(now.figures.waiting, 16U);
        EXPECT_EQ(now.waiting_bytes, 16U * 8192);
        EXPECT_EQ(now.figures.received, 2U);
        EXPECT_EQ(now.figures.overtaken, 4U);
        EXPECT_FALSE(now.oldest_waits_for);
        ASSERT_EQ(now.parties.size(), 2U);
        EXPECT_EQ(now.parties[0].senders, 1U);
        EXPECT_EQ(now.parties[1].receivers, 1U);
    }
}

// The reader had claimed a burst that has been overwritten since: nobody else frees its blocks.
TEST_F(PoolWithChannels, a_broadcast_s_reader_that_dies_keeps_nothing_back) {
    const auto news = open_broadcast(actor_);
    (void)open(other_, "news", false, ChannelKind::broadcast);
    TheBroadcast writer = broadcast_of(news), reader = broadcast_of(news);
    const std::uint32_t sender = writer.join(actor_.process, PartyOwner::kSends);
    const std::uint32_t receiver = reader.join(other_.process, PartyOwner::kReceives);
    ASSERT_TRUE(reader.start(0));
    send_to(writer, sender, actor_, 3);
    const auto see = [](unsigned, NumaNode, Block) {};
    const auto keep = [](NumaNode, Block) {};
    ASSERT_EQ(reader.read({receiver, other_.process, {}}, 4, see, keep).count, 3U);
    for (int burst = 0; burst < 8; ++burst) send_to(writer, sender, actor_, 1);
    EXPECT_EQ(used_frames(), frames(11 * 8192));
    ASSERT_NO_FATAL_FAILURE(die(other_));
    EXPECT_EQ(used_frames(), frames(8 * 8192));
    EXPECT_EQ(status("news").figures.waiting, 8U) << "what is kept stays";
}

TEST_F(PoolWithChannels, a_broadcast_goes_with_the_last_that_has_it_open_although_it_keeps_messages) {
    const auto news = open_broadcast(actor_);
    TheBroadcast writer = broadcast_of(news);
    const std::uint32_t sender = writer.join(actor_.process, PartyOwner::kSends);
    send_to(writer, sender, actor_, 2);
    EXPECT_EQ(unused(), 0U);
    close(actor_, "news");
    EXPECT_EQ(unused(), 1U);
}

TEST_F(PoolWithChannels, a_broadcast_that_was_once_opened_to_stay_stays) {
    (void)open_broadcast(actor_);
    (void)open_broadcast(actor_, true);
    close(actor_, "news");
    close(actor_, "news");
    EXPECT_EQ(unused(), 0U);
}

TEST_F(PoolWithChannels, words_of_a_broadcast_that_somebody_has_scribbled_over_harm_nothing) {
    const auto news = open_broadcast(actor_);
    const std::uint64_t words = channel_bytes<ProductionEnv>(news.shape) / sizeof(std::uint64_t);
    auto *const memory = static_cast<std::atomic<std::uint64_t> *>(memory_of(news));
    for (const std::uint64_t value : {~std::uint64_t{0}, std::uint64_t{0x0101010101010101}, std::uint64_t{1} << 16}) {
        for (std::uint64_t word = 0; word < words; ++word) memory[word].store(value);
        const ChannelStatus found = status("news");
        EXPECT_LE(found.figures.waiting, 32U);
        EXPECT_EQ(found.waiting_bytes, 0U) << "no block is the channel's";
        ASSERT_EQ(found.parties.size(), 1U);
    }
    // Among the scribbled words are owners of party slots.
    ASSERT_NO_FATAL_FAILURE(die(actor_));
}

// Seen failing: a reader was told of places outside the pool, and of as many messages as it had asked for.
TEST_F(PoolWithChannels, a_reader_of_scribbled_words_is_told_of_the_channels_blocks_alone) {
    const auto news = open_broadcast(actor_);
    TheBroadcast writer = broadcast_of(news);
    const std::uint32_t sender = writer.join(actor_.process, PartyOwner::kSends);
    const std::uint32_t receiver = writer.join(other_.process, PartyOwner::kReceives);
    for (int burst = 0; burst < 3; ++burst) send_to(writer, sender, actor_, 2);
    const std::uint64_t words = channel_bytes<ProductionEnv>(news.shape) / sizeof(std::uint64_t);
    auto *const memory = static_cast<std::atomic<std::uint64_t> *>(memory_of(news));
    std::vector<std::uint64_t> before(words);
    for (std::uint64_t word = 0; word < words; ++word) before[word] = memory[word].load();
    const auto see = [&](unsigned next, NumaNode numa_node, Block block) {
        EXPECT_LT(next, 4U);
        EXPECT_EQ(numa_node, kNode);
        EXPECT_TRUE(buddy_->view().contains(block));
    };
    const auto keep = [](NumaNode, Block) {};
    for (const std::uint64_t value : {~std::uint64_t{0}, std::uint64_t{0x0101010101010101}, std::uint64_t{1} << 16})
        for (std::uint64_t scribbled = 0; scribbled < words; ++scribbled) {
            TheBroadcast reader = broadcast_of(news);
            const bool starts = reader.start(5);
            memory[scribbled].store(value);
            for (int again = 0; starts && again < 4; ++again)
                EXPECT_LE(reader.read({receiver, other_.process, {}}, 4, see, keep).count, 4U);
            for (std::uint64_t word = 0; word < words; ++word) memory[word].store(before[word]);
        }
}

TEST_F(PoolWithChannels, a_broadcast_that_is_ended_wakes_its_readers) {
    const auto news = open_broadcast(actor_);
    TheBroadcast reader = broadcast_of(news);
    auto sleepers = Sleepers<ProductionEnv>::on_messages(*reader.view().header);
    const std::uint32_t signal = sleepers.announce();
    ASSERT_TRUE(remove("news", true));
    EXPECT_NE(sleepers.signal().load(), signal);
    EXPECT_TRUE(reader.is_closed());
    EXPECT_TRUE(status("news").figures.has_ended);
}

}  // namespace
}  // namespace numacre::daemon
