// Kills a client at every single instruction of a call on a channel, or of numacre_name_set. A child attaches to the
// pool of a live numacred and is traced through one call of the real library, as in single_step_test.cpp. Beside it a
// survivor (this process) has the channel open as well. At each instruction one child is killed while the survivor
// sends and receives, beside the one that stands still and beside the corpse: it waits for nobody. Another one is
// killed and left to numacred as it lies. Then the survivor receives all that is there, until numacred has reaped:
//
//   - What a child has sent is received once, and what it has not sent is free: all of the burst, or nothing. If the
//     call has returned, all of it.
//   - What a child was receiving is received by the survivor, once, and marked if it was out of the channel already.
//     If the call has returned, it was the child's, and is free.
//   - Each sender's messages arrive in its order, those that are marked apart.
//   - Nothing of the pool is taken then.
//   - A name is bound as before or as the child wanted, and goes with the child if it is the child's own.
//
// usage: channel_step_test [--every] [--seed N] [--only OPERATION [--at N]]
// Of each operation kDrawn instructions are drawn by the seed; --every takes them all (for runs by hand: minutes).
// Needs $NUMACRE_RUNTIME_DIR (with_daemon.py) and leave to trace its children, else it says so and exits with 77.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "numacre/numacre.h"
#include "support/observer.hpp"
#include "support/step_failure.hpp"
#include "support/traced.hpp"

namespace {

using numacre::test::fail;
using numacre::test::now_at;
using numacre::test::Observer;
using numacre::test::Traced;
using numacre::test::wait_until;
using Way = Traced::Way;

constexpr std::size_t kFrame = 4096;
constexpr unsigned kCapacity = 20;  // messages
constexpr unsigned kBurst = 5;
constexpr std::uint64_t kDrawn = 24;
constexpr const char *kChannel = "step";
constexpr const char *kName = "step.name";

// What a child tells the survivor.
struct Told {
    bool has_returned;
    int error;       // of the call
    unsigned count;  // received
    std::uint64_t received[kBurst];
};
Told *told;

// What a message says: in its first word who has sent it, and which of the sender's messages it is.
enum class Sender : std::uint64_t { survivor = 1, child = 2 };
constexpr unsigned kSenderShift = 32;
constexpr std::uint64_t text_of(Sender sender, std::uint64_t number) {
    return static_cast<std::uint64_t>(sender) << kSenderShift | number;
}
constexpr Sender sender_of(std::uint64_t text) {
    return static_cast<Sender>(text >> kSenderShift);
}

void *new_message(numacre_pool *pool, std::uint64_t text) {
    void *block = nullptr;
    if (numacre_alloc_on(pool, -1, kFrame, NUMACRE_UNCACHED, &block) != 0) fail("%s", numacre_last_error());
    // At its beginning and at its end: a frame that is given away in between shows.
    std::memcpy(block, &text, sizeof text);
    std::memcpy(static_cast<char *>(block) + kFrame - sizeof text, &text, sizeof text);
    return block;
}
std::uint64_t read_message(const void *block) {
    std::uint64_t first = 0, last = 0;
    std::memcpy(&first, block, sizeof first);
    std::memcpy(&last, static_cast<const char *>(block) + kFrame - sizeof last, sizeof last);
    if (first != last) fail("somebody has written into a message: it begins with %#jx and ends with %#jx", first, last);
    return first;
}

numacre_channel *open_channel(numacre_pool *pool, std::uint32_t flags = NUMACRE_CHANNEL_STAYS) {
    numacre_channel_options options{};
    options.struct_size = sizeof options;
    options.capacity = kCapacity;
    options.burst = kBurst;
    options.parties = 4;
    options.flags = flags;
    numacre_channel *channel = nullptr;
    if (numacre_channel_open(pool, kChannel, &options, &channel) != 0) fail("open: %s", numacre_last_error());
    return channel;
}

// --- the one that stays ----------------------------------------------------------------------------------------------

class Survivor {
public:
    Survivor() {
        if (numacre_attach(nullptr, nullptr, &pool_) != 0) fail("attach: %s", numacre_last_error());
        channel_ = open_channel(pool_);
        // Calls that only children make: here for the dynamic linker, whose work is not to be stepped through.
        numacre_channel *other = open_channel(pool_);
        bind(kName, 1, 0);
        if (numacre_name_remove(pool_, kName, 0) != 0) fail("warm-up: %s", numacre_last_error());
        if (numacre_channel_end(other) != 0 || numacre_channel_close(other) != 0) fail("%s", numacre_last_error());
        make_anew();
        send(1);
        drain();
    }
    ~Survivor() {
        (void)numacre_channel_close(channel_);
        (void)numacre_channel_remove(pool_, kChannel);
        numacre_detach(pool_);
    }
    numacre_pool *pool() { return pool_; }

