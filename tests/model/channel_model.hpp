// The product's channels (shm/channel/; the very source that clients run) under the explorer: senders and receivers
// with bounded scripts, deaths and a recovering daemon, and what must hold in every state.
//
// Each frame of the pool is a message that is sent once: so its number says who sent it, and as which of its messages.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "explorer.hpp"
#include "numacre/shm/channel/bells.hpp"
#include "numacre/shm/channel/channel.hpp"
#include "numacre/shm/channel/recovery.hpp"
#include "numacre/shm/chunks.hpp"
#include "numacre/shm/format.hpp"
#include "numacre/shm/recovery.hpp"

namespace numacre::model {

using namespace numacre::engine;

// What a thread does, one after the other.
inline constexpr int kClose = -1;
// Sends its next messages, that many in one burst: 1 .. 9. A burst for which there is no room stays with the sender.
// kSendPatiently + n: sleeps until there is room.
inline constexpr int kSendPatiently = 10;
// Receives up to n messages: kReceive + n; kAwait + n: sleeps until there are some.
inline constexpr int kReceive = 20;
inline constexpr int kAwait = 30;
inline constexpr int kSendTwice = 40;   // + 1: the next message, named twice in one burst: refused
inline constexpr int kWatch = 60;       // + n: receives up to n, and waits by its bell until there are some
inline constexpr int kWatchRoom = 70;   // + n: sends its next n messages, and waits by its bell until there is room
inline constexpr int kSendOver = 80;    // + n: sends, and drops the oldest messages for it
inline constexpr int kAfterFirst = 51;  // waits until the first thread has sent, or is dead
inline constexpr int kRejoin = 50;      // gives its party slot up and claims one, as soon as one is free

struct ChannelThread {
    std::uint16_t process = 1;
    std::vector<int> script{};
    unsigned holds = 0;  // messages that it may send
    bool mortal = true;
    bool joins_late = false;  // has no party slot at first: kRejoin
};
struct ChannelSetup {
    ChannelShape shape{.capacity = 2, .burst = 2, .parties = 2};
    std::vector<ChannelThread> threads{};
    bool daemon = false;
    std::uint64_t first_round = 0;   // of both rings, as if so many had been
    std::uint32_t first_total = 0;   // messages sent in these
    std::uint64_t hints_behind = 0;  // by so many positions
};

class ChannelModel {
public:
    using Word = SimEnv::Atomic<std::uint64_t>;

    ChannelModel(const std::string &name, const Options &options, ChannelSetup setup)
        : explorer(name, options), setup_(std::move(setup)) {
        lay_out();
        for (std::size_t thread = 0; thread < setup_.threads.size(); ++thread) add_thread(thread);
        if (setup_.daemon) add_daemon();
        explorer.on_state([this] {
            check_possession();
            check_totals();
        });
        explorer.on_quiet([this] { check_that_nothing_is_lost(); });
    }

    Report run() { return explorer.run(); }

    Explorer explorer;

private:
    struct OneNode {
        Buddy<SimEnv> *buddy;
        Buddy<SimEnv> &at(std::uint32_t) const { return *buddy; }
        std::uint32_t count() const { return 1; }
    };
    using ModelChannel = Channel<SimEnv, OneNode>;
    using ModelSleepers = Sleepers<SimEnv>;
    enum class Patience : std::uint8_t { none, sleeps, watches };
    struct Local {
        std::uint64_t held;                // bit: message
        std::uint64_t sent;                // send has returned
        std::uint64_t received;            // receive has returned
        std::array<std::uint8_t, 8> last;  // by sender: one more than its last message that was received in sequence
        std::uint32_t party;
        bool asleep;
        std::uint8_t watching;  // ArmedWord: it waits by its bell
    };

