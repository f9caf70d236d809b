// Small channels and their users, for the tests of the channels and of their memory orders.
#pragma once

#include "channel_model.hpp"

namespace numacre::model {

inline ChannelThread receiver() {
    return {.process = 2, .script = {kReceive + 1, kReceive + 2}};
}

inline ChannelSetup pair() {
    return {.threads = {{.process = 1, .script = {2, 1}, .holds = 3}, receiver()}};
}
inline ChannelSetup two_senders() {
    return {.shape = {.capacity = 2, .burst = 2, .parties = 3},
            .threads = {{.process = 1, .script = {1, 1}, .holds = 2},
                        {.process = 2, .script = {2}, .holds = 2},
                        {.process = 3, .script = {kReceive + 2, kReceive + 2}}}};
}
// The totals of one sender are the other's to go on with.
inline ChannelSetup sender_after_sender() {
    return {.shape = {.capacity = 2, .burst = 1, .parties = 3},
            .threads = {{.process = 1, .script = {1}, .holds = 1},
                        {.process = 2, .script = {1, 1}, .holds = 2},
                        {.process = 3, .script = {kReceive + 1}}}};
}
inline ChannelSetup two_receivers() {
    return {.shape = {.capacity = 3, .burst = 3, .parties = 3},
            .threads = {{.process = 1, .script = {3}, .holds = 3},
                        {.process = 2, .script = {kReceive + 1, kReceive + 1}},
                        {.process = 3, .script = {kReceive + 2}}}};
}
// Each cell is used again and again, by both: segments change hands.
inline ChannelSetup around() {
    return {.shape = {.capacity = 2, .burst = 1, .parties = 2},
            .threads = {{.process = 1, .script = {1, 1, 1, 1}, .holds = 4},
                        {.process = 2, .script = {kReceive + 1, kReceive + 1, kReceive + 1, kReceive + 1}}}};
}
// A receiver that comes late reads a list that has another burst's messages by now: its sender has the segment again.
inline ChannelSetup late_receiver() {
    return {.shape = {.capacity = 2, .burst = 1, .parties = 3},
            .threads = {{.process = 1, .script = {1, 1, 1, 1}, .holds = 4, .mortal = false},
                        {.process = 2, .script = {kReceive + 1, kReceive + 1}, .mortal = false},
                        {.process = 3, .script = {kReceive + 1}}}};
}
inline ChannelSetup sleepers() {
    return {.shape = {.capacity = 1, .burst = 1, .parties = 2},
            .threads = {{.process = 1, .script = {kSendPatiently + 1, kSendPatiently + 1}, .holds = 2},
                        {.process = 2, .script = {kAwait + 1, kAwait + 1}}}};
}
inline ChannelSetup watchers() {
    return {.shape = {.capacity = 1, .burst = 1, .parties = 2},
            .threads = {{.process = 1, .script = {kWatchRoom + 1, kWatchRoom + 1}, .holds = 2},
                        {.process = 2, .script = {kWatch + 1, kWatch + 1}}}};
}
// Each message wakes all, so that no receiver that stops or dies takes the other's wake-up.
inline ChannelSetup two_watchers() {
    return {.shape = {.capacity = 2, .burst = 1, .parties = 3},
            .threads = {{.process = 1, .script = {1, 1}, .holds = 2},
                        {.process = 2, .script = {kWatch + 1}},
                        {.process = 3, .script = {kWatch + 1}}}};
}
// Either sender may have rung, or not, when the other one does.
inline ChannelSetup two_ringers() {
    return {.shape = {.capacity = 2, .burst = 1, .parties = 3},
            .threads = {{.process = 1, .script = {1}, .holds = 1},
                        {.process = 2, .script = {1}, .holds = 1},
                        {.process = 3, .script = {kWatch + 1, kWatch + 1}}}};
}
// The second sender comes behind a first one that is done, or has stopped for good.
inline ChannelSetup stopped_ringer() {
    return {.shape = {.capacity = 2, .burst = 1, .parties = 3},
            .threads = {{.process = 1, .script = {1}, .holds = 1},
                        {.process = 2, .script = {kAfterFirst, 1}, .holds = 1, .mortal = false},
                        {.process = 3, .script = {kWatch + 1, kWatch + 1}, .mortal = false}}};
}
// A thread that both sends and receives and one that receives die at once.
inline ChannelSetup one_process() {
    return {.shape = {.capacity = 2, .burst = 2, .parties = 3},
            .threads = {{.process = 1, .script = {2, kReceive + 1}, .holds = 2},
                        {.process = 1, .script = {kReceive + 1}},
                        {.process = 2, .script = {kReceive + 2}, .mortal = false}}};
}
// The second receiver has the party slot of the first one, once that has died and been recovered.
inline ChannelSetup heir() {
    return {.shape = {.capacity = 2, .burst = 2, .parties = 2},
            .threads = {{.process = 1, .script = {2}, .holds = 2, .mortal = false},
                        {.process = 2, .script = {kReceive + 2}},
                        {.process = 3, .script = {kRejoin, kReceive + 1, kReceive + 1}, .joins_late = true}}};
}
inline ChannelSetup rejoining() {
    return {.shape = {.capacity = 2, .burst = 1, .parties = 2},
            .threads = {{.process = 1, .script = {1, kRejoin, 1}, .holds = 2},
                        {.process = 2, .script = {kReceive + 1, kRejoin, kReceive + 1}}}};
}
inline ChannelSetup closing() {
    return {.shape = {.capacity = 1, .burst = 1, .parties = 2},
            .threads = {{.process = 1, .script = {kSendPatiently + 1, kSendPatiently + 1, kClose}, .holds = 2},
                        {.process = 2, .script = {kAwait + 1, kClose, kAwait + 1}}}};
}
// A sender that finds the channel full drops the oldest burst, beside a receiver that is receiving it.
inline ChannelSetup overwriting() {
    return {.shape = {.capacity = 2, .burst = 2, .parties = 2},
            .threads = {{.process = 1, .script = {kSendOver + 2, kSendOver + 1, kSendOver + 1}, .holds = 4},
                        {.process = 2, .script = {kReceive + 1, kReceive + 1}}}};
}
inline ChannelSetup overwriting_each_other() {
    return {.shape = {.capacity = 1, .burst = 1, .parties = 2},
            .threads = {{.process = 1, .script = {kSendOver + 1, kSendOver + 1}, .holds = 2},
                        {.process = 2, .script = {kSendOver + 1, kSendOver + 1}, .holds = 2}}};
}
inline ChannelSetup with_daemon(ChannelSetup setup) {
    setup.daemon = true;
    return setup;
}

}  // namespace numacre::model
