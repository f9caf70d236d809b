// The pins of a pool: ranges of frames that a device or the kernel has registered, so that they may not go offline,
// move or be punched. A pin belongs to a client and lasts as long as somebody has its descriptor: the client, or a
// child that it has forked.
//
// The kernel keeps account of the descriptors, across deaths of the daemon as well. Each pin has a byte of its own, far
// beyond the end of a file that has nothing else to do, and its descriptor holds a lock on that byte (an open file
// description lock, fcntl(2)). The descriptor is for reading, and no client has another one of that file: who pins
// nothing cannot lock anything. The kernel lets the lock go when the last copy of the descriptor is closed. The ledger
// says which range and whose the pin is.
//
// The kernel goes on with what it was doing for a process for a moment after the process's end. So a pin whose
// descriptor is gone stays for the hold time; if its client ends before that is over, the client's blocks in the range
// stay the client's until then (the quarantine of pins).
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/failure.hpp"
#include "base/thread_safety.hpp"
#include "engine.hpp"
#include "memory/ledger.hpp"
#include "memory/region.hpp"
#include "os/fd.hpp"

namespace numacre::daemon {

// Thread-safe. No function waits for another process. A client with a pin can make the kernel's list of locks long, so
// none is for the event loop's thread.
class Pins {
public:
    using Clock = std::chrono::steady_clock;
    struct Pin {
        ProcessSlot slot;
        NumaNode numa_node;
        std::uint64_t first_byte = 0, bytes = 0;  // of the numa node's frames
        bool overlaps(NumaNode other, std::uint64_t first, std::uint64_t count) const {
            return numa_node == other && first < first_byte + bytes && first_byte < first + count;
        }
    };
    static constexpr std::size_t kOfClient = 64;

    // ledger: outlives this object. file: the one with the locks, kept for the next daemon, of at least a page.
    Pins(const PoolLedger &ledger, MetadataRegion file);

    int fd() const { return file_.fd(); }
    // Makes a pin, and returns its descriptor: the caller hands it on and closes its own. A pin of the client that is
    // over, but for its hold time, lends its place if its range is within the new one. too_many_clients: the client, or
    // the pool, has as many as there may be, or no descriptor is left.
    Answer<Fd> add(const Pin &pin, std::chrono::milliseconds hold, Clock::time_point now);
    // Forgets pins whose descriptors have been gone for the hold time. About once a second: so that a pin that a client
    // ended long before its own end keeps nothing back.
    void look(std::chrono::milliseconds hold, Clock::time_point now);

    // Whether a part of the range has to stay where it is: somebody has the pin's descriptor, or its client has ended
    // and its hold time has not.
    bool covers(NumaNode numa_node, std::uint64_t first_byte, std::uint64_t bytes) const;
    // All pins that covers() counts.
    std::vector<Pin> all() const;
    // How many bytes of the numa node are in one of the pins, or in several, of those that count(pin) wants.
    template <class Counts>
    static std::uint64_t bytes_in(std::vector<Pin> pins, Counts &&counts) {
        std::erase_if(pins, [&](const Pin &pin) { return !counts(pin); });
        std::ranges::sort(pins, {}, [](const Pin &pin) { return std::pair(pin.numa_node.value, pin.first_byte); });
        std::uint64_t bytes = 0, end = 0;
        for (std::size_t i = 0; i < pins.size(); ++i) {
            if (i == 0 || pins[i].numa_node != pins[i - 1].numa_node) end = 0;
            const std::uint64_t last = pins[i].first_byte + pins[i].bytes;
            bytes += last - std::min(last, std::max(end, pins[i].first_byte));
            end = std::max(end, last);
        }
        return bytes;
    }

    // From now on the client counts as ended.
    void begin_departure(ProcessSlot slot);
    // The ranges in which the ended client's blocks have to stay for now; forgets pins that are over.
    std::vector<Pin> quarantine_of(ProcessSlot slot, std::chrono::milliseconds hold, Clock::time_point now);
    // Why, and for how long, quarantine_of() has some: without a change.
    struct Wait {
        bool is_held = false;  // somebody has the descriptor of one: until that is closed, and then for the hold time
        std::optional<std::chrono::milliseconds> left;  // of the last hold time that runs; nothing: held, or no pin
    };
    Wait wait_of(ProcessSlot slot, std::chrono::milliseconds hold, Clock::time_point now) const;
    // Whether somebody has the descriptor of a pin of this client, dead or alive.
    bool has_descriptor(ProcessSlot slot) const;
    // Forgets all pins of the client: nothing is left of it.
    void forget(ProcessSlot slot);

private:
    bool is_held(std::size_t index) const;
    void look(std::size_t index, std::chrono::milliseconds hold, Clock::time_point now) NUMACRE_REQUIRES(mutex_);
    static Pin pin_of(const LedgerPin &entry);
    void erase(std::size_t index) NUMACRE_REQUIRES(mutex_);

    std::span<LedgerPin> entries_;
    MetadataRegion file_;
    mutable Mutex mutex_;
    // By entry: when the descriptor was first seen to be gone.
    std::vector<std::optional<Clock::time_point>> gone_since_ NUMACRE_GUARDED_BY(mutex_);
    std::size_t used_ NUMACRE_GUARDED_BY(mutex_) = 0;
};

}  // namespace numacre::daemon