    static std::uint64_t bit(std::uint64_t message) { return std::uint64_t{1} << message; }
    Actor actor_of(std::size_t thread) const {
        return {ThreadSlotIndex{static_cast<std::uint16_t>(thread + 1)}, ProcessSlot{setup_.threads[thread].process}};
    }
    static std::uint32_t first_party_of(std::size_t thread) { return static_cast<std::uint32_t>(thread + 1); }
    std::uint32_t party_of(std::size_t thread) const { return local_of(thread).party; }
    bool has_rejoins() const {
        return has_in_a_script([](int what) { return what == kRejoin; });
    }
    bool has_bells() const {
        return has_in_a_script([](int what) { return what >= kWatch; });
    }
    template <class Is>
    bool has_in_a_script(const Is &is) const {
        for (const ChannelThread &thread : setup_.threads)
            for (const int what : thread.script)
                if (is(what)) return true;
        return false;
    }
    ModelChannel channel() const { return {view_, owner_, OneNode{buddy_.get()}}; }
    IndexEntry entry_of(std::uint64_t message) const {
        return IndexEntry{node_.index[0][message].load(std::memory_order_seq_cst)};
    }

    void lay_out() {
        for (const ChannelThread &thread : setup_.threads) {
            processes_ = std::max(processes_, std::uint32_t{thread.process} + 1);
            first_of_.push_back(messages_);
            messages_ += thread.holds;
        }
        owner_ = ProcessSlot{static_cast<std::uint16_t>(processes_)};
        const auto threads = static_cast<std::uint32_t>(setup_.threads.size()) + 1;
        const Geometry geometry{.frame_bytes = 64, .largest_order = 0, .frame_count = messages_ == 0 ? 1 : messages_};
        void *const pool_region =
            explorer.allocate(PoolLayout<SimEnv>::of(processes_ + 1, threads).region_bytes, kPageBytes);
        void *const node_region = explorer.allocate(NodeLayout<SimEnv>::of(geometry, threads).region_bytes, kPageBytes);
        format_pool_region<SimEnv>(pool_region, "model", 1, geometry, 1, processes_ + 1, threads);
        format_node_region<SimEnv>(node_region, geometry, NumaNode{0}, 1, threads);
        pool_ = PoolView<SimEnv>::at(pool_region, processes_ + 1, threads);
        node_ = NodeView<SimEnv>::at(node_region, geometry, NumaNode{0}, threads);
        buddy_ = std::make_unique<Buddy<SimEnv>>(node_, pool_);
        Chunks<SimEnv> chunks{node_, pool_};
        for (std::uint64_t chunk = 0; chunk < geometry.chunk_count(); ++chunk) (void)chunks.bring_online(chunk);
        for (std::uint32_t process = 1; process <= processes_; ++process)
            pool_.processes[process].state.store(static_cast<std::uint64_t>(ProcessState::active));
        pool_.header->thread_high_water.store(threads);
        payloads_ = static_cast<Word *>(explorer.allocate(messages_ * sizeof(Word)));
        void *const memory = explorer.allocate(ChannelLayout<SimEnv>::of(setup_.shape).bytes, kPageBytes);
        view_ = ChannelView<SimEnv>::at(memory, setup_.shape);
        format_channel(view_);
        begin_at(setup_.first_round);
        for (std::size_t thread = 0; thread < setup_.threads.size(); ++thread) {
            pool_.threads[thread + 1].owner.store(ThreadOwner{actor_of(thread).process}.bits());
            for (unsigned held = 0; held < setup_.threads[thread].holds; ++held) {
                if (!buddy_->allocate_at(actor_of(thread), {FrameIndex{first_of_[thread] + held}, Order{0}}, {}))
                    fail("set-up: a message cannot be had");
            }
            if (!setup_.threads[thread].joins_late && join(thread) != first_party_of(thread))
                fail("set-up: a thread cannot join");
        }
        for (std::uint32_t party = 0; has_bells() && party <= setup_.shape.parties; ++party) {
            bells_.push_back(explorer.make<Word>());
            explorer.label(bells_.back(), sizeof(Word), "bell" + std::to_string(party));
            if (party != 0) bells_of_channel().install(party, party);
        }
        hide_and_label();
    }
    std::uint32_t join(std::size_t thread) const {
        return channel().join(actor_of(thread).process, PartyOwner::kSends | PartyOwner::kReceives);
    }
    // The rings as they are after so many rounds.
    void begin_at(std::uint64_t round) {
        for (const RingView<SimEnv> &ring : {view_.ring, view_.returned}) {
            for (std::uint32_t cell = 0; cell < ring.cell_count; ++cell)
                ring.cells[cell].store(CellWord::empty(cell, round, setup_.first_total).bits());
            ring.head->store(round * ring.cell_count - setup_.hints_behind);
            ring.tail->store(round * ring.cell_count - setup_.hints_behind);
        }
    }