    void send(unsigned count) {
        void *blocks[kBurst];
        for (unsigned i = 0; i < count; ++i) blocks[i] = new_message(pool_, text_of(Sender::survivor, ++sent_));
        if (numacre_send(channel_, blocks, count) != 0) fail("the survivor cannot send: %s", numacre_last_error());
    }
    void fill(unsigned messages) {
        for (; messages > kBurst; messages -= kBurst) send(kBurst);
        if (messages != 0) send(messages);
    }
    void end() {
        if (numacre_channel_end(channel_) != 0) fail("%s", numacre_last_error());
    }

    // Receives all that is there.
    void drain() {
        for (;;) {
            void *blocks[kBurst];
            unsigned count = 0;
            int is_redelivered = 0;
            const int error = numacre_receive(channel_, blocks, kBurst, &count, &is_redelivered);
            if (error == -EAGAIN || error == -ESHUTDOWN) return;
            if (error != 0) fail("the survivor cannot receive: %s", numacre_last_error());
            for (unsigned i = 0; i < count; ++i) {
                note(read_message(blocks[i]), is_redelivered != 0);
                if (numacre_free_uncached(pool_, blocks[i]) != 0) fail("%s", numacre_last_error());
            }
        }
    }
    // One message goes through the channel, whoever stands still or lies dead. has_ended: the stream may have.
    void work(bool may_have_ended) {
        drain();
        void *block = new_message(pool_, text_of(Sender::survivor, sent_ + 1));
        const int error = numacre_send(channel_, &block, 1);
        if (error == -ESHUTDOWN && may_have_ended) {
            if (numacre_free_uncached(pool_, block) != 0) fail("%s", numacre_last_error());
            return;
        }
        if (error != 0) fail("the survivor cannot send beside it: %s", numacre_last_error());
        ++sent_;
        drain();
        if (received_.empty() || received_.back() != text_of(Sender::survivor, sent_))
            fail("a message that was sent beside it is not there");
    }

    const std::vector<std::uint64_t> &received() const { return received_; }
    const std::vector<std::uint64_t> &redelivered() const { return redelivered_; }
    std::uint64_t sent() const { return sent_; }
    bool has_received(std::uint64_t text) const {
        return std::ranges::count(received_, text) + std::ranges::count(redelivered_, text) != 0;
    }
    bool has_ended() {
        numacre_channel_info info{};
        info.struct_size = sizeof info;
        if (numacre_channel_get_info(channel_, &info) != 0) fail("%s", numacre_last_error());
        return info.has_ended != 0;
    }
    // Before the next child.
    void forget() {
        received_.clear();
        redelivered_.clear();
        sent_ = 0;
        if (has_ended()) make_anew();
    }
    void check_parties() {
        numacre_channel_info info{};
        info.struct_size = sizeof info;
        if (numacre_channel_get_info(channel_, &info) != 0) fail("%s", numacre_last_error());
        if (info.senders != 1 || info.receivers != 1 || info.waiting != 0)
            fail("%u senders, %u receivers and %u messages are left: the survivor is one of each", info.senders,
                 info.receivers, info.waiting);
    }

