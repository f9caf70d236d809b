// How the threads of a channel sleep, and how others wake them (shm/channel/sleepers.hpp, bells.hpp).
#pragma once

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <ctime>

#include "bells.hpp"
#include "channel.hpp"
#include "errors.hpp"
#include "numacre/os/kernel.hpp"
#include "numacre/shm/channel/sleepers.hpp"
#include "pool.hpp"
#include "report.hpp"

namespace numacre::client {

// The one who was to wake a sleeper may have been stopped or have died on the way.
inline constexpr std::uint64_t kSleeperLooksAgainAfterNanoseconds = 1'000'000'000;

using ChannelSleepers = Sleepers<Env>;

inline void wake_all(std::atomic<std::uint32_t> &signal) {
    os::futex_wake(reinterpret_cast<std::uint32_t *>(&signal), INT_MAX);
}
inline void wake_if_asleep(ChannelSleepers sleepers) {
    if (sleepers.must_wake()) [[unlikely]]
        wake_all(sleepers.signal());
}
inline void call_and_wake(ChannelSleepers sleepers) {
    sleepers.call();
    wake_all(sleepers.signal());
}
inline ChannelSleepers on_messages(numacre_channel *channel) {
    return with_ring(channel, [](const auto &ring) { return ChannelSleepers::on_messages(*ring.view().header); });
}
// Not of a broadcast, in which nobody waits for room.
inline ChannelSleepers on_room(numacre_channel *channel) {
    return ChannelSleepers::on_room(*channel->queue->view().header);
}
// After a change of the ring.
inline void ring_watchers(numacre_channel *channel, std::uint64_t what) {
    const bool has_watchers =
        with_ring(channel, [what](const auto &ring) { return bells_on(ring.view()).has_watchers(what); });
    if (has_watchers || channel->bells.asking != 0) [[unlikely]]
        ring_bells(channel, what);
}
inline void ring_what_is_owed(numacre_channel *channel) {
    if (channel->bells.owed != 0) [[unlikely]]
        ring_owed(channel);
}
// The state of the channel has changed, and both sides look at it.
inline void call_all(numacre_channel *channel) {
    ring_watchers(channel, ArmedWord::kMessages);
    ring_watchers(channel, ArmedWord::kRoom);
    call_and_wake(on_messages(channel));
    if (channel->queue) call_and_wake(on_room(channel));
}

// Calls try_once() until it gives another answer than -EAGAIN, or the time is over. is_worth_it(): whether it would be
// another one now.
template <class Try, class IsWorthIt>
int wait_for(ChannelSleepers sleepers, unsigned timeout_ms, const char *what, const Try &try_once,
             const IsWorthIt &is_worth_it) {
    const std::uint64_t begin = now_nanoseconds();
    const std::uint64_t patience = std::uint64_t{timeout_ms} * 1'000'000;
    for (;;) {
        const int error = try_once();
        if (error != -EAGAIN) return error;
        const std::uint64_t waited = now_nanoseconds() - begin;
        if (timeout_ms != 0 && waited >= patience)
            return fail(Errc::timed_out, "no %s in the channel within %u ms", what, timeout_ms);
        const std::uint32_t signal = sleepers.announce();
        if (is_worth_it()) continue;
        const std::uint64_t nap = timeout_ms == 0 ? kSleeperLooksAgainAfterNanoseconds
                                                  : std::min(patience - waited, kSleeperLooksAgainAfterNanoseconds);
        const timespec duration{static_cast<time_t>(nap / 1'000'000'000), static_cast<long>(nap % 1'000'000'000)};
        (void)os::futex_wait(reinterpret_cast<std::uint32_t *>(&sleepers.signal()), signal, &duration);
    }
}

}  // namespace numacre::client
