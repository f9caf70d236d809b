// The product's broadcasts (shm/channel/broadcast*.hpp; the very source that clients run) under the explorer: writers
// and readers with bounded scripts, deaths and a recovering daemon, and what must hold in every state.
//
// Each frame of the pool is a message that is sent once: so its number says who sent it, and as which of its messages.
// The model writes down in which order bursts came into the ring; a reader has to get exactly that, less what it is
// told that it has lost.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "explorer.hpp"
#include "numacre/shm/channel/broadcast_recovery.hpp"
#include "numacre/shm/chunks.hpp"
#include "numacre/shm/format.hpp"
#include "numacre/shm/recovery.hpp"

namespace numacre::model {

using namespace numacre::engine;

// What a thread does, one after the other: n sends its next n messages in one burst.
inline constexpr int kEnd = -1;       // closes the channel
inline constexpr int kStart = 10;     // + n: sets the cursor, with up to n messages of before
inline constexpr int kRead = 20;      // + n: reads up to n messages
inline constexpr int kAwaitOne = 30;  // sleeps until there is a message, and reads it
inline constexpr int kDropAll = 40;
inline constexpr int kComeAgain = 50;  // gives its party slot up and claims one, as soon as one is free

struct BroadcastThread {
    std::uint16_t process = 1;
    std::vector<int> script{};
    unsigned holds = 0;  // messages that it may send
    bool mortal = true;
    bool reads() const {
        return std::any_of(script.begin(), script.end(), [](int what) { return what >= kStart; });
    }
};
struct BroadcastSetup {
    BroadcastShape shape{.capacity = 2, .burst = 2, .parties = 2};
    std::vector<BroadcastThread> threads{};
    bool daemon = false;
    std::uint64_t tail_hint = 0;  // added to the right one
};

class BroadcastModel {
public:
    using Word = SimEnv::Atomic<std::uint64_t>;