    // version 0: the name is to be free; else the one that it has to have.
    std::uint64_t bind(const char *name, numacre_ref reference, std::uint64_t version) {
        numacre_name binding{};
        binding.struct_size = sizeof binding;
        binding.kind = NUMACRE_NAME_REFERENCE;
        binding.flags = NUMACRE_NAME_POOL | NUMACRE_NAME_COMPARE;
        binding.version = version;
        binding.reference = reference;
        std::uint64_t now = 0;
        if (numacre_name_set(pool_, name, &binding, &now) != 0) fail("name_set: %s", numacre_last_error());
        return now;
    }
    void unbind(const char *name) {
        if (numacre_name_remove(pool_, name, 0) != 0) fail("name_remove: %s", numacre_last_error());
    }
    // False: it is not bound.
    bool look_up(const char *name, numacre_name &binding) {
        binding = {};
        binding.struct_size = sizeof binding;
        const int error = numacre_name_get(pool_, name, 0, &binding);
        if (error != 0 && error != -ENODATA) fail("name_get: %s", numacre_last_error());
        return error == 0;
    }

private:
    void note(std::uint64_t text, bool is_redelivered) {
        if (has_received(text)) fail("message %#jx is received twice", text);
        (is_redelivered ? redelivered_ : received_).push_back(text);
        if (is_redelivered) return;
        for (std::size_t i = 0; i + 1 < received_.size(); ++i)
            if (sender_of(received_[i]) == sender_of(text) && received_[i] > text)
                fail("message %#jx is received behind %#jx of the same sender", text, received_[i]);
    }
    void make_anew() {
        if (numacre_channel_close(channel_) != 0 || numacre_channel_remove(pool_, kChannel) != 0)
            fail("the channel cannot be removed: %s", numacre_last_error());
        wait_until("the channel that has ended is removed", [&] {
            numacre_channel_options options{};
            options.struct_size = sizeof options;
            options.flags = NUMACRE_CHANNEL_EXISTING;
            numacre_channel *there = nullptr;
            if (numacre_channel_open(pool_, kChannel, &options, &there) != 0) return true;
            (void)numacre_channel_close(there);
            return false;
        });
        channel_ = open_channel(pool_);
    }

    numacre_pool *pool_ = nullptr;
    numacre_channel *channel_ = nullptr;
    std::vector<std::uint64_t> received_, redelivered_;
    std::uint64_t sent_ = 0;  // messages of this child's time
};

// --- the one that dies -----------------------------------------------------------------------------------------------

struct Child {
    numacre_pool *pool = nullptr;
    numacre_channel *channel = nullptr;
    std::array<void *, kBurst> blocks{};

    void make_messages(unsigned count) {
        for (unsigned i = 0; i < count; ++i) blocks[i] = new_message(pool, text_of(Sender::child, i + 1));
    }
    void send(unsigned count) { tell(numacre_send(channel, blocks.data(), count)); }
    void receive(unsigned most) {
        unsigned count = 0;
        int is_redelivered = 0;
        const int error = numacre_receive(channel, blocks.data(), most, &count, &is_redelivered);
        if (error == 0) {
            told->count = count;
            for (unsigned i = 0; i < count; ++i) std::memcpy(&told->received[i], blocks[i], sizeof told->received[i]);
        }
        tell(error);
    }
    void set_name(std::uint32_t flags, std::uint64_t version) {
        numacre_name binding{};
        binding.struct_size = sizeof binding;
        binding.kind = NUMACRE_NAME_REFERENCE;
        binding.flags = flags;
        binding.version = version;
        binding.reference = kWanted;
        tell(numacre_name_set(pool, kName, &binding, nullptr));
    }
    // The last that it does.
    static void tell(int error) {
        told->error = error;
        told->has_returned = true;
    }

