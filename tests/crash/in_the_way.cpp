// Brings two clients of a live numacred into each other's way: one stands still, stopped by SIGSTOP, between two
// instructions of an operation; the other one has died in the middle of an operation on an overlapping block, so that
// its recovery has to wait for the first. Both are stepped there instruction by instruction, watching the metadata.
// This process is a third client; it holds all of the pool but the room in which they meet.
//
//   in_the_way CASE
// Prints "standing PID-OF-THE-STOPPED PID-OF-THE-DEAD", then does what it is told on stdin, a line each, and says when
// that is done: "work" (takes and gives back all that is free in the room), "go on" (lets the stopped one finish),
// "check" (nothing is lost: once the dead one is reaped). Ends with its input. Exits with 77 where it cannot trace.
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "numacre/numacre.h"
#include "support/observer.hpp"
#include "support/traced.hpp"

namespace {

using numacre::engine::Block;
using numacre::engine::IndexEntry;
using numacre::engine::Intent;
using numacre::engine::IntentKind;
using numacre::test::Observer;
using numacre::test::Traced;

constexpr std::size_t kFrame = 4096;
constexpr std::size_t kLeafWord = 64 * kFrame;
constexpr std::size_t kUpper = 2 * kLeafWord;      // the smallest block of an upper word
constexpr std::size_t kUpperWord = 8 * kLeafWord;  // all blocks of one
constexpr std::size_t kLargest = 4 << 20;
constexpr unsigned kBulk = 20;
constexpr int kRounds = 100;

[[noreturn, gnu::format(printf, 1, 2)]] void fail(const char *format, ...) {
    std::fputs("in_the_way: ", stderr);
    va_list arguments;
    va_start(arguments, format);
    std::vfprintf(stderr, format, arguments);
    va_end(arguments);
    std::fputc('\n', stderr);
    _exit(1);
}

struct Client {
    numacre_pool *pool = nullptr;
    std::vector<void *> blocks;

    Client() {
        if (numacre_attach(nullptr, nullptr, &pool) != 0) fail("attach: %s", numacre_last_error());
    }
    // False: there is no room.
    bool get(std::size_t bytes) {
        void *block = nullptr;
        const int error = numacre_alloc_on(pool, -1, bytes, NUMACRE_UNCACHED, &block);
        if (error == 0) blocks.push_back(block);
        if (error != 0 && error != -ENOMEM) fail("an allocation of %zu bytes: %s", bytes, numacre_last_error());
        return error == 0;
    }
    void get_all(std::size_t bytes) {
        while (get(bytes)) {
        }
        std::sort(blocks.begin(), blocks.end());
    }
    void get_many(std::size_t bytes) {
        blocks.resize(kBulk);
        if (numacre_alloc_bulk(pool, bytes, blocks.data(), kBulk) != 0) fail("bulk: %s", numacre_last_error());
    }
    void drop() {
        if (numacre_free_uncached(pool, blocks.back()) != 0) fail("a free: %s", numacre_last_error());
        blocks.pop_back();
    }
    void drop_all() {
        while (!blocks.empty()) drop();
    }
};

class Room {
public:
    // All is held but so much, in one piece.
    explicit Room(std::size_t bytes) {
        for (const std::size_t size : {kLargest, bytes}) {
            holder_.get_all(size);
            holder_.drop();
        }
    }

    const Observer &observer() const { return observer_; }

    // Whatever is free in the room can be had at once, and nothing of what is in flight there.
    void work(Block in_flight) {
        const std::uint64_t free_frames = observer_.snapshot().free_frames;
        const std::size_t held = holder_.blocks.size();
        for (int round = 0; round < kRounds; ++round) {
            while (holder_.get(kFrame)) check_is_not_in(holder_.blocks.back(), in_flight);
            if (holder_.blocks.size() - held != free_frames)
                fail("%zu frames can be had, %ju are free", holder_.blocks.size() - held, free_frames);
            while (holder_.blocks.size() > held) holder_.drop();
        }
    }

    void check_all_is_back() {
        holder_.drop_all();
        const numacre::engine::NodeSnapshot found = observer_.snapshot();
        if (found.used_frames != 0 || found.damaged_entries != 0)
            fail("%ju frames are taken, %ju entries are damaged", found.used_frames, found.damaged_entries);
        holder_.get_all(kLargest);
        if (holder_.blocks.size() != observer_.geometry().chunk_count())
            fail("%zu largest blocks can be had instead of %ju", holder_.blocks.size(),
                 observer_.geometry().chunk_count());
        holder_.drop_all();
    }

private:
    void check_is_not_in(const void *frame, Block in_flight) const {
        void *base = nullptr;
        std::size_t bytes = 0;
        if (numacre_region(holder_.pool, 0, &base, &bytes) != 0) fail("numacre_region: %s", numacre_last_error());
        const auto number =
            static_cast<std::uint64_t>(static_cast<const char *>(frame) - static_cast<const char *>(base)) / kFrame;
        if (number - in_flight.base.value < in_flight.order.frames())
            fail("frame %ju could be had in the middle of somebody's operation", number);
    }

