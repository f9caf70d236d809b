// The word in which a client and the daemon agree on whether the client is there: all orders of what they may do.
#include "numacre/shm/presence.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace numacre {

using namespace engine;
namespace {

using Word = std::atomic<std::uint64_t>;
using State = Presence::State;

// A client that was given the seat in this generation; it stops for good after any of its steps.
struct Client {
    std::uint64_t generation = 0;
    bool was_answered = false;
    bool uses_the_pool = false;
    bool was_refused = false;
    unsigned steps = 0;

    bool can_step() const { return was_answered && !was_refused && steps < 3; }
    void step(Word &word) {
        switch (steps++) {
            case 0:
                return;  // maps
            case 1:
                uses_the_pool = Presence::come(word, generation);
                was_refused = !uses_the_pool;
                return;
            default:
                uses_the_pool = false;  // unmaps
                Presence::leave(word, generation);
        }
    }
};

// One seat, a daemon that dies and comes back, and two clients one after the other.
struct World {
    Word word{0};
    std::array<Client, 2> clients;
    std::size_t seated = 0;  // 1 + which
    unsigned seatings = 0;
    bool is_connected = false;
    unsigned daemon_steps = 0;

    enum class Move : std::uint8_t { seat, lose_connection, look, first, second };
    static constexpr std::array kMoves{Move::seat, Move::lose_connection, Move::look, Move::first, Move::second};

    bool can(Move move) const {
        switch (move) {
            case Move::seat:
                return seated == 0 && seatings < clients.size();
            case Move::lose_connection:
                return seated != 0 && is_connected;
            case Move::look:
                return seated != 0 && !is_connected && daemon_steps < 4;
            case Move::first:
                return clients[0].can_step();
            case Move::second:
                return clients[1].can_step();
        }
        return false;
    }

    void make(Move move) {
        switch (move) {
            case Move::seat: {
                Client &client = clients[seatings];
                client.generation = ++seatings;
                word = Presence{client.generation, State::attaching}.bits();
                client.was_answered = true;
                seated = seatings;
                is_connected = true;
                return;
            }
            case Move::lose_connection:
                is_connected = false;
                return;
            case Move::look: {
                ++daemon_steps;
                Client &client = clients[seated - 1];
                const State found = Presence::give_up(word, client.generation);
                ASSERT_NE(found, State::attaching);
                if (found == State::here) {
                    ASSERT_GE(client.steps, 2U) << "it has not come";
                    return;
                }
                ASSERT_FALSE(client.uses_the_pool) << "a living client is reaped";
                ASSERT_EQ(found == State::left, client.steps == 3);
                // Its seat is free from here on.
                seated = 0;
                return;
            }
            case Move::first:
            case Move::second: {
                Client &client = clients[move == Move::first ? 0 : 1];
                client.step(word);
                for (std::size_t i = 0; i < clients.size(); ++i) {
                    if (!clients[i].uses_the_pool) continue;
                    ASSERT_EQ(seated, i + 1) << "it uses the pool on another's seat";
                }
                return;
            }
        }
    }
};

// Every path of moves, replayed from the start.
std::uint64_t explore(std::vector<World::Move> &path) {
    std::uint64_t ends = 0;
    bool is_end = true;
    for (const World::Move move : World::kMoves) {
        World world;
        for (const World::Move before : path) world.make(before);
        if (!world.can(move)) continue;
        is_end = false;
        world.make(move);
        path.push_back(move);
        if (testing::Test::HasFailure()) {
            std::string text;
            for (const World::Move each : path) text += std::to_string(static_cast<int>(each)) + " ";
            ADD_FAILURE() << "replay: " << text;
            return ends;
        }
        ends += explore(path);
        path.pop_back();
        if (testing::Test::HasFailure()) return ends;
    }
    return ends + (is_end ? 1 : 0);
}

TEST(Presence, in_every_order_no_client_that_uses_the_pool_is_reaped_and_none_uses_it_on_another_s_seat) {
    std::vector<World::Move> path;
    EXPECT_GT(explore(path), 100U);
}

TEST(Presence, what_is_scribbled_there_counts_as_a_client_that_is_there) {
    for (const std::uint64_t bits : {std::uint64_t{0}, ~std::uint64_t{0}, Presence{8, State::left}.bits(),
                                     Presence{8, State::attaching}.bits(), Presence{6, State::given_up}.bits()}) {
        Word word{bits};
        EXPECT_EQ(Presence::give_up(word, 7), State::here) << bits;
        EXPECT_EQ(word, bits);
    }
}

TEST(Presence, a_daemon_understands_what_the_one_before_has_decided) {
    Word word{Presence{7, State::attaching}.bits()};
    EXPECT_EQ(Presence::give_up(word, 7), State::given_up);
    EXPECT_EQ(Presence::give_up(word, 7), State::given_up);
    EXPECT_FALSE(Presence::come(word, 7));
}

TEST(Presence, who_has_not_come_does_not_leave) {
    Word word{Presence{7, State::attaching}.bits()};
    Presence::leave(word, 7);
    EXPECT_EQ(Presence::give_up(word, 7), State::given_up);
}

}  // namespace
}  // namespace numacre
