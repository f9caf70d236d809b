// Presence of a client: one word of its record (ProcessRecord::presence) in which the client and the daemon agree, by
// compare-and-swap, whether the client is there. They agree wherever either of them is stopped or dies.
//
//                 client: come()            client: leave()
//   attaching  -------------------->  here  -------------------->  left
//       |
//       |  daemon: give_up()
//       v
//   given_up
//
// The daemon writes `attaching` with a new generation before its ledger names the client, and replies to the client
// after that. The client maps everything, calls come(), and only then touches a frame or any other word.
//
// - come() against give_up(): one CAS decides, and the loser obeys. A client that loses unmaps everything and returns
//   an error: its seat may be another's already. A daemon that loses knows that the client is there. So the moment at
//   which the daemon looks does not matter: a client that is stopped between the reply and come() has nothing yet, and
//   gets nothing.
// - The daemon gives up a client only after the connection of the handshake has ended (the daemon's end ends it, too).
//   Until then the client is still being served.
// - `here` ends by leave(), which the client calls after it has unmapped everything but this word; or when the kernel
//   says that the process has ended, or has replaced its program. Nothing else is evidence: not a connection that is
//   gone, not what /proc shows or does not show. leave() needs no connection. The daemon obeys it at its next look:
//   at once if the client tells it by the connection, within seconds if there is no connection, and when it adopts the
//   pool if there was no daemon.
// - Each word bears the generation of the seat, so that a client that wakes up late cannot speak for its successor.
//
// Death: if the daemon dies between any two of these steps, it leaves a word that the next daemon understands (which
// reads `given_up` as its own decision). If the client dies, the word stays as it is, and the kernel tells the daemon.
//
// An observer has no write access, owns nothing, and is `here` from the start; the end of its connection tells that it
// has gone. A word with none of these values (somebody has scribbled) counts as `here`, so that no memory is taken away
// by accident.
#pragma once

#include <atomic>
#include <cstdint>

namespace numacre::engine {

class Presence {
public:
    enum class State : std::uint64_t { attaching = 0, here = 1, left = 2, given_up = 3 };

    constexpr explicit Presence(std::uint64_t bits) : bits_(bits) {}
    constexpr Presence(std::uint64_t generation, State state)
        : bits_(generation << kStateBits | static_cast<std::uint64_t>(state)) {}
    constexpr std::uint64_t bits() const { return bits_; }
    constexpr State state() const { return static_cast<State>(bits_ & kStateMask); }
    constexpr bool is_of(std::uint64_t generation) const {
        return bits_ >> kStateBits == (generation << kStateBits) >> kStateBits;
    }

    // The state of the client of this generation; `here` if the word is of another generation.
    constexpr State state_of(std::uint64_t generation) const { return is_of(generation) ? state() : State::here; }

    // The client calls this once, with everything mapped. False: the daemon has given it up, or the seat is another
    // client's.
    template <class Word>
    static bool come(Word &word, std::uint64_t generation) {
        std::uint64_t bits = Presence{generation, State::attaching}.bits();
        // relaxed: the word alone decides. The daemon reads the client's later writes only after leave() or the
        // process's end.
        return word.compare_exchange_strong(bits, Presence{generation, State::here}.bits(), std::memory_order_relaxed);
    }

    // The client calls this once, with nothing mapped any more but the word. By CAS: the seat may be nobody's by now.
    template <class Word>
    static void leave(Word &word, std::uint64_t generation) {
        std::uint64_t bits = Presence{generation, State::here}.bits();
        // EDGE leave (release; partner: the acquire in give_up()). Carries all that the client did in the pool.
        // Weakened: recovery reads an old intent or an old entry, and frees a block that is free already, or frees too
        // little.
        word.compare_exchange_strong(bits, Presence{generation, State::left}.bits(), std::memory_order_release,
                                     std::memory_order_relaxed);
    }

    // The daemon calls this for a client whose connection has ended. Returns `here`, `left` or `given_up`, never
    // `attaching`.
    template <class Word>
    static State give_up(Word &word, std::uint64_t generation) {
        std::uint64_t bits = Presence{generation, State::attaching}.bits();
        // EDGE leave (acquire). On success relaxed would suffice, for a client that has not come has done nothing.
        if (word.compare_exchange_strong(bits, Presence{generation, State::given_up}.bits(), std::memory_order_acq_rel,
                                         std::memory_order_acquire))
            return State::given_up;
        return Presence{bits}.state_of(generation);
    }

private:
    static constexpr unsigned kStateBits = 2;
    static constexpr std::uint64_t kStateMask = 3;
    std::uint64_t bits_;
};

}  // namespace numacre::engine