    Client holder_;
    Observer observer_{"default"};
};

// --- who gets in whose way -------------------------------------------------------------------------------------------

using Act = std::function<void(Client &)>;

// A client that has prepared and paused; traced through what it does then.
Traced child(const Act &prepare, const Act &act) {
    return Traced{[&] {
        Client client;
        prepare(client);
        Traced::pause();
        act(client);
        client.drop_all();
        numacre_detach(client.pool);
    }};
}
// Where the room is.
template <std::size_t bytes>
void find_a_place(Client &client) {
    client.get(bytes);
    client.drop();
}
template <std::size_t bytes>
void allocate(Client &client) {
    client.get(bytes);
}
void release(Client &client) {
    client.drop();
}

struct Meeting {
    Traced stopped, dead;
    Block in_flight;  // the stopped one's
};

IndexEntry entry_of(const Room &room, Block block) {
    return IndexEntry{room.observer().node().index_entry(block).load(std::memory_order_acquire)};
}
std::uint64_t taken_in_word_of(const Room &room, Block block) {
    return room.observer().node().leaf[block.base.value / numacre::engine::kLeafFrames].load(std::memory_order_acquire);
}
bool is_claimed(const Room &room, Block block) {
    const unsigned layer = numacre::engine::layer_of(block.order);
    if (layer == 0) return (taken_in_word_of(room, block) >> block.base.value % numacre::engine::kLeafFrames & 1) != 0;
    const std::uint64_t word =
        room.observer().node().upper[layer][block.base.value >> numacre::engine::word_order(layer)];
    return numacre::engine::UpperWord{word}.allocated_here(
        static_cast<unsigned>(block.base.value >> numacre::engine::word_order(layer - 1)) %
        numacre::engine::kUpperFanOut);
}
template <class Condition>
void step(Traced &client, const char *until, Condition &&condition) {
    if (!client.step_until(condition)) fail("the operation has ended; it was to be stopped when %s", until);
}
Block step_until_announced(const Room &room, Traced &client) {
    Intent intent;
    step(client, "its intent is set", [&] { return (intent = room.observer().intent_of(client.pid())).active(); });
    return intent.block();
}
Block step_until_freeing(const Room &room, Traced &client) {
    Intent intent;
    step(client, "it is freeing", [&] {
        intent = room.observer().intent_of(client.pid());
        return intent.kind() == IntentKind::free && entry_of(room, intent.block()).is_freeing();
    });
    return intent.block();
}

// Both want the same block: the stopped one has said so, the dead one has claimed it.
template <std::size_t bytes>
Meeting two_claims(const Room &room) {
    Meeting meeting{child(find_a_place<bytes>, allocate<bytes>), child(find_a_place<bytes>, allocate<bytes>), {}};
    meeting.in_flight = step_until_announced(room, meeting.stopped);
    if (step_until_announced(room, meeting.dead) != meeting.in_flight) fail("they do not want the same block");
    step(meeting.dead, "it has claimed", [&] { return is_claimed(room, meeting.in_flight); });
    return meeting;
}
// The dead one has said that it wants the block, but somebody was faster: the stopped one, who is about to give it back
// by now.
template <std::size_t bytes>
Meeting claim_of_what_is_freed(const Room &room) {
    Meeting meeting{child(find_a_place<bytes>,
                          [](Client &client) {
                              client.get(bytes);
                              client.drop();
                          }),
                    child(find_a_place<bytes>, allocate<bytes>),
                    {}};
    const Block wanted = step_until_announced(room, meeting.dead);
    meeting.in_flight = step_until_freeing(room, meeting.stopped);
    if (meeting.in_flight != wanted) fail("they do not want the same block");
    return meeting;
}
// The dead one has claimed many frames of the leaf word in which the stopped one is freeing.
Meeting many_claims_beside_a_free(const Room &room) {
    Meeting meeting{child(allocate<kFrame>, release),
                    child(find_a_place<kFrame>, [](Client &client) { client.get_many(kFrame); }),
                    {}};
    meeting.in_flight = step_until_freeing(room, meeting.stopped);
    const std::uint64_t before = taken_in_word_of(room, meeting.in_flight);
    step(meeting.dead, "it has claimed", [&] { return taken_in_word_of(room, meeting.in_flight) != before; });
    return meeting;
}

struct Case {
    const char *name;
    std::size_t room;
    Meeting (*arrange)(const Room &);
};
constexpr Case kCases[] = {
    {"two-claims", kLeafWord, two_claims<kFrame>},
    {"two-claims-upper", kUpperWord, two_claims<kUpper>},
    {"claim-of-what-is-freed", kLeafWord, claim_of_what_is_freed<kFrame>},
    {"claim-of-what-is-freed-upper", kUpperWord, claim_of_what_is_freed<kUpper>},
    {"many-claims-beside-a-free", kLeafWord, many_claims_beside_a_free},
};

void run(const Case &what) {
    Room room{what.room};
    Meeting meeting = what.arrange(room);
    // Not before: whoever is killed is recovered at once.
    meeting.stopped.leave_stopped();
    meeting.dead.kill();
    std::printf("standing %d %d\n", meeting.stopped.pid(), meeting.dead.pid());
    std::fflush(stdout);
    char line[32];
    while (std::fgets(line, sizeof line, stdin) != nullptr) {
        const std::string order{line};
        if (order == "work\n") {
            room.work(meeting.in_flight);
        } else if (order == "go on\n") {
            kill(meeting.stopped.pid(), SIGCONT);
            meeting.stopped.wait_for_good_end();
        } else if (order == "check\n") {
            room.check_all_is_back();
        } else {
            fail("what is '%s'?", line);
        }
        std::puts("done");
        std::fflush(stdout);
    }
}

}  // namespace

int main(int argc, char **argv) {
    const std::string name = argc == 2 ? argv[1] : "";
    for (const Case &each : kCases) {
        if (name != each.name) continue;
        try {
            run(each);
        } catch (const numacre::test::CannotTrace &reason) {
            std::printf("SKIP: %s\n", reason.what());
            return numacre::test::kSkipped;
        } catch (const numacre::test::TraceFailed &reason) {
            fail("%s", reason.what());
        }
        return 0;
    }
    for (const Case &each : kCases) std::puts(each.name);
    return argc == 1 ? 0 : 2;
}