    static constexpr numacre_ref kWanted = 0x2000;
};
constexpr numacre_ref kBefore = 0x1000;

enum class Kind : std::uint8_t { send, receive, close, end, name };

struct Operation {
    const char *name;
    Kind kind;
    unsigned count;              // messages of the call; receive: at most
    unsigned waiting;            // the survivor's messages in the channel before it
    int error = 0;               // of the call
    bool is_redelivery = false;  // these have been received by another child, which has died
    bool has_ended = false;      // before the call
    std::uint32_t flags = 0;     // of a name
};
// The ring has kCapacity places for messages, of which a burst takes as many as it has.
constexpr Operation kOperations[] = {
    {"send", Kind::send, 1, 0},
    {"send-burst", Kind::send, kBurst, 0},
    {"send-behind-others", Kind::send, kBurst, 3},
    {"send-into-the-last-room", Kind::send, kBurst, kCapacity - kBurst},
    {"send-when-full", Kind::send, 1, kCapacity, -EAGAIN},
    {"send-burst-without-room", Kind::send, kBurst, kCapacity - kBurst + 1, -EAGAIN},
    {"send-after-the-end", Kind::send, kBurst, 0, -ESHUTDOWN, false, true},
    {"receive", Kind::receive, 1, 1},
    {"receive-burst", Kind::receive, kBurst, kBurst},
    {"receive-part", Kind::receive, 2, kBurst},
    {"receive-from-full", Kind::receive, kBurst, kCapacity},
    {"receive-when-empty", Kind::receive, kBurst, 0, -EAGAIN},
    {"receive-after-the-end", Kind::receive, kBurst, kBurst, 0, false, true},
    {"receive-redelivered", Kind::receive, kBurst, kBurst, 0, true},
    {"receive-part-redelivered", Kind::receive, 2, kBurst, 0, true},
    {"close", Kind::close, 0, 0},
    {"close-with-messages", Kind::close, 0, kBurst},
    {"end", Kind::end, 0, kBurst},
    {"name-set", Kind::name, 0, 0},
    {"name-set-for-the-pool", Kind::name, 0, 0, 0, false, false, NUMACRE_NAME_POOL},
    {"name-set-compare", Kind::name, 0, 0, 0, false, false, NUMACRE_NAME_COMPARE},
    {"name-set-compare-for-the-pool", Kind::name, 0, 0, 0, false, false, NUMACRE_NAME_POOL | NUMACRE_NAME_COMPARE},
};

// Attached, prepared, and stopped before the operation; stops once more after it.
void be_child(const Operation &operation, std::uint64_t version) {
    Child child;
    if (numacre_attach(nullptr, nullptr, &child.pool) != 0) fail("the child's attach: %s", numacre_last_error());
    if (operation.kind != Kind::name) child.channel = open_channel(child.pool);
    // A thread slot, and the way to a frame.
    if (numacre_free_uncached(child.pool, new_message(child.pool, 0)) != 0) fail("%s", numacre_last_error());
    if (operation.kind == Kind::send) child.make_messages(operation.count);
    Traced::pause();
    switch (operation.kind) {
        case Kind::send:
            child.send(operation.count);
            break;
        case Kind::receive:
            child.receive(operation.count);
            break;
        case Kind::close:
            Child::tell(numacre_channel_close(child.channel));
            break;
        case Kind::end:
            Child::tell(numacre_channel_end(child.channel));
            break;
        case Kind::name:
            child.set_name(operation.flags, version);
            break;
    }
    Traced::pause();
}

// --- the test --------------------------------------------------------------------------------------------------------

class Test {
public:
    explicit Test(const numacre::test::StepOptions &options) : options_(options), alone_(observer_.clients()) {}

    void run() {
        std::printf("replay: channel_step_test --seed %ju%s\n", options_.seed, options_.every ? " --every" : "");
        find_redelivery();
        for (const Operation &operation : kOperations)
            if (options_.only.empty() || options_.only == operation.name) kill_in(operation);
        if (kills_ == 0) fail("there is no operation '%s'", options_.only.c_str());
        std::printf(
            "%ju kills; messages that came again and were marked: %ju; bursts of the dead that were sent: %ju, "
            "and that were freed: %ju; received inside the call, and freed with the dead: %ju\n",
            kills_, all_redelivered_, sent_bursts_, freed_bursts_, kept_at_death_);
        // A test in which nothing ever came again, or nothing was ever in the middle, has looked at nothing.
        if (options_.only.empty() && (all_redelivered_ == 0 || sent_bursts_ == 0 || freed_bursts_ == 0))
            fail("no kill was in the middle of a send or a receive");
    }

private:
    // An instruction of a receiver at whose death its messages are returned.
    void find_redelivery() {
        const Operation receive{"(a receiver before)", Kind::receive, kBurst, kBurst};
        for (int child = 0; child < 3; ++child) {
            receiver_way_.clear();
            kill_at(receive, 0, receiver_way_, true);
        }
        // From the end: where the call has returned already, the messages are the child's.
        for (std::size_t at = receiver_way_.size() - 1; at > 0; --at) {
            const std::uint64_t before = all_redelivered_;
            kill_at(receive, at, receiver_way_, false);
            if (all_redelivered_ != before) {
                redelivery_at_ = at;
                return;
            }
        }
        fail("at no instruction of a receive does a death return its messages");
    }