    void hide_and_label() {
        // Tallies, and what only frees and recovery of the tree write: the tree has tests of its own.
        for (std::uint32_t party = 0; party <= setup_.shape.parties; ++party) {
            PartySlot<SimEnv> &slot = view_.parties[party];
            explorer.ignore(&slot.sent, 4 * sizeof(Word));
            const std::string name = party == 0 ? "daemon" : "party" + std::to_string(party);
            explorer.label(&slot.errand, sizeof(Word), name + ".errand");
            explorer.label(&slot.seen, sizeof(Word), name + ".seen");
            explorer.label(&slot.first, sizeof(Word), name + ".first");
            explorer.label(&slot.segment, sizeof(Word), name + ".segment");
            explorer.label(&slot.owner, sizeof(Word), name + ".owner");
            explorer.label(&slot.armed, sizeof(Word), name + ".armed");
            explorer.label(slot.claims.data(), sizeof slot.claims, name + ".claims");
        }
        explorer.label(view_.ring.cells, view_.ring.cell_count * sizeof(Word), "cell");
        explorer.label(view_.returned.cells, view_.returned.cell_count * sizeof(Word), "returned");
        explorer.label(view_.ring.segments, std::uint64_t{view_.ring.segment_count} * view_.ring.burst * sizeof(Word),
                       "list");
        explorer.label(view_.returned.segments,
                       std::uint64_t{view_.returned.segment_count} * view_.ring.burst * sizeof(Word), "returned_list");
        explorer.label(node_.index[0], messages_ * sizeof(Word), "entry");
        explorer.label(view_.ring.head, sizeof(Word), "head");
        explorer.label(view_.ring.tail, sizeof(Word), "tail");
        explorer.label(&view_.header->receivers_asleep, sizeof(Word), "receivers_asleep");
        explorer.label(&view_.header->senders_asleep, sizeof(Word), "senders_asleep");
        explorer.label(&view_.header->message_signal, 4, "message_signal", 4);
        explorer.label(&view_.header->room_signal, 4, "room_signal", 4);
        for (std::uint32_t thread = 0; thread < setup_.threads.size() + 1; ++thread) {
            explorer.ignore(&node_.counters[thread], sizeof node_.counters[thread]);
            explorer.ignore(&node_.home[thread], sizeof node_.home[thread]);
        }
        for (std::size_t thread = 0; thread < setup_.threads.size() && !has_rejoins(); ++thread) {
            PartySlot<SimEnv> &slot = view_.parties[first_party_of(thread)];
            explorer.written_only_by(static_cast<int>(thread), &slot.errand, 4 * sizeof(Word));
            explorer.written_only_by(static_cast<int>(thread), slot.claims.data(), sizeof slot.claims);
        }
    }

    void add_thread(std::size_t thread) {
        explorer.add_thread(
            {.name = "thread" + std::to_string(thread),
             .process = setup_.threads[thread].process,
             .mortal = setup_.threads[thread].mortal},
            [this, thread](Thread &self) {
                Local &local = self.local<Local>();
                local.party = setup_.threads[thread].joins_late ? 0 : first_party_of(thread);
                for (unsigned held = 0; held < setup_.threads[thread].holds; ++held)
                    local.held |= bit(first_of_[thread] + held);
                for (const int what : setup_.threads[thread].script)
                    self.run_operation([&] { follow(self, thread, what); });
            },
            sizeof(Local));
    }

    void follow(Thread &self, std::size_t thread, int what) {
        self.choose_operation(1);
        if (what == kClose)
            close();
        else if (what == kRejoin)
            rejoin(self, thread);
        else if (what == kAfterFirst)
            self.rest_until([this] { return explorer.dead(setup_.threads[0].process) || local_of(0).sent != 0; });
        else if (what >= kSendOver)
            send_over(self, thread, static_cast<unsigned>(what % 10));
        else if (what >= kWatchRoom)
            send(self, thread, static_cast<unsigned>(what % 10), Patience::watches);
        else if (what >= kWatch)
            receive(self, thread, static_cast<unsigned>(what % 10), Patience::watches);
        else if (what >= kSendTwice)
            send_twice(self, thread);
        else if (what >= kReceive)
            receive(self, thread, static_cast<unsigned>(what % 10), what >= kAwait ? Patience::sleeps : Patience::none);
        else
            send(self, thread, static_cast<unsigned>(what % 10),
                 what >= kSendPatiently ? Patience::sleeps : Patience::none);
    }

