// When what the dead have left may be used again: blocks that the daemon has seized, until they are due. Times and
// counts only, without shared memory or a lock: its owner's thread.
//
// A client decides how many blocks it leaves behind, and each that is listed takes memory of the daemon. So there are
// that many of them in the list at most; the others stand in the index only, where the daemon has written in which era
// it has seized them, and are found there when the list is empty. An era is as long as a small part of the time that
// blocks are held, so that there are few of them, and none is held much too long.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>

#include "numacre/shm/note.hpp"
#include "numacre/shm/units.hpp"

namespace numacre::daemon {

class Quarantine {
public:
    using Clock = std::chrono::steady_clock;
    // PoolAge's bits of an index entry: nobody asks since when the daemon holds a block.
    using Era = engine::PoolAge;
    struct Seized {
        engine::NumaNode numa_node;
        engine::Block block;
        Clock::time_point due;
    };
    static constexpr std::size_t kListed = 65536;  // 32 bytes each

    explicit Quarantine(std::chrono::seconds hold) : hold_(hold), era_length_(std::max(hold_ / kEras, kShortestEra)) {}

    // In which what is seized now is seized.
    Era era(Clock::time_point now);
    // Seized now, in that era; or found, where it is not known when, and its time begins anew.
    void add(engine::NumaNode numa_node, engine::Block block, Era era, Clock::time_point now);
    // The next block that is due, which is the caller's.
    std::optional<Seized> take_due(Clock::time_point now);
    // Cannot be released yet: once more then.
    void put_back(Seized seized) { listed_.push_front(seized); }

    // Nothing is in the list, and some of what is not may be due: begin_listing(), and then list() for each block that
    // is seized.
    bool has_to_list(Clock::time_point now) const { return listed_.empty() && !eras_.empty() && next_due() <= now; }
    void begin_listing();
    void list(engine::NumaNode numa_node, engine::Block block, Era era, Clock::time_point now);
    void end_listing();

    bool is_empty() const { return listed_.empty() && eras_.empty(); }
    // Not if it is empty.
    Clock::time_point next_due() const;
    void clear();

private:
    static constexpr int kEras = 64;
    static constexpr Clock::duration kShortestEra = std::chrono::milliseconds(250);
    // Of the blocks that are not in the list.
    struct Unlisted {
        Clock::time_point due;  // the last one's
        std::uint64_t blocks = 0;
    };

    Clock::duration hold_, era_length_;
    std::deque<Seized> listed_;               // in the order in which they are due
    std::map<std::uint32_t, Unlisted> eras_;  // by code; none without blocks, but while listing
    Era current_;
    std::optional<Clock::time_point> current_since_;
};

}  // namespace numacre::daemon
