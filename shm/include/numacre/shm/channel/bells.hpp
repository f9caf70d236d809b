// Parties that wait by a descriptor (epoll, io_uring) until there is a message, or room for one. Each has an eventfd of
// its own, its bell: so a party that is stopped or dead takes no wake-up from another one. The daemon makes the bell
// and hands it to those who have to ring it. Nothing here enters the kernel: the caller drains and rings.
//
//      party                                         a sender (or a receiver, for room)
//   A1 drains its bell                            B1 changes the ring                        RMW
//   A2 armed: one more, waits for messages store  B2 watchers: any?                          load
//   A3 looks at the ring once more; if there is   B3 armed: does it wait for messages?       load
//      a message, rings its own bell              B4 rings its bell                          write(2)
//   A4 waits for its bell                         B5 armed: waits no more                    CAS
//
// B5 is behind B4. A sender that is stopped or dies between B1 and B4 leaves the party armed, and the next sender rings
// too: a bell that is rung twice wakes once. (The other order, an exchange of a mask and then the ringing, would lose
// the wake-up of everybody whose bit it has cleared.) The number in the word keeps a late B5 from clearing what the
// party has armed since. If nobody comes behind the one who has died, the daemon rings all bells (recovery). If nobody
// comes behind one that is stopped, its message waits until it goes on.
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>

#include "numacre/shm/channel/layout.hpp"

namespace numacre::engine {

// A party waits for messages (bit 0), for room (bit 1), or both. Above: how often it has been armed.
class ArmedWord {
public:
    static constexpr std::uint64_t kMessages = 1;
    static constexpr std::uint64_t kRoom = 2;
    constexpr explicit ArmedWord(std::uint64_t bits) : bits_(bits) {}
    constexpr std::uint64_t bits() const { return bits_; }
    constexpr bool waits_for(std::uint64_t what) const { return (bits_ & what) != 0; }
    constexpr ArmedWord armed_anew(std::uint64_t what) const { return ArmedWord{((bits_ | kAny) + 1) | what}; }
    constexpr ArmedWord rung() const { return ArmedWord{bits_ & ~kAny}; }

private:
    static constexpr std::uint64_t kAny = kMessages | kRoom;
    std::uint64_t bits_;
};

// View: of a channel, or of a broadcast.
template <class Env, class View = ChannelView<Env>>
class Bells {
public:
    using Word = typename Env::template Atomic<std::uint64_t>;

    explicit Bells(const View &view) : view_(view) {}

    // The calling party has this bell from here on. It arms anew: nobody who has seen it armed before knows this bell.
    void install(std::uint32_t party, std::uint64_t serial) const {
        // relaxed: arm() carries it.
        view_.party(party).bell.store(serial, std::memory_order_relaxed);
    }
    // A2. what: kMessages, kRoom, both; 0: it waits no more. The caller looks at the ring once more.
    void arm(std::uint32_t party, std::uint64_t what) const {
        if ((what & ArmedWord::kMessages) != 0) watch(view_.header->message_watchers, party);
        if ((what & ArmedWord::kRoom) != 0) watch(view_.header->room_watchers, party);
        Word &armed = view_.party(party).armed;
        // relaxed: others only clear bits that are set anew here.
        const ArmedWord now = ArmedWord{armed.load(std::memory_order_relaxed)}.armed_anew(what);
        // EDGE armed-then-look (seq_cst; partner: ring()'s loads, after the change of the ring). Weakened: the party
        // does not see the message, and its sender does not see that the party waits.
        armed.store(now.bits(), std::memory_order_seq_cst);
    }
    // The party leaves, or is recovered. Once more does no harm.
    void remove(std::uint32_t party) const {
        const std::uint64_t others = ~bit(party);
        // relaxed: who still sees the bit looks at a party that waits for nothing, or at the slot's next user.
        view_.header->message_watchers.fetch_and(others, std::memory_order_relaxed);
        view_.header->room_watchers.fetch_and(others, std::memory_order_relaxed);
        Word &armed = view_.party(party).armed;
        armed.store(ArmedWord{armed.load(std::memory_order_relaxed)}.armed_anew(0).bits(), std::memory_order_relaxed);
        view_.party(party).bell.store(0, std::memory_order_relaxed);
    }

    // Whether there may be parties that wait for this: after a change of the ring by a seq_cst RMW.
    bool has_watchers(std::uint64_t what) const { return watchers_for(what).load(std::memory_order_seq_cst) != 0; }
    // Rings for all parties that wait for this. ring(party, serial): true if it has rung the party's bell; false: it
    // cannot, or somebody else does later; the party stays armed.
    template <class Ring>
    void ring(std::uint64_t what, const Ring &ring) const {
        std::uint64_t left = watchers_for(what).load(std::memory_order_seq_cst);
        for (; left != 0; left &= left - 1) {
            const auto party = static_cast<std::uint32_t>(std::countr_zero(left)) + 1;
            if (party > view_.shape.parties) return;  // somebody has scribbled
            auto &slot = view_.party(party);
            // EDGE armed-then-look: the other half. With it, the bell that the party had when it armed.
            const ArmedWord seen{slot.armed.load(std::memory_order_seq_cst)};
            if (!seen.waits_for(what)) continue;
            // relaxed: a newer bell is the one to ring, too.
            const std::uint64_t serial = slot.bell.load(std::memory_order_relaxed);
            if (serial == 0 || !ring(party, serial)) continue;
            std::uint64_t bits = seen.bits();
            // relaxed: only spares others a call. If it fails, somebody has rung, or the party has armed anew and looks
            // at the ring behind that.
            (void)slot.armed.compare_exchange_strong(bits, seen.rung().bits(), std::memory_order_relaxed,
                                                     std::memory_order_relaxed);
        }
    }

private:
    static std::uint64_t bit(std::uint32_t party) { return std::uint64_t{1} << (party - 1); }
    Word &watchers_for(std::uint64_t what) const {
        return what == ArmedWord::kMessages ? view_.header->message_watchers : view_.header->room_watchers;
    }
    static void watch(Word &watchers, std::uint32_t party) {
        // relaxed: only this party sets the bit, and only it, or recovery before it came, clears the bit.
        if ((watchers.load(std::memory_order_relaxed) & bit(party)) != 0) return;
        // EDGE watch-then-look (seq_cst; partner: has_watchers(), ring()): as armed-then-look.
        watchers.fetch_or(bit(party), std::memory_order_seq_cst);
    }

    View view_;
};

}  // namespace numacre::engine