    void close() const {
        channel().close();
        ModelSleepers::on_messages(*view_.header).call();
        ModelSleepers::on_room(*view_.header).call();
        ring(ArmedWord::kMessages);
        ring(ArmedWord::kRoom);
    }

    // --- bells: an eventfd is a counter that its party waits for
    // ---------------------------------------------------------

    Bells<SimEnv> bells_of_channel() const { return Bells<SimEnv>{view_}; }
    // After a change of the ring.
    void ring(std::uint64_t what) const {
        if (bells_.empty() || !bells_of_channel().has_watchers(what)) return;
        bells_of_channel().ring(what, [this](std::uint32_t party, std::uint64_t serial) {
            if (serial != party) return false;
            (void)bells_[party]->fetch_add(1);
            return true;
        });
    }
    void ring_all() const {
        for (Word *const bell : bells_) bell->store(1);
    }
    // is_worth_it(): what the thread waits for is there.
    template <class IsWorthIt>
    void watch(Thread &self, std::uint64_t what, const IsWorthIt &is_worth_it) const {
        Local &local = self.local<Local>();
        Word &bell = *bells_[local.party];
        (void)bell.exchange(0);
        bells_of_channel().arm(local.party, what);
        if (is_worth_it()) (void)bell.fetch_add(1);
        local.watching = static_cast<std::uint8_t>(what);
        self.rest_until([&bell] { return bell.load() != 0; });
        local.watching = 0;
    }

    void rejoin(Thread &self, std::size_t thread) {
        Local &local = self.local<Local>();
        if (local.party != 0) channel().leave(local.party);
        local.party = 0;
        while (local.party == 0) {
            self.rest_until([this] { return is_a_party_free(); });
            local.party = join(thread);
        }
    }
    bool is_a_party_free() const {
        for (std::uint32_t party = 1; party <= setup_.shape.parties; ++party)
            if (view_.parties[party].owner.load() == 0) return true;
        return false;
    }

    void send(Thread &self, std::size_t thread, unsigned count, Patience patience) {
        Local &local = self.local<Local>();
        std::array<BlockPlace, 4> places{};
        std::uint64_t burst = 0;
        for (unsigned next = 0; next < count; ++next) {
            const auto message = static_cast<std::uint64_t>(std::countr_zero(local.held & ~local.received & ~burst));
            places[next] = {NumaNode{0}, FrameIndex{message}};
            burst |= bit(message);
            self.touch(payload_of(message));
        }
        ModelChannel ours = channel();
        for (;;) {
            unsigned refused = 0;
            local.held &= ~burst;  // from here on it may be somebody else's
            const SendResult result = ours.send(party_of(thread), actor_of(thread), places.data(), count, {}, refused);
            if (result == SendResult::sent) {
                local.sent |= burst;
                if (ModelSleepers::on_messages(*view_.header).must_wake()) nobody_to_wake();
                ring(ArmedWord::kMessages);
                return;
            }
            local.held |= burst;
            if (result != SendResult::full && result != SendResult::closed) self.fail("a send failed");
            if (patience == Patience::none || result == SendResult::closed) return;
            if (patience == Patience::watches) {
                watch(self, ArmedWord::kRoom, [&] { return ours.has_room(count) || ours.is_closed(); });
                continue;
            }
            auto sleepers = ModelSleepers::on_room(*view_.header);
            const std::uint32_t signal = sleepers.announce();
            if (!ours.has_room(count) && !ours.is_closed()) {
                local.asleep = true;
                self.rest_until([&] { return sleepers.signal().load() != signal; });
                local.asleep = false;
            }
        }
    }
    void send_over(Thread &self, std::size_t thread, unsigned count) {
        Local &local = self.local<Local>();
        std::array<BlockPlace, 4> places{};
        std::uint64_t burst = 0;
        for (unsigned next = 0; next < count; ++next) {
            const auto message = static_cast<std::uint64_t>(std::countr_zero(local.held & ~local.received & ~burst));
            places[next] = {NumaNode{0}, FrameIndex{message}};
            burst |= bit(message);
            self.touch(payload_of(message));
        }
        unsigned refused = 0;
        local.held &= ~burst;
        SendResult result = SendResult::full;
        for (;;) {
            result = channel().send(party_of(thread), actor_of(thread), places.data(), count, {}, refused);
            if (result != SendResult::full) break;
            std::uint64_t dropped = 0;
            (void)channel().drop_oldest(party_of(thread), actor_of(thread), {},
                                        [&](unsigned, NumaNode, Block block) { dropped |= bit(block.base.value); });
            for (std::uint64_t message = 0; message < messages_; ++message)
                if ((dropped & bit(message)) != 0) accept(self, local, message, false);
        }
        if (result != SendResult::sent) self.fail("a send that drops messages failed");
        local.sent |= burst;
    }
    void send_twice(Thread &self, std::size_t thread) {
        Local &local = self.local<Local>();
        const auto message = static_cast<std::uint64_t>(std::countr_zero(local.held & ~local.received));
        const BlockPlace place{NumaNode{0}, FrameIndex{message}};
        const std::array<BlockPlace, 2> places{place, place};
        unsigned refused = 0;
        local.held &= ~bit(message);
        const SendResult result = channel().send(party_of(thread), actor_of(thread), places.data(), 2, {}, refused);
        if (result == SendResult::sent) self.fail("a block was sent twice in one burst");
        local.held |= bit(message);
    }