    void kill_in(const Operation &operation) {
        // A child goes another way if it finds the pool, or its heap, otherwise than the first did: these get used to
        // the operation.
        Way way;
        way.reserve(1 << 16);
        for (int child = 0; child < 2; ++child) {
            way.clear();
            kill_at(operation, 0, way, true);
        }
        const std::uint64_t length = way.size();
        const std::uint64_t places = options_.every ? length : std::min(length, kDrawn);
        elsewhere_ = 0;
        // One instruction of each of so many equal parts.
        std::mt19937_64 random{options_.seed};
        for (std::uint64_t part = 0; part < places; ++part) {
            const std::uint64_t first = part * length / places;
            const std::uint64_t drawn = first + random() % ((part + 1) * length / places - first);
            const std::uint64_t instructions = options_.has_at ? std::min(options_.at, length - 1) : drawn;
            for (const bool survivor_works : {true, false}) kill_at(operation, instructions, way, survivor_works);
            if (options_.has_at) return;
        }
        std::printf("%-30s %6ju instructions, killed at %5ju of them", operation.name, length, places);
        if (elsewhere_ != 0) std::printf(", %ju times another way was taken", elsewhere_);
        std::puts("");
        std::fflush(stdout);
    }

    // way: where the operation comes by, found out by stepping through it if that is not known yet.
    void kill_at(const Operation &operation, std::uint64_t instructions, Way &way, bool survivor_works) {
        std::snprintf(now_at, sizeof now_at, "--only %s --at %ju", operation.name, instructions);
        survivor_.forget();
        if (operation.is_redelivery) leave_to_others(operation.waiting);
        std::uint64_t version = 0;
        const bool compares = (operation.flags & NUMACRE_NAME_COMPARE) != 0;
        if (operation.kind == Kind::name && compares) version = survivor_.bind(kName, kBefore, 0);
        *told = {};
        Traced child{[&] { be_child(operation, version); }};
        if (!operation.is_redelivery) survivor_.fill(operation.waiting);
        if (operation.has_ended) survivor_.end();
        if (way.empty())
            child.walk(way);
        else
            elsewhere_ += !child.go(way, instructions);
        const bool may_have_ended = operation.has_ended || operation.kind == Kind::end;
        if (survivor_works) {
            survivor_.work(may_have_ended);
            if (operation.kind == Kind::name) {
                survivor_.bind("step.other", 3, 0);
                survivor_.unbind("step.other");
            }
        }
        child.kill();
        if (survivor_works) survivor_.work(may_have_ended);
        wait_until("the dead child is reaped", [&] { return observer_.clients() == alone_; });
        survivor_.drain();
        if (told->has_returned && told->error != operation.error)
            fail("the call of the child: %d instead of %d", told->error, operation.error);
        if (operation.kind == Kind::name)
            check_name(operation, version);
        else
            check_messages(operation);
        survivor_.check_parties();
        if (const std::uint64_t damage = observer_.damage(); damage != 0) fail("%ju words are damaged", damage);
        if (const std::uint64_t used = observer_.snapshot().used_frames; used != 0)
            fail("%ju frames are taken, and nobody has a block", used);
        ++kills_;
    }

    // A child receives the survivor's messages and dies: they are to be received once more.
    void leave_to_others(unsigned messages) {
        const Operation receive{"(a receiver before)", Kind::receive, kBurst, messages};
        *told = {};
        Traced child{[&] { be_child(receive, 0); }};
        survivor_.send(messages);
        if (!child.go(receiver_way_, redelivery_at_)) fail("the receiver before has taken another way");
        child.kill();
        wait_until("the receiver before is reaped", [&] { return observer_.clients() == alone_; });
    }

    void check_messages(const Operation &operation) {
        all_redelivered_ += survivor_.redelivered().size();
        check_survivors_messages(operation);
        std::uint64_t of_child = 0;
        for (unsigned i = 1; i <= operation.count; ++i) {
            const std::uint64_t text = text_of(Sender::child, i);
            of_child += survivor_.has_received(text) ? 1 : 0;
            if (std::ranges::count(survivor_.redelivered(), text) != 0)
                fail("message %#jx comes again, but no receiver has died", text);
        }
        if (operation.kind != Kind::send) {
            if (of_child != 0) fail("%ju messages come from a child that sends nothing", of_child);
            return;
        }
        if (of_child != 0 && of_child != operation.count)
            fail("%ju of the %u messages of one burst have come", of_child, operation.count);
        if (of_child != 0 && operation.error != 0) fail("a burst that was refused has come");
        if (told->has_returned && operation.error == 0 && of_child == 0) fail("a burst that was sent has not come");
        if (operation.error == 0) ++(of_child != 0 ? sent_bursts_ : freed_bursts_);
    }

