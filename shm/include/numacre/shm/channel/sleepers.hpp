// Parties that sleep until there is a message, or room for one. Nothing here sleeps: the caller sleeps on the signal (a
// futex) for as long as it has the value that announce() returned, and wakes all who sleep on it when it is told to.
#pragma once

#include <atomic>
#include <cstdint>

#include "numacre/shm/channel/layout.hpp"

namespace numacre::engine {

template <class Env>
class Sleepers {
public:
    using Word = typename Env::template Atomic<std::uint64_t>;
    using FutexWord = typename Env::template Atomic<std::uint32_t>;

    // Header: of a channel, or of a broadcast.
    template <class Header>
    static Sleepers on_messages(Header &header) {
        return {header.receivers_asleep, header.message_signal};
    }
    static Sleepers on_room(ChannelHeader<Env> &header) { return {header.senders_asleep, header.room_signal}; }

    // Says that the caller is going to sleep. The caller looks at the ring once more, and sleeps if it finds nothing
    // there. It looks again after a second at the latest: the one who was to wake it may have been stopped or have died
    // on the way.
    std::uint32_t announce() {
        const std::uint32_t signal = signal_.load(std::memory_order_seq_cst);
        // EDGE asleep-then-look (seq_cst; partner: must_wake(), after a change of the ring). Weakened: the sleeper does
        // not see the message, and its sender sees no sleeper.
        asleep_.store(1, std::memory_order_seq_cst);
        return signal;
    }
    FutexWord &signal() { return signal_; }

    // After a change of the ring by a seq_cst RMW. True: there may be sleepers, and the caller wakes all.
    bool must_wake() {
        if (asleep_.load(std::memory_order_seq_cst) == 0) return false;
        call();
        return true;
    }
    // As must_wake(), whether or not somebody has said that it sleeps.
    void call() {
        // First the flag: one who announces itself later looks at the ring later.
        asleep_.store(0, std::memory_order_seq_cst);
        signal_.fetch_add(1, std::memory_order_seq_cst);
    }

private:
    Sleepers(Word &asleep, FutexWord &signal) : asleep_(asleep), signal_(signal) {}
    Word &asleep_;
    FutexWord &signal_;
};

}  // namespace numacre::engine