    void receive(Thread &self, std::size_t thread, unsigned most, Patience patience) {
        Local &local = self.local<Local>();
        ModelChannel ours = channel();
        for (;;) {
            std::array<std::uint64_t, 4> messages{};
            const auto received =
                ours.receive(party_of(thread), actor_of(thread), most, {},
                             [&](unsigned next, NumaNode, Block block) { messages[next] = block.base.value; });
            for (unsigned next = 0; next < received.count; ++next)
                accept(self, local, messages[next], received.is_redelivered);
            if (received.result == ReceiveResult::scribbled) self.fail("a receive found something else than messages");
            if (received.result == ReceiveResult::received) {
                if (ModelSleepers::on_room(*view_.header).must_wake()) nobody_to_wake();
                ring(ArmedWord::kRoom);
                return;
            }
            if (patience == Patience::none || ours.is_closed()) return;
            if (patience == Patience::watches) {
                watch(self, ArmedWord::kMessages, [&] { return ours.has_messages() || ours.is_closed(); });
                continue;
            }
            auto sleepers = ModelSleepers::on_messages(*view_.header);
            const std::uint32_t signal = sleepers.announce();
            if (!ours.has_messages() && !ours.is_closed()) {
                local.asleep = true;
                self.rest_until([&] { return sleepers.signal().load() != signal; });
                local.asleep = false;
            }
        }
    }
    void accept(Thread &self, Local &local, std::uint64_t message, bool is_redelivered) {
        local.held |= bit(message);
        for (std::size_t thread = 0; thread < setup_.threads.size(); ++thread)
            if ((explorer.local<Local>(static_cast<int>(thread)).received & bit(message)) != 0)
                self.fail("a message was received twice");
        local.received |= bit(message);
        self.touch(payload_of(message));
        std::size_t sender = 0;
        while (sender + 1 < first_of_.size() && first_of_[sender + 1] <= message) ++sender;
        if (is_redelivered) return;
        const auto number = static_cast<std::uint8_t>(message - first_of_[sender] + 1);
        if (local.last[sender] >= number) self.fail("messages of one sender were received out of order");
        local.last[sender] = number;
    }
    const void *payload_of(std::uint64_t message) const { return payloads_ + message; }
    static void nobody_to_wake() {}

