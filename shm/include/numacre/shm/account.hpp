// Who may hold how much of a pool. Limits are the daemon's words; clients obey them without asking it. Nobody counts
// while no limit is set in the pool (PoolHeader::accounting), and then nothing here is called.
//
// A process's count is one word of its record: what it holds in the tree's eyes, caches included, so that blocks that
// go in and out of a cache change nothing. What a user, or everybody, holds is the sum of their processes' words,
// formed when it is needed: whoever dies takes its word with it, and there is no shared sum that a death could leave
// wrong.
//
// Exact but for this: what is under way in the moment the first limit is set (an operation a thread); a taker that dies
// between its CAS and the two words it changes then. The daemon compares the words with its scans and corrects one that
// is wrong and has stood still since the look before. A thread changes the tree and the count one after the other, and
// may stand still in between for as long as somebody likes (SIGSTOP): so it says before what it is about to do
// (UnderWay), and by so much its process's count may be off.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <utility>

#include "numacre/shm/layout.hpp"

namespace numacre::engine {

// Bits 0 .. 43 frames, 44 .. 62 changes (so that a count of long ago is not written over a newer one), 63 counted: not
// set, the process has not counted yet what it held when the first limit came.
class HeldFrames {
public:
    constexpr explicit HeldFrames(std::uint64_t bits = 0) : bits_(bits) {}
    static constexpr HeldFrames of(std::uint64_t frames) { return HeldFrames{kCounted | (frames & kFrames)}; }

    constexpr std::uint64_t bits() const { return bits_; }
    constexpr bool is_counted() const { return (bits_ & kCounted) != 0; }
    constexpr std::uint64_t frames() const { return bits_ & kFrames; }
    constexpr HeldFrames with_more(std::uint64_t frames) const { return changed_to(this->frames() + frames); }
    // Never below 0: what was not counted may be given back as well.
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

// A word of a process's record: frames that others have counted for threads of it that wait. A thread that has received
// its block moves them to HeldFrames; in every sum they count as held. Bits 0 .. 35 frames, 36 .. 47 era, 48 .. 63
// changes.
//
// A giver may die, or stand still for as long as somebody likes, between its count and its gift. So what is on the way
// can be forgotten by anybody (forget_on_the_way() in hand_off.hpp: no thread waits then, and no gift arrives), and a
// new era begins. A giver takes back what it has counted in the era in which it has counted it, and in no other.
class OnTheWay {
public:
    constexpr explicit OnTheWay(std::uint64_t bits = 0) : bits_(bits) {}
    constexpr std::uint64_t bits() const { return bits_; }
    constexpr std::uint64_t frames() const { return bits_ & kFrames; }
    constexpr std::uint64_t era() const { return (bits_ & kEras) >> kEraShift; }
    constexpr bool has_room_for(std::uint64_t frames) const { return frames <= kFrames - this->frames(); }
    constexpr OnTheWay with_more(std::uint64_t frames) const { return changed_to(era(), this->frames() + frames); }
    // Never below 0: it may have been given while nobody counted.
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

// A word of a thread's slot, written by the thread alone while anybody counts: a call of it is between the tree and the
// count. By so many frames the count of its process, and of the process whose block it takes, may differ from what a
// scan finds. Bits 0 .. 43 frames, 44 .. 59 whose block is taken (0: nobody's).
class UnderWay {
public:
    static constexpr ProcessSlot kNobody = kDaemonProcess;
    static constexpr ProcessSlot kAnybody{0xffff};  // two blocks of two givers

