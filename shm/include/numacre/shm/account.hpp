// Limits on how much of a pool a process, a user and all clients together may hold. The daemon writes the limits into
// shared words; clients obey them without a question to the daemon. While the pool has no limit
// (PoolHeader::accounting), nobody counts and nothing here is called.
//
// The count of a process is one word of its record. It covers the blocks that the process holds in the tree, those in
// its threads' caches included: a block that goes into a cache, or comes out of one, changes nothing. The holdings of a
// user, or of all clients, are the sum of their processes' words, and the sum is formed when it is needed. A process
// that dies takes its word with it, and there is no shared sum that a death could leave wrong.
//
// Counts are exact with two exceptions: an operation of each thread that is under way when the first limit is set, and
// a taker that dies between its CAS and the two words that it changes afterwards. The daemon compares the words with
// its scans, and corrects a word that is wrong and has not changed since the scan before. A thread changes the tree and
// the count one after the other, and may stand still in between for any time (SIGSTOP). So the thread first says how
// many frames its call is about to change (UnderWay): the count of its process may be wrong by that number.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <utility>

#include "numacre/shm/layout.hpp"

namespace numacre::engine {

// The count of a process. Bits 0 .. 43: frames. Bits 44 .. 62: number of changes, so that an old count is not written
// over a newer one. Bit 63: counted; while it is not set, the process has not counted yet the blocks that it held when
// the first limit was set.
class HeldFrames {
public:
    constexpr explicit HeldFrames(std::uint64_t bits = 0) : bits_(bits) {}
    static constexpr HeldFrames of(std::uint64_t frames) { return HeldFrames{kCounted | (frames & kFrames)}; }

    constexpr std::uint64_t bits() const { return bits_; }
    constexpr bool is_counted() const { return (bits_ & kCounted) != 0; }
    constexpr std::uint64_t frames() const { return bits_ & kFrames; }
    constexpr HeldFrames with_more(std::uint64_t frames) const { return changed_to(this->frames() + frames); }
    // Never below 0: blocks that were not counted may be given back as well.
    constexpr HeldFrames with_fewer(std::uint64_t frames) const {
        return changed_to(this->frames() - std::min(frames, this->frames()));
    }
    constexpr HeldFrames changed_to(std::uint64_t frames) const {
        return HeldFrames{kCounted | ((bits_ + kChange) & kChanges) | (frames & kFrames)};
    }

private:
    static constexpr std::uint64_t kCounted = std::uint64_t{1} << 63;
    static constexpr std::uint64_t kChange = std::uint64_t{1} << 44;
    static constexpr std::uint64_t kFrames = kChange - 1;
    static constexpr std::uint64_t kChanges = ~kCounted & ~kFrames;
    std::uint64_t bits_;
};

// A word of a process's record: frames that other processes have counted for waiting threads of this process. A thread
// that has received its block moves the frames to HeldFrames; every sum counts both. Bits 0 .. 35: frames. Bits
// 36 .. 47: era. Bits 48 .. 63: number of changes.
//
// A giver may die, or stand still for any time, between its count and its gift. So any process can forget the frames on
// the way (forget_on_the_way() in hand_off.hpp: no thread waits then, and no gift arrives), and a new era begins. A
// giver takes its count back only in the era in which it has counted; eras come round after 4096.
class OnTheWay {
public:
    constexpr explicit OnTheWay(std::uint64_t bits = 0) : bits_(bits) {}
    constexpr std::uint64_t bits() const { return bits_; }
    constexpr std::uint64_t frames() const { return bits_ & kFrames; }
    constexpr std::uint64_t era() const { return (bits_ & kEras) >> kEraShift; }
    constexpr bool has_room_for(std::uint64_t frames) const { return frames <= kFrames - this->frames(); }
    constexpr OnTheWay with_more(std::uint64_t frames) const { return changed_to(era(), this->frames() + frames); }
    // Never below 0: the block may have been given while nobody counted.
    constexpr OnTheWay with_fewer(std::uint64_t frames) const {
        return changed_to(era(), this->frames() - std::min(frames, this->frames()));
    }
    constexpr OnTheWay forgotten() const { return changed_to(era() + 1, 0); }

private:
    constexpr OnTheWay changed_to(std::uint64_t era, std::uint64_t frames) const {
        return OnTheWay{((bits_ + kChange) & kChanges) | (era << kEraShift & kEras) | (frames & kFrames)};
    }
    static constexpr unsigned kEraShift = 36;
    static constexpr std::uint64_t kFrames = (std::uint64_t{1} << kEraShift) - 1;
    static constexpr std::uint64_t kChange = std::uint64_t{1} << 48;
    static constexpr std::uint64_t kChanges = ~(kChange - 1);
    static constexpr std::uint64_t kEras = ~kChanges & ~kFrames;
    std::uint64_t bits_;
};

// A word of a thread's slot, written by that thread alone, and only while clients count. It is not 0 while a call of
// the thread is between the tree and the count: the count of its process, and of the process whose block it takes, may
// then differ from the result of a scan by this number of frames. Bits 0 .. 43: frames. Bits 44 .. 59: the process
// whose block is taken (0: none).
class UnderWay {
public:
    static constexpr ProcessSlot kNobody = kDaemonProcess;
    static constexpr ProcessSlot kAnybody{0xffff};  // two blocks of two givers