    BroadcastModel(const std::string &name, const Options &options, BroadcastSetup setup)
        : explorer(name, options), setup_(std::move(setup)) {
        lay_out();
        for (std::size_t thread = 0; thread < setup_.threads.size(); ++thread) add_thread(thread);
        if (setup_.daemon) add_daemon();
        explorer.on_step([this] { write_history(); });
        explorer.on_state([this] { check_possession(); });
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
    using ModelBroadcast = Broadcast<SimEnv, OneNode>;
    using ModelSleepers = Sleepers<SimEnv>;
    struct Local {
        std::uint64_t held;                // bit: message
        std::uint64_t given;               // those of them that had been sent
        std::uint64_t sent;                // send has returned
        std::uint64_t reading;             // by what the reader was told, they stay where they are
        std::array<std::uint8_t, 8> last;  // by writer: one more than its last message that was read
        std::uint64_t passed;
        std::uint32_t party;
        bool asleep;
    };

    static std::uint64_t bit(std::uint64_t message) { return std::uint64_t{1} << message; }
    ProcessSlot process_of(std::size_t thread) const { return ProcessSlot{setup_.threads[thread].process}; }
    Actor actor_of(std::size_t thread) const {
        return {ThreadSlotIndex{static_cast<std::uint16_t>(thread + 1)}, process_of(thread)};
    }
    std::uint64_t roles_of(std::size_t thread) const {
        return (setup_.threads[thread].holds != 0 ? PartyOwner::kSends : 0) |
               (setup_.threads[thread].reads() ? PartyOwner::kReceives : 0);
    }
    Heir self_of(std::size_t thread) const { return {local_of(thread).party, process_of(thread), {}}; }
    bool has_rejoins() const {
        for (const BroadcastThread &thread : setup_.threads)
            for (const int what : thread.script)
                if (what == kComeAgain) return true;
        return false;
    }
    ModelBroadcast broadcast() const { return {view_, owner_, OneNode{buddy_.get()}}; }
    IndexEntry entry_of(std::uint64_t message) const {
        return IndexEntry{node_.index[0][message].load(std::memory_order_seq_cst)};
    }
    bool is_channels(std::uint64_t message) const {
        return entry_of(message).is_private(IndexEntry::private_to(owner_));
    }

    void lay_out() {
        for (const BroadcastThread &thread : setup_.threads) {
            processes_ = std::max(processes_, std::uint32_t{thread.process} + 1);
            first_of_.push_back(messages_);
            messages_ += thread.holds;
        }
        owner_ = ProcessSlot{static_cast<std::uint16_t>(processes_)};
        const auto threads = static_cast<std::uint32_t>(setup_.threads.size()) + 1;
        const Geometry geometry{.frame_bytes = 64, .largest_order = 0, .frame_count = messages_};
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
        payloads_ = static_cast<Word *>(explorer.allocate(messages_ * setup_.threads.size() * sizeof(Word)));
        view_ = BroadcastView<SimEnv>::at(
            explorer.allocate(BroadcastLayout<SimEnv>::of(setup_.shape).bytes, kPageBytes), setup_.shape);
        format_broadcast(view_);
        view_.header->tail.fetch_add(setup_.tail_hint);
        history_ = static_cast<Word *>(explorer.allocate((messages_ + 1 + view_.cell_count) * sizeof(Word)));
        explorer.keep_private(history_, (messages_ + 1 + view_.cell_count) * sizeof(Word));
        for (std::size_t thread = 0; thread < setup_.threads.size(); ++thread) {
            pool_.threads[thread + 1].owner.store(ThreadOwner{process_of(thread)}.bits());
            for (unsigned held = 0; held < setup_.threads[thread].holds; ++held) {
                if (!buddy_->allocate_at(actor_of(thread), {FrameIndex{first_of_[thread] + held}, Order{0}}, {}))
                    fail("set-up: a message cannot be had");
            }
            if (broadcast().join(process_of(thread), roles_of(thread)) != thread + 1)
                fail("set-up: a thread cannot join");
        }
        hide_and_label();
    }

    void hide_and_label() {
        for (std::uint32_t party = 1; party <= setup_.shape.parties; ++party) {
            BroadcastParty<SimEnv> &slot = view_.party(party);
            explorer.ignore(&slot.sent, sizeof(Word));
            explorer.ignore(&slot.read, 2 * sizeof(Word));
            const std::string name = "party" + std::to_string(party);
            explorer.label(&slot.owner, sizeof(Word), name + ".owner");
            explorer.label(&slot.errand, sizeof(Word), name + ".errand");
            explorer.label(&slot.seen, sizeof(Word), name + ".seen");
            explorer.label(&slot.first, sizeof(Word), name + ".first");
            explorer.label(&slot.segment, sizeof(Word), name + ".segment");
            explorer.label(&slot.claim, sizeof(Word), name + ".claim");
        }
        explorer.label(view_.cells, view_.cell_count * sizeof(Word), "cell");
        explorer.label(view_.states, view_.segment_count * sizeof(Word), "state");
        explorer.label(view_.segments, view_.segment_count * (setup_.shape.burst + 1) * sizeof(Word), "segment");
        explorer.label(node_.index[0], messages_ * sizeof(Word), "entry");
        explorer.label(&view_.header->readers, sizeof(Word), "readers");
        explorer.label(&view_.header->tail, sizeof(Word), "tail");
        explorer.label(&view_.header->receivers_asleep, sizeof(Word), "receivers_asleep");
        explorer.label(&view_.header->message_signal, 4, "message_signal", 4);
        for (std::uint32_t thread = 0; thread < setup_.threads.size() + 1; ++thread) {
            explorer.ignore(&node_.counters[thread], sizeof node_.counters[thread]);
            explorer.ignore(&node_.home[thread], sizeof node_.home[thread]);
        }
        for (std::size_t thread = 0; thread < setup_.threads.size() && !has_rejoins(); ++thread) {
            BroadcastParty<SimEnv> &slot = view_.party(static_cast<std::uint32_t>(thread + 1));
            explorer.written_only_by(static_cast<int>(thread), &slot.errand, 4 * sizeof(Word));
            explorer.written_only_by(static_cast<int>(thread), &slot.claim, sizeof(Word));
        }
    }

    void add_thread(std::size_t thread) {
        explorer.add_thread(
            {.name = "thread" + std::to_string(thread),
             .process = setup_.threads[thread].process,
             .mortal = setup_.threads[thread].mortal},
            [this, thread](Thread &self) {
                Local &local = self.local<Local>();
                local.party = static_cast<std::uint32_t>(thread + 1);
                for (unsigned held = 0; held < setup_.threads[thread].holds; ++held)
                    local.held |= bit(first_of_[thread] + held);
                ModelBroadcast ours = broadcast();
                for (const int what : setup_.threads[thread].script)
                    self.run_operation([&] { follow(self, thread, ours, what); });
            },
            sizeof(Local));
    }

    void follow(Thread &self, std::size_t thread, ModelBroadcast &ours, int what) {
        self.choose_operation(1);
        Local &local = self.local<Local>();
        if (what == kEnd) {
            ours.close();
            ModelSleepers::on_messages(*view_.header).call();
        } else if (what == kComeAgain) {
            rejoin(self, thread, ours);
        } else if (what == kDropAll) {
            end_reading(self, thread);
            ours.drop(self_of(thread), [&](NumaNode, Block block) { accept(self, local, block.base.value); });
        } else if (what >= kRead) {
            read(self, thread, ours, static_cast<unsigned>(what % 10), what >= kAwaitOne);
        } else if (what >= kStart) {
            if (!ours.start(static_cast<unsigned>(what % 10))) self.fail("a start found something else than a ring");
            local.passed = ours.passed();
            local.last = {};
        } else {
            send(self, thread, ours, static_cast<unsigned>(what));
        }
    }

    void rejoin(Thread &self, std::size_t thread, ModelBroadcast &ours) {
        Local &local = self.local<Local>();
        end_reading(self, thread);
        ours.leave(self_of(thread), [&](NumaNode, Block block) { accept(self, local, block.base.value); });
        local.party = 0;
        while (local.party == 0) {
            self.rest_until([this] {
                for (std::uint32_t party = 1; party <= setup_.shape.parties; ++party)
                    if (view_.party(party).owner.load() == 0) return true;
                return false;
            });
            local.party = ours.join(process_of(thread), roles_of(thread));
        }
    }

    void send(Thread &self, std::size_t thread, ModelBroadcast &ours, unsigned count) {
        Local &local = self.local<Local>();
        std::array<BlockPlace, 4> places{};
        std::uint64_t burst = 0;
        for (unsigned next = 0; next < count; ++next) {
            const auto message = static_cast<std::uint64_t>(std::countr_zero(local.held & ~local.given & ~burst));
            places[next] = {NumaNode{0}, FrameIndex{message}};
            burst |= bit(message);
            touch_all(self, message);
        }
        unsigned refused = 0;
        local.held &= ~burst;  // from here on it may be somebody else's
        const SendResult result = ours.send(
            self_of(thread), places.data(), count,
            [&](NumaNode, Block block) { accept(self, local, block.base.value); }, refused);
        if (result == SendResult::sent) {
            local.sent |= burst;
            (void)ModelSleepers::on_messages(*view_.header).must_wake();
            return;
        }
        local.held |= burst;
        if (result != SendResult::closed) self.fail("a send failed");
    }

    void read(Thread &self, std::size_t thread, ModelBroadcast &ours, unsigned most, bool patient) {
        Local &local = self.local<Local>();
        for (;;) {
            end_reading(self, thread);
            std::array<std::uint64_t, 4> messages{};
            const auto read = ours.read(
                self_of(thread), patient ? 1 : most,
                [&](unsigned next, NumaNode, Block block) { messages[next] = block.base.value; },
                [&](NumaNode, Block block) { accept(self, local, block.base.value); });
            if (read.result == ReadResult::scribbled) self.fail("a read found something else than messages");
            const std::uint64_t first = ours.passed() - read.count;
            if (first - read.lost != local.passed || read.lost > messages_)
                self.fail("the reader is not told how many messages it has lost");
            local.passed = ours.passed();
            for (unsigned next = 0; next < read.count; ++next) {
                if (history_[first + next].load() != messages[next])
                    self.fail("the reader gets another message than was sent in this place");
                see(self, thread, local, messages[next]);
            }
            if (read.count != 0 || !patient || ours.is_closed()) return;
            auto sleepers = ModelSleepers::on_messages(*view_.header);
            const std::uint32_t signal = sleepers.announce();
            if (!ours.has_messages() && !ours.is_closed()) {
                local.asleep = true;
                self.rest_until([&] { return sleepers.signal().load() != signal; });
                local.asleep = false;
            }
        }
    }
    void see(Thread &self, std::size_t thread, Local &local, std::uint64_t message) {
        local.reading |= bit(message);
        self.touch(payload_of(message, thread));
        std::size_t writer = 0;
        while (writer + 1 < first_of_.size() && first_of_[writer + 1] <= message) ++writer;
        const auto number = static_cast<std::uint8_t>(message - first_of_[writer] + 1);
        if (local.last[writer] >= number) self.fail("messages of one writer were read out of order");
        local.last[writer] = number;
    }
    // The reader uses its messages up to the moment in which it drops them.
    void end_reading(Thread &self, std::size_t thread) {
        Local &local = self.local<Local>();
        for (std::uint64_t message = 0; message < messages_; ++message)
            if ((local.reading & bit(message)) != 0) self.touch(payload_of(message, thread));
        local.reading = 0;
    }
    // An overwritten block, whose owner may write there.
    void accept(Thread &self, Local &local, std::uint64_t message) {
        if ((local.given & bit(message)) != 0) self.fail("a block was given twice");
        local.held |= bit(message);
        local.given |= bit(message);
        touch_all(self, message);
    }
    // Each reader has a payload of its own, since they read at the same time.
    const void *payload_of(std::uint64_t message, std::size_t thread) const {
        return payloads_ + message * setup_.threads.size() + thread;
    }
    void touch_all(Thread &self, std::uint64_t message) {
        for (std::size_t thread = 0; thread < setup_.threads.size(); ++thread) self.touch(payload_of(message, thread));
    }

    void add_daemon() {
        daemon_died_ = explorer.make<Word>();
        explorer.keep_private(daemon_died_, sizeof(Word));
        explorer.on_kill([this](int process) {
            if (process == 0) daemon_died_->store(1);
        });
        explorer.add_thread(
            {.name = "daemon", .process = 0, .restartable = true, .may_wait_for_others = true}, [this](Thread &self) {
                Recovery<SimEnv> recovery{pool_, std::span<const NodeView<SimEnv>>{&node_, 1}};
                BroadcastRecovery<SimEnv, OneNode> of_broadcast{view_, owner_, OneNode{buddy_.get()}};
                ThreadSlotIndex blocked_by{};
                while (daemon_died_->load() != 0 && recovery.resume(blocked_by) == RecoveryStep::blocked)
                    blocked_by = {};
                for (;;) {
                    self.run_operation([&] {
                        self.rest_until([&] { return find_dead() != 0; });
                        const std::uint16_t process = find_dead();
                        pool_.processes[process].state.store(static_cast<std::uint64_t>(ProcessState::dead));
                        Reclaimed total{};
                        of_broadcast.recover_process(ProcessSlot{process}, {});
                        while (recovery.recover_process(ProcessSlot{process}, total, blocked_by) ==
                               RecoveryStep::blocked) {
                        }
                        ModelSleepers::on_messages(*view_.header).call();
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
    bool is_dead(std::size_t thread) const { return explorer.dead(setup_.threads[thread].process); }

    // history_: the messages in the order in which they came into the ring, then their number, then by cell the round
    // that is written down.
    std::uint64_t history_length() const { return history_[messages_].load(); }
    void write_history() {
        for (std::uint32_t cell = 0; cell < view_.cell_count; ++cell) {
            const BroadcastCell now{view_.cells[cell].load()};
            Word &round = history_[messages_ + 1 + cell];
            if (now.round() == round.load()) continue;
            if (now.round() != round.load() + 1) fail("a cell has left out a round");
            round.store(now.round());
            std::uint64_t length = history_length();
            if (view_.total(now.segment()).load() != length + now.count()) fail("a burst has a wrong total");
            for (unsigned next = 0; next < now.count() && length < messages_; ++next)
                history_[length++].store(message_in(now.segment(), next).block().base.value);
            history_[messages_].store(length);
        }
    }
    Message message_in(std::uint32_t segment, unsigned next) const { return Message{view_.list(segment)[next].load()}; }

    void check_possession() {
        std::uint64_t held = 0;
        std::uint64_t reading = 0;
        for (std::size_t thread = 0; thread < setup_.threads.size(); ++thread) {
            if (is_dead(thread)) continue;
            const std::uint64_t its = local_of(thread).held;
            if ((its & held) != 0) return fail("two threads have one message");
            held |= its;
            reading |= local_of(thread).reading;
            for (std::uint64_t message = 0; message < messages_; ++message)
                if ((its & bit(message)) != 0 &&
                    !entry_of(message).is_private(IndexEntry::private_to(process_of(thread))))
                    return fail("message " + std::to_string(message) + " is not its holder's");
        }
        for (std::uint64_t message = 0; message < messages_; ++message)
            if ((reading & bit(message)) != 0 && ((held & bit(message)) != 0 || !is_channels(message)))
                return fail("message " + std::to_string(message) + " was retired under a reader");
    }

    // Adds the messages of a segment to `found`.
    void find_messages(std::uint32_t segment, unsigned count, std::uint64_t &found) {
        for (unsigned next = 0; next < count; ++next) {
            const Message message = message_in(segment, next);
            const std::uint64_t base = message.block().base.value;
            if ((found & bit(base)) != 0) fail("a message is in the channel twice");
            found |= bit(base);
            if (!is_channels(base) || entry_of(base).generation() != message.generation())
                fail("message " + std::to_string(base) + " is in the channel, and its block is not the channel's");
        }
    }
    bool is_claimed_by_the_living(std::uint32_t segment) const {
        for (std::size_t thread = 0; thread < setup_.threads.size(); ++thread)
            if (!is_dead(thread) && local_of(thread).party != 0 &&
                view_.party(local_of(thread).party).claim.load() == ReaderClaim::of(segment).bits())
                return true;
        return false;
    }
    // Everybody rests, and the daemon has nothing to do.
    void check_that_nothing_is_lost() {
        std::uint64_t in_channel = 0;
        std::uint64_t segments = 0;
        const auto see_segment = [&](std::uint64_t segment) {
            if ((segments & bit(segment)) != 0) fail("segment " + std::to_string(segment) + " is in two places");
            segments |= bit(segment);
        };
        for (std::uint32_t cell = 0; cell < view_.cell_count; ++cell) {
            const BroadcastCell word{view_.cells[cell].load()};
            find_messages(word.segment(), word.count(), in_channel);
            see_segment(word.segment());
        }
        for (std::uint32_t party = 1; party <= setup_.shape.parties; ++party)
            see_segment(view_.party(party).segment.load());
        for (std::uint32_t segment = 0; segment < view_.segment_count; ++segment) {
            const SegmentWord word{view_.states[segment].load()};
            if (word.state() == SegmentState::ordinary) continue;
            see_segment(segment);
            if (word.state() == SegmentState::lingering) {
                find_messages(segment, word.count(), in_channel);
                if (!is_claimed_by_the_living(segment)) fail("a burst lingers that nobody reads");
            } else if (word.state() != SegmentState::free) {
                fail("segment " + std::to_string(segment) + " was left half way");
            }
        }
        if (segments != bit(view_.segment_count) - 1) fail("a segment is lost");
        std::uint64_t held = 0;
        std::uint64_t sent = 0;
        bool all_alive = true;
        for (std::size_t thread = 0; thread < setup_.threads.size(); ++thread) {
            sent |= local_of(thread).sent;
            if (is_dead(thread))
                all_alive = false;
            else
                held |= local_of(thread).held;
        }
        std::uint64_t came = 0;
        for (std::uint64_t place = 0; place < history_length(); ++place) came |= bit(history_[place].load());
        if ((sent & ~came) != 0) return fail("a message was sent, and never was in the ring");
        if ((held & in_channel) != 0) return fail("a message is in the channel, and somebody has it");
        for (std::uint64_t message = 0; message < messages_; ++message)
            if (((held | in_channel) & bit(message)) == 0 &&
                (entry_of(message).is_owned() || (node_.leaf[0].load() & bit(message)) != 0))
                return fail("the block of message " + std::to_string(message) + " is lost");
        if (setup_.daemon && !all_alive) return;  // the dead may have been those who were to be waited for
        for (std::size_t thread = 0; thread < setup_.threads.size(); ++thread)
            if (local_of(thread).asleep &&
                (local_of(thread).passed < history_length() || view_.header->state.load() != 0))
                return fail("a reader sleeps beside a message");
    }
    void fail(const std::string &what) { explorer.fail(what); }

    BroadcastSetup setup_;
    std::uint32_t processes_ = 1;
    std::uint64_t messages_ = 0;
    std::vector<std::uint64_t> first_of_;  // by thread: its first message
    ProcessSlot owner_{};
    PoolView<SimEnv> pool_;
    NodeView<SimEnv> node_;
    BroadcastView<SimEnv> view_;
    std::unique_ptr<Buddy<SimEnv>> buddy_;
    Word *payloads_ = nullptr;  // what writers write, and readers read
    Word *history_ = nullptr;
    Word *daemon_died_ = nullptr;
};

}  // namespace numacre::model