    void check_survivors_messages(const Operation &operation) {
        if (operation.kind != Kind::receive && !survivor_.redelivered().empty())
            fail("message %#jx comes again, but no receiver has died", survivor_.redelivered().front());
        std::uint64_t missing = 0;
        for (std::uint64_t number = 1; number <= survivor_.sent(); ++number) {
            const std::uint64_t text = text_of(Sender::survivor, number);
            const auto end = told->received + (told->has_returned ? told->count : 0);
            const bool is_childs = std::find(told->received + 0, end, text) != end;
            const bool has_come = survivor_.has_received(text);
            if (is_childs && has_come) fail("message %#jx has been received by the child, and comes again", text);
            if (is_childs || has_come) continue;
            // The child had it as its own already, and was on its way back to its caller.
            if (operation.kind != Kind::receive || told->has_returned || number > operation.count)
                fail("message %#jx is lost", text);
            ++missing;
        }
        if (missing != 0 && missing != std::min(operation.count, operation.waiting))
            fail("%ju messages of one receive are lost", missing);
        kept_at_death_ += missing != 0 ? 1 : 0;
        // Marked are those that were received, all together.
        const std::size_t marked = survivor_.redelivered().size();
        if (!operation.is_redelivery && marked != 0 && marked != std::min(operation.count, operation.waiting))
            fail("%zu messages are marked as redelivered", marked);
        for (const std::uint64_t text : survivor_.redelivered())
            if (text > text_of(Sender::survivor, operation.waiting))
                fail("message %#jx is marked as redelivered, but no receiver had it", text);
        if (operation.is_redelivery)
            for (std::uint64_t number = 1; number <= operation.waiting; ++number)
                if (std::ranges::count(survivor_.received(), text_of(Sender::survivor, number)) != 0)
                    fail("message %ju comes again, and is not marked", number);
    }

    void check_name(const Operation &operation, std::uint64_t version) {
        const bool is_of_pool = (operation.flags & NUMACRE_NAME_POOL) != 0;
        numacre_name found{};
        const bool is_bound = survivor_.look_up(kName, found);
        const bool was_bound = version != 0;
        const bool is_as_before =
            is_bound == was_bound &&
            (!is_bound || (found.reference == kBefore && found.version == version && found.client_id == 0));
        const bool is_as_wanted =
            is_of_pool ? is_bound && found.reference == Child::kWanted && found.client_id == 0 : !is_bound;
        if (!is_as_before && !is_as_wanted)
            fail("name %s is neither as before nor as wanted: bound %d to %#jx, version %ju, by client %u", kName,
                 is_bound ? 1 : 0, found.reference, found.version, found.client_id);
        if (told->has_returned && !is_as_wanted) fail("name %s has been set, and is not", kName);
        if (is_bound) survivor_.unbind(kName);
    }

    numacre::test::StepOptions options_;
    Survivor survivor_;
    Observer observer_{"default"};
    unsigned alone_;
    Way receiver_way_;
    std::size_t redelivery_at_ = 0;
    std::uint64_t kills_ = 0;
    std::uint64_t all_redelivered_ = 0, sent_bursts_ = 0, freed_bursts_ = 0, kept_at_death_ = 0;
    std::uint64_t elsewhere_ = 0;  // of one operation: kills behind its end, which was reached otherwise
};

}  // namespace

int main(int argc, char **argv) {
    void *const shared = mmap(nullptr, sizeof(Told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) fail("mmap: %s", std::strerror(errno));
    told = static_cast<Told *>(shared);
    try {
        Test test{numacre::test::step_options_of(argc, argv)};
        test.run();
    } catch (const numacre::test::CannotTrace &reason) {
        std::printf("SKIP: %s\n", reason.what());
        std::exit(numacre::test::kSkipped);
    } catch (const numacre::test::TraceFailed &reason) {
        fail("%s", reason.what());
    }
    return 0;
}
