// Small broadcasts and their users, for the tests of the broadcasts and of their memory orders.
#pragma once

#include "broadcast_model.hpp"

namespace numacre::model {

inline BroadcastThread writer(std::vector<int> script, unsigned holds, std::uint16_t process = 1) {
    return {.process = process, .script = std::move(script), .holds = holds};
}
inline BroadcastThread reader(std::vector<int> script, std::uint16_t process = 2) {
    return {.process = process, .script = std::move(script)};
}

// Two bursts overwrite two that the reader may be in the middle of.
inline BroadcastSetup one_reader() {
    return {.shape = {.capacity = 2, .burst = 2, .parties = 2},
            .threads = {writer({1, 2, 1}, 4), reader({kStart, kRead + 1, kRead + 2})}};
}
// The ring goes round under a reader: what it reads lingers.
inline BroadcastSetup overtaken() {
    return {.shape = {.capacity = 2, .burst = 1, .parties = 2},
            .threads = {writer({1, 1, 1, 1, 1}, 5), reader({kStart, kRead + 1, kRead + 1, kRead + 1})}};
}
inline BroadcastSetup overtaken_once() {
    return {.shape = {.capacity = 2, .burst = 1, .parties = 2},
            .threads = {writer({1, 1, 1}, 3), reader({kStart, kRead + 1, kRead + 1})}};
}
// The last of two drops a burst that lingers.
inline BroadcastSetup two_readers() {
    return {.shape = {.capacity = 2, .burst = 1, .parties = 3},
            .threads = {writer({1, 1, 1}, 3), reader({kStart, kRead + 1, kDropAll}),
                        reader({kStart + 1, kRead + 1, kDropAll}, 3)}};
}
inline BroadcastSetup two_writers() {
    return {.shape = {.capacity = 2, .burst = 1, .parties = 3},
            .threads = {writer({1, 1}, 2), writer({1, 1}, 2, 2), reader({kStart, kRead + 1, kRead + 1}, 3)}};
}
// Each writer overwrites the other's burst.
inline BroadcastSetup writers_alone() {
    return {.shape = {.capacity = 2, .burst = 1, .parties = 2},
            .threads = {writer({1, 1, 1}, 3), writer({1, 1}, 2, 2)}};
}
inline BroadcastSetup latecomer() {
    return {.shape = {.capacity = 2, .burst = 2, .parties = 2},
            .threads = {writer({2, 1, 2}, 5), reader({kStart + 2, kRead + 1, kRead + 2})}};
}
inline BroadcastSetup awaiting() {
    return {.shape = {.capacity = 2, .burst = 1, .parties = 3},
            .threads = {writer({1, 1}, 2), reader({kStart, kAwaitOne, kAwaitOne}), reader({kStart, kAwaitOne}, 3)}};
}
inline BroadcastSetup ending() {
    return {.shape = {.capacity = 2, .burst = 1, .parties = 2},
            .threads = {writer({1, kEnd}, 1), reader({kStart, kAwaitOne, kAwaitOne})}};
}
// A thread that reads what it overwrites itself.
inline BroadcastSetup reads_its_own() {
    return {.shape = {.capacity = 2, .burst = 1, .parties = 2},
            .threads = {{.process = 1, .script = {kStart, 1, kRead + 1, 1, 1, kRead + 1}, .holds = 3},
                        reader({kStart, kRead + 1, kRead + 1})}};
}
inline BroadcastSetup coming_again() {
    return {.shape = {.capacity = 2, .burst = 1, .parties = 2},
            .threads = {writer({1, 1, 1}, 3), reader({kStart + 1, kRead + 1, kComeAgain, kStart + 1, kRead + 1})}};
}
inline BroadcastSetup with_daemon(BroadcastSetup setup) {
    setup.daemon = true;
    return setup;
}

}  // namespace numacre::model
