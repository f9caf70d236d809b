// Quarantine: decides when blocks that dead clients left, and that the daemon has seized, may be used again. It holds
// times and counts only, without shared memory or a lock, and belongs to its owner's thread.
//
// A client decides how many blocks it leaves behind, and each listed block takes memory of the daemon. So the list has
// kListed blocks at most. The other blocks stand only in the index, where the daemon has written the era in which it
// seized them; when the list is empty, the daemon finds them there. An era is a small part of the hold time, so that
// there are few eras, and no block is held much too long.
//
// Times of seizure are kept, not times of release: a new hold time holds for all blocks at once, and the order stays.
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
    // Uses the bits of PoolAge in an index entry: nobody asks how long the daemon has held a block.
    using Era = engine::PoolAge;
    struct Seized {
        engine::NumaNode numa_node;
        engine::Block block;
        Clock::time_point since;
    };
    static constexpr std::size_t kListed = 65536;  // 32 bytes each

    explicit Quarantine(std::chrono::seconds hold) { set_hold(hold); }

    void set_hold(std::chrono::seconds hold) {
        hold_ = hold;
        era_length_ = std::max(hold_ / kEras, kShortestEra);
    }

    // The era of blocks that are seized now.
    Era era(Clock::time_point now);
    // Adds a block that has been seized now, in that era. Also takes a block that was found in the index and whose
    // time of seizure is not known: its hold time begins anew.
    void add(engine::NumaNode numa_node, engine::Block block, Era era, Clock::time_point now);
    // Returns the next block that is due. From then on the block is the caller's.
    std::optional<Seized> take_due(Clock::time_point now);
    // Takes back a block that cannot be released yet: take_due() returns it once more, and no block before `again`.
    void put_back(Seized seized, Clock::time_point again) {
        listed_.push_front(seized);
        not_before_ = again;
    }

    // True: the list is empty, and some unlisted blocks may be due. The owner then calls begin_listing(), list() for
    // each seized block, and end_listing().
    bool has_to_list(Clock::time_point now) const { return listed_.empty() && !eras_.empty() && next_due() <= now; }
    void begin_listing();
    void list(engine::NumaNode numa_node, engine::Block block, Era era, Clock::time_point now);
    void end_listing();

    bool is_empty() const { return listed_.empty() && eras_.empty(); }
    // Precondition: not empty.
    Clock::time_point next_due() const;
    void clear();

private:
    static constexpr int kEras = 64;
    static constexpr Clock::duration kShortestEra = std::chrono::milliseconds(250);
    // The blocks of one era that are not in the list.
    struct Unlisted {
        Clock::time_point since;  // of the last of them
        std::uint64_t blocks = 0;
    };

    Clock::duration hold_{}, era_length_{};
    Clock::time_point not_before_{};
    std::deque<Seized> listed_;               // in the order of their times; none is younger than an unlisted one
    std::map<std::uint32_t, Unlisted> eras_;  // by code; no era is without blocks, except while listing
    Era current_;
    std::optional<Clock::time_point> current_since_;
};

}  // namespace numacre::daemon
