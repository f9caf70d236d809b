#include "memory/pins.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "memory/region.hpp"
#include "numacre/os/kernel.hpp"

namespace numacre::daemon {

namespace {

// No file of ours reaches as far: locks may lie beyond a file's end.
constexpr std::int64_t kFirstLock = std::int64_t{1} << 62;

std::int64_t lock_of(std::size_t index) {
    return kFirstLock + static_cast<std::int64_t>(index);
}

Unexpected<Failure> too_many(const std::string &what) {
    return Unexpected{Failure{Errc::too_many_clients, what}};
}

}  // namespace

Pins::Pins(const PoolLedger &ledger, MetadataRegion file)
    : entries_(ledger.pins()), file_(std::move(file)), gone_since_(entries_.size()) {
    // acquire: with the entry that an earlier daemon has written.
    used_ = static_cast<std::size_t>(std::ranges::count_if(
        entries_, [](const LedgerPin &entry) { return entry.is_used.load(std::memory_order_acquire) != 0; }));
}

Pins::Pin Pins::pin_of(const LedgerPin &entry) {
    return {ProcessSlot{entry.slot}, NumaNode{entry.numa_node}, entry.first_byte, entry.bytes};
}

// Where the kernel does not say, somebody has it.
bool Pins::is_held(std::size_t index) const {
    return os::has_other_file_lock(file_.fd(), lock_of(index)) != 0;
}

void Pins::erase(std::size_t index) {
    entries_[index].is_used.store(0, std::memory_order_release);
    gone_since_[index].reset();
    --used_;
}

void Pins::look(std::size_t index, std::chrono::milliseconds hold, Clock::time_point now) {
    if (is_held(index)) {
        gone_since_[index].reset();
        return;
    }
    if (!gone_since_[index]) gone_since_[index] = now;
    if (now - *gone_since_[index] >= hold) erase(index);
}

void Pins::look(std::chrono::milliseconds hold, Clock::time_point now) {
    const MutexLock lock(mutex_);
    for (std::size_t i = 0; used_ != 0 && i < entries_.size(); ++i)
        if (entries_[i].is_used.load(std::memory_order_acquire) != 0) look(i, hold, now);
}

Answer<Fd> Pins::add(const Pin &pin, std::chrono::milliseconds hold, Clock::time_point now) {
    const MutexLock lock(mutex_);
    std::size_t of_client = 0;
    std::optional<std::size_t> free, lent;
    for (std::size_t i = 0; i < entries_.size(); ++i) {
        const LedgerPin &entry = entries_[i];
        if (entry.is_used.load(std::memory_order_acquire) != 0) look(i, hold, now);
        const bool is_used = entry.is_used.load(std::memory_order_relaxed) != 0;
        // The descriptor of a pin of this client may be gone because the client is dying at this moment: so the pin is
        // not forgotten, unless the new one takes its place.
        if (is_used && entry.slot == pin.slot.value) {
            const Pin old = pin_of(entry);
            if (!gone_since_[i])
                ++of_client;
            else if (old.numa_node == pin.numa_node && old.first_byte >= pin.first_byte &&
                     old.first_byte + old.bytes <= pin.first_byte + pin.bytes)
                lent = i;
        }
        // Somebody may keep a copy of a descriptor whose pin is forgotten.
        if (!free && !is_used && !is_held(i)) free = i;
    }
    if (lent) free = lent;
    if (of_client >= kOfClient)
        return too_many("this client has " + std::to_string(of_client) +
                        " pins already: pin one larger range, or numacre_unpin() some");
    if (!free)
        return too_many("the pool has " + std::to_string(entries_.size()) +
                        " pins already: have some clients numacre_unpin() theirs, or evict some");
    // A file description of its own: the lock belongs to it, and the one that all clients share would never let go.
    auto descriptor = reopen_read_only(file_.fd());
    if (!descriptor) return descriptor;
    if (os::lock_file_byte(descriptor->get(), lock_of(*free)) != 0)
        return too_many(std::string("the kernel does not lock the pin's place (") + std::strerror(errno) +
                        "): have some clients numacre_unpin() theirs");
    LedgerPin &entry = entries_[*free];
    if (lent) erase(*free);
    entry.slot = pin.slot.value;
    entry.numa_node = pin.numa_node.value;
    entry.first_byte = pin.first_byte;
    entry.bytes = pin.bytes;
    entry.has_ended.store(0, std::memory_order_relaxed);  // ordered by the next store
    // release: a daemon after us finds the whole entry, or none.
    entry.is_used.store(1, std::memory_order_release);
    gone_since_[*free].reset();
    ++used_;
    return descriptor;
}

bool Pins::covers(NumaNode numa_node, std::uint64_t first_byte, std::uint64_t bytes) const {
    const MutexLock lock(mutex_);
    if (used_ == 0) return false;
    for (std::size_t i = 0; i < entries_.size(); ++i) {
        const LedgerPin &entry = entries_[i];
        if (entry.is_used.load(std::memory_order_acquire) != 0 &&
            pin_of(entry).overlaps(numa_node, first_byte, bytes) &&
            (entry.has_ended.load(std::memory_order_relaxed) != 0 || is_held(i)))
            return true;
    }
    return false;
}

std::vector<Pins::Pin> Pins::all() const {
    std::vector<Pin> pins;
    const MutexLock lock(mutex_);
    for (std::size_t i = 0; used_ != 0 && i < entries_.size(); ++i) {
        const LedgerPin &entry = entries_[i];
        if (entry.is_used.load(std::memory_order_acquire) != 0 &&
            (entry.has_ended.load(std::memory_order_relaxed) != 0 || is_held(i)))
            pins.push_back(pin_of(entry));
    }
    return pins;
}

void Pins::begin_departure(ProcessSlot slot) {
    const MutexLock lock(mutex_);
    for (std::size_t i = 0; used_ != 0 && i < entries_.size(); ++i)
        if (entries_[i].is_used.load(std::memory_order_acquire) != 0 && entries_[i].slot == slot.value)
            entries_[i].has_ended.store(1, std::memory_order_release);
}

std::vector<Pins::Pin> Pins::quarantine_of(ProcessSlot slot, std::chrono::milliseconds hold, Clock::time_point now) {
    std::vector<Pin> pins;
    const MutexLock lock(mutex_);
    for (std::size_t i = 0; used_ != 0 && i < entries_.size(); ++i) {
        if (entries_[i].is_used.load(std::memory_order_acquire) == 0 || entries_[i].slot != slot.value) continue;
        look(i, hold, now);
        if (entries_[i].is_used.load(std::memory_order_acquire) != 0) pins.push_back(pin_of(entries_[i]));
    }
    return pins;
}

Pins::Wait Pins::wait_of(ProcessSlot slot, std::chrono::milliseconds hold, Clock::time_point now) const {
    Wait wait;
    const MutexLock lock(mutex_);
    for (std::size_t i = 0; used_ != 0 && i < entries_.size(); ++i) {
        if (entries_[i].is_used.load(std::memory_order_acquire) == 0 || entries_[i].slot != slot.value) continue;
        if (is_held(i)) return {.is_held = true, .left = std::nullopt};
        // Nobody has looked since it went: its time begins with the next look, at the latest in a second.
        const Clock::time_point end = gone_since_[i].value_or(now) + hold;
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(std::max(end - now, Clock::duration{0}));
        wait.left = std::max(wait.left.value_or(left), left);
    }
    return wait;
}

bool Pins::has_descriptor(ProcessSlot slot) const {
    const MutexLock lock(mutex_);
    for (std::size_t i = 0; used_ != 0 && i < entries_.size(); ++i)
        if (entries_[i].is_used.load(std::memory_order_acquire) != 0 && entries_[i].slot == slot.value && is_held(i))
            return true;
    return false;
}

void Pins::forget(ProcessSlot slot) {
    const MutexLock lock(mutex_);
    for (std::size_t i = 0; used_ != 0 && i < entries_.size(); ++i)
        if (entries_[i].is_used.load(std::memory_order_acquire) != 0 && entries_[i].slot == slot.value) erase(i);
}

}  // namespace numacre::daemon