    void add_daemon() {
        daemon_died_ = explorer.make<Word>();
        explorer.keep_private(daemon_died_, sizeof(Word));
        explorer.on_kill([this](int process) {
            if (process != 0) return;
            daemon_died_->store(1);
            ring_all();  // the kernel does so: the parties' connections have ended
        });
        explorer.add_thread(
            {.name = "daemon", .process = 0, .restartable = true, .may_wait_for_others = true}, [this](Thread &self) {
                Recovery<SimEnv> recovery{pool_, std::span<const NodeView<SimEnv>>{&node_, 1}};
                ChannelRecovery<SimEnv, OneNode> of_channel{view_, owner_, OneNode{buddy_.get()}};
                if (daemon_died_->load() != 0) {
                    ThreadSlotIndex blocked_by{};
                    while (recovery.resume(blocked_by) == RecoveryStep::blocked) blocked_by = {};
                    of_channel.resume({});
                }
                for (;;) {
                    self.run_operation([&] {
                        self.rest_until([&] { return find_dead() != 0; });
                        const std::uint16_t process = find_dead();
                        pool_.processes[process].state.store(static_cast<std::uint64_t>(ProcessState::dead));
                        ring_all();
                        Reclaimed total{};
                        ThreadSlotIndex blocked_by{};
                        const auto is_dead = [this](ProcessSlot slot) { return explorer.dead(slot.value); };
                        while (of_channel.recover_process(ProcessSlot{process}, {}, is_dead) == RecoveryStep::blocked) {
                        }
                        while (recovery.recover_process(ProcessSlot{process}, total, blocked_by) ==
                               RecoveryStep::blocked) {
                        }
                        ModelSleepers::on_messages(*view_.header).call();
                        ModelSleepers::on_room(*view_.header).call();
                        ring_all();
                        pool_.processes[process].state.store(static_cast<std::uint64_t>(ProcessState::free));
                    });
                }
            });
    }
    std::uint16_t find_dead() const {
        for (std::uint16_t process = 1; process < processes_; ++process)
            if (explorer.dead(process) &&
                pool_.processes[process].state.load() != static_cast<std::uint64_t>(ProcessState::free))
                return process;
        return 0;
    }

    const Local &local_of(std::size_t thread) const { return explorer.local<Local>(static_cast<int>(thread)); }

    void check_possession() {
        std::uint64_t held = 0;
        for (std::size_t thread = 0; thread < setup_.threads.size(); ++thread) {
            if (explorer.dead(setup_.threads[thread].process)) continue;
            const std::uint64_t its = local_of(thread).held;
            if ((its & held) != 0) return fail("two threads have one message");
            held |= its;
            for (std::uint64_t message = 0; message < messages_; ++message)
                if ((its & bit(message)) != 0 &&
                    !entry_of(message).is_private(IndexEntry::private_to(actor_of(thread).process)))
                    return fail("message " + std::to_string(message) + " is not its holder's");
        }
    }

    // There are no more messages in the ring than it may have, and each cell counts those that were sent before.
    void check_totals() {
        std::uint32_t left = 0;
        for (std::uint32_t cell = 0; cell < view_.ring.cell_count; ++cell) {
            const CellWord here{view_.ring.cells[cell].load()};
            if (!here.is_full()) continue;
            left += here.left();
            const std::uint32_t last_cell = (cell == 0 ? view_.ring.cell_count : cell) - 1;
            const std::uint64_t last_round = cell == 0 ? here.round() - 1 : here.round();
            const CellWord last{view_.ring.cells[last_cell].load()};
            const std::int64_t ahead = last.ahead_of(last_round);
            if (ahead == (last.is_full() ? 0 : 1) && here.total() != ((last.total() + here.count()) & kTotalMask))
                return fail("cell " + std::to_string(cell) + " has a wrong total");
        }
        if (left > setup_.shape.capacity) fail("there are more messages in the channel than its capacity");
    }