    constexpr explicit UnderWay(std::uint64_t bits = 0) : bits_(bits) {}
    constexpr std::uint64_t bits() const { return bits_; }
    constexpr std::uint64_t frames() const { return bits_ & kFrames; }
    constexpr ProcessSlot giver() const { return ProcessSlot{static_cast<std::uint16_t>(bits_ >> kGiverShift)}; }
    // A signal handler's call in the middle of another one.
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

// Says so, from before the first change until after the last, and then what it said before.
template <class Env>
std::uint64_t begin_under_way(const PoolView<Env> &view, ThreadSlotIndex thread, std::uint64_t frames,
                              ProcessSlot giver) {
    auto &word = view.threads[thread.value].under_way;
    const std::uint64_t before = word.load(std::memory_order_relaxed);  // relaxed: the thread's own
    // relaxed: the changes of the count and of the tree that follow are RMWs which release it to who has seen them. If
    // the daemon saw one of them and not this, it would take the count for wrong, and a limit would be exceeded by what
    // the call is about to get.
    word.store(UnderWay{before}.with(frames, giver).bits(), std::memory_order_relaxed);
    return before;
}
template <class Env>
void end_under_way(const PoolView<Env> &view, ThreadSlotIndex thread, std::uint64_t before) {
    // release: whoever sees it sees both changes.
    view.threads[thread.value].under_way.store(before, std::memory_order_release);
}

// What the clients of a pool hold and were promised, added up by account. Frames, or bytes: the caller's unit. Pure.
class Holdings {
public:
    // One client. An account out of range (somebody scribbled) counts as none.
    constexpr void add(std::uint64_t account, std::uint64_t held, std::uint64_t reserved) {
        const std::size_t at = account < kAccounts ? account : kPoolAccount;
        held_[at] += held;
        promised_[at] += reserved > held ? reserved - held : 0;
        all_ += held;
    }
    // As it was before a client of the account got `frames`, by which what is left of its own promise shrank.
    constexpr Holdings before(std::size_t account, std::uint64_t frames, std::uint64_t promise_used) const {
        Holdings then = *this;
        then.held_[account] -= std::min(frames, then.held_[account]);
        then.promised_[account] += promise_used;
        then.all_ -= std::min(frames, then.all_);
        return then;
    }
    // Of two readings the larger figures.
    constexpr void raise_to(const Holdings &other) {
        for (std::size_t at = 0; at < kAccounts; ++at) {
            held_[at] = std::max(held_[at], other.held_[at]);
            promised_[at] = std::max(promised_[at], other.promised_[at]);
        }
        all_ = std::max(all_, other.all_);
    }
    constexpr std::uint64_t all() const { return all_; }
    constexpr std::uint64_t of(std::size_t account) const { return held_[account]; }
    // What has to stay free for the account's clients, given its own reservation. Theirs are part of it: what one of
    // them was promised is promised to its user once, not twice.
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
    reserved,  // what is free has been promised to others
    full,      // all is held, where somebody has been promised something and has it
};
constexpr bool is_over_quota(Admission answer) {
    return answer == Admission::over_client_quota || answer == Admission::over_user_quota ||
           answer == Admission::over_pool_quota;
}

template <class Env>
bool is_counting(const PoolView<Env> &view) {
    // relaxed: a limit is obeyed from the next look on.
    return (view.header->accounting.load(std::memory_order_relaxed) & Accounting::kCount) != 0;
}

// Changes a process's count. Nothing if it has none yet: whoever counts finds what is there. Bounded, for it may be
// another process's word: somebody may scribble there for ever.
template <class Env>
void add_held(const PoolView<Env> &view, ProcessSlot process, std::uint64_t frames) {
    auto &word = view.processes[process.value].held;
    std::uint64_t bits = word.load(std::memory_order_relaxed);  // relaxed: the CAS decides
    // EDGE charge-then-look (seq_cst RMW, then seq_cst loads of all words). Weakened: two that want the last frames of
    // a quota do not see each other's charge, and both get them.
    for (unsigned round = 0; round < kCasRoundsMax && HeldFrames{bits}.is_counted(); ++round)
        if (word.compare_exchange_weak(bits, HeldFrames{bits}.with_more(frames).bits(), std::memory_order_seq_cst,
                                       std::memory_order_relaxed))
            return;
}
// is_there(): asked after the word was read, whether it still is that process's.
template <class Env, class IsThere>
void remove_held(const PoolView<Env> &view, ProcessSlot process, std::uint64_t frames, const IsThere &is_there) {
    auto &word = view.processes[process.value].held;
    // acquire: with the generation that is_there() asks for.
    std::uint64_t bits = word.load(std::memory_order_acquire);
    // EDGE note-then-uncount (release; partner: the loads of the words, and then of draining_held). Weakened: what is
    // freed in a draining unit seems to be room elsewhere, and what is promised is granted.
    for (unsigned round = 0; round < kCasRoundsMax && HeldFrames{bits}.is_counted() && is_there(); ++round)
        if (word.compare_exchange_weak(bits, HeldFrames{bits}.with_fewer(frames).bits(), std::memory_order_acq_rel,
                                       std::memory_order_acquire))
            return;
}
template <class Env>
void remove_held(const PoolView<Env> &view, ProcessSlot process, std::uint64_t frames) {
    remove_held(view, process, frames, [] { return true; });
}

// For a thread of the process that waits. Nothing: it is not counted; somebody scribbles. The era in which it is.
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
// The giver's, or the receiver's, who counts them as held by now: if it still is the era in which they were counted.
template <class Env>
void remove_on_the_way(const PoolView<Env> &view, ProcessSlot process, std::uint64_t frames, std::uint64_t era) {
    auto &word = view.processes[process.value].on_the_way;
    std::uint64_t bits = word.load(std::memory_order_relaxed);  // relaxed: the CAS decides
    // release: after what has been freed is noted, or what has been received is counted.
    for (unsigned round = 0; round < kCasRoundsMax && OnTheWay{bits}.era() == era; ++round)
        if (word.compare_exchange_weak(bits, OnTheWay{bits}.with_fewer(frames).bits(), std::memory_order_acq_rel,
                                       std::memory_order_relaxed))
            return;
}
// What a process holds and is about to hold: the two words of its record.
struct Words {
    std::uint64_t on_the_way = 0, held = 0;
    bool operator==(const Words &) const = default;
    std::uint64_t frames() const { return OnTheWay{on_the_way}.frames() + HeldFrames{held}.frames(); }
};
template <class Env>
Words words_of(const ProcessRecord<Env> &record) {
    // In this order: what goes from one word to the other is added first, so the sum is never too low.
    const std::uint64_t coming = record.on_the_way.load(std::memory_order_seq_cst);
    return {coming, record.held.load(std::memory_order_seq_cst)};
}

template <class Env>
std::uint64_t counted_frames(const ProcessRecord<Env> &record) {
    return words_of(record).frames();
}

// Bits 0 .. 43 frames, 44 .. 63 changes. Of the units that somebody drains, what is held there: that is in the sums of
// what all hold, and takes nothing from what is to be had, which does not include these units (online_frames). The
// daemon finds it by a look, without what is held or might be by those who have been promised memory; who frees such a
// block past the caches lowers it, after the tree and before the count. So it is too low at times, never too high.
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

// A block is free again, past the caches, and its holder's count still has it. is_draining(): the block lies in a chunk
// that is to become empty.
template <class Env, class IsDraining>
void note_freed(const PoolView<Env> &view, std::uint64_t frames, const IsDraining &is_draining) {
    if (!is_draining()) return;
    auto &word = view.header->draining_held;
    // Also of nothing: a look that is under way has perhaps found the block, and is to find that it is too late.
    std::uint64_t bits = word.load(std::memory_order_seq_cst);
    // Bounded: somebody may scribble here for ever.
    for (unsigned round = 0; round < kCasRoundsMax; ++round)
        if (word.compare_exchange_weak(bits, DrainingHeld{bits}.with_fewer(frames).bits(), std::memory_order_seq_cst))
            return;
}
// The daemon's: before a unit is open again, or offline, for from then on nobody notes what is freed there; and before
// it counts no more what it has freed itself, which nobody has noted.
template <class Env>
void forget_draining_held(const PoolView<Env> &view) {
    auto &word = view.header->draining_held;
    std::uint64_t bits = word.load(std::memory_order_relaxed);  // relaxed: the CAS decides
    for (unsigned round = 0; round < kCasRoundsMax; ++round)
        if (word.compare_exchange_weak(bits, DrainingHeld{bits}.changed_to(0).bits(), std::memory_order_seq_cst))
            return;
}

// One reading of all words: what the process that asks holds, and what all others hold.
struct Reading {
    Holdings others;
    std::uint64_t digest = 0;  // of the others' words: tells whether any has changed between two readings
    Words own;
    std::uint64_t own_frames() const { return own.frames(); }
    bool has_words_of(const Reading &other) const { return digest == other.digest && own == other.own; }
};

// Frames that go from another client to the one that is charged for them, and that the other still counts.
struct HandedOver {
    ProcessSlot from = kDaemonProcess;  // nobody
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
// As read_words(), or the process's own words alone where no limit is shared.
template <class Env>
Reading read_for(const PoolView<Env> &view, ProcessSlot process, HandedOver handed, std::uint64_t accounting) {
    if ((accounting & Accounting::kShared) != 0) return read_words(view, process, handed, false);
    Reading reading;
    reading.own = words_of(view.processes[process.value]);
    return reading;
}

// What all hold after the process has charged something, given a reading from before the charge. A block that is handed
// over is added to one word and then taken from another, the process's own words included: a reading that meets the
// first word before the addition and the second one after the removal misses the block. So the words are read until two
// readings agree: then all words had these values at one moment between the two. The reading from before the charge
// counts as one of the two if the process's own words have not changed since the charge.
// After kReadings readings that do not agree the largest figures of all count: a block is missed only if it is handed
// on at the same moment of each reading, now upwards from seat to seat, now downwards. Two threads that pass a block to
// and fro do nothing else, so fewer readings are not enough: with four, a million charges beside them miss it in one
// run of three. What is promised is always that of a reading after the charge: a promise is made before what is charged
// is looked at.
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

// Frames that are there for those who want some, or are somebody's already.
template <class Env>
std::uint64_t frames_for_all(const PoolView<Env> &view) {
    const auto &held = view.header->draining_held;
    const std::uint64_t before = DrainingHeld{held.load(std::memory_order_seq_cst)}.frames();
    // seq_cst; partner: withhold-then-look, in the daemon's publish_sizes().
    const std::uint64_t online = view.header->online_frames.load(std::memory_order_seq_cst);
    // A unit that drains no more is added here after it has been taken off there: never both.
    return online + std::min(before, DrainingHeld{held.load(std::memory_order_seq_cst)}.frames());
}

// Whether the process may hold `held` frames, the last `frames` of them from now on, while the others hold what the
// reading found.
template <class Env>
Admission admit(const PoolView<Env> &view, ProcessSlot process, std::uint64_t held, std::uint64_t frames,
                std::uint64_t accounting, const Holdings &others) {
    const auto relaxed = std::memory_order_relaxed;  // limits, and what the daemon writes: they order nothing
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
    // Also where nothing promised is unused as yet: who was promised something may give it back before we take what we
    // are granted now, and then we would take that.
    if (now.all() + seized + unused <= frames_for_all(view)) return Admission::granted;
    // There is not enough for everybody. That is nothing to those who only take what they were promised.
    const auto left_of = [reserved](std::uint64_t use) { return reserved > use ? reserved - use : 0; };
    const Holdings then = now.before(account, frames, left_of(held - std::min(held, frames)) - left_of(held));
    const std::uint64_t unused_then = then.unused(account, view.accounts[account].reserved_frames.load(relaxed));
    if (unused_then >= of_account + frames) return Admission::granted;
    return unused == 0 ? Admission::full : Admission::reserved;
}

// Whether the process would be granted `frames` more, without a charge: nobody is refused because of a question. A
// grant may be gone when it is asked for.
template <class Env>
Admission ask(const PoolView<Env> &view, ProcessSlot process, std::uint64_t frames, HandedOver handed = {}) {
    const std::uint64_t accounting = view.header->accounting.load(std::memory_order_relaxed);  // relaxed: a question
    const Reading now = read_for(view, process, handed, accounting);
    return admit(view, process, now.own_frames() + frames, frames, accounting, now.others);
}

// The outcome of a charge.
struct Charging {
    Admission answer = Admission::granted;
    // The charge was made, and refused by what others hold: for a moment others may have been refused by it.
    bool is_taken_back = false;
};

// Counts `frames` for the process, by add() -> bool, if all limits allow that; otherwise nothing is changed, by
// remove(). Two that ask for the last frames at once may both be refused: a caller whose charge was taken back tells
// others that wait for memory.
template <class Env, class Add, class Remove>
Charging charge(const PoolView<Env> &view, ProcessSlot process, std::uint64_t frames, HandedOver handed, const Add &add,
                const Remove &remove) {
    // First without a charge: what will never be granted is not to stand in anybody's way, and a thread may stand still
    // before it has taken its charge back.
    std::uint64_t accounting = view.header->accounting.load(std::memory_order_relaxed);  // relaxed: only a first look
    const Reading before = read_for(view, process, handed, accounting);
    if (const Admission answer = admit(view, process, before.own_frames() + frames, frames, accounting, before.others);
        answer != Admission::granted)
        return {answer, false};
    if (!add()) return {Admission::full, false};
    // seq_cst: after the charge; there may be other limits by now.
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