    constexpr explicit UnderWay(std::uint64_t bits = 0) : bits_(bits) {}
    constexpr std::uint64_t bits() const { return bits_; }
    constexpr std::uint64_t frames() const { return bits_ & kFrames; }
    constexpr ProcessSlot giver() const { return ProcessSlot{static_cast<std::uint16_t>(bits_ >> kGiverShift)}; }
    // The word for a call of a signal handler in the middle of another call.
    constexpr UnderWay with(std::uint64_t frames, ProcessSlot giver) const {
        const ProcessSlot other = this->giver();
        const ProcessSlot both = other == kNobody || other == giver ? giver : giver == kNobody ? other : kAnybody;
        return UnderWay{((this->frames() + frames) & kFrames) | std::uint64_t{both.value} << kGiverShift};
    }

private:
    static constexpr unsigned kGiverShift = 44;
    static constexpr std::uint64_t kFrames = (std::uint64_t{1} << kGiverShift) - 1;
    std::uint64_t bits_;
};

// begin_under_way() comes before the first change of a call, end_under_way() after the last one. The word before is
// returned by the first and restored by the second.
template <class Env>
std::uint64_t begin_under_way(const PoolView<Env> &view, ThreadSlotIndex thread, std::uint64_t frames,
                              ProcessSlot giver) {
    auto &word = view.threads[thread.value].under_way;
    const std::uint64_t before = word.load(std::memory_order_relaxed);  // relaxed: the thread's own
    // relaxed: the changes of the count and of the tree that follow are RMWs, which release this store to everybody who
    // has seen them. If the daemon saw such a change without this store, it would take the count for wrong, and a limit
    // would be exceeded by the block that the call is about to get.
    word.store(UnderWay{before}.with(frames, giver).bits(), std::memory_order_relaxed);
    return before;
}
template <class Env>
void end_under_way(const PoolView<Env> &view, ThreadSlotIndex thread, std::uint64_t before) {
    // release: a reader of this word sees both changes.
    view.threads[thread.value].under_way.store(before, std::memory_order_release);
}

// The holdings and the unused promises of a pool's clients, added up by account. In frames or bytes, as the caller
// likes. Pure.
class Holdings {
public:
    // Adds one client. An account out of range (somebody has scribbled) counts as none.
    constexpr void add(std::uint64_t account, std::uint64_t held, std::uint64_t reserved) {
        const std::size_t at = account < kAccounts ? account : kPoolAccount;
        held_[at] += held;
        promised_[at] += reserved > held ? reserved - held : 0;
        all_ += held;
    }
    // The sums before a client of the account got `frames`. promise_used: by how much the unused part of the client's
    // own promise shrank with that.
    constexpr Holdings before(std::size_t account, std::uint64_t frames, std::uint64_t promise_used) const {
        Holdings then = *this;
        then.held_[account] -= std::min(frames, then.held_[account]);
        then.promised_[account] += promise_used;
        then.all_ -= std::min(frames, then.all_);
        return then;
    }
    // Raises each figure to the larger of the two readings.
    constexpr void raise_to(const Holdings &other) {
        for (std::size_t at = 0; at < kAccounts; ++at) {
            held_[at] = std::max(held_[at], other.held_[at]);
            promised_[at] = std::max(promised_[at], other.promised_[at]);
        }
        all_ = std::max(all_, other.all_);
    }
    constexpr std::uint64_t all() const { return all_; }
    constexpr std::uint64_t of(std::size_t account) const { return held_[account]; }
    // The amount that has to stay free for the account's clients. reserved: the account's own reservation, which
    // contains those of its clients: the promise to a client is part of the promise to its user.
    constexpr std::uint64_t unused(std::size_t account, std::uint64_t reserved) const {
        const std::uint64_t of_account = reserved > held_[account] ? reserved - held_[account] : 0;
        return std::max(of_account, promised_[account]);
    }

private:
    std::array<std::uint64_t, kAccounts> held_{}, promised_{};
    std::uint64_t all_ = 0;
};

enum class Admission : std::uint8_t {
    granted,
    over_client_quota,
    over_user_quota,
    over_pool_quota,
    reserved,  // the free memory has been promised to others
    full,      // all memory is held, promised memory included
};
constexpr bool is_over_quota(Admission answer) {
    return answer == Admission::over_client_quota || answer == Admission::over_user_quota ||
           answer == Admission::over_pool_quota;
}

template <class Env>
bool is_counting(const PoolView<Env> &view) {
    // relaxed: a limit is obeyed from the next look at this word on.
    return (view.header->accounting.load(std::memory_order_relaxed) & Accounting::kCount) != 0;
}

// Raises a process's count. Without effect on a process that has not counted yet: its first count finds the block. The
// loop is bounded, because the word may be another process's, and somebody may scribble there for ever.
template <class Env>
void add_held(const PoolView<Env> &view, ProcessSlot process, std::uint64_t frames) {
    auto &word = view.processes[process.value].held;
    std::uint64_t bits = word.load(std::memory_order_relaxed);  // relaxed: the CAS decides
    // EDGE charge-then-look (seq_cst RMW, then seq_cst loads of all words). Weakened: two processes that want the last
    // frames of a quota do not see each other's charge, and both get the frames.
    for (unsigned round = 0; round < kCasRoundsMax && HeldFrames{bits}.is_counted(); ++round)
        if (word.compare_exchange_weak(bits, HeldFrames{bits}.with_more(frames).bits(), std::memory_order_seq_cst,
                                       std::memory_order_relaxed))
            return;
}
// Lowers a process's count. is_there(): called after the word was read; whether the word still is that process's.
template <class Env, class IsThere>
void remove_held(const PoolView<Env> &view, ProcessSlot process, std::uint64_t frames, const IsThere &is_there) {
    auto &word = view.processes[process.value].held;
    // acquire: with the generation that is_there() asks for.
    std::uint64_t bits = word.load(std::memory_order_acquire);
    // EDGE note-then-uncount (release; partner: the loads of the words, and then of draining_held). Weakened: memory
    // that is freed in a draining unit seems to be room elsewhere, and promised memory is granted.
    for (unsigned round = 0; round < kCasRoundsMax && HeldFrames{bits}.is_counted() && is_there(); ++round)
        if (word.compare_exchange_weak(bits, HeldFrames{bits}.with_fewer(frames).bits(), std::memory_order_acq_rel,
                                       std::memory_order_acquire))
            return;
}
template <class Env>
void remove_held(const PoolView<Env> &view, ProcessSlot process, std::uint64_t frames) {
    remove_held(view, process, frames, [] { return true; });
}
template <class Env>
std::uint64_t generation_of(const PoolView<Env> &view, ProcessSlot process) {
    if (process.value >= view.process_slots) return 0;
    return view.processes[process.value].generation.load(std::memory_order_relaxed);  // relaxed: to be compared
}
// remove_held() of a process that has lost a block to another one, and may have left since: then it has taken its count
// with it, and the word of a client that sits there now is not touched. generation: of the process, from before.
template <class Env>
void remove_lost(const PoolView<Env> &view, ProcessSlot process, std::uint64_t generation, std::uint64_t frames) {
    remove_held(view, process, frames, [&] { return generation_of(view, process) == generation; });
}

// Counts frames as on their way to a waiting thread of the process. Returns the era in which they are counted. nullopt:
// they are not counted, because somebody scribbles.
template <class Env>
std::optional<std::uint64_t> add_on_the_way(const PoolView<Env> &view, ProcessSlot process, std::uint64_t frames) {
    auto &word = view.processes[process.value].on_the_way;
    std::uint64_t bits = word.load(std::memory_order_relaxed);  // relaxed: the CAS decides
    // EDGE charge-then-look, as in add_held().
    for (unsigned round = 0; round < kCasRoundsMax && OnTheWay{bits}.has_room_for(frames); ++round)
        if (word.compare_exchange_weak(bits, OnTheWay{bits}.with_more(frames).bits(), std::memory_order_seq_cst,
                                       std::memory_order_relaxed))
            return OnTheWay{bits}.era();
    return std::nullopt;
}
// For the giver that has no block to give, and for the receiver that counts the frames as held by now. Without effect
// after the era in which they were counted.
template <class Env>
void remove_on_the_way(const PoolView<Env> &view, ProcessSlot process, std::uint64_t frames, std::uint64_t era) {
    auto &word = view.processes[process.value].on_the_way;
    std::uint64_t bits = word.load(std::memory_order_relaxed);  // relaxed: the CAS decides
    // release: after a freed block is noted, or a received one is counted.
    for (unsigned round = 0; round < kCasRoundsMax && OnTheWay{bits}.era() == era; ++round)
        if (word.compare_exchange_weak(bits, OnTheWay{bits}.with_fewer(frames).bits(), std::memory_order_acq_rel,
                                       std::memory_order_relaxed))
            return;
}
// The two words of a process's record: the frames that it holds, and those on their way to it.
struct Words {
    std::uint64_t on_the_way = 0, held = 0;
    bool operator==(const Words &) const = default;
    std::uint64_t frames() const { return OnTheWay{on_the_way}.frames() + HeldFrames{held}.frames(); }
};
template <class Env>
Words words_of(const ProcessRecord<Env> &record) {
    // In this order: frames that move from the first word to the second are added to the second before they are taken
    // from the first, so the sum is never too low.
    const std::uint64_t coming = record.on_the_way.load(std::memory_order_seq_cst);
    return {coming, record.held.load(std::memory_order_seq_cst)};
}

// The frames that the process holds or is about to hold; never too few.
template <class Env>
std::uint64_t counted_frames(const ProcessRecord<Env> &record) {
    return words_of(record).frames();
}

// The frames that are held in draining units. They are part of the sums of all holdings, but take nothing from the
// memory that can be had: online_frames does not contain these units. The daemon finds the number by a scan, and leaves
// out the frames that are, or might be, held by those who have been promised memory. A process that frees such a block
// past the caches lowers the number, after the tree and before its count. So the number is too low at times, and never
// too high. Bits 0 .. 43: frames. Bits 44 .. 63: number of changes.
class DrainingHeld {
public:
    constexpr explicit DrainingHeld(std::uint64_t bits = 0) : bits_(bits) {}
    constexpr std::uint64_t bits() const { return bits_; }
    constexpr std::uint64_t frames() const { return bits_ & kFrames; }
    constexpr DrainingHeld changed_to(std::uint64_t frames) const {
        return DrainingHeld{((bits_ + kChange) & ~kFrames) | (frames & kFrames)};
    }
    constexpr DrainingHeld with_fewer(std::uint64_t frames) const {
        return changed_to(this->frames() - std::min(frames, this->frames()));
    }

private:
    static constexpr std::uint64_t kChange = std::uint64_t{1} << 44;
    static constexpr std::uint64_t kFrames = kChange - 1;
    std::uint64_t bits_;
};

// Notes that a block is free again, past the caches, while its holder's count still has it. is_draining(): whether the
// block lies in a chunk that is to become empty.
template <class Env, class IsDraining>
void note_freed(const PoolView<Env> &view, std::uint64_t frames, const IsDraining &is_draining) {
    if (!is_draining()) return;
    auto &word = view.header->draining_held;
    // Also where the number is 0: a scan that is under way has perhaps found the block, and its result must be refused.
    std::uint64_t bits = word.load(std::memory_order_seq_cst);
    // Bounded: somebody may scribble here for ever.
    for (unsigned round = 0; round < kCasRoundsMax; ++round)
        if (word.compare_exchange_weak(bits, DrainingHeld{bits}.with_fewer(frames).bits(), std::memory_order_seq_cst))
            return;
}
// For the daemon, before a unit is open again or offline, because nobody notes frees there from then on; and before the
// daemon lowers its count by blocks that it has freed itself, which nobody has noted.
template <class Env>
void forget_draining_held(const PoolView<Env> &view) {
    auto &word = view.header->draining_held;
    std::uint64_t bits = word.load(std::memory_order_relaxed);  // relaxed: the CAS decides
    for (unsigned round = 0; round < kCasRoundsMax; ++round)
        if (word.compare_exchange_weak(bits, DrainingHeld{bits}.changed_to(0).bits(), std::memory_order_seq_cst))
            return;
}

// One reading of the words of all processes.
struct Reading {
    Holdings others;           // of all processes but the one that asks
    std::uint64_t digest = 0;  // of the others' words: differs if any of them has changed between two readings
    Words own;                 // of the process that asks
    std::uint64_t own_frames() const { return own.frames(); }
    bool has_words_of(const Reading &other) const { return digest == other.digest && own == other.own; }
};

// Frames that go from another client to the client that is charged for them, and that the giver still counts.
struct HandedOver {
    ProcessSlot from = kDaemonProcess;  // that is: no client
    std::uint64_t frames = 0;
};

// Reads the words slot by slot, those of the process itself in their turn.
template <class Env>
Reading read_words(const PoolView<Env> &view, ProcessSlot process, HandedOver handed, bool downwards) {
    constexpr std::uint64_t kOdd = 0x9e37'79b9'7f4a'7c15;
    const std::uint32_t first = kDaemonProcess.value + 1;
    const std::uint32_t seats = view.seats_bound();
    Reading reading;
    bool has_own = false;
    for (std::uint32_t i = first; i < seats; ++i) {
        const std::uint32_t slot = downwards ? first + (seats - 1 - i) : i;
        const auto &record = view.processes[slot];
        const Words words = words_of(record);
        if (slot == process.value) {
            reading.own = words;
            has_own = true;
            continue;
        }
        reading.digest +=
            words.held * (kOdd + std::uint64_t{4} * slot) + words.on_the_way * (kOdd + std::uint64_t{4} * slot + 2);
        std::uint64_t frames = words.frames();
        if (slot == handed.from.value) frames -= std::min(frames, handed.frames);
        // relaxed: what the daemon writes orders nothing.
        reading.others.add(record.account.load(std::memory_order_relaxed), frames,
                           record.reserved_frames.load(std::memory_order_relaxed));
    }
    if (!has_own) reading.own = words_of(view.processes[process.value]);  // somebody has scribbled over the bound
    return reading;
}
// Reads all words if a limit is shared by several processes, otherwise the process's own words alone.
template <class Env>
Reading read_for(const PoolView<Env> &view, ProcessSlot process, HandedOver handed, std::uint64_t accounting) {
    if ((accounting & Accounting::kShared) != 0) return read_words(view, process, handed, false);
    Reading reading;
    reading.own = words_of(view.processes[process.value]);
    return reading;
}

// The holdings of all after the process has charged something. before: a reading from before the charge. A block that
// is handed over is added to one word and then taken from another; one of the two may be the process's own. A reading
// that meets the first word before the addition and the second word after the removal misses the block. So the words
// are read until two readings agree: then all words had these values at one moment between the two readings. The
// reading from before the charge counts as one of the two if the process's own words have not changed since the charge.
// If kReadings readings do not agree, the largest figures of all of them count: a block is missed only if it is handed
// on at the same moment of each reading, now upwards from seat to seat, now downwards. Two threads that pass a block to
// and fro do nothing else, so fewer readings are not enough: with four, a million charges beside them miss it in one
// run of three.
// Promises are always taken from a reading after the charge: the daemon makes a promise first, and looks at the charges
// then.
template <class Env>
Reading settle(const PoolView<Env> &view, ProcessSlot process, HandedOver handed, const Reading &before) {
    constexpr unsigned kReadings = 8;
    const Words charged = words_of(view.processes[process.value]);
    Reading last = read_words(view, process, handed, true);
    if (last.digest == before.digest && last.own == charged) return last;  // nearly always
    Reading most = last;
    std::uint64_t most_own = last.own_frames();
    for (unsigned reading = 1; reading < kReadings; ++reading) {
        Reading again = read_words(view, process, handed, reading % 2 == 0);
        if (again.has_words_of(last)) return again;
        most.others.raise_to(again.others);
        if (again.own_frames() > most_own) {
            most_own = again.own_frames();
            most.own = again.own;
        }
        last = again;
    }
    return most;
}

// The frames that clients can have, those that they hold already included.
template <class Env>
std::uint64_t frames_for_all(const PoolView<Env> &view) {
    const auto &held = view.header->draining_held;
    const std::uint64_t before = DrainingHeld{held.load(std::memory_order_seq_cst)}.frames();
    // seq_cst; partner: withhold-then-look, in the daemon's publish_sizes().
    const std::uint64_t online = view.header->online_frames.load(std::memory_order_seq_cst);
    // A unit that drains no more is taken off draining_held before it is added to online_frames: it is never in both.
    return online + std::min(before, DrainingHeld{held.load(std::memory_order_seq_cst)}.frames());
}

// Whether the process may hold `held` frames, the last `frames` of them from now on, while the others hold what the
// reading found.
template <class Env>
Admission admit(const PoolView<Env> &view, ProcessSlot process, std::uint64_t held, std::uint64_t frames,
                std::uint64_t accounting, const Holdings &others) {
    const auto relaxed = std::memory_order_relaxed;  // limits and other words of the daemon: they order nothing
    const auto &mine = view.processes[process.value];
    const std::uint64_t quota = mine.quota_frames.load(relaxed);
    if (quota != 0 && held > quota) return Admission::over_client_quota;
    if ((accounting & Accounting::kShared) == 0) return Admission::granted;

    const std::uint64_t said = mine.account.load(relaxed);
    const std::size_t account = said < kAccounts ? said : kPoolAccount;
    const std::uint64_t reserved = mine.reserved_frames.load(relaxed);
    Holdings now = others;
    now.add(account, held, reserved);
    const auto limit_of = [&](std::size_t at) { return view.accounts[at].quota_frames.load(relaxed); };
    if (account != kPoolAccount && limit_of(account) != 0 && now.of(account) > limit_of(account))
        return Admission::over_user_quota;
    if (limit_of(kPoolAccount) != 0 && now.all() > limit_of(kPoolAccount)) return Admission::over_pool_quota;
    if ((accounting & Accounting::kReservations) == 0) return Admission::granted;

    std::uint64_t unused = 0, of_account = 0;
    for (std::size_t at = 0; at < kAccounts; ++at) {
        const std::uint64_t more = now.unused(at, view.accounts[at].reserved_frames.load(relaxed));
        unused += more;
        if (at == account) of_account = more;
    }
    const std::uint64_t seized = HeldFrames{view.processes[kDaemonProcess.value].held.load(relaxed)}.frames();
    // Also while every promise is used: the holder of a promise may give its memory back before this process takes the
    // memory that is granted now, and this process would then take the promised memory.
    if (now.all() + seized + unused <= frames_for_all(view)) return Admission::granted;
    // There is not enough for everybody. A process that only takes its own promise gets it all the same.
    const auto left_of = [reserved](std::uint64_t use) { return reserved > use ? reserved - use : 0; };
    const Holdings then = now.before(account, frames, left_of(held - std::min(held, frames)) - left_of(held));
    const std::uint64_t unused_then = then.unused(account, view.accounts[account].reserved_frames.load(relaxed));
    if (unused_then >= of_account + frames) return Admission::granted;
    return unused == 0 ? Admission::full : Admission::reserved;
}

// Whether the process would be granted `frames` more. Charges nothing, so no other process is refused because of the
// question. A later charge may be refused all the same.
template <class Env>
Admission ask(const PoolView<Env> &view, ProcessSlot process, std::uint64_t frames, HandedOver handed = {}) {
    const std::uint64_t accounting = view.header->accounting.load(std::memory_order_relaxed);  // relaxed: a question
    const Reading now = read_for(view, process, handed, accounting);
    return admit(view, process, now.own_frames() + frames, frames, accounting, now.others);
}

// The outcome of a charge.
struct Charging {
    Admission answer = Admission::granted;
    // The charge was made, then refused and taken back. While it stood, other processes may have been refused by it.
    bool is_taken_back = false;
};

// Counts `frames` for the process by add() -> bool, if all limits allow that. Otherwise remove() takes the count back,
// and nothing is changed. Two processes that ask for the last frames at once may both be refused: so a caller whose
// charge was taken back serves waiting threads afterwards.
template <class Env, class Add, class Remove>
Charging charge(const PoolView<Env> &view, ProcessSlot process, std::uint64_t frames, HandedOver handed, const Add &add,
                const Remove &remove) {
    // The first look comes without a charge: a request that will never be granted must not stand in the way of others,
    // and a thread may stand still before it has taken its charge back.
    std::uint64_t accounting = view.header->accounting.load(std::memory_order_relaxed);  // relaxed: only a first look
    const Reading before = read_for(view, process, handed, accounting);
    if (const Admission answer = admit(view, process, before.own_frames() + frames, frames, accounting, before.others);
        answer != Admission::granted)
        return {answer, false};
    if (!add()) return {Admission::full, false};
    // seq_cst: after the charge. The limits may be others by now.
    accounting = view.header->accounting.load(std::memory_order_seq_cst);
    const bool is_shared = (accounting & Accounting::kShared) != 0;
    const Reading now = is_shared ? settle(view, process, handed, before) : read_for(view, process, handed, accounting);
    const Admission answer = admit(view, process, now.own_frames(), frames, accounting, now.others);
    if (answer != Admission::granted) remove();
    return {answer, answer != Admission::granted};
}

// Charges frames as held. The process must have counted what it held before.
template <class Env>
Charging charge(const PoolView<Env> &view, ProcessSlot process, std::uint64_t frames, HandedOver handed = {}) {
    const auto add = [&] {
        add_held(view, process, frames);
        return true;
    };
    return charge(view, process, frames, handed, add, [&] { remove_held(view, process, frames); });
}
// Charges frames as on their way to a thread of the process. era: in which they are, if they are granted.
template <class Env>
Charging charge_on_the_way(const PoolView<Env> &view, ProcessSlot process, std::uint64_t frames, HandedOver handed,
                           std::uint64_t &era) {
    const auto add = [&] {
        const auto added = add_on_the_way(view, process, frames);
        if (added) era = *added;
        return added.has_value();
    };
    return charge(view, process, frames, handed, add, [&] { remove_on_the_way(view, process, frames, era); });
}

}  // namespace numacre::engine