    std::uint64_t in_ring(const RingView<SimEnv> &ring) {
        std::uint64_t found = 0;
        for (std::uint32_t cell = 0; cell < ring.cell_count; ++cell) {
            const CellWord word{ring.cells[cell].load()};
            if (!word.is_full()) continue;
            for (unsigned next = word.taken(); next < word.count(); ++next) {
                const Message message{ring.segment(word.segment())[next].load()};
                const std::uint64_t base = message.block().base.value;
                if ((found & bit(base)) != 0) fail("a message is in the channel twice");
                found |= bit(base);
                if (!entry_of(base).is_private(IndexEntry::private_to(owner_)) ||
                    entry_of(base).generation() != message.generation())
                    fail("message " + std::to_string(base) + " is in the channel, and its block is not the channel's");
            }
        }
        return found;
    }
    // Everybody rests, and the daemon has nothing to do.
    void check_that_nothing_is_lost() {
        const std::uint64_t in_channel = in_ring(view_.ring) | in_ring(view_.returned);
        std::uint64_t held = 0;
        std::uint64_t sent = 0;
        std::uint64_t received = 0;
        bool all_alive = true;
        for (std::size_t thread = 0; thread < setup_.threads.size(); ++thread) {
            const Local &local = local_of(thread);
            sent |= local.sent;
            received |= local.received;
            if (explorer.dead(setup_.threads[thread].process))
                all_alive = false;
            else
                held |= local.held;
        }
        if ((held & in_channel) != 0) return fail("a message is in the channel, and somebody has it");
        // Without a daemon a death is a thread that stops: its blocks do not come back. Who comes behind it rings.
        if (!setup_.daemon && !all_alive) {
            if (have_living_sent_all()) check_watchers(in_channel);
            return;
        }
        for (std::uint64_t message = 0; message < messages_; ++message) {
            const IndexEntry entry = entry_of(message);
            if ((sent & ~received & ~in_channel & bit(message)) != 0)
                return fail("message " + std::to_string(message) + " was sent and is lost");
            if (((held | in_channel) & bit(message)) == 0 &&
                (entry.is_owned() || (node_.leaf[0].load() & bit(message)) != 0))
                return fail("the block of message " + std::to_string(message) + " is lost");
        }
        check_segments();
        check_watchers(in_channel);
        if (setup_.daemon && !all_alive) return;  // the dead may have been those who were to be waited for
        for (std::size_t thread = 0; thread < setup_.threads.size(); ++thread)
            if (local_of(thread).asleep && in_channel != 0 && waits_for_messages(thread))
                return fail("a receiver sleeps beside a message");
        for (std::size_t thread = 0; thread < setup_.threads.size(); ++thread)
            if (local_of(thread).asleep && channel().is_closed()) return fail("somebody sleeps in a closed channel");
    }
    bool have_living_sent_all() const {
        for (std::size_t thread = 0; thread < setup_.threads.size(); ++thread)
            if (!explorer.dead(setup_.threads[thread].process) &&
                static_cast<unsigned>(std::popcount(local_of(thread).sent)) < setup_.threads[thread].holds)
                return false;
        return true;
    }
    // Also after deaths.
    void check_watchers(std::uint64_t in_channel) {
        for (std::size_t thread = 0; thread < setup_.threads.size(); ++thread) {
            const std::uint8_t watching = local_of(thread).watching;
            if (watching == 0 || explorer.dead(setup_.threads[thread].process)) continue;
            if (watching == ArmedWord::kMessages && in_channel != 0) return fail("a receiver watches beside a message");
            if (watching == ArmedWord::kRoom && channel().has_room(1)) return fail("a sender watches beside room");
            if (channel().is_closed()) return fail("somebody watches a closed channel");
        }
    }
    bool waits_for_messages(std::size_t thread) const {
        for (const int what : setup_.threads[thread].script)
            if (what >= kAwait) return true;
        return false;
    }
    // Each segment is in one place.
    void check_segments() {
        std::uint64_t seen = 0;
        const auto see = [&](std::uint64_t segment) {
            if ((seen & bit(segment)) != 0) fail("segment " + std::to_string(segment) + " is in two places");
            seen |= bit(segment);
        };
        for (std::uint32_t cell = 0; cell < view_.ring.cell_count; ++cell)
            see(CellWord{view_.ring.cells[cell].load()}.segment());
        for (std::uint32_t party = 1; party <= setup_.shape.parties; ++party) see(view_.parties[party].segment.load());
    }
    void fail(const std::string &what) { explorer.fail(what); }

    ChannelSetup setup_;
    std::uint32_t processes_ = 1;
    std::uint64_t messages_ = 0;
    std::vector<std::uint64_t> first_of_;  // by thread: its first message
    ProcessSlot owner_{};
    PoolView<SimEnv> pool_;
    NodeView<SimEnv> node_;
    ChannelView<SimEnv> view_;
    std::unique_ptr<Buddy<SimEnv>> buddy_;
    Word *payloads_ = nullptr;  // what senders write, and receivers read
    Word *daemon_died_ = nullptr;
    std::vector<Word *> bells_;  // by party; none: nobody watches
};

}  // namespace numacre::model
